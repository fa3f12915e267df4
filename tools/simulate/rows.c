/* Rows of tessera simulate --sweep and of tessera place: what each says is read of its lines, so whatever those
 * commands can do can be a row. */
#include "tools/simulate/rows.h"
#include "tools/commands/cmd.h"
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static struct {
    const char *where; /* in errors */
    char **argument;
    int count;
    cmd_row *row;
    int rows;
} all;
static char tier[CMD_ROW_TIERS][16]; /* that any of them names */
static int tiers;

/* ---- what each of them says ---- */

static int tier_of(const char *line)
{
    int n = 0;
    char name[16] = "";
    sscanf(line, "%15s", name);
    while (n < tiers && strcmp(tier[n], name)) n++;
    if (n == tiers && n < CMD_ROW_TIERS) strcpy(tier[tiers++], name);
    return n;
}

/* The bytes of an estimate's plan. */
static void read_plan(cmd_row *o, const char *line)
{
    static const char *const names[] = {"GPU", "RAM", "disk"};
    unsigned long long bytes[3];
    if (sscanf(line, "memory GPU %llu, RAM %llu, disk %llu", &bytes[0], &bytes[1], &bytes[2]) != 3) return;
    for (int i = 0; i < 3; i++) {
        const int of = tier_of(names[i]);
        if (of < CMD_ROW_TIERS) snprintf(o->held[of], sizeof o->held[of], "%s", tess_human_bytes((double)bytes[i]));
    }
}

static void read_line(cmd_row *o, const char *line)
{
    static const char *const holds[] = {"tiles hold ", "tiles of a rank hold ", " bytes are held at most"};
    static const char bound[] = "the step is bound by ", took[] = "  in all    ";
    const char *at;
    if (sscanf(line, "step %lf s, %lf tokens/s", &o->seconds, &o->rate) == 2) o->fits = true;
    if (!strncmp(line, took, sizeof took - 1)) sscanf(line + sizeof took - 1, "%lf", &o->seconds);
    sscanf(line, "  the GPU at work %lf s", &o->gpu);
    if (sscanf(line, " %lf tokens/s, bound by %63[^\n]", &o->rate, o->bound) == 2) o->fits = true;
    if (!strcmp(o->command, "estimate")) read_plan(o, line);
    if ((at = strstr(line, bound))) sscanf(at + sizeof bound - 1, "%63[^,\n]", o->bound);
    for (int i = 0; i < 3; i++) {
        if (!(at = strstr(line, holds[i])) || !(at = strchr(at, '('))) continue;
        const int tier = tier_of(line);
        if (tier < CMD_ROW_TIERS) sscanf(at, "(%31[^)\n]", o->held[tier]);
    }
}

static void ended(cmd_row *o, int status)
{
    static const char error[] = "tessera: error: ";
    char line[sizeof o->wrong];
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
    o->done = true;
    o->status = WIFEXITED(status) ? (tess_status)WEXITSTATUS(status) : TESS_FAILED;
    o->fits = o->fits && o->status == TESS_OK;
    if (!o->fits && !*o->wrong) snprintf(o->wrong, sizeof o->wrong, "%s: broke off", o->command);
}

/* ---- running them ---- */

/* Whoever ends this ends them, and they clear what they have made. */
static const int ends[] = {SIGINT, SIGTERM, SIGHUP};
enum { ENDS = sizeof ends / sizeof *ends };
static volatile sig_atomic_t ended_by;

static void end(int number)
{
    ended_by = number;
    for (int i = 0; i < all.rows; i++)
        if (all.row[i].child > 0) kill(all.row[i].child, SIGTERM);
}

/* Held back while a child is made and noted. */
static void hold(bool back)
{
    sigset_t set;
    sigemptyset(&set);
    for (int i = 0; i < ENDS; i++) sigaddset(&set, ends[i]);
    sigprocmask(back ? SIG_BLOCK : SIG_UNBLOCK, &set, NULL);
}

static void become(const cmd_row *o, pid_t parent)
{
    int n = 0;
    while (o->more[n]) n++;
    char **argument = tess_alloc((size_t)(all.count + n + 4) * sizeof *argument);
    for (int i = 0; i < ENDS; i++) signal(ends[i], SIG_DFL);
    hold(false);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != parent) _exit(1);
    argument[0] = (char *)"tessera", argument[1] = o->command;
    memcpy(argument + 2, all.argument, (size_t)all.count * sizeof *argument);
    memcpy(argument + 2 + all.count, o->more, (size_t)n * sizeof *argument);
    argument[2 + all.count + n] = (char *)"trace.steps=[0,0]"; /* they would all write the same file */
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(fileno(o->out), STDOUT_FILENO);
    dup2(fileno(o->err), STDERR_FILENO);
    execv("/proc/self/exe", argument);
    fprintf(stderr, "tessera: error: /proc/self/exe: cannot be started: %s\n", strerror(errno));
    _exit(1);
}

FILE *cmd_scratch(void)
{
    const int fd = memfd_create("said", MFD_CLOEXEC);
    return fd < 0 ? NULL : fdopen(fd, "w+");
}

static tess_status start(cmd_row *o)
{
    const pid_t self = getpid();
    o->out = cmd_scratch();
    o->err = cmd_scratch();
    if (!o->out || !o->err)
        return tess_error(TESS_FAILED, all.where, "no file in RAM for a row's output: %s", strerror(errno));
    fflush(stdout);
    hold(true);
    const pid_t child = ended_by ? 0 : fork();
    if (child == 0 && !ended_by) become(o, self);
    o->child = child > 0 ? child : 0;
    hold(false);
    return child < 0 ? tess_error(TESS_FAILED, all.where, "no process: %s", strerror(errno)) : TESS_OK;
}

static void wait_for_one(void)
{
    int status;
    const pid_t child = wait(&status);
    for (int i = 0; i < all.rows && child > 0; i++)
        if (all.row[i].child == child) ended(&all.row[i], status);
}

static int running(void)
{
    int n = 0;
    for (int i = 0; i < all.rows; i++) n += all.row[i].child > 0;
    return n;
}

tess_status cmd_rows_run(const char *where, char **arguments, int count, cmd_row *row, int rows, int *ended)
{
    cpu_set_t set;
    const int cores = sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
    const bool live = isatty(STDERR_FILENO);
    tess_status status = TESS_OK;
    ended_by = 0;
    all.where = where, all.argument = arguments, all.count = count, all.row = row;
    all.rows = rows; /* set last: a signal goes through the rows up to here */
    for (int i = 0; i < ENDS; i++) signal(ends[i], end);
    for (int i = 0; i < rows && status == TESS_OK && !ended_by; i++) {
        if (row[i].done) continue;
        if (live) fprintf(stderr, "\r%d of %d \r", i + 1, rows);
        while (running() >= cores) wait_for_one();
        if (!ended_by) status = start(&row[i]);
    }
    if (status != TESS_OK) end(0);
    while (running() > 0) wait_for_one();
    all.rows = 0;
    for (int i = 0; i < ENDS; i++) signal(ends[i], SIG_DFL);
    *ended = ended_by;
    return status;
}

/* ---- the table ---- */

void cmd_rows_head(void)
{
    printf("%12s %12s", "step s", "tokens/s");
    for (int t = 0; t < tiers; t++) printf("  %-9s", tier[t]);
    printf("  bound by\n");
}

void cmd_row_print(const cmd_row *o)
{
    if (!o->fits) {
        printf("%s\n", o->wrong);
        return;
    }
    printf("%12.6f %12.1f", o->seconds, o->rate);
    for (int t = 0; t < tiers; t++) printf("  %-9s", *o->held[t] ? o->held[t] : "-");
    printf("  %s\n", o->bound);
}
