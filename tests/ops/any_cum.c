/* any_cum: what stands up to each place, either way, and its gradients. */
#include "tests/ops/formula.h"

static void along(tess_any_cum_arg a, bool backward)
{
    const int64_t all = a.outer * a.n * a.inner;
    const bool real = a.element == TESS_REAL;
    if (!real)
        op_indices("x", all, 9);
    else {
        float *x = op_drawn("x", all, TESS_F32, 1);
        for (int64_t i = 0; i < all; i++) x[i] = i % 37 == 5 ? 0 : rintf(4 * x[i]) / 4;
    }
    if (backward) {
        const float *x = op_buffer[0].data;
        float *y = op_raw("y", all, TESS_F32);
        tess_any_cum[0].cpu(
            &(tess_work){.buf = (tess_view[]){{(void *)x, (size_t)all * 4}, {y, (size_t)all * 4}},
                         .nbuf = 2,
                         .arg = &(tess_any_cum_arg){a.outer, a.n, a.inner, a.fn, a.element, .reverse = a.reverse}});
        op_in("dy", all, TESS_F32, 1);
    }
    op_any("made", all, real ? TESS_F32 : TESS_I32, a.acc);
    op_run(backward ? tess_any_cum_backward : tess_any_cum, &a);
}

OP_TASKS(any_cum)
{
    static const int64_t shape[][3] = {{3, 40, 7}, {150, 9, 1}, {1, 5, 300}};
    if (op_speed) return;
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        for (tess_cumulation fn = TESS_CUM_SUM; fn <= TESS_CUM_LOGSUMEXP; fn++)
            for (int way = 0; way < 4; way++) {
                const int64_t *s = shape[k];
                const tess_any_cum_arg a = {s[0], s[1], s[2], fn, TESS_REAL, .reverse = way & 1, .acc = way & 2};
                along(a, false);
                if (fn != TESS_CUM_SUM) along(a, true);
                if (fn != TESS_CUM_LOGSUMEXP && way < 2)
                    along((tess_any_cum_arg){s[0], s[1], s[2], fn, TESS_INT, .reverse = way & 1}, false);
            }
}
