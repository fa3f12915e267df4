/* A step on paper: its tasks on the workers, its tiles entering and leaving RAM by the rules of
 * runtime/flow/ram_places.c, and the disk's two directions, each doing one tile after the other, slower while both do.
 * It says what time a placement should take and what that time is spent on, before anything runs.
 *
 * Everything happens in the order of time. What a use does to its tile does not depend on time, so it is found first,
 * for the list as it goes round: whether the tile enters RAM with it and is read for it, and whether it leaves after it
 * and is written then. A task begins when it was let in, when the tiles that enter with it have come, and when those it
 * waits for have ended; of the tasks that could, the earlier in the list goes first. A worker for which there is none
 * takes parts of the earliest that runs, until there is one again (runtime/progress/parts.c). */
#include "graph/plan/heap_impl.h"
#include "graph/plan/plan.h"
#include <math.h>
#include <string.h>

enum { ENTERS = 1, READS = 2, LEAVES = 4, WRITES = 8, SEEN = 16 }; /* of a use */
enum { ENDS, COMES, GOES, KINDS }; /* of an event: a task, a tile that arrives, one that left */

struct tile {
    uint32_t next, end; /* its next use, and where they end */
    uint32_t readers;   /* that run or could */
    bool writer;
    uint32_t entry;  /* the next use with which it could enter: it did with all before */
    uint32_t let_in; /* how many of the tasks that it enters with are let in */
    bool here;       /* for the next one, */
    bool away;       /* it has left, and did not enter again */
    uint8_t goes;    /* LEAVES, WRITES: the action when no task uses it any more */
};

/* A direction of the disk: tiles in the order in which they were asked for. */
struct way {
    uint32_t *tile;
    size_t first, n, room;
    double left, alone, shared; /* bytes of the first one; rates */
};

/* A task that runs: its parts are alike, and a crew works on them. */
struct body {
    double left, since; /* parts at that time */
    double part, end;   /* seconds of one; when all end, which an event in the heap says that is not out of date */
    uint32_t crew;
};

struct simulation {
    const tess_uses *u;
    const tess_rates *rates;
    uint64_t room, held;
    uint64_t live, most; /* of tiles that enter, with tasks that have begun */
    struct tile *tile;
    uint8_t *does;     /* [use] */
    uint32_t *waits;   /* [task]: uses that it waits for, and one to be let in */
    double *seconds;   /* [task] */
    uint64_t *enter;   /* [task]: bytes that enter with it */
    size_t in, ended;  /* tasks that are let in, that ended */
    int idle;          /* workers */
    struct body *body; /* [task] */
    tess_heap open;    /* tasks that run and may have parts for more workers */
    uint32_t *helped;  /* by whom began none: a task each, the last that found one behind the others */
    size_t helpers;
    double now, poll; /* poll: how long it takes a worker to look at transfers: they do so between tasks */
    tess_heap ready;  /* tasks */
    tess_heap events; /* their number: kind + KINDS * (task or tile) */
    struct way read, write;
};

/* Of a task that runs while the disk reads or writes, for each of the two: it shares the memory with that. */
static const double SLOWER = 0.07;

/* ---- what each use does ---- */

static bool flows(const tess_uses *u, const tess_marks *m, uint32_t tile)
{
    return u->tile[tile].flows && m->home[tile] != TESS_TIER_GPU;
}

static bool leaves(const tess_uses *u, const tess_marks *m, size_t i)
{
    return (u->use[i].mode & TESS_LAST) ||
           (m->home[u->use[i].tile] == TESS_TIER_DISK && (m->leaves[i] >> TESS_TIER_CPU & 1));
}

/* The n uses of a tile from u->use[at] on, around the end of the list. */
static void find_moves(struct simulation *s, const tess_marks *m, size_t at, size_t n)
{
    const tess_uses *u = s->u;
    const uint64_t bytes = u->tile[u->use[at].tile].bytes;
    size_t begin = 0; /* a use with which it enters; none: it never leaves */
    while (begin < n && !leaves(u, m, at + (begin + n - 1) % n)) begin++;
    if (begin == n) {
        s->held += bytes;
        return;
    }
    bool dirty = false;
    for (size_t k = 0; k < n; k++) {
        const size_t i = at + (begin + k) % n, before = at + (begin + k + n - 1) % n;
        if (leaves(u, m, before)) {
            const bool filled = !(u->use[before].mode & TESS_LAST);
            s->does[i] |= ENTERS | (filled && (u->use[i].mode & TESS_R) ? READS : 0);
            s->enter[u->use[i].task] += bytes;
            dirty = false;
        }
        dirty |= (u->use[i].mode & TESS_W) != 0;
        if (leaves(u, m, i)) s->does[i] |= LEAVES | (dirty && !(u->use[i].mode & TESS_LAST) ? WRITES : 0);
    }
    if (!(s->does[at] & ENTERS)) s->held += bytes; /* it is there around the end */
}

double tess_plan_seconds(const tess_uses *u, size_t k, const tess_rates *rates, int workers)
{
    enum { OVERHEAD_US = 10 };
    tess_cost c = u->task[k].cost;
    if (c.flops == 0 && c.bytes == 0)
        for (size_t at = u->task[k].first; at < u->task[k + 1].first; at++)
            c.bytes += (double)u->tile[u->use[u->named[at]].tile].bytes;
    double seconds = c.flops > 0 ? c.flops / rates->flops + c.passes / rates->copy : c.bytes / rates->copy;
    return seconds * workers + OVERHEAD_US * 1e-6;
}

/* From any moment on, the rest of the tasks that run then, until the first of them ends. */
static double poll_time(const struct simulation *s, int workers)
{
    double sum = 0, squares = 0;
    for (size_t k = 0; k < s->u->tasks; k++) {
        double d = s->seconds[k];
        sum += d;
        squares += d * d;
    }
    return sum > 0 ? squares / sum / (workers + 1) : 0;
}

/* ---- the disk ---- */

static void ask(struct simulation *s, struct way *w, uint32_t tile)
{
    if (w->n == w->room) w->tile = tess_realloc(w->tile, (w->room = w->room ? 2 * w->room : 256) * sizeof *w->tile);
    if (w->first == w->n) w->left = (double)s->u->tile[tile].bytes;
    w->tile[w->n++] = tile;
}

static bool busy(const struct way *w)
{
    return w->first < w->n;
}

static double rate(const struct way *w, const struct way *other)
{
    return busy(other) ? w->shared : w->alone;
}

/* Seconds until the first of its tiles is through, if the other does not change. */
static double until(const struct way *w, const struct way *other)
{
    return busy(w) ? w->left / rate(w, other) : INFINITY;
}

static void through(struct simulation *s, struct way *w, int kind)
{
    const uint32_t tile = w->tile[w->first++];
    tess_heap_push(&s->events, s->now + 2 * s->poll, (uint32_t)kind + KINDS * tile);
    if (busy(w))
        w->left = (double)s->u->tile[w->tile[w->first]].bytes;
    else
        w->first = w->n = 0;
}

/* Lets time pass until the next event; the end of a transfer becomes an event. */
static void pass(struct simulation *s)
{
    const double read = until(&s->read, &s->write), write = until(&s->write, &s->read);
    const double next = s->events.n ? s->events.key[0] - s->now : INFINITY;
    double step = read < write ? read : write;
    if (next < step) step = next > 0 ? next : 0;
    const double r = rate(&s->read, &s->write), w = rate(&s->write, &s->read);
    const bool ends_read = busy(&s->read) && step == read, ends_write = busy(&s->write) && step == write;
    s->now += step; /* for ever, with a rate of zero */
    if (s->now == INFINITY) return;
    if (busy(&s->read)) s->read.left -= step * r;
    if (busy(&s->write)) s->write.left -= step * w;
    if (ends_read) through(s, &s->read, COMES);
    if (ends_write) through(s, &s->write, GOES);
}

/* ---- tasks and tiles ---- */

static void let_go(struct simulation *s, uint32_t task)
{
    if (!--s->waits[task]) tess_heap_push(&s->ready, task, task);
}

/* Hands the tile to its next users: one that writes it or all that read it. */
static void grant(struct simulation *s, uint32_t t)
{
    struct tile *tile = &s->tile[t];
    for (; tile->next < tile->end && !tile->writer; tile->next++) {
        const tess_plan_use *use = &s->u->use[tile->next];
        const bool writes = use->mode & TESS_W;
        if (writes && tile->readers) return;
        if (s->does[tile->next] & ENTERS) {
            if (!tile->here) return;
            tile->here = false;
        }
        tile->writer = writes;
        tile->readers += !writes;
        let_go(s, use->task);
    }
}

static void arrived(struct simulation *s, uint32_t t)
{
    s->tile[t].here = true;
    grant(s, t);
}

/* When it has left, and a task was let in that it enters with. */
static void enter(struct simulation *s, uint32_t t)
{
    struct tile *tile = &s->tile[t];
    if (!tile->away || !tile->let_in) return;
    tile->away = false;
    tile->let_in--;
    while (!(s->does[tile->entry] & ENTERS)) tile->entry++;
    if (s->does[tile->entry++] & READS)
        ask(s, &s->read, t);
    else
        arrived(s, t);
}

static void gone(struct simulation *s, uint32_t t)
{
    s->held -= s->u->tile[t].bytes;
    s->live -= s->u->tile[t].bytes;
    s->tile[t].away = true;
    enter(s, t);
}

/* Of what task k names, the next that it did not name before: its use. Called over and over with *at from the first on.
 */
static bool next_named(struct simulation *s, size_t k, size_t *at, uint32_t *use)
{
    const size_t first = s->u->task[k].first, end = s->u->task[k + 1].first;
    for (; *at < end; ++*at) {
        uint8_t *does = &s->does[ *use = s->u->named[*at]];
        if (*does & SEEN) continue;
        *does |= SEEN;
        ++*at;
        return true;
    }
    for (size_t i = first; i < end; i++) s->does[s->u->named[i]] &= (uint8_t)~SEEN;
    return false;
}

/* Lets in what has room; with `insists` one task even if it has none. */
static void let_in(struct simulation *s, bool insists)
{
    for (; s->in < s->u->tasks; s->in++) {
        const uint64_t bytes = s->enter[s->in];
        if (bytes && !insists && (s->held > s->room || bytes > s->room - s->held)) return;
        insists = insists && !bytes;
        s->held += bytes;
        let_go(s, (uint32_t)s->in);
        size_t at = s->u->task[s->in].first;
        for (uint32_t i; bytes && next_named(s, s->in, &at, &i);) {
            if (!(s->does[i] & ENTERS)) continue;
            s->tile[s->u->use[i].tile].let_in++;
            enter(s, s->u->use[i].tile);
        }
    }
}

/* When all who had it have ended. */
static void leave(struct simulation *s, uint32_t t)
{
    struct tile *tile = &s->tile[t];
    const uint8_t goes = tile->goes;
    if (!goes || tile->readers || tile->writer) return;
    tile->goes = 0;
    if (goes & WRITES)
        ask(s, &s->write, t);
    else
        gone(s, t);
}

/* All who worked on it are free. */
static void end_crew(struct simulation *s, uint32_t k)
{
    size_t n = 0;
    s->idle += (int)s->body[k].crew;
    for (size_t i = 0; i < s->helpers && s->body[k].crew > 1; i++)
        if (s->helped[i] != k) s->helped[n++] = s->helped[i];
    if (s->body[k].crew > 1) s->helpers = n;
    s->body[k].crew = 0;
}

static void end_task(struct simulation *s, uint32_t k)
{
    end_crew(s, k);
    s->ended++;
    size_t at = s->u->task[k].first;
    for (uint32_t i; next_named(s, k, &at, &i);) {
        const uint32_t t = s->u->use[i].tile;
        struct tile *tile = &s->tile[t];
        if (s->u->use[i].mode & TESS_SCRATCH) continue;
        if (s->u->use[i].mode & TESS_W)
            tile->writer = false;
        else
            tile->readers--;
        if (s->does[i] & LEAVES) tile->goes = s->does[i] & (LEAVES | WRITES);
        leave(s, t);
        grant(s, t);
    }
}

/* Of a task that runs. */
static double parts_left(const struct simulation *s, uint32_t k)
{
    const struct body *b = &s->body[k];
    return fmax(0, b->left - b->crew * (s->now - b->since) / b->part);
}

/* Changes the crew of task k: computes the work that is left, and its end with that crew. */
static void man(struct simulation *s, uint32_t k, uint32_t crew)
{
    struct body *b = &s->body[k];
    const double left = parts_left(s, k), turns = left / crew;
    b->left = left;
    b->since = s->now;
    b->crew = crew;
    /* Whole parts are made in whole turns; the progress of parts that were begun is not known. */
    b->end = s->now + b->part * (left == rint(left) ? ceil(turns) : fmax(turns, fmin(left, 1)));
    tess_heap_push(&s->events, b->end, ENDS + KINDS * k);
}

/* Who helps goes to a task of his own. */
static void call_back(struct simulation *s)
{
    const uint32_t k = s->helped[--s->helpers];
    man(s, k, s->body[k].crew - 1);
    tess_heap_push(&s->open, k, k);
    s->idle++;
}

/* Who has no task helps with the earliest that has a part more than workers. */
static void help(struct simulation *s)
{
    double key;
    while (s->idle && s->open.n) {
        const uint32_t k = s->open.of[0];
        const uint32_t crew = s->body[k].crew;
        if (!crew || ceil(parts_left(s, k)) <= crew) {
            tess_heap_pop(&s->open, &key);
            continue;
        }
        man(s, k, crew + 1);
        s->helped[s->helpers++] = k;
        s->idle--;
    }
}

static void begin_tasks(struct simulation *s)
{
    double key;
    while (s->ready.n && (s->idle || s->helpers)) {
        if (!s->idle) call_back(s);
        const uint32_t k = tess_heap_pop(&s->ready, &key), parts = s->u->task[k].parts > 1 ? s->u->task[k].parts : 1;
        const double slower = 1 + SLOWER * (busy(&s->read) + busy(&s->write));
        s->body[k] = (struct body){.left = parts, .part = slower * s->seconds[k] / parts};
        man(s, k, 1);
        s->live += s->enter[k];
        if (s->live > s->most) s->most = s->live;
        if (parts > 1) tess_heap_push(&s->open, k, k);
        s->idle--;
    }
    help(s);
}

/* Events that say when a task would have ended with another crew. */
static void drop_stale(struct simulation *s)
{
    double key;
    while (s->events.n && s->events.of[0] % KINDS == ENDS) {
        const struct body *b = &s->body[s->events.of[0] / KINDS];
        if (b->crew && b->end == s->events.key[0]) return;
        tess_heap_pop(&s->events, &key);
    }
}

static void happen(struct simulation *s)
{
    double when;
    const uint32_t event = tess_heap_pop(&s->events, &when), of = event / KINDS;
    if (when > s->now) s->now = when;
    if (event % KINDS == ENDS) end_task(s, of);
    if (event % KINDS == COMES) arrived(s, of);
    if (event % KINDS == GOES) gone(s, of);
}

/* All tasks once, from now on; what is on its way to the disk at the end still is. */
static void run_step(struct simulation *s)
{
    const tess_uses *u = s->u;
    s->in = s->ended = 0;
    for (size_t k = 0; k < u->tasks; k++) s->waits[k] = 1;
    for (size_t i = 0, n; i < u->uses; i += n) {
        n = tess_uses_of_tile(u, i);
        struct tile *tile = &s->tile[u->use[i].tile];
        tile->next = tile->entry = (uint32_t)i, tile->end = (uint32_t)(i + n);
        if (u->use[i].mode & TESS_SCRATCH) tile->next = tile->end; /* each worker has its own */
        for (size_t k = tile->next; k < tile->end; k++) s->waits[u->use[k].task]++;
    }
    for (size_t t = 0; t < u->tiles; t++) grant(s, (uint32_t)t);
    while (s->ended < u->tasks && s->now < INFINITY) {
        let_in(s, false);
        begin_tasks(s);
        drop_stale(s);
        if (!s->events.n && !busy(&s->read) && !busy(&s->write)) {
            TESS_ASSERT(s->in < u->tasks);
            let_in(s, true);
            continue;
        }
        pass(s);
        for (drop_stale(s); s->events.n && s->events.key[0] <= s->now; drop_stale(s)) happen(s);
    }
}

static struct way way_of(double rate, double both)
{
    return (struct way){.alone = rate, .shared = both > 0 && both < 2 ? rate * both / 2 : rate};
}

/* The most bytes of such tiles where one task follows the other. */
static uint64_t most_in_order(struct simulation *s)
{
    uint64_t live = s->live, most = 0;
    for (size_t k = 0; k < s->u->tasks; k++) {
        size_t at = s->u->task[k].first;
        live += s->enter[k];
        if (live > most) most = live;
        for (uint32_t i; next_named(s, k, &at, &i);)
            if (s->does[i] & LEAVES) live -= s->u->tile[s->u->use[i].tile].bytes;
    }
    return most;
}

/* Simulates two steps, and counts the second: it begins as the first left things, and ends with its last task. */
void tess_plan_simulate(const tess_uses *u, const tess_marks *m, const tess_rates *rates, uint64_t room, int workers,
                        tess_forecast *out)
{
    struct simulation s = {.u = u, .rates = rates, .room = room, .idle = workers};
    s.tile = tess_alloc((u->tiles + 1) * sizeof *s.tile);
    s.does = tess_alloc((u->uses + 1) * sizeof *s.does);
    s.waits = tess_alloc((u->tasks + 1) * sizeof *s.waits);
    s.seconds = tess_alloc((u->tasks + 1) * sizeof *s.seconds);
    s.enter = tess_alloc((u->tasks + 1) * sizeof *s.enter);
    s.body = tess_alloc((u->tasks + 1) * sizeof *s.body);
    s.helped = tess_alloc((size_t)workers * sizeof *s.helped);
    s.read = way_of(rates->read, rates->both), s.write = way_of(rates->write, rates->both);
    *out = (tess_forecast){0};
    for (size_t i = 0, n; i < u->uses; i += n) {
        n = tess_uses_of_tile(u, i);
        if (flows(u, m, u->use[i].tile)) find_moves(&s, m, i, n);
        s.tile[u->use[i].tile].away = s.does[i] & ENTERS;
    }
    for (size_t i = 0; i < u->uses; i++) {
        const double bytes = (double)u->tile[u->use[i].tile].bytes;
        if (s.does[i] & READS) out->read += bytes / rates->read;
        if (s.does[i] & WRITES) out->write += bytes / rates->write;
    }
    for (size_t k = 0; k < u->tasks; k++) {
        s.seconds[k] = tess_plan_seconds(u, k, rates, workers);
        out->work += s.seconds[k] / workers;
    }
    s.poll = poll_time(&s, workers);
    run_step(&s);
    const double begin = s.now;
    const uint64_t in_order = most_in_order(&s);
    s.most = s.live;
    run_step(&s);
    out->seconds = s.now < INFINITY ? s.now - begin : INFINITY;
    out->early = s.most > in_order ? s.most - in_order : 0;
    free(s.tile), free(s.does), free(s.waits), free(s.seconds), free(s.enter);
    free(s.read.tile), free(s.write.tile), free(s.body), free(s.helped);
    tess_heap_free(&s.ready), tess_heap_free(&s.events), tess_heap_free(&s.open);
}
