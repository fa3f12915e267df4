/* One value of a key: set, got, described. */
#include "models/text/base/text.h"
#include "models/train/config/config_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { REFUSALS_MOST = 64 }; /* errors that are kept; beyond that only that there are more */

static bool can_be_auto(const tess_key *k)
{
    return k->preset && (!strcmp(k->preset, "auto") || !strcmp(k->preset, "required"));
}

tess_key_mark tess_key_how(const tess_config *c, const char *path)
{
    const tess_key *k = tess_key_find(path);
    TESS_ASSERT(k);
    return c->notes ? (tess_key_mark)c->notes->mark[k - tess_keys] : TESS_KEY_GIVEN;
}

static void *field(const tess_config *c, const tess_key *k)
{
    return k->state == TESS_KEY_ACTIVE ? (char *)c + k->offset : (void *)&c->other[k->offset];
}

/* Position of `text` among the choices, -1 when it is none of them; *absent: marked with '!'. */
static int choice_index(const tess_key *k, const char *text, bool *absent)
{
    int index = 0;
    for (const char *p = k->choices; *p; index++) {
        size_t n = strcspn(p, "|");
        *absent = n && p[n - 1] == '!';
        size_t name = n - *absent;
        if (strlen(text) == name && !strncasecmp(p, text, name)) return index;
        p += n + (p[n] == '|');
    }
    return -1;
}

/* "a, b, c" of the choices this build has; or the one at `only`. */
static const char *choice_names(const tess_key *k, int only, char *out, size_t size)
{
    out[0] = 0;
    int index = 0;
    for (const char *p = k->choices; *p; index++) {
        size_t n = strcspn(p, "|"), used = strlen(out);
        bool absent = p[n - 1] == '!';
        if (only < 0 ? !absent : index == only)
            snprintf(out + used, size - used, "%s%.*s", used ? ", " : "", (int)(n - absent), p);
        p += n + (p[n] == '|');
    }
    return out;
}

const char *tess_key_describe(const tess_key *k, char *out, size_t size)
{
    static const char *const what[] = {[TESS_KEY_BOOL] = "true or false",
                                       [TESS_KEY_INT] = "a whole number",
                                       [TESS_KEY_STEPS] = "a share of all steps below 1, or a whole number",
                                       [TESS_KEY_REAL] = "a number",
                                       [TESS_KEY_REALS] = "a list of two numbers",
                                       [TESS_KEY_INTS] = "a list of two whole numbers",
                                       [TESS_KEY_SIZE] = "a size such as \"16GiB\" or a number of bytes",
                                       [TESS_KEY_TEXT] = "a string",
                                       [TESS_KEY_PATHS] = "a path, a list or an object of them",
                                       [TESS_KEY_TEXTS] = "a string, or a list of them",
                                       [TESS_KEY_OBJECTS] = "a list of objects",
                                       [TESS_KEY_CHOICE] = "one of",
                                       [TESS_KEY_MODEL] = "a directory or an object",
                                       [TESS_KEY_TREE] = "a section of DeepSpeed's"};
    char names[256];
    if (k->kind == TESS_KEY_CHOICE)
        snprintf(out, size, "one of %s", choice_names(k, -1, names, sizeof names));
    else if (k->kind == TESS_KEY_INT || k->kind == TESS_KEY_STEPS || k->kind == TESS_KEY_REAL ||
             k->kind == TESS_KEY_REALS || k->kind == TESS_KEY_INTS)
        snprintf(out, size, k->max < 1 ? "%s from %g to below 1" : "%s from %g to %g", what[k->kind], k->min, k->max);
    else
        snprintf(out, size, "%s%s", what[k->kind],
                 k->kind == TESS_KEY_PATHS && k->max < 1 ? ", or a share between 0 and 1" : "");
    return out;
}

/* A value as an error shows it. */
static const char *show(const json_t *value, char *out, size_t size)
{
    TESS_FREED char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
    snprintf(out, size, strlen(text ? text : "") > 60 ? "%.57s..." : "%s", text ? text : "?");
    return out;
}

/* What other trainers call some choices. */
static const char *const other_values[][2] = {
    {"cosine_with_min_lr", "cosine"},
    {"warmup_stable_decay", "wsd"},
    {"linear", "WarmupDecayLR"},
    {"constant", "none"},
    {"constant_with_warmup", "WarmupLR"},
    {"adamw_torch", "AdamW"},
    {"adamw_torch_fused", "AdamW"},
    {"FusedAdam", "AdamW"},
    {"DeepSpeedCPUAdam", "AdamW"},
    {"float32", "fp32"},
    {"bfloat16", "bf16"},
    {"float16", "fp16"},
    {"disk", "nvme"},
    {"nvme", "disk"},
};

/* Of the choices the one that a text was meant to be; NULL when there is no telling. */
static const char *meant_choice(const tess_key *k, const char *text, char names[static 256])
{
    const char *name[32];
    size_t count = 0;
    bool absent;
    for (size_t i = 0; i < sizeof other_values / sizeof *other_values; i++)
        if (!strcasecmp(other_values[i][0], text) && choice_index(k, other_values[i][1], &absent) >= 0 && !absent)
            return other_values[i][1];
    choice_names(k, -1, names, 256);
    for (char *at = names, *end; at && count < 32; at = end) {
        if ((end = strstr(at, ", "))) *end = 0, end += 2;
        name[count++] = at;
    }
    return tess_nearest(text, name, count);
}

/* Writes what a value of the wrong kind was meant to be, as a question; false when there is no telling. */
static bool ask(const tess_key *k, const json_t *value, char *out, size_t size)
{
    const char *text = json_string_value(value), *end = text ? text + strcspn(text, "kKmMgGtTpP%") : NULL;
    char names[256];
    if (!text) return false;
    if (k->kind == TESS_KEY_SIZE && end > text && !strcmp(end, "%"))
        return snprintf(out, size, "shares are not taken; tessera info says how much there is"), true;
    if (k->kind == TESS_KEY_SIZE && end > text && *end && !end[1] &&
        strspn(text, "0123456789.") == (size_t)(end - text))
        return snprintf(out, size, "did you mean %.*s%ciB?", (int)(end - text), text, *end == 'k' ? 'K' : *end & ~0x20),
               true;
    const char *meant = k->kind == TESS_KEY_CHOICE ? meant_choice(k, text, names) : NULL;
    if (meant) snprintf(out, size, "did you mean %s?", meant);
    return meant;
}

static bool to_whole(const json_t *v, int64_t *out)
{
    double real = json_real_value(v);
    if (json_is_integer(v)) return *out = json_integer_value(v), true;
    if (!json_is_real(v) || real != floor(real) || fabs(real) > 9007199254740992.0) return false;
    return *out = (int64_t)real, true; /* people write 1e9 */
}

/* A share of all steps, in units of 10^-12, is below 0. */
static bool to_share(const json_t *v, int64_t *out)
{
    const double share = json_real_value(v);
    if (!(share > 0) || share >= 1) return false;
    return *out = -(int64_t)fmax(1, floor(share * 1e12)), true;
}

int64_t tess_config_steps(int64_t given, int64_t total)
{
    return given >= 0 ? given : (int64_t)(((__int128)-given * total + 999999999999) / 1000000000000);
}

static bool to_number(const tess_key *k, const json_t *v, double *out)
{
    if (!json_is_number(v)) return false;
    *out = json_number_value(v);
    return *out >= k->min && *out <= k->max;
}

/* "16GiB", "1.5 TB", "4096". */
static bool to_size(const json_t *v, int64_t *out)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{"", 1},         {"B", 1},    {"KiB", 0x1p10}, {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40},
                 {"PiB", 0x1p50}, {"KB", 1e3}, {"MB", 1e6},     {"GB", 1e9},     {"TB", 1e12},    {"PB", 1e15}};
    if (!json_is_string(v)) return to_whole(v, out);
    const char *text = json_string_value(v);
    char *end;
    if (text[0] < '0' || text[0] > '9') return false;
    double number = strtod(text, &end);
    while (*end == ' ') end++;
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (!strcasecmp(end, units[i].name)) {
            double bytes = floor(number * units[i].bytes);
            return bytes <= 1e18 ? (*out = (int64_t)bytes, true) : false;
        }
    return false;
}

static void set_text(char **field, const char *text)
{
    free(*field);
    *field = text && text[0] ? tess_strdup(text) : NULL;
}

/* An object with a directory's name in it changes what that directory's config.json says. */
static bool set_model(char **directory, char **object, const json_t *v)
{
    const json_t *dir = json_is_object(v) ? json_object_get(v, TESS_MODEL_DIR) : v;
    if ((!json_is_object(v) || dir) && !json_is_string(dir)) return false;
    TESS_FREED_JSON json_t *keys = json_is_object(v) ? json_copy((json_t *)v) : NULL;
    json_object_del(keys, TESS_MODEL_DIR);
    set_text(directory, json_string_value(dir));
    free(*object);
    *object =
        keys && !(dir && !json_object_size(keys)) ? json_dumps(keys, JSON_COMPACT | JSON_REAL_PRECISION(17)) : NULL;
    return true;
}

static json_t *get_model(const char *directory, const char *object)
{
    if (!object) return directory ? json_string(directory) : json_null();
    json_t *keys = json_loads(object, 0, NULL);
    if (!directory) return keys;
    json_t *all = json_pack("{s:s}", TESS_MODEL_DIR, directory);
    json_object_update(all, keys);
    json_decref(keys);
    return all;
}

static bool is_list_of_texts(const json_t *v)
{
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i))) return false;
    return json_is_array(v);
}

/* Sets a text or a list of texts. Where `objects`, it may also be an object with a path for each input, and a list may
 * hold objects with a path and a weight (see data_paths.c); else an empty list leaves the field NULL. */
static bool set_texts(char **field, const json_t *v, bool objects)
{
    if (json_is_string(v)) return set_text(field, json_string_value(v)), true;
    if (objects && json_is_object(v)) { /* a path for each input, or several */
        const char *name;
        json_t *path;
        json_object_foreach((json_t *)v, name, path) if (!json_is_string(path) && !is_list_of_texts(path)) return false;
        set_text(field, NULL);
        return *field = json_dumps(v, JSON_COMPACT), true;
    }
    if (!json_is_array(v)) return false;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_string(json_array_get(v, i)) && !(objects && json_is_object(json_array_get(v, i)))) return false;
    set_text(field, NULL);
    if (objects || json_array_size(v)) *field = json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(17));
    return true;
}

/* A share of other paths, as JSON writes it. */
static bool set_share(char **field, const json_t *v, const tess_key *k)
{
    double share;
    if (k->max >= 1 || !to_number(k, v, &share) || !(share > 0)) return false;
    TESS_FREED char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
    set_text(field, text);
    return true;
}

/* What a text of paths stands for: a list where it is one in JSON. */
static json_t *parse_paths(const char *text)
{
    json_t *list = text[0] == '[' || text[0] == '{' ? json_loads(text, JSON_REJECT_DUPLICATES, NULL) : NULL;
    return list ? list : json_string(text);
}

json_t *tess_config_list(const char *text)
{
    json_t *of = text ? parse_paths(text) : json_array();
    return json_is_array(of) ? of : json_pack("[o]", of);
}

/* Reads a text as a share, where the key takes one; false where it is no number with a point or an exponent. */
static bool read_share(const tess_key *k, const char *text, double *share)
{
    if (k->kind != TESS_KEY_PATHS || k->max >= 1 || !text || !strchr(".0123456789", text[0])) return false;
    TESS_FREED_JSON json_t *v = json_loads(text, JSON_DECODE_ANY, NULL);
    const bool real = json_is_real(v);
    *share = json_real_value(v);
    return real;
}

static json_t *get_paths(const tess_key *k, const char *text)
{
    double share;
    return read_share(k, text, &share) && share > 0 && share <= k->max ? json_real(share) : parse_paths(text);
}

double tess_config_held_out(const tess_config *c)
{
    TESS_FREED_JSON json_t *v = c->data.valid ? get_paths(tess_key_find("data.valid"), c->data.valid) : NULL;
    const double held = json_real_value(v); /* 0 of what is none */
    return held;
}

/* An empty list is none. */
static bool set_objects(char **field, const json_t *v)
{
    if (!json_is_array(v)) return false;
    for (size_t i = 0; i < json_array_size(v); i++)
        if (!json_is_object(json_array_get(v, i))) return false;
    set_text(field, NULL);
    if (json_array_size(v)) *field = json_dumps(v, JSON_COMPACT | JSON_REAL_PRECISION(17));
    return true;
}

/* Counts the members called `enabled`, and those of them that are true. */
static void count_enabled(const json_t *tree, int *there, int *on)
{
    const char *name;
    const json_t *value;
    size_t i;
    json_array_foreach(tree, i, value) count_enabled(value, there, on);
    json_object_foreach((json_t *)tree, name, value)
    {
        if (!strcmp(name, "enabled")) ++*there, *on += json_is_true(value);
        count_enabled(value, there, on);
    }
}

/* Returns whether a section asks for anything: an `enabled` in it is true, or there is none and it is not empty. */
static bool acts(const json_t *tree)
{
    int there = 0, on = 0;
    count_enabled(tree, &there, &on);
    if (there) return on > 0;
    if (json_is_object(tree)) return json_object_size(tree) > 0;
    if (json_is_array(tree)) return json_array_size(tree) > 0;
    return !json_is_null(tree) && !json_is_false(tree);
}

/* False: a wrong type or out of range. *absent: right, and what this build lacks. */
static bool set_field(tess_config *c, const tess_key *k, const json_t *v, bool *absent)
{
    void *at = field(c, k);
    int64_t whole;
    int index;
    switch (k->kind) {
    case TESS_KEY_BOOL:
        return json_is_boolean(v) ? (*(bool *)at = json_is_true(v), true) : false;
    case TESS_KEY_STEPS:
        if (to_share(v, at)) return true;
        /* fall through */
    case TESS_KEY_INT:
        if (!to_whole(v, &whole) || (double)whole < k->min || (double)whole > k->max) return false;
        return *(int64_t *)at = whole, true;
    case TESS_KEY_SIZE:
        if (!to_size(v, &whole) || whole < 0) return false;
        return *(int64_t *)at = whole, true;
    case TESS_KEY_REAL: {
        double real;
        return to_number(k, v, &real) ? (*(double *)at = real, true) : false;
    }
    case TESS_KEY_REALS: {
        double two[2];
        if (json_array_size(v) != 2 || !to_number(k, json_array_get(v, 0), &two[0]) ||
            !to_number(k, json_array_get(v, 1), &two[1]))
            return false;
        return memcpy(at, two, sizeof two), true;
    }
    case TESS_KEY_INTS: {
        int64_t two[2];
        for (size_t i = 0; i < 2; i++)
            if (json_array_size(v) != 2 || !to_whole(json_array_get(v, i), &two[i]) || (double)two[i] < k->min ||
                (double)two[i] > k->max)
                return false;
        return memcpy(at, two, sizeof two), true;
    }
    case TESS_KEY_TEXT:
        return json_is_string(v) ? (set_text(at, json_string_value(v)), true) : false;
    case TESS_KEY_PATHS:
        if (json_is_real(v)) return set_share(at, v, k);
        return set_texts(at, v, true);
    case TESS_KEY_TEXTS:
        return set_texts(at, v, false);
    case TESS_KEY_OBJECTS:
        return set_objects(at, v);
    case TESS_KEY_CHOICE: {
        const char *word = json_is_true(v) ? "true" : json_is_false(v) ? "false" : json_string_value(v);
        if (!word || (index = choice_index(k, word, absent)) < 0) return false;
        return *(int *)at = index, true;
    }
    case TESS_KEY_MODEL:
        return set_model((char **)at, (char **)at + 1, v);
    case TESS_KEY_TREE:
        return *(bool *)at = acts(v), true;
    }
    return false;
}

static void set_preset(tess_config *c, const tess_key *k)
{
    void *at = field(c, k);
    bool absent = false;
    if (k->kind == TESS_KEY_MODEL) set_text((char **)at + 1, NULL);
    if (k->kind == TESS_KEY_TEXT || k->kind == TESS_KEY_PATHS || k->kind == TESS_KEY_TEXTS ||
        k->kind == TESS_KEY_OBJECTS || k->kind == TESS_KEY_MODEL) {
        /* The "auto" of a text is made where the path of the configuration is known. */
        set_text(at, can_be_auto(k) ? NULL : k->preset);
    } else if (can_be_auto(k)) {
        if (k->kind == TESS_KEY_REAL)
            *(double *)at = TESS_CONFIG_AUTO;
        else if (k->kind == TESS_KEY_CHOICE)
            *(int *)at = TESS_CONFIG_AUTO;
        else
            *(int64_t *)at = TESS_CONFIG_AUTO;
    } else {
        json_t *value = tess_key_parse(k, k->preset);
        bool set = set_field(c, k, value, &absent);
        json_decref(value);
        TESS_ASSERT(set && !absent);
    }
}

void tess_key_presets(tess_config *c)
{
    c->notes = tess_alloc(sizeof *c->notes);
    c->other = tess_alloc(TESS_KEYS_MOST * sizeof *c->other);
    for (size_t i = 0; i < tess_key_count; i++) set_preset(c, &tess_keys[i]);
}

/* Refuses a value of a key that this build lacks. */
static tess_status refuse_absent(const tess_config *c, const tess_key *k, const char *source)
{
    char where[512], met[80], expected[320];
    TESS_FREED_JSON json_t *value = tess_key_get(c, k);
    snprintf(where, sizeof where, "%s: %s", source, k->path);
    if (k->kind == TESS_KEY_TREE) {
        return tess_error(TESS_INVALID, where, "is switched on, and this build does not have it (%s)", k->help);
    }
    tess_error(TESS_INVALID, where, "%s is not supported by this build, expected %s (%s)", show(value, met, sizeof met),
               k->kind == TESS_KEY_CHOICE ? tess_key_describe(k, expected, sizeof expected) : k->preset, k->help);
    return TESS_INVALID;
}

/* ---- what is refused ---- */

const char *tess_key_source(const tess_config *c, const char *source, const char *path, char out[static 512])
{
    const json_t *line = json_object_get(c->notes->lines, path);
    if (line)
        snprintf(out, 512, "%.400s:%d", c->notes->yaml, (int)json_integer_value(line));
    else
        snprintf(out, 512, "%.500s", source);
    return out;
}

void tess_key_refuse(tess_config *c, const tess_key *k, const char *name)
{
    struct tess_config_notes *n = c->notes;
    if (n->refusals == REFUSALS_MOST) {
        n->more = true;
        return;
    }
    n->refused = tess_realloc(n->refused, (n->refusals + 1) * sizeof *n->refused);
    n->refused[n->refusals++] = (tess_refusal){k, tess_strdup(name), tess_strdup(tess_error_text())};
}

static bool forgive(struct tess_config_notes *n, const tess_key *k, const char *name)
{
    size_t kept = 0;
    for (size_t i = 0; i < n->refusals; i++) {
        tess_refusal *r = &n->refused[i];
        if (k ? r->key != k : r->key || strcmp(r->name, name)) {
            n->refused[kept++] = *r;
        } else {
            free(r->name);
            free(r->text);
        }
    }
    const bool any = kept < n->refusals;
    n->refusals = kept;
    return any;
}

bool tess_key_forgive(tess_config *c, const char *name)
{
    return forgive(c->notes, NULL, name);
}

tess_status tess_config_refused(const tess_config *c)
{
    const struct tess_config_notes *n = c->notes;
    if (!n->refusals && !n->more) return tess_error_clear(), TESS_OK;
    if (n->refusals == 1 && !n->more) return tess_error_restore(n->refused->text), TESS_INVALID;
    char *list = tess_strdup("");
    for (size_t i = 0; i < n->refusals; i++) {
        char *longer = tess_format("%s%s%s", list, i ? ", " : "", n->refused[i].name);
        tess_note("%s", n->refused[i].text);
        free(list);
        list = longer;
    }
    tess_error(TESS_INVALID, c->file, "%zu keys are refused%s, a line each above: %s", n->refusals,
               n->more ? ", and more" : "", list);
    free(list);
    return TESS_INVALID;
}

/* A value that is in force takes back what was wrong with an earlier one. */
static void mark(tess_config *c, const tess_key *k, tess_key_mark how)
{
    if (!c->notes) return;
    c->notes->mark[k - tess_keys] = (unsigned char)how;
    forgive(c->notes, k, NULL);
}

tess_status tess_key_set(tess_config *c, const tess_key *k, const json_t *value, const char *source)
{
    char where[512], met[80], expected[320];
    bool absent = false;
    if (json_is_null(value) || (json_is_string(value) && !strcmp(json_string_value(value), "auto"))) {
        set_preset(c, k);
        mark(c, k, json_is_null(value) ? TESS_KEY_PRESET : TESS_KEY_AUTO);
        return TESS_OK;
    }
    if (!set_field(c, k, value, &absent)) {
        char meant[160];
        snprintf(where, sizeof where, "%s: %s", source, k->path);
        return tess_error(TESS_INVALID, where, "%s, expected %s (%s)", show(value, met, sizeof met),
                          tess_key_describe(k, expected, sizeof expected),
                          ask(k, value, meant, sizeof meant) ? meant : k->help);
    }
    bool none = can_be_auto(k) && json_is_integer(value) && !json_integer_value(value);
    if (absent || (k->state == TESS_KEY_ABSENT && !none && !tess_key_is_preset(c, k)))
        return refuse_absent(c, k, source);
    mark(c, k, TESS_KEY_GIVEN);
    return TESS_OK;
}

/* A choice that has true and false is one, with more to it. */
static bool is_switch(const tess_key *k)
{
    bool absent;
    return k->kind == TESS_KEY_BOOL || (k->kind == TESS_KEY_CHOICE && choice_index(k, "true", &absent) >= 0);
}

json_t *tess_key_parse(const tess_key *k, const char *text)
{
    json_t *value = NULL;
    if (!strcmp(text, "null")) return json_null();
    if (is_switch(k) && !strcmp(text, "1")) return json_true();
    if (is_switch(k) && !strcmp(text, "0")) return json_false();
    double share;
    if (read_share(k, text, &share)) return json_real(share);
    if ((k->kind == TESS_KEY_PATHS || k->kind == TESS_KEY_TEXTS) && (value = parse_paths(text))) return value;
    bool textual = k->kind == TESS_KEY_TEXT || k->kind == TESS_KEY_PATHS || k->kind == TESS_KEY_TEXTS ||
                   k->kind == TESS_KEY_CHOICE || k->kind == TESS_KEY_SIZE ||
                   (k->kind == TESS_KEY_MODEL && text[0] != '{');
    if (!textual) value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value) value = json_string(text);
    return value ? value : json_string("(not UTF-8)");
}

static json_t *get_size(int64_t bytes)
{
    static const char *const unit[] = {"PiB", "TiB", "GiB", "MiB", "KiB"};
    char text[32];
    for (int i = 0, shift = 50; i < 5; i++, shift -= 10)
        if (bytes && bytes % (INT64_C(1) << shift) == 0) {
            snprintf(text, sizeof text, "%lld%s", (long long)(bytes >> shift), unit[i]);
            return json_string(text);
        }
    return json_integer(bytes);
}

json_t *tess_key_get(const tess_config *c, const tess_key *k)
{
    const void *at = field(c, k);
    const char *const *text = at;
    const double *real = at;
    char name[64];
    bool automatic = can_be_auto(k);
    switch (k->kind) {
    case TESS_KEY_BOOL:
    case TESS_KEY_TREE:
        return json_boolean(*(const bool *)at);
    case TESS_KEY_INT:
    case TESS_KEY_STEPS:
    case TESS_KEY_SIZE: {
        int64_t whole = *(const int64_t *)at;
        if (automatic && whole == TESS_CONFIG_AUTO) return json_string("auto");
        if (k->kind == TESS_KEY_STEPS && whole < 0) return json_real((double)-whole / 1e12);
        return k->kind == TESS_KEY_SIZE ? get_size(whole) : json_integer(whole);
    }
    case TESS_KEY_REAL:
        return automatic && *real == TESS_CONFIG_AUTO ? json_string("auto") : json_real(*real);
    case TESS_KEY_REALS:
        return json_pack("[f,f]", real[0], real[1]);
    case TESS_KEY_INTS:
        return json_pack("[I,I]", (json_int_t)((const int64_t *)at)[0], (json_int_t)((const int64_t *)at)[1]);
    case TESS_KEY_TEXT:
        return *text ? json_string(*text) : json_null();
    case TESS_KEY_CHOICE:
        if (automatic && *(const int *)at == TESS_CONFIG_AUTO) return json_string("auto");
        choice_names(k, *(const int *)at, name, sizeof name);
        return !strcmp(name, "true") ? json_true() : !strcmp(name, "false") ? json_false() : json_string(name);
    case TESS_KEY_PATHS:
    case TESS_KEY_TEXTS:
        return *text ? get_paths(k, *text) : json_null();
    case TESS_KEY_OBJECTS:
        return *text ? json_loads(*text, 0, NULL) : json_null();
    case TESS_KEY_MODEL:
        return get_model(text[0], text[1]);
    }
    return json_null();
}

bool tess_key_is_preset(const tess_config *c, const tess_key *k)
{
    tess_config preset = {.other = tess_alloc(TESS_KEYS_MOST * sizeof *preset.other)};
    set_preset(&preset, k);
    json_t *a = tess_key_get(c, k), *b = tess_key_get(&preset, k);
    bool same = json_equal(a, b);
    json_decref(a);
    json_decref(b);
    tess_config_free(&preset);
    return same;
}

void tess_config_free(tess_config *config)
{
    for (size_t i = 0; i < tess_key_count; i++) {
        if (tess_keys[i].state != TESS_KEY_ACTIVE && !config->other) continue;
        char **text = field(config, &tess_keys[i]);
        const tess_key_kind kind = tess_keys[i].kind;
        if (kind == TESS_KEY_TEXT || kind == TESS_KEY_PATHS || kind == TESS_KEY_TEXTS || kind == TESS_KEY_OBJECTS ||
            kind == TESS_KEY_MODEL)
            free(text[0]);
        if (kind == TESS_KEY_MODEL) free(text[1]);
    }
    free(config->other);
    free(config->file);
    struct tess_config_notes *notes = config->notes;
    for (size_t i = 0; notes && i < notes->refusals; i++) free(notes->refused[i].name), free(notes->refused[i].text);
    if (notes) free(notes->refused), free(notes->renamed);
    free(notes);
    free(config->command);
    *config = (tess_config){0};
}
