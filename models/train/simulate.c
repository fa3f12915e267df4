/* A step on a machine that is not here: the bench's steps, in the program that simulates, and what they took there. */
#include "bench_impl.h"
#include "machine_impl.h"
#include <math.h>
#include <time.h>

/* What the machine did, and what bounds it. */
struct told {
    const tess_simulated *machine;
    uint64_t read, written; /* from and to the disk, in all steps */
    double real;            /* when the simulation began */
    uint64_t tasks;
};

static double real_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void print_model(FILE *out, const tess_bench_run *b, const tess_simulated *m)
{
    const tess_run *r = &b->run;
    fprintf(out, "machine   %s: %d cores, %s of RAM%s\n", m->name, m->cores, tess_human_bytes((double)m->ram_bytes),
            m->has_drive ? ", a drive" : "");
    fprintf(out, "model     %lld parameters, %lld x %lld tokens a step, %s\n",
            (long long)tess_graph_param_elements(r->g), (long long)r->batch, (long long)r->length,
            tess_run_dtype_name(r->c));
}

static void print_tiers(FILE *out, const tess_bench_run *b, struct told *t, int steps)
{
    uint64_t now, peak, read, written;
    tess_tier_use(TESS_TIER_CPU, &now, &peak);
    fprintf(out, "RAM       tiles hold %llu bytes at most (%s)", (unsigned long long)peak,
            tess_human_bytes((double)peak));
    if (b->run.ram) fprintf(out, ", the cap is %s", tess_human_bytes((double)b->run.ram));
    fputc('\n', out);
    if (!b->run.disk) return;
    tess_disk_traffic(&read, &written, &now, &peak);
    t->read = read - b->read;
    t->written = written - b->written;
    fprintf(out, "disk      reads %llu and writes %llu bytes in %d steps; tiles hold %llu bytes at most (%s)\n",
            (unsigned long long)t->read, (unsigned long long)t->written, steps, (unsigned long long)peak,
            tess_human_bytes((double)peak));
}

/* The step on the cores alone, as if each always had a task, and on the drive alone. */
static void print_bounds(FILE *out, const tess_bench_run *b, const struct told *t, double median, const tess_profile *p,
                         int steps)
{
    const tess_simulated *m = t->machine;
    const tess_drive *d = &m->drive;
    const double cores = p->busy / m->cores / steps;
    const double one_way = fmax((double)t->read / d->read_rate, (double)t->written / d->write_rate),
                 both = (double)(t->read + t->written) / (d->mixed_read_rate + d->mixed_write_rate),
                 drive = b->run.disk ? fmax(one_way, both) / steps : 0;
    fprintf(out, "bound     %.4f s on the cores alone", cores);
    if (b->run.disk) fprintf(out, ", %.4f s on the drive alone", drive);
    fprintf(out, ": the step is bound by %s\n",
            fmax(cores, drive) < 0.85 * median ? "the order of its tasks, which leaves both idle at times"
            : cores >= drive                   ? "the cores"
                                               : "the drive");
}

static void tell(void *of, FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    struct told *t = of;
    const double tokens = (double)(b->run.batch * b->run.length), all = p->wall * t->machine->cores;
    uint64_t tasks = 0;
    for (int i = 0; i < p->rows; i++) tasks += p->row[i].tasks;
    print_model(out, b, t->machine);
    fprintf(out, "step      %.6f s, %.1f tokens/s, %.4f TFLOP/s, %.1f%% of what its matrix units do\n", median,
            tokens / median, b->measure.flops / median * 1e-12, 100 * tess_measure_mfu(&b->measure, median));
    fprintf(out, "tasks     %llu a step\n", (unsigned long long)(tasks / (uint64_t)steps));
    print_tiers(out, b, t, steps);
    fprintf(out, "cores     busy %.1f%%, waiting for tiles %.1f%%, idle %.1f%%\n", 100 * p->busy / all,
            100 * (p->waiting + p->scheduling) / all, 100 * fmax(0, p->idle) / all);
    print_bounds(out, b, t, median, p, steps);
    fprintf(out, "\n%-28s %6s %9s %7s\n", "codelet", "tasks", "busy ms", "share");
    for (int i = 0; i < p->rows; i++) {
        const tess_profile_row *r = &p->row[i];
        char name[64];
        snprintf(name, sizeof name, "%.50s %s", r->name, tess_dtype_name(r->dtype));
        fprintf(out, "%-28s %6.0f %9.1f %6.1f%%\n", name, (double)r->tasks / steps, 1e3 * r->busy / steps,
                100 * r->busy / all);
    }
    t->tasks = tasks;
}

tess_status tess_simulate(const tess_config *c, const tess_simulated *m, int steps, FILE *out)
{
    struct told t = {.machine = m, .real = real_seconds()};
    if (tess_run_disk(c) && !m->has_drive)
        return tess_error(TESS_INVALID, "machine",
                          "%s has no drive, and tiles are to rest on one (drive_gb_s adds one)", m->name);
    TESS_TRY(tess_bench_told(c, steps, out, NULL, tell, &t));
    tess_note("simulated in %.1f s: %.0f tasks a second, with the plan", real_seconds() - t.real,
              (double)t.tasks * (steps + 1) / steps / (real_seconds() - t.real));
    return TESS_OK;
}
