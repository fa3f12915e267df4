/* tessera simulate: a step on a machine that is a file, beside the same step here, and on machines that are nowhere. */
#define CHECK_MAIN
#include "tiny.h"

/* Rates that make the drive matter: a second of a core is a few MB of it. */
#define MACHINE(cores, more)                                                                                           \
    "{\"name\": \"made up\", \"cores\": " #cores ", \"memory_gib\": 4, \"copy_gb_s\": 1, \"task_us\": 5,\n"            \
    " \"matrix_gflops\": {\"fp32\": 10, \"bf16\": 20}" more "}\n"
#define DRIVE ", \"drive_gb_s\": {\"read\": 0.05, \"write\": 0.04, \"mixed_read\": 0.02, \"mixed_write\": 0.02}"

#define WIDE "\"steps\": 3, \"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 4, \"gradient_clipping\": 1"

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
    RUN("bench", "run.json", "--steps", "1", "--machine", "here.json");
    EXPECT_DONE();
    char *here = read_file("here.json", NULL);
    CHECK_HAS(here, "\"linear_forward f32\"");
    free(here);
    RUN("simulate", "run.json", "--machine", "here.json", "--steps", "1");
    EXPECT_DONE();
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

#define GPUS(count, gib, more)                                                                                         \
    ", \"gpus\": {\"count\": " #count ", \"name\": \"made up\", \"memory_gib\": " gib ", \"copy_gb_s\": 10, "          \
    "\"task_us\": 5,\n \"matrix_gflops\": {\"fp32\": 100, \"bf16\": 200}, "                                            \
    "\"host_link\": {\"gb_s\": 1, \"latency_us\": 10}" more "}"

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
    RUN("simulate", "run.json", "--machine", "node.json");
    EXPECT_ERROR(2, "has 8 GPUs, and a process has a plan for one (STARPU_NCUDA=1 takes the first; "
                    "memory.gpu_plan=false leaves all to StarPU)");
    RUN("simulate", "run.json", "--machine", "node.json",
        "model={\"model_type\": \"gpt2\", \"n_embd\": 1600, \"n_head\": 25, \"n_layer\": 48, \"vocab_size\": 50257}",
        "memory.gpu_plan=false", "bf16.enabled=true", "data.seq_length=1024", "train_batch_size=32",
        "train_micro_batch_size_per_gpu=32", "--steps", "1");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "1557611200 parameters");
    CHECK_HAS(ran.out, "8 GPUs (H, 80.0 GiB)");
    CHECK(behind(ran.out, " steps, ") > 0);                             /* bytes between GPUs */
    CHECK(behind(ran.out, "\nGPU       ") > 14 * 1557611200. / 2);      /* the states are not in RAM alone */
    CHECK(behind(ran.out, "\nGPU       ") < 8 * 0.9 * 80 * 1073741824); /* what StarPU may have of their memory */
}

TEST(every_shipped_machine_is_one)
{
    static const char *const shipped[] = {"box-24gb", "dgx-a100", "dgx-h100", "dgx2-v100", "gh200"};
    SIMULATE_SETUP();
    setenv("STARPU_NCUDA", "1", 1);
    for (size_t i = 0; i < sizeof shipped / sizeof *shipped; i++) {
        char machine[4200];
        snprintf(machine, sizeof machine, "%s/../machines/%s.json", TESS_TESTS, shipped[i]);
        RUN("simulate", "run.json", "--machine", machine, "--steps", "1");
        EXPECT_DONE();
        CHECK_HAS(ran.out, ", 1 GPU (");
    }
    unsetenv("STARPU_NCUDA");
}

TEST(what_is_no_machine_is_one_line)
{
    static const struct {
        const char *text, *says;
    } wrong[] = {
        {"{\"name\": \"x\", \"cores\": 0}", "cores: 0, expected a number from 1"},
        {"{\"name\": \"x\", \"cores\": 1.5}", "cores: 1.5, expected a whole number from 1 to 256"},
        {"{\"name\": \"x\", \"cores\": 2, \"memory_gib\": 4}", "matrix_gflops: missing, expected an object"},
        {"{\"name\": \"x\", \"cors\": 2}", "unknown key cors (did you mean cores?)"},
        {MACHINE(2, ", \"drive_gb_s\": {\"read\": 1}"), "drive_gb_s.write: missing, expected a number"},
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
    write_text("bare.json", MACHINE(2, ""));
    RUN("simulate", "run.json", "--machine", "bare.json", "memory.cpu=14MiB", "memory.path=swap");
    EXPECT_ERROR(2, "has no drive");
    RUN("simulate", "run.json", "--machine", "two.json", "memory.cpu=2MiB", "memory.path=swap");
    EXPECT_ERROR(2, WIDE_LEAST);
}
