/* A step on a machine that is not here: the bench's steps, in the program that simulates, and what they took there. */
#include "bench_impl.h"
#include "machine_impl.h"
#include <math.h>
#include <time.h>

/* What the machine did, and what bounds it. */
struct told {
    const tess_simulated *machine;
    uint64_t read, written, to_gpu, from_gpu; /* from and to the disk, and between RAM and GPUs, in all steps */
    double gpu_busy, core_busy;               /* the same */
    int workers;                              /* of cores */
    double real;                              /* when the simulation began */
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
    fprintf(out, "machine   %s: %d cores, %s of RAM%s", m->name, m->cores, tess_human_bytes((double)m->ram_bytes),
            m->has_drive ? ", a drive" : "");
    if (tess_gpus())
        fprintf(out, ", %d GPU%s (%s, %s)", tess_gpus(), tess_gpus() > 1 ? "s" : "", m->gpus.name,
                tess_human_bytes((double)m->gpus.bytes));
    fprintf(out, "\nmodel     %lld parameters, %lld x %lld tokens a step, %s\n",
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

/* What the GPUs hold, and what goes over their links. */
static void print_gpus(FILE *out, const tess_bench_run *b, struct told *t, int steps)
{
    uint64_t now, peak, between = tess_gpu_peer_traffic();
    if (!tess_gpus()) return;
    tess_tier_use(TESS_TIER_GPU, &now, &peak);
    tess_gpu_traffic(&t->to_gpu, &t->from_gpu);
    fprintf(out, "GPU       %llu bytes are held at most (%s)", (unsigned long long)peak,
            tess_human_bytes((double)peak));
    if (b->run.gpu.room) fprintf(out, ", tiles have %s", tess_human_bytes((double)b->run.gpu.room));
    fprintf(out, "\nlinks     %llu bytes from RAM to GPUs and %llu back in %d steps", (unsigned long long)t->to_gpu,
            (unsigned long long)t->from_gpu, steps);
    if (tess_gpus() > 1) fprintf(out, ", %llu between GPUs", (unsigned long long)between);
    fprintf(out, "; %.4f s a step waiting for copies\n", tess_gpu_waited() / steps);
}

/* The step on one thing alone, as if that always had something to do. */
struct bound {
    const char *name;
    double seconds;
};

static double drive_alone(const struct told *t)
{
    const tess_drive *d = &t->machine->drive;
    return fmax(fmax((double)t->read / d->read_rate, (double)t->written / d->write_rate),
                (double)(t->read + t->written) / (d->mixed_read_rate + d->mixed_write_rate));
}

static void print_bounds(FILE *out, const tess_bench_run *b, const struct told *t, double median, int steps)
{
    const tess_simulated_gpus *g = &t->machine->gpus;
    const int gpus = tess_gpus(), links = gpus ? (gpus + g->host_gpus - 1) / g->host_gpus : 1;
    const struct bound bound[] = {
        {gpus > 1 ? "the GPUs" : "the GPU", gpus ? t->gpu_busy / gpus : 0},
        {"the link to RAM",
         gpus ? (double)(t->to_gpu > t->from_gpu ? t->to_gpu : t->from_gpu) / g->host_rate / links : 0},
        {"the cores", t->core_busy / t->workers},
        {"the drive", b->run.disk ? drive_alone(t) : 0}};
    const bool there[] = {gpus, gpus, true, b->run.disk};
    const struct bound *most = NULL;
    const char *before = "bound     ";
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++) {
        if (!there[i]) continue;
        fprintf(out, "%s%.4f s on %s alone", before, bound[i].seconds / steps, bound[i].name);
        before = ", ";
        if (!most || bound[i].seconds > most->seconds) most = &bound[i];
    }
    fprintf(out, ": the step is bound by %s\n",
            most->seconds / steps < 0.85 * median ? "the order of its tasks, which leaves each idle at times"
                                                  : most->name);
}

/* Where there are GPUs a profile's sums are theirs. */
static void print_busy(FILE *out, const tess_bench_run *b, struct told *t, double median, const tess_profile *p)
{
    const int gpus = tess_gpus();
    const double all = p->wall * (gpus ? gpus : t->machine->cores);
    t->workers = gpus ? tess_workers() : t->machine->cores;
    t->gpu_busy = gpus ? p->busy : 0;
    for (int i = 0; i < p->rows; i++) t->core_busy += p->row[i].busy;
    t->core_busy -= t->gpu_busy;
    fprintf(out, "%s busy %.1f%%, waiting for tiles %.1f%%, idle %.1f%%", gpus ? "GPUs     " : "cores    ",
            100 * p->busy / all, 100 * (p->waiting + p->scheduling) / all, 100 * fmax(0, p->idle) / all);
    if (gpus)
        fprintf(out, "; %.2f TFLOP/s a GPU\ncores     busy %.1f%%", b->measure.flops / median / gpus * 1e-12,
                100 * t->core_busy / (p->wall * t->workers));
    fputc('\n', out);
}

static void tell(void *of, FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    struct told *t = of;
    const int workers = tess_gpus() ? tess_gpus() : t->machine->cores;
    const double tokens = (double)(b->run.batch * b->run.length), all = p->wall * workers;
    uint64_t tasks = 0;
    for (int i = 0; i < p->rows; i++) tasks += p->row[i].tasks;
    print_model(out, b, t->machine);
    fprintf(out, "step      %.6f s, %.1f tokens/s, %.4f TFLOP/s, %.1f%% of what its matrix units do\n", median,
            tokens / median, b->measure.flops / median * 1e-12, 100 * tess_measure_mfu(&b->measure, median));
    fprintf(out, "tasks     %llu a step\n", (unsigned long long)(tasks / (uint64_t)steps));
    print_tiers(out, b, t, steps);
    print_gpus(out, b, t, steps);
    print_busy(out, b, t, median, p);
    print_bounds(out, b, t, median, steps);
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

/* A plan for a GPU is a plan for one; ranks have one each. */
static tess_status check_gpus(const tess_config *c, const tess_simulated *m)
{
    if (tess_gpus() < 2 || !c->memory.gpu_plan) return TESS_OK;
    return tess_error(TESS_INVALID, "machine",
                      "%s has %d GPUs, and a process has a plan for one (STARPU_NCUDA=1 takes the first; "
                      "memory.gpu_plan=false leaves all to StarPU)",
                      m->name, tess_gpus());
}

tess_status tess_simulate(const tess_config *c, const tess_simulated *m, int steps, FILE *out)
{
    struct told t = {.machine = m, .real = real_seconds()};
    if (tess_run_disk(c) && !m->has_drive)
        return tess_error(TESS_INVALID, "machine",
                          "%s has no drive, and tiles are to rest on one (drive_gb_s adds one)", m->name);
    TESS_TRY(check_gpus(c, m));
    TESS_TRY(tess_bench_told(c, steps, out, NULL, tell, &t));
    tess_note("simulated in %.1f s: %.0f tasks a second, with the plan", real_seconds() - t.real,
              (double)t.tasks * (steps + 1) / steps / (real_seconds() - t.real));
    return TESS_OK;
}
