/* The bodies chosen for this machine's vectors give the bits of the same bodies compiled without any choice. */
#define CHECK_MAIN
#define TESS_PLAIN
#include "body.h"

/* Second codelets, from the same files, under other names. */
#define tess_layernorm_forward  plain_layernorm_forward
#define tess_layernorm_backward plain_layernorm_backward
#define tess_rmsnorm_forward    plain_rmsnorm_forward
#define tess_rmsnorm_backward   plain_rmsnorm_backward
#define tess_gelu_forward       plain_gelu_forward
#define tess_gelu_backward      plain_gelu_backward
#define tess_silu_forward       plain_silu_forward
#define tess_silu_backward      plain_silu_backward
#define tess_rope_forward       plain_rope_forward
#define tess_rope_backward      plain_rope_backward
#define tess_dropout_forward    plain_dropout_forward
#define tess_dropout_backward   plain_dropout_backward
#define tess_adamw              plain_adamw
#define tess_square_sum         plain_square_sum
#define tess_exact_add          plain_exact_add
#define tess_exact_round        plain_exact_round
#define tess_exact_bytes        plain_exact_bytes
#define tess_exact_value        plain_exact_value
#define tess_finite             plain_finite
#define tess_fill               plain_fill
#define tess_fill_normal        plain_fill_normal
#define tess_round              plain_round
size_t tess_exact_bytes(void);
double tess_exact_value(const void *sum);
#include "../../codelets/adamw.c"
#include "../../codelets/dropout.c"
#include "../../codelets/exact.c"
#include "../../codelets/fill.c"
#include "../../codelets/finite.c"
#include "../../codelets/gelu.c"
#include "../../codelets/layernorm.c"
#include "../../codelets/rmsnorm.c"
#include "../../codelets/rope.c"
#include "../../codelets/silu.c"
#undef tess_layernorm_forward
#undef tess_layernorm_backward
#undef tess_rmsnorm_forward
#undef tess_rmsnorm_backward
#undef tess_gelu_forward
#undef tess_gelu_backward
#undef tess_silu_forward
#undef tess_silu_backward
#undef tess_rope_forward
#undef tess_rope_backward
#undef tess_dropout_forward
#undef tess_dropout_backward
#undef tess_adamw
#undef tess_square_sum
#undef tess_exact_bytes
#undef tess_exact_value
#undef tess_fill_normal
extern tess_codelet tess_layernorm_forward[], tess_layernorm_backward[], tess_rmsnorm_forward[];
extern tess_codelet tess_rmsnorm_backward[], tess_gelu_forward[], tess_gelu_backward[], tess_silu_forward[];
extern tess_codelet tess_silu_backward[], tess_rope_forward[], tess_rope_backward[], tess_dropout_forward[];
extern tess_codelet tess_dropout_backward[], tess_adamw[], tess_square_sum[], tess_fill_normal[];

enum { ROWS = 37, WIDTH = 65, ALL = ROWS * WIDTH };

/* Runs both on the same random buffers; `kind` has a letter a buffer: r real, f fp32, p positive fp32, d doubles,
 * each of `size` elements. */
static void compare(tess_codelet *clone, tess_codelet *plain, const void *arg, const char *kind, const int64_t *size)
{
    void *a[8], *b[8];
    size_t bytes[8];
    unsigned n = (unsigned)strlen(kind);
    for (unsigned i = 0; i < n; i++) {
        tess_dtype t = kind[i] == 'r' ? clone->dtype : TESS_F32;
        double *x = new_values(size[i], 2);
        for (int64_t k = 0; k < size[i] && kind[i] == 'p'; k++) x[k] = fabs(x[k]) + 0.1;
        bytes[i] = kind[i] == 'd' ? (size_t)size[i] * sizeof(double) : (size_t)size[i] * tess_dtype_size(t);
        a[i] = kind[i] == 'd' ? zeros(size[i]) : real_of(x, size[i], t);
        b[i] = copy_of(a[i], bytes[i]);
    }
    run_body(clone, arg, a, n);
    run_body(plain, arg, b, n);
    for (unsigned i = 0; i < n; i++) {
        if (memcmp(a[i], b[i], bytes[i])) CHECK_SAY("%s %s: buffer %u differs", clone->name, plain->name, i);
    }
    forget();
}
#define COMPARE(op, t, arg, kind, ...) compare(&tess_##op[t], &plain_##op[t], arg, kind, (int64_t[]){__VA_ARGS__})

TEST(norms)
{
    tess_norm_arg a = {.rows = ROWS, .width = WIDTH, .eps = 1e-5f, .acc = true, .acc_param = true};
    EACH_REAL(t)
    {
        COMPARE(layernorm_forward, t, &a, "rffrf", ALL, WIDTH, WIDTH, ALL, 2 * ROWS);
        COMPARE(layernorm_backward, t, &a, "rrfprff", ALL, ALL, WIDTH, 2 * ROWS, ALL, WIDTH, WIDTH);
        COMPARE(rmsnorm_forward, t, &a, "rfrf", ALL, WIDTH, ALL, ROWS);
        COMPARE(rmsnorm_backward, t, &a, "rrfprf", ALL, ALL, WIDTH, ROWS, ALL, WIDTH);
    }
}

TEST(maps)
{
    EACH_REAL(t)
    {
        for (int kind = 0; kind < 2; kind++) {
            tess_map_arg a = {.n = ALL, .kind = kind, .acc = kind};
            COMPARE(gelu_forward, t, &a, "rr", ALL, ALL);
            COMPARE(gelu_backward, t, &a, "rrr", ALL, ALL, ALL);
            COMPARE(silu_forward, t, &a, "rr", ALL, ALL);
            COMPARE(silu_backward, t, &a, "rrr", ALL, ALL, ALL);
        }
    }
}

TEST(rope_and_dropout)
{
    EACH_REAL(t)
    {
        for (int half = 0; half < 2; half++) {
            tess_rope_arg a = {.rows = ROWS, .sequence = ROWS, .heads = 1, .dim = WIDTH, .rotary = 50, .base = 10000};
            a.half = a.acc = half;
            COMPARE(rope_forward, t, &a, "rr", ALL, ALL);
            COMPARE(rope_backward, t, &a, "rr", ALL, ALL);
        }
        tess_dropout_arg d = {.rows = ROWS, .width = WIDTH, .p = 0.3f, .acc = true};
        COMPARE(dropout_forward, t, &d, "rr", ALL, ALL);
        COMPARE(dropout_backward, t, &d, "rr", ALL, ALL);
    }
}

TEST(parameters)
{
    env.lr = 1e-3f, env.beta1 = 0.9f, env.beta2 = 0.999f, env.bias1 = 0.3f, env.bias2 = 0.01f, env.eps = 1e-8f;
    env.weight_decay = 0.1f;
    for (int copy = 0; copy < 2; copy++) {
        tess_adamw_arg a = {.n = ALL, .decay = true, .copy = copy, .name = "w"};
        COMPARE(adamw, TESS_F32, &a, "ffpfddf", ALL, ALL, ALL, ALL, 1, tess_exact_bytes() / sizeof(double), ALL);
    }
    tess_count_arg count = {.n = ALL, .value = 0.02f};
    tess_square_arg square = {.n = ALL, .row = WIDTH};
    COMPARE(square_sum, TESS_F32, &square, "fd", ALL, tess_exact_bytes() / sizeof(double));
    COMPARE(fill_normal, TESS_F32, &count, "f", ALL);
}
