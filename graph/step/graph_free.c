/* The end of a graph, for its steps and for those that share its parameters. */
#include "graph/step/step_impl.h"
#include <stdlib.h>

static void free_tiles(tess_tensor *p)
{
    for (int64_t k = 0; k < p->held->states + p->held->rests; k++) {
        struct tess_state *s = &p->held->state[k];
        if (s->weight != s->master) tess_tile_free(s->weight);
        tess_tile_free(s->master);
        for (int part = TESS_MOMENT1; part < TESS_ALL_PARTS; part++)
            tess_tile_free(tess_state_part(s, (tess_part)part));
        tess_tile_free(s->anchor);
        tess_tile_free(s->few);
        tess_tile_free(s->norm);
        if (p->held->on.sliced) tess_tile_free(s->sum);
    }
    for (int64_t k = 0; k < p->held->pieces + p->held->rest_pieces; k++)
        for (int part = 0; part < TESS_ALL_PARTS; part++) free(p->held->piece[k].wide[part].room);
    for (int64_t j = 0; j < p->cut->tiles && p->held->tile; j++) {
        tess_tile_free(p->held->tile[j].weight);
        tess_tile_free(p->held->tile[j].gradient);
    }
}

/* What it knew of the tiles of others' parameters goes with these. */
static void forget_shared(tess_graph *g)
{
    for (int k = 0; k < g->params; k++) {
        tess_tensor *p = g->param[k], *of = p->held->storage;
        if (p == of) continue;
        p->held = tess_arena_get(g->arena, sizeof *p->held);
        p->held->storage = of; /* that was it */
    }
}

/* What shares the parameters of a graph that goes can do nothing any more, nor can what shares them with that. */
static void forsake(tess_graph *g)
{
    for (tess_graph *s = g->sharers, *next; s; s = next) {
        next = s->sharer;
        tess_error(TESS_INVALID, "graph", "the graph whose parameters it shares was freed");
        tess_graph_fail(s);
        tess_steps_orphan(s);
        forsake(s);
        forget_shared(s);
        s->conf.share = NULL;
        s->sharer = NULL;
    }
    g->sharers = NULL;
}

void tess_graph_free(tess_graph *g)
{
    if (!g) return;
    forsake(g);
    tess_steps_orphan(g);
    if (g->failed) tess_check_forget();
    for (tess_graph **s = g->conf.share ? &g->conf.share->sharers : NULL; s && *s; s = &(*s)->sharer)
        if (*s == g) {
            *s = g->sharer;
            break;
        }
    for (int i = 0; i < g->params; i++)
        if (g->param[i]->held->storage == g->param[i]) free_tiles(g->param[i]);
    free(g->tensor);
    free(g->node);
    free(g->param);
    free(g->block_name);
    tess_arena_free(g->arena);
    free(g);
}
