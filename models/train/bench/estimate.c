/* What a run will hold, do and take, before it runs. */
#include "models/text/base/text.h"
#include "models/train/bench/estimate_impl.h"
#include "models/train/questions/questions.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* While no bar is drawn: what comes behind would stand in its line. */
static tess_status flush(FILE *out)
{
    return fflush(out)
               ? tess_error(TESS_FAILED, out == stdout ? "stdout" : "output", "cannot be written: %s", strerror(errno))
               : TESS_OK;
}

/* ---- other ranks' answers ---- */

/* A rank's list may have hundreds of thousands of tasks and take seconds to lay out, so several ranks are laid out at a
 * time, each in a process of its own. */
struct answer {
    pid_t child; /* 0: there is none */
    FILE *says;
};
typedef tess_status (*question)(const tess_config *c, int rank, const tess_stage *stage, FILE *out);

static struct answer ask(question what, const tess_config *c, int rank, const tess_stage *stage)
{
    int end[2];
    const pid_t parent = getpid(), child = pipe(end) ? -1 : fork();
    if (child < 0) return (struct answer){0};
    if (child) {
        close(end[1]);
        return (struct answer){child, fdopen(end[0], "r")};
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    tess_bar_leave();
    FILE *out = fdopen(end[1], "w");
    _exit(what(c, rank, stage, out) == TESS_OK && fclose(out) == 0 ? 0 : 1);
}

/* Waits for the answer and returns whether it came whole, in `text`. If not, the caller lays that rank out itself, and
 * has the error as well. */
static bool answered(struct answer *a, void *text, size_t size, size_t *length)
{
    int status;
    if (!a->child) return false;
    *length = fread(text, 1, size, a->says);
    fclose(a->says);
    while (waitpid(a->child, &status, 0) < 0 && errno == EINTR) continue;
    a->child = 0;
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* What is asked for. */
struct asked {
    const tess_stage *stage; /* NULL: this machine */
    bool must_fit;           /* else what does not is no error */
    FILE *out;
};

/* What a rank's step holds and does, before it has a plan. */
struct laid {
    tess_holds holds; /* without tasks: it was not looked at */
    double gpu;       /* seconds of its tasks on the stage's GPU */
};
struct layouts {
    struct laid *of; /* each rank */
    int largest;     /* the rank that holds the most */
};

/* Seconds for which the busiest rank is at work and the largest is not. Where the plan of the largest computes less
 * again than its step did before, so do the others'. */
static double further(const struct layouts *l, const tess_holds *planned, const tess_rates *rates)
{
    const double before = l->of[l->largest].holds.recompute_flops;
    const double again = before > 0 ? fmin(planned->recompute_flops / before, 1) : 1;
    double most = 0, own = 0;
    for (int r = 0; r < tess_ranks(); r++) {
        const tess_holds *h = &l->of[r].holds;
        const double flops = h->flops + again * h->recompute_flops, all = h->flops + h->recompute_flops;
        const double s = rates     ? flops / rates->flops + h->bytes / rates->copy
                         : all > 0 ? l->of[r].gpu * flops / all
                                   : l->of[r].gpu;
        most = fmax(most, s);
        if (r == l->largest) own = s;
    }
    return most - own;
}

/* A pipeline's step is longer by what its stages take to fill and to empty it: by 1 where there is none. */
static double longer(const tess_run *r)
{
    const tess_grid *g = &r->grid;
    return g->pipeline == 1 ? 1 : 1 + tess_grid_bubble(g, r->micro * g->sequence / g->data);
}

static void print_time(const tess_run *r, const tess_holds *p, const struct layouts *l, FILE *out)
{
    tess_forecast t = r->plan.ram.time;
    if (t.seconds < t.work) t.seconds = t.work;
    t.seconds = t.seconds * longer(r) + further(l, p, &r->limits.ram.rates);
    tess_estimate_time(out, r, p, &t);
}

static void print_gpu_time(const tess_run *r, const tess_step *step, const tess_holds *p, const struct layouts *l,
                           const struct asked *a)
{
    tess_rehearsed t;
    if (!a->stage) {
        fprintf(a->out, "time of a step: %.3g TFLOP of matrices on a GPU, whose rate is not measured here\n",
                (p->flops + p->recompute_flops) * 1e-12);
        return;
    }
    tess_step_rehearse(step, &r->plan, a->stage, &t);
    t.seconds = t.seconds * longer(r) + further(l, p, NULL);
    tess_estimate_gpu_time(a->out, r, p, &t);
}

/* Of rank 0, as simulations have it, which may not be the one that all else is said of. */
static tess_status print_memory(const tess_config *c, int rank, const tess_stage *stage, FILE *out)
{
    tess_run run;
    tess_run_tasks *tasks = NULL;
    tess_step *step = NULL;
    (void)stage;
    tess_status status = tess_run_open(c, rank, &run);
    if (status == TESS_OK) status = tess_run_tasks_open(&run, &tasks);
    if (status == TESS_OK) status = tess_run_tiers(&run, c->output);
    if (status == TESS_OK) status = tess_run_train_step(&run, &step);
    if (status == TESS_OK) tess_run_print_memory(&run, step, out);
    tess_step_free(step);
    tess_run_tasks_free(tasks);
    tess_run_close(&run);
    return status;
}

static tess_status room_here(tess_run *r, const tess_holds *p, char text[static 512])
{
    tess_status status = tess_run_ram_room(r, p);
    if (status == TESS_OK) status = tess_run_tier_room(r);
    if (status != TESS_OK) snprintf(text, 512, "%s", tess_error_text());
    return status == TESS_OK && tess_run_lacks_room(r, false, text) ? TESS_INVALID : status;
}

/* Prints where the tiles of the step go, or why it does not fit, and what it would take where there is room. */
static tess_status print_placed(tess_run *r, uint64_t least, const struct layouts *l, const struct asked *a)
{
    FILE *out = a->out;
    const uint64_t limit = tess_run_limit(r);
    tess_step *step = NULL, *eval = NULL;
    tess_holds p;
    const bool of_another = a->stage && r->rank && !a->must_fit; /* no is an answer without that */
    struct answer first = of_another ? ask(print_memory, r->c, 0, a->stage) : (struct answer){0};
    tess_status status = tess_run_train_step(r, &step);
    if (status == TESS_OK && r->evaluates) status = tess_run_eval_step(r, false, &eval); /* it rests there, too */
    const bool fits = status == TESS_OK;
    char room[512], line[512];
    size_t length;
    TESS_FREED char *why = fits ? NULL : tess_strdup(tess_error_text());
    if (status == TESS_INVALID) {
        tess_step_free(step);
        r->machine.disk = NULL;
        status = tess_run_step(r, true, &step);
    }
    if (status == TESS_OK && !(r->limits.ram.rates.flops > 0)) status = tess_run_rates(r, &r->limits.ram.rates);
    if (status == TESS_OK) {
        tess_step_holds(step, &p);
        if (!r->machine.disk)
            tess_step_forecast(step, &r->limits.ram.rates, UINT64_MAX, tess_cores(), &r->plan.ram.time);
        tess_bar_aside();
        if (fits)
            tess_estimate_tiers(out, r, step, limit, least);
        else
            tess_estimate_needs(out, r, step, limit);
        if (fits && a->stage && !of_another) tess_run_print_memory(r, step, out);
        if (fits && of_another) {
            if (answered(&first, line, sizeof line, &length))
                fwrite(line, 1, length, out);
            else
                status = print_memory(r->c, 0, a->stage, out);
        }
        if (fits && !a->stage && room_here(r, &p, room) != TESS_OK) why = tess_strdup(room);
        if (why) fprintf(out, "does not fit: %s\n", why);
        if (tess_ranks() > 1) tess_estimate_messages(out, r, &p);
        if (tess_gpus() > 0)
            print_gpu_time(r, step, &p, l, a);
        else
            print_time(r, &p, l, out);
        status = flush(out);
        tess_bar_back();
        tess_run_say_dtype(r, &p);
        tess_run_say_slow(r);
    }
    if (status == TESS_OK && why && a->must_fit) {
        tess_error_restore(why);
        status = TESS_FAILED;
    }
    answered(&first, line, sizeof line, &length);
    tess_step_free(eval);
    tess_step_free(step);
    return status;
}

static tess_status lay_out_run(const tess_run *r, const tess_stage *stage, struct laid *out)
{
    tess_step *step = NULL;
    TESS_TRY(tess_run_step(r, true, &step));
    tess_step_holds(step, &out->holds);
    if (stage) out->gpu = tess_step_gpu_seconds(step, stage);
    tess_step_free(step);
    return TESS_OK;
}

static tess_status lay_out(const tess_config *c, int rank, const tess_stage *stage, struct laid *out)
{
    tess_run run;
    tess_status status = tess_run_open(c, rank, &run);
    if (status == TESS_OK) status = lay_out_run(&run, stage, out);
    tess_run_close(&run);
    return status;
}

static tess_status say_layout(const tess_config *c, int rank, const tess_stage *stage, FILE *out)
{
    struct laid laid = {0};
    TESS_TRY(lay_out(c, rank, stage, &laid));
    return fwrite(&laid, sizeof laid, 1, out) == 1 ? TESS_OK : TESS_FAILED;
}

/* Lays ranks out, not if there is one alone. Those of a pipeline's stage differ by heads or rows alone: the first
 * stands for them, and in the stage that holds the most the last of either other dimension too. Data-parallel ranks
 * with shares all stand for themselves. */
static tess_status find_largest(const tess_config *c, const tess_stage *stage, struct layouts *l)
{
    const int ranks = tess_ranks(), tensor = (int)c->parallel.tensor, model = tensor * (int)c->parallel.pipeline,
              cores = tess_cores();
    TESS_FREED int *rank = tess_alloc((size_t)ranks * sizeof *rank);
    TESS_FREED struct answer *other = tess_alloc((size_t)ranks * sizeof *other);
    const bool unequal = c->parallel.shares || c->parallel.state_shares;
    tess_status status = TESS_OK;
    for (int last = 0; last < 2 && ranks > 1; last++) {
        int n = 0, asked = 0;
        for (int r = 0; r < ranks; r++) {
            const int d = r / model, t = r % tensor;
            const bool first = (d == 0 || unequal) && t == 0, same = r % model / tensor == l->largest % model / tensor;
            const bool end = (d == 0 || d == ranks / model - 1 || unequal) && (t == 0 || t == tensor - 1);
            if (last ? end && !first && same : first) rank[n++] = r;
        }
        for (int k = 0; k < n; k++) {
            struct laid *laid = &l->of[rank[k]];
            size_t length;
            for (; asked < n && asked < k + cores; asked++) other[asked] = ask(say_layout, c, rank[asked], stage);
            if (!answered(&other[k], laid, sizeof *laid, &length) && status == TESS_OK)
                status = lay_out(c, rank[k], stage, laid);
            if (laid->holds.peak_total > l->of[l->largest].holds.peak_total) l->largest = rank[k];
        }
    }
    return status;
}

/* Of a machine elsewhere, where no is an answer: what lasts from step to step may be too much, whatever the plan. */
static tess_status has_what_lasts(const tess_run *r, const tess_holds *h)
{
    const uint64_t has = tess_run_limit(r) + tess_run_gpu(r).memory;
    uint64_t lasts = 0;
    for (int k = 0; k < TESS_ROLE_COUNT; k++)
        if (k != TESS_ROLE_SCRATCH) lasts += h->resident[k];
    if (lasts <= has || r->machine.disk) return TESS_OK;
    return tess_error(
        TESS_FAILED, r->caps.cpu > 0 ? r->caps.cpu_key : "memory",
        "what lasts from step to step takes %s, RAM and GPU have %s (memory.path=DIR puts on disk what does not "
        "fit)",
        tess_human_bytes((double)lasts), tess_human_bytes((double)has));
}

/* The least memory.cpu over a disk, by a trial; 0 where there is no disk, or where trying would take too long. */
static tess_status find_least(const tess_run *r, uint64_t tasks, uint64_t *least)
{
    enum { MANY = 10000 }; /* tasks */
    tess_run other;
    tess_run_tasks *asked = NULL;
    if (!r->machine.disk || tasks >= MANY) return TESS_OK;
    tess_status status = tess_run_open(r->c, r->rank, &other);
    if (status == TESS_OK) status = tess_run_tasks_open(&other, &asked);
    other.limits.ram = r->limits.ram;
    if (status == TESS_OK) *least = tess_run_least(&other);
    tess_run_tasks_free(asked);
    tess_run_close(&other);
    return status;
}

static tess_status print_run(const tess_config *c, const struct layouts *l, const struct asked *a)
{
    FILE *out = a->out;
    struct laid *own = &l->of[l->largest];
    tess_run run;
    tess_run_tasks *tasks = NULL;
    uint64_t least = 0;
    tess_status status = tess_run_open(c, l->largest, &run);
    if (status == TESS_OK) status = tess_run_tasks_open(&run, &tasks);
    if (status == TESS_OK && tess_run_check_weights(&run) != TESS_OK) {
        tess_note("train refuses this: %s", tess_error_text());
        tess_error_clear();
    }
    if (status == TESS_OK) status = tess_run_tiers(&run, c->output);
    if (status == TESS_OK && !own->holds.tasks) status = lay_out_run(&run, NULL, own);
    if (status == TESS_OK) {
        tess_bar_aside();
        const long long all = tess_graph_param_elements(run.g), trained = tess_graph_trained_elements(run.g);
        fprintf(out, "%lld parameters, ", all);
        if (trained < all) fprintf(out, "%lld of them trained, ", trained);
        fprintf(out, "%lld tokens a step, %llu tasks over %llu tiles\n", (long long)tess_run_tokens(&run),
                (unsigned long long)own->holds.tasks, (unsigned long long)own->holds.tiles);
        if (tess_ranks() > 1) fprintf(out, "rank %d of %d, which holds the most\n", l->largest, tess_ranks());
        status = flush(out);
        tess_bar_back();
    }
    if (status == TESS_OK && a->stage && a->must_fit) status = has_what_lasts(&run, &own->holds);
    if (status == TESS_OK) status = find_least(&run, own->holds.tasks, &least);
    if (status == TESS_OK) status = print_placed(&run, least, l, a);
    tess_run_tasks_free(tasks);
    tess_run_close(&run);
    return status;
}

static tess_status estimate(const tess_config *c, const struct asked *a)
{
    struct layouts l = {0};
    if (!c || !a->out) return tess_error(TESS_INVALID, c ? "output" : "configuration", "is NULL");
    tess_bar_begin("planning the step", 0);
    l.of = tess_alloc((size_t)tess_ranks() * sizeof *l.of);
    tess_status status = find_largest(c, a->stage, &l);
    if (status == TESS_OK) status = print_run(c, &l, a);
    free(l.of);
    tess_bar_end();
    return status;
}

tess_status tess_estimate(const tess_config *c, FILE *out)
{
    return estimate(c, &(struct asked){.out = out});
}

tess_status tess_estimate_fits(const tess_config *c, FILE *out)
{
    return estimate(c, &(struct asked){.must_fit = true, .out = out});
}

tess_status tess_estimate_on(const tess_config *c, const tess_stage *stage, bool must_fit, FILE *out)
{
    return estimate(c, &(struct asked){stage, must_fit, out});
}
