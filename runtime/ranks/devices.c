/* The GPUs of this machine, before they are divided. A build without nvcc, or with a StarPU that has no CUDA, has none.
 */
#include "devices.h"
#include <starpu_config.h>

#if defined TESS_HAVE_CUDA && defined STARPU_USE_CUDA
#include <cuda_runtime_api.h>

int tess_gpu_devices(void)
{
    int count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess) return 0;
    return count < TESS_MAX_GPUS ? count : TESS_MAX_GPUS;
}

#else

int tess_gpu_devices(void)
{
    return 0;
}
#endif
