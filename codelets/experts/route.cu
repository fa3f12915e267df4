/* route: a warp a row finds the experts that it chooses; then a block an expert counts its rows, and gives them places
 * in their order. */
#include "codelets/experts/order_impl.h"
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256, ROWS = THREADS / WARP;

/* The warp's largest, of equal ones the first; `at` -1: the lane has none. */
TESS_DEVICE int largest(float *best, int at)
{
#pragma unroll
    for (int d = WARP / 2; d > 0; d /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, *best, d);
        const int where = __shfl_xor_sync(0xffffffffu, at, d);
        if (where >= 0 && (at < 0 || other > *best || (other == *best && where < at))) *best = other, at = where;
    }
    return at;
}

TESS_DEVICE float score_of(float logit)
{
    return 1 / (1 + tess_expf(-logit));
}
template <tess_dtype T>
TESS_DEVICE float rank_of(const tess_route_arg &a, const void *logits, const float *bias, int64_t row, int e)
{
    float x = value_at<T>(logits, row + e);
    if (a.scored) x = score_of(x) + bias[e];
    return x == x ? x : -INFINITY;
}

/* The groups that are chosen from, a bit each; a lane has one. */
template <tess_dtype T>
TESS_DEVICE unsigned keep_groups(const tess_route_arg &a, const void *logits, const float *bias, int64_t row, int lane)
{
    const int each = a.groups ? (int)(a.experts / a.groups) : 0;
    float one = -INFINITY, two = -INFINITY;
    unsigned kept = 0;
    for (int e = lane * each; lane < a.groups && e < (lane + 1) * each; e++) {
        const float x = rank_of<T>(a, logits, bias, row, e);
        two = x > one ? one : x > two ? x : two;
        one = x > one ? x : one;
    }
    for (int64_t s = 0; s < a.kept; s++) {
        float best = one + two == one + two ? one + two : -INFINITY;
        kept |= 1u << largest(&best, lane < a.groups && !(kept >> lane & 1) ? lane : -1);
    }
    return a.groups ? kept : ~0u;
}

/* The warp's next choice of a row: the largest behind (last, before). */
template <tess_dtype T>
TESS_DEVICE int next_choice(const tess_route_arg &a, const void *logits, const float *bias, int64_t row, unsigned kept,
                            float *last, int before, int lane)
{
    const int each = (int)(a.groups ? a.experts / a.groups : a.experts);
    float best = 0;
    int at = -1;
    for (int e = lane; e < a.experts; e += WARP) {
        if (!(kept >> e / each & 1)) continue;
        const float x = rank_of<T>(a, logits, bias, row, e);
        const bool left = x < *last || (x == *last && e > before);
        if (left && (at < 0 || x > best)) best = x, at = e;
    }
    at = largest(&best, at);
    *last = best;
    return at;
}

/* exp(logit - most) of one, or its sigmoid. */
template <tess_dtype T> TESS_DEVICE float share_of(const tess_route_arg &a, const void *logits, int64_t i, float most)
{
    const float x = value_at<T>(logits, i);
    return a.scored ? score_of(x) : tess_expf(x - most);
}

/* What a row's shares are divided by, to all lanes. */
template <tess_dtype T>
TESS_DEVICE float whole_of(const tess_route_arg &a, const void *logits, int64_t row, const int32_t *chosen, float most,
                           int lane)
{
    float sum = 0;
    if (a.scored && !a.normalised) return 1;
    if (a.normalised)
        for (int64_t s = lane; s < a.chosen; s += WARP) sum += share_of<T>(a, logits, row + chosen[s], most);
    else
        for (int64_t e = lane; e < a.experts; e += WARP) sum += share_of<T>(a, logits, row + e, most);
    return warp_sum(sum) + (a.scored ? 1e-20f : 0);
}

template <tess_dtype T>
TESS_KERNEL(THREADS)
choose_kernel(const void *logits, void *weights, tess_order o, const float *bias, const int32_t *bounds,
              tess_route_arg a)
{
    const int lane = (int)threadIdx.x % WARP;
    const int64_t r = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, row = r * a.experts;
    if (r >= a.rows) return;
    int32_t *chosen = o.expert + r * a.chosen;
    const int64_t of = r / a.sequence * 2 * a.sequence + a.place + r % a.sequence;
    if (bounds && bounds[of + a.sequence] <= bounds[of]) { /* it sees nothing: padding */
        for (int64_t s = lane; s < a.chosen; s += WARP) {
            chosen[s] = o.place[r * a.chosen + s] = -1;
            put_at<T>(weights, r * a.chosen + s, 0);
        }
        return;
    }
    const unsigned kept = keep_groups<T>(a, logits, bias, row, lane);
    const float scale = a.scale != 0 ? a.scale : 1;
    float last = INFINITY;
    int before = -1;
    for (int64_t s = 0; s < a.chosen; s++) {
        before = next_choice<T>(a, logits, bias, row, kept, &last, before, lane);
        if (lane == 0) chosen[s] = before;
    }
    __syncwarp();
    const float most = value_at<T>(logits, row + chosen[0]);
    const float whole = whole_of<T>(a, logits, row, chosen, most, lane);
    for (int64_t s = lane; s < a.chosen; s += WARP)
        put_at<T>(weights, r * a.chosen + s, share_of<T>(a, logits, row + chosen[s], most) / whole * scale);
}

/* offset[e + 1] = the choices of expert e, the block's. */
TESS_KERNEL(THREADS) count_kernel(tess_order o, int64_t choices)
{
    TESS_SHARED(int, counts, [THREADS / WARP]);
    const int e = (int)blockIdx.x;
    int all = 0, before;
    for (int64_t base = 0; base < choices; base += THREADS) {
        const int64_t i = base + threadIdx.x;
        all += count<THREADS>(i < choices && o.expert[i] == e, counts, &before);
        __syncthreads();
    }
    if (threadIdx.x == 0) o.offset[e + 1] = all;
}
TESS_KERNEL(WARP) add_kernel(tess_order o, int64_t experts)
{
    if (threadIdx.x > 0) return;
    o.offset[0] = 0;
    for (int64_t e = 0; e < experts; e++) o.offset[e + 1] += o.offset[e];
}
TESS_KERNEL(THREADS) place_kernel(tess_order o, int64_t choices)
{
    TESS_SHARED(int, counts, [THREADS / WARP]);
    const int e = (int)blockIdx.x;
    int at = o.offset[e], before;
    for (int64_t base = 0; base < choices; base += THREADS) {
        const int64_t i = base + threadIdx.x;
        const bool hit = i < choices && o.expert[i] == e;
        const int all = count<THREADS>(hit, counts, &before);
        if (hit) {
            o.place[i] = at + before;
            o.choice[at + before] = (int32_t)i;
        }
        at += all;
        __syncthreads();
    }
}
struct clear_rest {
    tess_order o;
    int64_t experts;
    template <int K> TESS_DEVICE void at(int64_t p) const
    {
        for (int k = 0; k < K; k++)
            if (p + k >= o.offset[experts]) o.choice[p + k] = -1;
    }
};

template <tess_dtype T> static void route_forward_body(const tess_work *w)
{
    const tess_route_arg *a = arg_of(w);
    const int64_t choices = a->rows * a->chosen;
    const tess_order o = tess_order_at(w->buf[2].ptr, a->experts, choices);
    launch(w, choose_kernel<T>, blocks_of(a->rows, ROWS), THREADS, 0, buffer(w, 0), w->buf[1].ptr, o,
           (const float *)(a->scored ? w->buf[3].ptr : NULL),
           (const int32_t *)(a->bounded ? w->buf[a->scored ? 4 : 3].ptr : NULL), *a);
    launch(w, count_kernel, a->experts, THREADS, 0, o, choices);
    launch(w, add_kernel, 1, WARP, 0, o, a->experts);
    launch(w, place_kernel, a->experts, THREADS, 0, o, choices);
    map(w, clear_rest{o, a->experts}, choices, false);
}

/* As in route.c; a warp a row. */
template <tess_dtype T>
TESS_KERNEL(THREADS)
route_backward_kernel(const void *dweights, const void *logits, tess_order o, void *dlogits, tess_route_arg a)
{
    const int lane = (int)threadIdx.x % WARP;
    const int64_t r = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, row = r * a.experts;
    if (r >= a.rows) return;
    const int32_t *chosen = o.expert + r * a.chosen;
    if (chosen[0] < 0) {
        for (int64_t e = lane; e < a.experts && !a.acc; e += WARP) put_at<T>(dlogits, row + e, 0);
        return;
    }
    const float most = value_at<T>(logits, row + chosen[0]);
    const float whole = whole_of<T>(a, logits, row, chosen, most, lane);
    const bool all = !a.normalised && !a.scored;
    const float scale = a.scale != 0 ? a.scale : 1;
    float mean = 0;
    for (int64_t s = lane; s < a.chosen && (a.normalised || all); s += WARP)
        mean += share_of<T>(a, logits, row + chosen[s], most) / whole * value_at<T>(dweights, r * a.chosen + s);
    mean = warp_sum(mean);
    for (int64_t e = lane; e < a.experts; e += WARP) {
        float d = -mean, v = 0;
        bool is_chosen = false;
        for (int64_t s = 0; s < a.chosen; s++)
            if (chosen[s] == e) d += value_at<T>(dweights, r * a.chosen + s), is_chosen = true;
        if (is_chosen || all) {
            const float share = share_of<T>(a, logits, row + e, most);
            v = share / whole * scale * (a.scored ? 1 - share : 1) * d;
        }
        add_at<T>(dlogits, row + e, a.acc, v);
    }
}
template <tess_dtype T> static void route_backward_body(const tess_work *w)
{
    const tess_route_arg *a = arg_of(w);
    launch(w, route_backward_kernel<T>, blocks_of(a->rows, ROWS), THREADS, 0, buffer(w, 0), buffer(w, 1),
           TESS_ORDER_OF(w, 2, a), w->buf[3].ptr, *a);
}

TESS_CUDA_REAL(route_forward)
TESS_CUDA_REAL(route_backward)
