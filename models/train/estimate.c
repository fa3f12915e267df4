/* What a run will hold, do and take, before it runs; and which setting makes it fit when it does not. */
#include "codelets.h"
#include "estimate_impl.h"
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
    const char *where;
    const uint64_t cap = tess_run_cpu_cap(c, &where);
    if (cap) return cap + gpu;
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

/* The least RAM with which the step could be placed over a disk; 0: none is found. Asks no other rank. What a step that
 * may move all of its tiles asks for will do; else it is tried, which takes the time of a plan. */
static tess_status least_over_disk(const tess_run *r, bool train, uint64_t beside, uint64_t *least)
{
    tess_run other;
    tess_step *step = NULL;
    tess_gpu_placement gpu;
    tess_placement placement;
    tess_place_conf conf = r->conf;
    conf.alone = !train;
    conf.taken = beside;
    conf.rates = (tess_rates){0};
    *least = 0;
    tess_status status = tess_run_open(r->c, r->rank, &other), fits = TESS_INVALID;
    if (status == TESS_OK)
        status = train ? tess_run_step(&other, &step)
                       : tess_step_new(other.net.output, &(tess_step_conf){.micro = other.evaluated}, &step);
    if (status == TESS_OK) status = tess_run_place_gpu(&other, step, &gpu);
    for (conf.ram = 1; status == TESS_OK && fits != TESS_OK; conf.ram = placement.needed) {
        fits = tess_step_place(step, &conf, &placement);
        if (fits == TESS_OK) *least = conf.ram;
        if (!conf.stay) *least = placement.needed;
        if (*least || placement.needed <= conf.ram) break;
    }
    tess_step_free(step);
    tess_run_close(&other);
    return status;
}

/* The batch, the cheapest change in time first, with which the run fits, into `text`; "" where none is enough. */
static tess_status find_batch(const tess_run *r, uint64_t beside, uint64_t limit, char *text, size_t size)
{
    const tess_config *c = r->c;
    tess_config changed = *c; /* numbers alone are changed, so the strings stay shared */
    tess_plan plan;
    const int64_t data = tess_ranks() / (c->parallel.tensor * c->parallel.pipeline);
    text[0] = 0;
    for (int recompute = 0; recompute < 2; recompute++) {
        if (recompute && c->activation_checkpointing.enabled) break;
        changed.activation_checkpointing.enabled = recompute || c->activation_checkpointing.enabled;
        for (int64_t micro = c->train_micro_batch_size_per_gpu; micro >= 1; micro--) {
            if (c->train_batch_size % (micro * data) || (!recompute && micro == c->train_micro_batch_size_per_gpu))
                continue;
            changed.train_micro_batch_size_per_gpu = micro;
            changed.gradient_accumulation_steps = c->train_batch_size / (micro * data);
            TESS_TRY(plan_of(&changed, r->rank, true, &plan));
            uint64_t needed = need(&plan, tess_cores()) + beside;
            if (needed > limit) continue;
            snprintf(text, size, "train_micro_batch_size_per_gpu=%lld gradient_accumulation_steps=%lld%s needs %s",
                     (long long)micro, (long long)changed.gradient_accumulation_steps,
                     recompute ? " activation_checkpointing.enabled=true" : "", tess_human_bytes((double)needed));
            return TESS_OK;
        }
    }
    return TESS_OK;
}

/* What makes the run fit, into `text`: a batch, a disk, a larger cap, or both of these. */
static tess_status find_setting(const tess_run *r, bool train, uint64_t needed, uint64_t beside, uint64_t limit,
                                char *text, size_t size)
{
    enum { MiB = 1 << 20 };
    const uint64_t whole = tess_run_cap(needed);
    uint64_t least;
    if (train) {
        TESS_TRY(find_batch(r, beside, limit, text, size));
        if (text[0]) return TESS_OK;
    }
    TESS_TRY(least_over_disk(r, train, beside, &least));
    least = least ? tess_run_cap(least) : whole;
    const unsigned long long mib = whole / MiB, over_disk = least / MiB;
    if (least >= whole)
        snprintf(text, size, "memory.cpu=%lluMiB would do", mib);
    else if (least <= limit && r->c->memory.cpu > 0 && whole <= tess_ram_free())
        snprintf(text, size, "memory.cpu=%lluMiB would do; memory.path=DIR puts on disk what does not fit", mib);
    else if (least <= limit)
        snprintf(text, size, "memory.path=DIR puts on disk what does not fit");
    else if (r->c->memory.cpu > 0 && whole <= tess_ram_free())
        snprintf(text, size, "memory.cpu=%lluMiB would do, or memory.cpu=%lluMiB with memory.path=DIR for the rest",
                 mib, over_disk);
    else
        snprintf(text, size, "the least would be memory.cpu=%lluMiB with memory.path=DIR for the rest", over_disk);
    return TESS_OK;
}

tess_status tess_run_fits(const tess_run *r, bool train, const tess_plan *plan, uint64_t beside)
{
    const tess_config *c = r->c;
    char setting[200];
    uint64_t needed = need(plan, tess_cores()) + beside, limit = room(c);
    if (needed <= limit) return TESS_OK;
    TESS_TRY(find_setting(r, train, needed, beside, limit, setting, sizeof setting));
    const char *where;
    const bool capped = tess_run_cpu_cap(c, &where) > 0;
    return tess_error(TESS_INVALID, capped ? where : "memory", "the run needs %s in RAM, %s is %s (%s)",
                      tess_human_bytes((double)needed), capped ? "the cap" : "free", tess_human_bytes((double)limit),
                      setting);
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

/* Prints where the tiles of the step go, or why it does not fit, and what it would take where there is room. */
static tess_status print_placed(tess_run *r, uint64_t least, FILE *out)
{
    const uint64_t limit = room(r->c);
    tess_step *step = NULL, *eval = NULL;
    tess_plan p;
    tess_status status = tess_run_train_step(r, &step);
    if (status == TESS_OK && r->c->data.valid) status = tess_run_eval_step(r, false, &eval); /* it rests there, too */
    const bool fits = status == TESS_OK;
    char *why = fits ? NULL : tess_strdup(tess_error_text());
    if (status == TESS_INVALID) {
        tess_step_free(step);
        r->disk = NULL;
        status = tess_run_step(r, &step);
    }
    if (status == TESS_OK && !(r->conf.rates.flops > 0)) status = tess_run_rates(r, &r->conf.rates);
    if (status == TESS_OK) {
        tess_step_plan(step, &p);
        if (fits)
            tess_estimate_tiers(out, r, &p, limit, least);
        else
            tess_estimate_needs(out, r, &p, limit);
        if (!fits) fprintf(out, "does not fit: %s\n", why);
        if (tess_ranks() > 1) tess_estimate_messages(out, p.sent);
        if (!r->disk) tess_step_forecast(step, &r->conf.rates, UINT64_MAX, tess_cores(), &r->place.time);
        if (tess_gpus() > 0)
            fprintf(out, "time of a step: %.3g TFLOP of matrices on a GPU, whose rate is not measured here\n",
                    (p.flops + p.recompute_flops) * 1e-12);
        else
            tess_estimate_time(out, r, &p, &r->place.time);
    }
    free(why);
    tess_step_free(eval);
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

/* The least memory.cpu over a disk, by a trial; 0 where there is no disk, or where trying would take too long. */
static tess_status find_least(const tess_run *r, uint64_t *least)
{
    enum { MANY = 10000 }; /* tasks */
    tess_run other;
    tess_step *step = NULL;
    tess_plan p;
    if (!r->disk) return TESS_OK;
    tess_status status = tess_run_open(r->c, r->rank, &other);
    other.conf = r->conf;
    if (status == TESS_OK) status = tess_run_step(&other, &step);
    if (status == TESS_OK) tess_step_plan(step, &p);
    tess_step_free(step);
    if (status == TESS_OK && p.tasks < MANY) *least = tess_run_least(&other);
    tess_run_close(&other);
    return status;
}

tess_status tess_estimate(const tess_config *c, FILE *out)
{
    tess_run run;
    tess_step *step = NULL;
    tess_plan p;
    uint64_t least = 0;
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
    }
    tess_step_free(step);
    if (status == TESS_OK) status = find_least(&run, &least);
    if (status == TESS_OK) status = print_placed(&run, least, out);
    tess_run_close(&run);
    return status;
}
