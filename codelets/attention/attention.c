/* attention: softmax(q k^T scale) v without a T x T matrix, sequence by sequence and head by head.
 *
 * Forward, a block of queries passes over blocks of keys. For each, S = q k^T in fp32; every query keeps the maximum m
 * of its logits so far, the sum l of exp(s - m) and O = P v with P = exp(s - m) in real; where a block raises m, what l
 * and O hold shrinks by exp(m - m'). At the end y = O / l, and lse = m + log l is all that the backward pass needs:
 *
 *     p = exp(s scale - lse)     dv = p^T dy     dp = dy v^T     delta = sum(dy y)     ds = p (dp - delta) scale
 *     dq = ds k                  dk = ds^T q
 *
 * dk and dv gather in fp32 over the queries and over the heads that share them, in that order; dq over the keys of each
 * part, and then over the parts.
 *
 * A query sees the keys of a range, which ends at its own where it is causal, begins a window before that, and lies
 * within its document. Blocks of keys that no query of a block sees are not touched, so a window costs what it is wide
 * and padding nothing. A query that sees no key has y = 0.
 *
 * Before the softmax a logit may be bent: cap tanh(s scale / cap), or s scale + bias(key - query), where the bias of a
 * head is a bucket of a table. Both live in natural units, after which only log2(e) is left of the scale.
 *
 * This file has the bodies, which go over the units of a task, and their costs. A unit is made with the vectors that
 * the CPU has, by attention_512.c, attention_256.c or attention_128.c.
 *
 * A task of spans has some keys of a sequence: forward m, l and O go from each to the next of the same queries;
 * backward dq, dk and dv add up in fp32.
 *
 * With dropout, p is replaced by 0 or p/(1-dropout) in the products, by random bits of the sequence of the batch, the
 * head, the query and the key: heads_impl.h.
 *
 * Why a range of keys for each query and not a mask: a mask of T x T is read for every head, is data that a plan would
 * have to move, and saves no work. Two numbers a place say padding, packed documents and an encoder's length;
 * causality and windows need no input. A block of queries then sees a range again, so blocks of keys outside it are
 * never touched. A mask with holes cannot be said, and no family asks for one. Blocks have 128 keys in place of 512
 * where there are ranges. */
#include "codelets/attention/attention_impl.h"
#include "codelets/products/mm.h"
#include "codelets/shared/cudnn_choice.h"
#include "codelets/shared/parts.h"

static const attention_way *way_here(void)
{
#ifdef __x86_64__
    const int lanes = tess_mm_lanes();
    return lanes == 16 ? &tess_attention_512 : lanes == 8 ? &tess_attention_256 : &tess_attention_128;
#else
    return &tess_attention_128;
#endif
}
static int products_here(tess_dtype t)
{
    return t != TESS_BF16 || tess_mm_as(t) != t ? IN_FLOATS : tess_mm_tiles() ? ON_TILES : IN_PAIRS;
}

/* ---- parts: how a unit is cut ------------------------------------------------------------------------------------ */

/* Queries or keys of a part, more or less; see below. The cuts depend on the shape of a head and on the number of heads
 * of the model, not on the number of heads of a task. */
enum { PART = 512, SUMS_BYTES = 8 << 20, SUM_ROWS = 256 };

/* Forward by queries; what a query's y is does not depend on that. */
static int64_t forward_cuts(const tess_attention_arg *a)
{
    return a->sequence / PART > 1 ? a->sequence / PART : 1;
}
/* The first query, or key, of part k, of as much work each: where it is causal, the pairs before a query are as its
 * square, those from a key on as the square of what is left. */
static int64_t cut_at(const tess_attention_arg *a, int64_t length, int64_t cuts, int64_t k, bool keys)
{
    const double share = (double)k / (double)cuts, end = (double)length;
    if (k == cuts) return length;
    const bool even = !a->causal || a->window || a->query0 != a->key0;
    const double at = even ? share : keys ? 1 - sqrt(1 - share) : sqrt(share);
    return (int64_t)(end * at / CUT + 0.5) * CUT;
}

/* Backward by keys: each part has dk and dv of its own, and a sum of dq, which is added to those of the other parts in
 * their order. The sums of all heads of a sequence take no more room than SUMS_BYTES. With a bias, whose gradient goes
 * through all units, no unit is cut. */
static int64_t together_from(const tess_attention_arg *a, int64_t cuts)
{
    return a->causal && !a->keys ? cut_at(a, a->sequence, cuts, 1, true) : 0;
}
/* Of one part, in floats. */
static int64_t sums_of(const tess_attention_arg *a, int64_t cuts)
{
    return a->heads / a->groups * (a->sequence - together_from(a, cuts)) * a->dim;
}
static size_t sums_bytes(const tess_attention_arg *a, int64_t cuts, int64_t groups)
{
    return cuts > 1 ? (size_t)(groups * cuts * sums_of(a, cuts)) * sizeof(float) : 0;
}
static int64_t backward_cuts(const tess_attention_arg *a)
{
    const int64_t groups = (a->all_heads ? a->all_heads : a->heads) / (a->heads / a->groups);
    int64_t cuts = a->buckets ? 1 : keys_of(a) / PART;
    while (cuts > 1 && sums_bytes(a, cuts, groups) > SUMS_BYTES) cuts--;
    return cuts > 1 ? cuts : 1;
}

/* Of a part. */
static size_t part_scratch(const tess_attention_arg *a, tess_dtype t)
{
    /* Of all ways the most, so that it does not depend on what this CPU has. */
    static const attention_way *const ways[] = {&tess_attention_128,
#ifdef __x86_64__
                                                &tess_attention_256, &tess_attention_512
#endif
    };
    size_t most = 0;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        const size_t need[] = {ways[i]->forward_scratch(a), ways[i]->backward_scratch(a, false),
                               t == TESS_BF16 ? ways[i]->backward_scratch(a, true) : 0};
        for (int j = 0; j < 3; j++) most = need[j] > most ? need[j] : most;
    }
    /* On a GPU delta of all rows at once, a bias by distance and its gradient. */
    const int64_t distances = a->buckets ? a->heads * (a->sequence + keys_of(a)) : 0;
    const size_t gpu = (size_t)(a->rows * a->heads + 2 * distances) * sizeof(float);
    return (most > gpu ? most : gpu) / 64 * 64 + 64;
}
size_t tess_attention_scratch(const tess_attention_arg *a, tess_dtype t)
{
    return part_scratch(a, t) + sums_bytes(a, backward_cuts(a), a->groups);
}

size_t tess_attention_carry(const tess_attention_arg *a)
{
    return (size_t)(a->heads * ((a->sequence + CARRIED - 1) / CARRIED) * carried(a)) * sizeof(float);
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

TESS_INLINE void forward_part(const tess_work *w, int64_t index, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    const int64_t cuts = forward_cuts(a), unit = index / cuts, cut = index % cuts;
    const tess_view *rest = w->buf + operands_of(a), *scratch = w->buf + w->nbuf - 1;
    part p[3];
    find_parts(p, w, 0, a, t);
    attention_task task = {.w = w, .a = a, .q = p[0], .k = p[1], .v = p[2]};
    task.bounds = a->bounded ? rest++->ptr : NULL;
    task.table = a->buckets ? rest++->ptr : NULL;
    if (a->whole && !(a->begins && a->ends)) task.carry = rest++->ptr;
    if (!a->whole || a->ends) task.y = rest[0].ptr, task.lse = rest[1].ptr;
    task.scratch = tess_part_room(scratch->ptr, part_scratch(a, t));
    TESS_ASSERT(tess_attention_scratch(a, t) <= scratch->bytes);
    task.first = cut_at(a, a->sequence, cuts, cut, false), task.end = cut_at(a, a->sequence, cuts, cut + 1, false);
    way_here()->forward[products_here(t)](&task, unit / a->groups, unit % a->groups, t);
}
TESS_PART_BODIES(forward_part)

/* q, k, v or qkv[, bounds][, bias], y, lse, scratch */
static int64_t attention_forward_parts(const tess_codelet *cl, const void *arg)
{
    const tess_attention_arg *a = arg;
    (void)cl;
    return a->rows / a->sequence * a->groups * forward_cuts(a);
}
TESS_INLINE void attention_forward(const tess_work *w, tess_dtype t)
{
    tess_parts_run(attention_forward_parts(NULL, w->arg), TESS_PART_BODY(forward_part, t), (void *)w);
}

/* The scratch, which all buffers come before. */
static const tess_view *scratch_of(const tess_work *w)
{
    return &w->buf[w->nbuf - 1];
}
/* The sums of all parts of a group of heads lie in the owner's scratch, behind its part's. */
static float *sums_of_group(const tess_work *w, int64_t group, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    const int64_t cuts = backward_cuts(a);
    float *all = (float *)(void *)((char *)scratch_of(w)->ptr + part_scratch(a, t));
    return all + group * cuts * sums_of(a, cuts);
}

/* Parts of one sequence or, where heads are not cut, of all from this one on. */
typedef struct backward_turn {
    const tess_work *w;
    int64_t sequence;
} backward_turn;

/* Backward; with a bias, whose gradient adds up over sequences, the units of all of them. */
TESS_INLINE void backward_part(const backward_turn *turn, int64_t index, tess_dtype t)
{
    const tess_work *w = turn->w;
    const tess_attention_arg *a = w->arg;
    const unsigned three = operands_of(a), more = (a->bounded ? 1 : 0) + (a->buckets ? 1 : 0);
    part p[3], d[3];
    find_parts(p, w, 1, a, t);
    find_gradients(d, w, 3 + three + more, a, t);
    attention_task task = {.w = w, .a = a, .q = p[0], .k = p[1], .v = p[2], .dq = d[0], .dk = d[1], .dv = d[2]};
    task.bounds = a->bounded ? w->buf[1 + three].ptr : NULL;
    task.table = a->buckets ? w->buf[three + more].ptr : NULL;
    task.dy = w->buf[0].ptr, task.y = w->buf[1 + three + more].ptr, task.lse = w->buf[2 + three + more].ptr;
    const tess_view *rest = w->buf + 3 + three + more + tess_gradients(a);
    task.dbias = a->buckets ? rest++->ptr : NULL;
    task.scratch = tess_part_room(rest->ptr, part_scratch(a, t));
    TESS_ASSERT(tess_attention_scratch(a, t) <= rest->bytes);
    const int64_t cuts = backward_cuts(a), first = turn->sequence * a->groups + index / cuts, cut = index % cuts;
    task.first = cut_at(a, keys_of(a), cuts, cut, true), task.end = cut_at(a, keys_of(a), cuts, cut + 1, true);
    if (cuts > 1) task.sums = sums_of_group(w, first % a->groups, t) + cut * sums_of(a, cuts);
    task.together = together_from(a, cuts);
    const attention_unit whole = way_here()->backward[products_here(t)];
    const int64_t end = task.dbias ? a->rows / a->sequence * a->groups : first + 1;
    for (int64_t unit = first; unit < end; unit += a->groups) whole(&task, unit / a->groups, unit % a->groups, t);
}
TESS_PART_BODIES(backward_part)

/* dq of some queries of a unit: what its parts add to it. */
TESS_INLINE void sums_part(const backward_turn *turn, int64_t index, tess_dtype t)
{
    const tess_work *w = turn->w;
    const tess_attention_arg *a = w->arg;
    const int64_t cuts = backward_cuts(a), share = a->heads / a->groups, together = together_from(a, cuts);
    const int64_t queries = a->sequence - together, blocks = tess_parts_of(queries, SUM_ROWS), group = index / blocks;
    const int64_t first = index % blocks * SUM_ROWS, rows = least(SUM_ROWS, queries - first), n = rows * a->dim;
    const unsigned three = operands_of(a), more = (a->bounded ? 1 : 0) + (a->buckets ? 1 : 0);
    const tess_dtype to = gradients_as(a, t);
    part d[3];
    find_gradients(d, w, 3 + three + more, a, t);
    for (int64_t i = 0; i < share; i++) {
        float *sum = sums_of_group(w, group, t) + (i * queries + first) * a->dim;
        for (int64_t k = 1; k < cuts; k++) {
            const float *other = sum + k * sums_of(a, cuts);
#pragma omp simd
            for (int64_t j = 0; j < n; j++) sum[j] += other[j];
        }
        const int64_t row = turn->sequence * a->sequence + together + first, head = group * share + i;
        TESS_BY_DTYPE(to, put_rows, part_at(d[0], row, head, to), d[0].ld, sum, a->dim, 1, rows, a->dim, adds_to_dq(a));
    }
}
TESS_PART_BODIES(sums_part)

/* dy, q, k, v or qkv[, bounds][, bias], y, lse, dq +=, dk +=, dv += or dqkv +=[, dbias +=], scratch */
static int64_t attention_backward_parts(const tess_codelet *cl, const void *arg)
{
    const tess_attention_arg *a = arg;
    const int64_t cuts = backward_cuts(a);
    (void)cl;
    return a->groups * (cuts > 1 ? cuts : a->buckets ? 1 : a->rows / a->sequence);
}
TESS_INLINE void attention_backward(const tess_work *w, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    if (a->buckets && !a->acc_bias) memset(w->buf[w->nbuf - 2].ptr, 0, (size_t)(a->buckets * a->heads) * sizeof(float));
    const int64_t cuts = backward_cuts(a), blocks = tess_parts_of(a->sequence - together_from(a, cuts), SUM_ROWS);
    backward_turn turn = {.w = w};
    for (; turn.sequence < (cuts > 1 ? a->rows / a->sequence : 1); turn.sequence++) {
        tess_parts_run(attention_backward_parts(NULL, a), TESS_PART_BODY(backward_part, t), &turn);
        if (cuts > 1) tess_parts_run(a->groups * blocks, TESS_PART_BODY(sums_part, t), &turn);
    }
}

/* ---- a GPU's kernels --------------------------------------------------------------------------------------------- */

/* The library is asked for what it was seen to do right everywhere. Lengths that are no multiple of 128 need another
 * mask in versions up to 9.15, or give wrong gradients. */
tess_attention_kernels tess_attention_kernels_of(const tess_attention_arg *a, tess_dtype t, bool train)
{
    const bool fits = (t == TESS_BF16 || t == TESS_F16) && a->dim % 8 == 0 && a->dim <= TESS_ATTENTION_WIDEST;
    const bool plain = a->causal && !a->whole && !a->bounded && !a->buckets && !(a->cap > 0) && a->scale > 0 &&
                       !(train && a->dropout > 0);
    return (tess_attention_kernels){
        .tile = !fits           ? 0
                : a->dim <= 64  ? 64
                : a->dim <= 128 ? 128
                                : TESS_ATTENTION_WIDEST,
        .library = fits && plain && keys_of(a) == a->sequence && a->sequence % 128 == 0,
    };
}
size_t tess_attention_room(const tess_attention_arg *a, tess_dtype t)
{
    const uint64_t enough = 64 << 20; /* a worker's scratch */
    const uint64_t most = 4 * enough, group = (uint64_t)(2 * a->heads / a->groups * a->sequence * a->sequence);
    const uint64_t all = group * (uint64_t)(a->groups * (a->rows / a->sequence));
    if (tess_gpus() == 0 || a->acc || !tess_attention_kernels_of(a, t, true).library) return 0;
    if (all <= enough || group > 2 * most) return 0;
    return all < most ? all : group > most ? group : most / group * group;
}
double tess_attention_slower(const tess_attention_arg *a, tess_dtype t, bool backward)
{
    if (!tess_attention_kernels_of(a, t, true).tile) return TESS_ATTENTION_SLOWER;
    if (backward && a->buckets) return 1 + 2.0 / 5 * TESS_ATTENTION_SLOWER; /* two more products beside five */
    /* As an H100 had it, 179 and 83 TFLOP/s, 607 and 76, before dropout had kernels of its own; not measured since. */
    return !(a->dropout > 0) ? 1 : backward ? 2 : 8;
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

/* The sum over `n` queries of what lies below x, x + 1 and so on, of `keys`. */
static double below(double x, double n, double keys)
{
    double sum = 0;
    for (int i = 0; i < 2; i++) {
        const double y = i ? x : x + n, some = y < keys ? y : keys;
        if (y > 0) sum += (i ? -1 : 1) * (some * (some - 1) / 2 + (y - some) * keys);
    }
    return sum;
}

/* `products` of (queries x keys x dim), over the pairs that see each other; `passes` over q, k, v and y. */
static tess_cost attention_cost(const tess_attention_arg *a, tess_dtype t, double products, double passes,
                                bool backward)
{
    const double length = (double)a->sequence, keys = (double)keys_of(a), own = (double)(a->query0 - a->key0);
    const double rows = (double)a->rows;
    double seen = a->causal ? below(own + 1, length, keys) : length * keys;
    if (a->window) seen -= below(own + 1 - (double)a->window, length, keys);
    const double flops = 2 * products * rows / length * seen * (double)(a->heads * a->dim);
    return (tess_cost){
        .flops = flops,
        .lost = flops * (tess_attention_slower(a, t, backward) - 1),
        .bytes = rows * (passes * (double)(tess_dtype_size(t) * (size_t)(2 * (a->heads + a->groups) * a->dim)) +
                         4 * (double)a->heads),
    };
}
static tess_cost attention_forward_cost(const void *arg, tess_dtype t)
{
    return attention_cost(arg, t, 2, 1, false);
}
static tess_cost attention_backward_cost(const void *arg, tess_dtype t)
{
    return attention_cost(arg, t, 5, ((const tess_attention_arg *)arg)->acc ? 3 : 2, true);
}

TESS_PART_COST(attention_forward)
TESS_PART_COST(attention_backward)

/* Those of spans have the same bodies. */
#define SPAN(pass, name_of, t, ...)                                                                                    \
    [t] = {.name = "attention_span_" #pass,                                                                            \
           .dtype = t,                                                                                                 \
           .cpu = attention_##pass##_##name_of,                                                                        \
           .cuda = TESS_CUDA(attention_span_##pass##_##name_of),                                                       \
           .parts = attention_##pass##_parts,                                                                          \
           .cost = attention_##pass##_cost_##name_of},
#define DECLARE(pass, name_of, t, ...) TESS_CUDA_DECLARE(attention_span_##pass##_##name_of)
TESS_EACH_REAL(DECLARE, forward, )
TESS_EACH_REAL(DECLARE, backward, )
tess_codelet tess_attention_span_forward[TESS_REAL_DTYPES] = {TESS_EACH_REAL(SPAN, forward, )};
tess_codelet tess_attention_span_backward[TESS_REAL_DTYPES] = {TESS_EACH_REAL(SPAN, backward, )};

TESS_CUDA_DECLARE(attention_library)
bool tess_attention_library(bool wanted, char *said, size_t room)
{
    return tess_cudnn_settle(TESS_CUDA(attention_library), wanted, said, room);
}
