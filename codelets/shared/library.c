#include "codelets/shared/library.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

enum { KERNELS = 128 }; /* that the library keeps of those it made last: what tess_mm_bytes reckons with */

#ifdef __x86_64__
enum { ON_X86 = true };
#else
enum { ON_X86 = false };
#endif

static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t streams;
static dnnl_engine_t engine;
static void (*set_threads)(int); /* the OpenMP runtime's, where the library uses one */

void tess_library_check(dnnl_status_t s)
{
    TESS_ASSERT(s == dnnl_success);
}

/* The library's kind is capped as ours are. */
static void cap_library(void)
{
    static const dnnl_cpu_isa_t isa[] = {[TESS_CPU_SSE41] = dnnl_cpu_isa_sse41,
                                         [TESS_CPU_AVX] = dnnl_cpu_isa_avx,
                                         [TESS_CPU_AVX2] = dnnl_cpu_isa_avx2,
                                         [TESS_CPU_AVX512] = dnnl_cpu_isa_avx512_core,
                                         [TESS_CPU_AVX512_VNNI] = dnnl_cpu_isa_avx512_core_vnni,
                                         [TESS_CPU_AVX512_BF16] = dnnl_cpu_isa_avx512_core_bf16,
                                         [TESS_CPU_AVX512_AMX] = dnnl_cpu_isa_avx512_core_amx};
    tess_cpu_kind kind;
    const char *cap;
    if (tess_cpu_cap(&kind, &cap) != TESS_OK) tess_die(tess_error_text()); /* tess_start was not asked first */
    if (!cap || !ON_X86 || dnnl_set_max_cpu_isa(isa[kind]) == dnnl_success) return;
    /* It cannot be said twice, as a second copy of this code in the process does. */
    TESS_ASSERT(((int)dnnl_get_effective_cpu_isa() & ~(int)isa[kind]) == 0);
}

static void stream_free(void *stream)
{
    dnnl_stream_destroy(stream);
}

static void start(void)
{
    cap_library();
    tess_library_check(dnnl_engine_create(&engine, dnnl_cpu, 0));
    tess_library_check(dnnl_set_primitive_cache_capacity(KERNELS));
    TESS_ASSERT(pthread_key_create(&streams, stream_free) == 0);
    *(void **)&set_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
}

dnnl_stream_t tess_library_stream(void)
{
    static _Thread_local dnnl_stream_t mine;
    if (mine) return mine;
    pthread_once(&once, start);
    if (set_threads) set_threads(1);
    tess_library_check(dnnl_stream_create(&mine, engine, dnnl_stream_default_flags));
    pthread_setspecific(streams, mine);
    return mine;
}

dnnl_engine_t tess_library_engine(void)
{
    tess_library_stream();
    return engine;
}

bool tess_library_sees(dnnl_cpu_isa_t isa)
{
    tess_library_stream();
    return ON_X86 && ((int)dnnl_get_effective_cpu_isa() & (int)isa) == (int)isa;
}

dnnl_memory_t tess_library_memory(tess_const_md d)
{
    dnnl_memory_t m;
    tess_library_check(dnnl_memory_create(&m, d, tess_library_engine(), DNNL_MEMORY_NONE));
    return m;
}

tess_md tess_md_strided(int rank, const int64_t *dim, const int64_t *by, dnnl_data_type_t t)
{
    tess_md d;
#if DNNL_VERSION_MAJOR < 3
    d = tess_alloc(sizeof *d);
    tess_library_check(dnnl_memory_desc_init_by_strides(d, rank, dim, t, by));
#else
    tess_library_check(dnnl_memory_desc_create_with_strides(&d, rank, dim, t, by));
#endif
    return d;
}

tess_md tess_md_tagged(int rank, const int64_t *dim, dnnl_format_tag_t tag, dnnl_data_type_t t)
{
    tess_md d;
#if DNNL_VERSION_MAJOR < 3
    d = tess_alloc(sizeof *d);
    tess_library_check(dnnl_memory_desc_init_by_tag(d, rank, dim, t, tag));
#else
    tess_library_check(dnnl_memory_desc_create_with_tag(&d, rank, dim, t, tag));
#endif
    return d;
}

void tess_md_free(tess_md d)
{
#if DNNL_VERSION_MAJOR < 3
    free(d);
#else
    dnnl_memory_desc_destroy(d);
#endif
}

dnnl_data_type_t tess_library_type(tess_dtype t)
{
    return t == TESS_BF16 ? dnnl_bf16 : t == TESS_F16 ? dnnl_f16 : dnnl_f32;
}

dnnl_primitive_attr_t tess_library_attr(bool acc)
{
    dnnl_primitive_attr_t attr;
    tess_library_check(dnnl_primitive_attr_create(&attr));
    tess_library_check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (acc) {
        dnnl_post_ops_t ops;
        tess_library_check(dnnl_post_ops_create(&ops));
#if DNNL_VERSION_MAJOR < 3
        tess_library_check(dnnl_post_ops_append_sum(ops, 1));
#else
        tess_library_check(dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef));
#endif
        tess_library_check(dnnl_primitive_attr_set_post_ops(attr, ops));
        dnnl_post_ops_destroy(ops);
    }
    return attr;
}
