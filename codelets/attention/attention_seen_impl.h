/* attention_seen: what the kernels of attention.cu know of a task: where its parts lie, which keys a query sees and
 * which queries see a key, and how logits are bent. A part of attention.cu. */
#ifndef TESS_ATTENTION_SEEN_IMPL_H
#define TESS_ATTENTION_SEEN_IMPL_H
#include "codelets/attention/buckets_cuda_impl.h"
#include "codelets/shared/tensor_cores.h"

/* One of q, k, v, y or a gradient of theirs. */
struct part {
    void *ptr;
    int64_t ld, apart; /* from row to row, from head to head */
};

/* What kernels know of a task. Forward: y and lse are written. */
struct flash {
    part q, k, v, y, dy, dq, dk, dv; /* y, dy: rows of heads*dim */
    float *lse, *delta;              /* (rows, heads) */
    const int32_t *bounds;           /* NULL: none */
    float *bias, *dbias;             /* (heads, length + keys), by distance; NULL: none */
    int length, keys, heads, groups, dim;
    int all_queries;  /* of the sequence; more than length where the task has a span of it */
    int query0, key0; /* places of the first */
    int window;
    float scale, cap;
    bool causal, drop;
    bool acc_q, acc; /* dq; dk and dv */
    bool sums;       /* dq, dk and dv are fp32 */
    float *carry;    /* of spans: what the keys before left of the queries, and what these leave; NULL: they are all */
    int64_t carried; /* from block to block of it */
    bool begins, ends;
    tess_random_key random;
    tess_dropout_rule rule;    /* where nothing is dropped one that keeps all */
    uint64_t sequence;         /* of the batch, the tile's first */
    uint64_t head0, all_heads; /* the first of these heads, and how many the model has */
};

/* The random bits of a head. */
TESS_DEVICE tess_random_key random_of(const flash &f, int64_t sequence, int head)
{
    return tess_head_random(f.random, (f.sequence + (uint64_t)sequence) * f.all_heads + f.head0 + (uint64_t)head);
}
TESS_DEVICE bool kept(const flash &f, tess_random_key random, int query, int key)
{
    const int q = f.query0 + query, k = f.key0 + key;
    const uint32_t bits = tess_quad_bits(random, tess_quad_of(q), tess_quad_of(k));
    return !f.drop || tess_quad_keeps(bits, q >> 3 & 1, k >> 3 & 1, f.rule);
}

/* bits[n][e]: of the four places of a C in rows g and g + 8 and columns 16 n + 2 t + e and 8 more, where q and k are
 * the quads of g and 2 t. KEYS: rows are keys. */
template <bool KEYS, int N> TESS_DEVICE void draw(uint32_t bits[N][2], tess_random_key random, uint32_t q, uint32_t k)
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint32_t column = (uint32_t)(n * 8 + e);
            bits[n][e] = KEYS ? tess_quad_bits(random, q + column, k) : tess_quad_bits(random, q, k + column);
        }
}

/* Keys [first, end), or queries. */
struct range {
    int first, end;
};
/* Those that a query of the task sees; one past the end sees none. */
TESS_DEVICE range seen_by(const flash &f, int64_t sequence, int query)
{
    const int oldest = query + f.query0 - f.key0 + 1 - f.window;
    range r = {0, f.causal ? query + 1 : f.keys};
    if (query >= f.length) return range{0, 0};
    if (f.bounds) {
        const int32_t *b = f.bounds + 2 * sequence * f.all_queries + f.query0 + query;
        const int first = b[0] - f.key0, end = b[f.all_queries] - f.key0;
        r.first = first > 0 ? first : 0;
        r.end = end < r.end ? end : r.end;
    }
    if (f.window && oldest > r.first) r.first = oldest;
    if (r.end < r.first) r.end = r.first;
    return r;
}
/* What holds all of a warp's ranges; those that are empty do not count. */
TESS_DEVICE range join(range r)
{
    int first = r.first < r.end ? r.first : INT32_MAX, end = r.first < r.end ? r.end : 0;
    for (int i = WARP / 2; i > 0; i /= 2) {
        const int other = __shfl_xor_sync(0xffffffffu, first, i), far = __shfl_xor_sync(0xffffffffu, end, i);
        first = other < first ? other : first;
        end = far > end ? far : end;
    }
    return end == 0 ? range{0, 0} : range{first, end};
}
/* Those that queries [q0, q0 + n) see; all lanes of a warp ask. */
TESS_DEVICE range seen_by_block(const flash &f, int64_t sequence, int q0, int n, int lane)
{
    range all = {INT32_MAX, 0};
    for (int i = lane; i < n; i += WARP) {
        const range r = seen_by(f, sequence, q0 + i);
        if (r.first == r.end) continue;
        all.first = r.first < all.first ? r.first : all.first;
        all.end = r.end > all.end ? r.end : all.end;
    }
    return join(all);
}
/* The first and the last query that see any of keys [k0, k0 + n); all lanes of a warp ask. */
TESS_DEVICE range seeing_block(const flash &f, int64_t sequence, int k0, int n, int lane)
{
    range all = {f.causal ? k0 : 0, f.length};
    const int last = k0 + n - 1 + f.window + f.key0 - f.query0;
    if (f.window && last < all.end) all.end = last > all.first ? last : all.first;
    if (!f.bounds) return all;
    range seeing = {INT32_MAX, 0};
    for (int i = all.first + lane; i < all.end; i += WARP) {
        const range r = seen_by(f, sequence, i);
        if (r.first == r.end || r.first >= k0 + n || r.end <= k0) continue;
        if (i < seeing.first) seeing.first = i;
        seeing.end = i + 1;
    }
    return join(seeing);
}

/* A logit in powers of 2, and its slope by q k^T. bias: the head's. */
TESS_DEVICE float bend(const flash &f, const float *bias, float s, int query, int key, float *slope)
{
    float x = s * f.scale;
    *slope = f.scale;
    if (f.cap > 0) {
        const float c = tanhf(x / f.cap);
        *slope = (1 - c * c) * f.scale;
        x = c * f.cap;
    } else if (bias && query < f.length && key < f.keys) {
        x += bias[key - query + f.length - 1];
    }
    return x * TESS_LOG2_E;
}
TESS_DEVICE const float *bias_of(const flash &f, int head)
{
    return f.bias ? f.bias + (int64_t)head * (f.length + f.keys) : NULL;
}

template <tess_dtype T> TESS_DEVICE const void *row_of(const part &p, int64_t row, int head)
{
    return at((const void *)p.ptr, row * p.ld + head * p.apart, T);
}
template <tess_dtype T> TESS_DEVICE void *row_of_mut(const part &p, int64_t row, int head)
{
    return at(p.ptr, row * p.ld + head * p.apart, T);
}
TESS_DEVICE const half16 *row_half(const part &p, int64_t row, int head)
{
    return (const half16 *)p.ptr + row * p.ld + head * p.apart;
}

/* What is carried of a query: O, `apart` from element to element, then its maximum, in powers of 2, and its sum. */
struct carry {
    float *o, *top, *sum;
};
constexpr int CARRIED = 64; /* queries of a block */
TESS_DEVICE carry carry_of(const flash &f, int head, int query)
{
    float *block = f.carry + ((int64_t)head * ((f.length + CARRIED - 1) / CARRIED) + query / CARRIED) * f.carried;
    float *top = block + f.carried - 2 * CARRIED + query % CARRIED;
    return carry{block + query % CARRIED, top, top + CARRIED};
}
TESS_DEVICE bool goes_on(const flash &f)
{
    return f.carry && !f.begins;
}
TESS_DEVICE bool leaves(const flash &f)
{
    return f.carry && !f.ends;
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
/* Blocks of keys are done block by block over `all` groups and sequences: where it is causal the first are the longest,
 * and there are few for each multiprocessor, so that the short ones of all groups fill the end (tests/gpu/makespan). */
TESS_DEVICE job job_by_block(int64_t index, int all, int groups)
{
    job j;
    const int64_t rest = index % all;
    j.block = (int)(index / all);
    j.head = (int)(rest % groups);
    j.sequence = rest / groups;
    return j;
}

#endif
