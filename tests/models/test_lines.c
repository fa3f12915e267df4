/* A .jsonl: what each kind of line becomes, and every way a line can be wrong. */
#define CHECK_MAIN
#include "models/text/chat/chat.h"
#include "models/train/run/run.h"
#include "tests/models/lines.h"
#include "tests/rows.h"

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

static void check_pair(const char *line, const tess_data_conf *c, const char *const ids[2],
                       const char *const targets[2])
{
    tess_data *d = open_text(line, NULL, c);
    if (!d) return;
    for (int k = 0; k < 2; k++) {
        int32_t id[T], target[T];
        CHECK_EQ(tess_data_get(d, 0, &(tess_sample){.ids = id, .targets = target, .other = k}), TESS_OK);
        check_list("ids", id, T, ids[k]);
        check_list("targets", target, T, targets[k]);
    }
    CHECK_EQ(tess_data_samples(d), 1);
    tess_data_close(d);
}

/* Pairs as texts, as messages, and as messages that begin alike: the same two sequences. */
TEST(pairs)
{
    static const char template[] = "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}"
                                   "{% if add_generation_prompt %}a{% endif %}";
#define USER "{\"role\": \"user\", \"content\": \"b\"}"
#define SAYS "{\"role\": \"assistant\", \"content\": "
    static const char *const ids[] = {"117 98 97 99 0 0", "117 98 97 100 101 0"}, *const targets[] = {
                                                                                      "-100 -100 99 -100 -100 -100",
                                                                                      "-100 -100 100 101 -100 -100"};
    struct tess_chat *chat = NULL;
    CHECK_EQ(tess_chat_of("mine", template, &chat), TESS_OK);
    tess_data_conf c = causal;
    c.pairs = true;
    c.chat = chat;
    check_pair("{\"prompt\": \"uba\", \"chosen\": \"c\", \"rejected\": \"de\"}\n", &c, ids, targets);
    check_pair("{\"prompt\": [" USER "], \"chosen\": [" SAYS "\"c\"}], \"rejected\": [" SAYS "\"de\"}]}\n", &c, ids,
               targets);
    check_pair("{\"chosen\": [" USER ", " SAYS "\"c\"}], \"rejected\": [" USER ", " SAYS "\"de\"}]}\n", &c, ids,
               targets);
    check_pair("{\"prompt\": \"b\", \"chosen\": [" USER ", " SAYS "\"c\"}], \"rejected\": [" USER ", " SAYS
               "\"de\"}]}\n",
               &c, ids, targets);
    refused("{\"chosen\": [" SAYS "\"c\"}], \"rejected\": [" SAYS "\"d\"}]}\n", &c,
            "begin with no message that they share");
    refused("{\"chosen\": [" USER ", " SAYS "\"c\"}], \"rejected\": [" USER "]}\n", &c,
            "\"rejected\" has no message to learn from");
    refused("{\"prompt\": \"u\", \"chosen\": \"c\", \"rejected\": 3}\n", &c,
            "\"rejected\" is neither a text nor a list of messages");
    refused("{\"prompt\": \"u\", \"chosen\": \"c\", \"rejected\": \"defghij\"}\n", &c, "more than data.seq_length 6");
    c.truncate = true; /* what is left of the longer one has no target */
    refused("{\"prompt\": \"ubabab\", \"chosen\": \"c\", \"rejected\": \"d\"}\n", &c, "without a target");
    tess_chat_free(chat);
}

/* A prompt with the completion of the line before it, which is cut to fit, whatever data.truncate says. */
TEST(judged)
{
    tess_data_conf c = causal;
    c.judged = true;
    tess_data *d = open_text("{\"prompt\": \"ab\", \"completion\": \"c\", \"label\": true}\n"
                             "{\"prompt\": \"uvwx\", \"completion\": \"yz\", \"label\": false}\n"
                             "{\"prompt\": \"k\", \"completion\": \"defgh\", \"label\": 1}\n",
                             NULL, &c);
    static const struct {
        uint64_t sample;
        bool other;
        int32_t label;
        const char *ids, *targets;
    } all[] = {{0, false, 1, "97 98 99 0 0 0", "-100 99 -100 -100 -100 -100"},
               {0, true, 1, "97 98 100 101 102 103", "-100 100 101 102 103 -100"},
               {1, false, 0, "117 118 119 120 121 122", "-100 -100 -100 121 122 -100"},
               {1, true, 0, "117 118 119 120 99 0", "-100 -100 -100 99 -100 -100"},
               {2, false, 1, "107 100 101 102 103 104", "100 101 102 103 104 -100"},
               {2, true, 1, "107 121 122 0 0 0", "121 122 -100 -100 -100 -100"}};
    for (size_t i = 0; d && i < sizeof all / sizeof *all; i++) {
        int32_t id[T], target[T], label = -1;
        const tess_sample into = {.ids = id, .targets = target, .label = &label, .other = all[i].other};
        CHECK_EQ(tess_data_get(d, all[i].sample, &into), TESS_OK);
        check_list("ids", id, T, all[i].ids);
        check_list("targets", target, T, all[i].targets);
        CHECK_EQ(label, all[i].label);
    }
    tess_data_close(d);
    struct tess_chat *chat = NULL; /* messages, and the answer of the line before */
    CHECK_EQ(tess_chat_of("mine", "{% for m in messages %}{{ m.role[0] }}{{ m.content }}{% endfor %}", &chat), TESS_OK);
    c.chat = chat;
    d = open_text("{\"prompt\": [{\"role\": \"user\", \"content\": \"b\"}], \"completion\": [{\"role\": \"assistant\", "
                  "\"content\": \"c\"}], \"label\": true}\n"
                  "{\"prompt\": [{\"role\": \"user\", \"content\": \"d\"}], \"completion\": [{\"role\": \"assistant\", "
                  "\"content\": \"ef\"}], \"label\": false}\n",
                  NULL, &c);
    for (int other = 0; d && other < 2; other++) {
        int32_t id[T];
        CHECK_EQ(tess_data_get(d, 0, &(tess_sample){.ids = id, .other = other}), TESS_OK);
        check_list("ids", id, T, other ? "117 98 97 101 102 0" : "117 98 97 99 0 0");
    }
    tess_data_close(d);
    tess_chat_free(chat);
    c.chat = NULL;
    refused("{\"prompt\": \"a\", \"completion\": \"b\", \"label\": 2}\n", &c, "\"label\" is neither true nor false");
    refused("{\"messages\": []}\n", &c, "is no {\"prompt\", \"completion\", \"label\"}");
}

/* What a line draws a loss for, as letters; '-' is none. */
static void check_words(const char *line, const tess_data_conf *c, const char *ids, const char *learned)
{
    enum { LONG = 400 };
    int32_t id[LONG], target[LONG];
    char text[LONG + 1] = "", targets[LONG + 1] = "";
    tess_data_conf of = *c;
    of.seq_length = LONG;
    tess_data *d = open_text(line, NULL, &of);
    if (!d) return;
    CHECK_EQ(tess_data_get(d, 0, &(tess_sample){.ids = id, .targets = target}), TESS_OK);
    for (int i = 0; i < LONG; i++) text[i] = (char)id[i], targets[i] = target[i] == NONE ? '-' : (char)target[i];
    if (strncmp(text, ids, strlen(ids)) || text[strlen(ids)]) CHECK_SAY("%s is \"%s\"", line, text);
    char *end = strrchr(targets, learned[strlen(learned) - 1]);
    if (end) end[1] = 0;
    const char *first = targets + strspn(targets, "-");
    CHECK_STR(first, learned);
    tess_data_close(d);
}

/* ShareGPT's lines and Alpaca's are conversations, and where a model has no template what it goes on from. */
TEST(lines_of_other_tools)
{
    static const char template[] = "{% for m in messages %}<{{ m.role[0] }}>{{ m.content }}{% endfor %}"
                                   "{% if add_generation_prompt %}<a>{% endif %}",
                      turns[] = "{\"id\": \"7\", \"conversations\": [{\"from\": \"human\", \"value\": \"b\"}, "
                                "{\"from\": \"gpt\", \"value\": \"cd\"}]}\n",
                      said[] = "{\"system\": \"S\", \"conversations\": [{\"role\": \"user\", \"content\": \"b\"}, "
                               "{\"role\": \"assistant\", \"content\": \"cd\"}]}\n",
                      task[] = "{\"instruction\": \"Add.\", \"input\": \"1 1\", \"output\": \"2\"}\n",
                      bare[] = "{\"instruction\": \"Add.\", \"input\": \"\", \"output\": \"2\"}\n",
                      before[] = "{\"instruction\": \"b\", \"output\": \"2\", \"history\": [[\"x\", \"y\"]]}\n";
    tess_data_conf c = causal;
    struct tess_chat *chat = NULL;
    CHECK_EQ(tess_chat_of("mine", template, &chat), TESS_OK);
    c.chat = chat;
    check_words(turns, &c, "<u>b<a>cd", "cd");
    check_words(said, &c, "<s>S<u>b<a>cd", "cd");
    check_words(task, &c, "<u>Add.\n1 1<a>2", "2");
    check_words(bare, &c, "<u>Add.<a>2", "2");
    check_words(before, &c, "<u>x<a>y<u>b<a>2", "y-------2");
    refused("{\"conversations\": [{\"from\": \"narrator\", \"value\": \"b\"}]}\n", &c,
            "\"conversations\"[0]: \"narrator\" is an unknown role (expected human, gpt, system)");
    refused("{\"conversations\": [{\"from\": \"gpt\"}]}\n", &c, "[0] is no object with \"from\" and \"value\"");
    refused("{\"conversations\": 3}\n", &c, "\"conversations\" is no list of turns");
    refused("{\"instruction\": \"b\"}\n", &c, "has no \"output\"");
    refused("{\"instruction\": \"b\", \"output\": 3}\n", &c, "\"output\" is no string");
    refused("{\"instruction\": \"b\\u0000\", \"output\": \"c\"}\n", &c, "has a character of the number 0");
    refused("{\"instruction\": \"b\", \"output\": \"c\", \"history\": [3]}\n", &c, "\"history\"[0] is no pair");
    tess_chat_free(chat);
    c.chat = NULL;
    refused(turns, &c, "need the chat_template of a model's directory");
    refused(before, &c, "\"history\" needs the chat_template of a model's directory");
    check_words(bare, &c,
                "Below is an instruction that describes a task. Write a response that appropriately completes the "
                "request.\n\n### Instruction:\nAdd.\n\n### Response:\n2",
                "2");
    check_words(task, &c,
                "Below is an instruction that describes a task, paired with an input that provides further context. "
                "Write a response that appropriately completes the request.\n\n### Instruction:\nAdd.\n\n### "
                "Input:\n1 1\n\n### Response:\n2",
                "2");
    c.task = TESS_DATA_DECODER;
    tess_data *d = open_text("{\"instruction\": \"b\", \"input\": \"c\", \"output\": \"de\"}\n", NULL, &c);
    if (!d) return;
    const struct whole w = get(d, 0);
    check_list("ids", w.ids, T, "98 10 99 0 0 0");
    check_list("targets", w.targets, T, "100 101 -100 -100 -100 -100");
    tess_data_close(d);
}

/* A share is held out, evenly spread; together with the rest it is all of the samples, each once. */
TEST(a_share_is_held_out)
{
    enum { MOST = 300 };
    static const struct {
        int lines;
        double held;
    } cases[] = {{10, 0.2}, {7, 0.5}, {3, 0.34}, {300, 0.05}, {300, 0.99}, {299, 1.0 / 3}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int stream = 0; stream < 2; stream++) {
            const int all = cases[k].lines, n = (int)(all * cases[k].held);
            int seen[MOST] = {0}, last = -1, farthest = 0;
            char text[MOST * 32] = "", *p = text;
            for (int i = 0; i < all && !stream; i++) p += sprintf(p, "{\"input_ids\": [%d, %d]}\n", i + 1, i + 1);
            for (int i = 0; i <= all * T && stream; i++) *p++ = (char)(1 + i / T % 255);
            tess_data_conf c = causal;
            c.held = cases[k].held, c.vocab = 512;
            write_text(stream ? "h.txt" : "h.jsonl", text);
            for (int holds = 0; holds < 2; holds++) {
                tess_data *d = NULL;
                c.holds = holds;
                CHECK_EQ(tess_data_open(in_dir(stream ? "h.txt" : "h.jsonl"), NULL, &c, &d), TESS_OK);
                if (!d) return;
                CHECK_EQ(tess_data_samples(d), holds ? n : all - n);
                for (uint64_t s = 0; s < tess_data_samples(d); s++) {
                    const int id = get(d, s).ids[0] - 1;
                    if (id < 0 || id >= all) CHECK_SAY("token %d", id + 1);
                    if (stream && all > 255) continue; /* bytes are too few to tell them */
                    seen[id]++;
                    if (holds && id - last > farthest) farthest = id - last;
                    if (holds) last = id;
                }
                tess_data_close(d);
            }
            for (int i = 0; i < all && !(stream && all > 255); i++)
                if (seen[i] != 1) CHECK_SAY("of %d, %g: %d is there %d times", all, c.held, i, seen[i]);
            CHECK(farthest <= all / n + 1);
        }
    tess_data *d = NULL;
    tess_data_conf c = causal;
    c.held = 0.2;
    CHECK_EQ(tess_data_open(write_text("h.jsonl", "{\"input_ids\": [1, 2]}\n"), NULL, &c, &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "has 1 samples, and data.valid 0.2 holds out 0 (expected one at least, and one left)");
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
                                 "that longer, or say data.truncate=true, or drop)");
    c.truncate = true;
    d = open_text(text, NULL, &c);
    if (!d) return;
    CHECK_EQ(tess_data_samples(d), 2);
    CHECK_EQ(tess_data_lines_left_out(d), 1);
    struct whole w = get(d, 0);
    check_list("ids", w.ids, T, "48 49 50 51 97 98");
    check_list("targets", w.targets, T, "-100 -100 -100 97 98 -100");
    tess_data_close(d);
    c.truncate = false, c.drop = true;
    d = open_text(text, NULL, &c);
    if (!d) return;
    CHECK_EQ(tess_data_samples(d), 1);
    CHECK_EQ(tess_data_lines_left_out(d), 2);
    w = get(d, 0);
    check_list("ids", w.ids, 3, "48 49 97");
    tess_data_close(d);
    c.truncate = true, c.drop = false;
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
        CHECK(!tess_data_by_lines(d) && !tess_data_has_examples(list, false));
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

/* ---- examples that share samples ---- */

TEST(examples_share_samples)
{
    static const char text[] = "{\"input_ids\": [1, 2, 3], \"token_type_ids\": [0, 1, 1]}\n"
                               "{\"input_ids\": [4, 5, 6, 7], \"labels\": [-100, -100, 6, 7]}\n"
                               "{\"input_ids\": [8, 9]}\n"
                               "{\"input_ids\": [10, 11, 12]}\n";
    tess_data_conf c = causal;
    c.share = true, c.types = 2;
    tess_data *d = open_text(text, NULL, &c);
    if (!d) return;
    CHECK_EQ(tess_data_samples(d), 3); /* first fit: 3 and 2, 4, 3 */
    CHECK_EQ(tess_data_shared(d), 4);
    CHECK(!tess_data_by_lines(d) && !tess_data_longest(d));
    struct whole w = get(d, 0);
    check_list("ids", w.ids, T, "1 2 3 8 9 0");
    check_list("targets", w.targets, T, "2 3 -100 9 -100 -100");
    check_list("bounds", w.bounds, 2 * T, "0 0 0 3 3 0 3 3 3 5 5 0");
    check_list("positions", w.positions, T, "0 1 2 0 1 5");
    check_list("segments", w.segments, T, "0 1 1 0 0 0");
    tess_data_close(d);
}

/* Every example is there once, whole, whatever the order, the share held out and the number of files. */
TEST(no_example_is_lost)
{
    enum { LINES = 2000, LONG = 64 };
    char *line[2] = {tess_alloc(LINES * 400), tess_alloc(LINES * 400)}, list[300];
    uint64_t dice = 5;
    for (int i = 0, n; i < LINES; i++) {
        char *to = line[i >= 700] + strlen(line[i >= 700]);
        dice = dice * 6364136223846793005u + 1442695040888963407u;
        n = 2 + (int)((dice >> 40) % 30) * (int)((dice >> 50) % 3);
        to += sprintf(to, "{\"input_ids\": [%d, %d", 1 + i % 1000, 1 + i / 1000);
        for (int k = 2; k < n; k++) to += sprintf(to, ", 7");
        sprintf(to, "]}\n");
    }
    write_text("s1.jsonl", line[0]), write_text("s2.jsonl", line[1]);
    snprintf(list, sizeof list, "[\"%s/s1.jsonl\", \"%s/s2.jsonl\"]", dir, dir);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        int seen[LINES] = {0};
        for (int holds = 0; holds < 2; holds++) {
            tess_data_conf c = {.seq_length = LONG, .vocab = 1200, .end_of_text = -1, .share = true, .held = 0.2};
            tess_data *d = NULL;
            c.shuffle = shuffle, c.seed = 9, c.holds = holds;
            CHECK_EQ(tess_data_open(list, NULL, &c, &d), TESS_OK);
            if (!d) return;
            CHECK_EQ(tess_data_shared(d), holds ? LINES / 5 : LINES - LINES / 5);
            int64_t tokens = 0;
            for (uint64_t s = 0; s < tess_data_samples(d); s++) {
                int32_t ids[LONG], bounds[2 * LONG];
                CHECK_EQ(tess_data_get(d, s, &(tess_sample){.ids = ids, .bounds = bounds}), TESS_OK);
                for (int t = 0; t < LONG && bounds[LONG + t]; t++) {
                    if (bounds[t] == t) seen[ids[t] - 1 + 1000 * (ids[t + 1] - 1)]++;
                    tokens++;
                }
            }
            const double full = (double)tokens / (double)(tess_data_samples(d) * LONG);
            if (!(full > 0.9)) CHECK_SAY("samples are full to %g", full);
            tess_data_close(d);
        }
        for (int i = 0; i < LINES; i++)
            if (seen[i] != 1) CHECK_SAY("example %d is there %d times", i, seen[i]);
    }
    free(line[0]), free(line[1]);
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
    CHECK(tess_data_has_examples(list, false));
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
    CHECK_HAS(tess_error_text(), "w.jsonl: is examples, but ");
    CHECK_HAS(tess_error_text(),
              "w.txt, before it in the list, is a stream of tokens (weights allow both in one list)");
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
                 {{"data.train=@/n.txt", "data.pack=true", "data.pack_positions=true"}, true, true},
                 {{"data.train=@/ids.jsonl", "data.pack_examples=true"}, true, true}};
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
        const tess_run_inputs in = tess_run_wants(&c, false);
        CHECK_EQ(in.bounds, cases[i].bounds);
        CHECK_EQ(in.positions, cases[i].positions);
        CHECK_STR(tess_error_text(), "");
        tess_config_free(&c);
    }
}

/* ---- what is refused ---- */

TEST(lines_that_are_wrong)
{
    static const char *const task[] = {
        [TESS_DATA_MASKED] = "masked", [TESS_DATA_DECODER] = "decoder", [TESS_DATA_LABEL] = "label"};
    for (struct rows r = rows_of(TESS_TESTS "/models/lines.tsv"); rows_next(&r);) {
        tess_data *d = NULL;
        tess_data_conf c = causal;
        c.both = !strcmp(r.column[2], "both"); /* masks and labels */
        if (c.both) c.task = TESS_DATA_MASKED;
        for (size_t k = 0; k < sizeof task / sizeof *task; k++)
            if (task[k] && !strcmp(r.column[2], task[k])) c.task = (tess_data_task)k;
        c.labels = 3, c.types = 2;
        tess_error_clear();
        CHECK_ROW(r, tess_data_open(write_text("a.jsonl", r.column[0]), NULL, &c, &d), r.column[1]);
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
