/* The configuration: every kind of key from every source, and every way to get one wrong. */
#define CHECK_MAIN
#include "tests/check.h"
#include "tests/models/config_files.h"
#include <errno.h>
#include <sys/stat.h>

TEST(defaults)
{
    tess_config c;
    CHECK_EQ(load_for(BATCH, NULL, 1, &c), TESS_OK);
    CHECK_EQ(c.seed, 1);
    CHECK_EQ(c.log_every, 1);
    CHECK_EQ(c.eval_every, 0);
    CHECK_EQ(c.data.seq_length, 1024);
    CHECK(c.data.shuffle);
    CHECK(c.model == NULL && c.model_json == NULL && c.data.train == NULL);
    CHECK(c.optimizer.params.lr == 1e-3 && c.optimizer.params.eps == 1e-8 && c.optimizer.params.weight_decay == 0);
    CHECK(c.optimizer.params.betas[0] == 0.9 && c.optimizer.params.betas[1] == 0.999);
    CHECK_EQ(c.optimizer.type, TESS_OPTIMIZER_ADAMW);
    CHECK(c.optimizer.params.adam_w_mode && !c.optimizer.params.no_decay_1d && !c.bf16.enabled);
    CHECK_EQ(c.scheduler.type, TESS_SCHEDULER_NONE);
    CHECK_EQ(c.scheduler.params.warmup_num_steps, 1000);
    CHECK(c.scheduler.params.warmup_max_lr == 1e-3 && c.gradient_clipping == 1);
    CHECK_EQ(c.steps, TESS_CONFIG_AUTO);
    CHECK_EQ(c.memory.cpu, TESS_CONFIG_AUTO);
    CHECK_EQ(c.checkpoint.keep, 2);
    CHECK(!c.checkpoint.resume);
    CHECK_EQ(c.parallel.tensor, 1);
    CHECK_EQ(c.zero_optimization.stage3_max_live_parameters, 1000000000);
    CHECK_EQ(c.activation_checkpointing.every, 1);
    CHECK_STR(c.output, "runs/run");
    CHECK_STR(c.file, FILE_NAME);
    tess_config_free(&c);
}

TEST(every_kind_from_a_file)
{
    static const char json[] =
        "{\"model\": \"gpt2\", \"steps\": 5e2, \"output\": \"here\", \"train_batch_size\": 4,"
        "\"data\": {\"train\": \"a.txt\", \"shuffle\": false},"
        "\"optimizer\": {\"type\": \"adam\", \"params\": {\"lr\": 6e-4, \"betas\": [0.8, 0.95],"
        "                \"adam_w_mode\": false}},"
        "\"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"warmup_type\": \"linear\"}},"
        "\"memory\": {\"cpu\": \"1.5GiB\"}, \"zero_optimization\": {\"stage\": 3,"
        "\"offload_param\": {\"device\": \"cpu\"}, \"offload_optimizer\": null}}";
    tess_config c;
    CHECK_EQ(load_for(json, NULL, 1, &c), TESS_OK);
    CHECK_STR(tess_error_text(), "");
    CHECK_STR(c.model, "gpt2");
    CHECK_STR(c.output, "here");
    CHECK_STR(c.data.train, "a.txt");
    CHECK_EQ(c.steps, 500);
    CHECK(!c.data.shuffle && !c.optimizer.params.adam_w_mode);
    CHECK_EQ(c.optimizer.type, TESS_OPTIMIZER_ADAM);
    CHECK(c.optimizer.params.lr == 6e-4 && c.optimizer.params.betas[0] == 0.8 && c.optimizer.params.betas[1] == 0.95);
    CHECK_EQ(c.scheduler.type, TESS_SCHEDULER_WARMUP_COSINE);
    CHECK_EQ(c.scheduler.params.warmup_type, TESS_WARMUP_LINEAR);
    CHECK_EQ(c.scheduler.params.total_num_steps, 500);
    CHECK(c.scheduler.params.warmup_max_lr == 6e-4);
    CHECK_EQ(c.memory.cpu, INT64_C(3) << 29);
    CHECK_EQ(c.zero_optimization.offload_param.device, TESS_OFFLOAD_CPU);
    tess_config_free(&c);
}

TEST(choices_are_in_the_order_of_the_enums)
{
    static const char *const scheduler[] = {"none",     "WarmupLR",    "WarmupDecayLR", "WarmupCosineLR",
                                            "OneCycle", "LRRangeTest", "cosine",        "wsd"};
    for (int i = 0; i <= TESS_SCHEDULER_WSD; i++) {
        tess_config c;
        char set[64];
        snprintf(set, sizeof set, "scheduler.type=%s", scheduler[i]);
        CHECK_EQ(load_bytes(BATCH, strlen(BATCH), (const char *[]){set}, 1, &c), TESS_OK);
        CHECK_EQ(c.scheduler.type, i);
        tess_config_free(&c);
    }
    tess_config c;
    CHECK_EQ(load_for(BATCH, "activation_checkpointing.offload=cpu", 1, &c), TESS_OK);
    CHECK_EQ(c.activation_checkpointing.offload, TESS_OFFLOAD_CPU);
    tess_config_free(&c);
}

TEST(sizes)
{
    static const struct {
        const char *text;
        int64_t bytes;
    } good[] = {{"4096", 4096}, {"16GiB", INT64_C(16) << 30}, {"1 MiB", 1 << 20},
                {"2kb", 2000},  {"0.5TiB", INT64_C(1) << 39}, {"0", 0},
                {"1e3", 1000}};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        char set[64];
        tess_config c;
        snprintf(set, sizeof set, "memory.cpu=%s", good[i].text);
        CHECK_EQ(load_for(BATCH, set, 1, &c), TESS_OK);
        CHECK_EQ(c.memory.cpu, good[i].bytes);
        tess_config_free(&c);
    }
    static const char *const bad[] = {"16 gigs", "-1", "GiB", "1e30", "inf", "nan", "0x10GiB "};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char set[64];
        tess_config c;
        snprintf(set, sizeof set, "memory.cpu=%s", bad[i]);
        CHECK_EQ(load_for(BATCH, set, 1, &c), TESS_INVALID);
        CHECK_HAS(tess_error_text(), "command line: memory.cpu: ");
        CHECK_HAS(tess_error_text(), "expected a size such as \"16GiB\"");
        tess_config_free(&c);
    }
}

TEST(the_command_line_wins_over_the_environment_over_the_file)
{
    static const char json[] = "{\"train_batch_size\": 4, \"seed\": 2, \"steps\": 3, \"log_every\": 4}";
    const char *set[] = {"seed=20", "optimizer.params.betas=[0.5,0.6]", "data.shuffle=0", "data.valid="};
    tess_config c;
    setenv("TESSERA_SEED", "7", 1);
    setenv("TESSERA_STEPS", "8", 1);
    setenv("TESSERA_OPTIMIZER_PARAMS_LR", "0.25", 1);
    setenv("TESSERA_DATA_VALID", "v.bin", 1);
    CHECK_EQ(load_bytes(json, strlen(json), set, 4, &c), TESS_OK);
    CHECK_STR(tess_error_text(), "");
    CHECK_EQ(c.seed, 20);
    CHECK_EQ(c.steps, 8);
    CHECK_EQ(c.log_every, 4);
    CHECK(c.optimizer.params.lr == 0.25 && c.optimizer.params.betas[1] == 0.6 && !c.data.shuffle);
    CHECK(c.data.valid == NULL);
    tess_config_free(&c);
    unsetenv("TESSERA_SEED");
    unsetenv("TESSERA_OPTIMIZER_PARAMS_LR");
    unsetenv("TESSERA_DATA_VALID");
    setenv("TESSERA_STEPS", "many", 1);
    REFUSED(BATCH, "environment: steps: \"many\", expected a whole number from 1 to 1e+12 "
                   "(optimizer steps in all; train needs them, or epochs)");
    unsetenv("TESSERA_STEPS");
    setenv("TESSERA_STEP", "1", 1);
    REFUSED(BATCH, "environment: TESSERA_STEP is no key (did you mean TESSERA_STEPS?)");
    unsetenv("TESSERA_STEP");
}

TEST(the_model_is_a_directory_or_an_object)
{
    static const char json[] = "{\"train_batch_size\": 4, \"model\": {\"n_layer\": 12, \"rope\": {\"factor\": 2}}}";
    const char *set[] = {"model.n_layer=4", "model.rope.type=linear", "model.layer_norm_epsilon=1e-5"};
    tess_config c;
    setenv("TESSERA_MODEL_N_HEAD", "3", 1);
    CHECK_EQ(load_bytes(json, strlen(json), set, 3, &c), TESS_OK);
    unsetenv("TESSERA_MODEL_N_HEAD");
    CHECK(c.model == NULL);
    CHECK_HAS(c.model_json, "\"n_layer\":4");
    CHECK_HAS(c.model_json, "\"rope\":{\"factor\":2,\"type\":\"linear\"}");
    CHECK_HAS(c.model_json, "\"n_head\":3");
    tess_config_free(&c);
    CHECK_EQ(load_for(json, "model=gpt2", 1, &c), TESS_OK);
    CHECK_STR(c.model, "gpt2");
    CHECK(c.model_json == NULL);
    tess_config_free(&c);
    /* A directory and what changes it: from the command line, and as one object, which is how it is written. */
    static const char *const changed[][2] = {
        {"{\"train_batch_size\": 4, \"model\": \"gpt2\"}", "model.n_layer=4"},
        {"{\"train_batch_size\": 4, \"model\": {\"dir\": \"gpt2\", \"n_layer\": 4}}", "seed=1"},
        {"{\"train_batch_size\": 4, \"model\": {\"n_layer\": 4}}", "model.dir=gpt2"}};
    for (size_t i = 0; i < sizeof changed / sizeof *changed; i++) {
        const char *key;
        char *value = NULL;
        CHECK_EQ(load_for(changed[i][0], changed[i][1], 1, &c), TESS_OK);
        CHECK_STR(c.model, "gpt2");
        CHECK_STR(c.model_json, "{\"n_layer\":4}");
        CHECK(tess_config_entry(&c, 0, &key, &value));
        CHECK_STR(value, "{\"dir\":\"gpt2\",\"n_layer\":4}");
        free(value);
        tess_config_free(&c);
    }
    REFUSED("{\"model\": {\"dir\": 3}}", "run.json: model: {\"dir\":3}, expected a directory or an object "
                                         "(a Hugging Face directory, or an object with config.json's own keys)");
    REFUSED_FOR(json, "model.n_layer.x=4", 1,
                "command line: model.n_layer.x: 4 has no place there, expected keys of objects");
    REFUSED_FOR(json, "model.rope..x=4", 1, "command line: model.rope..x: an empty name, expected model.NAME=VALUE");
    REFUSED("{\"model\": 3}", "run.json: model: 3, expected a directory or an object "
                              "(a Hugging Face directory, or an object with config.json's own keys)");
}

TEST(batch_sizes)
{
    static const struct {
        const char *json;
        int ranks, train, micro, steps;
    } good[] = {
        {"{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 3}", 2, 24,
         4, 3},
        {"{\"train_batch_size\": 24, \"train_micro_batch_size_per_gpu\": 4}", 2, 24, 4, 3},
        {"{\"train_batch_size\": 24, \"gradient_accumulation_steps\": 3}", 2, 24, 4, 3},
        {"{\"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 3}", 2, 24, 4, 3},
        {"{\"train_batch_size\": 24}", 2, 24, 12, 1},
        {"{\"train_micro_batch_size_per_gpu\": 4}", 2, 8, 4, 1},
        {"{\"gradient_accumulation_steps\": 3}", 2, 6, 1, 3},
        {"{\"train_batch_size\": 6, \"train_micro_batch_size_per_gpu\": \"auto\"}", 1, 6, 6, 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        tess_config c;
        CHECK_EQ(load_for(good[i].json, NULL, good[i].ranks, &c), TESS_OK);
        CHECK_EQ(c.train_batch_size, good[i].train);
        CHECK_EQ(c.train_micro_batch_size_per_gpu, good[i].micro);
        CHECK_EQ(c.gradient_accumulation_steps, good[i].steps);
        CHECK_EQ(tess_config_resolve(&c, good[i].ranks), TESS_OK); /* resolved stays resolved */
        tess_config_free(&c);
    }
    REFUSED_FOR(
        "{\"train_batch_size\": 32, \"train_micro_batch_size_per_gpu\": 4, \"gradient_accumulation_steps\": 3}", NULL,
        2,
        "run.json: train_batch_size: 32, but train_micro_batch_size_per_gpu 4 x gradient_accumulation_steps 3 x 2 "
        "data-parallel ranks is 24 (leave out one of the three)");
    REFUSED_FOR(
        "{\"train_batch_size\": 7, \"gradient_accumulation_steps\": 2}", NULL, 1,
        "run.json: train_batch_size: 7 is no multiple of gradient_accumulation_steps 2 x 1 data-parallel ranks (8 "
        "is)");
    REFUSED_FOR(
        "{\"train_batch_size\": 3}", NULL, 2,
        "run.json: train_batch_size: 3 is no multiple of gradient_accumulation_steps 1 x 2 data-parallel ranks (4 "
        "is)");
    REFUSED("{\"steps\": 3}", "run.json: train_batch_size: missing, as are train_micro_batch_size_per_gpu and "
                              "gradient_accumulation_steps (two of the three fix the third)");
    REFUSED("{\"train_batch_size\": 0}", "run.json: train_batch_size: 0, expected a whole number from 1 to 1e+09 "
                                         "(samples of a step over all ranks; auto: what the other two give)");
    tess_config c;
    CHECK_EQ(
        load_for("{\"train_micro_batch_size_per_gpu\": 1e9, \"gradient_accumulation_steps\": 1e9}", NULL, 1000000, &c),
        TESS_INVALID);
    CHECK_HAS(tess_error_text(), "is beyond ");
    tess_config_free(&c);
}

#define LR "(learning rate; Adagrad, Adafactor: 1e-2; left out, or \"auto\", it is 5e-5 for a model that has weights)"

TEST(wrong_types_and_ranges)
{
    REFUSED("{\"optimizer\": {\"params\": {\"lr\": \"fast\"}}}",
            "run.json: optimizer.params.lr: \"fast\", expected a number from 0 to 1000 " LR);
    REFUSED("{\"optimizer\": {\"params\": {\"lr\": -0.5}}}",
            "run.json: optimizer.params.lr: -0.5, expected a number from 0 to 1000 " LR);
    REFUSED("{\"optimizer\": {\"params\": {\"betas\": [0.9, 1]}}}",
            "run.json: optimizer.params.betas: [0.9,1], expected a list of two numbers from 0 to below 1 "
            "(decay of the two moments; Lion: in its step, and of its one moment)");
    REFUSED("{\"optimizer\": {\"params\": {\"betas\": 0.9}}}",
            "run.json: optimizer.params.betas: 0.9, expected a list of two numbers from 0 to below 1 "
            "(decay of the two moments; Lion: in its step, and of its one moment)");
    REFUSED("{\"steps\": 1.5}", "run.json: steps: 1.5, expected a whole number from 1 to 1e+12 "
                                "(optimizer steps in all; train needs them, or epochs)");
    REFUSED("{\"bf16\": {\"enabled\": 1}}", "run.json: bf16.enabled: 1, expected true or false "
                                            "(matrices in bf16; masters, sums, norms, softmax and loss stay fp32)");
    REFUSED("{\"data\": {\"train\": [\"a\", 3]}}",
            "run.json: data.train: [\"a\",3], expected a path, a list or an "
            "object of them (Megatron prefix, llm.c .bin, .txt, .jsonl, .json or .csv "
            "to train on; a directory, a pattern or a list of them)");
    REFUSED("{\"optimizer\": {\"type\": \"Lamb\"}}",
            "run.json: optimizer.type: \"Lamb\", expected one of Adam, AdamW, SGD, Lion, Adagrad, Muon, Adafactor "
            "(Adam is AdamW unless params.adam_w_mode is false; optimizers.def says what each has of params)");
    REFUSED_SET("scheduler.type=cosine_with_min_lr", "command line: scheduler.type: \"cosine_with_min_lr\", expected "
                                                     "one of none, WarmupLR, WarmupDecayLR, WarmupCosineLR, "
                                                     "OneCycle, LRRangeTest, cosine, wsd (did you mean cosine?)");
    REFUSED_SET("optimizer.params.lr=nan",
                "command line: optimizer.params.lr: \"nan\", expected a number from 0 to 1000 " LR);
}

TEST(what_this_build_lacks)
{
    tess_config c;
    REFUSED("{\"parallel\": {\"tensor\": 2}}",
            "run.json: parallel: tensor 2 x pipeline 1 ranks for a model, but 1 ranks run (start a multiple of 2)");
    REFUSED_FOR(
        "{\"train_batch_size\": 2, \"parallel\": {\"tensor\": 1}}", NULL, 3,
        "run.json: train_batch_size: 2 is no multiple of gradient_accumulation_steps 1 x 3 data-parallel ranks (3 "
        "is)");
    REFUSED_SET("optimizer.params.bias_correction=false",
                "command line: optimizer.params.bias_correction: false is not supported by this build, "
                "expected true (of the moments in early steps; it is always on)");
    REFUSED_SET("parallel.nccl=false", "command line: parallel.nccl: false is not supported by this build, "
                                       "expected true (parallel.carrier says it: \"mpi\" is what false was)");
    CHECK_EQ(load_for(BATCH, "parallel.carrier=pigeon", 1, &c), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "command line: parallel.carrier: \"pigeon\", expected one of starpu_mpi, mpi, nccl");
    tess_config_free(&c);
    CHECK_EQ(load_for(BATCH, "optimizer_states=int8", 1, &c), TESS_OK); /* 8bit has two names */
    CHECK_EQ(c.optimizer_states, TESS_STATES_8BIT);
    tess_config_free(&c);
    CHECK_EQ(load_for(BATCH, "bf16.bf16_optimizer_states=true", 1, &c), TESS_INVALID);
    tess_config_free(&c);
    CHECK_EQ(load_for("{\"train_batch_size\": 2, \"fp16\": {\"enabled\": false}, \"parallel\": {\"tensor\": 1},"
                      "\"memory\": {\"disk\": 0}, \"zero_optimization\": {\"stage\": 1}}",
                      NULL, 1, &c),
             TESS_OK);
    tess_config_free(&c);
}

/* A choice that is left open is as wide as one that is made: what lies behind it stays. */
TEST(a_choice_that_is_left_open_leaves_its_neighbour)
{
    tess_config c;
    const char *text = "{\"train_batch_size\": 2, \"convolutions\": \"own\", \"attention\": \"auto\"}";
    CHECK_EQ(load_for(text, NULL, 1, &c), TESS_OK);
    CHECK_EQ(c.attention, TESS_CONFIG_AUTO);
    CHECK_EQ(c.convolutions, 0);
    tess_config_free(&c);
}

TEST(what_is_evaluated_on_may_be_a_share)
{
    static const struct {
        const char *json, *set, *text;
        double held;
    } cases[] = {{BATCH, "data.valid=0.05", "0.05", 0.05},
                 {"{\"train_batch_size\": 8, \"data\": {\"valid\": 0.1}}", "seed=1", "0.1", 0.1},
                 {"{\"train_batch_size\": 8, \"data\": {\"valid\": 0.1}}", "data.valid=v.txt", "\"v.txt\"", 0},
                 {"{\"train_batch_size\": 8, \"data\": {\"valid\": 0.1}}", "data.valid=./0.1", "\"./0.1\"", 0},
                 {"{\"train_batch_size\": 8, \"data\": {\"valid\": 0.1}}", "data.valid=null", "null", 0}};
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        tess_config c;
        const char *key = "";
        char *value = NULL;
        CHECK_EQ(load_for(cases[k].json, cases[k].set, 1, &c), TESS_OK);
        CHECK(tess_config_held_out(&c) == cases[k].held);
        for (size_t i = 0; strcmp(key, "data.valid"); i++) {
            free(value);
            CHECK(tess_config_entry(&c, i, &key, &value));
        }
        CHECK_NEAR(strtod(value, NULL), cases[k].held, 1e-12);
        CHECK(cases[k].held > 0 || !strcmp(value, cases[k].text));
        free(value);
        tess_config_free(&c);
    }
}

/* Each combination of numbers, "auto" and nothing. */
TEST(automatic_batch_sizes)
{
    static const struct {
        const char *json;
        int train, micro, steps;
    } good[] = {
        {"{\"train_batch_size\": \"auto\"}", 16, 8, 1},
        {"{\"train_micro_batch_size_per_gpu\": \"auto\"}", 16, 8, 1},
        {"{\"gradient_accumulation_steps\": 3, \"train_micro_batch_size_per_gpu\": \"auto\"}", 48, 8, 3},
        {"{\"gradient_accumulation_steps\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\"}", 16, 8, 1},
        {"{\"gradient_accumulation_steps\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"train_batch_size\": \"auto\"}",
         16, 8, 1},
        {"{\"gradient_accumulation_steps\": 2, \"train_micro_batch_size_per_gpu\": 4, "
         "\"train_batch_size\": \"auto\"}",
         16, 4, 2},
        {"{\"gradient_accumulation_steps\": 2, \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"train_batch_size\": 12}",
         12, 3, 2},
        {"{\"gradient_accumulation_steps\": \"auto\", \"train_micro_batch_size_per_gpu\": 3, "
         "\"train_batch_size\": 12}",
         12, 3, 2},
        {"{\"gradient_accumulation_steps\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\", "
         "\"train_batch_size\": 12}",
         12, 6, 1},
    };
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        tess_config c;
        CHECK_EQ(load_for(good[i].json, NULL, 2, &c), TESS_OK);
        CHECK_EQ(c.train_batch_size, good[i].train);
        CHECK_EQ(c.train_micro_batch_size_per_gpu, good[i].micro);
        CHECK_EQ(c.gradient_accumulation_steps, good[i].steps);
        tess_config_free(&c);
    }
    REFUSED("{\"gradient_accumulation_steps\": \"auto\"}",
            "run.json: train_batch_size: missing, as are train_micro_batch_size_per_gpu and "
            "gradient_accumulation_steps (two of the three fix the third)");
}

TEST(syntax_errors_say_where)
{
    REFUSED("{\"steps\": 1,\n \"seed\": }", "run.json:2:10: unexpected token near '}' (the file must be JSON)");
    REFUSED("", "run.json:1:0: '[' or '{' expected near end of file (the file must be JSON)");
    REFUSED("[1]", "run.json: a JSON list, expected an object");
    tess_config c;
    CHECK_EQ(load_for("{\"steps\": 1,\n\n \"steps\": 2}", NULL, 1, &c), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "run.json:3:");
    CHECK_HAS(tess_error_text(), "duplicate object key");
    tess_config_free(&c);
    mkdir("a-directory", 0700);
    CHECK_EQ(tess_config_load("a-directory", NULL, 0, &c), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "a-directory: cannot be read: Is a directory");
    tess_config_free(&c);
    CHECK_EQ(tess_config_load("none.json", NULL, 0, &c), TESS_INVALID);
    CHECK_STR(tess_error_text(), "none.json: cannot be read: No such file or directory, expected a configuration file");
    tess_config_free(&c);
}

TEST(what_follows_and_what_contradicts)
{
    tess_config c;
    CHECK_EQ(load_for("{\"train_batch_size\": 2, \"steps_per_print\": 7,"
                      "\"activation_checkpointing\": {\"cpu_checkpointing\": true}}",
                      "optimizer.params.adam_w_mode=false", 1, &c),
             TESS_OK);
    CHECK_EQ(c.log_every, 7);
    CHECK_EQ(c.activation_checkpointing.offload, TESS_OFFLOAD_CPU);
    CHECK(c.optimizer.params.adam_w_mode); /* type AdamW is AdamW */
    tess_config_free(&c);
    REFUSED_SET("scheduler.type=WarmupDecayLR",
                "run.json: scheduler.params.total_num_steps: missing, and steps with it "
                "(it is where the decay ends)");
    REFUSED_SET("scheduler.type=OneCycle", "run.json: scheduler.params.cycle_min_lr: missing, expected a value "
                                           "(OneCycle: lowest rate)");
    REFUSED_SET("checkpoint.resume=true",
                "run.json: checkpoint.dir: missing, expected a directory (checkpoint.resume needs it)");
    REFUSED_SET("eval_every=5", "run.json: data.valid: missing, expected a path (eval_every needs it)");
    static const char valid[] = "{\"train_batch_size\": 8, \"data\": {\"valid\": [\"a.txt\", \"b.txt\"]}}";
    REFUSED_FOR(
        valid, "early_stop.patience=2", 1,
        "run.json: eval_every: 0, expected how many steps lie between evaluations (early_stop.patience needs it)");
    REFUSED_SET("early_stop.patience=2",
                "run.json: data.valid: missing, expected a path (early_stop.patience needs it)");
    REFUSED_SET("early_stop.min_delta=2", "run.json: early_stop.patience: missing, expected a number of evaluations "
                                          "(early_stop.min_delta needs it)");
    REFUSED_FOR(valid, "checkpoint.keep_best=true", 1,
                "run.json: checkpoint.dir: missing, expected a directory (checkpoint.keep_best needs it)");
    CHECK_EQ(load_for(valid, "data.train=[\"x y.txt\", \"z\"]", 1, &c), TESS_OK);
    CHECK_STR(c.data.valid, "[\"a.txt\",\"b.txt\"]");
    CHECK_STR(c.data.train, "[\"x y.txt\",\"z\"]");
    tess_config_free(&c);
    /* Where the decay ends by epochs the data will say. */
    CHECK_EQ(load_for("{\"train_batch_size\": 8, \"epochs\": 2}", "scheduler.type=WarmupDecayLR", 1, &c), TESS_OK);
    CHECK(c.epochs == 2 && c.scheduler.params.total_num_steps == TESS_CONFIG_AUTO);
    tess_config_free(&c);
    CHECK_EQ(load_for(BATCH, NULL, 1, &c), TESS_OK);
    CHECK_EQ(tess_config_require(&c, "model"), TESS_INVALID);
    CHECK_STR(tess_error_text(), "run.json: model: missing, expected a value "
                                 "(a Hugging Face directory, or an object with config.json's own keys)");
    CHECK_EQ(tess_config_require(&c, "steps"), TESS_INVALID);
    CHECK_EQ(tess_config_require(&c, "train_batch_size"), TESS_OK);
    tess_config_free(&c);
}

TEST(what_is_written_loads_to_the_same)
{
    const char *set[] = {"optimizer.params.lr=0.1",
                         "optimizer.params.eps=0.1234567890123456789",
                         "memory.cpu=3GiB",
                         "model={\"n_layer\": 2, \"eps\": 1e-5}",
                         "scheduler.type=WarmupLR",
                         "data.train=/x \"y\"",
                         "optimizer.params.betas=[0.1,0.7]"};
    static const char odd[] = "{\"train_batch_size\": 8, \"data\": {\"valid\": \"1.5\", \"train\": \"0.5\"}}";
    tess_config a, b;
    CHECK_EQ(load_bytes(odd, strlen(odd), NULL, 0, &a), TESS_OK); /* names of files, if odd ones */
    CHECK_EQ(tess_config_write(&a, "out.json"), TESS_OK);
    CHECK_EQ(tess_config_load("out.json", NULL, 0, &b), TESS_OK);
    CHECK_STR(b.data.valid, "1.5");
    CHECK_STR(b.data.train, "0.5");
    tess_config_free(&a);
    tess_config_free(&b);
    CHECK_EQ(load_bytes(BATCH, strlen(BATCH), set, 7, &a), TESS_OK);
    CHECK_EQ(tess_config_resolve(&a, 1), TESS_OK);
    CHECK_EQ(tess_config_write(&a, "out.json"), TESS_OK);
    CHECK_EQ(tess_config_load("out.json", NULL, 0, &b), TESS_OK);
    CHECK_STR(tess_error_text(), "");
    CHECK_EQ(tess_config_resolve(&b, 1), TESS_OK);
    CHECK(a.optimizer.params.lr == b.optimizer.params.lr && a.optimizer.params.eps == b.optimizer.params.eps);
    CHECK(b.optimizer.params.betas[0] == 0.1 && b.scheduler.params.warmup_max_lr == 0.1);
    CHECK_EQ(b.memory.cpu, INT64_C(3) << 30);
    CHECK_EQ(b.memory.gpu, TESS_CONFIG_AUTO);
    CHECK_EQ(b.steps, TESS_CONFIG_AUTO);
    CHECK_EQ(b.gradient_accumulation_steps, 1);
    CHECK_STR(b.data.train, "/x \"y\"");
    CHECK_STR(b.output, "runs/run"); /* not runs/out: the output was in force */
    CHECK_STR(b.model_json, a.model_json);
    tess_config_free(&b);
    CHECK_EQ(tess_config_write(&a, "run.json/out.json"), TESS_INVALID);
    CHECK_STR(tess_error_text(), "run.json/out.json: cannot be written: Not a directory");
    CHECK_EQ(tess_config_write(&a, "a-directory"), TESS_FAILED);
    CHECK(access("a-directory.new", F_OK) != 0);
    CHECK(tess_errno_status(ENOSPC) == TESS_FAILED && tess_errno_status(EIO) == TESS_FAILED);
    CHECK(tess_errno_status(ENOENT) == TESS_INVALID && tess_errno_status(EACCES) == TESS_INVALID);
    tess_config_free(&a);
}

/* Every key is in --help once, with a default that its own row takes, and no two share an environment variable. */
TEST(a_program_opens_one_by_call)
{
    const char *const set[] = {"steps=3", "train_batch_size=4"};
    tess_config *c;
    for (int64_t ranks = -1; ranks < 2; ranks++) {
        const tess_status status = tess_config_open(NULL, set, 2, ranks, &c);
        CHECK_EQ(status, ranks < 1 ? TESS_INVALID : TESS_OK);
        CHECK((c != NULL) == (ranks == 1));
        if (ranks < 1) CHECK_HAS(tess_error_text(), "ranks: ");
        if (c) CHECK_EQ(c->steps, 3);
    }
    tess_config_close(c);
    CHECK_EQ(tess_config_open(NULL, NULL, 1, 1, &c), TESS_INVALID);
    CHECK_EQ(tess_config_open(NULL, (const char *const[]){NULL}, 1, 1, &c), TESS_INVALID);
    CHECK_EQ(tess_config_open(NULL, set, 2, 1, NULL), TESS_INVALID);
}

TEST(the_table_is_whole)
{
    char *text, line[128];
    size_t size, keys = 0;
    static const tess_config_use use = {"all", NULL};
    FILE *f = open_memstream(&text, &size);
    CHECK_EQ(tess_config_help(&use, "all", f), TESS_OK);
    fclose(f);
    static char seen[512][128];
    for (char *p = text; (p = strstr(p, "\n  ")) && keys < 512; p += 3) {
        size_t n = strcspn(p + 3, " ");
        snprintf(line, sizeof line, "%.*s", (int)n, p + 3);
        CHECK(n > 0 && n < 64);
        for (char *q = line; *q; q++)
            if (*q == '.') *q = '_';
        for (size_t i = 0; i < keys; i++) CHECK(strcmp(seen[i], line));
        snprintf(seen[keys++], sizeof seen[0], "%s", line);
    }
    CHECK(keys > 200);
    CHECK_HAS(text, "  optimizer.params.lr");
    free(text);
}

/* Truncated or altered at every byte, a configuration is taken or refused; nothing else happens. */
TEST(broken_files_are_refused)
{
    static const char json[] =
        "{\"model\": {\"n_layer\": 2, \"r\": [1, {\"\\u00e9\": 1e-5}]}, \"train_batch_size\": 4,\n"
        "\"data\": {\"train\": \"a.txt\"}, \"optimizer\": {\"type\": \"AdamW\", \"params\":\n"
        "{\"lr\": 6e-4, \"betas\": [0.9, 0.95]}}, \"memory\": {\"cpu\": \"4GiB\"}, \"steps\": 10}\n";
    static const char odd[] = {0, '"', '{', '}', '[', ',', ':', '\\', '-', '9', '.', 'e', (char)0xff, '\n'};
    size_t size = sizeof json - 1;
    for (size_t n = 0; n <= size; n++) {
        tess_config c;
        tess_status status = load_bytes(json, n, NULL, 0, &c);
        CHECK_EQ(status, n + 1 >= size ? TESS_OK : TESS_INVALID); /* the last byte is a newline */
        CHECK(status == TESS_OK || !strncmp(tess_error_text(), "run.json", 8));
        tess_config_free(&c);
        for (size_t k = 0; n < size && k < sizeof odd; k++) {
            char changed[sizeof json];
            memcpy(changed, json, sizeof json);
            changed[n] = odd[k];
            status = load_bytes(changed, size, NULL, 0, &c);
            if (status == TESS_OK) status = tess_config_resolve(&c, 1);
            CHECK(status == TESS_OK || (status == TESS_INVALID && !strncmp(tess_error_text(), "run.json", 8)));
            tess_config_free(&c);
        }
    }
}
