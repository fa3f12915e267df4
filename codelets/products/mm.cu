/* mm: products of matrices through cublasLt. For each shape the library is asked once for its best algorithm; the
 * answer is kept with the descriptors, so that a product costs a look into a table and a launch.
 *
 * The library's matrices are column-major. C row-major is C^T column-major, so what it is asked for is C^T = B^T A^T:
 * its first operand is our B, its rows are our columns. The same bits each time: an algorithm that sums parts of k in
 * place, in whatever order they come, is not asked for.
 *
 * The library may refuse what its heuristic offers, so four offers are kept and the next is taken. It may not sum
 * parts of k where k is no multiple of 128: on Hopper it was seen to drop the ragged end. Such an end is a product of
 * its own, added in fp32. Rows of logits lie a multiple of 64 elements apart, since no kernel of Hopper takes rows of
 * 50257. cublasLt is loaded with the first product on a GPU: linked, it took 151 of the 161 MiB of a process without a
 * GPU. gelu is in the epilogue in bf16 and fp16 on Hopper alone; elsewhere the epilogue selects an older kernel, which
 * costs more than a pass.
 *
 * Of an fp8 product both operands are rounded into the room behind the library's, as codes that a GPU from Hopper or
 * Ada on multiplies, or as the numbers in bf16 that the codes stand for, which is as exact and no faster: where the
 * GPU, the library or a side that is no multiple of 16 has it so. They come piece by piece of C's rows and columns. No
 * GPU has run this yet.
 *
 * A quantized matrix is read into the room behind the library's, as the values that it stands for, and multiplied from
 * there: whole, or as many columns of C at a time as there is room for. */
#include "codelets/products/cublas_impl.h"
#include "codelets/shared/codes.h"
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 4096, DEVICES = 64 }; /* a power of two; shapes of a step are some dozens */
enum { MOST = SLOTS / 2 };           /* plans that are kept; evaluations and generations may make any number */
enum { RAGGED = 128, DEEP = 8192 };  /* k that is no multiple is ragged; from so much on it is cut */
enum { OFFERS = 4 };                 /* algorithms that are tried, if the library refuses what it offered */

/* All that the choice depends on; compared as bytes, so it is zeroed first. */
struct key {
    int64_t m, n, k, lda, ldb, ldc, batch, next_a, next_b, next_c;
    int in, codes, out, ta, tb, acc, align_a, align_b, align_c, align_aux, align_bias, epilogue, bias_type, device;
};

enum { PLAIN, BIAS, GELU, GELU_BIAS, SLOPE }; /* epilogues */

/* What an epilogue takes: C's bias; and what gelu reads, a matrix of C's form and type. */
struct extra {
    int epilogue;
    tess_dtype bias_type;
    const void *bias, *aux;
};

struct plan {
    key of;
    bool known, possible;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c; /* the library's a is our B */
    cublasLtMatmulAlgo_t offer[OFFERS];
    int offers, taken; /* the one that is taken */
};

static plan table[SLOTS];
static int plans;
static cublasLtHandle_t handles[DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void tess_cuda_check(const tess_work *w, int error, const char *what)
{
    if (error != cudaSuccess) tess_work_fail(w, "CUDA: %s: %s", what, cudaGetErrorString((cudaError_t)error));
}

static cudaDataType type_of(int t)
{
    return t == TESS_BF16 ? CUDA_R_16BF : t == TESS_F16 ? CUDA_R_16F : CUDA_R_32F;
}

/* Of A, or of B. */
static cudaDataType operand_type(const key *d, bool a)
{
    if (!d->codes) return type_of(d->in);
    return a && d->codes == TESS_E5M2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

static int alignment(const void *p)
{
    const uintptr_t bit = (uintptr_t)p & -(uintptr_t)p;
    return bit > 256 || bit == 0 ? 256 : (int)bit;
}

/* Of the first matrix and those behind it. */
static int alignment_of(const void *p, int64_t next, tess_dtype t)
{
    return alignment((const void *)((uintptr_t)p | (uintptr_t)next * tess_dtype_size(t)));
}

static uint64_t hash(const key *of)
{
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < sizeof *of; i++) h = (h ^ ((const unsigned char *)of)[i]) * 1099511628211u;
    return h ^ h >> 29;
}

/* Sets an attribute of a product; returns the library's error, 0 for none. */
template <class X> static int set_attribute(plan *p, cublasLtMatmulDescAttributes_t which, const X &value)
{
    return lt.MatmulDescSetAttribute(p->product, which, &value, sizeof value);
}

static int set_scales(plan *p, const float *a, const float *b)
{
    const int error = set_attribute(p, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b);
    return error ? error : set_attribute(p, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a);
}

static bool has_aux(int epilogue)
{
    return epilogue >= GELU;
}

static bool set_epilogue(plan *p)
{
    static const cublasLtEpilogue_t epilogues[] = {CUBLASLT_EPILOGUE_DEFAULT, CUBLASLT_EPILOGUE_BIAS,
                                                   CUBLASLT_EPILOGUE_GELU_AUX, CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
                                                   CUBLASLT_EPILOGUE_DGELU};
    const cublasLtEpilogue_t epilogue = epilogues[p->of.epilogue];
    const cudaDataType type = type_of(p->of.bias_type);
    const void *any = (const void *)(uintptr_t)p->of.align_bias, /* as to alignment */
        *any_aux = (const void *)(uintptr_t)p->of.align_aux;
    const bool vector = p->of.epilogue == BIAS || p->of.epilogue == GELU_BIAS;
    if (p->of.epilogue == PLAIN) return true;
    if (set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue)) return false;
    if (vector && (set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type) ||
                   set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, any)))
        return false;
    return !has_aux(p->of.epilogue) || (!set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, p->of.ldc) &&
                                        !set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, any_aux));
}

/* How parts of k may be summed: in the room, in their order. Where k is no multiple of the blocks of 128 or less that
 * kernels take of it, not at all: on Hopper the library of CUDA 12 and 13 was seen to leave out the ragged end of k on
 * some shapes then (pull request 2767 of facebookexperimental/triton), which is a wrong result and no error. */
static uint32_t schemes_of(int64_t k)
{
    return k % RAGGED ? CUBLASLT_REDUCTION_SCHEME_NONE : CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
}

/* The library's best guesses, within the room there is. */
static bool choose(plan *p)
{
    cublasLtMatmulPreference_t wish;
    cublasLtMatmulHeuristicResult_t found[OFFERS];
    int count = 0;
    const size_t room = TESS_CUDA_MM_ROOM;
    const uint32_t schemes = schemes_of(p->of.k);
    const uint32_t a = (uint32_t)p->of.align_b, b = (uint32_t)p->of.align_a, c = (uint32_t)p->of.align_c;
    if (lt.MatmulPreferenceCreate(&wish)) return false;
    bool set =
        !lt.MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room) &&
        !lt.MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes) &&
        !lt.MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &a, sizeof a) &&
        !lt.MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &b, sizeof b) &&
        !lt.MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &c, sizeof c) &&
        !lt.MatmulPreferenceSetAttribute(wish, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &c, sizeof c);
    set = set && !lt.MatmulAlgoGetHeuristic(handles[p->of.device], p->product, p->a, p->b, p->c, p->c, wish, OFFERS,
                                            found, &count);
    lt.MatmulPreferenceDestroy(wish);
    for (int i = 0; set && i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS) p->offer[p->offers++] = found[i].algo;
    return p->offers > 0;
}

/* Makes a matrix of rows of `columns`, as many times as products are wanted. */
static bool make_layout(const key *d, cublasLtMatrixLayout_t *l, cudaDataType type, int64_t rows, int64_t columns,
                        int64_t ld, int64_t next)
{
    const int32_t batch = (int32_t)d->batch;
    if (lt.MatrixLayoutCreate(l, type, (uint64_t)columns, (uint64_t)rows, ld)) return false;
    return batch == 1 ||
           (!lt.MatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch) &&
            !lt.MatrixLayoutSetAttribute(*l, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &next, sizeof next));
}

/* Fills in what `of` does not say; p->possible tells whether the library can. */
static void make_plan(plan *p)
{
    const key *d = &p->of;
    const float *any_scale = (const float *)(uintptr_t)256; /* as to alignment */
    const cublasOperation_t n = CUBLAS_OP_N, t = CUBLAS_OP_T, first = d->tb ? t : n, second = d->ta ? t : n;
    if (!handles[d->device] && lt.Create(&handles[d->device])) return;
    if (lt.MatmulDescCreate(&p->product, CUBLAS_COMPUTE_32F, CUDA_R_32F)) return;
    if (set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSA, first) || set_attribute(p, CUBLASLT_MATMUL_DESC_TRANSB, second))
        return;
    if (!set_epilogue(p)) return;
    if (d->codes && set_scales(p, any_scale, any_scale)) return;
    if (!make_layout(d, &p->a, operand_type(d, false), d->tb ? d->n : d->k, d->tb ? d->k : d->n, d->ldb, d->next_b))
        return;
    if (!make_layout(d, &p->b, operand_type(d, true), d->ta ? d->k : d->m, d->ta ? d->m : d->k, d->lda, d->next_a))
        return;
    if (!make_layout(d, &p->c, type_of(d->out), d->m, d->n, d->ldc, d->next_c)) return;
    p->possible = choose(p);
}

/* Gives back what the library has made. The caller holds the lock, without which no thread uses a plan. */
static void forget_plans()
{
    for (plan *p = table; p < table + SLOTS; p++) {
        if (p->product) lt.MatmulDescDestroy(p->product);
        for (cublasLtMatrixLayout_t layout : {p->a, p->b, p->c})
            if (layout) lt.MatrixLayoutDestroy(layout);
    }
    memset(table, 0, sizeof table);
    plans = 0;
}

/* Where a key's plan is, or will be. */
static plan *place_of(const key *of)
{
    size_t at = (size_t)hash(of) % SLOTS;
    while (table[at].known && memcmp(&table[at].of, of, sizeof *of)) at = (at + 1) % SLOTS;
    return &table[at];
}

/* The plan of a key, made at its first use; with the lock held. Where there is no room for it all go, and those that
 * are used are made again: the library's guesses are the same each time. */
static plan *find_plan(const key *of)
{
    plan *p = place_of(of);
    if (p->known) return p;
    if (plans == MOST) {
        forget_plans();
        p = place_of(of);
    }
    plans++;
    p->of = *of;
    p->known = true;
    make_plan(p);
    return p;
}

static key key_of(const tess_cuda_mm *d, const void *a, const void *b, const void *c, const extra &e)
{
    key of;
    memset(&of, 0, sizeof of);
    of.m = d->m, of.n = d->n, of.k = d->k, of.lda = d->lda, of.ldb = d->ldb, of.ldc = d->ldc;
    of.in = d->in, of.codes = d->scale_a ? d->fp8 : TESS_NO_FP8, of.out = d->out, of.ta = d->ta, of.tb = d->tb,
    of.acc = d->acc;
    of.batch = d->batch, of.next_a = d->next_a, of.next_b = d->next_b, of.next_c = d->next_c;
    of.align_a = alignment_of(a, d->next_a, d->in), of.align_b = alignment_of(b, d->next_b, d->in);
    of.align_c = alignment_of(c, d->next_c, d->out);
    of.align_aux = has_aux(e.epilogue) ? alignment(e.aux) : 0;
    of.align_bias = e.bias ? alignment(e.bias) : 0;
    of.epilogue = e.epilogue;
    of.bias_type = e.bias_type;
    cudaGetDevice(&of.device);
    TESS_ASSERT(of.device < DEVICES);
    return of;
}

/* What cublasLtMatmul returns for what it cannot do, though its heuristic offered it. Nothing ran then. */
static bool refused(int error)
{
    return error == CUBLAS_STATUS_NOT_SUPPORTED || error == CUBLAS_STATUS_INVALID_VALUE ||
           error == CUBLAS_STATUS_ARCH_MISMATCH;
}

/* By the first offer that is no refusal; what is refused where a graph is made need not be so elsewhere. */
static int launch_plan(const tess_work *w, plan *p, const void *a, const void *b, void *c)
{
    const float one = 1, beta = p->of.acc;
    int error = CUBLAS_STATUS_NOT_SUPPORTED;
    for (; p->taken < p->offers; p->taken++) {
        error = lt.Matmul(handles[p->of.device], p->product, &one, b, p->a, a, p->b, &beta, c, p->c, c, p->c,
                          &p->offer[p->taken], w->room, TESS_CUDA_MM_ROOM, (cudaStream_t)w->stream);
        if (!refused(error) || w->launches) break;
    }
    if (refused(error) && !w->launches) p->possible = false;
    return error;
}

/* Whether the library offers anything for it. */
static bool offered(const tess_cuda_mm *d, const void *a, const void *b, const void *c, const extra &e)
{
    const key of = key_of(d, a, b, c, e);
    pthread_mutex_lock(&lock);
    const bool possible = find_plan(&of)->possible;
    pthread_mutex_unlock(&lock);
    return possible;
}

/* What a product is known by; compared as bytes. */
struct called {
    key of;
    const void *at[6];
};

/* Whether the library can; then it is on the stream, unless the task failed. */
static bool run(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *c, const extra &e)
{
    if (!lt_there(w)) return true;
    const key of = key_of(d, a, b, c, e);
    called what = {key(), {a, b, c, e.bias, e.aux, w->room}};
    memcpy((void *)&what.of, (const void *)&of, sizeof of);
    pthread_mutex_lock(&lock); /* the descriptor carries the addresses of `e` */
    plan *p = find_plan(&of);
    bool possible = p->possible;
    int error = 0;
    if (possible && tess_gpu_launched(w, &what, sizeof what)) {
        pthread_mutex_unlock(&lock);
        return true;
    }
    if (possible && e.bias) error = set_attribute(p, CUBLASLT_MATMUL_DESC_BIAS_POINTER, e.bias);
    if (possible && e.aux && !error) error = set_attribute(p, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, e.aux);
    if (possible && d->scale_a && !error) error = set_scales(p, d->scale_a, d->scale_b);
    if (possible && !error) error = launch_plan(w, p, a, b, c);
    if (possible && !p->possible && (e.epilogue != PLAIN || d->scale_a)) { /* there is another way */
        possible = false;
        error = 0;
    }
    pthread_mutex_unlock(&lock);
    if (error)
        tess_work_fail(w, "cublasLt: %lld x %lld x %lld: %s", (long long)d->m, (long long)d->n, (long long)d->k,
                       lt.GetStatusString((cublasStatus_t)error));
    return possible;
}

/* ---- what the library cannot: a bias of its own ------------------------------------------------------------------ */

/* c (m,n), rows ldc apart, += bias (n) */
template <tess_dtype T> struct biased {
    void *c;
    const float *bias;
    int64_t n, ldc;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        for (int64_t e = i; e < i + K; e++) add_at<T>(c, e / n * ldc + e % n, true, bias[e % n]);
    }
};

/* With d's bias in the epilogue. The library's biases are of C's type (cublasLt.h,
 * CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE): where its heuristic does not look at that, it would take the bits of an fp32
 * for those of a bf16. */
static bool run_with_bias(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *c,
                          int epilogue, const void *aux)
{
    if (d->out == TESS_F32) return run(w, d, a, b, c, {epilogue, TESS_F32, d->bias, aux});
    if (!lt_there(w)) return true; /* it may be a process's first product */
    void *bias = room_of(w, (size_t)d->n * sizeof(uint16_t));
    if (!bias) return true;
    const extra e = {epilogue, d->out, bias, aux};
    const bool possible = offered(d, a, b, c, e);
    if (possible && d->out == TESS_F16)
        map_into<TESS_F32, TESS_F16>(w, d->bias, bias, d->n, false);
    else if (possible)
        map_into<TESS_F32, TESS_BF16>(w, d->bias, bias, d->n, false);
    return possible && run(w, d, a, b, c, e);
}

static void run_biased(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *c)
{
    if (run_with_bias(w, d, a, b, c, BIAS, NULL)) return;
    tess_cuda_mm plain = *d;
    plain.bias = NULL;
    tess_cuda_mm_run(w, &plain, a, b, c);
    if (d->out == TESS_BF16)
        map(w, biased<TESS_BF16>{c, d->bias, d->n, d->ldc}, d->m * d->n, true);
    else if (d->out == TESS_F16)
        map(w, biased<TESS_F16>{c, d->bias, d->n, d->ldc}, d->m * d->n, true);
    else
        map(w, biased<TESS_F32>{c, d->bias, d->n, d->ldc}, d->m * d->n, true);
}

/* Of a deep product that has a ragged k, the part of k in whole blocks; else 0: where rows of A lie along k, whose end
 * is then at no multiple of 16 bytes, as of the head's dx, or C is small. Without parts of k side by side (schemes_of)
 * it has fewer tiles than the GPU multiprocessors: 2048 x 768 has 48 of 128 x 256 for an H100's 132. The ragged end
 * comes after, which reads and writes C in fp32 once more: 700 / k of the time. */
static int64_t whole_blocks(const tess_cuda_mm *d)
{
    const int64_t tiles = blocks_of(d->m, 128) * blocks_of(d->n, 256);
    return d->batch == 1 && d->k % RAGGED && d->k >= DEEP && (tiles < 132 || !d->ta) && d->out == TESS_F32
               ? d->k / RAGGED * RAGGED
               : 0;
}

/* ---- a quantized B ----------------------------------------------------------------------------------------------- */

constexpr int CODES_THREADS = 256, CODES_BLOCK = TESS_QUANTIZED_BLOCK;

/* Rows of `width` elements, `ld` apart, as values (rows, width), n in all. */
template <tess_dtype OF, tess_dtype T>
TESS_KERNEL(CODES_THREADS)
read_codes(void *to, const unsigned char *from, int64_t n, int64_t width, int64_t ld)
{
    TESS_SHARED(float, value, [256]);
    constexpr float nf4[] = {TESS_NF4_VALUES};
    constexpr int BITS = OF == TESS_NF4 ? 4 : 8;
    const int t = (int)threadIdx.x;
    value[t] = OF == TESS_NF4 ? nf4[t % 16] : tess_int8_value(t);
    __syncthreads();
    const int64_t i = ((int64_t)blockIdx.x * CODES_THREADS + t) * WIDE, e = i / width * ld + i % width;
    if (i >= n) return;
    const unsigned char *block = from + e / CODES_BLOCK * (4 + CODES_BLOCK * BITS / 8);
    const uint32_t *code = (const uint32_t *)(const void *)(block + 4 + e % CODES_BLOCK * BITS / 8);
    const float scale = *(const float *)(const void *)block;
    float v[WIDE];
#pragma unroll
    for (int k = 0; k < WIDE; k++) /* of four bits the upper ones of a byte are first */
        v[k] = scale * value[BITS == 4 ? code[0] >> (k ^ 1) * 4 & 15 : code[k / 4] >> k % 4 * 8 & 255];
    store<T, WIDE>(to, i, v);
}
template <tess_dtype OF>
static void read_codes_as(const tess_work *w, tess_dtype t, void *to, const void *from, int64_t n, int64_t width,
                          int64_t ld)
{
    const auto kernel = t == TESS_F32    ? read_codes<OF, TESS_F32>
                        : t == TESS_BF16 ? read_codes<OF, TESS_BF16>
                                         : read_codes<OF, TESS_F16>;
    launch(w, kernel, blocks_of(n, (int64_t)CODES_THREADS * WIDE), CODES_THREADS, 0, to, (const unsigned char *)from, n,
           width, ld);
}

/* run(product, B, column) for all columns of C, of a quantized B for as many at a time as there is room for the values
 * of; what an element of C is the sum of is not divided. Returns false where one of them does. */
template <class F> static bool by_columns(const tess_work *w, const tess_cuda_mm *d, const void *b, F run)
{
    if (!tess_is_quantized(d->b)) return run(*d, b, 0);
    const size_t bias = d->bias ? (size_t)blocks_of(d->n, 128) * 256 : 0, size = tess_dtype_size(d->in); /* aligned */
    const int64_t fit = (int64_t)((w->room_bytes - TESS_CUDA_MM_ROOM - bias) / ((size_t)d->k * size)) / CODES_BLOCK;
    const int64_t columns = blocks_of(blocks_of(d->n, blocks_of(d->n, (fit ? fit : 1) * CODES_BLOCK)), CODES_BLOCK);
    char *to = (char *)room_of(w, bias + (size_t)(columns * CODES_BLOCK * d->k) * size);
    TESS_ASSERT(d->batch == 1 && !d->ta);
    for (int64_t n = 0; to && n < d->n; n += columns * CODES_BLOCK) {
        tess_cuda_mm part = *d;
        part.b = TESS_F32;
        part.n = d->n - n < columns * CODES_BLOCK ? d->n - n : columns * CODES_BLOCK;
        part.ldb = d->tb ? d->k : part.n;
        part.bias = d->bias ? d->bias + n : NULL;
        (d->b == TESS_NF4 ? read_codes_as<TESS_NF4>
                          : read_codes_as<TESS_INT8>)(w, d->in, to + bias,
                                                      (const char *)b + tess_dtype_bytes(d->b, d->tb ? n * d->ldb : n),
                                                      part.n * d->k, part.ldb, d->ldb);
        if (!run(part, (const void *)(to + bias), n)) return false;
    }
    return true;
}

/* ---- operands of 8 bits ------------------------------------------------------------------------------------------ */

/* Of an operand, for all of its pieces: the complement of its largest magnitude, since there is an atomic minimum, and
 * the scale that comes of it, for the library. */
struct alignas(32) scales {
    unsigned long long least;
    alignas(16) float scale;
};
/* An operand (rows, width), rows `ld` apart, of bf16. */
struct to_round {
    const void *at;
    int64_t rows, width, ld;
    tess_fp8 as;
    scales *of;
};

/* What is not finite counts as infinity. */
template <int K> TESS_KERNEL(CODES_THREADS) find_largest(to_round x, int64_t blocks)
{
    const float infinity = tess_float_of(0x7f800000u);
    float most = 0, v[K];
    for (int64_t i = ((int64_t)blockIdx.x * CODES_THREADS + threadIdx.x) * K; i < x.rows * x.width;
         i += blocks * CODES_THREADS * K) {
        load<TESS_BF16, K>(v, x.at, i / x.width * x.ld + i % x.width);
        for (int k = 0; k < K; k++) most = fmaxf(most, fabsf(v[k]) < infinity ? fabsf(v[k]) : infinity);
    }
    most = warp_max(most);
    if (threadIdx.x % WARP == 0) atomicMin(&x.of->least, ~(unsigned long long)tess_bits(most));
}

TESS_DEVICE float scale_of(const to_round &x)
{
    const float scale = tess_fp8_scale((uint32_t)~x.of->least, x.as);
    if (blockIdx.x == 0 && threadIdx.x == 0) x.of->scale = scale;
    return scale;
}

/* Codes (rows, width), or the numbers that they stand for. */
template <bool CODES, int K> TESS_KERNEL(CODES_THREADS) round_rows(void *to, to_round x)
{
    const int64_t i = ((int64_t)blockIdx.x * CODES_THREADS + threadIdx.x) * K;
    const float scale = scale_of(x), by = 1 / scale;
    float v[K];
    if (i >= x.rows * x.width) return;
    load<TESS_BF16, K>(v, x.at, i / x.width * x.ld + i % x.width);
    unsigned long long codes = 0;
    for (int k = 0; k < K; k++) {
        v[k] = tess_fp8_round(v[k] * by, x.as);
        if (CODES) codes |= (unsigned long long)tess_fp8_code(v[k], x.as) << 8 * k;
        v[k] *= scale;
    }
    if constexpr (CODES)
        ((unsigned long long *)to)[i / K] = codes;
    else
        store<TESS_BF16, K>(to, i, v);
}

/* Codes (width, rows), a square of them a block; both are multiples of 16. */
constexpr int SQUARE = 64, LINE = 16;
TESS_KERNEL(CODES_THREADS) turn_codes(void *to, to_round x)
{
    TESS_SHARED(unsigned char, square, [SQUARE][SQUARE + 4]);
    const int64_t across = (x.width + SQUARE - 1) / SQUARE;
    const int64_t first = blockIdx.x / across * SQUARE, column = blockIdx.x % across * SQUARE;
    const float scale = scale_of(x), by = 1 / scale;
    for (int i = (int)threadIdx.x; i < SQUARE * SQUARE / WIDE; i += CODES_THREADS) {
        const int r = i / (SQUARE / WIDE), c = i % (SQUARE / WIDE) * WIDE;
        float v[WIDE];
        if (first + r >= x.rows || column + c >= x.width) continue;
        load<TESS_BF16, WIDE>(v, x.at, (first + r) * x.ld + column + c);
        for (int k = 0; k < WIDE; k++) square[r][c + k] = tess_fp8_code(tess_fp8_round(v[k] * by, x.as), x.as);
    }
    __syncthreads();
    const int c = (int)threadIdx.x / (SQUARE / LINE), r = (int)threadIdx.x % (SQUARE / LINE) * LINE;
    if (first + r >= x.rows || column + c >= x.width) return;
    uint32_t word[LINE / 4] = {};
    for (int k = 0; k < LINE; k++) word[k / 4] |= (uint32_t)square[r + k][c] << k % 4 * 8;
    const uint4 line = {word[0], word[1], word[2], word[3]};
    *(uint4 *)((unsigned char *)to + (column + c) * x.rows + first + r) = line;
}
static_assert(CODES_THREADS == SQUARE * SQUARE / LINE, "");

static bool in_eights(const to_round &x)
{
    return x.width % WIDE == 0 && x.ld % WIDE == 0 && aligned(x.at);
}
static void find_scale(const tess_work *w, const to_round &x)
{
    const bool wide = in_eights(x);
    const int64_t all = blocks_of(x.rows * x.width, CODES_THREADS * (wide ? WIDE : 1)), blocks = all < 528 ? all : 528;
    set_bytes(w, &x.of->least, 0xff, sizeof x.of->least);
    launch(w, wide ? find_largest<WIDE> : find_largest<1>, blocks, CODES_THREADS, 0, x, blocks);
}
/* The piece [first, first + n) of what C's rows, or columns, are made of, to be read along k; as codes it lies so. */
static void round_piece(const tess_work *w, to_round x, bool k_first, int64_t first, int64_t n, bool codes, void *to)
{
    x.at = at(x.at, k_first ? first : first * x.ld, TESS_BF16);
    (k_first ? x.width : x.rows) = n;
    const bool wide = in_eights(x); /* so codes are */
    const auto kernel = codes ? round_rows<true, WIDE> : wide ? round_rows<false, WIDE> : round_rows<false, 1>;
    if (codes && k_first)
        launch(w, turn_codes, blocks_of(x.rows, SQUARE) * blocks_of(x.width, SQUARE), CODES_THREADS, 0, to, x);
    else
        launch(w, kernel, blocks_of(x.rows * x.width, CODES_THREADS * (wide ? WIDE : 1)), CODES_THREADS, 0, to, x);
}

/* Why the numbers are multiplied in bf16; NULL: they are not. */
static const char *no_codes(const tess_cuda_mm *d, const void *a, const void *b)
{
    const int version =
        10 * device_attribute(cudaDevAttrComputeCapabilityMajor) + device_attribute(cudaDevAttrComputeCapabilityMinor);
    if (version < 89) return "a compute capability of 8.9 or more has such products";
    if (d->m % LINE || d->n % LINE || d->k % LINE || d->lda % WIDE || d->ldb % WIDE || !aligned(a, b))
        return "a side of one is no multiple of 16";
    return NULL;
}
static void say_slower(const char *why)
{
    static bool said;
    if (!__atomic_test_and_set(&said, __ATOMIC_RELAXED))
        tess_note("fp8: products are in bf16, of the same numbers but no faster: %s", why);
}

/* By codes, with that epilogue or, where d has a bias, the one with it. */
static bool run_codes(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *c, int epilogue,
                      const void *aux)
{
    if (d->bias) return run_with_bias(w, d, a, b, c, epilogue == PLAIN ? BIAS : GELU_BIAS, aux);
    return run(w, d, a, b, c, {epilogue, TESS_F32, NULL, aux});
}

/* With an epilogue other than PLAIN by codes alone: false, and nothing was done, where the library has none. */
static bool run_fp8(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *c, int epilogue,
                    const void *aux)
{
    const char *why = no_codes(d, a, b);
    if (why && epilogue != PLAIN) return false;
    if (!lt_there(w)) return true;
    /* Of what is beside the library's room: a bias, the scales, and a half of the rest for each operand's piece. */
    const size_t head = (d->bias ? (size_t)blocks_of(d->n, 128) * 256 : 0) + 256, behind = TESS_CUDA_MM_ROOM + head;
    const int64_t half = w->room_bytes > behind ? (int64_t)((w->room_bytes - behind) / 512) * 256 : 0;
    const int64_t fit = half / (2 * d->k), most = fit < 128 ? fit / LINE * LINE : fit / 128 * 128;
    char *room = (char *)room_of(w, most ? head + 2 * (size_t)half : head + (size_t)(64 * d->k));
    if (!room) return true;
    char *const to_a = room + head, *const to_b = to_a + half;
    scales *at_a = (scales *)(void *)(room + head - 256), *at_b = at_a + 1;
    const to_round left = {a, d->ta ? d->k : d->m, d->ta ? d->m : d->k, d->lda, d->fp8, at_a};
    const to_round right = {b, d->tb ? d->n : d->k, d->tb ? d->k : d->n, d->ldb, TESS_E4M3, at_b};
    tess_cuda_mm part = *d;
    const auto as = [&](bool codes, int64_t m, int64_t n) {
        part.m = d->m - m < most ? d->m - m : most, part.n = d->n - n < most ? d->n - n : most;
        part.bias = d->bias ? d->bias + n : NULL;
        part.fp8 = codes ? d->fp8 : TESS_NO_FP8;
        part.scale_a = codes ? &at_a->scale : NULL, part.scale_b = codes ? &at_b->scale : NULL;
        part.ta = !codes && d->ta, part.tb = codes || d->tb;
        part.lda = part.ta ? part.m : d->k, part.ldb = part.tb ? d->k : part.n;
    };
    as(true, 0, 0);
    if (!why && !offered(&part, to_a, to_b, c,
                         {part.bias ? epilogue == PLAIN ? BIAS : GELU_BIAS : epilogue, part.bias ? d->out : TESS_F32,
                          part.bias ? room : NULL, aux}))
        why = "cublasLt has none for one";
    if (why && epilogue != PLAIN) return false;
    find_scale(w, left), find_scale(w, right);
    for (int64_t n = 0; n < d->n; n += most) {
        bool there = false; /* B's piece */
        for (int64_t m = 0; m < d->m;) {
            const int64_t first = m * d->ldc + n;
            as(!why, m, n);
            round_piece(w, left, d->ta, m, part.m, !why, to_a);
            if (!there) round_piece(w, right, !d->tb, n, part.n, !why, to_b);
            there = true;
            if (why) {
                say_slower(why);
                tess_cuda_mm_run(w, &part, to_a, to_b, at(c, first, d->out));
            } else if (!run_codes(w, &part, to_a, to_b, at(c, first, d->out), epilogue,
                                  aux ? at(aux, first, d->out) : NULL)) {
                if (epilogue != PLAIN) return false;
                why = "cublasLt refused one", there = false; /* the same piece in bf16 */
                continue;
            }
            m += most;
        }
    }
    return true;
}

void tess_cuda_mm_run(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *c)
{
    if (d->m == 0 || d->n == 0) return;
    if (d->fp8) {
        run_fp8(w, d, a, b, c, PLAIN, NULL);
        return;
    }
    if (tess_is_quantized(d->b)) {
        by_columns(w, d, b, [&](const tess_cuda_mm &part, const void *values, int64_t n) {
            tess_cuda_mm_run(w, &part, a, values, at(c, n, d->out));
            return true;
        });
        return;
    }
    TESS_ASSERT(d->batch == 1 || !d->bias);
    if (d->bias) {
        run_biased(w, d, a, b, c);
        return;
    }
    const int64_t whole = whole_blocks(d);
    if (whole) {
        tess_cuda_mm first = *d, rest = *d;
        first.k = whole;
        rest.k = d->k - whole;
        rest.acc = true;
        tess_cuda_mm_run(w, &first, a, b, c);
        const int64_t size = (int64_t)tess_dtype_size(d->in);
        tess_cuda_mm_run(w, &rest, (const char *)a + size * (d->ta ? whole * d->lda : whole),
                         (const char *)b + size * (d->tb ? whole : whole * d->ldb), c);
        return;
    }
    if (!run(w, d, a, b, c, {PLAIN, TESS_F32, NULL, NULL}))
        tess_work_fail(w, "cublasLt: has no algorithm for %lld x %lld x %lld", (long long)d->m, (long long)d->n,
                       (long long)d->k);
}

/* ---- gelu -------------------------------------------------------------------------------------------------------- */

/* Gelu in an epilogue pays where kernels of the newest kind have it: Hopper's. Elsewhere it makes the library take an
 * older kernel, which costs more than a pass over the product (llm.c's pull requests 338 and 653: off below sm_90;
 * sglang's 34350: slower on sm_120). */
static bool gelu_pays()
{
    return device_attribute(cudaDevAttrComputeCapabilityMajor) == 9;
}

/* Rows of what gelu reads are multiples of 8 apart; its type is C's unless one is set. */
static bool aux_fits(const tess_cuda_mm *d)
{
    TESS_ASSERT(!d->acc);
    return d->m > 0 && d->n > 0 && d->ldc % 8 == 0 && gelu_pays();
}

/* By these epilogues, with a bias and without; `aux` is what gelu reads, or is to. */
static bool run_gelu(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *c, int plain,
                     const void *aux)
{
    if (!aux_fits(d)) return false;
    if (d->fp8) return run_fp8(w, d, a, b, c, plain, aux);
    return by_columns(w, d, b, [&](const tess_cuda_mm &part, const void *values, int64_t n) {
        void *to = at(c, n, d->out);
        const void *beside = at(aux, n, d->out);
        return part.bias ? run_with_bias(w, &part, a, values, to, GELU_BIAS, beside)
                         : run(w, &part, a, values, to, {plain, TESS_F32, NULL, beside});
    });
}

bool tess_cuda_mm_gelu(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, void *pre, void *c)
{
    return run_gelu(w, d, a, b, c, GELU, pre);
}

bool tess_cuda_mm_slope(const tess_work *w, const tess_cuda_mm *d, const void *a, const void *b, const void *pre,
                        void *c)
{
    return run_gelu(w, d, a, b, c, SLOPE, pre);
}

/* ---- the yardstick ----------------------------------------------------------------------------------------------- */

struct noise {
    void *x;
    tess_dtype type;
    template <int K> TESS_DEVICE void at(int64_t i) const
    {
        const tess_random_key key = {1, 2};
        float v[K];
        for (int k = 0; k < K; k++) v[k] = (float)(int32_t)tess_random_at(key, (uint64_t)(i + k)) * 0x1p-31f;
        if (type == TESS_BF16)
            store<TESS_BF16, K>(x, i, v);
        else if (type == TESS_F16)
            store<TESS_F16, K>(x, i, v);
        else
            store<TESS_F32, K>(x, i, v);
    }
};

/* The handle of the current device goes, and with it the plans, whose making makes one. StarPU's start may calibrate
 * the bus, which ends in cudaDeviceReset (_starpu_calibrate_bus in perfmodel_bus.c), and no handle outlives the context
 * that it was made in. */
static void forget_device()
{
    int device = 0;
    cudaGetDevice(&device);
    pthread_mutex_lock(&lock);
    if (handles[device]) lt.Destroy(handles[device]);
    handles[device] = NULL;
    forget_plans();
    pthread_mutex_unlock(&lock);
}

/* No task's body: it allocates and waits, before StarPU starts. Random numbers, since with zeros a GPU runs cooler, and
 * so faster. */
extern "C" void TESS_CUDA_NAME(matrix_rate)(const tess_work *w)
{
    constexpr int WARM = 3, RUNS = 10;
    tess_gpu_rate *of = (tess_gpu_rate *)w->arg;
    cudaSetDevice(of->device); /* the main thread's would be 0 */
    const size_t bytes = (size_t)(of->n * of->n) * sizeof(float);
    void *matrix[3] = {}, *room = NULL;
    cudaEvent_t start = NULL, end = NULL;
    float ms = 0;
    of->rate = 0;
    bool there = !cudaMalloc(&room, TESS_CUDA_MM_ROOM) && !cudaEventCreate(&start) && !cudaEventCreate(&end);
    for (int i = 0; i < 3; i++) there = there && !cudaMalloc(&matrix[i], bytes);
    if (there) {
        tess_work work = *w;
        tess_cuda_mm d = {of->n, of->n, of->n, of->n, of->n, of->n, of->dtype, of->dtype};
        d.tb = true;
        work.room = room;
        work.room_bytes = TESS_CUDA_MM_ROOM;
        for (int i = 0; i < 2; i++) map(&work, noise{matrix[i], of->dtype}, of->n * of->n, true);
        for (int i = 0; i < WARM + RUNS; i++) {
            if (i == WARM) cudaEventRecord(start, 0);
            tess_cuda_mm_run(&work, &d, matrix[0], matrix[1], matrix[2]);
        }
        cudaEventRecord(end, 0);
        if (!cudaEventSynchronize(end) && !cudaEventElapsedTime(&ms, start, end) && ms > 0)
            of->rate = 2.0 * (double)of->n * (double)of->n * (double)of->n * RUNS / (ms * 1e-3);
    }
    for (int i = 0; i < 3; i++) cudaFree(matrix[i]);
    cudaFree(room);
    if (start) cudaEventDestroy(start);
    if (end) cudaEventDestroy(end);
    forget_device();
}
