/* What nodes are together: norms, attention, gelu, embeddings and cross-entropy as programs write them out. A pattern
 * is found by what nodes compute, and by the values of constants; where one is missed, its nodes stay what they are. */
#include "models/networks/import/patterns.h"
#include "models/text/base/text.h"
#include <math.h>
#include <string.h>

typedef const tess_import net;

static const node *made(net *n, int v)
{
    return v >= 0 && n->value[v].kind == VALUE_NODE ? &n->node[n->value[v].maker] : NULL;
}

static bool is_op(const node *m, const char *op)
{
    return m && !strcmp(m->op, op);
}

/* The node is a map of this function; sets what it reads. */
static bool is_map(net *n, int v, const char *fn, int *in)
{
    const node *m = made(n, v);
    const char *is = is_op(m, "map") ? json_string_value(json_object_get(m->json, "fn")) : NULL;
    for (int k = 0; is && in && k < m->inputs; k++) in[k] = m->in[k];
    return is && !strcmp(is, fn);
}

static bool is_reduce(net *n, int v, const char *fn, int *x)
{
    const node *m = made(n, v);
    const char *is = is_op(m, "reduce") ? json_string_value(json_object_get(m->json, "fn")) : NULL;
    if (!is || strcmp(is, fn) != 0) return false;
    *x = m->in[0];
    return true;
}

static int entry(const node *m, const char *key, size_t k)
{
    return (int)json_integer_value(json_array_get(json_object_get(m->json, key), k));
}

/* The reduction is over the last dimension alone. */
static bool over_last(net *n, int v)
{
    const node *m = made(n, v);
    return json_array_size(json_object_get(m->json, "dims")) == 1 &&
           entry(m, "dims", 0) == n->value[m->in[0]].dims.rank - 1;
}

/* ---- through what repeats ---- */

static bool same_up_to(const tess_dims *a, const tess_dims *b)
{
    const tess_dims *lo = a->rank < b->rank ? a : b, *hi = lo == a ? b : a;
    for (int d = 0; d < hi->rank; d++)
        if (hi->dim[d] != (d < lo->rank ? lo->dim[d] : 1)) return false;
    return true;
}

static bool is_const(net *n, int v, int32_t is)
{
    for (const node *m; (m = made(n, v)) && (is_op(m, "reshape") || is_op(m, "broadcast"));) v = m->in[0];
    const value *c = &n->value[v];
    if (c->kind != VALUE_CONST) return false;
    for (int64_t i = tess_dims_size(&c->dims) - 1; i >= 0; i--)
        if (c->data[i] != is) return false;
    return true;
}

/* A choice that is made beforehand, or guards against what is not finite, where a value is. */
static bool is_guard(net *n, int v, int *other)
{
    int in[3], of[3];
    if (!is_map(n, v, "select", in)) return false;
    *other = in[1];
    if (n->value[in[0]].element == TESS_BOOL && is_const(n, in[0], 1)) return true;
    return is_map(n, in[0], "is_finite", of) && of[0] == in[1] && is_const(n, in[2], 0);
}

/* What a value repeats along its last dimensions: those that stay are where they were. */
static int unspread(net *n, int v)
{
    int guarded;
    for (const node *m; (m = made(n, v)); v = m->in[0]) {
        const tess_dims *from = m->inputs ? &n->value[m->in[0]].dims : NULL;
        if (is_op(m, "reshape")) {
            if (!same_up_to(from, &n->value[v].dims)) return v;
        } else if (is_op(m, "broadcast")) {
            for (int d = 0; d < from->rank; d++)
                if (entry(m, "dims", (size_t)d) != d) return v;
        } else if (is_guard(n, v, &guarded))
            return n->value[guarded].dims.rank == n->value[v].dims.rank ? unspread(n, guarded) : v;
        else if (!is_map(n, v, "stop", NULL))
            return v;
    }
    return v;
}

/* A number, everywhere the same. */
static bool is_number(net *n, int v, double *x)
{
    for (const node *m; (m = made(n, v)) && (is_op(m, "reshape") || is_op(m, "broadcast"));) v = m->in[0];
    const value *c = &n->value[v];
    if (c->kind != VALUE_CONST || c->element != TESS_REAL) return false;
    float real;
    for (int64_t i = tess_dims_size(&c->dims) - 1; i > 0; i--)
        if (c->data[i] != c->data[0]) return false;
    memcpy(&real, c->data, sizeof real);
    *x = (double)real;
    return true;
}

/* A parameter (C) that lies along the last dimension of a value, or is repeated so; -1: it is none. */
static int is_vector(net *n, int v, int64_t c)
{
    for (const node *m; (m = made(n, v)); v = m->in[0]) {
        const int rank = n->value[v].dims.rank, from = m->inputs ? n->value[m->in[0]].dims.rank : 0;
        if (!rank || !from || n->value[v].dims.dim[rank - 1] != c || n->value[m->in[0]].dims.dim[from - 1] != c)
            return -1;
        if (is_op(m, "broadcast") ? entry(m, "dims", (size_t)from - 1) != rank - 1 : !is_op(m, "reshape")) return -1;
        if (tess_dims_size(&n->value[m->in[0]].dims) != c) return -1;
    }
    return n->value[v].kind == VALUE_PARAM && n->value[v].dims.rank == 1 && n->value[v].dims.dim[0] == c ? v : -1;
}

/* One of two operands is a number; sets it and the other one. */
static bool with_number(net *n, int v, const char *fn, int *other, double *x)
{
    int in[3];
    if (!is_map(n, v, fn, in)) return false;
    for (int k = 0; k < 2; k++)
        if (is_number(n, in[k], x) && (k || strcmp(fn, "div") != 0)) {
            *other = in[1 - k];
            return true;
        }
    return false;
}

/* ---- norms ---- */

/* The mean of x over its last dimension; sets x. */
static bool is_mean(net *n, int v, int *x)
{
    double by;
    int sum;
    v = unspread(n, v);
    const bool divided = with_number(n, v, "div", &sum, &by);
    if (!divided && !with_number(n, v, "mul", &sum, &by)) return false;
    sum = unspread(n, sum);
    if (!is_reduce(n, sum, "sum", x) || !over_last(n, sum)) return false;
    const tess_dims *d = &n->value[*x].dims;
    const double c = (double)d->dim[d->rank - 1];
    return fabs((divided ? by : 1 / by) - c) < 1e-5 * c;
}

static bool is_square(net *n, int v, int *x)
{
    int in[3];
    const node *m = made(n, v);
    if (is_map(n, v, "square", in) ||
        (is_map(n, v, "ipow", in) && json_integer_value(json_object_get(m->json, "y")) == 2)) {
        *x = in[0];
        return true;
    }
    *x = in[0];
    return is_map(n, v, "mul", in) && in[0] == in[1] && (*x = in[0], true);
}

/* x less its mean; sets x. */
static bool is_centred(net *n, int v, int *x)
{
    int in[3], of;
    if (!is_map(n, v, "sub", in) || !is_mean(n, in[1], &of) || of != in[0]) return false;
    *x = in[0];
    return true;
}

/* Mean of squares of x, or of x less its mean. */
static bool is_variance(net *n, int v, int *x, bool *centred)
{
    int in[3], square, other;
    double zero;
    v = unspread(n, v);
    if (with_number(n, v, "max", &other, &zero) && zero == 0) v = unspread(n, other);
    if (is_map(n, v, "sub", in)) { /* of squares, less the square of the mean */
        *centred = true;
        return is_mean(n, in[0], &square) && is_square(n, square, x) && is_square(n, unspread(n, in[1]), &other) &&
               is_mean(n, other, &other) && other == *x;
    }
    if (!is_mean(n, v, &square) || !is_square(n, square, &other)) return false;
    *centred = is_centred(n, other, x);
    if (!*centred) *x = other;
    return true;
}

/* 1 / sqrt(variance + eps), or the root where it divides. */
static bool is_root(net *n, int v, bool divides, pattern *p, bool *centred)
{
    int in[3], inside;
    double eps;
    v = unspread(n, v);
    if (!is_map(n, v, divides ? "sqrt" : "rsqrt", in)) return false;
    if (!with_number(n, unspread(n, in[0]), "add", &inside, &eps)) return false;
    p->number = eps;
    return is_variance(n, inside, &p->x, centred);
}

enum { FACTORS = 4 };
typedef struct factors {
    int v[FACTORS], count;
    bool divides[FACTORS];
} factors;

/* What is multiplied, where a vector or a number of a row may be a product too. */
static void take_apart(net *n, int v, factors *f)
{
    int in[3];
    if (f->count == FACTORS) {
        f->count++; /* too many */
        return;
    }
    if (f->count < FACTORS && (is_map(n, v, "mul", in) || is_map(n, unspread(n, v), "mul", in)) && in[0] != in[1]) {
        take_apart(n, in[0], f);
        if (f->count <= FACTORS) take_apart(n, in[1], f);
    } else if (is_map(n, v, "div", in)) {
        take_apart(n, in[0], f);
        if (f->count < FACTORS) f->v[f->count] = in[1], f->divides[f->count++] = true;
    } else
        f->v[f->count++] = v;
}

bool tess_pattern_norm(net *n, int v, pattern *p)
{
    const tess_dims *d = &n->value[v].dims;
    const int64_t c = d->rank ? d->dim[d->rank - 1] : 0;
    factors f = {.count = 0};
    int in[3], product = v, x = -1;
    bool centred = false, root = false, less = false;
    *p = (pattern){.x = -1, .w = -1, .bias = -1};
    if (d->rank < 2) return false;
    if (is_map(n, v, "add", in))
        for (int k = 0; k < 2; k++)
            if (p->bias < 0 && (p->bias = is_vector(n, in[k], c)) >= 0) product = in[1 - k];
    take_apart(n, product, &f);
    if (f.count > FACTORS) return false;
    for (int k = 0; k < f.count; k++) {
        int of;
        if (!root && is_root(n, f.v[k], f.divides[k], p, &centred))
            root = true;
        else if (f.divides[k])
            return false;
        else if (p->w < 0 && (p->w = is_vector(n, f.v[k], c)) >= 0)
            continue;
        else if (x < 0)
            less = is_centred(n, f.v[k], &of), x = less ? of : f.v[k];
        else
            return false;
    }
    p->kind = centred ? PATTERN_LAYERNORM : PATTERN_RMSNORM;
    return root && x == p->x && less == centred && p->w >= 0 && (centred ? p->bias >= 0 : p->bias < 0) &&
           n->value[x].dims.rank == d->rank && !memcmp(n->value[x].dims.dim, d->dim, sizeof *d->dim * (size_t)d->rank);
}

/* ---- attention ---- */

/* The value is a softmax over the last dimension; sets what it is taken of. */
static bool is_softmax(net *n, int v, int *scores)
{
    int in[3], e[3], sum, most, of;
    if (!is_map(n, v, "div", in) || !is_map(n, in[0], "exp", e)) return false;
    sum = unspread(n, in[1]);
    if (!is_reduce(n, sum, "sum", &of) || of != in[0] || !over_last(n, sum)) return false;
    if (!is_map(n, e[0], "sub", in)) return false;
    most = unspread(n, in[1]);
    *scores = in[0];
    return is_reduce(n, most, "max", &of) && of == in[0] && over_last(n, most);
}

/* A constant of two dimensions, repeated along all before its own. */
static const value *last_two(net *n, int v)
{
    for (const node *m; (m = made(n, v)); v = m->in[0]) {
        const int rank = n->value[v].dims.rank, from = m->inputs ? n->value[m->in[0]].dims.rank : 0;
        if (from < 2 || rank < 2) return NULL;
        for (int d = 1; d <= 2; d++)
            if (n->value[v].dims.dim[rank - d] != n->value[m->in[0]].dims.dim[from - d] ||
                (is_op(m, "broadcast") && entry(m, "dims", (size_t)(from - d)) != rank - d))
                return NULL;
        if (!is_op(m, "broadcast") && !is_op(m, "reshape")) return NULL;
    }
    const value *c = &n->value[v];
    const int rank = c->dims.rank;
    if (c->kind != VALUE_CONST || rank < 2) return NULL;
    return tess_dims_size(&c->dims) == c->dims.dim[rank - 1] * c->dims.dim[rank - 2] ? c : NULL;
}

/* What it does not let a query see is what is behind it. `seen`: the element that lets it be seen. */
static bool is_causal(const value *c, bool added, bool seen)
{
    const int64_t t = c->dims.dim[c->dims.rank - 1];
    if (c->dims.dim[c->dims.rank - 2] != t) return false;
    for (int64_t q = 0; q < t; q++)
        for (int64_t k = 0; k < t; k++) {
            float real;
            memcpy(&real, &c->data[q * t + k], sizeof real);
            if (added ? k > q ? !(real <= -1e9f) : real != 0 : (c->data[q * t + k] != 0) == (k > q ? seen : !seen))
                return false;
        }
    return true;
}

/* Takes a causal mask off; false: it is another one. */
static bool unmask(net *n, int *scores, bool *causal)
{
    int in[3];
    double low;
    *causal = false;
    if (is_map(n, *scores, "select", in)) {
        const bool seen = is_number(n, in[2], &low) && low <= -1e9;
        const value *c = last_two(n, in[0]);
        if (!seen && !(is_number(n, in[1], &low) && low <= -1e9)) return false;
        if (!c || !is_causal(c, false, seen)) return false;
        *scores = in[seen ? 1 : 2];
        return *causal = true;
    }
    for (int k = 0; is_map(n, *scores, "add", in) && k < 2; k++) {
        const value *c = last_two(n, in[k]);
        if (!c || c->element != TESS_REAL || !is_causal(c, true, true)) continue;
        *scores = in[1 - k];
        return *causal = true;
    }
    return true;
}

/* The dot's operand `side` has two dimensions of the batch, in this order, one contracted and one free one. */
static bool roles(const node *m, int rank, int side, int role[4])
{
    const json_t *batch = json_array_get(json_object_get(m->json, "batch"), (size_t)side),
                 *contract = json_array_get(json_object_get(m->json, "contract"), (size_t)side);
    if (rank != 4 || json_array_size(batch) != 2 || json_array_size(contract) != 1) return false;
    role[0] = (int)json_integer_value(json_array_get(batch, 0));
    role[1] = (int)json_integer_value(json_array_get(batch, 1));
    role[2] = (int)json_integer_value(json_array_get(contract, 0));
    role[3] = 6 - role[0] - role[1] - role[2];
    return true;
}

/* Takes a factor off what is multiplied. */
static int unscale(net *n, int v, double *scale)
{
    double by;
    int other;
    while (true)
        if (with_number(n, v, "mul", &other, &by))
            *scale *= by, v = other;
        else if (with_number(n, v, "div", &other, &by))
            *scale /= by, v = other;
        else
            return v;
}

bool tess_pattern_attention(net *n, const node *of, pattern *p)
{
    int role[4], q[4], k[4], scores, in[3];
    *p = (pattern){.kind = PATTERN_ATTENTION, .number = 1};
    for (int side = 0; side < 2; side++) {
        if (!roles(of, n->value[of->in[side]].dims.rank, side, role) || role[2] != 3 || role[3] != 2) continue;
        if (!is_softmax(n, of->in[side], &scores) || !unmask(n, &scores, &p->causal)) continue;
        const node *m = made(n, unscale(n, scores, &p->number));
        if (!is_op(m, "dot") || !roles(m, n->value[m->in[0]].dims.rank, 0, q) ||
            !roles(m, n->value[m->in[1]].dims.rank, 1, k) || role[0] > 1 || role[1] > 1)
            continue;
        in[0] = unscale(n, m->in[0], &p->number), in[1] = unscale(n, m->in[1], &p->number), in[2] = of->in[1 - side];
        p->x = in[0], p->w = in[1], p->bias = in[2], p->turned = side == 1;
        int v[4];
        if (!roles(of, n->value[in[2]].dims.rank, 1 - side, v)) continue;
        for (int b = 0; b < 2; b++) /* dimension b of the result, and where it is in each */
            p->at[0][b] = q[role[b]], p->at[1][b] = k[role[b]], p->at[2][b] = v[b];
        p->at[0][2] = q[3], p->at[0][3] = q[2], p->at[1][2] = k[3], p->at[1][3] = k[2], p->at[2][2] = v[2],
        p->at[2][3] = v[3];
        const int64_t *dq = n->value[in[0]].dims.dim, *dk = n->value[in[1]].dims.dim, *dv = n->value[in[2]].dims.dim;
        return dq[q[2]] == dv[v[3]] && p->number > 0 && (!p->causal || dq[q[3]] == dk[k[3]]); /* heads of one size */
    }
    return false;
}

/* ---- products, tables and the loss ---- */

/* Returns the parameter, kept as (out, in), whose second dimension a product contracts; -1 if v is none. */
static int is_matrix(net *n, int v, int contracted)
{
    const node *m = made(n, v);
    if (is_op(m, "transpose") && n->value[v].dims.rank == 2) v = m->in[0], contracted = 1 - contracted;
    const value *w = &n->value[v];
    return w->kind == VALUE_PARAM && w->dims.rank == 2 && contracted == (w->turned ? 0 : 1) ? v : -1;
}

/* x (..., in) times w (out, in). */
static bool is_product(net *n, int v, pattern *p)
{
    const node *m = made(n, v);
    if (!is_op(m, "dot")) return false;
    const json_t *batch = json_array_get(json_object_get(m->json, "batch"), 0),
                 *contract = json_object_get(m->json, "contract");
    if (json_array_size(batch) || json_array_size(json_array_get(contract, 0)) != 1) return false;
    const int x = (int)json_integer_value(json_array_get(json_array_get(contract, 0), 0)),
              w = (int)json_integer_value(json_array_get(json_array_get(contract, 1), 0));
    p->x = m->in[0], p->w = is_matrix(n, m->in[1], w);
    return p->w >= 0 && n->value[p->x].dims.rank > 1 && x == n->value[p->x].dims.rank - 1;
}

void tess_import_turn(tess_import *n)
{
    TESS_FREED int *reads = tess_alloc((size_t)n->values * sizeof *reads);
    for (int k = 0; k < n->nodes; k++) {
        pattern p;
        const int w = n->node[k].inputs == 2 ? n->node[k].in[1] : -1;
        if (w < 0 || n->value[w].kind != VALUE_PARAM || n->value[w].dims.rank != 2) continue;
        n->value[w].turned = true;
        reads[w] += is_product(n, n->node[k].out, &p);
        n->value[w].turned = false;
    }
    for (int v = 0; v < n->values; v++) n->value[v].turned = reads[v] > 0 && reads[v] == n->value[v].uses;
}

bool tess_pattern_linear(net *n, int v, pattern *p)
{
    const tess_dims *d = &n->value[v].dims;
    int in[3];
    *p = (pattern){.kind = PATTERN_LINEAR, .bias = -1};
    if (is_product(n, v, p)) return true;
    if (d->rank < 2 || !is_map(n, v, "add", in)) return false;
    for (int k = 0; k < 2; k++)
        if (is_product(n, in[1 - k], p) && (p->bias = is_vector(n, in[k], d->dim[d->rank - 1])) >= 0) return true;
    return false;
}

bool tess_pattern_lookup(net *n, const node *of, pattern *p)
{
    const value *table = &n->value[of->in[0]], *ids = &n->value[of->in[1]], *out = &n->value[of->out];
    const json_t *list = json_object_get(of->json, "offset");
    const int rank = out->dims.rank;
    *p = (pattern){.kind = PATTERN_LOOKUP, .x = of->in[1], .w = of->in[0]};
    return table->kind == VALUE_PARAM && table->dims.rank == 2 && rank > 1 && ids->dims.rank == rank &&
           ids->dims.dim[rank - 1] == 1 && json_array_size(list) == 1 && entry(of, "offset", 0) == rank - 1 &&
           json_array_size(json_object_get(of->json, "start")) == 1 && entry(of, "start", 0) == 0 &&
           json_array_size(json_object_get(of->json, "collapsed")) == 1 && entry(of, "collapsed", 0) == 0 &&
           out->dims.dim[rank - 1] == table->dims.dim[1];
}

/* log of the sum of exponentials of x's rows, or x less that. */
static bool is_log_sum(net *n, int v, int *x)
{
    int in[3], less[3], sum, of, most;
    v = unspread(n, v);
    if (is_map(n, v, "add", in)) { /* the largest, and the log of what is left */
        for (int k = 0; k < 2; k++)
            if (is_reduce(n, unspread(n, in[k]), "max", x) && is_log_sum(n, in[1 - k], &of) &&
                is_map(n, of, "sub", less) && less[0] == *x && unspread(n, less[1]) == unspread(n, in[k]))
                return over_last(n, unspread(n, in[k]));
        return false;
    }
    if (!is_map(n, v, "log", in)) return false;
    if (is_map(n, in[0], "abs", less)) in[0] = less[0]; /* of what is positive */
    sum = unspread(n, in[0]);
    if (!is_reduce(n, sum, "sum", &most) || !over_last(n, sum) || !is_map(n, most, "exp", in)) return false;
    *x = in[0];
    return true;
}

static bool is_log_softmax(net *n, int v, int *x)
{
    int in[3], of, most;
    if (!is_map(n, v, "sub", in) || !is_log_sum(n, in[1], &of)) return false;
    if (of == in[0] && is_map(n, of, "sub", in)) { /* less the largest, twice */
        most = unspread(n, in[1]);
        *x = in[0];
        return is_reduce(n, most, "max", &of) && of == *x && over_last(n, most);
    }
    *x = of;
    return of == in[0];
}

static int unshaped(net *n, int v)
{
    for (const node *m; is_op(m = made(n, v), "reshape");) v = m->in[0];
    return v;
}

/* The input of targets behind what makes negative ones count from the end, and behind what puts 0 in the place of those
 * that do not count: *counts says which do, -1: all. -1: it is another. */
static int targets_of(net *n, int v, int *counts)
{
    int in[3], of[3];
    *counts = -1;
    v = unshaped(n, v);
    if (is_map(n, v, "select", in) && is_map(n, in[1], "add", of) && is_map(n, in[0], "lt", NULL)) {
        v = in[2];
        if (of[0] != v) return -1;
    }
    v = unshaped(n, v);
    if (is_map(n, v, "select", in) && is_map(n, in[0], "ne", of) && unshaped(n, of[0]) == unshaped(n, in[1])) {
        *counts = in[0];
        v = unshaped(n, in[1]);
    }
    return n->value[v].kind == VALUE_INPUT && n->value[v].element == TESS_INT && n->value[v].batch == 0 ? v : -1;
}

/* Each row's number at its target; sets of what, the targets, and which of them count. */
static bool is_pick(net *n, int v, int *x, int *targets, int *counts)
{
    const node *m;
    while (is_op(m = made(n, v), "reshape") ||
           (is_op(m, "gather") && is_const(n, m->in[1], 0) &&
            tess_dims_size(&n->value[m->in[0]].dims) == tess_dims_size(&n->value[v].dims)))
        v = m->in[0];
    if (!is_op(m, "gather")) return false;
    const int last = n->value[m->in[0]].dims.rank - 1;
    *x = m->in[0], *targets = targets_of(n, m->in[1], counts);
    const json_t *batch = json_array_get(json_object_get(m->json, "batch"), 0);
    if (last < 1 || *targets < 0 || (int)json_array_size(batch) != last || entry(m, "start", 0) != last) return false;
    for (int d = 0; d < last; d++)
        if ((int)json_integer_value(json_array_get(batch, (size_t)d)) != d) return false;
    return true;
}

/* The mean over the targets that are not a number below 0, of what is picked at them; sets that. */
static bool is_counted_mean(net *n, int v, int *picked, int *counts, int32_t *other)
{
    int in[3], sum[3], all;
    double zero;
    if (!is_map(n, v, "div", in) || !is_reduce(n, in[0], "sum", picked)) return false;
    for (all = in[1]; is_map(n, all, "cast", sum);) all = sum[0];
    if (!is_reduce(n, all, "sum", &all) || !is_map(n, all, "cast", sum)) return false;
    *counts = sum[0];
    if (!is_map(n, *picked, "select", in) || in[0] != *counts || !is_number(n, in[2], &zero) || zero < 0 || zero > 0)
        return false;
    *picked = in[1];
    if (!is_map(n, *counts, "ne", in) || n->value[in[1]].kind != VALUE_CONST) return false;
    *other = n->value[in[1]].data[0];
    return *other < 0 && is_const(n, in[1], *other);
}

/* Takes signs and factors off. */
static int unsigned_of(net *n, int v, double *scale)
{
    int in[3];
    for (int at = -1; v != at;) {
        at = v;
        v = unscale(n, v, scale);
        if (is_map(n, v, "neg", in)) v = in[0], *scale = -*scale;
    }
    return v;
}

bool tess_pattern_cross_entropy(net *n, pattern *p)
{
    int v, in[3], x, y, targets, of, counts = -1, picked;
    double scale = 1;
    *p = (pattern){.kind = PATTERN_CROSS_ENTROPY, .bias = -1};
    const bool counted = is_counted_mean(n, n->loss, &x, &counts, &p->other);
    if (!counted && (v = unsigned_of(n, n->loss, &scale), !is_reduce(n, v, "sum", &x))) return false;
    x = unsigned_of(n, x, &scale);
    if (is_map(n, x, "sub", in)) { /* log of the sum, less the logit */
        if (!is_log_sum(n, in[0], &y) || !is_pick(n, in[1], &of, &targets, &picked) || of != y) return false;
        scale = -scale;
    } else if (!is_pick(n, x, &of, &targets, &picked) || !is_log_softmax(n, of, &y))
        return false;
    const tess_dims *t = &n->value[targets].dims;
    const double mean = counted ? 1 : (double)tess_dims_size(t);
    pattern head;
    for (const node *m; is_op(m = made(n, y), "reshape");) { /* rows of all samples together */
        const tess_dims *from = &n->value[m->in[0]].dims, *to = &n->value[y].dims;
        if (!from->rank || !to->rank || from->dim[from->rank - 1] != to->dim[to->rank - 1]) return false;
        y = m->in[0];
    }
    if (picked != (counted ? counts : -1) || fabs(scale * mean + 1) > 1e-5 || !tess_pattern_linear(n, y, &head))
        return false;
    p->x = head.x, p->w = head.w, p->bias = head.bias, p->targets = targets;
    return t->rank <= 2 && tess_dims_size(&n->value[head.x].dims) ==
                               tess_dims_size(t) * n->value[head.w].dims.dim[n->value[head.w].turned ? 0 : 1];
}
