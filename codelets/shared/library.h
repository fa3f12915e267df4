/* library: what products and convolutions need of oneDNN, in either of its two generations. It works with one thread a
 * caller, since workers are what is parallel here, and never beyond TESSERA_MAX_CPU_ISA.
 *
 *     tess_md x = tess_md_strided(2, (int64_t[]){rows, cols}, (int64_t[]){ld, 1}, dnnl_f32);
 *     dnnl_memory_t of_x = tess_library_memory(x);
 *     tess_md_free(x);
 */
#ifndef TESS_LIBRARY_H
#define TESS_LIBRARY_H
#include "codelets/codelets.h"
#include <dnnl.h>

#if DNNL_VERSION_MAJOR < 3
typedef dnnl_memory_desc_t *tess_md;
typedef const dnnl_memory_desc_t *tess_const_md;
#else
typedef dnnl_memory_desc_t tess_md;
typedef const_dnnl_memory_desc_t tess_const_md;
#endif

void tess_library_check(dnnl_status_t s);
dnnl_engine_t tess_library_engine(void);
/* Returns the calling thread's. */
dnnl_stream_t tess_library_stream(void);
/* The CPU has that kind, by the library's masks; elsewhere than on x86 the same bits are other kinds, and none is. */
bool tess_library_sees(dnnl_cpu_isa_t isa);
/* Returns an object to point at memory. */
dnnl_memory_t tess_library_memory(tess_const_md d);

tess_md tess_md_strided(int rank, const int64_t *dim, const int64_t *by, dnnl_data_type_t t);
tess_md tess_md_tagged(int rank, const int64_t *dim, dnnl_format_tag_t tag, dnnl_data_type_t t);
void tess_md_free(tess_md d);
dnnl_data_type_t tess_library_type(tess_dtype t);

/* Attributes of a primitive whose scratch memory is the caller's; with `acc`, what it writes is added to. */
dnnl_primitive_attr_t tess_library_attr(bool acc);

#endif
