/* cudnn: as much of cuDNN's C backend as sdpa_impl.h calls. The library is looked for when attention on a GPU is first
 * asked for, and no build needs it or its header: what the header says is written down here, where it has one number
 * in all of version 9 (tests/gpu/test_cudnn.cpp compares, where there is a header). */
#ifndef TESS_CUDNN_IMPL_H
#define TESS_CUDNN_IMPL_H
#include "cuda.h"
#ifdef TESS_EMULATED
#include "emulated_runtime.h"
#endif
#include "cudnn_names_impl.h"
#include <dlfcn.h>
#include <pthread.h>

typedef struct dnn_context *dnn_handle;
typedef void *dnn_descriptor;

typedef size_t dnn_GetVersion_f(void);
typedef const char *dnn_GetErrorString_f(int status);
typedef int dnn_Create_f(dnn_handle *handle);
typedef int dnn_Destroy_f(dnn_handle handle);
typedef int dnn_SetStream_f(dnn_handle handle, cudaStream_t stream);
typedef int dnn_BackendCreateDescriptor_f(int type, dnn_descriptor *made);
typedef int dnn_BackendDestroyDescriptor_f(dnn_descriptor d);
typedef int dnn_BackendFinalize_f(dnn_descriptor d);
typedef int dnn_BackendSetAttribute_f(dnn_descriptor d, int name, int type, int64_t n, const void *values);
typedef int dnn_BackendGetAttribute_f(dnn_descriptor d, int name, int type, int64_t room, int64_t *n, void *values);
typedef int dnn_BackendExecute_f(dnn_handle handle, dnn_descriptor plan, dnn_descriptor variant);

#define DNN_EACH(f)                                                                                                    \
    f(GetVersion) f(GetErrorString) f(Create) f(Destroy) f(SetStream) f(BackendCreateDescriptor)                       \
        f(BackendDestroyDescriptor) f(BackendFinalize) f(BackendSetAttribute) f(BackendGetAttribute) f(BackendExecute)
static struct {
    char lack[300];
#define DNN_FIELD(f) dnn_##f##_f *f;
    DNN_EACH(DNN_FIELD)
} dnn;

#ifndef DNN_SONAME
#ifdef TESS_EMULATED
#define DNN_SONAME NULL /* the program itself, where dlsym finds the emulated ones */
#else
#define DNN_SONAME "libcudnn.so.9"
#endif
#endif
/* The oldest whose plans for these graphs were made, for each generation of GPUs (docs/decisions/0010-cuda.md). */
enum { DNN_LEAST = 91000 };

static void dnn_load(void)
{
    void *library = dlopen(DNN_SONAME, RTLD_NOW | RTLD_LOCAL);
    bool all = library;
#define DNN_FIND(f) all = all && (dnn.f = (dnn_##f##_f *)dlsym(library, "cudnn" #f));
    DNN_EACH(DNN_FIND)
    if (!all)
        snprintf(dnn.lack, sizeof dnn.lack, "%s", dlerror());
    else if (dnn.GetVersion() < DNN_LEAST)
        snprintf(dnn.lack, sizeof dnn.lack, "cuDNN is of version %zu (expected %d or newer)", dnn.GetVersion(),
                 DNN_LEAST);
}

/* NULL, or why there is none. */
static const char *dnn_lack(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, dnn_load);
    return dnn.lack[0] ? dnn.lack : NULL;
}

#endif
