/* The same steps under each of StarPU's policies. What a policy does to a process that runs on is not known of all of
 * them, and some wait for ever: each has a process of its own, which says by a pipe how it went. */
#include "models/files/base/directories.h"
#include "models/train/run/run.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MiB = 1 << 20, PATIENCE = 900 /* seconds that a process gets */ };

/* What a process says. */
struct answer {
    tess_status status;
    char text[200]; /* why it failed */
    tess_bench_result result;
    uint64_t cap;
};

/* Bytes of RAM that are half of what the step needs, or the least that would do. */
static tess_status find_cap(const tess_config *c, struct answer *a)
{
    tess_run r = {0};
    tess_holds plan;
    tess_status status;
    TESS_TRY_DONE(tess_run_open(c, 0, &r));
    TESS_TRY_DONE(tess_run_tiers(&r, NULL));
    TESS_TRY_DONE(tess_run_plan(c, 0, true, &plan));
    const uint64_t least = tess_run_least(&r);
    a->cap = plan.peak_ram / 2 > least ? plan.peak_ram / 2 : least;
    if (!least) status = tess_error(TESS_FAILED, "memory.cpu", "no cap is found under which the step runs");
done:
    tess_run_close(&r);
    return status;
}

struct work {
    const tess_config *c;
    const char *policy; /* NULL: the cap is looked for */
    int steps;
};

static void work(const struct work *w, int out)
{
    struct answer a = {0};
    FILE *nowhere = fopen("/dev/null", "w");
    alarm(PATIENCE);
    if (!freopen("/dev/null", "w", stderr) || !nowhere) _exit(TESS_FAILED);
    if (w->policy) setenv("STARPU_SCHED", w->policy, 1);
    a.status = w->policy ? tess_bench(w->c, w->steps, nowhere, &a.result) : find_cap(w->c, &a);
    snprintf(a.text, sizeof a.text, "%s", a.status == TESS_OK ? "" : tess_error_text());
    const ssize_t n = write(out, &a, sizeof a);
    _exit(n == sizeof a ? 0 : TESS_FAILED);
}

/* Does it in a process; false, with why, where that fails. */
static bool ask(const struct work *w, struct answer *a)
{
    int end[2], status = 0;
    *a = (struct answer){.status = TESS_FAILED, .text = "no process can be started"};
    if (pipe(end)) return false;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) close(end[0]), work(w, end[1]);
    close(end[1]);
    ssize_t n = -1;
    while (pid > 0 && (n = read(end[0], a, sizeof *a)) < 0 && errno == EINTR) continue;
    close(end[0]);
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) continue;
    if (n == sizeof *a) return a->status == TESS_OK;
    a->status = TESS_FAILED;
    if (pid > 0 && WIFSIGNALED(status))
        snprintf(a->text, sizeof a->text, "%s",
                 WTERMSIG(status) == SIGALRM ? "it did not end in 15 minutes" : strsignal(WTERMSIG(status)));
    else if (pid > 0)
        snprintf(a->text, sizeof a->text, "it ended without a word");
    return false;
}

/* A policy in one place for tiles: what its processes said, or, once one failed, that one alone. */
struct series {
    const char *policy, *where;
    const tess_config *c; /* NULL: it runs none of these tasks */
    bool failed;
    struct answer *said;
};

static void print_head(FILE *out)
{
    fprintf(out, "%-31s %-8s %9s %9s %7s %7s %7s %7s %12s\n", "policy", "tiles", "ms a step", "best", "spread", "busy",
            "data", "idle", "disk a step");
}

/* Policies count scheduling each in its way: it is idle. */
static void print_row(FILE *out, const struct series *s, int repeats)
{
    const tess_bench_result *best = &s->said[0].result, *r = &s->said[repeats / 2].result;
    fprintf(out, "%-31s ", s->policy);
    if (!s->c)
        fprintf(out, "runs none of these tasks\n");
    else if (s->failed)
        fprintf(out, "%-8s %s\n", s->where, s->said->text);
    else
        fprintf(out, "%-8s %9.1f %9.1f %6.1f%% %6.1f%% %6.1f%% %6.1f%% %12s\n", s->where, 1e3 * r->seconds,
                1e3 * best->seconds, 100 * (s->said[repeats - 1].result.seconds - best->seconds) / r->seconds,
                100 * r->busy, 100 * r->waiting, 100 * (1 - r->busy - r->waiting), tess_human_bytes(r->moved));
    fflush(out);
}

static void measure(struct series *s, int steps, int turn)
{
    struct answer a;
    if (!s->c || s->failed) return;
    s->failed = !ask(&(struct work){s->c, s->policy, steps}, &a);
    s->said[s->failed ? 0 : turn] = a;
}

static int by_seconds(const void *a, const void *b)
{
    const double x = ((const struct answer *)a)->result.seconds, y = ((const struct answer *)b)->result.seconds;
    return (x > y) - (x < y);
}

/* All policies, in RAM and, with `capped`, under the cap; returns how many there are. */
static size_t list_series(const tess_config *plain, const tess_config *capped, int repeats, struct series **list)
{
    size_t n = 0;
    const char *policy;
    bool runs;
    *list = NULL;
    for (size_t i = 0; tess_policy(i, &policy, &runs); i++) {
        *list = tess_realloc(*list, (n + 2) * sizeof **list);
        (*list)[n++] = (struct series){.policy = policy, .where = "in RAM", .c = runs ? plain : NULL};
        if (runs && capped) (*list)[n++] = (struct series){.policy = policy, .where = "capped", .c = capped};
    }
    for (size_t i = 0; i < n; i++) (*list)[i].said = tess_alloc((size_t)repeats * sizeof *(*list)[i].said);
    return n;
}

/* In turns: what else the machine does in between slows all of them. Each has its line when its last turn has ended. */
static void run_policies(const tess_config *plain, const tess_config *capped, int steps, int repeats, FILE *out)
{
    struct series *list;
    const size_t n = list_series(plain, capped, repeats, &list);
    for (int turn = 0; turn < repeats; turn++) {
        if (repeats > 1) tess_note("turn %d of %d", turn + 1, repeats);
        if (turn + 1 == repeats) print_head(out);
        for (size_t i = 0; i < n; i++) {
            measure(&list[i], steps, turn);
            if (turn + 1 < repeats) continue;
            qsort(list[i].said, list[i].failed ? 0 : (size_t)repeats, sizeof *list[i].said, by_seconds);
            print_row(out, &list[i], repeats);
        }
    }
    for (size_t i = 0; i < n; i++) free(list[i].said);
    free(list);
}

tess_status tess_bench_policies(const tess_config *c, int steps, int repeats, FILE *out)
{
    if (tess_ranks() > 1)
        return tess_error(TESS_INVALID, "--schedulers", "%d ranks, expected one (leave out mpirun)", tess_ranks());
    if (tess_gpus() > 0) /* each policy runs in a process of its own, which cannot have what this one has begun with */
        return tess_error(TESS_INVALID, "--schedulers",
                          "there is a GPU, and it compares policies of CPUs alone "
                          "(STARPU_NCUDA=0, or STARPU_SCHED=NAME tessera bench for each)");
    TESS_TRY(tess_policy_check());
    tess_config plain = *c, capped = *c;
    char *dir = tess_strdup("schedulers-XXXXXX");
    struct answer a = {0};
    bool caps = true, made = false;
    plain.memory.path = NULL;
    plain.memory.cpu = TESS_CONFIG_AUTO;
    plain.trace.steps[0] = plain.trace.steps[1] = capped.trace.steps[0] = capped.trace.steps[1] = 0;
    if (!c->memory.path || c->memory.cpu <= 0) { /* half of what it needs, in a directory of our own */
        if (!c->memory.path && !(made = mkdtemp(dir) != NULL))
            fprintf(out, "only in RAM: %s: %s\n", dir, strerror(errno));
        if (made) capped.memory.path = dir;
        caps = capped.memory.path && ask(&(struct work){&capped, NULL, 0}, &a);
        if (capped.memory.path && !caps) fprintf(out, "only in RAM: %s\n", a.text);
        capped.memory.cpu = (int64_t)(a.cap / MiB * MiB);
    }
    if (caps)
        fprintf(out, "capped: memory.cpu=%lldMiB, the rest on disk in %s\n", (long long)(capped.memory.cpu / MiB),
                capped.memory.path);
    run_policies(&plain, caps ? &capped : NULL, steps, repeats, out);
    if (made) rmdir(dir);
    free(dir);
    return TESS_OK;
}
