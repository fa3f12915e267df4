/* A form becomes a tensor: what computes gelu or silu by that op, and everything else by a map. */
#include "models/networks/import/build.h"
#include <math.h>

tess_status tess_build_failed(const building *b, const node *of)
{
    char text[400];
    snprintf(text, sizeof text, "%s", tess_error_text());
    return tess_import_wrong(b->n, of, "%s", text);
}

static bool is_like(const form *f, double (*fn)(double))
{
    for (double x = -6; x <= 6; x += 0.37) {
        const double y = fn(x);
        if (!(fabs(tess_draft_at(f->draft, f->result, x) - y) <= 1e-6 * fmax(1, fabs(y)))) return false;
    }
    return true;
}

static double gelu_erf(double x)
{
    return 0.5 * x * (1 + erf(x * M_SQRT1_2));
}
static double gelu_tanh(double x)
{
    return 0.5 * x * (1 + tanh(sqrt(M_2_PI) * (x + 0.044715 * x * x * x)));
}
static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* NULL: it is none of these. */
static tess_tensor *known(const form *f, const tess_dims *d)
{
    const int64_t width = d->rank ? d->dim[d->rank - 1] : 0;
    if (f->cost < 2 || d->rank < 2 || !tess_form_reads_same(f, d) || !tess_nd_has_rows(f->operand[0].t, width))
        return NULL;
    const bool tanh = is_like(f, gelu_tanh), erf = !tanh && is_like(f, gelu_erf);
    if (!tanh && !erf && !is_like(f, silu)) return NULL;
    tess_tensor *x = tess_nd_rows(f->operand[0].t, width);
    return tess_nd_back(tanh || erf ? tess_gelu(x, tanh ? TESS_GELU_TANH : TESS_GELU_ERF) : tess_silu(x), *d);
}

tess_status tess_form_settle(building *b, int k, const node *of)
{
    form *f = &b->form[k];
    const value *v = &b->n->value[k];
    if (f->t) return TESS_OK;
    tess_tensor *t = v->element == TESS_REAL ? known(f, &v->dims) : NULL;
    if (!t) t = tess_nd_map(b->g, f->draft, f->result, f->operand, f->operands, v->dims);
    if (!t) return tess_build_failed(b, of);
    tess_form_be(f, tess_name(t, "%s", v->name), v);
    return TESS_OK;
}
