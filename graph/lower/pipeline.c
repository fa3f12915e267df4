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
 * The products of a weight's gradient need not come with the others of a backward pass, which the section before waits
 * for. In a zero-bubble order they are a pass of their own (waits.c), which a section takes up where it would wait:
 * the s-th one s micro-batches later (ZB-H1); or, where chunks go forth and back, by a rule that says what a section
 * does whenever it is free (ZB-V).
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

/* On the way back of TESS_ZB_V. */
static bool is_back(const tess_grid *g, int chunk)
{
    return g->schedule == TESS_ZB_V && chunk >= g->pipeline;
}

void tess_pipeline_users(const tess_graph *g, bool *const *uses, bool *twice)
{
    const tess_grid *grid = &g->conf.grid;
    int *chunk = chunks_of_nodes(g);
    unsigned char *legs = tess_alloc((size_t)g->tensors + 1);
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++) {
            const tess_tensor *t = g->node[k]->in[i];
            if (!t || t->kind != TESS_KIND_PARAM) continue;
            uses[t->id][tess_grid_section_of(grid, chunk[k])] = true;
            if (tess_grid_section_of(grid, chunk[k]) == tess_grid_section(grid))
                legs[t->id] |= (unsigned char)(1 << is_back(grid, chunk[k]));
        }
    for (int k = 0; k < g->tensors; k++) twice[k] = legs[k] == 3;
    free(legs);
    free(chunk);
}

/* ---- the order ---- */

typedef struct order {
    struct tess_pass *pass;
    int n, at;
    double free; /* when the section has done what it took up so far */
} order;

/* Whether gradients of weights are passes of their own. */
static bool apart(const tess_grid *g)
{
    return g->schedule != TESS_1F1B;
}

static double length(const tess_grid *g, bool backward)
{
    return backward && !apart(g) ? 2 : 1;
}

/* The end of each pass, by chunk, micro-batch and direction; less than 0: it is yet to come. */
struct ends {
    double *at;
    int64_t micros;
    int chunks;
};

static double *end_of(const struct ends *e, int chunk, int64_t micro, bool backward)
{
    return &e->at[(chunk * e->micros + micro) * 2 + backward];
}

/* When what a pass reads is there; less than 0: that is not known yet. */
static double ready_at(const struct ends *e, int chunk, int64_t micro, bool backward)
{
    if (!backward) return chunk > 0 ? *end_of(e, chunk - 1, micro, false) : 0;
    return chunk + 1 < e->chunks ? *end_of(e, chunk + 1, micro, true) : *end_of(e, chunk, micro, false);
}

/* The i-th pass of a kind: the micro-batches in groups of as many as there are sections, each group through the chunks.
 */
static struct tess_pass pass_of(const tess_grid *g, int64_t micros, int section, int64_t i, bool backward)
{
    int64_t group = (int64_t)g->pipeline, v = g->interleave, full = group * v;
    int64_t round = i / full, rest = i % full, size = micros - round * group < group ? micros - round * group : group;
    int64_t k = rest / size, m = round * group + rest % size;
    return (struct tess_pass){.chunk = (int)((backward ? v - 1 - k : k) * g->pipeline) + section,
                              .micro = m,
                              .kind = backward ? TESS_PASS_BACKWARD : TESS_PASS_FORWARD};
}

static struct tess_pass weights_of(int section, int64_t micro)
{
    return (struct tess_pass){.chunk = section, .micro = micro, .kind = TESS_PASS_WEIGHTS};
}

/* Gradients of weights come as many micro-batches late as sections are ahead: so each section has as many in flight. */
static void order_of(const tess_grid *g, int64_t micros, int section, bool train, order *o)
{
    int64_t all = micros * g->interleave, warm = g->pipeline - 1 - section, f = 0, b = 0;
    if (g->interleave > 1) warm = 2 * warm + (g->interleave - 1) * g->pipeline;
    if (warm > all || !train) warm = all;
    while (f < warm) o->pass[o->n++] = pass_of(g, micros, section, f++, false);
    while (train && b < all) {
        if (f < all) o->pass[o->n++] = pass_of(g, micros, section, f++, false);
        o->pass[o->n++] = pass_of(g, micros, section, b++, true);
        if (apart(g) && b > section) o->pass[o->n++] = weights_of(section, b - 1 - section);
    }
    for (int64_t w = b > section ? b - section : 0; apart(g) && w < b; w++) o->pass[o->n++] = weights_of(section, w);
}

/* All forward, then all backward: where the order above would wait for itself, as it may with a last group of few. */
static void plain_order(const tess_grid *g, int64_t micros, int section, bool train, order *o)
{
    int64_t all = micros * g->interleave;
    o->n = 0;
    for (int64_t i = 0; i < all; i++) o->pass[o->n++] = pass_of(g, micros, section, i, false);
    for (int64_t i = 0; i < all && train; i++) o->pass[o->n++] = pass_of(g, micros, section, i, true);
}

/* Plays the orders of all sections through; false where they wait for each other. */
static bool play(const tess_grid *g, order *o, const struct ends *e)
{
    bool moved = true;
    size_t left = 0;
    for (int s = 0; s < g->pipeline; s++) {
        o[s].at = 0;
        o[s].free = 0;
        left += (size_t)o[s].n;
    }
    for (int64_t i = 0; i < e->chunks * e->micros * 2; i++) e->at[i] = -1;
    while (left > 0 && moved) {
        moved = false;
        for (int s = 0; s < g->pipeline; s++)
            while (o[s].at < o[s].n) {
                struct tess_pass *p = &o[s].pass[o[s].at];
                const bool backward = p->kind == TESS_PASS_BACKWARD;
                const bool waited = p->kind == TESS_PASS_WEIGHTS;
                const double ready = waited ? 0 : ready_at(e, p->chunk, p->micro, backward);
                if (ready < 0) break;
                p->time = ready > o[s].free ? ready : o[s].free;
                o[s].free = p->time + length(g, backward);
                if (!waited) *end_of(e, p->chunk, p->micro, backward) = o[s].free;
                o[s].at++;
                left--;
                moved = true;
            }
    }
    return left == 0;
}

/* What a section could begin at a time; of the earliest, backward goes before forward, and that before weights, and the
 * chunk that is farther on before the other. */
static bool is_before(const struct tess_pass *a, const struct tess_pass *b)
{
    static const int rank[] = {[TESS_PASS_BACKWARD] = 0, [TESS_PASS_FORWARD] = 1, [TESS_PASS_WEIGHTS] = 2};
    if (a->time != b->time) return a->time < b->time;
    return a->kind != b->kind ? rank[a->kind] < rank[b->kind] : a->chunk > b->chunk;
}

/* What section s does next: next[chunk][backward] are the first micro-batches that have not gone there, `held` those of
 * its chunks that have gone forward and whose gradients of weights are yet to come. o->at is before the first backward
 * pass of which they are. A time of less than 0: nothing yet. */
static struct tess_pass next_of(const tess_grid *g, int s, const order *o, const struct ends *e, int64_t (*next)[2],
                                int held, bool train)
{
    struct tess_pass best = {.time = -1};
    for (int c = 0; c < e->chunks; c++) {
        if (tess_grid_section_of(g, c) != s) continue;
        for (int back = 0; back <= (int)train; back++) {
            const int64_t m = next[c][back];
            if (m == (back ? next[c][0] : e->micros)) continue;
            if (!back && train && held == e->chunks) continue;
            const double ready = ready_at(e, c, m, back);
            if (ready < 0) continue;
            struct tess_pass p = {c, m, back ? TESS_PASS_BACKWARD : TESS_PASS_FORWARD, ready > o->free ? ready : o->free};
            if (best.time < 0 || is_before(&p, &best)) best = p;
        }
    }
    int at = o->at;
    while (at < o->n && o->pass[at].kind != TESS_PASS_BACKWARD) at++;
    if (at == o->n) return best;
    struct tess_pass w = {o->pass[at].chunk, o->pass[at].micro, TESS_PASS_WEIGHTS, o->free};
    return best.time < 0 || is_before(&w, &best) ? w : best;
}

/* The order of TESS_ZB_V. A section holds the activations of as many micro-batches as there are sections, as the first
 * one does under 1F1B; the order is what comes of each doing what it can. */
static void play_freely(const tess_grid *g, bool train, order *o, const struct ends *e)
{
    const int64_t passes = (train ? 3 : 1) * e->micros * e->chunks;
    int64_t(*next)[2] = tess_alloc((size_t)e->chunks * sizeof *next);
    int *held = tess_alloc((size_t)g->pipeline * sizeof *held);
    for (int64_t i = 0; i < e->chunks * e->micros * 2; i++) e->at[i] = -1;
    for (int64_t i = 0; i < passes; i++) {
        struct tess_pass p = {.time = -1};
        int of = 0;
        for (int s = 0; s < g->pipeline; s++) {
            const struct tess_pass its = next_of(g, s, &o[s], e, next, held[s], train);
            if (its.time < 0 || (p.time >= 0 && its.time >= p.time)) continue;
            p = its;
            of = s;
        }
        TESS_ASSERT(p.time >= 0);
        const bool backward = p.kind == TESS_PASS_BACKWARD;
        o[of].pass[o[of].n++] = p;
        o[of].free = p.time + 1;
        if (p.kind == TESS_PASS_WEIGHTS) {
            while (o[of].pass[o[of].at].kind != TESS_PASS_BACKWARD) o[of].at++;
            o[of].at++;
            held[of]--;
            continue;
        }
        *end_of(e, p.chunk, p.micro, backward) = o[of].free;
        next[p.chunk][backward]++;
        held[of] += !backward;
    }
    free(held);
    free(next);
}

struct tess_pass *tess_pipeline_order(const tess_grid *g, int64_t micros, bool train, int *n, double **ends,
                                      double *losses_known, double *span)
{
    order *o = tess_alloc((size_t)g->pipeline * sizeof *o);
    const struct ends e = {
        *ends = tess_alloc((size_t)chunks(g) * (size_t)micros * 2 * sizeof **ends), micros, chunks(g)};
    for (int s = 0; s < g->pipeline; s++)
        o[s].pass = tess_alloc((size_t)(3 * micros * g->interleave) * sizeof *o[s].pass);
    if (g->schedule == TESS_ZB_V) {
        play_freely(g, train, o, &e);
    } else {
        for (int s = 0; s < g->pipeline; s++) order_of(g, micros, s, train, &o[s]);
        if (!play(g, o, &e)) {
            for (int s = 0; s < g->pipeline; s++) plain_order(g, micros, s, train, &o[s]);
            TESS_ASSERT(play(g, o, &e));
        }
    }
    int mine = tess_grid_section(g);
    struct tess_pass *pass = o[mine].pass;
    *n = o[mine].n;
    *losses_known = *span = 0;
    for (int64_t m = 0; m < micros; m++) {
        const double end = *end_of(&e, e.chunks - 1, m, false);
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

static int of(const tess_lower *L, int chunk)
{
    return tess_grid_section_of(L->grid, chunk);
}

/* Every tensor with each other section that reads it; `wanted` are the nodes of all sections. */
static struct crossing *crossings(const tess_lower *L, const int *chunk, const bool *wanted, int *n)
{
    int room = 16;
    struct crossing *all = tess_alloc((size_t)room * sizeof *all);
    *n = 0;
    for (int k = 0; k < L->g->nodes; k++)
        for (int i = 0; wanted[k] && i < L->g->node[k]->inputs; i++) {
            const tess_tensor *t = L->g->node[k]->in[i];
            if (!t || t->kind != TESS_KIND_ACTIVATION) continue;
            int from = chunk[t->producer->id], to = chunk[k], at = 0;
            if (of(L, from) == of(L, to)) continue;
            while (at < *n && !(all[at].t == t && of(L, all[at].first) == of(L, to))) at++;
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
static struct transfer *transfers(const tess_lower *L, const struct crossing *all, int n, double *ends, size_t *count)
{
    const int mine = tess_grid_section(L->grid);
    const struct ends e = {ends, L->micros, chunks(L->grid)};
    struct transfer *t = tess_alloc(((size_t)n * (size_t)L->micros * 2 + 1) * sizeof *t);
    *count = 0;
    for (int k = 0; k < n; k++)
        for (int64_t m = 0; m < L->micros; m++)
            for (int back = 0; back <= (int)tess_wants_gradient(L, all[k].t); back++) {
                const int from = back ? all[k].first : all[k].from, to = back ? all[k].from : all[k].first;
                const double begins = *end_of(&e, to, m, back) - length(L->grid, back);
                if (of(L, from) == mine || of(L, to) == mine)
                    t[(*count)++] = (struct transfer){begins, k, m, back, of(L, from) == mine, from};
            }
    qsort(t, *count, sizeof *t, by_time);
    return t;
}

/* Those that are due at a time, from *at on. */
static void transfer_until(tess_lower *L, double time, const struct transfer *t, size_t count, size_t *at,
                           const struct crossing *all)
{
    for (; *at < count && t[*at].time <= time; ++*at) {
        const struct transfer *x = &t[*at];
        const struct crossing *c = &all[x->crossing];
        L->micro = x->micro;
        cross(L, c->t, x->crossing, of(L, x->sends == x->gradient ? c->from : c->first), x->sends, x->gradient);
        for (int i = 0; i < tess_lower_tiles(L, c->t) && x->sends && x->gradient; i++) tess_lower_release(L, c->t, i);
    }
}

static void run_pass(tess_lower *L, const struct tess_pass *pass, const int *chunk, const bool *wanted)
{
    int first = 0, end;
    while (first < L->g->nodes && chunk[first] != pass->chunk) first++;
    for (end = first; end < L->g->nodes && chunk[end] == pass->chunk;) end++;
    L->micro = pass->micro;
    L->back = is_back(L->grid, pass->chunk);
    L->waits = apart(L->grid);
    if (pass->kind == TESS_PASS_FORWARD) tess_lower_forward(L, first, end, wanted);
    if (pass->kind == TESS_PASS_BACKWARD) tess_lower_backward(L, first, end, wanted, NULL);
    L->waits = false;
    if (pass->kind == TESS_PASS_WEIGHTS) tess_lower_waited(L);
}

/* Returns the first chunk whose tensors nodes of a chunk read here: their gradients begin in that one's tiles. */
static int reads_from(const tess_lower *L, const int *chunk, const bool *wanted, int of_chunk)
{
    int first = of_chunk;
    for (int k = 0; k < L->g->nodes; k++)
        for (int i = 0; wanted[k] && chunk[k] == of_chunk && i < L->g->node[k]->inputs; i++) {
            const tess_tensor *t = L->g->node[k]->in[i];
            if (!t || t->kind != TESS_KIND_ACTIVATION) continue;
            const int from = chunk[t->producer->id];
            if (from < first && of(L, from) == of(L, of_chunk)) first = from;
        }
    return first;
}

/* How many of a chunk's micro-batches are there at a time, at most: from their forward pass until the last pass is
 * through that needs them, of this chunk or of `before`, and what it sends is due. */
static int in_flight(const tess_lower *L, const struct tess_pass *pass, int n, int chunk, int before,
                     const struct transfer *t, size_t count)
{
    double *until = tess_alloc((size_t)L->micros * sizeof *until);
    int most = 1;
    for (int k = 0; k < n; k++)
        if (pass[k].chunk == chunk || pass[k].chunk == before) until[pass[k].micro] = pass[k].time;
    for (size_t k = 0; k < count; k++)
        if (t[k].sends && t[k].chunk == chunk && t[k].time > until[t[k].micro]) until[t[k].micro] = t[k].time;
    for (int k = 0; k < n; k++) {
        if (pass[k].chunk != chunk || pass[k].kind != TESS_PASS_FORWARD) continue;
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
    L->p->now.backward = pass->kind != TESS_PASS_FORWARD;
    L->comes = 2 * (chunk + v * (int)(pass->micro % (sets + 1))) + 1;
    tess_program_slots(L->p, L->comes, true);
    tess_program_slots(L->p, 2 * (chunk + v * (int)(pass->micro % sets)), pass->kind == TESS_PASS_FORWARD);
}

void tess_lower_pipeline(tess_lower *L, bool *wanted)
{
    int n, cross_count, mine = tess_grid_section(L->grid);
    double known, span, *ends;
    size_t count, at = 0;
    int *chunk = chunks_of_nodes(L->g);
    struct crossing *all = crossings(L, chunk, wanted, &cross_count);
    struct tess_pass *pass = tess_pipeline_order(L->grid, L->micros, L->conf->train, &n, &ends, &known, &span);
    struct transfer *t = transfers(L, all, cross_count, ends, &count);
    int *sets = tess_alloc((size_t)chunks(L->grid) * sizeof *sets);
    bool told = false;
    for (int k = 0; k < L->g->nodes; k++) wanted[k] &= of(L, chunk[k]) == mine;
    tess_lower_count(L, wanted);
    for (int c = 0; c < chunks(L->grid); c++)
        if (of(L, c) == mine) sets[c] = in_flight(L, pass, n, c, reads_from(L, chunk, wanted, c), t, count);
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
