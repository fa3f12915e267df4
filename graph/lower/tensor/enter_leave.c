/* enter, leave: what stands between tensors that the ranks of the tensor dimension have in different ways. No model has
 * them: tensor_parallel.c and divide.c do. A rank has of a tensor
 *
 *     all       what the others have too;
 *     a part    of its columns, and of its gradient; or of a sum, and all of its gradient (`apart`);
 *     its rows  of each row tile (`divided`).
 *
 * enter is before what takes all rows, leave behind it. Where a part is on one side, parts add up on the way to the
 * other: forward when they leave, backward when they have entered. */
#include "graph/lower/lower.h"
#include "graph/lower/tensor/regions_impl.h"
#include <string.h>

tess_node *tess_node_insert(tess_graph *g, int at, const tess_op *op, tess_tensor *in, int block)
{
    tess_node *n = tess_arena_get(g->arena, sizeof *n);
    tess_tensor *out = tess_arena_get(g->arena, sizeof *out);
    *out = *in;
    out->id = g->tensors;
    out->producer = n;
    g->tensor = tess_realloc(g->tensor, (size_t)(g->tensors + 1) * sizeof *g->tensor);
    g->tensor[g->tensors++] = out;
    *n = (tess_node){.op = op, .block = block, .inputs = 1, .in = {in}, .out = out};
    g->node = tess_realloc(g->node, (size_t)(g->nodes + 1) * sizeof *g->node);
    memmove(g->node + at + 1, g->node + at, (size_t)(g->nodes - at) * sizeof *g->node);
    g->node[at] = n;
    g->nodes++;
    for (int k = at; k < g->nodes; k++) g->node[k]->id = k;
    return n;
}

/* A row tile of a tensor: all rows of it, where those of this rank begin, and how many it has. */
struct rows {
    int64_t all, first, own, width;
    size_t size;
    tess_dtype type;
};

static struct rows rows_of(const tess_lower *L, const tess_tensor *t, int i)
{
    const int64_t all = tess_rows_of_all(L, t, i), first = tess_grid_rows(L->grid, all, tess_grid_tensor(L->grid));
    return (struct rows){all,
                         first,
                         tess_grid_rows(L->grid, all, tess_grid_tensor(L->grid) + 1) - first,
                         tess_width(t),
                         tess_dtype_size(tess_dtype_of(L, t)),
                         tess_dtype_of(L, t)};
}

/* This rank's rows, out of a tile that has all. */
static void take(tess_lower *L, const struct rows *r, tess_tile *all, tess_tile *own)
{
    const size_t row = (size_t)r->width * r->size;
    tess_copy_arg *a = TESS_ARG(L, tess_copy_arg, .from = (size_t)r->first * row, .bytes = (size_t)r->own * row);
    TESS_EMIT(L, &tess_copy[TESS_F32], a, {all, TESS_R}, {own, TESS_W});
}

/* All rows come together in a tile, this rank's too. */
static void give(tess_lower *L, const struct rows *r, tess_tile *own, tess_tile *all)
{
    const size_t row = (size_t)r->width * r->size;
    tess_copy_arg *a = TESS_ARG(L, tess_copy_arg, .to = (size_t)r->first * row, .bytes = (size_t)r->own * row);
    TESS_EMIT(L, &tess_copy[TESS_F32], a, {own, TESS_R}, {all, TESS_W});
    tess_lower_all_gather_rows(L, all, r->all, r->width);
}

static void pass(tess_lower *L, const tess_node *n, int i)
{
    L->value[n->out->id][tess_lower_place(L, n->out, i)] = L->value[n->in[0]->id][tess_lower_place(L, n->out, i)];
}

/* Emits what makes the gradient of the input's row tile of `from`, where it is to be added to what is there. */
static void into_gradient(tess_lower *L, const tess_node *n, int i, const struct rows *r, tess_tile *from,
                          void (*make)(tess_lower *, const struct rows *, tess_tile *, tess_tile *))
{
    bool acc;
    const tess_tensor *x = n->in[0];
    tess_use to = tess_grad_write(L, x, i, &acc);
    tess_tile *made = acc ? tess_slot_between(L, tess_value_bytes(L, x, i), x->name) : to.tile;
    make(L, r, from, made);
    if (acc) tess_lower_add(L, x, i, made, to.tile, true);
}

/* What has no row tiles has one turn. */
static bool is_done(const tess_node *n, int i)
{
    return tess_is_whole(n->out) && i > 0;
}
/* And there may be no gradient of what was made of tensors of any rank. */
static bool is_idle(const tess_lower *L, const tess_node *n, int i)
{
    return is_done(n, i) || (n->out->nd && !tess_has_gradient(L, n->out, i));
}

/* A copy of a gradient that others read as it is becomes the sum over ranks. */
static void sum_copy(tess_lower *L, const struct rows *r, tess_tile *part, tess_tile *all)
{
    const size_t bytes = (size_t)(r->all * r->width) * r->size;
    TESS_EMIT(L, &tess_copy[TESS_F32], TESS_ARG(L, tess_copy_arg, .bytes = bytes), {part, TESS_R}, {all, TESS_W});
    tess_lower_all_reduce(L, all, r->all * r->width, r->type);
}

static void enter_forward(tess_lower *L, const tess_node *n, int i)
{
    const struct rows r = rows_of(L, n->out, i);
    if (is_done(n, i)) return;
    if (!n->in[0]->divided) {
        pass(L, n, i);
        return;
    }
    tess_tile *own = tess_in(L, n->in[0], i).tile;
    give(L, &r, own, tess_out(L, n->out, i).tile);
}

static void enter_backward(tess_lower *L, const tess_node *n, int i)
{
    const struct rows r = rows_of(L, n->out, i);
    if (is_idle(L, n, i)) return;
    const bool shared = L->grad[n->out->id][tess_lower_place(L, n->out, i)]->holders > 1;
    tess_tile *grad = tess_grad_read(L, n->out, i).tile;
    if (n->out->apart && !n->in[0]->divided && shared) {
        into_gradient(L, n, i, &r, grad, sum_copy);
        return;
    }
    if (n->out->apart && n->in[0]->divided) tess_lower_reduce_scatter_rows(L, grad, r.all, r.width);
    if (n->out->apart && !n->in[0]->divided) tess_lower_all_reduce(L, grad, r.all * r.width, r.type);
    if (n->in[0]->divided)
        into_gradient(L, n, i, &r, grad, take);
    else
        tess_grad_pass(L, n->out, n->in[0], i);
}

static void leave_forward(tess_lower *L, const tess_node *n, int i)
{
    const struct rows r = rows_of(L, n->out, i);
    if (is_done(n, i)) return;
    tess_tile *part = tess_in(L, n->in[0], i).tile;
    if (n->in[0]->apart && n->out->divided) tess_lower_reduce_scatter_rows(L, part, r.all, r.width);
    if (n->in[0]->apart && !n->out->divided) tess_lower_all_reduce(L, part, r.all * r.width, r.type);
    if (n->out->divided)
        take(L, &r, part, tess_out(L, n->out, i).tile);
    else
        pass(L, n, i);
}

static void leave_backward(tess_lower *L, const tess_node *n, int i)
{
    const struct rows r = rows_of(L, n->out, i);
    if (is_idle(L, n, i)) return;
    if (n->out->divided)
        into_gradient(L, n, i, &r, tess_grad_read(L, n->out, i).tile, give);
    else
        tess_grad_pass(L, n->out, n->in[0], i);
}

const tess_op tess_op_enter = {.name = "enter",
                               .takes = "x",
                               .by_rows = true,
                               .enters = true,
                               .forward = enter_forward,
                               .backward = enter_backward};
const tess_op tess_op_leave = {.name = "leave",
                               .takes = "x",
                               .by_rows = true,
                               .leaves = true,
                               .forward = leave_forward,
                               .backward = leave_backward};
