/* The scale of the loss in fp16: step by step that of DeepSpeed, with steps that overflow, which change nothing and
 * whose numbers no schedule and no moment counts; and in fp16 itself. */
#define CHECK_MAIN
#include "graph/graph.h"
#include "models/train/checkpoint/loss_scale.h"
#include "tests/check.h"

enum { V = 11, C = 6, B = 2, T = 8, STEPS = 50 };

static const struct scale_case {
    int power, window, hysteresis;
    bool consecutive;
    double least;
    bool overflows[STEPS];
    double scale[STEPS], loss[STEPS];
} cases[] = {
#include "tests/models/fixtures/loss_scales.inc"
};

#define OK(expr)                                                                                                       \
    do {                                                                                                               \
        if ((expr) != TESS_OK) CHECK_SAY("%s: %s", #expr, tess_error_text());                                          \
    } while (0)

struct net {
    tess_graph *g;
    tess_tensor *ids, *targets, *loss, *param[4];
    tess_step *s;
};

static int64_t elements(const tess_tensor *p)
{
    int64_t shape[3];
    return tess_tensor_shape(p, shape) == 2 ? shape[0] * shape[1] : shape[0];
}

/* The fixture's model, drawn as there. */
static struct net make(tess_dtype dtype, bool late)
{
    struct net n = {.g = tess_graph_new(&(tess_graph_conf){.dtype = dtype})};
    n.ids = tess_input(n.g, "ids", B, T);
    n.targets = tess_input(n.g, "targets", B, T);
    n.param[0] = tess_param(n.g, "table", V, C, TESS_ZERO);
    n.param[1] = tess_param(n.g, "w", C, C, TESS_ZERO);
    n.param[2] = tess_param(n.g, "b", C, 1, TESS_ZERO);
    n.param[3] = tess_param(n.g, "head", V, C, TESS_ZERO);
    tess_tensor *x = tess_linear(tess_embedding(n.ids, n.param[0], NULL), n.param[1], n.param[2]);
    n.loss = tess_cross_entropy(x, n.param[3], NULL, n.targets);
    tess_step_conf conf = {.train = true, .skips = true, .layout.late = late, .optimizer = tess_adamw()};
    conf.optimizer.beta2 = 0.95, conf.optimizer.weight_decay = 0.1;
    OK(tess_step_new(n.loss, &conf, &n.s));
    OK(tess_graph_init(n.g, 1));
    for (uint32_t k = 0; k < 4; k++) {
        float *p;
        uint32_t r = k + 1;
        OK(tess_param_map(n.param[k], 0, TESS_MASTER, TESS_W, &p));
        for (int64_t i = 0; i < elements(n.param[k]); i++) {
            r = r * 1664525u + 1013904223u;
            p[i] = (float)((double)((int)((r >> 8) % 2001) - 1000) / 1000);
        }
        tess_param_unmap(n.param[k], 0, TESS_MASTER);
    }
    OK(tess_graph_round(n.g));
    return n;
}

static void drop(struct net *n)
{
    tess_step_free(n->s);
    tess_graph_free(n->g);
}

/* `data` is the step whose tokens they are. */
static tess_step_result run(const struct net *n, int64_t data, const tess_step_input *in)
{
    int32_t id[B * T], target[B * T];
    tess_step_result r = {0};
    for (int i = 0; i < B * T; i++) {
        id[i] = (int32_t)((5 * i + 3 * data) % V);
        target[i] = (int32_t)((7 * i + data + i * i) % V);
    }
    OK(tess_step_feed(n->s, n->ids, id));
    OK(tess_step_feed(n->s, n->targets, target));
    OK(tess_step_run(n->s, in, &r));
    return r;
}

/* What is scaled by so much has no place in fp32. */
static const double TOO_MUCH = 1e39;

static void compare(const struct scale_case *c, tess_dtype dtype, bool late, double room)
{
    tess_config conf = {0};
    conf.fp16.initial_scale_power = c->power;
    conf.fp16.loss_scale_window = c->window;
    conf.fp16.hysteresis = c->hysteresis;
    conf.fp16.consecutive_hysteresis = c->consecutive;
    conf.fp16.min_loss_scale = c->least;
    tess_loss_scale scale = tess_loss_scale_begin(&conf);
    struct net n = make(dtype, late);
    for (int64_t k = 0; k < STEPS; k++) {
        const bool bad = c->overflows[k];
        const tess_step_input in = {
            .step = k, .seed = 1, .lr = 1e-2, .loss_scale = bad ? TOO_MUCH : scale.value, .skipped = scale.skipped};
        const tess_step_result r = run(&n, k, &in);
        if (r.skipped != bad || scale.value != c->scale[k] || !(fabs(r.loss - c->loss[k]) < room))
            CHECK_SAY("case %td, step %d: skipped %d, scale %g, loss %.8g, expected %d, %g, %.8g", c - cases, (int)k,
                      r.skipped, scale.value, r.loss, bad, c->scale[k], c->loss[k]);
        OK(tess_loss_scale_next(&conf, &scale, r.skipped, k));
    }
    drop(&n);
}

TEST(deepspeed)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) compare(&cases[k], TESS_F32, k % 2, 1e-5);
    compare(&cases[0], TESS_F16, false, 2e-2); /* whose scales its gradients have room for */
    compare(&cases[0], TESS_F16, true, 2e-2);
    tess_stop();
}

/* A step that was skipped leaves no trace: the bits of the run without it, at any scale that is a power of 2. */
TEST(a_skipped_step_leaves_no_trace)
{
    enum { SOME = 8 };
    static const double scale[] = {0, 1024, 0x1p-4};
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int way = 0; way < 6; way++) {
        struct net one = make(TESS_F32, way % 2), other = make(TESS_F32, way % 2);
        for (int64_t k = 0, at = 0; k < SOME; k++, at++) {
            const double a = run(&one, k, &(tess_step_input){.step = k, .seed = 1, .lr = 1e-2}).loss;
            if (k == 0 || k == 3) {
                tess_step_input in = {.step = at, .seed = 1, .lr = 1e-2, .skipped = at - k};
                if (k) /* that is too large, by the norm without the scale */
                    in.most_norm = 1e-3, in.loss_scale = scale[way / 2];
                else
                    in.loss_scale = TOO_MUCH;
                tess_step_result r = run(&other, 77, &in);
                CHECK(r.skipped && (k ? r.grad_norm > 1e-3 && r.grad_norm < 100 : !isfinite(r.grad_norm)));
                at++;
            }
            const double b = run(&other, k,
                                 &(tess_step_input){.step = at,
                                                    .seed = 1,
                                                    .lr = 1e-2,
                                                    .loss_scale = scale[way / 2],
                                                    .skipped = at - k,
                                                    .most_norm = 1e3})
                                 .loss;
            CHECK(a == b);
        }
        for (int k = 0; k < 4; k++) {
            float *x, *y;
            OK(tess_param_map(one.param[k], 0, TESS_MASTER, TESS_R, &x));
            OK(tess_param_map(other.param[k], 0, TESS_MASTER, TESS_R, &y));
            CHECK(!memcmp(x, y, (size_t)elements(one.param[k]) * sizeof *x));
            tess_param_unmap(one.param[k], 0, TESS_MASTER);
            tess_param_unmap(other.param[k], 0, TESS_MASTER);
        }
        drop(&one);
        drop(&other);
    }
    tess_stop();
}

/* Experts, whose routers have a loss of their own. */
static struct net make_routed(tess_dtype dtype)
{
    enum { EXPERTS = 4 };
    struct net n = {.g = tess_graph_new(&(tess_graph_conf){.dtype = dtype})};
    n.ids = tess_input(n.g, "ids", B, T);
    n.targets = tess_input(n.g, "targets", B, T);
    n.param[0] = tess_param(n.g, "table", V, C, TESS_NORMAL(1));
    n.param[1] = tess_param(n.g, "router", EXPERTS, C, TESS_NORMAL(1));
    n.param[2] = tess_param(n.g, "head", V, C, TESS_NORMAL(1));
    n.param[3] = tess_param_stack(n.g, "experts", EXPERTS, C, C, TESS_NORMAL(1));
    tess_tensor *x = tess_embedding(n.ids, n.param[0], NULL), *logits = tess_linear(x, n.param[1], NULL);
    tess_tensor *weights = tess_route(logits, 2, true, NULL);
    tess_tensor *y = tess_combine(tess_expert_linear(tess_dispatch(x, weights), weights, n.param[3]), weights);
    n.loss = tess_cross_entropy(tess_add(x, y), n.param[2], NULL, n.targets);
    n.loss = tess_balanced(n.loss, tess_balance(logits, weights, NULL), n.targets, 1);
    OK(tess_step_new(n.loss, &(tess_step_conf){.train = true, .skips = true, .optimizer = tess_adamw()}, &n.s));
    OK(tess_graph_init(n.g, 7));
    return n;
}

/* The loss of routers is scaled as the other is, and its value is the loss's without the scale. */
TEST(experts_are_balanced_at_any_scale)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    struct net one = make_routed(TESS_F32), other = make_routed(TESS_F32), half = make_routed(TESS_F16);
    for (int64_t k = 0; k < 6; k++) {
        const tess_step_result a = run(&one, k, &(tess_step_input){.step = k, .seed = 1, .lr = 1e-2}),
                               b = run(&other, k,
                                       &(tess_step_input){.step = k, .seed = 1, .lr = 1e-2, .loss_scale = 1024}),
                               h = run(&half, k,
                                       &(tess_step_input){.step = k, .seed = 1, .lr = 1e-2, .loss_scale = 64});
        if (a.loss != b.loss || !(fabs(a.grad_norm - b.grad_norm) < 1e-12 * a.grad_norm))
            CHECK_SAY("step %d: loss %.17g and norm %.17g, scaled %.17g and %.17g", (int)k, a.loss, a.grad_norm, b.loss,
                      b.grad_norm);
        if (!(fabs(h.loss - a.loss) < 0.05)) CHECK_SAY("step %d: %.6f in fp16, %.6f in fp32", (int)k, h.loss, a.loss);
    }
    drop(&one), drop(&other), drop(&half);
    tess_stop();
}

TEST(what_cannot_be)
{
    tess_config conf = {0};
    conf.fp16.initial_scale_power = 1;
    conf.fp16.hysteresis = 1;
    conf.fp16.loss_scale_window = 5;
    conf.fp16.min_loss_scale = 1;
    tess_loss_scale scale = tess_loss_scale_begin(&conf);
    OK(tess_loss_scale_next(&conf, &scale, true, 0));
    CHECK(scale.value == 1 && scale.skipped == 1);
    CHECK_EQ(tess_loss_scale_next(&conf, &scale, true, 1), TESS_FAILED);
    CHECK_HAS(tess_error_text(), "the gradient is not finite at the least loss scale, 1");
    conf.fp16.loss_scale = 128; /* one that stays */
    scale = tess_loss_scale_begin(&conf);
    for (int k = 0; k < 20; k++) OK(tess_loss_scale_next(&conf, &scale, k % 2, k));
    CHECK(scale.value == 128 && scale.skipped == 10);
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    struct net n = make(TESS_F32, false);
    CHECK_EQ(tess_step_run(n.s, &(tess_step_input){.lr = 1, .loss_scale = -1}, NULL), TESS_INVALID);
    drop(&n);
    tess_stop();
}
