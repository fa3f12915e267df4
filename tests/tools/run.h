/* Runs the command as a user does: the program that the environment names as TESSERA, in a directory of its own, and
 * what it printed and how it ended.
 *
 *     fresh();                                  // an empty directory, from now on the working one
 *     write_text("run.json", "{...}");
 *     DONE("train", "run.json", "steps=4"); // exit status 0
 *     CHECK_HAS(ran.out, "step 4/4");
 *     FAILS(2, ("train", "run.json", "steps=0"), "steps", "a whole number"); // status 2, and one line that holds these
 */
#ifndef TESS_TESTS_RUN_H
#define TESS_TESTS_RUN_H
#include "tests/check.h"
#include "tests/files.h"
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { RUN_SECONDS = 120 }; /* more than any run needs, also below a sanitizer on a busy machine */

/* ---- runs ---- */

static struct {
    int status; /* the exit status; 128 + its number when a signal ended it; -1 when it had to be killed */
    long peak;  /* MiB that it had in RAM at most, as the kernel counts */
    char *out, *err;
    char what[400]; /* the arguments */
} ran;

/* For the next runs. */
static long run_file_limit;    /* bytes that a file may have; 0: any */
static const char *run_stdout; /* where stdout goes, a device; NULL: into ran.out */
static int run_out = -1, run_err = -1;

static inline void run_nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 1000 * 1000}, NULL);
}

static inline double run_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static inline void run_exec(const char *program, const char *const *arg)
{
    const char *argv[32] = {program};
    for (int i = 0; arg[i] && i < 30; i++) argv[i + 1] = arg[i];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (run_file_limit) {
        signal(SIGXFSZ, SIG_IGN);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){(rlim_t)run_file_limit, (rlim_t)run_file_limit});
    }
    dup2(run_stdout ? open(run_stdout, O_WRONLY | O_NOCTTY) : run_out, 1);
    dup2(run_err, 2);
    execvp(program, (char *const *)argv);
    _exit(98);
}

static inline const char *run_command(void)
{
    const char *program = getenv("TESSERA");
    if (!program) {
        fprintf(stderr, "TESSERA is not set, expected the path of the command\n");
        exit(99);
    }
    return program;
}

/* Starts a program; one at a time. */
static inline pid_t run_start_program(const char *program, const char *const *arg)
{
    if (run_out >= 0) close(run_out), close(run_err);
    run_out = memfd_create("out", MFD_CLOEXEC);
    run_err = memfd_create("err", MFD_CLOEXEC);
    ran.what[0] = 0;
    for (size_t i = 0, n = 0; arg[i] && n < sizeof ran.what; i++)
        n += (size_t)snprintf(ran.what + n, sizeof ran.what - n, "%s%s", i ? " " : "", arg[i]);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) run_exec(program, arg);
    return pid;
}

/* Starts the command. */
static inline pid_t run_start(const char *const *arg)
{
    return run_start_program(run_command(), arg);
}

/* Starts a program as so many ranks, on however few cores there are. */
static inline pid_t run_start_ranks(int ranks, const char *program, const char *const *arg)
{
    char count[16];
    const char *argv[30] = {"--oversubscribe", "-n", count, program};
    snprintf(count, sizeof count, "%d", ranks);
    for (int i = 0; arg[i] && i < 24; i++) argv[i + 4] = arg[i];
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 0);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 0);
    return run_start_program("mpirun", argv);
}

/* The ranks that a launcher started; how many. */
static inline int run_ranks_of(pid_t launcher, pid_t *rank, int most)
{
    char path[64];
    int n = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/children", (int)launcher, (int)launcher);
    FILE *f = fopen(path, "r");
    while (f && n < most && fscanf(f, "%d", &rank[n]) == 1) n++;
    if (f) fclose(f);
    return n;
}

/* Waits for its end, and fills in `ran`. */
static inline void run_finish(pid_t pid)
{
    double end = run_clock() + RUN_SECONDS;
    struct rusage usage = {0};
    int status = 0;
    bool late = false;
    while (wait4(pid, &status, WNOHANG, &usage) == 0) {
        if (!late && run_clock() > end) late = true, kill(pid, SIGKILL);
        run_nap();
    }
    ran.peak = usage.ru_maxrss >> 10;
    ran.status = late ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    free(ran.out);
    free(ran.err);
    ran.out = read_descriptor(run_out, NULL);
    ran.err = read_descriptor(run_err, NULL);
}

/* Has the run that goes on printed this on stderr? */
static inline bool said(const char *part)
{
    char *err = read_descriptor(run_err, NULL);
    bool yes = strstr(err, part) != NULL;
    free(err);
    return yes;
}

#define START(...) run_start((const char *const[]){__VA_ARGS__, NULL})
#define RUN(...)   run_finish(START(__VA_ARGS__))
/* The same as so many ranks. */
#define START_RANKS(n, ...) run_start_ranks(n, run_command(), (const char *const[]){__VA_ARGS__, NULL})
#define RUN_RANKS(n, ...)   run_finish(START_RANKS(n, __VA_ARGS__))

/* Until the condition holds, at most a while; `pid` is a run whose end ends it too. */
#define WAIT_UNTIL(pid, cond)                                                                                          \
    do {                                                                                                               \
        double until_ = run_clock() + RUN_SECONDS;                                                                     \
        siginfo_t gone_ = {0};                                                                                         \
        while (!(cond) && run_clock() < until_ && !gone_.si_pid) {                                                     \
            waitid(P_PID, (id_t)(pid), &gone_, WEXITED | WNOHANG | WNOWAIT);                                           \
            run_nap();                                                                                                 \
        }                                                                                                              \
    } while (0)

/* ---- what is expected ---- */

#define EXPECT_DONE()                                                                                                  \
    do {                                                                                                               \
        if (ran.status) CHECK_SAY("%s: exit status %d, stderr: %s", ran.what, ran.status, ran.err);                    \
    } while (0)

/* NULL, or what is wrong with the end of the last run. */
static inline const char *run_error_mismatch(int status, const char *const *part)
{
    static char text[3000];
    const char *error = strstr(ran.err, "tessera: error: "), *colon = error ? strstr(error + 16, ": ") : NULL,
               *wrong = NULL;
    if (ran.status != status) wrong = "another exit status";
    if (!colon) wrong = "no line \"tessera: error: WHERE: WHAT\"";
    if (error && strcspn(error, "\n") + 1 != strlen(error)) wrong = "more than a line";
    /* Notes of how the run went may stand before it, other errors and a library's words may not. */
    for (const char *line = ran.err; error && line < error; line += strcspn(line, "\n") + 1)
        if (strncmp(line, "tessera: ", 9) || !strcmp(line, "tessera: bug")) wrong = "other words before the error";
    for (; *part && !wrong; part++)
        if (!strstr(error, *part)) wrong = *part;
    if (!wrong) return NULL;
    snprintf(text, sizeof text, "%s: expected exit status %d and one line with \"%s\", got %d and %s", ran.what, status,
             wrong, ran.status, ran.err);
    return text;
}

/* The number that the last error names behind `before`, without what follows a point; 0: none. */
static inline long named_in_error(const char *before)
{
    const char *at = strstr(ran.err, before);
    return at ? strtol(at + strlen(before), NULL, 10) : 0;
}

/* The run ended with this status and one line `tessera: error: WHERE: WHAT` that holds every part. */
#define EXPECT_ERROR(status, ...)                                                                                      \
    do {                                                                                                               \
        const char *wrong_ = run_error_mismatch(status, (const char *const[]){__VA_ARGS__, NULL});                     \
        if (wrong_) CHECK_SAY("%s", wrong_);                                                                           \
    } while (0)

/* A run that ends well, and one that ends with this status and such a line. */
#define DONE(...)                                                                                                      \
    do {                                                                                                               \
        RUN(__VA_ARGS__);                                                                                              \
        EXPECT_DONE();                                                                                                 \
    } while (0)
#define FAILS(status, arguments, ...)                                                                                  \
    do {                                                                                                               \
        RUN arguments;                                                                                                 \
        EXPECT_ERROR(status, __VA_ARGS__);                                                                             \
    } while (0)

/* The runs of the statement behind it have this in their environment. */
#define WITH(name, value) for (bool with_ = !setenv(name, value, 1); with_; with_ = unsetenv(name))

/* Ranks: among what the launcher says of it stands one line of ours, with all of the parts. */
static inline const char *run_ranks_mismatch(int status, const char *const *part)
{
    static char text[4000];
    const char *error = strstr(ran.err, "tessera: error: "), *wrong = NULL;
    char line[1200];
    if (ran.status != status) wrong = "another exit status";
    if (!error) wrong = "no line \"tessera: error: WHERE: WHAT\"";
    if (error && strstr(error + 1, "tessera: error: ")) wrong = "more than a line";
    if (strstr(ran.err, "tessera: bug")) wrong = "a bug";
    snprintf(line, sizeof line, "%.*s", error ? (int)strcspn(error, "\n") : 0, error ? error : "");
    for (; *part && !wrong; part++)
        if (!strstr(line, *part)) wrong = *part;
    if (!wrong) return NULL;
    snprintf(text, sizeof text, "%s: expected exit status %d and one line with \"%s\", got %d and %s", ran.what, status,
             wrong, ran.status, ran.err);
    return text;
}

#define EXPECT_RANKS_ERROR(status, ...)                                                                                \
    do {                                                                                                               \
        const char *wrong_ = run_ranks_mismatch(status, (const char *const[]){__VA_ARGS__, NULL});                     \
        if (wrong_) CHECK_SAY("%s", wrong_);                                                                           \
    } while (0)
#define DONE_RANKS(...)                                                                                                \
    do {                                                                                                               \
        RUN_RANKS(__VA_ARGS__);                                                                                        \
        EXPECT_DONE();                                                                                                 \
    } while (0)
#define FAILS_RANKS(status, arguments, ...)                                                                            \
    do {                                                                                                               \
        RUN_RANKS arguments;                                                                                           \
        EXPECT_RANKS_ERROR(status, __VA_ARGS__);                                                                       \
    } while (0)

#endif
