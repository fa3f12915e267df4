/* Ranks that are simulated by others. Those that have the same list of tasks but for which slices are theirs do the
 * same at the same time, so one of them is there, and what it sums up counts for all. Their ends of messages are there
 * when its own are. */
#include "simulated_impl.h"

bool tess_rank_is_there(int rank)
{
    return tess_fold_of(tess_cluster_here->fold, rank) == rank;
}

/* On this node it is itself. Elsewhere its node's links may be somebody's who is there, and hold what that one sends;
 * so bytes take those of this node's mirror, which are as busy as this node's. A tree of switches has no room for
 * mirrors. */
int tess_rank_at(int peer)
{
    const tess_cluster *c = tess_cluster_here;
    const bool near = peer / c->ranks_here == tess_cluster_rank / c->ranks_here;
    return near || !tess_fold_mirrors(c->fold, &tess_simulated_machine()->net) ? peer : tess_cluster_rank + c->ranks;
}
