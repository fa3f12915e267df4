/* The GPUs of this machine. */
#ifndef TESS_DEVICES_H
#define TESS_DEVICES_H

enum { TESS_MAX_GPUS = 64 };
/* Counts the machine's CUDA devices, up to TESS_MAX_GPUS. */
int tess_gpu_devices(void);
#endif
