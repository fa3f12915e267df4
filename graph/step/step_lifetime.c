/* The steps of a graph: what they forget when it is freed, and in a new session. */
#include "graph/step/step_impl.h"
#include <stdlib.h>

/* The step is one, and its graph is there. */
tess_status tess_step_check(const tess_step *s)
{
    if (!s) return tess_error(TESS_INVALID, "step", "is NULL");
    return s->g ? TESS_OK : tess_error(TESS_INVALID, "step", "its graph was freed");
}

void tess_step_forget_pending(tess_step *s)
{
    if (s->pending) tess_graph_owner(s->g)->pending = NULL;
    s->pending = false;
}

void tess_step_forget_before(tess_step *s)
{
    for (int k = 0; k < s->tensors; k++) {
        free(s->fed_before[k]);
        s->fed_before[k] = NULL;
    }
}

static void forget_inputs(tess_step *s)
{
    tess_step_forget_before(s);
    for (int k = 0; k < s->tensors; k++) {
        free(s->fed[k]);
        s->fed[k] = NULL;
    }
}

void tess_step_drop_runs(tess_step *s)
{
    if (!tess_step_runs(s)) return;
    (void)!tess_wait();
    for (; tess_step_runs(s); s->ended++) {
        if (s->low.loss) tess_reading_wait(&s->run[s->ended % 2].loss);
        if (s->low.norm) tess_reading_wait(&s->run[s->ended % 2].norm);
    }
    (void)!tess_wait(); /* what they said */
    tess_graph_owner(s->g)->runs = NULL;
}

static void leave_graph(tess_step *s)
{
    if (!s->link) return;
    *s->link = s->next;
    if (s->next) s->next->link = s->link;
    s->link = NULL;
}

void tess_step_leave(tess_step *s)
{
    if (s->g) tess_step_drop_runs(s);
    if (s->g) tess_step_forget_pending(s);
    leave_graph(s);
    forget_inputs(s);
}

void tess_steps_orphan(tess_graph *g)
{
    while (g->steps) {
        tess_step *s = g->steps;
        tess_step_drop_runs(s);
        tess_step_forget_pending(s);
        leave_graph(s);
        s->g = NULL;
    }
}

void tess_steps_forget(tess_graph *g)
{
    for (tess_step *s = g->steps; s; s = s->next) {
        tess_step_forget_pending(s);
        forget_inputs(s);
        s->ended = s->begun;
        s->ran = false;
    }
}
