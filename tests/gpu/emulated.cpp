/* All CUDA bodies as tess_emulated_<body>, for the CPU; each file in a namespace of its own, since they are compiled
 * apart otherwise. Products are mm.cu's, over an emulated library: emulated_mm.cpp. */
#include "tests/gpu/emulated_names.h"

#include "codelets/attention/buckets_cuda_impl.h"
#include "codelets/experts/balance_impl.h"
#include "codelets/generic/cum_impl.h"
#include "codelets/generic/fold_cuda.h"
#include "codelets/generic/products/conv_impl.h"
#include "codelets/generic/products/dot_impl.h"
#include "codelets/generic/store_cuda.h"
#include "codelets/ops/norm_cuda_impl.h"
#include "codelets/optimizers/update_cuda_impl.h"
#include "codelets/products/product_cuda.h"
#include "codelets/shared/cudnn_calls.h"
#include "codelets/shared/cudnn_choice.h"
#include "codelets/shared/exact.h"
#include "codelets/shared/reduce.h"
#include "codelets/shared/tensor_cores.h"

#include "tests/emulated_bodies.h" /* the build writes it, from graph/ops.def */
