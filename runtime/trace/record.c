/* A ring of events for each thread that has any to tell. A thread takes one at its first event and gives it back when
 * it ends; rings stay for the next thread, and for the next trace. */
#include "runtime/trace/trace.h"
#include <pthread.h>

atomic_bool tess_trace_on;
_Atomic uint64_t tess_trace_gauges[TESS_TRACE_GAUGES];

static tess_trace_ring *_Atomic rings;
static atomic_uint arrivals;
static _Atomic uint64_t lost;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static _Thread_local tess_trace_ring *mine;

static void give_back(void *ring)
{
    atomic_store(&((tess_trace_ring *)ring)->taken, false);
}

static void make_key(void)
{
    pthread_key_create(&key, give_back);
}

static void take_ring(void)
{
    bool is_free = false;
    tess_trace_ring *r = atomic_load(&rings);
    for (; r; r = atomic_load(&r->next), is_free = false)
        if (atomic_compare_exchange_strong(&r->taken, &is_free, true)) break;
    if (!r) {
        r = tess_alloc(sizeof *r);
        atomic_store(&r->taken, true);
        tess_trace_ring *first = atomic_load(&rings);
        do atomic_store(&r->next, first);
        while (!atomic_compare_exchange_weak(&rings, &first, r));
    }
    pthread_once(&once, make_key);
    pthread_setspecific(key, r);
    mine = r;
}

void tess_trace_add(const tess_trace_event *e)
{
    if (!mine) take_ring();
    const uint32_t head = atomic_load_explicit(&mine->head, memory_order_relaxed);
    if (head - atomic_load_explicit(&mine->tail, memory_order_acquire) >= TESS_TRACE_RING) {
        atomic_fetch_add_explicit(&lost, 1, memory_order_relaxed);
        return;
    }
    mine->event[head % TESS_TRACE_RING] = *e;
    atomic_store_explicit(&mine->head, head + 1, memory_order_release);
}

uint32_t tess_trace_arrival(void)
{
    const uint32_t n = atomic_fetch_add_explicit(&arrivals, 1, memory_order_relaxed) + 1;
    return n ? n : tess_trace_arrival();
}

tess_trace_ring *tess_trace_rings(void)
{
    return atomic_load(&rings);
}

uint64_t tess_trace_lost(void)
{
    return atomic_exchange(&lost, 0);
}
