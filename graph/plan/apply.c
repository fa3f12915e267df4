/* Marks: where each tile lives and after which uses it leaves, as a value, and once it is decided, in the program. */
#include "graph/lower/program.h"
#include "graph/plan/plan.h"
#include <stdlib.h>
#include <string.h>

tess_marks *tess_marks_new(const tess_uses *u)
{
    tess_marks *m = tess_alloc(sizeof *m);
    m->home = tess_alloc((u->tiles + 1) * sizeof *m->home);
    m->leaves = tess_alloc((u->uses + 1) * sizeof *m->leaves);
    for (size_t t = 0; t < u->tiles; t++) m->home[t] = (uint8_t)u->tile[t].home;
    return m;
}

void tess_marks_free(tess_marks *m)
{
    if (!m) return;
    free(m->home);
    free(m->leaves);
    free(m);
}

static const int mark_of[] = {[TESS_TIER_GPU] = TESS_LEAVES_GPU, [TESS_TIER_CPU] = TESS_LEAVES_RAM};

/* Of the uses by which a task names a tile the last one has the mark. */
static bool named_again(const tess_uses *u, size_t at, size_t end)
{
    for (size_t i = at + 1; i < end; i++)
        if (u->named[i] == u->named[at]) return true;
    return false;
}

void tess_marks_apply(tess_program *p, const tess_uses *u, const tess_marks *m, tess_tier level)
{
    for (size_t k = 0; k < p->tasks; k++) {
        const size_t first = u->task[k].first, end = u->task[k + 1].first;
        for (size_t at = first; at < end; at++) {
            tess_use *use = &p->use[k][at - first];
            const uint32_t i = u->named[at];
            const bool leaves = (m->leaves[i] >> level & 1) && !named_again(u, at, end);
            use->mode = (use->mode & ~mark_of[level]) | (leaves ? mark_of[level] : 0);
            tess_tile_set_home(use->tile, (tess_tier)m->home[u->use[i].tile]);
        }
    }
}

tess_marks *tess_marks_read(const tess_program *p, const tess_uses *u)
{
    tess_marks *m = tess_marks_new(u);
    for (size_t k = 0; k < p->tasks; k++)
        for (unsigned i = 0; i < p->task[k].nuse; i++)
            for (tess_tier t = TESS_TIER_GPU; t < TESS_TIER_DISK; t++)
                if (p->task[k].use[i].mode & mark_of[t]) m->leaves[u->named[u->task[k].first + i]] |= (uint8_t)(1 << t);
    return m;
}
