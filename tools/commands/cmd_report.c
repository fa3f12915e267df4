/* tessera report: report.html of a run, or of several side by side, from the files they left. */
#include "tools/commands/cmd.h"

static const option OPTIONS[] = {
    {"-o", "FILE", "where the page goes; OUTPUT/report.html of one run, report.html of several", NULL}};

static void help(FILE *out)
{
    cmd_option_help(OPTIONS, 1, out);
    fputs("\nEach OUTPUT is the directory of a run, which may be over, go on, or come from another machine: "
          "metrics.jsonl\n"
          "and config.json are all that is needed there. plan.json adds the machine and the estimate, and the page "
          "shows\n"
          "a samples.txt if there is one. The page is one file that loads no other, and needs no network.\n",
          out);
}

static tess_status run(int argc, char **argv)
{
    option options[] = {OPTIONS[0]};
    int rest;
    TESS_TRY(cmd_parse(options, 1, argc, argv, &rest));
    if (!rest)
        return tess_error(TESS_INVALID, "command line",
                          "no run, expected tessera report OUTPUT [OUTPUT ...] [-o FILE]");
    return tess_report_runs((const char *const *)argv + 1, rest, options[0].value, stdout);
}

const command cmd_report = {"report",
                            "report OUTPUT [OUTPUT ...] [-o FILE]",
                            "Writes a page, report.html, that shows a run, or several side by side.",
                            help,
                            run,
                            CMD_ONE_RANK};
