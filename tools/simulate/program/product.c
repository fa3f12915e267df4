/* tessera-simulated: the product over SimGrid, a library of which tessera-simulator opens a copy for each rank. */
#include "cmd.h"
#include "simulation.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const char *const required[] = {"model", NULL};

static tess_status run(const tess_cluster *cluster, char **argv, int argc, FILE *out)
{
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
    TESS_TRY(tess_ranks_join());
    TESS_TRY_DONE(cmd_config(argc, argv, required, &config));
    status = tess_simulate(&config, &machine, cluster, out);
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
        out ? run(cluster, argv, argc, out) : tess_error(TESS_FAILED, "/dev/null", "%s", strerror(errno));
    status = tess_ranks_agree(status);
    if (status != TESS_OK && !tess_rank() && tess_watch_speak())
        fprintf(stderr, "tessera: error: %s\n", tess_error_text());
    if (rank && out) fclose(out);
    tess_ranks_leave();
    return (int)status;
}
