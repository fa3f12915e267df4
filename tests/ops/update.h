/* Updates of optimizers: every choice of their argument; torch's numbers are in graph/test_optimizers.c. */
#ifndef TESS_TESTS_UPDATE_H
#define TESS_TESTS_UPDATE_H
#include "tests/ops/ops.h"

static void update_set_env(const tess_optimizer *o, int kind)
{
    op_env.lr = 1e-3, op_env.beta1 = o->beta1, op_env.beta2 = o->beta2;
    op_env.bias1 = 1 - pow(op_env.beta1, kind + 1), op_env.bias2 = 1 - pow(op_env.beta2, kind + 1);
    op_env.clip = kind & 1 ? 0.5 : 0;
    op_env.updates = kind;
}

/* The exact sum of squares of n elements of a gradient. */
static void update_sum(const void *gradient, int64_t before, int64_t n, tess_dtype t)
{
    float *g = tess_alloc((size_t)n * sizeof *g);
    for (int64_t i = 0; i < n; i++) g[i] = tess_load(gradient, before + i, t);
    void *sum = op_raw("sum", (int64_t)(tess_exact_bytes() / sizeof(double)), OP_BITS);
    tess_view view[] = {{g, (size_t)n * sizeof *g}, {sum, tess_exact_bytes()}};
    tess_square_arg a = {.n = n, .row = n};
    tess_square_sum[TESS_F32].cpu(&(tess_work){.buf = view, .nbuf = 2, .arg = &a, .env = &op_env});
    free(g);
}

/* With elements before those of the task, `before` of them. */
static void update_buffers(int moments, int64_t n, int64_t before, tess_dtype gradient, bool clip, double bad_loss,
                           double bad_norm)
{
    static const char *const name[TESS_MOMENTS_MOST] = {"m", "v"};
    op_draw(op_any("master", n + before, TESS_F32, true), n + before, TESS_F32, 1);
    for (int m = 0; m < moments; m++) {
        float *v = op_any(name[m], n, TESS_F32, m == 0);
        op_draw(v, n, TESS_F32, m ? 0.01 : 0.1);
        for (int64_t i = 0; i < n && m == moments - 1; i++)
            v[i] = i % 5 ? fabsf(v[i]) : 1e-42f * (float)i; /* denormals */
    }
    void *g = op_drawn("gradient", n + before, gradient, 1e-3);
    if (!clip && isnan(bad_norm)) ((float *)g)[before + n / 2] = NAN;
    double *loss = op_raw("loss", 2, OP_DOUBLE);
    loss[0] = bad_loss, loss[1] = 1;
    if (clip) {
        double *norm = op_raw("norm", 1, OP_DOUBLE);
        *norm = isnan(bad_norm) ? NAN : 7;
    } else
        update_sum(g, before, n, gradient);
}

/* `few`: the gradient is in bf16. */
static void update_task(const tess_optimizer *o, int64_t n, int kind, bool few)
{
    static tess_env before;
    tess_update_arg a = {.n = n,
                         .optimizer = o,
                         .moments = tess_optimizer_moments(o),
                         .weight_decay = kind & 2 ? 0.1 : 0,
                         .lr_scale = kind & 2 ? 0.5 : 1,
                         .gradient = few ? TESS_BF16 : TESS_F32,
                         .copy = kind & 4 ? TESS_BF16 + kind % 2 : TESS_F32,
                         .clip = kind & 1,
                         .late = kind % 3 == 1,
                         .name = "w"};
    update_set_env(o, kind);
    before = op_env;
    before.lr = 2e-3;
    op_env.before = &before;
    const int64_t before_it = kind % 3 * 4; /* 4: aligned in some, not in all */
    a.at_master = a.at_gradient = a.at_copy = before_it;
    update_buffers(a.moments, n, before_it, a.gradient, a.clip, 1, 1);
    if (a.copy != TESS_F32) op_any("copy", n + before_it, a.copy, true);
    op_run(&tess_optimizer_kind_of(o)->update[TESS_F32], &a);
}

static void update_tasks(const tess_optimizer *o)
{
    OP_EACH_LENGTH(n)
    for (int kind = op_speed ? 4 : 0; kind < (op_speed ? 6 : 8); kind++) update_task(o, n, kind, false);
}

/* Nothing changes, and the right one is blamed. */
static void update_not_finite(const tess_optimizer *o)
{
    for (int kind = 0; kind < 8; kind++) {
        tess_update_arg a = {.n = 100,
                             .optimizer = o,
                             .moments = tess_optimizer_moments(o),
                             .lr_scale = 1,
                             .copy = TESS_BF16,
                             .clip = kind & 1,
                             .name = "h.0.w"};
        update_set_env(o, kind);
        update_buffers(a.moments, a.n, 0, TESS_F32, a.clip, kind & 2 ? NAN : 1, kind & 4 ? NAN : 1);
        op_any("copy", a.n, TESS_BF16, false);
        if (kind & 6) op_stay();
        if ((kind & 6) == 4) op_fails("h.0.w: the gradient is not finite");
        op_run(&tess_optimizer_kind_of(o)->update[TESS_F32], &a);
    }
}

/* Rows of matrices whose moments are in fewer bits: what is here of a row of the whole, in three runs of rows. */
static const struct {
    int64_t rows, width, whole, column;
} update_rows[] = {{7, 768, 768, 0}, {4, 384, 768, 384}, {5, 33, 67, 34},   {9, 8, 8, 0},
                   {3, 257, 257, 0}, {1, 1024, 1024, 0}, {300, 768, 768, 0} /* more than a part */};

static void update_kept(const tess_optimizer *o, tess_keeping as, tess_dtype gradient, int kind)
{
    static const char *const name[TESS_MOMENTS_MOST] = {"m", "v"};
    const int rows_of = kind % (int)(sizeof update_rows / sizeof *update_rows);
    const int64_t rows = op_speed ? 1024 : update_rows[rows_of].rows, width = update_rows[rows_of].width;
    const int64_t n = rows * width, before_it = op_speed ? 0 : kind % 3 * 4;
    tess_update_arg a = {.n = n,
                         .optimizer = o,
                         .moments = tess_optimizer_moments(o),
                         .weight_decay = 0.1,
                         .lr_scale = 1,
                         .gradient = gradient,
                         .copy = kind % 3 ? TESS_BF16 + kind % 2 : TESS_F32,
                         .clip = kind & 1,
                         .kept = {as, width, update_rows[rows_of].whole, update_rows[rows_of].column},
                         .name = "w"};
    a.at_master = a.at_gradient = a.at_copy = before_it;
    for (int part = 0; part < TESS_KEPT_PARTS; part++) {
        a.kept.part[part].rows = rows / 3 + (part == 2 ? rows % 3 : 0);
        a.kept.part[part].first = 1000 * part;
    }
    a.kept.dice = 77;
    update_set_env(o, kind);
    op_draw(op_any("master", n + before_it, TESS_F32, true), n + before_it, TESS_F32, 1);
    for (int m = 0; m < a.moments; m++) {
        const bool positive = tess_optimizer_kind_of(o)->positive >> m & 1;
        float *x = tess_alloc((size_t)n * sizeof *x);
        op_draw(x, n, TESS_F32, m ? 0.01 : 0.1);
        for (int64_t i = 0; i < n; i++) {
            if (i % 7 == 3) x[i] *= 1e-4f;
            if (i / width % 5 == 2)
                x[i] = i / width % 2 ? x[i] * 1e-36f : 0; /* rows of next to nothing, and of nothing */
            if (positive) x[i] = fabsf(x[i]);
        }
        void *to = op_any(name[m], (int64_t)tess_kept_bytes(&a.kept, rows) / 2, TESS_BF16, true);
        memset(to, 0, tess_kept_bytes(&a.kept, rows));
        tess_kept_write(&a.kept, to, rows, positive, 0, rows, x);
        free(x);
    }
    void *g = op_drawn("gradient", n + before_it, gradient, 1e-3);
    for (int64_t i = 0; i < n + before_it; i++)
        if (i / width % 5 == 2) tess_store(g, i, gradient, 0);
    double *loss = op_raw("loss", 2, OP_DOUBLE);
    loss[0] = loss[1] = 1;
    if (a.clip) {
        double *norm = op_raw("norm", 1, OP_DOUBLE);
        *norm = kind == 5 ? NAN : 7;
        if (kind == 5) op_fails("w: the gradient is not finite");
    } else
        update_sum(g, before_it, n, gradient);
    if (a.copy != TESS_F32) op_any("copy", n + before_it, a.copy, true);
    op_run(&tess_optimizer_kind_of(o)->update[TESS_F32], &a);
}

/* In each of the forms that moments and the gradient can have. The descriptions behind draw what they would without
 * these. */
static void update_each_form(const tess_optimizer *o)
{
    const uint64_t dice = op_dice;
    OP_EACH_LENGTH(n)
    for (int kind = op_speed ? 4 : 0; kind < (op_speed ? 6 : 8); kind++) update_task(o, n, kind, true);
    for (int as = TESS_KEEP_BF16; as <= TESS_KEEP_INT8; as++) {
        tess_optimizer kept = *o;
        kept.keeping = (tess_keeping)as;
        if (tess_optimizer_check(&kept) != TESS_OK) continue;
        for (int kind = 0; kind < (op_speed ? 1 : (int)(sizeof update_rows / sizeof *update_rows)); kind++)
            for (int few = 0; few < 2; few++) update_kept(o, (tess_keeping)as, few ? TESS_BF16 : TESS_F32, kind);
    }
    op_dice = dice;
}

/* More as a bundle than a launch has room for, some with moments in fewer bits; with `bad` one is not finite. */
static void update_together(const tess_optimizer *o, bool bad)
{
    enum { PARTS = 30, BUFFERS = 5 + TESS_MOMENTS_MOST };
    static tess_update_arg a[PARTS];
    static uint16_t buf[PARTS][BUFFERS];
    const int moments = tess_optimizer_moments(o);
    tess_bundle_part part[PARTS];
    update_set_env(o, 0);
    for (int k = 0; k < PARTS; k++) {
        const int first = op_buffers;
        a[k] = (tess_update_arg){.n = k % 4 == 3 ? 8 * 256 : 300 * k + 1,
                                 .optimizer = o,
                                 .moments = moments,
                                 .weight_decay = 0.1 * (k % 2),
                                 .lr_scale = 1 + k,
                                 .gradient = k % 7 == 2 ? TESS_BF16 : TESS_F32,
                                 .copy = k % 3 ? TESS_BF16 + k % 2 : TESS_F32,
                                 .clip = k % 5 == 1,
                                 .name = k == 20 ? "w" : "b"};
        if (k % 4 == 3 && moments) a[k].kept = (tess_kept){TESS_KEEP_BF16, 256, 256, 0, .part = {{.rows = 8}}};
        a[k].at_master = a[k].at_gradient = a[k].at_copy = k % 3 * 4;
        update_buffers(moments, a[k].n, a[k].at_master, a[k].gradient, a[k].clip, 1, bad && k == 20 ? NAN : 1);
        for (int m = 0; m < moments && k % 4 == 3; m++)
            memset(op_buffer[first + 1 + m].data, 0, 8 * 256 * sizeof(float));
        if (a[k].copy != TESS_F32) op_any("copy", a[k].n + a[k].at_copy, a[k].copy, true);
        const unsigned n = (unsigned)(op_buffers - first);
        for (unsigned i = 0; i < n; i++) buf[k][i] = (uint16_t)(first + (int)i);
        part[k] = (tess_bundle_part){tess_optimizer_kind_of(o)->update, &a[k], buf[k], n};
    }
    if (bad) op_fails("w: the gradient is not finite");
    op_run(&tess_bundle_either[TESS_F32], &(tess_bundle_arg){PARTS, part});
}

/* With each of these numbers. */
static void update_each(const tess_optimizer *o, int n)
{
    for (int k = 0; k < n; k++) {
        update_tasks(&o[k]);
        if (!op_speed) update_not_finite(&o[k]);
        update_each_form(&o[k]);
        for (int bad = 0; bad < 2 && !op_speed; bad++) update_together(&o[k], bad);
    }
}
#endif
