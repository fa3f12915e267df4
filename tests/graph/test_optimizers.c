/* Each optimizer, 50 steps beside torch's, DeepSpeed's or transformers', of the same name: losses and what the
 * parameters come to be; what is held for it; and what a program may get wrong. */
#define CHECK_MAIN
#include "graph/nd.h"
#include "tests/graph/params.h"

enum { V = 11, C = 6, B = 2, T = 8, STEPS = 50, ELEMENTS = V * C + C * C + C + V * C };

static const struct torch_case {
    tess_optimizer optimizer;
    double lr;
    bool groups;
    double loss[STEPS], after[ELEMENTS];
} torch[] = {
#include "tests/graph/fixtures/optimizers.inc"
};
enum { CASES = sizeof torch / sizeof *torch };

struct net {
    tess_graph *g;
    tess_tensor *ids, *targets, *loss, *param[4];
};

static struct net make_of(int64_t c)
{
    struct net n = {.g = tess_graph_new(NULL)};
    n.ids = tess_input(n.g, "ids", B, T);
    n.targets = tess_input(n.g, "targets", B, T);
    n.param[0] = tess_param(n.g, "table", V, c, TESS_ZERO);
    n.param[1] = tess_param(n.g, "w", c, c, TESS_ZERO);
    n.param[2] = tess_param(n.g, "b", c, 1, TESS_ZERO);
    n.param[3] = tess_param(n.g, "head", V, c, TESS_ZERO);
    tess_tensor *x = tess_linear(tess_embedding(n.ids, n.param[0], NULL), n.param[1], n.param[2]);
    n.loss = tess_cross_entropy(x, n.param[3], NULL, n.targets);
    return n;
}

static struct net make(void)
{
    return make_of(C);
}

/* As the fixture's script draws them. */
static void draw(const struct net *n)
{
    OK(tess_graph_init(n->g, 1));
    for (uint32_t k = 0; k < 4; k++) {
        float *x;
        uint32_t r = k + 1;
        OK(tess_param_map(n->param[k], 0, TESS_MASTER, TESS_W, &x));
        for (int64_t i = 0; i < elements_of(n->param[k]); i++) {
            r = r * 1664525u + 1013904223u;
            x[i] = (float)((double)((int)((r >> 8) % 2001) - 1000) / 1000);
        }
        tess_param_unmap(n->param[k], 0, TESS_MASTER);
    }
    OK(tess_graph_round(n->g));
}

static double run(const struct net *n, tess_step *s, int64_t step, double lr)
{
    int32_t id[B * T], target[B * T];
    tess_step_result r;
    for (int i = 0; i < B * T; i++) {
        id[i] = (int32_t)((5 * i + 3 * step) % V);
        target[i] = (int32_t)((7 * i + step + i * i) % V);
    }
    OK(tess_step_feed(s, n->ids, id));
    OK(tess_step_feed(s, n->targets, target));
    OK(tess_step_run(s, &(tess_step_input){.step = step, .seed = 1, .lr = lr}, &r));
    return r.loss;
}

/* Late updates in every other case. */
static void compare(const struct torch_case *c, bool late)
{
    struct net n = make();
    tess_step *s;
    if (c->groups) {
        OK(tess_param_set_rates(n.param[2], 0.25, 0));
        OK(tess_param_set_rates(n.param[3], 1, 0.5));
    }
    OK(tess_step_new(n.loss, &(tess_step_conf){.train = true, .layout.late = late, .optimizer = c->optimizer}, &s));
    draw(&n);
    double off = 0;
    for (int64_t k = 0; k < STEPS; k++) off = fmax(off, fabs(run(&n, s, k, c->lr) - c->loss[k]));
    if (!(off < 1e-5)) CHECK_SAY("case %td: losses differ by %g", c - torch, off);
    off = 0;
    for (int64_t k = 0, at = 0; k < 4; k++) {
        float *x;
        OK(tess_param_map(n.param[k], 0, TESS_MASTER, TESS_R, &x));
        for (int64_t i = 0; i < elements_of(n.param[k]); i++, at++) off = fmax(off, fabs(x[i] - c->after[at]));
        tess_param_unmap(n.param[k], 0, TESS_MASTER);
    }
    if (!(off < 1e-5)) CHECK_SAY("case %td: parameters differ by %g", c - torch, off);
    tess_step_free(s);
    tess_graph_free(n.g);
}

TEST(torch)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int k = 0; k < CASES; k++) compare(&torch[k], k % 2);
    tess_stop();
}

/* Of all the optimizer's moments are as many as it has, and no tile is made for another. */
TEST(held_is_what_it_has)
{
    const struct {
        tess_optimizer optimizer;
        int moments;
        const char *name;
    } of[] = {{tess_adamw(), 2, "exp_avg"},
              {tess_sgd(0), 0, NULL},
              {tess_sgd(0.9), 1, "momentum_buffer"},
              {tess_lion(), 1, "exp_avg"},
              {tess_adagrad(), 1, "sum"}};
    for (int k = 0; k < 5; k++) {
        struct net n = make();
        tess_step *s;
        tess_holds plan;
        OK(tess_step_new(n.loss, &(tess_step_conf){.train = true, .optimizer = of[k].optimizer}, &s));
        tess_step_holds(s, &plan);
        CHECK_EQ(plan.resident[TESS_ROLE_MOMENT], 4 * of[k].moments * ELEMENTS);
        CHECK_EQ(tess_param_parts(n.param[0]), 1 + of[k].moments);
        if (of[k].name) CHECK_STR(tess_param_part_name(n.param[0], TESS_MOMENT1), of[k].name);
        tess_step_free(s);
        tess_graph_free(n.g);
    }
}

/* Tables of embeddings and what a loss has are AdamW's, as is what the program says. */
TEST(muon_has_hidden_matrices)
{
    for (int said = 0; said < 3; said++) {
        struct net n = make();
        tess_step *s;
        tess_holds plan;
        int moments;
        if (said) OK(tess_param_set_hidden(n.param[1], said == 1, false));
        if (said == 2) OK(tess_param_set_hidden(n.param[3], true, false));
        WRONG(tess_param_set_hidden(n.param[2], true, false), "b: is no matrix");
        OK(tess_step_new(n.loss, &(tess_step_conf){.train = true, .optimizer = tess_muon()}, &s));
        for (int k = 0; k < 4; k++) {
            const bool hidden = k == (said == 2 ? 3 : 1);
            CHECK(tess_param_hidden(n.param[k]) == hidden);
            CHECK_EQ(tess_param_parts(n.param[k]), hidden ? 2 : 3);
            CHECK_STR(tess_param_part_name(n.param[k], TESS_MOMENT1), hidden ? "momentum_buffer" : "exp_avg");
        }
        tess_step_holds(s, &plan);
        CHECK_EQ(plan.resident[TESS_ROLE_MOMENT], 4 * (2 * ELEMENTS - (said == 2 ? V * C : C * C)));
        CHECK_STR(tess_graph_optimizer(n.g, &moments), "Muon");
        CHECK_EQ(moments, 1);
        tess_step_free(s);
        tess_graph_free(n.g);
    }
}

/* A row has its own mean and a share of the columns': V rows of C columns one, C rows two; a vector's are its squares'.
 */
TEST(adafactor_has_means_of_rows_and_columns)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    struct net n = make_of(40);
    tess_step *s;
    tess_holds plan;
    tess_lent lent;
    const int64_t width[] = {1 + 4, 1 + 1, 1, 1 + 4}; /* 40 columns over 11 rows, over 40 */
    const tess_step_conf conf = {.train = true, .optimizer = tess_adafactor()};
    OK(tess_step_new(n.loss, &conf, &s));
    tess_step_holds(s, &plan);
    CHECK_EQ(plan.resident[TESS_ROLE_MOMENT], 4 * (2 * V * 5 + 40 * 2 + 40));
    CHECK_NEAR(tess_graph_moments(n.g), 2 * V * 5 + 40 * 2 + 40, 0);
    draw(&n);
    run(&n, s, 0, 1e-2);
    for (int k = 0; k < 4; k++) {
        CHECK_EQ(tess_param_part_width(n.param[k], TESS_MOMENT1), width[k]);
        OK(tess_param_lend(n.param[k], 0, TESS_MOMENT1, &lent));
        CHECK_EQ(lent.columns, width[k]);
        tess_param_unmap(n.param[k], 0, TESS_MOMENT1);
    }
    float *x; /* the rows' mean is the columns' */
    double rows = 0, columns = 0;
    OK(tess_param_map(n.param[0], 0, TESS_MOMENT1, TESS_R, &x));
    for (int i = 0; i < V; i++) rows += (double)x[i * 5] / V;
    for (int j = 0; j < 40; j++) columns += (double)x[j / 4 * 5 + 1 + j % 4] / 40;
    tess_param_unmap(n.param[0], 0, TESS_MOMENT1);
    CHECK(rows > 1e-12);
    CHECK_NEAR(columns, rows, 1e-6 * rows);
    tess_step_free(s);
    tess_graph_free(n.g);
    tess_stop();
}

/* Of a tensor of three dimensions transformers has means of its last two; here it is refused. */
TEST(adafactor_has_no_tensors_of_three_dimensions)
{
    tess_graph *g = tess_graph_new(NULL);
    tess_step *s;
    tess_tensor *x = tess_nd_input(g, "x", TESS_REAL, (tess_dims){2, {4, 3}});
    tess_tensor *w = tess_nd_param(g, "w", (tess_dims){3, {3, 2, 5}}, TESS_NORMAL(0.02f), false);
    tess_tensor *y = tess_nd_dot(x, w, &(tess_dot_dims){.contracts = 1, .contract = {{1}, {0}}});
    tess_tensor *loss = tess_nd_loss(tess_nd_reduce(y, TESS_REDUCE_SUM, 0x7), NULL);
    WRONG(tess_step_new(loss, &(tess_step_conf){.train = true, .optimizer = tess_adafactor()}, &s),
          "w has 3 dimensions (AdamW has any)");
    OK(tess_step_new(loss, &(tess_step_conf){.train = true, .optimizer = tess_adamw()}, &s));
    tess_step_free(s);
    tess_graph_free(g);
}

/* What Adagrad begins with is there for who looks before the first step; and the step's own looks afterwards. */
TEST(moments_begin_as_the_optimizer_says)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    struct net n = make();
    tess_step *s;
    float *x;
    tess_step_conf conf = {.train = true, .optimizer = tess_adagrad()};
    conf.optimizer.initial = 0.5;
    OK(tess_graph_init(n.g, 1));
    OK(tess_param_map(n.param[0], 0, TESS_MOMENT2, TESS_R, &x)); /* AdamW's, as long as nobody said */
    CHECK(x[0] == 0);
    tess_param_unmap(n.param[0], 0, TESS_MOMENT2);
    OK(tess_step_new(n.loss, &conf, &s));
    WRONG(tess_param_map(n.param[0], 0, TESS_MOMENT2, TESS_R, &x), "part 2");
    OK(tess_param_map(n.param[0], 0, TESS_MOMENT1, TESS_R, &x));
    CHECK(x[0] == 0.5f);
    tess_param_unmap(n.param[0], 0, TESS_MOMENT1);
    run(&n, s, 0, 0.1);
    OK(tess_param_map(n.param[0], 0, TESS_MOMENT1, TESS_R, &x));
    CHECK(x[0] >= 0.5f && x[0] < 10);
    tess_param_unmap(n.param[0], 0, TESS_MOMENT1);
    tess_step_free(s);
    tess_graph_free(n.g);
    tess_stop();
}

/* ---- states in fewer bits ---- */

enum { WIDE = 40, MATRICES = 2 * V * WIDE + WIDE * WIDE };

/* What came of a run: losses, and what a program sees of the first matrix' master and moments. */
struct fewer {
    double loss[STEPS];
    float part[TESS_PARTS][WIDE * WIDE];
};
static void train_fewer(tess_optimizer o, tess_keeping as, bool late, struct fewer *f)
{
    struct net n = make_of(WIDE);
    tess_step *s;
    tess_holds plan;
    o.keeping = as;
    o.clip = 1;
    o.weight_decay = 0.01;
    OK(tess_step_new(n.loss, &(tess_step_conf){.train = true, .layout.late = late, .optimizer = o}, &s));
    tess_step_holds(s, &plan);
    const int64_t moments = tess_param_parts(n.param[0]) - 1, scales = 2 * V + WIDE; /* a row is a block */
    const int64_t kept = as == TESS_KEEP_INT8   ? MATRICES + 4 * scales
                         : as == TESS_KEEP_BF16 ? 2 * MATRICES
                                                : 4 * MATRICES;
    CHECK_EQ(plan.resident[TESS_ROLE_MOMENT], moments * (kept + 4 * WIDE));
    draw(&n);
    for (int64_t k = 0; k < STEPS; k++) f->loss[k] = run(&n, s, k, 0.01);
    for (int part = 0; part <= moments; part++) {
        float *x;
        OK(tess_param_map(n.param[1], 0, (tess_part)part, TESS_R, &x));
        memcpy(f->part[part], x, sizeof f->part[part]);
        tess_param_unmap(n.param[1], 0, (tess_part)part);
    }
    tess_step_free(s);
    tess_graph_free(n.g);
}

/* As far as each form's steps allow it is the run in fp32; and late updates have the same dice. */
TEST(states_in_fewer_bits)
{
    const tess_optimizer of[] = {tess_adamw(), tess_sgd(0.9), tess_lion(), tess_adagrad()};
    static struct fewer plain, kept, late;
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int k = 0; k < 4; k++) {
        train_fewer(of[k], TESS_KEEP_F32, false, &plain);
        for (int as = TESS_KEEP_BF16; as <= TESS_KEEP_INT8; as++) {
            if (k == 3 && as == TESS_KEEP_INT8) continue; /* which is refused */
            train_fewer(of[k], (tess_keeping)as, false, &kept);
            train_fewer(of[k], (tess_keeping)as, true, &late);
            CHECK(!memcmp(&kept, &late, sizeof kept));
            CHECK(memcmp(kept.part[1], plain.part[1], sizeof kept.part[1]) != 0);
            double off = 0, moment = 0, size = 0;
            for (int i = 0; i < STEPS; i++) off = fmax(off, fabs(kept.loss[i] - plain.loss[i]));
            for (int i = 0; i < WIDE * WIDE; i++) {
                moment += pow((double)kept.part[1][i] - plain.part[1][i], 2);
                size += pow((double)plain.part[1][i], 2);
            }
            printf("%s %s: losses differ by %.2g, a moment by %.2g\n", tess_optimizer_kind_of(&of[k])->name,
                   tess_keeping_name((tess_keeping)as), off, sqrt(moment / size));
            /* Each moment is off by its own rounding; of Lion's steps, which are signs, some turn over too. */
            const double most = (as == TESS_KEEP_BF16 ? 0.015 : 0.045) * (k == 2 ? 3 : 1);
            CHECK(off < 0.1 && sqrt(moment / size) < most);
        }
    }
    tess_stop();
}

/* Pieces are read and written as fp32, with what they had. */
TEST(fewer_bits_seen_from_a_program)
{
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int as = TESS_KEEP_BF16; as <= TESS_KEEP_INT8; as++) {
        struct net n = make_of(WIDE);
        tess_step *s, *other;
        tess_lent lent;
        float *x, was[WIDE * WIDE];
        tess_step_conf conf = {.train = true, .optimizer = tess_adamw()};
        conf.optimizer.keeping = (tess_keeping)as;
        OK(tess_step_new(n.loss, &conf, &s));
        draw(&n);
        OK(tess_param_map(n.param[1], 0, TESS_MOMENT1, TESS_R, &x)); /* before any step */
        for (int i = 0; i < WIDE * WIDE; i++) CHECK(x[i] == 0);
        tess_param_unmap(n.param[1], 0, TESS_MOMENT1);
        for (int64_t k = 0; k < 3; k++) run(&n, s, k, 0.01);
        for (int part = TESS_MOMENT1; part <= TESS_MOMENT2; part++) {
            OK(tess_param_map(n.param[1], 0, (tess_part)part, TESS_RW, &x));
            memcpy(was, x, sizeof was);
            tess_param_unmap(n.param[1], 0, (tess_part)part);
            OK(tess_param_map(n.param[1], 0, (tess_part)part, TESS_R, &x));
            CHECK(!memcmp(was, x, sizeof was));
            tess_param_unmap(n.param[1], 0, (tess_part)part);
            OK(tess_param_map(n.param[1], 0, (tess_part)part, TESS_W, &x));
            for (int i = 0; i < WIDE * WIDE; i++) x[i] = i % WIDE ? 0.25f : 1;
            tess_param_unmap(n.param[1], 0, (tess_part)part);
            OK(tess_param_map(n.param[1], 0, (tess_part)part, TESS_R, &x));
            for (int i = 0; i < WIDE * WIDE; i++) CHECK_NEAR(x[i], i % WIDE ? 0.25 : 1, 0.004);
            tess_param_unmap(n.param[1], 0, (tess_part)part);
        }
        if (as == TESS_KEEP_INT8) {
            WRONG(tess_param_lend(n.param[1], 0, TESS_MOMENT1, &lent), "w: has moments of 8 bits");
        } else {
            OK(tess_param_lend(n.param[1], 0, TESS_MOMENT1, &lent));
            CHECK_EQ(lent.dtype, TESS_BF16);
            tess_param_unmap(n.param[1], 0, TESS_MOMENT1);
        }
        OK(tess_param_lend(n.param[2], 0, TESS_MOMENT1, &lent)); /* a vector's are fp32 */
        CHECK_EQ(lent.dtype, TESS_F32);
        tess_param_unmap(n.param[2], 0, TESS_MOMENT1);
        conf.optimizer.keeping = TESS_KEEP_F32;
        WRONG(tess_step_new(n.loss, &conf, &other), "moments: are kept otherwise than by another step");
        tess_step_free(s);
        tess_graph_free(n.g);
    }
    tess_stop();
}

/* A run of one step, or of some; what its parameters come to be. */
static void train_rounded(tess_dtype gradients, bool late, int64_t steps, float after[4][V * C])
{
    struct net n = make();
    tess_step *s;
    tess_step_conf conf = {.train = true, .layout.late = late, .optimizer = tess_sgd(0)};
    conf.optimizer.gradients = gradients;
    conf.optimizer.clip = steps > 1 ? 1 : 0;
    OK(tess_step_new(n.loss, &conf, &s));
    draw(&n);
    for (int64_t k = 0; k < steps; k++) run(&n, s, k, 1);
    for (int k = 0; k < 4; k++) {
        float *x;
        OK(tess_param_map(n.param[k], 0, TESS_MASTER, TESS_R, &x));
        memcpy(after[k], x, (size_t)elements_of(n.param[k]) * sizeof *x);
        tess_param_unmap(n.param[k], 0, TESS_MASTER);
    }
    tess_step_free(s);
    tess_graph_free(n.g);
}

static float nearest_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000u;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* The step of a matrix is along its gradient rounded once to bf16, that of a vector along its own. */
TEST(gradients_that_wait_in_bf16)
{
    static float begin[4][V * C], plain[4][V * C], few[4][V * C], late[4][V * C];
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    train_rounded(TESS_F32, false, 0, begin);
    train_rounded(TESS_F32, false, 1, plain);
    train_rounded(TESS_BF16, false, 1, few);
    int nearest = 0, other = 0;
    for (int k = 0; k < 4; k++)
        for (int i = 0; i < (k == 2 ? C : k == 1 ? C * C : V * C); i++) {
            const double g = (double)begin[k][i] - plain[k][i], along = (double)begin[k][i] - few[k][i];
            if (k == 2) CHECK(few[k][i] == plain[k][i]);
            CHECK(fabs(along - g) < fabs(g) * 0x1.01p-8 + 3e-7);
            nearest += k != 2 && fabs(along - nearest_bf16((float)g)) < 3e-7; /* all but those halfway between two */
            other += k != 2 && fabs(along - g) > 1e-5;
        }
    CHECK(nearest >= 2 * V * C + C * C - 3 && other > 20);
    train_rounded(TESS_BF16, false, STEPS, few);
    train_rounded(TESS_BF16, true, STEPS, late);
    CHECK(!memcmp(few, late, sizeof few));
    tess_stop();
}

TEST(mistakes)
{
    struct net n = make();
    tess_step *s, *other;
    tess_step_conf conf = {.train = true, .optimizer = tess_sgd(-1)};
    WRONG(tess_step_new(n.loss, &conf, &s), "momentum -1");
    conf.optimizer = tess_sgd(0);
    conf.optimizer.nesterov = true;
    WRONG(tess_step_new(n.loss, &conf, &s), "nesterov with momentum 0");
    conf.optimizer = tess_lion();
    conf.optimizer.beta1 = 1;
    WRONG(tess_step_new(n.loss, &conf, &s), "betas 1 and");
    conf.optimizer = tess_adagrad();
    conf.optimizer.eps = NAN;
    WRONG(tess_step_new(n.loss, &conf, &s), "eps nan");
    conf.optimizer.type = (tess_optimizer_type)77;
    WRONG(tess_step_new(n.loss, &conf, &s), "type 77");
    conf.optimizer = tess_sgd(0);
    conf.optimizer.keeping = TESS_KEEP_BF16;
    WRONG(tess_step_new(n.loss, &conf, &s), "SGD without momentum has no states to keep in fewer bits");
    conf.optimizer = tess_adagrad();
    conf.optimizer.keeping = TESS_KEEP_INT8;
    WRONG(tess_step_new(n.loss, &conf, &s), "Adagrad's sum of squares in 8 bits");
    conf.optimizer.keeping = (tess_keeping)9;
    WRONG(tess_step_new(n.loss, &conf, &s), "keeping 9");
    conf.optimizer = tess_sgd(0);
    conf.optimizer.gradients = TESS_F16;
    WRONG(tess_step_new(n.loss, &conf, &s), "dtype 2 (expected TESS_F32 or TESS_BF16)");
    conf.optimizer = tess_muon();
    conf.optimizer.momentum = 1;
    WRONG(tess_step_new(n.loss, &conf, &s), "momentum 1");
    conf.optimizer = tess_muon();
    conf.optimizer.ns_steps = 0;
    WRONG(tess_step_new(n.loss, &conf, &s), "ns_steps 0");
    conf.optimizer = tess_muon();
    conf.optimizer.beta2 = 1;
    WRONG(tess_step_new(n.loss, &conf, &s), "betas 0.9 and 1");
    conf.optimizer = tess_adafactor();
    conf.optimizer.decay_rate = 0;
    WRONG(tess_step_new(n.loss, &conf, &s), "decay_rate 0");
    conf.optimizer = tess_adafactor();
    conf.optimizer.keeping = TESS_KEEP_INT8;
    WRONG(tess_step_new(n.loss, &conf, &s), "stay fp32");
    conf.optimizer = tess_sgd(0.9);
    OK(tess_step_new(n.loss, &conf, &s));
    conf.layout.by_layer = true;
    OK(tess_step_new(n.loss, &conf, &other)); /* another way to do the same */
    tess_step_free(other);
    conf.optimizer = tess_lion();
    WRONG(tess_step_new(n.loss, &conf, &other), "another step of the graph trains table by SGD with 1");
    WRONG(tess_param_set_rates(n.loss, 1, 0), "is no parameter");
    WRONG(tess_param_set_rates(n.param[0], -1, 0), "table: lr_scale -1");
    tess_step_free(s);
    tess_graph_free(n.g);
}
