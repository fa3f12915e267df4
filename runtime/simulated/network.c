/* The carrier of messages between ranks that are simulated. The two ends of a span meet here when the tiles of both are
 * there, as by MPI a large message waits for its receiver; then a thread, a courier, sends its bytes over SimGrid's
 * links from one node's host of the network to the other's, or from one to itself between ranks of a node. Nothing is
 * copied: tiles have no memory. Spans between the same ranks meet by tag, in the order of their tasks.
 *
 * Ranks have variables of their own, so what both ends need lies in the cluster: the ends that wait, and of each rank
 * where it is told of an end that another rank's courier has seen. A simulated thread is never interrupted between two
 * calls of SimGrid, so lists need no locks. */
#include "messages_impl.h"
#include "progress_impl.h"
#include "simulated_impl.h"
#include <simgrid/host.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 14 };

/* One of the two ends of a span. */
struct end {
    int from, to, tag;
    bool sends;
    size_t bytes;
    tess_exchange *of;
    struct crowd *crowd; /* that a rank sends with it; NULL: none */
    struct end *next;
};

/* What an exchange sends to ranks that are not there, in one transfer. As each of its spans has the same share of the
 * rank's link, those to ranks that are there last as long. */
struct crowd {
    int ends; /* that know it */
    bool ended;
    struct job *wait; /* those whose bytes are there already */
};

/* A rank, as others see it. */
struct tess_port {
    void (*moves)(int more);      /* so many more spans of it are under way on the links */
    void (*ended)(struct end *e); /* one of its ends has come or gone */
};

struct tess_network {
    struct end *waits[BUCKETS]; /* for their other end, in the order in which they came */
    struct tess_port *port;     /* of each rank */
    sg_host_t *host;            /* of each node, and its mirror */
};

/* A span under way, or those of an exchange with ranks that are not there; the end of these is NULL. */
struct job {
    struct end *from, *to;
    struct job *next;
};

static struct {
    struct job *first, **last;
    starpu_sem_t jobs; /* how many there are, and one for each courier that is to go */
    int queued, idle, couriers;
    struct end *ended, **last_ended; /* this rank's, that others' couriers brought */
    starpu_sem_t ends;
    starpu_sem_t gone; /* threads */
} post;

static struct tess_network *network_new(const tess_cluster *c)
{
    const bool mirrors = tess_fold_mirrors(c->fold, &tess_simulated_machine()->net);
    const int nodes = c->ranks / c->ranks_here * (mirrors ? 2 : 1);
    struct tess_network *n = tess_alloc(sizeof *n);
    memset(n, 0, sizeof *n);
    n->port = tess_alloc((size_t)c->ranks * sizeof *n->port);
    n->host = tess_alloc((size_t)nodes * sizeof *n->host);
    for (int i = 0; i < nodes; i++) {
        char name[32];
        snprintf(name, sizeof name, "node%d", i);
        n->host[i] = sg_host_by_name(name);
        TESS_ASSERT(n->host[i]);
    }
    return n;
}

static int node_of(int rank)
{
    return rank / tess_cluster_here->ranks_here;
}

/* ---- ends ---- */

/* This rank's. */
static void end_here(struct end *e)
{
    tess_exchange *of = e->of;
    free(e);
    if (atomic_fetch_sub(&of->left, 1) == 1) tess_exchange_ended(of);
}

/* Called by another rank's courier, which may not call this one's StarPU. */
static void end_told(struct end *e)
{
    e->next = NULL;
    *post.last_ended = e;
    post.last_ended = &e->next;
    starpu_sem_post(&post.ends);
}

static void *hear(void *unused)
{
    for (;;) {
        starpu_sem_wait(&post.ends);
        struct end *e = post.ended;
        if (!e) break; /* it was woken to go */
        post.ended = e->next;
        if (!post.ended) post.last_ended = &post.ended;
        end_here(e);
    }
    starpu_sem_post(&post.gone);
    return unused;
}

static void moves(int more)
{
    tess_progress_lock();
    tess_lost_more(TESS_FOR_BYTES, more);
    tess_progress_unlock();
}

/* ---- couriers ---- */

/* The port of the rank at its other end; NULL: that one is not there. */
static struct tess_port *other_of(const struct job *j)
{
    if (!j->from || !j->to) return NULL;
    return &tess_cluster_here->network->port[j->from->from == tess_cluster_rank ? j->from->to : j->from->from];
}

/* Called by a courier of one of its two ranks. */
static void finish(struct job *j)
{
    struct tess_port *other = other_of(j);
    struct crowd *crowd = j->from ? j->from->crowd : NULL;
    struct end *mine = !j->to || (j->from && j->from->from == tess_cluster_rank) ? j->from : j->to;
    if (other) other->moves(-1);
    moves(-1);
    if (crowd && --crowd->ends == 0) free(crowd);
    if (other) other->ended(mine == j->from ? j->to : j->from);
    end_here(mine);
    free(j);
}

static void carry(struct job *j)
{
    const struct tess_network *n = tess_cluster_here->network;
    const struct end *one = j->from ? j->from : j->to;
    struct tess_port *other = other_of(j);
    struct crowd *crowd = j->from ? j->from->crowd : NULL;
    TESS_ASSERT(!j->from || !j->to || j->from->bytes == j->to->bytes);
    moves(1);
    if (other) other->moves(1);
    sg_host_sendto(n->host[node_of(one->from)], n->host[node_of(one->to)], (double)one->bytes);
    if (crowd && j->to && !crowd->ended) {
        j->next = crowd->wait;
        crowd->wait = j;
        return;
    }
    if (crowd && !j->to) {
        crowd->ended = true;
        for (struct job *k = crowd->wait, *next; k; k = next) {
            next = k->next;
            finish(k);
        }
    }
    finish(j);
}

static void *run(void *unused)
{
    for (;;) {
        post.idle++;
        starpu_sem_wait(&post.jobs);
        post.idle--;
        struct job *j = post.first;
        if (!j) break; /* it was woken to go */
        post.first = j->next;
        if (!post.first) post.last = &post.first;
        post.queued--;
        carry(j);
    }
    starpu_sem_post(&post.gone);
    return unused;
}

/* There are as many couriers as spans were ever under way at a time. */
static void send(struct end *from, struct end *to)
{
    struct job *j = tess_alloc(sizeof *j);
    *j = (struct job){from, to, NULL};
    *post.last = j;
    post.last = &j->next;
    if (++post.queued > post.idle) {
        starpu_pthread_t thread;
        post.couriers++;
        starpu_pthread_create_on("courier", &thread, NULL, run, NULL, sg_host_self());
    }
    starpu_sem_post(&post.jobs);
}

/* Finds the other end, or leaves this one to be found. */
static void give(struct end *e)
{
    const size_t h = ((size_t)e->tag * 0x9e3779b97f4a7c15u) ^ ((size_t)e->from * 0xc2b2ae3d27d4eb4fu) ^
                     ((size_t)e->to * 0x165667b19e3779f9u);
    struct end **at = &tess_cluster_here->network->waits[(h >> 32) % BUCKETS];
    for (; *at; at = &(*at)->next) {
        struct end *w = *at;
        if (w->from != e->from || w->to != e->to || w->tag != e->tag || w->sends == e->sends) continue;
        *at = w->next;
        send(e->sends ? e : w, e->sends ? w : e);
        return;
    }
    *at = e;
}

static struct crowd *crowd_new(void)
{
    struct crowd *c = tess_alloc(sizeof *c);
    *c = (struct crowd){0};
    return c;
}

static struct end *end_new(tess_exchange *of, const tess_span *s, int peer, struct crowd *crowd)
{
    struct end *e = tess_alloc(sizeof *e);
    const int me = tess_cluster_rank;
    *e = (struct end){.from = s->sends ? me : peer,
                      .to = s->sends ? peer : me,
                      .tag = s->tag,
                      .sends = s->sends,
                      .bytes = s->bytes,
                      .of = of,
                      .crowd = crowd};
    if (crowd) crowd->ends++;
    return e;
}

/* A rank that is not there comes to the same place of its list when this one does. So all that goes to such ranks of
 * this node, or of others, is one transfer, and what comes from them is one. */
static void take(tess_exchange *exchange)
{
    const tess_message_arg *m = exchange->task->arg;
    const int me = tess_cluster_rank;
    struct end *absent[2][2] = {0};
    struct crowd *crowd[2] = {0};
    for (unsigned i = 0; i < m->spans; i++)
        if (m->span[i].sends && !tess_rank_is_there(m->span[i].peer)) {
            struct crowd **of = &crowd[node_of(me) != node_of(m->span[i].peer)];
            if (!*of) *of = crowd_new();
        }
    exchange->left = m->spans + 1; /* it does not end while some are yet to be given */
    for (unsigned i = 0; i < m->spans; i++) {
        const tess_span *s = &m->span[i];
        const bool far = node_of(me) != node_of(s->peer);
        struct end **with = &absent[s->sends][far];
        if (s->sends) tess_cluster_here->sent[me][far] += s->bytes;
        if (tess_rank_is_there(s->peer)) {
            give(end_new(exchange, s, s->peer, s->sends ? crowd[far] : NULL));
        } else if (!*with) {
            *with = end_new(exchange, s, tess_rank_at(s->peer), s->sends ? crowd[far] : NULL);
        } else {
            (*with)->bytes += s->bytes;
            atomic_fetch_sub(&exchange->left, 1);
        }
    }
    for (int i = 0; i < 4; i++) {
        struct end *e = absent[i / 2][i % 2];
        if (e) send(e->sends ? e : NULL, e->sends ? NULL : e);
    }
    if (atomic_fetch_sub(&exchange->left, 1) == 1) tess_exchange_ended(exchange);
}

/* ---- start and stop ---- */

static bool start(unsigned *node)
{
    tess_cluster *c = tess_cluster_here;
    *node = STARPU_MAIN_RAM;
    if (!c->network) c->network = network_new(c);
    c->network->port[tess_cluster_rank] = (struct tess_port){moves, end_told};
    post.first = NULL, post.last = &post.first;
    post.ended = NULL, post.last_ended = &post.ended;
    post.queued = post.idle = post.couriers = 0;
    starpu_sem_init(&post.jobs, 0, 0);
    starpu_sem_init(&post.ends, 0, 0);
    starpu_sem_init(&post.gone, 0, 0);
    starpu_pthread_t thread;
    starpu_pthread_create_on("messages", &thread, NULL, hear, NULL, sg_host_self());
    return true;
}

static void stop(void)
{
    for (int i = 0; i < post.couriers; i++) starpu_sem_post(&post.jobs);
    starpu_sem_post(&post.ends);
    for (int i = 0; i <= post.couriers; i++) starpu_sem_wait(&post.gone);
    starpu_sem_destroy(&post.jobs);
    starpu_sem_destroy(&post.ends);
    starpu_sem_destroy(&post.gone);
}

static const char *name(void)
{
    return "a simulated network";
}

static const char *no_gpu(void)
{
    return "no GPU is simulated";
}

/* Which of them is asked for makes no difference here. */
const tess_carrier tess_by_starpu_mpi = {.name = name, .start = start, .take = take, .stop = stop};
const tess_carrier tess_by_mpi = {.name = name, .start = start, .take = take, .stop = stop};
const tess_carrier tess_by_nccl = {.name = name, .hindrance = no_gpu};
