/* linear: layers and tiles of them, with and without a bias, += and =. */
#include "tests/ops/fp8.h"

static void forward(tess_linear_arg a, tess_dtype t)
{
    const double *x = op_in("x", a.rows * a.in, t, 1), *w = op_matrix("w", a.out * a.in, t, a.w, 1);
    double *y = op_out("y", a.rows * a.ld, t, true);
    const double *b = a.bias ? op_in("b", a.out, TESS_F32, 1) : NULL;
    if (a.fp8) x = op_fp8(x, a.rows, a.in, a.in, 3), w = op_fp8(w, a.out, a.in, a.in, 3);
    for (int64_t r = 0; r < a.rows && op_expects; r++)
        for (int64_t o = 0; o < a.out; o++)
            y[r * a.ld + a.col + o] = op_dot(x + r * a.in, 1, w + o * a.in, 1, a.in) + (b ? b[o] : 0);
    op_run(&tess_linear_forward[t], &a);
}

static void backward_input(tess_linear_arg a, tess_dtype t)
{
    const double *dy = op_in("dy", a.rows * a.ld, t, 1), *w = op_matrix("w", a.out * a.in, t, a.w, 1);
    double *dx = op_out("dx", a.rows * a.in, a.sum ? TESS_F32 : t, a.acc);
    dy += a.col;
    if (a.fp8) dy = op_fp8(dy, a.rows, a.out, a.ld, 2), w = op_fp8(w, a.out, a.in, a.in, 3);
    for (int64_t i = 0; i < a.rows * a.in && op_expects; i++)
        dx[i] += op_dot(dy + i / a.in * a.ld, 1, w + i % a.in, a.in, a.out);
    op_run(&tess_linear_backward_input[t], &a);
}

/* x begins `row` rows before those of the task. */
static void backward_weight(tess_linear_arg a, int64_t row, tess_dtype t)
{
    const double *dy = op_in("dy", a.rows * a.ld, t, 1), *x = op_in("x", (a.rows + row) * a.in, t, 1);
    const double *ones = op_ones(a.rows);
    double *dw = op_out("dw", a.out * a.in, TESS_F32, a.acc);
    double *db = a.bias ? op_out("db", a.out, TESS_F32, a.acc_bias) : NULL;
    a.row = row;
    dy += a.col, x += row * a.in;
    const double *few = a.fp8 ? op_fp8(dy, a.rows, a.out, a.ld, 2) : dy; /* db is the sum of all bits */
    if (a.fp8) x = op_fp8(x, a.rows, a.in, a.in, 3);
    for (int64_t o = 0; o < a.out && op_expects; o++) {
        for (int64_t i = 0; i < a.in; i++) dw[o * a.in + i] += op_dot(few + o, a.ld, x + i, a.in, a.rows);
        if (db) db[o] += op_dot(dy + o, a.ld, ones, 1, a.rows);
    }
    op_run(&tess_linear_backward_weight[t], &a);
}

static void backward_bias(tess_linear_arg a, tess_dtype t)
{
    const double *dy = op_in("dy", a.rows * a.ld, t, 1), *ones = op_ones(a.rows);
    double *db = op_out("db", a.out, TESS_F32, a.acc_bias);
    for (int64_t o = 0; o < a.out && op_expects; o++) db[o] += op_dot(dy + a.col + o, a.ld, ones, 1, a.rows);
    op_run(&tess_linear_backward_bias[t], &a);
}

/* Whole layers and tiles of wider ones: rows, in, out, columns of the layer, the first of them. */
static void layers(void)
{
    static const int64_t shape[][5] = {{37, 20, 67, 67, 0},  {64, 48, 128, 128, 0},  {130, 33, 5, 29, 16},
                                       {37, 20, 67, 91, 16}, {40, 64, 90, 250, 160}, {1, 7, 3, 3, 0}};
    static const int ways[] = {0, 3, 5, 6}; /* each two of the three choices in all four ways */
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) OP_EACH(t) for (int way = 0; way < 4; way++)
        {
            const int i = ways[way];
            const int64_t *s = shape[k];
            const tess_linear_arg a = {
                s[0], s[1], s[2], s[3], s[4], .bias = i & 1, .acc = i & 2, .acc_bias = i & 4, .sum = i & 4};
            forward(a, t);
            backward_input(a, t);
            backward_weight(a, i & 2 ? 3 : 0, t);
            backward_bias(a, t);
        }
}

/* Few rows, of odd lengths, into columns of a wider y. */
static void few_rows(void)
{
    static const int64_t shape[][3] = {{1, 33, 9}, {3, 64, 70}, {7, 31, 5}, {8, 100, 67}, {16, 40, 130}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) OP_EACH(t)
    for (int bias = 0; bias < 2; bias++)
        forward((tess_linear_arg){shape[k][0], shape[k][1], shape[k][2], shape[k][2] + 6, 4, .bias = bias, .few = true},
                t);
}

/* Rows of whole blocks; a GPU reads all of w at once, or 64 rows or columns. */
static void quantized(void)
{
    static const int64_t shape[][5] = {{37, 64, 67, 91, 16}, {130, 192, 128, 128, 0}, {5, 128, 70, 70, 0}};
    for (int k = 0; k < 6; k++) OP_EACH(t) for (int way = 0; way < 4; way++)
        {
            const int64_t *s = shape[k / 2];
            tess_linear_arg a = {
                s[0], s[1], s[2], s[3], s[4], .bias = way & 1, .acc = way & 1, .sum = way & 2, .few = k / 2 == 2};
            a.w = k % 2 ? TESS_NF4 : TESS_INT8;
            const size_t some = 64 * tess_dtype_size(t);
            op_room = way & 2 ? (a.bias ? 512 : 0) + (size_t)a.in * some : 0;
            forward(a, t);
            a.few = a.bias = false;
            op_room = way & 2 ? (size_t)a.out * some : 0;
            backward_input(a, t);
        }
}

/* Numbers of 8 bits: sides of multiples of 16, which a GPU has codes for, and others; all at once, and in pieces of 32
 * rows and columns, as what a GPU's room has for more. */
static void of_8_bits(void)
{
    const uint64_t dice = op_dice; /* what other ops draw stays what it was */
    static const int64_t shape[][5] = {
        {64, 48, 128, 128, 0}, {96, 160, 48, 80, 16}, {37, 20, 67, 91, 16}, {160, 80, 96, 96, 0}, {70, 72, 40, 40, 0}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        for (int way = 0; way < 8; way++) {
            const int64_t *s = shape[k];
            tess_linear_arg a = {s[0], s[1], s[2], s[3], s[4], .acc = way & 2, .acc_bias = way & 2, .sum = way & 1};
            const size_t some = way & 4 ? 4 * 32 : 0;
            a.fp8 = true, a.bias = way & 1;
            op_room = some ? 256 * (a.bias ? 2 : 1) + some * (size_t)a.in : 0;
            forward(a, TESS_BF16);
            op_room = some ? 256 + some * (size_t)a.out : 0;
            backward_input(a, TESS_BF16);
            op_room = some && !a.bias ? 256 + some * (size_t)a.rows : 0;
            backward_weight(a, way & 2 ? 3 : 0, TESS_BF16);
        }
    op_dice = dice;
}

/* More rows than a GPU's block sums of a column. */
static void many_rows(void)
{
    OP_EACH(t)
    OP_EACH_ACC(acc) backward_bias((tess_linear_arg){1100, 8, 24, 24 + acc, .bias = true, .acc_bias = acc}, t);
}

OP_TASKS(linear)
{
    if (op_speed) return; /* bench_mm and gpu/bench_gpu.c measure it */
    layers();
    few_rows();
    quantized();
    of_8_bits();
    many_rows();
}

OP_NET(linear)
{
    return tess_linear(x, OP_PARAM("w", 20, 20, TESS_NORMAL(0.3f)), OP_PARAM("b", 20, 1, TESS_NORMAL(0.1f)));
}
