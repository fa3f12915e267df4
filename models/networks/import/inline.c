/* Which values with several readers are part of each reader's expression, and no tensor: those that all readers join to
 * one value in the end. Without this a relu would store what it is taken of. What is cheap to compute again is not
 * enough: a norm's input without its mean is stored, since the gradient's mean is taken away exactly only where both
 * are of the same rounded numbers. */
#include "models/networks/import/build.h"
#include "models/text/base/text.h"
#include <string.h>

enum { CHAIN = 4 }; /* readers between a value and where all join */

void tess_build_readers(building *b)
{
    const tess_import *n = b->n;
    int total = 0;
    b->readers = tess_alloc((size_t)(n->values + 1) * sizeof *b->readers);
    for (int k = 0; k < n->nodes; k++)
        for (int i = 0; i < n->node[k].inputs; i++) b->readers[n->node[k].in[i] + 1]++, total++;
    for (int v = 0; v < n->values; v++) b->readers[v + 1] += b->readers[v];
    b->reader = tess_alloc((size_t)(total + 1) * sizeof *b->reader);
    TESS_FREED int *next = tess_alloc((size_t)(n->values + 1) * sizeof *next);
    for (int v = 0; v < n->values; v++) next[v] = b->readers[v];
    for (int k = 0; k < n->nodes; k++)
        for (int i = 0; i < n->node[k].inputs; i++) b->reader[next[n->node[k].in[i]]++] = k;
}

/* A map, of cheap functions alone, whose operands are of its result's shape or repeated. */
static bool is_cheap_map(const node *of)
{
    const char *fn = json_string_value(json_object_get(of->json, "fn"));
    return !strcmp(of->op, "map") && fn && tess_fn_is_cheap(tess_fn_find(fn));
}

/* Returns whether all readers of v are cheap maps, and the last of them reads all others: through cheap maps with one
 * reader each, or directly. */
bool tess_form_is_inlined(const building *b, int v)
{
    const int first = b->readers[v], end = b->readers[v + 1];
    if (end - first != b->n->value[v].uses || end == first) return false; /* an output reads it too */
    const int last = b->reader[end - 1];
    for (int i = first; i < end; i++) {
        int k = b->reader[i];
        for (int steps = 0; k != last; steps++) {
            const node *of = &b->n->node[k];
            if (steps == CHAIN || b->n->value[of->out].uses != 1 ||
                b->readers[of->out + 1] - b->readers[of->out] != 1 || !is_cheap_map(of))
                return false;
            k = b->reader[b->readers[of->out]];
        }
    }
    return is_cheap_map(&b->n->node[last]);
}
