/* mm_256: products with vectors of 256 bits, for CPUs with AVX2. */
#ifdef __x86_64__
#define WIDE 8
#include "codelets/products/mm_kernel_impl.h"

const mm_kernel tess_mm_256 = {KERNEL_ROWS, pack_a, pack_b, multiply};
WIDE_END
#endif
