/* any_map: a program of scalar functions over operands with strides. The index space is walked in runs of its last
 * dimension, which fill blocks of 256 elements; a step of the program is a loop over a block, so that what is read and
 * branched on for each step is paid for 256 elements. */
#include "codelets/generic/map_impl.h"
#include "codelets/generic/whole.h"

enum { BLOCK = TESS_MAP_BLOCK, PART = 32 << 10 };

/* ---- a program on a block ---- */

#define EACH(field, ...)                                                                                               \
    do {                                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y->field[i] = (__VA_ARGS__);                               \
    } while (0)
#define CASE(name, field, ...)                                                                                         \
    case TESS_FN_##name:                                                                                               \
        EACH(field, __VA_ARGS__);                                                                                      \
        break;
#define A                     a->real[i]
#define B                     b->real[i]
#define C                     c->real[i]
#define J                     a->whole[i]
#define K                     b->whole[i]
#define L                     c->whole[i]
#define EXP(x)                tess_expf(x)
#define TANH(x)               tess_tanhf(x)
#define LIBRARY(f, x)         ((float)f((double)(x)))
#define LIBRARY_2(f, x, with) ((float)f((double)(x), (double)(with)))

TESS_INLINE void real_step(const tess_fn_step *s, map_block *y, const map_block *a, const map_block *b,
                           const map_block *c, int64_t n)
{
    switch (s->fn) {
#define REAL(name, ...) CASE(name, real, __VA_ARGS__)
#include "codelets/generic/expressions.def"
    default:
        TESS_ASSERT(0);
    }
}

TESS_INLINE void whole_step(const tess_fn_step *s, map_block *y, const map_block *a, const map_block *b,
                            const map_block *c, int64_t n)
{
    const int32_t mask = s->element == TESS_BOOL ? 1 : -1;
    switch (s->fn) {
        CASE(not, whole, ~J & mask)
#define WHOLE(name, ...) CASE(name, whole, __VA_ARGS__)
#include "codelets/generic/expressions.def"
    default:
        TESS_ASSERT(0);
    }
}

void tess_fold_in(int32_t key[2], int32_t number)
{
    const int32_t first = tess_threefry(key[0], key[1], number, 0);
    key[1] = tess_threefry(key[0], key[1], number, 1);
    key[0] = first;
}

/* Steps that do not make the element that they take. */
TESS_INLINE bool other_step(const tess_fn_step *s, tess_element of, map_block *y, const map_block *a,
                            const map_block *b, const map_block *c, int64_t n)
{
    switch (s->fn) {
#define TEST(name, sign)                                                                                               \
    case TESS_FN_##name:                                                                                               \
        if (of == TESS_REAL)                                                                                           \
            EACH(whole, A sign B);                                                                                     \
        else                                                                                                           \
            EACH(whole, J sign K);                                                                                     \
        return true;
#define OTHER(name, ...)                                                                                               \
    case TESS_FN_##name:                                                                                               \
        EACH(whole, __VA_ARGS__);                                                                                      \
        return true;
#define VALUE s->is.whole
#include "codelets/generic/expressions.def"
    case TESS_FN_cast:
        if (s->element == TESS_REAL && of != TESS_REAL)
            EACH(real, (float)J);
        else if (s->element == TESS_BOOL && of == TESS_REAL)
            EACH(whole, A != 0);
        else if (s->element == TESS_BOOL)
            EACH(whole, J != 0);
        else if (s->element == TESS_INT && of == TESS_REAL)
            EACH(whole, tess_whole_of(A));
        else
            EACH(whole, J);
        return true;
    default:
        return false;
    }
}

/* Runs steps from k on, up to the next that loads, which it returns. */
TESS_CLONES static int run_steps(const tess_formula *f, int k, map_block *room, int64_t n)
{
    for (; k < f->steps && f->step[k].fn != TESS_FN_load; k++) {
        const tess_fn_step *s = &f->step[k];
        const map_block *in[3];
        for (int i = 0; i < 3; i++) in[i] = room + (s->of[i] >= 0 ? f->step[s->of[i]].at : 0);
        const tess_element of = s->of[0] >= 0 ? (tess_element)f->step[s->of[0]].element : TESS_REAL;
        map_block *y = room + s->at;
        if (other_step(s, of, y, in[0], in[1], in[2], n)) continue;
        if (s->element == TESS_REAL)
            real_step(s, y, in[0], in[1], in[2], n);
        else
            whole_step(s, y, in[0], in[1], in[2], n);
    }
    return k;
}

/* ---- blocks of operands ---- */

TESS_CLONES void tess_walk_load(float *to, const void *x, int64_t at, int64_t by, int64_t n, tess_dtype t)
{
    TESS_BY_DTYPE(t, walk_load, to, x, at, by, n);
}

TESS_CLONES void tess_walk_store(void *x, int64_t at, int64_t by, const float *from, int64_t n, bool acc, tess_dtype t)
{
    if (acc)
        TESS_BY_DTYPE(t, walk_store, x, at, by, from, n, true);
    else
        TESS_BY_DTYPE(t, walk_store, x, at, by, from, n, false);
}

TESS_INLINE void read_run(const tess_strides *s, const int32_t *x, int64_t at, int64_t by, int64_t n, int32_t *to)
{
    if (!x)
        for (int64_t i = 0; i < n; i++) to[i] = (int32_t)(at + i * by);
    else if (s->t != TESS_F32)
        tess_walk_load((float *)to, x, at, by, n, s->t);
    else if (by == 1)
        memcpy(to, x + at, (size_t)n * sizeof *to);
    else if (by == 0)
        for (int64_t i = 0; i < n; i++) to[i] = x[at];
    else
        for (int64_t i = 0; i < n; i++) to[i] = x[at + i * by];
}

TESS_INLINE void put_run(const tess_any_map_arg *a, const map_block *from, int64_t k, int32_t *out, int64_t at,
                         int64_t by, int64_t run)
{
    int32_t *to = out + at;
    if (a->out.t != TESS_F32)
        tess_walk_store(out, at, by, from->real + k, run, a->acc, a->out.t);
    else if (!a->acc && by == 1)
        memcpy(to, from->whole + k, (size_t)run * sizeof *to);
    else if (!a->acc)
        for (int64_t i = 0; i < run; i++) to[i * by] = from->whole[k + i];
    else if (a->element == TESS_REAL && by == 1)
        for (int64_t i = 0; i < run; i++) ((float *)to)[i] += from->real[k + i];
    else if (a->element == TESS_REAL)
        for (int64_t i = 0; i < run; i++) ((float *)to)[i * by] += from->real[k + i];
    else
        for (int64_t i = 0; i < run; i++) to[i * by] += from->whole[k + i];
}

/* Elements [first, first + n) of the index space, at which `at` stands. `one`: of the operand all lie by one stride, or
 * -1. */
TESS_CLONES static void fill(const tess_strides *s, int64_t one, const int32_t *x, const walk *at, int64_t first,
                             int64_t n, int32_t *to)
{
    if (one > 0) {
        read_run(s, x, s->at + first * one, one, n, to);
        return;
    }
    const int64_t by = at->rank ? s->by[at->rank - 1] : 0;
    if (walk_run(at, n) == n) { /* most are of one run, for which it is copied in vain */
        read_run(s, x, s->at + walk_at(at, s->by), by, n, to);
        return;
    }
    walk w = *at;
    for (int64_t k = 0; k < n;) {
        const int64_t run = walk_run(&w, n - k);
        read_run(s, x, s->at + walk_at(&w, s->by), by, run, to + k);
        walk_on(&w, run);
        k += run;
    }
}

TESS_CLONES static void put(const tess_any_map_arg *a, int64_t one, const map_block *from, const walk *at,
                            int64_t first, int64_t n, int32_t *out)
{
    if (one > 0) {
        put_run(a, from, 0, out, a->out.at + first * one, one, n);
        return;
    }
    const int64_t by = at->rank ? a->out.by[at->rank - 1] : 1;
    walk w = *at;
    for (int64_t k = 0; k < n;) {
        const int64_t run = walk_run(&w, n - k);
        put_run(a, from, k, out, a->out.at + walk_at(&w, a->out.by), by, run);
        walk_on(&w, run);
        k += run;
    }
}

map_operands tess_map_operands(const tess_any_map_arg *a, const tess_work *w)
{
    map_operands o = {.a = a};
    unsigned buffer = 0;
    for (int i = 0; i < a->operands; i++) {
        o.one[i] = walk_joint(a->dim, a->in[i].by, a->rank);
        if (!a->index[i]) o.x[i] = w->buf[buffer++].ptr;
    }
    TESS_ASSERT(a->formula->registers <= TESS_MAP_REGISTERS);
    return o;
}

const map_block *tess_map_block(const map_operands *o, const walk *at, int64_t first, int64_t n, map_block *room)
{
    const tess_formula *f = o->a->formula;
    for (int k = 0; k < f->steps;) { /* registers are taken in turn: each is loaded where its step is */
        const tess_fn_step *s = &f->step[k];
        if (s->fn == TESS_FN_load)
            fill(&o->a->in[s->of[0]], o->one[s->of[0]], o->x[s->of[0]], at, first, n, room[s->at].whole);
        k = run_steps(f, s->fn == TESS_FN_load ? k + 1 : k, room, n);
    }
    return &room[f->step[f->steps - 1].at];
}

static void part(void *of, int64_t p)
{
    const tess_work *w = of;
    const tess_any_map_arg *a = w->arg;
    const int64_t all = walk_size(a->dim, a->rank), end = least(all, (p + 1) * PART),
                  one = walk_joint(a->dim, a->out.by, a->rank);
    const map_operands o = tess_map_operands(a, w);
    map_block room[TESS_MAP_REGISTERS];
    walk at = walk_begin(a->dim, a->rank, p * PART);
    for (int64_t first = p * PART; first < end; first += BLOCK) {
        const int64_t n = least(BLOCK, end - first);
        put(a, one, tess_map_block(&o, &at, first, n, room), &at, first, n, w->buf[w->nbuf - 1].ptr);
        walk_over(&at, n);
    }
}

static int64_t any_map_parts(const tess_codelet *cl, const void *arg)
{
    const tess_any_map_arg *a = arg;
    (void)cl;
    return (walk_size(a->dim, a->rank) + PART - 1) / PART;
}

static void any_map(const tess_work *w)
{
    tess_parts_run(any_map_parts(NULL, w->arg), part, (void *)w);
}
TESS_F32_CODELET(any_map, .parts = any_map_parts)
