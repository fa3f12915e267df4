/* The main of tests that mpirun runs: all ranks run all cases, or those whose names hold one of the arguments; the
 * first says how many passed. */
#ifndef TESS_TESTS_RANKS_H
#define TESS_TESTS_RANKS_H
#include "runtime/runtime.h"
#include "tests/check.h"

struct check_case *check_first, **check_last = &check_first;
int check_failures, check_skipped;

#ifdef TESS_NCCL_OVER_MPI
TEST(messages_are_carried_by_the_nccl_of_tests)
{
    CHECK_STR(tess_message_carrier(), "NCCL 2.0.0");
    for (int by_mpi = 0; by_mpi < 2; by_mpi++) {
        tess_status status =
            tess_start(&(tess_machine){.workers = 1, .carrier = by_mpi ? TESS_CARRIER_MPI : TESS_CARRIER_AUTO});
        if (status != TESS_OK) CHECK_SAY("%s", tess_error_text());
        CHECK_STR(tess_message_carrier(), by_mpi ? "MPI" : "NCCL 2.0.0");
        tess_stop();
    }
}
#endif

static bool chosen(const char *name, int words, char **word)
{
    for (int i = 0; i < words; i++)
        if (strstr(name, word[i])) return true;
    return words == 0;
}

int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    if (tess_ranks_join() != TESS_OK) {
        fprintf(stderr, "%s\n", tess_error_text());
        return 1;
    }
    for (struct check_case *c = check_first; c; c = c->next) {
        int64_t failures;
        if (!chosen(c->name, argc - 1, argv + 1)) continue;
        check_failures = 0;
        c->run();
        failures = check_failures;
        fflush(stdout);
        tess_ranks_sum_counts(&failures, 1);
        if (failures && tess_rank() == 0) printf("FAILED %s with %d ranks\n", c->name, tess_ranks());
        *(failures ? &failed : &passed) += 1;
    }
    if (tess_rank() == 0) printf("%d passed, %d failed, 0 skipped\n", passed, failed);
    tess_ranks_leave();
    return failed > 0;
}

#endif
