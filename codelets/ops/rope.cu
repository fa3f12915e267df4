/* rope: a block a row, whose angles are computed once for all heads. */
#include "cuda.h"
#include "rope_impl.h"

constexpr int THREADS = 128;

/* As turn_of in rope.c. */
TESS_DEVICE void turn_of(float position, float speed, float size, float *sine, float *cosine)
{
    const double angle = position * speed;
    const double quarters = rint(angle * 0.63661977236758134);
    tess_sincosf((uint32_t)(int64_t)quarters, (float)(angle - quarters * 1.5707963267948966), sine, cosine);
    *sine *= size, *cosine *= size;
}

/* x, y (rows, heads*dim); shared: a sine and a cosine a pair. */
template <tess_dtype T>
TESS_KERNEL(THREADS)
rope_kernel(const void *x, void *y, const int32_t *places, tess_rope_arg a, bool acc, float direction)
{
    TESS_DYNAMIC_SHARED(shared);
    const int64_t row = blockIdx.x, half = a.rotary / 2, rest = a.dim - a.rotary;
    const int64_t place = places ? places[row] : (a.row0 + row) % a.sequence;
    float *sine = (float *)shared, *cosine = sine + half;
    for (int64_t i = threadIdx.x; i < half; i += THREADS)
        turn_of((float)place, direction * tess_rope_speed(&a, i), tess_rope_size(&a), &sine[i], &cosine[i]);
    __syncthreads();
    for (int64_t k = threadIdx.x; k < a.heads * half; k += THREADS) {
        if (a.packed && k / half % 3 == 2) continue;
        const int64_t i = k % half, head = (row * a.heads + k / half) * a.dim;
        const int64_t one = head + (a.half ? i : 2 * i), two = one + (a.half ? half : 1);
        const float u = value_at<T>(x, one), v = value_at<T>(x, two);
        add_at<T>(y, one, acc, u * cosine[i] - v * sine[i]);
        add_at<T>(y, two, acc, v * cosine[i] + u * sine[i]);
    }
    for (int64_t h = 2; a.packed && h < a.heads; h += 3)
        for (int64_t k = threadIdx.x; k < a.rotary; k += THREADS) {
            const int64_t i = (row * a.heads + h) * a.dim + k;
            add_at<T>(y, i, acc, value_at<T>(x, i));
        }
    for (int64_t k = threadIdx.x; k < a.heads * rest; k += THREADS) {
        const int64_t i = (row * a.heads + k / rest) * a.dim + a.rotary + k % rest;
        add_at<T>(y, i, acc, value_at<T>(x, i));
    }
}

template <tess_dtype T> static void turn(const tess_work *w, bool acc, float direction)
{
    const tess_rope_arg *a = arg_of(w);
    TESS_ASSERT(a->rotary % 2 == 0 && a->rotary <= a->dim);
    launch(w, rope_kernel<T>, a->rows, THREADS, (size_t)a->rotary * sizeof(float), buffer(w, 0), w->buf[1].ptr,
           a->placed ? (const int32_t *)w->buf[2].ptr : NULL, *a, acc, direction);
}

TESS_CUDA_REAL_OF(rope_forward, turn<T>(w, false, 1))
TESS_CUDA_REAL_OF(rope_backward, turn<T>(w, ((const tess_rope_arg *)w->arg)->acc, -1))
