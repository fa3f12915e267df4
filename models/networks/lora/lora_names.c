/* What an adapter's parameters are called, here and in files, and which parameters are an adapter's. */
#include "lora.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

bool tess_lora_is_part(const char *name)
{
    return tess_ends(name, TESS_LORA_A) || tess_ends(name, TESS_LORA_B);
}

double tess_lora_scale(const tess_lora *l)
{
    return l->alpha / (l->rslora ? sqrt((double)l->r) : (double)l->r);
}

void tess_lora_file_name(const tess_model *m, const char *name, char full[static 512])
{
    char of[512];
    snprintf(of, sizeof of, "%s", name);
    if (tess_lora_is_part(name))
        snprintf(of, sizeof of, "%.*s.weight", (int)(strlen(name) - strlen(TESS_LORA_A)), name);
    snprintf(full, 512, "%s%.400s", m->family->bare(of) ? "" : m->family->prefix, name);
}

json_t *tess_lora_list(const char *text)
{
    json_t *list = text && text[0] == '[' ? json_loads(text, 0, NULL) : NULL;
    return list ? list : text ? json_pack("[s]", text) : json_array();
}

const tess_safetensor *tess_lora_find(const tess_model *m, const char *name)
{
    char full[512], key[600];
    if (!m->lora->set) return NULL;
    tess_lora_file_name(m, name, full);
    snprintf(key, sizeof key, "%s%s", TESS_LORA_PREFIX, full);
    return tess_safetensors_find(m->lora->set, m->lora->states ? name : key);
}

/* The module is around the parameter: "classifier" around classifier.dense.weight. */
static bool is_within(const char *module, const char *name)
{
    const size_t n = strlen(module);
    for (const char *at = name; n && (at = strstr(at, module)); at++)
        if ((at == name || at[-1] == '.') && at[n] == '.') return true;
    return false;
}

bool tess_lora_has(const tess_model *m, const tess_tensor *p)
{
    const char *name = tess_tensor_name(p);
    json_t *saved = tess_lora_list(m->lora->saved);
    bool has = tess_lora_is_part(name);
    for (size_t i = 0; i < json_array_size(saved); i++)
        has |= is_within(json_string_value(json_array_get(saved, i)), name);
    json_decref(saved);
    return has;
}
