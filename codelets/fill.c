/* fill: first values of parameters, and the bf16 copies of those that have a master. */
#include "vector_impl.h"

TESS_INLINE void fill(const tess_work *w, tess_dtype t)
{
    const tess_count_arg *a = w->arg;
    void *x = w->buf[0].ptr;
    const float value = a->value;
#pragma omp simd
    for (int64_t i = 0; i < a->n; i++) tess_store(x, i, t, value);
}
TESS_REAL(fill)

/* Of a normal positive x = 2^e m, with m between the root of 1/2 and the root of 2. */
TESS_INLINE float log_of(float x)
{
    uint32_t above = tess_bits(x) - 0x3f3504f3u; /* the root of 1/2 */
    float e = (float)((int32_t)above >> 23);
    float f = tess_float_of((above & 0x7fffffu) + 0x3f3504f3u) - 1.0f;
    float p = -7.63435416e-2f;
    p = p * f + 0.127615315f;
    p = p * f - 0.13160215f;
    p = p * f + 0.142017664f;
    p = p * f - 0.166233548f;
    p = p * f + 0.200012265f;
    p = p * f - 0.250008211f;
    p = p * f + 0.333333317f;
    float square = f * f;
    return p * (square * f) - 0.5f * square + f + e * 0.693147181f;
}

/* Box and Muller's sqrt(-2 log u) cos(2 pi v) with u in (0, 1] from 24 random bits and v from 32, of which the first
 * two (rounded) are the quadrant. Initial values are no step: they take the last one, where no dropout is drawn. */
TESS_CLONES static void fill_normal(const tess_work *w)
{
    const tess_count_arg *a = w->arg;
    float *x = w->buf[0].ptr;
    const float value = a->value;
    const uint64_t first = (uint64_t)a->first;
    const tess_random_key key = tess_random_begin(w->env->seed, UINT64_MAX, a->op);
#pragma omp simd
    for (int64_t i = 0; i < a->n; i++) {
        uint64_t place = 2 * (first + (uint64_t)i);
        float u = (float)(int32_t)((tess_random_at(key, place) >> 8) + 1) * 0x1p-24f;
        uint32_t turn = tess_random_at(key, place + 1), quadrant = (turn + 0x20000000u) >> 30;
        float r = (float)(int32_t)(turn - (quadrant << 30)) * (1.57079633f * 0x1p-30f);
        float sine, cosine;
        tess_sincosf(quadrant, r, &sine, &cosine);
        x[i] = value * (sqrtf(-2.0f * log_of(u)) * cosine);
    }
}
tess_codelet tess_fill_normal[] = {[TESS_F32] = {.name = "fill_normal", .dtype = TESS_F32, .cpu = fill_normal}};

TESS_CLONES static void round_copy(const tess_work *w)
{
    const tess_count_arg *a = w->arg;
    tess_narrow(w->buf[1].ptr, w->buf[0].ptr, a->n);
}
tess_codelet tess_round[] = {[TESS_BF16] = {.name = "round", .dtype = TESS_BF16, .cpu = round_copy}};
