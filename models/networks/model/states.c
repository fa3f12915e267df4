/* The states of a graph's parameters to and from files: of each parameter the master, and the moments of the optimizer
 * that trains it (NAME.exp_avg and NAME.exp_avg_sq of AdamW), all of (rows, columns). They are what of a checkpoint a
 * network needs; the rest of one, and how it comes to be whole, is training's (train/checkpoint/checkpoint.h). */
#include "models/networks/model/model.h"
#include <glob.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

char *tess_states_name(const tess_tensor *p, tess_part part)
{
    const char *moment = tess_param_part_name(p, part);
    return tess_format("%s%s%s", tess_tensor_name(p), moment ? "." : "", moment ? moment : "");
}

const char *tess_lora_part(const char *name)
{
    static const char *const end[] = {TESS_LORA_A, TESS_LORA_B, TESS_LORA_M};
    for (size_t k = 0; k < sizeof end / sizeof *end; k++)
        if (tess_ends(name, end[k])) return end[k];
    return NULL;
}

/* What is not meant has nothing. */
static int parts_of(const tess_tensor *p, tess_states_of_what of)
{
    if (of == TESS_STATES_TRAINED && tess_param_frozen(p)) return 0;
    if (of == TESS_STATES_BASE && tess_lora_part(tess_tensor_name(p))) return 0;
    return tess_param_parts(p);
}

/* ---- writing ---- */

static const tess_safetensors_dtype stored_as[] = {
    [TESS_F32] = TESS_ST_F32, [TESS_BF16] = TESS_ST_BF16, [TESS_F16] = TESS_ST_F16};

/* What a checkpoint holds. */
static tess_states_of_what held(const tess_model *m)
{
    return m && m->lora ? TESS_STATES_TRAINED : TESS_STATES_ALL;
}

tess_status tess_states_write(const char *dir, tess_graph *g, const tess_model *m)
{
    const tess_states_of_what of = held(m);
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, "states", TESS_SAFETENSORS_SHARD);
    const int params = tess_graph_params(g);
    for (int k = 0; k < params; k++)
        for (int part = 0; part < parts_of(tess_graph_param(g, k), of); part++) {
            const tess_tensor *p = tess_graph_param(g, k);
            const tess_safetensors_dtype type = stored_as[tess_param_part_dtype(p, (tess_part)part)];
            int64_t shape[3];
            int rank = tess_tensor_shape(p, shape);
            char *name = tess_states_name(p, (tess_part)part);
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

bool tess_weights_there(const char *dir)
{
    char *steps = tess_format("%s/step-*/state.json", dir);
    glob_t found = {0};
    const bool there = tess_safetensors_in(dir) || tess_states_whole(dir) || !glob(steps, GLOB_NOSORT, NULL, &found);
    globfree(&found);
    free(steps);
    return there;
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
    const bool model = tess_safetensors_in(path); /* somebody made it one */
    *states = NULL;
    return tess_states_whole(path) && !model ? tess_states_open(path, states) : TESS_OK;
}

/* What the model lacks would be lost: each tensor of the checkpoint has a place in it. */
static tess_status check_names(const tess_safetensors *set, const char *path, const tess_graph *g)
{
    for (size_t i = 0; i < tess_safetensors_count(set); i++) {
        const char *name = tess_safetensors_at(set, i)->name, *dot = strrchr(name, '.');
        if (tess_graph_find_param(g, name)) continue;
        char *of = dot ? tess_format("%.*s", (int)(dot - name), name) : NULL; /* a moment's, whatever it is called */
        const bool moment = of && tess_graph_find_param(g, of);
        free(of);
        if (!moment)
            return tess_error(TESS_INVALID, path, "%s is of no parameter here (the checkpoint is of another model)",
                              name);
    }
    return TESS_OK; /* what is missing is named when it is read */
}

static bool has_no_moments(const tess_safetensors *set, const tess_tensor *p)
{
    bool none = true;
    for (int part = TESS_MOMENT1; part < tess_param_parts(p); part++) {
        char *name = tess_states_name(p, (tess_part)part);
        none &= tess_safetensors_find(set, name) == NULL;
        free(name);
    }
    return none;
}

/* Moments that lack are those of a parameter that was frozen: they begin anew. */
static tess_status read_part(const tess_safetensors *set, const char *path, tess_tensor *p, tess_part part)
{
    int64_t shape[3];
    int rank = tess_tensor_shape(p, shape);
    char *name = tess_states_name(p, part);
    const tess_safetensor *t = tess_safetensors_find(set, name);
    tess_status status = TESS_OK;
    if (!t && part != TESS_MASTER && has_no_moments(set, p)) {
        free(name);
        return TESS_OK;
    }
    if (!t || t->rank != rank || t->dims[0] != shape[0] || (rank == 2 && t->dims[1] != shape[1]))
        status = tess_error(TESS_INVALID, path, "%s is %s (the checkpoint is of another model)", name,
                            t ? "of another shape" : "missing");
    free(name);
    return status == TESS_OK ? tess_pieces_read(t, p, part, false) : status;
}

tess_status tess_states_read(const tess_safetensors *states, const char *path, tess_graph *g, int parts,
                             tess_states_of_what of)
{
    tess_status status = check_names(states, path, g);
    for (int k = 0; k < tess_graph_params(g); k++) {
        tess_tensor *p = tess_graph_param(g, k);
        const int there = parts_of(p, of);
        for (int part = 0; part < parts && part < there && status == TESS_OK; part++)
            status = read_part(states, path, p, (tess_part)part);
    }
    return status;
}

tess_status tess_states_load(const char *dir, tess_graph *g, const tess_model *m)
{
    tess_safetensors *states = NULL;
    tess_status status = tess_states_open(dir, &states);
    if (status == TESS_OK) status = tess_states_read(states, dir, g, TESS_PARTS, held(m));
    tess_safetensors_close(states);
    return status;
}
