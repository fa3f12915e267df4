/* tessera simulate: a step on a machine that is a file, beside the same step here, and on machines that are nowhere: of
 * one process, its files, its sweeps, its ends. */
#define CHECK_MAIN
#include "tests/simulate/simulate.h"
#include "tools/simulate/simulation.h"
#include <dirent.h>
#include <math.h>
#include <sys/stat.h>

TEST(a_step_has_the_tasks_and_bytes_that_it_has_here)
{
    SIMULATE_SETUP();
    CHECK_HAS(ran.out, "machine   made up: 2 cores, 4.0 GiB of RAM, a drive");
    const double tasks = behind(ran.out, "\ntasks     ");
    CHECK(tasks > 100);
    DONE("bench", "run.json", "--steps", "2");
    CHECK_EQ((int)tasks_of(ran.out, "a step of"), (int)tasks);
}

TEST(a_cap_moves_what_it_moves_here)
{
    SIMULATE_SETUP();
    const double cores = behind(ran.out, "\nstep      ");
    DONE("simulate", "run.json", "--machine", "two.json", "memory.cpu=14MiB", "memory.path=nowhere");
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
    DONE("simulate", "run.json", "--machine", "two.json");
    CHECK_STR(ran.out, first);
    const double seconds = behind(first, "\nstep      ");
    write_text("fast.json", "{\"name\": \"made up\", \"cores\": 2, \"memory_gib\": 4, \"copy_gb_s\": 2,\n"
                            " \"matrix_gflops\": {\"fp32\": 20, \"bf16\": 40}}\n");
    DONE("simulate", "run.json", "--machine", "fast.json");
    CHECK_NEAR(behind(ran.out, "\nstep      "), seconds / 2, seconds / 50);
    write_text("one.json", MACHINE(1, ""));
    DONE(
        "simulate", "run.json", "--machine",
        "one.json"); /* a core has the rates of all here: as long as two of half its rates that are always busy, or less
                      */
    CHECK(behind(ran.out, "\nstep      ") <= seconds * 1.001);
    free(first);
}

/* Where this machine's workers are is nothing to that one. */
TEST(what_is_said_of_this_machine_is_not_of_that)
{
    SIMULATE_SETUP();
    char *first = strdup(ran.out);
    WITH("STARPU_NCPU", "1") DONE("simulate", "run.json", "--machine", "two.json");
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

TEST(a_sweep_has_a_row_for_each_combination_and_names_the_best_that_fits)
{
    SIMULATE_SETUP();
    DONE("simulate", "run.json", "--machine", "two.json", "memory.cpu=14MiB", "memory.path=swap");
    const double capped = behind(ran.out, "\nstep      ");
    DONE("simulate", "run.json", "--machine", "two.json", "gradient_clipping=0", "memory.cpu=1GiB", "memory.path=swap");
    const double cores = behind(ran.out, "\nstep      ");
    DONE("simulate", "run.json", "--machine", "two.json", "memory.path=swap", "--sweep", "memory.cpu=2MiB,14MiB,1GiB",
         "gradient_clipping=0,1", "--steps", "2", "trace.steps=[1,1]");
    CHECK(!exists("out/trace.json"));
    CHECK_HAS(ran.out, "memory.cpu  gradient_clipping        step s     tokens/s  RAM        disk       bound by\n");
    CHECK_HAS(ran.out, "\n2MiB        0                  memory.cpu: 2.0 MiB, which is too little for any step");
    CHECK_NEAR(in_row(ran.out, "\n14MiB       1 ", 0), capped, 2e-6);
    CHECK_NEAR(in_row(ran.out, "\n1GiB        0 ", 0), cores, 2e-6);
    CHECK(in_row(ran.out, "\n1GiB        0 ", 1) > in_row(ran.out, "\n1GiB        1 ", 1));
    CHECK_HAS(ran.out, "\nbest      memory.cpu=1GiB gradient_clipping=0: ");
    /* More tokens a second are better, not fewer seconds a step; a list is one value. */
    DONE("simulate", "run.json", "--machine", "two.json", "--sweep=train_batch_size=4,8",
         "optimizer.params.betas=[0.9,0.95],[0.9,0.99]");
    CHECK_HAS(ran.out, "\nbest      train_batch_size=8 optimizer.params.betas=[0.9,0.95]: ");
    CHECK(in_row(ran.out, "\n4                 [0.9,0.99] ", 0) > 0);
}

/* Which is read once, and the files are read by each row again. */
TEST(files_may_come_through_pipes)
{
    SIMULATE_SETUP();
    char *first = strdup(ran.out);
    static const char *const from[] = {"run.json --machine <(cat two.json)",
                                       "<(cat run.json) --machine=<(cat two.json)"};
    for (int sweeps = 0; sweeps < 2; sweeps++) {
        for (int k = 0; k < 2; k++) {
            run_finish(run_start_program(
                "bash",
                (const char *[]){
                    "-c", fmt("exec \"$TESSERA\" simulate %s%s", from[k], sweeps ? " --sweep seed=1,2" : ""), NULL}));
            EXPECT_DONE();
            if (!sweeps)
                CHECK_STR(ran.out, first);
            else
                CHECK_HAS(ran.out, "best      seed=");
        }
    }
    run_finish(run_start_program(
        "bash", (const char *[]){"-c", "exec \"$TESSERA\" simulate run.json --machine <(echo '{')", NULL}));
    EXPECT_ERROR(2, "line 2: string or '}' expected");
    free(first);
}

TEST(a_sweep_that_has_no_row_is_one_line)
{
    SIMULATE_SETUP();
    FAILS(2, ("simulate", "run.json", "--machine", "two.json", "--sweep", "memory.cpu=1MiB,2MiB", "memory.path=swap"),
          "--sweep: none of 2 combinations fits");
    CHECK_HAS(ran.out, "\n1MiB        swap         memory.cpu: 1.0 MiB, which is too little");
    FAILS(2, ("simulate", "run.json", "--machine", "two.json", "--sweep", "memry.cpu=1MiB,2MiB"),
          "memry.cpu: unknown key");
    FAILS(2, ("simulate", "run.json", "--machine", "none.json", "--sweep", "memory.cpu=1MiB,2MiB"),
          "none.json: cannot be read");
    FAILS(2, ("simulate", "run.json", "--machine", "two.json", "--sweep", "--steps", "1"),
          "--sweep: missing its KEY=VALUE,VALUE,...");
    FAILS(2, ("simulate", "run.json", "--machine", "two.json", "--sweep", "steps"),
          "--sweep: steps, expected KEY=VALUE,VALUE,...");
    FAILS(2, ("simulate", "run.json", "--machine", "two.json", "--sweep", "seed=1,,2"),
          "seed=1,,2 has a value that is empty");
    FAILS(2, ("simulate", "run.json", "--machine", "two.json", "--sweep", "seed=1,2", "--trace", "1:1"),
          "--trace: a sweep leaves no timeline");
    FAILS(2, ("simulate", "run.json", "--machine", "two.json", "--sweep", "seed=1", "seed=2"),
          "--sweep: seed is there twice");
}

/* The best is as fast as its keys make the run, and no other placement of those tried is faster; what is said stays. */
TEST(place_finds_the_fastest_of_what_fits)
{
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(1, DRIVE NETWORK));
    DONE("place", "run.json", "--machine", "net.json", "--nodes", "4");
    const char *best = strstr(ran.out, "\nbest "), *end = best ? strstr(best, ": ") : NULL;
    if (!end) CHECK_SAY("%s", ran.out);
    char *keys = strndup(best + 6, (size_t)(end - best - 6));
    const double seconds = strtod(end + 2, NULL), most = behind(end, " s, ");
    CHECK(seconds > 0 && most > 0);
    CHECK_HAS(keys, "parallel.pipeline=");
    run_finish(run_start_program("bash", (const char *[]){"-c",
                                                          fmt("exec \"$TESSERA\" estimate run.json --machine net.json "
                                                              "--nodes 4 --fits %s",
                                                              keys),
                                                          NULL}));
    EXPECT_DONE();
    CHECK_NEAR(behind(strstr(ran.out, "\n  in all      ") ? strstr(ran.out, "time of a step") : ran.out, "in all"),
               seconds, 2e-3 * seconds);
    DONE("estimate", "run.json", "--machine", "net.json", "--nodes", "4", "--fits", "parallel.pipeline=2",
         "gradient_accumulation_steps=null", "train_micro_batch_size_per_gpu=1");
    CHECK(behind(strstr(ran.out, "time of a step"), "in all") >= seconds);
    DONE("place", "run.json", "--machine", "net.json", "--nodes", "4", "parallel.pipeline=2", "--simulate", "2");
    CHECK(!strstr(ran.out, " parallel.pipeline=") && strstr(ran.out, "\nbest "));
    FAILS(1, ("place", "run.json", "--machine", "net.json", "--nodes", "4", "memory.cpu=1MiB"), "memory.cpu: ");
    FAILS(2, ("place", "run.json"), "--machine FILE is missing");
    FAILS(2, ("place", "run.json", "--machine", "net.json", "modl=3"), "modl: unknown key");
    free(keys);
}

/* One sequence is work for four ranks where they share it. Of a step of many micro-batches the best is estimated whole.
 */
TEST(place_shares_a_sequence_and_shortens_long_steps)
{
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(4, NETWORK));
    DONE("place", "run.json", "--machine", "net.json", "--ranks-per-node", "4", "train_batch_size=1",
         "parallel.tensor=1", "parallel.pipeline=1", "model.n_positions=1024", "data.seq_length=1024");
    CHECK_HAS(strstr(ran.out, "\nbest ") ? strstr(ran.out, "\nbest ") : "", "parallel.sequence=4");
    DONE("place", "run.json", "--machine", "net.json", "--nodes", "2", "train_batch_size=64");
    char *line = strstr(ran.out, "  ~ "), *from = line;
    if (!line) CHECK_SAY("%s", ran.out);
    for (int ends = 0; from > ran.out && ends < 2; ends += *from == '\n') from--;
    const double seconds = strtod(from + 1, NULL);
    line[strcspn(line, "\n")] = 0;
    TESS_FREED char *keys = strdup(line + 4);
    run_finish(run_start_program("bash", (const char *[]){"-c",
                                                          fmt("exec \"$TESSERA\" estimate run.json --machine net.json "
                                                              "--nodes 2 train_batch_size=64 "
                                                              "gradient_accumulation_steps=null %s",
                                                              keys),
                                                          NULL}));
    EXPECT_DONE();
    CHECK_NEAR(seconds, behind(strstr(ran.out, "time of a step"), "in all"), 0.04 * seconds);
}

/* The first stage holds the most, whatever words the head of the last one has; but it waits for that. */
TEST(an_estimate_counts_what_the_busiest_stage_does)
{
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(4, NETWORK));
    double work[2], all[2];
    for (int i = 0; i < 2; i++) {
        DONE("estimate", "run.json", "--machine", "net.json", "--nodes", "2", "parallel.pipeline=2",
             "parallel.blocks=2,2", "model.tie_word_embeddings=false", "train_batch_size=32",
             i ? "model.vocab_size=4096" : "model.vocab_size=256");
        CHECK_HAS(ran.out, "rank 0 of 2, which holds the most");
        const char *time = strstr(ran.out, "time of a step");
        work[i] = behind(time, "all workers together"), all[i] = behind(time, "in all");
    }
    CHECK(work[1] < 1.2 * work[0]); /* its table is larger */
    CHECK(all[1] > 1.3 * all[0]);
}

/* While a sum of gradients waits for the other ranks, a GPU goes on with the backward pass. */
TEST(an_estimate_has_sums_of_gradients_yield)
{
    char machine[4300];
    SIMULATE_SETUP();
    snprintf(machine, sizeof machine, "%s/../tools/simulate/machines/dgx-h100.json", TESS_TESTS);
    DONE("estimate", "run.json", "--machine", machine, "--nodes", "1", "zero_optimization.stage=1",
         "gradient_clipping=0", "model.n_embd=1600", "model.n_layer=12", "model.n_head=25", "model.n_positions=1024",
         "data.seq_length=1024", "train_batch_size=64", "train_micro_batch_size_per_gpu=8", "bf16.enabled=true");
    const char *time = strstr(ran.out, "time of a step");
    CHECK(behind(time, "messages to other ranks and from them") > 0.1 * behind(time, "the GPU at work"));
    CHECK_NEAR(behind(time, "in all"), behind(time, "the GPU at work"), 0.03 * behind(time, "the GPU at work"));
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
        WITH("STARPU_SCHED", policies[i]) DONE("simulate", "run.json", "--machine", "two.json");
        CHECK_EQ((int)behind(ran.out, "\ntasks     "), (int)tasks);
    }
}

/* Two cores of 5 GFLOP/s and 0.5 GB/s each. */
TEST(a_share_by_work_lies_between_those_that_were_measured)
{
    tess_simulated m;
    write_text("points.json",
               MACHINE(2, ", \"shares\": {\"products\": 0.3, \"copies\": 0.1, \"add f32\": 0.7,\n"
                          "\"linear f32\": {\"all\": 0.5, \"1 GFLOP 10 MB 256 rows\": 0.4, "
                          "\"4 GFLOP 40 MB 1024 rows\": 0.9},\n"
                          "\"norm f32\": {\"all\": 0.5, \"1 MB\": 0.2, \"8 MB\": 0.6}, \"drive\": 0.6},\n"
                          "\"reached\": {\"bf16_products\": 0.7, \"bf16_copies\": 0.5}"));
    CHECK_EQ(tess_machine_read("points.json", &m), TESS_OK);
    const tess_cost measured = {.flops = 4e9, .bytes = 40e6, .rows = 1024},
                    between = {.flops = 2e9, .bytes = 20e6, .rows = 512},
                    as_wide = {.flops = 4e9, .bytes = 40e6, .rows = 512},
                    far = {.flops = 4e15, .bytes = 40e9, .rows = 1}, copied = {.bytes = 2e6};
    CHECK_NEAR(tess_simulated_share_of(&m.shares, "linear f32", measured), 0.9, 1e-12);
    /* As far from the one as from the other: the root of 0.4 x 0.9. */
    CHECK_NEAR(tess_simulated_share_of(&m.shares, "linear f32", between), 0.6, 1e-12);
    CHECK_NEAR(tess_simulated_bound(&m, TESS_F32, between) / tess_simulated_share_of(&m.shares, "linear f32", between),
               0.4 / 0.6, 1e-12);
    /* Half the rows: 1 square of log 2 from the second, 1 + 0.1 x 4 from the first. */
    CHECK_NEAR(tess_simulated_share_of(&m.shares, "linear f32", as_wide),
               exp((log(0.4) / 1.4 + log(0.9)) / (1 + 1 / 1.4)), 1e-12);
    CHECK(tess_simulated_share_of(&m.shares, "linear f32", far) > 0.4);
    CHECK(tess_simulated_share_of(&m.shares, "linear f32", far) < 0.9);
    /* One square from 1 MB and four from 8 MB: 0.2 to the 0.8 times 0.6 to the 0.2. */
    CHECK_NEAR(tess_simulated_share_of(&m.shares, "norm f32", copied), pow(0.2, 0.8) * pow(0.6, 0.2), 1e-12);
    /* Without a point that is like it a codelet has one share; without any that of its like. */
    CHECK_NEAR(tess_simulated_share_of(&m.shares, "norm f32", between), 0.5, 1e-12);
    CHECK_NEAR(tess_simulated_share_of(&m.shares, "add f32", copied), 0.7, 1e-12);
    CHECK_NEAR(tess_simulated_share_of(&m.shares, "gelu f32", copied), 0.1, 1e-12);
    CHECK_NEAR(tess_simulated_share_of(&m.shares, "gelu f32", between), 0.3, 1e-12);
    /* What is written is read again. */
    tess_simulated again;
    CHECK_EQ(tess_machine_write("again.json", &m), TESS_OK);
    CHECK_EQ(tess_machine_read("again.json", &again), TESS_OK);
    CHECK_EQ(again.shares.points, 4);
    CHECK_NEAR(again.reached[TESS_BF16].matrix, 0.7, 1e-12);
    CHECK_NEAR(again.reached[TESS_BF16].copy, 0.5, 1e-12);
    CHECK_EQ(again.reached[TESS_F32].matrix, 0);
    CHECK_NEAR(again.drive_share, 0.6, 1e-12);
    CHECK_NEAR(tess_simulated_share_of(&again.shares, "linear f32", as_wide),
               tess_simulated_share_of(&m.shares, "linear f32", as_wide), 1e-9);
}

TEST(one_share_by_work_is_as_good_as_one_share)
{
    SIMULATE_SETUP();
    write_text("slow.json", MACHINE(2, ", \"shares\": {\"linear_forward f32\": 0.0085}"));
    DONE("simulate", "run.json", "--machine", "slow.json");
    char *first = strdup(ran.out);
    write_text("slow.json", MACHINE(2, ", \"shares\": {\"linear_forward f32\": {\"all\": 0.5, "
                                       "\"1 GFLOP 10 MB 64 rows\": 0.0085}}"));
    DONE("simulate", "run.json", "--machine", "slow.json");
    CHECK_NEAR(behind(ran.out, "\nstep      "), behind(first, "\nstep      "), 2e-6);
    free(first);
}

TEST(a_codelets_share_is_that_of_its_file)
{
    SIMULATE_SETUP();
    const double before = behind(ran.out, "\nstep      ");
    write_text("slow.json", MACHINE(2, ", \"shares\": {\"linear_forward f32\": 0.0085}"));
    DONE("simulate", "run.json", "--machine", "slow.json");
    CHECK(behind(ran.out, "\nstep      ") > 1.5 * before); /* a hundredth of what it was */
    const mode_t mask = umask(022);
    DONE("info", "--machine", "here.json");
    char *here = read_file("here.json", NULL);
    const char *text = fmt("{\"about\": \"the one below the desk\", %s", strchr(here, '{') + 1);
    free(here);
    write_text("here.json", text);
    DONE("bench", "run.json", "--steps", "1", "--machine", "here.json");
    umask(mask);
    struct stat st;
    CHECK(!stat("here.json", &st) && (st.st_mode & 0777) == 0644); /* others may read it */
    here = read_file("here.json", NULL);
    CHECK_HAS(here, "\"linear_forward f32\": {\n            \"all\": ");
    CHECK_HAS(here, " rows\": ");
    CHECK_HAS(here, "\"about\": \"the one below the desk\"");
    CHECK(!strstr(here, "\"drive\": "));
    free(here);
    mkdir("swap", 0777);
    DONE("bench", "run.json", "--steps", "1", "--machine", "here.json", "memory.cpu=14MiB", "memory.path=swap");
    here = read_file("here.json", NULL);
    CHECK_HAS(here, "\"drive\": "); /* a busy machine may give it more than it was measured at */
    free(here);
    FAILS(2, ("info", "--machine", "nowhere/here.json"),
          "nowhere/here.json: cannot be written: No such file or directory");
    DONE("simulate", "run.json", "--machine", "here.json", "--steps", "1");
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
        DONE("simulate", "run.json", "--machine", "parts.json", "train_batch_size=1",
             "train_micro_batch_size_per_gpu=1", "data.seq_length=1024", "--trace", "2:2",
             "model={\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 512, \"n_head\": 8, \"vocab_size\": 512, "
             "\"n_positions\": 1024}");
        seconds[i] = behind(ran.out, "\nstep      ");
        snprintf(one, sizeof one, "%.1999s", strstr(ran.out, "\ncores     "));
    }
    CHECK(behind(one, "idle ") < 45); /* three quarters without parts */
    CHECK(seconds[1] < 2 * seconds[0] && seconds[1] > seconds[0]);
    char *trace = read_file("out/trace.json", NULL);
    CHECK_HAS(trace, "\"helps\":true");
    free(trace);
}

/* 60 GB of tiles, and not one is touched. */
TEST(a_model_may_be_larger_than_all_memory_here)
{
    SIMULATE_SETUP();
    write_text("large.json", "{\"name\": \"made up\", \"cores\": 8, \"memory_gib\": 512, \"copy_gb_s\": 400,\n"
                             " \"matrix_gflops\": {\"fp32\": 10000, \"bf16\": 10000}}\n");
    DONE(
        "simulate", "run.json", "--machine", "large.json", "--steps", "1", "data.seq_length=256",
        "tiles.elements=50331648",
        "model={\"model_type\": \"llama\", \"vocab_size\": 32000, \"hidden_size\": 8192, \"intermediate_size\": 22016, "
        "\"num_hidden_layers\": 4, \"num_attention_heads\": 64, \"max_position_embeddings\": 2048}");
    CHECK_HAS(ran.out, "3762364416 parameters");
    CHECK(behind(ran.out, "tiles hold ") > 60e9);
    DONE("simulate", "run.json", "--machine", fmt("%s/../tools/simulate/machines/cpu-2x64.json", TESS_TESTS), "--steps",
         "1");
    CHECK_HAS(ran.out, ": 128 cores, 512 GiB of RAM, a drive");
}

TEST(a_traced_step_is_a_timeline_of_the_machine)
{
    SIMULATE_SETUP();
    DONE("simulate", "run.json", "--machine", "two.json", "--trace", "1:1");
    char *trace = read_file("out/trace.json", NULL);
    CHECK_HAS(trace, "linear_forward");
    free(trace);
    DONE("explain", "out");
}

/* Written is twice as fast as read, alone and both at a time: all of it is then (bytes / rate) of each, added up. */
TEST(a_drive_goes_by_its_rates_both_ways)
{
    SIMULATE_SETUP();
    write_text("drive.json", MACHINE(2, ", \"drive_gb_s\": {\"read\": 0.02, \"write\": 0.04, \"mixed_read\": 0.01, "
                                        "\"mixed_write\": 0.02}"));
    DONE("simulate", "run.json", "--machine", "drive.json", "memory.cpu=14MiB", "memory.path=nowhere");
    const double reads = behind(ran.out, "\ndisk      reads "), writes = behind(ran.out, " and writes "),
                 alone = behind(ran.out, "the cores alone, "), step = behind(ran.out, "\nstep      ");
    CHECK_NEAR(alone, (reads / 0.02e9 + writes / 0.04e9) / 2, 1e-3 * alone);
    CHECK(step > 0.999 * alone && step < 1.3 * alone);
    /* What it reaches beside busy cores is no rate that the plan goes by: the same bytes, at half the rates. */
    write_text("drive.json", MACHINE(2, ", \"drive_gb_s\": {\"read\": 0.02, \"write\": 0.04, \"mixed_read\": 0.01, "
                                        "\"mixed_write\": 0.02}, \"shares\": {\"drive\": 0.5}"));
    DONE("simulate", "run.json", "--machine", "drive.json", "memory.cpu=14MiB", "memory.path=nowhere");
    CHECK_EQ(behind(ran.out, "\ndisk      reads "), reads);
    CHECK_EQ(behind(ran.out, " and writes "), writes);
    CHECK_NEAR(behind(ran.out, "the cores alone, "), 2 * alone, 2e-3 * alone);
    CHECK_NEAR(behind(ran.out, "\nstep      "), 2 * step, 0.1 * step);
}

/* Whose tasks are long beside what surrounds them. */
#define SLOW_GPU                                                                                                       \
    ", \"gpus\": {\"count\": 1, \"name\": \"made up\", \"memory_gib\": 1, \"copy_gb_s\": 1, "                          \
    "\"matrix_gflops\": {\"fp32\": 10, \"bf16\": 20}, \"host_link\": {\"gb_s\": 1}}"

/* Of which the next begins before the last has ended, with more tasks than are submitted at a time. */
TEST(steps_take_as_long_however_many_there_are)
{
    SIMULATE_SETUP();
    write_text("gpu.json", MACHINE(2, SLOW_GPU));
    double took = 0;
    for (int steps = 1; steps <= 5; steps += 4) {
        DONE("simulate", "run.json", "--machine", "gpu.json", "--steps", steps == 1 ? "1" : "5", "train_batch_size=64",
             "train_micro_batch_size_per_gpu=1", "gradient_accumulation_steps=null", "memory.gpu_plan=false");
        const double step = behind(ran.out, "\nstep      ");
        if (steps > 1) CHECK_NEAR(step, took, 1e-3 * took);
        took = step;
    }
}

TEST(many_cores_are_many_workers)
{
    SIMULATE_SETUP();
    write_text("many.json", MACHINE(256, ""));
    DONE("simulate", "run.json", "--machine", "many.json", "--steps", "1");
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

/* That of temporary files, which others may fill at any time. */
TEST(no_room_for_temporary_files_is_one_line)
{
    SIMULATE_SETUP();
    mkdir("tmp", 0777);
    setenv("TMPDIR", "tmp", 1);
    run_file_limit = 1000; /* bytes of a file stand in for it */
    FAILS(1, ("simulate", "run.json", "--machine", "two.json"),
          "TMPDIR: the machine cannot be written there, as StarPU reads it: File too large");
    FAILS(1, ("simulate", "run.json", "--machine", "two.json", "--sweep", "seed=1,2"),
          "TMPDIR: the machine cannot be written there"); /* for both rows, and one line of them */
    run_file_limit = 0;
    CHECK_EQ(names_in("tmp", "tessera-", NULL), 0);
    setenv("TMPDIR", "two.json", 1);
    FAILS(1, ("simulate", "run.json", "--machine", "two.json"), "two.json/tessera-simulate-",
          "cannot be made: Not a directory (set TMPDIR)");
    unsetenv("TMPDIR");
}

TEST(ranks_that_would_all_simulate_are_one_line)
{
    SIMULATE_SETUP();
    static const char *const more[] = {NULL, "--sweep"};
    for (int k = 0; k < 2; k++) {
        run_finish(run_start_ranks(2, run_command(),
                                   (const char *[]){"simulate", "run.json", "--machine", "two.json", more[k],
                                                    more[k] ? "seed=1,2" : NULL, NULL}));
        EXPECT_RANKS_ERROR(2, "command line: 2 ranks, and one process simulates (start it alone)");
    }
}

TEST(every_shipped_machine_is_one)
{
    char machine[4300];
    int machines = 0;
    SIMULATE_SETUP();
    const char *dir = fmt("%s/../tools/simulate/machines", TESS_TESTS);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)); machines++) {
        if (e->d_name[0] == '.') continue;
        snprintf(machine, sizeof machine, "%s/%s", dir, e->d_name);
        WITH("STARPU_NCUDA", "1")
        DONE("simulate", "run.json", "--machine", machine, "--nodes", "1", "--ranks-per-node", "1", "--steps", "1",
             "memory.gpu_plan=false"); /* this machine's, which is nothing to those */
        if (strncmp(e->d_name, "cpu", 3)) CHECK_HAS(ran.out, strncmp(e->d_name, "dgx", 3) ? ", 1 GPU (" : " GPUs (");
    }
    if (d) closedir(d);
    CHECK(machines >= 7);
    /* A rank for each GPU, if nothing else is said. */
    snprintf(machine, sizeof machine, "%s/../tools/simulate/machines/dgx-h100.json", TESS_TESTS);
    DONE("simulate", "run.json", "--machine", machine, "train_micro_batch_size_per_gpu=1", "--steps", "1");
    CHECK_HAS(ran.out, ", 8 GPUs (");
    CHECK_HAS(ran.out, "ranks     8, 8 on each node: 8 for data x 1 tensor parallel x 1 stages of a pipeline");
    CHECK(behind(ran.out, "\nmessages  ") > 0);
    static const char *const nodes[] = {"dgx-a100", "dgx-h100"};
    for (int i = 0; i < 2; i++) {
        snprintf(machine, sizeof machine, "%s/../tools/simulate/machines/%s.json", TESS_TESTS, nodes[i]);
        DONE("simulate", "run.json", "--machine", machine, "--nodes", "2", "train_batch_size=16",
             "train_micro_batch_size_per_gpu=1", "--steps", "1");
        CHECK_HAS(ran.out, " from each node and to it, 5 us, flat, by 8 rails\n");
    }
}

/* The bytes are those of the same plan; the seconds are on paper here and in turns there. */
TEST(an_estimate_on_a_machine_agrees_with_its_simulation)
{
    static const struct {
        const char *machine, *word, *other;
    } rows[] = {{MACHINE(2, DRIVE), BATCH, "train_batch_size=8"},
                {MACHINE(2, DRIVE), "memory.cpu=14MiB", "memory.path=nowhere"},
                {MACHINE(2, SLOW_GPU), BATCH, "train_batch_size=8"},
                {MACHINE(4, GPUS(2, "1", ", \"peer_link\": {\"gb_s\": 4}")), BATCH, "zero_optimization.stage=3"}};
    SIMULATE_SETUP();
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char memory[2][128] = {{0}};
        double seconds[2];
        write_text("row.json", rows[i].machine);
        for (int k = 0; k < 2; k++) {
            DONE(k ? "estimate" : "simulate", "run.json", "--machine", "row.json", rows[i].word, rows[i].other);
            const char *at = strstr(ran.out, "\nmemory    GPU ");
            CHECK(at && sscanf(at, "\n%127[^\n]", memory[k]) == 1);
            const char *time = k ? strstr(ran.out, "\ntime of a step") : ran.out;
            seconds[k] = time ? behind(time, k ? "\n  in all " : "\nstep      ") : -1;
        }
        CHECK_STR(memory[1], memory[0]);
        CHECK(seconds[1] > 0);
        CHECK_NEAR(seconds[1], seconds[0], 0.1 * seconds[0]);
    }
}

TEST(an_estimate_on_a_machine_says_what_has_no_room_there)
{
    static const char *const cap[] = {"memory.cpu=14MiB", "memory.path=nowhere"};
    SIMULATE_SETUP();
    write_text("small.json", MACHINE(2, DRIVE ", \"drive_gib\": 0.02"));
    DONE("estimate", "run.json", "--machine", "small.json", cap[0], cap[1]);
    CHECK_HAS(ran.out, "does not fit: memory.disk: ");
    FAILS(1, ("estimate", "run.json", "--machine", "small.json", "--fits", cap[0], cap[1]), "memory.disk: 20.5 MiB");
    FAILS(2, ("estimate", "run.json", "--machine", "two.json", "--ranks", "2"), "--ranks 2: on a machine's file");
    DONE("estimate", "run.json", "--machine", "two.json", "--fits");
    FAILS(1, ("estimate", "run.json", "--machine", "two.json", "--fits", "model.n_embd=4096", "model.n_layer=24"),
          "memory: what lasts from step to step takes ");
    DONE("estimate", "run.json", "--machine", "two.json", "model.n_embd=4096", "model.n_layer=24");
    CHECK_HAS(ran.out, "does not fit: memory: the run needs ");
}

/* On a GPU states go before what would only be kept, whatever room there is. */
TEST(what_is_kept_takes_no_room_of_states)
{
    static const char *const gib[] = {"0.25", "0.3", "0.35"},
                             *const model = "model={\"model_type\": \"gpt2\", \"n_layer\": 8, \"n_embd\": 256, "
                                            "\"n_head\": 8, \"vocab_size\": 512, \"n_positions\": 256}";
    SIMULATE_SETUP();
    for (size_t i = 0; i < sizeof gib / sizeof *gib; i++) {
        char lives[2][100] = {{0}};
        write_text("gpu.json", fmt(MACHINE(4, GPUS(1, "%s", "")), gib[i]));
        for (int k = 0; k < 2; k++) {
            DONE("estimate", "run.json", "--machine", "gpu.json", model, "bf16.enabled=true", "data.seq_length=256",
                 "train_batch_size=8", "train_micro_batch_size_per_gpu=8", "activation_checkpointing.enabled=true",
                 fmt("activation_checkpointing.keep_more=%s", k ? "false" : "true"));
            const char *at = strstr(ran.out, "of it what lives there alone");
            CHECK(at && sscanf(at, "%99[^\n]", lives[k]) == 1);
            CHECK((strstr(ran.out, "kept are ") && !strstr(ran.out, "kept are 0 ")) == !k);
        }
        CHECK_STR(lives[0], lives[1]);
    }
}

/* Of as many flops: heads of 32, and heads of 36. */
TEST(an_estimate_counts_attention_without_tensor_cores)
{
    double seconds[2];
    SIMULATE_SETUP();
    write_text("gpu.json", MACHINE(4, GPUS(1, "1", "")));
    for (int k = 0; k < 2; k++) {
        DONE("estimate", "run.json", "--machine", "gpu.json",
             fmt("model={\"model_type\": \"gpt2\", \"n_layer\": 2, \"n_embd\": 288, \"n_head\": %d, "
                 "\"vocab_size\": 512, \"n_positions\": 256}",
                 k ? 8 : 9),
             "bf16.enabled=true", "data.seq_length=256", "train_batch_size=8", "train_micro_batch_size_per_gpu=8");
        CHECK_EQ(!!strstr(ran.err, "attention: heads of 36 by kernels without tensor cores"), k);
        const char *time = strstr(ran.out, "\ntime of a step");
        seconds[k] = time ? behind(time, "\n  in all ") : -1;
    }
    CHECK(seconds[0] > 0 && seconds[1] > seconds[0]);
}

/* A part of the step's seconds on the GPU is a codelet's, in bundles as well, and goes by its share. */
TEST(what_a_file_has_no_rate_of_is_said)
{
    static const char *const gpu[] = {
        "", ", \"shares\": {\"linear_forward f32\": {\"all\": 0.8, \"1 GFLOP 1 MB 4 rows\": 0.001}}",
        ", \"shares\": {\"linear_forward f32\": 0.8}", ", \"tile_us\": 50, \"step_us\": 1000"};
    double seconds[4];
    SIMULATE_SETUP();
    for (int i = 0; i < 4; i++) {
        write_text("gpu.json", fmt(MACHINE(4, GPUS(1, "1", "%s")), gpu[i]));
        for (int k = 0; k < 2; k++) {
            DONE(k ? "simulate" : "estimate", "run.json", "--machine", "gpu.json");
            if (i % 3)
                CHECK_HAS(
                    ran.out,
                    "rates     of 1 codelets by the machine's file; not there, so as products at 0.8 of the rate: ");
            else
                CHECK_HAS(ran.out, "rates     by rates of papers: the machine's file has no codelet's, products take "
                                   "0.8 of them, copies 0.8\n");
        }
        seconds[i] = behind(ran.out, "\nstep      ");
    }
    CHECK(seconds[1] > 2 * seconds[0]);
    CHECK_NEAR(seconds[2], seconds[0], 1e-9);
    CHECK(seconds[3] > seconds[0] + 1e-3);
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
        {MACHINE(2, DRIVE ", \"drive_gib\": -1"), "drive_gib: -1, expected a number from 0"},
        {MACHINE(2, ", \"drive_gib\": 1"), "drive_gib: 1, expected drive_gb_s beside it"},
        {MACHINE(2, ", \"shares\": {\"drive\": 0}"), "shares.drive: 0, expected a number"},
        {MACHINE(2, ", \"reached\": {\"fp32\": 1}"), "unknown key reached.fp32"},
        {MACHINE(2, ", \"reached\": {\"fp32_copies\": -1}"), "reached.fp32_copies: -1, expected a number"},
        {MACHINE(2, ", \"nodes\": 0"), "nodes: 0, expected a whole number from 1"},
        {MACHINE(2, ", \"nodes\": 2"), "2 nodes without a network between them"},
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
        {MACHINE(2, ", \"shares\": {\"add_forward f32\": {\"all\": 0}}"),
         "shares.add_forward f32.all: 0, expected a number"},
        {MACHINE(2, ", \"shares\": {\"add_forward f32\": {\"2 MB\": 0.5}}"),
         "shares.add_forward f32.all: missing, expected a number"},
        {MACHINE(2, ", \"shares\": {\"add_forward f32\": {\"all\": 1, \"2 MB\": \"x\"}}"),
         "shares.add_forward f32.2 MB: \"x\", expected a number"},
        {MACHINE(2, ", \"shares\": {\"add_forward f32\": {\"all\": 1, \"2 KB\": 1}}"),
         "shares.add_forward f32.2 KB: 1, expected the work of a task"},
        {MACHINE(2, ", \"shares\": {\"add_forward f32\": {\"all\": 1, \"-1 GFLOP 2 MB\": 1}}"),
         "-1 GFLOP 2 MB: 1, expected the work of a task"},
        {MACHINE(2, ", \"shares\": {\"add_forward f32\": {\"all\": 1, \"1 GFLOP 2 MB 3 rows more\": 1}}"),
         "expected the work of a task"},
        {MACHINE(2, ", \"shares\": {\"products\": {\"all\": 1}}"), "shares.products: {\"all\":1}, expected a number"},
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
        FAILS(2, ("simulate", "run.json", "--machine", "wrong.json"), wrong[i].says);
        FAILS(2, ("estimate", "run.json", "--machine", "wrong.json"), wrong[i].says);
    }
    FAILS(2, ("simulate", "run.json"), "--machine FILE is missing");
    FAILS(2, ("simulate", "run.json", "--machine", "none.json"),
          "none.json: cannot be read: No such file or directory");
    FAILS(2, ("simulate", "run.json", "--machine", "two.json", "--ranks-per-node", "3"),
          "3 ranks on each node, and its 2 cores cannot be divided evenly");
    write_text("net.json", MACHINE(2, DRIVE NETWORK));
    FAILS(2, ("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "parallel.tensor=3"), "tensor");
    FAILS(2,
          ("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "--ranks-per-node", "2", "memory.cpu=1MiB",
           "memory.path=swap", BATCH),
          "too little for any step of this run"); /* one line of all four */
    write_text("bare.json", MACHINE(2, ""));
    FAILS(2, ("simulate", "run.json", "--machine", "bare.json", "memory.cpu=14MiB", "memory.path=swap"),
          "has no drive");
    FAILS(2, ("simulate", "run.json", "--machine", "two.json", "memory.cpu=2MiB", "memory.path=swap"), WIDE_LEAST);
}
