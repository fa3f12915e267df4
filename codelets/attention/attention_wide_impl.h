/* attention_wide: what attention's forward and backward pass with vectors of WIDE fp32 share: which keys a block of
 * queries sees, and how operands come into the form that products read. */
#ifndef TESS_ATTENTION_WIDE_IMPL_H
#define TESS_ATTENTION_WIDE_IMPL_H
#include "codelets/attention/attention_impl.h"
#include "codelets/products/units.h"
#include "codelets/shared/wide.h"

/* Of what every way is asked, whatever this CPU has: sanitizers would begin it with vectors. */
#ifdef __x86_64__
#define ANY_CPU __attribute__((no_sanitize_address, no_sanitize_undefined, target("no-avx512f")))
#else
#define ANY_CPU
#endif

enum { MOST_QUERIES = 128, WIDE_EVEN = 32 }; /* of a block; what its sides are multiples of */

static int64_t even(int64_t n)
{
    return round_up(n, WIDE_EVEN);
}

static void *take_floats(char **room, int64_t n)
{
    return take(room, (size_t)n * sizeof(float));
}

/* ---- what queries see -------------------------------------------------------------------------------------------- */

/* A block of queries, in groups of 32. */
typedef struct sight {
    int32_t first[MOST_QUERIES], end[MOST_QUERIES]; /* the keys that each sees; past the last query none */
    int32_t any_first[MOST_QUERIES / 32], any_end[MOST_QUERIES / 32]; /* those that any of a group sees */
    int32_t all_first[MOST_QUERIES / 32], all_end[MOST_QUERIES / 32]; /* those that all do */
    int groups;
    int64_t begin, finish; /* those that any query sees */
} sight;

static void look(sight *s, const place *b, const tess_attention_arg *a)
{
    const int64_t keys = keys_of(a);
    s->groups = (int)(even(b->nq) / 32);
    s->begin = keys, s->finish = 0;
    for (int g = 0; g < s->groups; g++) {
        int64_t any_first = keys, any_end = 0, all_first = 0, all_end = keys;
        for (int64_t i = g * 32; i < g * 32 + 32; i++) {
            range r = i < b->nq ? seen_by(b, a, b->q0 + i) : (range){0, 0};
            r.end = least(r.end, keys);
            if (r.end <= r.first) r = (range){0, 0};
            s->first[i] = (int32_t)r.first, s->end[i] = (int32_t)r.end;
            if (r.first > all_first) all_first = r.first;
            if (r.end < all_end) all_end = r.end;
            if (r.end == 0) continue;
            if (r.first < any_first) any_first = r.first;
            if (r.end > any_end) any_end = r.end;
        }
        s->any_first[g] = (int32_t)any_first, s->any_end[g] = (int32_t)any_end;
        s->all_first[g] = (int32_t)all_first, s->all_end[g] = (int32_t)all_end;
        if (any_first < s->begin) s->begin = any_first;
        if (any_end > s->finish) s->finish = any_end;
    }
}

/* A block of keys before those queries: columns [from, to) see some of it; `nk` keys, filled to even; whether some see
 * not all of those. */
typedef struct window {
    int64_t k0, nk, from, to;
    bool masked;
} window;
static window window_at(const sight *s, int64_t k0, int64_t most)
{
    window w = {.k0 = k0, .nk = even(least(most, s->finish - k0)), .from = s->groups, .masked = false};
    for (int g = 0; g < s->groups; g++) {
        if (s->any_first[g] >= k0 + w.nk || s->any_end[g] <= k0) continue;
        if (g < w.from) w.from = g;
        w.to = g + 1;
    }
    for (int64_t g = w.from; g < w.to; g++)
        if (s->all_first[g] > k0 || s->all_end[g] < k0 + w.nk) w.masked = true;
    w.from *= 32, w.to *= 32;
    return w;
}

/* keep (nk, each), of columns [from, to): `one` or 0, as dropout has it. */
static void draw(float *keep, const place *b, const window *w, int64_t each, float one)
{
    const uint32_t q = tess_quad_of(b->query0 + b->q0);
    for (int64_t j = 0; j < w->nk; j += j % 8 == 7 ? 9 : 1) {
        const uint32_t k = tess_quad_of(b->key0 + w->k0 + j);
        uint32_t bits[MOST_QUERIES / 2];
#pragma omp simd
        for (int64_t i = w->from / 2; i < w->to / 2; i++) bits[i] = tess_quad_bits(b->random, q + (uint32_t)i, k);
        for (int of = 0; of < 4; of++) {
            float *row = keep + (j + of % 2 * 8) * each + of / 2 * 8;
            for (int64_t i = w->from; i < w->to; i += 16)
#pragma omp simd
                for (int64_t l = 0; l < 8; l++)
                    row[i + l] = tess_quad_keeps(bits[i / 2 + l], of / 2, of % 2, b->rule) ? one : 0;
        }
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Defines a product of a block in fp32; products differ in the strides of their operands and in whether they add. */
#define WIDE_PRODUCT(name, row, column, ldb, ldc, acc)                                                                 \
    __attribute__((noinline)) static void name(int64_t m, int64_t n, int64_t k, int64_t dim, const void *a,            \
                                               const void *b, float *c)                                                \
    {                                                                                                                  \
        (void)dim;                                                                                                     \
        wide_product(false, m, n, k, a, row, column, b, ldb, c, ldc, acc);                                             \
    }

/* ---- operands ---------------------------------------------------------------------------------------------------- */

enum { AHEAD = 12 }; /* rows that are asked for early: they lie far apart, which the CPU does not foresee */

/* to (even rows, even dim) = from, of rows `ld` apart, as fp32 or, of bf16, as it is; zeros beyond. */
static void gather_rows(void *to, const void *from, int64_t ld, int64_t rows, int64_t dim, bool half, tess_dtype t)
{
    const int64_t wide = even(dim);
    const size_t size = half ? 2 : 4;
    for (int64_t i = 0; i < rows; i++) {
        char *row = (char *)to + (size_t)(i * wide) * size;
        for (int64_t at = 0; i + AHEAD < rows && at < dim * (int64_t)tess_dtype_size(t); at += 64)
            __builtin_prefetch((const char *)tess_at(from, (i + AHEAD) * ld, t) + at);
        if (half || t == TESS_F32)
            memcpy(row, tess_at(from, i * ld, t), (size_t)dim * size);
        else if (t == TESS_BF16)
            tess_widen((float *)(void *)row, tess_at(from, i * ld, t), dim, TESS_BF16);
        else
            tess_widen((float *)(void *)row, tess_at(from, i * ld, t), dim, TESS_F16);
        memset(row + (size_t)dim * size, 0, (size_t)(wide - dim) * size);
    }
    memset((char *)to + (size_t)(rows * wide) * size, 0, (size_t)((even(rows) - rows) * wide) * size);
}

/* to (dim in units, each) = rows of `from` (even rows, even dim), transposed. */
static void turn_rows(uint32_t *to, const void *from, int64_t rows, int64_t dim, int64_t each, tess_dtype t)
{
    const int64_t units = units_of(even(dim), t);
    wide y[4];
    for (int64_t r = 0; r < rows; r += WIDE)
        for (int64_t u = 0; u < units; u += 4) {
            wide_turn(y, (const float *)from + r * units + u, units);
            for (int i = 0; i < 4; i++) wide_store((float *)to + (u + i) * each + r, y[i]);
        }
}
/* to (queries, dim) = from (dim, each), both even. */
static void turn_back(float *to, const float *from, int64_t queries, int64_t dim, int64_t each)
{
    const int64_t columns = even(dim);
    wide y[4];
    for (int64_t c = 0; c < columns; c += WIDE)
        for (int64_t i = 0; i < queries; i += 4) {
            wide_turn(y, from + c * each + i, each);
            for (int r = 0; r < 4; r++) wide_store(to + (i + r) * columns + c, y[r]);
        }
}

#if WIDE == 16
/* Blocks of `each` keys of a (keys, dim) of bf16, transposed: (even dim, each), one behind the other. */
static void turn_blocks(void *to, const void *from, int64_t keys, int64_t dim, int64_t each)
{
    const int64_t wide = even(dim);
    mm_vector x[16];
    for (int64_t k0 = 0; k0 < keys; k0 += each) {
        uint32_t *block = (uint32_t *)to + k0 * wide / 2;
        for (int64_t u = 0; u * 2 < least(each, even(keys) - k0); u += 16)
            for (int64_t c = 0; c < wide; c += 16) {
                load_across(x, tess_at(from, k0 * wide, TESS_BF16), wide, u, c, even(keys) - k0, wide, TESS_BF16,
                            TESS_BF16);
                transpose(x);
                store(block + c * (each / 2) + u, each / 2, x, 16);
            }
    }
}
/* to (rows in units, even dim) = rows of `from`, of bf16. */
static void pair_rows(uint32_t *to, const void *from, int64_t rows, int64_t dim)
{
    const int64_t wide = even(dim);
    mm_vector x[16];
    for (int64_t u = 0; u * 2 < rows; u += 16)
        for (int64_t c = 0; c < wide; c += 16) {
            load_across(x, from, wide, u, c, even(rows), wide, TESS_BF16, TESS_BF16);
            store(to + u * wide + c, wide, x, 16);
        }
}
#else
#define turn_blocks(...) (void)0
#define pair_rows(...)   (void)0
#endif

/* put_rows by its dtype. */
static void put(void *to, int64_t ld, const float *from, int64_t apart, float by, int64_t rows, int64_t dim, bool acc,
                tess_dtype t)
{
    TESS_BY_DTYPE(t, put_rows, to, ld, from, apart, by, rows, dim, acc);
}

/* ---- bodies ------------------------------------------------------------------------------------------------------ */

/* Of forward_unit or backward_unit: halves in 16 bits where the CPU has instructions for that, and all else in fp32. */
#if WIDE == 16
#define WIDE_HALVES(pass)                                                                                              \
    static void pass##_on_tiles(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)             \
    {                                                                                                                  \
        wide_tiles_begin();                                                                                            \
        pass##_unit(task, sequence, group, ON_TILES, t);                                                               \
        wide_tiles_end();                                                                                              \
    }                                                                                                                  \
    static void pass##_in_pairs(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)             \
    {                                                                                                                  \
        pass##_unit(task, sequence, group, IN_PAIRS, t);                                                               \
    }
#else
#define WIDE_HALVES(pass)                                                                                              \
    static void (*const pass##_on_tiles)(const attention_task *, int64_t, int64_t, tess_dtype) = NULL;                 \
    static void (*const pass##_in_pairs)(const attention_task *, int64_t, int64_t, tess_dtype) = NULL;
#endif
#define WIDE_BODY(pass)                                                                                                \
    WIDE_HALVES(pass)                                                                                                  \
    static void pass##_in_floats(const attention_task *task, int64_t sequence, int64_t group, tess_dtype t)            \
    {                                                                                                                  \
        pass##_unit(task, sequence, group, IN_FLOATS, t);                                                              \
    }
#define WIDE_BODIES(pass)                                                                                              \
    {                                                                                                                  \
        pass##_in_floats, pass##_on_tiles, pass##_in_pairs                                                             \
    }

#endif
