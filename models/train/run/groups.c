/* optimizer.groups: rates of their own for parameters, by patterns on their names. */
#include "models/networks/networks.h"
#include "models/text/base/text.h"
#include "models/train/run/run.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* What is said of a parameter so far. */
struct rates {
    bool own;
    double lr_scale, weight_decay; /* weight_decay below 0: the optimizer's */
    bool hidden;                   /* Muon has it */
};

/* A member of a group, a number from 0 to 1000; *to stays where there is none. */
static tess_status number(const json_t *group, const char *where, const char *name, double *to)
{
    const json_t *value = json_object_get(group, name);
    if (!value) return TESS_OK;
    *to = json_number_value(value);
    if (json_is_number(value) && *to >= 0 && *to <= 1e3) return TESS_OK;
    TESS_FREED char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
    tess_error(TESS_INVALID, where, "%s is %.60s, expected a number from 0 to 1000", name, text ? text : "?");
    return TESS_INVALID;
}

static tess_status check_members(json_t *group, const char *where)
{
    static const char *const known[] = {"match", "lr_scale", "weight_decay", "muon"};
    enum { KNOWN = sizeof known / sizeof *known };
    const char *name;
    json_t *value;
    json_object_foreach(group, name, value)
    {
        bool there = false;
        for (int k = 0; k < KNOWN; k++) there |= !strcmp(name, known[k]);
        const char *meant = there || strlen(name) > 63 ? NULL : tess_nearest(name, known, KNOWN);
        if (!there)
            return tess_error(TESS_INVALID, where, "unknown key %.60s%s%s%s", name, meant ? " (did you mean " : "",
                              meant ? meant : ", expected match, lr_scale, weight_decay and muon", meant ? "?)" : "");
    }
    return TESS_OK;
}

/* "match", a pattern or a list of them. */
static tess_status mark(const tess_run *r, const json_t *group, const char *where, bool *marked)
{
    const json_t *match = json_object_get(group, "match");
    const size_t n = json_is_array(match) ? json_array_size(match) : 1;
    for (size_t i = 0; i < n; i++) {
        const char *pattern = json_string_value(json_is_array(match) ? json_array_get(match, i) : match);
        if (!pattern) break;
        TESS_TRY(tess_patterns_mark(r->model, r->g, where, pattern, marked));
        if (i + 1 == n) return TESS_OK;
    }
    return tess_error(TESS_INVALID, where,
                      "match is %s, expected a pattern on the names of parameters, or a list of them",
                      match ? "something else" : "missing");
}

/* Those of the matrices that a group marks. */
static tess_status mark_hidden(const tess_run *r, const json_t *group, const char *where, const bool *marked,
                               struct rates *of)
{
    const json_t *muon = json_object_get(group, "muon");
    int64_t shape[3];
    if (!muon) return TESS_OK;
    if (!json_is_boolean(muon) || r->c->optimizer.type != TESS_OPTIMIZER_MUON)
        return tess_error(TESS_INVALID, where, "muon is %s",
                          json_is_boolean(muon) ? "said, but optimizer.type is another"
                                                : "something else, expected true or false");
    for (int k = 0; k < tess_graph_params(r->g); k++) {
        if (!marked[k]) continue;
        if (json_is_true(muon) && tess_tensor_shape(tess_graph_param(r->g, k), shape) != 2)
            return tess_error(TESS_INVALID, where, "muon is true, but %s is no matrix",
                              tess_tensor_name(tess_graph_param(r->g, k)));
        of[k].hidden = json_is_true(muon);
    }
    return TESS_OK;
}

static tess_status apply(const tess_run *r, json_t *group, const char *where, struct rates *of)
{
    struct rates said = {.lr_scale = -1, .weight_decay = -1};
    TESS_TRY(check_members(group, where));
    TESS_TRY(number(group, where, "lr_scale", &said.lr_scale));
    TESS_TRY(number(group, where, "weight_decay", &said.weight_decay));
    const int params = tess_graph_params(r->g);
    TESS_FREED bool *marked = tess_alloc((size_t)params + 1);
    tess_status status = mark(r, group, where, marked);
    if (status == TESS_OK) status = mark_hidden(r, group, where, marked, of);
    for (int k = 0; k < params && status == TESS_OK; k++) {
        if (!marked[k]) continue;
        of[k].own = true;
        if (said.lr_scale >= 0) of[k].lr_scale = said.lr_scale;
        if (said.weight_decay >= 0) of[k].weight_decay = said.weight_decay;
    }
    return status;
}

/* As DeepSpeed has it, but that tables of embeddings are known by what reads them too, whatever they are called. */
static bool is_hidden(const tess_tensor *p)
{
    const char *name = tess_tensor_name(p);
    return tess_param_hidden(p) && !strcasestr(name, "embed") && !strcasestr(name, "lm_head");
}

/* What Muon has, and how its steps are as long as PyTorch's, who may have the matrix transposed. */
static tess_status set_hidden(const tess_run *r, const struct rates *of)
{
    int64_t elements[2] = {0}, matrices = 0, shape[3];
    for (int k = 0; k < tess_graph_params(r->g); k++) {
        tess_tensor *p = tess_graph_param(r->g, k);
        TESS_TRY(tess_param_set_hidden(p, of[k].hidden, tess_model_has_turned(r->model, p)));
        tess_tensor_shape(p, shape);
        if (tess_param_frozen(p)) continue;
        elements[of[k].hidden] += tess_tensor_shape(p, shape) == 2 ? shape[0] * shape[1] : shape[0];
        matrices += of[k].hidden ? tess_param_members(p) : 0;
    }
    if (!matrices)
        return tess_error(TESS_INVALID, r->c->file,
                          "optimizer.type: Muon, but no hidden matrix is trained (AdamW, or optimizer.groups with "
                          "\"muon\": true)");
    tess_note("optimizer: Muon has %lld matrices of %lld elements, AdamW the other %lld elements", (long long)matrices,
              (long long)elements[1], (long long)elements[0]);
    return TESS_OK;
}

tess_status tess_run_groups(const tess_run *r)
{
    const bool muon = r->c->optimizer.type == TESS_OPTIMIZER_MUON;
    TESS_FREED_JSON json_t *groups = r->c->optimizer.groups ? json_loads(r->c->optimizer.groups, 0, NULL) : NULL;
    const int params = tess_graph_params(r->g);
    TESS_FREED struct rates *of = tess_alloc(((size_t)params + 1) * sizeof *of);
    for (int k = 0; k < params; k++) {
        const bool hidden = muon && is_hidden(tess_graph_param(r->g, k));
        of[k] = (struct rates){.lr_scale = 1, .weight_decay = -1, .hidden = hidden};
    }
    tess_status status = TESS_OK;
    for (size_t i = 0; i < json_array_size(groups) && status == TESS_OK; i++) {
        char where[512];
        snprintf(where, sizeof where, "%.300s: optimizer.groups[%zu]", r->c->file, i);
        status = apply(r, json_array_get(groups, i), where, of);
    }
    for (int k = 0; k < params && muon; k++) {
        const double lr = r->c->optimizer.params.lr,
                     own = of[k].hidden ? r->c->optimizer.params.muon_lr : r->c->optimizer.params.adam_lr;
        if (own == lr) continue;
        of[k].own = true;
        of[k].lr_scale *= own / lr;
    }
    if (status == TESS_OK && muon) status = set_hidden(r, of);
    for (int k = 0; k < params && status == TESS_OK; k++)
        if (of[k].own) status = tess_param_set_rates(tess_graph_param(r->g, k), of[k].lr_scale, of[k].weight_decay);
    return status;
}
