/* Prompts: one that was said, or those of a file, and how what became of them is written. */
#ifndef TESS_PROMPTS_IMPL_H
#define TESS_PROMPTS_IMPL_H
#include "models/text/tokenizer/tokenizer.h"
#include <jansson.h>

typedef struct tess_prompt {
    char *text;   /* NULL: it came as ids, or is */
    json_t *talk; /* a conversation, {"messages"}, that the assistant is to go on with; NULL: it is none */
    tess_ids ids; /* what the model reads */
    int64_t line; /* of its file; 0: it is of none */
} tess_prompt;

typedef enum tess_prompts_form { TESS_PROMPTS_SAID, TESS_PROMPTS_LINES, TESS_PROMPTS_EXAMPLES } tess_prompts_form;
typedef struct tess_prompts {
    tess_prompt *prompt;
    size_t count, room;
    tess_prompts_form form;
    const char *where; /* for messages: "--prompt", or the file */
} tess_prompts;

/* Takes the text that was said. */
void tess_prompts_said(tess_prompts *p, const char *text);
/* Reads a file: a prompt a line, empty ones left out; of a .jsonl objects {"prompt"}, {"messages"} or {"input_ids"}.
 */
tess_status tess_prompts_read(tess_prompts *p, const char *path, int64_t vocab) TESS_NODISCARD;
/* Frees them; those that are zeroed are nothing. */
void tess_prompts_free(tess_prompts *p);
/* Writes what was added to one of a file: its line, the prompt with what was added, a line's end in it as \n and a \ as
 * \\; or an object {"prompt", "completion"}, {"input_ids", "output_ids"}, or {"messages"} with the answer behind them.
 */
void tess_prompt_write(const tess_prompts *p, const tess_prompt *of, const tess_tokenizer *t, const int32_t *added,
                       size_t count, bool with_prompt, FILE *out);

#endif
