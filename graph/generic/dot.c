/* any_dot: products over batch, free and contracted dimensions; its gradients are such products. */
#include "graph/generic/generic_impl.h"
#include <string.h>

enum { BATCH, ROWS, COLUMNS, INNER, KINDS };
enum { A, B, C };

/* Which dimension of a, b and c is the j-th of a kind; -1: none is. */
struct attributes {
    tess_nd nd;
    int rank[KINDS], of[KINDS][TESS_RANK_MOST][3];
};

static bool is_of(const int *list, int n, int d, int *at)
{
    for (*at = 0; *at < n; ++*at)
        if (list[*at] == d) return true;
    return false;
}

/* ---- lowering ---- */

/* Where operand `which` of turn i begins, and its strides; a whole one beside rows is read at their offset. */
static void place(const tess_lower *L, const tess_node *n, const struct attributes *a, int which, int i,
                  const tess_tensor *t, int64_t by[KINDS][TESS_RANK_MOST], int64_t *at)
{
    const tess_nd_tile tile = tess_nd_tile_of(L, t, i);
    const tess_tensor *all[] = {n->in[0], n->in[1], n->out};
    *at = 0;
    memset(by, 0, sizeof(int64_t[KINDS][TESS_RANK_MOST]));
    for (int kind = 0; kind < KINDS; kind++)
        for (int j = 0; j < a->rank[kind]; j++) {
            const int *of = a->of[kind][j];
            if (of[which] < 0) continue;
            by[kind][j] = tile.by[of[which]];
            if (tess_has_rows(t)) continue;
            for (int o = 0; o < 3; o++)
                if (of[o] >= 0 && all[o]->nd->at == of[o]) {
                    *at = tess_first_sample(L, i) * all[o]->nd->times * tile.by[of[which]];
                    break;
                }
        }
}

/* Sizes of the dimensions, of whichever tensor is cut. */
static void sizes(const tess_lower *L, const tess_node *n, const struct attributes *a, int i, tess_any_dot_arg *d)
{
    const tess_tensor *all[] = {n->in[0], n->in[1], n->out};
    for (int kind = 0; kind < KINDS; kind++) {
        d->rank[kind] = a->rank[kind];
        for (int j = 0; j < a->rank[kind]; j++)
            for (int o = 0; o < 3; o++) {
                const int k = a->of[kind][j][o];
                if (k < 0) continue;
                const int64_t size = tess_nd_tile_of(L, all[o], i).dim[k];
                if (!d->dim[kind][j] || size < d->dim[kind][j]) d->dim[kind][j] = size;
            }
    }
}

/* `in`: the dtype of a and b. */
static void emit(tess_lower *L, const tess_any_dot_arg *d, tess_dtype in, tess_use a, tess_use b, tess_use c)
{
    const size_t scratch = tess_any_dot_scratch(d, in);
    tess_use use[4] = {a, b, c};
    if (scratch) use[3] = tess_scratch_use(L, scratch);
    tess_emit(L, &tess_any_dot[in], tess_arg_copy(L, d, sizeof *d), use, scratch ? 4 : 3);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *a = n->attributes;
    tess_any_dot_arg d = {0};
    if (i >= tess_nd_turns(L, n)) return;
    sizes(L, n, a, i, &d);
    place(L, n, a, A, i, n->in[0], d.a, &d.at[0]);
    place(L, n, a, B, i, n->in[1], d.b, &d.at[1]);
    place(L, n, a, C, i, n->out, d.c, &d.at[2]);
    const tess_use x = tess_nd_read(L, n, 0, i), y = tess_nd_read(L, n, 1, i), z = tess_nd_out(L, n, i, &d.acc);
    d.to = tess_dtype_of(L, n->out);
    emit(L, &d, tess_dtype_of(L, n->in[0]), x, y, z);
}

static void swap_kinds(tess_any_dot_arg *d, const int kind[KINDS])
{
    const tess_any_dot_arg old = *d;
    for (int k = 0; k < KINDS; k++) {
        d->rank[k] = old.rank[kind[k]];
        memcpy(d->dim[k], old.dim[kind[k]], sizeof d->dim[k]);
        memcpy(d->a[k], old.a[kind[k]], sizeof d->a[k]);
        memcpy(d->b[k], old.b[kind[k]], sizeof d->b[k]);
        memcpy(d->c[k], old.c[kind[k]], sizeof d->c[k]);
    }
}

/* The whole tensor's gradient has parts that this turn leaves alone. */
static bool is_part(const tess_node *n, const struct attributes *a, int which)
{
    const tess_tensor *all[] = {n->in[0], n->in[1], n->out};
    for (int kind = 0; kind < KINDS; kind++)
        for (int j = 0; j < a->rank[kind]; j++)
            for (int o = 0; o < 3 && a->of[kind][j][which] >= 0 && !tess_has_rows(all[which]); o++)
                if (a->of[kind][j][o] >= 0 && all[o]->nd->at == a->of[kind][j][o]) return true;
    return false;
}

static void gradient(tess_lower *L, const tess_node *n, int i, int which)
{
    const struct attributes *a = n->attributes;
    const int other = which == A ? B : A;
    tess_any_dot_arg d = {0};
    sizes(L, n, a, i, &d);
    place(L, n, a, which, i, n->in[which], d.c, &d.at[2]);
    place(L, n, a, C, i, n->out, which == A ? d.a : d.b, &d.at[which == A ? 0 : 1]);
    place(L, n, a, other, i, n->in[other], which == A ? d.b : d.a, &d.at[which == A ? 1 : 0]);
    const tess_use dy = tess_grad_read(L, n->out, i), y = tess_nd_read(L, n, other, i);
    const tess_nd_grad g = tess_nd_grad_begin(L, n->in[which], i, is_part(n, a, which));
    d.acc = g.acc;
    d.to = tess_grad_dtype(L, n->in[which]);
    if (which == A) { /* da (rows, inner) = dy (rows, columns) b (columns, inner) */
        swap_kinds(&d, (const int[]){BATCH, ROWS, INNER, COLUMNS});
        emit(L, &d, tess_dtype_of(L, n->out), dy, y, g.use);
    } else { /* db (inner, columns) = a (inner, rows) dy (rows, columns) */
        swap_kinds(&d, (const int[]){BATCH, INNER, COLUMNS, ROWS});
        emit(L, &d, tess_dtype_of(L, n->out), y, dy, g.use);
    }
    tess_nd_grad_end(L, &g);
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    if (tess_nd_idle(L, n, i)) return;
    if (tess_wants_gradient(L, n->in[0])) gradient(L, n, i, A);
    if (tess_wants_gradient(L, n->in[1])) gradient(L, n, i, B);
}

/* ---- sharing out ---- */

/* A batch dimension is all tensors', a free one a factor's and the product's, and over the others there are sums. */
static const char *split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    const struct attributes *a = n->attributes;
    const int which = slot ? slot - 1 : C;
    for (int kind = 0; kind < KINDS; kind++)
        for (int j = 0; j < a->rank[kind]; j++) {
            if (a->of[kind][j][which] != is->dim) continue;
            for (int o = 0; o < 3; o++) {
                const int to = o == C ? 0 : o + 1, dim = a->of[kind][j][o];
                s->of[to] = *is;
                s->of[to].dim = dim;
                s->has[to] = dim >= 0 ? TESS_HAS_SOME : o == C ? TESS_HAS_SUM : TESS_HAS_ALL;
            }
            return NULL;
        }
    return "has no such dimension";
}

static int begins(const tess_node *n, int k)
{
    const struct attributes *a = n->attributes;
    for (int kind = 0; kind < INNER; kind++)
        for (int j = 0; j < a->rank[kind]; j++) {
            const int *of = a->of[kind][j];
            bool comes = false;
            for (int o = 0; o < C; o++) comes |= of[o] >= 0 && tess_nd_is_weight(n->in[o]);
            if (comes && n->out->nd->at != of[C] && k-- == 0) return of[C];
        }
    return -1;
}

static const tess_op op = {.name = "any_dot",
                           .takes = "a, b",
                           .reads = TESS_READS_IN0 | TESS_READS_IN1,
                           .times = 1u << A | 1u << B,
                           .infer = tess_nd_infer,
                           .forward = forward,
                           .backward = backward,
                           .split = split,
                           .begins = begins};

/* ---- describing ---- */

static bool add(struct attributes *a, tess_dims *out, int kind, int of_a, int of_b, int64_t size)
{
    const int j = a->rank[kind]++, c = kind == INNER ? -1 : out->rank;
    a->of[kind][j][A] = of_a, a->of[kind][j][B] = of_b, a->of[kind][j][C] = c;
    if (c < 0) return true;
    if (out->rank == TESS_RANK_MOST) return false;
    out->dim[out->rank++] = size;
    return true;
}

static const char *kinds(const tess_nd *x, const tess_nd *y, const tess_dot_dims *d, struct attributes *a,
                         tess_dims *out)
{
    int at;
    bool fits = true;
    for (int k = 0; k < d->batches + d->contracts; k++) {
        const bool batch = k < d->batches;
        const int j = batch ? k : k - d->batches, p = batch ? d->batch[0][j] : d->contract[0][j],
                  q = batch ? d->batch[1][j] : d->contract[1][j];
        if (p < 0 || p >= x->rank || q < 0 || q >= y->rank || x->dim[p] != y->dim[q])
            return "dimensions that go together differ";
        fits &= add(a, out, batch ? BATCH : INNER, p, q, x->dim[p]);
    }
    for (int k = 0; k < x->rank; k++)
        if (!is_of(d->batch[0], d->batches, k, &at) && !is_of(d->contract[0], d->contracts, k, &at))
            fits &= add(a, out, ROWS, k, -1, x->dim[k]);
    for (int k = 0; k < y->rank; k++)
        if (!is_of(d->batch[1], d->batches, k, &at) && !is_of(d->contract[1], d->contracts, k, &at))
            fits &= add(a, out, COLUMNS, -1, k, y->dim[k]);
    return fits ? NULL : "the result has too many dimensions";
}

/* Finds which kind and place the rows of an operand are. */
static void find(const struct attributes *a, int which, const tess_tensor *t, int *kind, int *j)
{
    for (*kind = 0; *kind < KINDS; ++*kind)
        for (*j = 0; *j < a->rank[*kind]; ++*j)
            if (tess_has_rows(t) && a->of[*kind][*j][which] == t->nd->at) return;
}

tess_tensor *tess_nd_dot(tess_tensor *a, tess_tensor *b, const tess_dot_dims *d)
{
    tess_tensor *in[] = {a, b};
    struct attributes at = {0};
    tess_dims out = {0};
    int kind[2], j[2], row = -1;
    int64_t times = 0;
    if (!tess_nd_are("dot", in, 2)) return NULL;
    if (a->nd->element != TESS_REAL || b->nd->element != TESS_REAL)
        return tess_nd_wrong("dot", in, 2, "products are of float32");
    const char *wrong = kinds(a->nd, b->nd, d, &at, &out);
    if (wrong) return tess_nd_wrong("dot", in, 2, "%s", wrong);
    for (int k = 0; k < 2; k++) find(&at, k, in[k], &kind[k], &j[k]);
    if (kind[0] < KINDS && kind[1] < KINDS &&
        (kind[0] != kind[1] || j[0] != j[1] || a->nd->times != b->nd->times)) { /* one is needed as a whole */
        in[1] = tess_nd_join(b);
        if (!in[1]) return NULL;
        kind[1] = KINDS;
    }
    for (int k = 0; k < 2; k++)
        if (kind[k] < KINDS && at.of[kind[k]][j[k]][C] >= 0) row = at.of[kind[k]][j[k]][C], times = in[k]->nd->times;
    at.nd = tess_nd_of(TESS_REAL, &out, row, times);
    at.nd.narrow = tess_nd_factors(in, row >= 0);
    if (!in[0] || !in[1]) return NULL;
    return tess_nd_node(a->g, &op, in, 2, &at, sizeof at);
}
