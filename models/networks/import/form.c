/* Forms: what a value of a graph.json is while the graph is built: an expression over readings of tensors, which maps,
 * broadcasts, transposes and the like only change. */
#include "models/networks/import/build.h"
#include <stdlib.h>
#include <string.h>

void tess_form_clear(form *f)
{
    free(f->draft);
    *f = (form){.draft = tess_alloc(sizeof *f->draft)};
}

void tess_form_be(form *f, tess_tensor *t, const value *v)
{
    tess_form_clear(f);
    f->t = t;
    f->operand[0] = (tess_nd_operand){t, tess_nd_reading_same(v->dims.rank)};
    f->operands = 1;
    f->result = tess_draft_load(f->draft, 0, v->element);
}

bool tess_form_is_reading(const form *f)
{
    return f->cost == 0 && f->operands == 1 && f->draft->step[f->result].fn == TESS_FN_load;
}

bool tess_form_is_constant(const form *f)
{
    return f->operands == 0;
}

bool tess_form_include(form *f, const form *from, int *result)
{
    int operand[TESS_ND_OPERANDS], as[TESS_MAP_STEPS];
    for (int k = 0; k < from->operands; k++) {
        int j = 0;
        while (j < f->operands && memcmp(&f->operand[j], &from->operand[k], sizeof f->operand[j])) j++;
        if (j == TESS_ND_OPERANDS) return false;
        if (j == f->operands) f->operand[f->operands++] = from->operand[k];
        operand[k] = j;
    }
    for (int k = 0; k <= from->result; k++) {
        const tess_fn_step *s = &from->draft->step[k];
        const int a = s->of[0] < 0 || s->fn == TESS_FN_load ? -1 : as[s->of[0]], b = s->of[1] < 0 ? -1 : as[s->of[1]],
                  c = s->of[2] < 0 ? -1 : as[s->of[2]];
        const tess_element e = (tess_element)s->element;
        as[k] = s->fn == TESS_FN_load    ? tess_draft_load(f->draft, operand[s->of[0]], e)
                : s->fn == TESS_FN_value ? e == TESS_REAL ? tess_draft_real(f->draft, (double)s->is.real)
                                                          : tess_draft_whole(f->draft, s->is.whole, e)
                : s->fn == TESS_FN_cast ? tess_draft_cast(f->draft, a, e)
                                         : tess_draft_add(f->draft, (tess_fn)s->fn, a, b, c);
    }
    f->cost = 0; /* what both compute is one step */
    for (int k = 0; k < f->draft->steps; k++)
        f->cost += f->draft->step[k].fn != TESS_FN_load && f->draft->step[k].fn != TESS_FN_value;
    *result = as[from->result];
    return !f->draft->full;
}

void tess_form_compose(form *f, const tess_nd_reading *by, int old_rank, int rank)
{
    for (int k = 0; k < f->operands; k++) {
        tess_nd_reading *r = &f->operand[k].by, old = *r;
        for (int d = 0; d < old_rank; d++) {
            if (old.along[d] < 0) continue;
            const int j = old.along[d];
            r->first[j] = old.first[j] + by->first[d] * old.step[j];
            r->step[j] = old.step[j] * by->step[d];
        }
        for (int d = 0; d < TESS_RANK_MOST; d++) r->along[d] = -1;
        for (int d = 0; d < rank; d++)
            if (by->along[d] >= 0) r->along[d] = old.along[by->along[d]];
    }
}

bool tess_form_is_same(const form *f, const tess_dims *d)
{
    return tess_form_is_reading(f) && tess_form_reads_same(f, d);
}

bool tess_form_reads_same(const form *f, const tess_dims *d)
{
    const tess_nd_reading *by = &f->operand[0].by;
    if (f->operands != 1 || !f->operand[0].t) return false;
    const tess_dims is = tess_nd_dims(f->operand[0].t);
    bool same = is.rank == d->rank;
    for (int k = 0; k < d->rank && same; k++)
        same = by->along[k] == k && !by->first[k] && by->step[k] == 1 && is.dim[k] == d->dim[k];
    return same;
}
