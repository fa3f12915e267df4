/* The states of a graph's parameters in files: of each parameter the master, and the moments of the optimizer that
 * trains it (NAME.exp_avg and NAME.exp_avg_sq of AdamW), all of (rows, columns), in DIR/states.safetensors or its
 * shards. They are what of a checkpoint a network needs; the rest of one, and how it comes to be whole, is training's
 * (train/checkpoint/checkpoint.h). */
#ifndef TESS_STATES_IMPL_H
#define TESS_STATES_IMPL_H
#include "graph.h"
#include "safetensors.h"

/* Names a part of a parameter as files do, in a new string. */
char *tess_states_name(const tess_tensor *p, tess_part part);
/* Which parameters: adapters are kept without the base beside which they are trained. */
typedef enum tess_states_of_what { TESS_STATES_ALL, TESS_STATES_TRAINED, TESS_STATES_BASE } tess_states_of_what;
/* Writes their states to a directory that is there. All ranks call it, and get the same status. */
tess_status tess_states_write(const char *dir, tess_graph *g, tess_states_of_what of) TESS_NODISCARD;
/* Returns true where a directory is a whole checkpoint: it has a state.json, which is written last and goes first. */
bool tess_states_whole(const char *path);
/* Opens the states in a directory. */
tess_status tess_states_open(const char *path, tess_safetensors **states) TESS_NODISCARD;
/* Opens those of a model's directory: *states is NULL where that is no checkpoint, or was made a model with weights. */
tess_status tess_states_of(const char *path, tess_safetensors **states) TESS_NODISCARD;
/* Reads the first `parts` parts of each parameter, or as many as it has, as far as this rank holds them; `path` is for
 * messages. */
tess_status tess_states_read(const tess_safetensors *states, const char *path, tess_graph *g, int parts,
                             tess_states_of_what of) TESS_NODISCARD;

#endif
