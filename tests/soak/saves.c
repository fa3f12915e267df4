/* A program of the library's that writes checkpoints of one step over each other, killed again and again: what it goes
 * on from is always a whole one, the last or the one before it, and the next save leaves nothing but its own.
 *
 *     saves KILLS [SEED]     (tests/soak/saves builds and starts it)
 *
 * Of five kills four meet it ahead of an operation on names (a file or directory made, renamed or removed), each of two
 * saves in turn: what can go wrong for ever lies between two of these. The fifth comes from outside, at any moment. */
#include "models/models.h"
#include "tests/dirs.h"
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STEP = 4, OPERATIONS = 24 }; /* of two saves, and some */
#define NAME "step-00000004"

static char doing[100] = "beginning";

static _Noreturn void wrong(const char *what)
{
    printf("WRONG: %s: %s\n0 passed, 1 failed, 0 skipped\n", doing, what);
    fflush(stdout);
    _exit(1);
}

/* ---- the program ---- */

static long left; /* operations until it ends; 0: it does not */

static void count(void)
{
    if (left && !--left) kill(getpid(), SIGKILL);
}

int __real_rename(const char *from, const char *to);
int __wrap_rename(const char *from, const char *to);
int __real_unlink(const char *path);
int __wrap_unlink(const char *path);
int __real_rmdir(const char *path);
int __wrap_rmdir(const char *path);
int __real_mkdir(const char *path, mode_t mode);
int __wrap_mkdir(const char *path, mode_t mode);

int __wrap_rename(const char *from, const char *to)
{
    count();
    return __real_rename(from, to);
}
int __wrap_unlink(const char *path)
{
    count();
    return __real_unlink(path);
}
int __wrap_rmdir(const char *path)
{
    count();
    return __real_rmdir(path);
}
int __wrap_mkdir(const char *path, mode_t mode)
{
    count();
    return __real_mkdir(path, mode);
}

static void must(tess_status status)
{
    if (status != TESS_OK) wrong(tess_error_text());
}

static tess_graph *describe(void)
{
    tess_step *s;
    tess_graph *g = tess_graph_new(&(tess_graph_conf){0});
    tess_tensor *ids = tess_input(g, "ids", 1, 8), *table = tess_param(g, "table", 64, 48, TESS_NORMAL(0.1f));
    tess_tensor *x = tess_rmsnorm(tess_embedding(ids, table, NULL), tess_param(g, "norm", 48, 1, TESS_ONE), 1e-5f);
    must(tess_step_new(tess_cross_entropy(x, table, NULL, ids),
                       &(tess_step_conf){.train = true, .optimizer = tess_adamw()}, &s));
    return g;
}

/* The weights are those that the checkpoint's seed draws: none of them is of another checkpoint. */
static void check_weights(tess_graph *g, uint64_t seed)
{
    tess_graph *drawn = describe();
    must(tess_graph_init(drawn, seed));
    must(tess_graph_save(g, "found"));
    must(tess_graph_save(drawn, "drawn"));
    if (system("cmp -s found/model.safetensors drawn/model.safetensors")) wrong("weights are of another checkpoint");
}

/* Goes on, and saves until it is killed; `operations` 0: once. */
static int save(bool first, long operations)
{
    tess_position at = {.step = STEP};
    bool found;
    tess_graph *g = describe();
    must(tess_start(&(tess_machine){.workers = 1}));
    must(tess_graph_resume(g, "ck", &at, &found));
    if (!found && !first) wrong("there is no checkpoint");
    if (found && at.step != STEP) wrong("the checkpoint is of another step");
    if (found) check_weights(g, at.seed);
    if (write(STDOUT_FILENO, "r", 1) != 1) return 1;
    left = operations > 0 ? operations : 0;
    do {
        at.seed++;
        must(tess_graph_init(g, at.seed));
        must(tess_graph_checkpoint(g, "ck", 1, &at));
        if (*others_in("ck", NAME)) wrong(others_in("ck", NAME));
    } while (operations);
    tess_stop();
    return 0;
}

/* ---- who kills it ---- */

static uint64_t chance;

static uint64_t draw(uint64_t below)
{
    chance = chance * 6364136223846793005u + 1442695040888963407u;
    return (chance >> 33) % below;
}

/* One life: killed ahead of its operation of that number; -1: at a moment from outside, 0: not at all. */
static void live(const char *program, const char *first, long operations)
{
    char number[24], ready = 0;
    int end[2], status;
    snprintf(number, sizeof number, "%ld", operations);
    if (pipe(end)) wrong("no pipe");
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(end[1], STDOUT_FILENO);
        execl(program, program, "save", first, number, (char *)NULL);
        _exit(1);
    }
    close(end[1]);
    if (read(end[0], &ready, 1) == 1 && ready == 'r' && operations < 0) {
        nanosleep(&(struct timespec){.tv_nsec = (long)draw(30 * 1000 * 1000)}, NULL);
        kill(pid, SIGKILL);
    }
    char said[2000] = {ready};
    for (size_t n = 1; read(end[0], said + n, 1) == 1 && n < sizeof said - 2; n++) continue;
    close(end[0]);
    waitpid(pid, &status, 0);
    const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
    if (ready != 'r' || killed != (operations != 0) || (!killed && status)) wrong(said);
    char state[] = "ck/" NAME "/state.json", states[] = "ck/" NAME "/states.safetensors";
    if (access(state, F_OK) == 0 && access(states, F_OK)) wrong("what counts as whole is not");
}

int main(int argc, char **argv)
{
    char dir[] = "/var/tmp/tessera-saves-XXXXXX", program[PATH_MAX];
    if (argc == 4 && !strcmp(argv[1], "save")) return save(argv[2][0] == '1', atol(argv[3]));
    const int kills = argc > 1 ? atoi(argv[1]) : 0;
    if (kills < 1) {
        fprintf(stderr, "usage: %s KILLS [SEED]\n", argv[0]);
        return 2;
    }
    chance = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (!realpath("/proc/self/exe", program) || !mkdtemp(dir) || chdir(dir)) wrong("no directory");
    live(program, "1", 0);
    for (int k = 0, ahead = 0; k < kills; k++) {
        const bool outside = k % 5 == 4;
        const long operation = outside ? -1 : 1 + ahead++ % OPERATIONS;
        snprintf(doing, sizeof doing, "after kill %d (%ld) in %s", k + 1, operation, dir);
        live(program, "0", operation);
    }
    live(program, "0", 0);
    if (*others_in("ck", NAME)) wrong("the last save left something");
    char line[100];
    snprintf(line, sizeof line, "rm -rf %s", dir);
    if (system(line)) wrong("its directory cannot be removed");
    printf("%d kills\n1 passed, 0 failed, 0 skipped\n", kills);
    return 0;
}
