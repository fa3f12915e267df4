/* The cap on RAM holds, by the kernel's own figure, from drawing or loading to evaluating and saving, of a model whose
 * states take several times as much; and the bits are those of a run without it. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

enum { BESIDE = 300 }; /* MiB for libraries, code and stacks */
static const char config[] =
    "{\"model\": {\"model_type\": \"gpt2\", \"vocab_size\": 4099, \"n_layer\": 8, \"n_embd\": 512, \"n_head\": 8,"
    "\"n_positions\": 128, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0},"
    "\"data\": {\"train\": \"text.bin\", \"valid\": \"valid.bin\", \"seq_length\": 128}, \"bf16\": {\"enabled\": true},"
    "\"eval_every\": 1, \"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, \"steps\": 2}";

/* Peak RSS in MiB of `tessera train run.json SETTING...`. */
#define PEAK(...) (run_finish(START("train", "run.json", __VA_ARGS__)), peak())
static long peak(void)
{
    EXPECT_DONE();
    return ran.peak;
}

/* A tenth of what the run takes in all, and a little for each worker. */
static long cap(void)
{
    return 50 + 20 * sysconf(_SC_NPROCESSORS_ONLN);
}

static void check_cap(const char *what, long mib)
{
    printf("%s: peak %ld MiB under a cap of %ld MiB\n", what, mib, cap());
    CHECK(mib > 0);
#ifndef __SANITIZE_ADDRESS__ /* which holds freed memory back */
    CHECK(mib < cap() + BESIDE);
#endif
}

TEST(the_cap_holds)
{
    static const char weights[] = "whole/model/model.safetensors";
    fresh();
    write_text("run.json", config);
    write_tiny_tokens("text.bin", 40000, 1);
    write_tiny_tokens("valid.bin", 1000, 2);
    const char *ram = fmt("memory.cpu=%ldMiB", cap());
    long whole = PEAK("output=whole");
    CHECK(whole > 0);
#ifndef __SANITIZE_ADDRESS__
    CHECK(whole > cap() + BESIDE); /* else the cap shows nothing */
#endif
    printf("whole: peak %ld MiB\n", whole);
    check_cap("drawn, trained, evaluated, saved",
              PEAK("output=capped", "memory.path=.", ram, "steps=1", "checkpoint.dir=ck", "checkpoint.every=1"));
    check_cap("resumed", PEAK("output=capped", "memory.path=.", ram, "checkpoint.dir=ck", "--resume"));
    CHECK(same_file(weights, "capped/model/model.safetensors"));
    json_t *without = read_metrics("whole/metrics.jsonl"), *with = read_metrics("capped/metrics.jsonl");
    CHECK_EQ(json_array_size(with), 2);
    for (size_t step = 0; step < 2; step++)
        CHECK_NEAR(number_of(with, step, "valid_loss"), number_of(without, step, "valid_loss"), 0);
    json_decref(without);
    json_decref(with);
    check_cap("loaded", PEAK("output=loaded", "memory.path=.", ram, "model=whole/model", "steps=1", "eval_every=0",
                             "optimizer.params.lr=0"));
    CHECK(same_file(weights, "loaded/model/model.safetensors")); /* at this rate nothing moves */
}
