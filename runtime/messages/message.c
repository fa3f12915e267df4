/* Tiles between ranks. A message task has tiles and a list of parts, each a run of a tile's bytes that goes to another
 * rank or comes from one. All parts of a task are under way at the same time, so ranks that exchange parts with each
 * other never wait in a circle.
 *
 * A task's tiles are acquired in order with the tasks around it; then the messages' thread hands its parts over and
 * releases the tiles when the last has gone or come. There are two carriers. MPI takes tiles in RAM, and a task as soon
 * as it has its tiles. It holds a large part back at its sender until the receiver has a place for it (rendezvous):
 * what a rank receives is in tiles that its plan counts, and nowhere else. NCCL (nccl.c) takes tiles in the GPU's
 * memory, and the tasks strictly in the order of the list, one after the other.
 *
 * No deadlock: each rank's list of tasks is in an order that all ranks agree on (graph/lower.c), with both ends of a
 * message at the same place of it, so the earliest task that did not end can run. Parts between the same ranks meet in
 * the order of their tasks; with MPI those of the same tag, which the tile they share keeps. */
#include "messages_impl.h"
#include "progress_impl.h"
#include "ranks_impl.h"
#include "tiles_impl.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* MPI counts bytes in an int: what is longer goes in runs, which meet in order. */
#ifndef MOST
#define MOST ((size_t)1 << 30)
#endif

/* A task whose tiles are where the carrier takes them, or on their way there. */
struct exchange {
    const tess_task *task;
    uint64_t number;  /* in the order of the list */
    atomic_uint left; /* tiles that are not there; then parts under way */
    struct exchange *next;
};

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool runs, stops;
    bool nccl;     /* carries; else MPI does */
    unsigned node; /* where it takes tiles */
    uint64_t submitted;
    struct exchange *ready; /* with all tiles, not handed over; by number */
    /* The thread's own: */
    uint64_t next;           /* number that NCCL takes next */
    struct exchange *handed; /* to NCCL, in order, */
    struct exchange **last;  /* and their end */
    unsigned groups;
    MPI_Request *request; /* under way */
    struct exchange **of; /* each one's */
    int *ended;
    int n, room;
    uint64_t sent, received;
} post = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .last = &post.handed};

static tess_cost cost(const void *arg)
{
    const tess_message_arg *m = arg;
    tess_cost c = {0};
    for (unsigned i = 0; i < m->spans; i++) c.bytes += (double)m->span[i].bytes;
    return c;
}

tess_codelet tess_message = {.name = "message", .dtype = TESS_F32, .cost = cost};

/* ---- the thread ---- */

static void finish(struct exchange *e)
{
    for (unsigned i = 0; i < e->task->nuse; i++)
        starpu_data_release_on_node(e->task->use[i].tile->handle, (int)post.node);
    tess_idle_wake();
    free(e);
    tess_task_ended();
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

static char *data_of(const tess_task *t, const tess_span *s)
{
    return (char *)starpu_data_handle_to_pointer(t->use[s->use].tile->handle, post.node) + s->offset;
}

static void hand_to_mpi(struct exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    unsigned runs = 0;
    for (unsigned i = 0; i < m->spans; i++) runs += (unsigned)((m->span[i].bytes + MOST - 1) / MOST);
    e->left = runs;
    while (post.n + (int)runs > post.room) {
        post.room = post.room ? 2 * post.room : 256;
        post.request = tess_realloc(post.request, (size_t)post.room * sizeof *post.request);
        post.of = tess_realloc(post.of, (size_t)post.room * sizeof *post.of);
        post.ended = tess_realloc(post.ended, (size_t)post.room * sizeof *post.ended);
    }
    for (unsigned i = 0; i < m->spans; i++)
        for (size_t at = 0; at < m->span[i].bytes; at += MOST) {
            const tess_span *p = &m->span[i];
            int bytes = (int)(p->bytes - at < MOST ? p->bytes - at : MOST);
            char *run = data_of(e->task, p) + at;
            MPI_Request *r = &post.request[post.n];
            int code = p->sends ? MPI_Isend(run, bytes, MPI_BYTE, p->peer, p->tag, tess_messages_comm, r)
                                : MPI_Irecv(run, bytes, MPI_BYTE, p->peer, p->tag, tess_messages_comm, r);
            if (code != MPI_SUCCESS) lost(p->peer, code);
            *(p->sends ? &post.sent : &post.received) += (uint64_t)bytes;
            post.of[post.n++] = e;
        }
    if (!runs) finish(e);
}

static void hand_to_nccl(struct exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    void **data = tess_alloc((m->spans + 1) * sizeof *data);
    for (unsigned i = 0; i < m->spans; i++) {
        data[i] = data_of(e->task, &m->span[i]);
        *(m->span[i].sends ? &post.sent : &post.received) += m->span[i].bytes;
    }
    tess_nccl_begin(m, data);
    free(data);
    post.next++;
    post.groups++;
    e->next = NULL;
    *post.last = e;
    post.last = &e->next;
}

/* What may be handed over now. Called with the lock held. */
static struct exchange *take(void)
{
    struct exchange *e = post.ready, **end = &post.ready;
    uint64_t next = post.next;
    unsigned room = TESS_NCCL_GROUPS - post.groups;
    while (*end && (!post.nccl || ((*end)->number == next++ && room-- > 0))) end = &(*end)->next;
    if (end == &post.ready) return NULL;
    post.ready = *end;
    *end = NULL;
    return e;
}

static bool nccl_progress(void)
{
    bool any = false;
    while (post.groups && tess_nccl_ended(post.handed->task->arg)) {
        struct exchange *e = post.handed;
        post.handed = e->next;
        if (!post.handed) post.last = &post.handed;
        post.groups--;
        finish(e);
        any = true;
    }
    return any;
}

/* Are any of those under way at their end? */
static bool progress(void)
{
    int ended;
    if (post.nccl) return nccl_progress();
    int code = MPI_Testsome(post.n, post.request, &ended, post.ended, MPI_STATUSES_IGNORE);
    if (code != MPI_SUCCESS) lost(-1, code);
    if (ended <= 0) return false;
    for (int i = 0; i < ended; i++) {
        struct exchange *e = post.of[post.ended[i]];
        if (--e->left == 0) finish(e);
    }
    int kept = 0;
    for (int i = 0; i < post.n; i++) {
        if (post.request[i] == MPI_REQUEST_NULL) continue;
        post.request[kept] = post.request[i];
        post.of[kept++] = post.of[i];
    }
    post.n = kept;
    return true;
}

/* What to do when nothing has moved for so long. While all workers have work, a look costs one of them the core and its
 * caches: looks become rare, and what comes is found late by a small part of what it was waited for. One that has none
 * sleeps, and it may be a message that it waits for: then looks go on for a while without a pause. */
static void rest(double idle)
{
    enum { SPIN_US = 500, LEAST_US = 50, MOST_US = 1000 };
    const double us = 1e6 * idle;
    if (us < SPIN_US && !tess_lost_busy()) return;
    usleep(us / 8 > MOST_US ? MOST_US : us / 8 > LEAST_US ? (useconds_t)(us / 8) : LEAST_US);
}

static void *serve(void *unused)
{
    double moved = tess_seconds();
    if (post.nccl) tess_nccl_enter();
    for (;;) {
        pthread_mutex_lock(&post.lock);
        struct exchange *ready;
        while (!(ready = take()) && !post.n && !post.groups && !post.stops) pthread_cond_wait(&post.more, &post.lock);
        bool stops = post.stops;
        pthread_mutex_unlock(&post.lock);
        const bool idle = !post.n && !post.groups;
        if (stops && !ready && idle) return unused;
        if (ready && idle) tess_lost_messages(true);
        if (ready) moved = tess_seconds();
        for (struct exchange *e = ready, *next; e; e = next) {
            next = e->next;
            (post.nccl ? hand_to_nccl : hand_to_mpi)(e);
        }
        if ((post.n || post.groups) && progress()) moved = tess_seconds();
        if (!post.n && !post.groups) tess_lost_messages(false);
        rest(tess_seconds() - moved);
    }
}

/* ---- the tasks ---- */

/* Communication is cut off: what would come is zero. */
static void pretend(struct exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    for (unsigned i = 0; i < m->spans; i++)
        if (!m->span[i].sends) memset(data_of(e->task, &m->span[i]), 0, m->span[i].bytes);
    finish(e);
}

static void acquired(void *exchange)
{
    struct exchange *e = exchange, **at = &post.ready;
    if (atomic_fetch_sub(&e->left, 1) > 1) return; /* there are more tiles to come */
    if (!post.runs) {
        pretend(e);
        return;
    }
    pthread_mutex_lock(&post.lock);
    while (*at && (*at)->number < e->number) at = &(*at)->next;
    e->next = *at;
    *at = e;
    pthread_mutex_unlock(&post.lock);
    pthread_cond_signal(&post.more);
}

void tess_message_submit(const tess_task *t)
{
    struct exchange *e = tess_alloc(sizeof *e);
    e->task = t;
    e->number = post.submitted++;
    e->left = t->nuse;
    static const enum starpu_data_access_mode modes[] = {
        [TESS_R] = STARPU_R, [TESS_W] = STARPU_W, [TESS_RW] = STARPU_RW};
    for (unsigned i = 0, n = t->nuse; i < n; i++) /* e may end with the last */
        starpu_data_acquire_on_node_cb(tess_tile_handle(t->use[i].tile), (int)post.node,
                                       modes[t->use[i].mode & TESS_RW], acquired, e);
}

void tess_messages_start(bool by_mpi)
{
    if (tess_ranks() < 2 || tess_ranks_pretended()) return;
    MPI_Comm_set_errhandler(tess_messages_comm, MPI_ERRORS_RETURN);
    post.stops = false;
    post.sent = post.received = post.submitted = post.next = 0;
    post.nccl = tess_nccl_start(by_mpi, &post.node);
    post.runs = !pthread_create(&post.thread, NULL, serve, NULL);
    TESS_ASSERT(post.runs);
}

void tess_messages_stop(void)
{
    if (!post.runs) return;
    pthread_mutex_lock(&post.lock);
    post.stops = true;
    pthread_cond_signal(&post.more);
    pthread_mutex_unlock(&post.lock);
    pthread_join(post.thread, NULL);
    post.runs = false;
    if (post.nccl) tess_nccl_stop();
    post.nccl = false;
    post.node = STARPU_MAIN_RAM;
    free(post.request);
    free(post.of);
    free(post.ended);
    post.request = NULL;
    post.of = NULL;
    post.ended = NULL;
    post.room = 0;
}

bool tess_messages_on_gpu(void)
{
    return post.nccl && post.node != STARPU_MAIN_RAM;
}

bool tess_messages_can_gpu(void)
{
    return tess_ranks() > 1 && !tess_nccl_hindrance();
}

const char *tess_message_carrier(void)
{
    static char text[240];
    if (post.runs) return post.nccl ? tess_nccl_name() : "MPI";
    const char *hindrance = tess_nccl_hindrance();
    if (!hindrance) return tess_nccl_name();
    snprintf(text, sizeof text, "MPI (%s)", hindrance);
    return text;
}

void tess_message_traffic(uint64_t *sent, uint64_t *received)
{
    *sent = post.sent;
    *received = post.received;
}
