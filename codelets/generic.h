/* any: the work of generic ops, on tiles of any rank. An element is 4 bytes: a float, an int32, or a bool that is 0
 * or 1. Maps, reductions, products and convolutions take floats of 16 bits too. A body sees an index space of up to 8
 * dimensions, and for each operand where its elements are in it: strides, 0 along dimensions that it is repeated in,
 * negative where it is turned around. */
#ifndef TESS_GENERIC_H
#define TESS_GENERIC_H
#include "codelets/codelets.h"

#ifdef __cplusplus
extern "C" {
#endif

/* A kernel's arguments, 4 KiB, have room for a formula of TESS_MAP_STEPS steps. */
enum { TESS_RANK_MOST = 8, TESS_MAP_OPERANDS = 7, TESS_MAP_REGISTERS = 32, TESS_MAP_STEPS = 384 };

/* The functions of one element (generic.def). */
typedef enum tess_fn {
#define TESS_FN(name, operands, kind) TESS_FN_##name,
#include "codelets/generic.def"
    TESS_FNS
} tess_fn;

typedef enum tess_element { TESS_REAL, TESS_INT, TESS_BOOL } tess_element;

/* A step of a program: value k is what step k makes of values before it. */
typedef struct tess_fn_step {
    uint8_t fn;      /* of tess_fn */
    uint8_t element; /* of what it makes */
    int16_t of[3];   /* values; of `load` the number of an operand */
    int16_t at;      /* the register that a body keeps it in */
    union {
        float real;
        int32_t whole;
    } is; /* of `value` */
} tess_fn_step;
/* A program of scalar functions; its last step makes the result. */
typedef struct tess_formula {
    int steps, registers;
    const tess_fn_step *step;
} tess_formula;

/* Where element (0, ..., 0) is, and how far it is from there along each dimension; of floats, their dtype. They are
 * computed in fp32. */
typedef struct tess_strides {
    int64_t at, by[TESS_RANK_MOST];
    tess_dtype t;
} tess_strides;

/* out [+]= formula(operands). An operand without a buffer is where its element would be: the index along a dimension.
 */
typedef struct tess_any_map_arg {
    int rank, operands;
    int64_t dim[TESS_RANK_MOST];
    tess_strides in[TESS_MAP_OPERANDS], out;
    bool index[TESS_MAP_OPERANDS]; /* it has no buffer */
    tess_element element;          /* of the result */
    const tess_formula *formula;
    bool acc;
} tess_any_map_arg;
extern tess_codelet tess_any_map[]; /* a buffer for each operand that has one, out */

/* Each out (its `kept` dimensions, dense) [+]= the sum of what the formula has in a register, over the other
 * dimensions. `last`: the kept dimensions are the last ones, and sums go over rows of them, else the first ones. */
enum { TESS_FOLD_SUMS = 4 };
typedef struct tess_any_fold_arg {
    tess_any_map_arg map; /* without `out` and `acc` */
    int kept;
    bool last;
    int sums;
    struct tess_fold_sum {
        int at; /* the register */
        tess_dtype t;
        bool acc;
    } sum[TESS_FOLD_SUMS];
} tess_any_fold_arg;
extern tess_codelet tess_any_fold[]; /* a buffer for each operand that has one, outs */

typedef enum tess_reduction {
    TESS_REDUCE_SUM,
    TESS_REDUCE_MAX,
    TESS_REDUCE_MIN,
    TESS_REDUCE_PROD,
    TESS_REDUCE_AND,
    TESS_REDUCE_OR,
    TESS_REDUCE_ARGMAX,
    TESS_REDUCE_ARGMIN,
} tess_reduction;
/* out (its `kept` first dimensions, dense) [+]= the reduction of x over the others. */
typedef struct tess_any_reduce_arg {
    int rank, kept;
    int64_t dim[TESS_RANK_MOST];
    tess_strides in;
    tess_reduction fn;
    tess_element element; /* of x */
    tess_dtype to;        /* of floats that come out */
    bool acc;             /* what is there is reduced with it */
} tess_any_reduce_arg;
extern tess_codelet tess_any_reduce[]; /* x, out */

typedef enum tess_cumulation {
    TESS_CUM_SUM,
    TESS_CUM_PROD,
    TESS_CUM_MAX,
    TESS_CUM_MIN,
    TESS_CUM_LOGSUMEXP,
} tess_cumulation;
/* y (outer, n, inner) [+]= what stands in x up to each of n, itself included; in reverse from there on. */
typedef struct tess_any_cum_arg {
    int64_t outer, n, inner;
    tess_cumulation fn;
    tess_element element;
    bool reverse, acc;
} tess_any_cum_arg;
extern tess_codelet tess_any_cum[];          /* x, y */
extern tess_codelet tess_any_cum_backward[]; /* x, y, dy, dx [+]=: of equal ones to the last; not of sums */

/* y (outer, n, inner): the places of n elements of x in the order of their values. */
typedef struct tess_any_sort_arg {
    int64_t outer, n, inner;
    tess_element element; /* of x; y has whole numbers */
    bool descending;
} tess_any_sort_arg;
extern tess_codelet tess_any_sort[]; /* x, y, scratch */
size_t tess_any_sort_scratch(const tess_any_sort_arg *a);

/* y = the sum, most or least of x's elements in windows: position o and place i of one meet x's element
 * (o step + i apart - pad) / between along each dimension, where that is whole and inside. The first `lead` dimensions
 * have windows of one element, each of another. */
typedef struct tess_any_window_arg {
    int rank, lead;
    int64_t in[TESS_RANK_MOST], out[TESS_RANK_MOST], size[TESS_RANK_MOST];
    int64_t step[TESS_RANK_MOST], apart[TESS_RANK_MOST], pad[TESS_RANK_MOST], between[TESS_RANK_MOST];
    int64_t x[TESS_RANK_MOST], y[TESS_RANK_MOST]; /* strides */
    tess_reduction fn;
    tess_element element;
} tess_any_window_arg;
extern tess_codelet tess_any_window[];          /* x, y */
extern tess_codelet tess_any_window_backward[]; /* x, dy, dx +=: of equal ones to the first */

/* c [+]= a b, over dimensions of four kinds: batch, free of a, free of b, contracted. */
typedef struct tess_any_dot_arg {
    int rank[4];
    int64_t dim[4][TESS_RANK_MOST];
    int64_t a[4][TESS_RANK_MOST], b[4][TESS_RANK_MOST], c[4][TESS_RANK_MOST]; /* strides; 0 where one has it not */
    int64_t at[3];                                                            /* where a, b and c begin */
    tess_dtype to;                                                            /* of c */
    bool acc;
} tess_any_dot_arg;
extern tess_codelet tess_any_dot[]; /* by the dtype of a and b: a, b, c[, scratch] */
/* Returns the bytes of scratch that it needs, for operands that are no matrices where they lie. */
size_t tess_any_dot_scratch(const tess_any_dot_arg *a, tess_dtype in);

/* A convolution: y's position o and element i of a patch meet x's element (o step + i apart - pad) / between along each
 * dimension of space, where that is whole and inside. Dimensions that a tensor lacks have one element. */
enum { TESS_CONV_SPACE = 3 };
typedef struct tess_any_conv_arg {
    int64_t samples, groups, inputs, outputs; /* channels of x and y in a group */
    int64_t in[TESS_CONV_SPACE], out[TESS_CONV_SPACE], window[TESS_CONV_SPACE];
    int64_t step[TESS_CONV_SPACE], apart[TESS_CONV_SPACE], pad[TESS_CONV_SPACE], between[TESS_CONV_SPACE];
    int64_t x[2 + TESS_CONV_SPACE], y[2 + TESS_CONV_SPACE]; /* strides: samples, channels, space */
    int64_t w[2 + TESS_CONV_SPACE], w_group;                /* outputs, inputs, space; from group to group */
    tess_dtype to;                                          /* of what is written; of an input's gradient fp32 */
    bool acc;
} tess_any_conv_arg;
/* By the dtype of what is read. */
extern tess_codelet tess_any_conv[];        /* x, w, y [+]=[, scratch] */
extern tess_codelet tess_any_conv_input[];  /* x [+]=, w, y[, scratch] */
extern tess_codelet tess_any_conv_weight[]; /* x, w [+]=, y[, scratch] */
/* The strides are some that bodies can work with: w and y are matrices, of outputs and all else, in each group. */
bool tess_any_conv_fits(const tess_any_conv_arg *a);
/* Returns the bytes of scratch that the codelet needs which writes x, w or y (0, 1, 2), of what is read in a dtype. */
size_t tess_any_conv_scratch(const tess_any_conv_arg *a, int written, tess_dtype in);
/* Settles, before StarPU runs, whether bf16 convolutions on a GPU are cuDNN's from here on, as tess_attention_library
 * does for attention. */
bool tess_any_conv_cudnn(bool wanted, char *said, size_t room);

/* Slices of x whose place indices say. Over the places `dim`[0, places) an index vector is read, whose k-th element
 * moves along x's dimension `along`[k]; over the slice, `dim`[places, rank), x is walked by strides. */
typedef enum tess_scattering {
    TESS_SCATTER_SET,
    TESS_SCATTER_ADD,
    TESS_SCATTER_MUL,
    TESS_SCATTER_MIN,
    TESS_SCATTER_MAX
} tess_scattering;
typedef struct tess_any_gather_arg {
    int rank, places, along;
    int64_t dim[TESS_RANK_MOST * 2];
    int64_t x[TESS_RANK_MOST * 2], index[TESS_RANK_MOST * 2], y[TESS_RANK_MOST * 2]; /* strides */
    int64_t x_at, y_at;
    int64_t index_by;                                   /* from element to element of an index vector */
    int64_t step[TESS_RANK_MOST], most[TESS_RANK_MOST]; /* of x's dimension: its stride, the last place */
    bool clip;                                          /* else what lies outside has no place */
    union {
        float real;
        int32_t whole;
    } fill; /* what is gathered from there */
    tess_element element;
    tess_scattering fn;
    bool acc; /* gather: y += */
} tess_any_gather_arg;
extern tess_codelet tess_any_gather[];  /* x, indices, y */
extern tess_codelet tess_any_scatter[]; /* x (changed), indices, y */

/* Behind a scatter of updates u that does not add; d is like x, and changed. */
typedef enum tess_scatter_way {
    TESS_BACK_TRACE, /* d begins as x: out = what d was before each factor. d, indices, u, out */
    TESS_BACK_COUNT, /* d += how many updates are the most, y. d, indices, u, y */
    TESS_BACK_SET,   /* du [+]= d: of the last that was set. d, indices, du */
    TESS_BACK_MUL,   /* `with` what a trace has left. d, indices, u, with, du */
    TESS_BACK_MOST,  /* du [+]= d where u is y. d, indices, u, y, du */
} tess_scatter_way;
typedef struct tess_any_scatter_back_arg {
    tess_any_gather_arg at; /* acc: that of du */
    tess_scatter_way way;
} tess_any_scatter_back_arg;
extern tess_codelet tess_any_scatter_back[];

/* Data of a graph's own. */
typedef struct tess_any_data_arg {
    const void *data;
    size_t bytes;
} tess_any_data_arg;
extern tess_codelet tess_any_data[]; /* out */

/* loss: x f32 (1)[, beside f32 (numbers)], out double (2 + 2 numbers) = x and 1, each number and 1[, dx f32 (1) = the
 * scale of the loss] */
typedef struct tess_any_loss_arg {
    int64_t numbers; /* 0: there is no such buffer */
    bool gradient;
} tess_any_loss_arg;
extern tess_codelet tess_any_loss[];

#ifdef __cplusplus
}
#endif

#endif
