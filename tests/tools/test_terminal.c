/* What a run shows on a terminal: a live line and bars that never wrap, and nothing of either in a pipe. The terminal
 * is a pair of pseudo-terminals, and what was written to it is put on a screen of so many columns. */
#define CHECK_MAIN
#include "runtime/runtime.h"
#include "runtime/runtime_base.h"
#include "tests/tools/tiny.h"
#include <pty.h>
#include <sys/ioctl.h>

/* ---- a terminal ---- */

static struct {
    char *text; /* all that was written */
    size_t n;
    int widest; /* columns of the widest row, before it would have wrapped */
} shown;

/* Follows the few things that are written: letters, ends of lines, returns, and "clear to the end of the line". */
static void put_on_screen(void)
{
    int column = 0;
    shown.widest = 0;
    for (size_t i = 0; i < shown.n; i++) {
        const char c = shown.text[i];
        if (c == '\r' || c == '\n') {
            column = 0;
        } else if (c == '\033') {
            CHECK(!strncmp(shown.text + i, "\033[K", 3));
            i += 2;
        } else if (++column > shown.widest) {
            shown.widest = column;
        }
    }
}

/* Runs the command on a terminal of so many columns. */
static void run_on_terminal(int columns, const char *const *arg)
{
    const struct winsize size = {.ws_row = 24, .ws_col = (unsigned short)columns};
    int terminal, status;
    size_t room = 1 << 16;
    fflush(stdout);
    const pid_t pid = forkpty(&terminal, NULL, NULL, &size);
    if (pid == 0) {
        const char *argv[32] = {run_command()};
        for (int i = 0; arg[i] && i < 30; i++) argv[i + 1] = arg[i];
        execvp(argv[0], (char *const *)argv);
        _exit(98);
    }
    free(shown.text);
    shown.text = malloc(room);
    shown.n = 0;
    for (ssize_t got; (got = read(terminal, shown.text + shown.n, room - shown.n - 1)) > 0;)
        if ((shown.n += (size_t)got) == room - 1) shown.text = realloc(shown.text, room *= 2);
    shown.text[shown.n] = 0;
    close(terminal);
    waitpid(pid, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    put_on_screen();
}

#define ON_TERMINAL(columns, ...) run_on_terminal(columns, (const char *const[]){__VA_ARGS__, NULL})

TEST(the_live_line_never_wraps)
{
    tiny_setup();
    for (int columns = 80; columns >= 20; columns -= 30) {
        ON_TERMINAL(columns, "train", "run.json", "steps=12", "data.valid=null");
        const char *live = strstr(shown.text, "\r\033[K");
        CHECK(live != NULL);
        put_on_screen();
        /* Lines that stay, such as that of the data, are as long as they are. */
        for (; live; live = strstr(live + 4, "\r\033[K")) CHECK(strcspn(live + 4, "\r\n") < (size_t)columns);
        CHECK_HAS(shown.text, columns > 40 ? "12/12  loss " : "12/12");
    }
    ON_TERMINAL(80, "train", "run.json", "steps=2");
    const char *live = strstr(shown.text, "\r\033[K");
    CHECK_HAS(live, "tok");
    CHECK_HAS(live, "left 0:00");
    CHECK_HAS(live, "cpu ");
}

/* ---- bars ---- */

TEST(lines_of_bars)
{
    char line[256];
    tess_bar_line("loading", .5, 10, 50, line, sizeof line);
    CHECK_STR(line, "loading  [############           ]  50%  left 0:10");
    tess_bar_line("loading", 1, 10, 200, line, sizeof line);
    CHECK_STR(line, "loading  [########################################] 100%  left 0:00");
    tess_bar_line("loading", .25, 3600, 30, line, sizeof line);
    CHECK_STR(line, "loading   25%  left 3:00:00");
    tess_bar_line("planning", 0, 75, 79, line, sizeof line);
    CHECK_STR(line, "planning  1:15");
    for (int width = -1; width < 90; width++)
        for (double share = -1; share < 3; share += .1) {
            tess_bar_line("saving a checkpoint", share, 1e6, width, line, sizeof line);
            if (strlen(line) > (size_t)(width > 0 ? width : 0)) CHECK_SAY("\"%s\" is wider than %d", line, width);
        }
    tess_bar_line("x", NAN, 1e300, 10, line, 5);
    CHECK(strlen(line) < 5);
}

/* Waits until somebody has seen the bar; where nobody can, longer than it takes to appear. */
static void until_seen(int seen)
{
    char one;
    if (seen < 0)
        nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 500 * 1000 * 1000}, NULL);
    else if (read(seen, &one, 1) != 1)
        _exit(97);
}

/* In a child: something that takes a while, with a line between; on a terminal behind a live line. */
static void work(bool known, int seen)
{
    if (seen >= 0) {
        tess_live_line(stdout, "live", false);
        tess_live_line(stdout, "live 1", false);
        tess_note("a line after");
        tess_live_line(stdout, "live 2", false);
    }
    tess_bar_begin("counting", known ? 8 : 0);
    tess_bar_step(1);
    tess_bar_begin("inside", 3); /* shows nothing, and moves nothing */
    tess_bar_step(2);
    tess_bar_end();
    until_seen(seen);
    tess_note("a line between");
    if (seen >= 0) until_seen(seen);
    tess_bar_end();
}

/* The text of the terminal's from some place on, once the bar is there. */
static bool bar_from(size_t from)
{
    return from <= shown.n && strstr(shown.text + from, "\r\033[Kcounting");
}

/* Works until the bar was seen before and behind the line between; `dies`: and dies then. */
static void work_on_terminal(bool known, bool dies)
{
    const struct winsize size = {.ws_row = 24, .ws_col = 60};
    int terminal, seen[2], told = 0;
    CHECK(pipe(seen) == 0);
    shown.text = realloc(shown.text, 1 << 16);
    shown.n = 0;
    fflush(stdout);
    const pid_t pid = forkpty(&terminal, NULL, NULL, &size);
    if (pid == 0) {
        close(seen[1]);
        if (dies) {
            tess_bar_begin("counting", 0);
            until_seen(seen[0]);
            tess_die("the last words");
        }
        work(known, seen[0]);
        _exit(0);
    }
    close(seen[0]);
    for (ssize_t got; (got = read(terminal, shown.text + shown.n, (1 << 16) - shown.n - 1)) > 0;) {
        shown.text[shown.n += (size_t)got] = 0;
        const char *line = strstr(shown.text, "a line between");
        if (told == 0 ? bar_from(0) : told == 1 && line && bar_from((size_t)(line - shown.text)))
            told += write(seen[1], "x", 1) == 1;
    }
    shown.text[shown.n] = 0;
    close(terminal);
    close(seen[1]);
    waitpid(pid, NULL, 0);
    put_on_screen();
}

TEST(bars_come_and_go)
{
    work_on_terminal(true, false);
    CHECK_HAS(shown.text, "\r\033[Klive\r\033[Klive 1\r\ntessera: a line after\r\n"); /* what follows a live line */
    CHECK_HAS(shown.text, "\r\033[Klive 2\r\n\r\033[Kcounting  [");
    CHECK_HAS(shown.text, "left 0:");
    CHECK_HAS(shown.text, "\r\033[Ktessera: a line between\r\n");
    CHECK(!strstr(shown.text, "inside"));
    CHECK(shown.widest < 60);
    CHECK(shown.n > 4 && !strcmp(shown.text + shown.n - 4, "\r\033[K")); /* it is gone */
    work_on_terminal(false, false);
    CHECK_HAS(shown.text, "\r\033[Kcounting  0:");
    CHECK(!strchr(shown.text, '%'));
    work_on_terminal(false, true);
    CHECK_HAS(shown.text, "\r\033[Ktessera: error: the last words\r\n");
}

TEST(no_bar_in_a_pipe)
{
    int pipes[2];
    char text[256];
    CHECK(pipe(pipes) == 0);
    fflush(stdout);
    if (fork() == 0) {
        dup2(pipes[1], 2);
        close(pipes[1]);
        work(true, -1);
        _exit(0);
    }
    close(pipes[1]);
    size_t n = 0;
    for (ssize_t got; (got = read(pipes[0], text + n, sizeof text - n - 1)) > 0;) n += (size_t)got;
    text[n] = 0;
    close(pipes[0]);
    wait(NULL);
    CHECK_STR(text, "tessera: a line between\n");
}
