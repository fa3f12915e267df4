/* What goes into a step and comes out: inputs are fed, outputs and gradients read. */
#include "graph/step/step_impl.h"
#include <stdlib.h>
#include <string.h>

const tess_tensor *tess_step_targets(const tess_step *s, int loss)
{
    const tess_tensor *t = s->output->kind == TESS_KIND_LOSS ? s->output : NULL;
    for (int k = tess_losses_of(t); t && k > loss + 1; k--) t = t->producer->in[4];
    if (!t || loss >= tess_losses_of(t) || !t->producer->op->targets) return NULL;
    return t->producer->in[t->producer->op->targets];
}

void tess_step_share(const tess_step *s, int64_t *first, int64_t *count)
{
    int64_t from = 0, n = 0;
    if (s && s->g) tess_grid_share(&s->g->conf.grid, &s->conf, tess_grid_data(&s->g->conf.grid), &from, &n);
    if (first) *first = from;
    if (count) *count = n;
}

static tess_status check_input(const tess_step *s, const tess_tensor *input)
{
    TESS_TRY(tess_step_check(s));
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

const char *tess_step_shares(const tess_step *s)
{
    const struct tess_spans *cut = &s->low.cut;
    if (cut->ranks == 1) return NULL;
    return !cut->ring ? "heads for spans" : cut->zigzag ? "keys and values, early and late ones" : "keys and values";
}

static bool is_cut(const tess_step *s, const tess_tensor *input)
{
    return s->low.cut.rows && input->dim[1] == s->low.cut.length;
}

/* Where the m-th row tile of this rank's has its values of the input among those of its micro-batches. */
static int64_t first_value(const tess_step *s, const tess_tensor *input, int64_t m)
{
    const struct tess_spans *cut = &s->low.cut;
    const int64_t micro = m / s->low.row_tiles, i = m % s->low.row_tiles;
    if (tess_is_whole(input)) return micro * input->dim[1];
    const int64_t sequence = micro * s->g->batch + i / cut->here * s->g->tile_sequences;
    return sequence * input->dim[1] +
           (is_cut(s, input) ? tess_span_at(cut, cut->place, i % cut->here, cut->here) * cut->rows : 0);
}

/* Of ranks that share sequences one has the targets of each that are not by rows; the m-th row tile is of one. */
static bool counts_sequence(const tess_step *s, int64_t m)
{
    const struct tess_spans *cut = &s->low.cut;
    return cut->ranks == 1 || tess_spans_owner(cut, m % s->low.row_tiles / cut->here, NULL) == cut->place;
}

/* Room for what is fed. What a run under way was fed with is kept until that has ended well. */
static int32_t *room_of(tess_step *s, const tess_tensor *input, size_t bytes)
{
    int32_t **now = &s->fed[input->id], **before = &s->fed_before[input->id];
    if (!tess_step_runs(s) || *before) return tess_realloc(*now, bytes);
    *before = *now;
    return tess_alloc(bytes);
}

tess_status tess_step_feed(tess_step *s, const tess_tensor *input, const int32_t *values)
{
    TESS_TRY(check_input(s, input));
    TESS_TRY(tess_check_session(s->g));
    if (!values) return tess_error(TESS_INVALID, input->name, "its values are NULL");
    if (s->begun - s->ended > 1)
        return tess_error(TESS_INVALID, input->name, "two runs are under way (tess_step_end waits for the first)");
    int64_t first, micros;
    tess_step_share(s, &first, &micros);
    int64_t total = micros * input->dim[0] * input->dim[1];
    TESS_TRY(tess_check_ids(input, values, total));
    int32_t *copy = s->fed[input->id] = room_of(s, input, (size_t)total * sizeof *copy);
    if (copy != values) memcpy(copy, values, (size_t)total * sizeof *copy);
    int64_t counted = 0;
    for (int64_t m = 0; m < micros * s->low.row_tiles; m++) {
        tess_tile *t = s->low.input[input->id][m];
        if (!t || (m && t == s->low.input[input->id][m - 1])) continue; /* one a micro-batch, or a sequence */
        if (tess_step_runs(s)) tess_tile_turn(t);
        const int64_t at = first_value(s, input, m), n = (int64_t)(tess_tile_bytes(t) / sizeof *values);
        TESS_TRY(tess_tile_write(t, 0, copy + at, tess_tile_bytes(t)));
        const bool counts = is_cut(s, input) || counts_sequence(s, m);
        for (int64_t i = at; i < at + n && counts; i++) counted += copy[i] >= 0;
    }
    for (int k = 0; k < TESS_MOST_LOSSES; k++)
        if (input == tess_step_targets(s, k)) s->targets[k] = counted;
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
        for (int64_t i = 0; i < n; i++) out[i] = tess_from_half(type, ((uint16_t *)p)[i]);
    tess_tile_unmap(t);
    return TESS_OK;
}

static tess_status check_ran(const tess_step *s)
{
    TESS_TRY(tess_check_session(s->g));
    return s->ran ? TESS_OK : tess_error(TESS_INVALID, "step", "was not run yet (tess_step_run comes first)");
}

static tess_dtype output_dtype(const tess_step *s)
{
    const bool wide = s->output->nd ? !s->output->nd->narrow : s->output->wide;
    return wide ? TESS_F32 : s->g->conf.dtype;
}

int64_t tess_step_outputs(const tess_step *s)
{
    int64_t first, micros, bytes = 0;
    tess_step_share(s, &first, &micros);
    for (int64_t m = 0; m < micros * s->low.row_tiles; m++)
        if (s->low.output[m]) bytes += (int64_t)tess_tile_bytes(s->low.output[m]);
    return bytes / (int64_t)tess_dtype_size(output_dtype(s));
}

tess_status tess_step_output(tess_step *s, float *values)
{
    TESS_TRY(tess_step_check(s));
    if (s->output->kind != TESS_KIND_ACTIVATION)
        return tess_error(TESS_INVALID, s->output->name, "is a loss, which tess_step_run returns");
    if (!values) return tess_error(TESS_INVALID, s->output->name, "the room for its values is NULL");
    TESS_TRY(check_ran(s));
    const tess_dtype type = output_dtype(s);
    int64_t first, micros;
    tess_step_share(s, &first, &micros);
    for (int64_t m = 0; m < micros * s->low.row_tiles; m++) {
        if (!s->low.output[m]) continue; /* one a sequence */
        int64_t n = (int64_t)(tess_tile_bytes(s->low.output[m]) / tess_dtype_size(type));
        TESS_TRY(read_floats(s->low.output[m], type, values, n));
        values += n;
    }
    return TESS_OK;
}

int tess_step_losses(const tess_step *s)
{
    return s->output->kind == TESS_KIND_LOSS ? tess_losses_of(s->output) : 0;
}

int tess_step_numbers(const tess_step *s)
{
    return s->output->kind == TESS_KIND_LOSS ? (int)tess_numbers_of(s->output, s->conf.train) : 0;
}

tess_status tess_step_add_losses(const tess_step *s, void *sums)
{
    TESS_TRY(tess_step_check(s));
    if (!s->low.losses_exact) return tess_error(TESS_INVALID, s->output->name, "is no loss");
    TESS_TRY(check_ran(s));
    void *sum;
    TESS_TRY(tess_tile_map(s->low.losses_exact, TESS_R, &sum));
    for (size_t k = 0; k < 2 * (size_t)(tess_step_losses(s) + tess_step_numbers(s)); k++)
        tess_exact_merge((char *)sums + k * tess_exact_bytes(), (const char *)sum + k * tess_exact_bytes());
    tess_tile_unmap(s->low.losses_exact);
    return TESS_OK;
}

int tess_step_loss_parts(const tess_step *s)
{
    return s->low.nlosses;
}

tess_status tess_step_part_losses(const tess_step *s, double *values)
{
    TESS_TRY(tess_step_check(s));
    TESS_TRY(check_ran(s));
    for (int k = 0; k < s->low.nlosses; k++) {
        void *part;
        const size_t bytes = tess_tile_bytes(s->low.losses[k]);
        TESS_TRY(tess_tile_map(s->low.losses[k], TESS_R, &part));
        memcpy(values, part, bytes);
        tess_tile_unmap(s->low.losses[k]);
        values += bytes / sizeof *values;
    }
    return TESS_OK;
}

tess_status tess_step_gradient(tess_step *s, tess_tensor *param, float *values)
{
    TESS_TRY(tess_step_check(s));
    if (!s->conf.keep_gradients || !s->conf.train)
        return tess_error(TESS_INVALID, "step", "keeps no gradients (tess_step_conf.train and .keep_gradients)");
    if (!param || param->kind != TESS_KIND_PARAM || param->g != s->g || param->id >= s->tensors)
        return tess_error(TESS_INVALID, param ? param->name : "step", "is no parameter of the step's graph");
    if (tess_is_frozen(param)) return tess_error(TESS_INVALID, param->name, "is frozen: it has no gradient");
    if (param->held->on.sliced || param->held->on.absent)
        return tess_error(TESS_INVALID, param->name, "this rank has no gradient of it, or only a part");
    if (!values) return tess_error(TESS_INVALID, param->name, "the room for its gradient is NULL");
    TESS_TRY(check_ran(s));
    if (!s->low.uses[param->id]) { /* the loss does not read it */
        memset(values, 0, (size_t)(param->dim[0] * param->dim[1]) * sizeof *values);
        return TESS_OK;
    }
    for (int64_t j = 0; j < param->cut->tiles; j++) {
        int64_t n = (int64_t)(tess_tile_bytes(param->held->tile[j].gradient) / sizeof(float));
        TESS_TRY(read_floats(param->held->tile[j].gradient, TESS_F32, values, n));
        values += n;
    }
    return TESS_OK;
}
