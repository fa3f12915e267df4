/* map_cuda: a program of scalar functions on a GPU. A thread runs it on a few elements, whose registers are memory of
 * its own; threads take the same steps, so that none waits for another's branch. The program is among a kernel's
 * arguments: nothing is copied before it. For any_map, which stores what it makes, any_fold, which sums it, and whoever
 * moves elements by strides. */
#ifndef TESS_MAP_CUDA_H
#define TESS_MAP_CUDA_H
#include "codelets/generic.h"
#include "codelets/generic/whole.h"
#include "codelets/shared/kernels.h"

constexpr int MAP_EACH = 4; /* elements of a thread */

union map_value {
    float real;
    int32_t whole;
};
struct alignas(16) map_values {
    map_value v[MAP_EACH];
};

struct map_step {
    uint32_t fn : 6, element : 2, of : 2, to : 5, a : 5, b : 5, c : 5; /* of: the element of the first operand */
    map_value is;                                                      /* of `load` whole: the operand */
};
static_assert(TESS_FNS <= 64 && TESS_MAP_REGISTERS <= 32 && sizeof(map_step) == 8, "");

/* Where elements of an index space are. */
struct map_place {
    char *x; /* NULL: an index */
    int64_t at, by[TESS_RANK_MOST];
    tess_dtype t;
    bool dense, wide; /* one element behind the other; those of a thread at once, where all are there */
};

/* A number below 2^31, and what divides by it without a division. */
struct divisor {
    uint32_t is, times;
    int shift;
};
static inline divisor divisor_of(int64_t n)
{
    divisor d = {(uint32_t)n, 0, 0};
    while ((int64_t)1 << d.shift < n) d.shift++;
    d.times = (uint32_t)(((uint64_t)1 << 32) * (((uint64_t)1 << d.shift) - (uint64_t)n) / (uint64_t)n + 1);
    return d;
}
/* Returns n modulo d, of an n below 2^31, and makes n the quotient. */
TESS_DEVICE uint32_t take_modulo(uint32_t &n, const divisor &d)
{
    const uint32_t quotient = (__umulhi(d.times, n) + n) >> d.shift, rest = n - quotient * d.is;
    n = quotient;
    return rest;
}

struct map_program {
    divisor dim[TESS_RANK_MOST];
    int rank, steps, last; /* last: the register of the result */
    tess_element element;  /* of the result */
    bool acc;
    map_place in[TESS_MAP_OPERANDS], out;
    map_step step[TESS_MAP_STEPS];
};
static_assert(sizeof(map_program) <= 4000, "what kernels take beside it has room too");

/* ---- on the host ---- */

static inline int64_t map_size(const int64_t *dim, int rank)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= dim[d];
    return n;
}

static inline map_place map_place_of(const tess_strides *s, void *x, const int64_t *dim, int rank)
{
    map_place p = {};
    int64_t next = 1;
    p.x = (char *)x, p.at = s->at, p.t = s->t, p.dense = true;
    for (int d = rank - 1; d >= 0; d--) {
        p.by[d] = s->by[d];
        p.dense = p.dense && (dim[d] == 1 || s->by[d] == next);
        next *= dim[d];
    }
    const uintptr_t size = tess_dtype_size(s->t);
    p.wide = x && p.dense && ((uintptr_t)x + (uintptr_t)s->at * size) % (MAP_EACH * size) == 0;
    return p;
}

/* The index space alone, of less than 2^31 elements; false, and the task failed, where it has more. */
static inline bool map_space(const tess_work *w, map_program *p, const int64_t *dim, int rank)
{
    *p = {};
    p->rank = rank;
    if (map_size(dim, rank) > INT32_MAX) {
        tess_work_fail(w, "CUDA: %lld elements in one task are too many (use smaller tiles)",
                       (long long)map_size(dim, rank));
        return false;
    }
    for (int d = 0; d < rank; d++) p->dim[d] = divisor_of(dim[d]);
    return true;
}

/* Of what is loaded itself. */
static inline void map_copies(map_program *p, const map_place &from, const map_place &to, bool acc)
{
    p->in[0] = from, p->out = to, p->acc = acc;
    p->steps = 1;
    p->step[0] = {};
    p->step[0].fn = TESS_FN_load;
}

static inline bool map_program_of(const tess_work *w, const tess_any_map_arg *a, map_program *p)
{
    unsigned buffer = 0;
    if (!map_space(w, p, a->dim, a->rank)) return false;
    p->steps = a->formula->steps;
    p->element = a->element;
    p->acc = a->acc;
    TESS_ASSERT(p->steps <= TESS_MAP_STEPS);
    for (int i = 0; i < a->operands; i++) {
        p->in[i] = map_place_of(&a->in[i], a->index[i] ? NULL : w->buf[buffer++].ptr, a->dim, a->rank);
    }
    p->out = map_place_of(&a->out, w->buf[w->nbuf - 1].ptr, a->dim, a->rank);
    for (int k = 0; k < p->steps; k++) {
        const tess_fn_step *s = &a->formula->step[k], *of = a->formula->step;
        map_step *to = &p->step[k];
        const bool loads = s->fn == TESS_FN_load;
        to->fn = s->fn & 63u, to->element = s->element & 3u, to->to = (uint32_t)s->at & 31u;
        to->is.whole = loads ? s->of[0] : s->is.whole;
        if (loads) continue;
        if (s->of[0] >= 0) to->a = (uint32_t)of[s->of[0]].at & 31u, to->of = of[s->of[0]].element & 3u;
        if (s->of[1] >= 0) to->b = (uint32_t)of[s->of[1]].at & 31u;
        if (s->of[2] >= 0) to->c = (uint32_t)of[s->of[2]].at & 31u;
    }
    p->last = p->step[p->steps - 1].to;
    return true;
}

/* ---- elements ---- */

TESS_DEVICE int64_t map_offset(const map_program &p, const map_place &s, uint32_t i)
{
    int64_t at = s.at;
    if (s.dense) return at + i;
    for (int d = p.rank - 1; d > 0; d--) at += (int64_t)take_modulo(i, p.dim[d]) * s.by[d];
    return p.rank ? at + (int64_t)i * s.by[0] : at;
}

TESS_DEVICE map_value map_get(const map_place &s, int64_t at)
{
    map_value v;
    if (!s.x)
        v.whole = (int32_t)at;
    else if (is_half(s.t))
        v.real = s.t == TESS_F16 ? value_at<TESS_F16>(s.x, at) : value_at<TESS_BF16>(s.x, at);
    else
        v.whole = ((const int32_t *)s.x)[at];
    return v;
}
TESS_DEVICE void map_set(const map_place &s, int64_t at, map_value v)
{
    if (!is_half(s.t))
        ((int32_t *)s.x)[at] = v.whole;
    else if (s.t == TESS_F16)
        put_at<TESS_F16>(s.x, at, v.real);
    else
        put_at<TESS_BF16>(s.x, at, v.real);
}

/* Whether a thread's elements are moved at once. */
TESS_DEVICE bool map_is_wide(const map_place &s, uint32_t i, uint32_t all)
{
    return s.wide && i % MAP_EACH == 0 && i + MAP_EACH <= all;
}
/* Loads the MAP_EACH elements from i on, of `all`; past the end it repeats the last one. */
TESS_DEVICE void map_load(map_values &to, const map_program &p, const map_place &s, uint32_t i, uint32_t all)
{
    if (map_is_wide(s, i, all)) {
        if (!is_half(s.t)) {
            to = *(const map_values *)(s.x + (s.at + i) * 4);
            return;
        }
        const uint64_t word = *(const uint64_t *)(s.x + (s.at + i) * 2);
#pragma unroll
        for (int k = 0; k < MAP_EACH; k++) {
            const uint16_t x = (uint16_t)(word >> 16 * k);
            to.v[k].real = s.t == TESS_F16 ? from_half<TESS_F16>(x) : from_half<TESS_BF16>(x);
        }
        return;
    }
#pragma unroll
    for (int k = 0; k < MAP_EACH; k++) to.v[k] = map_get(s, map_offset(p, s, i + k < all ? i + k : all - 1));
}

/* ---- steps ---- */

#define MAP_EVERY(field, ...)                                                                                          \
    do {                                                                                                               \
        _Pragma("unroll") for (int k = 0; k < MAP_EACH; k++) y.v[k].field = (__VA_ARGS__);                             \
    } while (0)
#define MAP_CASE(name, field, ...)                                                                                     \
    case TESS_FN_##name:                                                                                               \
        MAP_EVERY(field, __VA_ARGS__);                                                                                 \
        return;
#define A                     a.v[k].real
#define B                     b.v[k].real
#define C                     c.v[k].real
#define J                     a.v[k].whole
#define K                     b.v[k].whole
#define L                     c.v[k].whole
#define EXP(x)                expf(x)
#define TANH(x)               tanhf(x)
#define LIBRARY(name, x)      name##f(x)
#define LIBRARY_2(name, x, y) name##f(x, y)

/* Returns whether the step was one that does not make the element that it takes. */
TESS_DEVICE bool map_other(const map_step s, map_values &y, const map_values &a, const map_values &b,
                           const map_values &c)
{
    switch (s.fn) {
#define TEST(name, sign)                                                                                               \
    case TESS_FN_##name:                                                                                               \
        if (s.of == TESS_REAL)                                                                                         \
            MAP_EVERY(whole, A sign B);                                                                                \
        else                                                                                                           \
            MAP_EVERY(whole, J sign K);                                                                                \
        return true;
#define OTHER(name, ...)                                                                                               \
    case TESS_FN_##name:                                                                                               \
        MAP_EVERY(whole, __VA_ARGS__);                                                                                 \
        return true;
#define VALUE s.is.whole
#include "codelets/generic/expressions.def"
    case TESS_FN_cast:
        if (s.element == TESS_REAL && s.of != TESS_REAL)
            MAP_EVERY(real, (float)J);
        else if (s.element == TESS_BOOL && s.of == TESS_REAL)
            MAP_EVERY(whole, A != 0);
        else if (s.element == TESS_BOOL)
            MAP_EVERY(whole, J != 0);
        else if (s.element == TESS_INT && s.of == TESS_REAL)
            MAP_EVERY(whole, tess_whole_of(A));
        else
            MAP_EVERY(whole, J);
        return true;
    default:
        return false;
    }
}
TESS_DEVICE void map_real(const map_step s, map_values &y, const map_values &a, const map_values &b,
                          const map_values &c)
{
    switch (s.fn) {
#define REAL(name, ...) MAP_CASE(name, real, __VA_ARGS__)
#include "codelets/generic/expressions.def"
    }
}
TESS_DEVICE void map_whole(const map_step s, map_values &y, const map_values &a, const map_values &b,
                           const map_values &c)
{
    const int32_t mask = s.element == TESS_BOOL ? 1 : -1;
    switch (s.fn) {
        MAP_CASE(not, whole, ~J & mask)
#define WHOLE(name, ...) MAP_CASE(name, whole, __VA_ARGS__)
#include "codelets/generic/expressions.def"
    }
}
#undef A
#undef B
#undef C
#undef J
#undef K
#undef L
#undef EXP
#undef TANH
#undef LIBRARY
#undef LIBRARY_2

/* Returns the program's results for the MAP_EACH elements from i on, of `all`. */
TESS_DEVICE map_values map_run(const map_program &p, uint32_t i, uint32_t all)
{
    map_values reg[TESS_MAP_REGISTERS];
    for (int k = 0; k < p.steps; k++) {
        const map_step s = p.step[k];
        map_values y;
        if (s.fn == TESS_FN_load) {
            map_load(y, p, p.in[s.is.whole], i, all);
        } else {
            const map_values &a = reg[s.a], &b = reg[s.b], &c = reg[s.c];
            if (!map_other(s, y, a, b, c)) {
                if (s.element == TESS_REAL)
                    map_real(s, y, a, b, c);
                else
                    map_whole(s, y, a, b, c);
            }
        }
        reg[s.to] = y;
    }
    return reg[p.last];
}

#endif
