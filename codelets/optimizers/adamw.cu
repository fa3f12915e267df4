/* adamw: the update of adamw_impl.h, compiled without contraction: the CPU's bits. */
#include "adamw_impl.h"
#include "update_cuda_impl.h"

TESS_CUDA_UPDATE(adamw, 2, 1u << 1)
