/* Adapters in files, as PEFT has them: adapter_config.json and adapter_model.safetensors, whose tensors are called
 * base_model.model.NAME, NAME being what it would be in the base's own file. */
#include "models/networks/lora/lora.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

bool tess_lora_there(const char *dir)
{
    return tess_dirs_has(dir, "adapter_config.json") && !tess_safetensors_in(dir);
}

void tess_lora_close(tess_lora *l)
{
    if (!l) return;
    tess_safetensors_close(l->set);
    free(l->targets);
    free(l->saved);
    free(l->dir);
    free(l);
}

/* ---- adapter_config.json ---- */

/* Keys without effect on what an adapter computes, or which the tensors' names say as well. */
static const char ignored[] =
    "auto_mapping base_model_name_or_path revision inference_mode target_modules exclude_modules fan_in_fan_out "
    "layers_to_transform layers_pattern peft_version task_type megatron_config megatron_core ensure_weight_tying "
    "corda_config eva_config lora_ga_config loftq_config runtime_config qalora_group_size modules_to_save r "
    "lora_alpha lora_dropout use_rslora use_dora peft_type init_lora_weights bias";

static bool is_nothing(const json_t *v)
{
    return json_is_null(v) || json_is_false(v) || (json_is_object(v) && !json_object_size(v)) ||
           (json_is_array(v) && !json_array_size(v));
}

static tess_status refuse(const char *path, const char *key, const json_t *v, const char *expected)
{
    TESS_FREED char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);
    return tess_error(TESS_INVALID, path, "%.60s: %.80s (%s)", key, text ? text : "?", expected);
}

/* What would be other arithmetic is refused by its name. */
static tess_status check_keys(const char *path, json_t *root)
{
    const char *key;
    json_t *v, *type = json_object_get(root, "peft_type"), *bias = json_object_get(root, "bias"),
               *init = json_object_get(root, "init_lora_weights");
    if (!json_is_string(type) || strcmp(json_string_value(type), "LORA"))
        return refuse(path, "peft_type", type, "expected \"LORA\"");
    if (bias && !json_is_null(bias) && (!json_is_string(bias) || strcmp(json_string_value(bias), "none")))
        return refuse(path, "bias", bias, "expected \"none\"");
    if (json_is_string(init) && strcmp(json_string_value(init), "gaussian") && strcmp(json_string_value(init), "eva"))
        return refuse(path, "init_lora_weights", init, "it changes the base, expected true, false or \"gaussian\"");
    json_object_foreach(root, key, v)
    {
        if (!is_nothing(v) && !tess_names_have(ignored, key))
            return refuse(path, key, v, "is not supported here, expected null");
    }
    return TESS_OK;
}

static bool is_names(const json_t *list)
{
    bool all = json_is_array(list);
    for (size_t i = 0; i < json_array_size(list); i++) all &= json_is_string(json_array_get(list, i));
    return all;
}

static tess_status read_config(const char *path, json_t *root, tess_lora *l, char **base)
{
    const json_t *r = json_object_get(root, "r"), *alpha = json_object_get(root, "lora_alpha"),
                 *dropout = json_object_get(root, "lora_dropout"),
                 *of = json_object_get(root, "base_model_name_or_path");
    if (!json_is_object(root)) return tess_error(TESS_INVALID, path, "is no JSON object");
    TESS_TRY(check_keys(path, root));
    if (!json_is_integer(r) || json_integer_value(r) < 1 || json_integer_value(r) > 65536)
        return refuse(path, "r", r, "expected a whole number from 1 to 65536");
    if (alpha && !json_is_number(alpha)) return refuse(path, "lora_alpha", alpha, "expected a number");
    if (dropout && !json_is_number(dropout)) return refuse(path, "lora_dropout", dropout, "expected a number");
    if (dropout && !(json_number_value(dropout) >= 0 && json_number_value(dropout) < 1))
        return refuse(path, "lora_dropout", dropout, "expected a number from 0 to below 1");
    const json_t *targets = json_object_get(root, "target_modules"), *saved = json_object_get(root, "modules_to_save"),
                 *rslora = json_object_get(root, "use_rslora"), *dora = json_object_get(root, "use_dora");
    if (rslora && !json_is_boolean(rslora) && !json_is_null(rslora))
        return refuse(path, "use_rslora", rslora, "expected true or false");
    if (dora && !json_is_boolean(dora) && !json_is_null(dora))
        return refuse(path, "use_dora", dora, "expected true or false");
    if (targets && !json_is_null(targets) && !json_is_string(targets) && !is_names(targets))
        return refuse(path, "target_modules", targets, "expected a list of names, or an expression");
    if (saved && !json_is_null(saved) && !is_names(saved))
        return refuse(path, "modules_to_save", saved, "expected a list of names");
    l->r = json_integer_value(r);
    l->alpha = alpha ? json_number_value(alpha) : 8;
    l->dropout = json_number_value(dropout);
    l->rslora = json_is_true(rslora);
    l->dora = json_is_true(dora);
    l->targets = json_is_string(targets) ? tess_strdup(json_string_value(targets)) : json_dumps(targets, JSON_COMPACT);
    if (!l->targets) l->targets = tess_strdup("[]");
    if (json_is_array(saved) && json_array_size(saved)) l->saved = json_dumps(saved, JSON_COMPACT);
    *base = json_is_string(of) ? tess_strdup(json_string_value(of)) : NULL;
    return TESS_OK;
}

tess_status tess_lora_open(const char *dir, tess_lora **lora, char **base)
{
    json_error_t e;
    TESS_FREED char *path = tess_format("%s/adapter_config.json", dir),
                    *tensors = tess_format("%s/adapter_model.safetensors", dir);
    TESS_FREED_JSON json_t *root = tess_json_load(path, JSON_REJECT_DUPLICATES, &e);
    tess_lora *l = tess_alloc(sizeof *l);
    tess_status status;
    *lora = NULL;
    *base = NULL;
    if (!root && access(path, R_OK))
        status = tess_error(tess_errno_status(errno), path, "cannot be read: %s (expected an adapter's directory)",
                            strerror(errno));
    else if (!root)
        status = tess_error(TESS_INVALID, path, "line %d, column %d: %s", e.line, e.column, e.text);
    else
        status = read_config(path, root, l, base);
    l->dir = tess_strdup(dir);
    l->states = tess_states_whole(dir);
    if (status == TESS_OK)
        status = l->states ? tess_states_open(dir, &l->set) : tess_safetensors_open(tensors, &l->set);
    if (status == TESS_OK)
        *lora = l;
    else {
        tess_lora_close(l);
        free(*base);
        *base = NULL;
    }
    return status;
}

tess_status tess_model_adapt(tess_model *m, const char *dir)
{
    TESS_FREED char *base = NULL;
    if (!m || !dir) return tess_error(TESS_INVALID, "adapter", "the model or the directory is NULL");
    if (m->lora) return tess_error(TESS_INVALID, dir, "is an adapter for a model that has one already");
    return tess_lora_open(dir, &m->lora, &base);
}

/* ---- tensors ---- */

/* What no parameter of this model takes is another model's. */
tess_status tess_lora_check(const tess_model *m, const tess_graph *g)
{
    const tess_safetensors *set = m->lora->set;
    for (size_t i = 0; i < tess_safetensors_count(set) && !m->lora->states; i++) {
        const tess_safetensor *t = tess_safetensors_at(set, i);
        bool taken = false;
        for (int k = 0; k < tess_graph_params(g) && !taken; k++)
            taken = tess_lora_has(m, tess_graph_param(g, k)) &&
                    tess_lora_find(m, tess_tensor_name(tess_graph_param(g, k))) == t;
        if (!taken)
            return tess_error(TESS_INVALID, t->file,
                              "tensor %s fits nothing in this %s (is the adapter for another base?)", t->name,
                              m->family->type);
    }
    return TESS_OK;
}

tess_status tess_lora_need(const tess_model *m, const tess_tensor *p, bool turned, const tess_safetensor **t)
{
    int64_t shape[3];
    const int rank = tess_tensor_shape(p, shape);
    *t = tess_lora_find(m, tess_tensor_name(p));
    if (*t) return tess_pieces_check(*t, rank, shape, turned);
    return tess_error(TESS_INVALID, m->lora->dir, "no tensor %s in it (is the adapter for another base?)",
                      tess_tensor_name(p));
}

static tess_status load_part(const tess_model *m, tess_tensor *p)
{
    const bool turned = !m->lora->states && tess_model_turned(m, tess_tensor_name(p));
    const tess_safetensor *t;
    TESS_TRY(tess_lora_need(m, p, turned, &t));
    return tess_pieces_read(t, p, TESS_MASTER, turned);
}

/* m begins as what the rows of W are, which each rank finds of those that it holds. */
static tess_status load_lengths(tess_graph *g, tess_tensor *p)
{
    char name[512];
    int64_t shape[3];
    float *data;
    snprintf(name, sizeof name, "%.*s.weight", (int)(strlen(tess_tensor_name(p)) - strlen(TESS_LORA_M)),
             tess_tensor_name(p));
    tess_tensor *w = tess_graph_find_param(g, name);
    tess_tensor_shape(w, shape);
    int64_t *bits = tess_alloc((size_t)shape[0] * sizeof *bits); /* of a float, from the one rank that has the row */
    tess_status status = TESS_OK;
    for (int64_t i = 0; i < tess_param_pieces(w) && status == TESS_OK; i++) {
        const tess_piece q = tess_param_piece(w, i);
        TESS_ASSERT(q.cols == shape[1] || q.rows == 0); /* no rank has a part of a row: the op keeps them whole */
        if (!q.writes) continue;
        status = tess_param_map(w, i, TESS_MASTER, TESS_R, &data);
        for (int64_t r = 0; r < q.rows && status == TESS_OK; r++) {
            double square = 0;
            for (int64_t c = 0; c < q.cols; c++) square += (double)data[r * q.cols + c] * data[r * q.cols + c];
            const float length = (float)sqrt(square);
            memcpy(&bits[q.row + r], &length, sizeof length);
        }
        if (status == TESS_OK) tess_param_unmap(w, i, TESS_MASTER);
    }
    status = tess_ranks_agree(status);
    if (status == TESS_OK) tess_ranks_sum_counts(bits, (int)shape[0]);
    for (int64_t i = 0; i < tess_param_pieces(p) && status == TESS_OK; i++) {
        const tess_piece q = tess_param_piece(p, i);
        status = tess_param_map(p, i, TESS_MASTER, TESS_W, &data);
        for (int64_t r = 0; r < q.rows && status == TESS_OK; r++) memcpy(&data[r], &bits[q.row + r], sizeof *data);
        if (status == TESS_OK) tess_param_unmap(p, i, TESS_MASTER);
    }
    free(bits);
    return status;
}

/* Of what is drawn, modules that are trained as they are have been loaded with the base. */
tess_status tess_lora_load(const tess_model *m, tess_graph *g, uint64_t seed)
{
    if (m->lora->set) TESS_TRY(tess_lora_check(m, g));
    for (int k = 0; k < tess_graph_params(g); k++) {
        tess_tensor *p = tess_graph_param(g, k);
        if (!tess_lora_has(m, p)) continue;
        if (m->lora->set)
            TESS_TRY(load_part(m, p));
        else if (tess_ends(tess_tensor_name(p), TESS_LORA_M))
            TESS_TRY(load_lengths(g, p));
        else if (tess_lora_part(tess_tensor_name(p)))
            TESS_TRY(tess_param_init(p, seed));
    }
    return TESS_OK;
}

tess_status tess_model_adapt_anew(tess_model *m, tess_graph *g, const char *dir)
{
    char theirs[32], ours[32], *base = NULL;
    tess_lora *before = m->lora, *now = NULL;
    if (!before) return tess_error(TESS_INVALID, dir, "the model has no adapter in whose place it could come");
    tess_status status = tess_lora_open(dir, &now, &base);
    free(base);
    const char *field = status == TESS_OK ? tess_lora_differ(now, before, theirs, ours) : NULL;
    if (field) status = tess_error(TESS_INVALID, dir, "%s: %s, but the adapter before has %s", field, theirs, ours);
    if (status == TESS_OK) {
        now->base = before->base, now->said = before->said;
        m->lora = now;
        status = tess_lora_load(m, g, 0);
        now = before;
    }
    if (status != TESS_OK && m->lora != before) { /* what was read of it goes */
        TESS_FREED char *why = tess_strdup(tess_error_text());
        now = m->lora;
        m->lora = before;
        tess_error_clear();
        status = tess_lora_load(m, g, 0);
        if (status == TESS_OK) tess_error_restore(why), status = TESS_INVALID;
    }
    tess_lora_close(now);
    return status;
}

/* A name alone is a list of one: PEFT takes a text for a regular expression. */
static json_t *plain_targets(const tess_lora *l)
{
    json_t *list = l->targets[0] == '[' ? json_loads(l->targets, 0, NULL) : NULL; /* an expression may begin so, too */
    if (list) return list;
    return l->set || !strcmp(l->targets, "all-linear") ? json_string(l->targets) : json_pack("[s]", l->targets);
}

static bool has_patterns(const json_t *list)
{
    bool any = false;
    for (size_t i = 0; i < json_array_size(list); i++)
        any |= tess_pattern_is(json_string_value(json_array_get(list, i)));
    return any;
}

/* Patterns are one regular expression there, over whole names of modules; those from a file are PEFT's own. */
static json_t *targets_of(const tess_lora *l)
{
    json_t *list = plain_targets(l);
    if (l->set || !json_is_array(list) || !has_patterns(list)) return list;
    TESS_FREED char *text = NULL;
    size_t bytes = 0;
    FILE *to = open_memstream(&text, &bytes);
    fputs("(.*\\.)?(", to);
    for (size_t i = 0; i < json_array_size(list); i++) {
        TESS_FREED char *expression = tess_pattern_expression(json_string_value(json_array_get(list, i)));
        fprintf(to, i ? "|%s" : "%s", expression);
    }
    fputc(')', to);
    fclose(to);
    json_decref(list);
    list = json_string(text);
    return list;
}

/* As PEFT writes it. Which linears have an adapter its tensors say; for PEFT the names of their modules' ends do. */
tess_status tess_lora_save_config(const tess_model *m, const char *dir)
{
    static const char *const task[] = {[TESS_ANSWERS_NEXT] = "CAUSAL_LM",
                                       [TESS_ANSWERS_IN_PLACE] = NULL,
                                       [TESS_ANSWERS_BOTH] = NULL,
                                       [TESS_ANSWERS_LABEL] = "SEQ_CLS",
                                       [TESS_ANSWERS_DECODER] = "SEQ_2_SEQ_LM"};
    const tess_lora *l = m->lora;
    TESS_FREED char *base = m->dir ? realpath(m->dir, NULL) : NULL;
    json_t *is = base ? json_string(base) : NULL; /* NULL: it is not UTF-8 */
    json_t *targets = targets_of(l);
    json_t *root =
        json_pack("{s:s, s:o, s:o, s:s, s:b, s:b, s:b, s:o, s:f, s:o, s:s, s:I, s:o, s:s?, s:b, s:b}", "peft_type",
                  "LORA", "auto_mapping", json_null(), "base_model_name_or_path", is ? is : json_null(), "bias", "none",
                  "fan_in_fan_out", m->family->transposed != NULL, "inference_mode", 1, "init_lora_weights", 1,
                  "lora_alpha", l->alpha == floor(l->alpha) ? json_integer((json_int_t)l->alpha) : json_real(l->alpha),
                  "lora_dropout", l->dropout, "modules_to_save", l->saved ? tess_lora_list(l->saved) : json_null(),
                  "revision", "main", "r", (json_int_t)l->r, "target_modules", targets, "task_type",
                  task[m->family->answers], "use_dora", l->dora, "use_rslora", l->rslora);
    TESS_ASSERT(root);
    TESS_FREED char *path = tess_format("%s/adapter_config.json", dir),
                    *text = json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(9));
    json_decref(root);
    return tess_write_text(path, text);
}
