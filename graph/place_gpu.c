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
#include <math.h>
#include <stdlib.h>

/* Parts of the room: for tiles that come early and leave late, and for what lies unused between pieces of many sizes.
 * Updates for which there must be room beside it, since StarPU loads some ahead. */
enum { LATE_PART = 16, BETWEEN_PART = 48, UPDATES = 5 };

/* The room that so many bytes need for sure, whatever the order in which they come and go. */
static uint64_t roomy(uint64_t bytes)
{
    return bytes + bytes / (BETWEEN_PART / 2);
}

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
    bool all;      /* tiles that outlast the list get homes */
    bool messages; /* they take tiles there */
    struct use_of *use;
    size_t uses;
    tess_gaps gaps;          /* without their uses */
    uint64_t *need, largest; /* bytes with places that each task uses there; the most */
    uint64_t always;         /* bytes that are copied though nothing leaves */
};

static int by_tile_and_task(const void *a, const void *b)
{
    const struct use_of *x = a, *y = b;
    if (x->tile != y->tile) return (x->tile > y->tile) - (x->tile < y->tile);
    if (x->task != y->task) return (x->task > y->task) - (x->task < y->task);
    return (x->use > y->use) - (x->use < y->use);
}

static bool is_here(const struct placing *s, const tess_task *t, bool states)
{
    if (t->cl == &tess_message) return s->messages;
    const tess_gpu_part part = tess_task_on_gpu(t);
    return part == TESS_ALWAYS || (part == TESS_MAYBE && states);
}

/* What outlasts the list and has its home there stays out of this plan. */
static bool is_placed(const struct placing *s, const tess_tile *t)
{
    const bool home = !s->all && !tess_program_drops(t) && tess_tile_home(t) == TESS_TIER_GPU;
    return tess_tile_has_place(t) && !home;
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
            if (is_placed(s, u->tile))
                s->use[n++] = (struct use_of){
                    u->tile, k, u, u->mode, is_here(s, &p->task[k], states), is_here(s, &p->task[k], false)};
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

static void list_needs(struct placing *s)
{
    s->need = tess_alloc((s->p->tasks + 1) * sizeof *s->need);
    for (size_t i = 0; i < s->uses; i++) {
        if (!s->use[i].here) continue;
        uint64_t *n = &s->need[s->use[i].task];
        *n += tess_tile_bytes(s->use[i].tile);
        if (*n > s->largest) s->largest = *n;
    }
}

static int by_order(const void *a, const void *b)
{
    const tess_gap *x = a, *y = b;
    if (x->order != y->order) return (x->order < y->order) - (x->order > y->order);
    if (x->first != y->first) return (x->first < y->first) - (x->first > y->first);
    return (x->id > y->id) - (x->id < y->id);
}

/* Keeps gaps in their order as long as each of their moments has room; those of what lives there, whatever there is. */
static void keep(struct placing *s, const int64_t *moment, tess_gpu_placement *out)
{
    tess_room *left = tess_room_new(moment, s->p->tasks);
    for (size_t i = 0; i < s->gaps.gaps; i++)
        if (s->all && tess_tile_home(s->gaps.gap[i].tile) == TESS_TIER_GPU) s->gaps.gap[i].order = INFINITY;
    qsort(s->gaps.gap, s->gaps.gaps, sizeof *s->gaps.gap, by_order);
    for (size_t i = 0; i < s->gaps.gaps; i++) {
        tess_gap *g = &s->gaps.gap[i];
        const int64_t bytes = (int64_t)tess_tile_bytes(g->tile);
        g->kept = g->moved > 0 || g->spared;
        if (g->kept && g->count > 0 && tess_room_take(left, g->first, g->count, bytes) < 0 && g->order < INFINITY) {
            tess_room_take(left, g->first, g->count, -bytes);
            g->kept = false;
        }
        g->use->mode = g->kept ? g->use->mode & ~TESS_AWAY : g->use->mode | TESS_AWAY;
    }
    tess_room_free(left);
    count_copies(s, out);
}

/* Keeps what saves most a byte and moment, then what the prices of moments say (gaps.c), and stays with the better. */
static void choose(struct placing *s, const int64_t *moment, tess_gpu_placement *out)
{
    tess_gaps *g = &s->gaps;
    for (size_t i = 0; i < g->gaps; i++)
        g->gap[i].order =
            (double)g->gap[i].moved / ((double)tess_tile_bytes(g->gap[i].tile) * (double)(g->gap[i].count + 1));
    keep(s, moment, out);
    const uint64_t moved = out->read + out->written;
    double *worth = tess_alloc((g->gaps + 1) * sizeof *worth);
    for (size_t i = 0; i < g->gaps; i++) worth[g->gap[i].id] = g->gap[i].order;
    tess_gaps_bound(g, moment, moved - s->always, ROUNDS);
    keep(s, moment, out);
    if (out->read + out->written > moved) {
        for (size_t i = 0; i < g->gaps; i++) g->gap[i].order = worth[g->gap[i].id];
        keep(s, moment, out);
    }
    free(worth);
}

/* The room in which nothing has to leave, and in `out` what is copied even then: what tasks elsewhere read and write.
 */
static uint64_t room_for_all(struct placing *s, tess_gpu_placement *out)
{
    const int64_t plenty = INT64_MAX / 4;
    int64_t *moment = tess_alloc((s->p->tasks + 1) * sizeof *moment);
    for (size_t k = 0; k < s->p->tasks; k++) moment[k] = plenty - (int64_t)s->need[k];
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

/* What is never elsewhere lives on the GPU and needs no RAM; the bytes of what outlasts the list. */
static uint64_t set_homes(const struct placing *s)
{
    uint64_t bytes = 0;
    for (size_t at = 0, n; at < s->uses; at += n) {
        tess_tile *t = s->use[at].tile;
        bool here = true;
        n = same_tile(s, at);
        if (!s->all && !tess_program_drops(t)) continue;
        for (size_t i = at; i < at + n; i++) here &= s->use[i].only && !(s->use[i].use->mode & TESS_AWAY);
        tess_tile_set_home(t, here ? TESS_TIER_GPU : TESS_TIER_CPU);
        if (here && !tess_program_drops(t)) bytes += tess_tile_bytes(t);
    }
    return bytes;
}

static bool is_state(const tess_tile *t)
{
    return tess_tile_role(t) == TESS_ROLE_MASTER || tess_tile_role(t) == TESS_ROLE_MOMENT;
}

/* Bytes of states that an update uses and that do not live on the GPU; with `home` they do from now on. */
static uint64_t states_of(const tess_task *t, bool home)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < t->nuse; i++) {
        tess_tile *tile = t->use[i].tile;
        if (!is_state(tile) || tess_tile_home(tile) == TESS_TIER_GPU) continue;
        bytes += tess_tile_bytes(tile);
        if (home) tess_tile_set_home(tile, TESS_TIER_GPU);
    }
    return bytes;
}

/* States that do not live on the GPU: of all updates, and the most that one uses. */
static uint64_t count_states(const tess_program *p, uint64_t *most)
{
    uint64_t all = *most = 0;
    for (size_t k = 0; k < p->tasks; k++) {
        if (tess_task_on_gpu(&p->task[k]) != TESS_MAYBE) continue;
        const uint64_t bytes = states_of(&p->task[k], false);
        all += bytes;
        if (bytes > *most) *most = bytes;
    }
    return all;
}

/* A share of the states live on the GPU, in so many bytes that nothing else needs there, beside those in which StarPU
 * moves the others: those that the list updates last, which the next step waits for. */
static void house_states(tess_program *p, double share, uint64_t room, uint64_t beside)
{
    uint64_t most;
    const uint64_t all = roomy(count_states(p, &most)), wanted = (uint64_t)(share * (double)all);
    if (all > room || wanted < all) room = room > beside ? room - beside : 0;
    if (wanted < room) room = wanted;
    for (size_t k = p->tasks; k-- > 0;) {
        if (tess_task_on_gpu(&p->task[k]) != TESS_MAYBE) continue;
        const uint64_t bytes = roomy(states_of(&p->task[k], false));
        if (bytes > room) continue;
        room -= bytes;
        states_of(&p->task[k], true);
    }
}

/* What StarPU keeps for updates that it moves; 0 if they do not run on the GPU. */
static uint64_t for_updates(const tess_program *p, uint64_t memory)
{
    uint64_t most;
    count_states(p, &most);
    return UPDATES * most <= memory / 8 ? UPDATES * most : 0;
}

/* As if nothing had a home yet. */
static void forget_homes(const tess_program *p)
{
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++)
            if (tess_tile_home(p->task[k].use[i].tile) == TESS_TIER_GPU)
                tess_tile_set_home(p->task[k].use[i].tile, TESS_TIER_CPU);
}

/* The list's uses and gaps, with updates as the GPU's or not. */
static void list_all(struct placing *s, bool states, tess_gpu_placement *out)
{
    *s = (struct placing){.p = s->p, .all = s->all, .messages = s->messages};
    list_uses(s, states);
    s->gaps = (tess_gaps){.gap = tess_alloc((s->uses + 1) * sizeof *s->gaps.gap), .moments = s->p->tasks};
    for (size_t i = 0, n; i < s->uses; i += n) list_gaps(s, s->use + i, n = same_tile(s, i));
    list_needs(s);
    out->all = roomy(room_for_all(s, out));
    s->always = out->read + out->written;
}

static void forget(struct placing *s)
{
    free(s->need);
    free(s->gaps.gap);
    free(s->use);
}

/* Homes for states, where all else fits; then the list as it is with them. */
static void prepare(struct placing *s, double states, uint64_t fixed, tess_gpu_placement *out)
{
    if (s->all) forget_homes(s->p);
    uint64_t beside = for_updates(s->p, out->memory);
    if (s->all) {
        list_all(s, true, out);
        forget(s);
        if (fixed + out->all < out->memory) house_states(s->p, states, out->memory - fixed - out->all, beside);
        const uint64_t left = for_updates(s->p, out->memory);
        beside = left <= beside ? left : 0;
    }
    out->states = beside > 0;
    out->needed = fixed + beside;
    out->room = out->memory > out->needed ? out->memory - out->needed : 0;
    list_all(s, out->states, out);
}

tess_status tess_program_place_gpu(tess_program *p, const tess_gpu_conf *conf, uint64_t fixed, tess_gpu_placement *out)
{
    struct placing s = {.p = p, .all = conf->all, .messages = conf->messages};
    *out = (tess_gpu_placement){.memory = conf->memory};
    prepare(&s, conf->states, conf->all ? (fixed + fixed / 4 + CHUNK) / CHUNK * CHUNK : 0, out);
    out->needed += s.largest + s.largest / BETWEEN_PART + (1 << 20);
    if (out->needed > out->memory) {
        forget(&s);
        return tess_error(TESS_INVALID, "GPU", "its memory leaves %s for tiles, but the largest task holds %s of them",
                          tess_human_bytes((double)out->room), tess_human_bytes((double)s.largest));
    }
    const bool fits = out->all <= out->room;
    if (fits && out->all + out->all / 4 < out->room) out->room = out->all + out->all / 4; /* none waits for a place */
    uint64_t spare = fits ? 0 : out->room / LATE_PART + out->room / BETWEEN_PART;
    if (spare > out->room - s.largest) spare = out->room - s.largest;
    int64_t *moment = tess_alloc((p->tasks + 1) * sizeof *moment);
    for (size_t k = 0; k < p->tasks; k++) moment[k] = (int64_t)(out->room - spare - s.need[k]);
    choose(&s, moment, out);
    for (size_t k = 0; k < p->tasks; k++) moment[k] += (int64_t)spare;
    out->bound = s.always + tess_gaps_bound(&s.gaps, moment, out->read + out->written - s.always, 2 * ROUNDS);
    out->home = set_homes(&s);
    free(moment);
    forget(&s);
    return TESS_OK;
}
