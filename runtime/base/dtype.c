/* Element types. */
#include "runtime/runtime.h"

static const struct {
    const char *name;
    size_t size, block; /* of an element, of a block */
} dtypes[TESS_DTYPE_COUNT] = {
    [TESS_F32] = {"f32", 4}, [TESS_BF16] = {"bf16", 2},   [TESS_F16] = {"f16", 2},
    [TESS_I32] = {"i32", 4}, [TESS_NF4] = {"nf4", 0, 36}, [TESS_INT8] = {"int8", 0, 68},
};

size_t tess_dtype_size(tess_dtype t)
{
    return dtypes[t].size;
}
size_t tess_dtype_bytes(tess_dtype t, int64_t n)
{
    return tess_is_quantized(t) ? (size_t)(n / TESS_QUANTIZED_BLOCK) * dtypes[t].block : (size_t)n * dtypes[t].size;
}
const char *tess_dtype_name(tess_dtype t)
{
    return dtypes[t].name;
}
