/* cublasLt over the CPU's memory. It refuses what the library's header says that it refuses, at the heuristic or at the
 * product, and where the header says what is right and not that something else is refused, it does the wrong thing: a
 * bias of another type than C's is read by its bits, and a sum that is split where k is ragged loses its end, as was
 * seen on Hopper. So mm.cu has to be right and cannot be lucky. */
#include "tests/gpu/emulated_lt.h"
#define _Noreturn [[noreturn]]
extern "C" {
#include "codelets/codelets.h"
}
#include <dlfcn.h>

emulated_lt emulated_library;
int emulated_turn, emulated_launches;

/* The emulated body of a codelet has its name; where that is a function of the C library, `all_` comes before it. Both
 * kinds of bundles have one. */
extern "C" tess_body emulated_body_of(const tess_codelet *cl)
{
    void *body = NULL;
    const char *of = strcmp(cl->name, "bundle_either") ? cl->name : "bundle";
    for (const char *before : {"", "all_"}) {
        char name[96];
        snprintf(name, sizeof name, "tess_emulated_%s%s_%s", before, of, tess_dtype_name(cl->dtype));
        if (!body) body = dlsym(RTLD_DEFAULT, name);
    }
    return (tess_body)body;
}

/* ---- what bodies launch, for tests that run it later ---- */

extern "C" bool emulated_launched(const tess_work *, const void *what, size_t bytes)
{
    emulate::called.assign((const char *)what, bytes);
    if (!emulate::records || !emulate::compares) return false;
    emulate::put(NULL, emulate::called, nullptr);
    return true;
}

static std::vector<emulate::recorded> records[2];

/* From now on what bodies launch is captured, or compared with what was captured. */
extern "C" void emulated_record(bool compares)
{
    emulate::compares = compares;
    emulate::records = &records[compares];
    records[compares].clear();
}
/* As a graph does: kernels with the arguments that they had last, all else as it was captured. Returns how many there
 * are, and -1 where what was compared is not what was captured. */
extern "C" int emulated_replay(void)
{
    const auto &was = records[0], &is = records[1];
    bool same = was.size() == is.size();
    emulate::records = NULL;
    for (size_t k = 0; k < was.size() && same; k++) same = was[k].kernel == is[k].kernel && was[k].what == is[k].what;
    for (size_t k = 0; k < was.size() && same; k++) (was[k].kernel ? is : was)[k].run();
    return same ? (int)was.size() : -1;
}
/* Returns how many launches were compared, none of which happens; of them kernels, and those whose arguments the time
 * before had otherwise. */
extern "C" int emulated_recorded(int *kernels, int *differ)
{
    const auto &was = records[0], &is = records[1];
    emulate::records = NULL;
    *kernels = *differ = 0;
    for (size_t k = 0; k < is.size(); k++) {
        *kernels += is[k].kernel != NULL;
        *differ += is[k].kernel && k < was.size() && was[k].arguments != is[k].arguments;
    }
    records[0] = records[1];
    return (int)is.size();
}

struct emulated_handle {
    uint64_t era;
    int device;
};
struct emulated_product {
    cublasOperation_t a, b;
    uint32_t epilogue;
    cudaDataType bias_type;
    const void *bias, *aux;
    int64_t aux_ld;
    const float *scale_a, *scale_b;
};
struct emulated_layout {
    cudaDataType type;
    int64_t rows, columns, ld;
    int32_t batch;
    int64_t next;
};
struct emulated_wish {
    uint64_t room;
    uint32_t schemes, align[4]; /* of A, B, C, D */
};
/* What an offer says, kept in its 64 bytes. */
struct offer {
    uint64_t number, room, align_a, align_b, align_c, align_bias, align_aux, split;
};
static_assert(sizeof(offer) == sizeof(cublasLtMatmulAlgo_t), "");

constexpr int SPLIT_FROM = 512, BLOCK_K = 64; /* k above which sums are split, and the blocks that are taken of it */

static bool is_fp8(cudaDataType t)
{
    return t == CUDA_R_8F_E4M3 || t == CUDA_R_8F_E5M2;
}
static int64_t size_of(cudaDataType t)
{
    return is_fp8(t) ? 1 : t == CUDA_R_32F ? 4 : 2;
}
/* By the definition: e4m3 has a bias of 7, no infinity and one NaN, e5m2 is the upper half of an fp16. */
static float fp8_value(uint8_t code, cudaDataType t)
{
    if (t == CUDA_R_8F_E5M2) return tess_from_f16((uint16_t)(code << 8));
    const int e = code >> 3 & 15, m = code & 7;
    const float size = e == 15 && m == 7 ? NAN : e ? ldexpf(1 + (float)m / 8, e - 7) : ldexpf((float)m, -9);
    return code & 128 ? -size : size;
}

static float value(const void *x, int64_t i, cudaDataType t)
{
    if (is_fp8(t)) return fp8_value(((const uint8_t *)x)[i], t);
    return t == CUDA_R_32F   ? ((const float *)x)[i]
           : t == CUDA_R_16F ? tess_from_f16(((const uint16_t *)x)[i])
                             : tess_from_bf16(((const uint16_t *)x)[i]);
}
static void put(void *x, int64_t i, cudaDataType t, float v)
{
    if (t == CUDA_R_32F)
        ((float *)x)[i] = v;
    else
        ((uint16_t *)x)[i] = t == CUDA_R_16F ? tess_to_f16(v) : tess_to_bf16(v);
}
static uint64_t alignment(const void *p)
{
    const uintptr_t bit = (uintptr_t)p & -(uintptr_t)p;
    return bit > 256 || bit == 0 ? 256 : bit;
}

/* ---- what describes a product ---- */

cublasStatus_t cublasLtCreate(cublasLtHandle_t *handle)
{
    *handle = new emulated_handle{emulated_library.era, 0};
    cudaGetDevice(&(*handle)->device);
    emulated_library.handles++;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    delete handle;
    emulated_library.handles--;
    return CUBLAS_STATUS_SUCCESS;
}
const char *cublasLtGetStatusString(cublasStatus_t status)
{
    return status == CUBLAS_STATUS_NOT_SUPPORTED   ? "CUBLAS_STATUS_NOT_SUPPORTED"
           : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
                                                   : "CUBLAS_STATUS_INTERNAL_ERROR";
}
cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *d, cublasComputeType_t compute, cudaDataType scale)
{
    if (compute != CUBLAS_COMPUTE_32F || scale != CUDA_R_32F) return CUBLAS_STATUS_INVALID_VALUE;
    *d = new emulated_product{CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, (cudaDataType)-1, NULL, NULL, 0,
                              NULL,        NULL};
    emulated_library.descriptions++;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    delete d;
    emulated_library.descriptions--;
    return CUBLAS_STATUS_SUCCESS;
}
/* The size is part of the contract. */
template <class T> static cublasStatus_t set(T *to, const void *from, size_t bytes, size_t expected = sizeof(T))
{
    if (bytes != expected) return CUBLAS_STATUS_INVALID_VALUE;
    memcpy((void *)to, from, bytes);
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which,
                                              const void *from, size_t bytes)
{
    switch (which) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
        return set(&d->a, from, bytes);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        return set(&d->b, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
        return set(&d->epilogue, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_POINTER:
        return set(&d->bias, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER:
        return set(&d->aux, from, bytes);
    case CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD:
        return set(&d->aux_ld, from, bytes);
    case CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE:
        return set(&d->bias_type, from, bytes);
    case CUBLASLT_MATMUL_DESC_A_SCALE_POINTER:
        return set(&d->scale_a, from, bytes);
    case CUBLASLT_MATMUL_DESC_B_SCALE_POINTER:
        return set(&d->scale_b, from, bytes);
    }
    return CUBLAS_STATUS_INVALID_VALUE;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *l, cudaDataType type, uint64_t rows, uint64_t columns,
                                          int64_t ld)
{
    if (ld < (int64_t)rows) return CUBLAS_STATUS_INVALID_VALUE; /* columns would overlap */
    *l = new emulated_layout{type, (int64_t)rows, (int64_t)columns, ld, 1, 0};
    emulated_library.descriptions++;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t which,
                                                const void *from, size_t bytes)
{
    return which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT ? set(&l->batch, from, bytes) : set(&l->next, from, bytes);
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    delete l;
    emulated_library.descriptions--;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *wish)
{
    *wish = new emulated_wish{0, 7, {256, 256, 256, 256}};
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t wish)
{
    delete wish;
    return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t wish,
                                                    cublasLtMatmulPreferenceAttributes_t which, const void *from,
                                                    size_t bytes)
{
    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return set(&wish->room, from, bytes);
    if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return set(&wish->schemes, from, bytes);
    return set(&wish->align[which - CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES], from, bytes);
}

/* ---- what it can ---- */

static bool has_bias(uint32_t epilogue)
{
    return epilogue & CUBLASLT_EPILOGUE_BIAS;
}
static bool has_aux(uint32_t epilogue)
{
    return epilogue & 128;
}

static bool dead(cublasLtHandle_t handle)
{
    int device;
    cudaGetDevice(&device);
    return !handle || handle->era != emulated_library.era || handle->device != device;
}

/* As the manual of cublasLtMatmul has it before Blackwell: A transposed, B not, one e5m2 at most, bf16 or fp32 out of
 * it, and sides and rows of multiples of 16 bytes. */
static bool can_fp8(const emulated_product *d, const emulated_layout *a, const emulated_layout *b,
                    const emulated_layout *c, int64_t m, int64_t n, int64_t k)
{
    return emulate::architecture() >= 89 && is_fp8(a->type) && is_fp8(b->type) &&
           (a->type == CUDA_R_8F_E4M3 || b->type == CUDA_R_8F_E4M3) && d->a == CUBLAS_OP_T && d->b == CUBLAS_OP_N &&
           (c->type == CUDA_R_16BF || c->type == CUDA_R_32F) && m % 16 == 0 && n % 16 == 0 && k % 16 == 0 &&
           a->ld % 16 == 0 && b->ld % 16 == 0 && c->ld * size_of(c->type) % 16 == 0 && a->batch == 1 && d->scale_a &&
           d->scale_b;
}

static bool agree(const emulated_product *d, const emulated_layout *a, const emulated_layout *b,
                  const emulated_layout *c)
{
    const int64_t k = d->a == CUBLAS_OP_T ? a->rows : a->columns, m = d->a == CUBLAS_OP_T ? a->columns : a->rows;
    const int64_t k_b = d->b == CUBLAS_OP_T ? b->columns : b->rows, n = d->b == CUBLAS_OP_T ? b->rows : b->columns;
    const bool few = is_fp8(a->type) || is_fp8(b->type);
    if (few ? !can_fp8(d, a, b, c, m, n, k) : a->type != b->type || d->scale_a || d->scale_b) return false;
    return a->batch == b->batch && a->batch == c->batch && k == k_b && m == c->rows && n == c->columns &&
           (few || c->type == a->type || c->type == CUDA_R_32F) && m <= INT32_MAX && n <= INT32_MAX && k <= INT32_MAX;
}

/* As the header has them: an aux matrix' rows, its type, which is C's, and 16 bits. */
static bool can(const emulated_product *d, const emulated_layout *a, const emulated_layout *c)
{
    const bool half = a->type != CUDA_R_32F;
    if (has_aux(d->epilogue) && (!d->aux || d->aux_ld % 8 || d->aux_ld < c->rows || c->type == CUDA_R_32F))
        return false;
    if (has_aux(d->epilogue) && alignment(d->aux) < 16) return false;
    if (has_bias(d->epilogue) && (!d->bias || alignment(d->bias) < (half ? 2 : 4))) return false;
    return true;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, cublasLtMatrixLayout_t a,
                                              cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c,
                                              cublasLtMatrixLayout_t to, cublasLtMatmulPreference_t wish, int most,
                                              cublasLtMatmulHeuristicResult_t *found, int *count)
{
    *count = 0;
    if (dead(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (most < 1 || !agree(d, a, b, c) || memcmp(c, to, sizeof *c)) return CUBLAS_STATUS_INVALID_VALUE;
    if (!can(d, a, c) || (is_fp8(a->type) && emulated_library.no_codes == 1)) return CUBLAS_STATUS_NOT_SUPPORTED;
    const int64_t k = d->a == CUBLAS_OP_T ? a->rows : a->columns;
    for (int i = 0; i < most && i < 3; i++) {
        offer o = {};
        o.number = (uint64_t)i;
        o.split = (wish->schemes & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) && k > SPLIT_FROM;
        o.room = o.split ? 4 << 20 : 0;
        o.align_a = wish->align[0], o.align_b = wish->align[1], o.align_c = wish->align[2];
        o.align_bias = has_bias(d->epilogue) ? alignment(d->bias) : 1;
        o.align_aux = has_aux(d->epilogue) ? alignment(d->aux) : 1;
        if (o.room > wish->room) continue;
        memcpy(&found[*count].algo, &o, sizeof o);
        found[*count].workspaceSize = o.room;
        found[*count].state = CUBLAS_STATUS_SUCCESS;
        ++*count;
    }
    return *count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
}

/* ---- products ---- */

/* Column by column, contiguous along k, in fp32. */
static std::vector<float> unfold(const void *x, const emulated_layout *l, bool k_is_rows)
{
    std::vector<float> v((size_t)(l->rows * l->columns));
    for (int64_t c = 0; c < l->columns; c++)
        for (int64_t r = 0; r < l->rows; r++)
            v[(size_t)(k_is_rows ? c * l->rows + r : r * l->columns + c)] = value(x, c * l->ld + r, l->type);
    return v;
}

static double gelu_tanh(double x)
{
    return tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x));
}

static const void *after(const void *x, const emulated_layout *l, int32_t k)
{
    return (const char *)x + k * l->next * size_of(l->type);
}

/* One element of D, from the sum of its products. */
static void finish(const emulated_product *d, const emulated_layout *c, void *to, int64_t i, int64_t j, float sum,
                   float old)
{
    const int64_t at = j * c->ld + i, aux = j * d->aux_ld + i;
    sum += old;
    if (d->epilogue & CUBLASLT_EPILOGUE_BIAS) sum += value(d->bias, i, c->type); /* whatever bias_type says */
    if (d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX || d->epilogue == CUBLASLT_EPILOGUE_GELU_AUX_BIAS) {
        put((void *)d->aux, aux, c->type, sum);
        sum = (float)(sum / 2.0 * (1 + gelu_tanh(sum)));
    }
    if (d->epilogue == CUBLASLT_EPILOGUE_DGELU) {
        const double x = value(d->aux, aux, c->type), t = gelu_tanh(x);
        const double slope = sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
        sum = (float)(sum * ((1 + t) / 2 + x / 2 * (1 - t * t) * slope));
    }
    put(to, at, c->type, sum);
}

static void multiply(const emulated_product &of, const emulated_layout lies[3], const offer &o, float one,
                     const void *a, const void *b, float more, void *c, void *room)
{
    const emulated_product *d = &of;
    const emulated_layout *al = &lies[0], *bl = &lies[1], *cl = &lies[2];
    if (o.room) memset(room, 0xff, o.room);
    emulated_library.products[d->epilogue]++;
    const int64_t m = cl->rows, n = cl->columns, k = d->a == CUBLAS_OP_T ? al->rows : al->columns;
    const int64_t taken = o.split ? k / BLOCK_K * BLOCK_K : k;
    emulated_library.ragged += taken < k;
    emulated_library.split += o.split;
    emulated_library.codes += is_fp8(al->type);
    if (is_fp8(al->type)) one *= *d->scale_a * *d->scale_b;
    std::vector<float> x, y;
    for (int32_t turn = 0; turn < al->batch; turn++) {
        void *at = (void *)after(c, cl, turn);
        x = unfold(after(a, al, turn), al, d->a == CUBLAS_OP_T),
        y = unfold(after(b, bl, turn), bl, d->b == CUBLAS_OP_N);
        for (int64_t j = 0; j < n; j++)
            for (int64_t i = 0; i < m; i++) {
                float sum = 0;
                for (int64_t l = 0; l < taken; l++) sum += x[(size_t)(i * k + l)] * y[(size_t)(j * k + l)];
                finish(d, cl, at, i, j, one * sum, more != 0 ? more * value(at, j * cl->ld + i, cl->type) : 0);
            }
    }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t d, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t al, const void *b, cublasLtMatrixLayout_t bl, const void *beta,
                              const void *c, cublasLtMatrixLayout_t cl, void *to, cublasLtMatrixLayout_t,
                              const cublasLtMatmulAlgo_t *algorithm, void *room, size_t room_bytes, cudaStream_t)
{
    offer o;
    memcpy(&o, algorithm, sizeof o);
    if (dead(handle)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!agree(d, al, bl, cl) || !can(d, al, cl) || o.room > room_bytes || (room_bytes && alignment(room) < 256))
        return CUBLAS_STATUS_INVALID_VALUE;
    const int32_t others = al->batch - 1;
    if (alignment(after(a, al, others)) < o.align_a || alignment(after(b, bl, others)) < o.align_b ||
        alignment(after(to, cl, others)) < o.align_c)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (is_fp8(al->type) && (alignment(a) < 16 || alignment(b) < 16 || alignment(to) < 16))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (alignment(a) < o.align_a || alignment(b) < o.align_b || alignment(to) < o.align_c || c != to ||
        (has_bias(d->epilogue) && alignment(d->bias) < o.align_bias) ||
        (has_aux(d->epilogue) && alignment(d->aux) < o.align_aux))
        return CUBLAS_STATUS_INVALID_VALUE;
    const bool plain = d->epilogue == CUBLASLT_EPILOGUE_DEFAULT;
    if (is_fp8(al->type) && emulated_library.no_codes == 2) return CUBLAS_STATUS_NOT_SUPPORTED;
    if ((!plain || emulated_library.plain_too) && (int)o.number < emulated_library.refuses)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    const float one = *(const float *)alpha, more = *(const float *)beta;
    const emulated_product product = *d;
    const emulated_layout lies[] = {*al, *bl, *cl};
    emulate::put(NULL, emulate::called, [=] { multiply(product, lies, o, one, a, b, more, to, room); });
    return CUBLAS_STATUS_SUCCESS;
}
