/* Spans: a sequence that is longer than a row tile should be is cut into several. Ops by rows take it so, and
 * attention, which goes over the spans of keys one after the other. What looks along the sequence in another way has
 * them put together (whole_sequences.c). Where a graph has generic ops, row tiles have whole sequences. */
#include "graph/lower/lower.h"
#include <stdlib.h>

enum {
    SPAN_UNIT = 128, /* what rows of a span are a multiple of: blocks of attention begin there */
    MOST_PIECES = 8
};

/* Rows of a sequence, or the places that each of them has. */
static bool has_rows(const tess_tensor *t, int64_t length)
{
    return t->dim[1] == length || (t->kind == TESS_KIND_ACTIVATION && t->dim[1] && t->dim[1] % length == 0);
}

bool tess_takes_spans(const tess_node *n, int64_t length)
{
    if (n->op->by_places) return true;
    if (!n->op->by_rows) return false;
    if (n->out->kind != TESS_KIND_LOSS && !has_rows(n->out, length)) return false;
    for (int i = 0; i < n->inputs; i++) {
        const tess_tensor *t = n->in[i];
        if (!t || t->kind == TESS_KIND_PARAM || t->kind == TESS_KIND_LOSS) continue;
        if (t->nd || (n->op->bounds ? t->dim[1] != length && i != n->op->bounds : !has_rows(t, length))) return false;
    }
    return true;
}

static bool is_generic(const tess_node *n)
{
    bool is = n->out->nd;
    for (int i = 0; i < n->inputs; i++) is = is || (n->in[i] && n->in[i]->nd);
    return is;
}

/* Returns whether sequences can be cut for an output, and stores how long they are. */
static bool can_cut(const tess_tensor *output, int64_t *length)
{
    const tess_graph *g = output->g;
    bool *wanted = tess_alloc((size_t)g->nodes + 1), can = output->producer && !g->cache, some = false;
    *length = 0;
    tess_lower_mark(output, wanted);
    for (int k = 0; k < g->nodes && can; k++) {
        if (!wanted[k] || !g->node[k]->in[0]) continue;
        if (!*length) *length = g->node[k]->in[0]->dim[1];
        can = !is_generic(g->node[k]);
        some = some || tess_takes_spans(g->node[k], *length);
    }
    free(wanted);
    return can && some;
}

/* The rows of spans, at most `rows`, whose number is a multiple of `unit`; 0: there are none of at least `least`. */
static int64_t rows_of(int64_t length, int64_t rows, int64_t unit, int64_t least)
{
    const int64_t parts = ((length + rows - 1) / rows + unit - 1) / unit * unit;
    int64_t even = ((length + parts - 1) / parts + SPAN_UNIT - 1) / SPAN_UNIT * SPAN_UNIT;
    for (; even >= SPAN_UNIT && even >= least; even -= SPAN_UNIT)
        if ((length + even - 1) / even % unit == 0) return even;
    return 0;
}

/* Without regard to the ranks: the number of spans is a power of two up to MOST_PIECES, or a multiple of it, if it can
 * be without far smaller ones, so that as many ranks have the same spans as one. */
static int64_t rows_alone(int64_t length, int64_t most)
{
    int64_t unit = 1, rows = 0;
    if (length <= most) return length;
    while (unit < MOST_PIECES && unit * most < length) unit *= 2;
    for (; !rows && unit > 1; unit /= 2) {
        const int64_t spans = ((length + most - 1) / most + unit - 1) / unit * unit;
        rows = rows_of(length, most, unit, length / spans * 3 / 4);
    }
    return rows ? rows : rows_of(length, most, 1, 0);
}

/* The pieces of a sequence are as many on any number of ranks that share it: a power of two, of as many spans each. */
static int64_t pieces_of(int64_t spans)
{
    int64_t pieces = 1;
    while (pieces < MOST_PIECES && spans % (2 * pieces) == 0) pieces *= 2;
    return pieces;
}

/* How ranks share the sequences of a graph in attention: all have the keys of each, `ring`, where heads cannot be
 * shared out or would be more bytes; if queries then see what is before them alone, a rank has early spans and late
 * ones. */
static void share_attention(const tess_graph *g, bool *ring, bool *causal)
{
    const double size = (double)tess_dtype_size(g->conf.dtype);
    double heads = 0, keys = 0;
    *ring = false, *causal = true;
    for (int k = 0; k < g->nodes; k++) {
        const tess_node *n = g->node[k];
        if (!n->op->sends) continue;
        const tess_sends s = n->op->sends(n, g->conf.grid.sequence, g->conf.grid.tensor);
        *ring = *ring || s.heads < 0;
        *causal = *causal && s.causal;
        heads += s.heads * size, keys += s.keys * size + s.sums * sizeof(float);
    }
    *ring = *ring || keys < heads;
}

struct tess_spans tess_lower_spans(const tess_tensor *output, bool deterministic, int64_t *row_tiles)
{
    const tess_graph *g = output->g;
    const int64_t sequences = g->tile_sequences ? g->tile_sequences : 1, ranks = g->conf.grid.sequence;
    struct tess_spans s = {.all = 1, .here = 1, .ranks = 1, .pieces = 1};
    *row_tiles = (g->batch + sequences - 1) / sequences;
    if (!can_cut(output, &s.length) || (s.length <= g->conf.tile_rows && ranks == 1)) return s;
    bool causal = false;
    if (ranks > 1) share_attention(g, &s.ring, &causal);
    s.rows = rows_alone(s.length, g->conf.tile_rows);
    for (int64_t unit = ranks; unit <= 2 * ranks; unit += ranks) {
        const bool wanted = unit == ranks || (s.ring && causal && !deterministic);
        if (!wanted || (s.length + s.rows - 1) / s.rows % unit == 0) continue;
        const int64_t rows = rows_of(s.length, s.rows, unit, 0);
        if (rows) s.rows = rows;
    }
    s.all = (s.length + s.rows - 1) / s.rows;
    if (s.all % ranks) return s; /* is refused */
    s.here = s.all / ranks;
    s.ranks = ranks;
    s.place = tess_grid_sequence(&g->conf.grid);
    const int64_t pieces = deterministic ? pieces_of(s.all) : ranks;
    s.zigzag = s.ring && causal && s.here % 2 == 0 && (!deterministic || pieces % (2 * ranks) == 0);
    s.pieces = pieces % ranks ? 1 : pieces / ranks;
    *row_tiles = g->batch * s.here;
    return s;
}

/* Returns whether the sums of one rank, with tiles of `rows` rows, can be divided into pieces for these ranks. */
static bool has_pieces(int64_t length, int64_t rows, int ranks)
{
    const int64_t alone = rows_alone(length, rows);
    return pieces_of((length + alone - 1) / alone) % ranks == 0;
}

/* What one rank alone would not have the bits of. */
static tess_status check_bits(const tess_graph *g, const struct tess_spans *s, const tess_step_conf *c)
{
    enum { MOST_LEAVES = 32 }; /* of a gradient that one rank holds until the step's end */
    const int ranks = g->conf.grid.sequence;
    int64_t first, micros, rows = s->rows;
    tess_grid_share(&g->conf.grid, c, tess_grid_data(&g->conf.grid), &first, &micros);
    if (!c->deterministic || !c->train) return TESS_OK;
    if (!has_pieces(s->length, g->conf.tile_rows, ranks)) {
        while (rows > 0 && !has_pieces(s->length, rows, ranks)) rows -= SPAN_UNIT;
        return tess_error(TESS_INVALID, "step",
                          "deterministic: %d ranks cannot share %lld rows with the bits of one rank (%s%lld)", ranks,
                          (long long)s->length, rows > 0 ? "they can with tiles.rows " : "expected 2, 4 or ",
                          (long long)(rows > 0 ? rows : MOST_PIECES));
    }
    if (micros > MOST_LEAVES)
        return tess_error(TESS_INVALID, "step",
                          "deterministic: %lld micro-batches of ranks that share sequences (at most %d, since each "
                          "has a gradient of its own until the end)",
                          (long long)micros, MOST_LEAVES);
    return TESS_OK;
}

/* The last span has a row for each rank that has some of its rows. */
static tess_status check_rows(const tess_tensor *output)
{
    const tess_grid *grid = &output->g->conf.grid;
    int64_t row_tiles;
    const struct tess_spans s = tess_lower_spans(output, false, &row_tiles);
    const int64_t last = s.rows ? s.length - (s.all - 1) * s.rows : grid->tensor;
    if (!grid->rows || last >= grid->tensor) return TESS_OK;
    return tess_error(TESS_INVALID, "step",
                      "%d ranks share the rows of each tile, but the last of a sequence has %lld of %lld rows (other "
                      "tiles.rows leave it more)",
                      grid->tensor, (long long)last, (long long)s.length);
}

tess_status tess_check_sequence(const tess_tensor *output, const tess_step_conf *c)
{
    const tess_graph *g = output->g;
    const int ranks = g->conf.grid.sequence;
    int64_t row_tiles, length;
    TESS_TRY(check_rows(output));
    if (ranks == 1) return TESS_OK;
    if (!can_cut(output, &length))
        return tess_error(TESS_INVALID, "step",
                          "%d ranks share each sequence, but %s has ops that have whole ones (as generic ops do)",
                          ranks, output->name);
    const struct tess_spans s = tess_lower_spans(output, c->deterministic, &row_tiles);
    if (s.all % ranks)
        return tess_error(TESS_INVALID, "step",
                          "%d ranks share each sequence, but %lld rows are %lld spans of %lld (a multiple of %d rows "
                          "makes a multiple of the ranks)",
                          ranks, (long long)length, (long long)s.all, (long long)s.rows, SPAN_UNIT * ranks);
    return check_bits(g, &s, c);
}
