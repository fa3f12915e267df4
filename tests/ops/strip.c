/* strip: two runs, which leave what is beside them. */
#include "tests/ops/ops.h"

OP_TASKS(strip)
{
    OP_EACH(t) for (int acc = 0; acc < 2; acc++)
    {
        const tess_strip_arg a = {
            .rows = 7, .from_ld = 37, .to_ld = 29, .runs = 2, .run = {{3, 11, 17}, {30, 0, 5}}, .acc = acc};
        const double *x = op_in("x", a.rows * a.from_ld, t, 1);
        double *y = op_out("y", a.rows * a.to_ld, t, true);
        for (int64_t r = 0; r < a.rows; r++)
            for (int k = 0; k < a.runs; k++)
                for (int64_t i = 0; i < a.run[k].n; i++) {
                    double *to = &y[r * a.to_ld + a.run[k].to + i];
                    *to = (acc ? *to : 0) + x[r * a.from_ld + a.run[k].from + i];
                }
        op_run(&tess_strip[t], &a);
    }
}

/* What ranks that share sequences exchange heads with has no place in a network of its own. */
OP_NET(strip)
{
    return x;
}
