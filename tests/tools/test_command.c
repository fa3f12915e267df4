/* The command as a user meets it when all goes well: what each subcommand prints and leaves. */
#define CHECK_MAIN
#include "runtime/runtime.h"
#include "tests/tools/tiny.h"

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
    DONE("train", "run.json", "steps=6");
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
    DONE("train", "run.json", "steps=40", "optimizer.params.lr=1e-2", "eval_every=20");
    json_t *all = read_metrics("out/metrics.jsonl");
    CHECK(number_of(all, 39, "loss") < 3.2);
    CHECK(number_of(all, 39, "valid_loss") < number_of(all, 19, "valid_loss"));
    CHECK(!json_object_get(json_array_get(all, 38), "valid_loss"));
    json_decref(all);
}

TEST(plain_lines_come_every_log_every_steps)
{
    tiny_setup();
    DONE("train", "run.json", "log_every=2", "steps=5");
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
    RUN("train", "run.json", "data.valid=null"); /* what was evaluated would stay, in a line of its own */
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
    char *data = strstr(text, "data: "), *live = data ? strchr(data, '\n') : NULL;
    char *end = live ? strchr(live + 1, '\n') : NULL;
    CHECK(!strncmp(text, "the weights are drawn from seed 1\r\ndata: ", 41));
    CHECK(live && end && end > strstr(text, "step 4/4"));                  /* one line for all steps, */
    CHECK_STR(end ? end + 1 : NULL, "the model of step 4: out/model\r\n"); /* and what it leaves */
}

TEST(the_settings_in_force_are_left_and_run_again)
{
    tiny_setup();
    DONE("train", "run.json", "optimizer.params.betas=[0.9, 0.95]", "tiles.elements=500");
    json_t *c = json_load_file("out/config.json", 0, NULL);
    const json_t *tiles = json_object_get(c, "tiles"); /* what stands for auto is said, since bits depend on it */
    CHECK_EQ(json_integer_value(json_object_get(tiles, "elements")), 500);
    CHECK(json_integer_value(json_object_get(tiles, "rows")) >= 1024);
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
    DONE("train", "out/config.json", "output=again");
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

/* A rate of 0 is allowed, and said; a warmup that begins there is none. */
TEST(a_rate_of_zero_trains_nothing_and_is_said)
{
    static const char said[] = "optimizer.params.lr: 0, and so nothing is trained";
    tiny_setup_with(", \"optimizer\": {\"params\": {\"lr\": 0}}");
    RUN("train", "run.json", "steps=2");
    EXPECT_DONE();
    CHECK_HAS(ran.err, said);
    RUN("train", "run.json", "steps=2", "overwrite=true", "scheduler.type=WarmupLR",
        "scheduler.params.warmup_max_lr=0.001");
    EXPECT_DONE();
    CHECK(!strstr(ran.err, said));
}

/* ---- the same bits ---- */

TEST(the_same_run_has_the_same_bytes_on_any_schedule)
{
    tiny_setup();
    DONE("train", "run.json");
    RUN("train", "run.json", "output=again");
    CHECK(same_file(weights, "again/model/model.safetensors"));
    setenv("STARPU_NCPU", "1", 1);
    RUN("train", "run.json", "output=one");
    CHECK(same_file(weights, "one/model/model.safetensors"));
    unsetenv("STARPU_NCPU");
    static const char *const schedulers[] = {"eager", "lws", "dmda"};
    for (size_t i = 0; i < 3; i++) {
        setenv("STARPU_SCHED", schedulers[i], 1);
        DONE("train", "run.json", "output=other");
        CHECK(same_file(weights, "other/model/model.safetensors"));
    }
    unsetenv("STARPU_SCHED");
    setenv("STARPU_SCHED_LIB", TESS_OWN_POLICY, 1);
    DONE("train", "run.json", "output=own");
    CHECK(same_file(weights, "own/model/model.safetensors"));
    unsetenv("STARPU_SCHED_LIB");
    RUN("train", "run.json", "output=recomputed", "activation_checkpointing.enabled=true");
    CHECK(same_file(weights, "recomputed/model/model.safetensors"));
    DONE("train", "run.json", "output=seed", "seed=2");
    CHECK(!same_file(weights, "seed/model/model.safetensors"));
}

TEST(the_format_of_the_data_changes_nothing)
{
    uint8_t token[TINY_TOKENS];
    tiny_setup();
    tiny_text((char *)token, TINY_TOKENS, 1);
    write_llmc("tokens.bin", token, TINY_TOKENS);
    write_megatron("corpus", token, TINY_TOKENS);
    DONE("train", "run.json");
    DONE("train", "run.json", "data.train=tokens.bin", "output=llmc");
    CHECK(same_file(weights, "llmc/model/model.safetensors"));
    DONE("train", "run.json", "data.train=corpus", "output=megatron");
    CHECK(same_file(weights, "megatron/model/model.safetensors"));
}

TEST(accumulation_and_bf16_stay_near)
{
    static const char *const settings[] = {"train_micro_batch_size_per_gpu=2", "train_micro_batch_size_per_gpu=4",
                                           "bf16.enabled=true"};
    double loss[3] = {0};
    tiny_setup();
    for (size_t i = 0; i < 3; i++) {
        DONE("train", "run.json", settings[i], "model.resid_pdrop=0", "model.embd_pdrop=0", "model.attn_pdrop=0");
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
    DONE("train", "run.json", "steps=20", "optimizer.params.lr=1e-2");
    DONE("train", "run.json", "model=out/model", "steps=2", "optimizer.params.lr=0", "output=same");
    CHECK(same_file(weights, "same/model/model.safetensors"));
    CHECK(same_file("out/model/config.json", "same/model/config.json"));
    DONE("train", "run.json", "model=out/model", "bf16.enabled=true", "steps=1", "output=more");
    json_t *before = read_metrics("out/metrics.jsonl"), *after = read_metrics("more/metrics.jsonl");
    CHECK(number_of(after, 0, "loss") < number_of(before, 9, "loss"));
    json_decref(before);
    json_decref(after);
}

/* Rotary positions have no end: what is longer than the model's own is said, and done. Learned ones end. */
TEST(sequences_longer_than_the_positions_of_a_model)
{
    static const char llama[] = "model={\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 16, "
                                "\"intermediate_size\": 16, \"num_hidden_layers\": 1, \"num_attention_heads\": 2, "
                                "\"max_position_embeddings\": 16}";
    tiny_setup();
    DONE("train", "run.json", llama, "steps=1", "data.seq_length=17");
    CHECK_STR(ran.err, "tessera: data.seq_length: sequences of 17 tokens are longer than the model's "
                       "max_position_embeddings, 16\n");
    DONE("train", "run.json", llama, "steps=1", "data.seq_length=16");
    CHECK_STR(ran.err, "");
}

/* Without a disk either; the micro-batch has four row tiles, which workers would else take up out of turn. */
TEST(the_cap_holds_where_nothing_can_leave)
{
    static const char before[] = "memory.cpu: the run needs ";
#define LARGE "data.seq_length=32", "train_batch_size=512", "train_micro_batch_size_per_gpu=128", "eval_every=2"
    tiny_setup();
    DONE("train", "run.json", LARGE, "output=whole");
    FAILS(2, ("train", "run.json", LARGE, "memory.cpu=1MiB"), before, "MiB in RAM, the cap is 1.0 MiB");
    long least = named_in_error(before) + 1;
    DONE("train", "run.json", LARGE, fmt("memory.cpu=%ldMiB", least));
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
    FAILS(2, ("eval", "run.json", "memory.cpu=16KiB"), before, "the cap is 16.0 KiB");
}

/* ---- eval, generate, estimate, info ---- */

TEST(eval_prints_what_training_saw)
{
    tiny_setup();
    DONE("train", "run.json", "data.valid=null");
    CHECK(!strstr(ran.out, "valid"));
    DONE("train", "run.json"); /* data.valid is there: after the last step */
    CHECK_HAS(ran.out, "valid 5.");
    json_t *all = read_metrics("out/metrics.jsonl");
    double loss = 0, perplexity = 0;
    long tokens = 0;
    DONE("eval", "run.json", "model=out/model");
    CHECK_EQ(sscanf(ran.out, "loss %lf perplexity %lf tokens %ld", &loss, &perplexity, &tokens), 3);
    CHECK_NEAR(loss, number_of(all, 3, "valid_loss"), 1e-6);
    CHECK_NEAR(perplexity, exp(loss), 0.01);
    CHECK_EQ(tokens, 599 / TINY_T * TINY_T);
    json_decref(all);
}

/* A configuration's model may be drawn, which is said; a directory has weights, unless they are to be drawn. */
TEST(eval_of_a_model_without_weights)
{
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/config.json", TINY_MODEL);
    FAILS(2, ("eval", "run.json", "model=base", "seed=3"), "base: has no model.safetensors", "weights=drawn");
    DONE("eval", "run.json", "model=base", "seed=3", "weights=drawn");
    CHECK_STR(ran.err, "tessera: the evaluated weights are drawn from seed 3\n");
    DONE("eval", "run.json");
    CHECK_STR(ran.err, "tessera: the evaluated weights are drawn from seed 1\n");
    FAILS(2, ("eval", "base", "data.valid=valid.txt"), "base: has no model.safetensors", "OUTPUT/model");
    RUN("train", "run.json", "steps=1");
    DONE("eval", "out/model", "data.valid=valid.txt");
    CHECK_STR(ran.err, "");
}

/* Debian's StarPU drives 4 cores, and a run on a larger machine says so. */
TEST(cores_without_a_worker)
{
    int most = 0;
    CHECK_EQ(sscanf(tess_starpu_limits(), "at most %d", &most), 1);
    if (most > 16) return; /* as many threads would start here */
    tiny_setup();
    unsetenv("HWLOC_COMPONENTS"); /* beside which it does not count */
    setenv("HWLOC_SYNTHETIC", fmt("node:1 core:%d pu:1", most + 3), 1);
    DONE("train", "run.json", "steps=1");
    CHECK_HAS(ran.err, fmt("%d of %d cores work", most, most + 3));
    CHECK_HAS(ran.err, "tools/starpu builds one that drives all");
    setenv("STARPU_NCPU", "2", 1);
    DONE("train", "run.json", "steps=1");
    CHECK(!strstr(ran.err, "cores work"));
    unsetenv("STARPU_NCPU");
    unsetenv("HWLOC_SYNTHETIC");
}

/* A machine of two sockets, whose kernel is this one's: tiles are dealt out, and a rank a node is told of. */
TEST(several_numa_nodes)
{
    tiny_setup();
    unsetenv("HWLOC_COMPONENTS");
    setenv("HWLOC_SYNTHETIC", "package:2 [numa] core:1 pu:1", 1);
    setenv("HWLOC_THISSYSTEM", "1", 1);
    DONE("info");
    CHECK_HAS(ran.out, "NUMA nodes 2, GPUs");
    CHECK_HAS(ran.out, "mpirun -n 2 keeps each rank's on its own");
    DONE("train", "run.json", "steps=1");
    setenv("STARPU_USE_NUMA", "1", 1);
    FAILS(2, ("train", "run.json", "steps=1"), "STARPU_USE_NUMA", "a rank a node does it");
    unsetenv("STARPU_USE_NUMA");
    unsetenv("HWLOC_SYNTHETIC");
    unsetenv("HWLOC_THISSYSTEM");
}

TEST(info_prints_the_machine)
{
    fresh();
    DONE("info");
    static const char *const part[] = {" cores", "GPUs", "memory ", "disk ", "StarPU ", "MPI "};
    for (size_t i = 0; i < sizeof part / sizeof *part; i++) CHECK_HAS(ran.out, part[i]);
}

TEST(help_and_version)
{
    static const char *const commands[] = {"train", "eval", "generate", "estimate", "info"};
    fresh();
    DONE("--version");
    CHECK(!strncmp(ran.out, "tessera ", 8));
    static const char *const made_of[] = {"(commit ", "\nStarPU 1.", "MPI", "oneDNN ", "CUDA"};
    for (size_t i = 0; i < sizeof made_of / sizeof *made_of; i++) CHECK_HAS(ran.out, made_of[i]);
    DONE("--help");
    for (size_t i = 0; i < 5; i++) CHECK_HAS(ran.out, commands[i]);
    for (size_t i = 0; i < 5; i++) {
        DONE(commands[i], "--help");
        CHECK_HAS(ran.out, fmt("usage: tessera %s", commands[i]));
        CHECK_STR(ran.err, "");
    }
    RUN("train", "--help");
    CHECK_HAS(ran.out, "optimizer.params.lr");
    CHECK_HAS(ran.out, "--resume");
}
