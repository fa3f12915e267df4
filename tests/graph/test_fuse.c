/* Linears and gelus, additions and norms become one task where they may, and nowhere else. */
#define CHECK_MAIN
#include "graph/step/step_impl.h"
#include "tests/graph/nets.h"

/* What a program has, in tasks. */
struct counts {
    int forward, backward;           /* fused */
    int gelu_forward, gelu_backward; /* not */
    int products;                    /* linear_forward and linear_backward_input that are alone */
};

static struct counts count(tess_tensor *loss, const tess_step_conf *conf)
{
    struct counts c = {0};
    tess_lowered low;
    tess_dtype t = loss->g->conf.dtype;
    tess_graph_ready(loss->g);
    for (int k = 0; k < loss->g->params && conf->train; k++)
        OK(tess_param_moments(loss->g->param[k], &conf->optimizer, true));
    tess_lower_step(loss, conf, &low);
    for (size_t k = 0; k < low.program->tasks; k++) {
        const tess_task *task = &low.program->task[k];
        CHECK_EQ(task->order, k);
        c.forward += task->cl == &tess_linear_gelu_forward[t];
        c.backward += task->cl == &tess_gelu_linear_backward[t];
        c.gelu_forward += task->cl == &tess_gelu_forward[t];
        c.gelu_backward += task->cl == &tess_gelu_backward[t];
        c.products += task->cl == &tess_linear_forward[t] || task->cl == &tess_linear_backward_input[t];
    }
    tess_program_free(low.program);
    return c;
}

/* Linears of blocks, but for a router's. */
TEST(what_multiplies_8_bits)
{
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16, .fp8 = true});
    tess_tensor *x = tess_embedding(tess_input(g, "ids", 2, 4), tess_param(g, "table", 8, 16, TESS_ONE), NULL);
    tess_tensor *w = tess_param(g, "w", 16, 16, TESS_ONE), *before = tess_linear(x, w, NULL);
    tess_block(g, "block");
    tess_tensor *y = tess_linear(before, w, NULL);
    tess_tensor *logits = tess_linear(y, tess_param(g, "router", 4, 16, TESS_ONE), NULL);
    CHECK(tess_route(logits, 2, true, NULL) != NULL);
    tess_block_end(g);
    tess_tensor *head = tess_linear(y, w, NULL);
    CHECK(y->producer->fp8 && !before->producer->fp8 && !logits->producer->fp8 && !head->producer->fp8);
    tess_graph_free(g);
}

/* Blocks of a GPT, three row tiles, two micro-batches, both orders, with and without recomputation. */
TEST(every_gelu_of_a_gpt)
{
    for (int kind = 0; kind < 8; kind++) {
        const bool again = kind & 1, evaluates = !again && kind & 4;
        struct net n;
        net_make(&n, &(tess_graph_conf){.dtype = kind & 2 ? TESS_BF16 : TESS_F32, .tile_rows = T}, net_gpt);
        const tess_step_conf conf = {
            .micro = 2, .train = !evaluates, .recompute_every = again, .layout.by_layer = kind & 4};
        const struct counts c = count(n.loss, &conf);
        const int all = net_layers * 3 * 2;
        CHECK_EQ(c.forward, again ? 2 * all : all);
        CHECK_EQ(c.backward, evaluates ? 0 : all);
        CHECK_EQ(c.gelu_forward + c.gelu_backward, 0);
        tess_graph_free(n.g);
    }
}

enum { WIDE = 40 };
#define UP(x)   tess_linear(x, PARAM("up", WIDE, C, TESS_NORMAL(0.3f)), PARAM("up.b", WIDE, 1, TESS_ZERO))
#define DOWN(y) tess_linear(y, PARAM("down", C, WIDE, TESS_NORMAL(0.3f)), NULL)

static tess_tensor *plain(tess_graph *g, tess_tensor *x, int layer)
{
    return DOWN(tess_gelu(UP(x), TESS_GELU_TANH));
}
/* Another reads what gelu reads, before it and after it: its gradient is there when gelu's is to be added. */
static tess_tensor *pre_is_read(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *pre = UP(x), *before = tess_dropout(pre, 0.1f), *y = DOWN(tess_gelu(pre, TESS_GELU_TANH));
    return tess_add(y, tess_linear(tess_mul(before, pre), PARAM("other", C, WIDE, TESS_NORMAL(0.3f)), NULL));
}
/* The same, but gelu's comes first: the others add to it. */
static tess_tensor *pre_is_read_before(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *pre = UP(x), *before = tess_linear(pre, PARAM("other", C, WIDE, TESS_NORMAL(0.3f)), NULL);
    return tess_add(before, DOWN(tess_gelu(pre, TESS_GELU_TANH)));
}
static tess_tensor *two_linears(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *y = tess_gelu(UP(x), TESS_GELU_ERF);
    return tess_add(DOWN(y), tess_linear(y, PARAM("other", C, WIDE, TESS_NORMAL(0.3f)), NULL));
}
static tess_tensor *residual(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *y = tess_gelu(tess_linear(x, PARAM("up", C, C, TESS_NORMAL(0.3f)), NULL), TESS_GELU_TANH);
    return tess_add(y, tess_linear(y, PARAM("down", C, C, TESS_NORMAL(0.3f)), NULL));
}
static tess_tensor *dropout_behind(tess_graph *g, tess_tensor *x, int layer)
{
    return DOWN(tess_dropout(tess_gelu(UP(x), TESS_GELU_TANH), 0.1f));
}
static tess_tensor *dropout_before(tess_graph *g, tess_tensor *x, int layer)
{
    return DOWN(tess_gelu(tess_dropout(UP(x), 0.1f), TESS_GELU_TANH));
}
static tess_tensor *two_gelus(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *pre = UP(x);
    return DOWN(tess_mul(tess_gelu(pre, TESS_GELU_TANH), tess_gelu(pre, TESS_GELU_ERF)));
}

TEST(where_it_may)
{
    static const struct {
        net_body body;
        int64_t tile_elements;
        struct counts of; /* a layer */
    } cases[] = {
        {plain, 0, {.forward = 1, .backward = 1, .products = 2}},
        {plain, 16 * C, {.gelu_forward = 1, .gelu_backward = 1, .products = 2 * (3 + 2)}},
        {pre_is_read, 0, {.forward = 1, .gelu_backward = 1, .products = 2 + 3}},
        {pre_is_read_before, 0, {.forward = 1, .backward = 1, .products = 2 + 2}},
        {two_linears, 0, {.forward = 1, .gelu_backward = 1, .products = 2 + 3}},
        {residual, 0, {.forward = 1, .gelu_backward = 1, .products = 1 + 2}},
        {dropout_behind, 0, {.forward = 1, .gelu_backward = 1, .products = 1 + 2}},
        {dropout_before, 0, {.backward = 1, .gelu_forward = 1, .products = 2 + 1}},
        {two_gelus, 0, {.forward = 1, .gelu_forward = 1, .gelu_backward = 2, .products = 1 + 2}},
    };
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        struct net n;
        net_make(&n, &(tess_graph_conf){.tile_elements = cases[k].tile_elements}, cases[k].body);
        const struct counts c = count(n.loss, &(tess_step_conf){.micro = 1, .train = true}), *want = &cases[k].of;
        if (c.forward != want->forward * net_layers || c.backward != want->backward * net_layers ||
            c.gelu_forward != want->gelu_forward * net_layers || c.gelu_backward != want->gelu_backward * net_layers ||
            c.products != want->products * net_layers)
            CHECK_SAY("case %zu: of %d layers %d and %d fused, %d and %d gelus and %d products left", k, net_layers,
                      c.forward, c.backward, c.gelu_forward, c.gelu_backward, c.products);
        tess_graph_free(n.g);
    }
}

/* ---- what is kept of blocks that are computed again ---- */

static int gpus; /* of a machine */
int __wrap_tess_gpus(void);
int __wrap_tess_gpus(void)
{
    return gpus;
}

/* Which codelet makes which node's tasks. */
struct maker {
    int node;
    const tess_codelet *cl;
};
enum { MAKERS = 1024 };

/* Adds those of a step to the list unless `n` of them is all there may be; returns how many are not in it. Parts of
 * fusions that have the bits of both, an addition and a norm, may be made by themselves. */
static int other_makers(tess_tensor *loss, const tess_step_conf *conf, struct maker *of, int *n, bool add)
{
    int other = 0;
    tess_lowered low;
    tess_lower_step(loss, conf, &low);
    for (size_t k = 0; k < low.program->tasks; k++) {
        const struct maker m = {low.program->origin[k].node, low.program->task[k].cl};
        int at = 0;
        if (!low.program->origin[k].of || strstr(m.cl->name, "norm_forward") || strstr(m.cl->name, "add_")) continue;
        while (at < *n && (of[at].node != m.node || of[at].cl != m.cl)) at++;
        if (at == *n && add && *n < MAKERS) of[(*n)++] = m;
        other += at == *n;
    }
    tess_program_free(low.program);
    return other;
}

/* On a GPU a product with gelu in its epilogue has bits of its own. Whatever is kept, what makes a value is what makes
 * it where all is kept, and nothing is made again. */
TEST(a_value_has_one_maker_whatever_is_kept)
{
    static const net_body bodies[] = {net_gpt, plain, two_linears, dropout_behind, residual};
    int tried = 0, apart = 0;
    for (size_t b = 0; b < 2 * sizeof bodies / sizeof *bodies; b++) {
        struct net n;
        gpus = b % 2;
        net_make(&n, &(tess_graph_conf){.dtype = TESS_BF16, .tile_rows = T}, bodies[b / 2]);
        tess_graph_ready(n.g);
        tess_step_conf conf = {.micro = 1, .train = true, .recompute_every = 1};
        for (int k = 0; k < n.g->params; k++) OK(tess_param_moments(n.g->param[k], &conf.optimizer, true));
        tess_price *price = calloc((size_t)n.g->nodes + 1, sizeof *price);
        for (int k = 0; k < n.g->nodes; k++) price[k] = (tess_price){.time = 1 + k * 7919 % 13, .size = 64};
        int pay;
        const int keeps = tess_lower_worth(n.loss, &conf, price, 0, &conf.layout.keep, &pay);
        CHECK(keeps > 0);
        struct maker of[MAKERS];
        int makers = 0;
        conf.layout.keeps = keeps;
        other_makers(n.loss, &conf, of, &makers, true);
        for (conf.layout.keeps = 0; conf.layout.keeps <= keeps; conf.layout.keeps++, tried++) {
            const int other = other_makers(n.loss, &conf, of, &makers, false);
            apart += other > 0 && !gpus;
            if (gpus && other > 0)
                CHECK_SAY("net %zu, %d of %d kept: %d tasks make a value otherwise", b / 2, conf.layout.keeps, keeps,
                          other);
        }
        free(price);
        tess_graph_free(n.g);
    }
    gpus = 0;
    CHECK(tried > 50);
    CHECK(apart > 0); /* where bits are the same a product may be kept without its gelu */
}

/* ---- lists made by hand ---- */

enum { IN, WEIGHT, BETWEEN, PRE, OUT, TILES };

/* A pair of tasks, one use of a tile among them and one behind them: whether the pair becomes one. */
static void check_list(bool back, int among, int among_mode, int behind, int behind_mode, bool fuses)
{
    static const tess_linear_arg linear = {.rows = 1, .in = 1, .out = 1, .ld = 1};
    static const tess_map_arg map = {.n = 1};
    tess_program *p = tess_program_new();
    tess_use t[TILES];
    for (int k = 0; k < TILES; k++)
        t[k] =
            (tess_use){tess_program_tile(p, sizeof(float), TESS_ROLE_ACTIVATION, "tile"), k >= PRE ? TESS_W : TESS_R};
    tess_program_add(p, &tess_fill[TESS_F32], NULL, t + PRE, 2, false);
    tess_use first[] = {t[IN], t[WEIGHT], {t[BETWEEN].tile, TESS_W}}, forward[] = {t[BETWEEN], t[OUT]};
    tess_use backward[] = {t[BETWEEN], {t[PRE].tile, TESS_R}, t[OUT]};
    tess_program_add(p, back ? &tess_linear_backward_input[TESS_F32] : &tess_linear_forward[TESS_F32], &linear, first,
                     3, false);
    if (among_mode) tess_program_add(p, &tess_fill[TESS_F32], NULL, &(tess_use){t[among].tile, among_mode}, 1, false);
    if (back)
        tess_program_add(p, &tess_gelu_backward[TESS_F32], &map, backward, 3, false);
    else
        tess_program_add(p, &tess_gelu_forward[TESS_F32], &map, forward, 2, false);
    if (behind_mode)
        tess_program_add(p, &tess_fill[TESS_F32], NULL, &(tess_use){t[behind].tile, behind_mode}, 1, false);
    const size_t tasks = p->tasks;
    tess_program_fuse(p);
    if (tasks - p->tasks != fuses)
        CHECK_SAY("%s: tile %d, mode %d among, %d, mode %d behind: %zu fused", back ? "backward" : "forward", among,
                  among_mode, behind, behind_mode, tasks - p->tasks);
    const tess_task *one = &p->task[1];
    if (fuses) { /* in, weight, what gelu reads, what it writes */
        CHECK_EQ(one->nuse, 4);
        CHECK(one->use[2].tile == t[back ? PRE : BETWEEN].tile && one->use[2].mode == (back ? TESS_R : TESS_W));
        CHECK(one->use[3].tile == t[OUT].tile && one->use[3].mode == TESS_W);
    }
    tess_program_free(p);
}

TEST(uses_of_tiles_decide)
{
    for (int back = 0; back < 2; back++) {
        check_list(back, 0, 0, 0, 0, true);
        check_list(back, BETWEEN, TESS_R, 0, 0, !back);
        check_list(back, 0, 0, BETWEEN, TESS_R, !back);
        check_list(back, 0, 0, BETWEEN, TESS_W, true);
        check_list(back, BETWEEN, TESS_RW, 0, 0, false);
        check_list(back, OUT, TESS_R, 0, 0, false);
        check_list(back, OUT, TESS_W, 0, 0, false);
        check_list(back, PRE, TESS_R, 0, 0, true);
        check_list(back, PRE, TESS_W, 0, 0, !back);
        check_list(back, IN, TESS_W, WEIGHT, TESS_W, true); /* an update of what the first has read */
    }
}

/* ---- additions and norms ---- */

struct norms {
    int fused, added, normed;
};
static struct norms count_norms(tess_tensor *loss, const tess_step_conf *conf)
{
    struct norms c = {0};
    tess_lowered low;
    tess_graph_ready(loss->g);
    for (int k = 0; k < loss->g->params; k++) OK(tess_param_moments(loss->g->param[k], &conf->optimizer, true));
    tess_lower_step(loss, conf, &low);
    for (size_t k = 0; k < low.program->tasks; k++) {
        const tess_codelet *cl = low.program->task[k].cl;
        c.fused += cl == tess_add_layernorm_forward || cl == tess_add_rmsnorm_forward;
        c.added += cl == tess_add_forward;
        c.normed += cl == tess_layernorm_forward || cl == tess_rmsnorm_forward;
    }
    tess_program_free(low.program);
    return c;
}

/* In a block the second norm reads the first addition, and the next block's first the second. A
 * backward pass that makes a block again begins it with a norm of what was kept. */
TEST(every_norm_behind_an_addition)
{
    for (int kind = 0; kind < 4; kind++) {
        const bool again = kind & 1, llama = kind & 2;
        struct net n;
        net_make(&n, &(tess_graph_conf){.tile_rows = T}, llama ? net_llama : net_gpt);
        const struct norms c =
            count_norms(n.loss, &(tess_step_conf){.micro = 2, .train = true, .recompute_every = again});
        const int tiles = 3 * 2;
        CHECK_EQ(c.fused, ((again ? 3 : 2) * net_layers - 1) * tiles);
        CHECK_EQ(c.normed, (again ? 1 + net_layers : 1) * tiles);
        CHECK_EQ(c.added, tiles); /* the head reads the last */
        tess_graph_free(n.g);
    }
}

/* One reads a sum less than two do. */
TEST(a_sum_is_read_once_less)
{
    enum { A, B, SUM, GAIN, BIAS, Y, STATS, ALL };
    static const tess_map_arg map = {.n = 24 * 10};
    static const tess_norm_arg norm = {.rows = 10, .width = 24};
    tess_program *p = tess_program_new();
    tess_use t[ALL];
    double before = 0;
    for (int k = 0; k < ALL; k++) {
        const size_t bytes = k == GAIN || k == BIAS ? 24 * 4 : k == STATS ? 10 * 8 : 24 * 10 * 2;
        t[k] =
            (tess_use){tess_program_tile(p, bytes, TESS_ROLE_ACTIVATION, "tile"), k == SUM || k >= Y ? TESS_W : TESS_R};
    }
    tess_use second[] = {{t[SUM].tile, TESS_R}, t[GAIN], t[BIAS], t[Y], t[STATS]};
    tess_program_add(p, &tess_add_forward[TESS_BF16], &map, t, 3, false);
    tess_program_add(p, &tess_layernorm_forward[TESS_BF16], &norm, second, 5, false);
    for (size_t k = 0; k < 2; k++) before += tess_task_cost(&p->task[k]).bytes;
    tess_program_fuse(p);
    CHECK_EQ(p->tasks, 1);
    CHECK_EQ(p->task[0].nuse, ALL);
    CHECK(p->task[0].cl == &tess_add_layernorm_forward[TESS_BF16] && p->task[0].arg == &norm);
    for (int k = 0; k < ALL; k++) CHECK(p->task[0].use[k].tile == t[k].tile);
    CHECK_NEAR(before - tess_task_cost(&p->task[0]).bytes, 24 * 10 * 2, 0);
    tess_program_free(p);
}
