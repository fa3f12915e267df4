/* What ranks of the tensor dimension can share out together: found by regions.c, cut by tensor_parallel.c. */
#ifndef TESS_REGIONS_IMPL_H
#define TESS_REGIONS_IMPL_H
#include "graph/describe/param.h"
#include "graph/lower/tensor/tensor.h"

typedef struct tess_region {
    const tess_graph *g;
    tess_split *of;        /* [tensor]: how the ranks have it; no runs: it is outside */
    tess_splits **node;    /* [node]: how it has its tensors; NULL: it is outside */
    bool *before, *behind; /* [node]: matrices whose rows, or columns, the ranks share out */
    int *reads;            /* [tensor]: how often its nodes read what all ranks have, and make a part of its gradient */
    int64_t exact;         /* units that a node of it insists on; 0: none does */
    int64_t lengths;       /* what runs have in common */
    bool any;              /* tensors of any rank are in it */
    bool across;           /* it may have nodes of several blocks */
    bool fits;
    int runs;      /* if it does not: a number of runs side by side at its beginning that might do */
    char why[160]; /* the reason why it does not */
} tess_region;

/* Finds the region of a tensor that is sharded as `is`; the caller frees it. */
tess_region tess_region_of(tess_graph *g, const tess_tensor *t, const tess_split *is);
void tess_region_free(tess_region *r, int nodes);
/* Returns how many units it has; 0: it cannot be shared out, and says why. */
int64_t tess_region_units(tess_region *r);
static inline bool tess_is_matrix(const tess_node *n)
{
    return n->op->columns == TESS_COLUMNS_MATRIX;
}
/* Returns how many tensors lie side by side in what a node reads, see tess_units. */
static inline int tess_beside_of(const tess_node *n, int64_t units, int64_t width[TESS_MOST_BESIDE])
{
    return n->op->units.beside ? n->op->units.beside(n, units, width) : 1;
}
/* Returns how often nodes read a tensor. */
int tess_uses_of(const tess_graph *g, const tess_tensor *t);
/* Returns the dimensions of a tensor, and stores how many. */
const int64_t *tess_dims_of(const tess_tensor *t, int *rank);

/* Divides the rows of activations that are not sharded over the tensor dimension (sequence parallelism, divide.c). */
void tess_tensor_divide(tess_graph *g);
/* Inserts a node of one input at index `at`; its output is a copy of the input, for the caller to change. */
tess_node *tess_node_insert(tess_graph *g, int at, const tess_op *op, tess_tensor *in, int block);
/* The ends of a region whose columns ranks share out (enter_leave.c). */
extern const tess_op tess_op_enter, tess_op_leave;

#endif
