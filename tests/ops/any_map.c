/* any_map: each function of generic.def on floats and on whole numbers, and a formula over operands that lie in all
 * ways.
 */
#include "tests/ops/formula.h"

static const struct function {
    int operands;
    const char *kind;
} function[] = {
#define TESS_FN(name, operands, kind) {operands, #kind},
#include "codelets/generic.def"
};

static bool is_kind(int fn, const char *kind)
{
    return !strcmp(function[fn].kind, kind);
}

/* Of a logarithm no negative one: the sign of what is no number is the machine's. */
static void draw(const char *name, int64_t n, tess_element e, tess_fn fn)
{
    float *x = e == TESS_REAL ? op_drawn(name, n, TESS_F32, 2) : NULL;
    for (int64_t i = 0; i < n && x && fn == TESS_FN_log; i++) x[i] = fabsf(x[i]);
    if (!x) op_indices(name, n, e == TESS_BOOL ? 2 : 50);
}

/* y = fn(operands) of elements `of`, which is an `is`: all bodies agree. */
static void one(tess_fn fn, const tess_element of[3], tess_element is)
{
    static const int64_t n = 1031;
    any_draft d = {0};
    tess_any_map_arg a = {.rank = 1, .dim = {n}, .element = is, .out = {.by = {1}}};
    int v[3] = {-1, -1, -1};
    for (int k = 0; k < function[fn].operands; k++) {
        draw("x", n, of[k], fn);
        v[k] = any_load(&d, k, of[k]);
        a.in[a.operands++] = (tess_strides){.by = {1}};
    }
    any_step(&d, fn, is, v[0], v[1], v[2]);
    a.formula = &d.formula;
    op_any("y", n, is == TESS_REAL ? TESS_F32 : TESS_I32, false);
    op_run(tess_any_map, &a);
}

static void functions(void)
{
    for (tess_fn fn = TESS_FN_copy; fn < TESS_FNS; fn++)
        for (tess_element e = TESS_REAL; e <= TESS_BOOL; e++) {
            const tess_element of[] = {e, e, e};
            if (is_kind(fn, "special") || (e != TESS_REAL && is_kind(fn, "real")) ||
                (e == TESS_REAL && (is_kind(fn, "logic") || is_kind(fn, "whole"))) ||
                (e == TESS_BOOL && !is_kind(fn, "logic") && !is_kind(fn, "test")))
                continue;
            one(fn, of, is_kind(fn, "test") ? TESS_BOOL : e);
        }
    for (tess_element from = TESS_REAL; from <= TESS_BOOL; from++)
        for (tess_element to = TESS_REAL; to <= TESS_BOOL; to++) one(TESS_FN_cast, (tess_element[3]){from}, to);
    one(TESS_FN_is_finite, (tess_element[3]){TESS_REAL}, TESS_BOOL);
    one(TESS_FN_bits, (tess_element[3]){TESS_REAL}, TESS_INT);
    one(TESS_FN_select, (tess_element[3]){TESS_BOOL, TESS_REAL, TESS_REAL}, TESS_REAL);
}

/* y [+]= x z + index + 0.5, where x lies somehow, z is repeated, and the index goes along a dimension. */
static void way(int rank, const int64_t *dim, tess_strides x, tess_strides z, tess_strides y, tess_dtype t, bool acc)
{
    any_draft d = {0};
    const int64_t all = any_size(rank, dim);
    tess_any_map_arg a = {
        .rank = rank, .operands = 3, .in = {x, z}, .out = y, .index = {[2] = true}, .formula = &d.formula, .acc = acc};
    int64_t size[3] = {1, 1, 1};
    memcpy(a.dim, dim, (size_t)rank * sizeof *dim);
    a.in[2].by[rank ? rank - 1 : 0] = 2, a.in[2].at = 3;
    a.in[0].t = a.out.t = t;
    for (int64_t i = 0; i < all; i++)
        for (int k = 0; k < 3; k++) {
            const int64_t at = any_at(k < 2 ? &a.in[k] : &a.out, rank, dim, i);
            if (at >= size[k]) size[k] = at + 1;
        }
    const int loaded = any_load(&d, 0, TESS_REAL), with = any_load(&d, 1, TESS_REAL), index = any_load(&d, 2, TESS_INT);
    const int half = any_step(&d, TESS_FN_value, TESS_REAL, -1, -1, -1);
    d.step[half].is.real = 0.5f;
    const int product = any_step(&d, TESS_FN_mul, TESS_REAL, loaded, with, -1),
              real = any_step(&d, TESS_FN_cast, TESS_REAL, index, -1, -1);
    any_step(&d, TESS_FN_add, TESS_REAL, any_step(&d, TESS_FN_add, TESS_REAL, product, real, -1), half, -1);
    const double *xs = op_in("x", size[0], t, 1), *zs = op_in("z", size[1], TESS_F32, 1);
    double *ys = op_out("y", size[2], t, true);
    for (int64_t i = 0; i < all; i++) {
        double *to = &ys[any_at(&a.out, rank, dim, i)];
        *to = (acc ? *to : 0) + xs[any_at(&a.in[0], rank, dim, i)] * zs[any_at(&a.in[1], rank, dim, i)] +
              (double)any_at(&a.in[2], rank, dim, i) + 0.5;
    }
    op_run(tess_any_map, &a);
}

static void ways(void)
{
    static const int64_t dim[] = {5, 7, 12}, odd[] = {3, 1, 5, 2, 2}, line[] = {2053};
    OP_EACH(t) OP_EACH_ACC(acc)
    {
        way(3, dim, any_dense(3, dim, t), (tess_strides){.by = {0, 1, 0}}, any_dense(3, dim, t), t, acc);
        /* turned around, transposed, with gaps */
        way(3, dim, (tess_strides){.at = 83, .by = {84, -12, -1}}, (tess_strides){.by = {0, 0, 1}},
            (tess_strides){.at = 2, .by = {1, 5, 36}}, t, acc);
        way(5, odd, any_dense(5, odd, t), (tess_strides){.at = 1}, (tess_strides){.by = {40, 0, 8, 3, 1}}, t, acc);
        way(1, line, (tess_strides){.at = 4, .by = {1}}, (tess_strides){.by = {1}}, (tess_strides){.by = {1}}, t, acc);
        way(1, line, (tess_strides){.at = 3, .by = {2}}, (tess_strides){.by = {1}}, (tess_strides){.at = 1, .by = {1}},
            t, acc);
        way(0, line, (tess_strides){0}, (tess_strides){0}, (tess_strides){0}, t, acc);
    }
}

OP_TASKS(any_map)
{
    if (op_speed) return;
    functions();
    ways();
}
