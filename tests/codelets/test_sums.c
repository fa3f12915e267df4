/* Sums whose bits no order of their terms changes, and sums by a tree. */
#define CHECK_MAIN
#include "tests/codelets/body.h"

static double value_of(double x)
{
    void *sum = bytes_of(tess_exact_bytes());
    RUN(tess_exact_add, (&(tess_exact_arg){.n = 1, .doubles = true}), sum, copy_of(&x, sizeof x));
    return tess_exact_value(sum);
}

/* What goes in alone comes out, from the smallest double to the largest, of either sign. */
TEST(exact_one)
{
    const double x[] = {
        0, 1, -1, 0.1, -0.1, 5e-324, -5e-324, 2.2250738585072014e-308, 1e-310, 1.7976931348623157e308, -1e300};
    for (size_t i = 0; i < sizeof x / sizeof *x; i++) CHECK(value_of(x[i]) == x[i]);
    CHECK(isnan(value_of(INFINITY)) && isnan(value_of(NAN)));
    forget();
}

/* No order and no grouping of the terms changes a bit, though doubles would lose them. */
TEST(exact_order)
{
    enum { TERMS = 300 };
    double *x[TERMS], *forth = zeros(1);
    for (int i = 0; i < TERMS; i++) *(x[i] = zeros(1)) = ldexp(((i * 7919) % 1000) - 499.5, (i * 31) % 400 - 200);
    void *all = poison(tess_exact_bytes()), *part = poison(tess_exact_bytes()), *sum = poison(tess_exact_bytes());
    tess_exact_arg one = {.n = 1, .doubles = true}, more = one, add = {.n = 1, .acc = true};
    more.acc = true;
    for (int i = 0; i < TERMS; i++) RUN(tess_exact_add, i ? &more : &one, all, x[i]);
    for (int cut = 1; cut < TERMS; cut += 37) {
        for (int i = cut - 1; i >= 0; i--) RUN(tess_exact_add, i == cut - 1 ? &one : &more, part, x[i]);
        for (int i = TERMS - 1; i >= cut; i--) RUN(tess_exact_add, i == TERMS - 1 ? &one : &more, sum, x[i]);
        RUN(tess_exact_add, &add, sum, part);
        CHECK(!memcmp(all, sum, tess_exact_bytes()));
    }
    RUN(tess_exact_round, &one, forth, all);
    CHECK(*forth == tess_exact_value(all));
    *x[0] = 1e300, *x[1] = 1e-300, *x[2] = -1e300; /* in doubles the small one would be gone */
    RUN(tess_exact_add, &one, all, x[0], x[1], x[2]);
    CHECK(tess_exact_value(all) == 1e-300);
    forget();
}

TEST(square_sum)
{
    for (int64_t rows = 1; rows < 90; rows = 2 * rows + 1) {
        enum { WIDE = 61 };
        int64_t n = rows * WIDE;
        double *x = new_values(n, 1e-3), want = 0;
        float *px = real_of(x, n, TESS_F32);
        void *got = poison(tess_exact_bytes()), *up = poison(tess_exact_bytes()), *low = poison(tess_exact_bytes());
        for (int64_t i = 0; i < n; i++) want += x[i] * x[i];
        RUN(tess_square_sum, (&(tess_square_arg){.n = n, .row = WIDE}), px, got);
        CHECK_NEAR(tess_exact_value(got), want, 1e-13 * want);
        int64_t cut = rows / 2 * WIDE; /* in two pieces of whole rows: the same bits */
        RUN(tess_square_sum, (&(tess_square_arg){.n = cut, .row = WIDE}), px, up);
        RUN(tess_square_sum, (&(tess_square_arg){.n = n - cut, .first = cut, .row = WIDE}), px, low);
        RUN(tess_exact_add, (&(tess_exact_arg){.n = 1, .acc = true}), low, up);
        CHECK(!memcmp(got, low, tess_exact_bytes()));
        forget();
    }
    /* A square beyond fp32 is no reason to stop. */
    float *big = bytes_of(4);
    void *got = poison(tess_exact_bytes());
    *big = 1e30f;
    RUN(tess_square_sum, (&(tess_square_arg){.n = 1, .row = 1}), big, got);
    CHECK_NEAR(tess_exact_value(got), 1e60, 1e54);
    forget();
}

/* However the leaves of the tree are handed in, summed already or not, the sum has the same bits. */
TEST(tree_sum)
{
    enum { LEAVES = 7, LONG = 5000 };
    float *leaf[LEAVES], *pair = bytes_of(LONG * 4), *four = bytes_of(LONG * 4);
    for (int i = 0; i < LEAVES; i++) leaf[i] = real_of(new_values(LONG, 1), LONG, TESS_F32);
    float *all = poison(LONG * 4), *some = poison((LONG + 3) * 4);
    tess_tree_part seven[LEAVES], grouped[] = {{1, 2, 0, TESS_F32}, {2, 1, 0, TESS_F32}, {3, 0, 0, TESS_F32}};
    for (int i = 0; i < LEAVES; i++) seven[i] = (tess_tree_part){.buf = (unsigned)i + 1};
    RUN(tess_tree_sum, (&(tess_tree_arg){.n = LONG, .parts = LEAVES, .part = seven}), all, leaf[0], leaf[1], leaf[2],
        leaf[3], leaf[4], leaf[5], leaf[6]);
    for (int i = 0; i < LONG; i++) {
        float a = (leaf[0][i] + leaf[1][i]) + (leaf[2][i] + leaf[3][i]), b = leaf[4][i] + leaf[5][i];
        if (all[i] != a + (b + leaf[6][i])) CHECK_EQ(i, -1);
    }
    RUN(tess_tree_sum, (&(tess_tree_arg){.n = LONG, .parts = 4, .part = seven}), four, leaf[0], leaf[1], leaf[2],
        leaf[3]);
    RUN(tess_tree_sum, (&(tess_tree_arg){.n = LONG, .parts = 2, .part = seven}), pair, leaf[4], leaf[5]);
    RUN(tess_tree_sum, (&(tess_tree_arg){.n = LONG, .out = 3, .parts = 3, .part = grouped}), some, four, pair, leaf[6]);
    CHECK(!memcmp(all, some + 3, LONG * 4));
    forget();
}
