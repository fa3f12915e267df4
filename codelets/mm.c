/* mm: how a product reaches the library's fast kernels.
 *
 * oneDNN's best CPU kernels (brgemm) want A dense and row-major, C dense, and B in panels of 64 columns. A B that is
 * stored (n,k) they bring into panels well enough on their way; what else is in another form they rearrange slowly, or
 * hand to a kernel that is slower. So this file does that: B goes into panels; A is transposed or made dense in pieces
 * of 256 rows that are used while they are hot; C passes through a dense piece when it is a part of wider rows; a
 * product of bf16 with a large k and B stored (k,n) becomes a sum of products. Depths are filled up with zeros to whole
 * blocks, so no kernel sees a remainder. bench_mm shows what each of these is worth.
 *
 * Where the library has no such kernel for this CPU (no AVX-512), it gets the matrices as they are; where it cannot
 * multiply bf16 at all, it gets them widened to fp32.
 *
 * Each thread has its own table of primitives and its own buffers, at most about 40 MiB; the library works with one
 * thread, since workers are what is parallel here.
 */
#include "mm_pack_impl.h"
#include <dlfcn.h>
#include <dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

enum {
    MM_ROWS = 256,           /* rows of a piece: of A that is made dense, of C that is not dense */
    MM_A_BYTES = 8 << 20,    /* of A made dense that several parts of B use */
    MM_B_BYTES = 16 << 20,   /* of B packed at a time */
    MM_C_BYTES = 1 << 20,    /* of a dense piece of C, where B stays as it is */
    MM_DEEP = 2560,          /* beyond this k a product of bf16 is summed from parts */
    MM_DEPTH = 768,          /* of this k, whose rows stay in cache, */
    MM_SUM_BYTES = 16 << 20, /* where the sum is no larger or C itself */
    MM_SLOTS = 1024,         /* of the table of primitives, */
    MM_LIMIT = 512,          /* which starts over with so many in it */
};

/* ---- the library's two generations ------------------------------------------------------------------------------- */

#if DNNL_VERSION_MAJOR < 3
typedef dnnl_memory_desc_t *mm_desc;
typedef const dnnl_memory_desc_t *mm_const_desc;
#else
typedef dnnl_memory_desc_t mm_desc;
typedef const_dnnl_memory_desc_t mm_const_desc;
#endif

static void mm_check(dnnl_status_t s)
{
    TESS_ASSERT(s == dnnl_success);
}

static mm_desc desc_strided(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride, dnnl_data_type_t t)
{
    const dnnl_dims_t dims = {rows, cols}, strides = {row_stride, col_stride};
    mm_desc d;
#if DNNL_VERSION_MAJOR < 3
    d = tess_alloc(sizeof *d);
    mm_check(dnnl_memory_desc_init_by_strides(d, 2, dims, t, strides));
#else
    mm_check(dnnl_memory_desc_create_with_strides(&d, 2, dims, t, strides));
#endif
    return d;
}

/* B (k,n) in panels: see tess_mm_pack. */
static mm_desc desc_panels(int64_t k, int64_t n, dnnl_data_type_t t)
{
    const dnnl_dims_t dims = {k, n};
    const dnnl_format_tag_t tag = t == dnnl_bf16 ? dnnl_BA16a64b2a : dnnl_BA16a64b;
    mm_desc d;
#if DNNL_VERSION_MAJOR < 3
    d = tess_alloc(sizeof *d);
    mm_check(dnnl_memory_desc_init_by_tag(d, 2, dims, t, tag));
#else
    mm_check(dnnl_memory_desc_create_with_tag(&d, 2, dims, t, tag));
#endif
    return d;
}

static void desc_free(mm_desc d)
{
#if DNNL_VERSION_MAJOR < 3
    free(d);
#else
    dnnl_memory_desc_destroy(d);
#endif
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, mm_desc a, mm_desc b, mm_desc bias,
                                 mm_desc c, dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR < 3
    dnnl_matmul_desc_t d;
    dnnl_status_t s = dnnl_matmul_desc_init(&d, a, b, bias, c);
    return s == dnnl_success ? dnnl_primitive_desc_create(pd, &d, attr, engine, NULL) : s;
#else
    return dnnl_matmul_primitive_desc_create(pd, engine, a, b, bias, c, attr);
#endif
}

/* Scratch memory is ours; with `acc`, C is added to. */
static dnnl_primitive_attr_t attr_new(bool acc)
{
    dnnl_primitive_attr_t attr;
    mm_check(dnnl_primitive_attr_create(&attr));
    mm_check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user));
    if (acc) {
        dnnl_post_ops_t ops;
        mm_check(dnnl_post_ops_create(&ops));
#if DNNL_VERSION_MAJOR < 3
        mm_check(dnnl_post_ops_append_sum(ops, 1));
#else
        mm_check(dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef));
#endif
        mm_check(dnnl_primitive_attr_set_post_ops(attr, ops));
        dnnl_post_ops_destroy(ops);
    }
    return attr;
}

/* ---- what a thread keeps ----------------------------------------------------------------------------------------- */

/* A primitive and the memory objects it runs on, which are pointed at the matrices of each call. */
typedef struct mm_entry {
    tess_mm key; /* bias: not NULL where there is one */
    dnnl_primitive_t run;
    dnnl_memory_t a, b, bias, c, scratch;
    size_t scratch_bytes;
} mm_entry;

typedef enum mm_buffer { MM_A, MM_B, MM_C, MM_SUM, MM_WIDE_A, MM_WIDE_B, MM_WIDE_C, MM_SCRATCH, MM_BUFFERS } mm_buffer;

typedef struct mm_thread {
    dnnl_stream_t stream;
    mm_entry *slot[MM_SLOTS];
    int entries;
    struct {
        void *ptr;
        size_t bytes;
    } buffer[MM_BUFFERS];
} mm_thread;

typedef enum mm_way { MM_WAY_PANELS, MM_WAY_PLAIN, MM_WAY_WIDEN } mm_way;

static pthread_once_t mm_once = PTHREAD_ONCE_INIT;
static pthread_key_t mm_key;
static dnnl_engine_t mm_engine;
static mm_way mm_ways[TESS_REAL_DTYPES]; /* how this CPU multiplies each dtype */
static void (*mm_set_threads)(int);      /* the OpenMP runtime's, where the library uses one */

static void entry_free(mm_entry *e)
{
    dnnl_primitive_destroy(e->run);
    dnnl_memory_t memory[] = {e->a, e->b, e->bias, e->c, e->scratch};
    for (size_t i = 0; i < sizeof memory / sizeof *memory; i++)
        if (memory[i]) dnnl_memory_destroy(memory[i]);
    free(e);
}

static void table_clear(mm_thread *t)
{
    for (int i = 0; i < MM_SLOTS; i++)
        if (t->slot[i]) entry_free(t->slot[i]);
    memset(t->slot, 0, sizeof t->slot);
    t->entries = 0;
}

static void thread_free(void *p)
{
    mm_thread *t = p;
    table_clear(t);
    for (int i = 0; i < MM_BUFFERS; i++) free(t->buffer[i].ptr);
    dnnl_stream_destroy(t->stream);
    free(t);
}

static dnnl_memory_t memory_new(mm_const_desc d)
{
    dnnl_memory_t m;
    mm_check(dnnl_memory_create(&m, d, mm_engine, DNNL_MEMORY_NONE));
    return m;
}

static dnnl_data_type_t dnnl_type(tess_dtype t)
{
    return t == TESS_BF16 ? dnnl_bf16 : dnnl_f32;
}

/* NULL when the library has no kernel, or for panels only its reference one, hundreds of times slower. */
static mm_entry *entry_new(const tess_mm *d)
{
    dnnl_data_type_t in = dnnl_type(d->in);
    mm_desc a = desc_strided(d->m, d->k, d->ta ? 1 : d->lda, d->ta ? d->lda : 1, in);
    mm_desc b =
        d->packed ? desc_panels(d->k, d->n, in) : desc_strided(d->k, d->n, d->tb ? 1 : d->ldb, d->tb ? d->ldb : 1, in);
    mm_desc c = desc_strided(d->m, d->n, d->ldc, 1, dnnl_type(d->out));
    mm_desc bias = d->bias ? desc_strided(1, d->n, d->n, 1, dnnl_f32) : NULL;
    dnnl_primitive_attr_t attr = attr_new(d->acc);
    dnnl_primitive_desc_t pd;
    mm_entry *e = NULL;
    if (matmul_desc(&pd, mm_engine, a, b, bias, c, attr) == dnnl_success) {
        const char *name = "";
        dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
        if (!d->packed || strncmp(name, "ref", 3)) {
            e = tess_alloc(sizeof *e);
            mm_const_desc scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
            *e = (mm_entry){.key = *d,
                            .a = memory_new(a),
                            .b = memory_new(b),
                            .c = memory_new(c),
                            .bias = bias ? memory_new(bias) : NULL,
                            .scratch = memory_new(scratch),
                            .scratch_bytes = dnnl_memory_desc_get_size(scratch)};
            mm_check(dnnl_primitive_create(&e->run, pd));
        }
        dnnl_primitive_desc_destroy(pd);
    }
    dnnl_primitive_attr_destroy(attr);
    desc_free(a), desc_free(b), desc_free(c);
    if (bias) desc_free(bias);
    return e;
}

static void mm_start(void)
{
    mm_check(dnnl_engine_create(&mm_engine, dnnl_cpu, 0));
    TESS_ASSERT(pthread_key_create(&mm_key, thread_free) == 0);
    *(void **)&mm_set_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
    for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++) {
        tess_mm d = {.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64, .in = t, .out = TESS_F32};
        d.packed = true;
        mm_entry *panels = entry_new(&d);
        d.packed = false;
        mm_entry *plain = entry_new(&d);
        mm_ways[t] = panels ? MM_WAY_PANELS : plain ? MM_WAY_PLAIN : MM_WAY_WIDEN;
        if (panels) entry_free(panels);
        if (plain) entry_free(plain);
    }
    TESS_ASSERT(mm_ways[TESS_F32] != MM_WAY_WIDEN);
}

static mm_thread *thread_get(void)
{
    static _Thread_local mm_thread *t;
    if (t) return t;
    pthread_once(&mm_once, mm_start);
    if (mm_set_threads) mm_set_threads(1);
    t = tess_alloc(sizeof *t);
    mm_check(dnnl_stream_create(&t->stream, mm_engine, dnnl_stream_default_flags));
    pthread_setspecific(mm_key, t);
    return t;
}

static void *buffer_get(mm_thread *t, mm_buffer which, size_t bytes)
{
    const size_t huge = 2u << 20;
    if (t->buffer[which].bytes < bytes) {
        size_t align = bytes < huge ? 4096 : huge;
        bytes = (bytes + align - 1) / align * align;
        free(t->buffer[which].ptr);
        t->buffer[which].ptr = aligned_alloc(align, bytes);
        t->buffer[which].bytes = bytes;
        TESS_ASSERT(t->buffer[which].ptr);
        if (align == huge) madvise(t->buffer[which].ptr, bytes, MADV_HUGEPAGE);
    }
    return t->buffer[which].ptr;
}

static mm_entry *entry_find(mm_thread *t, const tess_mm *d)
{
    static const float some;
    tess_mm key;
    memset(&key, 0, sizeof key); /* the padding too, it is compared */
    key.m = d->m, key.n = d->n, key.k = d->k;
    key.lda = d->lda, key.ldb = d->packed ? 0 : d->ldb, key.ldc = d->ldc;
    key.in = d->in, key.out = d->out;
    key.ta = d->ta, key.tb = !d->packed && d->tb, key.acc = d->acc, key.packed = d->packed;
    key.bias = d->bias ? &some : NULL;
    uint64_t word[sizeof key / 8], hash = 0;
    memcpy(word, &key, sizeof word);
    for (size_t i = 0; i < sizeof word / sizeof *word; i++) hash = tess_random_mix(hash ^ word[i]);
    size_t i = hash % MM_SLOTS;
    for (; t->slot[i]; i = (i + 1) % MM_SLOTS)
        if (!memcmp(&t->slot[i]->key, &key, sizeof key)) return t->slot[i];
    if (t->entries == MM_LIMIT) {
        table_clear(t);
        i = hash % MM_SLOTS;
    }
    t->slot[i] = entry_new(&key);
    TESS_ASSERT(t->slot[i]);
    memcpy(&t->slot[i]->key, &key, sizeof key);
    t->entries++;
    return t->slot[i];
}

/* One call of the library. */
static void call(mm_thread *t, const tess_mm *d, const void *a, const void *b, void *c)
{
    mm_entry *e = entry_find(t, d);
    dnnl_memory_set_data_handle(e->a, (void *)a);
    dnnl_memory_set_data_handle(e->b, (void *)b);
    dnnl_memory_set_data_handle(e->c, c);
    dnnl_memory_set_data_handle(e->scratch, buffer_get(t, MM_SCRATCH, e->scratch_bytes));
    dnnl_exec_arg_t arg[] = {{DNNL_ARG_SRC, e->a},
                             {DNNL_ARG_WEIGHTS, e->b},
                             {DNNL_ARG_DST, e->c},
                             {DNNL_ARG_SCRATCHPAD, e->scratch},
                             {DNNL_ARG_BIAS, e->bias}};
    if (e->bias) dnnl_memory_set_data_handle(e->bias, (void *)d->bias);
    mm_check(dnnl_primitive_execute(e->run, t->stream, e->bias ? 5 : 4, arg));
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* A piece of the product: m rows of A, dense and `d->k` deep; B whole or n of its columns. */
static void run_piece(mm_thread *t, const tess_mm *d, int64_t m, int64_t n, const void *a, const void *b,
                      const float *bias, void *c)
{
    tess_mm piece = *d;
    piece.m = m, piece.n = n, piece.bias = bias;
    if (d->ldc == n) {
        call(t, &piece, a, b, c);
        return;
    }
    piece.ldc = n, piece.acc = false, piece.out = TESS_F32;
    void *part = buffer_get(t, MM_C, (size_t)(m * n) * 4);
    call(t, &piece, a, b, part);
    (d->out == TESS_BF16 ? put_bf16 : put_f32)(c, d, part, m, n);
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
/* How many multiples of `unit` fit into `bytes` at `each` bytes; at least one. */
static int64_t fit(int64_t bytes, int64_t each, int64_t unit)
{
    int64_t n = bytes / each / unit * unit;
    return n > unit ? n : unit;
}

static void run_panels(mm_thread *t, const tess_mm *d, const void *a, const void *b, void *c)
{
    const tess_dtype in = d->in;
    const int64_t depth = depth_of(d->k, in), row = depth * (int64_t)tess_dtype_size(in);
    const bool turn = d->ta || d->lda != depth || d->k != depth;
    const bool pack = !d->packed && (!d->tb || d->ldb != depth || d->k != depth);
    tess_mm dense = *d; /* what the library sees */
    dense.k = dense.lda = dense.ldb = depth, dense.ta = false, dense.packed = d->packed || pack;

    int64_t cols = d->n, piece = d->m, rows = d->m;
    if (pack)
        cols = least(cols, fit(MM_B_BYTES, row, MM_PANEL));
    else if (!d->packed && d->ldc != d->n)
        cols = least(cols, fit(MM_C_BYTES, d->m * 4, MM_PANEL));
    if (turn || dense.packed) piece = least(piece, MM_ROWS);
    if (turn && cols < d->n) rows = fit(MM_A_BYTES, row, MM_ROWS);

    for (int64_t m0 = 0; m0 < d->m; m0 += rows)
        for (int64_t n0 = 0; n0 < d->n; n0 += cols) {
            const int64_t n = least(cols, d->n - n0), end = least(m0 + rows, d->m);
            const void *part = d->packed ? b : tess_at(b, d->tb ? n0 * d->ldb : n0, in);
            if (pack) {
                uint32_t *panels = buffer_get(t, MM_B, (size_t)(round_up(n, MM_PANEL) * row));
                (in == TESS_BF16 ? pack_b_bf16 : pack_b_f32)(panels, part, d, n);
                part = panels;
            }
            for (int64_t i = m0; i < end; i += piece) {
                const int64_t m = least(piece, end - i);
                const void *rows_a = tess_at(a, d->ta ? i : i * d->lda, in);
                if (turn) { /* into its place among `rows`, if other columns follow */
                    const bool again = cols < d->n;
                    char *hot = buffer_get(t, MM_A, (size_t)((again ? end - m0 : piece) * row));
                    if (again) hot += (i - m0) * row;
                    if (n0 == 0) (in == TESS_BF16 ? pack_a_bf16 : pack_a_f32)((uint32_t *)hot, rows_a, d, m);
                    rows_a = hot;
                }
                run_piece(t, &dense, m, n, rows_a, part, d->bias ? d->bias + n0 : NULL,
                          tess_at_mut(c, i * d->ldc + n0, d->out));
            }
        }
}

static void run_deep(mm_thread *t, const tess_mm *d, const void *a, const void *b, void *c)
{
    const bool in_place = d->out == TESS_F32;
    const bool fits = in_place || d->m * d->n * 4 <= MM_SUM_BYTES;
    if (d->in != TESS_BF16 || d->k <= MM_DEEP || d->ta || d->tb || d->packed || !fits) {
        run_panels(t, d, a, b, c);
        return;
    }
    tess_mm part = *d;
    part.out = TESS_F32;
    if (!in_place) part.ldc = d->n, part.acc = false;
    float *sum = in_place ? c : buffer_get(t, MM_SUM, (size_t)(d->m * d->n) * 4);
    for (int64_t k = 0; k < d->k; k += MM_DEPTH) {
        part.k = least(MM_DEPTH, d->k - k);
        run_panels(t, &part, tess_at(a, k, d->in), tess_at(b, k * d->ldb, d->in), sum);
        part.acc = true, part.bias = NULL;
    }
    if (!in_place) put_bf16(c, d, sum, d->m, d->n);
}

static void run_widened(mm_thread *t, const tess_mm *d, const void *a, const void *b, void *c)
{
    const int64_t rows_a = d->ta ? d->k : d->m, cols_a = d->ta ? d->m : d->k;
    const int64_t rows_b = d->tb ? d->n : d->k, cols_b = d->tb ? d->k : d->n;
    float *wide_a = buffer_get(t, MM_WIDE_A, (size_t)(rows_a * cols_a) * 4);
    float *wide_b = buffer_get(t, MM_WIDE_B, (size_t)(rows_b * cols_b) * 4);
    widen_rows(wide_a, a, d->lda, rows_a, cols_a);
    widen_rows(wide_b, b, d->ldb, rows_b, cols_b);
    tess_mm wide = *d;
    wide.in = wide.out = TESS_F32;
    wide.lda = cols_a, wide.ldb = cols_b;
    if (d->out == TESS_F32) {
        tess_mm_run(&wide, wide_a, wide_b, c);
        return;
    }
    wide.acc = false, wide.ldc = d->n;
    float *wide_c = buffer_get(t, MM_WIDE_C, (size_t)(d->m * d->n) * 4);
    tess_mm_run(&wide, wide_a, wide_b, wide_c);
    put_bf16(c, d, wide_c, d->m, d->n);
}

void tess_mm_run(const tess_mm *d, const void *a, const void *b, void *c)
{
    mm_thread *t = thread_get();
    TESS_ASSERT(d->m > 0 && d->n > 0 && d->k > 0);
    const mm_way way = mm_ways[d->in];
    tess_mm as_is = *d;
    if (way != MM_WAY_PANELS && d->packed) as_is.packed = as_is.tb = false;
    if (way == MM_WAY_WIDEN)
        run_widened(t, &as_is, a, b, c);
    else if (way == MM_WAY_PANELS && !d->plain)
        run_deep(t, d, a, b, c);
    else
        call(t, &as_is, a, b, c);
}

/* Of either form the larger, so that it does not depend on the machine. */
size_t tess_mm_packed_bytes(const tess_mm *d)
{
    return (size_t)(round_up(d->n, MM_PANEL) * depth_of(d->k, d->in)) * tess_dtype_size(d->in);
}

/* Without panels the packed form is B stored (k,n), dense. */
void tess_mm_pack(const tess_mm *d, const void *b, void *packed)
{
    thread_get();
    if (mm_ways[d->in] == MM_WAY_PANELS) {
        (d->in == TESS_BF16 ? pack_b_bf16 : pack_b_f32)(packed, b, d, d->n);
        return;
    }
    const size_t size = tess_dtype_size(d->in);
    for (int64_t i = 0; i < d->k; i++)
        for (int64_t j = 0; j < d->n; j++)
            memcpy((char *)packed + (size_t)(i * d->n + j) * size,
                   tess_at(b, d->tb ? j * d->ldb + i : i * d->ldb + j, d->in), size);
}
