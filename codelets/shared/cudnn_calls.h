/* cudnn_calls: as much of cuDNN's C backend as attention and convolutions on a GPU call. The library is looked for when
 * it is first asked for, and no build needs it or its header: what the header says is written down in cudnn_names.h,
 * where it has one number in all of version 9 (tests/gpu/test_cudnn.cpp compares, where there is a header).
 *
 *     static dnn_library<mine, 64> library;         // "mine" is compared byte by byte: what a plan is made for
 *     static void dnn_describe(dnn_graph *g, const mine &of);
 *     dnn_plan<mine> *p = dnn_plan_of(&library, w, of, room);
 *     if (p->plan) status = dnn_execute(&library, w, p, &pointers, workspace);
 */
#ifndef TESS_CUDNN_CALLS_H
#define TESS_CUDNN_CALLS_H
#include "codelets/shared/kernels.h"
#ifdef TESS_EMULATED
#include "tests/gpu/emulated_runtime.h"
#endif
#include "codelets/shared/cudnn_choice.h"
#include "codelets/shared/cudnn_names.h"
#include <dlfcn.h>
#include <pthread.h>

typedef struct dnn_context *dnn_handle;
typedef void *dnn_descriptor;

typedef size_t dnn_GetVersion_f(void);
typedef const char *dnn_GetErrorString_f(int status);
typedef int dnn_Create_f(dnn_handle *handle);
typedef int dnn_Destroy_f(dnn_handle handle);
typedef int dnn_SetStream_f(dnn_handle handle, cudaStream_t stream);
typedef int dnn_BackendCreateDescriptor_f(int type, dnn_descriptor *made);
typedef int dnn_BackendDestroyDescriptor_f(dnn_descriptor d);
typedef int dnn_BackendFinalize_f(dnn_descriptor d);
typedef int dnn_BackendSetAttribute_f(dnn_descriptor d, int name, int type, int64_t n, const void *values);
typedef int dnn_BackendGetAttribute_f(dnn_descriptor d, int name, int type, int64_t room, int64_t *n, void *values);
typedef int dnn_BackendExecute_f(dnn_handle handle, dnn_descriptor plan, dnn_descriptor variant);

#define DNN_EACH(f)                                                                                                    \
    f(GetVersion) f(GetErrorString) f(Create) f(Destroy) f(SetStream) f(BackendCreateDescriptor)                       \
        f(BackendDestroyDescriptor) f(BackendFinalize) f(BackendSetAttribute) f(BackendGetAttribute) f(BackendExecute)
static struct {
    char lack[300];
#define DNN_FIELD(f) dnn_##f##_f *f;
    DNN_EACH(DNN_FIELD)
} dnn;

#ifndef DNN_SONAME
#ifdef TESS_EMULATED
#define DNN_SONAME NULL /* the program itself, where dlsym finds the emulated ones */
#else
#define DNN_SONAME "libcudnn.so.9"
#endif
#endif
static void dnn_load(void)
{
    void *library = dlopen(DNN_SONAME, RTLD_NOW | RTLD_LOCAL);
    bool all = library;
#define DNN_FIND(f) all = all && (dnn.f = (dnn_##f##_f *)dlsym(library, "cudnn" #f));
    DNN_EACH(DNN_FIND)
    if (!all) snprintf(dnn.lack, sizeof dnn.lack, "%s", dlerror());
}

/* NULL, or why there is none. */
static const char *dnn_lack(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, dnn_load);
    return dnn.lack[0] ? dnn.lack : NULL;
}

/* ---- graphs of operations ---------------------------------------------------------------------------------------- */

/* A graph on its way. What is wrong stays: then nothing more is made. */
struct dnn_graph {
    enum { MOST = 128, OPERATIONS = 32 };
    dnn_descriptor made[MOST], operation[OPERATIONS];
    int count, operations, status;
    int64_t ids;
    uint32_t unwanted; /* a bit for each note of an engine's that is not taken, beside that of other bits each time */
};
static inline dnn_descriptor dnn_make(dnn_graph *g, int type)
{
    dnn_descriptor d = NULL;
    TESS_ASSERT(g->count < dnn_graph::MOST);
    if (!g->status) g->status = dnn.BackendCreateDescriptor(type, &d);
    if (!g->status) g->made[g->count++] = d;
    return d;
}
static inline void dnn_set(dnn_graph *g, dnn_descriptor d, int name, int type, const void *values, int64_t n = 1)
{
    if (!g->status) g->status = dnn.BackendSetAttribute(d, name, type, n, values);
}
static inline void dnn_set_value(dnn_graph *g, dnn_descriptor d, int name, int type, int value)
{
    dnn_set(g, d, name, type, &value);
}
static inline void dnn_end(dnn_graph *g, dnn_descriptor d)
{
    if (!g->status) g->status = dnn.BackendFinalize(d);
}
static inline void dnn_forget(dnn_graph *g)
{
    while (g->count) dnn.BackendDestroyDescriptor(g->made[--g->count]);
}
static inline void dnn_add(dnn_graph *g, dnn_descriptor operation)
{
    TESS_ASSERT(g->operations < dnn_graph::OPERATIONS);
    dnn_end(g, operation);
    g->operation[g->operations++] = operation;
}
/* between: it is nowhere; by_value: a number of the host's. */
static inline dnn_descriptor dnn_tensor(dnn_graph *g, int64_t id, int type, int rank, const int64_t *side,
                                        const int64_t *stride, bool between = false, bool by_value = false,
                                        int64_t alignment = 16)
{
    dnn_descriptor d = dnn_make(g, DNN_TENSOR);
    dnn_set_value(g, d, DNN_TENSOR_TYPE, DNN_IS_TYPE, type);
    dnn_set(g, d, DNN_TENSOR_SIDES, DNN_IS_INT64, side, rank);
    dnn_set(g, d, DNN_TENSOR_STRIDES, DNN_IS_INT64, stride, rank);
    dnn_set(g, d, DNN_TENSOR_ID, DNN_IS_INT64, &id);
    dnn_set(g, d, DNN_TENSOR_ALIGNMENT, DNN_IS_INT64, &alignment);
    dnn_set(g, d, DNN_TENSOR_VIRTUAL, DNN_IS_BOOLEAN, &between);
    dnn_set(g, d, DNN_TENSOR_BY_VALUE, DNN_IS_BOOLEAN, &by_value);
    dnn_end(g, d);
    return d;
}

/* ---- plans ------------------------------------------------------------------------------------------------------- */

template <class OF> struct dnn_plan {
    bool known;
    OF of;
    dnn_graph graph;     /* what the plan is made of */
    dnn_descriptor plan; /* NULL: there is none */
    int64_t workspace;   /* INT64_MAX: none, whatever room there were */
    int refused;         /* the status with which the last guess was; 0: none was */
};

/* Whether an engine has the same bits each time, and nothing else that is unwanted, as it says itself. */
static inline bool dnn_steady(dnn_descriptor config, uint32_t unwanted)
{
    dnn_graph g = {};
    dnn_descriptor engine = dnn_make(&g, DNN_ENGINE);
    int note[32];
    int64_t n = 0;
    if (!g.status) g.status = dnn.BackendGetAttribute(config, DNN_CONFIG_ENGINE, DNN_IS_DESCRIPTOR, 1, &n, &engine);
    if (!g.status) g.status = dnn.BackendGetAttribute(engine, DNN_ENGINE_NOTES, DNN_IS_NOTE, 32, &n, note);
    bool steady = !g.status;
    unwanted |= 1u << DNN_OTHER_BITS_EACH_TIME;
    for (int64_t i = 0; steady && i < n; i++) steady = note[i] < 0 || note[i] > 31 || !(unwanted >> note[i] & 1);
    dnn_forget(&g);
    return steady;
}

/* Takes the first of the library's guesses that makes a plan with the same bits each time and a workspace within the
 * room; where none does, p->workspace is the least that a guess asked for. `device` is the library's description of a
 * device that is not here; then the handle is NULL. */
template <class OF>
static inline void dnn_choose(dnn_plan<OF> *p, dnn_handle handle, dnn_descriptor device, size_t room)
{
    constexpr int GUESSES = 8;
    dnn_graph *g = &p->graph;
    dnn_descriptor graph = dnn_make(g, DNN_GRAPH), heuristic, guess[GUESSES];
    int64_t n = 0;
    if (handle) dnn_set(g, graph, DNN_GRAPH_HANDLE, DNN_IS_HANDLE, &handle);
    dnn_set(g, graph, DNN_GRAPH_OPERATIONS, DNN_IS_DESCRIPTOR, g->operation, g->operations);
    dnn_end(g, graph);
    heuristic = dnn_make(g, DNN_HEURISTIC);
    dnn_set(g, heuristic, DNN_HEURISTIC_GRAPH, DNN_IS_DESCRIPTOR, &graph);
    dnn_set_value(g, heuristic, DNN_HEURISTIC_MODE, DNN_IS_HEURISTIC_MODE, DNN_BEST_GUESSES);
    if (device) dnn_set(g, heuristic, DNN_HEURISTIC_DEVICE, DNN_IS_DESCRIPTOR, &device);
    dnn_end(g, heuristic);
    for (int i = 0; i < GUESSES; i++) guess[i] = dnn_make(g, DNN_ENGINE_CONFIG);
    if (!g->status)
        g->status = dnn.BackendGetAttribute(heuristic, DNN_HEURISTIC_RESULTS, DNN_IS_DESCRIPTOR, GUESSES, &n, guess);
    p->workspace = INT64_MAX;
    for (int64_t i = 0; !g->status && i < n && i < GUESSES && !p->plan; i++) {
        dnn_graph one = {};
        int64_t workspace = 0, count;
        if (!dnn_steady(guess[i], g->unwanted)) continue;
        dnn_descriptor plan = dnn_make(&one, DNN_PLAN);
        if (handle) dnn_set(&one, plan, DNN_PLAN_HANDLE, DNN_IS_HANDLE, &handle);
        dnn_set(&one, plan, DNN_PLAN_CONFIG, DNN_IS_DESCRIPTOR, &guess[i]);
        dnn_end(&one, plan);
        if (!one.status)
            one.status = dnn.BackendGetAttribute(plan, DNN_PLAN_WORKSPACE, DNN_IS_INT64, 1, &count, &workspace);
        if (one.status) p->refused = one.status;
        if (!one.status && workspace < p->workspace) p->workspace = workspace;
        if (!one.status && (size_t)workspace <= room)
            p->plan = plan;
        else
            dnn_forget(&one);
    }
}

template <class OF>
static inline void dnn_make_plan(dnn_plan<OF> *p, const OF &of, dnn_handle handle, dnn_descriptor device, size_t room)
{
    memset(p, 0, sizeof *p);
    p->known = true;
    p->of = of;
    dnn_describe(&p->graph, of);
    dnn_choose(p, handle, device, room);
}
template <class OF> static inline void dnn_forget_plan(dnn_plan<OF> *p)
{
    if (p->plan) dnn.BackendDestroyDescriptor(p->plan);
    dnn_forget(&p->graph);
    memset(p, 0, sizeof *p);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The plans that an op, which has kernels of its own too, has asked the library for so far. Making a plan takes up to a
 * second, so PLANS is more than any network needs. */
template <class OF, int PLANS> struct dnn_library {
    pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    bool on = false; /* said at the start, and the same from then on */
    dnn_handle handle[64] = {};
    dnn_plan<OF> plan[PLANS] = {};
    char lack[300] = {}; /* what it said where it should have run */
    int64_t runs = 0;
    int refused = 0; /* what the last plan was that could not be made */
};

/* Gives back what the library has made on the current device, on which nothing runs. */
template <class OF, int PLANS> static inline void dnn_close(dnn_library<OF, PLANS> *l)
{
    int device = 0;
    cudaGetDevice(&device);
    for (dnn_plan<OF> &p : l->plan)
        if (p.known) dnn_forget_plan(&p);
    if (l->handle[device]) dnn.Destroy(l->handle[device]);
    l->handle[device] = NULL;
}

/* The plan for it, made within the room; with the lock held. Where there is no room for one more all go, once what runs
 * has ended. */
template <class OF, int PLANS>
static inline dnn_plan<OF> *dnn_plan_of(dnn_library<OF, PLANS> *l, const tess_work *w, const OF &of, size_t room)
{
    dnn_handle *handle = &l->handle[of.device];
    dnn_plan<OF> *free_one = NULL;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < sizeof of; i++) hash = (hash ^ ((const unsigned char *)&of)[i]) * 1099511628211u;
    for (int i = 0; i < PLANS && !free_one; i++) {
        dnn_plan<OF> &p = l->plan[(hash + (uint64_t)i) % PLANS];
        if (p.known && !memcmp(&p.of, &of, sizeof of)) return &p;
        if (!p.known) free_one = &p;
    }
    if (!free_one) {
        tess_cuda_check(w, cudaStreamSynchronize((cudaStream_t)w->stream), "cuDNN");
        for (dnn_plan<OF> &p : l->plan) dnn_forget_plan(&p);
        free_one = &l->plan[hash % PLANS];
    }
    if (!*handle && dnn.Create(handle)) *handle = NULL;
    if (*handle)
        dnn_make_plan(free_one, of, *handle, NULL, room);
    else
        free_one->known = true, free_one->of = of, free_one->workspace = INT64_MAX;
    return free_one;
}

struct dnn_pointers {
    int64_t id[16];
    void *ptr[16]; /* NULL: the host's value */
    float value[16];
    int64_t count;
};
static inline void dnn_point(dnn_pointers *to, int64_t id, const void *ptr, float value = 0)
{
    TESS_ASSERT(to->count < 16);
    to->id[to->count] = id;
    to->value[to->count] = value;
    to->ptr[to->count++] = (void *)ptr;
}
/* What an execution is known by. */
template <class OF> struct dnn_called {
    OF of;
    dnn_pointers to;
    const void *workspace;
};
template <class OF, int PLANS>
static inline int dnn_execute(dnn_library<OF, PLANS> *l, const tess_work *w, const dnn_plan<OF> *p, dnn_pointers *to,
                              void *workspace)
{
    const dnn_handle handle = l->handle[p->of.device];
    dnn_graph g = {};
    dnn_called<OF> what;
    memset((void *)&what, 0, sizeof what);
    memcpy((void *)&what.of, (const void *)&p->of, sizeof p->of);
    what.to = *to, what.workspace = workspace;
    if (tess_gpu_launched(w, &what, sizeof what)) return 0;
    for (int64_t k = 0; k < to->count; k++)
        if (!to->ptr[k]) to->ptr[k] = &to->value[k];
    dnn_descriptor variant = dnn_make(&g, DNN_VARIANT);
    dnn_set(&g, variant, DNN_VARIANT_IDS, DNN_IS_INT64, to->id, to->count);
    dnn_set(&g, variant, DNN_VARIANT_POINTERS, DNN_IS_POINTER, to->ptr, to->count);
    dnn_set(&g, variant, DNN_VARIANT_WORKSPACE, DNN_IS_POINTER, &workspace);
    dnn_end(&g, variant);
    if (!g.status) g.status = dnn.SetStream(handle, (cudaStream_t)w->stream);
    if (!g.status) g.status = dnn.BackendExecute(handle, p->plan, variant);
    dnn_forget(&g);
    l->runs++;
    return g.status;
}

/* ---- whether it is taken ----------------------------------------------------------------------------------------- */

/* How far n elements of a and b are apart in norm, of what b is. */
static inline double dnn_apart(const void *a, const void *b, size_t n, tess_dtype t)
{
    double off = 0, size = 0;
    for (size_t i = 0; i < n; i++) {
        const double x = (double)tess_load(a, (int64_t)i, t), want = (double)tess_load(b, (int64_t)i, t);
        off += (x - want) * (x - want), size += want * want;
    }
    return size > 0 ? sqrt(off / size) : INFINITY;
}

/* A tensor of a trial, which is made for it: read, or, with how near it must be to ours, a result. */
struct dnn_tried {
    tess_view *at; /* with its bytes */
    tess_dtype t;
    double near; /* 0: it is read */
};

/* The results of one run, one behind the other. */
template <class RUN> static inline bool dnn_result(const dnn_tried *of, int n, char *to, RUN run)
{
    bool ran = true;
    for (int i = 0; i < n; i++) /* so that nothing of the run before is taken for this one's */
        if (of[i].near > 0) ran = ran && !cudaMemset(of[i].at->ptr, 0xff, of[i].at->bytes);
    run();
    ran = !cudaStreamSynchronize(NULL) && ran;
    for (int i = 0; i < n; i++)
        if (of[i].near > 0) {
            ran = ran && !cudaMemcpy(to, of[i].at->ptr, of[i].at->bytes, cudaMemcpyDeviceToHost);
            to += of[i].at->bytes;
        }
    return ran;
}
/* Whether the library has what ours has, but for rounding, and the same bits again. run(): enqueues all of it, ours or
 * the library's. */
template <class OF, int PLANS, class RUN>
static inline bool dnn_is_right(dnn_library<OF, PLANS> *l, const dnn_tried *of, int n, RUN run, char *said, size_t room)
{
    size_t all = 0, at = 0;
    char *result[3];
    bool ran = true;
    for (int i = 0; i < n; i++) all += of[i].near > 0 ? of[i].at->bytes : 0;
    for (char *&r : result) r = (char *)tess_alloc(all);
    l->runs = 0, l->refused = 0, l->lack[0] = 0;
    for (int k = 0; ran && k < 3; k++) {
        l->on = k > 0;
        ran = dnn_result(of, n, result[k], run) && !l->lack[0];
        l->on = false;
    }
    bool right = ran && l->runs > 0 && !memcmp(result[1], result[2], all);
    if (!ran)
        snprintf(said, room, "%s", l->lack[0] ? l->lack : "cuDNN: the device fails");
    else if (!l->runs)
        snprintf(said, room, "cuDNN has no kernels for this GPU%s%s (is CUDA's NVRTC found, by which it compiles?)",
                 l->refused ? ": " : "", l->refused ? dnn.GetErrorString(l->refused) : "");
    else if (!right)
        snprintf(said, room, "cuDNN has other bits each time");
    for (int i = 0; right && i < n; i++) {
        if (!(of[i].near > 0)) continue;
        const size_t bytes = of[i].at->bytes, elements = bytes / tess_dtype_size(of[i].t);
        const double off = dnn_apart(result[1] + at, result[0] + at, elements, of[i].t);
        right = off <= of[i].near;
        if (!right) snprintf(said, room, "cuDNN is off by %.2g", off);
        at += bytes;
    }
    for (char *r : result) free(r);
    return right;
}
/* Returns dnn_is_right for tensors that are filled with noise, beside a room of worker->bytes; allocates all of these
 * on the device, and frees them. */
template <class OF, int PLANS, class RUN>
static inline bool dnn_try(dnn_library<OF, PLANS> *l, const dnn_tried *of, int n, tess_view *worker, RUN run,
                           char *said, size_t room)
{
    bool there = !cudaMalloc(&worker->ptr, worker->bytes);
    for (int i = 0; i < n; i++) {
        const size_t words = of[i].at->bytes / 2;
        uint16_t *noise = (uint16_t *)tess_alloc(of[i].at->bytes);
        for (size_t k = 0; k < words; k++)
            noise[k] = tess_to_bf16((float)(int32_t)tess_random(1, 0, (uint32_t)i, k) * 0x1p-30f);
        there = there && !cudaMalloc(&of[i].at->ptr, of[i].at->bytes) &&
                !cudaMemcpy(of[i].at->ptr, noise, of[i].at->bytes, cudaMemcpyHostToDevice);
        free(noise);
    }
    if (!there) snprintf(said, room, "the GPU has no room for a trial of cuDNN's");
    const bool right = there && dnn_is_right(l, of, n, run, said, room);
    for (int i = 0; i < n; i++) cudaFree(of[i].at->ptr);
    cudaFree(worker->ptr);
    return right;
}

/* No task's body: it allocates and waits, before StarPU starts, and leaves nothing on the device. least: the oldest
 * version that is taken; right(said, room): a trial, which says why it is not, or what goes behind the version. */
template <class OF, int PLANS, class TRIAL>
static inline void dnn_settle(dnn_library<OF, PLANS> *l, tess_cudnn_choice *of, size_t least, TRIAL right)
{
    char *said = of->said;
    const char *lack = of->wanted ? dnn_lack() : NULL;
    const size_t room = sizeof of->said, v = of->wanted && !lack ? dnn.GetVersion() : 0;
    dnn_close(l); /* of a run before, in this process */
    l->on = of->taken = false;
    snprintf(said, room, "%s", lack ? lack : "");
    if (!of->wanted || lack) return;
    if (v < least) {
        snprintf(said, room, "cuDNN is of version %zu (expected %zu or newer)", v, least);
        return;
    }
    cudaSetDevice(of->device); /* the main thread's would be 0 */
    char tried[250] = "";
    of->taken = of->trusted || right(tried, sizeof tried);
    const int n = of->taken ? snprintf(said, room, "cuDNN %zu.%zu.%zu", v / 10000, v / 100 % 100, v % 100) : 0;
    snprintf(said + n, room - (size_t)n, "%s", tried);
    dnn_close(l);
    l->on = of->taken;
}

#endif
