/* Adapters in a graph (lora.h): what their parameters are called, which linears have one, and what is trained.
 *
 * An adapter is two more linears beside one that is described, so no family and no pass knows of adapters; they are
 * shared out, streamed and recomputed as other parameters are. Rewriting a finished graph would have to find readers
 * and names again. The output is PEFT's directory, not a merged model, because the weights of a base of 7 billion
 * would take 28 GB again for each run; `tessera merge` makes one. Keys of adapter_config.json that would change the
 * arithmetic (pissa, olora) are refused by name. W x + B A x is added in a pass of its own, which costs a few percent.
 */
#include "models/networks/lora/lora.h"
#include "models/text/base/text.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- names, here and in files ---- */

double tess_lora_scale(const tess_lora *l)
{
    return l->alpha / (l->rslora ? sqrt((double)l->r) : (double)l->r);
}

void tess_lora_file_name(const tess_model *m, const char *name, char full[static 512])
{
    char of[512];
    snprintf(of, sizeof of, "%s", name);
    const char *end = tess_lora_part(name);
    if (end) snprintf(of, sizeof of, "%.*s.weight", (int)(strlen(name) - strlen(end)), name);
    snprintf(full, 512, "%s%.400s", tess_names_have(m->family->bare, of) ? "" : m->family->prefix, name);
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
    TESS_FREED_JSON json_t *saved = tess_lora_list(m->lora->saved);
    bool has = tess_lora_part(name) != NULL;
    for (size_t i = 0; i < json_array_size(saved); i++)
        has |= is_within(json_string_value(json_array_get(saved, i)), name);
    return has;
}

/* ---- targets ---- */

/* A module is meant by its whole name, by the end of it behind a dot, or by a pattern. */
static bool is_meant(const char *target, const char *module)
{
    if (tess_pattern_is(target)) return tess_pattern_matches(target, module);
    if (!strcmp(target, module)) return true;
    char end[256];
    snprintf(end, sizeof end, ".%.250s", target);
    return tess_ends(module, end);
}

/* What is put beside the linears of one graph, as they are described. */
struct tess_lora_building {
    const tess_model *m;
    tess_graph *g;
    json_t *targets;
    bool *hit;       /* [targets] */
    char known[400]; /* the last parts of the modules that were met */
    bool inside;     /* an adapter is being described */
};

static void note_known(tess_lora_building *b, const char *module)
{
    const char *last = strrchr(module, '.') ? strrchr(module, '.') + 1 : module;
    char word[130];
    snprintf(word, sizeof word, " %.120s,", last);
    const size_t n = strlen(b->known);
    if (!strstr(b->known, word) && n + strlen(word) < sizeof b->known) strcpy(b->known + n, word);
}

/* Of an adapter from a file, the linears that it has tensors for. */
static bool is_target(tess_lora_building *b, const char *module, const char *full)
{
    const tess_lora *l = b->m->lora;
    bool any = false;
    if (l->set) {
        char name[512];
        snprintf(name, sizeof name, "%.400s%s", module, TESS_LORA_A);
        return tess_lora_find(b->m, name) != NULL;
    }
    if (!strcmp(l->targets, "all-linear")) return true;
    for (size_t i = 0; i < json_array_size(b->targets); i++) {
        if (!is_meant(json_string_value(json_array_get(b->targets, i)), full) &&
            !is_meant(json_string_value(json_array_get(b->targets, i)), module))
            continue;
        any = b->hit[i] = true;
    }
    return any;
}

/* y with what is beside it, and, with DoRA, rows of other lengths: dropped elements of x are dropped for W too, whose
 * product with all of them stays as it is. */
static tess_tensor *adapted(tess_lora_building *b, const char *module, tess_tensor *x, tess_tensor *w,
                            tess_tensor *bias, tess_tensor *y)
{
    const tess_lora *l = b->m->lora;
    const float by = (float)tess_lora_scale(l);
    char name[512];
    int64_t shape[3];
    tess_tensor_shape(w, shape);
    snprintf(name, sizeof name, "%.400s%s", module, TESS_LORA_A);
    tess_tensor *A = tess_matrix(b->g, name, l->r, shape[1], TESS_UNIFORM((float)(1 / sqrt((double)shape[1]))));
    snprintf(name, sizeof name, "%.400s%s", module, TESS_LORA_B);
    tess_tensor *B = tess_matrix(b->g, name, shape[0], l->r, TESS_ZERO);
    tess_tensor *seen = tess_dropout(x, (float)l->dropout);
    tess_tensor *beside = tess_linear(tess_scaled(tess_linear(seen, A, NULL), by), B, NULL);
    if (!l->dora) return tess_add(y, beside);
    snprintf(name, sizeof name, "%.400s%s", module, TESS_LORA_M);
    tess_tensor *m = tess_param(b->g, name, shape[0], 1, TESS_ONE);
    if (seen == x) return tess_rescaled(tess_add(y, beside), w, A, B, by, m, bias);
    tess_tensor *base = tess_linear(seen, w, NULL);
    return tess_add(tess_add(y, tess_scaled(base, -1)), tess_rescaled(tess_add(base, beside), w, A, B, by, m, NULL));
}

static tess_tensor *put_beside(void *of, tess_tensor *x, tess_tensor *w, tess_tensor *bias, tess_tensor *y)
{
    tess_lora_building *b = of;
    char full[512], module[512];
    if (b->inside) return y;
    snprintf(module, sizeof module, "%.400s", tess_tensor_name(w));
    tess_lora_file_name(b->m, module, full);
    if (tess_ends(module, ".weight")) module[strlen(module) - 7] = 0;
    if (tess_ends(full, ".weight")) full[strlen(full) - 7] = 0;
    if (tess_ends(module, ".gate") || tess_ends(module, ".router")) return y; /* a router is no linear to PEFT */
    note_known(b, module);
    if (!is_target(b, module, full)) return y;
    b->inside = true;
    y = adapted(b, module, x, w, bias, y);
    b->inside = false;
    return y;
}

/* What PEFT takes where nothing is said, by the type of a model. */
static const char *preset_targets(const tess_model *m)
{
    static const char *const preset[][2] = {
        {"bert", "[\"query\", \"value\"]"},          {"gemma2", "[\"q_proj\", \"v_proj\"]"},
        {"gemma3_text", "[\"q_proj\", \"v_proj\"]"}, {"gpt2", "[\"c_attn\"]"},
        {"gpt_neox", "[\"query_key_value\"]"},       {"llama", "[\"q_proj\", \"v_proj\"]"},
        {"mistral", "[\"q_proj\", \"v_proj\"]"},     {"mixtral", "[\"q_proj\", \"v_proj\"]"},
        {"qwen2", "[\"q_proj\", \"v_proj\"]"},       {"qwen3", "[\"q_proj\", \"v_proj\"]"},
        {"roberta", "[\"query\", \"value\"]"},       {"t5", "[\"q\", \"v\"]"}};
    for (size_t i = 0; i < sizeof preset / sizeof *preset; i++)
        if (!strcmp(preset[i][0], m->family->type)) return preset[i][1];
    return NULL;
}

/* The lengths of rows are those of W itself, and are computed from its tiles. */
static tess_status check_base(const char *where, const tess_lora_conf *c, bool dora)
{
    const char *as = tess_dtype_name(c->base);
    if (c->base == TESS_F32) return TESS_OK;
    if (!tess_is_quantized(c->base))
        return tess_error(TESS_INVALID, where, "base: %s, expected int8, nf4, or f32 for what is stored", as);
    if (!dora) return TESS_OK;
    return tess_error(TESS_INVALID, where, "dora: true beside a base in %s is not there yet (base: \"as stored\")", as);
}

tess_status tess_model_add_lora(tess_model *m, const tess_lora_conf *c)
{
    if (!m || !c) return tess_error(TESS_INVALID, "lora", "the model or the settings are NULL");
    if (m->lora) return tess_error(TESS_INVALID, "lora", "the model has adapters already");
    if (c->r < 1 || c->r > 65536 || !(c->dropout >= 0 && c->dropout < 1) || !isfinite(c->alpha))
        return tess_error(TESS_INVALID, "lora", "r %lld, alpha %g, dropout %g (expected 1 to 65536, any, 0 to below 1)",
                          (long long)c->r, c->alpha, c->dropout);
    TESS_TRY(check_base("lora", c, c->dora));
    const char *targets = c->targets ? c->targets : preset_targets(m);
    if (!targets)
        return tess_error(TESS_INVALID, "lora.targets",
                          "missing, and for a %s there is no default (say the names of "
                          "linears, or all-linear)",
                          m->family->type);
    /* A head of labels is as a rule new: adapters beside a head of noise learn nothing. */
    const char *saved = c->modules_to_save                         ? c->modules_to_save
                        : m->family->answers == TESS_ANSWERS_LABEL ? "[\"classifier\", \"score\"]"
                                                                   : NULL;
    m->lora = tess_alloc(sizeof *m->lora);
    *m->lora = (tess_lora){.r = c->r,
                           .alpha = c->alpha,
                           .dropout = c->dropout,
                           .rslora = c->rslora,
                           .dora = c->dora,
                           .base = c->base,
                           .targets = tess_strdup(targets),
                           .saved = saved ? tess_strdup(saved) : NULL};
    return TESS_OK;
}

const char *tess_lora_differ(const tess_lora *a, const tess_lora *b, char x[static 32], char y[static 32])
{
    const struct {
        const char *name;
        double a, b;
    } field[] = {{"r", (double)a->r, (double)b->r},
                 {"alpha", a->alpha, b->alpha},
                 {"rslora", a->rslora, b->rslora},
                 {"dora", a->dora, b->dora}};
    for (size_t i = 0; i < sizeof field / sizeof *field; i++) {
        if (field[i].a == field[i].b) continue;
        snprintf(x, 32, "%g", field[i].a);
        snprintf(y, 32, "%g", field[i].b);
        return field[i].name;
    }
    return NULL;
}

tess_status tess_model_ask_lora(tess_model *m, const char *where, const tess_lora_conf *c)
{
    tess_lora *l = m->lora;
    char theirs[32], ours[32];
    const tess_lora asked = {.r = c->r < 0 ? l->r : c->r,
                             .alpha = c->alpha < 0 ? l->alpha : c->alpha,
                             .rslora = c->rslora || l->rslora,
                             .dora = c->dora || l->dora};
    const char *field = tess_lora_differ(l, &asked, theirs, ours);
    if (field)
        return tess_error(TESS_INVALID, where, "%s: %s, but the adapter in %s has %s (leave it out)", field, ours,
                          l->dir, theirs);
    if (c->targets || c->modules_to_save)
        return tess_error(TESS_INVALID, where, "%s: the adapter in %s has its own (leave them out)",
                          c->targets ? "targets" : "modules_to_save", l->dir);
    TESS_TRY(check_base(where, c, l->dora));
    if (c->dropout >= 0) l->dropout = c->dropout;
    l->base = c->base;
    return TESS_OK;
}

/* Each target has to mean something. */
static tess_status check_hits(const tess_lora_building *b)
{
    for (size_t i = 0; i < json_array_size(b->targets) && !b->m->lora->set; i++) {
        const char *target = json_string_value(json_array_get(b->targets, i));
        if (b->hit[i] || !strcmp(target, "all-linear")) continue;
        const size_t n = strlen(b->known);
        return tess_error(TESS_INVALID, "lora.targets", "\"%.100s\" is no linear of this %s (known:%.*s)", target,
                          b->m->family->type, n ? (int)n - 1 : 0, b->known);
    }
    return TESS_OK;
}

tess_lora_building *tess_lora_begin(const tess_model *m, tess_graph *g)
{
    if (!m->lora) return NULL;
    tess_lora_building *b = tess_alloc(sizeof *b);
    *b = (tess_lora_building){.m = m, .g = g, .targets = tess_lora_list(m->lora->targets)};
    b->hit = tess_alloc(json_array_size(b->targets) + 1);
    tess_graph_on_linear(g, put_beside, b);
    return b;
}

tess_status tess_lora_end(tess_lora_building *b)
{
    if (!b) return TESS_OK;
    const tess_status status = check_hits(b);
    tess_graph_on_linear(b->g, NULL, NULL);
    json_decref(b->targets);
    free(b->hit);
    free(b);
    return status;
}

/* As bitsandbytes does: linears but for the head. Embeddings and norms are none. */
static void quantize(const tess_model *m, const tess_graph *g, const tess_tensor *head)
{
    const tess_tensor *first = NULL;
    int left = 0;
    for (int k = 0; k < tess_graph_params(g) && m->lora->base != TESS_F32; k++) {
        tess_tensor *p = tess_graph_param(g, k);
        if (p == head || !tess_param_frozen(p) || !tess_param_multiplies(p) || tess_param_quantize(p, m->lora->base))
            continue;
        if (!left++) first = p;
    }
    if (left && !m->lora->said && tess_rank() == 0)
        tess_note(
            "lora.base: %d matrices stay as they are stored, since their rows are no whole blocks of %d (%s first)",
            left, TESS_QUANTIZED_BLOCK, tess_tensor_name(first));
    m->lora->said = true;
}

tess_status tess_lora_freeze(const tess_model *m, tess_graph *g, const tess_tensor *head)
{
    if (!m->lora) return TESS_OK;
    tess_status status = TESS_OK;
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++) {
        tess_tensor *p = tess_graph_param(g, k);
        if (!tess_lora_has(m, p))
            status = tess_param_freeze(p);
        else if (tess_param_members(p) > 1)
            status = tess_error(TESS_INVALID, "lora.modules_to_save",
                                "%s are the matrices of all experts (only a module of one matrix can be saved)",
                                tess_tensor_name(p));
        else if (p == head && m->family->answers != TESS_ANSWERS_LABEL && ((const tess_common *)m->numbers)->tied)
            status = tess_error(TESS_INVALID, "lora.modules_to_save",
                                "%s is embedding and head in one (only a module of its own can be saved)",
                                tess_tensor_name(p));
    }
    if (status == TESS_OK) quantize(m, g, head);
    return status;
}
