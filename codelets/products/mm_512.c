/* mm_512: products with vectors of 512 bits, for CPUs with AVX-512 that are to have the bits of those without. */
#ifdef __x86_64__
#define WIDE 16
#include "codelets/products/mm_kernel_impl.h"

const mm_kernel tess_mm_512 = {KERNEL_ROWS, pack_a, pack_b, multiply};
WIDE_END
#endif
