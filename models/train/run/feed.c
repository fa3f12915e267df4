/* Feeding a step with samples: each tensor that the network has is given its part of every sample. */
#include "codelets/codelets.h"
#include "models/files/safetensors/safetensors.h"
#include "models/train/run/run.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Numbers of a sample for one tensor, and what stands there where there is no sample. */
struct part {
    tess_tensor *tensor; /* NULL: the network has none */
    int64_t width;
    int32_t none;
    int32_t *values; /* (samples, width) */
};
enum { IDS, TARGETS, BOUNDS, POSITIONS, SEGMENTS, DECODER_IDS, LABEL, INDEX, VISIBLE, REFERENCE, SOFT, PARTS };

static int32_t *row(const struct part *p, int64_t sample)
{
    return p->values ? p->values + sample * p->width : NULL;
}

/* What another model says of the sequences of a sample; zeros where it was not asked yet. */
static tess_status read_reference(const tess_run *r, const tess_data *data, uint64_t sample, int32_t label,
                                  int32_t *bits)
{
    float said[TESS_KTO_REFERENCE] = {0};
    for (int k = 0; k < 2; k++)
        if (data && r->reference[k].data == data)
            TESS_TRY(tess_safetensor_read(r->reference[k].scores, (int64_t)(2 * sample), 2, said));
    if (tess_run_judged(r)) said[1] = (float)r->bound, said[2] = (float)label;
    memcpy(bits, said, (size_t)(tess_run_judged(r) ? TESS_KTO_REFERENCE : 2) * sizeof *said);
    return TESS_OK;
}

/* What a teacher says of the places of a sample: of each its tokens, then the bits of their shares, which are those of
 * the probabilities with logits divided by the temperature. */
static tess_status read_soft(const tess_run *r, uint64_t sample, int32_t *soft)
{
    const int64_t k = r->c->distill.top_k, n = r->length * k, vocab = tess_model_vocab(r->model);
    float *logprob = tess_alloc((size_t)(n + k) * sizeof *logprob), *share = logprob + n;
    const char *tokens = (const char *)r->teacher.tokens->data + (size_t)n * sample * sizeof *soft;
    tess_status status = tess_safetensor_read(r->teacher.logprobs, n * (int64_t)sample, n, logprob);
    for (int64_t t = 0; t < r->length && status == TESS_OK; t++) {
        const float *of = logprob + t * k;
        int32_t *token = soft + 2 * k * t;
        double sum = 0;
        memcpy(token, tokens + (size_t)(t * k) * sizeof *token, (size_t)k * sizeof *token);
        for (int64_t i = 0; i < k; i++) sum += exp(((double)of[i] - (double)of[0]) / r->c->distill.temperature);
        for (int64_t i = 0; i < k; i++) {
            share[i] = (float)(exp(((double)of[i] - (double)of[0]) / r->c->distill.temperature) / sum);
            if (token[i] >= 0 && token[i] < vocab && share[i] >= 0) continue;
            status = tess_error(TESS_INVALID, r->teacher.tokens->file, "is damaged: sample %llu has token %d of %lld",
                                (unsigned long long)sample, token[i], (long long)vocab);
        }
        memcpy(token + k, share, (size_t)k * sizeof *share);
    }
    tess_safetensor_forget(r->teacher.tokens);
    tess_safetensor_forget(r->teacher.logprobs);
    free(logprob);
    return status;
}

/* The samples are those at places of the run, or with `plain` of the data; sequences lie one behind the other. */
static tess_status read_samples(const tess_run *r, const tess_data *data, tess_feeding as, const struct part *p,
                                uint64_t first, int64_t n, int64_t room)
{
    int32_t label = 0;
    for (int64_t i = 0; i < room * r->sequences; i++) {
        const uint64_t at = first + (uint64_t)(i / r->sequences);
        const bool there = i / r->sequences < n, second = i % r->sequences;
        const uint64_t sample = as.plain || !there ? at : tess_data_order(data, at);
        const tess_sample into = {.ids = row(&p[IDS], i),
                                  .targets = row(&p[TARGETS], i),
                                  .bounds = row(&p[BOUNDS], i),
                                  .positions = row(&p[POSITIONS], i),
                                  .segments = row(&p[SEGMENTS], i),
                                  .decoder_ids = row(&p[DECODER_IDS], i),
                                  .label = tess_run_judged(r) ? &label : row(&p[LABEL], i),
                                  .place = at,
                                  .other = second || as.other};
        if (there) {
            TESS_TRY(tess_data_get(data, sample, &into));
            if (p[REFERENCE].values && !second) TESS_TRY(read_reference(r, data, sample, label, row(&p[REFERENCE], i)));
            if (p[SOFT].values && r->teacher.data == data) TESS_TRY(read_soft(r, sample, row(&p[SOFT], i)));
        } else
            for (int k = 0; k < PARTS; k++)
                for (int64_t t = 0; p[k].values && t < p[k].width; t++) row(&p[k], i)[t] = p[k].none;
    }
    return TESS_OK;
}

/* What follows from the data for this network: places count from its first one, and every row of a decoder sees all of
 * the encoder's that is no padding. */
static void complete(const tess_network *net, const struct part *p, int64_t room, int64_t T)
{
    for (int64_t i = 0; p[POSITIONS].values && i < room * T; i++)
        p[POSITIONS].values[i] += (int32_t)net->first_position;
    for (int64_t i = 0; p[VISIBLE].values && i < room; i++)
        for (int64_t t = 0; t < T; t++) {
            row(&p[VISIBLE], i)[t] = 0;
            row(&p[VISIBLE], i)[T + t] = row(&p[BOUNDS], i)[T];
        }
    for (int64_t i = 0; p[INDEX].values && i < room; i++) *row(&p[INDEX], i) = 0;
}

/* What stands in a sample that is drawn: every place is a token. */
static void draw_samples(const tess_run *r, const struct part *p, int64_t room)
{
    const int64_t T = r->length, targets = tess_model_targets(r->model), segments = tess_model_segments(r->model);
    const struct {
        int part;
        int64_t below;
    } drawn[] = {{IDS, tess_model_vocab(r->model)},
                 {TARGETS, tess_model_vocab(r->model)},
                 {SEGMENTS, segments ? segments : 1},
                 {DECODER_IDS, tess_model_vocab(r->model)},
                 {LABEL, targets}};
    for (size_t k = 0; k < sizeof drawn / sizeof *drawn; k++) {
        const struct part *of = &p[drawn[k].part];
        for (int64_t i = 0; of->values && i < room * of->width; i++)
            of->values[i] = (int32_t)(tess_random(1, 0, (uint32_t)k, (uint64_t)i) % (uint64_t)drawn[k].below);
    }
    for (int64_t i = 0; i < room; i++)
        for (int64_t t = 0; t < T; t++) {
            if (p[POSITIONS].values) row(&p[POSITIONS], i)[t] = (int32_t)t;
            if (p[BOUNDS].values) row(&p[BOUNDS], i)[t] = 0, row(&p[BOUNDS], i)[T + t] = (int32_t)T;
        }
}

/* Each micro-batch has a key of its own: that of the seed, with the number of its first sample folded in. */
tess_status tess_run_feed_keys(const tess_run *r, tess_step *step, uint64_t first)
{
    int64_t micro, micros;
    tess_step_share(step, &micro, &micros);
    const int arrays = tess_model_arrays(r->model, NULL), keys = tess_model_keys(r->model);
    int32_t(*key)[2] = tess_alloc((size_t)micros * sizeof *key);
    tess_status status = TESS_OK;
    for (int k = 0; k < keys && status == TESS_OK; k++) {
        for (int64_t m = 0; m < micros; m++) {
            key[m][0] = (int32_t)((uint64_t)r->c->seed >> 32), key[m][1] = (int32_t)(uint32_t)r->c->seed;
            if (keys > 1) tess_fold_in(key[m], k);
            tess_fold_in(key[m], (int32_t)(uint32_t)(first + (uint64_t)((micro + m) * r->micro_batch)));
        }
        status = tess_step_feed(step, r->net.input[arrays + k], (const int32_t *)key);
    }
    free(key);
    return status;
}

/* The keys that came with the batch. */
static tess_status feed_check_keys(const tess_run *r, tess_step *step)
{
    int64_t micros;
    tess_step_share(step, NULL, &micros);
    const int arrays = tess_model_arrays(r->model, NULL);
    int32_t(*key)[2] = tess_alloc((size_t)micros * sizeof *key);
    tess_status status = TESS_OK;
    for (int k = arrays; k < arrays + tess_model_keys(r->model) && status == TESS_OK; k++) {
        for (int64_t m = 0; m < micros && status == TESS_OK; m++) status = tess_model_check_batch(r->model, k, key[m]);
        if (status == TESS_OK) status = tess_step_feed(step, r->net.input[k], (const int32_t *)key);
    }
    free(key);
    return status;
}

/* The same of arrays, NULL: of the batch that came with the network. What lies beyond the n-th is the first again. */
static tess_status feed_arrays(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first, int64_t n)
{
    int64_t micro, micros;
    tess_step_share(step, &micro, &micros);
    const int64_t begin = micro * r->micro_batch, room = micros * r->micro_batch;
    const int count = tess_model_arrays(r->model, NULL);
    tess_array_want *want = tess_alloc((size_t)count * sizeof *want);
    tess_status status = TESS_OK;
    tess_model_arrays(r->model, want);
    for (int k = 0; k < count && status == TESS_OK; k++) {
        int64_t size = 1;
        const int64_t each = want[k].same ? r->micro_batch : 1; /* samples that have one entry */
        for (int d = 0; d < want[k].rank; d++) size *= want[k].dim[d];
        TESS_FREED int32_t *values = tess_alloc((size_t)(room / each * size) * sizeof *values);
        for (int64_t i = 0; i < room && data && status == TESS_OK; i += each) {
            const uint64_t at = first + (uint64_t)(begin + i < n ? begin + i : 0);
            status = tess_data_get_array(data, k, tess_data_order(data, at), values + i / each * size);
        }
        for (int64_t m = 0; m < micros && !data && status == TESS_OK; m++)
            status = tess_model_check_batch(r->model, k, values + m * r->micro_batch / each * size);
        if (status == TESS_OK) status = tess_step_feed(step, r->net.input[k], values);
    }
    free(want);
    if (status != TESS_OK) return status;
    return data ? tess_run_feed_keys(r, step, first) : feed_check_keys(r, step);
}

/* Feeds n samples of `data` from `first` on; without data, samples that are drawn. */
static tess_status feed(const tess_run *r, tess_step *step, const tess_data *data, tess_feeding as, uint64_t first,
                        int64_t n)
{
    if (tess_model_batch(r->model)) return feed_arrays(r, step, data, first, n);
    const tess_network *net = &r->net;
    const int64_t T = r->length;
    struct part part[PARTS] = {[IDS] = {net->ids, T, 0, NULL},
                               [TARGETS] = {net->targets, T, -100, NULL},
                               [BOUNDS] = {net->bounds, 2 * T, 0, NULL},
                               [POSITIONS] = {net->positions, T, 0, NULL},
                               [SEGMENTS] = {net->segments, T, 0, NULL},
                               [DECODER_IDS] = {net->decoder_ids, T, 0, NULL},
                               [LABEL] = {net->label, 1, -100, NULL},
                               [INDEX] = {net->index, 1, 0, NULL},
                               [VISIBLE] = {net->visible, 2 * T, 0, NULL},
                               [REFERENCE] = {net->reference, tess_run_judged(r) ? TESS_KTO_REFERENCE : 1, 0, NULL},
                               [SOFT] = {net->soft, 2 * T * r->c->distill.top_k, 0, NULL}};
    int64_t micro, micros;
    tess_step_share(step, &micro, &micros);
    const int64_t begin = micro * r->micro_batch, room = micros * r->micro_batch;
    const int64_t rows = room * r->sequences;
    for (int k = 0; k < PARTS; k++)
        if (part[k].tensor) part[k].values = tess_alloc((size_t)(rows * part[k].width) * sizeof(int32_t));
    tess_status status = TESS_OK;
    if (data)
        status = read_samples(r, data, as, part, first + (uint64_t)begin, n - begin, room);
    else
        draw_samples(r, part, rows);
    if (status == TESS_OK) complete(net, part, rows, T);
    for (int k = 0; k < PARTS && status == TESS_OK; k++)
        if (part[k].tensor) status = tess_step_feed(step, part[k].tensor, part[k].values);
    for (int k = 0; k < PARTS; k++) free(part[k].values);
    return status;
}

tess_status tess_run_feed(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first, int64_t n)
{
    return feed(r, step, data, (tess_feeding){0}, first, n);
}

tess_status tess_run_feed_as(const tess_run *r, tess_step *step, const tess_data *data, tess_feeding as, uint64_t first,
                             int64_t n)
{
    return feed(r, step, data, as, first, n);
}

tess_status tess_run_feed_random(const tess_run *r, tess_step *step)
{
    return feed(r, step, NULL, (tess_feeding){0}, 0, 0);
}
