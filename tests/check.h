/* A test program: cases that register themselves, checks that go on after a failure, one closing line. */
#ifndef TESS_TESTS_CHECK_H
#define TESS_TESTS_CHECK_H
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct check_case {
    const char *name;
    void (*run)(void);
    struct check_case *next;
};
extern struct check_case *check_first, **check_last;
extern int check_failures, check_skipped;

#define TEST(case_name)                                                                                                \
    static void test_##case_name(void);                                                                                \
    __attribute__((constructor)) static void register_##case_name(void)                                                \
    {                                                                                                                  \
        static struct check_case c = {#case_name, test_##case_name, NULL};                                             \
        *check_last = &c;                                                                                              \
        check_last = &c.next;                                                                                          \
    }                                                                                                                  \
    static void test_##case_name(void)

#define CHECK_SAY(...)                                                                                                 \
    do {                                                                                                               \
        check_failures++;                                                                                              \
        printf("%s:%d: ", __FILE__, __LINE__);                                                                         \
        printf(__VA_ARGS__);                                                                                           \
        printf("\n");                                                                                                  \
    } while (0)
#define CHECK(cond)                                                                                                    \
    do {                                                                                                               \
        if (!(cond)) CHECK_SAY("%s does not hold", #cond);                                                             \
    } while (0)
#define CHECK_EQ(a, b)                                                                                                 \
    do {                                                                                                               \
        long long check_a = (long long)(a), check_b = (long long)(b);                                                  \
        if (check_a != check_b) CHECK_SAY("%s is %lld, expected %s = %lld", #a, check_a, #b, check_b);                 \
    } while (0)
#define CHECK_STR(a, b)                                                                                                \
    do {                                                                                                               \
        const char *check_a = (a), *check_b = (b);                                                                     \
        if (!check_a || strcmp(check_a, check_b))                                                                      \
            CHECK_SAY("%s is \"%s\", expected \"%s\"", #a, check_a ? check_a : "(null)", check_b);                     \
    } while (0)
/* The text holds the part. */
#define CHECK_HAS(text, part)                                                                                          \
    do {                                                                                                               \
        const char *check_a = (text), *check_b = (part);                                                               \
        if (!check_a || !strstr(check_a, check_b))                                                                     \
            CHECK_SAY("%s is \"%s\", which lacks \"%s\"", #text, check_a ? check_a : "(null)", check_b);               \
    } while (0)
/* A NaN is near nothing. */
#define CHECK_NEAR(a, b, tol)                                                                                          \
    do {                                                                                                               \
        double check_a = (a), check_b = (b);                                                                           \
        if (!(fabs(check_a - check_b) <= (tol)))                                                                       \
            CHECK_SAY("%s is %.9g, expected %s = %.9g within %.3g", #a, check_a, #b, check_b, (double)(tol));          \
    } while (0)
#define SKIP(why)                                                                                                      \
    do {                                                                                                               \
        printf("skipped: %s\n", why);                                                                                  \
        check_skipped++;                                                                                               \
        return;                                                                                                        \
    } while (0)

#ifdef CHECK_MAIN
struct check_case *check_first, **check_last = &check_first;
int check_failures, check_skipped;

static double check_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* With an argument only the cases whose name holds it run. A case that takes long is named with its time. */
int main(int argc, char **argv)
{
    int passed = 0, failed = 0;
    setvbuf(stdout, NULL, _IOLBF, 0); /* what was said is there when a case aborts */
    for (struct check_case *c = check_first; c; c = c->next) {
        if (argc > 1 && !strstr(c->name, argv[1])) continue;
        int failures = check_failures, skipped = check_skipped;
        const double begin = check_seconds();
        c->run();
        if (check_seconds() - begin >= 2) printf("%.1f s: %s\n", check_seconds() - begin, c->name);
        if (check_failures > failures) {
            failed++;
            printf("FAILED %s\n", c->name);
        } else if (check_skipped == skipped)
            passed++;
    }
    printf("%d passed, %d failed, %d skipped\n", passed, failed, check_skipped);
    return failed > 0;
}
#endif
#endif
