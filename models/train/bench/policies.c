/* The same steps under each of StarPU's policies. What a policy does to a process that runs on is not known of all of
 * them, and some wait for ever: each has a process of its own, which says by a pipe how it went. */
#include "directories.h"
#include "run.h"
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

static void print_row(FILE *out, const char *policy, const char *where, bool done, const struct answer *a)
{
    const tess_bench_result *r = &a->result;
    fprintf(out, "%-31s %-8s ", policy, where);
    if (done)
        fprintf(out, "%9.1f %6.1f%% %6.1f%% %6.1f%% %12s\n", 1e3 * r->seconds, 100 * r->busy, 100 * r->waiting,
                100 * (1 - r->busy - r->waiting),
                tess_human_bytes(r->moved)); /* policies count scheduling each in its way */
    else
        fprintf(out, "%s\n", a->text);
    fflush(out);
}

static void print_policies(const tess_config *plain, const tess_config *capped, int steps, FILE *out)
{
    struct answer a;
    const char *policy;
    bool runs;
    fprintf(out, "%-31s %-8s %9s %7s %7s %7s %12s\n", "policy", "tiles", "ms a step", "busy", "data", "idle",
            "disk a step");
    for (size_t i = 0; tess_policy(i, &policy, &runs); i++) {
        if (!runs) {
            fprintf(out, "%-31s runs none of these tasks\n", policy);
            continue;
        }
        print_row(out, policy, "in RAM", ask(&(struct work){plain, policy, steps}, &a), &a);
        if (capped) print_row(out, policy, "capped", ask(&(struct work){capped, policy, steps}, &a), &a);
    }
}

tess_status tess_bench_policies(const tess_config *c, int steps, FILE *out)
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
    print_policies(&plain, caps ? &capped : NULL, steps, out);
    if (made) rmdir(dir);
    free(dir);
    return TESS_OK;
}
