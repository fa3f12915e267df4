/* lion: the update of lion_impl.h, compiled without contraction: the CPU's bits. */
#include "codelets/optimizers/lion_impl.h"
#include "codelets/optimizers/update_cuda_impl.h"

TESS_CUDA_UPDATE(lion, 1, 0)
