/* The weights of a model to and from safetensors, tile by tile: no tensor is ever whole in memory. */
#include "model_impl.h"
#include "safetensors_impl.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { STRIP = 64 /* rows of a file that are turned at a time */, STRIP_BYTES = 16 << 20 };

static bool exists(const char *dir, const char *name)
{
    char *path = tess_format("%s/%s", dir, name);
    bool yes = access(path, F_OK) == 0;
    free(path);
    return yes;
}

bool tess_model_has_weights(const tess_model *m)
{
    return m->dir && (exists(m->dir, "model.safetensors") || exists(m->dir, "model.safetensors.index.json"));
}

/* ---- loading ---- */

static const tess_safetensor *find(const tess_model *m, const tess_safetensors *set, const char *name)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", m->family->prefix, name);
    const tess_safetensor *t = tess_safetensors_find(set, full);
    return t ? t : tess_safetensors_find(set, name);
}

static tess_status check_shape(const tess_safetensor *t, int rank, const int64_t shape[3], bool turned)
{
    int64_t want[2] = {turned ? shape[1] : shape[0], turned ? shape[0] : shape[1]};
    if (t->rank == rank && t->dims[0] == want[0] && (rank == 1 || t->dims[1] == want[1])) return TESS_OK;
    char met[128] = "", *at = met;
    for (int d = 0; d < t->rank; d++) at += sprintf(at, d ? ",%lld" : "%lld", (long long)t->dims[d]);
    if (rank == 1)
        return tess_error(TESS_INVALID, t->file, "%s has shape (%s), the model needs (%lld)", t->name, met,
                          (long long)want[0]);
    return tess_error(TESS_INVALID, t->file, "%s has shape (%s), the model needs (%lld,%lld)", t->name, met,
                      (long long)want[0], (long long)want[1]);
}

/* Rows [first, first+count) of our (rows, columns) out of a file's (columns, rows). */
static tess_status read_turned(const tess_safetensor *t, int64_t first, int64_t count, int64_t columns, float *out)
{
    float *strip = tess_alloc((size_t)(STRIP * count) * sizeof *strip);
    tess_status status = TESS_OK;
    for (int64_t c0 = 0; c0 < columns && status == TESS_OK; c0 += STRIP) {
        int64_t n = columns - c0 < STRIP ? columns - c0 : STRIP;
        for (int64_t c = 0; c < n && status == TESS_OK; c++)
            status = tess_safetensor_read(t, (c0 + c) * t->dims[1] + first, count, strip + c * count);
        for (int64_t r = 0; r < count; r++)
            for (int64_t c = 0; c < n; c++) out[r * columns + c0 + c] = strip[c * count + r];
        tess_safetensor_forget(t);
    }
    free(strip);
    return status;
}

static tess_status load_param(const tess_model *m, const tess_safetensors *set, tess_tensor *p)
{
    const char *name = tess_tensor_name(p);
    const tess_safetensor *t = find(m, set, name);
    if (!t) return tess_error(TESS_INVALID, m->dir, "no tensor %s%s in the safetensors files", m->family->prefix, name);
    int64_t shape[3], first, count;
    int rank = tess_tensor_shape(p, shape);
    bool turned = m->family->transposed(name);
    TESS_TRY(check_shape(t, rank, shape, turned));
    for (int64_t j = 0; j < tess_param_tiles(p); j++) {
        float *tile;
        tess_param_rows(p, j, &first, &count);
        TESS_TRY(tess_param_map(p, j, TESS_MASTER, TESS_W, &tile));
        tess_status status = turned ? read_turned(t, first, count, shape[1], tile)
                                    : tess_safetensor_read(t, first * shape[1], count * shape[1], tile);
        tess_param_unmap(p, j, TESS_MASTER);
        tess_safetensor_forget(t);
        TESS_TRY(status);
    }
    return TESS_OK;
}

/* A tensor that nothing reads would mean that the model is another one. */
static tess_status check_extra(const tess_model *m, const tess_safetensors *set, const tess_graph *g)
{
    size_t prefix = strlen(m->family->prefix);
    for (size_t i = 0; i < tess_safetensors_count(set); i++) {
        const tess_safetensor *t = tess_safetensors_at(set, i);
        const char *name = strncmp(t->name, m->family->prefix, prefix) ? t->name : t->name + prefix;
        if (!tess_graph_find_param(g, name) && !m->family->extra(name))
            return tess_error(TESS_INVALID, t->file,
                              "tensor %s is no parameter of this %s (config.json and weights are of "
                              "different models?)",
                              t->name, m->family->type);
    }
    return TESS_OK;
}

tess_status tess_model_load(const tess_model *m, tess_graph *g, uint64_t seed)
{
    if (!tess_model_has_weights(m)) return tess_graph_init(g, seed);
    tess_safetensors *set;
    TESS_TRY(tess_safetensors_open(m->dir, &set));
    tess_status status = check_extra(m, set, g);
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++)
        status = load_param(m, set, tess_graph_param(g, k));
    tess_safetensors_close(set);
    return status == TESS_OK ? tess_graph_round(g) : status;
}

/* ---- saving ---- */

/* Columns [c0, c0+n) of the parameter, turned: out (n, rows). */
static tess_status turn_columns(tess_tensor *p, int64_t rows, int64_t columns, int64_t c0, int64_t n, float *out)
{
    for (int64_t j = 0; j < tess_param_tiles(p); j++) {
        int64_t first, count;
        float *tile;
        tess_param_rows(p, j, &first, &count);
        TESS_TRY(tess_param_map(p, j, TESS_MASTER, TESS_R, &tile));
        for (int64_t from = 0, to; from < n; from = to) {
            to = n - from < STRIP ? n : from + STRIP;
            for (int64_t r = 0; r < count; r++)
                for (int64_t c = from; c < to; c++) out[c * rows + first + r] = tile[r * columns + c0 + c];
        }
        tess_param_unmap(p, j, TESS_MASTER);
    }
    return TESS_OK;
}

/* Each strip takes all tiles in turn, which may come from disk: few strips, each of some size. */
static tess_status save_turned(tess_safetensors_writer *w, tess_tensor *p, int64_t rows, int64_t columns)
{
    int64_t fit = STRIP_BYTES / (rows * (int64_t)sizeof(float)), most = fit < STRIP ? STRIP : fit;
    if (most > columns) most = columns;
    float *strip = tess_alloc((size_t)(most * rows) * sizeof *strip);
    tess_status status = TESS_OK;
    for (int64_t c = 0; c < columns && status == TESS_OK; c += most) {
        int64_t n = columns - c < most ? columns - c : most;
        status = turn_columns(p, rows, columns, c, n, strip);
        if (status == TESS_OK) status = tess_safetensors_write(w, strip, (size_t)(n * rows) * sizeof *strip);
    }
    free(strip);
    return status;
}

static tess_status save_param(const tess_model *m, tess_safetensors_writer *w, tess_tensor *p)
{
    int64_t shape[3], first, count;
    int rank = tess_tensor_shape(p, shape);
    if (m->family->transposed(tess_tensor_name(p))) return save_turned(w, p, shape[0], shape[1]);
    for (int64_t j = 0; j < tess_param_tiles(p); j++) {
        float *tile;
        tess_param_rows(p, j, &first, &count);
        TESS_TRY(tess_param_map(p, j, TESS_MASTER, TESS_R, &tile));
        tess_status status =
            tess_safetensors_write(w, tile, (size_t)(count * (rank == 2 ? shape[1] : 1)) * sizeof *tile);
        tess_param_unmap(p, j, TESS_MASTER);
        TESS_TRY(status);
    }
    return TESS_OK;
}

static tess_status save_weights(const tess_model *m, tess_graph *g, const char *dir)
{
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "model", TESS_SAFETENSORS_SHARD);
    for (int k = 0; k < tess_graph_params(g); k++) {
        tess_tensor *p = tess_graph_param(g, k);
        const char *name = tess_tensor_name(p);
        int64_t shape[3], turned[2];
        int rank = tess_tensor_shape(p, shape);
        turned[0] = m->family->transposed(name) ? shape[1] : shape[0];
        turned[1] = m->family->transposed(name) ? shape[0] : shape[1];
        char *full = tess_format("%s%s", strcmp(name, "lm_head.weight") ? m->family->prefix : "", name);
        tess_safetensors_declare(w, full, TESS_F32, rank, turned);
        free(full);
    }
    tess_status status = TESS_OK;
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++)
        status = save_param(m, w, tess_graph_param(g, k));
    return tess_safetensors_writer_end(w, status);
}

/* Ends a file that was written as `fresh` (f NULL: it could not be opened): it becomes `path`, or goes. */
static tess_status finish_file(FILE *f, const char *fresh, const char *path, bool written)
{
    bool whole = f && written && fflush(f) == 0 && fsync(fileno(f)) == 0 && rename(fresh, path) == 0;
    tess_status status = whole ? TESS_OK : tess_error(TESS_FAILED, path, "cannot be written: %s", strerror(errno));
    if (f) fclose(f);
    if (!whole) unlink(fresh);
    return status;
}

static tess_status save_config(const tess_model *m, const char *dir)
{
    json_t *root = json_loads(m->json, 0, NULL);
    json_object_set_new(root, "architectures", json_pack("[s]", m->family->architecture));
    json_object_del(root, "dtype"); /* another name of the same */
    json_object_set_new(root, "torch_dtype", json_string("float32"));
    char *text = json_dumps(root, JSON_INDENT(2)), *path = tess_format("%s/config.json", dir);
    char *fresh = tess_format("%s.tmp", path);
    json_decref(root);
    FILE *f = fopen(fresh, "w");
    tess_status status = finish_file(f, fresh, path, f && fprintf(f, "%s\n", text) >= 0);
    free(text);
    free(fresh);
    free(path);
    return status;
}

/* What the tokenizer consists of travels with the model. */
static tess_status copy_file(const char *from_dir, const char *name, const char *dir)
{
    char *from = tess_format("%s/%s", from_dir, name), *to = tess_format("%s/%s", dir, name);
    char *fresh = tess_format("%s.tmp", to), buffer[1 << 14];
    struct stat a, b;
    bool itself = !stat(from, &a) && !stat(to, &b) && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
    FILE *in = itself ? NULL : fopen(from, "rb"), *out = in ? fopen(fresh, "wb") : NULL;
    bool good = true;
    for (size_t n; out && good && (n = fread(buffer, 1, sizeof buffer, in)) > 0;) good = fwrite(buffer, 1, n, out) == n;
    tess_status status = in ? finish_file(out, fresh, to, good && !ferror(in)) : TESS_OK;
    if (in) fclose(in);
    free(from);
    free(fresh);
    free(to);
    return status;
}

tess_status tess_model_save(const tess_model *m, tess_graph *g, const char *dir)
{
    if (mkdir(dir, 0777) && errno != EEXIST) return tess_error(TESS_FAILED, dir, "cannot be made: %s", strerror(errno));
    TESS_TRY(save_weights(m, g, dir));
    TESS_TRY(save_config(m, dir));
    static const char *const tokenizer[] = {"tokenizer.json", "tokenizer_config.json",   "vocab.json",
                                            "merges.txt",     "special_tokens_map.json", "generation_config.json"};
    for (size_t i = 0; m->dir && i < sizeof tokenizer / sizeof tokenizer[0]; i++)
        TESS_TRY(copy_file(m->dir, tokenizer[i], dir));
    return TESS_OK;
}
