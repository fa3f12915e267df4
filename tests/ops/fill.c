/* fill: constants, normal numbers, whose distribution is in codelets/test_random.c, and copies in 16 bits. */
#include "tests/ops/ops.h"

static void filling_tasks(void)
{
    OP_EACH_LENGTH(n) for (int apart = 0; apart < (op_speed ? 1 : 3); apart++)
    {
        tess_count_arg a = {.n = n, .value = 0.02f, .op = 9, .first = 1LL << 33, .at = apart * 4};
        OP_EACH(t)
        {
            double *x = op_out("x", n + a.at, t, true);
            for (int64_t i = 0; i < n; i++) x[a.at + i] = (double)a.value;
            op_run(&tess_fill[t], &a);
        }
        if (apart) a.width = n % 2 || apart == 1 ? n : n / 2, a.stride = a.width + 1000;
        op_any("x", n + a.at, TESS_F32, true);
        op_run(&tess_fill_normal[TESS_F32], &a);
        a.uniform = true;
        op_any("x", n + a.at, TESS_F32, true);
        op_run(&tess_fill_normal[TESS_F32], &a);
        for (tess_dtype t = TESS_BF16; t <= TESS_F16; t++) {
            const double *master = op_in("master", n, TESS_F32, 1);
            double *copy = op_out("copy", n + a.at, t, true);
            memcpy(copy + a.at, master, (size_t)n * sizeof *copy);
            op_run(&tess_round[t], &a);
        }
    }
}

OP_TASKS(fill)
{
    filling_tasks();
}
