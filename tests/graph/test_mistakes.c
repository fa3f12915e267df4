/* What a program of the public headers may get wrong: each mistake is TESS_INVALID with a message that says which,
 * never an abort or a read outside of a tile, and what is right goes on working after it. */
#define CHECK_MAIN
#include "tests/graph/nets.h"
#include <unistd.h>

static const tess_step_conf training = {.train = true, .optimizer = {.beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8}};
static const tess_step_input first_step = {.lr = 1e-3};

/* The first error of describing comes out of tess_step_new, whatever was built on it. */
static void refused(tess_graph *g, tess_tensor *output, const char *part)
{
    tess_step *s;
    WRONG(tess_step_new(output, &training, &s), part);
    tess_graph_free(g);
}

struct base {
    tess_graph *g;
    tess_tensor *ids, *next, *table, *x, *w;
};

static struct base base(void)
{
    struct base b = {.g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32})};
    b.ids = tess_input(b.g, "ids", 2, 5);
    b.next = tess_input(b.g, "next", 2, 5);
    b.table = tess_param(b.g, "table", 9, 12, TESS_NORMAL(0.1f));
    b.x = tess_embedding(b.ids, b.table, NULL);
    b.w = tess_param(b.g, "w", 12, 12, TESS_NORMAL(0.1f));
    return b;
}

static tess_tensor *loss_of(const struct base *b)
{
    return tess_cross_entropy(tess_linear(b->x, b->w, NULL), b->table, NULL, b->next);
}

/* Fits the step into the machine, and frees it. */
static tess_status fit(tess_tensor *loss, const tess_machine *m, tess_plan *plan)
{
    tess_step *s;
    const tess_status status = tess_step_fit(loss, &training, m, &s, plan);
    CHECK((status == TESS_OK) == (s != NULL));
    tess_step_free(s);
    return status;
}

TEST(fits_a_machine)
{
    struct base b = base();
    tess_tensor *loss = tess_cross_entropy(b.x, b.table, NULL, b.next);
    tess_step *s;
    tess_plan plan, again;
    tess_machine m = {.workers = 1, .cpu_bytes = 1000, .disk = "."};
    WRONG(fit(loss, &m, &plan), "the least a step can work with is");
    m.disk = NULL;
    WRONG(fit(loss, &m, &plan), "of RAM, but the cap is 1000 B (name a directory for what does not fit)");
    m = (tess_machine){.workers = 1, .cpu_bytes = 512 << 20, .away = TESS_AWAY_MOMENTS};
    WRONG(fit(loss, &m, &plan), "machine: has no disk, where tiles are to rest");
    m.away = 1;
    WRONG(fit(loss, &m, &plan), "tiles of kind 0x1 are away");
    m.away = 0;
    OK(fit(loss, &m, &plan));
    CHECK(plan.ram.room > 0 && plan.ram.room < m.cpu_bytes && plan.cpu_bytes == m.cpu_bytes && !plan.disk_bytes);
    CHECK_EQ(tess_tiles_on_disk(), 0);
    m.disk = ".";
    m.away = TESS_AWAY_MOMENTS;
    OK(fit(loss, &m, &plan));
    CHECK_EQ(tess_tiles_on_disk(), 2 * 4096); /* moments of table, in whole pages */
    CHECK(plan.ram.disk > 0 && plan.ram.disk <= 2 * 4096 && plan.disk_bytes == 64 << 20);
    m.disk_bytes = 1 << 20;
    WRONG(fit(loss, &m, &plan), "machine: 1.0 MiB of disk, but the step needs 64.0 MiB there");
    m.rates = (tess_rates){.flops = 1e9, .copy = 1e9, .read = 1e9, .write = 1e9};
    WRONG(fit(loss, &m, &plan), "machine: 1.0 MiB of disk, but the step needs 64.0 MiB there");
    m.disk_bytes = 0;
    OK(fit(loss, &m, &plan));
    CHECK(plan.ram.time.seconds > 0);
    m = (tess_machine){.workers = -3};
    WRONG(fit(loss, &m, &plan), "machine: -3 workers (expected 1 or more, or 0");
    WRONG(tess_start(&m), "machine: -3 workers");
    WRONG(tess_start_plan(&m, &plan), "machine: -3 workers");
    m = (tess_machine){.patience = -1};
    WRONG(tess_start(&m), "machine: a patience of -1 seconds");
    m = (tess_machine){.workers = 1};
    OK(tess_step_fit(loss, &training, &m, &s, &plan));
    CHECK_EQ(tess_tiles_on_disk(), 0); /* the last plan holds, not an earlier one */
    OK(tess_start_plan(&m, &plan));
    WRONG(fit(loss, &m, &again), "comes too late to be placed"); /* it began with what the call before said */
    OK(tess_graph_init(b.g, 1));
    WRONG(fit(loss, &m, &again), "comes too late to be placed");
    tess_stop();
    tess_step_free(s);
    WRONG(tess_step_fit(loss, NULL, &m, &s, &plan), "conf is NULL");
    WRONG(tess_step_fit(loss, &training, &m, NULL, &plan), "tess_step_fit: step is NULL");
    WRONG(tess_step_fit(loss, &training, &m, &s, NULL), "tess_step_fit: plan is NULL");
    WRONG(tess_step_fit(loss, &(tess_step_conf){0}, &m, &s, &plan), "does not train");
    WRONG(fit(NULL, &m, &plan), "NULL");
    tess_graph_free(b.g);
}

TEST(tiles_and_tasks)
{
    static const tess_task task = {0};
    char bytes[64] = "";
    CHECK(tess_tile_new(0, TESS_ROLE_SCALAR, "none") == NULL);
    CHECK(tess_tile_new((size_t)1 << 40, TESS_ROLE_SCALAR, "huge") == NULL);
    CHECK_HAS(tess_error_text(), "huge: a tile of");
    tess_tile *t = tess_tile_new(64, TESS_ROLE_SCALAR, "t");
    WRONG(tess_tile_write(t, 0, bytes, 64), "tess_start");
    WRONG(tess_submit(&task), "tess_start");
    OK(tess_wait());
    OK(tess_start(NULL));
    WRONG(tess_tile_write(t, 32, bytes, 33), "bytes 32 to 65");
    WRONG(tess_tile_read(t, SIZE_MAX, bytes, 2), "of a tile of 64");
    WRONG(tess_tile_write(NULL, 0, bytes, 2), "NULL");
    OK(tess_tile_write(t, 0, bytes, 64));
    tess_stop();
    tess_tile_free(t);
}

TEST(null_tensors_are_named)
{
    for (int k = 0; k < 9; k++) {
        struct base b = base();
        tess_tensor *y = NULL;
        const char *part = "";
        if (k == 0) y = tess_cross_entropy(b.x, NULL, NULL, b.next), part = "cross_entropy: w is NULL";
        if (k == 1) y = tess_cross_entropy(b.x, b.table, NULL, NULL), part = "cross_entropy: targets is NULL";
        if (k == 2) y = tess_linear(b.x, NULL, NULL), part = "linear: w is NULL";
        if (k == 3) y = tess_embedding(NULL, b.table, NULL), part = "embedding: ids is NULL";
        if (k == 4) y = tess_add(NULL, b.x), part = "add: a is NULL";
        if (k == 5)
            y = tess_attention(b.x, NULL, b.x, (tess_attention_conf){.heads = 2}), part = "attention: k is NULL";
        if (k == 6) y = tess_layernorm(b.x, NULL, NULL, 1e-5f), part = "layernorm: gain is NULL";
        if (k == 7) y = tess_gelu(NULL, TESS_GELU_TANH), part = "gelu: x is NULL";
        if (k == 8) y = tess_pick(b.x, NULL), part = "pick: index is NULL";
        CHECK(y == NULL);
        CHECK_HAS(tess_error_text(), part);
        refused(b.g, k == 7 ? tess_cross_entropy(y, b.table, NULL, b.next) : y, k == 7 ? "x is NULL" : part);
    }
    tess_step *s;
    WRONG(tess_step_new(NULL, &training, &s), "output is NULL");
}

TEST(the_first_error_is_passed_on)
{
    struct base b = base();
    tess_tensor *y = tess_linear(b.x, tess_param(b.g, "v", 7, 13, TESS_ZERO), NULL);
    y = tess_dropout(tess_gelu(y, TESS_GELU_ERF), 0.1f);
    CHECK_HAS(tess_error_text(), "v (7,13)");
    y = tess_mul(y, y);
    refused(b.g, y, "v (7,13)"); /* nothing but NULL was handed on */
    tess_error_clear();
    tess_gelu(NULL, TESS_GELU_TANH); /* and that error is over now */
    CHECK_HAS(tess_error_text(), "gelu: x is NULL");
    b = base();
    y = tess_linear(b.x, tess_param(b.g, "v", 0, 12, TESS_ZERO), NULL);
    refused(b.g, tess_cross_entropy(y, b.w, NULL, b.next), "(0,12)");
    refused(NULL, tess_input(NULL, "ids", 2, 2), "NULL");
}

TEST(two_graphs_do_not_mix)
{
    struct base a = base(), b = base();
    CHECK(tess_add(a.x, b.x) == NULL);
    CHECK_HAS(tess_error_text(), "two graphs");
    refused(a.g, tess_cross_entropy(a.x, a.table, NULL, a.next), "two graphs");
    a = base();
    CHECK(tess_linear(a.x, b.w, NULL) == NULL);
    refused(a.g, NULL, "two graphs");
    tess_graph_free(b.g);
    struct base f = base();
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16, .share = f.g});
    refused(g, tess_input(g, "ids", 1, 1), "dtype");
    g = tess_graph_new(&(tess_graph_conf){.share = f.g});
    tess_tensor *t = tess_param(g, "table", 9, 12, TESS_ZERO), *i = tess_input(g, "i", 1, 4);
    t = tess_embedding(i, t, NULL);
    tess_step *s;
    OK(tess_step_new(t, NULL, &s));
    tess_graph_free(f.g); /* whose parameters it uses */
    WRONG(tess_step_run(s, NULL, NULL), "freed");
    tess_step_free(s);
    refused(g, tess_gelu(t, TESS_GELU_TANH), "freed");
}

TEST(shapes_that_do_not_fit)
{
    for (int k = 0; k < 42; k++) {
        struct base b = base();
        tess_tensor *x = b.x, *y = NULL, *one = tess_param(b.g, "one", 12, 1, TESS_ONE);
        const char *part = "";
        if (k == 0) y = tess_linear(x, x, NULL), part = "linear: ";
        if (k == 1) y = tess_linear(x, b.w, tess_param(b.g, "b", 11, 1, TESS_ZERO)), part = "bias";
        if (k == 2) y = tess_linear(x, x, tess_param(b.g, "b2", 2, 1, TESS_ZERO)), part = "linear: ";
        if (k == 3) y = tess_layernorm(x, one, b.w, 1e-5f), part = "gain and bias";
        if (k == 4) y = tess_rmsnorm(x, x, 1e-5f), part = "gain";
        if (k == 5) y = tess_embedding(x, b.table, NULL), part = "ids must be an input";
        if (k == 6) y = tess_embedding(b.ids, x, NULL), part = "the table a parameter";
        if (k == 7) y = tess_embedding(b.ids, b.table, tess_param(b.g, "p", 4, 12, TESS_ZERO)), part = "positions";
        if (k == 8) y = tess_gelu(b.ids, TESS_GELU_TANH), part = "(B,T,C)";
        if (k == 9) y = tess_gelu(x, (tess_gelu_kind)7), part = "kind 7";
        if (k == 10) y = tess_mul(x, b.w), part = "same shape";
        if (k == 11) y = tess_dropout(x, 1.5f), part = "rate";
        if (k == 12) y = tess_dropout(x, NAN), part = "rate";
        if (k == 13) y = tess_rope(x, (tess_rope_conf){.dim = 0}), part = "head size";
        if (k == 14) y = tess_rope(x, (tess_rope_conf){.dim = 4, .base = -1}), part = "base";
        if (k == 15) y = tess_attention(x, x, x, (tess_attention_conf){.heads = 5}), part = "5 heads";
        if (k == 16) y = tess_attention(x, x, x, (tess_attention_conf){.heads = INT64_MAX / 2}), part = "heads";
        if (k == 17) y = tess_attention_packed(x, (tess_attention_conf){.heads = 2, .groups = -1}), part = "groups";
        if (k == 18) y = tess_cross_entropy(x, one, NULL, b.next), part = "w (V,C)";
        if (k == 19) y = tess_cross_entropy(x, b.w, NULL, x), part = "targets";
        if (k == 20) y = tess_pick(x, b.ids), part = "index";
        if (k == 21) y = tess_input(b.g, "more", 3, 5), part = "same batch";
        if (k == 22) y = tess_rmsnorm(x, tess_param(b.g, "run", 5, 1, TESS_ONE), 1e-5f), part = "a multiple of D";
        if (k == 23) y = tess_rope(x, (tess_rope_conf){.dim = 4, .scaling = {TESS_ROPE_LINEAR}}), part = "factor";
        if (k == 24)
            y = tess_rope(x, (tess_rope_conf){.dim = 4, .scaling = {TESS_ROPE_LLAMA3, .factor = 8, .low = 4}}),
            part = "turns";
        if (k == 35)
            y = tess_rope(x, (tess_rope_conf){.dim = 4, .scaling = {TESS_ROPE_YARN, .factor = 8, .low = 4, .high = 2}}),
            part = "from pair 4 to 2 (expected more)";
        if (k == 36)
            y = tess_rope(x, (tess_rope_conf){.dim = 4, .scaling = {TESS_ROPE_LONG, .pair = {1}}}),
            part = "number of pair 1 is 0 (expected above 0";
        if (k == 37)
            y = tess_rope(x, (tess_rope_conf){.dim = 4, .of = 2, .turning = 1}),
            part = "of each 2 heads 1 turn, but there are 3";
        if (k == 38)
            y = tess_swiglu(tess_linear(x, tess_param(b.g, "odd", 7, 12, TESS_ZERO), NULL)), part = "two halves";
        if (k == 39)
            y = tess_attention(x, x, x, (tess_attention_conf){.heads = 2, .sinks = one}),
            part = "the sinks must be a parameter (2) of one tile";
        if (k == 40)
            y = tess_attention(x, x, x, (tess_attention_conf){.heads = 12, .sinks = x}),
            part = "the sinks must be a parameter (12)";
        if (k == 41) y = tess_swiglu_clamped(x, 1.702f, 0), part = "expected a limit above 0, and a finite factor";
        if (k == 25) y = tess_rmsnorm(x, one, -1), part = "eps is -1, expected a number from 0";
        if (k == 26) y = tess_layernorm(x, one, one, -1e-5f), part = "eps is -1e-05";
        if (k == 27) y = tess_layernorm(x, one, one, NAN), part = "eps is";
        if (k == 28) y = tess_param(b.g, "w", 12, 13, TESS_ZERO), part = "(12,13), but it is (12,12) already";
        if (k == 29) y = tess_param(b.g, "none", 0, 13, TESS_ZERO), part = "none: a parameter of shape (0,13) (dimen";
        if (k == 31) y = tess_layernorm(x, tess_param(b.g, "g", 13, 1, TESS_ONE), one, 1e-5f), part = "(13)";
        if (k == 32) y = tess_add(x, tess_linear(x, tess_param(b.g, "w7", 7, 12, TESS_ZERO), NULL)), part = "(2,5,7)";
        if (k == 33) y = tess_cross_entropy(x, b.table, NULL, tess_input(b.g, "n", 2, 6)), part = "targets";
        if (k == 34) y = tess_rope(x, (tess_rope_conf){.dim = 4, .rotary = 3}), part = "rope: ";
        if (k == 30) y = tess_param(b.g, "w", 12, -1, TESS_ZERO), part = "w: a parameter of shape (12,-1) (dimensions";
        CHECK(y == NULL);
        CHECK_HAS(tess_error_text(), part);
        refused(b.g, y, part);
    }
}

TEST(heads_and_scores_that_do_not_fit)
{
    for (int k = 0; k < 12; k++) {
        struct base b = base();
        tess_tensor *x = b.x, *y = NULL, *bias = tess_param(b.g, "bias", 4, 1, TESS_ZERO);
        tess_tensor *logits = tess_linear(x, tess_param(b.g, "router", 4, 12, TESS_ZERO), NULL);
        const tess_run_of run = {4, 1, 3}, none = {0};
        tess_route_conf conf = {.chosen = 2};
        const char *part = "equal, of two or more, at most 32, have all that are chosen, and a bias";
        CHECK(k == 0 || tess_param_freeze(bias) == TESS_OK);
        if (k == 0) y = tess_route_scored(logits, bias, NULL, conf), part = "must be a frozen parameter (4)";
        if (k == 1) y = tess_route_scored(x, bias, NULL, conf), part = "must be a frozen parameter (12)";
        conf.groups = k == 2 || k == 4 ? 2 : k, conf.kept = k == 4 ? 3 : 1;
        if (k == 2) y = tess_route_scored(logits, NULL, NULL, conf);
        if (k == 3 || k == 4) y = tess_route_scored(logits, bias, NULL, conf);
        if (k == 5) conf.groups = 2, conf.chosen = 3, y = tess_route_scored(logits, bias, NULL, conf);
        if (k > 5) part = "x and z must be (B,T,heads*dim)";
        if (k == 6) y = tess_strips(x, run, NULL, none, 4, 3);
        if (k == 7) y = tess_strips(x, (tess_run_of){4, 2, 3}, NULL, none, 3, 3);
        if (k == 8) y = tess_strips(x, run, b.ids, run, 3, 6);
        if (k == 9) y = tess_strips(x, run, NULL, none, 0, 3);
        if (k == 10)
            y = tess_strips(x, run, x, (tess_run_of){12, 0, 5}, 3, 7), part = "8 elements do not fit in a head of 7";
        if (k == 11) y = tess_strips(x, (tess_run_of){12, 0, 1}, NULL, none, 1ll << 40, 1ll << 40), part = "do not fit";
        refused(b.g, y, part);
    }
}

TEST(experts_that_do_not_fit)
{
    for (int k = 0; k < 18; k++) {
        struct base b = base();
        tess_tensor *x = b.x, *y = NULL;
        tess_tensor *logits = tess_linear(x, tess_param(b.g, "router", 4, 12, TESS_ZERO), NULL);
        tess_tensor *weights = tess_route(logits, 2, true, NULL), *places = tess_dispatch(x, weights);
        tess_tensor *loss = tess_cross_entropy(x, b.table, NULL, b.next);
        const char *part = "";
        if (k == 0) y = tess_route(logits, 5, true, NULL), part = "5 are chosen";
        if (k == 1) y = tess_route(logits, 0, true, NULL), part = "0 are chosen";
        if (k == 2) y = tess_route(b.ids, 1, true, NULL), part = "(B,T,experts)";
        if (k == 3) y = tess_route(logits, 1, true, b.ids), part = "bounds must be an input (B,10)";
        if (k == 4) y = tess_dispatch(x, x), part = "those that tess_route returned";
        if (k == 5) y = tess_dispatch(places, weights), part = "x must be (B,T,C)";
        if (k == 6) y = tess_expert_linear(places, weights, b.w), part = "a stack of as many matrices";
        if (k == 16) y = tess_expert_bias(places, weights, b.w), part = "the bias (experts,C)";
        if (k == 17) y = tess_expert_bias(places, x, b.w), part = "those that tess_route returned";
        if (k == 7)
            y = tess_expert_linear(places, weights, tess_param_stack(b.g, "s", 3, 8, 12, TESS_ZERO)), part = "a stack";
        if (k == 8)
            y = tess_expert_linear(x, weights, tess_param_stack(b.g, "s", 4, 8, 12, TESS_ZERO)),
            part = "(B,T*chosen,in)";
        if (k == 9) y = tess_combine(x, weights), part = "(B,T*chosen,C)";
        if (k == 10)
            y = tess_param_stack(b.g, "s", 0, 8, 12, TESS_ZERO), part = "a stack of 0 matrices of shape (8,12)";
        if (k == 11) y = tess_param_stack(b.g, "w", 4, 3, 12, TESS_ZERO), part = "w: a parameter of shape (12,12), but";
        if (k == 12) y = tess_balanced(loss, x, b.next, 1), part = "those that tess_balance returned";
        if (k == 13) y = tess_balance(x, weights, NULL), part = "of these logits";
        tess_tensor *statistics = k > 13 ? tess_balance(logits, weights, NULL) : NULL;
        if (k == 14)
            loss = tess_loss_add(loss, x, b.table, NULL, b.next), y = tess_balanced(loss, statistics, b.next, 1),
            part = "the loss is a sum of others";
        if (k == 15)
            loss = tess_balanced(loss, statistics, b.next, 1), y = tess_loss_add(loss, x, b.table, NULL, b.next),
            part = "expected a cross_entropy";
        CHECK(y == NULL);
        CHECK_HAS(tess_error_text(), part);
        refused(b.g, y, part);
    }
}

/* A gain or bias that is cut for a linear, or by a tiny tile_elements, was read past its first tile. */
TEST(norms_take_whole_vectors)
{
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.tile_elements = 16 * 64});
    tess_tensor *ids = tess_input(g, "ids", 2, 5), *bias = tess_param(g, "b", 64, 1, TESS_ZERO);
    tess_tensor *x = tess_embedding(ids, tess_param(g, "t", 9, 64, TESS_ZERO), NULL);
    x = tess_linear(x, tess_param(g, "w", 64, 64, TESS_ZERO), bias);
    refused(g, tess_layernorm(x, tess_param(g, "g", 64, 1, TESS_ONE), bias, 1e-5f), "must be whole");
}

TEST(sizes_that_overflow)
{
    static const int64_t sizes[][2] = {{INT64_MAX, 2}, {2, INT64_MAX}, {1ll << 62, 1ll << 62}, {1, 1ll << 33}, {-1, 4}};
    for (int k = 0; k < 5; k++) {
        struct base b = base();
        CHECK(tess_input(b.g, "huge", sizes[k][0], sizes[k][1]) == NULL);
        refused(b.g, NULL, "huge: an input of shape");
        b = base();
        CHECK(tess_param(b.g, "huge", sizes[k][0], sizes[k][1], TESS_ZERO) == NULL);
        refused(b.g, NULL, "huge: a parameter of shape");
    }
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.tile_rows = 1 << 20}); /* makes a tile of 128 GiB */
    tess_tensor *ids = tess_input(g, "ids", 1, 1 << 20), *wide = tess_param(g, "wide", 4, 1 << 15, TESS_ZERO);
    tess_tensor *x = tess_embedding(ids, wide, NULL);
    CHECK(x == NULL);
    CHECK_HAS(tess_error_text(), "a tile is at most 16.0 GiB");
    refused(g, x, "embedding: ids (1,1048576), wide (4,32768)");
    g = tess_graph_new(&(tess_graph_conf){.tile_elements = 16}); /* as many tiles as nobody can number */
    tess_param(g, "cut", 1ll << 36, 1, TESS_ZERO);
    refused(g, NULL, "raise tile_elements");
    tess_step *s;
    g = tess_graph_new(
        &(tess_graph_conf){.tile_elements = 128, .grid = {.data = 17}}); /* as many as no message names */
    x = tess_embedding(tess_input(g, "ids", 1, 2), tess_param(g, "t", 210000 * 64, 2, TESS_ZERO), NULL);
    x = tess_cross_entropy(x, tess_param(g, "u", 2, 2, TESS_ZERO), NULL, tess_input(g, "next", 1, 2));
    WRONG(tess_step_new(x, &training, &s), "raise tile_elements");
    tess_graph_free(g);
    struct base b = base();
    tess_step_conf many = training;
    many.micro = INT64_MAX / 2;
    x = tess_cross_entropy(b.x, b.table, NULL, b.next);
    WRONG(tess_step_new(x, &many, &s), "too many");
    many.micro = -3;
    WRONG(tess_step_new(x, &many, &s), "micro -3");
    tess_graph_free(b.g);
    static const tess_graph_conf confs[] = {{.dtype = TESS_I32},
                                            {.dtype = (tess_dtype)9},
                                            {.tile_rows = -1},
                                            {.loss_rows = INT64_MAX},
                                            {.loss_align = -1},
                                            {.loss_align = 5000},
                                            {.fp8 = true},
                                            {.dtype = TESS_F16, .fp8 = true},
                                            {.grid = {.data = -2}},
                                            {.grid = {.rank = 1}},
                                            {.grid = {.data = 1 << 30}}};
    for (size_t k = 0; k < sizeof confs / sizeof confs[0]; k++) {
        g = tess_graph_new(&confs[k]);
        refused(g, tess_input(g, "ids", 2, 2), k < 8 ? "graph: " : "grid: ");
    }
}

/* Sixteen sizes of scratch and more: each width of head has its own. */
TEST(any_number_of_attentions)
{
    struct base b = base();
    tess_tensor *x = b.x, *y;
    for (int64_t k = 1; k <= 24; k++) {
        char name[16];
        snprintf(name, sizeof name, "q%lld", (long long)k);
        y = tess_linear(x, tess_param(b.g, name, 16 * k, 12, TESS_NORMAL(0.1f)), NULL);
        y = tess_attention(y, y, y, (tess_attention_conf){.heads = 1, .causal = k % 2});
        snprintf(name, sizeof name, "o%lld", (long long)k);
        x = tess_add(x, tess_linear(y, tess_param(b.g, name, 12, 16 * k, TESS_NORMAL(0.1f)), NULL));
    }
    tess_step *s;
    OK(tess_step_new(tess_cross_entropy(x, b.table, NULL, b.next), &training, &s));
    tess_step_free(s);
    tess_graph_free(b.g);
}

TEST(configurations_of_steps)
{
    struct base b = base();
    tess_tensor *loss = tess_cross_entropy(b.x, b.table, NULL, b.next);
    tess_step *s;
    WRONG(tess_step_new(loss, &(tess_step_conf){.train = true}, &s), "tess_adamw()");
    WRONG(tess_step_new(b.x, &training, &s), "is no loss");
    WRONG(tess_step_new(b.w, NULL, &s), "w: is no op's result");
    WRONG(tess_step_new(loss, &training, NULL), "tess_step_new: step is NULL");
    OK(tess_step_new(loss, NULL, &s));
    WRONG(tess_step_run(s, NULL, NULL), "tess_start");
    WRONG(tess_step_feed(s, b.ids, (int32_t[10]){0}), "tess_start");
    WRONG(tess_graph_init(b.g, 1), "tess_start");
    WRONG(tess_graph_init(NULL, 1), "NULL");
    WRONG(tess_step_run(NULL, NULL, NULL), "NULL");
    float *data;
    WRONG(tess_param_map(b.w, 0, TESS_MASTER, TESS_R, &data), "tess_start");
    tess_step_free(s);
    tess_graph_free(b.g);
}

TEST(order_of_calls)
{
    struct base b = base();
    tess_tensor *loss = tess_cross_entropy(b.x, b.table, NULL, b.next);
    tess_step *s, *rows;
    tess_step_result r;
    int32_t ids[10] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 0}, next[10] = {1, 2, 3, 4, -100, 6, 7, 8, 0, -1};
    float *data, out[2 * 5 * 12];
    OK(tess_start(NULL));
    WRONG(tess_start(NULL), "runs already");
    OK(tess_step_new(loss, &training, &s));
    OK(tess_step_new(b.x, NULL, &rows));
    tess_tensor *late = tess_input(b.g, "late", 2, 3);
    OK(tess_step_feed(s, b.ids, ids));
    WRONG(tess_step_run(s, &first_step, &r), "next: was not fed");
    OK(tess_step_feed(s, b.next, next));
    WRONG(tess_step_run(s, &first_step, &r), "table: was neither drawn nor loaded");
    WRONG(tess_param_map(b.w, 0, TESS_MASTER, TESS_R, &data), "w: was neither drawn nor loaded");
    OK(tess_graph_init(b.g, 1));
    WRONG(tess_step_run(s, NULL, &r), "tess_step_input");
    WRONG(tess_step_run(s, &(tess_step_input){.lr = NAN}, &r), "rate");
    WRONG(tess_step_run(s, &(tess_step_input){0}, &r), "the learning rate is 0, which trains nothing");
    WRONG(tess_step_run(s, &(tess_step_input){.lr = 1e-3, .keep_weights = true}, &r), "keep_weights with");
    WRONG(tess_step_feed(s, b.w, ids), "w: is a parameter");
    WRONG(tess_step_feed(s, b.x, ids), "is what an op makes");
    WRONG(tess_step_feed(s, late, ids), "late: is younger");
    WRONG(tess_step_feed(s, NULL, ids), "NULL");
    WRONG(tess_step_feed(s, b.ids, NULL), "ids: its values are NULL");
    WRONG(tess_step_feed_values(s, b.ids, ids, 9), "9 values, but a step takes 10");
    CHECK_EQ(tess_step_values(s, b.ids), 10);
    WRONG(tess_step_output(rows, out), "was not run");
    WRONG(tess_step_output(s, out), "is a loss");
    WRONG(tess_step_gradient(s, b.w, out), "keeps no gradients");
    OK(tess_param_map(b.w, 0, TESS_MOMENT1, TESS_R, &data)); /* before any step they are zero */
    CHECK(data[0] == 0);
    WRONG(tess_step_run(s, &first_step, &r), "tess_param_unmap");
    tess_param_unmap(b.w, 0, TESS_MOMENT1);
    WRONG(tess_param_map(b.w, 1, TESS_MASTER, TESS_R, &data), "piece 1 of 1");
    WRONG(tess_param_map(b.x, 0, TESS_MASTER, TESS_R, &data), "no parameter");
    OK(tess_step_run(s, &first_step, &r));
    CHECK(r.loss > 0 && r.targets == 8);
    OK(tess_step_feed(rows, b.ids, ids));
    OK(tess_step_run(rows, NULL, NULL));
    OK(tess_step_output(rows, out));
    tess_graph_free(b.g);
    WRONG(tess_step_run(s, &first_step, &r), "its graph was freed");
    WRONG(tess_step_feed(s, b.ids, ids), "its graph was freed");
    WRONG(tess_step_output(rows, out), "its graph was freed");
    tess_step_free(rows);
    tess_step_free(s);
    tess_stop();
}

/* What generate does when a text outgrows a graph. */
TEST(a_graph_that_shares_parameters_may_come_after_they_were_drawn)
{
    struct base b = base();
    tess_step *s, *longer;
    const int32_t ids[20] = {3, 1, 4, 1, 5, 3, 1, 4, 1, 5, 3, 1, 4, 1, 5};
    float out[2 * 5 * 12], more[2 * 10 * 12];
    OK(tess_step_new(b.x, NULL, &s));
    OK(tess_start(NULL));
    OK(tess_graph_init(b.g, 1));
    OK(tess_step_feed(s, b.ids, ids));
    OK(tess_step_run(s, NULL, NULL));
    OK(tess_step_output(s, out));
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.share = b.g});
    tess_tensor *i = tess_input(g, "ids", 2, 10);
    OK(tess_step_new(tess_embedding(i, tess_param(g, "table", 9, 12, TESS_ZERO), NULL), NULL, &longer));
    OK(tess_step_feed(longer, i, ids));
    OK(tess_step_run(longer, NULL, NULL));
    OK(tess_step_output(longer, more));
    CHECK(!memcmp(out, more, sizeof out));
    OK(tess_step_run(s, NULL, NULL)); /* and the other goes on */
    tess_step_free(longer);
    tess_graph_free(g);
    tess_step_free(s);
    tess_graph_free(b.g);
    tess_stop();
}

TEST(ids_out_of_range)
{
    struct base b = base();
    tess_tensor *at = tess_input(b.g, "at", 2, 1), *loss = tess_cross_entropy(b.x, b.table, NULL, b.next);
    tess_tensor *row = tess_pick(b.x, at);
    int32_t ids[10] = {0}, next[10] = {0}, index[2] = {4, 0};
    tess_step *s, *rows;
    tess_step_result r;
    OK(tess_step_new(loss, &training, &s));
    OK(tess_step_new(row, NULL, &rows));
    OK(tess_start(NULL));
    OK(tess_graph_init(b.g, 1));
    ids[7] = 9;
    WRONG(tess_step_feed(s, b.ids, ids), "ids: value 2 of sequence 1 is 9 (expected 0 to 8, for table)");
    ids[7] = -1;
    WRONG(tess_step_feed(s, b.ids, ids), "is -1");
    next[0] = INT32_MAX;
    WRONG(tess_step_feed(s, b.next, next), "(expected at most 8, for table)");
    index[1] = 5;
    WRONG(tess_step_feed(rows, at, index), "at: value 0 of sequence 1 is 5 (expected 0 to 4");
    WRONG(tess_step_run(s, &first_step, &r), "ids: was not fed");
    ids[7] = 8, next[0] = INT32_MIN;
    OK(tess_step_feed(s, b.ids, ids));
    OK(tess_step_feed(s, b.next, next));
    OK(tess_step_run(s, &first_step, &r));
    CHECK_EQ(r.targets, 9);
    tess_step_free(rows);
    tess_step_free(s);
    tess_graph_free(b.g);
    tess_stop();
}

/* What a graph held ends with the session; graph and step may outlive it, be drawn anew, or be freed after it. */
TEST(stopping_and_starting_again)
{
    struct net n;
    tess_step *s;
    double loss[2];
    s = net_step(&n, &(tess_graph_conf){.dtype = TESS_BF16}, net_gpt, &training);
    for (int session = 0; session < 2; session++) {
        OK(tess_start(NULL));
        if (session) {
            WRONG(tess_step_run(s, &first_step, NULL), "was not fed");
            OK(tess_step_feed(s, n.ids, n.id));
            OK(tess_step_feed(s, n.targets, n.target));
            WRONG(tess_step_run(s, &first_step, NULL), "neither drawn nor loaded");
        }
        OK(tess_graph_init(n.g, 1));
        for (int64_t k = 0; k < 3; k++) loss[session] = net_run(&n, s, k, 1e-2f);
        tess_stop();
        WRONG(tess_step_run(s, &first_step, NULL), "tess_start");
    }
    CHECK(loss[0] == loss[1]);
    tess_graph_free(n.g);
    tess_step_free(s);
}

/* Drawn anew, a graph forgets what it learnt and the moments too. */
TEST(drawing_again)
{
    struct net n;
    tess_step *s;
    double loss[2];
    tess_step_conf conf = training;
    conf.layout.late = true;
    conf.optimizer.clip = 1;
    s = net_step(&n, &(tess_graph_conf){0}, net_gpt, &conf);
    OK(tess_start(NULL));
    for (int run = 0; run < 2; run++) {
        OK(tess_graph_init(n.g, 1));
        for (int64_t k = 0; k < 3; k++) loss[run] = net_run(&n, s, k, 1e-2f);
    }
    CHECK(loss[0] == loss[1]);
    net_free(&n, s);
    tess_stop();
}

TEST(masters_written_and_not_rounded)
{
    struct net n;
    tess_step *s;
    float *data;
    s = net_step(&n, &(tess_graph_conf){.dtype = TESS_BF16}, net_gpt, &training);
    OK(tess_start(NULL));
    OK(tess_graph_init(n.g, 1));
    tess_tensor *table = tess_graph_find_param(n.g, "table");
    OK(tess_param_map(table, 0, TESS_MASTER, TESS_RW, &data));
    data[0] = 1;
    tess_param_unmap(table, 0, TESS_MASTER);
    OK(tess_step_feed(s, n.ids, n.id));
    OK(tess_step_feed(s, n.targets, n.target));
    WRONG(tess_step_run(s, &first_step, NULL), "table: was written by tess_param_map");
    OK(tess_graph_round(n.g));
    OK(tess_step_run(s, &first_step, NULL));
    net_free(&n, s);
    tess_stop();
}

/* A step that is placed on disk needs one, whose size may be left to it. */
TEST(disk_that_is_needed)
{
    for (int way = 0; way < 4; way++) {
        struct net n;
        tess_step *s;
        tess_placement p;
        char dir[] = "/tmp/tessera-mistakes-XXXXXX";
        CHECK(mkdtemp(dir) != NULL);
        net_layers = 12;
        net_make(&n, &(tess_graph_conf){.tile_rows = T}, net_gpt);
        net_layers = 3;
        OK(tess_step_new(n.loss, &training, &s));
        WRONG(tess_step_place(s, &(tess_place_conf){.ram = 1 << 10, .workers = 1}, &p),
              "the least a step can work with");
        CHECK(strstr(tess_error_text(), "memory.") == NULL);
        const uint64_t ram = p.needed + (64 << 10);
        OK(tess_step_place(s, &(tess_place_conf){.ram = ram, .workers = 1, .away = TESS_AWAY_MOMENTS}, &p));
        CHECK(p.disk > 0);
        tess_machine m = {.workers = 1, .cpu_bytes = ram, .disk = way ? dir : NULL};
        const tess_rooms rooms = {.cpu_tiles = way < 3 ? p.room : 0};
        if (way == 1) {
            m.disk_block = 5;
            WRONG(tess_start_rooms(&m, &rooms), "blocks of 5 bytes");
            m.disk_block = 0;
            m.disk_bytes = 4096;
            WRONG(tess_start_rooms(&m, &rooms), "are to rest there");
        } else
            OK(tess_start_rooms(&m, &rooms));
        if (way == 0) WRONG(tess_graph_init(n.g, 1), "tess_machine.disk");
        if (way > 1) {
            OK(tess_graph_init(n.g, 1));
            WRONG(tess_step_place(s, &(tess_place_conf){.ram = ram, .workers = 1}, &p), "before anything is drawn");
            for (int64_t k = 0; k < 2; k++) CHECK(net_run(&n, s, k, 1e-2f) > 0);
        }
        net_free(&n, s);
        tess_stop();
        rmdir(dir);
    }
}

/* The step that is laid out for what the machine has: what is wrong with it is said before anything is planned. */
/* Hands on a parameter that were not taken off, twice on, or never there. */
TEST(mapping)
{
    struct base b = base();
    int32_t ids[10] = {0};
    float *data, *again;
    tess_step *s;
    tess_step_result r;
    OK(tess_step_new(loss_of(&b), &training, &s));
    for (int run = 0; run < 2; run++) {
        OK(tess_start(&(tess_machine){.workers = 1}));
        OK(tess_graph_init(b.g, 1));
        OK(tess_param_map(b.w, 0, TESS_MASTER, TESS_RW, &data));
        WRONG(tess_param_map(b.w, 0, TESS_MASTER, TESS_R, &again), "is mapped already");
        tess_param_unmap(b.w, 0, TESS_MASTER);
        for (int k = 0; k < 2; k++) tess_param_unmap(b.w, k, TESS_MASTER); /* it is not, and there is no piece 1 */
        tess_param_unmap(NULL, 0, TESS_MASTER);
        OK(tess_param_map(b.w, 0, TESS_MASTER, TESS_R, &data));
        OK(tess_param_map(b.w, 0, TESS_MASTER, TESS_R, &again));
        CHECK(data == again);
        OK(tess_step_feed(s, b.ids, ids));
        OK(tess_step_feed(s, b.next, ids));
        WRONG(tess_param_map(b.w, 0, TESS_MASTER, TESS_W, &again), "is mapped already");
        tess_param_unmap(b.w, 0, TESS_MASTER);
        WRONG(tess_step_run(s, &first_step, &r), "tess_param_unmap was not called for 1 pieces");
        tess_stop(); /* with one that is still mapped */
    }
    OK(tess_start(&(tess_machine){.workers = 1}));
    OK(tess_graph_init(b.g, 1));
    OK(tess_param_map(b.w, 0, TESS_MASTER, TESS_RW, &data));
    tess_step_free(s);
    tess_graph_free(b.g);
    tess_stop();
}

TEST(what_is_null)
{
    struct base b = base();
    int64_t shape[3], first = 7, count = 7;
    tess_step *s;
    CHECK_STR(tess_tensor_name(NULL), "NULL");
    CHECK_EQ(tess_tensor_shape(NULL, shape), 0);
    CHECK(tess_graph_params(NULL) == 0 && !tess_graph_param(NULL, 0) && tess_graph_param_elements(NULL) == 0);
    CHECK(!tess_input(NULL, "x", 1, 1) && !tess_input(b.g, NULL, 1, 1));
    tess_graph_free(b.g);
    b = base();
    OK(tess_step_new(loss_of(&b), &training, &s));
    tess_step_share(NULL, &first, &count);
    CHECK(first == 0 && count == 0);
    tess_step_share(s, NULL, NULL);
    tess_step_free(s);
    OK(tess_step_new(b.x, NULL, &s));
    WRONG(tess_step_output(s, NULL), "the room for its values is NULL");
    WRONG(tess_step_output(NULL, NULL), "NULL");
    tess_step_free(s);
    tess_step_conf conf = training;
    conf.keep_gradients = true;
    OK(tess_step_new(loss_of(&b), &conf, &s));
    WRONG(tess_step_gradient(s, b.w, NULL), "w: the room for its gradient is NULL");
    tess_step_free(s);
    tess_graph_free(b.g);
}

TEST(laying_out)
{
    struct net n;
    tess_step *s = (tess_step *)&n;
    tess_plan l;
    tess_limits limits = {.ram = {.ram = 64 << 20, .workers = 1}};
    net_make(&n, &(tess_graph_conf){.tile_rows = T}, net_gpt);
    WRONG(tess_step_lay_out(NULL, &training, &limits, &s, &l), "output is NULL");
    CHECK(s == NULL);
    WRONG(tess_step_lay_out(n.loss, NULL, &limits, &s, &l), "conf is NULL");
    WRONG(tess_step_lay_out(n.loss, &training, NULL, &s, &l), "limits is NULL");
    WRONG(tess_step_lay_out(n.loss, &training, &limits, NULL, &l), "step is NULL");
    WRONG(tess_step_lay_out(n.loss, &training, &limits, &s, NULL), "out is NULL");
    WRONG(tess_step_lay_out(n.ids, &training, &limits, &s, &l), "is no op's result");
    limits.ram.ram = 1 << 10;
    WRONG(tess_step_lay_out(n.loss, &training, &limits, &s, &l), "the least a step can work with");
    CHECK(s == NULL && !l.gpu.needed && l.ram.needed > limits.ram.ram);
    limits.ram.ram = 64 << 20;
    OK(tess_step_lay_out(n.loss, &training, &limits, &s, &l));
    OK(tess_start(&(tess_machine){.workers = 1}));
    OK(tess_graph_init(n.g, 1));
    tess_step *late = s;
    WRONG(tess_step_lay_out(n.loss, &training, &limits, &late, &l), "comes too late to be placed");
    CHECK(late == NULL);
    CHECK(net_run(&n, s, 0, 1e-2f) > 0);                                    /* and the step that is there runs */
    OK(tess_step_lay_out(n.loss, &training, &(tess_limits){0}, &late, &l)); /* with no room said nothing is placed */
    CHECK(net_run(&n, late, 1, 1e-2f) > 0);
    tess_step_free(late);
    net_free(&n, s);
    tess_stop();
}

/* A GPU's memory is a limit like others: parameters and states have homes there, RAM and the disk what is left. */
TEST(fits_a_gpu_above_ram_and_disk)
{
    struct net n;
    tess_step *s;
    tess_plan plan;
    tess_limits limits;
    char *words = NULL;
    size_t size;
    const tess_machine m = {.workers = 1, .cpu_bytes = 64 << 20, .disk = "."};
    net_make(&n, &(tess_graph_conf){.tile_rows = T}, net_gpt);
    tess_limits_of(&m, TESS_F32, &limits);
    limits.gpu.memory = 512 << 20;
    OK(tess_step_fit_within(n.loss, &training, &m, &limits, &s, &plan));
    tess_holds h;
    tess_step_holds(s, &h);
#ifdef TESS_EMULATED_GPU
    const bool bodies = true;
#else
    const bool bodies = tess_linear_forward[TESS_F32].cuda;
#endif
    if (!bodies) {
        net_free(&n, s);
        SKIP("no CUDA bodies, so no task for a GPU");
    }
    CHECK(plan.gpu.room > 0 && plan.gpu.home >= h.resident[TESS_ROLE_WEIGHT] + h.resident[TESS_ROLE_MOMENT]);
    CHECK(h.stays[TESS_ROLE_WEIGHT] == 0 && h.on_disk[TESS_ROLE_WEIGHT] == 0);
    FILE *f = open_memstream(&words, &size);
    tess_plan_print(&plan, s, f);
    fclose(f);
    CHECK_HAS(words, "of it what lives there alone");
    free(words);
    tess_step_free(s);
    limits.gpu.memory = 1 << 20;
    CHECK_EQ(tess_step_fit_within(n.loss, &training, &m, &limits, &s, &plan), TESS_INVALID);
    CHECK(!s && plan.gpu.needed > limits.gpu.memory && !plan.ram.needed);
    net_free(&n, NULL);
}

/* The environment of a step names that of the step before, which ends there. */
static const tess_env *before_that;
static double rate_before;
static void look(const tess_work *w)
{
    before_that = w->env->before ? w->env->before->before : w->env;
    rate_before = w->env->before ? w->env->before->lr : 0;
}

TEST(the_step_before_has_no_before)
{
    static tess_codelet look_cl = {.name = "look", .dtype = TESS_F32, .cpu = look};
    struct net n[2];
    tess_step *s[2];
    OK(tess_start(NULL));
    tess_tile *t = tess_tile_new(64, TESS_ROLE_SCALAR, "t");
    const tess_use use = {t, TESS_W};
    const tess_task task = {.cl = &look_cl, .use = &use, .nuse = 1};
    for (int k = 0; k < 2; k++) {
        net_make(&n[k], &(tess_graph_conf){0}, net_gpt);
        OK(tess_step_new(n[k].loss, &training, &s[k]));
        OK(tess_graph_init(n[k].g, 1));
        for (int64_t step = 0; step < 2; step++) net_run(&n[k], s[k], step, 1e-2f * (float)(1 + 2 * k + step));
        OK(tess_submit(&task));
        OK(tess_wait());
        CHECK(before_that == NULL && fabs(rate_before - 1e-2 * (1 + 2 * k)) < 1e-8); /* its own run's */
    }
    for (int k = 0; k < 2; k++) {
        tess_step_free(s[k]);
        tess_graph_free(n[k].g);
    }
    tess_tile_free(t);
    tess_stop();
}
