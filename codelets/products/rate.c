/* What this machine multiplies and copies: the yardsticks beside every rate that we print. */
#include "codelets/codelets.h"
#include "codelets/products/mm.h"
#include "codelets/shared/cuda_rate.h"
#include <dnnl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { CORES = 256, COPY_BYTES = 64 << 20, COPY_LEAST = 8 << 20 }; /* copied each by all cores together, by one */
static const double SECONDS = 0.15;

struct core {
    pthread_t thread;
    pthread_barrier_t *start;
    tess_dtype dtype;
    int64_t n;    /* of matrices */
    size_t bytes; /* of a copy */
    void *x[3];   /* matrices, or what is copied to and fro */
    double rate;
};

/* Large pages, as tiles have. */
static void *new_pages(size_t bytes)
{
    const size_t page = 2 << 20;
    void *p = NULL;
    if (posix_memalign(&p, page, bytes)) p = tess_alloc(bytes);
    madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void *new_matrix(int64_t n, tess_dtype t)
{
    void *p = new_pages((size_t)(n * n) * tess_dtype_size(t));
    for (int64_t i = 0; i < n * n; i++) tess_store(p, i, t, (float)(i % 251) / 251);
    return p;
}

/* Returns how often a second the core does it; all cores begin together. */
static double times_a_second(const struct core *c, void once(const struct core *c, int run))
{
    int runs = 0;
    double took = 0;
    pthread_barrier_wait(c->start);
    for (const double start = tess_seconds(); runs < 3 || took < SECONDS; took = tess_seconds() - start)
        once(c, runs++);
    return runs / took;
}

static void multiply_once(const struct core *c, int run)
{
    tess_mm d = {.m = c->n, .n = c->n, .k = c->n, .lda = c->n, .ldb = c->n, .ldc = c->n};
    (void)run;
    d.in = c->dtype, d.out = TESS_F32, d.plain = true;
    tess_mm_run(&d, c->x[0], c->x[1], c->x[2]);
}
static void *multiply(void *arg)
{
    struct core *c = arg;
    for (int i = 0; i < 3; i++) c->x[i] = new_matrix(c->n, i < 2 ? c->dtype : TESS_F32);
    multiply_once(c, 0); /* makes the kernel */
    c->rate = 2.0 * (double)(c->n * c->n * c->n) * times_a_second(c, multiply_once);
    for (int i = 0; i < 3; i++) free(c->x[i]);
    return NULL;
}

static void copy_once(const struct core *c, int run)
{
    memcpy(c->x[!(run & 1)], c->x[run & 1], c->bytes);
    __asm__ volatile("" ::: "memory"); /* every copy is made */
}
static void *copy(void *arg)
{
    struct core *c = arg;
    for (int i = 0; i < 2; i++) c->x[i] = memset(new_pages(c->bytes), 1 + i, c->bytes);
    c->rate = 2.0 * (double)c->bytes * times_a_second(c, copy_once);
    for (int i = 0; i < 2; i++) free(c->x[i]);
    return NULL;
}

/* Returns the sum of the rates of `cores` cores that run body at the same time. */
static double rate_of(const struct core *what, int cores, void *(*body)(void *))
{
    struct core core[CORES];
    pthread_barrier_t start;
    double rate = 0;
    pthread_barrier_init(&start, NULL, (unsigned)cores);
    for (int i = 0; i < cores; i++) {
        core[i] = *what;
        core[i].start = &start;
        TESS_ASSERT(!pthread_create(&core[i].thread, NULL, body, &core[i]));
    }
    for (int i = 0; i < cores; i++) {
        pthread_join(core[i].thread, NULL);
        rate += core[i].rate;
    }
    pthread_barrier_destroy(&start);
    return rate;
}

static int count(int cores)
{
    return cores < CORES ? cores : CORES;
}

double tess_matrix_rate(tess_dtype t, int cores, int64_t n)
{
    return rate_of(&(struct core){.dtype = t, .n = n}, count(cores), multiply);
}

TESS_CUDA_DECLARE(matrix_rate)
double tess_gpu_matrix_rate(tess_dtype t)
{
    const tess_body measure = TESS_CUDA(matrix_rate);
    tess_gpu_rate r = {.dtype = t, .n = 8192, .device = tess_gpu_device()};
    if (!measure || tess_gpus() == 0) return 0;
    measure(&(tess_work){.arg = &r});
    return tess_gpus() * r.rate;
}

double tess_copy_rate(int cores)
{
    size_t bytes = COPY_BYTES / (size_t)cores;
    return rate_of(&(struct core){.bytes = bytes > COPY_LEAST ? bytes : COPY_LEAST}, count(cores), copy);
}

const char *tess_matrix_library(void)
{
    static char text[32];
    const dnnl_version_t *v = dnnl_version();
    snprintf(text, sizeof text, "oneDNN %d.%d.%d", v->major, v->minor, v->patch);
    return text;
}
