/* attention: y (B,T,heads*dim) = softmax(q k^T scale) v by head, q (B,T,heads*dim), k and v (B,T,groups*dim), or all
 * three side by side in one tensor. A tile of rows holds whole sequences, so its attention needs no other tile. */
#include "ops_impl.h"

struct attributes {
    tess_attention_conf conf;
    int64_t dim;
    bool packed;
    int64_t head0, all_heads; /* where heads are shared out; all_heads 0: they are not */
};

static tess_status infer(tess_node *n)
{
    struct attributes *at = n->attributes;
    tess_attention_conf *c = &at->conf;
    const tess_tensor *q = n->in[0];
    if (c->groups == 0) c->groups = c->heads;
    if (q->rank != 3 || c->heads < 1 || c->heads > q->dim[2] || c->groups < 1 || c->heads % c->groups)
        return tess_shape_error(
            n, "%lld heads in %lld groups (inputs must be (B,T,C), heads a multiple of groups, and no more than C)",
            (long long)c->heads, (long long)c->groups);
    int64_t width = q->dim[2], parts = at->packed ? c->heads + 2 * c->groups : c->heads;
    if (width % parts) return tess_shape_error(n, "a row must hold %lld heads of equal size", (long long)parts);
    int64_t dim = at->dim = width / parts;
    for (int k = 1; k < n->inputs; k++)
        if (n->in[k]->rank != 3 || n->in[k]->dim[0] != q->dim[0] || n->in[k]->dim[1] != q->dim[1] ||
            n->in[k]->dim[2] != c->groups * dim)
            return tess_shape_error(n, "k and v must be (B,T,%lld)", (long long)(c->groups * dim));
    if (!(c->dropout >= 0 && c->dropout < 1)) return tess_shape_error(n, "the dropout rate is %g", (double)c->dropout);
    if (c->scale == 0) c->scale = 1.0f / __builtin_sqrtf((float)dim);
    tess_set_shape(n, 3, q->dim[0], q->dim[1], c->heads * dim);
    return TESS_OK;
}

static tess_attention_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *at = n->attributes;
    const tess_attention_conf *c = &at->conf;
    return TESS_ARG(L, tess_attention_arg, .rows = tess_rows(L, n->out, i), .sequence = n->out->dim[1],
                    .heads = c->heads, .groups = c->groups, .dim = at->dim, .scale = c->scale, .dropout = c->dropout,
                    .causal = c->causal, .packed = at->packed, .row0 = tess_first_row(L, n->out, i), .op = n->random,
                    .head0 = at->head0, .all_heads = at->all_heads);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_attention_arg *a = arg(L, n, i);
    tess_use use[6];
    unsigned k = 0;
    for (int m = 0; m < n->inputs; m++) use[k++] = tess_in(L, n->in[m], i);
    use[k++] = tess_out(L, n->out, i);
    use[k++] = tess_aux_out(L, n, i, (size_t)(a->rows * a->heads) * sizeof(float)); /* log of the softmax' sum */
    use[k++] = tess_scratch_use(L, tess_attention_scratch(a, tess_real(L)));
    tess_emit(L, &tess_attention_forward[tess_real(L)], a, use, k);
}

/* The codelet has one flag for dq, dk and dv: where one of them adds, the others add to zeroes. */
static void zero(tess_lower *L, const tess_tensor *t, int i, tess_use *grad)
{
    tess_count_arg *a = TESS_ARG(L, tess_count_arg, .n = tess_rows(L, t, i) * tess_width(t));
    TESS_EMIT(L, &tess_fill[tess_real(L)], a, {grad->tile, TESS_W});
    grad->mode = TESS_RW;
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_attention_arg *a = arg(L, n, i);
    tess_use use[10];
    unsigned k = 0;
    use[k++] = tess_grad_read(L, n->out, i);
    for (int m = 0; m < n->inputs; m++) use[k++] = tess_in(L, n->in[m], i);
    use[k++] = tess_in(L, n->out, i);
    use[k++] = tess_aux_in(L, n, i);
    bool acc[3];
    tess_use *grad = &use[k];
    for (int m = 0; m < n->inputs; m++, k++) {
        use[k] = tess_grad_write(L, n->in[m], i, &acc[m]);
        a->acc |= acc[m];
    }
    for (int m = 0; m < n->inputs; m++)
        if (a->acc && !acc[m]) zero(L, n->in[m], i, &grad[m]);
    use[k++] = tess_scratch_use(L, tess_attention_scratch(a, tess_real(L)));
    tess_emit(L, &tess_attention_backward[tess_real(L)], a, use, k);
}

/* A unit is a group: a head of k and v with its heads of q. */
static int64_t units(const tess_node *n, bool *exact)
{
    *exact = true;
    return ((const struct attributes *)n->attributes)->conf.groups;
}

static int beside(const tess_node *n, int64_t units, int64_t width[TESS_MOST_BESIDE])
{
    const struct attributes *at = n->attributes;
    if (!at->packed) return 1;
    width[0] = at->conf.heads / units * at->dim;
    width[1] = width[2] = at->dim;
    return 3;
}

static void keep(tess_node *n, int64_t units, int64_t first, int64_t end)
{
    struct attributes *at = n->attributes;
    const int64_t heads = at->conf.heads / units;
    at->all_heads = at->conf.heads;
    at->head0 = first * heads;
    at->conf.heads = (end - first) * heads;
    at->conf.groups = end - first;
}

const tess_op tess_op_attention = {
    .name = "attention",
    .takes = "q, k, v",
    .reads = TESS_READS_IN0 | TESS_READS_IN1 | TESS_READS_IN2 | TESS_READS_OUT | TESS_READS_AUX,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .units = {units, beside, keep},
};

tess_tensor *tess_attention(tess_tensor *q, tess_tensor *k, tess_tensor *v, tess_attention_conf conf)
{
    return tess_node_add(&tess_op_attention, (tess_tensor *[]){q, k, v}, 3, &(struct attributes){.conf = conf},
                         sizeof(struct attributes));
}

tess_tensor *tess_attention_packed(tess_tensor *qkv, tess_attention_conf conf)
{
    return tess_node_add(&tess_op_attention, &qkv, 1, &(struct attributes){.conf = conf, .packed = true},
                         sizeof(struct attributes));
}
