/* conv: a convolution as products of patches, and by oneDNN, where it has fast kernels for it. */
#ifndef TESS_CONV_IMPL_H
#define TESS_CONV_IMPL_H
#include "codelets/generic.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CONV_CHANNEL = TESS_CONV_SPACE };
enum { CONV_X, CONV_W, CONV_Y, CONV_TENSORS }; /* the tensors of a task, which writes one of them */

/* A matrix (up, across), stored in rows or, turned, in columns. */
typedef struct conv_matrix {
    char *at;
    tess_dtype t;
    int64_t ld;
    bool turned;
} conv_matrix;
/* Patches of x, one for each position of y, are the columns of a matrix q (depth, positions). */
typedef struct conv_shape {
    int64_t positions, depth; /* of y, of a patch */
    /* The dimensions of a patch, as w has them, CONV_CHANNEL the channels; and their sizes. */
    int order[TESS_CONV_SPACE + 1];
    int64_t dim[TESS_CONV_SPACE + 1];
    conv_matrix of_w, of_y, of_q; /* of the first sample and group; of_q where x is q */
    bool direct, rows;            /* x is q; patches are rows: channels are the dense dimension of x */
} conv_shape;
/* False where it cannot be done so. */
bool tess_conv_shape(const tess_any_conv_arg *a, conv_shape *s);

typedef struct conv_library conv_library;

/* Returns how the library does it, which stays, or NULL where it does not. */
conv_library *tess_conv_library(const tess_any_conv_arg *a, int written, tess_dtype in);
size_t tess_conv_library_scratch(const conv_library *c);
int64_t tess_conv_library_parts(const conv_library *c);
void tess_conv_library_run(conv_library *c, const tess_work *w);

#ifdef __cplusplus
}
#endif

#endif
