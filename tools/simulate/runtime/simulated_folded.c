/* Ranks that are simulated by others. Those that have the same list of tasks but for which slices are theirs do the
 * same at the same time, so one of them is there, and what it sums up counts for all. Their ends of messages are there
 * when its own are.
 *
 * Why: at stage 3 the cost grows by the square of the ranks, and 32 ranks of a tiny GPT take a quarter of a minute.
 * With more than 16 data ranks tiles have different owners, so one rank of each row of gcd(16, data) is simulated, 8
 * for 128; stages of a pipeline differ and are all simulated. Bytes to absent ranks take the links of a mirror node,
 * as busy as the own, and shared links are narrower by the ranks that are missing, so a folded fat tree is on the fast
 * side. Rank 0's share of what cannot be divided counts for all: 3 to 12% more tasks in models of 4 layers. Ranks that
 * hold each other up are not seen, so an absent rank returns a tile no sooner than the simulated one could: stage 0 on
 * four GPUs is 4% short in place of 13%. */
#include "tools/simulate/runtime/simulated_impl.h"

tess_cluster *tess_cluster_here;
int tess_cluster_rank;

bool tess_rank_is_there(int rank)
{
    return tess_fold_of(tess_cluster_here->of->fold, rank) == rank;
}
