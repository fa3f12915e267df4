/* Encoders, and an encoder with a decoder, as a user trains them: lines of examples of several lengths, labels at some
 * places or one a line; with the same bits wherever their tiles lie, and on two ranks. */
#define CHECK_MAIN
#include "runtime/runtime.h"
#include "tests/tools/tiny.h"

enum { LINES = 40, STEPS = 3 };

#define BERT                                                                                                           \
    "\"vocab_size\": 64, \"hidden_size\": 64, \"num_hidden_layers\": 3, \"num_attention_heads\": 4, "                  \
    "\"intermediate_size\": 128, \"max_position_embeddings\": 300, \"hidden_act\": \"gelu\""
static const struct kind {
    const char *model;
    const char *members; /* of a line, behind its input_ids */
    bool splits;         /* tensor ranks share it out */
    int length;          /* 0: 32; longer ones are cut into spans */
} kinds[] = {
    {"{\"model_type\": \"bert\", " BERT "}", "masked", true, 0},
    {"{\"model_type\": \"roberta\", \"architectures\": [\"RobertaForSequenceClassification\"], " BERT
     ", \"id2label\": {\"0\": \"a\", \"1\": \"b\", \"2\": \"c\"}}",
     "label", true, 256},
    {"{\"model_type\": \"t5\", \"vocab_size\": 64, \"d_model\": 64, \"d_kv\": 16, \"d_ff\": 128, \"num_layers\": 2, "
     "\"num_heads\": 4, \"decoder_start_token_id\": 0, \"pad_token_id\": 0}",
     "labels", true, 0},
    {"{\"model_type\": \"t5\", \"vocab_size\": 64, \"d_model\": 32, \"d_kv\": 16, \"d_ff\": 64, \"num_layers\": 2, "
     "\"num_heads\": 2, \"decoder_start_token_id\": 0, \"pad_token_id\": 0}",
     "labels", true, 256},
    {"{\"model_type\": \"bert\", \"architectures\": [\"BertForPreTraining\"], " BERT "}", "masked and follows", true,
     0},
    {"{\"model_type\": \"megatron-bert\", " BERT "}", "masked", true, 0},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

static int length_of(const struct kind *k)
{
    return k->length ? k->length : 32;
}

/* What is to be learnt: the token two places on, the sum of the first two, or the line from its end. */
static void write_line(FILE *f, const struct kind *k, unsigned *dice)
{
    int id[256], n = length_of(k) - 26 + (int)((*dice = *dice * 1103515245u + 12345u) >> 16) % 27;
    for (int i = 0; i < n; i++) id[i] = 5 + (int)((*dice = *dice * 1103515245u + 12345u) >> 16) % 50;
    fprintf(f, "{\"input_ids\": [");
    for (int i = 0; i < n; i++)
        fprintf(f, "%s%d", i ? ", " : "", strncmp(k->members, "masked", 6) == 0 && i % 4 == 1 ? 4 : id[i]);
    fprintf(f, "]");
    if (strcmp(k->members, "label") == 0) {
        fprintf(f, ", \"label\": %d", (id[0] + id[1]) % 3);
    } else {
        fprintf(f, ", \"labels\": [");
        for (int i = 0; i < n; i++)
            fprintf(f, "%s%d", i ? ", " : "",
                    strncmp(k->members, "masked", 6) ? id[n - 1 - i]
                    : i % 4 == 1                     ? id[i]
                                                     : -100);
        fprintf(f, "]");
        if (strstr(k->members, "follows")) fprintf(f, ", \"next_sentence_label\": %d", id[0] % 2);
    }
    fprintf(f, "}\n");
}

static void setup(const struct kind *k)
{
    unsigned dice = 7;
    char text[2000];
    fresh();
    mkdir("swap", 0777);
    FILE *f = fopen("lines.jsonl", "w");
    for (int i = 0; i < LINES; i++) write_line(f, k, &dice);
    fclose(f);
    snprintf(
        text, sizeof text,
        "{\"model\": %s,\n \"data\": {\"train\": \"lines.jsonl\", \"valid\": \"lines.jsonl\", \"seq_length\": %d},\n"
        " \"tiles\": {\"rows\": %d},"
        " \"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 2, \"steps\": %d, \"gradient_clipping\": 1,\n"
        " \"deterministic\": true, \"eval_every\": %d, \"output\": \"out\", \"overwrite\": true}\n",
        k->model, length_of(k), k->length ? 128 : 1024, STEPS, STEPS);
    write_text("run.json", text);
    calm_machine();
}

static json_t *metrics_of(const char *path)
{
    json_t *all = read_metrics(path);
    CHECK_EQ(json_array_size(all), STEPS);
    return all;
}

/* Losses, and the model that it left, are those of the first run. */
static void expect_same(const struct kind *k, const char *how)
{
    EXPECT_DONE();
    json_t *one = metrics_of("one/metrics.jsonl"), *now = metrics_of("out/metrics.jsonl");
    for (size_t s = 0; s < STEPS; s++)
        if (number_of(one, s, "loss") != number_of(now, s, "loss"))
            CHECK_SAY("%.30s %s: the loss of step %zu is %.17g, it was %.17g", k->model, how, s + 1,
                      number_of(now, s, "loss"), number_of(one, s, "loss"));
    CHECK(number_of(one, STEPS - 1, "valid_loss") == number_of(now, STEPS - 1, "valid_loss"));
    if (!same_file("one/model/model.safetensors", TINY_WEIGHTS)) CHECK_SAY("%.30s %s: other weights", k->model, how);
    json_decref(one);
    json_decref(now);
}
#define SAME(...)                                                                                                      \
    do {                                                                                                               \
        RUN("train", "run.json", __VA_ARGS__);                                                                         \
        expect_same(k, #__VA_ARGS__);                                                                                  \
    } while (0)

TEST(the_same_bits_wherever_tiles_lie)
{
    for (const struct kind *k = kinds; k < kinds + KINDS; k++) {
        setup(k);
        DONE("train", "run.json", "output=one");
        SAME("memory.cpu=64MiB", "memory.path=swap", "memory.disk=256MiB", "zero_optimization.stage=3",
             "zero_optimization.offload_optimizer.device=nvme", "zero_optimization.offload_param.device=nvme");
        SAME("activation_checkpointing.enabled=true");
        RUN_RANKS(2, "train", "run.json", "zero_optimization.stage=3");
        expect_same(k, "two ranks at stage 3");
        if (k->length) {
            RUN_RANKS(2, "train", "run.json", "parallel.sequence=2");
            expect_same(k, "sequences shared");
        }
        DONE("eval", "out/model", "data.valid=lines.jsonl", fmt("data.seq_length=%d", length_of(k)));
    }
}

TEST(tensor_and_pipeline_ranks_are_near)
{
    for (const struct kind *k = kinds; k < kinds + KINDS; k++) {
        setup(k);
        RUN("train", "run.json", "output=one");
        json_t *one = metrics_of("one/metrics.jsonl");
        for (int way = 0; way < 3; way++) {
            DONE_RANKS(way == 2 ? 4 : 2, "train", "run.json", way ? "parallel.pipeline=2" : "parallel.tensor=2",
                       way == 2 ? "parallel.tensor=2" : "parallel.interleave=1");
            json_t *now = metrics_of("out/metrics.jsonl");
            for (size_t s = 0; s < STEPS; s++)
                CHECK_NEAR(number_of(now, s, "loss"), number_of(one, s, "loss"), 1e-4 * number_of(one, s, "loss"));
            json_decref(now);
        }
        json_decref(one);
    }
}

TEST(other_commands)
{
    for (const struct kind *k = kinds; k < kinds + KINDS; k++) {
        setup(k);
        DONE("bench", "run.json", "--steps", "1"); /* on samples that are drawn */
        DONE("train", "run.json", "steps=1", "eval_every=0");
        FAILS(2, ("generate", "out/model", "--prompt", "a"), "out/model",
              strcmp(k->members, "labels") ? "text" : "no tokenizer.json");
        if (strcmp(k->members, "labels")) continue;
        write_text("prompts.jsonl", "{\"input_ids\": [5, 6, 7]}\n");
        DONE("generate", "out/model", "--prompts", "prompts.jsonl", "-n", "3", "--ignore-eos");
        CHECK_HAS(ran.out, "{\"input_ids\": [5, 6, 7], \"output_ids\": [");
    }
}

/* Losses and gradients of examples that share a sample are those of the examples one by one; and they have the same
 * bits wherever tiles lie, on two ranks, and where a run goes on. */
TEST(examples_share_samples)
{
    static const char still[] = ", \"attention_probs_dropout_prob\": 0, \"hidden_dropout_prob\": 0}";
    static const char gpt2[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 64, \"n_positions\": 128, \"n_embd\": 64, "
                               "\"n_layer\": 2, \"n_head\": 4, \"resid_pdrop\": 0, \"attn_pdrop\": 0, "
                               "\"embd_pdrop\": 0}";
    static const char llama[] = "{\"model_type\": \"llama\", \"vocab_size\": 64, \"hidden_size\": 64, "
                                "\"intermediate_size\": 96, \"num_hidden_layers\": 2, \"num_attention_heads\": 4, "
                                "\"num_key_value_heads\": 2}";
    static const char qwen[] =
        "{\"model_type\": \"qwen3_5_text\", \"vocab_size\": 64, \"hidden_size\": 64, "
        "\"intermediate_size\": 96, \"num_hidden_layers\": 4, \"num_attention_heads\": 4, "
        "\"num_key_value_heads\": 2, \"head_dim\": 16, \"linear_num_key_heads\": 2, "
        "\"linear_num_value_heads\": 4, \"linear_key_head_dim\": 16, \"linear_value_head_dim\": 12}";
    static const char lines[] = "{\"input_ids\": [5, 6, 4, 8], \"labels\": [-100, 6, 7, 8]}\n"
                                "{\"input_ids\": [9, 4, 11], \"labels\": [9, 10, 11]}\n"
                                "{\"input_ids\": [12, 13, 4, 15, 16, 17], \"labels\": [-100, 13, 14, 15, 16, 17]}\n"
                                "{\"input_ids\": [18, 4], \"labels\": [18, 19]}\n";
    char bert[600];
    snprintf(bert, sizeof bert, "%.*s%s", (int)strlen(kinds[0].model) - 1, kinds[0].model, still);
    const char *const models[] = {gpt2, qwen, llama, bert};
    for (int m = 0; m < 4; m++) {
        const struct kind k = {models[m], "masked", false, 0};
        setup(&k);
        write_text("few.jsonl", lines);
        DONE("train", "run.json", "data.train=few.jsonl", "data.valid=few.jsonl", "train_batch_size=4");
        json_t *alone = metrics_of("out/metrics.jsonl");
        DONE("train", "run.json", "data.train=few.jsonl", "data.valid=few.jsonl", "train_batch_size=1",
             "train_micro_batch_size_per_gpu=1", "data.pack_examples=true");
        CHECK_HAS(ran.out, "data: 1 samples of 32 tokens (15 tokens in 1 file)");
        CHECK_HAS(ran.out, "; 4 examples share them, 53% is padding");
        json_t *shared = metrics_of("out/metrics.jsonl");
        for (size_t s = 0; s < STEPS; s++) {
            const double loss = number_of(alone, s, "loss"), norm = number_of(alone, s, "grad_norm");
            CHECK_NEAR(number_of(shared, s, "loss"), loss, 1e-5 * loss);
            CHECK_NEAR(number_of(shared, s, "grad_norm"), norm, 2e-5 * norm);
        }
        CHECK_NEAR(number_of(shared, 2, "valid_loss"), number_of(alone, 2, "valid_loss"), 1e-5);
        CHECK_NEAR(number_of(shared, 0, "padding"), 1 - 15 / 32., 0.2);
        json_decref(alone), json_decref(shared);
        if (m > 1) continue;
        DONE("train", "run.json", "data.pack_examples=true", "output=one");
        RUN("train", "run.json", "data.pack_examples=true", "memory.cpu=64MiB", "memory.path=swap",
            "memory.disk=256MiB", "zero_optimization.offload_optimizer.device=nvme");
        expect_same(&k, "capped");
        RUN_RANKS(2, "train", "run.json", "data.pack_examples=true", "zero_optimization.stage=3");
        expect_same(&k, "two ranks at stage 3");
        DONE("train", "run.json", "data.pack_examples=true", "checkpoint.dir=ck", "checkpoint.every=2", "output=half");
        DONE("train", "run.json", "data.pack_examples=true", "checkpoint.dir=ck", "checkpoint.every=2", "output=half",
             "overwrite=false", "checkpoint.resume=true", "steps=4", "eval_every=0");
        DONE("train", "run.json", "data.pack_examples=true", "steps=4", "eval_every=0");
        CHECK(same_file("half/model/model.safetensors", TINY_WEIGHTS));
        DONE("train", "run.json", "checkpoint.dir=ck", "output=half", "overwrite=false", "checkpoint.resume=true",
             "steps=5", "eval_every=0");
        CHECK_HAS(ran.err, "resuming with other data");
    }
    setup(&kinds[1]);
    FAILS(2, ("train", "run.json", "data.pack_examples=true"),
          "data.pack_examples: true, but this model has one label for a sample (false does without)");
    setup(&kinds[2]);
    FAILS(2, ("train", "run.json", "data.pack_examples=true"),
          "data.pack_examples: true, but this model has a decoder, whose examples are two sequences each");
}

/* Ids need no tokenizer: one that is not known here says which token masks, and is an error for a text alone. */
TEST(a_tokenizer_that_is_not_known)
{
    setup(&kinds[0]);
    DONE("train", "run.json", "steps=1", "eval_every=0");
    rename("out/model", "given");
    write_text("given/tokenizer.json",
               "{\"normalizer\": {\"type\": \"Rot13\"}, \"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 9}},"
               " \"added_tokens\": [{\"id\": 0, \"content\": \"[PAD]\"}, {\"id\": 4, \"content\": \"[MASK]\"}]}");
    write_text("bare.jsonl", "{\"input_ids\": [5, 6, 7, 8, 9]}\n{\"input_ids\": [9, 8, 7, 6, 5, 4]}\n");
    DONE("train", "run.json", "model=given", "steps=1", "data.train=bare.jsonl", "eval_every=0");
    write_text("plain.txt", "0123456789 9876543210 0123456789 9876543210 0123456789");
    FAILS(2, ("train", "run.json", "model=given", "data.train=plain.txt"), "plain.txt", "tokenizer",
          "normalizer Rot13 is not supported");
    FAILS(2, ("train", "run.json", "model=given", "data.train=bare.jsonl", "data.mlm_whole_words=true"),
          "data.mlm_whole_words");
}

TEST(what_is_wrong_is_one_line)
{
    setup(&kinds[0]);
    FAILS(2, ("train", "run.json", "model.architectures=[\"BertForQuestionAnswering\"]"),
          "BertForQuestionAnswering is not known",
          "BertForMaskedLM, BertForPreTraining, BertForSequenceClassification");
    write_text("plain.txt", "0123456789 9876543210 0123456789 9876543210 0123456789");
    FAILS(2, ("train", "run.json", "data.train=plain.txt"), "plain.txt: is a text, and the model has no tokenizer");
    write_text("lines.jsonl", "{\"input_ids\": [5, 6, 7], \"labels\": [5, 64, -100]}\n");
    FAILS(2, ("train", "run.json"), "lines.jsonl", "line 1", "64");
    setup(&kinds[1]);
    write_text("lines.jsonl", "{\"input_ids\": [5, 6, 7], \"label\": 3}\n");
    FAILS(2, ("train", "run.json"), "lines.jsonl", "line 1", "3");
}
