/* A message whose tiles are there, as carriers see it: where its spans lie, and its end. */
#include "runtime/messages/messages.h"
#include "runtime/progress/progress.h"
#include "runtime/tiles/tiles.h"
#include "runtime/trace/trace.h"
#include <stdlib.h>
#include <string.h>

char *tess_exchange_data(const tess_exchange *e, const tess_span *s)
{
    return (char *)starpu_data_handle_to_pointer(e->task->use[s->use].tile->handle, e->node) + s->offset;
}

static void *data_of(const tess_exchange *e, unsigned use)
{
    return e->node == STARPU_MAIN_RAM ? starpu_data_handle_to_pointer(e->task->use[use].tile->handle, e->node) : NULL;
}

void tess_exchange_begins(const tess_exchange *e)
{
    for (unsigned i = 0; i < e->task->nuse && tess_digests_kept(e->task); i++)
        tess_digest_found(e->task, i, data_of(e, i));
}

static void trace(const tess_exchange *e)
{
    const tess_message_arg *m = e->message;
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
    t.kind = TESS_TRACE_SPAN;
    for (unsigned i = 0; i < m->spans && e->nth; i++) {
        t.number = (uint64_t)m->span[i].peer + 1;
        t.tag = m->span[i].tag;
        t.nth = (uint32_t)e->nth[i];
        t.received = m->span[i].sends ? 0 : m->span[i].bytes;
        tess_trace_add(&t);
    }
}

/* Where an order says how many rows come or go, which its tile has by now. */
static void count(const tess_exchange *e, tess_span *s)
{
    const tess_counted *c = s->counted;
    const int32_t *begins = starpu_data_handle_to_pointer(e->task->use[c->by].tile->handle, e->node);
    const size_t first = (size_t)begins[c->first] * c->row;
    s->bytes = (size_t)begins[c->end] * c->row - first;
    if (c->inside)
        s->offset = first;
    else if (!s->sends)
        memset(tess_exchange_data(e, s) + s->bytes, 0, tess_tile_bytes(e->task->use[s->use].tile) - s->bytes);
}

void tess_exchange_counts(tess_exchange *e)
{
    const tess_message_arg *m = e->task->arg;
    bool counted = false;
    for (unsigned i = 0; i < m->spans && !counted; i++) counted = m->span[i].counted;
    e->message = m;
    if (!counted) return;
    TESS_ASSERT(e->node == STARPU_MAIN_RAM); /* what a GPU has counted is not known here */
    tess_span *span = tess_alloc(m->spans * sizeof *span);
    memcpy(span, m->span, m->spans * sizeof *span);
    for (unsigned i = 0; i < m->spans; i++)
        if (span[i].counted) count(e, &span[i]);
    tess_message_arg *of = tess_alloc(sizeof *of);
    *of = (tess_message_arg){m->spans, m->lane, span, m->rank};
    e->message = of;
}

void tess_exchange_ended(tess_exchange *e)
{
    if (tess_traces() && e->began > 0) trace(e);
    tess_starved_message(-1);
    for (unsigned i = 0; i < e->task->nuse && tess_digests_kept(e->task); i++)
        tess_digest_left(e->task, i, data_of(e, i));
    for (unsigned i = 0; i < e->task->nuse; i++)
        starpu_data_release_on_node(e->task->use[i].tile->handle, (int)e->node);
    tess_idle_wake();
    if (e->message != e->task->arg) {
        free((void *)(uintptr_t)e->message->span);
        free((void *)(uintptr_t)e->message);
    }
    free(e->nth);
    free(e);
    tess_task_ended(NULL);
}
