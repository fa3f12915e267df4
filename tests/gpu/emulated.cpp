/* All CUDA bodies as tess_emulated_<body>, for the CPU; each file in a namespace of its own, since they are compiled
 * apart otherwise. Products are mm.cu's, over an emulated library: emulated_mm.cpp. */
#include "emulated_names.h"

#include "balance_impl.h"
#include "buckets_cuda_impl.h"
#include "conv_impl.h"
#include "cudnn_calls.h"
#include "cudnn_choice.h"
#include "cum_impl.h"
#include "dot_impl.h"
#include "exact.h"
#include "fold_cuda.h"
#include "norm_cuda_impl.h"
#include "product_cuda.h"
#include "reduce.h"
#include "store_cuda.h"
#include "tensor_cores.h"
#include "update_cuda_impl.h"

#include "emulated_bodies.h" /* the build writes it, from graph/ops.def */
