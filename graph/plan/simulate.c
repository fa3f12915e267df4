/* A step on paper: its tasks in order on the workers, its tiles entering and leaving RAM by the rules of
 * runtime/flow/ram.c, and the disk's two directions, each doing one tile after the other. It says what time a placement
 * should take and what that time is spent on, before anything runs. */
#include "plan.h"
#include <stdlib.h>
#include <string.h>

/* Bytes that leave RAM at a moment; a heap, the earliest first. */
struct leave {
    double time;
    uint64_t bytes;
};
struct leaves {
    struct leave *at;
    size_t n, room;
};

static void push(struct leaves *h, double time, uint64_t bytes)
{
    if (h->n == h->room) h->at = tess_realloc(h->at, (h->room = h->room ? 2 * h->room : 256) * sizeof *h->at);
    size_t i = h->n++;
    for (; i && h->at[(i - 1) / 2].time > time; i = (i - 1) / 2) h->at[i] = h->at[(i - 1) / 2];
    h->at[i] = (struct leave){time, bytes};
}

static struct leave pop(struct leaves *h)
{
    struct leave first = h->at[0], last = h->at[--h->n];
    size_t i = 0;
    for (size_t c; (c = 2 * i + 1) < h->n; i = c) {
        if (c + 1 < h->n && h->at[c + 1].time < h->at[c].time) c++;
        if (h->at[c].time >= last.time) break;
        h->at[i] = h->at[c];
    }
    h->at[i] = last;
    return first;
}

/* What is known of a tile while time passes. */
struct state {
    double written, read; /* when the last task that wrote it, the last that used it, ends */
    bool resident, filled, dirty;
};

struct simulation {
    const tess_uses *u;
    const tess_marks *m;
    const tess_rates *rates;
    struct state *state; /* [tile] */
    struct leaves leaves;
    uint64_t room, held;
    double poll;          /* how long it takes a worker to look at transfers: they do so between tasks */
    double entry;         /* when the last task was let in */
    double reads, writes; /* when the directions of the disk are free */
    double *seconds;      /* that each task takes */
    double *worker;       /* when each is free */
    int workers;
    tess_forecast out;
};

/* Moves bytes in a direction of the disk from `from` on; what that takes of the other one as well. The end. */
static double move(struct simulation *s, double *mine, double *other, double from, double seconds)
{
    double both = s->rates->both, taken = both >= 1 && both < 2 ? (2 - both) * seconds : 0;
    double begin = *mine > from ? *mine : from;
    *other = (*other > begin ? *other : begin) + taken;
    return *mine = begin + seconds;
}

static bool flows(const struct simulation *s, uint32_t tile)
{
    return s->u->tile[tile].flows && s->m->home[tile] != TESS_TIER_GPU;
}

/* Lets task k in: when there is room for the tiles that enter. When those with contents are there. */
static double let_in(struct simulation *s, size_t k)
{
    double ready = s->entry;
    for (size_t at = s->u->task[k].first; at < s->u->task[k + 1].first; at++) {
        const tess_plan_use *use = &s->u->use[s->u->named[at]];
        struct state *st = &s->state[use->tile];
        const uint64_t bytes = s->u->tile[use->tile].bytes;
        if (!flows(s, use->tile) || st->resident) continue;
        while (s->held + bytes > s->room && s->leaves.n) {
            struct leave l = pop(&s->leaves);
            s->held -= l.bytes;
            if (l.time > s->entry) s->entry = l.time;
        }
        s->held += bytes;
        st->resident = true;
        if (s->entry > ready) ready = s->entry;
        if (!st->filled || !(use->mode & TESS_R)) continue;
        double seconds = (double)bytes / s->rates->read, end = move(s, &s->reads, &s->writes, s->entry, seconds);
        s->out.read += seconds;
        if (end + 2 * s->poll > ready) ready = end + 2 * s->poll;
    }
    return ready;
}

static double duration(const struct simulation *s, size_t k)
{
    enum { OVERHEAD_US = 10 };
    tess_cost c = s->u->task[k].cost;
    if (c.flops == 0 && c.bytes == 0)
        for (size_t at = s->u->task[k].first; at < s->u->task[k + 1].first; at++)
            c.bytes += (double)s->u->tile[s->u->use[s->u->named[at]].tile].bytes;
    double seconds = c.flops > 0 ? c.flops / s->rates->flops + c.passes / s->rates->copy : c.bytes / s->rates->copy;
    return seconds * s->workers + OVERHEAD_US * 1e-6;
}

/* On the worker that is free last of those free in time, else on the first to be free. The end. */
static double work(struct simulation *s, double ready, double seconds)
{
    int best = 0;
    for (int w = 1; w < s->workers; w++) {
        bool in_time = s->worker[w] <= ready, best_in_time = s->worker[best] <= ready;
        if (in_time == best_in_time ? in_time == (s->worker[w] > s->worker[best]) : in_time) best = w;
    }
    double begin = s->worker[best] > ready ? s->worker[best] : ready;
    s->out.work += seconds / s->workers;
    return s->worker[best] = begin + seconds;
}

static void leave(struct simulation *s, const tess_plan_use *use, struct state *st, double end)
{
    const uint64_t bytes = s->u->tile[use->tile].bytes;
    bool gone = use->mode & TESS_LAST;
    if (end < st->read) end = st->read;
    if (st->dirty && !gone) {
        double seconds = (double)bytes / s->rates->write;
        end = move(s, &s->writes, &s->reads, end, seconds) + 2 * s->poll;
        s->out.write += seconds;
    }
    push(&s->leaves, end, bytes);
    st->resident = st->dirty = false;
    st->filled = !gone;
}

static bool leaves(const struct simulation *s, uint32_t i)
{
    const tess_plan_use *use = &s->u->use[i];
    return (use->mode & TESS_LAST) ||
           (s->m->home[use->tile] == TESS_TIER_DISK && (s->m->leaves[i] >> TESS_TIER_CPU & 1));
}

static void run_task(struct simulation *s, size_t k)
{
    const tess_uses *u = s->u;
    const size_t first = u->task[k].first, last = u->task[k + 1].first;
    double ready = let_in(s, k);
    for (size_t at = first; at < last; at++) {
        const tess_plan_use *use = &u->use[u->named[at]];
        const struct state *st = &s->state[use->tile];
        if (st->written > ready) ready = st->written;
        if ((use->mode & TESS_W) && st->read > ready) ready = st->read;
    }
    double end = work(s, ready, s->seconds[k]);
    for (size_t at = first; at < last; at++) {
        const tess_plan_use *use = &u->use[u->named[at]];
        struct state *st = &s->state[use->tile];
        if (use->mode & TESS_SCRATCH) continue;
        if (st->read < end) st->read = end;
        if (!(use->mode & TESS_W)) continue;
        st->written = end;
        st->filled = st->dirty = true;
    }
    for (size_t at = first; at < last; at++) {
        const tess_plan_use *use = &u->use[u->named[at]];
        struct state *st = &s->state[use->tile];
        if (flows(s, use->tile) && st->resident && leaves(s, u->named[at])) leave(s, use, st, end);
    }
}

/* From any moment on, the rest of the tasks that run then, until the first of them ends. */
static double poll_time(const struct simulation *s)
{
    double sum = 0, squares = 0;
    for (size_t k = 0; k < s->u->tasks; k++) {
        double d = s->seconds[k];
        sum += d;
        squares += d * d;
    }
    return sum > 0 ? squares / sum / (s->workers + 1) : 0;
}

/* Two steps, of which the second counts: it begins as the first left things. */
void tess_plan_simulate(const tess_uses *u, const tess_marks *m, const tess_rates *rates, uint64_t room, int workers,
                        tess_forecast *out)
{
    struct simulation s = {.u = u, .m = m, .rates = rates, .room = room, .workers = workers};
    s.state = tess_alloc((u->tiles + 1) * sizeof *s.state);
    s.worker = tess_alloc((size_t)workers * sizeof *s.worker);
    s.seconds = tess_alloc((u->tasks + 1) * sizeof *s.seconds);
    for (size_t k = 0; k < u->tasks; k++) s.seconds[k] = duration(&s, k);
    s.poll = poll_time(&s);
    double begin = 0;
    for (int step = 0; step < 2; step++) {
        s.out = (tess_forecast){0};
        for (size_t k = 0; k < u->tasks; k++) run_task(&s, k);
        double end = s.writes > s.reads ? s.writes : s.reads;
        for (int w = 0; w < workers; w++)
            if (s.worker[w] > end) end = s.worker[w];
        s.out.seconds = end - begin;
        begin = s.entry = s.reads = s.writes = end;
        for (int w = 0; w < workers; w++) s.worker[w] = end;
        while (s.leaves.n) s.held -= s.leaves.at[--s.leaves.n].bytes;
    }
    *out = s.out;
    free(s.state);
    free(s.seconds);
    free(s.worker);
    free(s.leaves.at);
}
