/* tessera check: an exported network beside its framework. */
#include "tools/commands/cmd.h"

static tess_status run(int rest, char **argv)
{
    if (rest != 1) return tess_error(TESS_INVALID, "command line", "%d directories, expected one: DIR", rest);
    return tess_check(argv[1], stdout);
}

const command cmd_check = {
    .name = "check",
    .usage = "check DIR",
    .summary = "Compares an exported network's loss and gradients with its framework's.",
    .more =
        "DIR has graph.json and weights.safetensors, and check.safetensors, the batch that it was exported with. Its\n"
        "loss and the norms of its gradients are computed here, and compared with those that graph.json says.\n",
    .run = run,
    .ranks = CMD_ONE_RANK};
