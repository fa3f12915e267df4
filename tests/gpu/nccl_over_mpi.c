/* See the header. What it keeps of the original is the order: groups on a stream run one after the other, the next does
 * not begin before the last part of the one before has ended; parts between two ranks meet in the order of the calls,
 * for there are no tags; and a send ends when its receive has begun, not before, which is stricter than the original.
 * So ranks whose groups are not in one order wait for each other, or get what was meant for another.
 *
 * And it connects as late as the original does: a communicator's first group between two ranks, in either direction, is
 * in progress until both have called their own, and only then on its stream. Nothing else may be asked of that
 * communicator meanwhile, and no event be recorded on its stream. A group is in progress once it was called, in any
 * case. */
#include "tests/gpu/nccl_over_mpi.h"
#include "runtime/runtime.h"
#ifdef TESS_EMULATED_GPU
#include "tests/gpu/emulated_cuda.h"
#endif
#include <mpi.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, PIECE = 1 << 30 };

struct part {
    void *data;
    size_t bytes;
    int peer;
    bool sends;
};
struct group {
    struct part *part;
    int parts, room;
    ncclComm_t comm;
    MPI_Request *request; /* NULL: it has not begun */
#ifdef TESS_EMULATED_GPU
    struct passing *tells; /* of each part's peer, and the own */
#endif
    struct group *next;
};
#ifndef TESS_EMULATED_GPU
struct over_mpi_stream {
    uint64_t submitted, ended; /* groups */
    bool expects;              /* one that is in progress */
    struct group *first, **last;
};
struct over_mpi_event {
    cudaStream_t stream;
    uint64_t after; /* so many groups */
};
#endif
struct ncclComm {
    MPI_Comm mpi, meet;
    int rank;
    cudaStream_t stream;     /* the one that it was used with */
    bool *connected;         /* of each rank: from it, to it */
    struct group *launching; /* in progress */
    MPI_Request *meeting;    /* of those that it connects */
    int meetings;
};

static struct group *open_group;
static uint64_t ids, comms; /* that were made, in the same order on all ranks */

/* ---- groups ---- */

#ifdef TESS_EMULATED_GPU
/* Where time alone passes ranks tell each other when they came to a group and how long it takes of their links. It
 * ends when the last of them would. */
struct passing {
    double at, seconds;
};

static void begin_passing(struct group *g, double at)
{
    size_t bytes[2] = {0};
    g->tells = tess_alloc((size_t)(g->parts + 1) * sizeof *g->tells);
    g->request = tess_alloc(2 * (size_t)(g->parts + 1) * sizeof *g->request);
    for (int i = 0; i < g->parts; i++) bytes[g->part[i].sends] += g->part[i].bytes;
    g->tells[g->parts] = (struct passing){at, emulated_dry_message(bytes[1], bytes[0])};
    for (int i = 0; i < g->parts; i++) {
        const int peer = g->part[i].peer;
        MPI_Irecv(&g->tells[i], sizeof *g->tells, MPI_BYTE, peer, 0, g->comm->mpi, &g->request[2 * i]);
        MPI_Isend(&g->tells[g->parts], sizeof *g->tells, MPI_BYTE, peer, 0, g->comm->mpi, &g->request[2 * i + 1]);
    }
}

/* Asks of a group; `until` is when its stream is free for it, and then when it ends. */
static bool has_passed(struct group *g, double *until)
{
    int all;
    struct passing last = {0};
    if (!g->request) begin_passing(g, *until > emulated_dry_now() ? *until : emulated_dry_now());
    MPI_Testall(2 * g->parts, g->request, &all, MPI_STATUSES_IGNORE);
    for (int i = 0; i <= g->parts && all; i++) {
        if (g->tells[i].at > last.at) last.at = g->tells[i].at;
        if (g->tells[i].seconds > last.seconds) last.seconds = g->tells[i].seconds;
    }
    *until = all ? last.at + last.seconds : *until;
    return all;
}
#endif

/* What will come is nothing until it has. */
static void begin(struct group *g)
{
    g->request = tess_alloc((size_t)(g->parts + 1) * sizeof *g->request);
    for (int i = 0; i < g->parts; i++) {
        const struct part *p = &g->part[i];
        TESS_ASSERT(p->bytes < PIECE);
        if (!p->sends) memset(p->data, 0xff, p->bytes);
        if (p->sends)
            MPI_Issend(p->data, (int)p->bytes, MPI_BYTE, p->peer, 0, g->comm->mpi, &g->request[i]);
        else
            MPI_Irecv(p->data, (int)p->bytes, MPI_BYTE, p->peer, 0, g->comm->mpi, &g->request[i]);
    }
}

static bool has_moved(struct group *g)
{
    int all;
    if (!g->request) begin(g);
    MPI_Testall(g->parts, g->request, &all, MPI_STATUSES_IGNORE);
    return all;
}

/* Has the group at the head of its stream ended? Then it is gone. */
static bool is_through(void *group, double *until)
{
    struct group *g = group;
#ifdef TESS_EMULATED_GPU
    if (!(emulated_dry() ? has_passed(g, until) : has_moved(g))) return false;
    free(g->tells);
#else
    (void)until;
    if (!has_moved(g)) return false;
#endif
    free(g->part);
    free(g->request);
    free(g);
    return true;
}

/* ---- CUDA ---- */

#ifdef TESS_EMULATED_GPU
static void check_on_device(const void *data, size_t bytes)
{
    if (!emulated_is_on(emulated_device(), data, bytes))
        emulated_broken("NCCL: a buffer is not on device %d", emulated_device());
}
static void expect(cudaStream_t stream)
{
    (void)stream;
}
static void put(cudaStream_t stream, struct group *g)
{
    emulated_until(stream, is_through, g);
}
#else
static void check_on_device(const void *data, size_t bytes)
{
    (void)data, (void)bytes;
}
static void expect(cudaStream_t stream)
{
    stream->expects = true;
}
static void put(cudaStream_t stream, struct group *g)
{
    *stream->last = g;
    stream->last = &g->next;
    stream->submitted++;
    stream->expects = false;
}
cudaError_t cudaSetDevice(int device)
{
    TESS_ASSERT(device == tess_rank());
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *most)
{
    *least = *most = 0;
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int priority)
{
    TESS_ASSERT(flags == cudaStreamNonBlocking && priority == 0);
    *stream = tess_alloc(sizeof **stream);
    (*stream)->last = &(*stream)->first;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream)
{
    TESS_ASSERT(!stream->first);
    free(stream);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags)
{
    TESS_ASSERT(flags == cudaEventDisableTiming);
    *event = tess_alloc(sizeof **event);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t event)
{
    free(event);
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    TESS_ASSERT(!stream->expects); /* the event would come before the group */
    *event = (struct over_mpi_event){stream, stream->submitted};
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event)
{
    cudaStream_t s = event->stream;
    for (struct group *g, *next; (g = s->first); s->first = next, s->ended++) {
        next = g->next;
        if (!is_through(g, NULL)) break;
    }
    if (!s->first) s->last = &s->first;
    return s->ended >= event->after ? cudaSuccess : cudaErrorNotReady;
}

const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "not ready";
}

bool tess_gpu_first(int *device, char *name, int room)
{
    *device = tess_rank();
    snprintf(name, (size_t)room, "0000:%02x:00.0", tess_rank());
    return true;
}
unsigned tess_gpu_first_node(void)
{
    return 0; /* RAM */
}

#endif

/* ---- NCCL ---- */

ncclResult_t ncclGetVersion(int *version)
{
    *version = 20000;
    return ncclSuccess;
}

static const uint64_t ID = 0x7e55e7a;

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    const uint64_t own = ID + ids++;
    memcpy(id, &own, sizeof own);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *c, int ranks, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    const uint64_t own = ID + comms++;
    int size;
    TESS_ASSERT(!memcmp(&id, &own, sizeof own) && config->blocking == 0);
    *c = tess_alloc(sizeof **c);
    MPI_Comm_dup(MPI_COMM_WORLD, &(*c)->mpi);
    MPI_Comm_dup(MPI_COMM_WORLD, &(*c)->meet);
    MPI_Comm_size((*c)->mpi, &size);
    MPI_Comm_rank((*c)->mpi, &(*c)->rank);
    TESS_ASSERT(size == ranks && (*c)->rank == rank);
    (*c)->connected = tess_alloc(2 * (size_t)size * sizeof(bool));
    return ncclInProgress;
}

/* Both ends of a connection say that they have come to it, by the sender's number. */
static void connect(ncclComm_t c, const struct group *g)
{
    c->meeting = tess_alloc((2 * (size_t)g->parts + 1) * sizeof *c->meeting);
    c->meetings = 0;
    for (const struct part *p = g->part; p < g->part + g->parts; p++) {
        bool *is = &c->connected[2 * p->peer + p->sends];
        const int sender = p->sends ? c->rank : p->peer;
        if (*is) continue;
        *is = true;
        MPI_Isend(NULL, 0, MPI_BYTE, p->peer, sender, c->meet, &c->meeting[c->meetings++]);
        MPI_Irecv(NULL, 0, MPI_BYTE, p->peer, sender, c->meet, &c->meeting[c->meetings++]);
    }
}

static void launch(ncclComm_t c)
{
    put(c->stream, c->launching);
    c->launching = NULL;
    free(c->meeting);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *error)
{
    int met;
    *error = c->launching ? ncclInProgress : ncclSuccess;
    if (!c->launching) return ncclSuccess;
    MPI_Testall(c->meetings, c->meeting, &met, MPI_STATUSES_IGNORE);
    if (met) launch(c);
    return ncclSuccess;
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    return c->launching ? ncclInvalidArgument : ncclInProgress;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    MPI_Comm_free(&c->mpi);
    MPI_Comm_free(&c->meet);
    free(c->connected);
    free(c);
    return ncclSuccess;
}

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    return ncclCommDestroy(c);
}

ncclResult_t ncclGroupStart(void)
{
    TESS_ASSERT(!open_group);
    open_group = tess_alloc(sizeof *open_group);
    return ncclSuccess;
}

static ncclResult_t add(void *data, size_t bytes, int peer, bool sends, ncclComm_t c, cudaStream_t stream)
{
    struct group *g = open_group;
    if (!g || g->parts == MOST) return ncclInvalidUsage;
    if (c->launching) return ncclInvalidArgument;
    check_on_device(data, bytes);
    if (g->parts == g->room) {
        g->room = g->room ? 2 * g->room : 8;
        g->part = tess_realloc(g->part, (size_t)g->room * sizeof *g->part);
    }
    g->part[g->parts++] = (struct part){data, bytes, peer, sends};
    if (!c->stream) c->stream = stream;
    TESS_ASSERT((!g->comm || g->comm == c) && c->stream == stream);
    g->comm = c;
    return ncclSuccess;
}

ncclResult_t ncclSend(const void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
    TESS_ASSERT(type == ncclChar);
    return add((void *)data, count, peer, true, c, stream);
}

ncclResult_t ncclRecv(void *data, size_t count, ncclDataType_t type, int peer, ncclComm_t c, cudaStream_t stream)
{
    TESS_ASSERT(type == ncclChar);
    return add(data, count, peer, false, c, stream);
}

ncclResult_t ncclGroupEnd(void)
{
    struct group *g = open_group;
    open_group = NULL;
    if (!g->comm) {
        free(g);
        return ncclSuccess;
    }
    g->comm->launching = g;
    expect(g->comm->stream);
    connect(g->comm, g);
    return ncclInProgress;
}

const char *ncclGetLastError(ncclComm_t c)
{
    (void)c;
    return "";
}
const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclInvalidUsage      ? "invalid usage"
           : result == ncclInvalidArgument ? "invalid argument"
                                           : "an error";
}
