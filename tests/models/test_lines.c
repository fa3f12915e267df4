/* A .jsonl: what each kind of line becomes, the index that is kept of it, and every way a line can be wrong. */
#define CHECK_MAIN
#include "chat_impl.h"
#include "check.h"
#include "data_impl.h"
#include "run_impl.h"
#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif

enum { T = 6, NONE = -100 };

static char dir[] = "test_lines_XXXXXX";
static bool dir_made;
static char path[128];

static const char *in_dir(const char *name)
{
    if (!dir_made) CHECK(mkdtemp(dir));
    dir_made = true;
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return path;
}

static const char *write_text(const char *name, const char *text)
{
    FILE *f = fopen(in_dir(name), "wb");
    CHECK(f && fwrite(text, 1, strlen(text), f) == strlen(text));
    if (f) fclose(f);
    return path;
}

static const tess_data_conf causal = {.seq_length = T, .vocab = 256, .end_of_text = -1};

static tess_data *open_text(const char *text, const tess_tokenizer *t, const tess_data_conf *c)
{
    tess_data *d = NULL;
    tess_error_clear();
    CHECK_EQ(tess_data_open(write_text("a.jsonl", text), t, c, &d), TESS_OK);
    if (!d) CHECK_STR(tess_error_text(), "");
    return d;
}

/* All that a sample has. */
struct whole {
    int32_t ids[T], targets[T], bounds[2 * T], positions[T], segments[T], decoder[T], label[1];
};

static struct whole get(const tess_data *d, uint64_t sample)
{
    struct whole w;
    memset(&w, 0x55, sizeof w);
    CHECK_EQ(tess_data_get(d, sample,
                           &(tess_sample){w.ids, w.targets, w.bounds, w.positions, w.segments, w.decoder, w.label, 0}),
             TESS_OK);
    return w;
}

/* The numbers of a list, separated by blanks. */
static void check_list(const char *what, const int32_t *met, int n, const char *expected)
{
    char *end;
    for (int i = 0; i < n; i++, expected = end) {
        const long want = strtol(expected, &end, 10);
        if (end == expected || want != met[i]) {
            CHECK_SAY("%s[%d] is %d, expected %ld", what, i, met[i], want);
            return;
        }
    }
    CHECK_STR(expected, "");
}

/* ---- examples ---- */

TEST(ids_and_labels_of_a_causal_model)
{
    tess_data *d = open_text("{\"input_ids\": [5, 6, 7]}\n"
                             "\n"
                             "  {\"input_ids\": [1,2,3,4,5,6], \"labels\": [-100,-100,3,4,-100,6], \"id\": \"x\"}\r\n"
                             "{\"input_ids\": [9, 8, 0, 0], \"attention_mask\": [1, 1, 0, 0]}",
                             NULL, &causal);
    if (!d) return;
    CHECK_EQ(tess_data_samples(d), 3);
    CHECK_EQ(tess_data_tokens(d), 11);
    CHECK(tess_data_by_lines(d));
    struct whole w = get(d, 0);
    check_list("ids", w.ids, T, "5 6 7 0 0 0");
    check_list("targets", w.targets, T, "6 7 -100 -100 -100 -100"); /* shifted by one inside */
    check_list("bounds", w.bounds, 2 * T, "0 0 0 0 0 0 3 3 3 0 0 0");
    check_list("positions", w.positions, T, "0 1 2 3 4 5");
    check_list("segments", w.segments, T, "0 0 0 0 0 0");
    w = get(d, 1);
    check_list("ids", w.ids, T, "1 2 3 4 5 6");
    check_list("targets", w.targets, T, "-100 3 4 -100 6 -100");
    check_list("bounds", w.bounds, 2 * T, "0 0 0 0 0 0 6 6 6 6 6 6");
    w = get(d, 2);
    check_list("ids", w.ids, T, "9 8 0 0 0 0");
    check_list("targets", w.targets, T, "8 -100 -100 -100 -100 -100");
    check_list("bounds", w.bounds, 2 * T, "0 0 0 0 0 0 2 2 0 0 0 0");
    tess_data_close(d);
}

/* Labels of a masked model stay where they are; those of a decoder are another sequence, which it reads shifted. */
TEST(other_tasks)
{
    tess_data_conf c = causal;
    c.task = TESS_DATA_MASKED;
    c.types = 2;
    tess_data *d = open_text("{\"input_ids\": [5, 6, 7, 8], \"labels\": [-100, 9, -100, 8], "
                             "\"token_type_ids\": [0, 0, 1, 1]}\n",
                             NULL, &c);
    if (!d) return;
    struct whole w = get(d, 0);
    check_list("targets", w.targets, T, "-100 9 -100 8 -100 -100");
    check_list("segments", w.segments, T, "0 0 1 1 0 0");
    tess_data_close(d);

    c = causal;
    c.task = TESS_DATA_DECODER;
    c.decoder_start = 2, c.padding = 1;
    d = open_text("{\"input_ids\": [5, 6], \"labels\": [7, -100, 8, 9]}\n"
                  "{\"input_ids\": [5, 6, 7, 8], \"labels\": [7, 9], \"decoder_input_ids\": [3, 4]}\n",
                  NULL, &c);
    if (!d) return;
    w = get(d, 0);
    check_list("ids", w.ids, T, "5 6 1 1 1 1");
    check_list("targets", w.targets, T, "7 -100 8 9 -100 -100");
    check_list("decoder", w.decoder, T, "2 7 1 8 1 1");
    check_list("bounds", w.bounds, 2 * T, "0 0 0 0 0 0 2 2 0 0 0 0");
    w = get(d, 1);
    check_list("targets", w.targets, T, "7 9 -100 -100 -100 -100");
    check_list("decoder", w.decoder, T, "3 4 1 1 1 1");
    tess_data_close(d);
    d = open_text("{\"prompt\": \"ab\", \"completion\": \"cde\"}\n", NULL, &c);
    if (!d) return;
    w = get(d, 0);
    check_list("ids", w.ids, T, "97 98 1 1 1 1");
    check_list("targets", w.targets, T, "99 100 101 -100 -100 -100");
    check_list("decoder", w.decoder, T, "2 99 100 1 1 1");
    tess_data_close(d);

    c = causal;
    c.task = TESS_DATA_LABEL;
    c.labels = 3;
    d = open_text("{\"input_ids\": [5, 6], \"label\": 2}\n{\"input_ids\": [7], \"labels\": 0}\n", NULL, &c);
    if (!d) return;
    CHECK_EQ(get(d, 0).label[0], 2);
    CHECK_EQ(get(d, 1).label[0], 0);
    check_list("targets", get(d, 0).targets, T, "-100 -100 -100 -100 -100 -100");
    tess_data_close(d);

    c = causal;
    c.task = TESS_DATA_MASKED;
    c.labels = 2, c.both = true;
    d = open_text("{\"input_ids\": [5, 6], \"labels\": [-100, 7], \"next_sentence_label\": 1}\n"
                  "{\"input_ids\": [7], \"labels\": [8], \"next_sentence_label\": -100}\n",
                  NULL, &c);
    if (!d) return;
    CHECK_EQ(get(d, 0).label[0], 1);
    check_list("targets", get(d, 0).targets, T, "-100 7 -100 -100 -100 -100");
    CHECK_EQ(get(d, 1).label[0], -100);
    tess_data_close(d);
}

/* The prompt draws no loss; both have the tokens that they have alone. */
TEST(prompts_and_completions)
{
    tess_data *d = open_text("{\"prompt\": \"ab\", \"completion\": \"cd\", \"source\": 7}\n"
                             "{\"prompt\": \"\", \"completion\": \"x\\u0000y\"}\n",
                             NULL, &causal);
    if (!d) return;
    struct whole w = get(d, 0);
    check_list("ids", w.ids, T, "97 98 99 100 0 0");
    check_list("targets", w.targets, T, "-100 99 100 -100 -100 -100");
    w = get(d, 1);
    check_list("ids", w.ids, T, "120 0 121 0 0 0");
    check_list("targets", w.targets, T, "0 121 -100 -100 -100 -100");
    tess_data_close(d);
    tess_data_conf c = causal;
    c.end_completions = true;
    c.end_of_text = 10;
    d = open_text("{\"prompt\": \"ab\", \"completion\": \"cd\"}\n", NULL, &c);
    if (!d) return;
    w = get(d, 0);
    check_list("ids", w.ids, T, "97 98 99 100 10 0");
    check_list("targets", w.targets, T, "-100 99 100 10 -100 -100");
    tess_data_close(d);

    tess_tokenizer *t = NULL;
    tess_ids ids = {0};
    CHECK_EQ(tess_tokenizer_open(TESS_FIXTURES "/tokenizer_gpt2.json", &t), TESS_OK);
    CHECK_EQ(tess_tokenizer_encode(t, "x", "the sand", 8, &ids), TESS_OK);
    const size_t prompt = ids.count;
    CHECK_EQ(tess_tokenizer_encode(t, "x", " it's", 5, &ids), TESS_OK);
    c = causal;
    c.vocab = tess_tokenizer_vocab(t);
    c.truncate = true;
    d = open_text("{\"prompt\": \"the sand\", \"completion\": \" it's\"}\n", t, &c);
    if (!d) return;
    w = get(d, 0);
    for (size_t i = 0; i < T && i < ids.count; i++) CHECK_EQ(w.ids[i], ids.id[i]);
    for (size_t i = 0; i + 1 < T && i + 1 < ids.count; i++)
        CHECK_EQ(w.targets[i], i + 1 < prompt ? NONE : ids.id[i + 1]);
    tess_data_close(d);
    tess_ids_free(&ids);
    tess_tokenizer_free(t);
}

/* Cut where that is asked for; what then has no target is no sample. */
static void refused(const char *text, const tess_data_conf *c, const char *error)
{
    tess_data *d = NULL;
    CHECK_EQ(tess_data_open(write_text("bad.jsonl", text), NULL, c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), error);
    tess_error_clear();
}

/* Conversations by a template: the assistant's words draw a loss, or all does. */
TEST(conversations)
{
    static const char template[] = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
                                   "{% if add_generation_prompt %}a{% endif %}";
    static const char lines[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}, {\"role\": \"assistant\", "
                                "\"content\": \"cd\"}]}\n";
    tess_data_conf c = causal;
    struct tess_chat *chat = NULL;
    CHECK_EQ(tess_chat_of("mine", template, &chat), TESS_OK);
    c.chat = chat;
    tess_data *d = open_text(lines, NULL, &c);
    if (!d) return;
    struct whole w = get(d, 0);
    check_list("ids", w.ids, T, "117 98 97 99 100 0");
    check_list("targets", w.targets, T, "-100 -100 99 100 -100 -100");
    tess_data_close(d);
    c.loss_on_all = true;
    d = open_text(lines, NULL, &c);
    if (!d) return;
    w = get(d, 0);
    check_list("targets", w.targets, T, "98 97 99 100 -100 -100");
    tess_data_close(d);
    c.loss_on_all = false;
    refused("{\"messages\": [{\"role\": \"user\", \"content\": \"b\"}]}\n", &c,
            "has no target: nothing in it draws a loss");
    refused("{\"messages\": [3]}\n", &c, "the conversation: \"messages\"[0] is no object with a \"role\"");
    refused("{\"messages\": [{\"role\": 1}]}\n", &c, "line 1, byte 0: the conversation: \"messages\"[0] is no object");
    refused(
        "{\"messages\": [{\"role\": \"user\", \"content\": \"bbbbbbbbbbb\"}, {\"role\": \"assistant\", \"content\": "
        "\"c\"}]}\n",
        &c, "more than data.seq_length 6");
    tess_chat_free(chat);
    c.chat = NULL;
    refused(lines, &c, "\"messages\" need the chat_template of a model's directory");
    c.task = TESS_DATA_MASKED;
    refused(lines, &c, "\"messages\" are for models that go on with a text");
}

TEST(truncated)
{
    static const char text[] = "{\"prompt\": \"0123456789\", \"completion\": \"ab\"}\n"
                               "{\"prompt\": \"0123\", \"completion\": \"abcdef\"}\n"
                               "{\"prompt\": \"01\", \"completion\": \"a\"}\n";
    tess_data *d = NULL;
    tess_data_conf c = causal;
    CHECK_EQ(tess_data_open(write_text("a.jsonl", text), NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "a.jsonl: line 1, byte 0: the sample: 12 tokens, more than data.seq_length 6 (make "
                                 "that longer, or say data.truncate=true)");
    c.truncate = true;
    d = open_text(text, NULL, &c);
    if (!d) return;
    CHECK_EQ(tess_data_samples(d), 2);
    CHECK_EQ(tess_data_lines_left_out(d), 1);
    struct whole w = get(d, 0);
    check_list("ids", w.ids, T, "48 49 50 51 97 98");
    check_list("targets", w.targets, T, "-100 -100 -100 97 98 -100");
    tess_data_close(d);
    c.seq_length = 2;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "of each of the 3 lines data.truncate leaves 2 tokens without a target");
}

/* ---- documents ---- */

/* Joined and cut as a text is that has the end of text between them. */
TEST(documents_are_a_text)
{
    tess_tokenizer *t = NULL;
    CHECK_EQ(tess_tokenizer_open(TESS_FIXTURES "/tokenizer_gpt2.json", &t), TESS_OK);
    for (int kind = 0; kind < 3; kind++) { /* bytes, bytes with an end of text from elsewhere, tokens */
        const tess_tokenizer *by = kind == 2 ? t : NULL;
        tess_data_conf c = causal;
        c.vocab = kind == 2 ? tess_tokenizer_vocab(t) : 256;
        c.end_of_text = kind == 1 ? 200 : -1;
        char joined[600] = "", *out = joined, lines[2][600] = {"", ""};
        for (int i = 0; i < 20; i++) {
            char *line = lines[i >= 12];
            const char end = kind == 1 ? (char)200 : 0;
            out += sprintf(out, "tile %d rests", i * i);
            sprintf(line + strlen(line), "{\"text\": \"tile %d rests\", \"label\": 3}\n", i * i);
            if (i == 19) break;
            if (kind == 2)
                out += sprintf(out, "<|endoftext|>");
            else
                *out++ = end;
        }
        FILE *f = fopen(in_dir("joined.txt"), "wb");
        CHECK_EQ(fwrite(joined, 1, (size_t)(out - joined), f), out - joined);
        fclose(f);
        write_text("d1.jsonl", lines[0]);
        write_text("d2.jsonl", lines[1]);
        char list[300], txt[100];
        snprintf(list, sizeof list, "[\"%s/d1.jsonl\", \"%s/d2.jsonl\"]", dir, dir);
        snprintf(txt, sizeof txt, "%s/joined.txt", dir);
        tess_data *d = NULL, *whole = NULL;
        CHECK_EQ(tess_data_open(list, by, &c, &d), TESS_OK);
        CHECK_EQ(tess_data_open(txt, by, &c, &whole), TESS_OK);
        if (!d || !whole) {
            CHECK_STR(tess_error_text(), "");
            return;
        }
        CHECK(!tess_data_by_lines(d) && !tess_data_has_examples(list));
        CHECK_EQ(tess_data_tokens(d), tess_data_tokens(whole));
        CHECK_EQ(tess_data_samples(d), tess_data_samples(whole));
        for (uint64_t s = 0; s < tess_data_samples(whole); s++) {
            const struct whole x = get(d, s), y = get(whole, s);
            CHECK(!memcmp(&x, &y, sizeof x));
        }
        tess_data_close(d);
        tess_data_close(whole);
    }
    tess_tokenizer_free(t);
}

/* Packed documents are bounded by the end of text, in every format; positions begin anew where that is asked for. */
TEST(packed)
{
    for (int restart = 0; restart < 2; restart++) {
        tess_data_conf c = causal;
        c.pack = true, c.restart = restart;
        FILE *f = fopen(in_dir("p.txt"), "wb");
        fwrite("ab\0cdef\0\0ghij\0kl", 1, 16, f);
        fclose(f);
        tess_data *d = NULL;
        CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_OK);
        if (!d) return;
        struct whole w = get(d, 0); /* ab0cde */
        check_list("bounds", w.bounds, 2 * T, "0 0 0 3 3 3 3 3 3 6 6 6");
        check_list("positions", w.positions, T, restart ? "0 1 2 0 1 2" : "0 1 2 3 4 5");
        w = get(d, 1); /* f00ghi: what ends a text ends its own */
        check_list("bounds", w.bounds, 2 * T, "0 0 2 3 3 3 2 2 3 6 6 6");
        check_list("positions", w.positions, T, restart ? "0 1 0 0 1 2" : "0 1 2 3 4 5");
        check_list("targets", w.targets, T, "0 0 103 104 105 106");
        tess_data_close(d);
        c.pack = false;
        CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_OK);
        if (!d) return;
        check_list("bounds", get(d, 0).bounds, 2 * T, "0 0 0 0 0 0 6 6 6 6 6 6");
        check_list("positions", get(d, 0).positions, T, "0 1 2 3 4 5");
        tess_data_close(d);
    }
}

/* ---- targets out of text alone ---- */

/* Tokens of a masked model's sample that are not its own: counted, and that each is a target. */
static void count_masks(const struct whole *w, const struct whole *plain, const tess_data_conf *c, int count[4])
{
    for (int t = 0; t < T; t++) {
        const bool target = w->targets[t] != NONE;
        if (target) CHECK_EQ(w->targets[t], plain->ids[t]);
        if (!target) CHECK_EQ(w->ids[t], plain->ids[t]);
        count[0]++;
        count[1] += target;
        count[2] += target && w->ids[t] == c->mask_token;
        count[3] += target && w->ids[t] == plain->ids[t];
    }
}

static struct whole get_at(const tess_data *d, uint64_t sample, uint64_t place)
{
    struct whole w;
    memset(&w, 0, sizeof w);
    CHECK_EQ(
        tess_data_get(d, sample,
                      &(tess_sample){w.ids, w.targets, w.bounds, w.positions, w.segments, w.decoder, w.label, place}),
        TESS_OK);
    return w;
}

TEST(masks)
{
    enum { WORDS = 2000, SAMPLES = 2000 };
    tess_data_conf c = causal;
    int count[4] = {0};
    tess_data *d = NULL, *plain = NULL;
    char *text = malloc(6 * WORDS + 1);
    for (int i = 0; i < WORDS; i++) memcpy(text + 6 * i, i % 5 ? "abc de" : "ab\1 f ", 6);
    text[6 * WORDS] = 0;
    write_text("m.txt", text);
    free(text);
    CHECK_EQ(tess_data_open(path, NULL, &c, &plain), TESS_OK);
    c.task = TESS_DATA_MASKED;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "m.txt: has no labels (set data.mlm_probability, or give a .jsonl");
    c.mlm_probability = 0.15;
    c.mask_token = -1;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "data.mask_token says nothing (the tokenizer has no [MASK])");
    c.mask_token = 255;
    c.special = (int32_t[]){1};
    c.specials = 1;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_OK);
    if (!d || !plain) return;
    CHECK_EQ(tess_data_samples(d), SAMPLES);
    int other = 0;
    for (uint64_t s = 0; s + 1 < SAMPLES; s++) {
        const struct whole w = get_at(d, s, s), again = get_at(d, s, s), epoch = get_at(d, s, s + SAMPLES),
                           p = get(plain, s);
        int one[4] = {0};
        CHECK(!memcmp(&w, &again, sizeof w));
        other += memcmp(w.targets, epoch.targets, sizeof w.targets) != 0;
        count_masks(&w, &p, &c, one);
        CHECK(one[1] > 0);
        for (int i = 0; i < 4; i++) count[i] += one[i];
        for (int t = 0; t < T; t++) CHECK(p.ids[t] != 1 || w.targets[t] == NONE);
    }
    CHECK(other > SAMPLES / 2);
    /* 0.15 of them, and one where that is none; one of 30 is special. */
    CHECK_NEAR(count[1] / (double)SAMPLES, 0.15 * 5.8 + 0.39, 0.06);
    CHECK_NEAR(count[2] / (double)count[1], 0.8, 0.03);
    CHECK_NEAR(count[3] / (double)count[1], 0.1, 0.03);
    tess_data_close(d);

    c.whole_words = true; /* abc and de: all or none */
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_OK);
    int words = 0;
    for (uint64_t s = 0; s + 1 < SAMPLES && d; s++) {
        const struct whole w = get_at(d, s, s);
        if (s % 5 == 0) continue;
        const int n = (w.targets[0] != NONE) + (w.targets[1] != NONE) + (w.targets[2] != NONE);
        const int all = n + (w.targets[3] != NONE) + (w.targets[4] != NONE) + (w.targets[5] != NONE);
        if (all == 1) continue; /* the one that is chosen where there would be none */
        CHECK(n == 0 || n == 3);
        CHECK_EQ(w.targets[4] == NONE, w.targets[5] == NONE);
        words += n == 3;
    }
    CHECK_NEAR(words / (0.8 * SAMPLES), 0.15, 0.05);
    tess_data_close(d);
    tess_data_close(plain);

    c.whole_words = false; /* lines that bring no labels are masked too, and padding is not */
    d = open_text("{\"input_ids\": [5, 6, 7]}\n{\"input_ids\": [5, 6], \"labels\": [-100, 9]}\n", NULL, &c);
    for (uint64_t at = 0; d && at < 50; at++) {
        const struct whole w = get_at(d, 0, at);
        CHECK(w.targets[0] == 5 || w.targets[1] == 6 || w.targets[2] == 7);
        check_list("targets", w.targets + 3, 3, "-100 -100 -100");
        check_list("targets", get_at(d, 1, at).targets, T, "-100 9 -100 -100 -100 -100");
    }
    tess_data_close(d);
}

/* What went over to the decoder, put back where its sentinels stand, is the text. */
TEST(spans)
{
    enum { LONG = 40 };
    tess_data_conf c = {.seq_length = LONG,
                        .vocab = 256,
                        .end_of_text = 10,
                        .task = TESS_DATA_DECODER,
                        .decoder_start = 11,
                        .sentinel = 255,
                        .noise_density = 0.15,
                        .noise_span = 3};
    static char text[4001];
    for (int i = 0; i < 4000; i++) text[i] = (char)('a' + i * i % 26);
    tess_data *d = NULL;
    CHECK_EQ(tess_data_open(write_text("s.txt", text), NULL, &c, &d), TESS_OK);
    if (!d) return;
    int32_t ids[LONG], targets[LONG], decoder[LONG], bounds[2 * LONG], first[LONG];
    uint64_t at = 0;
    for (uint64_t s = 0; s < tess_data_samples(d); s++) {
        CHECK_EQ(
            tess_data_get(
                d, s,
                &(tess_sample){.ids = ids, .targets = targets, .decoder_ids = decoder, .bounds = bounds, .place = s}),
            TESS_OK);
        const int n = bounds[LONG];
        int k = 0;
        CHECK(n > LONG - 3 && n <= LONG);
        CHECK_EQ(ids[n - 1], 10);
        for (int t = 0; t + 1 < n; t++) {
            if (ids[t] < 200) {
                CHECK_EQ(ids[t], text[at++]);
                continue;
            }
            CHECK_EQ(targets[k++], ids[t]);
            while (k < LONG && targets[k] < 200 && targets[k] != 10) CHECK_EQ(targets[k++], text[at++]);
        }
        CHECK_EQ(targets[k], 10);
        for (int t = 0; t < LONG; t++) {
            if (t > k) CHECK_EQ(targets[t], NONE);
            if (t <= k) CHECK_EQ(decoder[t], t ? targets[t - 1] : 11);
        }
        if (s == 0) memcpy(first, ids, sizeof first);
    }
    /* 40 places hold 44 tokens, less the 7 that go (0.15 of them), with 2 sentinels and an end. */
    CHECK_EQ(at / tess_data_samples(d), 44);
    CHECK_EQ(tess_data_get(d, 0, &(tess_sample){.ids = ids, .place = 77}), TESS_OK);
    CHECK(memcmp(first, ids, sizeof first) != 0);
    tess_data_close(d);
    c.sentinel = 0;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "data.sentinel_token: 0, expected 1 to 255, for 2 spans");
}

/* ---- several files ---- */

TEST(weights_over_examples_and_tokens)
{
    write_text("w.txt", "abcdefghijklmnopqrstuvwxyz");
    write_text("w.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [2, 3]}\n{\"input_ids\": [3, 4]}\n");
    char list[300];
    tess_data *d = NULL;
    snprintf(list, sizeof list, "[{\"path\": \"%s/w.txt\", \"weight\": 1}, {\"path\": \"%s/w.jsonl\", \"weight\": 3}]",
             dir, dir);
    CHECK(tess_data_has_examples(list));
    CHECK_EQ(tess_data_open(list, NULL, &causal, &d), TESS_OK);
    if (!d) return;
    CHECK_EQ(tess_data_samples(d), 4 + 3);
    int lines = 0;
    for (uint64_t p = 0; p < 40; p++) {
        const uint64_t s = tess_data_order(d, p);
        const struct whole w = get(d, s);
        CHECK_EQ(w.ids[0], s < 4 ? 'a' + 6 * (int)s : (int)s - 3);
        lines += s >= 4;
    }
    CHECK_EQ(lines, 30);
    tess_data_close(d);
    snprintf(list, sizeof list, "[\"%s/w.txt\", \"%s/w.jsonl\"]", dir, dir);
    CHECK_EQ(tess_data_open(list, NULL, &causal, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "w.jsonl: is examples, and ");
    CHECK_HAS(tess_error_text(), "w.txt, before it in the list, is a stream of tokens (with weights both can be had)");
    /* Examples of several files are one behind the other; a directory's index is nothing that was left out. */
    CHECK_EQ(mkdir(in_dir("many"), 0777), 0);
    write_text("many/a.jsonl", "{\"input_ids\": [1, 2]}\n");
    write_text("many/b.jsonl", "{\"input_ids\": [2, 3]}\n{\"input_ids\": [3, 4]}\n");
    for (int again = 0; again < 2; again++) {
        CHECK_EQ(tess_data_open(in_dir("many"), NULL, &causal, &d), TESS_OK);
        if (!d) return;
        CHECK_EQ(tess_data_samples(d), 3);
        for (uint64_t s = 0; s < 3; s++) CHECK_EQ(get(d, s).ids[0], (int)s + 1);
        CHECK(!tess_data_left_out(d));
        CHECK_EQ(access(in_dir("many/b.jsonl.index"), F_OK), 0);
        tess_data_close(d);
    }
}

/* What a graph is asked for before any data is open: by the first lines, which may be wrong or not there at all. */
TEST(inputs_that_a_network_needs)
{
    static const struct {
        const char *set[3];
        bool bounds, positions;
    } cases[] = {{{"data.train=@/n.txt", "data.valid=@/n.txt"}, false, false},
                 {{"data.train=@/ids.jsonl", "data.valid=@/n.txt"}, true, false},
                 {{"data.train=@/n.txt", "data.valid=[\"@/n.txt\", \"@/pairs.jsonl\"]"}, true, false},
                 {{"data.train=@/docs.jsonl", "data.valid=@/bad.jsonl"}, false, false},
                 {{"data.train=@/nowhere.jsonl", "data.valid=@/nowhere"}, false, false},
                 {{"data.train=@/n.txt", "data.pack=true"}, true, false},
                 {{"data.train=@/n.txt", "data.pack=true", "data.pack_positions=true"}, true, true}};
    write_text("n.txt", "abc");
    write_text("ids.jsonl", "\n{\"input_ids\": [1, 2]}\n{");
    write_text("pairs.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    write_text("docs.jsonl", "{\"text\": \"a\"}\n");
    write_text("bad.jsonl", "{\"input_ids\": [1, 2\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[3][200];
        const char *set[3];
        size_t n = 0;
        tess_config c;
        for (; n < 3 && cases[i].set[n]; n++) {
            size_t m = 0;
            for (const char *p = cases[i].set[n]; *p; p++)
                m += (size_t)snprintf(text[n] + m, sizeof text[n] - m, *p == '@' ? "%s" : "%.1s", *p == '@' ? dir : p);
            set[n] = text[n];
        }
        tess_error_clear();
        CHECK_EQ(tess_config_load(NULL, set, n, &c), TESS_OK);
        const tess_run_inputs in = tess_run_wants(&c);
        CHECK_EQ(in.bounds, cases[i].bounds);
        CHECK_EQ(in.positions, cases[i].positions);
        CHECK_STR(tess_error_text(), "");
        tess_config_free(&c);
    }
}

/* ---- the index ---- */

static struct stat stat_of(const char *name)
{
    struct stat st = {0};
    CHECK_EQ(stat(in_dir(name), &st), 0);
    return st;
}

static int32_t first_token(const tess_data_conf *c)
{
    tess_data *d = NULL;
    CHECK_EQ(tess_data_open(in_dir("i.jsonl"), NULL, c, &d), TESS_OK);
    const int32_t first = d ? get(d, 0).ids[0] : -1;
    tess_data_close(d);
    return first;
}

static void damage(long at, const char *with, size_t bytes)
{
    FILE *f = fopen(in_dir("i.jsonl.index"), "r+b");
    CHECK(f && fseek(f, at, at < 0 ? SEEK_END : SEEK_SET) == 0 && fwrite(with, 1, bytes, f) == bytes);
    if (f) fclose(f);
}

/* It is made once, and anew for other content, even of the same size and time, for other rules, or when it is not what
 * it was. */
TEST(an_index_is_made_once)
{
    static const char one[] = "{\"input_ids\": [1, 2]}\n", other[] = "{\"input_ids\": [7, 2]}\n";
    tess_data_conf c = causal;
    write_text("i.jsonl", one);
    const struct stat file = stat_of("i.jsonl");
    CHECK_EQ(first_token(&c), 1);
    const struct stat made = stat_of("i.jsonl.index");
    CHECK_EQ(first_token(&c), 1);
    CHECK_EQ(stat_of("i.jsonl.index").st_ino, made.st_ino);
    write_text("i.jsonl", other);
    CHECK_EQ(utimensat(AT_FDCWD, path, (struct timespec[]){file.st_atim, file.st_mtim}, 0), 0);
    CHECK_EQ(first_token(&c), 7);
    const struct stat second = stat_of("i.jsonl.index");
    CHECK(second.st_ino != made.st_ino || second.st_mtim.tv_nsec != made.st_mtim.tv_nsec);
    write_text("i.jsonl", "\n\n{\"input_ids\": [9, 2]}\n");
    CHECK_EQ(first_token(&c), 9);
    c.seq_length = 1; /* the line would have been refused */
    tess_data *d = NULL;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_EQ(first_token(&causal), 9);
    damage(0, "X", 1);
    CHECK_EQ(first_token(&causal), 9);
    damage(20, "XYZ", 3);
    CHECK_EQ(first_token(&causal), 9);
    CHECK_EQ(truncate(in_dir("i.jsonl.index"), stat_of("i.jsonl.index").st_size - 1), 0);
    CHECK_EQ(first_token(&causal), 9);
    damage(-8, "\xff\xff\xff\xff\xff\xff\xff\x7f", 8); /* what no head tells */
    CHECK_EQ(tess_data_open(in_dir("i.jsonl"), NULL, &causal, &d), TESS_OK);
    int32_t ids[T];
    if (d) CHECK_EQ(tess_data_get(d, 0, &(tess_sample){.ids = ids}), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "i.jsonl.index: is damaged");
    tess_data_close(d);
    /* A line that is wrong leaves none. */
    write_text("n.jsonl", "{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 2}\n");
    CHECK_EQ(tess_data_open(path, NULL, &causal, &d), TESS_INVALID);
    DIR *list = opendir(dir);
    for (struct dirent *e; (e = readdir(list));) CHECK(strncmp(e->d_name, "n.jsonl.", 8) != 0);
    closedir(list);
}

/* Beside a file that lies where nobody may write it cannot be: it goes to the output, or nowhere. */
TEST(where_nobody_may_write)
{
    tess_data *d = NULL;
    tess_data_conf c = causal;
    CHECK_EQ(mkdir(in_dir("closed"), 0777), 0);
    write_text("closed/c.jsonl", "{\"input_ids\": [4, 2]}\n");
    CHECK_EQ(chmod(in_dir("closed"), 0555), 0);
    CHECK_EQ(chmod(dir, 0777), 0);
    CHECK_EQ(mkdir(in_dir("out"), 0777), 0);
    CHECK_EQ(chmod(path, 0777), 0);
    char *work = realpath(dir, NULL), output[4200];
    snprintf(output, sizeof output, "%s/out", dir);
    const uid_t user = geteuid();
    const bool root = user == 0;
    bool may = true;
    for (char *at = work; root && at; at = strchr(at + 1, '/')) { /* nobody may not even get there */
        struct stat st;
        char *end = strchr(at + 1, '/');
        if (end) *end = 0;
        may = may && stat(work, &st) == 0 && (st.st_mode & 1);
        if (end) *end = '/';
    }
    free(work);
    if (root && (!may || seteuid(65534) != 0)) return;
    for (int where = 0; where < 3; where++) { /* nowhere; in the output; and there again */
        c.output = where ? output : NULL;
        tess_error_clear();
        CHECK_EQ(tess_data_open(in_dir("closed/c.jsonl"), NULL, &c, &d), TESS_OK);
        if (d) CHECK_EQ(get(d, 0).ids[0], 4);
        tess_data_close(d);
        int files = 0;
        DIR *list = opendir(output);
        for (struct dirent *e; (e = readdir(list));) files += !strncmp(e->d_name, "c.jsonl.", 8);
        closedir(list);
        CHECK_EQ(files, where > 0);
    }
    if (root) CHECK_EQ(seteuid(user), 0);
    CHECK(access(in_dir("closed/c.jsonl.index"), F_OK) != 0);
    CHECK_EQ(chmod(in_dir("closed"), 0777), 0);
}

/* Ranks of a run open the same file at the same time. */
TEST(several_at_once)
{
    enum { RANKS = 4 };
    char text[4000] = "";
    pid_t rank[RANKS];
    for (int i = 0; i < 100; i++) sprintf(text + strlen(text), "{\"input_ids\": [%d, 2]}\n", i);
    write_text("s.jsonl", text);
    fflush(stdout);
    for (int k = 0; k < RANKS; k++) {
        if ((rank[k] = fork())) continue;
        tess_data *d = NULL;
        int bad = tess_data_open(path, NULL, &causal, &d) != TESS_OK || tess_data_samples(d) != 100;
        int32_t ids[T];
        for (uint64_t s = 0; s < 100 && !bad; s++)
            bad = tess_data_get(d, s, &(tess_sample){.ids = ids}) != TESS_OK || ids[0] != (int32_t)s;
        _exit(bad);
    }
    for (int k = 0; k < RANKS; k++) {
        int status;
        CHECK_EQ(waitpid(rank[k], &status, 0), rank[k]);
        CHECK_EQ(status, 0);
    }
    int files = 0;
    DIR *list = opendir(dir);
    for (struct dirent *e; (e = readdir(list));) files += !strncmp(e->d_name, "s.jsonl.", 8);
    closedir(list);
    CHECK_EQ(files, 1);
}

/* The sum tells the content, not the place; an index that is there changes nothing of it. */
TEST(sums)
{
    static const char text[] = "{\"input_ids\": [1, 2]}\n";
    tess_data *d = open_text(text, NULL, &causal), *again = open_text(text, NULL, &causal), *other = NULL;
    CHECK_EQ(tess_data_open(write_text("b.jsonl", text), NULL, &causal, &other), TESS_OK);
    CHECK_EQ(tess_data_sum(d), tess_data_sum(again));
    CHECK_EQ(tess_data_sum(d), tess_data_sum(other));
    tess_data_close(other);
    CHECK_EQ(tess_data_open(write_text("b.jsonl", "{\"input_ids\": [1, 3]}\n"), NULL, &causal, &other), TESS_OK);
    CHECK(tess_data_sum(d) != tess_data_sum(other));
    tess_data_close(d);
    tess_data_close(again);
    tess_data_close(other);
}

/* ---- what is refused ---- */

TEST(lines_that_are_wrong)
{
    enum { BOTH = -1 }; /* masks and labels */
    static const struct {
        const char *text, *error;
        int task; /* tess_data_task, or */
    } cases[] = {
        {"", "a.jsonl: line 1, byte 0: is empty, expected one JSON object a line", 0},
        {"\n \n", "line 1, byte 0: is empty", 0},
        {"{\"text\": \"a\"}\n{\"text\": \"b\"\n", "a.jsonl: line 2, byte 26: is no JSON: ", 0},
        {"[1]\n", "line 1, byte 0: is no JSON object", 0},
        {"{\"text\": \"\xff\"}\n", "line 1, byte 10: is no JSON: unable to decode byte 0xff", 0},
        {"{\"txet\": \"a\"}\n",
         "line 1, byte 0: has none of \"text\", \"prompt\", \"messages\" and \"input_ids\", but \"txet\"", 0},
        {"{\"input_id\": [1]}\n", "but \"input_id\"; did you mean input_ids", 0},
        {"{\"text\": 5}\n", "line 1, byte 0: \"text\" is no string", 0},
        {"{\"text\": \"abcdefgh\"}\n\n{\"prompt\": \"a\", \"completion\": \"b\"}\n",
         "line 3, byte 22: has \"prompt\", but the lines before it have \"text\"", 0},
        {"{\"text\": \"abcdefgh\"}\n{\"a\": 1}\n", "line 2, byte 21: has no \"text\", as the lines before it have", 0},
        {"{\"text\": \"abc\"}\n", "a.jsonl: holds 3 tokens, one sample of seq_length 6 needs 7", 0},
        {"{\"prompt\": \"a\"}\n", "line 1, byte 0: has no \"completion\"", 0},
        {"{\"prompt\": \"a\", \"completion\": [1]}\n", "\"completion\" is no string", 0},
        {"{\"prompt\": \"a\", \"completion\": \"\"}\n", "has no target: nothing in it draws a loss", 0},
        {"{\"prompt\": \"\", \"completion\": \"\"}\n", "has no tokens", 0},
        {"{\"prompt\": \"a\", \"completion\": \"b\"}\n", "are for models that go on with a text", TESS_DATA_MASKED},
        {"{\"input_ids\": []}\n", "line 1, byte 0: has no tokens", 0},
        {"{\"input_ids\": \"a\"}\n", "\"input_ids\" is no list of whole numbers", 0},
        {"{\"input_ids\": [1, 2.5]}\n", "\"input_ids\"[1] is no whole number", 0},
        {"{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 256]}\n",
         "line 2, byte 22: \"input_ids\"[1]: 256 is beyond the vocabulary of 256, expected 0 to 255", 0},
        {"{\"input_ids\": [1, -1]}\n", "\"input_ids\"[1]: -1 is beyond", 0},
        {"{\"input_ids\": [1, 99999999999]}\n", "\"input_ids\"[1]: 99999999999 is beyond", 0},
        {"{\"input_ids\": [1, 2], \"labels\": [1, 300]}\n",
         "\"labels\"[1]: 300 is beyond the vocabulary of 256, expected -100, or 0 to 255", 0},
        {"{\"input_ids\": [1, 2], \"labels\": [1, -1]}\n", "\"labels\"[1]: -1 is beyond", 0},
        {"{\"input_ids\": [1, 2], \"labels\": [1]}\n", "\"labels\" has 1 entries, \"input_ids\" has 2", 0},
        {"{\"input_ids\": [1, 2], \"labels\": [1, -100]}\n", "has no target", 0}, /* that of the first place is none */
        {"{\"input_ids\": [1]}\n", "has no target", 0},
        {"{\"input_ids\": [1, 2]}\n", "has no target", TESS_DATA_MASKED},
        {"{\"input_ids\": [1, 2]}\n", "has no target", TESS_DATA_DECODER},
        {"{\"input_ids\": [1, 2]}\n", "has no \"label\"", TESS_DATA_LABEL},
        {"{\"input_ids\": [1, 2], \"label\": 3}\n", "is not one of the model's 3, expected 0 to 2", TESS_DATA_LABEL},
        {"{\"input_ids\": [1, 2], \"label\": 1}\n", "this model has none for whole samples", 0},
        {"{\"input_ids\": [1, 2], \"decoder_input_ids\": [1, 2]}\n", "has no decoder behind an encoder", 0},
        {"{\"input_ids\": [1], \"labels\": [1, 2], \"decoder_input_ids\": [1]}\n",
         "\"decoder_input_ids\" has 1 entries, \"labels\" has 2", TESS_DATA_DECODER},
        {"{\"input_ids\": [1], \"labels\": [1, 2, 3, 4, 5, 6, 7]}\n",
         "the labels: 7 tokens, more than data.seq_length 6", TESS_DATA_DECODER},
        {"{\"input_ids\": [1, 2], \"token_type_ids\": [0]}\n", "\"token_type_ids\" has 1 entries", 0},
        {"{\"input_ids\": [1, 2], \"token_type_ids\": [0, 2]}\n", "2 is beyond the token types of 2", 0},
        {"{\"input_ids\": [1, 2], \"lables\": [1, 2]}\n", "\"lables\" is unknown (did you mean labels?)", 0},
        {"{\"input_ids\": [1, 2], \"position_ids\": [1, 2]}\n", "\"position_ids\" is not supported", 0},
        {"{\"input_ids\": [1, 2], \"attention_mask\": [0, 1]}\n", "\"attention_mask\"[1]: expected ones, then zeros",
         0},
        {"{\"input_ids\": [1, 2], \"attention_mask\": [1]}\n", "\"attention_mask\" has 1 entries", 0},
        {"{\"input_ids\": [1, 2]}\n{\"input_ids\": [1,2,3,4,5,6,7]}\n",
         "line 2, byte 22: the sample: 7 tokens, more than data.seq_length 6", 0},
        {"{\"input_ids\": [1, 2], \"input_ids\": [1, 2]}\n", "is no JSON: duplicate object key", 0},
        {"{\"input_ids\": [1, 2], \"labels\": [1, 2]}\n", "has no \"next_sentence_label\"", BOTH},
        {"{\"input_ids\": [1, 2], \"labels\": [1, 2], \"next_sentence_label\": 3}\n",
         "\"next_sentence_label\" is not one of the model's 3", BOTH},
        {"{\"text\": \"abcdefgh\"}\n", "does not say of two texts whether they follow each other", BOTH},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        tess_data *d = NULL;
        tess_data_conf c = causal;
        c.both = cases[i].task == BOTH;
        c.task = c.both ? TESS_DATA_MASKED : (tess_data_task)cases[i].task;
        c.labels = 3, c.types = 2;
        tess_error_clear();
        CHECK_EQ(tess_data_open(write_text("a.jsonl", cases[i].text), NULL, &c, &d), TESS_INVALID);
        CHECK_HAS(tess_error_text(), cases[i].error);
        tess_data_close(d);
    }
}

/* A tokenizer that knows more than the model, and one that does not know what ends a text. */
TEST(tokenizers_that_do_not_fit)
{
    tess_tokenizer *t = NULL;
    tess_data *d = NULL;
    tess_data_conf c = causal;
    CHECK_EQ(tess_tokenizer_open(TESS_FIXTURES "/tokenizer_gpt2.json", &t), TESS_OK);
    CHECK_EQ(tess_data_open(write_text("a.jsonl", "{\"text\": \"a\"}\n{\"text\": \"<|endoftext|>\"}\n"), t, &c, &d),
             TESS_INVALID);
    CHECK_HAS(tess_error_text(), "is beyond the vocabulary of 256 (is this the model's own tokenizer?)");
    CHECK_HAS(tess_error_text(), "a.jsonl: line ");
    tess_tokenizer_free(t);
    write_text("c.bin", "");
    c.pack = true;
    CHECK_EQ(tess_data_open(path, NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "data.pack: which token ends a document is not known");
}

static int clean_one(const char *file, const struct stat *st, int kind, struct FTW *at)
{
    (void)st, (void)kind, (void)at;
    return remove(file);
}

__attribute__((destructor)) static void clean(void)
{
    if (dir_made) nftw(dir, clean_one, 8, FTW_DEPTH | FTW_PHYS);
}
