/* Run by mpirun with several ranks: a graph of a program's own to files and back, where ranks see different things.
 * What a call promises to all of them it keeps, and a failure that the program answers is over. */
#include "models/models.h"
#include "tests/mpi/ranks.h"
#include <sys/stat.h>
#include <unistd.h>

enum { B = 1, T = 16, C = 32, V = 64 };

#define OK(expr)                                                                                                       \
    do {                                                                                                               \
        if ((expr) != TESS_OK) CHECK_SAY("%s: %s", #expr, tess_error_text());                                          \
    } while (0)
#define WRONG(expr, part)                                                                                              \
    do {                                                                                                               \
        CHECK_EQ(expr, TESS_INVALID);                                                                                  \
        CHECK_HAS(tess_error_text(), part);                                                                            \
    } while (0)

static tess_graph *graph;
static tess_tensor *ids, *targets;
static tess_step *step;
static char top[64]; /* a directory of all ranks */

static void begin(void)
{
    tess_grid grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = 2};
    graph = tess_graph_new(&(tess_graph_conf){.grid = grid});
    ids = tess_input(graph, "ids", B, T);
    targets = tess_input(graph, "targets", B, T);
    tess_tensor *table = tess_param(graph, "table", V, C, TESS_NORMAL(0.05f));
    tess_tensor *loss = tess_cross_entropy(tess_embedding(ids, table, NULL), table, NULL, targets);
    OK(tess_step_new(loss, &(tess_step_conf){.train = true, .micro = tess_ranks(), .optimizer = tess_adamw()}, &step));
    OK(tess_start(&(tess_machine){.workers = 1}));
    snprintf(top, sizeof top, "/var/tmp/tessera-store-ranks-%d", (int)getppid()); /* mpirun's */
    mkdir(top, 0777);
    tess_ranks_barrier();
    CHECK(chdir(top) == 0);
}

static void end(void)
{
    tess_step_free(step);
    tess_graph_free(graph);
    tess_stop();
    CHECK(chdir("/") == 0);
    tess_ranks_barrier();
    char line[100];
    snprintf(line, sizeof line, "rm -rf %s", top);
    if (tess_rank() == 0) CHECK_EQ(system(line), 0);
    tess_ranks_barrier();
}

static tess_status run(bool feeds)
{
    static const int32_t id[B * T] = {1, 2, 3};
    tess_step_result r;
    if (feeds) TESS_TRY(tess_step_feed(step, ids, id));
    TESS_TRY(tess_step_feed(step, targets, id));
    return tess_step_run(step, &(tess_step_input){.seed = 1, .lr = 1e-3}, &r);
}

static bool last(void)
{
    return tess_rank() == tess_ranks() - 1;
}

/* Weights that are not there are drawn instead; then a rank forgets to feed, and nobody waits for its messages. */
TEST(a_failure_that_is_answered_is_over)
{
    begin();
    for (int turn = 0; turn < 2; turn++) WRONG(tess_graph_load(graph, "missing"), "missing");
    OK(tess_graph_init(graph, 1));
    const double start = tess_seconds();
    WRONG(run(!last()), "ids: was not fed");
    CHECK(tess_seconds() - start < 20);
    OK(run(true));
    end();
}

/* One rank alone passes what will not do: all are told, and all go on. */
TEST(what_one_rank_fails_in_all_fail_in)
{
    tess_position at = {.step = 3}, wrong = {.step = -1};
    bool found;
    begin();
    OK(tess_graph_init(graph, 1));
    for (int turn = 0; turn < 2; turn++) {
        WRONG(tess_graph_checkpoint(graph, "ck", 1, last() ? &wrong : &at), "step -1, 1 to keep");
        WRONG(tess_graph_save(graph, last() ? NULL : "model"), "is NULL");
        WRONG(tess_graph_load(graph, last() ? NULL : "model"), "");
        WRONG(tess_graph_resume(graph, last() ? NULL : "ck", &at, &found), "is NULL");
    }
    OK(tess_graph_checkpoint(graph, "ck", 1, &at));
    at.step = 0;
    OK(tess_graph_resume(graph, "ck", &at, &found));
    CHECK(found && at.step == 3);
    OK(run(true));
    end();
}

/* Rank 0 alone sees a checkpoint, or all but it do: what it sees counts, and none draws weights while others load. */
TEST(what_rank_0_sees_of_checkpoints_counts)
{
    char own[32];
    begin();
    OK(tess_graph_init(graph, 1));
    OK(tess_graph_checkpoint(graph, "ck", 1, &(tess_position){.step = 5, .seed = 7}));
    snprintf(own, sizeof own, "own-%d", tess_rank());
    mkdir(own, 0777);
    tess_ranks_barrier();
    for (int turn = 0; turn < 2; turn++) {
        const bool sees = (tess_rank() == 0) == !turn;
        tess_position at = {.step = 1};
        bool found = true;
        if (!sees) CHECK(chdir(own) == 0);
        if (turn) {
            OK(tess_graph_resume(graph, "ck", &at, &found));
            CHECK(!found && at.step == 1);
        } else {
            WRONG(tess_graph_resume(graph, "ck", &at, &found), "rank 1: ck/step-00000005/states.safetensors");
            CHECK(!found && at.step == 1);
        }
        CHECK(chdir(top) == 0);
    }
    tess_position at = {.step = 1};
    bool found;
    OK(tess_graph_resume(graph, "ck", &at, &found));
    CHECK(found && at.step == 5 && at.seed == 7);
    OK(run(true));
    end();
}
