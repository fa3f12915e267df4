/* What bodies are given beside their buffers, what they tell of a failure, and what is known of their codelets. */
#include "runtime/list/list.h"
#include "runtime/tiles/tiles.h"
#include <stdarg.h>

struct tess_codelet_state *tess_codelets;
static tess_env env;

int64_t tess_env_step(void)
{
    return env.step;
}

const tess_env *tess_env_now(void)
{
    return &env;
}

void tess_env_set(const tess_env *e)
{
    env = *e;
}

void tess_work_fail(const tess_work *w, const char *format, ...)
{
    char text[TESS_FAULT_TEXT];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    tess_fault_set(w->task ? w->task->order : 0, text);
}

tess_cost tess_task_cost(const tess_task *t)
{
    tess_cost c = {0};
    if (t->cl->cost) return t->cl->cost(t->arg);
    for (unsigned i = 0; i < t->nuse; i++) c.bytes += (double)t->use[i].tile->bytes;
    return c;
}
