/* tessera-simulator: what tessera simulate starts. It is SimGrid and a list of ranks: the product over SimGrid lies in
 * a library beside it (tools/simulate/program/product.c). Every rank gets a copy of it, with variables of its own, and
 * a simulated thread that calls its main. Copies lie in memory, in files without a name, since a library that is opened
 * twice is loaded once; they are gone with the process.
 *
 *     tessera-simulator FILE CONFIG [KEY=VALUE ...]    FILE holds a tess_simulation
 *
 * Its arguments were looked at by tessera simulate.
 *
 * Why the product itself runs over SimGrid: a model of the step's time beside it would be a second product, wrong
 * wherever it differs. Only runtime/ is compiled again; graph, plan, flow and submission have no second path. Bodies
 * sleep for their time in as many parts as they have: without parts eight cores with one sequence of 1024 tokens would
 * be 5.6 times slower. StarPU over SimGrid as it comes takes 10 ms for a task of 128 cores; tools/simulate/simgrid/
 * and the edits of tools/starpu make that useful. SMPI was left out, because the product needs three reductions, a
 * barrier and a carrier without payloads. Sanitizers do not follow SimGrid's stacks, so the program is not built with
 * them. */
#include "tools/simulate/simulated.h"
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <simgrid/actor.h>
#include <simgrid/engine.h>
#include <simgrid/host.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xbt/config.h>

static tess_simulation simulation;
static tess_cluster cluster = {.of = &simulation};
static int (**entry)(tess_cluster *cluster, int rank, int argc, char **argv);
static int arguments, worst, left; /* ranks that have not come to their end */
static char **argument;

static void fail(const char *where, const char *what)
{
    fprintf(stderr, "tessera: error: %s: %s\n", where, what);
    exit(TESS_FAILED);
}

/* Where all that is left waits for ever SimGrid says so and exits as if all were well. */
static void look(int status, void *unused)
{
    (void)unused;
    if (status || !left) return;
    fflush(stdout);
    _exit(TESS_STANDS_STILL);
}

/* ---- copies of the product ---- */

/* Beside this program. */
static const char *path_of_product(void)
{
    static char path[4200];
    const ssize_t n = readlink("/proc/self/exe", path, 4096);
    char *slash = n > 0 ? (path[n] = 0, strrchr(path, '/')) : NULL;
    if (!slash) fail("simulator", "does not know where it lies");
    strcpy(slash, "/tessera-simulated.so");
    return path;
}

static int copy(int from, off_t bytes)
{
    const int to = memfd_create("rank", MFD_CLOEXEC);
    for (off_t at = 0; to >= 0 && at < bytes;)
        if (sendfile(to, from, &at, (size_t)(bytes - at)) <= 0) fail("simulator", strerror(errno));
    return to;
}

/* A file without a name for each: by its name the loader knows a library that it has. */
static void load(int ranks)
{
    const char *path = path_of_product();
    struct rlimit files;
    struct stat st;
    const int from = open(path, O_RDONLY | O_CLOEXEC);
    if (from < 0 || fstat(from, &st)) fail(path, strerror(errno));
    if (!getrlimit(RLIMIT_NOFILE, &files)) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
    entry = calloc((size_t)ranks, sizeof *entry);
    int *opened = calloc((size_t)ranks, sizeof *opened);
    if (!entry || !opened) fail("simulator", "no memory");
    for (int r = 0; r < ranks; r++) {
        char name[40];
        if (tess_fold_of(simulation.fold, r) != r) continue;
        opened[r] = copy(from, st.st_size);
        if (opened[r] < 0) fail("simulator", strerror(errno));
        snprintf(name, sizeof name, "/proc/self/fd/%d", opened[r]);
        /* A policy of the user's finds StarPU in it; of several ranks all would find the first one's. */
        void *product = dlopen(name, RTLD_NOW | (ranks == 1 ? RTLD_GLOBAL : RTLD_LOCAL));
        if (product) *(void **)&entry[r] = dlsym(product, "tess_simulated_main");
        if (!entry[r]) fail(path, dlerror());
    }
    for (int r = 0; r < ranks; r++)
        if (entry[r]) close(opened[r]);
    free(opened);
    close(from);
}

/* ---- ranks ---- */

static void run(int argc, char **argv)
{
    (void)argc;
    const int rank = atoi(argv[0]), status = entry[rank](&cluster, rank, arguments, argument);
    if (status > worst) worst = status;
    left--;
}

static void start(int rank)
{
    char name[40], number[12];
    const char *const args[] = {number, NULL};
    snprintf(number, sizeof number, "%d", rank);
    snprintf(name, sizeof name, "StarPU-MPI%d-MAIN", rank);
    sg_actor_start_(sg_actor_init("main", sg_host_by_name(name)), run, 1, args);
}

int main(int argc, char **argv)
{
    char platform[4300], nodes[12];
    simgrid_init(&argc, argv); /* which takes away what is SimGrid's */
    if (argc < 3) fail("command line", "is started by tessera simulate");
    FILE *f = fopen(argv[1], "r");
    if (!f || fread(&simulation, sizeof simulation, 1, f) != 1) fail(argv[1], "holds no simulation");
    fclose(f);
    cluster.ranks = simulation.machine.nodes * simulation.ranks_here;
    cluster.sent = calloc((size_t)cluster.ranks, sizeof *cluster.sent);
    if (!cluster.sent) fail("simulator", "no memory");
    arguments = argc - 1;
    argument = argv + 1;
    sg_cfg_set_int("contexts/stack-size", 8192); /* KiB; only what is touched takes memory */
    sg_cfg_set_int("contexts/guard-size", 0);    /* else the kernel has two maps a thread */
    snprintf(nodes, sizeof nodes, "%d", simulation.machine.nodes);
    setenv("SMPI_GLOBAL_SIZE", nodes, 1); /* StarPU asks whether there are ranks */
    snprintf(platform, sizeof platform, "%s/.starpu/sampling/bus/simulated.platform.v4.xml", getenv("STARPU_HOME"));
    simgrid_load_platform(platform);
    load(cluster.ranks);
    for (int r = 0; r < cluster.ranks; r++) {
        if (!entry[r]) continue;
        left++;
        start(r);
    }
    on_exit(look, NULL);
    simgrid_run();
    if ((fflush(stdout) || ferror(stdout)) && !worst) fail("stdout", strerror(errno));
    return worst;
}
