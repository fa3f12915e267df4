/* Feeding a step with samples. */
#include "run_impl.h"
#include <stdlib.h>

tess_status tess_run_feed(const tess_run *r, tess_step *step, const tess_data *data, uint64_t first, int64_t n)
{
    int64_t T = r->length, micro, micros;
    tess_step_share(step, &micro, &micros);
    int64_t begin = micro * r->micro_batch, room = micros * r->micro_batch;
    int32_t *ids = tess_alloc((size_t)(2 * room * T) * sizeof *ids), *targets = ids + room * T;
    tess_status status = TESS_OK;
    for (int64_t i = 0; i < room && status == TESS_OK; i++)
        if (begin + i < n)
            status =
                tess_data_get(data, tess_data_order(data, first + (uint64_t)(begin + i)), ids + i * T, targets + i * T);
        else
            for (int64_t t = 0; t < T; t++) targets[i * T + t] = -100;
    if (status == TESS_OK) status = tess_step_feed(step, r->net.ids, ids);
    if (status == TESS_OK) status = tess_step_feed(step, r->net.targets, targets);
    free(ids);
    return status;
}
