/* A bar on the terminal with the time that is left, for what takes more than a moment: see base.h. A thread of
 * its own draws it, so that those who work tell how far they are and nothing else; without a terminal there is none.
 * The state is that of the terminal, and there is one: between an end and the next beginning it is as at the
 * start. */
#include "runtime/base/base.h"
#include "runtime/runtime_base.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

static const double PATIENCE = 1, PAUSE = 0.25; /* seconds until it appears, and between two drawings */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    pthread_t thread;
    bool drawn, runs; /* it stands there; the thread is to go on */
    const char *what;
    double total, begun;
    atomic_int depth; /* begun and not ended: what is within another shows that */
    FILE *live;       /* where a line stands that has no end yet; NULL: there is none */
} bar = {.lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP, .ended = PTHREAD_COND_INITIALIZER};
static _Atomic uint64_t done; /* in units of the total */

/* ---- the line ---- */

void tess_bar_line(const char *what, double share, double seconds, int width, char *out, size_t size)
{
    enum { MOST = 40, LEAST = 8 };
    char time[32], tail[64], line[256];
    if (width > (int)size - 1) width = (int)size - 1;
    if (width > (int)sizeof line - 1) width = (int)sizeof line - 1;
    if (!(share > 0)) { /* the total is unknown */
        tess_human_time(seconds, time);
        snprintf(line, sizeof line, "%s  %s", what, time);
    } else {
        if (share > 1) share = 1;
        tess_human_time(seconds / share - seconds, time);
        snprintf(tail, sizeof tail, " %3.0f%%  left %s", 100 * share, time);
        int room = width - (int)strlen(what) - (int)strlen(tail) - 4;
        if (room > MOST) room = MOST;
        const int full = room > 0 ? (int)(room * share + 0.5) : 0;
        if (room >= LEAST)
            snprintf(line, sizeof line, "%s  [%.*s%*s]%s", what, full, "########################################",
                     room - full, "", tail);
        else
            snprintf(line, sizeof line, "%s %s", what, tail);
    }
    snprintf(out, size, "%.*s", width > 0 ? width : 0, line);
}

/* ---- drawing, with the lock held ---- */

/* Stores what stands there, or is about to; false: the last words of the process are being said, and nothing may. */
static bool say_row(void)
{
    int before = atomic_load(&tess_row);
    const int now = bar.drawn ? TESS_ROW_BAR : bar.live ? TESS_ROW_LINE : TESS_ROW_EMPTY;
    while (before != TESS_ROW_LAST && !atomic_compare_exchange_weak(&tess_row, &before, now))
        ;
    return before != TESS_ROW_LAST;
}

/* What stands there stays: it gets its end. */
static void end_live(void)
{
    if (bar.live) fputc('\n', bar.live), fflush(bar.live);
    bar.live = NULL;
    say_row();
}

static void draw(void)
{
    char line[256];
    struct winsize w = {0};
    const int width = ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
    const double share = bar.total > 0 ? (double)atomic_load(&done) / bar.total : 0;
    tess_bar_line(bar.what, share, tess_seconds() - bar.begun, width - 1, line, sizeof line);
    end_live();
    bar.drawn = true;
    if (!say_row()) return; /* first: who reads the terminal may act before this thread goes on */
    fprintf(stderr, "\r\033[K%s", line);
    fflush(stderr);
}

static void clear(void)
{
    if (bar.drawn) fputs("\r\033[K", stderr), fflush(stderr);
    bar.drawn = false;
    say_row();
}

static void *watch(void *unused)
{
    (void)unused;
    pthread_mutex_lock(&bar.lock);
    while (bar.runs) {
        struct timespec until;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += (long)(PAUSE * 1e9);
        until.tv_sec += until.tv_nsec / 1000000000, until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&bar.ended, &bar.lock, &until);
        if (bar.runs && tess_seconds() - bar.begun > PATIENCE) draw();
    }
    clear();
    pthread_mutex_unlock(&bar.lock);
    return NULL;
}

/* ---- what is called ---- */

void tess_bar_begin(const char *what, double total)
{
    if (bar.depth++ || !isatty(STDERR_FILENO) || tess_rank() > 0 || tess_ranks() > 1) return;
    sigset_t all, before;
    bar.what = what;
    bar.total = total;
    bar.begun = tess_seconds();
    atomic_store(&done, 0);
    bar.runs = true;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals are the main thread's */
    if (pthread_create(&bar.thread, NULL, watch, NULL)) bar.runs = false;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

bool tess_bar_stands(void)
{
    return bar.depth > 0;
}

void tess_bar_step(double more)
{
    if (bar.depth == 1 && more > 0) atomic_fetch_add(&done, (uint64_t)more);
}

void tess_bar_end(void)
{
    TESS_ASSERT(bar.depth > 0);
    if (--bar.depth || !bar.runs) return;
    pthread_mutex_lock(&bar.lock);
    bar.runs = false;
    pthread_cond_signal(&bar.ended);
    pthread_mutex_unlock(&bar.lock);
    pthread_join(bar.thread, NULL);
}

void tess_bar_aside(void)
{
    pthread_mutex_lock(&bar.lock);
    clear();
    end_live();
}

void tess_bar_back(void)
{
    pthread_mutex_unlock(&bar.lock);
}

void tess_bar_leave(void)
{
    bar.lock = (pthread_mutex_t)PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
    bar.drawn = bar.runs = false;
    bar.live = NULL;
}

void tess_live_line(FILE *out, const char *line, bool stays)
{
    pthread_mutex_lock(&bar.lock);
    fprintf(out, "\r\033[K%s%s", line, stays ? "\n" : "");
    fflush(out);
    bar.live = stays ? NULL : out;
    say_row();
    pthread_mutex_unlock(&bar.lock);
}

void tess_live_end(void)
{
    pthread_mutex_lock(&bar.lock);
    end_live();
    pthread_mutex_unlock(&bar.lock);
}
