/* Tiles between ranks. A message task has tiles and a list of spans, each a run of a tile's bytes that goes to another
 * rank or comes from one. All spans of a task are under way at the same time, so ranks that exchange spans with each
 * other never wait in a circle.
 *
 * A task's tiles are acquired in order with the tasks around it; then the messages' thread hands its spans over and
 * releases the tiles when the last has gone or come. What carries them is a tess_carrier: mpi.c takes tiles in RAM, and
 * a task as soon as it has its tiles; nccl.c takes tiles in the GPU's memory, and the tasks strictly in the order of
 * the list, one after the other.
 *
 * No deadlock: each rank's list of tasks is in an order that all ranks agree on (graph/lower.c), with both ends of a
 * message at the same place of it, so the earliest task that did not end can run. Spans between the same ranks meet in
 * the order of their tasks; with MPI those of the same tag, which the tile they share keeps. */
#include "messages_impl.h"
#include "progress_impl.h"
#include "tiles_impl.h"
#include "trace_impl.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool runs, stops;
    const tess_carrier *carrier;
    unsigned node; /* where it takes tiles */
    uint64_t submitted;
    tess_exchange *ready; /* with all tiles, not begun; by number */
    /* The thread's own: */
    uint64_t next;      /* number that one in order takes next */
    unsigned under_way; /* begun, and not ended */
    uint64_t sent, received;
} post = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static tess_cost cost(const void *arg)
{
    const tess_message_arg *m = arg;
    tess_cost c = {0};
    for (unsigned i = 0; i < m->spans; i++) c.bytes += (double)m->span[i].bytes;
    return c;
}

tess_codelet tess_message = {.name = "message", .dtype = TESS_F32, .cost = cost};

/* ---- the thread ---- */

static void trace(const tess_exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    tess_trace_event t = {.kind = TESS_TRACE_MESSAGE,
                          .number = m->spans ? (uint64_t)m->span[0].peer + 1 : 0,
                          .tag = m->spans ? m->span[0].tag : 0,
                          .begin = e->began,
                          .end = tess_seconds(),
                          .asked = e->asked,
                          .of = e->task->nuse ? e->task->use[0].tile->label : NULL,
                          .arrival = tess_trace_arrival()};
    for (unsigned i = 0; i < m->spans; i++) {
        *(m->span[i].sends ? &t.bytes : &t.received) += m->span[i].bytes;
        if (!m->span[i].sends) e->task->use[m->span[i].use].tile->came = t.arrival;
        if ((uint64_t)m->span[i].peer + 1 != t.number) t.number = 0; /* several */
        if (m->span[i].tag < t.tag) t.tag = m->span[i].tag;          /* the same on the other side */
    }
    t.name = !t.received ? "send" : !t.bytes ? "receive" : "exchange";
    tess_trace_add(&t);
}

static void finish(tess_exchange *e)
{
    if (tess_traces() && e->began > 0) trace(e);
    tess_trace_set(TESS_TRACE_SPANS, post.under_way);
    for (unsigned i = 0; i < e->task->nuse; i++)
        starpu_data_release_on_node(e->task->use[i].tile->handle, (int)post.node);
    tess_idle_wake();
    free(e);
    tess_task_ended();
}

static char *data_of(const tess_task *t, const tess_span *s)
{
    return (char *)starpu_data_handle_to_pointer(t->use[s->use].tile->handle, post.node) + s->offset;
}

static void begin(tess_exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    void **data = tess_alloc((m->spans + 1) * sizeof *data);
    for (unsigned i = 0; i < m->spans; i++) {
        data[i] = data_of(e->task, &m->span[i]);
        *(m->span[i].sends ? &post.sent : &post.received) += m->span[i].bytes;
    }
    post.next++;
    post.under_way++;
    if (tess_traces()) e->began = tess_seconds();
    tess_trace_set(TESS_TRACE_SPANS, post.under_way);
    post.carrier->begin(e, data);
    free(data);
}

/* What may begin now. Called with the lock held. */
static tess_exchange *take(void)
{
    tess_exchange *e = post.ready, **end = &post.ready;
    uint64_t next = post.next;
    unsigned room = post.carrier->most - post.under_way;
    while (*end && room-- > 0 && (!post.carrier->in_order || (*end)->number == next++)) end = &(*end)->next;
    if (end == &post.ready) return NULL;
    post.ready = *end;
    *end = NULL;
    return e;
}

/* Are any of those under way at their end? */
static bool progress(void)
{
    bool any = false;
    for (tess_exchange *e; post.under_way && (e = post.carrier->ended()); any = true) {
        post.under_way--;
        finish(e);
    }
    return any;
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
    if (post.carrier->enter) post.carrier->enter();
    for (;;) {
        pthread_mutex_lock(&post.lock);
        tess_exchange *ready;
        while (!(ready = take()) && !post.under_way && !post.stops) pthread_cond_wait(&post.more, &post.lock);
        bool stops = post.stops;
        pthread_mutex_unlock(&post.lock);
        if (stops && !ready && !post.under_way) return unused;
        if (ready && !post.under_way) tess_lost_messages(true);
        if (ready) moved = tess_seconds();
        for (tess_exchange *e = ready, *next; e; e = next) {
            next = e->next;
            begin(e);
        }
        if (progress()) moved = tess_seconds();
        if (!post.under_way) tess_lost_messages(false);
        rest(tess_seconds() - moved);
    }
}

/* ---- the tasks ---- */

/* Communication is cut off: what would come is zero. */
static void pretend(tess_exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    for (unsigned i = 0; i < m->spans; i++)
        if (!m->span[i].sends) memset(data_of(e->task, &m->span[i]), 0, m->span[i].bytes);
    finish(e);
}

static void acquired(void *exchange)
{
    tess_exchange *e = exchange, **at = &post.ready;
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
    tess_exchange *e = tess_alloc(sizeof *e);
    e->task = t;
    e->number = post.submitted++;
    if (tess_traces()) e->asked = tess_seconds();
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
    post.stops = false;
    post.sent = post.received = post.submitted = post.next = 0;
    post.carrier = tess_nccl_start(by_mpi, &post.node);
    if (!post.carrier) post.carrier = &tess_by_mpi;
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
    post.carrier->stop();
    post.node = STARPU_MAIN_RAM;
}

bool tess_messages_on_gpu(void)
{
    return post.node != STARPU_MAIN_RAM;
}

bool tess_messages_can_gpu(void)
{
    return tess_ranks() > 1 && !tess_nccl_hindrance();
}

const char *tess_message_carrier(void)
{
    static char text[240];
    if (post.runs) return post.carrier->name();
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
