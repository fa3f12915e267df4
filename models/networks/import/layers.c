/* Layers of an exported network: runs of nodes that are alike, one behind the other, where one tensor alone goes from
 * each to the next. They are blocks, as a family's layers are: recomputation keeps a block's input alone, and a
 * pipeline is cut between blocks.
 *
 * There is a cut between two nodes where exactly one value that depends on parameters and samples is still to be read.
 * The nodes between two cuts are a segment. A layer is a group of segments that repeats; the longest run of such groups
 * is marked first. */
#include "models/networks/import/import_impl.h"
#include "models/text/base/mapped.h"
#include "models/text/base/text.h"
#include <stdlib.h>
#include <string.h>

enum { OF_PARAMS = 1, OF_SAMPLES = 2, LIVE = 3 };
enum { MOST_SEGMENTS = 4096, MOST_PERIOD = 256 }; /* of longer ones none are looked for */

/* What is between two cuts; `value` crosses the one that begins it. */
typedef struct segment {
    int first, end, value, work;
    uint64_t sum;
} segment;

typedef struct search {
    const tess_import *n;
    segment *of;
    int *layer;
} search;

/* What values are made of. */
static char *makings(const tess_import *n)
{
    char *of = tess_alloc((size_t)n->values);
    for (int v = 0; v < n->values; v++) {
        if (n->value[v].kind == VALUE_PARAM) of[v] = OF_PARAMS;
        if (n->value[v].kind == VALUE_INPUT && n->value[v].batch >= 0) of[v] = OF_SAMPLES;
    }
    for (int k = 0; k < n->nodes; k++)
        for (int i = 0; i < n->node[k].inputs; i++) of[n->node[k].out] |= of[n->node[k].in[i]];
    return of;
}

/* Adds to a sum what a node is, wherever in the network it stands: its op, shape and attributes, and which of the
 * segment's nodes, or what else, it reads. */
static uint64_t add_node(const tess_import *n, const node *of, int first, uint64_t sum)
{
    static const char *const place[] = {"name", "in", "at"};
    TESS_FREED_JSON json_t *same = json_copy(of->json);
    for (size_t i = 0; i < sizeof place / sizeof *place; i++) json_object_del(same, place[i]);
    TESS_FREED char *text = json_dumps(same, JSON_COMPACT | JSON_SORT_KEYS);
    sum = tess_sum_bytes(sum, text, strlen(text));
    for (int i = 0; i < of->inputs; i++) {
        const value *v = &n->value[of->in[i]];
        const bool inside = v->kind == VALUE_NODE && v->maker >= first;
        const int64_t reads[] = {v->kind, inside ? v->maker - first : -1, v->element, v->dims.rank};
        sum = tess_sum_bytes(sum, reads, sizeof reads);
        sum = tess_sum_bytes(sum, v->dims.dim, (size_t)v->dims.rank * sizeof *v->dims.dim);
    }
    return sum;
}

static void describe(const tess_import *n, segment *s)
{
    s->sum = TESS_SUM;
    for (int k = s->first; k < s->end; k++) {
        s->sum = add_node(n, &n->node[k], s->first, s->sum);
        s->work += !strcmp(n->node[k].op, "dot") || !strcmp(n->node[k].op, "conv");
    }
}

/* Finds the segments, and returns how many there are. */
static int segments(const tess_import *n, segment *of)
{
    int *last = tess_alloc((size_t)n->values * sizeof *last), count = 0, live = 0;
    int64_t crossing = 0; /* the sum of the values that are live: of one, that one */
    TESS_FREED char *made = makings(n);
    for (int k = 0; k < n->nodes; k++)
        for (int i = 0; i < n->node[k].inputs; i++) last[n->node[k].in[i]] = k;
    for (int k = 0; k < n->nodes; k++) {
        const node *at = &n->node[k];
        if (live == 1) {
            if (count) of[count - 1].end = k;
            of[count++] = (segment){.first = k, .end = n->nodes, .value = (int)crossing};
        }
        for (int i = 0; i < at->inputs; i++) {
            const int v = at->in[i];
            bool again = false;
            for (int j = 0; j < i; j++) again |= at->in[j] == v;
            if (again || n->value[v].kind != VALUE_NODE || made[v] != LIVE || last[v] != k) continue;
            live--, crossing -= v;
        }
        if (made[at->out] == LIVE && last[at->out] > k) live++, crossing += at->out;
    }
    for (int k = 0; k < count; k++) describe(n, &of[k]);
    free(last);
    return count;
}

/* Marks runs among segments [first, end): the one of the most nodes, and those on both sides of it. */
static void find(search *s, int first, int end)
{
    int at = 0, period = 0, turns = 0, most = 0;
    for (int p = 1; p <= (end - first) / 2 && p <= MOST_PERIOD; p++)
        for (int k = first, alike = 0, work = 0; k + p < end; k++) {
            alike = s->of[k].sum == s->of[k + p].sum ? alike + 1 : 0;
            work = alike ? work + s->of[k].work : 0;
            const int times = alike / p + 1, from = k + 1 - alike;
            if (alike % p || times < 2 || !work) continue;
            const int nodes = s->of[from + times * p - 1].end - s->of[from].first;
            if (nodes > most) most = nodes, at = from, period = p, turns = times;
        }
    if (!most) return;
    for (int t = 0; t < turns; t++) s->layer[s->of[at + t * period].first] = s->of[at + t * period].value;
    const segment *behind = &s->of[at + turns * period - 1];
    if (behind->end < s->n->nodes && s->layer[behind->end] == TESS_NO_LAYER) s->layer[behind->end] = TESS_LAYERS_END;
    find(s, first, at);
    find(s, at + turns * period, end);
}

int *tess_import_layers(const tess_import *n)
{
    search s = {n, tess_alloc((size_t)(n->nodes + 1) * sizeof *s.of), tess_alloc((size_t)(n->nodes + 1) * sizeof(int))};
    for (int k = 0; k <= n->nodes; k++) s.layer[k] = TESS_NO_LAYER;
    const int count = segments(n, s.of);
    if (count <= MOST_SEGMENTS) find(&s, 0, count);
    free(s.of);
    return s.layer;
}
