/* What is wrong with what a user gives: one line on stderr, `tessera: error: WHERE: WHAT (HINT)`, and exit status 2. */
#define CHECK_MAIN
#include "tiny.h"

/* ---- the command line and the configuration ---- */

TEST(arguments)
{
    tiny_setup();
    FAILS(2, (NULL), "command line: no command", "--help");
    FAILS(2, ("trian", "run.json"), "command line: trian: unknown command", "did you mean train?");
    FAILS(2, ("train", "run.json", "--resme"), "command line: --resme: unknown option", "did you mean --resume?");
    FAILS(2, ("train"), "command line: no configuration", "CONFIG.json");
    FAILS(2, ("train", "run.json", "again.json"), "command line: \"again.json\"", "KEY=VALUE");
    FAILS(2, ("info", "run.json"), "command line: run.json");
    FAILS(2, ("generate", "--prompt", "a"), "command line", "MODEL_DIR");
    FAILS(2, ("generate", "out/model"), "command line: --prompt: missing");
    FAILS(2, ("generate", "out/model", "--prompt", "a", "-n", "many"), "command line: -n: many", "a number from 1");
    FAILS(2, ("generate", "out/model", "--prompt", "a", "-n"), "command line: -n: missing its N");
    FAILS(2, ("generate", "out/model", "--prompt", "a", "--top-p", "2"), "--top-p: 2, expected a number from");
    FAILS(2, ("generate", "out/model", "--prompt", "a", "--prompts", "b"), "--prompt and --prompts: both are given");
    CHECK(!exists("out"));
}

TEST(keys_and_values)
{
    static const struct {
        const char *argument, *where, *what;
    } cases[] = {
        {"optimizer.params.lrr=1", "command line: optimizer.params.lrr", "did you mean optimizer.params.lr?"},
        {"batch_size=8", "command line: batch_size", "did you mean train_batch_size?"},
        {"optimizer=1", "command line: optimizer: a group of keys", "optimizer.NAME=VALUE"},
        {"steps=many", "command line: steps: \"many\"", "a whole number"},
        {"steps=0", "command line: steps: 0", "a whole number from 1"},
        {"steps=-3", "command line: steps: -3", "a whole number from 1"},
        {"steps=1.5", "command line: steps: 1.5", "a whole number"},
        {"optimizer.params.lr=-1", "command line: optimizer.params.lr: -1", "a number from 0"},
        {"optimizer.params.betas=[0.9, 1]", "command line: optimizer.params.betas", "below 1"},
        {"bf16.enabled=maybe", "command line: bf16.enabled: \"maybe\"", "true or false"},
        {"memory.cpu=much", "command line: memory.cpu: \"much\"", "16GiB"},
        {"optimizer.type=Adafactor", "command line: optimizer.type: \"Adafactor\"", "one of Adam, AdamW, SGD"},
        {"fp16.fp16_master_weights_and_grads=true", "true needs what this build does not have", "expected false"},
        {"zero_optimization.xyz=1", "command line: zero_optimization.xyz: unknown key, expected", "--help all"},
        {"parallel.tensor=2", "parallel: tensor 2 x pipeline 1 ranks for a model, but 1 ranks run",
         "start a multiple of 2"},
        {"checkpoint.every=2", "run.json: checkpoint.dir: missing", "checkpoint.every needs it"},
        {"checkpoint.resume=true", "run.json: checkpoint.dir: missing", "checkpoint.resume needs it"},
        {"steps=auto", "run.json: steps: missing", "train needs them, or epochs"},
    };
    tiny_setup();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FAILS(2, ("train", "run.json", cases[i].argument), cases[i].where, cases[i].what);
    }
    WITH("TESSERA_STEPSS", "1")
    FAILS(2, ("train", "run.json"), "environment: TESSERA_STEPSS", "did you mean TESSERA_STEPS?");
    WITH("TESSERA_STEPS", "0") FAILS(2, ("train", "run.json"), "environment: steps: 0", "a whole number from 1");
    CHECK(!exists("out"));
}

TEST(batch_numbers_that_contradict)
{
    tiny_setup();
    FAILS(2, ("train", "run.json", "train_micro_batch_size_per_gpu=3", "gradient_accumulation_steps=2"),
          "run.json: train_batch_size: 4", "train_micro_batch_size_per_gpu 3", "gradient_accumulation_steps 2",
          "1 data-parallel ranks is 6");
    FAILS(2, ("train", "run.json", "gradient_accumulation_steps=3"),
          "run.json: train_batch_size: 4 is no multiple of gradient_accumulation_steps 3");
    write_text("none.json", "{\"model\": " TINY_MODEL ", \"data\": {\"train\": \"text.txt\"}, \"steps\": 1}");
    FAILS(2, ("train", "none.json"), "none.json: train_batch_size: missing", "two of the three");
}

TEST(the_configuration_file)
{
    static const struct {
        const char *text, *where, *what;
    } cases[] = {
        {"{\"steps\": 4,\n \"seed\": }", "bad.json:2:10", "must be JSON"},
        {"{\"steps\": 4, \"steps\": 5}", "bad.json:1:", "duplicate"},
        {"", "bad.json:1:0", "must be JSON"},
        {"[1]", "bad.json: a JSON list", "expected an object"},
        {"{\"optimizr\": {\"type\": \"AdamW\"}}", "bad.json: optimizr: unknown key", "did you mean optimizer?"},
        {"{\"optimizer\": {\"parms\": {}}}", "bad.json: optimizer.parms: unknown key", "optimizer.params"},
        {"{\"optimizer.type\": \"AdamW\"}", "bad.json: optimizer.type: a dotted name", "objects inside one another"},
        {"{\"steps\": \"four\"}", "bad.json: steps: \"four\"", "a whole number"},
        {"{\"data\": 3}", "bad.json: data: a single value", "an object of keys"},
        {"{\"model\": 3}", "bad.json: model: 3", "a directory or an object"},
        {"{\"steps\": 4}", "bad.json: model: missing", "Hugging Face directory"},
    };
    fresh();
    FAILS(2, ("train", "bad.json"), "bad.json: cannot be read: No such file", "a configuration file");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("bad.json", cases[i].text);
        FAILS(2, ("train", "bad.json"), cases[i].where, cases[i].what);
    }
    FAILS(2, ("train", "."), ".: cannot be read");
}

TEST(output_that_cannot_be_written)
{
    tiny_setup();
    write_text("file", "mine");
    FAILS(2, ("train", "run.json", "output=file"), "file: cannot be created: Not a directory", "see output");
    FAILS(2, ("train", "run.json", "output=file/below/it"), "file/below/it: cannot be created: Not a directory");
    FAILS(2, ("train", "run.json", "checkpoint.dir=file/below", "checkpoint.every=1"),
          "file/below: cannot be written: Not a directory", "checkpoint.dir");
    FAILS(2, ("train", "run.json", "checkpoint.dir=file", "checkpoint.every=1"),
          "file: cannot be written: Not a directory", "checkpoint.dir");
    CHECK_EQ(file_size("file"), 4);
    CHECK(!exists("out/metrics.jsonl")); /* it ended before the first step */
}

TEST(more_memory_than_there_may_be)
{
    tiny_setup();
    static const char needs[] = "memory.cpu: the run needs ";
    FAILS(2, ("train", "run.json", "memory.cpu=64KiB"), needs, "64.0 KiB", "MiB would do");
    RUN("train", "run.json", "train_batch_size=64", "memory.cpu=1MiB");
    /* a little less than that: it depends on the workers */
    FAILS(2, ("train", "run.json", "train_batch_size=64", fmt("memory.cpu=%ldMiB", named_in_error(needs) - 1)), needs,
          " MiB in RAM", "(train_micro_batch_size_per_gpu=", "gradient_accumulation_steps=");
    CHECK(!exists("out"));
}

/* ---- the model ---- */

TEST(fields_of_the_model)
{
    static const struct {
        const char *argument, *what, *hint;
    } cases[] = {
        {"model.model_type=gpt3",
         "model_type: gpt3 is not known (did you mean gpt2? known: ", "gpt2, gpt_neox, llama, "},
        {"model.model_type=vgg", "model_type: vgg is not known (known: ", "mistral"},
        {"model.model_type=3", "model_type is missing", "gpt2"},
        {"model.activation_function=relu2", "activation_function: \"relu2\"", "gelu_new"},
        {"model.add_cross_attention=true", "add_cross_attention: true", "expected false"},
        {"model.n_embed=32", "n_embed: unknown field", "did you mean n_embd?"},
        {"model.rope_theta=10000", "rope_theta: unknown field", "arithmetic"},
        {"model.n_head=5", "n_embd 32 is no multiple of n_head 5", ""},
        {"model={\"model_type\": \"gpt2\", \"hidden_size\": 32}", "n_embd 32 is no multiple of n_head 12",
         "; n_head is missing, its default is 12"},
        {"model.n_layer=0", "n_layer: 0", "a whole number of at least 1"},
        {"model.n_layer=two", "n_layer: \"two\"", "a whole number"},
        {"model.resid_pdrop=1", "resid_pdrop: 1", "below 1"},
        {"data.seq_length=33", "data.seq_length: 33", "32 positions"},
    };
    tiny_setup();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FAILS(2, ("train", "run.json", cases[i].argument), cases[i].what, cases[i].hint);
    }
    CHECK(!exists("out"));
}

/* A family with rotary positions and heads that share k and v, in both spellings of its scaling. */
#define LLAMA(width) "model={\"model_type\": \"llama\", \"hidden_size\": " #width ", \"num_hidden_layers\": 1}"
TEST(fields_of_a_decoder)
{
    static const struct {
        const char *argument, *what, *hint;
    } cases[] = {
        {"model.num_key_value_heads=3", "num_attention_heads 4 is no multiple of num_key_value_heads 3", ""},
        {"model.num_attention_heads=5", "hidden_size 32 is no multiple of num_attention_heads 5", "head_dim"},
        {"model.head_dim=7", "head_dim: 7", "an even number"},
        {LLAMA(96), "hidden_size 96 over num_attention_heads 32 makes heads of 3 (expected an even number",
         "; num_attention_heads is missing, its default is 32"},
        {LLAMA(100), "hidden_size 100 is no multiple of num_attention_heads 32",
         "; num_attention_heads is missing, its default is 32"},
        {"model.sliding_window=-1", "sliding_window: -1", "at least 1"},
        {"model.sliding_window=0", "sliding_window: 0", "at least 1"},
        {"model.hidden_act=relu2", "hidden_act: \"relu2\"", "silu"},
        {"model.rope_scaling=dynamic", "rope_scaling: \"dynamic\"", "an object or null"},
        {"model.rope_scaling={\"type\": \"dynamic\"}", "rope_scaling.type: \"dynamic\"", "default linear llama3"},
        {"model.rope_parameters={\"rope_type\": \"yarn\"}", "rope_parameters.rope_type: \"yarn\"", "llama3"},
        {"model.rope_parameters={\"rope_type\": \"linear\"}", "rope_parameters.factor: 0", "linear expected"},
        {"model.rope_parameters={\"rope_type\": \"llama3\", \"factor\": 8}", "low_freq_factor: 0", "llama3 expected"},
        {"model.rope_parameters={\"rope_type\": \"default\", \"factr\": 8}", "rope_parameters.factr: unknown field",
         "did you mean rope_parameters.factor?"},
        {"model.rope_parameters={\"rope_theta\": 500}", "rope_parameters.rope_theta: 500", "10000 as rope_theta says"},
        {"model.attention_bias=true", "attention_bias: unknown field of a mistral", "arithmetic"},
        {"model.quantization_config={}", "quantization_config: unknown field", ""},
    };
    tiny_setup();
    write_text("run.json",
               "{\"model\": {\"model_type\": \"mistral\", \"vocab_size\": 256, \"hidden_size\": 32,"
               " \"intermediate_size\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4,"
               " \"num_key_value_heads\": 2, \"rope_theta\": 10000, \"eos_token_id\": [1, 2], \"head_dim\": null},\n"
               " \"data\": {\"train\": \"text.txt\", \"seq_length\": 16}, \"train_batch_size\": 4, \"steps\": 1,"
               " \"output\": \"out\"}\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FAILS(2, ("train", "run.json", cases[i].argument), cases[i].what, cases[i].hint);
    }
    CHECK(!exists("out"));
}

/* Experts that there are not, and whose weights files lack or have too many of. */
TEST(fields_of_experts)
{
    static const struct {
        const char *model, *argument, *what, *hint;
    } cases[] = {
        {"mixtral", "model.num_experts_per_tok=6",
         "num_experts_per_tok: 6 (expected at most num_local_experts, which is 5)", ""},
        {"mixtral", "model.num_experts_per_tok=0", "num_experts_per_tok: 0", "at least 1"},
        {"mixtral", "model.num_local_experts=0", "num_local_experts: 0", "at least 1"},
        {"mixtral", "model.num_experts=4", "experts.4.", "is no parameter of this mixtral"},
        {"mixtral", "model.num_local_experts=7",
         "block_sparse_moe.gate.weight has shape (5,32), the model needs (7,32)", ""},
        {"mixtral", "model.intermediate_size=44", "has shape (40,32), the model needs (44,32)", ""},
        {"mixtral", "model.router_jitter_noise=0.1", "router_jitter_noise: 0.1", "expected 0"},
        {"mixtral", "model.router_aux_loss_coef=-1", "router_aux_loss_coef: -1", "at least 0"},
        {"mixtral", "model.norm_topk_prob=true", "norm_topk_prob: unknown field of a mixtral", "arithmetic"},
        {"qwen3-moe", "model.num_experts_per_tok=8",
         "num_experts_per_tok: 8 (expected at most num_experts, which is 7)", ""},
        {"qwen3-moe", "model.decoder_sparse_step=0", "decoder_sparse_step: 0", "at least 1"},
        {"qwen3-moe", "model.mlp_only_layers=[-1]", "mlp_only_layers: [-1]", "numbers of layers, the first 0"},
        {"qwen3-moe", "model.mlp_only_layers=1", "mlp_only_layers: 1", "numbers of layers, the first 0"},
        {"qwen3-moe", "model.mlp_only_layers=[]", "tensor model.layers.1.mlp.", "is no parameter of this qwen3_moe"},
        {"qwen3-moe", "model.moe_intermediate_size=\"many\"", "moe_intermediate_size: \"many\"", "a whole number"},
    };
    fresh();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char text[2000];
        snprintf(text, sizeof text,
                 "{\"model\": \"" TESS_FIXTURES "/families/%s\", \"data\": {\"train\": \"" TESS_FIXTURES
                 "/families/tokens.bin\", \"seq_length\": 21},\n \"train_batch_size\": 1, \"steps\": 1, \"output\": "
                 "\"out\"}\n",
                 cases[i].model);
        write_text("run.json", text);
        FAILS(2, ("train", "run.json", cases[i].argument), cases[i].what, cases[i].hint);
    }
    CHECK(!exists("out"));
}

/* Windows that some layers have, and weights of another shape. */
TEST(layers_and_weights_of_a_decoder)
{
    static const char model[] =
        "{\"model_type\": \"qwen2\", \"vocab_size\": 256, \"hidden_size\": 32, \"intermediate_size\": 40,"
        " \"num_hidden_layers\": 2, \"num_attention_heads\": 4, \"num_key_value_heads\": 2}";
    tiny_setup();
    const char *argument = fmt("model=%s", model);
    FAILS(2, ("train", "run.json", argument, "model.use_sliding_window=true", "model.sliding_window=0"),
          "sliding_window: 0", "at least 1");
    FAILS(2, ("train", "run.json", argument, "model.layer_types=[\"full_attention\", \"sliding_attention\"]"),
          "layer_types: layer 1 is sliding_attention", "use_sliding_window");
    FAILS(2, ("train", "run.json", argument, "model.layer_types=[\"full_attention\", \"chunked_attention\"]"),
          "layer_types: \"chunked_attention\"", "full_attention sliding_attention");
    FAILS(2, ("train", "run.json", argument, "model.layer_types=[\"full_attention\"]"), "layer_types has 1 word",
          "num_hidden_layers is 2");
    DONE("train", "run.json", argument, "steps=1");
    FAILS(2, ("train", "run.json", "model=out/model", "model.num_key_value_heads=1", "steps=1"), "k_proj", "(16,32)");
    FAILS(2, ("train", "run.json", "model=out/model", "model.num_hidden_layers=3", "steps=1"),
          "no tensor model.layers.2.");
}

/* Fields that families have besides. */
TEST(fields_of_other_decoders)
{
    static const struct {
        const char *family, *argument, *what, *hint;
    } cases[] = {
        {"gemma2", "model.sliding_window=null", "layer_types: layer 0 is sliding_attention", "expected sliding_window"},
        {"gemma2", "model.final_logit_softcapping=0", "final_logit_softcapping: 0", "above 0, or null"},
        {"gemma2", "model.query_pre_attn_scalar=0", "query_pre_attn_scalar: 0", "above 0"},
        {"gemma2", "model.use_bidirectional_attention=true", "use_bidirectional_attention: true", "expected false"},
        {"gemma2", "model.rms_norm_epsilon=1", "rms_norm_epsilon: unknown field of a gemma2", "rms_norm_eps"},
        {"gpt_neox", "model.rotary_pct=0.4", "rotary_pct: 0.4", "an even number"},
        {"gpt_neox", "model.rotary_pct=1.5", "rotary_pct: 1.5", "a head's 8 elements"},
        {"gpt_neox", "model.num_attention_heads=5", "hidden_size 32 is no multiple of num_attention_heads 5", ""},
        {"gpt_neox", "model.num_key_value_heads=2", "num_key_value_heads: unknown field of a gpt_neox", ""},
        {"gpt_neox", "model.hidden_dropout=1", "hidden_dropout: 1", "below 1"},
        {"gpt_neox", "model.rope_scaling={\"type\": \"yarn\"}", "rope_scaling.type: \"yarn\"", "llama3"},
    };
    char text[800];
    tiny_setup();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text,
                 "{\"model\": {\"model_type\": \"%s\", \"vocab_size\": 256, \"hidden_size\": 32,"
                 " \"intermediate_size\": 40, \"num_hidden_layers\": 2, \"num_attention_heads\": 4},\n"
                 " \"data\": {\"train\": \"text.txt\", \"seq_length\": 16}, \"train_batch_size\": 4, \"steps\": 1,"
                 " \"output\": \"out\"}\n",
                 cases[i].family);
        write_text("run.json", text);
        FAILS(2, ("train", "run.json", cases[i].argument), cases[i].what, cases[i].hint);
    }
    CHECK(!exists("out"));
}

TEST(a_directory_that_is_no_model)
{
    tiny_setup();
    FAILS(2, ("train", "run.json", "model=nowhere"), "nowhere/config.json: No such file", "a Hugging Face directory");
    mkdir("base", 0777);
    FAILS(2, ("train", "run.json", "model=base"), "base/config.json: No such file", "a Hugging Face directory");
    static const char *const bad[][2] = {
        {"{\"model_type\": ", "base/config.json: line 1, column"},
        {"[]", "base/config.json: is no JSON object"},
        {"{\"model_type\": \"llama5\"}", "base/config.json: model_type: llama5 is not known"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        write_text("base/config.json", bad[i][0]);
        FAILS(2, ("train", "run.json", "model=base"), bad[i][1]);
    }
    write_text("base/config.json", TINY_MODEL);
    FAILS(2, ("generate", "base", "--prompt", "a"), "base: has no model.safetensors", "OUTPUT/model");
    FAILS(2, ("generate", "nowhere", "--prompt", "a"), "nowhere/config.json: No such file");
    write_text("base/tokenizer.json", "{}");
    FAILS(2, ("train", "run.json", "model=base"), "base/tokenizer.json");
}

/* ---- weights ---- */

static const char *const file = "out/model/model.safetensors";

/* Every command that reads weights refuses them. */
static void expect_refused(const char *what, const char *more)
{
    FAILS(2, ("train", "run.json", "model=out/model", "output=next"), what, more);
    CHECK(!exists("next/model"));
    FAILS(2, ("eval", "run.json", "model=out/model"), what, more);
    FAILS(2, ("generate", "out/model", "--prompt", "a", "-n", "1"), what, more);
    CHECK_STR(ran.out, "");
}

TEST(truncated_weights)
{
    tiny_setup_trained();
    struct weights w = weights_read(file);
    const size_t length[] = {0, 4, 8, w.at / 2, w.at, w.at + 5, w.bytes / 2, w.bytes - 1};
    for (size_t i = 0; i < sizeof length / sizeof *length; i++) {
        write_file(file, w.file, length[i]);
        expect_refused(file, "bytes");
    }
    weights_write(&w, file, 4);
    expect_refused("out/model/model.safetensors: 4 bytes follow the last tensor", "");
    weights_free(&w);
}

TEST(a_header_that_lies)
{
    static const char *const name = "transformer.h.0.attn.c_attn.bias"; /* (96) */
    tiny_setup_trained();
    struct weights w = weights_read(file);
    json_t *offsets = json_object_get(json_object_get(w.header, name), "data_offsets");
    json_int_t begin = json_integer_value(json_array_get(offsets, 0));
    const struct {
        json_int_t begin, end;
        const char *what;
    } cases[] = {
        {begin - 4, begin + 380, "overlap"},
        {begin + 4, begin + 388, "begins at byte"},
        {begin, begin + 380, "96 elements of F32 are 384"},
        {begin + 384, begin, "outside"},
        {-4, 380, "outside"},
        {begin, 1000000000, "outside"},
        {INT64_MAX - 384, INT64_MAX, "outside"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        weights_set(&w, name, "data_offsets", json_pack("[I, I]", cases[i].begin, cases[i].end));
        weights_write(&w, file, 0);
        expect_refused(file, cases[i].what);
    }
    weights_set(&w, name, "data_offsets", json_pack("[I, I]", begin, begin + 384));
    weights_set(&w, name, "dtype", json_string("F31"));
    weights_write(&w, file, 0);
    expect_refused(name, "dtype F31 is not known");
    weights_set(&w, name, "dtype", json_string("I32"));
    weights_write(&w, file, 0);
    expect_refused(name, "is I32, expected floats");
    w.file[w.at - 1] = '?';
    write_file(file, w.file, w.bytes);
    FILE *f = fopen(file, "r+b"); /* a length of the header that no file has */
    fwrite(&(uint64_t){UINT64_MAX}, 8, 1, f);
    fclose(f);
    expect_refused("out/model/model.safetensors: header length", "");
    weights_free(&w);
}

TEST(tensors_of_another_model)
{
    tiny_setup_trained();
    struct weights w = weights_read(file);
    weights_set(&w, "transformer.wte.weight", "shape", json_pack("[i, i]", 32, 256));
    weights_write(&w, file, 0);
    expect_refused("transformer.wte.weight has shape (32,256)", "(256,32)");
    weights_set(&w, "transformer.wte.weight", "shape", json_pack("[i, i]", 256, 32));

    json_t *gain = json_incref(json_object_get(w.header, "transformer.ln_f.weight"));
    json_object_del(w.header, "transformer.ln_f.weight");
    json_object_set(w.header, "transformer.h.0.attn.bias", gain); /* a mask that older files hold, and nobody reads */
    weights_write(&w, file, 0);
    expect_refused("no tensor transformer.ln_f.weight", "out/model");
    json_object_del(w.header, "transformer.h.0.attn.bias");
    json_object_set_new(w.header, "transformer.ln_f.weight", gain);

    json_int_t end = (json_int_t)(w.bytes - w.at);
    json_object_set_new(
        w.header, "transformer.h.2.ln_1.weight",
        json_pack("{s:s, s:[i], s:[I, I]}", "dtype", "F32", "shape", 32, "data_offsets", end, end + 128));
    weights_write(&w, file, 128);
    expect_refused("tensor transformer.h.2.ln_1.weight is no parameter", "config.json");
    json_object_del(w.header, "transformer.h.2.ln_1.weight");

    json_t *wte = json_object_get(w.header, "transformer.wte.weight"), *head = json_deep_copy(wte);
    json_object_set(w.header, "lm_head.weight", head); /* no copy of the tied one: zeros */
    json_object_set_new(head, "data_offsets", json_pack("[I, I]", end, end + 256 * 32 * 4));
    weights_write(&w, file, 256 * 32 * 4);
    expect_refused("tensor lm_head.weight differs from wte.weight", "tie_word_embeddings");
    json_decref(head);
    weights_free(&w);
}

TEST(shards_that_are_not_there)
{
    tiny_setup_trained();
    struct weights w = weights_read(file);
    json_t *map = json_object(), *entry;
    const char *name;
    json_object_foreach(w.header, name, entry) if (strcmp(name, "__metadata__"))
        json_object_set_new(map, name, json_string("model-00001-of-00002.safetensors"));
    json_object_set_new(map, "transformer.wpe.weight", json_string("model-00002-of-00002.safetensors"));
    json_t *index = json_pack("{s:{}, s:o}", "metadata", "weight_map", map);
    json_dump_file(index, "out/model/model.safetensors.index.json", 0);
    rename(file, "out/model/model-00001-of-00002.safetensors");
    expect_refused("out/model/model-00002-of-00002.safetensors: cannot be opened: No such file", "");
    weights_write(&w, "out/model/model-00002-of-00002.safetensors", 0);
    expect_refused("is in out/model/model-0000", " too");
    write_text("out/model/model.safetensors.index.json", "{\"weight_map\": ");
    expect_refused("out/model/model.safetensors.index.json:1:", "JSON");
    json_decref(index);
    weights_free(&w);
}

/* ---- data ---- */

TEST(data_that_is_not_there_or_too_short)
{
    tiny_setup();
    write_file("short.txt", "sixteen letters!", TINY_T); /* and no target for the last */
    write_text("empty.txt", "");
    write_text("other.bin", "no magic");
    static const char *const cases[][3] = {
        {"data.train=none.txt", "none.txt: cannot be opened: No such file", ""},
        {"data.train=none", "none: no data found", "none.idx"},
        {"data.valid=none.bin", "none.bin: cannot be opened: No such file", ""},
        {"data.train=short.txt", "short.txt: holds 16 tokens", "seq_length 16 needs 17"},
        {"data.train=empty.txt", "empty.txt: holds 0 tokens", "needs 17"},
        {"data.train=other.bin", "other.bin: has 8 bytes", "1024"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        FAILS(2, ("train", "run.json", cases[i][0]), cases[i][1], cases[i][2]);
    }
    FAILS(2, ("eval", "run.json", "data.valid=none.txt"), "none.txt: cannot be opened: No such file");
    CHECK(!exists("out"));
}

/* Each of them before anything is made; the rest of what a line can be is in test_lines. */
TEST(lines_that_are_wrong)
{
    static const char *const cases[][2] = {
        {"", "l.jsonl: line 1, byte 0: is empty"},
        {"{\"input_ids\": [1, 2]}\n{\"input_ids\": [1, 2]", "l.jsonl: line 2, byte 42: is no JSON"},
        {"{\"input_ids\": [1, 2]}\n\n{\"input_ids\": [1, 256]}\n", "l.jsonl: line 3, byte 23: \"input_ids\"[1]: 256"},
        {"{\"input_ids\": [1, 2], \"labels\": [1, 256]}\n", "l.jsonl: line 1, byte 0: \"labels\"[1]: 256 is beyond"},
        {"{\"prompt\": \"a\", \"completion\": \"\"}\n", "l.jsonl: line 1, byte 0: has no target"},
    };
    tiny_setup();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text("l.jsonl", cases[i][0]);
        FAILS(2, ("train", "run.json", "data.train=l.jsonl"), cases[i][1]);
        FAILS(2, ("eval", "run.json", "data.valid=l.jsonl"), cases[i][1]);
    }
    CHECK(!exists("out") && !exists("l.jsonl.index"));
    FAILS(2, ("train", "run.json", "data.pack_positions=true"), "run.json: data.pack_positions: ", "data.pack");
}

TEST(tokens_beyond_the_vocabulary)
{
    uint8_t token[TINY_TOKENS];
    tiny_setup();
    tiny_text((char *)token, TINY_TOKENS, 1);
    token[50] = 250;
    write_llmc("tokens.bin", token, 65); /* 4 samples of 16, all of them in the first step */
    FAILS(2, ("train", "run.json", "data.train=tokens.bin", "model.vocab_size=200"), "tokens.bin: byte 1124: token 250",
          "vocabulary of 200");
    write_megatron("corpus", token, 65);
    FAILS(2, ("train", "run.json", "data.train=corpus", "model.vocab_size=200"), "corpus.bin: byte 100: token 250",
          "vocabulary of 200");
    write_file("bytes.txt", token, 65);
    FAILS(2, ("train", "run.json", "data.train=bytes.txt", "model.vocab_size=200"), "bytes.txt: byte 50: token 250",
          "vocabulary of 200");
    FAILS(2, ("eval", "run.json", "data.valid=corpus", "model.vocab_size=200"), "corpus.bin: byte 100: token 250",
          "vocabulary of 200");
    CHECK(!exists("out/model"));
}

TEST(a_megatron_index_that_is_wrong)
{
    uint8_t token[600] = {0};
    const struct {
        long at;
        uint8_t value;
        const char *where;
    } cases[] = {
        {0, 'X', "corpus.idx: byte 0: no Megatron index"},         {9, 2, "corpus.idx: byte 9: index version 2"},
        {17, 7, "corpus.idx: byte 17: dtype 7 is floating point"}, {17, 99, "corpus.idx: byte 17: dtype 99 is unknown"},
        {18, 200, "corpus.idx: byte 18: 200 sequences"},           {37, 0x80, "corpus.idx: byte 34: sequence 0 has -"},
        {50, 201, "corpus.idx: byte 50: sequence 1 is bytes 201"}, {74, 7, "corpus.idx: byte 74: document 2"},
    };
    tiny_setup();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_megatron("corpus", token, 300);
        FILE *f = fopen("corpus.idx", "r+b");
        fseek(f, cases[i].at, SEEK_SET);
        fputc(cases[i].value, f);
        fclose(f);
        FAILS(2, ("train", "run.json", "data.train=corpus"), cases[i].where);
    }
    write_megatron("corpus", token, 300);
    cut_file("corpus.idx", 40);
    FAILS(2, ("train", "run.json", "data.train=corpus"), "corpus.idx: byte 18");
    write_megatron("corpus", token, 300);
    cut_file("corpus.bin", 500);
    FAILS(2, ("train", "run.json", "data.train=corpus"),
          "corpus.idx: byte 50: sequence 1 is bytes 200 to 600 of corpus.bin, which has 500");
    unlink("corpus.bin");
    FAILS(2, ("train", "run.json", "data.train=corpus"), "corpus.bin: cannot be opened: No such file");
    write_megatron("corpus", token, 600);
    FAILS(2, ("train", "run.json", "data.train=corpus.bin"), "corpus.bin: byte 0: magic", "give corpus");
    CHECK(!exists("out"));
}
