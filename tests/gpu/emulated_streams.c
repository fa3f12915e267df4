/* Streams and events of the emulated GPUs: each device has a thread, which takes the next thing of any stream that has
 * one, drawn from the seed, and lets time pass before. So copies overtake each other and bodies as far as streams and
 * events let them, and nothing has happened when a call returns. From some time before a copy until it ends its
 * target is NaN, and what another stream has may come between; a device does one thing at a time, and a body finds its
 * inputs when its turn comes. A stream or an event of before a reset, or of another device than the thread's, ends the
 * program where CUDA returns an error that StarPU would print. */
#include "codelets/codelets.h"
#include "tests/gpu/emulated_cuda.h"
#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SMALL = 4096 }; /* bytes that are copied even where nothing else is */
/* All that a body reads beside memory, by value, as a launch has it. */
struct launch {
    size_t bytes; /* of all of this */
    const tess_codelet *cl;
    tess_body body;
    bool first; /* of its task's */
    tess_work work;
    tess_env env, before;
    tess_view view[];
};

enum what { COPY, FILL, BODY, GRAPH, MARK, UNTIL };
struct job {
    enum what what;
    void *to;
    const void *from;
    size_t bytes;
    int value;
    struct CUevent_st *event;
    uint64_t ticket;
    struct launch *launch;
    struct job *jobs; /* of a graph */
    bool (*ended)(void *of, double *until);
    void *of;
    struct job *next;
};
/* Nodes of one after the other; what is captured, and what is made of it. */
struct CUgraphNode_st {
    struct job job;
};
struct CUgraph_st {
    struct CUgraphNode_st **node;
    unsigned nodes;
};
struct CUgraphExec_st {
    struct CUgraph_st of; /* its own nodes */
    const struct CUgraph_st *from;
};
/* Never freed, so that a dead handle is known. */
struct CUstream_st {
    double until; /* dry: when all that is on it has ended */
    int device;
    bool alive, running, spoiled;
    struct CUgraph_st *captured; /* NULL: what is put on it happens */
    struct job *first, **last;
    struct CUstream_st *next;
};
struct CUevent_st {
    double at; /* when what it was last recorded behind had ended */
    struct CUstream_st *on;
    int device;
    bool alive;
    uint64_t recorded, reached;
    struct CUevent_st *next;
};
static struct CUstream_st *streams;
static struct CUevent_st *events;
static bool has_thread[EMULATED_DEVICES];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t more = PTHREAD_COND_INITIALIZER, ended = PTHREAD_COND_INITIALIZER;

/* Devices' threads and callers draw from it: all with the lock, or by one instruction. */
static uint64_t dice;

static uint64_t scattered(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}
unsigned emulated_draw(unsigned n)
{
    const uint64_t at = __atomic_add_fetch(&dice, 0x9e3779b97f4a7c15u, __ATOMIC_RELAXED);
    return (unsigned)(scattered(at) >> 33) % n;
}
/* A training step has a seed of its own, so that one run tries as many of them as it has steps. */
static void reseed(int64_t step)
{
    static int64_t last = -1;
    const char *seed = getenv("TESS_EMULATED_SEED");
    if (__atomic_exchange_n(&last, step, __ATOMIC_RELAXED) == step) return;
    const uint64_t of = (seed ? strtoull(seed, NULL, 10) : 1) + (uint64_t)step;
    __atomic_store_n(&dice, scattered(of), __ATOMIC_RELAXED);
}

/* ---- a device's thread ---- */

static _Atomic bool lost, stands; /* asked for by TESS_EMULATED_FAULT */

/* A stream of those that have something to do; all are as likely. With the lock. */
static struct CUstream_st *draw_stream(int device)
{
    unsigned n = 0;
    struct CUstream_st *chosen = NULL;
    for (struct CUstream_st *s = streams; s; s = s->next)
        if (s->device == device && s->first && emulated_draw(++n) == 0) chosen = s;
    return chosen;
}

static const tess_work *work_of(struct launch *l)
{
    l->work.buf = l->view;
    l->work.env = &l->env;
    if (l->env.before) l->env.before = &l->before;
    return &l->work;
}

static void do_job(struct job *j)
{
    if (j->what == COPY) memcpy(j->to, j->from, j->bytes);
    if (j->what == FILL) memset(j->to, j->value, j->bytes);
    if (j->what == BODY) emulated_run_body(j->launch->cl, j->launch->body, work_of(j->launch));
    if (j->what == BODY) free(j->launch);
    for (struct job *of = j->jobs, *next; of; of = next) {
        do_job(of);
        next = of->next;
        free(of);
    }
}

/* Asked without the lock, by the device's thread, which alone takes jobs from its streams. */
static bool is_through(const struct job *j)
{
    pthread_mutex_unlock(&lock);
    const bool is = j->ended(j->of, NULL);
    if (!is) usleep(20);
    pthread_mutex_lock(&lock);
    return is;
}

/* Where a device's clock moves with its bodies alone: what it stands at, and by how much. */
static double body_clock[EMULATED_DEVICES];
static double body_seconds(void)
{
    const char *us = getenv("TESS_EMULATED_CLOCK");
    return us ? 1e-6 * atof(us) : 0;
}

static int bodies_of(const struct job *j)
{
    int n = j->what == BODY;
    for (const struct job *of = j->jobs; of; of = of->next) n += of->what == BODY;
    return n;
}

static void *device_main(void *number)
{
    const int device = (int)(intptr_t)number;
    pthread_mutex_lock(&lock);
    for (;;) {
        struct CUstream_st *s = stands ? NULL : draw_stream(device);
        if (!s) {
            pthread_cond_wait(&more, &lock);
            continue;
        }
        struct job *j = s->first;
        if (j->what == UNTIL && !is_through(j)) continue;
        const bool goes_on = j->what == BODY && !j->launch->first;
        const unsigned late = j->what >= MARK || goes_on || emulated_draw(4) ? 0 : emulated_draw(300);
        const int bodies = bodies_of(j);
        s->first = j->next;
        if (!s->first) s->last = &s->first;
        s->running = true;
        pthread_mutex_unlock(&lock);
        if (late) usleep(late);
        do_job(j);
        pthread_mutex_lock(&lock);
        s->running = false;
        body_clock[device] += bodies * body_seconds();
        if (j->what == MARK && j->ticket > j->event->reached) {
            j->event->reached = j->ticket;
            j->event->at = body_seconds() > 0 ? body_clock[device] : emulated_dry_now();
        }
        free(j);
        pthread_cond_broadcast(&ended);
    }
    return NULL;
}

static void start_thread(int device)
{
    pthread_t thread;
    if (has_thread[device]) return;
    has_thread[device] = true;
    if (pthread_create(&thread, NULL, device_main, (void *)(intptr_t)device)) abort();
    pthread_detach(thread);
}

/* ---- what callers do ---- */

static void check_stream(const struct CUstream_st *s, const char *what)
{
    if (!s || !s->alive) emulated_broken("%s on a stream that a reset took, or none", what);
}

/* With the lock. */
static void append(struct CUstream_st *s, const struct job *what)
{
    struct job *j = malloc(sizeof *j);
    if (!j) abort();
    *j = *what;
    j->next = NULL;
    *s->last = j;
    s->last = &j->next;
}

/* Where nothing is computed nothing waits for a thread: the stream's end moves on. */
static void pass(struct CUstream_st *s, const struct job *j)
{
    const double from = s->until;
    if (j->what == COPY) s->until = emulated_dry_copy(from, j->bytes, j->value == cudaMemcpyDeviceToHost);
    if (j->what == COPY && j->bytes <= SMALL) memcpy(j->to, j->from, j->bytes);
    if (j->what == BODY) s->until = emulated_dry_body(from, work_of(j->launch));
    if (j->what == BODY) free(j->launch);
    if (j->what == MARK) j->event->at = from;
}

/* But what another rank has a part in ends when that one has come to it, which is asked; what is behind it on the
 * stream waits. With the lock. */
static void settle(struct CUstream_st *s)
{
    for (struct job *j; (j = s->first) && (j->what != UNTIL || j->ended(j->of, &s->until)); free(j)) {
        s->first = j->next;
        if (!s->first) s->last = &s->first;
        if (j->what != UNTIL) pass(s, j);
    }
}

static void add_dry(struct CUstream_st *s, const struct job *what)
{
    pthread_mutex_lock(&lock);
    if (what->what == MARK) what->event->at = INFINITY;
    if (what->what == UNTIL || s->first)
        append(s, what);
    else
        pass(s, what);
    settle(s);
    pthread_mutex_unlock(&lock);
}

/* ---- graphs: what is captured has not happened, and happens with what it was given by value ---- */

static _Thread_local struct CUstream_st *capturing;

bool emulated_captures(void)
{
    if (capturing) capturing->spoiled = true;
    return capturing;
}

static struct CUgraphNode_st *node_of(const struct job *what)
{
    struct CUgraphNode_st *n = malloc(sizeof *n);
    if (!n) abort();
    n->job = *what;
    return n;
}

static void add_node(struct CUgraph_st *g, struct CUgraphNode_st *n)
{
    g->node = realloc(g->node, (g->nodes + 1) * sizeof *g->node);
    if (!g->node) abort();
    g->node[g->nodes++] = n;
}

static struct launch *launch_of(void **arg)
{
    const struct launch *from = arg[0];
    struct launch *l = malloc(from->bytes);
    if (!l) abort();
    return memcpy(l, from, from->bytes);
}

static struct job copy_of(const struct job *j)
{
    struct job copy = *j;
    if (j->what == BODY) copy.launch = launch_of((void *[]){j->launch});
    return copy;
}

static void free_nodes(struct CUgraph_st *g)
{
    for (unsigned k = 0; k < g->nodes; k++) {
        if (g->node[k]->job.what == BODY) free(g->node[k]->job.launch);
        free(g->node[k]);
    }
    free(g->node);
}

static void capture(struct CUstream_st *s, const struct job *what)
{
    if (s != capturing) emulated_broken("a captured stream is used by another thread");
    if (what->what > BODY) emulated_broken("an event, a message or a graph on a stream that is captured");
    add_node(s->captured, node_of(what));
}

cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    check_stream(s, "a capture");
    if (capturing || mode != cudaStreamCaptureModeThreadLocal)
        emulated_broken("a capture of another kind than is known here");
    if (emulated_fault("cudaStreamBeginCapture")) return cudaErrorStreamCaptureUnsupported;
    s->captured = calloc(1, sizeof *s->captured);
    if (!s->captured) abort();
    s->spoiled = false;
    capturing = s;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    if (s != capturing) emulated_broken("the end of a capture that did not begin");
    const bool spoiled = s->spoiled || emulated_fault("cudaStreamEndCapture");
    *graph = spoiled ? NULL : s->captured;
    if (spoiled) cudaGraphDestroy(s->captured);
    s->captured = NULL;
    capturing = NULL;
    return spoiled ? cudaErrorStreamCaptureInvalidated : cudaSuccess;
}
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *status, unsigned long long *id,
                                     cudaGraph_t *graph, const cudaGraphNode_t **after, const cudaGraphEdgeData **edge,
                                     size_t *n)
{
    (void)id, (void)graph, (void)edge;
    *status = !s->captured ? cudaStreamCaptureStatusNone
              : s->spoiled ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    *n = s->captured && s->captured->nodes;
    if (*n) *after = &s->captured->node[s->captured->nodes - 1];
    return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    (void)flags;
    if (emulated_fault("cudaGraphInstantiate")) return cudaErrorMemoryAllocation;
    struct CUgraphExec_st *e = calloc(1, sizeof *e);
    if (!e) abort();
    e->from = graph;
    for (unsigned k = 0; k < graph->nodes; k++) {
        const struct job j = copy_of(&graph->node[k]->job);
        add_node(&e->of, node_of(&j));
    }
    *exec = e;
    return cudaSuccess;
}
/* Where the fault is asked for it keeps what it had, and says nothing: bits are wrong then, or nobody had to set it. */
cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t e, cudaGraphNode_t node,
                                             const struct cudaKernelNodeParams *p)
{
    unsigned k = 0;
    while (k < e->from->nodes && e->from->node[k] != node) k++;
    if (k == e->from->nodes || node->job.what != BODY) return cudaErrorInvalidValue;
    emulated_counts.set++;
    if (emulated_fault("cudaGraphExecKernelNodeSetParams")) return cudaSuccess;
    struct job *j = &e->of.node[k]->job;
    free(j->launch);
    j->launch = launch_of(p->kernelParams);
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t g)
{
    free_nodes(g);
    free(g);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e)
{
    free_nodes(&e->of);
    free(e);
    return cudaSuccess;
}

/* A copy is two things, so that a body of another stream, which should have waited for it, comes between and finds what
 * is nobody's. */
static void add(struct CUstream_st *s, const struct job *what)
{
    if (s->captured) {
        capture(s, what);
        return;
    }
    if (what->what == COPY || what->what == GRAPH || (what->what == BODY && what->launch->first)) {
        lost |= emulated_fault("lost");
        stands |= emulated_fault("stands");
    }
    if (emulated_dry()) {
        add_dry(s, what);
        return;
    }
    pthread_mutex_lock(&lock);
    start_thread(s->device);
    if (what->what == COPY) append(s, &(struct job){.what = FILL, .to = what->to, .value = 0xff, .bytes = what->bytes});
    append(s, what);
    pthread_cond_broadcast(&more);
    pthread_mutex_unlock(&lock);
}

static bool is_idle(const struct CUstream_st *s)
{
    return !s->first && !s->running;
}

/* With the lock. */
static void wait_idle(struct CUstream_st *s)
{
    while (!is_idle(s)) {
        if (!emulated_dry()) {
            pthread_cond_wait(&ended, &lock);
            continue;
        }
        settle(s);
        pthread_mutex_unlock(&lock);
        usleep(20);
        pthread_mutex_lock(&lock);
    }
}

void emulated_drain(int device)
{
    double last = 0;
    pthread_mutex_lock(&lock);
    for (struct CUstream_st *s = streams; s; s = s->next) {
        if (s->device != device) continue;
        wait_idle(s);
        if (s->until > last) last = s->until;
    }
    pthread_mutex_unlock(&lock);
    emulated_dry_wait(last);
}

void emulated_forget(int device)
{
    pthread_mutex_lock(&lock);
    for (struct CUstream_st *s = streams; s; s = s->next) s->alive &= s->device != device;
    for (struct CUevent_st *e = events; e; e = e->next) e->alive &= e->device != device;
    pthread_mutex_unlock(&lock);
}

void emulated_until(cudaStream_t stream, bool (*ended)(void *of, double *until), void *of)
{
    check_stream(stream, "a group of NCCL's");
    add(stream, &(struct job){.what = UNTIL, .ended = ended, .of = of});
}

/* ---- launches ---- */

static void check_launch(const tess_work *w)
{
    const struct CUstream_st *s = w->stream;
    int device;
    if (w->env) reseed(w->env->step);
    check_stream(s, "a launch");
    cudaGetDevice(&device);
    if (s->device != device) emulated_broken("a launch on device %d by a thread of device %d", s->device, device);
    for (unsigned i = 0; i < w->nbuf; i++)
        if (w->buf[i].ptr && w->buf[i].bytes && !emulated_is_on(device, w->buf[i].ptr, w->buf[i].bytes))
            emulated_broken("%s: its buffer %u is not on device %d", w->task ? w->task->cl->name : "a body", i, device);
}

static void launch(const tess_codelet *cl, tess_body body, const tess_work *w, bool first)
{
    const size_t bytes = sizeof(struct launch) + w->nbuf * sizeof *w->buf;
    struct launch *l = calloc(1, bytes);
    if (!l) abort();
    l->bytes = bytes, l->cl = cl, l->body = body, l->first = first;
    memcpy(&l->work, w, sizeof *w); /* with what is between its members */
    l->work.buf = NULL, l->work.env = NULL, l->work.stream = NULL, l->work.launches = NULL;
    if (w->env) memcpy(&l->env, w->env, sizeof l->env);
    if (l->env.before) memcpy(&l->before, l->env.before, sizeof l->before);
    memcpy(l->view, w->buf, w->nbuf * sizeof *w->buf);
    const void *arg = l;
    const int error = tess_gpu_launch(w, &(tess_launch){(const void *)body, 1, 1, 0, 1, &arg, &bytes});
    if (error && !w->launches) emulated_broken("error %d of a launch", error);
    free(l);
}

/* A bundle's bodies are launched one by one, as bundle.cu does. */
void tess_emulated_run(tess_body body, const tess_work *w)
{
    const tess_codelet *cl = w->task ? w->task->cl : NULL;
    const tess_body before = emulated_before_bodies();
    check_launch(w);
    if (cl && before) launch(cl, before, w, true);
    if (!cl || emulated_dry() || strncmp(cl->name, "bundle", 6)) {
        launch(cl, body, w, true);
        return;
    }
    const tess_bundle_arg *a = w->arg;
    tess_view view[TESS_BUNDLE_BUFFERS];
    for (unsigned k = 0; k < a->parts; k++) {
        const tess_bundle_part *p = &a->part[k];
        for (unsigned i = 0; i < p->nbuf; i++) view[i] = w->buf[p->buf[i]];
        tess_work part = *w;
        part.arg = p->arg, part.buf = view, part.nbuf = p->nbuf;
        launch(p->cl, p->cl->cpu, &part, k == 0);
    }
}

cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **arg, size_t shared, cudaStream_t stream)
{
    (void)kernel, (void)grid, (void)block, (void)shared;
    check_stream(stream, "a launch");
    if (!stream->captured) emulated_counts.launches++, emulated_counts.bodies++;
    add(stream, &(struct job){.what = BODY, .launch = launch_of(arg)});
    return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t stream)
{
    check_stream(stream, "a graph");
    if (emulated_fault("cudaGraphLaunch")) return cudaErrorMemoryAllocation;
    struct job all = {.what = GRAPH}, **last = &all.jobs;
    for (unsigned k = 0; k < e->of.nodes; k++, last = &(*last)->next) {
        *last = malloc(sizeof **last);
        if (!*last) abort();
        **last = copy_of(&e->of.node[k]->job);
        (*last)->next = NULL;
        emulated_counts.bodies += (*last)->what == BODY;
    }
    emulated_counts.graphs++;
    add(stream, &all);
    return cudaSuccess;
}

/* The stream that no name is given to waits for all of the device, and all wait for it. */
cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind)
{
    if (emulated_captures()) return cudaErrorStreamCaptureImplicit;
    emulated_drain(emulated_device());
    if (emulated_dry()) emulated_dry_wait(emulated_dry_copy(0, bytes, kind == cudaMemcpyDeviceToHost));
    if (!emulated_dry() || bytes <= SMALL) memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    if (!stream) return cudaMemcpy(to, from, bytes, kind);
    check_stream(stream, "a copy");
    add(stream, &(struct job){.what = COPY, .to = to, .from = from, .bytes = bytes, .value = (int)kind});
    __atomic_add_fetch(&emulated_counts.copies, 1, __ATOMIC_RELAXED);
    if (emulated_is_pinned(to, bytes) && emulated_is_pinned(from, bytes)) return cudaSuccess;
    __atomic_add_fetch(&emulated_counts.pageable, 1, __ATOMIC_RELAXED);
    return cudaStreamSynchronize(stream); /* through a buffer of the driver's, while the caller waits */
}
cudaError_t cudaMemcpyPeer(void *to, int to_device, const void *from, int from_device, size_t bytes)
{
    emulated_drain(to_device);
    emulated_drain(from_device);
    memcpy(to, from, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device, size_t bytes,
                                cudaStream_t stream)
{
    (void)to_device, (void)from_device;
    return cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream);
}
cudaError_t cudaMemset(void *p, int value, size_t bytes)
{
    if (emulated_captures()) return cudaErrorStreamCaptureImplicit;
    emulated_drain(emulated_device());
    if (!emulated_dry()) memset(p, value, bytes);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t stream)
{
    check_stream(stream, "a fill");
    add(stream, &(struct job){.what = FILL, .to = p, .value = value, .bytes = bytes});
    return cudaSuccess;
}

cudaError_t cudaStreamCreate(cudaStream_t *stream)
{
    struct CUstream_st *s = calloc(1, sizeof *s);
    if (!s) return cudaErrorMemoryAllocation;
    s->device = emulated_device();
    s->alive = true;
    s->last = &s->first;
    pthread_mutex_lock(&lock);
    s->next = streams;
    streams = s;
    pthread_mutex_unlock(&lock);
    *stream = s;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags)
{
    (void)flags;
    return cudaStreamCreate(stream);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    (void)flags, (void)priority;
    return cudaStreamCreate(stream);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most)
{
    *least = *most = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    check_stream(stream, "the end of a stream");
    stream->alive = false; /* what is on it still runs */
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream)
{
    check_stream(stream, "a wait");
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    if (lost) return cudaErrorDevicesUnavailable;
    pthread_mutex_lock(&lock);
    wait_idle(stream);
    pthread_mutex_unlock(&lock);
    emulated_dry_wait(stream->until);
    return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    check_stream(stream, "a query");
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    if (lost) return cudaErrorDevicesUnavailable;
    pthread_mutex_lock(&lock);
    if (emulated_dry()) settle(stream);
    const bool idle = is_idle(stream) && emulated_dry_past(stream->until);
    pthread_mutex_unlock(&lock);
    return idle ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    (void)flags;
    struct CUevent_st *e = calloc(1, sizeof *e);
    if (!e) return cudaErrorMemoryAllocation;
    e->device = emulated_device();
    e->alive = true;
    pthread_mutex_lock(&lock);
    e->next = events;
    events = e;
    pthread_mutex_unlock(&lock);
    *event = e;
    return cudaSuccess;
}
static void check_event(const struct CUevent_st *e)
{
    if (!e || !e->alive) emulated_broken("an event that a reset took, or none");
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    check_event(event);
    event->alive = false;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    check_event(event);
    check_stream(stream, "an event");
    if (event->device != stream->device)
        emulated_broken("an event of device %d on a stream of device %d", event->device, stream->device);
    pthread_mutex_lock(&lock);
    const uint64_t ticket = ++event->recorded;
    event->on = stream;
    pthread_mutex_unlock(&lock);
    add(stream, &(struct job){.what = MARK, .event = event, .ticket = ticket});
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event)
{
    check_event(event);
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    if (lost) return cudaErrorDevicesUnavailable;
    pthread_mutex_lock(&lock);
    if (emulated_dry() && event->on) settle(event->on);
    const bool is = emulated_dry() ? emulated_dry_past(event->at) : event->reached == event->recorded;
    pthread_mutex_unlock(&lock);
    if (!is && emulated_dry()) emulated_dry_rest();
    return is ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    check_event(from);
    check_event(to);
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    if (lost) return cudaErrorDevicesUnavailable;
    pthread_mutex_lock(&lock);
    const bool past = emulated_dry() ? emulated_dry_past(from->at) && emulated_dry_past(to->at)
                                     : from->reached == from->recorded && to->reached == to->recorded;
    *ms = (float)(1e3 * (to->at - from->at));
    pthread_mutex_unlock(&lock);
    return past ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event)
{
    check_event(event);
    if (emulated_captures()) return cudaErrorStreamCaptureUnsupported;
    if (lost) return cudaErrorDevicesUnavailable;
    if (emulated_dry()) {
        while (cudaEventQuery(event) == cudaErrorNotReady) usleep(20);
        return cudaSuccess;
    }
    pthread_mutex_lock(&lock);
    while (event->reached != event->recorded) pthread_cond_wait(&ended, &lock);
    pthread_mutex_unlock(&lock);
    return cudaSuccess;
}
