/* What is made of the values of a graph.json while it becomes a graph (build.c). */
#ifndef TESS_BUILD_H
#define TESS_BUILD_H
#include "models/networks/import/import_impl.h"

typedef struct form {
    tess_tensor *t; /* that it is; NULL: none is made yet */
    tess_draft *draft;
    int result, operands;
    tess_nd_operand operand[TESS_ND_OPERANDS];
    int cost; /* steps that compute */
} form;

typedef struct building {
    const tess_import *n;
    tess_graph *g;
    form *form;            /* [value] */
    tess_tensor **state;   /* [value]: its state in the graph */
    tess_tensor **leaf;    /* [value]: of an input or a parameter, as it is fed or kept */
    int *readers, *reader; /* the nodes that read value k: reader[readers[k]] .. reader[readers[k + 1]] */
} building;

/* ---- form.c ---- */

/* The value is nothing yet. */
void tess_form_clear(form *f);
/* The value is this tensor. */
void tess_form_be(form *f, tess_tensor *t, const value *v);
/* It moves elements of one tensor, or is a constant. */
bool tess_form_is_reading(const form *f);
bool tess_form_is_constant(const form *f);
/* All it reads is one tensor of this shape, as it lies; and it is that tensor. */
bool tess_form_reads_same(const form *f, const tess_dims *d);
bool tess_form_is_same(const form *f, const tess_dims *d);
/* The form reads as a space does that goes along its own dimensions so. */
void tess_form_compose(form *f, const tess_nd_reading *by, int old_rank, int rank);
/* Adds what another form computes, and stores its result; false: there is no room. */
bool tess_form_include(form *f, const form *from, int *result);

/* ---- inline.c ---- */

/* Finds who reads what. */
void tess_build_readers(building *b);
/* A value that several read is computed by each of them. */
bool tess_form_is_inlined(const building *b, int v);

/* ---- settle.c ---- */

/* Makes the value a tensor. */
tess_status tess_form_settle(building *b, int k, const node *of) TESS_NODISCARD;
/* Records the last error once more, with the node; returns TESS_INVALID. */
tess_status tess_build_failed(const building *b, const node *of);

/* ---- import_outputs.c ---- */

/* Builds the loss; with the numbers beside it; and with what states become. */
tess_status tess_build_loss(building *b, tess_imported *out) TESS_NODISCARD;
/* Builds the outputs that go by samples. */
tess_status tess_build_made(building *b, tess_imported *out) TESS_NODISCARD;

#endif
