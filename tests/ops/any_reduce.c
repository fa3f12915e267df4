/* any_reduce: each reduction of floats and of whole numbers, over what lies together and what does not. */
#include "tests/ops/formula.h"

/* Of three dimensions the first `kept` are those of results, by these strides. */
static void reduce(tess_reduction fn, tess_element e, int kept, const int64_t *dim, const int64_t *by, tess_dtype t,
                   bool acc)
{
    const bool finds = fn >= TESS_REDUCE_ARGMAX;
    const int64_t results = any_size(kept, dim);
    const int type = e == TESS_REAL ? (int)t : TESS_I32;
    tess_any_reduce_arg a = {.rank = 3,
                             .kept = kept,
                             .dim = {dim[0], dim[1], dim[2]},
                             .in = {.by = {by[0], by[1], by[2]}, .t = t},
                             .fn = fn,
                             .element = e,
                             .to = t,
                             .acc = acc && !finds};
    if (e == TESS_REAL && fn == TESS_REDUCE_SUM)
        any_positive("x", any_size(3, dim), t);
    else if (e == TESS_REAL)
        op_in("x", any_size(3, dim), type, 1);
    else
        op_indices("x", any_size(3, dim), e == TESS_BOOL ? 2 : 9);
    op_any("y", results, finds ? TESS_I32 : type, a.acc);
    op_run(tess_any_reduce, &a);
}

/* Sums beside what is expected. */
static void sum(int kept, const int64_t *dim, const int64_t *by, tess_dtype t)
{
    const int64_t all = any_size(3, dim), results = any_size(kept, dim);
    tess_any_reduce_arg a = {.rank = 3,
                             .kept = kept,
                             .dim = {dim[0], dim[1], dim[2]},
                             .in = {.by = {by[0], by[1], by[2]}, .t = t},
                             .to = TESS_F32};
    const double *x = any_positive("x", all, t);
    double *y = op_out("y", results, TESS_F32, false);
    for (int64_t i = 0; i < all; i++) y[i / (all / results)] += x[any_at(&a.in, 3, dim, i)];
    op_within(2e-5);
    op_run(tess_any_reduce, &a);
}

OP_TASKS(any_reduce)
{
    static const int64_t shape[][3] = {{5, 6, 67}, {70, 3, 8}, {2, 90, 110}};
    if (op_speed) return;
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++) {
        const int64_t *dim = shape[k], dense[] = {dim[1] * dim[2], dim[2], 1}, turned[] = {1, dim[0] * dim[2], dim[0]};
        for (int kept = 0; kept < 3; kept++)
            for (int way = 0; way < 2; way++) {
                const int64_t *by = way ? turned : dense;
                OP_EACH(t) sum(kept, dim, by, t);
                for (tess_reduction fn = TESS_REDUCE_SUM; fn <= TESS_REDUCE_ARGMIN; fn++) {
                    const bool logic = fn == TESS_REDUCE_AND || fn == TESS_REDUCE_OR, finds = fn >= TESS_REDUCE_ARGMAX;
                    if (finds && kept != 2) continue;
                    if (!logic) reduce(fn, TESS_REAL, kept, dim, by, TESS_F32, kept == 1);
                    if (!logic && !finds && fn != TESS_REDUCE_PROD)
                        reduce(fn, TESS_REAL, kept, dim, by, TESS_BF16, kept == 1);
                    reduce(fn, TESS_INT, kept, dim, by, TESS_F32, kept == 1);
                    if (logic) reduce(fn, TESS_BOOL, kept, dim, by, TESS_F32, kept == 1);
                }
            }
    }
}
