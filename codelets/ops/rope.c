/* rope: rotary positions. Row r turns the pairs of each of its heads by angles place * base^(-2i / rotary), or what
 * scaling makes of these speeds, where its place is r % sequence or what it is told, in fp32 as the published models
 * do; the backward pass turns back. Values beside `rotary` pass through. */
#include "codelets/ops/rope_impl.h"
#include "codelets/shared/vector.h"

enum { CHUNK = 64 }; /* pairs whose angles are held at a time */

/* Sines and cosines, `size` times, of the angles of pairs at one position; |angle| below 2^31 quarters of a turn. */
TESS_INLINE void turn_of(float position, const float *speed, float size, int64_t pairs, float *sine, float *cosine)
{
    const double big = 6755399441055744.0; /* 1.5 * 2^52: leaves the rounded integer in the low bits */
#pragma omp simd
    for (int64_t i = 0; i < pairs; i++) {
        double angle = position * speed[i];
        union {
            double d;
            uint64_t u;
        } quarters = {.d = angle * 0.63661977236758134 + big};
        float rest = (float)(angle - (quarters.d - big) * 1.5707963267948966);
        tess_sincosf((uint32_t)quarters.u, rest, &sine[i], &cosine[i]);
        sine[i] *= size, cosine[i] *= size;
    }
}

/* One head: pair i is at (i * stride, i * stride + apart). */
TESS_INLINE void turn_head(const void *x, void *y, tess_dtype t, bool acc, int64_t pairs, int64_t stride, int64_t apart,
                           const float *sine, const float *cosine)
{
#pragma omp simd
    for (int64_t i = 0; i < pairs; i++) {
        const int64_t at = i * stride;
        const float a = tess_load(x, at, t), b = tess_load(x, at + apart, t);
        tess_accumulate(y, at, t, acc, a * cosine[i] - b * sine[i]);
        tess_accumulate(y, at + apart, t, acc, b * cosine[i] + a * sine[i]);
    }
}

TESS_INLINE void pass_through(const tess_work *w, tess_dtype t, bool acc)
{
    const tess_rope_arg *a = w->arg;
    for (int64_t h = 0; h < a->rows * a->heads; h++) {
        const int64_t end = (h + 1) * a->dim, first = tess_rope_stays(a, h) ? end : h * a->dim + a->skip;
        for (int64_t i = h * a->dim; i < first; i++)
            tess_accumulate(w->buf[1].ptr, i, t, acc, tess_load(w->buf[0].ptr, i, t));
        for (int64_t i = first + a->rotary; i < end; i++)
            tess_accumulate(w->buf[1].ptr, i, t, acc, tess_load(w->buf[0].ptr, i, t));
    }
}

TESS_INLINE void turn(const tess_work *w, tess_dtype t, bool acc, float direction)
{
    const tess_rope_arg *a = w->arg;
    const int64_t half = a->rotary / 2;
    const int32_t *place = a->placed ? w->buf[2].ptr : NULL;
    TESS_ASSERT(a->rotary % 2 == 0 && a->rotary + a->skip <= a->dim);
    for (int64_t first = 0; first < half; first += CHUNK) {
        const int64_t pairs = half - first < CHUNK ? half - first : CHUNK;
        float speed[CHUNK], sine[CHUNK], cosine[CHUNK];
        for (int64_t i = 0; i < pairs; i++) speed[i] = direction * tess_rope_speed(a, first + i);
        for (int64_t r = 0; r < a->rows; r++) {
            turn_of((float)(place ? place[r] : (a->row0 + r) % a->sequence), speed, tess_rope_size(a), pairs, sine,
                    cosine);
            for (int64_t h = 0; h < a->heads; h++) {
                const int64_t head = (r * a->heads + h) * a->dim + a->skip;
                if (tess_rope_stays(a, h)) continue;
                if (a->half)
                    turn_head(tess_at(w->buf[0].ptr, head + first, t), tess_at_mut(w->buf[1].ptr, head + first, t), t,
                              acc, pairs, 1, half, sine, cosine);
                else
                    turn_head(tess_at(w->buf[0].ptr, head + 2 * first, t),
                              tess_at_mut(w->buf[1].ptr, head + 2 * first, t), t, acc, pairs, 2, 1, sine, cosine);
            }
        }
    }
    if (a->rotary < a->dim || a->of) pass_through(w, t, acc);
}

TESS_INLINE void rope_forward(const tess_work *w, tess_dtype t)
{
    turn(w, t, false, 1);
}
TESS_INLINE void rope_backward(const tess_work *w, tess_dtype t)
{
    turn(w, t, ((const tess_rope_arg *)w->arg)->acc, -1);
}

TESS_REAL(rope_forward)
TESS_REAL(rope_backward)
