/* The tensor dimension: what a rank of it does of a graph. */
#ifndef TESS_TENSOR_H
#define TESS_TENSOR_H
#include "graph/describe/describe.h"

/* Leaves this rank its part of every node (tensor_parallel.c). */
void tess_tensor_split(tess_graph *g);

#endif
