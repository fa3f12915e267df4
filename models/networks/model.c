/* A model: its family found by model_type, its fields read, its graph built. */
#include "models/networks/families/families.h"
#include "models/networks/import/import.h"
#include "models/networks/lora/lora.h"
#include "models/text/base/directories.h"
#include "models/text/base/gguf.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const tess_family *const families[] = {
#define TESS_MODEL(name) &tess_family_##name,
#include "models/networks/families/models.def"
#undef TESS_MODEL
};
enum { FAMILIES = sizeof families / sizeof families[0] };

/* Appends to a list for a message. */
static void add_known(char known[static 512], const char *name)
{
    const size_t at = strlen(known);
    snprintf(known + at, 512 - at, "%s%s", at ? ", " : "", name);
}

/* Of the families of one type, which stand behind one another from `i` on, the one that config.json's architecture
 * means. A body alone, or none, is the first's. */
static tess_status find_head(const char *where, const json_t *root, int i, const tess_family **family)
{
    const json_t *first = json_array_get(json_object_get(root, "architectures"), 0);
    const char *name = json_is_string(first) ? json_string_value(first) : "Model";
    const size_t n = strlen(name);
    char known[512] = "";
    *family = families[i];
    int k = i;
    for (; k < FAMILIES && !strcmp(families[k]->type, families[i]->type); k++) {
        add_known(known, families[k]->architecture);
        if (strcmp(families[k]->architecture, name)) continue;
        *family = families[k];
        return TESS_OK;
    }
    if (k == i + 1 || (n >= 5 && !strcmp(name + n - 5, "Model"))) return TESS_OK;
    return tess_error(TESS_INVALID, where, "architectures: %s is not known of a %s (known: %s)", name,
                      families[i]->type, known);
}

static tess_status find_family(const char *where, const json_t *root, const tess_family **family)
{
    const json_t *type = json_object_get(root, "model_type");
    if (!json_is_string(type))
        return tess_error(TESS_INVALID, where, "model_type is missing (expected a name such as gpt2)");
    const char *names[FAMILIES];
    int types = 0;
    for (int i = 0; i < FAMILIES; i++) {
        if (!strcmp(families[i]->type, json_string_value(type))) return find_head(where, root, i, family);
        if (i == 0 || strcmp(families[i]->type, names[types - 1])) names[types++] = families[i]->type;
    }
    const char *near = tess_nearest(json_string_value(type), names, (size_t)types);
    char known[512] = "";
    for (int i = 0; i < types; i++) add_known(known, names[i]);
    return tess_error(TESS_INVALID, where, "model_type: %s is not known (%s%s%sknown: %s)", json_string_value(type),
                      near ? "did you mean " : "", near ? near : "", near ? "? " : "", known);
}

static tess_status read_config(const char *where, const json_t *root, tess_model *m)
{
    if (!json_is_object(root)) return tess_error(TESS_INVALID, where, "is no JSON object");
    TESS_TRY(find_family(where, root, &m->family));
    free(m->json);
    m->json = json_dumps(root, JSON_INDENT(2));
    return tess_fields_read(m->family, where, m->json, m->numbers);
}

/* Returns an object with some of its members changed, a new reference. A field may stand in it by another name; null
 * drops a member that cannot be null. */
static json_t *changed(const json_t *root, const json_t *changes)
{
    json_t *all = json_deep_copy(root), *value;
    const tess_family *family = NULL;
    const char *name, *other;
    void *next;
    if (find_family("model", root, &family) != TESS_OK) tess_error_clear();
    json_object_foreach((json_t *)changes, name, value)
    {
        json_t *old, *before = json_object_get(all, name);
        if (json_is_object(before) && json_is_object(value)) {
            json_object_update_recursive(before, value);
            continue;
        }
        json_t *with = json_deep_copy(value);
        json_object_foreach_safe(all, next, other, old)
        {
            if (!family || !strcmp(other, name) || !tess_fields_same(family, other, name)) continue;
            if (json_is_object(old) && json_is_object(with)) json_object_update_missing(with, old);
            json_object_del(all, other);
        }
        const bool drops = family && json_is_null(value) && !tess_field_takes_null(family, name);
        if (drops) json_object_del(all, name), json_decref(with);
        if (!drops) json_object_set_new(all, name, with);
    }
    return all;
}

/* The directory's config.json as `changes` (NULL: none) make it. What was right before them, they are to blame for. */
static tess_status read_changed(const char *where, const json_t *root, const char *changes, tess_model *m)
{
    if (!changes || !json_is_object(root)) return read_config(where, root, m);
    TESS_FREED_JSON json_t *with = json_loads(changes, JSON_REJECT_DUPLICATES, NULL), *all = changed(root, with);
    tess_status status = read_config(where, all, m);
    if (status != TESS_OK && read_config(where, root, m) == TESS_OK) where = "model";
    if (status != TESS_OK) status = read_config(where, all, m);
    return status;
}

/* Of a directory without a model's config.json: what the user may have meant. */
static tess_status no_config(const char *dir, const char *path, const char *what)
{
    TESS_FREED char *state = tess_format("%s/state.json", dir), *inner = tess_format("%s/model/config.json", dir),
                    *hint = NULL;
    if (access(state, F_OK) == 0)
        hint = tess_strdup("the checkpoint is of a version that kept no model in it: copy config.json and the "
                           "tokenizer's files from OUTPUT/model into it");
    else if (access(inner, F_OK) == 0)
        hint = tess_format("did you mean %s/model?", dir);
    else if (tess_dirs_hub(dir))
        hint = tess_format(
            "expected a Hugging Face directory; models are not downloaded: hf download %s --local-dir %s", dir, dir);
    return tess_error(TESS_INVALID, path, "%s (%s)", what, hint ? hint : "expected a Hugging Face directory");
}

static tess_status open_base(const char *dir, const char *json, tess_model **model);
static tess_status open_import(const char *dir, const char *json, tess_model **model);

/* A directory of adapters names the one of their base. */
static tess_status open_adapted(const char *dir, const char *json, tess_model **model)
{
    tess_lora *lora;
    char *base, *path = tess_format("%s/adapter_config.json", dir);
    tess_status status = tess_lora_open(dir, &lora, &base);
    if (status == TESS_OK && (!base || access(base, F_OK) || tess_lora_there(base)))
        status = tess_error(TESS_INVALID, path,
                            "base_model_name_or_path: %s is no directory of a model (--adapter DIR, "
                            "or lora.from, puts it beside a model's own directory)",
                            base ? base : "null");
    if (status == TESS_OK) status = open_base(base, json, model);
    if (status == TESS_OK)
        (*model)->lora = lora;
    else
        tess_lora_close(lora);
    free(path);
    free(base);
    return status;
}

tess_status tess_model_open(const char *dir, const char *json, tess_model **model)
{
    if (!model) return tess_error(TESS_INVALID, "tess_model_open", "model is NULL");
    *model = NULL;
    if (!dir && !json) return tess_error(TESS_INVALID, "model", "neither a directory nor a config.json is given");
    if (tess_import_there(dir)) return open_import(dir, json, model);
    return (dir && tess_lora_there(dir) ? open_adapted : open_base)(dir, json, model);
}

/* An exported network: it is what its graph.json says. */
static tess_status open_import(const char *dir, const char *json, tess_model **model)
{
    if (json) return tess_error(TESS_INVALID, dir, "is an exported network, whose fields cannot be changed");
    tess_model *m = tess_alloc(sizeof *m);
    m->dir = tess_strdup(dir);
    m->family = &tess_family_import;
    tess_status status = tess_import_open(dir, &m->import);
    if (status == TESS_OK) m->json = tess_import_summary(m->import);
    if (status == TESS_OK) status = tess_states_of(dir, &m->states);
    if (status == TESS_OK)
        *model = m;
    else
        tess_model_close(m);
    return status;
}

static tess_status open_base(const char *dir, const char *json, tess_model **model)
{
    json_error_t e;
    TESS_FREED char *path = dir ? tess_format("%s/config.json", dir) : tess_strdup("model");
    TESS_FREED_JSON json_t *root = NULL;
    tess_status status = dir && tess_gguf_is(dir) ? tess_gguf_beside(path, &root) : TESS_OK;
    if (status != TESS_OK) return status;
    if (!root)
        root = dir ? tess_json_load(path, JSON_REJECT_DUPLICATES, &e) : json_loads(json, JSON_REJECT_DUPLICATES, &e);
    tess_model *m = tess_alloc(sizeof *m);
    if (dir) m->dir = tess_strdup(dir);
    if (dir && json_is_object(root) && !json_object_get(root, "model_type") && json_object_get(root, "model"))
        status = no_config(dir, path, "is the configuration of a run, and no model's");
    else if (root)
        status = read_changed(path, root, dir ? json : NULL, m);
    else if (dir && access(path, R_OK))
        status = no_config(dir, path, strerror(errno));
    else
        status = tess_error(TESS_INVALID, path, "line %d, column %d: %s", e.line, e.column, e.text);
    if (status == TESS_OK && dir) status = tess_states_of(dir, &m->states);
    if (status == TESS_OK)
        *model = m;
    else
        tess_model_close(m);
    return status;
}

tess_status tess_model_check(const tess_model *m)
{
    const bool adapters = m->lora && m->lora->states;
    if ((!m->states || tess_states_whole(m->dir)) && (!adapters || tess_states_whole(m->lora->dir))) return TESS_OK;
    return tess_error(TESS_INVALID, adapters ? m->lora->dir : m->dir,
                      "was removed while it was read (by the run that it is of?)");
}

void tess_model_close(tess_model *m)
{
    if (!m) return;
    tess_safetensors_close(m->states);
    tess_lora_close(m->lora);
    tess_import_close(m->import);
    free(m->dir);
    free(m->json);
    free(m);
}

/* A number of the family's, by its offset; 0: it has none. */
static int64_t number(const tess_model *m, size_t offset)
{
    int64_t n = 0;
    if (offset) memcpy(&n, m->numbers + offset, sizeof n);
    return n;
}
static int64_t first_position(const tess_model *m)
{
    return m->family->behind ? number(m, m->family->behind) + 1 : 0;
}
int64_t tess_model_further(const tess_model *m)
{
    return number(m, m->family->further);
}
bool tess_model_has_turned(const tess_model *m, const tess_tensor *p)
{
    return m->import ? tess_param_turned(p) : tess_model_turned(m, tess_tensor_name(p));
}
int64_t tess_model_vocab(const tess_model *m)
{
    return ((const tess_common *)m->numbers)->vocab;
}
int64_t tess_model_positions(const tess_model *m)
{
    const int64_t positions = ((const tess_common *)m->numbers)->positions, first = first_position(m);
    return positions > first ? positions - first : positions;
}
bool tess_model_turns_long(const tess_model *m, int64_t length)
{
    return tess_rotary_long(m->family, m->numbers, length);
}
int64_t tess_model_targets(const tess_model *m)
{
    if (m->family->answers == TESS_ANSWERS_BOTH) return 2;
    return m->family->labels ? number(m, m->family->labels) : tess_model_vocab(m);
}
int64_t tess_model_segments(const tess_model *m)
{
    return number(m, m->family->segments);
}
tess_answers tess_model_answers(const tess_model *m)
{
    return m->family->answers;
}
const char *tess_model_dir(const tess_model *m)
{
    return m->dir;
}
const char *tess_model_json(const tess_model *m)
{
    return m->json;
}
bool tess_model_adapted(const tess_model *m)
{
    return m->lora;
}
const char *tess_model_adapter_dir(const tess_model *m)
{
    return m->lora ? m->lora->dir : NULL;
}
void tess_model_store_as(tess_model *m, tess_save_dtype dtype)
{
    m->stored = dtype;
}
bool tess_model_there(const char *dir)
{
    return tess_lora_there(dir) || tess_dirs_has(dir, "config.json") || tess_import_there(dir);
}

/* The inputs that the body reads. */
static void add_inputs(const tess_model *m, tess_graph *g, const tess_build *b, tess_network *net)
{
    *net = (tess_network){.ids = tess_input(g, "ids", b->batch, b->length), .first_position = first_position(m)};
    net->longest = b->longest ? b->longest : b->length;
    tess_embedding_noise(net->ids, b->noise);
    if (b->bounds) net->bounds = tess_input(g, "bounds", b->batch, 2 * b->length);
    if (b->positions || net->first_position) net->positions = tess_input(g, "positions", b->batch, b->length);
    net->cache = b->cache;
    if (b->cache && m->family->answers == TESS_ANSWERS_DECODER) { /* the ids are those of the side that is computed */
        net->encodes = b->encodes;
        net->decodes = !b->encodes;
        if (net->decodes) net->visible = tess_input(g, "visible", b->batch, 2 * b->length);
        if (net->decodes) net->index = tess_input(g, "index", b->batch, 1);
        return;
    }
    if (m->family->segments) net->segments = tess_input(g, "segments", b->batch, b->length);
    if (m->family->answers == TESS_ANSWERS_DECODER) {
        net->decoder_ids = tess_embedding_noise(tess_input(g, "decoder_ids", b->batch, b->length), b->noise);
        if (b->bounds) net->visible = tess_input(g, "visible", b->batch, 2 * b->length);
    }
    const tess_answers answers = m->family->answers;
    if (answers == TESS_ANSWERS_LABEL || answers == TESS_ANSWERS_BOTH || b->purpose == TESS_FOR_LOGITS)
        net->index = tess_input(g, "index", b->batch, 1);
}

/* The second loss of a network that has two. */
static void add_label(const tess_model *m, tess_graph *g, const tess_build *b, tess_tensor *rows, tess_network *net)
{
    tess_tensor *x = m->family->label_rows(m->numbers, g, net, rows);
    const tess_head head = m->family->label_head(m->numbers, g);
    net->label = tess_input(g, "label", b->batch, 1);
    net->output = tess_loss_add(net->output, x, head.weight, head.bias, net->label);
}

/* A loss of pairs of sequences, or of ones with a label, by what the model says of each. */
static tess_status prefer(const tess_model *m, tess_graph *g, const tess_build *b, tess_tensor *x,
                          const tess_head *head, tess_network *net)
{
    if (m->family->answers != TESS_ANSWERS_NEXT)
        return tess_error(TESS_INVALID, "preference", "the model does not go on with a text");
    const bool judged = b->preference.kind == TESS_PREFERENCE_KTO;
    if (judged || b->preference.kind == TESS_PREFERENCE_DPO)
        net->reference = tess_input(g, "reference", b->batch, judged ? TESS_KTO_REFERENCE : 1);
    net->scores = tess_scores(x, head->weight, head->bias, net->targets, head->cap);
    net->output = tess_preference(net->scores, net->reference, &b->preference);
    return TESS_OK;
}

/* What a teacher says of each place, or a loss in which it has a say, and beside it that of the targets alone. */
static tess_status distill(const tess_model *m, tess_graph *g, const tess_build *b, tess_tensor *x,
                           const tess_head *head, tess_network *net)
{
    if (m->family->answers != TESS_ANSWERS_NEXT)
        return tess_error(TESS_INVALID, "distill", "the model does not go on with a text");
    if (b->likeliest) {
        net->output = tess_likeliest(x, head->weight, head->bias, net->targets, head->cap, b->likeliest, b->among);
        return TESS_OK;
    }
    net->soft = tess_input(g, "soft", b->batch, 2 * b->distill.top * b->length);
    net->measured = tess_cross_entropy_capped(x, head->weight, head->bias, net->targets, head->cap);
    net->output = tess_distill(x, head->weight, head->bias, net->targets, net->soft, head->cap, &b->distill);
    return TESS_OK;
}

tess_status tess_model_build_for(const tess_model *m, tess_graph *g, const tess_build *b, tess_network *net)
{
    if (!m || !g || !b || !net)
        return tess_error(TESS_INVALID, "tess_model_build", "the model, the graph or the network is NULL");
    if (m->import) return tess_import_network(m, g, b, net);
    const int64_t length = b->length;
    int64_t most = tess_model_positions(m);
    if (most && length > most)
        return tess_error(TESS_INVALID, "sequence length", "%lld, but the model has %lld positions", (long long)length,
                          (long long)most);
    add_inputs(m, g, b, net);
    struct tess_routed routed = {0};
    if (b->purpose == TESS_FOR_LOSS) net->routed = &routed;
    const bool label = m->family->answers == TESS_ANSWERS_LABEL;
    tess_lora_building *adapters = tess_lora_begin(m, g);
    tess_tensor *rows = m->family->body(m->family, m->numbers, g, net);
    if (net->encodes) {
        TESS_TRY(tess_lora_end(adapters));
        net->output = rows;
        return rows ? tess_lora_freeze(m, g, NULL) : TESS_INVALID;
    }
    tess_tensor *x = m->family->transform ? m->family->transform(m->numbers, g, rows) : rows;
    TESS_TRY(tess_lora_end(adapters));
    net->routed = NULL;
    const tess_head head = m->family->head(m->numbers, g);
    if (b->purpose == TESS_FOR_LOSS) {
        tess_tensor **of = label ? &net->label : &net->targets;
        *of = tess_input(g, label ? "label" : "targets", b->batch, label ? 1 : length);
        if (b->preference.kind)
            TESS_TRY(prefer(m, g, b, x, &head, net));
        else if (b->likeliest || b->distill.top)
            TESS_TRY(distill(m, g, b, x, &head, net));
        else
            net->output = tess_cross_entropy_capped(x, head.weight, head.bias, *of, head.cap);
        if (m->family->answers == TESS_ANSWERS_BOTH) add_label(m, g, b, rows, net);
        if (routed.statistics && (b->preference.kind || b->distill.top))
            return tess_error(TESS_INVALID, b->distill.top ? "distill" : "preference",
                              "the model balances experts by a loss of its own, which no "
                              "loss of pairs or of a teacher has beside it (router_aux_loss_coef=0)");
        if (routed.statistics && !b->likeliest)
            net->output = tess_balanced(net->output, routed.statistics, *of, (float)routed.weight);
    } else {
        net->output = tess_linear(label ? x : tess_pick(x, net->index), head.weight, head.bias);
        if (head.cap > 0) net->output = tess_tanh(net->output, head.cap);
    }
    return net->output ? tess_lora_freeze(m, g, head.weight) : TESS_INVALID;
}

tess_status tess_model_build(const tess_model *m, tess_graph *g, int64_t batch, int64_t length, tess_purpose purpose,
                             tess_network *net)
{
    return tess_model_build_for(m, g, &(tess_build){.batch = batch, .length = length, .purpose = purpose}, net);
}

/* ---- two models ---- */

static tess_status same_adapters(const char *path, const tess_lora *then, const tess_lora *now)
{
    char a[32], b[32];
    if (!then != !now)
        return tess_error(TESS_INVALID, path, "is of a run %s adapters, the configuration %s them",
                          then ? "with" : "without", now ? "has" : "lacks");
    const char *field = then ? tess_lora_differ(then, now, a, b) : NULL;
    if (!field) return TESS_OK;
    return tess_error(TESS_INVALID, path, "its adapters have %s %s, the configuration's %s", field, a, b);
}

tess_status tess_model_same(const char *path, const tess_model *then, const tess_model *now, bool say)
{
    char a[32] = "", b[32] = "";
    if (then->family != now->family)
        return tess_error(TESS_INVALID, then->dir,
                          "holds a %s, the configuration a %s (the checkpoint is of another model)",
                          then->family->architecture, now->family->architecture);
    if (then->import && strcmp(then->json, now->json) != 0)
        return tess_error(TESS_INVALID, then->dir, "its graph.json is of another network than the configuration's");
    for (const tess_field *d = NULL; (d = tess_fields_next_other(now->family, then->numbers, now->numbers, d));) {
        tess_field_text(d, then->numbers, a);
        tess_field_text(d, now->numbers, b);
        if (d->kind != TESS_FIELD_TRAINING && d->kind != TESS_FIELD_TRAINING_OR_NULL)
            return tess_error(TESS_INVALID, then->dir,
                              "its model has %s %s, the configuration's %s (the checkpoint is of another model)",
                              d->name, a, b);
        if (say) tess_note("resuming with another model.%s: %s, the checkpoint's run had %s", d->name, b, a);
    }
    return same_adapters(path, then->lora, now->lora);
}
