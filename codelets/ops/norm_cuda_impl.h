/* norm_cuda: the CUDA bodies of layernorm and, not CENTRED, of rmsnorm, as in norm_impl.h. A row is read once and lies
 * in registers, of a warp where it is short, else of a block. The gradients of gain and bias are summed beside dx: a
 * block has a stripe of rows, and a second pass adds the stripes up, in an order that the shapes alone say. */
#ifndef TESS_NORM_CUDA_IMPL_H
#define TESS_NORM_CUDA_IMPL_H
#include "codelets/shared/reduce.h"

constexpr int NORM_THREADS = 256, HELD = 4; /* pieces of a row that a thread has in registers */
/* At most, and at least. An H100 has 132 multiprocessors with a block each: 256 stripes are 97% of two turns, and more
 * of them would write and read more sums. */
constexpr int64_t STRIPES = 256, STRIPE_ROWS = 8;

template <bool CENTRED> TESS_DEVICE float gain_of(float gain, float shift)
{
    return CENTRED ? gain : gain + shift;
}
template <bool CENTRED> TESS_DEVICE float centre(float x, float mean)
{
    return CENTRED ? x - mean : x;
}
template <tess_dtype T> TESS_DEVICE float rounded(float x)
{
    if constexpr (is_half(T)) return from_half<T>(to_half<T>(x));
    return x;
}

/* K elements as they lie in memory: in 16 bits, half the registers that they take as floats. */
template <tess_dtype T, int K> struct stored {
    float v[K];
    TESS_DEVICE void read(const void *x, int64_t i) { load<T, K>(v, x, i); }
    TESS_DEVICE void get(float to[K]) const
    {
        for (int k = 0; k < K; k++) to[k] = v[k];
    }
};
template <tess_dtype T> struct stored_wide {
    uint4 u;
    TESS_DEVICE void read(const void *x, int64_t i) { u = *(const uint4 *)((const uint16_t *)x + i); }
    TESS_DEVICE void get(float to[WIDE]) const { load<T, WIDE>(to, &u, 0); }
};
template <> struct stored<TESS_BF16, WIDE> : stored_wide<TESS_BF16> {
};
template <> struct stored<TESS_F16, WIDE> : stored_wide<TESS_F16> {
};

/* Pieces that a thread has of a row on the way back, where its columns' sums are in registers as well: with a warp a
 * row that is up to 2,048 columns in 16 bits. A block that takes its rows one by one waits for memory and for its
 * barriers instead: 80 us for 8192 x 1600, where the bytes take 36. */
template <tess_dtype T> TESS_BOTH constexpr int held_back(int lanes, int each)
{
    return is_half(T) && lanes == WARP && each == WIDE ? 2 * HELD : HELD;
}
/* Returns whether the registers of `threads` threads hold a row of pieces of `each`. */
static inline bool holds(int64_t width, int threads, int each, int held = HELD)
{
    return width <= (int64_t)held * threads * each;
}
/* f(h, i) for each piece of K elements from i on that this of a row's LANES threads has: piece h of the N that it
 * holds, and h = N for what is too much and has to be read again in each pass. */
template <int K, int LANES, int N = HELD, class F> TESS_DEVICE void each_piece(int64_t width, F f)
{
    const int64_t i = threadIdx.x % LANES * K, step = LANES * K;
#pragma unroll
    for (int h = 0; h < N; h++)
        if (i + h * step < width) f(h, i + h * step);
    for (int64_t k = i + N * step; k < width; k += step) f(N, k);
}
/* Over the threads of a row. */
template <int LANES> TESS_DEVICE float row_sum(float v, float *room)
{
    if constexpr (LANES == WARP) return warp_sum(v);
    return block_sum<NORM_THREADS>(v, room);
}

/* x, with `z` x + z, which is written to `both` first; gain, bias, y (rows,width), stats (rows,2) or (rows). */
template <tess_dtype T, int K, int LANES, bool CENTRED>
TESS_KERNEL(NORM_THREADS)
norm_kernel(const void *x, const void *z, void *both, const float *gain, const float *bias, void *y, float *stats,
            tess_norm_arg a)
{
    TESS_SHARED(float, room, [NORM_THREADS / WARP]);
    const int64_t r = (int64_t)blockIdx.x * (NORM_THREADS / LANES) + threadIdx.x / LANES, row = r * a.width;
    const void *from = z ? both : x;
    float sum = 0, square = 0, mean = 0, v[HELD + 1][K], g[K], b[K];
    if (r >= a.rows) return; /* the whole warp; blocks have a row each */
    each_piece<K, LANES>(a.width, [&](int h, int64_t i) {
        load<T, K>(v[h], x, row + i);
        if (z) {
            load<T, K>(b, z, row + i);
            for (int k = 0; k < K; k++) v[h][k] = rounded<T>(v[h][k] + b[k]);
            store<T, K>(both, row + i, v[h]);
        }
        for (int k = 0; k < K; k++) sum += v[h][k];
    });
    if (CENTRED) mean = row_sum<LANES>(sum, room) / (float)a.width;
    each_piece<K, LANES>(a.width, [&](int h, int64_t i) {
        if (h == HELD) load<T, K>(v[h], from, row + i);
        for (int k = 0; k < K; k++) square += centre<CENTRED>(v[h][k], mean) * centre<CENTRED>(v[h][k], mean);
    });
    const float rstd = 1 / sqrtf(row_sum<LANES>(square, room) / (float)a.width + a.eps);
    each_piece<K, LANES>(a.width, [&](int h, int64_t i) {
        if (h == HELD) load<T, K>(v[h], from, row + i);
        load<TESS_F32, K>(g, gain, i);
        if (CENTRED) load<TESS_F32, K>(b, bias, i);
        for (int k = 0; k < K; k++) {
            v[h][k] = centre<CENTRED>(v[h][k], mean) * rstd * gain_of<CENTRED>(g[k], a.shift);
            if (CENTRED) v[h][k] += b[k];
        }
        store<T, K>(y, row + i, v[h]);
    });
    if (threadIdx.x % LANES > 0) return;
    if (CENTRED) stats[2 * r] = mean;
    stats[CENTRED ? 2 * r + 1 : r] = rstd;
}
/* x, or with ADDS x, z, x + z; then gain[, bias], y, stats. */
template <tess_dtype T, bool CENTRED, bool ADDS> static void norm_forward(const tess_work *w)
{
    const tess_norm_arg *a = arg_of(w);
    const int at = ADDS ? 3 : 1;
    const void *x = buffer(w, 0), *z = ADDS ? w->buf[1].ptr : NULL;
    void *both = ADDS ? w->buf[2].ptr : NULL, *y = buffer(w, at + (CENTRED ? 2 : 1));
    const float *gain = buffer(w, at), *bias = CENTRED ? (const float *)w->buf[at + 1].ptr : NULL;
    const bool wide = a->width % WIDE == 0 && aligned(x, z, both, gain, bias, y);
    const bool warps = holds(a->width, WARP, wide ? WIDE : 1);
    launch(w,
           wide    ? warps ? norm_kernel<T, WIDE, WARP, CENTRED> : norm_kernel<T, WIDE, NORM_THREADS, CENTRED>
              : warps ? norm_kernel<T, 1, WARP, CENTRED>
                   : norm_kernel<T, 1, NORM_THREADS, CENTRED>,
           warps ? blocks_of(a->rows, NORM_THREADS / WARP) : a->rows, NORM_THREADS, 0, x, z, both, gain, bias, y,
           buffer(w, at + (CENTRED ? 3 : 2)), *a);
}

/* With h = (x - mean) / std and g = dy gain: dx = (g - mean(g) - h mean(g h)) / std, of a stripe of `each` rows. With
 * `part` (stripes, SUMS, width) its sums of dy h and dy go there; registers hold the rows then. */
template <tess_dtype T, int K, int LANES, bool CENTRED>
TESS_KERNEL(NORM_THREADS)
norm_dx_kernel(const void *dy, const void *x, const float *gain, const float *stats, void *dx, tess_norm_arg a,
               int64_t each, float *part)
{
    constexpr int ROWS = NORM_THREADS / LANES, SUMS = CENTRED ? 2 : 1, N = held_back<T>(LANES, K);
    TESS_SHARED(float, room, [NORM_THREADS / WARP]);
    TESS_SHARED(float, side, [ROWS][ROWS > 1 ? LANES * K : 1]);
    const int64_t width = a.width, first = blockIdx.x * each, end = first + each < a.rows ? first + each : a.rows;
    float total[SUMS][N][K] = {};
    for (int64_t r = first + threadIdx.x / LANES; r < end; r += ROWS) {
        const float mean = CENTRED ? stats[2 * r] : 0, rstd = stats[CENTRED ? 2 * r + 1 : r];
        float sum = 0, dot = 0, mean_g = 0, v[K], d[K], g[K];
        stored<T, K> of_x[N + 1], of_dy[N + 1];
        const auto read = [&](int h, int64_t i) {
            of_x[h].read(x, r * width + i);
            of_dy[h].read(dy, r * width + i);
        };
        const auto get = [&](int h, int64_t i) {
            if (h == N) read(h, i);
            of_x[h].get(v);
            of_dy[h].get(d);
            load<TESS_F32, K>(g, gain, i);
        };
        each_piece<K, LANES, N>(width, [&](int h, int64_t i) { /* all of it is on its way at once */
                                                               if (h < N) read(h, i);
        });
        each_piece<K, LANES, N>(width, [&](int h, int64_t i) {
            get(h, i);
            for (int k = 0; k < K; k++) {
                const float normed = centre<CENTRED>(v[k], mean) * rstd;
                if (CENTRED) sum += d[k] * g[k];
                dot += d[k] * gain_of<CENTRED>(g[k], a.shift) * normed;
                if (h == N) continue;
                total[0][h][k] += d[k] * normed;
                if (CENTRED) total[SUMS - 1][h][k] += d[k];
            }
        });
        if (CENTRED) mean_g = row_sum<LANES>(sum, room) / (float)width;
        const float mean_gh = row_sum<LANES>(dot, room) / (float)width;
        each_piece<K, LANES, N>(width, [&](int h, int64_t i) {
            get(h, i);
            for (int k = 0; k < K; k++) {
                const float of = centre<CENTRED>(d[k] * gain_of<CENTRED>(g[k], a.shift), mean_g);
                v[k] = (of - centre<CENTRED>(v[k], mean) * rstd * mean_gh) * rstd;
            }
            accumulate<T, K>(dx, r * width + i, a.acc, v);
        });
    }
    for (int s = 0; s < SUMS && part; s++) {
        float *to = part + (blockIdx.x * SUMS + s) * width;
        if constexpr (ROWS == 1) {
            each_piece<K, LANES, N>(width, [&](int h, int64_t i) {
                if (h < N) store<TESS_F32, K>(to, i, total[s][h]);
            });
            continue;
        }
        constexpr int WIDTH = LANES * K; /* of a piece */
#pragma unroll
        for (int h = 0; h < N; h++) {
            const int lane = (int)threadIdx.x % LANES, t = (int)threadIdx.x;
            if (h * WIDTH >= width) break;
            for (int k = 0; k < K; k++) side[t / LANES][lane * K + k] = total[s][h][k];
            __syncthreads();
            float all = 0;
            for (int k = 0; k < ROWS && t < WIDTH; k++) all += side[k][t];
            if (t < WIDTH && h * WIDTH + t < width) to[h * WIDTH + t] = all;
            __syncthreads();
        }
    }
}

/* dgain and dbias from the sums of stripes, side by side. */
struct norm_stripes {
    static constexpr int SUMS = 1;
    const float *part;
    float *dgain, *dbias;
    int64_t width, columns;
    bool acc;
    template <int K> TESS_DEVICE void at(float v[SUMS][K], int64_t r, int64_t c) const
    {
        load<TESS_F32, K>(v[0], part, r * columns + c);
    }
    TESS_DEVICE void put(int, int64_t c, float total) const
    {
        float *to = c < width ? dgain + c : dbias + (c - width);
        *to = acc ? *to + total : total;
    }
};
/* The same of rows that no block holds: dgain = sum of dy h, dbias = sum of dy. */
template <tess_dtype T, bool CENTRED> struct norm_sums {
    static constexpr int SUMS = CENTRED ? 2 : 1;
    const void *dy, *x;
    const float *stats;
    float *dgain, *dbias;
    int64_t width;
    bool acc;
    template <int K> TESS_DEVICE void at(float v[SUMS][K], int64_t r, int64_t c) const
    {
        const float mean = CENTRED ? stats[2 * r] : 0, rstd = stats[CENTRED ? 2 * r + 1 : r];
        float d[K];
        load<T, K>(v[0], x, r * width + c);
        load<T, K>(d, dy, r * width + c);
#pragma unroll
        for (int k = 0; k < K; k++) {
            v[0][k] = d[k] * (centre<CENTRED>(v[0][k], mean) * rstd);
            if (CENTRED) v[SUMS - 1][k] = d[k];
        }
    }
    TESS_DEVICE void put(int s, int64_t c, float total) const
    {
        float *to = s == 0 ? dgain : dbias;
        to[c] = acc ? to[c] + total : total;
    }
};
template <tess_dtype T, bool CENTRED> static void norm_backward(const tess_work *w)
{
    const tess_norm_arg *a = arg_of(w);
    const void *dy = buffer(w, 0), *x = buffer(w, 1);
    const float *gain = buffer(w, 2), *stats = buffer(w, 3);
    void *dx = buffer(w, 4);
    float *dgain = buffer(w, 5), *dbias = CENTRED ? (float *)w->buf[6].ptr : NULL, *part = NULL;
    const bool wide = a->width % WIDE == 0 && aligned(dy, x, gain, dx);
    const int piece = wide ? WIDE : 1;
    const bool warps = holds(a->width, WARP, piece, held_back<T>(WARP, piece)),
               held = holds(a->width, NORM_THREADS, piece);
    const int64_t least = blocks_of(a->rows, STRIPES), each = !held ? 1 : least > STRIPE_ROWS ? least : STRIPE_ROWS;
    const int64_t stripes = blocks_of(a->rows, each), columns = a->width * (CENTRED ? 2 : 1);
    if (held && !(part = (float *)room_of(w, (size_t)(stripes * columns) * sizeof *part))) return;
    launch(w,
           wide    ? warps ? norm_dx_kernel<T, WIDE, WARP, CENTRED> : norm_dx_kernel<T, WIDE, NORM_THREADS, CENTRED>
              : warps ? norm_dx_kernel<T, 1, WARP, CENTRED>
                   : norm_dx_kernel<T, 1, NORM_THREADS, CENTRED>,
           stripes, NORM_THREADS, 0, dy, x, gain, stats, dx, *a, each, part);
    if (held)
        sum_columns(w, norm_stripes{part, dgain, dbias, a->width, columns, a->acc_param}, stripes, columns, wide);
    else
        sum_columns(w, norm_sums<T, CENTRED>{dy, x, stats, dgain, dbias, a->width, a->acc_param}, a->rows, a->width,
                    wide);
}

#endif
