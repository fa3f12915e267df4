/* Run by mpirun with any number of ranks: what each of them holds and sends at the stages of ZeRO, against theory. With
 * P parameters in bf16 a rank holds 2 bytes of weight each, 4 of gradient while it lives, 4 of master and 8 of moments;
 * between steps no gradient lives. Of N ranks, from step to step:
 *
 *     stage 0         (2 + 12) P
 *     stages 1 and 2  2 P + 12 P / N
 *     stage 3         (2 + 12) P / N
 *
 * Groups of C ranks hold so with C in the place of N, and gradients too.
 */
#include "codelets/codelets.h"
#include "graph/tessera_ops.h"
#include "tests/graph/gpt.h"
#include "tests/mpi/ranks.h"
#include <malloc.h>

enum { B = 1, T = 64, V = 512 };

#define OK(expr)                                                                                                       \
    do {                                                                                                               \
        if ((expr) != TESS_OK) CHECK_SAY("%s: %s", #expr, tess_error_text());                                          \
    } while (0)

struct net {
    tess_graph *g;
    tess_tensor *ids, *targets, *loss;
    tess_step *s;
};

static struct net make(const tess_graph_conf *conf, int layers, int64_t c)
{
    struct net n = {.g = tess_graph_new(conf)};
    n.ids = tess_input(n.g, "ids", B, T);
    n.targets = tess_input(n.g, "targets", B, T);
    tess_tensor *table = tess_param(n.g, "table", V, c, TESS_NORMAL(0.02f));
    tess_tensor *x = tess_embedding(n.ids, table, tess_param(n.g, "positions", T, c, TESS_NORMAL(0.02f)));
    n.loss = tess_cross_entropy(gpt_blocks(n.g, x, layers, 4, c), tess_param(n.g, "head", V, c, TESS_NORMAL(0.02f)),
                                NULL, n.targets);
    /* One micro-batch a rank; with clipping all gradients wait for their norm, so that all of them live at its end. */
    tess_step_conf step = {.train = true, .micro = tess_ranks(), .optimizer = tess_adamw()};
    step.optimizer.clip = 1;
    OK(tess_step_new(n.loss, &step, &n.s));
    return n;
}

static void run(struct net *n, int64_t step)
{
    int32_t id[B * T], target[B * T];
    for (int i = 0; i < B * T; i++) {
        id[i] = (i * 37 + tess_rank()) % V;
        target[i] = (i * 53 + 11) % V;
    }
    tess_step_result r;
    OK(tess_step_feed(n->s, n->ids, id));
    OK(tess_step_feed(n->s, n->targets, target));
    OK(tess_step_run(n->s, &(tess_step_input){.step = step, .seed = 7, .lr = 1e-3}, &r));
}

static void drop(struct net *n)
{
    tess_step_free(n->s);
    tess_graph_free(n->g);
}

static tess_graph_conf conf_of(tess_dtype dtype, int stage)
{
    return (tess_graph_conf){.dtype = dtype, .grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = stage}};
}

static int64_t everywhere(int64_t x)
{
    tess_ranks_sum_counts(&x, 1);
    return x;
}

/* ---- memory ---- */

/* Elements of matrices, of vectors, and of what a rank's share may be off by: a row of each tile of a matrix, all of a
 * vector of at most 4096 rows. */
struct size {
    int64_t matrices, vectors, grain_matrices, grain_vectors;
};

static struct size size_of(const tess_graph *g)
{
    struct size s = {0};
    for (int k = 0; k < tess_graph_params(g); k++) {
        const tess_tensor *p = tess_graph_param(g, k);
        int64_t shape[3];
        if (tess_tensor_shape(p, shape) == 2) {
            s.matrices += shape[0] * shape[1];
            s.grain_matrices += tess_param_tiles(p) * shape[1];
        } else {
            s.vectors += shape[0];
            s.grain_vectors += shape[0];
        }
    }
    return s;
}

/* How often a step of one micro-batch needs a parameter together, when it keeps none: forward, and backward where that
 * reads it. A bias it does not read, nor a table; the head's loss and gradient are one. */
static int uses(const char *name)
{
    static const char *const once[] = {"bias", "table", "positions", "head"};
    for (int k = 0; k < 4; k++)
        if (strstr(name, once[k])) return 1;
    return 2;
}

static int ranks_of_group; /* 0: all */

/* Shared out, the ranks' parts are all of it together and each is a share of it within the grain; else each is all. */
static void check_part(const char *what, int stage, uint64_t part, int64_t whole, int64_t grain, bool shared)
{
    int64_t n = !shared ? 1 : ranks_of_group ? ranks_of_group : tess_ranks(), sum = everywhere((int64_t)part);
    if (sum != whole * tess_ranks() / n)
        CHECK_SAY("stage %d: all ranks' %s are %lld bytes, expected %lld", stage, what, (long long)sum,
                  (long long)(whole * tess_ranks() / n));
    if (llabs((int64_t)part - whole / n) > (shared ? grain : 0))
        CHECK_SAY("stage %d: %s of rank %d are %llu bytes, expected %lld within %lld", stage, what, tess_rank(),
                  (unsigned long long)part, (long long)(whole / n), (long long)grain);
}

static void check_plans(int first)
{
    for (int stage = first; stage < 4; stage++) {
        tess_graph_conf conf = conf_of(TESS_BF16, stage);
        conf.grid.group = ranks_of_group;
        struct net n = make(&conf, 3, 768);
        struct size s = size_of(n.g);
        tess_holds plan;
        tess_step_holds(n.s, &plan);
        check_part("weights", stage, plan.resident[TESS_ROLE_WEIGHT], 2 * s.matrices + 4 * s.vectors,
                   2 * s.grain_matrices + 4 * s.grain_vectors, stage > 2);
        check_part("masters", stage, plan.resident[TESS_ROLE_MASTER], 4 * s.matrices, 4 * s.grain_matrices, stage > 0);
        check_part("moments", stage, plan.resident[TESS_ROLE_MOMENT], 8 * (s.matrices + s.vectors),
                   8 * (s.grain_matrices + s.grain_vectors), stage > 0);
        CHECK_EQ(plan.resident[TESS_ROLE_GRADIENT], 0);
        /* Gradients: all are there when their norm is known. Sliced, beside a rank's own there are those of one
         * parameter that are on their way: its own whole, the others' parts of its slice. */
        int64_t all = 4 * (s.matrices + s.vectors), moving = 2 * 4 * 4 * 768 * 768;
        int64_t shared = ranks_of_group ? ranks_of_group : tess_ranks(), own = stage ? all / shared : all,
                peak = (int64_t)plan.peak[TESS_ROLE_GRADIENT];
        int64_t grain = 4 * (s.grain_matrices + s.grain_vectors);
        if (tess_ranks() == 1 || stage == 0) moving = 4 * 4 * 768 * 768;
        if (peak < own - grain || peak > own + grain + moving)
            CHECK_SAY("stage %d: gradients are at most %lld bytes at a time, expected %lld and up to %lld on their way",
                      stage, (long long)peak, (long long)own, (long long)moving);
        drop(&n);
    }
}

TEST(the_plan_of_each_rank_is_the_formula)
{
    check_plans(0);
    for (ranks_of_group = 1; ranks_of_group < tess_ranks(); ranks_of_group++)
        if (tess_ranks() % ranks_of_group == 0) check_plans(1);
    ranks_of_group = 0;
}

/* A copy is what a rank of the group holds of the weights that backward gathers, in a peak that the activations and
 * what is gathered at a time have without it. */
TEST(copies_of_groups_are_a_share_of_the_weights)
{
    const int group = tess_ranks() % 2 ? 1 : 2;
    if (tess_ranks() < 2) return;
    tess_holds plan[2];
    int64_t copied = 0;
    for (int k = 0; k < 2; k++) {
        tess_graph_conf conf = conf_of(TESS_BF16, 3);
        conf.grid.group = group, conf.grid.copies = k;
        struct net n = make(&conf, 3, 768);
        tess_step_holds(n.s, &plan[k]);
        for (int i = 0; i < tess_graph_params(n.g) && k; i++) {
            const tess_tensor *p = tess_graph_param(n.g, i);
            int64_t shape[3], matrix = tess_tensor_shape(p, shape) == 2;
            if (uses(tess_tensor_name(p)) == 2) copied += matrix ? 2 * shape[0] * shape[1] : 4 * shape[0];
        }
        drop(&n);
    }
    const int64_t more = (int64_t)(plan[1].peak[TESS_ROLE_ACTIVATION] - plan[0].peak[TESS_ROLE_ACTIVATION]);
    if (llabs(more - copied / group) > copied / 50)
        CHECK_SAY("groups of %d: copies take %lld bytes, expected %lld", group, (long long)more,
                  (long long)(copied / group));
}

#ifndef __SANITIZE_ADDRESS__ /* whose own memory is as large */
/* Memory of this process that is no file's, by the kernel, when what was freed has gone back. */
static int64_t resident(void)
{
    malloc_trim(0);
    char line[200];
    long long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %lld kB", &kib) == 1) break;
    if (f) fclose(f);
    return kib * 1024;
}

/* What is held after a step, and of how many parameters. A cap of a byte has every buffer that is free go back. */
static int64_t held(int stage, int layers, struct size *size)
{
    OK(tess_start(&(tess_machine){.workers = 1, .cpu_bytes = 1}));
    tess_graph_conf conf = conf_of(TESS_BF16, stage);
    struct net n = make(&conf, layers, 768);
    *size = size_of(n.g);
    OK(tess_graph_init(n.g, 1));
    for (int64_t k = 0; k < 2; k++) run(&n, k);
    int64_t bytes = resident();
    drop(&n);
    tess_stop();
    return bytes;
}

/* Of 28 million parameters: those of five layers less those of one. What Open MPI keeps of messages that came before
 * they were awaited depends on who runs when: what one of three measurements finds on every rank counts. */
TEST(the_kernel_sees_what_the_formula_says)
{
    enum { CONSTANT = 6 << 20, TRIES = 3 }; /* of handles and tasks, and pages in use in part */
    struct size small, large;
    for (int stage = 0; stage < 4; stage++) {
        held(stage, 1, &small); /* what is made once, by libraries */
        int64_t bytes, off = 1;
        double want = 0;
        for (int k = 0; k < TRIES && off; k++) {
            bytes = -held(stage, 1, &small);
            bytes += held(stage, 5, &large);
            double p = (double)(large.matrices + large.vectors - small.matrices - small.vectors), n = tess_ranks();
            want = (stage < 3 ? 2 * p : 2 * p / n) + (stage < 1 ? 12 * p : 12 * p / n);
            off = everywhere(!(fabs((double)bytes - want) <= 0.05 * want + CONSTANT));
        }
        if (off)
            CHECK_SAY("stage %d: rank %d holds %.1f MiB, expected %.1f", stage, tess_rank(), (double)bytes / (1 << 20),
                      want / (1 << 20));
    }
}
#endif

/* ---- messages ---- */

static int64_t width = 96; /* of the model */

/* The bytes that all ranks send in a step. */
static int64_t traffic(tess_graph_conf *conf)
{
    struct net n = make(conf, 3, width);
    OK(tess_graph_init(n.g, 1));
    uint64_t before, after, received;
    run(&n, 0);
    tess_message_traffic(&before, &received);
    run(&n, 1);
    tess_message_traffic(&after, &received);
    int64_t mine = (int64_t)(after - before), all = everywhere(mine);
    tess_holds plan;
    tess_step_holds(n.s, &plan);
    CHECK_EQ(plan.sent, mine);
    if (fabs((double)mine * tess_ranks() - (double)all) > 0.1 * (double)all)
        CHECK_SAY("stage %d: rank %d sends %lld of all ranks' %lld bytes", conf->grid.stage, tess_rank(),
                  (long long)mine, (long long)all);
    drop(&n);
    return all;
}

/* Every byte of a gradient goes to its owner but for the owner's own: N - 1 times the gradient. The same for each time
 * that a weight, or the sum, comes back from its owners. Of N / C groups of C ranks each has a weight come C - 1 times,
 * and sums go to one rank of each; where they have copies the first time is from all ranks. Then two exact sums and a
 * third, up a tree and down. */
static int64_t theory(const tess_graph_conf *conf, bool keeps)
{
    struct net n = make(conf, 3, width);
    const int64_t ranks = tess_ranks(), group = conf->grid.group ? conf->grid.group : ranks, groups = ranks / group;
    int64_t bytes = 0;
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        const tess_tensor *p = tess_graph_param(n.g, k);
        int64_t shape[3], matrix = tess_tensor_shape(p, shape) == 2, elements = shape[0] * (matrix ? shape[1] : 1);
        int64_t weight = elements * (matrix && conf->dtype == TESS_BF16 ? 2 : 4),
                gradient = (conf->grid.sent == TESS_F32 ? 4 : 2) * elements, codes = elements / 64 * 68;
        int64_t back = weight, times = 1;
        const bool gathers = conf->grid.stage == 3 && elements > conf->grid.persist,
                   blocks = matrix && shape[1] % 64 == 0;
        if (blocks && conf->grid.gradient_codes) gradient = codes;
        if (blocks && gathers && conf->grid.weight_codes) back = codes;
        if (conf->grid.stage == 0) back = gradient;
        if (gathers && !keeps) times = uses(tess_tensor_name(p));
        bytes += (ranks - 1) * gradient + (times - conf->grid.copies) * (group - 1) * groups * back;
        bytes += conf->grid.copies ? (ranks - 1) * back : (groups - 1) * 4 * elements;
    }
    drop(&n);
    return bytes + (ranks - 1) * 2 * 3 * (int64_t)tess_exact_bytes();
}

/* Of each size that divides: at all stages states by groups, at the last one copies by groups, too. */
static void check_groups(tess_graph_conf conf)
{
    for (int group = 1; group < tess_ranks(); group++)
        for (int way = 0; tess_ranks() % group == 0 && way < (conf.grid.stage == 3 ? 2 : 1); way++) {
            conf.grid.group = group, conf.grid.copies = way;
            CHECK_EQ(traffic(&conf), theory(&conf, false));
            conf.grid.sent = TESS_BF16;
            CHECK_EQ(traffic(&conf), theory(&conf, false));
            conf.grid.sent = TESS_F32;
        }
}

TEST(bytes_sent_are_those_of_theory)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    for (int dtype = 0; dtype < 2; dtype++)
        for (int stage = 0; stage < 4; stage++) {
            tess_graph_conf conf = conf_of((tess_dtype)dtype, stage);
            int64_t sent = traffic(&conf);
            CHECK_EQ(sent, theory(&conf, false));
            conf.grid.sent = TESS_BF16;
            CHECK_EQ(traffic(&conf), theory(&conf, false));
            conf.grid.sent = TESS_F32;
            if (stage > 0) check_groups(conf);
            if (stage < 3) continue;
            conf.grid.live = conf.grid.reuse = 1 << 30; /* forward's are there still when backward comes */
            int64_t kept = traffic(&conf);
            CHECK_EQ(kept, theory(&conf, true));
            CHECK(tess_ranks() == 1 || kept < sent);
            conf.grid.live = conf.grid.reuse = 0;
            conf.grid.persist = 1000; /* vectors rest on every rank */
            CHECK_EQ(traffic(&conf), theory(&conf, false));
        }
    tess_stop();
}

/* A block of 64 elements is 68 bytes; vectors are what they were. */
TEST(codes_take_their_bytes)
{
    OK(tess_start(&(tess_machine){.workers = 1}));
    width = 128;
    for (int way = 0; way < 8; way++) {
        tess_graph_conf conf = conf_of((tess_dtype)(way % 2), way < 6 ? 3 : 1);
        conf.grid.gradient_codes = way != 2 && tess_ranks() > 1;
        conf.grid.weight_codes = way != 3 && way < 6;
        conf.grid.sent = way == 4 ? TESS_F16 : TESS_F32; /* of vectors alone */
        if (way == 5) conf.grid.group = tess_ranks() % 2 ? 1 : 2, conf.grid.copies = tess_ranks() > 2;
        CHECK_EQ(traffic(&conf), theory(&conf, false));
    }
    width = 96;
    tess_stop();
}

/* What theory comes to, in parameters' bytes that a rank sends for each of its N - 1 in N: 2, 2, 2 and 3. The third of
 * stage 3 lacks what backward does not read. */
TEST(theory_is_two_and_three_times_the_parameters)
{
    for (int stage = 0; stage < 4; stage++) {
        tess_graph_conf conf = conf_of(TESS_F32, stage);
        struct net n = make(&conf, 3, 96);
        int64_t all = tess_graph_param_elements(n.g), twice = all;
        for (int k = 0; k < tess_graph_params(n.g) && stage == 3; k++) {
            int64_t shape[3], rank = tess_tensor_shape(tess_graph_param(n.g, k), shape);
            if (uses(tess_tensor_name(tess_graph_param(n.g, k))) == 2) all += shape[0] * (rank == 2 ? shape[1] : 1);
        }
        all += twice;
        int64_t scalars = 6 * (int64_t)tess_exact_bytes() * (tess_ranks() - 1);
        CHECK_EQ(theory(&conf, false) - scalars, 4 * all * (tess_ranks() - 1));
        CHECK(stage < 3 ? all == 2 * twice : all <= 3 * twice && (double)all > 2.7 * (double)twice);
        drop(&n);
    }
}

/* ---- a program's mistakes ---- */

static void refused(const struct net *n, const char *part)
{
    CHECK_EQ(tess_step_run(n->s, &(tess_step_input){.lr = 1e-3}, NULL), TESS_INVALID);
    CHECK_HAS(tess_error_text(), part);
}

/* What one rank lacks all of them are told, and none waits for the messages of a step that does not begin. */
TEST(a_rank_that_is_not_ready)
{
    tess_graph_conf conf = conf_of(TESS_BF16, 2);
    int32_t ids[B * T] = {0}, out[B * T] = {V};
    const int last = tess_ranks() - 1;
    struct net n = make(&conf, 1, 96);
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    OK(tess_graph_init(n.g, 1));
    CHECK_EQ(tess_step_feed(n.s, n.ids, tess_rank() == last ? out : ids), tess_rank() == last ? TESS_INVALID : TESS_OK);
    OK(tess_step_feed(n.s, n.targets, ids));
    refused(&n, "ids: was not fed");
    run(&n, 0); /* and then it does */
    drop(&n);
    conf.grid.data *= 2; /* more than there are */
    tess_graph *g = tess_graph_new(&conf);
    tess_tensor *in = tess_input(g, "ids", B, T), *w = tess_param(g, "w", V, 64, TESS_ONE);
    OK(tess_step_new(tess_cross_entropy(tess_embedding(in, w, NULL), w, NULL, in),
                     &(tess_step_conf){.train = true, .optimizer = tess_adamw()}, &n.s));
    refused(&n, "ranks, but");
    tess_step_free(n.s);
    tess_graph_free(g);
    tess_stop();
}

/* On the last rank a task fails, and what it was to write does not come; the others find that their loss is NaN. */
static void break_on_the_last(const tess_call *c)
{
    for (int64_t i = 0; i < c->out.rows * c->out.columns; i++) tess_store(c->out.data, i, c->dtype, NAN);
    if (tess_rank() == tess_ranks() - 1) tess_call_fail(c, "on purpose");
}
static void pass(const tess_call *c)
{
    for (int64_t i = 0; i < c->d_out.rows * c->d_out.columns; i++)
        tess_accumulate(c->d_in[0].data, i, c->dtype, c->d_in[0].add, tess_load(c->d_out.data, i, c->dtype));
}

/* All ranks say whose failure it was. None looks by itself for what is not finite: the others would not be there. */
TEST(a_task_that_fails_on_one_rank)
{
    static const tess_op_conf conf = {.name = "breaks",
                                      .takes = "x",
                                      .forward = {.cpu = break_on_the_last},
                                      .backward = {.cpu = pass},
                                      .reads = TESS_READS_GRADIENTS};
    const tess_op *breaks;
    const tess_graph_conf of = conf_of(TESS_F32, 0);
    tess_graph *g = tess_graph_new(&of);
    int32_t ids[B * T] = {0};
    tess_step *s;
    OK(tess_op_register(&conf, &breaks));
    tess_tensor *in = tess_input(g, "ids", B, T), *w = tess_param(g, "w", V, 64, TESS_NORMAL(0.1f));
    tess_tensor *x = tess_embedding(in, w, NULL);
    OK(tess_step_new(tess_cross_entropy(tess_apply(breaks, &x, 1, NULL), w, NULL, in),
                     &(tess_step_conf){.train = true, .micro = tess_ranks(), .optimizer = tess_adamw()}, &s));
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    OK(tess_graph_init(g, 1));
    OK(tess_step_feed(s, in, ids));
    CHECK_EQ(tess_step_run(s, &(tess_step_input){.lr = 1e-3}, NULL), TESS_FAILED);
    CHECK_HAS(tess_error_text(), "step 1: ");
    CHECK_HAS(tess_error_text(), "on purpose");
    tess_step_free(s);
    tess_graph_free(g);
    tess_stop();
}

/* Updates that come late are made before another step begins: a rank that fails in them is not waited for. */
TEST(late_updates_that_fail_on_one_rank)
{
    const tess_graph_conf conf = conf_of(TESS_F32, 1);
    struct net n = make(&conf, 1, 64);
    tess_step *late, *other;
    tess_step_conf step = {.train = true, .micro = tess_ranks(), .optimizer = tess_adamw(), .layout.late = true};
    int32_t ids[B * T] = {0};
    step.optimizer.clip = 1;
    OK(tess_step_new(n.loss, &step, &late));
    OK(tess_step_new(n.loss, &(tess_step_conf){.micro = tess_ranks()}, &other));
    OK(tess_start(&TESS_MACHINE_DEFAULT));
    OK(tess_graph_init(n.g, 1));
    tess_step *both[] = {late, other};
    for (int k = 0; k < 2; k++) {
        OK(tess_step_feed(both[k], n.ids, ids));
        OK(tess_step_feed(both[k], n.targets, ids));
    }
    OK(tess_step_run(late, &(tess_step_input){.lr = 1e-3}, NULL));
    if (tess_rank() == tess_ranks() - 1) tess_work_fail(&(tess_work){.buf = NULL}, "update: on purpose");
    CHECK_EQ(tess_step_run(other, NULL, NULL), TESS_FAILED);
    CHECK_HAS(tess_error_text(), "update: on purpose");
    tess_step_free(late);
    tess_step_free(other);
    drop(&n);
    tess_stop();
}
