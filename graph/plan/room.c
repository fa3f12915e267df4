/* The room at each moment of a cycle, in a tree whose nodes know the least of theirs: what is taken is taken from long
 * stretches of moments, many times. Of node i the children are 2i and 2i+1; `taken` is what all moments below it gave,
 * over and above what the children know. */
#include "plan.h"
#include <stdlib.h>

struct tess_room {
    size_t moments, leaves;
    int64_t *least, *taken;
};

tess_room *tess_room_new(const int64_t *bytes, size_t moments)
{
    tess_room *r = tess_alloc(sizeof *r);
    r->moments = moments;
    for (r->leaves = 1; r->leaves < moments;) r->leaves *= 2;
    r->least = tess_alloc(2 * r->leaves * sizeof *r->least);
    r->taken = tess_alloc(2 * r->leaves * sizeof *r->taken);
    for (size_t i = 0; i < r->leaves; i++) r->least[r->leaves + i] = i < moments ? bytes[i] : INT64_MAX;
    for (size_t i = r->leaves - 1; i > 0; i--) {
        int64_t a = r->least[2 * i], b = r->least[2 * i + 1];
        r->least[i] = a < b ? a : b;
    }
    return r;
}

void tess_room_free(tess_room *r)
{
    if (!r) return;
    free(r->least);
    free(r->taken);
    free(r);
}

/* Takes `bytes` from the moments [first, end) below node i, which has [at, at + width); the least that is left there.
 */
static int64_t take(tess_room *r, size_t i, size_t at, size_t width, size_t first, size_t end, int64_t bytes)
{
    if (first >= end || end <= at || at + width <= first) return INT64_MAX;
    if (first <= at && at + width <= end) {
        r->taken[i] += bytes;
        return r->least[i] -= bytes;
    }
    int64_t a = take(r, 2 * i, at, width / 2, first, end, bytes);
    int64_t b = take(r, 2 * i + 1, at + width / 2, width / 2, first, end, bytes);
    int64_t x = r->least[2 * i], y = r->least[2 * i + 1];
    r->least[i] = (x < y ? x : y) - r->taken[i];
    a = a < b ? a : b;
    return a == INT64_MAX ? a : a - r->taken[i];
}

int64_t tess_room_take(tess_room *r, size_t first, size_t count, int64_t bytes)
{
    size_t n = r->moments;
    first %= n;
    size_t end = first + count, over = end > n ? end - n : 0;
    int64_t a = take(r, 1, 0, r->leaves, first, end - over, bytes), b = take(r, 1, 0, r->leaves, 0, over, bytes);
    return a < b ? a : b;
}

int64_t tess_room_least(const tess_room *r)
{
    return r->least[1];
}
