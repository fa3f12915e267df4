/* enter, leave: the ends of a region whose columns the ranks of the tensor dimension share. A tensor passes through
 * unchanged one way; the other way the parts that ranks have of it add up. No model has them:
 * graph/lower/tensor_parallel.c does. */
#include "lower.h"

static int64_t elements(const tess_lower *L, const tess_tensor *t, int i)
{
    return tess_rows(L, t, i) * tess_width(t);
}

static void pass_forward(tess_lower *L, const tess_node *n, int i)
{
    int64_t at = L->micro * L->row_tiles + i;
    L->value[n->out->id][at] = L->value[n->in[0]->id][at];
}

static void pass_backward(tess_lower *L, const tess_node *n, int i)
{
    tess_grad_pass(L, n->out, n->in[0], i);
}

static void sum_forward(tess_lower *L, const tess_node *n, int i)
{
    pass_forward(L, n, i);
    tess_lower_all_sum(L, tess_in(L, n->out, i).tile, elements(L, n->out, i), L->dtype);
}

static void sum_backward(tess_lower *L, const tess_node *n, int i)
{
    tess_lower_all_sum(L, tess_grad_read(L, n->out, i).tile, elements(L, n->out, i), L->dtype);
    pass_backward(L, n, i);
}

const tess_op tess_op_enter = {
    .name = "enter", .takes = "x", .by_rows = true, .enters = true, .forward = pass_forward, .backward = sum_backward};
const tess_op tess_op_leave = {
    .name = "leave", .takes = "x", .by_rows = true, .leaves = true, .forward = sum_forward, .backward = pass_backward};
