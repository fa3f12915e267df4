/* What there is of a machine that is simulated, in the place of what hwloc and the kernel say of this one. */
#include "runtime/ranks/ranks.h"
#include "runtime/ranks/share.h"
#include "tools/simulate/simulated.h"

static tess_simulated machine = {.cores = 1, .ram_bytes = 1 << 30, .nodes = 1};
static tess_simulated_lacks lacks;
static tess_share share;

void tess_simulated_set(const tess_simulated *m)
{
    machine = *m;
    machine.lacks = &lacks;
    tess_share_take();
}

const tess_simulated *tess_simulated_machine(void)
{
    return &machine;
}

/* The machine is this rank's part of its node already. */
void tess_share_take(void)
{
    int ranks;
    const int rank = tess_rank_here(&ranks), first = rank * machine.cores, gpus = machine.gpus.count;
    share = (tess_share){
        .rank = rank, .ranks = ranks, .cores = machine.cores, .ram_bytes = machine.ram_bytes, .numa = "-", .gpus = "-"};
    snprintf(share.cpus, sizeof share.cpus, "%d-%d", first, first + machine.cores - 1);
    if (gpus) {
        snprintf(share.gpus, sizeof share.gpus, gpus > 1 ? "%d-%d" : "%d", rank * gpus, (rank + 1) * gpus - 1);
        share.gpu_bytes = machine.gpus.bytes;
    }
    snprintf(share.host, sizeof share.host, "%.60s", machine.name);
}

const tess_share *tess_share_read(void)
{
    if (!share.cores) tess_share_take();
    return &share;
}

uint64_t tess_share_gpu_free(void)
{
    return tess_share_read()->gpu_bytes;
}

uint64_t tess_ram_free(void)
{
    return machine.ram_bytes;
}

void tess_hardware_read(tess_hardware *h)
{
    *h = (tess_hardware){.cores = machine.cores,
                         .threads = 1,
                         .numa_nodes = 1,
                         .gpus = machine.gpus.count,
                         .ram_bytes = machine.ram_bytes,
                         .ram_free_bytes = machine.ram_bytes};
    snprintf(h->cpu_name, sizeof h->cpu_name, "%s", machine.name);
    snprintf(h->isa, sizeof h->isa, "simulated");
}
