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
/* Returns how many each that is there stands for, itself included. */
int tess_rank_stands_for(void);
#endif
