/* CUDA graphs of tasks whose bodies launch many kernels. A bundle of a small step is a dozen kernels of some
 * microseconds each, and a launch takes the host as long; a graph is launched as one.
 *
 * The first time that a worker runs a task its body launches. The second time what it puts on the stream is captured,
 * and from then on the body runs for what it would launch: each kernel is compared with the graph's, and its arguments
 * are set where they differ, as those do that a step's seed, rate and scale are in, or a tile that has moved. So bodies
 * know nothing of graphs, and no argument of theirs can be forgotten. What a library puts on the stream, or CUDA
 * itself, has none that could be set: where that differs, or the kernels are others, the task launches as before, and
 * the next time makes another graph.
 *
 * What is captured goes to a stream of the worker's own, on which nothing else ever is; the graph is launched on that
 * of its tasks, between the events that say when bodies ran. What CUDA or a library refuses there is no failure: the
 * task launches as before. */
#include "runtime/gpu/gpu.h"
#include "runtime/progress/progress.h"

#ifdef TESS_HAVE_CUDA
#include <cuda_runtime_api.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST = 3 };                 /* launches that are worth a graph */
enum { SLOTS = 2048, MOST = 1024 }; /* tasks of a worker that have one; those beyond launch */
enum { MISSES = 3 };                /* graphs in a row that served once, after which a task makes no more */

/* What a body put on the stream: a kernel, or, where that is NULL, bytes that say what else. */
struct launched {
    const void *kernel;
    cudaGraphNode_t node;
    unsigned blocks, threads, n;
    size_t shared, bytes;
    unsigned char *arg; /* one behind the other */
};

struct tess_launches {
    const tess_task *task;
    bool captures;       /* else its body's launches are compared */
    bool differs;        /* what its body does now is not what the graph has, or cannot be one */
    unsigned at, misses; /* at: launches of its body so far */
    unsigned count, room;
    struct launched *of;
    cudaGraph_t graph;
    cudaGraphExec_t exec;
};

static bool alone;
static struct worker {
    cudaStream_t stream;
    struct tess_launches of[SLOTS];
    unsigned tasks;
} * workers[TESS_MAX_WORKERS];
static unsigned launches[TESS_MAX_WORKERS]; /* of bodies that launch as they are */

void tess_launches_want(bool wanted)
{
    alone = !wanted;
}

/* ---- what a body launches ---- */

static size_t bytes_of(const tess_launch *l)
{
    size_t bytes = 0;
    for (unsigned i = 0; i < l->n; i++) bytes += l->bytes[i];
    return bytes;
}

/* The node of what was captured last. */
static cudaGraphNode_t last_node(cudaStream_t stream)
{
    enum cudaStreamCaptureStatus status;
    const cudaGraphNode_t *node = NULL;
    size_t n = 0;
#if CUDART_VERSION >= 13000
    const cudaError_t error = cudaStreamGetCaptureInfo(stream, &status, NULL, NULL, &node, NULL, &n);
#else
    const cudaError_t error = cudaStreamGetCaptureInfo_v2(stream, &status, NULL, NULL, &node, &n);
#endif
    return error == cudaSuccess && status == cudaStreamCaptureStatusActive && n == 1 ? node[0] : NULL;
}

static void take(struct launched *k, const tess_launch *l)
{
    k->blocks = l->blocks, k->threads = l->threads, k->shared = l->shared;
    for (size_t i = 0, at = 0; i < l->n; at += l->bytes[i++]) memcpy(k->arg + at, l->arg[i], l->bytes[i]);
}

static void keep(struct tess_launches *g, const tess_launch *l, cudaGraphNode_t node)
{
    if (g->count == g->room) {
        struct launched *more = tess_alloc((g->room = 2 * g->room + 16) * sizeof *more);
        if (g->count) memcpy(more, g->of, g->count * sizeof *more);
        free(g->of);
        g->of = more;
    }
    struct launched *k = &g->of[g->count++];
    *k = (struct launched){.kernel = l->kernel, .node = node, .n = l->n, .bytes = bytes_of(l)};
    k->arg = tess_alloc(k->bytes + 1);
    take(k, l);
}

static bool is_same(const struct launched *k, const tess_launch *l)
{
    bool same = k->blocks == l->blocks && k->threads == l->threads && k->shared == l->shared;
    for (size_t i = 0, at = 0; i < l->n && same; at += l->bytes[i++])
        same = !memcmp(k->arg + at, l->arg[i], l->bytes[i]);
    return same;
}

/* Sets the node's arguments, where they are not the graph's. */
static void compare(struct tess_launches *g, const tess_launch *l)
{
    struct launched *k = g->at < g->count ? &g->of[g->at++] : NULL;
    if (!k || g->differs || k->kernel != l->kernel || k->n != l->n || k->bytes != bytes_of(l)) {
        g->differs = true;
        return;
    }
    if (is_same(k, l)) return;
    const struct cudaKernelNodeParams p = {.func = (void *)l->kernel,
                                           .gridDim = {l->blocks, 1, 1},
                                           .blockDim = {l->threads, 1, 1},
                                           .sharedMemBytes = (unsigned)l->shared,
                                           .kernelParams = (void **)l->arg};
    g->differs = !l->kernel || cudaGraphExecKernelNodeSetParams(g->exec, k->node, &p) != cudaSuccess;
    take(k, l);
}

int tess_gpu_launch(const tess_work *w, const tess_launch *l)
{
    struct tess_launches *g = w->launches;
    if (g && !g->captures) {
        compare(g, l);
        return cudaSuccess;
    }
    if (!g) launches[w->worker]++;
    (void)cudaGetLastError(); /* clears an earlier error of this thread: an allocation that StarPU tried, say */
    const cudaError_t error = cudaLaunchKernel(l->kernel, (dim3){l->blocks, 1, 1}, (dim3){l->threads, 1, 1},
                                               (void **)l->arg, l->shared, w->stream);
    if (g && error == cudaSuccess) keep(g, l, last_node(w->stream));
    return error;
}

bool tess_gpu_launched(const tess_work *w, const void *what, size_t bytes)
{
    struct tess_launches *g = w->launches;
    const tess_launch l = {.n = 1, .arg = &what, .bytes = &bytes};
    if (!g) {
        launches[w->worker]++;
        return false;
    }
    if (!what)
        g->differs = true;
    else if (g->captures)
        keep(g, &l, NULL);
    else
        compare(g, &l);
    return !what || !g->captures;
}

/* ---- a task's graph ---- */

static void say_refused(const char *why)
{
    static _Atomic bool said;
    if (!said) tess_note("GPU: kernels of a task are launched one by one, since they make no CUDA graph: %s", why);
    said = true;
}

bool tess_launches_refuse(const tess_work *w, const char *why)
{
    struct tess_launches *g = w->launches;
    if (!g) return false;
    if (!g->differs) say_refused(why);
    g->differs = true;
    return true;
}

static void forget(struct tess_launches *g)
{
    if (g->exec) cudaGraphExecDestroy(g->exec); /* one that runs goes when it has ended */
    if (g->graph) cudaGraphDestroy(g->graph);
    while (g->count) free(g->of[--g->count].arg);
    g->exec = NULL, g->graph = NULL;
}

void tess_launches_free(int worker)
{
    struct worker *all = workers[worker];
    for (int k = 0; k < SLOTS && all; k++) {
        forget(&all->of[k]);
        free(all->of[k].of);
    }
    if (all && all->stream) cudaStreamDestroy(all->stream);
    free(all);
    workers[worker] = NULL;
}

/* The task's place in the table; what is there may be of no task yet. */
static struct tess_launches *place_of(const tess_work *w)
{
    if (!workers[w->worker]) workers[w->worker] = tess_alloc(sizeof *workers[0]);
    struct worker *all = workers[w->worker];
    size_t at = ((uintptr_t)w->task >> 4) * 2654435761u % SLOTS;
    while (all->of[at].task && all->of[at].task != w->task) at = (at + 1) % SLOTS;
    return &all->of[at];
}

/* Launches, and counts what is launched: whether the next time is worth a graph. */
static void count(const tess_codelet *cl, const tess_work *w, struct tess_launches *place)
{
    const unsigned before = launches[w->worker];
    tess_gpu_run(cl, w);
    if (launches[w->worker] - before < LEAST || workers[w->worker]->tasks == MOST) return;
    workers[w->worker]->tasks++;
    place->task = w->task;
}

static bool capture(const tess_codelet *cl, const tess_work *w, struct tess_launches *g)
{
    struct worker *all = workers[w->worker];
    cudaError_t error = all->stream ? cudaSuccess : cudaStreamCreateWithFlags(&all->stream, cudaStreamNonBlocking);
    tess_work captured = *w;
    captured.stream = all->stream, captured.launches = g;
    g->captures = true, g->differs = false;
    if (!error) error = cudaStreamBeginCapture(all->stream, cudaStreamCaptureModeThreadLocal);
    if (!error) {
        tess_gpu_run(cl, &captured);
        error = cudaStreamEndCapture(all->stream, &g->graph);
    }
    if (!error && !g->differs) error = cudaGraphInstantiate(&g->exec, g->graph, 0);
    if (!error && !g->differs) error = cudaGraphLaunch(g->exec, w->stream);
    if (!error && !g->differs) return true;
    (void)cudaGetLastError();
    if (error) say_refused(cudaGetErrorString(error));
    forget(g);
    g->misses = MISSES;
    return false;
}

static bool launch_again(const tess_codelet *cl, const tess_work *w, struct tess_launches *g)
{
    tess_work compared = *w;
    compared.launches = g;
    g->captures = g->differs = false, g->at = 0;
    tess_gpu_run(cl, &compared);
    if (!g->differs && g->at == g->count && cudaGraphLaunch(g->exec, w->stream) == cudaSuccess) {
        g->misses = 0;
        return true;
    }
    forget(g);
    g->misses++;
    return false;
}

void tess_launches_run(const tess_codelet *cl, const tess_work *w)
{
    struct tess_launches *g = alone ? NULL : place_of(w);
    if (g && !g->task)
        count(cl, w, g);
    else if (!g || !(g->exec ? launch_again(cl, w, g) : g->misses < MISSES && capture(cl, w, g)))
        tess_gpu_run(cl, w);
}

#else

void tess_launches_want(bool wanted)
{
    (void)wanted;
}

bool tess_gpu_launched(const tess_work *w, const void *what, size_t bytes)
{
    (void)w, (void)what, (void)bytes;
    return false;
}

bool tess_launches_refuse(const tess_work *w, const char *why)
{
    (void)w, (void)why;
    return false;
}

void tess_launches_free(int worker)
{
    (void)worker;
}

void tess_launches_run(const tess_codelet *cl, const tess_work *w)
{
    tess_gpu_run(cl, w);
}
#endif
