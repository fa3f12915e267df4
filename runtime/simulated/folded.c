/* Ranks that are simulated by others. Those that have the same list of tasks but for which slices are theirs do the
 * same at the same time, so one of them is there, and what it sums up counts for all. Their ends of messages are there
 * when its own are. */
#include "simulated_impl.h"

bool tess_rank_is_there(int rank)
{
    return tess_fold_of(tess_cluster_here->fold, rank) == rank;
}

int tess_rank_stands_for(void)
{
    const tess_cluster *c = tess_cluster_here;
    return c->ranks / (c->fold.model / c->fold.tensor);
}
