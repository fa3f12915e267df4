/* Scores of a teacher, see teacher_impl.h: of each place its likeliest tokens and their log-probabilities. A rank
 * scores its micro-batches, tells the others, and rank 0 writes, a sequence at a time. */
#include "models/train/loop/teacher_impl.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Whose the scores are, in the place of numbers: both halves of the data's sum, a sequence's tokens, those that are
 * kept of each place, and those that there are. */
enum { SUM, LENGTH = 2, TOP, VOCAB, FACTS };

static void facts_of(const tess_run *r, const tess_data *data, int32_t facts[static FACTS])
{
    const uint64_t sum = tess_data_sum(data);
    memcpy(&facts[SUM], &sum, sizeof sum);
    facts[LENGTH] = (int32_t)r->length;
    facts[TOP] = (int32_t)r->c->distill.top_k;
    facts[VOCAB] = (int32_t)tess_model_vocab(r->model);
}

/* ---- scoring ---- */

/* The file that is made: of each sample the tokens of its places, and their log-probabilities. */
struct teaching {
    tess_run r; /* the teacher's */
    tess_step *step;
    const tess_data *data;
    tess_safetensors_writer *to;
    size_t tokens, logprobs;
};

static tess_status write_sample(const struct teaching *t, uint64_t sample, const float *row)
{
    const int64_t T = t->r.length, k = t->r.c->distill.top_k, wide = 2 + 2 * k;
    TESS_FREED int32_t *token = tess_alloc((size_t)(T * k) * sizeof *token);
    TESS_FREED float *logprob = tess_alloc((size_t)(T * k) * sizeof *logprob);
    tess_status status = TESS_OK;
    for (int64_t i = 0; i < T * k; i++) {
        const float *of = row + i / k * wide;
        logprob[i] = (float)((double)of[2 + i % k] - (double)of[0] - log((double)of[1]));
        token[i] = (int32_t)of[2 + k + i % k];
        if (isfinite(logprob[i]) || status != TESS_OK) continue;
        status = tess_error(TESS_INVALID, "distill.teacher", "sample %llu: a log-probability is %g",
                            (unsigned long long)sample, (double)logprob[i]);
    }
    if (status == TESS_OK) status = tess_safetensors_write(t->to, t->tokens, (int64_t)sample, 1, 0, T * k, token);
    if (status == TESS_OK) status = tess_safetensors_write(t->to, t->logprobs, (int64_t)sample, 1, 0, T * k, logprob);
    return status;
}

/* Of a step's sequence as bits, those of another rank as the least number there is, so that all have all of it. */
static tess_status take_sample(const struct teaching *t, uint64_t sample, int64_t s, const float *rows, int64_t *bits)
{
    const int64_t each = t->r.length * (2 + 2 * t->r.c->distill.top_k);
    int64_t micro, micros;
    tess_step_share(t->step, &micro, &micros);
    const int64_t own = s - micro * t->r.micro_batch;
    TESS_FREED float *row = tess_alloc((size_t)each * sizeof *row);
    if (tess_ranks() == 1)
        memcpy(row, rows + own * each, (size_t)each * sizeof *row);
    else {
        for (int64_t i = 0; i < each; i++) {
            int32_t of = 0;
            const bool here = own >= 0 && own < micros * t->r.micro_batch;
            if (here) memcpy(&of, &rows[own * each + i], sizeof of);
            bits[i] = here ? of : INT64_MIN;
        }
        tess_ranks_most(bits, (int)each);
        for (int64_t i = 0; i < each; i++) memcpy(&row[i], &(int32_t){(int32_t)bits[i]}, sizeof *row);
    }
    return tess_rank() == 0 ? write_sample(t, sample, row) : TESS_OK;
}

static tess_status score_all(const struct teaching *t)
{
    const tess_run *r = &t->r;
    const uint64_t samples = tess_data_samples(t->data), batch = (uint64_t)(r->micro_batch * r->evaluated);
    TESS_FREED float *rows = tess_alloc((size_t)tess_step_outputs(t->step) * sizeof *rows);
    TESS_FREED int64_t *bits = tess_alloc((size_t)(r->length * (2 + 2 * r->c->distill.top_k)) * sizeof *bits);
    tess_status status = TESS_OK;
    tess_bar_begin("scoring by the teacher", (double)samples);
    for (uint64_t at = 0; at < samples; at += batch) {
        const int64_t n = samples - at < batch ? (int64_t)(samples - at) : (int64_t)batch;
        TESS_TRY_DONE(tess_ranks_agree(tess_run_feed_as(r, t->step, t->data, (tess_feeding){.plain = true}, at, n)));
        TESS_TRY_DONE(tess_step_run(t->step, &(tess_step_input){0}, NULL));
        TESS_TRY_DONE(tess_ranks_agree(tess_step_output(t->step, rows)));
        for (int64_t s = 0; s < n; s++)
            TESS_TRY_DONE(tess_ranks_agree(take_sample(t, at + (uint64_t)s, s, rows, bits)));
        tess_bar_step((double)n);
    }
done:
    tess_bar_end();
    return status;
}

/* ---- the teacher ---- */

static tess_status check(const tess_run *student, const struct teaching *t)
{
    const char *dir = student->c->distill.teacher;
    TESS_TRY(tess_run_need_weights(t->r.model));
    if (tess_tokenizer_sum(t->r.tokenizer) != tess_tokenizer_sum(student->tokenizer) ||
        (!tess_tokenizer_sum(student->tokenizer) && tess_model_vocab(t->r.model) != tess_model_vocab(student->model)))
        return tess_error(
            TESS_INVALID, "distill.teacher",
            "%s has another vocabulary than the model, which learns of the same tokens (a teacher has the "
            "model's tokenizer)",
            dir);
    return TESS_OK;
}

static tess_status load(struct teaching *t)
{
    TESS_TRY(tess_ranks_agree(tess_run_tiers(&t->r, NULL)));
    TESS_TRY(tess_ranks_agree(tess_run_eval_step(&t->r, true, &t->step)));
    TESS_TRY(tess_ranks_agree(tess_run_start(&t->r, false)));
    tess_bar_begin("loading the teacher", (double)tess_graph_param_elements(t->r.g));
    const tess_status status = tess_model_load(t->r.model, t->r.g, 0);
    tess_bar_end();
    return status;
}

/* The student's configuration with the teacher in the place of the model, as it is. */
static tess_config config_of(const tess_config *student)
{
    tess_config c = *student;
    c.model = c.distill.teacher;
    c.model_json = NULL;
    c.weights = 0;
    c.distill.teacher = NULL;
    c.data.valid = NULL;
    c.neftune_noise_alpha = 0;
    c.lora.r = c.lora.alpha = c.lora.dropout = TESS_CONFIG_AUTO;
    c.lora.targets = c.lora.modules_to_save = NULL;
    c.lora.from = NULL;
    c.lora.rslora = c.lora.dora = false;
    c.lora.base = 0; /* as stored */
    c.freeze = NULL;
    c.optimizer.groups = NULL;
    return c;
}

static tess_status make(const tess_run *student, const tess_data *data)
{
    const tess_config c = config_of(student->c);
    struct teaching t = {.data = data};
    const int64_t vocab = tess_model_vocab(student->model),
                  size[2] = {(int64_t)tess_data_samples(data), student->length * c.distill.top_k};
    int32_t facts[FACTS];
    tess_status status;
    TESS_TRY_DONE(tess_ranks_agree(tess_run_open_likeliest(&c, tess_rank(), vocab, &t.r)));
    TESS_TRY_DONE(tess_ranks_agree(check(student, &t)));
    if (!tess_rank())
        printf("teacher: %s is asked for %lld tokens of each place of %lld samples, %.1f MB\n", c.model,
               (long long)c.distill.top_k, (long long)size[0], 8e-6 * (double)size[0] * (double)size[1]);
    TESS_TRY_DONE(load(&t));
    facts_of(student, data, facts);
    t.to = tess_safetensors_writer_new(c.output, "teacher", UINT64_MAX);
    const size_t of = tess_safetensors_declare(t.to, "data", TESS_I32, 1, (int64_t[]){FACTS});
    t.tokens = tess_safetensors_declare(t.to, "tokens", TESS_I32, 2, size);
    t.logprobs = tess_safetensors_declare(t.to, "logprobs", TESS_F32, 2, size);
    status = tess_safetensors_writer_begin(t.to);
    if (status == TESS_OK && tess_rank() == 0) status = tess_safetensors_write(t.to, of, 0, FACTS, 0, 1, facts);
    status = tess_ranks_agree(status);
    if (status == TESS_OK) status = score_all(&t);
    status = tess_safetensors_writer_end(t.to, status);
done:
    tess_step_free(t.step);
    tess_run_close(&t.r);
    tess_stop();
    return status;
}

/* ---- the file ---- */

static tess_status use(tess_run *r, const char *path, const tess_data *data, tess_safetensors **file)
{
    static const char *const of[FACTS] = {
        [LENGTH] = "data.seq_length", [TOP] = "distill.top_k", [VOCAB] = "vocabulary"};
    int32_t facts[FACTS], met[FACTS];
    TESS_TRY(tess_safetensors_open(path, file));
    const tess_safetensor *said = tess_safetensors_find(*file, "data"),
                          *tokens = tess_safetensors_find(*file, "tokens"),
                          *logprobs = tess_safetensors_find(*file, "logprobs");
    const int64_t places = (int64_t)tess_data_samples(data) * r->length * r->c->distill.top_k;
    if (!said || said->bytes != sizeof met || said->dtype != TESS_ST_I32 || !tokens || tokens->dtype != TESS_ST_I32 ||
        !logprobs || logprobs->dtype != TESS_ST_F32)
        return tess_error(TESS_INVALID, path, "has no scores of a teacher (leave out --resume)");
    facts_of(r, data, facts);
    memcpy(met, said->data, sizeof met);
    for (int k = LENGTH; k < FACTS; k++)
        if (met[k] != facts[k])
            return tess_error(TESS_INVALID, path,
                              "has a teacher's scores for %s %d, but that is %d (go on with %d, or leave out --resume)",
                              of[k], met[k], facts[k], met[k]);
    if (memcmp(met, facts, sizeof met) || tokens->elements != places || logprobs->elements != places)
        return tess_error(TESS_INVALID, path,
                          "has a teacher's scores of other data than data.train (go on with the same, or leave out "
                          "--resume)");
    r->teacher.data = data;
    r->teacher.tokens = tokens, r->teacher.logprobs = logprobs;
    return TESS_OK;
}

tess_status tess_teacher_find(tess_run *r, const tess_data *train, bool resumes, tess_safetensors **file)
{
    if (!r->c->distill.teacher) return TESS_OK;
    if (!resumes) TESS_TRY(make(r, train));
    TESS_FREED char *path = tess_format("%s/teacher.safetensors", r->c->output);
    const tess_status status = use(r, path, train, file);
    return tess_ranks_agree(status);
}

void tess_teacher_close(tess_run *r, tess_safetensors *file)
{
    memset(&r->teacher, 0, sizeof r->teacher);
    tess_safetensors_close(file);
}
