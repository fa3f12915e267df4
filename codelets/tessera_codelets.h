/* tessera.h: optimizers, and the settings of single ops. Within the sources it is the first part of codelets.h. */
#ifndef TESSERA_CODELETS_H
#define TESSERA_CODELETS_H
#include "runtime/tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

typedef enum tess_optimizer_type {
    TESS_OPTIMIZER_ADAM,
    TESS_OPTIMIZER_ADAMW,
    TESS_OPTIMIZER_SGD,
    TESS_OPTIMIZER_LION,
    TESS_OPTIMIZER_ADAGRAD,
    TESS_OPTIMIZERS
} tess_optimizer_type;

/* The format in which a matrix's moments are kept from step to step: fp32; bf16, rounded up or down at random so that
 * the mean is kept; or 8 bits an element with a scale for each block of up to 256. Moments of vectors, and of matrices
 * with rows shorter than TESS_KEEP_WIDTH, are always fp32. */
typedef enum tess_keeping { TESS_KEEP_F32, TESS_KEEP_BF16, TESS_KEEP_INT8 } tess_keeping;
enum { TESS_KEEP_WIDTH = 8 };

/* How a step changes parameters. A program takes it from one of the functions below and changes what it likes:
 *
 *     tess_optimizer o = tess_adamw();
 *     o.weight_decay = 0.1, o.clip = 1; */
typedef struct tess_optimizer {
    double beta1, beta2;        /* Adam, AdamW, Lion: decay of the moments */
    double eps;                 /* Adam, AdamW, Adagrad: it is added to the denominator */
    double weight_decay;        /* the share of a parameter that is taken from it, times the learning rate */
    bool l2;                    /* Adam: weight_decay is added to the gradient, as SGD and Adagrad always do it */
    bool no_decay_1d;           /* vectors do not decay */
    double clip;                /* the largest global norm of the gradient, which is scaled down to it; 0: any */
    tess_optimizer_type type;   /* all steps that train one graph have the same */
    double momentum, dampening; /* SGD; without momentum SGD has no states */
    bool nesterov;              /* SGD: Nesterov's momentum */
    double lr_decay, initial;   /* Adagrad: decay of the learning rate; the first value of the sum of squares */
    tess_keeping keeping;       /* the format of the moments */
} tess_optimizer;

/* Each returns an optimizer with the numbers that PyTorch (Lion: DeepSpeed) gives it by default, without weight decay
 * and without clipping. */
tess_optimizer tess_adamw(void);
/* Returns SGD with that momentum; 0: none. */
tess_optimizer tess_sgd(double momentum);
tess_optimizer tess_lion(void);
tess_optimizer tess_adagrad(void);

/* ---- settings of ops --------------------------------------------------------------------------------------------- */

/* Which formula tess_gelu computes: the approximation by tanh, or the exact one by erf. */
typedef enum tess_gelu_kind { TESS_GELU_TANH, TESS_GELU_ERF } tess_gelu_kind;

/* How tess_rope slows its rotations down for sequences longer than those a model was first trained on. PLAIN leaves
 * them, LINEAR divides all speeds by `factor`. LLAMA3 divides those of pairs that turn fewer than `low` times in
 * `length` places, leaves those that turn more than `high` times, and goes smoothly from one to the other between. YARN
 * leaves pairs up to number `low`, divides those from `high` on, and goes in a line from one to the other. LONG divides
 * the speed of each pair by its own factor in `pair`. All kinds also multiply rotated elements by `size`. */
typedef enum tess_rope_kind {
    TESS_ROPE_PLAIN,
    TESS_ROPE_LINEAR,
    TESS_ROPE_LLAMA3,
    TESS_ROPE_YARN,
    TESS_ROPE_LONG
} tess_rope_kind;
enum { TESS_MOST_PAIRS = 128 }; /* the most pairs that LONG has factors for */
typedef struct tess_rope_scaling {
    tess_rope_kind kind;
    double factor, low, high, length;
    float size; /* the factor of rotated elements; 0: 1 */
    float pair[TESS_MOST_PAIRS];
} tess_rope_scaling;

enum { TESS_MOST_BUCKETS = 256 }; /* the most buckets that tess_attention_conf.bias may have */

#ifdef __cplusplus
}
#endif

#endif
