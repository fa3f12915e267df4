/* tessera simulate: ranks and GPUs, what goes between them, and ranks that others stand for. */
#define CHECK_MAIN
#include "tests/simulate/simulate.h"
#include "tools/simulate/simulation.h"

/* How a case places its ranks, as settings. */
#define PLACED(of)                                                                                                     \
    fmt("zero_optimization.stage=%s", (of).stage), fmt("parallel.tensor=%s", (of).tensor),                             \
        fmt("parallel.pipeline=%s", (of).pipeline)

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
        const char *what = fmt("%d ranks, stage %s, tensor %s, pipeline %s", cases[i].ranks, cases[i].stage,
                               cases[i].tensor, cases[i].pipeline);
        DONE("simulate", "run.json", "--machine", "net.json", "--nodes", cases[i].nodes, "--steps", "1",
             PLACED(cases[i]), BATCH);
        const double tasks = tasks_of(ran.out, "\n"), all = behind(ran.out, "\nmessages  "),
                     far = behind(ran.out, "of all ranks, "), sent = behind(ran.out, "rank 0 sends ");
        DONE_RANKS(cases[i].ranks, "bench", "run.json", "--steps", "1", PLACED(cases[i]), BATCH);
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
    DONE("simulate", "run.json", "--machine", "net.json", "--ranks-per-node", "2", "--steps", "1", BATCH);
    CHECK_HAS(ran.out, "2 cores, 4.0 GiB of RAM");
    CHECK_HAS(ran.out, "of all ranks, 0 of them between nodes");
    DONE("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "zero_optimization.stage=3", "--steps", "1",
         BATCH);
    char *first = strdup(ran.out);
    DONE("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "zero_optimization.stage=3", "--steps", "1",
         BATCH);
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
    DONE("simulate", "run.json", "--machine", "slow.json", "zero_optimization.stage=3", "--steps", "1",
         BATCH); /* its nodes are two */
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
        DONE("simulate", "run.json", "--machine", "tree.json", "zero_optimization.stage=3", "--steps", "1", BATCH);
        tree[i] = behind(ran.out, "\nstep      ");
    }
    CHECK(tree[1] > 1.2 * tree[2]);
    CHECK(tree[2] >= 0.99 * tree[0]);
    CHECK(tree[3] > 1.2 * tree[4]);
    CHECK(tree[4] >= 0.99 * tree[0]);
    FAILS(2, ("simulate", "run.json", "--machine", "tree.json", "--nodes", "6"), "6 nodes, and 4 of them are a group");
    write_text("tree.json", MACHINE(2, ", \"nodes\": 4, \"network\": {\"gb_s\": 0.01, \"latency_us\": 1" TREE(2) "}"));
    FAILS(2, ("simulate", "run.json", "--machine", "tree.json", "--nodes", "3"),
          "3 nodes, and 2 of them share each switch");
    DONE("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "--trace", "1:1", "--steps", "1", BATCH);
    DONE("explain", "out");
}

/* What a core carries it does not compute meanwhile, and a core that has nothing to do carries first. */
TEST(messages_of_a_node_take_time_of_cores)
{
    double step[2][2], bytes = 0;
    SIMULATE_SETUP();
    for (int many = 0; many < 2; many++) /* cores a rank: 1, or 4 */
        for (int carries = 0; carries < 2; carries++) {
            const double rate = carries ? bytes / (step[0][0] / 2) : 0;
            write_text("node.json", fmt("{\"name\": \"made up\", \"cores\": %d, \"memory_gib\": 4, \"copy_gb_s\": 10, "
                                        "\"matrix_gflops\": {\"fp32\": 10, \"bf16\": 20}, \"message_gb_s\": %.9f}",
                                        many ? 8 : 2, 1e-9 * rate));
            DONE("simulate", "run.json", "--machine", "node.json", "--ranks-per-node", "2", "--steps", "1", BATCH);
            step[many][carries] = behind(ran.out, "\nstep      ");
            if (!many && !carries) bytes = behind(ran.out, "rank 0 sends "); /* and gets as many */
        }
    const double more = (step[0][1] - step[0][0]) / (step[0][0] / 2),
                 less = (step[1][1] - step[1][0]) / (step[0][0] / 2);
    if (!(more > 0.8 && more < 1.3 && less < 0.7 * more))
        CHECK_SAY("carrying takes %.2f of its time of one core, and of one of four %.2f", more, less);
    DONE_RANKS(2, "bench", "run.json", "--machine", "node.json", "--steps", "1", BATCH);
    CHECK_HAS(ran.out, "of it hidden; they take ");
    tess_simulated m;
    CHECK_EQ(tess_machine_read("node.json", &m), TESS_OK);
    CHECK(m.message_rate > 0 && m.cores == 8);
}

/* ---- ranks that are simulated by others ---- */

/* A node of four GPUs, where every two share a link to RAM. */
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
                 {"node.json", "1", "8", "0", "1", "1", "auto", "; 1 of them simulated, each for 4 that"},
                 {"node.json", "2", "8", "1", "2", "2", "auto", "; 2 of them simulated, each for 4 that"}};
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(1, DRIVE NETWORK));
    write_text("node.json", FOLDED_NODE);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        double seconds[2], tasks[2], bytes[2], far[2], peak[2];
        const char *batch = fmt("train_batch_size=%s", cases[i].batch);
        for (int folded = 0; folded < 2; folded++) {
            DONE("simulate", "run.json", "--machine", cases[i].machine, "--nodes", cases[i].nodes, "--steps", "1",
                 PLACED(cases[i]), batch, "train_micro_batch_size_per_gpu=1", "--fold",
                 folded ? cases[i].fold : "none");
            seconds[folded] = behind(ran.out, "\nstep      ");
            tasks[folded] = behind(ran.out, "\ntasks     ");
            bytes[folded] = behind(ran.out, "\nmessages  ");
            far[folded] = behind(ran.out, "of all ranks, ");
            peak[folded] = behind(ran.out, "tiles of a rank hold ");
            if (folded) CHECK_HAS(ran.out, cases[i].said);
        }
        const char *what = fmt("%s, %s nodes, stage %s, tensor %s, pipeline %s", cases[i].machine, cases[i].nodes,
                               cases[i].stage, cases[i].tensor, cases[i].pipeline);
        if (fabs(seconds[1] / seconds[0] - 1) > 0.05 || fabs(tasks[1] / tasks[0] - 1) > 0.14 ||
            fabs(bytes[1] / bytes[0] - 1) > 0.01 || fabs(far[1] - far[0]) > 0.01 * bytes[0] ||
            fabs(peak[1] / peak[0] - 1) > 0.05)
            CHECK_SAY("%s: %f s, %.0f tasks, %.0f bytes, %.0f far, peak %.0f; folded %f, %.0f, %.0f, %.0f, %.0f", what,
                      seconds[0], tasks[0], bytes[0], far[0], peak[0], seconds[1], tasks[1], bytes[1], far[1], peak[1]);
    }
}

/* Tiles that more than 16 ranks own: the parts of a gradient go from 16 senders at a time, and the others wait for
 * those. So ranks of different sixteens do not the same at the same time, and one of each has to be there. */
TEST(where_all_ranks_own_a_tile_one_of_each_sixteen_is_there)
{
    static const char model[] = "model={\"model_type\": \"gpt2\", \"n_layer\": 1, \"n_embd\": 1024, \"n_head\": 8, "
                                "\"vocab_size\": 256, \"n_positions\": 32}";
    double seconds[2], far[2];
    SIMULATE_SETUP();
    write_text("node.json", FOLDED_NODE);
    for (int folded = 0; folded < 2; folded++) {
        DONE("simulate", "run.json", "--machine", "node.json", "--nodes", "8", "--steps", "1", "train_batch_size=32",
             "train_micro_batch_size_per_gpu=1", "zero_optimization.stage=3", "data.seq_length=32", model, "--fold",
             folded ? "auto" : "none");
        seconds[folded] = behind(ran.out, "\nstep      ");
        far[folded] = behind(ran.out, "of all ranks, ");
    }
    CHECK_HAS(ran.out, "32 for data x 1 tensor parallel x 1 stages of a pipeline; 2 of them simulated, each for 16");
    if (fabs(seconds[1] / seconds[0] - 1) > 0.05 || fabs(far[1] / far[0] - 1) > 0.01)
        CHECK_SAY("%f s, %.0f bytes between nodes; folded %f s, %.0f", seconds[0], far[0], seconds[1], far[1]);
}

/* From 16 data ranks to 32 a step grows little: what a rank that is not there sends back takes as long as sums do here,
 * not as what lies between two parameters' messages. */
TEST(who_is_not_there_adds_up_as_fast_as_who_is)
{
    double step[2];
    SIMULATE_SETUP();
    write_text("node.json", FOLDED_NODE);
    for (int k = 0; k < 2; k++) {
        DONE("simulate", "run.json", "--machine", "node.json", "--nodes", k ? "32" : "16", "--fold", "auto", "--steps",
             "1",
             "model={\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_embd\": 64, \"n_head\": 4, \"vocab_size\": 300}",
             "parallel.tensor=2", "parallel.pipeline=2", "zero_optimization.stage=0", BATCH,
             k ? "train_batch_size=256" : "train_batch_size=128");
        step[k] = behind(ran.out, "\nstep      ");
    }
    if (!(step[1] < 2 * step[0])) CHECK_SAY("16 data ranks take %.6f s a step, 32 take %.6f", step[0], step[1]);
}

TEST(a_folded_run_gives_the_same_digits_and_a_timeline_of_who_was_there)
{
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(1, DRIVE NETWORK));
    char *first = NULL;
    for (int i = 0; i < 2; i++) {
        DONE("simulate", "run.json", "--machine", "net.json", "--nodes", "8", "parallel.pipeline=2", "--fold", "auto",
             "--steps", "1", "train_micro_batch_size_per_gpu=1", "--trace", "1:1");
        CHECK(!strstr(ran.err, "cannot be read"));
        if (first) CHECK_STR(ran.out, first);
        if (!first) first = strdup(ran.out);
    }
    free(first);
    DONE("explain", "out");
    /* 512 ranks take little more than 8. */
    DONE("simulate", "run.json", "--machine", "net.json", "--nodes", "512", "parallel.pipeline=2", "parallel.tensor=16",
         "train_batch_size=16", "--fold", "auto", "--steps", "1", "train_micro_batch_size_per_gpu=1");
    CHECK_HAS(ran.out, "ranks     512, 1 on each node: 16 for data x 16 tensor parallel x 2 stages of a pipeline; 2 of "
                       "them simulated, each for 256 that have the same to do");
}

TEST(a_fold_that_cannot_be_is_one_line)
{
    SIMULATE_SETUP();
    write_text("net.json", MACHINE(2, DRIVE NETWORK));
    FAILS(2, ("simulate", "run.json", "--machine", "net.json", "--fold", "auto"),
          "--fold: there is one rank, and none that has the same to do");
    FAILS(2, ("simulate", "run.json", "--machine", "net.json", "--nodes", "2", BATCH, "--fold", "pipeline"),
          "--fold: pipeline, expected data, tensor, both with a comma, auto or none");
    FAILS(2, ("simulate", "run.json", "--machine", "net.json", "--nodes", "2", BATCH, "--fold", "data,"),
          "--fold: data,, expected");
    FAILS(2,
          ("simulate", "run.json", "--machine", "net.json", "--nodes", "3", "--ranks-per-node", "2",
           "train_batch_size=12", "parallel.pipeline=3", BATCH, "--fold", "data"),
          "of 2 ranks on each node 2 would be there on node 0 and 1 on node 1");
    FAILS(
        2,
        ("simulate", "run.json", "--machine", "net.json", "--nodes", "4", "parallel.tensor=3", BATCH, "--fold", "auto"),
        "tensor 3");
}

/* ---- GPUs ---- */

TEST(a_gpu_computes_what_it_holds)
{
    SIMULATE_SETUP();
    const double cores = behind(ran.out, "\nstep      ");
    write_text("gpu.json", MACHINE(2, GPUS(1, "1", "")));
    DONE("simulate", "run.json", "--machine", "gpu.json");
    CHECK_HAS(ran.out, "machine   made up: 2 cores, 4.0 GiB of RAM, 1 GPU (made up, 1.0 GiB)");
    CHECK_HAS(ran.out, " TFLOP/s a GPU");
    char *first = strdup(ran.out);
    const double seconds = behind(first, "\nstep      "), holds = behind(first, "\nGPU       ");
    CHECK(seconds < cores);
    CHECK(holds > 64 << 20 && holds < 1 << 30);
    /* It takes no less than its bodies take on the GPU alone. */
    CHECK(seconds >= behind(first, "\nbound     ") * 0.999);
    DONE("simulate", "run.json", "--machine", "gpu.json");
    CHECK_STR(ran.out, first);
    write_text("slow.json", MACHINE(2, GPUS(1, "1", ", \"shares\": {\"linear_forward f32\": 0.004}")));
    DONE("simulate", "run.json", "--machine", "slow.json");
    CHECK(behind(ran.out, "\nstep      ") > 1.5 * seconds);
    free(first);
}

TEST(a_cap_on_a_gpu_sends_tiles_to_ram_and_a_drive)
{
    SIMULATE_SETUP();
    write_text("gpu.json", MACHINE(2, DRIVE GPUS(1, "1", "")));
    DONE("simulate", "run.json", "--machine", "gpu.json");
    const double seconds = behind(ran.out, "\nstep      "), to = behind(ran.out, "\nlinks     ");
    DONE("simulate", "run.json", "--machine", "gpu.json", CAPPED);
    CHECK(behind(ran.out, "\nGPU       ") <= 104 << 20);
    CHECK(behind(ran.out, "\nlinks     ") > to + (1 << 20));
    CHECK(behind(ran.out, "\nstep      ") > seconds);
    /* What goes over the link takes as long as the link says. */
    CHECK(behind(ran.out, "\nstep      ") > behind(ran.out, "\nlinks     ") / 2 / 1e9 * 0.999);
    DONE("simulate", "run.json", "--machine", "gpu.json", CAPPED, "memory.cpu=14MiB", "memory.path=nowhere");
    CHECK(!exists("nowhere"));
    CHECK(behind(ran.out, "\ndisk      reads ") > 0);
    CHECK_HAS(ran.out, "the step is bound by the drive");
}

TEST(policies_act_on_a_node_with_gpus)
{
    static const char *const policies[] = {"eager", "prio", "lws", "dmda"};
    SIMULATE_SETUP();
    write_text("gpu.json", MACHINE(4, GPUS(1, "1", "")));
    DONE("simulate", "run.json", "--machine", "gpu.json");
    const double tasks = behind(ran.out, "\ntasks     ");
    for (size_t i = 0; i < sizeof policies / sizeof *policies; i++) {
        WITH("STARPU_SCHED", policies[i]) DONE("simulate", "run.json", "--machine", "gpu.json");
        CHECK_EQ((int)behind(ran.out, "\ntasks     "), (int)tasks);
    }
}

/* docs/examples/own-policy.c, which takes what became ready last: the same tasks in another time. */
TEST(a_policy_of_ones_own_acts)
{
    SIMULATE_SETUP();
#ifdef TESS_SIMULATED_POLICY
    const double tasks = behind(ran.out, "\ntasks     "), seconds = behind(ran.out, "\nstep      ");
    setenv("STARPU_SCHED_LIB", TESS_SIMULATED_POLICY, 1);
    DONE("simulate", "run.json", "--machine", "two.json");
    CHECK_EQ((int)behind(ran.out, "\ntasks     "), (int)tasks);
    CHECK(behind(ran.out, "\nstep      ") != seconds);
    setenv("STARPU_SCHED", "prio", 1); /* which it has not, and StarPU has */
    DONE("simulate", "run.json", "--machine", "two.json");
    CHECK_NEAR(behind(ran.out, "\nstep      "), seconds, 0);
    unsetenv("STARPU_SCHED");
    write_text("gpu.json", MACHINE(8, GPUS(4, "1", "")));
    DONE("simulate", "run.json", "--machine", "gpu.json", "--ranks-per-node", "1", "memory.gpu_plan=false");
    CHECK_EQ((int)behind(ran.out, "\ntasks     "), (int)tasks);
    FAILS(2, ("simulate", "run.json", "--machine", "gpu.json"), "and 4 ranks, and each has a StarPU of its own here");
    setenv("STARPU_SCHED_LIB", TESS_OWN_POLICY, 1);
    FAILS(2, ("simulate", "run.json", "--machine", "two.json"),
          "was built with the headers of a StarPU without simulation");
    unsetenv("STARPU_SCHED_LIB");
#endif
}

/* StarPU's own modular-gemm leaves tasks without a worker where there is a GPU: SimGrid says so, and exits as if all
 * were well. */
TEST(who_stands_still_is_told)
{
    SIMULATE_SETUP();
    write_text("gpu.json", MACHINE(4, GPUS(1, "1", "")));
    WITH("STARPU_SCHED", "modular-gemm")
    FAILS(1, ("simulate", "run.json", "--machine", "gpu.json"), "simulation: stands still");
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
    FAILS(2, ("simulate", "run.json", "--machine", "node.json", "--ranks-per-node", "1"),
          "has 8 GPUs for a rank, and a process has a plan for one");
    FAILS(2, ("simulate", "run.json", "--machine", "node.json"),
          "8 ranks on each node, and its 12 cores cannot be divided evenly");
    static const char *const policies[] = {"dm", "dmdas"};
    for (int i = 0; i < 2; i++) {
        WITH("STARPU_SCHED", policies[i])
        DONE("simulate", "run.json", "--machine", "node.json", "--ranks-per-node", "1",
             "model={\"model_type\": \"gpt2\", \"n_embd\": 1600, \"n_head\": 25, \"n_layer\": 48, \"vocab_size\": "
             "50257}",
             "memory.gpu_plan=false", "bf16.enabled=true", "data.seq_length=1024", "train_batch_size=32",
             "train_micro_batch_size_per_gpu=32", "--steps", "1");
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
#define ONE_MICRO_BATCH "train_batch_size=4"
#define HOST            "\"host_link\": {\"gb_s\": 25, \"latency_us\": 10}"
#define NVLINK          HOST ", \"peer_link\": {\"gb_s\": 300, \"latency_us\": 5}"

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
        DONE("simulate", "run.json", "--machine", "node.json", "--steps", "1", placed[i]);
        const double sent = behind(ran.out, "\nmessages  "), tasks = behind(ran.out, "\ntasks     "),
                     seconds = behind(ran.out, "\nstep      ");
        CHECK_HAS(ran.out, "\ncarried   by a simulated NCCL; ");
        CHECK(sent > 0 && over_peers() == sent);
        /* Without a link between them: the same messages by both links to RAM, which take longer. */
        DONE("simulate", "run.json", "--machine", "bare.json", "--steps", "1", placed[i]);
        CHECK(behind(ran.out, "\nmessages  ") == sent && over_peers() == 0);
        CHECK(behind(ran.out, "over links between GPUs, ") >= sent);
        CHECK(behind(ran.out, "\nstep      ") > seconds);
        /* By RAM: the same messages of the same tasks. */
        DONE("simulate", "run.json", "--machine", "node.json", "--steps", "1", "parallel.carrier=mpi", placed[i]);
        CHECK_HAS(ran.out, "\ncarried   by a simulated network; ");
        CHECK(behind(ran.out, "\nmessages  ") == sent && behind(ran.out, "\ntasks     ") == tasks);
        CHECK(over_peers() == 0 && behind(ran.out, "over the network, ") == sent); /* from RAM to RAM */
        CHECK(behind(ran.out, "\nstep      ") > seconds);
    }
    /* Who has no GPU sends by RAM, and is told so where that was not what was asked for. */
    write_text("net.json", MACHINE(2, NETWORK));
    DONE("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "--steps", "1");
    CHECK_HAS(ran.out, "\ncarried   by a simulated network; bytes a step of all ranks: ");
    CHECK(over_peers() > 0); /* it begins with the network there */
    FAILS(2, ("simulate", "run.json", "--machine", "net.json", "--nodes", "2", "--steps", "1", "parallel.carrier=nccl"),
          "\"nccl\" cannot carry messages: there is no GPU");
    /* In a ring of two pairs some messages have a link, and others not. */
    write_gpu_node("pairs.json", 4, HOST ", \"peer_link\": {\"gb_s\": 300, \"pairs\": [[0, 1], [2, 3]]}", "");
    DONE("simulate", "run.json", "--machine", "pairs.json", "--steps", "1", "parallel.pipeline=4");
    CHECK(over_peers() > 0 && over_peers() < behind(ran.out, "\nmessages  "));
}

/* Messages of one micro-batch go through a pipeline one after the other and one way at a time. On links so slow that
 * they take all of the step, it lasts their bytes divided by the rate, and the latencies of each message. */
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
            const double latency = 1e6 * k; /* as many seconds */
            const char *links = fmt(cases[i].links, latency);
            write_gpu_node("slow.json", cases[i].gpus, links, fmt(cases[i].network, latency));
            DONE("simulate", "run.json", "--machine", "slow.json", "--steps", "1", "--nodes", cases[i].nodes,
                 "parallel.pipeline=2", "gradient_clipping=0", ONE_MICRO_BATCH);
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

/* Ranks of tensor parallelism have what goes from stage to stage alike: over the network it goes once. */
TEST(what_all_ranks_of_a_stage_have_goes_once_to_the_next)
{
    static const char network[] = ", \"network\": {\"gb_s\": 100, \"latency_us\": 1}";
    SIMULATE_SETUP();
    double far[2];
    write_gpu_node("one.json", 1, HOST, network);
    write_gpu_node("two.json", 2, NVLINK, network);
    for (int i = 0; i < 2; i++) {
        DONE("simulate", "run.json", "--machine", i ? "two.json" : "one.json", "--nodes", "2", "--steps", "1",
             "parallel.pipeline=2", i ? "parallel.tensor=2" : "parallel.tensor=1");
        far[i] = behind(ran.out, "of all ranks, ");
    }
    CHECK(far[0] > 0);
    CHECK_NEAR(far[1], far[0], far[0] / 50);
}

/* Two nodes of two GPUs. What goes between the nodes goes between one GPU of each, by half of the rails. */
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
        DONE("simulate", "run.json", "--machine", "rails.json", "--nodes", "2", "--steps", "1", "parallel.pipeline=4",
             "gradient_clipping=0", ONE_MICRO_BATCH);
        const double far = behind(ran.out, "of all ranks, ");
        CHECK(far > 0 && over_peers() > 0);
        CHECK_NEAR(behind(ran.out, "\nstep      "), far / (i ? 1e6 : 2e6), far / 1e8);
        CHECK_HAS(ran.out, "the step is bound by the ");
        /* All GPUs at a time have what the node has. */
        DONE("simulate", "run.json", "--machine", "rails.json", "--nodes", "2", "--steps", "1",
             "zero_optimization.stage=1", BATCH);
        CHECK_NEAR(behind(ran.out, "\nstep      "), behind(ran.out, "of all ranks, ") / 2 / 2e6,
                   behind(ran.out, "of all ranks, ") / 2 / 2e7);
        CHECK_HAS(ran.out, "the step is bound by the network");
    }
}

/* Ranks of a tensor whose tables are of other numbers of tiles, one and two here, give each other the gradients of
 * norms all the same. Messages meet by their tags here, where MPI counts them. */
TEST(rows_are_shared_whatever_tiles_ranks_have)
{
    SIMULATE_SETUP();
    write_gpu_node("peers.json", 4, NVLINK, "");
    DONE("simulate", "run.json", "--machine", "peers.json", "--steps", "1", "parallel.tensor=4",
         "activation_checkpointing.partition_activations=true", "tiles.elements=7000", BATCH);
    CHECK(behind(ran.out, "\nstep      ") > 0);
}

/* Where a GPU has room for the activations of all micro-batches, weights that are gathered come once for all. */
TEST(weights_come_once_for_all_micro_batches)
{
    SIMULATE_SETUP();
    double sent[2], held[2];
    write_gpu_node("peers.json", 2, NVLINK, "");
    for (int i = 0; i < 2; i++) {
        DONE("simulate", "run.json", "--machine", "peers.json", "zero_optimization.stage=3", "train_batch_size=8",
             i ? "train_micro_batch_size_per_gpu=1" : "train_micro_batch_size_per_gpu=4");
        sent[i] = behind(ran.out, "\nmessages  ");
        held[i] = behind(ran.out, "\nRAM       tiles of a rank hold ");
    }
    CHECK(sent[0] > 0);
    CHECK(sent[1] < 1.2 * sent[0]);
    CHECK(held[1] < 2 * held[0] + (1 << 20)); /* and no more of them lie in RAM */
}

/* Stages with as much to do each, on a machine where nothing but that takes time: a stage waits as the paper has it.
 * Without a pipeline ranks wait for next to nothing. */
TEST(the_bubble_is_that_of_the_paper)
{
    static const struct {
        const char *ranks, *pipeline, *interleave, *batch;
        double paper;
        const char *schedule;
    } cases[] = {{"2", "2", "1", "4", 1 / 4., "1f1b"},   {"2", "2", "1", "8", 1 / 8., "1f1b"},
                 {"4", "4", "1", "8", 3 / 8., "1f1b"},   {"4", "4", "2", "8", 3 / 16., "1f1b"},
                 {"4", "4", "4", "8", 3 / 32., "1f1b"},  {"4", "2", "1", "8", 1 / 4., "1f1b"},
                 {"4", "1", "1", "4", 0, "1f1b"},        {"2", "2", "1", "4", 1 / 12., "zb-h1"},
                 {"4", "4", "1", "8", 3 / 24., "zb-h1"}, {"4", "4", "1", "8", 4 / 48., "zb-v"}};
    SIMULATE_SETUP();
    write_text("ideal.json",
               "{\"name\": \"ideal\", \"cores\": 1, \"memory_gib\": 64, \"copy_gb_s\": 100000, \"task_us\": 0,\n"
               " \"matrix_gflops\": {\"fp32\": 10, \"bf16\": 20},\n"
               " \"network\": {\"gb_s\": 100000, \"latency_us\": 0.001}}\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *pipeline = fmt("parallel.pipeline=%s", cases[i].pipeline);
        const char *interleave = fmt("parallel.interleave=%s", cases[i].interleave);
        const char *schedule = fmt("parallel.schedule=%s", cases[i].schedule);
        const char *batch = fmt("train_batch_size=%s", cases[i].batch);
        DONE("simulate", "run.json", "--machine", "ideal.json", "--nodes", cases[i].ranks, "--steps", "1", pipeline,
             interleave, schedule, batch, "train_micro_batch_size_per_gpu=1", "gradient_clipping=0",
             "data.seq_length=128",
             "model={\"model_type\": \"gpt2\", \"n_layer\": 16, \"n_embd\": 256, \"n_head\": 4, \"vocab_size\": 64, "
             "\"n_positions\": 128}");
        const double share = behind(ran.out, "while no message moves, for ") / 100,
                     paper = behind(ran.out, "that tasks take; on paper ") / 100;
        CHECK_NEAR(paper, cases[i].paper, 0.0006);                          /* it has one digit */
        const double off = strcmp(cases[i].schedule, "1f1b") ? 0.04 : 0.01; /* attention has no gradient of weights */
        if (!(share >= 0 && fabs(share - paper) < off))
            CHECK_SAY("%s stages, %s chunks, %s sequences, %s: %.3f, and %.3f on paper", cases[i].pipeline,
                      cases[i].interleave, cases[i].batch, cases[i].schedule, share, paper);
    }
}

/* On GPUs, whose messages keep an order and whose kernels queue, chunks shorten a step nearly as they do on paper. */
TEST(chunks_shorten_a_pipeline_of_gpus)
{
    double least = HUGE_VAL;
    SIMULATE_SETUP();
    write_gpu_node("node.json", 4, NVLINK, "");
    for (int chunks = 1; chunks <= 4; chunks *= 2) {
        DONE("simulate", "run.json", "--machine", "node.json", "--steps", "1", "parallel.pipeline=4",
             fmt("parallel.interleave=%d", chunks), "train_batch_size=8", "train_micro_batch_size_per_gpu=1",
             "gradient_clipping=0", "data.seq_length=2048", "bf16.enabled=true",
             "model={\"model_type\": \"gpt2\", \"n_layer\": 16, \"n_embd\": 8192, \"n_head\": 16, \"vocab_size\": 64, "
             "\"n_positions\": 2048}");
        const double seconds = behind(ran.out, "\nstep      "),
                     paper = behind(ran.out, "that tasks take; on paper ") / 100,
                     bound = behind(ran.out, "\nbound     ");
        CHECK(seconds < least);
        if (!(seconds < 1.2 * (1 + paper) * bound))
            CHECK_SAY("%d chunks: %.3f s, and %.3f on paper", chunks, seconds, (1 + paper) * bound);
        CHECK(seconds < 1.2 * (1 + paper) * bound);
        least = seconds;
    }
}

/* One micro-batch, whose sums are waited for; several of them; stages that have them in an order
 * without pairs, and in pairs. */
TEST(another_micro_batch_hides_the_sums_of_tensor_ranks)
{
    static const char *const runs[4][3] = {{"parallel.pipeline=1", "train_batch_size=1", "parallel.schedule=1f1b"},
                                           {"parallel.pipeline=1", "train_batch_size=8", "parallel.schedule=1f1b"},
                                           {"parallel.pipeline=2", "train_batch_size=16", "parallel.schedule=zb-h1"},
                                           {"parallel.pipeline=2", "train_batch_size=16", "parallel.schedule=1f1b"}};
    double exposed[4];
    SIMULATE_SETUP();
    for (int i = 0; i < 4; i++) {
        write_gpu_node("node.json", i < 2 ? 2 : 4, NVLINK, "");
        DONE("simulate", "run.json", "--machine", "node.json", "--steps", "1", "parallel.tensor=2", runs[i][0],
             runs[i][1], runs[i][2], "train_micro_batch_size_per_gpu=1", "data.seq_length=2048", "bf16.enabled=true",
             "model={\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_embd\": 2048, \"n_head\": 16, "
             "\"vocab_size\": 64, \"n_positions\": 2048}");
        exposed[i] = behind(ran.out, "without a task for ");
    }
    if (!(exposed[1] < exposed[0] / 2 && exposed[3] < 0.7 * exposed[2]))
        CHECK_SAY("of one %g%%, of eight %g%%; of stages %g and %g", exposed[0], exposed[1], exposed[2], exposed[3]);
}

/* Two pipelines of four stages, whose gradients meet over a slow network: a stage waits for those of none but its own.
 */
TEST(a_stage_sends_what_others_wait_for_before_its_gradients)
{
    SIMULATE_SETUP();
    write_gpu_node("two.json", 4, NVLINK, ", \"network\": {\"gb_s\": 0.004, \"latency_us\": 1, \"rails\": 4}");
    DONE("simulate", "run.json", "--machine", "two.json", "--nodes", "2", "--steps", "1", "parallel.pipeline=4", BATCH);
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
                 {"2", "3", "1", "1", "16", 1},
                 {"2", "1", "8", "2", "2", 1}};
    SIMULATE_SETUP();
    write_gpu_node("node.json", 8, NVLINK, ", \"network\": {\"gb_s\": 200, \"latency_us\": 5, \"rails\": 8}");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *first = NULL;
        const char *batch = fmt("train_batch_size=%s", cases[i].batch);
        for (int turn = 0; turn < cases[i].turns; turn++) {
            DONE("simulate", "run.json", "--machine", "node.json", "--nodes", cases[i].nodes, "--steps", "1",
                 "bf16.enabled=true", "data.seq_length=128", "train_micro_batch_size_per_gpu=1", model,
                 PLACED(cases[i]), batch);
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
    DONE("simulate", "run.json", "--machine", "ranks.json", "--nodes", "2", BATCH, "--sweep", "seed=1,2");
    CHECK_HAS(ran.out, "tokens/s  RAM        bound by");
    write_text("gpu.json", MACHINE(2, GPUS(1, "1", "")));
    DONE("simulate", "run.json", "--machine", "gpu.json", "--sweep", "seed=1,2");
    CHECK_HAS(ran.out, "tokens/s  RAM        GPU        bound by");
}

/* What is said of a step does not depend on how many there were, nor on the first, which warms up. */
TEST(as_much_is_exposed_in_one_step_as_in_four)
{
    SIMULATE_SETUP();
    double exposed[2];
    write_text("ranks.json", MACHINE(2, DRIVE NETWORK));
    for (int i = 0; i < 2; i++) {
        DONE("simulate", "run.json", "--machine", "ranks.json", "--nodes", "2", BATCH, "zero_optimization.stage=3",
             "--steps", i ? "4" : "1");
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
        DONE("simulate", "run.json", "--machine", "gpu.json", CAPPED, BATCH, "gradient_clipping=0");
        alone[i] = behind(strstr(ran.out, "\nbound "), "the GPUs alone, ");
        CHECK(alone[i] > 0);
        CHECK(behind(ran.out, "\nstep      ") > 0.999 * alone[i]);
    }
    CHECK_NEAR(alone[1], 2 * alone[0], 0.01 * alone[1]);
}
