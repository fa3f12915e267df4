/* import: networks of any kind from a directory with graph.json and weights.safetensors (docs/graph-file.md).
 *
 *     tess_import *net;
 *     TESS_TRY(tess_import_open("my-net", &net));
 *     TESS_TRY(tess_import_build(net, g, 0));             // inputs, parameters, ops and the loss
 *     step of tess_import_output(net), inputs fed in the order of tess_import_input(net, 0), ...
 *     TESS_TRY(tess_import_load(net, g));
 */
#ifndef TESS_IMPORT_H
#define TESS_IMPORT_H
#include "graph/nd.h"
#include "models/networks/networks.h"

typedef struct tess_import tess_import;

/* Reads and checks a directory; every mistake is TESS_INVALID with the node and the place in the user's program. */
tess_status tess_import_open(const char *dir, tess_import **net) TESS_NODISCARD;
void tess_import_close(tess_import *n);
/* Returns whether a directory has a graph.json. */
bool tess_import_there(const char *dir);

/* An input: its shape has the samples first, whichever dimension of the network's they are. */
typedef struct tess_import_input {
    const char *name;
    tess_element element;
    tess_dims dims;
    bool whole; /* it has none, and is fed once for each micro-batch */
    bool bits;  /* it is uint32, fed as an int32 of the same bits */
} tess_import_input;
int tess_import_inputs(const tess_import *n);
/* Returns how many there are behind these that are keys of random numbers, which a run draws for each micro-batch. */
int tess_import_keys(const tess_import *n);
tess_import_input tess_import_input_of(const tess_import *n, int k);
/* Returns how many samples a micro-batch has. */
int64_t tess_import_batch(const tess_import *n);

/* Returns how many numbers the network makes beside its loss, and the name of one. */
const char *tess_import_number_name(const tess_import *n, int k);

/* What was built of it in a graph. */
typedef struct tess_imported {
    tess_tensor *output;   /* the loss, which takes the states along */
    tess_tensor *measured; /* the same with those numbers, and without the states */
    tess_tensor **input;   /* one for each input, and */
    tess_tensor **made;    /* one for each output, NULL where it is not by samples; free() both */
} tess_imported;
/* Describes the network in a graph of fp32, with row tiles of `samples` samples; 0: the usual number. */
tess_status tess_import_build(const tess_import *n, tess_graph *g, int64_t samples, tess_imported *out) TESS_NODISCARD;
/* Reads the parameters of a graph that it was described in, each rank what it holds. */
tess_status tess_import_load(const tess_import *n, tess_graph *g) TESS_NODISCARD;
/* Writes graph.json and weights.safetensors with the parameters as they are. All ranks call it. */
tess_status tess_import_save(const tess_import *n, tess_graph *g, const char *dir) TESS_NODISCARD;

/* What the framework found for the batch that it was exported with; false: it is not there. */
typedef struct tess_import_check {
    double loss, grad_norm;
} tess_import_check;
bool tess_import_checks(const tess_import *n, tess_import_check *check);
/* Stores the norm of a parameter's gradient; false: it is not there. */
bool tess_import_gradient(const tess_import *n, const char *param, double *norm);
/* Reads an input of that batch, as a step is fed. */
tess_status tess_import_batch_of(const tess_import *n, int input, int32_t *values) TESS_NODISCARD;

/* ---- as a model (import_model.c) ---- */

extern const struct tess_family tess_family_import; /* what it says in the place of a family */
/* Returns what tells networks apart, a JSON object in a new string. */
char *tess_import_summary(const tess_import *n);
tess_status tess_import_network(const tess_model *m, tess_graph *g, const tess_build *b,
                                tess_network *net) TESS_NODISCARD;
/* Writes what beside its parameters makes a directory the network's. */
tess_status tess_import_save_rest(const tess_import *n, const char *dir) TESS_NODISCARD;

#endif
