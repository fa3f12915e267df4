/* What DeepSpeed's files say that the table of keys does not: names from older versions and keys in the wrong section,
 * sections that are taken whole, "auto" as transformers' Trainer fills it in, and the few lines that tell the user what
 * became of all that: one for each sort, however many keys there are. */
#include "models/networks/networks.h"
#include "models/text/base/text.h"
#include "models/train/config/config_impl.h"
#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

/* Keys and groups: what a file may call them, and what they are called today. */
static const char *const old_names[][2] = {
    {"bfloat16", "bf16"},
    {"bf16.check_overflow", "bf16.check_grad_overflow"},
    {"zero_optimization.aio", "aio"},
    {"zero_optimization.offload_param.aio", "aio"},
    {"zero_optimization.offload_optimizer.aio", "aio"},
    {"aio.thread_count", "aio.intra_op_parallelism"},
    {"optimizer.params.adamw_mode", "optimizer.params.adam_w_mode"},
    {"zero_optimization.cpu_offload_params", "zero_optimization.cpu_offload_param"},
    {"zero_optimization.stage3_gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization.gather_16bit_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization.gather_fp16_weights_on_model_save",
     "zero_optimization.stage3_gather_16bit_weights_on_model_save"},
    {"zero_optimization.prefetch_bucket_size", "zero_optimization.stage3_prefetch_bucket_size"},
    {"zero_optimization.param_persistence_threshold", "zero_optimization.stage3_param_persistence_threshold"},
    {"zero_optimization.model_persistence_threshold", "zero_optimization.stage3_model_persistence_threshold"},
    {"zero_optimization.max_live_parameters", "zero_optimization.stage3_max_live_parameters"},
    {"zero_optimization.max_reuse_distance", "zero_optimization.stage3_max_reuse_distance"},
    {"zero_optimization.module_granularity_threshold", "zero_optimization.stage3_module_granularity_threshold"},
    {"zero_optimization.use_all_reduce_for_fetch_params", "zero_optimization.stage3_use_all_reduce_for_fetch_params"},
    {"zero_optimization.allgather_sequential", "zero_optimization.stage3_allgather_sequential"},
    {"load_universal_checkpoint", "checkpoint.load_universal"},
    {"tensor_board", "tensorboard"},
};

const char *tess_key_today(const char *path, char out[static TESS_KEY_PATH])
{
    snprintf(out, TESS_KEY_PATH, "%s", path);
    for (size_t i = 0; i < sizeof old_names / sizeof *old_names; i++) { /* in order: aio.thread_count after aio */
        char rest[TESS_KEY_PATH];
        const size_t n = strlen(old_names[i][0]);
        if (strncmp(out, old_names[i][0], n) || (out[n] && out[n] != '.')) continue;
        snprintf(rest, sizeof rest, "%s", out + n);
        snprintf(out, TESS_KEY_PATH, "%s%s", old_names[i][1], rest);
    }
    return out;
}

/* `list`, with `item` behind it after a comma; takes `list`. */
static char *append(char *list, const char *item)
{
    char *longer = list ? tess_format("%s, %s", list, item) : tess_strdup(item);
    free(list);
    return longer;
}

void tess_key_renamed(tess_config *c, const char *path, const char *today)
{
    TESS_FREED char *item = tess_format("%s as %s", path, today);
    if (!c->notes->renamed || !strstr(c->notes->renamed, item)) c->notes->renamed = append(c->notes->renamed, item);
}

/* ---- what is said ---- */

/* The key that switches a key's section; NULL: there is none. */
static const tess_key *section_switch(const tess_key *k)
{
    char path[TESS_KEY_PATH];
    const int group = (int)(strlen(k->path) - strlen(k->name));
    snprintf(path, sizeof path, "%.*senabled", group, k->path);
    return group ? tess_key_find(path) : NULL;
}

/* Whoever switches it on waits for something, and its help says what there is instead. */
static bool is_missed(const tess_key *k)
{
    return k->state == TESS_KEY_IGNORED && strstr(k->help, "instead: ");
}

/* Of a section that is switched off, DeepSpeed uses nothing either. */
static bool section_is_off(const tess_config *c, const tess_key *k)
{
    const tess_key *enabled = section_switch(k);
    if (!enabled) return false;
    TESS_FREED_JSON json_t *value = tess_key_get(c, enabled);
    return json_is_false(value);
}

static bool is_without_effect(const tess_config *c, const tess_key *k)
{
    if (k->state != TESS_KEY_IGNORED || c->notes->mark[k - tess_keys] == TESS_KEY_PRESET) return false;
    TESS_FREED_JSON json_t *value = tess_key_get(c, k);
    return !json_is_null(value) && !(json_is_false(value) && tess_key_is_preset(c, k)) && !section_is_off(c, k);
}

void tess_config_say_loaded(const tess_config *c)
{
    const tess_key *last = NULL;
    size_t count = 0;
    TESS_FREED char *list = NULL;
    if (c->notes->renamed) tess_note("%s: read %s", c->file, c->notes->renamed);
    for (size_t i = 0; i < tess_key_count; i++) {
        const tess_key *k = &tess_keys[i], *section = section_switch(k);
        if (!is_without_effect(c, k)) continue;
        if (is_missed(k)) {
            tess_note("%s: %s: accepted without effect (%s)", c->file, k->path, k->help);
        } else if (!section || !is_missed(section)) { /* the section's line is enough */
            list = append(list, k->path);
            last = k;
            count++;
        }
    }
    if (count == 1)
        tess_note("%s: %s: accepted without effect (%s)", c->file, list, last->help);
    else if (count)
        tess_note("%s: accepted without effect: %s (tessera train --help KEY says why)", c->file, list);
}

/* What stands for a value that only the run will find: "97% of it" of a help "...; auto: 97% of it".
 * False: the key is as if it were not there. */
static bool what_auto_means(const tess_key *k, char *out, size_t size)
{
    const char *at = strstr(k->help, "auto: ");
    if (at) snprintf(out, size, "%.*s", (int)strcspn(at + 6, ";"), at + 6);
    return at;
}

static bool acts(const tess_config *c, const tess_key *k)
{
    if (k->state == TESS_KEY_IGNORED) return false;
    return c->scheduler.type != TESS_SCHEDULER_NONE || strncmp(k->path, "scheduler.params.", 17);
}

void tess_config_say_auto(tess_config *c)
{
    TESS_FREED char *list = NULL;
    for (size_t i = 0; i < tess_key_count; i++) {
        const tess_key *k = &tess_keys[i];
        if (c->notes->mark[i] != TESS_KEY_AUTO) continue;
        c->notes->mark[i] = TESS_KEY_GIVEN;
        char text[256];
        TESS_FREED_JSON json_t *value = tess_key_get(c, k);
        bool says = acts(c, k) && !json_is_null(value);
        if (json_is_string(value) && !strcmp(json_string_value(value), "auto")) {
            says = says && what_auto_means(k, text, sizeof text);
        } else {
            TESS_FREED char *dumped = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
            snprintf(text, sizeof text, "%.255s", dumped);
        }
        if (!says) continue;
        bool rate = !strcmp(k->path, "optimizer.params.lr") && c->notes->has_weights;
        TESS_FREED char *item = tess_format("%s %s%s", k->path, text, rate ? " (the model has weights)" : "");
        list = append(list, item);
    }
    if (list) tess_note("%s: auto: %s", c->file, list);
}

/* ---- what follows ---- */

/* Adafactor's then go by the step, and lr is the most that they are. */
static bool are_relative(const tess_config *c)
{
    return c->optimizer.type == TESS_OPTIMIZER_ADAFACTOR && c->optimizer.params.relative_step;
}

/* Who goes on from weights and writes "auto", or no rate at all, has transformers' Trainer in mind, which takes 5e-5,
 * and no warmup for "auto". A model that is drawn keeps the defaults. */
static void resolve_rate(tess_config *c)
{
    c->notes->has_weights = c->model && !c->weights && tess_weights_there(c->model);
    if (!c->notes->has_weights) return;
    if (tess_key_how(c, "optimizer.params.lr") != TESS_KEY_GIVEN && !are_relative(c)) c->optimizer.params.lr = 5e-5;
    if (tess_key_how(c, "scheduler.params.warmup_num_steps") == TESS_KEY_AUTO) c->scheduler.params.warmup_num_steps = 0;
}

void tess_config_say_rate(const tess_config *c)
{
    if (c->notes->has_weights && tess_key_how(c, "optimizer.params.lr") == TESS_KEY_PRESET && !are_relative(c))
        tess_note("%s: optimizer.params.lr: %g, since the model has weights (1e-3 is the default of one that is drawn)",
                  c->file, c->optimizer.params.lr);
}

/* What chooses half precision by itself in torch is bf16 here. */
static tess_status resolve_half(tess_config *c)
{
    const char *name = NULL;
    const char *level = c->amp.opt_level;
    if (c->amp.enabled && !(level && !strcmp(level, "O0"))) name = "amp";
    if (c->torch_autocast.enabled) name = "torch_autocast";
    if (c->fp16.enabled && c->bf16.enabled)
        REFUSE(c, "fp16.enabled", "true, and so is bf16.enabled (switch one of the two off)");
    if (name && c->fp16.enabled)
        REFUSE(c, "fp16.enabled", "true, and so is %s.enabled (switch one of the two off)", name);
    if (name && !c->bf16.enabled)
        tess_note("%s: %s.enabled: runs in bf16, which takes as much memory and needs no loss scaling", c->file, name);
    if (name) c->bf16.enabled = true;
    c->amp.enabled = c->torch_autocast.enabled = false; /* what is in force is bf16 */
    if (c->fp8.enabled && !c->bf16.enabled)
        REFUSE(c, "fp8.enabled", "true, but matrices are in %s, and bf16 is rounded to 8 bits (%s)",
               c->fp16.enabled ? "fp16" : "fp32", "bf16.enabled=true");
    if (c->fp8.enabled && c->lora.base)
        REFUSE(c, "fp8.enabled", "true, but lora.base holds matrices in codes of its own (%s)",
               "lora.base=\"as stored\"");
    return TESS_OK;
}

/* A size that DeepSpeed has another name for. */
static tess_status resolve_size(tess_config *c, const char *key, int64_t old, const char *name, int64_t *size)
{
    if (old <= 1) return TESS_OK;
    if (tess_key_how(c, name) == TESS_KEY_PRESET) {
        tess_note("%s: read %s as %s", c->file, key, name);
        *size = old;
        c->notes->mark[tess_key_find(name) - tess_keys] = TESS_KEY_GIVEN;
    }
    if (*size == old) return TESS_OK;
    REFUSE(c, key, "%lld, but %s is %lld (leave out one of the two)", (long long)old, name, (long long)*size);
}

tess_status tess_config_resolve_parallel(tess_config *c)
{
    TESS_TRY(resolve_size(c, "tensor_parallel.autotp_size", c->tensor_parallel.autotp_size, "parallel.tensor",
                          &c->parallel.tensor));
    return resolve_size(c, "sequence_parallel_size", c->sequence_parallel_size, "parallel.sequence",
                        &c->parallel.sequence);
}

static tess_status resolve_old_offload(tess_config *c, bool old, const char *name, int *device, const char *key)
{
    if (!old) return TESS_OK;
    if (*device == TESS_OFFLOAD_AUTO) *device = TESS_OFFLOAD_CPU;
    if (*device != TESS_OFFLOAD_CPU)
        REFUSE(c, name, "true, which is the old name of %s cpu, but that is %s (leave out one of the two)", key,
               *device == TESS_OFFLOAD_NONE ? "none" : "nvme");
    return TESS_OK;
}

/* Returns whether a key that has no member is true, or more than 0. */
static bool is_on(const tess_config *c, const char *path)
{
    TESS_FREED_JSON json_t *value = tess_key_get(c, tess_key_find(path));
    return json_is_true(value) || json_integer_value(value) > 0;
}

/* In DeepSpeed the model's code says whether it computes activations again, and the section how. */
static void say_of_checkpointing(const tess_config *c)
{
    const bool asks = c->activation_checkpointing.cpu_checkpointing ||
                      is_on(c, "activation_checkpointing.contiguous_memory_optimization") ||
                      is_on(c, "activation_checkpointing.number_checkpoints");
    if (asks && tess_key_how(c, "activation_checkpointing.enabled") == TESS_KEY_PRESET)
        tess_note(
            "%s: activation_checkpointing.enabled: false, so nothing is computed again (DeepSpeed's keys beside it "
            "say how, not whether)",
            c->file);
}

tess_status tess_config_resolve_deepspeed(tess_config *c)
{
    resolve_rate(c);
    say_of_checkpointing(c);
    TESS_TRY(resolve_half(c));
    TESS_TRY(resolve_old_offload(c, c->zero_optimization.cpu_offload, "zero_optimization.cpu_offload",
                                 &c->zero_optimization.offload_optimizer.device,
                                 "zero_optimization.offload_optimizer.device"));
    return resolve_old_offload(c, c->zero_optimization.cpu_offload_param, "zero_optimization.cpu_offload_param",
                               &c->zero_optimization.offload_param.device, "zero_optimization.offload_param.device");
}
