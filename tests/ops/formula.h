/* Formulas for the ops of any tensors, each value of which has a register of its own. */
#ifndef TESS_TESTS_FORMULA_H
#define TESS_TESTS_FORMULA_H
#include "codelets/generic.h"
#include "tests/ops/ops.h"

typedef struct any_draft {
    tess_formula formula;
    tess_fn_step step[TESS_MAP_REGISTERS];
} any_draft;

static inline int any_step(any_draft *d, tess_fn fn, tess_element e, int a, int b, int c)
{
    const int k = d->formula.steps++;
    d->formula.registers = k + 1;
    d->formula.step = d->step;
    d->step[k] = (tess_fn_step){
        .fn = (uint8_t)fn, .element = (uint8_t)e, .of = {(int16_t)a, (int16_t)b, (int16_t)c}, .at = (int16_t)k};
    return k;
}
static inline int any_load(any_draft *d, int operand, tess_element e)
{
    return any_step(d, TESS_FN_load, e, operand, -1, -1);
}

/* Row-major strides of a dense tensor. */
static inline tess_strides any_dense(int rank, const int64_t *dim, tess_dtype t)
{
    tess_strides s = {.t = t};
    int64_t by = 1;
    for (int d = rank - 1; d >= 0; by *= dim[d--]) s.by[d] = by;
    return s;
}
/* Where element i of the index space is. */
static inline int64_t any_at(const tess_strides *s, int rank, const int64_t *dim, int64_t i)
{
    int64_t at = s->at;
    for (int d = rank - 1; d >= 0; i /= dim[d--]) at += i % dim[d] * s->by[d];
    return at;
}
/* Draws an input that is not negative: of sums of it no rounding is much beside the sum. */
static inline double *any_positive(const char *name, int64_t n, tess_dtype t)
{
    double *x = op_zeros(n);
    for (int64_t i = 0; i < n; i++) x[i] = fabs(op_roll());
    op_given(name, n, t, x);
    return x;
}
static inline int64_t any_size(int rank, const int64_t *dim)
{
    int64_t n = 1;
    for (int d = 0; d < rank; d++) n *= dim[d];
    return n;
}

#endif
