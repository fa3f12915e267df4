/* Where the time of a training step goes: steps of a model on random tokens, beside the matrix rate that oneDNN alone
 * reaches in the same run. */
#include "models/train/bench/bench.h"
#include "codelets/codelets.h"
#include "models/text/base/text.h"
#include "models/train/rates/yardstick.h"
#include <stdlib.h>

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void start_measuring(tess_bench_run *b)
{
    uint64_t read, written, used, peak;
    tess_disk_traffic(&b->read, &b->written, &used, &peak);
    b->moved = b->read + b->written;
    b->drive_busy = tess_disk_busy_seconds();
    tess_message_traffic(&b->sent, &b->received);
    b->cores = tess_message_cores();
    tess_flow_waited();
    tess_gpu_traffic(&read, &written);
    tess_gpu_peer_traffic();
    tess_gpu_waited();
    double under_way, exposed;
    tess_message_seconds(&under_way, &exposed);
    tess_profile_reset();
}

static tess_status begin_step(const tess_bench_run *b, int k)
{
    return tess_step_begin(b->step, &(tess_step_input){.step = k + 1, .seed = 1, .lr = 1e-4f});
}

/* Each step begins before the last has ended, where it may, as in training. */
static tess_status measure(tess_bench_run *b, int steps, FILE *out, void (*begin)(void *of), tess_bench_teller tell,
                           void *of)
{
    TESS_FREED double *seconds = tess_alloc((size_t)steps * sizeof *seconds);
    tess_profile p;
    tess_status status = TESS_OK;
    const bool overlaps = tess_step_overlaps(b->step) && !b->tracing.open;
    double start = 0, sum = 0;
    for (int k = -1; k < steps && status == TESS_OK; k++) { /* the first one warms up */
        const bool ahead = overlaps && k >= 0 && k + 1 < steps, begun = overlaps && k > 0;
        if (k == 0) start_measuring(b);
        if (k == 0 && begin) begin(of);
        if (!begun) {
            tess_tracing_begin(&b->tracing, k + 1);
            start = tess_seconds();
            status = tess_ranks_agree(begin_step(b, k));
        }
        if (status == TESS_OK && ahead) status = begin_step(b, k + 1);
        if (status == TESS_OK) status = tess_ranks_agree(tess_step_end(b->step, NULL));
        const double end = tess_seconds();
        if (k >= 0) sum += seconds[k] = end - start;
        if (status == TESS_OK) tess_tracing_end(&b->tracing, k + 1, start, end);
        start = end;
    }
    if (status == TESS_OK) tess_tracing_merge(&b->tracing);
    tess_profile_read(&p);
    qsort(seconds, (size_t)steps, sizeof *seconds, ascending);
    /* Of steps that overlap the first is too long and the last too short, which of a few only the mean makes up for. */
    const double usual = overlaps && steps < 4 ? sum / steps : seconds[steps / 2];
    if (status == TESS_OK) tell(of, out, b, usual, &p, steps);
    return status;
}

tess_status tess_bench_told(const tess_config *c, int steps, FILE *out, void (*begin)(void *of), tess_bench_teller tell,
                            void *of)
{
    tess_bench_run b = {0};
    tess_status status;
    TESS_TRY_DONE(tess_ranks_agree(TESS_OK)); /* a rank that got another configuration did not come here */
    TESS_TRY_DONE(tess_run_check_gpus(c));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_open(c, tess_rank(), &b.run)));
    TESS_TRY_DONE(tess_run_same(&b.run, "bench"));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_tiers(&b.run, NULL)));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_train_step(&b.run, &b.step)));
    tess_step_holds(b.step, &b.plan);
    tess_run_say_dtype(&b.run, &b.plan);
    tess_ranks_barrier(); /* so that ranks of a machine share it while they measure */
    tess_measure_begin(&b.measure, tess_yardstick_for(b.run.dtype), b.plan.flops);
    TESS_TRY_DONE(tess_run_start(&b.run, true));
    TESS_TRY_DONE(tess_model_load(b.run.model, b.run.g, (uint64_t)c->seed));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_feed_random(&b.run, b.step)));
    TESS_TRY_DONE(tess_tracing_open(&b.tracing, &b.run, &b.plan, &b.measure, 0));
    status = measure(&b, steps, out, begin, tell, of);
done:
    tess_tracing_close(&b.tracing);
    tess_step_free(b.step);
    tess_run_close(&b.run);
    tess_stop();
    return status;
}

static void print(void *of, FILE *out, tess_bench_run *b, double median, const tess_profile *p, int steps)
{
    (void)of;
    tess_efficiency_keep(b, p);
    tess_bench_print(out, b, median, p, steps);
}

tess_status tess_bench(const tess_config *c, int steps, FILE *out)
{
    tess_yardstick y; /* measured for tess_efficiency_keep, which divides by it */
    if (tess_ranks() == 1 && tess_gpus() == 0 && !tess_yardstick_known(&y))
        TESS_TRY(tess_yardstick_read(NULL, false, &y));
    return tess_bench_told(c, steps, out, NULL, print, NULL);
}
