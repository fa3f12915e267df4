/* Lowering: from nodes over tensors to tasks over tiles.
 *
 * A step is its micro-batches one after the other, each forward then backward, and the optimizer's tasks as soon as a
 * parameter's gradient is complete in the last of them. Within a micro-batch the order is op by op, and in an op row
 * tile by row tile: the row tiles of an op are independent, and that is where the parallelism comes from.
 *
 * Values. Each (tensor, row tile) has an instance, the tile that forward wrote last. Activation checkpointing needs
 * nothing more: before a block's backward its forward is emitted again and makes new instances; the old ones had their
 * last reader in the forward pass, so their memory went back then.
 *
 * Gradients. The first rule that reaches a tensor writes its gradient, later ones add. An op that only passes a
 * gradient on (a residual addition) shares the tile between tensors; who must add to a shared one copies it first. */
#include "graph_impl.h"
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
    return (L->micro * L->g->batch + i * L->g->tile_sequences) * t->dim[1];
}

void *tess_arg_copy(tess_lower *L, const void *arg, size_t bytes)
{
    return memcpy(tess_arena_get(L->p->arena, bytes), arg, bytes);
}

static size_t value_bytes(const tess_lower *L, const tess_tensor *t, int i)
{
    return (size_t)(tess_rows(L, t, i) * tess_width(t)) * tess_dtype_size(L->dtype);
}

tess_use tess_in(tess_lower *L, const tess_tensor *t, int i)
{
    tess_tile *tile = t->kind == TESS_KIND_INPUT ? L->input[t->id][L->micro * L->row_tiles + i] : L->value[t->id][i];
    TESS_ASSERT(tile);
    return (tess_use){tile, TESS_R};
}

tess_use tess_out(tess_lower *L, const tess_tensor *t, int i)
{
    size_t bytes = value_bytes(L, t, i);
    tess_tile *tile;
    if (t == L->output) {
        tile = tess_program_tile(L->p, bytes, TESS_ROLE_INPUT, t->name);
        L->result[L->micro * L->row_tiles + i] = tile;
    } else
        tile = tess_program_slot(L->p, bytes, TESS_ROLE_ACTIVATION, t->name);
    return (tess_use){L->value[t->id][i] = tile, TESS_W};
}

tess_use tess_aux_out(tess_lower *L, const tess_node *n, int i, size_t bytes)
{
    tess_tile *tile = tess_program_slot(L->p, bytes, TESS_ROLE_ACTIVATION, n->out->name);
    return (tess_use){L->aux[n->id][i] = tile, TESS_W};
}

tess_use tess_aux_in(tess_lower *L, const tess_node *n, int i)
{
    return (tess_use){L->aux[n->id][i], TESS_R};
}

tess_use tess_weight(const tess_tensor *p, int64_t tile)
{
    return (tess_use){p->tile[tile].weight, TESS_R};
}

tess_use tess_scratch_use(tess_lower *L, size_t bytes)
{
    int k = 0;
    while (L->scratch[k] && tess_tile_bytes(L->scratch[k]) != bytes) k++;
    TESS_ASSERT(k + 1 < (int)(sizeof L->scratch / sizeof L->scratch[0]));
    if (!L->scratch[k]) L->scratch[k] = tess_program_tile(L->p, bytes, TESS_ROLE_SCRATCH, "scratch");
    return (tess_use){L->scratch[k], TESS_SCRATCH};
}

bool tess_wants_gradient(const tess_lower *L, const tess_tensor *t)
{
    return L->conf->train && t->kind != TESS_KIND_INPUT;
}

tess_use tess_grad_read(tess_lower *L, const tess_tensor *t, int i)
{
    TESS_ASSERT(L->grad[t->id][i]);
    return (tess_use){L->grad[t->id][i]->tile, TESS_R};
}

static struct tess_grad *new_grad(tess_lower *L, const tess_tensor *t, int i)
{
    struct tess_grad *g = tess_arena_get(L->p->arena, sizeof *g);
    g->tile = tess_program_slot(L->p, value_bytes(L, t, i), TESS_ROLE_ACTIVATION, t->name);
    g->holders = 1;
    return L->grad[t->id][i] = g;
}

static void add_into(tess_lower *L, const tess_tensor *t, int i, tess_tile *from, tess_tile *to, bool acc)
{
    tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = tess_rows(L, t, i) * tess_width(t), .acc = acc);
    TESS_EMIT(L, &tess_add_into[L->dtype], a, {from, TESS_R}, {to, acc ? TESS_RW : TESS_W});
}

tess_use tess_grad_write(tess_lower *L, const tess_tensor *t, int i, bool *acc)
{
    struct tess_grad *g = L->grad[t->id][i];
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
    struct tess_grad *g = L->grad[from->id][i];
    if (!L->grad[t->id][i]) {
        g->holders++;
        L->grad[t->id][i] = g;
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
    *touched = true;
    return (tess_use){p->tile[tile].gradient, *acc ? TESS_RW : TESS_W};
}

tess_use tess_loss_out(tess_lower *L)
{
    if (L->nlosses == L->losses_room) {
        L->losses_room = L->losses_room ? 2 * L->losses_room : 64;
        L->losses = tess_realloc(L->losses, (size_t)L->losses_room * sizeof *L->losses);
    }
    tess_tile *t = tess_program_tile(L->p, 2 * sizeof(double), TESS_ROLE_SCALAR, "loss");
    return (tess_use){L->losses[L->nlosses++] = t, TESS_W};
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
        TESS_EMIT(L, &tess_finite[L->dtype], a, {L->value[n->out->id][i], TESS_R});
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

/* Which stretch of nodes is recomputed together; -1: none. */
static int segment(const tess_lower *L, const tess_node *n)
{
    int every = L->conf->recompute_every;
    return every > 0 && n->block > 0 ? (n->block - 1) / every : -1;
}

/* Emits the forward of a segment's nodes [first, last] again, as far as their backward reads it. */
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

static void release_grad(tess_lower *L, const tess_tensor *t, int i)
{
    if (!L->grad[t->id][i]) return;
    L->grad[t->id][i]->holders--;
    L->grad[t->id][i] = NULL;
}

static void backward(tess_lower *L, const tess_node *n, bool last_micro)
{
    if (n->op->backward)
        for (int i = 0; i < L->row_tiles; i++) n->op->backward(L, n, i);
    for (int i = 0; i < L->row_tiles; i++) release_grad(L, n->out, i);
    for (int k = 0; k < n->inputs; k++) {
        tess_tensor *p = n->in[k];
        if (!p || p->kind != TESS_KIND_PARAM || --L->pending[p->id] > 0) continue;
        if (last_micro && !L->conf->keep_gradients) tess_lower_update(L, p);
    }
}

static void count_pending(tess_lower *L, const bool *wanted)
{
    memset(L->pending, 0, (size_t)L->g->tensors * sizeof *L->pending);
    for (int k = 0; k < L->g->nodes; k++)
        for (int i = 0; wanted[k] && i < L->g->node[k]->inputs; i++)
            if (L->g->node[k]->in[i]) L->pending[L->g->node[k]->in[i]->id]++;
}

static void micro_batch(tess_lower *L, const bool *wanted, bool last_micro)
{
    tess_graph *g = L->g;
    for (int k = 0; k < g->nodes; k++)
        if (wanted[k]) forward(L, g->node[k]);
    if (last_micro && L->nlosses) L->loss = tess_lower_sum(L, L->losses, L->nlosses, 2, "loss");
    if (!L->conf->train) return;
    count_pending(L, wanted);
    int current = -1;
    for (int k = g->nodes - 1; k >= 0; k--) {
        if (!wanted[k]) continue;
        int s = segment(L, g->node[k]);
        if (s >= 0 && s != current) {
            int first = k;
            while (first > 0 && segment(L, g->node[first - 1]) == s) first--;
            recompute(L, first, k, wanted);
        }
        current = s;
        backward(L, g->node[k], last_micro);
    }
}

static void make_inputs(tess_lower *L)
{
    int64_t micros = L->conf->micro;
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

static void check_weights(tess_lower *L, const bool *wanted)
{
    count_pending(L, wanted);
    for (int k = 0; k < L->g->params; k++) {
        const tess_tensor *p = L->g->param[k];
        for (int64_t j = 0; j < p->tiles && L->pending[p->id]; j++) {
            tess_tile *t = p->tile[j].weight;
            tess_dtype type = t == p->tile[j].master ? TESS_F32 : L->dtype;
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
    size_t tensors = (size_t)L->g->tensors, nodes = (size_t)L->g->nodes, tiles = (size_t)L->row_tiles;
    L->value = tess_arena_get(a, tensors * sizeof *L->value);
    L->grad = tess_arena_get(a, tensors * sizeof *L->grad);
    L->touched = tess_arena_get(a, tensors * sizeof *L->touched);
    L->pending = tess_arena_get(a, tensors * sizeof *L->pending);
    for (size_t k = 0; k < tensors; k++) {
        L->value[k] = tess_arena_get(a, tiles * sizeof **L->value);
        L->grad[k] = tess_arena_get(a, tiles * sizeof **L->grad);
        L->touched[k] = tess_arena_get(a, (size_t)L->g->tensor[k]->tiles * sizeof **L->touched);
    }
    L->aux = tess_arena_get(a, (nodes + 1) * sizeof *L->aux);
    for (size_t k = 0; k < nodes; k++) L->aux[k] = tess_arena_get(a, tiles * sizeof **L->aux);
    L->result = tess_arena_get(a, tiles * (size_t)L->conf->micro * sizeof *L->result);
}

void tess_lower_step(const tess_tensor *output, const tess_step_conf *conf, tess_lowered *out)
{
    tess_graph *g = output->g;
    tess_lower L = {.g = g, .p = tess_program_new(), .conf = conf, .dtype = g->conf.dtype, .output = output};
    L.row_tiles = (int)((g->batch + g->tile_sequences - 1) / g->tile_sequences);
    make_tables(&L);
    make_inputs(&L);
    bool *wanted = tess_alloc((size_t)g->nodes + 1);
    mark(output, wanted);
    if (conf->check_finite) check_weights(&L, wanted);
    for (L.micro = 0; L.micro < conf->micro; L.micro++) {
        L.p->slot = 0;
        micro_batch(&L, wanted, L.micro + 1 == conf->micro);
    }
    tess_tile *norm = conf->train && !conf->keep_gradients ? tess_lower_norm(&L) : NULL;
    free(wanted);
    free(L.losses);
    tess_program_finish(L.p, conf->keep_gradients);
    *out = (tess_lowered){L.p, L.input, L.result, L.loss, norm, L.row_tiles};
}
