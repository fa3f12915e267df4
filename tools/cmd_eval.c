/* tessera eval: mean loss and perplexity on data.valid. */
#include "cmd.h"

static tess_status run(int argc, char **argv)
{
    static const char *const required[] = {"model", "data.valid", NULL};
    int rest;
    TESS_TRY(cmd_parse(NULL, 0, argc, argv, &rest));
    tess_config config;
    tess_status status;
    TESS_TRY_DONE(cmd_config(1 + rest, argv, required, &config));
    status = tess_eval(&config);
done:
    tess_config_free(&config);
    return status;
}

const command cmd_eval = {"eval",
                          "eval CONFIG.json [KEY=VALUE ...]",
                          "Prints the mean loss and the perplexity of the model on data.valid.",
                          tess_config_help,
                          run,
                          CMD_ALL_RANKS};
