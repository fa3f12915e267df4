/* What the soaks share: a small run under a cap with a disk tier and checkpoints, alone or as two ranks, the same run
 * undisturbed, and what must hold of the files that disturbed ones leave.
 *
 *     soak_setup(seed);                        // a directory with run.json, and whole/, what the run comes to
 *     pid_t pid = soak_start(2, "--resume");   // as two ranks
 *     ...                                      // disturb it
 *     run_finish(pid);
 *     soak_check_between();                    // nothing half-written under a name that counts
 *     soak_check_end();                        // of a run that ended: the same bytes, and nothing else
 */
#ifndef TESS_TESTS_SOAK_H
#define TESS_TESTS_SOAK_H
#include "tests/tools/tiny.h"
#include <errno.h>

enum { SOAK_STEPS = 18, SOAK_EVERY = 3, SOAK_KEEP = 2 };

static char soak_cap[3][48]; /* memory.cpu=..., by ranks: the least that the command itself names, and some */
static int soak_ranks = 1;   /* of the last run */

/* ---- chance ---- */

static uint64_t soak_state;

static inline uint64_t soak_bits(void)
{
    uint64_t x = soak_state += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t soak_draw(uint64_t below)
{
    return soak_bits() % below;
}

static inline double soak_share(void)
{
    return (double)(soak_bits() >> 11) * 0x1p-53;
}

/* ---- what is wrong ---- */

static char soak_doing[400]; /* for messages: what was done to the run that goes wrong */

/* Ends the soak; the directory stays as it is, for who looks into it. */
__attribute__((format(printf, 1, 2))) static inline void soak_wrong(const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    printf("WRONG: %s: ", soak_doing);
    vprintf(format, ap);
    va_end(ap);
    printf("\nstderr of the last run: %s\nits files are in %s\n0 passed, 1 failed, 0 skipped\n", ran.err ? ran.err : "",
           run_dir);
    fflush(stdout);
    _exit(1);
}

/* ---- the run ---- */

static inline pid_t soak_start_to(int ranks, const char *more, const char *output, const char *ck)
{
    soak_ranks = ranks;
    const char *arg[8] = {"train", "run.json", soak_cap[ranks], output, ck, more};
    return ranks > 1 ? run_start_ranks(ranks, run_command(), arg) : run_start(arg);
}

static inline pid_t soak_start(int ranks, const char *more)
{
    return soak_start_to(ranks, more, "output=out", "checkpoint.dir=ck");
}

static inline void soak_remove(const char *path)
{
    nftw(path, run_remove, 16, FTW_DEPTH | FTW_PHYS);
}

/* All variables that would let runs meet others of the machine. */
static inline void soak_environment(void)
{
    static const struct {
        const char *name, *below;
    } dir[] = {{"XDG_CACHE_HOME", "/cache"},
               {"STARPU_HOME", ""},
               {"TMPDIR", "/tmp"},
               {"OMPI_MCA_btl_vader_backing_directory", "/tmp"}};
    char text[3200];
    for (size_t i = 0; i < sizeof dir / sizeof *dir; i++) {
        snprintf(text, sizeof text, "%s%s", run_dir, dir[i].below);
        setenv(dir[i].name, text, 1);
    }
    setenv("STARPU_NCPU", "1", 1);
    setenv("STARPU_WORKERS_NOBIND", "1", 1);
    setenv("STARPU_SILENT", "1", 1);
}

static inline void soak_setup(uint64_t seed, const char *members)
{
    char text[2000];
    soak_state = seed;
    snprintf(soak_doing, sizeof soak_doing, "setting up");
    fresh();
    mkdir("swap", 0777), mkdir("tmp", 0777), mkdir("cache", 0777);
    soak_environment();
    write_tiny_text("text.txt", TINY_TOKENS, 1);
    snprintf(
        text, sizeof text,
        "{\"model\": {\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 64,"
        " \"n_layer\": 2, \"n_head\": 4},\n \"data\": {\"train\": \"text.txt\", \"seq_length\": 16},\n"
        " \"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, \"steps\": %d, \"deterministic\": true,\n"
        " \"gradient_clipping\": 0.5, \"log_every\": 1000, \"output\": \"out\",\n"
        " \"memory\": {\"path\": \"swap\"%s},\n"
        " \"checkpoint\": {\"dir\": \"ck\", \"every\": %d, \"keep\": %d}}\n",
        SOAK_STEPS, members, SOAK_EVERY, SOAK_KEEP);
    write_text("run.json", text);
    for (int ranks = 1; ranks <= 2; ranks++) {
        snprintf(soak_cap[ranks], sizeof soak_cap[0], "memory.cpu=1MiB");
        run_finish(soak_start(ranks, NULL));
        long least = named_in_error(WIDE_LEAST);
        if (least <= 0) soak_wrong("the command names no cap that would do");
        snprintf(soak_cap[ranks], sizeof soak_cap[0], "memory.cpu=%ldMiB", least);
    }
    /* Without a cap and a disk, and with all checkpoints: that of the others are among them. */
    RUN("train", "run.json", "output=whole", "checkpoint.dir=whole-ck", "checkpoint.keep=100",
        "memory.path=", "memory.cpu=auto");
    if (ran.status) soak_wrong("the undisturbed run ended with status %d", ran.status);
    keep_rates("cache/tessera/machine.json");
    keep_rates("cache/tessera/machine-1.json");
}

/* ---- what must hold ---- */

static inline void soak_same(const char *ours, const char *theirs)
{
    if (!same_file(ours, theirs)) soak_wrong("%s is another than %s", ours, theirs);
}

/* Of what a run left at any moment: what has a checkpoint's name is whole, and all else is what the next start knows
 * how to remove. */
static inline void soak_check_between(void)
{
    const char *left = others_in("swap", "");
    if (*left) soak_wrong("left in swap: %s", left);
    DIR *d = opendir("ck");
    int fresh_ones = 0;
    for (struct dirent *e; d && (e = readdir(d));) {
        char ours[300], theirs[300];
        int step;
        if (!strncmp(e->d_name, ".new-step-", 10)) fresh_ones++;
        if (e->d_name[0] == '.' || !strcmp(e->d_name, "run.lock")) continue; /* whose holder is gone */
        if (sscanf(e->d_name, "step-%d", &step) != 1 || step % SOAK_EVERY) soak_wrong("ck/%s", e->d_name);
        static const char *const name[] = {"states.safetensors", "state.json", "sums.json"};
        for (int i = 0; i < 3; i++) {
            snprintf(ours, sizeof ours, "ck/%.40s/%s", e->d_name, name[i]);
            snprintf(theirs, sizeof theirs, "whole-ck/%.40s/%s", e->d_name, name[i]);
            soak_same(ours, theirs);
        }
    }
    if (d) closedir(d);
    if (fresh_ones > 1) soak_wrong("%d checkpoints begun", fresh_ones);
    left = others_in("out", "config.json config.json.new metrics.jsonl model plan.json plan.json.new report.html "
                            "report.html.new run.lock");
    if (*left) soak_wrong("left in out: %s", left);
}

/* The lines that metrics.jsonl promises: one a step, in order, with the numbers of the undisturbed run. */
static inline void soak_check_metrics(void)
{
    static const char *const same[] = {"step", "loss", "lr", "grad_norm", "tokens"};
    json_t *ours = read_metrics("out/metrics.jsonl"), *theirs = read_metrics("whole/metrics.jsonl");
    if (json_array_size(ours) != SOAK_STEPS) soak_wrong("metrics.jsonl has %zu lines", json_array_size(ours));
    for (size_t s = 0; s < SOAK_STEPS; s++)
        for (size_t i = 0; i < sizeof same / sizeof *same; i++)
            if (number_of(ours, s, same[i]) != number_of(theirs, s, same[i]))
                soak_wrong("metrics.jsonl, line %zu: %s is %.17g, undisturbed %.17g", s + 1, same[i],
                           number_of(ours, s, same[i]), number_of(theirs, s, same[i]));
    json_decref(ours);
    json_decref(theirs);
}

/* The last run moved tiles to disk and back: else it shows nothing of the tier. */
static inline void soak_check_tier(void)
{
    json_t *all = read_metrics("out/metrics.jsonl");
    const json_t *disk = json_object_get(json_array_get(all, json_array_size(all) - 1), "disk");
    if (!(json_number_value(json_object_get(disk, "write_bytes")) > 0)) soak_wrong("nothing went to disk");
    json_decref(all);
}

/* Of a run that ended: the bytes of the undisturbed one, and no file beside what it leaves. */
static inline void soak_check_end(void)
{
    static const char known[] = "config.json model.safetensors";
    char last[2][64];
    for (int i = 0; i < 2; i++) snprintf(last[i], sizeof last[i], "step-%08d", SOAK_STEPS - i * SOAK_EVERY);
    soak_check_between();
    soak_same(TINY_WEIGHTS, "whole/model/model.safetensors");
    soak_same("out/model/config.json", "whole/model/config.json");
    soak_check_metrics();
    const char *left = others_in("out/model", known);
    if (*left) soak_wrong("left in out/model: %s", left);
    left = others_in("out", "config.json metrics.jsonl model plan.json report.html");
    if (*left) soak_wrong("left in out: %s", left);
    char both[160];
    snprintf(both, sizeof both, "%s %s", last[0], last[1]);
    left = others_in("ck", both);
    if (*left) soak_wrong("left in ck: %s", left);
    for (int i = 0; i < 2; i++) {
        char path[100];
        snprintf(path, sizeof path, "ck/%s", last[i]);
        if (!exists(path)) soak_wrong("%s is missing", path);
    }
    left = others_in(".", "swap tmp cache text.txt run.json whole whole-ck out ck .starpu .cache");
    if (*left) soak_wrong("left beside them: %s", left);
}

/* All that the last run started has ended: this program, to which orphans come, has no children left. */
static inline void soak_check_gone(void)
{
    double end = run_clock() + RUN_SECONDS;
    int status;
    for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG)) >= 0;) {
        if (!pid && run_clock() > end) soak_wrong("a process that it started still runs");
        if (!pid) run_nap();
    }
}

/* What this run left of itself for later ones. */
static inline void soak_forget(void)
{
    soak_remove("out");
    soak_remove("ck");
}

#endif
