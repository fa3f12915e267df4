/* What a run will hold, do and take, before it runs; and which setting makes it fit when it does not. */
#include "run_impl.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The bytes that RAM must hold at most: all tiles live at one time, and each worker's scratch. */
static uint64_t need(const tess_plan *p, int workers)
{
    return p->peak_ram + (uint64_t)(workers - 1) * p->resident[TESS_ROLE_SCRATCH];
}

/* RAM's; and what GPUs hold beside it, where no plan says what. */
static uint64_t room(const tess_config *c)
{
    const uint64_t gpu =
        tess_gpus() > 1 || !c->memory.gpu_plan ? tess_gpu_bytes(c->memory.gpu > 0 ? (uint64_t)c->memory.gpu : 0) : 0;
    if (c->memory.cpu > 0) return (uint64_t)c->memory.cpu + gpu;
    const uint64_t ram = tess_ram_free();
    return ram - ram / 16 + gpu;
}

/* The plan of a rank. */
static tess_status plan_of(const tess_config *c, int rank, bool train, tess_plan *plan)
{
    tess_run run;
    tess_step *step = NULL;
    tess_status status = tess_run_open(c, rank, &run);
    if (status == TESS_OK) status = train ? tess_run_step(&run, &step) : tess_run_eval_step(&run, false, &step);
    tess_gpu_placement gpu;
    if (status == TESS_OK) status = tess_run_place_gpu(&run, step, &gpu);
    if (status == TESS_OK) tess_step_plan(step, plan);
    tess_step_free(step);
    tess_run_close(&run);
    return status;
}

/* The first of a few changes, the cheapest in time first, that fits; into `text`. */
static tess_status find_setting(const tess_run *r, bool train, uint64_t beside, uint64_t limit, char *text, size_t size)
{
    const tess_config *c = r->c;
    tess_config changed = *c; /* numbers alone are changed, so the strings stay shared */
    tess_plan plan;
    const int64_t data = tess_ranks() / (c->parallel.tensor * c->parallel.pipeline);
    for (int recompute = 0; recompute < 2; recompute++) {
        if (recompute && c->activation_checkpointing.enabled) break;
        changed.activation_checkpointing.enabled = recompute || c->activation_checkpointing.enabled;
        for (int64_t micro = c->train_micro_batch_size_per_gpu; micro >= 1; micro--) {
            if (c->train_batch_size % (micro * data) || (!recompute && micro == c->train_micro_batch_size_per_gpu))
                continue;
            changed.train_micro_batch_size_per_gpu = micro;
            changed.gradient_accumulation_steps = c->train_batch_size / (micro * data);
            TESS_TRY(plan_of(&changed, r->rank, train, &plan));
            uint64_t needed = need(&plan, tess_cores()) + beside;
            if (needed > limit) continue;
            snprintf(text, size, "train_micro_batch_size_per_gpu=%lld gradient_accumulation_steps=%lld%s needs %s",
                     (long long)micro, (long long)changed.gradient_accumulation_steps,
                     recompute ? " activation_checkpointing.enabled=true" : "", tess_human_bytes((double)needed));
            return TESS_OK;
        }
    }
    snprintf(text, size,
             "no setting of batch and activation_checkpointing is enough; memory.path=DIR would put the rest on disk");
    return TESS_OK;
}

tess_status tess_run_fits(const tess_run *r, bool train, const tess_plan *plan, uint64_t beside)
{
    const tess_config *c = r->c;
    char setting[200];
    uint64_t needed = need(plan, tess_cores()) + beside, limit = room(c);
    if (needed <= limit) return TESS_OK;
    TESS_TRY(find_setting(r, train, beside, limit, setting, sizeof setting));
    return tess_error(TESS_INVALID, c->memory.cpu > 0 ? "memory.cpu" : "memory",
                      "the run needs %s in RAM, %s is %s (%s)", tess_human_bytes((double)needed),
                      c->memory.cpu > 0 ? "the cap" : "free", tess_human_bytes((double)limit), setting);
}

static void line(FILE *out, const char *what, uint64_t bytes)
{
    fprintf(out, "  %-36s %12s\n", what, tess_human_bytes((double)bytes));
}

/* How a byte count splits over the tiers: what rests in RAM, and what on disk. */
static void print_memory(FILE *out, const tess_plan *p, uint64_t needed, uint64_t limit, int workers)
{
    fprintf(out, "all tiles, were they in RAM\n");
    line(out, "weights", p->resident[TESS_ROLE_WEIGHT]);
    if (p->resident[TESS_ROLE_MASTER]) line(out, "fp32 masters", p->resident[TESS_ROLE_MASTER]);
    line(out, "moments", p->resident[TESS_ROLE_MOMENT]);
    line(out, "gradients, at most", p->peak[TESS_ROLE_GRADIENT]);
    line(out, "activations, at most", p->peak[TESS_ROLE_ACTIVATION]);
    line(out, "scratch of the workers", (uint64_t)workers * p->resident[TESS_ROLE_SCRATCH]);
    line(out, "at most at one time", needed);
    line(out, "there is", limit);
}

static void print_gpu(FILE *out, const tess_run *r)
{
    const tess_gpu_placement *p = &r->gpu;
    fprintf(out, "gpu\n");
    if (!p->room) {
        const uint64_t gpu = tess_gpu_bytes(r->c->memory.gpu > 0 ? (uint64_t)r->c->memory.gpu : 0);
        if (gpu) line(out, "what its tasks use, of", gpu);
        if (!gpu) fprintf(out, "  nothing\n");
        return;
    }
    line(out, "there is, for tiles", p->memory);
    line(out, "tiles that come and go by plan", p->room);
    line(out, "of it what lives there alone", p->home);
    line(out, "copied to it in a step", p->read);
    line(out, "copied back", p->written);
    line(out, "no plan copies less than", p->bound);
    if (r->by_layer && !r->disk) fprintf(out, "  all micro-batches pass a layer while it is there\n");
}

static void print_tiers(FILE *out, const tess_run *r)
{
    const tess_placement *p = &r->place;
    print_gpu(out, r);
    if (!r->disk) {
        fprintf(out, "cpu (RAM)\n  %s\ndisk\n  nothing\n", tess_gpus() ? "everything else" : "everything");
        return;
    }
    fprintf(out, "cpu (RAM)\n");
    line(out, "the cap", r->ram);
    line(out, "tiles, at most", p->room);
    line(out, "of it for tiles on their way", p->slack);
    line(out, "the least a step can work with", tess_run_cap(p->needed));
    fprintf(out, "disk (%s)\n", r->disk);
    line(out, "tiles that rest there", p->disk);
    line(out, "read in a step", p->read);
    line(out, "written in a step", p->written);
    line(out, "no placement moves less than", p->bound);
    if (r->by_layer) fprintf(out, "  all micro-batches pass a layer while it is in RAM\n");
    if (r->late) fprintf(out, "  updates wait for the norm and come in the next step's forward pass\n");
}

/* What the tasks of a training step reach of the two yardsticks: those that multiply matrices also take exponentials
 * and round, the others also compute. Read off `tessera bench`, see docs/speed.md. */
static const double MATRIX_SHARE = 0.85, COPY_SHARE = 0.4;

tess_status tess_run_rates(const tess_run *r, tess_rates *rates)
{
    tess_yardstick y;
    TESS_TRY(tess_ranks_agree(tess_rank() ? TESS_OK : tess_yardstick_read(r->disk, false, &y)));
    tess_ranks_tell(&y, sizeof y); /* plans must not differ */
    tess_drive *d = &y.drive;
    const double here = tess_share_read()->ranks; /* who share a drive */
    d->read_rate /= here, d->write_rate /= here, d->mixed_read_rate /= here, d->mixed_write_rate /= here;
    *rates = (tess_rates){.flops = y.matrix_rate[r->c->bf16.enabled ? TESS_BF16 : TESS_F32] * MATRIX_SHARE,
                          .copy = y.copy_rate * COPY_SHARE,
                          .read = d->read_rate,
                          .write = d->write_rate};
    if (r->disk) rates->both = d->mixed_read_rate / d->read_rate + d->mixed_write_rate / d->write_rate;
    return TESS_OK;
}

static void print_time(FILE *out, const tess_run *r, const tess_plan *p, const tess_forecast *t)
{
    double tokens = (double)(r->batch * r->length);
    double rest = t->seconds - t->work;
    const char *bound = t->work >= t->read && t->work >= t->write ? "compute"
                        : t->read >= t->write                     ? "reading from disk"
                                                                  : "writing to disk";
    fprintf(out, "time of a step\n");
    fprintf(out, "  compute: %.3g TFLOP of matrices (%.3g recomputed), the rest moves %s %9.3f s\n",
            (p->flops + p->recompute_flops) * 1e-12, p->recompute_flops * 1e-12, tess_human_bytes(p->bytes), t->work);
    if (r->disk) {
        const tess_rates *d = &r->conf.rates;
        fprintf(out, "  reading from disk at %.2f GB/s %26.3f s\n", d->read / 1e9, t->read);
        fprintf(out, "  writing to disk at %.2f GB/s %28.3f s\n", d->write / 1e9, t->write);
        fprintf(out, "  waiting for each other %33.3f s\n", rest > 0 ? rest : 0);
    }
    fprintf(out, "  in all %.3f s, %.0f tokens/s, bound by %s\n", t->seconds, tokens / t->seconds, bound);
}

/* The step's place, or why there is none. */
static tess_status place(tess_run *r, FILE *out, tess_step **step)
{
    tess_status fits = tess_run_train_step(r, step);
    if (fits == TESS_OK) print_tiers(out, r);
    if (fits != TESS_INVALID) return fits;
    fprintf(out, "does not fit: %s\n", tess_error_text());
    tess_step_free(*step);
    r->disk = NULL;
    return tess_run_step(r, step); /* what it would take where there is room */
}

static tess_status print_placed(tess_run *r, FILE *out)
{
    tess_step *step = NULL;
    tess_plan p;
    tess_status status = place(r, out, &step);
    if (status == TESS_OK && !(r->conf.rates.flops > 0)) status = tess_run_rates(r, &r->conf.rates);
    if (status == TESS_OK) {
        tess_step_plan(step, &p);
        if (!r->disk) tess_step_forecast(step, &r->conf.rates, UINT64_MAX, tess_cores(), &r->place.time);
        if (tess_gpus() > 0)
            fprintf(out, "time of a step: %.3g TFLOP of matrices on a GPU, whose rate is not measured here\n",
                    (p.flops + p.recompute_flops) * 1e-12);
        else
            print_time(out, r, &p, &r->place.time);
    }
    tess_step_free(step);
    return status;
}

/* The rank that holds the most. Those of a pipeline's stage differ by heads or rows alone: the first and the last of
 * either other dimension stand for them. */
static tess_status find_largest(const tess_config *c, int *largest)
{
    const int ranks = tess_ranks(), tensor = (int)c->parallel.tensor, model = tensor * (int)c->parallel.pipeline;
    uint64_t most = 0;
    *largest = 0;
    for (int r = 0; r < ranks && ranks > 1; r++) {
        const int d = r / model, t = r % tensor;
        if ((d > 0 && d < ranks / model - 1) || (t > 0 && t < tensor - 1)) continue;
        tess_plan plan;
        TESS_TRY(plan_of(c, r, true, &plan));
        if (plan.peak_total > most) most = plan.peak_total, *largest = r;
    }
    return TESS_OK;
}

tess_status tess_estimate(const tess_config *c, FILE *out)
{
    tess_run run;
    tess_step *step = NULL;
    tess_plan p;
    const int workers = tess_cores();
    int rank;
    TESS_TRY(find_largest(c, &rank));
    tess_status status = tess_run_open(c, rank, &run);
    if (status == TESS_OK) status = tess_run_tiers(&run, c->output);
    if (status == TESS_OK) status = tess_run_step(&run, &step);
    if (status == TESS_OK) {
        tess_step_plan(step, &p);
        fprintf(out, "%lld parameters, %lld tokens a step, %llu tasks over %llu tiles\n",
                (long long)tess_graph_param_elements(run.g), (long long)(run.batch * run.length),
                (unsigned long long)p.tasks, (unsigned long long)p.tiles);
        if (tess_ranks() > 1) fprintf(out, "rank %d of %d, which holds the most\n", rank, tess_ranks());
        print_memory(out, &p, need(&p, workers), room(c), workers);
        if (tess_ranks() > 1) line(out, "sent to other ranks in a step", p.sent);
    }
    tess_step_free(step);
    if (status == TESS_OK) status = print_placed(&run, out);
    tess_run_close(&run);
    return status;
}
