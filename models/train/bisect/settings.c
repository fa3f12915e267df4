/* Whether two runs are of one configuration, but for what says where tiles are and what a run leaves. */
#include "models/text/base/text.h"
#include "models/train/bisect/bisect_impl.h"
#include <string.h>

/* Keys, and groups of keys, that change no bit. */
static const char *const free_keys[] = {"output",
                                        "overwrite",
                                        "steps",
                                        "epochs",
                                        "log_every",
                                        "steps_per_print",
                                        "eval_every",
                                        "eval",
                                        "early_stop",
                                        "checkpoint",
                                        "save_dtype",
                                        "data.valid",
                                        "trace",
                                        "digests",
                                        "tensorboard",
                                        "csv_monitor",
                                        "memory",
                                        "aio",
                                        "activation_checkpointing",
                                        "zero_optimization",
                                        "gradient_accumulation_steps",
                                        "parallel.carrier",
                                        "parallel.blocks",
                                        "parallel.shares",
                                        "parallel.state_shares",
                                        "parallel.schedule",
                                        "parallel.nccl"};

static bool is_free(const char *key)
{
    if (strstr(key, ".zero_quantized_")) return false; /* those of its group that change bits */
    for (size_t i = 0; i < sizeof free_keys / sizeof *free_keys; i++) {
        const size_t n = strlen(free_keys[i]);
        if (!strncmp(key, free_keys[i], n) && (!key[n] || key[n] == '.')) return true;
    }
    return false;
}

/* The first key in which they differ, with both values, and the names of further ones. */
struct different {
    char first[200], value[2][80], more[200];
};

static void note(struct different *d, const char *key, const json_t *a, const json_t *b)
{
    const json_t *of[2] = {a, b};
    const size_t n = strlen(d->more);
    if (*d->first) {
        snprintf(d->more + n, sizeof d->more - n, "%s%.60s", n ? ", " : "", key);
        return;
    }
    snprintf(d->first, sizeof d->first, "%s", key);
    for (int k = 0; k < 2; k++) {
        TESS_FREED char *text = of[k] ? json_dumps(of[k], JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        snprintf(d->value[k], sizeof d->value[k], "%.79s", text ? text : "missing");
    }
}

static void compare(struct different *d, const char *prefix, json_t *a, json_t *b)
{
    const char *name;
    json_t *value;
    json_object_foreach(a, name, value)
    {
        TESS_FREED char *key = tess_format("%s%s%s", prefix, *prefix ? "." : "", name);
        json_t *other = json_object_get(b, name);
        if (json_is_object(value) && json_is_object(other))
            compare(d, key, value, other);
        else if (!is_free(key) && other && !json_equal(value, other)) /* one that is missing is of another version */
            note(d, key, value, other);
    }
}

static json_t *of_key(const tess_side *s, const char *key)
{
    json_t *at = s->config;
    for (const char *dot; at && (dot = strchr(key, '.')); key = dot + 1) {
        TESS_FREED char *name = tess_format("%.*s", (int)(dot - key), key);
        at = json_object_get(at, name);
    }
    return json_object_get(at, key);
}

const char *tess_side_text(const tess_side *s, const char *key)
{
    return json_string_value(of_key(s, key));
}

bool tess_sides_same_grid(const tess_side *a, const tess_side *b)
{
    static const char *const key[] = {"zero_optimization.stage", "zero_optimization.mics_shard_size",
                                      "zero_optimization.zero_hpz_partition_size"};
    bool same = a->ranks == b->ranks;
    for (size_t k = 0; k < sizeof key / sizeof *key; k++)
        same = same && json_equal(of_key(a, key[k]), of_key(b, key[k]));
    return same;
}

tess_status tess_sides_settings(const tess_side *a, const tess_side *b)
{
    struct different d = {0};
    char where[512];
    /* What changes most of a run comes first in config.json. */
    compare(&d, "", a->config, b->config);
    snprintf(where, sizeof where, "%.300s/config.json: %.150s", b->dir, d.first);
    if (*d.first)
        return tess_error(TESS_INVALID, where,
                          "%s, but %s in %s%s%s (runs that are compared differ in nothing but "
                          "where their tiles are)",
                          d.value[1], d.value[0], a->dir, *d.more ? "; so do " : "", d.more);
    const json_t *deterministic = of_key(a, "deterministic"); /* a word where it is more than true */
    if (tess_sides_same_grid(a, b) || (deterministic && !json_is_false(deterministic))) return TESS_OK;
    snprintf(where, sizeof where, "%.300s/config.json: deterministic", b->dir);
    return tess_error(TESS_INVALID, where,
                      "false, and it has %d rank%s and another zero_optimization.stage or number of ranks than %s, "
                      "which adds up gradients in another order (deterministic=true has one order for all)",
                      b->ranks, b->ranks > 1 ? "s" : "", a->dir);
}
