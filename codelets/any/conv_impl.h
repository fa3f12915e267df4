/* conv: a convolution by oneDNN, where it has fast kernels for it. */
#ifndef TESS_CONV_IMPL_H
#define TESS_CONV_IMPL_H
#include "any.h"
#include "vector.h"

enum { CONV_X, CONV_W, CONV_Y, CONV_TENSORS }; /* what a task has, one of which it writes */

typedef struct conv_library conv_library;

/* Returns how the library does it, which stays, or NULL where it does not. */
conv_library *tess_conv_library(const tess_any_conv_arg *a, int written, tess_dtype in);
size_t tess_conv_library_scratch(const conv_library *c);
int64_t tess_conv_library_parts(const conv_library *c);
void tess_conv_library_run(conv_library *c, const tess_work *w);

#endif
