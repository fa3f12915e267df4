/* What this machine multiplies: the yardstick beside every rate that we print. */
#include "mm_impl.h"
#include "vector_impl.h"
#include <stdlib.h>

double tess_matrix_rate(tess_dtype t)
{
    enum { N = 2048, RUNS = 4 };
    const tess_mm d = {.m = N, .n = N, .k = N, .lda = N, .ldb = N, .ldc = N, .in = t, .out = TESS_F32, .plain = true};
    const size_t size = (size_t)N * N;
    void *a = tess_alloc(size * tess_dtype_size(t)), *b = tess_alloc(size * tess_dtype_size(t)),
         *c = tess_alloc(size * 4);
    for (int64_t i = 0; i < (int64_t)size; i++) {
        tess_store(a, i, t, (float)(i % 251) / 251);
        tess_store(b, i, t, (float)(i % 127) / 127);
    }
    double best = INFINITY, begin = tess_seconds();
    for (int k = 0; k < RUNS && (k == 0 || tess_seconds() - begin < 0.1); k++) {
        const double start = tess_seconds();
        tess_mm_run(&d, a, b, c);
        const double took = tess_seconds() - start;
        best = took < best ? took : best;
    }
    free(a);
    free(b);
    free(c);
    return 2.0 * N * N * N / best;
}
