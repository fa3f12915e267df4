/* Tiles between ranks. A message task has one tile and a list of parts, each a run of its bytes that goes to another
 * rank or comes from one. All parts of a task are under way at the same time, so ranks that exchange the parts of a
 * tile with each other never wait in a circle.
 *
 * A task's tile is acquired in RAM, in order with the tasks around it; then the messages' thread hands its parts to MPI
 * and releases the tile when the last has gone or come. MPI holds a large part back at its sender until the receiver
 * has a place for it (rendezvous): what a rank receives is in tiles that its plan counts, and nowhere else.
 *
 * No deadlock: each rank's list of tasks is in an order that all ranks agree on (graph/lower.c), with both ends of a
 * message at the same place of it, so the earliest task that did not end can run. Parts with the same tag between the
 * same ranks meet in the order of their tasks, which the tile they share keeps. */
#include "ranks_impl.h"
#include "starpu_impl.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

/* MPI counts bytes in an int: what is longer goes in runs, which meet in order. */
#ifndef MOST
#define MOST ((size_t)1 << 30)
#endif

/* A task whose tile is in RAM, or on its way there. */
struct exchange {
    const tess_task *task;
    unsigned left; /* parts */
    struct exchange *next;
};

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool runs, stops;
    struct exchange *first, **last; /* ready, not handed to MPI */
    /* The thread's own: */
    MPI_Request *request; /* under way */
    struct exchange **of; /* each one's */
    int *ended;
    int n, room;
    uint64_t sent, received;
} post = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER, .last = &post.first};

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
    tess_tile *t = e->task->use[0].tile;
    starpu_data_release_on_node(t->handle, STARPU_MAIN_RAM);
    free(e);
    tess_flow_ended();
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

static void hand_over(struct exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    char *data = (char *)starpu_vector_get_local_ptr(e->task->use[0].tile->handle);
    e->left = 0;
    for (unsigned i = 0; i < m->spans; i++) e->left += (unsigned)((m->span[i].bytes + MOST - 1) / MOST);
    while (post.n + (int)e->left > post.room) {
        post.room = post.room ? 2 * post.room : 256;
        post.request = tess_realloc(post.request, (size_t)post.room * sizeof *post.request);
        post.of = tess_realloc(post.of, (size_t)post.room * sizeof *post.of);
        post.ended = tess_realloc(post.ended, (size_t)post.room * sizeof *post.ended);
    }
    for (unsigned i = 0; i < m->spans; i++)
        for (size_t at = 0; at < m->span[i].bytes; at += MOST) {
            const tess_span *p = &m->span[i];
            int bytes = (int)(p->bytes - at < MOST ? p->bytes - at : MOST);
            char *run = data + p->offset + at;
            MPI_Request *r = &post.request[post.n];
            int code = p->sends ? MPI_Isend(run, bytes, MPI_BYTE, p->peer, p->tag, tess_messages_comm, r)
                                : MPI_Irecv(run, bytes, MPI_BYTE, p->peer, p->tag, tess_messages_comm, r);
            if (code != MPI_SUCCESS) lost(p->peer, code);
            *(p->sends ? &post.sent : &post.received) += (uint64_t)bytes;
            post.of[post.n++] = e;
        }
    if (!e->left) finish(e);
}

/* Are any of those under way at their end? */
static bool progress(void)
{
    int ended;
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
 * spins, and would keep a core that it was given for milliseconds, in which many tiles could pass: then the core is
 * kept for a while. */
static void rest(double idle)
{
    enum { SPIN_US = 500, LEAST_US = 50, MOST_US = 1000 };
    const double us = 1e6 * idle;
    if (us < SPIN_US && !tess_flow_busy()) return;
    usleep(us / 8 > MOST_US ? MOST_US : us / 8 > LEAST_US ? (useconds_t)(us / 8) : LEAST_US);
}

static void *serve(void *unused)
{
    double moved = tess_seconds();
    for (;;) {
        pthread_mutex_lock(&post.lock);
        while (!post.first && !post.n && !post.stops) pthread_cond_wait(&post.more, &post.lock);
        struct exchange *ready = post.first;
        bool stops = post.stops;
        post.first = NULL;
        post.last = &post.first;
        pthread_mutex_unlock(&post.lock);
        if (stops && !ready && !post.n) return unused;
        if (ready && !post.n) tess_flow_messages(true);
        if (ready) moved = tess_seconds();
        for (struct exchange *e = ready, *next; e; e = next) {
            next = e->next;
            hand_over(e);
        }
        if (post.n && progress()) moved = tess_seconds();
        if (!post.n) tess_flow_messages(false);
        rest(tess_seconds() - moved);
    }
}

/* ---- the tasks ---- */

/* Communication is cut off: what would come is zero. */
static void pretend(struct exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    char *data = (char *)starpu_vector_get_local_ptr(e->task->use[0].tile->handle);
    for (unsigned i = 0; i < m->spans; i++)
        if (!m->span[i].sends) memset(data + m->span[i].offset, 0, m->span[i].bytes);
    finish(e);
}

static void acquired(void *exchange)
{
    struct exchange *e = exchange;
    if (!post.runs) {
        pretend(e);
        return;
    }
    pthread_mutex_lock(&post.lock);
    e->next = NULL;
    *post.last = e;
    post.last = &e->next;
    pthread_cond_signal(&post.more);
    pthread_mutex_unlock(&post.lock);
}

void tess_message_submit(const tess_task *t)
{
    TESS_ASSERT(t->nuse == 1);
    struct exchange *e = tess_alloc(sizeof *e);
    e->task = t;
    static const enum starpu_data_access_mode modes[] = {
        [TESS_R] = STARPU_R, [TESS_W] = STARPU_W, [TESS_RW] = STARPU_RW};
    starpu_data_acquire_on_node_cb(tess_tile_handle(t->use[0].tile), STARPU_MAIN_RAM, modes[t->use[0].mode & TESS_RW],
                                   acquired, e);
}

/* StarPU's workers spin while they have no task. A message that came must not wait until the kernel takes their turn
 * from them, least of all where ranks are more than cores. */
static void give_way(void *unused)
{
    (void)unused;
    setpriority(PRIO_PROCESS, (id_t)gettid(), 10);
}

void tess_messages_start(void)
{
    if (tess_ranks() < 2 || tess_ranks_pretended()) return;
    starpu_execute_on_each_worker(give_way, NULL, STARPU_CPU);
    MPI_Comm_set_errhandler(tess_messages_comm, MPI_ERRORS_RETURN);
    post.stops = false;
    post.sent = post.received = 0;
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
    free(post.request);
    free(post.of);
    free(post.ended);
    post.request = NULL;
    post.of = NULL;
    post.ended = NULL;
    post.room = 0;
}

void tess_message_traffic(uint64_t *sent, uint64_t *received)
{
    *sent = post.sent;
    *received = post.received;
}
