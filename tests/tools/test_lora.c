/* Runs with adapters of low rank: what they hold, leave and go on from, and who reads what they leave. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

#define ADAPTER  "out/model/adapter_model.safetensors"
#define RESUMING "checkpoint.dir=ck", "checkpoint.every=2", "overwrite=false"

/* run.json of wide_setup_with's model, whose weights are in base/model. */
static void setup(const char *lora)
{
    char text[1500];
    wide_setup_with("\"train_batch_size\": 4, \"steps\": 2, \"bf16\": {\"enabled\": true}");
    DONE("train", "run.json", "output=base");
    write_tiny_text("valid.txt", 600, 2);
    snprintf(
        text, sizeof text,
        "{\"model\": \"base/model\", \"data\": {\"train\": \"text.txt\", \"valid\": \"valid.txt\", \"seq_length\": "
        "32}, \"output\": \"out\", \"overwrite\": true, \"train_batch_size\": 4, \"steps\": 4, \"bf16\": "
        "{\"enabled\": true}, \"optimizer\": {\"params\": {\"lr\": 3e-3}}, \"lora\": %s}\n",
        lora);
    write_text("run.json", text);
}

static double last_loss(void)
{
    double loss = NAN;
    const char *at = strstr(ran.out, "loss ");
    CHECK(at && sscanf(at, "loss %lf", &loss) == 1);
    return loss;
}

static double last_of(const char *path, const char *name)
{
    json_t *all = read_metrics(path);
    const double x = number_of(all, json_array_size(all) - 1, name);
    json_decref(all);
    return x;
}

static double of_tier(const char *path, const char *tier, const char *name)
{
    json_t *all = read_metrics(path);
    const json_t *last = json_array_get(all, json_array_size(all) - 1);
    const double x = json_number_value(json_object_get(json_object_get(last, tier), name));
    json_decref(all);
    return x;
}

TEST(adapters_are_trained_read_and_folded_in)
{
    setup("{\"r\": 4, \"alpha\": 16, \"targets\": [\"c_attn\", \"mlp.c_fc\"]}");
    DONE("train", "run.json", "eval_every=4");
    /* 4 blocks of (128 + 384 + 128 + 512) columns, times the rank. */
    CHECK_HAS(ran.out, "trained are 18432 of ");
    CHECK_HAS(ran.out, "the adapter of step 4: out/model");
    CHECK(exists("out/model/adapter_config.json") && !exists("out/model/config.json") && !exists(TINY_WEIGHTS));
    CHECK(file_size(ADAPTER) < 18432 * 4 + 8000);
    json_t *all = read_metrics("out/metrics.jsonl");
    const double valid = number_of(all, 3, "valid_loss");
    CHECK(number_of(all, 3, "loss") < number_of(all, 0, "loss"));
    json_decref(all);
    DONE("eval", "out/model", "data.valid=valid.txt", "data.seq_length=32", "bf16.enabled=true");
    CHECK(fabs(last_loss() - valid) < 1e-5);
    DONE("eval", "base/model", "data.valid=valid.txt", "data.seq_length=32", "bf16.enabled=true");
    CHECK(fabs(last_loss() - valid) > 1e-3);
    DONE("eval", "base/model", "data.valid=valid.txt", "data.seq_length=32", "bf16.enabled=true", "--adapter",
         "out/model");
    CHECK(fabs(last_loss() - valid) < 1e-5);
    DONE("eval", "run.json", "model=out/model"); /* by the run's own file, which says what its adapters were to be */
    CHECK(fabs(last_loss() - valid) < 1e-5);
    DONE("eval", "run.json", "--adapter", "out/model");
    CHECK(fabs(last_loss() - valid) < 1e-5);
    DONE("eval", "base/model", "data.valid=valid.txt", "data.seq_length=32", "--adapter", "out/model");
    const double exact = last_loss();
    DONE("merge", "base/model", "out/model", "merged");
    CHECK_HAS(ran.out, "base/model with the adapters of out/model: merged");
    DONE("eval", "merged", "data.valid=valid.txt", "data.seq_length=32");
    if (!(fabs(last_loss() - exact) < 2e-6))
        CHECK_SAY("the merged model's loss is %.7f, it was %.7f", last_loss(), exact);
    DONE("generate", "merged", "--prompt", "the tile", "-n", "12", "--temperature", "0");
    char *text = strdup(ran.out);
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "12", "--temperature", "0");
    CHECK_STR(ran.out, text);
    DONE("generate", "base/model", "--adapter", "out/model", "--prompt", "the tile", "-n", "12", "--temperature", "0");
    CHECK_STR(ran.out, text);
    free(text);
    FAILS(2, ("merge", "base/model", "out/model", "merged"), "merged: holds a model already");
    /* And a run that begins with them. */
    DONE("train", "run.json", "lora.from=out/model", "output=more", "steps=1", "lora.r=auto", "lora.alpha=auto",
         "lora.targets=[]");
    all = read_metrics("more/metrics.jsonl");
    CHECK(number_of(all, 0, "loss") < 5);
    json_decref(all);
    DONE("train", "run.json", "model=out/model", "output=again", "steps=1", "lora.r=auto", "lora.alpha=auto",
         "lora.targets=[]");
    CHECK(same_file("again/model/adapter_model.safetensors", "more/model/adapter_model.safetensors"));
    /* A whole model in the same place. */
    DONE("train", "run.json", "lora.r=auto", "lora.alpha=auto", "lora.targets=[]", "steps=1");
    CHECK(exists(TINY_WEIGHTS) && !exists(ADAPTER) && !exists("out/model/adapter_config.json"));
}

/* Before the first step rows are as long as they were, so that the model is its base; what is trained goes on. */
TEST(lengths_are_trained_beside_adapters)
{
    setup("{\"r\": 4, \"targets\": [\"c_attn\", \"mlp.c_fc\"], \"dora\": true}");
    DONE("eval", "base/model", "data.valid=valid.txt", "data.seq_length=32");
    const double base = last_loss();
    DONE("train", "run.json", "steps=1", "optimizer.params.lr=0", "output=zero");
    DONE("eval", "zero/model", "data.valid=valid.txt", "data.seq_length=32");
    if (!(fabs(last_loss() - base) < 1e-4)) CHECK_SAY("the loss is %g, the base's %g", last_loss(), base); /* of bf16 */
    DONE("train", "run.json", RESUMING);
    CHECK_HAS(ran.out, "trained are 22016 of "); /* the 18432 of A and B, and 4 blocks of 384 + 512 rows */
    DONE("eval", "out/model", "data.valid=valid.txt", "data.seq_length=32");
    const double exact = last_loss();
    DONE("merge", "base/model", "out/model", "merged");
    DONE("eval", "merged", "data.valid=valid.txt", "data.seq_length=32");
    if (!(fabs(last_loss() - exact) < 2e-6))
        CHECK_SAY("the merged model's loss is %.7f, it was %.7f", last_loss(), exact);
    DONE("train", "run.json", RESUMING, "checkpoint.resume=true", "checkpoint.keep=1", "output=on", "steps=6");
    DONE("train", "run.json", "steps=6");
    CHECK(same_file("on/model/adapter_model.safetensors", ADAPTER));
    FAILS(2, ("train", "run.json", "lora.from=out/model", "lora.r=auto", "lora.targets=[]", "lora.rslora=true"),
          "rslora: 1, but the adapter in out/model has 0 (leave it out)");
}

static bool has_text(const char *path, const char *part)
{
    char *text = read_file(path, NULL);
    const bool has = text && strstr(text, part);
    free(text);
    return has;
}

/* What it becomes has plain numbers, as a checkpoint's model has; merged they are in bf16. */
static void check_few_bits(const char *base, const char *targets, double rounding)
{
    char text[1500];
    fresh();
    snprintf(text, sizeof text,
             "{\"model\": \"%s\", \"data\": {\"train\": \"" TESS_FIXTURES
             "/families/tokens.bin\", \"valid\": \"" TESS_FIXTURES "/families/tokens.bin\", \"seq_length\": 21},\n"
             " \"output\": \"out\", \"overwrite\": true, \"train_batch_size\": 3, \"steps\": 3,\n"
             " \"optimizer\": {\"params\": {\"lr\": 0.01}}}\n",
             base);
    write_text("run.json", text);
    DONE("train", "run.json", "lora.r=4", targets);
    if (strstr(base, "deepseek"))
        CHECK_HAS(ran.err, "2 tensors of layers from 2 on, which guess further tokens, are left alone");
    CHECK(has_text("out/model/adapter_config.json", "\"fan_in_fan_out\": false"));
    DONE("eval", "run.json", "model=out/model");
    const double adapted = last_loss();
    DONE("merge", base, "out/model", "merged");
    CHECK(exists("merged/config.json") && !has_text("merged/config.json", "quantization_config"));
    DONE("eval", "run.json", "model=merged");
    if (!(fabs(last_loss() - adapted) < rounding))
        CHECK_SAY("%s: the merged model's loss is %.7f, it was %.7f", base, last_loss(), adapted);
    DONE("train", "run.json", "output=plain", "checkpoint.dir=ck");
    CHECK(exists("plain/model/config.json") && !has_text("plain/model/config.json", "quantization_config"));
    DONE("export", "ck/step-00000003", "exported");
    CHECK(same_file("exported/model.safetensors", "plain/model/model.safetensors"));
}

/* The codes that files have are those that a run holds: in bf16 they are the bits of what they stand for. */
TEST(a_base_that_bitsandbytes_stored)
{
    static const char base[] = TESS_FIXTURES "/families/llama-nf4";
    fresh();
    write_text("run.json",
               "{\"model\": \"" TESS_FIXTURES "/families/llama-nf4\", \"data\": {\"train\": \"" TESS_FIXTURES
               "/families/tokens.bin\", \"valid\": \"" TESS_FIXTURES "/families/tokens.bin\", \"seq_length\": 21},\n"
               " \"output\": \"out\", \"overwrite\": true, \"train_batch_size\": 3, \"steps\": 3,\n"
               " \"bf16\": {\"enabled\": true}, \"deterministic\": true, \"optimizer\": {\"params\": {\"lr\": 0.01}},\n"
               " \"lora\": {\"r\": 4, \"targets\": \"all-linear\"}}\n");
    DONE("train", "run.json", "output=plain");
    CHECK_HAS(ran.err, "has quantized matrices, which become plain numbers (lora.base=nf4");
    DONE("train", "run.json", "lora.base=nf4");
    CHECK(!strstr(ran.err, "plain numbers"));
    CHECK(same_file("plain/model/adapter_model.safetensors", ADAPTER));
    DONE("train", "run.json", "lora.base=int8", "output=other");
    CHECK(!same_file("other/model/adapter_model.safetensors", ADAPTER));
    DONE("eval", "run.json", "model=out/model", "bf16.enabled=false");
    const double adapted = last_loss();
    DONE("merge", base, "out/model", "merged");
    CHECK(!has_text("merged/config.json", "quantization_config"));
    DONE("eval", "run.json", "model=merged", "lora.r=auto", "lora.targets=[]", "bf16.enabled=false");
    CHECK(fabs(last_loss() - adapted) < 2e-2); /* W + B A is rounded to the bf16 that W was of */
    write_text("ids.jsonl", "{\"input_ids\": [1, 2, 3]}\n");
    DONE("generate", base, "--prompts", "ids.jsonl", "-n", "4");
}

TEST(a_base_may_be_stored_in_few_bits)
{
    check_few_bits(TESS_FIXTURES "/families/gpt-oss-mxfp4", "lora.targets=[\"q_proj\", \"v_proj\"]", 2e-6);
    check_few_bits(TESS_FIXTURES "/families/deepseek-v3-fp8", "lora.targets=[\"q_proj\", \"kv_b_proj\"]", 2e-3);
}

/* Beside linear attention, whose taps have a dimension more in files; what sees images is left alone. */
TEST(adapters_of_a_published_qwen3_5)
{
    static const char base[] = TESS_FIXTURES "/families/qwen3-5-published";
    fresh();
    write_text("run.json",
               "{\"model\": \"" TESS_FIXTURES "/families/qwen3-5-published\", \"data\": {\"train\": \"" TESS_FIXTURES
               "/families/tokens.bin\", \"valid\": \"" TESS_FIXTURES "/families/tokens.bin\", \"seq_length\": 21},\n"
               " \"output\": \"out\", \"train_batch_size\": 3, \"steps\": 3,\n"
               " \"optimizer\": {\"params\": {\"lr\": 0.01}}, \"lora\": {\"r\": 4, \"targets\": \"all-linear\"}}\n");
    DONE("train", "run.json");
    DONE("eval", "run.json", "model=out/model");
    const double adapted = last_loss();
    DONE("merge", base, "out/model", "merged");
    DONE("eval", "run.json", "model=merged", "lora.r=auto", "lora.targets=[]");
    CHECK(fabs(last_loss() - adapted) < 1e-4);
    FAILS(2, ("export", "merged", "--gguf", "x.gguf"), "a qwen3_5 is not written to GGUF");
}

TEST(the_base_has_no_states)
{
    setup("{\"r\": 4}");
    DONE("train", "run.json", "lora.r=auto", "output=full");
    DONE("train", "run.json");
    const double full = of_tier("full/metrics.jsonl", "cpu", "resident_bytes"),
                 some = of_tier("out/metrics.jsonl", "cpu", "resident_bytes");
    if (!(some < 0.4 * full)) CHECK_SAY("%.0f bytes are held, all trained %.0f", some, full);
    CHECK(of_tier("out/metrics.jsonl", "cpu", "peak_bytes") < 0.5 * of_tier("full/metrics.jsonl", "cpu", "peak_bytes"));
    DONE("estimate", "run.json");
    CHECK_HAS(ran.out, "of them trained");
    DONE("train", "run.json", "output=capped", "memory.cpu=6MiB", "memory.path=swap", "zero_optimization.stage=3",
         "zero_optimization.offload_param.device=nvme", "activation_checkpointing.enabled=true");
    CHECK(of_tier("capped/metrics.jsonl", "disk", "read_bytes") > 0);
    CHECK(same_file("capped/model/adapter_model.safetensors", ADAPTER));
}

TEST(a_run_with_adapters_goes_on)
{
    setup("{\"r\": 4, \"dropout\": 0.1, \"targets\": \"all-linear\"}");
    DONE("train", "run.json", "output=whole");
    DONE("train", "run.json", RESUMING, "steps=2");
    CHECK(file_size("ck/step-00000002/states.safetensors") < file_size("base/model/model.safetensors") / 4);
    FAILS(2, ("train", "run.json", RESUMING, "checkpoint.resume=true", "lora.alpha=5"),
          "ck/step-00000002: its adapters have alpha 8, the configuration's 5");
    FAILS(2,
          ("train", "run.json", RESUMING, "checkpoint.resume=true", "lora.r=auto", "lora.dropout=auto",
           "lora.targets=[]"),
          "ck/step-00000002: is of a run with adapters");
    DONE("train", "run.json", RESUMING, "checkpoint.resume=true");
    CHECK(same_file("whole/model/adapter_model.safetensors", ADAPTER));
    DONE("export", "ck", "exported");
    CHECK(same_file("exported/adapter_model.safetensors", ADAPTER));
    CHECK(same_file("exported/adapter_config.json", "out/model/adapter_config.json"));
    DONE("generate", "ck", "--prompt", "a", "-n", "2");
    FAILS(2, ("merge", "base/model", "ck/step-00000004", "merged"),
          "ck/step-00000004: is a checkpoint (tessera export makes an adapter's directory of it)");
    CHECK(!exists("merged"));
    DONE("train", "run.json", "steps=1", "lora.modules_to_save=ln_f", "output=norms");
    json_t *saved = json_load_file("norms/model/adapter_config.json", 0, NULL);
    CHECK_STR(json_string_value(json_array_get(json_object_get(saved, "modules_to_save"), 0)), "ln_f");
    json_decref(saved);
    DONE("train", "run.json", RESUMING, "checkpoint.resume=true");
    CHECK_HAS(ran.out, "nothing to do");
}

/* Activations do not go to the disk, whatever the machine's rates are: the base alone is read. */
#define CAPPED                                                                                                         \
    "memory.cpu=5400KiB", "memory.path=swap", "zero_optimization.stage=3",                                             \
        "zero_optimization.offload_param.device=nvme", "activation_checkpointing.enabled=true",                        \
        "activation_checkpointing.keep_more=false", "activation_checkpointing.offload=none"
/* What it holds, moves and learns; nothing but rounding is other, under any cap. */
TEST(a_base_in_few_bits)
{
    setup("{\"r\": 4, \"alpha\": 16, \"targets\": \"all-linear\"}");
    DONE("train", "run.json", "output=stored");
    const double loss = last_of("stored/metrics.jsonl", "loss");
    DONE("train", "run.json", "output=slow", CAPPED);
    const double read = of_tier("slow/metrics.jsonl", "disk", "read_bytes");
    /* 4 blocks of 12 x 128 x 128 elements, which have 2 bytes, 68 bytes or 36 bytes for each 64. */
    static const struct {
        const char *base, *weights;
        double off, read;
    } few[] = {{"int8", "weights                                           979 KiB", 0.01, 0.7},
               {"nf4", "weights                                           595 KiB", 0.1, 0.55}};
    for (int k = 0; k < 2; k++) {
        char base[32];
        snprintf(base, sizeof base, "lora.base=%s", few[k].base);
        DONE("estimate", "run.json", base);
        CHECK_HAS(ran.out, few[k].weights);
        DONE("train", "run.json", base, "eval_every=4");
        const double off = fabs(last_of("out/metrics.jsonl", "loss") - loss),
                     valid = last_of("out/metrics.jsonl", "valid_loss");
        if (!(off > 1e-6 && off < few[k].off)) CHECK_SAY("%s: the loss is %g off", few[k].base, off);
        DONE("eval", "out/model", base, "data.valid=valid.txt", "data.seq_length=32", "bf16.enabled=true");
        CHECK(fabs(last_loss() - valid) < 1e-5);
        DONE("eval", "run.json", base, "model=out/model");
        CHECK(fabs(last_loss() - valid) < 1e-5);
        DONE("eval", "run.json", base, "model=base/model"); /* which has no adapters: as it is stored */
        DONE("train", "run.json", base, "output=capped", CAPPED);
        const double less = of_tier("capped/metrics.jsonl", "disk", "read_bytes");
        if (!(less > 0 && less < few[k].read * read))
            CHECK_SAY("%s: %.0f bytes are read, %.0f as stored", few[k].base, less, read);
        CHECK(same_file("capped/model/adapter_model.safetensors", ADAPTER));
        DONE("train", "run.json", base, "output=cut", "tiles.elements=8192"); /* sums have another order then */
        CHECK(fabs(last_of("cut/metrics.jsonl", "loss") - last_of("out/metrics.jsonl", "loss")) < 1e-3);
        DONE("train", "run.json", base, "checkpoint.dir=saves", "checkpoint.every=2", "output=on", "steps=2");
        DONE("train", "run.json", base, "checkpoint.dir=saves", "output=on", "overwrite=false",
             "checkpoint.resume=true");
        CHECK(same_file("on/model/adapter_model.safetensors", ADAPTER));
        DONE("train", "run.json", base, "bf16.enabled=false", "steps=1", "output=fp32");
    }
    DONE("generate", "out/model", "--prompt", "the tile", "-n", "4");
    DONE("train", "run.json", "lora.r=auto", "lora.targets=[]", "lora.alpha=auto", "output=narrow", "steps=1",
         "model={\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 48, \"n_layer\": 4, "
         "\"n_inner\": 128, \"n_head\": 4}");
    DONE("train", "run.json", "model=narrow/model", "lora.base=int8", "output=odd", "steps=1");
    CHECK_HAS(ran.err, "lora.base: 12 matrices stay as they are stored, since their rows are no whole blocks of 64 "
                       "(h.0.attn.c_attn.weight first)");
    FAILS(2, ("train", "run.json", "lora.r=auto", "lora.targets=[]", "lora.alpha=auto", "lora.base=nf4"),
          "run.json: lora: base is given, and r is missing");
    FAILS(2, ("train", "run.json", "lora.base=fp4"), "lora.base: \"fp4\", expected one of as stored, int8, nf4");
    FAILS(2, ("train", "run.json", "lora.base=nf4", "lora.dora=true"), "lora: dora: true beside a base in nf4");
}

TEST(adapters_that_cannot_be)
{
    setup("{\"r\": 2}");
    DONE("train", "run.json", "steps=1");
    FAILS(2, ("train", "run.json", "lora.targets=[\"c_attn\", \"q_proj\"]"),
          "lora.targets: \"q_proj\" is no linear of this gpt2 (known: c_attn, c_proj, c_fc)");
    FAILS(2, ("train", "run.json", "lora.r=0"), "lora.r: 0, expected a whole number from 1 to 65536");
    FAILS(2, ("train", "run.json", "lora.r=auto", "lora.alpha=3"), "run.json: lora: alpha is given, and r is missing");
    FAILS(2, ("train", "run.json", "lora.modules_to_save=wte"),
          "lora.modules_to_save: wte.weight is embedding and head in one");
    FAILS(2, ("train", "run.json", "lora.from=out/model", "lora.r=3"),
          "run.json: lora: r: 3, but the adapter in out/model has 2");
    FAILS(2, ("train", "run.json", "lora.from=nowhere"), "nowhere/adapter_config.json: cannot be read");
    FAILS(2,
          ("train", "run.json",
           "model={\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 36}"),
          "lora: the model has no weights");
    /* Beside another base: other widths, and other layers. */
    DONE("train", "run.json", "lora.r=auto", "output=narrow", "steps=1",
         "model={\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 32, \"n_layer\": 4, "
         "\"n_head\": 4}");
    DONE("train", "run.json", "lora.r=auto", "output=low", "steps=1",
         "model={\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 128, \"n_layer\": 2, "
         "\"n_head\": 4}");
    static const char *const bases[][2] = {
        {"narrow/model", "has shape (2,128), the model needs (2,32)"},
        {"low/model", "fits nothing in this gpt2 (is the adapter for another base?)"}};
    for (int k = 0; k < 2; k++) {
        FAILS(2, ("merge", bases[k][0], "out/model", "merged"), "out/model/adapter_model.safetensors: ", bases[k][1]);
        CHECK(!exists("merged"));
        FAILS(2, ("generate", bases[k][0], "--adapter", "out/model", "--prompt", "a", "-n", "1"),
              "out/model/adapter_model.safetensors: ", bases[k][1]);
    }
    rename("base/model", "base/gone");
    FAILS(2, ("generate", "out/model", "--prompt", "a", "-n", "1"),
          "out/model/adapter_config.json: base_model_name_or_path: ", "is no directory of a model");
    rename("base/gone", "base/model");
    json_t *config = json_load_file("out/model/adapter_config.json", 0, NULL);
    static const struct {
        const char *key, *value, *said;
    } odd[] = {{"use_dora", "2", "use_dora: 2 (expected true or false)"},
               {"bias", "\"all\"", "bias: \"all\" (expected \"none\")"},
               {"rank_pattern", "{\"a\": 3}", "rank_pattern: {\"a\":3}"},
               {"peft_type", "\"IA3\"", "peft_type: \"IA3\" (expected \"LORA\")"},
               {"r", "0", "r: 0 (expected a whole number"},
               {"init_lora_weights", "\"pissa\"", "init_lora_weights: \"pissa\""},
               {"use_rslora", "1", "use_rslora: 1 (expected true or false)"},
               {"bias", "1", "bias: 1 (expected"},
               {"lora_dropout", "\"0.1\"", "lora_dropout: \"0.1\" (expected a number)"},
               {"target_modules", "[1]", "target_modules: [1] (expected a list of names, or an expression)"},
               {"modules_to_save", "\"ln_f\"", "modules_to_save: \"ln_f\" (expected a list of names)"},
               {"a_key_of_tomorrow", "1", "a_key_of_tomorrow: 1"}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        json_t *changed = json_deep_copy(config);
        json_object_set_new(changed, odd[i].key, json_loads(odd[i].value, JSON_DECODE_ANY, NULL));
        CHECK(!json_dump_file(changed, "out/model/adapter_config.json", 0));
        FAILS(2, ("generate", "out/model", "--prompt", "a", "-n", "1"), "out/model/adapter_config.json: ", odd[i].said);
        json_decref(changed);
    }
    json_decref(config);
}
