/* Chains: tasks over the same rows that follow each other become one, where a GPU holds all that the step touches at
 * once. A small model's step is a thousand tasks of some dozen microseconds, and StarPU and the launching thread need
 * as many for each; where nothing has to leave the GPU, finer tasks give the plan nothing.
 *
 * The pass deals the list out to groups. A task joins the group that made what it reads, unless that is full, or
 * something else that it waits for is in a group behind it. Updates, and the sums of squares before them, which may run
 * on either side, join the last group of their codelet on the same terms. Groups come in the order of their first
 * tasks, so each task still comes behind all that it waits for, and what adds to a tile does so in the order of the
 * list: results have the same bits.
 *
 * GPT-2 124M with 32 x 1024 tokens has 1,466 tasks of some 50 us, and 192 with chains; activations take 9.5 GiB in
 * place of 9.3. There are no chains with several ranks, whose messages would wait for a chain's end, nor with a drive,
 * states in RAM or activation checkpointing, where the plan needs single tasks. */
#include "graph/describe/node.h"
#include "graph/lower/program.h"
#include <stdlib.h>

enum { CHAIN = 10, EITHER = 12 }; /* tasks of a group, at most: half a layer, and the parameters of one */
enum { BESIDES = 4 };             /* groups of tasks that may run on either side, which others still join */

enum kind { ALONE, FOLLOWS, BESIDE };

struct group {
    enum kind kind;
    uint32_t first, last; /* tasks of the list */
    unsigned parts, tiles;
    uint32_t tile[TESS_BUNDLE_BUFFERS]; /* as the table of tiles counts them */
};

/* Of each tile: the last group that used it, that wrote it, plus 1. */
struct seen {
    uint32_t used, written;
};

static enum kind kind_of(const tess_task *t)
{
    if (t->choice || t->used || t->cl == &tess_message || t->cl == &tess_show || t->nuse > TESS_BUNDLE_BUFFERS ||
        (unsigned)t->cl->dtype >= TESS_REAL_DTYPES)
        return ALONE;
    if (t->cl->either) return BESIDE;
    return tess_gpus() > 0 && !tess_task_can_gpu(t) ? ALONE : FOLLOWS;
}

/* Whether the task may join the group, for all that is in it. */
static bool has_room(const struct group *g, const tess_program *p, size_t k, enum kind kind, const uint32_t *index)
{
    const tess_task *t = &p->task[k], *first = &p->task[g->first];
    unsigned more = 0;
    if (kind == ALONE || g->kind != kind || g->parts == (kind == BESIDE ? EITHER : CHAIN)) return false;
    if (kind == BESIDE && (t->cl != first->cl || tess_task_comes_late(t) != tess_task_comes_late(first))) return false;
    for (unsigned i = 0; i < t->nuse; i++) {
        unsigned at = 0;
        while (at < g->tiles && g->tile[at] != index[i]) at++;
        more += at == g->tiles;
    }
    return g->tiles + more <= TESS_BUNDLE_BUFFERS;
}

static void join(struct group *g, uint32_t *next, size_t k, const tess_task *t, const uint32_t *index)
{
    if (g->parts++) next[g->last] = (uint32_t)k;
    g->last = (uint32_t)k;
    for (unsigned i = 0; i < t->nuse && t->nuse <= TESS_BUNDLE_BUFFERS; i++) {
        unsigned at = 0;
        while (at < g->tiles && g->tile[at] != index[i]) at++;
        if (at == g->tiles) g->tile[g->tiles++] = index[i];
    }
}

/* Deals the tasks out; returns how many groups there are. */
static size_t deal_out(const tess_program *p, const uint32_t *index, size_t tiles, struct group *group, uint32_t *next)
{
    TESS_FREED struct seen *seen = tess_alloc((tiles + 1) * sizeof *seen);
    uint32_t groups = 0, last[BESIDES] = {0}; /* groups of tasks that may run on either side, the last first */
    for (size_t k = 0; k < p->tasks; index += p->task[k++].nuse) {
        const tess_task *t = &p->task[k];
        const enum kind kind = kind_of(t);
        uint32_t need = 0, follows = 0;
        for (unsigned i = 0; i < t->nuse; i++) {
            const struct seen *s = &seen[index[i]];
            const uint32_t waits = t->use[i].mode & TESS_W ? s->used : s->written;
            if (t->use[i].mode & TESS_SCRATCH) continue;
            if (waits > need) need = waits;
            if ((t->use[i].mode & TESS_R) && tess_tile_role(t->use[i].tile) == TESS_ROLE_ACTIVATION &&
                s->written > follows)
                follows = s->written;
        }
        uint32_t at = follows;
        for (int i = 0; kind == BESIDE && i < BESIDES; i++) {
            at = last[i];
            if (at && p->task[group[at - 1].first].cl == t->cl) break;
        }
        if (!at || at < need || !has_room(&group[at - 1], p, k, kind, index)) {
            at = ++groups;
            group[at - 1] = (struct group){.kind = kind, .first = (uint32_t)k};
            for (int i = BESIDES - 1; kind == BESIDE && i > 0; i--) last[i] = last[i - 1];
            if (kind == BESIDE) last[0] = at;
        }
        join(&group[at - 1], next, k, t, index);
        for (unsigned i = 0; i < t->nuse; i++) {
            struct seen *s = &seen[index[i]];
            if (t->use[i].mode & TESS_SCRATCH) continue;
            if (s->used < at) s->used = at;
            if ((t->use[i].mode & TESS_W) && s->written < at) s->written = at;
        }
    }
    return groups;
}

/* What all of a group does to a tile: where the first to touch it writes it, what was there does not count. */
static int mode_of(const tess_program *p, const struct group *g, const uint32_t *next, const tess_tile *tile)
{
    int first = 0, all = 0;
    for (uint32_t k = g->first;; k = next[k]) {
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            const tess_use *use = &p->task[k].use[i];
            if (use->tile != tile) continue;
            if (!all) first = use->mode & (TESS_RW | TESS_SCRATCH);
            all |= use->mode & (TESS_RW | TESS_SCRATCH);
        }
        if (k == g->last) break;
    }
    return first & TESS_R ? all : all & TESS_SCRATCH ? TESS_SCRATCH : TESS_W;
}

/* The group as one task. */
static tess_task task_of(const tess_program *p, const struct group *g, const uint32_t *next, const size_t *first_use,
                         const uint32_t *index, tess_use **use)
{
    tess_bundle_part *part = tess_arena_get(p->arena, g->parts * sizeof *part);
    tess_bundle_arg *a = tess_arena_get(p->arena, sizeof *a);
    const tess_task *first = &p->task[g->first];
    *use = tess_arena_get(p->arena, g->tiles * sizeof **use);
    uint32_t k = g->first;
    for (unsigned n = 0; n < g->parts; n++, k = next[k]) {
        const tess_task *t = &p->task[k];
        uint16_t *buf = tess_arena_get(p->arena, (t->nuse + 1) * sizeof *buf);
        for (unsigned i = 0; i < t->nuse; i++) {
            unsigned at = 0;
            while (g->tile[at] != index[first_use[k] + i]) at++;
            buf[i] = (uint16_t)at;
            if (!(*use)[at].tile) (*use)[at] = (tess_use){t->use[i].tile, mode_of(p, g, next, t->use[i].tile)};
        }
        part[n] = (tess_bundle_part){t->cl, t->arg, buf, t->nuse};
    }
    *a = (tess_bundle_arg){g->parts, part};
    return (tess_task){.cl = &(g->kind == BESIDE ? tess_bundle_either : tess_bundle)[first->cl->dtype],
                       .arg = a,
                       .use = *use,
                       .nuse = g->tiles};
}

static uint64_t bytes_of(const tess_program *p, const uint32_t *index, size_t tiles)
{
    TESS_FREED bool *counted = tess_alloc(tiles + 1);
    uint64_t bytes = 0;
    for (size_t k = 0; k < p->tasks; index += p->task[k++].nuse)
        for (unsigned i = 0; i < p->task[k].nuse; i++) {
            if (!counted[index[i]]) bytes += tess_tile_bytes(p->task[k].use[i].tile);
            counted[index[i]] = true;
        }
    return bytes;
}

void tess_program_chain(tess_program *p, uint64_t room)
{
    size_t tiles, n = 0, at = 0;
    TESS_FREED uint32_t *index = tess_program_index(p, &tiles);
    if (bytes_of(p, index, tiles) <= room && p->tasks < UINT32_MAX) {
        struct group *group = tess_alloc((p->tasks + 1) * sizeof *group);
        uint32_t *next = tess_alloc((p->tasks + 1) * sizeof *next);
        size_t *first_use = tess_alloc((p->tasks + 1) * sizeof *first_use);
        tess_task *task = tess_alloc((p->tasks + 1) * sizeof *task);
        tess_use **use = tess_alloc((p->tasks + 1) * sizeof *use);
        tess_origin *origin = tess_alloc((p->tasks + 1) * sizeof *origin);
        for (size_t k = 0; k < p->tasks; at += p->task[k++].nuse) first_use[k] = at;
        const size_t groups = deal_out(p, index, tiles, group, next);
        for (; n < groups; n++) {
            const uint32_t k = group[n].first;
            task[n] = p->task[k], use[n] = p->use[k], origin[n] = p->origin[k];
            if (group[n].parts > 1) task[n] = task_of(p, &group[n], next, first_use, index, &use[n]);
            task[n].order = (uint32_t)n;
        }
        free(p->task), free(p->use), free(p->origin), free(group), free(next), free(first_use);
        p->task = task, p->use = use, p->origin = origin, p->tasks = n, p->room = p->tasks + 1;
    }
}
