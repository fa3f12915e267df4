/* Who else runs: the processes that mpirun or srun started together, and what their main threads do all together. The
 * tiles that ranks send each other are message.c's. A program that no launcher started is rank 0 of 1 and never touches
 * MPI. */
#include "base_impl.h"
#include "devices.h"
#include "ranks_impl.h"
#include <math.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    int rank, size, local, locals;
    bool joined, pretends;
    bool failed;         /* the ranks agreed that they did */
    MPI_Comm main, here; /* the main threads' own: of all ranks, of this machine's */
} ranks = {.size = 1, .locals = 1};

MPI_Comm tess_messages_comm = MPI_COMM_NULL;

int tess_rank_here(int *ranks_here)
{
    *ranks_here = ranks.locals;
    return ranks.local;
}
bool tess_ranks_pretended(void)
{
    return ranks.pretends;
}

void tess_ranks_pretend(int rank, int size)
{
    TESS_ASSERT(!ranks.joined);
    ranks.pretends = true;
    ranks.rank = rank;
    ranks.size = size;
    tess_self_is(rank, size);
}

bool tess_ranks_launched(void)
{
    return ranks.joined;
}

/* ---- the end of all ---- */

/* Open MPI's mpirun ends all ranks when one of them ends before MPI_Finalize. Asked to by MPI_Abort it does the same,
 * but the message that this prints first is passed through it while it already ends, and 4.1 crashes over it now and
 * then. */
static bool mpirun_looks(void)
{
    return getenv("OMPI_COMM_WORLD_SIZE");
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
    if (!mpirun_looks()) MPI_Abort(MPI_COMM_WORLD, status);
}

/* ---- together and apart ---- */

tess_status tess_ranks_open(void)
{
    int level;
    tess_gpu_load_at_once(); /* before MPI, which may know CUDA */
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level) != MPI_SUCCESS)
        return tess_error(TESS_FAILED, "MPI", "did not start (is this program linked with the MPI of its launcher?)");
    ranks.joined = true;
    MPI_Comm_dup(MPI_COMM_WORLD, &ranks.main);
    MPI_Comm_dup(MPI_COMM_WORLD, &tess_messages_comm);
    MPI_Comm_set_errhandler(tess_messages_comm, MPI_ERRORS_RETURN); /* what carries messages says what failed */
    MPI_Comm_rank(ranks.main, &ranks.rank);
    MPI_Comm_size(ranks.main, &ranks.size);
    MPI_Comm_split_type(ranks.main, MPI_COMM_TYPE_SHARED, ranks.rank, MPI_INFO_NULL, &ranks.here);
    MPI_Comm_rank(ranks.here, &ranks.local);
    MPI_Comm_size(ranks.here, &ranks.locals);
    tess_self_is(ranks.rank, ranks.size);
    tess_self_ends_by(end_all);
    return TESS_OK;
}

MPI_Comm tess_ranks_here_comm(void)
{
    return ranks.here;
}

void tess_ranks_close(void)
{
    MPI_Comm_free(&tess_messages_comm);
    MPI_Comm_free(&ranks.here);
    MPI_Comm_free(&ranks.main);
    MPI_Finalize();
    ranks.joined = ranks.failed = false;
    ranks.rank = ranks.local = 0;
    ranks.size = ranks.locals = 1;
    tess_self_is(0, 1);
    tess_self_ends_by(NULL);
}

/* ---- the main threads, all together ---- */

/* One rank may have much to do before the others hear of it: they leave it the cores meanwhile. */
static void wait_for(MPI_Request *r)
{
    for (int idle = 0, done = 0;; idle++) {
        MPI_Test(r, &done, MPI_STATUS_IGNORE);
        if (done) return;
        if (idle < 64)
            sched_yield();
        else
            usleep(idle < 1024 ? 20 : 500);
    }
}

static void reduce(void *x, int n, MPI_Datatype type, MPI_Op op)
{
    MPI_Request r;
    if (!ranks.joined) return;
    MPI_Iallreduce(MPI_IN_PLACE, x, n, type, op, ranks.main, &r);
    wait_for(&r);
}

static void tell(void *data, size_t bytes, int from)
{
    MPI_Request r;
    MPI_Ibcast(data, (int)bytes, MPI_BYTE, from, ranks.main, &r);
    wait_for(&r);
}

static void gather(const void *mine, size_t bytes, void *all, MPI_Comm among)
{
    MPI_Request r;
    if (!ranks.joined) {
        memcpy(all, mine, bytes);
        return;
    }
    MPI_Iallgather(mine, (int)bytes, MPI_BYTE, all, (int)bytes, MPI_BYTE, among, &r);
    wait_for(&r);
}

void tess_ranks_barrier(void)
{
    MPI_Request r;
    if (!ranks.joined) return;
    MPI_Ibarrier(ranks.main, &r);
    wait_for(&r);
}

void tess_ranks_sum(double *x, int n)
{
    reduce(x, n, MPI_DOUBLE, MPI_SUM);
}

void tess_ranks_sum_counts(int64_t *x, int n)
{
    reduce(x, n, MPI_INT64_T, MPI_SUM);
}

void tess_ranks_most(int64_t *x, int n)
{
    reduce(x, n, MPI_INT64_T, MPI_MAX);
}

void tess_ranks_tell(void *data, size_t bytes)
{
    if (ranks.joined) tell(data, bytes, 0);
}

void tess_ranks_gather(const void *mine, size_t bytes, void *all)
{
    gather(mine, bytes, all, ranks.main);
}

void tess_ranks_gather_here(const void *mine, size_t bytes, void *all)
{
    gather(mine, bytes, all, ranks.here);
}

enum { TIMES = 20 }; /* that a clock is asked for */

/* Rank 0 is asked for its time, some times over, by one rank after the other: the answer that came back soonest was
 * given half way. */
static double ask_clock(void)
{

    double best = INFINITY, ahead = 0, theirs, question = 0;
    for (int k = 0; k < TIMES; k++) {
        const double asked = tess_seconds();
        MPI_Sendrecv(&question, 1, MPI_DOUBLE, 0, 0, &theirs, 1, MPI_DOUBLE, 0, 0, ranks.main, MPI_STATUS_IGNORE);
        const double took = tess_seconds() - asked;
        if (took < best) best = took, ahead = theirs - (asked + took / 2);
    }
    return ahead;
}

static void answer_clock(int rank)
{

    for (int k = 0; k < TIMES; k++) {
        double now;
        MPI_Recv(&now, 1, MPI_DOUBLE, rank, 0, ranks.main, MPI_STATUS_IGNORE);
        now = tess_seconds();
        MPI_Send(&now, 1, MPI_DOUBLE, rank, 0, ranks.main);
    }
}

double tess_ranks_clock(void)
{
    double ahead = 0;
    for (int r = 1; r < ranks.size && ranks.joined; r++) {
        tess_ranks_barrier(); /* sleeps until its turn */
        if (ranks.rank == 0) answer_clock(r);
        if (ranks.rank == r) ahead = ask_clock();
    }
    int least = ranks.rank;
    if (ranks.joined) MPI_Allreduce(MPI_IN_PLACE, &least, 1, MPI_INT, MPI_MIN, tess_ranks_here_comm());
    /* A machine has one clock: asking is off by a part of the way there and back, which short messages take, too. */
    return least == 0 && ahead > -1e-3 && ahead < 1e-3 ? 0 : ahead;
}

tess_status tess_ranks_agree(tess_status status)
{
    if (!ranks.joined || ranks.size == 1 || ranks.failed) return status;
    struct {
        int good, rank;
    } first = {status == TESS_OK, ranks.rank};
    reduce(&first, 1, MPI_2INT, MPI_MINLOC);
    if (first.good) return TESS_OK;
    ranks.failed = true;
    struct {
        tess_status status;
        char text[1000];
    } said = {.status = status};
    if (first.rank == ranks.rank) snprintf(said.text, sizeof said.text, "%s", tess_error_text());
    tell(&said, sizeof said, first.rank);
    int same = status == said.status && !strncmp(said.text, tess_error_text(), sizeof said.text - 1);
    reduce(&same, 1, MPI_INT, MPI_MIN);
    char where[32];
    snprintf(where, sizeof where, "rank %d", first.rank);
    return same ? status : tess_error(said.status, where, "%s", said.text);
}
