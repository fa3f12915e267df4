/* What is near a rank's cores. GPUs hang at one NUMA node each, in an order that need not be that of the nodes (on a
 * DGX A100 the first two are at node 3), so a rank gets those that are nearest to the cores it was given. And RAM: a
 * tile lies there once, so where a rank's cores are of several nodes its pages are dealt out over these, and every
 * node's memory carries its part of every product.
 *
 * StarPU could make each NUMA node a memory node (STARPU_USE_NUMA) and copy tiles to it. It would keep a copy of every
 * parameter on each node, so RAM would hold up to twice what the plan says, and a copy reads the same bytes over the
 * same link as a read does. A rank for each NUMA node has near memory without copies: mpirun -n 2. How much dealing
 * pages out saves was not measured: no machine of several nodes was at hand. */
#include "runtime/ranks/devices.h"
#include "runtime/ranks/share.h"
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

/* ---- GPUs ---- */

int tess_share_nearness(hwloc_topology_t t, hwloc_const_bitmap_t share, hwloc_const_bitmap_t at)
{
    if (!at || hwloc_bitmap_iszero(at)) return 0;
    hwloc_bitmap_t both = hwloc_bitmap_dup(at);
    hwloc_bitmap_or(both, both, share);
    hwloc_obj_t around = hwloc_get_obj_covering_cpuset(t, both);
    hwloc_bitmap_free(both);
    return 2 * (around ? around->depth : 0) + hwloc_bitmap_isincluded(at, share);
}

/* Whether the numbers alone would give that pair. */
static bool in_order(int rank, int ranks, int gpu, int gpus)
{
    return gpus < ranks ? gpu == gpus * rank / ranks : gpu >= gpus * rank / ranks && gpu < gpus * (rank + 1) / ranks;
}

/* How many of `all` the i-th of n gets: 7 of 2 are 3 and 4. */
static int part_of(int all, int i, int n)
{
    return all * (i + 1) / n - all * i / n;
}

/* Matches the nearest pairs first, until each rank has its number of GPUs and each GPU its number of ranks. */
void tess_share_match(int gpus, int ranks, const int *near, bool *has)
{
    memset(has, 0, (size_t)ranks * (size_t)gpus * sizeof *has);
    TESS_FREED int *rank_wants = tess_alloc((size_t)ranks * sizeof *rank_wants),
                   *gpu_wants = tess_alloc((size_t)(gpus + 1) * sizeof *gpu_wants);
    for (int g = 0; g < gpus; g++) gpu_wants[g] = gpus >= ranks;
    for (int r = 0; r < ranks; r++) {
        rank_wants[r] = gpus < ranks ? gpus > 0 : part_of(gpus, r, ranks);
        if (gpus && gpus < ranks) gpu_wants[gpus * r / ranks]++;
    }
    for (;;) {
        int best = -1, best_near = -1;
        for (int i = 0; i < ranks * gpus; i++) {
            const int r = i / gpus, g = i % gpus;
            if (has[i] || !rank_wants[r] || !gpu_wants[g]) continue;
            const int how = 2 * (near ? near[i] : 0) + in_order(r, ranks, g, gpus);
            if (how > best_near) best = i, best_near = how;
        }
        if (best < 0) break;
        has[best] = true;
        rank_wants[best / gpus]--, gpu_wants[best % gpus]--;
    }
}

/* By the bus where CUDA counts them, else in the order of hwloc's library. */
static hwloc_obj_t find_gpu(hwloc_topology_t t, int gpu, const char *family)
{
    char bus[32];
    if (tess_gpu_device_bus(gpu, bus, sizeof bus)) return hwloc_get_pcidev_by_busidstring(t, bus);
    for (hwloc_obj_t o = NULL; family && (o = hwloc_get_next_osdev(t, o));)
        if (o->name && !strncmp(o->name, family, strlen(family)) && gpu-- == 0) return o;
    return NULL;
}

hwloc_const_bitmap_t tess_share_gpu_at(hwloc_topology_t t, int gpu, const char *family)
{
    hwloc_obj_t o = find_gpu(t, gpu, family);
    o = o ? hwloc_get_non_io_ancestor_obj(t, o) : NULL;
    return o ? o->cpuset : NULL;
}

int tess_share_gpu_ids(int gpus, const char *ids, const char *count, int *id)
{
    const int most = count && atoi(count) >= 0 && atoi(count) < gpus ? atoi(count) : gpus;
    int n = 0;
    if (!ids)
        while (n < most) id[n] = n, n++;
    for (char *end; ids && n < most; ids = end) {
        const long one = strtol(ids, &end, 10);
        bool counts = one >= 0 && one < gpus;
        if (end == ids) break;
        for (int i = 0; i < n; i++) counts = counts && id[i] != one;
        if (counts) id[n++] = (int)one;
    }
    return n;
}

int tess_share_gpus(int *id)
{
    return tess_share_gpu_ids(tess_gpu_devices(), getenv("STARPU_WORKERS_CUDAID"), getenv("STARPU_NCUDA"), id);
}

/* ---- memory ---- */

static hwloc_topology_t spread_over; /* NULL: all of this process's cores are of one node, or a policy is set */
static hwloc_bitmap_t nodes;

/* Its first memory: what else hangs there (HBM, memory on a bus) is for those who ask for it. */
static bool is_main(hwloc_obj_t node)
{
    hwloc_obj_t at = node;
    while (at->parent && hwloc_obj_type_is_memory(at->parent->type)) at = at->parent; /* its cache */
    return at->parent && at->parent->memory_first_child == at;
}

static void find_nodes(hwloc_topology_t t, hwloc_const_bitmap_t share, hwloc_bitmap_t found)
{
    hwloc_bitmap_zero(found);
    for (hwloc_obj_t node = NULL; (node = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_NUMANODE, node));)
        if (is_main(node) && hwloc_bitmap_intersects(node->cpuset, share)) hwloc_bitmap_set(found, node->os_index);
}

void tess_share_spread(hwloc_topology_t t, hwloc_const_bitmap_t share)
{
    if (spread_over) hwloc_topology_destroy(spread_over), hwloc_bitmap_free(nodes);
    spread_over = NULL;
    hwloc_membind_policy_t policy = HWLOC_MEMBIND_DEFAULT;
    nodes = hwloc_bitmap_alloc();
    const bool said = !hwloc_get_membind(t, nodes, &policy, HWLOC_MEMBIND_THREAD | HWLOC_MEMBIND_BYNODESET) &&
                      policy != HWLOC_MEMBIND_DEFAULT && policy != HWLOC_MEMBIND_FIRSTTOUCH;
    find_nodes(t, share, nodes);
    if (said || hwloc_bitmap_weight(nodes) < 2 || hwloc_topology_dup(&spread_over, t)) {
        hwloc_bitmap_free(nodes);
        spread_over = NULL;
    }
}

int tess_memory_nodes(void)
{
    return spread_over ? hwloc_bitmap_weight(nodes) : 1;
}

void tess_memory_spread(void *ptr, size_t bytes)
{
    if (spread_over) /* where it is not allowed it was a good try */
        hwloc_set_area_membind(spread_over, ptr, bytes, nodes, HWLOC_MEMBIND_INTERLEAVE, HWLOC_MEMBIND_BYNODESET);
}
