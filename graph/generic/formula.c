/* Formulas: programs of scalar functions, put together, derived and made ready for a body. The derivative of a program
 * is a longer one: the steps backward, each adding to what the steps it took are worth. */
#include "graph/generic/generic_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum kind { special, same, real, test, logic, whole };
static const struct {
    const char *name;
    int operands;
    enum kind kind;
} table[] = {
#define TESS_FN(name, operands, kind) {#name, operands, kind},
#include "codelets/generic.def"
};

tess_fn tess_fn_find(const char *name)
{
    for (int k = TESS_FN_copy; k < TESS_FNS; k++)
        if (!strcmp(table[k].name, name)) return (tess_fn)k;
    return TESS_FNS;
}

int tess_fn_operands(tess_fn fn)
{
    return table[fn].operands;
}

bool tess_fn_is_cheap(tess_fn fn)
{
    return fn < TESS_FNS && table[fn].kind != real && table[fn].kind != whole;
}

const char *tess_fn_wrong(tess_fn fn, tess_element a, tess_element b, tess_element c)
{
    const int n = table[fn].operands;
    if (fn == TESS_FN_select) {
        if (a != TESS_BOOL) return "its condition is not bool";
        return b == c ? NULL : "its values have two dtypes";
    }
    if ((n > 1 && b != a) || (n > 2 && c != a)) return "its operands have different dtypes";
    if ((table[fn].kind == real || fn == TESS_FN_is_finite) && a != TESS_REAL) return "it takes float32 alone";
    if (table[fn].kind == logic && a == TESS_REAL) return "it takes int32 and bool alone";
    if (table[fn].kind == whole && a != TESS_INT) return "it takes int32 alone";
    if (fn == TESS_FN_bits && a == TESS_BOOL) return "it takes float32 and int32 alone";
    return NULL;
}

/* ---- drafts ---- */

static int add(tess_draft *d, tess_fn_step s)
{
    s.at = -1;
    for (int k = 0; k < d->steps; k++)
        if (!memcmp(&d->step[k], &s, sizeof s)) return k;
    if (d->steps == TESS_MAP_STEPS) {
        d->full = true;
        return 0;
    }
    d->step[d->steps] = s;
    return d->steps++;
}

static tess_fn_step step_of(tess_fn fn, tess_element e, int a, int b, int c)
{
    tess_fn_step s;
    memset(&s, 0, sizeof s);
    s.fn = (uint8_t)fn, s.element = (uint8_t)e;
    s.of[0] = (int16_t)a, s.of[1] = (int16_t)b, s.of[2] = (int16_t)c;
    return s;
}

int tess_draft_load(tess_draft *d, int operand, tess_element e)
{
    return add(d, step_of(TESS_FN_load, e, operand, -1, -1));
}

int tess_draft_real(tess_draft *d, double value)
{
    tess_fn_step s = step_of(TESS_FN_value, TESS_REAL, -1, -1, -1);
    s.is.real = (float)value;
    return add(d, s);
}

int tess_draft_whole(tess_draft *d, int32_t value, tess_element e)
{
    tess_fn_step s = step_of(TESS_FN_value, e, -1, -1, -1);
    s.is.whole = value;
    return add(d, s);
}

int tess_draft_cast(tess_draft *d, int a, tess_element to)
{
    return d->step[a].element == to ? a : add(d, step_of(TESS_FN_cast, to, a, -1, -1));
}

int tess_draft_add(tess_draft *d, tess_fn fn, int a, int b, int c)
{
    const enum kind k = table[fn].kind;
    const int from = fn == TESS_FN_select ? b : a;
    const tess_element of = (tess_element)d->step[from].element, e = k == test || fn == TESS_FN_is_finite ? TESS_BOOL
                                                                     : fn != TESS_FN_bits                 ? of
                                                                     : of == TESS_INT                     ? TESS_REAL
                                                                                                          : TESS_INT;
    return add(d, step_of(fn, e, a, b, c));
}

/* ---- a value ---- */

static double one_step(tess_fn fn, double a, double b)
{
    switch (fn) {
    case TESS_FN_copy:
        return a;
    case TESS_FN_neg:
        return -a;
    case TESS_FN_square:
        return a * a;
    case TESS_FN_sqrt:
        return sqrt(a);
    case TESS_FN_exp:
        return exp(a);
    case TESS_FN_tanh:
        return tanh(a);
    case TESS_FN_logistic:
        return 1 / (1 + exp(-a));
    case TESS_FN_erf:
        return erf(a);
    case TESS_FN_erfc:
        return erfc(a);
    case TESS_FN_add:
        return a + b;
    case TESS_FN_sub:
        return a - b;
    case TESS_FN_mul:
        return a * b;
    case TESS_FN_div:
        return a / b;
    default:
        return (double)NAN;
    }
}

double tess_draft_at(const tess_draft *d, int result, double x)
{
    double is[TESS_MAP_STEPS];
    for (int k = 0; k <= result; k++) {
        const tess_fn_step *s = &d->step[k];
        if (s->element != TESS_REAL) return (double)NAN;
        is[k] = s->fn == TESS_FN_load ? x
                : s->fn == TESS_FN_value
                    ? (double)s->is.real
                    : one_step((tess_fn)s->fn, s->of[0] < 0 ? 0 : is[s->of[0]], s->of[1] < 0 ? 0 : is[s->of[1]]);
    }
    return is[result];
}

/* ---- the derivative ---- */

struct deriving {
    tess_draft *d;
    bool by[TESS_MAP_STEPS]; /* it depends on the operand */
    int of[TESS_MAP_STEPS];  /* what has been found of its derivative; -1: nothing */
};

static int f1(tess_draft *d, tess_fn fn, int a)
{
    return tess_draft_add(d, fn, a, -1, -1);
}
static int f2(tess_draft *d, tess_fn fn, int a, int b)
{
    return tess_draft_add(d, fn, a, b, -1);
}
static int times(tess_draft *d, int a, int b)
{
    return f2(d, TESS_FN_mul, a, b);
}
static int scaled(tess_draft *d, int a, double by)
{
    return times(d, a, tess_draft_real(d, by));
}
static int pick(tess_draft *d, int condition, int a)
{
    return tess_draft_add(d, TESS_FN_select, condition, a, tess_draft_real(d, 0));
}

static void give(struct deriving *v, int to, int what)
{
    if (to < 0 || !v->by[to] || what < 0) return;
    v->of[to] = v->of[to] < 0 ? what : f2(v->d, TESS_FN_add, v->of[to], what);
}

/* What a function of one value passes on of dy; x is the value, y what it is made into. -1: nothing. */
static int slope(tess_draft *d, tess_fn fn, int x, int y, int dy)
{
    switch (fn) {
    case TESS_FN_copy:
        return dy;
    case TESS_FN_neg:
        return f1(d, TESS_FN_neg, dy);
    case TESS_FN_abs:
        return times(d, dy, f1(d, TESS_FN_sign, x));
    case TESS_FN_square:
        return times(d, scaled(d, dy, 2), x);
    case TESS_FN_exp:
        return times(d, dy, y);
    case TESS_FN_log:
        return f2(d, TESS_FN_div, dy, x);
    case TESS_FN_log1p:
        return f2(d, TESS_FN_div, dy, f2(d, TESS_FN_add, x, tess_draft_real(d, 1)));
    case TESS_FN_expm1:
        return times(d, dy, f2(d, TESS_FN_add, y, tess_draft_real(d, 1)));
    case TESS_FN_sqrt:
        return f2(d, TESS_FN_div, scaled(d, dy, 0.5), y);
    case TESS_FN_rsqrt:
        return times(d, scaled(d, dy, -0.5), f2(d, TESS_FN_div, y, x));
    case TESS_FN_cbrt:
        return f2(d, TESS_FN_div, times(d, dy, y), scaled(d, x, 3));
    case TESS_FN_sin:
        return times(d, dy, f1(d, TESS_FN_cos, x));
    case TESS_FN_cos:
        return f1(d, TESS_FN_neg, times(d, dy, f1(d, TESS_FN_sin, x)));
    case TESS_FN_tan:
        return times(d, dy, f2(d, TESS_FN_add, tess_draft_real(d, 1), f1(d, TESS_FN_square, y)));
    case TESS_FN_tanh:
        return times(d, dy, f2(d, TESS_FN_sub, tess_draft_real(d, 1), f1(d, TESS_FN_square, y)));
    case TESS_FN_logistic:
        return times(d, dy, times(d, y, f2(d, TESS_FN_sub, tess_draft_real(d, 1), y)));
    case TESS_FN_erf:
    case TESS_FN_erfc: {
        const int bell = f1(d, TESS_FN_exp, f1(d, TESS_FN_neg, f1(d, TESS_FN_square, x)));
        return times(d, dy, scaled(d, bell, fn == TESS_FN_erf ? M_2_SQRTPI : -M_2_SQRTPI));
    }
    default:
        return -1;
    }
}

/* Of two equal ones each has half, as JAX has it. */
static int larger(tess_draft *d, tess_fn test, int a, int b, int dy)
{
    const int half = pick(d, f2(d, TESS_FN_eq, a, b), scaled(d, dy, 0.5));
    return tess_draft_add(d, TESS_FN_select, f2(d, test, a, b), dy, half);
}

static void give_power(struct deriving *v, int a, int b, int y, int dy)
{
    tess_draft *d = v->d;
    const int one = tess_draft_real(d, 1), zero = tess_draft_real(d, 0);
    if (v->by[a]) give(v, a, times(d, dy, times(d, b, f2(d, TESS_FN_pow, a, f2(d, TESS_FN_sub, b, one)))));
    if (!v->by[b]) return;
    const int base = tess_draft_add(d, TESS_FN_select, f2(d, TESS_FN_eq, a, zero), one, a);
    give(v, b, times(d, dy, times(d, f1(d, TESS_FN_log, base), y)));
}

static void give_two(struct deriving *v, tess_fn fn, int a, int b, int y, int dy)
{
    tess_draft *d = v->d;
    switch (fn) {
    case TESS_FN_add:
        give(v, a, dy), give(v, b, dy);
        break;
    case TESS_FN_sub:
        give(v, a, dy);
        if (v->by[b]) give(v, b, f1(d, TESS_FN_neg, dy));
        break;
    case TESS_FN_mul:
        if (v->by[a]) give(v, a, times(d, dy, b));
        if (v->by[b]) give(v, b, times(d, dy, a));
        break;
    case TESS_FN_div:
        if (v->by[a]) give(v, a, f2(d, TESS_FN_div, dy, b));
        if (v->by[b]) give(v, b, f1(d, TESS_FN_neg, f2(d, TESS_FN_div, times(d, dy, y), b)));
        break;
    case TESS_FN_rem: /* a - b trunc(a / b) */
        give(v, a, dy);
        if (v->by[b]) give(v, b, f1(d, TESS_FN_neg, times(d, dy, f2(d, TESS_FN_div, f2(d, TESS_FN_sub, a, y), b))));
        break;
    case TESS_FN_max:
        if (v->by[a]) give(v, a, larger(d, TESS_FN_gt, a, b, dy));
        if (v->by[b]) give(v, b, larger(d, TESS_FN_gt, b, a, dy));
        break;
    case TESS_FN_min:
        if (v->by[a]) give(v, a, larger(d, TESS_FN_lt, a, b, dy));
        if (v->by[b]) give(v, b, larger(d, TESS_FN_lt, b, a, dy));
        break;
    case TESS_FN_pow:
        give_power(v, a, b, y, dy);
        break;
    case TESS_FN_atan2: {
        const int squares = f2(d, TESS_FN_add, f1(d, TESS_FN_square, a), f1(d, TESS_FN_square, b));
        if (v->by[a]) give(v, a, times(d, dy, f2(d, TESS_FN_div, b, squares)));
        if (v->by[b]) give(v, b, f1(d, TESS_FN_neg, times(d, dy, f2(d, TESS_FN_div, a, squares))));
        break;
    }
    default:
        break;
    }
}

static void give_three(struct deriving *v, tess_fn fn, const int16_t *of, int dy)
{
    tess_draft *d = v->d;
    if (fn == TESS_FN_select) {
        const int zero = tess_draft_real(d, 0);
        if (v->by[of[1]]) give(v, of[1], tess_draft_add(d, TESS_FN_select, of[0], dy, zero));
        if (v->by[of[2]]) give(v, of[2], tess_draft_add(d, TESS_FN_select, of[0], zero, dy));
        return;
    }
    const int below = f2(d, TESS_FN_gt, of[0], of[1]), above = f2(d, TESS_FN_lt, of[2], of[1]);
    const int inside = f2(d, TESS_FN_and, f2(d, TESS_FN_gt, of[1], of[0]), f2(d, TESS_FN_lt, of[1], of[2]));
    give(v, of[0], pick(d, below, dy));
    give(v, of[1], pick(d, inside, dy));
    give(v, of[2], pick(d, above, dy));
}

int tess_draft_derive(tess_draft *d, int of, int k, int dy)
{
    TESS_FREED struct deriving *v = tess_alloc(sizeof *v);
    int found = -1;
    v->d = d;
    for (int i = 0; i < TESS_MAP_STEPS; i++) v->of[i] = -1;
    for (int i = 0; i <= of; i++) {
        const tess_fn_step *s = &d->step[i];
        if (s->fn == TESS_FN_load && s->of[0] == k && s->element == TESS_REAL) {
            v->by[i] = true;
            found = i;
        }
        for (int j = 0; j < table[s->fn].operands; j++) v->by[i] |= v->by[s->of[j]];
        if (s->element != TESS_REAL || s->fn == TESS_FN_stop) v->by[i] = false;
    }
    give(v, of, dy);
    for (int i = of; i >= 0; i--) {
        const tess_fn_step s = d->step[i];
        if (v->of[i] < 0) continue;
        if (table[s.fn].operands == 1)
            give(v, s.of[0], slope(d, (tess_fn)s.fn, s.of[0], i, v->of[i]));
        else if (table[s.fn].operands == 2)
            give_two(v, (tess_fn)s.fn, s.of[0], s.of[1], i, v->of[i]);
        else if (table[s.fn].operands == 3)
            give_three(v, (tess_fn)s.fn, s.of, v->of[i]);
    }
    if (found >= 0) found = v->of[found];
    return found;
}

/* ---- ready for a body ---- */

/* Marks what values are made of; returns how many steps that are. */
static int mark(const tess_draft *d, const int *result, int results, bool *used)
{
    int n = 0;
    for (int k = 0; k < results; k++) used[result[k]] = true;
    for (int k = d->steps - 1; k >= 0; k--) {
        if (!used[k]) continue;
        n++;
        for (int j = 0; j < table[d->step[k].fn].operands; j++) used[d->step[k].of[j]] = true;
    }
    return n;
}

/* Assigns each step a register, which is free again behind the last step that reads it, but for those that stay;
 * returns how many there are. */
static int assign(tess_fn_step *step, int n, const bool *stays)
{
    int last[TESS_MAP_STEPS], registers = 0;
    bool taken[TESS_MAP_STEPS] = {false};
    for (int k = 0; k < n; k++) {
        last[k] = k;
        for (int j = 0; j < table[step[k].fn].operands; j++) last[step[k].of[j]] = k;
    }
    for (int k = 0; k < n; k++) {
        int r = 0;
        while (taken[r]) r++;
        step[k].at = (int16_t)r;
        taken[r] = true;
        if (r + 1 > registers) registers = r + 1;
        for (int j = 0; j <= k; j++)
            if (last[j] == k && k < n - 1 && !stays[j]) taken[step[j].at] = false;
    }
    return registers;
}

const tess_formula *tess_draft_finish_all(tess_arena *arena, const tess_draft *d, const int *result, int results,
                                          int *at)
{
    bool used[TESS_MAP_STEPS] = {false}, stays[TESS_MAP_STEPS] = {false};
    int as[TESS_MAP_STEPS], n = mark(d, result, results, used), k = 0;
    tess_fn_step *step = tess_arena_get(arena, (size_t)n * sizeof *step);
    tess_formula *f = tess_arena_get(arena, sizeof *f);
    for (int i = 0; i < d->steps; i++) {
        if (!used[i]) continue;
        step[k] = d->step[i];
        for (int j = 0; j < table[step[k].fn].operands; j++) step[k].of[j] = (int16_t)as[step[k].of[j]];
        as[i] = k++;
    }
    for (int j = 0; j < results; j++) stays[as[result[j]]] = true;
    *f = (tess_formula){n, assign(step, n, stays), step};
    for (int j = 0; j < results; j++) at[j] = step[as[result[j]]].at;
    return f;
}

const tess_formula *tess_draft_finish(tess_arena *arena, const tess_draft *d, int result)
{
    int at;
    return tess_draft_finish_all(arena, d, &result, 1, &at);
}

bool tess_formula_is_load(const tess_formula *f, int operand)
{
    return f->steps == 1 && f->step[0].fn == TESS_FN_load && f->step[0].of[0] == operand;
}
