/* test_products.cu over the emulated library. */
#include "tests/gpu/emulated_names.h"
#include "tests/gpu/test_products.cu"
