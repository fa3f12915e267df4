/* MPI: messages from RAM to RAM. It holds a large span back at its sender until the receiver has a place for it
 * (rendezvous): what a rank receives is in tiles that its plan counts, and nowhere else.
 *
 * Tags are the numbers of spans, modulo TESS_TAGS. Messages begin as their tiles come, in another order at each end;
 * spans of one tag begin in the same, since one begins when all of its direction with a smaller number / TESS_TAGS
 * have begun. Those stand before it in the list, so no circle comes of it.
 *
 * MPI promises tags to 32767 and no more, so the numbers are always taken modulo 32768: there is one path and nothing
 * to ask. Folding the names of the list would often give neighbours the same tag, since names grow by 640 a slice;
 * taking all of MPI_TAG_UB would be a second path that runs on no machine of ours. A message waits only if the one
 * 32768 before it, of the same peer and direction, has no tile yet. */
#include "runtime/messages/messages.h"
#include "runtime/ranks/ranks.h"
#include <limits.h>
#include <starpu.h>
#include <stdlib.h>
#include <string.h>

static struct {
    MPI_Request *request; /* under way */
    tess_exchange **of;   /* each one's */
    int *peer;            /* the rank whose send ends with it; -1: it is sent */
    MPI_Status *status;   /* of those that have ended */
    int *ended;
    int n, room;
    uint64_t *begun;             /* spans to each rank and, behind them, from each */
    tess_exchange *done, **last; /* ended, and not told yet */
} wire = {.last = &wire.done};

static const char *name(void)
{
    return "MPI";
}

static void lost(int peer, int code)
{
    char text[MPI_MAX_ERROR_STRING] = "", where[200];
    int length;
    MPI_Error_string(code, text, &length);
    if (peer < 0)
        snprintf(where, sizeof where, "MPI: a message failed: %s", text);
    else
        snprintf(where, sizeof where, "MPI: a message to or from rank %d failed: %s", peer, text);
    tess_die(where);
}

static void end(tess_exchange *e)
{
    e->next = NULL;
    *wire.last = e;
    wire.last = &e->next;
}

static uint64_t *begun(const tess_span *s)
{
    return &wire.begun[s->peer + (s->sends ? 0 : tess_ranks())];
}

/* May all its spans begin, each behind those of this message before it? They count as begun then. */
static bool claim(const tess_exchange *e)
{
    const tess_message_arg *m = e->message;
    bool may = true;
    unsigned n = 0;
    for (; n < m->spans && may; n++) may = (*begun(&m->span[n]))++ >= e->nth[n] / TESS_TAGS * TESS_TAGS;
    while (!may && n > 0) --*begun(&m->span[--n]);
    return may;
}

static void begin(tess_exchange *e, void *const *data)
{
    const tess_message_arg *m = e->message;
    unsigned runs = 0;
    for (unsigned i = 0; i < m->spans; i++)
        runs += (unsigned)((m->span[i].bytes + TESS_RUN_BYTES - 1) / TESS_RUN_BYTES);
    e->left = runs;
    while (wire.n + (int)runs > wire.room) {
        wire.room = wire.room ? 2 * wire.room : 256;
        wire.request = tess_realloc(wire.request, (size_t)wire.room * sizeof *wire.request);
        wire.of = tess_realloc(wire.of, (size_t)wire.room * sizeof *wire.of);
        wire.peer = tess_realloc(wire.peer, (size_t)wire.room * sizeof *wire.peer);
        wire.status = tess_realloc(wire.status, (size_t)wire.room * sizeof *wire.status);
        wire.ended = tess_realloc(wire.ended, (size_t)wire.room * sizeof *wire.ended);
    }
    for (unsigned i = 0; i < m->spans; i++)
        for (size_t at = 0; at < m->span[i].bytes; at += TESS_RUN_BYTES) {
            const tess_span *p = &m->span[i];
            const int tag = (int)(e->nth[i] % TESS_TAGS);
            int bytes = (int)(p->bytes - at < TESS_RUN_BYTES ? p->bytes - at : TESS_RUN_BYTES);
            char *run = (char *)data[i] + at;
            MPI_Request *r = &wire.request[wire.n];
            int code = p->sends ? MPI_Isend(run, bytes, MPI_BYTE, p->peer, tag, tess_messages_comm, r)
                                : MPI_Irecv(run, bytes, MPI_BYTE, p->peer, tag, tess_messages_comm, r);
            if (code != MPI_SUCCESS) lost(p->peer, code);
            wire.peer[wire.n] = p->sends ? -1 : p->peer;
            wire.of[wire.n++] = e;
            if (p->sends) tess_bell_ring(p->peer);
        }
    if (!runs) end(e);
}

static void look(void)
{
    int ended, kept = 0;
    if (!wire.n) return;
    int code = MPI_Testsome(wire.n, wire.request, &ended, wire.ended, wire.status);
    for (int i = 0; code == MPI_ERR_IN_STATUS && i < ended; i++)
        if (wire.status[i].MPI_ERROR != MPI_SUCCESS && wire.status[i].MPI_ERROR != MPI_ERR_PENDING)
            lost(wire.peer[wire.ended[i]], wire.status[i].MPI_ERROR);
    if (code != MPI_SUCCESS) lost(-1, code);
    if (ended <= 0) return;
    for (int i = 0; i < ended; i++) {
        tess_exchange *e = wire.of[wire.ended[i]];
        if (wire.peer[wire.ended[i]] >= 0) tess_bell_ring(wire.peer[wire.ended[i]]);
        if (--e->left == 0) end(e);
    }
    for (int i = 0; i < wire.n; i++) {
        if (wire.request[i] == MPI_REQUEST_NULL) continue;
        wire.request[kept] = wire.request[i];
        wire.peer[kept] = wire.peer[i];
        wire.of[kept++] = wire.of[i];
    }
    wire.n = kept;
}

static tess_exchange *ended(void)
{
    if (!wire.done) look();
    tess_exchange *e = wire.done;
    if (!e) return NULL;
    wire.done = e->next;
    if (!wire.done) wire.last = &wire.done;
    return e;
}

static const tess_wire plain = {.most = UINT_MAX, .claim = claim, .begin = begin, .ended = ended};

static bool start(unsigned lanes, unsigned *node)
{
    (void)lanes; /* it keeps to no order */
    *node = STARPU_MAIN_RAM;
    const size_t room = 2 * (size_t)tess_ranks() * sizeof *wire.begun;
    wire.begun = memset(tess_realloc(wire.begun, room), 0, room);
    return tess_serve_start(&plain);
}

static void stop(void)
{
    tess_serve_stop();
    free(wire.request);
    free(wire.of);
    free(wire.peer);
    free(wire.status);
    free(wire.ended);
    free(wire.begun);
    wire.request = NULL;
    wire.of = NULL;
    wire.peer = NULL;
    wire.status = NULL;
    wire.ended = NULL;
    wire.begun = NULL;
    wire.room = 0;
}

const tess_carrier tess_by_mpi = {.name = name, .start = start, .take = tess_serve_take, .stop = stop};
