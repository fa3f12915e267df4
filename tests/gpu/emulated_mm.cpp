/* mm.cu for the CPU: its own source, over the library of emulated_lt.cpp. */
#include "emulated_names.h"
#include "mm.cu"
