/* tessera estimate: what a run will need, before anything runs. */
#include "cmd.h"

static tess_status run(int argc, char **argv)
{
    static const char *const required[] = {"model", NULL};
    int rest;
    TESS_TRY(cmd_parse(NULL, 0, argc, argv, &rest));
    tess_config config;
    tess_status status;
    TESS_TRY_DONE(cmd_config(1 + rest, argv, required, &config));
    status = tess_estimate(&config, stdout);
done:
    tess_config_free(&config);
    return status;
}

const command cmd_estimate = {
    "estimate",
    "estimate CONFIG.json [KEY=VALUE ...]",
    "Prints what each memory tier will hold, the bytes moved and the time a step should take.",
    tess_config_help,
    run,
    CMD_ONE_OF_RANKS};
