/* The main of tests that mpirun runs: all ranks run all cases; the first says how many passed. */
#ifndef TESS_TESTS_RANKS_H
#define TESS_TESTS_RANKS_H
#include "check.h"
#include "runtime.h"

struct check_case *check_first, **check_last = &check_first;
int check_failures, check_skipped;

/* Compiled with the NCCL of tests/gpu, that is what carries messages. */
TEST(messages_are_carried_by_what_is_tested)
{
    tess_status status = tess_start(&(tess_machine){.workers = 1});
    if (status != TESS_OK) CHECK_SAY("%s", tess_error_text());
#ifdef TESS_NCCL_OVER_MPI
    CHECK_STR(tess_message_carrier(), tess_ranks() > 1 ? "NCCL 2.0.0" : "MPI");
#else
    CHECK_STR(tess_message_carrier(), "MPI");
#endif
    tess_stop();
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
        if (argc > 1 && !strstr(c->name, argv[1])) continue;
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
