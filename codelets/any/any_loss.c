/* any_loss, any_data: where a backward pass begins, and what a graph brings along. */
#include "any.h"
#include <string.h>

static void any_loss(const tess_work *w)
{
    const float x = *(const float *)w->buf[0].ptr;
    double *sum = w->buf[1].ptr;
    sum[0] = (double)x;
    sum[1] = 1;
    if (((const tess_any_loss_arg *)w->arg)->gradient) *(float *)w->buf[2].ptr = w->env->loss_scale[0];
}
tess_codelet tess_any_loss[] = {{.name = "any_loss", .dtype = TESS_F32, .cpu = any_loss}};

static void any_data(const tess_work *w)
{
    const tess_any_data_arg *a = w->arg;
    memcpy(w->buf[0].ptr, a->data, a->bytes);
}
tess_codelet tess_any_data[] = {{.name = "any_data", .dtype = TESS_F32, .cpu = any_data}};
