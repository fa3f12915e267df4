/* What the files of generic ops share: how they are described, and where tiles of their tensors are. */
#ifndef TESS_GENERIC_IMPL_H
#define TESS_GENERIC_IMPL_H
#include "graph/lower/lower.h"
#include "graph/nd.h"

/* ---- formulas (formula.c) ---- */

/* Returns a draft's value, ready for a body. */
const tess_formula *tess_draft_finish(tess_arena *arena, const tess_draft *d, int result);
/* Returns a formula of several results, which stay in registers. */
const tess_formula *tess_draft_finish_all(tess_arena *arena, const tess_draft *d, const int *result, int results,
                                          int *at);
/* It is what it loads. */
bool tess_formula_is_load(const tess_formula *f, int operand);

/* ---- describing (tensors.c) ---- */

/* Adds a node whose attributes begin with the tess_nd of its output. */
tess_tensor *tess_nd_node(tess_graph *g, const tess_op *op, tess_tensor *const *in, int inputs, const void *attributes,
                          size_t bytes);
tess_status tess_nd_infer(tess_node *n) TESS_NODISCARD;
/* All of them are tensors of any rank of one graph. */
bool tess_nd_are(const char *op, tess_tensor *const *in, int inputs);
/* Records "op: shapes: what is wrong", and returns NULL. */
tess_tensor *tess_nd_wrong(const char *op, tess_tensor *const *in, int inputs, const char *format, ...)
    TESS_PRINTF(4, 5);
/* Returns the tensor as a whole. */
tess_tensor *tess_nd_join(tess_tensor *t);
/* Returns what a tensor with that shape and these rows is. */
tess_nd tess_nd_of(tess_element e, const tess_dims *d, int at, int64_t times);
static inline bool tess_has_rows(const tess_tensor *t)
{
    return t->nd->at >= 0;
}
/* It is made of parameters alone, which are trained. */
static inline bool tess_nd_is_weight(const tess_tensor *t)
{
    return !tess_has_rows(t) && !t->nd->fixed && t->kind != TESS_KIND_INPUT;
}

/* ---- what ranks share out (split.c) ---- */

/* All tensors of a node are split alike; or they are unless it is along a dimension. */
const char *tess_split_same(const tess_node *n, const tess_split *is, tess_splits *s);
const char *tess_split_but(const tess_node *n, const tess_split *is, int dim, tess_splits *s);
/* The same of a node whose output is its input in another shape. */
const char *tess_split_reshaped(const tess_node *n, int slot, const tess_split *is, tess_splits *s);
/* Finds the runs that begin at an element and have `size` elements; returns false if there are none. */
bool tess_split_find(const tess_split *of, int64_t first, int64_t size, int *from, int *runs);

/* ---- tiles (tiles.c) ---- */

/* The dense tile of a tensor: its dimensions, and strides. */
typedef struct tess_nd_tile {
    int rank;
    int64_t dim[TESS_RANK_MOST], by[TESS_RANK_MOST], size;
    tess_dtype t;
} tess_nd_tile;
tess_nd_tile tess_nd_tile_of(const tess_lower *L, const tess_tensor *t, int i);
/* That of what is like a tensor. */
tess_nd_tile tess_nd_tile_as(const tess_lower *L, const tess_nd *nd, tess_dtype t, int i);
/* Returns the first sample of a row tile. */
static inline int64_t tess_first_sample(const tess_lower *L, int i)
{
    return i * L->g->tile_sequences;
}
/* Returns how many times a node is lowered: once for each row tile, or, of whole tensors alone, once. */
int tess_nd_turns(const tess_lower *L, const tess_node *n);
/* Reads a node's input. */
tess_use tess_nd_read(tess_lower *L, const tess_node *n, int k, int i);
/* Writes the node's output, or, of a whole one that row tiles add to, goes on. */
tess_use tess_nd_out(tess_lower *L, const tess_node *n, int i, bool *acc);
/* Returns whether a turn of the backward pass has nothing to do: it is one too many, or no gradient was written. */
bool tess_nd_idle(tess_lower *L, const tess_node *n, int i);
/* Returns where a task writes the gradient of an input. It comes before the task, and tess_nd_grad_end after it. */
typedef struct tess_nd_grad {
    tess_use use;
    bool acc;
    const tess_tensor *t;
} tess_nd_grad;
/* `part`: the task writes some of it. */
tess_nd_grad tess_nd_grad_begin(tess_lower *L, const tess_tensor *t, int i, bool part);
void tess_nd_grad_end(tess_lower *L, const tess_nd_grad *g);
/* Returns a tile between tasks, of `elements` elements of 4 bytes. */
tess_tile *tess_nd_between(tess_lower *L, int64_t elements, const tess_tensor *t);

/* Returns whether a tensor's floats are of the graph's dtype. */
static inline bool tess_nd_is_narrow(const tess_tensor *t)
{
    return t->kind == TESS_KIND_PARAM ? tess_param_narrows(t) : t->nd->narrow;
}
/* Returns x with floats of 4 bytes; and, where it has rows, with floats of the graph's dtype (map.c). */
tess_tensor *tess_nd_widen(tess_tensor *x);
tess_tensor *tess_nd_narrow(tess_tensor *x);
/* Casts both factors of a product to one dtype, the graph's where the product has rows; returns whether it is that. */
bool tess_nd_factors(tess_tensor *in[2], bool rows);

/* Emits a map; `use` has the buffers of its operands and, the last, of its output. */
void tess_nd_emit_map(tess_lower *L, const tess_any_map_arg *a, const tess_use *use);
/* The same summed over the dimensions that are not among the `kept` of `order`; outputs are dense in that order, and
 * are the last of `use`. */
void tess_nd_emit_fold(tess_lower *L, const tess_any_fold_arg *fold, const int *order, const tess_use *use);
/* Emits out [+]= in, both by strides. */
void tess_nd_emit_copy(tess_lower *L, int rank, const int64_t *dim, tess_use in, tess_strides from, tess_use out,
                       tess_strides to, bool acc);
/* Emits out [+]= sum of a tile over the dimensions that are not among the `kept` of `order`, dense in that order. */
void tess_nd_emit_reduce(tess_lower *L, tess_reduction fn, tess_element e, const tess_nd_tile *of, const int *order,
                         int kept, tess_use in, tess_use out, tess_dtype to, bool acc);
tess_strides tess_strides_of(const tess_nd_tile *t);
/* The strides of a tensor's gradient, or those of a tile of 4 bytes an element. */
tess_strides tess_strides_as(tess_strides s, tess_dtype t);

#endif
