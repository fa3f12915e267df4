/* balance: a warp a row finds what its softmax is divided by; then a block an expert and sequence sums down the rows.
 */
#include "codelets/experts/balance_impl.h"
#include "codelets/shared/kernels.h"

constexpr int THREADS = 256, ROWS = THREADS / WARP;

template <tess_dtype T> TESS_DEVICE double stored(const void *y, int64_t i, int64_t numbers)
{
    return ((double)value_at<T>(y, i) + (double)value_at<T>(y, i + numbers)) / tess_balance_unit(T);
}
template <tess_dtype T> TESS_DEVICE void put(void *y, int64_t i, int64_t numbers, double v)
{
    v *= tess_balance_unit(T);
    put_at<T>(y, i, (float)v);
    put_at<T>(y, i + numbers, (float)(v - (double)value_at<T>(y, i)));
}

/* The largest logit of the warp's row, and the sum of exp(logit - most), to all lanes. */
template <tess_dtype T>
TESS_DEVICE float row_shares(const void *logits, int64_t row, int64_t experts, float *most, int lane)
{
    float top = -INFINITY, sum = 0;
    for (int64_t e = lane; e < experts; e += WARP) top = fmaxf(top, value_at<T>(logits, row + e));
    *most = warp_max(top);
    for (int64_t e = lane; e < experts; e += WARP) sum += tess_expf(value_at<T>(logits, row + e) - *most);
    return warp_sum(sum);
}

/* shares (rows,2): those two of each row. */
template <tess_dtype T>
TESS_KERNEL(THREADS)
rows_kernel(const void *logits, float *shares, int64_t rows, int64_t experts)
{
    const int lane = (int)threadIdx.x % WARP;
    const int64_t r = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP;
    if (r >= rows) return;
    float most;
    const float whole = row_shares<T>(logits, r * experts, experts, &most, lane);
    if (lane == 0) shares[2 * r] = most, shares[2 * r + 1] = whole;
}

template <tess_dtype T>
TESS_KERNEL(THREADS)
balance_kernel(const void *logits, const float *shares, tess_order o, void *y, const void *before, tess_balance_arg a)
{
    TESS_SHARED(float, room, [THREADS / WARP]);
    const int64_t E = a.experts, s = blockIdx.x / E, e = blockIdx.x % E, numbers = tess_balance_numbers(E);
    const int64_t base = s * 2 * numbers;
    float share = 0, choices = 0, rows = 0;
    for (int64_t r = s * a.sequence + threadIdx.x; r < (s + 1) * a.sequence; r += THREADS) {
        if (o.expert[r * a.chosen] < 0) continue;
        rows++;
        share += tess_expf(value_at<T>(logits, r * E + e) - shares[2 * r]) / shares[2 * r + 1];
        for (int64_t k = 0; k < a.chosen; k++) choices += o.expert[r * a.chosen + k] == e;
    }
    share = block_sum<THREADS>(share, room);
    choices = block_sum<THREADS>(choices, room);
    rows = block_sum<THREADS>(rows, room);
    if (threadIdx.x > 0) return;
    put<T>(y, base + e, numbers, (before ? stored<T>(before, base + e, numbers) : 0) + (double)choices);
    put<T>(y, base + E + e, numbers, (before ? stored<T>(before, base + E + e, numbers) : 0) + (double)share);
    if (e == 0)
        put<T>(y, base + 2 * E, numbers, (before ? stored<T>(before, base + 2 * E, numbers) : 0) + (double)rows);
}
template <tess_dtype T> static void balance_forward_body(const tess_work *w)
{
    const tess_balance_arg *a = arg_of(w);
    const void *logits = w->buf[0].ptr, *before = a->before ? w->buf[3].ptr : NULL;
    float *shares = (float *)room_of(w, (size_t)(2 * a->rows) * sizeof *shares);
    if (!shares) return;
    launch(w, rows_kernel<T>, blocks_of(a->rows, ROWS), THREADS, 0, logits, shares, a->rows, a->experts);
    launch(w, balance_kernel<T>, a->rows / a->sequence * a->experts, THREADS, 0, logits, shares, TESS_ORDER_OF(w, 1, a),
           w->buf[2].ptr, before, *a);
}

template <tess_dtype T>
TESS_KERNEL(THREADS)
balance_backward_kernel(const void *dy, const void *logits, tess_order o, void *dlogits, tess_balance_arg a)
{
    const int lane = (int)threadIdx.x % WARP;
    const int64_t r = (int64_t)blockIdx.x * ROWS + threadIdx.x / WARP, E = a.experts;
    if (r >= a.rows) return;
    const bool counts = o.expert[r * a.chosen] >= 0;
    const int64_t g = r / a.sequence * 2 * tess_balance_numbers(E) + E;
    float most, mean = 0;
    const float whole = row_shares<T>(logits, r * E, E, &most, lane);
    for (int64_t e = lane; e < E; e += WARP)
        mean += tess_expf(value_at<T>(logits, r * E + e) - most) / whole * value_at<T>(dy, g + e);
    mean = warp_sum(mean);
    for (int64_t e = lane; e < E; e += WARP) {
        const float p = tess_expf(value_at<T>(logits, r * E + e) - most) / whole;
        add_at<T>(dlogits, r * E + e, a.acc, counts ? p * (value_at<T>(dy, g + e) - mean) : 0);
    }
}
template <tess_dtype T> static void balance_backward_body(const tess_work *w)
{
    const tess_balance_arg *a = arg_of(w);
    launch(w, balance_backward_kernel<T>, blocks_of(a->rows, ROWS), THREADS, 0, buffer(w, 0), buffer(w, 1),
           TESS_ORDER_OF(w, 2, a), w->buf[3].ptr, *a);
}

/* total (numbers) [+]= the sums of a tile's sequences. */
template <tess_dtype T>
TESS_KERNEL(THREADS)
total_kernel(const void *y, double *total, int64_t numbers, int64_t sequences, bool acc)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= numbers) return;
    double sum = acc ? total[i] : 0;
    for (int64_t s = 0; s < sequences; s++) sum += stored<T>(y, s * 2 * numbers + i, numbers);
    total[i] = sum;
}
TESS_DEVICE double by_of(const double *total, const tess_balance_arg &a)
{
    const double rows = total[2 * a.experts];
    return rows > 0 ? a.weight * (double)a.experts / (rows * rows) : 0;
}
TESS_KERNEL(WARP) loss_kernel(const double *total, double *loss, tess_balance_arg a, double per_target)
{
    double sum = 0;
    if (threadIdx.x > 0) return;
    for (int64_t e = 0; e < a.experts; e++) sum += total[e] * total[a.experts + e];
    loss[0] = per_target > 0 && !a.told ? by_of(total, a) * sum / per_target : 0;
    loss[1] = 0;
}
template <tess_dtype T>
TESS_KERNEL(THREADS)
gradient_kernel(const double *total, void *d, int64_t n, tess_balance_arg a, double unscale)
{
    const int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x, E = a.experts;
    const int64_t at = i % (2 * tess_balance_numbers(E));
    if (i >= n) return;
    put_at<T>(d, i, at >= E && at < 2 * E ? (float)(by_of(total, a) * total[at - E] / unscale) : 0);
}
template <tess_dtype T> static void balance_loss_body(const tess_work *w)
{
    const tess_balance_arg *a = arg_of(w);
    const int64_t numbers = tess_balance_numbers(a->experts);
    double *total = (double *)room_of(w, (size_t)numbers * sizeof *total);
    if (!total) return;
    for (unsigned k = 0; k < a->tiles; k++) {
        const tess_view *v = &w->buf[1 + k];
        launch(w, total_kernel<T>, blocks_of(numbers, THREADS), THREADS, 0, v->ptr, total, numbers,
               (int64_t)(v->bytes / tess_dtype_size(T)) / (2 * numbers), k > 0);
    }
    launch(w, loss_kernel, 1, WARP, 0, total, buffer(w, 0), *a, (double)w->env->loss_scale[0] * w->env->unscale);
    for (unsigned k = 0; k < a->own; k++) {
        const tess_view *v = &w->buf[1 + a->tiles + k];
        const int64_t n = (int64_t)(v->bytes / tess_dtype_size(T));
        launch(w, gradient_kernel<T>, blocks_of(n, THREADS), THREADS, 0, total, v->ptr, n, *a, w->env->unscale);
    }
}

TESS_CUDA_REAL(balance_forward)
TESS_CUDA_REAL(balance_backward)
TESS_CUDA_REAL(balance_loss)
