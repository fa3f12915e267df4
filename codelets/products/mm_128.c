/* mm_128: products with vectors of 128 bits, for any CPU. */
#define WIDE 4
#include "codelets/products/mm_kernel_impl.h"

const mm_kernel tess_mm_128 = {KERNEL_ROWS, pack_a, pack_b, multiply};
WIDE_END
