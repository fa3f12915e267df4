/* Fusion: two tasks that become one, so that what is between them stays in a product's epilogue, or in a cache, and may
 * need no tile.
 *
 * Which tasks can be one the ops say (tess_fusion; see graph/ops/gelu.c). The pass looks at tiles alone: the second
 * task moves up to the first, which is right where nothing between them touches what it writes, or writes what it
 * reads. So it fuses whatever made the list: other readers of pre, weights of several tiles, gradients with several
 * sources, recomputation, messages are all uses of tiles. */
#include "graph/describe/node.h"
#include "graph/lower/program.h"
#include <stdlib.h>

enum { BETWEEN = 2 }; /* the place of what is between them in the first's uses; it is the second's first */

static const tess_op *const ops[] = {
#define TESS_OP(name) &tess_op_##name,
#include "graph/ops.def"
};

/* The pair whose second task this may be. */
static const tess_fusion *pair_of(const tess_task *t)
{
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        for (const tess_fusion *f = ops[i]->fusions; f && f->first; f++)
            if (t->cl == &f->second[t->cl->dtype]) return f;
    return NULL;
}

/* Of each tile, by its place in the table of tiles: the task that used it last, that wrote it last, plus 1. */
struct seen {
    size_t used, written;
};

/* Of each task: whether its first tile is not read after it before it is written. */
static bool *find_dead(const tess_program *p, const uint32_t *index, size_t tiles)
{
    bool *live = tess_alloc(tiles + 1), *dead = tess_alloc(p->tasks + 1);
    for (size_t k = 0; k < p->tasks; k++) index += p->task[k].nuse;
    for (size_t k = p->tasks; k-- > 0;) {
        const tess_task *t = &p->task[k];
        index -= t->nuse;
        if (t->nuse) dead[k] = !live[index[0]] && tess_tile_role(t->use[0].tile) == TESS_ROLE_ACTIVATION;
        for (unsigned i = 0; i < t->nuse; i++) live[index[i]] = t->use[i].mode & TESS_R;
    }
    free(live);
    return dead;
}

/* The place, plus 1, of the task that this one, the second of a pair, can join; 0: of none. */
static size_t find_first(const tess_program *p, const tess_fusion *pair, const tess_task *second, const uint32_t *index,
                         const struct seen *seen)
{
    const struct seen *between = &seen[index[0]];
    const size_t at = between->written;
    if (!at || p->task[at - 1].cl != &pair->first[second->cl->dtype]) return 0;
    if (p->task[at - 1].use[BETWEEN].mode != TESS_W || (!pair->kept && between->used > at)) return 0;
    for (unsigned i = 1; i < second->nuse; i++) {
        if (second->use[i].mode == TESS_RW) return 0;
        const struct seen *s = &seen[index[i]];
        if ((second->use[i].mode == TESS_W ? s->used : s->written) >= at) return 0;
    }
    return at;
}

static void join(tess_program *p, const tess_fusion *pair, size_t at, const tess_task *second)
{
    tess_task *first = &p->task[at];
    tess_use *use = tess_arena_get(p->arena, (first->nuse + second->nuse) * sizeof *use);
    void *arg = pair->join ? tess_arena_get(p->arena, pair->bytes) : NULL;
    if (arg) pair->join(arg, first->arg, second->arg);
    unsigned n = 0;
    for (unsigned i = 0; i < (pair->kept ? BETWEEN + 1 : BETWEEN); i++) use[n++] = first->use[i];
    for (unsigned i = 1; i < second->nuse; i++) use[n++] = second->use[i];
    for (unsigned i = BETWEEN + 1; i < first->nuse; i++) use[n++] = first->use[i];
    first->cl = &pair->both[second->cl->dtype], first->arg = arg ? arg : second->arg, first->use = use, first->nuse = n;
    p->use[at] = use;
}

static void remove_joined(tess_program *p, const bool *joined)
{
    size_t n = 0;
    for (size_t k = 0; k < p->tasks; k++) {
        if (joined[k]) continue;
        p->task[n] = p->task[k];
        p->task[n].order = (uint32_t)n;
        p->use[n] = p->use[k];
        p->origin[n++] = p->origin[k];
    }
    p->tasks = n;
}

/* The program's flops and bytes stay what they are: both codelets' costs are in the one's. */
void tess_program_fuse(tess_program *p)
{
    size_t tiles;
    uint32_t *index = tess_program_index(p, &tiles), *at = index;
    TESS_FREED struct seen *seen = tess_alloc((tiles + 1) * sizeof *seen);
    TESS_FREED bool *dead = find_dead(p, index, tiles), *joined = tess_alloc(p->tasks + 1);
    for (size_t k = 0, nuse; k < p->tasks; k++, at += nuse) {
        const tess_task *t = &p->task[k];
        const tess_fusion *pair = pair_of(t);
        const size_t first = pair && (pair->kept || dead[k]) ? find_first(p, pair, t, at, seen) : 0;
        const size_t place = first ? first : k + 1;
        nuse = t->nuse;
        for (unsigned i = 0; i < nuse; i++) {
            struct seen *s = &seen[at[i]];
            if (s->used < place) s->used = place;
            if (t->use[i].mode & TESS_W) s->written = place;
        }
        if (!first) continue;
        join(p, pair, first - 1, t);
        joined[k] = true;
    }
    remove_joined(p, joined);
    free(index);
}
