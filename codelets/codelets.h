/* codelets: the work on one tile. A body reads and writes the buffers of its task and its argument, and nothing else:
 * it never allocates tiles, never submits, knows no graph. Forward stands beside backward, in one file an op.
 *
 *     tess_linear_arg *a = ...;  *a = (tess_linear_arg){.rows = 1024, .in = 768, .out = 3072, .ld = 3072};
 *     tess_use use[] = {{x, TESS_R}, {w, TESS_R}, {y, TESS_W}};
 *     tess_submit(&(tess_task){.cl = &tess_linear_forward[TESS_BF16], .arg = a, .use = use, .nuse = 3});
 *
 * Conventions. A codelet is an array indexed by the dtype of its activations, [TESS_F32], [TESS_BF16] or [TESS_F16]
 * ("real" below). Matrices (linear weights, embedding tables) are real; norms' gains, all biases and every gradient of
 * a parameter are f32; loss sums are double. Matrices are row-major and dense unless `ld` says otherwise; a row is one
 * token's. "+=" buffers: with `acc` the body adds to what is there (the task's mode is TESS_RW), else it overwrites
 * (TESS_W). Arithmetic is fp32 inside, sums run in an order that depends on the shapes alone (16 lanes, whatever the
 * machine's vectors), products of matrices accumulate in fp32.
 */
#ifndef TESS_CODELETS_H
#define TESS_CODELETS_H
#include "codelets/tessera_codelets.h"
#include "runtime/runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { TESS_REAL_DTYPES = 3 }; /* TESS_F32, TESS_BF16, TESS_F16 */

/* ---- linear.c: y = x w^T + b ---- */
/* One tile of w has `out` rows, which make columns [col, col + out) of y, whose rows are `ld` long. */
typedef struct tess_linear_arg {
    int64_t rows, in, out;
    int64_t ld, col;
    int64_t row; /* backward_weight: x begins at this row of its tile */
    bool bias, acc;
    bool acc_bias; /* db */
    bool sum;      /* backward_input: dx is f32, for a sum over tiles of w */
    bool few;      /* forward: at most TESS_FEW_ROWS rows, whose bits do not depend on the other rows */
    bool fp8;      /* of bf16: x and w are rounded to e4m3 and dy to e5m2, see scalar.h */
    tess_dtype w;  /* NF4 or INT8: w is quantized; else it has the dtype of x */
} tess_linear_arg;
enum { TESS_FEW_ROWS = 16 };
extern tess_codelet tess_linear_forward[];         /* x (rows,in), w (out,in), y (rows,ld)[, b (out)] */
extern tess_codelet tess_linear_backward_input[];  /* dy (rows,ld), w (out,in), dx += (rows,in) */
extern tess_codelet tess_linear_backward_weight[]; /* dy (rows,ld), x (rows,in), dw += (out,in)[, db += (out)] */
extern tess_codelet tess_linear_backward_bias[];   /* dy (rows,ld), db += (out): where w stays as it is */

/* ---- rate.c, mm.c: rates of the machine, and the memory of products ---- */
/* Measures the flops a second of `cores` cores at the same time, in plain products of oneDNN of size n, before StarPU
 * runs. */
double tess_matrix_rate(tess_dtype t, int cores, int64_t n);
/* Measures the bytes a second, read and written, that `cores` cores copy. */
double tess_copy_rate(int cores);
/* Measures the flops a second of all GPUs that a run would use; 0: there are none. */
double tess_gpu_matrix_rate(tess_dtype t);
/* Returns the library of products and its version: "oneDNN 2.6.3". */
const char *tess_matrix_library(void);
/* Returns whether products on this CPU widen a dtype to fp32 first, having no instructions for it. */
bool tess_matrix_widened(tess_dtype t);
/* Makes fp32 products use the library's own kernel from here on; false: the fastest one. It comes before workers run.
 * Returns whether this CPU then has the same bits as others, which needs fused multiplications. */
bool tess_matrix_across(bool machines);
/* Bounds the bytes that the products of `workers` workers in a dtype hold beside the tiles. */
size_t tess_mm_bytes(int workers, tess_dtype t);

/* ---- quantized.c: frozen matrices in blocks of codes ---- */
/* Writes n elements, whole blocks, of what x rounded to `of` is. */
void tess_quantize_write(void *to, tess_dtype as, const float *x, int64_t n, tess_dtype of);
/* Reads them, rounded to fp32, bf16 or fp16. */
void tess_quantize_read(void *to, tess_dtype as, const void *from, tess_dtype of, int64_t n);

/* ---- embedding.c ---- */
/* y[r] = table[id[r]] (+ position[r % sequence]), for one tile of the table: rows [first, first+count). */
typedef struct tess_embedding_arg {
    int64_t rows, width, sequence;
    int64_t rows_of_table;
    int64_t first, count; /* the rows of this tile, of the table or (backward_position) positions */
    int64_t position_tiles, position_tile_rows; /* 0: no positions */
    float scale;                                /* of the table's rows; 0: 1 */
    float noise;  /* while training: the bound of the uniform noise that is added to the table's rows; 0: none */
    int64_t row0; /* the first row's place in the global batch, by which noise is drawn as in dropout */
    uint32_t op;
    bool acc;
} tess_embedding_arg;
extern tess_codelet tess_embedding_forward[];  /* id i32 (rows), y (rows,width), table tile, position tiles... */
extern tess_codelet tess_embedding_backward[]; /* id, dy (rows,width), dtable += (count,width) */
extern tess_codelet tess_embedding_backward_position[]; /* dy (rows,width), dposition += (count,width) */

/* ---- layernorm.c, rmsnorm.c ---- */
typedef struct tess_norm_arg {
    int64_t rows, width;
    float eps;
    float shift;    /* rmsnorm: the gain is this much more than what is stored */
    bool acc;       /* dx */
    bool acc_param; /* dgain, dbias */
} tess_norm_arg;
extern tess_codelet tess_layernorm_forward[];  /* x, gain (width), bias (width), y, stats f32 (rows,2): mean, 1/std */
extern tess_codelet tess_layernorm_backward[]; /* dy, x, gain, stats, dx +=, dgain +=, dbias += */
extern tess_codelet tess_rmsnorm_forward[];    /* x, gain (width), y, stats f32 (rows): 1/rms */
extern tess_codelet tess_rmsnorm_backward[];   /* dy, x, gain, stats, dx +=, dgain += */
extern tess_codelet tess_add_layernorm_forward[]; /* a, b, x = a + b, and what the norm has behind x */
extern tess_codelet tess_add_rmsnorm_forward[];

/* ---- rescale.c ---- */
/* Columns [col, col + out) of rows that are `ld` long; the matrix's tile has `out` rows of `in` elements. */
typedef struct tess_rescale_arg {
    int64_t rows, ld, col, out;
    int64_t in, r;
    float by; /* what b a counts in the lengths */
    bool bias, acc, acc_m;
} tess_rescale_arg;
extern tess_codelet tess_rescale_lengths[];  /* w (out,in), a (r,in), b (all of out,r), length f32 (out) */
extern tess_codelet tess_rescale_forward[];  /* z (rows,ld), m (out), length, y (rows,ld)[, bias (out)] */
extern tess_codelet tess_rescale_backward[]; /* dy, z, m, length, dz += (rows,ld), dm += (out)[, bias] */

/* ---- gelu.c, silu.c, relu.c, scale.c, tanh.c, add.c, mul.c ---- */
typedef struct tess_map_arg {
    int64_t n; /* elements */
    int64_t first;
    int kind;  /* gelu; silu: 1 is the sigmoid alone */
    float cap; /* tanh */
    float by;  /* scale */
    bool acc;
} tess_map_arg;
extern tess_codelet tess_gelu_forward[], tess_silu_forward[], tess_relu_forward[];    /* x, y */
extern tess_codelet tess_gelu_backward[], tess_silu_backward[], tess_relu_backward[]; /* dy, x, dx += */
extern tess_codelet tess_scale[];                                                     /* x, y = by x; dy, dx += by dy */
extern tess_codelet tess_tanh_forward[];                                              /* x, y = cap tanh(x / cap) */
extern tess_codelet tess_tanh_backward[];                                             /* dy, x, dx += */
extern tess_codelet tess_add_forward[];                                               /* a, b, y = a + b */
extern tess_codelet tess_add_into[];    /* x, y += x (acc: add, else copy): the gradient of add, residual and sharing */
extern tess_codelet tess_add_sum[];     /* x f32, y += x, from element `first` of y on: a sum in f32, rounded once */
extern tess_codelet tess_mul_forward[]; /* a, b, y = a b */
extern tess_codelet tess_mul_backward[]; /* dy, b, da += dy b */
/* swiglu.c: the halves of a row are a gate and what goes through it; with a limit neighbours are, y = gate
 * sigmoid(sharp gate) (up + 1), where the gate is at most the limit and up within it on both sides */
typedef struct tess_swiglu_arg {
    int64_t rows, width; /* of y */
    float sharp, limit;
    bool acc;
} tess_swiglu_arg;
extern tess_codelet tess_swiglu_forward[];  /* x (rows, 2 width), y */
extern tess_codelet tess_swiglu_backward[]; /* dy, x, dx += (rows, 2 width) */
/* linear_gelu.c: a linear of one tile of w with the gelu behind it, and gelu's slope with the dx of the linear behind
 * it; neither adds to anything. */
typedef struct tess_linear_gelu_arg {
    tess_linear_arg linear;
    tess_map_arg gelu;
} tess_linear_gelu_arg;
extern tess_codelet tess_linear_gelu_forward[];  /* x (rows,in), w (out,in), pre, y (rows,out)[, b (out)] */
extern tess_codelet tess_gelu_linear_backward[]; /* dy (rows,out), w (out,in), pre, dpre (rows,in) */

/* ---- rope.c: rotary positions ---- */
/* Turns pairs of each head; half: pairs (i, i + rotary/2) as in GPT-NeoX and Llama, else neighbours (2i, 2i+1). */
typedef struct tess_rope_arg {
    int64_t rows, sequence, heads, dim;
    int64_t rotary, skip; /* how many of dim rotate, behind how many that do not */
    float base;
    tess_rope_scaling scaling;
    int64_t of, turning; /* of each `of` heads the first `turning` turn, the others, v's, stay; of 0: all turn */
    bool half, acc;
    bool placed;  /* a row's place is told, else it is that in its sequence, */
    int64_t row0; /* by the place of the first in the global batch */
} tess_rope_arg;
extern tess_codelet tess_rope_forward[];  /* x (rows, heads*dim), y[, places i32 (rows)] */
extern tess_codelet tess_rope_backward[]; /* dy, dx +=[, places] */

/* ---- dropout.c: counter-based, so that a mask depends on seed, step, op and place alone ---- */
typedef struct tess_dropout_arg {
    int64_t rows, width;
    int64_t row0; /* place of the tile's first row in the global batch */
    uint32_t op;  /* which dropout of the model */
    float p;
    bool acc;
} tess_dropout_arg;
extern tess_codelet tess_dropout_forward[];  /* x, y */
extern tess_codelet tess_dropout_backward[]; /* dy, dx += */

/* Returns 32 random bits of (seed, step, op, place); the CUDA bodies compute the same. */
uint32_t tess_random(uint64_t seed, uint64_t step, uint32_t op, uint64_t place);
/* Makes a key of random numbers another one, by a number, as jax.random.fold_in does. */
void tess_fold_in(int32_t key[2], int32_t number);

/* ---- attention.c ---- */
/* Softmax(q k^T scale) v, head by head, over the whole sequences that a tile of rows holds; never a T x T matrix.
 * packed: q, k, v lie in one tile, at columns 0, heads*dim, (heads+groups)*dim; by_head: one head behind the other,
 * each of them q, k, v, with as many groups as heads.
 *
 * bounds, i32: for each sequence the first key that each of its queries sees, then the end of the keys that each sees:
 * (2 sequence). Causality and the window take away from that. bias, real (buckets, heads): of the distance key - query,
 * exact up to a half of the buckets, then by its logarithm up to `reach`. */
typedef struct tess_attention_arg {
    int64_t rows, sequence;     /* of q */
    int64_t keys;               /* a sequence's rows of k and v; 0: as many */
    int64_t heads, groups, dim; /* groups: heads of k and v; heads is a multiple */
    int64_t window;             /* keys that a query sees at most, its own the last of them; 0: all */
    int64_t buckets, reach;     /* 0: no bias */
    float scale, dropout;
    float cap; /* logits become cap tanh(logit / cap); 0: stay */
    bool causal, packed, by_head, bounded;
    int64_t head0, all_heads; /* dropout: these are heads [head0, head0 + heads) of all_heads; 0: they are all */
    int64_t row0;             /* as in dropout */
    uint32_t op;
    bool acc;      /* dq, dk, dv; of a span dk and dv */
    bool acc_bias; /* dbias */
    /* A task of spans: rows from place `query0` on of a sequence of `whole` rows see those from place `key0` on. 0: it
     * has whole sequences, and is no such task. The first and the last for its queries say so. */
    int64_t whole, query0, key0;
    bool begins, ends;
} tess_attention_arg;
/* Returns the bucket of a distance key - query. */
int64_t tess_attention_bucket(const tess_attention_arg *a, int64_t distance);
/* Returns the bytes of a task's scratch, forward and backward alike. */
size_t tess_attention_scratch(const tess_attention_arg *a, tess_dtype t);
/* q, k, v or packed qkv[, bounds][, bias], y (rows, heads*dim), lse f32 (rows, heads), scratch */
extern tess_codelet tess_attention_forward[];
/* By what a GPU makes a task: on tensor cores, with a head's elements in tiles so wide, or by general kernels, 0; and
 * whether cuDNN is asked first, if it is taken. Without tensor cores it takes some SLOWER times as long. */
typedef struct tess_attention_kernels {
    int tile;
    bool library;
} tess_attention_kernels;
enum { TESS_ATTENTION_WIDEST = 256, TESS_ATTENTION_SLOWER = 50 };
tess_attention_kernels tess_attention_kernels_of(const tess_attention_arg *a, tess_dtype t, bool train);
/* Returns the bytes that a GPU's backward pass wants beside a worker's scratch for what cuDNN keeps, ds: some heads at
 * a time, by the shapes alone; 0: it has enough, or is not asked. */
size_t tess_attention_room(const tess_attention_arg *a, tess_dtype t);
/* Returns how many times as long a GPU takes as on tensor cores alone; the gradient of a bias has a general kernel, and
 * who draws what is dropped asks for each weight. */
double tess_attention_slower(const tess_attention_arg *a, tess_dtype t, bool backward);
/* Settles, before StarPU runs, whose kernels attention on a GPU has from here on: cuDNN's, where they are wanted, the
 * library is found, and small problems of this device's come out as by ours, with the same bits each time; for what
 * tess_attention_kernels_of says. Returns whether; `said` is the library's version then, and else why not, or empty
 * where there is no GPU or they are not wanted. */
bool tess_attention_library(bool wanted, char *said, size_t room);
/* Spans: q, k, v, or packed qkv and, unless it is the same, that of the keys[, bounds of the whole sequence][, bias][,
 * carry, unless it begins and ends][, y, lse, if it ends], scratch. `carry` goes from one task of some queries to the
 * next; returns its bytes. */
size_t tess_attention_carry(const tess_attention_arg *a);
extern tess_codelet tess_attention_span_forward[];
/* dy, q, k, v or qkv[, bounds][, bias], y, lse, dq +=, dk +=, dv += or dqkv +=[, dbias f32 +=], scratch[, ds] */
extern tess_codelet tess_attention_backward[];
/* Of spans: dy, q, k, v as in forward[, bounds][, bias], y, lse, and in f32 dq +=, dk +=, dv +=[, dbias +=]; scratch.
 * Packed, dk and dv are one, the columns of k and then those of v, or by_head one head behind the other, each of them k
 * and v. */
extern tess_codelet tess_attention_span_backward[];

/* ---- delta_rule.c: linear attention by the gated delta rule ---- */
/* x holds `groups` heads of q, as many of k, and `heads` of v, a multiple. bounds as in attention: where a text begins
 * it knows nothing of those before. */
typedef struct tess_delta_arg {
    int64_t rows, sequence;
    int64_t heads, groups, dim, dim_v, taps; /* dim: of q and k; at most TESS_DELTA_WIDEST, as dim_v */
    bool bounded;
    bool keeps;  /* states for backward */
    bool cached; /* rows go on with texts of earlier steps; bounds are then places in a cache */
    bool acc, acc_b, acc_a, acc_taps, acc_logs, acc_biases;
} tess_delta_arg;
/* Return the bytes of the states that forward writes, and of a task's scratch. */
size_t tess_delta_states(const tess_delta_arg *a);
size_t tess_delta_scratch(const tess_delta_arg *a, bool backward);
/* x (rows, 2 groups*dim + heads*dim_v), taps (of these columns,taps), b, a (rows,heads), logs f32, biases f32
 * (heads)[, bounds], y (rows,heads*dim_v), states[, the last taps - 1 rows of x of each sequence], scratch. Cached, the
 * states and those rows change. */
extern tess_codelet tess_delta_rule_forward[];
/* dy, x, taps, b, a, logs, biases[, bounds], states, dx +=, dtaps f32 +=, db +=, da +=, dlogs f32 +=, dbiases f32 +=,
 * scratch */
extern tess_codelet tess_delta_rule_backward[];

/* ---- sinks.c: logits of heads in attention's softmax that have no value ---- */
typedef struct tess_sinks_arg {
    int64_t rows, heads, dim;
    int64_t head0, all; /* they are heads [head0, head0 + heads) of all */
    bool acc;
} tess_sinks_arg;
extern tess_codelet tess_sinks_forward[]; /* sinks f32 (all), y (rows, heads*dim), lse f32 (rows, heads): both change */
extern tess_codelet tess_sinks_backward[]; /* dy, y, lse, sinks, dsinks f32 += (all) */

/* ---- cached_attention.c: keys and values that are kept ---- */
/* A tile of the cache has `block` places of each sequence: keys (sequences, groups, dim, block), values (sequences,
 * groups, block, dim), real. Place p of a sequence is in tile p / block. A row's range of places is told as in
 * attention, by bounds (2 queries) a sequence; with `own` its end is the row's own place and one, and it sees no more
 * than a window of places before that. */
typedef struct tess_cached_arg {
    int64_t sequences, queries; /* rows: sequences * queries */
    int64_t heads, groups, dim; /* as in attention, as is: */
    bool packed, by_head;
    int64_t block;
    int64_t first, tiles; /* the place with which the first of the task's tiles begins, and how many there are */
    int64_t group0, some; /* the groups of this task: [group0, group0 + some) */
    int64_t window, buckets, reach;
    float scale, cap;
    bool own, causal; /* causal: a bias has no buckets for keys behind a query */
    bool sinks;
    bool begins, ends; /* what is left of the tiles before is nothing; after these there are no more */
} tess_cached_arg;
enum { TESS_CACHED_TILES = 96 }; /* of keys, that a task may have */
/* Return the bytes of a task's scratch, and of what it leaves for the one with the next tiles. */
size_t tess_cached_scratch(const tess_cached_arg *a, tess_dtype t);
size_t tess_cached_state(const tess_cached_arg *a);
/* k, v or packed qkv[, bounds i32], keys +=, values +=: those rows whose place is in this one tile and which see
 * anything: padding writes nothing. Without `own` a row's place is its number in its sequence, and there are no bounds.
 */
extern tess_codelet tess_cache_append[];
/* q or packed qkv, bounds i32[, bias (buckets, heads)][, sinks f32 (heads)], keys..., values...[, state f32, unless it
 * begins and ends][, y (rows, some * heads / groups * dim), if it ends], scratch */
extern tess_codelet tess_cached_attention[];

/* ---- own_codelet.c: ops from outside ---- */
/* A call but for its pointers; those of its operands that have tiles are the buffers, in this order: in..., out, aux,
 * d_out, d_in...[, scratch]. */
typedef struct tess_own_arg {
    tess_function cpu, cuda;
    double (*flops)(const tess_call *c);
    bool scratch;
    tess_call call;
} tess_own_arg;
/* All such codelets have these bodies, and those that have a function for their flops this cost. */
void tess_own_cpu(const tess_work *w);
void tess_own_cuda(const tess_work *w);
tess_cost tess_own_cost(const void *arg);

/* ---- strip.c ---- */
/* Runs of `n` columns of `from` (rows, from_ld) go to columns of `to` (rows, to_ld), or are added there. Where one side
 * has fewer rows, each of its rows has `spread` of to's, or is the sum of `sums` of from's; 0: one. */
enum { TESS_MOST_RUNS = 3 };
typedef struct tess_strip_arg {
    int64_t rows, from_ld, to_ld, spread, sums; /* rows: of `to` */
    int runs;
    struct {
        int64_t from, to, n;
    } run[TESS_MOST_RUNS];
    bool acc, clears; /* clears: what is in no run becomes 0 */
} tess_strip_arg;
extern tess_codelet tess_strip[]; /* from, to */

/* ---- join.c, bundle.c: what steps of few rows are made of ---- */
/* y (rows, width) of stripes of its columns, each (rows, stripe), the last what is left. */
typedef struct tess_join_arg {
    int64_t rows, width, stripe;
} tess_join_arg;
extern tess_codelet tess_join[]; /* y, stripes... */

/* Several small tasks as one: their bodies one after the other, each on these of the task's buffers. */
typedef struct tess_bundle_part {
    tess_codelet *cl;
    const void *arg;
    const uint16_t *buf;
    unsigned nbuf;
} tess_bundle_part;
typedef struct tess_bundle_arg {
    unsigned parts;
    const tess_bundle_part *part;
} tess_bundle_arg;
enum { TESS_BUNDLE_BUFFERS = 64, TESS_BUNDLE_PARTS = 48 }; /* at most */
extern tess_codelet tess_bundle[], tess_bundle_either[];   /* the latter of codelets that may run on either side */

/* ---- cross_entropy.c: the head and its loss ---- */
/* logits = x w^T [+ b], loss = -log softmax(logits)[target], for a piece of rows and one tile of w at a time: columns
 * [first, first + out) of vocab. A target below 0 counts for nothing. What logits leave behind is p, real: on a CPU,
 * where they exist a block at a time, exp(logit - m), m the largest of its row and strip; on a GPU the logits
 * themselves; and statistics, f32, `stats` of them a tile: m and the sum of exp(logit - m) of each strip and row, and
 * each row's logit at its target. From all tiles' statistics come lse and the loss, then p becomes dlogits, from which
 * tess_linear_backward_weight makes dw and db, and dx, f32, adds up over tiles. */
typedef struct tess_cross_entropy_arg {
    int64_t rows, in;
    int64_t row; /* the first row of x and target that this task works on; their tiles may hold more */
    int64_t first, out;
    int64_t ld;                     /* from row to row of p; 0: out */
    int64_t tiles, tile_out, vocab; /* rows: the statistics' tiles have tile_out columns, the last one what is left */
    float cap;                      /* logits become cap tanh(logit / cap); 0: they stay */
    float heat;                     /* then they are divided by it; 0: they are not */
    float weight;                   /* the loss, and its gradient, is multiplied by it; 0: it is not */
    /* A target is that many tokens, each with its share; 0: one. They are i32 (places, 2 soft), tokens and then the
     * bits of their shares, and lie behind all other buffers; place `soft_row` there is row 0 of x. The loss is then
     * the sum of share (log share - log softmax(logits)), and `target` says no more than what counts. */
    int64_t soft, soft_row;
    int loss, losses; /* which one this is, of how many that are added */
    bool bias, grad;
    bool whole; /* logits, gradient: the tile is all of w, and the loss is what is wanted: a GPU's logits are dlogits */
    bool hits;  /* rows: how many targets have the largest logit is counted behind the losses, as these are */
    bool acc;   /* dx */
    bool ends;  /* gradient: dx is not needed, and neither w nor dx is among the buffers */
    /* Rows of a sequence, where what is wanted is not the loss of all but a score of each sequence, f32 (sequences, 2):
     * the sum of the log-probabilities of its targets, and their number. lse is then of all rows of the tile. 0: none.
     */
    int64_t sequence;
} tess_cross_entropy_arg;
/* Returns the bytes of a task's scratch. */
size_t tess_cross_entropy_scratch(void);
/* Returns the bytes of one tile's statistics; with soft targets 4 more for each row and each one beyond the first. */
size_t tess_cross_entropy_stats(int64_t rows, int64_t out);
/* x, target i32, w (out,in), stats, scratch[, p (rows,out), ld apart][, b f32 (out)] */
extern tess_codelet tess_cross_entropy_logits[];
/* [TESS_F32] only: target, lse f32 (rows), losses double (losses, 2), with hits (2 losses, 2): sum, count, zeros but
 * for this one; stats of all tiles... With sequences the scores, which are added to behind row 0, are in the place of
 * the losses. */
extern tess_codelet tess_cross_entropy_rows[];
/* p (rows,out): from now on dlogits, scaled by env.loss_scale[loss]; stats, lse, target[, w, dx f32 (rows,in) +=]; with
 * sequences the scores' gradient, which scales them instead. */
extern tess_codelet tess_cross_entropy_gradient[];
/* The `soft` largest logits of rows among the first `vocab` columns: x, w (out,in), likeliest f32 (rows, 2 + 2 soft),
 * which tiles add to one after the other from column 0 on, scratch[, b]. Of a row: the largest, the sum of exp(logit -
 * largest), the logits from the largest on, of equals the first, then their columns as floats; -1: there are fewer. */
extern tess_codelet tess_cross_entropy_likeliest[];

/* ---- preference.c: losses of pairs of sequences, or of sequences with a label ---- */

typedef struct tess_preference_arg {
    tess_preference_conf conf;
    unsigned tiles, spans; /* of scores; `spans` of them, side by side, have parts of the same sequences */
    bool reference, grad;  /* the other inputs that there are */
    bool numbers;          /* there is room for those beside the loss */
} tess_preference_arg;
/* [TESS_F32] only: loss double (1 + numbers, 2): sum and count of each; scores f32 (sequences, 2) of `tiles`, chosen
 * and rejected in turn[; reference i32 (sequences, 1), KTO's (sequences, 3), the bits of floats, of tiles / spans][;
 * dscores of `tiles`] */
extern tess_codelet tess_preference_loss[];

/* ---- route.c, dispatch.c, expert_linear.c, expert_bias.c, combine.c, balance.c: rows that choose experts ---- */
/* Returns the bytes of an order, i32, in which the rows of a tile have their places: order_impl.h. */
size_t tess_order_bytes(int64_t rows, int64_t experts, int64_t chosen);

enum { TESS_ROUTE_GROUPS = 32 }; /* at most: a lane of a warp has one */
typedef struct tess_route_arg {
    int64_t rows, experts, chosen;
    int64_t sequence;     /* where bounds say which rows are padding, and go nowhere; */
    int64_t place;        /* that of the first row in it */
    int64_t groups, kept; /* of equal groups of experts those with the largest two together are chosen from; 0: all */
    float scale;          /* a factor of the weights; 0: 1 */
    bool normalised;      /* the weights of a row add up to 1; else they are what softmax says */
    bool scored;          /* each expert's sigmoid, in the place of softmax; a bias has a say in who is chosen */
    bool bounded;
    bool acc;
    tess_choice *choice; /* it stores how many rows each expert has; NULL: it is not needed */
} tess_route_arg;
/* logits (rows,experts), weights (rows,chosen), order[, bias f32 (experts)][, bounds i32 (2 rows)]: the largest
 * `chosen` */
extern tess_codelet tess_route_forward[];
extern tess_codelet tess_route_backward[]; /* dweights (rows,chosen), logits, order, dlogits += */

/* Rows to places and back: x (rows,width), y (rows*chosen,width); places without a row are zeros. */
typedef struct tess_dispatch_arg {
    int64_t rows, experts, chosen, width;
    bool acc;
    bool acc_weights; /* combine's */
} tess_dispatch_arg;
extern tess_codelet tess_dispatch_forward[];  /* x, order, y */
extern tess_codelet tess_dispatch_backward[]; /* dy, order, dx += */
extern tess_codelet tess_combine_forward[];   /* x (rows*chosen,width), weights, order, y (rows,width) */
extern tess_codelet tess_combine_backward[];  /* dy, x, weights, order, dx +=, dweights += */

/* Places of experts [first, end) among those of all, and a tile that has these alone, from its beginning. */
typedef struct tess_share_arg {
    int64_t first, end, experts, choices, room, width; /* places of all, and of theirs */
    bool back;
} tess_share_arg;
/* x (choices,width), order, y (room,width): y from x, or, back, x from y; places that no row has are zeros. */
extern tess_codelet tess_dispatch_share[];

/* The places of one expert times a tile of its matrix. The places that no row has are the first expert's to clear. */
typedef struct tess_expert_arg {
    int64_t expert, choices; /* choices: all places */
    int64_t first, end;      /* the tile has places of experts [first, end), all of them or an owner's */
    tess_linear_arg linear;  /* but for rows */
    bool rest;               /* it clears its columns there */
} tess_expert_arg;
/* Returns the bytes of a task's scratch. */
size_t tess_expert_scratch(int64_t in, int64_t out);
/* x (choices,in), w (out,in), order, y (choices,ld), scratch. w is NULL if no row chose the expert and its tile was not
 * fetched. */
extern tess_codelet tess_expert_linear_forward[];
extern tess_codelet tess_expert_linear_backward_input[];  /* dy, w, order, dx (choices,in) +=, scratch */
extern tess_codelet tess_expert_linear_backward_weight[]; /* dy, x, order, dw f32 (out,in) += */

/* Rows of a bias, one for each expert: those of experts [first, first + some). */
typedef struct tess_expert_bias_arg {
    int64_t first, some, experts, choices, width;
    bool acc;
} tess_expert_bias_arg;
/* x (choices,width), bias (some,width), order, y (choices,width): the places of these experts; places that no row has
 * are zeros, by the task that has the first expert. */
extern tess_codelet tess_expert_bias_forward[];
extern tess_codelet tess_expert_bias_backward[]; /* dy, order, dbias f32 (some,width) += */

/* Statistics of routers, for each of the sequences of a tile: of how many choices each expert had, of its share of
 * softmax, and of rows, the sum over rows; 2 experts + 1 numbers, and behind all of them what was lost where each was
 * rounded. */
typedef struct tess_balance_arg {
    int64_t rows, experts, chosen, sequence;
    bool before; /* those of other routers are added */
    bool acc;
    /* loss: sequences of all tiles; weight * experts * sum over experts of (its share of choices) (its share of
     * softmax), each share per row */
    unsigned tiles, own; /* own: those that have gradients here */
    bool told;           /* the loss counts on another rank */
    double weight;
} tess_balance_arg;
extern tess_codelet tess_balance_forward[];  /* logits, order, y (sequences, 4 experts + 2)[, before (the same)] */
extern tess_codelet tess_balance_backward[]; /* dy, logits, order, dlogits += */
/* loss double (2): what is to be added to the sum of losses, and 0; `tiles` statistics, then the gradients of `own`. */
extern tess_codelet tess_balance_loss[];

/* ---- exact.c: sums whose bits no order changes ---- */
/* Returns the bytes of one sum. */
size_t tess_exact_bytes(void);
/* Returns a sum, rounded once; NaN where a term was not finite. */
double tess_exact_value(const void *sum);
/* Returns the sum of the means of losses, whose sums and counts lie one after the other. */
double tess_exact_mean(const void *sums, int losses);
/* Adds another sum to one, on the main thread; a sum of nothing is zeros. */
void tess_exact_merge(void *sum, const void *other);

typedef struct tess_exact_arg {
    int64_t n;     /* sums side by side */
    bool doubles;  /* what is added are doubles, else sums */
    int64_t means; /* sums, from the first, that are sum and count of losses, whose means are added: double (2) = that
                    * sum, 1; 0: none are */
    bool acc;
} tess_exact_arg;
extern tess_codelet tess_exact_add[];   /* [TESS_F32]: sums (n) += the other buffers' (n) each */
extern tess_codelet tess_exact_round[]; /* [TESS_F32]: double (n) = sums (n) */

typedef struct tess_square_arg {
    int64_t n, first; /* elements, from `first` of the buffer on */
    int64_t row;      /* elements of a row; each row is summed by itself */
    const char *name;
} tess_square_arg;
/* [TESS_F32]: x f32, sum[, loss double (2): the task fails where it is finite and x is not, naming arg.name] */
extern tess_codelet tess_square_sum[];

/* ---- tree.c: gradients over micro-batches and ranks ---- */
typedef struct tess_tree_part {
    unsigned buf;
    int level;     /* the sum of 2^level micro-batches */
    int64_t first; /* element of the buffer */
    tess_dtype as; /* fp32, bf16, fp16 or INT8 */
} tess_tree_part;
typedef struct tess_tree_arg {
    int64_t n, out; /* elements, from `out` of the first buffer on */
    unsigned parts;
    const tess_tree_part *part;
} tess_tree_arg;
extern tess_codelet tess_tree_sum[]; /* [TESS_F32]: out f32, parts...; out may be one of them */

/* Elements [first, first + n) of x become the sum of what they are and of the parts, in the order of ranks, x's being
 * that of rank `mine`; in f32, rounded once. */
typedef struct tess_span_arg {
    int64_t n, first;
    unsigned mine, ranks;
} tess_span_arg;
extern tess_codelet tess_span_sum[]; /* x, parts (n)... */

typedef struct tess_copy_arg {
    size_t from, to, bytes;
} tess_copy_arg;
extern tess_codelet tess_copy[]; /* [TESS_F32], but of any bytes: x, y */

/* ---- optimizer.c, and a file an optimizer: adamw.c, sgd.c, lion.c, adagrad.c, muon.c, adafactor.c ---- */
enum { TESS_MOMENTS_MOST = 2 }; /* there is room for; how many an optimizer has its description says */

typedef struct tess_whole_arg tess_whole_arg;

/* An optimizer as those see it who hold its moments and emit its updates. */
typedef struct tess_optimizer_kind {
    const char *name;                          /* as messages and checkpoints have it */
    tess_codelet *update;                      /* [TESS_F32] only; see tess_update_arg */
    const char *moment[TESS_MOMENTS_MOST];     /* what its moments are called in files: NAME.exp_avg */
    int (*moments)(const tess_optimizer *o);   /* how many of these there are with such numbers; NULL: all */
    double (*begins)(const tess_optimizer *o); /* what they are before the first update; NULL: 0 */
    unsigned positive;                         /* bit m: that moment is never below 0 */
    /* An optimizer of whole matrices; NULL: tiles know nothing of each other. */
    tess_codelet *whole;                                   /* [TESS_F32] and [TESS_BF16]; see tess_whole_arg */
    tess_codelet *apply;                                   /* [TESS_F32] only */
    size_t (*room)(const tess_whole_arg *a, tess_dtype t); /* bytes that `whole` has beside */
    double (*stretch)(const tess_optimizer *o, double rows, double columns); /* as PyTorch has the matrix; or NULL */
    /* Numbers of a row: of the matrix, where it comes together, and of its moments, which `update` and `apply` then
     * both have, the former with the parameter f32 in the place of the copy; NULL: as many as columns. */
    int64_t (*stride)(int64_t rows, int64_t columns), (*width)(int64_t rows, int64_t columns);
    const struct tess_optimizer_kind *others;      /* what has the parameters that are no hidden matrices */
    tess_status (*check)(const tess_optimizer *o); /* numbers that cannot be are TESS_INVALID */
} tess_optimizer_kind;
/* Returns the description; NULL: there is no such type. */
const tess_optimizer_kind *tess_optimizer_kind_of(const tess_optimizer *o);
/* What is no optimizer's: a state of the network becomes what stands in the place of its gradient. */
extern const tess_optimizer_kind tess_replace_kind;
extern const tess_optimizer_kind tess_adamw_kind;
/* Returns how many moments it keeps of a parameter, and how many a kind does with such numbers. */
int tess_optimizer_moments(const tess_optimizer *o);
int tess_optimizer_kind_moments(const tess_optimizer_kind *kind, const tess_optimizer *o);
/* Returns whether the codelet is the update of an optimizer. */
bool tess_codelet_updates(const tess_codelet *cl);
/* Returns TESS_INVALID for numbers that no optimizer can have. */
tess_status tess_optimizer_check(const tess_optimizer *o) TESS_NODISCARD;

/* A tile of a matrix' moments as it is kept: whole rows of `width` elements, which are those from `column` on of rows
 * of `whole` in the parameter. In 8 bits codes come first, then the scales of blocks (moment_format_impl.h). */
enum { TESS_KEPT_BLOCK = 256, TESS_KEPT_PARTS = 3 };
typedef struct tess_kept {
    tess_keeping as;
    int64_t width, whole, column;
    struct {
        int64_t rows, first; /* `rows` rows from `first` on in the parameter, before the rows of the next part */
    } part[TESS_KEPT_PARTS];
    uint32_t dice; /* the parameter's stream of random numbers */
} tess_kept;
/* Returns its name in configurations: "fp32", "bf16", "8bit". */
const char *tess_keeping_name(tess_keeping as);
/* Returns the bytes of a tile of `rows` rows. */
size_t tess_kept_bytes(const tess_kept *k, int64_t rows);
/* Reads rows [row, row + rows) of a tile of `of` rows as fp32. positive: none is below 0. */
void tess_kept_read(const tess_kept *k, const void *kept, int64_t of, bool positive, int64_t row, int64_t rows,
                    float *x);
/* Writes them, rounded to nearest: what was read comes to the same bits again. May change what x holds. */
void tess_kept_write(const tess_kept *k, void *kept, int64_t of, bool positive, int64_t row, int64_t rows, float *x);

/* Of all updates: master f32 (n), moments (n) each as `kept` says, grad (n), loss double (2), norm[, copy (n)].
 * norm is the square of the global norm, double, with clip; without, the exact sum of the squares of these gradients.
 * Nothing happens when the loss or the norm is not finite; the latter fails the task and names the parameter. */
typedef struct tess_update_arg {
    int64_t n;
    int64_t at_master, at_gradient, at_copy; /* elements of those buffers that come before */
    int64_t columns;                         /* of n */
    const tess_optimizer *optimizer;
    int moments;
    double weight_decay; /* of this parameter */
    double lr_scale;     /* of env.lr */
    double stretch;      /* of a whole matrix' step, beside its decay */
    tess_dtype gradient; /* TESS_F32; or TESS_BF16, of what does not come together as a whole matrix */
    tess_dtype copy;     /* of the copy that follows; TESS_F32: none does */
    bool clip;           /* scale by env.clip over the norm */
    bool late;           /* this update is of the step before, as env.before says */
    bool skips;          /* what is not finite fails nothing */
    tess_kept kept;      /* how moments are; zeros: in fp32 */
    const char *name;
} tess_update_arg;

/* Of a whole matrix, where `update` of its tiles had a matrix f32 (rows,stride) in the place of the master, and
 * `apply` will have it in the place of the gradient: the matrix, room, loss, norm. */
struct tess_whole_arg {
    tess_update_arg update;
    int64_t rows, columns;
};
extern tess_codelet tess_update_adamw[], tess_update_sgd[], tess_update_lion[], tess_update_adagrad[];

/* ---- fill.c, finite.c, pick.c ---- */
typedef struct tess_count_arg {
    int64_t n;             /* elements */
    float value;           /* fill */
    uint32_t op;           /* fill_normal: which parameter */
    int64_t at;            /* of the buffer that is written, elements that come before */
    int64_t first;         /* fill_normal: the index of the first element in the parameter */
    int64_t width, stride; /* `width` elements of each of the parameter's rows of `stride` elements; 0: dense */
    bool uniform;          /* fill_normal: uniform in [-1, 1) instead */
    tess_dtype as, of;     /* quantize: NF4 or INT8, of values that are rounded to another dtype before */
    const char *name;
} tess_count_arg;
extern tess_codelet tess_fill[];          /* [F32|BF16|F16]: x (n) = value */
extern tess_codelet tess_fill_normal[];   /* [TESS_F32]: x (n) = value * normal(env.seed, op, place) */
extern tess_codelet tess_round[];         /* [BF16|F16]: master f32 (n), copy (n) */
extern tess_codelet tess_quantize[];      /* [F32|BF16|F16]: x (n), its codes in blocks (n) */
extern tess_codelet tess_quantize_rest[]; /* [TESS_F32]: x f32 (n), rest f32 (n), codes (n) of x + rest, which becomes
                                           * what they lack */
extern tess_codelet tess_dequantize[];    /* [F32|BF16|F16]: codes (n) in arg.as, y (n) */
extern tess_codelet tess_finite[]; /* [F32|BF16|F16]: fails the task, naming arg.name, where x (n) is not finite */

typedef struct tess_pick_arg {
    int64_t rows, width, sequence; /* rows/sequence picks */
    bool acc;
} tess_pick_arg;
extern tess_codelet tess_pick_forward[];  /* x (rows,width), index i32 (picks): row in its sequence, y (picks,width) */
extern tess_codelet tess_pick_backward[]; /* dy (picks,width), index, dx += (rows,width), all zero but for those rows */

#ifdef __cplusplus
}
#endif

#endif
