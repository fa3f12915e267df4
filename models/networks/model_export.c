/* From file to file, a strip of a tensor at a time, so that neither RAM nor a device need hold the model: the states of
 * a checkpoint to a Hugging Face directory, and adapters folded into the weights beside which they were trained,
 * W + (alpha / r) B A, where RAM holds no matrix but A and B; with DoRA its rows get their lengths, and the matrix is
 * read twice. */
#include "models/networks/lora/lora.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STRIP_BYTES = 16 << 20 };

/* What is added to a matrix as its file has it: factor times left (rows, r) times right (r, columns). Each row, or of a
 * turned one each column, is then multiplied. */
struct product {
    float *left, *right; /* NULL: nothing is */
    int64_t r, rows, columns;
    float factor;
    float *by; /* NULL: by nothing */
    bool by_columns;
};

static void turn(const float *from, int64_t rows, int64_t columns, float *to)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++) to[j * rows + i] = from[i * columns + j];
}

/* Adds rows [from, from + n) of it to w (n, columns). */
static void add_product(const struct product *p, int64_t from, int64_t n, float *w, float *sum)
{
    for (int64_t i = 0; i < n; i++) {
        memset(sum, 0, (size_t)p->columns * sizeof *sum);
        for (int64_t k = 0; k < p->r; k++) {
            const float x = p->left[(from + i) * p->r + k];
            const float *row = p->right + k * p->columns;
#pragma omp simd
            for (int64_t j = 0; j < p->columns; j++) sum[j] += x * row[j];
        }
        float *to = w + i * p->columns;
#pragma omp simd
        for (int64_t j = 0; j < p->columns; j++) to[j] += p->factor * sum[j];
    }
}

/* Multiplies rows [from, from + n) of it. */
static void multiply(const struct product *p, int64_t from, int64_t n, float *w)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < p->columns; j++) w[i * p->columns + j] *= p->by[p->by_columns ? j : from + i];
}

/* Turns the lengths in by, which rows or columns are to have, into what they are to be multiplied by. */
static tess_status find_lengths(const tess_safetensor *t, struct product *p)
{
    const int64_t count = p->by_columns ? p->columns : p->rows, most = STRIP_BYTES / (p->columns * 4) + 1;
    TESS_FREED double *square = tess_alloc((size_t)count * sizeof *square);
    float *strip = tess_alloc((size_t)((most + 1) * p->columns) * sizeof *strip), *other = strip + most * p->columns;
    tess_status status = TESS_OK;
    for (int64_t from = 0; from < p->rows && status == TESS_OK; from += most) {
        const int64_t n = most < p->rows - from ? most : p->rows - from;
        status = tess_safetensor_read(t, from * p->columns, n * p->columns, strip);
        if (status == TESS_OK) add_product(p, from, n, strip, other);
        for (int64_t i = 0; i < n * p->columns && status == TESS_OK; i++)
            square[p->by_columns ? i % p->columns : from + i / p->columns] += (double)strip[i] * strip[i];
        tess_safetensor_forget(t);
    }
    for (int64_t i = 0; i < count; i++) p->by[i] /= (float)sqrt(square[i]);
    free(strip);
    return status;
}

/* Elements of a row. */
static int64_t row_of(const tess_safetensor *t)
{
    return t->rank > 1 ? t->dims[t->rank - 1] : 1;
}

/* Copies rows [first, first + rows) of a file's tensor, with a product (NULL: none) added, to a tensor of a writer,
 * which lies turned there or not. */
static tess_status copy_rows(tess_safetensors_writer *w, size_t tensor, const tess_safetensor *t, int64_t first,
                             int64_t rows, bool turned, const struct product *p)
{
    const int64_t cols = row_of(t);
    int64_t most = STRIP_BYTES / (cols * (int64_t)sizeof(float)) + 1;
    if (most > rows) most = rows;
    float *strip = tess_alloc((size_t)((most + (turned ? most : 1)) * cols) * sizeof *strip),
          *other = strip + most * cols;
    tess_status status = TESS_OK;
    for (int64_t from = 0; from < rows && status == TESS_OK; from += most) {
        const int64_t n = most < rows - from ? most : rows - from;
        status = tess_safetensor_read(t, (first + from) * cols, n * cols, strip);
        if (status != TESS_OK) break;
        if (p && p->left) add_product(p, from, n, strip, other);
        if (p && p->by) multiply(p, from, n, strip);
        if (turned) turn(strip, n, cols, other);
        status = turned ? tess_safetensors_write(w, tensor, 0, cols, from, n, other)
                        : tess_safetensors_write(w, tensor, from, n, 0, cols, strip);
        tess_safetensor_forget(t);
    }
    free(strip);
    return status;
}

/* ---- a checkpoint's model ---- */

static tess_status export_param(tess_safetensors_writer *w, size_t tensor, const tess_model *m, const tess_tensor *p)
{
    const char *name = tess_tensor_name(p);
    const tess_safetensor *t = tess_safetensors_find(m->lora ? m->lora->set : m->states, name);
    int64_t shape[3] = {1, 1, 1};
    const int rank = tess_tensor_shape(p, shape);
    if (!t || t->rank != rank || t->dims[0] != shape[0] || (rank == 2 && t->dims[1] != shape[1]))
        return tess_error(TESS_INVALID, m->dir, "%s is %s (its config.json is of another model)", name,
                          t ? "of another shape" : "missing");
    const int64_t each = shape[0] / tess_param_members(p); /* a tensor for each matrix of a stack */
    for (int64_t before = 0; before < shape[0]; before += each, tensor++)
        TESS_TRY(copy_rows(w, tensor, t, before, each, tess_model_turned(m, name), NULL));
    return TESS_OK;
}

/* In the order and under the names in which a run writes them. */
static tess_status export_params(const tess_model *m, tess_graph *g, const char *dir)
{
    tess_safetensors_writer *w = tess_model_writer(m, g, dir);
    tess_status status = tess_safetensors_writer_begin(w);
    size_t tensor = 0;
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++) {
        if (!tess_model_writes(m, tess_graph_param(g, k))) continue;
        status = export_param(w, tensor, m, tess_graph_param(g, k));
        tensor += (size_t)tess_param_members(tess_graph_param(g, k));
    }
    return tess_safetensors_writer_end(w, status);
}

tess_status tess_model_export_weights(const tess_model *m, const char *dir)
{
    if (m->import) return tess_error(TESS_INVALID, m->dir, "is of an exported network, whose run leaves OUTPUT/model");
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32});
    tess_network net;
    tess_status status = tess_model_build(m, g, 1, 1, TESS_FOR_LOSS, &net);
    if (status == TESS_OK) status = export_params(m, g, dir);
    tess_graph_free(g);
    return status;
}

/* ---- adapters folded in ---- */

/* Reads a part of an adapter. */
static tess_status read_part(const tess_model *m, const tess_tensor *p, float **data)
{
    const tess_safetensor *t;
    TESS_TRY(tess_lora_need(m, p, false, &t));
    *data = tess_alloc((size_t)t->elements * sizeof **data);
    return tess_safetensor_read(t, 0, t->elements, *data);
}

/* The product for a matrix NAME.weight, if it has adapters: of a turned one A^T B^T. */
static tess_status open_product(const tess_model *m, const tess_graph *g, const char *name, bool turned,
                                struct product *p)
{
    char part[3][512];
    const int n = (int)(strlen(name) > 7 ? strlen(name) - 7 : 0); /* without ".weight" */
    *p = (struct product){.r = m->lora->r, .factor = (float)tess_lora_scale(m->lora)};
    for (int k = 0; k < 2; k++) snprintf(part[k], sizeof part[k], "%.*s.lora_%c.weight", n, name, "AB"[k]);
    snprintf(part[2], sizeof part[2], "%.*s%s", n, name, TESS_LORA_M);
    const tess_tensor *a = tess_graph_find_param(g, part[0]), *b = tess_graph_find_param(g, part[1]),
                      *lengths = tess_graph_find_param(g, part[2]);
    int64_t of_a[3], of_b[3];
    if (!a || !b) return TESS_OK;
    float *A = NULL, *B = NULL;
    tess_tensor_shape(a, of_a);
    tess_tensor_shape(b, of_b);
    tess_status status = read_part(m, a, &A);
    if (status == TESS_OK) status = read_part(m, b, &B);
    if (status == TESS_OK && lengths) status = read_part(m, lengths, &p->by);
    p->by_columns = turned;
    p->rows = turned ? of_a[1] : of_b[0];
    p->columns = turned ? of_b[0] : of_a[1];
    p->left = B;
    p->right = A;
    if (status == TESS_OK && turned) {
        p->left = tess_alloc((size_t)(p->r * p->rows) * sizeof *p->left);
        p->right = tess_alloc((size_t)(p->r * p->columns) * sizeof *p->right);
        turn(A, p->r, p->rows, p->left);
        turn(B, p->columns, p->r, p->right);
        free(A);
        free(B);
    }
    return status;
}

/* Whether a tensor lies in other files than it is written to as (out, in). */
static bool turns(const tess_model *m, const tess_tensor *p, const tess_safetensor *t)
{
    return t->straight && t->rank == 2 && tess_model_turned(m, tess_tensor_name(p));
}

/* The tensor of the base's files, one a matrix of a stack, or, of a module that the adapter has all of, of the
 * adapter's. */
static const tess_safetensor *source(const tess_model *m, const tess_safetensors *set, const tess_tensor *p,
                                     int64_t member)
{
    char name[512];
    tess_model_member(m, tess_tensor_name(p), member, name);
    const tess_safetensor *t = tess_lora_has(m, p) ? tess_lora_find(m, name) : NULL;
    return t ? t : tess_model_tensor(m, set, name);
}

static tess_status copy_all(tess_safetensors_writer *w, size_t tensor, const tess_safetensor *t, bool turned,
                            const struct product *p)
{
    return copy_rows(w, tensor, t, 0, t->elements / row_of(t), turned, p);
}

static tess_status write_tensors(const tess_model *m, const tess_safetensors *set, const tess_graph *g,
                                 tess_safetensors_writer *w)
{
    size_t tensor = 0;
    tess_status status = tess_safetensors_writer_begin(w);
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++) {
        const tess_tensor *p = tess_graph_param(g, k);
        struct product product = {0};
        if (tess_lora_part(tess_tensor_name(p))) continue;
        status = open_product(m, g, tess_tensor_name(p),
                              tess_model_turned_in(m, tess_tensor_name(p), source(m, set, p, 0)), &product);
        for (int64_t i = 0; i < tess_param_members(p) && status == TESS_OK; i++) {
            status = product.by ? find_lengths(source(m, set, p, i), &product) : TESS_OK;
            const tess_safetensor *t = source(m, set, p, i);
            if (status == TESS_OK) status = copy_all(w, tensor++, t, turns(m, p, t), &product);
        }
        free(product.left);
        free(product.right);
        free(product.by);
    }
    return tess_safetensors_writer_end(w, status);
}

/* All that the model needs has its shape, and each tensor of the adapter a place: before anything is written. */
static tess_status check(const tess_model *m, const tess_safetensors *set, const tess_graph *g)
{
    TESS_TRY(tess_lora_check(m, g));
    for (int k = 0; k < tess_graph_params(g); k++) {
        const tess_tensor *p = tess_graph_param(g, k);
        const char *name = tess_tensor_name(p);
        int64_t shape[3];
        const int rank = tess_tensor_shape(p, shape);
        shape[0] /= tess_param_members(p);
        for (int64_t i = 0; i < tess_param_members(p); i++) {
            const tess_safetensor *t = tess_lora_part(name) ? tess_lora_find(m, name) : source(m, set, p, i);
            if (!t) return tess_error(TESS_INVALID, m->dir, "no tensor %s in its files", name);
            TESS_TRY(tess_pieces_check(t, rank, shape, tess_model_turned_in(m, name, t)));
        }
    }
    return TESS_OK;
}

static tess_status merge(const tess_model *m, const tess_safetensors *set, const tess_graph *g, const char *dir)
{
    TESS_TRY(check(m, set, g));
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "model", TESS_SAFETENSORS_SHARD);
    for (int k = 0; k < tess_graph_params(g); k++) {
        const tess_tensor *p = tess_graph_param(g, k);
        char full[512];
        if (tess_lora_part(tess_tensor_name(p))) continue;
        const bool stacked = tess_names_have(m->family->stacked, tess_tensor_name(p));
        for (int64_t i = 0; i < (stacked ? 1 : tess_param_members(p)); i++) {
            const tess_safetensor *t = source(m, set, p, i);
            const bool turned = turns(m, p, t);
            const int64_t dims[] = {t->dims[turned], t->dims[!turned], t->dims[2]};
            const tess_safetensors_dtype as = tess_safetensor_plain(t);
            char member[512];
            tess_model_member(m, tess_tensor_name(p), i, member);
            tess_lora_file_name(m, stacked ? tess_tensor_name(p) : member, full);
            if (stacked)
                tess_safetensors_declare_stack(w, full, as, tess_param_members(p), dims);
            else
                tess_safetensors_declare_floats(w, full, as, t->rank, dims);
        }
    }
    return write_tensors(m, set, g, w);
}

/* Opens what is merged, where there is no model yet. */
static tess_status open_all(const char *model, const char *adapter, const char *dir, tess_model **m)
{
    const char *there = tess_model_file_in(dir);
    if (there) return tess_error(TESS_INVALID, dir, "holds a model already, in %s (name another directory)", there);
    TESS_TRY(tess_model_open(model, NULL, m));
    if ((*m)->states) return tess_error(TESS_INVALID, model, "is a checkpoint (tessera export makes a model of it)");
    TESS_TRY(tess_model_need_weights(*m, "fetch the whole model"));
    TESS_TRY(tess_model_adapt(*m, adapter));
    if ((*m)->lora->states)
        return tess_error(TESS_INVALID, adapter, "is a checkpoint (tessera export makes an adapter's directory of it)");
    return TESS_OK;
}

tess_status tess_model_merge(const char *model, const char *adapter, const char *dir)
{
    tess_model *m = NULL;
    tess_safetensors *set = NULL;
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32});
    tess_network net;
    size_t made = 0;
    tess_status status;
    TESS_TRY_DONE(open_all(model, adapter, dir, &m));
    TESS_TRY_DONE(tess_model_tensors(m, &set));
    TESS_TRY_DONE(tess_model_build(m, g, 1, 1, TESS_FOR_LOSS, &net));
    if (!tess_dirs_make(dir, &made)) {
        status = tess_error(tess_errno_status(errno), dir, "cannot be created: %s (expected a directory to write to)",
                            strerror(errno));
        goto done;
    }
    status = merge(m, set, g, dir);
    if (status == TESS_OK) status = tess_model_save_merged(m, dir);
    if (status != TESS_OK) tess_model_remove(dir); /* there was none */
    if (status != TESS_OK) tess_dirs_remove(dir, made);
done:
    tess_graph_free(g);
    tess_safetensors_close(set);
    tess_model_close(m);
    return status;
}
