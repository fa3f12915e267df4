/* The carriers of messages between simulated ranks. The send and the receive of a span meet here when the tiles of both
 * are ready, as with MPI a large message waits for its receiver; then a thread, a courier, sends the bytes over
 * SimGrid's links. Nothing is copied: tiles have no memory. Spans between the same ranks are matched by tag, in the
 * order of their tasks.
 *
 * There are two kinds. Through RAM, a message posts its spans as soon as it has its tiles, and the bytes go from one
 * node's host of the network to the other's, or from a node to itself. Between GPUs, as with NCCL, messages post their
 * spans strictly in the order of the list, one message after the other, and the bytes take the links of GPUs.
 *
 * Ranks have variables of their own, so the state that both ends need lies in the cluster: ends that are not matched
 * yet, and each rank's port, by which another rank's courier reports the end of a span. A simulated thread is never
 * interrupted between two calls of SimGrid, so lists need no locks.
 *
 * Folded ranks are absent: another rank, which does the same, stands for them (docs/simulate.md). */
#include "runtime/gpu/gpu.h"
#include "runtime/messages/messages.h"
#include "runtime/progress/progress.h"
#include "tools/simulate/runtime/simulated_impl.h"
#include <math.h>
#include <simgrid/actor.h>
#include <simgrid/exec.h>
#include <simgrid/host.h>
#include <stdlib.h>
#include <string.h>

enum { BUCKETS = 1 << 14 };

/* One of the two ends of a span, a send or a receive. */
struct end {
    int from, to, tag;
    bool sends;
    size_t bytes;
    double from_when; /* the earliest time at which an absent rank posts it */
    tess_exchange *of;
    struct crowd *crowd; /* the joint transfer to absent ranks beside it; NULL: none */
    struct end *next;
};

/* The joint transfer of a message's spans to absent ranks over links of a kind. All spans of the message share these
 * links evenly, so its spans to other ranks end no earlier. */
struct crowd {
    int ends; /* references to it */
    bool ended;
    struct job *wait; /* spans to other ranks that wait for its end */
};

/* The hosts between which a span goes. */
struct route {
    tess_over over;
    int rail; /* of the network; -1: all of them */
    sg_host_t from, to;
};

/* The differences between the carriers. */
struct kind {
    bool in_order;
    struct route (*route)(int from, int to); /* ranks */
};

/* A rank, as others see it. */
struct tess_port {
    void (*moves)(int more);      /* counts spans under way on the links */
    void (*ended)(struct end *e); /* reports that one of its ends is complete */
    int core;                     /* the core that copied last for it */
};

struct tess_network {
    struct end *waits[BUCKETS]; /* unmatched ends, in the order in which they were posted */
    struct tess_port *port;     /* [rank] */
    /* Hosts, cached since SimGrid finds them by name in all zones: [node], [node][GPU], [node][rail]. */
    sg_host_t *node, *gpu, *rail;
};

/* A span under way, or the joint spans with absent ranks; the absent end is NULL. */
struct job {
    struct end *from, *to;
    struct job *next;
};

/* The direction of a message with absent ranks alone: sends (THERE) or receives (BACK). */
enum way { BOTH_WAYS, THERE, BACK };

/* A lane of messages between GPUs, which go in order. */
struct lane {
    struct {
        uint64_t number;
        enum way way;
        double when;
        const tess_tile *tile;
    } before;             /* the message that ended last */
    tess_exchange *ready; /* messages with all their tiles that have not begun, by number */
    uint64_t next;        /* the number of the message that begins next */
    bool busy;            /* a message is under way */
};

static struct {
    const struct kind *kind;
    struct lane lane[TESS_MESSAGE_LANES];
    double makes; /* the least seconds from the end of a gather to a send of its sum on this rank */
    int gpu;      /* the index of the rank's GPU that has the messages' tiles */
    struct job *first, **last;
    starpu_sem_t jobs; /* counts jobs, and couriers that are to end */
    int queued, idle, couriers;
    struct end *ended, **last_ended; /* this rank's ends that other ranks' couriers have completed */
    starpu_sem_t ends;
    starpu_sem_t gone; /* counts threads that have ended */
} post;

static struct tess_network *network_new(const tess_cluster *c)
{
    struct tess_network *n = tess_alloc(sizeof *n);
    memset(n, 0, sizeof *n);
    n->port = tess_alloc((size_t)c->ranks * sizeof *n->port);
    const size_t nodes = 2 * (size_t)(c->ranks / c->of->ranks_here), /* each and its mirror (simulated_folded.c) */
        places = nodes * TESS_SIMULATED_GPUS;
    n->node = tess_alloc((nodes + 2 * places) * sizeof *n->node);
    memset(n->node, 0, (nodes + 2 * places) * sizeof *n->node);
    n->gpu = n->node + nodes;
    n->rail = n->gpu + places;
    return n;
}

static int node_of(int rank)
{
    return rank / tess_cluster_here->of->ranks_here;
}

/* ---- routes ---- */

/* Returns a host by the name that the writer of the platform gave it. */
static sg_host_t found(sg_host_t *at, const char *name)
{
    if (!*at) *at = sg_host_by_name(name);
    TESS_ASSERT(*at);
    return *at;
}

static sg_host_t host_of_node(int node)
{
    char name[32];
    snprintf(name, sizeof name, "node%d", node);
    return found(&tess_cluster_here->network->node[node], name);
}

static sg_host_t host_of_gpu(int node, int gpu)
{
    char name[32];
    snprintf(name, sizeof name, "node%dgpu%d", node, gpu);
    return found(&tess_cluster_here->network->gpu[node * TESS_SIMULATED_GPUS + gpu], name);
}

static sg_host_t host_in_rail(int rail, int node)
{
    char name[32];
    snprintf(name, sizeof name, "rail%dnode%d", rail, node);
    return found(&tess_cluster_here->network->rail[node * TESS_SIMULATED_GPUS + rail], name);
}

static struct route route_by_ram(int from, int to)
{
    const int a = node_of(from), b = node_of(to);
    return (struct route){
        .over = a == b ? TESS_OVER_RAM : TESS_OVER_NETWORK, .rail = -1, .from = host_of_node(a), .to = host_of_node(b)};
}

/* Returns the index in its node of the GPU that has a rank's messages. It has the same index on all ranks. */
static int gpu_of(int rank)
{
    return rank % tess_cluster_here->of->ranks_here * tess_simulated_machine()->gpus.count + post.gpu;
}

/* Between nodes, as with NCCL, bytes take the rail of the receiving GPU. */
static struct route route_by_gpu(int from, int to)
{
    const tess_simulated *m = tess_simulated_machine();
    const int a = node_of(from), b = node_of(to), i = gpu_of(from), k = gpu_of(to),
              rail = k * m->net.rails / (m->gpus.count * tess_cluster_here->of->ranks_here);
    if (a == b)
        return (struct route){.over = tess_simulated_peers(&m->gpus, i, k) ? TESS_OVER_PEER : TESS_OVER_HOST,
                              .from = host_of_gpu(a, i),
                              .to = host_of_gpu(b, k)};
    return (struct route){
        .over = TESS_OVER_NETWORK, .rail = rail, .from = host_in_rail(rail, a), .to = host_in_rail(rail, b)};
}

static void count(const struct route *r, uint64_t bytes)
{
    tess_sent *sent = &tess_cluster_here->sent[tess_cluster_rank];
    const int rails = tess_simulated_machine()->net.rails;
    sent->over[r->over] += bytes;
    for (int i = 0; i < rails && r->over == TESS_OVER_NETWORK; i++)
        if (r->rail < 0 || r->rail == i) sent->rail[i] += (double)bytes / (r->rail < 0 ? rails : 1);
}

/* ---- ends ---- */

static void begin_next(struct lane *lane);

static struct lane *lane_of(const tess_exchange *e)
{
    return &post.lane[e->lane];
}

static enum way way_of(const tess_exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    for (unsigned i = 0; i < m->spans; i++)
        if (tess_rank_is_there(m->span[i].peer) || m->span[i].sends != m->span[0].sends) return BOTH_WAYS;
    return m->span[0].sends ? THERE : BACK;
}

/* Returns whether a message goes `way` and the previous one of its lane has ended and went the other way. */
static bool answers(const tess_exchange *e, enum way way)
{
    const struct lane *lane = lane_of(e);
    return way != BOTH_WAYS && lane->before.way == (way == THERE ? BACK : THERE) &&
           lane->before.number + 1 == e->number;
}

/* Returns whether two tiles, the parts of a sum and the sum, belong to the same tensor. */
static bool of_same(const tess_tile *a, const tess_tile *b)
{
    return !strcmp(tess_tile_label(a), tess_tile_label(b));
}

/* Ends a message when all its spans are complete. */
static void message_ended(tess_exchange *e)
{
    if (post.kind->in_order) {
        struct lane *lane = lane_of(e);
        lane->before.number = e->number;
        lane->before.way = way_of(e);
        lane->before.when = tess_seconds();
        lane->before.tile = e->task->use[0].tile;
        lane->busy = false;
        begin_next(lane);
    }
    tess_exchange_ended(e);
}

/* Completes an end of this rank. */
static void end_here(struct end *e)
{
    tess_exchange *of = e->of;
    free(e);
    if (atomic_fetch_sub(&of->left, 1) == 1) message_ended(of);
}

/* Queues a completed end. Another rank's courier calls it, which may not call this rank's StarPU. */
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
        if (!e) break; /* it was woken to end */
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
    tess_starved_more(TESS_FOR_BYTES, more);
    tess_progress_unlock();
}

/* ---- couriers ---- */

/* Returns the port of the rank at the other end, or NULL if that rank is absent. */
static struct tess_port *other_of(const struct job *j)
{
    if (!j->from || !j->to) return NULL;
    return &tess_cluster_here->network->port[j->from->from == tess_cluster_rank ? j->from->to : j->from->from];
}

/* Completes both ends of a job. A courier of one of the two ranks calls it. */
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

bool tess_simulated_carries(void)
{
    return post.kind && !post.kind->in_order && tess_cluster_here->of->ranks_here > 1 &&
           tess_simulated_machine()->message_rate > 0;
}

/* A simulation does not measure it. */
double tess_message_cores(void)
{
    return 0;
}

/* Copies a message between ranks of a node on a core of the receiver: an idle one, or in turns with a task. */
static void copy(int rank, double bytes)
{
    const tess_simulated *m = tess_simulated_machine();
    struct tess_port *port = &tess_cluster_here->network->port[rank];
    sg_host_t core = NULL;
    for (int i = 0; i < m->cores && !(core && sg_host_get_load(core) <= 0); i++) {
        char name[64];
        port->core = (port->core + 1) % m->cores;
        snprintf(name, sizeof name, "StarPU-MPI%d-CPU%d", rank, port->core);
        core = sg_host_by_name(name);
    }
    const sg_exec_t work = sg_actor_exec_init(bytes / m->message_rate * sg_host_get_speed(core));
    sg_exec_set_host(work, core);
    sg_exec_start(work);
    sg_exec_wait(work);
}

static void carry(struct job *j)
{
    const struct end *one = j->from ? j->from : j->to;
    const struct route r = post.kind->route(one->from, one->to);
    struct tess_port *other = other_of(j);
    struct crowd *crowd = j->from ? j->from->crowd : NULL;
    TESS_ASSERT(!j->from || !j->to || j->from->bytes == j->to->bytes);
    const double early = one->from_when - tess_seconds();
    if (early > 0) starpu_sleep((float)early);
    moves(1);
    if (other) other->moves(1);
    if (j->to && r.over == TESS_OVER_RAM && tess_simulated_carries())
        copy(one->to, (double)one->bytes);
    else
        sg_host_sendto(r.from, r.to, (double)one->bytes);
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
        if (!j) break; /* it was woken to end */
        post.first = j->next;
        if (!post.first) post.last = &post.first;
        post.queued--;
        carry(j);
    }
    starpu_sem_post(&post.gone);
    return unused;
}

/* Gives a job to an idle courier, or to a new one. */
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

/* Matches an end with its other end, or leaves it unmatched. */
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

/* ---- messages ---- */

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

/* The spans of a message with absent ranks over links of a kind: their joint end, [sends], and their transfer. */
struct bunch {
    struct end *absent[2];
    struct crowd *crowd;
};

static struct route route_of(const tess_span *s)
{
    const int me = tess_cluster_rank;
    return s->sends ? post.kind->route(me, s->peer) : post.kind->route(s->peer, me);
}

/* Makes the joint transfers that the message's other spans have to wait for. */
static void find_crowds(const tess_message_arg *m, struct bunch *of)
{
    for (unsigned i = 0; i < m->spans; i++) {
        const tess_span *s = &m->span[i];
        if (!s->sends || tess_rank_is_there(s->peer)) continue;
        struct bunch *b = &of[route_of(s).over];
        if (b->crowd) continue;
        b->crowd = tess_alloc(sizeof *b->crowd);
        *b->crowd = (struct crowd){0};
    }
}

/* Returns the rank whose links stand for those of an absent peer. A peer on this node has its own. On another node the
 * links may carry the bytes of a present rank, so this rank's mirror is taken, whose links are as busy as this node's.
 * A tree of switches has no mirrors. */
static int place_of(int peer)
{
    const tess_cluster *c = tess_cluster_here;
    const bool mirrors = tess_fold_mirrors(c->of->fold, &tess_simulated_machine()->net);
    return node_of(peer) == node_of(tess_cluster_rank) || !mirrors ? peer : tess_cluster_rank + c->ranks;
}

/* Returns when an absent rank posts its end. It reaches the same place of its list when this rank does. But if it sends
 * back the sum of parts that were just sent to it (ZeRO-0), it needs the time that this rank needs at least for its own
 * sums. */
static double absent_from(const tess_exchange *exchange)
{
    const struct lane *lane = lane_of(exchange);
    return post.kind->in_order && answers(exchange, way_of(exchange)) && lane->before.way == THERE &&
                   exchange->task->use[0].tile == lane->before.tile
               ? lane->before.when + post.makes
               : 0;
}

static void give_absent(tess_exchange *exchange, const tess_span *s, struct bunch *b, double from_when)
{
    struct end **e = &b->absent[s->sends];
    if (*e) {
        (*e)->bytes += s->bytes;
        atomic_fetch_sub(&exchange->left, 1);
        return;
    }
    *e = end_new(exchange, s, place_of(s->peer), s->sends ? b->crowd : NULL);
    (*e)->from_when = from_when;
}

/* Posts all ends of a message. */
static void begin(tess_exchange *exchange)
{
    const tess_message_arg *m = exchange->task->arg;
    struct bunch of[TESS_OVER_COUNT] = {0};
    const double absent = absent_from(exchange);
    exchange->left = m->spans + 1; /* it does not end before all are posted */
    find_crowds(m, of);
    for (unsigned i = 0; i < m->spans; i++) {
        const tess_span *s = &m->span[i];
        const struct route r = route_of(s);
        struct bunch *b = &of[r.over];
        if (s->sends) count(&r, s->bytes);
        if (tess_rank_is_there(s->peer))
            give(end_new(exchange, s, s->peer, s->sends ? b->crowd : NULL));
        else
            give_absent(exchange, s, b, absent);
    }
    for (int i = 0; i < 2 * TESS_OVER_COUNT; i++) {
        struct end *e = of[i / 2].absent[i % 2];
        if (e) send(e->sends ? e : NULL, e->sends ? NULL : e);
    }
    if (atomic_fetch_sub(&exchange->left, 1) == 1) message_ended(exchange);
}

/* Begins the next message of a lane, if it is ready. */
static void begin_next(struct lane *lane)
{
    while (!lane->busy && lane->ready && lane->ready->number == lane->next) {
        tess_exchange *e = lane->ready;
        lane->ready = e->next;
        lane->next++;
        lane->busy = true;
        begin(e);
    }
}

static void take(tess_exchange *e)
{
    if (!post.kind->in_order) {
        begin(e);
        return;
    }
    struct lane *lane = lane_of(e);
    if (answers(e, way_of(e)) && lane->before.way == BACK && of_same(lane->before.tile, e->task->use[0].tile)) {
        const double took = tess_seconds() - lane->before.when;
        if (post.makes <= 0 || took < post.makes) post.makes = took;
    }
    tess_exchange **at = &lane->ready;
    while (*at && (*at)->number < e->number) at = &(*at)->next;
    e->next = *at;
    *at = e;
    begin_next(lane);
}

/* Returns the seconds of a message on a rank's share of its links, in both directions at the same time. */
double tess_simulated_message_seconds(const tess_message_arg *m)
{
    const tess_simulated *machine = tess_simulated_machine();
    const tess_simulated_gpus *g = &machine->gpus;
    double bytes[2][2] = {{0}}; /* [to another node][sent] */
    for (unsigned i = 0; i < m->spans; i++) {
        const tess_span *s = &m->span[i];
        bytes[node_of(s->peer) != node_of(m->rank)][s->sends] += (double)s->bytes;
    }
    const double near = g->peer_rate > 0 ? g->peer_rate
                        : g->count       ? g->host_rate / g->host_gpus
                                         : machine->copy_rate,
                 far = machine->net.rate / tess_cluster_here->of->ranks_here;
    const double within = fmax(bytes[0][0], bytes[0][1]), between = fmax(bytes[1][0], bytes[1][1]);
    return fmax(within > 0 ? g->peer_latency + within / near : 0,
                between > 0 ? machine->net.latency + between / far : 0);
}

/* ---- start and stop ---- */

static bool start(const struct kind *kind)
{
    tess_cluster *c = tess_cluster_here;
    post.kind = kind;
    memset(post.lane, 0, sizeof post.lane);
    for (int i = 0; i < TESS_MESSAGE_LANES; i++) post.lane[i].before.way = BOTH_WAYS;
    post.makes = 0;
    if (!c->network) c->network = network_new(c);
    c->network->port[tess_cluster_rank] = (struct tess_port){.moves = moves, .ended = end_told};
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

static bool start_by_ram(unsigned lanes, unsigned *node)
{
    (void)lanes; /* messages go in any order */
    static const struct kind ram = {.in_order = false, .route = route_by_ram};
    *node = STARPU_MAIN_RAM;
    return start(&ram);
}

static bool start_by_gpu(unsigned lanes, unsigned *node)
{
    (void)lanes; /* each message names its lane */
    static const struct kind gpu = {.in_order = true, .route = route_by_gpu};
    char bus[64];
    *node = tess_gpu_first_node();
    return tess_gpu_first(&post.gpu, bus, sizeof bus) && start(&gpu);
}

static const char *by_ram(void)
{
    return "a simulated network";
}

static const char *by_gpu(void)
{
    return "a simulated NCCL";
}

/* Returns why there is no such carrier, or NULL. Ranks are alike, and none shares a GPU. */
static const char *no_gpu(void)
{
    char bus[64];
    int first;
    return tess_gpu_first(&first, bus, sizeof bus) ? NULL : "there is no GPU";
}

/* StarPU-MPI and MPI are simulated alike. */
const tess_carrier tess_by_starpu_mpi = {.name = by_ram, .start = start_by_ram, .take = take, .stop = stop};
const tess_carrier tess_by_mpi = {.name = by_ram, .start = start_by_ram, .take = take, .stop = stop};
const tess_carrier tess_by_nccl = {
    .name = by_gpu, .hindrance = no_gpu, .start = start_by_gpu, .take = take, .stop = stop};
