/* tessera.h: ops of the program's own. The library plans them, shards them over ranks, recomputes them and saves their
 * parameters as it does with its own ops. docs/examples/own-op.c is a program that has one; docs/add-an-op.md describes
 * what an op may be.
 *
 *     static const tess_op *op;
 *     TESS_TRY(tess_op_register(&(tess_op_conf){.name = "square",
 *                                               .takes = "x",
 *                                               .forward = {.cpu = square},
 *                                               .backward = {.cpu = square_backward},
 *                                               .reads = TESS_READS_IN0, // dx = 2 x dy needs x
 *                                               .by_columns = true},
 *                               &op));
 *     x = tess_apply(op, &x, 1, NULL); // among tess_linear and its kin
 */
#ifndef TESSERA_OP_H
#define TESSERA_OP_H
#include "codelets/tessera_call.h"
#include "graph/tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tess_op tess_op;
typedef struct tess_node tess_node;

/* A shape: (B, T, C) of activations, (B, T) of indices, (rows, columns) or (rows) of a parameter. Rank 0 stands for an
 * input that is left out. */
typedef struct tess_shape {
    int rank;
    int64_t dim[3];
} tess_shape;

/* The argument of a shape function: it reads `attributes` and `in`, and sets the rest. */
typedef struct tess_shapes {
    const void *attributes;
    tess_shape in[TESS_CALL_INPUTS];
    tess_shape out;        /* (B, T, C) with the B of the inputs; preset to the shape of the first activation */
    int64_t aux;           /* floats that forward leaves for backward, for each row of the output; preset to 0 */
    size_t scratch;        /* bytes of scratch for each task; preset to 0 */
    const tess_node *node; /* private to the library */
} tess_shapes;
/* Records an error with the op, all shapes and the formatted text, and returns TESS_INVALID. */
tess_status tess_shapes_wrong(const tess_shapes *s, const char *format, ...) TESS_PRINTF(2, 3);

/* The functions of one direction. */
typedef struct tess_op_functions {
    tess_function cpu;
    tess_function cuda;                  /* NULL: a GPU's tiles are copied to RAM for the CPU, and back */
    double (*flops)(const tess_call *c); /* returns the flops of its matrix products, for plans; operands then have no
                                            data. NULL: it has no products */
} tess_op_functions;

/* What backward reads besides gradients; they are combined with |. */
enum {
    TESS_READS_IN0 = 1,
    TESS_READS_IN1 = 2,
    TESS_READS_IN2 = 4,
    TESS_READS_IN3 = 8,
    TESS_READS_IN4 = 16,
    TESS_READS_OUT = 256,
    TESS_READS_AUX = 512 /* the floats that forward left */
};

typedef struct tess_op_conf {
    const char *name;  /* up to 32 small letters, digits and _; not the name of an op of the library */
    const char *takes; /* the names of its inputs, at most 5, for messages: "x, gain, bias?"; one with ? may be NULL */
    size_t attributes; /* bytes of a node's settings, a struct of numbers; 0: it has none */
    /* Checks shapes and attributes, and sets the output's shape. NULL: all activations have the same shape, and so has
     * the output. */
    tess_status (*shape)(tess_shapes *s);
    tess_op_functions forward, backward; /* backward.cpu NULL: no gradient passes through the op */
    unsigned reads;                      /* what backward reads, TESS_READS_IN0 | ... */
    unsigned dtypes; /* dtypes of graphs that its functions know, 1 << TESS_F32 | ...; 0: all three */
    bool by_rows;    /* each row of the output depends on that row of the activations alone; else sequences that are
                        longer than a tile are gathered for the op, on one of the ranks that share them */
    bool by_columns; /* each column of the output depends on that column of the activations alone, so that tensor
                        parallelism can shard the columns; false where it has a parameter */
} tess_op_conf;

/* Registers an op until the process ends, before or after tess_start, and stores it in *op. The description is copied;
 * the same one again stores the same op. A description that contradicts itself is TESS_INVALID. */
tess_status tess_op_register(const tess_op_conf *conf, const tess_op **op) TESS_NODISCARD;
/* Adds an op to the graph of its inputs, and returns its output. There are as many inputs as `takes` names, NULL for
 * those that are left out; `attributes` is copied. */
tess_tensor *tess_apply(const tess_op *op, tess_tensor *const *in, int inputs, const void *attributes);

#ifdef __cplusplus
}
#endif

#endif
