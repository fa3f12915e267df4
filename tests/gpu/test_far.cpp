/* What the emulation of single bodies tells beside their numbers.
 *
 * Elements beyond 2^31 of a tile, for every body that reckons with rows, tokens or places: a tile of so many rows in
 * memory that nobody touched, of which the last rows have something in them. The emulation runs the first and the last
 * blocks of each launch, and the last rows must come out as those of a tile that has no others. */
#define TESS_EMULATED
#include "codelets/shared/exact.h"
#include "codelets/shared/kernels.h"
#define CHECK_MAIN
#include "tests/check.h"
#include <stdarg.h>
#include <sys/mman.h>

static tess_env env;
static char failure[300];
extern "C" void tess_work_fail(const tess_work *, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    vsnprintf(failure, sizeof failure, format, ap);
    va_end(ap);
}

/* A buffer: so many bytes for each row, or for all of them. */
struct tile {
    int64_t row, all;
    tess_dtype type; /* TESS_F32, TESS_BF16: drawn; else zeros */
    bool out;
    char *near, *far;
};
constexpr tess_dtype RAW = (tess_dtype)99;

static tile rows_of(int64_t elements, tess_dtype t, bool out = false)
{
    return {elements * (int64_t)tess_dtype_size(t), 0, t, out, NULL, NULL};
}
static tile one(int64_t elements, tess_dtype t)
{
    return {0, elements * (int64_t)tess_dtype_size(t), t, false, NULL, NULL};
}
static tile raw(int64_t bytes)
{
    return {0, bytes, RAW, false, NULL, NULL};
}
static int64_t bytes_of(const tile &b, int64_t rows)
{
    return b.row * rows + b.all;
}
static void draw(tile *b, int64_t rows)
{
    static uint32_t seed;
    const tess_random_key key = {++seed, 3};
    const int64_t n = b->type == RAW ? 0 : bytes_of(*b, rows) / (int64_t)tess_dtype_size(b->type);
    for (int64_t i = 0; i < n; i++) {
        const float x = (float)(int32_t)tess_random_at(key, (uint64_t)i) * 0x1p-31f;
        if (b->type == TESS_F32)
            ((float *)b->near)[i] = x;
        else
            ((uint16_t *)b->near)[i] = tess_to_bf16(x);
    }
}
static char *space(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p != MAP_FAILED) return (char *)p;
    printf("there is no address space of %zu bytes\n", bytes);
    exit(77);
}

/* `near_arg` is of `rows` rows, `far_arg` of `all` of them, the last of which are the same. */
static void compare(const char *what, tess_body body, const void *near_arg, const void *far_arg, int64_t rows,
                    int64_t all, std::vector<tile> b)
{
    static char *room = space(64 << 20);
    std::vector<tess_view> near, far;
    tess_task task = {};
    tess_work w = {};
    w.env = &env, w.room = room, w.room_bytes = 64 << 20, w.task = &task;
    for (tile &x : b) {
        x.near = space((size_t)bytes_of(x, rows));
        x.far = space((size_t)bytes_of(x, all));
        draw(&x, rows);
        memcpy(x.far + x.row * (all - rows), x.near, (size_t)bytes_of(x, rows));
        near.push_back({x.near, (size_t)bytes_of(x, rows)});
        far.push_back({x.far, (size_t)bytes_of(x, all)});
    }
    failure[0] = 0;
    w.nbuf = (unsigned)b.size();
    w.arg = near_arg, w.buf = near.data();
    body(&w);
    emulate::ends_only = true;
    w.arg = far_arg, w.buf = far.data();
    body(&w);
    emulate::ends_only = false;
    CHECK_STR(failure, "");
    for (size_t i = 0; i < b.size(); i++) {
        const tile &x = b[i];
        if (x.out && memcmp(x.near, x.far + x.row * (all - rows), (size_t)bytes_of(x, rows)))
            CHECK_SAY("%s: tile %zu is another far away", what, i);
        munmap(x.near, (size_t)bytes_of(x, rows));
        munmap(x.far, (size_t)bytes_of(x, all));
    }
}

#define BODY(name)                                                                                                     \
    extern "C" void tess_emulated_##name(const tess_work *w);                                                          \
    static const tess_body name = tess_emulated_##name;
BODY(gelu_forward_bf16)
BODY(add_forward_bf16)
BODY(adamw_f32)
BODY(dropout_forward_bf16)
BODY(layernorm_forward_bf16)
BODY(rmsnorm_forward_f32)
BODY(embedding_forward_bf16)
BODY(embedding_backward_bf16)
BODY(attention_forward_bf16)
BODY(attention_backward_bf16)
BODY(attention_forward_f32)
BODY(attention_backward_f32)
BODY(cross_entropy_logits_bf16)
BODY(cross_entropy_gradient_bf16)

/* Rows of so many elements that there are more than 2^31 of them, and a few over. */
static int64_t many(int64_t width, int64_t multiple = 1)
{
    return ((1ll << 31) / width / multiple + 3) * multiple;
}

TEST(elementwise)
{
    enum { ROWS = 40 };
    tess_map_arg near = {}, far;
    const int64_t all = many(8);
    near.n = ROWS * 8, near.kind = TESS_GELU_TANH;
    far = near;
    far.n = all * 8;
    compare("gelu", gelu_forward_bf16, &near, &far, ROWS, all, {rows_of(8, TESS_BF16), rows_of(8, TESS_BF16, true)});
    compare("add", add_forward_bf16, &near, &far, ROWS, all,
            {rows_of(8, TESS_BF16), rows_of(8, TESS_BF16), rows_of(8, TESS_BF16, true)});
}

TEST(optimizer)
{
    enum { ROWS = 40 };
    const int64_t all = many(8);
    static const tess_optimizer of = {};
    tess_update_arg near = {}, far;
    env.lr = 1e-2, env.beta1 = 0.9, env.beta2 = 0.95, env.bias1 = 0.1, env.bias2 = 0.05, env.unscale = 1;
    near.n = ROWS * 8, near.optimizer = &of, near.moments = 2, near.lr_scale = 1, near.copy = TESS_BF16;
    far = near;
    far.n = all * 8;
    compare("adamw", adamw_f32, &near, &far, ROWS, all,
            {rows_of(8, TESS_F32, true), rows_of(8, TESS_F32, true), rows_of(8, TESS_F32, true), rows_of(8, TESS_F32),
             raw(16), raw((int64_t)sizeof(tess_exact)), rows_of(8, TESS_BF16, true)});
}

TEST(rows)
{
    enum { ROWS = 4, WIDTH = 72 };
    const int64_t all = many(WIDTH);
    tess_dropout_arg drop = {}, far_drop;
    env.train = true, env.seed = 5;
    drop.rows = ROWS, drop.width = WIDTH, drop.p = 0.3f, drop.row0 = all - ROWS;
    far_drop = drop;
    far_drop.rows = all, far_drop.row0 = 0;
    compare("dropout", dropout_forward_bf16, &drop, &far_drop, ROWS, all,
            {rows_of(WIDTH, TESS_BF16), rows_of(WIDTH, TESS_BF16, true)});
    tess_norm_arg near = {}, far;
    near.rows = ROWS, near.width = WIDTH, near.eps = 1e-5f;
    far = near;
    far.rows = all;
    compare("layernorm", layernorm_forward_bf16, &near, &far, ROWS, all,
            {rows_of(WIDTH, TESS_BF16), one(WIDTH, TESS_F32), one(WIDTH, TESS_F32), rows_of(WIDTH, TESS_BF16, true),
             rows_of(2, TESS_F32, true)});
    compare(
        "rmsnorm", rmsnorm_forward_f32, &near, &far, ROWS, all,
        {rows_of(WIDTH, TESS_F32), one(WIDTH, TESS_F32), rows_of(WIDTH, TESS_F32, true), rows_of(1, TESS_F32, true)});
}

/* Tokens at the end of a table: a task sees a tile of it that begins at `first`, so near and far have the same ids. */
TEST(embedding)
{
    enum { ROWS = 6, WIDTH = 72, TOKENS = 5 };
    const int64_t all = many(WIDTH);
    tess_embedding_arg near = {}, far;
    int32_t *id = (int32_t *)space(4096);
    for (int i = 0; i < TOKENS; i++) id[i] = (int32_t)(all - 1 - i % 3);
    near.rows = near.sequence = TOKENS, near.width = WIDTH, near.rows_of_table = all;
    near.first = all - ROWS, near.count = ROWS, near.acc = true;
    far = near;
    far.first = 0, far.count = all;
    for (int back = 0; back < 2; back++) {
        const tess_body body = back ? embedding_backward_bf16 : embedding_forward_bf16;
        tile table = rows_of(WIDTH, back ? TESS_F32 : TESS_BF16, back), y = one(TOKENS * WIDTH, TESS_BF16);
        y.out = !back;
        /* the tokens are a tile that both have, which compare() would draw */
        static tess_body inner;
        static int32_t *tokens;
        inner = body, tokens = id;
        const tess_body with_tokens = [](const tess_work *w) {
            tess_view view[] = {{tokens, 4096}, w->buf[0], w->buf[1]};
            tess_work of = *w;
            of.buf = view, of.nbuf = 3;
            inner(&of);
        };
        compare(back ? "embedding, back" : "embedding", with_tokens, &near, &far, ROWS, all, {y, table});
    }
    munmap(id, 4096);
}

TEST(attention)
{
    for (int tensor = 0; tensor < 2; tensor++) {
        const int64_t dim = tensor ? 64 : 24, sequence = 32, all = many(3 * dim, sequence), rows = sequence;
        const tess_dtype t = tensor ? TESS_BF16 : TESS_F32;
        tess_attention_arg near = {}, far;
        near.rows = rows, near.sequence = sequence, near.heads = near.groups = 1, near.dim = dim;
        near.scale = 0.2f, near.causal = near.packed = true;
        near.dropout = 0.1f, near.row0 = all - rows; /* whose places are far as well */
        far = near;
        far.rows = all, far.row0 = 0;
        compare("attention", tensor ? attention_forward_bf16 : attention_forward_f32, &near, &far, rows, all,
                {rows_of(3 * dim, t), rows_of(dim, t, true), rows_of(1, TESS_F32, true), raw(1 << 20)});
        compare("attention, back", tensor ? attention_backward_bf16 : attention_backward_f32, &near, &far, rows, all,
                {rows_of(dim, t), rows_of(3 * dim, t), rows_of(dim, t), rows_of(1, TESS_F32), rows_of(3 * dim, t, true),
                 rows_of(1, TESS_F32)});
    }
}

/* Rows of logits that lie half a GiB apart. */
TEST(cross_entropy)
{
    enum { ROWS = 6, IN = 16, OUT = 24 };
    const int64_t apart = (1ll << 29) + 64;
    char *far = space((size_t)((ROWS - 1) * apart + OUT) * 2), *room = space(64 << 20);
    uint16_t near[ROWS * OUT], x[ROWS * IN], weight[OUT * IN];
    float stats[3 * ROWS], lse[ROWS], dx[2][ROWS * IN];
    int32_t target[ROWS];
    char *scratch = space(4096);
    for (int i = 0; i < ROWS * IN; i++) x[i] = tess_to_bf16((float)(i % 7) * 0.3f - 0.8f);
    for (int i = 0; i < OUT * IN; i++) weight[i] = tess_to_bf16((float)(i % 11) * 0.2f - 1);
    for (int i = 0; i < ROWS; i++) target[i] = i * 3, lse[i] = 3;
    env.loss_scale[0] = 0.5f;
    for (int k = 0; k < 2; k++) {
        void *p = k ? (void *)far : near;
        tess_cross_entropy_arg a = {};
        a.rows = ROWS, a.in = IN, a.out = OUT, a.ld = k ? apart : (int64_t)OUT, a.grad = true, a.losses = 1,
        a.vocab = OUT;
        tess_view logits[] = {{x, sizeof x},         {target, sizeof target}, {weight, sizeof weight},
                              {stats, sizeof stats}, {scratch, 4096},         {p, sizeof near}};
        tess_view gradient[] = {{p, sizeof near},        {stats, sizeof stats},   {lse, sizeof lse},
                                {target, sizeof target}, {weight, sizeof weight}, {dx[k], sizeof dx[k]}};
        tess_work w = {};
        w.env = &env, w.arg = &a, w.room = room, w.room_bytes = 64 << 20, w.buf = logits, w.nbuf = 6;
        cross_entropy_logits_bf16(&w);
        w.buf = gradient;
        cross_entropy_gradient_bf16(&w);
        CHECK_STR(failure, "");
    }
    for (int r = 0; r < ROWS; r++) CHECK_EQ(memcmp((uint16_t *)far + r * apart, near + r * OUT, OUT * sizeof *near), 0);
    CHECK_EQ(memcmp(dx[0], dx[1], sizeof dx[0]), 0);
    munmap(far, (size_t)((ROWS - 1) * apart + OUT) * 2);
    munmap(room, 64 << 20);
    munmap(scratch, 4096);
}

/* Attention forward leaves room for two blocks a multiprocessor where one of its forms does, and has the same bits. */
TEST(attention_on_each_device)
{
    enum { ROWS = 96, DIM = 128 };
    static uint16_t qkv[ROWS * 3 * DIM], y[3][ROWS * DIM];
    static float lse[3][ROWS];
    static const int device[3] = {0, 1, 2}; /* sm_90, sm_86, sm_80 */
    static const size_t has[3] = {228, 100, 164}, blocks[3] = {2, 1, 2};
    tess_attention_arg a = {};
    a.rows = a.sequence = ROWS, a.heads = a.groups = 1, a.dim = DIM, a.scale = 0.1f, a.causal = a.packed = true;
    for (int i = 0; i < ROWS * 3 * DIM; i++) qkv[i] = tess_to_bf16((float)(i * 7919 % 101) * 0.02f - 1);
    for (int k = 0; k < 3; k++) {
        tess_view view[] = {{qkv, sizeof qkv}, {y[k], sizeof y[k]}, {lse[k], sizeof lse[k]}};
        tess_work w = {};
        w.env = &env, w.arg = &a, w.buf = view, w.nbuf = 3;
        emulated_turn = device[k];
        attention_forward_bf16(&w);
        CHECK_EQ(has[k] / (emulate::asked / 1024 + 1) >= blocks[k], true);
        CHECK_EQ(memcmp(y[k], y[0], sizeof y[0]), 0);
        CHECK_EQ(memcmp(lse[k], lse[0], sizeof lse[0]), 0);
    }
    emulated_turn = 0;
}

/* What attention wants beside its tensors grows as the sequence does. */
TEST(attention_is_linear)
{
    for (int bounded = 0; bounded < 2; bounded++) {
        tess_attention_arg a = {};
        a.heads = a.groups = 32, a.dim = 128, a.causal = a.packed = true, a.bounded = bounded;
        a.rows = a.sequence = 32768;
        const size_t of = tess_attention_scratch(&a, TESS_BF16);
        a.rows = a.sequence = 131072;
        CHECK(of > 0);
        CHECK(tess_attention_scratch(&a, TESS_BF16) <= 4 * of);
    }
}
