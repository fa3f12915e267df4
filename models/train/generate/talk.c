/* Talking with a model: turns come from the terminal, line by line, and go to the model with all that was said before,
 * as its chat template writes them. */
#include "models/text/base/text.h"
#include "models/text/chat/chat.h"
#include "models/train/generate/talk_impl.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void add_message(json_t *talk, const char *role, const char *content, size_t length)
{
    json_t *message = json_object();
    json_object_set_new(message, "role", json_string(role));
    json_object_set_new(message, "content", json_stringn(content, length));
    json_array_append_new(json_object_get(talk, "messages"), message);
}

/* One turn: what was said becomes ids, the answer is written and becomes a message. */
static tess_status take_turn(const tess_talk *k, const tess_chat *chat, json_t *talk)
{
    char *text, *said;
    size_t length;
    tess_ids ids = {0}, added = {0};
    TESS_TRY(tess_chat_render(chat, "the conversation", talk, true, &text, &length));
    tess_status status = tess_tokenizer_encode(k->tokenizer, "the conversation", text, length, &ids);
    if (status == TESS_OK) status = k->answer(k->user, &ids, k->out, &added);
    if (status == TESS_OK) {
        said = tess_tokenizer_decode(k->tokenizer, added.id, added.count, &length);
        add_message(talk, "assistant", said, length);
        free(said);
    }
    free(text);
    tess_ids_free(&ids);
    tess_ids_free(&added);
    return status;
}

static tess_status all_turns(const tess_talk *k, const tess_chat *chat)
{
    static const char adapter[] = "/adapter ";
    TESS_FREED_JSON json_t *talk = json_pack("{s[]}", "messages");
    if (k->system) add_message(talk, "system", k->system, strlen(k->system));
    TESS_FREED char *line = NULL;
    size_t room = 0;
    ssize_t n;
    const bool asks = isatty(fileno(k->in)) && isatty(STDERR_FILENO);
    tess_status status = TESS_OK;
    for (uint64_t number = 1; status == TESS_OK; number++) {
        if (asks) fputs("> ", stderr);
        if ((n = getline(&line, &room, k->in)) <= 0) break;
        if (line[n - 1] == '\n') n--;
        if (!n) continue;
        if (!strncmp(line, adapter, sizeof adapter - 1)) {
            line[n] = 0;
            if (k->adapt(k->user, line + sizeof adapter - 1) == TESS_OK) continue;
            tess_note("%s", tess_error_text()); /* and the talk goes on */
            tess_error_clear();
            continue;
        }
        json_t *check = json_stringn(line, (size_t)n);
        if (!check) status = tess_error(TESS_INVALID, "stdin", "line %llu is not UTF-8", (unsigned long long)number);
        json_decref(check);
        if (status != TESS_OK) break;
        add_message(talk, "user", line, (size_t)n);
        status = take_turn(k, chat, talk);
    }
    if (asks && status == TESS_OK) fputc('\n', stderr);
    if (status == TESS_OK && ferror(k->in))
        status = tess_error(TESS_FAILED, "stdin", "cannot be read: %s", strerror(errno));
    return status;
}

tess_status tess_talk_end(const char *dir, const tess_tokenizer *t, int32_t *end)
{
    tess_chat *chat;
    *end = -1;
    TESS_TRY(tess_chat_open(dir, &chat));
    const char *why = tess_chat_unsupported(chat);
    const tess_status status = why ? tess_error(TESS_INVALID, "--chat", "%s", why) : TESS_OK;
    if (tess_chat_end(chat)) *end = tess_tokenizer_added(t, tess_chat_end(chat));
    tess_chat_free(chat);
    return status;
}

tess_status tess_talk_run(const char *dir, const tess_talk *k)
{
    tess_chat *chat;
    TESS_TRY(tess_chat_open(dir, &chat));
    const tess_status status = all_turns(k, chat);
    tess_chat_free(chat);
    return status;
}
