/* any_dot: c [+]= a b over batch, free and contracted dimensions. Each of the three is a matrix where its dimensions of
 * a kind lie one behind the other; what is none is copied to scratch as one, c back from there. */
#include "any.h"
#include "mm.h"
#include "walk_impl.h"

enum { BATCH, ROWS, COLUMNS, INNER };

/* One operand of the product of one batch: `by` strides of its (up, across) dimensions. */
typedef struct operand {
    const int64_t *dim[2], *by[2];
    int rank[2];
    int64_t size[2];
    bool is_matrix, turned; /* turned: its dimension `up` is the dense one */
    int64_t ld;
} operand;

static operand operand_of(const tess_any_dot_arg *a, const int64_t (*by)[TESS_RANK_MOST], int up, int across)
{
    operand o = {
        .dim = {a->dim[up], a->dim[across]}, .by = {by[up], by[across]}, .rank = {a->rank[up], a->rank[across]}};
    int64_t stride[2];
    for (int k = 0; k < 2; k++) {
        o.size[k] = walk_size(o.dim[k], o.rank[k]);
        stride[k] = walk_joint(o.dim[k], o.by[k], o.rank[k]);
    }
    o.ld = o.size[1];
    if (stride[0] < 0 || stride[1] < 0) return o;
    if (o.size[1] == 1 && o.size[0] > 1) { /* a column */
        o.is_matrix = true;
        o.turned = stride[0] == 1;
        o.ld = o.turned ? o.size[0] : stride[0];
    } else if (o.size[0] == 1) {
        o.is_matrix = stride[1] == 1;
    } else if (stride[1] == 1 && stride[0] >= o.size[1]) {
        o.is_matrix = true;
        o.ld = stride[0];
    } else if (stride[0] == 1 && stride[1] >= o.size[0]) {
        o.is_matrix = o.turned = true;
        o.ld = stride[1];
    }
    return o;
}

/* Between an operand and a matrix of it. */
static void copy(const operand *o, float *x, float *m, bool back, bool acc)
{
    walk up = walk_begin(o->dim[0], o->rank[0], 0);
    for (int64_t i = 0; i < o->size[0]; i++) {
        float *row = x + walk_at(&up, o->by[0]);
        walk across = walk_begin(o->dim[1], o->rank[1], 0);
        for (int64_t j = 0; j < o->size[1];) {
            const int64_t run = walk_run(&across, o->size[1] - j);
            const int64_t by = o->rank[1] ? o->by[1][o->rank[1] - 1] : 0, at = walk_at(&across, o->by[1]);
            float *from = row + at, *to = m + i * o->size[1] + j;
            for (int64_t k = 0; k < run && !back; k++) to[k] = from[k * by];
            for (int64_t k = 0; k < run && back; k++) from[k * by] = acc ? from[k * by] + to[k] : to[k];
            walk_on(&across, run);
            j += run;
        }
        walk_on(&up, 1);
    }
}

typedef struct dot {
    const tess_any_dot_arg *arg;
    operand a, b, c;
    float *data[3], *room;
} dot;

static dot dot_of(const tess_any_dot_arg *a)
{
    return (dot){.arg = a,
                 .a = operand_of(a, a->a, ROWS, INNER),
                 .b = operand_of(a, a->b, INNER, COLUMNS),
                 .c = operand_of(a, a->c, ROWS, COLUMNS)};
}

static int64_t room_of(const operand *o)
{
    return o->is_matrix ? 0 : (o->size[0] * o->size[1] + 15) / 16 * 16;
}

size_t tess_any_dot_scratch(const tess_any_dot_arg *a)
{
    const dot d = dot_of(a);
    return (size_t)(room_of(&d.a) + room_of(&d.b) + room_of(&d.c)) * sizeof(float);
}

/* The product of matrices; a c that is turned is made as b^T a^T. */
static void product(const operand *a, const operand *b, const operand *c, float *x, float *y, float *z, bool acc,
                    bool one)
{
    tess_mm m = {.m = a->size[0],
                 .n = b->size[1],
                 .k = a->size[1],
                 .lda = a->ld,
                 .ldb = b->ld,
                 .ldc = c->ld,
                 .ta = a->turned,
                 .tb = b->turned,
                 .acc = acc,
                 .part = one};
    if (c->is_matrix && c->turned) {
        m = (tess_mm){.m = b->size[1],
                      .n = a->size[0],
                      .k = a->size[1],
                      .lda = b->ld,
                      .ldb = a->ld,
                      .ldc = c->ld,
                      .ta = !b->turned,
                      .tb = !a->turned,
                      .acc = acc,
                      .part = one};
        tess_mm_run(&m, y, x, z);
        return;
    }
    tess_mm_run(&m, x, y, z);
}

static void one_batch(const dot *d, int64_t k, bool one)
{
    const tess_any_dot_arg *a = d->arg;
    const walk w = walk_begin(a->dim[BATCH], a->rank[BATCH], k);
    float *x = d->data[0] + walk_at(&w, a->a[BATCH]), *y = d->data[1] + walk_at(&w, a->b[BATCH]),
          *z = d->data[2] + walk_at(&w, a->c[BATCH]), *room = d->room;
    operand oa = d->a, ob = d->b;
    if (!oa.is_matrix) {
        copy(&oa, x, room, false, false);
        x = room;
        room += room_of(&oa);
    }
    if (!ob.is_matrix) {
        copy(&ob, y, room, false, false);
        y = room;
        room += room_of(&ob);
    }
    if (d->c.is_matrix) {
        product(&oa, &ob, &d->c, x, y, z, a->acc, one);
        return;
    }
    product(&oa, &ob, &d->c, x, y, room, false, one);
    copy(&d->c, z, room, true, a->acc);
}

static void part(void *of, int64_t k)
{
    one_batch(of, k, true);
}

static bool in_parts(const dot *d)
{
    return d->a.is_matrix && d->b.is_matrix && d->c.is_matrix;
}

static int64_t any_dot_parts(const tess_codelet *cl, const void *arg)
{
    const tess_any_dot_arg *a = arg;
    const dot d = dot_of(a);
    (void)cl;
    return in_parts(&d) ? walk_size(a->dim[BATCH], a->rank[BATCH]) : 1;
}

static void any_dot(const tess_work *w)
{
    const tess_any_dot_arg *a = w->arg;
    dot d = dot_of(a);
    const int64_t batches = walk_size(a->dim[BATCH], a->rank[BATCH]);
    for (int k = 0; k < 3; k++) d.data[k] = (float *)w->buf[k].ptr + a->at[k];
    d.room = w->nbuf > 3 ? w->buf[3].ptr : NULL;
    if (batches > 1 && in_parts(&d))
        tess_parts_run(batches, part, &d);
    else
        for (int64_t k = 0; k < batches; k++) one_batch(&d, k, false);
}

static tess_cost any_dot_cost(const void *arg)
{
    const tess_any_dot_arg *a = arg;
    double n = 2;
    int64_t rows = 1;
    for (int kind = 0; kind < 4; kind++) n *= (double)walk_size(a->dim[kind], a->rank[kind]);
    rows = walk_size(a->dim[ROWS], a->rank[ROWS]);
    return (tess_cost){.flops = n, .rows = (double)rows};
}
tess_codelet tess_any_dot[] = {
    {.name = "any_dot", .dtype = TESS_F32, .cpu = any_dot, .parts = any_dot_parts, .cost = any_dot_cost}};
