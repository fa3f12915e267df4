/* Convolutions beside sums written out in double: by the library, and as products of patches. */
#define CHECK_MAIN
#include "codelets/generic/products/conv_impl.h"
#include "codelets/generic/walk.h"
#include "codelets/products/mm.h"
#include "tests/codelets/body.h"
#include "tests/ops/convolutions.h"

enum { SPACE = TESS_CONV_SPACE };

/* For all x, w and y that meet, adds the product of the others to what is written. */
static void expect(const tess_any_conv_arg *a, int written, double *x, double *w, double *y)
{
    const int64_t dim[] = {a->samples, a->groups, a->outputs,   a->inputs,    a->out[0],
                           a->out[1],  a->out[2], a->window[0], a->window[1], a->window[2]};
    walk at = walk_begin(dim, 10, 0);
    for (int64_t k = 0, n = walk_size(dim, 10); k < n; k++, walk_on(&at, 1)) {
        int64_t of_x = at.at[0] * a->x[0] + (at.at[1] * a->inputs + at.at[3]) * a->x[1],
                of_w = at.at[1] * a->w_group + at.at[2] * a->w[0] + at.at[3] * a->w[1],
                of_y = at.at[0] * a->y[0] + (at.at[1] * a->outputs + at.at[2]) * a->y[1];
        bool meet = true;
        for (int d = 0; d < SPACE; d++) {
            const int64_t in = at.at[4 + d] * a->step[d] + at.at[7 + d] * a->apart[d] - a->pad[d];
            meet &= in >= 0 && in < a->in[d];
            of_x += in * a->x[2 + d], of_w += at.at[7 + d] * a->w[2 + d], of_y += at.at[4 + d] * a->y[2 + d];
        }
        if (!meet) continue;
        if (written == CONV_X)
            x[of_x] += w[of_w] * y[of_y];
        else if (written == CONV_W)
            w[of_w] += x[of_x] * y[of_y];
        else
            y[of_y] += x[of_x] * w[of_w];
    }
}

/* Returns the bytes of an output made so. */
static void *made(const tess_any_conv_arg *a, int written, tess_dtype in, void *const *buffer, size_t bytes)
{
    tess_codelet *const cl[] = {tess_any_conv_input, tess_any_conv_weight, tess_any_conv};
    const size_t scratch = tess_any_conv_scratch(a, written, in);
    void *room = scratch ? aligned_alloc(64, (scratch + 63) / 64 * 64) : NULL, *use[CONV_TENSORS + 1];
    memcpy(use, buffer, CONV_TENSORS * sizeof *use);
    use[written] = copy_of(buffer[written], bytes), use[CONV_TENSORS] = room;
    run_body(&cl[written][in], a, use, CONV_TENSORS + (scratch > 0));
    free(room);
    return use[written];
}

/* Numbers that any dtype has, so that all expect the same. */
static double *some_values(int64_t n)
{
    double *x = new_values(n, 1);
    for (int64_t i = 0; i < n; i++) x[i] = rint(8 * x[i]) / 8;
    return x;
}

/* Makes it in a dtype, with `acc` added to what was there, and returns whether the library does. */
static bool one(const conv_problem *p, tess_any_conv_arg a, int written, tess_dtype in, const int64_t *size,
                double *const *value, const double *sum)
{
    const tess_dtype to = written == CONV_Y || (written == CONV_W && a.acc) ? in : TESS_F32;
    const int64_t n = size[written];
    void *buffer[CONV_TENSORS];
    double *want = bytes_of((size_t)n * sizeof *want);
    a.to = to;
    for (int64_t i = 0; i < n; i++) want[i] = sum[i] + (a.acc ? value[written][i] : 0);
    for (int k = 0; k < CONV_TENSORS; k++)
        buffer[k] = k != written || a.acc ? real_of(value[k], size[k], k == written ? to : in)
                                          : poison((size_t)n * tess_dtype_size(to));
    TESS_ASSERT(tess_any_conv_fits(&a));
    const bool library = tess_conv_library(&a, written, in) != NULL;
    for (int across = 0; across < 2; across++) {
        tess_matrix_across(across);
        void *got = made(&a, written, in, buffer, (size_t)n * tess_dtype_size(to));
        if (!near(got, to, want, n))
            CHECK_SAY("%s: writes %c, of %s to %s%s%s", p->name, "xwy"[written], tess_dtype_name(in),
                      tess_dtype_name(to), a.acc ? ", adds" : "", library && !across ? ", by the library" : "");
    }
    tess_matrix_across(false);
    return library;
}

TEST(convolutions)
{
    int by_library = 0, all = 0;
    for (int k = 0; k < CONV_PROBLEMS; k++)
        for (int written = 0; written < CONV_TENSORS; written++) {
            tess_any_conv_arg a = conv_arg(&conv_problems[k]);
            const int64_t size[] = {a.samples * a.groups * a.inputs * walk_size(a.in, SPACE),
                                    a.groups * a.outputs * a.inputs * walk_size(a.window, SPACE),
                                    a.samples * a.groups * a.outputs * walk_size(a.out, SPACE)};
            double *value[CONV_TENSORS], *sums[CONV_TENSORS];
            for (int j = 0; j < CONV_TENSORS; j++) sums[j] = value[j] = some_values(size[j]);
            sums[written] = zeros(size[written]);
            expect(&a, written, sums[CONV_X], sums[CONV_W], sums[CONV_Y]);
            for (int acc = 0; acc < 2; acc++) {
                a.acc = acc;
                EACH_REAL(in)
                by_library += one(&conv_problems[k], a, written, in, size, value, sums[written]), all++;
            }
            forget();
        }
    printf("%d of %d by the library\n", by_library, all);
    tess_any_conv_arg a = conv_arg(&conv_problems[0]);
    if (tess_mm_lanes() >= 8) CHECK(tess_conv_library(&a, CONV_Y, TESS_F32));
    /* A sample of which each worker would hold 64 MiB. */
    const conv_problem large = {"large",   1,        1,        64,        64, {1, 512, 512},
                                {1, 3, 3}, CONV_ONE, CONV_ONE, {0, 1, 1}, 1,  false};
    a = conv_arg(&large);
    CHECK(!tess_conv_library(&a, CONV_Y, TESS_F32));
    CHECK(tess_any_conv_scratch(&a, CONV_Y, TESS_F32) < 4 << 20);
}
