/* exact: the sum of squares as exact.c has it: every row in update.h's order, the rows' sums added without
 * rounding. Limbs are integers, so atomics have no order that shows. And what adds and rounds finished sums. */
#include "codelets/shared/exact.h"
#include "codelets/shared/kernels.h"

constexpr int LANES = TESS_SQUARE_LANES, ROWS = 4; /* of a block */

/* The lanes in tess_sum64d's tree; the result is lane 0's. All threads of the block come here. */
TESS_DEVICE void sum_lanes(double *lane, int l)
{
    for (int half = LANES / 2; half > 0; half /= 2) {
        __syncthreads();
        if (l < half) lane[l] += lane[l + half];
    }
    __syncthreads();
}

constexpr int WORDS = TESS_EXACT_LIMBS + 1; /* of a sum */
static_assert(sizeof(tess_exact) == WORDS * sizeof(int64_t), "limbs and odd, nothing between them");

/* As tess_exact_carry, by a block with a thread for each word: what is too much for a limb goes to the next one, all at
 * once, until none has too much. That is two turns, and as many as there are limbs only where all of them are full; the
 * sum has one form, whichever way it is come to. */
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

TESS_DEVICE void add_limb(int64_t *limb, uint64_t x)
{
    if (x) atomicAdd((unsigned long long *)limb, (unsigned long long)x);
}
TESS_DEVICE void add_exact(tess_exact *sum, double x)
{
    int at;
    uint32_t limb[3];
    if (!tess_exact_split(x, &at, limb)) {
        add_limb(&sum->odd, 1);
        return;
    }
    for (int k = 0; k < 3; k++) add_limb(&sum->limb[at + k], limb[k]);
}

/* A square of a float is exact in double, so it does not matter whether it is contracted. */
TESS_KERNEL(LANES *ROWS) square_rows_kernel(const float *x, tess_exact *sum, int64_t n, int64_t width)
{
    TESS_SHARED(double, room, [ROWS][LANES]);
    TESS_SHARED(double, total, [ROWS][LANES]);
    const int l = (int)threadIdx.x % LANES, slot = (int)threadIdx.x / LANES;
    const int64_t row = (int64_t)blockIdx.x * ROWS + slot, first = row * width, left = n - first;
    const int64_t end = left < width ? left : width; /* below 0 past the last row */
    double mine = 0;
    for (int64_t c = 0; c < tess_square_pieces(width); c++) {
        const int64_t begin = c * TESS_SQUARE_PIECE, rest = end - begin;
        const int64_t m = rest < TESS_SQUARE_PIECE ? rest : (int64_t)TESS_SQUARE_PIECE;
        double lane = 0;
#pragma unroll 8
        for (int64_t i = l; i < m; i += LANES) {
            const double v = x[first + begin + i];
            lane += v * v;
        }
        room[slot][l] = lane;
        sum_lanes(room[slot], l);
        if (c % LANES == l) mine += room[slot][0];
        __syncthreads();
    }
    total[slot][l] = mine;
    sum_lanes(total[slot], l);
    if (l == 0 && end > 0) add_exact(sum, total[slot][0]);
}

/* With a loss: fails where that is finite and a term was not. */
TESS_KERNEL(WORDS) squares_done_kernel(tess_exact *sum, const double *loss, failing failed)
{
    TESS_SHARED(int64_t, word, [WORDS]);
    const int k = (int)threadIdx.x;
    word[k] = ((const int64_t *)sum)[k];
    carry_all(word, k);
    ((int64_t *)sum)[k] = word[k];
    if (k == TESS_EXACT_LIMBS && loss && isfinite(*loss) && word[k]) tess_kernel_failed(failed, -1, NAN);
}

template <tess_dtype T> static void square_sum_body(const tess_work *w)
{
    const tess_square_arg *a = arg_of(w);
    const float *x = (const float *)w->buf[0].ptr + a->first;
    tess_exact *sum = (tess_exact *)w->buf[1].ptr;
    const double *loss = w->nbuf > 2 ? (const double *)w->buf[2].ptr : NULL;
    set_bytes(w, sum, 0, sizeof *sum);
    launch(w, square_rows_kernel, blocks_of(blocks_of(a->n, a->row), ROWS), LANES * ROWS, 0, x, sum, a->n, a->row);
    launch(w, squares_done_kernel, 1, WORDS, 0, sum, loss, failing_of(w, a->name));
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
