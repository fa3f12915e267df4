/* The command as a user meets it when all goes well: what each subcommand prints and leaves. */
#define CHECK_MAIN
#include "tiny.h"

static const char *const weights = "out/model/model.safetensors";

/* ---- train ---- */

static void check_tier(const json_t *step, const char *tier)
{
    static const char *const field[] = {"resident_bytes", "peak_bytes", "read_bytes", "write_bytes", "wait_seconds"};
    for (size_t i = 0; i < sizeof field / sizeof *field; i++)
        if (!json_is_number(json_object_get(json_object_get(step, tier), field[i])))
            CHECK_SAY("metrics.jsonl has no %s.%s", tier, field[i]);
}

TEST(train_leaves_a_line_of_metrics_a_step)
{
    static const char *const field[] = {"loss",    "lr",           "grad_norm",    "tokens",
                                        "seconds", "tokens_per_s", "model_tflops", "mfu"};
    tiny_setup();
    RUN("train", "run.json", "steps=6");
    EXPECT_DONE();
    CHECK_STR(ran.err, "");
    json_t *all = read_metrics("out/metrics.jsonl");
    CHECK_EQ(json_array_size(all), 6);
    for (size_t s = 0; s < json_array_size(all); s++) {
        const json_t *step = json_array_get(all, s);
        CHECK_EQ(number_of(all, s, "step"), s + 1);
        CHECK_EQ(number_of(all, s, "tokens"), TINY_BATCH * TINY_T);
        CHECK_NEAR(number_of(all, s, "lr"), 1e-3, 1e-12);
        CHECK(number_of(all, s, "seconds") > 0 && number_of(all, s, "tokens_per_s") > 0);
        CHECK(number_of(all, s, "model_tflops") > 0 && number_of(all, s, "mfu") > 0);
        for (size_t i = 0; i < sizeof field / sizeof *field; i++)
            if (!isfinite(number_of(all, s, field[i]))) CHECK_SAY("step %zu has no %s", s, field[i]);
        check_tier(step, "gpu");
        check_tier(step, "cpu");
        check_tier(step, "disk");
        CHECK(json_integer_value(json_object_get(json_object_get(step, "cpu"), "resident_bytes")) > 0);
    }
    CHECK_NEAR(number_of(all, 0, "loss"), log(256), 0.3); /* a model that knows nothing yet */
    json_decref(all);
}

TEST(train_learns)
{
    tiny_setup();
    RUN("train", "run.json", "steps=40", "optimizer.params.lr=1e-2", "eval_every=20");
    EXPECT_DONE();
    json_t *all = read_metrics("out/metrics.jsonl");
    CHECK(number_of(all, 39, "loss") < 3.2);
    CHECK(number_of(all, 39, "valid_loss") < number_of(all, 19, "valid_loss"));
    CHECK(!json_object_get(json_array_get(all, 38), "valid_loss"));
    json_decref(all);
}

TEST(plain_lines_come_every_log_every_steps)
{
    tiny_setup();
    RUN("train", "run.json", "log_every=2", "steps=5");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "step 2/5  loss 5.");
    CHECK_HAS(ran.out, "step 4/5");
    CHECK_HAS(ran.out, "step 5/5"); /* the last one always */
    CHECK_HAS(ran.out, "tokens/s");
    CHECK(!strstr(ran.out, "step 1/5") && !strstr(ran.out, "step 3/5"));
    CHECK(!strchr(ran.out, '\r') && !strchr(ran.out, '\033')); /* these are for a terminal */
    RUN("train", "run.json", "steps_per_print=4");
    CHECK_HAS(ran.out, "step 4/4");
    CHECK(!strstr(ran.out, "step 2/4"));
}

TEST(a_terminal_gets_one_live_line)
{
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    if (terminal < 0 || grantpt(terminal) || unlockpt(terminal)) SKIP("there is no pseudo-terminal");
    int slave = open(ptsname(terminal), O_RDWR | O_NOCTTY); /* what is written stays readable while it is open */
    tiny_setup();
    run_stdout = ptsname(terminal);
    RUN("train", "run.json");
    run_stdout = NULL;
    EXPECT_DONE();
    char text[4096] = "";
    fcntl(terminal, F_SETFL, O_NONBLOCK);
    for (size_t n = 0; n < sizeof text - 1;) {
        ssize_t got = read(terminal, text + n, sizeof text - 1 - n);
        if (got <= 0) break;
        n += (size_t)got;
    }
    close(slave);
    close(terminal);
    CHECK_HAS(text, "\r\033[Kstep 1/4  loss 5.");
    CHECK_HAS(text, "\r\033[Kstep 4/4  loss 5.");
    CHECK_HAS(text, "tokens/s  left 0:0");
    CHECK_HAS(text, "MFU ");
    char *live = strchr(text, '\n'), *end = live ? strchr(live + 1, '\n') : NULL;
    CHECK(!strncmp(text, "data: ", 6));
    CHECK(live && end && end > strstr(text, "step 4/4"));                  /* one line for all steps, */
    CHECK_STR(end ? end + 1 : NULL, "the model of step 4: out/model\r\n"); /* and what it leaves */
}

TEST(the_settings_in_force_are_left_and_run_again)
{
    tiny_setup();
    RUN("train", "run.json", "optimizer.params.betas=[0.9, 0.95]");
    EXPECT_DONE();
    json_t *c = json_load_file("out/config.json", 0, NULL);
    const char *train, *type;
    int steps = 0, micro = 0, accumulation = 0;
    double lr = 0, beta = 0;
    CHECK(!json_unpack(c, "{s:{s:s}, s:i, s:i, s:i, s:F, s:{s:s, s:{s:F, s:[F, F]}}}", "data", "train", &train, "steps",
                       &steps, "train_micro_batch_size_per_gpu", &micro, "gradient_accumulation_steps", &accumulation,
                       "gradient_clipping", &(double){0}, "optimizer", "type", &type, "params", "lr", &lr, "betas",
                       &(double){0}, &beta));
    CHECK_EQ(steps, 4);
    CHECK_EQ(micro * accumulation, TINY_BATCH);
    CHECK_NEAR(lr, 1e-3, 0);
    CHECK_NEAR(beta, 0.95, 0);
    json_decref(c);
    RUN("train", "out/config.json", "output=again");
    EXPECT_DONE();
    CHECK(same_file(weights, "again/model/model.safetensors"));
}

TEST(a_setting_wins_by_its_place)
{
    static const struct {
        const char *environment, *argument;
        double lr;
    } cases[] = {{NULL, NULL, 0.25}, {"0.5", NULL, 0.5}, {"0.5", "optimizer.params.lr=0.75", 0.75}};
    tiny_setup_with(", \"optimizer\": {\"params\": {\"lr\": 0.25}}");
    for (size_t i = 0; i < 3; i++) {
        if (cases[i].environment) setenv("TESSERA_OPTIMIZER_PARAMS_LR", cases[i].environment, 1);
        RUN("train", "run.json", "steps=1", cases[i].argument);
        unsetenv("TESSERA_OPTIMIZER_PARAMS_LR");
        EXPECT_DONE();
        json_t *all = read_metrics("out/metrics.jsonl");
        CHECK_NEAR(number_of(all, 0, "lr"), cases[i].lr, 0);
        json_decref(all);
    }
}

/* ---- the same bits ---- */

TEST(the_same_run_has_the_same_bytes_on_any_schedule)
{
    tiny_setup();
    RUN("train", "run.json");
    EXPECT_DONE();
    RUN("train", "run.json", "output=again");
    CHECK(same_file(weights, "again/model/model.safetensors"));
    setenv("STARPU_NCPU", "1", 1);
    RUN("train", "run.json", "output=one");
    CHECK(same_file(weights, "one/model/model.safetensors"));
    unsetenv("STARPU_NCPU");
    static const char *const schedulers[] = {"eager", "lws", "dmda"};
    for (size_t i = 0; i < 3; i++) {
        setenv("STARPU_SCHED", schedulers[i], 1);
        RUN("train", "run.json", "output=other");
        EXPECT_DONE();
        CHECK(same_file(weights, "other/model/model.safetensors"));
    }
    unsetenv("STARPU_SCHED");
    RUN("train", "run.json", "output=recomputed", "activation_checkpointing.enabled=true");
    CHECK(same_file(weights, "recomputed/model/model.safetensors"));
    RUN("train", "run.json", "output=seed", "seed=2");
    EXPECT_DONE();
    CHECK(!same_file(weights, "seed/model/model.safetensors"));
}

TEST(the_format_of_the_data_changes_nothing)
{
    uint8_t token[TINY_TOKENS];
    tiny_setup();
    tiny_text((char *)token, TINY_TOKENS, 1);
    write_llmc("tokens.bin", token, TINY_TOKENS);
    write_megatron("corpus", token, TINY_TOKENS);
    RUN("train", "run.json");
    EXPECT_DONE();
    RUN("train", "run.json", "data.train=tokens.bin", "output=llmc");
    EXPECT_DONE();
    CHECK(same_file(weights, "llmc/model/model.safetensors"));
    RUN("train", "run.json", "data.train=corpus", "output=megatron");
    EXPECT_DONE();
    CHECK(same_file(weights, "megatron/model/model.safetensors"));
}

TEST(accumulation_and_bf16_stay_near)
{
    static const char *const settings[] = {"train_micro_batch_size_per_gpu=2", "train_micro_batch_size_per_gpu=4",
                                           "bf16.enabled=true"};
    double loss[3] = {0};
    tiny_setup();
    for (size_t i = 0; i < 3; i++) {
        RUN("train", "run.json", settings[i], "model.resid_pdrop=0", "model.embd_pdrop=0", "model.attn_pdrop=0");
        EXPECT_DONE();
        json_t *all = read_metrics("out/metrics.jsonl");
        loss[i] = number_of(all, 3, "loss");
        json_decref(all);
    }
    CHECK_NEAR(loss[0], loss[1], 1e-4);
    CHECK_NEAR(loss[2], loss[1], 2e-2);
    CHECK(loss[2] != loss[1]); /* it did work in bf16 */
}

/* ---- the model that is left ---- */

TEST(a_run_starts_from_a_saved_model)
{
    tiny_setup();
    RUN("train", "run.json", "steps=20", "optimizer.params.lr=1e-2");
    EXPECT_DONE();
    RUN("train", "run.json", "model=out/model", "steps=2", "optimizer.params.lr=0", "output=same");
    EXPECT_DONE();
    CHECK(same_file(weights, "same/model/model.safetensors"));
    CHECK(same_file("out/model/config.json", "same/model/config.json"));
    RUN("train", "run.json", "model=out/model", "bf16.enabled=true", "steps=1", "output=more");
    EXPECT_DONE();
    json_t *before = read_metrics("out/metrics.jsonl"), *after = read_metrics("more/metrics.jsonl");
    CHECK(number_of(after, 0, "loss") < number_of(before, 9, "loss"));
    json_decref(before);
    json_decref(after);
}

TEST(the_tokenizer_travels_with_the_model)
{
    tiny_setup();
    mkdir("base", 0777);
    char *tokenizer = read_file(TESS_FIXTURES "/tokenizer_gpt2.json", NULL);
    json_t *root = tokenizer ? json_loads(tokenizer, 0, NULL) : NULL;
    size_t words = json_object_size(json_object_get(json_object_get(root, "model"), "vocab"));
    char config[300];
    CHECK(words > 256);
    snprintf(config, sizeof config,
             "{\"model_type\": \"gpt2\", \"vocab_size\": %zu, \"n_positions\": 32, \"n_embd\": 16, \"n_layer\": 1, "
             "\"n_head\": 2}",
             words + 8);
    write_text("base/config.json", config);
    write_text("base/tokenizer.json", tokenizer ? tokenizer : "");
    RUN("train", "run.json", "model=base", "steps=1");
    EXPECT_DONE();
    CHECK(same_file("base/tokenizer.json", "out/model/tokenizer.json"));
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "5", "--temperature", "0");
    EXPECT_DONE();
    CHECK(!strncmp(ran.out, "the tile", 8));
    json_decref(root);
    free(tokenizer);
}

/* A tokenizer that knows more than the model: a line says so, and only a text that needs what the model lacks is
 * refused. */
TEST(a_tokenizer_larger_than_the_model)
{
    static const char note[] = "tessera: base: its tokenizer has 859 tokens, more than the model's vocab_size, 856: a "
                               "text with one from 856 on is refused\n";
    tiny_setup();
    mkdir("base", 0777);
    char *tokenizer = read_file(TESS_FIXTURES "/tokenizer_gpt2.json", NULL);
    write_text("base/tokenizer.json", tokenizer ? tokenizer : "");
    free(tokenizer);
    write_text("base/config.json",
               "{\"model_type\": \"gpt2\", \"vocab_size\": 856, \"n_positions\": 32, \"n_embd\": 16, "
               "\"n_layer\": 1, \"n_head\": 2}");
    RUN("train", "run.json", "model=base", "steps=1");
    EXPECT_DONE();
    CHECK_STR(ran.err, note);
    RUN("eval", "run.json", "model=out/model");
    EXPECT_DONE();
    CHECK_HAS(ran.err, "tessera: out/model: its tokenizer has 859 tokens");
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "2");
    EXPECT_DONE();
    CHECK_HAS(ran.err, "tessera: out/model: its tokenizer has 859 tokens");
    RUN("generate", "out/model", "--prompt", "the tile<|endoftext|>", "-n", "2");
    EXPECT_ERROR(2, "--prompt: token 856 is beyond the vocabulary of 856");
    FILE *f = fopen("text.txt", "a");
    fputs("<|endoftext|>", f);
    fclose(f);
    RUN("train", "run.json", "model=base", "steps=1");
    EXPECT_ERROR(2, "text.txt: byte 4000: token 856 is beyond the vocabulary of 856");
    RUN("eval", "run.json", "model=out/model", "data.valid=text.txt");
    EXPECT_ERROR(2, "text.txt: byte 4000: token 856 is beyond the vocabulary of 856");
}

/* What the command reads from stdin. */
static void say_on_stdin(const char *text)
{
    write_text("said", text);
    CHECK(freopen("said", "r", stdin) != NULL);
}

/* Each line is a turn, and the model reads all that was said before it by its template. */
TEST(generate_talks)
{
    tiny_setup_trained();
    write_text("out/model/chat_template.jinja", "{% for m in messages %}{{ m.role[0] }}:{{ m.content }}\n{% endfor %}"
                                                "{% if add_generation_prompt %}a:{% endif %}");
    say_on_stdin("hi\n\nwho\n");
    RUN("generate", "out/model", "--chat", "-n", "4", "--temperature", "0");
    EXPECT_DONE();
    const char *end = strchr(ran.out, '\n');
    CHECK(end && end - ran.out == 4 && strlen(end + 1) == 5); /* two answers of four bytes */
    char first[8] = "", prompt[64], want[80];
    snprintf(first, sizeof first, "%.4s", ran.out);
    snprintf(prompt, sizeof prompt, "u:hi\na:%s\nu:who\na:", first);
    snprintf(want, sizeof want, "%s%s", prompt, end ? end + 1 : "");
    RUN("generate", "out/model", "--prompt", prompt, "-n", "4", "--temperature", "0");
    EXPECT_DONE();
    CHECK_STR(ran.out, want);
    say_on_stdin("hi\n");
    RUN("generate", "out/model", "--chat", "-n", "500");
    EXPECT_ERROR(2, "the conversation: 7 tokens, and up to 500 to add, are more than");
    say_on_stdin("\377\n");
    RUN("generate", "out/model", "--chat");
    EXPECT_ERROR(2, "stdin: line 1 is not UTF-8");
    say_on_stdin("hi\n");
    write_text("out/model/chat_template.jinja", "{{ messages | frob }}");
    RUN("generate", "out/model", "--chat", "-n", "2");
    EXPECT_ERROR(2, "chat_template.jinja: line 1: filter frob is not supported");
    unlink("out/model/chat_template.jinja");
    say_on_stdin("hi\n");
    RUN("generate", "out/model", "--chat", "-n", "2");
    EXPECT_ERROR(2, "--chat: chat_template: out/model has none (in tokenizer_config.json, or chat_template.jinja)");
    RUN("generate", "out/model", "--chat", "--prompt", "x");
    EXPECT_ERROR(2, "command line: --chat and --prompt: both are given");
}

static int count_char(const char *text, char c)
{
    int n = 0;
    for (; *text; text++) n += *text == c;
    return n;
}

TEST(tokenize_goes_both_ways)
{
    tiny_setup();
    mkdir("base", 0777);
    char *tokenizer = read_file(TESS_FIXTURES "/tokenizers/llama2.json", NULL);
    write_text("base/tokenizer.json", tokenizer ? tokenizer : "");
    free(tokenizer);
    write_text("lines", "Hello <s>w\303\266rld\n\n\360\237\230\200");
    RUN("tokenize", "base", "lines", "--special");
    EXPECT_DONE();
    CHECK(!strncmp(ran.out, "1 ", 2));
    CHECK_HAS(ran.out, " 1 "); /* <s> within the line, behind the one that begins it */
    CHECK_HAS(ran.out, "\n1\n1 ");
    CHECK_EQ(count_char(ran.out, '\n'), 3);
    RUN("tokenize", "base", "lines");
    EXPECT_DONE();
    write_text("ids", ran.out);
    RUN("tokenize", "base", "ids", "--decode");
    EXPECT_DONE();
    CHECK_STR(ran.out,
              "Hello <s> w\303\266rld\n\n\360\237\230\200\n"); /* what follows a special token is a text anew */
    write_text("base/config.json", "{\"vocab_size\": 300}");
    RUN("tokenize", "base", "lines");
    EXPECT_ERROR(2, "lines: line 1: token ", "is beyond the model's vocab_size, 300");
    write_text("lines", "fine\nbad \377\n");
    unlink("base/config.json");
    RUN("tokenize", "base", "lines");
    EXPECT_ERROR(2, "lines: line 2: byte 4: is not UTF-8");
    write_text("ids", "12 x\n");
    RUN("tokenize", "base", "ids", "--decode");
    EXPECT_ERROR(2, "ids: line 1: \"x\" is no id");
    write_text("ids", "99999999\n");
    RUN("tokenize", "base", "ids", "--decode");
    EXPECT_ERROR(2, "ids: line 1: id 99999999 is none of the tokenizer's");
    RUN("tokenize", "out", "ids");
    EXPECT_ERROR(2, "out: has no tokenizer.json");
    RUN("tokenize");
    EXPECT_ERROR(2, "command line: 0 names, expected MODEL_DIR [FILE]");
    write_text("base/tokenizer.json", "{\"model\": {}, \"normalizer\": {\"type\": \"Katakana\"}}");
    RUN("tokenize", "base", "lines");
    EXPECT_ERROR(2, "base/tokenizer.json: normalizer: normalizer Katakana is not supported");
}

/* Rotary positions have no end: what is longer than the model's own is said, and done. Learned ones end. */
TEST(sequences_longer_than_the_positions_of_a_model)
{
    static const char llama[] = "model={\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 16, "
                                "\"intermediate_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
                                "\"max_position_embeddings\": 16}";
    tiny_setup();
    RUN("train", "run.json", llama, "steps=1", "data.seq_length=17");
    EXPECT_DONE();
    CHECK_STR(ran.err, "tessera: data.seq_length: sequences of 17 tokens are longer than the model's "
                       "max_position_embeddings, 16\n");
    RUN("train", "run.json", llama, "steps=1", "data.seq_length=16");
    EXPECT_DONE();
    CHECK_STR(ran.err, "");
}

/* Without a disk either; the micro-batch has four row tiles, which workers would else take up out of turn. */
TEST(the_cap_holds_where_nothing_can_leave)
{
    static const char before[] = "memory.cpu: the run needs ";
    char cap[64];
#define LARGE "data.seq_length=32", "train_batch_size=512", "train_micro_batch_size_per_gpu=128", "eval_every=2"
    tiny_setup();
    RUN("train", "run.json", LARGE, "output=whole");
    EXPECT_DONE();
    RUN("train", "run.json", LARGE, "memory.cpu=1MiB");
    EXPECT_ERROR(2, before, "MiB in RAM, the cap is 1.0 MiB");
    long least = named_in_error(before) + 1;
    snprintf(cap, sizeof cap, "memory.cpu=%ldMiB", least);
    RUN("train", "run.json", LARGE, cap);
    EXPECT_DONE();
#undef LARGE
    json_t *all = read_metrics("out/metrics.jsonl");
    CHECK_EQ(json_array_size(all), 4);
    for (size_t s = 0; s < json_array_size(all); s++) {
        const json_t *ram = json_object_get(json_array_get(all, s), "cpu");
        double peak = json_number_value(json_object_get(ram, "peak_bytes"));
        if (!(peak > 0 && peak <= (double)(least << 20)))
            CHECK_SAY("step %zu: %g bytes under a cap of %ld MiB", s, peak, least);
    }
    json_decref(all);
    CHECK(same_file("out/model/model.safetensors", "whole/model/model.safetensors"));
    RUN("eval", "run.json", "memory.cpu=16KiB");
    EXPECT_ERROR(2, before, "the cap is 16.0 KiB");
}

/* ---- eval, generate, estimate, info ---- */

TEST(eval_prints_what_training_saw)
{
    tiny_setup();
    RUN("train", "run.json", "eval_every=4");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "valid 5.");
    json_t *all = read_metrics("out/metrics.jsonl");
    double loss = 0, perplexity = 0;
    long tokens = 0;
    RUN("eval", "run.json", "model=out/model");
    EXPECT_DONE();
    CHECK_EQ(sscanf(ran.out, "loss %lf perplexity %lf tokens %ld", &loss, &perplexity, &tokens), 3);
    CHECK_NEAR(loss, number_of(all, 3, "valid_loss"), 1e-6);
    CHECK_NEAR(perplexity, exp(loss), 0.01);
    CHECK_EQ(tokens, 599 / TINY_T * TINY_T);
    json_decref(all);
}

/* A configuration's model may be drawn, which is said; a directory in its place is one that has been trained. */
TEST(eval_of_a_model_without_weights)
{
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/config.json", TINY_MODEL);
    RUN("eval", "run.json", "model=base", "seed=3");
    EXPECT_DONE();
    CHECK_STR(ran.err, "tessera: model: base has no weights: what is evaluated was drawn from seed 3\n");
    RUN("eval", "run.json");
    EXPECT_DONE();
    CHECK_STR(ran.err, "tessera: model: an object has no weights: what is evaluated was drawn from seed 1\n");
    RUN("eval", "base", "data.valid=valid.txt");
    EXPECT_ERROR(2, "base: has no model.safetensors", "OUTPUT/model");
    RUN("train", "run.json", "steps=1");
    RUN("eval", "out/model", "data.valid=valid.txt");
    EXPECT_DONE();
    CHECK_STR(ran.err, "");
}

static void generate_into(char text[200], const char *seed, const char *temperature, const char *top_k)
{
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "24", "--seed", seed, "--temperature", temperature,
        "--top-k", top_k);
    EXPECT_DONE();
    CHECK(!strncmp(ran.out, "the tile", 8));
    CHECK(strlen(ran.out) > 9);
    CHECK(ran.out[0] && ran.out[strlen(ran.out) - 1] == '\n');
    snprintf(text, 200, "%s", ran.out);
}

TEST(generate_goes_on_from_a_prompt)
{
    char a[200], b[200], c[200], d[200];
    tiny_setup();
    RUN("train", "run.json", "steps=60", "optimizer.params.lr=1e-2", "log_every=60");
    EXPECT_DONE();
    generate_into(a, "1", "1", "0");
    generate_into(b, "1", "1", "0");
    CHECK_STR(a, b);
    generate_into(c, "2", "1", "0");
    CHECK(strcmp(a, c));
    generate_into(a, "1", "0", "0");
    generate_into(b, "2", "0", "0");
    CHECK_STR(a, b); /* the likeliest does not depend on the seed, */
    CHECK_EQ(strlen(a), 8 + 24 + 1);
    generate_into(d, "3", "1", "1");
    CHECK_STR(d, a); /* and is the one of the likeliest 1 */
    CHECK_HAS(ran.err, " tokens/s");
    RUN("generate", "out/model", "--prompt=the tile moves and rests on a disk. the tile moves", "-n", "40");
    EXPECT_ERROR(2, "--prompt: 50 tokens, but the model has 32 positions");
    RUN("generate", "out/model", "--prompt=the tile moves", "-n", "40");
    EXPECT_DONE(); /* until it is full */
    CHECK_HAS(ran.err, "1 of 1 texts ended at the model's 32 positions");
    CHECK_EQ(strlen(ran.out), 32 + 1);
    CHECK(strspn(a + 8, "abcdefghijklmnopqrstuvwxyz .\n") == strlen(a + 8)); /* it knows the letters */
    RUN("train", "run.json", "steps=1", "model.n_positions=256");
    EXPECT_DONE();
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "180");
    EXPECT_DONE();
    write_text("prompts.txt", "the tile\n\nthe tile moves and rests\r\na\n");
    RUN("generate", "out/model", "--prompts", "prompts.txt", "-n", "9", "--temperature", "0", "--batch", "2");
    EXPECT_DONE();
    char all[600];
    snprintf(all, sizeof all, "%s", ran.out);
    int lines = 0;
    for (const char *at = all; (at = strchr(at, '\n')); at++) lines++;
    CHECK_EQ(lines, 3);
    CHECK(!strncmp(all, "the tile", 8));
    CHECK_HAS(all, "\nthe tile moves and rests");
    RUN("generate", "out/model", "--prompt", "the tile moves and rests", "-n", "9", "--temperature", "0");
    EXPECT_DONE();
    CHECK(strstr(all, ran.out)); /* as it goes on alone */
    write_text("prompts.jsonl", "{\"prompt\": \"the tile\"}\n{\"input_ids\": [116, 104]}\n");
    RUN("generate", "out/model", "--prompts", "prompts.jsonl", "-n", "3", "--top-p", "0.9", "--repetition-penalty",
        "1.2");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "{\"prompt\": \"the tile\", \"completion\": \"");
    CHECK_HAS(ran.out, "\n{\"input_ids\": [116, 104], \"output_ids\": [");
    write_text("prompts.txt", "\n\n");
    RUN("generate", "out/model", "--prompts", "prompts.txt");
    EXPECT_ERROR(2, "prompts.txt: has no prompt");
    write_text("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"text\": \"a\"}\n");
    RUN("generate", "out/model", "--prompts", "prompts.jsonl");
    EXPECT_ERROR(2, "prompts.jsonl:2: has no prompt");
}

/* A token that ends a text does, unless it is not to; where config.json and generation_config.json differ, the latter.
 */
TEST(generate_ends_with_the_text)
{
    tiny_setup();
    RUN("train", "run.json", "steps=1");
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "12", "--temperature", "0");
    EXPECT_DONE();
    CHECK_EQ(strlen(ran.out), 8 + 12 + 1);
    char first[64], json[200];
    snprintf(first, sizeof first, "%s", ran.out);
    snprintf(json, sizeof json, "{\"eos_token_id\": [255, %d]}", first[8 + 3]);
    write_text("out/model/generation_config.json", json);
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "12", "--temperature", "0");
    EXPECT_DONE();
    const size_t n = strcspn(first + 8, (char[]){first[8 + 3], 0});
    CHECK_EQ(strlen(ran.out), 8 + n + 1);
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "12", "--temperature", "0", "--ignore-eos");
    EXPECT_DONE();
    CHECK_STR(ran.out, first);
}

/* StarPU's limit on RAM is a cap here too: too little is said at once, and what is named then is enough. */
TEST(generate_below_a_limit)
{
    char mib[32];
    wide_setup_with("\"steps\": 1, \"train_batch_size\": 1");
    RUN("train", "run.json");
    EXPECT_DONE();
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "80", "--temperature", "0");
    EXPECT_DONE();
    char *text = strdup(ran.out);
    setenv("STARPU_LIMIT_CPU_MEM", "1", 1);
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "80");
    EXPECT_ERROR(2, "STARPU_LIMIT_CPU_MEM: a text of 32 tokens needs", "the cap is 1.0 MiB", " would do)");
    CHECK_STR(ran.out, "");
    snprintf(mib, sizeof mib, "%ld", named_in_error("the cap is 1.0 MiB (STARPU_LIMIT_CPU_MEM="));
    setenv("STARPU_LIMIT_CPU_MEM", mib, 1);
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "80", "--temperature", "0");
    EXPECT_DONE();
    CHECK_STR(ran.out, text);
    free(text);
    setenv("STARPU_LIMIT_CPU_MEM", "1", 1); /* and of a run the variable is named that is to be changed */
    RUN("train", "run.json");
    EXPECT_ERROR(2, "STARPU_LIMIT_CPU_MEM: the run needs", "the cap is 1.0 MiB (STARPU_LIMIT_CPU_MEM=", "would do");
    snprintf(mib, sizeof mib, "%ld", named_in_error("the cap is 1.0 MiB (STARPU_LIMIT_CPU_MEM="));
    setenv("STARPU_LIMIT_CPU_MEM", mib, 1);
    RUN("train", "run.json");
    EXPECT_DONE();
    unsetenv("STARPU_LIMIT_CPU_MEM");
}

/* Each token fetches its own experts, also where they are on disk: a choice is made anew for each token. */
TEST(generate_with_experts_on_disk)
{
    static const char model[] =
        "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 256, \"hidden_size\": 64, \"intermediate_size\": 64, "
        "\"moe_intermediate_size\": 512, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"num_experts\": 48, \"num_experts_per_tok\": 2, "
        "\"max_position_embeddings\": 128, \"tie_word_embeddings\": false, \"initializer_range\": 0.2}";
    tiny_setup();
    mkdir("base", 0777);
    mkdir("swap", 0777);
    write_text("base/config.json", model);
    RUN("train", "run.json", "model=base", "steps=1", "train_batch_size=1");
    EXPECT_DONE();
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "30", "--temperature", "0");
    EXPECT_DONE();
    char *text = strdup(ran.out);
    RUN("generate", "out/model", "--prompt", "the tile", "-n", "30", "--temperature", "0", "memory.cpu=16MiB",
        "memory.path=swap");
    EXPECT_DONE();
    CHECK_STR(ran.out, text);
    free(text);
}

TEST(estimate_needs_no_weights_and_runs_nothing)
{
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/config.json", TINY_MODEL);
    RUN("estimate", "run.json", "model=base");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "parameters, 64 tokens a step");
    CHECK_HAS(ran.out, "moments");
    CHECK_HAS(ran.out, "activations");
    CHECK_HAS(ran.out, "tokens/s");
    CHECK(!exists("out"));
    RUN("estimate", "run.json", "train_batch_size=64", "memory.cpu=5MiB");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "does not fit: memory.cpu: the run needs");
    char *said = strdup(ran.out), *times = strstr(said, "time of a step"); /* which other work on the machine moves */
    RUN("estimate", "run.json", "train_batch_size=64", "memory.cpu=5MiB", "--fits");
    EXPECT_ERROR(1, "memory.cpu: the run needs"); /* for scripts: what is printed is printed all the same */
    CHECK(times && !strncmp(ran.out, said, (size_t)(times - said)));
    RUN("estimate", "run.json", "train_batch_size=64", "--fits");
    EXPECT_DONE();
    free(said);
}

/* As it is published. */
static const char llama_70b[] =
    "{\"architectures\": [\"LlamaForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, "
    "\"bos_token_id\": 128000,"
    " \"eos_token_id\": 128001, \"hidden_act\": \"silu\", \"hidden_size\": 8192, \"initializer_range\": 0.02,"
    " \"intermediate_size\": 28672, \"max_position_embeddings\": 8192, \"model_type\": \"llama\", "
    "\"num_attention_heads\": 64,"
    " \"num_hidden_layers\": 80, \"num_key_value_heads\": 8, \"pretraining_tp\": 1, \"rms_norm_eps\": 1e-05, "
    "\"rope_scaling\": null,"
    " \"rope_theta\": 500000.0, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\","
    " \"transformers_version\": \"4.40.0.dev0\", \"use_cache\": true, \"vocab_size\": 128256}";

TEST(estimate_of_a_model_of_70_billion)
{
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/config.json", llama_70b);
    RUN("estimate", "run.json", "model=base", "bf16.enabled=true", "data.seq_length=1024", "train_batch_size=1");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "70553706496 parameters, 1024 tokens a step");
}

static const char mixtral_8x7b[] =
    "{\"architectures\": [\"MixtralForCausalLM\"], \"attention_dropout\": 0.0, \"bos_token_id\": 1, \"eos_token_id\": "
    "2,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 4096, \"initializer_range\": 0.02, \"intermediate_size\": 14336,"
    " \"max_position_embeddings\": 32768, \"model_type\": \"mixtral\", \"num_attention_heads\": 32, "
    "\"num_experts_per_tok\": 2,"
    " \"num_hidden_layers\": 32, \"num_key_value_heads\": 8, \"num_local_experts\": 8, \"output_router_logits\": false,"
    " \"rms_norm_eps\": 1e-05, \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.02, \"sliding_window\": null,"
    " \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"transformers_version\": \"4.36.0.dev0\","
    " \"use_cache\": true, \"vocab_size\": 32000}";
static const char qwen3_235b[] =
    "{\"architectures\": [\"Qwen3MoeForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0,"
    " \"bos_token_id\": 151643, \"decoder_sparse_step\": 1, \"eos_token_id\": 151645, \"head_dim\": 128,"
    " \"hidden_act\": \"silu\", \"hidden_size\": 4096, \"initializer_range\": 0.02, \"intermediate_size\": 12288,"
    " \"max_position_embeddings\": 40960, \"max_window_layers\": 94, \"mlp_only_layers\": [], \"model_type\": "
    "\"qwen3_moe\","
    " \"moe_intermediate_size\": 1536, \"norm_topk_prob\": true, \"num_attention_heads\": 64, \"num_experts\": 128,"
    " \"num_experts_per_tok\": 8, \"num_hidden_layers\": 94, \"num_key_value_heads\": 4, \"output_router_logits\": "
    "false,"
    " \"rms_norm_eps\": 1e-06, \"rope_scaling\": null, \"rope_theta\": 1000000.0, \"router_aux_loss_coef\": 0.001,"
    " \"sliding_window\": null, \"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\","
    " \"transformers_version\": \"4.51.0\", \"use_cache\": true, \"use_sliding_window\": false, \"vocab_size\": "
    "151936}";

TEST(estimates_of_mixtures_of_experts)
{
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/config.json", mixtral_8x7b);
    RUN("estimate", "run.json", "model=base", "bf16.enabled=true", "data.seq_length=1024", "train_batch_size=1",
        "memory.cpu=32GiB", "memory.path=.", "memory.disk=2TiB");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "46702792704 parameters, 1024 tokens a step");
    CHECK_HAS(ran.out, "those that none chose are not read");
    write_text("base/config.json", qwen3_235b);
    RUN("estimate", "run.json", "model=base", "bf16.enabled=true", "data.seq_length=1024", "train_batch_size=1");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "235093634560 parameters, 1024 tokens a step");
}

/* The sum of the lines of a tier, from the line `begin` to "in all", which is to be that; lines "of it" count in the
 * one above. Three digits are printed of each. */
static void check_sum(const char *begin)
{
    const char *at = strstr(ran.out, begin);
    double sum = 0, last = NAN, off = 0;
    int lines = 0;
    for (at = at ? strchr(at + 1, '\n') : NULL; at && !strncmp(at, "\n  ", 3); at = strchr(at + 1, '\n')) {
        double number;
        char unit[8] = "";
        if (sscanf(at + 3 + 44, "%lf %7s", &number, unit) != 2) break;
        last = number * (!strcmp(unit, "GiB")   ? 0x1p30
                         : !strcmp(unit, "MiB") ? 0x1p20
                         : !strcmp(unit, "KiB") ? 0x1p10
                                                : 1);
        if (!strncmp(at + 3, "in all", 6)) break;
        if (!strncmp(at + 3, "of it", 5) || !strncmp(at + 3, "tiles that rest", 15)) continue;
        sum += last;
        off += last * (number < 10 ? 0.06 / fmax(number, 0.1) : 0.006);
        lines++;
    }
    if (!(lines > 1 && fabs(sum - last) <= off + 0.006 * last + 0.06 * 0x1p20 * (last < 0x1p23)))
        CHECK_SAY("%s: %d lines of %s make %g, but in all it says %g\n%s", ran.what, lines, begin, sum, last, ran.out);
}

/* Whatever is asked for: what a tier has adds up, and a run takes what its estimate says. */
TEST(the_sums_of_an_estimate)
{
    static const char *const none = "seed=1", *const bf16 = "bf16.enabled=true", *const path = "memory.path=.",
                             *const away = "zero_optimization.offload_optimizer.device=nvme",
                             *const wide = "model.n_embd=128";
    static const char *const set[][5] = {
        {none},
        {wide, "memory.cpu=40MiB"},
        {path, away, wide, "memory.cpu=24MiB", bf16},
        {path, wide, "memory.cpu=17MiB", "train_micro_batch_size_per_gpu=1", "gradient_clipping=1"},
        {path, away, "zero_optimization.offload_optimizer.buffer_count=2", "memory.disk=1GiB"},
        {"--ranks=4", "zero_optimization.stage=3", bf16},
        {"memory.cpu=1MiB"},
    };
    tiny_setup();
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        RUN("estimate", "run.json", set[i][0], set[i][1], set[i][2], set[i][3], set[i][4]);
        EXPECT_DONE();
        check_sum("\ncpu (RAM)");
        CHECK_HAS(ran.out, "beside these the process has libraries, code and stacks: at most 300 MiB");
        const bool disk = strstr(ran.out, "\ndisk (");
        if (set[i][0] == path && !disk) CHECK_SAY("%s: %s", ran.what, ran.out);
        if (!disk) continue;
        check_sum("\ndisk (");
        CHECK_HAS(ran.out, "the least that memory.cpu may be");
        CHECK(line_of("the least that memory.cpu may be") < 24 * 0x1p20); /* whatever is free */
    }
}

/* With one worker tasks come in the order of the plan, so the run holds what the plan says; and the least cap that an
 * estimate names is one under which the run is done, and one that holds. */
TEST(a_run_takes_what_its_estimate_says)
{
    static const char *const dtype[] = {"bf16.enabled=false", "bf16.enabled=true"};
    setenv("STARPU_NCPU", "1", 1);
    tiny_setup();
    for (size_t i = 0; i < 2; i++) {
        char output[32], metrics[64];
        snprintf(output, sizeof output, "output=run%zu", i);
        snprintf(metrics, sizeof metrics, "run%zu/metrics.jsonl", i);
        RUN("estimate", "run.json", "model.n_embd=128", dtype[i]);
        EXPECT_DONE();
        CHECK(!strstr(ran.out, "evaluations")); /* there will be none, whatever data.valid says */
        const double without = line_of("\n  in all");
        RUN("estimate", "run.json", "model.n_embd=128", "eval_every=2", dtype[i]);
        EXPECT_DONE();
        CHECK_NEAR(line_of("\n  in all") - without, line_of("tokens and scratch of evaluations"), 0.02 * without);
        const double all = line_of("\n  in all");
        RUN("train", "run.json", "model.n_embd=128", "eval_every=2", dtype[i], output);
        EXPECT_DONE();
        json_t *steps = read_metrics(metrics);
        const double peak =
            json_number_value(json_object_get(json_object_get(json_array_get(steps, 3), "cpu"), "peak_bytes"));
        if (!(fabs(peak - all) < 0.1 * all)) CHECK_SAY("%s: %g bytes, the estimate says %g", ran.what, peak, all);
        json_decref(steps);
    }
    unsetenv("STARPU_NCPU");
#define AWAY "memory.path=.", "zero_optimization.offload_optimizer.device=nvme", "eval_every=1"
    RUN("estimate", "run.json", AWAY);
    EXPECT_DONE();
    const long least = lround(line_of("the least that memory.cpu may be") / 0x1p20);
    char cap[2][48];
    for (int i = 0; i < 2; i++) snprintf(cap[i], sizeof cap[i], "memory.cpu=%ldMiB", least - i);
    RUN("train", "run.json", AWAY, cap[0], "output=least");
    EXPECT_DONE();
    json_t *steps = read_metrics("least/metrics.jsonl");
    CHECK(json_number_value(json_object_get(json_object_get(json_array_get(steps, 3), "cpu"), "peak_bytes")) <=
          (double)least * 0x1p20);
    json_decref(steps);
    RUN("train", "run.json", AWAY, cap[1], "output=less");
    EXPECT_ERROR(2, "memory.cpu", "MiB would do");
#undef AWAY
    RUN("train", "run.json", "memory.cpu=1MiB", "output=less"); /* with no disk: what is named works, too */
    EXPECT_ERROR(2, "the run needs", "MiB would do");
    snprintf(cap[0], sizeof cap[0], "memory.cpu=%ldMiB", atol(strstr(ran.err, "(memory.cpu=") + 12));
    RUN("train", "run.json", cap[0], "output=named");
    EXPECT_DONE();
}

/* What only does not fit is an estimate, what is wrong is an error, as it is of a run. */
TEST(estimate_refuses_what_a_run_would)
{
    static const char *const path[] = {"text.txt", "text.txt/below", "nowhere", "/proc", ":", ".:nowhere"};
    static const char *const where[] = {"text.txt", "text.txt/below", "nowhere", "/proc", "disk tier", "nowhere"};
    tiny_setup();
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        char set[64], name[64];
        snprintf(set, sizeof set, "memory.path=%s", path[i]);
        snprintf(name, sizeof name, "tessera: error: %s: ", where[i]);
        RUN("estimate", "run.json", set);
        EXPECT_ERROR(2, name);
        CHECK_STR(ran.out, "");
        RUN("train", "run.json", set);
        EXPECT_ERROR(2, name);
        CHECK(!exists("out"));
    }
    RUN("estimate", "run.json", "activation_checkpointing.offload=disk");
    EXPECT_ERROR(2, "activation_checkpointing.offload", "memory.path");
    RUN("estimate", "run.json", "memory.path=.", "memory.cpu=64KiB");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "does not fit: memory.cpu: 64.0 KiB");
    CHECK_HAS(ran.out, "MiB would do)");
    CHECK_HAS(ran.out, "tokens/s");
}

/* Whichever cap is too low, what is named is enough, and less of it is not: of a run, too, that has an evaluation's
 * tiles on disk beside the step's. */
TEST(the_least_of_both_caps_is_named)
{
    static const char *const every[] = {"eval_every=0", "eval_every=1"};
    wide_setup_with("\"train_batch_size\": 8, \"steps\": 1, \"memory\": {\"path\": \"swap\"}");
    write_tiny_text("valid.txt", 600, 2);
    for (int i = 0; i < 2; i++) {
        char cpu[64], disk[2][64];
        RUN("estimate", "run.json", every[i], "data.valid=valid.txt", "memory.cpu=1MiB", "memory.disk=1MiB", "--fits");
        EXPECT_ERROR(1, WIDE_LEAST, "MiB with memory.disk=", "MiB would do)");
        snprintf(cpu, sizeof cpu, "memory.cpu=%ldMiB", named_in_error(WIDE_LEAST));
        const long least = named_in_error("with memory.disk=");
        for (int k = 0; k < 2; k++) snprintf(disk[k], sizeof disk[k], "memory.disk=%ldMiB", least - k);
        RUN("estimate", "run.json", every[i], "data.valid=valid.txt", cpu, disk[0]);
        EXPECT_DONE();
        CHECK(line_of("the least that memory.disk may be") <= (double)least * 0x1p20 * 1.01);
        RUN("train", "run.json", every[i], "data.valid=valid.txt", cpu, disk[0]);
        EXPECT_DONE();
        RUN("estimate", "run.json", every[i], "data.valid=valid.txt", cpu, "memory.disk=1MiB", "--fits");
        EXPECT_ERROR(1, "memory.disk: 1.0 MiB, but the run needs", "(memory.disk=");
        snprintf(disk[0], sizeof disk[0], "memory.disk=%ldMiB", named_in_error("(memory.disk="));
        RUN("train", "run.json", every[i], "data.valid=valid.txt", cpu, disk[0]);
        EXPECT_DONE();
    }
}

/* In fp32 each of two ranks sends half of its gradients, and half of the weights comes back. */
TEST(estimate_of_ranks_that_do_not_run)
{
    tiny_setup();
    RUN("estimate", "run.json");
    EXPECT_DONE();
    double moments = line_of("moments"), bytes = 4 * atof(ran.out);
    CHECK(!strstr(ran.out, "rank"));
    RUN("estimate", "run.json", "zero_optimization.stage=1", "--ranks", "2");
    EXPECT_DONE();
    CHECK_HAS(ran.out, " of 2, which holds the most");
    CHECK_NEAR(line_of("moments"), moments / 2, 0.02 * moments);
    CHECK_NEAR(line_of("sent to other ranks in a step"), bytes, 0.02 * bytes);
    CHECK_HAS(ran.out, "tokens/s");
    CHECK(!strstr(ran.out, "nan"));
    const char *const wide = "model.vocab_size=8000"; /* nearly all of it the table, which is with the first stage */
    RUN("estimate", "run.json", wide);
    EXPECT_DONE();
    moments = line_of("moments");
    RUN("estimate", "run.json", wide, "parallel.pipeline=2", "parallel.tensor=2", "--ranks=8");
    EXPECT_DONE();
    CHECK_HAS(ran.out, " of 8, which holds the most");
    CHECK_NEAR(line_of("moments"), moments / 2, 0.1 * moments);
    CHECK(!exists("out"));
    RUN("estimate", "run.json", "parallel.tensor=2");
    EXPECT_ERROR(2, "parallel", "1 ranks run");
    RUN("estimate", "run.json", "parallel.tensor=2", "--ranks", "3");
    EXPECT_ERROR(2, "parallel", "3 ranks run");
    RUN("estimate", "run.json", "--ranks", "0");
    EXPECT_ERROR(2, "--ranks");
    RUN("estimate", "run.json", "--ranks", "1.5");
    EXPECT_ERROR(2, "--ranks", "a whole number");
}

TEST(info_prints_the_machine)
{
    fresh();
    RUN("info");
    EXPECT_DONE();
    static const char *const part[] = {" cores", "GPUs", "memory ", "disk ", "StarPU ", "MPI "};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) CHECK_HAS(ran.out, part[i]);
}

TEST(help_and_version)
{
    static const char *const commands[] = {"train", "eval", "generate", "estimate", "info"};
    fresh();
    RUN("--version");
    EXPECT_DONE();
    CHECK(!strncmp(ran.out, "tessera ", 8));
    RUN("--help");
    EXPECT_DONE();
    for (size_t i = 0; i < 5; i++) CHECK_HAS(ran.out, commands[i]);
    for (size_t i = 0; i < 5; i++) {
        char usage[40];
        RUN(commands[i], "--help");
        EXPECT_DONE();
        snprintf(usage, sizeof usage, "usage: tessera %s", commands[i]);
        CHECK_HAS(ran.out, usage);
        CHECK_STR(ran.err, "");
    }
    RUN("train", "--help");
    CHECK_HAS(ran.out, "optimizer.params.lr");
    CHECK_HAS(ran.out, "--resume");
}
