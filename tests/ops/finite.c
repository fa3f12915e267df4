/* finite: the first element that is not is named. */
#include "tests/ops/ops.h"

static void finite_tasks(void)
{
    static const double bad[] = {1, INFINITY, -INFINITY, NAN};
    OP_EACH(t) OP_EACH_LENGTH(n) for (int k = 0; k < (op_speed ? 1 : 4); k++)
    {
        tess_count_arg a = {.n = n, .name = "x"};
        void *x = op_drawn("x", n, t, 1);
        int64_t first = -1;
        for (int64_t at = n - 1; at >= n / 2; at -= 3) op_put(x, first = at, (int)t, bad[k]);
        if (k) op_fails("x: element %lld is %g", (long long)first, bad[k]);
        op_run(&tess_finite[t], &a);
    }
}

OP_TASKS(finite)
{
    finite_tasks();
}
