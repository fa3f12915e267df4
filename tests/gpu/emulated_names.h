/* emulated_names: CUDA bodies that are compiled for the CPU have names of their own, beside those for a GPU. */
#ifndef TESS_TESTS_EMULATED_NAMES_H
#define TESS_TESTS_EMULATED_NAMES_H
#define TESS_EMULATED
#define TESS_CUDA_NAME(body) tess_emulated_##body
#define tess_cuda_mm_run     tess_emulated_mm_run
#define tess_cuda_mm_gelu    tess_emulated_mm_gelu
#define tess_cuda_mm_slope   tess_emulated_mm_slope
#define tess_cuda_check      tess_emulated_check
#endif
