/* The configuration: where values come from (file, environment, command line), what follows from several of them at
 * once, and writing it. */
#include "graph/graph.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include "models/train/config/config_impl.h"
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FILE_MOST = 16 << 20 }; /* a configuration with a model's object in it stays far below */

/* ---- a value from somewhere ---- */

static tess_status unknown(const char *source, const char *path)
{
    char where[1024];
    const char *meant = tess_key_suggest(path);
    snprintf(where, sizeof where, "%s: %.200s", source, path);
    if (meant) return tess_error(TESS_INVALID, where, "unknown key (did you mean %s?)", meant);
    return tess_error(TESS_INVALID, where, "unknown key, expected one that tessera train --help all lists");
}

/* model.n_layer=4: changes the object that "model" holds, or what the directory that it names says. */
static tess_status set_in_model(tess_config *c, const char *path, const char *text, const char *source)
{
    char where[512];
    snprintf(where, sizeof where, "%s: model.%.200s", source, path);
    if (!*path || *path == '.' || path[strlen(path) - 1] == '.' || strstr(path, ".."))
        return tess_error(TESS_INVALID, where, "an empty name, expected model.NAME=VALUE");
    if (!strcmp(path, TESS_MODEL_DIR)) {
        free(c->model);
        c->model = tess_strdup(text);
        return TESS_OK;
    }
    TESS_FREED_JSON json_t *model = c->model_json ? json_loads(c->model_json, 0, NULL) : json_object();
    json_t *value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value) value = json_string(text);
    bool placed = value && tess_key_place(model, path, value);
    if (placed) {
        free(c->model_json);
        c->model_json = json_dumps(model, JSON_COMPACT | JSON_REAL_PRECISION(17));
    }
    return placed ? TESS_OK
                  : tess_error(TESS_INVALID, where, "%.60s has no place there, expected keys of objects", text);
}

static tess_status set_from_text(tess_config *c, const tess_key *k, const char *text, const char *source)
{
    TESS_FREED_JSON json_t *value = tess_key_parse(k, text);
    return tess_key_set(c, k, value, source);
}

/* The section, taken whole, that a path leads into. */
static const tess_key *tree_around(const char *path)
{
    for (size_t i = 0; i < tess_key_count; i++) {
        const size_t n = strlen(tess_keys[i].path);
        if (tess_keys[i].kind == TESS_KEY_TREE && !strncmp(path, tess_keys[i].path, n) && path[n] == '.')
            return &tess_keys[i];
    }
    return NULL;
}

/* wandb.enabled=true: a section that has this member alone. */
static tess_status set_in_tree(tess_config *c, const tess_key *k, const char *path, const char *text,
                               const char *source)
{
    json_t *tree = json_object(), *value = json_loads(text, JSON_DECODE_ANY | JSON_REJECT_DUPLICATES, NULL);
    if (!value) value = json_string(text);
    tess_status status = value && tess_key_place(tree, path, value)
                             ? tess_key_set(c, k, tree, source)
                             : tess_error(TESS_INVALID, source, "%s: cannot be set", k->path);
    json_decref(tree);
    return status;
}

/* ---- the file ---- */

static tess_status read_file(const char *path, char **text, size_t *size)
{
    tess_status status = TESS_OK;
    *text = NULL;
    *size = 0;
    FILE *f = fopen(path, "rb");
    if (!f)
        return tess_error(tess_errno_status(errno), path, "cannot be read: %s, expected a configuration file",
                          strerror(errno));
    for (size_t room = 0, got = 1; got && *size < FILE_MOST; *size += got) {
        if (*size == room) *text = tess_realloc(*text, room = room ? 2 * room : 64 << 10);
        got = fread(*text + *size, 1, room - *size, f);
    }
    if (ferror(f))
        status = tess_error(tess_errno_status(errno), path, "cannot be read: %s, expected a configuration file",
                            strerror(errno));
    else if (*size >= FILE_MOST)
        status = tess_error(TESS_INVALID, path, "%d MiB or more, expected a configuration", FILE_MOST >> 20);
    fclose(f);
    return status;
}

/* What JSON has in the place of comments. */
static bool is_comment(const char *name)
{
    return name[0] == '_' || !strncmp(name, "//", 2) || !strcmp(name, "comment");
}

/* What a group that was given one value may have meant: the key that switches it. */
static bool is_switch(const char *path, const char *value)
{
    char enabled[TESS_KEY_PATH + 16];
    snprintf(enabled, sizeof enabled, "%s.enabled", path);
    return tess_key_find(enabled) && (!strcmp(value, "true") || !strcmp(value, "false"));
}

static void set_object(tess_config *c, json_t *object, const char *prefix, const char *source);

/* One member of an object, `met` in the file and `path` today; *key is its key, where there is one. */
static tess_status set_member(tess_config *c, json_t *value, const char *met, char path[static TESS_KEY_PATH],
                              const char *source, const tess_key **key)
{
    char where[1024];
    snprintf(where, sizeof where, "%s: %.200s", source, met);
    if ((*key = tess_key_find(path))) return tess_key_set(c, *key, value, source);
    if (strlen(path) > TESS_KEY_PATH - 2 || !tess_key_is_group(path)) return unknown(source, path);
    if (json_is_object(value)) {
        strcat(path, ".");
        set_object(c, value, path, source);
    } else if (json_is_boolean(value) && !strcmp(path, "zero_optimization")) {
        c->zero_optimization.stage = json_is_true(value); /* what DeepSpeed took before there were stages */
    } else if (!json_is_null(value)) {
        const char *word = json_is_true(value) ? "true" : "false";
        return json_is_boolean(value) && is_switch(path, word)
                   ? tess_error(TESS_INVALID, where, "%s, expected {\"enabled\": %s}", word, word)
                   : tess_error(TESS_INVALID, where, "a single value, expected an object of keys");
    }
    return TESS_OK;
}

/* An object's members, whose paths begin with `prefix` ("" or "optimizer."). What is wrong is kept, all of it. */
static void set_object(tess_config *c, json_t *object, const char *prefix, const char *source)
{
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        char met[TESS_KEY_PATH], path[TESS_KEY_PATH], where[1024], from[512];
        const tess_key *k = NULL;
        tess_status status;
        if (is_comment(name)) continue;
        bool whole = (size_t)snprintf(met, sizeof met, "%s%s", prefix, name) < sizeof met - 1;
        if (strcmp(tess_key_today(met, path), met)) tess_key_renamed(c, met, path);
        tess_key_source(c, source, met, from);
        snprintf(where, sizeof where, "%s: %.200s", from, met);
        if (strchr(name, '.'))
            status = tess_error(TESS_INVALID, where, "a dotted name in a file, expected objects inside one another");
        else
            status = whole ? set_member(c, value, met, path, from, &k) : unknown(from, path);
        if (status != TESS_OK) tess_key_refuse(c, k, met);
    }
}

static tess_status load_file(tess_config *c, const char *path);

/* The file's members, or what they are of another trainer's; that one's file of DeepSpeed's comes first. */
static tess_status set_root(tess_config *c, json_t *root, const char *path)
{
    json_t *deepspeed = NULL, *ours = c->notes->theirs ? NULL : tess_trainer_read(c, path, root, &deepspeed);
    tess_status status = TESS_OK;
    c->notes->theirs |= ours != NULL;
    if (json_is_string(deepspeed)) status = load_file(c, json_string_value(deepspeed));
    if (json_is_object(deepspeed)) set_object(c, deepspeed, "", path);
    set_object(c, ours ? ours : root, "", path);
    json_decref(ours);
    return status;
}

static tess_status load_file(tess_config *c, const char *path)
{
    char *text, where[512];
    size_t size;
    json_error_t error;
    json_t *root = NULL, *lines = NULL;
    tess_status status;
    TESS_TRY_DONE(read_file(path, &text, &size));
    const size_t mark = size >= 3 && !memcmp(text, "\xef\xbb\xbf", 3) ? 3 : 0; /* of the order of bytes */
    if (tess_ends(path, ".yaml") || tess_ends(path, ".yml"))
        TESS_TRY_DONE(tess_yaml_read(path, text ? text : "", size, &root, lines = json_object()));
    else
        root = json_loadb(text + mark, size - mark, JSON_REJECT_DUPLICATES, &error);
    if (!root) {
        snprintf(where, sizeof where, "%.480s:%d:%d", path, error.line, error.column);
        status = tess_error(TESS_INVALID, where, "%s (the file must be JSON)", error.text);
    } else if (!json_is_object(root)) {
        status = tess_error(TESS_INVALID, path, "a JSON list, expected an object");
    } else {
        json_t *outer = c->notes->lines;
        const char *yaml = c->notes->yaml;
        c->notes->lines = lines, c->notes->yaml = path;
        status = set_root(c, root, path);
        c->notes->lines = outer, c->notes->yaml = yaml;
    }
done:
    json_decref(root);
    json_decref(lines);
    free(text);
    return status;
}

/* ---- environment and command line ---- */

static void env_name(const char *path, char *out, size_t size)
{
    size_t n = (size_t)snprintf(out, size, "TESSERA_%s", path);
    for (size_t i = 0; i < n && i < size - 1; i++) out[i] = out[i] == '.' ? '_' : (char)toupper((unsigned char)out[i]);
}

/* A TESSERA_ variable that is no key's: model.NAME, what the kernels read, or a mistake. */
static tess_status set_odd_variable(tess_config *c, const char *name, const char *text)
{
    static const char model[] = "TESSERA_MODEL_";
    char names[TESS_KEYS_MOST][TESS_KEY_PATH], inner[TESS_KEY_PATH];
    const char *known[TESS_KEYS_MOST];
    size_t count = 0;
    if (!strcmp(name, "TESSERA_MAX_CPU_ISA")) return TESS_OK;
    for (; count < tess_key_count; count++) {
        env_name(tess_keys[count].path, names[count], sizeof names[count]);
        if (!strcmp(names[count], name)) return TESS_OK;
        known[count] = names[count];
    }
    if (!strncmp(name, model, sizeof model - 1)) {
        size_t i = 0;
        for (const char *p = name + sizeof model - 1; *p && i < sizeof inner - 1; p++) inner[i++] = (char)tolower(*p);
        inner[i] = 0;
        return set_in_model(c, inner, text, "environment");
    }
    const char *meant = strlen(name) < 64 ? tess_nearest(name, known, count) : NULL;
    return tess_error(TESS_INVALID, "environment", "%.100s is no key%s%s%s", name, meant ? " (did you mean " : "",
                      meant ? meant : "", meant ? "?)" : ", expected TESSERA_<KEY>");
}

static void load_environment(tess_config *c)
{
    for (size_t i = 0; i < tess_key_count; i++) {
        char name[TESS_KEY_PATH];
        env_name(tess_keys[i].path, name, sizeof name);
        const char *text = getenv(name);
        if (text && set_from_text(c, &tess_keys[i], text, "environment") != TESS_OK)
            tess_key_refuse(c, &tess_keys[i], tess_keys[i].path);
    }
    for (char **entry = environ; entry && *entry; entry++) {
        const char *equal = strchr(*entry, '=');
        if (!equal || strncmp(*entry, "TESSERA_", 8)) continue;
        TESS_FREED char *name = tess_format("%.*s", (int)(equal - *entry), *entry);
        if (set_odd_variable(c, name, equal + 1) != TESS_OK) tess_key_refuse(c, NULL, name);
    }
}

char *tess_cache_dir(void)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    if (cache && *cache == '/') return tess_format("%s/tessera", cache); /* what is not absolute does not count */
    return home && *home == '/' ? tess_format("%s/.cache/tessera", home) : NULL;
}

/* KEY=VALUE of the command line; *key is its key and *name what it is called, as far as they are known. */
static tess_status load_override(tess_config *c, const char *text, const tess_key **key,
                                 char name[static TESS_KEY_PATH])
{
    static const char source[] = "command line";
    const char *equal = strchr(text, '=');
    char path[TESS_KEY_PATH] = "", where[512];
    if (!equal || equal == text) return tess_error(TESS_INVALID, source, "\"%.200s\", expected KEY=VALUE", text);
    bool whole = (size_t)snprintf(name, TESS_KEY_PATH, "%.*s", (int)(equal - text), text) < TESS_KEY_PATH;
    if (whole && !strncmp(name, "model.", 6)) return set_in_model(c, name + 6, equal + 1, source);
    if (!strcmp(equal + 1, "null") && tess_key_forgive(c, name)) return TESS_OK; /* the file's, which is no key */
    const tess_key *k = *key = whole ? tess_key_find(tess_key_today(name, path)) : NULL;
    if (k) return set_from_text(c, k, equal + 1, source);
    if (whole && (k = tree_around(path))) return set_in_tree(c, k, path + strlen(k->path) + 1, equal + 1, source);
    if (!whole || !tess_key_is_group(path)) return unknown(source, name);
    snprintf(where, sizeof where, "%s: %s", source, path);
    const bool on = is_switch(path, equal + 1);
    return tess_error(TESS_INVALID, where, "a group of keys, expected one of its keys, as in %s.%s=%s", path,
                      on ? "enabled" : "NAME", on ? equal + 1 : "VALUE");
}

/* "runs/small" for "configs/small.json". */
static char *default_output(const char *path)
{
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *name = slash ? slash + 1 : path ? path : "tessera";
    const char *dot = strrchr(name, '.');
    return tess_format("runs/%.*s", dot && dot != name ? (int)(dot - name) : (int)strlen(name), name);
}

tess_status tess_config_load(const char *path, const char *const *overrides, size_t count, tess_config *config)
{
    *config = (tess_config){.file = tess_strdup(path ? path : "command line")};
    tess_key_presets(config);
    if (path) TESS_TRY(load_file(config, path));
    load_environment(config);
    for (size_t i = 0; i < count; i++) {
        const tess_key *k = NULL;
        char name[TESS_KEY_PATH] = "";
        if (load_override(config, overrides[i], &k, name) != TESS_OK) tess_key_refuse(config, k, name);
    }
    TESS_TRY(tess_config_refused(config));
    if (!config->output) config->output = default_output(path);
    tess_config_say_loaded(config);
    return TESS_OK;
}

/* ---- what follows ---- */

typedef long long wide;

bool tess_config_measured(const char *shares)
{
    return shares && !strcmp(shares, "measured");
}

/* train = micro x accumulation x ranks: fills in what is missing. Of ranks with shares each has as many
 * times the accumulation as its share is. */
static tess_status resolve_batch(tess_config *c, int64_t data)
{
    static const char *const train_key = "train_batch_size";
    const char *shares = c->parallel.shares, *what = shares ? "parts in parallel.shares" : "data-parallel ranks";
    const bool measured = tess_config_measured(shares); /* any number of micro-batches will do */
    const int64_t ranks = measured ? 1 : shares ? tess_shares_sum(shares, (int)data, NULL) : data;
    if (!ranks)
        REFUSE(c, "parallel.shares",
               "\"%s\", expected %lld numbers from 1 to 10000 with commas between, one for each data-parallel rank, or "
               "measured",
               shares, (wide)data);
    int64_t *train = &c->train_batch_size, *micro = &c->train_micro_batch_size_per_gpu,
            *steps = &c->gradient_accumulation_steps, product;
    bool automatic = tess_key_how(c, train_key) == TESS_KEY_AUTO ||
                     tess_key_how(c, "train_micro_batch_size_per_gpu") == TESS_KEY_AUTO;
    if (*train < 0 && *micro < 0 && automatic) *micro = 8; /* what transformers' Trainer takes */
    if (*train < 0 && *micro < 0 && *steps < 0)
        REFUSE(c, train_key,
               "missing, as are train_micro_batch_size_per_gpu and gradient_accumulation_steps "
               "(two of the three fix the third)");
    if (*steps < 0 && (*train < 0 || *micro < 0)) *steps = 1;
    if (*train < 0 && *micro < 0) *micro = 1;
    if (*train > 0 && (*micro < 0 || *steps < 0)) {
        int64_t known = *micro > 0 ? *micro : *steps;
        if (__builtin_mul_overflow(known, ranks, &product) || *train % product)
            REFUSE(c, train_key, "%lld is no multiple of %s %lld x %lld %s (%lld is)", (wide)*train,
                   *micro > 0 ? "train_micro_batch_size_per_gpu" : "gradient_accumulation_steps", (wide)known,
                   (wide)ranks, what, (wide)(*train + product - *train % product));
        *(*micro > 0 ? steps : micro) = *train / product;
        return TESS_OK;
    }
    bool huge = __builtin_mul_overflow(*micro, *steps, &product) || __builtin_mul_overflow(product, ranks, &product);
    if (*train < 0 && !huge && product <= 1000000000) *train = product;
    if (huge || *train != product)
        REFUSE(c, train_key,
               "%lld, but train_micro_batch_size_per_gpu %lld x gradient_accumulation_steps %lld x %lld %s is %s%lld "
               "(leave out one of the three)",
               (wide)*train, (wide)*micro, (wide)*steps, (wide)ranks, what, huge ? "beyond " : "",
               (wide)(huge ? INT64_MAX : product));
    return TESS_OK;
}

bool tess_config_decays(const tess_config *c)
{
    const int type = c->scheduler.type;
    return type == TESS_SCHEDULER_WARMUP_DECAY || type == TESS_SCHEDULER_WARMUP_COSINE ||
           type == TESS_SCHEDULER_COSINE || type == TESS_SCHEDULER_WSD;
}

static tess_status resolve_schedule(tess_config *c)
{
    if (c->scheduler.params.warmup_max_lr == TESS_CONFIG_AUTO)
        c->scheduler.params.warmup_max_lr = c->optimizer.params.lr;
    if (c->scheduler.type == TESS_SCHEDULER_WARMUP_DECAY && c->optimizer.params.lr != 1e-3 &&
        tess_key_how(c, "scheduler.params.warmup_max_lr") == TESS_KEY_PRESET && !c->notes->theirs)
        tess_note("%s: scheduler.params.warmup_max_lr: %g, as optimizer.params.lr (DeepSpeed's WarmupDecayLR rises to "
                  "0.001 where it is not given)",
                  c->file, c->optimizer.params.lr);
    const bool epochs = c->epochs != TESS_CONFIG_AUTO; /* how many steps they are the data will say */
    if (c->scheduler.params.total_num_steps == TESS_CONFIG_AUTO && !epochs)
        c->scheduler.params.total_num_steps = c->steps;
    if (tess_config_decays(c) && c->scheduler.params.total_num_steps == TESS_CONFIG_AUTO && !epochs)
        REFUSE(c, "scheduler.params.total_num_steps", "missing, and steps with it (it is where the decay ends)");
    if (c->scheduler.params.cycle_second_step_size == TESS_CONFIG_AUTO)
        c->scheduler.params.cycle_second_step_size = c->scheduler.params.cycle_first_step_size;
    if (c->scheduler.type == TESS_SCHEDULER_ONE_CYCLE) {
        TESS_TRY(tess_config_require(c, "scheduler.params.cycle_min_lr"));
        TESS_TRY(tess_config_require(c, "scheduler.params.cycle_max_lr"));
    }
    return TESS_OK;
}

/* There is one disk tier: both of DeepSpeed's paths name it, and memory.path where it is given. A path counts where its
 * device does. */
static tess_status resolve_paths(const tess_config *c)
{
    static const char *const key[] = {"zero_optimization.offload_optimizer.nvme_path",
                                      "zero_optimization.offload_param.nvme_path"};
    bool params = c->zero_optimization.stage == 3 && c->zero_optimization.offload_param.device == TESS_OFFLOAD_DISK;
    bool states = c->zero_optimization.offload_optimizer.device == TESS_OFFLOAD_DISK;
    const char *path[] = {states ? c->zero_optimization.offload_optimizer.nvme_path : NULL,
                          params ? c->zero_optimization.offload_param.nvme_path : NULL};
    const char *wins = c->memory.path;
    if (!wins && path[0] && path[1] && strcmp(path[0], path[1]))
        REFUSE(c, key[0],
               "\"%s\", but %s is \"%s\", and there is one disk tier (name the same directories in both, or all of "
               "them in memory.path)",
               path[0], key[1], path[1]);
    bool unused[] = {wins && path[0] && strcmp(path[0], wins), wins && path[1] && strcmp(path[1], wins)};
    if (unused[0] || unused[1])
        tess_note("%s: memory.path: %s is the disk tier, without effect: %s%s%s", c->file, wins,
                  unused[0] ? key[0] : "", unused[0] && unused[1] ? ", " : "", unused[1] ? key[1] : "");
    return TESS_OK;
}

/* What goes by the loss on data.valid needs one. */
static tess_status resolve_best(const tess_config *c)
{
    if (c->on_spike.skip > 0 && c->on_spike.skip <= 1)
        REFUSE(c, "on_spike.skip", "%g, expected 0 or a factor above 1 (10 is usual)", c->on_spike.skip);
    if (c->on_spike.back && !(c->on_spike.skip > 0))
        REFUSE(c, "on_spike.skip",
               "0, expected a factor that says what a spike is (on_spike.back needs it; 10 is usual)");
    if (c->on_spike.back && !c->checkpoint.every)
        REFUSE(c, "checkpoint.every", "0, expected how many steps lie between checkpoints (on_spike.back needs them)");
    const char *key = c->checkpoint.keep_best      ? "checkpoint.keep_best"
                      : c->early_stop.patience > 0 ? "early_stop.patience"
                                                   : NULL;
    if (c->early_stop.min_delta > 0 && !c->early_stop.patience)
        REFUSE(c, "early_stop.patience", "missing, expected a number of evaluations (early_stop.min_delta needs it)");
    if (!key) return TESS_OK;
    if (c->checkpoint.keep_best && !c->checkpoint.dir)
        REFUSE(c, "checkpoint.dir", "missing, expected a directory (checkpoint.keep_best needs it)");
    if (!c->data.valid) REFUSE(c, "data.valid", "missing, expected a path (%s needs it)", key);
    if (!c->eval_every)
        REFUSE(c, "eval_every", "0, expected how many steps lie between evaluations (%s needs it)", key);
    return TESS_OK;
}

/* Fills in a size that is left open; returns what it would be without a GPU. */
static int64_t size(int64_t *given, int64_t cpu, int64_t here)
{
    if (*given != TESS_CONFIG_AUTO) return *given;
    *given = here;
    return cpu;
}

/* The cut says which bits come out, so it stands in OUTPUT/config.json, and is the same where that is run again. What
 * keeps a core busy for a second a GPU does before the next task is on its way. */
static void resolve_tiles(tess_config *c)
{
    const bool gpu = tess_gpus() > 0;
    c->cpu_tiles.rows = size(&c->tiles.rows, 1024, gpu ? 8192 : 1024);
    c->cpu_tiles.elements = size(&c->tiles.elements, 5 << 19, gpu ? 48 << 20 : 5 << 19);
    c->cpu_tiles.loss_rows = size(&c->tiles.loss_rows, 512, gpu ? 8192 : 512);
}

void tess_config_say_cut(const tess_config *c, int64_t tokens, int64_t elements)
{
    const bool rows = c->tiles.rows != c->cpu_tiles.rows && tokens > c->cpu_tiles.rows;
    const bool params = c->tiles.elements != c->cpu_tiles.elements && elements > c->cpu_tiles.elements;
    const bool loss = c->tiles.loss_rows != c->cpu_tiles.loss_rows && tokens > c->cpu_tiles.loss_rows;
    if (!rows && !params && !loss) return;
    tess_note("tiles: cut for the GPU, tiles.rows=%lld tiles.elements=%lld tiles.loss_rows=%lld; a machine without one "
              "cuts by %lld, %lld and %lld, and its sums end in other bits (set them where runs are to be compared)",
              (wide)c->tiles.rows, (wide)c->tiles.elements, (wide)c->tiles.loss_rows, (wide)c->cpu_tiles.rows,
              (wide)c->cpu_tiles.elements, (wide)c->cpu_tiles.loss_rows);
}

/* What is compared, or a teacher's, is found on the rank that has the whole model and the whole sequence. */
static tess_status check_whole_model(const tess_config *c, const char *with)
{
    const struct {
        const char *key;
        int64_t ranks;
    } shared[] = {{"parallel.tensor", c->parallel.tensor},
                  {"parallel.pipeline", c->parallel.pipeline},
                  {"parallel.sequence", c->parallel.sequence}};
    for (int k = 0; k < 3; k++)
        if (shared[k].ranks > 1)
            REFUSE(c, shared[k].key, "%lld, but with %s it is not there yet (1 is)", (wide)shared[k].ranks, with);
    return TESS_OK;
}

static tess_status resolve_preference(tess_config *c)
{
    const int loss = c->preference.loss;
    const bool idle = c->preference.beta != TESS_CONFIG_AUTO && c->preference.beta != 0.1;
    if (!loss && (idle || c->preference.label_smoothing > 0 || c->preference.nll > 0 || c->preference.gamma != 0.5 ||
                  c->preference.desirable_weight != 1 || c->preference.undesirable_weight != 1))
        tess_note("%s: preference: without effect, since preference.loss is none", c->file);
    if (c->preference.beta == TESS_CONFIG_AUTO) c->preference.beta = loss == TESS_PREFERENCE_SIMPO ? 2 : 0.1;
    if (c->preference.nll == TESS_CONFIG_AUTO) c->preference.nll = loss == TESS_PREFERENCE_ORPO;
    if (!loss) return TESS_OK;
    TESS_TRY(check_whole_model(c, "a loss of pairs or labels (preference.loss)"));
    if (c->data.pack_examples)
        REFUSE(c, "data.pack_examples",
               "true, but what preference.loss compares shares no sample (false does without)");
    if (loss == TESS_PREFERENCE_KTO && c->preference.label_smoothing > 0)
        REFUSE(c, "preference.label_smoothing", "%g, but kto learns from no pairs (0 does without)",
               c->preference.label_smoothing);
    if (loss == TESS_PREFERENCE_KTO && c->preference.nll > 0)
        REFUSE(c, "preference.nll", "%g, but kto learns from no pairs (0 does without)", c->preference.nll);
    return TESS_OK;
}

static tess_status resolve_distill(const tess_config *c)
{
    const bool said = c->distill.top_k != 32 || c->distill.temperature != 1 || c->distill.weight != 0.5;
    if (!c->distill.teacher && said)
        tess_note("%s: distill: without effect, since distill.teacher is missing", c->file);
    if (!c->distill.teacher) return TESS_OK;
    if (c->preference.loss)
        REFUSE(c, "preference.loss", "is given, but distill.teacher has a say in a loss of tokens (%s)",
               "leave out one of them");
    return check_whole_model(c, "a teacher (distill.teacher)");
}

int tess_config_group(const tess_config *c)
{
    const int64_t copies = c->zero_optimization.zero_hpz_partition_size, shard = c->zero_optimization.mics_shard_size;
    return (int)(shard > 0 ? shard : copies > 1 ? copies : 0);
}

static tess_status check_codes(const tess_config *c)
{
    const int stage = (int)c->zero_optimization.stage;
    const char *what = stage == 0 ? "stage 0 sums all gradients everywhere (zero_optimization.stage 1, 2 or 3 does not)"
                       : c->fp16.enabled ? "the scale of the loss moves with fp16 (bf16.enabled=true needs none)"
                       : c->on_spike.skip > 0
                           ? "on_spike.skip leaves steps out, and what their codes lack stays (on_spike.skip=0)"
                           : NULL;
    if (c->zero_optimization.zero_quantized_weights && stage != 3)
        REFUSE(c, "zero_optimization.zero_quantized_weights", "true, but stage %d gathers no parameters (%s)", stage,
               "zero_optimization.stage=3 does");
    if (c->zero_optimization.zero_quantized_gradients && what)
        REFUSE(c, "zero_optimization.zero_quantized_gradients", "true, but %s", what);
    return TESS_OK;
}

static tess_status check_groups(const tess_config *c, int64_t data)
{
    const bool shards = c->zero_optimization.mics_shard_size > 0;
    const char *key = shards ? "zero_optimization.mics_shard_size" : "zero_optimization.zero_hpz_partition_size";
    const int group = tess_config_group(c), stage = (int)c->zero_optimization.stage;
    int divides = group;
    if (!group) return TESS_OK;
    if (shards && c->zero_optimization.zero_hpz_partition_size > 1)
        REFUSE(c, key, "%d, and zero_hpz_partition_size %lld, but groups share states or have copies (%s)", group,
               (wide)c->zero_optimization.zero_hpz_partition_size, "leave out one of them");
    if (shards ? stage == 0 : stage != 3)
        REFUSE(c, key, "%d, but stage %d %s (%s)", group, stage, shards ? "divides nothing" : "gathers no parameters",
               shards ? "zero_optimization.stage 1, 2 or 3 does; -1 means no groups"
                      : "zero_optimization.stage=3 does; 1 means no copies");
    while (data % divides) divides--;
    if (divides < group)
        REFUSE(c, key, "%d, but there are %lld data-parallel ranks (a divisor is needed, such as %d)", group,
               (wide)data, divides);
    return TESS_OK;
}

/* A pair of steps, both 0 where there are none. */
static tess_status check_steps(const tess_config *c, const char *key, const int64_t step[2])
{
    if ((step[0] || step[1]) && (step[0] < 1 || step[0] > step[1]))
        REFUSE(c, key, "[%lld, %lld], expected the first step, from 1, and the last (as in [3, 5])", (wide)step[0],
               (wide)step[1]);
    return TESS_OK;
}

static tess_status check_experts(const tess_config *c, int64_t ranks)
{
    const int64_t data = ranks / (c->parallel.tensor * c->parallel.pipeline);
    if (c->parallel.expert > 1 && c->parallel.sequence > 1)
        REFUSE(c, "parallel.expert", "%lld, but with parallel.sequence it is not there yet (1 is)",
               (wide)c->parallel.expert);
    if (c->parallel.expert > 1 && tess_config_group(c))
        REFUSE(c, "parallel.expert", "%lld, but with groups of data-parallel ranks it is not there yet (1 is)",
               (wide)c->parallel.expert);
    if (c->parallel.expert > 1 && c->parallel.expert != data)
        REFUSE(c, "parallel.expert",
               "%lld, but there are %lld data-parallel ranks (all of them own experts: %lld; or 1, and none do)",
               (wide)c->parallel.expert, (wide)data, (wide)data);
    return TESS_OK;
}

tess_status tess_config_resolve(tess_config *c, int64_t ranks)
{
    TESS_ASSERT(ranks >= 1);
    TESS_TRY(tess_config_resolve_parallel(c));
    int64_t model = c->parallel.tensor * c->parallel.pipeline * c->parallel.sequence;
    if (ranks % model && c->parallel.sequence > 1)
        REFUSE(c, "parallel",
               "tensor %lld x pipeline %lld x sequence %lld ranks for a model, but %lld ranks run (start a multiple of "
               "%lld)",
               (wide)c->parallel.tensor, (wide)c->parallel.pipeline, (wide)c->parallel.sequence, (wide)ranks,
               (wide)model);
    if (ranks % model)
        REFUSE(c, "parallel",
               "tensor %lld x pipeline %lld ranks for a model, but %lld ranks run (start a multiple of %lld)",
               (wide)c->parallel.tensor, (wide)c->parallel.pipeline, (wide)ranks, (wide)model);
    TESS_TRY(check_codes(c));
    TESS_TRY(check_groups(c, ranks / (c->parallel.tensor * c->parallel.pipeline)));
    TESS_TRY(check_experts(c, ranks));
    TESS_TRY(resolve_batch(c, ranks / model));
    if (tess_config_measured(c->parallel.shares) &&
        c->train_batch_size / c->train_micro_batch_size_per_gpu < ranks / model)
        REFUSE(c, "train_batch_size", "%lld are fewer micro-batches of %lld than data-parallel ranks (%lld would do)",
               (wide)c->train_batch_size, (wide)c->train_micro_batch_size_per_gpu,
               (wide)(c->train_micro_batch_size_per_gpu * (ranks / model)));
    TESS_TRY(tess_config_resolve_optimizer(c));
    if (c->optimizer_states > TESS_STATES_8BIT) c->optimizer_states = TESS_STATES_8BIT; /* int8 */
    TESS_TRY(tess_config_resolve_deepspeed(c));
    TESS_TRY(resolve_schedule(c));
    TESS_TRY(resolve_paths(c));
    if (c->log_every == TESS_CONFIG_AUTO)
        c->log_every = c->steps_per_print == TESS_CONFIG_AUTO ? 1 : c->steps_per_print;
    c->steps_per_print = c->log_every;
    TESS_TRY(tess_config_resolve_muon(c));
    if (c->optimizer.type == TESS_OPTIMIZER_ADAMW) c->optimizer.params.adam_w_mode = true; /* as DeepSpeed does */
    if (c->activation_checkpointing.cpu_checkpointing && c->activation_checkpointing.offload == TESS_OFFLOAD_AUTO)
        c->activation_checkpointing.offload = TESS_OFFLOAD_CPU;
    if (c->zero_optimization.offload_param.device > TESS_OFFLOAD_NONE && c->zero_optimization.stage != 3)
        tess_note("%s: zero_optimization.offload_param: acts in stage 3 only, the stage is %d", c->file,
                  (int)c->zero_optimization.stage);
    if (c->aio.block_size != TESS_CONFIG_AUTO && c->aio.block_size % 4096)
        REFUSE(c, "aio.block_size", "%lld, expected a multiple of 4096", (long long)c->aio.block_size);
    if ((c->checkpoint.resume || c->checkpoint.every) && !c->checkpoint.dir)
        REFUSE(c, "checkpoint.dir", "missing, expected a directory (checkpoint.%s needs it)",
               c->checkpoint.resume ? "resume" : "every");
    TESS_TRY(check_steps(c, "trace.steps", c->trace.steps));
    TESS_TRY(check_steps(c, "digests.steps", c->digests.steps));
    if (c->eval_every && !c->data.valid && !c->eval.tasks && c->notes->theirs) {
        tess_note("%s: eval_every: without effect (data.valid=FILE, or a share of data.train, is what is evaluated on)",
                  c->file);
        c->eval_every = 0;
    }
    if (c->eval_every && !c->data.valid && !c->eval.tasks)
        REFUSE(c, "data.valid", "missing, expected a path (eval_every needs it)");
    TESS_TRY(resolve_best(c));
    TESS_TRY(resolve_preference(c));
    TESS_TRY(resolve_distill(c));
    resolve_tiles(c);
    if (!c->quiet) tess_config_say_auto(c);
    return TESS_OK;
}

/* ---- the whole ---- */

tess_status tess_config_require(const tess_config *config, const char *key)
{
    const tess_key *k = tess_key_find(key);
    TESS_ASSERT(k);
    json_t *value = tess_key_get(config, k);
    bool given = !json_is_null(value) && !(json_is_string(value) && !strcmp(json_string_value(value), "auto"));
    json_decref(value);
    if (given) return TESS_OK;
    char where[512];
    snprintf(where, sizeof where, "%.300s: %s", config->file, key);
    return tess_error(TESS_INVALID, where, "missing, expected a value (%s)", k->help);
}

/* The shorter of two ways to print the numbers, when it loses nothing: 0.1 rather than 0.10000000000000001. */
static char *dump(const json_t *root)
{
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(15));
    TESS_FREED_JSON json_t *again = json_loads(text, 0, NULL);
    bool same = json_equal(root, again);
    if (same) return text;
    free(text);
    return json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
}

tess_status tess_config_write(const tess_config *config, const char *path)
{
    TESS_FREED_JSON json_t *root = json_object();
    for (size_t i = 0; i < tess_key_count; i++)
        if (tess_keys[i].state != TESS_KEY_IGNORED && !tess_key_of_another_optimizer(config, &tess_keys[i]))
            TESS_ASSERT(tess_key_place(root, tess_keys[i].path, tess_key_get(config, &tess_keys[i])));
    TESS_FREED char *text = dump(root);
    return tess_write_text(path, text);
}

bool tess_config_entry(const tess_config *config, size_t i, const char **key, char **value)
{
    if (i >= tess_key_count) return false;
    *key = tess_keys[i].path;
    *value = NULL;
    if (tess_keys[i].state == TESS_KEY_IGNORED) return true;
    TESS_FREED_JSON json_t *json = tess_key_get(config, &tess_keys[i]);
    *value = json_dumps(json, JSON_ENCODE_ANY | JSON_COMPACT | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    return true;
}

tess_status tess_config_open(const char *path, const char *const *settings, size_t count, int64_t ranks,
                             tess_config **config)
{
    if (!config) return tess_error(TESS_INVALID, "tess_config_open", "config is NULL");
    *config = NULL;
    for (size_t i = 0; i < count; i++)
        if (!settings || !settings[i]) return tess_error(TESS_INVALID, "configuration", "setting %zu is NULL", i);
    if (ranks < 1) return tess_error(TESS_INVALID, "ranks", "%lld (expected at least 1)", (long long)ranks);
    tess_config *c = *config = tess_alloc(sizeof *c);
    tess_status status = tess_config_load(path, settings, count, c);
    if (status == TESS_OK) status = tess_config_resolve(c, ranks);
    if (status == TESS_OK) return TESS_OK;
    tess_config_close(c);
    *config = NULL;
    return status;
}

void tess_config_close(tess_config *config)
{
    if (!config) return;
    tess_config_free(config);
    free(config);
}
