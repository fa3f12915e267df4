/* cublas: cublasLt for mm.cu. The library is looked for when the first product is wanted: loaded, it takes
 * 150 MiB of RAM before anything is multiplied, and a process without a GPU multiplies nothing with it. */
#ifndef TESS_CUBLAS_IMPL_H
#define TESS_CUBLAS_IMPL_H
#include "codelets/shared/kernels.h"
#ifdef TESS_EMULATED
#include "tests/gpu/emulated_lt.h"
#else
#include <cublasLt.h>
#endif
#include <dlfcn.h>
#include <pthread.h>

#define LT_TEXT(x) #x
#ifdef TESS_EMULATED
#define LT_SONAME(of) NULL /* the program itself, where dlsym finds the emulated ones */
#else
#define LT_SONAME(of) "libcublasLt.so." LT_TEXT(of)
#endif

#define LT_EACH(f)                                                                                                     \
    f(Create) f(Destroy) f(GetStatusString) f(Matmul) f(MatmulAlgoGetHeuristic) f(MatmulDescCreate)                    \
        f(MatmulDescDestroy) f(MatmulDescSetAttribute) f(MatmulPreferenceCreate) f(MatmulPreferenceDestroy)            \
            f(MatmulPreferenceSetAttribute) f(MatrixLayoutCreate) f(MatrixLayoutDestroy) f(MatrixLayoutSetAttribute)
static struct {
    char lack[300];
#define LT_FIELD(f) decltype(cublasLt##f) *f;
    LT_EACH(LT_FIELD)
} lt;

static void lt_load(void)
{
    void *library = dlopen(LT_SONAME(CUBLAS_VER_MAJOR), RTLD_NOW | RTLD_LOCAL);
    bool all = library;
#define LT_FIND(f) all = all && (lt.f = (decltype(lt.f))dlsym(library, "cublasLt" #f));
    LT_EACH(LT_FIND)
    if (!all) snprintf(lt.lack, sizeof lt.lack, "%s", dlerror());
}

/* False, and the task failed, where there is none. */
static bool lt_there(const tess_work *w)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, lt_load);
    if (lt.lack[0])
        tess_work_fail(w, "%s (install CUDA's cuBLAS %d, or name its folder in LD_LIBRARY_PATH)", lt.lack,
                       CUBLAS_VER_MAJOR);
    return !lt.lack[0];
}

#endif
