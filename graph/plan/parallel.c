/* What the order of a step's tasks allows, whatever runs them: how long its longest chain is, and how long a list
 * schedule takes on a number of cores. Each task has a given time, best the measured one, and the time that it would
 * take if all cores shared its parts; tiles are in place, and a message takes no core.
 *
 *     tess_parallelism p;
 *     tess_plan_parallel(uses, seconds, alone, &p, chain);    // p.work / p.path: cores that could be busy on
 * average
 */
#include "graph/plan/heap_impl.h"
#include "graph/plan/plan.h"
#include <stdlib.h>
#include <string.h>

enum { NOBODY = UINT32_MAX };

/* ---- who waits for whom ---- */

struct pairs {
    uint32_t (*pair)[2]; /* (before, behind) */
    size_t pairs, room;
};

static void add_pair(struct pairs *w, uint32_t before, uint32_t behind)
{
    if (w->pairs == w->room) {
        w->room = w->room ? 2 * w->room : 4096;
        w->pair = tess_realloc(w->pair, w->room * sizeof *w->pair);
    }
    w->pair[w->pairs][0] = before;
    w->pair[w->pairs++][1] = behind;
}

/* The uses of one tile, in the order of tasks: who reads waits for who wrote last, who writes for all who read that. */
static void add_tile(struct pairs *w, const tess_plan_use *use, size_t n)
{
    size_t read = 0; /* the first use since the last write */
    bool written = false;
    for (size_t i = 0; i < n; i++) {
        if (use[i].mode & TESS_SCRATCH) return; /* each worker has its own */
        if (!(use[i].mode & TESS_W)) {
            if (written) add_pair(w, use[read - 1].task, use[i].task);
            continue;
        }
        for (size_t k = read; k < i; k++) add_pair(w, use[k].task, use[i].task);
        if (written && read == i) add_pair(w, use[i - 1].task, use[i].task);
        written = true;
        read = i + 1;
    }
}

tess_waits tess_waits_find(const tess_uses *u)
{
    struct pairs p = {0};
    tess_waits w;
    for (size_t i = 0, n; i < u->uses; i += n) add_tile(&p, u->use + i, n = tess_uses_of_tile(u, i));
    w.first = tess_alloc((u->tasks + 2) * sizeof *w.first);
    w.behind = tess_alloc((p.pairs + 1) * sizeof *w.behind);
    w.left = tess_alloc((u->tasks + 1) * sizeof *w.left);
    for (size_t i = 0; i < p.pairs; i++) {
        w.first[p.pair[i][0] + 2]++;
        w.left[p.pair[i][1]]++;
    }
    for (size_t k = 0; k < u->tasks; k++) w.first[k + 2] += w.first[k + 1];
    for (size_t i = 0; i < p.pairs; i++) w.behind[w.first[p.pair[i][0] + 1]++] = p.pair[i][1];
    free(p.pair);
    return w;
}

void tess_waits_free(tess_waits *w)
{
    free(w->first), free(w->behind), free(w->left);
    *w = (tess_waits){0};
}

/* ---- the schedule ---- */

struct schedule {
    const tess_waits *w;
    const double *seconds, *alone;
    tess_heap ready, open, runs; /* open: running tasks with parts that no core took; runs: 2 task + owner */
    uint32_t *left;              /* [task]: how many it waits for */
    uint32_t *parts, *under_way; /* [task]: parts that no core took; parts that run */
    size_t busy, cores;
    double now;
};

/* As many equal parts as make it as long as `alone` says where each has a core. */
static uint32_t parts_of(const struct schedule *s, size_t k)
{
    const double parts = s->alone && s->alone[k] > 0 ? s->seconds[k] / s->alone[k] : 1;
    return parts < 2 ? 1 : parts < 4096 ? (uint32_t)parts : 4096;
}

static void run_part(struct schedule *s, uint32_t k, bool owner)
{
    s->parts[k]--;
    s->under_way[k]++;
    tess_heap_push(&s->runs, s->now + s->seconds[k] / parts_of(s, k), 2 * k + owner);
}

/* Who is free begins a task that is ready, the earlier in the list first, and else takes a part of one that runs. */
static void employ(struct schedule *s)
{
    double key;
    while (s->busy < s->cores) {
        while (s->open.n && !s->parts[s->open.of[0]]) tess_heap_pop(&s->open, &key);
        if (s->ready.n) {
            const uint32_t k = tess_heap_pop(&s->ready, &key);
            s->parts[k] = parts_of(s, k);
            run_part(s, k, true);
            if (s->parts[k]) tess_heap_push(&s->open, k, k);
            s->busy += s->seconds[k] > 0; /* what takes no time takes no core */
        } else if (s->open.n) {
            run_part(s, s->open.of[0], false);
            s->busy++;
        } else
            return;
    }
}

/* A part ended. Who began the task goes on with it, and has its core until the last part has ended. */
static void end_part(struct schedule *s)
{
    const uint32_t ended = tess_heap_pop(&s->runs, &s->now), k = ended / 2;
    const bool owner = ended % 2;
    s->under_way[k]--;
    if (owner && s->parts[k]) {
        run_part(s, k, true);
        return;
    }
    if (!owner) s->busy--;
    if (s->parts[k] || s->under_way[k]) return;
    s->busy -= s->seconds[k] > 0;
    for (size_t i = s->w->first[k]; i < s->w->first[k + 1]; i++)
        if (!--s->left[s->w->behind[i]]) tess_heap_push(&s->ready, s->w->behind[i], s->w->behind[i]);
}

static double schedule(const tess_uses *u, const tess_waits *w, const double *seconds, const double *alone,
                       size_t cores)
{
    struct schedule s = {.w = w, .seconds = seconds, .alone = alone, .cores = cores};
    s.left = tess_alloc((u->tasks + 1) * sizeof *s.left);
    s.parts = tess_alloc((u->tasks + 1) * sizeof *s.parts);
    s.under_way = tess_alloc((u->tasks + 1) * sizeof *s.under_way);
    memcpy(s.left, w->left, u->tasks * sizeof *s.left);
    for (size_t k = 0; k < u->tasks; k++)
        if (!s.left[k]) tess_heap_push(&s.ready, (double)k, (uint32_t)k);
    while (s.ready.n || s.runs.n) {
        employ(&s);
        end_part(&s);
    }
    tess_heap_free(&s.ready), tess_heap_free(&s.open), tess_heap_free(&s.runs);
    free(s.left), free(s.parts), free(s.under_way);
    return s.now;
}

void tess_plan_parallel(const tess_uses *u, const double *seconds, const double *alone, tess_parallelism *out,
                        bool *chain)
{
    tess_waits w = tess_waits_find(u);
    double *begin = tess_alloc((u->tasks + 1) * sizeof *begin); /* the list is in an order in which it can run */
    uint32_t *after = tess_alloc((u->tasks + 1) * sizeof *after), last = NOBODY; /* [task]: whom it waits for longest */
    *out = (tess_parallelism){0};
    for (size_t k = 0; k < u->tasks; k++) after[k] = NOBODY;
    for (size_t k = 0; k < u->tasks; k++) {
        const double end = begin[k] + (alone ? alone : seconds)[k];
        out->work += seconds[k];
        if (end > out->path) out->path = end, last = (uint32_t)k;
        for (size_t i = w.first[k]; i < w.first[k + 1]; i++)
            if (begin[w.behind[i]] < end) begin[w.behind[i]] = end, after[w.behind[i]] = (uint32_t)k;
    }
    for (size_t k = 0; chain && k < u->tasks; k++) chain[k] = false;
    for (; chain && last != NOBODY; last = after[last]) chain[last] = true;
    for (int i = 0; i < TESS_WIDTHS; i++) out->seconds[i] = schedule(u, &w, seconds, alone, (size_t)1 << i);
    tess_waits_free(&w);
    free(begin), free(after);
}
