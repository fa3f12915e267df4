/* What tiles travel at between two ranks, both ways at once, by each carrier, in turns, of which medians are compared.
 * Every byte that arrives is checked after each turn. Behind the rates stands the most memory that rank 0 had while a
 * carrier ran: its tiles, StarPU, MPI, and what came early.
 *
 *     mpirun -n 2 bench_message [MiB each way and turn]
 */
#include "runtime/runtime.h"
#include <stdlib.h>
#include <string.h>

enum { SET = 64 << 20 /* bytes of tiles each way */, TURNS = 5 };

static struct {
    int n; /* tiles each way */
    size_t bytes;
    tess_tile **out, **in;
    tess_task *task;
    tess_use *use;
    tess_message_arg *arg;
    tess_span *span;
} set;

static void must(int failed, const char *what)
{
    if (!failed) return;
    fprintf(stderr, "rank %d: %s: %s\n", tess_rank(), what, tess_error_text());
    tess_ranks_abort(1);
}

static void add(int k, tess_tile *t, bool sends, int tag)
{
    const int peer = 1 - tess_rank();
    set.span[k] = (tess_span){.peer = peer, .tag = tag, .sends = sends, .bytes = set.bytes};
    set.arg[k] = (tess_message_arg){.spans = 1, .span = &set.span[k]};
    set.use[k] = (tess_use){t, sends ? TESS_R : TESS_W};
    set.task[k] =
        (tess_task){.cl = &tess_message, .arg = &set.arg[k], .use = &set.use[k], .nuse = 1, .order = (uint32_t)k};
}

static void make_set(size_t bytes)
{
    set.bytes = bytes;
    set.n = (int)(SET / bytes);
    const size_t n = (size_t)set.n;
    set.out = tess_alloc(n * sizeof *set.out);
    set.in = tess_alloc(n * sizeof *set.in);
    set.task = tess_alloc(2 * n * sizeof *set.task);
    set.use = tess_alloc(2 * n * sizeof *set.use);
    set.arg = tess_alloc(2 * n * sizeof *set.arg);
    set.span = tess_alloc(2 * n * sizeof *set.span);
    for (int k = 0; k < set.n; k++) {
        void *data;
        set.out[k] = tess_tile_new(bytes, TESS_ROLE_ACTIVATION, "out");
        set.in[k] = tess_tile_new(bytes, TESS_ROLE_ACTIVATION, "in");
        must(tess_tile_map(set.out[k], TESS_W, &data), "a tile");
        memset(data, k % 251 + tess_rank(), bytes);
        tess_tile_unmap(set.out[k]);
        add(2 * k, set.in[k], false, k);
        add(2 * k + 1, set.out[k], true, k);
    }
}

static void free_set(void)
{
    for (int k = 0; k < set.n; k++) {
        unsigned char *data;
        size_t wrong = 0;
        must(tess_tile_map(set.in[k], TESS_R, (void **)&data), "a tile");
        for (size_t i = 0; i < set.bytes; i++) wrong += data[i] != k % 251 + 1 - tess_rank();
        must(wrong > 0, "what arrived is not what was sent");
        tess_tile_unmap(set.in[k]);
        tess_tile_free(set.in[k]);
        tess_tile_free(set.out[k]);
    }
    free(set.out);
    free(set.in);
    free(set.task);
    free(set.use);
    free(set.arg);
    free(set.span);
}

/* All passes over the set are submitted before the first has ended, as the messages of a step are. */
static void send(int passes)
{
    for (int pass = 0; pass < passes; pass++) must(tess_submit_all(set.task, 2 * (size_t)set.n), "submission");
    must(tess_wait(), "the wait");
}

/* The kernel forgets the most memory that this process ever had. */
static void forget_peak(void)
{
    FILE *f = fopen("/proc/self/clear_refs", "w");
    if (!f) return;
    fputs("5", f);
    fclose(f);
}

static double peak(void)
{
    char line[256];
    double kib = 0;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f)) sscanf(line, "VmHWM: %lf", &kib);
    if (f) fclose(f);
    return 1024 * kib;
}

/* Of one carrier, on a StarPU of its own. */
static double turn(tess_carriers by, size_t bytes, int passes)
{
    forget_peak();
    must(tess_start(&(tess_machine){.carrier = by}), "start");
    make_set(bytes);
    send(1); /* places for what comes, and connections */
    tess_ranks_barrier();
    double start = tess_seconds();
    send(passes);
    tess_ranks_barrier();
    const double seconds = tess_seconds() - start;
    free_set();
    tess_stop();
    return (double)SET * passes / seconds / 1e9;
}

static int ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name;
        tess_carriers by;
    } carriers[] = {
        {"MPI", TESS_CARRIER_MPI},
#ifdef TESS_HAVE_STARPU_MPI
        {"StarPU-MPI", TESS_CARRIER_STARPU_MPI},
#endif
    };
    enum { CARRIERS = sizeof carriers / sizeof *carriers };
    const int passes = argc > 1 ? atoi(argv[1]) / (SET >> 20) : 8;
    must(tess_ranks_join(), "joining");
    must(tess_ranks() != 2 || passes < 1, "usage: mpirun -n 2 bench_message [MiB each way, 64 or more]");
    if (!tess_rank()) {
        printf("GB/s each way, both at once, %d cores a rank; median (least-most) of %d turns\n%10s", tess_cores(),
               TURNS, "tile");
        for (int c = 0; c < CARRIERS; c++) printf("  %24s  %9s", carriers[c].name, "peak");
        printf("\n");
    }
    for (size_t bytes = 64 << 10; bytes <= 16 << 20; bytes *= 4) {
        double rate[CARRIERS][TURNS], most[CARRIERS] = {0};
        for (int k = 0; k < TURNS; k++)
            for (int c = 0; c < CARRIERS; c++) {
                rate[c][k] = turn(carriers[c].by, bytes, passes);
                if (peak() > most[c]) most[c] = peak();
            }
        if (!tess_rank()) printf("%10s", tess_human_bytes((double)bytes));
        for (int c = 0; c < CARRIERS; c++) {
            qsort(rate[c], TURNS, sizeof rate[c][0], ascending);
            if (!tess_rank())
                printf("  %8.2f (%5.2f -%6.2f)  %9s", rate[c][TURNS / 2], rate[c][0], rate[c][TURNS - 1],
                       tess_human_bytes(most[c]));
        }
        if (!tess_rank()) printf("\n");
        fflush(stdout);
    }
    tess_ranks_leave();
    return 0;
}
