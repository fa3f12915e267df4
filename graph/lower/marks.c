/* Marks of nodes and tensors, before anything is made of them: what a result is made of, and what wants a gradient. */
#include "graph/lower/lower.h"

void tess_lower_mark(const tess_tensor *t, bool *wanted)
{
    const tess_node *n = t->producer;
    if (!n || wanted[n->id]) return;
    wanted[n->id] = true;
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k]) tess_lower_mark(n->in[k], wanted);
}

const tess_node *tess_lower_made_with(const tess_node *n)
{
    const tess_node *first = n->inputs && n->in[0] ? n->in[0]->producer : NULL;
    const tess_fusion *f = n->op->fusions;
    if (!first || !f || tess_gpus() == 0 || tess_dtype_size(n->out->g->conf.dtype) != 2) return NULL;
    while (f->first && f->own_bits != first->op) f++;
    return f->first ? first : NULL;
}

void tess_lower_wants(const tess_graph *g, bool *wants)
{
    for (int k = 0; k < g->params; k++) wants[g->param[k]->id] = !tess_is_frozen(g->param[k]);
    for (int k = 0; k < g->nodes; k++) {
        const tess_node *n = g->node[k];
        wants[n->out->id] = n->elsewhere && wants[n->elsewhere->id]; /* ranks that meet in a sum agree */
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] && wants[n->in[i]->id] && !(n->in[i]->held && tess_is_state(n->in[i])))
                wants[n->out->id] = !n->out->nd || !n->out->nd->fixed;
    }
}
