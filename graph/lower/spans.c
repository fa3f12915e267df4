/* Spans: a sequence that is longer than a row tile should be is cut into several, where all ops can take it so: those
 * that go by rows, and attention, which goes over the spans of keys one after the other. Where some op looks along the
 * sequence in another way, row tiles have whole sequences. */
#include "lower.h"
#include <stdlib.h>

enum {
    SPAN_UNIT = 128, /* what rows of a span are a multiple of: blocks of attention begin there */
    MOST_PIECES = 8
};

static bool takes_spans(const tess_node *n, int64_t length)
{
    if (!n->op->by_rows || (n->op->whole && n->in[n->op->whole])) return false;
    if (n->out->kind != TESS_KIND_LOSS && n->out->dim[1] != length) return false;
    for (int i = 0; i < n->inputs; i++) {
        const tess_tensor *t = n->in[i];
        if (!t || t->kind == TESS_KIND_PARAM || t->kind == TESS_KIND_LOSS) continue;
        if (t->nd || (t->dim[1] != length && !(n->op->bounds && i == n->op->bounds))) return false;
    }
    return true;
}

/* Returns whether all that the output is made of can be cut, and stores how long sequences are. */
static bool can_cut(const tess_tensor *output, int64_t *length)
{
    const tess_graph *g = output->g;
    bool *wanted = tess_alloc((size_t)g->nodes + 1), all = output->producer && !g->cache;
    *length = 0;
    tess_lower_mark(output, wanted);
    for (int k = 0; k < g->nodes && all; k++) {
        if (!wanted[k] || !g->node[k]->in[0]) continue;
        if (!*length) *length = g->node[k]->in[0]->dim[1];
        all = takes_spans(g->node[k], *length);
    }
    free(wanted);
    return all;
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

struct tess_spans tess_lower_spans(const tess_tensor *output, int64_t *row_tiles)
{
    const tess_graph *g = output->g;
    const int64_t sequences = g->tile_sequences ? g->tile_sequences : 1, ranks = g->conf.grid.sequence;
    struct tess_spans s = {.all = 1, .here = 1, .pieces = 1};
    *row_tiles = (g->batch + sequences - 1) / sequences;
    if (!can_cut(output, &s.length) || (s.length <= g->conf.tile_rows && ranks == 1)) return s;
    s.rows = rows_alone(s.length, g->conf.tile_rows);
    if ((s.length + s.rows - 1) / s.rows % ranks) {
        const int64_t rows = rows_of(s.length, s.rows, ranks, 0);
        if (rows) s.rows = rows;
    }
    s.all = (s.length + s.rows - 1) / s.rows;
    if (s.all % ranks) return s; /* is refused */
    s.here = s.all / ranks;
    s.first = s.here * tess_grid_sequence(&g->conf.grid);
    s.pieces = pieces_of(s.all) % ranks ? 1 : pieces_of(s.all) / ranks;
    *row_tiles = g->batch * s.here;
    return s;
}

/* Whether the sums of one rank, whose tiles have so many rows, have pieces for these ranks. */
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
    tess_grid_share(&g->conf.grid, c->micro > 0 ? c->micro : tess_grid_batches(&g->conf.grid), &first, &micros);
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

tess_status tess_check_sequence(const tess_tensor *output, const tess_step_conf *c)
{
    const tess_graph *g = output->g;
    const int ranks = g->conf.grid.sequence;
    int64_t row_tiles, length;
    if (ranks == 1) return TESS_OK;
    if (!can_cut(output, &length))
        return tess_error(TESS_INVALID, "step",
                          "%d ranks share each sequence, but some op of %s looks along it (as T5's bias by distance, "
                          "experts, picks and ops of a program's own do)",
                          ranks, output->name);
    const struct tess_spans s = tess_lower_spans(output, &row_tiles);
    if (s.all % ranks)
        return tess_error(TESS_INVALID, "step",
                          "%d ranks share each sequence, but %lld rows are %lld spans of %lld (a multiple of %d rows "
                          "makes a multiple of the ranks)",
                          ranks, (long long)length, (long long)s.all, (long long)s.rows, SPAN_UNIT * ranks);
    for (int k = 0; k < g->nodes; k++) {
        const tess_node *n = g->node[k];
        const int64_t most = n->op->heads ? n->op->heads(n) : ranks;
        if (most % ranks)
            return tess_error(TESS_INVALID, n->out->name,
                              "%d ranks share each sequence, but attention has %lld heads of keys (expected a "
                              "multiple of the ranks)",
                              ranks, (long long)most);
    }
    return check_bits(g, &s, c);
}
