/* One level: which gaps are kept.
 *
 * Gaps are taken one after the other as long as each of their moments has room, those of tiles that must stay first.
 * Which then? Those that save the most traffic a byte and moment: short ones, so that what the forward pass used last
 * stays for the backward pass, and of equal ones a fixed part, where keeping the least recently used would let go what
 * is needed next. Better is an order that knows which moments are crowded: by the prices that prices.c finds while it
 * proves how little any choice must move. And where the time of a step is the measure, more weight on what a step uses
 * last, since its end has no work left to hide traffic behind. Each is tried, and the best of them is taken. */
#include "graph/plan/plan.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum order { BY_WORTH, BY_PRICE, BY_PRICE_LAST, ORDERS };

struct placing {
    const tess_uses *u;
    const tess_level *l;
    tess_marks *m;
    uint64_t *need, always;
    tess_gaps gaps;
    double *price; /* [gap]: its order by prices */
};

/* One way to choose, and what came of it. */
struct attempt {
    enum order order;
    tess_placed placed;
    double measure; /* seconds of a step, or bytes */
};

uint64_t tess_level_needs(const tess_uses *u, const tess_level *l, const tess_marks *m, uint64_t *need)
{
    uint64_t most = 0;
    memset(need, 0, u->tasks * sizeof *need);
    for (size_t i = 0; i < u->uses; i++) {
        const tess_plan_use *use = &u->use[i];
        if (!tess_level_has(l, m, use->tile) || !l->used[i]) continue;
        need[use->task] += u->tile[use->tile].bytes;
        if (need[use->task] > most) most = need[use->task];
    }
    return most;
}

/* ---- gaps in their order ---- */

/* Of equals what is used last in a step stays, and what is short: those come first in the list. */
static void sort(struct placing *s, enum order order)
{
    tess_gaps *g = &s->gaps;
    TESS_FREED double *by = tess_alloc((g->gaps + 1) * sizeof *by);
    for (size_t i = 0; i < g->gaps; i++) {
        const tess_gap *gap = &g->gap[i];
        const double last = (double)((gap->first + g->moments - 1) % g->moments) / (double)g->moments;
        by[i] = order == BY_WORTH ? (double)gap->moved / ((double)gap->bytes * (double)((uint64_t)gap->count + 1))
                                  : s->price[i] * (order == BY_PRICE_LAST ? 1 + last / 4 : 1);
    }
    tess_gaps_sort(g, by);
}

/* Returns whether staying may save something: the contents are read again, or a write is due that would be wasted. */
static bool saves(const tess_gap *g)
{
    return !g->anew || g->due;
}

/* Keeps the gap if there is room at each of its moments. */
static void keep(const tess_level *l, tess_gap *g, tess_room *left)
{
    const uint8_t leave = l->leave[g->use];
    const int64_t bytes = (int64_t)g->bytes;
    g->kept = leave == TESS_RESTS || (leave != TESS_MUST_LEAVE && saves(g));
    if (!g->kept || leave == TESS_RESTS || g->count == 0) return;
    g->kept = leave == TESS_MUST_STAY || tess_room_has(left, g->first, g->count, bytes);
    if (g->kept) tess_room_take(left, g->first, g->count, bytes);
}

/* Keeps gaps in their order; what room lacks for tiles that must stay. */
static uint64_t fill(struct placing *s, const int64_t *moment)
{
    tess_gaps *g = &s->gaps;
    tess_room *left = tess_room_new(moment, g->moments);
    for (int must = 1; must >= 0; must--)
        for (size_t i = 0; i < g->gaps; i++) {
            tess_gap *gap = &g->gap[g->turn[i]];
            if ((s->l->leave[gap->use] == TESS_MUST_STAY) == must) keep(s->l, gap, left);
        }
    const int64_t least = tess_room_least(left);
    tess_room_free(left);
    return least < 0 ? (uint64_t)-least : 0;
}

/* ---- what comes of it ---- */

void tess_level_init(const tess_uses *u, unsigned tier, tess_level *l)
{
    l->tier = tier;
    l->has = tess_alloc((u->tiles + 1) * sizeof *l->has);
    l->used = tess_alloc((u->uses + 1) * sizeof *l->used);
    l->leave = tess_alloc((u->uses + 1) * sizeof *l->leave);
    memset(l->used, TESS_USED_HERE, u->uses);
    for (size_t t = 0; t < u->tiles; t++) l->has[t] = u->tile[t].flows;
}

void tess_level_free(tess_level *l)
{
    free(l->has);
    free(l->used);
    free(l->leave);
}

/* A tile lives on the level if it never leaves it and no task has it elsewhere; all others live below. */
static void set_homes(const struct placing *s, tess_placed *out)
{
    const tess_uses *u = s->u;
    out->lives = out->below = 0;
    for (size_t at = 0, n; at < u->uses; at += n) {
        const uint32_t t = u->use[at].tile;
        const tess_plan_tile *tile = &u->tile[t];
        n = tess_uses_of_tile(u, at);
        if (!tess_level_has(s->l, s->m, t)) continue;
        bool lives = true;
        for (size_t i = at; i < at + n; i++)
            lives &= s->l->used[i] == TESS_USED_HERE && !(s->m->leaves[i] >> s->l->tier & 1);
        if (s->l->homes || !tile->lasts) s->m->home[t] = (uint8_t)(lives ? s->l->tier : s->l->tier + 1);
        if (s->m->home[t] > s->l->tier) out->below += tile->bytes;
        if (s->m->home[t] == s->l->tier && tile->lasts && s->l->homes) out->lives += tile->bytes;
    }
}

static void set_marks(struct placing *s, tess_placed *out)
{
    const uint8_t bit = (uint8_t)(1 << s->l->tier);
    for (size_t i = 0; i < s->u->uses; i++) s->m->leaves[i] &= (uint8_t)~bit;
    for (size_t i = 0; i < s->gaps.gaps; i++)
        if (!s->gaps.gap[i].kept) s->m->leaves[s->gaps.gap[i].use] |= bit;
    tess_gaps_traffic(s->u, s->l, s->m, &out->read, &out->written);
}

/* Marks as if nothing had to leave; the room that takes. */
static uint64_t whole(struct placing *s, tess_placed *out)
{
    const int64_t plenty = INT64_MAX / 4;
    tess_gaps *g = &s->gaps;
    TESS_FREED int64_t *moment = tess_alloc((s->u->tasks + 1) * sizeof *moment);
    for (size_t k = 0; k < s->u->tasks; k++) moment[k] = plenty - (int64_t)s->need[k];
    tess_room *left = tess_room_new(moment, s->u->tasks);
    for (size_t i = 0; i < g->gaps; i++) {
        g->gap[i].kept = saves(&g->gap[i]);
        if (g->gap[i].kept) tess_room_take(left, g->gap[i].first, g->gap[i].count, (int64_t)g->gap[i].bytes);
    }
    const int64_t least = tess_room_least(left);
    set_marks(s, out);
    tess_room_free(left);
    return (uint64_t)(plenty - least);
}

/* ---- choosing ---- */

static void begin(struct placing *s, const tess_uses *u, const tess_level *l, tess_marks *m)
{
    *s = (struct placing){.u = u, .l = l, .m = m, .need = tess_alloc((u->tasks + 1) * sizeof *s->need)};
    tess_level_needs(u, l, m, s->need);
    tess_gaps_list(u, l, m, &s->gaps);
    s->price = tess_alloc((s->gaps.gaps + 1) * sizeof *s->price);
}

static void end(struct placing *s)
{
    free(s->need);
    tess_gaps_free(&s->gaps);
    free(s->price);
}

/* What each moment has for gaps. */
static int64_t *moments(const struct placing *s, uint64_t room, uint64_t slack)
{
    int64_t *m = tess_alloc((s->u->tasks + 1) * sizeof *m);
    for (size_t k = 0; k < s->u->tasks; k++) {
        const uint64_t taken = s->need[k] + slack;
        m[k] = taken < room ? (int64_t)(room - taken) : 0;
    }
    return m;
}

static void mark(struct placing *s, const int64_t *moment, enum order order, struct attempt *a)
{
    a->order = order;
    sort(s, order);
    a->placed.lacks = fill(s, moment);
    set_marks(s, &a->placed);
}

/* Returns the bytes that rest in RAM and that the room already excludes. */
static uint64_t resting(const struct placing *s)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < s->u->uses; i += tess_uses_of_tile(s->u, i))
        if (s->l->leave[i] == TESS_RESTS) bytes += s->u->tile[s->u->use[i].tile].bytes;
    return bytes;
}

static void attempt(struct placing *s, const int64_t *moment, enum order order, struct attempt *a)
{
    const tess_level *l = s->l;
    mark(s, moment, order, a);
    set_homes(s, &a->placed);
    a->measure = (double)(a->placed.read + a->placed.written);
    if (!l->rates) return;
    tess_plan_simulate(s->u, s->m, l->rates, l->room + resting(s), l->workers, &a->placed.time);
    a->measure = tess_forecast_measure(&a->placed.time);
}

/* Of times that are about equal that which moves less. */
static bool better(const struct placing *s, const struct attempt *a, const struct attempt *b)
{
    const uint64_t x = a->placed.read + a->placed.written, y = b->placed.read + b->placed.written;
    if (!s->l->rates) return x <= y;
    const double ratio = a->measure / b->measure;
    return ratio <= 0.995 || (ratio <= 1.005 && x < y);
}

/* Returns whether a choice that moves `moved` bytes is refused. */
static bool refused(const struct placing *s, uint64_t moved)
{
    return s->l->refuse && moved >= s->l->refuse;
}

/* Finds prices for that room, given that some choice moves `moved` bytes; returns the least that any choice moves. */
static uint64_t bound(struct placing *s, const int64_t *moment, uint64_t moved, int rounds)
{
    const uint64_t refuse = s->l->refuse, enough = !refuse ? UINT64_MAX : refuse > s->always ? refuse - s->always : 0;
    return s->always + tess_gaps_bound(&s->gaps, moment, moved - s->always, enough, rounds);
}

/* The best order with that slack. */
static struct attempt try_orders(struct placing *s, uint64_t slack)
{
    TESS_FREED int64_t *moment = moments(s, s->l->room, slack);
    struct attempt best = {.placed.slack = slack}, a = best;
    attempt(s, moment, BY_WORTH, &best);
    const uint64_t least = bound(s, moment, best.placed.read + best.placed.written, s->l->rounds);
    for (size_t i = 0; i < s->gaps.gaps; i++) s->price[i] = s->gaps.gap[i].order;
    for (enum order o = BY_PRICE; o < (s->l->rates ? ORDERS : BY_PRICE_LAST) && !refused(s, least); o++) {
        attempt(s, moment, o, &a);
        if (better(s, &a, &best)) best = a;
    }
    return best;
}

/* The order by prices alone, which is as a rule the best. */
static struct attempt try_prices(struct placing *s, uint64_t slack)
{
    TESS_FREED int64_t *moment = moments(s, s->l->room, slack);
    struct attempt a = {.placed.slack = slack};
    mark(s, moment, BY_WORTH, &a);
    bound(s, moment, a.placed.read + a.placed.written, s->l->rounds);
    for (size_t i = 0; i < s->gaps.gaps; i++) s->price[i] = s->gaps.gap[i].order;
    attempt(s, moment, s->l->rates ? BY_PRICE_LAST : BY_PRICE, &a);
    return a;
}

/* One amount of slack, tried on gaps and marks of its own. */
struct trial {
    struct placing s;
    tess_marks marks;
    uint64_t slack;
    struct attempt best;
    pthread_t thread;
    bool threaded;
};

static void *copy(const void *of, size_t bytes)
{
    return memcpy(tess_alloc(bytes + 1), of, bytes);
}

static void begin_trial(const struct placing *s, uint64_t slack, struct trial *t)
{
    const tess_uses *u = s->u;
    const tess_gaps *g = &s->gaps;
    *t = (struct trial){.s = *s, .slack = slack};
    t->marks = (tess_marks){copy(s->m->home, u->tiles * sizeof *s->m->home),
                            copy(s->m->leaves, u->uses * sizeof *s->m->leaves)};
    t->s.m = &t->marks;
    t->s.gaps.gap = copy(g->gap, g->gaps * sizeof *g->gap);
    t->s.gaps.turn = copy(g->turn, g->gaps * sizeof *g->turn);
    t->s.price = tess_alloc((g->gaps + 1) * sizeof *s->price);
}

static void end_trial(struct trial *t)
{
    tess_gaps_free(&t->s.gaps);
    free(t->s.price);
    free(t->marks.home);
    free(t->marks.leaves);
}

static void *run_trial(void *of)
{
    struct trial *t = of;
    t->best = try_orders(&t->s, t->slack);
    return NULL;
}

/* All of them, as many at a time as there are cores; where a list is short, a thread would take longer to make. */
static void run_trials(struct trial *trial, int trials, size_t gaps)
{
    enum { FEW = 1000 };
    const int cores = gaps < FEW ? 1 : tess_cores();
    for (int first = 0; first < trials; first += cores) {
        const int end = first + cores < trials ? first + cores : trials;
        for (int i = first + 1; i < end; i++)
            trial[i].threaded = pthread_create(&trial[i].thread, NULL, run_trial, &trial[i]) == 0;
        for (int i = first; i < end; i++)
            if (!trial[i].threaded) run_trial(&trial[i]);
        for (int i = first + 1; i < end; i++)
            if (trial[i].threaded) pthread_join(trial[i].thread, NULL);
    }
}

/* The best slack: much of it hides waiting, little of it keeps more; of about equal ones the one that came first. Its
 * prices are left. */
static struct attempt try_slacks(struct placing *s)
{
    struct trial trial[TESS_MOST_SLACKS] = {0};
    int best = 0;
    for (int i = 0; i < s->l->slacks; i++) begin_trial(s, s->l->slack[i], &trial[i]);
    run_trials(trial, s->l->slacks, s->gaps.gaps);
    for (int i = 1; i < s->l->slacks; i++)
        if (!(trial[i].best.measure > trial[best].best.measure * 0.99)) best = i;
    const struct attempt found = trial[best].best;
    memcpy(s->price, trial[best].s.price, s->gaps.gaps * sizeof *s->price);
    for (int i = 0; i < s->l->slacks; i++) end_trial(&trial[i]);
    return found;
}

/* All stays for which so much room is enough, and no time is asked for: there is nothing to choose. */
static bool stays_whole(const struct placing *s, uint64_t room)
{
    const tess_level *l = s->l;
    bool may = !l->rates && l->slacks == 1 && room <= l->room && l->slack[0] <= l->room - room;
    for (size_t i = 0; i < s->u->uses && may; i++) may = l->leave[i] != TESS_MUST_LEAVE;
    return may;
}

void tess_level_place(const tess_uses *u, const tess_level *l, tess_marks *m, tess_placed *out)
{
    struct placing s;
    *out = (tess_placed){0};
    begin(&s, u, l, m);
    const uint64_t room = whole(&s, out);
    s.always = out->always = out->bound = out->read + out->written;
    if (stays_whole(&s, room)) {
        out->slack = l->slack[0];
        set_homes(&s, out);
        end(&s);
        return;
    }
    struct attempt best = l->quick ? try_prices(&s, l->slack[0]) : try_slacks(&s);
    if (best.placed.lacks) best = (l->quick ? try_prices : try_orders)(&s, 0);
    if (!l->quick) {
        TESS_FREED int64_t *chosen = moments(&s, l->room, best.placed.slack);
        attempt(&s, chosen, best.order, &best);
    }
    *out = best.placed;
    out->always = s.always;
    out->bound = s.always;
    if (!refused(&s, out->read + out->written)) {
        TESS_FREED int64_t *moment = moments(&s, l->room, 0);
        out->bound = bound(&s, moment, out->read + out->written, l->last_rounds);
    }
    end(&s);
}

uint64_t tess_level_whole(const tess_uses *u, const tess_level *l, tess_marks *m, tess_placed *out)
{
    struct placing s;
    *out = (tess_placed){0};
    begin(&s, u, l, m);
    const uint64_t room = whole(&s, out);
    out->always = out->read + out->written;
    end(&s);
    return room;
}
