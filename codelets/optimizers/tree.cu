/* tree: sums of gradients in the shape of tree.c and of partial products, element by element, and copies. */
#include "codelets/shared/codes.h"
#include "codelets/shared/kernels.h"

struct leaf {
    const void *x;
    int level;
    tess_dtype as;
};
constexpr int LEAVES = 128, DEPTH = 48; /* leaves that one launch brings along */
struct leaves {
    leaf part[LEAVES];
};

TESS_KERNEL(LEAVES) bring_kernel(leaf *to, leaves some, int count)
{
    const int i = (int)threadIdx.x;
    if (i < count) to[i] = some.part[i];
}

/* Element i of blocks of codes. */
TESS_DEVICE float code_at(const void *x, int64_t i)
{
    enum { BLOCK = TESS_QUANTIZED_BLOCK, SCALE = sizeof(float) };
    const unsigned char *block = (const unsigned char *)x + i / BLOCK * (SCALE + BLOCK);
    return tess_int8_value(block[SCALE + i % BLOCK]) * *(const float *)block;
}
TESS_DEVICE float part_at(const leaf &part, int64_t i)
{
    if (part.as == TESS_INT8) return code_at(part.x, i);
    if (part.as == TESS_BF16) return value_at<TESS_BF16>(part.x, i);
    return part.as == TESS_F16 ? value_at<TESS_F16>(part.x, i) : value_at<TESS_F32>(part.x, i);
}

TESS_KERNEL(MAP_THREADS) tree_kernel(float *out, const leaf *part, int parts, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * MAP_THREADS + threadIdx.x;
    float sum[DEPTH];
    int level[DEPTH], depth = 0;
    if (i >= n) return;
    for (int p = 0; p < parts; p++) {
        sum[depth] = part_at(part[p], i);
        level[depth++] = part[p].level;
        while (depth > 1 && (level[depth - 1] == level[depth - 2] || p + 1 == parts)) {
            sum[depth - 2] += sum[depth - 1];
            depth--;
            level[depth - 1]++;
        }
    }
    out[i] = sum[0];
}

/* The leaves leaf_of(0 .. parts-1) in the device's memory; NULL where there is no room. */
template <class F> static const leaf *bring(const tess_work *w, unsigned parts, F leaf_of)
{
    leaf *to = (leaf *)room_of(w, parts * sizeof *to);
    for (unsigned p = 0; p < parts && to; p += LEAVES) {
        leaves some = {};
        const int count = parts - p < LEAVES ? (int)(parts - p) : LEAVES;
        for (int k = 0; k < count; k++) some.part[k] = leaf_of(p + (unsigned)k);
        launch(w, bring_kernel, 1, LEAVES, 0, to + p, some, count);
    }
    return to;
}

template <tess_dtype T> static void tree_sum_body(const tess_work *w)
{
    const tess_tree_arg *a = arg_of(w);
    const leaf *part = bring(w, a->parts, [&](unsigned p) {
        const tess_tree_part *of = &a->part[p];
        return leaf{(const char *)w->buf[of->buf].ptr + tess_dtype_bytes(of->as, of->first), of->level, of->as};
    });
    if (!part) return;
    launch(w, tree_kernel, blocks_of(a->n, MAP_THREADS), MAP_THREADS, 0, (float *)w->buf[0].ptr + a->out, part,
           (int)a->parts, a->n);
}
TESS_CUDA_BODY(tree_sum, tree_sum_f32, TESS_F32)

template <tess_dtype T> TESS_KERNEL(MAP_THREADS) span_kernel(void *x, const leaf *part, int parts, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * MAP_THREADS + threadIdx.x;
    float sum = 0;
    if (i >= n) return;
    for (int p = 0; p < parts; p++) sum += value_at<T>(part[p].x, i);
    put_at<T>(x, i, sum);
}

template <tess_dtype T> static void span_sum_body(const tess_work *w)
{
    const tess_span_arg *a = arg_of(w);
    void *x = at(w->buf[0].ptr, a->first, T);
    const leaf *part = bring(w, w->nbuf, [&](unsigned r) {
        return leaf{r == a->mine ? x : w->buf[r < a->mine ? r + 1 : r].ptr, 0, T};
    });
    if (part) launch(w, span_kernel<T>, blocks_of(a->n, MAP_THREADS), MAP_THREADS, 0, x, part, (int)w->nbuf, a->n);
}
TESS_CUDA_REAL(span_sum)

template <tess_dtype T> static void copy_body(const tess_work *w)
{
    const tess_copy_arg *a = arg_of(w);
    copy_bytes(w, (char *)w->buf[1].ptr + a->to, (const char *)w->buf[0].ptr + a->from, a->bytes);
}
TESS_CUDA_BODY(copy, copy_f32, TESS_F32)
