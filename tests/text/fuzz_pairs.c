/* Any bytes as vocab.json and merges.txt, and as the files beside a tokenizer that say what is special: they are
 * refused, or a text goes through and back.
 *
 * The input: what vocab.json has beside the 256 tokens of bytes, merges.txt, tokenizer_config.json,
 * special_tokens_map.json, added_tokens.json, with a 0 between them. */
#include "models/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 3000;

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

/* "!":0,"\"":1, ... in the alphabet of such files, and then these. */
static char *vocabulary(const char *more, size_t n)
{
    char *text = tess_alloc(4096 + n), *at = text + sprintf(text, "{");
    for (int b = 0, next = 256; b < 256; b++) {
        const bool printable = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad);
        const int c = printable ? b : next++;
        if (c < 0x80)
            at += sprintf(at, "\"%s%c\":%d,", c == '"' || c == '\\' ? "\\" : "", c, b);
        else
            at += sprintf(at, "\"%c%c\":%d,", 0xc0 | c >> 6, 0x80 | (c & 0x3f), b);
    }
    memcpy(at, more, n);
    memcpy(at + n, "}", 2);
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static const char *const name[] = {"vocab.json", "merges.txt", "tokenizer_config.json", "special_tokens_map.json",
                                       "added_tokens.json"};
    static const char config[] = "{\"model_type\": \"gpt2\"}";
    const char *at = (const char *)data, *end = at + bytes;
    for (int i = 0; i < 5; i++) {
        const char *zero = at < end ? memchr(at, 0, (size_t)(end - at)) : NULL;
        const size_t n = (size_t)((zero ? zero : end) - at);
        char *file = i ? fuzz_copy(at, n) : vocabulary(at, n);
        fuzz_file_in_dir(name[i], i && !n ? "{}" : file, i ? (n ? n : 2) : strlen(file));
        free(file);
        at = zero ? zero + 1 : end;
    }
    fuzz_file_in_dir("config.json", config, strlen(config));
    tess_tokenizer *t;
    if (tess_tokenizer_open(fuzz_dir(), &t) != TESS_OK) return 0;
    fuzz_taken++;
    go_through(t, text);
    tess_tokenizer_free(t);
    return 0;
}
