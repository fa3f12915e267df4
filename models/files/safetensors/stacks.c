/* Stacks of matrices that are one tensor, which are taken apart once the set is open, so that all else knows matrices
 * alone. They may be stored in MXFP4, and any matrix as codes.c has them. Matrices in F8_E4M3 get their scales. */
#include "models/files/safetensors/safetensors_impl.h"
#include <stdlib.h>
#include <string.h>

/* Adds the matrices (rows, columns) of a stack. */
static void add_matrices(tess_safetensors *s, const char *name, const tess_safetensor *all, int64_t rows,
                         int64_t columns, const uint8_t *scales)
{
    const int64_t members = all->dims[0];
    const size_t bytes = all->bytes / (size_t)members;
    for (int64_t k = 0; k < members; k++) {
        tess_safetensor *t = tess_safetensors_add(s);
        *t = (tess_safetensor){.name = tess_arena_format(s->arena, "%s.%lld", name, (long long)k),
                               .file = all->file,
                               .dtype = scales ? TESS_ST_MXFP4 : all->dtype,
                               .rank = 2,
                               .dims = {rows, columns},
                               .elements = rows * columns,
                               .data = (const uint8_t *)all->data + (size_t)k * bytes,
                               .bytes = bytes,
                               .mapped = all->mapped,
                               .straight = scales != NULL,
                               .scales = scales ? scales + k * rows * (columns / TESS_MXFP4_BLOCK) : NULL};
    }
}

/* NAME_blocks (members, rows, blocks, 16), with its NAME_scales (members, rows, blocks). */
static tess_status add_quantized(tess_safetensors *s, const tess_safetensors *of, const char *name,
                                 const tess_safetensor *blocks)
{
    char scales[520];
    snprintf(scales, sizeof scales, "%.511s_scales", name);
    const tess_safetensor *by = tess_safetensors_find(of, scales);
    if (!by) return tess_file_error(blocks->file, blocks->name, "has no %s beside it", scales);
    if (blocks->dtype != TESS_ST_U8 || by->dtype != TESS_ST_U8 || blocks->rank != 4 || by->rank != 3 ||
        blocks->dims[3] != TESS_MXFP4_BLOCK / 2 || memcmp(blocks->dims, by->dims, 3 * sizeof *by->dims) ||
        !blocks->elements)
        return tess_file_error(blocks->file, blocks->name,
                               "expected MXFP4: U8 (members,rows,blocks,%d), and its scales U8 (members,rows,blocks)",
                               TESS_MXFP4_BLOCK / 2);
    add_matrices(s, name, blocks, blocks->dims[1], TESS_MXFP4_BLOCK * blocks->dims[2], by->data);
    return TESS_OK;
}

/* What a tensor of the set becomes. */
static tess_status add_tensor(tess_safetensors *s, const tess_safetensors *of, const tess_safetensor *t,
                              tess_safetensors_is is, const void *context)
{
    static const char *const ends[] = {"_blocks", "_scales"};
    char name[512];
    const size_t n = strlen(t->name);
    bool taken;
    TESS_TRY(tess_codes_add(s, of, t, &taken));
    if (taken) return TESS_OK;
    for (int k = 0; k < 2; k++) {
        const size_t m = strlen(ends[k]);
        if (n <= m || n >= sizeof name || strcmp(t->name + n - m, ends[k])) continue;
        snprintf(name, sizeof name, "%.*s", (int)(n - m), t->name);
        char other[sizeof name + 8];
        snprintf(other, sizeof other, "%.511s_blocks", name);
        if (!is(context, name) || (k && !tess_safetensors_find(of, other))) continue;
        return k ? TESS_OK : add_quantized(s, of, name, t);
    }
    if (!is(context, t->name)) {
        *tess_safetensors_add(s) = *t;
        return TESS_OK;
    }
    if (t->rank != 3 || !t->elements)
        return tess_file_error(t->file, t->name, "has %d dimensions (expected 3: a stack of matrices)", t->rank);
    add_matrices(s, t->name, t, t->dims[1], t->dims[2], NULL);
    return TESS_OK;
}

tess_status tess_safetensors_unstack(tess_safetensors *s, tess_safetensors_is is, const void *context)
{
    const tess_safetensors of = *s;
    tess_status status = TESS_OK;
    s->tensor = tess_alloc(s->room * sizeof *s->tensor);
    s->count = 0;
    for (size_t i = 0; i < of.count && status == TESS_OK; i++) status = add_tensor(s, &of, &of.tensor[i], is, context);
    free(of.tensor);
    return status == TESS_OK ? tess_safetensors_sort(s) : status;
}

/* The matrix whose scales these are; NULL: they are none. */
static tess_safetensor *scaled_by(const tess_safetensors *s, const tess_safetensor *scales)
{
    static const char end[] = "_scale_inv";
    const size_t n = strlen(scales->name), m = sizeof end - 1;
    char name[512];
    if (n <= m || n - m >= sizeof name || strcmp(scales->name + n - m, end)) return NULL;
    snprintf(name, sizeof name, "%.*s", (int)(n - m), scales->name);
    const tess_safetensor *t = tess_safetensors_find(s, name);
    return t && t->dtype == TESS_ST_F8_E4M3 ? s->tensor + (t - s->tensor) : NULL;
}

tess_status tess_safetensors_scale(tess_safetensors *s)
{
    const tess_safetensors of = *s;
    tess_status status = TESS_OK;
    s->tensor = tess_alloc(s->room * sizeof *s->tensor);
    s->count = 0;
    for (size_t i = 0; i < of.count && status == TESS_OK; i++) {
        const tess_safetensor *by = &of.tensor[i];
        tess_safetensor *t = scaled_by(&of, by);
        if (!t) continue;
        t->scales = by->data;
        for (int d = 0; d < 2; d++)
            if (by->dtype != TESS_ST_F32 || t->rank != 2 || by->rank != 2 ||
                by->dims[d] != (t->dims[d] + TESS_F8_BLOCK - 1) / TESS_F8_BLOCK)
                status = tess_file_error(by->file, by->name,
                                         "expected F32, one for each block of %d x %d of an F8_E4M3 matrix",
                                         TESS_F8_BLOCK, TESS_F8_BLOCK);
    }
    for (size_t i = 0; i < of.count; i++)
        if (!scaled_by(&of, &of.tensor[i])) *tess_safetensors_add(s) = of.tensor[i];
    free(of.tensor);
    return status;
}
