/* tessera graph: the step of a run as an instance for those who study schedules. */
#include "tools/commands/cmd.h"

enum { EXPORT, RANKS, OPTIONS_COUNT };
static option options[OPTIONS_COUNT] = {
    [EXPORT] = {"--export", "FILE", "writes it there: all of it to FILE.json, tasks and who waits for whom to FILE.dot",
                NULL},
    [RANKS] = {"--ranks", "N", "the step of rank 0 of N, each on a machine like this one", NULL},
};

static tess_status run(int rest, char **argv)
{
    static const char *const required[] = {"model", NULL};
    double ranks = 1;
    TESS_TRY(cmd_whole_number(&options[RANKS], 1, 1e6, &ranks));
    if (!options[EXPORT].value)
        return tess_error(TESS_INVALID, "command line", "no --export FILE (FILE.json or FILE.dot)");
    if (options[RANKS].value) tess_ranks_pretend(0, (int)ranks);
    CMD_FREED tess_config config = {0};
    TESS_TRY(cmd_config(1 + rest, argv, required, &config));
    return tess_graph_export(&config, options[EXPORT].value, stdout);
}

const command cmd_graph = {
    .name = "graph",
    .usage = "graph CONFIG.json [KEY=VALUE ...] --export FILE [--ranks N]",
    .summary = "Writes the tasks of a step, their tiles and who waits for whom, in JSON or for Graphviz.",
    CMD_OPTIONS(options),
    .more =
        "The instance is what a scheduler gets: the machine and its caps, tiles, tasks in the order of the plan "
        "with\n"
        "what they read and write, whom they wait for and how long they should take, the plan's forecast and a lower\n"
        "bound. Nothing runs. A task's id is its \"order\" in a trace (docs/observe.md).\n",
    .use = &cmd_estimate_use,
    .run = run,
    .ranks = CMD_ONE_OF_RANKS};
