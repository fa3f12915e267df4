/* Tiles that a program is lent: activations as a step makes them, parameters between steps. Its own StarPU tasks read
 * what is there, with and without a cap, and a step with a watch has the bits of one without. */
#define CHECK_MAIN
#include "tests/graph/nets.h"
#include <starpu.h>
#include <unistd.h>

/* ---- the program's tasks: they take their time, so that who does not wait for them is found out ---- */

static int calls, rows_seen;
static int64_t next_row;

static void squares(void *buffers[], void *arg)
{
    const tess_lent *t = arg;
    const float *x = (const float *)STARPU_VECTOR_GET_PTR(buffers[0]) + t->at;
    double sum = 0;
    usleep(2000);
    for (int64_t i = 0; i < t->rows * t->columns; i++) sum += (double)x[i] * x[i];
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[1]) += sum;
}
static struct starpu_codelet squares_cl = {
    .cpu_funcs = {squares}, .nbuffers = 2, .modes = {STARPU_R, STARPU_RW}, .name = "squares"};

static void see(void *sum, const tess_lent *tile)
{
    tess_lent *copy = malloc(sizeof *copy);
    *copy = *tile;
    CHECK_EQ(tile->first, next_row);
    next_row += tile->rows;
    calls++;
    rows_seen += (int)tile->rows;
    CHECK_EQ(starpu_task_insert(&squares_cl, STARPU_R, tile->handle, STARPU_RW, *(starpu_data_handle_t *)sum,
                                STARPU_CL_ARGS, copy, sizeof *copy, 0),
             0);
}

/* ---- runs ---- */

static char dir[] = "/var/tmp/tessera-lent-XXXXXX";
static const unsigned all_away = TESS_AWAY_WEIGHTS | TESS_AWAY_MOMENTS | TESS_AWAY_GRADIENTS | TESS_AWAY_ACTIVATIONS;

static double numbers_of(tess_tensor *p, tess_part part)
{
    double sum = 0;
    for (int64_t k = 0; k < tess_param_pieces(p); k++) {
        const tess_piece at = tess_param_piece(p, k);
        float *x = NULL;
        OK(tess_param_map(p, k, part, TESS_R, &x));
        for (int64_t i = 0; x && i < at.rows * at.cols; i++) sum += (double)x[i] * x[i];
        tess_param_unmap(p, k, part);
    }
    return sum;
}

static double lent_of(tess_tensor *p, tess_part part)
{
    double sum = 0;
    starpu_data_handle_t handle;
    starpu_variable_data_register(&handle, STARPU_MAIN_RAM, (uintptr_t)&sum, sizeof sum);
    next_row = 0;
    for (int64_t k = 0; k < tess_param_pieces(p); k++) {
        tess_lent lent = {0};
        OK(tess_param_lend(p, k, part, &lent));
        CHECK(lent.dtype == TESS_F32 && lent.columns == tess_param_piece(p, k).cols);
        see(&handle, &lent);
        tess_param_unmap(p, k, part); /* given back; the task has not run */
    }
    starpu_data_unregister(handle);
    return sum;
}

static tess_tensor *hidden;
static tess_tensor *net_hidden(tess_graph *g, tess_tensor *x, int layer)
{
    x = net_gpt(g, x, layer);
    return layer == 1 ? hidden = tess_name(x, "hidden") : x;
}

struct run {
    double loss, seen;
    uint64_t peak, read;
};

/* Three steps of two micro-batches of three row tiles; after them a parameter is read by StarPU's tasks. */
static struct run run(uint64_t ram, bool watched, int every)
{
    struct net n;
    tess_step *s;
    struct run r = {0};
    starpu_data_handle_t seen;
    tess_watch watch = {"hidden", see, &seen};
    const tess_machine m = {.workers = 2, .cpu_bytes = ram, .disk = ram ? dir : NULL, .away = ram ? all_away : 0};
    tess_plan plan;
    net_make(&n, &(tess_graph_conf){.tile_rows = T, .tile_elements = 16 * C}, net_hidden);
    OK(tess_step_fit(n.loss,
                     &(tess_step_conf){.train = true,
                                       .micro = 2,
                                       .recompute_every = every,
                                       .optimizer = tess_adamw(),
                                       .watch = &watch,
                                       .watches = watched},
                     &m, &s, &plan));
    OK(tess_start_plan(&m, &plan));
    starpu_variable_data_register(&seen, STARPU_MAIN_RAM, (uintptr_t)&r.seen, sizeof r.seen);
    OK(tess_graph_init(n.g, 5));
    OK(tess_step_feed(s, n.ids, n.id));
    OK(tess_step_feed(s, n.targets, n.target));
    calls = rows_seen = 0;
    for (int64_t step = 0; step < 3; step++) {
        tess_step_result result = {0};
        next_row = 0;
        OK(tess_step_run(s, &(tess_step_input){.step = step, .seed = 2, .lr = 1e-2}, &result));
        r.loss = result.loss;
    }
    CHECK_EQ(calls, watched ? 3 * 2 * B : 0);
    CHECK_EQ(rows_seen, watched ? 3 * 2 * B * T : 0);
    tess_tensor *table = tess_graph_find_param(n.g, "table");
    CHECK(tess_param_pieces(table) > 3);
    CHECK_NEAR(lent_of(table, TESS_MASTER), numbers_of(table, TESS_MASTER), 1e-9);
    CHECK_NEAR(lent_of(table, TESS_MOMENT1), numbers_of(table, TESS_MOMENT1), 1e-9);
    starpu_data_unregister(seen);
    net_free(&n, s);
    uint64_t now, written, used, peak;
    tess_tier_use(TESS_TIER_CPU, &now, &r.peak);
    tess_disk_traffic(&r.read, &written, &used, &peak);
    tess_stop();
    return r;
}

TEST(steps_and_caps)
{
    CHECK(mkdtemp(dir) != NULL);
    const uint64_t ram = 6 << 20; /* where nearly nothing rests, whatever it has room for */
    const struct run plain = run(0, false, 0), seen = run(0, true, 0), capped = run(ram, true, 1);
    CHECK(plain.loss == seen.loss && plain.loss == capped.loss);
    CHECK(seen.seen > 1 && plain.seen == 0);
    CHECK_NEAR(capped.seen, seen.seen, 1e-9 * seen.seen);
    CHECK(capped.peak <= ram && capped.read > 0 && seen.read == 0);
    rmdir(dir);
}

/* What is watched is the tensor: its rows as the step puts them out. */
TEST(values)
{
    struct net n;
    static float out[B * T * C];
    double sum = 0, seen = 0;
    starpu_data_handle_t handle;
    tess_watch watch = {"hidden", see, &handle};
    tess_step *s;
    net_make(&n, &(tess_graph_conf){.tile_rows = T}, net_hidden);
    OK(tess_step_new(hidden, &(tess_step_conf){.watch = &watch, .watches = 1}, &s));
    OK(tess_start(&(tess_machine){.workers = 1}));
    starpu_variable_data_register(&handle, STARPU_MAIN_RAM, (uintptr_t)&seen, sizeof seen);
    OK(tess_graph_init(n.g, 5));
    OK(tess_step_feed(s, n.ids, n.id));
    next_row = 0;
    OK(tess_step_run(s, &(tess_step_input){0}, &(tess_step_result){0}));
    OK(tess_step_output(s, out));
    starpu_data_unregister(handle);
    for (int i = 0; i < B * T * C; i++) sum += (double)out[i] * out[i];
    CHECK_NEAR(seen, sum, 1e-9 * sum);
    net_free(&n, s);
    tess_stop();
}

TEST(mistakes)
{
    struct net n;
    tess_step *s;
    tess_lent lent;
    float *data;
    net_make(&n, &(tess_graph_conf){.tile_elements = 16 * C}, net_hidden);
    tess_tensor *table = tess_graph_find_param(n.g, "table");
    const tess_watch other = {"hiden", see, NULL}, blind = {"hidden", NULL, NULL}, nameless = {NULL, see, NULL};
    tess_step_conf conf = {.train = true, .optimizer = tess_adamw(), .watch = &other, .watches = 1};
    WRONG(tess_step_new(n.loss, &conf, &s),
          "step: watches hiden, which is no activation that its output depends on (tess_name names");
    tess_name(tess_silu(hidden), "aside");
    const tess_watch aside = {"aside", see, NULL};
    conf.watch = &aside;
    WRONG(tess_step_new(n.loss, &conf, &s), "step: watches aside, which is no activation that its output depends on");
    conf.watch = &blind;
    WRONG(tess_step_new(n.loss, &conf, &s), "step: a watch without a function");
    conf.watch = &nameless;
    WRONG(tess_step_new(n.loss, &conf, &s), "step: a watch without a name");
    conf.watch = NULL;
    WRONG(tess_step_new(n.loss, &conf, &s), "step: 1 watches");
    conf.watches = 0;
    OK(tess_step_new(n.loss, &conf, &s));
    WRONG(tess_param_lend(table, 0, TESS_MASTER, &lent), "tess_start");
    OK(tess_start(&(tess_machine){.workers = 1}));
    WRONG(tess_param_lend(table, 0, TESS_MASTER, &lent), "table: was neither drawn nor loaded");
    OK(tess_graph_init(n.g, 1));
    WRONG(tess_param_lend(NULL, 0, TESS_MASTER, &lent), "tess_param_lend: is no parameter");
    WRONG(tess_param_lend(n.ids, 0, TESS_MASTER, &lent), "ids: is no parameter");
    WRONG(tess_param_lend(table, 0, TESS_MASTER, NULL), "table: the last argument of tess_param_lend is NULL");
    WRONG(tess_param_lend(table, 99, TESS_MASTER, &lent), "table: piece 99 of ");
    OK(tess_step_feed(s, n.ids, n.id));
    OK(tess_step_feed(s, n.targets, n.target));
    OK(tess_param_lend(table, 0, TESS_MASTER, &lent));
    WRONG(tess_param_map(table, 0, TESS_MASTER, TESS_RW, &data), "is mapped already");
    WRONG(tess_step_run(s, &(tess_step_input){.lr = 1}, &(tess_step_result){0}),
          "tess_param_unmap was not called for 1");
    tess_param_unmap(table, 0, TESS_MASTER);
    OK(tess_step_run(s, &(tess_step_input){.lr = 1}, &(tess_step_result){0}));
    net_free(&n, s);
    n.g = tess_graph_new(&(tess_graph_conf){.grid = {.rank = 0, .data = 2, .stage = 3}});
    table = tess_param(n.g, "table", 64, 8, TESS_ONE);
    WRONG(tess_param_lend(table, 1, TESS_MASTER, &lent), "table: piece 1 of 1 that rank 0 holds (others are lent by");
    tess_graph_free(n.g);
    tess_stop();
}
