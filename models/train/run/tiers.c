/* The tiers of a run: the caps and homes that the configuration says, in its own keys and in DeepSpeed's, what the
 * machine does a second, and the start of StarPU within them. */
#include "codelets/codelets.h"
#include "codelets/generic.h"
#include "models/text/base/directories.h"
#include "models/train/rates/yardstick.h"
#include "models/train/run/run.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MiB = 1 << 20 };

uint64_t tess_run_cap(uint64_t bytes)
{
    return (bytes / MiB + 1) * MiB;
}

const char *tess_run_cap_unit(const char *setting)
{
    return strncmp(setting, "STARPU_", 7) ? "MiB" : "";
}

tess_gpu_conf tess_run_gpu(const tess_run *r)
{
    return (tess_gpu_conf){.memory = r->caps.gpu_plan ? tess_gpu_tiles(r->caps.gpu) : 0,
                           .all = true,
                           .messages = r->limits.gpu.messages,
                           .states = r->caps.states_on_gpu};
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
    const unsigned states = TESS_AWAY_MASTERS | TESS_AWAY_MOMENTS, weights = TESS_AWAY_WEIGHTS;
    const uint64_t size = tess_dtype_size(tess_run_dtype(c));
    bool params = c->zero_optimization.stage == 3;
    pin(conf, c->zero_optimization.offload_optimizer.device, states);
    pin(conf, params ? c->zero_optimization.offload_param.device : TESS_OFFLOAD_AUTO, weights);
    pin(conf, c->activation_checkpointing.offload, TESS_AWAY_ACTIVATIONS);
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

/* Makes the directories of DeepSpeed's nvme_path that are missing, as it does, and says so; memory.path names those
 * that there are. One in / is where a drive was to be mounted that is not: it is refused behind this, as all that is
 * not there. */
static void make_directories(const char *paths)
{
    for (const char *p = paths; *p; p += *p == ':') {
        TESS_FREED char *dir = tess_format("%.*s", (int)strcspn(p, ":"), p);
        const bool below_root = dir[0] == '/' && strrchr(dir, '/') == dir;
        if (*dir && !below_root && access(dir, F_OK) && tess_dirs_make(dir, NULL) && !tess_rank())
            tess_note("nvme_path: %s was not there and is made; %s are free on its drive", dir,
                      tess_human_bytes((double)tess_drive_free(dir)));
        p += strlen(dir);
    }
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
    const uint64_t size = tess_dtype_size(r->dtype);
    const int64_t block = c->aio.block_size, depth = c->aio.queue_depth;
    const bool by_rate = tess_config_measured(c->parallel.shares);
    if ((by_rate || tess_config_measured(c->parallel.state_shares)) && tess_ranks_launched())
        tess_run_share_out(r, (double[]){by_rate ? tess_yardstick_best(tess_yardstick_for(r->dtype)) : 0,
                                         (double)(r->caps.cpu ? r->caps.cpu : tess_ram_free())});
    r->machine = (tess_machine){.cpu_bytes = r->caps.cpu,
                                .gpu_bytes = r->caps.gpu,
                                .carrier = carrier(c),
                                .patience = c->patience,
                                .folder = c->output,
                                .gpu_graphs = c->gpu_graphs,
                                .disk = tess_run_disk(c),
                                .disk_checksum = c->memory.checksum,
                                .disk_block = block == TESS_CONFIG_AUTO ? 0 : (uint64_t)block,
                                .disk_depth = depth == TESS_CONFIG_AUTO ? 0 : (unsigned)depth};
    tess_limits_of(&r->machine, r->dtype, &r->limits);
    r->limits.ahead = (uint64_t)c->zero_optimization.stage3_prefetch_bucket_size * size;
    r->plan =
        (tess_plan){.workers = r->limits.ram.workers, .pipeline = r->grid.pipeline > 1, .lanes = tess_lanes(&r->grid)};
    read_offload(c, &r->limits.ram);
    if (!r->machine.disk && r->limits.ram.away) return no_directory(c);
    if (c->memory.cpu > 0 && r->caps.cpu < (uint64_t)c->memory.cpu)
        tess_note("%s, %s, is less than memory.cpu, and is the cap", r->caps.cpu_key,
                  tess_human_bytes((double)r->caps.cpu));
    if (!r->machine.disk) return TESS_OK;
    if (!r->machine.cpu_bytes) r->machine.cpu_bytes = r->limits.ram.ram; /* what is free, less a part */
    r->limits.ram.ram = r->machine.cpu_bytes;
    const bool names = c->memory.path;
    if (!names && !made) make_directories(r->machine.disk);
    TESS_TRY(tess_disk_check(r->machine.disk, names || !made ? made : r->machine.disk));
    return tess_run_rates(r, &r->limits.ram.rates);
}

/* What rank 0 measures, since plans must not differ; ranks that share a drive have a part of it each. */
static tess_status measure(const char *disk, tess_dtype t, tess_rates *rates)
{
    tess_yardstick y;
    TESS_TRY(tess_ranks_agree(tess_rank() ? TESS_OK : tess_yardstick_read(disk, false, &y)));
    tess_ranks_tell(&y, sizeof y);
    tess_drive *d = &y.drive;
    const double here = tess_share_read()->ranks;
    d->read_rate /= here, d->write_rate /= here, d->mixed_read_rate /= here, d->mixed_write_rate /= here;
    *rates = tess_efficiency_rates(&y, t);
    rates->read = d->read_rate, rates->write = d->write_rate;
    if (disk) rates->both = d->mixed_read_rate / d->read_rate + d->mixed_write_rate / d->write_rate;
    return TESS_OK;
}

tess_status tess_run_rates(const tess_run *r, tess_rates *rates)
{
    if (r->rates.flops > 0) return *rates = r->rates, TESS_OK;
    return measure(r->machine.disk, tess_yardstick_for(r->dtype), rates);
}

tess_status tess_machine_measure(tess_machine *m, tess_dtype t)
{
    if (tess_session())
        return tess_error(TESS_INVALID, "machine", "is measured before tess_start (its workers are busy)");
    return measure(m->disk, tess_yardstick_for(t), &m->rates);
}

bool tess_run_rates_known(const tess_run *r, tess_rates *rates)
{
    tess_yardstick y;
    *rates = r->limits.ram.rates;
    if (rates->flops > 0) return true;
    if (!tess_yardstick_known(&y)) return false;
    *rates = tess_efficiency_rates(&y, tess_yardstick_for(r->dtype));
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

/* cuDNN's kernels, unless there is a reason for ours: bits that its version changes, or messages of NCCL's, which a
 * kernel that is loaded between them would wait for. All ranks have the same. */
static void choose_kernels(const tess_run *r, const char *what, bool asked, bool (*settle)(bool, char *, size_t))
{
    char said[300];
    const bool several = tess_ranks() > 1, by_nccl = several && !strncmp(tess_message_carrier(), "NCCL", 4);
    const bool wanted = asked && r->c->deterministic == TESS_DETERMINISTIC_NO && !by_nccl;
    double without = !settle(wanted, said, sizeof said);
    const bool here = !without;
    tess_ranks_sum(&without, 1);
    if (here && without > 0) settle(false, said, sizeof said);
    if (tess_rank() || tess_gpus() == 0 || !wanted || (!*said && !here)) return;
    tess_note("%s: %s%s", what, without > 0 ? "kernels of Tessera's own; " : "where it can by ",
              here && without > 0 ? "another rank has no cuDNN" : said);
}

void tess_run_say_slow(const tess_run *r)
{
    char said[200];
    const char *op = r->g && tess_gpus() > 0 && !tess_rank() ? tess_graph_slow(r->g, said, sizeof said) : NULL;
    if (op) tess_note("%s: %s", op, said);
}

tess_status tess_run_start(const tess_run *r, bool profile)
{
    tess_machine m = r->machine;
    m.profile = profile;
    const bool attends = r->dtype != TESS_F32, bf16 = r->dtype == TESS_BF16;
    choose_kernels(r, "attention", r->c->attention == TESS_CONFIG_AUTO && attends, tess_attention_library);
    const bool convolves = bf16 && r->g && tess_graph_uses(r->g, "any_conv"); /* what generates makes graphs later */
    choose_kernels(r, "convolutions", r->c->convolutions == TESS_CONFIG_AUTO && convolves, tess_any_conv_cudnn);
    tess_run_say_slow(r); /* a graph that generates is made later, and has kernels of its own */
    if (tess_gpu_trouble() && !tess_rank()) tess_note("GPU: none is used, since %s", tess_gpu_trouble());
    TESS_TRY(tess_run_at_key(tess_start_plan(&m, &r->plan)));
    if (r->g) tess_graph_ready_ram(r->g);
    return TESS_OK;
}
