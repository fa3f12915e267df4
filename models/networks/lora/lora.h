/* Adapters of low rank (LoRA): beside a linear y = W x, whose W stays as it is, stands y += (alpha / r) B A dropout(x),
 * with A (r, in) and B (out, r), which are trained. With DoRA each row of W + (alpha / r) B A is made as long as an
 * element of m (out) says, which is trained too and begins as what the rows of W are. Families know nothing of them:
 * they are put in where a linear is described (tess_graph_on_linear). In files they are PEFT's: adapter_config.json and
 * adapter_model.safetensors.
 *
 *     tess_lora_building *adapters = tess_lora_begin(m, g);
 *     ... the body is described ...
 *     TESS_TRY(tess_lora_end(adapters));
 *     TESS_TRY(tess_lora_freeze(m, g, head));
 */
#ifndef TESS_LORA_H
#define TESS_LORA_H
#include "models/networks/model/model.h"
#include <jansson.h>

#define TESS_LORA_PREFIX "base_model.model." /* PEFT's, of each tensor */

typedef struct tess_lora {
    int64_t r;
    double alpha, dropout;
    bool rslora;           /* the scale is alpha / sqrt(r) */
    bool dora;             /* rows have the lengths m */
    tess_dtype base;       /* the base's matrices of linears are quantized; TESS_F32: they are not */
    bool said;             /* which matrices are not */
    char *targets;         /* "all-linear", a name or a pattern, or the JSON text of a list of them */
    char *saved;           /* the same of modules that are trained as they are; NULL: none */
    char *dir;             /* where the tensors are from; NULL: they are drawn */
    tess_safetensors *set; /* of dir */
    bool states;           /* they are those of a checkpoint, under our names */
} tess_lora;

/* Opens a directory's adapter_config.json and tensors; *base is the path that it names its base by, a new string. */
tess_status tess_lora_open(const char *dir, tess_lora **lora, char **base) TESS_NODISCARD;
/* Closes them; NULL is nothing. */
void tess_lora_close(tess_lora *l);
/* Returns whether a directory holds an adapter, and no model by itself. */
bool tess_lora_there(const char *dir);
typedef struct tess_lora_building tess_lora_building;
/* Puts the model's adapters beside the linears that are described from now on; returns NULL if it has none. */
tess_lora_building *tess_lora_begin(const tess_model *m, tess_graph *g);
/* Ends that. A target that no linear was is TESS_INVALID. */
tess_status tess_lora_end(tess_lora_building *b) TESS_NODISCARD;
/* Freezes all that is not trained, and quantizes its matrices where the adapters ask for that; `head` is the matrix of
 * the head. */
tess_status tess_lora_freeze(const tess_model *m, tess_graph *g, const tess_tensor *head) TESS_NODISCARD;
/* Makes a list of what the configuration has as JSON text of one, or as one text; it is a new reference. */
json_t *tess_lora_list(const char *text);
/* Returns whether a parameter is the adapter's, which is trained where anything is: its A's, B's and m's, and the
 * modules that are saved with them. */
bool tess_lora_has(const tess_model *m, const tess_tensor *p);
/* Writes the name that a parameter has in model.safetensors, where an adapter's goes by its linear's. */
void tess_lora_file_name(const tess_model *m, const char *name, char full[static 512]);
/* Returns the adapter's tensor that a parameter is; NULL: there is none. */
const tess_safetensor *tess_lora_find(const tess_model *m, const char *name);
/* Finds it, which must be there in that shape. */
tess_status tess_lora_need(const tess_model *m, const tess_tensor *p, bool turned,
                           const tess_safetensor **t) TESS_NODISCARD;
/* Checks that each tensor of an adapter fits something in the model. */
tess_status tess_lora_check(const tess_model *m, const tess_graph *g) TESS_NODISCARD;
/* Draws or reads what is trained, which is over the base's weights. */
tess_status tess_lora_load(const tess_model *m, tess_graph *g, uint64_t seed) TESS_NODISCARD;
/* Writes adapter_config.json. */
tess_status tess_lora_save_config(const tess_model *m, const char *dir) TESS_NODISCARD;
/* Returns the field in which two are not the same, with both values; NULL: there is none. */
const char *tess_lora_differ(const tess_lora *a, const tess_lora *b, char x[static 32], char y[static 32]);
/* Returns what B A is multiplied by. */
double tess_lora_scale(const tess_lora *l);

#endif
