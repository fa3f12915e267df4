/* Runs that end before their time: checkpoints and signals, from which they go on to the same bytes, and failures,
 * which are one line, exit status 1, and nothing half-written. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>

/* The tiny run with checkpoints in ck; dropout and the shuffle make it depend on all that a checkpoint has to hold. */
static void checkpoint_setup(int every)
{
    char extra[300];
    snprintf(extra, sizeof extra,
             ", \"optimizer\": {\"params\": {\"lr\": 0.01, \"weight_decay\": 0.1}}, \"scheduler\": {\"type\": "
             "\"WarmupCosineLR\","
             " \"params\": {\"warmup_num_steps\": 2, \"total_num_steps\": 30}}, \"checkpoint\": {\"dir\": \"ck\", "
             "\"every\": %d}",
             every);
    tiny_setup_with(extra);
}

/* ---- checkpoints ---- */

static void check_four_and_four(const char *dtype)
{
    checkpoint_setup(4);
    DONE("train", "run.json", dtype, "steps=8", "output=whole", "checkpoint.dir=whole/ck");
    DONE("train", "run.json", dtype, "steps=4");
    CHECK(!same_file(TINY_WEIGHTS, "whole/model/model.safetensors"));
    CHECK(same_file("ck/step-00000004/states.safetensors", "whole/ck/step-00000004/states.safetensors"));
    DONE("train", "run.json", dtype, "steps=8", "--resume");
    CHECK_HAS(ran.err, "tessera: resuming from ck after step 4");
    CHECK(!strstr(ran.out, "step 4/8") && strstr(ran.out, "step 5/8"));
    CHECK(same_file(TINY_WEIGHTS, "whole/model/model.safetensors"));
    CHECK(same_file("ck/step-00000008/states.safetensors", "whole/ck/step-00000008/states.safetensors"));
    CHECK(same_file("ck/step-00000008/state.json", "whole/ck/step-00000008/state.json"));
    json_t *parts = read_metrics("out/metrics.jsonl"), *whole = read_metrics("whole/metrics.jsonl");
    CHECK_EQ(json_array_size(parts), 8);
    for (size_t s = 0; s < 8; s++) {
        CHECK_EQ(number_of(parts, s, "step"), s + 1);
        CHECK_NEAR(number_of(parts, s, "loss"), number_of(whole, s, "loss"), 0);
        CHECK_NEAR(number_of(parts, s, "lr"), number_of(whole, s, "lr"), 0);
        CHECK_NEAR(number_of(parts, s, "grad_norm"), number_of(whole, s, "grad_norm"), 0);
    }
    json_decref(parts);
    json_decref(whole);
}

TEST(four_and_four_steps_are_eight)
{
    check_four_and_four("bf16.enabled=false");
    check_four_and_four("bf16.enabled=true");
}

TEST(old_checkpoints_go)
{
    checkpoint_setup(1);
    DONE("train", "run.json", "steps=5");
    CHECK_STR(others_in("ck", "step-00000004 step-00000005"), ""); /* keep is 2 */
    CHECK(exists("ck/step-00000004/state.json") && exists("ck/step-00000005/state.json"));
    DONE("train", "run.json", "steps=7", "checkpoint.keep=1", "--resume");
    CHECK_STR(others_in("ck", "step-00000007"), "");
}

TEST(half_written_checkpoints_are_not_taken)
{
    checkpoint_setup(2);
    DONE("train", "run.json", "steps=2");
    mkdir("ck/.new-step-00000009", 0777);
    write_text("ck/.new-step-00000009/states.safetensors.tmp", "half");
    mkdir("ck/step-latest", 0777);
    DONE("train", "run.json", "steps=3", "--resume");
    CHECK_HAS(ran.err, "resuming from ck after step 2");
    CHECK_STR(others_in("ck", "step-00000002 step-00000003 step-latest"), "");
}

/* Killed behind the last checkpoint, and before it removed the oldest: there is nothing more to save. */
TEST(old_checkpoints_go_also_when_nothing_is_left_to_do)
{
    checkpoint_setup(1);
    DONE("train", "run.json", "steps=4", "checkpoint.keep=3");
    DONE("train", "run.json", "steps=4", "--resume");
    CHECK_STR(others_in("ck", "step-00000003 step-00000004"), "");
    write_text("ck/step-00000004/state.json", "{\"step\": 3, \"samples\": 12, \"seed\": 1}");
    FAILS(2, ("train", "run.json", "steps=4", "--resume"), "ck/step-00000004: state.json is of step 3", "damaged");
    CHECK(exists("ck/step-00000003/state.json"));
}

TEST(checkpoints_that_do_not_fit)
{
    checkpoint_setup(2);
    DONE("train", "run.json", "steps=2", "--resume"); /* there is none yet: from the start */
    FAILS(2, ("train", "run.json", "steps=4", "overwrite=false"), "ck: holds a run's checkpoint of step 2", "--resume",
          "overwrite=true");
    FAILS(2, ("train", "run.json", "steps=4", "--resume", "model.n_embd=16"),
          "ck/step-00000002: its model has n_embd 32, the configuration's 16", "of another model");
    FAILS(2, ("train", "run.json", "steps=4", "--resume", "model.n_head=2"),
          "ck/step-00000002: its model has n_head 4, the configuration's 2",
          "of another model");                             /* the same shapes, and another arithmetic */
    rename("ck/step-00000002/config.json", "config.json"); /* as older ones are */
    FAILS(2, ("train", "run.json", "steps=4", "--resume", "model.n_embd=16"),
          "ck/step-00000002: wte.weight is of another shape", "of another model");
    FAILS(2, ("train", "run.json", "steps=4", "--resume", "model.n_layer=3"), "ck/step-00000002: h.2.", "is missing",
          "of another model");
    FAILS(2, ("train", "run.json", "steps=4", "--resume", "model.n_layer=1"), "ck/step-00000002: h.1.",
          "is of no parameter here", "of another model");
    FAILS(2, ("generate", "ck", "--prompt", "a"), "ck/step-00000002/config.json: No such file",
          "of a version that kept no model in it");
    rename("config.json", "ck/step-00000002/config.json");
    FAILS(2, ("train", "run.json", "steps=4", "--resume", "seed=2"), "ck: the run to go on from has seed 1", "2");
    CHECK_EQ(count_lines("out/metrics.jsonl"), 2); /* none of them cost the run anything */
    CHECK_STR(others_in("ck", "step-00000002"), "");
    cut_file("ck/step-00000002/states.safetensors", 100000);
    FAILS(2, ("train", "run.json", "steps=4", "--resume"), "ck/step-00000002/states.safetensors", "bytes");
    cut_file("ck/step-00000002/state.json", 5);
    FAILS(2, ("train", "run.json", "steps=4", "--resume"), "ck/step-00000002/state.json", "damaged");
    write_text("ck/step-00000002/state.json",
               "{\"step\": 2, \"samples\": 8, \"seed\": 1, \"format\": \"tessera checkpoint 0\"}");
    FAILS(2, ("train", "run.json", "steps=4", "--resume"), "state.json: has the format \"tessera checkpoint 0\"");
}

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = true }; /* MPI's own leaks would be told */
#else
enum { SANITIZED = false };
#endif

static void flip(const char *path, long at)
{
    FILE *f = fopen(path, "r+b");
    const int byte = f && !fseek(f, at, SEEK_SET) ? fgetc(f) : EOF;
    CHECK(byte != EOF && !fseek(f, at, SEEK_SET) && fputc(byte ^ 4, f) != EOF);
    if (f) fclose(f);
}

/* One bit of one value, wherever it is; whoever wrote it, and whoever reads it. */
TEST(a_checkpoint_that_was_damaged)
{
    const char *const states = "ck/step-00000004/states.safetensors";
    checkpoint_setup(2);
    DONE("train", "run.json", "steps=4", "checkpoint.keep=2");
    const long end = file_size(states);
    for (int k = 1; k <= 4; k++) {
        const long at = k < 4 ? end - end * k / 5 : end - 1;
        flip(states, at);
        FAILS(2, ("train", "run.json", "steps=6", "--resume"), states, " does not hold what was written", "damaged");
        CHECK_HAS(ran.err, "; ck/step-00000002 is whole: --resume=whole goes on from it");
        if (k == 1 && !SANITIZED)
            FAILS_RANKS(2, (2, "train", "run.json", "steps=6", "--resume"), states, " does not hold what was written");
        flip(states, at);
    }
    CHECK_EQ(count_lines("out/metrics.jsonl"), 4);
    char *kept = read_file(states, NULL);
    cut_file(states, end / 2);
    FAILS(2, ("train", "run.json", "steps=6", "--resume"), states, "damaged",
          "; ck/step-00000002 is whole: --resume=whole goes on from it");
    write_file(states, kept, (size_t)end);
    free(kept);
    DONE("train", "run.json", "steps=4", "output=whole", "checkpoint.dir=whole/ck");
    flip(states, end - 1);
    DONE("train", "run.json", "steps=4", "checkpoint.keep=2", "--resume=whole");
    CHECK_HAS(ran.err, "ck/step-00000004 is damaged; it is ck/damaged-step-00000004 now");
    CHECK_HAS(ran.err, "resuming from ck after step 2");
    CHECK_STR(others_in("ck", "step-00000002 step-00000004 damaged-step-00000004"), "");
    CHECK(same_file(states, "whole/ck/step-00000004/states.safetensors"));
    flip("ck/step-00000002/states.safetensors", end - 1);
    flip(states, end - 1);
    FAILS(2, ("train", "run.json", "steps=6", "--resume=whole"), "ck: none of its 2 checkpoints can be read");
    unlink("ck/step-00000004/sums.json"); /* as older ones are */
    flip(states, end - 1);
    flip(states, end - 1);
    DONE("train", "run.json", "steps=6", "--resume");
    if (!SANITIZED) DONE_RANKS(2, "train", "run.json", "steps=8", "--resume", "zero_optimization.stage=3");
}

/* ---- signals ---- */

/* `steps` steps without a break, into whole/. */
static void run_whole(int steps)
{
    DONE("train", "run.json", fmt("steps=%d", steps), "output=whole", "checkpoint.dir=whole/ck");
}

TEST(a_signal_ends_the_run_in_order)
{
    static const int signals[] = {SIGTERM, SIGINT};
    for (int i = 0; i < 2; i++) {
        checkpoint_setup(0);
        pid_t pid = START("train", "run.json", TINY_ENDLESS, "log_every=1000");
        WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= 3);
        kill(pid, signals[i]);
        run_finish(pid);
        EXPECT_DONE();
        int done = count_lines("out/metrics.jsonl");
        const char *name = fmt("step-%08d", done);
        const char *note = fmt("stopped by a signal after step %d of 1000000", done);
        const char *set = fmt("steps=%d", done + 3);
        CHECK(done >= 3);
        CHECK_HAS(ran.err, note);
        CHECK_STR(others_in("ck", name), "");
        CHECK(exists(TINY_WEIGHTS));
        DONE("train", "run.json", set, "--resume");
        run_whole(done + 3);
        CHECK(same_file(TINY_WEIGHTS, "whole/model/model.safetensors"));
    }
}

TEST(a_signal_without_checkpoints_leaves_the_model)
{
    tiny_setup();
    pid_t pid = START("train", "run.json", TINY_ENDLESS, "log_every=1000");
    WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= 1);
    kill(pid, SIGTERM);
    run_finish(pid);
    EXPECT_DONE();
    CHECK(exists(TINY_WEIGHTS));
}

TEST(a_second_signal_ends_it_at_once)
{
    checkpoint_setup(1);
    pid_t pid = START("train", "run.json", "model.n_embd=256", "model.n_layer=4", "data.seq_length=32",
                      "train_batch_size=512", "train_micro_batch_size_per_gpu=32"); /* steps of a second or more */
    WAIT_UNTIL(pid, exists("out/metrics.jsonl"));
    kill(pid, SIGINT);
    WAIT_UNTIL(pid, said("ending after this step"));
    double start = run_clock();
    kill(pid, SIGINT);
    run_finish(pid);
    CHECK_EQ(ran.status, 130);
    CHECK(run_clock() - start < 1);
    CHECK_STR(others_in("ck", "run.lock"), "");
    CHECK(!exists("out/model"));
}

TEST(a_killed_run_goes_on)
{
    enum { STEPS = 20 };
    checkpoint_setup(1);
    for (int until = 3; until < STEPS; until += 4) {
        pid_t pid = START("train", "run.json", "steps=20", "--resume");
        WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= until);
        kill(pid, SIGKILL);
        run_finish(pid);
        CHECK_EQ(ran.status, 128 + SIGKILL);
        for (int step = 0; step <= STEPS; step++) { /* what has the name is whole */
            const char *state = fmt("ck/step-%08d/state.json", step);
            const char *states = fmt("ck/step-%08d/states.safetensors", step);
            CHECK(exists(state) == exists(states));
            if (exists(state)) CHECK(file_size(state) > 0 && file_size(states) > 400000);
        }
    }
    DONE("train", "run.json", "steps=20", "--resume");
    run_whole(STEPS);
    CHECK(same_file(TINY_WEIGHTS, "whole/model/model.safetensors"));
    CHECK(same_file("ck/step-00000020/states.safetensors", "whole/ck/step-00000020/states.safetensors"));
    CHECK_STR(others_in("ck", "step-00000019 step-00000020"), "");
    CHECK_EQ(count_lines("out/metrics.jsonl"), STEPS);
}

/* ---- a loss that is not finite ---- */

TEST(a_weight_that_is_no_number)
{
    tiny_setup_trained();
    struct weights w = weights_read(TINY_WEIGHTS);
    memcpy(w.file + weights_place(&w, "transformer.h.1.mlp.c_fc.bias") + 40, &(float){NAN}, sizeof(float));
    write_file(TINY_WEIGHTS, w.file, w.bytes);
    weights_free(&w);
    FAILS(1, ("train", "run.json", "model=out/model", "output=next", "checkpoint.dir=ck", "checkpoint.every=1"),
          "step 1: the loss is nan; the first tensor that is not finite: h.1.mlp.c_fc");
    CHECK_EQ(count_lines("next/metrics.jsonl"), 0);
    CHECK(!exists("next/model"));
    CHECK_STR(others_in("ck", ""), "");
}

TEST(a_run_that_diverges)
{
    checkpoint_setup(1);
    RUN("train", "run.json", "steps=40", "optimizer.params.lr=1000", "optimizer.params.weight_decay=1000",
        "scheduler.type=none", "checkpoint.keep=100");
    char step[64];
    int done = count_lines("out/metrics.jsonl");
    snprintf(step, sizeof step, "tessera: error: step %d: ", done + 1);
    EXPECT_ERROR(1, step, "not finite");
    CHECK(done > 0 && done < 40);
    CHECK(!exists("out/model"));
    snprintf(step, sizeof step, "ck/step-%08d", done);
    CHECK(exists(step)); /* of the last good step */
    snprintf(step, sizeof step, "ck/step-%08d", done + 1);
    CHECK(!exists(step));
}

/* ---- a disk that is full; a limit on the size of files stands in for it where there is no small disk ---- */

TEST(no_room_for_a_checkpoint)
{
    checkpoint_setup(4);
    DONE("train", "run.json", "steps=4");
    run_file_limit = 200000;
    RUN("train", "run.json", "steps=8", "--resume");
    run_file_limit = 0;
    EXPECT_ERROR(1, "ck/.new-step-00000008/states.safetensors", "cannot be written: File too large");
    CHECK_STR(others_in("ck", "step-00000004"), "");
    CHECK_EQ(count_lines("out/metrics.jsonl"), 8);
    DONE("train", "run.json", "steps=8", "--resume");
    run_whole(8);
    CHECK(same_file(TINY_WEIGHTS, "whole/model/model.safetensors"));
    CHECK_EQ(count_lines("out/metrics.jsonl"), 8);
}

TEST(no_room_for_the_model)
{
    tiny_setup();
    run_file_limit = 100000;
    FAILS(1, ("train", "run.json"), "out/model/model.safetensors", "cannot be written: File too large");
    CHECK_STR(others_in("out/model", ""), "");
    run_file_limit = 0;
    DONE("train", "run.json", "output=first");
    rename("first", "out/first");
    mkdir("out/model", 0777);
    rename("out/first/model/model.safetensors", TINY_WEIGHTS);
    run_file_limit = 100000;
    RUN("train", "run.json", "seed=2", "steps=1");
    run_file_limit = 0;
    EXPECT_ERROR(1, "out/model/model.safetensors", "cannot be written: File too large");
    CHECK_STR(others_in("out/model", "model.safetensors"), ""); /* the old one, whole */
    CHECK(file_size(TINY_WEIGHTS) > 100000);
}

TEST(no_room_for_metrics)
{
    tiny_setup();
    run_file_limit = 1000;
    FAILS(1, ("train", "run.json"), "out/config.json: cannot be written: File too large", "disk full");
    CHECK_STR(others_in("out", "metrics.jsonl"), "");
    run_file_limit = file_size("run.json") + 7000;
    RUN("train", "run.json", "steps=40");
    run_file_limit = 0;
    EXPECT_ERROR(1, "out/metrics.jsonl: cannot be written: File too large", "disk full");
    json_t *all = read_metrics("out/metrics.jsonl");
    CHECK(json_array_size(all) > 5);
    CHECK(!remove("out/metrics.jsonl") &&
          !symlink("/dev/full", "out/metrics.jsonl")); /* which could be read for ever */
    FAILS(2, ("train", "run.json"), "out/metrics.jsonl: is not a regular file", "see output");
    for (size_t s = 0; s < json_array_size(all); s++) CHECK_EQ(number_of(all, s, "step"), s + 1); /* all are whole */
    json_decref(all);
}

TEST(nowhere_to_print)
{
    tiny_setup();
    run_stdout = "/dev/full";
    FAILS(1, ("--help"), "stdout: cannot be written: No space left");
    FAILS(1, ("estimate", "run.json"), "stdout: cannot be written: No space left");
    run_stdout = NULL;
}

/* A disk of its own at ck, seen by this program and its runs alone. */
static bool mount_small(const char *size)
{
    mkdir("ck", 0777);
    return !unshare(CLONE_NEWNS) && !mount("", "/", NULL, MS_REC | MS_PRIVATE, NULL) &&
           !mount("ck", "ck", "tmpfs", 0, size);
}

TEST(a_full_disk)
{
    checkpoint_setup(1);
    if (!mount_small("size=1100k")) SKIP("a small disk needs the right to mount one");
    FAILS(1, ("train", "run.json", "steps=6"), "ck/.new-step-00000003/states.safetensors",
          "cannot be written: No space left on device"); /* two of 0.4 MB have room, and no third beside them */
    CHECK_STR(others_in("ck", "step-00000001 step-00000002"), "");
    CHECK(!exists("out/model"));
    CHECK(!mount("ck", "ck", NULL, MS_REMOUNT, "size=8m"));
    DONE("train", "run.json", "steps=6", "--resume");
    run_whole(6);
    CHECK(same_file(TINY_WEIGHTS, "whole/model/model.safetensors"));
    CHECK(!umount2("ck", MNT_DETACH));
}

/* Another run's end: it writes the second half of the file a second after the first, under StarPU's lock. */
static pid_t write_slowly(const char *path)
{
    int begun[2];
    char byte = 0;
    size_t n = 0;
    char *whole = read_file(path, &n);
    CHECK(!pipe(begun));
    const pid_t writer = fork();
    if (writer == 0) {
        const int fd = open(path, O_RDWR);
        fcntl(fd, F_SETLKW, &(struct flock){.l_type = F_WRLCK});
        if (ftruncate(fd, (off_t)n / 2) || write(begun[1], &byte, 1) != 1) _exit(1);
        sleep(1);
        _exit(pwrite(fd, whole, n, 0) != (ssize_t)n);
    }
    CHECK(read(begun[0], &byte, 1) == 1);
    close(begun[0]), close(begun[1]);
    free(whole);
    return writer;
}

/* A run that died while StarPU wrote a performance model leaves half of it, at which StarPU aborts. */
TEST(half_a_performance_model)
{
    static const char *const model = "models/codelets/45/tess_linear_forward_f32.vm";
    struct stat whole = {0};
    checkpoint_setup(4);
    setenv("STARPU_SCHED", "dmda", 1);
    setenv("STARPU_PERF_MODEL_DIR", "models", 1);
    DONE("train", "run.json", "steps=2");
    if (stat(model, &whole)) {
        unsetenv("STARPU_SCHED");
        unsetenv("STARPU_PERF_MODEL_DIR");
        SKIP("this StarPU keeps its models elsewhere");
    }
    CHECK(!truncate(model, whole.st_size / 2));
    DONE("train", "run.json", "steps=3", "--resume");
    CHECK_HAS(ran.err, "tess_linear_forward_f32.vm, a performance model that was not written to its end");
    const pid_t writer = write_slowly(model);
    DONE("train", "run.json", "steps=4", "--resume");
    CHECK(!strstr(ran.err, "was not written to its end"));
    waitpid(writer, NULL, 0);
    unsetenv("STARPU_SCHED");
    unsetenv("STARPU_PERF_MODEL_DIR");
}
