/* The functions that an op is written with: node.h describes it and checks its shapes, and the functions here emit its
 * tasks. An op sees this header alone. docs/add-an-op.md walks through one. */
#ifndef TESS_LOWERING_H
#define TESS_LOWERING_H
#include "graph/describe/cache.h"
#include "graph/describe/node.h"

/* Returns the attention of tess_attention, or with `packed` of tess_attention_packed, over a KV cache
 * (cached_attention.c). */
tess_tensor *tess_attention_in_cache(tess_tensor *q, tess_tensor *k, tess_tensor *v, tess_attention_conf conf,
                                     bool packed);

/* ---- lowering to tasks ---- */

/* Returns the dtype of activations. */
tess_dtype tess_real(const tess_lower *L);
/* Returns the dtype in which tasks read a tensor's floats, and in which its gradient is written. */
tess_dtype tess_dtype_of(const tess_lower *L, const tess_tensor *t);
tess_dtype tess_grad_dtype(const tess_lower *L, const tess_tensor *t);
/* Returns the dtype in which a matrix is quantized; TESS_F32: it is not. */
tess_dtype tess_quantized(const tess_tensor *p);
/* Returns whether the step has a backward pass. */
bool tess_trains(const tess_lower *L);
/* Returns whether the step has the same bits on any number of ranks. */
bool tess_is_deterministic(const tess_lower *L);
/* Returns whether the step generates: it has few rows, so that workers share the work on one row tile. */
bool tess_generates(const tess_lower *L);
/* Returns the rows of tensor t in row tile i. */
int64_t tess_rows(const tess_lower *L, const tess_tensor *t, int i);
/* Returns the row, over all micro-batches of the step, where row tile i of t begins. */
int64_t tess_first_row(const tess_lower *L, const tess_tensor *t, int i);
/* How sequences are cut into spans. */
struct tess_spans {
    int64_t length, rows; /* rows of a sequence, and of each span but the last; rows = 0: sequences are not cut */
    int64_t all;          /* spans of a sequence; 1 where it is not cut */
    int64_t here, ranks;  /* spans of a sequence on this rank; number of ranks that share it */
    int64_t place;        /* the place of this rank among them */
    bool zigzag;          /* a rank has a run of spans from the front and one as far from the end; else one run */
    bool ring;            /* ring attention: ranks exchange k and v of their spans; else an all-to-all of heads */
    int64_t pieces;       /* the pieces of `here`, each of them a leaf in the tree of a gradient */
};
/* Returns the index of the j-th span of the rank at a place, which has `here` spans. */
static inline int64_t tess_span_at(const struct tess_spans *s, int64_t place, int64_t j, int64_t here)
{
    const int64_t half = here / 2;
    if (!s->zigzag) return place * here + j;
    return j < half ? place * half + j : here * s->ranks - (place + 1) * half + j - half;
}
/* Returns how sequences are cut into spans, or NULL if they are not cut. */
const struct tess_spans *tess_spans(const tess_lower *L);
/* Returns the rows of a span of a sequence. */
int64_t tess_span_rows(const tess_lower *L, int64_t span);
/* Returns the position in its sequence of the first row of row tile i, if that is a span; else 0. */
int64_t tess_first_place(const tess_lower *L, int i);
/* Makes the next gradients of parameters those of row tile i, for a rule that emits the tasks of several tiles. */
void tess_lower_piece(tess_lower *L, int i);
/* Returns the index of row tile i among the row tiles of all this rank's micro-batches, and stores their number. */
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

/* The functions up to tess_param_grad return a use of a tile, for tess_emit. */

/* Reads an activation or an input. */
tess_use tess_in(tess_lower *L, const tess_tensor *t, int i);
/* Writes a new instance of an activation. */
tess_use tess_out(tess_lower *L, const tess_tensor *t, int i);
/* Writes a buffer that only the node's own backward reads. */
tess_use tess_aux_out(tess_lower *L, const tess_node *n, int i, size_t bytes);
/* Reads the buffer of tess_aux_out. */
tess_use tess_aux_in(tess_lower *L, const tess_node *n, int i);
/* Reads a parameter's tile. */
tess_use tess_weight(tess_lower *L, const tess_tensor *p, int64_t tile);
/* Uses a scratch buffer of the worker. */
tess_use tess_scratch_use(tess_lower *L, size_t bytes);
/* Returns how many losses are added in this one. */
int tess_losses_of(const tess_tensor *loss);
/* Returns how many losses are added in the step's loss. */
int tess_losses(const tess_lower *L);
/* Returns how many numbers the step reports beside its loss: those that the loss takes as an input, or, where it only
 * evaluates, the accuracy of each loss. */
int64_t tess_numbers(const tess_lower *L);
/* Writes one part of the losses, and of the numbers beside them: sum and count of each, double. */
tess_use tess_loss_out(tess_lower *L);
/* Returns whether the step needs the gradient of t: not of inputs, of frozen parameters, or of tensors that depend on
 * these alone. Backward is not called for a node whose output needs no gradient. A rule asks to save a task; a task
 * that finds several gradients may write one that is not needed, to a tile that no task reads. */
bool tess_wants_gradient(const tess_lower *L, const tess_tensor *t);
/* Returns whether a task has written the gradient of a row tile. */
bool tess_has_gradient(const tess_lower *L, const tess_tensor *t, int i);
/* Reads the gradient of the output. */
tess_use tess_grad_read(tess_lower *L, const tess_tensor *t, int i);
/* Writes the gradient of an input; with *acc the task adds to it. */
tess_use tess_grad_write(tess_lower *L, const tess_tensor *t, int i, bool *acc);
/* Makes t share the gradient of `from`, unchanged. */
void tess_grad_pass(tess_lower *L, const tess_tensor *from, const tess_tensor *t, int i);
/* Writes a parameter's gradient; with *acc the task adds to it. */
tess_use tess_param_grad(tess_lower *L, const tess_tensor *p, int64_t tile, bool *acc);
/* Fills a gradient of n elements with zeros, for a task with several gradients and one flag that adds to them. */
static inline void tess_grad_zero(tess_lower *L, tess_dtype t, int64_t n, tess_use *grad)
{
    TESS_EMIT(L, &tess_fill[t], TESS_ARG(L, tess_count_arg, .n = n), {grad->tile, TESS_W});
    grad->mode = TESS_RW;
}

/* Emit the tasks of an elementwise op of one input: y of x, and dx of dy and x. `a` is the argument without n. */
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

/* Returns the number of the current stretch of nodes. Tiles between a node's tasks live as long as the stretch. */
uint64_t tess_stretch(const tess_lower *L);
/* Returns memory that the op of a node has for itself while the step is lowered, zeros at first. */
void *tess_node_room(tess_lower *L, const tess_node *n, size_t bytes);
/* Returns memory that lives as long as the program, zeros at first. */
void *tess_lower_get(tess_lower *L, size_t bytes);
/* Returns a new tile that tasks of a node use among themselves. */
tess_tile *tess_tile_between(tess_lower *L, size_t bytes, const char *label);
/* Returns such a tile; the next micro-batch gets the same one for the same call. */
tess_tile *tess_slot_between(tess_lower *L, size_t bytes, const char *label);

/* Returns the bytes of a tensor's row tile. */
size_t tess_value_bytes(const tess_lower *L, const tess_tensor *t, int i);
/* Emits the sum of a gradient's tile into another, or its copy. */
void tess_lower_add(tess_lower *L, const tess_tensor *t, int i, tess_tile *from, tess_tile *to, bool acc);

/* Returns the number of row tiles of a micro-batch. */
int tess_row_tiles(const tess_lower *L);
/* Returns how many micro-batches the step has, on all ranks together. */
int64_t tess_micros(const tess_lower *L);

/* ---- tasks that depend on the choice of a router ---- */

extern const tess_op tess_op_route;
static inline bool tess_is_routed(const tess_tensor *weights)
{
    return weights->producer && weights->producer->op == &tess_op_route;
}
static inline int64_t tess_routed_experts(const tess_tensor *weights)
{
    return weights->producer->in[0]->dim[2];
}
/* Returns whether the next tasks are of rows that other ranks, or this one, sent to this rank's experts; their tiles
 * have places of these alone, and no choice. */
bool tess_is_guest(const tess_lower *L);
/* Stores which of all experts the places of the next tasks' tiles are of. */
void tess_experts_here(const tess_lower *L, int64_t experts, int64_t *first, int64_t *end);
/* Returns the choice among `options` that row tile i of this node makes, for the task that chooses; NULL where it was
 * made before, and is recomputed. */
tess_choice *tess_choice_begin(tess_lower *L, const tess_node *n, int i, int64_t options);
/* Returns the same choice for the tasks that depend on it. */
tess_choice *tess_choice_at(tess_lower *L, const tess_node *n, int i);
/* Marks the last emitted task: it needs its uses with TESS_IF_CHOSEN only if that option was chosen. With
 * TESS_MAKES_CHOICE it is the task that chooses. */
void tess_emitted_chooses(tess_lower *L, tess_choice *choice, int option);

/* ---- over the ranks of the tensor dimension ---- */

/* Returns the place of the rank that has a tile of a table; tiles are counted over all ranks. */
int tess_table_owner(const tess_tensor *table, int64_t tile);
/* Emits an all-reduce: a tile of n elements, a partial sum on each rank, becomes their sum. */
void tess_lower_all_reduce(tess_lower *L, tess_tile *t, int64_t n, tess_dtype type);
/* Emits an all-to-all of tiles, [place], over the ranks that share sequences: out[r] goes to the r-th rank and in[r]
 * comes from it. */
void tess_lower_all_to_all(tess_lower *L, tess_tile *const *out, tess_tile *const *in);
/* Emits a broadcast of a tile from the rank at place `from`. */
void tess_lower_broadcast(tess_lower *L, tess_tile *t, int from);

#endif
