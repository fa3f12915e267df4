/* attention_spans: attention where row tiles are spans of sequences. There is a task for each span of queries and each
 * span of keys that these see, in the order of the keys: forward what is known of the queries goes from one to the
 * next, and backward gradients add up in fp32.
 *
 * Ranks that share sequences have some of the spans each, with all heads. For attention they exchange these for some of
 * the heads, with all spans: heads need nothing of each other. So the tasks, their order and their bits are those of
 * one rank. What comes back is a span's result of all heads, and backward its gradients. */
#include "attention_impl.h"

/* What a rank has of its own heads, by the spans of a sequence, from forward to backward. */
struct heads {
    tess_tile **in[BOUNDS], **y, **lse, **dy;
};

/* The spans of a sequence, whose first row tile here is `first`; `own` queries see the keys of [begin, end). */
struct spans {
    const struct tess_spans *cut;
    struct heads *heads; /* NULL: all of it is here */
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
/* How many of q, k and v are tensors. */
static int tensors(const tess_node *n)
{
    return packed(n) ? 1 : BOUNDS;
}
static int64_t ranks_of(const struct tess_spans *cut)
{
    return cut->all / cut->here;
}
static int64_t place_of(const struct tess_spans *cut)
{
    return cut->first / cut->here;
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
    a->heads /= ranks_of(s->cut), a->groups /= ranks_of(s->cut);
    a->head0 += place_of(s->cut) * a->heads;
    return a;
}

static tess_use in(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k)
{
    return s->heads ? (tess_use){s->heads->in[m][k], TESS_R} : tess_in(L, n->in[m], s->first + (int)k);
}

/* q, k, v, or qkv of the queries and, if it is another, of the keys[, bounds] */
static unsigned inputs(tess_lower *L, const tess_node *n, const struct spans *s, int64_t k, tess_use *use)
{
    unsigned m = 0;
    use[m++] = in(L, n, s, Q, s->own);
    if (!packed(n)) use[m++] = in(L, n, s, K, k);
    if (!packed(n)) use[m++] = in(L, n, s, V, k);
    if (packed(n) && k != s->own) use[m++] = in(L, n, s, Q, k);
    if (n->in[BOUNDS]) use[m++] = tess_in(L, n->in[BOUNDS], s->first);
    return m;
}

/* ---- forward and backward of a span of queries ---- */

static void forward(tess_lower *L, const tess_node *n, const struct spans *s)
{
    tess_tile *carry = NULL;
    tess_use y = {0}, lse = {0};
    if (!s->heads) y = tess_out(L, n->out, s->first + (int)s->own);
    for (int64_t k = s->begin; k < s->end; k++) {
        tess_attention_arg *a = arg(L, n, s, k);
        tess_use use[INPUTS + 4];
        unsigned m = inputs(L, n, s, k, use);
        const size_t bytes = (size_t)(a->rows * a->heads) * sizeof(float);
        if (a->begins && !s->heads) lse = tess_aux_out(L, n, s->first + (int)s->own, bytes);
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
    }
}

/* What is kept of a node while it is lowered. */
struct room {
    tess_tile **sum[BOUNDS]; /* gradients of the spans of a sequence, in fp32: of q, k and v, or in [Q] of all three */
    struct heads **heads;    /* by sequence, of all micro-batches */
};

static struct room *room_of(tess_lower *L, const tess_node *n, const struct tess_spans *cut)
{
    struct room *r = tess_node_room(L, n, sizeof *r);
    int64_t places;
    if (r->heads) return r;
    tess_place(L, 0, &places);
    for (int m = 0; m < BOUNDS; m++) r->sum[m] = tess_lower_get(L, (size_t)cut->all * sizeof **r->sum);
    r->heads = tess_lower_get(L, (size_t)(places / cut->here + 1) * sizeof *r->heads);
    return r;
}

static int64_t width_of(const tess_node *n, const struct spans *s, int m)
{
    return tess_width(n->in[m]) / (s->heads ? ranks_of(s->cut) : 1);
}

/* The use of a sum, which is new where nothing was added to it. */
static tess_use sum_use(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k)
{
    tess_tile **sum = &room_of(L, n, s->cut)->sum[m][k];
    if (*sum) return (tess_use){*sum, TESS_RW};
    const int64_t elements = tess_span_rows(L, k) * width_of(n, s, m);
    *sum = tess_slot_between(L, (size_t)elements * sizeof(float), n->in[m]->name);
    return (tess_use){*sum, TESS_W};
}

/* A sum that is complete goes to the gradient, or to `part` of one. Where there is a gradient already it is rounded
 * before it is added, as by ranks that give it each other. */
static void settle(tess_lower *L, const tess_node *n, const struct spans *s, int m, int64_t k, tess_tile **part)
{
    const int64_t rows = tess_span_rows(L, k), width = width_of(n, s, m);
    tess_tile **sum = &room_of(L, n, s->cut)->sum[m][k];
    tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = rows * width);
    tess_use to = {0};
    bool acc = false;
    if (!part) to = tess_grad_write(L, n->in[m], s->first + (int)k, &acc);
    tess_use rounded = to;
    if (part || acc)
        rounded =
            (tess_use){tess_slot_between(L, (size_t)a->n * tess_dtype_size(tess_real(L)), n->in[m]->name), TESS_W};
    TESS_EMIT(L, &tess_add_sum[tess_real(L)], a, {*sum, TESS_R}, rounded);
    if (part) part[k] = rounded.tile;
    if (acc)
        TESS_EMIT(L, &tess_strip[tess_real(L)],
                  TESS_ARG(L, tess_strip_arg, .rows = rows, .from_ld = width, .to_ld = width, .runs = 1,
                           .run = {{0, 0, width}}, .acc = true),
                  {rounded.tile, TESS_R}, to);
    *sum = NULL;
}

static void backward(tess_lower *L, const tess_node *n, const struct spans *s, tess_tile **part[BOUNDS])
{
    const struct heads *h = s->heads;
    const int at = s->first + (int)s->own;
    for (int64_t k = s->begin; k < s->end; k++) {
        tess_attention_arg *a = arg(L, n, s, k);
        tess_use use[1 + INPUTS + 2 + INPUTS + 1] = {h ? (tess_use){h->dy[s->own], TESS_R}
                                                       : tess_grad_read(L, n->out, at)};
        unsigned m = 1 + inputs(L, n, s, k, use + 1);
        use[m++] = h ? (tess_use){h->y[s->own], TESS_R} : tess_in(L, n->out, at);
        use[m++] = h ? (tess_use){h->lse[s->own], TESS_R} : tess_aux_in(L, n, at);
        use[m++] = sum_use(L, n, s, Q, s->own);
        if (packed(n) && k != s->own) use[m++] = sum_use(L, n, s, Q, k);
        if (!packed(n)) use[m++] = sum_use(L, n, s, K, k);
        if (!packed(n)) use[m++] = sum_use(L, n, s, V, k);
        a->acc = s->own > (a->causal ? k : 0);
        use[m++] = tess_scratch_use(L, tess_attention_scratch(a, tess_real(L)));
        tess_emit(L, &tess_attention_span_backward[tess_real(L)], a, use, m);
    }
    if (!packed(n)) settle(L, n, s, Q, s->own, part ? part[Q] : NULL);
    for (int64_t k = 0; k < s->cut->all && s->own + 1 == s->cut->all; k++)
        for (int m = packed(n) ? Q : K; m < tensors(n); m++) settle(L, n, s, m, k, part ? part[m] : NULL);
}

/* ---- heads for spans ---- */

/* Which columns of a tensor are those of place r's heads, and where they are among these. */
static void put_runs(const tess_node *n, const struct spans *s, int64_t width, bool qkv, int64_t r, bool back,
                     tess_strip_arg *a)
{
    const tess_attention_conf *c = &of(n)->conf;
    const int64_t ranks = ranks_of(s->cut), q = c->heads * of(n)->dim, kv = c->groups * of(n)->dim;
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
    return tess_slot_between(L, (size_t)(tess_span_rows(L, k) * width / ranks_of(s->cut)) * size, name);
}

/* A span's tile, that is here, goes to each rank by its heads; what the others have of these heads comes to `to`. */
static void give(tess_lower *L, const tess_node *n, const struct spans *s, const tess_tensor *t, tess_use from, int j,
                 tess_tile **to)
{
    const int64_t ranks = ranks_of(s->cut), me = place_of(s->cut), width = tess_width(t), here = s->cut->first + j;
    const bool qkv = packed(n) && t == n->in[Q] && !of(n)->conf.by_head;
    tess_tile **out = row(L, ranks), **come = row(L, ranks);
    for (int64_t r = 0; r < ranks; r++) {
        tess_strip_arg *a = TESS_ARG(L, tess_strip_arg, .rows = tess_span_rows(L, here));
        put_runs(n, s, width, qkv, r, false, a);
        out[r] = narrow_tile(L, s, here, width, t->name);
        TESS_EMIT(L, &tess_strip[tess_real(L)], a, from, {out[r], TESS_W});
        come[r] = r == me ? NULL : narrow_tile(L, s, r * s->cut->here + j, width, t->name);
        to[r * s->cut->here + j] = r == me ? out[r] : come[r];
    }
    out[me] = NULL;
    tess_lower_exchange(L, out, come);
}

/* What this rank has of its heads goes to those whose spans it is, and a span's tile, that is here, is put together;
 * with `acc` added to. */
static void take(tess_lower *L, const tess_node *n, const struct spans *s, const tess_tensor *t, tess_tile *const *from,
                 int j, tess_use to, bool acc)
{
    const int64_t ranks = ranks_of(s->cut), me = place_of(s->cut), width = tess_width(t), here = s->cut->first + j;
    const bool qkv = packed(n) && t == n->in[Q] && !of(n)->conf.by_head;
    tess_tile **out = row(L, ranks), **come = row(L, ranks);
    for (int64_t r = 0; r < ranks; r++) {
        out[r] = r == me ? NULL : from[r * s->cut->here + j];
        come[r] = r == me ? NULL : narrow_tile(L, s, here, width, t->name);
    }
    tess_lower_exchange(L, out, come);
    for (int64_t r = 0; r < ranks; r++) {
        tess_strip_arg *a = TESS_ARG(L, tess_strip_arg, .rows = tess_span_rows(L, here), .acc = acc);
        put_runs(n, s, width, qkv, r, true, a);
        TESS_EMIT(L, &tess_strip[tess_real(L)], a, {r == me ? from[here] : come[r], TESS_R}, to);
        to.mode = TESS_RW;
    }
}

static void shared_forward(tess_lower *L, const tess_node *n, struct spans *s)
{
    struct heads *h = s->heads = tess_lower_get(L, sizeof *h);
    for (int m = 0; m < tensors(n); m++) {
        h->in[m] = row(L, s->cut->all);
        for (int j = 0; j < s->cut->here; j++) give(L, n, s, n->in[m], tess_in(L, n->in[m], s->first + j), j, h->in[m]);
    }
    h->y = row(L, s->cut->all), h->lse = row(L, s->cut->all), h->dy = row(L, s->cut->all);
    for (int64_t own = 0; own < s->cut->all; own++) see(s, n, own), forward(L, n, s);
    for (int j = 0; j < s->cut->here; j++) take(L, n, s, n->out, h->y, j, tess_out(L, n->out, s->first + j), false);
}

static void shared_backward(tess_lower *L, const tess_node *n, struct spans *s)
{
    tess_tile **part[BOUNDS];
    for (int m = 0; m < tensors(n); m++) part[m] = row(L, s->cut->all);
    for (int j = 0; j < s->cut->here; j++)
        give(L, n, s, n->out, tess_grad_read(L, n->out, s->first + j), j, s->heads->dy);
    for (int64_t own = 0; own < s->cut->all; own++) see(s, n, own), backward(L, n, s, part);
    for (int m = 0; m < tensors(n); m++)
        for (int j = 0; j < s->cut->here; j++) {
            bool acc;
            const tess_use to = tess_grad_write(L, n->in[m], s->first + j, &acc);
            take(L, n, s, n->in[m], part[m], j, to, acc);
        }
}

/* Says whether ranks share sequences; then all of one is done with its first row tile. */
static bool shares(const tess_lower *L, int i, struct spans *s)
{
    s->cut = tess_spans(L);
    s->first = i - (int)(i % s->cut->here);
    return s->cut->here < s->cut->all;
}

void tess_spans_forward(tess_lower *L, const tess_node *n, int i)
{
    struct spans s = {0};
    if (!shares(L, i, &s)) {
        see(&s, n, i - s.first);
        forward(L, n, &s);
    } else if (i == s.first) {
        shared_forward(L, n, &s);
        room_of(L, n, s.cut)->heads[tess_place(L, i, NULL) / s.cut->here] = s.heads;
    }
}

void tess_spans_backward(tess_lower *L, const tess_node *n, int i)
{
    struct spans s = {0};
    if (!shares(L, i, &s)) {
        see(&s, n, i - s.first);
        backward(L, n, &s, NULL);
    } else if (i == s.first) {
        s.heads = room_of(L, n, s.cut)->heads[tess_place(L, i, NULL) / s.cut->here];
        shared_backward(L, n, &s);
    }
}
