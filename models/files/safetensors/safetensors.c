/* Sets of tensors, and reading safetensors files. Layout: u64 length of the header, the header, the tensors' bytes.
 *
 * The header is a JSON object of {"dtype", "shape", "data_offsets": [begin, end]} by name, offsets counted from the
 * header's end. Nothing in it is believed: sizes must follow from the shapes, and the tensors must fill the rest of
 * the file without a gap or an overlap. Machines are little-endian here, as the files are.
 */
#include "models/files/safetensors/safetensors_impl.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are read as they lie in the file");

/* ---- one header ---- */

static tess_status read_dtype(tess_safetensor *t, const json_t *entry)
{
    const char *name = json_string_value(json_object_get(entry, "dtype"));
    if (!name) return tess_file_error(t->file, t->name, "has no dtype");
    for (t->dtype = 0; t->dtype < TESS_ST_COUNT; t->dtype++)
        if (strcmp(name, tess_st_name(t->dtype)) == 0) return TESS_OK;
    return tess_file_error(t->file, t->name, "dtype %s is not known", name);
}

/* data and data_bytes: what follows the header. */
static tess_status read_offsets(tess_safetensor *t, const json_t *entry, const uint8_t *data, size_t data_bytes)
{
    const json_t *offsets = json_object_get(entry, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *second = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(second))
        return tess_file_error(t->file, t->name, "has no data_offsets [begin, end]");
    json_int_t begin = json_integer_value(first), end = json_integer_value(second);
    if (begin < 0 || end < begin || (uint64_t)end > data_bytes)
        return tess_file_error(t->file, t->name,
                               "data_offsets %lld to %lld are outside of the %zu bytes of tensors in the file",
                               (long long)begin, (long long)end, data_bytes);
    uint64_t want;
    if (__builtin_mul_overflow((uint64_t)t->elements, tess_st_size(t->dtype), &want) || want != (uint64_t)(end - begin))
        return tess_file_error(t->file, t->name,
                               "data_offsets %lld to %lld are %lld bytes, %lld elements of %s are %llu",
                               (long long)begin, (long long)end, (long long)(end - begin), (long long)t->elements,
                               tess_st_name(t->dtype), (unsigned long long)want);
    t->data = data + begin;
    t->bytes = (size_t)want;
    return TESS_OK;
}

static int compare_places(const void *a, const void *b)
{
    const tess_safetensor *x = a, *y = b;
    if (x->data != y->data) return x->data < y->data ? -1 : 1;
    return (x->bytes > y->bytes) - (x->bytes < y->bytes); /* empty ones first */
}

/* tensor: (n), all of one file, is put in the order of places. */
static tess_status check_places(const char *file, tess_safetensor *tensor, size_t n, const uint8_t *data, size_t bytes)
{
    const uint8_t *at = data;
    qsort(tensor, n, sizeof *tensor, compare_places);
    for (size_t i = 0; i < n; i++) {
        const uint8_t *begin = tensor[i].data;
        if (begin != at)
            return tess_file_error(file, tensor[i].name,
                                   "begins at byte %zu of the tensors, but the one before it ends at %zu (%s)",
                                   (size_t)(begin - data), (size_t)(at - data), begin < at ? "they overlap" : "a hole");
        at = begin + tensor[i].bytes;
    }
    if (at != data + bytes)
        return tess_error(TESS_INVALID, file, "%zu bytes follow the last tensor", (size_t)(data + bytes - at));
    return TESS_OK;
}

static tess_safetensors *new_set(void)
{
    tess_safetensors *s = tess_alloc(sizeof *s);
    s->arena = tess_arena_new();
    s->room = 64;
    s->tensor = tess_alloc(s->room * sizeof *s->tensor);
    return s;
}

static tess_status read_header(tess_safetensors *s, const char *file, json_t *header, const uint8_t *data, size_t bytes)
{
    size_t before = s->count;
    const char *name;
    json_t *entry;
    if (!json_is_object(header)) return tess_error(TESS_INVALID, file, "the header is no JSON object");
    json_object_foreach(header, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0) continue;
        tess_safetensor *t = tess_safetensors_add(s);
        t->name = tess_arena_format(s->arena, "%s", name);
        t->file = file;
        TESS_TRY(read_dtype(t, entry));
        TESS_TRY(tess_safetensors_shape(t, entry));
        TESS_TRY(read_offsets(t, entry, data, bytes));
    }
    return check_places(file, s->tensor + before, s->count - before, data, bytes);
}

static bool ends(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && !strcmp(name + n - m, end);
}

/* Adds the tensors of one file in memory. `file` lives as long as the set. */
static tess_status read_file(tess_safetensors *s, const char *file, const uint8_t *bytes, size_t n)
{
    uint64_t length;
    json_error_t error;
    static const char pointer[] = "version https://git-lfs";
    if (n >= strlen(pointer) && !memcmp(bytes, pointer, strlen(pointer)))
        return tess_error(TESS_INVALID, file, "is git-lfs's pointer to the file, and not the file (git lfs pull)");
    if (ends(file, ".gguf")) return tess_gguf_tensors(s, file, bytes, n);
    if (ends(file, ".bin")) return tess_torch_read(s, file, bytes, n);
    if (n < sizeof length)
        return tess_error(TESS_INVALID, file, "has %zu bytes, a safetensors file begins with 8 of its header's length",
                          n);
    memcpy(&length, bytes, sizeof length);
    if (length > TESS_HEADER_MAX)
        return tess_error(TESS_INVALID, file, "header length %llu, expected at most %d (is this a safetensors file?)",
                          (unsigned long long)length, TESS_HEADER_MAX);
    if (length > n - sizeof length)
        return tess_error(TESS_INVALID, file, "header length %llu, but %zu bytes follow (is the file truncated?)",
                          (unsigned long long)length, n - sizeof length);
    size_t begin = sizeof length + (size_t)length;
    TESS_FREED_JSON json_t *header = json_loadb((const char *)bytes + sizeof length, (size_t)length,
                                                JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!header)
        return tess_file_error(file, "header", "byte %zu: is no JSON: %s", sizeof length + (size_t)error.position,
                               error.text);
    return read_header(s, file, header, bytes + begin, n - begin);
}

/* ---- sets of files ---- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(((const tess_safetensor *)a)->name, ((const tess_safetensor *)b)->name);
}

tess_status tess_safetensors_sort(tess_safetensors *s)
{
    qsort(s->tensor, s->count, sizeof *s->tensor, compare_names);
    for (size_t i = 1; i < s->count; i++)
        if (strcmp(s->tensor[i - 1].name, s->tensor[i].name) == 0)
            return tess_file_error(s->tensor[i].file, s->tensor[i].name, "is in %s too", s->tensor[i - 1].file);
    return TESS_OK;
}

static tess_status map_file(tess_safetensors *s, const char *path)
{
    s->map = tess_realloc(s->map, (s->maps + 1) * sizeof *s->map);
    TESS_TRY(tess_map_open(path, &s->map[s->maps]));
    tess_map *map = &s->map[s->maps++];
    size_t before = s->count;
    TESS_TRY(read_file(s, map->path, map->data, map->bytes));
    for (size_t i = before; i < s->count; i++) s->tensor[i].mapped = true;
    return TESS_OK;
}

/* {"weight_map": {NAME: FILE, ...}}: every file once, and then every name where it is said to be. */
static tess_status read_shards(tess_safetensors *s, const char *index, const json_t *weight_map)
{
    const char *slash = strrchr(index, '/'), *name;
    json_t *value, *seen = json_object();
    tess_status status = TESS_OK;
    if (!json_is_object(weight_map) || !json_object_size(weight_map))
        status = tess_file_error(index, "weight_map", "expected an object of tensors and their files");
    json_object_foreach((json_t *)weight_map, name, value)
    {
        const char *file = json_string_value(value);
        if (status != TESS_OK) break;
        if (!file || !*file || strchr(file, '/'))
            status = tess_file_error(index, name, "expected the name of a file beside the index");
        else if (!json_object_get(seen, file)) {
            json_object_set_new(seen, file, json_true());
            TESS_FREED char *path = tess_format("%.*s%s", slash ? (int)(slash - index + 1) : 0, index, file);
            status = map_file(s, path);
        }
    }
    if (status == TESS_OK) status = tess_safetensors_sort(s);
    json_object_foreach((json_t *)weight_map, name, value)
    {
        if (status != TESS_OK) break;
        const tess_safetensor *t = tess_safetensors_find(s, name);
        const char *base = t ? strrchr(t->file, '/') : NULL;
        if (!t || strcmp(base ? base + 1 : t->file, json_string_value(value)))
            status = tess_file_error(index, name, "is not in %s, where the index has it", json_string_value(value));
    }
    json_decref(seen);
    return status;
}

static tess_status open_index(tess_safetensors *s, const char *path)
{
    json_t *root;
    TESS_TRY(tess_json_open(path, 0, &root, NULL));
    tess_status status = read_shards(s, path, json_object_get(root, "weight_map"));
    json_decref(root);
    return status;
}

static tess_status open_file(tess_safetensors *s, const char *path)
{
    if (ends(path, ".json")) return open_index(s, path);
    TESS_TRY(map_file(s, path));
    return tess_safetensors_sort(s);
}

/* What `path` is: a directory with weights, an index, or one file. */
static tess_status open_path(tess_safetensors *s, const char *path)
{
    struct stat st;
    if (stat(path, &st) != 0)
        return tess_error(tess_errno_status(errno), path, "cannot be opened: %s", strerror(errno));
    if (!S_ISDIR(st.st_mode)) return open_file(s, path);
    const char *name = tess_safetensors_in(path);
    TESS_FREED char *text = name ? tess_format("%s/%s", path, name) : tess_safetensors_lack(path);
    return name ? open_file(s, text) : tess_error(TESS_INVALID, path, "%s", text);
}

static tess_status finish_open(tess_safetensors *s, tess_status status, tess_safetensors **set)
{
    if (status == TESS_OK)
        *set = s;
    else
        tess_safetensors_close(s);
    return status;
}

tess_status tess_safetensors_open(const char *path, tess_safetensors **set)
{
    tess_safetensors *s = new_set();
    return finish_open(s, open_path(s, path), set);
}

tess_status tess_safetensors_view(const char *path, const void *data, size_t bytes, tess_safetensors **set)
{
    tess_safetensors *s = new_set();
    tess_status status = read_file(s, tess_arena_format(s->arena, "%s", path), data, bytes);
    return finish_open(s, status == TESS_OK ? tess_safetensors_sort(s) : status, set);
}

void tess_safetensors_close(tess_safetensors *s)
{
    if (!s) return;
    for (size_t i = 0; i < s->maps; i++) tess_map_close(&s->map[i]);
    free(s->map);
    free(s->tensor);
    tess_arena_free(s->arena);
    free(s);
}

size_t tess_safetensors_count(const tess_safetensors *s)
{
    return s->count;
}

const tess_safetensor *tess_safetensors_at(const tess_safetensors *s, size_t i)
{
    TESS_ASSERT(i < s->count);
    return &s->tensor[i];
}

const tess_safetensor *tess_safetensors_find(const tess_safetensors *s, const char *name)
{
    tess_safetensor key = {.name = name};
    return s->count ? bsearch(&key, s->tensor, s->count, sizeof key, compare_names) : NULL;
}

/* ---- elements as floats ---- */

static void read_mxfp4(const tess_safetensor *t, int64_t first, int64_t n, float *out)
{
    static const float value[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
    const uint8_t *codes = t->data;
    float by = 0;
    for (int64_t i = first; i < first + n; i++) {
        if (i == first || i % TESS_MXFP4_BLOCK == 0) by = ldexpf(1, t->scales[i / TESS_MXFP4_BLOCK] - 127);
        out[i - first] = by * value[codes[i / 2] >> (i % 2 * 4) & 15];
    }
}

static void read_e4m3(const tess_safetensor *t, int64_t first, int64_t n, float *out)
{
    const int64_t columns = t->dims[1], across = (columns + TESS_F8_BLOCK - 1) / TESS_F8_BLOCK;
    const uint8_t *codes = t->data;
    float value[256], by;
    for (int k = 0; k < 128; k++) {
        const int exponent = k >> 3, rest = k & 7;
        value[k] = k == 127 ? NAN : exponent ? ldexpf((float)(8 + rest), exponent - 10) : ldexpf((float)rest, -9);
        value[128 + k] = -value[k];
    }
    for (int64_t i = first, end; i < first + n; i = end) {
        const int64_t row = i / columns, col = i % columns;
        const int64_t stop = (col / TESS_F8_BLOCK + 1) * TESS_F8_BLOCK;
        end = row * columns + (stop < columns ? stop : columns);
        if (end > first + n) end = first + n;
        memcpy(&by, t->scales + (row / TESS_F8_BLOCK * across + col / TESS_F8_BLOCK) * 4, sizeof by);
        for (int64_t k = i; k < end; k++) out[k - first] = by * value[codes[k]];
    }
}

/* As they lie in the file. */
static tess_status read_elements(const tess_safetensor *t, int64_t first, int64_t n, float *out)
{
    const uint8_t *p = (const uint8_t *)t->data + (size_t)first * tess_st_size(t->dtype); /* MXFP4 has no size */
    uint16_t half;
    double wide;
    switch (t->dtype) {
    case TESS_ST_F32:
        memcpy(out, p, (size_t)n * sizeof *out);
        return TESS_OK;
    case TESS_ST_F16:
        for (int64_t i = 0; i < n; i++) memcpy(&half, p + 2 * i, sizeof half), out[i] = tess_from_f16(half);
        return TESS_OK;
    case TESS_ST_BF16:
        for (int64_t i = 0; i < n; i++) memcpy(&half, p + 2 * i, sizeof half), out[i] = tess_from_bf16(half);
        return TESS_OK;
    case TESS_ST_F64:
        for (int64_t i = 0; i < n; i++) memcpy(&wide, p + 8 * i, sizeof wide), out[i] = (float)wide;
        return TESS_OK;
    case TESS_ST_MXFP4:
        read_mxfp4(t, first, n, out);
        return TESS_OK;
    case TESS_ST_CODES:
        tess_codes_read(t, first, n, out);
        return TESS_OK;
    case TESS_ST_Q8_0:
    case TESS_ST_Q4_0:
    case TESS_ST_Q4_K:
    case TESS_ST_Q6_K:
        tess_blocks_read(t, first, n, out);
        return TESS_OK;
    case TESS_ST_F8_E4M3:
        if (!t->scales)
            return tess_file_error(t->file, t->name, "is F8_E4M3, but has no %s_scale_inv beside it", t->name);
        read_e4m3(t, first, n, out);
        return TESS_OK;
    default:
        return tess_file_error(t->file, t->name, "is %s, expected floats (F32, BF16, F16 or F64)",
                               tess_st_name(t->dtype));
    }
}

tess_status tess_safetensor_read(const tess_safetensor *t, int64_t first, int64_t n, float *out)
{
    TESS_ASSERT(first >= 0 && n >= 0 && first <= t->elements && n <= t->elements - first);
    if (!t->heads) return read_elements(t, first, n, out);
    const int64_t width = t->elements / t->dims[0], head = t->dims[0] / t->heads;
    for (int64_t some; n > 0; first += some, out += some, n -= some) {
        const int64_t row = first / width, i = row % head, column = first % width;
        some = width - column < n ? width - column : n;
        TESS_TRY(read_elements(t, (row - i + i % (head / 2) * 2 + i / (head / 2)) * width + column, some, out));
    }
    return TESS_OK;
}

void tess_safetensor_forget(const tess_safetensor *t)
{
    if (t->mapped) tess_map_forget(t->data, t->bytes);
    if (t->mapped && t->scales && t->dtype == TESS_ST_MXFP4) tess_map_forget(t->scales, t->bytes / 16);
    if (t->codes) tess_safetensor_forget(t->codes->scale);
}
