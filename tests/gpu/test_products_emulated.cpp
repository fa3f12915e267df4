/* test_products.cu over the emulated library. */
#include "emulated_names.h"
#include "test_products.cu"
