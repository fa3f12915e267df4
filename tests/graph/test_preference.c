/* Losses of pairs: their gradients by finite differences, however rows are cut, and scores against what cross entropy
 * says of the same sequences. */
#define CHECK_MAIN
#include "tests/graph/params.h"

enum { B = 4, C = 20, V = 101, MICRO = 2, LONG = 256 };

struct pairs {
    tess_graph *g;
    tess_tensor *ids, *targets, *reference, *scores, *loss, *entropy;
    int64_t length;
    int32_t id[MICRO * B * LONG], target[MICRO * B * LONG], bits[MICRO * B * TESS_KTO_REFERENCE];
};

/* embedding -> linear, norm -> a head of its own; a linear mixes nothing along a sequence, which the loss does. */
static void make(struct pairs *n, const tess_graph_conf *conf, int64_t length, float cap,
                 const tess_preference_conf *preference)
{
    *n = (struct pairs){.g = tess_graph_new(conf), .length = length};
    n->ids = tess_input(n->g, "ids", B, length);
    n->targets = tess_input(n->g, "targets", B, length);
    const int width = preference->kind == TESS_PREFERENCE_KTO ? TESS_KTO_REFERENCE : 1;
    if (width > 1 || preference->kind == TESS_PREFERENCE_DPO) n->reference = tess_input(n->g, "reference", B, width);
    tess_tensor *x = tess_embedding(n->ids, tess_param(n->g, "table", V, C, TESS_NORMAL(0.4f)), NULL);
    x = tess_linear(x, tess_param(n->g, "w", C, C, TESS_NORMAL(0.3f)), NULL);
    x = tess_rmsnorm(x, tess_param(n->g, "n", C, 1, TESS_ONE), 1e-5f);
    tess_tensor *head = tess_param(n->g, "head", V, C, TESS_NORMAL(0.3f));
    tess_tensor *bias = tess_param(n->g, "head.b", V, 1, TESS_NORMAL(0.1f));
    n->entropy = tess_cross_entropy_capped(x, head, bias, n->targets, cap);
    n->scores = tess_scores(x, head, bias, n->targets, cap);
    n->loss = tess_preference(n->scores, n->reference, preference);
    uint32_t r = 12345;
    for (int64_t i = 0; i < MICRO * B * length; i++) {
        const bool prompt = i % length<9, padding = i % length> length - 4 - i / length;
        n->id[i] = (int32_t)((r = r * 1664525u + 1013904223u) >> 8) % V;
        n->target[i] = prompt || padding ? -100 : (int32_t)((r = r * 1664525u + 1013904223u) >> 8) % V;
    }
    for (int i = 0; i < MICRO * B; i++) {
        const float said[] = {-4.5f * (float)length - (float)(i % 3), 0.7f, (float)(i % 3 != 1)};
        memcpy(&n->bits[width * i], said, (size_t)width * sizeof *said);
    }
}

static double run(struct pairs *n, tess_step *s, bool refers)
{
    tess_step_result r = {0};
    OK(tess_step_feed(s, n->ids, n->id));
    OK(tess_step_feed(s, n->targets, n->target));
    if (refers) OK(tess_step_feed(s, n->reference, n->bits));
    OK(tess_step_run(s, &(tess_step_input){.seed = 7, .keep_weights = true}, &r));
    return r.loss;
}

static const tess_preference_conf kinds[] = {
    {.kind = TESS_PREFERENCE_DPO, .beta = 0.02f},
    {.kind = TESS_PREFERENCE_DPO, .beta = 0.02f, .smoothing = 0.2f, .nll = 0.3f},
    {.kind = TESS_PREFERENCE_SIMPO, .beta = 2, .gamma = 0.5f},
    {.kind = TESS_PREFERENCE_ORPO, .beta = 0.7f, .nll = 1},
    {.kind = TESS_PREFERENCE_KTO, .beta = 0.02f, .desirable = 1, .undesirable = 1.7f},
};
enum { KINDS = sizeof kinds / sizeof *kinds };
static const char *const names[KINDS] = {"dpo", "dpo, smoothed", "simpo", "orpo", "kto"};

static const struct cut {
    int64_t length, tile_rows, loss_rows, tile_elements;
    float cap;
} cuts[] = {{37, 37, 17, 0, 0}, {37, 4 * 37, 50, 40 * C, 1.5f}, {LONG, 128, 100, 0, 0}};
enum { CUTS = sizeof cuts / sizeof *cuts };

static void conf_of(const struct cut *cut, tess_graph_conf *conf)
{
    *conf = (tess_graph_conf){
        .tile_rows = cut->tile_rows, .loss_rows = cut->loss_rows, .tile_elements = cut->tile_elements};
}

static void check_gradients(const char *name, const struct cut *cut, const tess_preference_conf *preference)
{
    const tess_step_conf training = {.train = true, .micro = MICRO, .keep_gradients = true};
    struct pairs n;
    tess_graph_conf conf;
    tess_step *s;
    conf_of(cut, &conf);
    make(&n, &conf, cut->length, cut->cap, preference);
    OK(tess_step_new(n.loss, &training, &s));
    OK(tess_graph_init(n.g, 3));
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        tess_tensor *p = tess_graph_param(n.g, k);
        const int64_t elements = elements_of(p);
        float *g = tess_alloc((size_t)elements * sizeof *g), most = 0;
        run(&n, s, n.reference);
        OK(tess_step_gradient(s, p, g));
        int64_t at[2] = {elements / 3, 0};
        for (int64_t i = 0; i < elements; i++)
            if (fabsf(g[i]) > most) most = fabsf(g[i]), at[1] = i;
        CHECK(most > 1e-4f);
        for (int m = 0; m < 2; m++) CHECK_SLOPE(name, p, at[m], (double)g[at[m]], 1e-3f, 4e-4, run(&n, s, n.reference));
        free(g);
    }
    tess_step_free(s);
    tess_graph_free(n.g);
}

TEST(gradients_match_finite_differences)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int k = 0; k < KINDS; k++)
        for (int c = 0; c < CUTS; c++) check_gradients(names[k], &cuts[c], &kinds[k]);
    tess_stop();
}

/* Their mean over all targets is the cross entropy. */
TEST(scores_are_sums_of_log_probabilities)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int c = 0; c < CUTS; c++) {
        struct pairs n;
        tess_graph_conf conf;
        tess_step *scores, *entropy;
        conf_of(&cuts[c], &conf);
        make(&n, &conf, cuts[c].length, cuts[c].cap, &kinds[2]);
        OK(tess_step_new(n.scores, &(tess_step_conf){.micro = MICRO}, &scores));
        OK(tess_step_new(n.entropy, &(tess_step_conf){.micro = MICRO}, &entropy));
        OK(tess_graph_init(n.g, 3));
        run(&n, scores, false);
        const int64_t values = tess_step_outputs(scores);
        float *of = tess_alloc((size_t)values * sizeof *of);
        OK(tess_step_output(scores, of));
        double sum = 0, count = 0, targets = 0;
        for (int64_t i = 0; i < values; i += 2) sum -= (double)of[i], count += (double)of[i + 1];
        for (int64_t i = 0; i < MICRO * B * n.length; i++) targets += n.target[i] >= 0;
        CHECK_EQ(values, 2 * MICRO * B * (n.length > cuts[c].tile_rows ? n.length / cuts[c].tile_rows : 1));
        CHECK_EQ(count, targets);
        CHECK_NEAR(sum / count, run(&n, entropy, false), 1e-5);
        free(of);
        tess_step_free(scores);
        tess_step_free(entropy);
        tess_graph_free(n.g);
    }
    tess_stop();
}

TEST(mistakes_are_named)
{
    tess_step *s;
    struct pairs n;
    make(&n, &(tess_graph_conf){0}, 37, 0, &(tess_preference_conf){.kind = TESS_PREFERENCE_NONE});
    CHECK_EQ(tess_step_new(n.loss, NULL, &s), TESS_INVALID);
    tess_graph_free(n.g);
    make(&n, &(tess_graph_conf){0}, 37, 0, &kinds[4]);
    CHECK_EQ(tess_step_new(tess_preference(n.scores, NULL, &kinds[4]), NULL, &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "DPO and KTO have a reference");
    tess_graph_free(n.g);
    make(&n, &(tess_graph_conf){0}, 37, 0, &kinds[0]);
    CHECK_EQ(tess_step_new(tess_preference(n.scores, n.reference, &kinds[4]), NULL, &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "the reference must be an input (B,3)");
    tess_graph_free(n.g);
    tess_graph *g = tess_graph_new(NULL);
    tess_tensor *ids = tess_input(g, "ids", 3, 8), *targets = tess_input(g, "targets", 3, 8),
                *table = tess_param(g, "table", V, C, TESS_ONE);
    tess_tensor *scores = tess_scores(tess_embedding(ids, table, NULL), table, NULL, targets, 0);
    CHECK_EQ(tess_step_new(tess_preference(scores, NULL, &kinds[2]), NULL, &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "the sequences are pairs, and their number is odd");
    tess_graph_free(g);
}
