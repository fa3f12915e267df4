/* Dividing a machine, as far as it can be thought without one: for share.c, and for tests on machines made up. */
#ifndef TESS_SHARE_IMPL_H
#define TESS_SHARE_IMPL_H
#include "runtime.h"
#include <hwloc.h>

/* Divides what the ranks of a machine have in mask[rank] into share[rank], new bitmaps. Masks that were asked for are
 * kept where no two overlap; else what they hold together, or without a wish all that is allowed, is divided evenly.
 * `most` CPUs at most for each (0: any). False where there are fewer cores than ranks: then each may use all of them.
 */
bool tess_share_divide(hwloc_topology_t t, const hwloc_bitmap_t *mask, bool asked, int most, int ranks,
                       hwloc_bitmap_t *share);
/* Counts the cores of which some of the CPUs are in the set. */
int tess_share_cores(hwloc_topology_t t, hwloc_const_bitmap_t set);
/* Gives that rank GPUs first .. first+count-1; with more ranks than GPUs some share one. */
void tess_share_gpus(int gpus, int ranks, int rank, int *first, int *count);
/* Puts those of `gpus` that StarPU's variables leave, STARPU_WORKERS_CUDAID and STARPU_NCUDA (NULL: not set), into id,
 * which has room for all; returns how many. */
int tess_share_gpu_ids(int gpus, const char *ids, const char *count, int *id);
/* Returns what was free of this rank's GPU when ranks joined, or when a process alone first asked; the least of any
 * rank's; 0: none has one. */
uint64_t tess_share_gpu_free(void);

#endif
