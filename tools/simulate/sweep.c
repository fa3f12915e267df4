/* tessera simulate --sweep: one simulation for each combination of values of some keys, as many at a time as there are
 * cores here, a row for each, and which of those that fit is the fastest. Each is this very command without the sweep,
 * in a process of its own, whose lines are read: so whatever it can simulate can be swept over. */
#include "tools/commands/cmd.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_KEYS = 16, MOST_VALUES = 64, MOST_RUNS = 4096, MOST_TIERS = 4, LINE = 1024 };
static const char WHERE[] = "--sweep";

/* A key and its values, which are pieces of `text`. */
struct axis {
    char *text, *value[MOST_VALUES];
    int values;
};

struct outcome {
    pid_t child; /* 0: it has not begun, or has ended */
    FILE *out, *err;
    bool fits;
    tess_status status;
    double seconds, rate;
    char bound[64], wrong[LINE];
    char held[MOST_TIERS][32]; /* by the tiers of the sweep */
};

static struct sweep {
    char **kept; /* the other arguments */
    int nkept;
    struct axis axis[MOST_KEYS];
    int axes, runs;
    struct outcome *run;
    char tier[MOST_TIERS][16]; /* that any of them names */
    int tiers;
} sweep;

/* ---- what is asked for ---- */

static const char *sweep_option(const char *text)
{
    const size_t n = strlen(WHERE);
    return !strncmp(text, WHERE, n) && (!text[n] || text[n] == '=') ? text + n : NULL;
}

bool cmd_sweeps(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        if (sweep_option(argv[i])) return true;
    return false;
}

/* Values lie between commas that are in no bracket and no text of JSON's. */
static tess_status add_axis(const char *text)
{
    struct axis *a = &sweep.axis[sweep.axes];
    int depth = 0;
    bool quoted = false;
    const char *equal = strchr(text, '=');
    if (!equal || equal == text || !equal[1])
        return tess_error(TESS_INVALID, WHERE, "%.100s, expected KEY=VALUE,VALUE,...", text);
    for (int k = 0; k < sweep.axes; k++)
        if (strlen(sweep.axis[k].text) == (size_t)(equal - text) &&
            !strncmp(sweep.axis[k].text, text, (size_t)(equal - text)))
            return tess_error(TESS_INVALID, WHERE, "%s is there twice (its values lie between commas)",
                              sweep.axis[k].text);
    if (sweep.axes == MOST_KEYS) return tess_error(TESS_INVALID, WHERE, "more than %d keys", MOST_KEYS);
    sweep.axes++;
    a->text = tess_format("%s", text);
    char *at = a->text + (equal - text);
    *at++ = 0;
    a->value[a->values++] = at;
    for (; *at; at++) {
        if (*at == '"' && at[-1] != '\\') quoted = !quoted;
        if (quoted) continue;
        depth += (*at == '[' || *at == '{') - (*at == ']' || *at == '}');
        if (*at != ',' || depth > 0) continue;
        if (a->values == MOST_VALUES)
            return tess_error(TESS_INVALID, WHERE, "%s has more than %d values", a->text, MOST_VALUES);
        *at = 0;
        a->value[a->values++] = at + 1;
    }
    for (int v = 0; v < a->values; v++)
        if (!*a->value[v]) return tess_error(TESS_INVALID, WHERE, "%.100s has a value that is empty", text);
    return TESS_OK;
}

/* Keys of the sweep come behind --sweep, up to the next option. */
static tess_status read_arguments(int argc, char **argv)
{
    bool swept = false;
    int runs = 1;
    sweep.kept = tess_alloc(((size_t)argc + MOST_KEYS + 3) * sizeof *sweep.kept);
    sweep.kept[sweep.nkept++] = (char *)"tessera";
    for (int i = 0; i < argc; i++) {
        const char *more = sweep_option(argv[i]);
        if (!strncmp(argv[i], "--trace", 7))
            return tess_error(TESS_INVALID, WHERE, "--trace: a sweep leaves no timeline (simulate one of its rows)");
        if (more)
            swept = true;
        else if (argv[i][0] == '-')
            swept = false;
        if (more && *more)
            TESS_TRY(add_axis(more + 1));
        else if (!more && swept)
            TESS_TRY(add_axis(argv[i]));
        else if (!more)
            sweep.kept[sweep.nkept++] = argv[i];
    }
    if (!sweep.axes) return tess_error(TESS_INVALID, WHERE, "missing its KEY=VALUE,VALUE,...");
    for (int k = 0; k < sweep.axes; k++) {
        runs *= sweep.axis[k].values;
        if (runs > MOST_RUNS) return tess_error(TESS_INVALID, WHERE, "more than %d combinations", MOST_RUNS);
    }
    sweep.run = tess_alloc((size_t)runs * sizeof *sweep.run);
    sweep.runs = runs; /* set last: a signal goes through sweep.run up to here */
    return TESS_OK;
}

/* The last key changes fastest. */
static const char *value_of(int run, int axis)
{
    for (int k = sweep.axes - 1; k > axis; k--) run /= sweep.axis[k].values;
    return sweep.axis[axis].value[run % sweep.axis[axis].values];
}

/* ---- what each of them says ---- */

static int tier_of(const char *line)
{
    int n = 0;
    char name[16] = "";
    sscanf(line, "%15s", name);
    while (n < sweep.tiers && strcmp(sweep.tier[n], name)) n++;
    if (n == sweep.tiers && n < MOST_TIERS) strcpy(sweep.tier[sweep.tiers++], name);
    return n;
}

static void read_line(struct outcome *o, const char *line)
{
    static const char *const holds[] = {"tiles hold ", "tiles of a rank hold ", " bytes are held at most"};
    static const char bound[] = "the step is bound by ";
    const char *at;
    if (sscanf(line, "step %lf s, %lf tokens/s", &o->seconds, &o->rate) == 2) o->fits = true;
    if ((at = strstr(line, bound))) sscanf(at + sizeof bound - 1, "%63[^,\n]", o->bound);
    for (int i = 0; i < 3; i++) {
        if (!(at = strstr(line, holds[i])) || !(at = strchr(at, '('))) continue;
        const int tier = tier_of(line);
        if (tier < MOST_TIERS) sscanf(at, "(%31[^)\n]", o->held[tier]);
    }
}

static void ended(struct outcome *o, int status)
{
    static const char error[] = "tessera: error: ";
    char line[LINE];
    rewind(o->out);
    while (fgets(line, sizeof line, o->out)) read_line(o, line);
    rewind(o->err);
    while (fgets(line, sizeof line, o->err))
        if (!strncmp(line, error, sizeof error - 1))
            snprintf(o->wrong, sizeof o->wrong, "%.*s", (int)strcspn(line + sizeof error - 1, "\n"),
                     line + sizeof error - 1);
    fclose(o->out);
    fclose(o->err);
    o->child = 0;
    o->status = WIFEXITED(status) ? (tess_status)WEXITSTATUS(status) : TESS_FAILED;
    o->fits = o->fits && o->status == TESS_OK;
    if (!o->fits && !*o->wrong) snprintf(o->wrong, sizeof o->wrong, "simulation: broke off");
}

/* ---- running them ---- */

/* Whoever ends this ends them, and they clear what they have made. */
static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
enum { ENDS = sizeof ends / sizeof *ends };
static volatile sig_atomic_t ended_by;

static void end(int number)
{
    ended_by = number;
    for (int i = 0; i < sweep.runs; i++)
        if (sweep.run[i].child > 0) kill(sweep.run[i].child, SIGTERM);
}

/* Held back while a child is made and noted. */
static void hold(bool back)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < ENDS; i++) sigaddset(&set, ends[i]);
    sigprocmask(back ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static void become(int run, pid_t parent)
{
    const struct outcome *o = &sweep.run[run];
    int n = sweep.nkept;
    for (int i = 0; i < ENDS; i++) signal(ends[i], SIG_DFL);
    hold(false);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    for (int k = 0; k < sweep.axes; k++) sweep.kept[n++] = tess_format("%s=%s", sweep.axis[k].text, value_of(run, k));
    sweep.kept[n++] = (char *)"trace.steps=[0,0]"; /* they would all write the same file */
    sweep.kept[n] = NULL;
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(fileno(o->out), STDOUT_FILENO);
    dup2(fileno(o->err), STDERR_FILENO);
    execv("/proc/self/exe", sweep.kept);
    fprintf(stderr, "tessera: error: /proc/self/exe: cannot be started: %s\n", strerror(errno));
    _exit(1);
}

FILE *cmd_scratch(void)
{
    const int fd = memfd_create("said", MFD_CLOEXEC);
    return fd < 0 ? NULL : fdopen(fd, "w+");
}

static tess_status start(int run)
{
    struct outcome *o = &sweep.run[run];
    const pid_t self = getpid();
    o->out = cmd_scratch();
    o->err = cmd_scratch();
    if (!o->out || !o->err)
        return tess_error(TESS_FAILED, WHERE, "no file in RAM for a row's output: %s", strerror(errno));
    fflush(stdout);
    hold(true);
    const pid_t child = ended_by ? 0 : fork();
    if (child == 0 && !ended_by) become(run, self);
    o->child = child > 0 ? child : 0;
    hold(false);
    return child < 0 ? tess_error(TESS_FAILED, WHERE, "no process: %s", strerror(errno)) : TESS_OK;
}

static void wait_for_one(void)
{
    int status;
    const pid_t child = wait(&status);
    for (int i = 0; i < sweep.runs && child > 0; i++)
        if (sweep.run[i].child == child) ended(&sweep.run[i], status);
}

static int running(void)
{
    int n = 0;
    for (int i = 0; i < sweep.runs; i++) n += sweep.run[i].child > 0;
    return n;
}

static tess_status run_all(void)
{
    cpu_set_t set;
    const int cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    const bool live = isatty(STDERR_FILENO);
    tess_status status = TESS_OK;
    for (int i = 0; i < sweep.runs && status == TESS_OK && !ended_by; i++) {
        if (live) fprintf(stderr, "\r%d of %d \r", i + 1, sweep.runs);
        while (running() >= cores) wait_for_one();
        if (!ended_by) status = start(i);
    }
    if (status != TESS_OK) end(0);
    while (running() > 0) wait_for_one();
    return status;
}

/* ---- the table ---- */

static int width_of(int axis)
{
    size_t width = strlen(sweep.axis[axis].text);
    for (int v = 0; v < sweep.axis[axis].values; v++)
        if (strlen(sweep.axis[axis].value[v]) > width) width = strlen(sweep.axis[axis].value[v]);
    return (int)width;
}

static void print_row(int run)
{
    const struct outcome *o = &sweep.run[run];
    for (int k = 0; k < sweep.axes; k++) printf("%-*s  ", width_of(k), value_of(run, k));
    if (o->fits) {
        printf("%12.6f %12.1f", o->seconds, o->rate);
        for (int t = 0; t < sweep.tiers; t++) printf("  %-9s", *o->held[t] ? o->held[t] : "-");
        printf("  %s\n", o->bound);
    } else
        printf("%s\n", o->wrong);
}

static void print_table(void)
{
    for (int k = 0; k < sweep.axes; k++) printf("%-*s  ", width_of(k), sweep.axis[k].text);
    printf("%12s %12s", "step s", "tokens/s");
    for (int t = 0; t < sweep.tiers; t++) printf("  %-9s", sweep.tier[t]);
    printf("  bound by\n");
    for (int i = 0; i < sweep.runs; i++) print_row(i);
}

/* Where none fits, and all for one reason, that is the error. */
static tess_status judge(void)
{
    const struct outcome *best = NULL, *first = sweep.run;
    bool same = true;
    for (int i = 0; i < sweep.runs; i++) {
        const struct outcome *o = &sweep.run[i];
        same = same && !strcmp(o->wrong, first->wrong);
        if (o->fits && (!best || o->rate > best->rate)) best = o;
    }
    char *what = strstr(sweep.run[0].wrong, ": ");
    if (!best && same && what) {
        *what = 0;
        return tess_error(first->status, first->wrong, "%s", what + 2);
    }
    print_table();
    if (!best) return tess_error(first->status, WHERE, "none of %d combinations fits", sweep.runs);
    printf("\nbest     ");
    for (int k = 0; k < sweep.axes; k++) printf(" %s=%s", sweep.axis[k].text, value_of((int)(best - first), k));
    printf(": %.6f s, %.1f tokens/s\n", best->seconds, best->rate);
    return TESS_OK;
}

tess_status cmd_sweep(int argc, char **argv)
{
    for (int i = 0; i < ENDS; i++) signal(ends[i], end);
    tess_status status = read_arguments(argc, argv);
    if (status == TESS_OK) status = run_all();
    if (status == TESS_OK && !ended_by) status = judge();
    for (int k = 0; k < sweep.axes; k++) free(sweep.axis[k].text);
    sweep.runs = 0;
    free(sweep.kept);
    free(sweep.run);
    fflush(stdout);
    for (int i = 0; i < ENDS; i++) signal(ends[i], SIG_DFL);
    if (ended_by) raise(ended_by);
    return status;
}
