/* delta_rule: linear attention over whole sequences: y (B,T,heads*dim_v) of x (B,T,C), gates b and a (B,T,heads),
 * taps (C,taps), logs and biases (heads). Of a row tile forward keeps a state of each head for every 64 rows. Where a
 * step goes on with texts, the states and the last rows of x are tiles of the cache, and bounds are places there. */
#include "graph/ops/lowering.h"

enum { X, TAPS, B, A, LOGS, BIASES, BOUNDS, INPUTS };

struct attributes {
    tess_delta_conf conf;
    int64_t dim_v;
    int layer; /* of the cache */
};

static tess_delta_arg arg_of(const tess_node *n, int64_t rows)
{
    const struct attributes *at = n->attributes;
    const tess_delta_conf *c = &at->conf;
    return (tess_delta_arg){.rows = rows,
                            .sequence = n->out->dim[1],
                            .heads = c->heads,
                            .groups = c->groups,
                            .dim = c->dim,
                            .dim_v = at->dim_v,
                            .taps = n->in[TAPS]->dim[1],
                            .bounded = n->in[BOUNDS] != NULL,
                            .cached = c->cache != NULL};
}

static tess_status infer(tess_node *n)
{
    struct attributes *at = n->attributes;
    tess_delta_conf *c = &at->conf;
    const tess_tensor *x = n->in[X], *taps = n->in[TAPS], *bounds = n->in[BOUNDS];
    if (c->groups == 0) c->groups = c->heads;
    if (x->rank != 3 || c->heads < 1 || c->groups < 1 || c->heads % c->groups || c->dim < 1)
        return tess_shape_error(n, "%lld heads in %lld groups (x must be (B,T,C), heads a multiple of groups)",
                                (long long)c->heads, (long long)c->groups);
    const int64_t values = x->dim[2] - 2 * c->groups * c->dim;
    at->dim_v = values / c->heads;
    if (values < 1 || values % c->heads || c->dim > TESS_DELTA_WIDEST || at->dim_v > TESS_DELTA_WIDEST)
        return tess_shape_error(n, "a row must hold 2 * %lld heads of %lld and %lld of equal size (at most %d)",
                                (long long)c->groups, (long long)c->dim, (long long)c->heads, TESS_DELTA_WIDEST);
    for (int k = B; k <= A; k++)
        if (n->in[k]->rank != 3 || n->in[k]->dim[1] != x->dim[1] || n->in[k]->dim[2] != c->heads)
            return tess_shape_error(n, "b and a must be (B,T,%lld)", (long long)c->heads);
    if (!tess_is_param(taps, x->dim[2], taps->dim[1]) || taps->dim[1] < 2 || taps->dim[1] > TESS_DELTA_TAPS ||
        !tess_is_param(n->in[LOGS], c->heads, 1) || !tess_is_param(n->in[BIASES], c->heads, 1))
        return tess_shape_error(n, "the taps must be (%lld, 2 to %d), logs and biases (%lld)", (long long)x->dim[2],
                                TESS_DELTA_TAPS, (long long)c->heads);
    for (int k = TAPS; k <= BIASES; k++)
        if (n->in[k]->kind == TESS_KIND_PARAM && n->in[k]->cut->tiles != 1)
            return tess_shape_error(n, "%s must be one tile (raise tile_elements)", n->in[k]->name);
    if (bounds && (bounds->kind != TESS_KIND_INPUT || bounds->dim[1] != 2 * x->dim[1]))
        return tess_shape_error(n, "the bounds must be an input (B,%lld)", (long long)(2 * x->dim[1]));
    const tess_cache_conf *cache = c->cache ? tess_cache_conf_of(c->cache) : NULL;
    if (cache && (!bounds || cache->sequences != x->dim[0]))
        return tess_shape_error(n, "the cache is of %lld sequences, and needs bounds", (long long)cache->sequences);
    tess_set_shape(n, 3, x->dim[0], x->dim[1], values);
    if (cache) {
        const tess_delta_arg a = arg_of(n, x->dim[0] * x->dim[1]);
        const size_t row = (size_t)x->dim[2] * tess_dtype_size(cache->dtype);
        at->layer =
            tess_cache_take_states(c->cache, x->g, (size_t)(x->dim[0] * (a.taps - 1)) * row, tess_delta_states(&a));
    }
    tess_delta_arg one = arg_of(n, x->dim[1]);
    one.keeps = !cache;
    if (tess_delta_states(&one) > TESS_TILE_MOST)
        return tess_shape_error(n, "states of a sequence would be %s (a tile is at most %s)",
                                tess_human_bytes((double)tess_delta_states(&one)),
                                tess_human_bytes((double)TESS_TILE_MOST));
    const int64_t places = cache ? tess_cache_blocks(c->cache, false) * cache->block : x->dim[1];
    if (bounds) tess_limit_ids(n->in[BOUNDS], 0, places, "a sequence's rows");
    return TESS_OK;
}

static tess_delta_arg *arg(tess_lower *L, const tess_node *n, int i)
{
    tess_delta_arg *a = TESS_ARG(L, tess_delta_arg, 0);
    *a = arg_of(n, tess_rows(L, n->out, i));
    a->keeps = tess_trains(L);
    return a;
}

static unsigned inputs(tess_lower *L, const tess_node *n, int i, tess_use *use)
{
    unsigned k = 0;
    for (int m = X; m < INPUTS; m++)
        if (n->in[m])
            use[k++] = n->in[m]->kind == TESS_KIND_PARAM ? tess_weight(L, n->in[m], 0) : tess_in(L, n->in[m], i);
    return k;
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    tess_delta_arg *a = arg(L, n, i);
    const struct attributes *at = n->attributes;
    tess_use use[INPUTS + 4];
    unsigned k = inputs(L, n, i, use);
    use[k++] = tess_out(L, n->out, i);
    if (a->cached)
        for (int kind = 1; kind >= 0; kind--)
            use[k++] = (tess_use){tess_cache_state(at->conf.cache, at->layer, kind), TESS_RW};
    else
        use[k++] = tess_aux_out(L, n, i, tess_delta_states(a));
    use[k++] = tess_scratch_use(L, tess_delta_scratch(a, false));
    tess_emit(L, &tess_delta_rule_forward[tess_real(L)], a, use, k);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    tess_delta_arg *a = arg(L, n, i);
    tess_use use[1 + INPUTS + 1 + BOUNDS + 1] = {tess_grad_read(L, n->out, i)};
    unsigned k = 1 + inputs(L, n, i, use + 1);
    use[k++] = tess_aux_in(L, n, i);
    use[k++] = tess_grad_write(L, n->in[X], i, &a->acc);
    use[k++] = tess_param_grad(L, n->in[TAPS], 0, &a->acc_taps);
    use[k++] = tess_grad_write(L, n->in[B], i, &a->acc_b);
    use[k++] = tess_grad_write(L, n->in[A], i, &a->acc_a);
    use[k++] = tess_param_grad(L, n->in[LOGS], 0, &a->acc_logs);
    use[k++] = tess_param_grad(L, n->in[BIASES], 0, &a->acc_biases);
    use[k++] = tess_scratch_use(L, tess_delta_scratch(a, true));
    tess_emit(L, &tess_delta_rule_backward[tess_real(L)], a, use, k);
}

static bool slow(const tess_node *n, tess_dtype t, char *said, size_t room)
{
    (void)n, (void)t;
    snprintf(said, room, "linear attention by a kernel without tensor cores, some %d times slower",
             TESS_ATTENTION_SLOWER);
    return true;
}

const tess_op tess_op_delta_rule = {
    .name = "delta_rule",
    .takes = "x, taps, b, a, logs, biases, bounds?",
    .reads = TESS_READS_IN0 | TESS_READS_IN2 | TESS_READS_IN3 | TESS_READS_AUX,
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .bounds = BOUNDS,
    .slow = slow,
};

tess_tensor *tess_delta_rule(tess_tensor *x, tess_tensor *taps, tess_tensor *b, tess_tensor *a, tess_tensor *logs,
                             tess_tensor *biases, tess_delta_conf conf)
{
    return tess_node_add(&tess_op_delta_rule, (tess_tensor *[]){x, taps, b, a, logs, biases, conf.bounds}, INPUTS,
                         &(struct attributes){.conf = conf}, sizeof(struct attributes));
}
