/* tessera-simulator: what tessera simulate starts, the product over SimGrid. Its arguments are the machine's file, the
 * number of steps, the configuration and KEY=VALUEs, which tessera simulate has looked at before. */
#include "cmd.h"
#include "simulated.h"
#include <stdlib.h>
#include <string.h>

static const char *const required[] = {"model", NULL};

static tess_status run(int argc, char **argv)
{
    tess_simulated machine;
    tess_config config = {0};
    if (argc < 4) return tess_error(TESS_INVALID, "command line", "is started by tessera simulate");
    TESS_TRY(tess_machine_read(argv[1], &machine));
    tess_simulated_set(&machine);
    tess_yardstick_given(&machine);
    tess_status status;
    TESS_TRY_DONE(cmd_config(argc - 2, argv + 2, required, &config));
    status = tess_simulate(&config, &machine, atoi(argv[2]), stdout);
done:
    tess_config_free(&config);
    return status;
}

int main(int argc, char **argv)
{
    const tess_status status = run(argc, argv);
    if (status != TESS_OK) fprintf(stderr, "tessera: error: %s\n", tess_error_text());
    fflush(stdout);
    return (int)status;
}
