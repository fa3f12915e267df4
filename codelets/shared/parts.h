/* parts: ops whose parts are the same op on fewer of its elements or rows. A cut says how many parts a task has,
 * and what the task is of one of them; the op's body is then run on that:
 *
 *     TESS_REAL_CUT(add_forward, tess_part_task_elements)    // instead of TESS_REAL(add_forward)
 *
 * Ops whose parts differ in more than that call tess_parts_run themselves. How large a part is depends on shapes alone.
 */
#ifndef TESS_PARTS_H
#define TESS_PARTS_H
#include "codelets/shared/vector.h"

enum { TESS_PART_ELEMENTS = 64 << 10, TESS_PART_BUFFERS = 7 };

/* A task of one part. */
typedef struct tess_part_task {
    tess_work work;
    tess_view buf[TESS_PART_BUFFERS];
    union {
        tess_map_arg map;
        tess_norm_arg norm;
        tess_dropout_arg dropout;
        tess_swiglu_arg swiglu;
    } arg;
} tess_part_task;

static inline int64_t tess_parts_of(int64_t n, int64_t each)
{
    return (n + each - 1) / each;
}
/* Rows of `width` elements that a part has. */
static inline int64_t tess_part_rows(int64_t width)
{
    return width < TESS_PART_ELEMENTS ? TESS_PART_ELEMENTS / width : 1;
}

static inline void tess_part_task_begin(tess_part_task *c, const tess_work *w)
{
    c->work = *w;
    TESS_ASSERT(w->nbuf <= TESS_PART_BUFFERS);
    for (unsigned i = 0; i < w->nbuf; i++) c->buf[i] = w->buf[i];
    c->work.buf = c->buf;
    c->work.arg = &c->arg;
}
static inline void tess_part_task_skip(tess_part_task *c, unsigned i, int64_t elements, tess_dtype t)
{
    c->buf[i].ptr = tess_at_mut(c->buf[i].ptr, elements, t);
}

/* All buffers are elements of the op's dtype. */
static inline int64_t tess_part_task_elements(const tess_work *w, int64_t k, tess_dtype t, tess_part_task *c)
{
    const tess_map_arg *a = w->arg;
    const int64_t first = k * TESS_PART_ELEMENTS;
    if (c) {
        tess_part_task_begin(c, w);
        c->arg.map = *a;
        c->arg.map.n = a->n - first < TESS_PART_ELEMENTS ? a->n - first : TESS_PART_ELEMENTS;
        for (unsigned i = 0; i < w->nbuf; i++) tess_part_task_skip(c, i, first, t);
    }
    return tess_parts_of(a->n, TESS_PART_ELEMENTS);
}

/* An elementwise op and its parts: y [+]= what the expression makes of an element of one buffer, or of two, by names of
 * its own for them. It may ask `a`, a copy of the task's tess_map_arg. The body alone is TESS_MAP_BODY's:
 *
 *     TESS_MAP(scale, x, a.acc, a.by * x)
 *     TESS_MAP_TWO(silu_backward, dy, x, a.acc, dy * slope(x)) */
#define TESS_MAP(op, x, acc, ...)                                                                                      \
    TESS_MAP_BODY(op, x, acc, __VA_ARGS__)                                                                             \
    TESS_REAL_CUT(op, tess_part_task_elements)
#define TESS_MAP_TWO(op, x, z, acc, ...)                                                                               \
    TESS_MAP_TWO_BODY(op, x, z, acc, __VA_ARGS__)                                                                      \
    TESS_REAL_CUT(op, tess_part_task_elements)
#define TESS_MAP_BODY(op, x, acc, ...)                                                                                 \
    TESS_INLINE void op(const tess_work *w, tess_dtype t)                                                              \
    {                                                                                                                  \
        const tess_map_arg a = *(const tess_map_arg *)w->arg;                                                          \
        const void *from = w->buf[0].ptr;                                                                              \
        void *to = w->buf[1].ptr;                                                                                      \
        _Pragma("omp simd") for (int64_t i = 0; i < a.n; i++)                                                          \
        {                                                                                                              \
            const float x = tess_load(from, i, t);                                                                     \
            tess_accumulate(to, i, t, acc, (__VA_ARGS__));                                                             \
        }                                                                                                              \
    }
#define TESS_MAP_TWO_BODY(op, x, z, acc, ...)                                                                          \
    TESS_INLINE void op(const tess_work *w, tess_dtype t)                                                              \
    {                                                                                                                  \
        const tess_map_arg a = *(const tess_map_arg *)w->arg;                                                          \
        const void *from = w->buf[0].ptr, *with = w->buf[1].ptr;                                                       \
        void *to = w->buf[2].ptr;                                                                                      \
        _Pragma("omp simd") for (int64_t i = 0; i < a.n; i++)                                                          \
        {                                                                                                              \
            const float x = tess_load(from, i, t), z = tess_load(with, i, t);                                          \
            tess_accumulate(to, i, t, acc, (__VA_ARGS__));                                                             \
        }                                                                                                              \
    }

/* The bodies of an op as a codelet has them: whole where there is one part. */
#define TESS_REAL_CUT(op, cut)                                                                                         \
    TESS_EACH_REAL(TESS_CUT_BODY, op, cut)                                                                             \
    static int64_t op##_parts(const tess_codelet *cl, const void *arg)                                                 \
    {                                                                                                                  \
        return cut(&(tess_work){.arg = arg}, 0, cl->dtype, NULL);                                                      \
    }                                                                                                                  \
    TESS_CODELETS(op, op, .parts = op##_parts)
#define TESS_CUT_BODY(op, name, t, cut)                                                                                \
    TESS_CUDA_DECLARE(op##_##name)                                                                                     \
    TESS_CLONES static void op##_whole_##name(const tess_work *w)                                                      \
    {                                                                                                                  \
        op(w, t);                                                                                                      \
    }                                                                                                                  \
    static void op##_part_##name(void *of, int64_t k)                                                                  \
    {                                                                                                                  \
        tess_part_task c;                                                                                              \
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

/* A part's body in all dtypes, with a choice of vectors. */
#define TESS_PART_BODIES(part) TESS_EACH_REAL(TESS_PART, part, )
#define TESS_PART(part, name, t, ...)                                                                                  \
    TESS_CLONES static void part##_##name(void *of, int64_t k)                                                         \
    {                                                                                                                  \
        part(of, k, t);                                                                                                \
    }
#define TESS_PART_BODY(part, t) ((t) == TESS_BF16 ? part##_bf16 : (t) == TESS_F16 ? part##_f16 : part##_f32)

#endif
