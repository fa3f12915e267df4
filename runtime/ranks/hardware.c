/* What hwloc and the kernel say of the machine, to show it; share.c has the part that this process works on. */
#include "runtime/runtime.h"
#include <hwloc.h>
#include <stdlib.h>
#include <string.h>

static void read_isa(tess_hardware *h)
{
#if defined __x86_64__
    tess_cpu_kind kind;
    const char *cap;
    (void)!tess_cpu_cap(&kind, &cap); // a cap that is wrong is an error elsewhere
    const char *vector = kind >= TESS_CPU_AVX512 ? "avx512" : kind >= TESS_CPU_AVX2 ? "avx2" : "sse2";
    const char *bf16 = kind >= TESS_CPU_AVX512_BF16 ? ", avx512_bf16" : "";
    snprintf(h->isa, sizeof h->isa, "%s%s", vector, bf16);
#elif defined __aarch64__
    snprintf(h->isa, sizeof h->isa, "asimd");
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
        /* An Arm has numbers for a name. */
        const char *maker = o ? hwloc_obj_get_info_by_name(o, "CPUImplementer") : NULL;
        const char *part = o ? hwloc_obj_get_info_by_name(o, "CPUPart") : NULL;
        if (name || !maker || !part)
            snprintf(h->cpu_name, sizeof h->cpu_name, "%s", name ? name : "unknown");
        else
            snprintf(h->cpu_name, sizeof h->cpu_name, "Arm, implementer %s, part %s", maker, part);
    }
    hwloc_topology_destroy(topology);
    const tess_ram ram = tess_ram_read("");
    h->ram_bytes = ram.bytes, h->ram_free_bytes = ram.free;
    read_isa(h);
}
