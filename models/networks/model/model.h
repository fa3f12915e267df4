/* The inside of networks: what one family of models says of itself. */
#ifndef TESS_MODEL_IMPL_H
#define TESS_MODEL_IMPL_H
#include "graph.h"
#include "safetensors.h"
#include "tessera_networks.h"

/* How weights are written; config.def has these in this order. */
typedef enum tess_save_dtype { TESS_SAVE_FP32, TESS_SAVE_BF16, TESS_SAVE_FP16 } tess_save_dtype;

/* What a field of config.json is to us. */
typedef enum tess_field_kind {
    TESS_FIELD_INT,      /* a number of the model, into the family's struct */
    TESS_FIELD_OPTIONAL, /* the same, or null, which is 0 */
    TESS_FIELD_REAL,
    TESS_FIELD_OPTIONAL_REAL,    /* a real above `least`, or null, which is 0 */
    TESS_FIELD_TRAINING,         /* a real that acts while it trains, or before: a run may go on with another */
    TESS_FIELD_TRAINING_OR_NULL, /* null is -1 */
    TESS_FIELD_BOOL,
    TESS_FIELD_MEMBERS, /* how many members an object has */
    TESS_FIELD_ACTIVATION,
    TESS_FIELD_CHOICE,        /* one of the words in `text`, between blanks: its place there */
    TESS_FIELD_OBJECT,        /* its members are the fields NAME.MEMBER; null is an empty one */
    TESS_FIELD_LAYERS,        /* a word a layer, each one of the two in `text`, into a tess_layers; or null */
    TESS_FIELD_LAYER_NUMBERS, /* a list of layers, from 0, into a tess_layers; or null. `text` says what they are */
    TESS_FIELD_ALIAS,         /* another name of the field in `text` */
    TESS_FIELD_ONLY,          /* changes the arithmetic, and `text` (JSON) is all that is supported */
    TESS_FIELD_IGNORED        /* does not change the arithmetic of training */
} tess_field_kind;
typedef struct tess_field {
    const char *name;
    tess_field_kind kind;
    size_t offset;
    double preset, least; /* numbers: the default, and the least allowed */
    const char *text;
} tess_field;

/* What the struct of every family begins with. */
typedef struct tess_common {
    int64_t vocab, positions; /* positions: the longest sequence; 0: any */
    int64_t layers, tied;
    double init;
} tess_common;
/* common.c: the fields that every family has at Hugging Face. A family's own of the same name come before them. */
extern const tess_field tess_common_fields[];
/* rotary.c: those of families with rotary positions, see rotary_impl.h. */
extern const tess_field tess_rotary_fields[];

/* Which of two words each layer has. */
enum { TESS_MOST_LAYERS = 1024 };
typedef struct tess_layers {
    int64_t given; /* config.json says it; else it follows from other fields */
    uint64_t second[TESS_MOST_LAYERS / 64];
} tess_layers;
static inline bool tess_layer_second(const tess_layers *l, int64_t layer)
{
    return l->second[layer / 64] >> (layer % 64) & 1;
}
static inline void tess_layer_set(tess_layers *l, int64_t layer)
{
    l->second[layer / 64] |= (uint64_t)1 << (layer % 64);
}

/* Functions that lie between two matrices of a block. The first are tess_gelu's. */
typedef enum tess_activation {
    TESS_ACTIVATION_GELU_TANH = TESS_GELU_TANH,
    TESS_ACTIVATION_GELU = TESS_GELU_ERF,
    TESS_ACTIVATION_SILU,
    TESS_ACTIVATION_RELU,
} tess_activation;
tess_tensor *tess_activate(tess_tensor *x, int64_t activation);

enum { TESS_MODEL_NUMBERS = 768 };

/* What routers of experts leave for the loss: statistics of all of them so far, NULL where there are none, and the
 * weight of that loss. */
struct tess_routed {
    tess_tensor *statistics;
    double weight;
};

/* x for embedding tables: the row of each token, plus that of its place. */
tess_tensor *tess_embed(const tess_network *in, tess_tensor *words, tess_tensor *places);

/* What makes logits of the body's rows. */
typedef struct tess_head {
    tess_tensor *weight, *bias; /* (V, C); (V), NULL: none */
    float cap;                  /* logits become cap tanh(logit / cap); 0: they stay */
} tess_head;

/* One a family and kind of head, in a file of its name. Where several have one type, the architecture that config.json
 * names decides, and the first is meant where it names none. */
typedef struct tess_family {
    const char *type;              /* model_type */
    const char *architecture;      /* as saved */
    const char *prefix;            /* of the names of all weights, with its dot; files may lack it */
    const tess_field *field;       /* its own, ended by a NULL name */
    const tess_field *shared;      /* those of its kind of family, behind its own; NULL: none */
    const tess_field *rotary;      /* tess_rotary_fields: a tess_rotary follows the tess_common; NULL: none does */
    size_t numbers;                /* size of the struct that the fields fill; a tess_common comes first in it */
    void (*settle)(void *numbers); /* sets what follows from other fields where it is not given; NULL: nothing does */
    tess_answers answers;
    int64_t (*segments)(const void *numbers);       /* of how many kinds tokens are; NULL: of one */
    int64_t (*labels)(const void *numbers);         /* how many; NULL: it has none */
    int64_t (*first_position)(const void *numbers); /* of a sequence; NULL: 0 */
    tess_status (*check)(const void *numbers, const char *where);
    /* The rows of all tokens, or what the head reads: (B,T,C), or (B,1,C) for a label. */
    tess_tensor *(*body)(const void *numbers, tess_graph *g, const tess_network *in);
    /* Makes of the body's rows those that the head reads; NULL: they are the same. */
    tess_tensor *(*transform)(const void *numbers, tess_graph *g, tess_tensor *x);
    tess_head (*head)(const void *numbers, tess_graph *g);
    /* With TESS_ANSWERS_BOTH: of the body's rows those that label_head reads, (B,1,C). */
    tess_tensor *(*label_rows)(const void *numbers, tess_graph *g, const tess_network *in, tess_tensor *x);
    tess_head (*label_head)(const void *numbers, tess_graph *g);
    bool (*transposed)(const char *name); /* stored (in, out); names are without the prefix; NULL: none is */
    bool (*bare)(const char *name);       /* stored without the prefix */
    bool (*extra)(const char *name);      /* a stored tensor that is no parameter and may be left alone */
    bool (*fresh)(const char *name);      /* a parameter that files may lack, and which is drawn then; NULL: none */
} tess_family;
#define TESS_MODEL(name) extern const tess_family tess_family_##name;
#include "models.def"
#undef TESS_MODEL

struct tess_model {
    const tess_family *family;
    char *dir;                       /* NULL: from an object */
    char *json;                      /* the whole config.json */
    struct tess_safetensors *states; /* of a checkpoint, opened with it: another run may remove it; NULL: it is none */
    struct tess_lora *lora;          /* adapters (lora_impl.h), and alone trained; NULL: none */
    tess_save_dtype stored;          /* as its weights are written */
    _Alignas(16) char numbers[TESS_MODEL_NUMBERS];
};

/* Returns the dtype that config.json names, in which the weights of a checkpoint's model are to be written: a
 * checkpoint has that of its run's save_dtype there. */
tess_save_dtype tess_model_named_dtype(const tess_model *m);

/* Says TESS_INVALID where what was read so far of a checkpoint may lack something: the run that it is of may have
 * removed it meanwhile. */
tess_status tess_model_check(const tess_model *m) TESS_NODISCARD;
/* Returns max_position_embeddings, which limits sequences only where tess_model_positions does; 0: there is none. */
int64_t tess_model_trained_positions(const tess_model *m);
/* Says whether two names are of one field. */
bool tess_fields_same(const tess_family *f, const char *a, const char *b);
/* Returns the next field behind `after` (NULL: the first) in which two structs differ; NULL: there is none. */
const tess_field *tess_fields_differ(const tess_family *f, const void *a, const void *b, const tess_field *after);
/* Writes a field's value as config.json has it. */
const char *tess_field_text(const tess_field *d, const void *numbers, char text[static 32]);
/* Says whether files store a parameter (in, out). */
static inline bool tess_model_turned(const tess_model *m, const char *name)
{
    return m->family->transposed && m->family->transposed(name);
}
/* Writes what lies beside the weights in a model's directory: its config.json and tokenizer. Rank 0 alone calls it. */
tess_status tess_model_save_rest(const tess_model *m, const char *dir) TESS_NODISCARD;
/* Writes the same beside weights that are as its own directory has them, but for adapters folded in. */
tess_status tess_model_save_merged(const tess_model *m, const char *dir) TESS_NODISCARD;
/* A stack of matrices is a tensor each in files, whose name has a number where the stack's has a star: writes it. */
void tess_model_member(const char *name, int64_t member, char out[static 512]);
/* Returns the tensor of a model's files that a parameter is; NULL: they lack it. */
const struct tess_safetensor *tess_model_tensor(const tess_model *m, const struct tess_safetensors *set,
                                                const char *name);
/* Removes what lies beside the weights. */
void tess_model_remove_rest(const char *dir);
/* Removes the weights, too, of what could not be written whole. */
void tess_model_remove(const char *dir);
/* Names a file in a directory that is of a model or a checkpoint; NULL: there is none. */
const char *tess_model_file_in(const char *dir);
/* Says whether a parameter is written: with adapters what is trained alone. */
bool tess_model_writes(const tess_model *m, const tess_tensor *p);
/* Begins a Hugging Face file in dir, to which all parameters that are written are declared, in their order. */
tess_safetensors_writer *tess_model_writer(const tess_model *m, const tess_graph *g, const char *dir);
/* Reads a family's fields of a JSON object into its struct, defaults included; `where` is for messages. */
tess_status tess_fields_read(const tess_family *f, const char *where, const char *json, void *numbers) TESS_NODISCARD;

#endif
