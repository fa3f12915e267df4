/* dot: how the operands of a product lie, for the bodies that make it. */
#ifndef TESS_DOT_IMPL_H
#define TESS_DOT_IMPL_H
#include "codelets/generic.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DOT_BATCH, DOT_ROWS, DOT_COLUMNS, DOT_INNER }; /* kinds of dimensions */

/* One operand of the product of one batch: `by` strides of its (up, across) dimensions. */
typedef struct dot_operand {
    const int64_t *dim[2], *by[2];
    int rank[2];
    int64_t size[2];
    bool is_matrix, turned; /* turned: its dimension `up` is the dense one */
    int64_t ld;
} dot_operand;

typedef struct dot {
    dot_operand a, b, c;
    tess_dtype in;
    const tess_any_dot_arg *arg;
} dot;
dot tess_dot_of(const tess_any_dot_arg *a, tess_dtype in);

#ifdef __cplusplus
}
#endif

#endif
