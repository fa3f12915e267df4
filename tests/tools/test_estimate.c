/* tessera estimate: what a run will hold and take, before it runs. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

TEST(estimate_needs_no_weights_and_runs_nothing)
{
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/config.json", TINY_MODEL);
    DONE("estimate", "run.json", "model=base", "weights=drawn");
    CHECK_HAS(ran.out, "parameters, 64 tokens a step");
    CHECK_HAS(ran.out, "moments");
    CHECK_HAS(ran.out, "activations");
    CHECK_HAS(ran.out, "tokens/s");
    CHECK(!exists("out"));
    DONE("estimate", "run.json", "train_batch_size=64", "memory.cpu=5MiB");
    CHECK_HAS(ran.out, "does not fit: memory.cpu: the run needs");
    char *said = strdup(ran.out), *times = strstr(said, "time of a step"); /* which other work on the machine moves */
    FAILS(1, ("estimate", "run.json", "train_batch_size=64", "memory.cpu=5MiB", "--fits"),
          "memory.cpu: the run needs"); /* for scripts: what is printed is printed all the same */
    CHECK(times && !strncmp(ran.out, said, (size_t)(times - said)));
    DONE("estimate", "run.json", "train_batch_size=64", "--fits");
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
    DONE("estimate", "run.json", "model=base", "weights=drawn", "bf16.enabled=true", "data.seq_length=1024",
         "train_batch_size=1");
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
/* But for names of Python files. */
static const char deepseek_v3[] =
    "{\"architectures\": [\"DeepseekV3ForCausalLM\"], \"attention_bias\": false, \"attention_dropout\": 0.0, "
    "\"aux_loss_alpha\": 0.001, \"bos_token_id\": 0, \"eos_token_id\": 1, \"ep_size\": 1, "
    "\"first_k_dense_replace\": 3, \"hidden_act\": \"silu\", \"hidden_size\": 7168, \"initializer_range\": "
    "0.02, \"intermediate_size\": 18432, \"kv_lora_rank\": 512, \"max_position_embeddings\": 163840, "
    "\"model_type\": \"deepseek_v3\", \"moe_intermediate_size\": 2048, \"moe_layer_freq\": 1, \"n_group\": 8, "
    "\"n_routed_experts\": 256, \"n_shared_experts\": 1, \"norm_topk_prob\": true, \"num_attention_heads\": "
    "128, \"num_experts_per_tok\": 8, \"num_hidden_layers\": 61, \"num_key_value_heads\": 128, "
    "\"num_nextn_predict_layers\": 1, \"pretraining_tp\": 1, \"q_lora_rank\": 1536, \"qk_nope_head_dim\": "
    "128, \"qk_rope_head_dim\": 64, \"rms_norm_eps\": 1e-06, \"rope_scaling\": {\"beta_fast\": 32, "
    "\"beta_slow\": 1, \"factor\": 40, \"mscale\": 1.0, \"mscale_all_dim\": 1.0, "
    "\"original_max_position_embeddings\": 4096, \"type\": \"yarn\"}, \"rope_theta\": 10000, "
    "\"routed_scaling_factor\": 2.5, \"scoring_func\": \"sigmoid\", \"seq_aux\": true, "
    "\"tie_word_embeddings\": false, \"topk_group\": 4, \"topk_method\": \"noaux_tc\", \"torch_dtype\": "
    "\"bfloat16\", \"transformers_version\": \"4.33.1\", \"use_cache\": true, \"v_head_dim\": 128, "
    "\"vocab_size\": 129280, \"quantization_config\": {\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", "
    "\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128]}}";

TEST(estimates_of_mixtures_of_experts)
{
    tiny_setup();
    mkdir("base", 0777);
    write_text("base/config.json", mixtral_8x7b);
    DONE("estimate", "run.json", "model=base", "weights=drawn", "bf16.enabled=true", "data.seq_length=1024",
         "train_batch_size=1", "memory.cpu=32GiB", "memory.path=.", "memory.disk=2TiB");
    CHECK_HAS(ran.out, "46702792704 parameters, 1024 tokens a step");
    CHECK_HAS(ran.out, "those that none chose are not read");
    write_text("base/config.json", qwen3_235b);
    DONE("estimate", "run.json", "model=base", "weights=drawn", "bf16.enabled=true", "data.seq_length=1024",
         "train_batch_size=1");
    CHECK_HAS(ran.out, "235093634560 parameters, 1024 tokens a step");
    /* transformers counts as many, but the 256 of each of 58 biases that are buffers there. */
    write_text("base/config.json", deepseek_v3);
    DONE("estimate", "run.json", "model=base", "weights=drawn", "bf16.enabled=true", "data.seq_length=1024",
         "train_batch_size=1");
    CHECK_HAS(ran.out, "671026419200 parameters, 671026404352 of them trained, 1024 tokens a step");
}

/* A file from a larger machine. */
TEST(a_cap_above_the_machine)
{
    tiny_setup();
    DONE("estimate", "run.json", "memory.cpu=900TiB", "--fits");
    CHECK_HAS(ran.err, "memory.cpu: 900 TiB is more than this machine has, ");
#define LARGE "model.n_embd=4096", "model.n_head=32", "model.n_layer=48"
    FAILS(1, ("estimate", "run.json", "memory.cpu=900TiB", LARGE, "--fits"),
          "memory.cpu: 900 TiB, of them the run takes ", "but this machine has ", " with memory.path=DIR");
    FAILS(2, ("train", "run.json", "memory.cpu=900TiB", LARGE), "memory.cpu: 900 TiB", "but this machine has ");
#undef LARGE
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
        {path, wide, "memory.cpu=10MiB", "train_micro_batch_size_per_gpu=1", "gradient_clipping=1"},
        {path, away, "zero_optimization.offload_optimizer.buffer_count=2", "memory.disk=1GiB"},
        {"--ranks=4", "zero_optimization.stage=3", bf16},
        {"memory.cpu=1MiB"},
    };
    tiny_setup();
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        DONE("estimate", "run.json", set[i][0], set[i][1], set[i][2], set[i][3], set[i][4]);
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
        const char *output = fmt("output=run%zu", i);
        const char *metrics = fmt("run%zu/metrics.jsonl", i);
        DONE("estimate", "run.json", "model.n_embd=128", "data.valid=null", dtype[i]);
        CHECK(!strstr(ran.out, "evaluations")); /* there will be none */
        const double without = line_of("\n  in all");
        DONE("estimate", "run.json", "model.n_embd=128", "eval_every=2", dtype[i]);
        CHECK_NEAR(line_of("\n  in all") - without, line_of("tokens and scratch of evaluations"), 0.02 * without);
        const double all = line_of("\n  in all");
        DONE("train", "run.json", "model.n_embd=128", "eval_every=2", dtype[i], output);
        json_t *steps = read_metrics(metrics);
        const double peak =
            json_number_value(json_object_get(json_object_get(json_array_get(steps, 3), "cpu"), "peak_bytes"));
        if (!(fabs(peak - all) < 0.1 * all)) CHECK_SAY("%s: %g bytes, the estimate says %g", ran.what, peak, all);
        json_decref(steps);
    }
    unsetenv("STARPU_NCPU");
#define AWAY "memory.path=.", "zero_optimization.offload_optimizer.device=nvme", "eval_every=1"
    DONE("estimate", "run.json", AWAY);
    const long least = lround(line_of("the least that memory.cpu may be") / 0x1p20);
    char cap[2][48];
    for (int i = 0; i < 2; i++) snprintf(cap[i], sizeof cap[i], "memory.cpu=%ldMiB", least - i);
    DONE("train", "run.json", AWAY, cap[0], "output=least");
    json_t *steps = read_metrics("least/metrics.jsonl");
    CHECK(json_number_value(json_object_get(json_object_get(json_array_get(steps, 3), "cpu"), "peak_bytes")) <=
          (double)least * 0x1p20);
    json_decref(steps);
    FAILS(2, ("train", "run.json", AWAY, cap[1], "output=less"), "memory.cpu", "MiB would do");
#undef AWAY
    FAILS(2, ("train", "run.json", "memory.cpu=1MiB", "output=less"), "the run needs",
          "MiB would do"); /* with no disk: what is named works, too */
    snprintf(cap[0], sizeof cap[0], "memory.cpu=%ldMiB", atol(strstr(ran.err, "(memory.cpu=") + 12));
    DONE("train", "run.json", cap[0], "output=named");
}

/* What only does not fit is an estimate, what is wrong is an error, as it is of a run. */
TEST(estimate_refuses_what_a_run_would)
{
    static const char *const path[] = {"text.txt", "text.txt/below", "nowhere", "/proc", ":", ".:nowhere"};
    static const char *const where[] = {"text.txt", "text.txt/below", "nowhere", "/proc", "disk tier", "nowhere"};
    tiny_setup();
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        const char *set = fmt("memory.path=%s", path[i]);
        const char *name = fmt("tessera: error: %s: ", where[i]);
        FAILS(2, ("estimate", "run.json", set), name);
        CHECK_STR(ran.out, "");
        FAILS(2, ("train", "run.json", set), name);
        CHECK(!exists("out"));
    }
    FAILS(2, ("estimate", "run.json", "activation_checkpointing.offload=disk"), "activation_checkpointing.offload",
          "memory.path");
    DONE("estimate", "run.json", "memory.path=.", "memory.cpu=64KiB");
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
        char disk[2][64];
        FAILS(
            1,
            ("estimate", "run.json", every[i], "data.valid=valid.txt", "memory.cpu=1MiB", "memory.disk=1MiB", "--fits"),
            WIDE_LEAST, "MiB with memory.disk=", "MiB would do)");
        const char *cpu = fmt("memory.cpu=%ldMiB", named_in_error(WIDE_LEAST));
        const long least = named_in_error("with memory.disk=");
        for (int k = 0; k < 2; k++) snprintf(disk[k], sizeof disk[k], "memory.disk=%ldMiB", least - k);
        DONE("estimate", "run.json", every[i], "data.valid=valid.txt", cpu, disk[0]);
        CHECK(line_of("the least that memory.disk may be") <= (double)least * 0x1p20 * 1.01);
        DONE("train", "run.json", every[i], "data.valid=valid.txt", cpu, disk[0]);
        FAILS(1, ("estimate", "run.json", every[i], "data.valid=valid.txt", cpu, "memory.disk=1MiB", "--fits"),
              "memory.disk: 1.0 MiB, but the run needs", "(memory.disk=");
        snprintf(disk[0], sizeof disk[0], "memory.disk=%ldMiB", named_in_error("(memory.disk="));
        DONE("train", "run.json", every[i], "data.valid=valid.txt", cpu, disk[0]);
    }
}

/* In fp32 each of two ranks sends half of its gradients, and half of the weights comes back. */
TEST(estimate_of_ranks_that_do_not_run)
{
    tiny_setup();
    DONE("estimate", "run.json");
    double moments = line_of("moments"), bytes = 4 * atof(ran.out);
    CHECK(!strstr(ran.out, "rank"));
    DONE("estimate", "run.json", "zero_optimization.stage=1", "--ranks", "2");
    CHECK_HAS(ran.out, " of 2, which holds the most");
    CHECK_NEAR(line_of("moments"), moments / 2, 0.02 * moments);
    CHECK_NEAR(line_of("sent to other ranks in a step"), bytes, 0.02 * bytes);
    CHECK_HAS(ran.out, "tokens/s");
    CHECK(!strstr(ran.out, "nan"));
    DONE("estimate", "run.json", "zero_optimization.stage=1", "parallel.state_shares=1,5,2", "train_batch_size=6",
         "--ranks", "3");
    CHECK_HAS(ran.out, "rank 1 of 3, which holds the most");
    CHECK_NEAR(line_of("moments"), moments * 5 / 8, 0.03 * moments);
    const char *const wide = "model.vocab_size=8000"; /* nearly all of it the table, which is with the first stage */
    DONE("estimate", "run.json", wide);
    moments = line_of("moments");
    DONE("estimate", "run.json", wide, "parallel.pipeline=2", "parallel.tensor=2", "--ranks=8");
    CHECK_HAS(ran.out, " of 8, which holds the most");
    CHECK_NEAR(line_of("moments"), moments / 2, 0.1 * moments);
    CHECK(!exists("out"));
    FAILS(2, ("estimate", "run.json", "parallel.tensor=2"), "parallel", "1 ranks run");
    FAILS(2, ("estimate", "run.json", "parallel.tensor=2", "--ranks", "3"), "parallel", "3 ranks run");
    FAILS(2, ("estimate", "run.json", "--ranks", "0"), "--ranks");
    FAILS(2, ("estimate", "run.json", "--ranks", "1.5"), "--ranks", "a whole number");
}
