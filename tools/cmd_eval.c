/* tessera eval: mean loss and perplexity on data.valid. */
#include "cmd.h"

static const char *const required[] = {"model", "data.valid", NULL};
const tess_config_use cmd_eval_use = {
    "model seed data.valid data.seq_length train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps "
    "bf16 fp16 amp torch_autocast memory parallel zero_optimization.stage zero_optimization.offload_param aio",
    required};

static tess_status run(int argc, char **argv)
{
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
                          NULL,
                          run,
                          CMD_ALL_RANKS};
