/* tessera bench: tokens/s, and where the time of a step goes. */
#include "models/text/base/text.h"
#include "tools/commands/cmd.h"
#include "tools/simulate/simulation.h"
#include <string.h>

static char model[] = "model={\"model_type\": \"gpt2\", \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}";

static option options[] = {
    {"--steps", "N", "how many steps are measured; 3 if not given", NULL},
    {"--trace", "A:B", "write what happens in steps A to B to OUTPUT/trace.json: trace.steps=[A,B]", NULL},
    {"--machine", "FILE",
     "adds what codelets reach here, or what messages of several ranks take, to this machine's file, for tessera "
     "simulate",
     NULL}};

static const char *const required[] = {"model", NULL};
static const tess_config_use use = {
    "model seed deterministic data.seq_length train_batch_size train_micro_batch_size_per_gpu "
    "gradient_accumulation_steps optimizer optimizer_states gradient_clipping bf16 fp16 amp torch_autocast memory "
    "parallel "
    "zero_optimization aio activation_checkpointing output trace",
    required};

static tess_status load(int count, char **settings, tess_config *config)
{
    const char *set[64] = {model, "train_batch_size=4", "train_micro_batch_size_per_gpu=4", "gradient_clipping=0"};
    size_t n = 4;
    for (int i = 0; i < count && n < 64; i++) set[n++] = settings[i];
    TESS_TRY(tess_config_load(NULL, set, n, config));
    return tess_config_resolve(config, tess_ranks());
}

static tess_status run(int rest, char **argv)
{
    TESS_FREED char *trace = NULL;
    double steps = 3;
    TESS_TRY(cmd_number(&options[0], 1, 1e6, &steps));
    TESS_TRY(cmd_trace(&options[1], &trace));
    if (trace) argv[1 + rest++] = trace; /* one more KEY=VALUE, in a place that the option left free */
    CMD_FREED tess_config config = {0};
    if (rest > 0 && !strchr(argv[1], '='))
        TESS_TRY(cmd_config(1 + rest, argv, required, &config));
    else
        TESS_TRY(load(rest, argv + 1, &config));
    const char *machine = options[2].value;
    return machine ? tess_bench_machine(&config, (int)steps, machine, stdout) : tess_bench(&config, (int)steps, stdout);
}

const command cmd_bench = {
    .name = "bench",
    .usage = "bench [CONFIG.json] [KEY=VALUE ...] [--steps N] [--trace A:B] [--machine FILE]",
    .summary = "Measures training steps on random tokens, and where their time goes.",
    CMD_OPTIONS(options),
    .more = "Without CONFIG.json it measures GPT-2 124M with 4 x 1024 tokens a step. Keys are set as for train, as in\n"
            "bf16.enabled=true.\n",
    .use = &use,
    .run = run,
    .ranks = CMD_ALL_RANKS};
