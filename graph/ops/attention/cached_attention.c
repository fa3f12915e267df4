/* cached_attention: attention whose keys and values are in a cache: those of this step's rows go there first. The
 * step's rows are one tile, in the last block that is seen. A task takes as many of the cache's tiles as may be there
 * at a time and leaves what it knows to the next; where there is much to do, groups of heads are shared out over two
 * rows of tasks.
 */
#include "graph/ops/attention/attention_node_impl.h"

/* Packed, and across, K and V are NULL. */
struct cached {
    tess_attention_conf conf;
    int64_t dim;
    bool packed;
    int layer;
    int64_t blocks; /* that are seen */
};

static bool across(const tess_node *n)
{
    const struct cached *at = n->attributes;
    return !at->packed && !n->in[K];
}

static tess_status check(const tess_node *n)
{
    const struct cached *at = n->attributes;
    const tess_attention_conf *c = &at->conf;
    const tess_tensor *q = n->in[Q], *k = n->in[K], *v = n->in[V], *bounds = n->in[BOUNDS], *bias = n->in[BIAS];
    const int64_t *d = q->dim;
    if ((k != NULL) != (v != NULL)) return tess_error(TESS_INVALID, n->op->name, "%s is NULL", k ? "v" : "k");
    if (k && (k->rank != 3 || v->rank != 3 || k->dim[0] != d[0] || v->dim[0] != d[0] || k->dim[1] != d[1] ||
              v->dim[1] != d[1] || k->dim[2] != c->groups * at->dim || v->dim[2] != c->groups * at->dim))
        return tess_shape_error(n, "k and v must be (B,T,%lld)", (long long)(c->groups * at->dim));
    if (bounds->kind != TESS_KIND_INPUT || bounds->dim[0] != d[0] || bounds->dim[1] != 2 * d[1])
        return tess_shape_error(n, "the bounds must be an input (B,%lld)", (long long)(2 * d[1]));
    if (bias && (bias->kind != TESS_KIND_PARAM || bias->dim[1] != c->heads || bias->dim[0] < 4 ||
                 bias->dim[0] > TESS_MOST_BUCKETS || bias->cut->tiles != 1 || c->reach <= bias->dim[0]))
        return tess_shape_error(n, "the bias must be one tile (4 to %d buckets,%lld), and reach further",
                                TESS_MOST_BUCKETS, (long long)c->heads);
    if (c->window < 0 || !(c->cap >= 0) || (c->cap > 0 && bias) || (c->by_head && !at->packed))
        return tess_shape_error(n, "the window is %lld, the cap %g (expected 0 or more, a cap where there is no bias)",
                                (long long)c->window, (double)c->cap);
    TESS_TRY(tess_sinks_check(n, c->heads));
    const tess_cache_conf *of = tess_cache_conf_of(c->cache);
    if (of->sequences != d[0] || d[1] > of->block)
        return tess_shape_error(n, "the cache is of %lld sequences and blocks of %lld places", (long long)of->sequences,
                                (long long)of->block);
    return TESS_OK;
}

static tess_status infer(tess_node *n)
{
    struct cached *at = n->attributes;
    tess_attention_conf *c = &at->conf;
    const tess_tensor *q = n->in[Q];
    TESS_TRY(tess_attention_heads(n, c, at->packed, &at->dim));
    TESS_TRY(check(n));
    if (c->scale == 0) c->scale = 1.0f / __builtin_sqrtf((float)at->dim);
    at->layer = tess_cache_take(c->cache, q->g, across(n), c->groups * at->dim, c->window);
    at->blocks = tess_cache_blocks(c->cache, across(n));
    const int64_t places = at->blocks * tess_cache_conf_of(c->cache)->block;
    tess_limit_ids(n->in[BOUNDS], 0, places, "the places of the cache");
    tess_set_shape(n, 3, q->dim[0], q->dim[1], c->heads * at->dim);
    return TESS_OK;
}

static tess_cached_arg arg(const tess_node *n)
{
    const struct cached *at = n->attributes;
    const tess_attention_conf *c = &at->conf;
    return (tess_cached_arg){.sequences = n->out->dim[0],
                             .queries = n->out->dim[1],
                             .heads = c->heads,
                             .groups = c->groups,
                             .dim = at->dim,
                             .packed = at->packed,
                             .by_head = c->by_head,
                             .block = tess_cache_conf_of(c->cache)->block,
                             .some = c->groups,
                             .window = c->window,
                             .buckets = n->in[BIAS] ? n->in[BIAS]->dim[0] : 0,
                             .reach = c->reach,
                             .scale = c->scale,
                             .cap = c->cap,
                             .own = !across(n),
                             .sinks = n->in[SINKS] != NULL,
                             .causal = c->causal};
}

static void append(tess_lower *L, const tess_node *n, int i, int64_t block)
{
    const struct cached *at = n->attributes;
    tess_cached_arg *a = tess_arg_copy(L, &(tess_cached_arg){0}, sizeof *a);
    *a = arg(n);
    a->first = block * a->block;
    a->tiles = 1;
    tess_use use[5];
    unsigned k = 0;
    if (at->packed)
        use[k++] = tess_in(L, n->in[Q], i);
    else
        use[k++] = tess_in(L, n->in[K], i), use[k++] = tess_in(L, n->in[V], i);
    use[k++] = tess_in(L, n->in[BOUNDS], i);
    for (int kind = 0; kind < 2; kind++)
        use[k++] = (tess_use){tess_cache_tile(at->conf.cache, at->layer, false, kind, block), TESS_RW};
    tess_emit(L, &tess_cache_append[tess_real(L)], a, use, k);
}

/* Groups [group0, group0 + some) over blocks [first, end), to y (rows, some heads). */
static void attend(tess_lower *L, const tess_node *n, int i, int64_t group0, int64_t some, int64_t first, int64_t end,
                   tess_use y)
{
    const struct cached *at = n->attributes;
    const tess_cache_conf *conf = tess_cache_conf_of(at->conf.cache);
    const size_t tile = tess_tile_bytes(tess_cache_tile(at->conf.cache, at->layer, across(n), 0, first));
    int64_t each = (int64_t)(conf->at_once / (2 * tile));
    if (each < 1) each = 1;
    if (each > TESS_CACHED_TILES) each = TESS_CACHED_TILES;
    tess_tile *state = NULL;
    for (int64_t from = first, to; from < end; from = to) {
        to = from + each < end ? from + each : end;
        tess_cached_arg *a = tess_arg_copy(L, &(tess_cached_arg){0}, sizeof *a);
        *a = arg(n);
        a->first = from * a->block, a->tiles = to - from;
        a->group0 = group0, a->some = some;
        a->begins = from == first, a->ends = to == end;
        tess_use *use = tess_lower_get(L, (size_t)(2 * a->tiles + 7) * sizeof *use);
        unsigned k = 0;
        use[k++] = tess_in(L, n->in[Q], i);
        use[k++] = tess_in(L, n->in[BOUNDS], i);
        if (n->in[BIAS]) use[k++] = tess_weight(L, n->in[BIAS], 0);
        if (n->in[SINKS]) use[k++] = tess_weight(L, n->in[SINKS], 0);
        for (int kind = 0; kind < 2; kind++)
            for (int64_t j = from; j < to; j++)
                use[k++] = (tess_use){tess_cache_tile(at->conf.cache, at->layer, across(n), kind, j), TESS_R};
        if (!a->begins || !a->ends) {
            if (!state) state = tess_slot_between(L, tess_cached_state(a), tess_tensor_name(n->out));
            use[k++] = (tess_use){state, a->begins ? TESS_W : TESS_RW};
        }
        if (a->ends) use[k++] = y;
        use[k++] = tess_scratch_use(L, tess_cached_scratch(a, tess_real(L)));
        tess_emit(L, &tess_cached_attention[tess_real(L)], a, use, k);
    }
}

/* Is it enough work for two? */
static bool is_much(const tess_node *n, int64_t blocks)
{
    const struct cached *at = n->attributes;
    const int64_t block = tess_cache_conf_of(at->conf.cache)->block;
    const int64_t keys = blocks * block * at->dim * n->out->dim[0]; /* elements of a group */
    return at->conf.groups > 1 &&
           (2 * keys * at->conf.groups > 1 << 17 || keys * at->conf.heads * n->out->dim[1] > 1 << 22);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const struct cached *at = n->attributes;
    const tess_attention_conf *c = &at->conf;
    const int64_t block = tess_cache_conf_of(c->cache)->block;
    const int64_t end = at->blocks;
    int64_t first = 0;
    if (!across(n)) append(L, n, i, end - 1);
    if (c->window && (end - 1) * block >= c->window) first = ((end - 1) * block - c->window + 1) / block;
    if (!is_much(n, end - first)) {
        attend(L, n, i, 0, c->groups, first, end, tess_out(L, n->out, i));
        return;
    }
    const int64_t half = (c->groups + 1) / 2, rows = tess_rows(L, n->out, i), wide = c->heads / c->groups * at->dim;
    tess_use use[3];
    for (int k = 0; k < 2; k++) {
        const int64_t some = k ? c->groups - half : half;
        const size_t bytes = (size_t)(rows * some * wide) * tess_dtype_size(tess_real(L));
        use[k + 1] = (tess_use){tess_slot_between(L, bytes, tess_tensor_name(n->out)), TESS_R};
        attend(L, n, i, k ? half : 0, some, first, end, (tess_use){use[k + 1].tile, TESS_W});
    }
    use[0] = tess_out(L, n->out, i);
    tess_join_arg *a = TESS_ARG(L, tess_join_arg, .rows = rows, .width = c->heads * at->dim, .stripe = half * wide);
    tess_emit(L, &tess_join[tess_real(L)], a, use, 3);
}

const tess_op tess_op_cached_attention = {
    .name = "cached_attention",
    .takes = "q, k?, v?, bounds, bias?, sinks?",
    .infer = infer,
    .forward = forward,
};

tess_tensor *tess_attention_in_cache(tess_tensor *q, tess_tensor *k, tess_tensor *v, tess_attention_conf conf,
                                     bool packed)
{
    return tess_node_add(&tess_op_cached_attention, (tess_tensor *[]){q, k, v, conf.bounds, conf.bias, conf.sinks},
                         INPUTS, &(struct cached){.conf = conf, .packed = packed}, sizeof(struct cached));
}

/* ---- an encoder's rows, once ---- */

struct put {
    tess_cache *cache;
    int64_t heads;
    int layer;
};

static tess_status put_infer(tess_node *n)
{
    struct put *p = n->attributes;
    const tess_tensor *k = n->in[0], *v = n->in[1];
    const tess_cache_conf *of = tess_cache_conf_of(p->cache);
    if (k->rank != 3 || v->rank != 3 || k->dim[0] != of->sequences || k->dim[1] != v->dim[1] ||
        k->dim[2] != v->dim[2] || p->heads < 1 || k->dim[2] % p->heads || v->dim[0] != k->dim[0])
        return tess_shape_error(n, "k and v must be (%lld,K,C) of %lld heads", (long long)of->sequences,
                                (long long)p->heads);
    tess_cache_across(p->cache, k->dim[1]);
    p->layer = tess_cache_take(p->cache, k->g, true, k->dim[2], 0);
    tess_set_shape(n, 3, k->dim[0], 1, 1);
    return TESS_OK;
}

static void put_forward(tess_lower *L, const tess_node *n, int i)
{
    const struct put *p = n->attributes;
    const int64_t block = tess_cache_conf_of(p->cache)->block, keys = n->in[0]->dim[1];
    for (int64_t first = 0; first < keys; first += block) {
        tess_cached_arg *a = TESS_ARG(L, tess_cached_arg, .sequences = n->in[0]->dim[0], .queries = keys,
                                      .heads = p->heads, .groups = p->heads, .dim = n->in[0]->dim[2] / p->heads,
                                      .block = block, .first = first, .tiles = 1);
        TESS_EMIT(L, &tess_cache_append[tess_real(L)], a, tess_in(L, n->in[0], i), tess_in(L, n->in[1], i),
                  {tess_cache_tile(p->cache, p->layer, true, 0, first / block), TESS_RW},
                  {tess_cache_tile(p->cache, p->layer, true, 1, first / block), TESS_RW});
    }
    tess_count_arg *a = TESS_ARG(L, tess_count_arg, .n = tess_rows(L, n->out, i));
    TESS_EMIT(L, &tess_fill[tess_real(L)], a, tess_out(L, n->out, i));
}

static const tess_op op_put = {.name = "cached", .takes = "k, v, behind?", .infer = put_infer, .forward = put_forward};

tess_tensor *tess_cached(tess_cache *c, tess_tensor *k, tess_tensor *v, int64_t heads, tess_tensor *behind)
{
    return tess_node_add(&op_put, (tess_tensor *[]){k, v, behind}, 3, &(struct put){.cache = c, .heads = heads},
                         sizeof(struct put));
}
