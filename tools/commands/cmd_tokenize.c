/* tessera tokenize: what a model's tokenizer makes of lines of text, and back. */
#include "tools/commands/cmd.h"

enum { SPECIAL, DECODE, OPTIONS_COUNT };
static option options[OPTIONS_COUNT] = {
    [SPECIAL] = {"--special", NULL, "with the tokens that the tokenizer's post-processor puts around a text", NULL},
    [DECODE] = {"--decode", NULL, "from ids to text", NULL},
};

static tess_status run(int rest, char **argv)
{
    if (rest < 1 || rest > 2)
        return tess_error(TESS_INVALID, "command line", "%d names, expected MODEL_DIR [FILE]", rest);
    if (options[SPECIAL].value && options[DECODE].value)
        return tess_error(TESS_INVALID, "command line", "--special: decides nothing with --decode");
    return tess_tokenize(&(tess_tokenize_conf){.dir = argv[1],
                                               .file = rest > 1 ? argv[2] : NULL,
                                               .special = options[SPECIAL].value,
                                               .decode = options[DECODE].value},
                         stdout);
}

const command cmd_tokenize = {
    .name = "tokenize",
    .usage = "tokenize MODEL_DIR [FILE] [--special] [--decode]",
    .summary = "Prints a line of ids for each line of a text, or the text again.",
    CMD_OPTIONS(options),
    .more = "FILE is read line by line, and stdin where there is none. A line's end is no part of it.\n",
    .run = run,
    .ranks = CMD_ONE_RANK};
