/* tessera estimate: what a run will need, before anything runs. */
#include "tools/commands/cmd.h"
#include "tools/simulate/simulation.h"

enum { RANKS = CMD_MACHINE_OPTIONS, FITS, OPTIONS_COUNT };
static option options[OPTIONS_COUNT] = {
    CMD_ELSEWHERE,
    [RANKS] = {"--ranks", "N", "for N ranks, each on a machine like this one; prints the rank that holds the most",
               NULL},
    [FITS] = {"--fits", NULL, "ends with status 1 and a line on stderr when the run does not fit", NULL},
};

static const char *const required[] = {"model", NULL};
const tess_config_use cmd_estimate_use = {
    "model deterministic data.seq_length data.valid eval_every eval.tasks train_batch_size "
    "train_micro_batch_size_per_gpu "
    "gradient_accumulation_steps "
    "optimizer optimizer_states gradient_clipping bf16 fp16 amp torch_autocast memory parallel zero_optimization aio "
    "activation_checkpointing",
    required};

/* Estimates in the program that simulates: one rank stands for all there, and makes no step. */
static tess_status run_elsewhere(int rest, char **argv)
{
    tess_simulation simulation = {.must_fit = options[FITS].value};
    CMD_FREED tess_config config = {0};
    if (options[RANKS].value)
        return tess_error(TESS_INVALID, "command line",
                          "--ranks %s: on a machine's file --nodes and --ranks-per-node say it", options[RANKS].value);
    TESS_TRY(cmd_simulation_read(options, &simulation));
    simulation.fold = (tess_fold){1, tess_ranks(), 1};
    TESS_TRY(cmd_config(1 + rest, argv, required, &config));
    return cmd_simulation_run(&simulation, rest, argv + 1);
}

static tess_status run(int rest, char **argv)
{
    double ranks = 1;
    TESS_TRY(cmd_whole_number(&options[RANKS], 1, 1e6, &ranks));
    if (options[CMD_MACHINE].value) return run_elsewhere(rest, argv);
    for (int i = CMD_NODES; i <= CMD_RANKS; i++)
        if (options[i].value)
            return tess_error(TESS_INVALID, "command line", "%s: without a machine (--machine FILE names one)",
                              options[i].name);
    if (options[RANKS].value) tess_ranks_pretend(0, (int)ranks);
    CMD_FREED tess_config config = {0};
    TESS_TRY(cmd_config(1 + rest, argv, required, &config));
    return (options[FITS].value ? tess_estimate_fits : tess_estimate)(&config, stdout);
}

const command cmd_estimate = {
    .name = "estimate",
    .usage =
        "estimate CONFIG.json [KEY=VALUE ...] [--ranks N] [--machine FILE [--nodes N] [--ranks-per-node N]] [--fits]",
    .summary = "Prints what each memory tier will hold, the bytes moved and the time a step should take.",
    CMD_OPTIONS(options),
    .more =
        "The lines of a tier add up to its \"in all\". Of a run that does not fit the same is printed, with what it "
        "would\n"
        "take where there is room, and behind \"does not fit\" the least value of the setting that would do. It is an\n"
        "estimate too: the exit status is 0, unless --fits was given. With --machine it is the estimate of a machine\n"
        "that is not here (docs/simulate.md), and of the rank of all on its nodes that holds the most; with --fits as "
        "well\n"
        "it ends where weights and states alone have no room.\n",
    .use = &cmd_estimate_use,
    .run = run,
    .ranks = CMD_ONE_OF_RANKS};
