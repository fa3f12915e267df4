/* Files of DeepSpeed and of transformers' Trainer, as their documentation shows them, with a model and data added: they
 * run, and a few lines say what became of them. deepspeed/ has the files. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

#define DATA "data.train=text.txt", "data.seq_length=16", "steps=2", "output=out", "overwrite=true"

static int count_of(const char *what)
{
    int n = 0;
    for (const char *p = ran.err; (p = strstr(p, what)); p++) n++;
    return n;
}

/* Two steps of the file `name`, of the tiny model or the one in `dir`. */
static void train(const char *name, const char *model)
{
    const char *path = fmt(TESS_DEEPSPEED "/%s.json", name);
    if (!strcmp(name, "zero3_nvme")) /* which is made, as DeepSpeed does */
        RUN("train", path, model, DATA, "zero_optimization.offload_param.nvme_path=swap/new",
            "zero_optimization.offload_optimizer.nvme_path=swap/new");
    else
        RUN("train", path, model, DATA);
}

static double rate(size_t step)
{
    json_t *all = read_metrics("out/metrics.jsonl");
    double lr = number_of(all, step, "lr");
    json_decref(all);
    return lr;
}

TEST(they_run_as_they_are)
{
    static const struct {
        const char *name;
        const char *says[5];
    } files[] = {
        {"zero2_auto",
         {"auto: train_batch_size 8, train_micro_batch_size_per_gpu 8, gradient_accumulation_steps 1, "
          "optimizer.params.lr 0.001, optimizer.params.betas [0.9,0.999], optimizer.params.eps 1e-8, "
          "optimizer.params.weight_decay 0.0, scheduler.params.warmup_min_lr 0.0, "
          "scheduler.params.warmup_max_lr 0.001, scheduler.params.warmup_num_steps 1000, gradient_clipping 1.0, "
          "bf16.enabled false, fp16.enabled false\n",
          "zero_optimization.allgather_bucket_size", "zero_optimization.reduce_bucket_size"}},
        {"zero3_auto",
         {"scheduler.params.total_num_steps 2", "zero_optimization.stage3_prefetch_bucket_size 50000000",
          "zero_optimization.stage3_gather_16bit_weights_on_model_save"}},
        {"zero3_nvme",
         {"read aio.thread_count as aio.intra_op_parallelism\n", "aio.intra_op_parallelism",
          "nvme_path: swap/new was not there and is made; "}},
        {"bf16_cosine", {"read bfloat16 as bf16\n", "gradient_predivide_factor"}},
        {"fp16_old_offload", {NULL}},
        {"one_cycle", {"optimizer.params.fused"}},
        {"activation_checkpointing",
         {"activation_checkpointing.enabled: false", "flops_profiler.enabled", "comms_logger", "pipeline"}},
        {"monitors", {"accepted without effect: timers, compile"}},
        {"misplaced",
         {"zero_optimization.aio as aio", "torch_autocast.enabled: runs in bf16", "zero_optimization.leaf_module",
          "auto: train_batch_size 2, gradient_accumulation_steps 1, amp.enabled false\n"}},
        {"sgd", {"zero_allow_untested_optimizer"}},
        {"lion_offload", {"zero_optimization.offload_optimizer.pin_memory", "optimizer.params.fp32_optimizer_states"}},
        {"adagrad_offload", {"auto: optimizer.params.lr 0.01\n", "zero_force_ds_cpu_optimizer"}},
        {"muon",
         {"optimizer: Muon has ", "optimizer.params.ns_method",
          "zero_optimization.save_muon_momentum_buffer_in_memory"}},
        {"range_test", {"auto: train_micro_batch_size_per_gpu 4, fp16.enabled false\n", "vocabulary_size"}},
    };
    tiny_setup();
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        train(files[i].name, "model=" TINY_MODEL);
        EXPECT_DONE();
        for (size_t k = 0; k < 5 && files[i].says[k]; k++) CHECK_HAS(ran.err, files[i].says[k]);
        CHECK(count_of("accepted without effect: ") <= 1 && count_of(": auto: ") <= 1 && count_of(": read ") <= 1);
        CHECK(count_of("\n") <= 4 + count_of("instead: ") && count_of("tessera: ") == count_of("\n"));
        json_t *all = read_metrics("out/metrics.jsonl");
        CHECK_EQ(json_array_size(all), 2);
        CHECK_NEAR(number_of(all, 1, "loss"), log(256), 0.5);
        json_decref(all);
    }
}

/* As the file has it: a drive that is not mounted is not the root's. */
TEST(a_drive_that_is_not_mounted)
{
    tiny_setup();
    FAILS(2, ("train", TESS_DEEPSPEED "/zero3_nvme.json", "model=" TINY_MODEL, DATA), "/local_nvme",
          "cannot hold the disk tier: No such file or directory");
    CHECK(!exists("/local_nvme"));
}

/* What is switched off has no effect in DeepSpeed either, and is no news. */
TEST(what_is_off_is_not_listed)
{
    tiny_setup();
    train("monitors", "model=" TINY_MODEL);
    EXPECT_DONE();
    CHECK(!strstr(ran.err, "wandb") && !strstr(ran.err, "elasticity") && !strstr(ran.err, "autotuning"));
    CHECK_EQ(count_lines("logs/tile/Train_Samples_train_loss.csv"), 3);
    train("one_cycle", "model=" TINY_MODEL);
    CHECK(!strstr(ran.err, "fp16.loss_scale"));
    DONE("train", "run.json", "wandb.enabled=true");
    CHECK_STR(ran.err, "tessera: run.json: wandb: accepted without effect (nothing is sent there; instead: "
                       "tensorboard.enabled=true, and OUTPUT/metrics.jsonl has every step)\n");
}

/* As transformers' Trainer, which goes on from weights: 5e-5, and no warmup. Drawn weights keep the defaults. */
TEST(an_auto_rate_keeps_weights)
{
    tiny_setup_trained();
    CHECK_EQ(rename("out", "base"), 0);
    train("zero2_auto", "model=base/model");
    EXPECT_DONE();
    CHECK_HAS(ran.err, "optimizer.params.lr 5e-5 (the model has weights)");
    CHECK_HAS(ran.err, "scheduler.params.warmup_max_lr 5e-5, scheduler.params.warmup_num_steps 0");
    CHECK(rate(0) == 5e-5 && rate(1) == 5e-5);
    DONE("train", "run.json", "model=base/model", "optimizer.params.lr=auto", "output=out");
    CHECK(rate(0) == 5e-5);
    DONE("train", "run.json", "model=base/model", "output=out"); /* nor where it is left out */
    CHECK_HAS(ran.err, "optimizer.params.lr: 5e-05, since the model has weights");
    CHECK(rate(0) == 5e-5);
    DONE("train", "run.json", "output=out");
    CHECK(rate(0) == 1e-3 && !strstr(ran.err, "optimizer.params.lr"));
    DONE("train", "run.json", "optimizer.params.lr=auto", "output=out");
    CHECK_HAS(ran.err, "auto: optimizer.params.lr 0.001\n");
    CHECK(rate(0) == 1e-3);
}

/* amp and torch_autocast train what bf16 trains; fp16 is itself. */
TEST(half_precision_is_bf16)
{
    static const char *const halves[] = {"bf16.enabled=true", "amp.enabled=true", "torch_autocast.enabled=true"};
    tiny_setup();
    for (size_t i = 0; i < 3; i++) {
        DONE("train", "run.json", halves[i], "output=out");
        CHECK(!i == !strstr(ran.err, "runs in bf16"));
        if (!i) CHECK_EQ(rename(TINY_WEIGHTS, "bf16"), 0);
        CHECK(!i || same_file("bf16", TINY_WEIGHTS));
    }
    RUN("train", "run.json", "amp.enabled=true", "amp.opt_level=O0", "output=out");
    CHECK(!same_file("bf16", TINY_WEIGHTS));
    DONE("train", "run.json", "fp16.enabled=true", "output=out");
    CHECK_STR(ran.err, "");
    CHECK(!same_file("bf16", TINY_WEIGHTS));
    FAILS(2, ("train", "run.json", "fp16.enabled=true", "amp.enabled=true"),
          "fp16.enabled: true, and so is amp.enabled", "switch one of the two off");
    FAILS(2, ("train", "run.json", "fp16.enabled=true", "bf16.enabled=true"),
          "fp16.enabled: true, and so is bf16.enabled", "switch one of the two off");
}

/* ---- --help ---- */

TEST(help_lists_what_a_command_uses)
{
    fresh();
    DONE("train", "--help");
    CHECK_HAS(ran.out,
              "\n  data                      what to train and evaluate on: train, valid, seq_length, shuffle");
    CHECK_HAS(ran.out, "\n  optimizer ");
    CHECK_HAS(ran.out, "Required: model, data.train\n");
    CHECK(!strstr(ran.out, "flops_profiler")); /* a group of keys without effect */
    DONE("eval", "--help");
    CHECK_HAS(ran.out, "\n  data                      what to train and evaluate on: train, valid, seq_length");
    CHECK(!strstr(ran.out, "\n  optimizer ") && !strstr(ran.out, "\n  checkpoint "));
    RUN("estimate", "--help");
    CHECK_HAS(ran.out, "--ranks");
    CHECK_HAS(ran.out, "\n  memory ");
    RUN("estimate", "--help", "run");
    CHECK_HAS(ran.out, "optimizer_states"); /* moments of fewer bytes: they count */
    RUN("bench", "--help");
    CHECK_HAS(ran.out, "\n  memory ");
    RUN("generate", "--help");
    CHECK_HAS(ran.out, "\n  memory ");
    CHECK(!strstr(ran.out, "\n  data ") && !strstr(ran.out, "\n  optimizer "));
}

TEST(help_of_a_group)
{
    fresh();
    DONE("train", "--help", "data");
    CHECK_HAS(ran.out, "\n  data.train                                       required      ");
    CHECK_HAS(ran.out, "\n  data.seq_length                                  1024          tokens of a sample; a whole "
                       "number from 1 to 1e+09\n");
    CHECK(!strstr(ran.out, "optimizer.") && !strstr(ran.out, "usage:"));
    DONE("eval", "--help", "data");
    CHECK_HAS(ran.out,
              "\n  data.train                                       -             "); /* valid may be its share */
    CHECK_HAS(ran.out, "\n  data.valid                                       required      ");
    CHECK(!strstr(ran.out, "data.shuffle"));
    RUN("train", "--help", "run");
    CHECK_HAS(ran.out, "\n  steps                                            auto          ");
    CHECK_HAS(ran.out, "\n  train_batch_size                                 auto          ");
    RUN("train", "--help", "scheduler");
    CHECK_HAS(ran.out, "\n  scheduler.params.cycle_min_lr                    required      OneCycle");
    CHECK_HAS(ran.out, "\n  scheduler.params.total_num_steps                 auto          ");
    DONE("train", "--help", "aio.use_gds");
    CHECK_HAS(ran.out, "Accepted without effect");
    RUN("train", "--help", "all");
    CHECK_HAS(ran.out, "\n  optimizer.params.lr ");
    CHECK_HAS(ran.out, "\n  flops_profiler.enabled ");
    DONE("train", "--help", "zero_optimization.stage3_gather_fp16_weights_on_model_save"); /* and by an older name */
    CHECK_HAS(ran.out, "zero_optimization.stage3_gather_fp16_weights_on_model_save is "
                       "zero_optimization.stage3_gather_16bit_weights_on_model_save here.\n");
    CHECK_HAS(ran.out, "\n  zero_optimization.stage3_gather_16bit_weights_on_model_save ");
    DONE("eval", "--help", "bfloat16");
    CHECK_HAS(ran.out, "bfloat16 is bf16 here.\n");
    CHECK_HAS(ran.out, "\n  bf16.enabled ");
    FAILS(2, ("train", "--help", "learning_rate"), "command line: --help learning_rate: no such",
          "did you mean optimizer.params.lr?");
    FAILS(2, ("train", "--help", "optimizer.params.lrr"), "no such group of keys, nor a key",
          "did you mean optimizer.params.lr?");
    FAILS(2, ("train", "--help", "datta"), "command line: --help datta: no such group of keys", "did you mean data?");
    FAILS(2, ("eval", "--help", "scheduler"), "command line: --help scheduler: this command does not use it");
}

static const char axolotl[] = "base_model: base/model\n"
                              "datasets:\n"
                              "  - path: pairs.csv\n"
                              "adapter: lora\n"
                              "lora_r: 2\n"
                              "lora_alpha: 4\n"
                              "lora_target_linear: true\n"
                              "sequence_len: 16\n"
                              "micro_batch_size: 2\n"
                              "gradient_accumulation_steps: 2\n"
                              "num_epochs: 2\n"
                              "val_set_size: 0.2\n"
                              "evals_per_epoch: 1\n"
                              "saves_per_epoch: 1\n"
                              "learning_rate: 1e-3\n"
                              "warmup_ratio: 0.25\n"
                              "bf16: false\n"
                              "deepspeed: zero2.json\n"
                              "output_dir: out\n";

/* As their tools run them: the rate, the steps, what is evaluated and kept. */
TEST(files_of_other_trainers_run)
{
    tiny_setup_trained();
    CHECK_EQ(rename("out", "base"), 0);
    FILE *f = fopen("pairs.csv", "w");
    fprintf(f, "prompt,completion\n");
    for (int i = 0; i < 20; i++) fprintf(f, "\"%d,\",\"tile\nmoves\"\n", i);
    fclose(f);
    write_text("zero2.json", "{\"zero_optimization\": {\"stage\": 2}, \"gradient_clipping\": \"auto\"}");
    write_text("run.yml", axolotl);
    DONE("train", "run.yml");
    CHECK_HAS(ran.err, "run.yml: lora_target_linear true: lora.targets \"all-linear\"\n");
    CHECK_HAS(ran.out, "16 samples of up to 16 tokens");
    json_t *all = read_metrics("out/metrics.jsonl"); /* 16 of 20 samples, 4 a step, twice */
    CHECK_EQ(json_array_size(all), 8);
    CHECK(number_of(all, 0, "lr") == 0);
    CHECK_NEAR(number_of(all, 1, "lr"), 5e-4, 1e-12);
    CHECK_NEAR(number_of(all, 5, "lr"), 5e-4, 1e-12); /* the middle of the cosine */
    json_decref(all);
    CHECK(exists("out/model/adapter_model.safetensors") && exists("out/checkpoints/step-00000004"));
    DONE("estimate", "run.yml");
    FAILS(2, ("train", "run.yml", "deepspeed=3"), "command line: deepspeed: unknown key");
    write_text("trl.yaml", "model_name_or_path: base/model\n"
                           "dataset_name: pairs.csv\n"
                           "max_length: 16\n"
                           "per_device_train_batch_size: 4\n"
                           "max_steps: 4\n"
                           "bf16: false\n"
                           "save_strategy: 'no'\n"
                           "output_dir: trl\n");
    DONE("train", "trl.yaml");
    all = read_metrics("trl/metrics.jsonl");
    CHECK_EQ(json_array_size(all), 4);
    CHECK_NEAR(number_of(all, 0, "lr"), 2e-5, 1e-12);
    CHECK_NEAR(number_of(all, 3, "lr"), 5e-6, 1e-12); /* linear, to 0 behind the last step */
    json_decref(all);
    CHECK(!exists("trl/checkpoints"));
}
