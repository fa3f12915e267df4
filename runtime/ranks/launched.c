/* Joining the processes that a launcher started together, and leaving them. */
#include "runtime/base/base.h"
#include "runtime/ranks/ranks.h"
#include <stdlib.h>

/* What launchers leave in the environment of those they start, as MPI libraries know them. */
static bool launched(void)
{
    static const char *const mark[] = {"OMPI_COMM_WORLD_SIZE", "PMIX_RANK", "PMI_RANK", "PMI_SIZE"};
    for (size_t i = 0; i < sizeof mark / sizeof *mark; i++)
        if (getenv(mark[i])) return true;
    return false;
}

/* Slurm started several, which cannot tell: each would do the whole run, into the same files. */
static tess_status check_slurm(void)
{
    const char *tasks = getenv("SLURM_STEP_NUM_TASKS"), *task = getenv("SLURM_PROCID");
    if (tess_ranks() > 1 || !tasks || !task || atoi(tasks) < 2) return TESS_OK;
    tess_self_is(atoi(task), 1); /* so that one speaks */
    return tess_error(TESS_INVALID, "Slurm",
                      "srun started %d tasks that do not find each other (srun --mpi=pmix, or "
                      "mpirun inside the allocation)",
                      atoi(tasks));
}

void tess_ranks_say_unjoined(void)
{
    static const char *const size[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"},
                             *const rank[] = {"OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"};
    static bool said;
    if (said || tess_ranks_launched() || tess_ranks_pretended()) return;
    for (size_t i = 0; i < sizeof size / sizeof *size && !said; i++) {
        const char *n = getenv(size[i]), *k = getenv(rank[i]);
        if (!n || !k || atoi(n) < 2) continue;
        if (!atoi(k))
            tess_note("a launcher started %s of this program, but it did not call tess_ranks_join: each runs by itself",
                      n);
        said = true;
    }
}

tess_status tess_ranks_join(void)
{
    if (tess_ranks_launched() || tess_ranks_pretended()) return TESS_OK;
    if (!launched()) return check_slurm();
    int level;
    TESS_TRY(tess_ranks_open());
    if (tess_ranks() > 1) {
        tess_watch_start(tess_ranks_here_comm(), tess_rank());
        tess_bells_open(tess_ranks_here_comm(), tess_rank(), tess_ranks());
    }
    tess_share_take();
    TESS_TRY(check_slurm());
    MPI_Query_thread(&level);
    if (level < MPI_THREAD_MULTIPLE)
        return tess_error(TESS_FAILED, "MPI",
                          "this MPI serves one thread at a time (one with MPI_THREAD_MULTIPLE is needed)");
    return TESS_OK;
}

void tess_ranks_leave_with(int status)
{
    if (!tess_ranks_launched()) return;
    tess_watch_forgive();
    tess_ranks_part(); /* from here on ranks may end in any order */
    if (status) tess_together_end(status);
    tess_bells_close();
    tess_watch_stop();
    tess_ranks_close();
}

void tess_ranks_leave(void)
{
    tess_ranks_leave_with(0);
}
