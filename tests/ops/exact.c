/* exact: sums whose bits no order changes; codelets/test_sums.c knows what they are. */
#include "tests/ops/ops.h"

static void square_sum_tasks(void)
{
    static const int64_t shape[][2] = {{1, 1},         {63, 64},       {64, 7},        {8193, 8192},
                                       {40000, 20000}, {600000, 2048}, {90000, 600000}};
    static const double size[] = {1, 1e-30, 1e18};
    for (size_t k = 0; k < sizeof shape / sizeof *shape; k++)
        for (int kind = 0; kind < 9; kind++) {
            const int64_t n = shape[k][0], first = kind % 2 ? 5 : 0;
            const int bad = kind % 3;
            tess_square_arg a = {.n = n, .first = first, .row = shape[k][1], .name = "w"};
            float *x = op_drawn("x", n + first, TESS_F32, size[kind / 3]);
            if (bad) x[first + n / 2] = INFINITY;
            op_any("sum", (int64_t)(tess_exact_bytes() / sizeof(double)), OP_BITS, false);
            if (bad) *(double *)op_drawn("loss", 2, OP_DOUBLE, 1) = bad == 1 ? 2 : NAN;
            if (bad == 1)
                op_fails("w: the gradient is not finite"); /* and with a loss that is not, the loss is blamed */
            op_run(&tess_square_sum[TESS_F32], &a);
        }
}

/* Several as a bundle, one of which is not finite. */
static void square_sums_together(void)
{
    enum { PARTS = 14 };
    static tess_square_arg a[PARTS];
    static uint16_t buf[PARTS][3];
    tess_bundle_part part[PARTS];
    for (int bad = 0; bad < 2; bad++) {
        *(double *)op_drawn("loss", 2, OP_DOUBLE, 1) = 2;
        for (int k = 0; k < PARTS; k++) {
            a[k] = (tess_square_arg){
                .n = 1 + 977 * k, .first = k % 3, .row = k % 4 ? 96 * k : 1, .name = k == 9 ? "w" : "b"};
            buf[k][0] = (uint16_t)(2 * k + 1), buf[k][1] = (uint16_t)(2 * k + 2);
            float *x = op_drawn("x", a[k].n + a[k].first, TESS_F32, 1);
            if (bad && k == 9) x[a[k].first + 77] = NAN;
            op_any("sum", (int64_t)(tess_exact_bytes() / sizeof(double)), OP_BITS, false);
            part[k] = (tess_bundle_part){&tess_square_sum[TESS_F32], &a[k], buf[k], 3};
        }
        if (bad) op_fails("w: the gradient is not finite");
        op_run(&tess_bundle_either[TESS_F32], &(tess_bundle_arg){PARTS, part});
    }
}

/* Sums of sums and of doubles, of all sizes and signs, more than a launch brings along; rounded, also where a term was
 * not finite. */
static void exact_sums_tasks(void)
{
    enum { MANY = 300 };
    static const int counts[] = {1, 2, 64, 128, 129, MANY};
    const int64_t words = (int64_t)(tess_exact_bytes() / sizeof(double));
    for (int kind = 0; kind < 16; kind++)
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            const int64_t n = kind & 4 ? 3 : 1;
            const bool doubles = kind & 1;
            tess_exact_arg a = {.n = n, .doubles = doubles, .acc = kind & 2}, one = {.n = n, .doubles = true};
            double *sum = op_any("sum", n * words, OP_BITS, false), term[4];
            for (int64_t i = 0; i < n; i++) term[i] = i ? -1e-310 : 1e300;
            if (a.acc) {
                tess_view view[] = {{sum, (size_t)n * tess_exact_bytes()}, {term, sizeof term}};
                tess_exact_add[TESS_F32].cpu(&(tess_work){.buf = view, .nbuf = 2, .arg = &one, .env = &op_env});
            }
            for (int b = 0; b < counts[c]; b++) {
                for (int64_t i = 0; i < n; i++)
                    term[i] = ldexp(b % 2 ? -1.0 / (double)(b + 3 + i) : 0.7 + (double)i, (b * 131) % 2000 - 1000);
                if ((kind & 8) && b == counts[c] / 2) term[0] = b % 3 ? INFINITY : NAN;
                double *x = op_raw("x", doubles ? n : n * words, doubles ? OP_DOUBLE : OP_BITS);
                tess_view view[] = {{x, (size_t)n * tess_exact_bytes()}, {term, sizeof term}};
                if (doubles)
                    memcpy(x, term, (size_t)n * sizeof *x);
                else
                    tess_exact_add[TESS_F32].cpu(&(tess_work){.buf = view, .nbuf = 2, .arg = &one, .env = &op_env});
            }
            op_run(&tess_exact_add[TESS_F32], &a);
        }
    for (int kind = 0; kind < 64; kind++) {
        tess_exact_arg a = {.n = 40,
                            .means = kind % 4 == 1   ? 40
                                     : kind % 4 == 2 ? 4
                                                     : 0},
                       one = {.n = 40, .doubles = true};
        double term[40];
        for (int i = 0; i < 40; i++) term[i] = ldexp(i % 2 ? -1 - i / 64.0 : 1.5, (kind * 40 + i) * 97 % 2040 - 1020);
        if (kind % 7 == 3) term[kind % 40] = NAN;
        op_any("value", a.means ? 2 : a.n, OP_DOUBLE, false);
        void *sum = op_raw("sum", a.n * words, OP_BITS);
        tess_view view[] = {{sum, 40 * tess_exact_bytes()}, {term, sizeof term}, {term, sizeof term}};
        tess_exact_add[TESS_F32].cpu(&(tess_work){.buf = view, .nbuf = 2 + kind % 2, .arg = &one, .env = &op_env});
        op_run(&tess_exact_round[TESS_F32], &a);
    }
}

OP_TASKS(exact)
{
    if (op_speed) {
        op_drawn("x", 8 << 20, TESS_F32, 1), op_any("sum", (int64_t)(tess_exact_bytes() / 8), OP_BITS, false);
        op_run(&tess_square_sum[TESS_F32], &(tess_square_arg){.n = 8 << 20, .row = 1024});
        return;
    }
    square_sum_tasks();
    square_sums_together();
    exact_sums_tasks();
}
