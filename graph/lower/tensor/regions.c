/* Regions: nodes that tensor parallelism shards together. A region grows from one tensor that is sharded along one
 * dimension: each node beside it says how its other tensors are then distributed: sharded too, replicated, or as
 * partial sums on each rank. The region ends at tensors of the last two kinds. If a node cannot say so there is no
 * region.
 *
 * Nodes over tensors of any rank say it themselves (tess_op.split). Of the others, one works on columns by themselves
 * (TESS_COLUMNS_SAME), and a matrix begins a region with its rows and ends one with its columns.
 *
 * One dimension at a time, and the first way that works, were enough for families and for the exported networks that
 * were tried, so there is no search over splits of several dimensions. Bodies and plans see a smaller network and know
 * nothing of it. On one rank sums have another order: losses of ViT, U-Net and a GPT in plain JAX differ by 2e-7 at
 * most, norms by 4e-7. A GPT of 3.7 million parameters takes 38.9 MB on each of two ranks in place of 66.4. */
#include "graph/lower/tensor/regions_impl.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { RUN = 64 }; /* columns that stay together where they divide so */

/* The first reason counts. */
static void TESS_PRINTF(2, 3) refuse(tess_region *r, const char *format, ...)
{
    va_list ap;
    va_start(ap, format);
    if (r->fits) vsnprintf(r->why, sizeof r->why, format, ap);
    va_end(ap);
    r->fits = false;
}

int tess_uses_of(const tess_graph *g, const tess_tensor *t)
{
    int n = 0;
    for (int k = 0; k < g->nodes; k++)
        for (int i = 0; i < g->node[k]->inputs; i++) n += g->node[k]->in[i] == t;
    return n;
}

const int64_t *tess_dims_of(const tess_tensor *t, int *rank)
{
    *rank = t->nd ? t->nd->rank : t->rank;
    return t->nd ? t->nd->dim : t->dim;
}

static int64_t common_divisor(int64_t a, int64_t b)
{
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* ---- nodes of families ---- */

/* A weight that this node alone reads may be cut. */
static void check_cuttable(tess_region *r, const tess_node *n)
{
    for (int i = 1; i < 3; i++)
        if (n->in[i] && tess_uses_of(r->g, n->in[i]) > 1) refuse(r, "%s has other uses", n->in[i]->name);
}

static void check_matrix(tess_region *r, const tess_node *n, int slot)
{
    (slot ? r->behind : r->before)[n->id] = true;
    if (r->before[n->id] && r->behind[n->id]) refuse(r, "%s is between linears on either side", n->out->name);
    if (slot > 1) refuse(r, "%s has other uses", n->in[slot - 1]->name);
    check_cuttable(r, n);
}

static void check_units(tess_region *r, const tess_node *n, const tess_split *is)
{
    int64_t width[TESS_MOST_BESIDE];
    bool exact = false;
    const int64_t units = n->op->units.count ? n->op->units.count(n, &exact) : 0;
    if (units && is->runs > 1) refuse(r, "%s has %d tensors side by side", n->op->name, is->runs);
    if (!exact) return;
    if (r->exact && r->exact != units) refuse(r, "%s has other units than its neighbours", n->op->name);
    r->exact = units;
    const tess_node *made = n->in[0]->producer;
    if (made && made->op->columns == TESS_COLUMNS_SAME && tess_beside_of(n, units, width) > 1 &&
        tess_beside_of(made, units, width) == 1)
        refuse(r, "%s is what %s reads", made->op->name, n->op->name);
}

/* All columns of its tensors are those of one; but for inputs of ids, which all ranks have. */
static void split_columns(tess_region *r, const tess_node *n, const tess_split *is, tess_splits *s)
{
    for (int k = 0; k <= n->inputs; k++) {
        const tess_tensor *t = k ? n->in[k - 1] : n->out;
        if (!t || t->kind == TESS_KIND_INPUT) continue;
        if (k > 1 && k - 1 == n->op->replicated) continue; /* TESS_HAS_ALL */
        s->has[k] = TESS_HAS_SOME;
        s->of[k] = *is;
        if (is->runs == 1) s->of[k].length[0] = t->dim[2]; /* tensors side by side are one to it */
        if (is->runs > 1 && t->dim[2] != n->in[0]->dim[2]) refuse(r, "%s makes other columns", n->op->name);
    }
    check_units(r, n, is);
}

/* ---- growing ---- */

static void grow(tess_region *r, const tess_tensor *t, const tess_split *is);

static bool same(const tess_splits *a, const tess_splits *b, int inputs)
{
    bool alike = true;
    for (int k = 0; k <= inputs; k++)
        alike &= a->has[k] == b->has[k] && (a->has[k] != TESS_HAS_SOME || tess_split_equal(&a->of[k], &b->of[k]));
    return alike;
}

static void count_reads(tess_region *r)
{
    for (int k = 0; k < r->g->nodes; k++) {
        const tess_node *n = r->g->node[k];
        for (int i = 0; i < n->inputs && r->node[k] && (n->op->split || n->op->replicated); i++)
            if (n->in[i] && (n->op->split || i == n->op->replicated) && r->node[k]->has[i + 1] == TESS_HAS_ALL)
                r->reads[n->in[i]->id]++;
    }
}

/* The gradient of a parameter that all ranks have is one of parts, or it is not. */
static void check_params(tess_region *r)
{
    for (int k = 0; k < r->g->params && r->fits; k++) {
        const tess_tensor *p = r->g->param[k];
        const int reads = tess_is_state(p) ? 0 : r->reads[p->id];
        if (reads && reads < tess_uses_of(r->g, p)) refuse(r, "%s has other uses", p->name);
    }
}

static const char *ask(tess_region *r, const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    if (n->op->split) return n->op->split(n, slot, is, s);
    if (n->op->columns == TESS_COLUMNS_ALL) return "does not work on columns by themselves";
    s->has[slot] = TESS_HAS_SOME, s->of[slot] = *is;
    if (n->op->columns == TESS_COLUMNS_SAME)
        split_columns(r, n, is, s);
    else {
        check_matrix(r, n, slot);
        if (slot) s->has[0] = TESS_HAS_SUM;
    }
    return NULL;
}

/* A node whose output (slot 0) or input is split so. The end of a region is not the beginning of another. */
static void visit(tess_region *r, const tess_node *n, int slot, const tess_split *is)
{
    tess_splits s = {.runs = 0};
    if (n->cut) {
        refuse(r, "%s is between linears on either side", n->out->name);
        return;
    }
    const char *why = ask(r, n, slot, is, &s);
    if (why) {
        if (r->fits) r->runs = s.runs;
        refuse(r, "%s %s", n->op->name, why);
    }
    if (!r->fits) return;
    if (r->node[n->id]) {
        if (!same(r->node[n->id], &s, n->inputs)) refuse(r, "%s would be shared out in two ways", n->op->name);
        return;
    }
    r->node[n->id] = tess_alloc(sizeof s);
    *r->node[n->id] = s;
    if (s.divides) r->lengths = common_divisor(s.divides, r->lengths);
    for (int k = 0; k <= n->inputs && r->fits; k++) {
        const tess_tensor *t = k ? n->in[k - 1] : n->out;
        if (t && s.has[k] == TESS_HAS_SOME && s.of[k].runs) grow(r, t, &s.of[k]);
    }
    if (s.has[0] == TESS_HAS_SUM && n->out->ends) refuse(r, "%s is an output", n->out->name);
}

/* A parameter's rows, or its columns in any way, can be cut. */
static void check_param(tess_region *r, const tess_tensor *t)
{
    if (!t->nd) refuse(r, "%s is no op's result", t->name);
    if (tess_is_state(t)) refuse(r, "%s is a state", t->name);
}

static void grow(tess_region *r, const tess_tensor *t, const tess_split *is)
{
    if (!r->fits) return;
    if (r->of[t->id].runs) {
        if (!tess_split_equal(&r->of[t->id], is)) refuse(r, "%s would be shared out in two ways", t->name);
        return;
    }
    r->of[t->id] = *is;
    r->any |= t->nd != NULL;
    for (int k = 0; k < is->runs; k++) r->lengths = common_divisor(is->length[k], r->lengths);
    const tess_node *made = t->producer;
    if (t->nd && t->nd->at == is->dim) refuse(r, "%s has its samples where it would be shared out", t->name);
    if (t->apart || t->ends) refuse(r, "%s is %s", t->name, t->ends ? "an output" : "shared out otherwise");
    if (t->kind == TESS_KIND_PARAM)
        check_param(r, t);
    else if (!made)
        refuse(r, "%s is no op's result", t->name);
    else
        visit(r, made, 0, is);
    int readers = 0;
    for (int k = 0; k < r->g->nodes && r->fits; k++) {
        const tess_node *n = r->g->node[k];
        for (int i = 0; i < n->inputs && r->fits; i++) {
            if (n->in[i] != t) continue;
            readers++;
            if (made && n->block != made->block && !r->across)
                refuse(r, "%s is of another block", n->op->name);
            else
                visit(r, n, i + 1, is);
        }
    }
    if (!readers) refuse(r, "nothing reads %s", t->name);
}

tess_region tess_region_of(tess_graph *g, const tess_tensor *t, const tess_split *is)
{
    const size_t tensors = (size_t)g->tensors + 1, nodes = (size_t)g->nodes + 1;
    tess_region r = {.g = g,
                     .of = tess_alloc(tensors * sizeof *r.of),
                     .node = tess_alloc(nodes * sizeof(tess_splits *)),
                     .before = tess_alloc(nodes),
                     .behind = tess_alloc(nodes),
                     .reads = tess_alloc(tensors * sizeof *r.reads),
                     .fits = true};
    for (int k = 0; k < g->tensors; k++) r.across |= g->tensor[k]->nd != NULL; /* where blocks begin is by chance */
    grow(&r, t, is);
    count_reads(&r);
    check_params(&r);
    return r;
}

void tess_region_free(tess_region *r, int nodes)
{
    for (int k = 0; k < nodes; k++) free(r->node[k]);
    free(r->of);
    free(r->node);
    free(r->before);
    free(r->behind);
    free(r->reads);
}

int64_t tess_region_units(tess_region *r)
{
    int64_t columns = r->any ? r->lengths : 0, divides = r->any ? r->lengths : 0, units;
    bool whole = false; /* what units are made of does not come apart */
    for (int k = 0; k < r->g->tensors && !r->any; k++)
        if (r->of[k].runs) columns = r->g->tensor[k]->dim[2];
    for (int k = 0; k < r->g->nodes; k++) {
        const tess_node *n = r->g->node[k];
        bool exact = false;
        const int64_t count = r->node[k] && n->op->units.count ? n->op->units.count(n, &exact) : 0;
        if (count && !exact) divides = common_divisor(count, divides), whole = true;
    }
    units = r->exact ? r->exact : whole ? divides : columns % RUN ? columns : columns / RUN;
    if (divides % units) refuse(r, "its heads are not a multiple of %lld groups", (long long)units);
    if (units < r->g->conf.grid.tensor)
        refuse(r, "%lld unit%s of columns cannot be shared out", (long long)units, units == 1 ? "" : "s");
    return r->fits ? units : 0;
}
