/* The CPU as the device: buffers have their very size, so that a sanitizer sees what is beyond. */
#include "tests/gpu/device.h"
#include <stdlib.h>
#include <string.h>

bool device_is_there(void)
{
    return true;
}
const char *device_name(void)
{
    return "emulated on the CPU";
}
void *device_new(size_t bytes)
{
    void *p = NULL;
    if (posix_memalign(&p, 256, bytes ? bytes : 1)) abort();
    return p;
}
void device_free(void *p)
{
    free(p);
}
void device_put(void *device, const void *host, size_t bytes)
{
    memcpy(device, host, bytes);
}
void device_get(void *host, const void *device, size_t bytes)
{
    memcpy(host, device, bytes);
}
void *device_host(size_t bytes)
{
    return device_new(bytes);
}
const char *device_error(void)
{
    return NULL;
}
