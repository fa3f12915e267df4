/* Dividing a machine, as far as it can be thought without one: for share.c, and for tests on machines made up. */
#ifndef TESS_SHARE_H
#define TESS_SHARE_H
#include "runtime/runtime.h"
#include <hwloc.h>

/* Divides what the ranks of a machine have in mask[rank] into share[rank], new bitmaps. Masks that were asked for are
 * kept where no two overlap; else what they hold together, or without a wish all that is allowed, is divided evenly.
 * `most` CPUs at most for each (0: any). False where there are fewer cores than ranks: then each may use all of them.
 */
bool tess_share_divide(hwloc_topology_t t, const hwloc_bitmap_t *mask, bool asked, int most, int ranks,
                       hwloc_bitmap_t *share);
/* Counts the cores that have a CPU in the set. */
int tess_share_cores(hwloc_topology_t t, hwloc_const_bitmap_t set);
/* Returns what was free of this rank's GPU when ranks joined, or when a process alone first asked; the least of any
 * rank's; 0: none has one. */
uint64_t tess_share_gpu_free(void);

/* ---- topology.c ---- */

/* Returns how near that rank's cores are to where a device hangs (NULL: unknown): the more the nearer. */
int tess_share_nearness(hwloc_topology_t t, hwloc_const_bitmap_t share, hwloc_const_bitmap_t at);
/* Assigns each rank its GPUs, has[rank * gpus + gpu], as many as even numbers allow, by near[] in the same order (NULL:
 * all are as near), else in order; with more ranks than GPUs each has one, which some share. */
void tess_share_match(int gpus, int ranks, const int *near, bool *has);
/* Returns the cores nearest to a GPU, as part of the topology, or NULL if unknown. `family` is hwloc's name for GPUs if
 * CUDA does not count them. */
hwloc_const_bitmap_t tess_share_gpu_at(hwloc_topology_t t, int gpu, const char *family);
/* Puts those of `gpus` that StarPU's variables leave, STARPU_WORKERS_CUDAID and STARPU_NCUDA (NULL: not set), into id,
 * which has room for all; returns how many. */
int tess_share_gpu_ids(int gpus, const char *ids, const char *count, int *id);
/* Does so with this machine's GPUs and the variables as they are. */
int tess_share_gpus(int *id);
/* Makes tess_memory_spread interleave pages over the NUMA nodes of these cores, if there are several and no policy
 * (numactl) is set. */
void tess_share_spread(hwloc_topology_t t, hwloc_const_bitmap_t share);

#endif
