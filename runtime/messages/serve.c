/* The thread of carriers that have none of their own: it begins what has its tiles, and looks what has ended. One that
 * carries in lanes begins the messages of each in the order of the list, one after the other; another begins them as
 * soon as they have their tiles, and all are in one lane. */
#include "runtime/messages/messages.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static struct {
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    bool runs, stops;
    const tess_wire *wire;
    tess_exchange *ready[TESS_MESSAGE_LANES]; /* with all tiles, not begun; by number */
    /* The thread's own: */
    uint64_t next[TESS_MESSAGE_LANES];      /* number that a lane in order takes next */
    unsigned under_way[TESS_MESSAGE_LANES]; /* begun, and not ended */
    unsigned all_under_way;
} serve = {.lock = PTHREAD_MUTEX_INITIALIZER, .more = PTHREAD_COND_INITIALIZER};

static unsigned lane_of(const tess_exchange *e)
{
    return serve.wire->lanes ? e->lane : 0;
}

static void begin(tess_exchange *e)
{
    const tess_message_arg *m = e->message;
    TESS_FREED void **data = tess_alloc((m->spans + 1) * sizeof *data);
    for (unsigned i = 0; i < m->spans; i++) data[i] = tess_exchange_data(e, &m->span[i]);
    serve.next[lane_of(e)]++;
    serve.under_way[lane_of(e)]++;
    serve.all_under_way++;
    serve.wire->begin(e, data);
}

/* Moves what may begin of a lane to the end of a list, and returns its new end. */
static tess_exchange **take_of(unsigned lane, tess_exchange **to)
{
    const tess_wire *w = serve.wire;
    uint64_t next = serve.next[lane];
    unsigned room = w->most - serve.under_way[lane];
    for (tess_exchange **at = &serve.ready[lane], *e; (e = *at) && room > 0;) {
        if (w->lanes && e->number != next) break;
        if (w->claim && !w->claim(e)) {
            at = &e->next;
            continue;
        }
        *at = e->next;
        e->next = NULL;
        *to = e;
        to = &e->next;
        next++;
        room--;
    }
    return to;
}

/* What may begin now. Called with the lock held. */
static tess_exchange *take(void)
{
    tess_exchange *all = NULL, **end = &all;
    for (unsigned i = 0; i < (serve.wire->lanes ? serve.wire->lanes : 1); i++) end = take_of(i, end);
    return all;
}

/* Are any of those under way at their end? */
static bool progress(void)
{
    bool any = false;
    for (tess_exchange *e; serve.all_under_way && (e = serve.wire->ended()); any = true) {
        serve.under_way[lane_of(e)]--;
        serve.all_under_way--;
        tess_exchange_ended(e);
    }
    return any;
}

static void *run(void *unused)
{
    double moved = tess_seconds();
    if (serve.wire->enter) serve.wire->enter();
    for (;;) {
        const unsigned news = tess_rest_news();
        pthread_mutex_lock(&serve.lock);
        tess_exchange *ready;
        while (!(ready = take()) && !serve.all_under_way && !serve.stops) pthread_cond_wait(&serve.more, &serve.lock);
        bool stops = serve.stops;
        pthread_mutex_unlock(&serve.lock);
        if (stops && !ready && !serve.all_under_way) return unused;
        if (ready) moved = tess_seconds();
        for (tess_exchange *e = ready, *next; e; e = next) {
            next = e->next;
            begin(e);
        }
        if (progress()) moved = tess_seconds();
        if (serve.all_under_way) tess_rest(news, tess_seconds() - moved);
    }
}

void tess_serve_take(tess_exchange *e)
{
    tess_exchange **at = &serve.ready[lane_of(e)];
    pthread_mutex_lock(&serve.lock);
    while (*at && (*at)->number < e->number) at = &(*at)->next;
    e->next = *at;
    *at = e;
    pthread_mutex_unlock(&serve.lock);
    pthread_cond_signal(&serve.more);
    tess_rest_end();
}

double tess_message_cores(void)
{
    clockid_t clock;
    struct timespec t;
    if (!serve.runs || pthread_getcpuclockid(serve.thread, &clock) || clock_gettime(clock, &t)) return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

bool tess_serve_start(const tess_wire *wire)
{
    serve.stops = false;
    memset(serve.next, 0, sizeof serve.next);
    serve.wire = wire;
    return serve.runs = !pthread_create(&serve.thread, NULL, run, NULL);
}

void tess_serve_stop(void)
{
    pthread_mutex_lock(&serve.lock);
    serve.stops = true;
    pthread_cond_signal(&serve.more);
    pthread_mutex_unlock(&serve.lock);
    tess_rest_end();
    pthread_join(serve.thread, NULL);
    serve.runs = false;
}
