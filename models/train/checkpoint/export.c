/* A Hugging Face directory from a checkpoint: from file to file, a strip of a tensor at a time, so that neither RAM nor
 * a device need hold the model. */
#include "checkpoint.h"
#include "directories.h"
#include "lora.h"
#include "model.h"
#include "states.h"
#include "train.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { STRIP_BYTES = 16 << 20 };

/* Rows [from, from + n) of a parameter (rows, cols) to where they lie in the file; room: (n, cols), twice if turned. */
static tess_status write_strip(tess_safetensors_writer *w, size_t tensor, const tess_safetensor *t, int64_t before,
                               int64_t from, int64_t n, int64_t cols, bool turned, float *room)
{
    float *other = room + n * cols;
    TESS_TRY(tess_safetensor_read(t, (before + from) * cols, n * cols, room));
    if (!turned) return tess_safetensors_write(w, tensor, from, n, 0, cols, room);
    for (int64_t r = 0; r < n; r++)
        for (int64_t c = 0; c < cols; c++) other[c * n + r] = room[r * cols + c];
    return tess_safetensors_write(w, tensor, 0, cols, from, n, other);
}

static tess_status write_param(tess_safetensors_writer *w, size_t tensor, const tess_model *m, const tess_tensor *p)
{
    const char *name = tess_tensor_name(p);
    const tess_safetensor *t = tess_safetensors_find(m->lora ? m->lora->set : m->states, name);
    int64_t shape[3] = {1, 1, 1};
    const int rank = tess_tensor_shape(p, shape);
    const int64_t rows = shape[0], cols = rank == 2 ? shape[1] : 1;
    const bool turned = tess_model_turned(m, name);
    if (!t || t->rank != rank || t->dims[0] != rows || (rank == 2 && t->dims[1] != cols))
        return tess_error(TESS_INVALID, m->dir, "%s is %s (its config.json is of another model)", name,
                          t ? "of another shape" : "missing");
    const int64_t each = rows / tess_param_members(p); /* a tensor for each matrix of a stack */
    int64_t most = STRIP_BYTES / (cols * (int64_t)sizeof(float)) + 1;
    if (most > each) most = each;
    float *room = tess_alloc((size_t)(most * cols) * (turned ? 2 : 1) * sizeof *room);
    tess_status status = TESS_OK;
    for (int64_t before = 0; before < rows; before += each, tensor++)
        for (int64_t from = 0; from < each && status == TESS_OK; from += most)
            status =
                write_strip(w, tensor, t, before, from, most < each - from ? most : each - from, cols, turned, room);
    free(room);
    tess_safetensor_forget(t);
    return status;
}

/* In the order and under the names in which a run writes them. */
static tess_status write_weights(const tess_model *m, tess_graph *g, const char *dir)
{
    tess_safetensors_writer *w = tess_model_writer(m, g, dir);
    const int params = tess_graph_params(g);
    tess_status status = tess_safetensors_writer_begin(w);
    size_t tensor = 0;
    for (int k = 0; k < params && status == TESS_OK; k++) {
        if (!tess_model_writes(m, tess_graph_param(g, k))) continue;
        status = write_param(w, tensor, m, tess_graph_param(g, k));
        tensor += (size_t)tess_param_members(tess_graph_param(g, k));
    }
    return tess_safetensors_writer_end(w, status);
}

static tess_status write_model(const tess_model *m, const char *dir)
{
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.dtype = TESS_F32});
    tess_network net;
    tess_status status = tess_model_build(m, g, 1, 1, TESS_FOR_LOSS, &net);
    if (status == TESS_OK) status = write_weights(m, g, dir);
    tess_graph_free(g);
    return status;
}

/* What is there already may be somebody's only copy. */
static tess_status make_directory(const char *dir, size_t *made)
{
    const char *name = tess_model_file_in(dir);
    if (name) return tess_error(TESS_INVALID, dir, "holds a model already, in %s (name another directory)", name);
    if (tess_dirs_make(dir, made)) return TESS_OK;
    return tess_error(tess_errno_status(errno), dir, "cannot be created: %s (expected a directory to write to)",
                      strerror(errno));
}

/* Its states stay readable from here on, whoever removes them; the small files are copied while they are there. */
struct exported {
    const char *dir; /* where it goes */
    tess_model *model;
};
static tess_status open_checkpoint(const char *path, void *what)
{
    struct exported *e = what;
    TESS_TRY(tess_model_open(path, NULL, &e->model));
    if (e->model->lora ? !e->model->lora->states : !e->model->states)
        return tess_error(TESS_INVALID, path,
                          "is no checkpoint, and holds none (expected one, or the checkpoint.dir of a run)");
    e->model->stored = e->model->lora ? TESS_SAVE_FP32 : tess_model_named_dtype(e->model);
    TESS_TRY(tess_model_save_rest(e->model, e->dir));
    return tess_model_check(e->model);
}

static void close_checkpoint(void *what)
{
    struct exported *e = what;
    tess_model_close(e->model);
    e->model = NULL;
}

tess_status tess_export(const char *checkpoint, const char *dir, FILE *out)
{
    struct exported e = {.dir = dir};
    char *path = NULL;
    size_t made = 0;
    if (!checkpoint || !dir || !out) return tess_error(TESS_INVALID, "export", "a directory or the output is NULL");
    tess_status status = make_directory(dir, &made);
    if (status != TESS_OK) return status;
    TESS_TRY_DONE(tess_checkpoint_open(checkpoint, open_checkpoint, close_checkpoint, &e, &path));
    TESS_TRY_DONE(write_model(e.model, dir));
    fprintf(out, "the model of %s: %s\n", path, dir);
done:
    if (status != TESS_OK) tess_model_remove_rest(dir);
    if (status != TESS_OK) tess_dirs_remove(dir, made);
    close_checkpoint(&e);
    free(path);
    return status;
}
