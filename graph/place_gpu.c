/* Placement between a GPU's memory and RAM: which tiles stay on the GPU between which of their uses there. The other
 * two tiers are place.c's, whose idea this shares: a gap between two uses costs room at each of its moments, and saves
 * the copy back at its end and, where the GPU wrote what RAM does not have, the copy out.
 *
 * Other than in RAM, not every task is there. What a task elsewhere reads must be copied out whether the tile stays or
 * not, and what it writes must be fetched; a gap over such a write saves nothing. Tasks that may run on either side
 * (the optimizer's) count as the GPU's where its memory has room for their states: then staying saves what StarPU
 * would copy to run them there, or leaves it the choice.
 *
 * What StarPU would do by itself is to let go what was not used for longest, which in a step that goes down and up
 * again, and then repeats, is what it needs next. */
#include "place_impl.h"
#include <stdlib.h>

/* Parts of the room: for tiles that come early and leave late, and for what lies unused between pieces of many sizes.
 * Updates for which there must be room beside it, since StarPU loads some ahead. */
enum { LATE_PART = 16, BETWEEN_PART = 48, UPDATES = 5 };
enum { ROUNDS = 200 }; /* of the prices' search */
/* In which StarPU takes the GPU's memory for what is small. */
enum { CHUNK = 32 << 20 };

/* What one task does with one tile. */
struct use_of {
    tess_tile *tile;
    size_t task;
    tess_use *use; /* the last that names it */
    int mode;      /* of all that do */
    bool here;     /* the task counts as the GPU's, */
    bool only;     /* or can run nowhere else */
};

struct placing {
    tess_program *p;
    struct use_of *use;
    size_t uses;
    tess_gaps gaps; /* without their uses */
};

static int by_tile_and_task(const void *a, const void *b)
{
    const struct use_of *x = a, *y = b;
    if (x->tile != y->tile) return (x->tile > y->tile) - (x->tile < y->tile);
    if (x->task != y->task) return (x->task > y->task) - (x->task < y->task);
    return (x->use > y->use) - (x->use < y->use);
}

static bool is_here(const tess_task *t, bool states)
{
    const tess_gpu_part part = tess_task_on_gpu(t);
    return part == TESS_ALWAYS || (part == TESS_MAYBE && states);
}

static void list_uses(struct placing *s, bool states)
{
    const tess_program *p = s->p;
    size_t room = 1, n = 0;
    for (size_t k = 0; k < p->tasks; k++) room += p->task[k].nuse;
    s->use = tess_alloc(room * sizeof *s->use);
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            tess_use *u = (tess_use *)&p->task[k].use[i];
            u->mode &= ~TESS_AWAY;
            if (tess_tile_has_place(u->tile))
                s->use[n++] = (struct use_of){u->tile,
                                              k,
                                              u,
                                              u->mode,
                                              is_here(&p->task[k], states),
                                              is_here(&p->task[k], false) && !p->task[k].cl->either};
        }
    qsort(s->use, n, sizeof *s->use, by_tile_and_task);
    for (size_t i = 0; i < n; i++) {
        struct use_of *last = s->uses ? &s->use[s->uses - 1] : NULL;
        if (last && last->tile == s->use[i].tile && last->task == s->use[i].task) {
            last->use = s->use[i].use;
            last->mode |= s->use[i].mode;
        } else
            s->use[s->uses++] = s->use[i];
    }
}

static size_t same_tile(const struct placing *s, size_t i)
{
    size_t n = 1;
    while (i + n < s->uses && s->use[i + n].tile == s->use[i].tile) n++;
    return n;
}

/* ---- gaps ---- */

/* Charges the copy out of what use w of u[0..n) wrote to the longest of the gaps in which it may be made: up to the end
 * of these contents; to none, if a task elsewhere reads them. gap[i] is the one after use i, NULL where there is none.
 */
static void charge_copy(const struct use_of *u, size_t n, size_t w, tess_gap *const *gap)
{
    tess_gap *longest = NULL;
    size_t i = w;
    do {
        if (!u[i].here && i != w && (u[i].mode & TESS_R)) return;
        if (u[i].mode & TESS_LAST) break;
        if (gap[i] && (!longest || gap[i]->count > longest->count)) longest = gap[i];
        i = (i + 1) % n;
    } while (i != w && !((u[i].mode & TESS_W) && u[i].here) && (u[i].mode & TESS_RW) != TESS_W);
    if (longest) longest->moved += tess_tile_bytes(u[0].tile);
}

/* The gaps of one tile, whose uses are u[0..n): between those here that follow each other. */
static void list_gaps(struct placing *s, const struct use_of *u, size_t n)
{
    tess_gap **gap = tess_alloc(n * sizeof *gap);
    for (size_t i = 0; i < n; i++) {
        if (!u[i].here || (u[i].mode & TESS_LAST)) continue;
        bool anew = false;
        size_t j = (i + 1) % n;
        for (; !u[j].here; j = (j + 1) % n) anew |= (u[j].mode & (TESS_W | TESS_LAST)) != 0;
        gap[i] = &s->gaps.gap[s->gaps.gaps++];
        *gap[i] = (tess_gap){.tile = u[i].tile,
                             .id = s->gaps.gaps - 1,
                             .use = u[i].use,
                             .first = (u[i].task + 1) % s->p->tasks,
                             .count = (u[j].task + s->p->tasks - u[i].task - 1) % s->p->tasks,
                             .moved = !anew && (u[j].mode & TESS_R) ? tess_tile_bytes(u[i].tile) : 0,
                             .spared = !anew};
    }
    for (size_t i = 0; i < n; i++)
        if (u[i].here && (u[i].mode & TESS_W)) charge_copy(u, n, i, gap);
    free(gap);
}

/* What a step copies as its uses are marked: twice around, of which the second time counts. */
static void count_copies(const struct placing *s, tess_gpu_placement *out)
{
    out->read = out->written = 0;
    for (size_t at = 0, n; at < s->uses; at += n) {
        const struct use_of *u = s->use + at;
        const uint64_t bytes = tess_tile_bytes(u->tile);
        bool on_gpu = false, in_ram = false;
        n = same_tile(s, at);
        for (size_t i = 0; i < 2 * n; i++) {
            const int mode = u[i % n].mode;
            bool *here = u[i % n].here ? &on_gpu : &in_ram, *there = u[i % n].here ? &in_ram : &on_gpu;
            bool in = u[i % n].here && (mode & TESS_R) && !on_gpu && in_ram;
            bool back = !u[i % n].here && (mode & TESS_R) && !in_ram && on_gpu;
            *here = true;
            if (mode & TESS_W) *there = false;
            if (mode & TESS_LAST) on_gpu = in_ram = false;
            if (on_gpu && (u[i % n].use->mode & TESS_AWAY)) {
                back |= !in_ram;
                on_gpu = false;
                in_ram = true;
            }
            if (i < n) continue;
            if (in) out->read += bytes;
            if (back) out->written += bytes;
        }
    }
}

/* ---- choosing ---- */

/* Bytes with places that each task uses there; the most. */
static uint64_t task_needs(const struct placing *s, uint64_t *need)
{
    uint64_t most = 0;
    for (size_t i = 0; i < s->uses; i++) {
        if (!s->use[i].here) continue;
        uint64_t *n = &need[s->use[i].task];
        *n += tess_tile_bytes(s->use[i].tile);
        if (*n > most) most = *n;
    }
    return most;
}

static int by_order(const void *a, const void *b)
{
    const tess_gap *x = a, *y = b;
    if (x->order != y->order) return (x->order < y->order) - (x->order > y->order);
    if (x->first != y->first) return (x->first < y->first) - (x->first > y->first);
    return (x->id > y->id) - (x->id < y->id);
}

/* Keeps gaps in their order as long as each of their moments has room. */
static void keep(struct placing *s, const int64_t *moment, tess_gpu_placement *out)
{
    tess_room *left = tess_room_new(moment, s->p->tasks);
    qsort(s->gaps.gap, s->gaps.gaps, sizeof *s->gaps.gap, by_order);
    for (size_t i = 0; i < s->gaps.gaps; i++) {
        tess_gap *g = &s->gaps.gap[i];
        const int64_t bytes = (int64_t)tess_tile_bytes(g->tile);
        g->kept = g->moved > 0 || g->spared;
        if (g->kept && g->count > 0 && tess_room_take(left, g->first, g->count, bytes) < 0) {
            tess_room_take(left, g->first, g->count, -bytes);
            g->kept = false;
        }
        g->use->mode = g->kept ? g->use->mode & ~TESS_AWAY : g->use->mode | TESS_AWAY;
    }
    tess_room_free(left);
    count_copies(s, out);
}

/* Keeps what saves most a byte and moment, then what the prices of moments say (gaps.c), and stays with the better. */
static void choose(struct placing *s, const int64_t *moment, uint64_t always, tess_gpu_placement *out)
{
    tess_gaps *g = &s->gaps;
    for (size_t i = 0; i < g->gaps; i++)
        g->gap[i].order =
            (double)g->gap[i].moved / ((double)tess_tile_bytes(g->gap[i].tile) * (double)(g->gap[i].count + 1));
    keep(s, moment, out);
    const uint64_t moved = out->read + out->written;
    double *worth = tess_alloc((g->gaps + 1) * sizeof *worth);
    for (size_t i = 0; i < g->gaps; i++) worth[g->gap[i].id] = g->gap[i].order;
    tess_gaps_bound(g, moment, moved - always, ROUNDS);
    keep(s, moment, out);
    if (out->read + out->written > moved) {
        for (size_t i = 0; i < g->gaps; i++) g->gap[i].order = worth[g->gap[i].id];
        keep(s, moment, out);
    }
    free(worth);
}

/* The room in which nothing has to leave, and in `out` what is copied even then: what tasks elsewhere read and write.
 */
static uint64_t room_for_all(struct placing *s, const uint64_t *need, tess_gpu_placement *out)
{
    const int64_t plenty = INT64_MAX / 4;
    int64_t *moment = tess_alloc((s->p->tasks + 1) * sizeof *moment);
    for (size_t k = 0; k < s->p->tasks; k++) moment[k] = plenty - (int64_t)need[k];
    tess_room *left = tess_room_new(moment, s->p->tasks);
    for (size_t i = 0; i < s->gaps.gaps; i++) {
        const tess_gap *g = &s->gaps.gap[i];
        const bool stays = g->moved > 0 || g->spared;
        if (stays && g->count > 0) tess_room_take(left, g->first, g->count, (int64_t)tess_tile_bytes(g->tile));
        g->use->mode = stays ? g->use->mode & ~TESS_AWAY : g->use->mode | TESS_AWAY;
    }
    count_copies(s, out);
    const int64_t least = tess_room_least(left);
    tess_room_free(left);
    free(moment);
    return (uint64_t)(plenty - least);
}

/* Activations and gradients that are nowhere else need no RAM. */
static uint64_t set_homes(const struct placing *s)
{
    uint64_t bytes = 0;
    for (size_t at = 0, n; at < s->uses; at += n) {
        tess_tile *t = s->use[at].tile;
        bool here = tess_program_drops(t);
        n = same_tile(s, at);
        for (size_t i = at; i < at + n; i++) here &= s->use[i].only && !(s->use[i].use->mode & TESS_AWAY);
        if (tess_program_drops(t)) tess_tile_set_home(t, here ? TESS_TIER_GPU : TESS_TIER_CPU);
        if (here) bytes += tess_tile_bytes(t);
    }
    return bytes;
}

/* The most that an update uses of what has no place. */
static uint64_t largest_update(const tess_program *p)
{
    uint64_t most = 0;
    for (size_t k = 0; k < p->tasks; k++) {
        uint64_t bytes = 0;
        for (unsigned i = 0; tess_task_on_gpu(&p->task[k]) == TESS_MAYBE && i < p->task[k].nuse; i++)
            if (!tess_tile_has_place(p->task[k].use[i].tile)) bytes += tess_tile_bytes(p->task[k].use[i].tile);
        if (bytes > most) most = bytes;
    }
    return most;
}

static void close(struct placing *s, uint64_t *need)
{
    free(need);
    free(s->gaps.gap);
    free(s->use);
    *s = (struct placing){.p = s->p};
}

tess_status tess_program_place_gpu(tess_program *p, uint64_t memory, uint64_t fixed, tess_gpu_placement *out)
{
    struct placing s = {.p = p};
    *out = (tess_gpu_placement){.memory = memory};
    const uint64_t updates = UPDATES * largest_update(p);
    fixed = (fixed + fixed / 4 + CHUNK) / CHUNK * CHUNK;
    out->states = updates > 0 && updates <= memory / 8 && fixed < memory / 2;
    if (out->states) fixed += updates;
    list_uses(&s, out->states);
    s.gaps = (tess_gaps){.gap = tess_alloc((s.uses + 1) * sizeof *s.gaps.gap), .moments = p->tasks};
    for (size_t i = 0, n; i < s.uses; i += n) list_gaps(&s, s.use + i, n = same_tile(&s, i));
    uint64_t *need = tess_alloc((p->tasks + 1) * sizeof *need);
    const uint64_t largest = task_needs(&s, need), all = room_for_all(&s, need, out);
    const uint64_t always = out->read + out->written;
    out->all = all + all / (BETWEEN_PART / 2);
    if (fixed + largest + largest / BETWEEN_PART > memory) {
        close(&s, need);
        return tess_error(TESS_INVALID, "memory.gpu", "leaves %s for tiles, but the largest task holds %s of them",
                          tess_human_bytes((double)(memory > fixed ? memory - fixed : 0)),
                          tess_human_bytes((double)largest));
    }
    out->room = memory - fixed;
    const bool fits = out->all <= out->room;
    if (fits) out->room = out->all;
    uint64_t spare = fits ? 0 : out->room / LATE_PART + out->room / BETWEEN_PART;
    if (spare > out->room - largest) spare = out->room - largest;
    int64_t *moment = tess_alloc((p->tasks + 1) * sizeof *moment);
    for (size_t k = 0; k < p->tasks; k++) moment[k] = (int64_t)(out->room - spare - need[k]);
    choose(&s, moment, always, out);
    for (size_t k = 0; k < p->tasks; k++) moment[k] = (int64_t)(out->room - need[k]);
    out->bound = always + tess_gaps_bound(&s.gaps, moment, out->read + out->written - always, 2 * ROUNDS);
    out->home = set_homes(&s);
    free(moment);
    close(&s, need);
    return TESS_OK;
}
