/* Training and evaluation from a configuration: the whole run, from the model's directory to the trained one. All ranks
 * come this way, in phases that end with their agreement; rank 0 alone reports, and writes what they all have. */
#include "checkpoint_impl.h"
#include "dirs_impl.h"
#include "report_impl.h"
#include "run_impl.h"
#include "schedule_impl.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct training {
    tess_run run;
    tess_data *data, *valid;
    tess_step *step, *eval;
    tess_report *report;
    size_t made; /* of the output directory's path, see tess_dirs_make */
    tess_progress at;
    tess_plan plan;
    double matrix_rate, flops;              /* of all workers of all ranks, for mfu */
    uint64_t disk_read, disk_written, sent; /* so far */
};

static bool due(int64_t every, int64_t done)
{
    return every > 0 && done % every == 0;
}

static tess_status open_inputs(const tess_config *c, struct training *t)
{
    TESS_TRY(tess_config_require(c, "steps"));
    TESS_TRY(tess_config_require(c, "data.train"));
    TESS_TRY(tess_run_open(c, tess_rank(), &t->run));
    TESS_TRY(tess_run_data(&t->run, "data.train", c->data.train, c->data.shuffle, &t->data));
    if (c->data.valid) TESS_TRY(tess_run_data(&t->run, "data.valid", c->data.valid, false, &t->valid));
    if (c->eval_every > 0 && !t->valid) TESS_TRY(tess_config_require(c, "data.valid"));
    return TESS_OK;
}

/* Before the tiers are looked at: one may lie in it. */
static tess_status make_output(const tess_config *c, struct training *t)
{
    if (tess_rank() > 0 || tess_dirs_make(c->output, &t->made)) return TESS_OK;
    return tess_error(TESS_INVALID, c->output, "cannot be created: %s (see output)", strerror(errno));
}

static tess_status plan_steps(struct training *t)
{
    TESS_TRY(tess_run_train_step(&t->run, &t->step));
    if (t->valid) TESS_TRY(tess_run_eval_step(&t->run, false, &t->eval));
    tess_step_plan(t->step, &t->plan);
    return TESS_OK;
}

/* Where the run goes on; *found: from a checkpoint. */
static tess_status find_checkpoint(const tess_config *c, tess_progress *at, bool *found)
{
    const char *dir = c->checkpoint.dir;
    TESS_TRY(tess_checkpoint_prepare(dir));
    TESS_TRY(tess_checkpoint_find(dir, at, found));
    if (*found && !c->checkpoint.resume) /* among those of another run ours would be old ones, and be removed */
        return tess_error(TESS_INVALID, dir,
                          "holds a run's checkpoint of step %lld (--resume goes on from it; else remove "
                          "it, or set another checkpoint.dir)",
                          (long long)at->step);
    if (at->seed != (uint64_t)c->seed)
        return tess_error(TESS_INVALID, dir, "the run to go on from has seed %llu, the configuration %lld",
                          (unsigned long long)at->seed, (long long)c->seed);
    return TESS_OK;
}

static tess_status open_output(const tess_config *c, struct training *t)
{
    TESS_TRY(tess_report_open(c, t->at.step, stdout, &t->report));
    if (tess_rank()) return TESS_OK;
    char *path = tess_format("%s/config.json", c->output);
    tess_status status = tess_config_write(c, path);
    free(path);
    return status;
}

/* Weights from the newest checkpoint when the run resumes and there is one, else from the model. */
static tess_status begin(const tess_config *c, struct training *t)
{
    bool found = false;
    t->at = (tess_progress){.seed = (uint64_t)c->seed};
    if (c->checkpoint.dir) TESS_TRY(find_checkpoint(c, &t->at, &found));
    TESS_TRY(tess_ranks_agree(open_output(c, t)));
    const tess_dtype dtype = c->bf16.enabled ? TESS_BF16 : TESS_F32;
    t->matrix_rate = tess_gpus() > 0 ? tess_gpu_matrix_rate(dtype) : tess_matrix_rate(dtype, tess_cores(), 1024);
    t->flops = t->plan.flops;
    tess_ranks_sum(&t->matrix_rate, 1);
    tess_ranks_sum(&t->flops, 1);
    TESS_TRY(tess_run_start(&t->run, false));
    if (found) {
        tess_note("resuming from %s after step %lld", c->checkpoint.dir, (long long)t->at.step);
        TESS_TRY(tess_checkpoint_load(c->checkpoint.dir, t->at.step, t->run.g));
        tess_checkpoint_tidy(c->checkpoint.dir, c->checkpoint.keep);
    } else {
        TESS_TRY(tess_model_load(t->run.model, t->run.g, t->at.seed));
    }
    return TESS_OK;
}

/* What the step moved from and to the disk, and how long it stood still for it. */
static void report_disk(struct training *t, tess_tier_report *r)
{
    uint64_t read, written;
    tess_disk_traffic(&read, &written, &r->resident_bytes, &r->peak_bytes);
    r->read_bytes = read - t->disk_read;
    r->write_bytes = written - t->disk_written;
    r->wait_seconds = tess_flow_waited();
    t->disk_read = read;
    t->disk_written = written;
}

/* What all ranks sent each other in the step. */
static uint64_t sent_in_step(struct training *t)
{
    uint64_t sent, received;
    tess_message_traffic(&sent, &received);
    int64_t bytes = (int64_t)(sent - t->sent);
    t->sent = sent;
    tess_ranks_sum_counts(&bytes, 1);
    return (uint64_t)bytes;
}

static tess_status report(struct training *t, const tess_step_result *r, double lr, double seconds, const double *valid)
{
    double tokens = (double)(t->run.batch * t->run.length), flops = t->flops / seconds;
    tess_step_report s = {.step = t->at.step,
                          .tokens = (int64_t)tokens,
                          .loss = r->loss,
                          .lr = lr,
                          .grad_norm = r->grad_norm,
                          .seconds = seconds,
                          .tokens_per_s = tokens / seconds,
                          .model_tflops = flops * 1e-12,
                          .mfu = t->matrix_rate > 0 ? flops / t->matrix_rate : 0,
                          .valid_loss = valid};
    for (int k = 0; k < TESS_TIER_COUNT; k++)
        tess_tier_use((tess_tier)k, &s.tier[k].resident_bytes, &s.tier[k].peak_bytes);
    report_disk(t, &s.tier[TESS_TIER_DISK]);
    tess_gpu_traffic(&s.tier[TESS_TIER_GPU].read_bytes, &s.tier[TESS_TIER_GPU].write_bytes);
    s.tier[TESS_TIER_GPU].wait_seconds = tess_gpu_waited();
    s.sent_bytes = sent_in_step(t);
    return tess_report_step(t->report, &s);
}

static tess_status one_step(const tess_config *c, struct training *t)
{
    double start = tess_seconds(), lr = tess_schedule_lr(c, t->at.step), betas[2], valid;
    tess_step_result r;
    tess_schedule_betas(c, t->at.step, betas);
    tess_step_input in = {.step = t->at.step, .seed = t->at.seed, .lr = lr, .beta1 = betas[0], .beta2 = betas[1]};
    /* A rank that lacks its samples would be missed in the middle of the step. */
    TESS_TRY(tess_ranks_agree(tess_run_feed(&t->run, t->step, t->data, (uint64_t)t->at.samples)));
    TESS_TRY(tess_ranks_agree(tess_step_run(t->step, &in, &r)));
    double seconds = tess_seconds() - start;
    bool evaluate = due(c->eval_every, t->at.step + 1);
    if (evaluate) TESS_TRY(tess_run_evaluate(&t->run, t->eval, t->valid, &valid));
    TESS_TRY(report(t, &r, lr, seconds, evaluate ? &valid : NULL));
    t->at.step++;
    t->at.samples += t->run.batch;
    return TESS_OK;
}

/* All ranks end after the same step. */
static bool stops(void)
{
    int64_t asked = tess_stop_requested();
    tess_ranks_most(&asked, 1);
    return asked;
}

static tess_status save_checkpoint(const tess_config *c, struct training *t)
{
    return tess_checkpoint_save(c->checkpoint.dir, c->checkpoint.keep, t->run.g, &t->at);
}

static tess_status save_model(const tess_config *c, struct training *t)
{
    char *dir = tess_format("%s/model", c->output);
    tess_status status = tess_model_save(t->run.model, t->run.g, dir);
    free(dir);
    return status;
}

static tess_status all_steps(const tess_config *c, struct training *t)
{
    bool stopped = false;
    int64_t saved = t->at.step;
    while (t->at.step < c->steps && !stopped) {
        TESS_TRY(tess_ranks_agree(one_step(c, t)));
        stopped = stops();
        if (!c->checkpoint.dir || !(due(c->checkpoint.every, t->at.step) || stopped)) continue;
        TESS_TRY(save_checkpoint(c, t));
        saved = t->at.step;
    }
    if (c->checkpoint.dir && c->checkpoint.every > 0 && saved != t->at.step) TESS_TRY(save_checkpoint(c, t));
    if (stopped) tess_note("stopped by a signal after step %lld of %lld", (long long)t->at.step, (long long)c->steps);
    return save_model(c, t);
}

tess_status tess_train(const tess_config *c)
{
    struct training t = {0};
    tess_status status;
    TESS_TRY_DONE(tess_ranks_agree(open_inputs(c, &t)));
    TESS_TRY_DONE(tess_run_same(&t.run, "train"));
    TESS_TRY_DONE(tess_ranks_agree(make_output(c, &t)));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_tiers(&t.run, NULL)));
    TESS_TRY_DONE(tess_ranks_agree(plan_steps(&t)));
    tess_signals_install();
    TESS_TRY_DONE(tess_ranks_agree(begin(c, &t)));
    status = all_steps(c, &t);
done:
    tess_report_close(t.report);
    tess_step_free(t.step);
    tess_step_free(t.eval);
    tess_data_close(t.data);
    tess_data_close(t.valid);
    tess_run_close(&t.run);
    tess_stop();
    if (status != TESS_OK) tess_dirs_remove(c->output, t.made);
    return status;
}

tess_status tess_eval(const tess_config *c)
{
    tess_run run;
    tess_data *data = NULL;
    tess_step *step = NULL;
    double loss;
    tess_status status = tess_run_open(c, tess_rank(), &run);
    if (status == TESS_OK) status = tess_run_data(&run, "data.valid", c->data.valid, false, &data);
    TESS_TRY_DONE(tess_ranks_agree(status));
    TESS_TRY_DONE(tess_run_same(&run, "eval"));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_tiers(&run, NULL)));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_eval_step(&run, true, &step)));
    TESS_TRY_DONE(tess_run_start(&run, false));
    TESS_TRY_DONE(tess_ranks_agree(tess_model_load(run.model, run.g, (uint64_t)c->seed)));
    TESS_TRY_DONE(tess_run_evaluate(&run, step, data, &loss));
    printf("loss %.6f  perplexity %.4f  tokens %llu\n", loss, exp(loss),
           (unsigned long long)(tess_data_samples(data) * (uint64_t)run.length));
done:
    tess_step_free(step);
    tess_data_close(data);
    tess_run_close(&run);
    tess_stop();
    return status;
}
