/* join: stripes of columns, the last of them narrower. */
#include "tests/ops/ops.h"

OP_TASKS(join)
{
    OP_EACH(t)
    {
        const tess_join_arg a = {.rows = 5, .width = 37, .stripe = 16};
        double *y = op_out("y", a.rows * a.width, t, false);
        for (int64_t first = 0; first < a.width; first += a.stripe) {
            const int64_t n = a.width - first < a.stripe ? a.width - first : a.stripe;
            const double *x = op_in("stripe", a.rows * n, t, 1);
            for (int64_t i = 0; i < a.rows * n; i++) y[i / n * a.width + first + i % n] = x[i];
        }
        op_run(&tess_join[t], &a);
    }
}

/* What is made where steps generate has no place in a network that trains. */
OP_NET(join)
{
    return x;
}
