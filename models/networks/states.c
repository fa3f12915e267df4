/* States to and from files, see states_impl.h. */
#include "lora_impl.h"
#include "pieces_impl.h"
#include "states_impl.h"
#include <stdlib.h>
#include <unistd.h>

const char *const tess_states_suffix[TESS_PARTS] = {"", ".exp_avg", ".exp_avg_sq"};

/* What is frozen has no moments; what is not meant has nothing. */
static int parts_of(const tess_tensor *p, tess_states_of_what of)
{
    const bool frozen = tess_param_frozen(p);
    if (of == TESS_STATES_TRAINED ? frozen : of == TESS_STATES_BASE && tess_lora_is_part(tess_tensor_name(p))) return 0;
    return frozen ? TESS_MASTER + 1 : TESS_PARTS;
}

/* ---- writing ---- */

tess_status tess_states_write(const char *dir, tess_graph *g, tess_states_of_what of)
{
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "states", TESS_SAFETENSORS_SHARD);
    const int params = tess_graph_params(g);
    for (int k = 0; k < params; k++)
        for (int part = 0; part < parts_of(tess_graph_param(g, k), of); part++) {
            const tess_tensor *p = tess_graph_param(g, k);
            const tess_safetensors_dtype type = tess_param_dtype(p) == TESS_BF16 ? TESS_ST_BF16 : TESS_ST_F32;
            int64_t shape[3];
            int rank = tess_tensor_shape(p, shape);
            char *name = tess_format("%s%s", tess_tensor_name(p), tess_states_suffix[part]);
            tess_safetensors_declare_floats(w, name, type, rank, shape);
            free(name);
        }
    tess_status status = tess_safetensors_writer_begin(w);
    if (status == TESS_OK) status = tess_pieces_settle(g);
    size_t tensor = 0;
    for (int k = 0; k < params; k++)
        for (int part = 0; part < parts_of(tess_graph_param(g, k), of) && status == TESS_OK; part++)
            status = tess_pieces_write(w, tensor++, tess_graph_param(g, k), (tess_part)part, false);
    return tess_safetensors_writer_end(w, status);
}

/* ---- reading ---- */

bool tess_states_whole(const char *path)
{
    char *file = tess_format("%s/state.json", path);
    const bool whole = access(file, F_OK) == 0;
    free(file);
    return whole;
}

tess_status tess_states_open(const char *path, tess_safetensors **states)
{
    char *one = tess_format("%s/states.safetensors", path);
    char *index = tess_format("%s/states.safetensors.index.json", path);
    tess_status status = tess_safetensors_open(access(one, F_OK) ? index : one, states);
    free(one);
    free(index);
    return status;
}

tess_status tess_states_of(const char *path, tess_safetensors **states)
{
    char *one = tess_format("%s/model.safetensors", path), *index = tess_format("%s.index.json", one);
    const bool model = access(one, F_OK) == 0 || access(index, F_OK) == 0; /* somebody made it one */
    free(one);
    free(index);
    *states = NULL;
    return tess_states_whole(path) && !model ? tess_states_open(path, states) : TESS_OK;
}

static void name_of(const tess_tensor *p, tess_part part, char name[static 512])
{
    snprintf(name, 512, "%s%s", tess_tensor_name(p), tess_states_suffix[part]);
}

static const tess_safetensor *find(const tess_safetensors *set, const tess_tensor *p, tess_part part)
{
    char name[512];
    name_of(p, part, name);
    return tess_safetensors_find(set, name);
}

/* What the model lacks would be lost: each tensor of the checkpoint has a place in it. */
static tess_status check_count(const tess_safetensors *set, const char *path, const tess_graph *g)
{
    size_t have = 0, met = tess_safetensors_count(set);
    for (int k = 0; k < tess_graph_params(g); k++)
        for (int part = 0; part < TESS_PARTS; part++)
            have += find(set, tess_graph_param(g, k), (tess_part)part) != NULL;
    if (met <= have) return TESS_OK; /* what is missing is named when it is read */
    return tess_error(TESS_INVALID, path,
                      "has %zu tensors, %zu of them of this model (the checkpoint is of another model)", met, have);
}

/* Moments that lack are those of a parameter that was frozen: they begin anew. */
static tess_status read_part(const tess_safetensors *set, const char *path, tess_tensor *p, tess_part part)
{
    int64_t shape[3];
    int rank = tess_tensor_shape(p, shape);
    char name[512];
    name_of(p, part, name);
    const tess_safetensor *t = find(set, p, part);
    if (!t && part != TESS_MASTER && !find(set, p, TESS_MOMENT1) && !find(set, p, TESS_MOMENT2)) return TESS_OK;
    if (!t || t->rank != rank || t->dims[0] != shape[0] || (rank == 2 && t->dims[1] != shape[1]))
        return tess_error(TESS_INVALID, path, "%s is %s (the checkpoint is of another model)", name,
                          t ? "of another shape" : "missing");
    return tess_pieces_read(t, p, part, false);
}

tess_status tess_states_read(const tess_safetensors *states, const char *path, tess_graph *g, int parts,
                             tess_states_of_what of)
{
    tess_status status = check_count(states, path, g);
    for (int k = 0; k < tess_graph_params(g); k++)
        for (int part = 0; part < parts && part < parts_of(tess_graph_param(g, k), of) && status == TESS_OK; part++)
            status = read_part(states, path, tess_graph_param(g, k), (tess_part)part);
    return status;
}
