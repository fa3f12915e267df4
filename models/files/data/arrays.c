/* .npy: a magic, a version, and a Python literal {'descr': '<f4', 'fortran_order': False, 'shape': (60000, 784), } in
 * front of the elements. Only that literal's three keys are read, in any order; nothing else of Python is. A
 * .safetensors has an array for each input, by its name. */
#include "models/files/data/arrays.h"
#include "models/files/safetensors/safetensors.h"
#include "models/text/base/mapped.h"
#include "models/text/base/text.h"
#include <stdlib.h>
#include <string.h>

enum { RANK = 9, MAGIC = 8 };

/* A file, or what an input has of one. */
struct piece {
    tess_map map; /* of a .npy; of a .safetensors its path, and the tensor's bytes */
    tess_safetensors *set;
    char kind; /* f, i, u, b, or g: bf16 */
    int size;
    const uint8_t *data;
    uint64_t samples;
};
/* What is read of an input: pieces one behind the other. */
struct input {
    const tess_array_want *want;
    struct piece *piece;
    int pieces;
    int64_t elements; /* of a sample */
    uint64_t samples;
};
struct tess_arrays {
    struct input *input;
    tess_array_want *want;
    int count;
    uint64_t samples;
    const struct input *counted; /* the first that has some */
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
    return h->kind == 'f' ? h->size >= 2 : h->kind != 'b' || h->size == 1;
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
        return tess_error(TESS_INVALID, m->path, "is no .npy file (numpy.save writes one) and no .safetensors");
    const size_t wide = b[6] == 1 ? 2 : 4;
    size_t length = b[MAGIC] | (size_t)b[MAGIC + 1] << 8;
    if (wide == 4) length |= (size_t)b[MAGIC + 2] << 16 | (size_t)b[MAGIC + 3] << 24;
    *begins = MAGIC + wide + length;
    if (*begins > m->bytes || length > 65536) return tess_error(TESS_INVALID, m->path, "its header is cut off");
    TESS_FREED char *text = tess_alloc(length + 1);
    memcpy(text, b + MAGIC + wide, length);
    const char *order = after(text, "'fortran_order'");
    const char *why = !read_type(text, h) ? "elements of another type than f2, f4, f8, integers and bools"
                      : !order || strncmp(order, "False", 5) ? "another order than C's"
                      : !read_shape(text, h)                 ? "a shape that is none, or of 0 elements"
                                                             : NULL;
    return why ? tess_error(TESS_INVALID, m->path, "has %s", why) : TESS_OK;
}

static tess_status read_tensor(const tess_safetensors *set, const char *path, const char *name, struct header *h,
                               const tess_safetensor **of)
{
    static const struct {
        char kind, size;
    } types[TESS_ST_COUNT] = {
        [TESS_ST_F32] = {'f', 4}, [TESS_ST_F16] = {'f', 2}, [TESS_ST_BF16] = {'g', 2}, [TESS_ST_F64] = {'f', 8},
        [TESS_ST_I64] = {'i', 8}, [TESS_ST_I32] = {'i', 4}, [TESS_ST_I16] = {'i', 2},  [TESS_ST_I8] = {'i', 1},
        [TESS_ST_U64] = {'u', 8}, [TESS_ST_U32] = {'u', 4}, [TESS_ST_U16] = {'u', 2},  [TESS_ST_U8] = {'u', 1},
        [TESS_ST_BOOL] = {'b', 1}};
    const tess_safetensor *t = *of = tess_safetensors_find(set, name);
    if (!t) return tess_error(TESS_INVALID, path, "has no array %.100s", name);
    h->kind = types[t->dtype].kind, h->size = types[t->dtype].size, h->rank = t->rank;
    if (!h->size) return tess_error(TESS_INVALID, path, "%.100s: has floats of 8 bits", name);
    for (int d = 0; d < t->rank; d++) {
        h->dim[d] = t->dims[d];
        if (!t->dims[d]) return tess_error(TESS_INVALID, path, "%.100s: has no elements", name);
    }
    return TESS_OK;
}

/* ---- opening ---- */

static bool is_float(char kind)
{
    return kind == 'f' || kind == 'g';
}

static tess_status fits(struct input *in, struct piece *f, const struct header *h)
{
    const tess_array_want *w = in->want;
    const int first = w->same ? 0 : 1;
    bool same = h->rank == w->rank + first;
    in->elements = 1;
    for (int d = 0; same && d < w->rank; d++) {
        same = h->dim[d + first] == w->dim[d];
        in->elements *= w->dim[d];
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
    if ((whole && (is_float(h->kind) || h->kind == 'b')) || (w->kind == TESS_ARRAY_BOOL && h->kind != 'b'))
        return tess_error(TESS_INVALID, f->map.path, "has %s, the network's %s needs %s",
                          is_float(h->kind) ? "floats"
                          : h->kind == 'b'  ? "bools"
                                            : "integers",
                          w->name, whole ? "integers" : "bools");
    f->kind = h->kind, f->size = h->size;
    uint64_t bytes;
    f->samples = w->same ? 1 : (uint64_t)h->dim[0];
    if (__builtin_mul_overflow(f->samples * (uint64_t)h->size, (uint64_t)in->elements, &bytes) || bytes != f->map.bytes)
        return tess_error(TESS_INVALID, f->map.path, "has %zu bytes of elements, its shape needs %llu", f->map.bytes,
                          (unsigned long long)bytes);
    return TESS_OK;
}

static bool is_set(const char *path)
{
    const size_t n = strlen(path), end = sizeof ".safetensors" - 1;
    return n > end && !strcmp(path + n - end, ".safetensors");
}

/* Adds to what is read of an input what a file has of it. */
static tess_status open_piece(struct input *in, const char *path)
{
    struct piece *f = &in->piece[in->pieces++];
    struct header h = {0};
    const tess_safetensor *t = NULL;
    size_t begins = 0;
    if (is_set(path)) {
        TESS_TRY(tess_safetensors_open(path, &f->set));
        TESS_TRY(read_tensor(f->set, path, in->want->name, &h, &t));
        f->map = (tess_map){.path = (char *)t->file, .data = t->data, .bytes = t->bytes};
    } else {
        TESS_TRY(tess_map_open(path, &f->map));
        TESS_TRY(read_header(&f->map, &h, &begins));
    }
    if (h.rank == 0 && !in->want->same)
        return tess_error(TESS_INVALID, path, "is a single number (its first dimension counts samples)");
    f->data = f->map.data + begins;
    f->map.bytes -= begins;
    const tess_status status = fits(in, f, &h);
    f->map.bytes += begins;
    in->samples += f->samples;
    if (status == TESS_OK && in->want->same && in->pieces > 1)
        return tess_error(TESS_INVALID, path, "%s is the same for all samples, and has one file", in->want->name);
    return status;
}

/* Opens an input's files: a path, or several. */
static tess_status open_input(tess_arrays *a, int k, const char *key, const json_t *paths)
{
    struct input *in = &a->input[k];
    const size_t n = json_is_array(paths) ? json_array_size(paths) : 1;
    in->want = &a->want[k];
    in->piece = tess_alloc((n + 1) * sizeof *in->piece);
    if (n == 0 || n > 1 << 20) return tess_error(TESS_INVALID, key, "%s has %zu files", in->want->name, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *path = json_is_array(paths) ? json_array_get(paths, i) : paths;
        if (!json_is_string(path))
            return tess_error(TESS_INVALID, key, "%s, expected a path, or a list of paths", in->want->name);
        TESS_TRY(open_piece(in, json_string_value(path)));
    }
    if (in->want->same) return TESS_OK;
    if (a->counted && in->samples != a->samples)
        return tess_error(TESS_INVALID, in->piece[in->pieces - 1].map.path, "has %llu samples, %s has %llu",
                          (unsigned long long)in->samples, a->counted->piece[a->counted->pieces - 1].map.path,
                          (unsigned long long)a->samples);
    a->samples = in->samples;
    a->counted = in;
    return TESS_OK;
}

/* Of an object each input has its own files; else all inputs have the same. */
static tess_status open_all(const char *key, const json_t *files, tess_arrays *a)
{
    const char *name;
    json_t *path;
    char names[300] = "";
    for (int k = 0; k < a->count; k++)
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", k ? ", " : "", a->want[k].name);
    json_object_foreach((json_t *)files, name, path)
    {
        int k = 0;
        while (k < a->count && strcmp(a->want[k].name, name) != 0) k++;
        if (k == a->count || json_is_object(path))
            return tess_error(TESS_INVALID, key, "%s, expected a path for each input of the network: %s", name, names);
    }
    for (int k = 0; k < a->count; k++) {
        const json_t *paths = json_is_object(files) ? json_object_get(files, a->want[k].name) : files;
        if (!paths)
            return tess_error(TESS_INVALID, key, "has no %s (the network's inputs are %s)", a->want[k].name, names);
        TESS_TRY(open_input(a, k, key, paths));
    }
    return TESS_OK;
}

/* Returns what a setting names: an object, or paths of .safetensors; NULL: something else. */
static json_t *files_of(const char *text)
{
    json_t *files = strchr("{[", text[0]) && *text ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : json_string(text);
    bool sets = !json_is_object(files);
    for (size_t i = 0; i < json_array_size(files) && sets; i++) {
        const char *path = json_string_value(json_array_get(files, i));
        sets = path && is_set(path);
    }
    if (json_is_object(files) || (sets && (json_array_size(files) || (json_is_string(files) && is_set(text)))))
        return files;
    json_decref(files);
    return NULL;
}

tess_status tess_arrays_open(const char *key, const char *text, const tess_array_want *want, int count,
                             tess_arrays **arrays)
{
    TESS_FREED_JSON json_t *files = files_of(text);
    tess_arrays *a = tess_alloc(sizeof *a);
    *arrays = NULL;
    a->count = count;
    a->want = tess_alloc((size_t)count * sizeof *a->want);
    a->input = tess_alloc((size_t)count * sizeof *a->input);
    a->samples = 1;
    for (int k = 0; k < count; k++) a->want[k] = want[k];
    const tess_status status =
        files ? open_all(key, files, a)
              : tess_error(TESS_INVALID, key,
                           "%.100s, expected {\"%s\": \"FILE.npy\", ...}: a file for each input of the network, or a "
                           ".safetensors with all",
                           text, count ? want[0].name : "x");
    if (status == TESS_OK)
        *arrays = a;
    else
        tess_arrays_close(a);
    return status;
}

static void close_piece(struct piece *f)
{
    if (f->set)
        tess_safetensors_close(f->set);
    else
        tess_map_close(&f->map);
}

void tess_arrays_close(tess_arrays *a)
{
    if (!a) return;
    for (int k = 0; k < a->count; k++) {
        for (int i = 0; i < a->input[k].pieces; i++) close_piece(&a->input[k].piece[i]);
        free(a->input[k].piece);
    }
    free(a->input);
    free(a->want);
    free(a);
}

uint64_t tess_arrays_samples(const tess_arrays *a)
{
    return a->samples;
}

int tess_arrays_files(const tess_arrays *a)
{
    int files = 0;
    for (int k = 0; k < a->count; k++) files += a->input[k].pieces;
    return files;
}

uint64_t tess_arrays_sum(const tess_arrays *a, uint64_t sum)
{
    for (int k = 0; k < a->count; k++)
        for (int i = 0; i < a->input[k].pieces; i++) sum = tess_sum_ends(sum, &a->input[k].piece[i].map);
    return sum;
}

/* ---- reading ---- */

static int64_t whole(const struct piece *f, const uint8_t *at)
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

static float real(const struct piece *f, const uint8_t *at)
{
    float narrow;
    double wide;
    uint16_t half;
    if (!is_float(f->kind)) return (float)whole(f, at);
    if (f->size == 2) {
        memcpy(&half, at, sizeof half);
        return f->kind == 'g' ? tess_from_bf16(half) : tess_from_f16(half);
    }
    if (f->size == 4) return memcpy(&narrow, at, sizeof narrow), narrow;
    return memcpy(&wide, at, sizeof wide), (float)wide;
}

tess_status tess_arrays_get(const tess_arrays *a, int k, uint64_t sample, void *out)
{
    const struct input *in = &a->input[k];
    const struct piece *f = in->piece;
    TESS_ASSERT(sample < a->samples);
    uint64_t place = in->want->same ? 0 : sample;
    for (; place >= f->samples; f++) place -= f->samples;
    const size_t row = (size_t)in->elements * (size_t)f->size;
    const uint8_t *at = f->data + place * row;
    if (in->want->kind == TESS_ARRAY_REAL && f->kind == 'f' && f->size == 4) {
        memcpy(out, at, row);
        return TESS_OK;
    }
    for (int64_t i = 0; i < in->elements; i++, at += f->size) {
        if (in->want->kind == TESS_ARRAY_REAL) {
            ((float *)out)[i] = real(f, at);
            continue;
        }
        const int64_t v = whole(f, at);
        const bool bits = in->want->kind == TESS_ARRAY_BITS;
        if (v < (bits ? 0 : INT32_MIN) || v > (bits ? UINT32_MAX : INT32_MAX) || (f->kind == 'b' && v > 1))
            return tess_error(TESS_INVALID, f->map.path, "sample %llu has %lld, which is no %s",
                              (unsigned long long)sample, (long long)v, bits ? "uint32" : "int32");
        ((int32_t *)out)[i] = (int32_t)(uint32_t)v;
    }
    return TESS_OK;
}
