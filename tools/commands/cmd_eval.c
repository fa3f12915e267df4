/* tessera eval: mean loss and perplexity on data.valid, or what the questions of a task come to. */
#include "tools/commands/cmd.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char *const required[] = {"model", "data.valid", NULL};
static const tess_config_use use = {
    "model seed data.train data.valid data.seq_length data.truncate data.end_completions data.loss_on data.pack "
    "data.pack_positions data.pack_examples "
    "data.mlm_probability data.mlm_whole_words data.mask_token data.noise_density data.mean_noise_span "
    "data.sentinel_token train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
    "lora.from bf16 fp16 amp torch_autocast memory parallel zero_optimization.stage zero_optimization.offload_param "
    "aio preference",
    required};

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A model's or a checkpoint's directory in the place of a configuration: what it says comes before what is said. */
static tess_status config_of(const char *dir, int count, char **said, bool valid, tess_config *config)
{
    enum { OURS = 4 };
    int64_t length;
    bool batch = false;
    tess_dtype dtype;
    *config = (tess_config){0};
    TESS_TRY(tess_eval_facts(dir, &length, &dtype));
    for (int i = 0; i < count; i++) batch |= !strncmp(said[i], "train_", 6) || !strncmp(said[i], "gradient_acc", 12);
    const char **set = tess_alloc((size_t)(count + OURS) * sizeof *set);
    char *ours[OURS] = {tess_format("model=%s", dir), tess_format("data.seq_length=%lld", (long long)length),
                        dtype == TESS_F16 ? tess_format("fp16.enabled=true")
                                          : tess_format("bf16.enabled=%s", dtype == TESS_BF16 ? "true" : "false"),
                        batch ? NULL : tess_format("train_micro_batch_size_per_gpu=8")};
    static const char *const dtypes[] = {"bf16.", "fp16.", "amp.", "torch_autocast."};
    bool dtype_said = false;
    for (int i = 0; i < count; i++)
        for (int k = 0; k < 4; k++) dtype_said |= !strncmp(said[i], dtypes[k], strlen(dtypes[k]));
    if (dtype_said) free(ours[2]), ours[2] = NULL;
    int n = 0;
    for (int i = 0; i < OURS; i++)
        if (ours[i]) set[n++] = ours[i];
    for (int i = 0; i < count; i++) set[n++] = said[i];
    tess_status status = tess_config_load(NULL, set, (size_t)n, config);
    for (int i = 0; i < OURS; i++) free(ours[i]);
    free(set);
    if (status == TESS_OK && valid) status = tess_config_require(config, "data.valid");
    return status == TESS_OK ? tess_config_resolve(config, tess_ranks()) : status;
}

enum { ADAPTER, TASK, SAMPLES, OPTIONS };
static option options[OPTIONS] = {
    [ADAPTER] = {"--adapter", "DIR", "adapters beside the model: lora.from", NULL},
    [TASK] = {"--task", "FILE", "questions that the model answers, in place of data.valid (.jsonl)", NULL},
    [SAMPLES] = {"--samples", "FILE", "with --task: a line for each question goes there", NULL}};

static tess_status evaluate(int count, char **said)
{
    static const char *const model[] = {"model", NULL};
    const char *task = options[TASK].value;
    CMD_FREED tess_config config = {0};
    if (count > 0 && is_directory(said[1]))
        TESS_TRY(config_of(said[1], count - 1, said + 2, !task, &config));
    else
        TESS_TRY(cmd_config(1 + count, said, task ? model : required, &config));
    return task ? tess_eval_task(&config, task, options[SAMPLES].value, stdout) : tess_eval(&config);
}

static tess_status run(int rest, char **argv)
{
    if (options[SAMPLES].value && !options[TASK].value)
        return tess_error(TESS_INVALID, "command line", "--samples: are of a task (--task FILE has its questions)");
    if (!options[ADAPTER].value) return evaluate(rest, argv);
    TESS_FREED char **said = tess_alloc((size_t)(rest + 2) * sizeof *said),
                    *from = tess_format("lora.from=%s", options[ADAPTER].value);
    memcpy(said, argv, (size_t)(rest + 1) * sizeof *said);
    said[rest + 1] = from;
    return evaluate(rest + 1, said);
}

const command cmd_eval = {
    .name = "eval",
    .usage = "eval CONFIG.json|DIR [KEY=VALUE ...] [--adapter DIR] [--task FILE [--samples FILE]]",
    .summary = "Prints the mean loss and the perplexity of the model on data.valid.",
    CMD_OPTIONS(options),
    .more =
        "In the configuration's place a model's directory may stand, or a checkpoint's, or one of checkpoints, "
        "whose\n"
        "newest is taken: data.seq_length, bf16.enabled and fp16.enabled are then its run's, and data.valid is to be "
        "said:\n"
        "  tessera eval checkpoints data.valid=held-out.txt\n"
        "A task's questions are lines {\"context\", \"choices\", \"answer\"}, {\"context\", \"continuation\"} or\n"
        "{\"prompt\", \"answer\", \"until\"}, or of samples_*.jsonl as lm-evaluation-harness writes them "
        "(docs/tasks.md):\n"
        "  tessera eval out/model --task arc.jsonl\n"
        "A configuration's model without weights is drawn from seed, and a line says so.\n",
    .use = &use,
    .run = run,
    .ranks = CMD_ALL_RANKS};
