/* tessera explain: where a traced step's time went. */
#include "tools/commands/cmd.h"

static option options[] = {{"--csv", "FILE", "writes the trace's tasks there instead, one a line", NULL}};

static tess_status run(int rest, char **argv)
{
    if (rest != 1)
        return tess_error(TESS_INVALID, "command line", "%d directories, expected tessera explain OUTPUT", rest);
    return options[0].value ? tess_explain_csv(argv[1], options[0].value, stdout) : tess_explain(argv[1], stdout);
}

const command cmd_explain = {
    .name = "explain",
    .usage = "explain OUTPUT [--csv FILE]",
    .summary = "Says where the time of a traced step went, and what would help.",
    CMD_OPTIONS(options),
    .more =
        "OUTPUT is the directory of a run with \"trace\": {\"steps\": [3, 5]}, or train --trace 3:5. It prints the "
        "path\n"
        "that the step's length hangs on, work and idle by worker, what was hidden of transfers, how far the step is\n"
        "from its bounds, and what other settings would change on paper.\n",
    .run = run,
    .ranks = CMD_ONE_RANK};
