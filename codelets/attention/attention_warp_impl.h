/* attention_warp: the kernels of attention.cu that need no tensor cores: a warp a query, a key or a distance. A part of
 * attention.cu. */
#ifndef TESS_ATTENTION_WARP_IMPL_H
#define TESS_ATTENTION_WARP_IMPL_H
#include "codelets/attention/attention_seen_impl.h"

/* ==== any head size, any dtype =====================================================================================
 */

constexpr int GENERAL_WARPS = 4;

/* Sum of a b over `dim`, to all lanes; a in shared memory. */
template <tess_dtype T> TESS_DEVICE float dot(const float *a, const void *b, int dim, int lane)
{
    float sum = 0;
    for (int c = lane; c < dim; c += WARP) sum += a[c] * value_at<T>(b, c);
    return warp_sum(sum);
}
/* sum += weight b */
template <tess_dtype T> TESS_DEVICE void add_scaled(float *sum, float weight, const void *b, int dim, int lane)
{
    for (int c = lane; c < dim; c += WARP) sum[c] += weight * value_at<T>(b, c);
}
template <tess_dtype T> TESS_DEVICE void widen(float *to, const void *from, int dim, int lane)
{
    for (int c = lane; c < dim; c += WARP) to[c] = value_at<T>(from, c);
}
template <tess_dtype T> TESS_DEVICE void put_row(void *to, const float *from, float scale, bool acc, int dim, int lane)
{
    for (int c = lane; c < dim; c += WARP) add_at<T>(to, c, acc, from[c] * scale);
}
/* dq, dk or dv. */
template <tess_dtype T>
TESS_DEVICE void put_gradient(const flash &f, const part &d, const float *from, int64_t row, int head, bool acc,
                              int lane)
{
    if (f.sums)
        put_row<TESS_F32>(row_of_mut<TESS_F32>(d, row, head), from, 1, acc, f.dim, lane);
    else
        put_row<T>(row_of_mut<T>(d, row, head), from, 1, acc, f.dim, lane);
}
TESS_DEVICE void clear(float *to, int dim, int lane)
{
    for (int c = lane; c < dim; c += WARP) to[c] = 0;
}

/* The warp's query (or key), and its room of `rows` rows of dim floats in shared memory. A lane reads only what it
 * wrote itself. */
struct place {
    int64_t row; /* of the tile */
    int index;   /* in the sequence */
    int head;
    int64_t sequence;
    bool valid;
};
TESS_DEVICE place place_in(int64_t warps_before, int length, int heads, int64_t rows)
{
    place p;
    const int64_t i = warps_before + (int64_t)threadIdx.x / WARP;
    p.row = i / heads;
    p.head = (int)(i % heads);
    p.index = (int)(p.row % length);
    p.sequence = p.row / length;
    p.valid = p.row < rows;
    return p;
}

template <tess_dtype T> TESS_KERNEL(GENERAL_WARPS *WARP) forward_kernel(flash f, int64_t rows)
{
    TESS_DYNAMIC_SHARED(shared);
    const int lane = (int)threadIdx.x % WARP;
    const place at = place_in((int64_t)blockIdx.x * GENERAL_WARPS, f.length, f.heads, rows);
    if (!at.valid) return;
    float *q = (float *)shared + (int)threadIdx.x / WARP * 2 * f.dim, *o = q + f.dim, top = -INFINITY, sum = 0;
    const int group = at.head / (f.heads / f.groups);
    const range seen = seen_by(f, at.sequence, at.index);
    const tess_random_key random = random_of(f, at.sequence, at.head);
    const float *bias = bias_of(f, at.head);
    widen<T>(q, row_of<T>(f.q, at.row, at.head), f.dim, lane);
    clear(o, f.dim, lane);
    if (goes_on(f)) {
        const carry c = carry_of(f, at.head, at.index);
        for (int i = lane; i < f.dim; i += WARP) o[i] = c.o[i * CARRIED];
        top = *c.top, sum = *c.sum;
    }
    for (int key = seen.first; key < seen.end; key++) {
        const int64_t row = at.sequence * f.keys + key;
        float slope;
        const float s = bend(f, bias, dot<T>(q, row_of<T>(f.k, row, group), f.dim, lane), at.index, key, &slope);
        const float most = fmaxf(top, s), shrink = exp2f(top - most), p = exp2f(s - most);
        sum = sum * shrink + p;
        top = most;
        for (int c = lane; c < f.dim; c += WARP) o[c] *= shrink;
        add_scaled<T>(o, kept(f, random, at.index, key) ? p : 0, row_of<T>(f.v, row, group), f.dim, lane);
    }
    if (leaves(f)) {
        const carry c = carry_of(f, at.head, at.index);
        for (int i = lane; i < f.dim; i += WARP) c.o[i * CARRIED] = o[i];
        if (lane == 0) *c.top = top, *c.sum = sum;
        return;
    }
    put_row<T>(row_of_mut<T>(f.y, at.row, at.head), o, sum > 0 ? f.rule.scale / sum : 0, false, f.dim, lane);
    if (lane == 0) f.lse[at.row * f.heads + at.head] = sum > 0 ? top * TESS_LN_2 + logf(sum) : INFINITY;
}

template <tess_dtype T> TESS_KERNEL(GENERAL_WARPS *WARP) queries_kernel(flash f, int64_t rows)
{
    TESS_DYNAMIC_SHARED(shared);
    const int lane = (int)threadIdx.x % WARP;
    const place at = place_in((int64_t)blockIdx.x * GENERAL_WARPS, f.length, f.heads, rows);
    if (!at.valid) return;
    float *q = (float *)shared + (int)threadIdx.x / WARP * 3 * f.dim, *dy = q + f.dim, *dq = dy + f.dim;
    const int group = at.head / (f.heads / f.groups);
    const range seen = seen_by(f, at.sequence, at.index);
    const tess_random_key random = random_of(f, at.sequence, at.head);
    const float *bias = bias_of(f, at.head);
    const float lse = f.lse[at.row * f.heads + at.head], delta = f.delta[at.row * f.heads + at.head];
    widen<T>(q, row_of<T>(f.q, at.row, at.head), f.dim, lane);
    widen<T>(dy, row_of<T>(f.dy, at.row, at.head), f.dim, lane);
    clear(dq, f.dim, lane);
    for (int key = seen.first; key < seen.end; key++) {
        const int64_t row = at.sequence * f.keys + key;
        const void *k = row_of<T>(f.k, row, group);
        float slope;
        const float p = exp2f(bend(f, bias, dot<T>(q, k, f.dim, lane), at.index, key, &slope) - lse * TESS_LOG2_E);
        const float dp = dot<T>(dy, row_of<T>(f.v, row, group), f.dim, lane);
        const float keep = kept(f, random, at.index, key) ? f.rule.scale : 0;
        add_scaled<T>(dq, p * (dp * keep - delta) * slope, k, f.dim, lane);
    }
    put_gradient<T>(f, f.dq, dq, at.row, at.head, f.acc_q, lane);
}

template <tess_dtype T> TESS_KERNEL(GENERAL_WARPS *WARP) keys_kernel(flash f, int64_t rows)
{
    TESS_DYNAMIC_SHARED(shared);
    const int lane = (int)threadIdx.x % WARP;
    const place at = place_in((int64_t)blockIdx.x * GENERAL_WARPS, f.keys, f.groups, rows);
    if (!at.valid) return;
    float *k = (float *)shared + (int)threadIdx.x / WARP * 4 * f.dim, *v = k + f.dim, *dk = v + f.dim, *dv = dk + f.dim;
    const int share = f.heads / f.groups;
    widen<T>(k, row_of<T>(f.k, at.row, at.head), f.dim, lane);
    widen<T>(v, row_of<T>(f.v, at.row, at.head), f.dim, lane);
    clear(dk, f.dim, lane);
    clear(dv, f.dim, lane);
    for (int head = at.head * share; head < (at.head + 1) * share; head++) {
        const tess_random_key random = random_of(f, at.sequence, head);
        const float *bias = bias_of(f, head);
        for (int query = f.causal ? at.index : 0; query < f.length; query++) {
            const int64_t row = at.sequence * f.length + query;
            const range seen = seen_by(f, at.sequence, query);
            if (at.index < seen.first || at.index >= seen.end) continue;
            float slope;
            const void *q = row_of<T>(f.q, row, head), *dy = row_of<T>(f.dy, row, head);
            const float s = bend(f, bias, dot<T>(k, q, f.dim, lane), query, at.index, &slope);
            const float p = exp2f(s - f.lse[row * f.heads + head] * TESS_LOG2_E);
            const float keep = kept(f, random, query, at.index) ? f.rule.scale : 0;
            const float ds = p * (dot<T>(v, dy, f.dim, lane) * keep - f.delta[row * f.heads + head]) * slope;
            add_scaled<T>(dv, p * keep, dy, f.dim, lane);
            add_scaled<T>(dk, ds, q, f.dim, lane);
        }
    }
    put_gradient<T>(f, f.dk, dk, at.row, at.head, f.acc, lane);
    put_gradient<T>(f, f.dv, dv, at.row, at.head, f.acc, lane);
}

/* ==== a bias by distance ========================================================================================== */

/* f.bias (heads, length + keys) from the table (buckets, heads). */
template <tess_dtype T> TESS_KERNEL(256) spread_kernel(flash f, buckets b, const void *table)
{
    const int n = f.length + f.keys;
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    const int head = (int)(i / n), at = (int)(i % n);
    if (head >= f.heads) return;
    f.bias[i] = value_at<T>(table, (int64_t)bucket_of(b, at - (f.length - 1) + f.key0 - f.query0) * f.heads + head);
}

/* f.dbias (heads, length + keys): a warp a distance, over sequences and queries in their order. */
template <tess_dtype T> TESS_KERNEL(GENERAL_WARPS *WARP) distances_kernel(flash f, int64_t sequences)
{
    const int lane = (int)threadIdx.x % WARP, n = f.length + f.keys;
    const int64_t i = (int64_t)blockIdx.x * GENERAL_WARPS + threadIdx.x / WARP;
    const int head = (int)(i / n), distance = (int)(i % n) - (f.length - 1), group = head / (f.heads / f.groups);
    if (head >= f.heads) return;
    const float *bias = bias_of(f, head);
    float sum = 0;
    for (int64_t sequence = 0; sequence < sequences; sequence++) {
        const tess_random_key random = random_of(f, sequence, head);
        for (int query = distance < 0 ? -distance : 0; query < f.length && query + distance < f.keys; query++) {
            const range seen = seen_by(f, sequence, query);
            const int key = query + distance;
            if (key < seen.first || key >= seen.end) continue;
            const int64_t row = sequence * f.length + query, key_row = sequence * f.keys + key;
            const void *q = row_of<T>(f.q, row, head), *k = row_of<T>(f.k, key_row, group);
            const void *dy = row_of<T>(f.dy, row, head), *v = row_of<T>(f.v, key_row, group);
            float s = 0, dp = 0, slope;
            for (int c = lane; c < f.dim; c += WARP) {
                s += value_at<T>(q, c) * value_at<T>(k, c);
                dp += value_at<T>(dy, c) * value_at<T>(v, c);
            }
            s = bend(f, bias, warp_sum(s), query, key, &slope);
            const float p = exp2f(s - f.lse[row * f.heads + head] * TESS_LOG2_E);
            const float keep = kept(f, random, query, key) ? f.rule.scale : 0;
            sum += p * (warp_sum(dp) * keep - f.delta[row * f.heads + head]);
        }
    }
    if (lane == 0) f.dbias[i] = sum;
}

/* dtable (buckets, heads) += what its distances have. */
TESS_KERNEL(256) gather_kernel(flash f, buckets b, float *dtable, bool acc)
{
    const int n = f.length + f.keys - 1;
    const int64_t i = (int64_t)blockIdx.x * 256 + threadIdx.x;
    const int bucket = (int)(i / f.heads), head = (int)(i % f.heads);
    if (bucket >= b.all) return;
    double sum = 0;
    for (int at = 0; at < n; at++)
        if (bucket_of(b, at - (f.length - 1) + f.key0 - f.query0) == bucket)
            sum += f.dbias[(int64_t)head * (f.length + f.keys) + at];
    dtable[i] = acc ? dtable[i] + (float)sum : (float)sum;
}

#endif
