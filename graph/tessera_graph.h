/* tessera.h, of the graph: networks as tensors and ops, and the step that trains them. Within the sources it is the
 * first part of graph.h.
 *
 * Building never fails on the spot: an op given wrong shapes returns NULL, an op given NULL returns NULL, and
 * tess_step_new returns the first error, which names the op and the shapes. The graph owns its tensors. What else a
 * program gets wrong is TESS_INVALID where it does harm: a value that is fed and that no row of a table is for, an
 * input that was not fed, parameters neither drawn nor loaded, a call before tess_start or after tess_stop, or of a
 * step whose graph was freed. What a graph holds ends with tess_stop; it may be drawn or loaded anew after the next
 * tess_start. */
#ifndef TESSERA_GRAPH_H
#define TESSERA_GRAPH_H
#include "tessera_codelets.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- describing -------------------------------------------------------------------------------------------------- */

typedef struct tess_graph tess_graph;
typedef struct tess_tensor tess_tensor;

/* The ranks that train one model, data x pipeline x tensor of them: rank = (d * pipeline + p) * tensor + t. Who owns
 * what follows from it: see docs/placement.md. All zeros: one rank. */
typedef struct tess_grid {
    int rank, data, pipeline, tensor;
    int interleave;      /* chunks of blocks that a section of the pipeline has */
    int stage;           /* ZeRO's: sharded over data are 1 the optimizer's states, 2 gradients too, 3 weights too */
    int64_t persist;     /* stage 3: parameters of no more elements are not sharded */
    int64_t live, reuse; /* stage 3: most elements gathered at a time; between two uses of one that is kept */
    /* Ranks in a row that share a machine, the same everywhere (0: not known). What goes to all of its ranks in tiles
     * of at least so many bytes goes there once, and so does the sum of what comes from them in tiles of twice as many.
     */
    int near;
    int64_t near_bytes;
} tess_grid;

typedef struct tess_graph_conf {
    tess_dtype dtype;      /* of activations and matrices; TESS_BF16 keeps fp32 masters */
    int64_t tile_rows;     /* rows (tokens) an activation's tile has, as far as whole sequences allow; 0: 1024 */
    int64_t tile_elements; /* most elements of a parameter's tile, in a stack four times as many; 0: 2.5 Mi */
    int64_t loss_rows;     /* rows whose logits exist at a time; 0: 512 */
    int64_t loss_align;    /* elements of which the distance of those rows is a multiple; 0: 1 */
    int64_t stripes;       /* tiles that a matrix of 2^18 elements or more is cut into at least; 0: 1 */
    tess_grid grid;
    tess_graph *share; /* parameters of this other graph are used where the name is the same; it must live longer */
} tess_graph_conf;

/* Makes an empty graph. */
tess_graph *tess_graph_new(const tess_graph_conf *conf);
/* Frees it with all that is in it. */
void tess_graph_free(tess_graph *g);

typedef enum tess_init_kind { TESS_INIT_FILL, TESS_INIT_NORMAL, TESS_INIT_UNIFORM } tess_init_kind;
typedef struct tess_init {
    tess_init_kind kind;
    float value; /* the constant, the standard deviation, or how far from 0 at most */
} tess_init;
#define TESS_ZERO       (TESS_LITERAL(tess_init){TESS_INIT_FILL, 0})
#define TESS_ONE        (TESS_LITERAL(tess_init){TESS_INIT_FILL, 1})
#define TESS_NORMAL(s)  (TESS_LITERAL(tess_init){TESS_INIT_NORMAL, s})
#define TESS_UNIFORM(s) (TESS_LITERAL(tess_init){TESS_INIT_UNIFORM, s})

/* Adds an input of token ids or indices (B, T). All inputs of a graph have the same B. */
tess_tensor *tess_input(tess_graph *g, const char *name, int64_t batch, int64_t length);
/* Adds a matrix (rows, columns), or a vector (rows) with columns 1. A name that exists already returns that parameter.
 */
tess_tensor *tess_param(tess_graph *g, const char *name, int64_t rows, int64_t columns, tess_init init);
/* Does the same, but of one column it makes a matrix, too. */
tess_tensor *tess_matrix(tess_graph *g, const char *name, int64_t rows, int64_t columns, tess_init init);
/* Adds a stack of as many matrices of one shape, one below the other, which is a matrix (members * rows, columns) whose
 * tiles are of one member each. */
tess_tensor *tess_param_stack(tess_graph *g, const char *name, int64_t members, int64_t rows, int64_t columns,
                              tess_init init);
/* Keeps a parameter as it is drawn or loaded: it is not trained, has neither gradient nor moments, and a matrix in bf16
 * is that alone. Before the first step of its graph; for graphs that share it, too. */
tess_status tess_param_freeze(tess_tensor *p) TESS_NODISCARD;
/* Says whether it is frozen. */
bool tess_param_frozen(const tess_tensor *p);
/* Begins a block, the unit of activation checkpointing, to which ops belong until the next mark. */
void tess_block(tess_graph *g, const char *name);
/* Ends it. */
void tess_block_end(tess_graph *g);
/* Names a tensor for errors and traces, and returns it. */
tess_tensor *tess_name(tess_tensor *t, const char *format, ...) TESS_PRINTF(2, 3);

/* ---- ops: x is (B, T, C), and so is what they return where nothing else is said ---------------------------------- */

/* Looks up the rows of table (V, C) that ids name, and adds those of positions (>= T, C) unless that is NULL. */
tess_tensor *tess_embedding(tess_tensor *ids, tess_tensor *table, tess_tensor *positions);
/* Looks up the rows of table (V, C) that ids name, times scale, rounded as activations are. */
tess_tensor *tess_embedding_scaled(tess_tensor *ids, tess_tensor *table, float scale);
/* Returns x w^T + bias, which is (B, T, out): w is (out, C), bias (out) or NULL. */
tess_tensor *tess_linear(tess_tensor *x, tess_tensor *w, tess_tensor *bias);
/* Says what is built beside each linear from now on, until it is NULL: `make` is given its x, its w and what it made of
 * them, and returns what stands for that. */
typedef tess_tensor *(*tess_beside)(void *of, tess_tensor *x, tess_tensor *w, tess_tensor *y);
void tess_graph_beside(tess_graph *g, tess_beside make, void *of);
/* Takes its mean from each row, divides by its deviation, multiplies by gain (C) and adds bias (C). */
tess_tensor *tess_layernorm(tess_tensor *x, tess_tensor *gain, tess_tensor *bias, float eps);
/* Divides each row by the root of its mean square, and multiplies by gain (C); with gain (D) each run of D elements is
 * a row by itself, as heads are. */
tess_tensor *tess_rmsnorm(tess_tensor *x, tess_tensor *gain, float eps);
/* Does the same with gain + shift: of a gain that is kept as what it differs from 1. */
tess_tensor *tess_rmsnorm_shifted(tess_tensor *x, tess_tensor *gain, float shift, float eps);
/* Returns gelu(x), by tanh or by erf. */
tess_tensor *tess_gelu(tess_tensor *x, tess_gelu_kind kind);
/* Returns x sigmoid(x). */
tess_tensor *tess_silu(tess_tensor *x);
/* Returns max(x, 0). */
tess_tensor *tess_relu(tess_tensor *x);
/* Returns x times a constant. */
tess_tensor *tess_scaled(tess_tensor *x, float by);
/* Returns cap tanh(x / cap): tanh with a cap of 1, else what stays near x until it comes near the cap. */
tess_tensor *tess_tanh(tess_tensor *x, float cap);
/* Returns a + b. */
tess_tensor *tess_add(tess_tensor *a, tess_tensor *b);
/* Returns a b, element by element. */
tess_tensor *tess_mul(tess_tensor *a, tess_tensor *b);
/* Makes a share p of the elements zero and divides the others by 1 - p, while it trains. */
tess_tensor *tess_dropout(tess_tensor *x, float p);
typedef struct tess_rope_conf {
    int64_t dim;    /* of a head */
    int64_t rotary; /* how many of dim rotate; 0: all */
    float base;     /* 0: 10000 */
    tess_rope_scaling scaling;
    bool neighbours;     /* pairs (2i, 2i+1) instead of (i, i + rotary/2) */
    bool packed;         /* x is what tess_attention_packed takes by_head: v does not turn */
    tess_tensor *places; /* an input (B, T): the place of each row; NULL: its own in the sequence */
} tess_rope_conf;
/* Turns the pairs of each head by their place. */
tess_tensor *tess_rope(tess_tensor *x, tess_rope_conf conf);
/* Keys and values of the sequences of a batch, which steps leave for later ones: for each attention of a network tiles
 * of `block` places. Sequence and place are all that says where one lies: what a step's rows are is said by its inputs.
 *
 *     tess_cache *c = tess_cache_new(&(tess_cache_conf){.dtype = TESS_BF16, .sequences = B, .block = 256});
 *     tess_cache_view(c, 1);                      // graphs that are described now see places 0 to 255
 *     ... the network for (B, T) tokens, whose tess_attention_conf has .cache and .bounds; tess_step_new ...
 *     TESS_TRY(tess_cache_ready(c, 1));           // once it runs
 *     ... feed the tokens and their places; tess_step_run; the next tokens; and so on ...
 *     tess_cache_view(c, 2);                      // the next block: another graph
 *
 * A step's rows lie in the last block that its graph sees, those of a sequence at places that follow each other and are
 * the same in all sequences: shorter ones have padding in front, which no query sees. A layer with a window keeps no
 * more tiles than that reaches back. */
typedef struct tess_cache tess_cache;
typedef struct tess_cache_conf {
    tess_dtype dtype;  /* of the graphs */
    int64_t sequences; /* B */
    int64_t block;     /* places of a tile, a multiple of 16 */
    uint64_t at_once;  /* bytes of tiles that a task may have at a time; 0: 8 MiB */
} tess_cache_conf;
/* Makes an empty one, which is freed behind the graphs that use it. */
tess_cache *tess_cache_new(const tess_cache_conf *conf);
void tess_cache_free(tess_cache *c);
/* Says that graphs which are described from now on see so many blocks. */
void tess_cache_view(tess_cache *c, int64_t blocks);
/* Gives the tiles of those blocks something to hold, those that have nothing; tess_start comes first. */
tess_status tess_cache_ready(tess_cache *c, int64_t blocks) TESS_NODISCARD;

typedef struct tess_attention_conf {
    int64_t heads, groups; /* groups: heads of k and v, 0: as many as heads */
    float scale;           /* 0: 1/sqrt(dim) */
    float dropout;
    bool causal;
    int64_t window;      /* where it is causal: the most keys that a query sees, its own the last; 0: all before it */
    bool by_head;        /* packed: see there; groups are as many as heads */
    float cap;           /* logits become cap tanh(logit / cap); 0: they stay */
    tess_tensor *bounds; /* an input (B, 2T): the first key that each query sees, then the end of the keys that each
                            sees. What is padding sees none, and costs nothing. NULL: every query may see all keys */
    tess_tensor *bias;   /* a parameter (buckets, heads) that is added to logits by the distance of key and query: one
                            bucket each for small distances, wider ones up to `reach`; NULL: none */
    int64_t reach;
    tess_cache *cache; /* keys and values go there, and queries see all that is there; `bounds` (B, 2T) are then places:
                          the first that a query sees, and its own place and one. k and v NULL: those that tess_cached
                          left are seen, as far as `bounds` say. NULL: there is none */
} tess_attention_conf;

/* Returns softmax(q k^T scale) v, head by head: (B, T, heads*dim). k and v may be of other lengths than q where it is
 * not causal. */
tess_tensor *tess_attention(tess_tensor *q, tess_tensor *k, tess_tensor *v, tess_attention_conf conf);
/* Does the same with q, k and v side by side in one tensor, as one linear makes them: all heads of q, then k's, then
 * v's; or, by_head, of each head its q, its k and its v. */
tess_tensor *tess_attention_packed(tess_tensor *qkv, tess_attention_conf conf);
/* Leaves k and v (B, K, groups*dim) in the cache, row i at place i, for the attention with k and v NULL whose turn it
 * is: both are counted, in the order in which they are described. Returns (B, 1, 1), which depends on them and on
 * `behind`, what an earlier call returned (NULL: there is none): the last one is a step's output. */
tess_tensor *tess_cached(tess_cache *c, tess_tensor *k, tess_tensor *v, int64_t heads, tess_tensor *behind);
/* Returns the loss, which is the mean over targets >= 0 of -log softmax(x w^T + bias)[target]. The head and its loss
 * work on loss_rows rows at a time: logits of a whole batch never exist. */
tess_tensor *tess_cross_entropy(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets);
/* Does the same with each logit replaced by cap tanh(logit / cap); cap 0: they stay. */
tess_tensor *tess_cross_entropy_capped(tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *targets,
                                       float cap);
/* Adds to a loss another, the mean over targets of its own. */
tess_tensor *tess_cross_entropy_beside(tess_tensor *loss, tess_tensor *x, tess_tensor *w, tess_tensor *bias,
                                       tess_tensor *targets);
/* Takes of each sequence the row that index (B, 1) names: (B, 1, C). */
tess_tensor *tess_pick(tess_tensor *x, tess_tensor *index);

/* Experts: each row chooses some of them by the logits of its router. A feed-forward network of experts is
 *
 *     tess_tensor *logits = tess_linear(x, router, NULL);               // (B, T, experts)
 *     tess_tensor *weights = tess_route(logits, 2, true, NULL);         // (B, T, 2)
 *     tess_tensor *places = tess_dispatch(x, weights);                  // (B, T*2, C), sorted by expert
 *     tess_tensor *y = tess_relu(tess_expert_linear(places, weights, w1));
 *     y = tess_combine(tess_expert_linear(y, weights, w2), weights);    // (B, T, C)
 *
 * No expert is ever full. Under a cap on RAM a step fetches only those from disk that its rows chose. */

/* Returns the weights of the `chosen` experts that each row chooses, what a softmax over logits (B, T, experts) says of
 * them, divided by their sum if `normalised`. With bounds (see tess_attention_conf) padding chooses none. */
tess_tensor *tess_route(tess_tensor *logits, int64_t chosen, bool normalised, tess_tensor *bounds);
/* Returns each row of x once for each expert that it chose, sorted by expert: (B, T*chosen, C). */
tess_tensor *tess_dispatch(tess_tensor *x, tess_tensor *weights);
/* Returns each of those rows times the matrix of its expert; w is a stack of matrices (out, C) (tess_param_stack). */
tess_tensor *tess_expert_linear(tess_tensor *x, tess_tensor *weights, tess_tensor *w);
/* Returns the sums of each row's, by its weights: (B, T, C). */
tess_tensor *tess_combine(tess_tensor *x, tess_tensor *weights);
/* Returns statistics of a router, and of those before it unless that is NULL, for: */
tess_tensor *tess_balance(tess_tensor *logits, tess_tensor *weights, tess_tensor *before);
/* Adds, while it trains, a loss of how unevenly rows choose, by its weight: experts * sum over experts of (choices of
 * it a row) (its mean share of softmax), over a micro-batch's rows of all routers together; micro-batches count alike.
 * `targets` are those of the other loss. */
tess_tensor *tess_balanced(tess_tensor *loss, tess_tensor *statistics, tess_tensor *targets, float weight);
/* ---- parameters and other tensors -------------------------------------------------------------------------------- */

/* Returns a tensor's name. */
const char *tess_tensor_name(const tess_tensor *t);
/* Says its shape, and returns the rank. */
int tess_tensor_shape(const tess_tensor *t, int64_t shape[3]);

/* Returns how many parameters the graph has. */
int tess_graph_params(const tess_graph *g);
/* Returns one of them. */
tess_tensor *tess_graph_param(const tess_graph *g, int index);
/* Returns the one of that name; NULL: there is none. */
tess_tensor *tess_graph_find_param(const tess_graph *g, const char *name);
/* Returns the elements of all parameters together. */
int64_t tess_graph_param_elements(const tess_graph *g);
/* Returns the elements of those that are not frozen. */
int64_t tess_graph_trained_elements(const tess_graph *g);
/* Draws every parameter from its init, and its moments begin anew; values depend on the seed and the parameter alone.
 */
tess_status tess_graph_init(tess_graph *g, uint64_t seed) TESS_NODISCARD;
/* Draws one of them, as tess_graph_init does; tess_graph_round comes after it. */
tess_status tess_param_init(tess_tensor *p, uint64_t seed) TESS_NODISCARD;
/* A parameter's parts: the moments are the optimizer's, as many as it has. */
typedef enum tess_part { TESS_MASTER, TESS_MOMENT1, TESS_MOMENT2, TESS_PARTS } tess_part;
/* What this rank holds of a parameter's master and moments: rectangles of it, rows [row, row + rows) and columns [col,
 * col + cols), dense and row-major. With one rank they are its tiles. */
typedef struct tess_piece {
    int64_t row, rows, col, cols;
    bool writes; /* of the ranks that hold the same, this is the one that writes it out */
} tess_piece;
/* Returns how many pieces this rank holds. */
int64_t tess_param_pieces(const tess_tensor *p);
/* Says where one of them lies. */
tess_piece tess_param_piece(const tess_tensor *p, int64_t piece);
/* Gives the main thread one of them, fp32, between steps and until tess_param_unmap; mode is of tess_access. What is
 * frozen has no moments, and what is written of it is rounded where it is bf16. */
tess_status tess_param_map(tess_tensor *p, int64_t piece, tess_part part, int mode, float **data) TESS_NODISCARD;
/* Lends the program's own StarPU tasks one of them, to read, between steps and until tess_param_unmap: in the plan's
 * room it is in RAM until then, and behind that until the tasks have run which read it. What is sharded elsewhere is
 * lent there, by the rank that holds the piece. A frozen matrix is lent as it is kept, in the graph's dtype, and so
 * are moments in bf16; those in 8 bits are not. */
tess_status tess_param_lend(tess_tensor *p, int64_t piece, tess_part part, tess_lent *out) TESS_NODISCARD;
/* Gives it back. */
void tess_param_unmap(tess_tensor *p, int64_t piece, tess_part part);
/* Gives a parameter rates of its own in steps that are made from then on: its learning rate is the step's times
 * lr_scale, and weight_decay, unless it is below 0, replaces the optimizer's, no_decay_1d or not. */
tess_status tess_param_set_rates(tess_tensor *p, double lr_scale, double weight_decay) TESS_NODISCARD;
/* Renews the bf16 copies after masters were written from outside. */
tess_status tess_graph_round(tess_graph *g) TESS_NODISCARD;

/* ---- the step ---------------------------------------------------------------------------------------------------- */

typedef struct tess_step_conf {
    bool train;    /* else only the forward pass */
    int64_t micro; /* micro-batches of B sequences that make a step, on all ranks together; 0: 1 */
    bool by_layer; /* all micro-batches through a block before the next: same bits, more activations, less traffic */
    bool deterministic; /* gradients add up in one tree over all micro-batches, whoever computes which: the same bits on
                           any number of ranks, for some more memory and time */
    bool late;  /* with clipping: updates come in the next step's forward pass, or when somebody asks for them */
    bool skips; /* a step whose gradient is not finite changes nothing and says so, where it would fail: for a loss that
                   is scaled so that fp16 has room for its gradients. Updates wait for the norm, as with clipping */
    tess_optimizer optimizer; /* TESS_ADAMW, ...: tessera_codelets.h; all training steps of a graph have one type */
    int recompute_every;      /* activation checkpointing: blocks between kept activations; 0: off */
    bool keep_gradients;      /* no optimizer: gradients stay readable, by tess_step_gradient */
    bool check_finite;        /* forward only: the first tensor that is not finite fails the step by name */
    const tess_watch *watch;  /* activations that are shown to the program as they are made, so many: */
    int watches;              /* borrowed as long as the step lives */
} tess_step_conf;

typedef struct tess_step tess_step;
/* Makes the step of an output: the loss, or with train false any tensor. Needs no tess_start. */
tess_status tess_step_new(tess_tensor *output, const tess_step_conf *conf, tess_step **step) TESS_NODISCARD;
/* Frees it. */
void tess_step_free(tess_step *s);
/* Decides where the tiles of the one step that trains live under m->cpu_bytes of RAM, above m->disk: before anything is
 * drawn or loaded, and before tess_start, which takes the machine as this leaves it. `away`: roles, 1 << TESS_ROLE_...,
 * that rest on disk even where RAM has room. Too little RAM is TESS_INVALID, with the number that would do. */
tess_status tess_step_fit(tess_step *s, unsigned away, tess_machine *m) TESS_NODISCARD;
/* Says which of the step's micro-batches this rank computes. */
void tess_step_share(const tess_step *s, int64_t *first, int64_t *count);
/* Feeds the batch of an input, which is copied: B sequences for each of this rank's micro-batches. */
tess_status tess_step_feed(tess_step *s, const tess_tensor *input, const int32_t *values) TESS_NODISCARD;
/* Feeds it, checked to be `count` values. */
tess_status tess_step_feed_values(tess_step *s, const tess_tensor *input, const int32_t *values,
                                  int64_t count) TESS_NODISCARD;

typedef struct tess_step_input {
    int64_t step;
    uint64_t seed;
    double lr;           /* 0 with keep_weights alone, where something trains */
    bool keep_weights;   /* a step at the rate 0: moments go on, weights stay */
    double beta1, beta2; /* where a schedule moves them; 0: the optimizer's */
    double loss_scale;   /* gradients are so many times what they are until the update; 0: 1 */
    int64_t skipped;     /* of the steps before this one, those that changed nothing */
} tess_step_input;
typedef struct tess_step_result {
    double loss;      /* mean over the targets that count; where losses are added, the sum of their means */
    double grad_norm; /* of the averaged gradient, before clipping */
    int64_t targets;  /* of the first loss */
    bool skipped;     /* the gradient was not finite, nor is its norm here, and nothing changed */
} tess_step_result;
/* Runs one step to its end. A loss or gradient that is not finite is TESS_FAILED; with such a loss no weight changed.
 */
tess_status tess_step_run(tess_step *s, const tess_step_input *in, tess_step_result *out) TESS_NODISCARD;
/* Reads the rows of the output, in fp32, of this rank's sequences, after a run with train false. */
tess_status tess_step_output(tess_step *s, float *values) TESS_NODISCARD;
/* Reads the gradient of one parameter, (rows, columns), with keep_gradients and below ZeRO's stage 1. */
tess_status tess_step_gradient(tess_step *s, tess_tensor *param, float *values) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
