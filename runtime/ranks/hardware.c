/* What hwloc and the kernel say of the machine, to show it; what of it this process works on is share.c's. */
#include "runtime.h"
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sysinfo.h>

/* The kinds of CPU that kernels know, each with all of those before it, by oneDNN's names. */
static const char *const kinds[] = {[TESS_CPU_ANY] = "any",
                                    [TESS_CPU_SSE41] = "SSE41",
                                    [TESS_CPU_AVX] = "AVX",
                                    [TESS_CPU_AVX2] = "AVX2",
                                    [TESS_CPU_AVX512] = "AVX512_CORE",
                                    [TESS_CPU_AVX512_VNNI] = "AVX512_CORE_VNNI",
                                    [TESS_CPU_AVX512_BF16] = "AVX512_CORE_BF16",
                                    [TESS_CPU_AVX512_AMX] = "AVX512_CORE_AMX"};
enum { KINDS = sizeof kinds / sizeof *kinds };

static tess_cpu_kind kind_of_machine(void)
{
#ifdef __x86_64__
    const bool has[KINDS] = {
        true,
        __builtin_cpu_supports("sse4.1"),
        __builtin_cpu_supports("avx"),
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"),
        __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
            __builtin_cpu_supports("avx512vl"),
        __builtin_cpu_supports("avx512vnni"),
        __builtin_cpu_supports("avx512bf16"),
        __builtin_cpu_supports("amx-bf16"),
    };
    int kind = TESS_CPU_ANY;
    while (kind + 1 < KINDS && has[kind + 1]) kind++;
    return (tess_cpu_kind)kind;
#else
    return TESS_CPU_ANY;
#endif
}

tess_status tess_cpu_cap(tess_cpu_kind *kind, const char **cap)
{
    static const char name[] = "TESSERA_MAX_CPU_ISA";
    const char *text = getenv(name);
    char known[256] = "";
    *kind = kind_of_machine();
    *cap = NULL;
    if (!text || !*text) return TESS_OK;
    for (int k = TESS_CPU_SSE41; k < KINDS; k++) {
        if (strcmp(text, kinds[k])) {
            snprintf(known + strlen(known), sizeof known - strlen(known), "%s%s", *known ? ", " : "", kinds[k]);
            continue;
        }
        if (k > (int)*kind) return tess_error(TESS_INVALID, name, "%s, but this CPU has %s", text, kinds[*kind]);
        *kind = (tess_cpu_kind)k;
        *cap = kinds[k];
        return TESS_OK;
    }
    return tess_error(TESS_INVALID, name, "\"%.100s\", expected one of %s", text, known);
}

static void read_isa(tess_hardware *h)
{
#if defined __x86_64__
    tess_cpu_kind kind;
    const char *cap;
    if (tess_cpu_cap(&kind, &cap) != TESS_OK) kind = kind_of_machine();
    const char *vector = kind >= TESS_CPU_AVX512 ? "avx512" : kind >= TESS_CPU_AVX2 ? "avx2" : "sse2";
    const char *bf16 = kind >= TESS_CPU_AVX512_BF16 ? ", avx512_bf16" : "";
    snprintf(h->isa, sizeof h->isa, "%s%s", vector, bf16);
#else
    snprintf(h->isa, sizeof h->isa, "generic");
#endif
}

void tess_hardware_read(tess_hardware *h)
{
    *h = (tess_hardware){0};
    hwloc_topology_t topology;
    hwloc_topology_init(&topology);
    hwloc_topology_set_io_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_IMPORTANT);
    if (!hwloc_topology_load(topology)) {
        h->cores = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE);
        const int threads = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PU);
        h->threads = h->cores > 0 && threads > h->cores ? threads / h->cores : 1;
        h->numa_nodes = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
        hwloc_obj_t o = NULL;
        while ((o = hwloc_get_next_osdev(topology, o)))
            if (o->attr->osdev.type == HWLOC_OBJ_OSDEV_COPROC || o->attr->osdev.type == HWLOC_OBJ_OSDEV_GPU) h->gpus++;
        o = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
        const char *name = o ? hwloc_obj_get_info_by_name(o, "CPUModel") : NULL;
        snprintf(h->cpu_name, sizeof h->cpu_name, "%s", name ? name : "unknown");
    }
    hwloc_topology_destroy(topology);
    struct sysinfo s;
    if (!sysinfo(&s)) {
        h->ram_bytes = (uint64_t)s.totalram * s.mem_unit;
        h->ram_free_bytes = (uint64_t)s.freeram * s.mem_unit + (uint64_t)s.bufferram * s.mem_unit;
    }
    read_isa(h);
}
