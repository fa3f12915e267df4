/* What the readers of this folder share: a set of tensors that files are added to, by safetensors.c, which has the set,
 * or by torch.c, which reads pytorch_model.bin: zip.c finds its entries, and pickle.c reads the one that says what the
 * others are.
 */
#ifndef TESS_SAFETENSORS_IMPL_H
#define TESS_SAFETENSORS_IMPL_H
#include "models/files/safetensors/safetensors.h"
#include "models/text/base/mapped.h"

struct json_t;

struct tess_safetensors {
    tess_arena *arena; /* names */
    tess_map *map;     /* the files; none of a view */
    size_t maps;
    tess_safetensor *tensor; /* by name once open */
    size_t count, room;
};

/* Headers and pickles are at most so long: the reference implementation's. */
enum { TESS_HEADER_MAX = 100 * 1000 * 1000 };

/* ---- tensor_set.c ------------------------------------------------------------------------------------------------ */

/* Returns what the format calls a dtype, and the bytes of an element. */
const char *tess_st_name(tess_safetensors_dtype dtype);
size_t tess_st_size(tess_safetensors_dtype dtype);
/* Adds a tensor, zeroed, to the end of the set. */
tess_safetensor *tess_safetensors_add(tess_safetensors *s);
/* Reads {"shape": [...]} of a tensor. */
tess_status tess_safetensors_shape(tess_safetensor *t, const struct json_t *entry) TESS_NODISCARD;

/* ---- safetensors.c ----------------------------------------------------------------------------------------------- */

/* Puts the tensors in the order of names; two of one name are TESS_INVALID. */
tess_status tess_safetensors_sort(tess_safetensors *s) TESS_NODISCARD;
/* Elements of MXFP4 that share an exponent: 16 bytes of codes, of each byte the lower four bits first. */
enum { TESS_MXFP4_BLOCK = 32 };
/* Rows, and columns, of a matrix in F8_E4M3 that share a scale. */
enum { TESS_F8_BLOCK = 128 };

/* ---- codes.c, codes_in.c ----------------------------------------------------------------------------------------- */

enum { TESS_CODES_NF4, TESS_CODES_FP4, TESS_CODES_EIGHT };
struct tess_st_codes {
    int kind;
    int64_t block, nested_block;
    const tess_safetensor *scale, *nested; /* `nested` NULL: a scale is an fp32 */
    float offset, value[16], nested_value[256];
    tess_safetensors_dtype of; /* what it was quantized from, and is read as */
};

/* Adds to s what a tensor of `of` is a matrix of bitsandbytes' for; *taken: it is, or lies beside one. */
tess_status tess_codes_add(tess_safetensors *s, const tess_safetensors *of, const tess_safetensor *t,
                           bool *taken) TESS_NODISCARD;
void tess_codes_read(const tess_safetensor *t, int64_t first, int64_t n, float *out);

/* ---- gguf.c ------------------------------------------------------------------------------------------------------ */

/* Adds the tensors of a GGUF file. `file` lives as long as the set. */
tess_status tess_gguf_tensors(tess_safetensors *s, const char *file, const uint8_t *bytes, size_t n) TESS_NODISCARD;
/* Reads elements of its types of few bits, as tess_safetensor_read does. */
void tess_blocks_read(const tess_safetensor *t, int64_t first, int64_t n, float *out);

/* ---- torch.c ----------------------------------------------------------------------------------------------------- */

/* Adds the tensors of what torch.save wrote of a model's state. `file` lives as long as the set. */
tess_status tess_torch_read(tess_safetensors *s, const char *file, const uint8_t *bytes, size_t n) TESS_NODISCARD;

/* ---- zip.c ------------------------------------------------------------------------------------------------------- */

/* An entry of a zip, as its directory has it: bytes of the file. */
typedef struct tess_zip_entry {
    const char *name; /* not ended by a 0 */
    size_t length;
    const uint8_t *data;
    size_t bytes;
    bool stored; /* as it is; else it is compressed, or encrypted, and `data` is NULL */
} tess_zip_entry;
typedef struct tess_zip {
    tess_zip_entry *entry; /* of the arena, in the order of names */
    size_t count;
} tess_zip;
/* Reads the directory of a zip, or zip64, in memory. Every entry lies within it. */
tess_status tess_zip_read(tess_arena *arena, const char *file, const uint8_t *bytes, size_t n,
                          tess_zip *zip) TESS_NODISCARD;
/* Returns the entry of that name; NULL: there is none. */
const tess_zip_entry *tess_zip_find(const tess_zip *zip, const char *name);

/* ---- pickle.c ---------------------------------------------------------------------------------------------------- */

typedef enum tess_pickle_kind {
    TESS_PICKLE_NONE,
    TESS_PICKLE_BOOL,
    TESS_PICKLE_INT,
    TESS_PICKLE_FLOAT,
    TESS_PICKLE_TEXT,
    TESS_PICKLE_TUPLE,
    TESS_PICKLE_LIST,
    TESS_PICKLE_DICT,
    TESS_PICKLE_GLOBAL,
    TESS_PICKLE_STORAGE,
    TESS_PICKLE_TENSOR,
    TESS_PICKLE_KINDS
} tess_pickle_kind;
typedef struct tess_pickled tess_pickled;
struct tess_pickled {
    tess_pickle_kind kind;
    int64_t number;            /* of a bool or an int; the elements of a storage; where in it a tensor begins */
    const char *text;          /* of a text; the key of a storage */
    const tess_pickled **item; /* of a tuple; of a dict a key and its value in turn; of a tensor its storage, its sizes
                                  and its strides, which are tuples of ints */
    size_t count, room;
    int global;                   /* which one */
    tess_safetensors_dtype dtype; /* of a storage */
};
/* Returns what a kind is called in messages. */
const char *tess_pickle_kind_name(tess_pickle_kind kind);
/* Reads a pickle of protocol 2 that has tensors and nothing that would run: an opcode or a global beyond those is an
 * error that names it. The values are the arena's. */
tess_status tess_pickle_read(tess_arena *arena, const char *file, const uint8_t *bytes, size_t n,
                             const tess_pickled **root) TESS_NODISCARD;

#endif
