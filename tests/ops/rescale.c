/* rescale: rows of a matrix, and of what is beside it, made as long as m says. */
#include "tests/ops/ops.h"
#include <math.h>

static void lengths(tess_dtype t, int64_t out, int64_t in, int64_t r)
{
    const tess_rescale_arg a = {.in = in, .out = out, .r = r, .col = 3, .by = 1.75f};
    const double *w = op_in("w", out * in, t, 1), *right = op_in("a", r * in, t, 1),
                 *left = op_in("b", (out + a.col) * r, t, 1);
    double *length = op_out("length", out, TESS_F32, false);
    for (int64_t j = 0; j < out && op_expects; j++) {
        for (int64_t i = 0; i < in; i++) {
            const double v = w[j * in + i] + (double)a.by * op_dot(left + (a.col + j) * r, 1, right + i, in, r);
            length[j] += v * v;
        }
        length[j] = sqrt(length[j]);
    }
    op_run(&tess_rescale_lengths[t], &a);
}

/* Columns [col, col + out) of rows that are `ld` long; what is beside them stays. */
static void both(tess_dtype t, int64_t rows, int64_t out, int64_t col, bool bias, bool acc)
{
    tess_rescale_arg a = {.rows = rows, .ld = col + out + (col > 0), .out = out, .col = col, .bias = bias, .acc = acc};
    const int64_t n = rows * a.ld;
    for (int back = 0; back < 2; back++) {
        const double *dy = back ? op_in("dy", n, t, 1) : NULL, *z = op_in("z", n, t, 2),
                     *m = op_in("m", out, TESS_F32, 1);
        double length[600], shift[600] = {0};
        for (int64_t c = 0; c < out; c++) length[c] = 1.5 + op_roll();
        op_given("length", out, TESS_F32, length);
        a.acc_m = back && acc;
        double *y = op_out(back ? "dz" : "y", n, t, (back && acc) || col > 0), *dm = NULL;
        if (back) dm = op_out("dm", out, TESS_F32, acc);
        for (int64_t c = 0; c < out; c++) shift[c] = op_roll();
        if (bias) op_given("bias", out, TESS_F32, shift);
        for (int64_t r = 0; r < rows && op_expects; r++) {
            for (int64_t c = 0; c < out; c++) {
                const int64_t at = r * a.ld + col + c;
                const double b = bias ? shift[c] : 0, was = back && acc ? y[at] : 0;
                y[at] = back ? was + dy[at] * m[c] / length[c] : (z[at] - b) * m[c] / length[c] + b;
                if (back) dm[c] += dy[at] * (z[at] - b) / length[c];
            }
        }
        op_run(back ? &tess_rescale_backward[t] : &tess_rescale_forward[t], &a);
    }
}

OP_TASKS(rescale)
{
    OP_EACH(t)
    {
        lengths(t, 33, 300, 5);
        lengths(t, 1, 1, 1);
        OP_EACH_ACC(acc) for (int bias = 0; bias < 2; bias++)
        {
            both(t, 37, 300, 0, bias, acc);
            both(t, 3, 17, 5, bias, acc);
        }
    }
}

/* The lengths count as constants, so that differences tell of what they are not made of alone. */
OP_NET(rescale)
{
    tess_tensor *w = OP_PARAM("w", 20, 20, TESS_NORMAL(0.3f)), *a = OP_PARAM("a", 3, 20, TESS_NORMAL(0.3f)),
                *b = OP_PARAM("b", 20, 3, TESS_NORMAL(0.3f)), *m = OP_PARAM("m", 20, 1, TESS_ONE),
                *bias = layer % 2 ? OP_PARAM("bias", 20, 1, TESS_NORMAL(0.3f)) : NULL;
    tess_tensor *fixed[] = {w, a, b, bias};
    for (int k = 0; k < 4 && w; k++)
        if (fixed[k] && tess_param_freeze(fixed[k]) != TESS_OK) return NULL;
    tess_tensor *z = tess_add(tess_linear(x, w, bias), tess_linear(tess_linear(x, a, NULL), b, NULL));
    return tess_rescaled(z, w, a, b, 1, m, bias);
}
