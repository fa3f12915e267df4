/* What the files of this folder know of each other. */
#ifndef TESS_SIMULATED_IMPL_H
#define TESS_SIMULATED_IMPL_H
#include "tools/simulate/simulated.h"
#include <starpu.h>

/* What this rank shares with the others, and its number. */
extern tess_cluster *tess_cluster_here;
extern int tess_cluster_rank;
/* simulated_network.c: messages between ranks of a node take time of cores. */
bool tess_simulated_carries(void);
#endif
