/* optimizer.groups: rates of their own for parameters, by patterns on their names. */
#include "models/networks/networks.h"
#include "models/train/run/run.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* What is said of a parameter so far. */
struct rates {
    bool own;
    double lr_scale, weight_decay; /* weight_decay below 0: the optimizer's */
};

/* A member of a group, a number from 0 to 1000; *to stays where there is none. */
static tess_status number(const json_t *group, const char *where, const char *name, double *to)
{
    const json_t *value = json_object_get(group, name);
    if (!value) return TESS_OK;
    *to = json_number_value(value);
    if (json_is_number(value) && *to >= 0 && *to <= 1e3) return TESS_OK;
    char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
    tess_error(TESS_INVALID, where, "%s is %.60s, expected a number from 0 to 1000", name, text ? text : "?");
    free(text);
    return TESS_INVALID;
}

static tess_status check_members(json_t *group, const char *where)
{
    static const char *const known[] = {"match", "lr_scale", "weight_decay"};
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
                              meant ? meant : ", expected match, lr_scale and weight_decay", meant ? "?)" : "");
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

static tess_status apply(const tess_run *r, json_t *group, const char *where, struct rates *of)
{
    struct rates said = {.lr_scale = -1, .weight_decay = -1};
    TESS_TRY(check_members(group, where));
    TESS_TRY(number(group, where, "lr_scale", &said.lr_scale));
    TESS_TRY(number(group, where, "weight_decay", &said.weight_decay));
    const int params = tess_graph_params(r->g);
    bool *marked = tess_alloc((size_t)params + 1);
    const tess_status status = mark(r, group, where, marked);
    for (int k = 0; k < params && status == TESS_OK; k++) {
        if (!marked[k]) continue;
        of[k].own = true;
        if (said.lr_scale >= 0) of[k].lr_scale = said.lr_scale;
        if (said.weight_decay >= 0) of[k].weight_decay = said.weight_decay;
    }
    free(marked);
    return status;
}

tess_status tess_run_groups(const tess_run *r)
{
    json_t *groups = r->c->optimizer.groups ? json_loads(r->c->optimizer.groups, 0, NULL) : NULL;
    const int params = tess_graph_params(r->g);
    struct rates *of = tess_alloc(((size_t)params + 1) * sizeof *of);
    for (int k = 0; k < params; k++) of[k] = (struct rates){.lr_scale = 1, .weight_decay = -1};
    tess_status status = TESS_OK;
    for (size_t i = 0; i < json_array_size(groups) && status == TESS_OK; i++) {
        char where[512];
        snprintf(where, sizeof where, "%.300s: optimizer.groups[%zu]", r->c->file, i);
        status = apply(r, json_array_get(groups, i), where, of);
    }
    for (int k = 0; k < params && status == TESS_OK; k++)
        if (of[k].own) status = tess_param_set_rates(tess_graph_param(r->g, k), of[k].lr_scale, of[k].weight_decay);
    free(of);
    json_decref(groups);
    return status;
}
