/* strip: two runs, which leave what is beside them or clear it; rows of one side that are several of the other's. */
#include "tests/ops/ops.h"

static void runs(tess_dtype t, tess_strip_arg a)
{
    const int64_t sums = a.sums ? a.sums : 1, spread = a.spread ? a.spread : 1;
    const double *x = op_in("x", a.rows / spread * sums * a.from_ld, t, 1);
    double *y = op_out("y", a.rows * a.to_ld, t, !a.clears);
    for (int64_t r = 0; r < a.rows; r++)
        for (int k = 0; k < a.runs; k++)
            for (int64_t i = 0; i < a.run[k].n; i++) {
                double *to = &y[r * a.to_ld + a.run[k].to + i], sum = 0;
                for (int64_t s = 0; s < sums; s++) sum += x[(r / spread * sums + s) * a.from_ld + a.run[k].from + i];
                *to = (a.acc ? *to : 0) + sum;
            }
    op_run(&tess_strip[t], &a);
}

OP_TASKS(strip)
{
    OP_EACH(t) for (int acc = 0; acc < 2; acc++)
    {
        const tess_strip_arg a = {
            .rows = 12, .from_ld = 37, .to_ld = 29, .runs = 2, .run = {{3, 11, 17}, {30, 0, 5}}, .acc = acc};
        tess_strip_arg spread = a, sums = a, clears = a;
        spread.spread = 4, sums.sums = 5, clears.clears = !acc;
        runs(t, a);
        runs(t, spread);
        runs(t, sums);
        runs(t, clears);
    }
}

/* Heads of three sizes, some of whose elements all share. */
OP_NET(strip)
{
    const tess_run_of none = {0};
    tess_tensor *many = tess_linear(x, OP_PARAM("many", 15, 20, TESS_NORMAL(0.4f)), NULL);
    tess_tensor *few = tess_linear(x, OP_PARAM("few", 7, 20, TESS_NORMAL(0.4f)), NULL);
    tess_tensor *one = tess_strips(many, (tess_run_of){5, 1, 3}, few, (tess_run_of){7, 2, 4}, 3, layer ? 9 : 7);
    tess_tensor *two = tess_strips(many, (tess_run_of){5, 3, 2}, NULL, none, 3, 4);
    tess_tensor *three = tess_strips(few, (tess_run_of){7, 0, 5}, NULL, none, 1, 5);
    tess_tensor *y = tess_linear(one, OP_PARAM("one", 20, layer ? 27 : 21, TESS_NORMAL(0.4f)), NULL);
    y = tess_add(y, tess_linear(two, OP_PARAM("two", 20, 12, TESS_NORMAL(0.4f)), NULL));
    return tess_add(y, tess_linear(three, OP_PARAM("three", 20, 5, TESS_NORMAL(0.4f)), NULL));
}
