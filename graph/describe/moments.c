/* The optimizer's moments of a parameter: how many there are is known when a step is to train it. What asks for them
 * before, a checkpoint of what was never trained or a program's own look, finds those of AdamW, which are replaced when
 * a step says otherwise. */
#include "graph/describe/param.h"
#include <math.h>
#include <stdlib.h>

static const tess_optimizer *unsaid(void)
{
    static const tess_optimizer adamw = {.type = TESS_OPTIMIZER_ADAMW};
    return &adamw;
}

uint32_t tess_param_stream(const tess_tensor *p)
{
    uint32_t h = 2166136261u;
    for (const char *name = p->name; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

tess_kept tess_param_kept(const tess_tensor *p)
{
    const int64_t width = tess_param_part_width(p, TESS_MOMENT1), whole = p->cut->whole[1];
    const bool fewer = p->rank == 2 && whole >= TESS_KEEP_WIDTH && !p->held->on.strips;
    return (tess_kept){
        .as = fewer ? p->held->keeping : TESS_KEEP_F32, .width = width, .whole = whole, .column = p->held->on.col0};
}

int64_t tess_param_part_width(const tess_tensor *p, tess_part part)
{
    return tess_is_moment(part) && p->held->width ? p->held->width : p->dim[1];
}

double tess_graph_moments(const tess_graph *g)
{
    double n = 0;
    for (int k = 0; k < g->params; k++) {
        const tess_tensor *p = g->param[k];
        if (tess_is_frozen(p) || tess_is_state(p)) continue;
        const int moments = p->held->optimizer ? p->held->moments : tess_optimizer_moments(unsaid());
        const double rows = (double)p->cut->whole[0], columns = (double)p->cut->whole[1];
        n += moments * (p->held->local ? p->held->local : 1) * rows *
             (p->held->width ? (double)p->held->width : columns);
        n += (tess_param_has(p, TESS_OUTER) + tess_param_has(p, TESS_REST) * p->g->conf.grid.data) * rows * columns;
    }
    return n;
}

/* Whether all that reads it multiplies by it, and something does. */
static bool is_multiplied(const tess_tensor *p)
{
    const tess_graph *g = p->g;
    bool some = false, all = !p->nd || p->nd->rank == 2;
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++) {
            if (g->node[k]->in[i] != p) continue;
            some = true;
            all &= g->node[k]->op->times >> i & 1;
        }
    return some && all;
}

bool tess_param_hidden(const tess_tensor *p)
{
    const struct tess_param *h = p->held->storage->held;
    return p->rank == 2 && !h->is_state && (h->hidden ? h->hidden > 0 : is_multiplied(p));
}

tess_status tess_param_set_hidden(tess_tensor *p, bool hidden, bool turned)
{
    if (!p || p->kind != TESS_KIND_PARAM || (hidden && p->rank != 2))
        return tess_error(TESS_INVALID, p ? p->name : "tess_param_set_hidden", "is no matrix");
    struct tess_param *h = p->held->storage->held;
    h->hidden = hidden ? 1 : -1;
    h->turned = turned;
    return TESS_OK;
}

const tess_optimizer_kind *tess_param_kind(const tess_tensor *p, const tess_optimizer *o)
{
    const tess_optimizer_kind *kind = tess_optimizer_kind_of(o);
    return kind->others && !tess_param_hidden(p) ? kind->others : kind;
}

static void make(tess_tensor *p, int moments)
{
    struct tess_param *h = p->held;
    const tess_kept kept = tess_param_kept(p);
    for (int64_t i = 0; i < h->states; i++) {
        struct tess_state *s = &h->state[i];
        for (int m = 0; m < TESS_MOMENTS_MOST; m++) {
            tess_tile_free(s->moment[m]);
            s->moment[m] = NULL;
            s->begun[TESS_MOMENT1 + m] = false;
            if (m < moments) s->moment[m] = tess_tile_new(tess_kept_bytes(&kept, s->rows), TESS_ROLE_MOMENT, p->name);
        }
    }
    h->moments = moments;
}

void tess_param_beside(tess_tensor *p, const tess_local *local, tess_dtype gradients)
{
    struct tess_param *h = p->held;
    if (tess_is_frozen(p)) return;
    const bool few = gradients != TESS_F32 && tess_param_narrows(p) && !h->optimizer->whole;
    h->local = local->steps > 0 ? p->g->conf.grid.data : 0;
    for (int64_t i = 0; i < h->states; i++) {
        struct tess_state *s = &h->state[i];
        const size_t n = (size_t)tess_state_elements(p, s);
        tess_tile **const tile[] = {&s->anchor, &s->outer};
        const bool has[] = {h->local, h->local && local->momentum > 0};
        for (int k = 0; k < 2; k++) {
            if (has[k] == (*tile[k] != NULL)) continue;
            tess_tile_free(*tile[k]);
            *tile[k] = has[k] ? tess_tile_new(n * sizeof(float), TESS_ROLE_MOMENT, p->name) : NULL;
        }
        if (few && !s->few) s->few = tess_tile_new(n * sizeof(uint16_t), TESS_ROLE_GRADIENT, p->name);
    }
}

/* Were they read or written by the program? */
static bool begun(const struct tess_param *h)
{
    bool any = false;
    for (int64_t i = 0; i < h->states; i++)
        for (int m = 0; m < h->moments; m++) any |= h->state[i].begun[TESS_MOMENT1 + m];
    return any;
}

tess_status tess_param_moments(tess_tensor *p, const tess_optimizer *o, bool trains)
{
    if (tess_is_frozen(p)) return TESS_OK; /* it has none */
    if (!o) o = unsaid();
    struct tess_param *h = p->held;
    if (tess_is_state(p)) {
        h->optimizer = &tess_replace_kind;
        return TESS_OK;
    }
    const tess_optimizer_kind *kind = tess_param_kind(p, o);
    const int moments = tess_optimizer_kind_moments(kind, o);
    if (kind->whole && p->cut->split)
        return tess_error(TESS_INVALID, "optimizer",
                          "%s updates whole matrices, and the ranks of a tensor share %s (tensor 1, or another "
                          "optimizer)",
                          kind->name, p->name);
    const float begins = kind->begins ? (float)kind->begins(o) : 0;
    if (kind->width && p->nd && p->nd->rank > 2)
        return tess_error(TESS_INVALID, "optimizer",
                          "%s has means of rows and columns, and %s has %d dimensions (AdamW has any)", kind->name,
                          p->name, p->nd->rank);
    if (h->optimizer && (h->trained || !trains)) {
        if (!trains ||
            (h->optimizer == kind && h->moments == moments && h->begins == begins && h->keeping == o->keeping))
            return TESS_OK;
        if (h->optimizer == kind && h->moments == moments && h->begins == begins)
            return tess_error(TESS_INVALID, "moments",
                              "are kept otherwise than by another step of the graph that trains %s (one graph, "
                              "one optimizer)",
                              p->name);
        return tess_error(TESS_INVALID, "optimizer",
                          "%s with %d moments, but another step of the graph trains %s by %s with %d (one graph, one "
                          "optimizer)",
                          kind->name, moments, p->name, h->optimizer->name, h->moments);
    }
    const int64_t width = kind->width ? kind->width(p->dim[0] / p->cut->members, p->dim[1]) : 0;
    const bool same = h->moments == moments && h->begins == begins && h->keeping == o->keeping && h->width == width;
    if (h->moments && !same && h->storage->g->maps > 0)
        return tess_error(TESS_INVALID, p->name, "has other moments than %s, and parameters are mapped", kind->name);
    if (h->optimizer == kind && h->moments == moments && h->keeping != o->keeping && begun(h))
        return tess_error(
            TESS_INVALID, p->name,
            "has moments already, kept otherwise than this step keeps them (make the step before they are "
            "loaded or written)");
    h->keeping = o->keeping;
    h->width = width;
    if (!h->optimizer || !same) make(p, moments);
    h->optimizer = kind;
    h->begins = begins;
    h->trained = trains;
    return TESS_OK;
}

tess_dtype tess_param_part_dtype(const tess_tensor *p, tess_part part)
{
    if (part == TESS_MASTER) return tess_param_dtype(p);
    return tess_is_moment(part) && tess_param_kept(p).as == TESS_KEEP_BF16 ? TESS_BF16 : TESS_F32;
}

tess_keeping tess_graph_keeping(const tess_graph *g)
{
    for (int k = 0; k < g->params; k++)
        if (g->param[k]->held->trained) return g->param[k]->held->keeping;
    return TESS_KEEP_F32;
}

tess_status tess_param_set_rates(tess_tensor *p, double lr_scale, double weight_decay)
{
    if (!p || p->kind != TESS_KIND_PARAM)
        return tess_error(TESS_INVALID, p ? p->name : "tess_param_set_rates", "is no parameter");
    if (!(lr_scale >= 0) || isinf(lr_scale) || !isfinite(weight_decay))
        return tess_error(TESS_INVALID, p->name,
                          "lr_scale %g, weight_decay %g (both are finite, lr_scale not negative)", lr_scale,
                          weight_decay);
    struct tess_param *h = p->held->storage->held;
    h->own_rates = true;
    h->lr_scale = lr_scale;
    h->weight_decay = weight_decay;
    return TESS_OK;
}

/* What counts is said of the parameter, then by no_decay_1d. */
double tess_param_decay(const tess_tensor *p, const tess_optimizer *o)
{
    if (p->held->own_rates && p->held->weight_decay >= 0) return p->held->weight_decay;
    return o->no_decay_1d && p->rank == 1 ? 0 : o->weight_decay;
}

bool tess_param_has(const tess_tensor *p, tess_part part)
{
    const tess_grid *g = &p->g->conf.grid;
    if (part == TESS_OUTER) return p->held->states > 0 && p->held->state[0].outer;
    if (part == TESS_REST) /* on all ranks alike, also where its columns on this one are no whole blocks */
        return g->gradient_codes && g->data > 1 && !tess_is_frozen(p) && !tess_is_state(p) &&
               p->cut->whole[1] % TESS_QUANTIZED_BLOCK == 0 && tess_grid_expert(p, 0) < 0;
    return part >= TESS_MASTER && (int)part < tess_param_parts(p);
}

int tess_param_owners(const tess_tensor *p, tess_part part, int *mine)
{
    *mine = tess_grid_data(&p->g->conf.grid);
    return part == TESS_REST ? p->g->conf.grid.data : tess_is_moment(part) && p->held->local ? p->held->local : 1;
}

int tess_param_parts(const tess_tensor *p)
{
    if (tess_is_frozen(p) || tess_is_state(p)) return TESS_MOMENT1;
    return TESS_MOMENT1 + (p->held->optimizer ? p->held->moments : tess_optimizer_moments(unsaid()));
}

const char *tess_param_part_name(const tess_tensor *p, tess_part part)
{
    const tess_optimizer_kind *kind = p->held->optimizer ? p->held->optimizer : tess_optimizer_kind_of(unsaid());
    if (part == TESS_OUTER) return "outer_momentum";
    if (part == TESS_REST) return "gradient_rest";
    return part == TESS_MASTER ? NULL : kind->moment[part - TESS_MOMENT1];
}

const char *tess_graph_optimizer(const tess_graph *g, int *moments)
{
    const struct tess_param *of = NULL; /* one of what has whole matrices, if there is any */
    for (int k = 0; k < g->params; k++) {
        const struct tess_param *h = g->param[k]->held;
        if (h->trained && (!of || h->optimizer->whole)) of = h;
    }
    *moments = of ? of->moments : tess_optimizer_moments(unsaid());
    return of ? of->optimizer->name : tess_optimizer_kind_of(unsaid())->name;
}

void tess_graph_ready_ram(const tess_graph *g)
{
    size_t n = 0, room = 1;
    for (int k = 0; k < g->params; k++)
        room += (size_t)(g->param[k]->cut->tiles +
                         (g->param[k]->held->states + g->param[k]->held->rests) * (5 + TESS_MOMENTS_MOST));
    TESS_FREED tess_tile **tile = tess_alloc(room * sizeof *tile);
    for (int k = 0; k < g->params; k++) {
        const struct tess_param *p = g->param[k]->held;
        if (!p->tile || p->storage != g->param[k]) continue;
        for (int64_t j = 0; j < g->param[k]->cut->tiles; j++) tile[n++] = p->tile[j].weight;
        for (int64_t i = 0; i < p->states + p->rests; i++) {
            tile[n++] = p->state[i].master;
            tile[n++] = p->state[i].weight;
            tile[n++] = p->state[i].anchor;
            for (int t = TESS_MOMENT1; t < TESS_ALL_PARTS; t++) tile[n++] = tess_state_part(&p->state[i], (tess_part)t);
        }
    }
    tess_tiles_ready(tile, n);
}
