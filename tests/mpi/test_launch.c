/* The command as several ranks: what it says and leaves, what it refuses, and how it ends when one of them does. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"
#include <mpi.h>

static const char *const weights = "out/model/model.safetensors", *const states = "ck/step-%08d/states.safetensors";
static const char *const endless = "steps=1000000";

static int times(const char *text, const char *part)
{
    int n = 0;
    for (const char *p = text; (p = strstr(p, part)); p++) n++;
    return n;
}

/* Rank 0 with one set of arguments, rank 1 with another: both have `all`, rank 1 `more` besides. */
static void run_two(const char *const *all, const char *const *more)
{
    const char *arg[28] = {"--oversubscribe"};
    int n = 1;
    for (int rank = 0; rank < 2; rank++) {
        if (rank) arg[n++] = ":";
        arg[n++] = "-n", arg[n++] = "1", arg[n++] = run_command();
        for (int i = 0; all[i]; i++) arg[n++] = all[i];
        for (int i = 0; rank && more[i]; i++) arg[n++] = more[i];
    }
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    run_finish(run_start_program("mpirun", arg));
}
#define ALL(...)    ((const char *const[]){__VA_ARGS__, NULL})
#define RANK_1(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Nothing is said behind the error: of the launchers that would, Open MPI's before 5 lets itself be told. Its libevent
 * may still warn of a socket that closed while it was written to. */
static void check_last_line(void)
{
#if defined OMPI_MAJOR_VERSION && OMPI_MAJOR_VERSION == 4
    const char *line = ran.err ? strstr(ran.err, "tessera: error: ") : NULL;
    do line = line ? strchr(line, '\n') : NULL;
    while (line && !strncmp(++line, "[warn] Epoll ", 13));
    if (!line || *line) CHECK_SAY("behind the error: %s", ran.err);
#endif
}

static void setup(int every)
{
    tiny_setup_with(every < 0 ? "" : fmt(", \"checkpoint\": {\"dir\": \"ck\", \"every\": %d}", every));
}

/* ---- runs that go well ---- */

TEST(ranks_train_what_one_does)
{
    tiny_setup();
    DONE("train", "run.json", "output=one");
    json_t *one = read_metrics("one/metrics.jsonl");
    for (int ranks = 1; ranks <= 4; ranks *= 2) {
        DONE_RANKS(ranks, "train", "run.json");
        CHECK_EQ(times(ran.out, "step 4/4"), 1); /* one speaks and writes for all */
        CHECK_EQ(times(ran.out, "\r"), 0);
        CHECK(exists("out/config.json") && exists(weights));
        json_t *all = read_metrics("out/metrics.jsonl");
        CHECK_EQ(json_array_size(all), 4);
        for (size_t s = 0; s < 4; s++)
            CHECK_NEAR(number_of(all, s, "loss"), number_of(one, s, "loss"), 1e-4 * number_of(one, s, "loss"));
        json_decref(all);
    }
    json_decref(one);
}

/* What carries messages is said, and does not show in the bits. */
TEST(carriers)
{
    tiny_setup();
    DONE_RANKS(2, "train", "run.json", "parallel.carrier=mpi", "output=plain", "zero_optimization.stage=3");
    CHECK_EQ(times(ran.out, "messages between ranks go by MPI\n"), 1);
#ifdef TESS_HAVE_STARPU_MPI
    WITH("STARPU_COMM_STATS", "1")
    DONE_RANKS(2, "train", "run.json", "parallel.carrier=starpu_mpi", "zero_optimization.stage=3");
    CHECK_EQ(times(ran.out, "messages between ranks go by StarPU-MPI "), 1);
    CHECK_HAS(ran.err, "[starpu_comm_stats][0:1]"); /* it was */
    CHECK_HAS(ran.err, "[starpu_comm_stats][1:0]");
    CHECK(same_file(weights, "plain/model/model.safetensors"));
#else
    FAILS(2, ("train", "run.json", "parallel.carrier=starpu_mpi"),
          "parallel.carrier: \"starpu_mpi\" is not supported by this build, expected one of mpi, nccl");
#endif
    RUN_RANKS(2, "train", "run.json", "parallel.carrier=nccl", "overwrite=true");
    if (ran.status) EXPECT_RANKS_ERROR(2, "parallel.carrier: \"nccl\" cannot carry messages: ");
}

/* One head cannot be shared out: a line says so, once. With four heads nothing is to be said. */
TEST(matrices_that_each_tensor_rank_has_whole)
{
    tiny_setup();
    DONE_RANKS(2, "train", "run.json", "steps=1", "parallel.tensor=2", "model.n_head=1");
    CHECK_EQ(times(ran.err, "tessera: parallel.tensor: each of 2 ranks holds and computes all of 4 of 9 matrices, "),
             1);
    CHECK_HAS(ran.err, "attn.c_attn.weight first: 1 unit of columns cannot be shared out\n");
    DONE_RANKS(2, "train", "run.json", "steps=1", "parallel.tensor=2");
    CHECK_EQ(times(ran.err, "parallel.tensor"), 0);
}

TEST(commands_of_one_rank)
{
    tiny_setup_trained();
    DONE("generate", "out/model", "--prompt", "the", "-n", "5", "--temperature", "0");
    char *alone = strdup(ran.out);
    DONE_RANKS(3, "generate", "out/model", "--prompt", "the", "-n", "5", "--temperature", "0");
    CHECK_STR(ran.out, alone);
    free(alone);
    DONE_RANKS(4, "estimate", "run.json");
    CHECK_EQ(times(ran.out, "tokens a step"), 1);
    CHECK_HAS(ran.out, " of 4, which holds the most");
    DONE_RANKS(2, "--help");
    CHECK_EQ(times(ran.out, "Exit status:"), 1);
    DONE_RANKS(2, "train", "--help");
    CHECK_EQ(times(ran.out, "usage: tessera train"), 1);
    FAILS_RANKS(2, (2, "generate", "nowhere", "--prompt", "the"), "error: nowhere");
}

TEST(evaluation)
{
    tiny_setup_trained();
    DONE("eval", "run.json", "model=out/model");
    double alone = atof(ran.out + 5), ranks;
    DONE_RANKS(2, "eval", "run.json", "model=out/model");
    ranks = atof(ran.out + 5);
    CHECK_EQ(times(ran.out, "loss"), 1);
    CHECK_NEAR(ranks, alone, 1e-4 * alone);
}

/* A step of an evaluation has a micro-batch of each rank: how many those are does not show in the sum. */
TEST(evaluations_of_any_number_of_ranks_have_the_same_bits)
{
    static const char *const stage[] = {"zero_optimization.stage=0", "zero_optimization.stage=3"};
    tiny_setup();
    json_t *one = NULL;
    for (int ranks = 1; ranks <= 4; ranks++) {
        DONE_RANKS(ranks, "train", "run.json", "train_batch_size=12", "train_micro_batch_size_per_gpu=1", "steps=3",
                   "deterministic=true", "eval_every=1", stage[ranks % 2]);
        json_t *all = read_metrics("out/metrics.jsonl");
        for (size_t s = 0; s < 3 && one; s++) {
            CHECK(number_of(all, s, "loss") == number_of(one, s, "loss"));
            if (number_of(all, s, "valid_loss") != number_of(one, s, "valid_loss"))
                CHECK_SAY("%d ranks, step %zu: valid_loss %.17g, of one %.17g", ranks, s + 1,
                          number_of(all, s, "valid_loss"), number_of(one, s, "valid_loss"));
        }
        if (one)
            json_decref(all);
        else
            one = all;
    }
    json_decref(one);
}

TEST(who_sits_where)
{
    fresh();
    DONE_RANKS(3, "info");
    CHECK_EQ(times(ran.out, "machine "), 1);
    CHECK_HAS(ran.out, "MPI      3 ranks");
    CHECK_HAS(ran.out, " rank  host ");
    CHECK_EQ(times(ran.out, "\n    0  ") + times(ran.out, "\n    1  ") + times(ran.out, "\n    2  "), 3);
}

/* ---- what is refused ---- */

TEST(what_all_ranks_met)
{
    tiny_setup();
    FAILS_RANKS(2, (3, "train", "run.json", "steps=none"), "error: command line: steps: \"none\"");
    FAILS_RANKS(2, (2, "train", "nowhere.json"), "error: nowhere.json: cannot be read");
    check_last_line();
    FAILS_RANKS(2, (2, "train", "run.json", "data.train=nowhere.txt"), "error: nowhere.txt");
    FAILS_RANKS(2, (2, "frobnicate"), "error: command line: frobnicate: unknown command");
    write_text("file", "");
    FAILS_RANKS(2, (2, "train", "run.json", "output=file/out"),
                "rank 0: file/out: cannot be created"); /* which rank 0 alone meets */
    check_last_line();
    CHECK(!exists("out"));
}

TEST(what_one_rank_met)
{
    tiny_setup();
    run_two(ALL("train", "run.json"), RANK_1("steps=none"));
    EXPECT_RANKS_ERROR(2, "error: rank 1: command line: steps: \"none\"");
    run_two(ALL("train", "run.json"), RANK_1("data.valid=nowhere.txt"));
    EXPECT_RANKS_ERROR(2, "error: rank 1: nowhere.txt");
    check_last_line();
    CHECK(!exists("out"));
}

/* After all that they agree on before, when the others have started. */
TEST(what_one_rank_met_at_its_start)
{
    tiny_setup();
    const char *const arg[] = {
        "--oversubscribe",     "-n",          "1",     run_command(), "train", "run.json", ":", "-n", "1", "env",
        "STARPU_SCHED=nosuch", run_command(), "train", "run.json",    NULL};
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    run_finish(run_start_program("mpirun", arg));
    EXPECT_RANKS_ERROR(2, "error: rank 1: STARPU_SCHED: \"nosuch\" is no scheduling policy");
    check_last_line();
    CHECK(!exists("out"));
}

TEST(ranks_given_different_things)
{
    tiny_setup();
    run_two(ALL("train", "run.json"), RANK_1("seed=2"));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: seed: 2, but 1 on rank 0");
    run_two(ALL("train", "run.json"), RANK_1("model.n_layer=3"));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: model.n_layer: 3, but 2 on rank 0");
    write_tiny_text("other.txt", TINY_TOKENS, 7);
    run_two(ALL("train", "run.json"), RANK_1("data.train=other.txt"));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: data.train: a file of 4000 bytes, checksum", "on rank 0");
    write_tiny_text("longer.txt", 601, 2);
    run_two(ALL("train", "run.json"), RANK_1("data.valid=longer.txt"));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: data.valid: a file of 601 bytes", "a file of 600 bytes");
    CHECK(!exists("out"));
    run_two(ALL("train", "run.json"), RANK_1("output=elsewhere")); /* all write there */
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: output: \"elsewhere\", but \"out\" on rank 0");
    CHECK(!exists("out") && !exists("elsewhere"));
    run_two(ALL("train", "run.json"), RANK_1("memory.path=."));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: memory.path: given, but null on rank 0");
    write_tiny_text("same.txt", TINY_TOKENS, 1); /* paths of what is read may differ, and drives */
    mkdir("drive", 0777);
    run_two(ALL("train", "run.json", "steps=1", "memory.path=."), RANK_1("data.train=same.txt", "memory.path=drive"));
    EXPECT_DONE();
}

TEST(other_weights)
{
    tiny_setup_trained();
    DONE("train", "run.json", "steps=1", "output=wide", "model.n_positions=16");
    run_two(ALL("train", "run.json", "model=out/model"), RANK_1("model=wide/model"));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: model.n_positions: 16, but 32 on rank 0");
    DONE("train", "run.json", "steps=1", "output=same", "seed=2");
    struct weights w = weights_read("same/model/model.safetensors");
    weights_write(&w, "same/model/model.safetensors", 0);
    weights_free(&w);
    run_two(ALL("train", "run.json", "model=out/model"), RANK_1("model=same/model"));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: model: model.safetensors: a file of");
}

TEST(tasks_of_slurm_that_do_not_find_each_other)
{
    tiny_setup();
    setenv("SLURM_STEP_NUM_TASKS", "4", 1);
    setenv("SLURM_PROCID", "0", 1);
    FAILS(2, ("train", "run.json"), "Slurm: srun started 4 tasks", "--mpi=pmix");
    setenv("SLURM_PROCID", "2", 1);
    RUN("train", "run.json");
    CHECK_EQ(ran.status, 2);
    CHECK_STR(ran.err, "");
    unsetenv("SLURM_STEP_NUM_TASKS");
    unsetenv("SLURM_PROCID");
    CHECK(!exists("out"));
}

/* ---- one run after another ---- */

/* What is found is said once, and all ranks go by it. */
TEST(what_a_run_left)
{
    setup(2);
    DONE_RANKS(2, "train", "run.json", "overwrite=false", "eval_every=2", "checkpoint.keep_best=true",
               "early_stop.patience=3");
    CHECK_EQ(times(ran.out, "data: 249 samples"), 1);
    CHECK_EQ(times(ran.out, "the model of step 4: out/model\n"), 1);
    CHECK_EQ(times(ran.out, "the best loss on data.valid"), 1);
    CHECK(exists("ck/best/state.json"));
    FAILS_RANKS(2, (2, "train", "run.json", "overwrite=false"), "ck: holds a run's checkpoint of step 4",
                "overwrite=true");
    FAILS_RANKS(2, (2, "train", "run.json", "overwrite=false", "checkpoint.dir=other"),
                "out: holds another run's metrics, up to step 4");
    DONE_RANKS(2, "train", "run.json", "--resume");
    CHECK_EQ(times(ran.out, "nothing to do: ck is at step 4 of 4"), 1);
    FAILS_RANKS(2, (2, "train", "run.json", "--resume", "steps=6", "model.n_head=2"),
                "ck/step-00000004: its model has n_head 4, the configuration's 2");
    DONE_RANKS(2, "train", "run.json", "--resume", "steps=6", "model.resid_pdrop=0", "bf16.enabled=true");
    CHECK_EQ(times(ran.err, "tessera: resuming from ck after step 4\n"), 1);
    CHECK_EQ(times(ran.err, "tessera: resuming with another model.resid_pdrop"), 1);
    CHECK_EQ(times(ran.err, "tessera: resuming in bf16"), 1);
    DONE_RANKS(2, "eval", "run.json", "model=ck");
    CHECK_EQ(times(ran.err, "tessera: the newest checkpoint in ck: ck/step-00000006"), 1);
    CHECK_EQ(times(ran.out, "loss "), 1);
    DONE_RANKS(2, "export", "ck", "hf");
    CHECK(same_file("hf/model.safetensors", weights));
    DONE_RANKS(2, "train", "run.json", "steps=1");
    CHECK_EQ(times(ran.err, "tessera: overwrite: removed 2 checkpoints of another run from ck"), 1);
    CHECK_EQ(count_lines("out/metrics.jsonl"), 1);
}

TEST(lists_of_data)
{
    tiny_setup();
    write_tiny_text("a.txt", 1000, 3);
    write_tiny_text("b.txt", 1000, 4);
    write_tiny_text("c.txt", 1000, 5);
    static const char list[] = "data.train=[\"a.txt\", \"b.txt\"]", other[] = "data.train=[\"a.txt\", \"c.txt\"]",
                      one[] = "data.train=[\"a.txt\"]";
    DONE_RANKS(2, "train", "run.json", list, "epochs=0.1", "steps=auto");
    CHECK_HAS(ran.out, "(2000 tokens in 2 files); 4 steps of 4 are");
    run_two(ALL("train", "run.json", list), RANK_1(other));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: data.train, file 2: a file of 1000 bytes", "on rank 0");
    run_two(ALL("train", "run.json", list), RANK_1(one));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: data.train");
    run_two(ALL("train", "run.json", list), RANK_1("data.train=[]"));
    EXPECT_RANKS_ERROR(2, "rank 1: run.json: data.train: an empty list");
}

/* ---- ends ---- */

enum { RANKS_MOST = 8 };
static pid_t rank_pid[RANKS_MOST];

static int rank_of(pid_t pid)
{
    char *text;
    size_t bytes = 0;
    int rank = -1;
    text = read_file(fmt("/proc/%d/environ", (int)pid), &bytes);
    for (char *p = text; text && p < text + bytes; p += strlen(p) + 1)
        if (!strncmp(p, "OMPI_COMM_WORLD_RANK=", 21)) rank = atoi(p + 21);
    free(text);
    return rank;
}

static bool gone(int ranks)
{
    for (int i = 0; i < ranks; i++)
        if (!kill(rank_pid[i], 0)) return false;
    return true;
}

/* Waits for the launcher's end, which is near, and that of all it started. */
static void finish_soon(pid_t pid, int ranks)
{
    double start = run_clock();
    run_finish(pid);
    while (!gone(ranks) && run_clock() - start < 10) run_nap();
    CHECK(run_clock() - start < 10);
    CHECK(gone(ranks));
}

static pid_t start_steps(int ranks, int lines)
{
    pid_t pid = START_RANKS(ranks, "train", "run.json", endless, "log_every=1000000");
    WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= lines);
    CHECK_EQ(run_ranks_of(pid, rank_pid, RANKS_MOST), ranks);
    return pid;
}

/* The newest checkpoint; 0: none. */
static int newest(void)
{
    for (int step = 9999; step > 0; step--) {
        if (exists(fmt(states, step))) return step;
    }
    return 0;
}

static void check_goes_on(int step, int ranks)
{
    const char *steps = fmt("steps=%d", step + 2);
    const char *note = fmt("tessera: resuming from ck after step %d\n", step);
    DONE_RANKS(ranks, "train", "run.json", steps, "--resume");
    CHECK_EQ(times(ran.err, note), 1);
    CHECK_EQ(count_lines("out/metrics.jsonl"), step + 2);
}

TEST(a_rank_that_is_killed)
{
    for (int victim = 0; victim < 2; victim++) {
        setup(1);
        pid_t pid = start_steps(2, 3);
        for (int i = 0; i < 2; i++)
            if (rank_of(rank_pid[i]) == victim) CHECK(!kill(rank_pid[i], SIGKILL));
        finish_soon(pid, 2);
        CHECK(ran.status > 0);
        EXPECT_RANKS_ERROR(ran.status, fmt("tessera: error: rank %d: died", victim));
        int step = newest();
        CHECK(step >= 1); /* that of step 2 is named behind step 3 */
        check_goes_on(step, 2);
    }
}

TEST(a_signal_that_the_launcher_passes_on)
{
    setup(0);
    pid_t pid = start_steps(4, 3);
    CHECK(!kill(pid, SIGUSR1));
    finish_soon(pid, 4);
    EXPECT_DONE();
    int step = count_lines("out/metrics.jsonl");
    CHECK_EQ(times(ran.err, fmt("tessera: stopped by a signal after step %d of 1000000\n", step)), 1);
    CHECK_EQ(times(ran.err, "ending after this step"), 1);
    CHECK_EQ(newest(), step);
    CHECK(exists(weights));
    CHECK_HAS(ran.err, "this goes on: mpirun --oversubscribe -n 4 ");
    CHECK_HAS(ran.err, " train run.json steps=1000000 log_every=1000000 --resume\n");
    check_goes_on(step, 4);
}

/* After these two mpirun ends with a status of its own. It gives its ranks a second, which is little for a step and its
 * checkpoint on a machine that is busy: here more. */
TEST(a_signal_to_the_launcher)
{
    static const int signals[] = {SIGTERM, SIGINT};
    setenv("OMPI_MCA_odls_base_sigkill_timeout", "3", 1);
    for (int i = 0; i < 2; i++) {
        setup(0);
        pid_t pid = start_steps(2, 3);
        CHECK(!kill(pid, signals[i]));
        finish_soon(pid, 2);
        CHECK_EQ(times(ran.err, "tessera: error"), 0);
        int step = count_lines("out/metrics.jsonl");
        CHECK_EQ(newest(), step);
        check_goes_on(step, 2);
    }
    unsetenv("OMPI_MCA_odls_base_sigkill_timeout");
}

/* ---- files that go bad ---- */

enum { TOKENS = 200000 };

/* Tokens out of any vocabulary where no look at a file's ends finds them. */
static void write_bad(const char *path)
{
    size_t bytes = 0;
    char *all = read_file("good.bin", &bytes);
    for (size_t at = 70000; at < bytes - 70000; at += 2) memcpy(all + at, &(uint16_t){60000}, 2);
    write_file(path, all, bytes);
    free(all);
}

static void setup_tokens(void)
{
    uint8_t *token = calloc(TOKENS, 1);
    tiny_setup();
    tiny_text((char *)token, TOKENS, 3);
    write_llmc("good.bin", token, TOKENS);
    free(token);
}

TEST(samples_that_one_rank_cannot_use)
{
    setup_tokens();
    write_bad("bad.bin");
    run_two(ALL("train", "run.json", "steps=200", "data.train=good.bin"), RANK_1("data.train=bad.bin"));
    EXPECT_RANKS_ERROR(2, "rank 1: bad.bin", "60000");
    FAILS_RANKS(2, (2, "train", "run.json", "steps=200", "data.train=bad.bin"), "bad.bin", "60000");
    check_last_line();
}

TEST(a_file_that_is_cut)
{
    setup_tokens();
    pid_t pid = START_RANKS(2, "train", "run.json", endless, "data.train=good.bin");
    WAIT_UNTIL(pid, count_lines("out/metrics.jsonl") >= 2);
    CHECK_EQ(run_ranks_of(pid, rank_pid, RANKS_MOST), 2);
    cut_file("good.bin", 4096);
    finish_soon(pid, 2);
    EXPECT_RANKS_ERROR(1, "rank ", "good.bin: cannot be read any more");
    check_last_line();
}
