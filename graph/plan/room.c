/* The room at each moment of a cycle. What is taken is taken from long stretches of moments, many times; so blocks of
 * moments are the leaves of a tree whose nodes know the least of theirs. Of node i the children are 2i and 2i+1;
 * `taken` is what all moments below it gave, over and above what the children, or a leaf's moments, know. Both ends of
 * a stretch climb towards the root; what lies between them are the right siblings on the left path, the left ones on
 * the right. */
#include "graph/plan/plan.h"
#include <stdlib.h>

enum { BLOCK = 16 };

struct node {
    int64_t least, taken;
};

struct tess_room {
    size_t moments, leaves;
    int64_t *moment;
    struct node *node;
};

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t least_of(const tess_room *r, size_t first, size_t end)
{
    int64_t least = INT64_MAX;
    for (size_t k = first; k < end; k++) least = smaller(least, r->moment[k]);
    return least;
}

tess_room *tess_room_new(const int64_t *bytes, size_t moments)
{
    tess_room *r = tess_alloc(sizeof *r);
    r->moments = moments;
    for (r->leaves = 1; r->leaves * BLOCK < moments;) r->leaves *= 2;
    r->moment = tess_alloc(r->leaves * BLOCK * sizeof *r->moment);
    r->node = tess_alloc(2 * r->leaves * sizeof *r->node);
    for (size_t k = 0; k < r->leaves * BLOCK; k++) r->moment[k] = k < moments ? bytes[k] : INT64_MAX;
    for (size_t b = 0; b < r->leaves; b++) r->node[r->leaves + b].least = least_of(r, b * BLOCK, (b + 1) * BLOCK);
    for (size_t i = r->leaves - 1; i > 0; i--)
        r->node[i].least = smaller(r->node[2 * i].least, r->node[2 * i + 1].least);
    return r;
}

void tess_room_free(tess_room *r)
{
    if (!r) return;
    free(r->moment);
    free(r->node);
    free(r);
}

/* The least of the moments [first, end), which are some; or any number below `enough`, once it is known to be. */
static int64_t least_left(const tess_room *r, size_t first, size_t end, int64_t enough)
{
    const size_t from = first / BLOCK, to = (end - 1) / BLOCK;
    size_t i = r->leaves + from, j = r->leaves + to;
    int64_t a = least_of(r, first, from == to ? end : (from + 1) * BLOCK) - r->node[i].taken, b = a;
    if (i != j) b = least_of(r, to * BLOCK, end) - r->node[j].taken;
    for (; i != j; a -= r->node[i].taken, b -= r->node[j].taken) {
        if (a < enough || b < enough) return smaller(a, b);
        const bool meet = i + 1 == j && j % 2;
        if (!meet && i % 2 == 0) a = smaller(a, r->node[i + 1].least);
        if (!meet && j % 2 == 1) b = smaller(b, r->node[j - 1].least);
        i /= 2, j /= 2;
    }
    a = smaller(a, b);
    while ((i /= 2) > 0 && a >= enough) a -= r->node[i].taken;
    return a;
}

static void take_from(tess_room *r, size_t block, size_t first, size_t end, int64_t bytes)
{
    struct node *leaf = &r->node[r->leaves + block];
    for (size_t k = first; k < end; k++) r->moment[k] -= bytes;
    leaf->least = least_of(r, block * BLOCK, (block + 1) * BLOCK) - leaf->taken;
}

static void take_all(struct node *n, int64_t bytes)
{
    n->taken += bytes;
    n->least -= bytes;
}

static void renew(tess_room *r, size_t i)
{
    r->node[i].least = smaller(r->node[2 * i].least, r->node[2 * i + 1].least) - r->node[i].taken;
}

/* From the moments [first, end), which are some. */
static void take(tess_room *r, size_t first, size_t end, int64_t bytes)
{
    const size_t from = first / BLOCK, to = (end - 1) / BLOCK;
    size_t i = r->leaves + from, j = r->leaves + to;
    take_from(r, from, first, from == to ? end : (from + 1) * BLOCK, bytes);
    if (from != to) take_from(r, to, to * BLOCK, end, bytes);
    while (i != j) {
        const bool meet = i + 1 == j && j % 2;
        if (!meet && i % 2 == 0) take_all(&r->node[i + 1], bytes);
        if (!meet && j % 2 == 1) take_all(&r->node[j - 1], bytes);
        i /= 2, j /= 2;
        renew(r, i);
        if (i != j) renew(r, j);
    }
    while ((i /= 2) > 0) renew(r, i);
}

void tess_room_take(tess_room *r, size_t first, size_t count, int64_t bytes)
{
    first %= r->moments;
    const size_t end = first + count, over = end > r->moments ? end - r->moments : 0;
    if (count > 0) take(r, first, end - over, bytes);
    if (over > 0) take(r, 0, over, bytes);
}

bool tess_room_has(const tess_room *r, size_t first, size_t count, int64_t bytes)
{
    first %= r->moments;
    const size_t end = first + count, over = end > r->moments ? end - r->moments : 0;
    return (count == 0 || least_left(r, first, end - over, bytes) >= bytes) &&
           (over == 0 || least_left(r, 0, over, bytes) >= bytes);
}

int64_t tess_room_least(const tess_room *r)
{
    return r->node[1].least;
}
