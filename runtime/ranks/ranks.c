/* Who else runs: the processes that mpirun or srun started together, and what their main threads agree on. How they
 * speak with each other is together.c's, the tiles that they send each other are message.c's. A program that no
 * launcher started is rank 0 of 1 and never touches MPI. */
#include "runtime/ranks/ranks.h"
#include "runtime/base/base.h"
#include <string.h>

static struct {
    int rank, size, local, locals, near;
    bool joined, pretends;
    int64_t meetings; /* so far: of what all ranks do together each is one, so all count alike */
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

void tess_ranks_pretend_near(int rank, int size, int near)
{
    tess_ranks_pretend(rank, size);
    ranks.local = rank % near;
    ranks.locals = ranks.near = near;
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
    ranks.joined = false;
    ranks.meetings = 0;
    ranks.rank = ranks.local = 0;
    ranks.size = ranks.locals = ranks.near = 1;
    tess_self_is(0, 1);
}

/* ---- the main threads, all together ---- */

static bool meet(void)
{
    ranks.meetings += ranks.joined;
    return ranks.joined;
}

void tess_ranks_barrier(void)
{
    if (meet()) tess_together_meet();
}

void tess_ranks_sum(double *x, int n)
{
    if (meet()) tess_together_reduce(x, n, TESS_SUM_REALS);
}

void tess_ranks_sum_counts(int64_t *x, int n)
{
    if (meet()) tess_together_reduce(x, n, TESS_SUM_COUNTS);
}

void tess_ranks_most(int64_t *x, int n)
{
    if (meet()) tess_together_reduce(x, n, TESS_MOST_COUNTS);
}

void tess_ranks_tell(void *data, size_t bytes)
{
    if (meet()) tess_together_tell(data, bytes, 0);
}

static void gather(const void *mine, size_t bytes, void *all, bool here)
{
    if (meet())
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
    return meet() && ranks.size > 1 ? tess_together_clock() : 0;
}

/* ---- agreement, see docs/decisions/0031-agreements.md ---- */

/* Returns the first of the ranks that fail, the number of ranks where none does. *stays becomes true where any rank's
 * is. */
static int first_failed(bool fails, bool *stays)
{
    int64_t most[2] = {fails ? -ranks.rank : -ranks.size, *stays};
    tess_ranks_most(most, 2);
    *stays = most[1];
    return (int)-most[0];
}

/* All hear what rank `first` says, whose failure is from now on everybody's. Returns its status. */
static tess_status hear(int first, tess_status status, const char *text)
{
    struct {
        tess_status status;
        char text[1000];
    } said = {.status = status};
    if (first == ranks.rank) snprintf(said.text, sizeof said.text, "%s", text);
    tess_together_tell(&said, sizeof said, first);
    int64_t differs = status != said.status || strncmp(said.text, text, sizeof said.text - 1);
    tess_ranks_most(&differs, 1);
    char where[32];
    snprintf(where, sizeof where, "rank %d", first);
    if (differs) tess_error(said.status, where, "%s", said.text);
    tess_error_agree(ranks.meetings);
    return said.status;
}

tess_status tess_ranks_agree(tess_status status)
{
    if (!ranks.joined || ranks.size == 1) return status;
    if (status != TESS_OK && tess_error_agreed() == ranks.meetings) return status; /* it goes up, and all know */
    bool stays = true;
    const int first = first_failed(status != TESS_OK, &stays);
    return first == ranks.size ? TESS_OK : hear(first, status, tess_error_text());
}

void tess_ranks_part(void)
{
    char text[1000];
    snprintf(text, sizeof text, "left while others go on, its last error: %s",
             tess_error_text()[0] ? tess_error_text() : "none");
    for (bool stays = false; ranks.joined; stays = false) {
        const int first = first_failed(true, &stays);
        if (!stays) return;
        (void)hear(first, TESS_FAILED, text);
    }
}
