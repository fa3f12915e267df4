/* The tiers of a run: the caps and homes that the configuration says, in its own keys and in DeepSpeed's, what the
 * machine does a second, and the start of StarPU within them. */
#include "codelets.h"
#include "run.h"
#include "yardstick.h"
#include <stdlib.h>
#include <string.h>

enum { MiB = 1 << 20 };

uint64_t tess_run_cap(uint64_t bytes)
{
    return (bytes / MiB + 1) * MiB;
}

const char *tess_run_cap_unit(const char *setting)
{
    return strncmp(setting, "STARPU_", 7) ? "MiB" : "";
}

uint64_t tess_run_cpu_cap(const tess_config *c, const char **where)
{
    const uint64_t limit = tess_cpu_limit(where), ours = c->memory.cpu > 0 ? (uint64_t)c->memory.cpu : 0;
    if (limit && (!ours || limit < ours)) return limit;
    *where = "memory.cpu";
    return ours;
}

/* The share of the optimizer's states that may live on the GPU. */
static double states_on_gpu(const tess_config *c)
{
    const tess_offload device = c->zero_optimization.offload_optimizer.device;
    if (device == TESS_OFFLOAD_CPU) return 1 - c->zero_optimization.offload_optimizer.ratio;
    return device == TESS_OFFLOAD_DISK ? 0 : 1;
}

tess_gpu_conf tess_run_gpu(const tess_run *r)
{
    const uint64_t cap = r->c->memory.gpu > 0 ? (uint64_t)r->c->memory.gpu : 0;
    return (tess_gpu_conf){.memory = r->c->memory.gpu_plan ? tess_gpu_tiles(cap) : 0,
                           .all = true,
                           .messages = r->messages_on_gpu,
                           .states = states_on_gpu(r->c)};
}

/* Where the disk tier is: ours or one of DeepSpeed's names for it, which do not contradict each other; NULL: there is
 * none. */
const char *tess_run_disk(const tess_config *c)
{
    const char *path = c->memory.path;
    if (!path && c->zero_optimization.offload_optimizer.device == TESS_OFFLOAD_DISK)
        path = c->zero_optimization.offload_optimizer.nvme_path;
    if (!path && c->zero_optimization.offload_param.device == TESS_OFFLOAD_DISK)
        path = c->zero_optimization.offload_param.nvme_path;
    return path;
}

/* The roles that a device says must rest on disk, and those that it says must not. */
static void pin(tess_place_conf *conf, tess_offload device, unsigned roles)
{
    if (device == TESS_OFFLOAD_DISK) conf->away |= roles;
    if (device == TESS_OFFLOAD_NONE || device == TESS_OFFLOAD_CPU) conf->stay |= roles;
}

/* What DeepSpeed's keys say of where tiles live. offload_param acts in stage 3 alone, as there. */
static void read_offload(const tess_config *c, tess_place_conf *conf)
{
    const unsigned states = 1u << TESS_ROLE_MASTER | 1u << TESS_ROLE_MOMENT, weights = 1u << TESS_ROLE_WEIGHT;
    const uint64_t size = tess_dtype_size(tess_run_dtype(c));
    bool params = c->zero_optimization.stage == 3;
    pin(conf, c->zero_optimization.offload_optimizer.device, states);
    pin(conf, params ? c->zero_optimization.offload_param.device : TESS_OFFLOAD_AUTO, weights);
    pin(conf, c->activation_checkpointing.offload, 1u << TESS_ROLE_ACTIVATION);
    if (params) conf->weights_in_ram = (uint64_t)c->zero_optimization.offload_param.max_in_cpu * size;
    int64_t buffers = c->zero_optimization.offload_param.buffer_count,
            tiles = c->zero_optimization.offload_optimizer.buffer_count;
    if (params && buffers != TESS_CONFIG_AUTO)
        conf->slack = (uint64_t)(buffers * c->zero_optimization.offload_param.buffer_size) * size;
    if (tiles != TESS_CONFIG_AUTO) conf->slack_states = (uint64_t)tiles;
}

static tess_status no_directory(const tess_config *c)
{
    const char *key = c->zero_optimization.offload_optimizer.device == TESS_OFFLOAD_DISK
                          ? "zero_optimization.offload_optimizer.device"
                      : c->zero_optimization.offload_param.device == TESS_OFFLOAD_DISK
                          ? "zero_optimization.offload_param.device"
                          : "activation_checkpointing.offload";
    char where[512];
    snprintf(where, sizeof where, "%s: %s", c->file ? c->file : "configuration", key);
    return tess_error(TESS_INVALID, where,
                      "puts tiles on disk, but no directory for them is named (set memory.path, or the nvme_path "
                      "beside the device)");
}

/* The configuration has read the environment, which is weaker than what was asked for on the command line. */
static tess_carriers carrier(const tess_config *c)
{
    static const tess_carriers of[] = {TESS_CARRIER_STARPU_MPI, TESS_CARRIER_MPI, TESS_CARRIER_NCCL};
    return c->parallel.carrier == TESS_CONFIG_AUTO ? (tess_carriers)TESS_CARRIER_ANY : of[c->parallel.carrier];
}

tess_status tess_run_tiers(tess_run *r, const char *made)
{
    const tess_config *c = r->c;
    const uint64_t ram = tess_ram_free();
    r->messages_on_gpu = tess_messages_can_gpu(carrier(c));
    r->disk = tess_run_disk(c);
    r->conf = (tess_place_conf){.workers = tess_cores(),
                                .worker_bytes =
                                    tess_mm_bytes(2, tess_run_dtype(r->c)) - tess_mm_bytes(1, tess_run_dtype(r->c))};
    read_offload(c, &r->conf);
    if (!r->disk && r->conf.away) return no_directory(c);
    const char *name;
    r->ram = tess_run_cpu_cap(c, &name);
    if (c->memory.cpu > 0 && r->ram < (uint64_t)c->memory.cpu)
        tess_note("%s, %s, is less than memory.cpu, and is the cap", name, tess_human_bytes((double)r->ram));
    if (!r->disk) return TESS_OK;
    if (!r->ram) r->ram = ram - ram / 8;
    r->conf.ram = r->ram;
    TESS_TRY(tess_disk_check(r->disk, made));
    return tess_run_rates(r, &r->conf.rates);
}

tess_status tess_run_rates(const tess_run *r, tess_rates *rates)
{
    tess_yardstick y;
    if (r->rates.flops > 0) return *rates = r->rates, TESS_OK;
    TESS_TRY(tess_ranks_agree(tess_rank() ? TESS_OK : tess_yardstick_read(r->disk, false, &y)));
    tess_ranks_tell(&y, sizeof y); /* plans must not differ */
    tess_drive *d = &y.drive;
    const double here = tess_share_read()->ranks; /* who share a drive */
    d->read_rate /= here, d->write_rate /= here, d->mixed_read_rate /= here, d->mixed_write_rate /= here;
    *rates = tess_reached_rates(&y, tess_run_yardstick(r->c));
    rates->read = d->read_rate, rates->write = d->write_rate;
    if (r->disk) rates->both = d->mixed_read_rate / d->read_rate + d->mixed_write_rate / d->write_rate;
    return TESS_OK;
}

bool tess_run_rates_known(const tess_run *r, tess_rates *rates)
{
    tess_yardstick y;
    *rates = r->conf.rates;
    if (rates->flops > 0) return true;
    if (!tess_yardstick_known(&y)) return false;
    *rates = tess_reached_rates(&y, tess_run_yardstick(r->c));
    return true;
}

tess_status tess_run_check_gpus(const tess_config *c)
{
    const int here = tess_gpus();
    double all = here;
    tess_ranks_sum(&all, 1);
    if (here < 2 || !c->memory.gpu_plan) return tess_ranks_agree(TESS_OK);
    return tess_ranks_agree(
        tess_error(TESS_INVALID, "GPU",
                   "this process has %d, and a plan is for one (mpirun -n %d before the command gives each a rank; "
                   "STARPU_NCUDA=1 takes the first; memory.gpu_plan=false leaves all to StarPU)",
                   here, (int)all));
}

tess_status tess_run_start(const tess_run *r, bool profile)
{
    int64_t block = r->c->aio.block_size, depth = r->c->aio.queue_depth;
    if (tess_gpu_trouble() && !tess_rank()) tess_note("GPU: none is used, since %s", tess_gpu_trouble());
    return tess_run_at_key(
        tess_start(&(tess_machine){.cpu_bytes = r->ram,
                                   .cpu_tiles = r->place.room,
                                   .gpu_bytes = r->c->memory.gpu > 0 ? (uint64_t)r->c->memory.gpu : 0,
                                   .gpu_tiles = r->gpu.room,
                                   .gpu_states = r->gpu.states,
                                   .carrier = carrier(r->c),
                                   .pipeline = r->c->parallel.pipeline > 1,
                                   .profile = profile,
                                   .disk = r->disk,
                                   .disk_bytes = r->disk_bytes,
                                   .disk_checksum = r->c->memory.checksum,
                                   .disk_block = block == TESS_CONFIG_AUTO ? 0 : (uint64_t)block,
                                   .disk_depth = depth == TESS_CONFIG_AUTO ? 0 : (unsigned)depth}));
}
