/* Calls bodies of codelets directly, without StarPU: buffers made of doubles, poisoned outputs, distances.
 *
 *     double x[N], want[N];
 *     values(x, N, 1);                                  // random, near 1 in size
 *     void *in = real_of(x, N, t);                      // stored as t; x becomes what was stored
 *     void *out = poison(N * tess_dtype_size(t));       // NaN whatever the type
 *     RUN(&tess_gelu_forward[t], &arg, in, out);
 *     CHECK(near(out, t, want, N));
 *     forget();                                         // frees what was made
 */
#ifndef TESS_TESTS_BODY_H
#define TESS_TESTS_BODY_H
#include "codelets/codelets.h"
#include "tests/check.h"
#include <malloc.h>
#include <stdarg.h>

static void *kept[512];
static int kept_count;
static char failure[256]; /* what a body said through tess_work_fail */
static tess_env env = {.seed = 11, .step = 3, .train = true, .unscale = 1};
static uint64_t dice = 1;

void tess_work_fail(const tess_work *w, const char *format, ...)
{
    (void)w;
    va_list ap;
    va_start(ap, format);
    vsnprintf(failure, sizeof failure, format, ap);
    va_end(ap);
}

static inline void *bytes_of(size_t bytes)
{
    TESS_ASSERT(kept_count < 512);
    return kept[kept_count++] = tess_alloc(bytes ? bytes : 1);
}
static inline void *poison(size_t bytes)
{
    return memset(bytes_of(bytes), 0xff, bytes);
}
static inline void forget(void)
{
    while (kept_count > 0) free(kept[--kept_count]);
}

/* Uniform in (-1, 1). */
static inline double roll(void)
{
    dice = dice * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(dice >> 11) * 0x1p-52 - 1;
}
/* About normal, of this size. */
static inline void values(double *x, int64_t n, double size)
{
    for (int64_t i = 0; i < n; i++) x[i] = size * (roll() + roll() + roll());
}
static inline double *new_values(int64_t n, double size)
{
    double *x = bytes_of((size_t)n * sizeof *x);
    values(x, n, size);
    return x;
}
static inline double *zeros(int64_t n)
{
    return bytes_of((size_t)n * sizeof(double));
}

static inline double element(const void *x, int64_t i, tess_dtype t)
{
    if (t == TESS_F16) return tess_from_f16(((const tess_f16 *)x)[i]);
    return t == TESS_BF16 ? tess_from_bf16(((const tess_bf16 *)x)[i]) : ((const float *)x)[i];
}
static inline void *real_of(double *x, int64_t n, tess_dtype t)
{
    void *y = bytes_of((size_t)n * tess_dtype_size(t));
    for (int64_t i = 0; i < n; i++) {
        if (t == TESS_BF16)
            ((tess_bf16 *)y)[i] = tess_to_bf16((float)x[i]);
        else if (t == TESS_F16)
            ((tess_f16 *)y)[i] = tess_to_f16((float)x[i]);
        else
            ((float *)y)[i] = (float)x[i];
        x[i] = element(y, i, t);
    }
    return y;
}
static inline void *copy_of(const void *x, size_t bytes)
{
    return memcpy(bytes_of(bytes), x, bytes);
}

/* Relative distance in norm; a NaN makes it one. */
static inline double distance(const void *got, tess_dtype t, const double *want, int64_t n)
{
    double off = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = element(got, i, t) - want[i];
        off += d * d;
        size += want[i] * want[i];
    }
    return sqrt(off / (size > 0 ? size : 1));
}
static inline bool near(const void *got, tess_dtype t, const double *want, int64_t n)
{
    double d = distance(got, t, want, n), limit = t == TESS_BF16 ? 1e-2 : t == TESS_F16 ? 2e-3 : 1e-5;
    if (!(d <= limit)) printf("distance %g\n", d);
    return d <= limit;
}

static inline void run_body(tess_codelet *cl, const void *arg, void *const *buffer, unsigned n)
{
    tess_view view[16];
    for (unsigned i = 0; i < n; i++) view[i] = (tess_view){buffer[i], malloc_usable_size(buffer[i])};
    tess_task task = {.cl = cl, .arg = arg};
    cl->cpu(&(tess_work){.buf = view, .nbuf = n, .arg = arg, .env = &env, .task = &task});
}
/* The buffers are what the functions above made. */
#define RUN(cl, arg, ...) run_body(cl, arg, (void *[]){__VA_ARGS__}, sizeof((void *[]){__VA_ARGS__}) / sizeof(void *))

#define EACH_REAL(t) for (tess_dtype t = TESS_F32; t <= TESS_F16; t++)

#endif
