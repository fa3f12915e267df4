/* Parameters at run time: drawing them, reaching one tile of them or of their optimizer state from outside. */
#include "graph_impl.h"
#include <string.h>

static tess_status submit(tess_graph *g, tess_codelet *cl, tess_count_arg arg, tess_use a, tess_use b)
{
    tess_task *t = tess_arena_get(g->arena, sizeof *t);
    tess_use *use = tess_arena_get(g->arena, 2 * sizeof *use);
    tess_count_arg *kept = tess_arena_get(g->arena, sizeof *kept);
    *kept = arg;
    use[0] = a;
    use[1] = b;
    *t = (tess_task){.cl = cl, .arg = kept, .use = use, .nuse = b.tile ? 2 : 1};
    return tess_submit(t);
}

static int64_t floats(const tess_tile *t)
{
    return (int64_t)(tess_tile_bytes(t) / sizeof(float));
}

tess_status tess_param_fill(tess_graph *g, tess_tile *t, float value)
{
    return submit(g, &tess_fill[TESS_F32], (tess_count_arg){.n = floats(t), .value = value}, (tess_use){t, TESS_W},
                  (tess_use){0});
}

static tess_status round_tile(tess_graph *g, const struct tess_param_tile *t)
{
    if (t->weight == t->master) return TESS_OK;
    return submit(g, &tess_round[TESS_BF16], (tess_count_arg){.n = floats(t->master)}, (tess_use){t->master, TESS_R},
                  (tess_use){t->weight, TESS_W});
}

/* The stream of random numbers of a parameter, from its name: other parameters do not shift it. */
static uint32_t stream_of(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

tess_status tess_graph_init(tess_graph *g, uint64_t seed)
{
    tess_env_set(&(tess_env){.seed = seed});
    for (int k = 0; k < g->params; k++) {
        tess_tensor *p = g->param[k];
        for (int64_t j = 0; j < p->tiles && p->storage == p; j++) {
            tess_tile *t = p->tile[j].master;
            if (p->init.kind == TESS_INIT_FILL)
                TESS_TRY(tess_param_fill(g, t, p->init.value));
            else {
                tess_count_arg a = {.n = floats(t),
                                    .value = p->init.value,
                                    .op = stream_of(p->name),
                                    .first = j * p->tile_rows * p->dim[1]};
                TESS_TRY(submit(g, &tess_fill_normal[TESS_F32], a, (tess_use){t, TESS_W}, (tess_use){0}));
            }
            TESS_TRY(round_tile(g, &p->tile[j]));
        }
    }
    return tess_wait();
}

tess_status tess_graph_round(tess_graph *g)
{
    for (int k = 0; k < g->params; k++)
        for (int64_t j = 0; j < g->param[k]->tiles; j++) TESS_TRY(round_tile(g, &g->param[k]->tile[j]));
    return tess_wait();
}

static tess_tile *part_of(tess_tensor *p, int64_t tile, tess_part part)
{
    struct tess_param_tile *t = &p->tile[tile];
    return part == TESS_MASTER ? t->master : t->moment[part - TESS_MOMENT1];
}

tess_status tess_param_map(tess_tensor *p, int64_t tile, tess_part part, int mode, float **data)
{
    TESS_TRY(tess_settle(p->g, NULL));
    if (part == TESS_MOMENT2 && mode == TESS_W) p->tile[tile].has_moments = true;
    void *raw;
    TESS_TRY(tess_tile_map(part_of(p, tile, part), mode, &raw));
    *data = raw;
    return TESS_OK;
}

void tess_param_unmap(tess_tensor *p, int64_t tile, tess_part part)
{
    tess_tile_unmap(part_of(p, tile, part));
}
