/* .npy: a magic, a version, and a Python literal {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), } in
 * front of the elements. Only that literal's three keys are read, in any order; nothing else of Python is. */
#include "arrays.h"
#include "mapped.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { RANK = 9, MAGIC = 8 };

struct file {
    tess_map map;
    const tess_array_want *want;
    char kind; /* f, i, u, b */
    int size;
    int64_t elements; /* of a sample */
    const uint8_t *data;
};
struct tess_arrays {
    struct file *file;
    tess_array_want *want;
    int count;
    uint64_t samples;
    const struct file *counted; /* the first that has some */
};

/* ---- the header ---- */

struct header {
    char kind;
    int size, rank;
    int64_t dim[RANK];
};

static const char *after(const char *text, const char *key)
{
    const char *at = strstr(text, key);
    if (!at) return NULL;
    at += strlen(key);
    at += strspn(at, " :");
    return at;
}

static bool read_type(const char *text, struct header *h)
{
    const char *at = after(text, "'descr'");
    if (!at || *at != '\'' || !strchr("<|=", at[1]) || !strchr("fiub", at[2])) return false;
    h->kind = at[2];
    h->size = at[3] - '0';
    if (at[4] != '\'' || (h->size != 1 && h->size != 2 && h->size != 4 && h->size != 8)) return false;
    return h->kind == 'f' ? h->size >= 4 : h->kind != 'b' || h->size == 1;
}

static bool read_shape(const char *text, struct header *h)
{
    const char *at = after(text, "'shape'");
    if (!at || *at++ != '(') return false;
    for (h->rank = 0; *at != ')'; h->rank++) {
        char *end;
        if (h->rank == RANK || *at < '0' || *at > '9') return false;
        h->dim[h->rank] = strtoll(at, &end, 10);
        if (h->dim[h->rank] < 1 || h->dim[h->rank] > (int64_t)1 << 48) return false;
        at = end + strspn(end, " ");
        if (*at == ',') at += 1 + strspn(at + 1, " ");
    }
    return true;
}

static tess_status read_header(const tess_map *m, struct header *h, size_t *begins)
{
    const uint8_t *b = m->data;
    if (m->bytes < MAGIC + 4 || memcmp(b, "\x93NUMPY", 6) != 0 || b[6] < 1 || b[6] > 3)
        return tess_error(TESS_INVALID, m->path, "is no .npy file (numpy.save writes one)");
    const size_t wide = b[6] == 1 ? 2 : 4;
    size_t length = b[MAGIC] | (size_t)b[MAGIC + 1] << 8;
    if (wide == 4) length |= (size_t)b[MAGIC + 2] << 16 | (size_t)b[MAGIC + 3] << 24;
    *begins = MAGIC + wide + length;
    if (*begins > m->bytes || length > 65536) return tess_error(TESS_INVALID, m->path, "its header is cut off");
    char *text = tess_alloc(length + 1);
    memcpy(text, b + MAGIC + wide, length);
    const char *order = after(text, "'fortran_order'");
    const char *why = !read_type(text, h) ? "elements of another type than f4, f8, integers and bools"
                      : !order || strncmp(order, "False", 5) ? "another order than C's"
                      : !read_shape(text, h)                 ? "a shape that is none, or of 0 elements"
                                                             : NULL;
    free(text);
    return why ? tess_error(TESS_INVALID, m->path, "has %s", why) : TESS_OK;
}

/* ---- opening ---- */

static tess_status fits(struct file *f, const struct header *h, size_t begins)
{
    const tess_array_want *w = f->want;
    const int first = w->same ? 0 : 1;
    bool same = h->rank == w->rank + first;
    f->elements = 1;
    for (int d = 0; same && d < w->rank; d++) {
        same = h->dim[d + first] == w->dim[d];
        f->elements *= w->dim[d];
    }
    if (!same) {
        char met[256] = "", need[256] = "";
        for (int d = 0; d < h->rank; d++)
            snprintf(met + strlen(met), sizeof met - strlen(met), d ? ",%lld" : "%lld", (long long)h->dim[d]);
        for (int d = 0; d < w->rank; d++)
            snprintf(need + strlen(need), sizeof need - strlen(need), ",%lld", (long long)w->dim[d]);
        return tess_error(TESS_INVALID, f->map.path, "has shape (%s), the network's %s needs (%s%s)", met, w->name,
                          w->same ? "" : "samples", need + (w->same && *need));
    }
    const bool whole = w->kind == TESS_ARRAY_INT || w->kind == TESS_ARRAY_BITS;
    if ((whole && (h->kind == 'f' || h->kind == 'b')) || (w->kind == TESS_ARRAY_BOOL && h->kind != 'b'))
        return tess_error(TESS_INVALID, f->map.path, "has %s, the network's %s needs %s",
                          h->kind == 'f'   ? "floats"
                          : h->kind == 'b' ? "bools"
                                           : "integers",
                          w->name, whole ? "integers" : "bools");
    f->kind = h->kind, f->size = h->size;
    f->data = f->map.data + begins;
    uint64_t bytes;
    const uint64_t samples = w->same ? 1 : (uint64_t)h->dim[0];
    if (__builtin_mul_overflow(samples * (uint64_t)h->size, (uint64_t)f->elements, &bytes) ||
        bytes != f->map.bytes - begins)
        return tess_error(TESS_INVALID, f->map.path, "has %zu bytes of elements, its shape needs %llu",
                          f->map.bytes - begins, (unsigned long long)bytes);
    return TESS_OK;
}

static tess_status open_file(tess_arrays *a, int k, const char *path)
{
    struct file *f = &a->file[k];
    struct header h = {0};
    size_t begins = 0;
    f->want = &a->want[k];
    TESS_TRY(tess_map_open(path, &f->map));
    TESS_TRY(read_header(&f->map, &h, &begins));
    if (h.rank == 0 && !f->want->same)
        return tess_error(TESS_INVALID, path, "is a single number (its first dimension counts samples)");
    TESS_TRY(fits(f, &h, begins));
    if (f->want->same) return TESS_OK;
    if (a->counted && (uint64_t)h.dim[0] != a->samples)
        return tess_error(TESS_INVALID, path, "has %lld samples, %s has %llu", (long long)h.dim[0],
                          a->counted->map.path, (unsigned long long)a->samples);
    a->samples = (uint64_t)h.dim[0];
    a->counted = f;
    return TESS_OK;
}

static tess_status open_all(const char *key, const json_t *object, tess_arrays *a)
{
    const char *name;
    json_t *path;
    char names[300] = "";
    for (int k = 0; k < a->count; k++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", k ? ", " : "", a->want[k].name);
    json_object_foreach((json_t *)object, name, path)
    {
        int k = 0;
        while (k < a->count && strcmp(a->want[k].name, name) != 0) k++;
        if (k == a->count || !json_is_string(path))
            return tess_error(TESS_INVALID, key, "%s, expected a path for each input of the network: %s", name, names);
    }
    for (int k = 0; k < a->count; k++) {
        const char *file = json_string_value(json_object_get(object, a->want[k].name));
        if (!file)
            return tess_error(TESS_INVALID, key, "has no %s (the network's inputs are %s)", a->want[k].name, names);
        TESS_TRY(open_file(a, k, file));
    }
    return TESS_OK;
}

tess_status tess_arrays_open(const char *key, const char *text, const tess_array_want *want, int count,
                             tess_arrays **arrays)
{
    json_t *object = text[0] == '{' ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    tess_arrays *a = tess_alloc(sizeof *a);
    *arrays = NULL;
    a->count = count;
    a->want = tess_alloc((size_t)count * sizeof *a->want);
    a->file = tess_alloc((size_t)count * sizeof *a->file);
    a->samples = 1;
    for (int k = 0; k < count; k++) a->want[k] = want[k];
    const tess_status status =
        json_is_object(object)
            ? open_all(key, object, a)
            : tess_error(TESS_INVALID, key,
                         "%.100s, expected {\"%s\": \"FILE.npy\", ...}: a file for each input of the network", text,
                         count ? want[0].name : "x");
    json_decref(object);
    if (status == TESS_OK)
        *arrays = a;
    else
        tess_arrays_close(a);
    return status;
}

void tess_arrays_close(tess_arrays *a)
{
    if (!a) return;
    for (int k = 0; k < a->count; k++) tess_map_close(&a->file[k].map);
    free(a->file);
    free(a->want);
    free(a);
}

uint64_t tess_arrays_samples(const tess_arrays *a)
{
    return a->samples;
}

int tess_arrays_count(const tess_arrays *a)
{
    return a->count;
}

uint64_t tess_arrays_sum(const tess_arrays *a, uint64_t sum)
{
    for (int k = 0; k < a->count; k++) sum = tess_sum_ends(sum, &a->file[k].map);
    return sum;
}

/* ---- reading ---- */

static int64_t whole(const struct file *f, const uint8_t *at)
{
    const bool sign = f->kind == 'i';
    union {
        int8_t s1;
        int16_t s2;
        int32_t s4;
        int64_t s8;
        uint16_t u2;
        uint32_t u4;
    } v;
    memcpy(&v, at, (size_t)f->size);
    switch (f->size) {
    case 1:
        return sign ? v.s1 : *at;
    case 2:
        return sign ? v.s2 : v.u2;
    case 4:
        return sign ? v.s4 : (int64_t)v.u4;
    default:
        return v.s8; /* of an unsigned one that is too large: negative, or refused */
    }
}

static float real(const struct file *f, const uint8_t *at)
{
    float narrow;
    double wide;
    if (f->kind != 'f') return (float)whole(f, at);
    if (f->size == 4) return memcpy(&narrow, at, sizeof narrow), narrow;
    return memcpy(&wide, at, sizeof wide), (float)wide;
}

tess_status tess_arrays_get(const tess_arrays *a, int k, uint64_t sample, void *out)
{
    const struct file *f = &a->file[k];
    const size_t row = (size_t)f->elements * (size_t)f->size;
    const uint8_t *at = f->data + (f->want->same ? 0 : sample) * row;
    TESS_ASSERT(sample < a->samples);
    if (f->want->kind == TESS_ARRAY_REAL && f->kind == 'f' && f->size == 4) {
        memcpy(out, at, row);
        return TESS_OK;
    }
    for (int64_t i = 0; i < f->elements; i++, at += f->size) {
        if (f->want->kind == TESS_ARRAY_REAL) {
            ((float *)out)[i] = real(f, at);
            continue;
        }
        const int64_t v = whole(f, at);
        const bool bits = f->want->kind == TESS_ARRAY_BITS;
        if (v < (bits ? 0 : INT32_MIN) || v > (bits ? UINT32_MAX : INT32_MAX) || (f->kind == 'b' && v > 1))
            return tess_error(TESS_INVALID, f->map.path, "sample %llu has %lld, which is no %s",
                              (unsigned long long)sample, (long long)v, bits ? "uint32" : "int32");
        ((int32_t *)out)[i] = (int32_t)(uint32_t)v;
    }
    return TESS_OK;
}
