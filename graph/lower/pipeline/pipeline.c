/* Pipeline parallelism. The blocks of a model are cut into chunks (pipeline_cut.c), pipeline * interleave of them, and
 * chunk c belongs to section c % pipeline, or forth and back, to p - 1 - c % p on the way back. A micro-batch passes
 * through the chunks forward and then backward. Which pass a section takes up next is its order, and that is the order
 * of its program: StarPU runs the earliest task that is ready, so there is no executor of another kind.
 *
 * pipeline_order.c plays all sections' orders through on paper: that gives each pass a time, and with it one order of
 * all messages that every section's program keeps to. A message's time is that of the pass that reads it: its receiver
 * has it right before that pass, its sender before the first of its own passes that begins no earlier. So each rank's
 * list is part of one order, message by message, and a rank that carries them strictly in its list's order never waits
 * in a circle; with the send right behind the pass that makes it two sections could, each of them sending.
 *
 * A tensor that another section reads goes there when its chunk is through, once a section; its gradient comes back
 * when the last chunk there that read it is through backward. A parameter that several sections use (a tied embedding)
 * is at home in the first: the others send their gradients there at the end of the step and get the new weight. */
#include "graph/lower/pipeline/pipeline_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

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
    const struct tess_ends e = {ends, L->micros, tess_chunks(L->grid)};
    struct transfer *t = tess_alloc(((size_t)n * (size_t)L->micros * 2 + 1) * sizeof *t);
    *count = 0;
    for (int k = 0; k < n; k++)
        for (int64_t m = 0; m < L->micros; m++)
            for (int back = 0; back <= (int)tess_wants_gradient(L, all[k].t); back++) {
                const int from = back ? all[k].first : all[k].from, to = back ? all[k].from : all[k].first;
                const double begins = *tess_begin_of(&e, to, m, back);
                if (of(L, from) == mine || of(L, to) == mine)
                    t[(*count)++] = (struct transfer){begins, k, m, back, of(L, from) == mine, from};
            }
    qsort(t, *count, sizeof *t, by_time);
    return t;
}

/* Which of a chunk's sets of tiles a micro-batch has. */
static int set_of(const tess_lower *L, int chunk, int64_t micro, const int *sets)
{
    return 2 * (chunk / L->grid->pipeline + L->grid->interleave * (int)(micro % sets[chunk]));
}

/* Those that are due at a time, from *at on. A gradient that comes is one of its micro-batch's tiles. */
static void transfer_until(tess_lower *L, double time, const struct transfer *t, size_t count, size_t *at,
                           const struct crossing *all, const int *sets)
{
    for (; *at < count && t[*at].time <= time; ++*at) {
        const struct transfer *x = &t[*at];
        const struct crossing *c = &all[x->crossing];
        const int set = L->p->set;
        L->micro = x->micro;
        if (!x->sends && x->gradient) tess_program_slots(L->p, set_of(L, c->from, x->micro, sets), false);
        cross(L, c->t, x->crossing, of(L, x->sends == x->gradient ? c->from : c->first), x->sends, x->gradient);
        for (int i = 0; i < tess_lower_tiles(L, c->t) && x->sends && x->gradient; i++) tess_lower_release(L, c->t, i);
        tess_program_slots(L->p, set, false);
    }
}

static void run_pass(tess_lower *L, const struct tess_pass *pass, const int *chunk, const bool *wanted)
{
    int first = 0, end;
    while (first < L->g->nodes && chunk[first] != pass->chunk) first++;
    for (end = first; end < L->g->nodes && chunk[end] == pass->chunk;) end++;
    L->micro = pass->micro;
    L->back = tess_is_back(L->grid, pass->chunk);
    L->waits = L->grid->schedule != TESS_1F1B;
    if (pass->kind == TESS_PASS_FORWARD) tess_lower_forward(L, first, end, wanted);
    if (pass->kind == TESS_PASS_BACKWARD) tess_lower_backward(L, first, end, wanted, NULL);
    L->waits = false;
    for (const tess_node *n; pass->kind == TESS_PASS_WEIGHTS && (n = tess_lower_waited(L));) tess_lower_end_uses(L, n);
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
    TESS_FREED double *until = tess_alloc((size_t)L->micros * sizeof *until);
    int most = 1;
    for (int k = 0; k < n; k++)
        if (pass[k].chunk == chunk || pass[k].chunk == before) until[pass[k].micro] = pass[k].time;
    for (size_t k = 0; k < count; k++)
        if (t[k].sends && t[k].chunk == chunk && t[k].time > until[t[k].micro]) until[t[k].micro] = t[k].time;
    for (int k = 0; k < n; k++) {
        if (pass[k].chunk != chunk || pass[k].kind != TESS_PASS_FORWARD) continue;
        int now = 1;
        for (int64_t m = 0; m < pass[k].micro; m++)
            now += until[m] > pass[k].time || (pass[k].paired && until[m] == pass[k].time);
        if (now > most) most = now;
    }
    return most;
}

/* Each of a chunk's micro-batches in flight has a set of tiles. What comes for their forward passes has one set more,
 * so that it may come while a pass still needs all others. */
static void begin_pass(tess_lower *L, const struct tess_pass *pass, const int *sets)
{
    const int chunk = pass->chunk / L->grid->pipeline, v = L->grid->interleave;
    L->p->now.backward = pass->kind != TESS_PASS_FORWARD;
    L->comes = 2 * (chunk + v * (int)(pass->micro % (sets[pass->chunk] + 1))) + 1;
    tess_program_slots(L->p, L->comes, true);
    tess_program_slots(L->p, set_of(L, pass->chunk, pass->micro, sets), pass->kind == TESS_PASS_FORWARD);
}

void tess_lower_pipeline(tess_lower *L, bool *wanted)
{
    int n, cross_count, mine = tess_grid_section(L->grid);
    double known, span, *ends;
    size_t count, at = 0, before = 0;
    TESS_FREED int *chunk = tess_pipeline_chunks(L->g);
    TESS_FREED struct crossing *all = crossings(L, chunk, wanted, &cross_count);
    TESS_FREED struct tess_pass *pass =
        tess_pipeline_order(L->grid, L->micros, L->conf->train, L->pairs, &n, &ends, &known, &span);
    TESS_FREED struct transfer *t = transfers(L, all, cross_count, ends, &count);
    TESS_FREED int *sets = tess_alloc((size_t)tess_chunks(L->grid) * sizeof *sets);
    bool told = false;
    for (int k = 0; k < L->g->nodes; k++) wanted[k] &= of(L, chunk[k]) == mine;
    tess_lower_count(L, wanted);
    for (int c = 0; c < tess_chunks(L->grid); c++)
        if (of(L, c) == mine) sets[c] = in_flight(L, pass, n, c, reads_from(L, chunk, wanted, c), t, count);
    for (int k = 0; k < L->g->params && L->late_norm; k++) /* one place in the order that all sections have */
        if (L->g->param[k]->held->on.shared && !L->g->param[k]->held->on.absent) tess_lower_late(L, L->g->param[k]);
    for (int k = 0; k <= n; k++) {
        const double time = k < n ? pass[k].time : HUGE_VAL;
        if (k < n) begin_pass(L, &pass[k], sets);
        if (!told && time >= known) {
            transfer_until(L, known, t, count, &at, all, sets);
            tess_lower_losses(L);
            told = true;
        }
        transfer_until(L, time, t, count, &at, all, sets);
        tess_lower_owed(L);
        L->recomputed = -1;
        const size_t begin = L->p->tasks;
        if (k < n) run_pass(L, &pass[k], chunk, wanted);
        if (k < n && pass[k].paired && pass[k].kind == TESS_PASS_BACKWARD) tess_program_pair(L->p, before, begin);
        before = begin;
    }
    L->p->now.backward = true;
    for (int k = 0; k < L->g->params && L->conf->train; k++)
        if (L->g->param[k]->held->on.shared) {
            tess_lower_tied(L, L->g->param[k]);
            if (!L->conf->keep_gradients) tess_lower_update(L, L->g->param[k]);
        }
    free(ends);
}
