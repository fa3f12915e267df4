/* StarPU-MPI: messages from RAM to RAM, by StarPU's own engine. message.c has acquired the tile; here each span of it
 * becomes a window, a handle of StarPU's over the tile's own bytes that lives as long as the span is under way. So
 * there is no copy, and all spans of a message are under way at once, which a tile that StarPU partitions does not
 * allow.
 *
 * Nothing comes early. Windows are sent by issend: StarPU-MPI's envelope goes ahead, and the data follow when the
 * receiver has said that it has a place for them, which it does when its tile is acquired. What isend sends before that
 * would lie in memory that no plan counts.
 *
 * Tags, of 64 bits here, are the numbers of spans and tell which way one goes: StarPU-MPI keeps what it will send and
 * what it is announced in one table, by peer and tag, and takes the one for the other where both ranks send by the same
 * tag (tests/mpi/starpu_mpi_tags.c).
 *
 * Its thread asks MPI about every request without a pause, as long as a receive is pending, with its lock held where it
 * asks for envelopes: whoever hands something over waits long for that lock, as long as both want the same core. So one
 * request stands, of a byte that this rank receives from itself: MPI_Test, which comes by mpi_calls.c, says that it has
 * not come. StarPU-MPI's thread asks for it once a round, without its lock: there it hands over what is to be carried,
 * so that it is the only one to call StarPU-MPI, and rests, as our own thread does. Where the program has such
 * functions of MPI for itself the byte comes, and whoever has a message hands it over. */
#include "runtime/messages/messages.h"
#include "runtime/messages/mpi_calls_impl.h"
#include "runtime/ranks/ranks.h"
#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef TESS_HAVE_STARPU_MPI
#include <starpu_mpi.h>

struct window {
    starpu_data_handle_t handle;
    tess_exchange *of;
    int from; /* the rank whose send ends with it; -1: it is sent */
};

static struct {
    pthread_mutex_t lock;
    tess_exchange *ready, **last; /* not handed over */
    atomic_uint under_way;        /* taken, and not ended */
    atomic_bool stops;            /* nothing is under way any more */
    MPI_Errhandler failed;        /* of our communicator */
    char byte[2];                 /* goes from the first to the second */
    _Atomic(const void *) stands; /* the request of the second */
    struct window of_byte[2];
    atomic_bool stood, came;
    /* Its thread's own: */
    bool moves; /* something has, in this round */
    unsigned news;
    double moved;
} mpi = {.lock = PTHREAD_MUTEX_INITIALIZER, .last = &mpi.ready};

static const char *name(void)
{
    static char text[32];
    snprintf(text, sizeof text, "StarPU-MPI %d.%d", STARPU_MAJOR_VERSION, STARPU_MINOR_VERSION);
    return text;
}

/* ---- its thread ---- */

static bool is_its_thread(void)
{
    static _Thread_local enum { UNKNOWN, NO, YES } is;
    char called[16] = "";
    if (is == UNKNOWN)
        is = !pthread_getname_np(pthread_self(), called, sizeof called) && !strcmp(called, "MPI") ? YES : NO;
    return is == YES;
}

/* At its end StarPU-MPI waits for all ranks, and none of ours need come there: one that fails stops alone, and says so
 * to the others afterwards. Nothing is under way then. The next start is all ranks'. */
static bool leaves_out_barrier(void)
{
    return atomic_load(&mpi.stops) && is_its_thread();
}

/* An envelope, its answer, or data. */
static void sent(MPI_Comm comm, int to)
{
    if (comm == tess_messages_comm) tess_bell_ring(to);
}

static void received(const void *to, const void *request)
{
    if (to == &mpi.byte[1]) atomic_store(&mpi.stands, request);
}

/* ---- messages ---- */

static void ended_one(tess_exchange *e)
{
    if (atomic_fetch_sub(&e->left, 1) > 1) return;
    free(e->own);
    atomic_fetch_sub(&mpi.under_way, 1);
    tess_exchange_ended(e);
}

static void ended(void *window)
{
    struct window *w = window;
    starpu_data_unregister_submit(w->handle);
    if (w->from >= 0) tess_bell_ring(w->from);
    if (w->of)
        ended_one(w->of);
    else if (w == &mpi.of_byte[1])
        atomic_store(&mpi.came, true);
}

static void open_window(struct window *w, void *data, size_t bytes)
{
    starpu_variable_data_register(&w->handle, STARPU_MAIN_RAM, (uintptr_t)data, bytes);
    starpu_data_set_sequential_consistency_flag(w->handle, 0);
}

static void hand(struct window *w, const tess_span *s, uint64_t nth, char *data, size_t bytes)
{
    const starpu_mpi_tag_t tag = 2 * (starpu_mpi_tag_t)nth + (s->sends == (s->peer > tess_rank()));
    open_window(w, data, bytes);
    if (s->sends)
        starpu_mpi_issend_detached_prio(w->handle, s->peer, tag, -(int)w->of->task->order, tess_messages_comm, ended,
                                        w);
    else
        starpu_mpi_irecv_detached(w->handle, s->peer, tag, tess_messages_comm, ended, w);
}

static void begin(tess_exchange *e)
{
    const tess_message_arg *m = e->message;
    unsigned runs = 0;
    for (unsigned i = 0; i < m->spans; i++)
        runs += (unsigned)((m->span[i].bytes + TESS_RUN_BYTES - 1) / TESS_RUN_BYTES);
    struct window *w = tess_alloc((runs + 1) * sizeof *w);
    e->own = w;
    e->left = runs + 1; /* it does not end while some are yet to be handed over */
    for (unsigned i = 0; i < m->spans; i++)
        for (size_t at = 0; at < m->span[i].bytes; at += TESS_RUN_BYTES, w++) {
            const size_t left = m->span[i].bytes - at;
            w->of = e;
            w->from = m->span[i].sends ? -1 : m->span[i].peer;
            hand(w, &m->span[i], e->nth[i], tess_exchange_data(e, &m->span[i]) + at,
                 left < TESS_RUN_BYTES ? left : TESS_RUN_BYTES);
        }
    ended_one(e);
}

static void take(tess_exchange *e)
{
    atomic_fetch_add(&mpi.under_way, 1);
    if (atomic_load(&mpi.came)) {
        begin(e);
        return;
    }
    e->next = NULL;
    pthread_mutex_lock(&mpi.lock);
    *mpi.last = e;
    mpi.last = &e->next;
    pthread_mutex_unlock(&mpi.lock);
    tess_rest_end();
}

/* A round of its thread, which holds no lock here. */
static void turn(void)
{
    enum { LONG_US = 500000 };
    pthread_mutex_lock(&mpi.lock);
    tess_exchange *ready = mpi.ready;
    mpi.ready = NULL;
    mpi.last = &mpi.ready;
    pthread_mutex_unlock(&mpi.lock);
    if (ready || mpi.moves)
        mpi.moved = tess_seconds();
    else if (atomic_load(&mpi.under_way) == 0)
        tess_bell_rest(mpi.news, LONG_US);
    else
        tess_rest(mpi.news, tess_seconds() - mpi.moved);
    mpi.moves = false;
    mpi.news = tess_rest_news();
    for (tess_exchange *e = ready, *next; e; e = next) {
        next = e->next;
        begin(e);
    }
}

/* Returns whether the request is to be tested at all. */
static bool tests(const void *request)
{
    if (request != atomic_load(&mpi.stands) || atomic_load(&mpi.stops)) return true;
    atomic_store(&mpi.stood, true);
    turn();
    return false;
}

static void tested(bool has_ended)
{
    if (has_ended && is_its_thread()) mpi.moves = true;
}

static const tess_mpi_profile profile = {tests, tested, sent, received, leaves_out_barrier};

/* ---- start and stop ---- */

/* StarPU-MPI ends the process by an assertion, behind this. */
static void failed(MPI_Comm *comm, int *code, ...)
{
    char text[MPI_MAX_ERROR_STRING] = "", where[200];
    int length;
    (void)comm;
    MPI_Error_string(*code, text, &length);
    snprintf(where, sizeof where, "StarPU-MPI: a message failed: %s", text);
    tess_die(where);
}

static bool start(unsigned lanes, unsigned *node)
{
    (void)lanes; /* it keeps to no order */
    *node = STARPU_MAIN_RAM;
    atomic_store(&mpi.stops, false);
    atomic_store(&mpi.stands, NULL);
    atomic_store(&mpi.stood, false);
    atomic_store(&mpi.came, false);
    mpi.moved = tess_seconds();
    tess_mpi_profile_set(&profile);
    TESS_ASSERT(!starpu_mpi_init_comm(NULL, NULL, 0, tess_messages_comm));
    MPI_Comm_create_errhandler(failed, &mpi.failed); /* StarPU-MPI has set another */
    MPI_Comm_set_errhandler(tess_messages_comm, mpi.failed);
    for (int k = 0; k < 2; k++) {
        mpi.of_byte[k] = (struct window){.from = -1};
        open_window(&mpi.of_byte[k], &mpi.byte[k], 1);
    }
    /* No issend: by the same tag a rank would take its own announcement for another's. */
    starpu_mpi_irecv_detached(mpi.of_byte[1].handle, tess_rank(), INT64_MAX, tess_messages_comm, ended,
                              &mpi.of_byte[1]);
    starpu_mpi_isend_detached(mpi.of_byte[0].handle, tess_rank(), INT64_MAX, tess_messages_comm, ended,
                              &mpi.of_byte[0]);
    while (!atomic_load(&mpi.stood) && !atomic_load(&mpi.came)) usleep(50);
    return true;
}

static void stop(void)
{
    atomic_store(&mpi.stops, true);
    tess_rest_end();
    starpu_mpi_shutdown();
    tess_mpi_profile_set(NULL);
    MPI_Comm_set_errhandler(tess_messages_comm, MPI_ERRORS_RETURN);
    MPI_Errhandler_free(&mpi.failed);
}

const tess_carrier tess_by_starpu_mpi = {.name = name, .start = start, .take = take, .stop = stop};

#else

static const char *hindrance(void)
{
    return "this build has no StarPU-MPI";
}
static const char *name(void)
{
    return "";
}
const tess_carrier tess_by_starpu_mpi = {.name = name, .hindrance = hindrance};
#endif
