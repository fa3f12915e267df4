/* tessera.h, of the networks: models by name, described in ops of the graph, and their weights.
 *
 *     tess_model *m;
 *     TESS_TRY(tess_model_open("gpt2", NULL, &m));                    // a Hugging Face directory
 *     tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_BF16});
 *     tess_network net;
 *     TESS_TRY(tess_model_build(m, g, 4, 1024, TESS_FOR_LOSS, &net)); // 4 sequences of 1024 tokens
 *     TESS_TRY(tess_start(&TESS_MACHINE_DEFAULT));
 *     TESS_TRY(tess_model_load(m, g, 1));                             // or draws the weights from seed 1
 *     ... tess_step_new(net.output, ...), feed net.ids and net.targets, tess_step_run ...
 *     TESS_TRY(tess_model_save(m, g, "out/model"));
 *
 * A model of another kind is a file like gpt2.c and one line in models.def; see docs/add-a-model.md. */
#ifndef TESSERA_NETWORKS_H
#define TESSERA_NETWORKS_H
#include "tessera_graph.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct tess_model tess_model;
/* Opens a directory's config.json, the JSON text of such an object, or both, where the object's members replace the
 * directory's. A checkpoint is such a directory too. A model_type or a field that is not known, or whose value changes
 * the arithmetic in a way that is not supported, is TESS_INVALID. */
tess_status tess_model_open(const char *dir, const char *json, tess_model **model) TESS_NODISCARD;
/* Closes it; NULL is nothing. */
void tess_model_close(tess_model *m);
/* Adapters of low rank beside its linears, which alone are trained: all else is frozen where it is built. */
typedef struct tess_lora_conf {
    int64_t r;             /* their rank */
    double alpha, dropout; /* y += (alpha / r) B A dropout(x) */
    bool rslora;           /* the factor is alpha / sqrt(r) */
    const char *targets;   /* "all-linear", a name or a pattern, or the JSON text of a list; NULL: as PEFT has them */
    const char
        *modules_to_save; /* the same of modules that are trained as they are; NULL: none, but a head of labels */
} tess_lora_conf;
/* Gives it new ones, before it is built. */
tess_status tess_model_add_lora(tess_model *m, const tess_lora_conf *c) TESS_NODISCARD;
/* Gives it those of a directory, as PEFT writes them. tess_model_open of such a directory opens its base with them. */
tess_status tess_model_adapt(tess_model *m, const char *dir) TESS_NODISCARD;
/* Returns the number of tokens that it knows. */
int64_t tess_model_vocab(const tess_model *m);
/* Returns the length of the longest sequence; 0: any. */
int64_t tess_model_positions(const tess_model *m);
/* Returns its directory; NULL for a JSON object. */
const char *tess_model_dir(const tess_model *m);
/* Says whether the directory holds weights. */
bool tess_model_has_weights(const tess_model *m);

/* What a model says of its input, and so what a target is. */
typedef enum tess_answers {
    TESS_ANSWERS_NEXT,     /* the token behind each token */
    TESS_ANSWERS_IN_PLACE, /* the token that stands there, where the input has a mask */
    TESS_ANSWERS_LABEL,    /* one label a sequence */
    TESS_ANSWERS_DECODER,  /* another sequence, token by token */
    TESS_ANSWERS_BOTH,     /* in place, and one label a sequence: two losses, which are added */
} tess_answers;
tess_answers tess_model_answers(const tess_model *m);
/* Returns how many different targets there are: as many as tokens, or labels, where it has any. */
int64_t tess_model_targets(const tess_model *m);
/* Returns of how many kinds of segments tokens are; 0: it does not look. */
int64_t tess_model_segments(const tess_model *m);

typedef enum tess_purpose {
    TESS_FOR_LOSS,   /* output is the loss over targets */
    TESS_FOR_LOGITS, /* output is the logits (B,1,V) of the row of each sequence that index (B,1) names */
} tess_purpose;
/* The inputs of a network, which a step is fed with, and its output. NULL: this network has none of it. */
typedef struct tess_network {
    tess_tensor *ids;         /* (B,T) */
    tess_tensor *targets;     /* (B,T); below 0: draws no loss */
    tess_tensor *label;       /* (B,1): a target too, one a sequence */
    tess_tensor *index;       /* (B,1): the row that is looked at; of a label's network 0, the first */
    tess_tensor *bounds;      /* (B,2T): see tess_attention_conf */
    tess_tensor *positions;   /* (B,T): each token's place in its document, plus first_position */
    tess_tensor *segments;    /* (B,T): which of two texts each token is of */
    tess_tensor *decoder_ids; /* (B,T): what a decoder has read, which is its targets one place later */
    tess_tensor *visible;     /* (B,2T): as bounds, which rows of the encoder's each of the decoder's sees */
    tess_cache *cache;        /* attention's keys and values; bounds are places there. NULL: there is none */
    bool encodes, decodes;    /* with a cache: only what of an encoder and a decoder is computed once, or again */
    tess_tensor *output;
    int64_t first_position;
    struct tess_routed *routed; /* the library's own, while it adds the network to a graph */
} tess_network;
typedef struct tess_build {
    int64_t batch, length; /* B sequences of T tokens */
    tess_purpose purpose;
    bool bounds;       /* sequences have padding, or several documents that do not see each other */
    bool positions;    /* documents count their places themselves */
    tess_cache *cache; /* for TESS_FOR_LOGITS: rows see what earlier steps left there, and have bounds and positions */
    bool encodes;      /* of an encoder with a decoder: what is computed once. The output is of no use */
} tess_build;
/* Adds the model to a graph. */
tess_status tess_model_build_for(const tess_model *m, tess_graph *g, const tess_build *build,
                                 tess_network *net) TESS_NODISCARD;
/* Adds it for batches of `batch` sequences of `length` tokens, all of them full. */
tess_status tess_model_build(const tess_model *m, tess_graph *g, int64_t batch, int64_t length, tess_purpose purpose,
                             tess_network *net) TESS_NODISCARD;
/* Loads the weights of the model's directory, each straight to its tiles, or draws them from seed where there are none.
 * All ranks load and save together, each what it holds, and get the same status. */
tess_status tess_model_load(const tess_model *m, tess_graph *g, uint64_t seed) TESS_NODISCARD;
/* Writes a Hugging Face directory: config.json, model.safetensors or its shards, in fp32, and the tokenizer and
 * generation_config.json that the model came with. Of a model with adapters these alone, as PEFT's directory. */
tess_status tess_model_save(const tess_model *m, tess_graph *g, const char *dir) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
