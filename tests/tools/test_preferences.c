/* Runs that learn from pairs: what they leave, go on from and refuse, and that their bits are one run's. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

/* Without dropout, which the reference has none of. */
#define STILL_MODEL                                                                                                    \
    "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 32, \"n_layer\": 2, "            \
    "\"n_head\": 4, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}"

static const char *const words[] = {"tile", "disk", "rests", "moves", "tall", "or", "a", "b"};

static void write_pairs(const char *path, int count, unsigned state)
{
    char text[20000];
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        const char *w[6];
        for (int k = 0; k < 6; k++) w[k] = words[(state = state * 1103515245u + 12345u) >> 16 & 7];
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "{\"prompt\": \"say %s\", \"chosen\": \" %s %s\", \"rejected\": \" %s %s %s\"}\n", w[0],
                              w[1], w[2], w[3], w[4], i % 2 ? w[5] : "");
    }
    write_text(path, text);
}

/* Of KTO. */
static void write_judged(const char *path, int count, unsigned state)
{
    char text[20000];
    size_t n = 0;
    for (int i = 0; i < count; i++) {
        const char *w[4];
        for (int k = 0; k < 4; k++) w[k] = words[(state = state * 1103515245u + 12345u) >> 16 & 7];
        n += (size_t)snprintf(text + n, sizeof text - n,
                              "{\"prompt\": \"say %s\", \"completion\": \" %s %s\", \"label\": %s}\n", w[0], w[1], w[2],
                              i % 3 ? "true" : "false");
    }
    write_text(path, text);
}

static void setup(const char *loss, const char *more)
{
    char text[1500];
    fresh();
    mkdir("swap", 0777);
    write_pairs("pairs.jsonl", 13, 5);
    write_pairs("valid.jsonl", 5, 9);
    if (!strcmp(loss, "kto")) write_judged("pairs.jsonl", 13, 5), write_judged("valid.jsonl", 5, 9);
    snprintf(text, sizeof text,
             "{\"model\": " STILL_MODEL
             ", \"data\": {\"train\": \"pairs.jsonl\", \"valid\": \"valid.jsonl\", \"seq_length\": 32}, \"output\": "
             "\"out\", \"overwrite\": true, \"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, \"steps\": "
             "4, \"eval_every\": 2, \"optimizer\": {\"params\": {\"lr\": 3e-3}}, \"preference\": {\"loss\": "
             "\"%s\"}%s}\n",
             loss, more);
    write_text("run.json", text);
}

static double number_at(const char *path, size_t line, const char *name)
{
    json_t *all = read_metrics(path);
    const double x = number_of(all, line, name);
    json_decref(all);
    return x;
}

/* Before the first update the model is its own reference: all rewards are 0, and the loss is log 2. */
TEST(the_reference_is_the_model_as_it_begins)
{
    setup("dpo", "");
    DONE("train", "run.json", "steps=30");
    CHECK_NEAR(number_at("out/metrics.jsonl", 0, "loss"), log(2), 1e-6);
    CHECK_NEAR(number_at("out/metrics.jsonl", 0, "margin"), 0, 1e-6);
    CHECK(number_at("out/metrics.jsonl", 29, "loss") < 0.6);
    CHECK(number_at("out/metrics.jsonl", 29, "accuracy") > 0.7);
    const double chosen = number_at("out/metrics.jsonl", 29, "valid_reward_chosen"),
                 rejected = number_at("out/metrics.jsonl", 29, "valid_reward_rejected");
    CHECK_NEAR(number_at("out/metrics.jsonl", 29, "valid_margin"), chosen - rejected, 1e-5);
    CHECK(number_at("out/metrics.jsonl", 29, "valid_accuracy") >= 0);
    CHECK(exists("out/reference.safetensors"));
    CHECK_HAS(ran.out, "margin ");
}

TEST(losses_that_need_no_reference)
{
    setup("simpo", "");
    DONE("train", "run.json", "steps=20");
    CHECK(number_at("out/metrics.jsonl", 19, "loss") < number_at("out/metrics.jsonl", 0, "loss"));
    CHECK(!exists("out/reference.safetensors"));
    const double valid = number_at("out/metrics.jsonl", 19, "valid_loss");
    DONE("eval", "run.json", "model=out/model");
    double loss = NAN;
    CHECK(sscanf(strstr(ran.out, "loss "), "loss %lf", &loss) == 1);
    CHECK_NEAR(loss, valid, 1e-5);
    CHECK_HAS(ran.out, "pairs 5  accuracy ");
    DONE("train", "run.json", "preference.loss=orpo", "steps=20");
    CHECK(number_at("out/metrics.jsonl", 19, "loss") < number_at("out/metrics.jsonl", 0, "loss"));
}

TEST(the_same_bits_under_a_cap_on_ranks_and_after_a_resume)
{
    setup("dpo", ", \"deterministic\": true, \"checkpoint\": {\"dir\": \"ck\", \"every\": 2}");
    DONE("train", "run.json");
    DONE("train", "run.json", "output=capped", "checkpoint.dir=ck2", "memory.cpu=3MiB", "memory.path=swap",
         "zero_optimization.stage=3", "zero_optimization.offload_param.device=nvme",
         "zero_optimization.offload_optimizer.device=nvme");
    json_t *all = read_metrics("capped/metrics.jsonl");
    const json_t *last = json_array_get(all, 3);
    CHECK(json_number_value(json_object_get(json_object_get(last, "disk"), "read_bytes")) > 0);
    CHECK(json_number_value(json_object_get(json_object_get(last, "cpu"), "peak_bytes")) <= 3 << 20);
    json_decref(all);
    CHECK(same_file("capped/model/model.safetensors", TINY_WEIGHTS));
    CHECK(same_file("capped/reference.safetensors", "out/reference.safetensors"));
    DONE_RANKS(2, "train", "run.json", "output=two", "checkpoint.dir=ck3", "train_micro_batch_size_per_gpu=2");
    CHECK(same_file("two/model/model.safetensors", TINY_WEIGHTS));
    CHECK(same_file("two/reference.safetensors", "out/reference.safetensors"));
    CHECK_NEAR(number_at("two/metrics.jsonl", 3, "valid_margin"), number_at("out/metrics.jsonl", 3, "valid_margin"), 0);
    DONE("train", "run.json", "output=on", "checkpoint.dir=ck4", "steps=2");
    DONE("train", "run.json", "output=on", "checkpoint.dir=ck4", "overwrite=false", "--resume");
    CHECK(same_file("on/model/model.safetensors", TINY_WEIGHTS));
    FAILS(2,
          ("train", "run.json", "output=on", "checkpoint.dir=ck4", "overwrite=false", "steps=6", "--resume",
           "data.seq_length=24"),
          "on/reference.safetensors: has scores of sequences of 32 tokens, but data.seq_length is 24 (go on with 32,");
    write_pairs("other.jsonl", 13, 6);
    FAILS(2,
          ("train", "run.json", "output=on", "checkpoint.dir=ck4", "overwrite=false", "steps=6", "--resume",
           "data.valid=other.jsonl"),
          "on/reference.safetensors: has scores of other data than data.train and data.valid (go on with the same,");
    remove("on/reference.safetensors");
    FAILS(2, ("train", "run.json", "output=on", "checkpoint.dir=ck4", "overwrite=false", "steps=6", "--resume"),
          "on/reference.safetensors");
}

/* Its bound is found before each step, for all of the step's samples. */
TEST(kto_has_the_same_bits_under_a_cap_on_ranks_and_after_a_resume)
{
    setup("kto", ", \"deterministic\": true");
    DONE("train", "run.json", "checkpoint.dir=ck", "steps=6", "train_micro_batch_size_per_gpu=4");
    CHECK_NEAR(number_at("out/metrics.jsonl", 0, "loss"), 0.5, 1e-6);
    CHECK_NEAR(number_at("out/metrics.jsonl", 0, "kl"), 0, 1e-6);
    CHECK(number_at("out/metrics.jsonl", 5, "kl") > 0 && number_at("out/metrics.jsonl", 5, "valid_kl") > 0);
    DONE("train", "run.json", "output=capped", "checkpoint.dir=ck2", "steps=6", "train_micro_batch_size_per_gpu=4",
         "memory.cpu=3MiB", "memory.path=swap");
    CHECK(same_file("capped/model/model.safetensors", TINY_WEIGHTS));
    CHECK(same_file("capped/reference.safetensors", "out/reference.safetensors"));
    DONE("train", "run.json", "output=clipped", "checkpoint.dir=ck3", "steps=6", "train_micro_batch_size_per_gpu=2",
         "gradient_clipping=1e6");
    DONE_RANKS(2, "train", "run.json", "output=two", "checkpoint.dir=ck4", "steps=6", "gradient_clipping=1e6",
               "train_micro_batch_size_per_gpu=2");
    CHECK(same_file("two/model/model.safetensors", "clipped/model/model.safetensors"));
    CHECK(same_file("two/reference.safetensors", "out/reference.safetensors"));
    for (size_t step = 0; step < 6; step++) /* however the batch is cut, but for the order of sums in gradients */
        CHECK_NEAR(number_at("two/metrics.jsonl", step, "kl"), number_at("out/metrics.jsonl", step, "kl"), 1e-5);
    DONE("train", "run.json", "output=on", "checkpoint.dir=ck5", "steps=2", "train_micro_batch_size_per_gpu=4");
    DONE("train", "run.json", "output=on", "checkpoint.dir=ck5", "steps=6", "train_micro_batch_size_per_gpu=4",
         "overwrite=false", "--resume");
    CHECK(same_file("on/model/model.safetensors", TINY_WEIGHTS));
}

/* Of what a step has none of there is no mean. */
TEST(kto_learns_what_is_good)
{
    setup("kto", "");
    DONE("train", "run.json", "steps=40", "data.valid=pairs.jsonl");
    CHECK(number_at("out/metrics.jsonl", 39, "valid_loss") < 0.47);
    CHECK(number_at("out/metrics.jsonl", 39, "valid_reward_chosen") >
          number_at("out/metrics.jsonl", 39, "valid_reward_rejected"));
    write_text("pairs.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": true}\n"
                              "{\"prompt\": \"c\", \"completion\": \"d\", \"label\": 1}\n");
    DONE("train", "run.json", "steps=2");
    char *metrics = read_file("out/metrics.jsonl", NULL);
    CHECK_HAS(metrics, "\"reward_rejected\":null");
    free(metrics);
    FAILS(2, ("eval", "run.json"), "preference.loss: kto compares with the model that the run began with");
    FAILS(2, ("train", "run.json", "preference.nll=1"), "preference.nll: 1, but kto learns from no pairs");
    FAILS(2, ("train", "run.json", "preference.label_smoothing=0.1"), "preference.label_smoothing: 0.1, but kto");
    write_text("pairs.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    FAILS(2, ("train", "run.json"), "pairs.jsonl: line 1, byte ", "has no \"label\", true or false");
    write_text("pairs.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\", \"label\": \"good\"}\n");
    FAILS(2, ("train", "run.json"), "pairs.jsonl: line 1, byte ", "\"label\" is neither true nor false");
    write_text("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n");
    FAILS(2, ("train", "run.json"), "pairs.jsonl: line 1, byte ", "is no {\"prompt\", \"completion\", \"label\"}");
    write_tiny_text("text.txt", 600, 2);
    FAILS(2, ("train", "run.json", "data.train=text.txt"), "text.txt: has no labels of completions");
}

/* Under a cap with clipping, updates wait for the next step, and keep the loss of this one. Sequences are longer than a
 * row tile. */
TEST(the_same_bits_with_late_updates_and_in_spans)
{
    setup("dpo", "");
    static const char model[] = "model={\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 256, "
                                "\"n_embd\": 128, \"n_layer\": 4, \"n_head\": 4, \"resid_pdrop\": 0, "
                                "\"embd_pdrop\": 0, \"attn_pdrop\": 0}";
    DONE("train", "run.json", model, "data.seq_length=256", "tiles.rows=128", "tiles.loss_rows=100");
    DONE("train", "run.json", model, "data.seq_length=256", "tiles.rows=128", "tiles.loss_rows=100", "output=capped",
         "memory.cpu=14MiB", "memory.path=swap");
    CHECK(same_file("capped/model/model.safetensors", TINY_WEIGHTS));
    CHECK(same_file("capped/reference.safetensors", "out/reference.safetensors"));
}

TEST(half_precisions_learn)
{
    static const char *const kinds[] = {"bf16.enabled=true", "fp16.enabled=true"};
    static const char *const losses[] = {"preference.loss=dpo", "preference.loss=orpo"};
    setup("dpo", "");
    for (int k = 0; k < 2; k++)
        for (int l = 0; l < 2; l++) {
            DONE("train", "run.json", losses[l], "steps=30", "output=full");
            DONE("train", "run.json", losses[l], kinds[k], "steps=30");
            const double full = number_at("full/metrics.jsonl", 0, "loss");
            CHECK_NEAR(number_at("out/metrics.jsonl", 0, "loss"), full, 0.03 * full);
            CHECK(number_at("out/metrics.jsonl", 29, "loss") < 0.9 * full);
            CHECK(number_at("out/metrics.jsonl", 29, "margin") > 0.01);
        }
}

/* Of adapters, which begin as nothing, the reference is their base. */
TEST(adapters_have_their_base_as_a_reference)
{
    setup("dpo", "");
    DONE("train", "run.json", "output=base", "steps=1");
    DONE("train", "run.json", "model=base/model", "lora.r=4");
    CHECK_NEAR(number_at("out/metrics.jsonl", 0, "loss"), log(2), 1e-6);
    CHECK(number_at("out/metrics.jsonl", 3, "margin") > 0);
    CHECK(exists("out/model/adapter_model.safetensors"));
}

/* Questions of a task are scored by the model alone, whatever the run learns from. */
TEST(tasks_are_scored_without_the_loss_of_pairs)
{
    static const char task[] = "{\"context\": \"say \", \"choices\": [\"tile\", \"disk\"], \"answer\": 1}\n";
    setup("dpo", "");
    DONE("train", "run.json");
    write_text("choose.jsonl", task);
    DONE("eval", "out/model", "--task", "choose.jsonl", "--samples", "alone.jsonl");
    DONE("eval", "run.json", "model=out/model", "--task", "choose.jsonl", "--samples", "said.jsonl");
    CHECK(same_file("alone.jsonl", "said.jsonl"));
}

TEST(a_plan_is_of_the_same_graph)
{
    setup("dpo", "");
    DONE("estimate", "run.json");
    CHECK_HAS(ran.out, "256 tokens a step");
    DONE("estimate", "run.json", "preference.loss=simpo", "memory.cpu=3MiB", "memory.path=swap");
}

TEST(what_is_no_pair_is_refused)
{
    setup("dpo", "");
    write_text("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n"
                              "{\"prompt\": \"a\", \"chosen\": \"b\"}\n");
    FAILS(2, ("train", "run.json"), "pairs.jsonl: line 2, byte 48: has no \"rejected\"");
    write_text("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"\"}\n");
    FAILS(2, ("train", "run.json"), "pairs.jsonl: line 1, byte ", "\"rejected\" has no token to learn from");
    write_text("pairs.jsonl", "{\"chosen\": \"b\", \"rejected\": \"c\"}\n");
    FAILS(2, ("train", "run.json"), "pairs.jsonl: line 1, byte ", "has no \"prompt\"");
    write_text("pairs.jsonl", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": [{\"role\": \"user\"}]}\n");
    FAILS(2, ("train", "run.json"), "pairs.jsonl: line 1, byte ",
          "of \"chosen\" and \"rejected\" one is a text, and one messages");
    write_text("pairs.jsonl", "{\"prompt\": \"a\", \"completion\": \"b\"}\n");
    FAILS(2, ("train", "run.json"), "pairs.jsonl: line 1, byte ", "has no \"chosen\"");
    write_tiny_text("text.txt", 600, 2);
    FAILS(2, ("train", "run.json", "data.train=text.txt"), "text.txt: has no pairs");
    FAILS(2, ("train", "run.json", "preference.loss=none", "data.train=valid.jsonl"), "valid.jsonl: line 1, byte ",
          "has a \"chosen\" completion, from which preference.loss learns");
    FAILS(2, ("train", "run.json", "data.pack_examples=true"), "data.pack_examples: true");
    FAILS(2, ("eval", "run.json"), "preference.loss: dpo compares with the model that the run began with");
    FAILS(2, ("train", "run.json", "preference.loss=ppo"), "preference.loss");
    FAILS_RANKS(2, (2, "train", "run.json", "parallel.tensor=2"), "parallel.tensor: 2, but with a loss of pairs");
}
