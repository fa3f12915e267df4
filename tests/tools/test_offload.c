/* DeepSpeed's keys of where things live: each moves what `tessera estimate` says is on disk the way its name says, and
 * no digit of any loss. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

/* In bf16 with some activations; RAM has room for all of it. */
static void offload_setup(void)
{
    wide_setup_with("\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 4, \"steps\": 3,\n"
                    " \"bf16\": {\"enabled\": true},\n"
                    " \"zero_optimization\": {\"stage\": 3, \"offload_param\": {\"max_in_cpu\": 0}}");
}

#define OPTIMIZER   "zero_optimization.offload_optimizer."
#define PARAM       "zero_optimization.offload_param."
#define ACTIVATIONS "activation_checkpointing.offload="

/* The disk's part of an estimate; zeros where it holds nothing. */
struct disk {
    double rests, read, written, slack;
};
#define ESTIMATE(...) (run_finish(START("estimate", "run.json", __VA_ARGS__)), disk_of_estimate())
static struct disk disk_of_estimate(void)
{
    EXPECT_DONE();
    if (strstr(ran.out, "does not fit")) CHECK_SAY("%s: %s", ran.what, ran.out);
    if (strstr(ran.out, "disk\n  nothing")) return (struct disk){0};
    return (struct disk){.rests = line_of("tiles that rest there"),
                         .read = line_of("read in a step"),
                         .written = line_of("written in a step"),
                         .slack = line_of("of it for tiles on their way")};
}
static bool near(double a, double b) /* three digits of both */
{
    return fabs(a - b) <= 0.02 * fabs(b);
}

/* ---- what is on disk ---- */

/* As the demo has it: the run makes its output directory, and the tier lies in it, however that is written. A run that
 * is refused leaves no directory that it made. */
TEST(the_output_directory_may_hold_it)
{
    static const char *const path[] = {"memory.path=runs/new", "memory.path=runs/new//", "memory.path=./runs:swap",
                                       "memory.path=swap:swap/.././runs//new/./"};
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        offload_setup();
        ESTIMATE("output=runs/new", path[i]);
        CHECK_STR(ran.err, "");
        CHECK(!exists("runs"));
        FAILS(2, ("train", "run.json", "output=runs/new", path[i], "memory.cpu=1MiB", "steps=1"), WIDE_LEAST);
        CHECK(!exists("runs"));
        DONE("train", "run.json", "output=runs/new", path[i], "memory.cpu=96MiB", "steps=1");
    }
    FAILS(2, ("train", "run.json", "output=swap", "memory.path=runs/newer", "steps=1"), "runs/newer",
          "cannot hold the disk tier");
    CHECK(exists("swap") && exists("runs/new/model") && !exists("runs/newer"));
    FAILS(2, ("eval", "run.json", "output=newer", "memory.path=newer", "data.valid=text.txt"), "newer",
          "cannot hold the disk tier");
    write_text("file", "mine");
    FAILS(2, ("estimate", "run.json", "memory.path=file"), "file: is not a directory");
}

TEST(the_optimizer)
{
    offload_setup();
    struct disk none = ESTIMATE("memory.path=swap", OPTIMIZER "device=none");
    struct disk cpu = ESTIMATE("memory.path=swap", OPTIMIZER "device=cpu");
    struct disk nvme = ESTIMATE(OPTIMIZER "device=nvme", OPTIMIZER "nvme_path=swap");
    double states = line_of("fp32 masters") + line_of("moments");
    CHECK(none.rests == 0 && cpu.rests == 0);
    CHECK(nvme.rests > 0.95 * states &&
          near(nvme.read, nvme.written)); /* vectors are weights that are trained in place */
    CHECK(nvme.rests < 1.05 * states);
    ESTIMATE(OPTIMIZER "device=nvme", OPTIMIZER "nvme_path=swap", "steps=1000");
    CHECK(near(line_of("written in 1000 steps"), 1000 * nvme.written));
    struct disk few = ESTIMATE(OPTIMIZER "device=nvme", OPTIMIZER "nvme_path=swap", OPTIMIZER "buffer_count=2");
    struct disk many = ESTIMATE(OPTIMIZER "device=nvme", OPTIMIZER "nvme_path=swap", OPTIMIZER "buffer_count=12");
    CHECK(near(many.slack, 6 * few.slack) && near(few.rests, nvme.rests) && near(many.rests, nvme.rests));
}

TEST(the_parameters)
{
    offload_setup();
    const char *const on_disk = PARAM "device=nvme", *const path = PARAM "nvme_path=swap";
    struct disk cpu = ESTIMATE("memory.path=swap", PARAM "device=cpu");
    struct disk nvme = ESTIMATE(on_disk, path), some = ESTIMATE(on_disk, path, PARAM "max_in_cpu=300000");
    double weights = line_of("weights");
    CHECK(cpu.rests == 0);
    CHECK(near(nvme.rests, weights) && nvme.read > nvme.rests);
    CHECK(some.rests < nvme.rests - 0.8 * 2 * 300000 && some.rests >= nvme.rests - 1.1 * 2 * 300000); /* bf16 */
    CHECK(some.read < nvme.read);
    struct disk all = ESTIMATE(on_disk, path, PARAM "max_in_cpu=1e9");
    CHECK(all.rests == 0);
    struct disk stage2 = ESTIMATE(on_disk, path, "zero_optimization.stage=2"); /* as in DeepSpeed, stage 3 alone */
    CHECK(stage2.rests == 0);
    struct disk buffers = ESTIMATE(on_disk, path, PARAM "buffer_count=3", PARAM "buffer_size=100000");
    CHECK(near(buffers.slack, 3 * 100000 * 2) && near(buffers.rests, nvme.rests));
}

TEST(the_activations)
{
    offload_setup();
    struct disk none = ESTIMATE("memory.path=swap", ACTIVATIONS "none");
    struct disk disk = ESTIMATE("memory.path=swap", ACTIVATIONS "disk");
    CHECK(none.rests == 0 && disk.rests > 1 << 20 && disk.read > 1 << 20);
    struct disk recomputed = ESTIMATE("memory.path=swap", ACTIVATIONS "disk", "activation_checkpointing.enabled=true");
    CHECK(recomputed.rests > 0 && recomputed.rests < disk.rests / 2); /* of a block its input alone waits */
}

/* ---- no digit of a loss ---- */

enum { STEPS = 3 };
static double without[STEPS];

static void check_losses(const char *output, bool disk)
{
    char path[64];
    snprintf(path, sizeof path, "%s/metrics.jsonl", output);
    EXPECT_DONE();
    json_t *all = read_metrics(path);
    CHECK_EQ(json_array_size(all), STEPS);
    for (size_t s = 0; s < STEPS; s++) {
        const json_t *tier = json_object_get(json_array_get(all, s), "disk");
        CHECK((json_number_value(json_object_get(tier, "resident_bytes")) > 0) == disk);
        const bool read = json_number_value(json_object_get(tier, "read_bytes")) > 0;
        if (s > 0 || !disk)
            CHECK(read == disk); /* the first step has no late updates to make, so it may read nothing */
        if (!strcmp(output, "none")) without[s] = number_of(all, s, "loss");
        CHECK_NEAR(number_of(all, s, "loss"), without[s], 0);
    }
    json_decref(all);
    if (strcmp(output, "none")) {
        snprintf(path, sizeof path, "%s/model/model.safetensors", output);
        CHECK(same_file(path, "none/model/model.safetensors"));
    }
}
#define CHECK_RUN(output_, disk, ...)                                                                                  \
    do {                                                                                                               \
        RUN("train", "run.json", "output=" output_, __VA_ARGS__);                                                      \
        check_losses(output_, disk);                                                                                   \
    } while (0)

TEST(losses_are_the_same_wherever_things_live)
{
    offload_setup();
    CHECK_RUN("none", false, "seed=1");
    CHECK_RUN("cpu", false, "memory.path=swap", OPTIMIZER "device=cpu", PARAM "device=none", ACTIVATIONS "cpu");
    CHECK_RUN("optimizer", true, OPTIMIZER "device=nvme", OPTIMIZER "nvme_path=swap", OPTIMIZER "buffer_count=1");
    CHECK_RUN("param", true, PARAM "device=nvme", PARAM "nvme_path=swap", PARAM "max_in_cpu=300000",
              PARAM "buffer_count=2", PARAM "buffer_size=100000");
    CHECK_RUN("activations", true, "memory.path=swap", ACTIVATIONS "disk");
    CHECK_RUN("all", true, "memory.path=swap", OPTIMIZER "device=nvme", PARAM "device=nvme", ACTIVATIONS "disk",
              "activation_checkpointing.enabled=true");
}

/* What may not leave RAM asks for more of it. */
TEST(what_stays_needs_room)
{
    offload_setup();
    char cap[64];
    FAILS(2, ("train", "run.json", "memory.path=swap", "memory.cpu=1MiB"), "memory.cpu: 1.0 MiB", "MiB would do");
    long least = named_in_error(WIDE_LEAST), more;
    snprintf(cap, sizeof cap, "memory.cpu=%ldMiB", least);
    CHECK_RUN("none", false, "seed=1");
    CHECK_RUN("least", true, "memory.path=swap", cap);
    FAILS(2, ("train", "run.json", "output=stay", "memory.path=swap", cap, OPTIMIZER "device=none"), "memory.cpu",
          "MiB would do");
    more = named_in_error(WIDE_LEAST);
    CHECK(more >= least + 8); /* masters and moments */
    snprintf(cap, sizeof cap, "memory.cpu=%ldMiB", more);
    CHECK_RUN("stay", true, "memory.path=swap", cap, OPTIMIZER "device=none");
}

/* ---- mistakes ---- */

TEST(disk_without_a_directory)
{
    offload_setup();
    static const char *const set[] = {OPTIMIZER "device=nvme", PARAM "device=nvme", ACTIVATIONS "disk"};
    static const char *const key[] = {"offload_optimizer", "offload_param", "activation_checkpointing.offload"};
    for (int i = 0; i < 3; i++) {
        FAILS(2, ("train", "run.json", set[i]), "run.json: ", key[i], "memory.path");
        CHECK(!exists("out"));
    }
    struct disk one = ESTIMATE(OPTIMIZER "device=nvme", PARAM "device=nvme", PARAM "nvme_path=swap");
    CHECK(one.rests > 0); /* one path is enough for both */
    FAILS(2, ("train", "run.json", OPTIMIZER "device=disk"), "zero_optimization.offload_optimizer.device",
          "none, cpu, nvme");
}

TEST(paths_that_contradict)
{
#define BOTH OPTIMIZER "device=nvme", PARAM "device=nvme", OPTIMIZER "nvme_path=swap"
    offload_setup();
    FAILS(2, ("train", "run.json", BOTH, PARAM "nvme_path=other"), "run.json: " OPTIMIZER "nvme_path: \"swap\"",
          PARAM "nvme_path is \"other\"", "memory.path");
    CHECK(!exists("out"));
    ESTIMATE(BOTH, PARAM "nvme_path=swap");
    CHECK_STR(ran.err, "");
    ESTIMATE(BOTH, PARAM "nvme_path=other", "zero_optimization.stage=2"); /* which makes the latter nothing */
    CHECK_HAS(ran.out, "disk (swap)");
    CHECK(!strstr(ran.err, "nvme_path"));
    ESTIMATE(BOTH, PARAM "nvme_path=other", "memory.path=.");
    CHECK_HAS(ran.out, "disk (.)");
    CHECK_STR(ran.err, "tessera: run.json: memory.path: . is the disk tier, without effect: " OPTIMIZER
                       "nvme_path, " PARAM "nvme_path\n");
    ESTIMATE(BOTH, PARAM "nvme_path=other", "memory.path=swap");
    CHECK_STR(ran.err, "tessera: run.json: memory.path: swap is the disk tier, without effect: " PARAM "nvme_path\n");
#undef BOTH
}
