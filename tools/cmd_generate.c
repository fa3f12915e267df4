/* tessera generate: goes on from a prompt with a trained model. */
#include "cmd.h"

enum { PROMPT, TOKENS, TEMPERATURE, TOP_K, SEED, ADAPTER, OPTIONS_COUNT };
static const option OPTIONS[OPTIONS_COUNT] = {
    [PROMPT] = {"--prompt", "TEXT", "what to go on from", NULL},
    [TOKENS] = {"-n", "N", "tokens to add; 64", NULL},
    [TEMPERATURE] = {"--temperature", "X", "spread of the draw; 1, and 0 is always the likeliest", NULL},
    [TOP_K] = {"--top-k", "K", "draw from the K likeliest; 0, and 0 is all", NULL},
    [SEED] = {"--seed", "S", "of the draw; 1", NULL},
    [ADAPTER] = {"--adapter", "DIR", "adapters beside the model, as PEFT or a run with lora writes them", NULL},
};

static void help(FILE *out)
{
    cmd_option_help(OPTIONS, OPTIONS_COUNT, out);
    fputs("\nMODEL_DIR may be a checkpoint, or a directory of them, of which the newest is taken, also while a run "
          "writes\n"
          "there.\n",
          out);
}

static tess_status run(int argc, char **argv)
{
    option options[OPTIONS_COUNT];
    for (int i = 0; i < OPTIONS_COUNT; i++) options[i] = OPTIONS[i];
    double tokens = 64, temperature = 1, top_k = 0, seed = 1;
    int rest;
    TESS_TRY(cmd_parse(options, OPTIONS_COUNT, argc, argv, &rest));
    TESS_TRY(cmd_whole_number(&options[TOKENS], 1, 1e9, &tokens));
    TESS_TRY(cmd_number(&options[TEMPERATURE], 0, 1e6, &temperature));
    TESS_TRY(cmd_whole_number(&options[TOP_K], 0, 1e9, &top_k));
    TESS_TRY(cmd_whole_number(&options[SEED], 0, 9e15, &seed));
    if (rest != 1)
        return tess_error(TESS_INVALID, "command line",
                          "%d directories, expected one MODEL_DIR (OUTPUT/model of a run, or a checkpoint)", rest);
    if (!options[PROMPT].value)
        return tess_error(TESS_INVALID, "command line", "--prompt: missing (%s)", options[PROMPT].help);
    return tess_generate(&(tess_generate_conf){.dir = argv[1],
                                               .prompt = options[PROMPT].value,
                                               .adapter = options[ADAPTER].value,
                                               .tokens = (int)tokens,
                                               .temperature = temperature,
                                               .top_k = (int)top_k,
                                               .seed = (uint64_t)seed},
                         stdout);
}

const command cmd_generate = {
    "generate",
    "generate MODEL_DIR --prompt TEXT -n N [--temperature X] [--top-k K] [--seed S] [--adapter DIR]",
    "Goes on from a prompt with a trained model, or with a checkpoint.",
    help,
    run,
    CMD_ONE_RANK};
