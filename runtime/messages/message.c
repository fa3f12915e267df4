/* Tiles between ranks. A message task has tiles and a list of spans, each a run of a tile's bytes that goes to another
 * rank or comes from one. All spans of a task are under way at the same time, so ranks that exchange spans with each
 * other never wait in a circle.
 *
 * A task's tiles are acquired in order with the tasks around it; then a tess_carrier takes it over, and gives it back
 * when the last span has gone or come, which releases the tiles. Which one it is, is chosen at the start, and not known
 * to anything behind it: starpu_mpi.c and mpi.c take tiles in RAM, and a task as soon as it has its tiles; nccl.c takes
 * tiles in the GPU's memory, and the tasks of a lane strictly in the order of the list, one after the other.
 *
 * No deadlock: each rank's list of tasks is in an order that all ranks agree on (graph/lower/lower.c), with both ends
 * of a message at the same place of it, so the earliest task that did not end can run. Spans between the same ranks
 * meet in the order of their tasks: each has the number among those of its direction that its other end has too. */
#include "runtime/messages/messages.h"
#include "runtime/progress/progress.h"
#include "runtime/tiles/tiles.h"
#include "runtime/trace/trace.h"
#include <stdlib.h>
#include <string.h>

static struct {
    bool runs;
    const tess_carrier *carrier;
    unsigned node; /* where it takes tiles */
    bool missed;   /* another rank could not start: nothing carries */
    unsigned lanes;
    uint64_t submitted[TESS_MESSAGE_LANES]; /* of each lane */
    uint64_t *spans;                        /* so far to each rank and, behind them, from each */
    _Atomic uint64_t sent, received;
} post = {.lanes = 1};

static tess_cost cost(const void *arg)
{
    const tess_message_arg *m = arg;
    tess_cost c = {0};
    for (unsigned i = 0; i < m->spans; i++) c.bytes += (double)m->span[i].bytes;
    return c;
}

tess_codelet tess_message = {.name = "message", .dtype = TESS_F32, .cost = cost};

/* ---- the tasks ---- */

/* Communication is cut off, and what would come is zero. That is no result where it was not asked for. */
static void pretend(tess_exchange *e)
{
    const tess_message_arg *m = e->message;
    if (post.missed)
        tess_fault_set(e->task->order,
                       "messages: were not started, since another rank could not start (tess_ranks_agree after "
                       "tess_start tells which)");
    for (unsigned i = 0; i < m->spans; i++)
        if (!m->span[i].sends) memset(tess_exchange_data(e, &m->span[i]), 0, m->span[i].bytes);
    tess_exchange_ended(e);
}

static void acquired(void *exchange)
{
    tess_exchange *e = exchange;
    if (atomic_fetch_sub(&e->left, 1) > 1) return; /* there are more tiles to come */
    tess_starved_message(1);
    tess_exchange_counts(e);
    tess_exchange_begins(e);
    if (!post.runs) {
        pretend(e);
        return;
    }
    const tess_message_arg *m = e->message;
    for (unsigned i = 0; i < m->spans; i++)
        atomic_fetch_add(m->span[i].sends ? &post.sent : &post.received, m->span[i].bytes);
    if (tess_traces()) e->began = tess_seconds();
    post.carrier->take(e);
}

static uint64_t *number(const tess_message_arg *m)
{
    uint64_t *nth = tess_alloc((m->spans + 1) * sizeof *nth);
    for (unsigned i = 0; i < m->spans; i++)
        nth[i] = post.spans[m->span[i].peer + (m->span[i].sends ? 0 : tess_ranks())]++;
    return nth;
}

void tess_message_submit(const tess_task *t)
{
    tess_exchange *e = tess_alloc(sizeof *e);
    e->task = t;
    e->lane = ((const tess_message_arg *)t->arg)->lane % post.lanes;
    e->number = post.submitted[e->lane]++;
    if (tess_traces()) e->asked = tess_seconds();
    if (post.runs) e->nth = number(t->arg);
    e->left = t->nuse;
    e->node = post.node;
    static const enum starpu_data_access_mode modes[] = {
        [TESS_R] = STARPU_R, [TESS_W] = STARPU_W, [TESS_RW] = STARPU_RW};
    for (unsigned i = 0, n = t->nuse; i < n; i++) /* e may end with the last */
        starpu_data_acquire_on_node_cb(tess_tile_handle(t->use[i].tile), (int)post.node,
                                       modes[t->use[i].mode & TESS_RW], acquired, e);
}

/* ---- which carrier ---- */

static const struct {
    const char *key;
    const tess_carrier *carrier;
} carriers[TESS_CARRIER_COUNT] = {[TESS_CARRIER_STARPU_MPI] = {"starpu_mpi", &tess_by_starpu_mpi},
                                  [TESS_CARRIER_MPI] = {"mpi", &tess_by_mpi},
                                  [TESS_CARRIER_NCCL] = {"nccl", &tess_by_nccl}};

static const char *hindrance(tess_carriers by)
{
    return carriers[by].carrier->hindrance ? carriers[by].carrier->hindrance() : NULL;
}

/* StarPU-MPI's thread takes a good part of a core: where each rank has one beside its workers, those of GPUs too,
 * that costs nothing. */
static const char *no_core(int workers)
{
    static char text[80];
    const tess_share *share = tess_share_read();
    int64_t lacks = share->crowded || share->cores <= workers ? tess_rank() + 1 : 0;
    tess_ranks_most(&lacks, 1);
    if (!lacks) return NULL;
    snprintf(text, sizeof text, "rank %d has no core beside its workers", (int)lacks - 1);
    return text;
}

/* Chooses one that carries by RAM, and says why not StarPU-MPI. */
static tess_carriers choose_by_ram(int workers, const char **none)
{
    *none = hindrance(TESS_CARRIER_STARPU_MPI);
    if (!*none) *none = no_core(workers);
    return *none ? TESS_CARRIER_MPI : TESS_CARRIER_STARPU_MPI;
}

/* Chooses where that is left open, and says why none of those that would be better. */
static tess_carriers choose(tess_carriers by, int workers, char *why, size_t room)
{
    if (room) why[0] = 0;
    if (by != TESS_CARRIER_AUTO) return by;
    const char *no_nccl = hindrance(TESS_CARRIER_NCCL), *none;
    if (!no_nccl) return TESS_CARRIER_NCCL;
    by = choose_by_ram(workers, &none);
    snprintf(why, room, "NCCL: %s%s%s", no_nccl, none ? "; StarPU-MPI: " : "", none ? none : "");
    return by;
}

/* What follows asks all ranks about the one that they have chosen. */
static tess_status check_same(tess_carriers by, unsigned lanes)
{
    int64_t most[4] = {by, -(int64_t)by, lanes, -(int64_t)lanes};
    tess_ranks_most(most, 4);
    if (most[0] != -most[1])
        return tess_error(TESS_INVALID, "carrier",
                          "ranks ask for different ones (tess_machine.carrier and TESSERA_PARALLEL_CARRIER are the "
                          "same on all)");
    if (most[2] != -most[3])
        return tess_error(TESS_INVALID, "lanes",
                          "are planned on some ranks and not on others (their grids are the same)");
    return TESS_OK;
}

static tess_status refuse(tess_carriers by, const char *why)
{
    return tess_error(TESS_INVALID, "carrier", "\"%s\" cannot carry messages: %s (auto takes what can)",
                      carriers[by].key, why);
}

static bool among_others(void)
{
    return tess_ranks() > 1 && !tess_ranks_pretended();
}

bool tess_messages_meet(bool ready)
{
    int64_t lacks = !ready;
    if (among_others()) tess_ranks_most(&lacks, 1);
    post.missed = ready && lacks;
    return !lacks;
}

tess_status tess_messages_start(tess_carriers by, unsigned lanes, int workers)
{
    if (!among_others()) return TESS_OK;
    post.lanes = lanes;
    TESS_TRY(check_same(by, post.lanes));
    const tess_carriers first = choose(by, workers, NULL, 0);
    const char *hinders = by == TESS_CARRIER_AUTO ? NULL : hindrance(by);
    if (hinders) return refuse(by, hinders);
    post.sent = post.received = 0;
    memset(post.submitted, 0, sizeof post.submitted);
    const size_t room = 2 * (size_t)tess_ranks() * sizeof *post.spans;
    post.spans = memset(tess_realloc(post.spans, room), 0, room);
    post.carrier = carriers[first].carrier;
    post.runs = post.carrier->start(post.lanes, &post.node);
    if (post.runs) return TESS_OK;
    if (by != TESS_CARRIER_AUTO) return refuse(by, "it did not start (NCCL_DEBUG=WARN says why)");
    const char *none;
    post.carrier = carriers[choose_by_ram(workers, &none)].carrier;
    if (tess_rank() == 0)
        tess_note("NCCL did not start (NCCL_DEBUG=WARN says why); messages between ranks go through RAM, by %s",
                  post.carrier->name());
    post.runs = post.carrier->start(post.lanes, &post.node);
    TESS_ASSERT(post.runs);
    return TESS_OK;
}

void tess_messages_stop(void)
{
    post.missed = false;
    if (!post.runs) return;
    post.carrier->stop();
    free(post.spans);
    post.spans = NULL;
    post.runs = false;
    post.node = STARPU_MAIN_RAM;
}

bool tess_messages_on_gpu(void)
{
    return post.node != STARPU_MAIN_RAM;
}

bool tess_messages_can_gpu(tess_carriers by)
{
    return tess_ranks() > 1 && by != TESS_CARRIER_STARPU_MPI && by != TESS_CARRIER_MPI && !hindrance(TESS_CARRIER_NCCL);
}

const char *tess_message_carrier(void)
{
    static char text[400];
    char why[300];
    if (tess_session()) return post.runs ? post.carrier->name() : "nothing";
    const tess_carriers by = choose(TESS_CARRIER_AUTO, tess_cores() + tess_gpus(), why, sizeof why);
    snprintf(text, sizeof text, why[0] ? "%s (%s)" : "%s", carriers[by].carrier->name(), why);
    return text;
}

void tess_message_traffic(uint64_t *sent, uint64_t *received)
{
    *sent = post.sent;
    *received = post.received;
}
