/* The runtime's ranks and messages: the cases of ranks.c, on one to four ranks. */
#define CHECK_MAIN
#include "tests/tools/run.h"

static void run_case(int ranks, const char *name)
{
    const char *program = getenv("TESS_RANKS");
    if (!program) {
        fprintf(stderr, "TESS_RANKS is not set, expected the path of the program ranks\n");
        exit(99);
    }
    const char *const arg[] = {name, NULL};
    run_finish(ranks ? run_start_ranks(ranks, program, arg) : run_start_program(program, arg));
}

/* On `ranks` ranks; 0: without a launcher. */
static void check_case(int ranks, const char *name)
{
    run_case(ranks, name);
    if (ran.status || !strstr(ran.out, "done"))
        CHECK_SAY("%s on %d ranks: exit status %d, %s%s", name, ranks, ran.status, ran.out, ran.err);
}

static void check_all(const char *name)
{
    for (int ranks = 0; ranks <= 4; ranks++) check_case(ranks, name);
}

TEST(tiles_of_all_sizes)
{
    check_all("sizes");
}
TEST(parts_of_a_tile)
{
    check_all("parts");
}
TEST(more_than_a_gigabyte)
{
    check_case(2, "gigabyte");
}
TEST(order)
{
    check_all("round_trips");
}
/* Where MPI shares no memory between processes, ranks do without bells. */
TEST(without_memory_that_is_shared)
{
    setenv("OMPI_MCA_osc", "^sm", 1);
    check_case(2, "round_trips");
    unsetenv("OMPI_MCA_osc");
}
TEST(tiles_that_rest_on_disk)
{
    fresh();
    for (int ranks = 2; ranks <= 3; ranks++) check_case(ranks, "capped");
}
TEST(sums)
{
    check_all("sums");
}
TEST(agreement)
{
    static const char *const names[] = {"agree_same", "agree_first", "agree_last", "agree_some", "agree_none"};
    for (int k = 0; k < 5; k++)
        for (int ranks = 0; ranks <= 3; ranks++) check_case(ranks, names[k]);
    check_case(4, "agree_some");
}
TEST(agreement_after_a_failure)
{
    static const char *const names[] = {"agree_nested", "agree_anew", "one_leaves"};
    for (int k = 0; k < 3; k++)
        for (int ranks = 2; ranks <= 4; ranks++) check_case(ranks, names[k]);
}
TEST(a_start_that_fails_on_one_rank)
{
    for (int ranks = 2; ranks <= 3; ranks++) check_case(ranks, "one_cannot");
}
TEST(ranks_that_ask_for_different_carriers)
{
    for (int ranks = 2; ranks <= 3; ranks++) check_case(ranks, "other_carrier");
}
TEST(one_of_many_ranks)
{
    check_case(0, "pretends");
}

static void check_down(int ranks, const char *name)
{
    double start = run_clock();
    run_case(ranks, name);
    CHECK(run_clock() - start < 15); /* of which a second and more are the start */
    CHECK(ran.status > 0);
}

TEST(one_that_ends_takes_all_down)
{
    check_down(3, "out_of_memory");
    EXPECT_RANKS_ERROR(1, "rank 2: memory: no ", "left for bookkeeping");
    check_down(2, "leaves_early");
    EXPECT_RANKS_ERROR(ran.status, "rank 1: died");
    check_down(2, "a_bug");
    CHECK_HAS(ran.err, "tessera: bug: rank 1: ");
    CHECK(!strstr(ran.err, "tessera: error"));
    check_down(2, "exits");
    EXPECT_RANKS_ERROR(ran.status, "rank 1: died");
}

TEST(a_message_that_mpi_refuses_takes_all_down)
{
    check_down(2, "refused");
    EXPECT_RANKS_ERROR(1, "rank 1: ", "MPI: a message ", "failed: MPI_ERR_TRUNCATE");
}

TEST(a_message_that_never_comes_ends_all_in_one_line)
{
    check_down(2, "silent");
    EXPECT_RANKS_ERROR(1, "rank 0: ranks: nothing moved", "the main thread waits for the end of the list");
}
