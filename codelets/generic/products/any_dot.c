/* any_dot: c [+]= a b over batch, free and contracted dimensions. Each of the three is a matrix where its dimensions of
 * a kind lie one behind the other; what is none is copied to scratch as one, c back from there. */
#include "codelets/generic/products/dot_impl.h"
#include "codelets/generic/walk.h"
#include "codelets/products/mm.h"

static dot_operand operand_of(const tess_any_dot_arg *a, const int64_t (*by)[TESS_RANK_MOST], int up, int across)
{
    dot_operand o = {
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

/* A matrix of an operand. */
static void pack(const dot_operand *o, const void *x, void *m, tess_dtype t)
{
    walk up = walk_begin(o->dim[0], o->rank[0], 0);
    for (int64_t i = 0; i < o->size[0]; i++) {
        const int64_t row = walk_at(&up, o->by[0]);
        walk across = walk_begin(o->dim[1], o->rank[1], 0);
        for (int64_t j = 0; j < o->size[1];) {
            const int64_t run = walk_run(&across, o->size[1] - j);
            const int64_t by = o->rank[1] ? o->by[1][o->rank[1] - 1] : 0, at = row + walk_at(&across, o->by[1]),
                          to = i * o->size[1] + j;
            for (int64_t k = 0; k < run && t == TESS_F32; k++) ((float *)m)[to + k] = ((const float *)x)[at + k * by];
            for (int64_t k = 0; k < run && t != TESS_F32; k++)
                ((uint16_t *)m)[to + k] = ((const uint16_t *)x)[at + k * by];
            walk_on(&across, run);
            j += run;
        }
        walk_on(&up, 1);
    }
}

/* c [+]= a matrix of it. */
static void unpack(const dot_operand *o, void *x, const float *m, bool acc, tess_dtype t)
{
    walk up = walk_begin(o->dim[0], o->rank[0], 0);
    for (int64_t i = 0; i < o->size[0]; i++) {
        const int64_t row = walk_at(&up, o->by[0]);
        walk across = walk_begin(o->dim[1], o->rank[1], 0);
        for (int64_t j = 0; j < o->size[1];) {
            const int64_t run = walk_run(&across, o->size[1] - j);
            const int64_t by = o->rank[1] ? o->by[1][o->rank[1] - 1] : 0;
            tess_walk_store(x, row + walk_at(&across, o->by[1]), by, m + i * o->size[1] + j, run, acc, t);
            walk_on(&across, run);
            j += run;
        }
        walk_on(&up, 1);
    }
}

dot tess_dot_of(const tess_any_dot_arg *a, tess_dtype in)
{
    return (dot){.a = operand_of(a, a->a, DOT_ROWS, DOT_INNER),
                 .b = operand_of(a, a->b, DOT_INNER, DOT_COLUMNS),
                 .c = operand_of(a, a->c, DOT_ROWS, DOT_COLUMNS),
                 .in = in,
                 .arg = a};
}

static size_t room_of(const dot_operand *o, tess_dtype t)
{
    return o->is_matrix ? 0 : (size_t)((o->size[0] * o->size[1] + 15) / 16 * 16) * tess_dtype_size(t);
}

size_t tess_any_dot_scratch(const tess_any_dot_arg *a, tess_dtype in)
{
    const dot d = tess_dot_of(a, in);
    return room_of(&d.a, in) + room_of(&d.b, in) + room_of(&d.c, TESS_F32);
}

/* The product of matrices; a c that is turned is made as b^T a^T. */
static void product(const dot_operand *a, const dot_operand *b, const dot_operand *c, tess_mm m, const void *x,
                    const void *y, void *z)
{
    const bool turned = c->is_matrix && c->turned;
    const dot_operand *left = turned ? b : a, *right = turned ? a : b;
    m.m = turned ? b->size[1] : a->size[0];
    m.n = turned ? a->size[0] : b->size[1];
    m.k = a->size[1];
    m.lda = left->ld, m.ldb = right->ld, m.ldc = c->ld;
    m.ta = left->turned != turned, m.tb = right->turned != turned;
    tess_mm_run(&m, turned ? y : x, turned ? x : y, z);
}

/* Returns an operand as a matrix: as it lies or, where that is none, packed into *room, which moves on past it. */
static const void *packed(const dot_operand *o, const void *x, char **room, tess_dtype t)
{
    if (o->is_matrix) return x;
    void *m = *room;
    pack(o, x, m, t);
    *room += room_of(o, t);
    return m;
}

typedef struct task {
    dot d;
    char *data[3], *room;
} task;

static void one_batch(const task *t, int64_t k, bool one)
{
    const dot *d = &t->d;
    const tess_any_dot_arg *a = d->arg;
    const walk w = walk_begin(a->dim[DOT_BATCH], a->rank[DOT_BATCH], k);
    char *room = t->room;
    const void *x = packed(&d->a, tess_at(t->data[0], walk_at(&w, a->a[DOT_BATCH]), d->in), &room, d->in),
               *y = packed(&d->b, tess_at(t->data[1], walk_at(&w, a->b[DOT_BATCH]), d->in), &room, d->in);
    void *z = tess_at_mut(t->data[2], walk_at(&w, a->c[DOT_BATCH]), a->to);
    const bool direct = d->c.is_matrix;
    const tess_mm m = {.in = d->in, .out = direct ? a->to : TESS_F32, .acc = direct && a->acc, .part = one};
    product(&d->a, &d->b, &d->c, m, x, y, direct ? z : room);
    if (!direct) unpack(&d->c, z, (float *)(void *)room, a->acc, a->to);
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
    const dot d = tess_dot_of(a, cl->dtype);
    return in_parts(&d) ? walk_size(a->dim[DOT_BATCH], a->rank[DOT_BATCH]) : 1;
}

TESS_INLINE void any_dot(const tess_work *w, tess_dtype t)
{
    const tess_any_dot_arg *a = w->arg;
    task of = {.d = tess_dot_of(a, t), .room = w->nbuf > 3 ? w->buf[3].ptr : NULL};
    const int64_t batches = walk_size(a->dim[DOT_BATCH], a->rank[DOT_BATCH]);
    for (int k = 0; k < 3; k++) of.data[k] = tess_at_mut(w->buf[k].ptr, a->at[k], k == 2 ? a->to : t);
    if (batches > 1 && in_parts(&of.d))
        tess_parts_run(batches, part, &of);
    else
        for (int64_t k = 0; k < batches; k++) one_batch(&of, k, false);
}

static tess_cost any_dot_cost(const void *arg, tess_dtype t)
{
    const tess_any_dot_arg *a = arg;
    double n = 2;
    (void)t;
    for (int kind = 0; kind < 4; kind++) n *= (double)walk_size(a->dim[kind], a->rank[kind]);
    return (tess_cost){.flops = n, .rows = (double)walk_size(a->dim[DOT_ROWS], a->rank[DOT_ROWS])};
}
TESS_PART_COST(any_dot)
