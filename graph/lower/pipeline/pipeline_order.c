/* Which pass each section of a pipeline takes up next: 1F1B, as many forward passes as it takes to fill the sections
 * behind, then one backward for one forward, which bounds the activations that wait. Interleaved, a section goes round
 * its chunks with a group of micro-batches at a time. In pairs, forward and backward pass go in turns, op by op, of
 * micro-batches that are twice as far apart, since what one makes is there for another section when both have ended:
 * the step takes as long, but for what ranks of the tensor dimension wait for, and twice as many activations wait.
 *
 * The products of a weight's gradient need not come with the others of a backward pass, which the section before waits
 * for. In a zero-bubble order they are a pass of their own (waits.c), which a section takes up where it would wait: the
 * s-th one s micro-batches later (ZB-H1); or, where chunks go forth and back, by a rule that says what a section does
 * whenever it is free (ZB-V). */
#include "graph/lower/pipeline/pipeline_impl.h"
#include <stdlib.h>

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

/* When what a pass reads is there; less than 0: that is not known yet. */
static double ready_at(const struct tess_ends *e, int chunk, int64_t micro, bool backward)
{
    if (!backward) return chunk > 0 ? *tess_end_of(e, chunk - 1, micro, false) : 0;
    return chunk + 1 < e->chunks ? *tess_end_of(e, chunk + 1, micro, true) : *tess_end_of(e, chunk, micro, false);
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
static void order_of(const tess_grid *g, int64_t micros, int section, bool train, bool pairs, order *o)
{
    int64_t all = micros * g->interleave, warm = g->pipeline - 1 - section, f = 0, b = 0;
    if (pairs) warm = 2 * warm + 1;
    if (g->interleave > 1) warm = 2 * warm + (g->interleave - 1) * g->pipeline;
    if (warm > all || !train) warm = all;
    while (f < warm) o->pass[o->n++] = pass_of(g, micros, section, f++, false);
    while (train && b < all) {
        const bool both = f < all;
        if (both) o->pass[o->n++] = pass_of(g, micros, section, f++, false);
        o->pass[o->n++] = pass_of(g, micros, section, b++, true);
        for (int k = 1; k <= 2 && both && pairs; k++) o->pass[o->n - k].paired = true;
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

/* Takes up the next pass of a section, or the next two where they are paired; false where what it reads is yet to come.
 */
static bool take_up(const tess_grid *g, order *o, const struct tess_ends *e)
{
    struct tess_pass *p = &o->pass[o->at];
    const int n = p->paired ? 2 : 1;
    double begin = o->free, length = 0;
    for (int k = 0; k < n; k++) {
        const bool backward = p[k].kind == TESS_PASS_BACKWARD, waited = p[k].kind == TESS_PASS_WEIGHTS;
        const double ready = waited ? 0 : ready_at(e, p[k].chunk, p[k].micro, backward);
        if (ready < 0) return false;
        if (ready > begin) begin = ready;
        length += tess_pass_length(g, backward);
    }
    o->free = begin + length;
    for (int k = 0; k < n; k++) {
        const bool backward = p[k].kind == TESS_PASS_BACKWARD;
        p[k].time = begin;
        if (p[k].kind == TESS_PASS_WEIGHTS) continue;
        *tess_end_of(e, p[k].chunk, p[k].micro, backward) = o->free;
        *tess_begin_of(e, p[k].chunk, p[k].micro, backward) = begin;
    }
    o->at += n;
    return true;
}

/* Plays the orders of all sections through; false where they wait for each other. */
static bool play(const tess_grid *g, order *o, const struct tess_ends *e)
{
    bool moved = true, left = true;
    for (int s = 0; s < g->pipeline; s++) o[s].free = o[s].at = 0;
    for (int64_t i = 0; i < e->chunks * e->micros * 2; i++) e->at[i] = -1;
    while (left && moved) {
        left = moved = false;
        for (int s = 0; s < g->pipeline; s++) {
            while (o[s].at < o[s].n && take_up(g, &o[s], e)) moved = true;
            left |= o[s].at < o[s].n;
        }
    }
    return !left;
}

/* What a section could begin at a time; of the earliest, backward goes before forward, and that before weights, and the
 * chunk that is farther on before the other. */
static bool is_before(const struct tess_pass *a, const struct tess_pass *b)
{
    static const int rank[] = {[TESS_PASS_BACKWARD] = 0, [TESS_PASS_FORWARD] = 1, [TESS_PASS_WEIGHTS] = 2};
    if (a->time != b->time) return a->time < b->time;
    return a->kind != b->kind ? rank[a->kind] < rank[b->kind] : a->chunk > b->chunk;
}

/* What section s does next: next[chunk][backward] are the first micro-batches that have not gone there, `held` counts
 * those that have gone forward and whose gradients of weights are yet to come: they wait from o->at on. A time of less
 * than 0: nothing yet. */
static struct tess_pass next_of(const tess_grid *g, int s, const order *o, const struct tess_ends *e,
                                int64_t (*next)[2], int held, bool train)
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
            const struct tess_pass p = {.chunk = c,
                                        .micro = m,
                                        .kind = back ? TESS_PASS_BACKWARD : TESS_PASS_FORWARD,
                                        .time = ready > o->free ? ready : o->free};
            if (best.time < 0 || is_before(&p, &best)) best = p;
        }
    }
    int at = o->at;
    while (at < o->n && o->pass[at].kind != TESS_PASS_BACKWARD) at++;
    if (at == o->n) return best;
    const struct tess_pass w = {
        .chunk = o->pass[at].chunk, .micro = o->pass[at].micro, .kind = TESS_PASS_WEIGHTS, .time = o->free};
    return best.time < 0 || is_before(&w, &best) ? w : best;
}

/* The order of TESS_ZB_V. A section holds the activations of as many micro-batches as there are sections, as the first
 * one does under 1F1B; the order is what comes of each doing what it can. */
static void play_freely(const tess_grid *g, bool train, order *o, const struct tess_ends *e)
{
    const int64_t passes = (train ? 3 : 1) * e->micros * e->chunks;
    int64_t(*next)[2] = tess_alloc((size_t)e->chunks * sizeof *next);
    TESS_FREED int *held = tess_alloc((size_t)g->pipeline * sizeof *held);
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
        *tess_end_of(e, p.chunk, p.micro, backward) = o[of].free;
        *tess_begin_of(e, p.chunk, p.micro, backward) = p.time;
        next[p.chunk][backward]++;
        held[of] += !backward;
    }
    free(next);
}

struct tess_pass *tess_pipeline_order(const tess_grid *g, int64_t micros, bool train, bool pairs, int *n, double **ends,
                                      double *losses_known, double *span)
{
    TESS_FREED order *o = tess_alloc((size_t)g->pipeline * sizeof *o);
    const struct tess_ends e = { *ends = tess_alloc((size_t)tess_chunks(g) * (size_t)micros * 4 * sizeof **ends),
                                 micros, tess_chunks(g)};
    for (int s = 0; s < g->pipeline; s++)
        o[s].pass = tess_alloc((size_t)(3 * micros * g->interleave) * sizeof *o[s].pass);
    if (g->schedule == TESS_ZB_V) {
        play_freely(g, train, o, &e);
    } else {
        for (int s = 0; s < g->pipeline; s++) order_of(g, micros, s, train, pairs, &o[s]);
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
        const double end = *tess_end_of(&e, e.chunks - 1, m, false);
        if (end > *losses_known) *losses_known = end;
    }
    for (int s = 0; s < g->pipeline; s++) {
        if (o[s].free > *span) *span = o[s].free;
        if (s != mine) free(o[s].pass);
    }
    return pass;
}

double tess_grid_bubble(const tess_grid *g, int64_t micros)
{
    int n;
    double *ends, known, span;
    free(tess_pipeline_order(g, micros, true, false, &n, &ends, &known, &span));
    free(ends);
    return span / (double)(3 * micros * g->interleave) - 1;
}
