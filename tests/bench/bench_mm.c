/* Products of the shapes of a GPT-2 124M training step, one core: the library as it comes, and tess_mm, side by side.
 * Best of several rounds in which both alternate, since other loads of the machine slow both down. */
#include "codelets/products/mm.h"
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

typedef struct shape {
    const char *name;
    bool ta, tb;
    int64_t m, n, k;
    tess_dtype out; /* in bf16; f32 runs all in f32 */
    bool acc;
    int count; /* in a step of 1024 tokens */
} shape;

enum { C = 768, V = 6336 };
#define LAYER(rows, times)                                                                                             \
    {"qkv forward", false, true, rows, 3 * C, C, TESS_BF16, false, times},                                             \
        {"proj forward", false, true, rows, C, C, TESS_BF16, false, times},                                            \
        {"fc forward", false, true, rows, 4 * C, C, TESS_BF16, false, times},                                          \
        {"fc2 forward", false, true, rows, C, 4 * C, TESS_BF16, false, times},                                         \
        {"qkv dx", false, false, rows, C, 3 * C, TESS_BF16, false, times},                                             \
        {"proj dx", false, false, rows, C, C, TESS_BF16, false, times},                                                \
        {"fc dx", false, false, rows, C, 4 * C, TESS_BF16, false, times},                                              \
        {"fc2 dx", false, false, rows, 4 * C, C, TESS_BF16, false, times},                                             \
        {"qkv dw", true, false, 3 * C, C, rows, TESS_F32, true, times},                                                \
        {"proj dw", true, false, C, C, rows, TESS_F32, true, times},                                                   \
        {"fc dw", true, false, 4 * C, C, rows, TESS_F32, true, times},                                                 \
    {                                                                                                                  \
        "fc2 dw", true, false, C, 4 * C, rows, TESS_F32, true, times                                                   \
    }
static const shape shapes[] = {
    LAYER(1024, 12),
    LAYER(512, 0),
    {"head logits", false, true, 512, V, C, TESS_F32, false, 16},
    {"head dx", false, false, 512, C, V, TESS_F32, true, 16},
    {"head dw", true, false, V, C, 512, TESS_F32, true, 16},
};

static void *matrix(int64_t n, bool zero)
{
    const size_t huge = 2u << 20, bytes = ((size_t)n * 4 + huge - 1) / huge * huge;
    float *x = aligned_alloc(huge, bytes);
    TESS_ASSERT(x);
    madvise(x, bytes, MADV_HUGEPAGE);
    uint32_t state = 1;
    for (size_t i = 0; i < bytes / 4; i++) {
        state = state * 1664525u + 1013904223u;
        union {
            uint32_t u;
            float f;
        } v = {.u = zero ? 0 : (state & 0x807f807fu) | 0x3c003c00u};
        x[i] = v.f;
    }
    return x;
}

/* Seconds of the best run of each. */
static void measure(const shape *s, tess_dtype in, double budget, double best[2])
{
    void *a = matrix(s->m * s->k, false), *b = matrix(s->k * s->n, false), *c = matrix(s->m * s->n, true);
    tess_mm d = {.m = s->m, .n = s->n, .k = s->k, .in = in, .out = in == TESS_F32 ? TESS_F32 : s->out};
    d.ta = s->ta, d.tb = s->tb, d.acc = s->acc;
    d.lda = d.ta ? d.m : d.k, d.ldb = d.tb ? d.k : d.n, d.ldc = d.n;
    best[0] = best[1] = 1e9;
    double start = tess_seconds();
    for (int round = 0; round < 3 || tess_seconds() - start < budget; round++)
        for (int ours = 0; ours < 2; ours++) {
            d.plain = !ours;
            double t = tess_seconds();
            tess_mm_run(&d, a, b, c);
            t = tess_seconds() - t;
            if (t < best[ours] && round) best[ours] = t;
        }
    free(a), free(b), free(c);
}

int main(int argc, char **argv)
{
    const double budget = argc > 1 ? atof(argv[1]) : 0.3;
    for (tess_dtype in = TESS_F32; in <= TESS_BF16; in++) {
        double total[2] = {0, 0}, flops = 0;
        printf("%-4s %-14s %8s %6s %6s %6s %9s %9s\n", tess_dtype_name(in), "GFLOP/s", "form", "m", "n", "k", "plain",
               "ours");
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            const shape *s = &shapes[i];
            double best[2], work = 2e-9 * (double)(s->m * s->n) * (double)s->k;
            measure(s, in, budget, best);
            printf("     %-14s %7s%c %6lld %6lld %6lld %9.0f %9.0f\n", s->name, s->ta ? "T" : "N", s->tb ? 'T' : 'N',
                   (long long)s->m, (long long)s->n, (long long)s->k, work / best[0], work / best[1]);
            fflush(stdout);
            flops += work * s->count;
            for (int o = 0; o < 2; o++) total[o] += best[o] * s->count;
        }
        printf("     products of a step of 1024 tokens: plain %.0f ms (%.0f), ours %.0f ms (%.0f)\n", total[0] * 1e3,
               flops / total[0], total[1] * 1e3, flops / total[1]);
    }
    return 0;
}
