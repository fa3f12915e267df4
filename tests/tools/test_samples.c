/* What an evaluation says beside the loss: accuracy, perplexity, and texts that the model goes on with. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

static const char SAMPLED[] = ", \"eval_every\": 2, \"eval\": {\"samples\": 3}, \"deterministic\": true";

/* The k-th line of samples.jsonl as an object, which the caller has to json_decref; NULL: there is none. */
static json_t *sample(const char *path, size_t k)
{
    char *text = read_file(path, NULL), *line = text;
    for (; line && k; k--) line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
    if (line) line[strcspn(line, "\n")] = 0;
    json_t *found = line ? json_loads(line, 0, NULL) : NULL;
    free(text);
    return found;
}

static const char *member(const json_t *of, const char *name)
{
    const char *text = json_string_value(json_object_get(of, name));
    return text ? text : "(none)";
}

/* As many tokens by the model that the run left, from the same beginning. */
TEST(samples_are_what_generate_goes_on_with)
{
    tiny_setup_with(SAMPLED);
    DONE("train", "run.json", "steps=12", "optimizer.params.lr=1e-2", "eval_every=6");
    json_t *beyond = sample("out/samples.jsonl", 6);
    CHECK(!beyond);
    for (size_t k = 3; k < 6; k++) {
        json_t *of = sample("out/samples.jsonl", k);
        const char *prompt = member(of, "prompt"), *text = member(of, "text");
        char length[32];
        snprintf(length, sizeof length, "%zu", strlen(text));
        CHECK_EQ(json_integer_value(json_object_get(of, "step")), 12);
        CHECK(strlen(prompt) > 0 && strlen(text) > 0);
        DONE("generate", "out/model", "--prompt", prompt, "-n", length, "--temperature", "0");
        CHECK(!strncmp(ran.out, prompt, strlen(prompt)) && !strncmp(ran.out + strlen(prompt), text, strlen(text)));
        json_decref(of);
    }
    char *page = read_file("out/report.html", NULL);
    CHECK_HAS(page, "\"texts\":[");
    free(page);
}

/* Under a cap, and where a run goes on from a checkpoint, which makes those of later steps again. */
TEST(samples_are_the_same_wherever_tiles_lie)
{
    tiny_setup_with(SAMPLED);
    DONE("train", "run.json", "output=whole", "checkpoint.dir=ck", "checkpoint.every=2");
    DONE("train", "run.json", "memory.cpu=4MiB", "memory.path=.");
    CHECK(same_file("whole/samples.jsonl", "out/samples.jsonl"));
    DONE("train", "run.json", "output=part", "checkpoint.dir=ck2", "steps=2");
    char *kept = read_file("part/samples.jsonl", NULL);
    write_text("part/samples.jsonl",
               fmt("%s{\"step\":3,\"prompt\":\"\"}\n{\"st", kept)); /* as a run that was killed leaves them */
    free(kept);
    DONE("train", "run.json", "output=part", "checkpoint.dir=ck2", "checkpoint.resume=true", "overwrite=false");
    CHECK(same_file("whole/samples.jsonl", "part/samples.jsonl"));
}

/* A prompt's part of an example, and no more, is what a model goes on from; its text ends with its token. */
TEST(a_line_is_gone_on_with_from_its_prompt)
{
    tiny_setup_with(SAMPLED);
    write_text("lines.jsonl", "{\"prompt\": \"abc\", \"completion\": \"def\"}\n"
                              "{\"prompt\": \"b\", \"completion\": \"cd\"}\n");
    DONE("train", "run.json", "data.valid=lines.jsonl");
    json_t *first = sample("out/samples.jsonl", 0), *second = sample("out/samples.jsonl", 1);
    CHECK_STR(member(first, "prompt"), "abc");
    CHECK_STR(member(second, "prompt"), "b");
    json_decref(first);
    json_decref(second);
    FAILS(2, ("train", "run.json", "data.valid=null", "eval_every=0"), "eval.samples", "data.valid");
}

/* Beside every token of data.valid as generate finds the likeliest one. */
TEST(accuracy_is_the_share_of_likeliest_tokens)
{
    enum { TOKENS = 2 * TINY_T };
    static char text[TOKENS + 2], prompts[1 << 16];
    tiny_setup();
    char *all = read_file("valid.txt", NULL);
    snprintf(text, sizeof text, "%.*s", TOKENS + 1, all);
    write_text("short.txt", text);
    free(all);
    DONE("train", "run.json", "data.valid=short.txt", "steps=12", "optimizer.params.lr=1e-2");
    DONE("eval", "run.json", "model=out/model", "data.valid=short.txt");
    double accuracy = -1, perplexity = -1, loss = -1;
    CHECK_EQ(sscanf(ran.out, "loss %lf perplexity %lf tokens %*f accuracy %lf", &loss, &perplexity, &accuracy), 3);
    size_t n = 0;
    for (int at = 0; at < TOKENS; at++) {
        n += (size_t)sprintf(prompts + n, "{\"input_ids\": [");
        for (int i = at / TINY_T * TINY_T; i <= at; i++)
            n += (size_t)sprintf(prompts + n, "%s%d", i > at / TINY_T * TINY_T ? "," : "", (unsigned char)text[i]);
        n += (size_t)sprintf(prompts + n, "]}\n");
    }
    write_text("prompts.jsonl", prompts);
    DONE("generate", "out/model", "--prompts", "prompts.jsonl", "-n", "1", "--temperature", "0", "--ignore-eos");
    int hits = 0, at = 0;
    for (char *line = ran.out; *line && at < TOKENS; line = strchr(line, '\n') + 1, at++) {
        const char *made = strstr(line, "\"output_ids\": [");
        hits += made && atoi(made + 15) == (unsigned char)text[at + 1];
    }
    CHECK_EQ(at, TOKENS);
    CHECK(hits > 0);
    CHECK_NEAR(accuracy, (double)hits / TOKENS, 1e-6);
    json_t *metrics = read_metrics("out/metrics.jsonl");
    CHECK_NEAR(number_of(metrics, 11, "valid_accuracy"), accuracy, 1e-6);
    CHECK_NEAR(number_of(metrics, 11, "valid_perplexity"), perplexity, 1e-3);
    json_decref(metrics);
}
