/* Training from a configuration: the whole run, from the model's directory to the trained one. All ranks come this way,
 * in phases that end with their agreement; rank 0 alone reports, and writes what they all have. */
#include "models/networks/networks.h"
#include "models/text/base/directories.h"
#include "models/train/loop/announce_impl.h"
#include "models/train/loop/lock_impl.h"
#include "models/train/loop/reference_impl.h"
#include "models/train/loop/resume_impl.h"
#include "models/train/loop/samples_impl.h"
#include "models/train/loop/schedule_impl.h"
#include "models/train/loop/teacher_impl.h"
#include "models/train/questions/questions.h"
#include "models/train/report/observer.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* What the configuration says of the way, read once the run knows its data. */
struct course {
    const char *output, *saves;                     /* saves: the directory of checkpoints; NULL: there are none */
    int64_t first, last, steps;                     /* behind which step it begins and ends; of the whole run */
    int64_t together;                               /* steps from which to which all ranks have the same weights */
    int64_t save_every, keep, eval_every, patience; /* patience: evaluations that may be worse; 0: any number */
    double min_delta;
    bool keeps_best, scales,
        replays; /* scales: fp16's scale of the loss; replays: it makes steps of another run again */
};

struct training {
    tess_config c; /* the one given, with what only the run can know; its texts are borrowed but for: */
    char *model;   /* the directory, or the checkpoint that was picked in it */
    struct course way;
    tess_run run;
    tess_data *data, *valid;
    tess_step *step, *eval;
    tess_samples *samples;   /* NULL: none are asked for */
    tess_run_tasks *tasks;   /* NULL: there are none */
    tess_lock output, saves; /* of these directories */
    size_t made;             /* of the output directory's path, see tess_dirs_make */
    bool adapts;             /* adapters alone are trained */
    bool stopped, early;     /* by a signal, by early_stop */
    bool ahead;              /* the next step has begun */
    double valid_loss;       /* of the last evaluation */
    double *numbers;         /* beside it */
    double *own;             /* of a step that trains */
    tess_reference reference;
    tess_checkpoint_saving *saving; /* beside the step that runs */
    int64_t saved;                  /* the step behind which it, or the last one, was begun */
    tess_safetensors *teacher;      /* what it says; NULL: there is none */
    tess_progress at;
    tess_holds plan;
    tess_observer observer;
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

/* Rank 0's, for all. Directories that are not there yet are tried once more when they are. */
static tess_status lock_directories(struct training *t)
{
    if (tess_rank() > 0) return TESS_OK;
    struct stat output, saves;
    TESS_TRY(tess_lock_take(&t->output, t->c.output));
    if (!t->c.checkpoint.dir || stat(t->c.checkpoint.dir, &saves)) return TESS_OK;
    if (!stat(t->c.output, &output) && output.st_dev == saves.st_dev && output.st_ino == saves.st_ino) return TESS_OK;
    return tess_lock_take(&t->saves, t->c.checkpoint.dir);
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
    TESS_TRY(lock_directories(t));
    if (tess_rank() == 0) TESS_TRY(tess_resume_refuse(c));
    TESS_TRY(tess_observer_check(c));
    TESS_TRY(tess_run_data(&t->run, "data.train", c->data.train, c->data.shuffle, &t->data));
    if (c->data.valid) TESS_TRY(tess_run_data(&t->run, "data.valid", c->data.valid, false, &t->valid));
    if (c->eval_every > 0 && !t->valid && !c->eval.tasks) TESS_TRY(tess_config_require(c, "data.valid"));
    TESS_TRY(tess_samples_check(&t->run));
    return tess_run_tasks_open(&t->run, &t->tasks);
}

/* Counts the steps of the epochs, where the last step may take samples of the next epoch, and sets what follows. */
static void count_steps(struct training *t)
{
    tess_config *c = &t->c;
    if (c->epochs != TESS_CONFIG_AUTO) {
        const double exact = c->epochs * (double)tess_data_samples(t->data) / (double)t->run.batch;
        const int64_t steps = exact > 1e12 ? (int64_t)1e12 : exact > 1 ? (int64_t)ceil(exact) : 1;
        const int64_t local = c->parallel.local_steps > 0 ? c->parallel.local_steps : 1; /* it ends with their sum */
        if (c->steps == TESS_CONFIG_AUTO || steps < c->steps) c->steps = (steps + local - 1) / local * local;
    }
    tess_schedule_settle(c);
    c->eval_every = tess_config_steps(c->eval_every, c->steps);
    c->checkpoint.every = tess_config_steps(c->checkpoint.every, c->steps);
}

/* Between sums the ranks have no weights that could be saved or evaluated. */
static tess_status check_local(const tess_config *c)
{
    const struct {
        const char *key;
        int64_t steps;
    } every[] = {{"steps", c->steps}, {"eval_every", c->eval_every}, {"checkpoint.every", c->checkpoint.every}};
    const int64_t local = c->parallel.local_steps;
    for (int k = 0; k < 3 && local > 0; k++)
        if (every[k].steps % local)
            return tess_error(TESS_INVALID, every[k].key,
                              "%lld, which parallel.local_steps, %lld, does not divide (%lld "
                              "would do)",
                              (long long)every[k].steps, (long long)local,
                              (long long)(every[k].steps + local - every[k].steps % local));
    return TESS_OK;
}

/* Where the run begins is known. */
static void set_course(struct training *t, const tess_beginning *b)
{
    const tess_config *c = &t->c;
    t->at = b->at;
    t->way = (struct course){.output = c->output,
                             .saves = c->checkpoint.dir,
                             .first = b->at.step,
                             .last = t->replay ? t->replay->to : c->steps,
                             .steps = c->steps,
                             .together = c->parallel.local_steps > 0 ? c->parallel.local_steps : 1,
                             .save_every = c->checkpoint.every,
                             .keep = c->checkpoint.keep,
                             .eval_every = c->eval_every                    ? c->eval_every
                                           : c->data.valid || c->eval.tasks ? c->steps
                                                                            : 0,
                             .patience = c->early_stop.patience,
                             .min_delta = c->early_stop.min_delta,
                             .keeps_best = c->checkpoint.keep_best,
                             .scales = c->fp16.enabled,
                             .replays = t->replay};
    if (t->way.scales) tess_loss_scale_resume(c, &t->at.scale);
}

/* Before the tiers are looked at: one may lie in it. */
static tess_status make_output(struct training *t)
{
    if (tess_rank() == 0 && !tess_dirs_make(t->way.output, &t->made))
        return tess_error(tess_errno_status(errno), t->way.output, "cannot be created: %s (see output)",
                          strerror(errno));
    return lock_directories(t);
}

static tess_status plan_steps(struct training *t)
{
    tess_bar_begin("planning the step", 0);
    const tess_status status = tess_run_train_step(&t->run, &t->step);
    tess_bar_end();
    TESS_TRY(status);
    tess_announce_step(&t->run, t->step);
    if (t->run.evaluates) TESS_TRY(tess_run_eval_step(&t->run, false, &t->eval));
    TESS_TRY(tess_run_tasks_plan(t->tasks));
    TESS_TRY(tess_reference_plan(&t->run, &t->reference));
    if (t->valid) TESS_TRY(tess_samples_new(&t->run, t->valid, &t->samples));
    if (t->eval) t->numbers = tess_alloc((size_t)(tess_step_numbers(t->eval) + 1) * sizeof *t->numbers);
    t->own = tess_alloc((size_t)(tess_step_numbers(t->step) + 1) * sizeof *t->own);
    tess_step_holds(t->step, &t->plan);
    return TESS_OK;
}

/* Values that the model holds where it is written: of adapters, they alone. */
static double values_of(const struct training *t)
{
    return (double)(t->adapts ? tess_graph_trained_elements(t->run.g) : tess_graph_param_elements(t->run.g));
}

/* Values that a checkpoint holds. */
static double states_of(const struct training *t)
{
    return values_of(t) + tess_graph_moments(t->run.g);
}

/* Of a run that dies, rather than ends. */
static void say_what_is_left(const struct training *t)
{
    char *text = tess_format("the newest checkpoint is %s/step-%08lld, from which --resume goes on", t->way.saves,
                             (long long)t->saved);
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
    if (loads_model(t, resumes)) TESS_TRY(tess_model_load(t->run.model, t->run.g, t->at.seed));
    if (!resumes) return TESS_OK;
    TESS_TRY(
        tess_checkpoint_load(t->replay ? t->replay->checkpoints : t->way.saves, t->at.step, t->run.model, t->run.g));
    t->saved = t->at.step;
    if (!t->way.replays) say_what_is_left(t);
    return TESS_OK;
}

/* Weights from a checkpoint or from the model. What another run left goes only when nothing can be refused any more. */
static tess_status begin(struct training *t, bool resumes)
{
    if (t->way.saves) TESS_TRY(tess_checkpoint_prepare(t->way.saves));
    TESS_TRY(tess_ranks_agree(lock_directories(t)));
    TESS_TRY(tess_teacher_find(&t->run, t->data, resumes, &t->teacher));
    tess_observer_begin(&t->observer, &t->run, &t->plan);
    TESS_TRY(tess_ranks_agree(tess_run_start(&t->run, false)));
    if (tess_ranks() > 1 && !tess_rank()) printf("messages between ranks go by %s\n", tess_message_carrier());
    tess_run_say_written(&t->run, t->way.last - t->at.step, 4 * states_of(t));
    tess_bar_begin(resumes ? "loading the checkpoint" : "loading the model",
                   (loads_model(t, resumes) ? (double)tess_graph_param_elements(t->run.g) : 0) +
                       (resumes ? states_of(t) : 0));
    const tess_status status = load(t, resumes);
    tess_bar_end();
    TESS_TRY(status);
    if (!resumes && !tess_rank()) tess_resume_clear(&t->c);
    TESS_TRY(tess_reference_find(&t->reference, t->data, t->valid, resumes));
    return tess_observer_open(&t->observer, t->step, &t->plan, t->at.step);
}

/* ---- steps ---- */

/* What the loss on data.valid means for the best checkpoint and for stopping early; the same on all ranks. */
static void judge(struct training *t)
{
    tess_progress *at = &t->at;
    tess_ranks_tell(&t->valid_loss, sizeof t->valid_loss);
    const double loss = t->valid_loss;
    if (!at->best_step || loss < at->best_loss) at->best_step = at->step, at->best_loss = loss;
    if (!t->way.patience) return;
    const bool better = !at->marked || loss < at->mark_loss - t->way.min_delta;
    at->worse = better ? 0 : at->worse + 1;
    if (better) at->mark_loss = loss;
    at->marked = true;
}

static tess_status evaluate_valid(struct training *t)
{
    TESS_TRY(tess_reference_bound(&t->reference, t->valid, true, 0, (int64_t)tess_data_samples(t->valid)));
    return tess_run_evaluate(&t->run, t->eval, t->valid, &t->valid_loss, NULL, t->numbers);
}

/* Of the step that is next, or of the one behind it. */
static tess_step_input input_of(const struct training *t, int behind)
{
    tess_step_input in = tess_schedule_input(&t->c, t->at.step + behind, t->at.seed, &t->at.scale);
    in.most_norm = tess_spikes_most(&t->c, &t->at.spikes);
    return in;
}

static tess_status feed(struct training *t, int behind)
{
    const uint64_t first = (uint64_t)(t->at.samples + behind * t->run.batch);
    TESS_TRY(tess_reference_bound(&t->reference, t->data, false, first, t->run.batch));
    return tess_run_feed(&t->run, t->step, t->data, first, t->run.batch);
}

/* Whether the step behind the one that runs may begin beside its end: nothing is to be done between the two, and
 * nothing of what comes of the one is needed for the other. */
static bool goes_ahead(const struct training *t)
{
    const int64_t done = t->at.step + 1;
    return done < t->way.last && !due(t->way.eval_every, done) && !(t->way.saves && due(t->way.save_every, done)) &&
           !t->saving && !t->run.c->preference.loss && !tess_stop_requested() &&
           !tess_observer_sees(&t->observer, done) && tess_step_overlaps(t->step);
}

/* What cannot be fed now is said when it is that step's turn. */
static tess_status begin_ahead(struct training *t)
{
    const tess_step_input in = input_of(t, 1);
    t->ahead = false;
    if (!goes_ahead(t)) return TESS_OK;
    if (feed(t, 1) != TESS_OK) return tess_error_clear(), TESS_OK;
    TESS_TRY(tess_step_begin(t->step, &in));
    t->ahead = true;
    return TESS_OK;
}

static tess_status one_step(struct training *t)
{
    const tess_step_input in = input_of(t, 0);
    tess_step_result r;
    if (!t->ahead) {
        tess_observer_step_begins(&t->observer, t->step, t->at.step);
        TESS_TRY(tess_ranks_agree(feed(t, 0))); /* a rank that lacks its samples would be missed amid the step */
        TESS_TRY(tess_ranks_agree(tess_step_begin(t->step, &in)));
    }
    TESS_TRY(begin_ahead(t));
    TESS_TRY(tess_ranks_agree(tess_step_end(t->step, &r)));
    TESS_TRY(tess_spikes_next(&t->c, &t->at.spikes, &t->at.scale, &r, t->at.step));
    tess_step_report s = {.step = t->at.step,
                          .samples = t->at.samples + t->run.batch,
                          .loss = r.loss,
                          .lr = in.lr,
                          .grad_norm = r.grad_norm,
                          .loss_scale = in.loss_scale,
                          .skipped = t->at.scale.skipped,
                          .preference = t->run.c->preference.loss,
                          .own = t->own};
    if (s.preference) TESS_TRY(tess_run_numbers(t->step, t->own));
    tess_observer_step_ends(&t->observer, tess_run_tokens(&t->run), r.used, &s);
    const bool evaluation = due(t->way.eval_every, t->at.step + 1), evaluate = evaluation && t->valid;
    if (evaluate) TESS_TRY(evaluate_valid(t));
    if (evaluate && t->samples) TESS_TRY(tess_samples_make(t->samples));
    if (evaluation && t->tasks) TESS_TRY(tess_run_tasks_answer(t->tasks, &s.task, &s.task_numbers));
    s.valid_loss = evaluate ? &t->valid_loss : NULL;
    s.samples_made = evaluate && t->samples ? tess_samples_text(t->samples) : NULL;
    s.model = t->run.model;
    s.numbers = t->numbers;
    s.beside = evaluate ? tess_step_numbers(t->eval) : 0;
    TESS_TRY(tess_observer_step(&t->observer, &s));
    if (t->at.step == t->way.first + 1) /* the first takes longer */
        tess_run_say_unsaved(&t->c, s.seconds * (double)(t->way.steps - t->at.step));
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

static tess_status end_saving(struct training *t, bool fine)
{
    tess_checkpoint_saving *ends = t->saving;
    t->saving = NULL;
    TESS_TRY(tess_checkpoint_end(ends, fine));
    if (ends) say_what_is_left(t);
    return TESS_OK;
}

/* Beside the next step, if there is one. */
static tess_status save_checkpoint(struct training *t, bool beside)
{
    const tess_checkpoint_conf conf = {.dir = t->way.saves, .keep = t->way.keep, .best = t->way.keeps_best};
    t->saved = t->at.step;
    tess_bar_begin("saving a checkpoint", states_of(t));
    tess_status status = tess_checkpoint_begin(&conf, t->run.model, t->run.g, &t->at, beside, &t->saving);
    if (status == TESS_OK && !beside) status = end_saving(t, true);
    tess_bar_end();
    return status;
}

/* A checkpoint that was begun before the step is whole behind it, of a step that fails if it can be. */
static tess_status step_and_save(struct training *t)
{
    const tess_status status = tess_ranks_agree(one_step(t));
    if (status == TESS_OK) return end_saving(t, true);
    if (!t->saving) return status;
    TESS_FREED char *error = tess_strdup(tess_error_text());
    (void)!end_saving(t, false);
    tess_error_restore(error);
    return status;
}

static tess_status save_model(struct training *t)
{
    TESS_FREED char *dir = tess_format("%s/model", t->way.output);
    tess_bar_begin("saving the model", values_of(t));
    tess_status status = tess_model_save(t->run.model, t->run.g, dir);
    tess_bar_end();
    return status;
}

/* Whether evaluations have been worse for as long as early_stop bears. */
static bool is_early(const struct training *t)
{
    return t->way.patience > 0 && t->at.worse >= t->way.patience;
}

/* Whether a run whose step was skipped does. */
static bool goes_back(const struct training *t)
{
    return t->at.spikes.back < t->c.on_spike.back && t->saved > 0 && !t->way.replays;
}

/* To the last checkpoint, but that the samples since then are passed over. */
static tess_status go_back(struct training *t)
{
    const tess_progress was = t->at;
    char *path = tess_checkpoint_path(t->way.saves, t->saved);
    tess_status status = tess_ranks_agree(tess_checkpoint_progress(path, &t->at));
    free(path);
    TESS_TRY(status);
    t->at.samples = was.samples, t->at.told = was.told, t->at.spikes.back = was.spikes.back + 1;
    if (!tess_rank())
        tess_note("step %lld: back to the checkpoint of step %lld, and on with the samples behind (%lld of %lld times)",
                  (long long)was.step, (long long)t->at.step, (long long)t->at.spikes.back,
                  (long long)t->c.on_spike.back);
    tess_bar_begin("loading the checkpoint", states_of(t));
    status = tess_checkpoint_load(t->way.saves, t->at.step, t->run.model, t->run.g);
    tess_bar_end();
    TESS_TRY(status);
    return tess_observer_back(&t->observer, t->at.step);
}

static tess_status all_steps(struct training *t)
{
    const struct course *way = &t->way;
    t->saved = way->first;
    t->early = is_early(t);
    while (t->at.step < way->last && !t->stopped && !t->early) {
        const int64_t row = t->at.spikes.row;
        TESS_TRY(step_and_save(t));
        if (t->at.spikes.row > row && goes_back(t)) {
            TESS_TRY(go_back(t));
            continue;
        }
        if (t->valid && due(way->eval_every, t->at.step)) judge(t);
        t->stopped = !t->ahead && due(way->together, t->at.step) && stops() && t->at.step < way->steps;
        t->early = is_early(t);
        const bool best = way->keeps_best && t->at.best_step == t->at.step;
        if (!way->saves || !(due(way->save_every, t->at.step) || best || t->stopped)) continue;
        TESS_TRY(save_checkpoint(t, t->at.step < way->last && !t->stopped && !t->early));
    }
    TESS_TRY(tess_observer_end(&t->observer));
    if (way->replays) return TESS_OK;
    if (way->saves && t->saved != t->at.step)
        TESS_TRY(save_checkpoint(t, false)); /* so that a larger steps goes on from here */
    return save_model(t);
}

/* ---- the end ---- */

static void announce_end(const struct training *t)
{
    const tess_ending e = {.c = &t->c, .at = &t->at, .stopped = t->stopped, .early = t->early, .adapts = t->adapts};
    tess_announce_end(&e);
}

static void end(struct training *t)
{
    tess_observer_close(&t->observer);
    tess_step_free(t->step);
    tess_step_free(t->eval);
    tess_reference_close(&t->reference);
    tess_teacher_close(&t->run, t->teacher);
    tess_samples_free(t->samples);
    tess_run_tasks_free(t->tasks);
    tess_data_close(t->data);
    tess_data_close(t->valid);
    tess_run_close(&t->run);
    free(t->numbers);
    free(t->own);
    tess_stop();
    tess_lock_release(&t->output);
    tess_lock_release(&t->saves);
}

/* Where a replay begins, which all ranks find in the same file. */
static tess_status replay_from(const struct training *t, tess_beginning *b)
{
    const tess_replay *r = t->replay;
    *b = (tess_beginning){.found = r->from > 0, .at = {.seed = (uint64_t)t->c.seed}};
    if (!b->found) return TESS_OK;
    TESS_FREED char *path = tess_checkpoint_path(r->checkpoints, r->from);
    const tess_status status = tess_checkpoint_progress(path, &b->at);
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
    TESS_TRY_DONE(check_local(&t.c));
    const tess_run_facts facts = tess_resume_facts(&t.run, t.data);
    TESS_TRY_DONE(replay ? replay_from(&t, &b) : tess_resume_find(&t.run, &facts, &b));
    if (b.done) {
        tess_observer_finish(c);
        goto done;
    }
    set_course(&t, &b);
    tess_announce_oddities(&t.run);
    TESS_TRY_DONE(tess_ranks_agree(make_output(&t)));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_tiers(&t.run, NULL)));
    TESS_TRY_DONE(tess_ranks_agree(plan_steps(&t)));
    TESS_TRY_DONE(tess_ranks_agree(tess_run_room(&t.run, &t.plan, b.found)));
    tess_announce_run(&t.run, &t.plan, t.data, t.valid, b.found ? NULL : &t.at.seed);
    tess_signals_install();
    TESS_TRY_DONE(tess_ranks_agree(begin(&t, b.found)));
    status = all_steps(&t);
done:
    end(&t);
    if (status == TESS_OK && !b.done && !replay) announce_end(&t);
    if (status != TESS_OK) tess_dirs_remove(c->output, t.made);
    free(t.model);
    return status;
}
