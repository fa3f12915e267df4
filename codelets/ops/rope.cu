/* rope: a block a row, whose angles are computed once for all heads. How fast pairs turn comes with the launch: a power
 * in double a pair and row takes a GPU that has few units for double a thousand times as long as all the rest. */
#include "codelets/ops/rope_impl.h"
#include "codelets/shared/kernels.h"
#include <string.h>

constexpr int THREADS = 128, PAIRS = 128; /* of a launch, whose arguments have room for 4 KiB */

struct speeds {
    int64_t first, pairs; /* of a head: these are */
    float size, of[PAIRS];
};

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
rope_kernel(const void *x, void *y, const int32_t *places, tess_rope_arg a, bool acc, speeds s)
{
    TESS_SHARED(float, sine, [PAIRS]);
    TESS_SHARED(float, cosine, [PAIRS]);
    const int64_t row = blockIdx.x, half = a.rotary / 2, rest = a.dim - a.rotary;
    const int64_t place = places ? places[row] : (a.row0 + row) % a.sequence;
    for (int64_t i = threadIdx.x; i < s.pairs; i += THREADS)
        turn_of((float)place, s.of[i], s.size, &sine[i], &cosine[i]);
    __syncthreads();
    for (int64_t k = threadIdx.x; k < a.heads * s.pairs; k += THREADS) {
        const int64_t h = k / s.pairs, i = k % s.pairs, pair = s.first + i, head = (row * a.heads + h) * a.dim + a.skip;
        if (tess_rope_stays(&a, h)) continue;
        const int64_t one = head + (a.half ? pair : 2 * pair), two = one + (a.half ? half : 1);
        const float u = value_at<T>(x, one), v = value_at<T>(x, two);
        add_at<T>(y, one, acc, u * cosine[i] - v * sine[i]);
        add_at<T>(y, two, acc, v * cosine[i] + u * sine[i]);
    }
    if (s.first) return;
    for (int64_t h = a.of ? 0 : a.heads; h < a.heads; h++)
        for (int64_t k = threadIdx.x; k < a.rotary && tess_rope_stays(&a, h); k += THREADS) {
            const int64_t i = (row * a.heads + h) * a.dim + a.skip + k;
            add_at<T>(y, i, acc, value_at<T>(x, i));
        }
    for (int64_t k = threadIdx.x; k < a.heads * rest; k += THREADS) {
        const int64_t i = (row * a.heads + k / rest) * a.dim + k % rest + (k % rest < a.skip ? 0 : a.rotary);
        add_at<T>(y, i, acc, value_at<T>(x, i));
    }
}

/* Those from `first` on. A network has one table, which the thread that launches computed before. */
static speeds speeds_of(const tess_rope_arg *a, int64_t first, float direction)
{
    static thread_local tess_rope_arg known;
    static thread_local speeds s;
    const bool same = s.pairs && s.first == first && known.base == a->base && known.rotary == a->rotary &&
                      !memcmp(&known.scaling, &a->scaling, sizeof a->scaling);
    const int64_t pairs = a->rotary / 2 - first;
    s.first = first;
    s.pairs = pairs < PAIRS ? pairs : PAIRS;
    s.size = tess_rope_size(a);
    for (int64_t i = 0; i < s.pairs && !same; i++) s.of[i] = tess_rope_speed(a, first + i);
    known = *a;
    speeds turned = s;
    for (int64_t i = 0; i < s.pairs; i++) turned.of[i] *= direction;
    return turned;
}

template <tess_dtype T> static void turn(const tess_work *w, bool acc, float direction)
{
    const tess_rope_arg *a = arg_of(w);
    const int64_t half = a->rotary / 2;
    TESS_ASSERT(a->rotary % 2 == 0 && a->rotary + a->skip <= a->dim);
    for (int64_t first = 0; first == 0 || first < half; first += PAIRS)
        launch(w, rope_kernel<T>, a->rows, THREADS, 0, buffer(w, 0), w->buf[1].ptr,
               a->placed ? (const int32_t *)w->buf[2].ptr : NULL, *a, acc, speeds_of(a, first, direction));
}

TESS_CUDA_REAL_OF(rope_forward, turn<T>(w, false, 1))
TESS_CUDA_REAL_OF(rope_backward, turn<T>(w, ((const tess_rope_arg *)w->arg)->acc, -1))
