/* A graph.json that was read: values by number, and nodes in order. */
#ifndef TESS_IMPORT_IMPL_H
#define TESS_IMPORT_IMPL_H
#include "models/networks/import/import.h"
#include <jansson.h>

typedef enum value_kind { VALUE_INPUT, VALUE_PARAM, VALUE_STATE, VALUE_CONST, VALUE_NODE } value_kind;
typedef struct value {
    const char *name; /* without its kind */
    value_kind kind;
    tess_element element;
    tess_dims dims;
    int uses;      /* nodes that read it, and outputs */
    int32_t *data; /* of a constant: its elements */
    int batch;     /* of an input: the dimension of samples; -1: it has none */
    bool bits;     /* of an input: uint32, whose bits are fed as they are */
    bool turned;   /* of a matrix of parameters: it is kept transposed, as products take it */
    int maker;     /* of what a node made: which */
    int becomes;   /* of a state: the value that replaces it after a step; -1: none does */
} value;

enum { NODE_INPUTS = 64 };
typedef struct node {
    const char *op, *at;
    json_t *json; /* borrowed: its attributes */
    int inputs, *in, out;
} node;

struct tess_import {
    char *dir, *file; /* file: of graph.json, for messages */
    json_t *root;
    json_t *number; /* of a value, by its name in the file */
    tess_safetensors *weights;
    value *value;
    int64_t samples; /* of a micro-batch */
    int values, nodes, loss, inputs;
    int keys;                /* inputs behind these, which are keys that a run draws */
    int *number_of, numbers; /* the values of rank 0 that are outputs beside the loss, */
    const char **called;     /* and their names */
    int *output_of, outputs; /* the values of all outputs but the loss, */
    const char **output;     /* and their names */
    node *node;
};

/* Marks the matrices that products take the first dimension of, and nothing else reads (import_patterns.c). */
void tess_import_turn(tess_import *n);
enum { TESS_NO_LAYER = -1, TESS_LAYERS_END = -2 };
/* Returns, for each node, the value that goes into the layer which it begins; or that it is the first behind layers, or
 * neither (layers.c). The caller frees it. */
int *tess_import_layers(const tess_import *n);
/* Returns an input's shape with the samples first, as it is fed. */
tess_dims tess_import_fed(const value *v);
/* Records "FILE: node NAME (OP, AT): what is wrong"; returns TESS_INVALID. */
tess_status tess_import_wrong(const tess_import *n, const node *of, const char *format, ...) TESS_PRINTF(3, 4);
/* Reads a list of whole numbers of at most `most`, or of exactly `exact` where that is not negative. */
tess_status tess_import_list(const tess_import *n, const node *of, const json_t *list, const char *key, int exact,
                             int most, int64_t *out, int *count) TESS_NODISCARD;
tess_status tess_import_ints(const tess_import *n, const node *of, const char *key, int exact, int *out,
                             int *count) TESS_NODISCARD;

#endif
