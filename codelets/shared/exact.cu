/* exact: the sum of squares as exact.c has it: every row in update.h's order, the rows' sums added without
 * rounding. Limbs are integers, so atomics have no order that shows. And what adds and rounds finished sums. */
#include "codelets/shared/exact.h"
#include "codelets/shared/kernels.h"

constexpr int WORDS = TESS_EXACT_LIMBS + 1; /* of a sum */
static_assert(sizeof(tess_exact) == WORDS * sizeof(int64_t), "limbs and odd, nothing between them");

/* As tess_exact_carry, by a block with a thread for each word, or more, and as many words: what is too much for a limb
 * goes to the next one, all at once, until none has too much. That is two turns, and as many as there are limbs only
 * where all of them are full; the sum has one form, whichever way it is come to. */
TESS_DEVICE void carry_all(int64_t *word, int k)
{
    for (;;) {
        const int64_t over = k + 1 < TESS_EXACT_LIMBS ? word[k] >> 32 : 0;
        if (!__syncthreads_or(over != 0)) return;
        word[k] -= over * ((int64_t)1 << 32);
        __syncthreads();
        if (over) word[k + 1] += over;
        __syncthreads();
    }
}

/* ---- sums of squares ---- */

/* Of a row, to all lanes of the warp: lanes l and l + 32 of update.h's are this thread's, and the others' come by
 * shuffles, each sum of two in tess_sum64d's order. A square of a float is exact in double, so it does not matter
 * whether it is contracted. */
TESS_DEVICE double row_squares(const float *x, int64_t n, int lane)
{
    static_assert(TESS_SQUARE_LANES == 2 * WARP, "two lanes a thread");
    double low = 0, high = 0;
    for (int64_t c = 0; c < tess_square_pieces(n); c++, x += TESS_SQUARE_PIECE) {
        const int64_t rest = n - c * TESS_SQUARE_PIECE,
                      m = rest < TESS_SQUARE_PIECE ? rest : (int64_t)TESS_SQUARE_PIECE;
        double a = 0, b = 0;
        int64_t i = lane;
#pragma unroll 8
        for (; i + WARP < m; i += 2 * WARP) {
            const double v = x[i], u = x[i + WARP];
            a += v * v;
            b += u * u;
        }
        if (i < m) a += (double)x[i] * x[i];
        const double sum = warp_sum(a + b);
        if (c % TESS_SQUARE_LANES == lane) low += sum;
        if (c % TESS_SQUARE_LANES == lane + WARP) high += sum;
    }
    return warp_sum(low + high);
}

constexpr int64_t SQUARE_BLOCKS = 256; /* of a task, at most */

/* A block's rows, a warp each, into a sum of its own: each warp adds to limbs that no other has, and nothing waits. */
struct square_rows {
    static constexpr int THREADS = 256, WARPS = THREADS / WARP;
    const float *x;
    int64_t n, width, blocks;
    int64_t *part; /* (blocks, WORDS) */
    TESS_DEVICE void block(int64_t b) const
    {
        TESS_SHARED(int64_t, word, [WARPS][WORDS]);
        const int t = (int)threadIdx.x, lane = t % WARP;
        int64_t *mine = word[t / WARP];
        for (int k = lane; k < WORDS; k += WARP) mine[k] = 0;
        for (int64_t first = (b * WARPS + t / WARP) * width; first < n; first += blocks * WARPS * width) {
            int at;
            uint32_t limb[3];
            const bool finite =
                tess_exact_split(row_squares(x + first, n - first < width ? n - first : width, lane), &at, limb);
            __syncwarp();
            if (finite && lane < 3) mine[at + lane] += lane == 0 ? limb[0] : lane == 1 ? limb[1] : limb[2];
            if (!finite && lane == 0) mine[WORDS - 1]++;
        }
        __syncthreads();
        for (int k = t; k < WORDS; k += THREADS) {
            int64_t sum = 0;
            for (int i = 0; i < WARPS; i++) sum += word[i][k];
            part[b * WORDS + k] = sum;
        }
    }
};

/* The blocks' sums, in GROUPS of threads with a word each. With a loss: fails where that is finite and a term was not.
 */
struct square_total {
    static constexpr int GROUPS = 8, THREADS = GROUPS * WORDS;
    const int64_t *part;
    int64_t blocks;
    int64_t *sum;
    const double *loss;
    failing failed;
    TESS_DEVICE void block(int64_t) const
    {
        TESS_SHARED(int64_t, word, [THREADS]);
        const int t = (int)threadIdx.x, k = t % WORDS;
        int64_t some = 0;
#pragma unroll 8
        for (int64_t b = t / WORDS; b < blocks; b += GROUPS) some += part[b * WORDS + k];
        word[t] = some;
        __syncthreads();
        for (int g = 1; g < GROUPS && t < WORDS; g++) word[t] += word[g * WORDS + t];
        __syncthreads();
        carry_all(word, t);
        if (t < WORDS) sum[t] = word[t];
        if (t == WORDS - 1 && loss && isfinite(*loss) && word[t]) tess_kernel_failed(failed, -1, NAN);
    }
};

static int64_t square_blocks(const tess_square_arg *a)
{
    const int64_t blocks = blocks_of(blocks_of(a->n, a->row), square_rows::WARPS);
    return blocks < SQUARE_BLOCKS ? blocks : SQUARE_BLOCKS;
}

/* Of all that are to be done at once: one launch for the rows, one for what they come to. */
template <tess_dtype T> static void square_sum_body(const tess_work *w)
{
    together<square_rows> rows = {};
    together<square_total> totals = {};
    int64_t blocks = 0;
    for (const tess_work *of = w; of; of = of->next) blocks += square_blocks((const tess_square_arg *)of->arg);
    int64_t *part = (int64_t *)room_of(w, (size_t)blocks * sizeof(tess_exact)), *at = part;
    if (!part) return;
    for (const tess_work *of = w; of; of = of->next, at += blocks * WORDS) {
        const tess_square_arg *a = arg_of(of);
        blocks = square_blocks(a);
        add_together(w, &rows, {(const float *)of->buf[0].ptr + a->first, a->n, a->row, blocks, at}, blocks);
    }
    launch_together(w, &rows);
    at = part;
    for (const tess_work *of = w; of; of = of->next, at += blocks * WORDS) {
        const tess_square_arg *a = arg_of(of);
        blocks = square_blocks(a);
        const double *loss = of->nbuf > 2 ? (const double *)of->buf[2].ptr : NULL;
        add_together(w, &totals, {at, blocks, (int64_t *)of->buf[1].ptr, loss, failing_of(of, a->name)}, 1);
    }
    launch_together(w, &totals);
}
TESS_CUDA_BODY(square_sum, square_sum_f32, TESS_F32)

/* ---- sums of sums ---- */

constexpr int TERMS = 128; /* that one launch brings along */
struct terms {
    const void *x[TERMS];
};

/* A block for each of the sums side by side, a thread for each word. Doubles are few: one thread takes them. */
TESS_KERNEL(WORDS) exact_add_kernel(tess_exact *sum, terms of, int count, bool doubles, bool acc)
{
    TESS_SHARED(tess_exact, total, );
    const int k = (int)threadIdx.x;
    const int64_t i = blockIdx.x;
    int64_t *word = (int64_t *)&total;
    word[k] = acc ? ((const int64_t *)&sum[i])[k] : 0;
    for (int b = 0; b < count && !doubles; b++) word[k] += ((const int64_t *)((const tess_exact *)of.x[b] + i))[k];
    __syncthreads();
    for (int b = 0; b < count && doubles && k == 0; b++) tess_exact_take(&total, ((const double *)of.x[b])[i]);
    __syncthreads();
    carry_all(word, k);
    ((int64_t *)&sum[i])[k] = word[k];
}

/* Carried between launches, which changes no sum: what is carried has one form. */
template <tess_dtype T> static void exact_add_body(const tess_work *w)
{
    const tess_exact_arg *a = arg_of(w);
    bool acc = a->acc;
    for (unsigned first = 1; first == 1 || first < w->nbuf; first += TERMS) {
        terms of = {};
        int count = 0;
        for (; count < TERMS && first + (unsigned)count < w->nbuf; count++)
            of.x[count] = w->buf[first + (unsigned)count].ptr;
        launch(w, exact_add_kernel, a->n, WORDS, 0, buffer(w, 0), of, count, a->doubles, acc);
        acc = true;
    }
}
TESS_CUDA_BODY(exact_add, exact_add_f32, TESS_F32)

TESS_KERNEL(1) exact_means_kernel(double *x, const tess_exact *sum, int64_t n)
{
    x[0] = tess_exact_means(sum, n);
    x[1] = 1;
}

TESS_KERNEL(32) exact_round_kernel(double *x, const tess_exact *sum, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * 32 + threadIdx.x;
    if (i < n) x[i] = tess_exact_read(&sum[i]);
}

template <tess_dtype T> static void exact_round_body(const tess_work *w)
{
    const tess_exact_arg *a = arg_of(w);
    if (a->means)
        launch(w, exact_means_kernel, 1, 1, 0, buffer(w, 0), buffer(w, 1), a->means);
    else
        launch(w, exact_round_kernel, blocks_of(a->n, 32), 32, 0, buffer(w, 0), buffer(w, 1), a->n);
}
TESS_CUDA_BODY(exact_round, exact_round_f32, TESS_F32)
