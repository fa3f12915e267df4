/* Conversations: messages of roles, written as the model's own chat_template says.
 *
 *     tess_chat *chat;
 *     TESS_TRY(tess_chat_open("model", &chat));
 *     json_t *talk = ...;           // {"messages": [{"role": "user", "content": "Hello"}]}, perhaps with "tools"
 *     char *text;
 *     size_t length;
 *     TESS_TRY(tess_chat_render(chat, "here", talk, true, &text, &length)); // "<|im_start|>user\nHello<|im_end|>..."
 *     free(text);
 *     tess_chat_free(chat);
 */
#ifndef TESS_CHAT_H
#define TESS_CHAT_H
#include "models/text/tokenizer/tokenizer.h"
#include <jansson.h>

/* Stretches of a text: begin, end, begin, end, ... in bytes. */
typedef struct tess_text_spans {
    size_t *at, count, room;
} tess_text_spans;
/* Appends a stretch. */
void tess_text_spans_add(tess_text_spans *s, size_t begin, size_t end);
/* Frees them. */
void tess_text_spans_free(tess_text_spans *s);

typedef struct tess_chat tess_chat;
/* Opens a model directory's chat template: chat_template.jinja, or chat_template in tokenizer_config.json. A directory
 * without a template, or with a template that is not fully supported, is opened too, and rendering then fails. */
tess_status tess_chat_open(const char *dir, tess_chat **chat) TESS_NODISCARD;
/* Returns why it renders nothing; NULL: it does. */
const char *tess_chat_unsupported(const tess_chat *chat);
/* Returns whether there is no template at all; so is NULL. */
bool tess_chat_absent(const tess_chat *chat);
/* Makes one of a template in memory, which errors call `name`. */
tess_status tess_chat_of(const char *name, const char *text, tess_chat **chat) TESS_NODISCARD;
/* Frees it; NULL is nothing. */
void tess_chat_free(tess_chat *chat);
/* Returns a sum that differs where templates or special tokens do. */
uint64_t tess_chat_sum(const tess_chat *chat);
/* Returns the text of eos_token, which ends an assistant's turn; NULL: there is none. */
const char *tess_chat_end(const tess_chat *chat);
/* Writes a conversation as a new string, which the caller owns; with `answers` what begins the assistant's next turn is
 * added. `where` names the conversation in errors. */
tess_status tess_chat_render(const tess_chat *chat, const char *where, const json_t *talk, bool answers, char **text,
                             size_t *length) TESS_NODISCARD;
/* Which part of a conversation is learned: what the assistant says, everything, or all that follows a prompt. */
enum { TESS_CHAT_ANSWERS = 0, TESS_CHAT_ALL = -1 };
/* Appends a conversation's ids, and to `labels` the same ids where it is learned and -100 elsewhere. `learned` is one
 * of these, or of how many messages the prompt is. */
tess_status tess_chat_encode(const tess_chat *chat, const tess_tokenizer *t, const char *where, const json_t *talk,
                             int learned, tess_ids *ids, tess_ids *labels) TESS_NODISCARD;

#endif
