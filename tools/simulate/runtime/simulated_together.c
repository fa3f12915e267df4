/* How the main threads of ranks that are simulated speak with each other. They are threads of one process, so what one
 * has another can read: who calls last does the work for all, and for those that are not there, who bring what the rank
 * brings that does their work. It takes the time that MPI's messages would, a latency of the network for each doubling
 * of the ranks. */
#include "runtime/base/base.h"
#include "runtime/ranks/ranks.h"
#include "tools/simulate/runtime/simulated_impl.h"
#include <math.h>
#include <string.h>

/* Those who meet: all ranks, or a node's. */
struct tess_meeting {
    starpu_pthread_mutex_t held; /* SimGrid's conditions want one */
    starpu_pthread_cond_t ended;
    int first, ranks;  /* the first of them, and how many they are */
    int members, came; /* how many of them are simulated, and have come this time */
    unsigned long turn;
    void **of; /* what each brought; NULL: it is not there */
};

static struct tess_meeting *meetings_new(const tess_cluster *c)
{
    const int nodes = c->ranks / c->of->ranks_here;
    struct tess_meeting *m = tess_alloc((size_t)(nodes + 1) * sizeof *m);
    memset(m, 0, (size_t)(nodes + 1) * sizeof *m);
    for (int i = 0; i <= nodes; i++) {
        m[i].first = i ? (i - 1) * c->of->ranks_here : 0;
        m[i].ranks = i ? c->of->ranks_here : c->ranks;
        m[i].of = tess_alloc((size_t)m[i].ranks * sizeof *m[i].of);
        memset(m[i].of, 0, (size_t)m[i].ranks * sizeof *m[i].of);
        for (int r = 0; r < m[i].ranks; r++) m[i].members += tess_rank_is_there(m[i].first + r);
    }
    return m;
}

void tess_simulated_join(tess_cluster *cluster, int rank)
{
    tess_cluster_here = cluster;
    tess_cluster_rank = rank;
    if (!cluster->meetings) cluster->meetings = meetings_new(cluster);
    tess_self_shares(&cluster->said);
}

/* The last to come does the work of all. */
static void meet(bool here, void *mine, void (*work)(struct tess_meeting *m, size_t detail), size_t detail)
{
    const tess_cluster *c = tess_cluster_here;
    struct tess_meeting *m = &c->meetings[here ? 1 + tess_cluster_rank / c->of->ranks_here : 0];
    starpu_pthread_mutex_lock(&m->held);
    m->of[tess_cluster_rank - m->first] = mine;
    const unsigned long turn = m->turn;
    if (++m->came == m->members) {
        if (work) work(m, detail);
        m->came = 0;
        m->turn++;
        starpu_pthread_cond_broadcast(&m->ended);
    }
    while (m->turn == turn) starpu_pthread_cond_wait(&m->ended, &m->held);
    starpu_pthread_mutex_unlock(&m->held);
    if (m->ranks > 1 && c->of->machine.net.latency > 0)
        starpu_sleep((float)(c->of->machine.net.latency * ceil(log2(m->ranks))));
}

/* ---- what they do ---- */

static void give_all(const struct tess_meeting *m, size_t bytes)
{
    for (int r = 1; r < m->ranks; r++)
        if (m->of[r]) memcpy(m->of[r], m->of[0], bytes);
}

/* Adds up in the order of ranks, into what the first one brought, which is always there. */
static void sum_reals(struct tess_meeting *m, size_t n)
{
    double **x = (double **)m->of;
    for (int r = 1; r < m->ranks; r++)
        for (size_t i = 0; i < n && x[r]; i++) x[0][i] += x[r][i];
    for (size_t i = 0; i < n; i++) x[0][i] *= tess_fold_ranks(tess_cluster_here->of->fold);
    give_all(m, n * sizeof **x);
}

static void sum_counts(struct tess_meeting *m, size_t n)
{
    int64_t **x = (int64_t **)m->of;
    for (int r = 1; r < m->ranks; r++)
        for (size_t i = 0; i < n && x[r]; i++) x[0][i] += x[r][i];
    for (size_t i = 0; i < n; i++) x[0][i] *= tess_fold_ranks(tess_cluster_here->of->fold);
    give_all(m, n * sizeof **x);
}

static void most_counts(struct tess_meeting *m, size_t n)
{
    int64_t **x = (int64_t **)m->of;
    for (int r = 1; r < m->ranks; r++)
        for (size_t i = 0; i < n && x[r]; i++)
            if (x[r][i] > x[0][i]) x[0][i] = x[r][i];
    give_all(m, n * sizeof **x);
}

void tess_together_reduce(void *x, int n, tess_reduction how)
{
    meet(false, x, how == TESS_SUM_REALS ? sum_reals : how == TESS_SUM_COUNTS ? sum_counts : most_counts, (size_t)n);
}

struct told {
    void *data;
    bool tells;
};

static void tell(struct tess_meeting *m, size_t bytes)
{
    struct told **told = (struct told **)m->of;
    const void *from = NULL;
    for (int r = 0; r < m->ranks; r++)
        if (told[r] && told[r]->tells) from = told[r]->data;
    for (int r = 0; r < m->ranks; r++)
        if (told[r] && !told[r]->tells) memcpy(told[r]->data, from, bytes);
}

void tess_together_tell(void *data, size_t bytes, int from)
{
    struct told mine = {data, tess_cluster_rank == from};
    meet(false, &mine, tell, bytes);
}

struct gathered {
    const void *mine;
    char *all;
};

static void gather(struct tess_meeting *m, size_t bytes)
{
    struct gathered **g = (struct gathered **)m->of;
    for (int to = 0; to < m->ranks; to++)
        for (int r = 0; r < m->ranks && g[to]; r++) {
            const int from = tess_fold_of(tess_cluster_here->of->fold, m->first + r) - m->first;
            memcpy(g[to]->all + (size_t)r * bytes, g[from >= 0 ? from : to]->mine,
                   bytes); /* of a node, all are alike */
        }
}

void tess_together_gather(const void *mine, size_t bytes, void *of_all, bool here)
{
    struct gathered g = {mine, of_all};
    meet(here, &g, gather, bytes);
}

void tess_together_meet(void)
{
    meet(false, NULL, NULL, 0);
}

/* They have one. */
double tess_together_clock(void)
{
    return 0;
}

unsigned tess_ranks_turns(void)
{
    return 0;
}

/* ---- joining and leaving ---- */

tess_status tess_together_open(int *rank, int *ranks, int *local, int *locals)
{
    *rank = tess_cluster_rank;
    *ranks = tess_cluster_here->ranks;
    *local = tess_cluster_rank % tess_cluster_here->of->ranks_here;
    *locals = tess_cluster_here->of->ranks_here;
    return TESS_OK;
}

void tess_together_close(void) {}

void tess_ranks_say_unjoined(void) {} /* there is no launcher */

tess_status tess_ranks_join(void)
{
    if (tess_cluster_here->ranks > 1) TESS_TRY(tess_ranks_open());
    tess_share_take();
    return TESS_OK;
}

void tess_ranks_leave(void)
{
    if (!tess_ranks_launched()) return;
    tess_ranks_part();
    tess_ranks_close();
}

/* By this number StarPU finds the hosts that are this rank's. */
int starpu_mpi_world_rank(void)
{
    return tess_cluster_rank;
}
