/* linear_gelu: one product with gelu, or its slope, in the epilogue; where the library has none, the kernels of
 * linear.cu and gelu.cu. */
#include "codelets/shared/kernels.h"

#define DECLARE(op)                                                                                                    \
    extern "C" void TESS_CUDA_NAME(op##_f32)(const tess_work *w);                                                      \
    extern "C" void TESS_CUDA_NAME(op##_bf16)(const tess_work *w);                                                     \
    extern "C" void TESS_CUDA_NAME(op##_f16)(const tess_work *w);
DECLARE(linear_forward)
DECLARE(linear_backward_input)
DECLARE(gelu_forward)
DECLARE(gelu_backward)

/* The library's gelu is that by tanh. In fp32 its tanh might be the hardware's, of 11 bits: it is not asked. */
template <tess_dtype T> static bool in_epilogue(const tess_linear_gelu_arg *a)
{
    return is_half(T) && a->gelu.kind == TESS_GELU_TANH;
}

static void run(const tess_work *w, tess_body body, const void *arg, const tess_view *buf, unsigned nbuf)
{
    tess_work part = *w;
    part.arg = arg, part.buf = buf, part.nbuf = nbuf;
    body(&part);
}
#define RUN(op, ...)                                                                                                   \
    run(w,                                                                                                             \
        T == TESS_BF16  ? TESS_CUDA_NAME(op##_bf16)                                                                    \
        : T == TESS_F16 ? TESS_CUDA_NAME(op##_f16)                                                                     \
                        : TESS_CUDA_NAME(op##_f32),                                                                    \
        __VA_ARGS__)

template <tess_dtype T> static void linear_gelu_forward_body(const tess_work *w)
{
    const tess_linear_gelu_arg *a = arg_of(w);
    const tess_view *b = w->buf, linear[] = {b[0], b[1], b[2], b[a->linear.bias ? 4 : 0]};
    const tess_linear_arg *l = &a->linear;
    tess_cuda_mm d = {l->rows, l->out, l->in, l->in, l->in, l->out, T, T};
    d.tb = true, d.b = l->w, d.bias = l->bias ? (const float *)linear[3].ptr : NULL;
    d.fp8 = l->fp8 ? TESS_E4M3 : TESS_NO_FP8;
    if (in_epilogue<T>(a) && tess_cuda_mm_gelu(w, &d, b[0].ptr, b[1].ptr, b[2].ptr, b[3].ptr)) return;
    RUN(linear_forward, &a->linear, linear, a->linear.bias ? 4 : 3);
    RUN(gelu_forward, &a->gelu, b + 2, 2);
}

template <tess_dtype T> static void gelu_linear_backward_body(const tess_work *w)
{
    const tess_linear_gelu_arg *a = arg_of(w);
    const tess_view *b = w->buf, input[] = {b[0], b[1], b[3]}, gelu[] = {b[3], b[2], b[3]};
    const tess_linear_arg *l = &a->linear;
    tess_cuda_mm d = {l->rows, l->in, l->out, l->out, l->in, l->in, T, T};
    d.b = l->w, d.fp8 = l->fp8 ? TESS_E5M2 : TESS_NO_FP8;
    if (in_epilogue<T>(a) && tess_cuda_mm_slope(w, &d, b[0].ptr, b[1].ptr, b[2].ptr, b[3].ptr)) return;
    RUN(linear_backward_input, &a->linear, input, 3);
    RUN(gelu_backward, &a->gelu, gelu, 3);
}

TESS_CUDA_REAL(linear_gelu_forward)
TESS_CUDA_REAL(gelu_linear_backward)
