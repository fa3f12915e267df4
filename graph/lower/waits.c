/* Gradients of weights that wait: in a zero-bubble order of a pipeline the tasks of a backward pass that make nothing
 * but gradients of parameters are taken off the list, and put on it again in a pass of their own. They read what they
 * would have read: a micro-batch's tiles serve no other one until that pass is through, and a gradient that they read
 * counts one holder more, so that whoever would add to it copies it first. For each parameter the micro-batches keep
 * their order, so the bits are those of the other orders. */
#include "graph/lower/lower.h"
#include <stdlib.h>

struct tess_wait {
    tess_task task;
    tess_use *use;
    tess_origin origin;
    struct tess_grad **reads; /* the gradients that it reads, NULL behind them */
    const tess_node *ends;    /* instead of a task: this node's uses of its parameters end */
    int64_t micro;
    bool back;
};

static struct tess_wait *add(tess_lower *L)
{
    if (L->nwait == L->wait_room)
        L->wait = tess_realloc(L->wait, (L->wait_room = 2 * L->wait_room + 64) * sizeof *L->wait);
    L->wait[L->nwait] = (struct tess_wait){.micro = L->micro, .back = L->back};
    return &L->wait[L->nwait++];
}

static bool makes_gradients_alone(const tess_task *t)
{
    for (unsigned i = 0; i < t->nuse; i++)
        if (t->use[i].mode & TESS_W && tess_tile_role(t->use[i].tile) != TESS_ROLE_GRADIENT) return false;
    return true;
}

/* The gradients of the output that a rule reads: of row tile i, or of all where the rule is called for them once. */
static struct tess_grad **hold(tess_lower *L, const tess_node *n, int i)
{
    const int first = n->op->by_rows ? i : 0, end = n->op->by_rows ? i + 1 : L->row_tiles;
    struct tess_grad **all = tess_arena_get(L->p->arena, (size_t)(end - first + 1) * sizeof *all);
    for (int r = first, k = 0; r < end; r++) {
        struct tess_grad *g = L->grad[n->out->id][tess_lower_place(L, n->out, r)];
        if (!g) continue;
        g->holders++;
        all[k++] = g;
    }
    return all;
}

void tess_lower_wait(tess_lower *L, const tess_node *n, int i, size_t from)
{
    tess_program *p = L->p;
    size_t left = from;
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k] && n->in[k]->kind == TESS_KIND_PARAM && L->wants[n->in[k]->id] && !L->alone[n->in[k]->id]) return;
    for (size_t k = from; k < p->tasks; k++) {
        if (makes_gradients_alone(&p->task[k])) {
            struct tess_wait *w = add(L);
            w->task = p->task[k], w->use = p->use[k], w->origin = p->origin[k];
            w->reads = hold(L, n, i);
            continue;
        }
        p->task[left] = p->task[k], p->use[left] = p->use[k], p->origin[left] = p->origin[k];
        p->task[left].order = (uint32_t)left;
        left++;
    }
    p->tasks = left;
}

bool tess_lower_waits(tess_lower *L, const tess_node *n)
{
    for (size_t k = L->nwait; L->waits && k > L->wait_at; k--) {
        const struct tess_wait *w = &L->wait[k - 1];
        if (w->micro != L->micro || w->back != L->back) break;
        if (w->ends || w->origin.node != n->id) continue;
        add(L)->ends = n;
        return true;
    }
    return false;
}

/* The rule was called in order, and may have been for later micro-batches since: it has written in this one now. */
static void mark_written(tess_lower *L, const tess_node *n)
{
    for (int k = 0; k < n->inputs; k++) {
        const tess_tensor *p = n->in[k];
        for (int64_t j = 0; p && p->kind == TESS_KIND_PARAM && L->wants[p->id] && j < tess_lower_gradients(L, p); j++)
            if (L->begun[p->id][j] >= 0) L->begun[p->id][j] = L->micro;
    }
}

const tess_node *tess_lower_waited(tess_lower *L)
{
    while (L->wait_at < L->nwait) {
        const struct tess_wait w = L->wait[L->wait_at];
        if (w.micro != L->micro || w.back != L->back) break;
        L->wait_at++;
        if (w.ends) {
            mark_written(L, w.ends);
            return w.ends;
        }
        tess_program_put(L->p, &w.task, w.use, &w.origin);
        for (struct tess_grad **g = w.reads; *g; g++) (*g)->holders--;
    }
    return NULL;
}
