/* A step runs: what is the same for all tasks is set, the program is submitted, the loss is read, and what was not
 * finite is named. Updates that come late are made in the next run, or when they are asked for. */
#include "graph/step/step_impl.h"
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Fails with the name of the gradient that is not finite; the updates, which would find it, come too late. */
static tess_status name_gradient(const tess_step *s)
{
    for (int k = 0; k < s->g->params; k++)
        for (int64_t i = 0; i < s->g->param[k]->held->states; i++) {
            void *square;
            tess_tile *norm = s->g->param[k]->held->state[i].norm;
            if (!norm) continue; /* it is frozen */
            TESS_TRY(tess_tile_map(norm, TESS_R, &square));
            bool finite = isfinite(tess_exact_value(square));
            tess_tile_unmap(norm);
            if (!finite) return tess_error(TESS_FAILED, s->g->param[k]->name, "the gradient is not finite");
        }
    if (tess_grid_size(&s->g->conf.grid) > 1) return TESS_OK; /* it is another rank's */
    return tess_error(TESS_FAILED, "gradient norm", "is not finite, yet every gradient's is");
}

/* Moments begin as the optimizer says, the first time a parameter is trained. */
static tess_status prepare_moments(tess_graph *g)
{
    for (int k = 0; k < g->params; k++)
        for (int64_t i = 0; i < g->param[k]->held->states; i++) {
            struct tess_state *t = &g->param[k]->held->state[i];
            for (int m = 0; m < g->param[k]->held->moments; m++) {
                if (t->begun[TESS_MOMENT1 + m]) continue;
                TESS_TRY(tess_param_begin_moment(g->param[k], t, m));
                t->begun[TESS_MOMENT1 + m] = true;
            }
        }
    return tess_wait();
}

static void set_env(tess_step *s, const tess_step_input *in, const int64_t *targets, bool train)
{
    const tess_optimizer *o = &s->conf.optimizer;
    double beta1 = in->beta1 > 0 ? in->beta1 : o->beta1, beta2 = in->beta2 > 0 ? in->beta2 : o->beta2;
    const double scale = in->loss_scale > 0 ? in->loss_scale : 1;
    s->before = s->env;
    s->before.before = NULL;
    s->env = (tess_env){
        .seed = in->seed,
        .step = in->step,
        .train = train,
        .lr = in->lr,
        .beta1 = beta1,
        .beta2 = beta2,
        .bias1 = 1 - pow(beta1, (double)(in->step - in->skipped) + 1),
        .bias2 = 1 - pow(beta2, (double)(in->step - in->skipped) + 1),
        .updates = in->step - in->skipped,
        .unscale = 1 / scale,
        .most_norm = s->conf.skips ? in->most_norm : 0,
        .clip = o->clip,
        .before = &s->before,
    };
    for (int k = 0; k < TESS_MOST_LOSSES; k++) s->env.loss_scale[k] = targets[k] ? (float)scale / (float)targets[k] : 0;
    tess_env_set(&s->env);
}

/* Stores for the tasks which rows are padding, and returns the share of those that are not. */
static double find_used(tess_step *s)
{
    int64_t first, micros;
    tess_step_share(s, &first, &micros);
    return tess_lower_idle_fill(s->g, &s->low, micros, s->fed);
}

/* The forward pass of the same step again, every value checked: its failure names the first that is not finite. The
 * weights are those the step began with, since the optimizer does nothing when the loss is not finite. */
static tess_status look_into(const tess_step *s, const tess_step_input *in, double loss)
{
    tess_step_conf conf = {.micro = s->conf.micro, .check_finite = true, .optimizer = s->conf.optimizer};
    char where[48];
    snprintf(where, sizeof where, "step %lld", (long long)in->step + 1); /* as all that is said counts them */
    tess_step *check;
    TESS_TRY(tess_step_new(s->output, &conf, &check));
    tess_status found = TESS_OK;
    for (int k = 0; k < s->g->tensors && found == TESS_OK; k++)
        if (s->fed[k]) found = tess_step_feed(check, s->g->tensor[k], s->fed[k]);
    set_env(check, in, check->targets, s->conf.train);
    find_used(check);
    if (found == TESS_OK) found = tess_program_run(check->low.program, false);
    if (found == TESS_OK) found = tess_wait();
    found = tess_ranks_agree(found);
    tess_step_free(check);
    if (found == TESS_OK)
        return tess_error(TESS_FAILED, where, "the loss is %g, yet every value of the forward pass is finite", loss);
    char cause[600];
    snprintf(cause, sizeof cause, "%s", tess_error_text());
    return tess_error(TESS_FAILED, where, "the loss is %g; the first tensor that is not finite: %s (%s)", loss, cause,
                      in->step ? "a lower learning rate or gradient clipping may help"
                               : "nothing was trained before it: look at the weights that were loaded");
}

/* The failure of a task, with the step that it happened in before it. */
static tess_status in_step(const tess_step_input *in, tess_status status)
{
    char where[48];
    snprintf(where, sizeof where, "step %lld", (long long)in->step + 1);
    return tess_error(status, where, "%s", tess_error_text());
}

/* All that this rank can see before it begins. */
static tess_status check_ready(const tess_step *s, const tess_step_input *in)
{
    const tess_grid *grid = &s->g->conf.grid;
    TESS_TRY(tess_check_session(s->g));
    if (tess_grid_size(grid) > 1 && grid->rank != tess_rank())
        return tess_error(TESS_INVALID, "grid", "rank %d, but this is rank %d of the run", grid->rank, tess_rank());
    for (int k = 0; k < s->tensors; k++) {
        const tess_tensor *t = s->g->tensor[k];
        bool wanted = s->low.uses[k];
        for (int loss = 0; loss < TESS_MOST_LOSSES; loss++) wanted |= t == tess_step_targets(s, loss);
        if (t->kind == TESS_KIND_INPUT && wanted && !s->fed[k])
            return tess_error(TESS_INVALID, t->name, "was not fed (tess_step_feed gives it the values of a step)");
    }
    TESS_TRY(tess_check_params(s->g, s->low.uses));
    if (s->conf.train &&
        !(in->loss_scale >= 0 && isfinite(in->loss_scale) && in->skipped >= 0 && in->skipped <= in->step))
        return tess_error(
            TESS_INVALID, "step",
            "loss_scale %g, %lld steps skipped of %lld (the scale is finite and not negative, and no more "
            "are skipped than were made)",
            in->loss_scale, (long long)in->skipped, (long long)in->step);
    if (s->conf.train && !(in->step >= 0 && isfinite(in->lr)))
        return tess_error(TESS_INVALID, "step",
                          "number %lld with the learning rate %g (the first is 0, the rate finite)",
                          (long long)in->step, in->lr);
    if (s->conf.train && !s->conf.keep_gradients && in->keep_weights != (in->lr == 0))
        return tess_error(TESS_INVALID, "step",
                          in->keep_weights ? "keep_weights with the learning rate %g (which is 0 with it)"
                                           : "the learning rate is %g, which trains nothing (tess_step_input.lr is "
                                             "1e-3, say; where 0 is meant, keep_weights says so)",
                          in->lr);
    return TESS_OK;
}

/* The same on all ranks, which say with it how many targets they have. */
static tess_status agree_to_run(const tess_step *s, const tess_step_input *in, int64_t *targets)
{
    const tess_grid *grid = &s->g->conf.grid;
    tess_status status = check_ready(s, in);
    if (tess_grid_size(grid) == 1) {
        memcpy(targets, s->targets, sizeof s->targets);
        return status;
    }
    int64_t sum[TESS_MOST_LOSSES + 1] = {[TESS_MOST_LOSSES] = status != TESS_OK};
    memcpy(sum, s->targets, sizeof s->targets);
    tess_ranks_sum_counts(sum, TESS_MOST_LOSSES + 1);
    for (int k = 0; k < TESS_MOST_LOSSES; k++) targets[k] = sum[k] / (grid->pipeline * grid->tensor);
    return sum[TESS_MOST_LOSSES] ? tess_ranks_agree(status) : TESS_OK;
}

tess_status tess_step_run(tess_step *s, const tess_step_input *in, tess_step_result *out)
{
    static const tess_step_input preset;
    tess_step_result unread;
    int64_t targets[TESS_MOST_LOSSES];
    if (!out) out = &unread;
    *out = (tess_step_result){0};
    TESS_TRY(tess_step_check(s));
    const tess_grid *grid = &s->g->conf.grid;
    if (!in && s->conf.train) return tess_error(TESS_INVALID, "step", "training needs a tess_step_input, it is NULL");
    if (!in) in = &preset;
    if (tess_grid_size(grid) > 1 && tess_grid_size(grid) != tess_ranks())
        return tess_error(TESS_INVALID, "grid", "%d ranks, but %d run (start the program with mpirun -n %d)",
                          tess_grid_size(grid), tess_ranks(), tess_grid_size(grid));
    TESS_TRY(agree_to_run(s, in, targets));
    *out = (tess_step_result){.targets = targets[0]};
    s->ran = true;
    bool trains = s->conf.train && !s->conf.keep_gradients;
    TESS_TRY(tess_settle(s->g, s));
    if (trains) TESS_TRY(prepare_moments(s->g));
    set_env(s, in, targets, s->conf.train);
    tess_step_digests_begin(s);
    out->used = find_used(s);
    TESS_TRY(tess_program_run(s->low.program, s->pending));
    tess_step_forget_pending(s);
    tess_status status = tess_wait();
    tess_step_digests_end(s, in->step);
    if (tess_grid_size(grid) > 1) status = tess_ranks_agree(status);
    if (status != TESS_OK) return in_step(in, status); /* what follows a failed task was not computed */
    if (s->low.loss) {
        double sum[2];
        TESS_TRY(tess_tile_read(s->low.loss, 0, sum, sizeof sum));
        out->loss = sum[1] > 0 ? sum[0] / sum[1] : 0;
        if (!isfinite(out->loss)) return look_into(s, in, out->loss);
    }
    if (!s->low.norm) return TESS_OK;
    double square;
    TESS_TRY(tess_tile_read(s->low.norm, 0, &square, sizeof square));
    out->grad_norm = sqrt(square) * s->env.unscale;
    if (s->conf.skips && !(out->grad_norm <= (in->most_norm > 0 ? in->most_norm : DBL_MAX))) {
        out->skipped = true;
        return TESS_OK; /* no update was made, and none is due */
    }
    if (!s->low.updates) return TESS_OK;
    if (!isfinite(square)) {
        status = name_gradient(s);
        return in_step(in, tess_grid_size(grid) > 1 ? tess_ranks_agree(status) : status);
    }
    s->pending = true;
    tess_graph_owner(s->g)->pending = s;
    return TESS_OK;
}
