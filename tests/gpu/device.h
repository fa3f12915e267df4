/* Where the CUDA bodies under test run: a GPU (device_cuda.c), or this CPU (device_emulated.c). */
#ifndef TESS_TESTS_DEVICE_H
#define TESS_TESTS_DEVICE_H
#include <stdbool.h>
#include <stddef.h>

bool device_is_there(void);
const char *device_name(void);
void *device_new(size_t bytes); /* ends the program where there is no memory */
void device_free(void *p);
void device_put(void *device, const void *host, size_t bytes);
void device_get(void *host, const void *device, size_t bytes); /* after all kernels before it */
void *device_host(size_t bytes);                               /* host memory that kernels write */
const char *device_error(void);                                /* of what ran; NULL without */
#endif
