/* Runs on a disk that fills, fails, comes short, comes late and turns bits: each ends with the bytes of the undisturbed
 * run, or in one line with exit status 1, nothing half-written left behind; and then goes on to the same bytes.
 *
 *     faults FAULTY.so 200 [SEED]     (tests/soak/faults builds and starts it)
 *
 * What there is to fail is counted in undisturbed runs (faulty.c); of these kinds of operations each is as likely, and
 * of the operations of a kind each as well. Half of the runs are of two ranks, of which one meets the fault, half go on
 * from a checkpoint, and half have threads instead of a ring to move tiles. */
#include "tests/soak/soak.h"

enum { KINDS = 200, FROM = 9 };
enum operation { OPEN, READ, WRITE, SYNC, RENAME, TRUNCATE, MAKE, REMOVE, CLOSE };
static const char *const operation_name[] = {"open",     "read", "write",  "sync", "rename",
                                             "truncate", "make", "remove", "close"};
enum place { SWAP = 1, CHECKPOINT, OUTPUT, CACHE, DATA };
static const char *const place_name[] = {"", "swap", "checkpoint", "output", "cache", "data"};
enum how { FAIL, SHORT, LATE, FLIP, HOWS };
static const char *const how_name[] = {"fails", "comes short", "comes late", "turns a bit"};

static const char *faulty;

/* Operations of a kind, of a rank, in an undisturbed run. */
struct kind {
    int rank, operation, place;
    long count;
};
static struct kinds {
    struct kind kind[KINDS];
    int n;
} kinds[3][2]; /* by ranks, and with a ring */

struct fault {
    int ranks, ring, resumes, operation, place, how, often, error, rank;
    long which;
};

static struct {
    int met[HOWS], unmet, right[HOWS], one_line[HOWS], status_2;
} seen;

/* ---- runs below faulty.c ---- */

static pid_t start(int ranks, int ring, const char *faults, const char *more)
{
    char preload[3200], plan[200], rings[32], path[3200];
    snprintf(preload, sizeof preload, "LD_PRELOAD=%s", faulty);
    snprintf(plan, sizeof plan, "FAULTS%s=%s", faults ? "" : "_COUNT", faults ? faults : "counts");
    snprintf(rings, sizeof rings, "FAULTS_RING=%d", ring);
    snprintf(path, sizeof path, "FAULTS_MET=met");
    soak_ranks = ranks;
    if (ranks > 1) {
        const char *arg[] = {"--oversubscribe",
                             "-n",
                             "2",
                             "-x",
                             preload,
                             "-x",
                             plan,
                             "-x",
                             rings,
                             "-x",
                             path,
                             run_command(),
                             "train",
                             "run.json",
                             soak_cap[2],
                             "output=out",
                             "checkpoint.dir=ck",
                             more,
                             NULL};
        return run_start_program("mpirun", arg);
    }
    const char *arg[] = {preload, plan,       rings,       path,         run_command(),
                         "train", "run.json", soak_cap[1], "output=out", "checkpoint.dir=ck",
                         more,    NULL};
    return run_start_program("env", arg);
}

static void read_counts(struct kinds *k)
{
    FILE *f = fopen("counts", "r");
    if (!f) soak_wrong("nothing was counted");
    struct kind one;
    while (k->n < KINDS && fscanf(f, "%d %d %d %ld %*s %*s", &one.rank, &one.operation, &one.place, &one.count) == 4)
        k->kind[k->n++] = one;
    fclose(f);
    remove("counts");
}

static void count_all(void)
{
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int ring = 0; ring < 2; ring++) {
            snprintf(soak_doing, sizeof soak_doing, "counting (%d ranks, ring %d)", ranks, ring);
            run_finish(start(ranks, ring, NULL, NULL));
            if (ran.status) soak_wrong("it ended with status %d", ran.status);
            soak_check_tier();
            read_counts(&kinds[ranks][ring]);
            soak_check_end();
            soak_forget();
        }
}

/* ---- a fault ---- */

static int choose_error(int operation)
{
    const bool grows = operation == WRITE || operation == TRUNCATE || operation == MAKE || operation == OPEN;
    return grows ? (int[]){ENOSPC, EIO, EDQUOT}[soak_draw(3)] : EIO;
}

static struct fault choose(void)
{
    struct fault f = {.ranks = 1 + (int)soak_draw(2), .ring = (int)soak_draw(2), .resumes = (int)soak_draw(2)};
    const struct kinds *k = &kinds[f.ranks][f.ring];
    const struct kind *kind = &k->kind[soak_draw((uint64_t)k->n)];
    f.operation = kind->operation, f.place = kind->place, f.rank = kind->rank;
    f.which = 1 + (long)soak_draw((uint64_t)kind->count);
    const bool moves = f.operation == READ || f.operation == WRITE;
    const uint64_t how = soak_draw(10);
    f.how = moves && how < 3 ? SHORT : f.operation == READ && how < 6 ? FLIP : how == 9 ? LATE : FAIL;
    f.error = choose_error(f.operation);
    if (f.how == FAIL || f.how == FLIP)
        f.often = (int[]){0, 0, 1, 3}[soak_draw(4)];
    else
        f.which = 1, f.often = f.how == LATE ? 8 : 1 + (int)soak_draw(4);
    if (f.how == FAIL && soak_draw(10) == 0) f.operation = -1, f.often = 1; /* all of a place, from then on */
    return f;
}

/* Chance would rarely take it: the run's own files cannot be opened, for the disk is full. */
static const struct fault first = {
    .ranks = 1, .operation = OPEN, .place = OUTPUT, .how = FAIL, .often = 1, .error = ENOSPC, .which = 1};

static void describe(const struct fault *f, int number)
{
    snprintf(soak_doing, sizeof soak_doing,
             "run %d (%d rank%s%s, %s): %s of %s %s with errno %d, the %ldth%s, of rank %d", number, f->ranks,
             f->ranks > 1 ? "s" : "", f->resumes ? ", resumed" : "", f->ring ? "a ring" : "threads",
             f->operation < 0 ? "anything" : operation_name[f->operation], place_name[f->place], how_name[f->how],
             f->error, f->which,
             f->often == 0   ? " alone"
             : f->often == 1 ? " and all after"
                             : " and some after",
             f->rank);
}

/* A checkpoint to go on from, and the metrics as far. */
static void begin_from_checkpoint(void)
{
    char command[200];
    snprintf(command, sizeof command, "mkdir ck out && cp -r whole-ck/step-%08d ck/ && cp whole/metrics.jsonl out/",
             FROM);
    if (system(command)) soak_wrong("%s", command);
}

/* It failed: in one line, with nothing half-written left, unless removing is what failed. */
static void check_failed(const struct fault *f)
{
    static const char *const any[] = {NULL};
    const char *wrong = f->ranks > 1 ? run_ranks_mismatch(ran.status, any) : run_error_mismatch(ran.status, any);
    if (wrong) soak_wrong("%s", wrong);
    /* What a turned bit makes of a file is wrong input. */
    if (ran.status != 1 && (ran.status != 2 || f->how != FLIP)) soak_wrong("it ended with status %d", ran.status);
    if (f->place == CACHE || f->how == LATE) soak_wrong("it ended with status %d for this", ran.status);
    seen.status_2 += ran.status == 2;
    const bool removes = f->operation != REMOVE && f->operation >= 0;
    if (removes && names_in("ck", ".new", NULL)) soak_wrong("left in ck: a checkpoint begun");
    const char *left = others_in("out/model", "config.json model.safetensors");
    if (removes && *left) soak_wrong("left in out/model: %s", left);
}

static void suffer(int number)
{
    const struct fault f = number == 1 ? first : choose();
    char faults[160];
    describe(&f, number);
    snprintf(faults, sizeof faults, "%d %d %d %ld %d %d %llu %d", f.operation, f.place, f.how, f.which, f.often,
             f.error, (unsigned long long)soak_bits(), f.rank);
    if (f.resumes) begin_from_checkpoint();
    remove("met");
    run_finish(start(f.ranks, f.ring, faults, "--resume"));
    const bool met = exists("met"), right = ran.status == 0;
    remove("met");
    soak_check_gone();
    if (ran.status == -1) soak_wrong("it did not end");
    const bool removes = f.operation != REMOVE && f.operation >= 0;
    if (!right) check_failed(&f);
    if (removes) right ? soak_check_end() : soak_check_between();
    met ? seen.met[f.how]++ : seen.unmet++;
    *(right ? &seen.right[f.how] : &seen.one_line[f.how]) += met;
    if (!met && !right) soak_wrong("nothing happened to it, and it ended with status %d", ran.status);
    run_finish(soak_start(f.ranks, "--resume"));
    if (ran.status) soak_wrong("going on from there ended with status %d", ran.status);
    soak_check_end();
    soak_forget();
}

int main(int argc, char **argv)
{
    const int runs = argc > 2 ? atoi(argv[2]) : 0;
    const uint64_t seed = argc > 3 ? strtoull(argv[3], NULL, 10) : 1;
    if (runs < 1) {
        fprintf(stderr, "usage: %s FAULTY.so RUNS [SEED]\n", argv[0]);
        return 2;
    }
    faulty = realpath(argv[1], NULL); /* the runs start elsewhere */
    if (!faulty) {
        perror(argv[1]);
        return 2;
    }
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* whoever loses its parent becomes ours */
    const double begin = run_clock();
    soak_setup(seed, ", \"checksum\": true");
    count_all();
    for (int i = 1; i <= runs; i++) suffer(i);
    printf("%d runs, %.0f s, seed %llu; of those below, met in time:\n", runs, run_clock() - begin,
           (unsigned long long)seed);
    for (int h = 0; h < HOWS; h++)
        printf("  the disk %-12s %4d runs: %d with the right bytes, %d in one line\n", how_name[h], seen.met[h],
               seen.right[h], seen.one_line[h]);
    printf("  nothing              %4d runs\n%d of the lines with exit status 2\n1 passed, 0 failed, 0 skipped\n",
           seen.unmet, seen.status_2);
    return 0;
}
