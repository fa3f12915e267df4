/* lion: the update of lion_impl.h, compiled without contraction: the CPU's bits. */
#include "lion_impl.h"
#include "update_cuda_impl.h"

TESS_CUDA_UPDATE(lion, 1, 0)
