/* A model or a checkpoint as GGUF, the file that ggml's programs read. Weights go from file to file, a strip of rows at
 * a time. What config.json says has a place there or is an error: it is read back from the file's head, as this program
 * and others would, before a weight is written. */
#include "models/networks/model/model.h"
#include "models/text/base/directories.h"
#include "models/text/base/gguf.h"
#include "models/text/base/mapped.h"
#include "models/text/tokenizer/tokenizer.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STRIP_BYTES = 16 << 20, BLOCK = 32, F32 = 0, F16 = 1, Q8_0 = 8, BF16 = 30 };
static const struct {
    const char *name;
    int64_t type, file_type;
} dtypes[] = {{"f16", F16, 1}, {"q8_0", Q8_0, 7}, {"bf16", BF16, 32}, {"f32", F32, 0}};
enum { DTYPES = sizeof dtypes / sizeof *dtypes };

struct file {
    const tess_model *m;
    const tess_safetensors *set;
    const tess_gguf_kind *kind;
    const char *path;
    FILE *to;
    int64_t type;     /* of matrices */
    int64_t heads[2]; /* of q, of k */
    tess_gguf g;
    tess_bytes head; /* with the factors of positions, which are the first tensor */
};

/* ---- numbers ---- */

static json_t *field_of(const tess_model *m, const char *field);
static double number(const tess_model *m, const char *field)
{
    TESS_FREED_JSON json_t *value = field_of(m, field);
    return json_number_value(value);
}

/* Where config.json leaves a number to others, the one that follows. */
static json_t *field_of(const tess_model *m, const char *field)
{
    json_t *value = tess_model_field(m, field);
    if (!json_is_integer(value) || json_integer_value(value)) return value;
    const int64_t width = (int64_t)number(m, "hidden_size"), heads = (int64_t)number(m, "num_attention_heads");
    json_integer_set(value, !strcmp(field, "head_dim")              ? width / heads
                            : !strcmp(field, "n_inner")             ? 4 * width
                            : !strcmp(field, "num_key_value_heads") ? heads
                                                                    : (int64_t)number(m, "max_position_embeddings"));
    return value;
}

static bool has_rope(const tess_model *m, const char *kind)
{
    TESS_FREED_JSON json_t *value = tess_model_field(m, "rope_parameters.rope_type");
    return value && !strcmp(json_string_value(value), kind);
}

static void put_numbers(struct file *f)
{
    const bool scales =
        number(f->m, "rope_parameters.factor") > 0 && (has_rope(f->m, "linear") || has_rope(f->m, "yarn"));
    for (const tess_gguf_key *key = tess_gguf_keys; key->gguf; key++) {
        const bool none = !(key->of & f->kind->bit) || (!strncmp(key->field, "rope_parameters.", 16) && !scales);
        json_t *value = none ? NULL : field_of(f->m, key->field);
        char name[96];
        snprintf(name, sizeof name, "%s.%s", f->kind->name, key->gguf);
        if (value) json_object_set_new(f->g.meta, name, value);
    }
}

/* ---- tensors ---- */

static void add_tensor(struct file *f, const char *name, int64_t type, int rank, const int64_t *shape, uint64_t *at)
{
    uint64_t elements = 1;
    json_t *sizes = json_array();
    for (int i = 0; i < rank; i++) elements *= (uint64_t)shape[i], json_array_append_new(sizes, json_integer(shape[i]));
    json_object_set_new(f->g.tensors, name,
                        json_pack("{sI so sI}", "type", (json_int_t)type, "shape", sizes, "offset", (json_int_t)*at));
    *at += type == F32 ? 4 * elements : type == Q8_0 ? elements / BLOCK * (BLOCK + 2) : 2 * elements;
    *at = (*at + TESS_GGUF_ALIGNMENT - 1) / TESS_GGUF_ALIGNMENT * TESS_GGUF_ALIGNMENT;
}

/* Vectors stay in F32, as does the table of positions; rows that are no blocks of Q8_0 are in F16. */
static int64_t type_of(const struct file *f, const char *name, int rank, const int64_t *shape)
{
    if (rank == 1 || !strcmp(name, "position_embd.weight")) return F32;
    return f->type == Q8_0 && shape[1] % BLOCK ? F16 : f->type;
}

static tess_status add_tensors(struct file *f, const tess_graph *g, int64_t pairs)
{
    uint64_t at = 0;
    if (pairs) add_tensor(f, "rope_freqs.weight", F32, 1, &pairs, &at);
    for (int k = 0; k < tess_graph_params(g); k++) {
        const tess_tensor *p = tess_graph_param(g, k);
        int64_t shape[3];
        char name[512];
        const int rank = tess_tensor_shape(p, shape);
        if (!tess_gguf_rename(f->kind, true, tess_tensor_name(p), name))
            return tess_error(TESS_INVALID, f->m->dir, "%s has no name in GGUF", tess_tensor_name(p));
        add_tensor(f, name, type_of(f, name, rank, shape), rank, shape, &at);
    }
    return TESS_OK;
}

static void put_float(tess_bytes *to, float x)
{
    tess_bytes_add(to, (const char *)&x, sizeof x);
}

/* The head as it is written, and what comes with it. */
static tess_status make_head(struct file *f, const tess_graph *g)
{
    const int64_t pairs = has_rope(f->m, "llama3") ? (int64_t)number(f->m, "head_dim") / 2 : 0;
    TESS_TRY(add_tensors(f, g, pairs));
    tess_gguf_put(&f->head, &f->g);
    f->g.data = f->head.length;
    for (int64_t i = 0; i < pairs; i++)
        put_float(&f->head,
                  tess_gguf_stretch(number(f->m, "rope_theta"), 2 * pairs, i, number(f->m, "rope_parameters.factor"),
                                    number(f->m, "rope_parameters.low_freq_factor"),
                                    number(f->m, "rope_parameters.high_freq_factor"),
                                    number(f->m, "rope_parameters.original_max_position_embeddings")));
    while (f->head.length % TESS_GGUF_ALIGNMENT) put_float(&f->head, 0);
    return TESS_OK;
}

/* What would be read from it is the model; numbers that were left to others are there now. */
static tess_status check_head(const struct file *f)
{
    json_t *root;
    char a[32], b[32];
    const bool stretched = has_rope(f->m, "llama3"); /* by a tensor */
    TESS_TRY(tess_gguf_config(f->path, &f->g, (const uint8_t *)f->head.data, f->head.length, &root));
    TESS_FREED tess_model *other = tess_alloc(sizeof *other);
    if (!strcmp(f->kind->type, "mistral")) json_object_set_new(root, "sliding_window", json_null());
    TESS_FREED char *text = json_dumps(root, 0);
    tess_status status = tess_fields_read(f->m->family, f->path, text, other->numbers);
    for (const tess_field *d = NULL;
         status == TESS_OK && (d = tess_fields_next_other(f->m->family, f->m->numbers, other->numbers, d));) {
        tess_field_text(d, f->m->numbers, a);
        tess_field_text(d, other->numbers, b);
        if (d->kind == TESS_FIELD_TRAINING || d->kind == TESS_FIELD_TRAINING_OR_NULL ||
            (d->kind == TESS_FIELD_OPTIONAL && !strcmp(a, "0")) ||
            (stretched && !strncmp(d->name, "rope_parameters.", 16)))
            continue;
        if (!strcmp(d->name, "sliding_window"))
            tess_note("%s %s has no place in GGUF: beyond it other programs attend to all of a text", d->name, a);
        else
            status = tess_file_error(f->m->dir, d->name, "%s has no place in GGUF, where it would be %s", a, b);
    }
    json_decref(root);
    return status;
}

/* ---- weights ---- */

/* Rows [first, first + n) as the file has them. */
static tess_status read_rows(const struct file *f, const tess_tensor *p, const tess_safetensor *t, bool turned,
                             int64_t first, int64_t n, int64_t columns, float *out, float *room)
{
    const char *name = tess_tensor_name(p);
    const int which = !f->kind->pairs ? -1 : strstr(name, ".q_proj.") ? 0 : strstr(name, ".k_proj.") ? 1 : -1;
    int64_t shape[3];
    tess_tensor_shape(p, shape);
    const int64_t head = which < 0 ? 0 : shape[0] / f->heads[which];
    if (!head && !turned) return tess_safetensor_read(t, first * columns, n * columns, out);
    for (int64_t r = first; r < first + n && head; r++) {
        const int64_t i = r % head, from = r - i + i % 2 * (head / 2) + i / 2;
        TESS_TRY(tess_safetensor_read(t, from * columns, columns, out + (r - first) * columns));
    }
    for (int64_t c = 0; c < columns && turned; c++) {
        TESS_TRY(tess_safetensor_read(t, c * shape[0] + first, n, room));
        for (int64_t r = 0; r < n; r++) out[r * columns + c] = room[r];
    }
    return TESS_OK;
}

static void put_block(tess_bytes *to, const float *x)
{
    float most = 0;
    int8_t code[BLOCK];
    for (int i = 0; i < BLOCK; i++) most = fmaxf(most, fabsf(x[i]));
    const float by = most / 127, over = by > 0 ? 1 / by : 0;
    const uint16_t scale = tess_to_f16(by);
    for (int i = 0; i < BLOCK; i++) {
        const float rounded = roundf(x[i] * over);
        code[i] = (int8_t)(rounded >= -127 && rounded <= 127 ? rounded : 0);
    }
    tess_bytes_add(to, (const char *)&scale, sizeof scale);
    tess_bytes_add(to, (const char *)code, sizeof code);
}

static void put_floats(tess_bytes *to, int64_t type, const float *x, int64_t n)
{
    to->length = 0;
    if (type == F32) tess_bytes_add(to, (const char *)x, (size_t)n * sizeof *x);
    for (int64_t i = 0; i < n && type == Q8_0; i += BLOCK) put_block(to, x + i);
    for (int64_t i = 0; i < n && (type == F16 || type == BF16); i++) {
        const uint16_t half = type == F16 ? tess_to_f16(x[i]) : tess_to_bf16(x[i]);
        tess_bytes_add(to, (const char *)&half, sizeof half);
    }
}

static tess_status put(const struct file *f, const char *bytes, size_t n)
{
    if (fwrite(bytes, 1, n, f->to) == n) return TESS_OK;
    return tess_error(TESS_FAILED, f->path, "cannot be written: %s", strerror(errno));
}

static tess_status write_tensor(const struct file *f, const tess_tensor *p)
{
    const char *name = tess_tensor_name(p);
    const tess_safetensor *t =
        f->m->states ? tess_safetensors_find(f->set, name) : tess_model_tensor(f->m, f->set, name);
    int64_t shape[3] = {0};
    char ours[512];
    if (!t) return tess_error(TESS_INVALID, f->m->dir, "no tensor %s in its files", name);
    const int rank = tess_tensor_shape(p, shape);
    const bool turned = !f->m->states && tess_model_turned_in(f->m, name, t);
    TESS_TRY(tess_pieces_check(t, rank, shape, turned));
    tess_gguf_rename(f->kind, true, name, ours);
    const int64_t type = type_of(f, ours, rank, shape), columns = rank == 2 ? shape[1] : 1;
    const int64_t fit = STRIP_BYTES / (columns * 4) / BLOCK * BLOCK + BLOCK, most = fit < shape[0] ? fit : shape[0];
    TESS_FREED float *strip = tess_alloc((size_t)(most * (columns + 1)) * sizeof *strip);
    tess_bytes bytes = {0};
    tess_status status = TESS_OK;
    for (int64_t from = 0; from < shape[0] && status == TESS_OK; from += most) {
        const int64_t n = most < shape[0] - from ? most : shape[0] - from;
        status = read_rows(f, p, t, turned, from, n, columns, strip, strip + most * columns);
        put_floats(&bytes, type, strip, n * columns);
        for (size_t k = 0; from + n == shape[0] && bytes.length % TESS_GGUF_ALIGNMENT; k++)
            tess_bytes_add(&bytes, "", 1);
        if (status == TESS_OK) status = put(f, bytes.data, bytes.length);
        tess_safetensor_forget(t);
    }
    free(bytes.data);
    return status;
}

static tess_status write_file(struct file *f, const tess_graph *g)
{
    TESS_FREED char *fresh = tess_format("%s.tmp", f->path);
    f->to = fopen(fresh, "wb");
    tess_status status = f->to ? put(f, f->head.data, f->head.length) : TESS_FAILED;
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++)
        status = write_tensor(f, tess_graph_param(g, k));
    if (f->to && status != TESS_OK) {
        fclose(f->to);
        unlink(fresh);
        return status;
    }
    return tess_file_end(f->to, fresh, f->path, true);
}

/* ---- the whole ---- */

static tess_status make_file(struct file *f, const tess_graph *g, int64_t file_type)
{
    const char *slash = strrchr(f->path, '/'), *name = slash ? slash + 1 : f->path;
    f->heads[0] = (int64_t)number(f->m, "num_attention_heads");
    f->heads[1] = (int64_t)number(f->m, "num_key_value_heads");
    f->g.meta = json_pack("{ss ss so sI sI}", "general.architecture", f->kind->name, "general.type", "model",
                          "general.name", json_stringn(name, strlen(name) - 5), "general.file_type",
                          (json_int_t)file_type, "general.quantization_version", (json_int_t)2);
    f->g.tensors = json_object();
    put_numbers(f);
    if (tess_tokenizer_in(f->m->dir))
        TESS_TRY(tess_tokenizer_gguf(f->m->dir, tess_model_vocab(f->m), f->g.meta));
    else
        json_object_set_new(f->g.meta, "tokenizer.ggml.model", json_string("no_vocab"));
    TESS_TRY(make_head(f, g));
    TESS_TRY(check_head(f));
    return write_file(f, g);
}

static tess_status open_file(const tess_model *m, const char *path, const char *dtype, struct file *f, int *d)
{
    const size_t n = strlen(path);
    for (*d = 0; *d < DTYPES && strcmp(dtypes[*d].name, dtype);) ++*d;
    if (*d == DTYPES) return tess_error(TESS_INVALID, "--dtype", "%s (expected f16, q8_0, bf16 or f32)", dtype);
    if (n < 6 || strcmp(path + n - 5, ".gguf") || !access(path, F_OK))
        return tess_error(TESS_INVALID, path, "%s",
                          access(path, F_OK) ? "is no name that ends in .gguf"
                                             : "is there already (name another file)");
    *f = (struct file){.m = m, .path = path, .type = dtypes[*d].type, .kind = tess_gguf_kind_of(NULL, m->family->type)};
    if (!f->kind)
        return tess_error(TESS_INVALID, m->dir, "a %s is not written to GGUF (known: mistral, " TESS_GGUF_KNOWN ")",
                          m->family->type);
    if (m->lora)
        return tess_error(TESS_INVALID, tess_model_adapter_dir(m),
                          "is of adapters (tessera merge makes a model of them and their base)");
    return tess_model_need_weights(m, "there is nothing to write");
}

tess_status tess_model_export_gguf(const tess_model *m, const char *path, const char *dtype)
{
    struct file f;
    int d;
    tess_network net;
    tess_safetensors *set = NULL;
    TESS_TRY(open_file(m, path, dtype, &f, &d));
    if (!m->states) TESS_TRY(tess_model_tensors(m, &set));
    f.set = m->states ? m->states : set;
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32});
    tess_status status = tess_model_build(m, g, 1, 1, TESS_FOR_LOSS, &net);
    if (status == TESS_OK) status = make_file(&f, g, dtypes[d].file_type);
    tess_graph_free(g);
    tess_gguf_free(&f.g);
    free(f.head.data);
    tess_safetensors_close(set);
    return status;
}
