/* Matrices in several tiles: how they are cut, and that losses and gradients are those of one tile. */
#define CHECK_MAIN
#include "tests/graph/params.h"

enum { B = 3, T = 19, C = 24, V = 101, WIDE = 1024 };

/* ---- the cut ---- */

TEST(tiles_are_even_and_of_whole_panels)
{
    static const struct {
        int64_t rows, columns, tiles, unit;
    } cut[] = {{50257, 768, 15, 64},   {3072, 768, 1, 1},       {768, 3072, 1, 1},       {6400, 1600, 4, 64},
               {8192, 28672, 128, 64}, {16384, 53248, 342, 16}, {128256, 4096, 201, 64}, {7, 4000000, 1, 1}};
    for (size_t k = 0; k < sizeof cut / sizeof *cut; k++) {
        tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16});
        tess_tensor *w = tess_param(g, "w", cut[k].rows, cut[k].columns, TESS_ZERO);
        int64_t tiles = tess_param_tiles(w), next = 0, first, count, height = 0;
        CHECK_EQ(tiles, cut[k].tiles);
        for (int64_t j = 0; j < tiles; j++, next += count) {
            tess_param_rows(w, j, &first, &count);
            if (j == 0) height = count;
            CHECK_EQ(first, next);
            CHECK(j + 1 < tiles ? count == height && count % cut[k].unit == 0 : count > 0 && count <= height);
            CHECK(tiles == 1 || count * cut[k].columns <= 5 << 19);
        }
        CHECK_EQ(next, cut[k].rows);
        tess_graph_free(g);
    }
}

/* A piece of the head has no more rows than make 2^29 logits, whatever is asked for. */
TEST(pieces_have_the_rows_that_a_vocabulary_leaves)
{
    enum { SEQUENCES = 4, LENGTH = 1024 };
    static const struct {
        int64_t vocab, asked, parts;
    } head[] = {{101, 8192, 1}, {1 << 17, 8192, 1}, {1 << 18, 8192, 2}, {1 << 18, 1024, 4}, {400000, 8192, 4}};
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (size_t k = 0; k < sizeof head / sizeof *head; k++) {
        tess_graph *g = tess_graph_new(&(tess_graph_conf){.tile_rows = SEQUENCES * LENGTH, .loss_rows = head[k].asked});
        tess_tensor *ids = tess_input(g, "ids", SEQUENCES, LENGTH),
                    *targets = tess_input(g, "targets", SEQUENCES, LENGTH);
        tess_tensor *x = tess_embedding(ids, tess_param(g, "table", 8, 2, TESS_ZERO), NULL);
        tess_step *s;
        tess_tensor *w = tess_param(g, "head", head[k].vocab, 2, TESS_ZERO);
        OK(tess_step_new(tess_cross_entropy(x, w, NULL, targets), &(tess_step_conf){.micro = 1}, &s));
        CHECK_EQ(tess_step_loss_parts(s), head[k].parts);
        tess_step_free(s);
        tess_graph_free(g);
    }
    tess_stop();
}

/* Large pieces have one set of tiles, which each waits for; small ones have two. */
TEST(large_pieces_of_a_head_are_as_small_ones)
{
    enum { SEQUENCES = 7, LENGTH = 1024, TOKENS = SEQUENCES * LENGTH };
    static int32_t ids[TOKENS], targets[TOKENS];
    static float dw[2][V * C];
    double loss[2], off = 0, size = 0;
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int i = 0; i < TOKENS; i++) ids[i] = (i * 37 + i / 7) % V, targets[i] = i % 9 == 4 ? -100 : (i * 53 + 11) % V;
    for (int k = 0; k < 2; k++) {
        tess_graph *g = tess_graph_new(&(tess_graph_conf){.tile_rows = TOKENS, .loss_rows = k ? 2100 : 100});
        tess_tensor *id = tess_input(g, "ids", SEQUENCES, LENGTH),
                    *target = tess_input(g, "targets", SEQUENCES, LENGTH);
        tess_tensor *x = tess_embedding(id, tess_param(g, "table", V, C, TESS_NORMAL(0.5f)), NULL);
        tess_tensor *w = tess_param(g, "head", V, C, TESS_NORMAL(0.3f));
        tess_step_result r = {0};
        tess_step *s;
        OK(tess_step_new(tess_cross_entropy(x, w, NULL, target),
                         &(tess_step_conf){.train = true, .micro = 1, .keep_gradients = true}, &s));
        OK(tess_graph_init(g, 5));
        OK(tess_step_feed(s, id, ids));
        OK(tess_step_feed(s, target, targets));
        OK(tess_step_run(s, &(tess_step_input){.seed = 1}, &r));
        OK(tess_step_gradient(s, w, dw[k]));
        loss[k] = r.loss;
        tess_step_free(s);
        tess_graph_free(g);
    }
    tess_stop();
    for (int i = 0; i < V * C; i++) off += pow(dw[1][i] - dw[0][i], 2), size += pow(dw[0][i], 2);
    CHECK_NEAR(loss[1], loss[0], 1e-9 * loss[0]);
    CHECK(sqrt(off / size) < 1e-6);
}

/* ---- a network of wide linears ---- */

struct net {
    tess_graph *g;
    tess_tensor *ids, *targets, *loss;
};

/* embedding -> two linears with one weight and a bias each -> wide hidden layer -> head with bias. All biases are cut
 * as their weights are. */
static void net_make(struct net *n, const tess_graph_conf *conf)
{
    tess_graph *g = n->g = tess_graph_new(conf);
    n->ids = tess_input(g, "ids", B, T);
    n->targets = tess_input(g, "targets", B, T);
    tess_tensor *x = tess_embedding(n->ids, tess_param(g, "table", V, C, TESS_NORMAL(0.5f)), NULL);
    tess_tensor *w = tess_param(g, "twice", C, C, TESS_NORMAL(0.2f));
    x = tess_add(x, tess_linear(x, w, tess_param(g, "twice.a", C, 1, TESS_NORMAL(0.1f))));
    x = tess_add(x, tess_linear(x, w, NULL));
    x = tess_add(x, tess_linear(x, w, tess_param(g, "twice.b", C, 1, TESS_NORMAL(0.1f))));
    tess_tensor *y =
        tess_linear(x, tess_param(g, "in", WIDE, C, TESS_NORMAL(0.2f)), tess_param(g, "in.b", WIDE, 1, TESS_ZERO));
    y = tess_gelu(y, TESS_GELU_TANH);
    x = tess_add(x, tess_linear(y, tess_param(g, "out", C, WIDE, TESS_NORMAL(0.03f)), NULL));
    tess_tensor *b = tess_param(g, "head.b", V, 1, TESS_NORMAL(0.2f));
    n->loss = tess_cross_entropy(x, tess_param(g, "head", V, C, TESS_NORMAL(0.3f)), b, n->targets);
}

static double net_run(const struct net *n, tess_step *s)
{
    int32_t ids[2 * B * T], targets[2 * B * T];
    for (int i = 0; i < 2 * B * T; i++) {
        ids[i] = (i * 37 + i / 7) % V;
        targets[i] = i % 9 == 4 ? -100 : (i * 53 + 11) % V;
    }
    tess_step_result r = {0};
    OK(tess_step_feed(s, n->ids, ids));
    OK(tess_step_feed(s, n->targets, targets));
    OK(tess_step_run(s, &(tess_step_input){.seed = 1}, &r));
    return r.loss;
}

/* The loss, and all gradients one after the other, which the caller frees. */
static float *gradients(const tess_graph_conf *conf, double *loss)
{
    struct net n;
    tess_step *s;
    net_make(&n, conf);
    OK(tess_step_new(n.loss, &(tess_step_conf){.train = true, .micro = 2, .keep_gradients = true}, &s));
    OK(tess_graph_init(n.g, 5));
    *loss = net_run(&n, s);
    float *all = tess_alloc((size_t)tess_graph_param_elements(n.g) * sizeof *all), *at = all;
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        OK(tess_step_gradient(s, tess_graph_param(n.g, k), at));
        at += elements_of(tess_graph_param(n.g, k));
    }
    tess_step_free(s);
    tess_graph_free(n.g);
    return all;
}

/* Relative distance in norm of the gradients of one parameter, or with NULL of all. */
static double apart(const float *a, const float *b, const char *name)
{
    struct net n;
    double off = 0, size = 0;
    net_make(&n, &(tess_graph_conf){0});
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        const tess_tensor *p = tess_graph_param(n.g, k);
        for (int64_t i = 0; i < elements_of(p); i++, a++, b++) {
            if (name && strcmp(name, tess_tensor_name(p))) continue;
            off += ((double)*a - *b) * ((double)*a - *b);
            size += (double)*b * *b;
        }
    }
    tess_graph_free(n.g);
    return sqrt(off / size);
}

/* A head of 7 tiles with a bias, ignored targets and pieces that no row count divides; linears of 2 and 64 tiles;
 * sums over two micro-batches. */
static const tess_graph_conf many = {.tile_elements = 16 * C, .loss_rows = 17, .tile_rows = 2 * T};

TEST(many_tiles_are_as_one)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    double loss[2];
    float *one = gradients(&(tess_graph_conf){0}, &loss[0]), *tiled = gradients(&many, &loss[1]);
    CHECK_NEAR(loss[1], loss[0], 1e-6 * loss[0]);
    struct net n;
    net_make(&n, &many);
    CHECK_EQ(tess_param_tiles(tess_graph_find_param(n.g, "head")), 7);
    CHECK_EQ(tess_param_tiles(tess_graph_find_param(n.g, "head.b")), 7);
    CHECK_EQ(tess_param_tiles(tess_graph_find_param(n.g, "in")), 64);
    CHECK_EQ(tess_param_tiles(tess_graph_find_param(n.g, "twice.b")), 2);
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        const char *name = tess_tensor_name(tess_graph_param(n.g, k));
        double d = apart(tiled, one, name);
        if (!(d < 1e-5)) CHECK_SAY("%s: gradients %g apart", name, d);
    }
    tess_graph_free(n.g);
    free(one), free(tiled);
    tess_stop();
}

TEST(gradients_match_finite_differences)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    struct net n;
    tess_step *s;
    double loss;
    float *all = gradients(&many, &loss), *g = all;
    net_make(&n, &many);
    OK(tess_step_new(n.loss, &(tess_step_conf){.micro = 2}, &s));
    OK(tess_graph_init(n.g, 5));
    CHECK_NEAR(net_run(&n, s), loss, 1e-6 * loss);
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        tess_tensor *p = tess_graph_param(n.g, k);
        int64_t size = elements_of(p), at[3] = {0, size / 2, size - 1}; /* in the first, a middle, the last tile */
        for (int64_t i = 0; i < size; i++)
            if (fabsf(g[i]) > fabsf(g[at[0]])) at[0] = i;
        for (int m = 0; m < 3; m++) CHECK_SLOPE("tiles", p, at[m], (double)g[at[m]], 1e-3f, 2e-4, net_run(&n, s));
        g += size;
    }
    free(all);
    tess_step_free(s);
    tess_graph_free(n.g);
    tess_stop();
}

/* In bf16, dx of a linear of 16 tiles is rounded once, as that of one tile is: the table's gradient, which comes
 * through it, is as near to fp32, and nearly the same. The head stays in one tile, whose strips are rounded as they are
 * cut. */
TEST(dx_of_many_tiles_is_rounded_once)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    const tess_graph_conf whole = {.dtype = TESS_BF16}, tiled = {.dtype = TESS_BF16, .tile_elements = 64 * 40};
    struct net n;
    double loss;
    net_make(&n, &tiled);
    CHECK_EQ(tess_param_tiles(tess_graph_find_param(n.g, "head")), 1);
    CHECK_EQ(tess_param_tiles(tess_graph_find_param(n.g, "in")), 16);
    tess_graph_free(n.g);
    float *exact = gradients(&(tess_graph_conf){0}, &loss);
    float *one = gradients(&whole, &loss), *sixteen = gradients(&tiled, &loss);
    double of_one = apart(one, exact, "table"), of_sixteen = apart(sixteen, exact, "table");
    CHECK(of_sixteen <= 1.02 * of_one);
    CHECK(apart(sixteen, one, "table") < 2e-4);
    free(exact), free(one), free(sixteen);
    tess_stop();
}

/* ---- biases ---- */

/* A bias that an op reads keeps its cut: a matrix that is cut otherwise cannot have it too. */
TEST(a_bias_of_two_matrices)
{
    for (int head = 0; head < 2; head++) {
        tess_graph *g = tess_graph_new(&(tess_graph_conf){.tile_elements = 16 * C});
        tess_tensor *ids = tess_input(g, "ids", B, T), *b = tess_param(g, "b", V, 1, TESS_ZERO);
        tess_tensor *x = tess_embedding(ids, tess_param(g, "table", V, C, TESS_ZERO), NULL);
        tess_tensor *y = tess_linear(x, tess_param(g, "w", V, C, TESS_ZERO), b); /* in 7 tiles */
        y = tess_linear(y, tess_param(g, "narrow", 3, V, TESS_ZERO), NULL);
        CHECK(y != NULL);
        CHECK_EQ(tess_param_tiles(b), 7);
        tess_tensor *w = tess_param(g, "whole", V, 3, TESS_ZERO);
        CHECK_EQ(tess_param_tiles(w), 1);
        CHECK((head ? tess_cross_entropy(y, w, b, ids) : tess_linear(y, w, b)) == NULL);
        CHECK_HAS(tess_error_text(), "the bias is cut otherwise than w");
        CHECK_EQ(tess_param_tiles(b), 7);
        tess_graph_free(g);
    }
}
