/* Does a run fit into the memory there is? And where it does not, which setting makes it fit. */
#include "models/train/run/run.h"
#include <stdlib.h>
#include <string.h>

uint64_t tess_run_limit(const tess_run *r)
{
    const uint64_t gpu = tess_gpus() > 1 || !r->caps.gpu_plan ? tess_gpu_bytes(r->caps.gpu) : 0;
    if (r->caps.cpu) return r->caps.cpu + gpu;
    const uint64_t ram = tess_ram_free();
    return ram - ram / 16 + gpu;
}

tess_status tess_run_plan(const tess_config *c, int rank, bool train, tess_holds *plan)
{
    tess_run run;
    tess_step *step = NULL;
    tess_status status = tess_run_open(c, rank, &run);
    if (status == TESS_OK) status = tess_run_step(&run, train, &step);
    tess_gpu_placement gpu;
    if (status == TESS_OK) status = tess_run_place_gpu(&run, step, &gpu);
    if (status == TESS_OK) tess_step_holds(step, plan);
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
    tess_place_conf conf = r->limits.ram;
    conf.alone = !train;
    conf.taken = beside;
    conf.rates = (tess_rates){0};
    *least = 0;
    tess_status status = tess_run_open(r->c, r->rank, &other), fits = TESS_INVALID;
    if (status == TESS_OK) status = tess_run_step(&other, train, &step);
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
    tess_holds plan;
    const int64_t data = tess_ranks() / (c->parallel.tensor * c->parallel.pipeline * c->parallel.sequence);
    text[0] = 0;
    for (int recompute = 0; recompute < 2; recompute++) {
        if (recompute && c->activation_checkpointing.enabled) break;
        changed.activation_checkpointing.enabled = recompute || c->activation_checkpointing.enabled;
        for (int64_t micro = c->train_micro_batch_size_per_gpu; micro >= 1; micro--) {
            if (c->train_batch_size % (micro * data) || (!recompute && micro == c->train_micro_batch_size_per_gpu))
                continue;
            changed.train_micro_batch_size_per_gpu = micro;
            changed.gradient_accumulation_steps = c->train_batch_size / (micro * data);
            TESS_TRY(tess_run_plan(&changed, r->rank, true, &plan));
            uint64_t needed = tess_holds_need(&plan, tess_cores()) + beside;
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
    const char *cap = r->caps.cpu_key;
    const bool capped = r->caps.cpu > 0;
    const char *unit = tess_run_cap_unit(cap);
    if (least >= whole)
        snprintf(text, size, "%s=%llu%s would do", cap, mib, unit);
    else if (least <= limit && capped && whole <= tess_ram_free())
        snprintf(text, size, "%s=%llu%s would do; memory.path=DIR puts on disk what does not fit", cap, mib, unit);
    else if (least <= limit)
        snprintf(text, size, "memory.path=DIR puts on disk what does not fit");
    else if (capped && whole <= tess_ram_free())
        snprintf(text, size, "%s=%llu%s would do, or %s=%llu%s with memory.path=DIR for the rest", cap, mib, unit, cap,
                 over_disk, unit);
    else
        snprintf(text, size, "the least would be %s=%llu%s with memory.path=DIR for the rest", cap, over_disk, unit);
    return TESS_OK;
}

tess_status tess_run_fits(const tess_run *r, bool train, const tess_holds *plan, uint64_t beside)
{
    char setting[200];
    uint64_t needed = tess_holds_need(plan, tess_cores()) + beside, limit = tess_run_limit(r);
    if (needed <= limit) return TESS_OK;
    TESS_TRY(find_setting(r, train, needed, beside, limit, setting, sizeof setting));
    const bool capped = r->caps.cpu > 0;
    return tess_error(TESS_INVALID, capped ? r->caps.cpu_key : "memory", "the run needs %s in RAM, %s is %s (%s)",
                      tess_human_bytes((double)needed), capped ? "the cap" : "free", tess_human_bytes((double)limit),
                      setting);
}
