/* This machine as a file: its yardsticks, and what codelets reach of them. */
#include "models/train/bench/bench.h"
#include "tools/simulate/simulation.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* All are taken to be as the first. What GPUs reach of each other is not measured: they have the link to RAM. */
static void add_gpus(const char *path, tess_simulated_gpus *g)
{
    tess_gpu_copies copies;
    char name[sizeof g->name];
    const uint64_t bytes = tess_gpu_about(name, sizeof name);
    const int count = tess_gpus() < TESS_SIMULATED_GPUS ? tess_gpus() : TESS_SIMULATED_GPUS;
    if (!bytes) return;
    if (!tess_gpu_copies_measure(&copies)) {
        tess_note("%s: its GPU was not measured: it has no memory left for that", path);
        return;
    }
    if (!g->count) {
        *g = (tess_simulated_gpus){.shares = {TESS_GPU_MATRIX_SHARE, TESS_GPU_COPY_SHARE}, .host_gpus = 1};
    }
    g->count = count;
    snprintf(g->name, sizeof g->name, "%s", name);
    g->bytes = bytes;
    g->copy_rate = copies.within;
    g->host_rate = fmin(copies.to, copies.from);
    for (int t = 0; t < TESS_YARDSTICKS; t++) g->matrix_rate[t] = tess_yardstick_best((tess_dtype)t) / tess_gpus();
}

tess_status tess_machine_write_here(const char *path)
{
    tess_simulated m = {.shares = {TESS_MATRIX_SHARE, TESS_COPY_SHARE}, .drive_share = 1, .nodes = 1};
    tess_hardware h;
    tess_yardstick y;
    if (tess_ranks() > 1)
        return tess_error(TESS_INVALID, path,
                          "describes a whole machine, and %d ranks have parts of it (start one process)", tess_ranks());
    if (!access(path, F_OK)) TESS_TRY(tess_machine_read(path, &m));
    tess_hardware_read(&h);
    const bool drive = tess_yardstick_read(".", false, &y) == TESS_OK;
    if (!drive) tess_note("%s: its drive was not measured: %s", path, tess_error_text());
    snprintf(m.name, sizeof m.name, "%.63s", h.cpu_name);
    m.cores = y.cores;
    m.ram_bytes = h.ram_bytes;
    m.copy_rate = y.copy_rate;
    if (drive) m.drive = y.drive, m.has_drive = true;
    for (int t = 0; t < TESS_YARDSTICKS; t++) m.matrix_rate[t] = y.matrix_rate[t], m.reached[t] = y.reached[t];
    add_gpus(path, &m.gpus);
    return tess_machine_write(path, &m);
}

static tess_simulated_share *find_share(tess_simulated_shares *s, const char *codelet)
{
    for (int i = 0; i < s->codelets; i++)
        if (!strcmp(s->codelet[i].codelet, codelet)) return &s->codelet[i];
    return s->codelets < TESS_SIMULATED_SHARES ? &s->codelet[s->codelets++] : NULL;
}

static tess_simulated_point *find_point(tess_simulated_shares *s, int of, tess_cost c)
{
    for (int i = 0; i < s->points; i++) {
        const tess_simulated_point *p = &s->point[i];
        if (p->of == of && p->rows == c.rows && fabs(p->flops - c.flops - c.lost) <= 1e-5 * p->flops &&
            fabs(p->bytes - c.bytes) <= 1e-5 * c.bytes)
            return &s->point[i];
    }
    if (s->points == TESS_SIMULATED_POINTS) return NULL;
    s->point[s->points] = (tess_simulated_point){.of = of, .flops = c.flops + c.lost, .bytes = c.bytes, .rows = c.rows};
    return &s->point[s->points++];
}

/* What tasks of each codelet reach on cores, or on a GPU, in all and by their work. Of several turns the best: other
 * programs only ever make a codelet slower. Returns the seconds of all. */
static double add_codelets(tess_simulated *m, bool gpu)
{
    tess_simulated_shares *s = gpu ? &m->gpus.shares : &m->shares;
    TESS_FREED tess_profile_shape *shape = tess_alloc(TESS_PROFILE_SHAPES * sizeof *shape);
    const int n = tess_profile_shapes(shape);
    double all = 0;
    for (int k = 0; k < n;) {
        const tess_profile_shape *first = &shape[k];
        double bounds = 0, busy = 0;
        char name[64];
        snprintf(name, sizeof name, "%.50s %s", first->name, tess_dtype_name(first->dtype));
        tess_simulated_share *share = find_share(s, name);
        for (; k < n && shape[k].name == first->name && shape[k].dtype == first->dtype; k++) {
            const tess_cost cost = shape[k].cost;
            const double bound = (double)shape[k].tasks * (gpu ? tess_simulated_gpu_bound(&m->gpus, first->dtype, cost)
                                                               : tess_simulated_bound(m, first->dtype, cost));
            all += shape[k].busy;
            if (!share || !(bound > 0) || !(shape[k].busy > 0)) continue;
            tess_simulated_point *p = find_point(s, (int)(share - s->codelet), cost);
            if (p) p->share = fmax(fmax(bound / shape[k].busy, TESS_LEAST_SHARE), p->share);
            bounds += bound, busy += shape[k].busy;
        }
        if (!share) continue;
        snprintf(share->codelet, sizeof share->codelet, "%s", name);
        if (busy > 0) share->share = fmax(fmax(bounds / busy, TESS_LEAST_SHARE), share->share);
        if (!(share->share > 0)) share->share = s->copies;
    }
    return all;
}

/* Returns the share of its rates that the drive reached while a transfer was under way, or 0 if none was. Busy cores
 * delay the thread that hands it the next tile. */
static double drive_share(const tess_simulated *m, const tess_bench_run *b)
{
    uint64_t read, written, used, peak;
    tess_disk_traffic(&read, &written, &used, &peak);
    const double busy = tess_disk_busy_seconds() - b->drive_busy,
                 alone = tess_drive_seconds(&m->drive, (double)(read - b->read), (double)(written - b->written));
    return b->run.machine.disk && m->has_drive && busy > 0 ? fmin(alone / busy, 1) : 0;
}

static void add_shares(void *machine, FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    tess_simulated *m = machine;
    tess_bench_print(out, b, median, p, steps);
    add_codelets(m, false);
    const double drive = drive_share(m, b);
    if (drive > TESS_LEAST_SHARE && (drive > m->drive_share || m->drive_share == 1)) m->drive_share = drive;
    if (p->around > 0 && (!(m->task_seconds > 0) || p->around < m->task_seconds)) m->task_seconds = p->around;
}

/* What a core carries of messages between ranks of a machine, of several turns the most. */
static void add_messages(void *machine, FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    tess_simulated *m = machine;
    uint64_t sent, received;
    tess_bench_print(out, b, median, p, steps);
    tess_message_traffic(&sent, &received);
    const double cores = tess_message_cores() - b->cores;
    if (cores > 0)
        m->message_rate = fmax(m->message_rate, (double)(received - b->received) / cores);
    else
        tess_note("the CPU time of messages was not measured: %s carries them (parallel.carrier=mpi allows it)",
                  tess_message_carrier());
}

/* Several ranks, which are all of this machine, add what messages take of its cores. */
static tess_status bench_ranks(const tess_config *c, int steps, const char *path, FILE *out)
{
    tess_simulated m = {0};
    TESS_TRY(tess_ranks_agree(tess_rank() ? TESS_OK : tess_machine_read(path, &m)));
    if (tess_share_read()->ranks < tess_ranks())
        return tess_ranks_agree(
            tess_error(TESS_INVALID, path, "is of one machine, and these %d ranks are on several", tess_ranks()));
    TESS_TRY(tess_bench_told(c, steps, out, NULL, add_messages, &m));
    return tess_ranks_agree(tess_rank() ? TESS_OK : tess_machine_write(path, &m));
}

struct gpu_bench {
    tess_simulated m;
    double bodies; /* seconds a step */
};

static void add_gpu_shares(void *of, FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    struct gpu_bench *g = of;
    (void)out, (void)b, (void)median, (void)p;
    g->bodies = add_codelets(&g->m, true) / steps;
}

/* What a step takes beyond its bodies, by its tasks; of several calls the least. */
static void add_gpu_tasks(void *of, FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    struct gpu_bench *g = of;
    double tasks = 0, *to = &g->m.gpus.task_seconds;
    tess_bench_print(out, b, median, p, steps);
    for (int i = 0; i < p->rows; i++) tasks += (double)p->row[i].tasks / steps;
    const double around = tasks > 0 ? fmax(0, median - g->bodies) / tasks : 0;
    if (!(*to > 0) || around < *to) *to = around;
}

/* A GPU's, first with none bundled and one task there at a time, since a StarPU that tools/starpu did not build begins
 * to count a task when it has found the one before to have ended; then as steps run. */
static tess_status bench_gpu(const tess_config *c, int steps, const char *path, FILE *out)
{
    static const char pipeline[] = "STARPU_CUDA_PIPELINE";
    struct gpu_bench g = {0};
    tess_config single = *c;
    single.memory.gpu_plan = false;
    TESS_TRY(tess_machine_read(path, &g.m));
    if (!g.m.gpus.count)
        return tess_error(TESS_INVALID, path, "gpus: missing, and this machine has one (tessera info --machine FILE)");
    setenv(pipeline, "0", 1);
    const tess_status status = tess_bench_told(&single, steps, out, NULL, add_gpu_shares, &g);
    unsetenv(pipeline);
    TESS_TRY(status);
    TESS_TRY(tess_bench_told(c, steps, out, NULL, add_gpu_tasks, &g));
    return tess_machine_write(path, &g.m);
}

tess_status tess_bench_machine(const tess_config *c, int steps, const char *path, FILE *out)
{
    tess_simulated m;
    if (tess_ranks() > 1 && tess_gpus() > 0)
        return tess_error(TESS_INVALID, path, "measures a GPU by one rank (STARPU_NCUDA=0: cores and messages)");
    if (tess_ranks() > 1) return bench_ranks(c, steps, path, out);
    if (access(path, F_OK)) TESS_TRY(tess_machine_write_here(path));
    if (tess_gpus() > 0) return bench_gpu(c, steps, path, out);
    TESS_TRY(tess_machine_read(path, &m));
    if (m.cores != tess_cores())
        return tess_error(TESS_INVALID, path, "cores: %d, this machine has %d (tessera info --machine FILE writes it)",
                          m.cores, tess_cores());
    TESS_TRY(tess_bench_told(c, steps, out, NULL, add_shares, &m));
    return tess_machine_write(path, &m);
}
