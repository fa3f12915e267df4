/* adamw: every choice of its argument; torch's numbers are in codelets/test_adamw.c. */
#include "ops/ops.h"

static void set_optimizer(int kind)
{
    op_env.lr = 1e-3, op_env.beta1 = 0.9, op_env.beta2 = 0.95, op_env.eps = 1e-8, op_env.weight_decay = 0.1;
    op_env.bias1 = 1 - pow(op_env.beta1, kind + 1), op_env.bias2 = 1 - pow(op_env.beta2, kind + 1);
    op_env.clip = kind & 1 ? 0.5 : 0;
}

/* With elements before those of the task, `before` of them. */
static void add_states(int64_t n, int64_t before, bool clip, double bad_loss, double bad_norm)
{
    op_draw(op_any("master", n + before, TESS_F32, true), n + before, TESS_F32, 1);
    op_draw(op_any("m", n, TESS_F32, true), n, TESS_F32, 0.1);
    float *v = op_any("v", n, TESS_F32, false);
    op_draw(v, n, TESS_F32, 0.01);
    for (int64_t i = 0; i < n; i++) v[i] = i % 5 ? fabsf(v[i]) : 1e-42f * (float)i; /* denormals too */
    float *g = op_drawn("gradient", n + before, TESS_F32, 1e-3);
    g += before;
    if (!clip && isnan(bad_norm)) g[n / 2] = NAN;
    double *loss = op_raw("loss", 2, OP_DOUBLE);
    loss[0] = bad_loss, loss[1] = 1;
    if (clip) {
        double *norm = op_raw("norm", 1, OP_DOUBLE);
        *norm = isnan(bad_norm) ? NAN : 7;
    } else {
        void *sum = op_raw("sum", (int64_t)(tess_exact_bytes() / sizeof(double)), OP_BITS);
        tess_view view[] = {{g, (size_t)n * sizeof *g}, {sum, tess_exact_bytes()}};
        tess_square_arg a = {.n = n, .row = n};
        tess_square_sum[TESS_F32].cpu(&(tess_work){.buf = view, .nbuf = 2, .arg = &a, .env = &op_env});
    }
}

static void adamw_tasks(void)
{
    static tess_env before;
    OP_EACH_LENGTH(n) for (int kind = op_speed ? 8 : 0; kind < (op_speed ? 10 : 16); kind++)
    {
        tess_adamw_arg a = {.n = n,
                            .decay = kind & 2,
                            .l2 = kind & 4,
                            .copy = kind & 8,
                            .clip = kind & 1,
                            .late = kind % 3 == 1,
                            .name = "w"};
        set_optimizer(kind);
        before = op_env;
        before.lr = 2e-3;
        op_env.before = &before;
        const int64_t before_it = kind % 3 * 4; /* 4: aligned in some, not in all */
        a.at_master = a.at_gradient = a.at_copy = before_it;
        add_states(n, before_it, a.clip, 1, 1);
        if (a.copy) op_any("copy", n + before_it, TESS_BF16, true);
        op_run(&tess_adamw[TESS_F32], &a);
    }
}

/* Nothing changes, and the right one is blamed. */
static void adamw_not_finite_tasks(void)
{
    for (int kind = 0; kind < 8; kind++) {
        tess_adamw_arg a = {.n = 100, .copy = true, .clip = kind & 1, .name = "h.0.w"};
        set_optimizer(kind);
        add_states(a.n, 0, a.clip, kind & 2 ? NAN : 1, kind & 4 ? NAN : 1);
        op_any("copy", a.n, TESS_BF16, false);
        op_run(&tess_adamw[TESS_F32], &a);
    }
}

OP_TASKS(adamw)
{
    adamw_tasks();
    if (!op_speed) adamw_not_finite_tasks();
}
