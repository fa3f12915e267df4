/* tessera export: the model of a checkpoint, for others to load. */
#include "tools/commands/cmd.h"

static tess_status run(int argc, char **argv)
{
    int rest;
    TESS_TRY(cmd_parse(NULL, 0, argc, argv, &rest));
    if (rest != 2)
        return tess_error(TESS_INVALID, "command line", "%d directories, expected two: CHECKPOINT DIR", rest);
    return tess_export(argv[1], argv[2], stdout);
}

static void help(FILE *out)
{
    fputs(
        "CHECKPOINT is one checkpoint (checkpoint.dir/step-00000100, checkpoint.dir/best), or a directory of them, of\n"
        "which the newest is taken, also while a run writes there. DIR must not hold a model yet.\n",
        out);
}

const command cmd_export = {
    "export",    "export CHECKPOINT DIR", "Writes the model of a checkpoint as a Hugging Face directory.", help, run,
    CMD_ONE_RANK};
