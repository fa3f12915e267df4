/* How the main threads of all ranks speak with each other: MPI, started and ended, and the calls that all make
 * together.
 */
#include "runtime/base/base.h"
#include "runtime/ranks/devices.h"
#include "runtime/ranks/ranks.h"
#include <dlfcn.h>
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    int rank, ranks;
    MPI_Comm main, here; /* the main threads' own: of all ranks, of this machine's */
    atomic_uint turns;   /* waits begun, and ended */
} all;

MPI_Comm tess_messages_comm = MPI_COMM_NULL;

/* ---- the end of all ---- */

/* Open MPI's mpirun ends all ranks when one of them ends before MPI_Finalize. Asked to by MPI_Abort it does the same,
 * but the message that this prints first is passed through it while it already ends, and 4.1 crashes over it now and
 * then. */
static bool mpirun_looks(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE");
}

/* Whatever rank ends with another status than 0, mpirun prints two pages about it, behind all that the ranks have said.
 * Asked for the end of all by PMIx it ends them with that status and says nothing. The library is there once MPI has
 * started, where this was not built with one of its own. */
static void ask_mpirun(int status)
{
#if defined OMPI_MAJOR_VERSION && OMPI_MAJOR_VERSION == 4
    void *library = mpirun_looks() ? dlopen("libpmix.so.2", RTLD_NOW | RTLD_NOLOAD) : NULL;
    int (*ask)(int, const char *, void *, size_t) = NULL;
    if (library) *(void **)&ask = dlsym(library, "PMIx_Abort");
    if (ask) ask(status, "", NULL, 0);
#else
    (void)status;
#endif
}

static int end_status;

static void end_now(int number)
{
    (void)number;
    _exit(end_status);
}

/* What tess_ranks_abort does while there are others. */
static void end_all(int status)
{
    end_status = status;
    /* MPI may be in no state to tell the others; that this one ended, its launcher sees. */
    signal(SIGALRM, end_now);
    alarm(3);
    fflush(stdout);
    ask_mpirun(status);
    if (!mpirun_looks()) MPI_Abort(MPI_COMM_WORLD, status);
}

enum { END_SECONDS = 3, SAID_US = 100000 }; /* what was said goes another way, and is to be there first */

void tess_together_end(int status)
{
#if defined OMPI_MAJOR_VERSION && OMPI_MAJOR_VERSION == 4
    if (!mpirun_looks()) return;
    signal(SIGTERM, SIG_DFL);
    usleep(SAID_US);
    if (all.rank == 0) ask_mpirun(status);
    sleep(END_SECONDS);
#else
    (void)status;
#endif
}

/* ---- together and apart ---- */

const char *tess_mpi_version(void)
{
    static char text[MPI_MAX_LIBRARY_VERSION_STRING];
    int n;
    if (MPI_Get_library_version(text, &n) != MPI_SUCCESS) return "MPI";
    text[strcspn(text, ",\n")] = 0; /* what follows is who packed it */
    return text;
}

tess_status tess_together_open(int *rank, int *ranks, int *local, int *locals)
{
    int level;
    tess_gpu_load_at_once(); /* before MPI, which may know CUDA */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return tess_error(TESS_FAILED, "MPI", "did not start (is this program linked with the MPI of its launcher?)");
    MPI_Comm_dup(MPI_COMM_WORLD, &all.main);
    MPI_Comm_dup(MPI_COMM_WORLD, &tess_messages_comm);
    MPI_Comm_set_errhandler(tess_messages_comm, MPI_ERRORS_RETURN); /* what carries messages says what failed */
    MPI_Comm_rank(all.main, &all.rank);
    MPI_Comm_size(all.main, &all.ranks);
    MPI_Comm_split_type(all.main, MPI_COMM_TYPE_SHARED, all.rank, MPI_INFO_NULL, &all.here);
    MPI_Comm_rank(all.here, local);
    MPI_Comm_size(all.here, locals);
    *rank = all.rank;
    *ranks = all.ranks;
    tess_self_ends_by(end_all);
    return TESS_OK;
}

MPI_Comm tess_ranks_here_comm(void)
{
    return all.here;
}

void tess_together_close(void)
{
    MPI_Comm_free(&tess_messages_comm);
    MPI_Comm_free(&all.here);
    MPI_Comm_free(&all.main);
    MPI_Finalize();
    tess_self_ends_by(NULL);
}

/* ---- calls that all make ---- */

/* One rank may have much to do before the others hear of it: they leave it the cores meanwhile. */
static void wait_for(MPI_Request *r)
{
    int done = 0;
    all.turns++;
    for (int idle = 0; MPI_Test(r, &done, MPI_STATUS_IGNORE), !done; idle++) {
        if (idle < 64)
            sched_yield();
        else
            usleep(idle < 1024 ? 20 : 500);
    }
    all.turns++;
}

unsigned tess_ranks_turns(void)
{
    return all.turns;
}

void tess_together_reduce(void *x, int n, tess_reduction how)
{
    MPI_Request r;
    MPI_Iallreduce(MPI_IN_PLACE, x, n, how == TESS_SUM_REALS ? MPI_DOUBLE : MPI_INT64_T,
                   how == TESS_MOST_COUNTS ? MPI_MAX : MPI_SUM, all.main, &r);
    wait_for(&r);
}

void tess_together_tell(void *data, size_t bytes, int from)
{
    MPI_Request r;
    MPI_Ibcast(data, (int)bytes, MPI_BYTE, from, all.main, &r);
    wait_for(&r);
}

void tess_together_gather(const void *mine, size_t bytes, void *of_all, bool here)
{
    MPI_Request r;
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, of_all, (int)bytes, MPI_BYTE, here ? all.here : all.main, &r);
    wait_for(&r);
}

void tess_together_meet(void)
{
    MPI_Request r;
    MPI_Ibarrier(all.main, &r);
    wait_for(&r);
}

enum { TIMES = 20 }; /* that a clock is asked for */

/* Rank 0 is asked for its time, some times over, by one rank after the other: the answer that came back soonest was
 * given half way. */
static double ask_clock(void)
{
    double best = INFINITY, ahead = 0, theirs, question = 0;
    for (int k = 0; k < TIMES; k++) {
        const double asked = tess_seconds();
        MPI_Sendrecv(&question, 1, MPI_DOUBLE, 0, 0, &theirs, 1, MPI_DOUBLE, 0, 0, all.main, MPI_STATUS_IGNORE);
        const double took = tess_seconds() - asked;
        if (took < best) best = took, ahead = theirs - (asked + took / 2);
    }
    return ahead;
}

static void answer_clock(int rank)
{
    for (int k = 0; k < TIMES; k++) {
        double now;
        MPI_Recv(&now, 1, MPI_DOUBLE, rank, 0, all.main, MPI_STATUS_IGNORE);
        now = tess_seconds();
        MPI_Send(&now, 1, MPI_DOUBLE, rank, 0, all.main);
    }
}

double tess_together_clock(void)
{
    double ahead = 0;
    for (int r = 1; r < all.ranks; r++) {
        tess_together_meet(); /* sleeps until its turn */
        if (all.rank == 0) answer_clock(r);
        if (all.rank == r) ahead = ask_clock();
    }
    int least = all.rank;
    MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_INT, MPI_MIN, all.here);
    /* A machine has one clock: asking is off by a part of the way there and back, which short messages take, too. */
    return least == 0 && ahead > -1e-3 && ahead < 1e-3 ? 0 : ahead;
}

bool tess_rank_is_there(int rank)
{
    return rank < tess_ranks();
}
