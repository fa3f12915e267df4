/* Evaluation from a configuration: the mean loss of a model, or of a checkpoint, on data.valid. */
#include "codelets/codelets.h"
#include "models/networks/networks.h"
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/loop/evaluation.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static void close_inputs(void *what)
{
    tess_evaluation *e = what;
    tess_data_close(e->data);
    tess_run_close(&e->run);
    e->data = NULL;
}

/* Whether it has adapters, beside a base that may be quantized. */
static bool is_adapted(const char *path, const char *json)
{
    tess_model *m = NULL;
    const bool adapted = tess_model_open(path, json, &m) == TESS_OK && tess_model_adapted(m);
    tess_model_close(m);
    return adapted;
}

static tess_status open_inputs(const char *path, void *what)
{
    tess_evaluation *e = what;
    e->c = *e->given;
    e->c.model = (char *)path;
    /* What adapters a run would draw is no matter here: those that are evaluated say what they are. */
    e->c.lora.r = TESS_CONFIG_AUTO;
    e->c.lora.alpha = e->c.lora.dropout = TESS_CONFIG_AUTO;
    e->c.lora.targets = e->c.lora.modules_to_save = NULL;
    e->c.lora.rslora = e->c.lora.dora = false;
    e->c.distill.teacher = NULL;
    if (e->alone) {
        e->c.preference.loss = TESS_PREFERENCE_NONE;
        e->c.data.train = e->c.data.valid = NULL;
        e->c.data.pack = e->c.data.pack_examples = false;
        e->c.data.seq_length = e->c.train_micro_batch_size_per_gpu = 1;
    }
    if (!e->c.lora.from && !is_adapted(path, e->c.model_json)) e->c.lora.base = 0;
    TESS_TRY(tess_run_open(&e->c, tess_rank(), &e->run));
    TESS_TRY(tess_run_check_weights(&e->run));
    if (e->alone) return tess_model_check(e->run.model);
    if (tess_run_refers(&e->run))
        return tess_error(TESS_INVALID, "preference.loss",
                          "%s compares with the model that the run began with, which eval does not have (data.valid of "
                          "the run evaluates so)",
                          tess_run_judged(&e->run) ? "kto" : "dpo");
    TESS_TRY(tess_run_data(&e->run, "data.valid", e->c.data.valid, false, &e->data));
    return tess_model_check(e->run.model);
}

tess_status tess_evaluation_open(tess_evaluation *e)
{
    const char *given = e->given->model;
    TESS_TRY(tess_ranks_agree(TESS_OK)); /* a rank that got another configuration did not come here */
    TESS_TRY(tess_run_check_gpus(e->given));
    TESS_TRY(tess_ranks_agree(tess_checkpoint_open(given, open_inputs, close_inputs, e, &e->path)));
    if (e->path && strcmp(e->path, given) && !tess_rank()) tess_note("the newest checkpoint in %s: %s", given, e->path);
    TESS_TRY(tess_run_same(&e->run, "eval"));
    tess_run_say_odd(&e->run);
    if (!tess_model_has_weights(e->run.model))
        tess_note("the evaluated weights are drawn from seed %lld", (long long)e->given->seed);
    return tess_ranks_agree(tess_run_tiers(&e->run, NULL));
}

tess_status tess_evaluation_load(tess_evaluation *e)
{
    TESS_TRY(tess_run_start(&e->run, false));
    tess_bar_begin("loading the model", (double)tess_graph_param_elements(e->run.g));
    const tess_status status = tess_model_load(e->run.model, e->run.g, (uint64_t)e->given->seed);
    tess_bar_end();
    return status;
}

void tess_evaluation_close(tess_evaluation *e)
{
    close_inputs(e);
    free(e->path);
    e->path = NULL;
}

/* The means of the numbers beside the losses; of what nothing has there is none. */
static void take_numbers(const char *sums, int losses, int all, double *numbers)
{
    for (int k = losses; k < all && numbers; k++) {
        const char *of = sums + 2 * (size_t)k * tess_exact_bytes();
        numbers[k - losses] = tess_exact_value(of + tess_exact_bytes()) > 0 ? tess_exact_mean(of, 1) : NAN;
    }
}

tess_status tess_run_evaluate(const tess_run *r, tess_step *step, const tess_data *data, double *loss, double *of,
                              double *numbers)
{
    uint64_t samples = tess_data_samples(data), batch = (uint64_t)(r->micro_batch * r->evaluated);
    const int losses = tess_step_losses(step), all = losses + tess_step_numbers(step);
    if (tess_model_batch(r->model)) samples -= samples % batch; /* its loss is one of whole micro-batches */
    if (!samples)
        return tess_error(TESS_INVALID, "data.valid", "has fewer samples than one batch of %llu",
                          (unsigned long long)batch);
    /* Of each loss, and of its targets; a step has a micro-batch a rank. */
    TESS_FREED char *sums = tess_alloc((size_t)(2 * all) * tess_exact_bytes());
    tess_status status = TESS_OK;
    tess_bar_begin("evaluating", (double)samples);
    for (uint64_t at = 0; at < samples; at += batch) {
        int64_t n = (int64_t)(samples - at < batch ? samples - at : batch);
        TESS_TRY_DONE(tess_ranks_agree(tess_run_feed(r, step, data, at, n)));
        TESS_TRY_DONE(tess_step_run(step, &(tess_step_input){0}, NULL));
        TESS_TRY_DONE(tess_ranks_agree(tess_step_add_losses(step, sums)));
        tess_bar_step((double)n);
    }
    *loss = tess_exact_mean(sums, losses);
    if (of) *of = tess_exact_value(sums + tess_exact_bytes());
    take_numbers(sums, losses, all, numbers);
done:
    tess_bar_end();
    return status;
}

tess_status tess_run_numbers(const tess_step *step, double *numbers)
{
    const int losses = tess_step_losses(step), count = tess_step_numbers(step);
    TESS_FREED char *sums = tess_alloc((size_t)(2 * (losses + count)) * tess_exact_bytes());
    const tess_status status = tess_step_add_losses(step, sums);
    if (status == TESS_OK) take_numbers(sums, losses, losses + count, numbers);
    return status;
}

tess_status tess_eval_facts(const char *dir, int64_t *length, tess_dtype *dtype)
{
    TESS_FREED char *picked = NULL;
    tess_model *m = NULL;
    tess_progress at = {0};
    tess_status status;
    *length = 1024;
    *dtype = TESS_F32;
    TESS_TRY_DONE(tess_checkpoint_pick(dir, &picked));
    TESS_TRY_DONE(tess_model_open(picked, NULL, &m));
    TESS_TRY_DONE(tess_run_need_weights(m));
    const int64_t most = tess_model_positions(m);
    if (most > 0 && most < *length) *length = most;
    if (tess_states_whole(picked)) TESS_TRY_DONE(tess_checkpoint_progress(picked, &at));
    if (at.told.known) {
        *length = at.told.length;
        *dtype = at.told.bf16 ? TESS_BF16 : at.told.fp16 ? TESS_F16 : TESS_F32;
    }
done:
    tess_model_close(m);
    return status;
}

tess_status tess_eval(const tess_config *c)
{
    if (!c) return tess_error(TESS_INVALID, "configuration", "is NULL");
    tess_evaluation e = {.given = c};
    tess_step *step = NULL;
    double loss, targets, *numbers = NULL;
    tess_status status;
    TESS_TRY_DONE(tess_evaluation_open(&e));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_eval_step(&e.run, true, &step)));
    TESS_TRY_DONE(tess_evaluation_load(&e));
    const int beside = tess_step_numbers(step);
    numbers = tess_alloc((size_t)(beside + 1) * sizeof *numbers);
    TESS_TRY_DONE(tess_run_evaluate(&e.run, step, e.data, &loss, &targets, numbers));
    const bool batches = tess_model_batch(e.run.model), pairs = c->preference.loss;
    printf("loss %.6f", loss);
    if (pairs)
        printf("  pairs %.0f", targets);
    else if (!batches)
        printf("  perplexity %.4f  tokens %.0f", exp(loss), targets);
    for (int k = 0; k < beside; k++)
        printf("  %s %.6f", tess_model_number_name(e.run.model, c->preference.loss, k), numbers[k]);
    if (batches) printf("  batches %.0f", targets);
    printf("\n");
done:
    free(numbers);
    tess_step_free(step);
    tess_evaluation_close(&e);
    tess_stop();
    return status;
}
