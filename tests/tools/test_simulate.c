/* tessera simulate: a step on a machine that is a file, beside the same step here, and on machines that are nowhere. */
#define CHECK_MAIN
#include "tiny.h"
#include <dirent.h>
#include <sys/stat.h>

/* Rates that make the drive matter: a second of a core is a few MB of it. */
#define MACHINE(cores, more)                                                                                           \
    "{\"name\": \"made up\", \"cores\": " #cores ", \"memory_gib\": 4, \"copy_gb_s\": 1, \"task_us\": 5,\n"            \
    " \"matrix_gflops\": {\"fp32\": 10, \"bf16\": 20}" more "}\n"
#define DRIVE ", \"drive_gb_s\": {\"read\": 0.05, \"write\": 0.04, \"mixed_read\": 0.02, \"mixed_write\": 0.02}"

#define WIDE "\"steps\": 3, \"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 4, \"gradient_clipping\": 1"

#define NETWORK ", \"network\": {\"gb_s\": 0.5, \"latency_us\": 20}"
#define BATCH   "train_micro_batch_size_per_gpu=2"

/* The number behind a text; -1: it is not there. */
static double behind(const char *text, const char *part)
{
    const char *at = strstr(text, part);
    return at ? strtod(at + strlen(part), NULL) : -1;
}

/* Ends with a step simulated, in `ran`. */
#define SIMULATE_SETUP()                                                                                               \
    do {                                                                                                               \
        wide_setup_with(WIDE);                                                                                         \
        write_text("two.json", MACHINE(2, DRIVE));                                                                     \
        RUN("simulate", "run.json", "--machine", "two.json");                                                          \
        if (ran.status == 2 && strstr(ran.err, "this build has no tessera-simulator")) SKIP("no StarPU over SimGrid"); \
        EXPECT_DONE();                                                                                                 \
    } while (0)

/* Sums the second column of the table of codelets. */
static double tasks_of(const char *out, const char *end)
{
    double sum = 0;
    const char *at = strstr(out, "\ncodelet");
    for (at = at ? strchr(at + 1, '\n') : NULL; at && at[1] && at[1] != '\n' && strncmp(at + 1, end, strlen(end));
         at = strchr(at + 1, '\n')) {
        double tasks = 0;
        if (sscanf(at + 1, "%*s %*s %lf", &tasks) == 1) sum += tasks;
    }
    return sum;
}

TEST(a_step_has_the_tasks_and_bytes_that_it_has_here)
{
    SIMULATE_SETUP();
    CHECK_HAS(ran.out, "machine   made up: 2 cores, 4.0 GiB of RAM, a drive");
    const double tasks = behind(ran.out, "\ntasks     ");
    CHECK(tasks > 100);
    RUN("bench", "run.json", "--steps", "2");
    EXPECT_DONE();
    CHECK_EQ((int)tasks_of(ran.out, "a step of"), (int)tasks);
}

TEST(a_cap_moves_what_it_moves_here)
{
    SIMULATE_SETUP();
    const double cores = behind(ran.out, "\nstep      ");
    RUN("simulate", "run.json", "--machine", "two.json", "memory.cpu=14MiB", "memory.path=nowhere");
    EXPECT_DONE();
    CHECK(!exists("nowhere")); /* the drive is not this machine's */
    const double capped = behind(ran.out, "\nstep      "), reads = behind(ran.out, "\ndisk      reads "),
                 writes = behind(ran.out, " and writes ");
    CHECK(reads > 0 && writes > 0);
    CHECK(capped > cores);
    CHECK(behind(ran.out, "tiles hold ") <= 14 << 20);
    /* It takes no less than its drive alone does, whose rates are the file's. */
    CHECK(capped > (reads + writes) / 2 / 0.04e9 * 0.999);
    CHECK_HAS(ran.out, "the step is bound by the drive");
}

TEST(one_machine_gives_the_same_digits_and_twice_the_rates_half_the_time)
{
    SIMULATE_SETUP();
    char *first = strdup(ran.out);
    RUN("simulate", "run.json", "--machine", "two.json");
    EXPECT_DONE();
    CHECK_STR(ran.out, first);
    const double seconds = behind(first, "\nstep      ");
    write_text("fast.json", "{\"name\": \"made up\", \"cores\": 2, \"memory_gib\": 4, \"copy_gb_s\": 2,\n"
                            " \"matrix_gflops\": {\"fp32\": 20, \"bf16\": 40}}\n");
    RUN("simulate", "run.json", "--machine", "fast.json");
    EXPECT_DONE();
    CHECK_NEAR(behind(ran.out, "\nstep      "), seconds / 2, seconds / 50);
    write_text("one.json", MACHINE(1, ""));
    RUN("simulate", "run.json", "--machine", "one.json");
    EXPECT_DONE(); /* a core has the rates of all here: as long as two of half its rates that are always busy, or less
                    */
    CHECK(behind(ran.out, "\nstep      ") <= seconds * 1.001);
    free(first);
}

/* ---- ranks ---- */

/* The same placements by mpirun and over simulated nodes: rank 0 has the tasks of each codelet and sends the bytes
 * that it has and sends here. */
TEST(ranks_have_the_tasks_and_messages_that_they_have_here)
{
    static const struct {
        int ranks;
        const char *nodes, *stage, *tensor, *pipeline;
    } cases[] = {{2, "2", "0", "1", "1"}, {2, "2", "1", "1", "1"}, {2, "2", "3", "1", "1"},
                 {4, "4", "1", "2", "1"}, {4, "4", "2", "1", "2"}, {4, "4", "3", "1", "1"}};
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(1, DRIVE NETWORK));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char stage[64], tensor[32], pipeline[32], what[64];
        snprintf(stage, sizeof stage, "zero_optimization.stage=%s", cases[i].stage);
        snprintf(tensor, sizeof tensor, "parallel.tensor=%s", cases[i].tensor);
        snprintf(pipeline, sizeof pipeline, "parallel.pipeline=%s", cases[i].pipeline);
        snprintf(what, sizeof what, "%d ranks, stage %s, tensor %s, pipeline %s", cases[i].ranks, cases[i].stage,
                 cases[i].tensor, cases[i].pipeline);
        RUN("simulate", "run.json", "--machine", "net.json", "--nodes", cases[i].nodes, "--steps", "1", stage, tensor,
            pipeline, BATCH);
        EXPECT_DONE();
        const double tasks = tasks_of(ran.out, "\n"), all = behind(ran.out, "\nmessages  "),
                     far = behind(ran.out, "of all ranks, "), sent = behind(ran.out, "rank 0 sends ");
        RUN_RANKS(cases[i].ranks, "bench", "run.json", "--steps", "1", stage, tensor, pipeline, BATCH);
        EXPECT_DONE();
        if ((int64_t)behind(ran.out, "this one sends ") != (int64_t)sent ||
            (int)tasks_of(ran.out, "a step of") != (int)tasks)
            CHECK_SAY("%s: rank 0 sends %.0f bytes and has %.0f tasks here, %.0f and %.0f there", what,
                      behind(ran.out, "this one sends "), tasks_of(ran.out, "a step of"), sent, tasks);
        CHECK(sent > 0 && all > sent && all == far);
    }
}

TEST(ranks_share_a_node_and_a_network_takes_its_time)
{
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(2, DRIVE NETWORK));
    RUN("simulate", "run.json", "--machine", "net.json", "--ranks-per-node", "2", "--steps", "1", BATCH);
    EXPECT_DONE();
    CHECK_HAS(ran.out, "2 cores, 4.0 GiB of RAM");
    CHECK_HAS(ran.out, "of all ranks, 0 of them between nodes");
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "zero_optimization.stage=3", "--steps", "1",
        BATCH);
    EXPECT_DONE();
    char *first = strdup(ran.out);
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "zero_optimization.stage=3", "--steps", "1",
        BATCH);
    EXPECT_DONE();
    CHECK_STR(ran.out, first); /* the same digits */
    /* A network on which the messages of a rank alone take ten times the step. */
    const double seconds = behind(first, "\nstep      "), sent = behind(first, "rank 0 sends ");
    char slow[600];
    snprintf(
        slow, sizeof slow,
        "{\"name\": \"made up\", \"cores\": 2, \"memory_gib\": 4, \"copy_gb_s\": 1, \"matrix_gflops\": {\"fp32\": 10, "
        "\"bf16\": 20}, \"nodes\": 2, \"network\": {\"gb_s\": %.9f, \"latency_us\": 1}}",
        1e-9 * sent / (10 * seconds) < 1e-3 ? 1e-3 : 1e-9 * sent / (10 * seconds));
    write_text("slow.json", slow);
    RUN("simulate", "run.json", "--machine", "slow.json", "zero_optimization.stage=3", "--steps", "1",
        BATCH); /* its nodes are two */
    EXPECT_DONE();
    CHECK(behind(ran.out, "\nstep      ") > behind(ran.out, "on the cores alone, "));
    CHECK_HAS(ran.out, "the step is bound by the network");
    free(first);
    /* Four nodes below two switches, which meet in one link, or in two. */
#define TREE(links) ", \"topology\": \"fat tree\", \"nodes_per_switch\": 2, \"uplinks\": " #links
    /* A dragonfly of two groups of two switches, or of one of four: its groups meet in one link. */
#define FLY(nodes, switches)                                                                                           \
    ", \"topology\": \"dragonfly\", \"nodes_per_switch\": " #nodes ", \"switches_per_group\": " #switches              \
    ", \"uplinks\": 1"
    static const char *const topology[] = {"", TREE(1), TREE(2), FLY(1, 2), FLY(1, 4)};
    double tree[5];
    for (int i = 0; i < 5; i++) {
        char text[600];
        snprintf(
            text, sizeof text,
            "{\"name\": \"made up\", \"cores\": 2, \"memory_gib\": 4, \"copy_gb_s\": 10, \"nodes\": 4,\n"
            " \"matrix_gflops\": {\"fp32\": 100, \"bf16\": 20}, \"network\": {\"gb_s\": 0.01, \"latency_us\": 1%s}}\n",
            topology[i]);
        write_text("tree.json", text);
        RUN("simulate", "run.json", "--machine", "tree.json", "zero_optimization.stage=3", "--steps", "1", BATCH);
        EXPECT_DONE();
        tree[i] = behind(ran.out, "\nstep      ");
    }
    CHECK(tree[1] > 1.2 * tree[2]);
    CHECK(tree[2] >= 0.99 * tree[0]);
    CHECK(tree[3] > 1.2 * tree[4]);
    CHECK(tree[4] >= 0.99 * tree[0]);
    RUN("simulate", "run.json", "--machine", "tree.json", "--nodes", "6");
    EXPECT_ERROR(2, "6 nodes, and 4 of them are a group");
    write_text("tree.json", MACHINE(2, ", \"nodes\": 4, \"network\": {\"gb_s\": 0.01, \"latency_us\": 1" TREE(2) "}"));
    RUN("simulate", "run.json", "--machine", "tree.json", "--nodes", "3");
    EXPECT_ERROR(2, "3 nodes, and 2 of them share each switch");
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "--trace", "1:1", "--steps", "1", BATCH);
    EXPECT_DONE();
    RUN("explain", "out");
    EXPECT_DONE();
}

/* ---- ranks that are simulated by others ---- */

/* A node of four GPUs, of which two share a link to RAM. */
#define FOLDED_NODE                                                                                                    \
    MACHINE(8,                                                                                                         \
            NETWORK ", \"gpus\": {\"count\": 4, \"name\": \"made up\", \"memory_gib\": 1, \"copy_gb_s\": 10, "         \
                    "\"matrix_gflops\": {\"fp32\": 100, \"bf16\": 200}, \"host_link\": {\"gb_s\": 1, \"gpus\": 2}, "   \
                    "\"peer_link\": {\"gb_s\": 4}}")

/* One for all has their bytes, and their time but for what differs between them: which slices are whose. */
TEST(ranks_that_have_the_same_to_do_are_simulated_by_one)
{
    static const struct {
        const char *machine, *nodes, *batch, *stage, *tensor, *pipeline, *fold, *said;
    } cases[] = {{"net.json", "4", "8", "1", "1", "1", "data", "; 1 of them simulated, each for 4 that"},
                 {"net.json", "8", "8", "3", "1", "1", "auto", "; 1 of them simulated, each for 8 that"},
                 {"net.json", "4", "8", "0", "2", "1", "tensor", "; 2 of them simulated, each for 2 that"},
                 {"net.json", "8", "8", "2", "2", "2", "data,tensor", "; 2 of them simulated, each for 4 that"},
                 {"net.json", "20", "20", "3", "1", "1", "auto", "; 5 of them simulated, each for 4 that"},
                 {"node.json", "1", "8", "3", "1", "1", "auto", "; 1 of them simulated, each for 4 that"},
                 {"node.json", "2", "8", "1", "2", "2", "auto", "; 2 of them simulated, each for 4 that"}};
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(1, DRIVE NETWORK));
    write_text("node.json", FOLDED_NODE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char stage[64], tensor[32], pipeline[32], batch[40], what[200];
        double seconds[2], tasks[2], bytes[2], far[2], peak[2];
        snprintf(stage, sizeof stage, "zero_optimization.stage=%s", cases[i].stage);
        snprintf(tensor, sizeof tensor, "parallel.tensor=%s", cases[i].tensor);
        snprintf(pipeline, sizeof pipeline, "parallel.pipeline=%s", cases[i].pipeline);
        snprintf(batch, sizeof batch, "train_batch_size=%s", cases[i].batch);
        for (int folded = 0; folded < 2; folded++) {
            RUN("simulate", "run.json", "--machine", cases[i].machine, "--nodes", cases[i].nodes, "--steps", "1", stage,
                tensor, pipeline, batch, "train_micro_batch_size_per_gpu=1", "--fold", folded ? cases[i].fold : "none");
            EXPECT_DONE();
            seconds[folded] = behind(ran.out, "\nstep      ");
            tasks[folded] = behind(ran.out, "\ntasks     ");
            bytes[folded] = behind(ran.out, "\nmessages  ");
            far[folded] = behind(ran.out, "of all ranks, ");
            peak[folded] = behind(ran.out, "tiles of a rank hold ");
            if (folded) CHECK_HAS(ran.out, cases[i].said);
        }
        snprintf(what, sizeof what, "%s, %s nodes, stage %s, tensor %s, pipeline %s", cases[i].machine, cases[i].nodes,
                 cases[i].stage, cases[i].tensor, cases[i].pipeline);
        if (fabs(seconds[1] / seconds[0] - 1) > 0.05 || fabs(tasks[1] / tasks[0] - 1) > 0.12 ||
            fabs(bytes[1] / bytes[0] - 1) > 0.01 || fabs(far[1] - far[0]) > 0.01 * bytes[0] ||
            fabs(peak[1] / peak[0] - 1) > 0.05)
            CHECK_SAY("%s: %f s, %.0f tasks, %.0f bytes, %.0f far, peak %.0f; folded %f, %.0f, %.0f, %.0f, %.0f", what,
                      seconds[0], tasks[0], bytes[0], far[0], peak[0], seconds[1], tasks[1], bytes[1], far[1], peak[1]);
    }
}

TEST(a_folded_run_gives_the_same_digits_and_a_timeline_of_who_was_there)
{
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(1, DRIVE NETWORK));
    char *first = NULL;
    for (int i = 0; i < 2; i++) {
        RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "8", "parallel.pipeline=2", "--fold", "auto",
            "--steps", "1", "train_micro_batch_size_per_gpu=1", "--trace", "1:1");
        EXPECT_DONE();
        CHECK(!strstr(ran.err, "cannot be read"));
        if (first) CHECK_STR(ran.out, first);
        if (!first) first = strdup(ran.out);
    }
    free(first);
    RUN("explain", "out");
    EXPECT_DONE();
    /* 512 ranks take little more than 8. */
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "512", "parallel.pipeline=2", "parallel.tensor=16",
        "train_batch_size=16", "--fold", "auto", "--steps", "1", "train_micro_batch_size_per_gpu=1");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "ranks     512, 1 on each node: 16 for data x 16 tensor parallel x 2 stages of a pipeline; 2 of "
                       "them simulated, each for 256 that have the same to do");
}

TEST(a_fold_that_cannot_be_is_one_line)
{
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(2, DRIVE NETWORK));
    RUN("simulate", "run.json", "--machine", "net.json", "--fold", "auto");
    EXPECT_ERROR(2, "--fold: there is one rank, and none that has the same to do");
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "2", BATCH, "--fold", "pipeline");
    EXPECT_ERROR(2, "--fold: pipeline, expected data, tensor, both with a comma, auto or none");
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "2", BATCH, "--fold", "data,");
    EXPECT_ERROR(2, "--fold: data,, expected");
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "3", "--ranks-per-node", "2", "train_batch_size=12",
        "parallel.pipeline=3", BATCH, "--fold", "data");
    EXPECT_ERROR(2, "of 2 ranks on each node 2 would be there on node 0 and 1 on node 1");
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "4", "parallel.tensor=3", BATCH, "--fold", "auto");
    EXPECT_ERROR(2, "tensor 3");
}

/* Where this machine's workers are is nothing to that one. */
TEST(what_is_said_of_this_machine_is_not_of_that)
{
    SIMULATE_SETUP();
    char *first = strdup(ran.out);
    setenv("STARPU_NCPU", "1", 1);
    RUN("simulate", "run.json", "--machine", "two.json");
    unsetenv("STARPU_NCPU");
    EXPECT_DONE();
    CHECK_STR(ran.out, first);
    free(first);
}

TEST(a_signal_leaves_nothing_behind)
{
    SIMULATE_SETUP();
    mkdir("tmp", 0777);
    setenv("TMPDIR", "tmp", 1);
    const pid_t run = START("simulate", "run.json", "--machine", "two.json", "--steps", "100000");
    WAIT_UNTIL(run, names_in("tmp", "tessera-simulate-", NULL) > 0);
    kill(run, SIGTERM);
    run_finish(run);
    unsetenv("TMPDIR");
    CHECK(ran.status != 0);
    CHECK_EQ(names_in("tmp", "tessera-simulate-", NULL), 0);
    /* Ranks that the kernel kills. */
    write_text("net.json", MACHINE(2, NETWORK));
    setenv("TMPDIR", "tmp", 1);
    const pid_t ranks =
        START("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "--steps", "100000", BATCH);
    pid_t simulator = 0;
    WAIT_UNTIL(ranks, run_ranks_of(ranks, &simulator, 1) > 0 && names_in("tmp", "tessera-simulate-", NULL) > 0);
    kill(simulator, SIGKILL);
    run_finish(ranks);
    unsetenv("TMPDIR");
    EXPECT_ERROR(1, "simulation: was killed (out of memory?");
    CHECK_EQ(names_in("tmp", "tessera-simulate-", NULL), 0);
}

/* The number in front of a text that follows a line's beginning. */
static double in_row(const char *out, const char *row, int column)
{
    double value = -1;
    const char *at = strstr(out, row);
    for (at = at ? at + strlen(row) : NULL; at && column >= 0; column--) {
        char *end;
        value = strtod(at, &end);
        at = end > at ? end : NULL;
    }
    return at ? value : -1;
}

TEST(a_sweep_has_a_row_for_each_combination_and_names_the_best_that_fits)
{
    SIMULATE_SETUP();
    RUN("simulate", "run.json", "--machine", "two.json", "memory.cpu=14MiB", "memory.path=swap");
    EXPECT_DONE();
    const double capped = behind(ran.out, "\nstep      ");
    RUN("simulate", "run.json", "--machine", "two.json", "gradient_clipping=0", "memory.cpu=1GiB", "memory.path=swap");
    EXPECT_DONE();
    const double cores = behind(ran.out, "\nstep      ");
    RUN("simulate", "run.json", "--machine", "two.json", "memory.path=swap", "--sweep", "memory.cpu=2MiB,14MiB,1GiB",
        "gradient_clipping=0,1", "--steps", "2", "trace.steps=[1,1]");
    EXPECT_DONE();
    CHECK(!exists("out/trace.json"));
    CHECK_HAS(ran.out, "memory.cpu  gradient_clipping        step s     tokens/s  RAM        disk       bound by\n");
    CHECK_HAS(ran.out, "\n2MiB        0                  memory.cpu: 2.0 MiB, which is too little for any step");
    CHECK_NEAR(in_row(ran.out, "\n14MiB       1 ", 0), capped, 2e-6);
    CHECK_NEAR(in_row(ran.out, "\n1GiB        0 ", 0), cores, 2e-6);
    CHECK(in_row(ran.out, "\n1GiB        0 ", 1) > in_row(ran.out, "\n1GiB        1 ", 1));
    CHECK_HAS(ran.out, "\nbest      memory.cpu=1GiB gradient_clipping=0: ");
    /* More tokens a second are better, not fewer seconds a step; a list is one value. */
    RUN("simulate", "run.json", "--machine", "two.json", "--sweep=train_batch_size=4,8",
        "optimizer.params.betas=[0.9,0.95],[0.9,0.99]");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "\nbest      train_batch_size=8 optimizer.params.betas=[0.9,0.95]: ");
    CHECK(in_row(ran.out, "\n4                 [0.9,0.99] ", 0) > 0);
}

TEST(a_sweep_that_has_no_row_is_one_line)
{
    SIMULATE_SETUP();
    RUN("simulate", "run.json", "--machine", "two.json", "--sweep", "memory.cpu=1MiB,2MiB", "memory.path=swap");
    EXPECT_ERROR(2, "--sweep: none of 2 combinations fits");
    CHECK_HAS(ran.out, "\n1MiB        swap         memory.cpu: 1.0 MiB, which is too little");
    RUN("simulate", "run.json", "--machine", "two.json", "--sweep", "memry.cpu=1MiB,2MiB");
    EXPECT_ERROR(2, "memry.cpu: unknown key");
    RUN("simulate", "run.json", "--machine", "none.json", "--sweep", "memory.cpu=1MiB,2MiB");
    EXPECT_ERROR(2, "none.json: cannot be read");
    RUN("simulate", "run.json", "--machine", "two.json", "--sweep", "--steps", "1");
    EXPECT_ERROR(2, "--sweep: missing its KEY=VALUE,VALUE,...");
    RUN("simulate", "run.json", "--machine", "two.json", "--sweep", "steps");
    EXPECT_ERROR(2, "--sweep: steps, expected KEY=VALUE,VALUE,...");
    RUN("simulate", "run.json", "--machine", "two.json", "--sweep", "seed=1,,2");
    EXPECT_ERROR(2, "seed=1,,2 has a value that is empty");
    RUN("simulate", "run.json", "--machine", "two.json", "--sweep", "seed=1,2", "--trace", "1:1");
    EXPECT_ERROR(2, "--trace: a sweep leaves no timeline");
    RUN("simulate", "run.json", "--machine", "two.json", "--sweep", "seed=1", "seed=2");
    EXPECT_ERROR(2, "--sweep: seed is there twice");
}

/* The sweep alone is told, as by kill; what it has started clears what it has made. */
TEST(a_signal_ends_all_of_a_sweep)
{
    SIMULATE_SETUP();
    mkdir("tmp", 0777);
    setenv("TMPDIR", "tmp", 1);
    const pid_t run =
        START("simulate", "run.json", "--machine", "two.json", "--steps", "100000", "--sweep", "seed=1,2,3");
    WAIT_UNTIL(run, names_in("tmp", "tessera-simulate-", NULL) > 0);
    kill(run, SIGINT);
    run_finish(run);
    unsetenv("TMPDIR");
    CHECK(ran.status != 0);
    CHECK_EQ(names_in("tmp", "", NULL), 0);
}

TEST(policies_of_starpu_act)
{
    SIMULATE_SETUP();
    const double tasks = behind(ran.out, "\ntasks     ");
    static const char *const policies[] = {"eager", "lws", "dmdas"};
    for (int i = 0; i < 3; i++) {
        setenv("STARPU_SCHED", policies[i], 1);
        RUN("simulate", "run.json", "--machine", "two.json");
        unsetenv("STARPU_SCHED");
        EXPECT_DONE();
        CHECK_EQ((int)behind(ran.out, "\ntasks     "), (int)tasks);
    }
}

TEST(a_codelets_share_is_that_of_its_file)
{
    SIMULATE_SETUP();
    const double before = behind(ran.out, "\nstep      ");
    write_text("slow.json", MACHINE(2, ", \"shares\": {\"linear_forward f32\": 0.0085}"));
    RUN("simulate", "run.json", "--machine", "slow.json");
    EXPECT_DONE();
    CHECK(behind(ran.out, "\nstep      ") > 1.5 * before); /* a hundredth of what it was */
    const mode_t mask = umask(022);
    RUN("info", "--machine", "here.json");
    EXPECT_DONE();
    char *here = read_file("here.json", NULL), text[4000];
    snprintf(text, sizeof text, "{\"about\": \"the one below the desk\", %s", strchr(here, '{') + 1);
    free(here);
    write_text("here.json", text);
    RUN("bench", "run.json", "--steps", "1", "--machine", "here.json");
    EXPECT_DONE();
    umask(mask);
    struct stat st;
    CHECK(!stat("here.json", &st) && (st.st_mode & 0777) == 0644); /* others may read it */
    here = read_file("here.json", NULL);
    CHECK_HAS(here, "\"linear_forward f32\"");
    CHECK_HAS(here, "\"about\": \"the one below the desk\"");
    free(here);
    RUN("info", "--machine", "nowhere/here.json");
    EXPECT_ERROR(1, "nowhere/here.json: cannot be written: No such file or directory");
    RUN("simulate", "run.json", "--machine", "here.json", "--steps", "1");
    EXPECT_DONE();
}

/* One sequence of 1024 tokens gives an op one task: seven cores of eight would have nothing but its parts. */
TEST(cores_without_a_task_take_parts_of_others)
{
    SIMULATE_SETUP();
    char one[2000] = "";
    static const char *const machines[] = {MACHINE(1, ""), MACHINE(8, "")};
    double seconds[2];
    for (int i = 0; i < 2; i++) {
        write_text("parts.json", machines[i]); /* both have the same rates, of all cores at a time */
        RUN("simulate", "run.json", "--machine", "parts.json", "train_batch_size=1", "train_micro_batch_size_per_gpu=1",
            "data.seq_length=1024", "--trace", "2:2",
            "model={\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 512, \"n_head\": 8, \"vocab_size\": 512, "
            "\"n_positions\": 1024}");
        EXPECT_DONE();
        seconds[i] = behind(ran.out, "\nstep      ");
        snprintf(one, sizeof one, "%.1999s", strstr(ran.out, "\ncores     "));
    }
    CHECK(behind(one, "idle ") < 45); /* three quarters without parts */
    CHECK(seconds[1] < 2 * seconds[0] && seconds[1] > seconds[0]);
    char *trace = read_file("out/trace.json", NULL);
    CHECK_HAS(trace, "\"helps\":true");
    free(trace);
}

/* 60 GB of tiles, of which none is touched. */
TEST(a_model_may_be_larger_than_all_memory_here)
{
    SIMULATE_SETUP();
    write_text("large.json", "{\"name\": \"made up\", \"cores\": 8, \"memory_gib\": 512, \"copy_gb_s\": 400,\n"
                             " \"matrix_gflops\": {\"fp32\": 10000, \"bf16\": 10000}}\n");
    RUN("simulate", "run.json", "--machine", "large.json", "--steps", "1", "data.seq_length=256",
        "tiles.elements=50331648",
        "model={\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 8192, \"intermediate_size\": 22016, "
        "\"num_hidden_layers\": 4, \"num_attention_heads\": 64, \"max_position_embeddings\": 2048}");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "3762364416 parameters");
    CHECK(behind(ran.out, "tiles hold ") > 60e9);
    char machine[4200];
    snprintf(machine, sizeof machine, "%s/../machines/cpu-2x64.json", TESS_TESTS);
    RUN("simulate", "run.json", "--machine", machine, "--steps", "1");
    EXPECT_DONE();
    CHECK_HAS(ran.out, ": 128 cores, 512 GiB of RAM, a drive");
}

TEST(a_traced_step_is_a_timeline_of_the_machine)
{
    SIMULATE_SETUP();
    RUN("simulate", "run.json", "--machine", "two.json", "--trace", "1:1");
    EXPECT_DONE();
    char *trace = read_file("out/trace.json", NULL);
    CHECK_HAS(trace, "linear_forward");
    free(trace);
    RUN("explain", "out");
    EXPECT_DONE();
}

/* ---- GPUs ---- */

#define GPUS(count, gib, more) GPUS_OF(count, gib, "", more)
#define GPUS_OF(count, gib, link, more)                                                                                \
    ", \"gpus\": {\"count\": " #count ", \"name\": \"made up\", \"memory_gib\": " gib ", \"copy_gb_s\": 10, "          \
    "\"task_us\": 5,\n \"matrix_gflops\": {\"fp32\": 100, \"bf16\": 200}, "                                            \
    "\"host_link\": {\"gb_s\": 1, \"latency_us\": 10" link "}" more "}"

/* The room of its worker, and little more than the largest task takes. */
#define CAPPED "memory.gpu=104MiB"

TEST(a_gpu_computes_what_it_holds)
{
    SIMULATE_SETUP();
    const double cores = behind(ran.out, "\nstep      ");
    write_text("gpu.json", MACHINE(2, GPUS(1, "1", "")));
    RUN("simulate", "run.json", "--machine", "gpu.json");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "machine   made up: 2 cores, 4.0 GiB of RAM, 1 GPU (made up, 1.0 GiB)");
    CHECK_HAS(ran.out, " TFLOP/s a GPU");
    char *first = strdup(ran.out);
    const double seconds = behind(first, "\nstep      "), holds = behind(first, "\nGPU       ");
    CHECK(seconds < cores);
    CHECK(holds > 64 << 20 && holds < 1 << 30);
    /* It takes no less than its bodies take on the GPU alone. */
    CHECK(seconds >= behind(first, "\nbound     ") * 0.999);
    RUN("simulate", "run.json", "--machine", "gpu.json");
    EXPECT_DONE();
    CHECK_STR(ran.out, first);
    write_text("slow.json", MACHINE(2, GPUS(1, "1", ", \"shares\": {\"linear_forward f32\": 0.004}")));
    RUN("simulate", "run.json", "--machine", "slow.json");
    EXPECT_DONE();
    CHECK(behind(ran.out, "\nstep      ") > 1.5 * seconds);
    free(first);
}

TEST(a_cap_on_a_gpu_sends_tiles_to_ram_and_a_drive)
{
    SIMULATE_SETUP();
    write_text("gpu.json", MACHINE(2, DRIVE GPUS(1, "1", "")));
    RUN("simulate", "run.json", "--machine", "gpu.json");
    EXPECT_DONE();
    const double seconds = behind(ran.out, "\nstep      "), to = behind(ran.out, "\nlinks     ");
    RUN("simulate", "run.json", "--machine", "gpu.json", CAPPED);
    EXPECT_DONE();
    CHECK(behind(ran.out, "\nGPU       ") <= 104 << 20);
    CHECK(behind(ran.out, "\nlinks     ") > to + (1 << 20));
    CHECK(behind(ran.out, "\nstep      ") > seconds);
    /* What goes over the link takes as long as the link says. */
    CHECK(behind(ran.out, "\nstep      ") > behind(ran.out, "\nlinks     ") / 2 / 1e9 * 0.999);
    RUN("simulate", "run.json", "--machine", "gpu.json", CAPPED, "memory.cpu=14MiB", "memory.path=nowhere");
    EXPECT_DONE();
    CHECK(!exists("nowhere"));
    CHECK(behind(ran.out, "\ndisk      reads ") > 0);
    CHECK_HAS(ran.out, "the step is bound by the drive");
}

TEST(policies_act_on_a_node_with_gpus)
{
    static const char *const policies[] = {"eager", "prio", "lws", "dmda"};
    SIMULATE_SETUP();
    write_text("gpu.json", MACHINE(4, GPUS(1, "1", "")));
    RUN("simulate", "run.json", "--machine", "gpu.json");
    EXPECT_DONE();
    const double tasks = behind(ran.out, "\ntasks     ");
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        setenv("STARPU_SCHED", policies[i], 1);
        RUN("simulate", "run.json", "--machine", "gpu.json");
        unsetenv("STARPU_SCHED");
        EXPECT_DONE();
        CHECK_EQ((int)behind(ran.out, "\ntasks     "), (int)tasks);
    }
}

/* docs/own-policy.c, which takes what became ready last: the same tasks in another time. */
TEST(a_policy_of_ones_own_acts)
{
    SIMULATE_SETUP();
#ifdef TESS_SIMULATED_POLICY
    const double tasks = behind(ran.out, "\ntasks     "), seconds = behind(ran.out, "\nstep      ");
    setenv("STARPU_SCHED_LIB", TESS_SIMULATED_POLICY, 1);
    RUN("simulate", "run.json", "--machine", "two.json");
    EXPECT_DONE();
    CHECK_EQ((int)behind(ran.out, "\ntasks     "), (int)tasks);
    CHECK(behind(ran.out, "\nstep      ") != seconds);
    setenv("STARPU_SCHED", "prio", 1); /* which it has not, and StarPU has */
    RUN("simulate", "run.json", "--machine", "two.json");
    EXPECT_DONE();
    CHECK_NEAR(behind(ran.out, "\nstep      "), seconds, 0);
    unsetenv("STARPU_SCHED");
    write_text("gpu.json", MACHINE(8, GPUS(4, "1", "")));
    RUN("simulate", "run.json", "--machine", "gpu.json", "--ranks-per-node", "1", "memory.gpu_plan=false");
    EXPECT_DONE();
    CHECK_EQ((int)behind(ran.out, "\ntasks     "), (int)tasks);
    RUN("simulate", "run.json", "--machine", "gpu.json");
    EXPECT_ERROR(2, "and 4 ranks, of which each has a StarPU of its own here");
    setenv("STARPU_SCHED_LIB", TESS_OWN_POLICY, 1);
    RUN("simulate", "run.json", "--machine", "two.json");
    EXPECT_ERROR(2, "was built with the headers of a StarPU that simulates nothing");
    unsetenv("STARPU_SCHED_LIB");
#endif
}

/* StarPU's own modular-gemm leaves tasks to nobody where there is a GPU: SimGrid says so and exits as if all were well.
 */
TEST(who_stands_still_is_told)
{
    SIMULATE_SETUP();
    write_text("gpu.json", MACHINE(4, GPUS(1, "1", "")));
    setenv("STARPU_SCHED", "modular-gemm", 1);
    RUN("simulate", "run.json", "--machine", "gpu.json");
    unsetenv("STARPU_SCHED");
    EXPECT_ERROR(1, "simulation: stands still");
}

/* A process with several GPUs has no plan for them: StarPU moves what they share. */
TEST(eight_gpus_of_a_process_are_starpus)
{
    SIMULATE_SETUP();
    write_text("node.json",
               "{\"name\": \"a node\", \"cores\": 12, \"memory_gib\": 512, \"copy_gb_s\": 300,\n"
               " \"matrix_gflops\": {\"fp32\": 2000, \"bf16\": 20000}, \"gpus\": {\"count\": 8, \"name\": \"H\",\n"
               "  \"memory_gib\": 80, \"copy_gb_s\": 3350, \"matrix_gflops\": {\"fp32\": 66900, \"bf16\": 989400},\n"
               "  \"host_link\": {\"gb_s\": 55, \"gpus\": 2}, \"peer_link\": {\"gb_s\": 450}}}\n");
    RUN("simulate", "run.json", "--machine", "node.json", "--ranks-per-node", "1");
    EXPECT_ERROR(2, "has 8 GPUs for a rank, and a process has a plan for one");
    RUN("simulate", "run.json", "--machine", "node.json");
    EXPECT_ERROR(2, "8 ranks on each node, and its 12 cores cannot be divided evenly");
    static const char *const policies[] = {"dm", "dmdas"};
    for (int i = 0; i < 2; i++) {
        setenv("STARPU_SCHED", policies[i], 1);
        RUN("simulate", "run.json", "--machine", "node.json", "--ranks-per-node", "1",
            "model={\"model_type\": \"gpt2\", \"n_embd\": 1600, \"n_head\": 25, \"n_layer\": 48, \"vocab_size\": "
            "50257}",
            "memory.gpu_plan=false", "bf16.enabled=true", "data.seq_length=1024", "train_batch_size=32",
            "train_micro_batch_size_per_gpu=32", "--steps", "1");
        unsetenv("STARPU_SCHED");
        EXPECT_DONE();
        CHECK_HAS(ran.out, "1557611200 parameters");
        CHECK_HAS(ran.out, "8 GPUs (H, 80.0 GiB)");
        CHECK(behind(ran.out, " steps, ") > 0);                             /* bytes between GPUs */
        CHECK(behind(ran.out, "\nGPU       ") > 14 * 1557611200. / 2);      /* the states are not in RAM alone */
        CHECK(behind(ran.out, "\nGPU       ") < 8 * 0.9 * 80 * 1073741824); /* what StarPU may have of their memory */
    }
}

/* ---- GPUs that send to each other ---- */

/* A node of GPUs with these links, and with what follows in the file. */
static void write_gpu_node(const char *path, int gpus, const char *links, const char *more)
{
    char text[1000];
    snprintf(text, sizeof text,
             "{\"name\": \"a node\", \"cores\": %d, \"memory_gib\": 512, \"copy_gb_s\": 300,\n"
             " \"matrix_gflops\": {\"fp32\": 2000, \"bf16\": 20000}, \"gpus\": {\"count\": %d, \"name\": \"H\",\n"
             "  \"memory_gib\": 80, \"copy_gb_s\": 3350, \"matrix_gflops\": {\"fp32\": 66900, \"bf16\": 989400},\n"
             "  %s}%s}\n",
             2 * gpus, gpus, links, more);
    write_text(path, text);
}
#define HOST   "\"host_link\": {\"gb_s\": 25, \"latency_us\": 10}"
#define NVLINK HOST ", \"peer_link\": {\"gb_s\": 300, \"latency_us\": 5}"

static double over_peers(void)
{
    return behind(ran.out, "bytes a step of all ranks: ");
}

TEST(ranks_with_a_gpu_each_send_from_gpu_to_gpu)
{
    static const char *const placed[] = {"parallel.tensor=2", "parallel.pipeline=2", "zero_optimization.stage=1",
                                         "zero_optimization.stage=3"};
    SIMULATE_SETUP();
    write_gpu_node("node.json", 2, NVLINK, "");
    write_gpu_node("bare.json", 2, HOST, "");
    for (size_t i = 0; i < sizeof placed / sizeof *placed; i++) {
        RUN("simulate", "run.json", "--machine", "node.json", "--steps", "1", placed[i]);
        EXPECT_DONE();
        const double sent = behind(ran.out, "\nmessages  "), tasks = behind(ran.out, "\ntasks     "),
                     seconds = behind(ran.out, "\nstep      ");
        CHECK_HAS(ran.out, "\ncarried   by a simulated NCCL; ");
        CHECK(sent > 0 && over_peers() == sent);
        /* Without a link between them: the same messages by both links to RAM, which take longer. */
        RUN("simulate", "run.json", "--machine", "bare.json", "--steps", "1", placed[i]);
        EXPECT_DONE();
        CHECK(behind(ran.out, "\nmessages  ") == sent && over_peers() == 0);
        CHECK(behind(ran.out, "over links between GPUs, ") >= sent);
        CHECK(behind(ran.out, "\nstep      ") > seconds);
        /* By RAM: the same messages of the same tasks. */
        RUN("simulate", "run.json", "--machine", "node.json", "--steps", "1", "parallel.carrier=mpi", placed[i]);
        EXPECT_DONE();
        CHECK_HAS(ran.out, "\ncarried   by a simulated network; ");
        CHECK(behind(ran.out, "\nmessages  ") == sent && behind(ran.out, "\ntasks     ") == tasks);
        CHECK(over_peers() == 0 && behind(ran.out, "over the network, ") == sent); /* from RAM to RAM */
        CHECK(behind(ran.out, "\nstep      ") > seconds);
    }
    /* Who has no GPU sends by RAM, and is told so where that was not what was asked for. */
    write_text("net.json", MACHINE(2, NETWORK));
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "--steps", "1");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "\ncarried   by a simulated network; bytes a step of all ranks: ");
    CHECK(over_peers() > 0); /* it begins with the network there */
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "--steps", "1", "parallel.carrier=nccl");
    EXPECT_ERROR(2, "\"nccl\" cannot carry messages: there is no GPU");
    /* In a ring of two pairs some messages have a link, and others not. */
    write_gpu_node("pairs.json", 4, HOST ", \"peer_link\": {\"gb_s\": 300, \"pairs\": [[0, 1], [2, 3]]}", "");
    RUN("simulate", "run.json", "--machine", "pairs.json", "--steps", "1", "parallel.pipeline=4");
    EXPECT_DONE();
    CHECK(over_peers() > 0 && over_peers() < behind(ran.out, "\nmessages  "));
}

/* Messages of a pipeline go one after the other and one way at a time: on links on which they take all of the step that
 * is their bytes by the rate, and so many latencies. */
TEST(what_a_link_carries_takes_its_bytes_by_its_rate)
{
    static const struct {
        int gpus;
        const char *links, *network, *nodes;
        double rate, latencies; /* bytes a second; of a message, as the file has it */
    } cases[] = {
        {2, HOST ", \"peer_link\": {\"gb_s\": 0.001, \"latency_us\": %.0f}", "", "1", 1e6, 1},
        {2, "\"host_link\": {\"gb_s\": 0.001, \"latency_us\": %.0f}", "", "1", 1e6, 2},
        {1, HOST, ", \"network\": {\"gb_s\": 0.001, \"latency_us\": %.0f}", "2", 1e6, 1},
    };
    SIMULATE_SETUP();
    double messages = 0;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double seconds[3];
        for (int k = 0; k < 3; k++) {
            char links[200], network[200];
            const double latency = 1e6 * k; /* as many seconds */
            snprintf(links, sizeof links, cases[i].links, latency);
            snprintf(network, sizeof network, cases[i].network, latency);
            write_gpu_node("slow.json", cases[i].gpus, links, network);
            RUN("simulate", "run.json", "--machine", "slow.json", "--steps", "1", "--nodes", cases[i].nodes,
                "parallel.pipeline=2", "gradient_clipping=0");
            EXPECT_DONE();
            seconds[k] = behind(ran.out, "\nstep      ");
        }
        const double alone = behind(ran.out, "\nmessages  ") / cases[i].rate, more = seconds[2] - seconds[1];
        CHECK_NEAR(seconds[0], alone, alone / 100);
        CHECK_NEAR(seconds[1] - seconds[0], more, more / 100);
        if (i == 0) messages = floor(more + 0.5);
        CHECK(messages > 4);
        /* A few copies have latencies on the links to RAM, and what main threads agree on has on the network. */
        CHECK(more / messages > 0.99 * cases[i].latencies);
        CHECK(more < 1.01 * (cases[i].latencies * messages + (i ? 4 : 0)));
    }
}

/* Two nodes of two GPUs, of which one of each is at either end of what goes between them: half of the rails. */
TEST(a_gpu_has_its_rail)
{
    static const char *const network[] = {
        ", \"network\": {\"gb_s\": 0.002, \"latency_us\": 1}",
        ", \"network\": {\"gb_s\": 0.002, \"latency_us\": 1, \"rails\": 2}",
        ", \"network\": {\"gb_s\": 0.002, \"latency_us\": 1, \"rails\": 2, \"topology\": \"fat tree\", "
        "\"nodes_per_switch\": 1, \"uplinks\": 1}"};
    SIMULATE_SETUP();
    for (int i = 0; i < 3; i++) {
        write_gpu_node("rails.json", 2, NVLINK, network[i]);
        RUN("simulate", "run.json", "--machine", "rails.json", "--nodes", "2", "--steps", "1", "parallel.pipeline=4");
        EXPECT_DONE();
        const double far = behind(ran.out, "of all ranks, ");
        CHECK(far > 0 && over_peers() > 0);
        CHECK_NEAR(behind(ran.out, "\nstep      "), far / (i ? 1e6 : 2e6), far / 1e8);
        CHECK_HAS(ran.out, "the step is bound by the ");
        /* All GPUs at a time have what the node has. */
        RUN("simulate", "run.json", "--machine", "rails.json", "--nodes", "2", "--steps", "1",
            "zero_optimization.stage=1", BATCH);
        EXPECT_DONE();
        CHECK_NEAR(behind(ran.out, "\nstep      "), behind(ran.out, "of all ranks, ") / 2 / 2e6,
                   behind(ran.out, "of all ranks, ") / 2 / 2e7);
        CHECK_HAS(ran.out, "the step is bound by the network");
    }
}

/* Where a GPU has room for the activations of all micro-batches, weights that are gathered come once for all. */
TEST(weights_come_once_for_all_micro_batches)
{
    SIMULATE_SETUP();
    double sent[2], held[2];
    write_gpu_node("peers.json", 2, NVLINK, "");
    for (int i = 0; i < 2; i++) {
        RUN("simulate", "run.json", "--machine", "peers.json", "zero_optimization.stage=3", "train_batch_size=8",
            i ? "train_micro_batch_size_per_gpu=1" : "train_micro_batch_size_per_gpu=4");
        EXPECT_DONE();
        sent[i] = behind(ran.out, "\nmessages  ");
        held[i] = behind(ran.out, "\nRAM       tiles of a rank hold ");
    }
    CHECK(sent[0] > 0);
    CHECK(sent[1] < 1.2 * sent[0]);
    CHECK(held[1] < 2 * held[0] + (1 << 20)); /* and no more of them lie in RAM */
}

/* Two pipelines of four stages, whose gradients meet over a slow network: a stage waits for those of none but its own.
 */
TEST(a_stage_sends_what_others_wait_for_before_its_gradients)
{
    SIMULATE_SETUP();
    write_gpu_node("two.json", 4, NVLINK, ", \"network\": {\"gb_s\": 0.004, \"latency_us\": 1, \"rails\": 4}");
    RUN("simulate", "run.json", "--machine", "two.json", "--nodes", "2", "--steps", "1", "parallel.pipeline=4", BATCH);
    EXPECT_DONE();
    CHECK(behind(ran.out, "\nstep      ") < 1.2 * behind(ran.out, "the cores alone, ")); /* which is the network's */
}

TEST(nodes_of_eight_gpus_go_to_their_end_by_the_same_digits)
{
    static const char model[] = "model={\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 256, \"n_head\": 8, "
                                "\"vocab_size\": 1024, \"n_positions\": 128}";
    static const struct {
        const char *nodes, *stage, *tensor, *pipeline, *batch;
        int turns;
    } cases[] = {{"1", "3", "1", "1", "16", 2},
                 {"1", "0", "8", "1", "2", 2},
                 {"2", "3", "1", "1", "32", 2},
                 {"2", "1", "8", "2", "2", 1}};
    SIMULATE_SETUP();
    write_gpu_node("node.json", 8, NVLINK, ", \"network\": {\"gb_s\": 200, \"latency_us\": 5, \"rails\": 8}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char stage[64], tensor[32], pipeline[32], batch[32], *first = NULL;
        snprintf(stage, sizeof stage, "zero_optimization.stage=%s", cases[i].stage);
        snprintf(tensor, sizeof tensor, "parallel.tensor=%s", cases[i].tensor);
        snprintf(pipeline, sizeof pipeline, "parallel.pipeline=%s", cases[i].pipeline);
        snprintf(batch, sizeof batch, "train_batch_size=%s", cases[i].batch);
        for (int turn = 0; turn < cases[i].turns; turn++) {
            RUN("simulate", "run.json", "--machine", "node.json", "--nodes", cases[i].nodes, "--steps", "1",
                "bf16.enabled=true", "data.seq_length=128", "train_micro_batch_size_per_gpu=1", model, stage, tensor,
                pipeline, batch);
            EXPECT_DONE();
            if (turn) CHECK_STR(ran.out, first);
            if (!turn) first = strdup(ran.out);
        }
        free(first);
        const double sent = behind(ran.out, "\nmessages  "), far = behind(ran.out, "of all ranks, ");
        CHECK(sent > 0 && (far > 0) == (*cases[i].nodes == '2'));
        CHECK(over_peers() + far == sent);
    }
}

TEST(a_sweep_says_what_ranks_and_gpus_hold)
{
    SIMULATE_SETUP();
    write_text("ranks.json", MACHINE(2, DRIVE NETWORK));
    RUN("simulate", "run.json", "--machine", "ranks.json", "--nodes", "2", BATCH, "--sweep", "seed=1,2");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "tokens/s  RAM        bound by");
    write_text("gpu.json", MACHINE(2, GPUS(1, "1", "")));
    RUN("simulate", "run.json", "--machine", "gpu.json", "--sweep", "seed=1,2");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "tokens/s  RAM        GPU        bound by");
}

/* What is said of a step does not depend on how many there were, nor on the first, which warms up. */
TEST(as_much_is_exposed_in_one_step_as_in_four)
{
    SIMULATE_SETUP();
    double exposed[2];
    write_text("ranks.json", MACHINE(2, DRIVE NETWORK));
    for (int i = 0; i < 2; i++) {
        RUN("simulate", "run.json", "--machine", "ranks.json", "--nodes", "2", BATCH, "zero_optimization.stage=3",
            "--steps", i ? "4" : "1");
        EXPECT_DONE();
        const char *at = strstr(ran.out, "without a task for ");
        exposed[i] = at ? strtod(at + 19, NULL) : -1;
    }
    CHECK(exposed[0] > 0);
    CHECK_NEAR(exposed[0], exposed[1], 0.11);
}

TEST(a_link_that_ranks_share_is_half_of_one)
{
    SIMULATE_SETUP();
    double alone[2];
    for (int i = 0; i < 2; i++) {
        write_text("gpu.json", i ? MACHINE(4, GPUS_OF(2, "1", ", \"gpus\": 2", "")) : MACHINE(4, GPUS(2, "1", "")));
        RUN("simulate", "run.json", "--machine", "gpu.json", CAPPED, BATCH);
        EXPECT_DONE();
        alone[i] = behind(strstr(ran.out, "\nbound "), "the GPUs alone, ");
        CHECK(alone[i] > 0);
        CHECK(behind(ran.out, "\nstep      ") > 0.999 * alone[i]);
    }
    CHECK_NEAR(alone[1], 2 * alone[0], 0.01 * alone[1]);
}

/* Written is twice as fast as read, alone and both at a time: all of it is then (bytes / rate) of each, added up. */
TEST(a_drive_goes_by_its_rates_both_ways)
{
    SIMULATE_SETUP();
    write_text("drive.json", MACHINE(2, ", \"drive_gb_s\": {\"read\": 0.02, \"write\": 0.04, \"mixed_read\": 0.01, "
                                        "\"mixed_write\": 0.02}"));
    RUN("simulate", "run.json", "--machine", "drive.json", "memory.cpu=14MiB", "memory.path=nowhere");
    EXPECT_DONE();
    const double reads = behind(ran.out, "\ndisk      reads "), writes = behind(ran.out, " and writes "),
                 alone = behind(ran.out, "the cores alone, "), step = behind(ran.out, "\nstep      ");
    CHECK_NEAR(alone, (reads / 0.02e9 + writes / 0.04e9) / 2, 1e-3 * alone);
    CHECK(step > 0.999 * alone && step < 1.3 * alone);
}

TEST(many_cores_are_many_workers)
{
    SIMULATE_SETUP();
    write_text("many.json", MACHINE(256, ""));
    RUN("simulate", "run.json", "--machine", "many.json", "--steps", "1");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "made up: 256 cores");
}

TEST(a_full_disk_is_no_standstill)
{
    SIMULATE_SETUP();
    run_stdout = "/dev/full";
    RUN("simulate", "run.json", "--machine", "two.json");
    run_stdout = NULL;
    EXPECT_ERROR(1, "stdout: ");
}

TEST(every_shipped_machine_is_one)
{
    char dir[4000], machine[4300];
    int machines = 0;
    SIMULATE_SETUP();
    snprintf(dir, sizeof dir, "%s/../machines", TESS_TESTS);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)); machines++) {
        if (e->d_name[0] == '.') continue;
        snprintf(machine, sizeof machine, "%s/%s", dir, e->d_name);
        setenv("STARPU_NCUDA", "1", 1); /* this machine's, which is nothing to those */
        RUN("simulate", "run.json", "--machine", machine, "--nodes", "1", "--ranks-per-node", "1", "--steps", "1",
            "memory.gpu_plan=false");
        unsetenv("STARPU_NCUDA");
        EXPECT_DONE();
        if (strncmp(e->d_name, "cpu", 3)) CHECK_HAS(ran.out, strncmp(e->d_name, "dgx", 3) ? ", 1 GPU (" : " GPUs (");
    }
    if (d) closedir(d);
    CHECK(machines >= 7);
    /* A rank for each GPU, if nothing else is said. */
    snprintf(machine, sizeof machine, "%s/../machines/dgx-h100.json", TESS_TESTS);
    RUN("simulate", "run.json", "--machine", machine, "train_micro_batch_size_per_gpu=1", "--steps", "1");
    EXPECT_DONE();
    CHECK_HAS(ran.out, ", 8 GPUs (");
    CHECK_HAS(ran.out, "ranks     8, 8 on each node: 8 for data x 1 tensor parallel x 1 stages of a pipeline");
    CHECK(behind(ran.out, "\nmessages  ") > 0);
    static const char *const nodes[] = {"dgx-a100", "dgx-h100"};
    for (int i = 0; i < 2; i++) {
        snprintf(machine, sizeof machine, "%s/../machines/%s.json", TESS_TESTS, nodes[i]);
        RUN("simulate", "run.json", "--machine", machine, "--nodes", "2", "train_batch_size=16",
            "train_micro_batch_size_per_gpu=1", "--steps", "1");
        EXPECT_DONE();
        CHECK_HAS(ran.out, " from each node and to it, 5 us, flat, by 8 rails\n");
    }
}

TEST(what_is_no_machine_is_one_line)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"{\"name\": \"x\", \"cores\": 0}", "cores: 0, expected a whole number from 1"},
        {"{\"name\": \"x\", \"cores\": 1.5}", "cores: 1.5, expected a whole number from 1 to 256"},
        {"{\"name\": \"x\", \"cores\": 2, \"memory_gib\": 4}", "matrix_gflops: missing, expected an object"},
        {"{\"name\": \"x\", \"cors\": 2}", "unknown key cors (did you mean cores?)"},
        {MACHINE(2, ", \"drive_gb_s\": {\"read\": 1}"), "drive_gb_s.write: missing, expected a number"},
        {MACHINE(2, ", \"nodes\": 0"), "nodes: 0, expected a whole number from 1"},
        {MACHINE(2, ", \"nodes\": 2"), "2 nodes, and nothing between them"},
        {MACHINE(2, ", \"network\": {\"gb_s\": 1, \"topology\": \"ring\"}"), "network.topology: \"ring\", expected"},
        {MACHINE(2, ", \"network\": {\"gb_s\": 1, \"latency_us\": 1, \"uplinks\": 1}"),
         "expected \"topology\": \"fat tree\""},
        {MACHINE(
             2, ", \"network\": {\"gb_s\": 1, \"latency_us\": 1, \"topology\": \"dragonfly\", \"nodes_per_switch\": 1, "
                "\"uplinks\": 1}"),
         "network.switches_per_group: missing"},
        {MACHINE(2, ", \"network\": {\"gb_s\": 1, \"latency_us\": 1, \"topology\": \"fat tree\"}"),
         "nodes_per_switch: missing"},
        {MACHINE(2, ", \"shares\": {\"add_forward f32\": -1}"), "shares.add_forward f32: -1, expected a number"},
        {MACHINE(2, ", \"gpus\": 8"), "gpus: 8, expected an object"},
        {MACHINE(2, ", \"gpus\": {\"count\": 17}"), "gpus.count: 17, expected a whole number from 1 to 16"},
        {MACHINE(2, ", \"gpus\": {\"conut\": 1}"), "unknown key gpus.conut (did you mean count?)"},
        {MACHINE(2, GPUS(1, "0", "")), "gpus.memory_gib: 0, expected a number from"},
        {MACHINE(2, GPUS(1, "1", ", \"copy\": 1")), "unknown key gpus.copy"},
        {MACHINE(2, GPUS(1, "1", ", \"peer_link\": {}")), "gpus.peer_link.gb_s: missing, expected a number"},
        {MACHINE(2, GPUS(2, "1", ", \"peer_link\": {\"gb_s\": 1, \"pairs\": [[0, 2]]}")),
         "gpus.peer_link.pairs: [0,2], expected two different GPUs"},
        {MACHINE(2, GPUS(1, "1", ", \"shares\": {\"products\": 0}")), "gpus.shares.products: 0, expected a number"},
        {MACHINE(2, ", \"network\": {\"gb_s\": 1, \"rails\": 2}"), "network.rails: 2, expected gpus, which have them"},
        {MACHINE(2, GPUS(2, "1", "") ", \"network\": {\"gb_s\": 1, \"rails\": 3}"),
         "network.rails: 3, expected a whole number from 1 to 2"},
        {MACHINE(4, GPUS(4, "1", "") ", \"network\": {\"gb_s\": 1, \"rails\": 3}"),
         "network.rails: 3, expected as many as divide its 4 GPUs evenly"},
        {MACHINE(2, GPUS(2, "1", "") ", \"network\": {\"gb_s\": 1, \"rials\": 2}"),
         "unknown key network.rials (did you mean rails?)"},
        {"{\"name\": \"a\\nb\"}", "expected a text of one line"},
        {"[1]", "expected an object"},
        {"{", "line 1"},
    };
    SIMULATE_SETUP();
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text("wrong.json", wrong[i].text);
        RUN("simulate", "run.json", "--machine", "wrong.json");
        EXPECT_ERROR(2, wrong[i].says);
    }
    RUN("simulate", "run.json");
    EXPECT_ERROR(2, "--machine FILE is missing");
    RUN("simulate", "run.json", "--machine", "none.json");
    EXPECT_ERROR(2, "none.json: cannot be read: No such file or directory");
    RUN("simulate", "run.json", "--machine", "two.json", "--ranks-per-node", "3");
    EXPECT_ERROR(2, "3 ranks on each node, and its 2 cores cannot be divided evenly");
    write_text("net.json", MACHINE(2, DRIVE NETWORK));
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "parallel.tensor=3");
    EXPECT_ERROR(2, "tensor");
    RUN("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "--ranks-per-node", "2", "memory.cpu=1MiB",
        "memory.path=swap", BATCH);
    EXPECT_ERROR(2, "too little for any step of this run"); /* one line of all four */
    write_text("bare.json", MACHINE(2, ""));
    RUN("simulate", "run.json", "--machine", "bare.json", "memory.cpu=14MiB", "memory.path=swap");
    EXPECT_ERROR(2, "has no drive");
    RUN("simulate", "run.json", "--machine", "two.json", "memory.cpu=2MiB", "memory.path=swap");
    EXPECT_ERROR(2, WIDE_LEAST);
}
