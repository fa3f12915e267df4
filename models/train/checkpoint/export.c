/* A Hugging Face directory or a GGUF file from a checkpoint, and from a model with adapters folded in. */
#include "models/networks/networks.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/train.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* A model that is there already is not written over: it may be the only copy. */
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
    bool states;
    TESS_TRY(tess_model_open(path, NULL, &e->model));
    TESS_TRY(tess_model_export_rest(e->model, e->dir, &states));
    if (!states)
        return tess_error(TESS_INVALID, path,
                          "is no checkpoint, and holds none (expected one, or the checkpoint.dir of a run)");
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
    TESS_FREED char *path = NULL;
    size_t made = 0;
    if (!checkpoint || !dir || !out) return tess_error(TESS_INVALID, "export", "a directory or the output is NULL");
    tess_status status = make_directory(dir, &made);
    if (status != TESS_OK) return status;
    TESS_TRY_DONE(tess_checkpoint_open(checkpoint, open_checkpoint, close_checkpoint, &e, &path));
    TESS_TRY_DONE(tess_model_export_weights(e.model, dir));
    fprintf(out, "the model of %s: %s\n", path, dir);
done:
    if (status != TESS_OK) tess_model_remove_rest(dir);
    if (status != TESS_OK) tess_dirs_remove(dir, made);
    close_checkpoint(&e);
    return status;
}

static tess_status open_any(const char *path, void *what)
{
    struct exported *e = what;
    TESS_TRY(tess_model_open(path, NULL, &e->model));
    return tess_model_check(e->model);
}

tess_status tess_export_gguf(const char *checkpoint, const char *file, const char *dtype, FILE *out)
{
    struct exported e = {0};
    TESS_FREED char *path = NULL;
    if (!checkpoint || !file || !dtype || !out) return tess_error(TESS_INVALID, "export", "an argument is NULL");
    tess_status status = tess_checkpoint_open(checkpoint, open_any, close_checkpoint, &e, &path);
    if (status == TESS_OK) status = tess_model_export_gguf(e.model, file, dtype);
    if (status == TESS_OK) fprintf(out, "the model of %s: %s\n", path, file);
    close_checkpoint(&e);
    return status;
}

tess_status tess_merge(const char *model, const char *adapter, const char *dir, FILE *out)
{
    if (!model || !adapter || !dir || !out)
        return tess_error(TESS_INVALID, "merge", "a directory or the output is NULL");
    TESS_TRY(tess_model_merge(model, adapter, dir));
    fprintf(out, "%s with the adapters of %s: %s\n", model, adapter, dir);
    return TESS_OK;
}
