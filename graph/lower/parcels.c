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

tess_parcel tess_parcel_begin(tess_lower *L, int spans, int uses)
{
    return (tess_parcel){.span = tess_arena_get(L->p->arena, (size_t)spans * sizeof(tess_span)),
                         .use = tess_alloc((size_t)uses * sizeof(tess_use))};
}

void tess_parcel_add(tess_parcel *m, tess_use use, int peer, int tag, bool sends, size_t offset, size_t bytes)
{
    if (bytes == 0) return;
    if (m->uses == 0 || m->use[m->uses - 1].tile != use.tile) m->use[m->uses++] = use;
    m->span[m->spans++] = (tess_span){m->uses - 1, peer, tag, sends, offset, bytes, NULL};
}

void tess_parcel_send(tess_lower *L, tess_parcel *m)
{
    tess_message_arg *a =
        TESS_ARG(L, tess_message_arg, .spans = m->spans, .lane = L->lane, .span = m->span, .rank = L->grid->rank);
    if (m->spans > 0) tess_emit(L, &tess_message, a, m->use, m->uses);
    free(m->use);
}

void tess_lower_message(tess_lower *L, tess_use use, int peer, int tag, bool sends)
{
    tess_parcel m = tess_parcel_begin(L, 1, 1);
    tess_parcel_add(&m, use, peer, tag, sends, 0, tess_tile_bytes(use.tile));
    tess_parcel_send(L, &m);
}
