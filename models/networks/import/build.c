/* From nodes of a graph.json to ops of a graph. A value is first a form: an expression over readings of tensors, and
 * maps, broadcasts, transposes and the like only change it. What some other op reads, or what several nodes read of
 * what was computed, becomes a tensor. So one op is made of a whole expression, and none of what only moves elements.
 */
#include "models/networks/import/patterns.h"
#include "models/text/base/text.h"
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 20 };

/* ---- map ---- */

static tess_status takes(const building *b, const node *of, int operands)
{
    if (of->inputs == operands) return TESS_OK;
    return tess_import_wrong(b->n, of, "has %d operands (its function takes %d)", of->inputs, operands);
}

/* Where an operand is repeated: of no dimension, or of some that are 1. */
static bool spread(const value *v, const value *out, tess_nd_reading *by)
{
    *by = tess_nd_reading_same(v->dims.rank);
    for (int d = 0; d < v->dims.rank; d++)
        if (v->dims.dim[d] != out->dims.dim[d]) by->along[d] = -1;
    return tess_dims_size(&v->dims) != tess_dims_size(&out->dims);
}

/* What a map's operand is, as part of this form. Where it is computed for several, or would be computed again for each
 * element that a scalar is repeated for, it is a tensor. */
static tess_status operand_of(building *b, const node *of, int i, bool alone, form *f, int *result)
{
    const int k = of->in[i];
    const value *v = &b->n->value[k], *out = &b->n->value[of->out];
    const form *from = &b->form[k];
    tess_nd_reading by;
    const bool spreads = spread(v, out, &by), again = spreads || (v->uses > 1 && !tess_form_is_inlined(b, k));
    if (!tess_form_is_constant(from) && from->cost > 0 && (alone || again || from->cost + f->cost > MOST_STEPS))
        TESS_TRY(tess_form_settle(b, k, of));
    form read = b->form[k];
    if (spreads) tess_form_compose(&read, &by, v->dims.rank, out->dims.rank);
    if (tess_form_include(f, &read, result)) return TESS_OK;
    return alone ? tess_import_wrong(b->n, of, "the expression is too long") : TESS_FAILED;
}

static int power(tess_draft *d, int x, int64_t y)
{
    const int64_t n = y < 0 ? -y : y;
    int square = x, result = -1;
    for (int64_t rest = n; rest; rest /= 2) {
        if (rest % 2) result = result < 0 ? square : tess_draft_add(d, TESS_FN_mul, result, square, -1);
        if (rest > 1) square = tess_draft_add(d, TESS_FN_square, square, -1, -1);
    }
    const int one = d->step[x].element == TESS_REAL ? tess_draft_real(d, 1) : tess_draft_whole(d, 1, TESS_INT);
    if (result < 0) return one;
    return y < 0 ? tess_draft_add(d, TESS_FN_div, one, result, -1) : result;
}

static tess_status apply(building *b, const node *of, form *f, const int *in)
{
    const char *name = json_string_value(json_object_get(of->json, "fn"));
    const value *out = &b->n->value[of->out];
    const json_t *y = json_object_get(of->json, "y");
    tess_element e[3] = {TESS_REAL, TESS_REAL, TESS_REAL};
    for (int k = 0; k < of->inputs; k++) e[k] = b->n->value[of->in[k]].element;
    if (name && !strcmp(name, "ipow")) {
        TESS_TRY(takes(b, of, 1));
        if (!json_is_integer(y) || llabs(json_integer_value(y)) > 1024)
            return tess_import_wrong(b->n, of, "y is no whole number of at most 1024");
        f->result = power(f->draft, in[0], json_integer_value(y));
    } else {
        const tess_fn fn = name ? tess_fn_find(name) : TESS_FNS;
        if (fn == TESS_FNS) return tess_import_wrong(b->n, of, "there is no function %.40s", name ? name : "null");
        TESS_TRY(takes(b, of, tess_fn_operands(fn)));
        const char *why = fn == TESS_FN_cast ? NULL : tess_fn_wrong(fn, e[0], e[1], e[2]);
        if (why) return tess_import_wrong(b->n, of, "%s", why);
        f->result = fn == TESS_FN_cast ? tess_draft_cast(f->draft, in[0], out->element)
                                       : tess_draft_add(f->draft, fn, in[0], in[1], in[2]);
    }
    f->cost++;
    if (f->draft->step[f->result].element != out->element)
        return tess_import_wrong(b->n, of, "its result is of another dtype than its function makes");
    return TESS_OK;
}

static tess_status map(building *b, const node *of)
{
    const value *out = &b->n->value[of->out];
    form *f = &b->form[of->out];
    for (int k = 0; k < of->inputs; k++) {
        const tess_dims *d = &b->n->value[of->in[k]].dims;
        bool fits = !d->rank || d->rank == out->dims.rank;
        for (int j = 0; j < d->rank && fits; j++) fits = d->dim[j] == out->dims.dim[j] || d->dim[j] == 1;
        if (!fits) return tess_import_wrong(b->n, of, "operand %d has another shape than the result", k + 1);
    }
    for (int turn = 0; turn < 2; turn++) { /* where all together is too much, each operand is a tensor */
        int in[3] = {-1, -1, -1};
        tess_status status = TESS_OK;
        tess_form_clear(f);
        for (int k = 0; k < of->inputs && status == TESS_OK; k++) status = operand_of(b, of, k, turn > 0, f, &in[k]);
        if (status == TESS_OK) return apply(b, of, f, in);
        if (status != TESS_FAILED || turn) return status;
    }
    return TESS_OK;
}

/* ---- what moves elements ---- */

static tess_status read_as(building *b, const node *of, const tess_nd_reading *by)
{
    const int k = of->in[0];
    const value *v = &b->n->value[k], *out = &b->n->value[of->out];
    form *f = &b->form[of->out];
    int result;
    if (v->element != out->element) return tess_import_wrong(b->n, of, "its result is of another dtype");
    if (!tess_form_is_reading(&b->form[k]) && !tess_form_is_constant(&b->form[k])) TESS_TRY(tess_form_settle(b, k, of));
    tess_form_clear(f);
    tess_form_include(f, &b->form[k], &result);
    f->result = result;
    tess_form_compose(f, by, v->dims.rank, out->dims.rank);
    if (tess_form_is_same(f, &out->dims)) f->t = f->operand[0].t; /* it is turned back */
    return TESS_OK;
}

static tess_nd_reading nothing(void)
{
    tess_nd_reading r = tess_nd_reading_same(0);
    return r;
}

static tess_status broadcast(building *b, const node *of)
{
    const value *v = &b->n->value[of->in[0]], *out = &b->n->value[of->out];
    tess_nd_reading by = nothing();
    int dims[TESS_RANK_MOST];
    TESS_TRY(tess_import_ints(b->n, of, "dims", v->dims.rank, dims, NULL));
    for (int d = 0; d < v->dims.rank; d++) {
        const int64_t to = dims[d] < out->dims.rank ? out->dims.dim[dims[d]] : 0;
        if ((v->dims.dim[d] != 1 && v->dims.dim[d] != to) || !to || (d && dims[d] <= dims[d - 1]))
            return tess_import_wrong(b->n, of, "dimension %d does not fit the result's", d);
        if (v->dims.dim[d] == to) by.along[dims[d]] = (int8_t)d;
    }
    return read_as(b, of, &by);
}

static tess_status transpose(building *b, const node *of)
{
    const value *v = &b->n->value[of->in[0]], *out = &b->n->value[of->out];
    tess_nd_reading by = nothing();
    int perm[TESS_RANK_MOST];
    unsigned seen = 0;
    TESS_TRY(tess_import_ints(b->n, of, "perm", v->dims.rank, perm, NULL));
    for (int d = 0; d < v->dims.rank; d++) {
        if (perm[d] >= v->dims.rank || seen >> perm[d] & 1 || out->dims.rank != v->dims.rank ||
            out->dims.dim[d] != v->dims.dim[perm[d]])
            return tess_import_wrong(b->n, of, "perm and the shapes do not fit");
        seen |= 1u << perm[d];
        by.along[d] = (int8_t)perm[d];
    }
    return read_as(b, of, &by);
}

static tess_status slice(building *b, const node *of)
{
    const value *v = &b->n->value[of->in[0]], *out = &b->n->value[of->out];
    tess_nd_reading by = tess_nd_reading_same(v->dims.rank);
    int64_t list[3][TESS_RANK_MOST];
    static const char *const key[] = {"lo", "hi", "step"};
    for (int k = 0; k < 3; k++)
        TESS_TRY(tess_import_list(b->n, of, json_object_get(of->json, key[k]), key[k], v->dims.rank, TESS_RANK_MOST,
                                  list[k], NULL));
    for (int d = 0; d < v->dims.rank; d++) {
        const int64_t lo = list[0][d], hi = list[1][d], step = list[2][d];
        if (lo < 0 || hi > v->dims.dim[d] || lo >= hi || step < 1 || out->dims.rank != v->dims.rank ||
            out->dims.dim[d] != (hi - lo + step - 1) / step)
            return tess_import_wrong(b->n, of, "dimension %d: %lld to %lld in steps of %lld does not fit", d,
                                     (long long)lo, (long long)hi, (long long)step);
        by.first[d] = lo, by.step[d] = step;
    }
    return read_as(b, of, &by);
}

static tess_status rev(building *b, const node *of)
{
    const value *v = &b->n->value[of->in[0]], *out = &b->n->value[of->out];
    tess_nd_reading by = tess_nd_reading_same(v->dims.rank);
    int dims[TESS_RANK_MOST], count;
    TESS_TRY(tess_import_ints(b->n, of, "dims", -1, dims, &count));
    if (memcmp(&v->dims, &out->dims, sizeof v->dims))
        return tess_import_wrong(b->n, of, "its result has another shape");
    for (int k = 0; k < count; k++) {
        if (dims[k] >= v->dims.rank) return tess_import_wrong(b->n, of, "there is no dimension %d", dims[k]);
        by.first[dims[k]] = v->dims.dim[dims[k]] - 1, by.step[dims[k]] = -1;
    }
    return read_as(b, of, &by);
}

static tess_status iota(building *b, const node *of)
{
    const value *out = &b->n->value[of->out];
    const json_t *dim = json_object_get(of->json, "dim");
    form *f = &b->form[of->out];
    if (!json_is_integer(dim) || json_integer_value(dim) < 0 || json_integer_value(dim) >= out->dims.rank)
        return tess_import_wrong(b->n, of, "dim is no dimension of the result");
    tess_form_clear(f);
    f->operands = 1;
    f->operand[0] = (tess_nd_operand){NULL, nothing()};
    f->operand[0].by.along[json_integer_value(dim)] = 0;
    f->result = tess_draft_cast(f->draft, tess_draft_load(f->draft, 0, TESS_INT), out->element);
    return TESS_OK;
}

/* Only dimensions of 1 come and go: sets how the result reads its operand. */
static bool is_unit_change(const tess_dims *from, const tess_dims *to, tess_nd_reading *by)
{
    int d = 0;
    *by = nothing();
    for (int k = 0; k < to->rank; k++) {
        if (to->dim[k] == 1) continue;
        while (d < from->rank && from->dim[d] == 1) d++;
        if (d == from->rank || from->dim[d] != to->dim[k]) return false;
        by->along[k] = (int8_t)d++;
    }
    while (d < from->rank && from->dim[d] == 1) d++;
    return d == from->rank;
}

/* ---- other ops ---- */

/* A new tensor is the node's, and as the file says. */
static tess_status take(building *b, const node *of, tess_tensor *t)
{
    const value *out = &b->n->value[of->out];
    if (!t) return tess_build_failed(b, of);
    const tess_dims d = tess_nd_dims(t);
    if (d.rank != out->dims.rank || memcmp(d.dim, out->dims.dim, (size_t)d.rank * sizeof *d.dim) ||
        tess_nd_element(t) != out->element)
        return tess_import_wrong(b->n, of, "its result has another shape or dtype than the file says");
    tess_form_be(&b->form[of->out], tess_name(t, "%s", out->name), out);
    return TESS_OK;
}

static tess_status settle_all(building *b, const node *of)
{
    for (int k = 0; k < of->inputs; k++) TESS_TRY(tess_form_settle(b, of->in[k], of));
    return TESS_OK;
}

static tess_status reshape(building *b, const node *of)
{
    const value *v = &b->n->value[of->in[0]], *out = &b->n->value[of->out];
    const form *f = &b->form[of->in[0]];
    tess_nd_reading by;
    if (tess_dims_size(&v->dims) != tess_dims_size(&out->dims))
        return tess_import_wrong(b->n, of, "its result has another number of elements");
    if (tess_form_is_constant(f) || (tess_form_is_reading(f) && is_unit_change(&v->dims, &out->dims, &by))) {
        if (tess_form_is_constant(f)) by = nothing();
        return read_as(b, of, &by);
    }
    TESS_TRY(settle_all(b, of));
    return take(b, of, tess_nd_reshape(b->form[of->in[0]].t, out->dims));
}

/* Which of some names the node's function has. */
static tess_status fn_of(const building *b, const node *of, const char *const *names, int n, int *k)
{
    const char *fn = json_string_value(json_object_get(of->json, "fn"));
    for (*k = 0; *k < n && fn && strcmp(fn, names[*k]) != 0;) ++*k;
    return fn && *k < n ? TESS_OK : tess_import_wrong(b->n, of, "there is no %s %.40s", of->op, fn ? fn : "null");
}

static const char *const reductions[] = {"sum", "max", "min", "prod", "and", "or", "argmax", "argmin"};

static tess_status reduce(building *b, const node *of)
{
    int dims[TESS_RANK_MOST], count, k;
    unsigned set = 0;
    TESS_TRY(tess_import_ints(b->n, of, "dims", -1, dims, &count));
    for (int j = 0; j < count; j++) set |= 1u << dims[j];
    TESS_TRY(fn_of(b, of, reductions, 8, &k));
    const value *v = &b->n->value[of->in[0]];
    const form *f = &b->form[of->in[0]];
    bool computed = false; /* of what there is, not of indices alone */
    for (int j = 0; j < f->operands; j++) computed |= f->operand[j].t != NULL;
    if (k == TESS_REDUCE_SUM && v->element == TESS_REAL && computed && !f->t && (v->uses == 1 || f->cost == 0))
        return take(b, of, tess_nd_fold(b->g, f->draft, f->result, f->operand, f->operands, v->dims, set));
    TESS_TRY(settle_all(b, of));
    return take(b, of, tess_nd_reduce(b->form[of->in[0]].t, (tess_reduction)k, set));
}

/* Two lists of dimensions in one attribute. */
static tess_status pairs(const building *b, const node *of, const char *key, int out[2][TESS_RANK_MOST], int *count)
{
    const json_t *both = json_object_get(of->json, key);
    int size[2];
    if (json_array_size(both) != 2) return tess_import_wrong(b->n, of, "%s is no list of two lists", key);
    for (int k = 0; k < 2; k++) {
        int64_t list[TESS_RANK_MOST];
        TESS_TRY(tess_import_list(b->n, of, json_array_get(both, (size_t)k), key, -1, TESS_RANK_MOST, list, &size[k]));
        for (int j = 0; j < size[k]; j++) {
            if (list[j] < 0 || list[j] >= TESS_RANK_MOST)
                return tess_import_wrong(b->n, of, "%s names dimension %lld", key, (long long)list[j]);
            out[k][j] = (int)list[j];
        }
    }
    *count = size[0];
    return size[0] == size[1] ? TESS_OK : tess_import_wrong(b->n, of, "the two lists of %s differ in length", key);
}

static bool is_in(const int *list, int n, int d)
{
    for (int k = 0; k < n; k++)
        if (list[k] == d) return true;
    return false;
}

/* A product reads a transposed tensor where it lies, if the order of the dimensions that stay is the same there. */
static bool turn_back(const form *f, const value *v, tess_dot_dims *d, int side)
{
    int last = -1;
    if (f->t || !tess_form_is_reading(f) || !f->operand[0].t) return false;
    const tess_nd_reading *r = &f->operand[0].by;
    const tess_dims under = tess_nd_dims(f->operand[0].t);
    if (under.rank != v->dims.rank) return false;
    for (int k = 0; k < v->dims.rank; k++) {
        const int j = r->along[k];
        if (j < 0 || r->first[j] || r->step[j] != 1 || under.dim[j] != v->dims.dim[k]) return false;
        if (is_in(d->contract[side], d->contracts, k) || is_in(d->batch[side], d->batches, k)) continue;
        if (j < last) return false;
        last = j;
    }
    for (int k = 0; k < d->contracts; k++)
        if (d->contract[side][k] >= v->dims.rank) return false;
    for (int k = 0; k < d->batches; k++)
        if (d->batch[side][k] >= v->dims.rank) return false;
    for (int k = 0; k < d->contracts; k++) d->contract[side][k] = r->along[d->contract[side][k]];
    for (int k = 0; k < d->batches; k++) d->batch[side][k] = r->along[d->batch[side][k]];
    return true;
}

static tess_status dot(building *b, const node *of)
{
    tess_dot_dims d = {0};
    tess_tensor *t[2];
    TESS_TRY(pairs(b, of, "contract", d.contract, &d.contracts));
    TESS_TRY(pairs(b, of, "batch", d.batch, &d.batches));
    for (int k = 0; k < 2; k++) {
        const int v = of->in[k];
        const bool back = turn_back(&b->form[v], &b->n->value[v], &d, k);
        if (!back) TESS_TRY(tess_form_settle(b, v, of));
        t[k] = back ? b->form[v].operand[0].t : b->form[v].t;
    }
    return take(b, of, tess_nd_dot(t[0], t[1], &d));
}

/* Of many, some at a time. */
static tess_status concat(building *b, const node *of)
{
    const json_t *dim = json_object_get(of->json, "dim");
    tess_tensor *t[NODE_INPUTS];
    int n = of->inputs;
    if (!json_is_integer(dim) || json_integer_value(dim) < 0 || json_integer_value(dim) >= TESS_RANK_MOST)
        return tess_import_wrong(b->n, of, "dim is no dimension");
    TESS_TRY(settle_all(b, of));
    for (int k = 0; k < n; k++) t[k] = b->form[of->in[k]].t;
    while (n > 1) {
        int made = 0;
        for (int k = 0; k < n; k += TESS_ND_OPERANDS) {
            const int some = n - k < TESS_ND_OPERANDS ? n - k : TESS_ND_OPERANDS;
            t[made] = some == 1 ? t[k] : tess_nd_concat(t + k, some, (int)json_integer_value(dim));
            if (!t[made++]) return tess_build_failed(b, of);
        }
        n = made;
    }
    return take(b, of, of->inputs > 1 ? t[0] : tess_nd_concat(t, 1, (int)json_integer_value(dim)));
}

static tess_status pad(building *b, const node *of)
{
    const value *v = &b->n->value[of->in[0]];
    const form *with = &b->form[of->in[1]];
    const json_t *list = json_object_get(of->json, "pads");
    int64_t pads[TESS_RANK_MOST][3];
    const tess_fn_step *s = &with->draft->step[with->result];
    if (!tess_form_is_constant(with) || s->fn != TESS_FN_value || s->element != v->element)
        return tess_import_wrong(b->n, of, "the padding value is no constant of its dtype");
    if (!json_is_array(list) || (int)json_array_size(list) != v->dims.rank)
        return tess_import_wrong(b->n, of, "pads is no list of one entry for each dimension");
    for (int d = 0; d < v->dims.rank; d++)
        TESS_TRY(tess_import_list(b->n, of, json_array_get(list, (size_t)d), "pads", 3, 3, pads[d], NULL));
    TESS_TRY(tess_form_settle(b, of->in[0], of));
    const double number = s->element == TESS_REAL ? (double)s->is.real : s->is.whole;
    return take(b, of, tess_nd_pad(b->form[of->in[0]].t, number, (const int64_t(*)[3])pads));
}

static tess_status gather_dims(const building *b, const node *of, tess_gather_dims *d)
{
    const char *mode = json_string_value(json_object_get(of->json, "mode"));
    const json_t *fill = json_object_get(of->json, "fill");
    TESS_TRY(tess_import_ints(b->n, of, "offset", -1, d->offset, &d->offsets));
    TESS_TRY(tess_import_ints(b->n, of, "collapsed", -1, d->collapsed, &d->collapses));
    TESS_TRY(tess_import_ints(b->n, of, "start", -1, d->start, &d->starts));
    TESS_TRY(pairs(b, of, "batch", d->batch, &d->batches));
    if (!mode || (strcmp(mode, "clip") != 0 && strcmp(mode, "fill") != 0))
        return tess_import_wrong(b->n, of, "mode is %.20s (expected clip or fill)", mode ? mode : "null");
    d->clip = mode[0] == 'c';
    d->fill = json_number_value(fill);
    if (json_is_string(fill) && !strcmp(json_string_value(fill), "nan"))
        d->fill = (double)__builtin_nanf("");
    else if (fill && !json_is_number(fill))
        return tess_import_wrong(b->n, of, "fill is no number, nor nan");
    return TESS_OK;
}

static tess_status gather(building *b, const node *of)
{
    tess_gather_dims d = {0};
    TESS_TRY(gather_dims(b, of, &d));
    TESS_TRY(tess_import_list(b->n, of, json_object_get(of->json, "sizes"), "sizes", b->n->value[of->in[0]].dims.rank,
                              TESS_RANK_MOST, d.sizes, NULL));
    TESS_TRY(settle_all(b, of));
    return take(b, of, tess_nd_gather(b->form[of->in[0]].t, b->form[of->in[1]].t, &d));
}

static tess_status scatter(building *b, const node *of)
{
    static const char *const names[] = {"set", "add", "mul", "min", "max"};
    tess_gather_dims d = {0};
    int k;
    TESS_TRY(gather_dims(b, of, &d));
    TESS_TRY(fn_of(b, of, names, 5, &k));
    TESS_TRY(settle_all(b, of));
    return take(
        b, of,
        tess_nd_scatter(b->form[of->in[0]].t, b->form[of->in[1]].t, b->form[of->in[2]].t, &d, (tess_scattering)k));
}

/* A pair for each dimension of space, or of x. */
static tess_status pads_of(const building *b, const node *of, int n, int64_t (*out)[2])
{
    const json_t *list = json_object_get(of->json, "pads");
    if (!json_is_array(list) || (int)json_array_size(list) != n)
        return tess_import_wrong(b->n, of, "pads is no list of %d entries", n);
    for (int k = 0; k < n; k++)
        TESS_TRY(tess_import_list(b->n, of, json_array_get(list, (size_t)k), "pads", 2, 2, out[k], NULL));
    return TESS_OK;
}

/* Lists of n whole numbers. */
typedef struct number_list {
    const char *key;
    int64_t *to;
} number_list;
static tess_status lists_of(const building *b, const node *of, int n, const number_list *list, int lists)
{
    for (int k = 0; k < lists; k++) {
        const json_t *json = json_object_get(of->json, list[k].key);
        TESS_TRY(tess_import_list(b->n, of, json, list[k].key, n, n, list[k].to, NULL));
    }
    return TESS_OK;
}

static tess_status conv(building *b, const node *of)
{
    const int rank = b->n->value[of->in[0]].dims.rank, n = rank - 2;
    const json_t *groups = json_object_get(of->json, "groups");
    tess_conv_dims d = {.space = n};
    const number_list list[] = {{"strides", d.strides}, {"lhs_dilation", d.between}, {"rhs_dilation", d.apart}};
    if (n < 1 || n > TESS_CONV_SPACE) return tess_import_wrong(b->n, of, "x has %d dimensions (expected 3 to 5)", rank);
    if (!json_is_integer(groups)) return tess_import_wrong(b->n, of, "groups is no whole number");
    d.groups = json_integer_value(groups);
    TESS_TRY(tess_import_ints(b->n, of, "lhs", rank, d.x, NULL));
    TESS_TRY(tess_import_ints(b->n, of, "rhs", rank, d.w, NULL));
    TESS_TRY(tess_import_ints(b->n, of, "out", rank, d.y, NULL));
    TESS_TRY(lists_of(b, of, n, list, 3));
    TESS_TRY(pads_of(b, of, n, d.pads));
    TESS_TRY(settle_all(b, of));
    return take(b, of, tess_nd_conv(b->form[of->in[0]].t, b->form[of->in[1]].t, &d));
}

static tess_status window(building *b, const node *of)
{
    const int n = b->n->value[of->in[0]].dims.rank;
    tess_window_dims d = {0};
    const number_list list[] = {
        {"size", d.size}, {"strides", d.strides}, {"base_dilation", d.between}, {"dilation", d.apart}};
    int k;
    TESS_TRY(fn_of(b, of, reductions, 3, &k));
    TESS_TRY(lists_of(b, of, n, list, 4));
    TESS_TRY(pads_of(b, of, n, d.pads));
    TESS_TRY(settle_all(b, of));
    return take(b, of, tess_nd_window(b->form[of->in[0]].t, (tess_reduction)k, &d));
}

/* A dimension, and which way to go along it. */
static tess_status way_of(const building *b, const node *of, const char *key, int *dim, bool *other)
{
    const json_t *d = json_object_get(of->json, "dim"), *said = json_object_get(of->json, key);
    if (!json_is_integer(d) || json_integer_value(d) < 0 || json_integer_value(d) >= TESS_RANK_MOST)
        return tess_import_wrong(b->n, of, "dim is no dimension");
    if (said && !json_is_boolean(said)) return tess_import_wrong(b->n, of, "%s is neither true nor false", key);
    *dim = (int)json_integer_value(d), *other = json_is_true(said);
    return TESS_OK;
}

static tess_status cum(building *b, const node *of)
{
    static const char *const names[] = {"sum", "prod", "max", "min", "logsumexp"};
    int k, dim = 0;
    bool reverse = false;
    TESS_TRY(fn_of(b, of, names, 5, &k));
    TESS_TRY(way_of(b, of, "reverse", &dim, &reverse));
    TESS_TRY(settle_all(b, of));
    return take(b, of, tess_nd_cum(b->form[of->in[0]].t, (tess_cumulation)k, dim, reverse));
}

static tess_status sort(building *b, const node *of)
{
    int dim = 0;
    bool descending = false;
    TESS_TRY(way_of(b, of, "descending", &dim, &descending));
    TESS_TRY(settle_all(b, of));
    return take(b, of, tess_nd_sort(b->form[of->in[0]].t, dim, descending));
}

static const struct {
    const char *op;
    tess_status (*build)(building *b, const node *of);
} builders[] = {{"map", map},
                {"reduce", reduce},
                {"dot", dot},
                {"reshape", reshape},
                {"broadcast", broadcast},
                {"transpose", transpose},
                {"slice", slice},
                {"concat", concat},
                {"pad", pad},
                {"rev", rev},
                {"iota", iota},
                {"gather", gather},
                {"scatter", scatter},
                {"conv", conv},
                {"window", window},
                {"cum", cum},
                {"sort", sort}};

/* ---- the whole ---- */

/* All elements of a constant are one number. */
static bool is_uniform(const value *v)
{
    for (int64_t i = tess_dims_size(&v->dims) - 1; i > 0; i--)
        if (v->data[i] != v->data[0]) return false;
    return true;
}

static tess_dims turned(const tess_dims *d)
{
    return (tess_dims){2, {d->dim[1], d->dim[0]}};
}

static tess_status begin(building *b, int k, tess_imported *out)
{
    const value *v = &b->n->value[k];
    form *f = &b->form[k];
    tess_tensor *t = NULL;
    tess_form_clear(f);
    if (v->kind == VALUE_NODE) return TESS_OK;
    if (v->kind == VALUE_CONST && is_uniform(v)) {
        float real;
        memcpy(&real, v->data, sizeof real);
        f->result = v->element == TESS_REAL ? tess_draft_real(f->draft, (double)real)
                                            : tess_draft_whole(f->draft, v->data[0], v->element);
        return TESS_OK;
    }
    if (v->kind == VALUE_STATE) {
        TESS_FREED char *name = tess_format("state:%s", v->name);
        t = b->state[k] = tess_nd_state(b->g, name, v->dims);
    } else if (v->kind == VALUE_INPUT)
        t = out->input[k] =
            (v->batch < 0 ? tess_nd_input_whole : tess_nd_input)(b->g, v->name, v->element, tess_import_fed(v));
    else if (v->kind == VALUE_PARAM)
        t = tess_nd_param(b->g, v->name, v->turned ? turned(&v->dims) : v->dims, TESS_NORMAL(0.02f), v->turned);
    else
        t = tess_nd_data(b->g, v->name, v->element, v->dims, v->data);
    if (!t) return tess_build_failed(b, NULL);
    b->leaf[k] = t;
    tess_form_be(f, t, v);
    if (v->turned) f->t = NULL, f->operand[0].by.along[0] = 1, f->operand[0].by.along[1] = 0;
    if (v->kind == VALUE_INPUT && v->batch > 0) { /* it is fed with its samples first */
        f->t = NULL;
        for (int d = 0; d <= v->batch; d++) f->operand[0].by.along[d] = (int8_t)(d == v->batch ? 0 : d + 1);
    }
    if (v->kind != VALUE_STATE) return TESS_OK;
    f->t = NULL; /* what is read of it passes no gradient */
    f->result = tess_draft_add(f->draft, TESS_FN_stop, f->result, -1, -1);
    f->cost = 1;
    return TESS_OK;
}

/* What goes into a layer is made before it: nothing else crosses its border. */
static tess_status begin_layer(building *b, int into, const node *of)
{
    const form *f = &b->form[into];
    if (!tess_form_is_reading(f) && !tess_form_is_constant(f)) TESS_TRY(tess_form_settle(b, into, of));
    tess_block(b->g, "layer");
    return TESS_OK;
}

/* Layers are blocks. What is outside of them is computed again in parts, from product to product. */
static tess_status build_nodes(building *b, const int *layer)
{
    const tess_import *n = b->n;
    bool inside = false;
    for (int k = 0; k < n->nodes; k++) {
        size_t i = 0;
        if (layer[k] == TESS_LAYERS_END && inside) tess_block_end(b->g);
        if (layer[k] >= 0) TESS_TRY(begin_layer(b, layer[k], &n->node[k]));
        if (layer[k] != TESS_NO_LAYER) inside = layer[k] >= 0;
        if (!n->value[n->node[k].out].uses) continue;
        while (strcmp(builders[i].op, n->node[k].op) != 0) i++;
        if (!inside && (builders[i].build == dot || builders[i].build == conv)) tess_block(b->g, "part");
        TESS_TRY(builders[i].build(b, &n->node[k]));
        TESS_TRY(tess_fast_node(b, &n->node[k]));
    }
    tess_block_end(b->g);
    return TESS_OK;
}

tess_status tess_import_build(const tess_import *n, tess_graph *g, int64_t samples, tess_imported *out)
{
    building b = {.n = n,
                  .g = g,
                  .form = tess_alloc((size_t)n->values * sizeof *b.form),
                  .state = tess_alloc((size_t)n->values * sizeof *b.state),
                  .leaf = tess_alloc((size_t)n->values * sizeof *b.leaf)};
    int *layer = tess_import_layers(n);
    tess_status status = TESS_OK;
    tess_build_readers(&b);
    *out = (tess_imported){.input = tess_alloc((size_t)(n->inputs + n->keys) * sizeof *out->input)};
    for (int k = 0; k < n->values && status == TESS_OK; k++) status = begin(&b, k, out);
    if (status == TESS_OK) status = build_nodes(&b, layer);
    if (status == TESS_OK) status = tess_build_loss(&b, out);
    if (status == TESS_OK) status = tess_build_made(&b, out);
    if (status == TESS_OK) {
        tess_tensor *const loss[] = {out->output, out->measured};
        tess_nd_ends(g, loss, 2, out->made, n->outputs);
        tess_nd_cut(out->output, out->measured, samples);
    }
    for (int k = 0; k < n->values; k++) free(b.form[k].draft);
    free(b.form), free(b.state), free(b.leaf), free(b.readers), free(b.reader), free(layer);
    if (status != TESS_OK) free(out->input), free(out->made), *out = (tess_imported){0};
    return status;
}
