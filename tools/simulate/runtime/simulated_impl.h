/* What the files of this folder know of each other. */
#ifndef TESS_SIMULATED_IMPL_H
#define TESS_SIMULATED_IMPL_H
#include "simulated.h"
#include <starpu.h>

/* What this rank shares with the others, and its number. */
extern tess_cluster *tess_cluster_here;
extern int tess_cluster_rank;
#endif
