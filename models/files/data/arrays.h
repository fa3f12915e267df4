/* Arrays: samples out of .npy and .safetensors files, the first dimension of whose arrays counts them.
 *
 *     const tess_array_want want[] = {{"x", TESS_ARRAY_REAL, 1, {784}}, {"y", TESS_ARRAY_INT, 0, {0}}};
 *     tess_arrays *a;
 *     TESS_TRY(tess_arrays_open("data.train", "{\"x\": \"x.npy\", \"y\": \"y.npy\"}", want, 2, &a));
 *     TESS_TRY(tess_arrays_get(a, 0, sample, x)); // 784 floats
 *     tess_arrays_close(a);
 *
 * Files are mapped, never read whole. Each value is checked when it is read: an integer is to fit 32 bits. */
#ifndef TESS_ARRAYS_H
#define TESS_ARRAYS_H
#include "runtime/runtime.h"

/* What a network takes of a file: floats of any numbers, int32 of whole ones, bools (int32 that are 0 or 1) of bools.
 */
typedef enum tess_array_kind {
    TESS_ARRAY_REAL,
    TESS_ARRAY_INT,
    TESS_ARRAY_BOOL,
    TESS_ARRAY_BITS, /* of uint32, in an int32 */
} tess_array_kind;
typedef struct tess_array_want {
    const char *name;
    tess_array_kind kind;
    int rank;  /* of a sample */
    bool same; /* the file has no samples: all have its one. Where all files are such, there is one sample */
    int64_t dim[8];
} tess_array_want;

typedef struct tess_arrays tess_arrays;

/* Opens files: those of a JSON object of names and paths, or lists of paths whose samples follow each other, for each
 * that is wanted; or a .safetensors, or a JSON list of them, that have all. All have as many samples. `key` is for
 * errors. */
tess_status tess_arrays_open(const char *key, const char *text, const tess_array_want *want, int count,
                             tess_arrays **arrays) TESS_NODISCARD;
void tess_arrays_close(tess_arrays *a);
uint64_t tess_arrays_samples(const tess_arrays *a);
/* Returns `sum` with what tells these files from others mixed in. */
uint64_t tess_arrays_sum(const tess_arrays *a, uint64_t sum);
int tess_arrays_files(const tess_arrays *a);
/* Reads a sample of the k-th that was wanted, 4 bytes an element. */
tess_status tess_arrays_get(const tess_arrays *a, int k, uint64_t sample, void *out) TESS_NODISCARD;

#endif
