/* Lowering: from nodes over tensors to tasks over tiles.
 *
 * A step is its micro-batches, forward then backward, and the optimizer's tasks as soon as a parameter's gradient is
 * complete. There are two orders. Batch by batch, one micro-batch after the other, holds the activations of one at a
 * time. Layer by layer, all of them through one block before the next, holds those of all, but meets each weight and
 * each gradient once: less traffic where states flow and activations are small. Within a micro-batch and block the
 * order is op by op, and in an op row tile by row tile: the row tiles of an op are independent, and that is where the
 * parallelism comes from.
 *
 * Both orders give the same bits. A parameter's gradient adds up use by use, and within a use micro-batch by
 * micro-batch. Layer by layer that is the order of the tasks; batch by batch the later uses of a parameter that is used
 * twice wait until the end of the step.
 *
 * Values. Each (tensor, micro-batch, row tile) has an instance, the tile that forward wrote last. Activation
 * checkpointing needs nothing more: before a block's backward its forward is emitted again and makes new instances; the
 * old ones had their last reader in the forward pass, so their memory went back then.
 *
 * Gradients. The first rule that reaches a tensor writes its gradient, later ones add. An op that only passes a
 * gradient on (a residual addition) shares the tile between tensors; who must add to a shared one copies it first. */
#include "lower_impl.h"
#include <stdlib.h>
#include <string.h>

/* ---- what ops call ---- */

static int64_t sequences(const tess_lower *L, int i)
{
    int64_t s = L->g->tile_sequences, left = L->g->batch - i * s;
    return left < s ? left : s;
}

int64_t tess_rows(const tess_lower *L, const tess_tensor *t, int i)
{
    return sequences(L, i) * t->dim[1];
}

int64_t tess_first_row(const tess_lower *L, const tess_tensor *t, int i)
{
    return ((L->micro0 + L->micro) * L->g->batch + i * L->g->tile_sequences) * t->dim[1];
}

void *tess_arg_copy(tess_lower *L, const void *arg, size_t bytes)
{
    return memcpy(tess_arena_get(L->p->arena, bytes), arg, bytes);
}

/* The place of row tile i of this micro-batch in the tables. */
static int64_t at(const tess_lower *L, int i)
{
    return L->micro * L->row_tiles + i;
}

static size_t value_bytes(const tess_lower *L, const tess_tensor *t, int i)
{
    return (size_t)(tess_rows(L, t, i) * tess_width(t)) * tess_dtype_size(L->dtype);
}

tess_use tess_in(tess_lower *L, const tess_tensor *t, int i)
{
    tess_tile *tile = t->kind == TESS_KIND_INPUT ? L->input[t->id][at(L, i)] : L->value[t->id][at(L, i)];
    L->uses[t->id] = true;
    TESS_ASSERT(tile);
    return (tess_use){tile, TESS_R};
}

tess_use tess_out(tess_lower *L, const tess_tensor *t, int i)
{
    size_t bytes = value_bytes(L, t, i);
    tess_tile *tile;
    if (t == L->output) {
        tile = tess_program_tile(L->p, bytes, TESS_ROLE_INPUT, t->name);
        L->result[at(L, i)] = tile;
    } else
        tile = tess_program_slot(L->p, bytes, TESS_ROLE_ACTIVATION, t->name);
    return (tess_use){L->value[t->id][at(L, i)] = tile, TESS_W};
}

tess_use tess_aux_out(tess_lower *L, const tess_node *n, int i, size_t bytes)
{
    tess_tile *tile = tess_program_slot(L->p, bytes, TESS_ROLE_ACTIVATION, n->out->name);
    return (tess_use){L->aux[n->id][at(L, i)] = tile, TESS_W};
}

tess_use tess_aux_in(tess_lower *L, const tess_node *n, int i)
{
    return (tess_use){L->aux[n->id][at(L, i)], TESS_R};
}

tess_dtype tess_real(const tess_lower *L)
{
    return L->dtype;
}

bool tess_trains(const tess_lower *L)
{
    return L->conf->train;
}

void *tess_lower_get(tess_lower *L, size_t bytes)
{
    return tess_arena_get(L->p->arena, bytes);
}

tess_tile *tess_tile_between(tess_lower *L, size_t bytes, const char *label)
{
    return tess_program_tile(L->p, bytes, TESS_ROLE_ACTIVATION, label);
}

tess_tile *tess_slot_between(tess_lower *L, size_t bytes, const char *label)
{
    return tess_program_slot(L->p, bytes, TESS_ROLE_ACTIVATION, label);
}

void *tess_node_room(tess_lower *L, const tess_node *n, size_t bytes)
{
    if (!L->room[n->id]) L->room[n->id] = tess_arena_get(L->p->arena, bytes);
    return L->room[n->id];
}

tess_use tess_weight(tess_lower *L, const tess_tensor *p, int64_t tile)
{
    L->uses[p->id] = true;
    return (tess_use){p->held->on.gathered ? tess_lower_gather(L, p, tile) : p->held->tile[tile].weight, TESS_R};
}

tess_use tess_scratch_use(tess_lower *L, size_t bytes)
{
    int k = 0;
    while (k < L->scratches && tess_tile_bytes(L->scratch[k]) != bytes) k++;
    if (k == L->scratches) {
        L->scratch = tess_realloc(L->scratch, (size_t)(k + 1) * sizeof *L->scratch);
        L->scratch[L->scratches++] = tess_program_tile(L->p, bytes, TESS_ROLE_SCRATCH, "scratch");
    }
    return (tess_use){L->scratch[k], TESS_SCRATCH};
}

bool tess_wants_gradient(const tess_lower *L, const tess_tensor *t)
{
    return L->conf->train && t->kind != TESS_KIND_INPUT;
}

tess_use tess_grad_read(tess_lower *L, const tess_tensor *t, int i)
{
    TESS_ASSERT(L->grad[t->id][at(L, i)]);
    return (tess_use){L->grad[t->id][at(L, i)]->tile, TESS_R};
}

static struct tess_grad *new_grad(tess_lower *L, const tess_tensor *t, int i)
{
    struct tess_grad *g = tess_arena_get(L->p->arena, sizeof *g);
    g->tile = tess_program_slot(L->p, value_bytes(L, t, i), TESS_ROLE_ACTIVATION, t->name);
    g->holders = 1;
    return L->grad[t->id][at(L, i)] = g;
}

static void add_into(tess_lower *L, const tess_tensor *t, int i, tess_tile *from, tess_tile *to, bool acc)
{
    tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = tess_rows(L, t, i) * tess_width(t), .acc = acc);
    TESS_EMIT(L, &tess_add_into[L->dtype], a, {from, TESS_R}, {to, acc ? TESS_RW : TESS_W});
}

tess_use tess_grad_write(tess_lower *L, const tess_tensor *t, int i, bool *acc)
{
    struct tess_grad *g = L->grad[t->id][at(L, i)];
    *acc = g != NULL;
    if (!g) return (tess_use){new_grad(L, t, i)->tile, TESS_W};
    if (g->holders > 1) {
        g->holders--;
        tess_tile *shared = g->tile;
        g = new_grad(L, t, i);
        add_into(L, t, i, shared, g->tile, false);
    }
    return (tess_use){g->tile, TESS_RW};
}

void tess_grad_pass(tess_lower *L, const tess_tensor *from, const tess_tensor *t, int i)
{
    struct tess_grad *g = L->grad[from->id][at(L, i)];
    if (!L->grad[t->id][at(L, i)]) {
        g->holders++;
        L->grad[t->id][at(L, i)] = g;
        return;
    }
    bool acc;
    tess_use to = tess_grad_write(L, t, i, &acc);
    add_into(L, t, i, g->tile, to.tile, acc);
}

tess_use tess_param_grad(tess_lower *L, const tess_tensor *p, int64_t tile, bool *acc)
{
    bool *touched = &L->touched[p->id][tile];
    *acc = *touched;
    if (L->conf->deterministic && !p->held->on.shared) {
        *touched = true;
        tess_tile *leaf = tess_lower_leaf(L, p, tile, acc);
        return (tess_use){leaf, *acc ? TESS_RW : TESS_W};
    }
    *touched = true;
    if (L->early[p->id]) {
        *acc = L->begun[p->id][tile] == L->micro;
        L->begun[p->id][tile] = L->micro;
    }
    return (tess_use){p->held->tile[tile].gradient, *acc ? TESS_RW : TESS_W};
}

tess_use tess_loss_out(tess_lower *L)
{
    if (L->nlosses == L->losses_room) {
        L->losses_room = L->losses_room ? 2 * L->losses_room : 64;
        L->losses = tess_realloc(L->losses, (size_t)L->losses_room * sizeof *L->losses);
    }
    tess_tile *t = tess_program_tile(L->p, 2 * sizeof(double), TESS_ROLE_SCALAR, "loss");
    if (tess_grid_tensor(L->grid) == 0) L->losses[L->nlosses++] = t; /* the others have the same */
    return (tess_use){t, TESS_W};
}

void tess_emit(tess_lower *L, tess_codelet *cl, const void *arg, const tess_use *use, unsigned nuse)
{
    tess_program_add(L->p, cl, arg, use, nuse, L->recomputing);
}

/* ---- the passes ---- */

static void forward(tess_lower *L, const tess_node *n)
{
    for (int i = 0; i < L->row_tiles; i++) {
        n->op->forward(L, n, i);
        if (!L->conf->check_finite || n->out->kind == TESS_KIND_LOSS) continue;
        tess_count_arg *a =
            TESS_ARG(L, tess_count_arg, .n = tess_rows(L, n->out, i) * tess_width(n->out), .name = n->out->name);
        TESS_EMIT(L, &tess_finite[L->dtype], a, {L->value[n->out->id][at(L, i)], TESS_R});
    }
}

/* The nodes that `output` depends on, marked in `wanted`. */
static void mark(const tess_tensor *t, bool *wanted)
{
    const tess_node *n = t->producer;
    if (!n || wanted[n->id]) return;
    wanted[n->id] = true;
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k]) mark(n->in[k], wanted);
}

/* Which group of blocks is recomputed together; -1: none. */
static int group_of(const tess_lower *L, const tess_node *n)
{
    int every = L->conf->recompute_every;
    return every > 0 && n->block > 0 ? (n->block - 1) / every : -1;
}

/* Emits the forward of a group's nodes [first, last] again, as far as their backward reads it. */
static void recompute(tess_lower *L, int first, int last, const bool *wanted)
{
    bool *need = tess_alloc((size_t)L->g->tensors), *again = tess_alloc((size_t)L->g->nodes);
    for (int k = first; k <= last; k++) {
        const tess_node *n = L->g->node[k];
        if (!wanted[k]) continue;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i] && (n->op->reads & (1u << i))) need[n->in[i]->id] = true;
        if (n->op->reads & TESS_READS_OUT) need[n->out->id] = true;
    }
    for (int k = last; k >= first; k--) {
        const tess_node *n = L->g->node[k];
        if (!wanted[k] || !(need[n->out->id] || (n->op->reads & TESS_READS_AUX))) continue;
        again[k] = true;
        for (int i = 0; i < n->inputs; i++)
            if (n->in[i]) need[n->in[i]->id] = true;
    }
    L->recomputing = true;
    for (int k = first; k <= last; k++)
        if (again[k]) forward(L, L->g->node[k]);
    L->recomputing = false;
    free(need);
    free(again);
}

void tess_lower_release(tess_lower *L, const tess_tensor *t, int i)
{
    if (!L->grad[t->id][at(L, i)]) return;
    L->grad[t->id][at(L, i)]->holders--;
    L->grad[t->id][at(L, i)] = NULL;
}

static void backward(tess_lower *L, const tess_node *n)
{
    if (n->op->backward)
        for (int i = 0; i < L->row_tiles; i++) n->op->backward(L, n, i);
    for (int i = 0; i < L->row_tiles; i++) tess_lower_release(L, n->out, i);
    for (int k = 0; k < n->inputs; k++) {
        tess_tensor *p = n->in[k];
        if (!p || p->kind != TESS_KIND_PARAM) continue;
        bool grown = --L->growing[p->id][L->micro] == 0;
        if (grown && L->conf->deterministic && !p->held->on.shared) tess_lower_grown(L, p);
        if (grown && L->early[p->id]) tess_lower_give_up(L, p);
        if (--L->pending[p->id] > 0 || p->held->on.shared) continue; /* a shared one's waits for the end of the step */
        if (!L->early[p->id]) tess_lower_reduce(L, p);
        if (!L->conf->keep_gradients) tess_lower_update(L, p);
    }
}

/* Puts a node's backward off to the end of the step; its gradient is copied, since its tile serves the next
 * micro-batch. */
static void put_off(tess_lower *L, const tess_node *n)
{
    for (int i = 0; i < L->row_tiles; i++) {
        struct tess_grad *g = L->grad[n->out->id][at(L, i)], *kept = tess_arena_get(L->p->arena, sizeof *kept);
        kept->tile = tess_program_tile(L->p, value_bytes(L, n->out, i), TESS_ROLE_ACTIVATION, tess_tensor_name(n->out));
        kept->holders = 1;
        add_into(L, n->out, i, g->tile, kept->tile, false);
        tess_lower_release(L, n->out, i);
        L->grad[n->out->id][at(L, i)] = kept;
    }
}

/* The nodes whose backward is put off: those that use a parameter after (in the backward pass) another did. Only one
 * without a gradient to pass on can wait; where another kind would have to, the two orders differ, which is false. */
static bool find_put_off(const tess_lower *L, const bool *wanted, bool *put)
{
    bool agree = true;
    int *last = tess_alloc((size_t)L->g->tensors * sizeof *last); /* node + 1 that uses the parameter last */
    for (int k = L->g->nodes - 1; k >= 0; k--) {
        const tess_node *n = L->g->node[k];
        bool passes = false;
        for (int i = 0; wanted[k] && i < n->inputs; i++) {
            const tess_tensor *t = n->in[i];
            if (!t) continue;
            passes |= t->kind == TESS_KIND_ACTIVATION;
            if (t->kind == TESS_KIND_PARAM && last[t->id]) put[k] = true;
            if (t->kind == TESS_KIND_PARAM) last[t->id] = k + 1;
        }
        if (!put[k] || !passes) continue;
        agree = put[k] = false;
    }
    free(last);
    return agree;
}

/* How many backward rules of the step add to each parameter's gradient. */
void tess_lower_count(tess_lower *L, const bool *wanted)
{
    for (int k = 0; k < L->g->nodes; k++)
        for (int i = 0; wanted[k] && i < L->g->node[k]->inputs; i++) {
            const tess_tensor *t = L->g->node[k]->in[i];
            if (!t) continue;
            L->pending[t->id] += (int)L->micros;
            for (int64_t m = 0; m < L->micros; m++) L->growing[t->id][m]++;
        }
    /* From stage 2 on no rank keeps a whole gradient from micro-batch to micro-batch, if one rule makes it. */
    bool early = L->grid->stage >= 2 && L->micros > 1 && !L->conf->deterministic && !L->conf->by_layer;
    for (int k = 0; k < L->g->params && early && !L->conf->keep_gradients; k++) {
        const tess_tensor *p = L->g->param[k];
        L->early[p->id] = p->held->on.sliced && !p->held->on.shared && !p->held->on.absent && L->growing[p->id][0] == 1;
    }
}

/* Nodes of one block that follow each other are a stretch: those from `first` on, up to the one returned. */
static int stretch_end(const tess_lower *L, int first)
{
    int end = first + 1;
    while (end < L->g->nodes && L->g->node[end]->block == L->g->node[first]->block) end++;
    return end;
}

void tess_lower_forward(tess_lower *L, int first, int end, const bool *wanted)
{
    L->stretch++;
    for (int k = first; k < end; k++)
        if (wanted[k]) forward(L, L->g->node[k]);
}

/* The backward of nodes [first, end), behind the recomputation of what it reads. `put`, if any, says which must wait.
 */
static void backward_stretch(tess_lower *L, int first, int end, const bool *wanted, const bool *put)
{
    for (int k = end - 1; k >= first; k--) {
        if (!wanted[k]) continue;
        int s = group_of(L, L->g->node[k]);
        bool goes_on = k + 1 < end &&
                       (s < 0 ? L->g->node[k + 1]->block == L->g->node[k]->block : group_of(L, L->g->node[k + 1]) == s);
        if (!goes_on) L->stretch++;
        if (s >= 0 && s != L->recomputed) {
            int from = k;
            while (from > 0 && group_of(L, L->g->node[from - 1]) == s) from--;
            recompute(L, from, k, wanted);
        }
        L->recomputed = s;
        if (put && put[k])
            put_off(L, L->g->node[k]);
        else
            backward(L, L->g->node[k]);
    }
}

void tess_lower_backward(tess_lower *L, int first, int end, const bool *wanted)
{
    backward_stretch(L, first, end, wanted, NULL);
}

/* The forward of nodes [first, end) for the first micro-batch, behind the late updates of the parameters they are the
 * first to use. */
static void first_forward(tess_lower *L, int first, int end, const bool *wanted)
{
    for (int k = first; k < end && L->late_norm; k++)
        for (int i = 0; wanted[k] && i < L->g->node[k]->inputs; i++) {
            tess_tensor *p = L->g->node[k]->in[i];
            if (p && p->kind == TESS_KIND_PARAM) tess_lower_late(L, p);
        }
    tess_lower_forward(L, first, end, wanted);
}

void tess_lower_losses(tess_lower *L)
{
    if (L->output->kind == TESS_KIND_LOSS) L->loss = tess_lower_loss(L);
}

/* One micro-batch after the other, then what was put off. */
static void batch_by_batch(tess_lower *L, const bool *wanted, const bool *put)
{
    int nodes = L->g->nodes;
    for (L->micro = 0; L->micro < L->micros; L->micro++) {
        tess_program_slots(L->p, 0, true);
        for (int first = 0, end; first < nodes; first = end) {
            end = stretch_end(L, first);
            (L->micro ? tess_lower_forward : first_forward)(L, first, end, wanted);
        }
        if (L->micro + 1 == L->micros) tess_lower_losses(L);
        L->recomputed = -1;
        L->p->in_backward = true;
        if (L->conf->train) backward_stretch(L, 0, nodes, wanted, put);
        L->p->in_backward = false;
    }
    L->p->in_backward = true;
    for (int k = nodes - 1; k >= 0 && L->conf->train && put; k--)
        for (L->micro = 0; put[k] && L->micro < L->micros; L->micro++) backward(L, L->g->node[k]);
}

/* All micro-batches through one stretch after the other; a stretch of blocks that are recomputed together is one. */
static void layer_by_layer(tess_lower *L, const bool *wanted)
{
    int nodes = L->g->nodes, *end = tess_alloc((size_t)(nodes + 1) * sizeof *end), n = 0;
    for (int first = 0; first < nodes; first = end[n++]) {
        end[n] = stretch_end(L, first);
        while (end[n] < nodes && group_of(L, L->g->node[first]) >= 0 &&
               group_of(L, L->g->node[end[n]]) == group_of(L, L->g->node[first]))
            end[n] = stretch_end(L, end[n]);
    }
    for (int s = 0; s < n; s++)
        for (L->micro = 0; L->micro < L->micros; L->micro++)
            (L->micro ? tess_lower_forward : first_forward)(L, s ? end[s - 1] : 0, end[s], wanted);
    tess_lower_losses(L);
    L->p->in_backward = true;
    for (int s = n - 1; s >= 0 && L->conf->train; s--)
        for (L->micro = 0; L->micro < L->micros; L->micro++) {
            L->recomputed = -1;
            backward_stretch(L, s ? end[s - 1] : 0, end[s], wanted, NULL);
        }
    free(end);
}

static void make_inputs(tess_lower *L)
{
    int64_t micros = L->micros;
    L->input = tess_arena_get(L->p->arena, (size_t)L->g->tensors * sizeof *L->input);
    for (int k = 0; k < L->g->tensors; k++) {
        const tess_tensor *t = L->g->tensor[k];
        if (t->kind != TESS_KIND_INPUT) continue;
        L->input[k] = tess_arena_get(L->p->arena, (size_t)(micros * L->row_tiles) * sizeof **L->input);
        for (int64_t m = 0; m < micros * L->row_tiles; m++) {
            size_t bytes = (size_t)tess_rows(L, t, (int)(m % L->row_tiles)) * sizeof(int32_t);
            L->input[k][m] = tess_program_tile(L->p, bytes, TESS_ROLE_INPUT, t->name);
        }
    }
}

static void check_weights(tess_lower *L)
{
    for (int k = 0; k < L->g->params; k++) {
        const tess_tensor *p = L->g->param[k];
        for (int64_t j = 0; j < p->cut->tiles && (L->grid->pipeline > 1 ? !p->held->on.absent : L->pending[p->id] > 0);
             j++) {
            tess_tile *t = tess_weight(L, p, j).tile;
            tess_dtype type = p->held->copy ? L->dtype : TESS_F32;
            tess_count_arg *a = TESS_ARG(L, tess_count_arg, .name = p->name,
                                         .n = (int64_t)(tess_tile_bytes(t) / tess_dtype_size(type)));
            TESS_EMIT(L, &tess_finite[type], a, {t, TESS_R});
        }
    }
}

/* The tables by tensor and by node, in the program's arena. */
static void make_tables(tess_lower *L)
{
    tess_arena *a = L->p->arena;
    size_t tensors = (size_t)L->g->tensors, nodes = (size_t)L->g->nodes;
    size_t tiles = (size_t)(L->row_tiles * L->micros);
    L->value = tess_arena_get(a, tensors * sizeof *L->value);
    L->grad = tess_arena_get(a, tensors * sizeof *L->grad);
    L->touched = tess_arena_get(a, tensors * sizeof *L->touched);
    L->pending = tess_arena_get(a, tensors * sizeof *L->pending);
    L->updated = tess_arena_get(a, tensors * sizeof *L->updated);
    L->gather = tess_arena_get(a, tensors * sizeof *L->gather);
    L->tree = tess_arena_get(a, tensors * sizeof *L->tree);
    L->growing = tess_arena_get(a, tensors * sizeof *L->growing);
    L->early = tess_arena_get(a, tensors * sizeof *L->early);
    L->begun = tess_arena_get(a, tensors * sizeof *L->begun);
    for (size_t k = 0; k < tensors; k++) {
        const tess_cut *cut = L->g->tensor[k]->cut;
        const size_t of = cut ? (size_t)cut->tiles : 0; /* of a parameter */
        L->gather[k] = tess_arena_get(a, of * sizeof **L->gather);
        L->tree[k] = tess_arena_get(a, of * sizeof **L->tree);
        L->growing[k] = tess_arena_get(a, (size_t)L->micros * sizeof **L->growing);
        L->begun[k] = tess_arena_get(a, of * sizeof **L->begun);
        for (size_t j = 0; j < of; j++) L->begun[k][j] = -1;
        L->value[k] = tess_arena_get(a, tiles * sizeof **L->value);
        L->grad[k] = tess_arena_get(a, tiles * sizeof **L->grad);
        L->touched[k] = tess_arena_get(a, of * sizeof **L->touched);
    }
    L->room = tess_arena_get(a, (nodes + 1) * sizeof *L->room);
    L->aux = tess_arena_get(a, (nodes + 1) * sizeof *L->aux);
    for (size_t k = 0; k < nodes; k++) L->aux[k] = tess_arena_get(a, tiles * sizeof **L->aux);
    L->result = tess_arena_get(a, tiles * sizeof *L->result);
    L->uses = tess_arena_get(a, tensors * sizeof *L->uses);
}

/* The late updates alone; NULL where there are none. */
static tess_program *late_program(const tess_lower *of)
{
    if (!of->late_norm) return NULL;
    tess_lower L = *of;
    L.p = tess_program_new();
    L.updated = tess_arena_get(L.p->arena, (size_t)L.g->tensors * sizeof *L.updated);
    for (int k = 0; k < L.g->params; k++)
        if (of->updated[L.g->param[k]->id]) tess_lower_late(&L, L.g->param[k]);
    tess_program_finish(L.p, false);
    return L.p;
}

void tess_lower_step(const tess_tensor *output, const tess_step_conf *conf, tess_lowered *out)
{
    tess_graph *g = output->g;
    const tess_grid *grid = &g->conf.grid;
    tess_lower L = {
        .g = g, .p = tess_program_new(), .conf = conf, .grid = grid, .dtype = g->conf.dtype, .output = output};
    tess_grid_share(grid, conf->micro, &L.micro0, &L.micros);
    L.row_tiles = (int)((g->batch + g->tile_sequences - 1) / g->tile_sequences);
    make_tables(&L);
    make_inputs(&L);
    bool *wanted = tess_alloc((size_t)g->nodes + 1);
    mark(output, wanted);
    if (grid->pipeline == 1) tess_lower_count(&L, wanted);
    if (conf->check_finite) check_weights(&L);
    if (conf->late && conf->train && conf->optimizer.clip > 0 && !conf->keep_gradients) {
        L.late_loss = tess_program_tile(L.p, 2 * sizeof(double), TESS_ROLE_SCALAR, "loss of the step before");
        L.late_norm = tess_program_tile(L.p, sizeof(double), TESS_ROLE_SCALAR, "gradient norm of the step before");
    }
    bool *put = tess_alloc((size_t)g->nodes + 1), agree = find_put_off(&L, wanted, put);
    if (grid->pipeline > 1)
        tess_lower_pipeline(&L, wanted);
    else if (conf->by_layer && (agree || conf->deterministic) && conf->train)
        layer_by_layer(&L, wanted);
    else
        batch_by_batch(&L, wanted, L.micros > 1 && !conf->deterministic ? put : NULL);
    tess_tile *norm = conf->train && !conf->keep_gradients ? tess_lower_norm(&L) : NULL;
    free(put);
    free(wanted);
    free(L.losses);
    free(L.scratch);
    tess_program_fuse(L.p);
    tess_program_finish(L.p, conf->keep_gradients);
    *out = (tess_lowered){L.p, L.input, L.result, L.loss, norm, L.losses_exact, L.row_tiles, late_program(&L), L.uses};
}
