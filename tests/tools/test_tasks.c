/* tessera eval --task: likelihoods beside those of eval and of generate, what follows from them, the same wherever
 * tiles lie, and lines that are no questions. tests/bench/lm_eval_tasks.py lays all of it beside lm-evaluation-harness.
 */
#define CHECK_MAIN
#include "tests/tools/tiny.h"
#include <math.h>

enum { QUESTIONS = 4 };
static const char CHOOSE[] = "{\"context\": \"the tile\", \"choices\": [\" of\", \" rests\", \" x\"], \"answer\": 1}\n"
                             "{\"context\": \"on\", \"choices\": [\" a disk\", \"e\"], \"answer\": 0}\n"
                             "{\"context\": \"a plan of \", \"choices\": [\"RAM\", \"it\"], \"answer\": \"it\"}\n"
                             "{\"context\": \"ranks\", \"choices\": [\" move\", \" moves\"], \"answer\": [0, 1]}\n";

static json_t *lines_of(const char *path)
{
    char *text = read_file(path, NULL);
    json_t *all = json_array();
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n"))
        json_array_append_new(all, json_loads(line, 0, NULL));
    free(text);
    return all;
}

static double number(const json_t *of, size_t line, const char *name)
{
    return json_number_value(json_object_get(json_array_get(of, line), name));
}

static double logprob(const json_t *of, size_t line, size_t k)
{
    const json_t *all = json_object_get(json_array_get(of, line), "filtered_resps");
    return json_number_value(json_array_get(json_array_get(all, k), 0));
}

/* Of the table, in the row of that metric. */
static double metric(const char *name)
{
    char key[40];
    double value = NAN;
    snprintf(key, sizeof key, "  %s ", name);
    const char *at = strstr(ran.out, key);
    if (!at || sscanf(at + strlen(key), "%lf", &value) != 1) CHECK_SAY("no %s in %s", name, ran.out);
    return value;
}

static void setup(void)
{
    tiny_setup();
    DONE("train", "run.json", "steps=12", "optimizer.params.lr=1e-2");
    write_text("choose.jsonl", CHOOSE);
}

/* eval's loss over a completion is the mean over its bytes. */
TEST(likelihoods_are_those_of_eval)
{
    setup();
    DONE("eval", "out/model", "--task", "choose.jsonl", "--samples", "said.jsonl");
    json_t *said = lines_of("said.jsonl");
    CHECK_EQ(json_array_size(said), QUESTIONS);
    const double mean = (number(said, 0, "acc") + number(said, 1, "acc") + number(said, 2, "acc") + 1) / QUESTIONS;
    CHECK_NEAR(metric("acc"), mean, 1e-6);
    CHECK(number(said, 3, "acc") == 1); /* both are right */
    for (size_t k = 0; k < 3; k++) {
        static const char *const choice[] = {" of", " rests", " x"};
        write_text("one.jsonl", fmt("{\"prompt\": \"the tile\", \"completion\": \"%s\"}\n", choice[k]));
        DONE("eval", "out/model", "data.valid=one.jsonl", "data.end_completions=false", "data.seq_length=32");
        double loss = NAN;
        CHECK(sscanf(strstr(ran.out, "loss "), "loss %lf", &loss) == 1);
        const double n = (double)strlen(choice[k]);
        CHECK_NEAR(-logprob(said, 0, k) / n, loss, 1e-5);
    }
    for (size_t i = 0; i < 2; i++) { /* the likeliest, in all and by byte */
        const double bytes[2][3] = {{2, 5, 1}, {6, 1, 0}};
        size_t best[2] = {0, 0};
        for (size_t k = 1; k < 3 - i; k++) {
            if (logprob(said, i, k) > logprob(said, i, best[0])) best[0] = k;
            if (logprob(said, i, k) / bytes[i][k] > logprob(said, i, best[1]) / bytes[i][best[1]]) best[1] = k;
        }
        CHECK(number(said, i, "choice") == (double)best[0]);
        CHECK(number(said, i, "acc") == (best[0] == 1 - i) && number(said, i, "acc_bytes") == (best[1] == 1 - i));
    }
    json_decref(said);
}

/* What generate writes is the likeliest, each token. */
TEST(the_likeliest_is_what_generate_writes)
{
    setup();
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "3", "--temperature", "0");
    char text[64];
    snprintf(text, sizeof text, "%.3s", ran.out + strlen("the tile"));
    json_t *line = json_pack("{s:s, s:s}", "context", "the tile", "continuation", text);
    char *last = json_dumps(line, 0);
    write_text("last.jsonl", fmt("%s\n{\"context\": \"the tile\", \"continuation\": \"QQ\"}\n", last));
    DONE("eval", "out/model", "--task", "last.jsonl", "--samples", "said.jsonl");
    CHECK_NEAR(metric("acc"), 0.5, 1e-6);
    json_t *said = lines_of("said.jsonl");
    const double perplexity = exp(-(logprob(said, 0, 0) + logprob(said, 1, 0)) / 2);
    CHECK_NEAR(metric("perplexity"), perplexity, 1e-5 * perplexity);
    json_t *asked = json_pack("{s:s, s:s, s:i}", "prompt", "the tile", "answer", text, "max_tokens", 3);
    char *write = json_dumps(asked, 0);
    write_text("write.jsonl", fmt("%s\n{\"prompt\": \"the tile\", \"answer\": \"no\", \"max_tokens\": 2}\n", write));
    DONE("eval", "out/model", "--task", "write.jsonl");
    CHECK_NEAR(metric("exact_match"), 0.5, 1e-6);
    json_decref(line), json_decref(asked), json_decref(said);
    free(last), free(write);
}

TEST(the_same_wherever_tiles_lie)
{
    setup();
    mkdir("swap", 0777);
    DONE("eval", "out/model", "--task", "choose.jsonl", "--samples", "one.jsonl");
    DONE("eval", "out/model", "--task", "choose.jsonl", "--samples", "capped.jsonl", "memory.cpu=3MiB",
         "memory.path=swap");
    CHECK(same_file("one.jsonl", "capped.jsonl"));
    DONE_RANKS(2, "eval", "out/model", "--task", "choose.jsonl", "--samples", "two.jsonl");
    CHECK(same_file("one.jsonl", "two.jsonl"));
}

TEST(lines_that_are_no_questions)
{
    static const struct {
        const char *line, *says;
    } cases[] = {
        {"{\"context\": \"a\"", "bad.jsonl:2: column "},
        {"{\"question\": \"a\"}", "bad.jsonl:2: is no question (expected {\"context\", \"choices\", \"answer\"}"},
        {"{\"context\": \"a\", \"choices\": [\"b\"], \"answer\": 0}", "bad.jsonl:2: choices are no list of two texts"},
        {"{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 2}",
         "bad.jsonl:2: answer 2, expected the number"},
        {"{\"context\": \"a\\u0000\", \"choices\": [\"b\", \"c\"], \"answer\": 0}",
         "bad.jsonl:2: context: has the character NUL"},
        {"{\"context\": \"a\", \"continuation\": \"b\"}",
         "bad.jsonl:2: a question of one continuation behind those of"}};
    tiny_setup_trained();
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        write_text("bad.jsonl",
                   fmt("{\"context\": \"a\", \"choices\": [\"b\", \"c\"], \"answer\": 0}\n%s\n", cases[k].line));
        FAILS(2, ("eval", "out/model", "--task", "bad.jsonl"), cases[k].says);
    }
    write_text("bad.jsonl", "\n");
    FAILS(2, ("eval", "out/model", "--task", "bad.jsonl"), "bad.jsonl: has no question");
    FAILS(2, ("eval", "out/model", "--task", "none.jsonl"), "none.jsonl: No such file");
    FAILS(2, ("eval", "run.json", "--samples", "x.jsonl"), "--samples: are of a task");
}
