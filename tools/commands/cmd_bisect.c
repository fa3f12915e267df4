/* tessera bisect: where two runs part. */
#include "tools/commands/cmd.h"
#include <stdlib.h>
#include <unistd.h>

static option options[] = {
    {"--replay", "FROM:TO", "makes these steps of one RUN once more; bisect starts its ranks so", NULL}};

/* What is started again: this very program. */
static char *self(void)
{
    char path[4096];
    const ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);
    return n > 0 ? tess_format("%.*s", (int)n, path) : tess_strdup("tessera");
}

static tess_status run(int rest, char **argv)
{
    if (rest != (options[0].value ? 1 : 2))
        return tess_error(TESS_INVALID, "command line", "%d directories, expected tessera bisect RUN_A RUN_B", rest);
    if (options[0].value) return tess_bisect_replay(argv[1], options[0].value);
    TESS_FREED char *program = self();
    const tess_status status = tess_bisect((const char *const[]){argv[1], argv[2]}, program, stdout);
    return status;
}

const command cmd_bisect = {
    .name = "bisect",
    .usage = "bisect RUN_A RUN_B",
    .summary = "Finds the first step, op, tile and rank where two runs that should be equal part.",
    CMD_OPTIONS(options),
    .more =
        "RUN_A and RUN_B are outputs of runs of one configuration, however many workers, ranks, caps and drives "
        "each\n"
        "had: all of that changes no bit. Where their metrics or checkpoints differ the steps from the last common\n"
        "checkpoint on are made once more, with digests of all tiles, in RUN/bisect. Runs that were trained with\n"
        "digests.steps=[A,B] are compared as they are. It prints the first step, op, tile and rank that differ. The\n"
        "exit status is 0 where the runs are equal, 1 where they part.\n",
    .run = run,
    .ranks = CMD_ALL_RANKS};
