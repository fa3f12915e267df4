/* adagrad: the update of adagrad_impl.h, compiled without contraction: the CPU's bits. */
#include "codelets/optimizers/adagrad_impl.h"
#include "codelets/optimizers/update_cuda_impl.h"

TESS_CUDA_UPDATE(adagrad, 1, 1u << 0)
