/* Any bytes as a tokenizer.model: it is refused, or a text goes through it and back. The first byte says whether blanks
 * come before a text once or behind each special token. */
#include "models/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 8000;

/* A text goes through it, and its ids through the decoder. */
static void go_through(const tess_tokenizer *t, const char *text)
{
    tess_ids ids = {0};
    if (tess_tokenizer_encode(t, "text", text, strlen(text), &ids) == TESS_OK) {
        size_t back;
        for (size_t i = 0; i < ids.count; i++) TESS_ASSERT(ids.id[i] >= 0 && ids.id[i] < tess_tokenizer_vocab(t));
        free(tess_tokenizer_decode(t, ids.id, ids.count, &back));
    }
    tess_ids_free(&ids);
}

static const char text[] = "It's 12 o'clock <s>  now\n \u2581caf\u00e9 e\u0301 \u65e5\u672c \U0001f600 <pad>";

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const config[] = {"{\"tokenizer_class\": \"LlamaTokenizer\"}",
                                         "{\"tokenizer_class\": \"LlamaTokenizer\", \"legacy\": false}"};
    tess_tokenizer *t;
    if (!bytes) return 0;
    fuzz_file_in_dir("tokenizer_config.json", config[data[0] & 1], strlen(config[data[0] & 1]));
    fuzz_file_in_dir("tokenizer.model", data + 1, bytes - 1);
    if (tess_tokenizer_open(fuzz_dir(), &t) != TESS_OK) return 0;
    fuzz_taken++;
    go_through(t, text);
    tess_tokenizer_free(t);
    return 0;
}
