/* What looks along sequences that are cut: an op of a program's own that is not by rows, a pick, and what reads tensors
 * of other lengths. Such a node has whole sequences, one row tile each: what its rule reads is put together before, and
 * what it makes is cut up behind it. Where ranks share sequences each of these is one rank's, which has all spans of
 * it while the rule's tasks run; sequences go round as the pieces of gradients do, so the sums are those of one rank.
 */
#include "graph/lower/lower.h"
#include <stdlib.h>

/* A sequence, by its first row tile. */
struct sequence {
    int first;
    int64_t owner; /* the place of the rank whose it is */
    int64_t piece; /* of the owner's: where the gradients of parameters grow */
    bool mine;
};

/* The place of a rank's piece among those of all. */
static int64_t piece_at(const struct tess_spans *s, int64_t place, int64_t k)
{
    return s->pieces > 1 ? tess_span_at(s, place, k, s->pieces) : place * s->pieces + k;
}

int64_t tess_spans_owner(const struct tess_spans *s, int64_t sequence, int64_t *piece)
{
    int64_t r = 0, k = 0;
    while (piece_at(s, r, k) != sequence % (s->ranks * s->pieces))
        if (++k == s->pieces) k = 0, r++;
    if (piece) *piece = k;
    return r;
}

static struct sequence sequence_of(const tess_lower *L, int i)
{
    struct sequence s = {.first = i - (int)(i % L->cut.here)};
    s.owner = tess_spans_owner(&L->cut, tess_first_sequence(L, i), &s.piece);
    s.mine = s.owner == L->cut.place;
    return s;
}

bool tess_lower_has(const tess_lower *L, const tess_tensor *t, int i)
{
    if (tess_is_whole(t)) return i == 0;
    if (!L->cut.rows || tess_is_cut(L, t) || tess_takes_spans(t->producer, L->cut.length)) return true;
    return i % L->cut.here == 0 && sequence_of(L, i).mine;
}

/* ---- between spans and whole sequences ---- */

static size_t row_bytes(const tess_lower *L, const tess_tensor *t)
{
    const size_t size = t->kind == TESS_KIND_INPUT ? sizeof(int32_t) : tess_dtype_size(L->dtype);
    return (size_t)(t->dim[1] / L->cut.length * tess_width(t)) * size;
}
static size_t span_bytes(tess_lower *L, const tess_tensor *t, int64_t span)
{
    return (size_t)tess_span_rows(L, span) * row_bytes(L, t);
}
static size_t begin_of(const tess_lower *L, const tess_tensor *t, int64_t span)
{
    return (size_t)(span * L->cut.rows) * row_bytes(L, t);
}

static tess_tile **row(tess_lower *L)
{
    return tess_lower_get(L, (size_t)L->cut.ranks * sizeof(tess_tile *));
}

static void exchange(tess_lower *L, tess_tile *const *out, tess_tile *const *in)
{
    if (L->cut.ranks > 1) tess_lower_all_to_all(L, out, in);
}

/* Returns the tile that all spans of a tensor, or of its gradient, come together in; NULL: it is another rank's. */
static tess_tile *put_together(tess_lower *L, const struct sequence *s, const tess_tensor *t, bool gradient)
{
    const struct tess_spans *cut = &L->cut;
    tess_use all = {NULL, TESS_W};
    if (s->mine) all.tile = tess_slot_between(L, (size_t)cut->length * row_bytes(L, t), t->name);
    for (int64_t j = 0; j < cut->here; j++) {
        const int i = s->first + (int)j;
        tess_tile **out = row(L), **in = row(L), *own = (gradient ? tess_grad_read(L, t, i) : tess_in(L, t, i)).tile;
        if (!s->mine) out[s->owner] = own;
        for (int64_t r = 0; r < cut->ranks && s->mine; r++)
            if (r != cut->place)
                in[r] = tess_slot_between(L, span_bytes(L, t, tess_span_at(cut, r, j, cut->here)), t->name);
        exchange(L, out, in);
        for (int64_t r = 0; r < cut->ranks && s->mine; r++) {
            const int64_t span = tess_span_at(cut, r, j, cut->here);
            TESS_EMIT(L, &tess_copy[TESS_F32],
                      TESS_ARG(L, tess_copy_arg, .to = begin_of(L, t, span), .bytes = span_bytes(L, t, span)),
                      {in[r] ? in[r] : own, TESS_R}, all);
            all.mode = TESS_RW;
        }
    }
    return all.tile;
}

/* Writes the spans of what the rule made of a tensor, or of its gradient, from a tile of all. */
static void cut_up(tess_lower *L, const struct sequence *s, const tess_tensor *t, bool gradient, tess_tile *all)
{
    const struct tess_spans *cut = &L->cut;
    for (int64_t j = 0; j < cut->here; j++) {
        const int i = s->first + (int)j;
        bool acc = false;
        tess_tile **out = row(L), **in = row(L);
        const tess_use to = gradient ? tess_grad_write(L, t, i, &acc) : tess_out(L, t, i);
        tess_tile *own = acc ? tess_slot_between(L, tess_tile_bytes(to.tile), t->name) : to.tile;
        for (int64_t r = 0; r < cut->ranks && s->mine; r++) {
            const int64_t span = tess_span_at(cut, r, j, cut->here);
            const size_t bytes = span_bytes(L, t, span);
            tess_tile *part = r == cut->place ? own : (out[r] = tess_slot_between(L, bytes, t->name));
            TESS_EMIT(L, &tess_copy[TESS_F32], TESS_ARG(L, tess_copy_arg, .from = begin_of(L, t, span), .bytes = bytes),
                      {all, TESS_R}, {part, TESS_W});
        }
        if (!s->mine) in[s->owner] = own;
        exchange(L, out, in);
        if (acc) tess_lower_add(L, t, i, own, to.tile, true);
    }
}

/* ---- a sequence of a node ---- */

static bool is_again(const tess_node *n, int k)
{
    for (int before = 0; before < k; before++)
        if (n->in[before] == n->in[k]) return true;
    return false;
}

static bool is_cut(const tess_lower *L, const tess_node *n, int k)
{
    const tess_tensor *t = n->in[k];
    return t && t->kind != TESS_KIND_PARAM && t->kind != TESS_KIND_LOSS && !is_again(n, k) && tess_is_cut(L, t);
}

/* Pieces that the rule added nothing to begin with zeros: sums over them take all. */
static void fill_pieces(tess_lower *L, const tess_tensor *p)
{
    for (L->piece = 0; L->piece < L->cut.pieces; L->piece++)
        for (int64_t j = 0; j < p->cut->tiles; j++) {
            bool acc;
            int64_t first, rows;
            tess_param_rows(p, j, &first, &rows);
            tess_use to = tess_param_grad(L, p, j, &acc);
            if (!acc) tess_grad_zero(L, TESS_F32, rows * p->dim[1], &to);
        }
}

static void call(tess_lower *L, const tess_node *n, const struct sequence *s, struct tess_whole *w,
                 void (*rule)(tess_lower *, const tess_node *, int))
{
    L->rows = NULL;
    L->place = 0;
    L->piece = s->piece;
    L->whole = w;
    if (s->mine) rule(L, n, s->first);
    L->whole = NULL;
}

/* What a rule that makes gradients has made of them; a loss has it in its forward pass. */
static void give_gradients(tess_lower *L, const tess_node *n, const struct sequence *s, const struct tess_whole *w)
{
    for (int k = 0; k < n->inputs; k++) {
        const tess_tensor *t = n->in[k];
        if (!t || !tess_wants_gradient(L, t)) continue;
        if (t->kind == TESS_KIND_PARAM) fill_pieces(L, t);
        if (t->kind == TESS_KIND_ACTIVATION && is_cut(L, n, k)) cut_up(L, s, t, true, tess_whole_find(w, t, true));
    }
}

void tess_lower_whole_forward(tess_lower *L, const tess_node *n, int i)
{
    const struct sequence s = sequence_of(L, i);
    struct tess_whole w = {0};
    if (i != s.first) return;
    for (int k = 0; k < n->inputs; k++)
        if (is_cut(L, n, k)) tess_whole_add(&w, n->in[k], false, put_together(L, &s, n->in[k], false));
    call(L, n, &s, &w, n->op->forward);
    if (n->out->kind == TESS_KIND_LOSS)
        give_gradients(L, n, &s, &w);
    else if (tess_is_cut(L, n->out))
        cut_up(L, &s, n->out, false, tess_whole_find(&w, n->out, false));
}

void tess_lower_whole_backward(tess_lower *L, const tess_node *n, int i)
{
    const struct sequence s = sequence_of(L, i);
    const bool out = n->out->kind != TESS_KIND_LOSS && tess_is_cut(L, n->out);
    struct tess_whole w = {0};
    if (i != s.first) return;
    for (int k = 0; k < n->inputs; k++)
        if (is_cut(L, n, k) && (n->in[k]->kind == TESS_KIND_INPUT || n->op->reads >> k & 1))
            tess_whole_add(&w, n->in[k], false, put_together(L, &s, n->in[k], false));
    if (out && n->op->reads & TESS_READS_OUT) tess_whole_add(&w, n->out, false, put_together(L, &s, n->out, false));
    if (out) tess_whole_add(&w, n->out, true, put_together(L, &s, n->out, true));
    call(L, n, &s, &w, n->op->backward);
    give_gradients(L, n, &s, &w);
}
