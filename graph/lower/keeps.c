/* Selective recomputation. With activation checkpointing the backward pass recomputes the activations that it reads of
 * a block. Where there is room, some of them can stay from the forward pass: then neither they nor activations that
 * only they depend on are recomputed. The best ones save the most seconds for their bytes: outputs of products and of
 * attention before those of norms, gelu and additions, which take no longer to compute than to read.
 *
 * The order is found block by block, one output after the other, each time the one that saves the most for its bytes
 * beside those that are kept already; then all blocks' are merged. Of equal ones those of later blocks come first,
 * which are kept for a shorter time. How many of the list are kept is the plan's to say (step/ways.c), and bits do not
 * depend on it: what one task makes with bits of its own, a product and its gelu, is kept together or made again
 * together.
 *
 * For GPT-2 the order is the first addition (it saves the product before it), attention, the products into four and
 * three times the width, then norms and gelu; with the first four, 9 of 15 C elements a token, no product is made
 * again. A GPU keeps no more than fits beside the optimizer's states: 1.7 billion parameters on 32 A100s took 3.3 s
 * with all kept and states in RAM, 1.9 s with none, 1.7 s with what fits. Below a cap a sixteenth is left for tasks
 * that start early. A search over sets of outputs and a key that names ops were not taken: any beginning of one list
 * is a plan. */
#include "graph/lower/lower.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Nodes of a group, beyond which it would take long to say what is best; such a group keeps nothing. */
enum { MOST = 600 };

struct output {
    int node;
    double worth; /* time for its size, no more than of those before it in its block */
    int group, turn;
};

struct search {
    tess_lower L;
    int *pair; /* [node]: the other that is kept with it, or itself */
    bool *wanted, *again;
    const tess_price *price;
    struct output *found;
    int n;
};

/* free() it. */
static int *find_pairs(const tess_graph *g)
{
    int *pair = tess_alloc(((size_t)g->nodes + 1) * sizeof *pair);
    for (int k = 0; k < g->nodes; k++) {
        const tess_node *with = tess_lower_made_with(g->node[k]);
        pair[k] = k;
        if (!with || pair[with->id] != with->id) continue;
        pair[k] = with->id;
        pair[with->id] = k;
    }
    return pair;
}

void tess_lower_keeps(const tess_graph *g, const tess_step_conf *conf, bool *kept)
{
    TESS_FREED int *pair = find_pairs(g);
    for (int i = 0; i < conf->layout.keeps; i++) kept[conf->layout.keep[i]] = kept[pair[conf->layout.keep[i]]] = true;
}

/* The time of what is computed again of nodes [first, last]. */
static double time_of(struct search *s, int first, int last)
{
    double sum = 0;
    tess_lower_find_recomputed(&s->L, first, last, s->wanted, s->again);
    for (int k = first; k <= last; k++) sum += s->again[k] ? (double)s->price[k].time : 0;
    return sum;
}

/* The node of those that are computed again that is best kept next; -1: none is left. */
static int best_of(struct search *s, int first, int last, double *worth)
{
    int best = -1;
    const double now = time_of(s, first, last);
    TESS_FREED bool *can = tess_alloc((size_t)(last - first) + 1);
    memcpy(can, s->again + first, (size_t)(last - first + 1) * sizeof *can);
    *worth = 0;
    for (int k = first; k <= last; k++) {
        if (!can[k - first]) continue;
        const int pair = s->pair[k];
        s->L.kept[k] = s->L.kept[pair] = true;
        const int64_t size = s->price[k].size + (pair != k ? s->price[pair].size : 0);
        const double saved = (now - time_of(s, first, last)) / (double)(size + 1);
        s->L.kept[k] = s->L.kept[pair] = false;
        if (best >= 0 && saved <= *worth) continue;
        best = k;
        *worth = saved;
    }
    return best;
}

static void search_group(struct search *s, int first, int last)
{
    double most = HUGE_VAL, worth;
    const int group = tess_lower_group(&s->L, s->L.g->node[first]);
    for (int turn = 0, k; (k = best_of(s, first, last, &worth)) >= 0; turn++) {
        s->L.kept[k] = s->L.kept[s->pair[k]] = true;
        if (worth < most) most = worth;
        s->found[s->n++] = (struct output){k, most, group, turn};
    }
}

static int by_worth(const void *a, const void *b)
{
    const struct output *x = a, *y = b;
    if (x->worth != y->worth) return x->worth > y->worth ? -1 : 1;
    if (x->group != y->group) return y->group - x->group;
    return x->turn - y->turn;
}

int tess_lower_worth(const tess_tensor *output, const tess_step_conf *conf, const tess_price *price, double least,
                     const int **keep, int *save_it)
{
    tess_graph *g = output->g;
    const size_t nodes = (size_t)g->nodes + 1;
    struct search s = {.L = {.g = g, .conf = conf}, .price = price};
    s.L.kept = tess_alloc(nodes);
    s.pair = find_pairs(g);
    s.L.wants = tess_alloc((size_t)g->tensors + 1);
    s.wanted = tess_alloc(nodes);
    s.again = tess_alloc(nodes);
    s.found = tess_alloc(nodes * sizeof *s.found);
    tess_lower_wants(g, s.L.wants);
    tess_lower_mark(output, s.wanted);
    for (int first = 0, end; first < g->nodes; first = end) {
        const int group = tess_lower_group(&s.L, g->node[first]);
        for (end = first + 1; end < g->nodes && tess_lower_group(&s.L, g->node[end]) == group;) end++;
        if (group >= 0 && end - first <= MOST) search_group(&s, first, end - 1);
    }
    qsort(s.found, (size_t)s.n, sizeof *s.found, by_worth);
    int *list = tess_arena_get(g->arena, (size_t)(s.n + 1) * sizeof *list);
    *save_it = 0;
    for (int k = 0; k < s.n; k++) {
        list[k] = s.found[k].node;
        *save_it += s.found[k].worth >= least;
    }
    *keep = list;
    free(s.L.kept);
    free(s.pair);
    free(s.L.wants);
    free(s.wanted);
    free(s.again);
    free(s.found);
    return s.n;
}
