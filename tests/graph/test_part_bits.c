/* Bits do not depend on who runs a part: a network of ops that come in parts, large enough that they have several,
 * trained by one worker and by as many as StarPU has, whose owners leave their parts to others. Nor do they depend on
 * whether rows behind the ends of short sequences are computed. */
#define CHECK_MAIN
#include "runtime/base/fault_hooks.h"
#include "tests/graph/params.h"

enum { ROWS = 1088, C = 384, V = 1100 };
static int64_t B = 2, T = 192, together = 1; /* sequences of a row tile */
static bool padded, shown; /* sequences have ends; an activation is shown, for which all rows are computed */

static tess_graph *g;
static tess_tensor *ids, *targets, *bounds;

static tess_tensor *param(const char *name, int64_t rows, int64_t columns, tess_init init)
{
    return tess_param(g, name, rows, columns, init);
}

/* Layernorm with a mlp of gelu, rmsnorm with one of silu, dropout, attention of grouped heads with sinks. */
static tess_tensor *describe(tess_dtype t)
{
    const tess_init some = TESS_NORMAL(0.05f);
    g = tess_graph_new(&(tess_graph_conf){.dtype = t, .tile_rows = together * T});
    ids = tess_embedding_noise(tess_input(g, "ids", B, T), 5);
    targets = tess_input(g, "targets", B, T);
    bounds = padded ? tess_input(g, "bounds", B, 2 * T) : NULL;
    tess_tensor *table = param("table", V, C, some), *h;
    tess_tensor *x = tess_embedding(ids, table, param("positions", T, C, some));
    h = tess_layernorm(x, param("n1", C, 1, TESS_ONE), param("b1", C, 1, TESS_ZERO), 1e-5f);
    h = tess_linear(h, param("qkv", 2 * C, C, some), param("qkv.b", 2 * C, 1, some));
    h = tess_attention_packed(
        h, (tess_attention_conf){
               .heads = 6, .groups = 3, .causal = true, .bounds = bounds, .sinks = param("sinks", 6, 1, some)});
    tess_name(h, "seen");
    x = tess_add(x, tess_dropout(h, 0.1f));
    h = tess_linear(x, param("up", 4 * C, C, some), param("up.b", 4 * C, 1, some));
    x = tess_add(x, tess_linear(tess_gelu(h, TESS_GELU_TANH), param("down", C, 4 * C, some), NULL));
    h = tess_rmsnorm(x, param("n2", C, 1, TESS_ONE), 1e-5f);
    h = tess_mul(tess_silu(tess_linear(h, param("gate", 2 * C, C, some), NULL)),
                 tess_linear(h, param("in", 2 * C, C, some), NULL));
    x = tess_add(x, tess_linear(h, param("out", C, 2 * C, some), NULL));
    return tess_cross_entropy(x, table, NULL, targets);
}

/* Sequences of other lengths: one is whole, one begins with what draws no loss, one is empty. */
static void end_sequences(int32_t *target, int32_t *bound)
{
    const int64_t ends[] = {T, T / 3, 1, 0, T - 1, 65 < T ? 65 : T};
    for (int64_t s = 0; s < B; s++)
        for (int64_t t = 0, end = ends[(s + (B < 3)) % 6]; t < T; t++) {
            bound[2 * s * T + t] = 0, bound[(2 * s + 1) * T + t] = t < end ? (int32_t)end : 0;
            if (t >= end || (s == 4 && t < end - 5)) target[s * T + t] = -100;
        }
}
static void see(void *of, const tess_lent *tile)
{
    *(int64_t *)of += tile->rows;
}

/* The loss, the norm, masters and moments after a step, as one number; and how many parts others took. */
static uint64_t train(tess_dtype t, tess_keeping keeping, int workers, uint64_t *taken)
{
    static int32_t id[ROWS], target[ROWS], bound[2 * ROWS];
    int64_t rows = 0;
    const tess_watch watch = {.name = "seen", .see = see, .of = &rows};
    tess_optimizer adamw = tess_adamw();
    tess_step *s;
    uint64_t hash = FINGERPRINT;
    adamw.clip = 1;
    adamw.keeping = keeping;
    for (int i = 0; i < ROWS; i++) id[i] = i * i / 7 % V, target[i] = (i + 1) * (i + 1) / 7 % V;
    if (padded) end_sequences(target, bound);
    tess_tensor *loss = describe(t);
    const tess_step_conf conf = {.train = true, .micro = 1, .optimizer = adamw, .watch = &watch, .watches = shown};
    CHECK(tess_step_new(loss, &conf, &s) == TESS_OK);
    CHECK(tess_start(&(tess_machine){.workers = workers}) == TESS_OK);
    tess_parts_make_shy(workers > 1);
    CHECK(tess_graph_init(g, 1) == TESS_OK);
    tess_step_result r = {0};
    CHECK(tess_step_feed_values(s, ids, id, B * T) == TESS_OK);
    CHECK(tess_step_feed_values(s, targets, target, B * T) == TESS_OK);
    if (padded) OK(tess_step_feed_values(s, bounds, bound, 2 * B * T));
    OK(tess_step_run(s, &(tess_step_input){.seed = 1, .lr = 1e-3}, &r));
    CHECK(r.loss > 1 && r.loss < 20);
    CHECK_EQ(rows, shown ? B * T : 0);
    mark(&hash, &r.loss, sizeof r.loss);
    mark(&hash, &r.grad_norm, sizeof r.grad_norm);
    mark_params(&hash, g, TESS_PARTS);
    *taken = tess_parts_taken();
    CHECK_EQ(tess_parts_unsaid(), 0); /* what tessera simulate is told */
    tess_step_free(s);
    tess_graph_free(g);
    tess_stop();
    return hash;
}

static void same(tess_dtype t, tess_keeping keeping)
{
    uint64_t taken;
    const uint64_t one = train(t, keeping, 1, &taken);
    CHECK(taken == 0);
    for (int workers = 2; workers <= 4; workers += 2) { /* where others have the cores, a worker may come too late */
        taken = 0;
        for (int turn = 0; turn < 5 && !taken; turn++) CHECK(train(t, keeping, workers, &taken) == one);
        CHECK(taken > 0);
    }
}

TEST(bits_of_bf16_are_those_of_one_worker)
{
    same(TESS_BF16, TESS_KEEP_F32);
    same(TESS_BF16, TESS_KEEP_INT8);
}

TEST(bits_of_fp32_are_those_of_one_worker)
{
    same(TESS_F32, TESS_KEEP_BF16);
}

TEST(bits_of_fp16_are_those_of_one_worker)
{
    same(TESS_F16, TESS_KEEP_F32);
}

/* Of a sequence that is long enough heads come in parts as well. */
TEST(bits_of_long_sequences_are_those_of_one_worker)
{
    B = 1, T = ROWS;
    same(TESS_BF16, TESS_KEEP_F32);
    same(TESS_F32, TESS_KEEP_F32);
}

/* What is behind the end of a sequence is not computed, and shows in no bit: in one row tile a sequence, of several
 * sequences, and of one that is longer than a chain of the library's. */
TEST(bits_are_those_of_all_rows_computed)
{
    static const int64_t shapes[][3] = {{5, 192, 1}, {8, 64, 8}, {6, 100, 4}, {2, 512, 2}, {1, ROWS, 1}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (tess_dtype t = TESS_F32; t <= TESS_F16; t++) {
            uint64_t taken;
            B = shapes[i][0], T = shapes[i][1], together = shapes[i][2], padded = true;
            shown = true;
            const uint64_t all = train(t, TESS_KEEP_F32, 1, &taken);
            shown = false;
            if (train(t, TESS_KEEP_F32, i ? 1 : 2, &taken) != all)
                CHECK_SAY("%s, %lld sequences of %lld: other bits", tess_dtype_name(t), (long long)B, (long long)T);
        }
    padded = false, together = 1;
}
