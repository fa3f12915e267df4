/* The graphs of sdpa_impl.h and conv_cudnn_impl.h, and NVIDIA's own library, where it is found: without a device, which
 * it knows by its properties, it takes the graphs, chooses engines whose bits are the same each time, compiles them,
 * and says what workspace they want. What a kernel computes needs the device. */
#include "tests/gpu/emulated_names.h"

static const char *find_library();
#define DNN_SONAME find_library()
#include "codelets/attention/sdpa_impl.h"
#include "codelets/generic/products/conv_cudnn_impl.h"
#define CHECK_MAIN
#define main check_main
#include "tests/check.h"
#undef main

static const char *find_library()
{
    static const char *const all[] = {"libcudnn.so.9", "/usr/local/cuda/lib64/libcudnn.so.9"};
    for (const char *name : all)
        if (dlopen(name, RTLD_NOW | RTLD_LOCAL)) return name;
    return all[0];
}

/* As cudaGetDeviceProperties has them. */
static const char PROPERTIES[] =
    "{\"deviceName\": \"%s\", \"deviceVer\": %d, \"multiProcessorCount\": %d, \"maxSharedMemoryPerBlockOptin\": %d, "
    "\"maxThreadsPerSM\": %d, \"l2CacheSize\": %d, \"totalGlobalMem\": 85000000000, \"maxGridSize\": [2147483647, "
    "65535, "
    "65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, \"warpSize\": 32, "
    "\"maxSharedMemoryPerBlock\": "
    "49152, \"reservedSharedMemoryPerBlock\": 1024, \"oversizedSharedMemoryPerBlock\": 0, \"maxRegistersPerSM\": "
    "65536, "
    "\"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, "
    "\"pciDeviceId\": "
    "0, \"cudaDeviceId\": 0, \"driverVer\": 13000, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 2619000, "
    "\"memoryBusWidth\": 5120}";
struct device {
    const char *name;
    int version, processors, shared, threads, cache;
};
static const device H100 = {"NVIDIA H100 80GB HBM3", 900, 132, 232448, 2048, 52428800};
static const device A100 = {"NVIDIA A100-SXM4-80GB", 800, 108, 166912, 2048, 41943040};
static const device RTX_4090 = {"NVIDIA GeForce RTX 4090", 890, 128, 101376, 1536, 75497472};

static constexpr size_t ROOM = 64 << 20;
static char *kernel; /* the last that was loaded */

/* q, k and v are packed. */
static sdpa shape(int64_t sequences, int64_t length, int64_t heads, int64_t groups, int64_t dim, int64_t window,
                  int type = DNN_BF16)
{
    sdpa of;
    memset(&of, 0, sizeof of);
    of.sequences = sequences, of.length = length, of.heads = heads, of.groups = groups, of.dim = dim;
    of.window = window, of.type = type;
    of.q_ld = of.k_ld = of.v_ld = of.dq_ld = of.dk_ld = of.dv_ld = (heads + 2 * groups) * dim;
    of.q_apart = of.k_apart = of.v_apart = of.dq_apart = of.dk_apart = of.dv_apart = dim;
    return of;
}

/* The library's description of a device. */
static dnn_descriptor describe(dnn_graph *g, const device &on)
{
    char text[2000];
    const int n =
        snprintf(text, sizeof text, PROPERTIES, on.name, on.version, on.processors, on.shared, on.threads, on.cache);
    dnn_descriptor d = dnn_make(g, DNN_DEVICE);
    dnn_set(g, d, DNN_DEVICE_JSON, DNN_IS_CHAR, text, n);
    dnn_end(g, d);
    CHECK_EQ(g->status, 0);
    return d;
}
/* Returns the workspace. */
static int64_t plan(const device &on, sdpa of, bool backward)
{
    dnn_graph g = {};
    dnn_plan<sdpa> p;
    const dnn_descriptor d = describe(&g, on);
    of.backward = backward;
    kernel[0] = 0;
    dnn_make_plan(&p, of, NULL, d, ROOM);
    const bool there = p.plan;
    const int64_t workspace = p.workspace;
    if (p.graph.status) CHECK_SAY("%s: %s", on.name, dnn.GetErrorString(p.graph.status));
    if (there != (workspace <= (int64_t)ROOM)) CHECK_SAY("%s: a plan of %lld bytes", on.name, (long long)workspace);
    if (!strstr(kernel, "sdpa") || !strstr(kernel, backward ? "bprop" : "fprop"))
        CHECK_SAY("%s: the kernel is \"%s\"", on.name, kernel);
    dnn_forget_plan(&p);
    dnn_forget(&g);
    return workspace;
}

TEST(has_plans)
{
    const sdpa gpt2 = shape(2, 1024, 12, 12, 64, 0), llama = shape(1, 512, 32, 8, 128, 0);
    for (const device &on : {H100, A100, RTX_4090}) {
        CHECK(plan(on, gpt2, false) < 1 << 20);
        CHECK(plan(on, llama, false) < 1 << 20);
    }
    for (const device &on : {H100, A100}) {
        const int64_t ds = 2LL * 12 * 1024 * 1024 * 2;
        const int64_t workspace = plan(on, gpt2, true);
        CHECK(workspace >= ds && workspace < ds + (1 << 20)); /* ds as a whole, and little else */
        CHECK(plan(on, llama, true) <= (int64_t)ROOM);
    }
}
TEST(has_plans_with_windows)
{
    const sdpa windows = shape(1, 1024, 8, 2, 128, 300);
    CHECK(plan(H100, windows, false) < 1 << 20);
    CHECK(plan(H100, windows, true) <= (int64_t)ROOM);
}
TEST(has_plans_of_other_heads)
{
    for (const device &on : {H100, A100})
        for (const sdpa &of : {shape(1, 1024, 8, 4, 80, 0), shape(1, 1024, 8, 8, 40, 0, DNN_F16)}) {
            CHECK(plan(on, of, false) < 1 << 20);
            CHECK(plan(on, of, true) <= (int64_t)ROOM);
        }
    CHECK(plan(A100, shape(1, 1024, 8, 4, 256, 0), false) < 1 << 20);
}
/* Then attention.cu's kernels do it. */
TEST(wants_more_room_than_there_is)
{
    CHECK(plan(A100, shape(4, 1024, 12, 12, 64, 0), true) > (int64_t)ROOM);
}

/* ---- convolutions ---- */

static conv_dnn conv(int64_t samples, int64_t groups, int64_t inputs, int64_t outputs, int64_t size, int64_t window,
                     int64_t step, int64_t depth)
{
    conv_dnn of;
    memset(&of, 0, sizeof of);
    of.samples = samples, of.groups = groups, of.inputs = inputs, of.outputs = outputs;
    for (int d = 0; d < TESS_CONV_SPACE; d++) {
        const bool there = d > 0 || depth > 1;
        of.in[d] = d ? size : depth;
        of.window[d] = there ? window : 1, of.step[d] = there ? step : 1, of.apart[d] = 1;
        of.before[d] = of.after[d] = there ? window / 2 : 0;
        of.out[d] = (of.in[d] + 2 * of.before[d] - of.window[d]) / of.step[d] + 1;
    }
    return of;
}
/* Whether there is a plan. */
static bool plan_conv(const device &on, conv_dnn of, int written, bool half)
{
    dnn_graph g = {};
    dnn_plan<conv_dnn> p;
    const dnn_descriptor d = describe(&g, on);
    of.written = written, of.half = half;
    kernel[0] = 0;
    dnn_make_plan(&p, of, NULL, d, ROOM);
    if (p.graph.status) CHECK_SAY("%s: %s", on.name, dnn.GetErrorString(p.graph.status));
    const bool there = p.plan;
    if (there && !half &&
        !strstr(kernel, written == CONV_Y   ? "convFwd"
                        : written == CONV_X ? "convBwdData"
                                            : "convBwdFilter"))
        CHECK_SAY("%s: the kernel is \"%s\"", on.name, kernel);
    dnn_forget_plan(&p);
    dnn_forget(&g);
    return there;
}
static conv_dnn apart(conv_dnn of, int64_t apart)
{
    for (int d = 1; d < TESS_CONV_SPACE; d++) of.apart[d] = of.before[d] = of.after[d] = apart; /* 3 x 3 */
    return of;
}
static conv_dnn line(conv_dnn of)
{
    of.in[1] = of.out[1] = of.window[1] = of.step[1] = 1, of.before[1] = of.after[1] = 0;
    return of;
}
/* Right for 9.10.2, 9.12, 9.14, 9.18.1 and 9.19. */
TEST(has_plans_of_convolutions)
{
    if (dnn.GetVersion() < CONV_DNN_LEAST) SKIP("convolutions are not asked of so old a version");
    /* Of ResNets, a U-Net's volumes; then those that it has in bf16 alone. */
    const conv_dnn fit[] = {conv(8, 1, 64, 64, 56, 3, 1, 1), conv(8, 1, 64, 128, 56, 3, 2, 1),
                            conv(2, 1, 32, 32, 16, 3, 1, 16)};
    const conv_dnn more[] = {apart(conv(8, 1, 64, 64, 56, 3, 1, 1), 2), line(conv(8, 1, 80, 384, 512, 3, 2, 1)),
                             conv(8, 1, 256, 512, 28, 1, 2, 1)};
    const conv_dnn odd[] = {conv(8, 1, 3, 64, 224, 7, 2, 1), conv(8, 4, 32, 32, 28, 3, 1, 1),
                            conv(8, 64, 1, 1, 28, 3, 1, 1)};
    const device on[] = {H100, A100, RTX_4090};
    for (int k = 0; k < 3; k++) {
        CHECK(plan_conv(on[k], fit[k], CONV_Y, true));
        CHECK(plan_conv(on[k], fit[k], CONV_X, false));
        CHECK(plan_conv(on[k], fit[k], CONV_W, false));
        CHECK(plan_conv(on[k], more[k], CONV_Y, true));
        CHECK(plan_conv(on[k], more[k], CONV_X, false));
        CHECK(plan_conv(on[k], more[k], CONV_W, false));
        CHECK(plan_conv(on[k], odd[k], CONV_Y, true));
        if (dnn.GetVersion() >= 91900) /* older ones say that they have, and fail to compile; they are not asked */
            CHECK(!plan_conv(on[k], odd[k], CONV_W, false));
    }
}

int main(int argc, char **argv)
{
    void *driver = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL); /* who asks for libcuda.so.1 has this one */
    kernel = driver ? (char *)dlsym(driver, "tess_absent_kernel") : NULL;
    if (!kernel) {
        printf("%s\n", dlerror());
        return 1;
    }
    if (dnn_lack()) {
        printf("skipped: %s\n0 passed, 0 failed, 1 skipped\n", dnn_lack());
        return 77;
    }
    printf("cuDNN %zu\n", dnn.GetVersion());
    size_t (*const cudart)() = (size_t(*)())dlsym(dlopen(find_library(), RTLD_NOW), "cudnnGetCudartVersion");
    char nvrtc[32];
    snprintf(nvrtc, sizeof nvrtc, "libnvrtc.so.%zu", cudart() / 1000);
    if (!dlopen(nvrtc, RTLD_NOW)) { /* by which it compiles */
        printf("skipped: %s is not found\n0 passed, 0 failed, 1 skipped\n", nvrtc);
        return 77;
    }
    argv[1] = argv[0];
    return check_main(argc - 1, argv + 1);
}
