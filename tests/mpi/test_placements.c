/* A model of a family with grouped attention over ranks: the same bits where ranks share the states out, near them
 * where they share out matrices or blocks. */
#define CHECK_MAIN
#include "runtime/runtime.h"
#include "tests/tools/tiny.h"
#include <sys/stat.h>

#define MODEL TESS_FIXTURES "/families/"
static const char weights[] = "/model/model.safetensors";

static void setup(const char *family)
{
    char text[4000];
    fresh();
    snprintf(text, sizeof text,
             "{\"model\": \"" MODEL "%s\",\n \"data\": {\"train\": \"" MODEL "tokens.bin\", \"seq_length\": 21},\n"
             " \"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 1, \"steps\": 3, \"deterministic\": true,\n"
             " \"gradient_clipping\": 1, \"output\": \"out\", \"overwrite\": true}\n",
             family);
    write_text("run.json", text);
    calm_machine();
    DONE("train", "run.json", "output=one");
}

static void check_near(const char *what)
{
    json_t *one = read_metrics("one/metrics.jsonl"), *all = read_metrics("out/metrics.jsonl");
    CHECK_EQ(json_array_size(all), 3);
    for (size_t s = 0; s < 3; s++) {
        const char *const name[] = {"loss", "grad_norm"};
        for (int i = 0; i < 2; i++) {
            const double got = number_of(all, s, name[i]), want = number_of(one, s, name[i]);
            if (!(fabs(got - want) <= 1e-4 * want))
                CHECK_SAY("%s, step %zu: %s %.8g, one rank has %.8g", what, s, name[i], got, want);
        }
    }
    json_decref(one);
    json_decref(all);
}

/* A base in 4 bits, whose blocks no cut and no rank divides. */
TEST(a_base_in_few_bits_has_the_same_bits)
{
    static const char adapter[] = "model/adapter_model.safetensors";
    wide_setup_with("\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 1, \"steps\": 3, \"deterministic\": "
                    "true, \"bf16\": {\"enabled\": true}");
    DONE("train", "run.json", "output=base");
#define NF4 "model=base/model", "lora.r=4", "lora.targets=all-linear", "lora.base=nf4", "overwrite=true"
    DONE("train", "run.json", NF4, "output=one");
    DONE_RANKS(2, "train", "run.json", NF4, "output=out");
    CHECK(same_file(fmt("out/%s", adapter), fmt("one/%s", adapter)));
    DONE_RANKS(2, "train", "run.json", NF4, "output=out", "zero_optimization.stage=3",
               "zero_optimization.stage3_param_persistence_threshold=0", "memory.cpu=32MiB", "memory.path=swap",
               "zero_optimization.offload_param.device=nvme");
    CHECK(same_file(fmt("out/%s", adapter), fmt("one/%s", adapter)));
    DONE("train", "run.json", NF4, "output=one", "bf16.enabled=false");
    DONE_RANKS(2, "train", "run.json", NF4, "output=out", "bf16.enabled=false", "parallel.tensor=2");
    check_near("nf4, tensor");
    DONE_RANKS(2, "train", "run.json", NF4, "output=out", "bf16.enabled=false", "parallel.pipeline=2");
    check_near("nf4, pipeline");
#undef NF4
    /* The codes that bitsandbytes stored, of which each rank reads its slices. */
#define STORED                                                                                                         \
    "model=" TESS_FIXTURES "/families/llama-nf4", "data.train=" TESS_FIXTURES "/families/tokens.bin",                  \
        "data.seq_length=21", "lora.r=4", "lora.targets=all-linear", "lora.base=nf4", "overwrite=true"
    DONE("train", "run.json", STORED, "output=one");
    DONE_RANKS(2, "train", "run.json", STORED, "output=out", "zero_optimization.stage=3", "parallel.state_shares=3,1",
               "zero_optimization.stage3_param_persistence_threshold=0");
    CHECK(same_file(fmt("out/%s", adapter), fmt("one/%s", adapter)));
#undef STORED
}

/* Ranks with other shares of the micro-batches add up the same tree; what is evaluated they have as many of. */
TEST(shares_of_micro_batches_have_the_same_bits)
{
#define SIX "train_batch_size=6", "data.valid=" MODEL "tokens.bin", "eval_every=3"
    setup("llama3");
    DONE("train", "run.json", SIX, "output=one");
    json_t *one = read_metrics("one/metrics.jsonl");
    for (int stage = 0; stage < 4; stage++) {
        const char *set = fmt("zero_optimization.stage=%d", stage),
                   *pipeline = fmt("parallel.pipeline=%d", 1 + (stage < 3));
        DONE_RANKS(2, "train", "run.json", SIX, set, "parallel.shares=2,1");
        CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
        DONE_RANKS(3, "train", "run.json", SIX, set, "parallel.shares=1,3,2");
        CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
        json_t *all = read_metrics("out/metrics.jsonl");
        CHECK(number_of(all, 2, "loss") == number_of(one, 2, "loss"));
        CHECK(number_of(all, 2, "valid_loss") == number_of(one, 2, "valid_loss"));
        json_decref(all);
        DONE_RANKS(2, "train", "run.json", SIX, set, "parallel.shares=1,5", "deterministic=false");
        check_near(set);
        DONE_RANKS(stage < 3 ? 4 : 2, "train", "run.json", SIX, set, "parallel.shares=1,2", pipeline, "memory.cpu=1MiB",
                   "memory.path=.", "activation_checkpointing.enabled=true");
        if (stage < 3)
            check_near("shares, pipeline"); /* whose stages have the table in common */
        else
            CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
    }
    DONE_RANKS(2, "train", "run.json", SIX, "zero_optimization.stage=3", "parallel.shares=1,5",
               "parallel.state_shares=4,1", "zero_optimization.stage3_param_persistence_threshold=0",
               "zero_optimization.stage3_max_reuse_distance=0");
    CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
    DONE_RANKS(2, "train", "run.json", SIX, "train_batch_size=7", "parallel.shares=measured", "output=odd");
    DONE("train", "run.json", SIX, "train_batch_size=7", "output=seven");
    CHECK(same_file("odd/model/model.safetensors", "seven/model/model.safetensors"));
    DONE_RANKS(4, "train", "run.json", SIX, "parallel.shares=1,2", "parallel.tensor=2");
    check_near("shares, tensor");
    DONE("train", "run.json", SIX, "model=" MODEL "mistral", "output=untied");
    DONE_RANKS(4, "train", "run.json", SIX, "model=" MODEL "mistral", "parallel.shares=1,2", "parallel.pipeline=2");
    CHECK(same_file("out/model/model.safetensors", "untied/model/model.safetensors"));
    /* Of states too; what a drive brings, and what goes on from a checkpoint of other parts. */
    for (int stage = 1; stage < 4; stage++) {
        const char *set = fmt("zero_optimization.stage=%d", stage);
        DONE_RANKS(2, "train", "run.json", SIX, set, "parallel.state_shares=5,1", "parallel.shares=null");
        CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
        DONE_RANKS(3, "train", "run.json", SIX, set, "parallel.state_shares=1,30,2", "memory.cpu=1MiB",
                   "memory.path=.");
        CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
    }
    DONE_RANKS(2, "train", "run.json", SIX, "zero_optimization.stage=2", "parallel.state_shares=measured",
               "parallel.shares=2,1", "checkpoint.dir=ck", "steps=2", "memory.cpu=1GiB");
    CHECK_HAS(ran.err, "parallel.state_shares: 50,50 of 100 parts");
    DONE_RANKS(2, "train", "run.json", SIX, "zero_optimization.stage=3", "parallel.state_shares=1,3",
               "checkpoint.dir=ck", "--resume");
    CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
    json_decref(one);
#undef SIX
}

/* A group's ranks share the states of Muon's matrices too, each group by itself; copies leave RAM under a cap. */
TEST(groups_have_the_same_bits)
{
#define ALL "zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0"
    setup("llama3");
    CHECK_EQ(mkdir("swap", 0700), 0);
    DONE_RANKS(4, "train", "run.json", ALL, "zero_optimization.zero_hpz_partition_size=2", "memory.cpu=32MiB",
               "memory.path=swap", "zero_optimization.stage3_max_reuse_distance=0");
    CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
    DONE("train", "run.json", "output=one", "optimizer.type=Muon");
    DONE_RANKS(4, "train", "run.json", ALL, "zero_optimization.mics_shard_size=2", "optimizer.type=Muon");
    CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
#undef ALL
}

/* Codes of weights: one rank, and four with groups under a cap. Codes of gradients: four ranks, with groups. */
TEST(codes_have_the_same_bits)
{
#define ALL       "zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0", "bf16.enabled=true"
#define WEIGHTS   ALL, "zero_optimization.zero_quantized_weights=true"
#define GRADIENTS ALL, "zero_optimization.zero_quantized_gradients=true"
    wide_setup_with("\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 1, \"steps\": 3, \"deterministic\": "
                    "true");
    DONE("train", "run.json", ALL, "output=plain");
    DONE("train", "run.json", WEIGHTS, "output=one");
    CHECK(!same_file(fmt("one%s", weights), fmt("plain%s", weights)));
    DONE_RANKS(4, "train", "run.json", WEIGHTS, "zero_optimization.mics_shard_size=2", "output=out");
    CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
    DONE_RANKS(2, "train", "run.json", WEIGHTS, "memory.cpu=32MiB", "memory.path=swap", "output=out");
    CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
    DONE_RANKS(4, "train", "run.json", GRADIENTS, "output=one");
    CHECK(!same_file(fmt("one%s", weights), fmt("plain%s", weights)));
    DONE_RANKS(4, "train", "run.json", GRADIENTS, "zero_optimization.zero_hpz_partition_size=2", "output=out");
    CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
    DONE_RANKS(4, "train", "run.json", GRADIENTS, "zero_optimization.stage=1", "memory.cpu=32MiB", "memory.path=swap",
               "output=out");
    CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
#undef GRADIENTS
#undef WEIGHTS
#undef ALL
}

/* Scales are those of row tiles, and of tiles of weights: caps, a disk, recomputation, stages and pipelines cut none.
 * Of a family with a router, too, whose choices are those of bf16 numbers. */
TEST(products_of_8_bits_have_the_same_bits)
{
#define FP8 "train", "run.json", "bf16.enabled=true", "fp8.enabled=true", "data.valid=" MODEL "tokens.bin"
    static const char *const families[] = {"mistral", "mixtral"};
    for (int k = 0; k < 2; k++) {
        setup(families[k]);
        CHECK_EQ(mkdir("swap", 0700), 0);
        DONE("train", "run.json", "bf16.enabled=true", "output=plain");
        DONE(FP8, "output=one");
        CHECK_HAS(ran.err, "fp8.enabled: no CPU multiplies 8 bits");
        CHECK(!same_file(fmt("one%s", weights), fmt("plain%s", weights)));
        DONE(FP8, "memory.cpu=24MiB", "memory.path=swap", "zero_optimization.offload_optimizer.device=nvme");
        CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
        DONE(FP8, "activation_checkpointing.enabled=true", "checkpoint.dir=ck", "checkpoint.every=2", "steps=2");
        DONE(FP8, "checkpoint.dir=ck", "--resume");
        CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
        DONE_RANKS(2, FP8, "zero_optimization.stage=3", "zero_optimization.stage3_param_persistence_threshold=0");
        CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
        DONE_RANKS(2, FP8, "parallel.pipeline=2", "parallel.schedule=zb-h1");
        CHECK(same_file(fmt("out%s", weights), fmt("one%s", weights)));
        DONE_RANKS(2, FP8, "parallel.tensor=2"); /* other tiles of w, other scales */
        CHECK(!same_file(fmt("out%s", weights), fmt("one%s", weights)));
    }
#undef FP8
}

TEST(states_shared_out_have_the_same_bits)
{
    char out[64], one[64];
    static const char *const families[] = {"llama3", "gemma2",  "gpt-neox", "mixtral",     "granite", "gemma3",
                                           "olmo2",  "smollm3", "gpt-oss",  "deepseek-v3", "qwen3-5"};
    snprintf(out, sizeof out, "out%s", weights), snprintf(one, sizeof one, "one%s", weights);
    for (int k = 0; k < 11; k++) {
        setup(families[k]);
        DONE_RANKS(2, "train", "run.json", "zero_optimization.stage=3");
        CHECK(same_file(out, one));
        check_near("stage 3");
    }
}

static double valid_loss(const char *run)
{
    json_t *all = read_metrics(fmt("%s/metrics.jsonl", run));
    const double loss = number_of(all, json_array_size(all) - 1, "valid_loss");
    json_decref(all);
    return loss;
}

static double sent_bytes(void)
{
    json_t *all = read_metrics("out/metrics.jsonl");
    const double sent = number_of(all, json_array_size(all) - 1, "sent_bytes");
    json_decref(all);
    return sent;
}

static int64_t tasks_of(const char *codelet)
{
    int64_t n = 0;
    DONE("graph", "run.json", "--export", "graph.json");
    json_t *graph = json_load_file("graph.json", 0, NULL), *task;
    size_t i;
    json_array_foreach(json_object_get(graph, "tasks"), i, task)
    {
        const char *name = json_string_value(json_object_get(task, "codelet"));
        n += name && !strcmp(name, codelet);
    }
    json_decref(graph);
    return n;
}

#define ROWS "parallel.tensor=2", "activation_checkpointing.partition_activations=true"
#define LONG_GPT2                                                                                                      \
    "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 512, \"n_embd\": 32, \"n_layer\": 2, "           \
    "\"n_head\": 4, \"attn_pdrop\": 0.1, \"resid_pdrop\": 0.1}"
#define LONG_LLAMA                                                                                                     \
    "{\"model_type\": \"llama\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 64, "                \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, "                               \
    "\"max_position_embeddings\": 512}"
#define LONG_MIXTRAL                                                                                                   \
    "{\"model_type\": \"mixtral\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 48, "              \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"num_local_experts\": 5, "     \
    "\"output_router_logits\": true, \"router_aux_loss_coef\": 0.5, \"max_position_embeddings\": 512}"
#define LONG_GPT_OSS                                                                                                   \
    "{\"model_type\": \"gpt_oss\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 24, "              \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 8, "              \
    "\"num_local_experts\": 5, \"num_experts_per_tok\": 2, \"sliding_window\": 300, \"initializer_range\": 0.2, "      \
    "\"output_router_logits\": true, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"truncate\": false, " \
    "\"original_max_position_embeddings\": 128}, \"max_position_embeddings\": 512}"
#define LONG_DEEPSEEK                                                                                                  \
    "{\"model_type\": \"deepseek_v3\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 48, "          \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"q_lora_rank\": 12, \"kv_lora_rank\": 10, "                \
    "\"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, \"v_head_dim\": 8, \"n_routed_experts\": 6, \"n_group\": 3, "   \
    "\"topk_group\": 2, \"num_experts_per_tok\": 3, \"moe_intermediate_size\": 20, \"first_k_dense_replace\": 1, "     \
    "\"max_position_embeddings\": 512}"
#define LONG_QWEN                                                                                                      \
    "{\"model_type\": \"qwen3_5_text\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 24, "         \
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 8, "              \
    "\"full_attention_interval\": 2, \"linear_num_key_heads\": 2, \"linear_num_value_heads\": 4, "                     \
    "\"linear_key_head_dim\": 6, \"linear_value_head_dim\": 10, \"max_position_embeddings\": 512}"
static const char *const long_models[] = {LONG_LLAMA, LONG_GPT2, LONG_MIXTRAL, LONG_GPT_OSS, LONG_DEEPSEEK, LONG_QWEN};
enum { LONG_MODELS = sizeof long_models / sizeof *long_models };

/* run.json of a network whose sequences are longer than its row tiles of 128, and what one rank makes of it. */
static void long_setup(const char *model, int length, int micro)
{
    char text[2000];
    fresh();
    snprintf(text, sizeof text,
             "{\"model\": %s,\n \"data\": {\"train\": \"text.txt\", \"valid\": \"text.txt\", \"seq_length\": %d},\n"
             " \"tiles\": {\"rows\": 128}, \"train_batch_size\": %d, \"train_micro_batch_size_per_gpu\": %d,\n"
             " \"steps\": 3, \"eval_every\": 3, \"bf16\": {\"enabled\": %s}, \"deterministic\": true,\n"
             " \"gradient_clipping\": 1, \"output\": \"out\", \"overwrite\": true}\n",
             model, length, 2 * micro, micro, strstr(model, "gpt2") ? "true" : "false");
    write_text("run.json", text);
    write_tiny_text("text.txt", 2 * TINY_TOKENS, 1);
    calm_machine();
    DONE("train", "run.json", "output=one");
}

/* Sequences of three row tiles each, wherever these lie. */
TEST(spans_of_sequences_have_the_same_bits)
{
    char out[64], one[64];
    snprintf(out, sizeof out, "out%s", weights), snprintf(one, sizeof one, "one%s", weights);
    for (int k = 0; k < LONG_MODELS; k++) {
        long_setup(long_models[k], 300, 1);
        CHECK_EQ(tasks_of("attention_span_forward"), 2 * (k == 5 ? 1 : 2) * 6); /* sequences, layers, pairs of spans */
        DONE("train", "run.json", "activation_checkpointing.enabled=true", "memory.cpu=8MiB", "memory.path=.",
             "memory.disk=256MiB");
        CHECK(same_file(out, one));
        DONE_RANKS(2, "train", "run.json", "zero_optimization.stage=3");
        CHECK(same_file(out, one));
        if (k == 1) continue;
        WITH("STARPU_NCPU", "1") DONE("train", "run.json");
        CHECK(same_file(out, one));
        DONE_RANKS(2, "train", "run.json", "parallel.pipeline=2");
        check_near("spans, pipeline");
        DONE_RANKS(2, "train", "run.json", "parallel.tensor=2");
        check_near("spans, tensor");
        DONE("train", "run.json", "tiles.rows=512");
        check_near("whole sequences");
    }
}

/* Ranks have some of the spans each, and for attention some of the heads, or all keys. */
TEST(ranks_that_share_sequences_have_the_same_bits)
{
    char out[64], one[64];
    snprintf(out, sizeof out, "out%s", weights), snprintf(one, sizeof one, "one%s", weights);
    for (int k = LONG_MODELS - 1; k >= 0; k--) {
        long_setup(long_models[k], 512, 2);
        DONE_RANKS(2, "train", "run.json", "sequence_parallel_size=2", "activation_checkpointing.enabled=true",
                   "memory.cpu=16MiB", "memory.path=.", "memory.disk=256MiB", "parallel.carrier=starpu_mpi");
        CHECK_HAS(ran.err, "read sequence_parallel_size as parallel.sequence");
        CHECK_HAS(ran.err, k == 1 || k == 4 ? "exchange heads for spans" : "2 ranks exchange keys and values, early");
        CHECK(same_file(out, one));
        CHECK(valid_loss("out") == valid_loss("one"));
        DONE_RANKS(4, "train", "run.json", k >= 2 ? "parallel.sequence=2" : "parallel.sequence=4",
                   k ? "zero_optimization.stage=3" : "zero_optimization.stage=1");
        CHECK(same_file(out, one));
        if (k >= 2) continue;
        DONE_RANKS(2, "train", "run.json", "deterministic=false");
        const double apart = sent_bytes(), layers = 2, sequences = 4, T = 512;
        DONE_RANKS(2, "train", "run.json", "deterministic=false", "parallel.sequence=2");
        /* Heads: q, k, v and y go forward, and their gradients backward, half of a rank's rows of each. Keys: of spans
         * 0 and 3, and 1 and 2, three are seen by queries of the other rank, in four pairs of a span and a run. */
        CHECK(sent_bytes() - apart ==
              layers * sequences * (k ? T * 8 * 32 / 2 * sizeof(uint16_t) : T / 4 * 2 * 8 * (3 + 4) * sizeof(float)));
        if (k) continue;
        DONE_RANKS(4, "train", "run.json", "parallel.sequence=2", "parallel.pipeline=2");
        check_near("sequences and blocks shared");
        DONE_RANKS(4, "train", "run.json", "parallel.sequence=2", ROWS);
        check_near("sequences and matrices shared");
        FAILS_RANKS(TESS_INVALID, (2, "train", "run.json", "parallel.sequence=2", "data.seq_length=300"),
                    "300 rows are 3 spans of 128 (a multiple of 256 rows");
        FAILS_RANKS(TESS_INVALID, (2, "train", "run.json", "parallel.sequence=2", "tiles.rows=1024"),
                    "2 ranks cannot share 512 rows with the bits of one rank (they can with tiles.rows 256)");
        FAILS_RANKS(TESS_INVALID, (2, "train", "run.json", "parallel.sequence=2", "train_batch_size=132"),
                    "66 micro-batches of ranks that share sequences (at most 32");
        FAILS(TESS_INVALID, ("train", "run.json", "parallel.sequence=2"), "x sequence 2 ranks",
              "start a multiple of 2");
    }
}

/* Ranks own the experts, and rows go to them wherever they lie: along a pipeline and beside shared matrices, under a
 * cap, spans of sequences, evaluations, and from one placement to another. */
TEST(experts_of_ranks_have_the_same_bits)
{
    static const char *const models[] = {
        "{\"model_type\": \"mixtral\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 400, "
        "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"num_local_experts\": 5, "
        "\"output_router_logits\": true, \"router_aux_loss_coef\": 0.5, \"max_position_embeddings\": 512}",
        "{\"model_type\": \"qwen3_moe\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 64, "
        "\"moe_intermediate_size\": 400, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 8, \"num_experts\": 6, \"num_experts_per_tok\": 2, "
        "\"max_position_embeddings\": 512}"};
    static const struct {
        int ranks;
        const char *how[4];
    } ways[] = {{2, {"parallel.expert=2", "parallel.carrier=starpu_mpi"}},
                {4, {"parallel.expert=4", "zero_optimization.stage=1"}},
                {2,
                 {"parallel.expert=2", "zero_optimization.stage=3", "activation_checkpointing.enabled=true",
                  "memory.cpu=24MiB"}},
                {4, {"parallel.expert=2", "parallel.pipeline=2", "parallel.schedule=zb-h1"}}};
#define OVER(...) "train", "run.json", "train_batch_size=4", __VA_ARGS__
    char out[64], one[64];
    snprintf(out, sizeof out, "out%s", weights), snprintf(one, sizeof one, "one%s", weights);
    for (int k = 0; k < 2; k++) {
        long_setup(models[k], 300, 1);
        DONE(OVER("output=one"));
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            const char *const *how = ways[i].how, *const none = "seed=1";
            DONE_RANKS(ways[i].ranks, OVER(how[0], how[1], how[2] ? how[2] : none, how[3] ? how[3] : none,
                                           "memory.path=.", "memory.disk=256MiB"));
            CHECK_HAS(ran.err, "parallel.expert: rows go to the ranks that own their experts, some");
            if (!same_file(out, one)) CHECK_SAY("model %d, way %zu: other bits", k, i);
        }
        CHECK(valid_loss("out") == valid_loss("one"));
        DONE_RANKS(2, OVER("parallel.expert=2", "checkpoint.dir=ck", "steps=2"));
        DONE(OVER("checkpoint.dir=ck", "--resume"));
        CHECK(same_file(out, one));
        DONE_RANKS(4, OVER("parallel.tensor=2", "output=one"));
        DONE_RANKS(4, OVER("parallel.tensor=2", "parallel.expert=2"));
        CHECK(same_file(out, one));
    }
#undef OVER
}

/* One activation between blocks is 32 MiB, and within them three times as much. */
TEST(a_long_sequence_under_a_cap_below_its_tensors)
{
    fresh();
    write_text("run.json",
               "{\"model\": {\"model_type\": \"mistral\", \"vocab_size\": 256, \"hidden_size\": 128,\n"
               " \"intermediate_size\": 384, \"num_hidden_layers\": 2, \"num_attention_heads\": 2,\n"
               " \"num_key_value_heads\": 1, \"sliding_window\": 200, \"max_position_embeddings\": 65536},\n"
               " \"data\": {\"train\": \"text.txt\", \"seq_length\": 65536}, \"tiles\": {\"rows\": 512},\n"
               " \"activation_checkpointing\": {\"enabled\": true}, \"train_batch_size\": 1, \"steps\": 1,\n"
               " \"deterministic\": true, \"output\": \"out\", \"overwrite\": true}\n");
    write_tiny_text("text.txt", 70000, 1);
    calm_machine();
    DONE("train", "run.json", "output=one");
    DONE("train", "run.json", "memory.cpu=20MiB", "memory.path=.", "memory.disk=3GiB");
    CHECK(same_file("out/model/model.safetensors", "one/model/model.safetensors"));
    json_t *all = read_metrics("out/metrics.jsonl"), *step = json_array_get(all, 0);
    const double ram = json_number_value(json_object_get(json_object_get(step, "cpu"), "peak_bytes"));
    const double disk = json_number_value(json_object_get(json_object_get(step, "disk"), "peak_bytes"));
    CHECK(ram > 0 && ram <= 20 << 20);
    CHECK(disk > 100 << 20);
    json_decref(all);
}

/* Kinds of CPU are capped, so that one machine has several; a layer is deep enough for a cut of k. */
TEST(kinds_of_cpu_have_the_same_bits_where_they_are_asked_to)
{
#if defined __x86_64__
    static const char *const kinds[] = {"AVX512_CORE_BF16", "AVX512_CORE", "AVX2"}, *const bf16[] = {"false", "true"};
    fresh();
    write_text("run.json",
               "{\"model\": {\"model_type\": \"llama\", \"vocab_size\": 300, \"hidden_size\": 192,\n"
               " \"intermediate_size\": 3136, \"num_hidden_layers\": 1, \"num_attention_heads\": 3},\n"
               " \"data\": {\"train\": \"" MODEL "tokens.bin\", \"seq_length\": 21}, \"train_batch_size\": 4,\n"
               " \"steps\": 2, \"deterministic\": \"across machines\", \"overwrite\": true}\n");
    calm_machine();
    for (int half = 0; half < 2; half++) {
        char set[64], out[64], one[64];
        snprintf(set, sizeof set, "bf16.enabled=%s", bf16[half]);
        DONE("train", "run.json", "output=one", set);
        snprintf(out, sizeof out, "out%s", weights), snprintf(one, sizeof one, "one%s", weights);
        for (size_t k = 0; k < 3; k++) {
            tess_cpu_kind kind;
            const char *cap;
            WITH("TESSERA_MAX_CPU_ISA", kinds[k])
            {
                if (tess_cpu_cap(&kind, &cap) != TESS_OK) continue; /* this machine has less */
                DONE("train", "run.json", "output=out", set);
                CHECK(same_file(out, one));
            }
        }
        WITH("TESSERA_MAX_CPU_ISA", "SSE41")
        FAILS(TESS_INVALID, ("train", "run.json", "output=out", set), "deterministic: across machines, but this CPU");
    }
#endif
}

TEST(matrices_and_blocks_shared_out_are_near)
{
    /* qwen3's norms of heads keep its attention whole on each rank, and so do experts; mistral has one head of k and v.
     */
    static const char *const families[] = {"llama3",  "gemma2",  "gpt-neox", "qwen3-moe-step", "qwen3",
                                           "mistral", "mixtral", "phi3",     "olmo2",          "smollm3",
                                           "granite", "gemma3",  "gpt-oss",  "deepseek-v3",    "qwen3-5"};
    for (int k = 0; k < 15; k++) {
        setup(families[k]);
        DONE_RANKS(2, "train", "run.json", "parallel.tensor=2");
        check_near(families[k]);
        if (k == 7) CHECK(!strstr(ran.err, "_proj.weight first")); /* what lies side by side is shared out too */
        if (k == 12) CHECK_HAS(ran.err, "9 of 23 matrices, layers.0.mlp.router"); /* but with sinks heads are */
        if (k == 13) CHECK_HAS(ran.err, "14 of 34 matrices, layers.0.self_attn.q_a_proj"); /* heads of latents are */
        if (k > 3) continue;
        DONE_RANKS(2, "train", "run.json", "parallel.pipeline=2");
        check_near("pipeline");
    }
}

/* What a section does next, which blocks it has, and what it keeps where, change no bit; a table at both ends is one
 * gradient more in all of them. */
TEST(orders_of_a_pipeline_have_the_same_bits)
{
    static const char *const models[] = {
        "{\"model_type\": \"gpt2\", \"n_layer\": 5, \"n_embd\": 24, \"n_head\": 2, \"vocab_size\": 256, "
        "\"n_positions\": 64}",
        "{\"model_type\": \"mixtral\", \"num_hidden_layers\": 4, \"hidden_size\": 24, \"intermediate_size\": 32, "
        "\"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"num_local_experts\": 4, \"vocab_size\": 256}"};
    static const struct {
        int ranks;
        const char *how[3];
    } ways[] = {{2, {"parallel.interleave=2"}},
                {2, {"parallel.schedule=zb-h1"}},
                {2, {"parallel.schedule=zb-h1", "parallel.blocks=1,3"}},
                {2, {"parallel.schedule=zb-v"}},
                {2, {"parallel.schedule=zb-v", "memory.cpu=12MiB", "memory.path=swap"}},
                {4, {"parallel.schedule=zb-v", "zero_optimization.stage=2"}},
                {4, {"parallel.schedule=zb-h1", "parallel.pipeline=4"}}};
    for (int k = 0; k < 2; k++) {
        char out[64], one[64];
        setup("llama3");
        CHECK_EQ(mkdir("swap", 0700), 0);
        DONE("train", "run.json", "parallel.schedule=zb-v");
        CHECK_HAS(ran.err, "parallel.schedule: without effect, since there is no pipeline");
        snprintf(out, sizeof out, "out%s", weights), snprintf(one, sizeof one, "one%s", weights);
        write_text("run.json",
                   fmt("{\"model\": %s,\n \"data\": {\"train\": \"" MODEL "tokens.bin\", \"seq_length\": 21},\n"
                       " \"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 1, \"steps\": 3, "
                       "\"bf16\": {\"enabled\": %s},\n \"activation_checkpointing\": {\"enabled\": %s}, "
                       "\"parallel\": {\"pipeline\": 2}, \"gradient_clipping\": 1, \"output\": \"out\", "
                       "\"overwrite\": true}\n",
                       models[k], k ? "true" : "false", k ? "true" : "false"));
        DONE_RANKS(2, "train", "run.json", "output=one");
        for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
            const char *const *how = ways[i].how, *const blocks = k == 0 && i == 2 ? "parallel.blocks=1,4" : how[1];
            const bool data =
                i == 5; /* a table of two sections is summed over its ranks in another order than on one */
            if (data) DONE_RANKS(4, "train", "run.json", "output=one", how[1]);
            DONE_RANKS(ways[i].ranks, "train", "run.json", how[0], blocks ? blocks : "seed=1",
                       how[2] ? how[2] : "seed=1");
            CHECK_HAS(ran.err, "parallel.pipeline: the blocks of its stages are 1");
            if (!same_file(out, one))
                CHECK_SAY("%s, %s %s: other bits", k ? "mixtral" : "gpt2", how[0], how[1] ? how[1] : "");
            if (data) DONE_RANKS(2, "train", "run.json", "output=one");
        }
    }
}

/* A stage with nothing to train, a table that two stages have, and biases that one rank alone has. */
TEST(what_is_frozen_is_frozen_on_all_ranks)
{
    static const char *const families[][2] = {{"llama3", "freeze=[\"*.embed_tokens.*\", \"layers.0.*\"]"},
                                              {"llama3", "freeze=layers.1.*"},
                                              {"gpt-neox", "freeze=*.weight"}};
    static const char *const stages[] = {"zero_optimization.stage=1", "zero_optimization.stage=2",
                                         "zero_optimization.stage=3"};
    char out[64], one[64];
    snprintf(out, sizeof out, "out%s", weights), snprintf(one, sizeof one, "one%s", weights);
    for (int k = 0; k < 3; k++) {
        const char *const freeze = families[k][1], *const dtype = k == 1 ? "bf16.enabled=false" : "bf16.enabled=true";
        setup(families[k][0]);
        DONE("train", "run.json", "output=one", freeze, dtype);
        for (int stage = k ? 2 : 0; stage < 3; stage++) {
            DONE_RANKS(2, "train", "run.json", stages[stage], freeze, dtype,
                       "zero_optimization.stage3_param_persistence_threshold=100");
            CHECK(same_file(out, one));
        }
        DONE("train", "run.json", "output=one", freeze);
        DONE_RANKS(2, "train", "run.json", k == 1 ? "parallel.pipeline=2" : "parallel.tensor=2", freeze);
        check_near("matrices or blocks");
        if (k) continue;
        DONE_RANKS(2, "train", "run.json", "parallel.pipeline=2", freeze);
        check_near("pipeline");
    }
}

TEST(adapters_are_the_same_on_all_ranks)
{
    static const char *const families[][2] = {{"llama3", "lora.targets=all-linear"},
                                              {"gpt-neox", "lora.targets=[\"query_key_value\", \"dense\"]"}};
    static const char adapter[] = "/model/adapter_model.safetensors";
    char out[64], one[64];
    snprintf(out, sizeof out, "out%s", adapter), snprintf(one, sizeof one, "one%s", adapter);
    for (int k = 0; k < 2; k++) {
        const char *const targets = families[k][1], *const stage =
                                                        k ? "zero_optimization.stage=1" : "zero_optimization.stage=3";
        setup(families[k][0]);
        DONE("train", "run.json", "output=one", "lora.r=4", targets, "lora.dropout=0.1", "bf16.enabled=true");
        DONE_RANKS(2, "train", "run.json", "lora.r=4", targets, "lora.dropout=0.1", "bf16.enabled=true", stage,
                   "zero_optimization.stage3_param_persistence_threshold=100");
        CHECK(same_file(out, one));
        DONE("train", "run.json", "output=one", "lora.r=4", targets);
        DONE_RANKS(2, "train", "run.json", "lora.r=4", targets, "parallel.tensor=2");
        check_near("tensor");
        CHECK(!strstr(ran.err, "layers.0.self_attn.q_proj.weight first"));
        DONE_RANKS(2, "train", "run.json", "lora.r=4", targets, "parallel.pipeline=2");
        check_near("pipeline");
        if (k)
            DONE_RANKS(2, "train", "run.json", "lora.r=4", targets, "lora.dropout=0.1", "parallel.tensor=2", "steps=1");
        if (k) continue;
        DONE("train", "run.json", "output=one", "lora.r=4", targets, "lora.dropout=0.1", "lora.dora=true");
        DONE_RANKS(2, "train", "run.json", "lora.r=4", targets, "lora.dropout=0.1", "lora.dora=true", stage,
                   "zero_optimization.stage3_param_persistence_threshold=100");
        CHECK(same_file(out, one));
        DONE("train", "run.json", "output=one", "lora.r=4", targets, "lora.dora=true");
        DONE_RANKS(2, "train", "run.json", "lora.r=4", targets, "lora.dora=true", "parallel.tensor=2");
        check_near("lengths, tensor");
    }
}

/* Ranks that share matrices have some rows each of what lies between these: the same loss, and half sums in place of
 * sums. Beside those the head's input goes to all, and the gradients of norms add up. */
TEST(ranks_of_a_tensor_share_rows)
{
    char out[64], one[64];
    snprintf(out, sizeof out, "out%s", weights), snprintf(one, sizeof one, "one%s", weights);
    setup("llama3");
    DONE_RANKS(2, "train", "run.json", "parallel.tensor=2");
    const double sent = sent_bytes(), sequences = 4, T = 21, C = 32, norms = 5;
    json_t *all = read_metrics("out/metrics.jsonl"), *rows;
    DONE_RANKS(2, "train", "run.json", ROWS);
    check_near("rows");
    CHECK(sent_bytes() - sent == (sequences * T * C + 2 * norms * C) * sizeof(float));
    CHECK(number_of(rows = read_metrics("out/metrics.jsonl"), 0, "loss") == number_of(all, 0, "loss"));
    json_decref(all), json_decref(rows);
    DONE_RANKS(2, "train", "run.json", ROWS, "output=one");
    DONE_RANKS(4, "train", "run.json", ROWS, "zero_optimization.stage=3");
    CHECK(same_file(out, one));
    DONE_RANKS(4, "train", "run.json", ROWS, "parallel.pipeline=2");
    check_near("rows, pipeline");
    setup("mixtral"); /* whose experts see whole row tiles */
    DONE_RANKS(2, "train", "run.json", ROWS);
    check_near("rows, experts");
    long_setup(LONG_GPT2, 300, 1);
    DONE_RANKS(2, "train", "run.json", ROWS, "output=one");
    DONE_RANKS(2, "train", "run.json", ROWS, "activation_checkpointing.enabled=true", "memory.cpu=16MiB",
               "memory.path=.", "memory.disk=256MiB", "parallel.carrier=starpu_mpi");
    CHECK(same_file(out, one));
    FAILS_RANKS(TESS_INVALID, (2, "train", "run.json", ROWS, "data.seq_length=257"),
                "2 ranks share the rows of each tile, but the last of a sequence has 1 of 257 rows");
}
