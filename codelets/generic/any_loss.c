/* any_loss, any_data: where a backward pass begins, and what a graph brings along. */
#include "codelets/generic.h"
#include "codelets/shared/vector.h"

static void any_loss(const tess_work *w)
{
    const tess_any_loss_arg *a = w->arg;
    const int out = a->numbers > 0 ? 2 : 1;
    double *sum = w->buf[out].ptr;
    for (int64_t k = 0; k <= a->numbers; k++) {
        const float *x = w->buf[k ? 1 : 0].ptr;
        sum[2 * k] = (double)x[k ? k - 1 : 0];
        sum[2 * k + 1] = 1;
    }
    if (a->gradient) *(float *)w->buf[out + 1].ptr = w->env->loss_scale[0];
}
TESS_F32_CODELET(any_loss, )

static void any_data(const tess_work *w)
{
    const tess_any_data_arg *a = w->arg;
    memcpy(w->buf[0].ptr, a->data, a->bytes);
}
tess_codelet tess_any_data[] = {{.name = "any_data", .dtype = TESS_F32, .cpu = any_data, .cpu_alone = true}};
