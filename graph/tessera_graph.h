/* tessera.h: a network described as tensors and ops, and the step that trains it. Within the sources it is the first
 * part of graph.h.
 *
 * Describing a network never fails on the spot. An op that is given wrong shapes, or NULL, returns NULL; making the
 * step then returns the first error, which names the op and the shapes. The graph owns its tensors. Other mistakes are
 * TESS_INVALID where they would do harm: an input that was not fed, an index beyond the rows of its table, parameters
 * that were neither drawn nor loaded, a call before tess_start or after tess_stop. tess_stop frees the values of the
 * parameters; the graph stays, and may be drawn or loaded again after the next tess_start. */
#ifndef TESSERA_GRAPH_H
#define TESSERA_GRAPH_H
#include "codelets/tessera_codelets.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tess_graph tess_graph;
typedef struct tess_tensor tess_tensor;
typedef struct tess_step tess_step;
typedef struct tess_cache tess_cache; /* tessera_ops.h */

/* ---- the graph and its parameters -------------------------------------------------------------------------------- */

/* Settings of a graph; zeros are the defaults. */
typedef struct tess_graph_conf {
    tess_dtype dtype;      /* of activations and matrices; bf16 and fp16 matrices have fp32 masters */
    bool fp8;              /* of bf16: linears in blocks, but no routers, multiply what is rounded to e4m3 and e5m2 */
    int64_t tile_rows;     /* rows (tokens) of an activation's tile, at most; 0: 1024 */
    int64_t tile_elements; /* the most elements of a parameter's tile, four times as many in a stack; 0: 2.5 Mi */
    int64_t loss_rows;     /* the most rows whose logits exist at the same time, 2^29 of them at most; 0: 512 */
    int64_t loss_align;    /* each row of logits begins at a multiple of this many elements; 0: 1 */
    int64_t stripes;       /* the least number of tiles of a matrix with 2^18 elements or more; 0: 1 */
    tess_grid grid;        /* the ranks that share the model; zeros: this one alone */
    tess_graph *share;     /* a graph that lives longer, whose parameters of the same names this one uses */
} tess_graph_conf;

/* Makes an empty graph, which the caller frees; NULL stands for zeros. */
tess_graph *tess_graph_new(const tess_graph_conf *conf);
/* Frees a graph with its tensors and parameters. */
void tess_graph_free(tess_graph *g);

/* How a parameter is drawn: filled with a constant, or from a distribution around 0. */
typedef enum tess_init_kind { TESS_INIT_FILL, TESS_INIT_NORMAL, TESS_INIT_UNIFORM } tess_init_kind;
typedef struct tess_init {
    tess_init_kind kind;
    float value; /* the constant, the standard deviation, or the largest distance from 0 */
} tess_init;
#define TESS_ZERO       (TESS_LITERAL(tess_init){TESS_INIT_FILL, 0})
#define TESS_ONE        (TESS_LITERAL(tess_init){TESS_INIT_FILL, 1})
#define TESS_NORMAL(s)  (TESS_LITERAL(tess_init){TESS_INIT_NORMAL, s})
#define TESS_UNIFORM(s) (TESS_LITERAL(tess_init){TESS_INIT_UNIFORM, s})

/* Adds an input of token ids or other indices, (B, T). All inputs of a graph have the same B. */
tess_tensor *tess_input(tess_graph *g, const char *name, int64_t batch, int64_t length);
/* Adds a parameter: a matrix (rows, columns), or with 1 column a vector (rows). A name that the graph has already
 * returns that parameter. */
tess_tensor *tess_param(tess_graph *g, const char *name, int64_t rows, int64_t columns, tess_init init);
/* Adds a parameter that is a matrix even with 1 column. */
tess_tensor *tess_matrix(tess_graph *g, const char *name, int64_t rows, int64_t columns, tess_init init);
/* Excludes a parameter from training: it has no gradient and no moments, and a bf16 matrix has no master. The call
 * comes before the first step of the graph is made, and holds for graphs that share the parameter. */
tess_status tess_param_freeze(tess_tensor *p) TESS_NODISCARD;
/* Returns whether a parameter is frozen. */
bool tess_param_frozen(const tess_tensor *p);
/* Sets rates of a parameter's own for steps that are made later: its learning rate is the step's times lr_scale; a
 * weight_decay of 0 or more replaces the optimizer's, whatever no_decay_1d says. */
tess_status tess_param_set_rates(tess_tensor *p, double lr_scale, double weight_decay) TESS_NODISCARD;
/* Says whether a matrix is a hidden one, which Muon updates, where it has other matrices by AdamW; and whether PyTorch
 * has its rows as columns (turned), by which Muon's step is as long. Unsaid, those are hidden that ops multiply by and
 * do nothing else with: no table of an embedding, and not what tess_cross_entropy has. The call comes before the first
 * step that trains is made. */
tess_status tess_param_set_hidden(tess_tensor *p, bool hidden, bool turned) TESS_NODISCARD;
/* Returns whether a parameter is a hidden matrix. */
bool tess_param_hidden(const tess_tensor *p);

/* Names a tensor for errors and traces, and returns it. */
tess_tensor *tess_name(tess_tensor *t, const char *format, ...) TESS_PRINTF(2, 3);
/* Returns a tensor's name. */
const char *tess_tensor_name(const tess_tensor *t);
/* Stores a tensor's shape, and returns how many dimensions it has. */
int tess_tensor_shape(const tess_tensor *t, int64_t shape[3]);
/* Begins a block, to which the ops behind it belong. Blocks are the units of activation checkpointing and of a
 * pipeline's sections. */
void tess_block(tess_graph *g, const char *name);
/* Ends the block; the ops behind it belong to none. */
void tess_block_end(tess_graph *g);

/* Returns the number of the graph's parameters. */
int tess_graph_params(const tess_graph *g);
/* Returns the parameter of that index, from 0. */
tess_tensor *tess_graph_param(const tess_graph *g, int index);
/* Returns the parameter of that name, or NULL where there is none. */
tess_tensor *tess_graph_find_param(const tess_graph *g, const char *name);
/* Returns the number of elements of all parameters. */
int64_t tess_graph_param_elements(const tess_graph *g);
/* Returns the number of elements of the parameters that are not frozen. */
int64_t tess_graph_trained_elements(const tess_graph *g);

/* ---- ops: x is (B, T, C), and so is the result where the comment has no other shape -------------------------------*/

/* Returns the rows of table (V, C) that ids (B, T) name, plus the first T rows of positions (>= T, C) unless that is
 * NULL. */
tess_tensor *tess_embedding(tess_tensor *ids, tess_tensor *table, tess_tensor *positions);
/* Returns the rows of table (V, C) that ids name, times a scale that is rounded as activations are. */
tess_tensor *tess_embedding_scaled(tess_tensor *ids, tess_tensor *table, float scale);
/* Makes later embeddings of these ids add noise to their rows in steps that train (NEFTune). It is uniform within
 * alpha / sqrt(T C), and depends on the seed, the step's number and the position alone, as dropout does. Returns ids.
 */
tess_tensor *tess_embedding_noise(tess_tensor *ids, float alpha);
/* Returns x w^T + bias, (B, T, out): w is (out, C), bias is (out) or NULL. */
tess_tensor *tess_linear(tess_tensor *x, tess_tensor *w, tess_tensor *bias);
/* Returns z = x w^T + by (x a^T) b^T + bias, rescaled as DoRA does: (z - bias) m / |w + by b a| + bias, where |...| are
 * the lengths of the rows and m (out) is a parameter. The backward pass takes the lengths as constants. */
tess_tensor *tess_rescaled(tess_tensor *z, tess_tensor *w, tess_tensor *a, tess_tensor *b, float by, tess_tensor *m,
                           tess_tensor *bias);
/* A callback of tess_graph_on_linear: it gets the caller's context, the operands of a tess_linear and its result y, and
 * returns the tensor that stands in the place of y. */
typedef tess_tensor *(*tess_linear_hook)(void *context, tess_tensor *x, tess_tensor *w, tess_tensor *bias,
                                         tess_tensor *y);
/* Makes every later tess_linear of the graph call `hook` and return what it returns. NULL removes the hook. */
void tess_graph_on_linear(tess_graph *g, tess_linear_hook hook, void *context);
/* Returns each row less its mean, divided by its standard deviation, times gain (C), plus bias (C). */
tess_tensor *tess_layernorm(tess_tensor *x, tess_tensor *gain, tess_tensor *bias, float eps);
/* Returns each row divided by the root of its mean square, times gain (C). With gain (D) each head of D elements is
 * normalized by itself. */
tess_tensor *tess_rmsnorm(tess_tensor *x, tess_tensor *gain, float eps);
/* Returns the same with gain + shift in the place of gain, for gains that are stored as their difference from 1. */
tess_tensor *tess_rmsnorm_shifted(tess_tensor *x, tess_tensor *gain, float shift, float eps);
/* Returns gelu(x). */
tess_tensor *tess_gelu(tess_tensor *x, tess_gelu_kind kind);
/* Returns x sigmoid(x). */
tess_tensor *tess_silu(tess_tensor *x);
/* Returns sigmoid(x). */
tess_tensor *tess_sigmoid(tess_tensor *x);
/* Returns silu of the first half of each row times its second half. */
tess_tensor *tess_swiglu(tess_tensor *x);
/* Returns gate sigmoid(sharp gate) (up + 1) of each pair of neighbours (gate, up) in a row, where the gate is at most
 * `limit` and up from -limit to limit. */
tess_tensor *tess_swiglu_clamped(tess_tensor *x, float sharp, float limit);
/* Returns max(x, 0). */
tess_tensor *tess_relu(tess_tensor *x);
/* Returns x times a constant. */
tess_tensor *tess_scaled(tess_tensor *x, float by);
/* Returns cap tanh(x / cap). */
tess_tensor *tess_tanh(tess_tensor *x, float cap);
/* Returns a + b. */
tess_tensor *tess_add(tess_tensor *a, tess_tensor *b);
/* Returns the product of a and b, element by element. */
tess_tensor *tess_mul(tess_tensor *a, tess_tensor *b);
/* Returns x with a share p of its elements set to zero and the others divided by 1 - p. Steps that do not train return
 * x. */
tess_tensor *tess_dropout(tess_tensor *x, float p);

typedef struct tess_rope_conf {
    int64_t dim;               /* elements of a head */
    int64_t rotary;            /* elements of a head that rotate; 0: all */
    float base;                /* the base of the frequencies; 0: 10000 */
    tess_rope_scaling scaling; /* for long sequences */
    bool neighbours;           /* pairs are (2i, 2i+1), not (i, i + rotary/2) */
    bool last;                 /* the last elements of a head rotate, not the first */
    int64_t of, turning;       /* the first `turning` of every `of` heads are rotated; of = 0: all are. For the input of
                                * tess_attention_packed they are 2 of 3 with by_head, else q's and k's of all heads */
    tess_tensor *places;       /* an input (B, T), the position of each row; NULL: its index in the sequence */
} tess_rope_conf;
/* Returns x with the pairs of each head rotated by the position of their row. */
tess_tensor *tess_rope(tess_tensor *x, tess_rope_conf conf);

typedef struct tess_attention_conf {
    int64_t heads, groups; /* heads of q, and of k and v; groups 0: as many as heads */
    float scale;           /* 0: 1/sqrt(dim) */
    float dropout;         /* of the weights that softmax returns, in 256ths */
    bool causal;           /* a query sees no key after its own */
    int64_t window;      /* sliding window, with `causal`: the most keys that a query sees, its own the last; 0: all */
    bool by_head;        /* tess_attention_packed: q, k and v of each head lie together */
    float cap;           /* logits become cap tanh(logit / cap); 0: they stay */
    tess_tensor *bounds; /* an input (B, 2T): for each query the first key that it sees, then for each query the key
                            after its last one. Padding sees none and costs nothing. NULL: every query sees all keys */
    tess_tensor *bias;   /* a parameter (buckets, heads), added to logits by the distance of key and query: small
                            distances have a bucket each, larger ones share wider buckets up to `reach`; NULL: none */
    int64_t reach;       /* the distance at which the last bucket begins */
    tess_tensor *sinks;  /* a parameter (heads): a logit of each head that takes part in softmax and has no value; NULL:
                            there are none */
    tess_cache *cache;   /* keys and values of earlier steps (tessera_ops.h); NULL: none */
} tess_attention_conf;
/* Returns softmax(q k^T scale) v of each head, (B, T, heads*dim). Without `causal`, k and v may have another length
 * than q. */
tess_tensor *tess_attention(tess_tensor *q, tess_tensor *k, tess_tensor *v, tess_attention_conf conf);
/* Returns the same of q, k and v in one tensor, as one tess_linear makes them: all heads of q, then of k, then of v. */
tess_tensor *tess_attention_packed(tess_tensor *qkv, tess_attention_conf conf);

typedef struct tess_delta_conf {
    int64_t heads, groups; /* heads of v, and of q and k: a multiple of these; groups 0: as many as heads */
    int64_t dim;           /* elements of a head of q and k */
    tess_tensor *bounds;   /* as in tess_attention_conf: a text that begins at its first key knows of none before */
    tess_cache *cache;     /* states of earlier steps (tessera_ops.h); NULL: none */
} tess_delta_conf;
/* Returns linear attention by the gated delta rule, (B, T, heads * elements of a head of v). x has all heads of q, then
 * those of k, then those of v, before a causal convolution with taps (columns of x, 2 to 16) and silu; b and a
 * (B, T, heads), logs and biases (heads) are its gates: sigmoid(b), and exp(-exp(logs) log(1 + exp(a + biases))). */
tess_tensor *tess_delta_rule(tess_tensor *x, tess_tensor *taps, tess_tensor *b, tess_tensor *a, tess_tensor *logs,
                             tess_tensor *biases, tess_delta_conf conf);

/* Returns the row of each sequence that index (B, 1) names, (B, 1, C). */
tess_tensor *tess_pick(tess_tensor *x, tess_tensor *index);
/* Returns the loss: the mean over targets >= 0 of -log softmax(x w^T + bias)[target]; bias may be NULL. Logits exist
 * for loss_rows rows at a time, never for a whole batch. */
tess_tensor *tess_cross_entropy(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets);
/* Returns the loss of logits that are replaced by cap tanh(logit / cap); cap 0: they stay. */
tess_tensor *tess_cross_entropy_capped(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets,
                                       float cap);
/* Returns a loss plus a second cross-entropy, which is the mean over its own targets. */
tess_tensor *tess_loss_add(tess_tensor *loss, tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets);

/* ---- the numbers of a plan (may still change) ----------------------------------------------------------------------
 *
 * A program that prints its plan, or only runs by it, need not read them. */

/* The forecast time of a step, in seconds: of the whole step, and of workers, reads and writes while each is busy. */
typedef struct tess_forecast {
    double seconds, work, read, write;
    uint64_t early; /* bytes of tiles that are in RAM because tasks begin before earlier tasks of the list have ended */
} tess_forecast;

/* RAM above the disk. All members but `time` are bytes. */
typedef struct tess_placement {
    uint64_t needed;        /* the least RAM that may do */
    uint64_t largest_task;  /* tiles of the task that uses the most */
    uint64_t room;          /* RAM for all tiles but inputs, scalars and scratch */
    uint64_t slack;         /* the part of the room that is kept for prefetches and late evictions */
    uint64_t read, written; /* read from disk and written to it in a step */
    uint64_t bound;         /* no plan within this RAM moves less, both ways together */
    uint64_t disk;          /* tiles that rest on disk */
    uint64_t fixed;         /* RAM beside the room for inputs, scalars and scratch */
    uint64_t buffers;       /* RAM beside the room for the workers' buffers of products */
    uint64_t margin;        /* RAM beside the room that tiles take beyond their own bytes */
    tess_forecast time;     /* zeros where the machine's rates are not known */
} tess_placement;

/* The GPU above RAM. All numbers are bytes. */
typedef struct tess_gpu_placement {
    uint64_t needed;        /* the least memory that may do */
    uint64_t memory;        /* the part of the GPU's memory for tiles; 0: there is no plan for a GPU */
    uint64_t room;          /* the part of `memory` whose tiles the plan places; StarPU has the rest for inputs and
                               scratch */
    uint64_t all;           /* the room with which no tile would have to leave */
    uint64_t read, written; /* copied to the GPU and back from it in a step */
    uint64_t bound;         /* no plan copies less, both ways together */
    uint64_t home;          /* parameters and states that live on the GPU alone */
} tess_gpu_placement;

/* How a step is laid out on a machine. tess_step_fit fills it in; it is a value, and needs no call to free it. */
typedef struct tess_plan {
    bool by_layer, late, pairs; /* the order of the step, as in tess_step_layout */
    int kept, again;            /* `kept` of the `again` activations that recomputation could make again are kept */
    bool pipeline;              /* ranks are sections of a pipeline */
    unsigned lanes;             /* lanes of messages between GPUs, which do not wait for each other; 0: one */
    int workers;                /* CPU workers */
    uint64_t cpu_bytes;         /* the cap on RAM that the plan keeps to; 0: there is none */
    uint64_t disk_bytes;        /* the size of the disk's files; 0: nothing rests there */
    tess_gpu_placement gpu;     /* zeros without a GPU, or with several in one process */
    tess_placement ram;         /* without a disk, `room` alone is set */
} tess_plan;

/* ---- the step ---------------------------------------------------------------------------------------------------- */

/* How the tasks of a step are laid out. tess_step_fit chooses it with the plan; tess_step_new takes it as it is. Zeros
 * are one micro-batch after the other, updates at once, and no activation kept during recomputation. */
typedef struct tess_step_layout {
    bool by_layer;   /* all micro-batches pass a block before the next block begins */
    bool late;       /* updates come in the next step's forward pass */
    bool pairs;      /* two micro-batches go in turns, op by op, where a tile has all rows of one: while ranks of the
                        tensor dimension sum what one has made, the other computes */
    int late_ahead;  /* blocks by which a late update precedes the block that needs it */
    const int *keep; /* indices of nodes whose outputs are kept during recomputation; it lives as long as the step */
    int keeps;       /* the number of indices in `keep` */
} tess_step_layout;

/* Settings of a step; zeros are a forward pass over one micro-batch. */
/* Local steps: ranks of the data dimension make this many steps of their own between two sums over them; 0: each step
 * is summed. What they came away by then is a step of SGD at the rate `lr` with Nesterov's momentum. */
typedef struct tess_local {
    int64_t steps;
    double lr, momentum;
} tess_local;

typedef struct tess_step_conf {
    bool train;         /* it has a backward pass and an update; else it is a forward pass alone */
    int64_t micro;      /* micro-batches of B sequences in a step, over all ranks; 0: one for each data-parallel rank */
    const char *shares; /* what part of them each data-parallel rank has, a number for each with commas between, such as
                           "2,1"; NULL: all have as many. Borrowed while the step lives */
    tess_optimizer optimizer; /* tess_adamw(), ... */
    tess_local local;
    int recompute_every; /* activation checkpointing: only every n-th block's input is kept; 0: all activations are */
    bool inputs_alone;   /* recomputation keeps these inputs only; else tess_step_fit keeps more where there is room */
    bool deterministic;  /* the same bits on any number of ranks: gradients add up in one tree over all
                            micro-batches, at some cost in memory and time */
    bool skips;          /* a gradient that is not finite, or whose norm is above tess_step_input.most_norm, makes
                            the step change nothing instead of failing. Updates wait for the norm, as with clipping */
    uint64_t chains;     /* tasks over the same rows become one task if all tiles of the step fit in this many bytes
                            of GPU memory; 0: never */
    bool keep_gradients; /* gradients stay for tess_step_gradient, and the step makes no update */
    bool check_finite;   /* the first tensor of the forward pass that is not finite fails the step, by its name */
    const struct tess_watch *watch; /* activations that the step shows; the array lives as long as the step */
    int watches;                    /* the number of activations in `watch` */
    tess_step_layout layout;        /* set by a program only for tess_step_new */
} tess_step_conf;

/* Makes the step that computes `output`, which is the loss or, without `train`, any tensor; all its tiles have their
 * homes in memory. The caller frees *step. It needs no tess_start. */
tess_status tess_step_new(tess_tensor *output, const tess_step_conf *conf, tess_step **step) TESS_NODISCARD;
/* Makes the step that trains, within the machine's memory: it chooses the order of the tasks and where each tile lives,
 * GPU, RAM or disk, and stores that plan. Results have the same bits under every plan. All ranks call it, before
 * tess_start_plan and before anything is drawn or loaded. A machine that has too little is TESS_INVALID, and the error
 * names how much may do. */
tess_status tess_step_fit(tess_tensor *loss, const tess_step_conf *conf, const tess_machine *machine, tess_step **step,
                          tess_plan *plan) TESS_NODISCARD;
/* Prints a plan as `tessera estimate` does: what each level of memory holds, and what a step moves. */
void tess_plan_print(const tess_plan *plan, const tess_step *step, FILE *out);
/* Starts a run, as tess_start does, on the machine that the plan was made for. */
tess_status tess_start_plan(const tess_machine *machine, const tess_plan *plan) TESS_NODISCARD;
/* Frees a step; NULL is allowed. */
void tess_step_free(tess_step *s);

/* Draws every parameter and resets its moments. Values depend on the seed and the parameter alone. */
tess_status tess_graph_init(tess_graph *g, uint64_t seed) TESS_NODISCARD;

/* Stores which of the step's micro-batches this rank computes, [*first, *first + *count); one rank computes all. */
void tess_step_share(const tess_step *s, int64_t *first, int64_t *count);
/* Feeds the values of an input for the next run, B sequences for each of this rank's micro-batches. They are copied. */
tess_status tess_step_feed(tess_step *s, const tess_tensor *input, const int32_t *values) TESS_NODISCARD;
/* Feeds them, and is TESS_INVALID where `count` is not the number that the input takes. */
tess_status tess_step_feed_values(tess_step *s, const tess_tensor *input, const int32_t *values,
                                  int64_t count) TESS_NODISCARD;

typedef struct tess_step_input {
    int64_t step;        /* steps done before this one */
    uint64_t seed;       /* of dropout */
    double lr;           /* the learning rate; a step that trains takes 0 only with keep_weights */
    bool keep_weights;   /* the step is at the rate 0: it updates the optimizer's states, not the weights */
    double beta1, beta2; /* they replace the optimizer's where a schedule changes them; 0: they do not */
    double loss_scale;   /* loss scaling: the factor of gradients until the update; 0: 1 */
    int64_t skipped;     /* how many of the steps before this one changed nothing */
    double most_norm;    /* of the gradient, with tess_step_conf.skips; 0: none is too large */
} tess_step_input;
typedef struct tess_step_result {
    double loss;      /* the mean over the targets that count; of added losses, the sum of their means */
    double grad_norm; /* the norm of the averaged gradient, before clipping */
    int64_t targets;  /* how many targets of the first loss counted */
    bool skipped;     /* nothing changed: grad_norm is not finite, or above most_norm */
    double used;      /* the share of this rank's rows that can change the loss; most of the other rows are padding at
                         the ends of sequences, and are not computed */
} tess_step_result;
/* Runs the step to its end. A loss or a gradient that is not finite is TESS_FAILED; after such a loss no parameter has
 * changed. */
tess_status tess_step_run(tess_step *s, const tess_step_input *in, tess_step_result *out) TESS_NODISCARD;
/* The same in two: the one submits the step, the other waits for it. Where tess_step_overlaps says so the next run may
 * be fed, and begin, before the last has ended, so that nothing stands still between them:
 *
 *     for (int64_t k = 0; k <= steps; k++) {
 *         if (k < steps) ... tess_step_feed; TESS_TRY(tess_step_begin(s, &(tess_step_input){.step = k, .lr = 1e-3}));
 *         if (k > 0) TESS_TRY(tess_step_end(s, &r));                                          // of step k - 1
 *     }
 *
 * Bits are those of runs one by one. If a run fails, what was begun behind it has ended too, and is not waited for.
 * Other steps of the graph run, and parameters and outputs are looked at, when none is under way. */
tess_status tess_step_begin(tess_step *s, const tess_step_input *in) TESS_NODISCARD;
tess_status tess_step_end(tess_step *s, tess_step_result *out) TESS_NODISCARD;
/* Returns whether a run may begin before the last has ended: not over several ranks, below a cap on RAM, with
 * tess_step_conf.skips or .watches, or with frozen parameters where no GPU has the tiles by plan. */
bool tess_step_overlaps(const tess_step *s);
/* Stores the output of the last forward pass, in fp32: the rows of this rank's sequences. */
tess_status tess_step_output(tess_step *s, float *values) TESS_NODISCARD;
/* Stores the gradient of a parameter, (rows, columns), after a run with keep_gradients below ZeRO's stage 1. */
tess_status tess_step_gradient(tess_step *s, tess_tensor *param, float *values) TESS_NODISCARD;

/* ---- values of parameters (may still change) -----------------------------------------------------------------------
 *
 * The program reads and writes them, or lends them to StarPU tasks of its own. tess_watch (tessera_runtime.h) shows
 * activations. */

/* The parts of a parameter: its value, and as many moments as the optimizer has. */
typedef enum tess_part {
    TESS_MASTER,
    TESS_MOMENT1,
    TESS_MOMENT2,
    TESS_PARTS,
    TESS_OUTER = TESS_PARTS, /* with local steps beside them: the outer optimizer's momentum */
    TESS_REST,               /* with tess_grid.gradient_codes: what a rank's codes lacked so far */
    TESS_ALL_PARTS
} tess_part;
/* A rectangle of a parameter that this rank holds, dense and row-major: rows [row, row + rows), columns [col, col +
 * cols). On one rank the pieces of a parameter are its tiles. */
typedef struct tess_piece {
    int64_t row, rows, col, cols;
    bool writes; /* this rank writes the rectangle to files, for all ranks that hold it */
} tess_piece;
/* Returns how many pieces of a parameter this rank holds. */
int64_t tess_param_pieces(const tess_tensor *p);
/* Returns the rectangle of one piece. */
tess_piece tess_param_piece(const tess_tensor *p, int64_t piece);
/* Maps one part of a piece, in fp32, for the main thread: *data is valid until tess_param_unmap, between two steps;
 * `mode` is a tess_access. A frozen parameter has no moments; values written to one in bf16 are rounded. */
tess_status tess_param_map(tess_tensor *p, int64_t piece, tess_part part, int mode, float **data) TESS_NODISCARD;
/* Lends one part of a piece to the program's StarPU tasks, to read, until tess_param_unmap, between two steps. It is in
 * RAM until those tasks have run. A frozen matrix is lent in the graph's dtype, and moments that are kept in bf16 are
 * lent in bf16; moments in 8 bits are not lent. */
tess_status tess_param_lend(tess_tensor *p, int64_t piece, tess_part part, tess_lent *out) TESS_NODISCARD;
/* Ends tess_param_map or tess_param_lend. */
void tess_param_unmap(tess_tensor *p, int64_t piece, tess_part part);
/* Draws one parameter as tess_graph_init does. tess_graph_round comes after the last of them. */
tess_status tess_param_init(tess_tensor *p, uint64_t seed) TESS_NODISCARD;
/* Renews the bf16 copies of parameters whose masters the program has written. */
tess_status tess_graph_round(tess_graph *g) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
