/* What a run says unasked, a line each: what costs its user time or a result, and the setting that does not. */
#include "codelets/codelets.h"
#include "models/train/rates/yardstick.h"
#include "models/train/run/run.h"
#include <math.h>

/* ---- the slower dtype ---- */

enum {
    MANY = 20000, /* tasks: making another plan with more of them is not worth a line */
    OPEN = 1000,  /* steps of a run that does not say how many */
    NEWS = 10     /* seconds: saving fewer is not worth a line */
};

/* The seconds that a run spends in its matrices at a rate. */
static double seconds(const tess_config *c, const tess_holds *p, double rate)
{
    const double steps = c->steps == TESS_CONFIG_AUTO ? OPEN : (double)c->steps;
    return steps * (p->flops + p->recompute_flops) / rate;
}

/* What the same run holds in the other dtype, beside what it holds: ", and takes 12 MiB more". */
static void say_memory(const tess_config *other, const tess_holds *p, char *text, size_t size)
{
    tess_holds plan;
    text[0] = 0;
    if (p->tasks > MANY) return;
    if (tess_run_plan(other, tess_rank(), true, &plan) != TESS_OK) {
        tess_error_clear();
        return;
    }
    const double more = (double)plan.peak_total - (double)p->peak_total;
    snprintf(text, size, ", and takes %s %s", tess_human_bytes(more < 0 ? -more : more), more < 0 ? "less" : "more");
}

void tess_run_say_dtype(const tess_run *r, const tess_holds *p)
{
    const tess_config *c = r->c;
    tess_yardstick y;
    if (c->fp8.enabled) {
        if (!tess_rank() && tess_gpus() == 0)
            tess_note("fp8.enabled: no CPU multiplies 8 bits: it gives what a GPU would, and saves no time here");
        return;
    }
    if (tess_rank() || tess_gpus() > 0 || c->fp16.enabled || !tess_yardstick_known(&y)) return;
    const bool half = c->bf16.enabled;
    const double now = y.matrix_rate[half ? TESS_BF16 : TESS_F32], then = y.matrix_rate[half ? TESS_F32 : TESS_BF16];
    tess_config other = *c; /* a flag alone is changed, so the strings stay shared */
    char memory[64];
    if (!(now > 0) || !(then > 0)) return;
    if (seconds(c, p, now) - seconds(c, p, then) < NEWS) {
        if (half && tess_matrix_widened(TESS_BF16) && seconds(c, p, now) > NEWS)
            tess_note("bf16.enabled: this CPU has no instructions for bf16, so it saves memory here, not time");
        return;
    }
    other.bf16.enabled = !half;
    say_memory(&other, p, memory, sizeof memory);
    tess_note("bf16.enabled: %s is multiplied at %.0f GFLOP/s here, %s at %.0f: bf16.enabled=%s is faster%s",
              half ? "bf16" : "fp32", now * 1e-9, half ? "fp32" : "bf16", then * 1e-9, half ? "false" : "true", memory);
}

/* ---- what is saved ---- */

void tess_run_say_saved(const tess_run *r)
{
    const tess_save_dtype d = tess_run_save_dtype(r);
    if (r->c->save_dtype == TESS_CONFIG_AUTO && d != TESS_SAVE_FP32)
        tess_note("save_dtype: %s, as the model that was loaded (fp32 keeps every bit)",
                  d == TESS_SAVE_BF16 ? "bf16" : "fp16");
}

void tess_run_say_unsaved(const tess_config *c, double seconds)
{
    enum { LONG = 300 };
    if (tess_rank() || c->checkpoint.dir || seconds < LONG) return;
    tess_note("checkpoint.dir: nothing is saved before the end, in some %.0f minutes (checkpoint.dir=DIR "
              "checkpoint.every=N saves it on the way)",
              ceil(seconds / 60));
}

/* Drives wear: consumers' bear some hundred TB. */
void tess_run_say_written(const tess_run *r, int64_t steps, double saved)
{
    static const double much = 1e12;
    const double bytes = (double)r->plan.ram.written * (double)steps;
    const int64_t every = r->c ? r->c->checkpoint.every : 0, saves = every > 0 ? steps / every : 0;
    if (!tess_rank() && r->machine.disk && bytes >= much)
        tess_note("%s: %lld steps write %.1f TB there%s (less with a larger cap on RAM, memory.cpu, or "
                  "optimizer_states=8bit)",
                  r->machine.disk, (long long)steps, bytes * 1e-12, tess_ranks() > 1 ? " for each rank" : "");
    if (!tess_rank() && (double)saves * saved >= much)
        tess_note("%s: %lld checkpoints write %.1f TB there (less with a larger checkpoint.every)",
                  r->c->checkpoint.dir, (long long)saves, (double)saves * saved * 1e-12);
}

/* ---- padding ---- */

void tess_run_say_padding(const tess_run *r, const tess_data *train, const tess_data *valid)
{
    static const double much = 0.25; /* of all places */
    const double places = (double)tess_data_samples(train) * (double)(r->sequences * r->length);
    const double share = 1 - (double)tess_data_tokens(train) / places;
    uint64_t longest = tess_data_longest(train);
    if (!longest || share < much) return;
    if (valid && tess_data_longest(valid) > longest) longest = tess_data_longest(valid);
    const bool shorter = longest < (uint64_t)r->length && !(valid && !tess_data_longest(valid));
    if (shorter)
        tess_note("data.seq_length: the longest sample has %llu tokens, and %.0f%% of %lld are padding: "
                  "data.seq_length=%llu computes the same without it",
                  (unsigned long long)longest, 100 * share, (long long)r->length, (unsigned long long)longest);
    else
        tess_note("data.seq_length: %.0f%% of the batches is padding, since samples are shorter than %lld tokens%s",
                  100 * share, (long long)r->length,
                  r->sequences > 1 ? "" : " (data.pack_examples=true lets them share samples)");
}
