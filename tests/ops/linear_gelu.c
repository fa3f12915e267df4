/* A linear and a gelu as one task. */
#include "tests/ops/fp8.h"

/* By tanh or by erf; its slope by a difference. */
static double gelu(double x, int kind)
{
    if (kind == TESS_GELU_ERF) return x / 2 * (1 + erf(x / sqrt(2)));
    return x / 2 * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
static double slope(double x, int kind)
{
    return (gelu(x + 1e-5, kind) - gelu(x - 1e-5, kind)) / 2e-5;
}

static void forward(tess_linear_gelu_arg a, tess_dtype t)
{
    const int64_t rows = a.linear.rows, in = a.linear.in, out = a.linear.out;
    const double *x = op_in("x", rows * in, t, 1), *w = op_matrix("w", out * in, t, a.linear.w, 0.3);
    double *pre = op_out("pre", rows * out, t, false), *y = op_out("y", rows * out, t, false);
    const double *b = a.linear.bias ? op_in("b", out, TESS_F32, 1) : NULL;
    a.gelu.n = rows * out;
    if (a.linear.fp8) x = op_fp8(x, rows, in, in, 3), w = op_fp8(w, out, in, in, 3);
    for (int64_t i = 0; i < rows * out && op_expects; i++) {
        pre[i] = op_dot(x + i / out * in, 1, w + i % out * in, 1, in) + (b ? b[i % out] : 0);
        y[i] = gelu(pre[i], a.gelu.kind);
    }
    op_run(&tess_linear_gelu_forward[t], &a);
}

static void backward(tess_linear_gelu_arg a, tess_dtype t)
{
    const int64_t rows = a.linear.rows, in = a.linear.in, out = a.linear.out;
    const double *dy = op_in("dy", rows * out, t, 1), *w = op_matrix("w", out * in, t, a.linear.w, 1);
    const double *pre = op_in("pre", rows * in, t, 2);
    double *dpre = op_out("dpre", rows * in, t, false);
    a.gelu.n = rows * in;
    if (a.linear.fp8) dy = op_fp8(dy, rows, out, out, 2), w = op_fp8(w, out, in, in, 3);
    for (int64_t i = 0; i < rows * in && op_expects; i++)
        dpre[i] = op_dot(dy + i / in * out, 1, w + i % in, in, out) * slope(pre[i], a.gelu.kind);
    op_run(&tess_gelu_linear_backward[t], &a);
}

/* Widths that the library's epilogues take, and others. */
OP_TASKS(linear_gelu)
{
    static const int64_t shape[][3] = {{37, 20, 67}, {64, 48, 128}, {130, 33, 8}, {3, 8, 5}};
    if (op_speed) return; /* bench_mm and gpu/bench_gpu.c measure it */
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) OP_EACH(t) for (int way = 0; way < 4; way++)
        {
            const int64_t *s = shape[k];
            const tess_linear_gelu_arg a = {{s[0], s[1], s[2], s[2], .bias = way & 1}, {.kind = way / 2}};
            forward(a, t);
            backward(a, t);
        }
    OP_EACH(t)
    for (int way = 0; way < 4; way++) { /* quantized matrices, of which a GPU reads all, or 64 columns of the result */
        tess_linear_gelu_arg a = {{40, 64, 192, 192, .bias = way & 1}, {.kind = TESS_GELU_TANH}};
        a.linear.w = way & 1 ? TESS_NF4 : TESS_INT8;
        op_room = way & 2 ? 512 + 64 * 64 * tess_dtype_size(t) : 0;
        forward(a, t);
        a.linear = (tess_linear_arg){40, 192, 64, 64, .w = a.linear.w};
        op_room = way & 2 ? 64 * 64 * tess_dtype_size(t) : 0;
        backward(a, t);
    }
    const uint64_t dice = op_dice;       /* what other ops draw stays what it was */
    for (int way = 0; way < 12; way++) { /* of 8 bits, all at once and in pieces of 32 rows and columns */
        const int64_t out = way % 3 ? 96 : 40;
        tess_linear_gelu_arg a = {{80, 64, out, out, .bias = way & 1, .fp8 = true}, {.kind = TESS_GELU_TANH}};
        op_room = way & 2 ? 512 + 4 * 32 * 64 : 0;
        forward(a, TESS_BF16);
        a.linear.bias = false;
        op_room = way & 2 ? 256 + 4 * 32 * (size_t)out : 0;
        backward(a, TESS_BF16);
    }
    op_dice = dice;
}
