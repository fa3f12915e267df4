/* attention: softmax(q k^T scale) v without a T x T matrix, sequence by sequence and head by head.
 *
 * Forward, a block of queries passes over blocks of keys. For each, S = q k^T in fp32; every query keeps the maximum m
 * of its logits so far, the sum l of exp(s - m) and O = P v with P = exp(s - m) in real; where a block raises m, what l
 * and O hold shrinks by exp(m - m'). At the end y = O / l, and lse = m + log l is all that the backward pass needs:
 *
 *     p = exp(s scale - lse)     dv = p^T dy     dp = dy v^T     delta = sum(dy y)     ds = p (dp - delta) scale
 *     dq = ds k                  dk = ds^T q
 *
 * dk and dv gather in fp32 over the queries and over the heads that share them, in that order.
 *
 * A query sees the keys of a range, which ends at its own where it is causal, begins a window before that, and lies
 * within its document; what of a block of queries no one sees is not touched, so a window costs what it is wide and
 * padding nothing. A query that sees no key has y = 0.
 *
 * Before the softmax a logit may be bent: cap tanh(s scale / cap), or s scale + bias(key - query), where the bias of a
 * head is a bucket of a table. Both live in natural units, after which only log2(e) is left of the scale.
 *
 * This file has the bodies, which go over the units of a task, and their costs. A unit is made by
 * attention_wide_forward.c and attention_wide_backward.c where the CPU has what those ask for, else as
 * attention_general_impl.h says.
 *
 * With dropout, p is replaced by 0 or p/(1-dropout) in the products, by random bits of the place ((sequence of the
 * batch * heads + head) * queries + query) * keys + key.
 */
#include "attention_general_impl.h"
#include "parts_impl.h"

size_t tess_attention_scratch(const tess_attention_arg *a, tess_dtype t)
{
    forward_room f;
    backward_room b;
    /* Of all ways the most, so that it does not depend on what this CPU has. */
    const size_t way[] = {forward_take(&f, a, t, NULL), backward_take(&b, a, t, NULL),
                          tess_attention_wide_forward_scratch(a), tess_attention_wide_backward_scratch(a, t)};
    size_t most = 0;
    for (int i = 0; i < 4; i++) most = way[i] > most ? way[i] : most;
    /* On a GPU delta of all rows at once, a bias by distance and its gradient. */
    const int64_t distances = a->buckets ? a->heads * (a->sequence + keys_of(a)) : 0;
    const size_t gpu = (size_t)(a->rows * a->heads + 2 * distances) * sizeof(float);
    return most > gpu ? most : gpu;
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

/* The cuts of a unit: the heads of a sequence that share keys. */
static int64_t cuts_of(const tess_attention_arg *a, tess_dtype t)
{
    return tess_attention_wide(a, t) ? tess_attention_wide_cuts(a) : 1;
}
/* A part is a cut of a unit. */
TESS_INLINE void forward_part(const tess_work *w, int64_t index, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    const int64_t cuts = cuts_of(a, t), unit = index / cuts, cut = index % cuts;
    const tess_view *rest = w->buf + (a->packed ? 1 : 3);
    part p[3];
    find_parts(p, w, 0, a, t);
    attention_task task = {.w = w, .a = a, .q = p[0], .k = p[1], .v = p[2]};
    task.bounds = a->bounded ? rest++->ptr : NULL;
    task.table = a->buckets ? rest++->ptr : NULL;
    task.y = rest[0].ptr, task.lse = rest[1].ptr, task.scratch = tess_part_room(rest[2].ptr, rest[2].bytes);
    TESS_ASSERT(tess_attention_scratch(a, t) <= rest[2].bytes);
    task.first = tess_attention_wide_cut(a, cut), task.end = tess_attention_wide_cut(a, cut + 1);
    if (tess_attention_wide(a, t))
        tess_attention_wide_forward(&task, unit / a->groups, unit % a->groups, t);
    else
        general_forward(&task, unit / a->groups, unit % a->groups, t);
}
TESS_PART_BODIES(forward_part)

/* q, k, v or qkv[, bounds][, bias], y, lse, scratch */
static int64_t forward_parts(const tess_attention_arg *a, tess_dtype t)
{
    return a->rows / a->sequence * a->groups * cuts_of(a, t);
}
static int64_t attention_forward_parts(const tess_codelet *cl, const void *arg)
{
    return forward_parts(arg, cl->dtype);
}
TESS_INLINE void attention_forward(const tess_work *w, tess_dtype t)
{
    tess_parts_run(forward_parts(w->arg, t), TESS_PART_BODY(forward_part, t), (void *)w);
}

/* The same of the backward pass; with a bias, whose gradient adds up over sequences, the units of all of them. */
TESS_INLINE void backward_part(const tess_work *w, int64_t first, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    const unsigned three = a->packed ? 1 : 3, more = (a->bounded ? 1 : 0) + (a->buckets ? 1 : 0);
    part p[3], d[3];
    find_parts(p, w, 1, a, t);
    find_parts(d, w, 3 + three + more, a, t);
    attention_task task = {.w = w, .a = a, .q = p[0], .k = p[1], .v = p[2], .dq = d[0], .dk = d[1], .dv = d[2]};
    task.bounds = a->bounded ? w->buf[1 + three].ptr : NULL;
    task.table = a->buckets ? w->buf[three + more].ptr : NULL;
    task.dy = w->buf[0].ptr, task.y = w->buf[1 + three + more].ptr, task.lse = w->buf[2 + three + more].ptr;
    const tess_view *rest = w->buf + 3 + 2 * three + more;
    task.dbias = a->buckets ? rest++->ptr : NULL;
    task.scratch = tess_part_room(rest->ptr, rest->bytes);
    TESS_ASSERT(tess_attention_scratch(a, t) <= rest->bytes);
    const bool wide = tess_attention_wide(a, t);
    const int64_t end = task.dbias ? a->rows / a->sequence * a->groups : first + 1;
    for (int64_t unit = first; unit < end; unit += a->groups) {
        if (wide)
            tess_attention_wide_backward(&task, unit / a->groups, unit % a->groups, t);
        else
            general_backward(&task, unit / a->groups, unit % a->groups, t);
    }
}
TESS_PART_BODIES(backward_part)

/* dy, q, k, v or qkv[, bounds][, bias], y, lse, dq +=, dk +=, dv += or dqkv +=[, dbias +=], scratch */
static int64_t attention_backward_parts(const tess_codelet *cl, const void *arg)
{
    const tess_attention_arg *a = arg;
    (void)cl;
    return a->groups * (a->buckets ? 1 : a->rows / a->sequence);
}
TESS_INLINE void attention_backward(const tess_work *w, tess_dtype t)
{
    const tess_attention_arg *a = w->arg;
    if (a->buckets && !a->acc_bias) memset(w->buf[w->nbuf - 2].ptr, 0, (size_t)(a->buckets * a->heads) * sizeof(float));
    tess_parts_run(attention_backward_parts(NULL, a), TESS_PART_BODY(backward_part, t), (void *)w);
}

/* ---- cost -------------------------------------------------------------------------------------------------------- */

/* `products` of (queries x keys x dim), over the pairs that see each other; `passes` over q, k, v and y. */
static tess_cost attention_cost(const tess_attention_arg *a, tess_dtype t, double products, double passes)
{
    const double length = (double)a->sequence, window = (double)a->window, rows = (double)a->rows;
    double seen = a->causal ? (length + 1) / 2 : (double)keys_of(a);
    if (a->window && a->window < a->sequence) seen = window * (length - (window - 1) / 2) / length;
    return (tess_cost){
        .flops = 2 * products * rows * seen * (double)(a->heads * a->dim),
        .bytes = rows * (passes * (double)(tess_dtype_size(t) * (size_t)(2 * (a->heads + a->groups) * a->dim)) +
                         4 * (double)a->heads),
    };
}
static tess_cost attention_forward_cost(const void *arg, tess_dtype t)
{
    return attention_cost(arg, t, 2, 1);
}
static tess_cost attention_backward_cost(const void *arg, tess_dtype t)
{
    return attention_cost(arg, t, 5, ((const tess_attention_arg *)arg)->acc ? 3 : 2);
}

TESS_PART_COST(attention_forward)
TESS_PART_COST(attention_backward)
