/* What a set of tensors is made of, whichever files they are from: their dtypes, and room for one more. */
#include "models/files/safetensors/safetensors_impl.h"
#include <jansson.h>

static const struct {
    const char *name;
    size_t size;
} dtypes[TESS_ST_ALL] = {
    [TESS_ST_F32] = {"F32", 4},     [TESS_ST_F16] = {"F16", 2},         [TESS_ST_BF16] = {"BF16", 2},
    [TESS_ST_F64] = {"F64", 8},     [TESS_ST_I64] = {"I64", 8},         [TESS_ST_I32] = {"I32", 4},
    [TESS_ST_I16] = {"I16", 2},     [TESS_ST_I8] = {"I8", 1},           [TESS_ST_U64] = {"U64", 8},
    [TESS_ST_U32] = {"U32", 4},     [TESS_ST_U16] = {"U16", 2},         [TESS_ST_U8] = {"U8", 1},
    [TESS_ST_BOOL] = {"BOOL", 1},   [TESS_ST_F8_E4M3] = {"F8_E4M3", 1}, [TESS_ST_F8_E5M2] = {"F8_E5M2", 1},
    [TESS_ST_MXFP4] = {"MXFP4", 0}, [TESS_ST_CODES] = {"codes", 0},     [TESS_ST_Q8_0] = {"Q8_0", 0},
    [TESS_ST_Q4_0] = {"Q4_0", 0},   [TESS_ST_Q4_K] = {"Q4_K", 0},       [TESS_ST_Q6_K] = {"Q6_K", 0},
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

tess_status tess_safetensors_shape(tess_safetensor *t, const json_t *entry)
{
    const json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape)) return tess_file_error(t->file, t->name, "has no shape");
    if (json_array_size(shape) > TESS_SAFETENSORS_RANK)
        return tess_file_error(t->file, t->name, "has %zu dimensions, at most %d are supported", json_array_size(shape),
                               TESS_SAFETENSORS_RANK);
    t->rank = (int)json_array_size(shape);
    t->elements = 1;
    for (int i = 0; i < t->rank; i++) {
        const json_t *dim = json_array_get(shape, (size_t)i);
        t->dims[i] = json_integer_value(dim);
        if (!json_is_integer(dim) || t->dims[i] < 0)
            return tess_file_error(t->file, t->name, "dimension %d is no number of elements", i);
        if (__builtin_mul_overflow(t->elements, t->dims[i], &t->elements))
            return tess_file_error(t->file, t->name, "the shape has more than 2^63 elements");
    }
    return TESS_OK;
}
