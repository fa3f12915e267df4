/* mm.cu for the CPU: its own source, over the library of emulated_lt.cpp. */
#include "tests/gpu/emulated_names.h" /* first */

#include "codelets/products/mm.cu"
