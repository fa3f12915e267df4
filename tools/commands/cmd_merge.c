/* tessera merge: adapters folded into their model. */
#include "tools/commands/cmd.h"

static tess_status run(int rest, char **argv)
{
    if (rest != 3)
        return tess_error(TESS_INVALID, "command line", "%d directories, expected three: MODEL_DIR ADAPTER_DIR DIR",
                          rest);
    return tess_merge(argv[1], argv[2], argv[3], stdout);
}

const command cmd_merge = {
    .name = "merge",
    .usage = "merge MODEL_DIR ADAPTER_DIR DIR",
    .summary = "Folds the adapters of a run with lora, or of PEFT, into their model's weights.",
    .more =
        "ADAPTER_DIR is one as PEFT writes it, OUTPUT/model of a run with lora, or a checkpoint of one. DIR gets the\n"
        "weights of MODEL_DIR with the adapters folded in, each tensor in its own dtype; it must not hold a model "
        "yet.\n",
    .run = run,
    .ranks = CMD_ONE_RANK};
