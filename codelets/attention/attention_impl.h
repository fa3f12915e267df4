/* attention: what its kernels share: where operands lie, which keys a query sees, how logits are bent, and a task as
 * its body hands it out. The unit of the work is one group of heads of one sequence: its heads share k and v, and what
 * a unit writes no other does, but for dbias, to which the units of a group add in the order of the sequences.
 *
 * attention_wide_forward_impl.h and attention_wide_backward_impl.h make a unit, by vectors of 512, 256 or 128 bits. */
#ifndef TESS_ATTENTION_IMPL_H
#define TESS_ATTENTION_IMPL_H
#include "codelets/attention/heads_impl.h"
#include "codelets/products/mm.h"

/* Keys have a length of their own where they come from another sequence. */
TESS_INLINE int64_t keys_of(const tess_attention_arg *a)
{
    return a->keys ? a->keys : a->sequence;
}
/* Logits are made one by one. So they are where the scale is not positive, since a maximum follows the products, which
 * are the largest logits only if it is. */
TESS_INLINE bool bent(const tess_attention_arg *a)
{
    return a->cap > 0 || a->buckets || !(a->scale > 0);
}
/* One of q, k, v or a gradient of theirs. */
typedef struct part {
    void *ptr;
    int64_t ld, apart; /* from row to row, from head to head */
} part;
/* How many buffers hold q, k and v: three, or one that has all, or two that have them of queries and of keys. */
TESS_INLINE unsigned operands_of(const tess_attention_arg *a)
{
    return !a->packed ? 3 : a->query0 == a->key0 ? 1 : 2;
}
/* Where q, k and v lie, from buffer `i` on. */
TESS_INLINE void find_parts(part p[3], const tess_work *w, unsigned i, const tess_attention_arg *a, tess_dtype t)
{
    for (int j = 0; j < 3; j++) {
        const tess_heads h = tess_heads_of(a->heads, a->groups, a->dim, a->packed, a->by_head, j);
        const unsigned last = operands_of(a) - 1, at = (unsigned)j < last ? (unsigned)j : last;
        p[j] = (part){tess_at_mut(w->buf[i + at].ptr, h.column, t), h.ld, h.apart};
    }
}
TESS_INLINE void *part_at(part p, int64_t row, int64_t head, tess_dtype t)
{
    return tess_at_mut(p.ptr, row * p.ld + head * p.apart, t);
}

/* Gradients of spans add up in fp32. */
TESS_INLINE tess_dtype gradients_as(const tess_attention_arg *a, tess_dtype t)
{
    return a->whole ? TESS_F32 : t;
}
/* Where the gradients lie, from buffer `i` on. */
TESS_INLINE void find_gradients(part d[3], const tess_work *w, unsigned i, const tess_attention_arg *a, tess_dtype t)
{
    for (int j = 0; j < 3; j++) {
        unsigned at;
        const tess_heads h = tess_gradient_of(a, j, &at);
        d[j] = (part){tess_at_mut(w->buf[i + at].ptr, h.column, gradients_as(a, t)), h.ld, h.apart};
    }
}
TESS_INLINE bool adds_to_dq(const tess_attention_arg *a)
{
    return a->whole ? !a->begins : a->acc;
}

/* What a part of a body works on. Forward y and lse of these queries of a unit are written, and there is nothing from
 * dy on; backward dk and dv of these keys, and what those keys add to dq. The edges are multiples of CUT, but for the
 * last.
 */
enum { CUT = 128 };
typedef struct attention_task {
    const tess_work *w;
    const tess_attention_arg *a;
    int64_t first, end;
    part q, k, v;
    const int32_t *bounds; /* NULL: none */
    const void *table;     /* of biases; NULL: none */
    float *carry;          /* of spans; NULL: one task has all keys */
    void *y;
    float *lse;
    const void *dy;
    part dq, dk, dv;
    float *dbias;
    /* This part's contribution to dq of queries from `together` on, which see keys of several parts: (heads of the
     * unit, queries, dim). NULL: the part has all keys. */
    float *sums;
    int64_t together;
    void *scratch;
} attention_task;

/* Returns where a part adds its contribution to dq of a block of queries, by the unit's head; NULL: to dq itself. */
TESS_INLINE float *sums_at(const attention_task *task, int64_t head, int64_t query)
{
    const tess_attention_arg *a = task->a;
    if (!task->sums || query < task->together) return NULL;
    return task->sums + (head * (a->sequence - task->together) + query - task->together) * a->dim;
}
/* Returns whether a part can skip a block of queries that sees keys [first, end): they are not the part's keys. It then
 * zeroes the part's contribution `sums` to dq, or leaves dq to the part of key 0. */
TESS_INLINE bool unseen(const attention_task *task, int64_t first, int64_t end, float *sums, int64_t queries)
{
    if (!task->sums || (first < task->end && end > task->first)) return false;
    if (sums) memset(sums, 0, (size_t)(queries * task->a->dim) * sizeof *sums);
    return sums || task->first > 0;
}

/* The position of a block, and the dropout of its elements. */
typedef struct place {
    int64_t q0, nq, k0, nk; /* queries [q0, q0+nq), keys [k0, k0+nk) */
    bool drop;
    tess_random_key random; /* the head's */
    tess_dropout_rule rule;
    int64_t query0, key0;  /* of the task, in the sequence */
    const int32_t *bounds; /* of its queries: first keys, and after `apart` elements ends of keys; NULL: none */
    int64_t apart;
} place;

TESS_INLINE place place_of(const attention_task *task, int64_t sequence, int64_t head)
{
    const tess_work *w = task->w;
    const tess_attention_arg *a = task->a;
    const int64_t length = a->whole ? a->whole : a->sequence, heads = a->all_heads ? a->all_heads : a->heads;
    place p = {.drop = a->dropout > 0 && w->env->train, .query0 = a->query0, .key0 = a->key0, .apart = length};
    if (p.drop) {
        TESS_ASSERT(a->query0 % 16 == 0 && a->key0 % 16 == 0);
        p.random = tess_head_random(tess_random_begin(w->env->seed, (uint64_t)w->env->step, a->op),
                                    (uint64_t)((a->row0 / length + sequence) * heads + a->head0 + head));
        p.rule = tess_head_dropout(a->dropout);
    }
    if (task->bounds) p.bounds = task->bounds + 2 * sequence * length + a->query0;
    return p;
}

/* What a block of queries of a head leaves for the task with the next keys: O (even dim, queries), m and l. What
 * dropout multiplies O by comes with the last. */
enum { CARRIED = 64 };
TESS_INLINE int64_t carried(const tess_attention_arg *a)
{
    return ((a->dim + 31) / 32 * 32 + 2) * CARRIED;
}
TESS_INLINE float *carry_at(const attention_task *task, int64_t head, int64_t query)
{
    const tess_attention_arg *a = task->a;
    return task->carry + (head * ((a->sequence + CARRIED - 1) / CARRIED) + query / CARRIED) * carried(a);
}

/* Keys [first, end). */
typedef struct range {
    int64_t first, end;
} range;

TESS_INLINE int64_t later(int64_t a, int64_t b)
{
    return a > b ? a : b;
}
/* Those that query q of the task sees, counted from its first; end is not above first where it sees none. */
TESS_INLINE range seen_by(const place *b, const tess_attention_arg *a, int64_t q)
{
    const int64_t own = q + a->query0 - a->key0;
    range r = {0, a->causal ? own + 1 : keys_of(a)};
    if (b->bounds) {
        r.first = later(b->bounds[q] - a->key0, 0);
        r.end = least(r.end, b->bounds[b->apart + q] - a->key0);
    }
    if (a->window && own + 1 - a->window > r.first) r.first = own + 1 - a->window;
    if (r.end < r.first) r.end = r.first;
    return r;
}

/* Keys and queries of a task of spans are that much farther apart than it counts them. */
static inline int64_t apart_of(const tess_attention_arg *a)
{
    return a->key0 - a->query0;
}

/* bias (queries + keys): those of one head by distance, from the table (buckets, heads), along queries. */
static inline void spread_bias(const tess_attention_arg *a, const void *table, int64_t head, float *bias, tess_dtype t)
{
    const int64_t queries = a->sequence, keys = keys_of(a), n = queries + keys - 1;
    for (int64_t i = 0; i < n; i++)
        bias[n - 1 - i] =
            tess_load(table, tess_attention_bucket(a, apart_of(a) + i - (queries - 1)) * a->heads + head, t);
}

/* dbias (buckets, heads) += what the distances of one head gathered. */
static inline void gather_bias(const tess_attention_arg *a, const float *by_distance, int64_t head, float *dbias)
{
    const int64_t queries = a->sequence, keys = keys_of(a), n = queries + keys - 1, last = apart_of(a) + keys - 1;
    for (int64_t i = 0; i < n;) { /* a run of distances that share a bucket */
        const int64_t bucket = tess_attention_bucket(a, last - i);
        double sum = 0;
        for (; i < n && tess_attention_bucket(a, last - i) == bucket; i++) sum += (double)by_distance[i];
        dbias[bucket * a->heads + head] += (float)sum;
    }
}

/* to (rows, dim) of rows `ld` apart [+]= `by` times those of `from`, `apart` apart. */
TESS_INLINE void put_rows(void *to, int64_t ld, const float *from, int64_t apart, float by, int64_t rows, int64_t dim,
                          bool acc, tess_dtype t)
{
    for (int64_t i = 0; i < rows; i++) {
        void *row = tess_at_mut(to, i * ld, t);
#pragma omp simd
        for (int64_t j = 0; j < dim; j++) tess_accumulate(row, j, t, acc, from[i * apart + j] * by);
    }
}

/* Logits of one key, with those n queries, bent; slope (n) is what comes of it times the scale, bias (n) that of their
 * distances. */
TESS_INLINE void bend_back(const tess_attention_arg *a, const float *bias, float *s, float *slope, int64_t n)
{
    const float scale = a->scale, cap = a->cap;
    if (cap > 0) {
        const float part = scale / cap;
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            const float c = tess_tanhf(s[i] * part);
            s[i] = c * cap;
            slope[i] = (1 - c * c) * scale;
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            s[i] = a->buckets ? s[i] * scale + bias[i] : s[i] * scale;
            slope[i] = scale;
        }
    }
}

/* ---- by width ---------------------------------------------------------------------------------------------------- */

/* Attention with vectors of one width: the bytes of a unit's scratch, in fp32 or with halves; and the unit, whose
 * products are in fp32 or, with 512 bits alone, of bf16. How a unit is cut into parts depends on none of that. CPUs
 * other than x86-64 have vectors of 128 bits. */
enum { IN_FLOATS, ON_TILES, IN_PAIRS, PRODUCTS };
typedef void (*attention_unit)(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t);
typedef struct attention_way {
    size_t (*forward_scratch)(const tess_attention_arg *a);
    size_t (*backward_scratch)(const tess_attention_arg *a, bool half);
    attention_unit forward[PRODUCTS], backward[PRODUCTS];
} attention_way;
extern const attention_way tess_attention_128;
#ifdef __x86_64__
extern const attention_way tess_attention_256, tess_attention_512;
#endif

#endif
