/* any_gather, any_scatter: rows of a table, and slices that overlap, some of them outside. */
#include "tests/ops/formula.h"

/* Slices of a matrix (rows, columns) of x, which begin where indices say. */
static void slices(int64_t places, int64_t rows, int64_t columns, int64_t high, int64_t wide, bool both, bool clip,
                   tess_scattering fn, tess_element e, bool scatters, bool acc)
{
    const int type = e == TESS_REAL ? TESS_F32 : TESS_I32;
    tess_any_gather_arg a = {.rank = 3,
                             .places = 1,
                             .along = both ? 2 : 1,
                             .dim = {places, high, wide},
                             .x = {0, columns, 1},
                             .index = {both ? 2 : 1},
                             .index_by = 1,
                             .y = {high * wide, wide, 1},
                             .step = {columns, 1},
                             .most = {rows - high, columns - wide},
                             .clip = clip,
                             .element = e,
                             .fn = fn,
                             .acc = acc};
    a.fill.whole = 7;
    if (scatters)
        op_any("x", rows * columns, type, true);
    else if (e == TESS_REAL)
        op_in("x", rows * columns, type, 1);
    else
        op_indices("x", rows * columns, 50);
    int32_t *index = op_indices("index", places * (both ? 2 : 1), both ? columns : rows);
    for (int64_t k = 0; k < places; k += 5) index[k] = k % 2 ? -1 : (int32_t)rows;
    if (!scatters)
        op_any("y", places * high * wide, type, acc);
    else if (e == TESS_REAL)
        op_in("y", places * high * wide, type, 1);
    else
        op_indices("y", places * high * wide, 50);
    op_run(scatters ? tess_any_scatter : tess_any_gather, &a);
}

OP_TASKS(any_gather)
{
    if (op_speed) return;
    for (int way = 0; way < 8; way++) {
        const bool clip = way & 1, both = way & 2;
        const tess_element e = way & 4 ? TESS_INT : TESS_REAL;
        slices(90, 40, 33, 1, both ? 5 : 33, both, clip, TESS_SCATTER_SET, e, false, e == TESS_REAL && clip);
        for (tess_scattering fn = TESS_SCATTER_SET; fn <= TESS_SCATTER_MAX; fn++) {
            slices(90, 40, 33, 1, both ? 5 : 33, both, clip, fn, e, true, false);
            slices(20, 12, 150, both ? 3 : 1, both ? 130 : 150, both, clip, fn, e, true, false);
        }
    }
}
