/* mm: how a product reaches the library's fast kernels.
 *
 * oneDNN's best CPU kernels (brgemm) want A dense and row-major, C dense, and B in panels of 64 columns. A B that is
 * stored (n,k) they bring into panels well enough on their way; what else is in another form they rearrange slowly, or
 * hand to a kernel that is slower. So this file does that: B goes into panels; A is transposed or made dense in pieces
 * of 256 rows that are used while they are hot; C passes through a dense piece when it, or a part, is a part of wider
 * rows; a product with a large k becomes a sum of products. Depths are filled up with zeros to whole blocks, so no
 * kernel sees a remainder. bench_mm shows what each of these is worth.
 *
 * What it cannot multiply, bf16 on some CPUs and fp16 on all, it gets as fp32, widened on this way. Where it has no
 * such kernel for this CPU (no AVX-512) the kernel is our own, in fp32 (mm_kernel_impl.h), and everything else is the
 * same.
 *
 * Numbers of 8 bits are rounded to once they are packed, so no operand is there a second time.
 *
 * A product comes in parts (runtime/progress/parts.c): B is packed once, by columns, for all that then multiply some
 * rows of A each, with all of B or with some columns. The pieces that the library gets are the same whoever asks for
 * them. For that a B stored (n,k) is packed too, unless the rows are few. Rows of A that a thread made dense it has for
 * all parts of them that it takes, one after the other.
 *
 * Each thread has its own table of primitives and its own buffers. The constants below bound them whatever the shapes
 * are: tess_mm_bytes. The library works with one thread, since workers are what is parallel here.
 *
 * Most machines have no AVX-512, and Debian's oneDNN (2.6) has its fast kernels for it alone. Below that our own
 * kernel is as fast as the best library (92% of the FMA rate in parts, 99% of oneDNN's sgemm on whole matrices) and
 * does what they cannot: a part of a product packs B once for all, 16 bits are widened while packing, and buffers are
 * bounded. Intel's bf16 without tiles (Cooper Lake, virtual machines that hide them) is slower than fp32, 77 GFLOP/s a
 * core in place of 136, so bf16 is widened there too. With 512 bits our kernel equals oneDNN's on AMD (103 GFLOP/s)
 * and is used where the same bits are asked for on all CPUs. docs/notes/speed-products.md has the figures. */
#include "codelets/products/mm_pack_impl.h"
#include "codelets/products/mm_widths_impl.h"
#include "codelets/shared/library.h"
#include "codelets/shared/parts.h"
#include <pthread.h>
#include <stdlib.h>

enum {
    MM_ROWS = 256,               /* rows of a piece: of A that is made dense, of C that is not dense */
    MM_COLS = 256,               /* columns of such a piece of C, where B is packed */
    MM_PACK_BYTES = 128 << 10,   /* of B that a part packs */
    MM_PART_ROWS = 128,          /* rows of a part, where A is dense as it lies */
    MM_PART_COLS = 128,          /* its columns at least */
    MM_PART_PRODUCTS = 72 << 20, /* its products of numbers, which say how many columns it has */
    MM_OWN_PRODUCTS = 24 << 20,  /* the same of our kernel, which keeps the rows that its thread packed */
    MM_MADE_PRODUCTS = 48 << 20, /* the same where A is made dense, in rows and columns of a piece at least */

    MM_A_BYTES = 1 << 20,       /* of A made dense */
    MM_B_BYTES = 6 << 20,       /* of B packed at a time */
    MM_C_BYTES = 1 << 20,       /* of a dense piece of C */
    MM_SUM_BYTES = 4 << 20,     /* of C in fp32, while it is summed from parts of k */
    MM_SCRATCH_BYTES = 2 << 20, /* what the library asks for, of all products that get to it */

    MM_DEEPEST = 8192, /* k of one product: beyond, a kernel for bf16 is MiB of code that take 0.1 s to make, */
    MM_DEEPEST_F32 = 16384,
    MM_DEEPEST_TURNED = 4096, /* and a piece of a transposed A has few rows */
    MM_DEEP = 2560,           /* beyond this k a product of bf16 with B stored (k,n) is summed from parts */
    MM_DEEP_DENSE = 4096,     /* the same where A is dense as it lies, so that C is cut by columns, too */
    MM_DEPTH = 768,           /* of this k, whose rows stay in cache */
    MM_DEEP_OWN = 1536,       /* beyond this k our kernel sums from parts: the bits are those of one product */

    MM_SLOTS = 256,              /* slots of the table of primitives */
    MM_LIMIT = 128,              /* entries at which the table starts over; the library keeps as many kernels */
    MM_ENTRY_BYTES = 8 << 10,    /* what an entry takes of its own */
    MM_KERNEL_BYTES = 192 << 10, /* the code behind an entry, which all threads share: 50 to 200 KiB were seen */
};

#ifdef __x86_64__
enum { ON_X86 = true };
#else
enum { ON_X86 = false };
#endif

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *pd, dnnl_engine_t engine, tess_md a, tess_md b, tess_md bias,
                                 tess_md c, dnnl_primitive_attr_t attr)
{
#if DNNL_VERSION_MAJOR < 3
    dnnl_matmul_desc_t d;
    dnnl_status_t s = dnnl_matmul_desc_init(&d, a, b, bias, c);
    return s == dnnl_success ? dnnl_primitive_desc_create(pd, &d, attr, engine, NULL) : s;
#else
    return dnnl_matmul_primitive_desc_create(pd, engine, a, b, bias, c, attr);
#endif
}

/* ---- what a thread keeps ----------------------------------------------------------------------------------------- */

/* A primitive and the memory objects it runs on, which are pointed at the matrices of each call. */
typedef struct mm_entry {
    tess_mm key; /* bias: not NULL where there is one */
    dnnl_primitive_t run;
    dnnl_memory_t a, b, bias, c, scratch;
    size_t scratch_bytes;
} mm_entry;

typedef enum mm_buffer { MM_A, MM_B, MM_C, MM_SUM, MM_SCRATCH, MM_BUFFERS } mm_buffer;

typedef struct mm_thread {
    mm_entry *slot[MM_SLOTS];
    int entries;
    uint64_t dense; /* the number of the product whose A buffer MM_A has */
    int64_t row;    /* the first row of A there */
    tess_room_kept buffer[MM_BUFFERS];
} mm_thread;

static pthread_once_t mm_once = PTHREAD_ONCE_INIT;
static pthread_key_t mm_key;
static bool mm_has[TESS_REAL_DTYPES];      /* the library has panels of it */
static tess_dtype mm_as[TESS_REAL_DTYPES]; /* in which dtype each is multiplied */
static bool mm_across;                     /* as on other machines */
static const mm_kernel *mm_own;            /* ours, where the library has no panels or is not asked; else NULL */

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
    free(t);
}

static tess_md strided(int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride, dnnl_data_type_t t)
{
    return tess_md_strided(2, (int64_t[]){rows, cols}, (int64_t[]){row_stride, col_stride}, t);
}
/* In panels: see tess_mm_pack. */
static tess_md in_panels(int64_t rows, int64_t cols, dnnl_data_type_t t)
{
    return tess_md_tagged(2, (int64_t[]){rows, cols}, t == dnnl_bf16 ? dnnl_BA16a64b2a : dnnl_BA16a64b, t);
}

/* NULL when the library has no kernel, or for panels only its reference one, hundreds of times slower. */
static mm_entry *entry_new(const tess_mm *d)
{
    dnnl_data_type_t in = tess_library_type(d->in);
    tess_md a = strided(d->m, d->k, d->ta ? 1 : d->lda, d->ta ? d->lda : 1, in);
    tess_md b = d->packed ? in_panels(d->k, d->n, in) : strided(d->k, d->n, d->tb ? 1 : d->ldb, d->tb ? d->ldb : 1, in);
    tess_md c = strided(d->m, d->n, d->ldc, 1, tess_library_type(d->out));
    tess_md bias = d->bias ? strided(1, d->n, d->n, 1, dnnl_f32) : NULL;
    dnnl_primitive_attr_t attr = tess_library_attr(d->acc);
    dnnl_primitive_desc_t pd;
    mm_entry *e = NULL;
    if (matmul_desc(&pd, tess_library_engine(), a, b, bias, c, attr) == dnnl_success) {
        const char *name = "";
        dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, &name);
        if (!d->packed || strncmp(name, "ref", 3)) {
            e = tess_alloc(sizeof *e);
            tess_const_md scratch = dnnl_primitive_desc_query_md(pd, dnnl_query_scratchpad_md, 0);
            *e = (mm_entry){.key = *d,
                            .a = tess_library_memory(a),
                            .b = tess_library_memory(b),
                            .c = tess_library_memory(c),
                            .bias = bias ? tess_library_memory(bias) : NULL,
                            .scratch = tess_library_memory(scratch),
                            .scratch_bytes = dnnl_memory_desc_get_size(scratch)};
            tess_library_check(dnnl_primitive_create(&e->run, pd));
        }
        dnnl_primitive_desc_destroy(pd);
    }
    dnnl_primitive_attr_destroy(attr);
    tess_md_free(a), tess_md_free(b), tess_md_free(c);
    if (bias) tess_md_free(bias);
    return e;
}

static const mm_kernel *own_kernel(void)
{
#ifdef __x86_64__
    if (tess_library_sees(dnnl_cpu_isa_avx512_core)) return &tess_mm_512;
    if (tess_library_sees(dnnl_cpu_isa_avx2)) return &tess_mm_256;
#endif
    return &tess_mm_128;
}

/* Where a CPU has instructions for bf16 that multiply faster than those for fp32: Intel's do with tiles alone. */
static bool bf16_pays(void)
{
#ifdef __x86_64__
    if (__builtin_cpu_is("intel")) return tess_library_sees(dnnl_cpu_isa_avx512_core_amx);
#endif
    return true;
}

static void mm_choose(bool machines)
{
    mm_across = machines;
    mm_own = machines || !mm_has[TESS_F32] ? own_kernel() : NULL;
    for (int t = TESS_F32; t < TESS_REAL_DTYPES; t++)
        mm_as[t] = mm_has[t] && !machines && (t != TESS_BF16 || bf16_pays()) ? (tess_dtype)t : TESS_F32;
}

static void mm_start(void)
{
    TESS_ASSERT(pthread_key_create(&mm_key, thread_free) == 0);
    for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++) {
        tess_mm d = {.m = 64, .n = 64, .k = 64, .lda = 64, .ldb = 64, .ldc = 64, .in = t, .out = TESS_F32};
        d.packed = true;
        mm_entry *panels = entry_new(&d);
        mm_has[t] = panels != NULL;
        if (panels) entry_free(panels);
    }
    mm_choose(false);
}

static mm_thread *thread_get(void)
{
    static _Thread_local mm_thread *t;
    if (t) return t;
    pthread_once(&mm_once, mm_start);
    t = tess_alloc(sizeof *t);
    pthread_setspecific(mm_key, t);
    return t;
}

static void *buffer_get(mm_thread *t, mm_buffer which, size_t bytes)
{
    void *ptr = tess_room_grow(&t->buffer[which], bytes);
    TESS_ASSERT(ptr || !bytes);
    return ptr;
}

/* Adds what was summed in fp32 to C, or puts it there. */
static void put_out(void *c, const tess_mm *d, const void *from, int64_t m, int64_t n)
{
    (d->out == TESS_BF16 ? put_bf16 : d->out == TESS_F16 ? put_f16 : put_f32)(c, d, from, m, n);
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
    tess_library_check(dnnl_primitive_execute(e->run, tess_library_stream(), e->bias ? 5 : 4, arg));
}

/* ---- the product ------------------------------------------------------------------------------------------------- */

/* A piece of the product: m rows of A, dense and `d->k` deep; B whole or n of its columns. */
static void run_piece(mm_thread *t, const tess_mm *d, int64_t m, int64_t n, const void *a, const void *b,
                      const float *bias, void *c)
{
    tess_mm piece = *d;
    piece.m = m, piece.n = n, piece.bias = bias;
    if (mm_own && d->out == TESS_F32) {
        mm_own->multiply(m, n, d->k, a, b, bias, c, d->ldc, d->acc);
        return;
    }
    if (mm_own) {
        float *part = buffer_get(t, MM_C, (size_t)(m * n) * 4);
        mm_own->multiply(m, n, d->k, a, b, bias, part, n, false);
        put_out(c, d, part, m, n);
        return;
    }
    if (d->ldc == n && (d->in == TESS_BF16 || d->out == TESS_F32)) {
        call(t, &piece, a, b, c);
        return;
    }
    piece.ldc = n, piece.acc = false, piece.out = d->acc || d->in == TESS_F32 ? TESS_F32 : d->out;
    void *part = buffer_get(t, MM_C, (size_t)(m * n) * 4);
    call(t, &piece, a, b, part);
    const size_t row = (size_t)n * tess_dtype_size(d->out);
    if (piece.out != d->out || d->acc)
        put_out(c, d, part, m, n);
    else
        for (int64_t i = 0; i < m; i++) memcpy(tess_at_mut(c, i * d->ldc, d->out), (char *)part + (size_t)i * row, row);
}

/* How many multiples of `unit` fit into `bytes` at `each` bytes; at least one. */
static int64_t fit(int64_t bytes, int64_t each, int64_t unit)
{
    int64_t n = bytes / each / unit * unit;
    return n > unit ? n : unit;
}

/* A product on its way through panels, as its parts see it. */
typedef struct mm_panels {
    const tess_mm *d;
    tess_mm dense; /* what the library sees */
    const void *a, *b;
    void *c;
    bool turn, make, pack; /* A is transposed or filled up; is made dense, if only as fp32; B is packed */
    int64_t depth;
    int64_t rows, strip;    /* rows and columns of a piece */
    int64_t wide;           /* columns of a part, which takes them strip by strip */
    int64_t n0, n1;         /* the columns of B that are packed now */
    int64_t cols_of_a_part; /* how many of them a part packs */
    uint32_t *panels;
    uint64_t number; /* where A is made dense; no other product has it */
} mm_panels;
static _Atomic uint64_t mm_number;

/* Of B, from element i on. */
static const void *b_at(const tess_mm *d, const void *b, int64_t i)
{
    return tess_is_quantized(d->b) ? (const char *)b + tess_dtype_bytes(d->b, i) : tess_at(b, i, d->in);
}

/* A piece of a quantized B as the values that it stands for; *d becomes the product with these. */
static const void *read_codes(tess_mm *d, const void *from, int64_t n)
{
    const int64_t rows = d->tb ? n : d->k, width = d->tb ? d->k : n;
    mm_thread *t = thread_get();
    char *to = buffer_get(t, MM_A, (size_t)(rows * width) * tess_dtype_size(d->in));
    t->dense = 0; /* which was there */
    for (int64_t i = 0; i < rows; i++)
        tess_quantize_read(tess_at_mut(to, i * width, d->in), d->in, b_at(d, from, i * d->ldb), d->b, width);
    d->ldb = width;
    return to;
}

static mm_round round_of(const mm_panels *p)
{
    return p->dense.in == TESS_BF16 ? round_bf16 : round_f32;
}

static void pack_part(void *of, int64_t k)
{
    const mm_panels *p = of;
    tess_mm d = *p->d;
    const int64_t first = p->n0 + k * p->cols_of_a_part, n = least(p->cols_of_a_part, p->n1 - first);
    const void *from = b_at(&d, p->b, d.tb ? first * d.ldb : first);
    void *to = tess_at_mut(p->panels, (first - p->n0) * p->depth, p->dense.in);
    if (tess_is_quantized(d.b)) from = read_codes(&d, from, n);
    if (mm_own)
        mm_own->pack_b(to, from, &d, n);
    else
        pack_b_of(d.in, p->dense.in)(to, from, &d, n);
    if (d.fp8) round_of(p)(to, round_up(n, MM_PANEL) * p->depth, d.scale_b, TESS_E4M3);
}

/* Rows of A from i on, made dense unless this thread has just done that. */
static const void *dense_rows(mm_thread *t, const mm_panels *p, int64_t i, int64_t m)
{
    const tess_mm *d = p->d;
    const int64_t rows = mm_own ? round_up(p->rows, mm_own->rows) : p->rows, more = mm_own ? 64 : 0;
    void *hot = buffer_get(t, MM_A, (size_t)(rows * p->depth + more) * tess_dtype_size(p->dense.in));
    const void *from = tess_at(p->a, d->ta ? i : i * d->lda, d->in);
    if (t->dense == p->number && t->row == i) return hot;
    if (mm_own)
        mm_own->pack_a(hot, from, d, m);
    else
        pack_a_of(d->in, p->dense.in)(hot, from, d, m);
    if (d->fp8) round_of(p)(hot, (mm_own ? round_up(m, mm_own->rows) : m) * p->depth, d->scale_a, d->fp8);
    t->dense = p->number, t->row = i;
    return hot;
}

/* Zeros in rows of C that change nothing, in columns [from, to). */
static void clear_rows(const tess_mm *d, void *c, int64_t first, int64_t end, int64_t from, int64_t to)
{
    for (int64_t i = first; i < end && !d->acc; i++)
        memset(tess_at_mut(c, i * d->ldc + from, d->out), 0, (size_t)(to - from) * tess_dtype_size(d->out));
}

/* Some rows by some columns of C. Who takes parts one after the other has the same rows of A where those are made
 * dense, else the same columns of B, which are in its cache then. */
static void piece_part(void *of, int64_t k)
{
    const mm_panels *p = of;
    const tess_mm *d = p->d;
    mm_thread *t = thread_get();
    const int64_t down = tess_parts_of(d->m, p->rows), across = tess_parts_of(p->n1 - p->n0, p->wide);
    const int64_t from = (p->make ? k / across : k % down) * p->rows, to = least(from + p->rows, d->m);
    const int64_t first = p->n0 + (p->make ? k % across : k / down) * p->wide, end = least(first + p->wide, p->n1);
    int64_t i = d->row + from, m = d->row + to;
    if (!d->ta)
        tess_idle_trim(d->idle, &i, &m);
    else if (!d->k)
        m = i;
    i -= d->row, m -= d->row + i;
    clear_rows(d, p->c, from, i, first, end);
    clear_rows(d, p->c, i + m, to, first, end);
    if (!m) return;
    const void *piece = p->make ? dense_rows(t, p, i, m) : tess_at(p->a, i * d->lda, d->in);
    for (int64_t j = first; j < end; j += p->strip) /* panels and rows of a B stored (n,k) are `depth` long */
        run_piece(t, &p->dense, m, least(p->strip, end - j), piece,
                  tess_at(p->pack ? p->panels : p->b, (p->pack ? j - p->n0 : j) * p->depth, p->dense.in),
                  d->bias ? d->bias + j : NULL, tess_at_mut(p->c, i * d->ldc + j, d->out));
}

/* The most columns that a part of a product has. */
static int64_t columns_of_part(bool turn, int64_t depth)
{
    if (turn && !mm_own) return fit(MM_MADE_PRODUCTS / MM_ROWS, depth, MM_COLS);
    if (mm_own) return fit(MM_OWN_PRODUCTS / (turn ? MM_ROWS : MM_PART_ROWS), depth, MM_PANEL);
    const int64_t most = fit(MM_PART_PRODUCTS / MM_PART_ROWS, depth, MM_PANEL);
    return most > MM_PART_COLS ? most : MM_PART_COLS;
}

/* Returns how a product is cut; *columns becomes the number of columns of B that are packed at a time. */
static mm_panels cut_panels(const tess_mm *d, int64_t *columns)
{
    const tess_dtype as = mm_as[d->in];
    const int64_t filled = depth_of(d->k, as), depth = mm_own ? d->k : filled;
    const int64_t row = filled * (int64_t)tess_dtype_size(as);
    TESS_ASSERT(!tess_is_quantized(d->b) || !d->ta);
    const bool turn = d->ta || d->lda != filled || d->k != filled, few = d->part || d->m < 2 * MM_PART_ROWS;
    const bool made = mm_own || as != d->in || d->fp8;
    const bool pack = made || !d->tb || d->ldb != depth || d->k != depth || !few || tess_is_quantized(d->b);
    mm_panels p = {.d = d, .dense = *d, .turn = turn, .make = turn || made, .pack = pack, .depth = depth};
    p.dense.in = as, p.dense.k = p.dense.lda = p.dense.ldb = depth, p.dense.ta = false, p.dense.packed = pack;

    /* Of B `cols` are packed at a time; pieces of A meet them `strip` by strip. */
    const int64_t cols = pack ? least(d->n, fit(MM_B_BYTES, row, MM_PANEL)) : d->n;
    p.rows = turn ? least(d->m, MM_ROWS) : pack ? least(d->m, MM_PART_ROWS) : d->m, p.strip = cols;
    if (p.make) p.rows = least(p.rows, fit(MM_A_BYTES, row, 1));
    const int64_t across = tess_parts_of(cols, columns_of_part(turn, depth));
    const bool cut = pack && across > 1;
    const int64_t side = cut ? round_up(tess_parts_of(cols, across), MM_PANEL) : MM_COLS;
    if (cols < d->n || d->ldc != d->n || cut || (made && tess_is_half(d->out))) {
        p.strip = least(cols, pack ? side : fit(MM_C_BYTES, p.rows * 4, MM_PANEL));
        p.rows = least(p.rows, fit(MM_C_BYTES, p.strip * 4, 1));
    }
    if (mm_own && p.rows > mm_own->rows) p.rows -= p.rows % mm_own->rows;
    p.wide = cut ? p.strip : cols;
    p.cols_of_a_part = fit(MM_PACK_BYTES, row, MM_PANEL);
    *columns = cols;
    return p;
}

/* Terms of a sum that are zeros can be left out where it is one chain: with kernels of our own, and in those of the
 * library up to this depth, beyond which it adds up parts whose borders would move. Its kernels for tiles were not
 * tried. */
enum { MM_CHAIN = 512 };
static bool leaves_out(const tess_mm *d)
{
    return d->ta && d->idle && d->k == d->idle->rows && (mm_own || (d->k <= MM_CHAIN && !tess_mm_tiles()));
}

/* B is packed once, whoever needs it: first all take some of its columns, then pieces of C. */
static void run_panels(mm_thread *t, const tess_mm *d, const void *a, const void *b, void *c)
{
    int64_t cols;
    mm_panels p = cut_panels(d, &cols);
    tess_mm less = *d;
    if (leaves_out(d)) { /* the cut stays */
        less.k = d->idle->kept;
        p.depth = mm_own ? less.k : depth_of(less.k, p.dense.in);
        p.dense.k = p.dense.lda = p.dense.ldb = p.depth;
    } else if (d->ta)
        less.idle = NULL;
    p.d = d = &less;
    const int64_t row = p.depth * (int64_t)tess_dtype_size(p.dense.in);
    p.a = a, p.b = b, p.c = c, p.number = p.make ? ++mm_number : 0;
    for (p.n0 = 0; p.n0 < d->n; p.n0 += cols) {
        p.n1 = least(p.n0 + cols, d->n);
        if (p.pack) {
            p.panels = buffer_get(t, MM_B, (size_t)(round_up(p.n1 - p.n0, MM_PANEL) * row));
            tess_parts_run(tess_parts_of(p.n1 - p.n0, p.cols_of_a_part), pack_part, &p);
        }
        tess_parts_run(tess_parts_of(d->m, p.rows) * tess_parts_of(p.n1 - p.n0, p.wide), piece_part, &p);
    }
}

typedef void (*mm_run)(mm_thread *t, const tess_mm *d, const void *a, const void *b, void *c);

/* Rows of a sum on their way to C. */
typedef struct mm_put {
    const tess_mm *d;
    void *c;
    const float *sum;
    int64_t m, n;
} mm_put;
static void put_part(void *of, int64_t k)
{
    const mm_put *p = of;
    const int64_t first = k * MM_PART_ROWS;
    put_out(tess_at_mut(p->c, first * p->d->ldc, p->d->out), p->d, p->sum + first * p->n,
            least(MM_PART_ROWS, p->m - first), p->n);
}

/* Cut into blocks of `cols` by `rows` of C and parts of `depth`, each for `run`, whose C is fp32: C itself or a sum of
 * its own that is rounded at the end. */
static void run_blocks(mm_thread *t, const tess_mm *d, const void *a, const void *b, void *c, int64_t rows,
                       int64_t cols, int64_t depth, mm_run run)
{
    const bool in_place = d->out == TESS_F32;
    for (int64_t n0 = 0; n0 < d->n; n0 += cols)
        for (int64_t m0 = 0; m0 < d->m; m0 += rows) {
            tess_mm block = *d;
            block.row = d->row + m0;
            block.m = least(rows, d->m - m0), block.n = least(cols, d->n - n0), block.out = TESS_F32;
            block.bias = d->bias ? d->bias + n0 : NULL;
            if (!in_place) block.ldc = block.n, block.acc = false;
            void *mine = tess_at_mut(c, m0 * d->ldc + n0, d->out);
            float *sum = in_place ? mine : buffer_get(t, MM_SUM, (size_t)(block.m * block.n) * 4);
            for (int64_t k = 0; k < d->k; k += depth) {
                block.k = least(depth, d->k - k);
                run(t, &block, tess_at(a, d->ta ? k * d->lda + m0 : m0 * d->lda + k, d->in),
                    b_at(d, b, d->tb ? n0 * d->ldb + k : k * d->ldb + n0), sum);
                block.acc = true, block.bias = NULL;
            }
            if (!in_place) {
                mm_put put = {d, mine, sum, block.m, block.n};
                tess_parts_run(tess_parts_of(block.m, MM_PART_ROWS), put_part, &put);
            }
        }
}

/* The k of its parts. What is packed is not cut: its panels are as deep as it is. */
static int64_t depth_of_part(const tess_mm *d)
{
    const bool bf16 = mm_as[d->in] == TESS_BF16;
    if (mm_own || tess_is_quantized(d->b)) /* whose values are in a buffer on their way */
        return round_up(tess_parts_of(d->k, tess_parts_of(d->k, MM_DEEP_OWN)), MM_PANEL);
    const int64_t most = d->ta ? MM_DEEPEST_TURNED : bf16 ? MM_DEEPEST : MM_DEEPEST_F32;
    const int64_t parts = tess_parts_of(d->k, most);
    const int64_t deep = d->lda == d->k && d->k % MM_PANEL == 0 ? MM_DEEP_DENSE : MM_DEEP;
    if (bf16 && d->k > deep && !d->ta && !d->tb) return MM_DEPTH;
    return round_up(tess_parts_of(d->k, parts), MM_PANEL);
}

/* Parts of `depth`, in blocks whose sums fit. */
static void run_summed(mm_thread *t, const tess_mm *d, const void *a, const void *b, void *c, int64_t depth, mm_run run)
{
    int64_t rows = d->m, cols = d->n;
    if (tess_is_half(d->out)) {
        cols = least(cols, fit(MM_SUM_BYTES, rows * 4, MM_PANEL));
        rows = least(rows, fit(MM_SUM_BYTES, cols * 4, 1));
    }
    run_blocks(t, d, a, b, c, rows, cols, depth, run);
}

static void run_deep(mm_thread *t, const tess_mm *d, const void *a, const void *b, void *c)
{
    const int64_t depth = depth_of_part(d);
    if (depth < d->k)
        run_summed(t, d, a, b, c, depth, run_panels);
    else
        run_panels(t, d, a, b, c);
}

void tess_mm_run(const tess_mm *d, const void *a, const void *b, void *c)
{
    mm_thread *t = thread_get();
    tess_mm of = *d;
    TESS_ASSERT(d->m > 0 && d->n > 0 && d->k > 0);
    if (d->fp8) {
        TESS_ASSERT(d->in == TESS_BF16 && !tess_is_quantized(d->b));
        of.scale_a = scale_of(a, d->ta ? d->k : d->m, d->ta ? d->m : d->k, d->lda, d->idle, d->fp8);
        of.scale_b = scale_of(b, d->tb ? d->n : d->k, d->tb ? d->k : d->n, d->ldb, d->ta ? d->idle : NULL, TESS_E4M3);
    }
    /* On CPUs other than x86-64 the library's plain product is portable C, which is no yardstick. */
    if (d->plain && mm_as[d->in] == d->in && (ON_X86 || !mm_own))
        call(t, d, a, b, c);
    else
        run_deep(t, &of, a, b, c);
}

int64_t tess_mm_parts(tess_mm d)
{
    int64_t cols;
    d.k = least(d.k, depth_of_part(&d));
    const mm_panels p = cut_panels(&d, &cols);
    return tess_parts_of(d.m, p.rows) * tess_parts_of(least(cols, d.n), p.wide);
}

tess_dtype tess_mm_as(tess_dtype t)
{
    thread_get();
    return mm_as[t];
}

bool tess_matrix_widened(tess_dtype t)
{
    return tess_mm_as(t) != t;
}
bool tess_matrix_across(bool machines)
{
    thread_get();
    mm_choose(machines);
    return !ON_X86 || tess_library_sees(dnnl_cpu_isa_avx2);
}
bool tess_mm_across(void)
{
    thread_get();
    return mm_across;
}
int tess_mm_lanes(void)
{
    thread_get();
    return tess_library_sees(dnnl_cpu_isa_avx512_core) ? 16 : tess_library_sees(dnnl_cpu_isa_avx2) ? 8 : 4;
}
bool tess_mm_tiles(void)
{
    thread_get();
    return tess_library_sees(dnnl_cpu_isa_avx512_core_amx);
}

void *tess_mm_room(size_t bytes, int64_t most, int64_t *rows)
{
    mm_thread *t = thread_get();
    t->dense = 0;
    *rows = least(most, fit(MM_A_BYTES, (int64_t)bytes, 1));
    return buffer_get(t, MM_A, (size_t)*rows * bytes);
}

size_t tess_mm_held(void)
{
    const mm_thread *t = thread_get();
    size_t sum = 0;
    for (int i = 0; i < MM_BUFFERS; i++) sum += t->buffer[i].bytes;
    return sum;
}

size_t tess_mm_bytes(int workers, tess_dtype t)
{
    (void)t;
    const size_t each =
        MM_SCRATCH_BYTES + MM_LIMIT * MM_ENTRY_BYTES + MM_A_BYTES + MM_B_BYTES + MM_C_BYTES + MM_SUM_BYTES;
    return (size_t)workers * each + MM_LIMIT * MM_KERNEL_BYTES;
}
