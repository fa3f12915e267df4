/* Every CUDA body against the CPU's on the same random inputs, outputs poisoned: relative error in norm 1e-5 in fp32,
 * 1e-2 in bf16, and no bit where the codelet says that both are the same. Built twice: with the bodies as they are, on
 * a GPU (exit 77 without one), and with their source emulated on the CPU. TESS_SEED draws other inputs. */
#define main check_main
#define CHECK_MAIN
#include "../codelets/body.h"
#undef main
#include "device.h"

#ifdef TESS_EMULATED
#define CUDA_BODY(name) tess_emulated_##name
#else
#define CUDA_BODY(name) tess_cuda_##name
#endif
enum { BUFFERS = 320, ROOM = 64 << 20 };

/* ---- buffers, on both sides ---------------------------------------------------------------------------------------
 */

enum { DOUBLE = TESS_DTYPE_COUNT, BITS }; /* types of elements, after those of tess_dtype; BITS: of a double's size */
enum kind { IN, OUT, SCRATCH };

static struct both {
    void *cpu, *gpu;
    int64_t n;
    int type;
    enum kind kind;
    const char *name;
} buffer[BUFFERS];
static int buffers;
static void *room;
static struct tess_kernel_fault *fault;

static size_t size_of(int type)
{
    return type >= DOUBLE ? sizeof(double) : tess_dtype_size((tess_dtype)type);
}

static void *add(const char *name, int64_t n, int type, enum kind kind)
{
    TESS_ASSERT(buffers < BUFFERS);
    struct both *b = &buffer[buffers++];
    size_t bytes = (size_t)n * size_of(type);
    *b = (struct both){poison(bytes), device_new(bytes), n, type, kind, name};
    return b->cpu;
}
static void draw(void *to, int64_t n, int type, double size)
{
    for (int64_t i = 0; i < n; i++) {
        double x = size * (roll() + roll() + roll());
        if (type == TESS_BF16)
            ((tess_bf16 *)to)[i] = tess_to_bf16((float)x);
        else if (type == TESS_F32)
            ((float *)to)[i] = (float)x;
        else
            ((double *)to)[i] = x;
    }
}
static void *in(const char *name, int64_t n, int type, double size)
{
    void *p = add(name, n, type, IN);
    draw(p, n, type, size);
    return p;
}
/* Poisoned; with acc something to add to. */
static void *out(const char *name, int64_t n, int type, bool acc)
{
    void *p = add(name, n, type, OUT);
    if (acc) draw(p, n, type, 1);
    return p;
}
static int32_t *indices(const char *name, int64_t n, int64_t below)
{
    int32_t *p = add(name, n, TESS_I32, IN);
    for (int64_t i = 0; i < n; i++) p[i] = (int32_t)(fabs(roll()) * (double)below) % (int32_t)below;
    return p;
}

static void forget_all(void)
{
    for (int i = 0; i < buffers; i++) device_free(buffer[i].gpu);
    buffers = 0;
    forget();
}

static double value(const void *p, int64_t i, int type)
{
    return type == DOUBLE ? ((const double *)p)[i] : element(p, i, (tess_dtype)type);
}

static void compare(const struct both *b, bool same, const char *what)
{
    size_t bytes = (size_t)b->n * size_of(b->type);
    void *got = bytes_of(bytes);
    device_get(got, b->gpu, bytes);
    if (same) {
        if (memcmp(got, b->cpu, bytes)) CHECK_SAY("%s: %s has other bits", what, b->name);
        return;
    }
    double off = 0, size = 0, limit = b->type == TESS_BF16 ? 1e-2 : b->type == TESS_F32 ? 1e-5 : 1e-6;
    for (int64_t i = 0; i < b->n; i++) {
        double x = value(got, i, b->type), want = value(b->cpu, i, b->type);
        if (isnan(x) && isnan(want)) continue; /* neither wrote it */
        off += (x - want) * (x - want);
        size += want * want;
    }
    off = sqrt(off / (size > 0 ? size : 1));
    if (!(off <= limit)) CHECK_SAY("%s: %s is off by %g", what, b->name, off);
}

/* Runs both bodies on the buffers and compares all outputs; frees them. */
static void run_both(tess_codelet *cl, tess_body cuda, const void *arg)
{
    tess_view cpu[BUFFERS], gpu[BUFFERS];
    char what[96];
    snprintf(what, sizeof what, "%s %s", cl->name, tess_dtype_name(cl->dtype));
    for (int i = 0; i < buffers; i++) {
        size_t bytes = (size_t)buffer[i].n * size_of(buffer[i].type);
        cpu[i] = (tess_view){buffer[i].cpu, bytes};
        gpu[i] = (tess_view){buffer[i].gpu, bytes};
        device_put(buffer[i].gpu, buffer[i].cpu, bytes);
    }
    tess_task task = {.cl = cl, .arg = arg, .order = 7};
    tess_work w = {.buf = cpu, .nbuf = (unsigned)buffers, .arg = arg, .env = &env, .task = &task};
    char said[sizeof failure];
    failure[0] = 0;
    cl->cpu(&w);
    memcpy(said, failure, sizeof said);
    failure[0] = 0;
    *fault = (tess_kernel_fault){0};
    w.buf = gpu;
    w.room = room;
    w.room_bytes = ROOM;
    w.fault = fault;
    cuda(&w);
    const char *error = device_error();
    if (error) {
        printf("%s: %s\n", what, error);
        exit(1); /* the device is of no use after that */
    }
    if (failure[0]) CHECK_SAY("%s: %s", what, failure);
    if (fault->set) CHECK_EQ(fault->order, 7);
    if (fault->set && fault->element < 0)
        snprintf(failure, sizeof failure, "%s: the gradient is not finite", fault->name);
    else if (fault->set)
        snprintf(failure, sizeof failure, "%s: element %lld is %g", fault->name, (long long)fault->element,
                 fault->value);
    if (strcmp(said, failure)) CHECK_SAY("%s: \"%s\" failed, expected \"%s\"", what, failure, said);
    for (int i = 0; i < buffers; i++)
        if (buffer[i].kind == OUT) compare(&buffer[i], cl->either, what);
    forget_all();
}

#define DECLARE(op)                                                                                                    \
    extern void CUDA_BODY(op##_f32)(const tess_work *w);                                                               \
    extern void CUDA_BODY(op##_bf16)(const tess_work *w);                                                              \
    static void run_##op(tess_dtype t, const void *arg)                                                                \
    {                                                                                                                  \
        run_both(&tess_##op[t], t == TESS_BF16 ? CUDA_BODY(op##_bf16) : CUDA_BODY(op##_f32), arg);                     \
    }
#define DECLARE_ONE(op, type)                                                                                          \
    extern void CUDA_BODY(op##_##type)(const tess_work *w);                                                            \
    static void run_##op(tess_dtype t, const void *arg)                                                                \
    {                                                                                                                  \
        run_both(&tess_##op[t], CUDA_BODY(op##_##type), arg);                                                          \
    }
#define EACH_ACC(acc) for (int acc = 0; acc < 2; acc++)

/* ---- elementwise --------------------------------------------------------------------------------------------------
 */

DECLARE(add_forward)
DECLARE(add_into)
DECLARE(add_sum)
DECLARE(mul_forward)
DECLARE(mul_backward)
DECLARE(gelu_forward)
DECLARE(gelu_backward)
DECLARE(silu_forward)
DECLARE(silu_backward)

static const int64_t LENGTHS[] = {1, 7, 8, 2048, 5003};
#define EACH_LENGTH(n)                                                                                                 \
    for (size_t at_ = 0; at_ < 5; at_++)                                                                               \
        for (int64_t n = LENGTHS[at_], once_ = 1; once_; once_ = 0)

TEST(sums_and_products)
{
    EACH_REAL(t) EACH_LENGTH(n) EACH_ACC(acc)
    {
        tess_map_arg a = {.n = n, .acc = acc};
        in("a", n, t, 1), in("b", n, t, 1), out("y", n, t, false);
        run_add_forward(t, &a);
        in("x", n, t, 1), out("y", n, t, acc);
        run_add_into(t, &a);
        in("a", n, t, 1), in("b", n, t, 1), out("y", n, t, false);
        run_mul_forward(t, &a);
        in("dy", n, t, 1), in("b", n, t, 1), out("da", n, t, acc);
        run_mul_backward(t, &a);
        for (a.first = 0; a.first < 14; a.first += 5) {
            in("x", n, TESS_F32, 1), out("y", n + 20, t, acc);
            run_add_sum(t, &a);
        }
        a.first = 0;
    }
}

TEST(activations)
{
    EACH_REAL(t) EACH_LENGTH(n) EACH_ACC(acc) for (int kind = 0; kind < 3; kind++)
    {
        tess_map_arg a = {.n = n, .acc = acc, .kind = kind};
        in("x", n, t, 3), out("y", n, t, false);
        if (kind < 2)
            run_gelu_forward(t, &a);
        else
            run_silu_forward(t, &a);
        in("dy", n, t, 1), in("x", n, t, 3), out("dx", n, t, acc);
        if (kind < 2)
            run_gelu_backward(t, &a);
        else
            run_silu_backward(t, &a);
    }
}

/* Far out they are x or 0, never NaN. */
TEST(activations_far_out)
{
    EACH_REAL(t) for (int kind = 0; kind < 3; kind++)
    {
        tess_map_arg a = {.n = 40, .kind = kind};
        in("x", a.n, t, 100), out("y", a.n, t, false);
        (kind < 2 ? run_gelu_forward : run_silu_forward)(t, &a);
        in("dy", a.n, t, 1), in("x", a.n, t, 100), out("dx", a.n, t, false);
        (kind < 2 ? run_gelu_backward : run_silu_backward)(t, &a);
    }
}

/* ---- norms, rope, dropout, pick -----------------------------------------------------------------------------------
 */

DECLARE(layernorm_forward)
DECLARE(layernorm_backward)
DECLARE(rmsnorm_forward)
DECLARE(rmsnorm_backward)

TEST(norms)
{
    static const int64_t shape[][2] = {{1, 5}, {37, 64}, {3, 1000}, {5, 2056}, {140, 9}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) EACH_REAL(t) EACH_ACC(acc)
        {
            const int64_t rows = shape[k][0], width = shape[k][1], n = rows * width;
            tess_norm_arg a = {.rows = rows, .width = width, .eps = 1e-5f, .acc = acc, .acc_param = !acc};
            in("x", n, t, 1), in("gain", width, TESS_F32, 1), in("bias", width, TESS_F32, 1);
            out("y", n, t, false), out("stats", 2 * rows, TESS_F32, false);
            run_layernorm_forward(t, &a);
            in("x", n, t, 1), in("gain", width, TESS_F32, 1), out("y", n, t, false);
            out("stats", rows, TESS_F32, false);
            run_rmsnorm_forward(t, &a);

            in("dy", n, t, 1), in("x", n, t, 1), in("gain", width, TESS_F32, 1);
            float *stats = in("stats", 2 * rows, TESS_F32, 1);
            for (int64_t r = 0; r < 2 * rows; r++) stats[r] = 0.1f + fabsf(stats[r]) / 4;
            out("dx", n, t, acc), out("dgain", width, TESS_F32, !acc), out("dbias", width, TESS_F32, !acc);
            run_layernorm_backward(t, &a);
            in("dy", n, t, 1), in("x", n, t, 1), in("gain", width, TESS_F32, 1);
            stats = in("stats", rows, TESS_F32, 1);
            for (int64_t r = 0; r < rows; r++) stats[r] = 0.1f + fabsf(stats[r]) / 4;
            out("dx", n, t, acc), out("dgain", width, TESS_F32, !acc);
            run_rmsnorm_backward(t, &a);
        }
}

DECLARE(rope_forward)
DECLARE(rope_backward)

TEST(rope)
{
    static const tess_rope_arg kind[] = {
        {.rows = 74, .sequence = 37, .heads = 3, .dim = 16, .rotary = 16, .half = true},
        {.rows = 40, .sequence = 40, .heads = 2, .dim = 20, .rotary = 12},
        {.rows = 5, .sequence = 5, .heads = 1, .dim = 130, .rotary = 128, .half = true},
        {.rows = 40,
         .sequence = 40,
         .heads = 2,
         .dim = 16,
         .rotary = 16,
         .half = true,
         .scaling = {TESS_ROPE_LINEAR, .factor = 3}},
        {.rows = 90,
         .sequence = 90,
         .heads = 1,
         .dim = 64,
         .rotary = 64,
         .half = true,
         .scaling = {TESS_ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .length = 32}}};
    for (size_t k = 0; k < sizeof kind / sizeof *kind; k++) EACH_REAL(t) EACH_ACC(acc)
        {
            tess_rope_arg a = kind[k];
            const int64_t n = a.rows * a.heads * a.dim;
            a.base = 10000;
            a.acc = acc;
            in("x", n, t, 1), out("y", n, t, false);
            run_rope_forward(t, &a);
            in("dy", n, t, 1), out("dx", n, t, acc);
            run_rope_backward(t, &a);
        }
}

DECLARE(dropout_forward)
DECLARE(dropout_backward)

/* The mask is the CPU's: a single element that only one keeps would be off by far more than the limit. */
TEST(dropout)
{
    for (int train = 0; train < 2; train++) EACH_REAL(t) EACH_ACC(acc)
        {
            tess_dropout_arg a = {.rows = 61, .width = 83, .row0 = 1 << 28, .op = 5, .p = 0.3f, .acc = acc};
            const int64_t n = a.rows * a.width;
            env.train = train;
            in("x", n, t, 1), out("y", n, t, false);
            run_dropout_forward(t, &a);
            in("dy", n, t, 1), out("dx", n, t, acc);
            run_dropout_backward(t, &a);
        }
    env.train = true;
}

DECLARE(pick_forward)
DECLARE(pick_backward)

TEST(pick)
{
    EACH_REAL(t) EACH_ACC(acc)
    {
        tess_pick_arg a = {.rows = 60, .width = 33, .sequence = 12, .acc = acc};
        in("x", a.rows * a.width, t, 1), indices("index", 5, 12), out("y", 5 * a.width, t, false);
        run_pick_forward(t, &a);
        in("dy", 5 * a.width, t, 1), indices("index", 5, 12), out("dx", a.rows * a.width, t, acc);
        run_pick_backward(t, &a);
    }
}

/* ---- embedding ----------------------------------------------------------------------------------------------------
 */

DECLARE(embedding_forward)
DECLARE(embedding_backward)
DECLARE(embedding_backward_position)

TEST(embedding)
{
    EACH_REAL(t) EACH_ACC(acc) for (int64_t width = 24; width < 40; width += 13) for (int tiles = 0; tiles < 3; tiles++)
    {
        tess_embedding_arg a = {.rows = 76,
                                .width = width,
                                .sequence = 38,
                                .rows_of_table = 50,
                                .first = 16,
                                .count = 20,
                                .acc = acc,
                                .position_tiles = tiles,
                                .position_tile_rows = tiles ? 20 : 0};
        indices("id", a.rows, 50), out("y", a.rows * width, t, true), in("table", a.count * width, t, 1);
        for (int j = 0; j < tiles; j++) in("position", 20 * width, t, 1);
        if (tiles != 1)
            run_embedding_forward(t, &a);
        else
            forget_all(); /* one tile of positions is too few for this sequence */
        /* Few tokens, many times each; and more rows than a block looks at in one go. */
        a.rows = 38 * 21;
        indices("id", a.rows, tiles ? 50 : 18), in("dy", a.rows * width, t, 1);
        out("dtable", a.count * width, TESS_F32, acc);
        run_embedding_backward(t, &a);
        in("dy", a.rows * width, t, 1), out("dposition", a.count * width, TESS_F32, acc);
        run_embedding_backward_position(t, &a);
        a.first = 30; /* beyond the sequence */
        in("dy", a.rows * width, t, 1), out("dposition", a.count * width, TESS_F32, acc);
        run_embedding_backward_position(t, &a);
    }
}

/* Wider than one thread's columns. */
TEST(embedding_wide)
{
    EACH_REAL(t) for (int64_t width = 8200; width < 8202; width++)
    {
        tess_embedding_arg a = {.rows = 6, .width = width, .sequence = 6, .rows_of_table = 3, .count = 3};
        indices("id", a.rows, 3), in("dy", a.rows * width, t, 1), out("dtable", 3 * width, TESS_F32, false);
        run_embedding_backward(t, &a);
    }
}

/* ---- the optimizer, sums, filling: the very bits ------------------------------------------------------------------
 */

DECLARE_ONE(adamw, f32)
DECLARE_ONE(square_sum, f32)
DECLARE_ONE(exact_add, f32)
DECLARE_ONE(exact_round, f32)
DECLARE_ONE(tree_sum, f32)
DECLARE_ONE(copy, f32)
DECLARE_ONE(fill_normal, f32)
DECLARE_ONE(round, bf16)
DECLARE(fill)
DECLARE(span_sum)
extern void CUDA_BODY(all_finite_f32)(const tess_work *w), CUDA_BODY(all_finite_bf16)(const tess_work *w);
static void run_finite(tess_dtype t, const void *arg)
{
    run_both(&tess_finite[t], t == TESS_BF16 ? CUDA_BODY(all_finite_bf16) : CUDA_BODY(all_finite_f32), arg);
}

static void set_optimizer(int kind)
{
    env.lr = 1e-3, env.beta1 = 0.9, env.beta2 = 0.95, env.eps = 1e-8, env.weight_decay = 0.1;
    env.bias1 = 1 - pow(env.beta1, kind + 1), env.bias2 = 1 - pow(env.beta2, kind + 1);
    env.clip = kind & 1 ? 0.5 : 0;
}

/* With elements before those of the task, `before` of them. */
static void add_states(int64_t n, int64_t before, bool clip, double bad_loss, double bad_norm)
{
    draw(add("master", n + before, TESS_F32, OUT), n + before, TESS_F32, 1);
    draw(add("m", n, TESS_F32, OUT), n, TESS_F32, 0.1);
    float *v = add("v", n, TESS_F32, OUT);
    draw(v, n, TESS_F32, 0.01);
    for (int64_t i = 0; i < n; i++) v[i] = i % 5 ? fabsf(v[i]) : 1e-42f * (float)i; /* denormals too */
    float *g = in("gradient", n + before, TESS_F32, 1e-3);
    g += before;
    if (!clip && isnan(bad_norm)) g[n / 2] = NAN;
    double *loss = add("loss", 2, DOUBLE, IN);
    loss[0] = bad_loss, loss[1] = 1;
    if (clip) {
        double *norm = add("norm", 1, DOUBLE, IN);
        *norm = isnan(bad_norm) ? NAN : 7;
    } else {
        void *sum = add("sum", (int64_t)(tess_exact_bytes() / sizeof(double)), BITS, IN);
        tess_view view[] = {{g, (size_t)n * sizeof *g}, {sum, tess_exact_bytes()}};
        tess_square_arg a = {.n = n, .row = n};
        tess_square_sum[TESS_F32].cpu(&(tess_work){.buf = view, .nbuf = 2, .arg = &a, .env = &env});
    }
}

TEST(adamw)
{
    static tess_env before;
    EACH_LENGTH(n) for (int kind = 0; kind < 16; kind++)
    {
        tess_adamw_arg a = {.n = n,
                            .decay = kind & 2,
                            .l2 = kind & 4,
                            .copy = kind & 8,
                            .clip = kind & 1,
                            .late = kind % 3 == 1,
                            .name = "w"};
        set_optimizer(kind);
        before = env;
        before.lr = 2e-3;
        env.before = &before;
        const int64_t before_it = kind % 3 * 4; /* 4: aligned in some, not in all */
        a.at_master = a.at_gradient = a.at_copy = before_it;
        add_states(n, before_it, a.clip, 1, 1);
        if (a.copy) out("copy", n + before_it, TESS_BF16, true);
        run_adamw(TESS_F32, &a);
    }
}

/* Nothing changes, and the right one is blamed. */
TEST(adamw_not_finite)
{
    for (int kind = 0; kind < 8; kind++) {
        tess_adamw_arg a = {.n = 100, .copy = true, .clip = kind & 1, .name = "h.0.w"};
        set_optimizer(kind);
        add_states(a.n, 0, a.clip, kind & 2 ? NAN : 1, kind & 4 ? NAN : 1);
        out("copy", a.n, TESS_BF16, false);
        run_adamw(TESS_F32, &a);
    }
}

TEST(square_sum)
{
    static const int64_t shape[][2] = {{1, 1},         {63, 64},       {64, 7},        {8193, 8192},
                                       {40000, 20000}, {600000, 2048}, {90000, 600000}};
    static const double size[] = {1, 1e-30, 1e18};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        for (int kind = 0; kind < 9; kind++) {
            const int64_t n = shape[k][0], first = kind % 2 ? 5 : 0;
            const int bad = kind % 3;
            tess_square_arg a = {.n = n, .first = first, .row = shape[k][1], .name = "w"};
            float *x = in("x", n + first, TESS_F32, size[kind / 3]);
            if (bad) x[first + n / 2] = INFINITY;
            out("sum", (int64_t)(tess_exact_bytes() / sizeof(double)), BITS, false);
            if (bad) *(double *)in("loss", 2, DOUBLE, 1) = bad == 1 ? 2 : NAN;
            run_square_sum(TESS_F32, &a);
        }
}

/* Sums of sums and of doubles, of all sizes and signs, more than a launch brings along; rounded, also where a term was
 * not finite. */
TEST(exact_sums)
{
    enum { MANY = 300 };
    static const int counts[] = {1, 2, 64, 128, 129, MANY};
    const int64_t words = (int64_t)(tess_exact_bytes() / sizeof(double));
    for (int kind = 0; kind < 16; kind++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const int64_t n = kind & 4 ? 3 : 1;
            const bool doubles = kind & 1;
            tess_exact_arg a = {.n = n, .doubles = doubles, .acc = kind & 2}, one = {.n = n, .doubles = true};
            double *sum = add("sum", n * words, BITS, OUT), term[4];
            for (int64_t i = 0; i < n; i++) term[i] = i ? -1e-310 : 1e300;
            if (a.acc) {
                tess_view view[] = {{sum, (size_t)n * tess_exact_bytes()}, {term, sizeof term}};
                tess_exact_add[TESS_F32].cpu(&(tess_work){.buf = view, .nbuf = 2, .arg = &one, .env = &env});
            }
            for (int b = 0; b < counts[c]; b++) {
                for (int64_t i = 0; i < n; i++)
                    term[i] = ldexp(b % 2 ? -1.0 / (double)(b + 3 + i) : 0.7 + (double)i, (b * 131) % 2000 - 1000);
                if ((kind & 8) && b == counts[c] / 2) term[0] = b % 3 ? INFINITY : NAN;
                double *x = add("x", doubles ? n : n * words, doubles ? DOUBLE : BITS, IN);
                tess_view view[] = {{x, (size_t)n * tess_exact_bytes()}, {term, sizeof term}};
                if (doubles)
                    memcpy(x, term, (size_t)n * sizeof *x);
                else
                    tess_exact_add[TESS_F32].cpu(&(tess_work){.buf = view, .nbuf = 2, .arg = &one, .env = &env});
            }
            run_exact_add(TESS_F32, &a);
        }
    for (int kind = 0; kind < 64; kind++) {
        tess_exact_arg a = {.n = 40}, one = {.n = 40, .doubles = true};
        double term[40];
        for (int i = 0; i < 40; i++) term[i] = ldexp(i % 2 ? -1 - i / 64.0 : 1.5, (kind * 40 + i) * 97 % 2040 - 1020);
        if (kind % 7 == 3) term[kind % 40] = NAN;
        out("value", a.n, DOUBLE, false);
        void *sum = add("sum", a.n * words, BITS, IN);
        tess_view view[] = {{sum, 40 * tess_exact_bytes()}, {term, sizeof term}, {term, sizeof term}};
        tess_exact_add[TESS_F32].cpu(&(tess_work){.buf = view, .nbuf = 2 + kind % 2, .arg = &one, .env = &env});
        run_exact_round(TESS_F32, &a);
    }
}

/* Leaves of neighbouring buffers and of one, more than a launch brings along, and a sum over one of them. */
TEST(tree_sum)
{
    enum { MANY = 300 };
    tess_tree_part part[MANY];
    EACH_LENGTH(n) for (unsigned parts = 1; parts <= MANY; parts = parts < 7 ? parts + 1 : parts + 98)
    {
        tess_tree_arg a = {.n = n, .out = 3, .parts = parts, .part = part};
        out("out", n + 3, TESS_F32, true);
        in("a", 2 * n, TESS_F32, 1), in("b", n, TESS_F32, 1e-3), in("c", n + 1, TESS_F32, 1e3);
        for (unsigned p = 0; p < parts; p++)
            part[p] = (tess_tree_part){p % 4, p % 5 == 4 ? 1 : 0, p % 4 == 0 ? 3 : p % 4 == 1 ? n : p % 4 == 3};
        run_tree_sum(TESS_F32, &a);
    }
}

/* Ranks first, in between and last, on a run of elements that begins anywhere. */
TEST(span_sum)
{
    static const double size[] = {1, 1e-3, 1e3, 1};
    EACH_REAL(t) EACH_LENGTH(n) for (unsigned kind = 0; kind < 12; kind++)
    {
        const unsigned ranks = 2 + kind % 4;
        tess_span_arg a = {.n = n, .first = 3, .mine = kind % ranks};
        out("x", n + 5, t, true);
        for (unsigned r = 1; r < ranks; r++) in("part", n, t, size[r - 1]);
        run_span_sum(t, &a);
    }
}

TEST(copy)
{
    tess_copy_arg a = {.from = 5, .to = 12, .bytes = 30};
    in("x", 10, TESS_F32, 1), out("y", 12, TESS_F32, true);
    run_copy(TESS_F32, &a);
}

TEST(filling)
{
    EACH_LENGTH(n) for (int apart = 0; apart < 3; apart++)
    {
        tess_count_arg a = {.n = n, .value = 0.02f, .op = 9, .first = 1LL << 33, .at = apart * 4};
        EACH_REAL(t)
        {
            out("x", n + a.at, t, true);
            run_fill(t, &a);
        }
        if (apart) a.width = n % 2 || apart == 1 ? n : n / 2, a.stride = a.width + 1000;
        out("x", n + a.at, TESS_F32, true);
        run_fill_normal(TESS_F32, &a);
        in("master", n, TESS_F32, 1), out("copy", n + a.at, TESS_BF16, true);
        run_round(TESS_BF16, &a);
    }
}

TEST(finite)
{
    static const double bad[] = {1, INFINITY, -INFINITY, NAN};
    EACH_REAL(t) EACH_LENGTH(n) for (int k = 0; k < 4; k++)
    {
        tess_count_arg a = {.n = n, .name = "x"};
        void *x = in("x", n, t, 1);
        for (int64_t at = n - 1; at >= n / 2; at -= 3) { /* the first one counts */
            if (t == TESS_BF16)
                ((tess_bf16 *)x)[at] = tess_to_bf16((float)bad[k]);
            else
                ((float *)x)[at] = (float)bad[k];
        }
        run_finite(t, &a);
    }
}

/* ---- products -----------------------------------------------------------------------------------------------------
 */

DECLARE(linear_forward)
DECLARE(linear_backward_input)
DECLARE(linear_backward_weight)

TEST(linear)
{
    static const int64_t shape[][3] = {{37, 20, 67}, {64, 48, 128}, {130, 33, 5}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        EACH_REAL(t) EACH_ACC(acc) for (int tiled = 0; tiled < 2; tiled++)
        {
            const int64_t rows = shape[k][0], n = shape[k][1], m = shape[k][2], ld = tiled ? m + 24 : m;
            tess_linear_arg a = {.rows = rows,
                                 .in = n,
                                 .out = m,
                                 .ld = ld,
                                 .col = tiled ? 16 : 0,
                                 .bias = !tiled || acc,
                                 .acc = acc,
                                 .acc_bias = tiled,
                                 .sum = tiled && acc};
            in("x", rows * n, t, 1), in("w", m * n, t, 1), out("y", rows * ld, t, true);
            if (a.bias) in("b", m, TESS_F32, 1);
            run_linear_forward(t, &a);
            in("dy", rows * ld, t, 1), in("w", m * n, t, 1), out("dx", rows * n, a.sum ? TESS_F32 : t, acc);
            run_linear_backward_input(t, &a);
            a.row = tiled ? 3 : 0;
            in("dy", rows * ld, t, 1), in("x", (rows + 3) * n, t, 1), out("dw", m * n, TESS_F32, acc);
            if (a.bias) out("db", m, TESS_F32, a.acc_bias);
            run_linear_backward_weight(t, &a);
        }
}

DECLARE(linear_gelu_forward)
DECLARE(gelu_linear_backward)

/* Widths that the library's epilogues take, and others. */
TEST(linear_gelu)
{
    static const int64_t shape[][3] = {{37, 20, 67}, {64, 48, 128}, {130, 33, 8}, {3, 8, 5}};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        EACH_REAL(t) for (int kind = 0; kind < 2; kind++) for (int bias = 0; bias < 2; bias++)
        {
            const int64_t rows = shape[k][0], n = shape[k][1], m = shape[k][2];
            tess_linear_gelu_arg a = {{.rows = rows, .in = n, .out = m, .ld = m, .bias = bias},
                                      {.n = rows * m, .kind = kind}};
            in("x", rows * n, t, 1), in("w", m * n, t, 0.3), out("pre", rows * m, t, false);
            out("y", rows * m, t, false);
            if (bias) in("b", m, TESS_F32, 1);
            run_linear_gelu_forward(t, &a);
            a.gelu.n = rows * n;
            in("dy", rows * m, t, 1), in("w", m * n, t, 1), in("pre", rows * n, t, 2);
            out("dpre", rows * n, t, false);
            run_gelu_linear_backward(t, &a);
        }
}

DECLARE(cross_entropy_logits)
DECLARE_ONE(cross_entropy_rows, f32)
DECLARE(cross_entropy_gradient)

static void targets(int64_t n, int64_t vocab)
{
    int32_t *p = indices("target", n, vocab);
    for (int64_t i = 0; i < n; i += 7) p[i] = -100;
}

TEST(cross_entropy)
{
    enum { ROWS = 45, IN = 24, TILE = 640, VOCAB = 1531, AT = 3 };
    for (int64_t tile = 0; tile < 3; tile++) EACH_REAL(t) for (int kind = 0; kind < 4; kind++)
        {
            const int64_t first = tile * TILE, columns = VOCAB - first < TILE ? VOCAB - first : TILE;
            tess_cross_entropy_arg a = {.rows = ROWS,
                                        .in = IN,
                                        .row = AT,
                                        .first = first,
                                        .out = columns,
                                        .tiles = 3,
                                        .tile_out = TILE,
                                        .vocab = VOCAB,
                                        .bias = kind & 1,
                                        .grad = kind & 2,
                                        .acc = kind & 1};
            const int64_t stats = (int64_t)(tess_cross_entropy_stats(ROWS, columns) / sizeof(float));
            in("x", (ROWS + AT) * IN, t, 0.5), targets(ROWS + AT, VOCAB), in("w", columns * IN, t, 0.5);
            out("stats", stats, TESS_F32, true);
            add("scratch", (int64_t)tess_cross_entropy_scratch() / 4, TESS_F32, SCRATCH);
            if (a.grad) out("p", ROWS * columns, t, false);
            if (a.bias) in("b", columns, TESS_F32, 1);
            run_cross_entropy_logits(t, &a);

            env.loss_scale = 0.01f;
            draw(add("p", ROWS * columns, t, OUT), ROWS * columns, t, 1);
            in("stats", stats, TESS_F32, 1), in("lse", ROWS, TESS_F32, 1), targets(ROWS + AT, VOCAB);
            in("w", columns * IN, t, 1), out("dx", ROWS * IN, TESS_F32, a.acc);
            run_cross_entropy_gradient(t, &a);
        }
    tess_cross_entropy_arg a = {.rows = ROWS, .row = AT, .tiles = 3, .tile_out = TILE, .vocab = VOCAB};
    targets(ROWS + AT, VOCAB), out("lse", ROWS, TESS_F32, false), out("loss", 2, DOUBLE, false);
    for (int64_t tile = 0; tile < 3; tile++) {
        const int64_t columns = tile < 2 ? TILE : VOCAB - 2 * TILE;
        const int64_t n = (int64_t)(tess_cross_entropy_stats(ROWS, columns) / sizeof(float));
        float *stats = in("stats", n, TESS_F32, 3);
        const int64_t strips = (columns + 511) / 512;
        for (int64_t i = strips * ROWS; i < 2 * strips * ROWS; i++) stats[i] = fabsf(stats[i]) + 1;
    }
    run_cross_entropy_rows(TESS_F32, &a);
}

/* ---- attention ----------------------------------------------------------------------------------------------------
 */

DECLARE(attention_forward)
DECLARE(attention_backward)

/* A forward pass of the CPU's, whose y and lse the backward pass takes. */
static void attention(tess_dtype t, tess_attention_arg a)
{
    const int64_t wide = a.heads * a.dim, narrow = a.groups * a.dim, all = wide + 2 * narrow, rows = a.rows;
    const int64_t part[] = {wide, narrow, narrow}, scratch = (int64_t)tess_attention_scratch(&a, t) / 4 + 1;
    const size_t size = tess_dtype_size(t);
    void *x[3], *y = NULL, *lse = NULL;
    for (int j = 0; j < (a.packed ? 1 : 3); j++) x[j] = in("q, k, v", rows * (a.packed ? all : part[j]), t, 0.7);
    void *y0 = out("y", rows * wide, t, false), *lse0 = out("lse", rows * a.heads, TESS_F32, false);
    add("scratch", scratch, TESS_F32, SCRATCH);
    /* What the CPU makes of it, kept for the backward pass. */
    tess_view view[BUFFERS];
    for (int i = 0; i < buffers; i++)
        view[i] = (tess_view){buffer[i].cpu, (size_t)buffer[i].n * size_of(buffer[i].type)};
    tess_attention_forward[t].cpu(&(tess_work){.buf = view, .nbuf = (unsigned)buffers, .arg = &a, .env = &env});
    void *keep[5] = {0};
    for (int j = 0; j < (a.packed ? 1 : 3); j++) {
        size_t bytes = (size_t)(rows * (a.packed ? all : part[j])) * size;
        keep[j] = memcpy(tess_alloc(bytes), x[j], bytes);
    }
    y = memcpy(tess_alloc((size_t)(rows * wide) * size), y0, (size_t)(rows * wide) * size);
    lse = memcpy(tess_alloc((size_t)(rows * a.heads) * 4), lse0, (size_t)(rows * a.heads) * 4);
    run_attention_forward(t, &a);

    in("dy", rows * wide, t, 1);
    for (int j = 0; j < (a.packed ? 1 : 3); j++)
        memcpy(add("q, k, v", rows * (a.packed ? all : part[j]), t, IN), keep[j],
               (size_t)(rows * (a.packed ? all : part[j])) * size);
    memcpy(add("y", rows * wide, t, IN), y, (size_t)(rows * wide) * size);
    memcpy(add("lse", rows * a.heads, TESS_F32, IN), lse, (size_t)(rows * a.heads) * 4);
    static const char *const name[] = {"dq", "dk", "dv"};
    for (int j = 0; j < (a.packed ? 1 : 3); j++)
        out(a.packed ? "dqkv" : name[j], rows * (a.packed ? all : part[j]), t, a.acc);
    add("scratch", scratch, TESS_F32, SCRATCH);
    run_attention_backward(t, &a);
    for (int j = 0; j < 3; j++) free(keep[j]);
    free(y);
    free(lse);
}

static const struct shape {
    int64_t length, sequences, heads, groups, dim;
    bool causal, packed, acc;
    float dropout;
} KINDS[] = {
    /* tensor cores: one block of keys, several, lengths that fill none */
    {64, 1, 1, 1, 64, true, true, false, 0},
    {150, 2, 2, 1, 64, true, false, true, 0},
    {129, 1, 2, 2, 64, false, true, false, 0},
    {70, 2, 2, 1, 64, true, true, true, 0.2f},
    {65, 1, 1, 1, 128, true, true, false, 0},
    {201, 1, 2, 1, 128, true, false, true, 0},
    {130, 1, 1, 1, 128, false, true, false, 0},
    {77, 1, 2, 2, 128, false, false, false, 0.3f},
    {1, 3, 1, 1, 64, true, true, false, 0},
    /* the general kernels */
    {37, 2, 5, 5, 4, true, true, true, 0},
    {33, 1, 4, 2, 40, true, false, false, 0.2f},
    {20, 2, 2, 1, 80, false, true, false, 0},
};

TEST(attention)
{
    for (size_t k = 0; k < sizeof KINDS / sizeof *KINDS; k++)
        for (tess_dtype t = KINDS[k].dim % 64 ? TESS_F32 : TESS_BF16; t <= TESS_BF16; t++) {
            const struct shape *kind = &KINDS[k];
            attention(t, (tess_attention_arg){.rows = kind->length * kind->sequences,
                                              .sequence = kind->length,
                                              .heads = kind->heads,
                                              .groups = kind->groups,
                                              .dim = kind->dim,
                                              .scale = 1 / sqrtf((float)kind->dim),
                                              .dropout = kind->dropout,
                                              .causal = kind->causal,
                                              .packed = kind->packed,
                                              .head0 = k % 2 ? 2 : 0,
                                              .all_heads = k % 2 ? kind->heads + 3 : 0,
                                              .row0 = kind->length * 3,
                                              .op = 4,
                                              .acc = kind->acc});
        }
}

/* fp32 with the heads that tensor cores take in bf16. */
TEST(attention_fp32)
{
    attention(TESS_F32,
              (tess_attention_arg){
                  .rows = 40, .sequence = 40, .heads = 2, .groups = 1, .dim = 64, .scale = 0.125f, .causal = true});
}

int main(int argc, char **argv)
{
    if (!device_is_there()) {
        printf("skipped: no GPU\n0 passed, 0 failed, 1 skipped\n");
        return 77;
    }
    const char *seed = getenv("TESS_SEED");
    if (seed) dice = strtoull(seed, NULL, 10) * 2 + 1;
    printf("%s, inputs of TESS_SEED=%s\n", device_name(), seed ? seed : "none");
    room = device_new(ROOM);
    fault = device_host(sizeof *fault);
    int status = check_main(argc, argv);
    device_free(room);
    return status;
}
