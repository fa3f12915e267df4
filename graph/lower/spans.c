/* Spans: a sequence that is longer than a row tile should be is cut into several, where all ops can take it so: those
 * that go by rows, and attention, which goes over the spans of keys one after the other. Where some op looks along the
 * sequence in another way, row tiles have whole sequences. */
#include "lower.h"
#include <stdlib.h>

enum { SPAN_UNIT = 128 }; /* what rows of a span are a multiple of: blocks of attention begin there */

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

int64_t tess_lower_spans(const tess_tensor *output, int64_t *spans, int64_t *span, int64_t *length)
{
    const tess_graph *g = output->g;
    const int64_t whole = g->tile_sequences ? g->tile_sequences : 1, row_tiles = (g->batch + whole - 1) / whole;
    *spans = 1, *span = *length = 0;
    if (!output->producer || g->cache) return row_tiles;
    bool *wanted = tess_alloc((size_t)g->nodes + 1), all = true;
    tess_lower_mark(output, wanted);
    for (int k = 0; k < g->nodes && all; k++) {
        if (!wanted[k] || !g->node[k]->in[0]) continue;
        if (!*length) *length = g->node[k]->in[0]->dim[1];
        all = takes_spans(g->node[k], *length);
    }
    free(wanted);
    if (!all || *length <= g->conf.tile_rows) return row_tiles;
    const int64_t parts = (*length + g->conf.tile_rows - 1) / g->conf.tile_rows;
    *span = ((*length + parts - 1) / parts + SPAN_UNIT - 1) / SPAN_UNIT * SPAN_UNIT;
    *spans = (*length + *span - 1) / *span;
    return g->batch * *spans;
}
