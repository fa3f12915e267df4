/* Runs that begin before the last has ended: the bits are those of runs one by one, and nothing of the host's waits. */
#define CHECK_MAIN
#include "tests/graph/nets.h"
#include <starpu.h>

enum { STEPS = 5 };

struct way {
    bool ahead;
    double clip;
    const char *sched;
    int workers, micro;
    bool late;
};

struct made {
    double loss[STEPS], norm[STEPS];
    uint64_t print;
};

static void feed(struct net *n, tess_step *s, int64_t step)
{
    const int64_t at = step % 4 * 3 * B * T;
    OK(tess_step_feed(s, n->ids, n->id + at));
    OK(tess_step_feed(s, n->targets, n->target + at));
}

static tess_step_input input_of(int64_t step)
{
    return (tess_step_input){.step = step, .seed = 3, .lr = 1e-2 / (double)(1 + step)};
}

/* Steps with inputs, rates and dropout of their own. */
static struct made train(const struct way *w)
{
    struct net n;
    struct made m = {.print = FINGERPRINT};
    tess_optimizer o = tess_adamw();
    o.clip = w->clip;
    tess_step *s =
        net_step(&n, &(tess_graph_conf){.tile_rows = T, .tile_elements = 64 * C}, net_gpt,
                 &(tess_step_conf){.train = true, .micro = w->micro, .optimizer = o, .layout.late = w->late});
    OK(tess_start(&(tess_machine){.workers = w->workers, .sched = w->sched}));
    OK(tess_graph_init(n.g, 5));
    CHECK(tess_step_overlaps(s));
    for (int64_t k = 0; k <= STEPS; k++) {
        const tess_step_input in = input_of(k);
        tess_step_result r;
        if (k < STEPS) feed(&n, s, k);
        if (k < STEPS) OK(tess_step_begin(s, &in));
        if (k < STEPS && !w->ahead) OK(tess_step_end(s, &r));
        if (k > 0 && w->ahead) OK(tess_step_end(s, &r));
        const int64_t of = w->ahead ? k - 1 : k;
        if (of >= 0 && of < STEPS) m.loss[of] = r.loss, m.norm[of] = r.grad_norm;
    }
    mark_params(&m.print, n.g, TESS_PARTS);
    net_free(&n, s);
    tess_stop();
    return m;
}

static void same(const struct way *w, const struct made *a)
{
    const struct made b = train(w);
    CHECK(a->print == b.print);
    for (int k = 0; k < STEPS; k++) CHECK(a->loss[k] == b.loss[k] && a->norm[k] == b.norm[k]);
    for (int k = 1; k < STEPS; k++) CHECK(b.loss[k] != b.loss[k - 1]);
}

TEST(bits)
{
    static const double clips[] = {0, 0.5};
    for (int c = 0; c < 2; c++)
        for (int late = 0; late <= (clips[c] > 0); late++) {
            const struct made one = train(&(struct way){.clip = clips[c], .workers = 1, .micro = 1, .late = late});
            if (clips[c] > 0) CHECK(one.norm[0] > clips[c]);
            for (int workers = 1; workers <= 3; workers += 2)
                same(&(struct way){.ahead = true, .clip = clips[c], .workers = workers, .micro = 1, .late = late},
                     &one);
            same(&(struct way){.ahead = true, .clip = clips[c], .sched = "lws", .workers = 3, .micro = 1, .late = late},
                 &one);
        }
}

/* ---- who waits for whom ---- */

/* Reads a piece of the table as a program's own task would: what updates it waits until that is released. */
static starpu_data_handle_t hold(struct net *n)
{
    tess_lent lent;
    tess_tensor *table = tess_graph_find_param(n->g, "table");
    OK(tess_param_lend(table, 0, TESS_MASTER, &lent));
    CHECK_EQ(starpu_data_acquire(lent.handle, STARPU_R), 0);
    tess_param_unmap(table, 0, TESS_MASTER);
    return lent.handle;
}

static tess_step *begin(struct net *n, const tess_step_conf *conf)
{
    tess_step *s = net_step(n, &(tess_graph_conf){.tile_rows = T}, net_gpt, conf); /* few tasks: all may be submitted */
    OK(tess_start(&(tess_machine){.workers = 2}));
    OK(tess_graph_init(n->g, 5));
    return s;
}

static void submit(struct net *n, tess_step *s, int64_t step)
{
    feed(n, s, step);
    OK(tess_step_begin(s, &(tess_step_input){.step = step, .seed = 3, .lr = 1e-2}));
}

/* Whoever waited for the first step, to feed the second or to submit it, would wait for ever. */
TEST(submission_waits_for_no_step)
{
    struct net n;
    tess_step *s = begin(&n, &(tess_step_conf){.train = true, .optimizer = tess_adamw()});
    const starpu_data_handle_t held = hold(&n);
    submit(&n, s, 0);
    submit(&n, s, 1);
    CHECK(starpu_task_nsubmitted() > 0);
    starpu_data_release(held);
    OK(tess_step_end(s, NULL));
    OK(tess_step_end(s, NULL));
    net_free(&n, s);
    tess_stop();
}

/* When what came of a step is read, workers have tasks of the next. */
TEST(tasks_are_there_when_a_step_ends)
{
    struct net n;
    tess_step_result r = {0};
    tess_step *s = begin(&n, &(tess_step_conf){.train = true, .optimizer = tess_adamw()});
    for (int64_t k = 0; k < 4; k++) {
        if (k == 0) submit(&n, s, k);
        const starpu_data_handle_t held = hold(&n); /* behind the update of this step */
        submit(&n, s, k + 1);
        OK(tess_step_end(s, &r));
        CHECK(r.loss > 0 && r.targets > 0);
        CHECK(starpu_task_nsubmitted() > 0);
        starpu_data_release(held);
    }
    OK(tess_step_end(s, NULL));
    net_free(&n, s);
    tess_stop();
}

/* ---- failures ---- */

/* A step whose rate spoils all, one that fails of it, and perhaps one behind that; returns the parameters. */
static uint64_t spoil(bool ahead, double clip)
{
    struct net n;
    tess_optimizer o = tess_adamw();
    uint64_t print = FINGERPRINT;
    o.clip = clip;
    tess_step *s = begin(&n, &(tess_step_conf){.train = true, .optimizer = o});
    for (int64_t k = 0; k < 2 + ahead; k++) {
        feed(&n, s, k);
        OK(tess_step_begin(s, &(tess_step_input){.step = k, .seed = 3, .lr = k ? 1e-2 : 1e30}));
        if (ahead ? k == 1 : k == 0) OK(tess_step_end(s, NULL));
    }
    CHECK_EQ(tess_step_end(s, NULL), TESS_FAILED);
    CHECK_HAS(tess_error_text(), "step 2: the loss is ");
    CHECK_HAS(tess_error_text(), "the first tensor that is not finite: ");
    tess_error_clear();
    WRONG(tess_step_end(s, NULL), "step: no run of it is under way");
    mark_params(&print, n.g, TESS_PARTS);
    OK(tess_graph_init(n.g, 5));
    feed(&n, s, 0);
    OK(tess_step_run(s, &(tess_step_input){.seed = 3, .lr = 1e-2}, NULL));
    net_free(&n, s);
    tess_stop();
    return print;
}

TEST(a_loss_that_is_not_finite)
{
    CHECK(spoil(true, 0) == spoil(false, 0));
    CHECK(spoil(true, 1) == spoil(false, 1));
}

/* Waits for the tasks of what is under way without asking what came of them. */
static void all_end(void)
{
    while (starpu_task_nsubmitted() > 0) nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

enum { SPOILED = V - 1 }; /* its row of the table is NaN, and no other parameter comes to be so */

static void begin_words(struct net *n, tess_step *s, int64_t step, int32_t word)
{
    for (int i = 0; i < B * T; i++) n->id[i] = word;
    OK(tess_step_feed(s, n->ids, n->id));
    OK(tess_step_begin(s, &(tess_step_input){.step = step, .lr = 1e-2}));
    all_end();
}

/* A step of which nothing is finite, and with `ahead` one behind it that is as it should be, which begins when the
 * failure has been taken with the step before it; returns the parameters. */
static uint64_t one_spoiled(bool ahead)
{
    struct net n = {.g = tess_graph_new(&(tess_graph_conf){.tile_rows = T})};
    uint64_t print = FINGERPRINT;
    tess_step *s;
    float *row;
    n.ids = tess_input(n.g, "ids", B, T);
    tess_tensor *table = tess_param(n.g, "table", V, C, TESS_NORMAL(0.2f));
    tess_tensor *head = tess_param(n.g, "head", V, C, TESS_NORMAL(0.2f));
    OK(tess_step_new(tess_cross_entropy(tess_embedding(n.ids, table, NULL), head, NULL, n.ids),
                     &(tess_step_conf){.train = true, .optimizer = tess_adamw()}, &s));
    OK(tess_start(&(tess_machine){.workers = 2}));
    OK(tess_graph_init(n.g, 5));
    OK(tess_param_map(table, 0, TESS_MASTER, TESS_RW, &row));
    CHECK_EQ(tess_param_pieces(table), 1);
    for (int k = 0; k < C; k++) row[SPOILED * C + k] = NAN;
    tess_param_unmap(table, 0, TESS_MASTER);
    OK(tess_graph_round(n.g));
    for (int64_t k = 0; k < 2 + ahead; k++) {
        begin_words(&n, s, k, k == 1 ? SPOILED : 1);
        if (k == ahead) OK(tess_step_end(s, NULL));
    }
    CHECK_EQ(tess_step_end(s, NULL), TESS_FAILED);
    CHECK_HAS(tess_error_text(), "step 2: the loss is nan");
    tess_error_clear();
    mark_params(&print, n.g, TESS_PARTS);
    net_free(&n, s);
    tess_stop();
    return print;
}

TEST(a_failure_that_was_taken_before_the_next_begins)
{
    CHECK(one_spoiled(true) == one_spoiled(false));
}

/* Who begins runs and leaves is not waited for by name. */
TEST(left_under_way)
{
    for (int kind = 0; kind < 3; kind++) {
        struct net n;
        tess_step *s = begin(&n, &(tess_step_conf){.train = true, .optimizer = tess_adamw()});
        submit(&n, s, 0);
        if (kind) submit(&n, s, 1);
        if (kind == 2) tess_graph_free(n.g);
        if (kind == 2) WRONG(tess_step_end(s, NULL), "step: its graph was freed");
        tess_step_free(s);
        if (kind < 2) tess_graph_free(n.g);
        tess_stop();
    }
}

TEST(mistakes)
{
    struct net n;
    tess_step *other, *skips;
    const tess_step_conf conf = {.train = true, .optimizer = tess_adamw()};
    tess_step_conf skip = conf;
    skip.skips = true;
    tess_step *s = begin(&n, &conf);
    OK(tess_step_new(n.loss, &(tess_step_conf){0}, &other));
    WRONG(tess_step_end(s, NULL), "step: no run of it is under way (tess_step_begin)");
    submit(&n, s, 0);
    OK(tess_step_feed(other, n.ids, n.id));
    OK(tess_step_feed(other, n.targets, n.target));
    WRONG(tess_step_run(other, NULL, NULL), "step: another of its graph is under way (tess_step_end waits for it)");
    WRONG(tess_step_run(s, &(tess_step_input){.lr = 1}, NULL), "step: a run of it is under way");
    submit(&n, s, 1);
    WRONG(tess_step_begin(s, &(tess_step_input){.lr = 1}), "step: two runs of it are under way");
    WRONG(tess_step_feed(s, n.ids, n.id), "ids: two runs are under way");
    OK(tess_step_end(s, NULL));
    OK(tess_step_end(s, NULL));
    OK(tess_step_run(other, NULL, NULL));
    OK(tess_step_new(n.loss, &skip, &skips));
    CHECK(!tess_step_overlaps(skips) && !tess_step_overlaps(NULL));
    submit(&n, skips, 2);
    WRONG(tess_step_begin(skips, &(tess_step_input){.lr = 1}), "step: a run of it is under way, whose outcome");
    OK(tess_step_end(skips, NULL));
    tess_step_free(other);
    tess_step_free(skips);
    net_free(&n, s);
    tess_stop();
}
