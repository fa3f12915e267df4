/* any_fold: sums of x z, and of x beside them, over the first or the last dimensions, few and many of them. */
#include "tests/ops/formula.h"

/* Results lie in the first dimension or, `last`, in the last one; z is one for each of the last. */
static void fold(int64_t kept, int64_t over, bool last, tess_dtype t, tess_dtype to, bool acc)
{
    any_draft d = {0};
    const int64_t dim[] = {last ? over : kept, last ? kept : over};
    tess_any_fold_arg a = {.map = {.rank = 2,
                                   .operands = 2,
                                   .dim = {dim[0], dim[1]},
                                   .in = {any_dense(2, dim, t), {.by = {0, 1}}},
                                   .formula = &d.formula},
                           .kept = 1,
                           .last = last,
                           .sums = 2};
    const int x = any_load(&d, 0, TESS_REAL), z = any_load(&d, 1, TESS_REAL);
    a.sum[0] = (struct tess_fold_sum){any_step(&d, TESS_FN_mul, TESS_REAL, x, z, -1), to, acc};
    a.sum[1] = (struct tess_fold_sum){x, TESS_F32, !acc};
    const double *xs = any_positive("x", kept * over, t), *zs = any_positive("z", dim[1], TESS_F32);
    double *ys = op_out("y", kept, to, acc);
    op_within(to == TESS_F32 ? 2e-5 : 0);
    double *sums = op_out("sums", kept, TESS_F32, !acc);
    for (int64_t i = 0; i < dim[0]; i++)
        for (int64_t j = 0; j < dim[1]; j++) {
            ys[last ? j : i] += xs[i * dim[1] + j] * zs[j];
            sums[last ? j : i] += xs[i * dim[1] + j];
        }
    op_within(2e-5);
    op_run(tess_any_fold, &a);
}

OP_TASKS(any_fold)
{
    static const int64_t shape[][2] = {{1, 1}, {3, 1001}, {1100, 3}, {70, 64}, {2, 9001}, {261, 700}, {4, 20000}};
    if (op_speed) return;
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        for (int last = 0; last < 2; last++) OP_EACH(t)
            {
                fold(shape[k][0], shape[k][1], last, t, TESS_F32, k % 2);
                fold(shape[k][0], shape[k][1], last, TESS_F32, t, k % 2);
            }
}
