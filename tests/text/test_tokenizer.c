/* The tokenizer against ids of the Hugging Face library (fixtures/make_tokenizer.py), both ways, and what it refuses.
 */
#define CHECK_MAIN
#include "models/text/tokenizer/tokenizer.h"
#include "tests/check.h"
#include "tests/rows.h"
#include <jansson.h>
#include <unistd.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif

static const char *const gpt2 = TESS_FIXTURES "/tokenizer_gpt2.json";
static const char *const llama3 = TESS_FIXTURES "/tokenizer_llama3.json";

/* Opens a tokenizer.json that was changed in memory; takes `root`. */
static tess_status open_changed(json_t *root, tess_tokenizer **t)
{
    char path[] = "test_tokenizer_XXXXXX";
    int fd = mkstemp(path);
    CHECK(fd >= 0 && json_dumpfd(root, fd, 0) == 0);
    close(fd);
    json_decref(root);
    tess_status status = tess_tokenizer_open(path, t);
    unlink(path);
    return status;
}

/* Every case's ids, and the text again from the ids. */
static void check_cases(const tess_tokenizer *t, const char *column)
{
    json_t *cases = json_load_file(TESS_FIXTURES "/tokenizer_cases.json", JSON_ALLOW_NUL, NULL);
    CHECK(json_array_size(cases) > 30);
    for (size_t c = 0; c < json_array_size(cases); c++) {
        const json_t *row = json_array_get(cases, c), *text = json_object_get(row, "text");
        const json_t *want = json_object_get(row, column);
        tess_ids ids = {0};
        CHECK_EQ(tess_tokenizer_encode(t, "case", json_string_value(text), json_string_length(text), &ids), TESS_OK);
        if (ids.count != json_array_size(want))
            CHECK_SAY("%s, case %zu: %zu ids, expected %zu", column, c, ids.count, json_array_size(want));
        for (size_t i = 0; i < ids.count && i < json_array_size(want); i++)
            if (ids.id[i] != json_integer_value(json_array_get(want, i))) {
                CHECK_SAY("%s, case %zu: id %zu is %d, expected %lld", column, c, i, ids.id[i],
                          (long long)json_integer_value(json_array_get(want, i)));
                break;
            }
        size_t length;
        char *back = tess_tokenizer_decode(t, ids.id, ids.count, &length);
        if (strcmp(column, "prefixed")) /* which does not give the text back, but one with spaces */
            CHECK(length == json_string_length(text) && memcmp(back, json_string_value(text), length) == 0);
        free(back);
        tess_ids_free(&ids);
    }
    json_decref(cases);
}

TEST(gpt2_cases)
{
    tess_tokenizer *t = NULL;
    CHECK_EQ(tess_tokenizer_open(gpt2, &t), TESS_OK);
    if (!t) return;
    check_cases(t, "gpt2");
    CHECK_EQ(tess_tokenizer_vocab(t), 859);
    CHECK_EQ(tess_tokenizer_end_of_text(t), 856);
    tess_tokenizer_free(t);
}

TEST(llama3_cases)
{
    tess_tokenizer *t = NULL;
    CHECK_EQ(tess_tokenizer_open(llama3, &t), TESS_OK);
    if (!t) return;
    check_cases(t, "llama3");
    CHECK_EQ(tess_tokenizer_vocab(t), 860);
    tess_tokenizer_free(t);
}

TEST(prefixed_cases)
{
    tess_tokenizer *t = NULL;
    json_t *root = json_load_file(gpt2, 0, NULL);
    json_object_set_new(json_object_get(root, "pre_tokenizer"), "add_prefix_space", json_true());
    CHECK_EQ(open_changed(root, &t), TESS_OK);
    if (!t) return;
    check_cases(t, "prefixed");
    tess_tokenizer_free(t);
}

static bool same_ids(const tess_ids *ids, const json_t *want)
{
    if (ids->count != json_array_size(want)) return false;
    for (size_t i = 0; i < ids->count; i++)
        if (ids->id[i] != json_integer_value(json_array_get(want, i))) return false;
    return true;
}

/* Every case's ids, what stands around them, and what a decoder makes of them, at once and one by one; a case in which
 * the family has null is left out. Returns how many there were. */
static int check_family(const json_t *cases, const char *family, const char *path)
{
    tess_tokenizer *t = NULL;
    int checked = 0;
    if (tess_tokenizer_open(path, &t) != TESS_OK) CHECK_SAY("%s: %s", path, tess_error_text());
    for (size_t c = 0; t && c < json_array_size(cases); c++) {
        const json_t *row = json_array_get(cases, c), *text = json_object_get(row, "text");
        const json_t *want = json_object_get(row, family), *back = json_array_get(want, 2);
        const tess_ids *before, *behind;
        tess_ids ids = {0}, all = {0};
        size_t length, n;
        if (json_is_null(want)) continue;
        checked++;
        CHECK_EQ(tess_tokenizer_encode(t, "case", json_string_value(text), json_string_length(text), &ids), TESS_OK);
        if (!same_ids(&ids, json_array_get(want, 0))) CHECK_SAY("%s, case %zu: other ids", family, c);
        tess_tokenizer_around(t, &before, &behind);
        tess_ids_add(&all, before->id, before->count);
        tess_ids_add(&all, ids.id, ids.count);
        tess_ids_add(&all, behind->id, behind->count);
        if (!same_ids(&all, json_array_get(want, 1))) CHECK_SAY("%s, case %zu: others around", family, c);
        char *out = tess_tokenizer_decode(t, ids.id, ids.count, &length), *at = out;
        if (length != json_string_length(back) || memcmp(out, json_string_value(back), length))
            CHECK_SAY("%s, case %zu: decodes to \"%s\", expected \"%s\"", family, c, out, json_string_value(back));
        tess_decoding *d = tess_decoding_new(t, NULL, 0);
        for (size_t i = 0; i <= ids.count; i++) {
            const char *piece = i < ids.count ? tess_decoding_push(d, ids.id[i], &n) : tess_decoding_rest(d, &n);
            if (n > length - (size_t)(at - out) || memcmp(at, piece, n))
                CHECK_SAY("%s, case %zu: id %zu adds \"%.*s\"", family, c, i, (int)n, piece);
            at += n;
        }
        if (at != out + length) CHECK_SAY("%s, case %zu: one by one it ends at \"%s\"", family, c, at);
        tess_decoding_free(d);
        free(out);
        tess_ids_free(&ids);
        tess_ids_free(&all);
    }
    tess_tokenizer_free(t);
    return checked;
}

/* The tokenizers of families, as fixtures/tokenizers/pipelines.py builds them. */
TEST(families)
{
    static const char *const family[] = {"gpt2",    "roberta", "llama3", "qwen2", "llama2",
                                         "mistral", "gemma",   "t5",     "bert"};
    json_t *cases = json_load_file(TESS_FIXTURES "/tokenizers/cases.json", JSON_ALLOW_NUL, NULL);
    for (size_t f = 0; f < sizeof family / sizeof *family; f++) {
        char path[256];
        snprintf(path, sizeof path, "%s/tokenizers/%s.json", TESS_FIXTURES, family[f]);
        CHECK(check_family(cases, family[f], path) > 40);
    }
    json_decref(cases);
}

/* Tokenizers in the files that were before tokenizer.json, as fixtures/tokenizers/make_older.py has them. */
TEST(older_files)
{
    static const char *const older[] = {"llama", "llama_first", "gemma", "t5", "gpt2", "roberta", "qwen2"};
    json_t *cases = json_load_file(TESS_FIXTURES "/tokenizers/older/cases.json", JSON_ALLOW_NUL, NULL);
    for (size_t f = 0; f < sizeof older / sizeof *older; f++) {
        char path[256];
        snprintf(path, sizeof path, "%s/tokenizers/older/%s", TESS_FIXTURES, older[f]);
        CHECK(check_family(cases, older[f], path) > 35);
    }
    json_decref(cases);
}

TEST(bytes)
{
    tess_ids ids = {0};
    size_t length;
    CHECK_EQ(tess_tokenizer_encode(NULL, "case", "a\xff\0", 3, &ids), TESS_OK);
    CHECK_EQ(ids.count, 3);
    CHECK(ids.id[0] == 'a' && ids.id[1] == 255 && ids.id[2] == 0);
    CHECK_EQ(tess_tokenizer_vocab(NULL), 256);
    CHECK_EQ(tess_tokenizer_end_of_text(NULL), -1);
    CHECK(tess_tokenizer_bytes(NULL, 255, &length)[0] == '\xff' && length == 1);
    char *text = tess_tokenizer_decode(NULL, ids.id, ids.count, &length);
    CHECK(length == 5 && memcmp(text, "a\xef\xbf\xbd\0", 5) == 0);
    free(text);
    tess_ids_free(&ids);
}

/* Bytes that are no characters become U+FFFD as in every other decoder, one for each longest beginning of one. */
TEST(decode_broken)
{
    static const struct {
        const char *bytes, *text;
    } cases[] = {{"\xe2\x82", "\xef\xbf\xbd"},
                 {"\xe2\x82x", "\xef\xbf\xbdx"},
                 {"\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80"},
                 {"\x80\x80", "\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xc0\xaf", "\xef\xbf\xbd\xef\xbf\xbd"},
                 {"\xf4\x90z", "\xef\xbf\xbd\xef\xbf\xbdz"}};
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        tess_ids ids = {0};
        CHECK_EQ(tess_tokenizer_encode(NULL, "case", cases[c].bytes, strlen(cases[c].bytes), &ids), TESS_OK);
        char *text = tess_tokenizer_decode(NULL, ids.id, ids.count, NULL);
        CHECK_STR(text, cases[c].text);
        free(text);
        tess_ids_free(&ids);
    }
}

TEST(text_not_utf8)
{
    tess_tokenizer *t = NULL;
    CHECK_EQ(tess_tokenizer_open(gpt2, &t), TESS_OK);
    tess_ids ids = {0};
    CHECK_EQ(tess_tokenizer_encode(t, "a.txt", "caf\xe9 x", 6, &ids), TESS_INVALID);
    CHECK_STR(tess_error_text(), "a.txt: byte 3: is not UTF-8, which a tokenizer needs");
    CHECK_EQ(tess_tokenizer_encode(t, "a.txt", "caf\xc3", 4, &ids), TESS_INVALID);
    tess_ids_free(&ids);
    tess_tokenizer_free(t);
}

/* Nothing is quadratic: 2 MB that are one word, one run of spaces, no word at all. */
TEST(long_words)
{
    enum { N = 2 << 20 };
    tess_tokenizer *t = NULL;
    CHECK_EQ(tess_tokenizer_open(gpt2, &t), TESS_OK);
    char *text = tess_alloc(N);
    double begin = tess_seconds();
    for (int kind = 0; kind < 3; kind++) {
        tess_ids ids = {0};
        size_t length;
        for (size_t i = 0; i < N; i++) text[i] = kind == 0 ? (char)('a' + i * i / 7 % 26) : kind == 1 ? ' ' : '<';
        CHECK_EQ(tess_tokenizer_encode(t, "long", text, N, &ids), TESS_OK);
        char *back = tess_tokenizer_decode(t, ids.id, ids.count, &length);
        CHECK(length == N && memcmp(back, text, N) == 0);
        free(back);
        tess_ids_free(&ids);
    }
    CHECK(tess_seconds() - begin < 60);
    free(text);
    tess_tokenizer_free(t);
}

/* What changes the result and is not supported is refused, and the field named. */
TEST(refused)
{
    for (struct rows r = rows_of(TESS_TESTS "/text/tokenizers.tsv"); rows_next(&r);) {
        json_t *root = json_load_file(gpt2, 0, NULL), *at = root;
        char *key = r.column[0], *slash;
        for (; (slash = strchr(key, '/')); key = slash + 1) {
            *slash = 0;
            at = json_is_array(at) ? json_array_get(at, (size_t)atoi(key)) : json_object_get(at, key);
        }
        json_t *value = json_loads(r.column[1], JSON_DECODE_ANY, NULL);
        CHECK(value);
        if (json_is_array(at))
            json_array_set_new(at, (size_t)atoi(key), value);
        else
            json_object_set_new(at, key, value);
        tess_tokenizer *t = NULL;
        CHECK_ROW(r, open_changed(root, &t), r.column[2]);
        tess_tokenizer_free(t);
    }
}

TEST(no_json)
{
    tess_tokenizer *t = NULL;
    CHECK_EQ(tess_tokenizer_open("/nonexistent/tokenizer.json", &t), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "/nonexistent/tokenizer.json: cannot be opened");
    CHECK_EQ(tess_tokenizer_open("/tmp", &t), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "/tmp: is not a regular file");
    CHECK_EQ(tess_tokenizer_open(TESS_FIXTURES "/make_tokenizer.py", &t), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "make_tokenizer.py:1:");
}
