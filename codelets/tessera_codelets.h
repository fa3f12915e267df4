/* tessera.h, of the codelets: what ops are told that is theirs. Within the sources it is the first part of codelets.h.
 */
#ifndef TESSERA_CODELETS_H
#define TESSERA_CODELETS_H
#include "tessera_runtime.h"

typedef enum tess_gelu_kind { TESS_GELU_TANH, TESS_GELU_ERF } tess_gelu_kind;

/* What becomes of the speeds at which pairs turn, where a model sees longer sequences than it was first trained on:
 * nothing, all divided by `factor`, or as Llama 3: those that turn fewer than `low` times in `length` positions are
 * divided, those that turn more than `high` times stay, and between there is a slope. */
typedef enum tess_rope_kind { TESS_ROPE_PLAIN, TESS_ROPE_LINEAR, TESS_ROPE_LLAMA3 } tess_rope_kind;
typedef struct tess_rope_scaling {
    tess_rope_kind kind;
    double factor, low, high, length;
} tess_rope_scaling;

enum { TESS_MOST_BUCKETS = 256 }; /* of a bias by distance */

/* What an optimizer's moments of matrices are kept in from step to step: bf16 is rounded by dice, up or down, so that
 * the mean is kept; int8 is a code an element and a scale for each block of up to 256. Those of vectors, and of rows
 * shorter than TESS_KEEP_WIDTH, are in fp32. */
typedef enum tess_keeping { TESS_KEEP_F32, TESS_KEEP_BF16, TESS_KEEP_INT8 } tess_keeping;
enum { TESS_KEEP_WIDTH = 8 };

/* How a step changes parameters. Zeros beside the type are what the optimizer does without that: momentum 0 keeps no
 * momentum. The type of all zeros is Adam's, as which AdamW has l2 false. */
typedef struct tess_optimizer {
    double beta1, beta2, eps, weight_decay; /* Adam, Lion: betas; Adam, Adagrad: eps */
    bool l2;                                /* Adam: decay is added to the gradient; it always is in SGD and Adagrad */
    bool no_decay_1d;                       /* vectors do not decay */
    double clip;                            /* by the global norm; 0: off */
    tess_optimizer_type type;
    double momentum, dampening; /* SGD */
    bool nesterov;
    double lr_decay, initial; /* Adagrad: what its sum of squares begins with */
    tess_keeping keeping;     /* of moments */
} tess_optimizer;
/* With the numbers that torch, or DeepSpeed, gives them, without decay or clipping. */
#define TESS_ADAMW                                                                                                     \
    (TESS_LITERAL(tess_optimizer){0.9, 0.999, 1e-8, 0, false, false, 0, TESS_OPTIMIZER_ADAMW, 0, 0, false, 0, 0,       \
                                  TESS_KEEP_F32})
#define TESS_SGD(momentum)                                                                                             \
    (TESS_LITERAL(tess_optimizer){0, 0, 0, 0, false, false, 0, TESS_OPTIMIZER_SGD, momentum, 0, false, 0, 0,           \
                                  TESS_KEEP_F32})
#define TESS_LION                                                                                                      \
    (TESS_LITERAL(tess_optimizer){0.9, 0.999, 0, 0, false, false, 0, TESS_OPTIMIZER_LION, 0, 0, false, 0, 0,           \
                                  TESS_KEEP_F32})
#define TESS_ADAGRAD                                                                                                   \
    (TESS_LITERAL(tess_optimizer){0, 0, 1e-10, 0, false, false, 0, TESS_OPTIMIZER_ADAGRAD, 0, 0, false, 0, 0,          \
                                  TESS_KEEP_F32})

#endif
