/* tessera.h: models by name, described in ops of a graph, and their weights.
 *
 *     tess_model *m;
 *     TESS_TRY(tess_model_open("gpt2", NULL, &m));                    // a Hugging Face directory
 *     tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16});
 *     tess_network net;
 *     TESS_TRY(tess_model_build(m, g, 4, 1024, TESS_FOR_LOSS, &net)); // 4 sequences of 1024 tokens
 *     ... tess_step_new(net.output, ...), tess_start ...
 *     TESS_TRY(tess_model_load(m, g, 1));                             // or draws the weights from seed 1
 *     ... feed net.ids and net.targets, tess_step_run ...
 *     TESS_TRY(tess_model_save(m, g, "out/model"));
 *
 * A model of another kind is a file like gpt2.c and one line in models.def; see docs/add-a-model.md. */
#ifndef TESSERA_NETWORKS_H
#define TESSERA_NETWORKS_H
#include "graph/tessera_ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- a model ----------------------------------------------------------------------------------------------------- */

typedef struct tess_model tess_model;
/* Opens a directory's config.json, or the JSON text of such an object, or both: then the object's members replace the
 * directory's. A checkpoint is such a directory, too; that of an adapter opens its base model with it. A model_type or
 * a field that is not known, and a value that asks for other arithmetic than there is, are TESS_INVALID. The caller
 * closes *model. */
tess_status tess_model_open(const char *dir, const char *json, tess_model **model) TESS_NODISCARD;
/* Closes a model; NULL is allowed. */
void tess_model_close(tess_model *m);
/* Returns how many tokens the model knows. */
int64_t tess_model_vocab(const tess_model *m);
/* Returns the length of the longest sequence; 0: there is no limit. */
int64_t tess_model_positions(const tess_model *m);
/* Returns its directory; NULL where it was opened from an object alone. */
const char *tess_model_dir(const tess_model *m);
/* Returns whether the directory holds weights that tess_model_load reads. */
bool tess_model_has_weights(const tess_model *m);
/* Returns TESS_INVALID where it has none: what the directory has instead, and `hint`. */
tess_status tess_model_need_weights(const tess_model *m, const char *hint) TESS_NODISCARD;
/* Makes tess_model_load draw all weights, whatever the directory holds. */
void tess_model_draw(tess_model *m);
/* Returns how many different targets there are: labels where the model has any, else tokens. */
int64_t tess_model_targets(const tess_model *m);
/* Returns how many kinds of segments the model tells tokens apart by; 0: it has none. */
int64_t tess_model_segments(const tess_model *m);

/* What a model predicts from its input, and so what its targets are. */
typedef enum tess_answers {
    TESS_ANSWERS_NEXT,     /* the token after each token */
    TESS_ANSWERS_IN_PLACE, /* the token that stands where the input has a mask */
    TESS_ANSWERS_LABEL,    /* one label for each sequence */
    TESS_ANSWERS_DECODER,  /* another sequence, token by token */
    TESS_ANSWERS_BOTH,     /* masked tokens and one label for each sequence: two losses, which are added */
} tess_answers;
/* Returns what a model predicts. */
tess_answers tess_model_answers(const tess_model *m);

/* Adapters of low rank beside the linears of a model. They alone are trained: all else is frozen. */
typedef struct tess_lora_conf {
    int64_t r;                   /* the rank of the matrices A and B */
    double alpha, dropout;       /* each linear y becomes y + (alpha / r) B A dropout(x) */
    bool rslora;                 /* the factor is alpha / sqrt(r) */
    bool dora;                   /* the lengths of the rows of W + (alpha / r) B A are trained by themselves */
    const char *targets;         /* "all-linear", a name, a pattern, or the JSON text of a list; NULL: PEFT's choice */
    const char *modules_to_save; /* the same for modules that are trained in full; NULL: heads of labels alone */
    tess_dtype base;             /* TESS_NF4 or TESS_INT8: what matrices of linears are held in; TESS_F32: as stored */
} tess_lora_conf;
/* Adds new adapters to a model that is not yet built. */
tess_status tess_model_add_lora(tess_model *m, const tess_lora_conf *c) TESS_NODISCARD;
/* Adds the adapters of a directory that PEFT, or this library, wrote. */
tess_status tess_model_adapt(tess_model *m, const char *dir) TESS_NODISCARD;
/* Puts the adapters of a directory in the place of those that the model has in a graph whose parameters are loaded.
 * They have the same r, alpha and linears; if not, those before stay. */
tess_status tess_model_adapt_anew(tess_model *m, tess_graph *g, const char *dir) TESS_NODISCARD;

/* ---- its network in a graph -------------------------------------------------------------------------------------- */

typedef enum tess_purpose {
    TESS_FOR_LOSS,   /* the output is the loss over targets */
    TESS_FOR_LOGITS, /* the output is the logits (B, 1, V) of the row of each sequence that index (B, 1) names */
} tess_purpose;
/* The inputs and the output of a network. An input that it does not have is NULL. */
typedef struct tess_network {
    tess_tensor *ids;         /* (B, T) tokens */
    tess_tensor *targets;     /* (B, T); one below 0 draws no loss */
    tess_tensor *label;       /* (B, 1) a target for each sequence */
    tess_tensor *index;       /* (B, 1) the row of each sequence whose logits are computed; with labels it is 0 */
    tess_tensor *bounds;      /* (B, 2T) as in tess_attention_conf */
    tess_tensor *positions;   /* (B, T) each token's place in its document, plus first_position */
    tess_tensor *segments;    /* (B, T) which of two texts each token belongs to */
    tess_tensor *soft;        /* (B, 2 top T) what a teacher says (tess_distill), where one has a say */
    tess_tensor *reference;   /* (B, 1) what another model's scores are, for a loss of pairs that takes them */
    tess_tensor *scores;      /* (B, 1, 2) of each sequence (tess_scores), where the loss is one of pairs */
    tess_tensor *decoder_ids; /* (B, T) the decoder's input: its targets, one place later */
    tess_tensor *visible;     /* (B, 2T) as bounds: the encoder's rows that each of the decoder's rows sees */
    tess_cache *cache;        /* the keys and values of its attention; bounds are then places in the cache */
    bool encodes, decodes;    /* with a cache: the network is the encoder alone, or the decoder alone */
    tess_tensor **input;      /* the inputs of an exported network, in the order of its file; the caller calls free() */
    tess_tensor **made;       /* the outputs of an exported network but its loss; NULL: an output without samples */
    tess_tensor *output;      /* the tensor that a step computes */
    tess_tensor *measured;  /* the tensor that a step which evaluates computes, where it has numbers beside the loss */
    int64_t first_position; /* the place of a document's first token */
    int64_t longest;        /* tokens of the longest sequence */
    struct tess_routed *routed; /* private to the library */
} tess_network;
typedef struct tess_build {
    int64_t batch, length; /* B sequences of T tokens */
    tess_purpose purpose;
    bool bounds;       /* sequences have padding, or hold several documents that do not see each other */
    bool positions;    /* the places of tokens are fed */
    tess_cache *cache; /* for TESS_FOR_LOGITS, with bounds and positions: attention sees the rows of earlier steps */
    tess_preference_conf preference; /* the loss is one of pairs of sequences; zeros: it is of tokens */
    tess_distill_conf distill;       /* a teacher has a say in the loss; zeros: none has */
    int64_t likeliest, among;        /* above 0: in the place of the loss this number of tokens, of the first ones */
    float noise;                     /* alpha of tess_embedding_noise, while training; 0: none */
    int64_t longest;                 /* with a cache: tokens of the longest text; 0: length */
    bool encodes; /* only the encoder is built, which fills the cache for a decoder; its output has no meaning */
} tess_build;
/* Adds a model's network to a graph, and stores its inputs and output. */
tess_status tess_model_build_for(const tess_model *m, tess_graph *g, const tess_build *build,
                                 tess_network *net) TESS_NODISCARD;
/* Does the same for batches of `batch` sequences of `length` tokens without padding. */
tess_status tess_model_build(const tess_model *m, tess_graph *g, int64_t batch, int64_t length, tess_purpose purpose,
                             tess_network *net) TESS_NODISCARD;
/* Loads the weights of the model's directory, or draws them from `seed` where it has none. All ranks call it together,
 * each reads what it holds, and all get the same status. */
tess_status tess_model_load(const tess_model *m, tess_graph *g, uint64_t seed) TESS_NODISCARD;
/* Writes a Hugging Face directory: config.json, the weights in fp32 (model.safetensors or shards), the tokenizer and
 * generation_config.json that the model came with. Of a model with adapters it writes these alone, as PEFT does. All
 * ranks call it together and get the same status. */
tess_status tess_model_save(const tess_model *m, tess_graph *g, const char *dir) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
