/* A small GPT-2 trained some steps on the GPU and on the CPU: losses in fp32 within 1e-4 of each other. On the GPU,
 * twice with the same seed, with most of its memory taken away, with tiles in its memory, RAM and on disk, and over a
 * checkpoint: the same bits. Runs `tessera` as a user does, since
 * StarPU starts once a process. Exit 77 without a GPU that StarPU drives.
 *
 * On emulated GPUs, which do things late and in any order that is allowed (tests/gpu/emulated_cuda.c), also whatever
 * order a seed draws, with one and with two of them: a seed a step; TESS_SEEDS says how many (24), and tests/gpu/fuzz
 * tries a thousand. And what is there about them that is no computing: contexts, memory that others hold, drivers that
 * fail. */
#define main check_main
#define CHECK_MAIN
#include "tests/check.h"
#undef main
#include "runtime/runtime.h"
#include <sys/wait.h>
#include <unistd.h>

#ifdef TESS_EMULATED_GPU /* where a step takes long */
enum { STEPS = 3 };
#else
enum { STEPS = 10 };
#endif
static int small_runs; /* of 2 steps */
static const char *config = "run";
#define EIGHT_BITS "bf16.enabled=true fp8.enabled=true"
#define IMPORTED   TESS_FIXTURES "/imported/"
static char dir[] = "/tmp/tessera-gpu-XXXXXX";

/* Writes the configuration and some text; every call trains in its own output directory. */
static void write_files(void)
{
    char path[128];
    snprintf(path, sizeof path, "%s/text.txt", dir);
    FILE *f = fopen(path, "w");
    for (int i = 0; f && i < 20000; i++) fputc("the quick brown fox jumps over lazy dogs\n"[(i * 7 + i / 11) % 41], f);
    if (f) fclose(f);
    snprintf(path, sizeof path, "%s/run.json", dir);
    f = fopen(path, "w");
    if (!f) return;
    fprintf(f,
            "{\"model\": {\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 128, \"n_embd\": 256,\n"
            " \"n_layer\": 3, \"n_head\": 4, \"resid_pdrop\": 0.1, \"embd_pdrop\": 0.1, \"attn_pdrop\": 0.1},\n"
            " \"data\": {\"train\": \"%s/text.txt\", \"seq_length\": 128},\n"
            " \"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 4, \"steps\": %d,\n"
            " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3, \"weight_decay\": 0.1}},\n"
            " \"gradient_clipping\": 1.0, \"overwrite\": true}\n",
            dir, STEPS);
    fclose(f);
}

/* The figures of a run as text, so that equal means equal bits, and the way of placing that they are of. */
struct figures {
    char way[260], text[STEPS][2][32]; /* losses and norms, a step each */
};

/* Of a run that fails all is said that it leaves. */
static void run(const char *name, const char *environment, const char *settings)
{
    char command[1000];
    snprintf(command, sizeof command,
             "%s %s train %s/%s.json output=%s/%s %s >%s/%s.log 2>&1 || { tail -40 %s/%s.log; cat %s/%s/*standstill* "
             "2>/dev/null; false; }",
             environment, getenv("TESSERA") ? getenv("TESSERA") : "tessera", dir, config, dir, name, settings, dir,
             name, dir, name, dir, name);
    if (system(command)) CHECK_SAY("%s (%s %s): the run fails", name, environment, settings);
}

/* Nobody's figures from before. */
static void forget(const char *name)
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s/metrics.jsonl", dir, name);
    unlink(path);
}

/* Each run's figures are said, whatever becomes of the comparison. */
static void train(const char *name, const char *environment, const char *settings, struct figures *of)
{
    char line[4096];
    memset(of, 0, sizeof *of);
    snprintf(of->way, sizeof of->way, "%s (%s%s%s)", name, environment, *environment ? " " : "", settings);
    if (!strstr(settings, "--resume")) forget(name);
    run(name, environment, settings);
    snprintf(line, sizeof line, "%s/%s/metrics.jsonl", dir, name);
    FILE *f = fopen(line, "r");
    if (!f) CHECK_SAY("%s: it leaves no figures", of->way);
    printf("%s:", of->way);
    for (int k = 0; f && k < STEPS && fgets(line, sizeof line, f); k++) {
        const char *loss = strstr(line, "\"loss\":"), *norm = strstr(line, "\"grad_norm\":");
        if (loss) sscanf(loss, "\"loss\":%31[^,}]", of->text[k][0]);
        if (norm) sscanf(norm, "\"grad_norm\":%31[^,}]", of->text[k][1]);
        printf(" %s %s%s", of->text[k][0], of->text[k][1], k < STEPS - 1 ? "," : "");
    }
    printf("\n");
    if (f) fclose(f);
    for (int k = 0; k < (small_runs ? 2 : STEPS); k++)
        if (!of->text[k][0][0]) CHECK_SAY("%s: no loss of step %d", of->way, k + 1);
}

/* Says the first step that differs, and of whom; limit: of losses, 0: the bits of norms too. */
static void compare(const struct figures *a, const struct figures *b, double limit)
{
    for (int k = 0; k < STEPS; k++) {
        const double x = atof(a->text[k][0]), y = atof(b->text[k][0]);
        const bool same = !strcmp(a->text[k][0], b->text[k][0]) && !strcmp(a->text[k][1], b->text[k][1]);
        if (limit > 0 ? fabs(x - y) <= limit * fabs(y) : same) continue;
        CHECK_SAY("%s\n    differs from %s\n    first in step %d of %d: loss %s, expected %s; norm %s, expected %s",
                  a->way, b->way, k + 1, STEPS, a->text[k][0], b->text[k][0], a->text[k][1], b->text[k][1]);
        return;
    }
}

TEST(losses_are_the_cpus)
{
    static struct figures gpu, cpu;
    train("gpu32", "", "", &gpu);
    train("cpu32", "STARPU_NCUDA=0", "", &cpu);
    compare(&gpu, &cpu, 1e-4);
    train("gpu16", "", "bf16.enabled=true", &gpu);
    train("cpu16", "STARPU_NCUDA=0", "bf16.enabled=true", &cpu);
    compare(&gpu, &cpu, 2e-2);
    train("gpu8", "", EIGHT_BITS, &gpu);
    train("cpu8", "STARPU_NCUDA=0", EIGHT_BITS, &cpu);
    compare(&gpu, &cpu, 2e-2);
}

/* Networks of generic ops, some of which have no body for a GPU. */
TEST(any_network)
{
    static const struct {
        const char *name;
        int samples;
    } network[] = {{"sorts", 6}, {"state", 16}, {"convs", 6}, {"gpt", 8}};
    static struct figures gpu, cpu;
    for (size_t k = 0; k < sizeof network / sizeof *network; k++) {
        char path[128];
        snprintf(path, sizeof path, "%s/any.json", dir);
        FILE *f = fopen(path, "w");
        if (!f) return;
        fprintf(f,
                "{\"model\": \"" IMPORTED "%s\", \"data\": {\"train\": \"" IMPORTED "%s/check.safetensors\"},\n"
                " \"steps\": %d, \"train_batch_size\": %d, \"overwrite\": true, \"gradient_clipping\": 1,\n"
                " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}}\n",
                network[k].name, network[k].name, STEPS, network[k].samples);
        fclose(f);
        config = "any";
        char name[2][32];
        snprintf(name[0], sizeof *name, "%s_gpu", network[k].name);
        snprintf(name[1], sizeof *name, "%s_cpu", network[k].name);
        train(name[0], "", "", &gpu);
        train(name[1], "STARPU_NCUDA=0", "", &cpu);
        config = "run";
#ifdef TESS_EMULATED_GPU /* whose bodies are the CPU's */
        compare(&gpu, &cpu, 0);
#else
        compare(&gpu, &cpu, 1e-3);
#endif
    }
}

/* Where the optimizer's updates run, the scheduler and a cap never show. On an emulated GPU each codelet has bits of
 * its own, so that a value that two of them make, depending on what is kept, shows as it does on a real one. */
TEST(the_same_bits)
{
    setenv("TESS_EMULATED_OWN_BITS", "1", true);
    static struct figures first, again;
    static const char *const how[][2] = {
        {"", ""},
        {"", "memory.gpu=115MiB"},
        {"STARPU_SCHED=eager", "memory.gpu=130MiB"},
        {"", "memory.gpu_plan=false"},
        {"", "activation_checkpointing.enabled=true"},
        {"", "activation_checkpointing.enabled=true memory.gpu=115MiB"},
        {"", "zero_optimization.offload_optimizer.device=cpu zero_optimization.offload_optimizer.ratio=0.5"},
        {"STARPU_NCPU=2",
         "memory.gpu=115MiB memory.cpu=48MiB memory.path="}}; /* the cap has no room for more workers' */
    static const char *const bits[] = {"", "bf16.enabled=true", EIGHT_BITS};
    for (int few = 0; few < 3; few++) {
        char set[200];
        train("first", "", bits[few], &first);
        for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
            if (few && k % 2 == 0) continue; /* the odd ones have all tiers */
            snprintf(set, sizeof set, "%s%s %s", how[k][1], strstr(how[k][1], "path") ? dir : "", bits[few]);
            char name[32];
            snprintf(name, sizeof name, "way%zu_%d", k + 1, few);
            train(name, how[k][0], set, &again);
            compare(&again, &first, 0);
        }
    }
    unsetenv("TESS_EMULATED_OWN_BITS");
}

/* The list has a tile of 72 MiB here for what cuDNN's backward pass keeps, whoever computes it (test_sdpa_emulated has
 * the library): the bits are the same where its place is one among few. */
TEST(attention_of_more_than_its_scratch)
{
    static const char shape[] = "bf16.enabled=true model.n_embd=72 model.n_head=9 model.n_layer=1 model.attn_pdrop=0 "
                                "model.n_positions=2048 data.seq_length=2048 train_batch_size=1 "
                                "train_micro_batch_size_per_gpu=1 steps=2";
    char capped[400];
    static struct figures whole, tight;
    snprintf(capped, sizeof capped, "%s memory.gpu=256MiB", shape);
    small_runs = true;
    train("wide", "", shape, &whole);
    train("wide_capped", "", capped, &tight);
    compare(&tight, &whole, 0);
    small_runs = false;
}

/* A frozen base in 4 or 8 bits, whose codes move as all tiles do. */
TEST(a_base_in_few_bits)
{
    setenv("TESS_EMULATED_OWN_BITS", "1", true);
    static struct figures first, again, cpu;
    static const char *const how[][2] = {
        {"lora.base=nf4 bf16.enabled=true", "memory.gpu=106MiB activation_checkpointing.enabled=true"},
        {"lora.base=int8", "memory.gpu=112MiB memory.cpu=48MiB memory.path="},
    };
    run("base", "", "model.n_embd=512 steps=1");
    for (int k = 0; k < 2; k++) {
        char set[300], more[500];
        snprintf(set, sizeof set, "model=%s/base/model lora.r=4 lora.targets=all-linear %s", dir, how[k][0]);
        snprintf(more, sizeof more, "%s %s%s", set, how[k][1], k ? dir : "");
        train("first", "", set, &first);
        train("again", k ? "STARPU_NCPU=2" : "", more, &again);
        compare(&again, &first, 0);
        train("cpu", "STARPU_NCUDA=0", set, &cpu);
        compare(&first, &cpu, k ? 1e-4 : 2e-2);
    }
    unsetenv("TESS_EMULATED_OWN_BITS");
}

/* Half of the steps, and the others from the checkpoint, into the same file of metrics. */
TEST(over_a_checkpoint)
{
    static struct figures whole, parts;
    char set[200];
    train("whole", "", "", &whole);
    for (int part = 0; part < 2; part++) {
        int n = snprintf(set, sizeof set, "memory.gpu=%s checkpoint.dir=%s/ck ", part ? "2GiB" : "115MiB", dir);
        if (part) snprintf(set + n, sizeof set - (size_t)n, "--resume");
        if (!part) snprintf(set + n, sizeof set - (size_t)n, "checkpoint.every=%d steps=%d", STEPS / 2, STEPS / 2);
        if (part) train("parts", "", set, &parts);
        if (!part) run("parts", "", set);
    }
    compare(&parts, &whole, 0);
}

/* A cap for which there is no step names one for which there is, and that one holds. */
TEST(the_least)
{
    static struct figures first, least;
    char command[700], set[96], mib[16] = "";
    snprintf(command, sizeof command,
             "%s train %s/run.json output=%s/small memory.gpu=20MiB 2>&1 | sed -n 's/.*(memory.gpu=\\([0-9]*\\)MiB "
             "would do)/\\1/p'",
             getenv("TESSERA") ? getenv("TESSERA") : "tessera", dir, dir);
    FILE *said = popen(command, "r");
    CHECK(said && fgets(mib, sizeof mib, said));
    if (said) pclose(said);
    CHECK(atoi(mib) > 64);
    snprintf(set, sizeof set, "memory.gpu=%dMiB", atoi(mib));
    train("least", "", set, &least);
    train("first", "", "", &first);
    compare(&least, &first, 0);
}

#ifdef TESS_EMULATED_GPU
/* Runs a command of this program's; its output, as far as there is room. */
static int said(const char *environment, const char *arguments, char *text, size_t room)
{
    char command[900];
    snprintf(command, sizeof command, "%s %s %s 2>&1", environment, getenv("TESSERA") ? getenv("TESSERA") : "tessera",
             arguments);
    FILE *f = popen(command, "r");
    const size_t n = f ? fread(text, 1, room - 1, f) : 0;
    text[n] = 0;
    const int status = f ? pclose(f) : -1;
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static const char two[] = "TESS_EMULATED_GPUS=2 mpirun --oversubscribe -n 2";
static const char tiny[] = "model.n_embd=64 model.n_layer=1 steps=2 data.seq_length=64";

/* A run of `steps`, each of which has another seed; its losses and norms, a line a step. */
enum { SEED_STEPS = 50 };
static int train_seeds(const char *environment, const char *settings, int steps, char text[SEED_STEPS][80])
{
    char line[4096], set[200];
    int n = 0;
    snprintf(set, sizeof set, "%s %s steps=%d", tiny, settings, steps);
    forget("seeds");
    run("seeds", environment, set);
    snprintf(line, sizeof line, "%s/seeds/metrics.jsonl", dir);
    FILE *f = fopen(line, "r");
    CHECK(f);
    while (f && n < SEED_STEPS && fgets(line, sizeof line, f)) {
        const char *loss = strstr(line, "\"loss\":"), *norm = strstr(line, "\"grad_norm\":");
        CHECK(loss && norm);
        if (!loss || !norm) break;
        snprintf(text[n++], sizeof *text, "%.*s %.*s", (int)strcspn(loss, ","), loss, (int)strcspn(norm, ","), norm);
    }
    if (f) fclose(f);
    CHECK_EQ(n, steps);
    return n;
}

/* The order of copies and bodies on their streams never shows: each step draws another, and has the bits of a run that
 * uses no GPU. */
TEST(any_order)
{
    static char cpu[2][SEED_STEPS][80], gpu[SEED_STEPS][80];
    const int seeds = getenv("TESS_SEEDS") ? atoi(getenv("TESS_SEEDS")) : 24;
    const int steps = seeds < 2 * SEED_STEPS ? (seeds + 1) / 2 : SEED_STEPS;
    char environment[160];
    for (int gpus = 1; gpus <= 2; gpus++) {
        snprintf(environment, sizeof environment, "STARPU_NCUDA=0 %s", gpus == 2 ? two : "");
        train_seeds(environment, "", steps, cpu[gpus - 1]);
    }
    for (int first = 0, turn = 0; first < seeds && !check_failures; first += steps, turn++)
        for (int gpus = 1; gpus <= 2 && !check_failures; gpus++) {
            snprintf(environment, sizeof environment, "TESS_EMULATED_SEED=%d %s", first, gpus == 2 ? two : "");
            const int n =
                train_seeds(environment, turn % 2 ? "memory.gpu=104MiB parallel.carrier=mpi" : "", steps, gpu);
            for (int k = 0; k < n && !check_failures; k++) CHECK_STR(gpu[k], cpu[gpus - 1][k]);
            if (check_failures) printf("seeds from %d with %d GPU%s\n", first, gpus, gpus == 1 ? "" : "s");
            if (seeds > 100 && !check_failures) printf("%d seeds with %d\n", first + steps, gpus);
            fflush(stdout);
        }
}

/* ---- CUDA graphs ---- */

/* The digest of what a run wrote, and what the emulated GPU says of its launches. */
struct graphed {
    char weights[65];
    long launches, graphs, set;
};

static void train_graphed(const char *name, const char *fault, const char *settings, struct graphed *of)
{
    char environment[300], path[128], all[400], line[400] = "";
    static struct figures text;
    snprintf(path, sizeof path, "%s/%s.report", dir, name);
    unlink(path);
    snprintf(environment, sizeof environment, "TESS_EMULATED_REPORT=%s TESS_EMULATED_FAULT='%s'", path, fault);
    snprintf(
        all, sizeof all,
        "gpu_graphs=true %s model.n_layer=2 steps=6 scheduler.type=WarmupLR scheduler.params.warmup_num_steps=5 %s",
        tiny, settings);
    train(name, environment, all, &text);
    memset(of, 0, sizeof *of);
    FILE *f = fopen(path, "r");
    const char *at = f && fgets(line, sizeof line, f) ? strstr(line, "launches ") : NULL;
    if (f) fclose(f);
    CHECK(at && sscanf(at, "launches %ld, graphs %ld, set %ld", &of->launches, &of->graphs, &of->set) == 3);
    snprintf(line, sizeof line, "sha256sum %s/%s/model/model.safetensors", dir, name);
    f = popen(line, "r");
    CHECK(f && fscanf(f, "%64s", of->weights) == 1);
    if (f) pclose(f);
}

/* What a graph was captured with is another step's: the bits are those of launches one by one only if all is set that a
 * step changes: dropout's seed, a schedule's rate, the factor of clipping, scales. Under a cap there are single tasks,
 * and none is worth a graph. */
TEST(graphs_have_the_same_bits)
{
    static const char *const how[] = {
        "", "bf16.enabled=true", "fp16.enabled=true gradient_clipping=0.1",
        "eval_every=2 data.valid=", "model.n_embd=256 model.n_layer=3 data.seq_length=128 memory.gpu=115MiB"};
    char settings[300];
    small_runs = true;
    for (size_t k = 0; k < sizeof how / sizeof *how; k++) {
        struct graphed with, without;
        const char *more = strstr(how[k], "valid") ? dir : "", *file = *more ? "/text.txt" : "";
        snprintf(settings, sizeof settings, "%s%s%s", how[k], more, file);
        train_graphed("with", "", settings, &with);
        snprintf(settings, sizeof settings, "%s%s%s gpu_graphs=false", how[k], more, file);
        train_graphed("without", "", settings, &without);
        printf("%s: %ld launches, with graphs %ld and %ld graphs, arguments set of %ld\n", how[k], without.launches,
               with.launches, with.graphs, with.set);
        CHECK_STR(with.weights, without.weights);
        CHECK_EQ(without.graphs, 0);
        CHECK_EQ(with.launches, strstr(how[k], "memory") ? without.launches : with.launches);
        if (strstr(how[k], "memory")) continue;
        CHECK(with.graphs > 0 && with.set > 0 && with.launches + with.graphs < without.launches);
        if (k == 0) CHECK(2 * (with.launches + with.graphs) < without.launches); /* of six steps the first has none */
    }
    small_runs = false;
}

/* Whatever CUDA refuses, tasks launch one by one, and a line says so. Were arguments not set, the bits would be others:
 * so the emulated GPU does keep what it captured. */
TEST(graphs_that_are_refused)
{
    static const char *const fault[] = {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate",
                                        "cudaGraphLaunch", "cudaGraphExecKernelNodeSetParams"};
    struct graphed first, again;
    char name[80], text[9000];
    small_runs = true;
    train_graphed("granted", "", "", &first);
    for (size_t k = 0; k < sizeof fault / sizeof *fault; k++) {
        const bool sets = strstr(fault[k], "SetParams");
        snprintf(name, sizeof name, "%s 1", fault[k]);
        train_graphed("refused", name, "", &again);
        CHECK(strcmp(again.weights, first.weights) ? sets : !sets);
        snprintf(text, sizeof text, "%s/refused.log", dir);
        FILE *f = fopen(text, "r");
        text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
        if (f) fclose(f);
        const char *line = strstr(text, "GPU: kernels of a task are launched one by one");
        CHECK(sets ? !line : line && !strstr(strchr(line, '\n'), "launched one by one"));
        if (check_failures) printf("%s\n", fault[k]);
    }
    small_runs = false;
}

/* Stages, and what stands beside them, by groups of NCCL from GPU to GPU (tests/gpu/nccl_over_mpi.c): the bits of
 * messages through RAM, and an end. With tensor parallelism GPUs have micro-batches in pairs, and the bits of cores,
 * which have not. */
TEST(stages_over_nccl)
{
    static const struct {
        int ranks;
        const char *grid;
    } runs[] = {{2, "parallel.pipeline=2"},
                {2, "parallel.pipeline=2 parallel.interleave=2"},
                {4, "parallel.pipeline=4"},
                {2, "parallel.tensor=2"},
                {4, "parallel.pipeline=2 parallel.tensor=2"},
                {4, "parallel.pipeline=2 parallel.interleave=2 memory.gpu=112MiB"}};
    static struct figures by_nccl, by_mpi;
    char environment[100], settings[300];
    small_runs = true;
    for (size_t k = 0; k < sizeof runs / sizeof *runs && !check_failures; k++) {
        snprintf(environment, sizeof environment, "TESS_EMULATED_GPUS=%d timeout 200 mpirun --oversubscribe -n %d",
                 runs[k].ranks, runs[k].ranks);
        for (int nccl = 0; nccl < 2; nccl++) {
            snprintf(settings, sizeof settings, "%s model.n_layer=4 train_micro_batch_size_per_gpu=1 %s %s", tiny,
                     runs[k].grid, nccl ? "parallel.carrier=nccl" : "parallel.carrier=mpi");
            train("stages", environment, settings, nccl ? &by_nccl : &by_mpi);
        }
        compare(&by_nccl, &by_mpi, 0);
        if (strstr(runs[k].grid, "tensor")) {
            snprintf(environment, sizeof environment, "STARPU_NCUDA=0 timeout 200 mpirun --oversubscribe -n %d",
                     runs[k].ranks);
            train("stages", environment, strcat(settings, " parallel.carrier=mpi"), &by_mpi);
            compare(&by_nccl, &by_mpi, 0);
        }
        if (check_failures) printf("%d ranks, %s\n", runs[k].ranks, runs[k].grid);
    }
    small_runs = false;
}

/* Tasks of a traced step by a part of their codelet's name: how many, and, unless NULL, when the first begins and the
 * last ends; of those before `until` alone. */
static int tasks_of(const char *name, double until, double *begins, double *ends)
{
    char path[128], line[4096];
    double from, dur;
    int n = 0;
    snprintf(path, sizeof path, "%s/traced/trace.json", dir);
    FILE *f = fopen(path, "r");
    CHECK(f);
    while (f && fgets(line, sizeof line, f)) {
        const char *ts = strstr(line, "\"ts\":"), *is = strstr(line, "\"cat\":\"task\",\"name\":\"");
        if (!ts || !is || sscanf(ts, "\"ts\":%lf,\"dur\":%lf", &from, &dur) != 2 || from >= until) continue;
        const char *found = strstr(is, name);
        if (!found || found > is + strcspn(is, "{")) continue;
        if (begins && (n == 0 || from < *begins)) *begins = from;
        if (ends && (n == 0 || from + dur > *ends)) *ends = from + dur;
        n++;
    }
    if (f) fclose(f);
    return n;
}

/* With clipping, which is the default, states in RAM are updated while the GPU goes on with the next forward pass: what
 * may be seen of one of several runs alone, where other programs hold up the thread that is the GPU's. */
TEST(updates_do_not_hold_up_the_gpu)
{
    static struct figures late, cpu;
    const char *const offload = "zero_optimization.offload_optimizer.device=cpu --trace 3:3";
    enum { TRIES = 4 };
    double begins = 0, updated = 0;
    for (int k = 0; k < TRIES && !(begins < updated); k++) {
        double ends = 0;
        train("traced", "", offload, &late);
        CHECK(tasks_of("_forward", INFINITY, &begins, &ends) > 0);
        const int updates = tasks_of("adamw", INFINITY, NULL, &updated);
        CHECK(updates > 30);
        CHECK_EQ(tasks_of("adamw", ends, NULL, NULL), updates); /* none is behind the forward pass, where it would be */
    }
    CHECK(begins < updated); /* waited for */
    train("alone", "STARPU_NCUDA=0", "", &cpu);
    compare(&late, &cpu, 0);
}

/* Contexts, and what other programs hold, are not the plan's. Of 136 MiB that are free it has 128, which StarPU would
 * not have granted. */
TEST(memory_that_others_hold)
{
    static struct figures first, again;
    train("first", "", "", &first);
    train("again", "TESS_EMULATED_GPU=780", "", &again);
    compare(&again, &first, 0);
    train("again", "TESS_EMULATED_GPU=4096 TESS_EMULATED_BESIDE=3360", "", &again);
    compare(&again, &first, 0);
}

/* A rank touches its own device alone, and has its kernels loaded before it sends. */
TEST(devices_of_ranks)
{
    char environment[200], path[100], line[200], want[40];
    int lines = 0, seen[2] = {0};
    snprintf(path, sizeof path, "%s/report", dir);
    snprintf(environment, sizeof environment, "TESS_EMULATED_REPORT=%s %s", path, two);
    small_runs = true;
    static struct figures text;
    train("calibrates", environment, tiny, &text); /* StarPU tries all devices, once for a machine */
    unlink(path);
    train("ranks", environment, tiny, &text);
    small_runs = false;
    FILE *f = fopen(path, "r");
    CHECK(f);
    while (f && fgets(line, sizeof line, f)) {
        lines++;
        CHECK_HAS(line, "modules EAGER");
        CHECK_HAS(line, "pageable 0,");
        for (int k = 0; k < 2; k++) {
            snprintf(want, sizeof want, "contexts %d,", k);
            seen[k] += strstr(line, want) == line;
        }
    }
    if (f) fclose(f);
    CHECK_EQ(lines, 2);
    CHECK_EQ(seen[0], 1);
    CHECK_EQ(seen[1], 1);
}

/* The first run on a machine measures the bus of all devices, which no rank's tiles are planned beside: one measures,
 * and nobody takes its memory before. */
TEST(the_first_run_on_a_machine)
{
    char text[4000], environment[400], arguments[300];
    snprintf(environment, sizeof environment,
             "TESS_EMULATED_GPU=1300 STARPU_HOME=%s/fresh XDG_CACHE_HOME=%s/fresh TESS_EMULATED_TOGETHER=%s/devices "
             "TESS_EMULATED_LATE=1 %s",
             dir, dir, dir, two);
    snprintf(arguments, sizeof arguments, "train %s/run.json output=%s/fresh-run %s", dir, dir, tiny);
    CHECK_EQ(said(environment, arguments, text, sizeof text), 0);
    if (check_failures) printf("%s", text);
}

/* Programs that start at once where StarPU measured nothing yet: one measures, the others wait and read. */
TEST(first_starts_at_once)
{
    enum { TURNS = 3 };
    char command[1500];
    for (int turn = 0; turn < TURNS; turn++) {
        int n = snprintf(command, sizeof command,
                         "export STARPU_HOME=%s/home%d XDG_CACHE_HOME=%s/home%d; mkdir -p $XDG_CACHE_HOME; ", dir, turn,
                         dir, turn);
        for (int k = 0; k < 3; k++)
            n += snprintf(command + n, sizeof command - (size_t)n,
                          "%s train %s/run.json output=%s/at_once%d %s >%s/at_once%d.log 2>&1 & p%d=$!; ",
                          getenv("TESSERA") ? getenv("TESSERA") : "tessera", dir, dir, k, tiny, dir, k, k);
        snprintf(command + n, sizeof command - (size_t)n,
                 "wait $p0 && wait $p1 && wait $p2 || { tail -n 3 %s/at_once?.log; false; }", dir);
        CHECK_EQ(system(command), 0);
    }
}

/* What is not free, no cap gives. */
TEST(memory_that_is_not_free)
{
    char text[4000], arguments[300];
    snprintf(arguments, sizeof arguments, "train %s/run.json output=%s/beside", dir, dir);
    CHECK_EQ(said("TESS_EMULATED_GPU=4096 TESS_EMULATED_BESIDE=3436", arguments, text, sizeof text), 2);
    CHECK_HAS(text, "error: GPU: 60.0 MiB of its memory is free, a run gets too little");
    CHECK_HAS(text, "end other programs on it");
}

/* A command that plans nothing makes no context. */
TEST(a_command_without_a_plan)
{
    char text[9000], environment[200], path[100], line[200] = "contexts,";
    snprintf(path, sizeof path, "%s/none", dir);
    snprintf(environment, sizeof environment, "TESS_EMULATED_REPORT=%s", path);
    CHECK_EQ(said(environment, "info", text, sizeof text), 0);
    FILE *f = fopen(path, "r");
    if (f && fgets(line, sizeof line, f)) CHECK_HAS(line, "contexts,");
    if (f) fclose(f);
}

TEST(two_devices_of_a_process)
{
    char text[4000], arguments[300];
    snprintf(arguments, sizeof arguments, "train %s/run.json output=%s/both %s", dir, dir, tiny);
    CHECK_EQ(said("TESS_EMULATED_GPUS=2", arguments, text, sizeof text), 2);
    CHECK_HAS(text, "error: GPU: this process has 2");
    CHECK_HAS(text, "mpirun -n 2");
    CHECK_EQ(said("TESS_EMULATED_GPUS=4 mpirun --oversubscribe -n 2", arguments, text, sizeof text), 2);
    CHECK_HAS(text, "this process has 2");
    CHECK_HAS(text, "mpirun -n 4");
    CHECK_EQ(said("TESS_EMULATED_GPUS=2 STARPU_NCUDA=1", arguments, text, sizeof text), 0);
    /* Whatever computes: what was trained is there now. The command that is named does it. */
    static const char *const command[] = {"bench %s/run.json --steps 1 %s",
                                          "eval %s/both/model data.valid=%s/text.txt data.seq_length=64",
                                          "generate %s/both/model --prompt fox -n 2"};
    for (int k = 0; k < 3; k++) {
        snprintf(arguments, sizeof arguments, command[k], dir, k ? dir : tiny);
        CHECK_EQ(said("TESS_EMULATED_GPUS=2", arguments, text, sizeof text), 2);
        CHECK_HAS(text, "error: GPU: this process has 2");
        CHECK_HAS(text, "mpirun -n 2");
        CHECK_EQ(said(two, arguments, text, sizeof text), 0);
    }
}

/* Whatever the driver refuses, and whenever: a run has its bits, or ends in one line that says why, and soon. */
TEST(what_the_driver_refuses)
{
    static const struct {
        const char *fault, *says; /* NULL: the run goes on without */
    } cases[] = {
        {"cudaHostAlloc 1", "no pinned memory left"},
        {"cudaMalloc 1", "its memory leaves no 64.0 MiB for the kernels' scratch"},
        {"cudaMalloc 2", "left in one piece"},
        {"cudaMalloc 3", "its memory leaves StarPU no "},
        {"cudaMalloc 4", NULL},
        {"cudaHostRegister 1", NULL},
        {"cudaHostRegister 4", NULL},
    };
    char text[9000], environment[200], arguments[300];
    static struct figures first, again;
    small_runs = true;
    snprintf(arguments, sizeof arguments, "%s memory.gpu=104MiB", tiny);
    train("granted", "", arguments, &first);
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        snprintf(environment, sizeof environment, "TESS_EMULATED_FAULT='%s' timeout 100", cases[k].fault);
        snprintf(arguments, sizeof arguments, "%s memory.gpu=104MiB", tiny);
        if (!cases[k].says) {
            train("refused", environment, arguments, &again);
            compare(&again, &first, 0);
            continue;
        }
        snprintf(arguments, sizeof arguments, "train %s/run.json output=%s/refused memory.gpu=104MiB %s", dir, dir,
                 tiny);
        const int status = said(environment, arguments, text, sizeof text);
        const char *line = strstr(text, "tessera: error: ");
        CHECK(status == 1 || status == 2);
        CHECK_HAS(line, cases[k].says);
        CHECK(line && !strchr(line, '\n')[1]);
        if (check_failures) printf("%s:\n%s", cases[k].fault, text);
    }
    small_runs = false;
}

/* A GPU that falls off the bus, and one on which nothing ends any more, amid a run that has a checkpoint. */
TEST(a_gpu_that_is_lost_amid_a_run)
{
    static const struct {
        const char *fault, *says;
    } cases[] = {{"lost 900", "GPU: CUDA-capable device(s) is/are busy or unavailable (error 46 of CUDA, met in"},
                 {"stands 900", "nothing moved and no task ended for 3 s"}};
    for (int k = 0; k < 2; k++) {
        char text[9000], environment[200], arguments[400], path[128];
        snprintf(environment, sizeof environment, "TESS_EMULATED_FAULT='%s' timeout 100", cases[k].fault);
        snprintf(arguments, sizeof arguments,
                 "train %s/run.json output=%s/lost%d checkpoint.dir=%s/lost%d/ck checkpoint.every=1 patience=3 %s "
                 "steps=100",
                 dir, dir, k, dir, k, tiny);
        CHECK_EQ(said(environment, arguments, text, sizeof text), 1);
        const char *line = strstr(text, "tessera: error: ");
        CHECK_HAS(line, cases[k].says);
        CHECK_HAS(line, "the newest checkpoint is ");
        CHECK(line && !strchr(line, '\n')[1]);
        if (check_failures) printf("%s:\n%s", cases[k].fault, text);
        if (k == 0) continue;
        snprintf(path, sizeof path, "%s/lost%d/standstill.txt", dir, k);
        FILE *f = fopen(path, "r");
        text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
        if (f) fclose(f);
        CHECK_HAS(text, ": runs\n");
        CHECK_HAS(text, "memory CUDA 0: StarPU counts ");
    }
}

/* What the driver says is said on. */
TEST(a_driver_that_is_too_old)
{
    char text[4000], arguments[300];
    snprintf(arguments, sizeof arguments, "train %s/run.json output=%s/old %s", dir, dir, tiny);
    CHECK_EQ(said("TESS_EMULATED_ERROR=35", arguments, text, sizeof text), 0);
    CHECK_HAS(text, "GPU: none is used, since CUDA says \"CUDA driver version is insufficient");
    CHECK_HAS(text, "12.4");
    CHECK_EQ(said("TESS_EMULATED_ERROR=35", "info", text, sizeof text), 0);
    CHECK_HAS(text, "but CUDA says \"CUDA driver version is insufficient");
}

/* StarPU binds a CPU worker to the core of the GPU's where it is told of as many as there are cores. */
TEST(a_core_for_the_worker_of_a_gpu)
{
    const int cores = tess_share_read()->cores;
    if (getenv("STARPU_NCPU")) SKIP("STARPU_NCPU says how many workers there are");
    CHECK_EQ(tess_cores(), cores > 1 ? cores - 1 : 1);
}
#endif

int main(int argc, char **argv)
{
    char command[64];
    if (tess_gpus() == 0) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", tess_gpu_support());
        return 77;
    }
    if (!mkdtemp(dir)) return 1;
    write_files();
    int status = check_main(argc, argv);
    snprintf(command, sizeof command, "rm -rf %s", dir);
    if (status == 0 && system(command)) return 1;
    return status;
}
