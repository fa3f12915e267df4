/* What optimizers have of optimizer.params, by optimizers.def: keys of another one are refused, and defaults may be an
 * optimizer's own. */
#include "models/text/base/text.h"
#include "models/train/config/config_impl.h"
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name, *params;
} optimizers[] = {
#define OPTIMIZER(id, kind, name, params) [TESS_OPTIMIZER_##id] = {name, params},
#include "codelets/optimizers.def"
};

static const char *in_params(const tess_key *k)
{
    static const char group[] = "optimizer.params.";
    return strncmp(k->path, group, sizeof group - 1) ? NULL : k->name;
}

/* Where the params of an optimizer have the name: behind it; NULL: they have not. */
static const char *find(int type, const char *name)
{
    const size_t n = strlen(name);
    for (const char *p = optimizers[type].params; *p; p += strspn(p, " ")) {
        const size_t word = strcspn(p, " "), of = strcspn(p, " =");
        if (of == n && !memcmp(p, name, n)) return p + n;
        p += word;
    }
    return NULL;
}

bool tess_key_of_another_optimizer(const tess_config *c, const tess_key *k)
{
    return in_params(k) && !find(c->optimizer.type, k->name);
}

/* "lr, betas, eps" */
static char *params_in_force(int type)
{
    char *list = NULL;
    for (size_t i = 0; i < tess_key_count; i++) {
        const tess_key *k = &tess_keys[i];
        if (k->state != TESS_KEY_ACTIVE || !in_params(k) || !find(type, k->name)) continue;
        char *longer = tess_format("%s%s%s", list ? list : "", list ? ", " : "", k->name);
        free(list);
        list = longer;
    }
    return list;
}

/* The default that the optimizer has of its own, where none was given. */
static tess_status set_own_preset(tess_config *c, const tess_key *k, const char *behind)
{
    tess_key_mark how = tess_key_how(c, k->path);
    if (*behind != '=' || how == TESS_KEY_GIVEN) return TESS_OK;
    TESS_FREED char *text = tess_format("%.*s", (int)strcspn(behind + 1, " "), behind + 1);
    TESS_FREED_JSON json_t *value = tess_key_parse(k, text);
    tess_status status = tess_key_set(c, k, value, c->file);
    c->notes->mark[k - tess_keys] = (unsigned char)how;
    return status;
}

tess_status tess_config_resolve_muon(tess_config *c)
{
    const double lr = c->optimizer.params.lr;
    double *of[] = {&c->optimizer.params.muon_lr, &c->optimizer.params.adam_lr};
    for (int k = 0; k < 2; k++) {
        if (*of[k] == TESS_CONFIG_AUTO) *of[k] = lr;
        if (lr == 0 && *of[k] > 0)
            REFUSE(c, k ? "optimizer.params.adam_lr" : "optimizer.params.muon_lr",
                   "%g, but lr is 0, and the two move alike (lr above 0)", *of[k]);
    }
    const int type = c->optimizer.type;
    if ((type == TESS_OPTIMIZER_MUON || type == TESS_OPTIMIZER_ADAFACTOR) && c->parallel.tensor > 1)
        REFUSE(c, "parallel.tensor",
               "%lld, but %s updates whole matrices (1, with data-parallel ranks, a pipeline or sequences, or another "
               "optimizer.type)",
               (long long)c->parallel.tensor, optimizers[type].name);
    return TESS_OK;
}

tess_status tess_config_resolve_optimizer(tess_config *c)
{
    const int type = c->optimizer.type;
    for (size_t i = 0; i < tess_key_count; i++) {
        const tess_key *k = &tess_keys[i];
        const char *name = in_params(k), *behind = name ? find(type, name) : NULL;
        if (behind) TESS_TRY(set_own_preset(c, k, behind));
        if (!name || behind || tess_key_how(c, k->path) == TESS_KEY_PRESET) continue;
        char where[512], *has = params_in_force(type);
        snprintf(where, sizeof where, "%.300s: %s", c->file, k->path);
        tess_error(TESS_INVALID, where, "%s has no such parameter, expected of %s", optimizers[type].name, has);
        free(has);
        return TESS_INVALID;
    }
    return TESS_OK;
}
