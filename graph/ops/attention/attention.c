/* attention: y (B,T,heads*dim) = softmax(q k^T scale) v by head, q (B,T,heads*dim), k and v (B,K,groups*dim), or all
 * three side by side in one tensor. Without bounds K is T where it is causal. bounds (B,2T) says which keys each query
 * sees, bias (buckets,heads) what their distance adds, sinks (heads) what has part in softmax and no value. A tile of
 * rows that holds whole sequences needs no other tile; spans of one are attention_spans.c's. */
#include "graph/ops/attention/attention_node_impl.h"
#include <string.h>

static tess_status check_inputs(const tess_node *n, int64_t dim)
{
    const struct attributes *at = n->attributes;
    const tess_attention_conf *c = &at->conf;
    const tess_tensor *q = n->in[Q], *k = n->in[K], *v = n->in[V], *bounds = n->in[BOUNDS], *bias = n->in[BIAS];
    if (!at->packed && (!k || !v)) return tess_error(TESS_INVALID, n->op->name, "%s is NULL", k ? "v" : "k");
    if (!at->packed && (k->rank != 3 || v->rank != 3 || k->dim[0] != q->dim[0] || k->dim[2] != c->groups * dim ||
                        memcmp(k->dim, v->dim, sizeof k->dim)))
        return tess_shape_error(n, "k and v must be (B,%s,%lld)", c->causal ? "T" : "any",
                                (long long)(c->groups * dim));
    if (!at->packed && (c->causal || c->window) && k->dim[1] != q->dim[1])
        return tess_shape_error(n, "q and k must be equally long (where a query's own key is among them)");
    if (bounds && (bounds->kind != TESS_KIND_INPUT || bounds->dim[0] != q->dim[0] || bounds->dim[1] != 2 * q->dim[1]))
        return tess_shape_error(n, "the bounds must be an input (B,%lld)", (long long)(2 * q->dim[1]));
    if (bias && (bias->kind != TESS_KIND_PARAM || bias->rank != 2 || bias->dim[1] != c->heads || bias->dim[0] < 4 ||
                 bias->dim[0] > TESS_MOST_BUCKETS))
        return tess_shape_error(n, "the bias must be (4 to %d buckets,%lld)", TESS_MOST_BUCKETS, (long long)c->heads);
    if (bias && bias->cut->tiles != 1) return tess_shape_error(n, "the bias must be one tile (raise tile_elements)");
    if (bias && c->reach <= bias->dim[0])
        return tess_shape_error(n, "the bias reaches over a distance of %lld (expected more than it has buckets)",
                                (long long)c->reach);
    return tess_sinks_check(n, c->heads);
}

static tess_status infer(tess_node *n)
{
    struct attributes *at = n->attributes;
    tess_attention_conf *c = &at->conf;
    const tess_tensor *q = n->in[Q];
    TESS_TRY(tess_attention_heads(n, c, at->packed, &at->dim));
    TESS_TRY(check_inputs(n, at->dim));
    if (!(c->dropout >= 0 && c->dropout < 1)) return tess_shape_error(n, "the dropout rate is %g", (double)c->dropout);
    if (c->window < 0 || (c->window && !c->causal))
        return tess_shape_error(n, "the window is %lld keys (expected 0, or more where it is causal)",
                                (long long)c->window);
    if (!(c->cap >= 0) || (c->cap > 0 && n->in[BIAS]))
        return tess_shape_error(n, "logits are capped at %g (expected 0, or above it and no bias)", (double)c->cap);
    if (c->by_head && (!at->packed || c->groups != c->heads))
        return tess_shape_error(n, "by_head is for q, k and v in one tensor, and as many groups as heads");
    if (c->scale == 0) c->scale = 1.0f / __builtin_sqrtf((float)at->dim);
    if (n->in[BOUNDS]) {
        const int64_t keys = at->packed ? q->dim[1] : n->in[K]->dim[1];
        tess_limit_ids(n->in[BOUNDS], 0, keys, "a sequence's keys");
    }
    tess_set_shape(n, 3, q->dim[0], q->dim[1], c->heads * at->dim);
    return TESS_OK;
}

/* q, k, v or qkv[, bounds][, bias] */
static unsigned inputs(tess_lower *L, const tess_node *n, int i, tess_use *use)
{
    unsigned k = 0;
    for (int m = 0; m < BIAS; m++)
        if (n->in[m]) use[k++] = tess_in(L, n->in[m], i);
    if (n->in[BIAS]) use[k++] = tess_weight(L, n->in[BIAS], 0);
    return k;
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_spans(L)) {
        tess_spans_forward(L, n, i);
        return;
    }
    tess_attention_arg *a = tess_attention_arg_of(L, n, i);
    tess_use use[INPUTS + 3];
    unsigned k = inputs(L, n, i, use);
    use[k++] = tess_out(L, n->out, i);
    use[k++] = tess_aux_out(L, n, i, (size_t)(a->rows * a->heads) * sizeof(float)); /* log of the softmax' sum */
    use[k++] = tess_scratch_use(L, tess_attention_scratch(a, tess_real(L)));
    tess_emit(L, &tess_attention_forward[tess_real(L)], a, use, k);
    tess_sinks_put(L, n, a, use[k - 3], use[k - 2]);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_spans(L)) {
        tess_spans_backward(L, n, i);
        return;
    }
    tess_attention_arg *a = tess_attention_arg_of(L, n, i);
    tess_use use[1 + INPUTS + 2 + INPUTS + 2];
    unsigned k = 1;
    use[0] = tess_grad_read(L, n->out, i);
    k += inputs(L, n, i, use + k);
    use[k++] = tess_in(L, n->out, i);
    use[k++] = tess_aux_in(L, n, i);
    tess_sinks_back(L, n, a, use[0], use[k - 2], use[k - 1]);
    bool acc[BOUNDS];
    const int parts = n->in[K] ? BOUNDS : 1;
    tess_use *grad = &use[k];
    for (int m = 0; m < parts; m++, k++) {
        use[k] = tess_grad_write(L, n->in[m], i, &acc[m]);
        a->acc |= acc[m];
    }
    for (int m = 0; m < parts; m++)
        if (a->acc && !acc[m])
            tess_grad_zero(L, tess_real(L), tess_rows(L, n->in[m], i) * tess_width(n->in[m]), &grad[m]);
    if (n->in[BIAS]) use[k++] = tess_param_grad(L, n->in[BIAS], 0, &a->acc_bias);
    use[k++] = tess_scratch_use(L, tess_attention_scratch(a, tess_real(L)));
    const size_t room = tess_attention_room(a, tess_real(L));
    if (room) use[k++] = (tess_use){tess_slot_between(L, room, "ds"), TESS_W};
    tess_emit(L, &tess_attention_backward[tess_real(L)], a, use, k);
}

/* A unit is a group: a head of k and v with its heads of q. */
static int64_t units(const tess_node *n, bool *exact)
{
    *exact = true;
    return ((const struct attributes *)n->attributes)->conf.groups;
}

static tess_sends sends(const tess_node *n, int ranks, int tensor)
{
    const struct attributes *at = n->attributes;
    const int64_t heads = at->all_heads ? at->all_heads : at->conf.heads;
    const int64_t groups = at->all_heads ? at->all_groups : at->conf.groups;
    const int64_t parts = ranks * (at->all_heads ? tensor : 1); /* all of them decide alike */
    const double wide = (double)(heads * at->dim), narrow = (double)(groups * at->dim);
    const double others = (ranks - 1) / (double)ranks;
    return (tess_sends){
        .heads = groups % parts || n->in[BIAS] || n->in[SINKS] ? -1 : 4 * (wide + narrow) * others / ranks,
        .keys = 2 * narrow * others,
        .sums = 2 * narrow * others * (at->conf.causal ? 1.25 : 1), /* late rows see all, early ones a quarter */
        .causal = at->conf.causal,
    };
}

static int beside(const tess_node *n, int64_t units, int64_t width[TESS_MOST_BESIDE])
{
    const struct attributes *at = n->attributes;
    if (!at->packed || at->conf.by_head) return 1;
    width[0] = at->conf.heads / units * at->dim;
    width[1] = width[2] = at->dim;
    return 3;
}

static void keep(tess_node *n, int64_t units, int64_t first, int64_t end)
{
    struct attributes *at = n->attributes;
    const int64_t heads = at->conf.heads / units;
    at->all_heads = at->conf.heads, at->all_groups = at->conf.groups;
    at->head0 = first * heads;
    at->conf.heads = (end - first) * heads;
    at->conf.groups = end - first;
}

static bool slow(const tess_node *n, tess_dtype t, char *said, size_t room)
{
    const struct attributes *at = n->attributes;
    const tess_attention_arg a = {
        .dim = at->dim, .dropout = at->conf.dropout, .buckets = n->in[BIAS] ? n->in[BIAS]->dim[0] : 0};
    const double times = tess_attention_slower(&a, t, true);
    if (times <= 1) return false;
    if (tess_attention_kernels_of(&a, t, true).tile && !a.buckets)
        snprintf(said, room,
                 "dropout of its weights (attn_pdrop) makes it some %.0f times slower forward, %.0f times backward",
                 tess_attention_slower(&a, t, false), times);
    else if (tess_attention_kernels_of(&a, t, true).tile)
        snprintf(said, room,
                 "the gradient of a bias by distance has no kernel on tensor cores: backward some %.0f times slower",
                 times);
    else if (t == TESS_F32)
        snprintf(said, room, "by kernels without tensor cores, some %.0f times slower than in bf16 or fp16", times);
    else
        snprintf(said, room,
                 "heads of %lld by kernels without tensor cores, some %.0f times slower than multiples of 8 up to %d",
                 (long long)a.dim, times, TESS_ATTENTION_WIDEST);
    return true;
}

const tess_op tess_op_attention = {
    .name = "attention",
    .takes = "q, k?, v?, bounds?, bias?, sinks?",
    .reads = TESS_READS_IN0 | TESS_READS_IN1 | TESS_READS_IN2 | TESS_READS_OUT | TESS_READS_AUX,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .units = {units, beside, keep},
    .by_rows = true,
    .bounds = BOUNDS,
    .replicated = SINKS,
    .sends = sends,
    .slow = slow,
};

tess_tensor *tess_attention(tess_tensor *q, tess_tensor *k, tess_tensor *v, tess_attention_conf conf)
{
    if (conf.cache) return tess_attention_in_cache(q, k, v, conf, false);
    return tess_node_add(&tess_op_attention, (tess_tensor *[]){q, k, v, conf.bounds, conf.bias, conf.sinks}, INPUTS,
                         &(struct attributes){.conf = conf}, sizeof(struct attributes));
}

tess_tensor *tess_attention_packed(tess_tensor *qkv, tess_attention_conf conf)
{
    if (conf.cache) return tess_attention_in_cache(qkv, NULL, NULL, conf, true);
    return tess_node_add(&tess_op_attention, (tess_tensor *[]){qkv, NULL, NULL, conf.bounds, conf.bias, conf.sinks},
                         INPUTS, &(struct attributes){.conf = conf, .packed = true}, sizeof(struct attributes));
}
