/* A driver without a device, for libraries that ask for libcuda.so.1: it takes code and gives a kernel by its name, and
 * all else fails but for one count. So cuDNN goes as far as it does before it runs: it chooses, compiles and loads. */
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

enum { FINE = 0, ABSENT = 34, UNKNOWN = 500 };

/* The name of the kernel that was last asked for. */
char tess_absent_kernel[300];

int cuLibraryLoadData(void **library, const void *code, void *a, void *b, unsigned c, void *d, void *e, unsigned f)
{
    (void)code, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
    *library = tess_absent_kernel;
    return FINE;
}
int cuLibraryGetKernel(void **kernel, void *library, const char *name)
{
    snprintf(tess_absent_kernel, sizeof tess_absent_kernel, "%s", name);
    *kernel = library;
    return FINE;
}
int cuLibraryUnload(void *library)
{
    (void)library;
    return FINE;
}
int cuKernelGetFunction(void **function, void *kernel)
{
    *function = kernel;
    return FINE;
}
int cuKernelSetAttribute(int attribute, int value, void *kernel, int device)
{
    (void)attribute, (void)value, (void)kernel, (void)device;
    return FINE;
}
int cuKernelGetAttribute(int *value, int attribute, void *kernel, int device)
{
    (void)attribute, (void)kernel, (void)device;
    *value = 0;
    return FINE;
}
int cuModuleLoadData(void **module, const void *code)
{
    return cuLibraryLoadData(module, code, NULL, NULL, 0, NULL, NULL, 0);
}
int cuModuleGetFunction(void **function, void *module, const char *name)
{
    return cuLibraryGetKernel(function, module, name);
}
int cuModuleUnload(void *module)
{
    return cuLibraryUnload(module);
}
int cuFuncSetAttribute(void *function, int attribute, int value)
{
    return cuKernelSetAttribute(attribute, value, function, 0);
}
int cuFuncGetAttribute(int *value, int attribute, void *function)
{
    return cuKernelGetAttribute(value, attribute, function, 0);
}
/* bool mb_tools::hasValidVSL(std::array<int, 24> const &), cuDNN's own: the processors of each of a device's groups,
 * for which its description as text has no word. cuDNN counts them by the driver; without a device it takes one group
 * of 18 for all there are, and versions before 9.19 divide by what that leaves, which is 0. These are an H100's. */
_Bool _ZN8mb_tools11hasValidVSLERKSt5arrayIiLm24EE(int *group)
{
    static const int h100[] = {18, 18, 16, 16, 16, 16, 16, 16};
    if (group[0] && !group[1]) memcpy(group, h100, sizeof h100);
    return group[0];
}
int cuGetErrorString(int error, const char **text)
{
    *text = error == FINE ? "no error" : "there is no device";
    return FINE;
}
int cuGetErrorName(int error, const char **text)
{
    return cuGetErrorString(error, text);
}
int cuDriverGetVersion(int *version)
{
    *version = 13000;
    return FINE;
}

/* What is asked for and not wanted. */
#define ALL_ABSENT(f)                                                                                                  \
    f(Init) f(DeviceGet) f(DeviceGetCount) f(DeviceGetAttribute) f(DeviceGetName) f(CtxGetCurrent) f(CtxSetCurrent)    \
        f(CtxGetDevice) f(CtxGetLimit) f(CtxSetLimit) f(CtxPopCurrent) f(CtxPushCurrent) f(CtxSynchronize)             \
            f(StreamGetCtx) f(StreamSynchronize) f(LaunchKernel) f(LaunchKernelEx) f(LaunchCooperativeKernel)          \
                f(LibraryLoadFromFile) f(LibraryGetModule) f(LibraryGetGlobal) f(ModuleLoadDataEx) f(ModuleGetGlobal)  \
                    f(OccupancyMaxPotentialClusterSize) f(OccupancyMaxActiveClusters)                                  \
                        f(OccupancyMaxActiveBlocksPerMultiprocessor) f(LinkCreate) f(LinkAddData) f(LinkAddFile)       \
                            f(LinkComplete) f(LinkDestroy) f(TensorMapEncodeTiled) f(TensorMapEncodeIm2col)            \
                                f(MemAlloc) f(MemFree) f(MemcpyHtoD) f(MemcpyDtoH)
#define IS_ABSENT(name)                                                                                                \
    int cu##name(void)                                                                                                 \
    {                                                                                                                  \
        return ABSENT;                                                                                                 \
    }
ALL_ABSENT(IS_ABSENT)

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    (void)name, (void)version, (void)flags;
    *function = NULL;
    if (status) *status = 1;
    return UNKNOWN;
}
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
