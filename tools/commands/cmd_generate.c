/* tessera generate: goes on from a prompt, or from each of a file, with a trained model. */
#include "tools/commands/cmd.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const tess_config_use use = {"bf16 fp16 memory aio", (const char *const[]){NULL}};

enum {
    PROMPT,
    PROMPTS,
    TOKENS,
    TEMPERATURE,
    TOP_K,
    TOP_P,
    PENALTY,
    SEED,
    BATCH,
    BEST,
    IGNORE_END,
    CHAT,
    SYSTEM,
    ADAPTER,
    OPTIONS_COUNT
};
static option options[OPTIONS_COUNT] = {
    [PROMPT] = {"--prompt", "TEXT", "what to go on from", NULL},
    [PROMPTS] = {"--prompts", "FILE", "a prompt a line, or a .jsonl of {\"prompt\"}, {\"messages\"} or {\"input_ids\"}",
                 NULL},
    [TOKENS] = {"-n", "N", "tokens to add; 64", NULL},
    [TEMPERATURE] = {"--temperature", "X", "spread of the draw; 1, and 0 is always the likeliest", NULL},
    [TOP_K] = {"--top-k", "K", "draw from the K likeliest; 0, and 0 is all", NULL},
    [TOP_P] = {"--top-p", "P", "draw from the likeliest that have the probability P; 1, which is all", NULL},
    [PENALTY] = {"--repetition-penalty", "X", "of tokens that were there already, above 1; 1, which is none", NULL},
    [SEED] = {"--seed", "S", "of the draw; 1", NULL},
    [BATCH] = {"--batch", "B", "texts at a time; 8", NULL},
    [BEST] = {"--best", "K", "draw K texts of each prompt, and keep the one of the highest mean log-probability; 1",
              NULL},
    [IGNORE_END] = {"--ignore-eos", NULL, "go on behind a token that ends a text", NULL},
    [CHAT] = {"--chat", NULL, "talk: turns come line by line from stdin, by the model's chat template", NULL},
    [SYSTEM] = {"--system", "TEXT", "with --chat: what the system says before the first turn", NULL},
    [ADAPTER] = {"--adapter", "DIR", "adapters beside the model, as PEFT or a run with lora writes them", NULL},
};

/* What is said of memory and precision. */
static tess_status config_of(int count, char **said, tess_config *config)
{
    TESS_FREED const char **set = tess_alloc((size_t)(count + 1) * sizeof *set);
    set[0] = "train_batch_size=1";
    for (int i = 0; i < count; i++) set[i + 1] = said[i];
    tess_status status = tess_config_load(NULL, set, (size_t)count + 1, config);
    return status == TESS_OK ? tess_config_resolve(config, 1) : status;
}

static tess_status run(int rest, char **argv)
{
    double tokens = 64, temperature = 1, top_k = 0, top_p = 1, penalty = 1, seed = 1, batch = 8, best = 1;
    TESS_TRY(cmd_whole_number(&options[TOKENS], 1, 1e9, &tokens));
    TESS_TRY(cmd_number(&options[TEMPERATURE], 0, 1e6, &temperature));
    TESS_TRY(cmd_whole_number(&options[TOP_K], 0, 1e9, &top_k));
    TESS_TRY(cmd_number(&options[TOP_P], 1e-9, 1, &top_p));
    TESS_TRY(cmd_number(&options[PENALTY], 1e-3, 1e3, &penalty));
    TESS_TRY(cmd_whole_number(&options[SEED], 0, 9e15, &seed));
    TESS_TRY(cmd_whole_number(&options[BATCH], 1, 4096, &batch));
    TESS_TRY(cmd_whole_number(&options[BEST], 1, 1e6, &best));
    int settings = 0;
    while (settings < rest - 1 && strchr(argv[rest - settings], '=')) settings++;
    if (rest - settings == 2 && !options[PROMPT].value && access(argv[2], F_OK))
        return tess_error(TESS_INVALID, "command line", "%.100s: no directory (did you mean --prompt \"%.100s\"?)",
                          argv[2], argv[2]);
    if (rest - settings != 1)
        return tess_error(TESS_INVALID, "command line",
                          "%d directories, expected one MODEL_DIR (OUTPUT/model of a run, or a checkpoint)",
                          rest - settings);
    if (options[CHAT].value && (options[PROMPT].value || options[PROMPTS].value))
        return tess_error(TESS_INVALID, "command line", "--chat and --prompt: both are given, expected one");
    if (best > 1 && (options[CHAT].value || temperature == 0))
        return tess_error(TESS_INVALID, "command line", "--best: %s",
                          options[CHAT].value ? "in a conversation there is one answer (of --prompt there may be more)"
                                              : "with --temperature 0 all texts are the same (above 0 they differ)");
    if (options[SYSTEM].value && !options[CHAT].value)
        return tess_error(TESS_INVALID, "command line",
                          "--system: without --chat (of a file it is a message of its own)");
    if (!options[CHAT].value && !options[PROMPT].value && !options[PROMPTS].value)
        return tess_error(TESS_INVALID, "command line", "--prompt: missing (%s)", options[PROMPT].help);
    if (options[PROMPT].value && options[PROMPTS].value)
        return tess_error(TESS_INVALID, "command line", "--prompt and --prompts: both are given, expected one");
    CMD_FREED tess_config config = {0};
    TESS_TRY(config_of(settings, argv + 2, &config));
    return tess_generate(&(tess_generate_conf){.dir = argv[1],
                                               .prompt = options[PROMPT].value,
                                               .chat = options[CHAT].value,
                                               .system = options[SYSTEM].value,
                                               .adapter = options[ADAPTER].value,
                                               .tokens = (int)tokens,
                                               .temperature = temperature,
                                               .top_k = (int)top_k,
                                               .seed = (uint64_t)seed,
                                               .top_p = top_p,
                                               .repetition_penalty = penalty,
                                               .prompts = options[PROMPTS].value,
                                               .batch = (int)batch,
                                               .best = (int)best,
                                               .ignore_end = options[IGNORE_END].value != NULL,
                                               .config = &config},
                         stdout);
}

const command cmd_generate = {
    .name = "generate",
    .usage = "generate MODEL_DIR --prompt TEXT | --chat [--system TEXT] -n N [--temperature X] "
             "[--top-k K] [--top-p P] [--best K] [--seed S] "
             "[--adapter DIR] [KEY=VALUE ...]",
    .summary = "Goes on from a prompt with a trained model, or with a checkpoint.",
    CMD_OPTIONS(options),
    .more =
        "MODEL_DIR may be a checkpoint, or a directory of them: the newest one is taken, also while a run "
        "writes\n"
        "there. A text ends where the model draws a token that ends one, as its generation_config.json, config.json "
        "or\n"
        "tokenizer says. Of a file of lines each is printed with what was added, line ends as \\n; of a .jsonl an "
        "object\n"
        "{\"prompt\", \"completion\"}, {\"messages\"} with the answer, or {\"input_ids\", \"output_ids\"}. How many "
        "tokens a second there were is "
        "said on\n"
        "stderr.\n",
    .use = &use,
    .run = run,
    .ranks = CMD_ONE_RANK};
