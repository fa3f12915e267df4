/* Who else runs: the processes that mpirun or srun started together, and what their main threads agree on. How they
 * speak with each other is together.c's, the tiles that they send each other are message.c's. A program that no
 * launcher started is rank 0 of 1 and never touches MPI. */
#include "ranks.h"
#include "base.h"
#include <string.h>

static struct {
    int rank, size, local, locals, near;
    bool joined, pretends;
    bool failed; /* the ranks agreed that they did */
} ranks = {.size = 1, .locals = 1, .near = 1};

int tess_rank_here(int *ranks_here)
{
    *ranks_here = ranks.locals;
    return ranks.local;
}

int tess_ranks_near(void)
{
    return ranks.near;
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

/* Where every rank's number says its place on its machine, and all machines have as many, these have them in a row. */
static void find_near(void)
{
    int64_t most[3] = {ranks.rank % ranks.locals != ranks.local, ranks.locals, -ranks.locals};
    tess_ranks_most(most, 3);
    ranks.near = most[0] || most[1] != -most[2] ? 1 : ranks.locals;
}

tess_status tess_ranks_open(void)
{
    TESS_TRY(tess_together_open(&ranks.rank, &ranks.size, &ranks.local, &ranks.locals));
    ranks.joined = true;
    tess_self_is(ranks.rank, ranks.size);
    find_near();
    return TESS_OK;
}

void tess_ranks_close(void)
{
    tess_together_close();
    ranks.joined = ranks.failed = false;
    ranks.rank = ranks.local = 0;
    ranks.size = ranks.locals = ranks.near = 1;
    tess_self_is(0, 1);
}

/* ---- the main threads, all together ---- */

void tess_ranks_barrier(void)
{
    if (ranks.joined) tess_together_meet();
}

void tess_ranks_sum(double *x, int n)
{
    if (ranks.joined) tess_together_reduce(x, n, TESS_SUM_REALS);
}

void tess_ranks_sum_counts(int64_t *x, int n)
{
    if (ranks.joined) tess_together_reduce(x, n, TESS_SUM_COUNTS);
}

void tess_ranks_most(int64_t *x, int n)
{
    if (ranks.joined) tess_together_reduce(x, n, TESS_MOST_COUNTS);
}

void tess_ranks_tell(void *data, size_t bytes)
{
    if (ranks.joined) tess_together_tell(data, bytes, 0);
}

static void gather(const void *mine, size_t bytes, void *all, bool here)
{
    if (ranks.joined)
        tess_together_gather(mine, bytes, all, here);
    else
        memcpy(all, mine, bytes);
}

void tess_ranks_gather(const void *mine, size_t bytes, void *all)
{
    gather(mine, bytes, all, false);
}

void tess_ranks_gather_here(const void *mine, size_t bytes, void *all)
{
    gather(mine, bytes, all, true);
}

double tess_ranks_clock(void)
{
    return ranks.joined && ranks.size > 1 ? tess_together_clock() : 0;
}

tess_status tess_ranks_agree(tess_status status)
{
    if (!ranks.joined || ranks.size == 1 || ranks.failed) return status;
    int64_t first = status == TESS_OK ? -ranks.size : -ranks.rank; /* of those that failed, the first */
    tess_ranks_most(&first, 1);
    if (first == -ranks.size) return TESS_OK;
    const int failed = (int)-first;
    ranks.failed = true;
    struct {
        tess_status status;
        char text[1000];
    } said = {.status = status};
    if (failed == ranks.rank) snprintf(said.text, sizeof said.text, "%s", tess_error_text());
    tess_together_tell(&said, sizeof said, failed);
    int64_t differs = status != said.status || strncmp(said.text, tess_error_text(), sizeof said.text - 1);
    tess_ranks_most(&differs, 1);
    char where[32];
    snprintf(where, sizeof where, "rank %d", failed);
    return !differs ? status : tess_error(said.status, where, "%s", said.text);
}
