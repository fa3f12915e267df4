/* tessera-simulated: the product over SimGrid, as a library; tessera-simulator opens a copy of it for each rank. */
#include "models/train/run/run.h"
#include "tools/commands/cmd.h"
#include "tools/simulate/simulation.h"
#include <errno.h>
#include <malloc.h>
#include <string.h>

static const char *const required[] = {"model", NULL};

/* On paper, of one rank: as much of what all of a node share as if each wanted its part. */
static tess_status estimate(const tess_config *c, const tess_simulated *m, const tess_simulation *of, FILE *out)
{
    const double part = m->drive_share / of->ranks_here;
    const tess_stage stage = {.seconds = tess_simulated_seconds,
                              .cores = tess_cores(),
                              .link = m->gpus.host_rate / m->gpus.host_gpus,
                              .link_latency = m->gpus.host_latency,
                              .ram = m->copy_rate,
                              .between = m->gpus.step_seconds,
                              .drive = {.read_rate = m->drive.read_rate * part,
                                        .write_rate = m->drive.write_rate * part,
                                        .mixed_read_rate = m->drive.mixed_read_rate * part,
                                        .mixed_write_rate = m->drive.mixed_write_rate * part}};
    TESS_TRY(tess_simulated_check_drive(m, tess_run_disk(c)));
    mallopt(M_MMAP_THRESHOLD, 32 << 20), mallopt(M_TRIM_THRESHOLD, 1 << 30); /* lists of tasks come and go */
    const tess_status status = tess_estimate_on(c, &stage, of->must_fit, out);
    if (status == TESS_OK) tess_simulated_say_rates(tess_simulated_machine(), out);
    return status;
}

static tess_status run(const tess_cluster *cluster, int rank, char **argv, int argc, FILE *out)
{
    const int steps = cluster->of->steps;
    tess_simulated machine = cluster->of->machine;
    tess_config config = {0};
    tess_status status;
    TESS_TRY(tess_machine_part(&machine, cluster->of->ranks_here));
    tess_simulated_set(&machine);
    const tess_yardstick rates = {.cores = machine.cores,
                                  .copy_rate = machine.copy_rate,
                                  .share = 1,
                                  .drive = machine.drive,
                                  .matrix_rate = {machine.matrix_rate[TESS_F32], machine.matrix_rate[TESS_BF16]},
                                  .reached = {machine.reached[TESS_F32], machine.reached[TESS_BF16]}};
    tess_yardstick_given(&rates, machine.gpus.matrix_rate);
    if (steps)
        TESS_TRY(tess_ranks_join());
    else
        tess_ranks_pretend_near(rank, cluster->ranks, cluster->of->ranks_here);
    TESS_TRY_DONE(cmd_config(argc, argv, required, &config));
    if (machine.drive_bytes > 0 && config.memory.disk <= 0) config.memory.disk = (int64_t)machine.drive_bytes;
    status = steps ? tess_simulate(&config, &machine, cluster, out) : estimate(&config, &machine, cluster->of, out);
done:
    tess_config_free(&config);
    return status;
}

/* A rank; rank 0 speaks for all. */
int tess_simulated_main(tess_cluster *cluster, int rank, int argc, char **argv)
{
    tess_simulated_join(cluster, rank);
    FILE *out = rank ? fopen("/dev/null", "w") : stdout;
    tess_status status =
        out ? run(cluster, rank, argv, argc, out) : tess_error(TESS_FAILED, "/dev/null", "%s", strerror(errno));
    status = tess_ranks_agree(status);
    if (status != TESS_OK && !tess_rank() && tess_watch_speak())
        fprintf(stderr, "tessera: error: %s\n", tess_error_text());
    if (rank && out) fclose(out);
    tess_ranks_leave();
    return (int)status;
}
