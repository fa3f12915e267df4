/* Any bytes as a text: what is no UTF-8 is refused, and everything else becomes the same tokens in one go or piece by
 * piece, from which a tokenizer of bytes gives it back as it was. The first byte chooses the tokenizer. */
#include "models/text/base/text.h"
#include "models/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 8000;

enum { KINDS = 10 };

static const tess_tokenizer *tokenizer(int which)
{
    static const char *const path[KINDS] = {TESS_FIXTURES "/tokenizer_gpt2.json",
                                            TESS_FIXTURES "/tokenizer_llama3.json",
                                            NULL, /* bytes */
                                            TESS_FIXTURES "/tokenizers/roberta.json",
                                            TESS_FIXTURES "/tokenizers/qwen2.json",
                                            TESS_FIXTURES "/tokenizers/llama2.json",
                                            TESS_FIXTURES "/tokenizers/mistral.json",
                                            TESS_FIXTURES "/tokenizers/gemma.json",
                                            TESS_FIXTURES "/tokenizers/t5.json",
                                            TESS_FIXTURES "/tokenizers/bert.json"};
    static tess_tokenizer *t[KINDS];
    if (!t[which] && path[which]) TESS_ASSERT(tess_tokenizer_open(path[which], &t[which]) == TESS_OK);
    return t[which];
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!bytes) return 0;
    const tess_tokenizer *t = tokenizer(data[0] % KINDS);
    const size_t n = bytes - 1;
    char *text = fuzz_copy(data + 1, n);
    tess_ids ids = {0}, pieces = {0};
    tess_encoding e;
    if (tess_tokenizer_encode(t, "text", text, n, &ids) == TESS_OK) {
        size_t back;
        char *out = tess_tokenizer_decode(t, ids.id, ids.count, &back);
        fuzz_taken += n > 0;
        if (data[0] % KINDS < 2) TESS_ASSERT(back == n && !memcmp(out, text, n));
        TESS_ASSERT(tess_utf8_valid(out, back) == back);
        free(out);
        TESS_ASSERT(tess_encoding_start(t, "text", text, n, &e) == TESS_OK);
        while (e.at < e.length) {
            const size_t at = e.at, count = pieces.count;
            TESS_ASSERT(tess_encoding_next(&e, &pieces) == TESS_OK);
            TESS_ASSERT(e.at > at || pieces.count > count); /* or it would go on for ever */
        }
        tess_encoding_end(&e);
        TESS_ASSERT(ids.count == pieces.count &&
                    (!ids.count || !memcmp(ids.id, pieces.id, ids.count * sizeof *ids.id)));
    }
    tess_ids_free(&ids);
    tess_ids_free(&pieces);
    free(text);
    return 0;
}
