/* adagrad: the update of adagrad_impl.h, compiled without contraction: the CPU's bits. */
#include "adagrad_impl.h"
#include "update_cuda_impl.h"

TESS_CUDA_UPDATE(adagrad, 1, 1u << 0)
