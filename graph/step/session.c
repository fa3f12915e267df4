/* What has to be there before a graph runs: StarPU, the disk, the values of its parameters. In a new session nothing of
 * what was there is left. */
#include "graph/step/step_impl.h"
#include <stdlib.h>
#include <string.h>

/* In a new session nothing of what was there is left. */
static void renew(tess_graph *g, unsigned session)
{
    g->session = session;
    g->maps = 0;
    g->pending = g->runs = NULL;
    g->apart = false;
    tess_steps_forget(g);
    for (int k = 0; k < g->params; k++) {
        tess_tensor *p = g->param[k];
        if (p->held->storage != p) continue; /* another graph's, which may be drawn already */
        p->held->stale = false;
        for (int64_t i = 0; i < p->held->states + p->held->rests; i++)
            memset(p->held->state[i].begun, 0, sizeof p->held->state[i].begun);
        for (int64_t i = 0; i < p->held->pieces + p->held->rest_pieces; i++) {
            for (int part = 0; part < TESS_ALL_PARTS; part++) {
                free(p->held->piece[i].wide[part].room);
                p->held->piece[i].wide[part] = (struct tess_widened){0};
            }
        }
        for (int64_t j = 0; j < p->cut->tiles && p->held->tile; j++) p->held->tile[j].filled = false;
    }
}

tess_status tess_check_session(tess_graph *g)
{
    const unsigned session = tess_session();
    if (g->failed) {
        tess_error_restore(g->error);
        return TESS_INVALID;
    }
    if (!session) return tess_error(TESS_INVALID, "graph", "nothing runs it (tess_start comes first)");
    if (g->conf.share) TESS_TRY(tess_check_session(g->conf.share));
    if (g->on_disk && !tess_disk_there())
        return tess_error(TESS_INVALID, "graph",
                          "tiles of it are placed on disk, but tess_start was given no directory (tess_machine.disk)");
    if (g->session != session) renew(g, session);
    return TESS_OK;
}

tess_status tess_check_params(const tess_graph *g, const bool *used)
{
    for (int k = 0; k < g->params; k++) {
        const tess_tensor *p = g->param[k]->held->storage;
        if (!used[g->param[k]->id]) continue;
        for (int64_t i = 0; i < p->held->states; i++)
            if (!p->held->state[i].begun[TESS_MASTER])
                return tess_error(TESS_INVALID, p->name,
                                  "was neither drawn nor loaded (tess_graph_init draws all parameters)");
        if (p->held->stale)
            return tess_error(TESS_INVALID, p->name,
                              "was written by tess_param_map, and tess_graph_round was not called after it");
    }
    if (g->maps) return tess_error(TESS_INVALID, "step", "tess_param_unmap was not called for %d pieces", g->maps);
    return TESS_OK;
}
