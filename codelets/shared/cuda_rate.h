/* cuda_rate: what mm.cu's matrix_rate, which is no task's body, finds as its argument: products of size n, and
 * where their flops a second go, and the device. */
#ifndef TESS_CUDA_RATE_H
#define TESS_CUDA_RATE_H
#include "runtime/runtime.h"

typedef struct tess_gpu_rate {
    tess_dtype dtype;
    int64_t n;
    double rate;
    int device; /* as CUDA counts them */
} tess_gpu_rate;
#endif
