/* Rows that change nothing: those behind the end of a sequence that is shorter than the step's. No row sees them and
 * they draw no loss, so their values are free and their gradients are zeros: bodies that know of them leave zeros where
 * a row would be computed (codelets/shared/idle.h). How long sequences are is known when a step is fed; the list of
 * tasks is the same for all, and a task has the place where the lengths of its sequences stand.
 *
 * On lengths as Alpaca's (110 tokens on average, up to 512) four fifths of a step are padding. Leaving its products
 * out makes fp32 1.7 and bf16 1.5 times as fast, 2.4 and 2.6 times with tiles.rows=512 (docs/notes/speed-products.md).
 * Bits stay: a row has the same ones whatever lies beside it, and dw leaves terms out only where its sum is one chain,
 * up to 512 terms in oneDNN's kernels. A graph for each length, rows packed together (other sums, other bits) and
 * looking for zeros in dy were not taken. A GPU computes all rows. */
#include "graph/lower/lower.h"

/* The input that says for all ops what rows see; NULL: some see others', or there is no such input. */
static const tess_tensor *bounds_of(const tess_lower *L, const bool *wanted)
{
    const tess_tensor *bounds = NULL;
    for (int k = 0; k < L->g->nodes; k++) {
        const tess_node *n = L->g->node[k];
        if (!wanted[k]) continue;
        if (n->op->reports) continue; /* of numbers, which rows of padding have no part in */
        if ((!n->op->by_rows && !n->op->bounds) || n->op->own) return NULL;
        if (!n->op->bounds) continue;
        if (!n->in[n->op->bounds] || (bounds && n->in[n->op->bounds] != bounds)) return NULL;
        if (n->in[1] && n->in[1]->kind != TESS_KIND_PARAM && n->in[1]->dim[1] != n->in[0]->dim[1]) return NULL;
        bounds = n->in[n->op->bounds];
    }
    return bounds;
}

void tess_lower_idle(tess_lower *L, const bool *wanted)
{
    if (L->output->kind != TESS_KIND_LOSS || L->conf->watches || L->g->cache) return;
    L->bounds = bounds_of(L, wanted);
    if (L->bounds) L->used = tess_arena_get(L->p->arena, (size_t)(2 * L->micros * L->g->batch) * sizeof *L->used);
}

void tess_lower_rows(tess_lower *L, const tess_node *n, int i)
{
    const int64_t length = L->used ? L->bounds->dim[1] / 2 : 0;
    const bool same = n && length && !n->out->divided && !n->in[0]->divided && n->in[0]->dim[1] == length &&
                      (n->out->kind == TESS_KIND_LOSS || n->out->dim[1] == length);
    L->rows = same ? L->used + L->micro * L->g->batch + tess_first_sequence(L, i) : NULL;
    L->place = tess_first_place(L, i);
    tess_lower_piece(L, i);
}

static void at_least(int32_t *used, int64_t rows)
{
    if (*used < rows) *used = (int32_t)rows;
}

/* A row is used if any row sees it, if it has a target, and if it is picked. */
double tess_lower_idle_fill(const tess_graph *g, const tess_lowered *low, int64_t micros, int32_t *const *fed, bool odd,
                            int64_t *at)
{
    *at = 0;
    if (!low->used) return 1;
    const int64_t length = low->bounds->dim[1] / 2, sequences = micros * g->batch;
    const int32_t *bounds = fed[low->bounds->id];
    int32_t *used = low->used + (*at = odd ? sequences : 0);
    for (int64_t s = 0; s < sequences; s++) {
        used[s] = bounds ? 0 : (int32_t)length;
        for (int64_t t = 0; bounds && t < length; t++) at_least(&used[s], bounds[(2 * s + 1) * length + t]);
    }
    for (int k = 0; k < g->nodes; k++) {
        const tess_node *n = g->node[k];
        const bool picks = n->op == &tess_op_pick;
        const int32_t *of = picks                                          ? fed[n->in[1]->id]
                            : n->op->targets && n->in[0]->dim[1] == length ? fed[n->in[n->op->targets]->id]
                                                                           : NULL;
        for (int64_t s = 0; of && s < sequences; s++)
            for (int64_t t = length - 1; picks ? t == length - 1 : t >= used[s]; t--)
                if (picks || of[s * length + t] >= 0) at_least(&used[s], picks ? of[s] + 1 : t + 1);
    }
    double rows = 0;
    for (int64_t s = 0; s < sequences; s++) rows += used[s];
    return rows / (double)(sequences * length);
}
