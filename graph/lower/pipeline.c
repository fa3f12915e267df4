/* Pipeline parallelism. The blocks of a model are cut into chunks, pipeline * interleave of them, and chunk c belongs
 * to section c % pipeline; what comes before the first block goes with the first chunk, what comes after the last with
 * the last one. A micro-batch passes through the chunks forward and then backward. Which pass a section takes up next
 * is its order, and that is the order of its program: StarPU runs the earliest task that is ready, so there is no
 * executor of another kind.
 *
 * The order is 1F1B: as many forward passes as it takes to fill the sections behind, then one backward for one forward,
 * which bounds the activations that wait. Interleaved, a section goes round its chunks with a group of micro-batches at
 * a time. All sections' orders are played through on paper: that gives each pass a time, and with it one order of all
 * messages that every section's program keeps to. A message's time is that of the pass that reads it: its receiver has
 * it right before that pass, its sender before the first of its own passes that begins no earlier. So each rank's list
 * is part of one order, message by message, and a rank that carries them strictly in its list's order never waits in a
 * circle; with the send right behind the pass that makes it two sections could, each of them sending.
 *
 * A tensor that another section reads goes there when its chunk is through, once a section; its gradient comes back
 * when the last chunk there that read it is through backward. A parameter that several sections use (a tied embedding)
 * is at home in the first: the others send their gradients there at the end of the step and get the new weight. */
#include "graph/lower/lower.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static int chunks(const tess_grid *g)
{
    return g->pipeline * g->interleave;
}

/* Returns the chunk of each node; free() it. */
static int *chunks_of_nodes(const tess_graph *g)
{
    int *chunk = tess_alloc((size_t)(g->nodes + 1) * sizeof *chunk), last = 0;
    for (int k = 0; k < g->nodes; k++)
        if (g->node[k]->block > last) last = g->node[k]->block;
    int block = 0;
    for (int k = 0; k < g->nodes; k++) {
        int own = g->node[k]->block;
        bool after = own == 0 && block == last;
        if (own > 0) block = own;
        chunk[k] = after                     ? chunks(&g->conf.grid) - 1
                   : block == 0 || last == 0 ? 0
                                             : (int)((int64_t)(block - 1) * chunks(&g->conf.grid) / last);
    }
    return chunk;
}

tess_status tess_pipeline_check(const tess_graph *g)
{
    if (chunks(&g->conf.grid) <= 1 || g->blocks >= chunks(&g->conf.grid)) return TESS_OK;
    return tess_error(TESS_INVALID, "grid",
                      "%d stages of %d chunks each, but the model has %d blocks (a chunk needs at least one)",
                      g->conf.grid.pipeline, g->conf.grid.interleave, g->blocks);
}

void tess_pipeline_users(const tess_graph *g, bool *const *uses)
{
    int *chunk = chunks_of_nodes(g);
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++) {
            const tess_tensor *t = g->node[k]->in[i];
            if (t && t->kind == TESS_KIND_PARAM) uses[t->id][chunk[k] % g->conf.grid.pipeline] = true;
        }
    free(chunk);
}

/* ---- the order ---- */

typedef struct order {
    struct tess_pass *pass;
    int n, at;
    double free; /* when the section has done what it took up so far */
} order;

/* The i-th pass of a kind: the micro-batches in groups of as many as there are sections, each group through the chunks.
 */
static struct tess_pass pass_of(const tess_grid *g, int64_t micros, int section, int64_t i, bool backward)
{
    int64_t group = (int64_t)g->pipeline, v = g->interleave, full = group * v;
    int64_t round = i / full, rest = i % full, size = micros - round * group < group ? micros - round * group : group;
    int64_t k = rest / size, m = round * group + rest % size;
    return (struct tess_pass){
        .chunk = (int)((backward ? v - 1 - k : k) * g->pipeline) + section, .micro = m, .backward = backward};
}

static void order_of(const tess_grid *g, int64_t micros, int section, bool train, order *o)
{
    int64_t all = micros * g->interleave, warm = g->pipeline - 1 - section, f = 0, b = 0;
    if (g->interleave > 1) warm = 2 * warm + (g->interleave - 1) * g->pipeline;
    if (warm > all || !train) warm = all;
    o->pass = tess_alloc((size_t)(2 * all) * sizeof *o->pass);
    while (f < warm) o->pass[o->n++] = pass_of(g, micros, section, f++, false);
    while (train && b < all) {
        if (f < all) o->pass[o->n++] = pass_of(g, micros, section, f++, false);
        o->pass[o->n++] = pass_of(g, micros, section, b++, true);
    }
}

/* All forward, then all backward: where the order above would wait for itself, as it may with a last group of few. */
static void plain_order(const tess_grid *g, int64_t micros, int section, bool train, order *o)
{
    int64_t all = micros * g->interleave;
    o->n = 0;
    for (int64_t i = 0; i < all; i++) o->pass[o->n++] = pass_of(g, micros, section, i, false);
    for (int64_t i = 0; i < all && train; i++) o->pass[o->n++] = pass_of(g, micros, section, i, true);
}

/* Plays the orders of all sections through; false where they wait for each other. done: [chunk][micro][backward]. */
static bool play(const tess_grid *g, int64_t micros, order *o, double *done)
{
    int V = chunks(g);
    bool moved = true;
    size_t left = 0;
    for (int s = 0; s < g->pipeline; s++) {
        o[s].at = 0;
        o[s].free = 0;
        left += (size_t)o[s].n;
    }
    for (size_t i = 0; i < (size_t)V * (size_t)micros * 2; i++) done[i] = -1;
#define DONE(c, m, back) done[((int64_t)(c)*micros + (m)) * 2 + (back)]
    while (left > 0 && moved) {
        moved = false;
        for (int s = 0; s < g->pipeline; s++)
            while (o[s].at < o[s].n) {
                struct tess_pass *p = &o[s].pass[o[s].at];
                double ready = 0;
                if (!p->backward && p->chunk > 0) ready = DONE(p->chunk - 1, p->micro, 0);
                if (p->backward)
                    ready = p->chunk + 1 < V ? DONE(p->chunk + 1, p->micro, 1) : DONE(p->chunk, p->micro, 0);
                if (ready < 0) break;
                p->time = ready > o[s].free ? ready : o[s].free;
                o[s].free = DONE(p->chunk, p->micro, p->backward) = p->time + (p->backward ? 2 : 1);
                o[s].at++;
                left--;
                moved = true;
            }
    }
#undef DONE
    return left == 0;
}

struct tess_pass *tess_pipeline_order(const tess_grid *g, int64_t micros, bool train, int *n, double **ends,
                                      double *losses_known, double *span)
{
    order *o = tess_alloc((size_t)g->pipeline * sizeof *o);
    double *done = *ends = tess_alloc((size_t)chunks(g) * (size_t)micros * 2 * sizeof *done);
    for (int s = 0; s < g->pipeline; s++) order_of(g, micros, s, train, &o[s]);
    if (!play(g, micros, o, done)) {
        for (int s = 0; s < g->pipeline; s++) plain_order(g, micros, s, train, &o[s]);
        TESS_ASSERT(play(g, micros, o, done));
    }
    int mine = tess_grid_section(g);
    struct tess_pass *pass = o[mine].pass;
    *n = o[mine].n;
    *losses_known = *span = 0;
    for (int64_t m = 0; m < micros; m++) {
        double end = done[((int64_t)(chunks(g) - 1) * micros + m) * 2];
        if (end > *losses_known) *losses_known = end;
    }
    for (int s = 0; s < g->pipeline; s++) {
        if (o[s].free > *span) *span = o[s].free;
        if (s != mine) free(o[s].pass);
    }
    free(o);
    return pass;
}

/* ---- what goes from section to section ---- */

struct crossing {
    const tess_tensor *t;
    int from, first, last; /* chunks: of its producer, and the first and last that read it, on one other section */
};

/* Every tensor with each other section that reads it; `wanted` are the nodes of all sections. */
static struct crossing *crossings(const tess_lower *L, const int *chunk, const bool *wanted, int *n)
{
    int room = 16, p = L->grid->pipeline;
    struct crossing *all = tess_alloc((size_t)room * sizeof *all);
    *n = 0;
    for (int k = 0; k < L->g->nodes; k++)
        for (int i = 0; wanted[k] && i < L->g->node[k]->inputs; i++) {
            const tess_tensor *t = L->g->node[k]->in[i];
            if (!t || t->kind != TESS_KIND_ACTIVATION) continue;
            int from = chunk[t->producer->id], to = chunk[k], at = 0;
            if (from % p == to % p) continue;
            while (at < *n && !(all[at].t == t && all[at].first % p == to % p)) at++;
            if (at == room) all = tess_realloc(all, (size_t)(room *= 2) * sizeof *all);
            if (at == *n) all[(*n)++] = (struct crossing){t, from, to, to};
            if (to < all[at].first) all[at].first = to;
            if (to > all[at].last) all[at].last = to;
        }
    return all;
}

static int rank_of_section(const tess_lower *L, int section)
{
    return L->grid->rank + (section - tess_grid_section(L->grid)) * L->grid->tensor;
}

/* Returns the lane of a message between sections. Messages to the next section, from the previous one, and of gradients
 * have different lanes, so that a late section holds up only those that wait for it. */
static unsigned lane_of(const tess_lower *L, int from, bool gradient)
{
    const int p = L->grid->pipeline, third = p % 2 && from == p - 1 ? 2 : from % 2;
    return (unsigned)(TESS_LANE_SECTIONS + 3 * gradient + third);
}

/* The tile of what comes from another section. */
static tess_use coming(tess_lower *L, const tess_tensor *t, int i)
{
    const int set = L->p->set;
    tess_program_slots(L->p, L->comes, false);
    const tess_use use = tess_out(L, t, i);
    tess_program_slots(L->p, set, false);
    return use;
}

/* A gradient of zeros, the same for all micro-batches: it is sent when the tiles of its own are the next one's. */
static tess_use zeros_of(tess_lower *L, const tess_tensor *t, int i)
{
    if (!L->none) L->none = tess_arena_get(L->p->arena, (size_t)L->g->tensors * sizeof *L->none);
    if (!L->none[t->id]) L->none[t->id] = tess_arena_get(L->p->arena, (size_t)L->row_tiles * sizeof **L->none);
    tess_tile **zeros = &L->none[t->id][i];
    if (*zeros) return (tess_use){*zeros, TESS_R};
    *zeros = tess_program_tile(L->p, tess_value_bytes(L, t, i), TESS_ROLE_ACTIVATION, t->name);
    tess_use none = {*zeros, TESS_W};
    tess_grad_zero(L, tess_dtype_of(L, t), tess_rows(L, t, i) * tess_width(t), &none);
    return (tess_use){*zeros, TESS_R};
}

/* All row tiles of a tensor, or of its gradient, of this micro-batch: to or from a section. All sections have one
 * number for what crosses. */
static void cross(tess_lower *L, const tess_tensor *t, int64_t crossing, int section, bool sends, bool gradient)
{
    const int64_t number = crossing * L->micros + L->micro;
    for (int i = 0; i < tess_lower_tiles(L, t); i++) {
        int64_t at = L->micro * L->row_tiles + i, tag = 2 * (number * L->row_tiles + i) + gradient;
        TESS_ASSERT(tag < TESS_TAGS_TENSOR - TESS_TAGS_PIPELINE);
        if (!tess_lower_has(L, t, i)) continue;
        bool acc = false;
        tess_use use = {0};
        if (sends && gradient)
            use = tess_has_gradient(L, t, i) ? tess_grad_read(L, t, i) : zeros_of(L, t, i);
        else if (sends)
            use = tess_in(L, t, i);
        if (!sends && !gradient) use = coming(L, t, i);
        if (!sends && gradient) {
            if (L->grad[t->id][at]) { /* this section has readers of its own: what comes is added */
                size_t bytes = tess_tile_bytes(L->grad[t->id][at]->tile);
                use = (tess_use){tess_program_slot(L->p, bytes, TESS_ROLE_ACTIVATION, t->name), TESS_W};
                acc = true;
            } else
                use = tess_grad_write(L, t, i, &(bool){0});
        }
        L->lane = lane_of(L, sends ? tess_grid_section(L->grid) : section, gradient);
        (t->apart || t->divided ? tess_lower_message : tess_lower_cross)(L, use, rank_of_section(L, section),
                                                                         (int)(TESS_TAGS_PIPELINE + tag), sends);
        L->lane = TESS_LANE_STEP;
        if (!acc) continue;
        tess_use to = tess_grad_write(L, t, i, &acc);
        tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = tess_rows(L, t, i) * tess_width(t), .acc = true);
        TESS_EMIT(L, &tess_add_into[tess_dtype_of(L, t)], a, {use.tile, TESS_R}, to);
    }
}

/* A crossing of a micro-batch, or of its gradient. */
struct transfer {
    double time; /* when the pass begins that reads it */
    int crossing;
    int64_t micro;
    bool gradient, sends;
    int chunk; /* that makes it */
};

/* In the order that all sections have. */
static int by_time(const void *a, const void *b)
{
    const struct transfer *x = a, *y = b;
    if (x->time != y->time) return x->time < y->time ? -1 : 1;
    if (x->micro != y->micro) return x->micro < y->micro ? -1 : 1;
    if (x->gradient != y->gradient) return x->gradient - y->gradient;
    return x->crossing - y->crossing;
}

/* Those of this section. */
static struct transfer *transfers(const tess_lower *L, const struct crossing *all, int n, const double *ends,
                                  size_t *count)
{
    const int p = L->grid->pipeline, mine = tess_grid_section(L->grid);
    struct transfer *t = tess_alloc(((size_t)n * (size_t)L->micros * 2 + 1) * sizeof *t);
    *count = 0;
    for (int k = 0; k < n; k++)
        for (int64_t m = 0; m < L->micros; m++)
            for (int back = 0; back <= (int)tess_wants_gradient(L, all[k].t); back++) {
                const int from = back ? all[k].first : all[k].from, to = back ? all[k].from : all[k].first;
                const double begins = ends[(to * L->micros + m) * 2 + back] - (back ? 2 : 1);
                if (from % p == mine || to % p == mine)
                    t[(*count)++] = (struct transfer){begins, k, m, back, from % p == mine, from};
            }
    qsort(t, *count, sizeof *t, by_time);
    return t;
}

/* Those that are due at a time, from *at on. */
static void transfer_until(tess_lower *L, double time, const struct transfer *t, size_t count, size_t *at,
                           const struct crossing *all)
{
    const int p = L->grid->pipeline;
    for (; *at < count && t[*at].time <= time; ++*at) {
        const struct transfer *x = &t[*at];
        const struct crossing *c = &all[x->crossing];
        L->micro = x->micro;
        cross(L, c->t, x->crossing, (x->sends == x->gradient ? c->from : c->first) % p, x->sends, x->gradient);
        for (int i = 0; i < tess_lower_tiles(L, c->t) && x->sends && x->gradient; i++) tess_lower_release(L, c->t, i);
    }
}

static void run_pass(tess_lower *L, const struct tess_pass *pass, const int *chunk, const bool *wanted)
{
    int first = 0, end;
    while (first < L->g->nodes && chunk[first] != pass->chunk) first++;
    for (end = first; end < L->g->nodes && chunk[end] == pass->chunk;) end++;
    L->micro = pass->micro;
    if (pass->backward)
        tess_lower_backward(L, first, end, wanted, NULL);
    else
        tess_lower_forward(L, first, end, wanted);
}

/* How many of a chunk's micro-batches are there at a time, at most: from their forward pass until the last pass is
 * through and what it sends is due. */
static int in_flight(const tess_lower *L, const struct tess_pass *pass, int n, int chunk, const struct transfer *t,
                     size_t count)
{
    double *until = tess_alloc((size_t)L->micros * sizeof *until);
    int most = 1;
    for (int k = 0; k < n; k++)
        if (pass[k].chunk == chunk) until[pass[k].micro] = pass[k].time;
    for (size_t k = 0; k < count; k++)
        if (t[k].sends && t[k].chunk == chunk && t[k].time > until[t[k].micro]) until[t[k].micro] = t[k].time;
    for (int k = 0; k < n; k++) {
        if (pass[k].chunk != chunk || pass[k].backward) continue;
        int now = 1;
        for (int64_t m = 0; m < pass[k].micro; m++) now += until[m] > pass[k].time;
        if (now > most) most = now;
    }
    free(until);
    return most;
}

/* Each of a chunk's micro-batches in flight has a set of tiles. What comes for their forward passes has one set more,
 * so that it may come while a pass still needs all others. */
static void begin_pass(tess_lower *L, const struct tess_pass *pass, int sets)
{
    const int chunk = pass->chunk / L->grid->pipeline, v = L->grid->interleave;
    L->p->now.backward = pass->backward;
    L->comes = 2 * (chunk + v * (int)(pass->micro % (sets + 1))) + 1;
    tess_program_slots(L->p, L->comes, true);
    tess_program_slots(L->p, 2 * (chunk + v * (int)(pass->micro % sets)), !pass->backward);
}

void tess_lower_pipeline(tess_lower *L, bool *wanted)
{
    int n, cross_count, p = L->grid->pipeline, mine = tess_grid_section(L->grid);
    double known, span, *ends;
    size_t count, at = 0;
    int *chunk = chunks_of_nodes(L->g);
    struct crossing *all = crossings(L, chunk, wanted, &cross_count);
    struct tess_pass *pass = tess_pipeline_order(L->grid, L->micros, L->conf->train, &n, &ends, &known, &span);
    struct transfer *t = transfers(L, all, cross_count, ends, &count);
    int *sets = tess_alloc((size_t)chunks(L->grid) * sizeof *sets);
    bool told = false;
    for (int k = 0; k < L->g->nodes; k++) wanted[k] &= chunk[k] % p == mine;
    tess_lower_count(L, wanted);
    for (int c = mine; c < chunks(L->grid); c += p) sets[c] = in_flight(L, pass, n, c, t, count);
    for (int k = 0; k < L->g->params && L->late_norm; k++) /* one place in the order that all sections have */
        if (L->g->param[k]->held->on.shared && !L->g->param[k]->held->on.absent) tess_lower_late(L, L->g->param[k]);
    for (int k = 0; k <= n; k++) {
        const double time = k < n ? pass[k].time : HUGE_VAL;
        if (k < n) begin_pass(L, &pass[k], sets[pass[k].chunk]);
        if (!told && time >= known) {
            transfer_until(L, known, t, count, &at, all);
            tess_lower_losses(L);
            told = true;
        }
        transfer_until(L, time, t, count, &at, all);
        tess_lower_owed(L);
        L->recomputed = -1;
        if (k < n) run_pass(L, &pass[k], chunk, wanted);
    }
    L->p->now.backward = true;
    for (int k = 0; k < L->g->params && L->conf->train; k++)
        if (L->g->param[k]->held->on.shared) {
            tess_lower_tied(L, L->g->param[k]);
            if (!L->conf->keep_gradients) tess_lower_update(L, L->g->param[k]);
        }
    free(sets);
    free(t);
    free(ends);
    free(pass);
    free(all);
    free(chunk);
}
