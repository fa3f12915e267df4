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

static void forget_inputs(tess_step *s)
{
    for (int k = 0; k < s->tensors; k++) {
        free(s->fed[k]);
        s->fed[k] = NULL;
    }
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
    if (s->g) tess_step_forget_pending(s);
    leave_graph(s);
    forget_inputs(s);
}

void tess_steps_orphan(tess_graph *g)
{
    while (g->steps) {
        tess_step *s = g->steps;
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
        s->ran = false;
    }
}
