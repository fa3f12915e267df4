/* tree: sums of gradients in the shape of tree.c, element by element, and copies. span_sum stays on the CPU, where its
 * parts come in. */
#include "cuda_impl.h"

struct leaf {
    const float *x;
    int level;
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

TESS_KERNEL(MAP_THREADS) tree_kernel(float *out, const leaf *part, int parts, int64_t n)
{
    const int64_t i = (int64_t)blockIdx.x * MAP_THREADS + threadIdx.x;
    float sum[DEPTH];
    int level[DEPTH], depth = 0;
    if (i >= n) return;
    for (int p = 0; p < parts; p++) {
        sum[depth] = part[p].x[i];
        level[depth++] = part[p].level;
        while (depth > 1 && (level[depth - 1] == level[depth - 2] || p + 1 == parts)) {
            sum[depth - 2] += sum[depth - 1];
            depth--;
            level[depth - 1]++;
        }
    }
    out[i] = sum[0];
}

template <tess_dtype T> static void tree_sum_body(const tess_work *w)
{
    const tess_tree_arg *a = (const tess_tree_arg *)w->arg;
    leaf *to = (leaf *)room_of(w, a->parts * sizeof *to);
    if (!to) return;
    for (unsigned p = 0; p < a->parts; p += LEAVES) {
        leaves some = {};
        const int count = a->parts - p < LEAVES ? (int)(a->parts - p) : LEAVES;
        for (int k = 0; k < count; k++) {
            const tess_tree_part *part = &a->part[p + (unsigned)k];
            some.part[k] = leaf{(const float *)w->buf[part->buf].ptr + part->first, part->level};
        }
        launch(w, bring_kernel, 1, LEAVES, 0, to + p, some, count);
    }
    launch(w, tree_kernel, blocks_of(a->n, MAP_THREADS), MAP_THREADS, 0, (float *)w->buf[0].ptr + a->out,
           (const leaf *)to, (int)a->parts, a->n);
}
TESS_CUDA_BODY(tree_sum, tree_sum_f32, TESS_F32)

template <tess_dtype T> static void copy_body(const tess_work *w)
{
    const tess_copy_arg *a = (const tess_copy_arg *)w->arg;
    copy_bytes(w, (char *)w->buf[1].ptr + a->to, (const char *)w->buf[0].ptr + a->from, a->bytes);
}
TESS_CUDA_BODY(copy, copy_f32, TESS_F32)
