/* any_map: a program of scalar functions over operands with strides. The index space is walked in runs of its last
 * dimension, which fill blocks of 256 elements; a step of the program is a loop over a block, so that what is read and
 * branched on for each step is paid for 256 elements. */
#include "map_impl.h"

enum { BLOCK = TESS_MAP_BLOCK, PART = 32 << 10 };

/* ---- a program on a block ---- */

#define EACH(field, ...)                                                                                               \
    do {                                                                                                               \
        _Pragma("omp simd") for (int64_t i = 0; i < n; i++) y->field[i] = (__VA_ARGS__);                               \
    } while (0)
#define CASE(name, field, ...)                                                                                         \
    case TESS_FN_##name:                                                                                               \
        EACH(field, __VA_ARGS__);                                                                                      \
        break
#define A a->real[i]
#define B b->real[i]
#define J a->whole[i]
#define K b->whole[i]

TESS_INLINE void real_step(const tess_fn_step *s, map_block *y, const map_block *a, const map_block *b,
                           const map_block *c, int64_t n)
{
    switch (s->fn) {
        CASE(copy, real, A);
        CASE(stop, real, A);
        CASE(neg, real, -A);
        CASE(abs, real, fabsf(A));
        CASE(sign, real, A > 0 ? 1.0f : A < 0 ? -1.0f : A);
        CASE(square, real, A * A);
        CASE(floor, real, floorf(A));
        CASE(ceil, real, ceilf(A));
        CASE(round, real, rintf(A));
        CASE(exp, real, tess_expf(A));
        CASE(log, real, (float)log((double)A));
        CASE(log1p, real, (float)log1p((double)A));
        CASE(expm1, real, (float)expm1((double)A));
        CASE(sqrt, real, sqrtf(A));
        CASE(rsqrt, real, 1.0f / sqrtf(A));
        CASE(cbrt, real, (float)cbrt((double)A));
        CASE(sin, real, (float)sin((double)A));
        CASE(cos, real, (float)cos((double)A));
        CASE(tan, real, (float)tan((double)A));
        CASE(tanh, real, tess_tanhf(A));
        CASE(logistic, real, 1.0f / (1.0f + tess_expf(-A)));
        CASE(erf, real, (float)erf((double)A));
        CASE(erfc, real, (float)erfc((double)A));
        CASE(add, real, A + B);
        CASE(sub, real, A - B);
        CASE(mul, real, A * B);
        CASE(div, real, A / B);
        CASE(rem, real, fmodf(A, B));
        CASE(max, real, A >= B || A != A ? A : B);
        CASE(min, real, A <= B || A != A ? A : B);
        CASE(pow, real, (float)pow((double)A, (double)B));
        CASE(atan2, real, (float)atan2((double)A, (double)B));
        CASE(clamp, real, B < A ? A : B > c->real[i] ? c->real[i] : B);
    default:
        TESS_ASSERT(0);
    }
}

/* As XLA has it. */
TESS_INLINE int32_t quotient(int32_t a, int32_t b)
{
    return b == 0 ? -1 : b == -1 ? (int32_t)(0u - (uint32_t)a) : a / b;
}
TESS_INLINE int32_t remainder_of(int32_t a, int32_t b)
{
    return b == 0 ? a : b == -1 ? 0 : a % b;
}

/* Threefry 2x32 of 20 rounds, of the counter (0, c) and a key: its first word, its second, or both combined. */
TESS_INLINE int32_t threefry(int32_t k0, int32_t k1, int32_t c, int word)
{
    static const int turn[2][4] = {{13, 15, 26, 6}, {17, 29, 16, 24}};
    const uint32_t key[3] = {(uint32_t)k0, (uint32_t)k1, (uint32_t)k0 ^ (uint32_t)k1 ^ 0x1BD11BDAu};
    uint32_t x = key[0], y = (uint32_t)c + key[1];
    for (int round = 0; round < 5; round++) {
        for (int j = 0; j < 4; j++) {
            x += y;
            y = y << turn[round & 1][j] | y >> (32 - turn[round & 1][j]);
            y ^= x;
        }
        x += key[(round + 1) % 3];
        y += key[(round + 2) % 3] + (uint32_t)round + 1;
    }
    return (int32_t)(word == 0 ? x : word == 1 ? y : x ^ y);
}

void tess_fold_in(int32_t key[2], int32_t number)
{
    const int32_t first = threefry(key[0], key[1], number, 0);
    key[1] = threefry(key[0], key[1], number, 1);
    key[0] = first;
}

TESS_INLINE void whole_step(const tess_fn_step *s, map_block *y, const map_block *a, const map_block *b,
                            const map_block *c, int64_t n)
{
    const int32_t mask = s->element == TESS_BOOL ? 1 : -1;
    switch (s->fn) {
        CASE(copy, whole, J);
        CASE(stop, whole, J);
        CASE(neg, whole, (int32_t)(0u - (uint32_t)J));
        CASE(abs, whole, J < 0 ? (int32_t)(0u - (uint32_t)J) : J);
        CASE(sign, whole, (J > 0) - (J < 0));
        CASE(square, whole, (int32_t)((uint32_t)J * (uint32_t)J));
        CASE(not, whole, ~J & mask);
        CASE(add, whole, (int32_t)((uint32_t)J + (uint32_t)K));
        CASE(sub, whole, (int32_t)((uint32_t)J - (uint32_t)K));
        CASE(mul, whole, (int32_t)((uint32_t)J * (uint32_t)K));
        CASE(div, whole, quotient(J, K));
        CASE(rem, whole, remainder_of(J, K));
        CASE(max, whole, J > K ? J : K);
        CASE(min, whole, J < K ? J : K);
        CASE(and, whole, J & K);
        CASE(or, whole, J | K);
        CASE(xor, whole, J ^ K);
        CASE(shl, whole, (uint32_t)K < 32 ? (int32_t)((uint32_t)J << (K & 31)) : 0);
        CASE(shr, whole, (uint32_t)K < 32 ? (int32_t)((uint32_t)J >> (K & 31)) : 0);
        CASE(clamp, whole, K < J ? J : K > c->whole[i] ? c->whole[i] : K);
        CASE(threefry, whole, threefry(J, K, c->whole[i], 2));
        CASE(threefry_0, whole, threefry(J, K, c->whole[i], 0));
        CASE(threefry_1, whole, threefry(J, K, c->whole[i], 1));
    default:
        TESS_ASSERT(0);
    }
}

#define TEST(name, sign)                                                                                               \
    case TESS_FN_##name:                                                                                               \
        if (of == TESS_REAL)                                                                                           \
            EACH(whole, A sign B);                                                                                     \
        else                                                                                                           \
            EACH(whole, J sign K);                                                                                     \
        return true

/* Steps that do not make the element that they take. */
TESS_INLINE bool other_step(const tess_fn_step *s, tess_element of, map_block *y, const map_block *a,
                            const map_block *b, const map_block *c, int64_t n)
{
    switch (s->fn) {
        TEST(lt, <);
        TEST(le, <=);
        TEST(gt, >);
        TEST(ge, >=);
        TEST(eq, ==);
        TEST(ne, !=);
    case TESS_FN_value:
        EACH(whole, s->is.whole);
        return true;
    case TESS_FN_is_finite:
        EACH(whole, (a->whole[i] & 0x7f800000) != 0x7f800000);
        return true;
    case TESS_FN_bits: /* as the other kind of number */
        EACH(whole, J);
        return true;
    case TESS_FN_select:
        EACH(whole, J ? b->whole[i] : c->whole[i]);
        return true;
    case TESS_FN_cast:
        if (s->element == TESS_REAL && of != TESS_REAL)
            EACH(real, (float)J);
        else if (s->element == TESS_BOOL && of == TESS_REAL)
            EACH(whole, A != 0);
        else if (s->element == TESS_BOOL)
            EACH(whole, J != 0);
        else if (s->element == TESS_INT && of == TESS_REAL) /* held in what an int can be, as XLA has it */
            EACH(whole, A != A ? 0 : A >= 2147483648 ? INT32_MAX : A < -2147483648 ? INT32_MIN : (int32_t)A);
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
    for (int i = 0; i < TESS_MAP_OPERANDS; i++) {
        o.one[i] = walk_joint(a->dim, a->in[i].by, a->rank);
        if (!a->index[i] && buffer < w->nbuf - 1) o.x[i] = w->buf[buffer++].ptr;
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
tess_codelet tess_any_map[] = {{.name = "any_map", .dtype = TESS_F32, .cpu = any_map, .parts = any_map_parts}};
