/* What the ranks of a step send each other, as tasks of their programs. Every rank lowers its own program, and those
 * that meet in a message emit it at the same place, so there is nothing to negotiate. What goes both ways at such a
 * place is one task: messages may then run strictly one after the other, each as soon as the ranks in it have come to
 * it. */
#include "graph/lower/parcels_impl.h"
#include <stdlib.h>

unsigned tess_lower_data_lane(const tess_lower *L, bool near, bool sum)
{
    const bool machines = tess_grid_near(L->grid, L->g->near) > 1;
    return (L->grid->tensor > 1 ? TESS_LANE_DATA : TESS_LANE_STEP) + (near && machines ? 2 : 0) + sum;
}

/* For one more; there are twice as many places each time that they run out. */
static void *enlarge(void *of, unsigned n, size_t size)
{
    return n & (n - 1) ? of : tess_realloc(of, (n ? 2 * n : 1) * size);
}

unsigned tess_parcel_use(tess_parcel *m, tess_use use)
{
    m->use = enlarge(m->use, m->uses, sizeof use);
    m->use[m->uses] = use;
    return m->uses++;
}

void tess_parcel_span(tess_parcel *m, tess_span span)
{
    m->span = enlarge(m->span, m->spans, sizeof span);
    m->span[m->spans++] = span;
}

void tess_parcel_add(tess_parcel *m, tess_use use, int peer, int tag, bool sends, size_t offset, size_t bytes)
{
    if (bytes == 0) return;
    if (m->uses == 0 || m->use[m->uses - 1].tile != use.tile) tess_parcel_use(m, use);
    tess_parcel_span(m, (tess_span){m->uses - 1, peer, tag, sends, offset, bytes, NULL});
}

const tess_message_arg *tess_parcel_send(tess_lower *L, tess_parcel *m)
{
    const tess_message_arg *a = NULL;
    if (m->spans) {
        const tess_span *span = tess_arg_copy(L, m->span, m->spans * sizeof *span);
        a = TESS_ARG(L, tess_message_arg, .spans = m->spans, .lane = L->lane, .span = span, .rank = L->grid->rank);
        tess_emit(L, &tess_message, a, m->use, m->uses);
    }
    free(m->span);
    free(m->use);
    return a;
}

void tess_lower_message(tess_lower *L, tess_use use, int peer, int tag, bool sends)
{
    tess_parcel m = {0};
    tess_parcel_add(&m, use, peer, tag, sends, 0, tess_tile_bytes(use.tile));
    tess_parcel_send(L, &m);
}
