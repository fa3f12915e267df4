/* Cases that end their process, or that start StarPU with an environment of their own: each in a child. */
#ifndef TESS_TESTS_CHILD_H
#define TESS_TESTS_CHILD_H
#include "tests/check.h"
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

struct child {
    pid_t pid;
    int err, said; /* pipes' ends: what it writes on stderr, and where it says that it came so far */
};

static struct {
    int status; /* its exit status; -1: it was killed */
    char err[4000];
} child_end;

/* Where the child says so, by child_here. */
static int child_says = -1;

static inline void child_here(void)
{
    if (write(child_says, "", 1) != 1) _exit(97);
}

static inline struct child child_start(void (*body)(void))
{
    int err[2], said[2];
    if (pipe(err) || pipe(said)) exit(98);
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) {
        dup2(err[1], 2);
        child_says = said[1];
        check_failures = 0;
        body();
        fflush(stdout);
        _exit(check_failures > 0);
    }
    close(err[1]);
    close(said[1]);
    return (struct child){pid, err[0], said[0]};
}

/* Until it says so, or ends. */
static inline void child_wait_for(const struct child *c)
{
    char byte;
    if (read(c->said, &byte, 1) < 0) exit(98);
}

static inline void child_finish(const struct child *c)
{
    size_t n = 0;
    int status;
    for (ssize_t got; (got = read(c->err, child_end.err + n, sizeof child_end.err - 1 - n)) > 0;) n += (size_t)got;
    child_end.err[n] = 0;
    close(c->err);
    close(c->said);
    waitpid(c->pid, &status, 0);
    child_end.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static inline void child_run(void (*body)(void))
{
    const struct child c = child_start(body);
    child_finish(&c);
}

#endif
