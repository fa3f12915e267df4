/* Ranks that are simulated by others. Those that have the same list of tasks but for which slices are theirs do the
 * same at the same time, so one of them is there, and what it sums up counts for all. Their ends of messages are there
 * when its own are. */
#include "tools/simulate/runtime/simulated_impl.h"

tess_cluster *tess_cluster_here;
int tess_cluster_rank;

bool tess_rank_is_there(int rank)
{
    return tess_fold_of(tess_cluster_here->of->fold, rank) == rank;
}
