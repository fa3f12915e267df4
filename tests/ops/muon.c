/* muon: the updates before and behind a matrix that is made orthogonal, and that. */
#include "tests/ops/update.h"

static const tess_optimizer of[] = {
    {.type = TESS_OPTIMIZER_MUON, .momentum = 0.95, .nesterov = true, .ns_steps = 5},
    {.type = TESS_OPTIMIZER_MUON, .momentum = 0.9, .ns_steps = 3},
};

static void apply_tasks(void)
{
    const tess_optimizer_kind *kind = tess_optimizer_kind_of(of);
    OP_EACH_LENGTH(n) for (int copy = TESS_F32; copy <= TESS_F16; copy++)
    {
        const tess_update_arg a = {.n = n,
                                   .optimizer = of,
                                   .weight_decay = 0.1,
                                   .lr_scale = 0.5,
                                   .stretch = 1.5,
                                   .copy = (tess_dtype)copy,
                                   .clip = true,
                                   .at_gradient = 4,
                                   .name = "w"};
        update_set_env(of, 1);
        op_draw(op_any("master", n, TESS_F32, true), n, TESS_F32, 1);
        op_drawn("matrix", n + 4, TESS_F32, 1);
        double *loss = op_raw("loss", 2, OP_DOUBLE), *norm = op_raw("norm", 1, OP_DOUBLE);
        loss[0] = loss[1] = 1, *norm = 7;
        if (copy != TESS_F32) op_any("copy", n, copy, false);
        op_run(&kind->apply[TESS_F32], &a);
    }
}

/* c (m,n) = x (m,k) y (k,n), of columns of which the other is stored as they are here. */
static void times(double *c, const double *x, const double *y, int64_t m, int64_t n, int64_t k)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            c[i * n + j] = 0;
            for (int64_t l = 0; l < k; l++) c[i * n + j] += x[i * k + l] * y[l * n + j];
        }
}
static void turn(double *to, const double *x, int64_t rows, int64_t columns)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[j * rows + i] = x[i * columns + j];
}

/* As the formula says it: from the left, whatever the shape. */
static void iterate(double *x, int64_t rows, int64_t columns, int steps)
{
    double length = 0, *xt = op_zeros(rows * columns), *a = op_zeros(rows * rows), *aa = op_zeros(rows * rows),
           *bx = op_zeros(rows * columns);
    for (int64_t i = 0; i < rows * columns; i++) length += x[i] * x[i];
    for (int64_t i = 0; i < rows * columns; i++) x[i] /= fmax(sqrt(length), 1e-7);
    for (int k = 0; k < steps; k++) {
        turn(xt, x, rows, columns);
        times(a, x, xt, rows, rows, columns);
        times(aa, a, a, rows, rows, rows);
        for (int64_t i = 0; i < rows * rows; i++) a[i] = -4.7750 * a[i] + 2.0315 * aa[i];
        times(bx, a, x, rows, columns, rows);
        for (int64_t i = 0; i < rows * columns; i++) x[i] = 3.4445 * x[i] + bx[i];
    }
}

/* bad 1: the loss is not finite, 2: the norm is not; 3: the matrix is zeros. */
static void orthogonal(int64_t rows, int64_t columns, tess_dtype t, int bad)
{
    const tess_optimizer_kind *kind = tess_optimizer_kind_of(of);
    const int64_t n = rows * columns;
    const tess_whole_arg a = {.rows = rows,
                              .columns = columns,
                              .update = {.n = n, .optimizer = of, .clip = true, .skips = bad == 1, .name = "h.w"}};
    update_set_env(of, 1);
    double *x = op_out("x", n, TESS_F32, true);
    if (bad == 3) {
        for (int64_t i = 0; i < n; i++) op_put(op_buffer[0].data, i, TESS_F32, x[i] = 0);
    } else if (!bad && op_expects) {
        iterate(x, rows, columns, of->ns_steps);
        op_within(t == TESS_F32 ? 1e-4 : 0.1);
    }
    op_scratch((int64_t)kind->room(&a, t));
    double *loss = op_raw("loss", 2, OP_DOUBLE), *norm = op_raw("norm", 1, OP_DOUBLE);
    loss[0] = bad == 1 ? NAN : 1, loss[1] = 1, *norm = bad == 2 ? NAN : 7;
    if (bad == 1 || bad == 2) op_stay();
    if (bad == 2) op_fails("h.w: the gradient is not finite");
    op_run(&kind->whole[t], &a);
}

OP_TASKS(muon)
{
    static const int64_t shape[][2] = {{16, 16}, {8, 40}, {70, 24}, {1, 9}, {150, 300}, {33, 7}};
    update_each(of, op_speed ? 1 : 2);
    apply_tasks();
    for (int t = TESS_F32; t <= TESS_BF16; t++)
        for (int k = 0; k < (op_speed ? 1 : 6); k++)
            orthogonal(op_speed ? 768 : shape[k][0], op_speed ? 3072 : shape[k][1], (tess_dtype)t, 0);
    for (int bad = 1; bad < 4 && !op_speed; bad++) orthogonal(8, 12, TESS_F32, bad);
}
