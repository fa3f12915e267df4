/* Runs whose tiles flow between RAM and a directory, when that directory is full, gone, shared or taken away, and when
 * they are told to stop or are killed meanwhile: one line says what is wrong, nothing stays in the directory, and what
 * goes on from a checkpoint comes to the same bytes. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"
#include <errno.h>

/* RAM holds what a step needs at the least and a little more; "swap" is the disk tier. */
static void flow_setup(void)
{
    wide_setup_with("\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, \"steps\": 4,\n"
                    " \"memory\": {\"path\": \"swap\", \"cpu\": \"1MiB\"},\n"
                    " \"checkpoint\": {\"dir\": \"ck\", \"every\": 2}");
}

/* "memory.cpu=NMiB": the least that the command itself says would do, and `more`. */
static const char *cap(long more)
{
    static char set[64];
    static long least; /* this machine's, which depends on its workers */
    if (!least) {
        FAILS(2, ("train", "run.json"), "memory.cpu: 1.0 MiB", "MiB would do");
        least = named_in_error(WIDE_LEAST);
        CHECK(least > 0);
    }
    snprintf(set, sizeof set, "memory.cpu=%ldMiB", least + more);
    return set;
}

/* Each of the first `steps` lines of out/metrics.jsonl is there once, in order, with the loss that the same run has
 * with everything in RAM: to the last digit, and each loss depends on all that the steps before it did. */
static void check_losses(int steps)
{
    static double whole[1000];
    static int known;
    CHECK(steps <= (int)(sizeof whole / sizeof *whole));
    if (known < steps) {
        known = steps > 12 ? steps : 12;
        DONE("train", "run.json", fmt("steps=%d", known), "memory.path=", "memory.cpu=auto", "output=whole",
             "checkpoint.dir=whole");
        json_t *all = read_metrics("whole/metrics.jsonl");
        for (int s = 0; s < known; s++) whole[s] = number_of(all, (size_t)s, "loss");
        json_decref(all);
    }
    json_t *all = read_metrics("out/metrics.jsonl");
    CHECK_EQ(json_array_size(all), steps);
    for (int s = 0; s < steps; s++) {
        CHECK_EQ(number_of(all, (size_t)s, "step"), s + 1);
        CHECK_NEAR(number_of(all, (size_t)s, "loss"), whole[s], 0);
    }
    json_decref(all);
}

/* Bytes that the last step of out/ wrote to disk: else the run shows nothing of the tier. */
static double written_by_last_step(void)
{
    json_t *all = read_metrics("out/metrics.jsonl");
    const json_t *disk = json_object_get(json_array_get(all, json_array_size(all) - 1), "disk");
    double bytes = json_number_value(json_object_get(disk, "write_bytes"));
    json_decref(all);
    return bytes;
}

/* ---- caps ---- */

TEST(a_cap_that_is_too_low_names_one_that_will_do)
{
    flow_setup();
    FAILS(2, ("train", "run.json", "memory.cpu=2MiB"), "memory.cpu");
    CHECK(!exists("out") && !exists("ck"));
    const char *const stays = "zero_optimization.offload_optimizer.device=cpu";
    FAILS(2, ("train", "run.json", cap(0), stays), "memory.cpu"); /* what may not leave RAM has no room */
    DONE("train", "run.json", fmt("memory.cpu=%ldMiB", named_in_error(WIDE_LEAST)), stays);
    check_losses(4);
}

TEST(a_disk_cap_that_is_too_low_names_one_that_will_do)
{
    flow_setup();
    FAILS(2, ("train", "run.json", cap(0), "memory.disk=1MiB"), "memory.disk: 1.0 MiB", "but the run needs",
          "MiB would do");
    CHECK(!exists("out") && !exists("ck"));
    const char *set = fmt("memory.disk=%ldMiB", named_in_error("MiB, but "));
    write_tiny_text("swap/.tessera-swap-1-abcdef", 5000, 1); /* of a run that crashed */
    write_text("swap/notes", "mine");
    DONE("train", "run.json", cap(0), set);
    CHECK_HAS(ran.err, "swap: removed 1 swap file of runs that had crashed");
    CHECK_STR(others_in("swap", ""), "notes ");
    CHECK(written_by_last_step() > 1 << 20);
    check_losses(4);
}

/* ---- directories ---- */

TEST(directories_that_will_not_do)
{
    flow_setup();
    const char *const path[] = {"nowhere", "text.txt", "text.txt/below", "/proc", "swap:nowhere"};
    for (size_t i = 0; i < sizeof path / sizeof *path; i++) {
        const char *set = fmt("memory.path=%s", path[i]);
        FAILS(2, ("train", "run.json", cap(0), set),
              fmt("tessera: error: %s: ", strncmp(path[i], "swap:", 5) ? path[i] : path[i] + 5), " (");
        CHECK(!exists("out/model"));
        CHECK_STR(others_in("swap", ""), "");
    }
}

TEST(a_directory_without_room)
{
    flow_setup();
    const char *ram = cap(0);
    run_file_limit = 60 << 20; /* less than the swap file has */
    RUN("train", "run.json", ram);
    run_file_limit = 0;
    EXPECT_ERROR(1, "tessera: error: swap: ", "File too large");
    CHECK_STR(others_in("swap", ""), "");
}

TEST(a_disk_that_fills_up_meanwhile)
{
    flow_setup();
    pid_t pid = START("train", "run.json", cap(0), TINY_ENDLESS);
    WAIT_UNTIL(pid, exists("ck/step-00000002"));
    prlimit(pid, RLIMIT_FSIZE, &(struct rlimit){1 << 20, 1 << 20}, NULL); /* stands in for it */
    run_finish(pid);
    EXPECT_ERROR(1, "swap/", "disk tier", "File too large");
    CHECK_STR(others_in("swap", ""), "");
    CHECK(!exists("out/model"));
    int steps = count_lines("out/metrics.jsonl") + 1;
    DONE("train", "run.json", cap(0), fmt("steps=%d", steps), "--resume");
    CHECK_HAS(ran.err, "resuming from ck after step ");
    check_losses(steps);
}

TEST(a_directory_that_goes_away)
{
    flow_setup();
    pid_t pid = START("train", "run.json", cap(0), "steps=12");
    WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= 2);
    CHECK_EQ(rmdir("swap"), 0);
    run_finish(pid);
    EXPECT_DONE();
    CHECK(!exists("swap") && exists(TINY_WEIGHTS));
    check_losses(12);
}

TEST(two_runs_share_a_directory)
{
    flow_setup();
    const char *ram = fmt("%s", cap(0));
    pid_t first = START("train", "run.json", ram, "steps=10");
    int out = run_out, err = run_err;
    run_out = run_err = -1;
    DONE("train", "run.json", ram, "steps=10", "output=other", "checkpoint.dir=other");
    close(run_out), close(run_err);
    run_out = out, run_err = err;
    run_finish(first);
    EXPECT_DONE();
    CHECK(same_file(TINY_WEIGHTS, "other/model/model.safetensors"));
    CHECK_STR(others_in("swap", ""), "");
    check_losses(10);
}

/* ---- signals ---- */

TEST(a_signal_amid_writes_ends_the_run_in_order)
{
    flow_setup();
    pid_t pid = START("train", "run.json", cap(0), TINY_ENDLESS, "log_every=1000");
    WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= 3);
    kill(pid, SIGINT);
    run_finish(pid);
    EXPECT_DONE();
    int done = count_lines("out/metrics.jsonl");
    const char *step = fmt("ck/step-%08d/state.json", done);
    const char *set = fmt("steps=%d", done + 2);
    CHECK(exists(step) && exists(TINY_WEIGHTS));
    CHECK_STR(others_in("swap", ""), "");
    DONE("train", "run.json", cap(2), set, "--resume");
    check_losses(done + 2);
}

TEST(a_second_signal_ends_it_at_once)
{
    flow_setup();
    pid_t pid = START("train", "run.json", cap(0), "train_batch_size=100"); /* a step of half a second */
    WAIT_UNTIL(pid, exists("out/metrics.jsonl"));
    kill(pid, SIGINT);
    WAIT_UNTIL(pid, said("ending after this step"));
    double start = run_clock();
    kill(pid, SIGINT);
    run_finish(pid);
    CHECK_EQ(ran.status, 130);
    CHECK(run_clock() - start < 2);
    CHECK_STR(others_in("swap", ""), "");
    CHECK(!exists("out/model"));
}

TEST(a_killed_run_goes_on)
{
    flow_setup();
    pid_t pid = START("train", "run.json", cap(0), "steps=12");
    WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= 5);
    run_nap(); /* into the next step */
    kill(pid, SIGKILL);
    run_finish(pid);
    CHECK_EQ(ran.status, 128 + SIGKILL);
    CHECK_STR(others_in("swap", ""), "");
    DONE("train", "run.json", cap(1), "steps=12", "--resume");
    CHECK_HAS(ran.err, "resuming from ck after step ");
    CHECK_STR(others_in("swap", ""), "");
    check_losses(12);
}
