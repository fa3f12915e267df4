/* Run by mpirun: experts that data-parallel ranks own, some each. Rows go to them, or their weights to the rows:
 * against PyTorch (fixtures/make_families.py), bit by bit against states that lie as others do, and byte by byte. */
#include "models/files/data/data.h"
#include "models/models.h"
#include "tests/mpi/ranks.h"
#include <jansson.h>
#include <malloc.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif
enum { B = 3, T = 21, VOCAB = 101, STEPS = 6, MICROS = 2 }; /* of the fixtures; micro-batches of a rank */
#define OK(...)                                                                                                        \
    do {                                                                                                               \
        if ((__VA_ARGS__) != TESS_OK) CHECK_SAY("%s: %s", #__VA_ARGS__, tess_error_text());                            \
    } while (0)

/* Who has the experts, and what goes. */
enum how { APART, ROWS, WEIGHTS, HOWS };

struct net {
    tess_model *model;
    tess_graph *g;
    tess_network net;
    tess_step *step;
    tess_data *data;
};

static struct net make(const char *model, const tess_graph_conf *conf, enum how how, tess_step_conf step)
{
    struct net n = {0};
    const tess_data_conf data = {.seq_length = T, .vocab = VOCAB};
    const tess_build build = {.batch = B, .length = T, .purpose = TESS_FOR_LOSS};
    const bool json = *model == '{';
    char path[4096];
    snprintf(path, sizeof path, TESS_FIXTURES "/families/%s", json ? "" : model);
    OK(tess_model_open(json ? NULL : path, json ? model : NULL, &n.model));
    n.g = tess_graph_new(conf);
    if (how != APART) tess_graph_own_experts(n.g, how == ROWS ? -1 : 0);
    OK(tess_model_build_for(n.model, n.g, &build, &n.net));
    step.train = true, step.micro = MICROS * tess_ranks();
    step.optimizer = (tess_optimizer){.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1};
    OK(tess_step_new(n.net.output, &step, &n.step));
    OK(tess_model_load(n.model, n.g, 1));
    OK(tess_data_open(TESS_FIXTURES "/families/tokens.bin", NULL, &data, &n.data));
    return n;
}

static void drop(struct net *n)
{
    tess_step_free(n->step);
    tess_graph_free(n->g);
    tess_data_close(n->data);
    tess_model_close(n->model);
}

/* A step: every micro-batch of all ranks is PyTorch's batch, or, `apart`, each is another. */
static tess_step_result run(struct net *n, int64_t step, bool apart)
{
    int32_t ids[MICROS * B * T], targets[MICROS * B * T];
    tess_step_result r = {0};
    for (int64_t i = 0; i < MICROS * B; i++) {
        const int64_t other = apart ? (tess_rank() * MICROS + i / B) * B : 0;
        const uint64_t sample = tess_data_order(n->data, (uint64_t)(step * B + i % B + other));
        OK(tess_data_get(n->data, sample, &(tess_sample){.ids = ids + i * T, .targets = targets + i * T}));
    }
    OK(tess_step_feed(n->step, n->net.ids, ids));
    OK(tess_step_feed(n->step, n->net.targets, targets));
    OK(tess_step_run(n->step, &(tess_step_input){.step = step, .seed = 1, .lr = 1e-3f}, &r));
    return r;
}

static tess_graph_conf conf_of(int stage, int64_t reuse)
{
    return (tess_graph_conf){
        .tile_elements = 900,
        .tile_rows = 42,
        .grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = stage, .live = reuse, .reuse = reuse}};
}

/* ---- against PyTorch ---- */

TEST(six_steps_match_pytorch)
{
    static const char *const families[] = {"mixtral", "qwen3-moe", "qwen3-moe-step", "deepseek-v3", "gpt-oss"};
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int k = 0; k < (tess_ranks() > 3 ? 4 : 5); k++) /* this gpt-oss has three experts */
        for (int how = ROWS; how < HOWS; how++) {
            char path[4096];
            const int stage = (k + how) % 4;
            const tess_graph_conf conf = conf_of(stage, 0);
            snprintf(path, sizeof path, TESS_FIXTURES "/families/%s/expected.json", families[k]);
            json_t *expected = json_load_file(path, 0, NULL);
            struct net n = make(families[k], &conf, (enum how)how, (tess_step_conf){.deterministic = k % 2});
            CHECK_HAS(tess_graph_experts(n.g), how == ROWS && k < 4 ? "rows go to" : "weights go from");
            for (size_t i = 0; i < STEPS; i++) {
                const double loss = json_number_value(json_array_get(json_object_get(expected, "loss"), i));
                const double norm = json_number_value(json_array_get(json_object_get(expected, "grad_norm"), i));
                const tess_step_result got = run(&n, (int64_t)i, false);
                if (!(fabs(got.loss - loss) <= 1e-5 * loss) || !(fabs(got.grad_norm - norm) <= 1e-5 * norm))
                    CHECK_SAY("%s, stage %d, step %zu: loss %.8g, norm %.8g, PyTorch has %.8g and %.8g", families[k],
                              stage, i, got.loss, got.grad_norm, loss, norm);
            }
            drop(&n);
            json_decref(expected);
        }
    tess_stop();
}

/* ---- bits ---- */

/* A sum over all elements that this rank writes, whatever their order: of their bits and their places. */
static int64_t digest(const struct net *n)
{
    int64_t sum = 0;
    for (int k = 0; k < tess_graph_params(n->g); k++) {
        tess_tensor *p = tess_graph_param(n->g, k);
        for (int64_t i = 0; i < tess_param_pieces(p); i++) {
            const tess_piece piece = tess_param_piece(p, i);
            if (!piece.writes) continue;
            for (int part = TESS_MASTER; part < tess_param_parts(p); part++) {
                float *x;
                OK(tess_param_map(p, i, (tess_part)part, TESS_R, &x));
                for (int64_t j = 0; j < piece.rows * piece.cols; j++) {
                    const uint64_t at =
                        (uint64_t)((piece.row * 7919 + piece.col) * 1009 + j / piece.cols * 7919 * 1009 +
                                   j % piece.cols * 1009 + part * 31 + k);
                    uint32_t bits;
                    memcpy(&bits, &x[j], sizeof bits);
                    sum += (int64_t)(((bits + at * 0x9e3779b97f4a7c15ull) ^ (bits * 0xbf58476d1ce4e5b9ull)) >> 20);
                }
                tess_param_unmap(p, i, (tess_part)part);
            }
        }
    }
    tess_ranks_sum_counts(&sum, 1);
    return sum;
}

TEST(bits_are_those_of_states_that_lie_as_others)
{
    static const char *const families[] = {"mixtral", "qwen3-moe", "deepseek-v3"};
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int k = 0; k < 3; k++)
        for (int way = 0; way < 4; way++) { /* deterministic or not, all kept or recomputed, layer by layer */
            const tess_step_conf step = {.deterministic = way % 2,
                                         .recompute_every = way / 2,
                                         .layout = {.by_layer = way == 3, .late = way == 2}};
            int64_t want = 0;
            for (int stage = 0; stage < 4; stage++)
                for (int how = APART; how < HOWS; how++) {
                    tess_graph_conf conf = conf_of(stage, stage == 3 && k ? 1 << 30 : 0);
                    conf.dtype = k == 1 ? TESS_BF16 : TESS_F32;
                    conf.grid.sent = k == 2 && stage > 0 && way == 0 ? TESS_BF16 : TESS_F32;
                    struct net n = make(families[k], &conf, (enum how)how, step);
                    for (int64_t i = 0; i < 2; i++) run(&n, i, true);
                    const int64_t got = digest(&n);
                    /* Without trees a rank adds up its micro-batches first, or, from stage 2 on, ranks each of them;
                     * what is rounded on its way has other bits than what is not. */
                    if (how == APART && (stage == 0 || !step.deterministic)) want = got;
                    if (got != want)
                        CHECK_SAY("%s, way %d, stage %d: other bits where %s", families[k], way, stage,
                                  how == ROWS      ? "rows go to experts"
                                  : how == WEIGHTS ? "experts go to rows"
                                                   : "states lie as others");
                    drop(&n);
                }
        }
    tess_stop();
}

/* What an expert's weights are computed with is the same wherever it is, and gradients of owned ones go as they are. */
TEST(codes_give_the_same_bits_wherever_experts_are)
{
    static const char model[] =
        "{\"model_type\": \"mixtral\", \"vocab_size\": 101, \"hidden_size\": 64, \"intermediate_size\": 64, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, "
        "\"max_position_embeddings\": 64, \"num_local_experts\": 4, \"num_experts_per_tok\": 2}";
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int stage = 1; stage < 4; stage++) {
        int64_t got[2][HOWS];
        for (int codes = 0; codes < 2; codes++)
            for (int how = APART; how < HOWS; how++) {
                tess_graph_conf conf = conf_of(stage, 0);
                conf.dtype = TESS_BF16;
                conf.grid.weight_codes = codes && stage == 3;
                conf.grid.gradient_codes = codes && stage < 3;
                struct net n = make(model, &conf, (enum how)how, (tess_step_conf){.deterministic = true});
                for (int64_t i = 0; i < 3; i++) run(&n, i, true);
                got[codes][how] = digest(&n);
                drop(&n);
            }
        CHECK(got[0][ROWS] == got[0][APART] && got[0][WEIGHTS] == got[0][APART]);
        CHECK(got[1][ROWS] == got[1][WEIGHTS] && got[1][ROWS] != got[0][ROWS]);
        CHECK((got[1][APART] == got[1][ROWS]) == (stage == 3));
    }
    tess_stop();
}

/* ---- bytes ---- */

enum { L = 40, V = 64, C = 24, INNER = 20, EXPERTS = 6 };

/* A layer of experts whose router looks at tokens alone, so that a test can, too. */
struct routed {
    tess_graph *g;
    tess_tensor *ids, *targets, *routes;
    tess_step *step;
    int64_t chosen, here; /* elements of stacks */
};

static struct routed make_routed(const tess_graph_conf *conf, enum how how, int64_t chosen)
{
    struct routed n = {.g = tess_graph_new(conf), .chosen = chosen, .here = 2 * EXPERTS * C * INNER};
    if (how != APART) tess_graph_own_experts(n.g, how == ROWS ? -1 : 0);
    n.ids = tess_input(n.g, "ids", 2, L), n.targets = tess_input(n.g, "targets", 2, L);
    n.routes = tess_param(n.g, "routes", V, EXPERTS, TESS_NORMAL(1));
    tess_tensor *x = tess_embedding(n.ids, tess_param(n.g, "table", V, C, TESS_NORMAL(0.1f)), NULL);
    tess_tensor *weights = tess_route(tess_embedding(n.ids, n.routes, NULL), chosen, true, NULL);
    tess_tensor *y = tess_expert_linear(tess_dispatch(x, weights), weights,
                                        tess_param_stack(n.g, "up", EXPERTS, INNER, C, TESS_NORMAL(0.1f)));
    y = tess_expert_linear(tess_silu(y), weights, tess_param_stack(n.g, "down", EXPERTS, C, INNER, TESS_NORMAL(0.1f)));
    y = tess_cross_entropy(tess_combine(y, weights), tess_param(n.g, "head", V, C, TESS_NORMAL(0.1f)), NULL, n.targets);
    const tess_step_conf step = {.train = true, .micro = MICROS * tess_ranks(), .optimizer = tess_adamw()};
    OK(tess_step_new(y, &step, &n.step));
    OK(tess_graph_init(n.g, 1));
    return n;
}

static int64_t everywhere(int64_t x)
{
    tess_ranks_sum_counts(&x, 1);
    return x;
}

/* How many of a token's choices are of experts that another rank than this one has. */
static int64_t choices_elsewhere(const struct routed *n, const float *routes, int32_t token)
{
    const float *row = routes + token * EXPERTS;
    int64_t elsewhere = 0;
    for (int64_t e = 0; e < EXPERTS; e++) {
        int64_t before = 0;
        int d = 0;
        for (int64_t o = 0; o < EXPERTS; o++) before += row[o] > row[e] || (row[o] == row[e] && o < e);
        while (EXPERTS * (d + 1) / tess_ranks() <= e) d++;
        elsewhere += before < n->chosen && d != tess_rank();
    }
    return elsewhere;
}

/* What all ranks send in a step, and how many rows go to another rank's experts. */
static int64_t sent(const tess_graph_conf *conf, enum how how, int64_t chosen, int64_t *gone)
{
    struct routed n = make_routed(conf, how, chosen);
    int32_t ids[MICROS * 2 * L];
    uint64_t before, after, received;
    float *routes, known[V * EXPERTS];
    tess_step_result r;
    tess_holds plan;
    int64_t bits[V * EXPERTS] = {0}; /* of the router's numbers, wherever they lie */
    for (int64_t k = 0; k < tess_param_pieces(n.routes); k++) {
        const tess_piece piece = tess_param_piece(n.routes, k);
        OK(tess_param_map(n.routes, k, TESS_MASTER, TESS_R, &routes));
        for (int64_t i = 0; i < piece.rows * EXPERTS && piece.writes; i++) {
            uint32_t as;
            memcpy(&as, &routes[i], sizeof as);
            bits[piece.row * EXPERTS + i] = as;
        }
        tess_param_unmap(n.routes, k, TESS_MASTER);
    }
    tess_ranks_sum_counts(bits, V * EXPERTS);
    for (int i = 0; i < V * EXPERTS; i++) {
        const uint32_t as = (uint32_t)bits[i];
        memcpy(&known[i], &as, sizeof as);
        if (conf->dtype == TESS_BF16) known[i] = tess_from_half(TESS_BF16, tess_to_half(TESS_BF16, known[i]));
    }
    *gone = 0;
    for (int i = 0; i < MICROS * 2 * L; i++) {
        ids[i] = (i * i * 7 + tess_rank() * 13) % V;
        *gone += choices_elsewhere(&n, known, ids[i]);
    }
    OK(tess_step_feed(n.step, n.ids, ids));
    OK(tess_step_feed(n.step, n.targets, ids));
    tess_message_traffic(&before, &received);
    OK(tess_step_run(n.step, &(tess_step_input){.seed = 1, .lr = 1e-3f}, &r));
    tess_message_traffic(&after, &received);
    tess_step_holds(n.step, &plan);
    /* How many rows choose whom is for the run to say, unless each chooses all. */
    if (how != ROWS || chosen == EXPERTS) CHECK_EQ(plan.sent, after - before);
    tess_step_free(n.step);
    tess_graph_free(n.g);
    *gone = everywhere(*gone);
    return everywhere((int64_t)(after - before));
}

TEST(bytes_are_those_of_rows_or_of_weights)
{
    const int64_t others = tess_ranks() - 1, stacks = 2 * EXPERTS * C * INNER;
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int dtype = 0; dtype < 2; dtype++)
        for (int stage = 0; stage < 4; stage++)
            for (int64_t chosen = 2; chosen <= EXPERTS; chosen += EXPERTS - 2) {
                const int64_t size = dtype ? 2 : 4;
                tess_graph_conf conf = conf_of(stage, 0);
                int64_t gone;
                conf.dtype = (tess_dtype)dtype, conf.grid.persist = 2000; /* which the stacks alone have more than */
                conf.tile_elements = 2000;
                const int64_t apart = sent(&conf, APART, chosen, &gone), weights = sent(&conf, WEIGHTS, chosen, &gone);
                /* At stage 0 sums of gradients come back, and where weights are owned these do. */
                CHECK_EQ(weights, apart - (stage ? 0 : others * stacks * (4 - size)));
                /* Gradients go to owners, once or for each micro-batch; weights come back, or are gathered each time.
                 */
                const int64_t sums = stage < 2 ? 1 : MICROS, gathers = stage < 3 ? 1 : 2 * MICROS;
                const int64_t rest = weights - others * stacks * (4 * sums + size * gathers);
                const int64_t rows = sent(&conf, ROWS, chosen, &gone);
                /* Forth and back, and the gradients; and of each row tile the offsets of the owner's experts. */
                const int64_t tiles = MICROS * tess_ranks() * 2, offsets = EXPERTS + tess_ranks();
                CHECK_EQ(rows, rest + 4 * gone * C * size + 4 * tiles * offsets * others / tess_ranks());
            }
    tess_stop();
}

TEST(fewer_experts_than_ranks)
{
    const tess_graph_conf conf = conf_of(0, 0);
    for (int64_t experts = 0; experts < 2; experts++) {
        tess_graph *g = tess_graph_new(&conf);
        tess_step *s;
        tess_graph_own_experts(g, 1);
        tess_tensor *ids = tess_input(g, "ids", 2, L),
                    *x = tess_embedding(ids, tess_param(g, "t", V, C, TESS_ONE), NULL);
        if (experts) {
            tess_tensor *weights = tess_route(tess_linear(x, tess_param(g, "r", 2, C, TESS_ONE), NULL), 1, true, NULL);
            x = tess_expert_linear(tess_dispatch(x, weights), weights, tess_param_stack(g, "w", 2, C, C, TESS_ONE));
            x = tess_combine(x, weights);
        }
        const tess_step_conf step = {.train = true, .optimizer = tess_adamw()};
        tess_tensor *loss = tess_cross_entropy(x, tess_param(g, "head", V, C, TESS_ONE), NULL, ids);
        const tess_status status = tess_step_new(loss, &step, &s);
        CHECK_EQ(status, experts && tess_ranks() <= 2 ? TESS_OK : TESS_INVALID);
        if (status == TESS_OK) tess_step_free(s);
        if (status != TESS_OK) CHECK_HAS(tess_error_text(), experts ? "but there are 2" : "but the model has none");
        tess_graph_free(g);
    }
}

/* Nothing of the last rank's tasks is computed, of the first step or of the second; where its rows go, and how many,
 * are numbers that others go by. */
TEST(a_rank_whose_tasks_fail_takes_none_down)
{
    mallopt(M_PERTURB, 0); /* what lies in memory then may be a number of rows */
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int way = 0; way < 4; way++) {
        const enum how how = way % 2 ? ROWS : WEIGHTS;
        const tess_graph_conf conf = conf_of(way, 0);
        struct net n = make("qwen3-moe", &conf, how, (tess_step_conf){0});
        int32_t ids[MICROS * B * T] = {0};
        if (way / 2) run(&n, 0, false);
        OK(tess_step_feed(n.step, n.net.ids, ids));
        OK(tess_step_feed(n.step, n.net.targets, ids));
        if (tess_rank() == tess_ranks() - 1) tess_work_fail(&(tess_work){.buf = NULL}, "router: on purpose");
        CHECK_EQ(tess_step_run(n.step, &(tess_step_input){.step = way / 2, .lr = 1e-3f}, NULL), TESS_FAILED);
        CHECK_HAS(tess_error_text(), "router: on purpose");
        drop(&n);
    }
    tess_stop();
}
