/* tessera export: the model of a checkpoint, for others to load. */
#include "tools/commands/cmd.h"

enum { GGUF, DTYPE, OPTIONS };
static option options[OPTIONS] = {
    {"--gguf", "FILE.gguf", "writes the file that llama.cpp reads, in the place of DIR", NULL},
    {"--dtype", "NAME", "of its matrices: f16 (the default), q8_0, bf16 or f32", NULL},
};

static tess_status run(int rest, char **argv)
{
    const option *gguf = &options[GGUF], *dtype = &options[DTYPE];
    if (gguf->value && rest == 1)
        return tess_export_gguf(argv[1], gguf->value, dtype->value ? dtype->value : "f16", stdout);
    if (gguf->value) return tess_error(TESS_INVALID, "command line", "%d directories, expected one: CHECKPOINT", rest);
    if (dtype->value) return tess_error(TESS_INVALID, "command line", "--dtype is of a GGUF file (--gguf FILE.gguf)");
    if (rest != 2)
        return tess_error(TESS_INVALID, "command line", "%d directories, expected two: CHECKPOINT DIR", rest);
    return tess_export(argv[1], argv[2], stdout);
}

const command cmd_export = {
    .name = "export",
    .usage = "export CHECKPOINT DIR",
    .summary = "Writes the model of a checkpoint as a Hugging Face directory.",
    CMD_OPTIONS(options),
    .more =
        "CHECKPOINT is one checkpoint (checkpoint.dir/step-00000100, checkpoint.dir/best), or a directory of them, of\n"
        "which the newest is taken, also while a run writes there. DIR must not hold a model yet. To a GGUF file goes\n"
        "the model of any directory that has weights, with its tokenizer.\n",
    .run = run,
    .ranks = CMD_ONE_RANK};
