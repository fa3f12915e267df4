/* cached_attention: a warp for each query, whose lanes are 32 keys at a time and then the elements of a head. Plain,
 * and meant for the few queries of a step that generates. */
#include "codelets/attention/buckets_cuda_impl.h"

constexpr int THREADS = 128, MOST_DIM = 512;

struct tiles {
    const void *keys[TESS_CACHED_TILES], *values[TESS_CACHED_TILES];
};

/* Where a row's part of a head begins. */
TESS_DEVICE int64_t part_at(const tess_cached_arg &a, int part, int64_t r, int64_t head)
{
    const tess_heads h = tess_heads_of(a.heads, a.groups, a.dim, a.packed, a.by_head, part);
    return h.column + r * h.ld + head * h.apart;
}

/* Block r: row r of the step. */
template <tess_dtype T>
TESS_KERNEL(THREADS)
append_kernel(tess_cached_arg a, const void *k, const void *v, const int32_t *bounds, void *keys, void *values)
{
    const int64_t r = blockIdx.x, s = r / a.queries, i = r % a.queries;
    const int32_t *sees = a.own ? bounds + 2 * s * a.queries + i : nullptr;
    const int64_t place = (sees ? sees[a.queries] - 1 : i) - a.first;
    if (place < 0 || place >= a.block || (sees && sees[0] >= sees[a.queries])) return;
    for (int64_t e = threadIdx.x; e < a.groups * a.dim; e += THREADS) {
        const int64_t g = e / a.dim, d = e % a.dim, head = (s * a.groups + g) * a.dim * a.block;
        put_at<T>(keys, head + d * a.block + place, value_at<T>(k, part_at(a, 1, r, g) + d));
        put_at<T>(values, head + place * a.dim + d, value_at<T>(v, part_at(a, 2, r, g) + d));
    }
}

/* Block b, one warp: a query of a head. */
template <tess_dtype T>
TESS_KERNEL(WARP)
attend_kernel(tess_cached_arg a, tiles of, buckets by, const void *q, const int32_t *bounds, const void *bias,
              const float *sinks, float *state, void *y)
{
    const int64_t share = a.heads / a.groups, queries = share * a.queries, b = blockIdx.x;
    const int64_t row = b % queries, g = b / queries % a.some, s = b / queries / a.some;
    const int64_t group = a.group0 + g, head = group * share + row / a.queries, i = row % a.queries;
    const int lane = (int)threadIdx.x;
    TESS_SHARED(float, share_p, [WARP]);
    const int32_t *mine = bounds + 2 * s * a.queries;
    int64_t first = mine[i], end = mine[a.queries + i];
    const int64_t place = mine[a.queries] - 1 + i; /* queries follow each other */
    if (a.window && end - a.window > first) first = end - a.window;
    const int64_t from = part_at(a, 0, s * a.queries + i, head);
    float *left = state ? state + (s * a.some + g) * queries * (a.dim + 2) : NULL;
    float m = -INFINITY, l = 0, o[MOST_DIM / WARP];
    for (int j = 0; j < MOST_DIM / WARP; j++) o[j] = 0;
    if (sinks) m = sinks[head] * TESS_LOG2_E, l = 1;
    if (!a.begins) {
        m = left[row], l = left[queries + row];
        for (int64_t d = lane, j = 0; d < a.dim; d += WARP, j++) o[j] = left[2 * queries + row * a.dim + d];
    }
    for (int64_t t = 0; t < a.tiles; t++) {
        const int64_t at = (s * a.groups + group) * a.dim * a.block, begin = a.first + t * a.block;
        for (int64_t k0 = 0; k0 < a.block; k0 += WARP) {
            if (begin + k0 >= end || begin + k0 + WARP <= first) continue;
            const int64_t key = k0 + lane;
            const bool sees = key < a.block && begin + key >= first && begin + key < end;
            float logit = -INFINITY;
            if (sees) {
                float sum = 0;
                for (int64_t d = 0; d < a.dim; d++)
                    sum += value_at<T>(q, from + d) * value_at<T>(of.keys[t], at + d * a.block + key);
                logit = sum * a.scale;
                if (a.cap > 0) logit = a.cap * tess_tanhf(logit / a.cap);
                if (bias)
                    logit += value_at<T>(bias, (int64_t)bucket_of(by, (int)(begin + key - place)) * a.heads + head);
                logit *= TESS_LOG2_E;
            }
            const float most = fmaxf(m, warp_max(logit)), shrink = tess_power_of_2(m - most);
            const float p = sees ? tess_power_of_2(logit - most) : 0;
            __syncwarp();
            share_p[lane] = p;
            __syncwarp();
            l = l * shrink + warp_sum(p);
            m = most;
            for (int j = 0; j < MOST_DIM / WARP; j++) o[j] *= shrink;
            for (int k = 0; k < WARP && k0 + k < a.block; k++) {
                const float pk = share_p[k];
                for (int64_t d = lane, j = 0; d < a.dim; d += WARP, j++)
                    o[j] += pk * value_at<T>(of.values[t], at + (k0 + k) * a.dim + d);
            }
        }
    }
    if (!a.ends) {
        if (lane == 0) left[row] = m, left[queries + row] = l;
        for (int64_t d = lane, j = 0; d < a.dim; d += WARP, j++) left[2 * queries + row * a.dim + d] = o[j];
        return;
    }
    const int64_t to = (s * a.queries + i) * a.some * share * a.dim + (head - a.group0 * share) * a.dim;
    for (int64_t d = lane, j = 0; d < a.dim; d += WARP, j++) put_at<T>(y, to + d, l > 0 ? o[j] / l : 0);
}

template <tess_dtype T> static void cache_append_body(const tess_work *w)
{
    const tess_cached_arg *a = arg_of(w);
    const tess_view *rest = w->buf + (a->packed ? 1 : 2);
    const void *k = w->buf[0].ptr, *v = a->packed ? k : w->buf[1].ptr;
    const int32_t *bounds = a->own ? (const int32_t *)(rest++)->ptr : NULL;
    launch(w, append_kernel<T>, a->sequences * a->queries, THREADS, 0, *a, k, v, bounds, rest[0].ptr, rest[1].ptr);
}
template <tess_dtype T> static void cached_attention_body(const tess_work *w)
{
    const tess_cached_arg *a = arg_of(w);
    const tess_view *rest = w->buf + 1;
    const int32_t *bounds = (const int32_t *)(rest++)->ptr;
    const void *bias = a->buckets ? (rest++)->ptr : NULL;
    const float *sinks = a->sinks ? (const float *)(rest++)->ptr : NULL;
    tiles of;
    if (a->dim > MOST_DIM || a->tiles > TESS_CACHED_TILES) {
        tess_work_fail(w, "CUDA: heads of %lld elements (at most %d)", (long long)a->dim, MOST_DIM);
        return;
    }
    for (int64_t k = 0; k < a->tiles; k++) of.keys[k] = rest[k].ptr, of.values[k] = rest[a->tiles + k].ptr;
    rest += 2 * a->tiles;
    float *state = a->begins && a->ends ? NULL : (float *)(rest++)->ptr;
    void *y = a->ends ? (rest++)->ptr : NULL;
    launch(w, attend_kernel<T>, a->sequences * a->some * (a->heads / a->groups) * a->queries, WARP, 0, *a, of,
           buckets_of(a->buckets, a->reach, a->causal), buffer(w, 0), bounds, bias, sinks, state, y);
}
TESS_CUDA_REAL(cache_append)
TESS_CUDA_REAL(cached_attention)
