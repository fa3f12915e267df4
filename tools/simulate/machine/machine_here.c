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
        *g = (tess_simulated_gpus){
            .matrix_share = TESS_GPU_MATRIX_SHARE, .copy_share = TESS_GPU_COPY_SHARE, .host_gpus = 1};
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
    tess_simulated m = {.matrix_share = TESS_MATRIX_SHARE, .copy_share = TESS_COPY_SHARE, .drive_share = 1, .nodes = 1};
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

static tess_simulated_share *find_share(tess_simulated *m, const char *codelet)
{
    for (int i = 0; i < m->shares; i++)
        if (!strcmp(m->share[i].codelet, codelet)) return &m->share[i];
    return m->shares < TESS_SIMULATED_SHARES ? &m->share[m->shares++] : NULL;
}

static tess_simulated_point *find_point(tess_simulated *m, int of, tess_cost c)
{
    for (int i = 0; i < m->points; i++) {
        const tess_simulated_point *p = &m->point[i];
        if (p->of == of && p->rows == c.rows && fabs(p->flops - c.flops) <= 1e-5 * c.flops &&
            fabs(p->bytes - c.bytes) <= 1e-5 * c.bytes)
            return &m->point[i];
    }
    if (m->points == TESS_SIMULATED_POINTS) return NULL;
    m->point[m->points] = (tess_simulated_point){.of = of, .flops = c.flops, .bytes = c.bytes, .rows = c.rows};
    return &m->point[m->points++];
}

/* What tasks of each codelet reach by their work. */
static void add_points(tess_simulated *m)
{
    tess_profile_shape *shape = tess_alloc(TESS_PROFILE_SHAPES * sizeof *shape);
    const int n = tess_profile_shapes(shape);
    for (int k = 0; k < n; k++) {
        const tess_profile_shape *s = &shape[k];
        const double bound = (double)s->tasks * tess_simulated_bound(m, s->dtype, s->cost);
        char name[64];
        snprintf(name, sizeof name, "%.50s %s", s->name, tess_dtype_name(s->dtype));
        for (int i = 0; i < m->shares; i++) {
            if (strcmp(m->share[i].codelet, name) || !(bound > 0) || !(s->busy > 0)) continue;
            tess_simulated_point *p = find_point(m, i, s->cost);
            if (p) p->share = fmax(fmax(bound / s->busy, TESS_LEAST_SHARE), p->share);
        }
    }
    free(shape);
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

/* Of several turns the best: other programs only ever make a codelet slower. */
static void add_shares(void *machine, FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    tess_simulated *m = machine;
    tess_bench_print(out, b, median, p, steps);
    for (int i = 0; i < p->rows; i++) {
        const tess_profile_row *r = &p->row[i];
        char name[64];
        const double bound =
            tess_simulated_bound(m, r->dtype, (tess_cost){.flops = r->flops, .bytes = r->bytes, .passes = r->bytes});
        snprintf(name, sizeof name, "%.50s %s", r->name, tess_dtype_name(r->dtype));
        tess_simulated_share *share = bound > 0 && r->busy > 0 ? find_share(m, name) : NULL;
        if (!share) continue;
        snprintf(share->codelet, sizeof share->codelet, "%s", name);
        share->share = fmax(fmax(bound / r->busy, TESS_LEAST_SHARE), share->share);
    }
    add_points(m);
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

tess_status tess_bench_machine(const tess_config *c, int steps, const char *path, FILE *out)
{
    tess_simulated m;
    if (tess_gpus() > 0) return tess_error(TESS_INVALID, path, "measures CPU cores alone (STARPU_NCUDA=0)");
    if (tess_ranks() > 1) return bench_ranks(c, steps, path, out);
    if (access(path, F_OK)) TESS_TRY(tess_machine_write_here(path));
    TESS_TRY(tess_machine_read(path, &m));
    if (m.cores != tess_cores())
        return tess_error(TESS_INVALID, path, "cores: %d, this machine has %d (tessera info --machine FILE writes it)",
                          m.cores, tess_cores());
    TESS_TRY(tess_bench_told(c, steps, out, NULL, add_shares, &m));
    return tess_machine_write(path, &m);
}
