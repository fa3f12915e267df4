/* any_window: sums, most and least of windows that overlap, leave gaps or reach beyond the edge, with ties. */
#include "tests/ops/formula.h"

static void windows(tess_any_window_arg a, tess_reduction fn, tess_element e)
{
    int64_t xs = 1, ys = 1;
    const int type = e == TESS_REAL ? TESS_F32 : TESS_I32;
    for (int d = a.rank - 1; d >= 0; d--) a.x[d] = xs, a.y[d] = ys, xs *= a.in[d], ys *= a.out[d];
    a.fn = fn, a.element = e;
    for (int backward = 0; backward < (e == TESS_REAL ? 2 : 1); backward++) {
        if (e != TESS_REAL)
            op_indices("x", xs, 9);
        else {
            float *x = op_drawn("x", xs, TESS_F32, 1);
            for (int64_t i = 0; i < xs; i++) x[i] = i == 40 ? NAN : rintf(2 * x[i]) / 2;
        }
        if (backward) op_in("dy", ys, TESS_F32, 1);
        op_any("made", backward ? xs : ys, type, backward);
        op_run(backward ? tess_any_window_backward : tess_any_window, &a);
    }
}

OP_TASKS(any_window)
{
    static const tess_any_window_arg pools[] = {
        {.rank = 4,
         .lead = 2,
         .in = {2, 3, 8, 9},
         .out = {2, 3, 4, 4},
         .size = {1, 1, 3, 3},
         .step = {1, 1, 2, 2},
         .apart = {1, 1, 1, 1},
         .pad = {0, 0, 1, 0},
         .between = {1, 1, 1, 1}},
        {.rank = 3,
         .lead = 1,
         .in = {3, 7, 40},
         .out = {3, 3, 12},
         .size = {1, 2, 4},
         .step = {1, 2, 3},
         .apart = {1, 3, 2},
         .pad = {0, 1, 2},
         .between = {1, 1, 1}},
        {.rank = 2,
         .lead = 1,
         .in = {4, 20},
         .out = {4, 41},
         .size = {1, 3},
         .step = {1, 1},
         .apart = {1, 1},
         .pad = {0, 2},
         .between = {1, 2}},
        {.rank = 1,
         .lead = 0,
         .in = {300},
         .out = {300},
         .size = {300},
         .step = {1},
         .apart = {1},
         .pad = {299},
         .between = {1}},
    };
    if (op_speed) return;
    for (size_t k = 0; k < sizeof pools / sizeof *pools; k++)
        for (tess_reduction fn = TESS_REDUCE_SUM; fn <= TESS_REDUCE_MIN; fn++)
            for (tess_element e = TESS_REAL; e <= TESS_INT; e++) windows(pools[k], fn, e);
}
