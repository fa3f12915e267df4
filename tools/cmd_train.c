/* tessera train: the whole run of a configuration. */
#include "cmd.h"

static char resume_key[] = "checkpoint.resume=true";

static const option OPTIONS[] = {
    {"--resume", NULL, "go on from the newest checkpoint: checkpoint.resume=true", NULL},
};

static void help(FILE *out)
{
    cmd_option_help(OPTIONS, 1, out);
    fputs(
        "\nA KEY is a dotted path into the configuration, as in optimizer.params.lr=1e-4; TESSERA_OPTIMIZER_PARAMS_LR\n"
        "in the environment sets the same key; the command line wins. model.NAME=VALUE changes a model that is an "
        "object.\n",
        out);
}

static const char *const required[] = {"model", "data.train", "steps", NULL};
const tess_config_use cmd_train_use = {"all", required};

static tess_status run(int argc, char **argv)
{
    option options[] = {OPTIONS[0]};
    int rest;
    TESS_TRY(cmd_parse(options, 1, argc, argv, &rest));
    /* The flag is one more KEY=VALUE, the last, in the place that it left free. */
    if (options[0].value) argv[1 + rest++] = resume_key;
    tess_config config;
    tess_status status;
    TESS_TRY_DONE(cmd_config(1 + rest, argv, required, &config));
    status = tess_train(&config);
done:
    tess_config_free(&config);
    return status;
}

const command cmd_train = {"train",
                           "train CONFIG.json [KEY=VALUE ...] [--resume]",
                           "Trains a model, and leaves metrics, checkpoints and the trained model in OUTPUT.",
                           help,
                           run,
                           CMD_ALL_RANKS};
