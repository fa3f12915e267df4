/* How a run begins. Rank 0 looks, decides and speaks; the others are told. */
#include "models/networks/networks.h"
#include "models/train/loop/resume_impl.h"
#include "models/train/report/report.h"
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- what is there ---- */

/* Of a model in output: when the last of its files was written; false where there is none. Its weights alone are what a
 * run left that was killed before it had written the rest: that is no time at all. */
static bool model_time(const tess_config *c, struct timespec *t)
{
    static const char *const name[] = {"model.safetensors", "model.safetensors.index.json", "config.json",
                                       "adapter_model.safetensors", "adapter_config.json"};
    struct stat st[5];
    bool is[5];
    for (int i = 0; i < 5; i++) {
        TESS_FREED char *path = tess_format("%s/model/%s", c->output, name[i]);
        is[i] = stat(path, &st[i]) == 0;
    }
    *t = is[2] ? st[2].st_mtim : is[4] ? st[4].st_mtim : (struct timespec){0};
    return is[0] || is[1] || is[3];
}

/* The model in output is not older than the checkpoint, so it is that of the checkpoint's step. */
static bool model_is_of(const tess_config *c, int64_t step)
{
    struct timespec model;
    struct stat st;
    TESS_FREED char *path = tess_checkpoint_path(c->checkpoint.dir, step), *state = tess_format("%s/state.json", path);
    return model_time(c, &model) && stat(state, &st) == 0 &&
           (model.tv_sec > st.st_mtim.tv_sec ||
            (model.tv_sec == st.st_mtim.tv_sec && model.tv_nsec >= st.st_mtim.tv_nsec));
}

tess_status tess_resume_refuse(const tess_config *c)
{
    tess_progress at;
    struct timespec written;
    bool found = false;
    if (c->checkpoint.resume || c->overwrite) return TESS_OK;
    if (c->checkpoint.dir) TESS_TRY(tess_checkpoint_find(c->checkpoint.dir, &at, &found));
    if (found) /* among those of another run ours would be old ones, and be removed */
        return tess_error(TESS_INVALID, c->checkpoint.dir,
                          "holds a run's checkpoint of step %lld (--resume goes on from it, overwrite=true removes it; "
                          "else set another checkpoint.dir and output)",
                          (long long)at.step);
    const int64_t step = tess_report_last(c->output);
    if (step > 0)
        return tess_error(TESS_INVALID, c->output,
                          "holds another run's metrics, up to step %lld (overwrite=true replaces that run's files; "
                          "else set another output)",
                          (long long)step);
    if (model_time(c, &written))
        return tess_error(TESS_INVALID, c->output,
                          "holds a model, in %s/model (overwrite=true replaces it; else set another output)",
                          c->output);
    return TESS_OK;
}

void tess_resume_clear(const tess_config *c)
{
    if (!c->overwrite || !c->checkpoint.dir) return;
    const size_t n = tess_checkpoint_clear(c->checkpoint.dir);
    if (n > 0)
        tess_note("overwrite: removed %zu checkpoint%s of another run from %s", n, n == 1 ? "" : "s",
                  c->checkpoint.dir);
}

/* ---- what differs ---- */

/* The same of two lists that mean the same parameters; 0 of none. */
static uint64_t sum_frozen(const tess_graph *g)
{
    uint64_t sum = 0;
    for (int k = 0; k < tess_graph_params(g); k++) {
        uint64_t h = UINT64_C(0xcbf29ce484222325);
        if (!tess_param_frozen(tess_graph_param(g, k))) continue;
        for (const char *c = tess_tensor_name(tess_graph_param(g, k)); *c; c++)
            h = (h ^ (unsigned char)*c) * UINT64_C(0x100000001b3);
        sum += h;
    }
    return sum;
}

tess_run_facts tess_resume_facts(const tess_run *r, const tess_data *data)
{
    const tess_config *c = r->c;
    return (tess_run_facts){.known = true,
                            .bf16 = c->bf16.enabled,
                            .fp16 = c->fp16.enabled,
                            .fp8 = c->fp8.enabled,
                            .half_gradients = c->data_types.grad_accum_dtype == TESS_BF16,
                            .shuffle = c->data.shuffle,
                            .steps = c->steps,
                            .schedule_steps = tess_config_decays(c) ? c->scheduler.params.total_num_steps : 0,
                            .batch = r->batch,
                            .length = r->length,
                            .parameters = tess_graph_param_elements(r->g),
                            .trained = tess_graph_trained_elements(r->g),
                            .frozen = sum_frozen(r->g),
                            .lines = tess_data_by_lines(data),
                            .samples = tess_data_samples(data),
                            .tokens = tess_data_tokens(data),
                            .sum = tess_data_sum(data)};
}

/* The same parameters, and the same arithmetic on them: else its states mean nothing here. */
static tess_status check_model(const tess_run *r, int64_t step, bool say)
{
    TESS_FREED char *path = tess_checkpoint_path(r->c->checkpoint.dir, step);
    tess_model *then = NULL;
    tess_status status = TESS_OK;
    if (tess_model_there(path)) { /* older ones have none; their shapes are compared when they are read */
        status = tess_model_open(path, NULL, &then);
        if (status == TESS_OK) status = tess_model_same(path, then, r->model, say);
    }
    tess_model_close(then);
    return status;
}

static void dtypes_of(const tess_run_facts *f, char text[static 64])
{
    const char *matrices = f->bf16 ? "bf16" : f->fp16 ? "fp16" : "fp32";
    snprintf(text, 64, "%s%s%s", matrices, f->fp8 ? " + fp8" : "", f->half_gradients ? " + bf16 gradients" : "");
}

/* All of this is sound: positions are counted in samples, and masters are fp32 whatever the matrices are. */
static void say_differences(const tess_run_facts *then, const tess_run_facts *now, tess_progress *at)
{
    typedef unsigned long long wide;
    char in[64], was_in[64];
    dtypes_of(now, in), dtypes_of(then, was_in);
    if (!then->known) return;
    if (then->sum != now->sum)
        tess_note("resuming with other data: data.train has %llu tokens, that of the checkpoint's run had %llu%s; its "
                  "order goes on at sample %lld",
                  (wide)now->tokens, (wide)then->tokens, now->tokens == then->tokens ? ", and others" : "",
                  (long long)at->samples);
    if (then->length != now->length && now->lines)
        tess_note("resuming with another data.seq_length: %lld, it was %lld", (long long)now->length,
                  (long long)then->length);
    if (then->length != now->length && !now->lines) {
        const int64_t tokens = at->samples * then->length;
        at->samples = tokens / now->length;
        tess_note("resuming with another data.seq_length: %lld, it was %lld; the data goes on after as many tokens, at "
                  "sample %lld",
                  (long long)now->length, (long long)then->length, (long long)at->samples);
    }
    if (then->shuffle != now->shuffle)
        tess_note("resuming with data.shuffle %s, it was %s: samples of this epoch may come twice or not at all",
                  now->shuffle ? "true" : "false", then->shuffle ? "true" : "false");
    if (then->batch != now->batch)
        tess_note("resuming with another train_batch_size: %lld, it was %lld", (long long)now->batch,
                  (long long)then->batch);
    if (then->frozen != now->frozen) {
        const long long before = then->frozen ? then->trained : now->parameters;
        tess_note(
            "resuming with another freeze: %lld of %lld parameters are trained, it was %lld; moments of parameters "
            "that were frozen begin at zero",
            (long long)now->trained, (long long)now->parameters, before);
    }
    if (strcmp(in, was_in)) tess_note("resuming in %s, the checkpoint's run was in %s", in, was_in);
    if (then->steps != now->steps)
        tess_note("resuming with another number of steps: %lld, it was %lld%s", (long long)now->steps,
                  (long long)then->steps,
                  then->schedule_steps != now->schedule_steps ? "; the learning rate now decays to this end" : "");
    else if (then->schedule_steps != now->schedule_steps)
        tess_note("resuming with another end of the learning rate's decay: step %lld, it was %lld",
                  (long long)now->schedule_steps, (long long)then->schedule_steps);
}

/* ---- where it goes on ---- */

static bool stopped_early(const tess_config *c, const tess_progress *at)
{
    return c->early_stop.patience > 0 && at->worse >= c->early_stop.patience;
}

static tess_status go_on(const tess_run *r, const tess_run_facts *now, tess_beginning *b)
{
    const tess_config *c = r->c;
    tess_progress *at = &b->at;
    if (at->seed != (uint64_t)c->seed)
        return tess_error(TESS_INVALID, c->checkpoint.dir,
                          "the run to go on from has seed %llu, the configuration %lld", (unsigned long long)at->seed,
                          (long long)c->seed);
    const tess_optimizer o = r->conf.optimizer;
    TESS_TRY(tess_checkpoint_same_optimizer(c->checkpoint.dir, at, tess_optimizer_kind_of(&o)->name,
                                            tess_optimizer_moments(&o)));
    TESS_TRY(check_model(r, at->step, false));
    tess_checkpoint_tidy(
        &(tess_checkpoint_conf){.dir = c->checkpoint.dir, .keep = c->checkpoint.keep, .best = c->checkpoint.keep_best},
        at->best_step);
    const bool over = at->step >= c->steps || stopped_early(c, at);
    if (over && (at->step > c->steps || model_is_of(c, at->step))) {
        b->done = true;
        printf("nothing to do: %s is at step %lld of %lld%s, and %s/model is there%s\n", c->checkpoint.dir,
               (long long)at->step, (long long)c->steps, at->step < c->steps ? ", where early_stop ended the run" : "",
               c->output, at->step < c->steps ? "" : " (a larger steps goes on)");
        return TESS_OK;
    }
    tess_note("resuming from %s after step %lld", c->checkpoint.dir, (long long)at->step);
    TESS_TRY(check_model(r, at->step, true));
    if (at->keeping != o.keeping && tess_optimizer_moments(&o) > 0)
        tess_note("resuming with optimizer_states %s, the checkpoint's run had %s: %s", tess_keeping_name(o.keeping),
                  tess_keeping_name(at->keeping),
                  o.keeping == TESS_KEEP_F32 ? "its moments go on as they are" : "its moments are rounded");
    say_differences(&at->told, now, at);
    if (c->checkpoint.keep_best && at->best_step) {
        TESS_FREED char *best = tess_checkpoint_path(c->checkpoint.dir, at->best_step);
        if (!tess_states_whole(best)) at->best_step = 0; /* what is not there cannot be kept */
    }
    return TESS_OK;
}

static tess_status look(const tess_run *r, const tess_run_facts *now, tess_beginning *b)
{
    const tess_config *c = r->c;
    struct timespec written;
    if (!c->checkpoint.dir || !c->checkpoint.resume) return TESS_OK; /* what there is was refused, or will be removed */
    TESS_TRY((c->checkpoint.resume == TESS_RESUME_WHOLE ? tess_checkpoint_find_whole
                                                        : tess_checkpoint_find)(c->checkpoint.dir, &b->at, &b->found));
    if (b->found) {
        const tess_status status = go_on(r, now, b);
        if (status == TESS_INVALID) tess_checkpoint_name_whole(c->checkpoint.dir, b->at.step);
        return status;
    }
    if (!c->overwrite && tess_report_last(c->output) >= c->steps && model_time(c, &written) && written.tv_sec) {
        b->done = true;
        printf("nothing to do: %s holds no checkpoint, but %s the metrics of step %lld of %lld and its model "
               "(overwrite=true trains it again)\n",
               c->checkpoint.dir, c->output, (long long)tess_report_last(c->output), (long long)c->steps);
    } else {
        tess_note("%s holds no checkpoint to resume from: the run starts at step 1", c->checkpoint.dir);
    }
    return TESS_OK;
}

tess_status tess_resume_find(const tess_run *r, const tess_run_facts *now, tess_beginning *b)
{
    *b = (tess_beginning){.at = {.seed = (uint64_t)r->c->seed}};
    TESS_TRY(tess_ranks_agree(tess_rank() ? TESS_OK : look(r, now, b)));
    tess_ranks_tell(b, sizeof *b);
    b->at.told = *now;
    return TESS_OK;
}
