/* What tracing costs: steps of one list of tasks, of which every second one is traced, so that what else happens on the
 * machine meets both alike. The figures are the medians of the ratios of neighbours: of their time, and of the time
 * that the process had of the cores, all threads together, which other load changes less.
 *
 *     build/tests/bench_trace [TASKS [MICROSECONDS [STEPS]]]        500 tasks of 500 us, 200 steps
 */
#include "runtime/runtime.h"
#include <stdlib.h>
#include <time.h>

static double microseconds = 500, rate;

/* Some work that nobody measures the time of. */
static double spin(double rounds)
{
    volatile double x = 1;
    for (double k = 0; k < rounds; k++) x = x * 1.0000001 + 1e-9;
    return x;
}

static void work(const tess_work *w)
{
    float *x = w->buf[0].ptr;
    *x = (float)spin(microseconds * rate);
}

static tess_codelet cl = {.name = "work", .dtype = TESS_F32, .cpu = work};

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double core_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double step(const tess_task *task, size_t n, bool traced, int k, double *cores)
{
    const double before = core_seconds();
    if (traced) tess_trace_begin();
    const double begin = tess_seconds();
    if (tess_submit_all(task, n) != TESS_OK || tess_wait() != TESS_OK) exit(1);
    const double end = tess_seconds();
    if (traced) tess_trace_end(k, begin, end);
    *cores = core_seconds() - before;
    return end - begin;
}

int main(int argc, char **argv)
{
    enum { TILES = 16 };
    const size_t n = argc > 1 ? (size_t)atoi(argv[1]) : 500;
    const int steps = argc > 3 ? atoi(argv[3]) : 200;
    if (argc > 2) microseconds = atof(argv[2]);
    tess_tile *tile[TILES];
    tess_use *use = tess_alloc(n * sizeof *use);
    tess_task *task = tess_alloc(n * sizeof *task);
    double *ratio = tess_alloc((size_t)steps * sizeof *ratio), *share = tess_alloc((size_t)steps * sizeof *share), c, d,
           traced = 0, plain = 0, start = tess_seconds();
    spin(1e7);
    rate = 1e7 / (1e6 * (tess_seconds() - start)); /* rounds a microsecond */
    if (tess_start(NULL) != TESS_OK) return 1;
    for (int i = 0; i < TILES; i++) tile[i] = tess_tile_new(4096, TESS_ROLE_ACTIVATION, "tile");
    for (size_t i = 0; i < n; i++) {
        use[i] = (tess_use){tile[i % TILES], TESS_W};
        task[i] = (tess_task){.cl = &cl, .use = &use[i], .nuse = 1, .order = (uint32_t)i};
    }
    char path[] = "trace-XXXXXX";
    if (mkstemp(path) < 0) return 1;
    if (tess_trace_open(&(tess_trace_conf){.path = path, .origin = tess_seconds(), .about = "{}"}) != TESS_OK) return 1;
    for (int k = -4; k < steps; k++) { /* the first warm up; who begins alternates */
        const double a = step(task, n, k & 1, k, &c), b = step(task, n, !(k & 1), k, &d);
        if (k < 0) continue;
        ratio[k] = k & 1 ? a / b : b / a;
        share[k] = k & 1 ? c / d : d / c;
        traced += k & 1 ? a : b;
        plain += k & 1 ? b : a;
    }
    tess_trace_close(NULL, 0);
    remove(path);
    qsort(ratio, (size_t)steps, sizeof *ratio, ascending);
    qsort(share, (size_t)steps, sizeof *share, ascending);
    printf("%zu tasks of %.0f us on %d workers: traced %.2f ms, not %.2f ms; of %d pairs the median ratio is %.4f "
           "(quartiles %.4f, %.4f), of the cores' time %.4f (%.4f, %.4f)\n",
           n, microseconds, tess_workers(), 1e3 * traced / steps, 1e3 * plain / steps, steps, ratio[steps / 2],
           ratio[steps / 4], ratio[3 * steps / 4], share[steps / 2], share[steps / 4], share[3 * steps / 4]);
    for (int i = 0; i < TILES; i++) tess_tile_free(tile[i]);
    tess_stop();
    free(ratio);
    free(share);
    free(task);
    free(use);
    return 0;
}
