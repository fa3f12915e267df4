/* tessera.h: the argument of the functions of a program's own op (tessera_op.h). They see one tile of rows and compute
 * from it alone, so that the same operands give the same bits wherever and however often they are computed.
 *
 *     static void forward(const tess_call *c) // y = x, each row times its own gate
 *     {
 *         const tess_operand *x = &c->in[0], *gate = &c->in[1], *y = &c->out;
 *         for (int64_t r = 0; r < x->rows; r++)
 *             for (int64_t i = r * x->columns; i < (r + 1) * x->columns; i++)
 *                 tess_store(y->data, i, c->dtype,
 *                            tess_load(x->data, i, c->dtype) * tess_load(gate->data, r, c->dtype));
 *     }
 *
 * Several workers run them at the same time. They keep no state, and call nothing of the library but the functions of
 * this header and of tessera_elements.h. */
#ifndef TESSERA_CALL_H
#define TESSERA_CALL_H
#include "runtime/tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TESS_CALL_INPUTS = 5 };

/* Rows of a tensor, or a parameter. */
typedef struct tess_operand {
    void *data; /* (rows, columns), row-major and dense; NULL: the op was given none, or backward does not read it */
    int64_t rows, columns;
    tess_dtype dtype;
    bool add;          /* for a gradient: the function adds to it; else the function writes all of it, unread */
    int64_t tiles;     /* how many tiles of rows a large parameter is cut into; `data` is the first */
    void *const *tile; /* row i of the parameter is row i % tile_rows of tile[i / tile_rows] */
    int64_t tile_rows; /* rows of a tile; with one tile all rows */
} tess_operand;

typedef struct tess_call {
    /* Activations (B, T, C) come as the T rows of each of `sequences` sequences, in order, or, for an op by_rows, as
     * some rows of one; indices (B, T) as int32 rows of one column; a parameter is whole, a matrix in the graph's dtype
     * and a vector in fp32. Backward has the inputs that the op's `reads` names. */
    tess_operand in[TESS_CALL_INPUTS];
    tess_operand out; /* forward writes it; backward reads it if `reads` has it */
    tess_operand aux; /* fp32, a row for each row of the output: forward writes it for backward */
    /* Backward reads d_out, the gradient of the output, and writes d_in: gradients of activations in their dtype, of
     * parameters in fp32. Indices and inputs that were left out have none. */
    tess_operand d_out, d_in[TESS_CALL_INPUTS];
    const void *attributes; /* the node's copy */
    tess_dtype dtype;       /* of activations */
    int64_t sequences;      /* the number of sequences in this tile */
    int64_t first;          /* the index of the first sequence in the step's global batch */
    bool train;             /* the step has a backward pass */
    void *scratch;          /* the bytes that the shape function asked for, uninitialized */
    void *stream; /* the cudaStream_t of a CUDA function, which puts all its work there and does not wait; then all
                     pointers but `attributes` and `tile` are the device's */
    const struct tess_work *work; /* private to the library */
} tess_call;
typedef void (*tess_function)(const tess_call *c);

/* Returns row i of an operand. */
static inline void *tess_row(const tess_operand *o, int64_t i)
{
    return (char *)o->tile[i / o->tile_rows] + i % o->tile_rows * o->columns * (tess_is_half(o->dtype) ? 2 : 4);
}
/* Makes the step fail with TESS_FAILED and the formatted text, when its tasks have ended. */
void tess_call_fail(const tess_call *c, const char *format, ...) TESS_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif

#endif
