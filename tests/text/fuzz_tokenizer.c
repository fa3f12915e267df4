/* Any bytes as a tokenizer.json: it is refused, or a text goes through it and back.
 *
 * The input: the file, a 0, the text. A byte 1 in the file stands for the members of a byte-level vocabulary, ids 0 to
 * 255, without which none is taken. */
#include "models/text/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz.h"

int fuzz_taken;
const int fuzz_cases = 3000;

/* "!":0,"\"":1, ... in the alphabet of such files. */
static const char *vocabulary(void)
{
    static char text[4096];
    if (text[0]) return text;
    int id = 0;
    char *at = text;
    for (int upper = 0; upper < 2; upper++)
        for (int b = 0, next = 256; b < 256; b++) {
            const bool printable = (b > ' ' && b < 0x7f) || (b > 0xa0 && b != 0xad);
            const int c = printable ? b : next++;
            if (printable == upper) continue;
            if (c < 0x80)
                at += sprintf(at, "\"%s%c\":%d,", c == '"' || c == '\\' ? "\\" : "", c, id++);
            else
                at += sprintf(at, "\"%c%c\":%d,", 0xc0 | c >> 6, 0x80 | (c & 0x3f), id++);
        }
    at[-1] = 0; /* the last comma */
    return text;
}

/* Without the spaces that add_prefix_space adds. */
static size_t without_spaces(char *s, size_t n)
{
    size_t m = 0;
    for (size_t i = 0; i < n; i++)
        if (s[i] != ' ') s[m++] = s[i];
    return m;
}

/* Does a text come back from its tokens? Not where a part of the tokenizer changes or drops some of it. */
static bool keeps_all(const char *json, size_t n)
{
    static const char *const other[] = {"Removed",   "strip\"", "Delimiter", "Whitespace", "Bert",
                                        "Metaspace", "unk_",    "Strip",     "Replace",    "Prepend",
                                        "NF",        "Lower",   "Nmt",       "Precompiled"};
    if (!memmem(json, n, "ByteLevel", 9)) return false;
    for (size_t i = 0; i < sizeof other / sizeof *other; i++)
        if (memmem(json, n, other[i], strlen(other[i]))) return false;
    return true;
}

static void go_through(const tess_tokenizer *t, bool keeps, const char *text, size_t length)
{
    tess_ids ids = {0};
    if (tess_tokenizer_encode(t, "text", text, length, &ids) == TESS_OK) {
        size_t back;
        for (size_t i = 0; i < ids.count; i++) TESS_ASSERT(ids.id[i] >= 0 && ids.id[i] < tess_tokenizer_vocab(t));
        char *out = tess_tokenizer_decode(t, ids.id, ids.count, &back), *in = fuzz_copy(text, length);
        const size_t n = without_spaces(in, length);
        if (keeps) TESS_ASSERT(without_spaces(out, back) == n && !memcmp(in, out, n));
        free(out);
        free(in);
    }
    tess_ids_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    const uint8_t *end = bytes ? memchr(data, 0, bytes) : NULL;
    const size_t file = end ? (size_t)(end - data) : bytes;
    size_t length;
    char *json = fuzz_fill(data, file, vocabulary(), &length);
    tess_tokenizer *t;
    if (tess_tokenizer_open(fuzz_file(json, length), &t) == TESS_OK) {
        const bool keeps = keeps_all(json, length);
        fuzz_taken++;
        go_through(t, keeps, "It's 12 o'clock <|endoftext|>  now\n", 35);
        go_through(t, keeps, "\u2581caf\u00e9 e\u0301 \u65e5\u672c \U0001f600 <s>",
                   strlen("\u2581caf\u00e9 e\u0301 \u65e5\u672c \U0001f600 <s>"));
        if (end) {
            char *text = fuzz_copy(end + 1, bytes - file - 1);
            go_through(t, keeps, text, bytes - file - 1);
            free(text);
        }
        TESS_ASSERT(tess_tokenizer_end_of_text(t) < tess_tokenizer_vocab(t));
        tess_tokenizer_free(t);
    }
    free(json);
    return 0;
}
