/* The weights of a model to and from safetensors: all ranks read and write, each the pieces that it holds. */
#include "models/networks/import/import.h"
#include "models/networks/lora/lora.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

tess_status tess_model_need_weights(const tess_model *m, const char *hint)
{
    if (tess_model_has_weights(m)) return TESS_OK;
    if (!m->dir) return tess_error(TESS_INVALID, "model", "has no weights: it is an object (%s)", hint);
    TESS_FREED char *lack = tess_safetensors_lack(m->dir);
    return tess_error(TESS_INVALID, m->dir, "%s (%s)", lack, hint);
}

void tess_model_draw(tess_model *m)
{
    m->drawn = true;
}

/* ---- loading ---- */

/* Norms' gains and biases had other names once: gamma and beta. */
static const struct {
    const char *now, *once;
} renamed[] = {{".LayerNorm.weight", ".LayerNorm.gamma"}, {".LayerNorm.bias", ".LayerNorm.beta"}};
/* Writes the name with its end replaced; says whether it has that end. */
static bool rename_end(const char *name, const char *end, const char *by, char other[static 512])
{
    const size_t n = strlen(name), m = strlen(end);
    if (n < m || strcmp(name + n - m, end)) return false;
    snprintf(other, 512, "%.*s%s", (int)(n - m), name, by);
    return true;
}

void tess_model_member(const tess_model *m, const char *name, int64_t member, char out[static 512])
{
    const char *star = strchr(name, '*');
    if (star)
        snprintf(out, 512, "%.*s%lld%s", (int)(star - name), name, (long long)member, star + 1);
    else if (tess_names_have(m->family->stacked, name))
        snprintf(out, 512, "%s.%lld", name, (long long)member);
    else
        snprintf(out, 512, "%s", name);
}
/* The stack that has a tensor of that name, if there is one. */
static bool is_member(const tess_graph *g, const char *name)
{
    for (const char *at = strchr(name, '.'); at; at = strchr(at + 1, '.')) {
        const size_t digits = strspn(at + 1, "0123456789");
        char stack[512];
        if (digits == 0 || digits > 9 || (at[1 + digits] && at[1 + digits] != '.')) continue;
        if (at[1 + digits])
            snprintf(stack, sizeof stack, "%.*s*%s", (int)(at + 1 - name), name, at + 1 + digits);
        else
            snprintf(stack, sizeof stack, "%.*s", (int)(at - name), name);
        const tess_tensor *p = tess_graph_find_param(g, stack);
        if (p && strtoll(at + 1, NULL, 10) < tess_param_members(p)) return true;
    }
    return false;
}

const tess_safetensor *tess_model_tensor(const tess_model *m, const tess_safetensors *set, const char *name)
{
    char full[512], other[512];
    snprintf(full, sizeof full, "%s%s", m->family->prefix, name);
    const tess_safetensor *t = tess_safetensors_find(set, full);
    if (!t) t = tess_safetensors_find(set, name);
    for (int k = 0; k < 4 && !t; k++)
        if (rename_end(k < 2 ? full : name, renamed[k % 2].now, renamed[k % 2].once, other))
            t = tess_safetensors_find(set, other);
    return t;
}
static bool is_param(const tess_graph *g, const char *name)
{
    char other[512];
    if (tess_graph_find_param(g, name) || is_member(g, name)) return true;
    for (int k = 0; k < 2; k++)
        if (rename_end(name, renamed[k].once, renamed[k].now, other) && tess_graph_find_param(g, other)) return true;
    return false;
}
static bool is_fresh(const tess_model *m, const tess_safetensors *set, const char *name)
{
    return tess_names_have(m->family->fresh, name) && !tess_model_tensor(m, set, name);
}

static tess_status load_member(const tess_model *m, const tess_safetensors *set, tess_tensor *p, int64_t member)
{
    char name[512];
    tess_model_member(m, tess_tensor_name(p), member, name);
    const tess_safetensor *t = tess_model_tensor(m, set, name);
    if (!t) return tess_error(TESS_INVALID, m->dir, "no tensor %s%s in the safetensors files", m->family->prefix, name);
    int64_t shape[3];
    int rank = tess_tensor_shape(p, shape);
    bool turned = tess_model_turned_in(m, tess_tensor_name(p), t);
    shape[0] /= tess_param_members(p);
    TESS_TRY(tess_pieces_check(t, rank, shape, turned));
    return tess_pieces_read_rows(t, p, TESS_MASTER, turned, member * shape[0], shape[0]);
}

static tess_status load_param(const tess_model *m, const tess_safetensors *set, tess_tensor *p)
{
    for (int64_t k = 0; k < tess_param_members(p); k++) TESS_TRY(load_member(m, set, p, k));
    return TESS_OK;
}

/* Whether the first, the middle and the last row of two matrices of one shape are the same. */
static tess_status compare_rows(const tess_safetensor *a, const tess_safetensor *b, bool *same)
{
    const int64_t rows = a->dims[0], width = a->dims[1], row[] = {0, rows / 2, rows - 1};
    TESS_FREED float *room = tess_alloc((size_t)(2 * width) * sizeof *room);
    tess_status status = TESS_OK;
    *same = true;
    for (int k = 0; k < 3 && status == TESS_OK && *same; k++) {
        status = tess_safetensor_read(a, row[k] * width, width, room);
        if (status == TESS_OK) status = tess_safetensor_read(b, row[k] * width, width, room + width);
        if (status == TESS_OK) *same = !memcmp(room, room + width, (size_t)width * sizeof *room);
    }
    return status;
}

/* A table over the vocabulary that nothing reads is a copy of one that is read, or the model is not tied. */
static tess_status check_copy(const tess_model *m, const tess_safetensors *set, const tess_graph *g,
                              const tess_safetensor *t)
{
    const char *table = NULL;
    if (t->rank != 2 || t->dims[0] != tess_model_vocab(m)) return TESS_OK;
    for (int k = 0; k < tess_graph_params(g); k++) {
        const char *name = tess_tensor_name(tess_graph_param(g, k));
        const tess_safetensor *u = tess_model_tensor(m, set, name);
        bool same;
        if (!u || u->rank != 2 || memcmp(u->dims, t->dims, 2 * sizeof *t->dims)) continue;
        TESS_TRY(compare_rows(t, u, &same));
        if (same) return TESS_OK;
        table = name;
    }
    if (!table) return TESS_OK;
    return tess_error(TESS_INVALID, t->file,
                      "tensor %s differs from %s, and in config.json the two are one (tie_word_embeddings: false makes "
                      "them two)",
                      t->name, table);
}

/* A tensor that nothing reads would mean that the model is another one. */
static tess_status check_extra(const tess_model *m, const tess_safetensors *set, const tess_graph *g)
{
    const int64_t layers = ((const tess_common *)m->numbers)->layers, further = tess_model_further(m);
    size_t prefix = strlen(m->family->prefix), left = 0;
    for (size_t i = 0; i < tess_safetensors_count(set); i++) {
        const tess_safetensor *t = tess_safetensors_at(set, i);
        const char *name = strncmp(t->name, m->family->prefix, prefix) ? t->name : t->name + prefix;
        if (is_param(g, name)) continue;
        const int64_t layer = strncmp(name, "layers.", 7) ? -1 : strtoll(name + 7, NULL, 10);
        if (layer >= layers && layer < layers + further)
            left++;
        else if (tess_names_have(m->family->extra, name))
            TESS_TRY(check_copy(m, set, g, t));
        else
            return tess_error(TESS_INVALID, t->file,
                              "tensor %s is no parameter of this %s (config.json and weights are of "
                              "different models?)",
                              t->name, m->family->type);
    }
    if (left && tess_rank() == 0)
        tess_note(
            "%zu tensors of layers from %lld on, which guess further tokens, are left alone: they are not trained",
            left, (long long)layers);
    return TESS_OK;
}

/* Where files lack a head that is new, all is drawn before what they have is read over it. */
static tess_status draw_fresh(const tess_model *m, const tess_safetensors *set, tess_graph *g, uint64_t seed)
{
    bool any = false;
    for (int k = 0; k < tess_graph_params(g); k++) {
        const char *name = tess_tensor_name(tess_graph_param(g, k));
        if (tess_lora_part(name) || !is_fresh(m, set, name)) continue;
        if (tess_rank() == 0) tess_note("%s is not in %s: it is drawn", name, m->dir);
        any = true;
    }
    return any ? tess_graph_init(g, seed) : TESS_OK;
}

static bool is_stack(const void *list, const char *name)
{
    return tess_names_have(list, name);
}

tess_status tess_model_tensors(const tess_model *m, tess_safetensors **set)
{
    TESS_TRY(tess_safetensors_open(m->dir, set));
    tess_status status = tess_safetensors_scale(*set);
    if (status == TESS_OK) status = tess_safetensors_unstack(*set, is_stack, m->family->stacked);
    if (status != TESS_OK) tess_safetensors_close(*set);
    return status;
}

/* Adapters may be trained beside the codes themselves. */
static void say_codes(const tess_model *m, const tess_safetensors *set)
{
    size_t k = 0;
    while (k < tess_safetensors_count(set) && tess_safetensors_at(set, k)->dtype != TESS_ST_CODES) k++;
    if (tess_rank() == 0 && m->lora && m->lora->base == TESS_F32 && k < tess_safetensors_count(set))
        tess_note("%s has quantized matrices, which become plain numbers (lora.base=nf4 holds them in 4 bits)", m->dir);
}

static tess_status load_weights(const tess_model *m, tess_graph *g, uint64_t seed)
{
    tess_safetensors *set;
    TESS_TRY(tess_model_tensors(m, &set));
    tess_status status = check_extra(m, set, g);
    say_codes(m, set);
    if (status == TESS_OK) status = draw_fresh(m, set, g, seed);
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++)
        if (!tess_lora_part(tess_tensor_name(tess_graph_param(g, k))) &&
            !is_fresh(m, set, tess_tensor_name(tess_graph_param(g, k))))
            status = load_param(m, set, tess_graph_param(g, k));
    tess_safetensors_close(set);
    return status;
}

/* The masters of a checkpoint, which has no adapters of its own: those of one that has are read over its base. */
static tess_status read_states(const tess_model *m, tess_graph *g)
{
    return tess_states_read(m->states, m->dir, g, 1, m->lora ? TESS_STATES_BASE : TESS_STATES_ALL);
}

static tess_status load(const tess_model *m, tess_graph *g, uint64_t seed)
{
    if (!m) return tess_error(TESS_INVALID, "model", "is NULL");
    if (!tess_model_has_weights(m)) {
        TESS_TRY(tess_graph_init(g, seed));
        if (!m->lora) return TESS_OK;
    } else
        TESS_TRY(tess_ranks_agree(m->states   ? read_states(m, g)
                                  : m->import ? tess_import_load(m->import, g)
                                              : load_weights(m, g, seed)));
    if (m->lora) TESS_TRY(tess_ranks_agree(tess_lora_load(m, g, seed)));
    return tess_graph_round(g);
}

tess_status tess_model_load(const tess_model *m, tess_graph *g, uint64_t seed)
{
    return tess_ranks_agree(load(m, g, seed));
}

/* ---- saving ---- */

static const tess_safetensors_dtype stored_as[] = {
    [TESS_SAVE_FP32] = TESS_ST_F32, [TESS_SAVE_BF16] = TESS_ST_BF16, [TESS_SAVE_FP16] = TESS_ST_F16};

/* As the tensors that it is in a Hugging Face file, or in PEFT's. */
static void declare(tess_safetensors_writer *w, const tess_model *m, const tess_tensor *p)
{
    const char *of = tess_tensor_name(p);
    int64_t ours[3], shape[3];
    const int rank = tess_tensor_shape(p, ours);
    const bool turned = tess_model_turned(m, of);
    ours[0] /= tess_param_members(p);
    shape[0] = turned ? ours[1] : ours[0];
    shape[1] = turned ? ours[0] : ours[1];
    const bool stacked = tess_names_have(m->family->stacked, of), channels = tess_names_have(m->family->channels, of);
    const tess_safetensors_dtype as = tess_names_have(m->family->wide, of) ? TESS_ST_F32 : stored_as[m->stored];
    if (channels) shape[2] = shape[1], shape[1] = 1;
    for (int64_t k = 0; k < (stacked ? 1 : tess_param_members(p)); k++) {
        char member[512], full[512];
        tess_model_member(m, of, k, member);
        tess_lora_file_name(m, stacked ? of : member, full);
        TESS_FREED char *name = tess_format("%s%s", m->lora ? TESS_LORA_PREFIX : "", full);
        if (stacked)
            tess_safetensors_declare_stack(w, name, as, tess_param_members(p), shape);
        else
            tess_safetensors_declare_floats(w, name, as, rank + channels, shape);
    }
}

bool tess_model_writes(const tess_model *m, const tess_tensor *p)
{
    return !m->lora || tess_lora_has(m, p);
}

tess_safetensors_writer *tess_model_writer(const tess_model *m, const tess_graph *g, const char *dir)
{
    tess_safetensors_writer *w = tess_safetensors_writer_new(dir, m->lora ? "adapter_model" : "model",
                                                             m->lora ? UINT64_MAX : TESS_SAFETENSORS_SHARD);
    for (int k = 0; k < tess_graph_params(g); k++)
        if (tess_model_writes(m, tess_graph_param(g, k))) declare(w, m, tess_graph_param(g, k));
    return w;
}

static tess_status save_weights(const tess_model *m, tess_graph *g, const char *dir)
{
    tess_safetensors_writer *w = tess_model_writer(m, g, dir);
    tess_status status = tess_graph_together(g);
    if (status == TESS_OK) status = tess_safetensors_writer_begin(w);
    if (status == TESS_OK) status = tess_pieces_settle(g);
    size_t tensor = 0;
    for (int k = 0; k < tess_graph_params(g) && status == TESS_OK; k++) {
        tess_tensor *p = tess_graph_param(g, k);
        if (!tess_model_writes(m, p)) continue;
        status = tess_pieces_write_members(w, tensor, p, TESS_MASTER, tess_model_turned(m, tess_tensor_name(p)));
        tensor += (size_t)tess_param_members(p);
    }
    return tess_safetensors_writer_end(w, status);
}

static tess_status make_directory(const char *dir)
{
    return mkdir(dir, 0777) && errno != EEXIST ? tess_error(TESS_FAILED, dir, "cannot be made: %s", strerror(errno))
                                               : TESS_OK;
}

static tess_status save(const tess_model *m, tess_graph *g, const char *dir)
{
    const bool leads = tess_rank() == 0;
    if (m && g && dir && m->import) return tess_import_save(m->import, g, dir);
    if (!m || !g || !dir) return tess_error(TESS_INVALID, "model", "the model, its graph or the directory is NULL");
    TESS_TRY(tess_ranks_agree(leads ? make_directory(dir) : TESS_OK));
    TESS_TRY(save_weights(m, g, dir));
    return leads ? tess_model_save_rest(m, dir) : TESS_OK;
}

tess_status tess_model_save(const tess_model *m, tess_graph *g, const char *dir)
{
    return tess_ranks_agree(save(m, g, dir));
}
