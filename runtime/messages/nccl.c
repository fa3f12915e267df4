/* NCCL: messages from GPU to GPU, by serve.c's thread. Calls of it are in this file alone, and the library is looked
 * for when it is wanted: a program that finds none runs, and MPI carries.
 *
 * All ranks have one communicator, and each one stream. A message is a group of sends and receives on it, and an event
 * behind them. So messages run one after the other, in the order they begin, which must be the same for all: NCCL has
 * no tags, and a group holds up those behind it until its peers have come to theirs.
 *
 * The communicator does not block: what takes its time is asked about, so no call waits for a rank that died. */
#include "gpu_impl.h"
#include "messages_impl.h"
#include <dlfcn.h>
#include <math.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TESS_NCCL_OVER_MPI
#include "nccl_over_mpi.h"
#elif defined TESS_HAVE_NCCL && defined STARPU_USE_CUDA
#include <cuda_runtime_api.h>
#include <nccl.h>
#define LIBRARY "libnccl.so.2"
#endif

#ifdef LIBRARY

enum { GROUPS = 64 };                   /* messages that began and did not end, at most */
static const double INIT_SECONDS = 120; /* that ranks get to find each other */

#define EACH(f)                                                                                                        \
    f(ncclGetVersion) f(ncclGetUniqueId) f(ncclCommInitRankConfig) f(ncclCommGetAsyncError) f(ncclCommFinalize)        \
        f(ncclCommDestroy) f(ncclCommAbort) f(ncclGroupStart) f(ncclGroupEnd) f(ncclSend) f(ncclRecv)                  \
            f(ncclGetLastError) f(ncclGetErrorString)
static struct {
    void *library;
#define FIELD(f) __typeof__(f) *f;
    EACH(FIELD)
} nccl;

static struct {
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t event[GROUPS];
    int device;
    uint64_t begun, ended;         /* groups */
    tess_exchange *handed, **last; /* to NCCL, in order, and their end */
} wire = {.last = &wire.handed};

static bool load(void)
{
    if (nccl.library) return true;
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!library) return false;
    bool all = true;
#define FIND(f) all = (nccl.f = (__typeof__(nccl.f))dlsym(library, #f)) && all;
    EACH(FIND)
    if (all) nccl.library = library;
    return all;
}

/* ---- may it? ---- */

/* What the ranks tell each other: each one's GPU, or why there is none for this. */
struct seat {
    char lack[120], host[64], gpu[32];
};

static void take_seat(struct seat *s)
{
    const tess_share *share = tess_share_read();
    *s = (struct seat){0};
    if (!tess_gpu_first(&wire.device, s->gpu, sizeof s->gpu))
        snprintf(s->lack, sizeof s->lack, "there is no GPU");
    else if (!load())
        snprintf(s->lack, sizeof s->lack, "the loader finds no libnccl.so.2");
    memcpy(s->host, share->host, sizeof s->host);
}

/* Of all ranks: why NCCL does not carry; NULL where it can. */
static const char *hindrance(void)
{
    static char text[200];
    const int n = tess_ranks();
    struct seat mine, *all = tess_alloc((size_t)n * sizeof *all);
    take_seat(&mine);
    tess_ranks_gather(&mine, sizeof mine, all);
    text[0] = 0;
    for (int i = 0; i < n && !text[0]; i++) {
        if (all[i].lack[0]) snprintf(text, sizeof text, "rank %d: %s", i, all[i].lack);
        for (int k = 0; k < i && !text[0]; k++)
            if (!strcmp(all[i].host, all[k].host) && !strcmp(all[i].gpu, all[k].gpu))
                snprintf(text, sizeof text, "ranks %d and %d share a GPU", k, i);
    }
    free(all);
    return text[0] ? text : NULL;
}

static const char *name(void)
{
    static char text[32];
    int v = 0;
    nccl.ncclGetVersion(&v);
    snprintf(text, sizeof text, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
    return text;
}

/* ---- start and stop ---- */

/* What a call of the communicator came to in the end; ncclInProgress where that is not known in time. */
static ncclResult_t outcome(ncclResult_t r, double seconds)
{
    const double start = tess_seconds();
    while (r == ncclInProgress && tess_seconds() - start < seconds) {
        ncclResult_t asked = nccl.ncclCommGetAsyncError(wire.comm, &r);
        if (asked != ncclSuccess) r = asked;
        if (r == ncclInProgress) usleep(10);
    }
    return r;
}

static bool open_stream(void)
{
    int least, most;
    bool good = cudaSetDevice(wire.device) == cudaSuccess &&
                cudaDeviceGetStreamPriorityRange(&least, &most) == cudaSuccess &&
                cudaStreamCreateWithPriority(&wire.stream, cudaStreamNonBlocking, most) == cudaSuccess;
    for (int i = 0; i < GROUPS && good; i++)
        good = cudaEventCreateWithFlags(&wire.event[i], cudaEventDisableTiming) == cudaSuccess;
    return good;
}

static void close_stream(void)
{
    for (int i = 0; i < GROUPS; i++)
        if (wire.event[i]) cudaEventDestroy(wire.event[i]);
    if (wire.stream) cudaStreamDestroy(wire.stream);
    memset(wire.event, 0, sizeof wire.event);
    wire.stream = NULL;
}

static ncclResult_t open_comm(const ncclUniqueId *id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    wire.begun = wire.ended = 0;
    return outcome(nccl.ncclCommInitRankConfig(&wire.comm, tess_ranks(), *id, tess_rank(), &config), INIT_SECONDS);
}

/* ---- messages ---- */

static _Noreturn void lost(const tess_message_arg *m, const char *what)
{
    char text[400];
    bool others = false;
    for (unsigned i = 1; i < m->spans; i++) others = others || m->span[i].peer != m->span[0].peer;
    snprintf(text, sizeof text, "NCCL: a message to or from rank %d%s failed: %s", m->span[0].peer,
             others ? " and others" : "", what);
    tess_die(text);
}

static void check(const tess_message_arg *m, ncclResult_t r)
{
    r = outcome(r, HUGE_VAL);
    if (r == ncclSuccess) return;
    const char *more = nccl.ncclGetLastError(wire.comm);
    lost(m, more && more[0] ? more : nccl.ncclGetErrorString(r));
}

static void check_cuda(const tess_message_arg *m, cudaError_t e)
{
    if (e != cudaSuccess) lost(m, cudaGetErrorString(e));
}

static void enter(void)
{
    cudaSetDevice(wire.device);
}

static void begin(tess_exchange *e, void *const *data)
{
    const tess_message_arg *m = e->task->arg;
    check(m, nccl.ncclGroupStart());
    for (unsigned i = 0; i < m->spans; i++) {
        const tess_span *s = &m->span[i];
        ncclResult_t r = s->sends ? nccl.ncclSend(data[i], s->bytes, ncclChar, s->peer, wire.comm, wire.stream)
                                  : nccl.ncclRecv(data[i], s->bytes, ncclChar, s->peer, wire.comm, wire.stream);
        if (r != ncclInProgress) check(m, r);
    }
    check(m, nccl.ncclGroupEnd());
    check_cuda(m, cudaEventRecord(wire.event[wire.begun++ % GROUPS], wire.stream));
    e->next = NULL;
    *wire.last = e;
    wire.last = &e->next;
}

static bool has_ended(const tess_message_arg *m)
{
    cudaError_t e = cudaEventQuery(wire.event[wire.ended % GROUPS]);
    if (e == cudaErrorNotReady) {
        ncclResult_t r;
        check(m, nccl.ncclCommGetAsyncError(wire.comm, &r));
        check(m, r);
        return false;
    }
    check_cuda(m, e);
    wire.ended++;
    return true;
}

static tess_exchange *ended(void)
{
    tess_exchange *e = wire.handed;
    if (!e || !has_ended(e->task->arg)) return NULL;
    wire.handed = e->next;
    if (!wire.handed) wire.last = &wire.handed;
    return e;
}

static void stop(void)
{
    tess_serve_stop();
    outcome(nccl.ncclCommFinalize(wire.comm), INIT_SECONDS);
    nccl.ncclCommDestroy(wire.comm);
    wire.comm = NULL;
    close_stream();
}

/* ---- the carrier ---- */

static const tess_wire groups = {.in_order = true, .most = GROUPS, .enter = enter, .begin = begin, .ended = ended};

static bool start(unsigned *node)
{
    struct {
        ncclUniqueId id;
        int64_t bad;
    } first = {0};
    if (tess_rank() == 0) first.bad = nccl.ncclGetUniqueId(&first.id) != ncclSuccess;
    tess_ranks_tell(&first, sizeof first);
    /* Whoever cannot begin keeps the others from waiting for it. */
    int64_t bad = first.bad || !open_stream();
    tess_ranks_most(&bad, 1);
    ncclResult_t r = bad ? ncclSystemError : open_comm(&first.id);
    bad = r != ncclSuccess;
    tess_ranks_most(&bad, 1);
    if (!bad) {
        *node = tess_gpu_first_node();
        return tess_serve_start(&groups);
    }
    if (wire.comm) nccl.ncclCommAbort(wire.comm);
    wire.comm = NULL;
    close_stream();
    return false;
}

const tess_carrier tess_by_nccl = {
    .name = name, .hindrance = hindrance, .start = start, .take = tess_serve_take, .stop = stop};

#else

static const char *hindrance(void)
{
#ifdef TESS_HAVE_NCCL
    return "this StarPU has no CUDA";
#else
    return "this build has no NCCL";
#endif
}
static const char *name(void)
{
    return "";
}
const tess_carrier tess_by_nccl = {.name = name, .hindrance = hindrance};
#endif
