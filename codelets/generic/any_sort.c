/* any_sort: the places of elements along one dimension, in the order of their values; equal ones stay in order. What is
 * no number is more than all others. Keys are whole numbers in the same order, and runs of places are merged. */
#include "codelets/generic.h"
#include "codelets/generic/walk.h"

enum { PART = 16 << 10 };

typedef struct task {
    const tess_any_sort_arg *a;
    const void *x;
    int32_t *y, *room;
} task;

static int32_t key_of(const tess_any_sort_arg *a, const void *x, int64_t at)
{
    const float real = ((const float *)x)[at];
    int32_t bits = ((const int32_t *)x)[at];
    if (a->element == TESS_REAL) {
        if (real != real) bits = INT32_MAX;
        if (real == 0) bits = 0;
        if (bits < 0) bits ^= INT32_MAX;
    }
    return a->descending ? ~bits : bits;
}

static void merge(const int32_t *key, const int32_t *from, int32_t *to, int64_t first, int64_t middle, int64_t end)
{
    int64_t a = first, b = middle;
    for (int64_t k = first; k < end; k++)
        to[k] = b == end || (a < middle && key[from[a]] <= key[from[b]]) ? from[a++] : from[b++];
}

static void sort_line(const tess_any_sort_arg *a, const void *x, int64_t first, int32_t *y, int32_t *room)
{
    const int64_t n = a->n;
    int32_t *key = room, *from = room + n, *to = room + 2 * n;
    for (int64_t i = 0; i < n; i++) key[i] = key_of(a, x, first + i * a->inner), from[i] = (int32_t)i;
    for (int64_t width = 1; width < n; width *= 2) {
        for (int64_t at = 0; at < n; at += 2 * width)
            merge(key, from, to, at, least(at + width, n), least(at + 2 * width, n));
        int32_t *made = to;
        to = from, from = made;
    }
    for (int64_t i = 0; i < n; i++) y[first + i * a->inner] = from[i];
}

static int64_t each_of(const tess_any_sort_arg *a)
{
    return a->n < PART ? PART / a->n : 1;
}

static void part(void *of, int64_t p)
{
    const task *t = of;
    const tess_any_sort_arg *a = t->a;
    const int64_t each = each_of(a), end = least(a->outer * a->inner, (p + 1) * each);
    int32_t *room = tess_part_room(t->room, tess_any_sort_scratch(a));
    for (int64_t k = p * each; k < end; k++)
        sort_line(a, t->x, k / a->inner * a->n * a->inner + k % a->inner, t->y, room);
}

size_t tess_any_sort_scratch(const tess_any_sort_arg *a)
{
    return (size_t)(3 * a->n) * sizeof(int32_t);
}

static int64_t any_sort_parts(const tess_codelet *cl, const void *arg)
{
    const tess_any_sort_arg *a = arg;
    (void)cl;
    return (a->outer * a->inner + each_of(a) - 1) / each_of(a);
}

static void any_sort(const tess_work *w)
{
    task t = {.a = w->arg, .x = w->buf[0].ptr, .y = w->buf[1].ptr, .room = w->buf[2].ptr};
    tess_parts_run(any_sort_parts(NULL, w->arg), part, &t);
}
tess_codelet tess_any_sort[] = {
    {.name = "any_sort", .dtype = TESS_F32, .cpu = any_sort, .cpu_alone = true, .parts = any_sort_parts}};
