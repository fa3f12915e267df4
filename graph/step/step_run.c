/* A step runs: what is the same for all tasks is set, the program is submitted, the loss is read, and what was not
 * finite is named. Updates that come late are made in the next run, or when they are asked for.
 *
 * The next run can begin before the last has ended, so that no worker waits for the main thread between them. Then what
 * differs between runs is there twice: inputs have two sets of bytes, tasks find the environment of their own run, loss
 * and norm are read behind the tasks that write them. The graph of accesses orders all else: the next run's first use
 * of a parameter is behind its update. Where a run's outcome decides what the next does, it cannot begin before
 * (tess_step_overlaps). A loss or norm that is not finite fails all that is under way at once, so the next run changes
 * nothing either. */
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

/* Moments begin as the optimizer says, the first time a parameter is trained, and what is beside them with zeros. */
static tess_status prepare_moments(tess_graph *g)
{
    bool begins = false;
    for (int k = 0; k < g->params; k++)
        for (int64_t i = 0; i < g->param[k]->held->states + g->param[k]->held->rests; i++) {
            struct tess_state *s = &g->param[k]->held->state[i];
            for (int part = TESS_MOMENT1; part < TESS_ALL_PARTS; part++) {
                if (s->begun[part] || !tess_state_part(s, (tess_part)part)) continue;
                TESS_TRY(tess_param_begin(g->param[k], s, (tess_part)part));
                s->begun[part] = begins = true;
            }
        }
    return begins ? tess_wait() : TESS_OK;
}

static unsigned set_env(tess_step *s, const tess_step_input *in, const int64_t *targets, bool train, int64_t used_at)
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
        .used_at = used_at,
    };
    for (int k = 0; k < TESS_MOST_LOSSES; k++) s->env.loss_scale[k] = targets[k] ? (float)scale / (float)targets[k] : 0;
    return tess_env_set(&s->env);
}

/* Stores for the tasks of the next run which rows are padding, and returns the share of those that are not. */
static double find_used(tess_step *s, int64_t *at)
{
    int64_t first, micros;
    tess_step_share(s, &first, &micros);
    return tess_lower_idle_fill(s->g, &s->low, micros, s->fed, s->begun % 2, at);
}

/* The forward pass of the same step again, every value checked: its failure names the first that is not finite. The
 * weights are those the step began with, since the optimizer does nothing when the loss is not finite. */
static tess_status look_into(const tess_step *s, const tess_step_input *in, double loss)
{
    int64_t used_at;
    tess_step_conf conf = {
        .micro = s->conf.micro, .shares = s->conf.shares, .check_finite = true, .optimizer = s->conf.optimizer};
    char where[48];
    snprintf(where, sizeof where, "step %lld", (long long)in->step + 1); /* as all that is said counts them */
    tess_step *check;
    TESS_TRY(tess_step_new(s->output, &conf, &check));
    tess_status found = TESS_OK;
    for (int k = 0; k < s->g->tensors && found == TESS_OK; k++)
        if (s->fed[k]) found = tess_step_feed(check, s->g->tensor[k], s->fed_before[k] ? s->fed_before[k] : s->fed[k]);
    find_used(check, &used_at);
    set_env(check, in, check->targets, s->conf.train, used_at);
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
    if (status == TESS_OK && s->conf.train && !s->conf.keep_gradients) status = prepare_moments(s->g);
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

/* Late updates, unless they are that step's: all ranks have some then, or none has. */
static tess_status settle(tess_graph *g, const tess_step *but)
{
    const tess_step *due = tess_graph_owner(g)->pending;
    const tess_status status = tess_settle(g, but);
    return due && due != but && tess_grid_size(&g->conf.grid) > 1 ? tess_ranks_agree(status) : status;
}

/* ---- local steps ---- */

tess_status tess_graph_together(const tess_graph *g)
{
    if (!g->apart || g->conf.grid.data == 1) return TESS_OK;
    return tess_error(TESS_INVALID, "local steps",
                      "the weights of the ranks differ until the next sum over them (save behind one)");
}

/* Before the first of a run of them. */
static tess_status begin_local(const tess_step *s)
{
    bool *apart = &tess_graph_owner(s->g)->apart;
    if (!s->low.anchors || *apart) return TESS_OK;
    *apart = true;
    return tess_program_run(s->low.anchors, true);
}

/* Behind the last. */
static tess_status sum_local(tess_step *s, const tess_step_input *in)
{
    const tess_local *l = &s->conf.local;
    if (!s->low.outer || (in->step + 1) % l->steps) return TESS_OK;
    TESS_TRY(settle(s->g, NULL));
    tess_env_set(&(tess_env){.lr = l->lr, .updates = in->step, .unscale = 1. / s->g->conf.grid.data});
    tess_status status = tess_program_run(s->low.outer, true);
    if (status == TESS_OK) status = tess_wait();
    if (tess_grid_size(&s->g->conf.grid) > 1) status = tess_ranks_agree(status);
    tess_graph_owner(s->g)->apart = false;
    return status == TESS_OK ? TESS_OK : in_step(in, status);
}

/* ---- from its begin to its end ---- */

/* With such a loss no parameter has changed. All that is under way fails, so that the next run changes none either:
 * what is not finite is looked for in what the step began with. */
static void loss_comes(tess_reading *r)
{
    const double *sum = r->to;
    if (sum[1] > 0 && !isfinite(sum[0])) tess_work_fail(&(tess_work){.buf = NULL}, "loss: is not finite");
}

static void norm_comes(tess_reading *r)
{
    if (!isfinite(*(const double *)r->to)) tess_work_fail(&(tess_work){.buf = NULL}, "gradient norm: is not finite");
}

/* With several ranks or local steps, and where a step may be skipped, none begins before the one before it has ended.
 */
static bool is_alone(const tess_step *s)
{
    return tess_grid_size(&s->g->conf.grid) > 1 || s->conf.skips || s->low.outer;
}

static tess_status read_behind(tess_step *s, struct tess_step_run *r)
{
    const bool alone = is_alone(s);
    r->loss =
        (tess_reading){.of.tile = s->low.loss, .to = r->sum, .bytes = sizeof r->sum, .came = alone ? NULL : loss_comes};
    r->norm = (tess_reading){.of.tile = s->low.norm,
                             .to = &r->square,
                             .bytes = sizeof r->square,
                             .came = alone || !s->low.updates ? NULL : norm_comes};
    if (s->low.loss) TESS_TRY(tess_tile_read_behind(&r->loss));
    return s->low.norm ? tess_tile_read_behind(&r->norm) : TESS_OK;
}

/* Below a cap on RAM its room is one step's. Without one a frozen parameter, for which no update is waited, would let
 * the next run go ahead with activations of its own, which no plan counts but a GPU's. */
bool tess_step_overlaps(const tess_step *s)
{
    if (!s || !s->g || is_alone(s) || s->digests || s->conf.watches || tess_tiles_planned(TESS_TIER_CPU)) return false;
    for (int k = 0; k < s->g->params && !tess_tiles_planned(TESS_TIER_GPU); k++)
        if (s->low.uses[s->g->param[k]->id] && tess_is_frozen(s->g->param[k])) return false;
    return true;
}

static tess_status check_begins(const tess_step *s)
{
    const tess_step *other = tess_graph_owner(s->g)->runs;
    if (other && other != s)
        return tess_error(TESS_INVALID, "step", "another of its graph is under way (tess_step_end waits for it)");
    if (s->begun - s->ended > 1)
        return tess_error(TESS_INVALID, "step", "two runs of it are under way (tess_step_end waits for the first)");
    if (tess_step_runs(s) && !tess_step_overlaps(s))
        return tess_error(TESS_INVALID, "step",
                          "a run of it is under way, whose outcome is needed first (tess_step_overlaps tells)");
    return TESS_OK;
}

static tess_status submit(tess_step *s, struct tess_step_run *r)
{
    /* Updates that come late are due once the run before has ended well; else this one fails with it. */
    const bool late = s->pending || (tess_step_runs(s) && s->low.updates);
    if (!tess_step_runs(s)) tess_step_digests_begin(s);
    TESS_TRY(read_behind(s, r));
    const tess_status status = tess_program_run(s->low.program, late);
    tess_step_forget_pending(s);
    if (status == TESS_OK) return TESS_OK;
    tess_reading_wait(&r->loss), tess_reading_wait(&r->norm);
    return status;
}

tess_status tess_step_begin(tess_step *s, const tess_step_input *in)
{
    static const tess_step_input preset;
    int64_t targets[TESS_MOST_LOSSES], used_at;
    TESS_TRY(tess_step_check(s));
    const tess_grid *grid = &s->g->conf.grid;
    if (!in && s->conf.train) return tess_error(TESS_INVALID, "step", "training needs a tess_step_input, it is NULL");
    if (!in) in = &preset;
    if (tess_grid_size(grid) > 1 && tess_grid_size(grid) != tess_ranks())
        return tess_error(TESS_INVALID, "grid", "%d ranks, but %d run (start the program with mpirun -n %d)",
                          tess_grid_size(grid), tess_ranks(), tess_grid_size(grid));
    TESS_TRY(check_begins(s));
    TESS_TRY(agree_to_run(s, in, targets));
    TESS_TRY(settle(s->g, s));
    struct tess_step_run *r = &s->run[s->begun % 2];
    *r = (struct tess_step_run){.in = *in, .out = {.targets = targets[0]}};
    r->out.used = find_used(s, &used_at);
    TESS_TRY(begin_local(s));
    r->tasks = set_env(s, in, s->low.outer ? s->targets : targets, s->conf.train, used_at);
    r->unscale = s->env.unscale;
    s->ran = true;
    TESS_TRY(submit(s, r));
    s->begun++;
    tess_graph_owner(s->g)->runs = s;
    return TESS_OK;
}

static bool is_spoiled(const tess_step *s, const struct tess_step_run *r)
{
    return (r->loss.there && r->sum[1] > 0 && !isfinite(r->sum[0])) ||
           (r->norm.there && !isfinite(r->square) && s->low.updates);
}

/* Loss and norm come first: where they are not finite they are a failure. */
static tess_status wait_for(tess_step *s, struct tess_step_run *r)
{
    if (s->low.loss) tess_reading_wait(&r->loss);
    if (s->low.norm) tess_reading_wait(&r->norm);
    if (tess_step_runs(s)) return tess_wait_run(r->tasks);
    const tess_status status = tess_wait();
    tess_step_digests_end(s, r->in.step);
    return tess_grid_size(&s->g->conf.grid) > 1 ? tess_ranks_agree(status) : status;
}

/* All that was under way has ended with a failure: of this run, which takes the next with it, or of the next. Then it
 * stands again, so that what begins behind that changes nothing. */
static tess_status ended_with(tess_step *s, const struct tess_step_run *r, tess_status status)
{
    const struct tess_step_run *next = r == &s->run[0] ? &s->run[1] : &s->run[0];
    if (!is_spoiled(s, r) && is_spoiled(s, next)) {
        tess_error_clear();
        tess_work_fail(&(tess_work){.buf = NULL}, "loss or gradient norm: is not finite");
        return TESS_OK;
    }
    TESS_FREED char *text = tess_strdup(tess_error_text());
    tess_step_drop_runs(s);
    tess_error_restore(text);
    return status;
}

static tess_status outcome(tess_step *s, struct tess_step_run *r, tess_status status)
{
    const bool follows = tess_step_runs(s), many = tess_grid_size(&s->g->conf.grid) > 1;
    const bool loss = s->low.loss && r->loss.there, norm = s->low.norm && r->norm.there;
    const tess_step_input *in = &r->in;
    tess_step_result *out = &r->out;
    if (status != TESS_OK && many) return in_step(in, status); /* all do: none looks alone for what is not finite */
    if (loss) out->loss = r->sum[1] > 0 ? r->sum[0] / r->sum[1] : 0;
    if (loss && !isfinite(out->loss)) return look_into(s, in, out->loss);
    if (norm && !isfinite(r->square) && s->low.updates && !s->conf.skips) {
        status = name_gradient(s);
        return in_step(in, many ? tess_ranks_agree(status) : status);
    }
    if (status != TESS_OK) return in_step(in, status); /* what follows a failed task was not computed */
    if (!norm) return TESS_OK;
    out->grad_norm = sqrt(r->square) * r->unscale;
    if (s->conf.skips && !(out->grad_norm <= (in->most_norm > 0 ? in->most_norm : DBL_MAX))) {
        out->skipped = true;
        return TESS_OK; /* no update was made, and none is due */
    }
    if (!s->low.updates || follows) return TESS_OK;
    s->pending = true;
    tess_graph_owner(s->g)->pending = s;
    return TESS_OK;
}

tess_status tess_step_end(tess_step *s, tess_step_result *out)
{
    tess_step_result unread;
    if (!out) out = &unread;
    *out = (tess_step_result){0};
    TESS_TRY(tess_step_check(s));
    if (!tess_step_runs(s)) return tess_error(TESS_INVALID, "step", "no run of it is under way (tess_step_begin)");
    struct tess_step_run *r = &s->run[s->ended++ % 2];
    tess_status status = wait_for(s, r);
    if (status != TESS_OK && tess_step_runs(s)) status = ended_with(s, r, status);
    if (!tess_step_runs(s)) tess_graph_owner(s->g)->runs = NULL;
    status = outcome(s, r, status);
    *out = r->out;
    tess_step_forget_before(s);
    return status == TESS_OK ? sum_local(s, &r->in) : status;
}

tess_status tess_step_run(tess_step *s, const tess_step_input *in, tess_step_result *out)
{
    if (out) *out = (tess_step_result){0};
    TESS_TRY(tess_step_check(s));
    if (tess_step_runs(s))
        return tess_error(TESS_INVALID, "step", "a run of it is under way (tess_step_end waits for it)");
    TESS_TRY(tess_step_begin(s, in));
    return tess_step_end(s, out);
}
