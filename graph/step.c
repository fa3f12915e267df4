/* A step at run time: feeding inputs, running the program, reading the loss, and saying what was not finite. */
#include "lower_impl.h"
#include "plan/plan.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct tess_step {
    tess_graph *g; /* NULL: it was freed */
    const tess_tensor *output;
    tess_step_conf conf;
    tess_lowered low;
    int tensors;             /* of the graph, when the step was made */
    int64_t targets;         /* that count, as fed last */
    int32_t **fed;           /* [tensor]: the values fed last, for looking into a failure; NULL: none yet */
    tess_env env;            /* of the last run, by which its updates are made, if they come late */
    tess_env before;         /* of the run before it */
    bool pending;            /* they are yet to come */
    bool ran;                /* in this session */
    tess_step *next, **link; /* of the graph's steps */
};

tess_status tess_step_new(tess_tensor *output, const tess_step_conf *conf, tess_step **step)
{
    static const tess_step_conf preset;
    if (!step) return tess_error(TESS_INVALID, "step", "there is no place for it (the last argument is NULL)");
    *step = NULL;
    if (!output) return tess_check_null_output();
    if (!conf) conf = &preset;
    tess_graph *g = output->g;
    if (g->failed) {
        tess_check_forget();
        return tess_error(TESS_INVALID, "graph", "%s", g->error);
    }
    TESS_TRY(tess_check_step(output, conf));
    if (conf->train && output->kind != TESS_KIND_LOSS)
        return tess_error(TESS_INVALID, output->name, "is no loss (training needs the result of tess_cross_entropy)");
    if (conf->micro > 0 && conf->micro % g->conf.grid.data)
        return tess_error(TESS_INVALID, "step", "%lld micro-batches cannot be shared out evenly over %d ranks",
                          (long long)conf->micro, g->conf.grid.data);
    if (output->kind != TESS_KIND_LOSS && g->conf.grid.pipeline * g->conf.grid.tensor > 1)
        return tess_error(TESS_INVALID, output->name, "is no loss (a model over several ranks has no other output)");
    TESS_TRY(tess_pipeline_check(g));
    tess_graph_ready(g);
    tess_step *s = tess_alloc(sizeof *s);
    s->g = g;
    s->output = output;
    s->conf = *conf;
    if (s->conf.micro < 1) s->conf.micro = g->conf.grid.data;
    s->tensors = g->tensors;
    s->fed = tess_alloc((size_t)g->tensors * sizeof *s->fed);
    s->next = g->steps;
    s->link = &g->steps;
    if (g->steps) g->steps->link = &s->next;
    g->steps = s;
    tess_lower_step(output, &s->conf, &s->low);
    const tess_program *p = s->low.program;
    if (p->too_large) {
        tess_error(TESS_INVALID, p->of,
                   "a tile of %s, which is too large (at most %s; lower tile_rows, loss_rows or "
                   "tile_elements)",
                   tess_human_bytes((double)p->too_large), tess_human_bytes((double)TESS_TILE_MOST));
        tess_step_free(s);
        return TESS_INVALID;
    }
    *step = s;
    return TESS_OK;
}

/* ---- late updates ---- */

/* The graph whose parameters g's are. */
static tess_graph *owner(const tess_graph *g)
{
    return g->params ? g->param[0]->held->storage->g : (tess_graph *)g;
}

static void forget_pending(tess_step *s)
{
    if (s->pending) owner(s->g)->pending = NULL;
    s->pending = false;
}

tess_status tess_settle(const tess_graph *g, const tess_step *but)
{
    tess_step *s = owner(g)->pending;
    if (!s || s == but) return TESS_OK;
    s->before = s->env;
    s->before.before = NULL;
    forget_pending(s);
    tess_env_set(&(tess_env){.before = &s->before});
    TESS_TRY(tess_program_run(s->low.updates, true));
    return tess_wait();
}

/* Says which gradient is not finite; the updates, which would say so, come too late. */
static tess_status name_gradient(const tess_step *s)
{
    for (int k = 0; k < s->g->params; k++)
        for (int64_t i = 0; i < s->g->param[k]->held->states; i++) {
            void *square;
            tess_tile *norm = s->g->param[k]->held->state[i].norm;
            TESS_TRY(tess_tile_map(norm, TESS_R, &square));
            bool finite = isfinite(tess_exact_value(square));
            tess_tile_unmap(norm);
            if (!finite) return tess_error(TESS_FAILED, s->g->param[k]->name, "the gradient is not finite");
        }
    if (tess_grid_size(&s->g->conf.grid) > 1) return TESS_OK; /* it is another rank's */
    return tess_error(TESS_FAILED, "gradient norm", "is not finite, yet every gradient's is");
}

/* ---- a step and its graph ---- */

static void leave_graph(tess_step *s)
{
    if (!s->link) return;
    *s->link = s->next;
    if (s->next) s->next->link = s->link;
    s->link = NULL;
}

void tess_steps_orphan(tess_graph *g)
{
    while (g->steps) {
        tess_step *s = g->steps;
        forget_pending(s);
        leave_graph(s);
        s->g = NULL;
    }
}

static void forget_inputs(tess_step *s)
{
    for (int k = 0; k < s->tensors; k++) {
        free(s->fed[k]);
        s->fed[k] = NULL;
    }
}

void tess_steps_forget(tess_graph *g)
{
    for (tess_step *s = g->steps; s; s = s->next) {
        forget_pending(s);
        forget_inputs(s);
        s->ran = false;
    }
}

/* The step is one, and its graph is there. */
static tess_status check_step(const tess_step *s)
{
    if (!s) return tess_error(TESS_INVALID, "step", "is NULL");
    return s->g ? TESS_OK : tess_error(TESS_INVALID, "step", "its graph was freed");
}

/* ---- making and feeding ---- */

void tess_step_free(tess_step *s)
{
    if (!s) return;
    if (s->g) forget_pending(s);
    leave_graph(s);
    forget_inputs(s);
    free(s->fed);
    tess_program_free(s->low.updates);
    tess_program_free(s->low.program);
    free(s);
}

/* The input that a loss takes its targets from; NULL without a loss. */
static const tess_tensor *targets_of(const tess_step *s)
{
    return s->output->kind == TESS_KIND_LOSS ? s->output->producer->in[s->output->producer->op->targets] : NULL;
}

void tess_step_share(const tess_step *s, int64_t *first, int64_t *count)
{
    *first = *count = 0;
    if (!s || !s->g) return;
    tess_grid_share(&s->g->conf.grid, s->conf.micro, first, count);
}

static tess_status check_input(const tess_step *s, const tess_tensor *input)
{
    TESS_TRY(check_step(s));
    if (!input) return tess_error(TESS_INVALID, "step", "the input to feed is NULL");
    if (input->g != s->g) return tess_error(TESS_INVALID, input->name, "is of another graph than the step");
    if (input->kind != TESS_KIND_INPUT)
        return tess_error(TESS_INVALID, input->name, "is %s (only inputs are fed)",
                          input->kind == TESS_KIND_PARAM ? "a parameter" : "what an op makes");
    if (input->id >= s->tensors)
        return tess_error(TESS_INVALID, input->name, "is younger than the step (make the step after all inputs)");
    return TESS_OK;
}

int64_t tess_step_values(const tess_step *s, const tess_tensor *input)
{
    int64_t first, micros;
    if (check_input(s, input) != TESS_OK) return 0;
    tess_step_share(s, &first, &micros);
    return micros * input->dim[0] * input->dim[1];
}

tess_status tess_step_feed_values(tess_step *s, const tess_tensor *input, const int32_t *values, int64_t count)
{
    TESS_TRY(check_input(s, input));
    const int64_t total = tess_step_values(s, input);
    if (count != total)
        return tess_error(TESS_INVALID, input->name, "%lld values, but a step takes %lld of it (%lld,%lld)%s",
                          (long long)count, (long long)total, (long long)input->dim[0], (long long)input->dim[1],
                          total > input->dim[0] * input->dim[1] ? " in each micro-batch" : "");
    return tess_step_feed(s, input, values);
}

tess_status tess_step_feed(tess_step *s, const tess_tensor *input, const int32_t *values)
{
    TESS_TRY(check_input(s, input));
    TESS_TRY(tess_check_session(s->g));
    if (!values) return tess_error(TESS_INVALID, input->name, "its values are NULL");
    int64_t first, micros;
    tess_step_share(s, &first, &micros);
    int64_t total = micros * input->dim[0] * input->dim[1];
    TESS_TRY(tess_check_ids(input, values, total));
    int32_t *copy = s->fed[input->id] = tess_realloc(s->fed[input->id], (size_t)total * sizeof *copy);
    if (copy != values) memcpy(copy, values, (size_t)total * sizeof *copy);
    for (int64_t m = 0; m < micros * s->low.row_tiles; m++) {
        tess_tile *t = s->low.input[input->id][m];
        TESS_TRY(tess_tile_write(t, 0, values, tess_tile_bytes(t)));
        values += tess_tile_bytes(t) / sizeof *values;
    }
    if (input != targets_of(s)) return TESS_OK;
    s->targets = 0;
    for (int64_t i = 0; i < total; i++) s->targets += copy[i] >= 0;
    return TESS_OK;
}

/* Moments begin at zero, the first time a parameter is trained. */
static tess_status prepare_moments(tess_graph *g)
{
    for (int k = 0; k < g->params; k++)
        for (int64_t i = 0; i < g->param[k]->held->states; i++) {
            struct tess_state *t = &g->param[k]->held->state[i];
            for (int m = 0; m < 2; m++) {
                if (t->begun[TESS_MOMENT1 + m]) continue;
                TESS_TRY(tess_param_fill(g, t->moment[m], 0));
                t->begun[TESS_MOMENT1 + m] = true;
            }
        }
    return tess_wait();
}

static void set_env(tess_step *s, const tess_step_input *in, int64_t targets, bool train)
{
    const tess_optimizer *o = &s->conf.optimizer;
    double beta1 = in->beta1 > 0 ? in->beta1 : o->beta1, beta2 = in->beta2 > 0 ? in->beta2 : o->beta2;
    s->before = s->env;
    s->before.before = NULL;
    s->env = (tess_env){
        .seed = in->seed,
        .step = in->step,
        .train = train,
        .lr = in->lr,
        .beta1 = beta1,
        .beta2 = beta2,
        .bias1 = 1 - pow(beta1, (double)in->step + 1),
        .bias2 = 1 - pow(beta2, (double)in->step + 1),
        .eps = o->eps,
        .weight_decay = o->weight_decay,
        .clip = o->clip,
        .loss_scale = targets ? 1.0f / (float)targets : 0,
        .before = &s->before,
    };
    tess_env_set(&s->env);
}

/* The forward pass of the same step again, every value checked: its failure names the first that is not finite. The
 * weights are those the step began with, since the optimizer does nothing when the loss is not finite. */
static tess_status look_into(const tess_step *s, const tess_step_input *in, double loss)
{
    tess_step_conf conf = {.micro = s->conf.micro, .check_finite = true, .optimizer = s->conf.optimizer};
    char where[48];
    snprintf(where, sizeof where, "step %lld", (long long)in->step);
    tess_step *check;
    TESS_TRY(tess_step_new((tess_tensor *)s->output, &conf, &check));
    tess_status found = TESS_OK;
    for (int k = 0; k < s->g->tensors && found == TESS_OK; k++)
        if (s->fed[k]) found = tess_step_feed(check, s->g->tensor[k], s->fed[k]);
    set_env(check, in, check->targets, s->conf.train);
    if (found == TESS_OK) found = tess_program_run(check->low.program, false);
    if (found == TESS_OK) found = tess_wait();
    found = tess_ranks_agree(found);
    tess_step_free(check);
    if (found == TESS_OK)
        return tess_error(TESS_FAILED, where, "the loss is %g, yet every value of the forward pass is finite", loss);
    char cause[600];
    snprintf(cause, sizeof cause, "%s", tess_error_text());
    return tess_error(TESS_FAILED, where,
                      "the loss is %g; the first tensor that is not finite: %s (a lower learning rate "
                      "or gradient clipping may help)",
                      loss, cause);
}

/* The failure of a task, with the step that it happened in before it. */
static tess_status in_step(const tess_step_input *in, tess_status status)
{
    char where[48];
    snprintf(where, sizeof where, "step %lld", (long long)in->step);
    return tess_error(status, where, "%s", tess_error_text());
}

/* All that this rank can see before it begins. */
static tess_status check_ready(const tess_step *s, const tess_step_input *in)
{
    const tess_grid *grid = &s->g->conf.grid;
    const tess_tensor *targets = targets_of(s);
    TESS_TRY(tess_check_session(s->g));
    if (tess_grid_size(grid) > 1 && grid->rank != tess_rank())
        return tess_error(TESS_INVALID, "grid", "rank %d, but this is rank %d of the run", grid->rank, tess_rank());
    for (int k = 0; k < s->tensors; k++) {
        const tess_tensor *t = s->g->tensor[k];
        if (t->kind == TESS_KIND_INPUT && (s->low.uses[k] || t == targets) && !s->fed[k])
            return tess_error(TESS_INVALID, t->name, "was not fed (tess_step_feed gives it the values of a step)");
    }
    TESS_TRY(tess_check_params(s->g, s->low.uses));
    if (s->conf.train && !(in->step >= 0 && isfinite(in->lr)))
        return tess_error(TESS_INVALID, "step",
                          "number %lld with the learning rate %g (the first is 0, the rate finite)",
                          (long long)in->step, in->lr);
    return TESS_OK;
}

/* The same on all ranks, which say with it how many targets they have. */
static tess_status agree_to_run(const tess_step *s, const tess_step_input *in, int64_t *targets)
{
    const tess_grid *grid = &s->g->conf.grid;
    tess_status status = check_ready(s, in);
    if (tess_grid_size(grid) == 1) {
        *targets = s->targets;
        return status;
    }
    int64_t sum[] = {s->targets, status != TESS_OK};
    tess_ranks_sum_counts(sum, 2);
    *targets = sum[0] / (grid->pipeline * grid->tensor);
    return sum[1] ? tess_ranks_agree(status) : TESS_OK;
}

tess_status tess_step_run(tess_step *s, const tess_step_input *in, tess_step_result *out)
{
    static const tess_step_input preset;
    tess_step_result unread;
    int64_t targets;
    if (!out) out = &unread;
    *out = (tess_step_result){0};
    TESS_TRY(check_step(s));
    const tess_grid *grid = &s->g->conf.grid;
    if (!in && s->conf.train) return tess_error(TESS_INVALID, "step", "training needs a tess_step_input, it is NULL");
    if (!in) in = &preset;
    if (tess_grid_size(grid) > 1 && tess_grid_size(grid) != tess_ranks())
        return tess_error(TESS_INVALID, "grid", "%d ranks, but %d run (start the program with mpirun -n %d)",
                          tess_grid_size(grid), tess_ranks(), tess_grid_size(grid));
    TESS_TRY(agree_to_run(s, in, &targets));
    *out = (tess_step_result){.targets = targets};
    s->ran = true;
    bool trains = s->conf.train && !s->conf.keep_gradients;
    TESS_TRY(tess_settle(s->g, s));
    if (trains) TESS_TRY(prepare_moments(s->g));
    set_env(s, in, targets, s->conf.train);
    TESS_TRY(tess_program_run(s->low.program, s->pending));
    forget_pending(s);
    tess_status status = tess_wait();
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
    out->grad_norm = sqrt(square);
    if (!s->low.updates) return TESS_OK;
    if (!isfinite(square)) {
        status = name_gradient(s);
        return in_step(in, tess_grid_size(grid) > 1 ? tess_ranks_agree(status) : status);
    }
    s->pending = true;
    owner(s->g)->pending = s;
    return TESS_OK;
}

/* Copies `n` elements of a tile out as floats. */
static tess_status read_floats(tess_tile *t, tess_dtype type, float *out, int64_t n)
{
    void *p;
    TESS_TRY(tess_tile_map(t, TESS_R, &p));
    if (type == TESS_F32)
        memcpy(out, p, (size_t)n * sizeof *out);
    else
        for (int64_t i = 0; i < n; i++) out[i] = tess_from_bf16(((tess_bf16 *)p)[i]);
    tess_tile_unmap(t);
    return TESS_OK;
}

static tess_status check_ran(const tess_step *s)
{
    TESS_TRY(tess_check_session(s->g));
    return s->ran ? TESS_OK : tess_error(TESS_INVALID, "step", "was not run yet (tess_step_run comes first)");
}

tess_status tess_step_output(tess_step *s, float *values)
{
    TESS_TRY(check_step(s));
    if (s->output->kind != TESS_KIND_ACTIVATION)
        return tess_error(TESS_INVALID, s->output->name, "is a loss, which tess_step_run returns");
    TESS_TRY(check_ran(s));
    tess_dtype type = s->g->conf.dtype;
    int64_t first, micros;
    tess_step_share(s, &first, &micros);
    for (int64_t m = 0; m < micros * s->low.row_tiles; m++) {
        int64_t n = (int64_t)(tess_tile_bytes(s->low.output[m]) / tess_dtype_size(type));
        TESS_TRY(read_floats(s->low.output[m], type, values, n));
        values += n;
    }
    return TESS_OK;
}

tess_status tess_step_gradient(tess_step *s, tess_tensor *param, float *values)
{
    TESS_TRY(check_step(s));
    if (!s->conf.keep_gradients || !s->conf.train)
        return tess_error(TESS_INVALID, "step", "keeps no gradients (tess_step_conf.train and .keep_gradients)");
    if (!param || param->kind != TESS_KIND_PARAM || param->g != s->g || param->id >= s->tensors)
        return tess_error(TESS_INVALID, param ? param->name : "step", "is no parameter of the step's graph");
    if (param->held->on.sliced || param->held->on.absent || !s->low.uses[param->id])
        return tess_error(TESS_INVALID, param->name, "this rank has no gradient of it, or only a part");
    TESS_TRY(check_ran(s));
    for (int64_t j = 0; j < param->cut->tiles; j++) {
        int64_t n = (int64_t)(tess_tile_bytes(param->held->tile[j].gradient) / sizeof(float));
        TESS_TRY(read_floats(param->held->tile[j].gradient, TESS_F32, values, n));
        values += n;
    }
    return TESS_OK;
}

/* The tiles of a parameter and its states that this rank holds, but for the gradients, in the order: weights, masters,
 * moments. */
static int64_t held_tiles(const tess_tensor *p, tess_tile **tile)
{
    int64_t n = 0;
    for (int64_t j = 0; j < p->cut->tiles; j++)
        if (p->held->tile[j].weight) tile[n++] = p->held->tile[j].weight;
    for (int64_t i = 0; i < p->held->states; i++)
        if (p->held->state[i].weight) tile[n++] = p->held->state[i].weight;
    for (int64_t i = 0; i < p->held->states; i++)
        if (p->held->state[i].master && p->held->state[i].master != p->held->state[i].weight)
            tile[n++] = p->held->state[i].master;
    for (int64_t i = 0; i < 2 * p->held->states; i++) tile[n++] = p->held->state[i / 2].moment[i % 2];
    return n;
}

static tess_tile **held(const tess_graph *g, int64_t *n)
{
    int64_t most = 0;
    for (int k = 0; k < g->params; k++) most += g->param[k]->cut->tiles + 4 * g->param[k]->held->states;
    tess_tile **tile = tess_alloc((size_t)(most + 1) * sizeof *tile);
    *n = 0;
    for (int k = 0; k < g->params; k++) *n += held_tiles(g->param[k], tile + *n);
    return tile;
}

void tess_step_plan(const tess_step *s, tess_plan *plan)
{
    *plan = (tess_plan){0};
    int64_t n;
    tess_tile **tile = held(s->g, &n);
    uint64_t on_gpu[TESS_ROLE_COUNT] = {0};
    for (int64_t i = 0; i < n; i++) {
        const tess_role r = tess_tile_role(tile[i]);
        const tess_tier home = tess_tile_home(tile[i]);
        if (!s->conf.train && r == TESS_ROLE_MOMENT) continue;
        uint64_t *const by_home[] = {
            [TESS_TIER_GPU] = on_gpu, [TESS_TIER_CPU] = plan->stays, [TESS_TIER_DISK] = plan->on_disk};
        plan->resident[r] += tess_tile_bytes(tile[i]);
        by_home[home][r] += tess_tile_bytes(tile[i]);
    }
    free(tile);
    tess_program_plan(s->low.program, plan);
    for (int r = 0; r < TESS_ROLE_COUNT; r++) {
        plan->peak_total += plan->resident[r];
        plan->ram[r] += plan->resident[r] - on_gpu[r];
        plan->peak_ram += plan->resident[r] - on_gpu[r];
    }
}

/* Bytes of the parameters and their states that live on a tier, placed by the step that trains them. */
static uint64_t held_bytes(const tess_graph *g, tess_tier tier)
{
    uint64_t bytes = 0;
    int64_t n;
    tess_tile **tile = held(g, &n);
    for (int64_t i = 0; i < n; i++)
        if (tess_tile_home(tile[i]) == tier) bytes += tess_tile_bytes(tile[i]);
    free(tile);
    return bytes;
}

/* Nothing uses the masters but what loads and stores them; their bytes on disk. Moments there are none. */
static uint64_t states_to_disk(const tess_graph *g)
{
    uint64_t bytes = 0;
    int64_t n;
    tess_tile **tile = held(g, &n);
    for (int64_t i = 0; i < n; i++) {
        if (tess_tile_role(tile[i]) != TESS_ROLE_MASTER) continue;
        tess_tile_set_home(tile[i], TESS_TIER_DISK);
        bytes += tess_tile_bytes(tile[i]);
    }
    free(tile);
    return bytes;
}

tess_program *tess_step_program(const tess_step *s)
{
    return s->low.program;
}

static tess_status plan_ram(tess_step *s, const tess_place_conf *conf, uint64_t fixed, bool all, tess_placement *out)
{
    tess_program *p = s->low.program;
    tess_uses *u = tess_uses_list(p);
    tess_marks *m = tess_marks_new(u);
    const tess_status status = tess_plan_ram(u, conf, fixed + tess_program_fixed(p, conf->workers), all, m, out);
    if (status == TESS_OK) tess_marks_apply(p, u, m, TESS_TIER_CPU);
    tess_marks_free(m);
    tess_uses_free(u);
    return status;
}

static tess_status place(tess_step *s, const tess_place_conf *conf, tess_placement *out)
{
    if (s->conf.train) return plan_ram(s, conf, 0, true, out);
    if (!conf->alone) return plan_ram(s, conf, held_bytes(s->g, TESS_TIER_CPU), false, out);
    uint64_t states = states_to_disk(s->g);
    TESS_TRY(plan_ram(s, conf, 0, true, out));
    out->disk += states;
    return TESS_OK;
}

/* Where a tile lives is said before it holds anything. */
tess_status tess_check_place(const tess_graph *of)
{
    const tess_graph *g = owner(of);
    bool holds = false;
    for (int k = 0; k < g->params; k++)
        for (int64_t i = 0; i < g->param[k]->held->states; i++)
            holds |= g->param[k]->held->state[i].begun[TESS_MASTER] && g->session == tess_session();
    if (!holds) return TESS_OK;
    return tess_error(TESS_INVALID, "step", "comes too late to be placed (before anything is drawn, loaded or run)");
}

static tess_status check_place(const tess_step *s, const void *conf, const void *out, bool all)
{
    TESS_TRY(check_step(s));
    if (!conf || !out)
        return tess_error(TESS_INVALID, "step", "is to be placed, but %s is NULL", conf ? "out" : "conf");
    if (s->ran && owner(s->g)->session == tess_session())
        return tess_error(TESS_INVALID, "step",
                          "comes too late to be placed (before anything is drawn, loaded or run)");
    return all ? tess_check_place(s->g) : TESS_OK;
}

void tess_step_note_disk(tess_step *s, bool all, uint64_t bytes)
{
    tess_graph *const g[] = {s->g, owner(s->g)};
    for (int k = 0; k < 2; k++) g[k]->on_disk = bytes > 0 || (!all && g[k]->on_disk);
}

tess_status tess_step_place(tess_step *s, const tess_place_conf *conf, tess_placement *out)
{
    const bool all = s && conf && (s->conf.train || conf->alone);
    TESS_TRY(check_place(s, conf, out, all));
    tess_status status = place(s, conf, out);
    tess_step_note_disk(s, all, status == TESS_OK ? out->disk : 0);
    return status;
}

/* A step beside the one that trains makes room as it goes, where it has too little. */
tess_status tess_step_place_gpu(tess_step *s, const tess_gpu_conf *conf, tess_gpu_placement *out)
{
    TESS_TRY(check_place(s, conf, out, conf && conf->all));
    tess_program *p = s->low.program;
    tess_gpu_conf rest = *conf;
    const uint64_t taken = conf->all ? 0 : held_bytes(s->g, TESS_TIER_GPU);
    rest.memory = conf->memory > taken ? conf->memory - taken : 0;
    tess_uses *u = tess_uses_list(p);
    tess_marks *m = tess_marks_new(u);
    const tess_status status = tess_plan_gpu(u, &rest, tess_program_fixed(p, 1), m, out);
    if (status == TESS_OK || !conf->all) tess_marks_apply(p, u, m, TESS_TIER_GPU);
    tess_marks_free(m);
    tess_uses_free(u);
    return status;
}

void tess_step_forecast(const tess_step *s, const tess_rates *rates, uint64_t room, int workers, tess_forecast *out)
{
    tess_uses *u = tess_uses_list(s->low.program);
    tess_marks *m = tess_marks_read(s->low.program, u);
    tess_plan_simulate(u, m, rates, room, workers, out);
    tess_marks_free(m);
    tess_uses_free(u);
}
