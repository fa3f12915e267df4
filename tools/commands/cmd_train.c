/* tessera train: the whole run of a configuration. */
#include "models/text/base/text.h"
#include "tools/commands/cmd.h"
#include <string.h>

static char resume_key[] = "checkpoint.resume=true", whole_key[] = "checkpoint.resume=whole", resume[] = "--resume";

static option options[] = {
    {"--resume", NULL, "go on from the newest checkpoint, with =whole from the newest undamaged one: checkpoint.resume",
     NULL},
    {"--trace", "A:B", "write what happens in steps A to B to OUTPUT/trace.json: trace.steps=[A,B]", NULL},
};

static const char *const required[] = {"model", "data.train", NULL};
static const tess_config_use use = {"all", required};

static char *again[2]; /* the line that starts this run again, as it is, and so that it resumes */
static bool whole;

static tess_status begin(int argc, char **argv, bool *done)
{
    (void)done;
    for (int i = 0; i < 2; i++) again[i] = cmd_again(argc, argv, i);
    for (int i = 1; i < argc; i++)
        if (!strcmp(argv[i], "--resume=whole")) whole = true, argv[i] = resume;
    return TESS_OK;
}

static tess_status run(int rest, char **argv)
{
    TESS_FREED char *trace = NULL, *starts = again[0], *resumes = again[1];
    CMD_FREED tess_config config = {0};
    TESS_TRY(cmd_trace(&options[1], &trace));
    /* Each is one more KEY=VALUE, the last, in a place that they left free. */
    if (options[0].value) argv[1 + rest++] = whole ? whole_key : resume_key;
    if (trace) argv[1 + rest++] = trace;
    TESS_TRY(cmd_config(1 + rest, argv, required, &config));
    config.command = tess_strdup(config.checkpoint.resume != TESS_RESUME_NO ? resumes : starts);
    return tess_train(&config);
}

const command cmd_train = {
    .name = "train",
    .usage = "train CONFIG.json [KEY=VALUE ...] [--resume[=whole]] [--trace A:B]",
    .summary = "Trains a model, and leaves metrics, checkpoints and the trained model in OUTPUT.",
    CMD_OPTIONS(options),
    .more =
        "A KEY is a dotted path into the configuration, as in optimizer.params.lr=1e-4; TESSERA_OPTIMIZER_PARAMS_LR\n"
        "in the environment sets the same key; the command line wins. model.NAME=VALUE changes what the model's "
        "config.json says.\n",
    .use = &use,
    .begin = begin,
    .run = run,
    .ranks = CMD_ALL_RANKS};
