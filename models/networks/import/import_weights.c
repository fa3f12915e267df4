/* The parameters of an imported network from and to weights.safetensors: all ranks read and write, each the pieces that
 * it holds. A tensor of any rank is there the matrix that the parameter is: its first dimension, and all others. */
#include "models/networks/import/import_impl.h"
#include "models/networks/model/model.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

/* The parameter or state that a tensor of the graph, and of the file, is. */
static const value *value_of(const tess_import *n, const tess_tensor *p)
{
    const char *name = tess_tensor_name(p);
    const value_kind kind = tess_param_is_state(p) ? VALUE_STATE : VALUE_PARAM;
    if (kind == VALUE_STATE) name += strlen("state:");
    for (int k = 0; k < n->values; k++)
        if (n->value[k].kind == kind && !strcmp(n->value[k].name, name)) return &n->value[k];
    return NULL;
}

static tess_status load_param(const tess_import *n, tess_tensor *p)
{
    const value *v = value_of(n, p);
    const tess_safetensor *t = n->weights ? tess_safetensors_find(n->weights, tess_tensor_name(p)) : NULL;
    if (!v || !t) return tess_import_wrong(n, NULL, "weights.safetensors has no tensor %.100s", tess_tensor_name(p));
    bool same = t->rank == v->dims.rank;
    for (int d = 0; same && d < t->rank; d++) same = t->dims[d] == v->dims.dim[d];
    if (!same)
        return tess_import_wrong(n, NULL, "%.100s has another shape in weights.safetensors", tess_tensor_name(p));
    tess_safetensor matrix = *t;
    matrix.rank = 2;
    matrix.dims[0] = v->dims.rank ? v->dims.dim[0] : 1;
    matrix.dims[1] = t->elements / matrix.dims[0];
    return tess_pieces_read(&matrix, p, TESS_MASTER, v->turned);
}

static tess_status load(const tess_import *n, tess_graph *g)
{
    for (int k = 0; k < tess_graph_params(g); k++) TESS_TRY(load_param(n, tess_graph_param(g, k)));
    return TESS_OK;
}

tess_status tess_import_load(const tess_import *n, tess_graph *g)
{
    return load(n, g);
}

/* ---- saving ---- */

/* A constant, in the file as it was read. */
static bool is_constant(const tess_safetensor *t)
{
    return !strncmp(t->name, "const:", 6);
}

static tess_safetensors_writer *writer_of(const tess_import *n, const tess_graph *g, const char *dir)
{
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "weights", UINT64_MAX);
    for (int k = 0; k < tess_graph_params(g); k++) {
        const tess_tensor *p = tess_graph_param(g, k);
        const value *v = value_of(n, p);
        tess_safetensors_declare(w, tess_tensor_name(p), TESS_F32, v->dims.rank, v->dims.dim);
    }
    for (size_t i = 0; n->weights && i < tess_safetensors_count(n->weights); i++)
        if (is_constant(tess_safetensors_at(n->weights, i)))
            tess_safetensors_declare_like(w, tess_safetensors_at(n->weights, i));
    return w;
}

static tess_status write_all(const tess_import *n, tess_graph *g, tess_safetensors_writer *w)
{
    size_t next = 0;
    TESS_TRY(tess_pieces_settle(g));
    for (int k = 0; k < tess_graph_params(g); k++)
        TESS_TRY(tess_pieces_write(w, next++, tess_graph_param(g, k), TESS_MASTER,
                                   value_of(n, tess_graph_param(g, k))->turned));
    for (size_t i = 0; n->weights && tess_rank() == 0 && i < tess_safetensors_count(n->weights); i++) {
        const tess_safetensor *t = tess_safetensors_at(n->weights, i);
        const int64_t rows = t->rank ? t->dims[0] : 1;
        if (is_constant(t)) TESS_TRY(tess_safetensors_write(w, next++, 0, rows, 0, t->elements / rows, t->data));
    }
    return TESS_OK;
}

static tess_status begin_directory(const tess_import *n, const char *dir)
{
    if (mkdir(dir, 0777) && errno != EEXIST) return tess_error(TESS_FAILED, dir, "cannot be made: %s", strerror(errno));
    TESS_FREED char *to = tess_format("%s/graph.json", dir);
    return tess_copy_file(n->file, to);
}

tess_status tess_import_save(const tess_import *n, tess_graph *g, const char *dir)
{
    TESS_TRY(tess_ranks_agree(tess_rank() == 0 ? begin_directory(n, dir) : TESS_OK));
    tess_safetensors_writer *w = writer_of(n, g, dir);
    tess_status status = tess_safetensors_writer_begin(w);
    if (status == TESS_OK) status = write_all(n, g, w);
    return tess_ranks_agree(tess_safetensors_writer_end(w, status));
}
