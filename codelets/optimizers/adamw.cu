/* adamw: the update of adamw_impl.h, compiled without contraction: the CPU's bits. */
#include "codelets/optimizers/adamw_impl.h"
#include "codelets/optimizers/update_cuda_impl.h"

TESS_CUDA_UPDATE(adamw, 2, 1u << 1)
