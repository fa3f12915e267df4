/* tree: sums of gradients in the shape of a fixed binary tree over micro-batches, whoever computed which. A part is the
 * sum of 2^level neighbouring micro-batches, at a multiple of that. Parts come in the order of their micro-batches; two
 * of the same level become one of the next; in the end what is left adds up from the last to the first. */
#include "codelets/shared/vector.h"

enum { BLOCK = 2048, DEPTH = 48 };

TESS_CLONES static void tree_sum(const tess_work *w)
{
    const tess_tree_arg *a = w->arg;
    float *out = (float *)w->buf[0].ptr + a->out;
    float sum[DEPTH][BLOCK];
    int level[DEPTH];
    for (int64_t first = 0; first < a->n; first += BLOCK) {
        const int64_t n = a->n - first < BLOCK ? a->n - first : BLOCK;
        int depth = 0;
        for (unsigned p = 0; p < a->parts; p++) {
            const tess_dtype t = a->part[p].as;
            const char *from = w->buf[a->part[p].buf].ptr;
            from += tess_dtype_bytes(t, a->part[p].first + first);
            if (t == TESS_INT8)
                tess_quantize_read(sum[depth], TESS_F32, from, t, n);
            else
                tess_widen(sum[depth], from, n, t);
            level[depth++] = a->part[p].level;
            while (depth > 1 && (level[depth - 1] == level[depth - 2] || p + 1 == a->parts)) {
                float *to = sum[depth - 2];
                const float *more = sum[depth - 1];
#pragma omp simd
                for (int64_t i = 0; i < n; i++) to[i] += more[i];
                depth--;
                level[depth - 1]++;
            }
        }
        memcpy(out + first, sum[0], (size_t)n * sizeof *out);
    }
}

/* Of tiles it reads and writes a part. */
static tess_cost tree_sum_cost(const void *arg)
{
    const tess_tree_arg *a = arg;
    const double bytes = (double)a->n * (a->parts + 1) * sizeof(float);
    return (tess_cost){.bytes = bytes, .passes = bytes};
}
TESS_F32_CODELET(tree_sum, .either = true, .cost = tree_sum_cost)

TESS_INLINE void span_sum(const tess_work *w, tess_dtype t)
{
    const tess_span_arg *a = w->arg;
    void *x = tess_at_mut(w->buf[0].ptr, a->first, t);
    float sum[BLOCK];
    for (int64_t first = 0; first < a->n; first += BLOCK) {
        const int64_t n = a->n - first < BLOCK ? a->n - first : BLOCK;
        for (unsigned r = 0; r < w->nbuf; r++) {
            const void *part = r == a->mine ? x : w->buf[r < a->mine ? r + 1 : r].ptr;
#pragma omp simd
            for (int64_t i = 0; i < n; i++) sum[i] = (r ? sum[i] : 0) + tess_load(part, first + i, t);
        }
#pragma omp simd
        for (int64_t i = 0; i < n; i++) tess_store(x, first + i, t, sum[i]);
    }
}
static tess_cost span_sum_cost(const void *arg, tess_dtype t)
{
    const tess_span_arg *a = arg;
    const double bytes = (double)a->n * (a->ranks + 1) * (double)tess_dtype_size(t);
    return (tess_cost){.bytes = bytes, .passes = bytes};
}
TESS_REAL_COSTS(span_sum, .either = true)

static void copy(const tess_work *w)
{
    const tess_copy_arg *a = w->arg;
    memcpy((char *)w->buf[1].ptr + a->to, (const char *)w->buf[0].ptr + a->from, a->bytes);
}
static tess_cost copy_cost(const void *arg)
{
    const double bytes = 2 * (double)((const tess_copy_arg *)arg)->bytes;
    return (tess_cost){.bytes = bytes, .passes = bytes};
}
TESS_F32_CODELET(copy, .either = true, .cost = copy_cost)
