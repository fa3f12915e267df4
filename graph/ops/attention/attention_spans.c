/* attention_spans: attention where row tiles are spans of sequences. There is a task for each span of queries and each
 * span of keys that these see, in the order of the keys: forward what is known of the queries goes from one to the
 * next, and backward gradients add up in fp32. Those of keys add up over the spans of queries piece by piece, and the
 * pieces in a tree, so that ranks which have some of the pieces find the same sums.
 *
 * Ranks that share sequences have some of the spans each, with all heads. For attention they exchange these for some of
 * the heads, with all spans: heads need nothing of each other. So the tasks, their order and their bits are those of
 * one rank. What comes back is a span's result of all heads, and backward its gradients. Or each gives all others the
 * keys and values of its spans, and has its own queries; backward sums of what these do to a span's keys come back. */
#include "graph/ops/attention/attention_node_impl.h"

/* What a rank has of a sequence, by its spans, from forward to backward: of its own heads, or of keys. */
struct shared {
    tess_tile **in[BOUNDS], **y, **lse, **dy;
};

/* The spans of a sequence, whose first row tile here is `first`; `own` queries see the keys of [begin, end). */
struct spans {
    const struct tess_spans *cut;
    struct shared *heads, *keys; /* that are shared; NULL: all of it is here */
    int first;
    int64_t own, begin, end;
};

static const struct attributes *of(const tess_node *n)
{
    return n->attributes;
}
static bool packed(const tess_node *n)
{
    return of(n)->packed;
}
/* How many of q, k and v are tensors, */
static int tensors(const tess_node *n)
{
    return packed(n) ? 1 : BOUNDS;
}
/* and which of the fp32 sums [1, ...) are of keys: of k and v, or of both side by side. */
static int sums_of_keys(const tess_node *n)
{
    return packed(n) ? 2 : BOUNDS;
}

/* The j-th span of a rank's. */
static int64_t span_of(const struct spans *s, int64_t place, int64_t j)
{
    return tess_span_at(s->cut, place, j, s->cut->here);
}

/* The row tile that is a span of this rank's. */
static int tile_of(const struct spans *s, int64_t span)
{
    int j = 0;
    while (span_of(s, s->cut->place, j) != span) j++;
    return s->first + j;
}

static void see(struct spans *s, const tess_node *n, int64_t own)
{
    const tess_attention_conf *c = &of(n)->conf;
    const int64_t oldest = own * s->cut->rows + 1 - c->window;
    s->own = own;
    s->end = c->causal ? own + 1 : s->cut->all;
    s->begin = c->window && oldest > 0 ? oldest / s->cut->rows : 0;
}

/* ---- what a task uses ---- */

static tess_attention_arg *arg(tess_lower *L, const tess_node *n, const struct spans *s, int64_t k)
{
    tess_attention_arg *a = tess_attention_arg_of(L, n, s->first);
    a->whole = s->cut->length;
    a->window = of(n)->conf.window;
    a->sequence = a->rows = tess_span_rows(L, s->own);
    a->keys = tess_span_rows(L, k);
    a->query0 = s->own * s->cut->rows, a->key0 = k * s->cut->rows;
    a->begins = k == s->begin, a->ends = k + 1 == s->end;
    if (!s->heads) return a;
    a->all_heads = a->all_heads ? a->all_heads : a->heads;
    a->heads /= s->cut->ranks, a->groups /= s->cut->ranks;
    a->head0 += s->cut->place * a->heads;
    return a;
}

static tess_use in(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k)
{
    const struct shared *from = s->heads ? s->heads : s->keys;
    return from && from->in[m] ? (tess_use){from->in[m][k], TESS_R} : tess_in(L, n->in[m], tile_of(s, k));
}

/* q, k, v, or qkv of the queries and, if it is another, of the keys[, bounds][, bias] */
static unsigned inputs(tess_lower *L, const tess_node *n, const struct spans *s, int64_t k, tess_use *use)
{
    unsigned m = 0;
    use[m++] = in(L, n, s, Q, s->own);
    if (!packed(n)) use[m++] = in(L, n, s, K, k);
    if (!packed(n)) use[m++] = in(L, n, s, V, k);
    if (packed(n) && k != s->own) use[m++] = in(L, n, s, Q, k);
    if (n->in[BOUNDS]) use[m++] = tess_in(L, n->in[BOUNDS], s->first);
    if (n->in[BIAS]) use[m++] = tess_weight(L, n->in[BIAS], 0);
    return m;
}

/* ---- forward of a span of queries ---- */

static void forward(tess_lower *L, const tess_node *n, const struct spans *s)
{
    tess_tile *carry = NULL;
    tess_use y = {0}, lse = {0};
    if (!s->heads) y = tess_out(L, n->out, tile_of(s, s->own));
    for (int64_t k = s->begin; k < s->end; k++) {
        tess_attention_arg *a = arg(L, n, s, k);
        tess_use use[INPUTS + 4];
        unsigned m = inputs(L, n, s, k, use);
        const size_t bytes = (size_t)(a->rows * a->heads) * sizeof(float);
        if (a->begins && !s->heads) lse = tess_aux_out(L, n, tile_of(s, s->own), bytes);
        if (a->begins && s->heads) {
            y = (tess_use){tess_slot_between(L, (size_t)(a->rows * a->heads * a->dim) * tess_dtype_size(tess_real(L)),
                                             n->out->name),
                           TESS_W};
            lse = (tess_use){tess_slot_between(L, bytes, n->out->name), TESS_W};
            s->heads->y[s->own] = y.tile, s->heads->lse[s->own] = lse.tile;
        }
        if (a->begins && !a->ends) carry = tess_slot_between(L, tess_attention_carry(a), "attention of earlier keys");
        if (carry) use[m++] = (tess_use){carry, a->begins ? TESS_W : a->ends ? TESS_R : TESS_RW};
        if (a->ends) use[m++] = y, use[m++] = lse;
        use[m++] = tess_scratch_use(L, tess_attention_scratch(a, tess_real(L)));
        tess_emit(L, &tess_attention_span_forward[tess_real(L)], a, use, m);
        if (a->ends) tess_sinks_put(L, n, a, y, lse);
    }
}

/* ---- gradients in fp32 ---- */

/* What is kept of a node while it is lowered. */
struct room {
    int64_t pieces;          /* of a sequence: spans of queries in a row, whose sums add up in a tree */
    tess_tile **sum[BOUNDS]; /* [span * pieces + piece]: of q, where there is one alone, of k and v, or of both */
    struct shared **shared;  /* by sequence, of all micro-batches */
};

static struct room *room_of(tess_lower *L, const tess_node *n, const struct tess_spans *cut)
{
    struct room *r = tess_node_room(L, n, sizeof *r);
    int64_t places;
    if (r->shared) return r;
    tess_place(L, 0, &places);
    r->pieces = cut->pieces * cut->ranks;
    if (!tess_is_deterministic(L)) r->pieces = !cut->ring ? 1 : cut->ranks * (cut->zigzag ? 2 : 1);
    for (int m = 0; m < BOUNDS; m++) r->sum[m] = tess_lower_get(L, (size_t)(cut->all * r->pieces) * sizeof **r->sum);
    r->shared = tess_lower_get(L, (size_t)(places / cut->here + 1) * sizeof *r->shared);
    return r;
}

static int64_t piece_of(const struct room *r, const struct spans *s, int64_t span)
{
    return span / (s->cut->all / r->pieces);
}

static tess_tile **sum_at(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k, int64_t piece)
{
    const struct room *r = room_of(L, n, s->cut);
    return &r->sum[m][k * r->pieces + piece];
}

/* The columns of one. */
static int64_t sum_width(const tess_node *n, const struct spans *s, int m)
{
    const tess_attention_conf *c = &of(n)->conf;
    const int64_t heads = m == Q ? c->heads : packed(n) ? 2 * c->groups : c->groups;
    return heads * of(n)->dim / (s->heads ? s->cut->ranks : 1);
}

static int64_t sum_elements(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k)
{
    return tess_span_rows(L, k) * sum_width(n, s, m);
}

static tess_tile *new_sum(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k)
{
    const int64_t elements = sum_elements(L, n, s, m, k);
    return tess_slot_between(L, (size_t)elements * sizeof(float), n->in[packed(n) ? Q : m]->name);
}

/* The use of the sum of these queries' piece, which is new where nothing was added to it. */
static tess_use sum_use(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k)
{
    tess_tile **sum = sum_at(L, n, s, m, k, m == Q ? 0 : piece_of(room_of(L, n, s->cut), s, s->own));
    if (*sum) return (tess_use){*sum, TESS_RW};
    return (tess_use){*sum = new_sum(L, n, s, m, k), TESS_W};
}

/* The sum of a piece goes into that of an earlier one. */
static void join(tess_lower *L, const tess_node *n, const struct spans *s, int64_t k, int64_t left, int64_t right)
{
    for (int m = K; m < sums_of_keys(n); m++) {
        tess_tile **to = sum_at(L, n, s, m, k, left), **from = sum_at(L, n, s, m, k, right);
        if (*from && *to)
            TESS_EMIT(L, &tess_add_into[TESS_F32],
                      TESS_ARG(L, tess_map_arg, .n = sum_elements(L, n, s, m, k), .acc = true), {*from, TESS_R},
                      {*to, TESS_RW});
        else if (*from)
            *to = *from;
        *from = NULL;
    }
}

/* Adds up the pairs of the tree that are complete among `among` pieces, once these queries are the last of a piece. */
static void join_complete(tess_lower *L, const tess_node *n, const struct spans *s, int64_t among)
{
    const struct room *r = room_of(L, n, s->cut);
    const int64_t end = piece_of(r, s, s->own) + 1;
    if ((s->own + 1) % (s->cut->all / r->pieces)) return;
    for (int64_t step = 1; step < among && end % (2 * step) == 0; step *= 2)
        for (int64_t k = 0; k < s->cut->all; k++) join(L, n, s, k, end - 2 * step, end - step);
}

/* Columns of packed q, k and v, and where they are in a tile of q, or of k and v side by side. */
static tess_strip_arg *unpacking(tess_lower *L, const tess_node *n, const struct spans *s, bool keys, int64_t k,
                                 bool back, bool acc)
{
    const tess_attention_conf *c = &of(n)->conf;
    const int64_t ranks = s->heads ? s->cut->ranks : 1, dim = of(n)->dim, rows = tess_span_rows(L, k);
    const int64_t heads = c->heads / ranks, groups = c->groups / ranks, times = c->by_head ? heads : 1;
    const int64_t q = heads * dim / times, kv = 2 * groups * dim / times, own = keys ? kv : q, at = keys ? q : 0;
    tess_strip_arg *a = TESS_ARG(L, tess_strip_arg, .rows = rows * times, .from_ld = q + kv, .to_ld = own, .runs = 1,
                                 .run = {{at, 0, own}}, .acc = acc);
    if (back) a->from_ld = own, a->to_ld = q + kv, a->run[0].from = 0, a->run[0].to = at;
    return a;
}

static tess_use rounded(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k, tess_use to)
{
    tess_tile **sum = sum_at(L, n, s, m, k, 0);
    const int64_t elements = sum_elements(L, n, s, m, k);
    if (!to.tile)
        to = (tess_use){
            tess_slot_between(L, (size_t)elements * tess_dtype_size(tess_real(L)), n->in[packed(n) ? Q : m]->name),
            TESS_W};
    TESS_EMIT(L, &tess_add_sum[tess_real(L)], TESS_ARG(L, tess_map_arg, .n = elements), {*sum, TESS_R}, to);
    *sum = NULL;
    return to;
}

/* The sums of q, or of k and v, of a span are complete: they go to the gradient of what they were packed in, or to
 * `part` of it. Where there is a gradient already they are rounded before they are added, as by ranks that give them
 * each other. */
static void settle_packed(tess_lower *L, const tess_node *n, const struct spans *s, int64_t k, tess_tile **part)
{
    const size_t size = tess_dtype_size(tess_real(L));
    bool acc = false;
    tess_use to = {0};
    if (part) {
        const int64_t width = sum_width(n, s, Q) + sum_width(n, s, K);
        to = (tess_use){part[k] = tess_slot_between(L, (size_t)(tess_span_rows(L, k) * width) * size, n->in[Q]->name),
                        TESS_W};
    } else
        to = tess_grad_write(L, n->in[Q], tile_of(s, k), &acc);
    for (int m = Q; m < sums_of_keys(n); m++) {
        const tess_use from = rounded(L, n, s, m, k, (tess_use){0});
        TESS_EMIT(L, &tess_strip[tess_real(L)], unpacking(L, n, s, m == K, k, true, acc), {from.tile, TESS_R}, to);
        to.mode = TESS_RW;
    }
}

static void settle(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k, tess_tile **part)
{
    bool acc = false;
    tess_use to = {0};
    if (!part) to = tess_grad_write(L, n->in[m], tile_of(s, k), &acc);
    const tess_use from = rounded(L, n, s, m, k, acc ? (tess_use){0} : to);
    if (part) part[k] = from.tile;
    if (acc) {
        const int64_t rows = tess_span_rows(L, k), width = sum_width(n, s, m);
        TESS_EMIT(L, &tess_strip[tess_real(L)],
                  TESS_ARG(L, tess_strip_arg, .rows = rows, .from_ld = width, .to_ld = width, .runs = 1,
                           .run = {{0, 0, width}}, .acc = true),
                  {from.tile, TESS_R}, to);
    }
}

/* ---- backward of a span of queries ---- */

static void backward(tess_lower *L, const tess_node *n, const struct spans *s)
{
    const struct shared *h = s->heads;
    const int at = h ? 0 : tile_of(s, s->own);
    if (!h) tess_lower_piece(L, at); /* the bias' gradient is of these queries */
    for (int64_t k = s->begin; k < s->end; k++) {
        tess_attention_arg *a = arg(L, n, s, k);
        tess_use use[1 + INPUTS + 2 + INPUTS + 1] = {h ? (tess_use){h->dy[s->own], TESS_R}
                                                       : tess_grad_read(L, n->out, at)};
        unsigned m = 1 + inputs(L, n, s, k, use + 1);
        use[m++] = h ? (tess_use){h->y[s->own], TESS_R} : tess_in(L, n->out, at);
        use[m++] = h ? (tess_use){h->lse[s->own], TESS_R} : tess_aux_in(L, n, at);
        if (a->begins) tess_sinks_back(L, n, a, use[0], use[m - 2], use[m - 1]);
        for (int i = Q; i < sums_of_keys(n); i++) {
            use[m] = sum_use(L, n, s, i, i == Q ? s->own : k);
            if (i != Q) a->acc = use[m].mode == TESS_RW;
            m++;
        }
        if (n->in[BIAS]) use[m++] = tess_param_grad(L, n->in[BIAS], 0, &a->acc_bias);
        use[m++] = tess_scratch_use(L, tess_attention_scratch(a, tess_real(L)));
        tess_emit(L, &tess_attention_span_backward[tess_real(L)], a, use, m);
    }
}

/* After the backward of all queries that are here: the gradients of a sequence's tiles, or parts of these. */
static void settle_queries(tess_lower *L, const tess_node *n, const struct spans *s, tess_tile **part[BOUNDS])
{
    if (!packed(n)) settle(L, n, s, Q, s->own, part ? part[Q] : NULL);
}
static void settle_keys(tess_lower *L, const tess_node *n, const struct spans *s, int64_t k, tess_tile **part[BOUNDS])
{
    if (packed(n)) settle_packed(L, n, s, k, part ? part[Q] : NULL);
    for (int m = K; m < sums_of_keys(n) && !packed(n); m++) settle(L, n, s, m, k, part ? part[m] : NULL);
}

/* Where all spans are here. */
static void backward_of_all(tess_lower *L, const tess_node *n, const struct spans *s, tess_tile **part[BOUNDS])
{
    backward(L, n, s);
    settle_queries(L, n, s, part);
    join_complete(L, n, s, room_of(L, n, s->cut)->pieces);
    for (int64_t k = 0; k < s->cut->all && s->own + 1 == s->cut->all; k++) settle_keys(L, n, s, k, part);
}

/* ---- heads for spans ---- */

/* Which columns of a tensor are those of place r's heads, and where they are among these. */
static void put_runs(const tess_node *n, const struct spans *s, int64_t width, bool qkv, int64_t r, bool back,
                     tess_strip_arg *a)
{
    const tess_attention_conf *c = &of(n)->conf;
    const int64_t ranks = s->cut->ranks, q = c->heads * of(n)->dim, kv = c->groups * of(n)->dim;
    const int64_t whole[] = {qkv ? q : width, kv, kv};
    int64_t wide = 0, narrow = 0;
    a->runs = qkv ? 3 : 1;
    for (int k = 0; k < a->runs; k++) {
        const int64_t each = whole[k] / ranks, at = wide + r * each;
        a->run[k].n = each;
        a->run[k].from = back ? narrow : at, a->run[k].to = back ? at : narrow;
        wide += whole[k], narrow += each;
    }
    a->from_ld = back ? narrow : wide, a->to_ld = back ? wide : narrow;
}

static tess_tile **row(tess_lower *L, int64_t n)
{
    return tess_lower_get(L, (size_t)n * sizeof(tess_tile *));
}

static tess_tile *narrow_tile(tess_lower *L, const struct spans *s, int64_t k, int64_t width, const char *name)
{
    const size_t size = tess_dtype_size(tess_real(L));
    return tess_slot_between(L, (size_t)(tess_span_rows(L, k) * width / s->cut->ranks) * size, name);
}

/* A span's tile, that is here, goes to each rank by its heads; what the others have of these heads comes to `to`. */
static void give(tess_lower *L, const tess_node *n, const struct spans *s, const tess_tensor *t, tess_use from, int j,
                 tess_tile **to)
{
    const int64_t ranks = s->cut->ranks, me = s->cut->place, width = tess_width(t), here = span_of(s, s->cut->place, j);
    const bool qkv = packed(n) && t == n->in[Q] && !of(n)->conf.by_head;
    tess_tile **out = row(L, ranks), **come = row(L, ranks);
    for (int64_t r = 0; r < ranks; r++) {
        tess_strip_arg *a = TESS_ARG(L, tess_strip_arg, .rows = tess_span_rows(L, here));
        put_runs(n, s, width, qkv, r, false, a);
        out[r] = narrow_tile(L, s, here, width, t->name);
        TESS_EMIT(L, &tess_strip[tess_real(L)], a, from, {out[r], TESS_W});
        come[r] = r == me ? NULL : narrow_tile(L, s, span_of(s, r, j), width, t->name);
        to[span_of(s, r, j)] = r == me ? out[r] : come[r];
    }
    out[me] = NULL;
    tess_lower_all_to_all(L, out, come);
}

/* The all-to-all from heads back to spans: this rank's heads go to the owners of the spans, and this rank's tile of a
 * span is put together; with `acc` it is added to. */
static void take(tess_lower *L, const tess_node *n, const struct spans *s, const tess_tensor *t, tess_tile *const *from,
                 int j, tess_use to, bool acc)
{
    const int64_t ranks = s->cut->ranks, me = s->cut->place, width = tess_width(t), here = span_of(s, s->cut->place, j);
    const bool qkv = packed(n) && t == n->in[Q] && !of(n)->conf.by_head;
    tess_tile **out = row(L, ranks), **come = row(L, ranks);
    for (int64_t r = 0; r < ranks; r++) {
        out[r] = r == me ? NULL : from[span_of(s, r, j)];
        come[r] = r == me ? NULL : narrow_tile(L, s, here, width, t->name);
    }
    tess_lower_all_to_all(L, out, come);
    for (int64_t r = 0; r < ranks; r++) {
        tess_strip_arg *a = TESS_ARG(L, tess_strip_arg, .rows = tess_span_rows(L, here), .acc = acc);
        put_runs(n, s, width, qkv, r, true, a);
        TESS_EMIT(L, &tess_strip[tess_real(L)], a, {r == me ? from[here] : come[r], TESS_R}, to);
        to.mode = TESS_RW;
    }
}

static void heads_forward(tess_lower *L, const tess_node *n, struct spans *s)
{
    struct shared *h = s->heads = tess_lower_get(L, sizeof *h);
    for (int m = 0; m < tensors(n); m++) {
        h->in[m] = row(L, s->cut->all);
        for (int j = 0; j < s->cut->here; j++) give(L, n, s, n->in[m], tess_in(L, n->in[m], s->first + j), j, h->in[m]);
    }
    h->y = row(L, s->cut->all), h->lse = row(L, s->cut->all), h->dy = row(L, s->cut->all);
    for (int64_t own = 0; own < s->cut->all; own++) see(s, n, own), forward(L, n, s);
    for (int j = 0; j < s->cut->here; j++) take(L, n, s, n->out, h->y, j, tess_out(L, n->out, s->first + j), false);
}

static void heads_backward(tess_lower *L, const tess_node *n, struct spans *s)
{
    tess_tile **part[BOUNDS];
    for (int m = 0; m < tensors(n); m++) part[m] = row(L, s->cut->all);
    for (int j = 0; j < s->cut->here; j++)
        give(L, n, s, n->out, tess_grad_read(L, n->out, s->first + j), j, s->heads->dy);
    for (int64_t own = 0; own < s->cut->all; own++) see(s, n, own), backward_of_all(L, n, s, part);
    for (int m = 0; m < tensors(n); m++)
        for (int j = 0; j < s->cut->here; j++) {
            bool acc;
            const tess_use to = tess_grad_write(L, n->in[m], s->first + j, &acc);
            take(L, n, s, n->in[m], part[m], j, to, acc);
        }
}

/* ---- keys for all ---- */

/* A rank's queries of a span see these keys, or others' of the rank's do. */
static bool sees(const struct spans *s, const tess_node *n, int64_t place, int64_t k, int64_t first, int64_t end)
{
    struct spans of = *s;
    for (int64_t j = first; j < end; j++) {
        see(&of, n, span_of(s, place, j));
        if (of.begin <= k && k < of.end) return true;
    }
    return false;
}

/* Keys and values of the rank's j-th span go to all that have queries which see them; those that come are put where
 * packed ones have theirs. */
static void give_keys(tess_lower *L, const tess_node *n, const struct spans *s, int m, int j, tess_tile **to)
{
    const int64_t ranks = s->cut->ranks, me = s->cut->place, own = span_of(s, me, j), here = s->cut->here;
    const size_t size = tess_dtype_size(tess_real(L));
    tess_tile **out = row(L, ranks), **come = row(L, ranks);
    const tess_use mine = tess_in(L, n->in[m], s->first + j);
    tess_tile *gives = mine.tile;
    to[own] = mine.tile;
    if (packed(n)) {
        gives = tess_slot_between(L, (size_t)sum_elements(L, n, s, K, own) * size, n->in[m]->name);
        TESS_EMIT(L, &tess_strip[tess_real(L)], unpacking(L, n, s, true, own, false, false), mine, {gives, TESS_W});
    }
    for (int64_t r = 0; r < ranks; r++) {
        const int64_t k = span_of(s, r, j);
        if (r != me && sees(s, n, r, own, 0, here)) out[r] = gives;
        if (r == me || !sees(s, n, me, k, 0, here)) continue;
        come[r] = tess_slot_between(L, (size_t)sum_elements(L, n, s, packed(n) ? K : m, k) * size, n->in[m]->name);
    }
    tess_lower_all_to_all(L, out, come);
    for (int64_t r = 0; r < ranks; r++) {
        const int64_t k = span_of(s, r, j), width = tess_width(n->in[m]);
        if (!come[r]) continue;
        to[k] = come[r];
        if (!packed(n)) continue;
        to[k] = tess_slot_between(L, (size_t)(tess_span_rows(L, k) * width) * size, n->in[m]->name);
        TESS_EMIT(L, &tess_strip[tess_real(L)], unpacking(L, n, s, true, k, true, false), {come[r], TESS_R},
                  {to[k], TESS_W});
    }
}

static void keys_forward(tess_lower *L, const tess_node *n, struct spans *s)
{
    struct shared *all = s->keys = tess_lower_get(L, sizeof *all);
    for (int m = packed(n) ? Q : K; m < tensors(n); m++) {
        all->in[m] = row(L, s->cut->all);
        for (int j = 0; j < s->cut->here; j++) give_keys(L, n, s, m, j, all->in[m]);
    }
    for (int j = 0; j < s->cut->here; j++) see(s, n, span_of(s, s->cut->place, j)), forward(L, n, s);
}

/* Of each rank's j-th span the sums over one run of queries, [first, end) of a rank's, go to whose keys they are. */
static void give_sums(tess_lower *L, const tess_node *n, const struct spans *s, int m, int j, int64_t first,
                      int64_t end)
{
    const struct room *r = room_of(L, n, s->cut);
    const int64_t ranks = s->cut->ranks, me = s->cut->place, own = span_of(s, me, j);
    tess_tile **out = row(L, ranks), **come = row(L, ranks);
    for (int64_t p = 0; p < ranks; p++) {
        const int64_t k = span_of(s, p, j);
        tess_tile **mine = sum_at(L, n, s, m, k, piece_of(r, s, span_of(s, me, first)));
        if (p == me) continue;
        out[p] = *mine;
        *mine = NULL;
        if (!sees(s, n, p, own, first, end)) continue;
        come[p] = new_sum(L, n, s, m, own);
        *sum_at(L, n, s, m, own, piece_of(r, s, span_of(s, p, first))) = come[p];
    }
    tess_lower_all_to_all(L, out, come);
}

static void keys_backward(tess_lower *L, const tess_node *n, struct spans *s)
{
    const struct room *r = room_of(L, n, s->cut);
    const int64_t runs = s->cut->zigzag ? 2 : 1, spans = s->cut->here / runs, run = r->pieces / (runs * s->cut->ranks);
    for (int j = 0; j < s->cut->here; j++) {
        see(s, n, span_of(s, s->cut->place, j));
        backward(L, n, s);
        settle_queries(L, n, s, NULL);
        join_complete(L, n, s, run);
    }
    for (int m = K; m < sums_of_keys(n); m++)
        for (int j = 0; j < s->cut->here; j++)
            for (int64_t k = 0; k < runs; k++) give_sums(L, n, s, m, j, k * spans, (k + 1) * spans);
    for (int j = 0; j < s->cut->here; j++) {
        const int64_t own = span_of(s, s->cut->place, j);
        for (int64_t step = run; step < r->pieces; step *= 2)
            for (int64_t p = 0; p + step < r->pieces; p += 2 * step) join(L, n, s, own, p, p + step);
        settle_keys(L, n, s, own, NULL);
    }
}

/* ---- a row tile ---- */

/* Returns whether ranks share sequences; then all of one is done with its first row tile. */
static bool shares(const tess_lower *L, int i, struct spans *s)
{
    s->cut = tess_spans(L);
    s->first = i - (int)(i % s->cut->here);
    return s->cut->ranks > 1;
}

void tess_spans_forward(tess_lower *L, const tess_node *n, int i)
{
    struct spans s = {0};
    if (!shares(L, i, &s)) {
        see(&s, n, i - s.first);
        forward(L, n, &s);
    } else if (i == s.first) {
        (s.cut->ring ? keys_forward : heads_forward)(L, n, &s);
        room_of(L, n, s.cut)->shared[tess_place(L, i, NULL) / s.cut->here] = s.cut->ring ? s.keys : s.heads;
    }
}

void tess_spans_backward(tess_lower *L, const tess_node *n, int i)
{
    struct spans s = {0};
    if (!shares(L, i, &s)) {
        see(&s, n, i - s.first);
        backward_of_all(L, n, &s, NULL);
    } else if (i == s.first) {
        struct shared *kept = room_of(L, n, s.cut)->shared[tess_place(L, i, NULL) / s.cut->here];
        *(s.cut->ring ? &s.keys : &s.heads) = kept;
        (s.cut->ring ? keys_backward : heads_backward)(L, n, &s);
    }
}
