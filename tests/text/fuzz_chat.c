/* Any bytes as a chat template: it is refused, or conversations are written with it, the same each time, and what the
 * assistant says of them is told or said to be untold. */
#include "models/text/chat/chat.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 30000;

static const char *const talks[] = {
    "{\"messages\": [{\"role\": \"system\", \"content\": \"be\"}, {\"role\": \"user\", \"content\": \" q\\u00e9 \"}, "
    "{\"role\": \"assistant\", \"content\": \"a<think>b</think>c\"}, {\"role\": \"user\", \"content\": \"r\"}]}",
    "{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"t\"}]}, {\"role\": "
    "\"assistant\", \"content\": \"\", \"tool_calls\": [{\"type\": \"function\", \"function\": {\"name\": \"f\", "
    "\"arguments\": {\"x\": [1, 2.5, true, null]}}}]}, {\"role\": \"tool\", \"content\": \"1\"}, {\"role\": "
    "\"assistant\", \"content\": \"d\"}], \"tools\": [{\"type\": \"function\", \"function\": {\"name\": \"f\"}}]}"};

static void check_labels(const tess_ids *ids, const tess_ids *labels)
{
    TESS_ASSERT(ids->count == labels->count);
    for (size_t k = 0; k < ids->count; k++) TESS_ASSERT(labels->id[k] == -100 || labels->id[k] == ids->id[k]);
}

static void talk_twice(const tess_chat *chat, const json_t *talk)
{
    char *text[2] = {NULL, NULL};
    size_t length[2];
    tess_ids ids = {0}, labels = {0};
    const tess_status first = tess_chat_render(chat, "talk", talk, false, &text[0], &length[0]);
    if (first != TESS_OK) return;
    TESS_ASSERT(tess_chat_render(chat, "talk", talk, false, &text[1], &length[1]) == TESS_OK);
    TESS_ASSERT(length[0] == length[1] && !memcmp(text[0], text[1], length[0]));
    if (length[0] < 10000 && tess_chat_encode(chat, NULL, "talk", talk, TESS_CHAT_ANSWERS, &ids, &labels) == TESS_OK)
        check_labels(&ids, &labels);
    tess_ids_free(&ids);
    tess_ids_free(&labels);
    free(text[0]);
    free(text[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static json_t *talk[2];
    for (int k = 0; k < 2; k++)
        if (!talk[k]) talk[k] = json_loads(talks[k], 0, NULL);
    if (memchr(data, 0, bytes)) return 0;
    char *whole = tess_alloc(bytes + 1), *text;
    memcpy(whole, data, bytes);
    text = fuzz_copy(whole, bytes + 1);
    free(whole);
    tess_chat *chat;
    if (tess_chat_of("mine", text, &chat) == TESS_OK) {
        fuzz_taken++;
        for (int k = 0; k < 2; k++) talk_twice(chat, talk[k]);
        tess_chat_free(chat);
    }
    free(text);
    return 0;
}
