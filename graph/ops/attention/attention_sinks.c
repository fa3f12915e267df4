/* attention_sinks: the tasks that put sinks into what attention made, whichever tasks made it. */
#include "graph/ops/attention/attention_node_impl.h"

tess_status tess_sinks_check(const tess_node *n, int64_t heads)
{
    const tess_tensor *s = n->in[SINKS];
    if (!s || (tess_is_param(s, heads, 1) && s->cut->tiles == 1)) return TESS_OK;
    return tess_shape_error(n, "the sinks must be a parameter (%lld) of one tile", (long long)heads);
}

static tess_sinks_arg *sinks_arg(tess_lower *L, const tess_node *n, const tess_attention_arg *a)
{
    return TESS_ARG(L, tess_sinks_arg, .rows = a->rows, .heads = a->heads, .dim = a->dim, .head0 = a->head0,
                    .all = n->in[SINKS]->dim[0]);
}

void tess_sinks_put(tess_lower *L, const tess_node *n, const tess_attention_arg *a, tess_use y, tess_use lse)
{
    if (!n->in[SINKS]) return;
    TESS_EMIT(L, &tess_sinks_forward[tess_real(L)], sinks_arg(L, n, a), tess_weight(L, n->in[SINKS], 0),
              {y.tile, TESS_RW}, {lse.tile, TESS_RW});
}

void tess_sinks_back(tess_lower *L, const tess_node *n, const tess_attention_arg *a, tess_use dy, tess_use y,
                     tess_use lse)
{
    if (!n->in[SINKS] || !tess_wants_gradient(L, n->in[SINKS])) return;
    tess_sinks_arg *s = sinks_arg(L, n, a);
    const tess_use d = tess_param_grad(L, n->in[SINKS], 0, &s->acc);
    TESS_EMIT(L, &tess_sinks_backward[tess_real(L)], s, dy, y, lse, tess_weight(L, n->in[SINKS], 0), d);
}
