/* attention: as attention.c writes it down, for a GPU. bf16 with heads of 64 and 128 runs on tensor cores, blocks of
 * queries and keys in shared memory, logits in registers; everything else by a warp a query (or key), in fp32.
 *
 * Forward, a block of queries passes over blocks of keys. Backward, one kernel passes over queries for a block of keys,
 * for dk and dv, and another over keys for a block of queries, for dq: two of seven products are made twice, and in
 * return every sum has one order and one owner. Causal blocks that nothing sees are not visited.
 *
 * A probability is rounded to bf16 before it is multiplied, as on the CPU. */
#include "tensor_impl.h"

/* One of q, k, v, y or a gradient of theirs. */
struct part {
    void *ptr;
    int64_t ld;
};

/* What kernels know of a task. Forward: y and lse are written. */
struct flash {
    part q, k, v, y, dy, dq, dk, dv; /* y, dy: rows of heads*dim */
    float *lse, *delta;              /* (rows, heads) */
    int length, heads, groups, dim;
    float scale;
    bool causal, acc, drop;
    tess_random_key random;
    tess_dropout_rule rule;
    uint64_t sequence;         /* of the batch, the tile's first */
    uint64_t head0, all_heads; /* these heads' first, of so many */
};

/* The place of query 0 and key 0 of a head among the random numbers. */
TESS_DEVICE uint64_t place_of(const flash &f, int64_t sequence, int head)
{
    const uint64_t length = (uint64_t)f.length;
    return ((f.sequence + (uint64_t)sequence) * f.all_heads + f.head0 + (uint64_t)head) * length * length;
}
TESS_DEVICE float kept(const flash &f, uint64_t place, int query, int key)
{
    const uint64_t at = place + (uint64_t)query * (uint64_t)f.length + (uint64_t)key;
    return tess_random_at(f.random, at) >= f.rule.below ? f.rule.scale : 0;
}

template <tess_dtype T> TESS_DEVICE const void *row_of(const part &p, int64_t row, int head, int dim)
{
    return at((const void *)p.ptr, row * p.ld + (int64_t)head * dim, T);
}
template <tess_dtype T> TESS_DEVICE void *row_of_mut(const part &p, int64_t row, int head, int dim)
{
    return at(p.ptr, row * p.ld + (int64_t)head * dim, T);
}
TESS_DEVICE const bf16 *row_bf16(const part &p, int64_t row, int head, int dim)
{
    return (const bf16 *)p.ptr + row * p.ld + (int64_t)head * dim;
}

/* Blocks of one head come one after the other, the longest first where it is causal: so keys and values stay in the
 * cache, and the short ones fill the end. */
struct job {
    int block, head; /* head: of q, or the group */
    int64_t sequence;
};
TESS_DEVICE job job_of(int64_t index, int blocks, int heads, bool from_the_end)
{
    job j;
    const int64_t rest = index / blocks;
    j.block = (int)(index % blocks);
    if (from_the_end) j.block = blocks - 1 - j.block;
    j.head = (int)(rest % heads);
    j.sequence = rest / heads;
    return j;
}

/* ==== tensor cores ================================================================================================ */

constexpr int KEYS = 64; /* of a block that passes by, or queries */

/* c (TILES x 16, 64) = a (rows r... of tile_a) b^T, b (64, DIM) in tile_b; both along DIM. */
template <int DIM, int TILES>
TESS_DEVICE void multiply_along(float c[TILES][KEYS / 8][4], const bf16 *tile_a, int r, const bf16 *tile_b, int lane)
{
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
                multiply_add(c[m][2 * n], a[m], b);
                multiply_add(c[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* c (TILES x 16, DIM) += p (TILES x 16, 64), rounded, times the tile (64, DIM). */
template <int DIM, int TILES>
TESS_DEVICE void multiply_across(float c[TILES][DIM / 8][4], const float p[TILES][KEYS / 8][4], const bf16 *tile,
                                 int lane)
{
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t a[TILES][4], b[4];
#pragma unroll
        for (int m = 0; m < TILES; m++) c_to_a(a[m], p[m][2 * k], p[m][2 * k + 1]);
#pragma unroll
        for (int n = 0; n < DIM / 16; n++) {
            load_b_pair_across<DIM>(b, tile, k * 16, n * 16, lane);
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                multiply_add(c[m][2 * n], a[m], b);
                multiply_add(c[m][2 * n + 1], a[m], b + 2);
            }
        }
    }
}

/* Shared memory, in tiles: Q, then two of K and of V, which take turns. */
template <int DIM, int WARPS, int TILES> struct forward_shape {
    static constexpr int QUERIES = WARPS * TILES * 16, THREADS = WARPS * WARP;
    static constexpr size_t SHARED = (size_t)(QUERIES + 4 * KEYS) * DIM * sizeof(bf16);
};

template <int DIM, int WARPS, int TILES, bool DROP>
TESS_KERNEL_AT(WARPS *WARP, 2)
flash_forward_kernel(flash f, int blocks)
{
    constexpr int QUERIES = forward_shape<DIM, WARPS, TILES>::QUERIES, THREADS = WARPS * WARP;
    TESS_DYNAMIC_SHARED(shared);
    bf16 *q_tile = (bf16 *)shared, *k_tile = q_tile + QUERIES * DIM, *v_tile = k_tile + 2 * KEYS * DIM;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane >> 2, t = lane & 3;
    const job j = job_of(blockIdx.x, blocks, f.heads, f.causal);
    const int q0 = j.block * QUERIES, mine = warp * TILES * 16, group = j.head / (f.heads / f.groups);
    const int64_t row = j.sequence * f.length;
    const int end = f.causal && q0 + QUERIES < f.length ? q0 + QUERIES : f.length;
    const int steps = (end + KEYS - 1) / KEYS;
    const bf16 *k_from = row_bf16(f.k, row, group, DIM), *v_from = row_bf16(f.v, row, group, DIM);
    const uint64_t place = DROP ? place_of(f, j.sequence, j.head) : 0;

    copy_tile<DIM, QUERIES, THREADS>(q_tile, row_bf16(f.q, row + q0, j.head, DIM), f.q.ld, f.length - q0);
    copy_tile<DIM, KEYS, THREADS>(k_tile, k_from, f.k.ld, f.length);
    copy_tile<DIM, KEYS, THREADS>(v_tile, v_from, f.v.ld, f.length);
    copies_end_group();

    float o[TILES][DIM / 8][4] = {}, top[TILES][2], sum[TILES][2] = {};
#pragma unroll
    for (int m = 0; m < TILES; m++) top[m][0] = top[m][1] = -INFINITY;
    const float scale = f.scale * TESS_LOG2_E;

    for (int step = 0; step < steps; step++) {
        const int k0 = step * KEYS, next = k0 + KEYS;
        if (step + 1 < steps) {
            const int turn = (step + 1) % 2 * KEYS * DIM;
            copy_tile<DIM, KEYS, THREADS>(k_tile + turn, k_from + next * f.k.ld, f.k.ld, f.length - next);
            copy_tile<DIM, KEYS, THREADS>(v_tile + turn, v_from + next * f.v.ld, f.v.ld, f.length - next);
        }
        copies_end_group();
        copies_wait<1>();
        __syncthreads();

        float s[TILES][KEYS / 8][4];
        multiply_along<DIM, TILES>(s, q_tile, mine, k_tile + step % 2 * KEYS * DIM, lane);
        const bool edge = next > f.length || (f.causal && next > q0 + mine + 1);
#pragma unroll
        for (int m = 0; m < TILES; m++)
#pragma unroll
            for (int h = 0; h < 2; h++) {
                const int query = q0 + mine + m * 16 + g + 8 * h;
                const int seen = f.causal && query + 1 < f.length ? query + 1 : f.length;
                float most = top[m][h], all = 0;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[m][n][2 * h + e];
                        x = edge && k0 + n * 8 + 2 * t + e >= seen ? -INFINITY : x * scale;
                        most = fmaxf(most, x);
                    }
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
                most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
                const float shrink = power_of_2(top[m][h] - most);
                top[m][h] = most;
#pragma unroll
                for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[m][n][2 * h + e];
                        x = power_of_2(x - most);
                        all += x;
                        if (DROP) x *= kept(f, place, query, k0 + n * 8 + 2 * t + e);
                    }
                sum[m][h] = sum[m][h] * shrink + all; /* this lane's columns */
#pragma unroll
                for (int n = 0; n < DIM / 8; n++) {
                    o[m][n][2 * h] *= shrink;
                    o[m][n][2 * h + 1] *= shrink;
                }
            }
        multiply_across<DIM, TILES>(o, s, v_tile + step % 2 * KEYS * DIM, lane);
        __syncthreads(); /* before its turn is overwritten */
    }

#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
            float all = sum[m][h];
            all += __shfl_xor_sync(0xffffffffu, all, 1);
            all += __shfl_xor_sync(0xffffffffu, all, 2);
            const int query = q0 + mine + m * 16 + g + 8 * h;
            if (t == 0 && query < f.length) f.lse[(row + query) * f.heads + j.head] = top[m][h] * TESS_LN_2 + logf(all);
            const float one = 1 / all;
#pragma unroll
            for (int n = 0; n < DIM / 8; n++) {
                o[m][n][2 * h] *= one;
                o[m][n][2 * h + 1] *= one;
            }
        }
    put_rows<DIM, TILES>(q_tile + mine * DIM, o, (bf16 *)row_of_mut<TESS_BF16>(f.y, row + q0 + mine, j.head, DIM),
                         f.y.ld, f.length - q0 - mine, false, lane);
}

/* delta (rows, heads) = sum of dy y over each head; a warp each. */
template <tess_dtype T> TESS_KERNEL(256) delta_kernel(flash f, int64_t rows)
{
    const int64_t i = (int64_t)blockIdx.x * (256 / WARP) + threadIdx.x / WARP, row = i / f.heads;
    const int head = (int)(i % f.heads);
    if (row >= rows) return;
    const void *dy = row_of<T>(f.dy, row, head, f.dim), *y = row_of<T>(f.y, row, head, f.dim);
    float sum = 0;
    for (int c = (int)threadIdx.x % WARP; c < f.dim; c += WARP) {
        float a[1], b[1];
        load<T, 1>(a, dy, c);
        load<T, 1>(b, y, c);
        sum += a[0] * b[0];
    }
    sum = warp_sum(sum);
    if (threadIdx.x % WARP == 0) f.delta[i] = sum;
}

/* Shared memory: two tiles of the block's own, WARPS x 16 rows, two and two that take turns, lse and delta of those. */
template <int DIM, int WARPS> struct backward_shape {
    static constexpr int ROWS = WARPS * 16, THREADS = WARPS * WARP;
    static constexpr size_t SHARED =
        (size_t)(2 * ROWS + 4 * KEYS) * DIM * sizeof(bf16) + 4 * (size_t)KEYS * sizeof(float);
};

/* lse, in powers of 2, and delta of queries q0... to shared memory; queries past the end get an lse that makes their
 * probabilities 0. */
TESS_DEVICE void load_rows(float *lse, float *delta, const flash &f, int64_t row, int head, int q0)
{
    for (int i = (int)threadIdx.x; i < KEYS; i += (int)blockDim.x) {
        const bool valid = q0 + i < f.length;
        const int64_t at = (row + q0 + i) * f.heads + head;
        lse[i] = valid ? f.lse[at] * TESS_LOG2_E : INFINITY;
        delta[i] = valid ? f.delta[at] : 0;
    }
}

/* dk and dv of a block of keys of one group: over its heads and their queries, in that order. */
template <int DIM, int WARPS, bool DROP> TESS_KERNEL_AT(WARPS *WARP, 1) flash_keys_kernel(flash f, int blocks)
{
    constexpr int ROWS = backward_shape<DIM, WARPS>::ROWS, THREADS = WARPS * WARP;
    TESS_DYNAMIC_SHARED(shared);
    bf16 *k_tile = (bf16 *)shared, *v_tile = k_tile + ROWS * DIM, *q_tile = v_tile + ROWS * DIM;
    bf16 *dy_tile = q_tile + 2 * KEYS * DIM;
    float *lse = (float *)(dy_tile + 2 * KEYS * DIM), *delta = lse + 2 * KEYS;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane >> 2, t = lane & 3;
    const job j = job_of(blockIdx.x, blocks, f.groups, false);
    const int k0 = j.block * ROWS, mine = warp * 16, share = f.heads / f.groups;
    const int64_t row = j.sequence * f.length;
    const int first = f.causal ? k0 / KEYS : 0, each = (f.length + KEYS - 1) / KEYS - first, steps = each * share;

    copy_tile<DIM, ROWS, THREADS>(k_tile, row_bf16(f.k, row + k0, j.head, DIM), f.k.ld, f.length - k0);
    copy_tile<DIM, ROWS, THREADS>(v_tile, row_bf16(f.v, row + k0, j.head, DIM), f.v.ld, f.length - k0);

    float dk[1][DIM / 8][4] = {}, dv[1][DIM / 8][4] = {};
    const float scale = f.scale * TESS_LOG2_E;
    for (int step = -1; step < steps; step++) {
        if (step + 1 < steps) { /* what comes next sets out */
            const int turn = (step + 1) % 2, head = j.head * share + (step + 1) / each;
            const int q0 = (first + (step + 1) % each) * KEYS, at = turn * KEYS * DIM;
            copy_tile<DIM, KEYS, THREADS>(q_tile + at, row_bf16(f.q, row + q0, head, DIM), f.q.ld, f.length - q0);
            copy_tile<DIM, KEYS, THREADS>(dy_tile + at, row_bf16(f.dy, row + q0, head, DIM), f.dy.ld, f.length - q0);
            load_rows(lse + turn * KEYS, delta + turn * KEYS, f, row, head, q0);
        }
        copies_end_group();
        if (step < 0) continue;
        copies_wait<1>();
        __syncthreads();

        const int turn = step % 2, head = j.head * share + step / each, q0 = (first + step % each) * KEYS;
        const bf16 *q = q_tile + turn * KEYS * DIM, *dy = dy_tile + turn * KEYS * DIM;
        const uint64_t place = DROP ? place_of(f, j.sequence, head) : 0;
        const bool edge = f.causal && q0 < k0 + mine + 16;
        float p[1][KEYS / 8][4], ds[1][KEYS / 8][4]; /* (keys, queries) */
        multiply_along<DIM, 1>(p, k_tile, mine, q, lane);
        multiply_along<DIM, 1>(ds, v_tile, mine, dy, lane);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int i = n * 8 + 2 * t + e % 2, key = k0 + mine + g + e / 2 * 8;
                float x = power_of_2(p[0][n][e] * scale - lse[turn * KEYS + i]);
                if (edge && key > q0 + i) x = 0;
                const float keep = DROP ? kept(f, place, q0 + i, key) : 1;
                ds[0][n][e] = x * (ds[0][n][e] * keep - delta[turn * KEYS + i]) * f.scale;
                p[0][n][e] = x * keep;
            }
        multiply_across<DIM, 1>(dv, p, dy, lane);
        multiply_across<DIM, 1>(dk, ds, q, lane);
        __syncthreads(); /* before its turn is overwritten */
    }
    copies_wait<0>();
    const int valid = f.length - k0 - mine;
    put_rows<DIM, 1>(k_tile + mine * DIM, dk, (bf16 *)row_of_mut<TESS_BF16>(f.dk, row + k0 + mine, j.head, DIM),
                     f.dk.ld, valid, f.acc, lane);
    put_rows<DIM, 1>(v_tile + mine * DIM, dv, (bf16 *)row_of_mut<TESS_BF16>(f.dv, row + k0 + mine, j.head, DIM),
                     f.dv.ld, valid, f.acc, lane);
}

/* dq of a block of queries of one head, over the keys it sees. */
template <int DIM, int WARPS, bool DROP> TESS_KERNEL_AT(WARPS *WARP, 1) flash_queries_kernel(flash f, int blocks)
{
    constexpr int ROWS = backward_shape<DIM, WARPS>::ROWS, THREADS = WARPS * WARP;
    TESS_DYNAMIC_SHARED(shared);
    bf16 *q_tile = (bf16 *)shared, *dy_tile = q_tile + ROWS * DIM, *k_tile = dy_tile + ROWS * DIM;
    bf16 *v_tile = k_tile + 2 * KEYS * DIM;
    const int lane = (int)threadIdx.x % WARP, warp = (int)threadIdx.x / WARP, g = lane >> 2, t = lane & 3;
    const job j = job_of(blockIdx.x, blocks, f.heads, f.causal);
    const int q0 = j.block * ROWS, mine = warp * 16, group = j.head / (f.heads / f.groups);
    const int64_t row = j.sequence * f.length;
    const int end = f.causal && q0 + ROWS < f.length ? q0 + ROWS : f.length, steps = (end + KEYS - 1) / KEYS;
    const bf16 *k_from = row_bf16(f.k, row, group, DIM), *v_from = row_bf16(f.v, row, group, DIM);
    const uint64_t place = DROP ? place_of(f, j.sequence, j.head) : 0;

    copy_tile<DIM, ROWS, THREADS>(q_tile, row_bf16(f.q, row + q0, j.head, DIM), f.q.ld, f.length - q0);
    copy_tile<DIM, ROWS, THREADS>(dy_tile, row_bf16(f.dy, row + q0, j.head, DIM), f.dy.ld, f.length - q0);
    float lse[2], delta[2];
#pragma unroll
    for (int h = 0; h < 2; h++) {
        const int query = q0 + mine + g + 8 * h;
        const int64_t at = (row + query) * f.heads + j.head;
        lse[h] = query < f.length ? f.lse[at] * TESS_LOG2_E : INFINITY;
        delta[h] = query < f.length ? f.delta[at] : 0;
    }

    float dq[1][DIM / 8][4] = {};
    const float scale = f.scale * TESS_LOG2_E;
    for (int step = -1; step < steps; step++) {
        if (step + 1 < steps) {
            const int turn = (step + 1) % 2 * KEYS * DIM, next = (step + 1) * KEYS;
            copy_tile<DIM, KEYS, THREADS>(k_tile + turn, k_from + next * f.k.ld, f.k.ld, f.length - next);
            copy_tile<DIM, KEYS, THREADS>(v_tile + turn, v_from + next * f.v.ld, f.v.ld, f.length - next);
        }
        copies_end_group();
        if (step < 0) continue;
        copies_wait<1>();
        __syncthreads();

        const bf16 *k = k_tile + step % 2 * KEYS * DIM, *v = v_tile + step % 2 * KEYS * DIM;
        const int k0 = step * KEYS;
        const bool edge = f.causal && k0 + KEYS > q0 + mine + 1;
        float p[1][KEYS / 8][4], ds[1][KEYS / 8][4]; /* (queries, keys) */
        multiply_along<DIM, 1>(p, q_tile, mine, k, lane);
        multiply_along<DIM, 1>(ds, dy_tile, mine, v, lane);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int key = k0 + n * 8 + 2 * t + e % 2, h = e / 2, query = q0 + mine + g + 8 * h;
                float x = power_of_2(p[0][n][e] * scale - lse[h]);
                if (edge && key > query) x = 0;
                const float keep = DROP ? kept(f, place, query, key) : 1;
                ds[0][n][e] = x * (ds[0][n][e] * keep - delta[h]) * f.scale;
            }
        multiply_across<DIM, 1>(dq, ds, k, lane);
        __syncthreads(); /* before its turn is overwritten */
    }
    copies_wait<0>();
    put_rows<DIM, 1>(q_tile + mine * DIM, dq, (bf16 *)row_of_mut<TESS_BF16>(f.dq, row + q0 + mine, j.head, DIM),
                     f.dq.ld, f.length - q0 - mine, f.acc, lane);
}

/* ==== any head size, any dtype =====================================================================================
 */

constexpr int GENERAL_WARPS = 4;

/* Sum of a b over `dim`, to all lanes; a in shared memory. */
template <tess_dtype T> TESS_DEVICE float dot(const float *a, const void *b, int dim, int lane)
{
    float sum = 0;
    for (int c = lane; c < dim; c += WARP) {
        float v[1];
        load<T, 1>(v, b, c);
        sum += a[c] * v[0];
    }
    return warp_sum(sum);
}
/* sum += weight b */
template <tess_dtype T> TESS_DEVICE void add_scaled(float *sum, float weight, const void *b, int dim, int lane)
{
    for (int c = lane; c < dim; c += WARP) {
        float v[1];
        load<T, 1>(v, b, c);
        sum[c] += weight * v[0];
    }
}
template <tess_dtype T> TESS_DEVICE void widen(float *to, const void *from, int dim, int lane)
{
    for (int c = lane; c < dim; c += WARP) {
        float v[1];
        load<T, 1>(v, from, c);
        to[c] = v[0];
    }
}
template <tess_dtype T> TESS_DEVICE void put_row(void *to, const float *from, float scale, bool acc, int dim, int lane)
{
    for (int c = lane; c < dim; c += WARP) {
        float v[1] = {from[c] * scale};
        accumulate<T, 1>(to, c, acc, v);
    }
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
    const int group = at.head / (f.heads / f.groups), seen = f.causal ? at.index + 1 : f.length;
    const uint64_t random = place_of(f, at.sequence, at.head);
    widen<T>(q, row_of<T>(f.q, at.row, at.head, f.dim), f.dim, lane);
    clear(o, f.dim, lane);
    for (int key = 0; key < seen; key++) {
        const int64_t row = at.row - at.index + key;
        const float s = dot<T>(q, row_of<T>(f.k, row, group, f.dim), f.dim, lane) * (f.scale * TESS_LOG2_E);
        const float most = fmaxf(top, s), shrink = exp2f(top - most), p = exp2f(s - most);
        sum = sum * shrink + p;
        top = most;
        for (int c = lane; c < f.dim; c += WARP) o[c] *= shrink;
        add_scaled<T>(o, f.drop ? p * kept(f, random, at.index, key) : p, row_of<T>(f.v, row, group, f.dim), f.dim,
                      lane);
    }
    put_row<T>(row_of_mut<T>(f.y, at.row, at.head, f.dim), o, 1 / sum, false, f.dim, lane);
    if (lane == 0) f.lse[at.row * f.heads + at.head] = top * TESS_LN_2 + logf(sum);
}

template <tess_dtype T> TESS_KERNEL(GENERAL_WARPS *WARP) queries_kernel(flash f, int64_t rows)
{
    TESS_DYNAMIC_SHARED(shared);
    const int lane = (int)threadIdx.x % WARP;
    const place at = place_in((int64_t)blockIdx.x * GENERAL_WARPS, f.length, f.heads, rows);
    if (!at.valid) return;
    float *q = (float *)shared + (int)threadIdx.x / WARP * 3 * f.dim, *dy = q + f.dim, *dq = dy + f.dim;
    const int group = at.head / (f.heads / f.groups), seen = f.causal ? at.index + 1 : f.length;
    const uint64_t random = place_of(f, at.sequence, at.head);
    const float lse = f.lse[at.row * f.heads + at.head], delta = f.delta[at.row * f.heads + at.head];
    widen<T>(q, row_of<T>(f.q, at.row, at.head, f.dim), f.dim, lane);
    widen<T>(dy, row_of<T>(f.dy, at.row, at.head, f.dim), f.dim, lane);
    clear(dq, f.dim, lane);
    for (int key = 0; key < seen; key++) {
        const int64_t row = at.row - at.index + key;
        const void *k = row_of<T>(f.k, row, group, f.dim);
        const float p = expf(dot<T>(q, k, f.dim, lane) * f.scale - lse);
        const float dp = dot<T>(dy, row_of<T>(f.v, row, group, f.dim), f.dim, lane);
        const float keep = f.drop ? kept(f, random, at.index, key) : 1;
        add_scaled<T>(dq, p * (dp * keep - delta) * f.scale, k, f.dim, lane);
    }
    put_row<T>(row_of_mut<T>(f.dq, at.row, at.head, f.dim), dq, 1, f.acc, f.dim, lane);
}

template <tess_dtype T> TESS_KERNEL(GENERAL_WARPS *WARP) keys_kernel(flash f, int64_t rows)
{
    TESS_DYNAMIC_SHARED(shared);
    const int lane = (int)threadIdx.x % WARP;
    const place at = place_in((int64_t)blockIdx.x * GENERAL_WARPS, f.length, f.groups, rows);
    if (!at.valid) return;
    float *k = (float *)shared + (int)threadIdx.x / WARP * 4 * f.dim, *v = k + f.dim, *dk = v + f.dim, *dv = dk + f.dim;
    const int share = f.heads / f.groups;
    widen<T>(k, row_of<T>(f.k, at.row, at.head, f.dim), f.dim, lane);
    widen<T>(v, row_of<T>(f.v, at.row, at.head, f.dim), f.dim, lane);
    clear(dk, f.dim, lane);
    clear(dv, f.dim, lane);
    for (int head = at.head * share; head < (at.head + 1) * share; head++) {
        const uint64_t random = place_of(f, at.sequence, head);
        for (int query = f.causal ? at.index : 0; query < f.length; query++) {
            const int64_t row = at.row - at.index + query;
            const void *q = row_of<T>(f.q, row, head, f.dim), *dy = row_of<T>(f.dy, row, head, f.dim);
            const float p = expf(dot<T>(k, q, f.dim, lane) * f.scale - f.lse[row * f.heads + head]);
            const float keep = f.drop ? kept(f, random, query, at.index) : 1;
            const float ds = p * (dot<T>(v, dy, f.dim, lane) * keep - f.delta[row * f.heads + head]) * f.scale;
            add_scaled<T>(dv, p * keep, dy, f.dim, lane);
            add_scaled<T>(dk, ds, q, f.dim, lane);
        }
    }
    put_row<T>(row_of_mut<T>(f.dk, at.row, at.head, f.dim), dk, 1, f.acc, f.dim, lane);
    put_row<T>(row_of_mut<T>(f.dv, at.row, at.head, f.dim), dv, 1, f.acc, f.dim, lane);
}

/* ==== launching =================================================================================================== */

/* The three parts from buffer `i` on: one that holds all, or three. */
template <tess_dtype T> static void find_parts(part p[3], const tess_work *w, unsigned i, const tess_attention_arg *a)
{
    const int64_t wide = a->heads * a->dim, narrow = a->groups * a->dim, all = wide + 2 * narrow;
    for (int j = 0; j < 3; j++) {
        const int64_t column = j ? wide + (j - 1) * narrow : 0;
        if (a->packed)
            p[j] = part{(char *)w->buf[i].ptr + column * (int64_t)tess_dtype_size(T), all};
        else
            p[j] = part{w->buf[i + (unsigned)j].ptr, j ? narrow : wide};
    }
}

static flash flash_of(const tess_work *w, const tess_attention_arg *a)
{
    flash f = {};
    TESS_ASSERT(a->sequence < INT32_MAX / 2);
    f.length = (int)a->sequence;
    f.heads = (int)a->heads;
    f.groups = (int)a->groups;
    f.dim = (int)a->dim;
    f.scale = a->scale;
    f.causal = a->causal;
    f.acc = a->acc;
    f.drop = a->dropout > 0 && w->env->train;
    f.sequence = (uint64_t)(a->row0 / a->sequence);
    f.head0 = (uint64_t)a->head0;
    f.all_heads = (uint64_t)(a->all_heads ? a->all_heads : a->heads);
    if (f.drop) {
        f.random = tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op);
        f.rule = tess_dropout_begin(a->dropout);
    }
    return f;
}

/* Whether the parts can be copied 16 bytes at a time; with these head sizes their rows then can. */
static bool fast(const part *p, int parts)
{
    bool can = true;
    for (int i = 0; i < parts; i++) can = can && aligned(p[i].ptr);
    return can;
}

template <int DIM, int WARPS, int TILES> static void flash_forward(const tess_work *w, const flash &f, int64_t rows)
{
    using shape = forward_shape<DIM, WARPS, TILES>;
    const int blocks = (int)blocks_of(f.length, shape::QUERIES);
    launch(w, f.drop ? flash_forward_kernel<DIM, WARPS, TILES, true> : flash_forward_kernel<DIM, WARPS, TILES, false>,
           rows / f.length * f.heads * blocks, shape::THREADS, shape::SHARED, f, blocks);
}

/* packed: qkv, y, lse, scratch.  else: q, k, v, y, lse, scratch */
template <tess_dtype T> static void attention_forward_body(const tess_work *w)
{
    const tess_attention_arg *a = (const tess_attention_arg *)w->arg;
    const tess_view *rest = w->buf + (a->packed ? 1 : 3);
    part p[3];
    flash f = flash_of(w, a);
    find_parts<T>(p, w, 0, a);
    f.q = p[0], f.k = p[1], f.v = p[2];
    f.y = part{rest[0].ptr, a->heads * a->dim};
    f.lse = (float *)rest[1].ptr;
    const part all[] = {f.q, f.k, f.v, f.y};
    if (T == TESS_BF16 && a->dim == 128 && fast(all, 4))
        flash_forward<128, 4, 2>(w, f, a->rows);
    else if (T == TESS_BF16 && a->dim == 64 && fast(all, 4))
        flash_forward<64, 4, 2>(w, f, a->rows);
    else
        launch(w, forward_kernel<T>, blocks_of(a->rows * a->heads, GENERAL_WARPS), GENERAL_WARPS * WARP,
               (size_t)(GENERAL_WARPS * 2 * a->dim) * sizeof(float), f, a->rows);
}

template <int DIM, int WARPS> static void flash_backward(const tess_work *w, const flash &f, int64_t rows)
{
    using shape = backward_shape<DIM, WARPS>;
    const int blocks = (int)blocks_of(f.length, shape::ROWS);
    const int64_t sequences = rows / f.length;
    launch(w, f.drop ? flash_keys_kernel<DIM, WARPS, true> : flash_keys_kernel<DIM, WARPS, false>,
           sequences * f.groups * blocks, shape::THREADS, shape::SHARED, f, blocks);
    launch(w, f.drop ? flash_queries_kernel<DIM, WARPS, true> : flash_queries_kernel<DIM, WARPS, false>,
           sequences * f.heads * blocks, shape::THREADS, shape::SHARED, f, blocks);
}

/* packed: dy, qkv, y, lse, dqkv +=, scratch.  else: dy, q, k, v, y, lse, dq +=, dk +=, dv +=, scratch */
template <tess_dtype T> static void attention_backward_body(const tess_work *w)
{
    const tess_attention_arg *a = (const tess_attention_arg *)w->arg;
    const unsigned three = a->packed ? 1 : 3;
    part p[3], dp[3];
    flash f = flash_of(w, a);
    find_parts<T>(p, w, 1, a);
    find_parts<T>(dp, w, 3 + three, a);
    f.q = p[0], f.k = p[1], f.v = p[2];
    f.dq = dp[0], f.dk = dp[1], f.dv = dp[2];
    f.dy = part{w->buf[0].ptr, a->heads * a->dim};
    f.y = part{w->buf[1 + three].ptr, a->heads * a->dim};
    f.lse = (float *)w->buf[2 + three].ptr;
    f.delta = (float *)w->buf[3 + 2 * three].ptr; /* scratch */
    launch(w, delta_kernel<T>, blocks_of(a->rows * a->heads, 256 / WARP), 256, 0, f, a->rows);
    const part all[] = {f.q, f.k, f.v, f.y, f.dy, f.dq, f.dk, f.dv};
    if (T == TESS_BF16 && a->dim == 128 && fast(all, 8)) {
        flash_backward<128, 8>(w, f, a->rows);
    } else if (T == TESS_BF16 && a->dim == 64 && fast(all, 8)) {
        flash_backward<64, 4>(w, f, a->rows);
    } else {
        const int threads = GENERAL_WARPS * WARP;
        const size_t room = (size_t)(GENERAL_WARPS * a->dim) * sizeof(float);
        launch(w, keys_kernel<T>, blocks_of(a->rows * a->groups, GENERAL_WARPS), threads, 4 * room, f, a->rows);
        launch(w, queries_kernel<T>, blocks_of(a->rows * a->heads, GENERAL_WARPS), threads, 3 * room, f, a->rows);
    }
}

TESS_CUDA_REAL(attention_forward)
TESS_CUDA_REAL(attention_backward)
