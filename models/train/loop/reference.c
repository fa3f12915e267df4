/* Scores of a reference, see reference_impl.h. A rank scores its micro-batches, tells the others, and rank 0 writes: a
 * batch at a time, so that RAM holds no more of them. */
#include "models/train/loop/reference_impl.h"
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {"train", "valid"};
enum { KINDS = 2 };

tess_status tess_reference_plan(tess_run *r, tess_reference *reference)
{
    if (!tess_run_refers(r)) return TESS_OK;
    reference->r = r;
    TESS_TRY(tess_run_at_key(tess_step_new(r->net.scores, &(tess_step_conf){.micro = r->evaluated}, &reference->step)));
    return tess_run_place_beside(r, reference->step);
}

void tess_reference_close(tess_reference *reference)
{
    tess_step_free(reference->step);
    tess_safetensors_close(reference->file);
    if (reference->r) memset(reference->r->reference, 0, sizeof reference->r->reference);
    *reference = (tess_reference){0};
}

/* ---- scoring ---- */

/* The sums of a step's sequences as bits, those of other ranks as the least number there is. A sequence may be in
 * several spans, whose parts of it come one after the other. */
static tess_status read_scores(const tess_reference *reference, float *parts, int64_t *bits)
{
    const tess_run *r = reference->r;
    const int64_t sequences = r->micro_batch * r->sequences;
    int64_t micro, micros;
    TESS_TRY(tess_step_output(reference->step, parts));
    tess_step_share(reference->step, &micro, &micros);
    const int64_t spans = tess_step_outputs(reference->step) / (2 * micros * sequences);
    for (int64_t s = 0; s < r->evaluated * sequences; s++) bits[s] = INT64_MIN;
    for (int64_t s = 0; s < micros * sequences; s++) {
        double sum = 0;
        int32_t of;
        for (int64_t k = 0; k < spans; k++) sum += (double)parts[2 * (s * spans + k)];
        memcpy(&of, &(float){(float)sum}, sizeof of);
        bits[micro * sequences + s] = of;
    }
    return TESS_OK;
}

/* Scores a batch of n samples; all ranks have all of it. */
static tess_status score_batch(const tess_reference *reference, const tess_data *data, tess_feeding as, uint64_t at,
                               int64_t n, float *scores)
{
    const tess_run *r = reference->r;
    const int64_t sequences = r->micro_batch * r->evaluated * r->sequences;
    TESS_FREED float *parts = tess_alloc((size_t)tess_step_outputs(reference->step) * sizeof *parts);
    TESS_FREED int64_t *bits = tess_alloc((size_t)sequences * sizeof *bits);
    TESS_TRY(tess_ranks_agree(tess_run_feed_as(r, reference->step, data, as, at, n)));
    TESS_TRY(tess_step_run(reference->step, &(tess_step_input){0}, NULL));
    TESS_TRY(tess_ranks_agree(read_scores(reference, parts, bits)));
    tess_ranks_most(bits, (int)sequences);
    for (int64_t s = 0; s < n * r->sequences; s++) memcpy(&scores[s], &(int32_t){(int32_t)bits[s]}, sizeof *scores);
    return TESS_OK;
}

/* How many samples of those that are left a batch has. */
static int64_t batch_of(const tess_reference *reference, uint64_t left)
{
    const int64_t batch = reference->r->micro_batch * reference->r->evaluated;
    return left < (uint64_t)batch ? (int64_t)left : batch;
}

/* Both sequences of a sample, together or one after the other. */
static tess_status score(const tess_reference *reference, const tess_data *data, tess_safetensors_writer *w,
                         size_t tensor)
{
    const tess_run *r = reference->r;
    const uint64_t samples = tess_data_samples(data);
    TESS_FREED float *scores = tess_alloc((size_t)(batch_of(reference, UINT64_MAX) * r->sequences) * sizeof *scores);
    tess_status status = TESS_OK;
    for (int64_t k = 0, n; k < 2; k += r->sequences)
        for (uint64_t at = 0; at < samples && status == TESS_OK; at += (uint64_t)n) {
            n = batch_of(reference, samples - at);
            status = score_batch(reference, data, (tess_feeding){.plain = true, .other = k}, at, n, scores);
            if (tess_rank() == 0 && status == TESS_OK)
                status = tess_safetensors_write(w, tensor, (int64_t)at, n, k, r->sequences, scores);
            status = tess_ranks_agree(status);
            tess_bar_step((double)n * (double)r->sequences / 2);
        }
    return status;
}

/* The scores that the reference gave them. */
static tess_status other_score(const tess_run *r, const tess_data *data, uint64_t sample, float *score)
{
    for (int k = 0; k < KINDS; k++)
        if (r->reference[k].data == data)
            return tess_safetensor_read(r->reference[k].scores, (int64_t)(2 * sample + 1), 1, score);
    return TESS_OK;
}

tess_status tess_reference_bound(tess_reference *reference, const tess_data *data, bool plain, uint64_t first,
                                 int64_t n)
{
    tess_run *r = reference->r;
    if (!r || !tess_run_judged(r)) return TESS_OK;
    double sum = 0;
    float *scores = tess_alloc((size_t)batch_of(reference, UINT64_MAX) * sizeof *scores), then = 0;
    tess_status status = TESS_OK;
    for (int64_t at = 0, m; at < n && status == TESS_OK; at += m) {
        m = batch_of(reference, (uint64_t)(n - at));
        const uint64_t place = first + (uint64_t)at;
        status = score_batch(reference, data, (tess_feeding){.plain = plain, .other = true}, place, m, scores);
        for (int64_t s = 0; s < m && status == TESS_OK; s++) {
            const uint64_t sample = place + (uint64_t)s;
            status = other_score(r, data, plain ? sample : tess_data_order(data, sample), &then);
            sum += (double)scores[s] - (double)then;
        }
        status = tess_ranks_agree(status);
    }
    free(scores);
    r->bound = sum > 0 ? sum / (double)n : 0;
    return status;
}

/* ---- the file ---- */

/* Which data it is of, in the place of numbers: both halves of the sum of each, and the length of a sequence. */
enum { LENGTH = 2 * KINDS, SUMS };
static void sums_of(const tess_reference *reference, const tess_data *const *data, int32_t sums[static SUMS])
{
    sums[LENGTH] = (int32_t)reference->r->length;
    for (int k = 0; k < KINDS; k++) {
        const uint64_t sum = data[k] ? tess_data_sum(data[k]) : 0;
        memcpy(&sums[2 * k], &sum, sizeof sum);
    }
}

static tess_status make(const tess_reference *reference, const tess_data *const *data)
{
    tess_safetensors_writer *w = tess_safetensors_writer_new(reference->r->c->output, "reference", UINT64_MAX);
    size_t tensor[KINDS], of = tess_safetensors_declare(w, "data", TESS_I32, 1, (int64_t[]){SUMS});
    int32_t sums[SUMS];
    double samples = 0;
    for (int k = 0; k < KINDS; k++) {
        if (!data[k]) continue;
        tensor[k] =
            tess_safetensors_declare(w, names[k], TESS_F32, 2, (int64_t[]){(int64_t)tess_data_samples(data[k]), 2});
        samples += (double)tess_data_samples(data[k]);
    }
    sums_of(reference, data, sums);
    tess_status status = tess_safetensors_writer_begin(w);
    tess_bar_begin("scoring by the reference", samples);
    if (status == TESS_OK && tess_rank() == 0) status = tess_safetensors_write(w, of, 0, SUMS, 0, 1, sums);
    status = tess_ranks_agree(status);
    for (int k = 0; k < KINDS && status == TESS_OK; k++)
        if (data[k]) status = tess_ranks_agree(score(reference, data[k], w, tensor[k]));
    tess_bar_end();
    return tess_safetensors_writer_end(w, status);
}

static tess_status use(tess_reference *reference, const char *path, const tess_data *const *data)
{
    int32_t sums[SUMS], met[SUMS] = {0};
    sums_of(reference, data, sums);
    TESS_TRY(tess_safetensors_open(path, &reference->file));
    const tess_safetensor *of = tess_safetensors_find(reference->file, "data");
    bool same = of && of->dtype == TESS_ST_I32 && of->bytes == sizeof sums;
    if (same) memcpy(met, of->data, sizeof met);
    if (same && met[LENGTH] != sums[LENGTH])
        return tess_error(TESS_INVALID, path,
                          "has scores of sequences of %d tokens, but data.seq_length is %d (go on with %d, or leave "
                          "out --resume)",
                          met[LENGTH], sums[LENGTH], met[LENGTH]);
    same = same && !memcmp(met, sums, sizeof sums);
    for (int k = 0; k < KINDS && same; k++) {
        if (!data[k]) continue;
        const tess_safetensor *t = tess_safetensors_find(reference->file, names[k]);
        same = t && t->dtype == TESS_ST_F32 && t->elements == (int64_t)(2 * tess_data_samples(data[k]));
        reference->r->reference[k].data = data[k];
        reference->r->reference[k].scores = t;
    }
    return same ? TESS_OK
                : tess_error(TESS_INVALID, path,
                             "has scores of other data than data.train and data.valid (go on with the same, or leave "
                             "out --resume)");
}

tess_status tess_reference_find(tess_reference *reference, const tess_data *train, const tess_data *valid, bool resumes)
{
    const tess_data *const data[KINDS] = {train, valid};
    if (!reference->r) return TESS_OK;
    if (!resumes) TESS_TRY(make(reference, data));
    if (!tess_run_judged(reference->r)) {
        tess_step_free(reference->step);
        reference->step = NULL;
    }
    TESS_FREED char *path = tess_format("%s/reference.safetensors", reference->r->c->output);
    const tess_status status = use(reference, path, data);
    return tess_ranks_agree(status);
}
