/* parts_impl: ops whose parts are the same op on fewer of its elements or rows. A cut says how many parts a task has,
 * and what the task is of one of them; the op's body is then run on that:
 *
 *     TESS_REAL_CUT(add_forward, tess_cut_elements)    // instead of TESS_REAL(add_forward)
 *
 * Ops whose parts differ in more than that call tess_parts_run themselves. How large a part is depends on shapes alone.
 */
#ifndef TESS_PARTS_IMPL_H
#define TESS_PARTS_IMPL_H
#include "vector.h"

enum { TESS_PART_ELEMENTS = 64 << 10, TESS_CUT_BUFFERS = 7 };

/* A task of one part. */
typedef struct tess_cut {
    tess_work work;
    tess_view buf[TESS_CUT_BUFFERS];
    union {
        tess_map_arg map;
        tess_norm_arg norm;
        tess_dropout_arg dropout;
    } arg;
} tess_cut;

static inline int64_t tess_parts_of(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}
/* Rows of `width` elements that a part has. */
static inline int64_t tess_part_rows(int64_t width)
{
    return width < TESS_PART_ELEMENTS ? TESS_PART_ELEMENTS / width : 1;
}

static inline void tess_cut_begin(tess_cut *c, const tess_work *w)
{
    c->work = *w;
    TESS_ASSERT(w->nbuf <= TESS_CUT_BUFFERS);
    for (unsigned i = 0; i < w->nbuf; i++) c->buf[i] = w->buf[i];
    c->work.buf = c->buf;
    c->work.arg = &c->arg;
}
static inline void tess_cut_skip(tess_cut *c, unsigned i, int64_t elements, tess_dtype t)
{
    c->buf[i].ptr = tess_at_mut(c->buf[i].ptr, elements, t);
}

/* All buffers are elements of the op's dtype. */
static inline int64_t tess_cut_elements(const tess_work *w, int64_t k, tess_dtype t, tess_cut *c)
{
    const tess_map_arg *a = w->arg;
    const int64_t first = k * TESS_PART_ELEMENTS;
    if (c) {
        tess_cut_begin(c, w);
        c->arg.map = *a;
        c->arg.map.n = a->n - first < TESS_PART_ELEMENTS ? a->n - first : TESS_PART_ELEMENTS;
        for (unsigned i = 0; i < w->nbuf; i++) tess_cut_skip(c, i, first, t);
    }
    return tess_parts_of(a->n, TESS_PART_ELEMENTS);
}

/* The bodies of an op as a codelet has them: whole where there is one part. */
#define TESS_CUT_BODY(op, cut, name, t)                                                                                \
    TESS_CLONES static void op##_whole_##name(const tess_work *w)                                                      \
    {                                                                                                                  \
        op(w, t);                                                                                                      \
    }                                                                                                                  \
    static void op##_part_##name(void *of, int64_t k)                                                                  \
    {                                                                                                                  \
        tess_cut c;                                                                                                    \
        cut(of, k, t, &c);                                                                                             \
        op##_whole_##name(&c.work);                                                                                    \
    }                                                                                                                  \
    static void op##_##name(const tess_work *w)                                                                        \
    {                                                                                                                  \
        const int64_t parts = cut(w, 0, t, NULL);                                                                      \
        if (parts < 2)                                                                                                 \
            op##_whole_##name(w);                                                                                      \
        else                                                                                                           \
            tess_parts_run(parts, op##_part_##name, (void *)w);                                                        \
    }
#define TESS_REAL_CUT(op, cut)                                                                                         \
    TESS_CUDA_DECLARE(op##_f32)                                                                                        \
    TESS_CUDA_DECLARE(op##_bf16)                                                                                       \
    TESS_CUDA_DECLARE(op##_f16)                                                                                        \
    TESS_CUT_BODY(op, cut, f32, TESS_F32)                                                                              \
    TESS_CUT_BODY(op, cut, bf16, TESS_BF16)                                                                            \
    TESS_CUT_BODY(op, cut, f16, TESS_F16)                                                                              \
    static int64_t op##_parts(const tess_codelet *cl, const void *arg)                                                 \
    {                                                                                                                  \
        return cut(&(tess_work){.arg = arg}, 0, cl->dtype, NULL);                                                      \
    }                                                                                                                  \
    TESS_PART_CODELETS(op)

/* A part's body in all dtypes, with a choice of vectors. */
#define TESS_PART_BODIES(part)                                                                                         \
    TESS_CLONES static void part##_f32(void *of, int64_t k)                                                            \
    {                                                                                                                  \
        part(of, k, TESS_F32);                                                                                         \
    }                                                                                                                  \
    TESS_CLONES static void part##_bf16(void *of, int64_t k)                                                           \
    {                                                                                                                  \
        part(of, k, TESS_BF16);                                                                                        \
    }                                                                                                                  \
    TESS_CLONES static void part##_f16(void *of, int64_t k)                                                            \
    {                                                                                                                  \
        part(of, k, TESS_F16);                                                                                         \
    }
#define TESS_PART_BODY(part, t) ((t) == TESS_BF16 ? part##_bf16 : (t) == TESS_F16 ? part##_f16 : part##_f32)

/* A norm's forward pass: x, ..., from `y` on y and `each` figures of a row. */
static inline int64_t tess_cut_norm(const tess_work *w, int64_t k, tess_dtype t, unsigned y, int64_t each, tess_cut *c)
{
    const tess_norm_arg *a = w->arg;
    const int64_t rows = tess_part_rows(a->width), first = k * rows;
    if (c) {
        tess_cut_begin(c, w);
        c->arg.norm = *a;
        c->arg.norm.rows = a->rows - first < rows ? a->rows - first : rows;
        tess_cut_skip(c, 0, first * a->width, t);
        tess_cut_skip(c, y, first * a->width, t);
        tess_cut_skip(c, y + 1, first * each, TESS_F32);
    }
    return tess_parts_of(a->rows, rows);
}

/* A norm's backward pass from the functions backward_rows and backward_columns, which come before this: parts of some
 * rows of dx, and parts of some columns of the gradients of gain and bias, whose sums are over all rows. */
enum { TESS_NORM_COLUMNS = 128 };
static inline int64_t tess_norm_parts(const tess_norm_arg *a)
{
    return tess_parts_of(a->rows, tess_part_rows(a->width)) + tess_parts_of(a->width, TESS_NORM_COLUMNS);
}
#define TESS_NORM_BODY(op, name, t)                                                                                    \
    TESS_CLONES static void op##_part_##name(void *of, int64_t k)                                                      \
    {                                                                                                                  \
        const tess_work *w = of;                                                                                       \
        const tess_norm_arg *a = w->arg;                                                                               \
        const int64_t rows = tess_part_rows(a->width), blocks = tess_parts_of(a->rows, rows);                          \
        const int64_t first = k < blocks ? k * rows : (k - blocks) * TESS_NORM_COLUMNS;                                \
        const int64_t left = (k < blocks ? a->rows : a->width) - first;                                                \
        if (k < blocks)                                                                                                \
            backward_rows(w, first, first + (left < rows ? left : rows), t);                                           \
        else                                                                                                           \
            backward_columns(w, first, left < TESS_NORM_COLUMNS ? left : TESS_NORM_COLUMNS, t);                        \
    }                                                                                                                  \
    static void op##_##name(const tess_work *w)                                                                        \
    {                                                                                                                  \
        const tess_norm_arg *a = w->arg;                                                                               \
        tess_parts_run(tess_norm_parts(a), op##_part_##name, (void *)w);                                               \
    }
#define TESS_NORM_BACKWARD(op)                                                                                         \
    TESS_CUDA_DECLARE(op##_f32)                                                                                        \
    TESS_CUDA_DECLARE(op##_bf16)                                                                                       \
    TESS_CUDA_DECLARE(op##_f16)                                                                                        \
    TESS_NORM_BODY(op, f32, TESS_F32)                                                                                  \
    TESS_NORM_BODY(op, bf16, TESS_BF16)                                                                                \
    TESS_NORM_BODY(op, f16, TESS_F16)                                                                                  \
    static int64_t op##_parts(const tess_codelet *cl, const void *arg)                                                 \
    {                                                                                                                  \
        (void)cl;                                                                                                      \
        return tess_norm_parts(arg);                                                                                   \
    }

#endif
