/* nd: tensors of any rank, and generic ops over them. They are tensors of a graph like others, with float, int32 or
 * bool elements; a tensor with a dimension of samples is cut into row tiles. The reader of graph.json calls these.
 *
 *     tess_tensor *x = tess_nd_input(g, "x", TESS_REAL, (tess_dims){2, {32, 784}});
 *     tess_tensor *w = tess_nd_param(g, "w", (tess_dims){2, {784, 10}}, TESS_NORMAL(0.02f), false);
 *     tess_tensor *y = tess_nd_dot(x, w, &(tess_dot_dims){.contracts = 1, .contract = {{1}, {0}}}); // (32, 10)
 *     tess_tensor *loss = tess_nd_loss(tess_nd_reduce(y, TESS_REDUCE_SUM, 0x3), NULL);
 *
 * As with other ops, wrong shapes return NULL and the step says why. In a bf16 or fp16 graph products and maps of them
 * have that dtype; inputs, sums and the loss are fp32. */
#ifndef TESS_ND_H
#define TESS_ND_H
#include "codelets/generic.h"
#include "graph/tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tess_dims {
    int rank;
    int64_t dim[TESS_RANK_MOST];
} tess_dims;
/* Returns the number of elements. */
int64_t tess_dims_size(const tess_dims *d);
/* Returns a tensor's shape and element. */
tess_dims tess_nd_dims(const tess_tensor *t);
tess_element tess_nd_element(const tess_tensor *t);
/* Cuts row tiles of `samples` samples. With 0 it takes the number at which the largest tensor that the two outputs
 * depend on has tiles of the usual size, and no more rows a tile than other graphs have. It comes after the last op. */
void tess_nd_cut(tess_tensor *output, tess_tensor *other, int64_t samples);

/* Declares the outputs of the graph's steps, in two lists whose entries may be NULL. Nodes that no output depends on
 * are left out. It comes after the last op. */
void tess_nd_ends(tess_graph *g, tess_tensor *const *these, int n, tess_tensor *const *those, int more);

/* ---- formulas: programs of scalar functions ---------------------------------------------------------------------- */

/* A formula under construction. A value is the index of the step that computes it; -1 stands for no value. */
typedef struct tess_draft {
    int steps;
    bool full; /* there were too many */
    tess_fn_step step[TESS_MAP_STEPS];
} tess_draft;
/* Add a step over values a, b and c, or return an earlier step that computes the same. */
int tess_draft_load(tess_draft *d, int operand, tess_element e);
int tess_draft_real(tess_draft *d, double value);
int tess_draft_whole(tess_draft *d, int32_t value, tess_element e);
int tess_draft_cast(tess_draft *d, int a, tess_element to);
int tess_draft_add(tess_draft *d, tess_fn fn, int a, int b, int c);
/* Adds the derivative of value `of` by operand k, times `dy`; returns -1 if it is 0 everywhere. */
int tess_draft_derive(tess_draft *d, int of, int k, int dy);
/* Evaluates a value with all loads equal to x. Returns NaN if one of its steps cannot be evaluated here. */
double tess_draft_at(const tess_draft *d, int result, double x);
/* Return the function of that name, or TESS_FNS, and how many values a function takes. */
tess_fn tess_fn_find(const char *name);
int tess_fn_operands(tess_fn fn);
/* Returns whether a function costs no more than a few additions: no call of the C library, no random bits. */
bool tess_fn_is_cheap(tess_fn fn);
/* Returns an error in the elements of a function's operands, or NULL. Elements beyond its operands are not read. */
const char *tess_fn_wrong(tess_fn fn, tess_element a, tess_element b, tess_element c);

/* ---- tensors ----------------------------------------------------------------------------------------------------- */

/* Adds an input whose first dimension counts samples, the same number in all inputs. tess_step_feed feeds it, with 4
 * bytes a value whatever its element is. */
tess_tensor *tess_nd_input(tess_graph *g, const char *name, tess_element e, tess_dims d);
/* Adds an input that has no samples: it is fed once for each micro-batch. */
tess_tensor *tess_nd_input_whole(tess_graph *g, const char *name, tess_element e, tess_dims d);
/* Adds a parameter: a matrix of its first dimension and all others. `turned` records that the describing framework has
 * it transposed. */
tess_tensor *tess_nd_param(tess_graph *g, const char *name, tess_dims d, tess_init init, bool turned);
/* Returns the parameter's `turned`. */
bool tess_param_turned(const tess_tensor *p);
/* Adds a state: it is kept, saved and sharded like a parameter, but a step does not train it; tess_nd_keep replaces its
 * value. No gradient passes to it. */
tess_tensor *tess_nd_state(tess_graph *g, const char *name, tess_dims d);
/* Adds a constant, a copy of the data. */
tess_tensor *tess_nd_data(tess_graph *g, const char *name, tess_element e, tess_dims d, const void *data);

/* ---- ops --------------------------------------------------------------------------------------------------------- */

/* How an index space reads a tensor: dimension d of the space goes along the tensor's dimension `along`[d], or along
 * none (-1). Along the tensor's dimension k it begins at `first`[k], in steps of `step`[k]. */
typedef struct tess_nd_reading {
    int8_t along[TESS_RANK_MOST];
    int64_t first[TESS_RANK_MOST], step[TESS_RANK_MOST];
} tess_nd_reading;
/* Returns how a space reads a tensor of its own shape. */
tess_nd_reading tess_nd_reading_same(int rank);
/* An operand of a formula. Without a tensor it is the index along the one dimension whose `along` is 0, with
 * `first`[0] and `step`[0]. */
typedef struct tess_nd_operand {
    tess_tensor *t;
    tess_nd_reading by;
} tess_nd_operand;
enum { TESS_ND_OPERANDS = 5 };
/* Returns value `result` of a draft, evaluated at each place of a space. */
tess_tensor *tess_nd_map(tess_graph *g, const tess_draft *draft, int result, const tess_nd_operand *operand,
                         int operands, tess_dims space);
/* Returns the sum of such floats over the space's dimensions in the bit set `dims`; the terms are not stored. */
tess_tensor *tess_nd_fold(tess_graph *g, const tess_draft *draft, int result, const tess_nd_operand *operand,
                          int operands, tess_dims space, unsigned dims);
/* Returns the reduction of x over the dimensions in the bit set `dims`. */
tess_tensor *tess_nd_reduce(tess_tensor *x, tess_reduction fn, unsigned dims);
typedef struct tess_dot_dims {
    int contracts, batches;
    int contract[2][TESS_RANK_MOST], batch[2][TESS_RANK_MOST]; /* [0] of a, [1] of b */
} tess_dot_dims;
/* Returns the product of a and b, with the dimensions batch, a's others, b's others. */
tess_tensor *tess_nd_dot(tess_tensor *a, tess_tensor *b, const tess_dot_dims *d);
/* A convolution as XLA's conv_general_dilated has it, over one to three spatial dimensions. */
typedef struct tess_conv_dims {
    int space;
    /* The indices of dimensions: of x and y samples, channels and space; of w outputs, inputs of a group and space. */
    int x[2 + TESS_CONV_SPACE], w[2 + TESS_CONV_SPACE], y[2 + TESS_CONV_SPACE];
    int64_t strides[TESS_CONV_SPACE], pads[TESS_CONV_SPACE][2], between[TESS_CONV_SPACE], apart[TESS_CONV_SPACE];
    int64_t groups; /* between, apart: the dilations of x and of w */
} tess_conv_dims;
tess_tensor *tess_nd_conv(tess_tensor *x, tess_tensor *w, const tess_conv_dims *d);
/* Windows as XLA's reduce_window has them, for each dimension of x; between, apart: the dilations of x and of a window.
 * What is outside x does not count. */
typedef struct tess_window_dims {
    int64_t size[TESS_RANK_MOST], strides[TESS_RANK_MOST], pads[TESS_RANK_MOST][2];
    int64_t between[TESS_RANK_MOST], apart[TESS_RANK_MOST];
} tess_window_dims;
tess_tensor *tess_nd_window(tess_tensor *x, tess_reduction fn, const tess_window_dims *d);
/* Returns the cumulation (sum, maximum, ...) up to each place of a dimension, inclusive, or in reverse from there on.
 */
tess_tensor *tess_nd_cum(tess_tensor *x, tess_cumulation fn, int dim, bool reverse);
/* Returns the int32 indices that sort the elements along a dimension (argsort); equal elements stay in order. */
tess_tensor *tess_nd_sort(tess_tensor *x, int dim, bool descending);
/* Returns x in another shape. */
tess_tensor *tess_nd_reshape(tess_tensor *x, tess_dims d);
/* Returns the concatenation of up to TESS_ND_OPERANDS tensors along a dimension. */
tess_tensor *tess_nd_concat(tess_tensor *const *x, int n, int dim);
/* Returns x padded with a value: pads[d] are the elements before, after and between x's along dimension d. */
tess_tensor *tess_nd_pad(tess_tensor *x, double value, const int64_t (*pads)[3]);
/* The slices of a gather as XLA describes them; a scatter computes `sizes` itself. */
typedef struct tess_gather_dims {
    int offsets, collapses, starts, batches;
    int offset[TESS_RANK_MOST], collapsed[TESS_RANK_MOST], start[TESS_RANK_MOST], batch[2][TESS_RANK_MOST];
    int64_t sizes[TESS_RANK_MOST];
    bool clip;
    double fill;
} tess_gather_dims;
tess_tensor *tess_nd_gather(tess_tensor *x, tess_tensor *indices, const tess_gather_dims *d);
tess_tensor *tess_nd_scatter(tess_tensor *x, tess_tensor *indices, tess_tensor *updates, const tess_gather_dims *d,
                             tess_scattering fn);
/* Returns whether x is stored as rows of `width` elements, sample after sample. */
bool tess_nd_has_rows(const tess_tensor *x, int64_t width);
/* Returns the dimension that counts samples; -1: there is none. */
int tess_nd_samples(const tess_tensor *x);
/* Returns such an x as (B, T, width), for the ops of tessera_graph.h. */
tess_tensor *tess_nd_rows(tess_tensor *x, int64_t width);
/* Returns a result (B, T, C) of these ops in another shape. */
tess_tensor *tess_nd_back(tess_tensor *y, tess_dims d);
/* Returns an input whose values are checked from now on to be `least` to `classes` - 1; `because` names the op. */
tess_tensor *tess_nd_classes(tess_tensor *input, int64_t least, int64_t classes, const char *because);
/* Returns whether a parameter is one tile. */
bool tess_nd_is_whole(const tess_tensor *param);
/* Cuts a vector at the rows of a matrix's tiles if it can, and returns whether the two are cut alike. */
bool tess_nd_cut_alike(tess_tensor *vector, tess_tensor *matrix);
/* Returns `loss`, a float of rank 0 that becomes the step's, and makes a step that trains replace a state by the mean
 * over micro-batches of a value of its shape. */
tess_tensor *tess_nd_keep(tess_tensor *loss, tess_tensor *value, tess_tensor *state);
/* Returns the loss of a step: the mean over micro-batches of a float of rank 0. The floats of a vector `beside`, unless
 * NULL, are averaged with it and reported (tess_step_add_losses). */
tess_tensor *tess_nd_loss(tess_tensor *x, tess_tensor *beside);

#ifdef __cplusplus
}
#endif

#endif
