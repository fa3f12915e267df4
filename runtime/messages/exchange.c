/* A message whose tiles are there, as carriers see it: where its spans lie, and its end. */
#include "messages_impl.h"
#include "progress_impl.h"
#include "tiles_impl.h"
#include <stdlib.h>

char *tess_exchange_data(const tess_exchange *e, const tess_span *s)
{
    return (char *)starpu_data_handle_to_pointer(e->task->use[s->use].tile->handle, e->node) + s->offset;
}

void tess_exchange_ended(tess_exchange *e)
{
    tess_lost_message(-1);
    for (unsigned i = 0; i < e->task->nuse; i++)
        starpu_data_release_on_node(e->task->use[i].tile->handle, (int)e->node);
    tess_idle_wake();
    free(e);
    tess_task_ended();
}
