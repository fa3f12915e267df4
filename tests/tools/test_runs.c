/* One run after another: what a run keeps, goes on from, and says of it; lists of data, epochs, the best checkpoint,
 * stopping early; and checkpoints as models. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

static const char *const CK = "checkpoint.dir=ck", *const EVERY = "checkpoint.every=2";

static bool same_bytes(char *before, size_t bytes, const char *path)
{
    size_t n = 0;
    char *now = read_file(path, &n);
    const bool same = now && before && n == bytes && !memcmp(before, now, n);
    free(now);
    free(before);
    return same;
}

/* ---- what was there stays ---- */

TEST(another_runs_output_is_refused)
{
    size_t bytes = 0, more = 0;
    tiny_setup();
    DONE("train", "run.json", "overwrite=false");
    char *metrics = read_file("out/metrics.jsonl", &bytes), *model = read_file(TINY_WEIGHTS, &more);
    FAILS(2, ("train", "run.json", "overwrite=false", "seed=2"), "out: holds another run's metrics, up to step 4",
          "overwrite=true", "another output");
    CHECK(same_bytes(metrics, bytes, "out/metrics.jsonl"));
    CHECK(same_bytes(model, more, TINY_WEIGHTS));
    unlink("out/metrics.jsonl");
    FAILS(2, ("train", "run.json", "overwrite=false", "seed=2"), "out: holds a model, in out/model", "overwrite=true");
    DONE("estimate", "run.json", "overwrite=false"); /* writes nothing */
}

/* The user's own files stay, also beside what a run writes. */
TEST(overwriting_replaces_what_a_run_left_alone)
{
    tiny_setup();
    DONE("train", "run.json", CK, EVERY, "steps=6", "checkpoint.keep=3", "output=out");
    write_text("out/notes", "mine");
    write_text("out/model/notes", "mine");
    write_text("ck/notes", "mine");
    write_text("out/model/tokenizer.json", "of another model");
    mkdir("ck/step-00000009", 0777); /* no checkpoint, for all its name */
    write_text("ck/step-00000009/notes", "mine");
    FAILS(2, ("train", "run.json", "overwrite=true", "steps=2", "model.n_positions=33", CK, EVERY, "model.n_embd=x"),
          "n_embd");
    FAILS(2, ("train", "run.json", "overwrite=true", "steps=2", "model.vocab_size=101", CK, EVERY),
          "is a text, and the model", "vocabulary is one of 101");
    CHECK_EQ(count_lines("out/metrics.jsonl"), 6); /* what is refused replaces nothing */
    CHECK(exists("ck/step-00000006/state.json"));
    DONE("train", "run.json", "overwrite=true", "steps=2", CK, EVERY, "seed=2", "output=out");
    CHECK_HAS(ran.err, "tessera: overwrite: removed 3 checkpoints of another run from ck");
    CHECK_EQ(count_lines("out/metrics.jsonl"), 2);
    CHECK_STR(others_in("ck", "notes step-00000002 step-00000009"), "");
    CHECK(exists("out/notes") && exists("out/model/notes") && exists("ck/notes") && exists("ck/step-00000009/notes"));
    CHECK(!exists("out/model/tokenizer.json")); /* it would be taken for this model's */
    DONE("train", "run.json", "seed=2", "steps=2", "output=alone");
    CHECK(same_file(TINY_WEIGHTS, "alone/model/model.safetensors"));
}

/* A job that was queued again beside itself, which is not dead yet. */
TEST(two_runs_of_one_directory)
{
    tiny_setup();
    const pid_t first = START("train", "run.json", TINY_ENDLESS, CK, EVERY, "output=out");
    char *out = strdup(fmt("process %d on ", (int)first));
    WAIT_UNTIL(first, exists("ck/step-00000002/state.json"));
    const int kept_out = dup(run_out), kept_err = dup(run_err);
    FAILS(2, ("train", "run.json", TINY_ENDLESS, CK, EVERY, "output=out", "--resume"),
          "out: is in use by another run, ", out, " since 20");
    FAILS(2, ("train", "run.json", "output=out", "overwrite=true"), "out: is in use by another run, ", out);
    FAILS(2, ("train", "run.json", CK, EVERY, "output=other", "--resume"), "ck: is in use by another run, ", out);
    CHECK(!exists("other/metrics.jsonl") && !exists("other/run.lock"));
    DONE("estimate", "run.json", "output=out");
    kill(first, SIGKILL);
    close(run_out), close(run_err);
    run_out = kept_out, run_err = kept_err;
    run_finish(first);
    CHECK(exists("out/run.lock")); /* which means nothing: the kernel has let go of it */
    DONE("train", "run.json", "steps=2", "overwrite=true", CK, EVERY, "output=out");
    CHECK(!exists("out/run.lock") && !exists("ck/run.lock"));
    DONE("train", "run.json", "steps=2", "overwrite=true", "checkpoint.dir=out", EVERY,
         "output=out"); /* one directory */
    free(out);
}

TEST(a_finished_run_has_nothing_to_do)
{
    static const char *const files[] = {"out/metrics.jsonl", "out/config.json", TINY_WEIGHTS,
                                        "ck/step-00000004/state.json"};
    struct stat before[4], after;
    tiny_setup();
    DONE("train", "run.json", CK, EVERY, "overwrite=false");
    CHECK_HAS(ran.out, "\nthe model of step 4: out/model\n");
    for (int i = 0; i < 4; i++) CHECK(!stat(files[i], &before[i]));
    DONE("train", "run.json", CK, EVERY, "overwrite=false", "--resume");
    CHECK_HAS(ran.out, "nothing to do: ck is at step 4 of 4");
    mkdir("ck/.new-step-00000002", 0777); /* an old one, of which a file could not be removed */
    write_text("ck/.new-step-00000002/states.safetensors", "half");
    DONE("train", "run.json", CK, EVERY, "steps=3", "--resume");
    CHECK_HAS(ran.out, "nothing to do: ck is at step 4 of 3");
    CHECK(!exists("ck/.new-step-00000002"));
    CHECK_STR(ran.err, "");
    for (int i = 0; i < 4; i++)
        CHECK(!stat(files[i], &after) && after.st_ino == before[i].st_ino && after.st_mtime == before[i].st_mtime);
    static const char *const killed_before[] = {TINY_WEIGHTS, "out/model/config.json"};
    for (int i = 0; i < 2; i++) {
        rename(killed_before[i], "old");
        DONE("train", "run.json", CK, EVERY, "--resume");
        CHECK(same_file(killed_before[i], "old"));
    }
    DONE("train", "run.json", "checkpoint.dir=none", "--resume", "overwrite=false");
    CHECK_HAS(ran.out, "nothing to do: none holds no checkpoint, but out the metrics of step 4 of 4 and its model");
    CHECK(!exists("none"));
}

/* Wherever there is a checkpoint.dir, and then a larger steps goes on with the bits of a run that did not end. */
TEST(the_end_of_a_run_is_a_checkpoint)
{
    tiny_setup();
    DONE("train", "run.json", CK, "steps=3", "output=part");
    CHECK(exists("ck/step-00000003/state.json") && !exists("ck/step-00000002"));
    DONE("train", "run.json", CK, "steps=5", "--resume", "output=part");
    CHECK_HAS(ran.err, "tessera: resuming from ck after step 3\n");
    CHECK(exists("ck/step-00000005/state.json"));
    DONE("train", "run.json", "steps=5", "output=whole");
    CHECK(same_file("part/model/model.safetensors", "whole/model/model.safetensors"));
}

TEST(what_a_resumed_run_is_told_otherwise)
{
    tiny_setup();
    DONE("train", "run.json", CK, EVERY, "--resume", "overwrite=false");
    CHECK_HAS(ran.err, "tessera: ck holds no checkpoint to resume from: the run starts at step 1\n");
    write_tiny_text("other.txt", 5000, 7);
    DONE("train", "run.json", CK, EVERY, "--resume", "steps=6", "data.train=other.txt", "data.seq_length=8",
         "bf16.enabled=true", "model.resid_pdrop=0.5", "train_batch_size=2", "scheduler.type=WarmupCosineLR");
    CHECK_HAS(ran.err, "tessera: resuming from ck after step 4\n");
    CHECK_HAS(ran.err,
              "tessera: resuming with other data: data.train has 5000 tokens, that of the checkpoint's run had "
              "4000; its order goes on at sample 16\n");
    CHECK_HAS(ran.err, "tessera: resuming with another data.seq_length: 8, it was 16; the data goes on after as many "
                       "tokens, at sample 32\n");
    CHECK_HAS(ran.err, "tessera: resuming in bf16, the checkpoint's run was in fp32\n");
    CHECK_HAS(ran.err, "tessera: resuming with another model.resid_pdrop: 0.5, the checkpoint's run had 0.1\n");
    CHECK_HAS(ran.err, "tessera: resuming with another train_batch_size: 2, it was 4\n");
    CHECK_HAS(ran.err, "tessera: resuming with another number of steps: 6, it was 4; the learning rate now decays");
    CHECK_EQ(count_lines("out/metrics.jsonl"), 6);
    json_t *all = read_metrics("out/metrics.jsonl");
    for (size_t s = 0; s < json_array_size(all); s++) CHECK_EQ(number_of(all, s, "step"), s + 1);
    json_decref(all);
    rename("other.txt", "moved.txt"); /* another path is no other data */
    DONE("train", "run.json", CK, EVERY, "--resume", "steps=6", "data.train=moved.txt", "data.seq_length=8",
         "bf16.enabled=true", "model.resid_pdrop=0.5", "train_batch_size=2", "scheduler.type=WarmupCosineLR",
         "output=elsewhere");
    CHECK_STR(ran.err, "tessera: resuming from ck after step 6\n");
    DONE("train", "run.json", CK, EVERY, "--resume", "steps=7", "data.train=moved.txt", "data.seq_length=8",
         "bf16.enabled=true", "model.resid_pdrop=0.5", "train_batch_size=2", "scheduler.type=WarmupCosineLR",
         "output=elsewhere", "data_types.grad_accum_dtype=bf16", "fp8.enabled=true");
    CHECK_HAS(ran.err, "tessera: resuming in bf16 + fp8 + bf16 gradients, the checkpoint's run was in bf16\n");
}

/* What the last line says goes on, as it stands, in a shell. */
TEST(a_signal_names_what_goes_on)
{
    static const char head[] = "tessera: ck/step-", behind[] = " is its checkpoint; this goes on: ";
    tiny_setup();
    pid_t pid = START("train", "run.json", TINY_ENDLESS, "log_every=1000", CK, "model.activation_function=gelu_new",
                      "data.train=[\"text.txt\", \"valid.txt\"]");
    WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= 2);
    kill(pid, SIGTERM);
    run_finish(pid);
    EXPECT_DONE();
    const char *last = ran.err + strlen(ran.err) - 1;
    while (last > ran.err && last[-1] != '\n') last--;
    CHECK(!strncmp(last, head, sizeof head - 1));
    const char *line = strstr(last, behind);
    CHECK(line != NULL);
    if (!line) return;
    const int done = count_lines("out/metrics.jsonl");
    CHECK_EQ(atoi(last + sizeof head - 1), done);
    run_finish(
        run_start_program("sh", (const char *const[]){"-c",
                                                      fmt("%.*s steps=%d", (int)strcspn(line + sizeof behind - 1, "\n"),
                                                          line + sizeof behind - 1, done + 2),
                                                      NULL}));
    EXPECT_DONE();
    CHECK_EQ(count_lines("out/metrics.jsonl"), done + 2);
    tiny_setup();
    pid = START("train", "run.json", TINY_ENDLESS, "log_every=1000");
    WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= 2);
    kill(pid, SIGTERM);
    run_finish(pid);
    EXPECT_DONE();
    CHECK_HAS(ran.err, "without checkpoint.dir it cannot go on");
}

/* ---- data, and how long ---- */

TEST(a_list_is_the_files_one_behind_the_other)
{
    size_t bytes = 0;
    tiny_setup();
    char *text = read_file("text.txt", &bytes);
    mkdir("parts", 0777);
    write_file("parts/1.txt", text, 1500);
    write_file("parts/2.txt", text + 1500, bytes - 1500);
    free(text);
    DONE("train", "run.json");
    CHECK_HAS(ran.out, "data: 249 samples of 16 tokens (4000 tokens in 1 file); 4 steps of 4 are 0.06426 epochs\n");
    static const char *const ways[] = {"data.train=[\"parts/1.txt\", \"parts/2.txt\"]", "data.train=parts",
                                       "data.train=parts/?.txt"};
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        DONE("train", "run.json", ways[i], "output=other");
        CHECK_HAS(ran.out, "(4000 tokens in 2 files)");
        CHECK(same_file(TINY_WEIGHTS, "other/model/model.safetensors"));
    }
    DONE("train", "other/config.json", "output=again"); /* the settings in force name them too */
    CHECK(same_file(TINY_WEIGHTS, "again/model/model.safetensors"));
    DONE("train", "run.json",
         "data.train=[{\"path\": \"parts/1.txt\", \"weight\": 1}, {\"path\": \"parts/2.txt\", \"weight\": 3}]");
    CHECK_HAS(ran.out, "in 2 files, by weight)");
    CHECK(!same_file(TINY_WEIGHTS, "other/model/model.safetensors"));
    FAILS(2,
          ("eval", "run.json",
           "data.valid=[{\"path\": \"parts/1.txt\", \"weight\": 1}, {\"path\": \"parts/2.txt\", \"weight\": 3}]"),
          "run.json: data.valid: has weights", "list paths alone");
    rename("parts/1.txt", "parts/1.text");
    FAILS(2, ("train", "run.json", "data.train=parts/1.text"), "parts/1.text: is there, and is a text",
          "none of .bin, .txt, .jsonl, .json and .csv");
}

/* Forty examples from the text, as prompts and as tokens with labels, and the text in documents. */
static void write_lines(void)
{
    size_t bytes = 0;
    char *text = read_file("text.txt", &bytes), *joined = read_file("text.txt", &bytes);
    FILE *pairs = fopen("pairs.jsonl", "w"), *ids = fopen("ids.jsonl", "w"), *docs = fopen("docs.jsonl", "w");
    FILE *whole = fopen("whole.jsonl", "w");
    for (size_t i = 0; i < bytes; i++) text[i] = text[i] == '\n' ? ' ' : text[i]; /* nothing that JSON would escape */
    for (int i = 0; i < 40; i++) {
        const char *s = text + 50 * i;
        const int n = 4 + i * 7 % (TINY_T - 3), prompt = 1 + i % (n - 2);
        fprintf(pairs, "{\"prompt\": \"%.*s\", \"completion\": \"%.*s\"}\n", prompt, s, n - prompt, s + prompt);
        fprintf(ids, "{\"input_ids\": [%d", s[0]);
        for (int t = 1; t < n; t++) fprintf(ids, ", %d", s[t]);
        fprintf(ids, "], \"labels\": [-100");
        for (int t = 1; t < n; t++) fprintf(ids, ", %d", t < prompt ? -100 : s[t]);
        fprintf(ids, "]}\n");
        fprintf(docs, "{\"text\": \"%.49s\"}\n", s);
        joined[50 * i + 49] = 0;
        fprintf(whole, "{\"input_ids\": [%d", text[TINY_T * i]);
        for (int t = 1; t <= TINY_T; t++) fprintf(whole, ", %d", text[TINY_T * i + t]);
        fprintf(whole, "]}\n");
        memcpy(joined + 50 * i, s, 49);
    }
    write_file("joined.txt", joined, 1999);
    write_file("stream.txt", text, 40 * TINY_T + 1);
    fclose(pairs), fclose(ids), fclose(docs), fclose(whole);
    free(text), free(joined);
}

/* The same examples in another form are the same run, and one that is interrupted goes on with the same lines. */
TEST(lines_are_samples)
{
    tiny_setup();
    write_lines();
    DONE("train", "run.json", "data.train=ids.jsonl", "steps=12");
    CHECK_HAS(ran.out, "data: 40 samples of up to 16 tokens (");
    DONE("train", "run.json", "data.train=pairs.jsonl", "steps=12", "output=pairs");
    CHECK(same_file(TINY_WEIGHTS, "pairs/model/model.safetensors"));
    DONE("train", "run.json", "data.train=pairs.jsonl", "steps=5", "output=pairs", CK, EVERY);
    DONE("train", "run.json", "data.train=ids.jsonl", "steps=12", "output=pairs", CK, EVERY, "--resume");
    CHECK_HAS(ran.err, "resuming with other data"); /* other bytes, which say the same */
    CHECK(same_file(TINY_WEIGHTS, "pairs/model/model.safetensors"));
    DONE("train", "run.json", "data.train=ids.jsonl", "steps=14", "output=pairs", CK, EVERY, "--resume",
         "data.seq_length=20");
    CHECK_HAS(ran.err, "resuming with another data.seq_length: 20, it was 16\n"); /* a line stays one sample */
    FAILS(2, ("train", "run.json", "data.train=ids.jsonl", "data.seq_length=8"), "ids.jsonl: line 2, byte ",
          "more than data.seq_length 8");
    DONE("train", "run.json", "data.train=ids.jsonl", "data.seq_length=8", "data.truncate=true");
    CHECK_HAS(ran.out, "; left out by data.truncate: ");
    DONE("train", "run.json", "data.train=docs.jsonl", "output=pairs");
    DONE("train", "run.json", "data.train=joined.txt");
    CHECK(same_file(TINY_WEIGHTS, "pairs/model/model.safetensors"));
}

/* A line that is a sample of the stream and the token behind it has the same loss. */
TEST(lines_are_evaluated)
{
    double loss[2] = {0, 1};
    unsigned long long targets[2];
    tiny_setup();
    write_lines();
    DONE("train", "run.json");
    for (int k = 0; k < 2; k++) {
        DONE("eval", "run.json", "model=out/model", k ? "data.valid=whole.jsonl" : "data.valid=stream.txt",
             k ? "data.seq_length=17" : "data.seq_length=16");
        CHECK_EQ(sscanf(ran.out, "loss %lf perplexity %*f tokens %llu", &loss[k], &targets[k]), 2);
    }
    CHECK_EQ(targets[0], 40 * TINY_T);
    CHECK_EQ(targets[1], 40 * TINY_T);
    CHECK_NEAR(loss[0], loss[1], 3e-6);
}

TEST(epochs_are_steps)
{
    static const struct {
        const char *steps, *epochs;
        int expected;
    } cases[] = {{"steps=auto", "epochs=1", 10}, /* 37 samples, 4 a step: the last takes some of the next epoch */
                 {"steps=auto", "epochs=0.5", 5},
                 {"steps=3", "epochs=1", 3},
                 {"steps=30", "epochs=1", 10}};
    tiny_setup();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        DONE("train", "run.json", "data.train=valid.txt", "train_batch_size=4", cases[i].steps, cases[i].epochs,
             "scheduler.type=WarmupDecayLR", "scheduler.params.warmup_num_steps=1");
        CHECK_EQ(count_lines("out/metrics.jsonl"), cases[i].expected);
        CHECK_HAS(ran.out, fmt("; %d steps of 4 are ", cases[i].expected));
    }
    FAILS(2, ("train", "run.json", "steps=auto"), "run.json: steps: missing", "train needs them, or epochs");
}

/* ---- the best checkpoint, and stopping early ---- */

/* After eight steps each further one makes it worse: the rate jumps. */
#define WORSE                                                                                                          \
    "eval_every=2", "checkpoint.dir=ck", "checkpoint.every=3", "checkpoint.keep=1", "scheduler.type=LRRangeTest",      \
        "scheduler.params.lr_range_test_step_size=8", "scheduler.params.lr_range_test_min_lr=0.003",                   \
        "scheduler.params.lr_range_test_step_rate=200", "scheduler.params.lr_range_test_staircase=true"

TEST(the_best_checkpoint_stays)
{
    double best = INFINITY;
    int at = 0;
    tiny_setup();
    DONE("train", "run.json", WORSE, "checkpoint.keep_best=true", "steps=14", "output=whole",
         "checkpoint.dir=whole-ck");
    json_t *all = read_metrics("whole/metrics.jsonl");
    for (size_t s = 1; s < json_array_size(all); s += 2)
        if (number_of(all, s, "valid_loss") < best) best = number_of(all, s, "valid_loss"), at = (int)s + 1;
    json_decref(all);
    CHECK(at >= 4 && at < 12); /* it is not the last */
    const char *name = fmt("whole-ck/step-%08d", at);
    CHECK_HAS(ran.out, fmt("the best loss on data.valid was %.4f after step %d: %s\n", best, at, name));
    CHECK(exists(name) && exists("whole-ck/best/state.json"));
    CHECK_EQ(names_in("whole-ck", "step-", NULL), 2);
    DONE("eval", "run.json", "model=whole-ck/best");
    CHECK_NEAR(atof(ran.out + strlen("loss ")), best, 1e-6);
    /* In two parts it is the same one. */
    DONE("train", "run.json", WORSE, "checkpoint.keep_best=true", "steps=9");
    DONE("train", "run.json", WORSE, "checkpoint.keep_best=true", "steps=14", "--resume");
    CHECK(same_file("ck/best/states.safetensors", "whole-ck/best/states.safetensors"));
    CHECK(same_file("ck/step-00000014/state.json", "whole-ck/step-00000014/state.json"));
}

TEST(early_stop)
{
    tiny_setup();
    DONE("train", "run.json", WORSE, "early_stop.patience=2", "steps=40", "output=whole", "checkpoint.dir=whole-ck");
    const int steps = count_lines("whole/metrics.jsonl");
    char line[80];
    CHECK(steps >= 8 && steps < 20);
    snprintf(line, sizeof line, "stopped early after step %d of 40: 2 evaluations in a row", steps);
    CHECK_HAS(ran.out, line);
    CHECK_HAS(ran.out, "the model of step ");
    /* Patience is counted over a break. */
    snprintf(line, sizeof line, "steps=%d", steps - 1);
    DONE("train", "run.json", WORSE, "early_stop.patience=2", line);
    DONE("train", "run.json", WORSE, "early_stop.patience=2", "steps=40", "--resume");
    CHECK_EQ(count_lines("out/metrics.jsonl"), steps);
    CHECK(same_file(TINY_WEIGHTS, "whole/model/model.safetensors"));
    DONE("train", "run.json", WORSE, "early_stop.patience=2", "steps=40", "--resume");
    CHECK_HAS(ran.out, "nothing to do: ck is at step ");
    CHECK_HAS(ran.out, "where early_stop ended the run");
    DONE("train", "run.json", WORSE, "early_stop.patience=2", "early_stop.min_delta=100", "steps=40");
    CHECK_EQ(count_lines("out/metrics.jsonl"), 6); /* the first evaluation has nothing to be better than */
}

/* ---- a model's directory with changes ---- */

TEST(any_key_of_a_models_directory)
{
    tiny_setup_trained();
    DONE("train", "run.json", "model=out/model", "model.resid_pdrop=0", "model.hidden_size=32", "output=next");
    json_t *c = json_load_file("next/model/config.json", 0, NULL);
    CHECK(json_is_integer(json_object_get(c, "resid_pdrop")) && !json_integer_value(json_object_get(c, "resid_pdrop")));
    CHECK_EQ(json_integer_value(json_object_get(c, "hidden_size")), 32);
    CHECK(!json_object_get(c, "n_embd")); /* one field, by one name */
    json_decref(c);
    DONE("train", "next/config.json", "output=again");
    CHECK(same_file("next/model/model.safetensors", "again/model/model.safetensors"));
    static const char *const bad[][3] = {
        {"model.n_embed=32", "model: n_embed: unknown field", "did you mean n_embd?"},
        {"model.resid_pdrop=2", "model: resid_pdrop: 2", "below 1"},
        {"model.n_layer=1", "tensor transformer.h.1.", "is no parameter of this gpt2"},
        {"model.n_embd=64", "transformer.wte.weight has shape (256,32), the model needs (256,64)", ""},
        {"model.n_layer=3", "no tensor transformer.h.2.", ""},
        {"model.model_type=gpt7", "model: model_type: gpt7 is not known", ""}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        FAILS(2, ("train", "run.json", "model=out/model", bad[i][0], "output=bad"), bad[i][1], bad[i][2]);
        CHECK(!exists("bad"));
    }
    FAILS(2, ("train", "run.json", "model=out", "output=bad"), "out/config.json: is the configuration of a run",
          "did you mean out/model?");
}

/* ---- checkpoints as models ---- */

TEST(a_checkpoint_is_a_model)
{
    static const char *const files[] = {"config.json", "model.safetensors", "tokenizer.json"};
    tiny_setup_tokenizer();
    DONE("train", "run.json", "model=base", "weights=drawn", CK, EVERY);
    DONE("export", "ck", "hf");
    CHECK_STR(ran.out, "the model of ck/step-00000004: hf\n");
    for (size_t i = 0; i < 3; i++) {
        const char *ours = fmt("hf/%s", files[i]);
        const char *theirs = fmt("out/model/%s", files[i]);
        if (!same_file(ours, theirs)) CHECK_SAY("%s is not %s", ours, theirs);
    }
    CHECK_STR(others_in("hf", "config.json model.safetensors tokenizer.json"), "");
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "5", "--temperature", "0");
    char *text = strdup(ran.out);
    static const char *const same[] = {"ck", "ck/step-00000004", "hf"};
    for (size_t i = 0; i < 3; i++) {
        DONE("generate", same[i], "--prompt", "the tile", "-n", "5", "--temperature", "0");
        CHECK_STR(ran.out, text);
        DONE("eval", "run.json", fmt("model=%s", same[i]));
        char *loss = strdup(ran.out);
        DONE("eval", same[i], "data.valid=valid.txt"); /* with no configuration */
        if (i < 2) CHECK_STR(ran.out, loss);           /* of the run's length; a model's is all of its positions */
        DONE("eval", same[i], "data.valid=valid.txt", "data.seq_length=16", "train_batch_size=4");
        CHECK_STR(ran.out, loss);
        free(loss);
    }
    free(text);
    FAILS(2, ("eval", "ck"), "command line: data.valid: missing");
    FAILS(2, ("eval", "."), "./config.json: No such file", "expected a Hugging Face directory");
    DONE("export", "ck/step-00000002", "two/deep");
    CHECK(!same_file("two/deep/model.safetensors", "hf/model.safetensors"));
    DONE("train", "run.json", "model=two/deep", "steps=1", "output=a");
    DONE("train", "run.json", "model=ck/step-00000002", "steps=1", "output=b"); /* its weights, and states anew */
    CHECK(same_file("a/model/model.safetensors", "b/model/model.safetensors"));
}

static bool named(const char *path, const char *member, const char *value)
{
    json_t *root = json_load_file(path, 0, NULL);
    const char *met = json_string_value(json_object_get(root, member));
    const bool good = value ? met && !strcmp(met, value) : root && !json_object_get(root, member);
    json_decref(root);
    return good;
}

/* Files of the same length and elements, those of `size` bytes; a step that moves nothing makes +0 of -0. */
static bool same_elements(const char *a, const char *b, size_t size)
{
    size_t m = 0, n = 0;
    char *x = read_file(a, &m), *y = read_file(b, &n);
    bool same = x && y && m == n;
    for (size_t at = 0; same && at + size <= n; at += size) {
        static const char zero[2][4] = {{0}, {0, 0, 0, (char)0x80}};
        if (!memcmp(x + at, y + at, size)) continue;
        for (int i = 0; i < 2; i++) {
            const char *e = i ? y + at : x + at;
            same = same && (!memcmp(e, zero[0] + 4 - size, size) || !memcmp(e, zero[1] + 4 - size, size));
        }
    }
    free(x), free(y);
    return same;
}

/* save_dtype says in what the model is written, by the run and by an export, and nothing else of the run. */
TEST(the_dtype_of_what_is_saved)
{
    static const struct {
        const char *set, *name;
    } saved[] = {{"save_dtype=fp32", "float32"}, {"save_dtype=bf16", "bfloat16"}, {"save_dtype=fp16", "float16"}};
    char *states = NULL;
    size_t bytes[3] = {0};
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/generation_config.json", "{\"max_length\": 7}\n");
    for (int i = 0; i < 3; i++) {
        write_text("base/config.json", i == 1 ? "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, "
                                                "\"n_embd\": 16, \"n_layer\": 1, \"n_head\": 2, \"dtype\": \"float16\"}"
                                              : "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, "
                                                "\"n_embd\": 16, \"n_layer\": 1, \"n_head\": 2}");
        const char *spelt = i == 1 ? "dtype" : "torch_dtype", *other = i == 1 ? "torch_dtype" : "dtype";
        size_t n;
        DONE("train", "run.json", "model=base", "weights=drawn", CK, EVERY, "overwrite=true", saved[i].set);
        CHECK(named("out/model/config.json", spelt, saved[i].name) && named("out/model/config.json", other, NULL));
        CHECK(same_file("base/generation_config.json", "out/model/generation_config.json"));
        free(read_file("out/model/model.safetensors", &bytes[i]));
        char *now = read_file("ck/step-00000004/states.safetensors", &n); /* what goes on is as exact as ever */
        if (states) CHECK(now && !memcmp(now, states, n));
        if (!states)
            states = now;
        else
            free(now);
        DONE("export", "ck", i == 0 ? "hf0" : i == 1 ? "hf1" : "hf2");
        CHECK(same_file(i == 0   ? "hf0/model.safetensors"
                        : i == 1 ? "hf1/model.safetensors"
                                 : "hf2/model.safetensors",
                        "out/model/model.safetensors"));
        CHECK(same_file(i == 0   ? "hf0/config.json"
                        : i == 1 ? "hf1/config.json"
                                 : "hf2/config.json",
                        "out/model/config.json"));
        DONE("train", "run.json", "model=out/model", "steps=1", "optimizer.params.lr=0", "output=again",
             "overwrite=true", saved[i].set); /* what was written is read, and written as it was */
        CHECK(same_elements("again/model/model.safetensors", "out/model/model.safetensors", i ? 2 : 4));
        DONE("generate", "out/model", "--prompt", "the", "-n", "2");
    }
    free(states);
    /* Left out, it is that of the model that is loaded, and fp32 of one that is drawn. */
    DONE("train", "run.json", "model=out/model", "steps=1", "optimizer.params.lr=0", "output=same");
    CHECK(same_file("same/model/model.safetensors", "out/model/model.safetensors"));
    CHECK(named("same/model/config.json", "torch_dtype", "float16"));
    CHECK_HAS(ran.err, "tessera: save_dtype: fp16, as the model that was loaded (fp32 keeps every bit)\n");
    DONE("train", "run.json", "steps=1", "output=drawn");
    CHECK(named("drawn/model/config.json", "torch_dtype", "float32") && !strstr(ran.err, "save_dtype"));
    for (int i = 1; i < 3; i++) /* but for the header */
        if (bytes[i] * 2 > bytes[0] + 4096) CHECK_SAY("%s: %zu bytes, fp32 %zu", saved[i].set, bytes[i], bytes[0]);
    FAILS(2, ("train", "run.json", "save_dtype=int8"), "save_dtype", "fp32");
}

TEST(exports_that_are_refused)
{
    tiny_setup();
    DONE("train", "run.json", CK, EVERY);
    FAILS(2, ("export", "ck"), "command line: 1 directories, expected two: CHECKPOINT DIR");
    FAILS(2, ("export", "ck", "out/model"), "out/model: holds a model already, in config.json");
    FAILS(2, ("export", "nowhere", "hf"), "nowhere/config.json: No such file");
    FAILS(2, ("export", "out/model", "hf"), "out/model: is no checkpoint");
    FAILS(2, ("export", "ck", "run.json/hf"), "run.json/hf: cannot be created: Not a directory");
    run_file_limit = 20000;
    RUN("export", "ck", "hf/deep");
    run_file_limit = 0;
    EXPECT_ERROR(1, "hf/deep/model.safetensors", "cannot be written: File too large");
    CHECK(!exists("hf"));
    cut_file("ck/step-00000004/states.safetensors", 1000);
    FAILS(2, ("export", "ck", "hf"), "ck/step-00000004/states.safetensors", "bytes");
    CHECK(!exists("hf"));
}

/* Readers take the newest whole one, whatever the run does meanwhile. */
TEST(checkpoints_of_a_run_that_goes_on)
{
    tiny_setup();
    pid_t run =
        START("train", "run.json", TINY_ENDLESS, "log_every=1000", CK, "checkpoint.every=1", "checkpoint.keep=1");
    const int out = run_out, err = run_err;
    WAIT_UNTIL(run, names_in("ck", "step-", NULL) > 0);
    run_out = run_err = -1;
    for (int i = 0; i < 6; i++) {
        DONE("export", "ck", fmt("hf%d", i));
        DONE("generate", "ck", "--prompt", "the", "-n", "2");
    }
    close(run_out);
    close(run_err);
    run_out = out, run_err = err;
    kill(run, SIGTERM);
    run_finish(run);
    EXPECT_DONE();
    CHECK(!same_file("hf0/model.safetensors", "hf5/model.safetensors"));
}

/* ---- metrics.jsonl ---- */

/* Every field is a word of docs/observe.md in its first column. */
static void check_documented(const char *doc, const json_t *object)
{
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)object, name, value)
    {
        const char *word = fmt("`%s`", name);
        bool found = false;
        for (const char *line = doc; line && !found; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
            const char *at = strstr(line, word), *bar = *line == '|' ? strchr(line + 1, '|') : NULL;
            found = at && bar && at < bar;
        }
        if (!found) CHECK_SAY("docs/observe.md has no line of %s", word);
        if (json_is_object(value)) check_documented(doc, value);
    }
}

TEST(every_field_of_the_metrics_is_documented)
{
    tiny_setup();
    DONE("train", "run.json", "eval_every=1", "steps=1");
    char *doc = read_file(TESS_DOCS "/observe.md", NULL);
    json_t *all = read_metrics("out/metrics.jsonl");
    CHECK_EQ(json_array_size(all), 1);
    check_documented(doc ? doc : "", json_array_get(all, 0));
    json_decref(all);
    free(doc);
}
