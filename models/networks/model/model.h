/* The inside of networks: what a family says of itself, what a model is made of, and what the folders of this room call
 * of each other.
 *
 *     static const tess_field fields[] = {{"n_embd", TESS_FIELD_INT, offsetof(struct mine, width), 768, 1, NULL},
 *                                         {0}};
 *     const tess_family tess_family_mine = {.type = "mine", .architecture = "MineLMHeadModel", .prefix = "model.",
 *                                           .field = fields, .numbers = sizeof(struct mine), .check = check,
 *                                           .body = body, .head = head, .bare = "lm_head.weight"};
 *
 * A new family is told in docs/add-a-model.md. */
#ifndef TESS_MODEL_H
#define TESS_MODEL_H
#include "models/networks/networks.h"

/* ---- config.json ------------------------------------------------------------------------------------------------- */

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
    TESS_FIELD_CHOICE, /* one of the words in `text`, between blanks: its place there */
    TESS_FIELD_OBJECT, /* its members are the fields NAME.MEMBER, with a `text` MEMBER; null is an empty one */
    TESS_FIELD_LAYERS, /* a word a layer (or a number), each one of the two in `text`, into a tess_layers; or null */
    TESS_FIELD_LAYER_NUMBERS, /* a list of layers, from 0, into a tess_layers; or null. `text` says what they are */
    TESS_FIELD_LIST,          /* a list of reals above `least`, or null, into a tess_list */
    TESS_FIELD_ALIAS,         /* another name of the field in `text` */
    TESS_FIELD_ONLY,          /* changes the arithmetic, and `text` (JSON) is all that is supported */
    TESS_FIELD_IGNORED        /* does not change the arithmetic of training: it stands in a list of names */
} tess_field_kind;
typedef struct tess_field {
    const char *name;
    tess_field_kind kind;
    size_t offset;
    double preset, least; /* of numbers: the default, and the least allowed */
    const char *text;
} tess_field;

/* What the struct of every family begins with. */
typedef struct tess_common {
    int64_t vocab, positions; /* positions: the longest sequence; 0: any */
    int64_t layers, tied;
    double init;
} tess_common;
/* fields.c has the fields that every family has at Hugging Face, and the names that are ignored of every family. A
 * family's own of the same name come before them. */
/* rotary.c has those of families with rotary positions (rotary_impl.h). */
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

/* A number for each pair that positions turn. */
typedef struct tess_list {
    int64_t count;
    float value[TESS_MOST_PAIRS];
} tess_list;

/* ---- families ---------------------------------------------------------------------------------------------------- */

/* What makes logits of the body's rows. */
typedef struct tess_head {
    tess_tensor *weight, *bias; /* (V, C); (V), NULL: none */
    float cap;                  /* logits become cap tanh(logit / cap); 0: they stay */
} tess_head;

/* One a family and kind of head. Where several have one type, the architecture that config.json names decides, and the
 * first is meant where it names none. Its functions get the family itself and the struct that its fields fill. Lists of
 * names are patterns between blanks (tess_pattern_matches), of names without the prefix; NULL has none. */
typedef struct tess_family tess_family;
struct tess_family {
    const char *type;         /* model_type */
    const char *architecture; /* as saved */
    const char *prefix;       /* of the names of all weights, with its dot; files may lack it */
    const tess_field *field;  /* its own, ended by a NULL name */
    const char *ignored;      /* names of fields that change nothing, between blanks; NULL: it has none */
    const tess_field *shared; /* those of its kind of family, behind its own; NULL: none */
    const char *presets;      /* its defaults of others' fields, "NAME NUMBER NAME NUMBER"; NULL: theirs */
    const tess_field *rotary; /* tess_rotary_fields: a tess_rotary follows the tess_common; NULL: none does */
    const void *traits;       /* what its kind of family has beside fields */
    size_t numbers;           /* size of the struct that the fields fill; a tess_common comes first in it */
    tess_answers answers;
    size_t segments, labels, behind,
        further; /* offsets of int64_t: of how many kinds tokens are, how many labels there
                  * are, the number behind which positions count, how many layers behind the last
                  * files may have; 0: there is one kind, none, they count from 0, none */
    void (*settle)(const tess_family *f, void *numbers); /* sets what follows from other fields; NULL: nothing does */
    tess_status (*check)(const tess_family *f, const void *numbers, const char *where);
    /* Makes the rows of all tokens, or what the head reads: (B,T,C), or (B,1,C) for a label. */
    tess_tensor *(*body)(const tess_family *f, const void *numbers, tess_graph *g, const tess_network *in);
    /* Makes of the body's rows those that the head reads; NULL: they are the same. */
    tess_tensor *(*transform)(const void *numbers, tess_graph *g, tess_tensor *x);
    tess_head (*head)(const void *numbers, tess_graph *g);
    /* Makes, with TESS_ANSWERS_BOTH, of the body's rows those that label_head reads, (B,1,C), over two labels. */
    tess_tensor *(*label_rows)(const void *numbers, tess_graph *g, const tess_network *in, tess_tensor *x);
    tess_head (*label_head)(const void *numbers, tess_graph *g);
    const char *transposed; /* stored (in, out) */
    const char
        *stacked; /* stacks that are one tensor, (members, in, out), or MXFP4's two, NAME_blocks and NAME_scales */
    const char *channels; /* matrices that are stored as (rows, 1, columns), as a convolution of each channel is */
    const char *bare;     /* stored without the prefix */
    const char *extra;    /* stored, no parameters, and may be left alone */
    const char *fresh;    /* parameters that files may lack, and which are drawn then */
    const char *wide;     /* parameters that files have in F32, whatever they have the others in */
};

/* ---- what families describe networks with (common.c) ------------------------------------------------------------- */

/* What routers of experts leave for the loss: statistics of all of them so far, NULL where there are none, and the
 * weight of that loss. */
struct tess_routed {
    tess_tensor *statistics;
    double weight;
};

/* Functions that lie between two matrices of a block. The first are tess_gelu's. */
typedef enum tess_activation {
    TESS_ACTIVATION_GELU_TANH = TESS_GELU_TANH,
    TESS_ACTIVATION_GELU = TESS_GELU_ERF,
    TESS_ACTIVATION_SILU,
    TESS_ACTIVATION_RELU,
} tess_activation;
tess_tensor *tess_activate(tess_tensor *x, int64_t activation);
/* Adds to the row of each token, of the table `words`, that of its place. */
tess_tensor *tess_embed(const tess_network *in, tess_tensor *words, tess_tensor *places);
/* Whether a matrix has a bias, and which of them is the earlier parameter. */
typedef enum tess_bias { TESS_NO_BIAS, TESS_BIAS_BEHIND, TESS_BIAS_BEFORE } tess_bias;
/* Multiplies x (B,T,in) by the parameter NAME.weight, drawn with this deviation, and adds NAME.bias: (B,T,out), which
 * is called NAME. */
tess_tensor *tess_dense(tess_graph *g, tess_tensor *x, int64_t in, int64_t out, double deviation, tess_bias bias,
                        const char *name, ...) TESS_PRINTF(7, 8);
/* Makes the layernorm of x (B,T,width) by NAME.weight and NAME.bias; the bias is added to the graph first. */
tess_tensor *tess_norm(tess_graph *g, tess_tensor *x, int64_t width, double eps, const char *name, ...)
    TESS_PRINTF(5, 6);
/* Checks rates of dropout, each a field's name and its value. */
typedef struct tess_rate {
    const char *name;
    double p;
} tess_rate;
tess_status tess_rates_check(const char *where, const tess_rate *rate, int count) TESS_NODISCARD;
/* Checks that heads share out a width, as the two fields are called. */
tess_status tess_heads_check(const char *where, const char *width, int64_t wide, const char *heads,
                             int64_t many) TESS_NODISCARD;

/* ---- a model ----------------------------------------------------------------------------------------------------- */

enum { TESS_MODEL_NUMBERS = 4096 };
struct tess_model {
    const tess_family *family;
    char *dir;                  /* NULL: from an object */
    char *json;                 /* the whole config.json */
    tess_safetensors *states;   /* of a checkpoint, opened with it: another run may remove it; NULL: it is none */
    struct tess_import *import; /* of a graph.json, in the place of a family; NULL: there is none */
    struct tess_lora *lora;     /* adapters (lora.h), and alone trained; NULL: none */
    tess_save_dtype stored;     /* as its weights are written */
    bool drawn;                 /* its weights are drawn, and those of the directory left alone */
    _Alignas(16) char numbers[TESS_MODEL_NUMBERS];
};

/* Reads a family's fields of a JSON object into its struct, defaults included; `where` is for messages. */
tess_status tess_fields_read(const tess_family *f, const char *where, const char *json, void *numbers) TESS_NODISCARD;
/* Returns whether two names are of one field. */
bool tess_fields_same(const tess_family *f, const char *a, const char *b);
/* Returns the next field behind `after` (NULL: the first) in which two structs differ; NULL: there is none. */
const tess_field *tess_fields_next_other(const tess_family *f, const void *a, const void *b, const tess_field *after);
/* Returns whether null is a value of the field that this name has. */
bool tess_field_takes_null(const tess_family *f, const char *name);
/* Returns the value of a field that is a number or a word, defaults included, a new reference; NULL: the model has no
 * such field. */
struct json_t *tess_model_field(const tess_model *m, const char *name);
/* Writes a field's value as config.json has it. */
const char *tess_field_text(const tess_field *d, const void *numbers, char text[static 32]);
/* Returns whether a name is one of a list of a family's. */
bool tess_names_have(const char *list, const char *name);
/* Returns whether files store a parameter (in, out). */
static inline bool tess_model_turned(const tess_model *m, const char *name)
{
    return tess_names_have(m->family->transposed, name) || tess_names_have(m->family->stacked, name);
}

/* Writes what lies beside a model's weights where these are as its own directory has them, but for adapters folded in.
 */
tess_status tess_model_save_merged(const tess_model *m, const char *dir) TESS_NODISCARD;
/* Removes weights and all beside them of what could not be written whole. */
void tess_model_remove(const char *dir);
/* Returns whether files store the tensor t of such a parameter so. */
static inline bool tess_model_turned_in(const tess_model *m, const char *name, const tess_safetensor *t)
{
    return tess_model_turned(m, name) && !t->straight;
}
/* Opens the tensors of the model's files, stacks as matrices. */
tess_status tess_model_tensors(const tess_model *m, tess_safetensors **set) TESS_NODISCARD;
/* Writes the name of one matrix of a stack among them: the star in the stack's name becomes the member's number, which
 * follows the name of one that is one tensor in files. */
void tess_model_member(const tess_model *m, const char *name, int64_t member, char out[static 512]);
/* Returns the tensor of a model's files that a parameter is; NULL: they lack it. */
const tess_safetensor *tess_model_tensor(const tess_model *m, const tess_safetensors *set, const char *name);
/* Returns how many layers behind the last files may have, which are left alone. */
int64_t tess_model_further(const tess_model *m);
/* Returns whether a parameter is written: with adapters what is trained alone. */
bool tess_model_writes(const tess_model *m, const tess_tensor *p);
/* Begins the Hugging Face file in dir to which all parameters that are written are declared, in their order. */
tess_safetensors_writer *tess_model_writer(const tess_model *m, const tess_graph *g, const char *dir);

/* ---- patterns, states and pieces, beyond what networks.h has ----------------------------------------------------- */

/* Returns whether all of a name is as the pattern says. */
bool tess_pattern_matches(const char *pattern, const char *name);
/* Returns whether a pattern means more than itself. */
bool tess_pattern_is(const char *text);
/* Returns the regular expression that means the same, a new string. */
char *tess_pattern_expression(const char *pattern);
/* Returns in how many letters the nearest name that the pattern describes differs from this one. */
size_t tess_pattern_distance(const char *pattern, const char *name);

/* What the names of an adapter's parameters end with (lora.h). */
#define TESS_LORA_A ".lora_A.weight"
#define TESS_LORA_B ".lora_B.weight"
#define TESS_LORA_M ".lora_magnitude_vector"
/* Returns which of them the name of an adapter's A, B or m ends with; NULL: it is none of these. */
const char *tess_lora_part(const char *name);
/* Which parameters' states are meant: adapters are kept without the base beside which they are trained. */
typedef enum tess_states_of_what { TESS_STATES_ALL, TESS_STATES_TRAINED, TESS_STATES_BASE } tess_states_of_what;
/* Opens those of a model's directory; *states is NULL where that is no checkpoint, or was made a model with weights. */
tess_status tess_states_of(const char *path, tess_safetensors **states) TESS_NODISCARD;
/* Reads the first `parts` parts of each parameter, or as many as it has, as far as this rank holds them; `path` is for
 * messages. */
tess_status tess_states_read(const tess_safetensors *states, const char *path, tess_graph *g, int parts,
                             tess_states_of_what of) TESS_NODISCARD;

/* Stores the end of the pieces that a part has, and returns the first. */
int64_t tess_pieces_of(const tess_tensor *p, tess_part part, int64_t *end);
/* Returns whether this rank writes a part of a piece to files: for all ranks that hold it, or its own. */
bool tess_piece_writes(const tess_tensor *p, int64_t piece, tess_part part);
/* States that a thread writes beside the next step: what is added is lent from the start on. */
typedef struct tess_beside tess_beside;
tess_beside *tess_beside_new(tess_safetensors_writer *w);
/* Returns how many pieces of a part are written when they are added, for which no update may be due. */
int64_t tess_beside_none(const tess_tensor *p, tess_part part);
tess_status tess_beside_add(tess_beside *b, size_t tensor, tess_tensor *p, tess_part part,
                            tess_piece_sums *sums) TESS_NODISCARD;
void tess_beside_start(tess_beside *b);
/* Waits until all is written that a step has lent, and returns how many pieces it has not. */
int64_t tess_beside_join(tess_beside *b);
/* Frees it; with `whole` those are written, for which no update may be due either. */
tess_status tess_beside_end(tess_beside *b, bool whole) TESS_NODISCARD;

/* Writes the matrices of a stack, which are tensors of their own, from number `tensor` on. */
tess_status tess_pieces_write_members(tess_safetensors_writer *w, size_t tensor, tess_tensor *p, tess_part part,
                                      bool turned) TESS_NODISCARD;
/* Reads rows [row, row + rows) of a parameter alone, which are the file's tensor. */
tess_status tess_pieces_read_rows(const tess_safetensor *t, tess_tensor *p, tess_part part, bool turned, int64_t row,
                                  int64_t rows) TESS_NODISCARD;

#endif
