/* All CUDA bodies as tess_emulated_<body>, for the CPU; each file in a namespace of its own, since they are compiled
 * apart otherwise. Products are loops. */
#define TESS_EMULATED
#define TESS_CUDA_NAME(body) tess_emulated_##body
#define tess_cuda_mm_run     tess_emulated_mm_run
#define tess_cuda_mm_gelu    tess_emulated_mm_gelu
#define tess_cuda_mm_slope   tess_emulated_mm_slope
#include "balance_impl.h"
#include "exact_impl.h"
#include "reduce_impl.h"
#include "tensor_impl.h"
#include "update_cuda_impl.h"

static void fetch(int type, float v[1], const void *x, int64_t i)
{
    if (type == TESS_BF16)
        load<TESS_BF16, 1>(v, x, i);
    else if (type == TESS_F16)
        load<TESS_F16, 1>(v, x, i);
    else
        load<TESS_F32, 1>(v, x, i);
}

/* Row i of a product, with its bias. */
static void multiply_row(const tess_cuda_mm *d, const void *a, const void *b, int64_t i, std::vector<float> &sum)
{
    sum.assign(d->n, 0.0f);
    for (int64_t k = 0; k < d->k; k++) {
        float x[1], y[1];
        const int64_t at = d->ta ? k * d->lda + i : i * d->lda + k;
        fetch(d->in, x, a, at);
        for (int64_t j = 0; j < d->n; j++) {
            const int64_t from = d->tb ? j * d->ldb + k : k * d->ldb + j;
            fetch(d->in, y, b, from);
            sum[j] += x[0] * y[0];
        }
    }
    for (int64_t j = 0; j < d->n && d->bias; j++) sum[j] += d->bias[j];
}

static void put(const tess_cuda_mm *d, void *c, int64_t i, int64_t j, float x)
{
    float v[1] = {x};
    if (d->out == TESS_BF16)
        accumulate<TESS_BF16, 1>(c, i * d->ldc + j, d->acc, v);
    else if (d->out == TESS_F16)
        accumulate<TESS_F16, 1>(c, i * d->ldc + j, d->acc, v);
    else
        accumulate<TESS_F32, 1>(c, i * d->ldc + j, d->acc, v);
}

bool tess_cuda_mm_run(const tess_work *, const tess_cuda_mm *d, const void *a, const void *b, void *c)
{
    std::vector<float> sum;
    for (int64_t i = 0; i < d->m; i++) {
        multiply_row(d, a, b, i, sum);
        for (int64_t j = 0; j < d->n; j++) put(d, c, i, j, sum[j]);
    }
    return false; /* column sums are the caller's */
}

/* The epilogues as cublasLt's manual has them: gelu is by tanh; the auxiliary matrix has C's type and rows, whose
 * distance must be a multiple of 8. Without that the caller does it. */
bool tess_cuda_mm_gelu(const tess_work *, const tess_cuda_mm *d, const void *a, const void *b, void *pre, void *c)
{
    std::vector<float> sum;
    if (d->ldc % 8) return false;
    for (int64_t i = 0; i < d->m; i++) {
        multiply_row(d, a, b, i, sum);
        for (int64_t j = 0; j < d->n; j++) {
            const double x = sum[j], z = sqrt(2 / M_PI) * (x + 0.044715 * x * x * x);
            put(d, pre, i, j, sum[j]);
            put(d, c, i, j, (float)(x / 2 * (1 + tanh(z))));
        }
    }
    return true;
}

bool tess_cuda_mm_slope(const tess_work *, const tess_cuda_mm *d, const void *a, const void *b, const void *pre,
                        void *c)
{
    std::vector<float> sum;
    if (d->ldc % 8) return false;
    for (int64_t i = 0; i < d->m; i++) {
        multiply_row(d, a, b, i, sum);
        for (int64_t j = 0; j < d->n; j++) {
            float v[1];
            fetch(d->out, v, pre, i * d->ldc + j);
            const double x = v[0], t = tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
            const double slope = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
            put(d, c, i, j, (float)(sum[j] * ((1 + t) / 2 + x / 2 * (1 - t * t) * slope)));
        }
    }
    return true;
}

#include "emulated_bodies.h" /* the build writes it, from graph/ops.def */
