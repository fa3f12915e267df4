/* The passes over nodes of one micro-batch, forward and backward; what is recomputed between them, and what is to be
 * done when the last rule has added to a parameter's gradient. */
#include "graph/lower/lower.h"
#include <stdlib.h>
#include <string.h>

/* Shows a row tile of a tensor, once it is made. */
static void show(tess_lower *L, const tess_tensor *t, int i, const tess_watch *watch)
{
    tess_show_arg *a = TESS_ARG(L, tess_show_arg, .watch = watch);
    a->lent.dtype = tess_dtype_of(L, t);
    a->lent.rows = tess_rows(L, t, i);
    a->lent.columns = tess_width(t);
    a->lent.first = tess_first_row(L, t, i);
    TESS_EMIT(L, &tess_show, a, tess_in(L, t, i));
}

/* Over the ranks of the tensor dimension several tensors have the name of one: this one's is the whole sum of their
 * parts, and made, not passed on. */
static bool is_shown(const tess_lower *L, const tess_node *n)
{
    const tess_node *next = n->id + 1 < L->g->nodes ? L->g->node[n->id + 1] : NULL;
    return !n->op->enters && !(next && next->op->leaves && next->in[0] == n->out);
}

/* What is emitted from now on is of an op; NULL: of none. */
static void enter(tess_lower *L, const tess_node *n)
{
    L->p->now.of = n ? n->out->name : NULL;
    L->p->now.node = n ? n->id : 0;
    L->p->now.micro = L->micro0 + L->micro;
}

/* What is looked at of row tiles [first, end). */
static void look(tess_lower *L, const tess_node *n, int first, int end)
{
    const bool real = n->out->kind != TESS_KIND_LOSS && (!n->out->nd || n->out->nd->element == TESS_REAL);
    for (int i = first; i < end && L->conf->check_finite && real; i++) {
        if (!tess_lower_has(L, n->out, i)) continue;
        tess_count_arg *a =
            TESS_ARG(L, tess_count_arg, .n = tess_rows(L, n->out, i) * tess_width(n->out), .name = n->out->name);
        TESS_EMIT(L, &tess_finite[tess_dtype_of(L, n->out)], a, {L->value[n->out->id][tess_lower_at(L, i)], TESS_R});
    }
    for (int w = 0; w < L->conf->watches && !L->recomputing && is_shown(L, n); w++)
        for (int i = first; i < end && !strcmp(L->conf->watch[w].name, n->out->name); i++)
            if (tess_lower_has(L, n->out, i)) show(L, n->out, i, &L->conf->watch[w]);
}

/* It goes by row tiles as they are cut. */
static bool by_tiles(const tess_lower *L, const tess_node *n)
{
    return !L->cut.rows || tess_takes_spans(n, L->cut.length);
}

static void forward_tiles(tess_lower *L, const tess_node *n, int first, int end)
{
    const int tiles = tess_lower_tiles(L, n->out), guests = tess_guests_of(L, n);
    enter(L, n);
    for (L->guest = guests > 0; L->guest <= guests; L->guest++) {
        for (int i = first; i < end; i++) {
            tess_lower_rows(L, n, i);
            (by_tiles(L, n) ? n->op->forward : tess_lower_whole_forward)(L, n, i);
        }
        tess_lower_rows(L, NULL, 0);
        look(L, n, first, end < tiles ? end : tiles);
    }
    L->guest = 0;
    if (L->routed && end == L->row_tiles) tess_guests_forward(L, n);
    enter(L, NULL);
}

/* ---- runs of spans ---- */

/* Nodes of a run have all that is made of a span, one after the other, before they go on to the next: so that what is
 * between them is there for one span at a time. Attention looks along the sequence, and is a run by itself. Without
 * spans each node is: row tiles of an op are what is parallel. */
static bool goes_with(const tess_lower *L, const tess_node *a, const tess_node *b)
{
    return L->cut.rows && a->block == b->block && a->op->by_rows && b->op->by_rows && !a->op->bounds &&
           !b->op->bounds && by_tiles(L, a) && by_tiles(L, b);
}
static int run_end(const tess_lower *L, int first, int end)
{
    int k = first + 1;
    while (k < end && goes_with(L, L->g->node[k - 1], L->g->node[k])) k++;
    return k;
}
static int run_begin(const tess_lower *L, int last, int first)
{
    int k = last;
    while (k > first && goes_with(L, L->g->node[k - 1], L->g->node[k])) k--;
    return k;
}

/* The forward of those of nodes [first, end) that are chosen. */
static void forward(tess_lower *L, int first, int end, const bool *chosen)
{
    for (int k = first, next; k < end; k = next) {
        next = run_end(L, k, end);
        const int step = next == k + 1 ? L->row_tiles : 1;
        for (int i = 0; i < L->row_tiles; i += step)
            for (int m = k; m < next; m++)
                if (chosen[m]) forward_tiles(L, L->g->node[m], i, i + step);
    }
}

int tess_lower_group(const tess_lower *L, const tess_node *n)
{
    int every = L->conf->recompute_every;
    return every > 0 && n->block > 0 ? (n->block - 1) / every : -1;
}

/* What the backward of a node reads: nothing where nothing wants it, less where its parameters are frozen. */
static unsigned reads_of(const tess_lower *L, const tess_node *n)
{
    bool params = false;
    for (int i = 0; i < n->inputs; i++)
        params |= n->in[i] && n->in[i]->kind == TESS_KIND_PARAM && tess_wants_gradient(L, n->in[i]);
    if (!tess_wants_gradient(L, n->out)) return 0;
    return params ? n->op->reads : n->op->reads & ~n->op->reads_for_params;
}

void tess_lower_find_recomputed(const tess_lower *L, int first, int last, const bool *wanted, bool *again)
{
    TESS_FREED bool *need = tess_alloc((size_t)L->g->tensors);
    memset(again, 0, (size_t)L->g->nodes);
    for (int k = first; k <= last; k++) {
        const tess_node *n = L->g->node[k];
        if (!wanted[k]) continue;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] && (reads_of(L, n) & (1u << i))) need[n->in[i]->id] = true;
        if (reads_of(L, n) & TESS_READS_OUT) need[n->out->id] = true;
    }
    for (int k = last; k >= first; k--) {
        const tess_node *n = L->g->node[k];
        if (!wanted[k] || L->kept[k] || !(need[n->out->id] || (reads_of(L, n) & TESS_READS_AUX))) continue;
        again[k] = true;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i]) need[n->in[i]->id] = true;
    }
    for (int k = first; k <= last; k++) {
        const tess_node *with = tess_lower_made_with(L->g->node[k]);
        if (with && with->id >= first && again[with->id] && wanted[k]) again[k] = true;
    }
}

/* What follows a gradient that is complete: of this micro-batch, where that is given up early, or of the step. */
static void complete(tess_lower *L, const struct tess_owed *o)
{
    if (o->early) tess_lower_reduce_micro(L, o->p);
    if (!o->last) return;
    tess_lower_reduce(L, o->p);
    tess_lower_join_rows(L, o->p);
    if (!L->conf->keep_gradients) tess_lower_update(L, o->p);
}

void tess_lower_owed(tess_lower *L)
{
    const int64_t micro = L->micro;
    for (int k = 0; k < L->nowed; k++) {
        L->micro = L->owed[k].micro;
        complete(L, &L->owed[k]);
    }
    L->micro = micro;
    L->nowed = 0;
}

/* In a section of a pipeline other ranks wait for what the pass sends, so that comes first. */
static void owe(tess_lower *L, const struct tess_owed *o)
{
    if (L->grid->pipeline == 1 && !L->once) {
        complete(L, o);
        return;
    }
    if (L->nowed == L->owed_room)
        L->owed = tess_realloc(L->owed, (size_t)(L->owed_room = 2 * L->owed_room + 16) * sizeof *L->owed);
    L->owed[L->nowed++] = *o;
}

void tess_lower_end_uses(tess_lower *L, const tess_node *n)
{
    if (tess_lower_waits(L, n)) return;
    for (int k = 0; k < n->inputs; k++) {
        tess_tensor *p = n->in[k];
        if (!p || p->kind != TESS_KIND_PARAM || !tess_wants_gradient(L, p) || !L->pending[p->id]) continue;
        bool grown = --L->growing[p->id][L->micro] == 0;
        if (grown && L->conf->deterministic && !p->held->on.shared) tess_lower_grown(L, p);
        const bool early = grown && L->early[p->id];
        const bool last = --L->pending[p->id] == 0 && !p->held->on.shared; /* a shared one's waits for the step's end */
        if (early || last) owe(L, &(struct tess_owed){p, L->micro, early, last});
    }
}

static void backward_tiles(tess_lower *L, const tess_node *n, int first, int end)
{
    const int tiles = tess_lower_tiles(L, n->out), guests = tess_guests_of(L, n);
    enter(L, n);
    if (L->routed) tess_guests_before(L, n);
    for (L->guest = guests > 0; L->guest <= guests; L->guest++) {
        for (int i = first; n->op->backward && i < end; i++) {
            const size_t from = L->p->tasks;
            tess_lower_rows(L, n, i);
            (by_tiles(L, n) ? n->op->backward : tess_lower_whole_backward)(L, n, i);
            if (L->waits && n->op->may_wait && by_tiles(L, n)) tess_lower_wait(L, n, i, from);
        }
        tess_lower_rows(L, NULL, 0);
        for (int i = first; i < (end < tiles ? end : tiles); i++) tess_lower_release(L, n->out, i);
    }
    L->guest = 0;
    if (L->routed) tess_guests_backward(L, n);
    enter(L, NULL);
}

void tess_lower_node_backward(tess_lower *L, const tess_node *n)
{
    backward_tiles(L, n, 0, L->row_tiles);
    tess_lower_end_uses(L, n);
}

/* Puts a node's backward off to the end of the step; its gradient is copied, since its tile serves the next
 * micro-batch. */
static void put_off(tess_lower *L, const tess_node *n)
{
    for (int i = 0; i < tess_lower_tiles(L, n->out); i++) {
        if (!tess_has_gradient(L, n->out, i)) continue;
        struct tess_grad *g = L->grad[n->out->id][tess_lower_at(L, i)],
                         *kept = tess_arena_get(L->p->arena, sizeof *kept);
        kept->tile =
            tess_program_tile(L->p, tess_value_bytes(L, n->out, i), TESS_ROLE_ACTIVATION, tess_tensor_name(n->out));
        kept->holders = 1;
        tess_lower_add(L, n->out, i, g->tile, kept->tile, false);
        tess_lower_release(L, n->out, i);
        L->grad[n->out->id][tess_lower_at(L, i)] = kept;
    }
}

/* Counts a node's uses of tensors if its backward rule is called, or, with `others`, if it is only recomputed, which
 * must come before a parameter's update. */
static void count_uses(tess_lower *L, const tess_node *n, bool others)
{
    for (int i = 0; i < n->inputs; i++) {
        const tess_tensor *t = n->in[i];
        if (!t || (L->wants[t->id] && !L->wants[n->out->id]) != others) continue;
        if (others && (t->kind != TESS_KIND_PARAM || !L->pending[t->id] || tess_lower_group(L, n) < 0)) continue;
        L->pending[t->id] += (int)L->micros;
        for (int64_t m = 0; m < L->micros; m++) L->growing[t->id][m]++;
    }
}

void tess_lower_count(tess_lower *L, const bool *wanted)
{
    for (int others = 0; others < 2; others++)
        for (int k = 0; k < L->g->nodes; k++)
            if (wanted[k]) count_uses(L, L->g->node[k], others);
    for (int k = 0; k < L->g->params; k++) L->alone[L->g->param[k]->id] = L->growing[L->g->param[k]->id][0] == 1;
    /* From stage 2 on no rank keeps a whole gradient from micro-batch to micro-batch, if one rule makes it. */
    bool early = L->grid->stage >= 2 && L->micros > 1 && !L->conf->deterministic && !L->conf->layout.by_layer &&
                 !L->conf->shares;
    for (int k = 0; k < L->g->params && early && !L->conf->keep_gradients; k++) {
        const tess_tensor *p = L->g->param[k];
        L->early[p->id] =
            p->held->on.sliced && !p->held->frozen && !p->held->on.shared && !p->held->on.absent && L->alone[p->id];
    }
}

void tess_lower_forward(tess_lower *L, int first, int end, const bool *wanted)
{
    const int far = end + L->conf->layout.late_ahead * (end - first), last = far < L->g->nodes ? far : L->g->nodes;
    for (int k = first; k < last && L->late_norm; k++)
        for (int i = 0; wanted[k] && i < L->g->node[k]->inputs; i++) {
            tess_tensor *p = L->g->node[k]->in[i];
            if (p && p->kind == TESS_KIND_PARAM) tess_lower_late(L, p);
        }
    L->stretch++;
    forward(L, first, end, wanted);
}

/* The backward of a run [first, last], behind the forward of what is to be made `again`, if anything is. */
static void backward_run(tess_lower *L, int first, int last, const bool *wanted, const bool *put, const bool *again)
{
    const int step = first == last ? L->row_tiles : 1;
    for (int i = 0; i < L->row_tiles; i += step) {
        L->recomputing = true;
        for (int k = first; k <= last && again; k++)
            if (again[k]) forward_tiles(L, L->g->node[k], i, i + step);
        L->recomputing = false;
        for (int k = last; k >= first; k--)
            if (wanted[k] && tess_wants_gradient(L, L->g->node[k]->out) && !(put && put[k]))
                backward_tiles(L, L->g->node[k], i, i + step);
    }
    for (int k = last; k >= first; k--) {
        const bool wants = tess_wants_gradient(L, L->g->node[k]->out);
        if (!wanted[k] || (!wants && tess_lower_group(L, L->g->node[k]) < 0)) continue;
        if (wants && put && put[k])
            put_off(L, L->g->node[k]);
        else
            tess_lower_end_uses(L, L->g->node[k]);
    }
}

void tess_lower_backward(tess_lower *L, int first, int end, const bool *wanted, const bool *put)
{
    TESS_FREED bool *again = tess_alloc((size_t)L->g->nodes + 1);
    for (int k = end - 1, run; k >= first; k = run - 1) {
        run = k;
        if (!wanted[k]) continue;
        int s = tess_lower_group(L, L->g->node[k]);
        if (!tess_wants_gradient(L, L->g->node[k]->out)) {
            if (s >= 0) tess_lower_end_uses(L, L->g->node[k]);
            continue;
        }
        run = run_begin(L, k, first);
        bool goes_on = k + 1 < end && (s < 0 ? L->g->node[k + 1]->block == L->g->node[k]->block
                                             : tess_lower_group(L, L->g->node[k + 1]) == s);
        if (!goes_on) L->stretch++;
        const bool recomputes = s >= 0 && s != L->recomputed;
        if (recomputes) {
            int from = k;
            while (from > 0 && tess_lower_group(L, L->g->node[from - 1]) == s) from--;
            tess_lower_find_recomputed(L, from, k, wanted, again);
            L->recomputing = true;
            forward(L, from, run, again);
            L->recomputing = false;
        }
        L->recomputed = s;
        backward_run(L, run, k, wanted, put, recomputes ? again : NULL);
    }
}

void tess_lower_losses(tess_lower *L)
{
    if (L->output->kind == TESS_KIND_LOSS) L->loss = tess_lower_loss(L);
}
