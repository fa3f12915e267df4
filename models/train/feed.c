/* Feeding a step with samples: each tensor that the network has is given its part of every sample. */
#include "run_impl.h"
#include <stdlib.h>

/* Numbers of a sample for one tensor, and what stands there where there is no sample. */
struct part {
    tess_tensor *tensor; /* NULL: the network has none */
    int64_t width;
    int32_t none;
    int32_t *values; /* (samples, width) */
};
enum { IDS, TARGETS, BOUNDS, POSITIONS, SEGMENTS, DECODER_IDS, LABEL, PARTS };

static int32_t *row(const struct part *p, int64_t sample)
{
    return p->values ? p->values + sample * p->width : NULL;
}

static tess_status read_samples(const tess_data *data, const struct part *p, uint64_t first, int64_t n, int64_t room)
{
    for (int64_t i = 0; i < room; i++) {
        const tess_sample into = {.ids = row(&p[IDS], i),
                                  .targets = row(&p[TARGETS], i),
                                  .bounds = row(&p[BOUNDS], i),
                                  .positions = row(&p[POSITIONS], i),
                                  .segments = row(&p[SEGMENTS], i),
                                  .decoder_ids = row(&p[DECODER_IDS], i),
                                  .label = row(&p[LABEL], i),
                                  .place = first + (uint64_t)i};
        if (i < n)
            TESS_TRY(tess_data_get(data, tess_data_order(data, first + (uint64_t)i), &into));
        else
            for (int k = 0; k < PARTS; k++)
                for (int64_t t = 0; p[k].values && t < p[k].width; t++) row(&p[k], i)[t] = p[k].none;
    }
    return TESS_OK;
}

tess_status tess_run_feed(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first, int64_t n)
{
    const tess_network *net = &r->net;
    const int64_t T = r->length;
    struct part part[PARTS] = {[IDS] = {net->ids, T, 0, NULL},           [TARGETS] = {net->targets, T, -100, NULL},
                               [BOUNDS] = {net->bounds, 2 * T, 0, NULL}, [POSITIONS] = {net->positions, T, 0, NULL},
                               [SEGMENTS] = {net->segments, T, 0, NULL}, [DECODER_IDS] = {net->decoder_ids, T, 0, NULL},
                               [LABEL] = {net->label, 1, -100, NULL}};
    int64_t micro, micros;
    tess_step_share(step, &micro, &micros);
    const int64_t begin = micro * r->micro_batch, room = micros * r->micro_batch;
    for (int k = 0; k < PARTS; k++)
        if (part[k].tensor) part[k].values = tess_alloc((size_t)(room * part[k].width) * sizeof(int32_t));
    tess_status status = read_samples(data, part, first + (uint64_t)begin, n - begin, room);
    for (int k = 0; k < PARTS && status == TESS_OK; k++)
        if (part[k].tensor) status = tess_step_feed(step, part[k].tensor, part[k].values);
    for (int k = 0; k < PARTS; k++) free(part[k].values);
    return status;
}
