/* networks, for the rooms above: what runs and checkpoints need of a model beside what programs may call, which is in
 * tessera_networks.h. What a model is made of is seen in this room alone.
 *
 *     tess_model *m;
 *     TESS_TRY(tess_model_open("gpt2", NULL, &m));
 *     tess_model_store_as(m, TESS_SAVE_BF16);                            // its weights are written in bf16
 *     ... a graph g and its steps, as in tessera_networks.h ...
 *     bool *marked = tess_alloc((size_t)tess_graph_params(g));
 *     TESS_TRY(tess_patterns_mark(m, g, "freeze", "*.bias", marked));    // marked[k]: parameter k is a bias
 *     TESS_TRY(tess_states_begin("step-10", g, m, false, &s));           // all ranks write masters and moments,
 *     TESS_TRY(tess_states_end(s, true));
 *     if (tess_rank() == 0) TESS_TRY(tess_model_save_rest(m, "step-10")); // and one what makes a model of them
 */
#ifndef TESS_NETWORKS_H
#define TESS_NETWORKS_H
#include "graph/graph.h"
#include "models/files/data/arrays.h"
#include "models/files/safetensors/safetensors.h"
#include "models/networks/tessera_networks.h"

/* ---- an open model ----------------------------------------------------------------------------------------------- */

/* How weights are written; config.def has these in this order. */
typedef enum tess_save_dtype { TESS_SAVE_FP32, TESS_SAVE_BF16, TESS_SAVE_FP16 } tess_save_dtype;
/* Sets the dtype in which the weights are written from now on; a new model's are written in fp32. */
void tess_model_store_as(tess_model *m, tess_save_dtype dtype);
/* Returns the dtype that a model's weights have, as its config.json says; fp32 where there are none, and of adapters.
 */
tess_save_dtype tess_model_stored_as(const tess_model *m);
/* Returns the text of the whole config.json, the caller's changes included. It is the model's. */
const char *tess_model_json(const tess_model *m);
/* Returns max_position_embeddings, which limits sequences only where tess_model_positions does; 0: there is none. */
int64_t tess_model_trained_positions(const tess_model *m);
/* Returns whether rotations differ between texts of `length` tokens and short ones (longrope). */
bool tess_model_turns_long(const tess_model *m, int64_t length);
/* Returns whether the model has adapters, which alone are trained then. */
bool tess_model_adapted(const tess_model *m);
/* Returns the directory that the adapters were read from; NULL: there are none, or they are drawn. */
const char *tess_model_adapter_dir(const tess_model *m);
/* Checks what the caller asks for against the adapters that the model has; r, alpha and dropout below 0 are not asked
 * for. A contradiction is TESS_INVALID at `where`. The dropout that is asked for replaces theirs. */
tess_status tess_model_ask_lora(tess_model *m, const char *where, const tess_lora_conf *asked) TESS_NODISCARD;
/* Checks that what was read of a checkpoint so far is whole; it is TESS_INVALID where the run that it is of has removed
 * it meanwhile. */
tess_status tess_model_check(const tess_model *m) TESS_NODISCARD;
/* Returns whether a directory has the configuration of a model or of adapters. */
bool tess_model_there(const char *dir);
/* Returns whether a directory has weights: those of a model, of a checkpoint, or of checkpoints in it. */
bool tess_weights_there(const char *dir);
/* Checks that the states at `path`, which are of the model `then`, mean the same to the model `now`: it has the same
 * parameters and the same arithmetic. With `say` what may differ is noted. */
tess_status tess_model_same(const char *path, const tess_model *then, const tess_model *now, bool say) TESS_NODISCARD;

/* ---- names of parameters ----------------------------------------------------------------------------------------- */

/* Marks the parameters of a graph, [tess_graph_params], whose names match a pattern; the others' marks stay. In a
 * pattern * is any run of letters, ? any one, and 0-11 any number of that range; the prefix that all names of a family
 * begin with may be left out. It is TESS_INVALID at `where` if none matches. */
tess_status tess_patterns_mark(const tess_model *m, const tess_graph *g, const char *where, const char *pattern,
                               bool *marked) TESS_NODISCARD;
/* Marks what each pattern of a list matches: `list` is one pattern, or the JSON text of several, or NULL. */
tess_status tess_patterns_mark_all(const tess_model *m, const tess_graph *g, const char *where, const char *list,
                                   bool *marked) TESS_NODISCARD;

/* ---- states: masters and moments in DIR/states.safetensors, or its shards ---------------------------------------- */

/* Names a part of a parameter as files do, in a new string: NAME, or NAME.exp_avg of a moment. */
char *tess_states_name(const tess_tensor *p, tess_part part);
typedef struct tess_states_writing tess_states_writing;
/* Begins to write the states of all parameters, as they are now, to a directory that is there; of a model with adapters
 * those that are trained alone. `m` NULL: the graph is no model's. With `beside` a thread writes them while the next
 * step runs, whose updates wait for what they are about to change. All ranks call both, and get the same status. */
tess_status tess_states_begin(const char *dir, tess_graph *g, const tess_model *m, bool beside,
                              tess_states_writing **writing) TESS_NODISCARD;
/* Waits until all is written, and gives the files their names; `fine`: no step since has failed. */
tess_status tess_states_end(tess_states_writing *writing, bool fine) TESS_NODISCARD;
/* Reads what was written so, each rank what it holds. A tensor whose values are not those that were
 * written is TESS_INVALID. All ranks call it, and get the same status. */
tess_status tess_states_load(const char *dir, tess_graph *g, const tess_model *m) TESS_NODISCARD;
/* Opens the states in a directory. */
tess_status tess_states_open(const char *path, tess_safetensors **states) TESS_NODISCARD;
/* Reads all states in a directory, without a graph: TESS_INVALID where they cannot be read, or a tensor's values are
 * not those that were written. Rank 0 alone calls it. */
tess_status tess_states_verify(const char *dir) TESS_NODISCARD;
/* Returns true where a directory is a whole checkpoint: it has a state.json, which is written last and goes first. */
bool tess_states_whole(const char *path);

/* Returns whether the files, or the framework that a network was exported from, have a parameter transposed. */
bool tess_model_has_turned(const tess_model *m, const tess_tensor *p);

/* ---- parameters to and from tensors of files, each rank the pieces that it holds, one at a time ------------------ */

/* Waits for the updates that are due, before the first piece is written. All ranks call it, also those that write
 * nothing. */
tess_status tess_pieces_settle(tess_graph *g) TESS_NODISCARD;
/* Writes what this rank is to write of a parameter's part to tensor number `tensor`; a turned one lies there
 * transposed. */
tess_status tess_pieces_write(tess_safetensors_writer *w, size_t tensor, tess_tensor *p, tess_part part,
                              bool turned) TESS_NODISCARD;
/* Sums over the bits of a tensor's values, by which one that is damaged is told: their own, and times their place. They
 * are the same however the values are cut into pieces, and over ranks. */
typedef struct tess_piece_sums {
    uint64_t plain, placed;
} tess_piece_sums;
/* Adds n values that stand in the tensor from number `at` on. */
void tess_piece_sums_add(tess_piece_sums *sums, int64_t at, int64_t n, const float *values);
/* Writes and reads a parameter's part as these do, not turned, and adds to `sums` what this rank is to write of it. */
tess_status tess_pieces_write_summed(tess_safetensors_writer *w, size_t tensor, tess_tensor *p, tess_part part,
                                     tess_piece_sums *sums) TESS_NODISCARD;
/* Stores the shape that a part of a parameter has in files, and returns its rank. */
int tess_part_shape(const tess_tensor *p, tess_part part, int64_t shape[3]);
/* Writes the values of a part of one piece. */
tess_status tess_piece_write(tess_safetensors_writer *w, size_t tensor, const tess_tensor *p, int64_t piece,
                             tess_part part, const float *values, tess_piece_sums *sums) TESS_NODISCARD;
tess_status tess_pieces_read_summed(const tess_safetensor *t, tess_tensor *p, tess_part part,
                                    tess_piece_sums *sums) TESS_NODISCARD;
/* Checks that a file's tensor has that shape, turned or not. */
tess_status tess_pieces_check(const tess_safetensor *t, int rank, const int64_t shape[3], bool turned) TESS_NODISCARD;
/* Reads what this rank holds of a parameter's part, and no more of the file than that. */
tess_status tess_pieces_read(const tess_safetensor *t, tess_tensor *p, tess_part part, bool turned) TESS_NODISCARD;

/* ---- a model's directory ----------------------------------------------------------------------------------------- */

/* Writes what lies beside the weights: config.json, or adapters' own configuration, and the tokenizer. Rank 0 alone
 * calls it. */
tess_status tess_model_save_rest(const tess_model *m, const char *dir) TESS_NODISCARD;
/* Removes that again. */
void tess_model_remove_rest(const char *dir);
/* Returns the name of a file in a directory that makes it a model's or a checkpoint's; NULL: there is none. */
const char *tess_model_file_in(const char *dir);
/* Makes ready to write the model of a checkpoint in the dtype of its run, and writes what lies beside its weights.
 * False in *states: the model is no checkpoint, and nothing was done. */
tess_status tess_model_export_rest(tess_model *m, const char *dir, bool *states) TESS_NODISCARD;
/* Writes the weights of a checkpoint's model, from file to file. */
tess_status tess_model_export_weights(const tess_model *m, const char *dir) TESS_NODISCARD;
/* Writes a model, or a checkpoint's, to a new GGUF file, matrices as dtype (f16, q8_0, bf16 or f32) says. */
tess_status tess_model_export_gguf(const tess_model *m, const char *path, const char *dtype) TESS_NODISCARD;
/* Writes the model of one directory with the adapters of another folded into its weights, from file to file, to a third
 * one, which holds no model yet. */
tess_status tess_model_merge(const char *model, const char *adapter, const char *dir) TESS_NODISCARD;

/* Returns the name of the k-th number that an evaluation makes of a model beside its loss (tess_step_numbers), or one
 * with a loss of pairs. */
const char *tess_model_number_name(const tess_model *m, int preference, int k);

/* ---- exported networks (docs/graph-file.md) ---------------------------------------------------------------------- */

/* Returns how many samples a micro-batch of it has; 0: the model is none, and has any number. */
int64_t tess_model_batch(const tess_model *m);
/* Stores what it is fed with unless NULL, tess_network.input[k] by the k-th array, and returns how many these are. */
int tess_model_arrays(const tess_model *m, tess_array_want *want);
/* Returns how many inputs behind these are keys of random numbers, drawn for each micro-batch. */
int tess_model_keys(const tess_model *m);
/* Stores what the framework found for the batch that came with it: the loss (NULL), the norm of all gradients ("") or
 * of one parameter's; false: that is not there. */
bool tess_model_checks(const tess_model *m, const char *param, double *value);
/* Returns how many outputs beside its loss an exported network names. Stores the k-th as an array of a micro-batch,
 * whose dimensions are the file's, and which of its inputs it is made of; NULL: neither. */
int tess_model_outputs(const tess_model *m, int k, tess_array_want *want, bool *reads);
/* Reads the k-th array of that batch. */
tess_status tess_model_check_batch(const tess_model *m, int input, int32_t *values) TESS_NODISCARD;

#endif
