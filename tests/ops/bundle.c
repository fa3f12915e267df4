/* bundle: two tasks as one, the second of which reads what the first writes. */
#include "tests/ops/ops.h"

OP_TASKS(bundle)
{
    OP_EACH(t)
    {
        const int64_t n = 37;
        const tess_map_arg map = {.n = n, .by = 3};
        const uint16_t first[] = {0, 1}, second[] = {1, 0, 2};
        const tess_bundle_part part[] = {{&tess_scale[t], &map, first, 2}, {&tess_add_forward[t], &map, second, 3}};
        const tess_bundle_arg a = {2, part};
        const double *x = op_in("x", n, t, 1);
        double *y = op_out("y", n, t, false), *z = op_out("z", n, t, false);
        for (int64_t i = 0; i < n; i++) y[i] = 3 * x[i], z[i] = 4 * x[i];
        op_run(&tess_bundle[t], &a);
    }
}

OP_NET(bundle)
{
    return x;
}
