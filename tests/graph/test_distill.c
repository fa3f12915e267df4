/* Learning from a teacher: gradients by finite differences, however rows are cut, the loss beside what it is made of,
 * and the likeliest tokens that a teacher has. */
#define CHECK_MAIN
#include "tests/graph/params.h"

enum { B = 4, C = 20, V = 101, MICRO = 2, LONG = 256, TOP = 5, ALL = MICRO * B * LONG };

struct pupil {
    tess_graph *g;
    tess_tensor *ids, *targets, *soft, *entropy, *loss, *likeliest;
    int64_t length;
    int32_t id[ALL], target[ALL], say[ALL * 2 * TOP];
};

static void make(struct pupil *n, const tess_graph_conf *conf, int64_t length, float cap, const tess_distill_conf *how)
{
    *n = (struct pupil){.g = tess_graph_new(conf), .length = length};
    n->ids = tess_input(n->g, "ids", B, length);
    n->targets = tess_input(n->g, "targets", B, length);
    n->soft = tess_input(n->g, "soft", B, 2 * TOP * length);
    tess_tensor *x = tess_embedding(n->ids, tess_param(n->g, "table", V, C, TESS_NORMAL(0.4f)), NULL);
    x = tess_linear(x, tess_param(n->g, "w", C, C, TESS_NORMAL(0.3f)), NULL);
    tess_tensor *head = tess_param(n->g, "head", V, C, TESS_NORMAL(0.6f));
    tess_tensor *bias = tess_param(n->g, "head.b", V, 1, TESS_NORMAL(0.1f));
    n->entropy = tess_cross_entropy_capped(x, head, bias, n->targets, cap);
    n->loss = tess_distill(x, head, bias, n->targets, n->soft, cap, how);
    n->likeliest = tess_likeliest(x, head, bias, n->targets, cap, TOP, V - 1);
    uint32_t r = 12345;
    for (int64_t i = 0; i < MICRO * B * length; i++) {
        n->id[i] = (int32_t)((r = r * 1664525u + 1013904223u) >> 8) % V;
        n->target[i] = i % length < 9 ? -100 : (int32_t)((r = r * 1664525u + 1013904223u) >> 8) % V;
        for (int k = 0; k < TOP; k++) {
            const float share = (float)(TOP - k) / 15;
            n->say[i * 2 * TOP + k] = (int32_t)(i * 7 + k * 19) % V;
            memcpy(&n->say[i * 2 * TOP + TOP + k], &share, sizeof share);
        }
    }
}

static double run(struct pupil *n, tess_step *s)
{
    tess_step_result r = {0};
    OK(tess_step_feed(s, n->ids, n->id));
    OK(tess_step_feed(s, n->targets, n->target));
    OK(tess_step_feed(s, n->soft, n->say));
    OK(tess_step_run(s, &(tess_step_input){.seed = 7, .keep_weights = true}, &r));
    return r.loss;
}

static const tess_distill_conf ways[] = {{TOP, 1, 0.5f}, {TOP, 2.5f, 0.3f}, {TOP, 0.7f, 1}};
enum { WAYS = sizeof ways / sizeof *ways };
static const struct cut {
    int64_t length, tile_rows, loss_rows, tile_elements;
    float cap;
} cuts[] = {{37, 37, 17, 0, 0}, {37, 4 * 37, 50, 40 * C, 1.5f}, {LONG, 128, 100, 0, 0}};
enum { CUTS = sizeof cuts / sizeof *cuts };

static void make_cut(struct pupil *n, int c, int way)
{
    const tess_graph_conf conf = {
        .tile_rows = cuts[c].tile_rows, .loss_rows = cuts[c].loss_rows, .tile_elements = cuts[c].tile_elements};
    make(n, &conf, cuts[c].length, cuts[c].cap, &ways[way]);
}

TEST(gradients_match_finite_differences)
{
    const tess_step_conf training = {.train = true, .micro = MICRO, .keep_gradients = true};
    static struct pupil n;
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int c = 0; c < CUTS; c++)
        for (int way = 0; way < WAYS; way++) {
            tess_step *s;
            make_cut(&n, c, way);
            OK(tess_step_new(n.loss, &training, &s));
            OK(tess_graph_init(n.g, 3));
            for (int k = 0; k < tess_graph_params(n.g); k++) {
                tess_tensor *p = tess_graph_param(n.g, k);
                const int64_t elements = elements_of(p);
                float *g = tess_alloc((size_t)elements * sizeof *g), most = 0;
                int64_t at = 0;
                run(&n, s);
                OK(tess_step_gradient(s, p, g));
                for (int64_t i = 0; i < elements; i++)
                    if (fabsf(g[i]) > most) most = fabsf(g[i]), at = i;
                CHECK(most > 1e-4f);
                CHECK_SLOPE("distill", p, at, (double)g[at], 1e-2f, 4e-4, run(&n, s));
                free(g);
            }
            tess_step_free(s);
            tess_graph_free(n.g);
        }
    tess_stop();
}

/* The divergence from a model's own distribution is none, and where it is alone what is left is the labels' share. */
TEST(a_teacher_of_the_same_mind_says_nothing)
{
    static struct pupil n;
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int c = 0; c < CUTS; c++) {
        enum { WIDE = 2 + 2 * TOP };
        tess_step *entropy, *loss, *likeliest;
        make_cut(&n, c, 1);
        OK(tess_step_new(n.entropy, &(tess_step_conf){.micro = MICRO}, &entropy));
        OK(tess_step_new(n.loss, &(tess_step_conf){.micro = MICRO}, &loss));
        OK(tess_step_new(n.likeliest, &(tess_step_conf){.micro = MICRO}, &likeliest));
        OK(tess_graph_init(n.g, 3));
        run(&n, likeliest);
        const int64_t rows = MICRO * B * n.length;
        CHECK_EQ(tess_step_outputs(likeliest), rows * WIDE);
        float *of = tess_alloc((size_t)(rows * WIDE) * sizeof *of);
        OK(tess_step_output(likeliest, of));
        double missing = 0, targets = 0; /* what the model gives to other tokens, at the temperature of 1 */
        for (int64_t i = 0; i < rows; i++) {
            const float *row = of + i * WIDE;
            double kept = 0;
            CHECK_EQ(row[0], row[2]);
            for (int k = 0; k < TOP; k++) {
                CHECK(row[2 + TOP + k] >= 0 && row[2 + TOP + k] < V - 1);
                CHECK(k == 0 || row[2 + k] <= row[1 + k]);
                kept += exp((double)row[2 + k] - (double)row[0]);
            }
            CHECK(kept < (double)row[1]);
            if (n.target[i] < 0) continue;
            missing += log((double)row[1] / kept), targets += 1;
            for (int k = 0; k < TOP; k++) {
                const float share = (float)(exp((double)row[2 + k] - (double)row[0]) / kept);
                n.say[i * 2 * TOP + k] = (int32_t)row[2 + TOP + k];
                memcpy(&n.say[i * 2 * TOP + TOP + k], &share, sizeof share);
            }
        }
        CHECK(missing / targets > 0.1);
        /* without the last token, which `likeliest` did not see, it is at least that */
        const tess_distill_conf cold = {TOP, 1, 1};
        struct pupil *same = tess_alloc(sizeof *same);
        make(same, &(tess_graph_conf){.tile_rows = cuts[c].tile_rows}, n.length, cuts[c].cap, &cold);
        tess_step *alone;
        OK(tess_step_new(same->loss, &(tess_step_conf){.micro = MICRO}, &alone));
        OK(tess_graph_init(same->g, 3));
        memcpy(same->say, n.say, sizeof n.say);
        const double off = run(same, alone) - missing / targets;
        CHECK(off >= -1e-6 && off < 0.2);
        tess_step_free(alone);
        tess_graph_free(same->g);
        free(same);
        CHECK(run(&n, loss) > 0.7 * run(&n, entropy));
        free(of);
        tess_step_free(entropy), tess_step_free(loss), tess_step_free(likeliest);
        tess_graph_free(n.g);
    }
    tess_stop();
}

TEST(mistakes_are_named)
{
    static struct pupil n;
    tess_step *s;
    make(&n, NULL, 37, 0, &(tess_distill_conf){TOP + 1, 1, 0.5f});
    CHECK_EQ(tess_step_new(n.loss, NULL, &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "soft targets must be an input (B,444)");
    tess_graph_free(n.g);
    make(&n, NULL, 37, 0, &(tess_distill_conf){V + 1, 1, 0.5f});
    CHECK_EQ(tess_step_new(n.loss, NULL, &s), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "102 tokens of a row are wanted (expected 1 to 1024, of 101)");
    tess_graph_free(n.g);
}
