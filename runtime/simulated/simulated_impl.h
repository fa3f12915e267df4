/* What the files of this folder know of each other. */
#ifndef TESS_SIMULATED_IMPL_H
#define TESS_SIMULATED_IMPL_H
#include "simulated.h"
#include <starpu.h>

/* What this rank shares with the others, and its number. */
extern tess_cluster *tess_cluster_here;
extern int tess_cluster_rank;

/* ---- folded.c: ranks of which each does what others would, too ---- */

/* Says whether a rank is simulated. */
bool tess_rank_is_there(int rank);
/* Returns in whose place the end is of a message with one that is not: on a node behind the last one, or itself. */
int tess_rank_at(int peer);
#endif
