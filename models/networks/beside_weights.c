/* What lies beside the weights in a model's directory: config.json, what the tokenizer consists of, an adapter's
 * configuration. Rank 0 alone writes it. */
#include "models/networks/import/import.h"
#include "models/networks/lora/lora.h"
#include "models/text/base/directories.h"
#include "models/text/base/gguf.h"
#include "models/text/tokenizer/tokenizer.h"
#include <dirent.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const dtype_name[] = {
    [TESS_SAVE_FP32] = "float32", [TESS_SAVE_BF16] = "bfloat16", [TESS_SAVE_FP16] = "float16"};

/* Weights that are read from few bits are written as plain numbers. */
static bool is_quantized(const tess_model *m)
{
    TESS_FREED_JSON json_t *root = json_loads(m->json, 0, NULL);
    return json_is_object(json_object_get(root, "quantization_config"));
}

/* The dtype that config.json names: a checkpoint has that of its run's save_dtype there. */
static tess_save_dtype named_dtype(const tess_model *m)
{
    TESS_FREED_JSON json_t *root = json_loads(m->json, 0, NULL);
    const char *name = tess_json_text(root, "dtype");
    if (!name) name = tess_json_text(root, "torch_dtype");
    tess_save_dtype d = TESS_SAVE_FP32;
    if (!name && is_quantized(m)) d = TESS_SAVE_BF16;
    if (name && !strcmp(name, dtype_name[TESS_SAVE_BF16])) d = TESS_SAVE_BF16;
    if (name && !strcmp(name, dtype_name[TESS_SAVE_FP16])) d = TESS_SAVE_FP16;
    return d;
}

bool tess_model_has_weights(const tess_model *m)
{
    if (m->import) return !m->drawn && (m->states || tess_dirs_has(m->dir, "weights.safetensors"));
    return !m->drawn && (m->states || (m->dir && tess_safetensors_in(m->dir)));
}

tess_save_dtype tess_model_stored_as(const tess_model *m)
{
    return m->lora || !tess_model_has_weights(m) ? TESS_SAVE_FP32 : named_dtype(m);
}

/* What the tokenizer consists of travels with the model; from_dir NULL: it has none. */
static tess_status copy_file(const char *from_dir, const char *name, const char *dir)
{
    TESS_FREED char *from = tess_format("%s/%s", from_dir ? from_dir : "/dev/null", name),
                    *to = tess_format("%s/%s", dir, name);
    const bool made =
        from_dir && tess_gguf_is(from_dir) && tess_tokenizer_in(from_dir) && !strcmp(name, "tokenizer.json");
    return made ? tess_tokenizer_save(from_dir, to) : tess_copy_file(from, to);
}

/* Beside a model's weights. */
static const char *const rest[] = {
    "config.json",  "tokenizer.json",          "tokenizer_config.json",  "vocab.json",
    "merges.txt",   "special_tokens_map.json", "generation_config.json", "chat_template.jinja",
    "spiece.model", "added_tokens.json",       "tokenizer.model",        "adapter_config.json"};
enum { REST = sizeof rest / sizeof rest[0] };

/* Where there is a model there is no adapter, and the other way round: which of them would it be? */
static void remove_other(const char *dir, bool adapter)
{
    struct dirent **file;
    const int n = scandir(dir, &file, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        const char *name = file[i]->d_name;
        const bool weights = !strncmp(name, "model", 5) && strstr(name, ".safetensors");
        if (adapter ? weights || !strcmp(name, "config.json") : !strncmp(name, "adapter_", 8)) {
            TESS_FREED char *path = tess_format("%s/%s", dir, name);
            unlink(path);
        }
        free(file[i]);
    }
    if (n >= 0) free(file);
}

static tess_status save_config(const tess_model *m, const char *dir)
{
    TESS_FREED_JSON json_t *root = json_loads(m->json, 0, NULL);
    json_object_set_new(root, "architectures", json_pack("[s]", m->family->architecture));
    json_object_del(root, "quantization_config");
    const bool newer = json_object_get(root, "dtype"); /* another name of the same */
    if (newer) json_object_set_new(root, "dtype", json_string(dtype_name[m->stored]));
    if (!newer || json_object_get(root, "torch_dtype"))
        json_object_set_new(root, "torch_dtype", json_string(dtype_name[m->stored]));
    TESS_FREED char *text = json_dumps(root, JSON_INDENT(2)), *path = tess_format("%s/config.json", dir);
    return tess_write_text(path, text);
}

tess_status tess_model_save_rest(const tess_model *m, const char *dir)
{
    if (m->import) return tess_import_save_rest(m->import, dir);
    for (size_t i = 1; i < REST - 1; i++) TESS_TRY(copy_file(m->dir, rest[i], dir));
    remove_other(dir, m->lora != NULL);
    /* The last: a model that has it, and weights as old or older, is whole. */
    return m->lora ? tess_lora_save_config(m, dir) : save_config(m, dir);
}

tess_status tess_model_export_rest(tess_model *m, const char *dir, bool *states)
{
    *states = m->lora ? m->lora->states : m->states != NULL;
    if (!*states) return TESS_OK;
    m->stored = m->lora ? TESS_SAVE_FP32 : named_dtype(m);
    return tess_model_save_rest(m, dir);
}

tess_status tess_model_save_merged(const tess_model *m, const char *dir)
{
    for (size_t i = 1; i < REST - 1; i++) TESS_TRY(copy_file(m->dir, rest[i], dir));
    tess_model plain = *m;
    plain.stored = named_dtype(m);
    return is_quantized(m) ? save_config(&plain, dir) : copy_file(m->dir, rest[0], dir); /* the last, as above */
}

const char *tess_model_file_in(const char *dir)
{
    static const char *const weights[] = {"state.json", "adapter_model.safetensors"};
    for (size_t i = 0; i < REST; i++)
        if (tess_dirs_has(dir, rest[i])) return rest[i];
    if (tess_safetensors_in(dir)) return tess_safetensors_in(dir);
    for (size_t i = 0; i < sizeof weights / sizeof weights[0]; i++)
        if (tess_dirs_has(dir, weights[i])) return weights[i];
    return NULL;
}

void tess_model_remove_rest(const char *dir)
{
    for (size_t i = 0; i < REST; i++) {
        TESS_FREED char *path = tess_format("%s/%s", dir, rest[i]);
        unlink(path);
    }
}

void tess_model_remove(const char *dir)
{
    tess_model_remove_rest(dir);
    remove_other(dir, true);
}
