/* pick: a row of each sequence. */
#include "tests/ops/ops.h"

static void tasks(int64_t picks, int64_t length, int64_t n, tess_dtype t)
{
    const tess_pick_arg a = {.rows = picks * length, .width = n, .sequence = length};
    double *x = op_in("x", picks * length * n, t, 1);
    int32_t *where = op_indices("index", picks, length);
    double *y = op_out("y", picks * n, t, false);
    where[0] = 0, where[picks - 1] = (int32_t)length - 1;
    for (int64_t i = 0; i < picks * n; i++) y[i] = x[(i / n * length + where[i / n]) * n + i % n];
    op_run(&tess_pick_forward[t], &a);
    for (int acc = 0; acc < 2; acc++) {
        const tess_pick_arg b = {.rows = a.rows, .width = n, .sequence = length, .acc = acc};
        double *dy = op_in("dy", picks * n, t, 1);
        where = op_indices("index", picks, length);
        double *dx = op_out("dx", picks * length * n, t, acc);
        for (int64_t i = 0; i < picks * n; i++) dx[(i / n * length + where[i / n]) * n + i % n] += dy[i];
        op_run(&tess_pick_backward[t], &b);
    }
}

OP_TASKS(pick)
{
    OP_EACH(t)
    {
        tasks(5, 7, 1, t);
        tasks(5, 12, 33, t);
        tasks(5, 7, 65, t);
    }
}

/* It changes the length of a sequence, and so has no place between two blocks. */
OP_NET(pick)
{
    return x;
}
