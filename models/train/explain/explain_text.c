/* Where a traced step's time went, in a dozen lines. All figures are means of the steps that are in the trace. */
#include "models/train/explain/explain_impl.h"
#include <stdlib.h>
#include <string.h>

static const char *const uses[TESS_FOR_COUNT] = {
    "other workers' tasks", "the drive", "room in RAM", "copies to the GPU", "messages", "submission", "tasks' start"};

static bool is_exposed(int use)
{
    return use >= TESS_FOR_READS && use <= TESS_FOR_SPANS;
}

static double sum(const tess_shares *s, bool exposed)
{
    double seconds = 0;
    for (int u = 0; u < TESS_FOR_COUNT; u++)
        if (is_exposed(u) == exposed) seconds += s->of[u];
    return seconds;
}

static double percent(double part, double all)
{
    return all > 0 ? 100 * part / all : 0;
}

/* ": drive 3.0%, room 1.0%" of those that are not nothing. */
static void print_uses(const tess_shares *s, bool exposed, FILE *out)
{
    int printed = 0;
    for (int u = 0; u < TESS_FOR_COUNT; u++)
        if (is_exposed(u) == exposed && s->of[u] >= 0.0005 * s->wall)
            fprintf(out, "%s%.1f%% %s", printed++ ? ", " : " (", percent(s->of[u], s->wall), uses[u]);
    if (printed) fputc(')', out);
}

static void print_shares(const char *who, const tess_shares *s, bool details, FILE *out)
{
    const double exposed = sum(s, true), idle = sum(s, false);
    fprintf(out, "%s: busy %.1f%%, exposed %.1f%%", who, percent(s->busy, s->wall), percent(exposed, s->wall));
    if (details) print_uses(s, true, out);
    fprintf(out, ", idle %.1f%%", percent(idle, s->wall));
    if (details) print_uses(s, false, out);
    fputc('\n', out);
}

/* ---- the path ---- */

static int most(const double *x, int n, const bool *taken)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (x[i] > 0 && !taken[i] && (best < 0 || x[i] > x[best])) best = i;
    return best;
}

static void print_path(const tess_traced *t, const tess_shares *path, FILE *out)
{
    enum { OPS = 6, KINDS = 3 };
    bool taken[TESS_TRACE_NAMES] = {false};
    double rest = path->of[TESS_FOR_TASKS];
    int printed = 0;
    fprintf(out, "critical path:");
    for (int k = 0, i; k < OPS && (i = most(path->op, t->names, taken)) >= 0; k++) {
        if (path->op[i] < 0.01 * path->wall) break;
        taken[i] = true;
        rest -= path->op[i];
        fprintf(out, "%s %.0f%% %s", printed++ ? "," : "", percent(path->op[i], path->wall), t->name[i]);
    }
    if (rest >= 0.005 * path->wall)
        fprintf(out, "%s %.0f%% other ops", printed++ ? "," : "", percent(rest, path->wall));
    for (int u = TESS_FOR_READS; u < TESS_FOR_COUNT; u++)
        if (path->of[u] >= 0.005 * path->wall)
            fprintf(out, "%s %.0f%% %s%s", printed++ ? "," : "", percent(path->of[u], path->wall),
                    is_exposed(u) ? "waiting for " : "", uses[u]);
    fputc('\n', out);
    if (sum(path, true) < 0.005 * path->wall) return;
    bool named[TESS_TRACE_NAMES] = {false};
    fprintf(out, "  waited on it for");
    for (int k = 0, i; k < KINDS && (i = most(path->waited, t->names, named)) >= 0; k++) {
        named[i] = true;
        fprintf(out, "%s %d of %s (%.1f%%)", k ? "," : "", path->arrivals[i], t->name[i],
                percent(path->waited[i], path->wall));
    }
    memset(named, 0, sizeof named);
    fprintf(out, "; held up were");
    for (int k = 0, i; k < KINDS && (i = most(path->for_op, t->names, named)) >= 0; k++) {
        named[i] = true;
        fprintf(out, "%s %s (%.1f%%)", k ? "," : "", t->name[i], percent(path->for_op[i], path->wall));
    }
    fputc('\n', out);
}

/* ---- transfers and bounds ---- */

struct totals {
    double steps, wall;                                          /* of steps */
    double under_way[TESS_EVENT_KINDS], bytes[TESS_EVENT_KINDS]; /* of a rank */
    double flops;
};

/* exposed: seconds that workers waited for them; below 0: it is not known which of them they waited for. */
static void print_transfers(const char *what, tess_event_kind kind, const struct totals *m, const tess_shares *s,
                            double exposed, double rate, FILE *out)
{
    if (m->bytes[kind] <= 0) return;
    const double shown = m->under_way[kind] > 0 ? exposed / s->wall * m->wall / m->under_way[kind] : 0;
    fprintf(out, "%s: %s a step, under way for %.3f s of it", what, tess_human_bytes(m->bytes[kind] / m->steps),
            m->under_way[kind] / m->steps);
    if (rate > 0 && m->under_way[kind] > 0)
        fprintf(out, " (%s/s, where alone it does %s/s)", tess_human_bytes(m->bytes[kind] / m->under_way[kind]),
                tess_human_bytes(rate));
    if (exposed >= 0) fprintf(out, "; %.0f%% of that time hidden behind work", 100 * (1 - (shown < 1 ? shown : 1)));
    fputc('\n', out);
}

static void print_bounds(const tess_about *a, const struct totals *m, FILE *out)
{
    const double step = m->wall / m->steps;
    const double matrices = a->matrix_rate > 0 ? m->flops / m->steps / a->matrix_rate : 0;
    const double read = a->read_rate > 0 ? m->bytes[TESS_EVENT_READ] / m->steps / a->read_rate : 0,
                 write = a->write_rate > 0 ? m->bytes[TESS_EVENT_WRITE] / m->steps / a->write_rate : 0;
    const double drive = a->both >= 1 ? (read + write) / a->both : read + write;
    const double longest = drive > read && drive > write ? drive : read > write ? read : write;
    const double bound = matrices > longest ? matrices : longest;
    if (!(bound > 0)) return;
    fprintf(out, "bounds: matrices alone %.3f s at %.0f GFLOP/s", matrices, 1e-9 * a->matrix_rate);
    const double moved = (m->bytes[TESS_EVENT_READ] + m->bytes[TESS_EVENT_WRITE]) / m->steps;
    if (longest > 0) fprintf(out, ", the drive alone %.3f s for what was moved", longest);
    if (a->bound > 0 && longest > 0 && a->bound <= moved)
        fprintf(out, " (no plan moves less than %.0f%% of that)", percent(a->bound, moved));
    if (step >= bound)
        fprintf(out, "; the step took %.2f times the longer\n", step / bound);
    else
        fprintf(out, "; the step took less: the machine was faster than when these rates were taken\n");
    if (a->paper > 0)
        fprintf(out, "the plan said %.3f s a step on paper, %.2f of what it took\n", a->paper, a->paper / step);
}

/* ---- all of it ---- */

/* The rank that others wait for: the busiest. */
static int busiest(tess_shares *const *s, int ranks)
{
    int best = 0;
    for (int r = 1; r < ranks; r++)
        if (s[r] && s[r]->busy > s[best]->busy) best = r;
    return best;
}

static void add(tess_shares *to, const tess_shares *s)
{
    to->wall += s->wall;
    to->busy += s->busy;
    for (int u = 0; u < TESS_FOR_COUNT; u++) to->of[u] += s->of[u];
}

/* The workers of a rank, each in all steps. */
static void look_at(const tess_traced *t, int rank, tess_shares *worker, int workers, tess_shares *all)
{
    size_t n;
    const tess_event *step = tess_traced_of(t, rank, TESS_EVENT_STEP, &n);
    memset(worker, 0, (size_t)workers * sizeof *worker);
    for (int k = 0; k < workers; k++) {
        for (size_t i = 0; i < n; i++) tess_explain_worker(t, &step[i], t->about.first + (uint32_t)k, &worker[k]);
        if (all) add(all, &worker[k]);
    }
}

void tess_explain_print(const tess_traced *t, FILE *out)
{
    enum { MANY = 8 };
    const int workers = t->about.workers;
    tess_shares **all = tess_alloc((size_t)t->ranks * sizeof *all), /* NULL: of a rank that left no step */
        *worker = tess_alloc((size_t)workers * sizeof *worker), *path = tess_alloc(sizeof *path);
    struct totals m = {0};
    size_t steps, tasks;
    int ranks = 0;
    for (int r = 0; r < t->ranks; r++) {
        tess_traced_of(t, r, TESS_EVENT_STEP, &steps);
        if (!steps) continue;
        ranks++;
        all[r] = tess_alloc(sizeof *all[r]);
        look_at(t, r, worker, workers, all[r]);
    }
    const int rank = busiest(all, t->ranks);
    if (t->ranks > 1) look_at(t, rank, worker, workers, NULL);
    const tess_event *step = tess_traced_of(t, rank, TESS_EVENT_STEP, &steps),
                     *task = tess_traced_of(t, rank, TESS_EVENT_TASK, &tasks);
    for (size_t i = 0; i < steps; i++) {
        m.steps++;
        m.wall += step[i].end - step[i].begin;
        tess_explain_path(t, &step[i], path);
        for (int k = TESS_EVENT_READ; k <= TESS_EVENT_MESSAGE; k++)
            m.under_way[k] += tess_explain_under_way(t, &step[i], (tess_event_kind)k, &m.bytes[k]);
    }
    for (size_t i = 0; i < tasks; i++) m.flops += task[i].flops;
    fprintf(out, "step %llu", (unsigned long long)step[0].number);
    if (steps > 1) fprintf(out, " to %llu", (unsigned long long)step[steps - 1].number);
    fprintf(out, ": %.3f s a step, %d %s worker%s", m.wall / m.steps, workers, t->about.gpu ? "GPU" : "CPU",
            workers == 1 ? "" : "s");
    fprintf(out, ranks > 1 ? " on each of %d ranks\n" : "\n", ranks);
    char who[64];
    for (int r = 0; r < t->ranks && ranks > 1; r++) {
        snprintf(who, sizeof who, "rank %d", r);
        if (all[r]) print_shares(who, all[r], r == rank, out);
    }
    if (ranks == 1) print_shares("workers", all[rank], true, out);
    for (int k = 0; k < workers && workers > 1 && workers <= MANY; k++) {
        snprintf(who, sizeof who, "  worker %d%s", k, ranks > 1 && k == 0 ? " of the busiest rank" : "");
        print_shares(who, &worker[k], false, out);
    }
    if (ranks < t->about.ranks)
        fprintf(
            out,
            "only %d of %d ranks are in this trace (the run failed, or they were simulated by others): no path across "
            "ranks\n",
            ranks, t->about.ranks);
    else
        print_path(t, path, out);
    const tess_shares *s = all[rank];
    print_transfers("drive, reading", TESS_EVENT_READ, &m, s, s->of[TESS_FOR_READS], t->about.read_rate, out);
    print_transfers("drive, writing", TESS_EVENT_WRITE, &m, s, s->of[TESS_FOR_ROOM], t->about.write_rate, out);
    print_transfers("to the GPU", TESS_EVENT_TO_GPU, &m, s, s->of[TESS_FOR_COPIES], 0, out);
    print_transfers("off the GPU", TESS_EVENT_OFF_GPU, &m, s, -1, 0, out);
    print_transfers("messages", TESS_EVENT_MESSAGE, &m, s, s->of[TESS_FOR_SPANS], 0, out);
    print_bounds(&t->about, &m, out);
    free(path);
    free(worker);
    for (int r = 0; r < t->ranks; r++) free(all[r]);
    free(all);
}
