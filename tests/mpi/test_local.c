/* Run by mpirun: local steps (DiLoCo) beside a reference. Each rank of that trains a graph of its own, which knows no
 * other rank, and the outer step is made here, in double, of the weights that all ranks tell each other. */
#include "tests/graph/nets.h"
#include "tests/mpi/ranks.h"

enum { MICROS = 2, LOCAL = 3, SUMS = 3 };

struct run {
    struct net n;
    tess_step *s;
};

static void feed(struct run *r, int64_t first)
{
    OK(tess_step_feed(r->s, r->n.ids, r->n.id + first * B * T));
    OK(tess_step_feed(r->s, r->n.targets, r->n.target + first * B * T));
}

static void begin(struct run *r, const tess_grid *grid, tess_dtype dtype, const tess_optimizer *o,
                  const tess_local *local, bool deterministic)
{
    tess_graph_conf g = {.tile_rows = T, .tile_elements = 16 * C, .loss_rows = 20, .dtype = dtype, .grid = *grid};
    const tess_step_conf conf = {.train = true,
                                 .deterministic = deterministic,
                                 .micro = MICROS * (grid->data > 1 ? grid->data : 1),
                                 .local = local ? *local : (tess_local){0},
                                 .optimizer = *o};
    net_make(&r->n, &g, net_llama);
    OK(tess_step_new(r->n.loss, &conf, &r->s));
    OK(tess_graph_init(r->n.g, 3));
}

static void end(struct run *r)
{
    tess_step_free(r->s);
    tess_graph_free(r->n.g);
}

/* Calls what for each piece of each parameter, which both runs hold alike. */
#define EACH_PIECE(run, p, i)                                                                                          \
    for (int k = 0; k < tess_graph_params((run)->n.g); k++)                                                            \
        for (tess_tensor *p = tess_graph_param((run)->n.g, k); p; p = NULL)                                            \
            for (int64_t i = 0; i < tess_param_pieces(p); i++)

/* The values of all parameters, one behind the other; returns how many. */
static size_t values(struct run *r, float *x)
{
    size_t n = 0;
    EACH_PIECE(r, p, i)
    {
        const tess_piece q = tess_param_piece(p, i);
        float *data;
        OK(tess_param_map(p, i, TESS_MASTER, TESS_R, &data));
        if (x) memcpy(x + n, data, (size_t)(q.rows * q.cols) * sizeof *x);
        tess_param_unmap(p, i, TESS_MASTER);
        n += (size_t)(q.rows * q.cols);
    }
    return n;
}

static void set_values(struct run *r, const double *x)
{
    size_t n = 0;
    EACH_PIECE(r, p, i)
    {
        const tess_piece q = tess_param_piece(p, i);
        float *data;
        OK(tess_param_map(p, i, TESS_MASTER, TESS_W, &data));
        for (int64_t e = 0; e < q.rows * q.cols; e++) data[e] = (float)x[n++];
        tess_param_unmap(p, i, TESS_MASTER);
    }
    OK(tess_graph_round(r->n.g));
}

/* Up to `room` of how far they have come from `began`. */
static void check_values(struct run *r, const float *want, const float *began, double room, const char *what)
{
    const size_t n = values(r, NULL);
    float *got = tess_alloc(n * sizeof *got);
    double off = 0, way = 0;
    values(r, got);
    for (size_t e = 0; e < n; e++) {
        off += ((double)got[e] - want[e]) * ((double)got[e] - want[e]);
        way += ((double)began[e] - want[e]) * ((double)began[e] - want[e]);
    }
    if (!(way > 0 && off <= room * room * way))
        CHECK_SAY("%s: off by %.3g of the way that the reference came", what, sqrt(off / way));
    free(got);
}

/* Behind a sum all ranks have the same bits. */
static void check_together(struct run *r)
{
    const size_t n = values(r, NULL);
    float *mine = tess_alloc(n * sizeof *mine), *first = tess_alloc(n * sizeof *first);
    values(r, mine);
    memcpy(first, mine, n * sizeof *first);
    tess_ranks_tell(first, n * sizeof *first);
    CHECK(!memcmp(mine, first, n * sizeof *first));
    free(mine), free(first);
}

/* DiLoCo's algorithm 1: the mean of what the ranks came away, and torch's SGD with nesterov. */
static void outer_step(struct run *r, double *theta, double *momentum, double lr, double mu)
{
    const size_t n = values(r, NULL);
    float *mine = tess_alloc(n * sizeof *mine), *of = tess_alloc(n * sizeof *of);
    double *sum = tess_alloc(n * sizeof *sum);
    values(r, mine);
    for (size_t e = 0; e < n; e++) sum[e] = mine[e];
    tess_ranks_sum(sum, (int)n);
    for (size_t e = 0; e < n; e++) {
        const double away = theta[e] - sum[e] / tess_ranks();
        momentum[e] = mu * momentum[e] + away;
        theta[e] -= lr * (mu > 0 ? away + mu * momentum[e] : away);
    }
    set_values(r, theta);
    free(mine), free(of), free(sum);
}

static tess_grid all(void)
{
    return (tess_grid){.rank = tess_rank(), .data = tess_ranks(), .tensor = 1, .pipeline = 1, .sequence = 1};
}

TEST(local_steps_are_those_of_a_reference)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int way = 0; way < 4; way++) {
        const tess_grid grid = all();
        tess_optimizer inner = way % 2 ? tess_sgd(0) : tess_adamw();
        tess_local local;
        const double lr = 0.7, mu = way == 1 ? 0 : 0.9;
        struct run ours, own;
        inner.clip = way < 2 ? 1 : 0;
        local = (tess_local){LOCAL, lr, mu};
        begin(&ours, &grid, way < 3 ? TESS_F32 : TESS_BF16, &inner, &local, way == 2);
        begin(&own, &(tess_grid){0}, way < 3 ? TESS_F32 : TESS_BF16, &inner, NULL, way == 2);
        const size_t n = values(&own, NULL);
        float *want = tess_alloc(n * sizeof *want), *began = tess_alloc(n * sizeof *began);
        double *theta = tess_alloc(n * sizeof *theta), *momentum = tess_alloc(n * sizeof *momentum);
        values(&own, began);
        for (size_t e = 0; e < n; e++) theta[e] = began[e];
        for (int64_t k = 0; k < LOCAL * SUMS; k++) {
            const tess_step_input in = {.step = k, .seed = 7, .lr = way % 2 ? 0.1 : 1e-2};
            const int64_t first = tess_rank() * MICROS;
            feed(&ours, first), feed(&own, first);
            OK(tess_step_run(ours.s, &in, NULL));
            OK(tess_step_run(own.s, &in, NULL));
            if ((k + 1) % LOCAL == 0) outer_step(&own, theta, momentum, lr, mu);
            values(&own, want);
            check_values(&ours, want, began, way < 3 ? 1e-5 : 1e-3, way % 2 ? "SGD" : "AdamW");
            if ((k + 1) % LOCAL == 0) check_together(&ours);
        }
        end(&ours), end(&own);
        free(want), free(began), free(theta), free(momentum);
    }
    tess_stop();
}

/* One step between sums, whose mean is taken whole, is data parallelism: by SGD, whose steps add up. */
TEST(one_local_step_of_sgd_is_a_step_of_all)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    const tess_grid grid = all();
    const tess_optimizer sgd = tess_sgd(0);
    const tess_local local = {1, 1, 0};
    struct run a, b;
    begin(&a, &grid, TESS_F32, &sgd, NULL, false);
    begin(&b, &grid, TESS_F32, &sgd, &local, false);
    const size_t n = values(&a, NULL);
    float *want = tess_alloc(n * sizeof *want), *began = tess_alloc(n * sizeof *began);
    values(&a, began);
    for (int i = 0; i < NET_BATCHES * B * T; i++) { /* as many count on each rank, whose means weigh the same */
        if (a.n.target[i] < 0) a.n.target[i] = 1;
        if (b.n.target[i] < 0) b.n.target[i] = 1;
    }
    for (int64_t k = 0; k < 4; k++) {
        feed(&a, tess_rank() * MICROS), feed(&b, tess_rank() * MICROS);
        OK(tess_step_run(a.s, &(tess_step_input){.step = k, .lr = 0.1}, NULL));
        OK(tess_step_run(b.s, &(tess_step_input){.step = k, .lr = 0.1}, NULL));
    }
    values(&a, want);
    check_values(&b, want, began, 1e-5, "one local step");
    end(&a), end(&b);
    free(want), free(began);
    tess_stop();
}

/* Between sums only scalars are sent; a sum sends what a step of data parallelism does. */
TEST(a_sum_of_local_steps_sends_what_one_step_does)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    const tess_grid grid = all();
    const tess_optimizer adamw = tess_adamw();
    const tess_local local = {LOCAL, 0.7, 0.9};
    tess_holds h, of_plain;
    struct run a, b;
    begin(&a, &grid, TESS_F32, &adamw, NULL, false);
    begin(&b, &grid, TESS_F32, &adamw, &local, false);
    tess_step_holds(a.s, &of_plain);
    tess_step_holds(b.s, &h);
    CHECK(h.sent < 4096);
    CHECK(of_plain.sent - h.sent >= h.sent_between &&
          of_plain.sent - h.sent - h.sent_between <= 4 * tess_exact_bytes());
    CHECK((tess_ranks() > 1) == (h.sent_between > 0));
    for (int64_t k = 0; k < 2 * LOCAL; k++) {
        uint64_t before, after, none;
        feed(&b, tess_rank() * MICROS);
        tess_message_traffic(&before, &none);
        OK(tess_step_run(b.s, &(tess_step_input){.step = k, .lr = 1e-2}, NULL));
        tess_message_traffic(&after, &none);
        CHECK_EQ(after - before, h.sent + ((k + 1) % LOCAL ? 0 : h.sent_between));
    }
    end(&a), end(&b);
    tess_stop();
}

TEST(weights_between_sums_are_not_saved)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    const tess_grid grid = all();
    const tess_optimizer adamw = tess_adamw();
    const tess_local local = {2, 0.7, 0};
    struct run r;
    begin(&r, &grid, TESS_F32, &adamw, &local, false);
    for (int64_t k = 0; k < 2; k++) {
        CHECK_EQ(tess_graph_together(r.n.g), TESS_OK);
        feed(&r, tess_rank() * MICROS);
        OK(tess_step_run(r.s, &(tess_step_input){.step = k, .lr = 1e-2}, NULL));
        if (k == 0 && tess_ranks() > 1) {
            CHECK_EQ(tess_graph_together(r.n.g), TESS_INVALID);
            CHECK_HAS(tess_error_text(), "the weights of the ranks differ until the next sum");
            tess_error_clear();
            feed(&r, tess_rank() * MICROS);
            OK(tess_step_run(r.s, &(tess_step_input){.step = 1, .lr = 1e-2}, NULL));
            break;
        }
    }
    CHECK_EQ(tess_graph_together(r.n.g), TESS_OK);
    end(&r);
    tess_stop();
}
