/* tessera.h: optimizers, the settings of single ops, and what functions of a program's own op are called with. Within
 * the sources it is the first part of codelets.h. */
#ifndef TESSERA_CODELETS_H
#define TESSERA_CODELETS_H
#include "runtime/tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The most elements of a head, and rows of a convolution, that linear attention takes. */
enum { TESS_DELTA_WIDEST = 256, TESS_DELTA_TAPS = 16 };

/* ---- optimizers -------------------------------------------------------------------------------------------------- */

typedef enum tess_optimizer_type {
    TESS_OPTIMIZER_ADAM,
    TESS_OPTIMIZER_ADAMW,
    TESS_OPTIMIZER_SGD,
    TESS_OPTIMIZER_LION,
    TESS_OPTIMIZER_ADAGRAD,
    TESS_OPTIMIZER_MUON,
    TESS_OPTIMIZER_ADAFACTOR,
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
    double momentum, dampening; /* SGD, Muon; without momentum SGD has no states */
    bool nesterov;              /* SGD, Muon: Nesterov's momentum */
    double lr_decay, initial;   /* Adagrad: decay of the learning rate; the first value of the sum of squares */
    tess_keeping keeping;       /* the format of the moments */
    tess_dtype gradients;       /* that of a matrix' gradient while it waits for its update: TESS_F32 or TESS_BF16 */
    int ns_steps;               /* Muon: iterations that make a matrix orthogonal */
    bool match_rms;             /* Muon: steps are as long as AdamW's: torch's adjust_lr_fn "match_rms_adamw" */
    /* Adafactor, as transformers has it: eps is what squares have added to them. */
    double eps2, clip_threshold, decay_rate; /* eps2: the least size of a parameter */
    bool scale_parameter, relative_step, warmup_init;
} tess_optimizer;

/* Each returns an optimizer with the numbers that PyTorch (Lion: DeepSpeed) gives it by default, without weight decay
 * and without clipping. */
tess_optimizer tess_adamw(void);
/* Returns SGD with that momentum; 0: none. */
tess_optimizer tess_sgd(double momentum);
tess_optimizer tess_lion(void);
tess_optimizer tess_adagrad(void);
/* Returns Adafactor with transformers' numbers; the learning rate is the most that relative steps have, 1e-2 there. */
tess_optimizer tess_adafactor(void);
/* Returns Muon, which has hidden matrices (tess_param_set_hidden), with AdamW for all else. */
tess_optimizer tess_muon(void);

/* ---- settings of ops --------------------------------------------------------------------------------------------- */

/* Losses of pairs of sequences, a chosen and a rejected one, and of sequences with a label, good or bad. Let c and r be
 * the sums of the log-probabilities of their targets, and h how much more likely the model makes the chosen one: DPO:
 * beta ((c - c') - (r - r')), where c' and r' are those of a reference; SIMPO: beta (mean of c - mean of r) - gamma;
 * ORPO: the difference of the log-odds of the two means. The loss is -log sigmoid(h), for ORPO times beta; `smoothing`
 * is the share of pairs that are the wrong way round. To it comes `nll` times what a cross entropy would be of the
 * chosen one, its mean over targets. KTO is of one sequence: with k a bound that the reference gives, h is beta ((c -
 * c') - k) of a good one, minus that of a bad one, and the loss 1 - sigmoid(h), times `desirable` or `undesirable`. */
typedef enum tess_preference_kind {
    TESS_PREFERENCE_NONE,
    TESS_PREFERENCE_DPO,
    TESS_PREFERENCE_ORPO,
    TESS_PREFERENCE_SIMPO,
    TESS_PREFERENCE_KTO
} tess_preference_kind;
enum {
    TESS_PREFERENCE_NUMBERS = 4
}; /* beside the loss: whether the chosen one has the larger reward, or h is above 0; the margin, or k; both rewards */
enum { TESS_KTO_REFERENCE = 3 }; /* what KTO's reference says of a sequence: its score, k, and 1 of a good one or 0 */
typedef struct tess_preference_conf {
    tess_preference_kind kind;
    float beta, gamma, smoothing, nll, desirable, undesirable;
} tess_preference_conf;

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

/* ---- a call of a program's own op (may still change) ---------------------------------------------------------------
 *
 * It is the argument of the op's functions (tessera_ops.h). They see one tile of rows and compute from it alone, so
 * that the same operands give the same bits wherever and however often they are computed.
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
 * Several workers run them at the same time. They keep no state, and call nothing of the library but tess_load and its
 * kin, and the functions of this section. */

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
