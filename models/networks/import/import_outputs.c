/* What a step of a network makes: the loss, with the numbers beside it and what states become, and the outputs that
 * `tessera run` writes. */
#include "models/networks/import/patterns.h"
#include "models/text/base/text.h"
#include <string.h>

/* A copy of a value as a vector of one number. */
static tess_status as_number(building *b, int k, tess_tensor **t)
{
    const tess_dims one = {1, {1}};
    const form *f = &b->form[k];
    TESS_FREED tess_draft *draft = tess_alloc(sizeof *draft);
    *draft = *f->draft;
    tess_nd_operand operand[TESS_ND_OPERANDS];
    memcpy(operand, f->operand, sizeof operand);
    for (int i = 0; i < f->operands; i++) operand[i].by.along[0] = -1;
    *t = tess_nd_map(b->g, draft, tess_draft_cast(draft, f->result, TESS_REAL), operand, f->operands, one);
    return *t ? TESS_OK : tess_build_failed(b, NULL);
}

tess_status tess_build_loss(building *b, tess_imported *out)
{
    const tess_import *n = b->n;
    tess_tensor *beside = NULL;
    TESS_TRY(tess_form_settle(b, n->loss, NULL));
    tess_tensor *loss = b->form[n->loss].t;
    for (int k = 0; k < n->numbers; k++) {
        tess_tensor *pair[2] = {beside};
        TESS_TRY(as_number(b, n->number_of[k], &pair[1]));
        beside = beside ? tess_nd_concat(pair, 2, 0) : pair[1];
        if (!beside) return tess_build_failed(b, NULL);
    }
    if (beside && !(out->measured = tess_nd_loss(loss, beside))) return tess_build_failed(b, NULL);
    for (int k = 0; k < n->values && loss; k++) {
        if (n->value[k].kind != VALUE_STATE || n->value[k].becomes < 0) continue;
        TESS_TRY(tess_form_settle(b, n->value[k].becomes, NULL));
        loss = tess_nd_keep(loss, b->form[n->value[k].becomes].t, b->state[k]);
    }
    TESS_TRY(tess_fast_loss(b, &out->output));
    if (!loss || (!out->output && !(out->output = tess_nd_loss(loss, NULL)))) return tess_build_failed(b, NULL);
    if (!out->measured) out->measured = out->output;
    return TESS_OK;
}

/* An output with its samples first; NULL: it has none. */
static tess_status build_output(building *b, int k, tess_tensor **made)
{
    TESS_TRY(tess_form_settle(b, k, NULL));
    const value *v = &b->n->value[k];
    const int at = tess_nd_samples(b->form[k].t);
    form f = b->form[k];
    tess_nd_reading by = tess_nd_reading_same(v->dims.rank);
    tess_dims d = v->dims;
    *made = NULL;
    if (at < 0 || v->kind != VALUE_NODE) return TESS_OK;
    for (int j = 0; j <= at; j++) {
        by.along[j] = (int8_t)(j ? j - 1 : at);
        d.dim[j] = v->dims.dim[by.along[j]];
    }
    tess_form_compose(&f, &by, d.rank, d.rank);
    *made = at ? tess_nd_map(b->g, f.draft, f.result, f.operand, f.operands, d) : f.t;
    return *made ? TESS_OK : tess_build_failed(b, NULL);
}

tess_status tess_build_made(building *b, tess_imported *out)
{
    tess_status status = TESS_OK;
    out->made = tess_alloc((size_t)(b->n->outputs + 1) * sizeof *out->made);
    for (int k = 0; k < b->n->outputs && status == TESS_OK; k++)
        status = build_output(b, b->n->output_of[k], &out->made[k]);
    return status;
}
