/* Tensors of a GGUF file, under Hugging Face's names. Few bits are widened as they are read, block by block, to the
 * floats that ggml makes of them:
 *
 *     Q8_0, Q4_0    32 elements: a scale in f16, their codes; of Q4_0 the first 16 in the lower four bits
 *     Q4_K          256: scales of scales and of least values, 8 of each in six bits, codes of four bits
 *     Q6_K          256: lower four bits, upper two, 16 scales of eight bits, their scale
 */
#include "models/text/base/gguf.h"
#include "models/files/safetensors/safetensors_impl.h"
#include <string.h>

static float half(const uint8_t *at)
{
    uint16_t bits;
    memcpy(&bits, at, sizeof bits);
    return tess_from_f16(bits);
}

static void widen_q8_0(const uint8_t *b, float *out)
{
    for (int i = 0; i < 32; i++) out[i] = (float)(int8_t)b[2 + i] * half(b);
}

static void widen_q4_0(const uint8_t *b, float *out)
{
    for (int i = 0; i < 32; i++) out[i] = half(b) * (float)((b[2 + i % 16] >> i / 16 * 4 & 15) - 8);
}

static void widen_q4_k(const uint8_t *b, float *out)
{
    const uint8_t *scale = b + 4, *code = b + 16;
    for (int k = 0; k < 8; k++) {
        const int s = k < 4 ? scale[k] & 63 : (scale[k + 4] & 15) | (scale[k - 4] >> 2 & 48);
        const int m = k < 4 ? scale[k + 4] & 63 : scale[k + 4] >> 4 | (scale[k] >> 2 & 48);
        const float by = half(b) * (float)s, less = half(b + 2) * (float)m;
        for (int i = 0; i < 32; i++) out[32 * k + i] = by * (float)(code[k / 2 * 32 + i] >> k % 2 * 4 & 15) - less;
    }
}

static void widen_q6_k(const uint8_t *b, float *out)
{
    const uint8_t *low = b, *high = b + 128, *scale = b + 192;
    for (int i = 0; i < 256; i++) {
        const int at = i % 128, four = low[i / 128 * 64 + at % 64] >> at / 64 * 4 & 15;
        const int two = high[i / 128 * 32 + at % 32] >> at / 32 * 2 & 3;
        out[i] = half(b + 208) * (float)(int8_t)scale[i / 16] * (float)((four | two << 4) - 32);
    }
}

static const struct stored {
    int64_t type, block;
    size_t bytes; /* of a block */
    tess_safetensors_dtype dtype;
    void (*widen)(const uint8_t *block, float *out);
} stored[] = {
    {0, 1, 4, TESS_ST_F32, NULL},
    {1, 1, 2, TESS_ST_F16, NULL},
    {30, 1, 2, TESS_ST_BF16, NULL},
    {8, 32, 34, TESS_ST_Q8_0, widen_q8_0},
    {2, 32, 18, TESS_ST_Q4_0, widen_q4_0},
    {12, 256, 144, TESS_ST_Q4_K, widen_q4_k},
    {14, 256, 210, TESS_ST_Q6_K, widen_q6_k},
};
enum { STORED = sizeof stored / sizeof *stored, BLOCK_MOST = 256 };

void tess_blocks_read(const tess_safetensor *t, int64_t first, int64_t n, float *out)
{
    float block[BLOCK_MOST];
    const struct stored *s = stored;
    while (s->dtype != t->dtype) s++;
    for (int64_t i = first, some; i < first + n; i += some) {
        const int64_t at = i % s->block;
        some = s->block - at < first + n - i ? s->block - at : first + n - i;
        s->widen((const uint8_t *)t->data + (size_t)(i / s->block) * s->bytes, block);
        memcpy(out + (i - first), block + at, (size_t)some * sizeof *out);
    }
}

/* ---- a file ---- */

struct file {
    const uint8_t *bytes;
    size_t n;
    tess_gguf g;
    const tess_gguf_kind *kind; /* NULL: none that is known */
};

/* Heads whose rows are in another order. */
static tess_status read_heads(const struct file *f, tess_safetensor *t, const char *name)
{
    const char *end = strstr(name, ".attn_q.") ? "head_count" : strstr(name, ".attn_k.") ? "head_count_kv" : NULL;
    char key[64];
    if (!f->kind || !f->kind->pairs || !end) return TESS_OK;
    snprintf(key, sizeof key, "%s.attention.%s", f->kind->name, end);
    const json_t *heads = json_object_get(f->g.meta, key);
    if (!heads) snprintf(key, sizeof key, "%s.attention.head_count", f->kind->name);
    t->heads = json_integer_value(heads ? heads : json_object_get(f->g.meta, key));
    if (t->heads > 0 && t->heads < INT32_MAX && t->rank > 0 && t->dims[0] % (2 * t->heads) == 0) return TESS_OK;
    return tess_file_error(t->file, t->name, "is no pairs of rows of %s, %lld, heads", key, (long long)t->heads);
}

static tess_status read_tensor(struct file *f, tess_safetensor *t, const char *name, const json_t *entry)
{
    const json_int_t type = json_integer_value(json_object_get(entry, "type"));
    const uint64_t offset = (uint64_t)json_integer_value(json_object_get(entry, "offset"));
    const struct stored *s = stored;
    TESS_TRY(tess_safetensors_shape(t, entry));
    while (s < stored + STORED && s->type != type) s++;
    if (s == stored + STORED)
        return tess_file_error(t->file, name,
                               "is of type %lld, which is not read (known: F32 0, F16 1, Q4_0 2, Q8_0 8, "
                               "Q4_K 12, Q6_K 14, BF16 30)",
                               (long long)type);
    t->dtype = s->dtype;
    t->straight = true;
    if (t->elements && (t->rank < 1 || t->dims[t->rank - 1] % s->block))
        return tess_file_error(t->file, name, "has rows that are no blocks of %lld elements", (long long)s->block);
    uint64_t bytes;
    if (__builtin_mul_overflow((uint64_t)(t->elements / s->block), s->bytes, &bytes) || f->g.data > f->n ||
        offset > f->n - f->g.data || bytes > f->n - f->g.data - offset)
        return tess_file_error(t->file, name, "is not all within the file's %zu bytes (is it truncated?)", f->n);
    t->data = f->bytes + f->g.data + offset;
    t->bytes = (size_t)bytes;
    return read_heads(f, t, name);
}

tess_status tess_gguf_tensors(tess_safetensors *s, const char *file, const uint8_t *bytes, size_t n)
{
    struct file f = {.bytes = bytes, .n = n};
    const char *name;
    json_t *entry;
    TESS_TRY(tess_gguf_read(file, bytes, n, &f.g));
    const char *architecture = tess_json_text(f.g.meta, "general.architecture");
    f.kind = architecture ? tess_gguf_kind_of(architecture, NULL) : NULL;
    tess_status status = TESS_OK;
    json_object_foreach(f.g.tensors, name, entry)
    {
        char ours[512];
        if (status != TESS_OK || !strcmp(name, "rope_freqs.weight")) continue; /* config.json has what that says */
        tess_safetensor *t = tess_safetensors_add(s);
        const bool known = f.kind && tess_gguf_rename(f.kind, false, name, ours);
        t->name = tess_arena_format(s->arena, "%s", known ? ours : name);
        t->file = file;
        status = read_tensor(&f, t, name, entry);
    }
    tess_gguf_free(&f.g);
    return status;
}
