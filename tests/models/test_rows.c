/* What is read as a .jsonl is: a list in a .json, a table, and what is packed. */
#define CHECK_MAIN
#include "models/text/chat/chat.h"
#include "tests/models/lines.h"
#include "tests/rows.h"
#include <sys/wait.h>
#include <zlib.h>

static const char pairs[] = "97 98 99 100 0 0";

static tess_data *open_file(const char *file, const tess_data_conf *c)
{
    tess_data *d = NULL;
    tess_error_clear();
    CHECK_EQ(tess_data_open(file, NULL, c, &d), TESS_OK);
    if (!d) CHECK_STR(tess_error_text(), "");
    return d;
}

/* Two samples, by the first reading and by the index that it leaves. */
static void check_two(const char *file, const tess_data_conf *c, const char *first, const char *second)
{
    char name[200];
    snprintf(name, sizeof name, "%s", file);
    for (int again = 0; again < 2; again++) {
        tess_data *d = open_file(name, c);
        if (!d) return;
        CHECK_EQ(tess_data_samples(d), 2);
        check_list(name, get(d, 0).ids, T, first);
        check_list(name, get(d, 1).ids, T, second);
        tess_data_close(d);
    }
}

/* A list of objects is found element by element, however it is written. */
TEST(lists)
{
    check_two(write_text("a.json",
                         "\xef\xbb\xbf \n[\n  {\n    \"prompt\": \"a\",\n    \"completion\": \"]}\\\"\"\n  }\n  ,"
                         "{\"prompt\":\"b\",\"completion\":\"{[\",\"x\":[{\"y\":[1]}]}]\n\n"),
              &causal, "97 93 125 34 0 0", "98 123 91 0 0 0");
    /* Many a .json has an object a line. */
    check_two(write_text("b.json", "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n{\"prompt\": \"e\", \"completion\": "
                                   "\"f\"}\n"),
              &causal, pairs, "101 102 0 0 0 0");
}

TEST(tables)
{
    check_two(write_text("a.csv", "\xef\xbb\xbfid,prompt,completion\r\n1,ab,cd\r\n\r\n2,\"\"\"\",\"e,\nf\"\r\n"),
              &causal, pairs, "34 101 44 10 102 0");
    check_two(write_text("b.csv", "\"completion\",\"prompt\"\ncd,ab\n5\",\"\"\n"), &causal, pairs, "53 34 0 0 0 0");
    check_two(write_text("a.tsv", "prompt\tcompletion\nab\tcd\na,b\t\"c\td\""), &causal, pairs, "97 44 98 99 9 100");
    tess_data *d = open_file(write_text("t.csv", "text,label\nabc,1\n\"d\ne\",0\n"), &causal);
    if (!d) return;
    check_list("ids", get(d, 0).ids, T, "97 98 99 0 100 10"); /* of a causal model they are documents */
    tess_data_close(d);
}

/* Of a model with labels for whole samples, a text has one beside it. */
TEST(labelled_texts)
{
    tess_data_conf c = causal;
    c.task = TESS_DATA_LABEL;
    c.labels = 3;
    check_two(write_text("l.csv", "text,label\nabcd,2\n\"e\nf\",0\n"), &c, "97 98 99 100 0 0", "101 10 102 0 0 0");
    tess_data *d = open_file(write_text("l.jsonl", "{\"text\": \"ab\", \"label\": 2}\n"), &c);
    if (d) CHECK_EQ(get(d, 0).label[0], 2);
    CHECK(tess_data_has_examples(path, true) && !tess_data_has_examples(path, false));
    tess_data_close(d);
    static const char *const wrong[][2] = {
        {"text,label\na,3\n", "w.csv: line 2, byte 11: \"label\" is not one of the model's 3, expected 0 to 2"},
        {"text,label\na,b\n", "\"label\" is not one of the model's 3"},
        {"text\na\n", "has no label for its samples (expected lines of {\"text\", \"label\"}"}};
    for (size_t i = 0; i < 3; i++) {
        CHECK_EQ(tess_data_open(write_text("w.csv", wrong[i][0]), NULL, &c, &d), TESS_INVALID);
        CHECK_HAS(tess_error_text(), wrong[i][1]);
    }
}

TEST(what_is_wrong)
{
    for (struct rows r = rows_of(TESS_TESTS "/models/rows.tsv"); rows_next(&r);) {
        tess_data *d = NULL;
        tess_error_clear();
        if (tess_data_open(write_text(r.column[0], r.column[1]), NULL, &causal, &d) != TESS_INVALID ||
            !strstr(tess_error_text(), r.column[2]))
            CHECK_SAY("%s:%d: %s", r.path, r.line, tess_error_text());
        tess_data_close(d);
    }
}

/* ---- packed ---- */

static const char *pack(const char *name, const char *text)
{
    gzFile f = gzopen(in_dir(name), "wb");
    CHECK(f && gzwrite(f, text, (unsigned)strlen(text)) == (int)strlen(text));
    CHECK(f && gzclose(f) == Z_OK);
    return path;
}

TEST(packed)
{
    static const char list[] =
        "[{\"prompt\": \"ab\", \"completion\": \"cd\"}, {\"prompt\": \"\", \"completion\": \"xy\"}]";
    check_two(pack("p.json.gz", list), &causal, pairs, "120 121 0 0 0 0");
    CHECK(access(in_dir("p.json.gz.unpacked"), F_OK) == 0);
    check_two(pack("p.csv.gz", "prompt,completion\nab,cd\n,xy\n"), &causal, pairs, "120 121 0 0 0 0");
    check_two(pack("p.txt.gz", "abcdefghijklmn"), &causal, "97 98 99 100 101 102", "103 104 105 106 107 108");
    /* What is packed anew is unpacked anew; its lines are those of the text. */
    check_two(pack("p.csv.gz", "prompt,completion\n,xy\nab,cd\n"), &causal, "120 121 0 0 0 0", pairs);
    tess_data *d = NULL;
    CHECK_EQ(tess_data_open(pack("p.csv.gz", "text,b\n1,2\n3\n"), NULL, &causal, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "p.csv.gz: line 3, byte 11: has 1 fields");
}

/* Half a file, and one that is none, leave nothing behind. */
TEST(packed_and_damaged)
{
    static const char *const wrong[] = {"it ends too early", "it is no gzip file", "there is nothing in it",
                                        "it is no gzip file"};
    tess_data *d = NULL;
    for (int i = 0; i < 4; i++) {
        struct stat st;
        pack("d.jsonl.gz", i == 2 ? "" : "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n");
        CHECK_EQ(stat(path, &st), 0);
        if (i == 0) CHECK_EQ(truncate(path, st.st_size - 9), 0);
        if (i == 1) write_text("d.jsonl.gz", "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n");
        if (i == 3) write_text("d.jsonl.gz", "");
        CHECK_EQ(tess_data_open(path, NULL, &causal, &d), TESS_INVALID);
        CHECK_HAS(tess_error_text(), wrong[i]);
        CHECK_HAS(tess_error_text(), "d.jsonl.gz: cannot be unpacked: ");
        CHECK(access(in_dir("d.jsonl.gz.unpacked"), F_OK) != 0);
    }
}

/* Ranks open it at the same time, and one of them unpacks it. */
TEST(several_unpack_it)
{
    enum { RANKS = 4, ROWS = 20000 };
    char *text = malloc(ROWS * 16), *end = text + sprintf(text, "prompt,completion\n");
    for (int i = 0; i < ROWS; i++) end += sprintf(end, "%d,a\n", i % 1000);
    pack("s.csv.gz", text);
    free(text);
    fflush(stdout);
    pid_t rank[RANKS];
    for (int k = 0; k < RANKS; k++) {
        if ((rank[k] = fork())) continue;
        tess_data *d = NULL;
        _exit(tess_data_open(path, NULL, &causal, &d) != TESS_OK || tess_data_samples(d) != ROWS);
    }
    for (int k = 0; k < RANKS; k++) {
        int status;
        CHECK_EQ(waitpid(rank[k], &status, 0), rank[k]);
        CHECK_EQ(status, 0);
    }
}

/* Of a directory's .json and tables those count whose first row is one, and nothing twice or of our own making. */
TEST(in_a_directory)
{
    CHECK_EQ(mkdir(in_dir("many"), 0777), 0);
    write_text("many/a.json", "[{\"prompt\": \"ab\", \"completion\": \"cd\"}]");
    pack("many/a.json.gz", "[{\"prompt\": \"ab\", \"completion\": \"cd\"}]");
    pack("many/b.csv.gz", "prompt,completion\n,xy\n");
    write_text("many/config.json", "{\n  \"model_type\": \"gpt2\"\n}\n");
    write_text("many/metrics.csv", "step,loss\n1,2\n");
    check_two(in_dir("many"), &causal, pairs, "120 121 0 0 0 0"); /* the second time with what the first one made */
    tess_data *d = open_file(in_dir("many"), &causal);
    if (!d) return;
    CHECK_EQ(tess_data_files(d), 2);
    CHECK_HAS(tess_data_left_out(d), "a.json.gz and 2 more files");
    tess_data_close(d);
    CHECK(tess_data_has_examples(in_dir("many"), false));
}

/* ---- prompts and completions of messages ---- */

TEST(prompts_of_messages)
{
    static const char template[] = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
                                   "{% if add_generation_prompt %}a{% endif %}";
    tess_data_conf c = causal;
    struct tess_chat *chat = NULL;
    CHECK_EQ(tess_chat_of("mine", template, &chat), TESS_OK);
    c.chat = chat;
    for (int all = 0; all < 2; all++) { /* data.loss_on is of whole conversations */
        c.loss_on_all = all;
        tess_data *d =
            open_text("{\"prompt\": [{\"role\": \"user\", \"content\": \"b\"}], \"completion\": [{\"role\": "
                      "\"assistant\", \"content\": \"cd\"}]}\n"
                      "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n"
                      "{\"prompt\": [{\"role\": \"assistant\", \"content\": \"\"}], \"completion\": "
                      "[{\"role\": \"assistant\", \"content\": \"\"}, {\"role\": \"user\", \"content\": \"x\"}]}\n",
                      NULL, &c);
        if (!d) return;
        struct whole w = get(d, 0);
        check_list("ids", w.ids, T, "117 98 97 99 100 0");
        check_list("targets", w.targets, T, "-100 -100 99 100 -100 -100");
        check_list("texts", get(d, 1).targets, T, "-100 99 100 -100 -100 -100");
        w = get(d, 2); /* all of the completion */
        check_list("ids", w.ids, T, "97 97 117 120 0 0");
        check_list("targets", w.targets, T, "-100 117 120 -100 -100 -100");
        tess_data_close(d);
    }
    static const char *const wrong[][2] = {
        {"{\"prompt\": \"a\", \"completion\": [{\"role\": \"assistant\", \"content\": \"c\"}]}\n",
         "line 1, byte 0: \"prompt\" is no list of messages, and \"completion\" is one (both are texts, or both "
         "messages)"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"c\"}], \"completion\": \"c\"}\n",
         "\"completion\" is no list of messages, and \"prompt\" is one"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"c\"}]}\n", "\"completion\" has no message"},
        {"{\"prompt\": [], \"completion\": []}\n", "\"prompt\" has no message"},
        {"{\"prompt\": [3], \"completion\": [4]}\n", "\"messages\"[0] is no object with a \"role\""}};
    tess_data *d;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        CHECK_EQ(tess_data_open(write_text("bad.jsonl", wrong[i][0]), NULL, &c, &d), TESS_INVALID);
        CHECK_HAS(tess_error_text(), wrong[i][1]);
        tess_error_clear();
    }
    tess_chat_free(chat);
    CHECK_EQ(tess_chat_of("odd", "{{ messages|length }}{{ messages[0].content }}", &chat), TESS_OK);
    c.chat = chat;
    CHECK_EQ(
        tess_data_open(write_text("bad.jsonl", "{\"prompt\": [{\"role\": \"user\", \"content\": \"c\"}], \"completion\""
                                               ": [{\"role\": \"assistant\", \"content\": \"d\"}]}\n"),
                       NULL, &c, &d),
        TESS_INVALID);
    CHECK_HAS(tess_error_text(), "where the completion begins cannot be told");
    tess_chat_free(chat);
    c.chat = NULL;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "need the chat_template of a model's directory");
}
