/* Which part of its machine a process works on. Alone it is what it may use: a mask that was set (taskset, a batch
 * system) is a wish. Among several ranks it is a part of that, so that no core works for two.
 *
 * Open MPI binds two ranks of a machine to one core each where it was not asked for, which leaves all other cores idle.
 * That is no wish: a wish leaves a variable in the environment of the ranks. Slurm's masks are wishes. What was not
 * wished for is undone, and the machine is divided in whole NUMA nodes where that comes out even, else in cores. With
 * fewer cores than ranks no rank is bound, and the kernel lets them take turns. */
#include "runtime/ranks/share.h"
#include "runtime/ranks/devices.h"
#include "runtime/ranks/ranks.h"
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- dividing ---- */

int tess_share_cores(hwloc_topology_t t, hwloc_const_bitmap_t set)
{
    int n = 0;
    for (hwloc_obj_t core = NULL; (core = hwloc_get_next_obj_by_type(t, HWLOC_OBJ_CORE, core));)
        n += hwloc_bitmap_intersects(core->cpuset, set);
    return n > 0 ? n : hwloc_bitmap_weight(set); /* where it is not known which CPUs are of one core */
}

static bool disjoint(const hwloc_bitmap_t *mask, int ranks)
{
    for (int i = 0; i < ranks; i++)
        for (int j = 0; j < i; j++)
            if (hwloc_bitmap_intersects(mask[i], mask[j])) return false;
    return true;
}

static void keep_first(hwloc_bitmap_t set, int most)
{
    for (int cpu = hwloc_bitmap_first(set); cpu >= 0; cpu = hwloc_bitmap_next(set, cpu))
        if (most-- <= 0) hwloc_bitmap_clr(set, (unsigned)cpu);
}

bool tess_share_divide(hwloc_topology_t t, const hwloc_bitmap_t *mask, bool asked, int most, int ranks,
                       hwloc_bitmap_t *share)
{
    hwloc_bitmap_t all = hwloc_bitmap_alloc();
    for (int i = 0; i < ranks && asked; i++) hwloc_bitmap_or(all, all, mask[i]);
    hwloc_bitmap_and(all, all, hwloc_topology_get_allowed_cpuset(t));
    if (hwloc_bitmap_iszero(all)) hwloc_bitmap_copy(all, hwloc_topology_get_allowed_cpuset(t)), asked = false;
    const bool kept = asked && disjoint(mask, ranks);
    bool enough = kept || tess_share_cores(t, all) >= ranks;
    hwloc_topology_t part = NULL;
    if (kept || !enough || ranks == 1) {
        for (int i = 0; i < ranks; i++) share[i] = hwloc_bitmap_dup(kept ? mask[i] : all);
    } else if (!hwloc_topology_dup(&part, t) && !hwloc_topology_restrict(part, all, 0)) {
        hwloc_obj_t root = hwloc_get_root_obj(part);
        int depth = hwloc_get_type_depth(part, HWLOC_OBJ_CORE); /* a core's threads stay together */
        TESS_ASSERT(!hwloc_distrib(part, &root, 1, share, (unsigned)ranks, depth < 0 ? INT_MAX : depth, 0));
    } else
        for (int i = 0; i < ranks; i++) share[i] = hwloc_bitmap_dup(all), enough = false;
    if (part) hwloc_topology_destroy(part);
    for (int i = 0; i < ranks && most > 0 && !kept && enough; i++) keep_first(share[i], most);
    hwloc_bitmap_free(all);
    return enough;
}

/* ---- this machine ---- */

/* What the ranks of a machine tell each other. */
struct wish {
    char mask[2048], gpus[256];
    bool asked;
};

static tess_share share;
static bool known, measured;
static int on_one_gpu = 1; /* ranks that share this one's */

static bool set_to(const char *name, const char *part)
{
    const char *value = getenv(name);
    return value && (!part || strstr(value, part));
}

static bool asked_for(void)
{
    if (!tess_ranks_launched()) return true; /* only the user sets the mask of a program started alone */
    bool open_mpi = set_to("OMPI_COMM_WORLD_SIZE", NULL);
    return (!open_mpi && set_to("SLURM_PROCID", NULL)) || set_to("OMPI_MCA_hwloc_base_binding_policy", NULL) ||
           set_to("OMPI_MCA_hwloc_base_cpu_list", NULL) || set_to("OMPI_MCA_rmaps_base_mapping_policy", "PE=") ||
           set_to("OMPI_MCA_rmaps_base_mapping_policy", "pe=") || set_to("OMPI_MCA_orte_rankfile", NULL) ||
           set_to("OMPI_MCA_rmaps_rank_file_path", NULL);
}

/* As CUDA counts them, or the first library of hwloc's that knows some, *family. */
static int count_gpus(hwloc_topology_t t, const char **family)
{
    static const char *const families[] = {"cuda", "nvml", "rsmi"};
    int n = tess_gpu_devices();
    *family = NULL;
    for (size_t f = 0; f < sizeof families / sizeof *families && !n; f++) {
        *family = families[f];
        for (hwloc_obj_t o = NULL; (o = hwloc_get_next_osdev(t, o));)
            n += o->name && !strncmp(o->name, *family, strlen(*family));
    }
    return n < TESS_MAX_GPUS ? n : TESS_MAX_GPUS;
}

/* Which of the ranks has which GPU, by how near it is to the cores of each. */
static bool *match_gpus(hwloc_topology_t t, const hwloc_bitmap_t *part, int gpus, const char *family)
{
    const size_t pairs = (size_t)share.ranks * (size_t)gpus;
    bool *has = tess_alloc(pairs * sizeof *has);
    TESS_FREED int *near = tess_alloc(pairs * sizeof *near);
    for (int i = 0; i < (int)pairs; i++)
        near[i] = tess_share_nearness(t, part[i / gpus], tess_share_gpu_at(t, i % gpus, family));
    tess_share_match(gpus, share.ranks, near, has);
    return has;
}

static void take_gpus(const struct wish *wish, hwloc_topology_t t, const hwloc_bitmap_t *part)
{
    const char *family;
    const int gpus = count_gpus(t, &family);
    bool same = true;
    for (int i = 0; i < share.ranks; i++) same = same && !strcmp(wish[i].gpus, wish[0].gpus);
    on_one_gpu = 1;
    if (!gpus) return;
    TESS_FREED bool *has = match_gpus(t, part, gpus, family);
    hwloc_bitmap_t mine = hwloc_bitmap_alloc();
    char ids[256] = "", number[16];
    for (int g = 0; g < gpus; g++) {
        if (same && !has[share.rank * gpus + g]) continue; /* else they are divided already */
        int ranks = 0;
        for (int i = 0; i < share.ranks && same; i++) ranks += has[i * gpus + g];
        if (ranks > on_one_gpu) on_one_gpu = ranks;
        hwloc_bitmap_set(mine, (unsigned)g);
        snprintf(number, sizeof number, *ids ? " %d" : "%d", g);
        strcat(ids, number);
    }
    hwloc_bitmap_list_snprintf(share.gpus, sizeof share.gpus, mine);
    if (share.ranks > 1 && same) setenv("STARPU_WORKERS_CUDAID", ids, 0);
    hwloc_bitmap_free(mine);
}

/* What is free of this rank's GPU when each rank has its context there, or its part of that with other ranks; the least
 * of any rank's that has one, since plans must not differ. */
static void measure_gpus(void)
{
    int id[TESS_MAX_GPUS];
    const int n = tess_share_gpus(id);
    tess_gpu_device_open(id, n);
    if (tess_ranks_launched()) tess_ranks_barrier();
    int64_t least = n ? -(int64_t)(tess_gpu_device_free(id, n) / (uint64_t)on_one_gpu) : INT64_MIN;
    if (tess_ranks_launched()) tess_ranks_most(&least, 1);
    share.gpu_bytes = least == INT64_MIN ? 0 : (uint64_t)-least;
    measured = true;
}

/* Ranks do it together, when they join. A process alone makes a context for it, so only where it is asked for. */
uint64_t tess_share_gpu_free(void)
{
    tess_share_read();
    if (!measured) measure_gpus();
    return share.gpu_bytes;
}

/* Divides the masks of all ranks here into part[rank], new bitmaps, and takes this rank's. StarPU's own variables win.
 */
static void take_cores(const struct wish *wish, hwloc_topology_t t, hwloc_bitmap_t *part)
{
    TESS_FREED hwloc_bitmap_t *mask = tess_alloc((size_t)share.ranks * sizeof *mask);
    const char *most = getenv("SLURM_CPUS_PER_TASK");
    bool asked = true;
    for (int i = 0; i < share.ranks; i++) {
        mask[i] = hwloc_bitmap_alloc();
        hwloc_bitmap_list_sscanf(mask[i], wish[i].mask);
        asked = asked && wish[i].asked;
    }
    share.crowded =
        !tess_share_divide(t, mask, asked, tess_ranks_launched() && most ? atoi(most) : 0, share.ranks, part);
    hwloc_const_bitmap_t mine = part[share.rank];
    share.cores = tess_share_cores(t, mine);
    if (share.crowded) share.cores = 1;
    hwloc_bitmap_list_snprintf(share.cpus, sizeof share.cpus, mine);
    hwloc_bitmap_t nodes = hwloc_bitmap_alloc();
    hwloc_cpuset_to_nodeset(t, mine, nodes);
    hwloc_bitmap_list_snprintf(share.numa, sizeof share.numa, nodes);
    hwloc_bitmap_free(nodes);
    for (int i = 0; i < share.ranks; i++) hwloc_bitmap_free(mask[i]);
}

/* Keeps this process to its part, or where its workers float to the parts of all. */
static void stay_there(hwloc_topology_t t, const hwloc_bitmap_t *part)
{
    const char *unbound = getenv("STARPU_WORKERS_NOBIND");
    const bool floats = unbound && atoi(unbound) > 0;
    hwloc_bitmap_t there = hwloc_bitmap_dup(part[share.rank]);
    for (int i = 0; i < share.ranks && floats; i++) hwloc_bitmap_or(there, there, part[i]);
    if (tess_ranks_launched())
        hwloc_set_cpubind(t, there, HWLOC_CPUBIND_PROCESS); /* where that is not allowed it was a good try */
    tess_share_spread(t, there);
    hwloc_bitmap_free(there);
}

static void make_wish(hwloc_topology_t t, struct wish *w)
{
    *w = (struct wish){.asked = asked_for()};
    hwloc_bitmap_t mask = hwloc_bitmap_alloc();
    if (!hwloc_get_cpubind(t, mask, HWLOC_CPUBIND_PROCESS)) hwloc_bitmap_list_snprintf(w->mask, sizeof w->mask, mask);
    hwloc_bitmap_free(mask);
    const char *gpus = getenv("CUDA_VISIBLE_DEVICES");
    snprintf(w->gpus, sizeof w->gpus, "%s", gpus ? gpus : "all");
}

void tess_share_take(void)
{
    hwloc_topology_t t;
    share = (tess_share){.cores = 1, .cpus = "-", .numa = "-", .gpus = "-"};
    share.rank = tess_rank_here(&share.ranks);
    gethostname(share.host, sizeof share.host - 1);
    hwloc_topology_init(&t);
    hwloc_topology_set_io_types_filter(t, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    const bool loads = !hwloc_topology_load(t);
    struct wish mine = {0}, *wish = tess_alloc((size_t)share.ranks * sizeof *wish);
    if (loads) make_wish(t, &mine);
    tess_ranks_gather_here(&mine, sizeof mine, wish);
    if (loads) {
        TESS_FREED hwloc_bitmap_t *part = tess_alloc((size_t)share.ranks * sizeof *part);
        take_cores(wish, t, part);
        stay_there(t, part);
        take_gpus(wish, t, part);
        for (int i = 0; i < share.ranks; i++) hwloc_bitmap_free(part[i]);
    }
    hwloc_topology_destroy(t);
    free(wish);
    tess_hardware h;
    tess_hardware_read(&h);
    int64_t least = -(int64_t)(h.ram_free_bytes / (uint64_t)share.ranks); /* plans must not differ */
    if (tess_ranks_launched()) tess_ranks_most(&least, 1);
    share.ram_bytes = (uint64_t)-least;
    measured = false;
    if (tess_ranks_launched()) measure_gpus();
    known = true;
}

const tess_share *tess_share_read(void)
{
    if (!known) tess_share_take();
    return &share;
}

uint64_t tess_ram_free(void)
{
    tess_hardware h;
    if (tess_share_read()->ranks > 1) return share.ram_bytes;
    tess_hardware_read(&h);
    return h.ram_free_bytes;
}
