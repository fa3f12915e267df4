/* tessera explain: where a traced step's time went. */
#include "tools/commands/cmd.h"

static const option CSV = {"--csv", "FILE", "writes the trace's tasks there instead, one a line", NULL};

static tess_status run(int argc, char **argv)
{
    option csv = CSV;
    int rest;
    TESS_TRY(cmd_parse(&csv, 1, argc, argv, &rest));
    if (rest != 1)
        return tess_error(TESS_INVALID, "command line", "%d directories, expected tessera explain OUTPUT", rest);
    return csv.value ? tess_explain_csv(argv[1], csv.value, stdout) : tess_explain(argv[1], stdout);
}

static void help(FILE *out)
{
    cmd_option_help(&CSV, 1, out);
    fputs(
        "\nOUTPUT is the directory of a run with \"trace\": {\"steps\": [3, 5]}, or train --trace 3:5. It prints the "
        "path\n"
        "that the step's length hangs on, work and idle by worker, what was hidden of transfers, how far the step is\n"
        "from its bounds, and what other settings would change on paper.\n",
        out);
}

const command cmd_explain = {"explain",
                             "explain OUTPUT [--csv FILE]",
                             "Says where the time of a traced step went, and what would help.",
                             help,
                             run,
                             CMD_ONE_RANK};
