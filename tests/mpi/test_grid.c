/* Run by mpirun with up to four ranks, one case with 18: every placement of a model over them against the same model on
 * one, which rank 0 computes and tells the others. */
#include "graph/describe/param.h"
#include "graph/step/step_impl.h"
#include "tests/docs/own_ops.h"
#include "tests/graph/nets.h"
#include "tests/mpi/ranks.h"
#include <starpu.h>
#include <unistd.h>

static const net_body bodies[] = {net_gpt, net_llama, net_tangle, net_wide};
static const char *const body_names[] = {"gpt", "llama", "tangle", "wide"};
enum { WIDE = 3 }; /* which has tiles as large as they are */

/* An odd number of micro-batches a rank, so that no rank's leaves are a whole part of the tree. */
#ifdef __SANITIZE_ADDRESS__ /* which is slow: the same tasks and messages, fewer times */
enum { STEPS = 2, MICROS = 1 };
#else
enum { STEPS = 5, MICROS = 3 };
#endif
static int steps = 2; /* of STEPS */

static const tess_step_conf training = {
    .train = true,
    .deterministic = true,
    .optimizer = {.beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1}};

/* Losses, norms, and each parameter's master and moments, whole; of a rank what it has, zeros elsewhere. */
struct outcome {
    double loss[STEPS], norm[STEPS];
    float **part[TESS_PARTS];
    int params;
    int turns; /* how often the list goes from one micro-batch to another */
};

static const tess_graph_conf small = {.tile_rows = T, .tile_elements = 16 * C, .loss_rows = 20},
                             large = {.tile_rows = T, .tile_elements = 2 << 20, .loss_rows = 20};

static const tess_graph_conf *sizes(int which)
{
    return which == WIDE ? &large : &small;
}

static bool whole_tiles;  /* with all rows of a micro-batch */
static int near_here = 1; /* ranks that share a machine, as the graph is told */

static int turns_of(const tess_program *p)
{
    const tess_origin *last = NULL;
    int n = 0;
    for (size_t k = 0; k < p->tasks; k++) {
        if (!p->origin[k].of) continue;
        n += last && last->micro != p->origin[k].micro;
        last = &p->origin[k];
    }
    return n;
}

static struct outcome train(int which, tess_dtype dtype, const tess_grid *grid, const tess_step_conf *conf)
{
    struct net n;
    tess_step *s;
    struct outcome o = {0};
    tess_graph_conf g = *sizes(which);
    int64_t first, count;
    g.dtype = dtype;
    g.grid = *grid;
    if (whole_tiles) g.tile_rows = B * T;
    net_make(&n, &g, bodies[which]);
    tess_graph_set_near(n.g, near_here, 0);
    OK(tess_step_new(n.loss, conf, &s));
    o.turns = turns_of(s->low.program);
    OK(tess_graph_init(n.g, 3));
    tess_step_share(s, &first, &count);
    for (int64_t k = 0; k < steps; k++) {
        tess_step_result r = {0};
        OK(tess_step_feed(s, n.ids, n.id + first * B * T));
        OK(tess_step_feed(s, n.targets, n.target + first * B * T));
        OK(tess_step_run(s, &(tess_step_input){.step = k, .seed = 7, .lr = 1e-2f}, &r));
        o.loss[k] = r.loss;
        o.norm[k] = r.grad_norm;
    }
    o.params = tess_graph_params(n.g);
    for (int part = 0; part < TESS_PARTS; part++) {
        o.part[part] = tess_alloc((size_t)o.params * sizeof(float *));
        for (int k = 0; k < o.params; k++) {
            tess_tensor *p = tess_graph_param(n.g, k);
            int64_t shape[3], columns = tess_tensor_shape(p, shape) == 2 ? shape[1] : 1;
            o.part[part][k] = tess_alloc((size_t)(shape[0] * columns) * sizeof(float));
            for (int64_t i = 0; i < tess_param_pieces(p); i++) {
                tess_piece piece = tess_param_piece(p, i);
                float *x;
                OK(tess_param_map(p, i, (tess_part)part, TESS_R, &x));
                for (int64_t r = 0; r < piece.rows; r++)
                    memcpy(o.part[part][k] + (piece.row + r) * columns + piece.col, x + r * piece.cols,
                           (size_t)piece.cols * sizeof(float));
                tess_param_unmap(p, i, (tess_part)part);
            }
        }
    }
    tess_step_free(s);
    tess_graph_free(n.g);
    return o;
}

/* What one rank makes of it: rank 0 does, and all have it then. */
static struct outcome train_alone_on(int which, tess_dtype dtype, const tess_grid *grid, const tess_step_conf *conf)
{
    struct net n;
    struct outcome o = {0};
    if (tess_rank() == 0) o = train(which, dtype, grid, conf);
    tess_ranks_tell(o.loss, sizeof o.loss);
    tess_ranks_tell(o.norm, sizeof o.norm);
    net_make(&n, sizes(which), bodies[which]);
    o.params = tess_graph_params(n.g);
    for (int part = 0; part < TESS_PARTS; part++) {
        if (tess_rank()) o.part[part] = tess_alloc((size_t)o.params * sizeof(float *));
        for (int k = 0; k < o.params; k++) {
            int64_t shape[3], columns = tess_tensor_shape(tess_graph_param(n.g, k), shape) == 2 ? shape[1] : 1;
            const size_t bytes = (size_t)(shape[0] * columns) * sizeof(float);
            if (tess_rank()) o.part[part][k] = tess_alloc(bytes);
            tess_ranks_tell(o.part[part][k], bytes);
        }
    }
    tess_graph_free(n.g);
    return o;
}

static struct outcome train_alone(int which, tess_dtype dtype, const tess_step_conf *conf)
{
    return train_alone_on(which, dtype, &(tess_grid){0}, conf);
}

static void forget(struct outcome *o)
{
    for (int part = 0; part < TESS_PARTS; part++) {
        for (int k = 0; k < o->params; k++) free(o->part[part][k]);
        free(o->part[part]);
    }
}

/* What a rank has of the parameters is what one rank alone had there; where it has nothing there are zeros. */
static void compare(const struct outcome *got, const struct outcome *want, int which, const char *what, bool bits,
                    double room)
{
    struct net n;
    tess_graph_conf g = *sizes(which);
    net_make(&n, &g, bodies[which]);
    for (int k = 0; k < steps; k++) {
        double off = fabs(got->loss[k] - want->loss[k]) / want->loss[k];
        double off_norm = fabs(got->norm[k] - want->norm[k]) / want->norm[k];
        if (bits ? off != 0 || off_norm != 0 : !(off <= room && off_norm <= 100 * room))
            CHECK_SAY("%s %s: step %d: loss %.17g, alone %.17g; norm %.17g, alone %.17g", body_names[which], what, k,
                      got->loss[k], want->loss[k], got->norm[k], want->norm[k]);
    }
    for (int k = 0; k < got->params; k++)
        for (int part = 0; part < TESS_PARTS; part++) {
            int64_t shape[3], columns = tess_tensor_shape(tess_graph_param(n.g, k), shape) == 2 ? shape[1] : 1, bad = 0;
            double square = 0, off = 0;
            for (int64_t i = 0; i < shape[0] * columns; i++) {
                float x = got->part[part][k][i], y = want->part[part][k][i];
                if (x == 0) continue;
                bad += x != y;
                off += ((double)x - y) * ((double)x - y);
                square += (double)y * y;
            }
            /* Adam makes much of gradients that are all but zero, as those of a key's bias are. */
            double most = columns == 1 ? 0.2 : 0.02, share = room > 1e-3 ? 0.5 : most;
            if (bits ? bad > 0 : !(off <= share * share * square))
                CHECK_SAY("%s %s: part %d of %s: %lld elements differ, %g in norm", body_names[which], what, part,
                          tess_tensor_name(tess_graph_param(n.g, k)), (long long)bad, sqrt(off / square));
        }
    tess_graph_free(n.g);
}

/* Of a layout of these rooms: what it came to, which is the same on all ranks, who then meet in a question of ours. */
static tess_status lay_out(const tess_limits *limits, bool odd_fails, tess_plan *l)
{
    const tess_grid grid = {.data = tess_ranks(), .pipeline = 1, .tensor = 1, .rank = tess_rank(), .stage = 3};
    tess_graph_conf g = small;
    struct net n;
    tess_step *s;
    g.grid = grid;
    net_make(&n, &g, net_gpt);
    tess_step_conf conf = training;
    conf.micro = 2 * tess_ranks();
    const tess_status status = tess_step_lay_out(odd_fails && tess_rank() % 2 ? n.ids : n.loss, &conf, limits, &s, l);
    tess_step_free(s);
    tess_graph_free(n.g);
    int64_t most[5] = {status, -(int64_t)status, l->by_layer, -(int64_t)l->by_layer, tess_rank()};
    tess_ranks_most(most, 5);
    CHECK_EQ(most[0], -most[1]);
    CHECK_EQ(most[2], -most[3]);
    CHECK_EQ(most[4], tess_ranks() - 1);
    return status;
}

TEST(ranks_with_other_memory_ask_each_other_the_same)
{
    const bool odd = tess_rank() % 2;
    const tess_gpu_conf gpu = {.memory = 64 << 20, .all = true, .states = 1},
                        small_gpu = {.memory = 1 << 10, .all = true};
    const tess_place_conf ram = {.ram = 64 << 20, .workers = 1}, small_ram = {.ram = 1 << 10, .workers = 1};
    tess_plan l;
    if (tess_ranks() < 2) return;
    alarm(120); /* ranks that ask other questions may wait for ever */
    CHECK_EQ(lay_out(&(tess_limits){.gpu = odd ? gpu : (tess_gpu_conf){0}}, false, &l), TESS_OK);
    CHECK_EQ(lay_out(&(tess_limits){.ram = odd ? ram : (tess_place_conf){0}}, false, &l), TESS_OK);
    CHECK_EQ(lay_out(&(tess_limits){.gpu = odd ? gpu : (tess_gpu_conf){0}, .ram = ram}, false, &l), TESS_OK);
    CHECK_EQ(lay_out(&(tess_limits){.gpu = odd ? small_gpu : gpu}, false, &l), TESS_INVALID);
    CHECK(l.gpu.needed > 1 << 10 && !l.ram.needed);
    CHECK_EQ(lay_out(&(tess_limits){.ram = odd ? small_ram : (tess_place_conf){0}}, false, &l), TESS_INVALID);
    CHECK(l.ram.needed > 1 << 10 && !l.gpu.needed);
    CHECK_EQ(lay_out(&(tess_limits){.ram = ram}, true, &l), TESS_INVALID);
    alarm(0);
}

TEST(data_parallel_gives_the_same_bits_at_every_stage)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int which = 0; which < 3; which++)
        for (int dtype = 0; dtype < 2; dtype++)
            for (int way = 0; way < 4; way++) {
                if ((which + dtype + 2 * way + tess_ranks()) % 6) continue; /* others with other numbers of ranks */
                tess_step_conf conf = training;
                conf.micro = MICROS * tess_ranks();
                conf.layout.by_layer = way & 1;
                conf.layout.late = way & 2;
                if (way == 3) conf.recompute_every = 1;
                if (way == 1) conf.optimizer.clip = 0;
                conf.optimizer.keeping = (tess_keeping)((which + way) % 3);
                conf.optimizer.gradients = way > 1 ? TESS_BF16 : TESS_F32;
                struct outcome alone = train_alone(which, (tess_dtype)dtype, &conf);
                for (int stage = 0; stage < 4; stage++) {
                    char what[100];
                    snprintf(what, sizeof what, "%s %d ranks stage %d way %d", dtype ? "bf16" : "fp32", tess_ranks(),
                             stage, way);
                    tess_grid grid = {.rank = tess_rank(),
                                      .data = tess_ranks(),
                                      .stage = stage,
                                      .persist = way == 0 ? 50 : 0,
                                      .live = way == 2 ? 1000000 : 0,
                                      .reuse = way == 2 ? 1000000 : 0};
                    struct outcome o = train(which, (tess_dtype)dtype, &grid, &conf);
                    compare(&o, &alone, which, what, true, 0);
                    forget(&o);
                }
                forget(&alone);
            }
    tess_stop();
}

/* Large tiles have a slice for each of more than 16 ranks, small ones as many as for 16: the turns of both are kept. */
static void check_slices(void)
{
    struct net n;
    tess_graph_conf g = large;
    int wide = 0;
    g.grid = (tess_grid){.rank = tess_rank(), .data = tess_ranks(), .pipeline = 1, .tensor = 1, .stage = 1};
    net_make(&n, &g, net_wide);
    tess_graph_ready(n.g); /* whose a slice is goes by its tile's number */
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        const tess_tensor *p = tess_graph_param(n.g, k);
        tess_slices slices;
        tess_grid_slices(p, 0, &slices);
        if (slices.n == tess_ranks())
            wide++;
        else
            CHECK(slices.n <= 16);
    }
    CHECK_EQ(wide, net_layers);
    tess_graph_free(n.g);
}

TEST(more_than_16_data_ranks_share_large_tiles_bit_for_bit)
{
    if (tess_ranks() <= 16) return;
    tess_step_conf conf = training;
    conf.micro = tess_ranks();
    net_layers = 2;
    check_slices();
    OK(tess_start(&(tess_machine){.workers = 1}));
    struct outcome alone = train_alone(WIDE, TESS_F32, &conf);
    for (int stage = 1; stage <= 3; stage += 2) {
        char what[100];
        snprintf(what, sizeof what, "%d ranks stage %d", tess_ranks(), stage);
        tess_grid grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = stage};
        struct outcome o = train(WIDE, TESS_F32, &grid, &conf);
        compare(&o, &alone, WIDE, what, true, 0);
        forget(&o);
        grid.sent = TESS_BF16;
        o = train(WIDE, TESS_F32, &grid, &conf);
        compare(&o, &alone, WIDE, strcat(what, ", gradients in few bytes"), false, 2e-3);
        forget(&o);
    }
    forget(&alone);
    net_layers = 3;
    tess_stop();
}

/* A chain within each rank, a tree over them: other roundings, and nothing else. */
TEST(data_parallel_without_deterministic_is_near)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    tess_step_conf conf = training;
    conf.micro = MICROS * tess_ranks();
    conf.deterministic = false;
    steps = STEPS;
    for (int which = 0; which < 2; which++) {
        if ((which + tess_ranks()) % 2) continue; /* the other one with another number of ranks */
        struct outcome alone = train_alone(which, TESS_F32, &conf);
        for (int stage = 0; stage < 4; stage++) {
            tess_grid grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = stage};
            conf.layout.by_layer = (which + stage) % 2; /* each stage in both orders */
            struct outcome o = train(which, TESS_F32, &grid, &conf);
            for (int k = 0; k < steps; k++)
                if (!(fabs(o.loss[k] - alone.loss[k]) <= 1e-5 * alone.loss[k]))
                    CHECK_SAY("%s stage %d, %s: step %d: loss %.17g, alone %.17g", body_names[which], stage,
                              conf.layout.by_layer ? "layer by layer" : "batch by batch", k, o.loss[k], alone.loss[k]);
            forget(&o);
        }
        conf.layout.by_layer = false;
        forget(&alone);
    }
    steps = 2;
    tess_stop();
}

/* The bytes that all ranks have sent so far. */
static int64_t sent_so_far(void)
{
    uint64_t sent, received;
    tess_message_traffic(&sent, &received);
    int64_t all = (int64_t)sent;
    tess_ranks_sum_counts(&all, 1);
    return all;
}

/* Two machines of two ranks each, as far as the grid says. */
TEST(what_goes_once_to_a_machine_gives_the_same_bits)
{
    CHECK_EQ(tess_ranks_near(), tess_ranks());
    if (tess_ranks() != 4) return;
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int which = 0; which < 3; which++)
        for (int stage = 0; stage < 4; stage++) {
            char what[100];
            tess_step_conf conf = training;
            conf.deterministic = (which + stage) % 2;
            conf.layout.by_layer = which == 1;
            conf.layout.late = which == 2;
            conf.micro = (conf.deterministic ? 2 : 3) * tess_ranks();
            snprintf(what, sizeof what, "two machines, stage %d, deterministic %d", stage, conf.deterministic);
            tess_grid grid = {
                .rank = tess_rank(), .data = tess_ranks(), .stage = stage, .reuse = 3000, .live = which ? 3000 : 0};
            const int64_t before = sent_so_far();
            struct outcome apart = train(which, (tess_dtype)(stage % 2), &grid, &conf);
            const int64_t sent_apart = sent_so_far() - before;
            near_here = 2;
            struct outcome near = train(which, (tess_dtype)(stage % 2), &grid, &conf);
            near_here = 1;
            compare(&near, &apart, which, what, true, 0);
            CHECK_EQ(sent_so_far() - before - sent_apart, sent_apart);
            forget(&near);
            forget(&apart);
        }
    tess_stop();
}

/* A placement of all ranks; false where their number does not go into it. */
static bool grid_of(tess_grid *g, int pipeline, int tensor)
{
    int model = pipeline * tensor;
    g->rank = tess_rank();
    g->pipeline = pipeline;
    g->tensor = tensor;
    g->data = tess_ranks() / model;
    return tess_ranks() % model == 0 && tess_ranks() >= model;
}

/* Each place of the data dimension has so many micro-batches. Late updates are the same ones, to the bit, and so is
 * what blocks do not compute again. */
static void near_alone(const tess_grid *grid, int micros, int which, tess_dtype dtype, tess_step_conf conf, double room)
{
    char what[120];
    conf.micro = micros * grid->data;
    struct outcome alone = train_alone(which, dtype, &conf), o = train(which, dtype, grid, &conf);
    snprintf(what, sizeof what, "%s data %d pipeline %d x %d tensor %d stage %d", dtype ? "bf16" : "fp32", grid->data,
             grid->pipeline, grid->interleave, grid->tensor, grid->stage);
    compare(&o, &alone, which, what, false, room);
    if (conf.optimizer.clip > 0 || conf.recompute_every) {
        static const int some[] = {1, 3, 4, 8, 10, 13};
        conf.layout.late = conf.optimizer.clip > 0;
        conf.layout.keep = some, conf.layout.keeps = 6;
        struct outcome other = train(which, dtype, grid, &conf);
        compare(&other, &o, which, strcat(what, " late, some kept"), true, 0);
        forget(&other);
    }
    forget(&o);
    forget(&alone);
}

/* Three blocks over two stages or three, five over four chunks; a tied embedding at both ends. */
TEST(pipelines_are_near_one_rank)
{
    OK(tess_start_rooms(&(tess_machine){.workers = 1}, &(tess_rooms){.pipeline = true, .lanes = TESS_MESSAGE_LANES}));
    for (int pipeline = 2; pipeline <= 4; pipeline++)
        for (int which = 0; which < 3; which++)
            for (int stage = 0; stage < 4; stage++) {
                tess_grid grid = {.stage = stage, .interleave = pipeline == 2 && stage >= 2 && which < 2 ? 2 : 1};
                if (which == 2 && pipeline > 3) continue; /* five blocks of it make gradients that are mostly error */
                net_layers = grid.interleave > 1 || pipeline > 3 ? 5 : 3;
                tess_step_conf conf = training;
                conf.deterministic = (which + stage) % 2;
                if (which == 1) conf.optimizer.clip = 0;
                if (which == 2) conf.recompute_every = 1;
                if (grid_of(&grid, pipeline, 1))
                    near_alone(&grid, 5, which, (tess_dtype)(stage % 2), conf, stage % 2 ? 1e-2 : 1e-4);
            }
    net_layers = 3;
    tess_stop();
}

/* Makes of what each rank has the sum over all ranks: of two orders the same parameters may be elsewhere. */
static void gather(struct outcome *o, int which)
{
    struct net n;
    net_make(&n, sizes(which), bodies[which]);
    for (int k = 0; k < o->params; k++) {
        int64_t shape[3],
            count = tess_tensor_shape(tess_graph_param(n.g, k), shape) == 2 ? shape[0] * shape[1] : shape[0];
        double *sum = tess_alloc((size_t)count * sizeof *sum);
        for (int part = 0; part < TESS_PARTS; part++) {
            for (int64_t i = 0; i < count; i++) sum[i] = o->part[part][k][i];
            tess_ranks_sum(sum, (int)count);
            for (int64_t i = 0; i < count; i++) o->part[part][k][i] = (float)sum[i];
        }
        free(sum);
    }
    tess_graph_free(n.g);
}

/* Gradients of weights come later, chunks lie elsewhere, a table that was of two sections is of one: the bits are those
 * of 1F1B. */
TEST(orders_of_a_pipeline_have_the_same_bits)
{
    OK(tess_start_rooms(&(tess_machine){.workers = 1}, &(tess_rooms){.pipeline = true, .lanes = TESS_MESSAGE_LANES}));
    for (int pipeline = 2; pipeline <= 4; pipeline++)
        for (int which = 0; which < 2; which++)
            for (int stage = 0; stage < 4; stage++) {
                tess_grid grid = {.stage = stage, .interleave = 1};
                tess_step_conf conf = training;
                net_layers = 2 * pipeline;
                conf.deterministic = (which + stage) % 2;
                if (stage == 3) conf.optimizer.clip = 0;
                if (stage == 1) conf.recompute_every = 1;
                if (!grid_of(&grid, pipeline, 1)) continue;
                conf.micro = 5 * grid.data;
                const tess_dtype dtype = (tess_dtype)(stage % 2);
                struct outcome usual = train(which, dtype, &grid, &conf);
                gather(&usual, which);
                for (int schedule = TESS_ZB_H1; schedule <= TESS_ZB_V; schedule++) {
                    char what[80];
                    snprintf(what, sizeof what, "%s, %d sections, stage %d: %s", body_names[which], pipeline, stage,
                             schedule == TESS_ZB_V ? "zb-v" : "zb-h1");
                    grid.schedule = (tess_schedule)schedule;
                    struct outcome o = train(which, dtype, &grid, &conf);
                    gather(&o, which);
                    compare(&o, &usual, which, what, true, 0);
                    compare(&usual, &o, which, what, true, 0);
                    forget(&o);
                }
                forget(&usual);
            }
    net_layers = 3;
    tess_stop();
}

/* The d-th rank has d + 1 parts of the states, or one, where those of a tile are few. */
static void check_parts(int which, const tess_grid *grid)
{
    struct net n;
    tess_graph_conf g = *sizes(which);
    g.grid = *grid;
    net_make(&n, &g, bodies[which]);
    tess_graph_ready(n.g);
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        const tess_tensor *p = tess_graph_param(n.g, k);
        const int64_t unit = p->rank == 2 ? 1 : TESS_VECTOR_ROWS, ranks = tess_ranks(), all = ranks * (ranks + 1) / 2;
        tess_slices slices;
        tess_grid_slices(p, 0, &slices);
        int64_t rows = 0, first, most;
        tess_param_rows(p, 0, &first, &most);
        for (int s = 0; s < slices.n; s++) {
            const tess_slice *of = &slices.of[s];
            const double part = (double)most * (of->owner + 1) / (double)all;
            CHECK_EQ(of->row, rows);
            CHECK(of->rows > 0 && (slices.n < ranks || fabs((double)of->rows - part) <= 2.0 * (double)(ranks * unit)));
            rows += of->rows;
        }
        CHECK_EQ(rows, most);
    }
    tess_graph_free(n.g);
}

/* States, or copies of the weights, by groups, and then by unequal parts; the moments that a rank has are of other
 * rows. */
TEST(groups_and_unequal_parts_give_the_same_bits)
{
    const int ranks = tess_ranks(), group = ranks == 4 ? 2 : 1;
    char states[] = "1,2,3,4";
    if (ranks < 2 || ranks > 4) return;
    states[2 * ranks - 1] = 0;
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int which = 0; which < 4; which++)
        for (int way = 0; way < 4; way++) { /* the stage; 0: copies */
            if (which == WIDE && way != 3) continue;
            char what[100];
            tess_step_conf conf = training;
            conf.deterministic = (which + way) % 2;
            conf.layout.by_layer = which == 1;
            conf.layout.late = which == 2;
            conf.micro = (conf.deterministic ? 2 : 3) * ranks;
            conf.optimizer.keeping = (tess_keeping)((which + way) % 3);
            conf.optimizer.gradients = which % 2 ? TESS_BF16 : TESS_F32;
            snprintf(what, sizeof what, "groups of %d, stage %d, deterministic %d", group, way, conf.deterministic);
            tess_grid grid = {.rank = tess_rank(), .data = ranks, .stage = way ? way : 3, .persist = which ? 0 : 50};
            struct outcome all = train(which, (tess_dtype)(way % 2), &grid, &conf);
            grid.group = group, grid.copies = way == 0;
            struct outcome groups = train(which, (tess_dtype)(way % 2), &grid, &conf);
            gather(&all, which);
            compare(&groups, &all, which, what, true, 0);
            if (way > 0) {
                tess_grid parts = grid;
                parts.group = 0, parts.states = states;
                check_parts(which, &parts);
                struct outcome unequal = train(which, (tess_dtype)(way % 2), &parts, &conf);
                compare(&unequal, &all, which, states, true, 0);
                forget(&unequal);
            }
            if (way == 3 && which == 1) { /* which in few bytes hold what they do without groups */
                struct outcome few[2];
                for (int k = 0; k < 2; k++) {
                    grid.sent = TESS_BF16, grid.group = k ? group : 0;
                    few[k] = train(which, TESS_F32, &grid, &conf);
                }
                gather(&few[0], which);
                compare(&few[1], &few[0], which, what, true, 0);
                forget(&few[0]);
                forget(&few[1]);
            }
            forget(&all);
            forget(&groups);
        }
    tess_stop();
}

/* What codes of weights stand for is the same on any number of ranks, one too; codes of gradients are those of a number
 * of ranks, and with them the bits are the same wherever states lie. */
TEST(codes_give_the_same_bits_wherever_states_lie)
{
    const int ranks = tess_ranks();
    tess_step_conf conf = training;
    conf.micro = 2 * ranks;
    net_wide_rows = 128;
    if (ranks > 4) return;
    OK(tess_start(&(tess_machine){.workers = 1}));
    struct outcome plain = train_alone(WIDE, TESS_BF16, &conf), one = {0};
    for (int way = 0; way < 4; way++) {
        tess_grid grid = {.rank = tess_rank(), .data = ranks, .stage = 3, .weight_codes = true};
        if (way > 1) grid.group = ranks % 2 ? 1 : ranks / 2, grid.copies = way == 3;
        if (way == 0) {
            const tess_grid alone = {.stage = 3, .weight_codes = true};
            one = train_alone_on(WIDE, TESS_BF16, &alone, &conf);
            CHECK(one.loss[0] != plain.loss[0]);
            compare(&one, &plain, WIDE, "codes of weights on one rank", false, 2e-2);
            continue;
        }
        struct outcome o = train(WIDE, TESS_BF16, &grid, &conf);
        compare(&o, &one, WIDE, "codes of weights", true, 0);
        forget(&o);
    }
    forget(&one);
    for (int way = 0; way < 5 && ranks > 1; way++) {
        static const int stages[] = {1, 2, 3, 3, 3};
        tess_grid grid = {.rank = tess_rank(), .data = ranks, .stage = stages[way], .gradient_codes = true};
        if (way > 2) grid.group = ranks % 2 ? 1 : ranks / 2, grid.copies = way == 4;
        struct outcome o = train(WIDE, TESS_BF16, &grid, &conf);
        if (way == 0) {
            compare(&o, &plain, WIDE, "codes of gradients", false, 2e-2);
            CHECK(o.norm[0] != plain.norm[0]);
            gather(&o, WIDE);
            one = o;
            continue;
        }
        compare(&o, &one, WIDE, "codes of gradients", true, 0);
        forget(&o);
    }
    if (ranks > 1) forget(&one);
    forget(&plain);
    net_wide_rows = 1152;
    tess_stop();
}

/* In bf16 gradients are near what they are; wherever states lie they are the same ones, those of machines too, and of
 * more ranks than send at a time. */
TEST(gradients_in_few_bytes_are_near)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int which = 0; which < 2; which++)
        for (int near = 1; near <= (tess_ranks() % 2 ? 1 : 2); near++) {
            struct outcome first = {0};
            near_here = near;
            for (int stage = 0; stage < 4; stage++) {
                tess_grid grid = {.stage = stage, .sent = which ? TESS_F16 : TESS_BF16};
                tess_step_conf conf = training;
                conf.micro = tess_ranks();
                conf.deterministic = which;
                CHECK(grid_of(&grid, 1, 1));
                struct outcome alone = train_alone(which, TESS_F32, &conf), o = train(which, TESS_F32, &grid, &conf);
                char what[80];
                snprintf(what, sizeof what, "stage %d, %d near", stage, near);
                compare(&o, &alone, which, what, false, 2e-3);
                gather(&o, which);
                if (stage == 1) first = o;
                if (stage > 1) compare(&o, &first, which, what, true, 0);
                if (stage != 1) forget(&o);
                forget(&alone);
            }
            forget(&first);
        }
    near_here = 1;
    tess_stop();
}

/* Nothing divides: five heads, 67 and 33 columns, 7 tiles of a table over two ranks or four. */
TEST(tensor_parallel_is_near_one_rank)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int tensor = 2; tensor <= 4; tensor++)
        for (int which = 0; which < 3; which++)
            for (int stage = 0; stage < 4; stage++) {
                tess_grid grid = {.stage = stage};
                tess_step_conf conf = training;
                if (which == 2 && stage != 1) continue; /* nothing of it can be shared out but its table */
                conf.deterministic = (which + stage) % 2;
                if (which == 1) conf.optimizer.clip = 0;
                if (which == 2) conf.recompute_every = 1;
                if (stage == 2) conf.layout.by_layer = true;
                if (stage == 1) conf.optimizer.keeping = which == 1 ? TESS_KEEP_INT8 : TESS_KEEP_BF16;
                if (grid_of(&grid, 1, tensor))
                    near_alone(&grid, 2, which, (tess_dtype)(stage % 2), conf, stage % 2 ? 1e-2 : 1e-4);
            }
    tess_stop();
}

/* While ranks sum what one micro-batch has made another computes: forward and backward of one and the next, or of a
 * pipeline's forward and backward passes. */
TEST(micro_batches_in_pairs_have_the_same_bits)
{
    OK(tess_start_rooms(&(tess_machine){.workers = 1}, &(tess_rooms){.pipeline = true, .lanes = TESS_MESSAGE_LANES}));
    whole_tiles = true;
    for (int pipeline = 1; pipeline <= 2; pipeline++)
        for (int tensor = 1; tensor <= 4; tensor++)
            for (int which = 0; which < 3; which++)
                for (int stage = 0; stage < 3; stage++) {
                    tess_grid grid = {.stage = stage};
                    tess_step_conf conf = training;
                    char what[100];
                    if ((which == 2 && stage != 1) || (pipeline == 2 && stage == 2)) continue;
                    if (!grid_of(&grid, pipeline, tensor)) continue;
                    conf.deterministic = (which + stage) % 2;
                    conf.micro = (grid.data > 2 ? 3 : 5) * grid.data;
                    conf.layout.by_layer = stage == 2;
                    conf.layout.late = stage == 1;
                    if (which == 1) conf.optimizer.clip = 0;
                    if (which > stage) conf.recompute_every = 1;
                    struct outcome alone = train(which, (tess_dtype)(stage % 2), &grid, &conf);
                    conf.layout.pairs = true;
                    struct outcome pairs = train(which, (tess_dtype)(stage % 2), &grid, &conf);
                    snprintf(what, sizeof what, "data %d pipeline %d tensor %d stage %d in pairs", grid.data, pipeline,
                             tensor, stage);
                    compare(&pairs, &alone, which, what, true, 0);
                    if (pairs.turns < 4 * alone.turns)
                        CHECK_SAY("%s %s: %d turns, %d without", body_names[which], what, pairs.turns, alone.turns);
                    forget(&pairs);
                    forget(&alone);
                }
    whole_tiles = false;
    tess_stop();
}

/* What a watch sees: how often, how many columns, and the squares of it. */
struct shown {
    int calls;
    int64_t columns;
    double squares;
};
static void look(void *of, const tess_lent *t)
{
    struct shown *s = of;
    s->calls++;
    s->columns = t->columns;
    starpu_data_acquire(t->handle, STARPU_R);
    const float *x = (const float *)starpu_data_get_local_ptr(t->handle) + t->at;
    for (int64_t i = 0; i < t->rows * t->columns; i++) s->squares += (double)x[i] * x[i];
    starpu_data_release(t->handle);
}
static tess_tensor *net_shown(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *up = tess_linear(x, PARAM("up", 4 * C, C, TESS_NORMAL(0.3f)), NULL);
    up = tess_gelu(layer ? up : tess_name(up, "inside"), TESS_GELU_TANH);
    up = tess_linear(up, PARAM("down", C, 4 * C, TESS_NORMAL(0.3f)), NULL);
    return layer ? up : tess_name(up, "behind");
}
static void show(const tess_grid *grid, struct shown seen[2])
{
    struct net n;
    tess_step *s;
    int64_t first, count;
    const tess_watch watch[2] = {{"behind", look, &seen[0]}, {"inside", look, &seen[1]}};
    tess_step_conf conf = training;
    conf.micro = 2;
    conf.recompute_every = 1;
    conf.watch = watch;
    conf.watches = 2;
    tess_graph_conf g = small;
    g.grid = *grid;
    net_make(&n, &g, net_shown);
    OK(tess_step_new(n.loss, &conf, &s));
    OK(tess_graph_init(n.g, 3));
    tess_step_share(s, &first, &count);
    OK(tess_step_feed(s, n.ids, n.id + first * B * T));
    OK(tess_step_feed(s, n.targets, n.target + first * B * T));
    OK(tess_step_run(s, &(tess_step_input){.seed = 7, .lr = 1e-2f}, &(tess_step_result){0}));
    tess_step_free(s);
    tess_graph_free(n.g);
}

/* The sum of all ranks' parts, once, also where the next linear reads it; within a region each rank its columns. */
TEST(tensor_parallel_shows_what_one_rank_does)
{
    struct shown one[2] = {0}, mine[2] = {0};
    tess_grid grid = {0};
    if (!grid_of(&grid, 1, 2)) return;
    OK(tess_start(&(tess_machine){.workers = 1}));
    if (tess_rank() == 0) show(&(tess_grid){0}, one);
    tess_ranks_tell(one, sizeof one);
    grid.data = 1;
    if (tess_ranks() == 2) {
        show(&grid, mine);
        CHECK(one[0].calls > 1 && one[0].squares > 0);
        CHECK_EQ(mine[0].calls, one[0].calls);
        CHECK_EQ(mine[0].columns, one[0].columns);
        CHECK_NEAR(mine[0].squares, one[0].squares, 1e-4 * one[0].squares);
        CHECK_EQ(mine[1].calls, one[1].calls);
        CHECK_EQ(mine[1].columns, one[1].columns / 2);
        tess_ranks_sum(&mine[1].squares, 1);
        CHECK_NEAR(mine[1].squares, one[1].squares, 1e-4 * one[1].squares);
    }
    tess_stop();
}

/* An MLP that forgets some of its columns, and those in which every op works on columns, a residual among them. */
static tess_tensor *net_unsplit(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *up = tess_linear(x, PARAM("up", 48, C, TESS_NORMAL(0.3f)), NULL);
    tess_tensor *y = tess_add(tess_gelu(up, TESS_GELU_TANH), up);
    if (layer == 1) y = tess_dropout(y, 0.1f);
    return tess_linear(y, PARAM("down", C, 48, TESS_NORMAL(0.3f)), NULL);
}

TEST(what_is_not_split_is_said)
{
    static const struct {
        net_body body;
        const char *said;
    } nets[] = {{net_gpt, NULL},
                {net_llama, "12 of 22 matrices, 0.q first: 1 unit of columns cannot be shared out"},
                {net_unsplit, "2 of 7 matrices, 1.up first: dropout does not work on columns by themselves"}};
    struct net n;
    for (int k = 0; k < 3; k++) {
        tess_step *s;
        net_make(&n, &(tess_graph_conf){.grid = {.tensor = 2, .rank = tess_rank() % 2}}, nets[k].body);
        OK(tess_step_new(n.loss, &training, &s));
        const char *said = tess_graph_unsplit(n.g);
        CHECK_EQ(said != NULL, nets[k].said != NULL);
        if (said && nets[k].said) CHECK_STR(said, nets[k].said);
        tess_step_free(s);
        tess_graph_free(n.g);
    }
}

TEST(tensor_times_pipeline_is_near_one_rank)
{
    OK(tess_start_rooms(&(tess_machine){.workers = 1}, &(tess_rooms){.pipeline = true, .lanes = TESS_MESSAGE_LANES}));
    for (int which = 0; which < 2; which++) {
        tess_grid grid = {.interleave = 1 + which};
        tess_step_conf conf = training;
        conf.recompute_every = which;
        net_layers = which ? 5 : 3;
        if (grid_of(&grid, 2, 2)) near_alone(&grid, 3, which, TESS_F32, conf, 1e-4);
    }
    net_layers = 3;
    tess_stop();
}

/* Ops that look along the sequence, in a block and at the end: a step's losses and norms over as many ranks. */
static void look_along(int ranks, bool picks, const tess_step_conf *conf, double out[2 * STEPS])
{
    enum { SEQUENCES = 3, LENGTH = 512, WIDTH = 24, WORDS = 50 };
    static int32_t ids[2 * SEQUENCES * LENGTH], last[2 * SEQUENCES], labels[2 * SEQUENCES];
    const tess_graph_conf c = {.tile_rows = 128,
                               .grid = {.data = ranks, .sequence = ranks, .rank = ranks > 1 ? tess_rank() : 0}};
    const tess_op *ema;
    tess_step *s;
    tess_graph *g = tess_graph_new(&c);
    tess_tensor *in = tess_input(g, "ids", SEQUENCES, LENGTH), *at = tess_input(g, "last", SEQUENCES, 1),
                *label = tess_input(g, "labels", SEQUENCES, 1), *to = tess_input(g, "targets", SEQUENCES, LENGTH);
    tess_tensor *table = tess_param(g, "table", WORDS, WIDTH, TESS_NORMAL(0.5f)),
                *decay = tess_param(g, "decay", WIDTH, 1, TESS_NORMAL(0.3f)), *x = tess_embedding(in, table, NULL);
    OK(ema_register(&ema));
    tess_block(g, "block");
    tess_tensor *y = tess_rmsnorm(x, tess_param(g, "norm", WIDTH, 1, TESS_ONE), 1e-5f);
    y = tess_apply(ema, (tess_tensor *[]){y, decay}, 2, NULL);
    y = tess_linear(tess_apply(ema, (tess_tensor *[]){y, decay}, 2, NULL),
                    tess_param(g, "w", WIDTH, WIDTH, TESS_NORMAL(0.3f)), NULL);
    x = tess_add(x, y);
    tess_block_end(g);
    tess_tensor *head = tess_param(g, "head", 7, WIDTH, TESS_NORMAL(0.3f));
    tess_tensor *loss =
        picks ? tess_cross_entropy(tess_pick(x, at), head, NULL, label) : tess_cross_entropy(x, table, NULL, to);
    for (int i = 0; i < 2 * SEQUENCES * LENGTH; i++) ids[i] = i * 7 % 13 * (i % 4) % WORDS;
    for (int i = 0; i < 2 * SEQUENCES; i++) last[i] = (i * 131 + 77) % LENGTH, labels[i] = i == 2 ? -100 : i % 7;
    OK(tess_step_new(loss, conf, &s));
    OK(tess_graph_init(g, 3));
    for (int64_t k = 0; k < steps; k++) {
        tess_step_result r = {0};
        OK(tess_step_feed(s, in, ids));
        if (picks) OK(tess_step_feed(s, at, last));
        OK(tess_step_feed(s, picks ? label : to, picks ? labels : ids));
        OK(tess_step_run(s, &(tess_step_input){.step = k, .seed = 7, .lr = 1e-2f}, &r));
        CHECK_EQ(r.targets, picks ? 2 * SEQUENCES - 1 : 2 * SEQUENCES * LENGTH);
        out[2 * k] = r.loss, out[2 * k + 1] = r.grad_norm;
    }
    tess_step_free(s);
    tess_graph_free(g);
}

TEST(ops_that_look_along_sequences_which_ranks_share)
{
    const int ranks = tess_ranks();
    if (ranks != 2 && ranks != 4) return;
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    for (int k = 0; k < 8; k++) {
        double got[2 * STEPS] = {0}, want[2 * STEPS] = {0};
        tess_step_conf conf = training;
        conf.micro = 2;
        conf.recompute_every = k & 2 ? 1 : 0;
        conf.deterministic = !(k & 4);
        if (tess_rank() == 0) look_along(1, k & 1, &conf, want);
        tess_ranks_tell(want, sizeof want);
        look_along(ranks, k & 1, &conf, got);
        for (int i = 0; i < 2 * steps; i++)
            if (conf.deterministic ? got[i] != want[i] : fabs(got[i] - want[i]) > 1e-4 * want[i])
                CHECK_SAY("case %d: step %d: %.17g, alone %.17g", k, i / 2, got[i], want[i]);
    }
    tess_stop();
}
