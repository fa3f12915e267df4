/* A run that its program steps: opened as `tessera train` opens one, and fed by the program. */
#include "graph/nd.h"
#include "models/networks/networks.h"
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/loop/schedule_impl.h"
#include "models/train/run/run.h"
#include "models/train/tessera_train.h"
#include <stdlib.h>
#include <string.h>

enum { INPUTS_MOST = 64, TOKEN_INPUTS = 8 };

struct tess_trainer {
    tess_config c; /* the one given, but for: */
    char *model;   /* the directory, or the checkpoint that was picked in it */
    tess_run run;
    tess_step *step, *eval;
    int inputs;
    tess_trainer_input input[INPUTS_MOST]; /* in a micro-batch */
    tess_tensor *tensor[INPUTS_MOST];
    int64_t first, micros; /* this rank's micro-batches */
    tess_position at;
    tess_loss_scale scale;
    tess_spikes spikes;
};

/* ---- inputs ---- */

static void add_tokens(tess_trainer *t, const char *name, tess_tensor *tensor, int64_t width)
{
    if (!tensor) return;
    t->tensor[t->inputs] = tensor;
    t->input[t->inputs++] = (tess_trainer_input){.name = name, .rank = 2, .shape = {t->run.micro_batch, width}};
}

static tess_status add_arrays(tess_trainer *t)
{
    const int count = tess_model_arrays(t->run.model, NULL);
    if (count > INPUTS_MOST)
        return tess_error(TESS_INVALID, t->c.model, "has %d inputs, expected at most %d", count, INPUTS_MOST);
    tess_array_want want[INPUTS_MOST];
    tess_model_arrays(t->run.model, want);
    for (int k = 0; k < count; k++) {
        tess_trainer_input *in = &t->input[k];
        *in = (tess_trainer_input){.name = want[k].name,
                                   .real = want[k].kind == TESS_ARRAY_REAL,
                                   .rank = 1 + want[k].rank,
                                   .shape = {want[k].same ? 1 : t->run.micro_batch},
                                   .same = want[k].same};
        for (int d = 0; d < want[k].rank; d++) in->shape[1 + d] = want[k].dim[d];
        t->tensor[k] = t->run.net.input[k];
    }
    t->inputs = count;
    return TESS_OK;
}

static tess_status find_inputs(tess_trainer *t)
{
    const tess_network *net = &t->run.net;
    const int64_t T = t->run.length;
    if (tess_model_batch(t->run.model)) return add_arrays(t);
    add_tokens(t, "ids", net->ids, T);
    add_tokens(t, "targets", net->targets, T);
    add_tokens(t, "label", net->label, 1);
    add_tokens(t, "index", net->index, 1);
    add_tokens(t, "bounds", net->bounds, 2 * T);
    add_tokens(t, "positions", net->positions, T);
    add_tokens(t, "segments", net->segments, T);
    add_tokens(t, "decoder_ids", net->decoder_ids, T);
    add_tokens(t, "visible", net->visible, 2 * T);
    return TESS_OK;
}

static int64_t elements(const tess_trainer_input *in)
{
    int64_t n = 1;
    for (int d = 0; d < in->rank; d++) n *= in->shape[d];
    return n;
}

/* Feeds the micro-batches of a step, or one of them, the m-th, to an evaluation. */
static tess_status feed(const tess_trainer *t, tess_step *step, const void *const *values, int64_t m)
{
    for (int k = 0; k < t->inputs; k++) {
        if (!values[k]) return tess_error(TESS_INVALID, t->input[k].name, "is not fed");
        const int32_t *from = (const int32_t *)values[k] + m * elements(&t->input[k]);
        TESS_TRY(tess_step_feed(step, t->tensor[k], from));
    }
    const uint64_t first = step == t->step ? (uint64_t)t->at.samples : (uint64_t)((t->first + m) * t->run.micro_batch);
    return tess_run_feed_keys(&t->run, step, first);
}

/* ---- beginning and end ---- */

static tess_status open_model(tess_trainer *t)
{
    TESS_TRY(tess_run_open(&t->c, tess_rank(), &t->run));
    TESS_TRY(tess_run_check_weights(&t->run));
    if (t->c.scheduler.params.total_num_steps == TESS_CONFIG_AUTO && t->c.scheduler.type != TESS_SCHEDULER_NONE)
        TESS_TRY(tess_config_require(&t->c, "steps"));
    tess_schedule_settle(&t->c);
    t->run.evaluates = true;
    if (t->c.preference.loss)
        return tess_error(TESS_INVALID, "preference.loss",
                          "a trainer is fed with tokens (none does; the command and "
                          "tess_train learn from pairs)");
    if (t->c.distill.teacher)
        return tess_error(
            TESS_INVALID, "distill.teacher",
            "a trainer is fed with tokens alone (leave it out; the command and tess_train learn from one)");
    return find_inputs(t);
}

static tess_status place(tess_trainer *t)
{
    TESS_TRY(tess_run_tiers(&t->run, NULL));
    TESS_TRY(tess_run_train_step(&t->run, &t->step));
    TESS_TRY(tess_run_eval_step(&t->run, false, &t->eval));
    tess_step_share(t->step, &t->first, &t->micros);
    return TESS_OK;
}

static tess_status open(tess_trainer *t, const tess_config *c)
{
    TESS_TRY(tess_config_require(c, "model"));
    TESS_TRY(tess_run_check_gpus(c));
    TESS_TRY(tess_checkpoint_pick(c->model, &t->model));
    t->c.model = t->model;
    TESS_TRY(tess_ranks_agree(open_model(t)));
    TESS_TRY(tess_run_same(&t->run, "train"));
    if (c->fp16.enabled) t->scale = tess_loss_scale_begin(c);
    TESS_TRY(tess_ranks_agree(place(t)));
    TESS_TRY(tess_ranks_agree(tess_run_start(&t->run, false)));
    return tess_model_load(t->run.model, t->run.g, t->at.seed);
}

tess_status tess_trainer_open(const tess_config *c, tess_trainer **trainer)
{
    if (!c || !trainer) return tess_error(TESS_INVALID, "tess_trainer_open", "%s is NULL", c ? "trainer" : "c");
    tess_trainer *t = tess_alloc(sizeof *t);
    *t = (tess_trainer){.c = *c, .at = {.seed = (uint64_t)c->seed}};
    const tess_status status = open(t, c);
    *trainer = status == TESS_OK ? t : NULL;
    if (status != TESS_OK) tess_trainer_close(t);
    return status;
}

void tess_trainer_close(tess_trainer *t)
{
    if (!t) return;
    tess_step_free(t->step);
    tess_step_free(t->eval);
    tess_run_close(&t->run);
    tess_stop();
    free(t->model);
    free(t);
}

int tess_trainer_inputs(const tess_trainer *t)
{
    return t->inputs;
}

tess_trainer_input tess_trainer_input_of(const tess_trainer *t, int index)
{
    tess_trainer_input in = t->input[index];
    in.shape[0] *= t->micros;
    return in;
}

void tess_trainer_share(const tess_trainer *t, int64_t *samples, int64_t *first)
{
    *samples = t->run.batch;
    *first = t->first * t->run.micro_batch;
}

/* ---- steps ---- */

double tess_trainer_lr(const tess_trainer *t)
{
    return tess_schedule_lr(&t->c, t->at.step - t->scale.skipped);
}

tess_status tess_trainer_step(tess_trainer *t, const void *const *values, double lr, tess_step_result *result)
{
    tess_step_input in = tess_schedule_input(&t->c, t->at.step, t->at.seed, &t->scale);
    in.most_norm = tess_spikes_most(&t->c, &t->spikes);
    if (lr > 0) in.lr = lr, in.keep_weights = false;
    TESS_TRY(tess_ranks_agree(feed(t, t->step, values, 0)));
    TESS_TRY(tess_ranks_agree(tess_step_run(t->step, &in, result)));
    TESS_TRY(tess_spikes_next(&t->c, &t->spikes, &t->scale, result, t->at.step));
    t->at.step++;
    t->at.samples += t->run.batch;
    return TESS_OK;
}

tess_status tess_trainer_eval(tess_trainer *t, const void *const *values, double *loss)
{
    const int losses = tess_step_losses(t->eval);
    TESS_FREED char *sums = tess_alloc((size_t)(2 * losses) * tess_exact_bytes());
    for (int64_t m = 0; m < t->micros; m++) {
        TESS_TRY(tess_ranks_agree(feed(t, t->eval, values, m)));
        TESS_TRY(tess_step_run(t->eval, &(tess_step_input){0}, NULL));
        TESS_TRY(tess_ranks_agree(tess_step_add_losses(t->eval, sums)));
    }
    *loss = tess_exact_mean(sums, losses);
    return TESS_OK;
}

tess_status tess_trainer_save(tess_trainer *t, const char *dir)
{
    return tess_model_save(t->run.model, t->run.g, dir);
}

tess_graph *tess_trainer_graph(tess_trainer *t)
{
    return t->run.g;
}

tess_position *tess_trainer_at(tess_trainer *t)
{
    return &t->at;
}

bool tess_trainer_turned(const tess_tensor *param)
{
    return tess_param_turned(param);
}
