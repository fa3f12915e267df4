/* Element types. */
#include "runtime/runtime.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[TESS_DTYPE_COUNT] = {
    [TESS_F32] = {"f32", 4}, [TESS_BF16] = {"bf16", 2}, [TESS_F16] = {"f16", 2}, [TESS_I32] = {"i32", 4}};

size_t tess_dtype_size(tess_dtype t)
{
    return dtypes[t].size;
}
const char *tess_dtype_name(tess_dtype t)
{
    return dtypes[t].name;
}
