/* tessera.h, of the work of an op from outside: what its functions see, which is one tile of rows, and nothing else.
 * They compute from it alone: the same operands give the same bits, whoever computes, and however often.
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
 * They run on a worker, several at a time: no state of their own, no call of the library but those of this header and
 * of tessera_elements.h. */
#ifndef TESSERA_CALL_H
#define TESSERA_CALL_H
#include "tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TESS_CALL_INPUTS = 5 };

/* A tensor's rows, or a parameter. */
typedef struct tess_operand {
    void *data; /* (rows, columns), row-major and dense; NULL: it is not there */
    int64_t rows, columns;
    tess_dtype dtype;
    bool add;          /* a gradient: add to what is there. Else write all of it, which may hold anything */
    int64_t tiles;     /* a large parameter is cut into tiles of rows; `data` is the first of: */
    void *const *tile; /* row i is row i % tile_rows of tile[i / tile_rows] */
    int64_t tile_rows; /* with one tile these are all rows */
} tess_operand;

typedef struct tess_call {
    /* Of activations (B, T, C) the rows of `sequences` whole ones, T each, in their order; of indices (B, T) as many
     * int32, T rows of one each; of a parameter all of it: a matrix is of the graph's dtype, a vector is fp32. Backward
     * has those that the op's `reads` names. */
    tess_operand in[TESS_CALL_INPUTS];
    tess_operand out; /* forward writes it; backward has it if it reads it */
    tess_operand aux; /* fp32, a row for each of the output's: forward leaves it for backward */
    /* Backward: the gradient of the output, and those it is to leave, of activations in their dtype, of parameters in
     * fp32. Indices have none, nor has what was left out. */
    tess_operand d_out, d_in[TESS_CALL_INPUTS];
    const void *attributes; /* of this node */
    tess_dtype dtype;       /* of activations */
    int64_t sequences;
    int64_t first; /* the first one's number in the step's global batch */
    bool train;    /* the step has a backward pass */
    void *scratch; /* as many bytes as the op's shape function asked for, which hold anything */
    void *stream;  /* a CUDA function's cudaStream_t: all that it does goes there, and it never waits; pointers are the
                      device's then, but for `attributes` and `tile` */
    const struct tess_work *work; /* the library's */
} tess_call;
typedef void (*tess_function)(const tess_call *c);

/* Returns row i of an operand. */
static inline void *tess_row(const tess_operand *o, int64_t i)
{
    return (char *)o->tile[i / o->tile_rows] + i % o->tile_rows * o->columns * (tess_is_half(o->dtype) ? 2 : 4);
}
/* Ends the run behind this step with TESS_FAILED and what the format says. */
void tess_call_fail(const tess_call *c, const char *format, ...) TESS_PRINTF(2, 3);

#ifdef __cplusplus
}
#endif

#endif
