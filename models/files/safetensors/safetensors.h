/* Safetensors: reading and writing named tensors in Hugging Face's file format, in one file or in shards; what
 * torch.save made of a model is read as well, and ggml's GGUF.
 *
 *     tess_safetensors *s;
 *     TESS_TRY(tess_safetensors_open("model", &s)); // a directory, a .safetensors, .bin, .gguf or .index.json
 *     const tess_safetensor *t = tess_safetensors_find(s, "wte.weight");
 *     if (t) TESS_TRY(tess_safetensor_read(t, 0, t->elements, weights));
 *     tess_safetensors_close(s);
 *
 *     tess_safetensors_writer *w = tess_safetensors_writer_new("out", "model", TESS_SAFETENSORS_SHARD);
 *     tess_safetensors_declare(w, "wte.weight", TESS_F32, 2, (int64_t[]){50257, 768});
 *     ... all of them, on all ranks; then each rank what it holds of them, here rows 100 to 199 of tensor 0:
 *     tess_status status = tess_safetensors_writer_begin(w);
 *     if (status == TESS_OK) status = tess_safetensors_write(w, 0, 100, 100, 0, 768, weights);
 *     ...
 *     status = tess_safetensors_writer_end(w, status); // the files are there now, or none is; the same on all ranks
 *
 * Files are mapped when read and written in place, by any number of ranks, so that no rank holds a tensor in RAM.
 */
#ifndef TESS_SAFETENSORS_H
#define TESS_SAFETENSORS_H
#include "runtime/runtime.h"

enum { TESS_SAFETENSORS_RANK = 8 };

/* The format's types, by its names. tess_safetensor_read converts the first four. */
typedef enum tess_safetensors_dtype {
    TESS_ST_F32,
    TESS_ST_F16,
    TESS_ST_BF16,
    TESS_ST_F64,
    TESS_ST_I64,
    TESS_ST_I32,
    TESS_ST_I16,
    TESS_ST_I8,
    TESS_ST_U64,
    TESS_ST_U32,
    TESS_ST_U16,
    TESS_ST_U8,
    TESS_ST_BOOL,
    TESS_ST_F8_E4M3,
    TESS_ST_F8_E5M2,
    TESS_ST_COUNT,
    TESS_ST_MXFP4 = TESS_ST_COUNT, /* of matrices that tess_safetensors_unstack makes alone; read as floats are */
    TESS_ST_CODES,                 /* the same, of matrices that bitsandbytes quantized */
    TESS_ST_Q8_0,                  /* of GGUF files alone, as are those behind it; the same */
    TESS_ST_Q4_0,
    TESS_ST_Q4_K,
    TESS_ST_Q6_K,
    TESS_ST_ALL,
} tess_safetensors_dtype;

/* A tensor of an open set, which owns it. */
typedef struct tess_safetensor {
    const char *name, *file;
    tess_safetensors_dtype dtype;
    int rank;
    int64_t dims[TESS_SAFETENSORS_RANK];
    int64_t elements;
    const void *data; /* little-endian, aligned to nothing */
    size_t bytes;
    bool mapped;           /* from a file; else in the caller's memory */
    const uint8_t *scales; /* of MXFP4: biased exponents, one for 32 elements; of F8_E4M3 floats of blocks, or NULL */
    const struct tess_st_codes *codes; /* of TESS_ST_CODES: what they stand for */
    bool straight;                     /* a matrix is (out, in) here, whatever its name says */
    int64_t heads; /* of whose rows the halves take turns in the file; they are read one behind the other; 0: none */
} tess_safetensor;

typedef struct tess_safetensors tess_safetensors;

/* Returns the name of the file by which a directory's weights are opened: model.safetensors, its index of shards, or
 * torch.save's, pytorch_model.bin, or its index; NULL: it has none. */
const char *tess_safetensors_in(const char *dir);
/* Makes a new text for a message about a directory that has none: what it has instead. */
char *tess_safetensors_lack(const char *dir);
/* Opens one file or a set of them; a directory is opened by the file above, one whose name ends in .bin is
 * torch.save's, in .gguf ggml's. The headers are checked in full, so that every tensor handed out lies within its
 * file: anything else is TESS_INVALID. */
tess_status tess_safetensors_open(const char *path, tess_safetensors **set) TESS_NODISCARD;
/* Opens one file already in memory, which stays the caller's and must outlive the set. */
tess_status tess_safetensors_view(const char *path, const void *data, size_t bytes,
                                  tess_safetensors **set) TESS_NODISCARD;
/* Replaces each tensor (members, rows, columns) whose name `is` one of stacks by its matrices, NAME.0, NAME.1, ...; and
 * so what is stored in MXFP4, NAME_blocks (members, rows, blocks, 16) and NAME_scales (members, rows, blocks). What
 * bitsandbytes stores of a matrix becomes one tensor of its shape (codes.c). */
typedef bool (*tess_safetensors_is)(const void *context, const char *name);
tess_status tess_safetensors_unstack(tess_safetensors *s, tess_safetensors_is is, const void *context) TESS_NODISCARD;
/* Puts to each matrix NAME in F8_E4M3 the scales of its blocks, NAME_scale_inv, by which it is read as floats are. */
tess_status tess_safetensors_scale(tess_safetensors *s) TESS_NODISCARD;
/* Closes it; NULL is nothing. */
void tess_safetensors_close(tess_safetensors *s);
/* Returns how many tensors there are. */
size_t tess_safetensors_count(const tess_safetensors *s);
/* Returns the i-th tensor in the order of names. */
const tess_safetensor *tess_safetensors_at(const tess_safetensors *s, size_t i);
/* Returns the tensor of that name; NULL: there is none. */
const tess_safetensor *tess_safetensors_find(const tess_safetensors *s, const char *name);

/* Reads elements first .. first+n-1, which must be within, in row-major order as floats: out is (n). A dtype that is no
 * float is TESS_INVALID. Bodies may call it. */
tess_status tess_safetensor_read(const tess_safetensor *t, int64_t first, int64_t n, float *out) TESS_NODISCARD;
/* Writes elements first .. first+n-1 as blocks of TESS_NF4. Returns false where they do not lie so in the file. */
bool tess_safetensor_blocks(const tess_safetensor *t, int64_t first, int64_t n, void *blocks);
/* Returns the dtype that a tensor which is read as floats is written in. */
tess_safetensors_dtype tess_safetensor_plain(const tess_safetensor *t);
/* Lets go of what was read of a tensor: until then it counts as this process's memory. */
void tess_safetensor_forget(const tess_safetensor *t);

/* ---- writing ---------------------------------------------------------------------------------------------------- */

typedef struct tess_safetensors_writer tess_safetensors_writer;

#define TESS_SAFETENSORS_SHARD ((uint64_t)5000 * 1000 * 1000)

/* Begins DIR/STEM.safetensors, or when the tensors are more than shard_bytes DIR/STEM-00001-of-00002.safetensors, ...
 * and DIR/STEM.safetensors.index.json. No shard is larger, but for a tensor that alone is. DIR exists. */
tess_safetensors_writer *tess_safetensors_writer_new(const char *dir, const char *stem, uint64_t shard_bytes);
/* Declares a tensor of F32, BF16 or I32 and returns its number: 0, 1, ... Names differ, and are the same on all ranks
 * in the same order. */
size_t tess_safetensors_declare(tess_safetensors_writer *w, const char *name, tess_dtype dtype, int rank,
                                const int64_t *dims);
/* Declares a tensor of F32, F16 or BF16 that is given as floats, and rounded to nearest even where it is written.
 * Beyond the largest of F16 there is infinity. */
size_t tess_safetensors_declare_floats(tess_safetensors_writer *w, const char *name, tess_safetensors_dtype stored,
                                       int rank, const int64_t *dims);
/* Declares `members` matrices of that kind, which are one tensor in the file, (members, rows, columns); returns the
 * number of the first. */
size_t tess_safetensors_declare_stack(tess_safetensors_writer *w, const char *name, tess_safetensors_dtype stored,
                                      int64_t members, const int64_t dims[2]);
/* Declares a tensor like one that was read, to be written as it lies there. */
size_t tess_safetensors_declare_like(tess_safetensors_writer *w, const tess_safetensor *t);
/* Makes the files at their full size, now that all is declared. All ranks call it, and the end too, whatever this
 * returns; both return the same status on all. */
tess_status tess_safetensors_writer_begin(tess_safetensors_writer *w) TESS_NODISCARD;
/* Writes a rectangle of a tensor, seen as a matrix of dims[0] rows; data is (rows, cols), dense. Any rank may, in any
 * order, but going from one file to another and back costs time. Every element must be written by one of them. */
tess_status tess_safetensors_write(tess_safetensors_writer *w, size_t tensor, int64_t row, int64_t rows, int64_t col,
                                   int64_t cols, const void *data) TESS_NODISCARD;
/* Makes durable what this rank has written; for a thread that has written its last, before another ends the writer. */
tess_status tess_safetensors_writer_settle(tess_safetensors_writer *w) TESS_NODISCARD;
/* Ends and frees the writer. If every rank has TESS_OK, the files become durable and get their names; if one has not,
 * or that fails, what was written is removed. */
tess_status tess_safetensors_writer_end(tess_safetensors_writer *w, tess_status status) TESS_NODISCARD;

#endif
