/* attention: as attention.c writes it down, for a GPU. What tess_attention_kernels_of has a tile for runs on tensor
 * cores, blocks of queries and keys in shared memory, logits in registers; everything else by a warp a query (or key),
 * in fp32. A tile's rows have DIM elements, the template's parameter, and end with zeros behind the f.dim of a head.
 *
 * Forward, a block of queries passes over blocks of keys. Backward, one kernel passes over queries for a block of keys,
 * for dk and dv, and another over keys for a block of queries, for dq: two of seven products are made twice, and in
 * return every sum has one order and one owner. Blocks that nothing sees are not visited.
 *
 * Kernels come PLAIN, where causality is all there is, so with dropout, and with all that attention.c knows beside it.
 * The gradient of a bias by distance is gathered by a warp a distance, in fp32, and is far from what tensor cores would
 * do.
 *
 * A probability is rounded to 16 bits before it is multiplied; so is one of bf16 on the CPU.
 *
 * These kernels use mma.sync and cp.async, not Hopper's wgmma, which reaches half as much again but could not be
 * written with confidence where it cannot run. No sum that rounds uses atomics, which is why seven products are
 * computed where five would do. cuDNN's attention is taken where it is found and right, for causal attention in 16
 * bits; sdpa_impl.h has it. It keeps ds whole, 24 MiB a sequence of GPT-2 124M and 1 GiB one of 4,096 tokens of Llama
 * 8B, so of the second some heads are done at a time. Tiles end with zeros behind a narrow head, which costs
 * heads of 80 1.6 times the flops. Without tensor cores (fp32, other heads, the gradient of T5's bias) attention is
 * some 50 times slower. */
#include "codelets/attention/attention_seen_impl.h"
#include "codelets/attention/attention_warp_impl.h"
#include "codelets/attention/sdpa_impl.h"
#include "codelets/shared/cudnn_choice.h"

/* ==== tensor cores ================================================================================================ */

template <int DIM> constexpr int PASSING = DIM > 128 ? 32 : 64; /* of a block that passes by, or queries */

/* c (TILES x 16, PASSING) = a (rows r... of tile_a) b^T, b (PASSING, DIM) in tile_b; both along DIM. */
template <tess_dtype T, int DIM, int TILES>
TESS_DEVICE void multiply_along(float c[TILES][PASSING<DIM> / 8][4], const half16 *tile_a, int r, const half16 *tile_b,
                                int lane)
{
    constexpr int KEYS = PASSING<DIM>;
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++) c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0;
#pragma unroll
    for (int k = 0; k < DIM; k += 16) {
        uint32_t a[TILES][4], b[4];
#pragma unroll
        for (int m = 0; m < TILES; m++) load_a<DIM>(a[m], tile_a, r + m * 16, k, lane);
#pragma unroll
        for (int n = 0; n < KEYS / 16; n++) {
            load_b_pair<DIM>(b, tile_b, n * 16, k, lane);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                multiply_add<T>(c[m][2 * n], a[m], b);
                multiply_add<T>(c[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* c (TILES x 16, DIM) += p (TILES x 16, PASSING), rounded, times the tile (PASSING, DIM). */
template <tess_dtype T, int DIM, int TILES>
TESS_DEVICE void multiply_across(float c[TILES][DIM / 8][4], const float p[TILES][PASSING<DIM> / 8][4],
                                 const half16 *tile, int lane)
{
    constexpr int KEYS = PASSING<DIM>;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t a[TILES][4], b[4];
#pragma unroll
        for (int m = 0; m < TILES; m++) c_to_a<T>(a[m], p[m][2 * k], p[m][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            load_b_pair_across<DIM>(b, tile, k * 16, n * 16, lane);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                multiply_add<T>(c[m][2 * n], a[m], b);
                multiply_add<T>(c[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* go_on reads O, the maxima and the sums of a warp's queries q0... as the keys before left them; `leave` writes them
 * for the next keys. A lane has two rows in 16, and two columns in eight of these; the first of a row's four lanes has
 * the sum. */
template <int DIM, int TILES>
TESS_DEVICE void go_on(float o[TILES][DIM / 8][4], float top[TILES][2], float sum[TILES][2], const flash &f, int head,
                       int q0, int lane)
{
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int query = q0 + m * 16 + (lane >> 2) + 8 * h, t = lane & 3;
            if (query >= f.length) continue;
            const carry c = carry_of(f, head, query);
            top[m][h] = *c.top;
            if (t == 0) sum[m][h] = *c.sum;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++) /* what is in columns behind the head goes nowhere */
                    o[m][n][2 * h + e] = c.o[((n * 8 < f.dim ? n * 8 : 0) + 2 * t + e) * CARRIED];
        }
}
template <int DIM, int TILES>
TESS_DEVICE void leave(const float o[TILES][DIM / 8][4], const float top[TILES][2], const float sum[TILES][2],
                       const flash &f, int head, int q0, int lane)
{
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int query = q0 + m * 16 + (lane >> 2) + 8 * h, t = lane & 3;
            float all = sum[m][h];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            if (query >= f.length) continue;
            const carry c = carry_of(f, head, query);
            if (t == 0) *c.top = top[m][h], *c.sum = all;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++)
#pragma unroll
                for (int e = 0; e < 2; e++)
                    if (n * 8 < f.dim) c.o[(n * 8 + 2 * t + e) * CARRIED] = o[m][n][2 * h + e];
        }
}

/* A gradient (16 rows a warp, DIM) of dq, dk or dv from row `row` on; tile: the warp's room. */
template <tess_dtype T, int DIM>
TESS_DEVICE void put_gradient(half16 *tile, const float c[1][DIM / 8][4], const flash &f, const part &d, int64_t row,
                              int head, int valid, bool acc, int lane)
{
    if (!f.sums) {
        put_rows<T, DIM, 1>(tile, c, (half16 *)row_of_mut<T>(d, row, head), d.ld, valid, acc, lane, f.dim);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int r = (lane >> 2) + 8 * h;
        float *to = (float *)row_of_mut<TESS_F32>(d, row + r, head) + 2 * (lane & 3);
        if (r >= valid) continue;
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int e = 0; e < 2; e++)
                if (n * 8 < f.dim) add_at<TESS_F32>(to, n * 8 + e, acc, c[0][n][2 * h + e]);
    }
}

/* Shared memory, in tiles: Q, then of K and of V two each, which take turns, or one: then V is on its way while K is
 * multiplied, and the next K while V is. */
template <int DIM, int WARPS, int TILES, int TURNS> struct forward_shape {
    static constexpr int QUERIES = WARPS * TILES * 16, THREADS = WARPS * WARP;
    static constexpr size_t SHARED = (size_t)(QUERIES + 2 * TURNS * PASSING<DIM>)*DIM * sizeof(half16);
};

template <tess_dtype T, bool CARRY, int DIM, int WARPS, int TILES, int TURNS, bool PLAIN, bool DROP>
TESS_KERNEL_AT(WARPS *WARP, 2)
flash_forward_kernel(flash f, int blocks)
{
    constexpr int QUERIES = forward_shape<DIM, WARPS, TILES, TURNS>::QUERIES, THREADS = WARPS * WARP;
    constexpr int KEYS = PASSING<DIM>;
    TESS_DYNAMIC_SHARED(shared);
    half16 *q_tile = (half16 *)shared, *k_tile = q_tile + QUERIES * DIM, *v_tile = k_tile + TURNS * KEYS * DIM;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane >> 2, t = lane & 3;
    const job j = job_of(blockIdx.x, blocks, f.heads, f.causal);
    const int q0 = j.block * QUERIES, mine = warp * TILES * 16, group = j.head / (f.heads / f.groups);
    const int64_t row = j.sequence * f.length, key_row = j.sequence * f.keys;
    range all = {0, f.causal && q0 + QUERIES < f.keys ? q0 + QUERIES : f.keys};
    if (!PLAIN) all = seen_by_block(f, j.sequence, q0, QUERIES, lane);
    const int begin = all.first / KEYS, steps = (all.end + KEYS - 1) / KEYS;
    const half16 *k_from = row_half(f.k, key_row, group), *v_from = row_half(f.v, key_row, group);
    const bool drop = DROP && (PLAIN || f.drop);
    const tess_random_key random = drop ? random_of(f, j.sequence, j.head) : tess_random_key{};
    const uint32_t quad = tess_quad_of(f.query0 + q0 + mine) + g, key_quad = tess_quad_of(f.key0) + 2 * t;
    const float *bias = PLAIN ? NULL : bias_of(f, j.head);

    copy_tile<DIM, QUERIES, THREADS>(q_tile, row_half(f.q, row + q0, j.head), f.q.ld, f.length - q0, f.dim);
    if (begin < steps) {
        const int k0 = begin * KEYS, turn = begin % TURNS * KEYS * DIM;
        copy_tile<DIM, KEYS, THREADS>(k_tile + turn, k_from + k0 * f.k.ld, f.k.ld, f.keys - k0, f.dim);
        if (TURNS == 2) copy_tile<DIM, KEYS, THREADS>(v_tile + turn, v_from + k0 * f.v.ld, f.v.ld, f.keys - k0, f.dim);
    }
    copies_end_group();

    float o[TILES][DIM / 8][4] = {}, top[TILES][2], sum[TILES][2] = {};
#pragma unroll
    for (int m = 0; m < TILES; m++) top[m][0] = top[m][1] = -INFINITY;
    const float scale = f.scale * TESS_LOG2_E;
    if (CARRY && goes_on(f)) go_on<DIM, TILES>(o, top, sum, f, j.head, q0 + mine, lane);

    for (int step = begin; step < steps; step++) {
        const int k0 = step * KEYS, next = k0 + KEYS;
        if (TURNS == 2 && step + 1 < steps) {
            const int turn = (step + 1) % 2 * KEYS * DIM;
            copy_tile<DIM, KEYS, THREADS>(k_tile + turn, k_from + next * f.k.ld, f.k.ld, f.keys - next, f.dim);
            copy_tile<DIM, KEYS, THREADS>(v_tile + turn, v_from + next * f.v.ld, f.v.ld, f.keys - next, f.dim);
        }
        if (TURNS == 2) copies_end_group();
        copies_wait<TURNS - 1>();
        __syncthreads();
        if (TURNS == 1) { /* all are done with the V before */
            copy_tile<DIM, KEYS, THREADS>(v_tile, v_from + k0 * f.v.ld, f.v.ld, f.keys - k0, f.dim);
            copies_end_group();
        }

        float s[TILES][KEYS / 8][4];
        multiply_along<T, DIM, TILES>(s, q_tile, mine, k_tile + step % TURNS * KEYS * DIM, lane);
        const bool edge = !PLAIN || next > f.keys || (f.causal && next > q0 + mine + 1);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int query = q0 + mine + m * 16 + g + 8 * h;
                range seen = {0, f.causal && query + 1 < f.keys ? query + 1 : f.keys};
                if (!PLAIN) seen = seen_by(f, j.sequence, query);
                float most = top[m][h], all = 0;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[m][n][2 * h + e], slope;
                        const int key = k0 + n * 8 + 2 * t + e;
                        x = PLAIN ? x * scale : bend(f, bias, x, query, key, &slope);
                        if (edge && (key >= seen.end || (!PLAIN && key < seen.first))) x = -INFINITY;
                        most = fmaxf(most, x);
                    }
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
                const float base = PLAIN || most > -INFINITY ? most : 0; /* nothing seen so far */
                const float shrink = power_of_2(top[m][h] - base);
                top[m][h] = most;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[m][n][2 * h + e];
                        x = power_of_2(x - base);
                        all += x;
                    }
                sum[m][h] = sum[m][h] * shrink + all; /* this lane's columns */
#pragma unroll
                for (int n = 0; n < DIM / 8; n++) {
                    o[m][n][2 * h] *= shrink;
                    o[m][n][2 * h + 1] *= shrink;
                }
            }
            if (drop) { /* apart, since a word is of both rows */
                uint32_t bits[KEYS / 16][2];
                draw<false, KEYS / 16>(bits, random, quad + m * 8, key_quad + k0 / 2);
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++)
                        if (!tess_quad_keeps(bits[n / 2][e % 2], e / 2, n % 2, f.rule)) s[m][n][e] = 0;
            }
        }
        if (TURNS == 1) {
            copies_wait<0>();
            __syncthreads(); /* V is there, and all are done with K */
            if (step + 1 < steps)
                copy_tile<DIM, KEYS, THREADS>(k_tile, k_from + next * f.k.ld, f.k.ld, f.keys - next, f.dim);
            copies_end_group();
        }
        multiply_across<T, DIM, TILES>(o, s, v_tile + step % TURNS * KEYS * DIM, lane);
        if (TURNS == 2) __syncthreads(); /* before its turn is overwritten */
    }
    if (!PLAIN) { /* there may have been no step that waited */
        copies_wait<0>();
        __syncthreads();
    }
    if (CARRY && leaves(f)) {
        leave<DIM, TILES>(o, top, sum, f, j.head, q0 + mine, lane);
        return;
    }

#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float all = sum[m][h];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            const int query = q0 + mine + m * 16 + g + 8 * h;
            const bool sees = PLAIN || all > 0;
            if (t == 0 && query < f.length)
                f.lse[(row + query) * f.heads + j.head] = sees ? top[m][h] * TESS_LN_2 + logf(all) : INFINITY;
            const float one = sees ? (DROP ? f.rule.scale : 1) / all : 0;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                o[m][n][2 * h] *= one;
                o[m][n][2 * h + 1] *= one;
            }
        }
    put_rows<T, DIM, TILES>(q_tile + mine * DIM, o, (half16 *)row_of_mut<T>(f.y, row + q0 + mine, j.head), f.y.ld,
                            f.length - q0 - mine, false, lane, f.dim);
}

/* delta (rows, heads) = sum of dy y over each head; a warp each. */
template <tess_dtype T> TESS_KERNEL(256) delta_kernel(flash f, int64_t rows)
{
    const int64_t i = (int64_t)blockIdx.x * (256 / WARP) + threadIdx.x / WARP, row = i / f.heads;
    const int head = (int)(i % f.heads);
    if (row >= rows) return;
    const void *dy = row_of<T>(f.dy, row, head), *y = row_of<T>(f.y, row, head);
    float sum = 0;
    for (int c = (int)threadIdx.x % WARP; c < f.dim; c += WARP) sum += value_at<T>(dy, c) * value_at<T>(y, c);
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) f.delta[i] = sum;
}

/* Shared memory: two tiles of the block's own, WARPS x 16 rows, two and two that take turns, or one and one, lse, delta
 * and the range of keys of those. */
template <int DIM, int WARPS> struct backward_shape {
    static constexpr int ROWS = WARPS * 16, THREADS = WARPS * WARP, TURNS = DIM > 128 ? 1 : 2;
    static constexpr size_t SHARED = (size_t)(2 * ROWS + 2 * TURNS * PASSING<DIM>)*DIM * sizeof(half16) +
                                     4 * TURNS * (size_t)PASSING<DIM> * sizeof(float);
};

/* lse, in powers of 2, and delta of queries q0... to shared memory; queries past the end get an lse that makes their
 * probabilities 0. */
template <int DIM>
TESS_DEVICE void load_rows(float *lse, float *delta, range *seen, const flash &f, int64_t sequence, int head, int q0)
{
    const int64_t row = sequence * f.length;
    for (int i = (int)threadIdx.x; i < PASSING<DIM>; i += (int)blockDim.x) {
        const bool valid = q0 + i < f.length;
        const int64_t at = (row + q0 + i) * f.heads + head;
        lse[i] = valid ? f.lse[at] * TESS_LOG2_E : INFINITY;
        delta[i] = valid ? f.delta[at] : 0;
        if (seen) seen[i] = seen_by(f, sequence, q0 + i);
    }
}

/* dk and dv of a block of keys of one group: over its heads and their queries, in that order. Where registers hold one
 * of them alone, a kernel has dk and another dv. */
enum { DK = 1, DV = 2 };
template <tess_dtype T, int DIM, int WARPS, int WHICH, bool PLAIN, bool DROP>
TESS_KERNEL_AT(WARPS *WARP, 1)
flash_keys_kernel(flash f, int all)
{
    constexpr int ROWS = backward_shape<DIM, WARPS>::ROWS, THREADS = WARPS * WARP;
    constexpr int KEYS = PASSING<DIM>, TURNS = backward_shape<DIM, WARPS>::TURNS, AHEAD = TURNS - 1;
    TESS_DYNAMIC_SHARED(shared);
    half16 *k_tile = (half16 *)shared, *v_tile = k_tile + ROWS * DIM, *q_tile = v_tile + ROWS * DIM;
    half16 *dy_tile = q_tile + TURNS * KEYS * DIM;
    float *lse = (float *)(dy_tile + TURNS * KEYS * DIM), *delta = lse + TURNS * KEYS;
    range *seen = (range *)(delta + TURNS * KEYS);
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane >> 2, t = lane & 3;
    const job j = job_by_block(blockIdx.x, all, f.groups);
    const int k0 = j.block * ROWS, mine = warp * 16, share = f.heads / f.groups;
    const int64_t row = j.sequence * f.length, key_row = j.sequence * f.keys;
    range queries = {f.causal ? k0 : 0, f.length};
    if (!PLAIN) queries = seeing_block(f, j.sequence, k0, ROWS, lane);
    const int first = queries.first / KEYS, each = (queries.end + KEYS - 1) / KEYS - first, steps = each * share;
    const bool drop = DROP && (PLAIN || f.drop);
    tess_random_key random = {};
    const uint32_t quad = tess_quad_of(f.key0 + k0 + mine) + g, query_quad = tess_quad_of(f.query0) + 2 * t;

    copy_tile<DIM, ROWS, THREADS>(k_tile, row_half(f.k, key_row + k0, j.head), f.k.ld, f.keys - k0, f.dim);
    copy_tile<DIM, ROWS, THREADS>(v_tile, row_half(f.v, key_row + k0, j.head), f.v.ld, f.keys - k0, f.dim);

    float dk[1][WHICH & DK ? DIM / 8 : 1][4] = {}, dv[1][WHICH & DV ? DIM / 8 : 1][4] = {};
    const float scale = f.scale * TESS_LOG2_E;
    for (int step = -AHEAD; step < steps; step++) {
        const int next = step + AHEAD;
        if (next < steps) { /* what comes next sets out */
            const int turn = next % TURNS, head = j.head * share + next / each;
            const int q0 = (first + next % each) * KEYS, at = turn * KEYS * DIM;
            copy_tile<DIM, KEYS, THREADS>(q_tile + at, row_half(f.q, row + q0, head), f.q.ld, f.length - q0, f.dim);
            copy_tile<DIM, KEYS, THREADS>(dy_tile + at, row_half(f.dy, row + q0, head), f.dy.ld, f.length - q0, f.dim);
            load_rows<DIM>(lse + turn * KEYS, delta + turn * KEYS, PLAIN ? NULL : seen + turn * KEYS, f, j.sequence,
                           head, q0);
        }
        copies_end_group();
        if (step < 0) continue;
        copies_wait<AHEAD>();
        __syncthreads();

        const int turn = step % TURNS, head = j.head * share + step / each, q0 = (first + step % each) * KEYS;
        const half16 *q = q_tile + turn * KEYS * DIM, *dy = dy_tile + turn * KEYS * DIM;
        uint32_t bits[KEYS / 16][2] = {};
        if (drop && step % each == 0) random = random_of(f, j.sequence, head);
        if (drop) draw<true, KEYS / 16>(bits, random, query_quad + q0 / 2, quad);
        const float *bias = PLAIN ? NULL : bias_of(f, head);
        const bool edge = f.causal && q0 < k0 + mine + 16;
        float p[1][KEYS / 8][4], ds[1][KEYS / 8][4]; /* (keys, queries) */
        multiply_along<T, DIM, 1>(p, k_tile, mine, q, lane);
        if constexpr (WHICH & DK) multiply_along<T, DIM, 1>(ds, v_tile, mine, dy, lane);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int i = n * 8 + 2 * t + e % 2, key = k0 + mine + g + e / 2 * 8;
                float slope = f.scale;
                const float s = PLAIN ? p[0][n][e] * scale : bend(f, bias, p[0][n][e], q0 + i, key, &slope);
                float x = power_of_2(s - lse[turn * KEYS + i]);
                if (PLAIN ? edge && key > q0 + i
                          : key < seen[turn * KEYS + i].first || key >= seen[turn * KEYS + i].end)
                    x = 0;
                const bool keep = !DROP || tess_quad_keeps(bits[n / 2][e % 2], n % 2, e / 2, f.rule);
                if constexpr (WHICH & DK) {
                    const float dp = !DROP ? ds[0][n][e] : keep ? ds[0][n][e] * f.rule.scale : 0;
                    ds[0][n][e] = x * (dp - delta[turn * KEYS + i]) * slope;
                }
                p[0][n][e] = keep ? x : 0;
            }
        if constexpr (WHICH & DV) multiply_across<T, DIM, 1>(dv, p, dy, lane);
        if constexpr (WHICH & DK) multiply_across<T, DIM, 1>(dk, ds, q, lane);
        __syncthreads(); /* before its turn is overwritten */
    }
    copies_wait<0>();
    if (!PLAIN) __syncthreads(); /* there may have been no step */
    const int valid = f.keys - k0 - mine;
    if constexpr (WHICH & DK)
        put_gradient<T, DIM>(k_tile + mine * DIM, dk, f, f.dk, key_row + k0 + mine, j.head, valid, f.acc, lane);
    if constexpr (WHICH & DV && DROP)
#pragma unroll
        for (int n = 0; n < DIM / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) dv[0][n][e] *= f.rule.scale;
    if constexpr (WHICH & DV)
        put_gradient<T, DIM>(v_tile + mine * DIM, dv, f, f.dv, key_row + k0 + mine, j.head, valid, f.acc, lane);
}

/* dq of a block of queries of one head, over the keys it sees. */
template <tess_dtype T, int DIM, int WARPS, bool PLAIN, bool DROP>
TESS_KERNEL_AT(WARPS *WARP, 1)
flash_queries_kernel(flash f, int blocks)
{
    constexpr int ROWS = backward_shape<DIM, WARPS>::ROWS, THREADS = WARPS * WARP;
    constexpr int KEYS = PASSING<DIM>, TURNS = backward_shape<DIM, WARPS>::TURNS, AHEAD = TURNS - 1;
    TESS_DYNAMIC_SHARED(shared);
    half16 *q_tile = (half16 *)shared, *dy_tile = q_tile + ROWS * DIM, *k_tile = dy_tile + ROWS * DIM;
    half16 *v_tile = k_tile + TURNS * KEYS * DIM;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane >> 2, t = lane & 3;
    const job j = job_of(blockIdx.x, blocks, f.heads, f.causal);
    const int q0 = j.block * ROWS, mine = warp * 16, group = j.head / (f.heads / f.groups);
    const int64_t row = j.sequence * f.length, key_row = j.sequence * f.keys;
    range all = {0, f.causal && q0 + ROWS < f.keys ? q0 + ROWS : f.keys};
    if (!PLAIN) all = seen_by_block(f, j.sequence, q0, ROWS, lane);
    const int begin = all.first / KEYS, steps = (all.end + KEYS - 1) / KEYS;
    const half16 *k_from = row_half(f.k, key_row, group), *v_from = row_half(f.v, key_row, group);
    const bool drop = DROP && (PLAIN || f.drop);
    const tess_random_key random = drop ? random_of(f, j.sequence, j.head) : tess_random_key{};
    const uint32_t quad = tess_quad_of(f.query0 + q0 + mine) + g, key_quad = tess_quad_of(f.key0) + 2 * t;
    const float *bias = PLAIN ? NULL : bias_of(f, j.head);

    copy_tile<DIM, ROWS, THREADS>(q_tile, row_half(f.q, row + q0, j.head), f.q.ld, f.length - q0, f.dim);
    copy_tile<DIM, ROWS, THREADS>(dy_tile, row_half(f.dy, row + q0, j.head), f.dy.ld, f.length - q0, f.dim);
    float lse[2], delta[2];
    range seen[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = q0 + mine + g + 8 * h;
        if (!PLAIN) seen[h] = seen_by(f, j.sequence, query);
        const int64_t at = (row + query) * f.heads + j.head;
        lse[h] = query < f.length ? f.lse[at] * TESS_LOG2_E : INFINITY;
        delta[h] = query < f.length ? f.delta[at] : 0;
    }

    float dq[1][DIM / 8][4] = {};
    const float scale = f.scale * TESS_LOG2_E;
    for (int step = begin - AHEAD; step < steps; step++) {
        if (step + AHEAD < steps) {
            const int turn = (step + AHEAD) % TURNS * KEYS * DIM, next = (step + AHEAD) * KEYS;
            copy_tile<DIM, KEYS, THREADS>(k_tile + turn, k_from + next * f.k.ld, f.k.ld, f.keys - next, f.dim);
            copy_tile<DIM, KEYS, THREADS>(v_tile + turn, v_from + next * f.v.ld, f.v.ld, f.keys - next, f.dim);
        }
        copies_end_group();
        if (step < begin) continue;
        copies_wait<AHEAD>();
        __syncthreads();

        const half16 *k = k_tile + step % TURNS * KEYS * DIM, *v = v_tile + step % TURNS * KEYS * DIM;
        const int k0 = step * KEYS;
        const bool edge = k0 + KEYS > f.keys || (f.causal && k0 + KEYS > q0 + mine + 1);
        uint32_t bits[KEYS / 16][2] = {};
        if (drop) draw<false, KEYS / 16>(bits, random, quad, key_quad + k0 / 2);
        float p[1][KEYS / 8][4], ds[1][KEYS / 8][4]; /* (queries, keys) */
        multiply_along<T, DIM, 1>(p, q_tile, mine, k, lane);
        multiply_along<T, DIM, 1>(ds, dy_tile, mine, v, lane);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = k0 + n * 8 + 2 * t + e % 2, h = e / 2, query = q0 + mine + g + 8 * h;
                float slope = f.scale;
                const float s = PLAIN ? p[0][n][e] * scale : bend(f, bias, p[0][n][e], query, key, &slope);
                float x = power_of_2(s - lse[h]);
                /* A key past the end has a logit of 0, and 2^(0 - lse) may be infinite. */
                const int end = f.causal && query + 1 < f.keys ? query + 1 : f.keys;
                const bool hidden = PLAIN ? edge && key >= end : key < seen[h].first || key >= seen[h].end;
                if (hidden) x = 0;
                const bool keep = !DROP || tess_quad_keeps(bits[n / 2][e % 2], h, n % 2, f.rule);
                const float dp = !DROP ? ds[0][n][e] : keep ? ds[0][n][e] * f.rule.scale : 0;
                ds[0][n][e] = x * (dp - delta[h]) * slope;
            }
        multiply_across<T, DIM, 1>(dq, ds, k, lane);
        __syncthreads(); /* before its turn is overwritten */
    }
    copies_wait<0>();
    if (!PLAIN) __syncthreads(); /* there may have been no step */
    put_gradient<T, DIM>(q_tile + mine * DIM, dq, f, f.dq, row + q0 + mine, j.head, f.length - q0 - mine, f.acc_q,
                         lane);
}

/* ==== launching =================================================================================================== */

/* How many buffers hold q, k and v: three, or one that has all, or two that have them of queries and of keys. */
static unsigned operands_of(const tess_attention_arg *a)
{
    return !a->packed ? 3 : a->query0 == a->key0 ? 1 : 2;
}
/* Where q, k and v lie, from buffer `i` on. */
template <tess_dtype T> static void find_parts(part p[3], const tess_work *w, unsigned i, const tess_attention_arg *a)
{
    for (unsigned j = 0; j < 3; j++) {
        const tess_heads h = tess_heads_of(a->heads, a->groups, a->dim, a->packed, a->by_head, (int)j);
        const unsigned last = operands_of(a) - 1;
        p[j] = part{at(w->buf[i + (j < last ? j : last)].ptr, h.column, T), h.ld, h.apart};
    }
}

/* Where the gradients lie, from buffer `i` on. */
template <tess_dtype T>
static void find_gradients(part d[3], const tess_work *w, unsigned i, const tess_attention_arg *a)
{
    for (int j = 0; j < 3; j++) {
        unsigned buffer;
        const tess_heads h = tess_gradient_of(a, j, &buffer);
        d[j] = part{at(w->buf[i + buffer].ptr, h.column, T), h.ld, h.apart};
    }
}

static flash flash_of(const tess_work *w, const tess_attention_arg *a)
{
    flash f = {};
    TESS_ASSERT(a->sequence < INT32_MAX / 2 && a->whole < INT32_MAX / 2);
    f.length = (int)a->sequence, f.keys = (int)(a->keys ? a->keys : a->sequence), f.window = (int)a->window;
    f.heads = (int)a->heads, f.groups = (int)a->groups, f.dim = (int)a->dim;
    f.all_queries = a->whole ? (int)a->whole : f.length;
    f.query0 = (int)a->query0, f.key0 = (int)a->key0;
    f.scale = a->scale, f.cap = a->cap, f.acc = a->acc;
    f.causal = a->causal && a->query0 == a->key0; /* queries see all of what lies before their span */
    f.sums = a->whole > 0, f.begins = a->begins, f.ends = a->ends;
    f.acc_q = f.sums ? !a->begins : a->acc;
    f.carried = ((a->dim + 31) / 32 * 32 + 2) * CARRIED;
    f.drop = a->dropout > 0 && w->env->train, f.rule.scale = 1;
    f.sequence = (uint64_t)(a->row0 / f.all_queries);
    f.head0 = (uint64_t)a->head0;
    f.all_heads = (uint64_t)(a->all_heads ? a->all_heads : a->heads);
    if (f.drop) {
        f.random = tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op);
        f.rule = tess_head_dropout(a->dropout);
        TESS_ASSERT(f.query0 % 16 == 0 && f.key0 % 16 == 0);
    }
    return f;
}

/* Returns whether the parts can be copied 16 bytes at a time; with these head sizes their rows then can. */
static bool fast(const part *p, int parts)
{
    bool can = true;
    for (int i = 0; i < parts; i++) can = can && aligned(p[i].ptr);
    return can;
}

static bool plain(const flash &f)
{
    return !f.bounds && !f.window && !f.bias && !(f.cap > 0);
}

/* The bias by distance, into scratch, behind delta, and room for its gradient behind that. */
template <tess_dtype T> static void spread(const tess_work *w, flash *f, const void *table, void *scratch)
{
    const tess_attention_arg *a = arg_of(w);
    const int64_t n = (int64_t)f->heads * (f->length + f->keys);
    f->bias = (float *)scratch + a->rows * a->heads;
    f->dbias = f->bias + n;
    launch(w, spread_kernel<T>, blocks_of(n, 256), 256, 0, *f, buckets_of(a->buckets, a->reach, a->causal), table);
}

template <tess_dtype T, bool CARRY, int DIM, int WARPS, int TILES, int TURNS>
static void flash_forward_as(const tess_work *w, const flash &f, int64_t rows)
{
    using shape = forward_shape<DIM, WARPS, TILES, TURNS>;
    const int blocks = (int)blocks_of(f.length, shape::QUERIES);
    launch(w,
           !plain(f) ? flash_forward_kernel<T, CARRY, DIM, WARPS, TILES, TURNS, false, true>
           : f.drop  ? flash_forward_kernel<T, CARRY, DIM, WARPS, TILES, TURNS, true, true>
                     : flash_forward_kernel<T, CARRY, DIM, WARPS, TILES, TURNS, true, false>,
           rows / f.length * f.heads * blocks, shape::THREADS, shape::SHARED, f, blocks);
}
template <tess_dtype T, int DIM, int WARPS, int TILES, int TURNS>
static void flash_forward(const tess_work *w, const flash &f, int64_t rows)
{
    if (f.carry)
        flash_forward_as<T, true, DIM, WARPS, TILES, TURNS>(w, f, rows);
    else
        flash_forward_as<T, false, DIM, WARPS, TILES, TURNS>(w, f, rows);
}
/* Four warps alone leave a multiprocessor's schedulers one each, and nothing to do while it waits. */
static bool two_fit(size_t shared)
{
    return 2 * (shared + SHARED_OF_A_BLOCK) <= (size_t)device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
}

/* On tensor cores; false, and nothing is done, where there is no such tile. */
template <tess_dtype T> static bool flash_forward_of(const tess_work *w, const flash &f, int64_t rows, int tile)
{
    if constexpr (is_half(T)) {
        if (tile == 64)
            flash_forward<T, 64, 4, 2, 2>(w, f, rows);
        else if (tile == 128 && !two_fit(forward_shape<128, 4, 2, 2>::SHARED) &&
                 two_fit(forward_shape<128, 4, 2, 1>::SHARED))
            /* With K and V in turns two blocks fit in Hopper's 228 KiB; in an A100's 164 KiB they do without. */
            flash_forward<T, 128, 4, 2, 1>(w, f, rows);
        else if (tile == 128)
            flash_forward<T, 128, 4, 2, 2>(w, f, rows);
        else if (tile == 256)
            flash_forward<T, 256, 4, 1, 2>(w, f, rows);
        return tile > 0;
    }
    return false;
}

/* q, k, v or qkv[, bounds][, bias], y, lse, scratch */
template <tess_dtype T> static void attention_forward_body(const tess_work *w)
{
    const tess_attention_arg *a = arg_of(w);
    const tess_view *rest = w->buf + operands_of(a);
    part p[3];
    flash f = flash_of(w, a);
    find_parts<T>(p, w, 0, a);
    f.q = p[0], f.k = p[1], f.v = p[2];
    if (a->bounded) f.bounds = (const int32_t *)rest++->ptr;
    if (a->buckets) spread<T>(w, &f, rest++->ptr, w->buf[w->nbuf - 1].ptr);
    if (a->whole && !(a->begins && a->ends)) f.carry = (float *)rest++->ptr;
    if (!f.carry || f.ends) {
        f.y = part{rest[0].ptr, a->heads * a->dim, a->dim};
        f.lse = (float *)rest[1].ptr;
    }
    const part all[] = {f.q, f.k, f.v, f.y};
    const tess_attention_kernels by = tess_attention_kernels_of(a, T, w->env->train);
    const int tile = fast(all, 4) ? by.tile : 0;
    if (sdpa_library.on && by.library && tile && sdpa_run<T>(w, f, a->rows, false, {w->room, w->room_bytes})) return;
    if (flash_forward_of<T>(w, f, a->rows, tile)) return;
    launch(w, forward_kernel<T>, blocks_of(a->rows * a->heads, GENERAL_WARPS), GENERAL_WARPS * WARP,
           (size_t)(GENERAL_WARPS * 2 * a->dim) * sizeof(float), f, a->rows);
}

template <tess_dtype T, int DIM, int WARPS, int WHICH>
static void flash_keys(const tess_work *w, const flash &f, int64_t sequences)
{
    using shape = backward_shape<DIM, WARPS>;
    const int64_t all = sequences * f.groups;
    launch(w,
           !plain(f) ? flash_keys_kernel<T, DIM, WARPS, WHICH, false, true>
           : f.drop  ? flash_keys_kernel<T, DIM, WARPS, WHICH, true, true>
                     : flash_keys_kernel<T, DIM, WARPS, WHICH, true, false>,
           all * blocks_of(f.keys, shape::ROWS), shape::THREADS, shape::SHARED, f, (int)all);
}
template <tess_dtype T, int DIM, int WARPS> static void flash_backward(const tess_work *w, const flash &f, int64_t rows)
{
    using shape = backward_shape<DIM, WARPS>;
    const int blocks = (int)blocks_of(f.length, shape::ROWS);
    const int64_t sequences = rows / f.length;
    if constexpr (DIM > 128) {
        flash_keys<T, DIM, WARPS, DK>(w, f, sequences);
        flash_keys<T, DIM, WARPS, DV>(w, f, sequences);
    } else
        flash_keys<T, DIM, WARPS, DK | DV>(w, f, sequences);
    launch(w,
           !plain(f) ? flash_queries_kernel<T, DIM, WARPS, false, true>
           : f.drop  ? flash_queries_kernel<T, DIM, WARPS, true, true>
                     : flash_queries_kernel<T, DIM, WARPS, true, false>,
           sequences * f.heads * blocks, shape::THREADS, shape::SHARED, f, blocks);
}
template <tess_dtype T> static bool flash_backward_of(const tess_work *w, const flash &f, int64_t rows, int tile)
{
    if constexpr (is_half(T)) {
        const size_t room = (size_t)device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
        if (tile == 64)
            flash_backward<T, 64, 4>(w, f, rows);
        else if (tile == 128 && backward_shape<128, 8>::SHARED <= room)
            flash_backward<T, 128, 8>(w, f, rows);
        else if (tile == 128) /* what is not for data centres has 99 KiB a block: sm_86, sm_89, sm_120 */
            flash_backward<T, 128, 4>(w, f, rows);
        else if (tile == 256)
            flash_backward<T, 256, 4>(w, f, rows);
        return tile > 0;
    }
    return false;
}

/* dy, q, k, v or qkv[, bounds][, bias], y, lse, dq +=, dk +=, dv += or dqkv +=[, dbias +=], scratch[, ds] */
template <tess_dtype T> static void attention_backward_body(const tess_work *w)
{
    const tess_attention_arg *a = arg_of(w);
    const unsigned three = operands_of(a), more = (a->bounded ? 1 : 0) + (a->buckets ? 1 : 0);
    part p[3], dp[3];
    flash f = flash_of(w, a);
    find_parts<T>(p, w, 1, a);
    if (a->whole)
        find_gradients<TESS_F32>(dp, w, 3 + three + more, a);
    else
        find_gradients<T>(dp, w, 3 + three + more, a);
    const tess_view *rest = w->buf + 3 + three + more + tess_gradients(a);
    float *dtable = a->buckets ? (float *)rest++->ptr : NULL;
    f.q = p[0], f.k = p[1], f.v = p[2];
    f.dq = dp[0], f.dk = dp[1], f.dv = dp[2];
    f.dy = part{w->buf[0].ptr, a->heads * a->dim, a->dim};
    f.y = part{w->buf[1 + three + more].ptr, a->heads * a->dim, a->dim};
    f.lse = (float *)w->buf[2 + three + more].ptr;
    f.delta = (float *)rest->ptr; /* scratch */
    const tess_view room = rest + 1 < w->buf + w->nbuf ? rest[1] : tess_view{w->room, w->room_bytes};
    if (a->bounded) f.bounds = (const int32_t *)w->buf[1 + three].ptr;
    if (dtable) spread<T>(w, &f, w->buf[three + more].ptr, rest->ptr);
    const part all[] = {f.q, f.k, f.v, f.y, f.dy, f.dq, f.dk, f.dv};
    const tess_attention_kernels by = tess_attention_kernels_of(a, T, w->env->train);
    const int tile = fast(all, 8) ? by.tile : 0;
    if (sdpa_library.on && by.library && tile && !f.acc && sdpa_run<T>(w, f, a->rows, true, room)) return;
    launch(w, delta_kernel<T>, blocks_of(a->rows * a->heads, 256 / WARP), 256, 0, f, a->rows);
    if (!flash_backward_of<T>(w, f, a->rows, tile)) {
        const int threads = GENERAL_WARPS * WARP;
        const size_t room = (size_t)(GENERAL_WARPS * a->dim) * sizeof(float);
        const int64_t key_rows = a->rows / f.length * f.keys;
        launch(w, keys_kernel<T>, blocks_of(key_rows * a->groups, GENERAL_WARPS), threads, 4 * room, f, key_rows);
        launch(w, queries_kernel<T>, blocks_of(a->rows * a->heads, GENERAL_WARPS), threads, 3 * room, f, a->rows);
    }
    if (!dtable) return;
    const int64_t distances = (int64_t)f.heads * (f.length + f.keys);
    launch(w, distances_kernel<T>, blocks_of(distances, GENERAL_WARPS), GENERAL_WARPS * WARP, 0, f, a->rows / f.length);
    launch(w, gather_kernel, blocks_of(a->buckets * a->heads, 256), 256, 0, f,
           buckets_of(a->buckets, a->reach, a->causal), dtable, a->acc_bias);
}

TESS_CUDA_REAL(attention_forward)
TESS_CUDA_REAL(attention_backward)
/* Those of spans have the same bodies. */
#define SPANS(pass, name_of, t) TESS_CUDA_BODY(attention_##pass, attention_span_##pass##_##name_of, t)
SPANS(forward, f32, TESS_F32)
SPANS(forward, bf16, TESS_BF16)
SPANS(forward, f16, TESS_F16)
SPANS(backward, f32, TESS_F32)
SPANS(backward, bf16, TESS_BF16)
SPANS(backward, f16, TESS_F16)

/* ==== whose kernels =============================================================================================== */

/* A small problem, packed, and room for what is made of it. */
struct trial {
#ifdef TESS_EMULATED
    static constexpr int64_t SEQUENCES = 1, LENGTH = 128, HEADS = 2, GROUPS = 1, ROWS = SEQUENCES * LENGTH;
#else
    static constexpr int64_t SEQUENCES = 2, LENGTH = 512, HEADS = 4, GROUPS = 2, ROWS = SEQUENCES * LENGTH;
#endif
    tess_attention_arg arg;
    tess_view qkv, y, lse, dy, dqkv, scratch, room;
};
/* Fills y, lse and dqkv. */
template <tess_dtype T> static void try_once(trial *t)
{
    const tess_env env = {};
    const tess_view forward[] = {t->qkv, t->y, t->lse, t->scratch};
    const tess_view backward[] = {t->dy, t->qkv, t->y, t->lse, t->dqkv, t->scratch};
    tess_work w = {};
    w.arg = &t->arg, w.env = &env, w.room = t->room.ptr, w.room_bytes = t->room.bytes;
    w.buf = forward, w.nbuf = 4;
    attention_forward_body<T>(&w);
    w.buf = backward, w.nbuf = 6;
    attention_backward_body<T>(&w);
}
template <tess_dtype T> static bool try_library(int64_t dim, int64_t window, char *said, size_t room)
{
    trial t = {};
    tess_attention_arg *a = &t.arg;
    a->rows = trial::ROWS, a->sequence = trial::LENGTH, a->heads = trial::HEADS, a->groups = trial::GROUPS;
    a->dim = dim, a->window = window, a->scale = 1 / sqrtf((float)dim), a->causal = a->packed = true;
    const size_t wide = (size_t)(trial::ROWS * trial::HEADS * dim) * 2;
    const size_t packed = wide + 2 * wide / trial::HEADS * trial::GROUPS;
    const size_t numbers = (size_t)(trial::ROWS * trial::HEADS) * sizeof(float);
    t.qkv.bytes = t.dqkv.bytes = packed, t.y.bytes = t.dy.bytes = wide, t.lse.bytes = t.scratch.bytes = numbers;
    t.room.bytes = 64 << 20;
    const dnn_tried all[] = {{&t.qkv, T, 0},           {&t.dy, T, 0},     {&t.scratch, TESS_F32, 0}, {&t.y, T, 2e-2},
                             {&t.lse, TESS_F32, 1e-4}, {&t.dqkv, T, 2e-2}};
    return dnn_try(
        &sdpa_library, all, 6, &t.room, [&] { try_once<T>(&t); }, said, room);
}

extern "C" void TESS_CUDA_NAME(attention_library)(const tess_work *w)
{
    dnn_settle(&sdpa_library, (tess_cudnn_choice *)w->arg, SDPA_LEAST, [](char *said, size_t room) {
        return try_library<TESS_BF16>(64, 0, said, room) && try_library<TESS_BF16>(128, 100, said, room) &&
               try_library<TESS_F16>(80, 0, said, room);
    });
}
