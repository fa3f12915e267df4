/* Patterns become the fast ops of a graph: one op computes over the same tiles what several nodes compute together, and
 * the step leaves out nodes that are no longer read. Where tiles do not lie as the op takes them, the nodes stay. */
#include "models/networks/import/patterns.h"
#include "models/text/base/text.h"
#include <string.h>

/* Stores the value as rows of its last dimension; NULL: it has none. */
static tess_status rows_of(building *b, const node *of, int v, tess_tensor **rows)
{
    const tess_dims *d = &b->n->value[v].dims;
    const int64_t width = d->dim[d->rank - 1];
    *rows = NULL;
    TESS_TRY(tess_form_settle(b, v, of));
    if (tess_nd_has_rows(b->form[v].t, width)) *rows = tess_nd_rows(b->form[v].t, width);
    return TESS_OK;
}

static tess_tensor *tensor_of(const building *b, int v)
{
    return v < 0 ? NULL : b->leaf[v];
}

/* Whether a parameter is the matrix that an op of families takes, of that many columns: one with 1 column is a vector
 * there. */
static bool is_matrix(const tess_tensor *w, int64_t columns)
{
    int64_t shape[3];
    return w && tess_tensor_shape(w, shape) == 2 && shape[1] == columns;
}

static int64_t width_of(const building *b, int v)
{
    const tess_dims *d = &b->n->value[v].dims;
    return d->dim[d->rank - 1];
}

/* The node's value is y; where there is none it stays. */
static void becomes(building *b, const node *of, tess_tensor *y)
{
    const value *out = &b->n->value[of->out];
    tess_tensor *t = tess_nd_back(y, out->dims);
    if (t) tess_form_be(&b->form[of->out], tess_name(t, "%s", out->name), out);
}

static tess_status norm(building *b, const node *of, const pattern *p)
{
    tess_tensor *x, *gain = tensor_of(b, p->w), *bias = tensor_of(b, p->bias);
    if (!tess_nd_is_whole(gain) || (bias && !tess_nd_is_whole(bias))) return TESS_OK;
    TESS_TRY(rows_of(b, of, p->x, &x));
    if (!x) return TESS_OK;
    becomes(b, of,
            p->kind == PATTERN_LAYERNORM ? tess_layernorm(x, gain, bias, (float)p->number)
                                         : tess_rmsnorm(x, gain, (float)p->number));
    return TESS_OK;
}

static tess_status linear(building *b, const node *of, const pattern *p)
{
    tess_tensor *x, *w = tensor_of(b, p->w), *bias = tensor_of(b, p->bias);
    if (!is_matrix(w, width_of(b, p->x)) || (bias && !tess_nd_cut_alike(bias, w))) return TESS_OK;
    TESS_TRY(rows_of(b, of, p->x, &x));
    if (x) becomes(b, of, tess_linear(x, w, bias));
    return TESS_OK;
}

/* Indices within the table, of those that the program has. */
static tess_tensor *clamped(building *b, int ids, int64_t rows)
{
    TESS_FREED tess_draft *d = tess_alloc(sizeof *d);
    const tess_dims *dims = &b->n->value[ids].dims;
    const tess_nd_operand of = {b->form[ids].t, tess_nd_reading_same(dims->rank)};
    const int at = tess_draft_load(d, 0, TESS_INT), least = tess_draft_whole(d, 0, TESS_INT),
              most = tess_draft_whole(d, (int32_t)(rows - 1), TESS_INT);
    tess_tensor *t = tess_nd_map(b->g, d, tess_draft_add(d, TESS_FN_clamp, least, at, most), &of, 1, *dims);
    return t;
}

/* What lies outside the table is another number. */
static void fill(building *b, const node *of, const pattern *p, double number)
{
    form *f = &b->form[of->out];
    const int rank = b->n->value[of->out].dims.rank;
    const int64_t rows = b->n->value[p->w].dims.dim[0];
    tess_draft *d = f->draft;
    f->operand[1] = (tess_nd_operand){b->form[p->x].t, tess_nd_reading_same(rank)};
    f->operand[1].by.along[rank - 1] = -1;
    f->operands = 2, f->t = NULL, f->cost = 4;
    const int at = tess_draft_load(d, 1, TESS_INT), least = tess_draft_whole(d, 0, TESS_INT),
              most = tess_draft_whole(d, (int32_t)(rows - 1), TESS_INT);
    const int inside = tess_draft_add(d, TESS_FN_and, tess_draft_add(d, TESS_FN_ge, at, least, -1),
                                      tess_draft_add(d, TESS_FN_le, at, most, -1), -1);
    f->result = tess_draft_add(d, TESS_FN_select, inside, f->result, tess_draft_real(d, number));
}

static tess_status lookup(building *b, const node *of, const pattern *p)
{
    const int64_t rows = b->n->value[p->w].dims.dim[0];
    const char *mode = json_string_value(json_object_get(of->json, "mode"));
    const json_t *other = json_object_get(of->json, "fill");
    if (!is_matrix(tensor_of(b, p->w), width_of(b, p->w))) return TESS_OK;
    TESS_TRY(tess_form_settle(b, p->x, of));
    if (rows > INT32_MAX || !tess_nd_has_rows(b->form[p->x].t, 1)) return TESS_OK;
    tess_tensor *ids = tess_nd_rows(clamped(b, p->x, rows), 1);
    becomes(b, of, tess_embedding(ids, tensor_of(b, p->w), NULL));
    if (mode && !strcmp(mode, "fill"))
        fill(b, of, p, json_is_string(other) ? (double)__builtin_nanf("") : json_number_value(other));
    return TESS_OK;
}

/* ---- attention ---- */

/* q, k or v as rows of all heads, where dimension `samples` of the result's two is theirs. */
static tess_status heads_of(building *b, const node *of, int v, const int *at, int samples, tess_tensor **rows)
{
    const int order[] = {at[samples], at[2], at[1 - samples], at[3]};
    const value *is = &b->n->value[v];
    tess_nd_reading by = tess_nd_reading_same(4);
    tess_dims d = {.rank = 4};
    if (!tess_form_is_reading(&b->form[v])) TESS_TRY(tess_form_settle(b, v, of));
    for (int k = 0; k < 4; k++) by.along[k] = (int8_t)order[k], d.dim[k] = is->dims.dim[order[k]];
    form f = b->form[v];
    tess_form_compose(&f, &by, 4, 4);
    tess_tensor *t =
        tess_form_is_same(&f, &d) ? f.operand[0].t : tess_nd_map(b->g, f.draft, f.result, f.operand, f.operands, d);
    const bool fits = tess_nd_samples(t) >= 0 && tess_nd_has_rows(t, d.dim[2] * d.dim[3]); /* a sequence a sample */
    *rows = fits ? tess_nd_rows(t, d.dim[2] * d.dim[3]) : NULL;
    return TESS_OK;
}

static tess_status attention(building *b, const node *of, const pattern *p)
{
    const value *out = &b->n->value[of->out], *q = &b->n->value[p->x];
    const int v[] = {p->x, p->w, p->bias};
    for (int samples = 0; samples < 2; samples++) {
        const int heads = 1 - samples;
        tess_tensor *in[3] = {NULL};
        bool all = true;
        for (int k = 0; k < 3 && all; k++) {
            TESS_TRY(heads_of(b, of, v[k], p->at[k], samples, &in[k]));
            all = in[k] != NULL;
        }
        if (!all) continue;
        const tess_dims d = {4,
                             {q->dims.dim[p->at[0][samples]], q->dims.dim[p->at[0][2]], q->dims.dim[p->at[0][heads]],
                              q->dims.dim[p->at[0][3]]}};
        tess_tensor *y =
            tess_attention(in[0], in[1], in[2],
                           (tess_attention_conf){.heads = d.dim[2], .scale = (float)p->number, .causal = p->causal});
        tess_tensor *t = tess_nd_back(y, d);
        if (!t) return TESS_OK;
        form *f = &b->form[of->out];
        const value made = {.dims = d, .element = TESS_REAL};
        tess_nd_reading by = tess_nd_reading_same(4);
        by.along[samples] = 0, by.along[heads] = 2, by.along[p->turned ? 3 : 2] = 1, by.along[p->turned ? 2 : 3] = 3;
        tess_form_be(f, tess_name(t, "%s", out->name), &made);
        f->t = NULL;
        tess_form_compose(f, &by, 4, 4);
        return TESS_OK;
    }
    return TESS_OK;
}

tess_status tess_fast_node(building *b, const node *of)
{
    const value *out = &b->n->value[of->out];
    pattern p;
    if (out->element != TESS_REAL || out->dims.rank < 2) return TESS_OK;
    if (!strcmp(of->op, "gather")) return tess_pattern_lookup(b->n, of, &p) ? lookup(b, of, &p) : TESS_OK;
    if (!strcmp(of->op, "dot") && tess_pattern_attention(b->n, of, &p)) return attention(b, of, &p);
    if (strcmp(of->op, "dot") != 0 && strcmp(of->op, "map") != 0) return TESS_OK;
    if (tess_pattern_linear(b->n, of->out, &p)) return linear(b, of, &p);
    return tess_pattern_norm(b->n, of->out, &p) ? norm(b, of, &p) : TESS_OK;
}

/* ---- the loss ---- */

tess_status tess_fast_loss(building *b, tess_tensor **loss)
{
    pattern p;
    tess_tensor *x;
    *loss = NULL;
    for (int k = 0; k < b->n->values; k++)
        if (b->n->value[k].kind == VALUE_STATE && b->n->value[k].becomes >= 0) return TESS_OK;
    if (!tess_pattern_cross_entropy(b->n, &p)) return TESS_OK;
    tess_tensor *w = tensor_of(b, p.w), *bias = tensor_of(b, p.bias), *targets = tensor_of(b, p.targets);
    if (!is_matrix(w, width_of(b, p.x)) || (bias && !tess_nd_cut_alike(bias, w))) return TESS_OK;
    TESS_TRY(rows_of(b, NULL, p.x, &x));
    const value *head = &b->n->value[p.w];
    if (x)
        *loss = tess_cross_entropy(x, w, bias,
                                   tess_nd_classes(targets, p.other, head->dims.dim[head->turned ? 1 : 0], head->name));
    return TESS_OK;
}
