/* Files of Axolotl, and of TRL and transformers' Trainer, as the configuration's own keys: trainer_keys.tsv says what
 * each key becomes, and what those tools have where it is left out. Each key that a file has is a line on stderr, and
 * so are those that it leaves out and that are other than here, all in one. */
#include "models/text/base/text.h"
#include "models/train/config/config_impl.h"
#include <stdlib.h>
#include <string.h>

enum { AXOLOTL = TESS_TRAINER_AXOLOTL, TRL = TESS_TRAINER_TRL, OURS = TESS_TRAINERS };
static const char *const trainer_names[] = {"Axolotl", "TRL"};
typedef tess_trainer_row row;

/* ---- one key ---- */

struct file {
    tess_config *c;
    const char *path;
    const json_t *root;
    int trainer;
    bool adapts;
    double epochs;
    json_t *ours, *deepspeed;
    char *became; /* of the key at hand: "KEY VALUE, ..." */
};

static tess_status TESS_PRINTF(3, 4) refuse(struct file *f, const char *name, const char *format, ...)
{
    char where[1024], what[600], from[512];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    snprintf(where, sizeof where, "%s: %.100s", tess_key_source(f->c, f->path, name, from), name);
    return tess_error(TESS_INVALID, where, "%s", what);
}

static const char *show(const json_t *value, char out[static 80])
{
    TESS_FREED char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
    snprintf(out, 80, strlen(text) > 70 ? "%.67s..." : "%s", text);
    return out;
}

/* What is switched off, or left out by any other word for it. */
static bool is_off(const json_t *v)
{
    const char *text = json_string_value(v);
    if (text) return !*text || !strcmp(text, "none") || !strcmp(text, "no");
    return !v || json_is_null(v) || json_is_false(v) || (json_is_number(v) && json_number_value(v) == 0) ||
           (json_is_array(v) && !json_array_size(v)) || (json_is_object(v) && !json_object_size(v));
}

static const json_t *given(const struct file *f, const char *name)
{
    const json_t *v = json_object_get(f->root, name);
    return json_is_null(v) ? NULL : v;
}

static json_t *placed(const struct file *f, const char *key)
{
    char name[TESS_KEY_PATH];
    json_t *at = f->ours;
    for (const char *p = key; p; p = strchr(p, '.') ? strchr(p, '.') + 1 : NULL) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(p, "."), p);
        at = json_object_get(at, name);
    }
    return at;
}

/* Gives a key its value, and takes the reference; what is said of it is said with the key of theirs. */
static void put(struct file *f, const char *key, json_t *value)
{
    char met[80];
    char *longer = tess_format("%s%s%s %s", f->became ? f->became : "", f->became ? ", " : "", key, show(value, met));
    free(f->became);
    f->became = longer;
    TESS_ASSERT(tess_key_place(f->ours, key, value));
}

/* A text of the table, or one in which a file has a number, as the key takes it. */
static json_t *value_of(const char *key, const char *text)
{
    const tess_key *k = tess_key_find(key);
    return k ? tess_key_parse(k, text) : json_string(text);
}

static const char *word_of(const json_t *v, char out[static 80])
{
    if (json_is_string(v)) return json_string_value(v);
    return show(v, out);
}

/* A=X|B=X|*=X: what the value becomes. */
static tess_status put_word(struct file *f, const row *r, const char *name, const json_t *v)
{
    char met[80], list[300] = "";
    const char *word = word_of(v, met);
    for (const char *p = r->rule; *p; p += strcspn(p, "|"), p += *p == '|') {
        const size_t n = strcspn(p, "|"), left = strcspn(p, "=|");
        const size_t used = strlen(list);
        if (*p != '*') snprintf(list + used, sizeof list - used, "%s%.*s", used ? ", " : "", (int)left, p);
        if (*p != '*' && (strlen(word) != left || strncmp(word, p, left))) continue;
        if (left + 1 >= n) return TESS_OK;
        char *text = tess_format("%.*s", (int)(n - left - 1), p + left + 1);
        put(f, r->key, value_of(r->key, text));
        free(text);
        return TESS_OK;
    }
    return refuse(f, name, "%s, expected %s%s%s%s%s", show(v, met), strchr(r->rule, '|') ? "one of " : "", list,
                  *r->why ? " (" : "", r->why, *r->why ? ")" : "");
}

/* ---- what is more than a word for another ---- */

static const char *const line_types[] = {"alpaca", "completion", "chat_template", "sharegpt"};
/* Of a data set what says no more than a line itself does. */
static const char *const data_names[] = {"path",
                                         "type",
                                         "data_files",
                                         "ds_type",
                                         "split",
                                         "name",
                                         "conversation",
                                         "field",
                                         "field_messages",
                                         "message_field_role",
                                         "train_on_split",
                                         "message_property_mappings",
                                         "message_field_content",
                                         "roles_to_train",
                                         "train_on_eos",
                                         "trust_remote_code"};

static bool is_among(const char *name, const char *const *names, size_t count)
{
    while (count && strcmp(names[count - 1], name)) count--;
    return count;
}
#define AMONG(name, names) is_among(name, names, sizeof(names) / sizeof *(names))

/* Paths of one data set: its data_files, or its path. */
static tess_status add_set(struct file *f, const char *name, size_t i, const json_t *set, json_t *paths)
{
    const json_t *type = json_object_get(set, "type"), *files = json_object_get(set, "data_files");
    const char *word = json_string_value(type), *member;
    json_t *value;
    if (json_is_string(set)) return json_array_append(paths, (json_t *)set), TESS_OK;
    json_object_foreach((json_t *)set, member, value) if (!AMONG(member, data_names) && !is_off(value)) return refuse(
        f, name, "[%zu]: %.60s: is not taken (make lines of it as docs/data.md has them)", i, member);
    if (json_is_object(type) || (word && !AMONG(word, line_types)))
        return refuse(f, name,
                      "[%zu]: type: a format that is not there, expected alpaca, completion, chat_template or "
                      "sharegpt (lines of {\"prompt\", \"completion\"} need none)",
                      i);
    if (!files || json_is_null(files)) files = json_object_get(set, "path");
    if (json_is_array(files)) return json_array_extend(paths, (json_t *)files), TESS_OK;
    if (!json_is_string(files)) return refuse(f, name, "[%zu]: no path, expected a file, or data_files", i);
    return json_array_append(paths, (json_t *)files), TESS_OK;
}

static tess_status put_sets(struct file *f, const row *r, const char *name, const json_t *v)
{
    json_t *paths = json_array(), *set;
    size_t i;
    tess_status status = json_is_array(v) && json_array_size(v)
                             ? TESS_OK
                             : refuse(f, name, "no list, expected [{\"path\": FILE, \"type\": \"alpaca\"}]");
    json_array_foreach(v, i, set) if (status == TESS_OK) status = add_set(f, name, i, set, paths);
    if (status == TESS_OK) put(f, r->key, json_incref(json_array_size(paths) == 1 ? json_array_get(paths, 0) : paths));
    json_array_foreach(v, i, set)
    {
        const char *type = json_string_value(json_object_get(set, "type"));
        if (status == TESS_OK && type && !strcmp(type, "alpaca"))
            tess_note("%s: %s[%zu]: Alpaca's prompt is for models without a chat_template; with one the lines are "
                      "conversations",
                      f->path, name, i);
    }
    json_decref(paths);
    return status;
}

/* N times an epoch, as a share of all steps; once in all is at the end, which is 0. */
static json_t *per_epoch(const struct file *f, double n)
{
    return n * f->epochs <= 1 ? json_integer(0) : json_real(1 / (n * f->epochs));
}

static tess_status put_strategy(struct file *f, const row *r, const char *name, const json_t *v)
{
    char met[80];
    const char *word = word_of(v, met);
    const bool saves = !strncmp(r->key, "checkpoint", 10), first = f->trainer == AXOLOTL && placed(f, r->key);
    const json_t *logs = given(f, "logging_steps");
    if (is_off(v))
        put(f, r->key, json_null());
    else if (!strcmp(word, "epoch"))
        first ? (void)0 : put(f, r->key, per_epoch(f, 1));
    else if (!strcmp(word, "best") && saves)
        put(f, "checkpoint.keep_best", json_true());
    else if (strcmp(word, "steps"))
        return refuse(f, name, "%s, expected no, steps or epoch", show(v, met));
    else if (!placed(f, r->key) && !saves) /* as transformers does */
        put(f, r->key, logs ? json_incref((json_t *)logs) : json_integer(10));
    return TESS_OK;
}

static tess_status put_kwargs(struct file *f, const row *r, const char *name, const json_t *v)
{
    static const char *const same[][2] = {{"min_lr_rate", "scheduler.params.cos_min_ratio"},
                                          {"min_lr_ratio", "scheduler.params.cos_min_ratio"},
                                          {"min_lr_ratio", "scheduler.params.warmup_min_ratio"},
                                          {"num_decay_steps", "scheduler.params.decay_num_steps"},
                                          {"decay_type", "scheduler.params.decay_type"}};
    const json_t *least = json_object_get(v, "min_lr");
    const double lr = json_number_value(given(f, "learning_rate"));
    if (is_off(v)) return TESS_OK;
    size_t known = json_is_number(least) && lr > 0;
    if (known) put(f, r->key, json_real(json_number_value(least) / lr));
    for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
        json_t *one = json_object_get(v, same[k][0]);
        if (!one) continue;
        put(f, same[k][1], json_incref(one));
        known += !k || strcmp(same[k][0], same[k - 1][0]);
    }
    if (!json_is_object(v) || known != json_object_size(v))
        return refuse(f, name,
                      "expected min_lr_rate, min_lr_ratio, num_decay_steps, decay_type, or min_lr beside learning_rate "
                      "(scheduler.params has more)");
    return TESS_OK;
}

/* A number that counts where it is above 0. */
static tess_status put_number(struct file *f, const row *r, const char *name, const json_t *v)
{
    const char *what = r->rule + 1;
    char met[80];
    const double x = json_number_value(v);
    const bool share = !strcmp(what, "held") || !strcmp(what, "share");
    if (!json_is_number(v) || (share && (x < 0 || x >= 1)))
        return refuse(f, name, "%s, expected %s", show(v, met), share ? "a share from 0 to below 1" : "a number");
    if (!strcmp(what, "per_epoch")) return x > 0 ? put(f, r->key, per_epoch(f, x)), TESS_OK : TESS_OK;
    const bool zero = !strcmp(what, "share") || (!strcmp(what, "warmup") && !placed(f, r->key));
    if (x > 0 || (x == 0 && zero)) put(f, r->key, json_incref((json_t *)v));
    return TESS_OK;
}

static tess_status put_beta(struct file *f, const row *r, const char *name, const json_t *v)
{
    json_t *both = json_deep_copy(placed(f, r->key));
    if (!both) both = json_pack("[f,f]", 0.9, 0.999);
    json_array_set(both, name[strlen(name) - 1] == '2', (json_t *)v);
    put(f, r->key, both);
    return TESS_OK;
}

static bool reports_there(const json_t *v, const char *where)
{
    const char *word = json_string_value(v);
    const json_t *one;
    size_t i;
    bool there = word && !strcmp(word, where);
    json_array_foreach(v, i, one) there |= reports_there(one, where);
    return there;
}

static tess_status put_function(struct file *f, const row *r, const char *name, const json_t *v)
{
    const char *what = r->rule + 1;
    if (!strcmp(what, "datasets")) return put_sets(f, r, name, v);
    if (!strcmp(what, "strategy")) return put_strategy(f, r, name, v);
    if (!strcmp(what, "kwargs")) return put_kwargs(f, r, name, v);
    if (!strcmp(what, "beta")) return put_beta(f, r, name, v);
    if (!strcmp(what, "deepspeed")) return f->deepspeed = (json_t *)v, TESS_OK;
    if (strcmp(what, "report")) return put_number(f, r, name, v);
    if (reports_there(v, "tensorboard") || reports_there(v, "all")) put(f, r->key, json_true());
    return TESS_OK;
}

static tess_status put_row(struct file *f, const row *r, const char *name, const json_t *v)
{
    char met[80];
    switch (*r->rule) {
    case '=':
        put(f, r->key, json_is_string(v) ? value_of(r->key, json_string_value(v)) : json_incref((json_t *)v));
        return TESS_OK;
    case ':':
        put(f, r->key, value_of(r->key, r->rule + 1));
        return TESS_OK;
    case '-':
        return TESS_OK;
    case '!':
        return is_off(v) ? TESS_OK : refuse(f, name, "%s, expected nothing (%s)", show(v, met), r->why);
    case '@':
        return put_function(f, r, name, v);
    default:
        return put_word(f, r, name, v);
    }
}

/* ---- the whole ---- */

/* All rows of a name. */
static tess_status put_name(struct file *f, const char *name, const json_t *v, const char **why)
{
    *why = "";
    free(f->became);
    f->became = NULL;
    for (size_t i = 0; i < tess_trainer_row_count; i++) {
        if (!tess_trainer_row_is(&tess_trainer_rows[i], name)) continue;
        TESS_TRY(put_row(f, &tess_trainer_rows[i], name, v));
        *why = *tess_trainer_rows[i].rule == '-' ? tess_trainer_rows[i].why : NULL; /* it means the same here */
    }
    return TESS_OK;
}

/* What goes with adapters alone. */
static bool is_of_adapters(const char *name)
{
    return !strncmp(name, "lora_", 5) || strstr(name, "rslora") || strstr(name, "_dora");
}

static void read_name(struct file *f, const char *name)
{
    char met[80];
    const json_t *v = given(f, name);
    const char *why;
    if (!v) return;
    if (is_of_adapters(name) && !f->adapts) {
        if (!is_off(v))
            tess_note("%s: %s: without effect (%s is not given)", f->path, name,
                      f->trainer == TRL ? "use_peft: true" : "adapter: lora");
    } else if (!strcmp(name, "eval_steps") && f->trainer == TRL && !given(f, "eval_strategy") &&
               !given(f, "evaluation_strategy")) {
        tess_note("%s: %s: without effect (eval_strategy: steps is not given)", f->path, name);
    } else if (put_name(f, name, v, &why) != TESS_OK) {
        tess_key_refuse(f->c, NULL, name);
    } else if (f->became) {
        tess_note("%s: %s %s: %s", f->path, name, show(v, met), f->became);
    } else if (!is_off(v)) {
        tess_note("%s: %s %s: %s%s%s", f->path, name, show(v, met), why ? "without effect" : "means the same here",
                  why && *why ? ": " : "", why ? why : "");
    }
}

/* What their tools have where a key is left out. */
static void put_presets(struct file *f)
{
    char *all = NULL;
    const char *why;
    for (size_t i = 0; i < tess_trainer_row_count; i++) {
        const row *r = &tess_trainer_rows[i];
        const char *preset = r->preset[f->trainer];
        if (!*preset || placed(f, r->key) || given(f, r->names)) continue;
        if (is_of_adapters(r->names) && !f->adapts) continue;
        if (!strcmp(r->names, "bf16") && json_is_true(placed(f, "fp16.enabled"))) continue;
        json_t *v = json_loads(preset, JSON_DECODE_ANY, NULL);
        if (!v) v = json_string(preset);
        TESS_ASSERT(put_name(f, r->names, v, &why) == TESS_OK);
        json_decref(v);
        if (!f->became) continue;
        char *longer = tess_format("%s%s%s", all ? all : "", all ? ", " : "", f->became);
        free(all);
        all = longer;
    }
    if (all) tess_note("%s: left out, and as %s has it: %s", f->path, trainer_names[f->trainer], all);
    free(all);
}

/* What follows from several of their keys. */
static void finish(struct file *f)
{
    const json_t *output = placed(f, "output"), *every = placed(f, "checkpoint.every");
    const bool keeps = (every && !json_is_null(every)) || placed(f, "checkpoint.keep_best");
    if (placed(f, "steps")) json_object_del(f->ours, "epochs"); /* their steps count alone */
    if (f->adapts && !placed(f, "lora.r") && refuse(f, "lora_r", "missing, expected the rank of the adapters"))
        tess_key_refuse(f->c, NULL, "lora_r");
    if ((keeps || placed(f, "checkpoint.resume")) && json_is_string(output)) {
        json_t *dir = json_sprintf("%s/checkpoints", json_string_value(output));
        tess_note("%s: checkpoint.dir: %s", f->path, json_string_value(dir));
        TESS_ASSERT(tess_key_place(f->ours, "checkpoint.dir", dir));
    }
}

static int trainer_of(const json_t *root)
{
    if (json_object_get(root, "model") || json_object_get(root, "data")) return OURS;
    if (json_object_get(root, "base_model")) return AXOLOTL;
    const bool trl = json_object_get(root, "model_name_or_path") || json_object_get(root, "dataset_name");
    return trl ? TRL : OURS;
}

json_t *tess_trainer_read(tess_config *c, const char *path, const json_t *root, json_t **deepspeed)
{
    struct file f = {.c = c, .path = path, .root = root, .trainer = trainer_of(root)};
    const char *name;
    json_t *value;
    *deepspeed = NULL;
    if (f.trainer == OURS) return NULL;
    f.ours = json_object();
    f.adapts = f.trainer == TRL ? json_is_true(given(&f, "use_peft")) : !is_off(given(&f, "adapter"));
    const json_t *epochs = given(&f, f.trainer == TRL ? "num_train_epochs" : "num_epochs");
    f.epochs = json_number_value(epochs) > 0 ? json_number_value(epochs) : f.trainer == TRL ? 3 : 1;
    tess_note("%s: is read as a file of %s's", path, trainer_names[f.trainer]);
    for (size_t i = 0; i < tess_trainer_row_count; i++) { /* in the table's order: later keys win over earlier ones */
        char *names = tess_strdup(tess_trainer_rows[i].names), *rest = names;
        for (char *one; *tess_trainer_rows[i].rule != '?' && (one = strsep(&rest, " "));)
            if (!i || !tess_trainer_row_is(&tess_trainer_rows[i - 1], one)) read_name(&f, one);
        free(names);
    }
    put_presets(&f);
    finish(&f);
    json_object_foreach((json_t *)root, name, value)
    {
        bool known = false;
        for (size_t i = 0; i < tess_trainer_row_count; i++)
            known |= *tess_trainer_rows[i].rule != '?' && tess_trainer_row_is(&tess_trainer_rows[i], name);
        if (known || json_is_null(value)) continue;
        TESS_FREED_JSON json_t *own = json_pack("{s:O}", name, value);
        json_object_update_recursive(f.ours, own);
    }
    free(f.became);
    *deepspeed = f.deepspeed;
    return f.ours;
}
