/* Conversations against transformers (fixtures/chat/make_chats.py): their text, ids, and which are the assistant's; and
 * what a template may not do. */
#define CHECK_MAIN
#include "models/text/base/text.h"
#include "models/text/chat/chat.h"
#include "tests/check.h"
#include "tests/rows.h"
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif

static void write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    CHECK(f && fputs(text, f) >= 0);
    if (f) fclose(f);
}

static json_t *fixture(void)
{
    const char *other = getenv("TESS_CHATS"); /* fixtures/chat/check_templates.py */
    json_t *all = json_load_file(other ? other : TESS_FIXTURES "/chat/chats.json", JSON_ALLOW_NUL, NULL);
    CHECK(all);
    return all;
}

/* A model's directory with a template: in a file of its own, or in tokenizer_config.json. */
static void open_family(const json_t *family, const char *which, bool in_config, tess_chat **chat)
{
    char dir[] = "test_chat_XXXXXX", path[64], other[64];
    const char *text = json_string_value(json_object_get(family, which));
    CHECK(mkdtemp(dir) != NULL);
    json_t *config = json_copy(json_object_get(family, "tokens"));
    if (in_config) json_object_set_new(config, "chat_template", json_string(text));
    snprintf(path, sizeof path, "%s/tokenizer_config.json", dir);
    snprintf(other, sizeof other, "%s/chat_template.jinja", dir);
    CHECK_EQ(json_dump_file(config, path, 0), 0);
    if (!in_config) write_text(other, text);
    CHECK_EQ(tess_chat_open(dir, chat), TESS_OK);
    json_decref(config);
    unlink(path);
    unlink(other);
    rmdir(dir);
}

static void check_text(const char *name, size_t i, const char *what, const char *text, size_t length,
                       const json_t *want)
{
    if (length != json_string_length(want) || memcmp(text, json_string_value(want), length))
        CHECK_SAY("%s, talk %zu, %s: \"%s\", expected \"%s\"", name, i, what, text, json_string_value(want));
}

static void check_ids(const char *name, size_t i, const char *which, const tess_ids *ids, const tess_ids *labels,
                      const json_t *row)
{
    const json_t *want = json_object_get(row, "ids");
    const char *mask = json_string_value(json_object_get(row, "mask"));
    bool same = ids->count == json_array_size(want) && labels->count == ids->count;
    for (size_t k = 0; same && k < ids->count; k++) same = ids->id[k] == json_integer_value(json_array_get(want, k));
    if (!same) CHECK_SAY("%s, talk %zu, %s: other ids", name, i, which);
    for (size_t k = 0; same && k < ids->count && mask[0]; k++)
        if (labels->id[k] != (mask[k] == '1' ? ids->id[k] : -100)) {
            CHECK_SAY("%s, talk %zu, %s: label %zu is %d, the mask %c", name, i, which, k, labels->id[k], mask[k]);
            break;
        }
}

static void check_family(const char *name, const json_t *family, const json_t *talks)
{
    static const char *const which[] = {"plain", "marked"};
    const json_t *rows = json_object_get(family, "rows"), *row;
    char path[256], *text;
    tess_tokenizer *t = NULL;
    tess_chat *chat[2];
    size_t i, length;
    snprintf(path, sizeof path, "%s/tokenizers/%s.json", TESS_FIXTURES,
             json_string_value(json_object_get(family, "tokenizer")));
    CHECK_EQ(tess_tokenizer_open(path, &t), TESS_OK);
    for (int k = 0; k < 2; k++) open_family(family, which[k], k, &chat[k]);
    json_array_foreach(rows, i, row)
    {
        const json_t *talk = json_array_get(talks, i);
        const bool marks = !json_object_get(row, "mask") || json_string_length(json_object_get(row, "mask"));
        for (int k = 0; k < 2; k++) {
            tess_ids ids = {0}, labels = {0};
            tess_status status =
                tess_chat_encode(chat[k], t, "talk", talk, marks ? TESS_CHAT_ANSWERS : TESS_CHAT_ALL, &ids, &labels);
            if (json_object_get(row, "error")) {
                CHECK_EQ(status, TESS_INVALID);
                CHECK_HAS(tess_error_text(), ": line ");
            } else if (status != TESS_OK) {
                CHECK_SAY("%s, talk %zu, %s: %s", name, i, which[k], tess_error_text());
            } else {
                check_ids(name, i, which[k], &ids, &labels, row);
            }
            tess_ids_free(&ids);
            tess_ids_free(&labels);
        }
        if (json_object_get(row, "error")) continue;
        CHECK_EQ(tess_chat_render(chat[0], "talk", talk, false, &text, &length), TESS_OK);
        check_text(name, i, "text", text, length, json_object_get(row, "text"));
        free(text);
        CHECK_EQ(tess_chat_render(chat[0], "talk", talk, true, &text, &length), TESS_OK);
        check_text(name, i, "asked", text, length, json_object_get(row, "asks"));
        free(text);
    }
    for (int k = 0; k < 2; k++) tess_chat_free(chat[k]);
    tess_tokenizer_free(t);
}

TEST(families)
{
    json_t *all = fixture(), *family;
    const char *name;
    CHECK(getenv("TESS_CHATS") || json_object_size(json_object_get(all, "families")) >= 8);
    json_object_foreach(json_object_get(all, "families"), name, family)
        check_family(name, family, json_object_get(all, "talks"));
    json_decref(all);
}

/* Constructs one by one; what Jinja refuses is refused. */
TEST(pieces)
{
    json_t *all = fixture(), *piece, *talk = json_loads("{\"messages\": [{\"role\": \"user\"}]}", 0, NULL);
    size_t i, length;
    json_array_foreach(json_object_get(all, "pieces"), i, piece)
    {
        const char *text = json_string_value(json_array_get(piece, 0));
        const json_t *want = json_array_get(piece, 1);
        tess_chat *chat = NULL;
        char *out = NULL;
        tess_status status = tess_chat_of("piece", text, &chat);
        if (status == TESS_OK) status = tess_chat_render(chat, "talk", talk, false, &out, &length);
        if (status == TESS_OK && json_is_null(want)) CHECK_SAY("%s: is \"%s\", expected an error", text, out);
        if (status != TESS_OK && !json_is_null(want)) CHECK_SAY("%s: %s", text, tess_error_text());
        if (status == TESS_OK && json_is_string(want) && strcmp(out, json_string_value(want)))
            CHECK_SAY("%s: is \"%s\", expected \"%s\"", text, out, json_string_value(want));
        free(out);
        tess_chat_free(chat);
        tess_error_clear();
    }
    json_decref(talk);
    json_decref(all);
}

/* What is not known is named, and what never ends does. */
TEST(refused)
{
    json_t *talk = json_loads("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", 0, NULL);
    for (struct rows r = rows_of(TESS_TESTS "/text/templates.tsv"); rows_next(&r);) {
        tess_chat *chat = NULL;
        char *out;
        size_t length;
        tess_status status = tess_chat_of("mine", r.column[0], &chat);
        if (status == TESS_OK) status = tess_chat_render(chat, "talk", talk, false, &out, &length);
        CHECK_ROW(r, status, r.column[1]);
        tess_chat_free(chat);
    }
    char deep[4096] = "{{ ";
    memset(deep + 3, '(', 1000);
    memset(deep + 1003, ')', 1000);
    memcpy(deep + 2003, "}}", 3);
    tess_chat *chat = NULL;
    CHECK_EQ(tess_chat_of("mine", deep, &chat), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "is nested too deeply");
    tess_error_clear();
    /* A long chain nests to the left, and no bracket counts it. */
    static char chain[80020] = "{{ 1";
    for (int i = 0; i < 20000; i++) memcpy(chain + 4 + 4 * (size_t)i, " + 1", 4);
    memcpy(chain + 80004, " }}", 4);
    char *out;
    size_t length;
    tess_status status = tess_chat_of("mine", chain, &chat);
    if (status == TESS_OK) status = tess_chat_render(chat, "talk", talk, false, &out, &length);
    CHECK_EQ(status, TESS_INVALID);
    CHECK_HAS(tess_error_text(), "nested too deeply");
    tess_chat_free(chat);
    tess_error_clear();
    /* The widest steps take the first, or none. */
    CHECK_EQ(tess_chat_of("mine", "{{ [1, 2][::9223372036854775807] }}{{ 'ab'[::-9223372036854775807] }}", &chat),
             TESS_OK);
    CHECK_EQ(tess_chat_render(chat, "talk", talk, false, &out, &length), TESS_OK);
    if (strcmp(out, "[1]b")) CHECK_SAY("\"%s\", expected \"[1]b\"", out);
    free(out);
    tess_chat_free(chat);
    json_decref(talk);
}

/* Without marks, and with beginnings that are written otherwise than within the whole, nobody knows. */
TEST(words_that_cannot_be_told)
{
    static const char text[] = "{{ messages|length }}{% for m in messages %}{{ m.content }}{% endfor %}";
    json_t *talk = json_loads("{\"messages\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", "
                              "\"content\": \"a\"}, {\"role\": \"user\", \"content\": \"r\"}]}",
                              0, NULL);
    tess_chat *chat = NULL;
    tess_ids ids = {0}, labels = {0};
    CHECK_EQ(tess_chat_of("mine", text, &chat), TESS_OK);
    CHECK_EQ(tess_chat_encode(chat, NULL, "talk", talk, TESS_CHAT_ANSWERS, &ids, &labels), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "talk: where the assistant's words in \"messages\"[1] lie cannot be told");
    ids.count = labels.count = 0;
    CHECK_EQ(tess_chat_encode(chat, NULL, "talk", talk, TESS_CHAT_ALL, &ids, &labels), TESS_OK);
    CHECK(ids.count == 4 && labels.count == 4 && !memcmp(ids.id, labels.id, 4 * sizeof *ids.id));
    tess_ids_free(&ids);
    tess_ids_free(&labels);
    tess_chat_free(chat);
    json_decref(talk);
}

/* ---- files of a hub ---- */

/* {"n": NUMBER} as text, after it was read; "" where that is refused. */
static const char *read_number(const char *number)
{
    static char text[100];
    json_error_t e;
    const int n = snprintf(text, sizeof text, "{\"Infinity -1e999\": \"NaN \\\" 1e999\", \"n\": %s}", number);
    json_t *root = tess_json_parse(text, (size_t)n, JSON_REJECT_DUPLICATES, &e);
    CHECK(!root || (json_object_size(root) == 2 && !strcmp(tess_json_text(root, "Infinity -1e999"), "NaN \" 1e999")));
    char *out = root ? json_dumps(json_object_get(root, "n"), JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(text, sizeof text, "%s", out ? out : "");
    free(out);
    json_decref(root);
    return text;
}

TEST(numbers_are_read_as_python_reads_them)
{
    static const char *const rows[][2] = {{"1000000000000000019884624838656", "1e30"}, /* transformers' int(1e30) */
                                          {"-9223372036854775809", "-9.2233720368547758e18"},
                                          {"9223372036854775807", "9223372036854775807"},
                                          {"[1e400, -1e400]", "[1.7976931348623157e308,-1.7976931348623157e308]"},
                                          {"[Infinity, -Infinity]", "[1.7976931348623157e308,-1.7976931348623157e308]"},
                                          {"[NaN, 99999999999999999999]", "[null,1e20]"},
                                          {"[-0, -0.0, 1e-400]", "[0,-0.0,0.0]"},
                                          {"[Infinity, 1", ""},
                                          {"Infinit", ""},
                                          {"-NaN", ""},
                                          {"[1e999 2]", ""},
                                          {"1e999e9", ""}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(read_number(rows[i][0]), rows[i][1]))
            CHECK_SAY("%s is read as %s, expected %s", rows[i][0], read_number(rows[i][0]), rows[i][1]);
}

/* What save_pretrained writes of a tokenizer without a length. */
TEST(a_length_without_a_limit_costs_no_token)
{
    json_t *talk = json_loads("{\"messages\": [{\"role\": \"user\", \"content\": \"x\"}]}", 0, NULL);
    tess_chat *chat = NULL;
    char *out = NULL;
    size_t length;
    mkdir("hub", 0777);
    write_text("hub/tokenizer_config.json",
               "{\"model_max_length\": 1000000000000000019884624838656, \"bos_token\": \"<s>\"}");
    write_text("hub/chat_template.jinja", "{{ bos_token }}{{ messages[0]['content'] }}");
    CHECK_EQ(tess_chat_open("hub", &chat), TESS_OK);
    CHECK_EQ(tess_chat_render(chat, "talk", talk, false, &out, &length), TESS_OK);
    CHECK_STR(out ? out : "", "<s>x");
    free(out);
    tess_chat_free(chat);
    write_text("hub/tokenizer_config.json", "{\"bos_token\": \"<s>\""); /* is there, and is no JSON */
    CHECK_EQ(tess_chat_open("hub", &chat), TESS_OK);
    CHECK_HAS(tess_chat_unsupported(chat) ? tess_chat_unsupported(chat) : "", "hub/tokenizer_config.json:1:");
    tess_chat_free(chat);
    unlink("hub/tokenizer_config.json"), unlink("hub/chat_template.jinja"), rmdir("hub");
    json_decref(talk);
}
