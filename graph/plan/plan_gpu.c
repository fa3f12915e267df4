/* A GPU's memory above RAM: the level, and which of the optimizer's states live there.
 *
 * Other than in RAM, not every task is there. The optimizer's updates are where their states live: on the GPU, which is
 * their home as far as it has room that nothing else needs, or with the cores. So what is copied is what the plan
 * counts: of an update by the cores its gradient, and the weight that it makes.
 *
 * What StarPU would do by itself is to let go what was not used for longest, which in a step that goes down and up
 * again, and then repeats, is what it needs next. */
#include "graph/plan/plan.h"
#include <stdlib.h>

/* Parts of the room: for tiles that come early and leave late, and for what lies unused between pieces of many sizes.
 */
enum { LATE_PART = 32, BETWEEN_PART = 36 };
enum { ALIGNED = 512 };                   /* where tiles begin: what a small one takes beside its bytes */
enum { ROUNDS = 200, OF_VERY_MANY = 40 }; /* of the prices' search */
/* In which StarPU takes the GPU's memory for what is small. */
enum { CHUNK = 32 << 20 };
/* A copy of so few bytes takes as long as the link needs to begin: tiles of biases and gains stay, where all of them
 * are a small part of the room. */
enum { SMALL = 64 << 10, SMALL_PART = 64 };

/* Returns the room that is enough for `bytes`, in whatever order they come and go. */
static uint64_t roomy(uint64_t bytes)
{
    return bytes + bytes / (BETWEEN_PART / 2);
}

static bool is_state(const tess_plan_tile *t)
{
    return t->role == TESS_ROLE_MASTER || t->role == TESS_ROLE_MOMENT;
}

/* ---- the optimizer's states ---- */

/* Bytes of states that a task uses and that do not live on the GPU; with `house` they do from now on. */
static uint64_t states_of(const tess_uses *u, size_t k, uint8_t *home, bool house)
{
    uint64_t bytes = 0;
    for (size_t at = u->task[k].first; at < u->task[k + 1].first; at++) {
        const uint32_t t = u->use[u->named[at]].tile;
        if (!is_state(&u->tile[t]) || home[t] == TESS_TIER_GPU) continue;
        bytes += u->tile[t].bytes;
        if (house) home[t] = TESS_TIER_GPU;
    }
    return bytes;
}

/* The bytes of states that do not live on the GPU. */
static uint64_t count_states(const tess_uses *u, uint8_t *home)
{
    uint64_t all = 0;
    for (size_t k = 0; k < u->tasks; k++)
        if (u->task[k].where == TESS_RUNS_ON_EITHER) all += states_of(u, k, home, false);
    return all;
}

/* Houses a share of the states on the GPU, in `room` bytes that nothing else needs: the states that the list updates
 * last, which the next step waits for. */
static void house_states(const tess_uses *u, uint8_t *home, double share, uint64_t room)
{
    const uint64_t wanted = (uint64_t)(share * (double)roomy(count_states(u, home)));
    if (wanted < room) room = wanted;
    for (size_t k = u->tasks; k-- > 0;) {
        if (u->task[k].where != TESS_RUNS_ON_EITHER) continue;
        const uint64_t bytes = roomy(states_of(u, k, home, false));
        if (bytes > room) continue;
        room -= bytes;
        states_of(u, k, home, true);
    }
}

/* ---- the level ---- */

/* Where the task is. */
static uint8_t used_by(const tess_uses *u, size_t k, uint8_t *home, const tess_gpu_conf *conf)
{
    switch (u->task[k].where) {
    case TESS_RUNS_ON_CPU:
        return TESS_USED_ELSEWHERE;
    case TESS_IS_MESSAGE:
        return conf->messages ? TESS_USED_HERE : TESS_USED_ELSEWHERE;
    case TESS_RUNS_ON_EITHER:
        return states_of(u, k, home, false) ? TESS_USED_ELSEWHERE : TESS_USED_HERE;
    case TESS_RUNS_ON_GPU:
        break;
    }
    return TESS_USED_HERE;
}

/* The bytes up to which a tile is small. */
static uint64_t small_bytes(const tess_uses *u, const tess_level *l, uint64_t memory)
{
    uint64_t sum = 0;
    for (size_t t = 0; t < u->tiles; t++)
        if (l->has[t] && u->tile[t].bytes <= SMALL) sum += u->tile[t].bytes;
    return sum <= memory / SMALL_PART ? SMALL : 0;
}

/* States have places only where they live; what outlasts the list and was given a home there stays out of this plan. */
static void set_level(const tess_uses *u, const tess_gpu_conf *conf, tess_marks *m, tess_level *l)
{
    for (size_t t = 0; t < u->tiles; t++) {
        const tess_plan_tile *tile = &u->tile[t];
        const bool at_home = m->home[t] == TESS_TIER_GPU;
        l->has[t] = tile->flows && (at_home || !is_state(tile)) && (conf->all || !tile->lasts || !at_home);
    }
    const uint64_t small = small_bytes(u, l, conf->memory);
    TESS_FREED uint8_t *used = tess_alloc(u->tasks + 1);
    for (size_t k = 0; k < u->tasks; k++) used[k] = used_by(u, k, m->home, conf);
    for (size_t i = 0; i < u->uses; i++) {
        const uint32_t t = u->use[i].tile;
        l->used[i] = used[u->use[i].task];
        const bool stays = (conf->all && m->home[t] == TESS_TIER_GPU) || u->tile[t].bytes <= small;
        l->leave[i] = stays ? TESS_MUST_STAY : TESS_MAY_LEAVE;
    }
}

/* ---- the plan ---- */

/* Homes for states, where all else fits; then the level as it is with them, whose room is left to be said. */
static void prepare(const tess_uses *u, const tess_gpu_conf *conf, uint64_t fixed, tess_marks *m, tess_level *l,
                    tess_gpu_placement *out)
{
    tess_placed placed;
    for (size_t t = 0; conf->all && t < u->tiles; t++) /* an earlier plan's homes are none */
        if (m->home[t] == TESS_TIER_GPU) m->home[t] = TESS_TIER_CPU;
    if (conf->all) {
        set_level(u, conf, m, l);
        out->all = roomy(tess_level_whole(u, l, m, &placed));
        if (fixed + out->all < out->memory) house_states(u, m->home, conf->states, out->memory - fixed - out->all);
    }
    out->needed = fixed;
    out->room = out->memory > fixed ? out->memory - fixed : 0;
    set_level(u, conf, m, l);
}

static tess_status place(const tess_uses *u, tess_level *l, uint64_t largest, tess_marks *m, tess_gpu_placement *out)
{
    tess_placed placed;
    out->needed += largest + largest / BETWEEN_PART + (1 << 20);
    out->all = roomy(tess_level_whole(u, l, m, &placed));
    if (out->needed > out->memory)
        return tess_error(TESS_INVALID, "GPU", "its memory leaves %s for tiles, but the largest task holds %s of them",
                          tess_human_bytes((double)out->room), tess_human_bytes((double)largest));
    const bool fits = out->all <= out->room;
    const uint64_t wide = out->all + out->all / 4 + ALIGNED * u->tiles; /* none waits for a place */
    if (fits && wide < out->room) out->room = wide;
    l->room = out->room;
    if (!fits) l->slack[0] = l->room / LATE_PART + l->room / BETWEEN_PART;
    if (l->slack[0] > l->room - largest) l->slack[0] = l->room - largest;
    tess_level_place(u, l, m, &placed);
    out->read = placed.read;
    out->written = placed.written;
    out->bound = placed.bound;
    out->home = placed.lives;
    return TESS_OK;
}

tess_status tess_plan_gpu(const tess_uses *u, const tess_gpu_conf *conf, uint64_t fixed, tess_marks *m,
                          tess_gpu_placement *out)
{
    const bool many = u->tasks >= TESS_VERY_MANY_TASKS;
    tess_level l = {.homes = conf->all,
                    .rounds = many ? OF_VERY_MANY : ROUNDS,
                    .last_rounds = many ? OF_VERY_MANY : 2 * ROUNDS, /* for the bound alone, which is said */
                    .slacks = 1,
                    .refuse = conf->refuse};
    *out = (tess_gpu_placement){.memory = conf->memory};
    tess_level_init(u, TESS_TIER_GPU, &l);
    prepare(u, conf, conf->all ? (fixed + fixed / 4 + CHUNK) / CHUNK * CHUNK : 0, m, &l, out);
    uint64_t *need = tess_alloc((u->tasks + 1) * sizeof *need);
    const tess_status status = place(u, &l, tess_level_needs(u, &l, m, need), m, out);
    free(need);
    tess_level_free(&l);
    return status;
}
