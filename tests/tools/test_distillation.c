/* Runs that learn from a teacher: what they leave, go on from and refuse, and that their bits are one run's. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

#define MODEL(width, layers)                                                                                           \
    "{\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": " width ", \"n_layer\": " layers \
    ", "                                                                                                               \
    "\"n_head\": 4, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0}"
#define THE_RUN                                                                                                        \
    ", \"data\": {\"train\": \"text.txt\", \"seq_length\": 32}, \"overwrite\": true, \"train_batch_size\": 4, "        \
    "\"train_micro_batch_size_per_gpu\": 2, \"deterministic\": true, \"optimizer\": {\"params\": {\"lr\": 3e-3}}"

static double number_at(const char *path, size_t line, const char *name)
{
    json_t *all = read_metrics(path);
    const double x = number_of(all, line, name);
    json_decref(all);
    return x;
}

/* A teacher that learned for longer. */
static void setup(void)
{
    fresh();
    mkdir("swap", 0777);
    write_tiny_text("text.txt", 900, 2);
    write_tiny_text("valid.txt", 300, 3);
    write_text("teacher.json", "{\"model\": " MODEL("48", "1") THE_RUN ", \"output\": \"t\", \"steps\": 40}\n");
    write_text("run.json", "{\"model\": " MODEL("32", "2") THE_RUN
               ", \"output\": \"out\", \"steps\": 4, \"distill\": "
               "{\"teacher\": \"t/model\", \"top_k\": 6, \"temperature\": 2}}\n");
    DONE("train", "teacher.json");
}

TEST(the_teacher_is_learned_from)
{
    setup();
    DONE("train", "run.json", "steps=40", "data.valid=valid.txt", "eval_every=40");
    CHECK(number_at("out/metrics.jsonl", 39, "loss") < 0.8 * number_at("out/metrics.jsonl", 0, "loss"));
    CHECK(exists("out/teacher.safetensors"));
    CHECK_HAS(ran.out, "teacher: t/model is asked for 6 tokens of each place of 28 samples, 0.0 MB");
    /* an evaluation is of the labels alone */
    DONE("eval", "run.json", "model=out/model", "data.valid=valid.txt");
    CHECK_HAS(ran.out, "perplexity ");
    CHECK_NEAR(strtod(strstr(ran.out, "loss ") + 5, NULL), number_at("out/metrics.jsonl", 39, "valid_loss"), 1e-5);
    DONE("estimate", "run.json");
    /* what is of the model's parameters is not of the teacher's */
    DONE("train", "run.json", "freeze=h.1.*", "optimizer.groups=[{\"match\": \"h.1.*\", \"lr_scale\": 0.5}]");
    DONE("train", "run.json", "model=out/model", "output=adapted", "lora.r=2", "lora.targets=all-linear",
         "lora.base=int8");
}

TEST(the_same_bits_under_a_cap_on_ranks_and_after_a_resume)
{
    setup();
    DONE("train", "run.json");
    DONE("train", "run.json", "output=capped", "memory.cpu=3MiB", "memory.path=swap");
    CHECK(same_file("capped/model/model.safetensors", TINY_WEIGHTS));
    CHECK(same_file("capped/teacher.safetensors", "out/teacher.safetensors"));
    DONE_RANKS(2, "train", "run.json", "output=two");
    CHECK(same_file("two/model/model.safetensors", TINY_WEIGHTS));
    CHECK(same_file("two/teacher.safetensors", "out/teacher.safetensors"));
    DONE("train", "run.json", "output=on", "checkpoint.dir=ck", "steps=2");
    rename("t", "gone"); /* it is not asked again */
    DONE("train", "run.json", "output=on", "checkpoint.dir=ck", "overwrite=false", "--resume");
    CHECK(same_file("on/model/model.safetensors", TINY_WEIGHTS));
#define ON "train", "run.json", "output=on", "checkpoint.dir=ck", "overwrite=false", "steps=6", "--resume"
    FAILS(2, (ON, "distill.top_k=7"),
          "on/teacher.safetensors: has a teacher's scores for distill.top_k 6, but that is 7");
    write_tiny_text("text.txt", 900, 5);
    FAILS(2, (ON), "on/teacher.safetensors: has a teacher's scores of other data than data.train");
    remove("on/teacher.safetensors");
    FAILS(2, (ON), "on/teacher.safetensors");
}

TEST(half_precisions_learn)
{
    setup();
    DONE("train", "run.json", "steps=30", "output=full");
    const double full = number_at("full/metrics.jsonl", 29, "loss");
    DONE("train", "run.json", "steps=30", "bf16.enabled=true");
    CHECK_NEAR(number_at("out/metrics.jsonl", 29, "loss"), full, 0.05 * full);
    DONE("train", "run.json", "steps=30", "fp16.enabled=true");
    CHECK_NEAR(number_at("out/metrics.jsonl", 29, "loss"), full, 0.05 * full);
}

TEST(what_is_no_teacher_is_refused)
{
    setup();
    FAILS(2, ("train", "run.json", "distill.teacher=nowhere"), "nowhere");
    FAILS(2, ("train", "run.json", "distill.weight=0"), "distill.weight");
    FAILS(2, ("train", "run.json", "distill.top_k=0"), "distill.top_k");
    FAILS(2, ("train", "run.json", "distill.top_k=300"), "300 tokens of a row are wanted");
    FAILS(2, ("train", "run.json", "preference.loss=orpo"), "preference.loss: is given, but distill.teacher");
    FAILS_RANKS(2, (2, "train", "run.json", "parallel.tensor=2"), "parallel.tensor: 2, but with a teacher");
    write_text("other.json",
               "{\"model\": {\"model_type\": \"gpt2\", \"vocab_size\": 300, \"n_positions\": 32, "
               "\"n_embd\": 32, \"n_layer\": 1, \"n_head\": 4}" THE_RUN ", \"output\": \"o\", \"steps\": 1}\n");
    write_text("ids.jsonl", "{\"input_ids\": [1, 2, 3, 299]}\n");
    DONE("train", "other.json", "data.train=ids.jsonl", "train_batch_size=2");
    FAILS(2, ("train", "run.json", "distill.teacher=o/model"),
          "distill.teacher: o/model has another vocabulary than the model");
    CHECK(!exists("out/teacher.safetensors"));
    DONE("train", "run.json", "distill.teacher=null", "preference.beta=1", "steps=1");
    CHECK_HAS(ran.err, "distill: without effect, since distill.teacher is missing");
    CHECK_HAS(ran.err, "preference: without effect, since preference.loss is none");
}
