/* A step on paper with a GPU, beside rehearse.c, which is of cores and a drive. Tasks are taken in the order of the
 * list. Each thing that works, the GPU, the cores together, each way of the link and of the drive, each lane of
 * messages, does one thing after the other; what comes later in the list fills the time in which it waited for
 * something. Tiles enter a level when those that left before have made room. All ranks are taken to be where this one
 * is, so no rank waits for another. */
#include "graph/plan/plan.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GAPS = 128, LANES = TESS_MESSAGE_LANES, LEVELS = TESS_TIER_DISK };

/* Something that does one thing after the other, and when it had nothing to do, the earliest first. */
struct line {
    double free, busy;
    struct {
        double from, to;
        bool yields; /* what it waited for may be later */
    } gap[GAPS];
    int gaps;
};

struct gone {
    double when;
    uint64_t bytes;
};

/* The GPU above RAM, or RAM above the drive. */
struct level {
    struct line in, out;
    double in_rate, out_rate, latency;
    uint64_t room, held;
    struct gone *gone; /* tiles that left, in the order of the list */
    size_t first, n;
    double *here; /* [tile]: from when on it is there; INFINITY: it is not */
    bool *dirty;  /* [tile]: it was written since it came */
};

struct rehearsal {
    const tess_uses *u;
    const tess_marks *m;
    const tess_times *times;
    struct level level[LEVELS];
    struct line gpu, cores, lane[LANES];
    double *read;      /* [tile]: the end of its last read */
    double *left;      /* [tile]: when it had left the GPU, */
    uint32_t *left_by; /* and after which task */
    double *submitted; /* [task]: when its tiles had places there */
    double looked;     /* when the task that is rehearsed was looked at, ahead of its turn */
    double settled;    /* when all tiles before this one had places */
    double end;
};

/* How something is done: no earlier than what comes before it in the list; or in the time in which that waited; or, a
 * sum of gradients, which none but updates wait for, behind all that is ready while it waits; so all of two
 * micro-batches in turns. */
enum manner { IN_TURN, FILLS, YIELDS };

static void skip(struct line *l, double from, double to, enum manner how)
{
    if (!(to > from)) return;
    if (l->gaps == GAPS) memmove(l->gap, l->gap + 1, --l->gaps * sizeof *l->gap);
    l->gap[l->gaps].from = from;
    l->gap[l->gaps].yields = how == YIELDS;
    l->gap[l->gaps++].to = to;
}

/* Has what comes behind gap i begin later by `over`, as far as the gaps behind it do not take that up. */
static void push(struct line *l, int i, double over)
{
    while (++i < l->gaps && over > 0) {
        const double taken = fmin(over, l->gap[i].to - l->gap[i].from);
        l->gap[i].from += taken;
        over -= taken;
    }
    l->free += over;
}

/* Does it as early as it can, and no earlier than `ready`; returns the end. */
static double work(struct line *l, double ready, double seconds, enum manner how)
{
    l->busy += seconds;
    for (int i = 0; how != IN_TURN && i < l->gaps; i++) {
        const double begin = fmax(ready, l->gap[i].from), end = begin + seconds, to = l->gap[i].to;
        if (l->gap[i].yields ? begin >= to : end > to) continue;
        l->gap[i].to = begin;
        if (end > to) push(l, i, end - to);
        if (end >= to || i + 1 == GAPS) return end;
        if (l->gaps == GAPS) l->gaps--;
        memmove(l->gap + i + 2, l->gap + i + 1, (size_t)(l->gaps - i - 1) * sizeof *l->gap);
        l->gap[i + 1] = l->gap[i];
        l->gap[i + 1].from = end, l->gap[i + 1].to = to;
        l->gaps++;
        return end;
    }
    const double begin = fmax(l->free, ready);
    skip(l, l->free, begin, how);
    return l->free = begin + seconds;
}

/* ---- tiles ---- */

/* When there is room for a tile, where those that left before in the list make it. */
static double make_room(struct level *l, uint64_t bytes)
{
    double when = 0;
    for (l->held += bytes; l->held > l->room && l->first < l->n; l->first++) {
        const struct gone *g = &l->gone[l->first];
        when = fmax(when, g->when);
        l->held -= g->bytes < l->held ? g->bytes : l->held;
    }
    return when;
}

/* A copy of RAM's while cores have something to do takes from what they read and write. */
static void pass_ram(struct rehearsal *r, int k, double when, uint64_t bytes)
{
    if (k == 0 && r->times->ram > 0 && r->cores.free > when) r->cores.free += (double)bytes / r->times->ram;
}

/* Has a tile come to a level, from below if it is read there; returns from when on it is there. */
static double bring(struct rehearsal *r, int k, uint32_t t, bool reads)
{
    if (k == LEVELS) return 0; /* the drive has a place for all */
    struct level *l = &r->level[k];
    const uint64_t bytes = r->u->tile[t].bytes;
    if (l->here[t] < INFINITY) return l->here[t];
    double when = make_room(l, bytes);
    if (k == 0) when = r->settled = fmax(fmax(when, r->settled), fmax(r->looked, r->left[t]));
    reads = reads && l->in_rate > 0; /* without a drive it is what the step before left, as late updates find it */
    if (reads) {
        when = work(&l->in, fmax(when, bring(r, k + 1, t, true)), l->latency + (double)bytes / l->in_rate, FILLS);
        pass_ram(r, k, when, bytes);
    }
    l->dirty[t] = false;
    return l->here[t] = when;
}

/* What a level has of a tile is copied to the one below; returns the end. */
static double write_back(struct rehearsal *r, int k, uint32_t t, double when)
{
    struct level *l = &r->level[k];
    if (!l->dirty[t]) return when;
    l->dirty[t] = false;
    const double end = work(&l->out, when, l->latency + (double)r->u->tile[t].bytes / l->out_rate, FILLS);
    pass_ram(r, k, end, r->u->tile[t].bytes);
    if (k + 1 < LEVELS) {
        if (!(r->level[k + 1].here[t] < INFINITY)) make_room(&r->level[k + 1], r->u->tile[t].bytes);
        r->level[k + 1].here[t] = end;
        r->level[k + 1].dirty[t] = true;
    }
    return end;
}

static void leave(struct rehearsal *r, int k, uint32_t t, double when, bool last)
{
    struct level *l = &r->level[k];
    if (!(l->here[t] < INFINITY)) return;
    if (!last) when = write_back(r, k, t, when);
    if (k == 0) r->left[t] = when;
    l->here[t] = INFINITY;
    l->dirty[t] = false;
    if (l->n % 256 == 0) l->gone = tess_realloc(l->gone, (l->n + 256) * sizeof *l->gone);
    l->gone[l->n++] = (struct gone){when, r->u->tile[t].bytes};
}

/* ---- tasks ---- */

static bool is_state(const tess_plan_tile *t)
{
    return t->role == TESS_ROLE_MASTER || t->role == TESS_ROLE_MOMENT;
}

/* When all that task k uses is on a level. What the GPU alone has of a tile comes down for who is below. */
static double gather(struct rehearsal *r, size_t k, int at)
{
    const tess_uses *u = r->u;
    double ready = 0;
    for (size_t i = u->task[k].first; i < u->task[k + 1].first; i++) {
        const tess_plan_use *use = &u->use[u->named[i]];
        const uint32_t t = use->tile;
        if (use->mode & TESS_SCRATCH) continue;
        if (use->mode & TESS_W) ready = fmax(ready, r->read[t]);
        if (!u->tile[t].flows) continue;
        if (at && r->level[0].dirty[t]) /* a core asks for it when it takes the task */
            ready = fmax(ready, write_back(r, 0, t, fmax(r->level[0].here[t], r->cores.free)));
        ready = fmax(ready, bring(r, at, t, use->mode & TESS_R));
    }
    return ready;
}

/* A copy above what was written below is none any more; one below is written when the tile leaves. */
static void settle_use(struct rehearsal *r, const tess_plan_use *use, uint8_t leaves, int at, double end)
{
    const uint32_t t = use->tile;
    const bool last = use->mode & TESS_LAST, lives = r->m->home[t] == TESS_TIER_GPU;
    if (use->mode & TESS_W) {
        r->level[at].here[t] = end;
        r->level[at].dirty[t] = true;
        if (at && !lives) leave(r, 0, t, end, true);
    }
    if (last || (leaves >> TESS_TIER_GPU & 1)) leave(r, 0, t, fmax(end, r->read[t]), last);
    const bool rests = r->m->home[t] == TESS_TIER_DISK && (leaves >> TESS_TIER_CPU & 1);
    if (last || rests) leave(r, 1, t, fmax(end, r->read[t]), last);
}

static void settle(struct rehearsal *r, size_t k, int at, double end)
{
    const tess_uses *u = r->u;
    for (size_t i = u->task[k].first; i < u->task[k + 1].first; i++) {
        const tess_plan_use *use = &u->use[u->named[i]];
        if (use->mode & TESS_SCRATCH) continue;
        r->read[use->tile] = fmax(r->read[use->tile], end);
        if (!u->tile[use->tile].flows) continue;
        settle_use(r, use, r->m->leaves[u->named[i]], at, end);
        if ((use->mode & TESS_LAST) || (r->m->leaves[u->named[i]] >> TESS_TIER_GPU & 1))
            r->left_by[use->tile] = (uint32_t)k;
    }
    r->end = fmax(r->end, end);
}

/* Updates of states that live below are there: StarPU takes them to the GPU only while all else of them is there. */
static bool on_gpu(const struct rehearsal *r, size_t k)
{
    const tess_uses *u = r->u;
    const tess_plan_where where = u->task[k].where;
    bool lives = true;
    for (size_t i = u->task[k].first; i < u->task[k + 1].first && where == TESS_RUNS_ON_EITHER; i++) {
        const uint32_t t = u->use[u->named[i]].tile;
        lives &= !is_state(&u->tile[t]) || r->m->home[t] == TESS_TIER_GPU;
    }
    return where == TESS_IS_MESSAGE ? r->times->messages_on_gpu : where != TESS_RUNS_ON_CPU && lives;
}

/* Tasks are looked at in their order, when one so far ahead of them was submitted, and behind those after which a tile
 * of theirs leaves (runtime/flow/places.c). */
static void look_at(struct rehearsal *r, size_t k)
{
    const tess_uses *u = r->u;
    if (k >= TESS_GPU_AHEAD) r->looked = fmax(r->looked, r->submitted[k - TESS_GPU_AHEAD]);
    for (size_t i = u->task[k].first; i < u->task[k + 1].first; i++) {
        const uint32_t by = r->left_by[u->use[u->named[i]].tile];
        if (by < k) r->looked = fmax(r->looked, r->submitted[by]);
    }
}

/* It has to do with gradients, and with no activation. */
static bool sums(const tess_uses *u, size_t k)
{
    bool gradients = false;
    for (size_t i = u->task[k].first; i < u->task[k + 1].first; i++) {
        const tess_role role = u->tile[u->use[u->named[i]].tile].role;
        if (role == TESS_ROLE_ACTIVATION) return false;
        gradients |= role == TESS_ROLE_GRADIENT;
    }
    return gradients;
}

static void run_task(struct rehearsal *r, size_t k)
{
    const tess_times *t = r->times;
    const bool gpu = on_gpu(r, k);
    if (gpu) look_at(r, k);
    const double ready = gather(r, k, !gpu),
                 end = r->u->task[k].where == TESS_IS_MESSAGE ? work(&r->lane[t->lane[k]], ready, t->gpu[k], IN_TURN)
                       : gpu ? work(&r->gpu, ready, t->gpu[k], t->pairs || sums(r->u, k) ? YIELDS : FILLS)
                             : work(&r->cores, ready, t->cores[k], IN_TURN);
    r->submitted[k] = r->settled;
    settle(r, k, !gpu, end);
}

/* ---- the step ---- */

static void level_init(struct level *l, const tess_uses *u, const tess_times *times, int k)
{
    *l = (struct level){.in_rate = times->in[k], .out_rate = times->out[k], .latency = times->latency[k]};
    l->room = times->room[k];
    l->here = tess_alloc((u->tiles + 1) * sizeof *l->here);
    l->dirty = tess_alloc((u->tiles + 1) * sizeof *l->dirty);
}

/* Where tiles are before the first step. */
static void place_tiles(struct rehearsal *r)
{
    for (size_t t = 0; t < r->u->tiles; t++)
        for (int k = 0; k < LEVELS; k++) {
            struct level *l = &r->level[k];
            const bool lives = r->m->home[t] == k && r->u->tile[t].lasts;
            l->here[t] = lives || !r->u->tile[t].flows ? 0 : INFINITY;
            l->dirty[t] = lives;
            if (lives) l->held += r->u->tile[t].bytes;
        }
}

/* Nothing of a step begins before the one before it has ended. */
static void begin_anew(struct line *l, double when)
{
    *l = (struct line){.free = fmax(l->free, when)};
}

static double run_step(struct rehearsal *r)
{
    const double begin = r->end;
    begin_anew(&r->gpu, begin), begin_anew(&r->cores, begin);
    for (int i = 0; i < LANES; i++) begin_anew(&r->lane[i], begin);
    for (int k = 0; k < LEVELS; k++) begin_anew(&r->level[k].in, begin), begin_anew(&r->level[k].out, begin);
    r->looked = r->settled = begin;
    for (size_t t = 0; t < r->u->tiles; t++) r->left_by[t] = UINT32_MAX;
    for (size_t k = 0; k < r->u->tasks; k++) run_task(r, k);
    return r->end - begin;
}

/* The second of two steps, which begins as the first left things. */
void tess_plan_rehearse_gpu(const tess_uses *u, const tess_marks *m, const tess_times *times, tess_rehearsed *out)
{
    TESS_FREED struct rehearsal *r = tess_alloc(sizeof *r);
    *r = (struct rehearsal){.u = u, .m = m, .times = times};
    for (int k = 0; k < LEVELS; k++) level_init(&r->level[k], u, times, k);
    r->read = tess_alloc((u->tiles + 1) * sizeof *r->read);
    r->left = tess_alloc((u->tiles + 1) * sizeof *r->left);
    r->left_by = tess_alloc((u->tiles + 1) * sizeof *r->left_by);
    r->submitted = tess_alloc((u->tasks + 1) * sizeof *r->submitted);
    place_tiles(r);
    run_step(r);
    out->seconds = run_step(r);
    out->gpu = r->gpu.busy, out->cores = r->cores.busy;
    out->to_gpu = r->level[0].in.busy, out->from_gpu = r->level[0].out.busy;
    out->read = r->level[1].in.busy, out->written = r->level[1].out.busy;
    for (int i = 0; i < LANES; i++) out->messages += r->lane[i].busy;
    for (int k = 0; k < LEVELS; k++) free(r->level[k].here), free(r->level[k].dirty), free(r->level[k].gone);
    free(r->read), free(r->left), free(r->left_by), free(r->submitted);
}
