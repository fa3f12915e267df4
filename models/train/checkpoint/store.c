/* A graph of a program's own, to files and back: weights as safetensors, and checkpoints from which it goes on bit for
 * bit. What the models of models.def have beside, config.json and tokenizer, a program keeps itself. */
#include "models/networks/networks.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/train.h"
#include <errno.h>
#include <string.h>

/* Parameters' names become those of tensors, with what a checkpoint adds: each is another one, and text. */
static tess_status check_names(const tess_graph *g, bool states)
{
    if (!g) return tess_error(TESS_INVALID, "graph", "is NULL");
    if (tess_graph_params(g) == 0) return tess_error(TESS_INVALID, "graph", "has no parameters");
    for (int k = 0; k < tess_graph_params(g); k++) {
        const char *name = tess_tensor_name(tess_graph_param(g, k));
        TESS_FREED_JSON json_t *text = json_string(name);
        const bool valid = text && name[0] && strlen(name) < 480 && strcmp(name, "__metadata__");
        if (!valid)
            return tess_error(TESS_INVALID, "graph",
                              "a parameter's name cannot be a tensor's: \"%.60s\" (expected up "
                              "to 479 bytes of UTF-8)",
                              name);
        const tess_tensor *p = tess_graph_param(g, k);
        for (int part = TESS_MOMENT1; part < tess_param_parts(p) && states; part++) {
            TESS_FREED char *taken = tess_states_name(p, (tess_part)part);
            const bool twice = tess_graph_find_param(g, taken);
            if (twice) tess_error(TESS_INVALID, taken, "is a parameter's name and that of the moments of %s", name);
            if (twice) return TESS_INVALID;
        }
    }
    return TESS_OK;
}

/* Rank 0 makes it. Then all agree. */
static tess_status make(const char *dir)
{
    tess_status status = TESS_OK;
    if (!dir)
        status = tess_error(TESS_INVALID, "graph", "the directory to save to is NULL");
    else if (tess_rank() == 0 && !tess_dirs_make(dir, NULL))
        status = tess_error(TESS_FAILED, dir, "cannot be made: %s", strerror(errno));
    return tess_ranks_agree(status);
}

/* ---- weights ---- */

static tess_status save(tess_graph *g, const char *dir)
{
    TESS_TRY(check_names(g, false));
    TESS_TRY(tess_graph_together(g));
    TESS_TRY(make(dir));
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "model", TESS_SAFETENSORS_SHARD);
    for (int k = 0; k < tess_graph_params(g); k++) {
        int64_t shape[3];
        int rank = tess_tensor_shape(tess_graph_param(g, k), shape);
        tess_safetensors_declare(w, tess_tensor_name(tess_graph_param(g, k)), TESS_F32, rank, shape);
    }
    tess_status status = tess_safetensors_writer_begin(w);
    if (status == TESS_OK) status = tess_pieces_settle(g);
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++)
        status = tess_pieces_write(w, (size_t)k, tess_graph_param(g, k), TESS_MASTER, false);
    return tess_safetensors_writer_end(w, status);
}

tess_status tess_graph_save(tess_graph *g, const char *dir)
{
    return tess_ranks_agree(save(g, dir));
}

static tess_status load_param(const tess_safetensors *set, const char *path, tess_tensor *p)
{
    int64_t shape[3];
    const int rank = tess_tensor_shape(p, shape);
    const tess_safetensor *t = tess_safetensors_find(set, tess_tensor_name(p));
    if (!t) return tess_error(TESS_INVALID, path, "no tensor %s, which is a parameter", tess_tensor_name(p));
    TESS_TRY(tess_pieces_check(t, rank, shape, false));
    return tess_pieces_read(t, p, TESS_MASTER, false);
}

static tess_status load(const char *path, tess_graph *g)
{
    tess_safetensors *set;
    TESS_TRY(check_names(g, false));
    if (!path) return tess_error(TESS_INVALID, "graph", "the path to load from is NULL");
    TESS_TRY(tess_safetensors_open(path, &set));
    tess_status status = TESS_OK;
    for (size_t i = 0; i < tess_safetensors_count(set) && status == TESS_OK; i++) {
        const tess_safetensor *t = tess_safetensors_at(set, i);
        if (!tess_graph_find_param(g, t->name))
            status = tess_error(TESS_INVALID, t->file, "tensor %s is no parameter of the graph", t->name);
    }
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++)
        status = load_param(set, path, tess_graph_param(g, k));
    tess_safetensors_close(set);
    return status;
}

tess_status tess_graph_load(tess_graph *g, const char *path)
{
    tess_status status = tess_ranks_agree(load(path, g));
    if (status == TESS_OK) status = tess_graph_round(g);
    return tess_ranks_agree(status);
}

/* ---- checkpoints ---- */

static tess_status checkpoint(tess_graph *g, const char *dir, int64_t keep, const tess_position *at)
{
    TESS_TRY(check_names(g, true));
    if (!at || at->step < 0 || keep < 1)
        return tess_error(TESS_INVALID, "checkpoint", "step %lld, %lld to keep (expected 0 or more, and 1 or more)",
                          at ? (long long)at->step : -1, (long long)keep);
    TESS_TRY(make(dir));
    const tess_progress p = {.step = at->step, .samples = at->samples, .seed = at->seed};
    return tess_checkpoint_save(&(tess_checkpoint_conf){.dir = dir, .keep = keep}, NULL, g, &p);
}

tess_status tess_graph_checkpoint(tess_graph *g, const char *dir, int64_t keep, const tess_position *at)
{
    return tess_ranks_agree(checkpoint(g, dir, keep, at));
}

/* Rank 0 looks, and tells the others. */
static tess_status look(const tess_graph *g, const char *dir, tess_progress *p, bool *found)
{
    int moments;
    const char *optimizer = tess_graph_optimizer(g, &moments);
    *found = false;
    if (tess_rank()) return TESS_OK;
    TESS_TRY(tess_checkpoint_find(dir, p, found));
    return *found ? tess_checkpoint_same_optimizer(dir, p, optimizer, moments) : TESS_OK;
}

static tess_status resume(tess_graph *g, const char *dir, tess_position *at, bool *found)
{
    struct {
        tess_progress at;
        bool found;
    } seen = {.found = false};
    TESS_TRY(check_names(g, true));
    if (!dir || !at || !found) return tess_error(TESS_INVALID, "checkpoint", "dir, at or found is NULL");
    *found = false;
    TESS_TRY(tess_ranks_agree(look(g, dir, &seen.at, &seen.found)));
    tess_ranks_tell(&seen, sizeof seen);
    if (!seen.found) return TESS_OK;
    TESS_TRY(tess_checkpoint_load(dir, seen.at.step, NULL, g));
    *found = true;
    *at = (tess_position){.step = seen.at.step, .samples = seen.at.samples, .seed = seen.at.seed};
    return TESS_OK;
}

tess_status tess_graph_resume(tess_graph *g, const char *dir, tess_position *at, bool *found)
{
    return tess_ranks_agree(resume(g, dir, at, found));
}
