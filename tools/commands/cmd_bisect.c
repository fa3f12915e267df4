/* tessera bisect: where two runs part. */
#include "tools/commands/cmd.h"
#include <stdlib.h>
#include <unistd.h>

static const option REPLAY = {"--replay", "FROM:TO",
                              "makes these steps of one RUN once more; bisect starts its ranks so", NULL};

/* What is started again: this very program. */
static char *self(void)
{
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    return n > 0 ? tess_format("%.*s", (int)n, path) : tess_strdup("tessera");
}

static tess_status run(int argc, char **argv)
{
    option replay = REPLAY;
    int rest;
    TESS_TRY(cmd_parse(&replay, 1, argc, argv, &rest));
    if (rest != (replay.value ? 1 : 2))
        return tess_error(TESS_INVALID, "command line", "%d directories, expected tessera bisect RUN_A RUN_B", rest);
    if (replay.value) return tess_bisect_replay(argv[1], replay.value);
    char *program = self();
    const tess_status status = tess_bisect((const char *const[]){argv[1], argv[2]}, program, stdout);
    free(program);
    return status;
}

static void help(FILE *out)
{
    cmd_option_help(&REPLAY, 1, out);
    fputs("\nRUN_A and RUN_B are outputs of runs of one configuration, however many workers, ranks, caps and drives "
          "each\n"
          "had: all of that changes no bit. Where their metrics or checkpoints differ the steps from the last common\n"
          "checkpoint on are made once more, with digests of all tiles, in RUN/bisect. Runs that were trained with\n"
          "digests.steps=[A,B] are compared as they are. It prints the first step, op, tile and rank that differ. The\n"
          "exit status is 0 where the runs are equal, 1 where they part.\n",
          out);
}

const command cmd_bisect = {"bisect",
                            "bisect RUN_A RUN_B",
                            "Finds the first step, op, tile and rank where two runs that should be equal part.",
                            help,
                            run,
                            CMD_ALL_RANKS};
