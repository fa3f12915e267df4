/* What bodies are given beside their buffers, what they tell of a failure, and what is known of their codelets. */
#include "runtime/gpu/gpu.h"
#include "runtime/list/list.h"
#include "runtime/tiles/tiles.h"
#include <stdarg.h>

struct tess_codelet_state *tess_codelets;

/* Tasks of a step may run while those of the next are submitted: each finds what was set for its own. */
enum { RUNS = 3 };
static tess_tasks_run run[RUNS], *now = run;

tess_tasks_run *tess_tasks_run_now(void)
{
    return now;
}

tess_tasks_run *tess_tasks_run_of(unsigned number)
{
    return run[number % RUNS].number == number ? &run[number % RUNS] : NULL;
}

static bool has_ended(const void *of)
{
    return !((const tess_tasks_run *)of)->tasks;
}

void tess_tasks_run_wait(const tess_tasks_run *r)
{
    tess_progress_lock();
    tess_progress_until(has_ended, r, "the main thread", "the end of the list", "the end of the list");
    tess_progress_unlock();
}

unsigned tess_env_set(const tess_env *e)
{
    tess_tasks_run *next = &run[(now->number + 1) % RUNS];
    tess_tasks_run_wait(next);
    if (now->end > INT32_MAX / 2) tess_tasks_wait(0);
    next->number = now->number + 1;
    next->end = tess_tasks_running() ? now->end : 0;
    next->env = *e;
    next->env.first = next->end;
    if (e->before) {
        next->before = *e->before;
        next->env.before = &next->before;
    }
    now = next;
    return now->number;
}

void tess_work_fail(const tess_work *w, const char *format, ...)
{
    char text[TESS_FAULT_TEXT];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    if (tess_launches_refuse(w, text)) return;
    tess_fault_set((w->task ? w->task->order : 0) + (w->env ? w->env->first : 0), text);
}

tess_cost tess_task_cost(const tess_task *t)
{
    tess_cost c = {0};
    if (t->cl->cost) return t->cl->cost(t->arg);
    for (unsigned i = 0; i < t->nuse; i++) c.bytes += (double)t->use[i].tile->bytes;
    return c;
}
