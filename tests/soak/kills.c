/* A run that is killed again and again, at random moments, and gone on with each time: what it comes to is what the
 * undisturbed run comes to, byte for byte, and nothing is left behind. A third of the kills meet a run of one process,
 * a third one of two ranks, of which one rank is killed, or the launcher, or all, and a third one of two processes that
 * go on with one run in one directory at a time: one of them has it, and the other is refused.
 *
 *     kills 1000 [SEED]     (tests/soak/kills builds and starts it)
 *
 * The moments: uniform in the time that a run takes, which is mostly its start, and its steps; and on one of the
 * events that the kernel tells of in the run's directories, or a little after it: a file made, closed, renamed or
 * removed, since what can go wrong for ever lies between two of these. */
#include "tests/soak/soak.h"
#include <sys/inotify.h>

enum { EVENTS = 40 }; /* of which one is waited for */

/* Who is killed. */
enum victim { EVERYBODY, LAUNCHER, RANK_0, RANK_1, VICTIMS };
static const char *const victim_name[] = {"everybody", "the launcher", "rank 0", "rank 1"};

static struct {
    int kills, runs, lives, refused;
    int phase[6];
} seen;
enum { STARTING, STEPPING, IN_CHECKPOINT, REMOVING, SAVING, ENDING };
static const char *const phase_name[] = {"before the first step",      "between steps",     "writing a checkpoint",
                                         "removing an old checkpoint", "writing the model", "at the end"};

/* ---- waiting for a moment; false: the run ended before it ---- */

static bool ended(pid_t pid)
{
    siginfo_t gone = {0};
    return waitid(P_PID, (id_t)pid, &gone, WEXITED | WNOHANG | WNOWAIT) || gone.si_pid;
}

static bool wait_seconds(pid_t pid, double seconds)
{
    const double end = run_clock() + seconds;
    while (!ended(pid)) {
        const double left = end - run_clock();
        if (left <= 0) return true;
        if (left > 2e-3)
            run_nap();
        else
            nanosleep(&(struct timespec){.tv_nsec = (long)(left * 1e9)}, NULL);
    }
    return false;
}

/* Directories come and go; which are there is looked at with every event. */
static void look_at_directories(int notify)
{
    static const char *const dir[] = {"out", "out/model", "ck"};
    const uint32_t mask = IN_CREATE | IN_MOVED_TO | IN_DELETE | IN_CLOSE_WRITE;
    char path[320];
    for (int i = 0; i < 3; i++) inotify_add_watch(notify, dir[i], mask);
    DIR *d = opendir("ck");
    for (struct dirent *e; d && (e = readdir(d));) {
        if (strncmp(e->d_name, ".new", 4) && strncmp(e->d_name, "step", 4)) continue;
        snprintf(path, sizeof path, "ck/%s", e->d_name);
        inotify_add_watch(notify, path, mask);
    }
    if (d) closedir(d);
}

static bool wait_events(pid_t pid, int notify, int events)
{
    char buffer[8192] __attribute__((aligned(8)));
    while (!ended(pid)) {
        const ssize_t n = read(notify, buffer, sizeof buffer);
        look_at_directories(notify);
        for (ssize_t at = 0; at < n;
             at += (ssize_t)sizeof(struct inotify_event) + (ssize_t)((struct inotify_event *)(buffer + at))->len)
            if (--events <= 0) return true;
        if (n <= 0) nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
    }
    return false;
}

/* ---- a second process in the same directories ---- */

static pid_t rival_start(void)
{
    const pid_t pid = fork();
    if (pid) return pid;
    if (!freopen("rival.out", "w", stdout) || !freopen("rival.err", "w", stderr)) _exit(99);
    execlp(run_command(), run_command(), "train", "run.json", soak_cap[1], "output=out", "checkpoint.dir=ck",
           "--resume", (char *)NULL);
    _exit(99);
}

/* Of either: it ran to the end, was killed, or was refused in a line that names who has the run. */
static void check_rival(const char *who, bool exited, int status, const char *error)
{
    if (!exited || status == 0) return;
    if (status != 2 || !error || !strstr(error, "is in use by another run, process "))
        soak_wrong("%s of two ended with status %d: %s", who, status, error ? error : "");
    seen.refused++;
}

/* Starts the run twice where it was, and kills one of the two; true when one came to the end. */
static bool live_twice(double usual)
{
    const double later = soak_draw(2) ? 0 : usual * soak_share(), seconds = usual * soak_share();
    const bool first = soak_draw(2);
    snprintf(soak_doing, sizeof soak_doing, "kill %d (run %d, two processes %.4f s apart, the %s killed after %.4f s)",
             seen.kills + 1, seen.runs + 1, later, first ? "first" : "second", seconds);
    pid_t one = soak_start(1, "--resume");
    wait_seconds(one, later);
    const pid_t other = rival_start();
    wait_seconds(first ? one : other, seconds);
    kill(first ? one : other, SIGKILL); /* nobody, where it has ended */
    int status;
    run_finish(one);
    while (waitpid(other, &status, 0) < 0) continue;
    soak_check_gone();
    char *error = read_file("rival.err", NULL);
    check_rival("the first", ran.status < 128, ran.status, ran.err);
    check_rival("the second", WIFEXITED(status), WEXITSTATUS(status), error);
    free(error);
    remove("rival.out"), remove("rival.err");
    seen.lives++;
    const bool killed = first ? ran.status == 128 + SIGKILL : WIFSIGNALED(status);
    const bool over = ran.status == 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 0);
    seen.kills += killed;
    if (!over) soak_check_between();
    return over;
}

/* ---- one life ---- */

static void kill_them(pid_t pid, enum victim victim)
{
    pid_t rank[4];
    const int ranks = soak_ranks > 1 ? run_ranks_of(pid, rank, 4) : 0;
    if (victim >= RANK_0) { /* of ranks that do not exist yet, nobody */
        const int which = victim - RANK_0;
        kill(which < ranks ? rank[which] : pid, SIGKILL);
        return;
    }
    kill(pid, SIGKILL);
    for (int i = 0; i < ranks && victim == EVERYBODY; i++) kill(rank[i], SIGKILL);
}

/* Where the run was, by what it left. */
static int phase_of(int lines_before)
{
    char path[64];
    snprintf(path, sizeof path, "ck/step-%08d", SOAK_STEPS);
    if (names_in("ck", ".new", NULL)) return IN_CHECKPOINT;
    if (names_in("ck", "step-", NULL) > SOAK_KEEP) return REMOVING;
    if (exists("out/model/config.json") && !exists("out/model/config.json.tmp")) return ENDING;
    if (exists("out/model") || exists(path)) return SAVING;
    return count_lines("out/metrics.jsonl") == lines_before ? STARTING : STEPPING;
}

/* Starts the run where it was, and kills it; true when it ended before. `usual` is how long an undisturbed one takes.
 */
static bool live(int ranks, double usual)
{
    const bool by_event = soak_draw(2);
    const int events = 1 + (int)soak_draw(EVENTS), lines = count_lines("out/metrics.jsonl");
    const double seconds = by_event ? (soak_draw(2) ? 0 : 2e-3 * soak_share()) : usual * soak_share();
    const enum victim victim = ranks > 1 ? (enum victim)soak_draw(VICTIMS) : EVERYBODY;
    snprintf(soak_doing, sizeof soak_doing, "kill %d (run %d, %d rank%s, %s killed %.4f s after %s %d)", seen.kills + 1,
             seen.runs + 1, ranks, ranks > 1 ? "s" : "", victim_name[victim], seconds, by_event ? "event" : "start",
             by_event ? events : 0);
    const int notify = inotify_init1(IN_NONBLOCK | IN_CLOEXEC);
    look_at_directories(notify);
    pid_t pid = soak_start(ranks, "--resume");
    bool met = (!by_event || wait_events(pid, notify, events)) && wait_seconds(pid, seconds);
    if (met) kill_them(pid, victim);
    run_finish(pid);
    close(notify);
    seen.lives++;
    soak_check_gone();
    if (strstr(ran.err, "tessera: bug") || ran.status == 128 + SIGABRT || ran.status == 128 + SIGSEGV)
        soak_wrong("it crashed");
    if (ran.status == -1) soak_wrong("it did not end");
    if (ran.status == 0) return true; /* perhaps in the moment of the kill */
    if (!met) soak_wrong("it ended by itself, with status %d", ran.status);
    seen.kills++;
    seen.phase[phase_of(lines)]++;
    soak_check_between();
    return false;
}

/* Runs until there were so many kills, and then to the end of the last. */
static void kill_runs(int ranks, bool twice, int kills)
{
    run_finish(soak_start(ranks, "--resume"));
    if (ran.status) soak_wrong("a run that nobody killed ended with status %d", ran.status);
    soak_check_end();
    soak_check_tier();
    soak_forget();
    const double start = run_clock();
    run_finish(soak_start(ranks, "--resume"));
    const double usual = run_clock() - start;
    soak_forget();
    for (bool over = false; !over;) {
        if (seen.kills < kills)
            over = twice ? live_twice(usual) : live(ranks, usual);
        else {
            run_finish(soak_start(ranks, "--resume"));
            over = true;
            if (ran.status) soak_wrong("going on ended with status %d", ran.status);
        }
        if (!over) continue;
        soak_check_end();
        soak_check_gone();
        soak_forget();
        seen.runs++;
        over = seen.kills >= kills;
    }
}

int main(int argc, char **argv)
{
    const int kills = argc > 1 ? atoi(argv[1]) : 0;
    const uint64_t seed = argc > 2 ? strtoull(argv[2], NULL, 10) : 1;
    if (kills < 3) {
        fprintf(stderr, "usage: %s KILLS [SEED]\n", argv[0]);
        return 2;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* whoever loses its parent becomes ours */
    const double start = run_clock();
    soak_setup(seed, "");
    kill_runs(1, false, kills / 3);
    printf("one process: %d kills in %d runs, %.0f s\n", seen.kills, seen.runs, run_clock() - start);
    fflush(stdout);
    const int alone = seen.runs, first = seen.kills;
    kill_runs(2, false, kills / 3 * 2);
    printf("two ranks: %d kills in %d runs, %.0f s in all\n", seen.kills - first, seen.runs - alone,
           run_clock() - start);
    fflush(stdout);
    const int ranks = seen.runs, second = seen.kills;
    kill_runs(1, true, kills);
    printf("two processes in one directory: %d kills in %d runs, %d times one was refused, %.0f s in all, seed "
           "%llu\nkilled",
           seen.kills - second, seen.runs - ranks, seen.refused, run_clock() - start, (unsigned long long)seed);
    for (int i = 0; i < 6; i++) printf("%s %s: %d", i ? "," : "", phase_name[i], seen.phase[i]);
    printf("\n1 passed, 0 failed, 0 skipped\n");
    return 0;
}
