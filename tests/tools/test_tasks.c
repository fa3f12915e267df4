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

/* ---- of several texts the likeliest ---- */

/* Prompts of a file are drawn as texts of one prompt are: eval says which of them has the highest mean. */
TEST(the_best_of_several_is_the_likeliest_of_them)
{
    enum { TEXTS = 5, TOKENS = 9 };
    setup();
    FILE *prompts = fopen("prompts.jsonl", "w"), *asked = fopen("asked.jsonl", "w");
    for (int k = 0; k < TEXTS; k++) fputs("{\"prompt\": \"the tile\"}\n", prompts);
    fclose(prompts);
#define DRAW "generate", "out/model", "-n", "9", "--top-k", "12", "--seed", "7"
    DONE(DRAW, "--prompts", "prompts.jsonl", "--batch", "2");
    write_text("texts.jsonl", ran.out);
    json_t *texts = lines_of("texts.jsonl");
    const char *text[TEXTS];
    for (size_t k = 0; k < TEXTS; k++) {
        text[k] = json_string_value(json_object_get(json_array_get(texts, k), "completion"));
        CHECK_EQ(strlen(text[k]), TOKENS);
        json_t *line = json_pack("{s:s, s:s}", "context", "the tile", "continuation", text[k]);
        json_dumpf(line, asked, 0);
        fputc('\n', asked);
        json_decref(line);
    }
    fclose(asked);
    DONE("eval", "out/model", "--task", "asked.jsonl", "--samples", "said.jsonl");
    json_t *said = lines_of("said.jsonl");
    size_t best = 0;
    for (size_t k = 1; k < TEXTS; k++)
        if (logprob(said, k, 0) > logprob(said, best, 0)) best = k;
    CHECK(best > 0); /* the seed is one where it is not the first */
    DONE(DRAW, "--prompt", "the tile", "--best", "5");
    CHECK_STR(ran.out, fmt("the tile%s\n", text[best]));
    write_text("one.jsonl", "{\"prompt\": \"the tile\"}\n{\"prompt\": \"a disk\"}\n");
    DONE(DRAW, "--prompts", "one.jsonl", "--best", "5", "--batch", "3");
    CHECK_HAS(ran.out, fmt("\"completion\": \"%s\"}\n", text[best]));
    char *once = strdup(ran.out);
    DONE(DRAW, "--prompts", "one.jsonl", "--best", "5", "--batch", "2", "memory.cpu=5MiB", "memory.path=.");
    CHECK_STR(ran.out, once);
    free(once);
    json_decref(said), json_decref(texts);
}

/* ---- in a run ---- */

static const char LAST[] = "{\"context\": \"the tile\", \"continuation\": \" moves\"}\n"
                           "{\"context\": \"and rests on a disk and th\", \"continuation\": \"e\"}\n";
static const char ASKED[] = ", \"eval_every\": 2, \"eval\": {\"tasks\": [\"choose.jsonl\", \"last.jsonl\"]},"
                            " \"deterministic\": true, \"train_micro_batch_size_per_gpu\": 1,"
                            " \"optimizer\": {\"params\": {\"lr\": 1e-2}}";

static void setup_asked(void)
{
    tiny_setup_with(ASKED);
    mkdir("swap", 0777);
    write_text("choose.jsonl", CHOOSE);
    write_text("last.jsonl", LAST);
}

/* {"choose": {"n", "acc", ...}, ...} of each evaluation of a run, as texts. */
static json_t *asked(const char *output)
{
    json_t *all = lines_of(fmt("%s/metrics.jsonl", output)), *tasks = json_array(), *of;
    for (size_t i = 0; i < json_array_size(all); i++)
        if ((of = json_object_get(json_array_get(all, i), "tasks"))) json_array_append(tasks, of);
    json_decref(all);
    return tasks;
}

static void check_asked_alike(const char *a, const char *b)
{
    json_t *one = asked(a), *other = asked(b);
    CHECK_EQ(json_array_size(one), 2);
    if (!json_equal(one, other)) CHECK_SAY("%s and %s answer otherwise", a, b);
    json_decref(one), json_decref(other);
}

/* A run's numbers are those of eval on the checkpoint of that step, digit by digit; a line and the page have them. */
TEST(a_run_answers_as_its_checkpoints_do)
{
    setup_asked();
    DONE("train", "run.json", "checkpoint.dir=ck", "checkpoint.every=2");
    CHECK_HAS(ran.out, "step 2/4");
    CHECK_HAS(ran.out, "  choose acc 0.");
    CHECK_HAS(ran.out, "  last acc 0.");
    json_t *tasks = asked("out");
    CHECK_EQ(json_array_size(tasks), 2);
    for (size_t i = 0; i < json_array_size(tasks); i++) {
        const char *task, *name;
        json_t *numbers, *value;
        json_object_foreach(json_array_get(tasks, i), task, numbers)
        {
            char file[40], row[64];
            snprintf(file, sizeof file, "%s.jsonl", task);
            DONE("eval", fmt("ck/step-0000000%zu", 2 * i + 2), "--task", file);
            json_object_foreach(numbers, name, value)
            {
                if (!strcmp(name, "n")) continue;
                snprintf(row, sizeof row, "  %-11s  %10.6f  ", name, json_number_value(value));
                CHECK_HAS(ran.out, row);
            }
        }
    }
    const double begins =
        json_number_value(json_object_get(json_object_get(json_array_get(tasks, 0), "last"), "perplexity"));
    CHECK(begins > json_number_value(json_object_get(json_object_get(json_array_get(tasks, 1), "last"), "perplexity")));
    json_decref(tasks);
    char *page = read_file("out/report.html", NULL);
    CHECK_HAS(page, "\"tasks\":[[2,{\"choose\":{\"n\":4,\"acc\":0.");
    free(page);
}

TEST(a_run_answers_the_same_wherever_tiles_lie)
{
    setup_asked();
    DONE("train", "run.json", "output=one", "checkpoint.dir=ck", "checkpoint.every=2");
    DONE("train", "run.json", "output=capped", "memory.cpu=3MiB", "memory.path=swap");
    check_asked_alike("one", "capped");
    DONE_RANKS(2, "train", "run.json", "output=two", "zero_optimization.stage=3");
    check_asked_alike("one", "two");
    DONE("train", "run.json", "output=alone", "data.valid=null"); /* and where there is nothing else to evaluate */
    check_asked_alike("one", "alone");
    DONE("train", "run.json", "output=part", "checkpoint.dir=part", "steps=2");
    DONE("train", "run.json", "output=part", "checkpoint.dir=part", "checkpoint.resume=true", "overwrite=false");
    check_asked_alike("one", "part");
}

/* Questions that are longer than the sequences need more RAM, which estimate says; with what it says a run goes. */
TEST(estimate_counts_what_a_run_is_asked)
{
    setup_asked();
    const char *task[] = {"null", "[\"choose.jsonl\", \"last.jsonl\"]"};
    long least[2] = {0, 0};
    for (int k = 0; k < 2; k++) {
        DONE("estimate", "run.json", fmt("eval.tasks=%s", task[k]), "memory.cpu=100KiB", "memory.path=swap");
        const char *at = strstr(ran.out, "(memory.cpu=");
        CHECK(at && sscanf(at, "(memory.cpu=%ldMiB", &least[k]) == 1);
    }
    CHECK(least[1] > least[0]);
    DONE("train", "run.json", fmt("memory.cpu=%ldMiB", least[1]), "memory.path=swap");
}

/* Without a disk as well, where what is asked has more activations than a step: the least cap is kept. */
TEST(a_cap_has_room_for_long_questions)
{
    setup_asked();
    FILE *f = fopen("long.jsonl", "w");
    for (int k = 0; k < 16; k++) fprintf(f, "{\"context\": \"%0400d\", \"continuation\": \" moves\"}\n", k);
    fclose(f);
    const char *const given[] = {"model.n_positions=512", "train_micro_batch_size_per_gpu=4"};
    FAILS(2, ("train", "run.json", given[0], given[1], "eval.tasks=long.jsonl", "memory.cpu=4MiB"),
          "memory.cpu: the run needs", "the cap is 4.0 MiB (memory.cpu=");
    const char *at = strstr(ran.err, "(memory.cpu=");
    const long least = at ? strtol(at + strlen("(memory.cpu="), NULL, 10) : 0;
    DONE("train", "run.json", given[0], given[1], "eval.tasks=null", "memory.cpu=4MiB");
    DONE("train", "run.json", given[0], given[1], "eval.tasks=long.jsonl", fmt("memory.cpu=%ldMiB", least));
    json_t *all = lines_of("out/metrics.jsonl");
    const json_t *cpu = json_object_get(json_array_get(all, 3), "cpu");
    CHECK(json_number_value(json_object_get(cpu, "peak_bytes")) > 3 << 20);
    CHECK(json_number_value(json_object_get(cpu, "peak_bytes")) <= (double)(least << 20));
    json_decref(all);
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
