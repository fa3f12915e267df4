/* A step on a machine that is not here: the bench's steps, in the program that simulates, and what they took there. */
#include "models/train/bench/bench.h"
#include "runtime/progress/progress.h"
#include "tools/simulate/simulation.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What the machine did, and what bounds it; of this rank, or of all where that is said. */
struct told {
    const tess_simulated *part; /* of a node, which this rank has */
    const tess_cluster *cluster;
    uint64_t read, written, to_gpu, from_gpu; /* from and to the disk, and between RAM and GPUs, in all steps */
    double gpu_busy, core_busy;               /* the same */
    int workers;                              /* of cores */
    int64_t mine, sent;                       /* bytes a step: by this rank, by all */
    tess_sent before;                         /* what this rank sent before the steps that are measured */
    int64_t own[TESS_OVER_COUNT], over[TESS_OVER_COUNT]; /* of this rank, and of all, by what they went over */
    double network;                                      /* seconds a step of the busiest link of a node into it */
    double moving, exposed; /* seconds of all steps without work while bytes moved, while messages were under way */
    double busy, still;     /* shares of the step with a task; without one while no bytes moved */
    double real;            /* when the simulation began */
    uint64_t tasks;         /* of all ranks, in all steps */
};

static double real_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- over all ranks ---- */

static uint64_t sum_of(uint64_t x)
{
    int64_t sum = (int64_t)x;
    tess_ranks_sum_counts(&sum, 1);
    return (uint64_t)sum;
}

static uint64_t most_of(uint64_t x)
{
    int64_t most = (int64_t)x;
    tess_ranks_most(&most, 1);
    return (uint64_t)most;
}

static double mean_of(double x)
{
    tess_ranks_sum(&x, 1);
    return x / tess_ranks();
}

/* A double that is not negative orders like its bits. */
static double longest_of(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof x);
    tess_ranks_most(&bits, 1);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* How many ranks are there. */
static int simulated(const struct told *t)
{
    return t->cluster->ranks / tess_fold_ranks(t->cluster->of->fold);
}

/* ---- what is printed ---- */

static void print_model(FILE *out, const tess_bench_run *b, const struct told *t)
{
    const tess_run *r = &b->run;
    const tess_simulated *m = t->part;
    const int here = t->cluster->of->ranks_here, gpus = tess_gpus() * here;
    fprintf(out, "machine   %s: ", m->name);
    if (m->nodes > 1) fprintf(out, "%d nodes of ", m->nodes);
    fprintf(out, "%d cores, %s of RAM%s", m->cores * here, tess_human_bytes((double)m->ram_bytes * here),
            m->has_drive ? ", a drive" : "");
    if (gpus)
        fprintf(out, ", %d GPU%s (%s, %s)", gpus, gpus > 1 ? "s" : "", m->gpus.name,
                tess_human_bytes((double)m->gpus.bytes));
    fputc('\n', out);
    if (m->nodes > 1) {
        fprintf(out, "network   %s/s from each node and to it, %.3g us, %s", tess_human_bytes(m->net.rate),
                1e6 * m->net.latency, m->net.topology);
        if (m->net.rails > 1) fprintf(out, ", by %d rails", m->net.rails);
        fputc('\n', out);
    }
    if (tess_ranks() > 1) {
        const int64_t tensor = r->grid.tensor, pipeline = r->grid.pipeline;
        const int there = simulated(t), each = tess_ranks() / there;
        fprintf(out, "ranks     %d, %d on each node: %lld for data x %lld tensor parallel x %lld stages of a pipeline",
                tess_ranks(), here, (long long)(tess_ranks() / (tensor * pipeline)), (long long)tensor,
                (long long)pipeline);
        if (each > 1) fprintf(out, "; %d of them simulated, each for %d that have the same to do", there, each);
        fputc('\n', out);
    }
    fprintf(out, "model     %lld parameters, %lld x %lld tokens a step, %s\n",
            (long long)tess_graph_param_elements(r->g), (long long)r->batch, (long long)r->length,
            tess_run_dtype_name(r->dtype));
}

static void print_tiers(FILE *out, const tess_bench_run *b, struct told *t, int steps)
{
    const char *of = tess_ranks() > 1 ? " of a rank" : "";
    uint64_t now, peak, read, written;
    tess_tier_use(TESS_TIER_CPU, &now, &peak);
    peak = most_of(peak);
    fprintf(out, "RAM       tiles%s hold %llu bytes at most (%s)", of, (unsigned long long)peak,
            tess_human_bytes((double)peak));
    if (b->run.machine.cpu_bytes) fprintf(out, ", the cap is %s", tess_human_bytes((double)b->run.machine.cpu_bytes));
    fputc('\n', out);
    if (!b->run.machine.disk) return;
    tess_disk_traffic(&read, &written, &now, &peak);
    t->read = read - b->read;
    t->written = written - b->written;
    peak = most_of(peak);
    fprintf(out, "disk      reads %llu and writes %llu bytes in %d steps; tiles%s hold %llu bytes at most (%s)\n",
            (unsigned long long)sum_of(t->read), (unsigned long long)sum_of(t->written), steps, of,
            (unsigned long long)peak, tess_human_bytes((double)peak));
}

/* What the GPUs hold, and what goes over their links. */
static void print_gpus(FILE *out, const tess_bench_run *b, struct told *t, int steps)
{
    const char *of = tess_ranks() > 1 ? " by a rank's" : "";
    uint64_t now, peak, between = tess_gpu_peer_traffic();
    if (!tess_gpus()) return;
    tess_tier_use(TESS_TIER_GPU, &now, &peak);
    tess_gpu_traffic(&t->to_gpu, &t->from_gpu);
    peak = most_of(peak);
    fprintf(out, "GPU       %llu bytes are held at most%s (%s)", (unsigned long long)peak, of,
            tess_human_bytes((double)peak));
    if (b->run.plan.gpu.room) fprintf(out, ", tiles have %s", tess_human_bytes((double)b->run.plan.gpu.room));
    fprintf(out, "\nlinks     %llu bytes from RAM to GPUs and %llu back in %d steps",
            (unsigned long long)sum_of(t->to_gpu), (unsigned long long)sum_of(t->from_gpu), steps);
    if (tess_gpus() > 1) fprintf(out, ", %llu between GPUs", (unsigned long long)sum_of(between));
    fprintf(out, "; %.4f s a step waiting for copies\n", longest_of(tess_gpu_waited() / steps));
}

/* Where there are GPUs a profile's sums are theirs. */
static void print_busy(FILE *out, const tess_bench_run *b, struct told *t, double mean, const tess_profile *p)
{
    const int gpus = tess_gpus();
    const double all = p->wall * (gpus ? gpus : t->part->cores);
    t->workers = gpus ? tess_workers() : t->part->cores;
    t->gpu_busy = gpus ? p->busy : 0;
    for (int i = 0; i < p->rows; i++) t->core_busy += p->row[i].busy;
    t->core_busy = fmax(0, t->core_busy - t->gpu_busy);
    t->busy = mean_of(p->busy / all);
    const double busy = t->busy, waits = mean_of((p->waiting + p->scheduling) / all),
                 idle = mean_of(fmax(0, p->idle) / all), cores = mean_of(t->core_busy / (p->wall * t->workers));
    if (gpus) /* tiles come while kernels run, so waits are no share of the rest */
        fprintf(out, "GPUs      busy %.1f%%, idle %.1f%%; %.2f TFLOP/s a GPU\ncores     busy %.1f%%\n", 100 * busy,
                100 * (1 - busy), b->measure.flops / mean / gpus / tess_ranks() * 1e-12, 100 * cores);
    else
        fprintf(out, "cores     busy %.1f%%, waiting for tiles %.1f%%, idle %.1f%%\n", 100 * busy, 100 * waits,
                100 * idle);
}

static void count_messages(struct told *t, double wall, int steps)
{
    const tess_cluster *c = t->cluster;
    const tess_sent *own = &c->sent[tess_rank()];
    const int first = tess_rank() / c->of->ranks_here * c->of->ranks_here, rails = t->part->net.rails;
    double under_way, a_step[TESS_SIMULATED_GPUS] = {0}, most = 0;
    tess_message_seconds(&under_way, &t->exposed);
    for (int i = 0; i < TESS_OVER_COUNT; i++) {
        t->own[i] = llround((double)(own->over[i] - t->before.over[i]) / steps);
        t->over[i] = (int64_t)sum_of((uint64_t)t->own[i]);
        t->mine += t->own[i];
    }
    double *all = tess_alloc((size_t)tess_ranks() * sizeof a_step);
    for (int i = 0; i < rails; i++) a_step[i] = (own->rail[i] - t->before.rail[i]) / steps;
    tess_ranks_gather(a_step, sizeof a_step, all);
    double total = 0;
    for (int i = 0; i < rails; i++) {
        double link = 0;
        for (int r = 0; r < c->of->ranks_here; r++) link += all[(first + r) * TESS_SIMULATED_GPUS + i];
        most = fmax(most, link);
        total += link;
    }
    if (tess_fold_ranks(c->of->fold) > 1) most = total / rails; /* who stands for others has their rails, too */
    free(all);
    t->sent = (int64_t)sum_of((uint64_t)t->mine);
    t->network = t->part->nodes > 1 ? longest_of(most * rails / t->part->net.rate) : 0;
    const double moving = tess_starved_take(TESS_FOR_BYTES), still = tess_starved_take(TESS_FOR_ANYTHING) - moving;
    t->moving = mean_of(moving / wall);
    t->exposed = mean_of(t->exposed / wall);
    t->still = mean_of(still / wall);
}

/* Beside the time that tasks take, as the paper has it, where all stages have the same to do and nothing else is waited
 * for. */
static void print_bubble(FILE *out, const tess_run *r, const struct told *t)
{
    static const char *const orders[] = {"1F1B", "ZB-H1", "ZB-V"};
    const int64_t micros = r->micro * r->grid.sequence / r->grid.data;
    fprintf(out,
            "bubble    %s are without a task, while no message moves, for %.1f%% of the time that tasks take; on paper "
            "%.1f%%: %s, %d stages, %d chunks, %lld micro-batches\n",
            tess_gpus() ? "GPUs" : "cores", 100 * t->still / t->busy, 100 * tess_grid_bubble(&r->grid, micros),
            orders[r->grid.schedule], r->grid.pipeline, r->grid.interleave, (long long)micros);
}

static void print_messages(FILE *out, const struct told *t, int steps)
{
    const int64_t copies = (int64_t)(sum_of(t->to_gpu + t->from_gpu) / (uint64_t)steps);
    fprintf(out, "messages  %lld bytes a step of all ranks, %lld of them between nodes; rank 0 sends %lld\n",
            (long long)t->sent, (long long)t->over[TESS_OVER_NETWORK], (long long)t->mine);
    fprintf(out, "carried   by %s; bytes a step of all ranks: ", tess_message_carrier());
    if (tess_gpus())
        fprintf(out, "%lld over links between GPUs, %lld over those between GPUs and RAM with copies of tiles, ",
                (long long)t->over[TESS_OVER_PEER], (long long)(t->over[TESS_OVER_HOST] + copies));
    fprintf(out, "%lld over the network, %lld from RAM to RAM\n", (long long)t->over[TESS_OVER_NETWORK],
            (long long)t->over[TESS_OVER_RAM]);
    fprintf(out,
            "exposed   %s are without a task for %.1f%% of the step while bytes move between ranks, and %.1f%% while "
            "messages wait for their other rank\n",
            tess_gpus() ? "GPUs" : "cores", 100 * t->moving, 100 * fmax(0, t->exposed - t->moving));
}

/* The step on one thing alone, as if that always had something to do; of the rank, or the node, that takes longest. */
struct bound {
    const char *name;
    bool there;
    double seconds;
};

static double drive_alone(const struct told *t)
{
    const double seconds = tess_drive_seconds(&t->part->drive, (double)t->read, (double)t->written);
    return t->cluster->of->ranks_here * seconds / t->part->drive_share;
}

static void print_bounds(FILE *out, const tess_bench_run *b, const struct told *t, double mean, int steps)
{
    const tess_simulated_gpus *g = &t->part->gpus;
    const int gpus = tess_gpus(), here = t->cluster->of->ranks_here;
    const int links = gpus ? (here * gpus + g->host_gpus - 1) / g->host_gpus : 1; /* of the node; ranks are alike */
    const double of_all = steps;
    const struct bound bound[] = {
        {gpus * tess_ranks() > 1 ? "the GPUs" : "the GPU", gpus, gpus ? t->gpu_busy / gpus : 0},
        {"the link to RAM", gpus,
         gpus ? here *
                    ((double)(t->to_gpu > t->from_gpu ? t->to_gpu : t->from_gpu) +
                     of_all * (double)t->own[TESS_OVER_HOST]) /
                    g->host_rate / links
              : 0},
        {"the links between GPUs", t->over[TESS_OVER_PEER] > 0,
         t->over[TESS_OVER_PEER] > 0 ? of_all * (double)t->own[TESS_OVER_PEER] / g->peer_rate : 0},
        {"the cores", true, t->core_busy / t->workers},
        {"the drive", b->run.machine.disk, b->run.machine.disk ? drive_alone(t) : 0},
        {"the network", t->part->nodes > 1, t->network * steps}};
    const char *before = "bound     ", *name = NULL;
    double most = 0;
    for (size_t i = 0; i < sizeof bound / sizeof *bound; i++) {
        if (!bound[i].there) continue;
        const double seconds = longest_of(bound[i].seconds / steps);
        fprintf(out, "%s%.4f s on %s alone", before, seconds, bound[i].name);
        before = ", ";
        if (!name || seconds > most) most = seconds, name = bound[i].name;
    }
    fprintf(out, ": the step is bound by %s\n",
            most < 0.85 * mean ? "the order of its tasks, which leaves each idle at times" : name);
}

static void print_table(FILE *out, const tess_profile *p, double all, int steps)
{
    fprintf(out, "\n%-28s %6s %9s %7s%s\n", "codelet", "tasks", "busy ms", "share",
            tess_ranks() > 1 ? "   of rank 0" : "");
    for (int i = 0; i < p->rows; i++) {
        const tess_profile_row *r = &p->row[i];
        char name[64];
        snprintf(name, sizeof name, "%.50s %s", r->name, tess_dtype_name(r->dtype));
        fprintf(out, "%-28s %6.0f %9.1f %6.1f%%\n", name, (double)r->tasks / steps, 1e3 * r->busy / steps,
                100 * r->busy / all);
    }
}

tess_status tess_simulated_check_drive(const tess_simulated *m, const char *disk)
{
    if (!disk || m->has_drive) return TESS_OK;
    return tess_error(TESS_INVALID, "machine", "%s has no drive, and tiles are to rest on one (drive_gb_s adds one)",
                      m->name);
}

/* A plan for a GPU is a plan for one; ranks have one each. */
static tess_status check_gpus(const tess_config *c, const tess_simulated *m)
{
    if (tess_gpus() < 2 || !c->memory.gpu_plan) return TESS_OK;
    return tess_error(
        TESS_INVALID, "machine",
        "%s has %d GPUs for a rank, and a process has a plan for one (--ranks-per-node takes as many ranks as "
        "a node has; memory.gpu_plan=false leaves all to StarPU)",
        m->name, tess_gpus());
}

static void begin(void *of)
{
    struct told *t = of;
    t->before = t->cluster->sent[tess_rank()];
    tess_starved_take(TESS_FOR_BYTES);
    tess_starved_take(TESS_FOR_ANYTHING);
}

/* All ranks come here together, and rank 0's `out` is read. */
static void tell(void *of, FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    struct told *t = of;
    /* The mean: when the main thread finds that a step of several under way has ended is no matter of the machine's. */
    const double mean = longest_of(p->wall / steps) + t->part->gpus.step_seconds;
    (void)median;
    const double tokens = (double)tess_run_tokens(&b->run),
                 all = p->wall * (tess_gpus() ? tess_gpus() : t->part->cores);
    uint64_t tasks = 0;
    for (int i = 0; i < p->rows; i++) tasks += p->row[i].tasks;
    t->tasks = sum_of(tasks);
    print_model(out, b, t);
    fprintf(out, "step      %.6f s, %.1f tokens/s, %.4f TFLOP/s, %.1f%% of what its matrix units do\n", mean,
            tokens / mean, b->measure.flops / mean * 1e-12, 100 * tess_measure_mfu(&b->measure, mean));
    fprintf(out, "tasks     %llu a step%s\n", (unsigned long long)(t->tasks / (uint64_t)steps),
            tess_ranks() > 1 ? ", of all ranks" : "");
    tess_run_print_memory(&b->run, b->step, out);
    print_tiers(out, b, t, steps);
    print_gpus(out, b, t, steps);
    print_busy(out, b, t, mean, p);
    if (tess_ranks() > 1) {
        count_messages(t, p->wall, steps);
        print_messages(out, t, steps);
        print_bubble(out, &b->run, t);
    }
    print_bounds(out, b, t, mean, steps);
    tess_simulated_say_rates(tess_simulated_machine(), out);
    print_table(out, p, all, steps);
}

tess_status tess_simulate(const tess_config *c, const tess_simulated *part, const tess_cluster *cluster, FILE *out)
{
    const int steps = cluster->of->steps;
    struct told t = {.part = part, .cluster = cluster, .real = real_seconds()};
    TESS_TRY(tess_simulated_check_drive(part, tess_run_disk(c)));
    TESS_TRY(check_gpus(c, part));
    TESS_TRY(tess_bench_told(c, steps, out, begin, tell, &t));
    if (!tess_rank())
        tess_note("simulated in %.1f s: %.0f tasks a second, with the plan", real_seconds() - t.real,
                  (double)t.tasks * simulated(&t) / tess_ranks() * (steps + 1) / steps / (real_seconds() - t.real));
    return TESS_OK;
}
