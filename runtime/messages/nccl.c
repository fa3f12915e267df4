/* NCCL: messages from GPU to GPU, by serve.c's thread. Calls of it are in this file alone, and the library is looked
 * for when it is wanted: a program that finds none runs, and MPI carries.
 *
 * All ranks have a communicator a lane, and each a stream for it. A message is a group of sends and receives on it, and
 * an event behind them. So messages of a lane run one after the other, in the order they begin, which must be the same
 * for all: NCCL has no tags, and a group holds up those behind it until its peers have come to theirs.
 *
 * Where there are several lanes, a lane begins a group when the one before has ended. Streams share the GPU's queues,
 * and a group that stands in one behind another of its lane would hold up what other lanes put there, for which the
 * other's peers may wait.
 *
 * Communicators do not block: what takes its time is asked about, so no call waits for a rank that died, and none for a
 * peer. A group that connects two ranks for the first time gets to its stream when both have called their own, which
 * may be long: one lane's must not hold up another's. */
#include "runtime/gpu/gpu.h"
#include "runtime/messages/messages.h"
#include <dlfcn.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined TESS_NCCL_OVER_MPI || defined TESS_EMULATED_GPU
#include "tests/gpu/nccl_over_mpi.h"
#elif defined TESS_HAVE_NCCL && defined STARPU_USE_CUDA
#include <cuda_runtime_api.h>
#include <nccl.h>
#define LIBRARY "libnccl.so.2"
#endif

#ifdef LIBRARY

enum {
    GROUPS = 64,      /* messages that began and did not end, at most */
    FEW_BLOCKS = 4,   /* of a GPU, that a lane of several may hold while its messages wait, or, */
    SOME_BLOCKS = 16, /* where they wait for their section alone, and may have the links within a machine to fill */
};
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

struct lane {
    ncclComm_t comm;
    cudaStream_t stream;
    cudaEvent_t event[GROUPS];
    uint64_t launched, ended;      /* groups */
    const tess_exchange *launches; /* the one that may not be on the stream yet */
    tess_exchange *handed, **last; /* to NCCL, in order, and their end */
};

static struct {
    int device;
    unsigned lanes;
    struct lane lane[TESS_MESSAGE_LANES];
} wire;

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
static ncclResult_t outcome(ncclComm_t comm, ncclResult_t r, double seconds)
{
    const double start = tess_seconds();
    while (r == ncclInProgress && tess_seconds() - start < seconds) {
        ncclResult_t asked = nccl.ncclCommGetAsyncError(comm, &r);
        if (asked != ncclSuccess) r = asked;
        if (r == ncclInProgress) usleep(10);
    }
    return r;
}

static bool open_stream(struct lane *l)
{
    int least, most;
    bool good = cudaSetDevice(wire.device) == cudaSuccess &&
                cudaDeviceGetStreamPriorityRange(&least, &most) == cudaSuccess &&
                cudaStreamCreateWithPriority(&l->stream, cudaStreamNonBlocking, most) == cudaSuccess;
    for (int i = 0; i < GROUPS && good; i++)
        good = cudaEventCreateWithFlags(&l->event[i], cudaEventDisableTiming) == cudaSuccess;
    return good;
}

static ncclResult_t open_comm(struct lane *l, const ncclUniqueId *id)
{
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
#if NCCL_VERSION_CODE >= 21700
    if (l != wire.lane) config.maxCTAs = l < wire.lane + TESS_LANES_OF_SECTION ? SOME_BLOCKS : FEW_BLOCKS;
#endif
    const ncclResult_t r = nccl.ncclCommInitRankConfig(&l->comm, tess_ranks(), *id, tess_rank(), &config);
    return outcome(l->comm, r, INIT_SECONDS);
}

static void close_lane(struct lane *l)
{
    for (int i = 0; i < GROUPS; i++)
        if (l->event[i]) cudaEventDestroy(l->event[i]);
    if (l->stream) cudaStreamDestroy(l->stream);
    *l = (struct lane){0};
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

/* Ends the run where a call failed; one that is in progress did not. */
static void check(const tess_message_arg *m, ncclComm_t comm, ncclResult_t r)
{
    if (r == ncclSuccess || r == ncclInProgress) return;
    const char *more = nccl.ncclGetLastError(comm);
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

/* A communicator takes nothing while a group of it is in progress. */
static bool claim(const tess_exchange *e)
{
    struct lane *l = &wire.lane[e->lane];
    if (l->launches) return false;
    l->launches = e;
    return true;
}

static void begin(tess_exchange *e, void *const *data)
{
    struct lane *l = &wire.lane[e->lane];
    const tess_message_arg *m = e->message;
    check(m, l->comm, nccl.ncclGroupStart());
    for (unsigned i = 0; i < m->spans; i++) {
        const tess_span *s = &m->span[i];
        check(m, l->comm,
              s->sends ? nccl.ncclSend(data[i], s->bytes, ncclChar, s->peer, l->comm, l->stream)
                       : nccl.ncclRecv(data[i], s->bytes, ncclChar, s->peer, l->comm, l->stream));
    }
    check(m, l->comm, nccl.ncclGroupEnd());
    e->next = NULL;
    *l->last = e;
    l->last = &e->next;
}

static ncclResult_t state(const struct lane *l, const tess_message_arg *m)
{
    ncclResult_t r;
    check(m, l->comm, nccl.ncclCommGetAsyncError(l->comm, &r));
    check(m, l->comm, r);
    return r;
}

/* Puts an event behind the group that was in progress, once it is on the stream. */
static void see_launched(struct lane *l)
{
    const tess_message_arg *m = l->launches->message;
    if (state(l, m) == ncclInProgress) return;
    check_cuda(m, cudaEventRecord(l->event[l->launched++ % GROUPS], l->stream));
    l->launches = NULL;
}

static bool has_ended(struct lane *l)
{
    if (l->launches) see_launched(l);
    if (l->ended == l->launched) return false;
    const tess_message_arg *m = l->handed->message;
    cudaError_t e = cudaEventQuery(l->event[l->ended % GROUPS]);
    if (e == cudaErrorNotReady) {
        state(l, m);
        return false;
    }
    check_cuda(m, e);
    l->ended++;
    return true;
}

static tess_exchange *ended(void)
{
    for (struct lane *l = wire.lane; l < wire.lane + wire.lanes; l++) {
        if (!has_ended(l)) continue;
        tess_exchange *e = l->handed;
        l->handed = e->next;
        if (!l->handed) l->last = &l->handed;
        return e;
    }
    return NULL;
}

static void stop(void)
{
    tess_serve_stop();
    for (struct lane *l = wire.lane; l < wire.lane + wire.lanes; l++) {
        outcome(l->comm, nccl.ncclCommFinalize(l->comm), INIT_SECONDS);
        nccl.ncclCommDestroy(l->comm);
        close_lane(l);
    }
}

/* ---- the carrier ---- */

static bool start(unsigned lanes, unsigned *node)
{
    static tess_wire groups;
    struct {
        ncclUniqueId id[TESS_MESSAGE_LANES];
        int64_t bad;
    } first = {0};
    wire.lanes = lanes;
    for (unsigned i = 0; i < lanes && tess_rank() == 0; i++)
        first.bad |= nccl.ncclGetUniqueId(&first.id[i]) != ncclSuccess;
    tess_ranks_tell(&first, sizeof first);
    /* Whoever cannot begin keeps the others from waiting for it. */
    int64_t bad = first.bad;
    for (unsigned i = 0; i < lanes; i++) {
        wire.lane[i].last = &wire.lane[i].handed;
        bad |= !open_stream(&wire.lane[i]);
    }
    tess_ranks_most(&bad, 1);
    for (unsigned i = 0; i < lanes && !bad; i++) {
        bad = open_comm(&wire.lane[i], &first.id[i]) != ncclSuccess;
        tess_ranks_most(&bad, 1);
    }
    if (!bad) {
        *node = tess_gpu_first_node();
        groups = (tess_wire){.lanes = lanes,
                             .most = lanes > 1 ? 1 : GROUPS,
                             .enter = enter,
                             .claim = claim,
                             .begin = begin,
                             .ended = ended};
        return tess_serve_start(&groups);
    }
    for (unsigned i = 0; i < lanes; i++) {
        if (wire.lane[i].comm) nccl.ncclCommAbort(wire.lane[i].comm);
        close_lane(&wire.lane[i]);
    }
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
