/* What a set of tensors is made of, whichever files they are from: their dtypes, and room for one more. */
#include "models/files/safetensors/safetensors_impl.h"

static const struct {
    const char *name;
    size_t size;
} dtypes[TESS_ST_COUNT + 2] = {
    [TESS_ST_F32] = {"F32", 4},     [TESS_ST_F16] = {"F16", 2},         [TESS_ST_BF16] = {"BF16", 2},
    [TESS_ST_F64] = {"F64", 8},     [TESS_ST_I64] = {"I64", 8},         [TESS_ST_I32] = {"I32", 4},
    [TESS_ST_I16] = {"I16", 2},     [TESS_ST_I8] = {"I8", 1},           [TESS_ST_U64] = {"U64", 8},
    [TESS_ST_U32] = {"U32", 4},     [TESS_ST_U16] = {"U16", 2},         [TESS_ST_U8] = {"U8", 1},
    [TESS_ST_BOOL] = {"BOOL", 1},   [TESS_ST_F8_E4M3] = {"F8_E4M3", 1}, [TESS_ST_F8_E5M2] = {"F8_E5M2", 1},
    [TESS_ST_MXFP4] = {"MXFP4", 0}, [TESS_ST_CODES] = {"codes", 0},
};

const char *tess_st_name(tess_safetensors_dtype dtype)
{
    return dtypes[dtype].name;
}

size_t tess_st_size(tess_safetensors_dtype dtype)
{
    return dtypes[dtype].size;
}

tess_safetensor *tess_safetensors_add(tess_safetensors *s)
{
    if (s->count == s->room) {
        s->room *= 2;
        s->tensor = tess_realloc(s->tensor, s->room * sizeof *s->tensor);
    }
    tess_safetensor *t = &s->tensor[s->count++];
    *t = (tess_safetensor){0};
    return t;
}
