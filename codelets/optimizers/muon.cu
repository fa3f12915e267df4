/* muon: the updates of muon_impl.h, compiled without contraction: the CPU's bits. */
#include "codelets/optimizers/muon_impl.h"
#include "codelets/optimizers/update_cuda_impl.h"

TESS_CUDA_UPDATE(muon, 1, 0)
TESS_CUDA_UPDATE(muon_apply, 0, 0)
