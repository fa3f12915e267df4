/* tessera train: the whole run of a configuration. */
#include "tools/commands/cmd.h"
#include <stdlib.h>
#include <string.h>

static char resume_key[] = "checkpoint.resume=true", whole_key[] = "checkpoint.resume=whole", resume[] = "--resume";

static const option OPTIONS[] = {
    {"--resume", NULL, "go on from the newest checkpoint, with =whole from the newest undamaged one: checkpoint.resume",
     NULL},
    {"--trace", "A:B", "write what happens in steps A to B to OUTPUT/trace.json: trace.steps=[A,B]", NULL},
};

static void help(FILE *out)
{
    cmd_option_help(OPTIONS, 2, out);
    fputs(
        "\nA KEY is a dotted path into the configuration, as in optimizer.params.lr=1e-4; TESSERA_OPTIMIZER_PARAMS_LR\n"
        "in the environment sets the same key; the command line wins. model.NAME=VALUE changes what the model's "
        "config.json says.\n",
        out);
}

static const char *const required[] = {"model", "data.train", NULL};
const tess_config_use cmd_train_use = {"all", required};

static tess_status run(int argc, char **argv)
{
    option options[] = {OPTIONS[0], OPTIONS[1]};
    int rest;
    char *trace = NULL;
    char *again[] = {cmd_again(argc, argv, false), cmd_again(argc, argv, true)};
    tess_config config = {0};
    tess_status status;
    bool whole = false;
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--resume=whole")) whole = true, argv[i] = resume;
    TESS_TRY_DONE(cmd_parse(options, 2, argc, argv, &rest));
    TESS_TRY_DONE(cmd_trace(&options[1], &trace));
    /* Each is one more KEY=VALUE, the last, in a place that they left free. */
    if (options[0].value) argv[1 + rest++] = whole ? whole_key : resume_key;
    if (trace) argv[1 + rest++] = trace;
    TESS_TRY_DONE(cmd_config(1 + rest, argv, required, &config));
    config.command = tess_strdup(again[config.checkpoint.resume != TESS_RESUME_NO]);
    status = tess_train(&config);
done:
    free(again[0]);
    free(again[1]);
    free(trace);
    tess_config_free(&config);
    return status;
}

const command cmd_train = {"train",
                           "train CONFIG.json [KEY=VALUE ...] [--resume[=whole]] [--trace A:B]",
                           "Trains a model, and leaves metrics, checkpoints and the trained model in OUTPUT.",
                           help,
                           run,
                           CMD_ALL_RANKS};
