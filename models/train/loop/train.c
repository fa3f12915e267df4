/* Training from a configuration: the whole run, from the model's directory to the trained one. All ranks come this way,
 * in phases that end with their agreement; rank 0 alone reports, and writes what they all have. */
#include "models/networks/networks.h"
#include "models/text/base/directories.h"
#include "models/train/loop/resume_impl.h"
#include "models/train/loop/schedule_impl.h"
#include "models/train/report/digests.h"
#include "models/train/report/measure.h"
#include "models/train/report/monitor.h"
#include "models/train/report/plan_file.h"
#include "models/train/report/report.h"
#include "models/train/report/tracing.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct training {
    tess_config c; /* the one given, with what only the run can know; its texts are borrowed but for: */
    char *model;   /* the directory, or the checkpoint that was picked in it */
    tess_run run;
    tess_data *data, *valid;
    tess_step *step, *eval;
    tess_report *report;
    size_t made;         /* of the output directory's path, see tess_dirs_make */
    bool adapts;         /* adapters alone are trained */
    bool stopped, early; /* by a signal, by early_stop */
    int64_t begun;       /* the step that the loop began with */
    double valid_loss;   /* of the last evaluation */
    double *numbers;     /* beside it */
    tess_progress at;
    tess_holds plan;
    tess_measure measure;
    tess_tracing tracing;
    tess_digests_file digests;
    const tess_replay *replay; /* NULL: it is a run of its own */
};

static bool due(int64_t every, int64_t done)
{
    return every > 0 && done % every == 0;
}

/* ---- beginning ---- */

static tess_status require_length(const tess_config *c)
{
    return c->epochs == TESS_CONFIG_AUTO ? tess_config_require(c, "steps") : TESS_OK;
}

static tess_status open_inputs(struct training *t)
{
    const tess_config *c = &t->c;
    TESS_TRY(require_length(c));
    TESS_TRY(tess_config_require(c, "data.train"));
    TESS_TRY(tess_run_open(c, tess_rank(), &t->run));
    TESS_TRY(tess_run_check_weights(&t->run));
    t->adapts = tess_model_adapted(t->run.model);
    if (t->adapts && !tess_model_has_weights(t->run.model))
        return tess_error(TESS_INVALID, "lora",
                          "the model has no weights (adapters need a directory's weights to be trained on)");
    if (tess_rank() == 0) {
        TESS_TRY(tess_resume_refuse(c));
        TESS_TRY(tess_monitor_check(c));
    }
    TESS_TRY(tess_run_data(&t->run, "data.train", c->data.train, c->data.shuffle, &t->data));
    if (c->data.valid) TESS_TRY(tess_run_data(&t->run, "data.valid", c->data.valid, false, &t->valid));
    if (c->eval_every > 0 && !t->valid) TESS_TRY(tess_config_require(c, "data.valid"));
    return TESS_OK;
}

/* Steps from epochs, the last of which may take samples of the next one; and what follows from steps. */
static void count_steps(struct training *t)
{
    tess_config *c = &t->c;
    if (c->epochs != TESS_CONFIG_AUTO) {
        const double exact = c->epochs * (double)tess_data_samples(t->data) / (double)t->run.batch;
        const int64_t steps = exact > 1e12 ? (int64_t)1e12 : exact > 1 ? (int64_t)ceil(exact) : 1;
        if (c->steps == TESS_CONFIG_AUTO || steps < c->steps) c->steps = steps;
    }
    if (c->scheduler.params.total_num_steps == TESS_CONFIG_AUTO) c->scheduler.params.total_num_steps = c->steps;
}

static void say_frozen(const struct training *t)
{
    const long long all = tess_graph_param_elements(t->run.g), trained = tess_graph_trained_elements(t->run.g);
    if (trained < all)
        printf("trained are %lld of %lld parameters, %.3g%%\n", trained, all, 100. * (double)trained / (double)all);
}

static void say_drawn(const struct training *t)
{
    if (!tess_model_has_weights(t->run.model)) printf("the weights are drawn from seed %lld\n", (long long)t->at.seed);
}

static void say_data(const struct training *t)
{
    const tess_data *d = t->data;
    const size_t files = tess_data_files(d);
    const double samples = (double)tess_data_samples(d);
    const char *left_out = tess_data_left_out(d);
    const unsigned long long lines = tess_data_lines_left_out(d);
    if (tess_model_batch(t->run.model)) {
        printf("data: %.0f samples in %zu file%s; %lld step%s of %lld %s %.4g epochs\n", samples, files,
               files == 1 ? "" : "s", (long long)t->c.steps, t->c.steps == 1 ? "" : "s", (long long)t->run.batch,
               t->c.steps == 1 ? "is" : "are", (double)t->c.steps * (double)t->run.batch / samples);
        fflush(stdout);
        return;
    }
    printf("data: %.0f samples of %s%lld tokens (%llu tokens in %zu file%s%s); %lld step%s of %lld %s %.4g epochs%s%s",
           samples, tess_data_by_lines(d) ? "up to " : "", (long long)t->run.length,
           (unsigned long long)tess_data_tokens(d), files, files == 1 ? "" : "s",
           tess_data_sources(d) > 1 ? ", by weight" : "", (long long)t->c.steps, t->c.steps == 1 ? "" : "s",
           (long long)t->run.batch, t->c.steps == 1 ? "is" : "are", (double)t->c.steps * (double)t->run.batch / samples,
           left_out ? "; left out, being no data: " : "", left_out ? left_out : "");
    if (tess_data_shared(d))
        printf("; %llu examples share them, %.2g%% is padding", (unsigned long long)tess_data_shared(d),
               100 * (1 - (double)tess_data_tokens(d) / (samples * (double)t->run.length)));
    if (lines) printf("; left out, having no target once cut: %llu line%s", lines, lines == 1 ? "" : "s");
    printf("\n");
    fflush(stdout);
}

/* Before the tiers are looked at: one may lie in it. */
static tess_status make_output(struct training *t)
{
    if (tess_rank() > 0 || tess_dirs_make(t->c.output, &t->made)) return TESS_OK;
    return tess_error(tess_errno_status(errno), t->c.output, "cannot be created: %s (see output)", strerror(errno));
}

/* The tasks of generic ops, and what of a step's time is theirs; those that a GPU cannot do, and their codelets. */
struct generic {
    int64_t tasks, all, stay;
    double seconds, of;
    char staying[240];
};

/* A codelet that has been named is not again. */
static void name_staying(struct generic *g, const char *name)
{
    const size_t used = strlen(g->staying);
    if (!strstr(g->staying, name))
        snprintf(g->staying + used, sizeof g->staying - used, "%s%s", used ? ", " : "", name);
}

static void count_task(void *of, uint32_t k, const tess_listed_task *t)
{
    struct generic *g = of;
    const bool generic = !strncmp(t->codelet->name, "any_", 4) && strcmp(t->codelet->name, "any_loss") != 0;
    (void)k;
    g->all++, g->of += t->seconds;
    if (generic) g->tasks++, g->seconds += t->seconds;
    if (!strcmp(t->where, "cpu")) g->stay++, name_staying(g, t->codelet->name);
}

static void no_tile(void *of, uint32_t k, const tess_listed_tile *t)
{
    (void)of, (void)k, (void)t;
}

/* Where no rates were measured, those of a usual core tell products from what only reads and writes. */
static void say_generic(const tess_run *r, const tess_step *step)
{
    static const tess_rates usual = {.flops = 5e10, .copy = 5e9};
    struct generic g = {0};
    const tess_rates *rates = r->limits.ram.rates.flops > 0 ? &r->limits.ram.rates : &usual;
    tess_step_list(step, rates, 1, &(tess_lister){&g, no_tile, count_task});
    if (g.tasks && r->rank == 0)
        tess_note("%lld of a step's %lld tasks are generic ops, some %.0f%% of its time", (long long)g.tasks,
                  (long long)g.all, 100 * g.seconds / g.of);
    if (g.stay && tess_gpus() > 0 && r->rank == 0)
        tess_note("%lld of a step's %lld tasks have no body for a GPU, and stay on the CPU: %s", (long long)g.stay,
                  (long long)g.all, g.staying);
}

static tess_status plan_steps(struct training *t)
{
    tess_bar_begin("planning the step", 0);
    const tess_status status = tess_run_train_step(&t->run, &t->step);
    tess_bar_end();
    TESS_TRY(status);
    const char *unsplit = tess_graph_unsplit(t->run.g);
    if (unsplit)
        tess_note("parallel.tensor: each of %lld ranks holds and computes all of %s", (long long)t->c.parallel.tensor,
                  unsplit);
    const char *shares = tess_step_shares(t->step);
    if (shares)
        tess_note("parallel.sequence: in attention %lld ranks exchange %s", (long long)t->c.parallel.sequence, shares);
    if (tess_model_batch(t->run.model)) say_generic(&t->run, t->step);
    if (t->run.evaluates) TESS_TRY(tess_run_eval_step(&t->run, false, &t->eval));
    t->numbers = tess_alloc((size_t)(tess_model_numbers(t->run.model) + 1) * sizeof *t->numbers);
    tess_step_holds(t->step, &t->plan);
    return TESS_OK;
}

static tess_status open_output(struct training *t)
{
    TESS_TRY(tess_report_open(&t->c, t->at.step, stdout, &t->report));
    if (tess_rank()) return TESS_OK;
    if (!t->at.step) tess_tracing_clear(t->c.output); /* as metrics.jsonl, it begins anew */
    char *path = tess_format("%s/config.json", t->c.output);
    tess_status status = tess_config_write(&t->c, path);
    free(path);
    if (status == TESS_OK) tess_plan_file_write(&t->run, t->step, &t->plan, t->measure.yardstick);
    return status;
}

/* Values that the model holds where it is written: of adapters, they alone. */
static double values_of(const struct training *t)
{
    return (double)(t->adapts ? tess_graph_trained_elements(t->run.g) : tess_graph_param_elements(t->run.g));
}

/* Values that a checkpoint holds. */
static double states_of(const struct training *t)
{
    int moments;
    tess_graph_optimizer(t->run.g, &moments);
    return values_of(t) + moments * (double)tess_graph_trained_elements(t->run.g);
}

/* Of a run that dies, rather than ends. */
static void say_what_is_left(const struct training *t)
{
    char *text = tess_format("the newest checkpoint is %s/step-%08lld, from which --resume goes on",
                             t->c.checkpoint.dir, (long long)t->at.step);
    tess_dies_leaving(text);
    free(text);
}

/* Adapters are kept without their base, which comes from its own directory. */
static bool loads_model(const struct training *t, bool resumes)
{
    return !resumes || t->adapts;
}

static tess_status load(struct training *t, bool resumes)
{
    const tess_config *c = &t->c;
    if (loads_model(t, resumes)) TESS_TRY(tess_model_load(t->run.model, t->run.g, t->at.seed));
    if (!resumes) return TESS_OK;
    TESS_TRY(tess_checkpoint_load(t->replay ? t->replay->checkpoints : c->checkpoint.dir, t->at.step, t->run.model,
                                  t->run.g));
    if (!t->replay) say_what_is_left(t);
    return TESS_OK;
}

/* Weights from a checkpoint or from the model. What another run left goes only when nothing can be refused any more. */
static tess_status begin(struct training *t, bool resumes)
{
    const tess_config *c = &t->c;
    if (c->checkpoint.dir) TESS_TRY(tess_checkpoint_prepare(c->checkpoint.dir));
    tess_measure_begin(&t->measure, tess_yardstick_for(t->run.dtype), t->plan.flops);
    TESS_TRY(tess_ranks_agree(tess_run_start(&t->run, false)));
    if (tess_ranks() > 1 && !tess_rank()) printf("messages between ranks go by %s\n", tess_message_carrier());
    tess_bar_begin(resumes ? "loading the checkpoint" : "loading the model",
                   (loads_model(t, resumes) ? (double)tess_graph_param_elements(t->run.g) : 0) +
                       (resumes ? states_of(t) : 0));
    const tess_status status = load(t, resumes);
    tess_bar_end();
    TESS_TRY(status);
    if (!resumes && !tess_rank()) tess_resume_clear(c);
    TESS_TRY(tess_ranks_agree(open_output(t)));
    TESS_TRY(tess_digests_file_open(&t->digests, c));
    return tess_tracing_open(&t->tracing, &t->run, &t->plan, &t->measure, t->at.step);
}

/* ---- steps ---- */

/* What the loss on data.valid means for the best checkpoint and for stopping early; the same on all ranks. */
static void judge(struct training *t)
{
    const tess_config *c = &t->c;
    tess_progress *at = &t->at;
    tess_ranks_tell(&t->valid_loss, sizeof t->valid_loss);
    const double loss = t->valid_loss;
    if (!at->best_step || loss < at->best_loss) at->best_step = at->step, at->best_loss = loss;
    if (!c->early_stop.patience) return;
    const bool better = !at->marked || loss < at->mark_loss - c->early_stop.min_delta;
    at->worse = better ? 0 : at->worse + 1;
    if (better) at->mark_loss = loss;
    at->marked = true;
}

static tess_status one_step(struct training *t)
{
    const tess_config *c = &t->c;
    const tess_step_input in = tess_schedule_input(c, t->at.step, t->at.seed, &t->at.scale);
    tess_tracing_begin(&t->tracing, t->at.step + 1);
    const double start = tess_seconds();
    tess_step_result r;
    tess_measure_start(&t->measure);
    /* A rank that lacks its samples would be missed in the middle of the step. */
    TESS_TRY(tess_ranks_agree(tess_run_feed(&t->run, t->step, t->data, (uint64_t)t->at.samples, t->run.batch)));
    tess_digests_file_step(&t->digests, t->step, t->at.step + 1);
    TESS_TRY(tess_ranks_agree(tess_step_run(t->step, &in, &r)));
    const double end = tess_seconds();
    if (c->fp16.enabled) TESS_TRY(tess_loss_scale_next(c, &t->at.scale, r.skipped, t->at.step));
    tess_step_report s = {.step = t->at.step,
                          .samples = t->at.samples + t->run.batch,
                          .loss = r.loss,
                          .lr = in.lr,
                          .grad_norm = r.grad_norm,
                          .loss_scale = in.loss_scale,
                          .skipped = t->at.scale.skipped};
    tess_tracing_end(&t->tracing, t->at.step + 1, start, end);
    tess_measure_step(&t->measure, end - start, t->run.batch * t->run.length, r.used, &s);
    bool evaluate = due(c->eval_every, t->at.step + 1);
    if (evaluate) TESS_TRY(tess_run_evaluate(&t->run, t->eval, t->valid, &t->valid_loss, NULL, t->numbers));
    s.valid_loss = evaluate ? &t->valid_loss : NULL;
    s.model = t->run.model;
    s.numbers = t->numbers;
    TESS_TRY(tess_report_step(t->report, &s));
    if (t->at.step == t->begun + 1) /* the first takes longer */
        tess_run_say_unsaved(c, s.seconds * (double)(c->steps - t->at.step));
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

static tess_status save_checkpoint(struct training *t)
{
    const tess_config *c = &t->c;
    const tess_checkpoint_conf conf = {
        .dir = c->checkpoint.dir, .keep = c->checkpoint.keep, .best = c->checkpoint.keep_best};
    tess_bar_begin("saving a checkpoint", states_of(t));
    const tess_status status = tess_checkpoint_save(&conf, t->run.model, t->run.g, &t->at);
    tess_bar_end();
    if (status == TESS_OK) say_what_is_left(t);
    return status;
}

static tess_status save_model(struct training *t)
{
    char *dir = tess_format("%s/model", t->c.output);
    tess_bar_begin("saving the model", values_of(t));
    tess_status status = tess_model_save(t->run.model, t->run.g, dir);
    tess_bar_end();
    free(dir);
    return status;
}

static bool goes_on(const struct training *t)
{
    return t->at.step < (t->replay ? t->replay->to : t->c.steps) && !t->stopped && !t->early;
}

static tess_status all_steps(struct training *t)
{
    const tess_config *c = &t->c;
    int64_t saved = t->at.step;
    t->begun = t->at.step;
    t->early = c->early_stop.patience > 0 && t->at.worse >= c->early_stop.patience;
    while (goes_on(t)) {
        TESS_TRY(tess_ranks_agree(one_step(t)));
        if (due(c->eval_every, t->at.step)) judge(t);
        t->stopped = stops() && t->at.step < c->steps;
        t->early = c->early_stop.patience > 0 && t->at.worse >= c->early_stop.patience;
        const bool best = c->checkpoint.keep_best && t->at.best_step == t->at.step;
        if (!c->checkpoint.dir || !(due(c->checkpoint.every, t->at.step) || best || t->stopped)) continue;
        TESS_TRY(save_checkpoint(t));
        saved = t->at.step;
    }
    tess_tracing_merge(&t->tracing);
    TESS_TRY(tess_ranks_agree(tess_digests_file_close(&t->digests)));
    if (t->replay) return TESS_OK;
    if (c->checkpoint.dir && saved != t->at.step) /* so that a larger steps goes on from here */
        TESS_TRY(save_checkpoint(t));
    return save_model(t);
}

/* ---- the end ---- */

/* What the run leaves, and, where it was to go on, how it does. */
static void say_end(const struct training *t)
{
    const tess_config *c = &t->c;
    const tess_progress *at = &t->at;
    if (tess_rank()) return;
    if (t->stopped) tess_note("stopped by a signal after step %lld of %lld", (long long)at->step, (long long)c->steps);
    if (t->early && at->step < c->steps)
        printf(
            "stopped early after step %lld of %lld: %lld evaluations in a row were not better than %.4f by more than "
            "%g\n",
            (long long)at->step, (long long)c->steps, (long long)at->worse, at->mark_loss, c->early_stop.min_delta);
    if (at->best_step && c->checkpoint.keep_best)
        printf("the best loss on data.valid was %.4f after step %lld: %s/step-%08lld\n", at->best_loss,
               (long long)at->best_step, c->checkpoint.dir, (long long)at->best_step);
    printf("the %s of step %lld: %s/model\n", t->adapts ? "adapter" : "model", (long long)at->step, c->output);
    fflush(stdout);
    if (t->stopped && c->checkpoint.dir)
        tess_note("%s/step-%08lld is its checkpoint; this goes on: %s", c->checkpoint.dir, (long long)at->step,
                  c->command ? c->command : "the same with --resume");
    else if (t->stopped)
        tess_note("without checkpoint.dir it cannot go on; %s/model holds the weights alone", c->output);
}

static void end(struct training *t)
{
    tess_report_close(t->report);
    t->report = NULL;
    tess_digests_file_drop(&t->digests);
    tess_tracing_close(&t->tracing);
    tess_step_free(t->step);
    tess_step_free(t->eval);
    tess_data_close(t->data);
    tess_data_close(t->valid);
    tess_run_close(&t->run);
    free(t->numbers);
    tess_stop();
}

/* Where a replay begins, which all ranks find in the same file. */
static tess_status replay_from(const struct training *t, tess_beginning *b)
{
    const tess_replay *r = t->replay;
    *b = (tess_beginning){.found = r->from > 0, .at = {.seed = (uint64_t)t->c.seed}};
    if (!b->found) return TESS_OK;
    char *path = tess_checkpoint_path(r->checkpoints, r->from);
    const tess_status status = tess_checkpoint_progress(path, &b->at);
    free(path);
    return tess_ranks_agree(status);
}

tess_status tess_train(const tess_config *c)
{
    return tess_train_again(c, NULL);
}

tess_status tess_train_again(const tess_config *c, const tess_replay *replay)
{
    if (!c) return tess_error(TESS_INVALID, "configuration", "is NULL");
    struct training t = {.c = *c, .replay = replay};
    tess_beginning b = {0};
    tess_status status;
    TESS_TRY_DONE(tess_ranks_agree(TESS_OK)); /* a rank that got another configuration did not come here */
    TESS_TRY_DONE(tess_run_check_gpus(c));
    TESS_TRY_DONE(tess_checkpoint_pick(c->model, &t.model));
    t.c.model = t.model;
    TESS_TRY_DONE(tess_ranks_agree(open_inputs(&t)));
    TESS_TRY_DONE(tess_run_same(&t.run, "train"));
    count_steps(&t);
    const tess_run_facts facts = tess_resume_facts(&t.run, t.data);
    TESS_TRY_DONE(replay ? replay_from(&t, &b) : tess_resume_find(&t.run, &facts, &b));
    if (b.done) goto done;
    t.at = b.at;
    if (c->fp16.enabled && !(t.at.scale.value > 0)) { /* it begins here */
        const int64_t skipped = t.at.scale.skipped;
        t.at.scale = tess_loss_scale_begin(c);
        t.at.scale.skipped = skipped;
    }
    if (c->fp16.enabled && c->fp16.loss_scale > 0) t.at.scale.value = c->fp16.loss_scale; /* whatever it was before */
    tess_run_say_odd(&t.run);
    if (!tess_rank() && tess_schedule_rests(c))
        tess_note("%s: optimizer.params.lr: 0, and so nothing is trained (1e-3 is usual for a model that is drawn)",
                  c->file);
    TESS_TRY_DONE(tess_ranks_agree(make_output(&t)));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_tiers(&t.run, NULL)));
    TESS_TRY_DONE(tess_ranks_agree(plan_steps(&t)));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_room(&t.run, b.found)));
    if (!tess_rank() && !b.found) say_drawn(&t);
    if (!tess_rank()) say_frozen(&t), say_data(&t);
    tess_config_say_rate(&t.c);
    tess_run_say_saved(&t.run);
    tess_run_say_dtype(&t.run, &t.plan);
    tess_run_say_padding(&t.run, t.data, t.valid);
    tess_signals_install();
    TESS_TRY_DONE(tess_ranks_agree(begin(&t, b.found)));
    status = all_steps(&t);
    tess_measure_keep(&t.measure);
done:
    end(&t);
    if (status == TESS_OK && !b.done && !replay) say_end(&t);
    if (status != TESS_OK) tess_dirs_remove(c->output, t.made);
    free(t.model);
    return status;
}
