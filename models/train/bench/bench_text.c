/* What bench found out, for its reader. */
#include "models/train/bench/bench.h"
#include <sys/resource.h>

static void print_table(FILE *out, const tess_profile *p, int steps)
{
    int workers = tess_gpus() > 0 ? tess_gpus() : tess_workers();
    double all = p->wall * workers;
    fprintf(out, "\n%-28s %6s %9s %7s %9s %9s\n", "codelet", "tasks", "busy ms", "share", "GFLOP/s", "wait ms");
    for (int i = 0; i < p->rows; i++) {
        const tess_profile_row *r = &p->row[i];
        char name[64];
        snprintf(name, sizeof name, "%s %s", r->name, tess_dtype_name(r->dtype));
        fprintf(out, "%-28s %6.0f %9.1f %6.1f%% %9.0f %9.1f\n", name, (double)r->tasks / steps, 1e3 * r->busy / steps,
                100 * r->busy / all, r->busy > 0 ? r->flops / r->busy * 1e-9 : 0, 1e3 * r->waiting / steps);
    }
    fprintf(out,
            "a step of %.1f ms on %d workers: busy %.1f%%, waiting for data %.1f%%, scheduling %.1f%%, idle %.1f%%\n",
            1e3 * p->wall / steps, workers, 100 * p->busy / all, 100 * p->waiting / all, 100 * p->scheduling / all,
            100 * p->idle / all);
    fprintf(out, "StarPU's overhead (scheduling, and the main thread's submission %.1f ms) is %.2f%% of the step\n",
            1e3 * p->submit / steps, 100 * (p->scheduling + p->submit) / all);
}

/* What a step moved from and to the disk, beside what the plan said and no plan can beat. */
static void print_disk(FILE *out, const tess_bench_run *b, int steps)
{
    if (!b->run.machine.disk) return;
    uint64_t read, written, used, peak;
    tess_disk_traffic(&read, &written, &used, &peak);
    fprintf(out,
            "disk: %.0f bytes a step (%s); the plan says %s, and no plan has less than %s; %s there; workers waited "
            "%.2f s a step for it\n",
            (double)(read + written - b->moved) / steps, tess_human_bytes((double)(read + written - b->moved) / steps),
            tess_human_bytes((double)(b->run.plan.ram.read + b->run.plan.ram.written)),
            tess_human_bytes((double)b->run.plan.ram.bound), tess_human_bytes((double)peak),
            tess_flow_waited() / steps);
    const tess_run *r = &b->run;
    fprintf(out,
            "plan: %s, updates %s, %s of slack; on paper %.3f s a step: compute %.3f, reading %.3f, writing %.3f\n",
            r->plan.by_layer ? "layer by layer" : "batch by batch", r->plan.late ? "late" : "at once",
            tess_human_bytes((double)r->plan.ram.slack), r->plan.ram.time.seconds, r->plan.ram.time.work,
            r->plan.ram.time.read, r->plan.ram.time.write);
}

/* The same of a GPU. */
static void print_gpu(FILE *out, const tess_bench_run *b, int steps)
{
    const tess_gpu_placement *p = &b->run.plan.gpu;
    uint64_t to, from;
    if (!tess_gpus()) return;
    tess_gpu_traffic(&to, &from);
    fprintf(out, "GPU: %s to it and %s back a step", tess_human_bytes((double)to / steps),
            tess_human_bytes((double)from / steps));
    if (p->room)
        fprintf(out,
                ", %.2f s of it waiting for copies; the plan says %s and %s of the %s that may be there at a time (for "
                "all %s), and %.2f of its bound",
                tess_gpu_waited() / steps, tess_human_bytes((double)p->read), tess_human_bytes((double)p->written),
                tess_human_bytes((double)p->room), tess_human_bytes((double)p->all),
                p->bound ? (double)(p->read + p->written) / (double)p->bound : 1);
    fprintf(out, "\n");
}

static void print_messages(FILE *out, const tess_bench_run *b, int steps)
{
    uint64_t sent, received;
    if (tess_ranks() < 2) return;
    tess_message_traffic(&sent, &received);
    double under_way, exposed;
    tess_message_seconds(&under_way, &exposed);
    fprintf(out, "%d ranks; this one sends %.0f bytes a step; messages under way %.3f s a step, %.1f%% of it hidden",
            tess_ranks(), (double)(sent - b->sent) / steps, under_way / steps,
            under_way > 0 ? 100 * (1 - exposed / under_way) : 100);
    const double cores = tess_message_cores() - b->cores;
    if (cores > 0) fprintf(out, "; they take %.3f s of a core", cores / steps);
    fprintf(out, "\n");
}

/* The model's rate beside the best that the library alone was ever seen to reach here. */
static void print_rates(FILE *out, tess_bench_run *b, double median)
{
    const double tokens = (double)(b->run.batch * b->run.length) / median;
    const double share = tess_measure_mfu(&b->measure, median);
    const int gpus = tess_gpus();
    tess_measure_keep(&b->measure);
    fprintf(out, "%.*f tokens/s, %.1f GFLOP/s of the model", tokens < 10 ? 2 : 0, tokens,
            b->measure.flops / median * 1e-9);
    if (share >= 0)
        fprintf(out, ": %.1f%% of the %.1f GFLOP/s that %s alone reaches on %d %s", 100 * share,
                b->measure.yardstick * 1e-9, gpus ? "cublasLt" : "oneDNN",
                (gpus ? gpus : tess_workers()) * tess_ranks(), gpus ? "GPUs" : "cores");
    fputc('\n', out);
}

/* What the order of the tasks leaves to do at a time, whatever runs them. */
static void print_parallelism(FILE *out, const tess_bench_run *b, const tess_profile *p)
{
    tess_parallelism x;
    if (tess_gpus() > 0) return; /* its tasks' times are of one GPU, and there is no other */
    tess_step_parallelism(b->step, p, &x);
    fprintf(out, "parallelism %.1f: %.1f ms of work, %.1f ms in the longest chain; on paper, tiles at hand,",
            x.path > 0 ? x.work / x.path : 1, 1e3 * x.work, 1e3 * x.path);
    for (int i = 0; i < TESS_WIDTHS; i++)
        fprintf(out, "%s %.0f%% of %d", i ? "," : "", 100 * x.work / (x.seconds[i] * (1 << i)), 1 << i);
    fprintf(out, " cores work\nthe longest chain:");
    bool some = false;
    for (bool told[TESS_PROFILE_ROWS] = {false};;) {
        int most = -1;
        for (int i = 0; i < p->rows; i++)
            if (x.chain[i].tasks && !told[i] && (most < 0 || x.chain[i].seconds > x.chain[most].seconds)) most = i;
        if (most < 0) break;
        const tess_profile_row *r = &p->row[most];
        told[most] = true;
        fprintf(out, "%s %.1f ms in %d %s %s", some ? "," : "", 1e3 * x.chain[most].seconds, (int)x.chain[most].tasks,
                r->name, tess_dtype_name(r->dtype));
        if (r->alone < r->busy) fprintf(out, " of %.1f parts", r->busy / r->alone);
        some = true;
    }
    fprintf(out, "\n");
}

void tess_bench_print(FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    const double params = (double)tess_graph_param_elements(b->run.g), peak = (double)usage.ru_maxrss * 1024;
    const double states = (double)(b->plan.resident[TESS_ROLE_WEIGHT] + b->plan.resident[TESS_ROLE_MASTER] +
                                   b->plan.resident[TESS_ROLE_MOMENT]);
    const double trained = (double)tess_graph_trained_elements(b->run.g);
    fprintf(out, "%.0f parameters, ", params);
    if (trained < params) fprintf(out, "%.0f of them trained, ", trained);
    fprintf(out, "%lld x %lld tokens a step, %s\n", (long long)b->run.batch, (long long)b->run.length,
            tess_run_dtype_name(b->run.dtype));
    print_rates(out, b, median);
    fprintf(out, "peak memory of the process %s", tess_human_bytes(peak));
    if (tess_gpus() > 0) {
        uint64_t now, most;
        tess_tier_use(TESS_TIER_GPU, &now, &most);
        fprintf(out, " of RAM, and tiles of %s on the GPU", tess_human_bytes((double)most));
    }
    fprintf(out, "; planned: weights and states %s, gradients %s, activations %s\n", tess_human_bytes(states),
            tess_human_bytes((double)b->plan.peak[TESS_ROLE_GRADIENT]),
            tess_human_bytes((double)b->plan.peak[TESS_ROLE_ACTIVATION]));
    print_disk(out, b, steps);
    print_gpu(out, b, steps);
    print_messages(out, b, steps);
    print_table(out, p, steps);
    print_parallelism(out, b, p);
}
