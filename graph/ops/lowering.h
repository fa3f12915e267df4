/* What an op is written with: what it is and how its shapes are checked (node.h), and what it calls to emit its tasks.
 * An op sees this header alone. docs/add-an-op.md walks through one. */
#ifndef TESS_LOWERING_H
#define TESS_LOWERING_H
#include "graph/describe/cache.h"
#include "graph/describe/node.h"

/* Attention as tess_attention and its kin have it, over a cache (cached_attention.c). */
tess_tensor *tess_attention_in_cache(tess_tensor *q, tess_tensor *k, tess_tensor *v, tess_attention_conf conf,
                                     bool packed);

/* ---- lowering to tasks ---- */

/* Returns the dtype of activations. */
tess_dtype tess_real(const tess_lower *L);
/* Returns the dtype in which tasks read a tensor's floats, and in which its gradient is written. */
tess_dtype tess_dtype_of(const tess_lower *L, const tess_tensor *t);
tess_dtype tess_grad_dtype(const tess_lower *L, const tess_tensor *t);
/* The step has a backward pass. */
bool tess_trains(const tess_lower *L);
/* The same step has the same bits on any number of ranks. */
bool tess_is_deterministic(const tess_lower *L);
/* The step generates: its rows are few, or the sequences so, and what is parallel is the work on one tile of rows. */
bool tess_generates(const tess_lower *L);
/* Returns the rows of tensor t in row tile i. */
int64_t tess_rows(const tess_lower *L, const tess_tensor *t, int i);
/* Returns the row, over all micro-batches of the step, where row tile i of t begins. */
int64_t tess_first_row(const tess_lower *L, const tess_tensor *t, int i);
/* How row tiles are cut. */
struct tess_spans {
    int64_t length, rows; /* of a sequence and its spans, but for the last; rows 0: a row tile has whole sequences */
    int64_t all;          /* spans of a sequence; 1 where it is whole */
    int64_t here, ranks;  /* those that are this rank's row tiles; so many ranks have as many each */
    int64_t place;        /* of this rank among them */
    bool zigzag;          /* a rank's spans are a run from the front and one as far from the end; else one run */
    bool ring;            /* for attention they give each other k and v of their spans; else heads for spans */
    int64_t pieces;       /* of `here`: each has a leaf in the tree of a gradient */
};
/* Returns the j-th span of those that the rank at a place has, or the j-th of any such parts, of which it has
 * `here`. */
static inline int64_t tess_span_at(const struct tess_spans *s, int64_t place, int64_t j, int64_t here)
{
    const int64_t half = here / 2;
    if (!s->zigzag) return place * here + j;
    return j < half ? place * half + j : here * s->ranks - (place + 1) * half + j - half;
}
/* Returns it; NULL: they have whole sequences. */
const struct tess_spans *tess_spans(const tess_lower *L);
/* Returns the rows of a span of a sequence. */
int64_t tess_span_rows(const tess_lower *L, int64_t span);
/* Returns the place of the first row of row tile i in its sequence, where that is a span; else 0. */
int64_t tess_first_place(const tess_lower *L, int i);
/* The gradients of parameters from now on are those of row tile i: for a rule that emits several tiles' tasks. */
void tess_lower_piece(tess_lower *L, int i);
/* Returns the number of row tile i among those of all this rank's micro-batches, and stores how many these are. */
int64_t tess_place(const tess_lower *L, int i, int64_t *places);
/* Returns the first sequence of row tile i in its micro-batch. */
int64_t tess_first_sequence(const tess_lower *L, int i);
/* Returns a copy of a task's argument, which lives as long as the program. */
void *tess_arg_copy(tess_lower *L, const void *arg, size_t bytes);
#define TESS_ARG(L, type, ...) ((type *)tess_arg_copy(L, &(type){__VA_ARGS__}, sizeof(type)))
/* Emits a task. */
void tess_emit(tess_lower *L, tess_codelet *cl, const void *arg, const tess_use *use, unsigned nuse);
#define TESS_EMIT(L, cl, arg, ...)                                                                                     \
    tess_emit(L, cl, arg, (tess_use[]){__VA_ARGS__}, sizeof((tess_use[]){__VA_ARGS__}) / sizeof(tess_use))

/* Reads an activation or an input. */
tess_use tess_in(tess_lower *L, const tess_tensor *t, int i);
/* Writes an activation: a new instance of it. */
tess_use tess_out(tess_lower *L, const tess_tensor *t, int i);
/* Writes what only the node's own backward reads. */
tess_use tess_aux_out(tess_lower *L, const tess_node *n, int i, size_t bytes);
/* Reads it. */
tess_use tess_aux_in(tess_lower *L, const tess_node *n, int i);
/* Reads a parameter's tile. */
tess_use tess_weight(tess_lower *L, const tess_tensor *p, int64_t tile);
/* Uses a buffer that a worker has for the time of the task. */
tess_use tess_scratch_use(tess_lower *L, size_t bytes);
/* Returns how many losses are added in this one. */
int tess_losses_of(const tess_tensor *loss);
/* Returns how many are added in the step's. */
int tess_losses(const tess_lower *L);
/* Returns how many numbers a loss has beside it. */
int64_t tess_numbers_of(const tess_tensor *loss);
/* Writes one part of the losses, and of the numbers beside them: sum and count of each, double. */
tess_use tess_loss_out(tess_lower *L);
/* Somebody wants the gradient of t: no input's, nor that of what is frozen or made of such things alone. The backward
 * of a node whose output's nobody wants is not called. A rule that finds the gradients of several tensors in one task
 * need not ask, for what nobody wants goes to a tile that nobody reads; else asking saves the task. */
bool tess_wants_gradient(const tess_lower *L, const tess_tensor *t);
/* Somebody has written the gradient of a row tile. */
bool tess_has_gradient(const tess_lower *L, const tess_tensor *t, int i);
/* Reads the gradient of the output. */
tess_use tess_grad_read(tess_lower *L, const tess_tensor *t, int i);
/* Writes the gradient of an input; with *acc the task adds to what is there. */
tess_use tess_grad_write(tess_lower *L, const tess_tensor *t, int i, bool *acc);
/* Makes the gradient of `from` that of t too, unchanged. */
void tess_grad_pass(tess_lower *L, const tess_tensor *from, const tess_tensor *t, int i);
/* Writes a parameter's gradient; with *acc the task adds to what is there. */
tess_use tess_param_grad(tess_lower *L, const tess_tensor *p, int64_t tile, bool *acc);
/* Makes a gradient of n elements begin with zeros: for a task that adds to others, and has one flag for all. */
static inline void tess_grad_zero(tess_lower *L, tess_dtype t, int64_t n, tess_use *grad)
{
    TESS_EMIT(L, &tess_fill[t], TESS_ARG(L, tess_count_arg, .n = n), {grad->tile, TESS_W});
    grad->mode = TESS_RW;
}

/* The tasks of an elementwise op of one input: y of x, and dx of dy and x. `a` is the argument but for its elements. */
static inline tess_map_arg *tess_map_of(tess_lower *L, const tess_node *n, int i, tess_map_arg a)
{
    a.n = tess_rows(L, n->out, i) * tess_width(n->out);
    return (tess_map_arg *)tess_arg_copy(L, &a, sizeof a);
}
static inline void tess_map_forward(tess_lower *L, const tess_node *n, int i, tess_codelet *by_dtype, tess_map_arg a)
{
    TESS_EMIT(L, &by_dtype[tess_real(L)], tess_map_of(L, n, i, a), tess_in(L, n->in[0], i), tess_out(L, n->out, i));
}
static inline void tess_map_backward(tess_lower *L, const tess_node *n, int i, tess_codelet *by_dtype, tess_map_arg a)
{
    tess_map_arg *arg = tess_map_of(L, n, i, a);
    tess_use dx = tess_grad_write(L, n->in[0], i, &arg->acc);
    TESS_EMIT(L, &by_dtype[tess_real(L)], arg, tess_grad_read(L, n->out, i), tess_in(L, n->in[0], i), dx);
}

/* Returns a number that changes where another stretch of nodes begins: what a node leaves between its tasks lives so
 * long. */
uint64_t tess_stretch(const tess_lower *L);
/* Returns what the op of a node keeps for itself while the step is lowered: so many bytes, zeros at first. */
void *tess_node_room(tess_lower *L, const tess_node *n, size_t bytes);
/* Returns memory that lives as long as the program, zeros. */
void *tess_lower_get(tess_lower *L, size_t bytes);
/* Returns a new tile for what tasks of a node leave each other. */
tess_tile *tess_tile_between(tess_lower *L, size_t bytes, const char *label);
/* The same; the next micro-batch gets the same tile for the same call. */
tess_tile *tess_slot_between(tess_lower *L, size_t bytes, const char *label);

/* Returns the bytes of a tensor's row tile. */
size_t tess_value_bytes(const tess_lower *L, const tess_tensor *t, int i);
/* Emits the sum of a gradient's tile into another, or its copy. */
void tess_lower_add(tess_lower *L, const tess_tensor *t, int i, tess_tile *from, tess_tile *to, bool acc);

/* Returns into how many row tiles a micro-batch is cut. */
int tess_row_tiles(const tess_lower *L);
/* Returns how many micro-batches the step has, on all ranks together. */
int64_t tess_micros(const tess_lower *L);

/* ---- what depends on the choice of a router ---- */

extern const tess_op tess_op_route;
static inline bool tess_is_routed(const tess_tensor *weights)
{
    return weights->producer && weights->producer->op == &tess_op_route;
}
static inline int64_t tess_routed_experts(const tess_tensor *weights)
{
    return weights->producer->in[0]->dim[2];
}
/* Returns the choice that row tile i of this node makes, of so many options, to be told of it; NULL where it was made
 * before, and is only computed again. */
tess_choice *tess_choice_begin(tess_lower *L, const tess_node *n, int i, int64_t options);
/* Returns it for those whom it concerns. */
tess_choice *tess_choice_at(tess_lower *L, const tess_node *n, int i);
/* Marks the task emitted last: its uses with TESS_IF_CHOSEN are needed only if that option was chosen; or that it
 * is what chooses. */
void tess_emitted_chooses(tess_lower *L, tess_choice *choice, int option);

/* ---- over the ranks of the tensor dimension ---- */

/* Returns the place there that has a tile of a table, counted over all of them. */
int tess_table_owner(const tess_tensor *table, int64_t tile);
/* A tile of n elements of which each rank has a part becomes their sum. */
void tess_lower_all_sum(tess_lower *L, tess_tile *t, int64_t n, tess_dtype type);
/* The ranks that share sequences give each other tiles, [place]: out[r] goes to the r-th and in[r] comes from it. */
void tess_lower_exchange(tess_lower *L, tess_tile *const *out, tess_tile *const *in);
/* The rank at place `from` gives its tile to all others. */
void tess_lower_tensor_tell(tess_lower *L, tess_tile *t, int from);

#endif
