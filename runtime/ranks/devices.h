/* The GPUs of this machine. */
#ifndef TESS_DEVICES_H
#define TESS_DEVICES_H
#include "runtime/runtime.h"

enum { TESS_MAX_GPUS = 64 };
/* Has CUDA load all kernels at its start, where messages may go by NCCL; before anybody calls CUDA. */
void tess_gpu_load_at_once(void);
/* Counts the machine's CUDA devices, up to TESS_MAX_GPUS. */
int tess_gpu_devices(void);
/* Stores where one of them is on the bus, "0000:07:00.0"; false: CUDA does not. */
bool tess_gpu_device_bus(int device, char *bus, int room);
/* Stores what one of them is called, and returns the bytes of its memory; 0: CUDA does not. */
uint64_t tess_gpu_device_bytes(int device, char *name, int room);
/* Measures what copies reach there; false: there is no memory for it. */
bool tess_gpu_device_copies(int device, tess_gpu_copies *out);
/* Creates the CUDA contexts of n devices, and makes the first the calling thread's device. */
void tess_gpu_device_open(const int *device, int n);
/* Returns the least free memory of these devices. */
uint64_t tess_gpu_device_free(const int *device, int n);
#endif
