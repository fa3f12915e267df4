/* tessera simulate: a step on a machine that is not here. The step itself is made by tessera-simulator, the same
 * product over SimGrid: here its arguments are looked at, SimGrid's files are written, and what it leaves behind is
 * cleared. */
#include "models/text/base/text.h"
#include "tools/commands/cmd.h"
#include "tools/simulate/simulation.h"
#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { FOLD = CMD_MACHINE_OPTIONS, STEPS, TRACE, SWEEP, OPTIONS_COUNT };
static option options[OPTIONS_COUNT] = {
    CMD_ELSEWHERE,
    [FOLD] = {"--fold", "data,tensor",
              "one rank is simulated for all that have the same to do: of data parallelism, of "
              "tensor parallelism, or auto, both; none if not given",
              NULL},
    [STEPS] = {"--steps", "N", "how many steps are simulated behind the first one; 2 if not given", NULL},
    [TRACE] = {"--trace", "A:B", "write what happens in steps A to B to OUTPUT/trace.json: trace.steps=[A,B]", NULL},
    [SWEEP] = {"--sweep", "KEY=V,V,... [KEY=...]",
               "simulate every combination of these values, and name the best that fits", NULL}};

static const char *const required[] = {"model", NULL};
static const tess_config_use use = {
    "model seed deterministic data.seq_length train_batch_size train_micro_batch_size_per_gpu "
    "gradient_accumulation_steps optimizer optimizer_states gradient_clipping bf16 fp16 amp torch_autocast memory "
    "zero_optimization aio activation_checkpointing parallel output trace",
    required};

/* Beside this program where it was built, or where it is installed. A new string; NULL: there is none. */
static char *find_simulator(void)
{
    static const char *const from[] = {"", "simulate/", "../libexec/tessera/"};
    char self[4096];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return NULL;
    self[n] = 0;
    const char *slash = strrchr(self, '/');
    for (size_t i = 0; i < sizeof from / sizeof *from && slash; i++) {
        char *path = tess_format("%.*s/%stessera-simulator", (int)(slash - self), self, from[i]);
        if (!access(path, X_OK)) return path;
        free(path);
    }
    return NULL;
}

/* ---- what it says ---- */

/* Hands on what we say there, but for the line of an error, which goes to `wrong`; of the others' lines, SimGrid's and
 * StarPU's, `last` is the last one. */
static void hand_on(FILE *said, char wrong[1024], char last[1024])
{
    static const char error[] = "tessera: error: ";
    char line[1024];
    *wrong = *last = 0;
    rewind(said);
    while (fgets(line, sizeof line, said)) {
        line[strcspn(line, "\n")] = 0;
        if (!strncmp(line, error, sizeof error - 1))
            strcpy(wrong, line + sizeof error - 1);
        else if (!strncmp(line, "tessera: ", 9))
            fprintf(stderr, "%s\n", line);
        else if (*line)
            strcpy(last, line);
    }
}

static tess_status judge(int status, FILE *said)
{
    char wrong[1024], last[1024];
    fflush(stdout);
    hand_on(said, wrong, last);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return TESS_OK;
    if (WIFEXITED(status) && WEXITSTATUS(status) == TESS_STANDS_STILL)
        return tess_error(TESS_FAILED, "simulation",
                          "stands still: tasks are left that no worker takes (another STARPU_SCHED may)");
    char *what = strstr(wrong, ": ");
    if (!what && !*last && WIFSIGNALED(status))
        return tess_error(TESS_FAILED, "simulation",
                          WTERMSIG(status) == SIGKILL ? "was killed (out of memory? the kernel's log says more)"
                                                      : "was ended by signal %d",
                          WTERMSIG(status));
    if (!what) return tess_error(TESS_FAILED, "simulation", "broke off%s%s", *last ? ": " : "", last);
    *what = 0;
    return tess_error(WIFEXITED(status) ? (tess_status)WEXITSTATUS(status) : TESS_FAILED, wrong, "%s", what + 2);
}

/* ---- starting it ---- */

/* Whoever ends this program ends the simulator as well, and what lies in its home goes; then this ends by the signal.
 */
static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
enum { ENDS = sizeof ends / sizeof *ends };
static volatile sig_atomic_t ended_by;
static volatile pid_t simulates;

static void end(int number)
{
    ended_by = number;
    if (simulates > 0) kill(simulates, SIGKILL);
}

static void set_ends(void (*to)(int))
{
    for (int i = 0; i < ENDS; i++) signal(ends[i], to);
}

static void enter(const char *home, FILE *said)
{
    /* What is said of this machine; the policy is also said of that one. */
    static const char *const theirs[] = {
        "XDG_CACHE_HOME",       "STARPU_PERF_MODEL_DIR", "STARPU_PERF_MODEL_PATH",  "STARPU_NCPU",
        "STARPU_NCPUS",         "STARPU_RESERVE_NCPU",   "STARPU_WORKERS_CPUID",    "STARPU_WORKERS_COREID",
        "STARPU_NCUDA",         "STARPU_WORKERS_CUDAID", "STARPU_NWORKER_PER_CUDA", "STARPU_LIMIT_CPU_MEM",
        "STARPU_LIMIT_CUDA_MEM"};
    for (size_t i = 0; i < sizeof theirs / sizeof *theirs; i++) unsetenv(theirs[i]);
    setenv("STARPU_HOME", home, 1);
    setenv("STARPU_HOSTNAME", "simulated", 1);
    setenv("STARPU_CATCH_SIGNALS", "0", 1); /* its handler of a crash and SimGrid's would call each other for ever */
    dup2(fileno(said), STDERR_FILENO);
    set_ends(SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
}

static tess_status start(const char *simulator, char **arguments, const char *home, FILE *said)
{
    int status;
    fflush(stdout);
    const pid_t child = fork();
    if (child < 0) return tess_error(TESS_FAILED, simulator, "cannot be started: %s", strerror(errno));
    if (child == 0) {
        enter(home, said);
        execv(simulator, arguments);
        fprintf(stderr, "%s\n", strerror(errno));
        _exit(127);
    }
    simulates = child;
    if (ended_by) kill(child, SIGKILL);
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) continue;
    simulates = 0;
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGPIPE) { /* whoever read it has left */
        ended_by = SIGPIPE;
        return TESS_OK;
    }
    return judge(status, said);
}

static int take_away(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static tess_status write_simulation(const tess_simulation *s, const char *path)
{
    FILE *f = fopen(path, "w");
    const bool failed = !f || fwrite(s, sizeof *s, 1, f) != 1;
    if ((f && fclose(f)) || failed)
        return tess_error(TESS_FAILED, path, "cannot be written: %s (set TMPDIR)", strerror(errno));
    return TESS_OK;
}

tess_status cmd_simulation_run(const tess_simulation *s, int argc, char **argv)
{
    enum { OWN = 3 }; /* the program, what quiets SimGrid, and the file, before those that are handed on */
    char quiet[] = "--log=root.thres:error", **arguments = tess_alloc(((size_t)argc + OWN + 1) * sizeof *arguments);
    const char *tmp = getenv("TMPDIR");
    TESS_FREED char *simulator = find_simulator(),
                    *home = tess_format("%s/tessera-simulate-XXXXXX", tmp && *tmp ? tmp : "/tmp"), *file = NULL;
    FILE *said = NULL;
    tess_status status = TESS_OK;
    bool made = false;
    arguments[1] = quiet;
    memcpy(arguments + OWN, argv, (size_t)argc * sizeof *arguments);
    set_ends(end);
    if (!simulator)
        status = tess_error(TESS_INVALID, "simulate",
                            "this build has no tessera-simulator (tools/starpu simgrid makes "
                            "the StarPU that it is built with)");
    else if (!(made = mkdtemp(home)))
        status = tess_error(TESS_FAILED, home, "cannot be made: %s (set TMPDIR)", strerror(errno));
    else if (!(said = cmd_scratch()))
        status = tess_error(TESS_FAILED, "simulation", "no file in RAM for its output: %s", strerror(errno));
    if (status == TESS_OK) status = tess_platform_write(&s->machine, s->ranks_here, s->fold, home);
    file = tess_format("%s/simulation", home);
    if (status == TESS_OK) status = write_simulation(s, file);
    if (status == TESS_OK) {
        arguments[0] = simulator;
        arguments[2] = file;
        status = start(simulator, arguments, home, said);
    }
    if (said) fclose(said);
    if (made) nftw(home, take_away, 16, FTW_DEPTH | FTW_PHYS);
    set_ends(SIG_DFL);
    if (ended_by) raise(ended_by);
    free(arguments);
    return status;
}

static tess_status check_ranks(const tess_simulated *m, const char *file, int ranks_here)
{
    tess_simulated part = *m;
    const char *policies = getenv("STARPU_SCHED_LIB");
    if (policies && *policies && m->nodes * ranks_here > 1)
        return tess_error(TESS_INVALID, "STARPU_SCHED_LIB",
                          "%s and %d ranks, and each has a StarPU of its own here (--nodes 1 --ranks-per-node 1)",
                          policies, m->nodes * ranks_here);
    if (m->nodes > 1 && !m->net.there)
        return tess_error(TESS_INVALID, file, "%d nodes without a network between them (\"network\" describes one)",
                          m->nodes);
    if (m->net.group && m->nodes % (m->net.below * m->net.group))
        return tess_error(TESS_INVALID, file,
                          "%d nodes, and %d of them are a group (network.nodes_per_switch x switches_per_group)",
                          m->nodes, m->net.below * m->net.group);
    if (m->net.below && m->nodes % m->net.below)
        return tess_error(TESS_INVALID, file, "%d nodes, and %d of them share each switch (network.nodes_per_switch)",
                          m->nodes, m->net.below);
    return tess_machine_part(&part, ranks_here);
}

/* Which ranks are simulated. Whether the grid divides them is said where it is made. */
static tess_status read_fold(const option *o, const tess_config *c, int ranks, int ranks_here, tess_fold *fold)
{
    const int tensor = (int)c->parallel.tensor, model = tensor * (int)c->parallel.pipeline;
    bool data = false, tensors = false;
    *fold = (tess_fold){ranks, 1, 1};
    if (!o->value || !strcmp(o->value, "none")) return TESS_OK;
    for (const char *at = o->value;; at++) {
        const size_t n = strcspn(at, ",");
        const bool is_auto = n == 4 && !strncmp(at, "auto", n), is_data = n == 4 && !strncmp(at, "data", n),
                   is_tensor = n == 6 && !strncmp(at, "tensor", n);
        if (!is_auto && !is_data && !is_tensor)
            return tess_error(TESS_INVALID, "command line",
                              "%s: %.60s, expected data, tensor, both with a comma, auto or none", o->name, o->value);
        data |= is_data || is_auto;
        tensors |= is_tensor || is_auto;
        at += n;
        if (!*at) break;
    }
    if (ranks == 1)
        return tess_error(TESS_INVALID, "command line",
                          "%s: there is one rank, and none that has the same to do (--nodes and --ranks-per-node say "
                          "how many)",
                          o->name);
    if (ranks % model) return TESS_OK;
    fold->model = model;
    const tess_grid grid = {.data = ranks / model,
                            .pipeline = (int)c->parallel.pipeline,
                            .tensor = tensor,
                            .states = c->parallel.state_shares,
                            .group = tess_config_group(c)};
    if (data && c->parallel.sequence > 1)
        return tess_error(TESS_INVALID, "command line",
                          "%s: data, but ranks share sequences, and each has others than its neighbour "
                          "(parallel.sequence=1, or --fold tensor)",
                          o->name);
    if (data)
        fold->data = c->parallel.expert > 1 || c->parallel.shares ? grid.data : tess_grid_alike(&grid, ranks_here);
    if (tensors) fold->tensor = tensor;
    return TESS_OK;
}

/* The machine and the configuration are read here and by the simulator, in a sweep once more by each row, and a pipe
 * can be read once: what comes out of it is kept in RAM, under a name that holds here and below. */
static tess_status hold_pipe(char **argument, const char *path, char name[64])
{
    char text[4096];
    size_t n;
    FILE *from = fopen(path, "r");
    const int held = memfd_create("held", 0);
    FILE *to = held < 0 ? NULL : fdopen(dup(held), "w");
    while (from && to && (n = fread(text, 1, sizeof text, from)) > 0 && fwrite(text, 1, n, to) == n) continue;
    const bool failed = !from || !to || ferror(from) || ferror(to) || fflush(to);
    const tess_status status =
        failed ? tess_error(tess_errno_status(errno), path, "cannot be read: %s", strerror(errno)) : TESS_OK;
    if (from) fclose(from);
    if (to) fclose(to);
    snprintf(name, 64, "%.*s/proc/self/fd/%d", (int)(path - *argument), *argument, held);
    *argument = name;
    return status;
}

static tess_status hold_pipes(int argc, char **argv)
{
    static const char machine[] = "--machine=";
    static char name[2][64];
    int held = 0;
    for (int i = 1; i < argc && held < 2; i++) {
        struct stat st;
        const char *path = strncmp(argv[i], machine, sizeof machine - 1) ? argv[i] : argv[i] + sizeof machine - 1;
        if (!stat(path, &st) && S_ISFIFO(st.st_mode)) TESS_TRY(hold_pipe(&argv[i], path, name[held++]));
    }
    return TESS_OK;
}

static tess_status check_alone(void)
{
    if (tess_ranks() == 1) return TESS_OK;
    return tess_error(TESS_INVALID, "command line", "%d ranks, and one process simulates (start it alone)",
                      tess_ranks());
}

tess_status cmd_simulation_read(const option *o, tess_simulation *s)
{
    double nodes = 0, ranks_here = 0;
    tess_simulated *machine = &s->machine;
    TESS_TRY(check_alone());
    TESS_TRY(cmd_whole_number(&o[CMD_NODES], 1, 4096, &nodes));
    TESS_TRY(cmd_whole_number(&o[CMD_RANKS], 1, 256, &ranks_here));
    if (!o[CMD_MACHINE].value)
        return tess_error(TESS_INVALID, "command line",
                          "--machine FILE is missing (tessera info --machine FILE writes "
                          "this one)");
    TESS_TRY(tess_machine_read(o[CMD_MACHINE].value, machine));
    if (o[CMD_NODES].value) machine->nodes = (int)nodes;
    if (!o[CMD_RANKS].value) ranks_here = machine->gpus.count > 1 ? machine->gpus.count : 1;
    s->ranks_here = (int)ranks_here;
    TESS_TRY(check_ranks(machine, o[CMD_MACHINE].value, s->ranks_here));
    tess_ranks_pretend(0, machine->nodes * s->ranks_here); /* the configuration is theirs */
    return TESS_OK;
}

static tess_status begin(int argc, char **argv, bool *done)
{
    TESS_TRY(check_alone());
    TESS_TRY(hold_pipes(argc, argv));
    *done = cmd_sweeps(argc, argv);
    return *done ? cmd_sweep(argc, argv) : TESS_OK;
}

static tess_status run(int rest, char **argv)
{
    TESS_FREED char *trace = NULL;
    double steps = 2;
    TESS_TRY(cmd_whole_number(&options[STEPS], 1, 1e6, &steps));
    TESS_TRY(cmd_trace(&options[TRACE], &trace));
    if (trace) argv[1 + rest++] = trace; /* one more KEY=VALUE, in a place that the option left free */
    tess_simulation simulation = {.steps = (int)steps};
    CMD_FREED tess_config config = {0};
    TESS_TRY(cmd_simulation_read(options, &simulation));
    TESS_TRY(cmd_config(1 + rest, argv, required, &config));
    TESS_TRY(read_fold(&options[FOLD], &config, tess_ranks(), simulation.ranks_here, &simulation.fold));
    TESS_TRY(tess_platform_check(&simulation.machine, simulation.ranks_here, simulation.fold));
    return cmd_simulation_run(&simulation, rest, argv + 1);
}

const command cmd_simulate = {
    .name = "simulate",
    .usage = "simulate CONFIG.json [KEY=VALUE ...] --machine FILE [--nodes N] [--ranks-per-node N] "
             "[--fold data,tensor] [--steps N] [--trace A:B] [--sweep KEY=V,V,...]",
    .summary = "Makes training steps on a machine that is not here, and prints what they take there.",
    CMD_OPTIONS(options),
    .more =
        "The machine is nodes with cores, GPUs, RAM and a drive, and a network between them; docs/simulate.md says\n"
        "what its file has, and how far the figures can be trusted. Keys are set as for train. Nothing of the model "
        "is\n"
        "loaded or computed.\n",
    .use = &use,
    .begin = begin,
    .run = run,
    .ranks = CMD_ALL_RANKS};
