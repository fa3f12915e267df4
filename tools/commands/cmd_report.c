/* tessera report: report.html of a run, or of several side by side, from the files they left. */
#include "tools/commands/cmd.h"

static option options[] = {
    {"-o", "FILE", "where the page goes; OUTPUT/report.html of one run, report.html of several", NULL}};

static tess_status run(int rest, char **argv)
{
    if (!rest)
        return tess_error(TESS_INVALID, "command line",
                          "no run, expected tessera report OUTPUT [OUTPUT ...] [-o FILE]");
    return tess_report_runs((const char *const *)argv + 1, rest, options[0].value, stdout);
}

const command cmd_report = {
    .name = "report",
    .usage = "report OUTPUT [OUTPUT ...] [-o FILE]",
    .summary = "Writes a page, report.html, that shows a run, or several side by side.",
    CMD_OPTIONS(options),
    .more = "Each OUTPUT is the directory of a run, which may be over, go on, or come from another machine: "
            "metrics.jsonl\n"
            "and config.json are all that is needed there. plan.json adds the machine and the estimate, and the page "
            "shows\n"
            "a samples.txt if there is one. The page is one file that loads no other, and needs no network.\n",
    .run = run,
    .ranks = CMD_ONE_RANK};
