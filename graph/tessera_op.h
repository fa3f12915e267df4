/* tessera.h, of ops from outside: a program's own, which the library plans, caps, shares out over ranks, computes again
 * and saves as its own. docs/own-op.c is a program that has one, and docs/add-an-op.md says what it may be.
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
#include "tessera_call.h"
#include "tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tess_op tess_op;
typedef struct tess_node tess_node;

/* A shape: (B, T, C), (B, T) of indices, (rows, columns) or (rows) of a parameter; rank 0: it is left out. */
typedef struct tess_shape {
    int rank;
    int64_t dim[3];
} tess_shape;

/* What a shape function is told, and says. */
typedef struct tess_shapes {
    const void *attributes;
    tess_shape in[TESS_CALL_INPUTS];
    tess_shape out;        /* (B, T, C), with the B of its inputs; at first that of the first activation */
    int64_t aux;           /* floats for each row of the output that forward leaves for backward; at first 0 */
    size_t scratch;        /* bytes that a task has for itself; at first 0 */
    const tess_node *node; /* the library's */
} tess_shapes;
/* Returns TESS_INVALID with one line that has the op, all shapes, and what the format says. */
tess_status tess_shapes_wrong(const tess_shapes *s, const char *format, ...) TESS_PRINTF(2, 3);

/* One direction's work. */
typedef struct tess_op_functions {
    tess_function cpu;
    tess_function cuda;                  /* NULL: the CPU does it, and tiles come and go */
    double (*flops)(const tess_call *c); /* in products of matrices, for plans, of operands without data; NULL: none */
} tess_op_functions;

/* What backward reads of the forward pass, besides gradients. */
enum {
    TESS_READS_IN0 = 1,
    TESS_READS_IN1 = 2,
    TESS_READS_IN2 = 4,
    TESS_READS_IN3 = 8,
    TESS_READS_IN4 = 16,
    TESS_READS_OUT = 256,
    TESS_READS_AUX = 512 /* what the node's own forward left it */
};

typedef struct tess_op_conf {
    const char *name;  /* of small letters, digits and _, no more than 32; not one of ours */
    const char *takes; /* the names of its inputs, at most 5, for messages: "x, gain, bias?"; ? may be NULL */
    size_t attributes; /* bytes of a node's own settings, a struct of numbers; 0: it has none */
    /* Checks shapes and attributes, and says the output's. NULL: all activations have one shape, and so has it. */
    tess_status (*shape)(tess_shapes *s);
    tess_op_functions forward, backward; /* backward.cpu NULL: it has no gradient, and no step that needs one */
    unsigned reads;                      /* what backward has, TESS_READS_IN0 | ... */
    unsigned dtypes;                     /* of graphs that its functions know, 1 << TESS_F32 | ...; 0: all three */
    bool by_columns; /* a column of the output is made of that column of the activations: ranks of the tensor dimension
                        share them out. Not where it has a parameter */
} tess_op_conf;

/* Registers an op, before or after tess_start, until the process ends; the description is copied. One that was
 * registered already is found again. A description that cannot be is TESS_INVALID. */
tess_status tess_op_register(const tess_op_conf *conf, const tess_op **op) TESS_NODISCARD;
/* Adds it to the graph of its inputs, with a copy of `attributes`; as many inputs as `takes` names, NULL for what is
 * left out. Returns what it makes. */
tess_tensor *tess_apply(const tess_op *op, tess_tensor *const *in, int inputs, const void *attributes);

#ifdef __cplusplus
}
#endif

#endif
