/* Runs over several ranks that go on from checkpoints which other numbers of ranks wrote, at other stages: the bits are
 * those of the run that one rank made without a break, and near them where the model itself is shared out. And runs
 * that end in the middle of writing one. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"
#include <sched.h>
#include <sys/mount.h>

static const char *const weights = "out/model/model.safetensors", *const whole = "whole/model/model.safetensors";

/* 12 sequences a step, one at a time, so that 1, 2, 3 and 4 ranks share them evenly. */
static void setup(void)
{
    tiny_setup_with(", \"deterministic\": true, \"train_micro_batch_size_per_gpu\": 1, \"gradient_clipping\": 0.5, "
                    "\"optimizer\": {\"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}, \"checkpoint\": {\"dir\": "
                    "\"ck\", \"every\": 2}");
}

/* `train run.json` by n ranks, with settings of its own. */
static pid_t start(int n, int stage, int steps, const char *more)
{
    char set[2][64];
    snprintf(set[0], sizeof set[0], "zero_optimization.stage=%d", stage);
    snprintf(set[1], sizeof set[1], "steps=%d", steps);
    return START_RANKS(n, "train", "run.json", "train_batch_size=12", set[0], set[1], "bf16.enabled=true", more);
}

static void run(int n, int stage, int steps, const char *more)
{
    run_finish(start(n, stage, steps, more));
}

/* The same by one rank without a break, in whole/ and whole-ck/. */
static void run_whole(int steps)
{
    DONE("train", "run.json", fmt("steps=%d", steps), "train_batch_size=12", "bf16.enabled=true", "output=whole",
         "checkpoint.dir=whole-ck", "checkpoint.keep=100");
}

static int errors(void)
{
    int n = 0;
    for (const char *at = ran.err; (at = strstr(at, "tessera: error: ")); at++) n++;
    return n;
}

TEST(other_ranks_at_other_stages_go_on_with_the_same_bits)
{
    static const struct {
        int ranks, stage;
    } way[][3] = {{{1, 0}, {3, 3}, {2, 1}}, {{4, 3}, {1, 2}, {3, 0}}, {{2, 2}, {4, 1}, {2, 3}}};
    setup();
    run_whole(6);
    for (size_t w = 0; w < sizeof way / sizeof *way; w++) {
        for (int part = 0; part < 3; part++) {
            run(way[w][part].ranks, way[w][part].stage, 2 * (part + 1), "--resume");
            EXPECT_DONE();
            const char *ours = fmt("ck/step-%08d/states.safetensors", 2 * (part + 1));
            if (!same_file(ours, fmt("whole-%s", ours)))
                CHECK_SAY("%s by %d ranks at stage %d is another", ours, way[w][part].ranks, way[w][part].stage);
        }
        CHECK(same_file(weights, whole));
        CHECK(same_file("out/model/config.json", "whole/model/config.json"));
        char *metrics = read_file("out/metrics.jsonl", NULL);
        int lines = 0;
        for (const char *c = metrics; c && *c; c++) lines += *c == '\n';
        CHECK_EQ(lines, 6);
        free(metrics);
        CHECK_EQ(nftw("ck", run_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
        CHECK_EQ(nftw("out", run_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
    }
}

/* Of local steps the checkpoints hold the moments that each rank has, beside those of the sums. */
TEST(local_steps_go_on_with_the_same_bits)
{
#define LOCAL                                                                                                          \
    "train_batch_size=12", "parallel.local_steps=2", "eval_every=2", "overwrite=true", "gradient_clipping=0.5", way[w]
    static const char *const way[] = {"bf16.enabled=true", "parallel.carrier=mpi",
                                      "zero_optimization.offload_optimizer.device=nvme",
                                      "communication_data_type=bf16"};
    setup();
    CHECK(mkdir("swap", 0777) == 0);
    for (int w = 0; w < 4; w++) {
        const char *const path = w == 2 ? "memory.path=swap" : "seed=1";
        if (w != 2) /* on disk it has the bits of the way before it */
            DONE_RANKS(3, "train", "run.json", LOCAL, "steps=8", "output=whole", "checkpoint.dir=whole-ck");
        DONE_RANKS(3, "train", "run.json", LOCAL, "steps=4", path);
        DONE_RANKS(3, "train", "run.json", LOCAL, "steps=8", path, "--resume");
        CHECK(same_file(weights, whole));
        CHECK(same_file("ck/step-00000008/states.safetensors", "whole-ck/step-00000008/states.safetensors"));
        CHECK(same_file("ck/step-00000006/sums.json", "whole-ck/step-00000006/sums.json"));
    }
    struct weights s = weights_read("ck/step-00000008/states.safetensors");
    CHECK(json_object_get(s.header, "wte.weight.exp_avg") && json_object_get(s.header, "wte.weight.exp_avg_sq@2"));
    CHECK(json_object_get(s.header, "wte.weight.outer_momentum") && !json_object_get(s.header, "wte.weight.exp_avg@3"));
    weights_free(&s);
    const int w = 1;
    DONE_RANKS(4, "train", "run.json", LOCAL, "steps=10", "--resume"); /* the fourth begins with what the first had */
    DONE_RANKS(2, "train", "run.json", LOCAL, "steps=12", "--resume");
    DONE("train", "run.json", "steps=14", "train_batch_size=12", "--resume");
    DONE_RANKS(2, "train", "run.json", LOCAL, "steps=16", "--resume");
#undef LOCAL
}

/* What each rank's codes of gradients lack is in the checkpoints. Ranks that have none there begin with nothing. */
TEST(codes_of_gradients_go_on_with_the_same_bits)
{
#define CODES                                                                                                          \
    "zero_optimization.zero_quantized_gradients=true", "zero_optimization.zero_quantized_weights=false",               \
        "zero_optimization.stage3_param_persistence_threshold=0", way[w][0], way[w][1], way[w][2]
    static const char *const way[][3] = {
        {"zero_optimization.stage=1", "bf16.enabled=true", "optimizer_states=8bit"},
        {"zero_optimization.stage=3", "zero_optimization.mics_shard_size=1", "parallel.carrier=mpi"},
        {"zero_optimization.stage=2", "memory.cpu=6MiB", "memory.path=swap"}};
    wide_setup_with("\"deterministic\": true, \"train_batch_size\": 12, \"train_micro_batch_size_per_gpu\": 1, "
                    "\"checkpoint\": {\"dir\": \"ck\", \"every\": 2}");
    for (int w = 0; w < 3; w++) {
        DONE_RANKS(3, "train", "run.json", CODES, "steps=4", "output=whole", "checkpoint.dir=whole-ck");
        DONE_RANKS(3, "train", "run.json", CODES, "steps=2");
        CHECK(same_file("ck/step-00000002/states.safetensors", "whole-ck/step-00000002/states.safetensors"));
        DONE_RANKS(3, "train", "run.json", CODES, "steps=4", "--resume");
        CHECK(same_file(weights, whole));
        CHECK(same_file("ck/step-00000004/states.safetensors", "whole-ck/step-00000004/states.safetensors"));
        CHECK(same_file("ck/step-00000004/sums.json", "whole-ck/step-00000004/sums.json"));
    }
    struct weights s = weights_read("ck/step-00000004/states.safetensors");
    CHECK(json_object_get(s.header, "wte.weight.gradient_rest@2"));
    CHECK(!json_object_get(s.header, "wte.weight.gradient_rest@3"));
    weights_free(&s);
    json_t *sums = json_load_file("ck/step-00000004/sums.json", 0, NULL),
           *one = json_object_get(sums, "wte.weight.gradient_rest@2");
    CHECK(strspn(json_string_value(json_array_get(one, 0)), "0") < 16);
    json_decref(sums);
    const int w = 0;
    DONE_RANKS(4, "train", "run.json", CODES, "steps=6", "--resume");
    DONE("train", "run.json", "steps=8", "--resume");
    DONE_RANKS(2, "train", "run.json", CODES, "steps=10", "--resume");
#undef CODES
}

/* What is written while the next step runs is what a run writes that ends there, whoever has it in RAM. */
TEST(checkpoints_beside_steps_have_the_same_bytes)
{
#define AGAIN "overwrite=true"
#define WAY   "train_batch_size=12", AGAIN, way[w][0], way[w][1], way[w][2], way[w][3]
    static const char *const way[][4] = {{"bf16.enabled=true", AGAIN, AGAIN, AGAIN},
                                         {"gradient_clipping=0", "optimizer_states=8bit", "on_spike.skip=2", AGAIN},
                                         {"gradient_clipping=0", "memory.cpu=2MiB", "memory.path=swap",
                                          "zero_optimization.offload_optimizer.device=nvme"},
                                         {"optimizer_states=bf16", "memory.cpu=2MiB", "memory.path=swap", AGAIN}};
    static const char *const file[] = {"states.safetensors", "sums.json", "config.json"};
    setup();
    CHECK(mkdir("swap", 0777) == 0);
    for (size_t w = 0; w < sizeof way / sizeof *way; w++) {
        DONE("train", "run.json", WAY, "steps=3", "checkpoint.every=1", "checkpoint.keep=9");
        for (int step = 1; step <= 3; step++) {
            DONE("train", "run.json", WAY, fmt("steps=%d", step), "output=whole", "checkpoint.dir=whole-ck");
            for (int f = 0; f < 3; f++) {
                const char *ours = fmt("ck/step-%08d/%s", step, file[f]);
                if (!same_file(ours, fmt("whole-%s", ours))) CHECK_SAY("%s of way %zu is another", ours, w);
            }
        }
        DONE_RANKS(2, "train", "run.json", WAY, "steps=3", "checkpoint.every=1", "zero_optimization.stage=2");
        CHECK(same_file("ck/step-00000002/states.safetensors", "whole-ck/step-00000002/states.safetensors"));
    }
#undef WAY
#undef AGAIN
}

/* ---- tensor and pipeline parallel ---- */

struct layout {
    int ranks, stage, tensor, pipeline;
};

static void go_on(struct layout l, int steps)
{
    char set[4][64];
    snprintf(set[0], sizeof set[0], "zero_optimization.stage=%d", l.stage);
    snprintf(set[1], sizeof set[1], "parallel.tensor=%d", l.tensor);
    snprintf(set[2], sizeof set[2], "parallel.pipeline=%d", l.pipeline);
    snprintf(set[3], sizeof set[3], "steps=%d", steps);
    DONE_RANKS(l.ranks, "train", "run.json", "train_batch_size=12", set[0], set[1], set[2], set[3], "--resume");
}

/* The same tensors in the same places, all of fp32; their distance, a share of the norm. */
static double distance(const char *ours, const char *theirs)
{
    struct weights a = weights_read(ours), b = weights_read(theirs);
    double off = 0, all = 0;
    CHECK(json_equal(a.header, b.header));
    CHECK(a.bytes == b.bytes && a.at == b.at);
    for (size_t i = a.at; i + sizeof(float) <= a.bytes && a.bytes == b.bytes; i += sizeof(float)) {
        float x, y;
        memcpy(&x, a.file + i, sizeof x);
        memcpy(&y, b.file + i, sizeof y);
        off += ((double)x - y) * ((double)x - y);
        all += (double)y * y;
    }
    weights_free(&a);
    weights_free(&b);
    return sqrt(off / all);
}

static double eval_loss(const char *model)
{
    DONE("eval", "run.json", fmt("model=%s", model));
    return atof(ran.out + strlen("loss "));
}

TEST(other_parallelisms_go_on_near_the_same_numbers)
{
    static const struct layout way[][3] = {{{2, 0, 2, 1}, {1, 0, 1, 1}, {2, 0, 2, 1}},
                                           {{2, 1, 2, 1}, {2, 0, 1, 2}, {4, 3, 2, 1}},
                                           {{4, 0, 2, 2}, {1, 0, 1, 1}, {4, 2, 1, 2}}};
    setup();
    DONE("train", "run.json", "steps=6", "train_batch_size=12", "output=whole", "checkpoint.dir=whole-ck",
         "checkpoint.keep=3");
    json_t *want = read_metrics("whole/metrics.jsonl");
    const double loss = eval_loss("whole/model");
    for (size_t w = 0; w < sizeof way / sizeof *way; w++) {
        for (int part = 0; part < 3; part++) {
            go_on(way[w][part], 2 * (part + 1));
            const char *ours = fmt("ck/step-%08d/states.safetensors", 2 * (part + 1));
            CHECK_NEAR(distance(ours, fmt("whole-%s", ours)), 0, 1e-3);
        }
        json_t *got = read_metrics("out/metrics.jsonl");
        CHECK_EQ(json_array_size(got), 6);
        for (size_t s = 0; s < 6; s++) {
            double x = number_of(got, s, "loss"), y = number_of(want, s, "loss");
            if (!(fabs(x - y) <= 1e-4 * y)) CHECK_SAY("way %zu: step %zu: loss %.9g, whole %.9g", w, s, x, y);
        }
        json_decref(got);
        CHECK_NEAR(distance(weights, whole), 0, 1e-3);
        CHECK(same_file("out/model/config.json", "whole/model/config.json"));
        CHECK_NEAR(eval_loss("out/model"), loss, 1e-4 * loss);
        CHECK_EQ(nftw("ck", run_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
        CHECK_EQ(nftw("out", run_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
    }
    json_decref(want);
}

/* ---- runs that end in the middle ---- */

/* Whatever it was doing: what has a checkpoint's name is whole. */
TEST(after_a_killed_rank_others_go_on)
{
    enum { STEPS = 12 };
    setup();
    run_whole(STEPS);
    for (int n = 2; n <= 4; n++) {
        pid_t pid = start(n, n - 1, STEPS, "checkpoint.every=1"), rank[4];
        const char *seen = fmt("ck/step-%08d", 2 * n - 2);
        WAIT_UNTIL(pid, exists(seen));
        int ranks = run_ranks_of(pid, rank, 4);
        CHECK_EQ(ranks, n);
        if (ranks) kill(rank[ranks - 1], SIGKILL);
        run_finish(pid);
        CHECK(ran.status != 0);
        CHECK(!exists("out/model"));
        run(5 - n, 3, STEPS, "--resume");
        EXPECT_DONE();
        CHECK(same_file(weights, whole));
        CHECK(same_file("ck/step-00000012/states.safetensors", "whole-ck/step-00000012/states.safetensors"));
        CHECK(same_file("ck/step-00000012/sums.json", "whole-ck/step-00000012/sums.json"));
        CHECK(!strstr(others_in("ck", ""), ".new"));
        CHECK_EQ(nftw("ck", run_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
        CHECK_EQ(nftw("out", run_remove, 16, FTW_DEPTH | FTW_PHYS), 0);
    }
}

/* A disk of its own at ck, seen by this program and its runs alone. */
static bool mount_small(const char *size)
{
    mkdir("ck", 0777);
    return !unshare(CLONE_NEWNS) && !mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
           !mount("ck", "ck", "tmpfs", 0, size);
}

TEST(a_disk_that_fills_up)
{
    setup();
    if (!mount_small("size=1100k")) SKIP("a small disk needs the right to mount one");
    run(3, 3, 6, "checkpoint.every=1"); /* two of 0.4 MB have room, and no third beside them */
    CHECK_EQ(ran.status, 1);
    CHECK_EQ(errors(), 1);
    CHECK_HAS(ran.err, "ck/.new-step-00000003/states.safetensors.tmp: cannot be written: No space left on device");
    CHECK_EQ(strlen(others_in("ck", "")), strlen("step-00000001 step-00000002 "));
    CHECK(exists("ck/step-00000001/state.json") && exists("ck/step-00000002/state.json"));
    CHECK(!exists("out/model"));
    CHECK(!mount("ck", "ck", NULL, MS_REMOUNT, "size=8m"));
    run(2, 1, 6, "--resume");
    EXPECT_DONE();
    run_whole(6);
    CHECK(same_file(weights, whole));
    CHECK(!umount2("ck", MNT_DETACH));
}
