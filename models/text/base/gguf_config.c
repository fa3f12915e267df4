/* What a GGUF file calls numbers and tensors of a model, and config.json made of them. Only kinds of model are here
 * that are all there in such a file: a key of the model's that is not known might change the arithmetic, and is an
 * error. */
#include "models/text/base/gguf.h"
#include "models/text/base/mapped.h"
#include <math.h>
#include <string.h>

enum { LLAMA = 1, QWEN2 = 2, QWEN3 = 4, OLMO2 = 8, GRANITE = 16, GPT2 = 32 };
enum { DECODERS = LLAMA | QWEN2 | QWEN3 | OLMO2 | GRANITE, ALL = DECODERS | GPT2, BEFORE = DECODERS & ~OLMO2 };

/* A Mistral is a Llama there. */
static const tess_gguf_kind kinds[] = {
    {"llama", "llama", "LlamaForCausalLM", LLAMA, true},  {"llama", "mistral", "MistralForCausalLM", LLAMA, true},
    {"qwen2", "qwen2", "Qwen2ForCausalLM", QWEN2, false}, {"qwen3", "qwen3", "Qwen3ForCausalLM", QWEN3, false},
    {"olmo2", "olmo2", "Olmo2ForCausalLM", OLMO2, false}, {"granite", "granite", "GraniteForCausalLM", GRANITE, true},
    {"gpt2", "gpt2", "GPT2LMHeadModel", GPT2, false},
};
enum { KINDS = sizeof kinds / sizeof *kinds };

const tess_gguf_key tess_gguf_keys[] = {
    {"vocab_size", "vocab_size", ALL},
    {"context_length", "max_position_embeddings", ALL},
    {"embedding_length", "hidden_size", ALL},
    {"block_count", "num_hidden_layers", ALL},
    {"feed_forward_length", "intermediate_size", DECODERS},
    {"feed_forward_length", "n_inner", GPT2},
    {"attention.head_count", "num_attention_heads", ALL},
    {"attention.head_count_kv", "num_key_value_heads", DECODERS},
    {"attention.key_length", "head_dim", DECODERS},
    {"attention.value_length", "head_dim", DECODERS},
    {"rope.dimension_count", "head_dim", DECODERS},
    {"attention.layer_norm_rms_epsilon", "rms_norm_eps", DECODERS},
    {"attention.layer_norm_epsilon", "layer_norm_epsilon", GPT2},
    {"rope.freq_base", "rope_theta", DECODERS},
    {"rope.scaling.type", "rope_parameters.rope_type", DECODERS},
    {"rope.scaling.factor", "rope_parameters.factor", DECODERS},
    {"rope.scaling.original_context_length", "rope_parameters.original_max_position_embeddings", DECODERS},
    {"embedding_scale", "embedding_multiplier", GRANITE},
    {"residual_scale", "residual_multiplier", GRANITE},
    {"attention.scale", "attention_multiplier", GRANITE},
    {"logit_scale", "logits_scaling", GRANITE},
    {NULL, NULL, 0},
};
/* What else there may be, and changes nothing. */
static const char ignored[] = " rope.scaling.finetuned tensor_data_layout ";

/* A star is a layer's number. */
static const struct {
    const char *gguf, *ours;
    unsigned of;
} names[] = {
    {"token_embd", "embed_tokens", DECODERS},
    {"output_norm", "norm", DECODERS},
    {"output", "lm_head", ALL},
    {"blk.*.attn_norm", "layers.*.input_layernorm", BEFORE},
    {"blk.*.attn_q", "layers.*.self_attn.q_proj", DECODERS},
    {"blk.*.attn_k", "layers.*.self_attn.k_proj", DECODERS},
    {"blk.*.attn_v", "layers.*.self_attn.v_proj", DECODERS},
    {"blk.*.attn_output", "layers.*.self_attn.o_proj", DECODERS},
    {"blk.*.attn_q_norm", "layers.*.self_attn.q_norm", QWEN3 | OLMO2},
    {"blk.*.attn_k_norm", "layers.*.self_attn.k_norm", QWEN3 | OLMO2},
    {"blk.*.ffn_norm", "layers.*.post_attention_layernorm", BEFORE},
    {"blk.*.post_attention_norm", "layers.*.post_attention_layernorm", OLMO2},
    {"blk.*.post_ffw_norm", "layers.*.post_feedforward_layernorm", OLMO2},
    {"blk.*.ffn_gate", "layers.*.mlp.gate_proj", DECODERS},
    {"blk.*.ffn_up", "layers.*.mlp.up_proj", DECODERS},
    {"blk.*.ffn_down", "layers.*.mlp.down_proj", DECODERS},
    {"token_embd", "wte", GPT2},
    {"position_embd", "wpe", GPT2},
    {"output_norm", "ln_f", GPT2},
    {"blk.*.attn_norm", "h.*.ln_1", GPT2},
    {"blk.*.attn_qkv", "h.*.attn.c_attn", GPT2},
    {"blk.*.attn_output", "h.*.attn.c_proj", GPT2},
    {"blk.*.ffn_norm", "h.*.ln_2", GPT2},
    {"blk.*.ffn_up", "h.*.mlp.c_fc", GPT2},
    {"blk.*.ffn_down", "h.*.mlp.c_proj", GPT2},
};
enum { NAMES = sizeof names / sizeof *names };

const tess_gguf_kind *tess_gguf_kind_of(const char *name, const char *type)
{
    for (size_t i = 0; i < KINDS; i++)
        if ((name && !strcmp(kinds[i].name, name)) || (type && !strcmp(kinds[i].type, type))) return &kinds[i];
    return NULL;
}

bool tess_gguf_rename(const tess_gguf_kind *k, bool back, const char *name, char out[static 512])
{
    for (size_t i = 0; i < NAMES; i++) {
        const char *from = back ? names[i].ours : names[i].gguf, *to = back ? names[i].gguf : names[i].ours;
        const char *star = strchr(from, '*'), *digits = name + (star ? star - from : 0), *rest = name;
        if (!(names[i].of & k->bit) || strncmp(name, from, star ? (size_t)(star - from) : strlen(from))) continue;
        const int layer = star ? (int)strspn(digits, "0123456789") : 0;
        rest = star ? digits + layer : name + strlen(from);
        const size_t behind = star ? strlen(star + 1) : 0;
        if ((star && (!layer || strncmp(rest, star + 1, behind))) || rest[behind] != '.') continue;
        const char *at = strchr(to, '*');
        const int before = at ? (int)(at - to) : (int)strlen(to);
        return snprintf(out, 512, "%.*s%.*s%s%s", before, to, layer, digits, at ? at + 1 : "", rest + behind) < 512;
    }
    return false;
}

float tess_gguf_stretch(double base, int64_t dim, int64_t pair, double factor, double low, double high, double length)
{
    const double turns = length / (2 * M_PI) * pow(base, -2.0 * (double)pair / (double)dim);
    if (turns > high) return 1;
    if (turns < low) return (float)factor;
    const double share = (turns - low) / (high - low);
    return (float)(1 / ((1 - share) / factor + share));
}

/* ---- config.json ---- */

static int64_t whole(const json_t *root, const char *name)
{
    return json_integer_value(json_object_get(root, name));
}

/* A field of config.json; one within an object has a dot in its name. One that is there already must be the same. */
static tess_status set_field(const char *file, const char *key, json_t *root, const char *field, const json_t *value)
{
    const char *dot = strchr(field, '.');
    json_t *in = root;
    if (dot && !(in = json_object_get(root, "rope_scaling")))
        json_object_set_new(root, "rope_scaling", in = json_object());
    const json_t *there = json_object_get(in, dot ? dot + 1 : field);
    if (there && !json_equal(there, value))
        return tess_file_error(file, key, "is not what other keys say of %s, which is not supported", field);
    json_object_set(in, dot ? dot + 1 : field, (json_t *)value);
    return TESS_OK;
}

static tess_status set_fields(const char *file, const tess_gguf *g, const tess_gguf_kind *k, json_t *root)
{
    const char *key;
    json_t *value;
    const size_t n = strlen(k->name);
    json_object_foreach(g->meta, key, value)
    {
        char word[128];
        if (strncmp(key, k->name, n) || key[n] != '.') continue;
        bool known = snprintf(word, sizeof word, " %s ", key + n + 1) < (int)sizeof word && strstr(ignored, word);
        for (const tess_gguf_key *of = tess_gguf_keys; of->gguf; of++) {
            if (!(of->of & k->bit) || strcmp(of->gguf, key + n + 1)) continue;
            TESS_TRY(set_field(file, key, root, of->field, value));
            known = true;
        }
        if (!known && !json_is_false(value) && !(json_is_integer(value) && !json_integer_value(value)))
            return tess_file_error(file, key, "is not known of a %s: it might change the arithmetic", k->name);
    }
    return TESS_OK;
}

/* Positions that rope_freqs.weight slows down: those of Llama 3.1 and later by its factor, or any. */
static tess_status set_factors(const char *file, const tess_gguf *g, const uint8_t *bytes, size_t n, json_t *root)
{
    const json_t *t = json_object_get(g->tensors, "rope_freqs.weight");
    const int64_t dim = whole(root, "head_dim"), pairs = whole(t, "type") ? -1 : dim / 2;
    const uint64_t offset = (uint64_t)whole(t, "offset");
    const json_t *shape = json_object_get(t, "shape");
    if (!t) return TESS_OK;
    if (json_array_size(shape) != 1 || pairs < 1 || json_integer_value(json_array_get(shape, 0)) != pairs ||
        g->data > n || offset > n - g->data || (uint64_t)pairs > (n - g->data - offset) / sizeof(float))
        return tess_file_error(file, "rope_freqs.weight", "is no F32 of a number a pair, %lld, within the file",
                               (long long)dim / 2);
    json_t *list = json_array(), *rope;
    float at = 0, last;
    bool usual = true;
    const uint8_t *data = bytes + g->data + offset;
    memcpy(&last, data + 4 * (pairs - 1), sizeof last);
    for (int64_t i = 0; i < pairs; i++) {
        memcpy(&at, data + 4 * i, sizeof at);
        const double base = json_number_value(json_object_get(root, "rope_theta"));
        usual &= fabsf(at / tess_gguf_stretch(base, dim, i, (double)last, 1, 4, 8192) - 1) < 1e-5f;
        json_array_append_new(list, json_real((double)at));
    }
    if (usual)
        rope = json_pack("{ss sf sf sf si}", "rope_type", "llama3", "factor", (double)last, "low_freq_factor", 1.0,
                         "high_freq_factor", 4.0, "original_max_position_embeddings", 8192);
    else
        rope = json_pack("{ss sO sO sf}", "rope_type", "longrope", "short_factor", list, "long_factor", list,
                         "attention_factor", 1.0);
    json_decref(list);
    json_object_set_new(root, "rope_scaling", rope);
    return TESS_OK;
}

/* What is there where the file does not say it. */
static void set_rest(const tess_gguf *g, const tess_gguf_kind *k, json_t *root)
{
    const json_t *table = json_object_get(json_object_get(g->tensors, "token_embd.weight"), "shape");
    const int64_t type = whole(g->meta, "general.file_type"), heads = whole(root, "num_attention_heads");
    json_object_set(root, "vocab_size", json_array_get(table, 0));
    json_object_set_new(root, "tie_word_embeddings", json_boolean(!json_object_get(g->tensors, "output.weight")));
    json_object_set_new(root, "torch_dtype", json_string(type == 0 ? "float32" : type == 1 ? "float16" : "bfloat16"));
    if (k->bit == GPT2) return;
    TESS_FREED_JSON json_t *usual =
        json_pack("{sI sI sf}", "num_key_value_heads", heads, "head_dim",
                  heads > 0 ? whole(root, "hidden_size") / heads : 0, "rope_theta", 10000.0);
    json_object_update_missing(root, usual);
    if (k->bit & (LLAMA | GRANITE))
        json_object_set_new(root, "mlp_bias", json_boolean(json_object_get(g->tensors, "blk.0.ffn_gate.bias")));
    if (k->bit != QWEN2)
        json_object_set_new(root, "attention_bias", json_boolean(json_object_get(g->tensors, "blk.0.attn_q.bias")));
    const char *rope = tess_json_text(json_object_get(root, "rope_scaling"), "rope_type");
    if (rope && !strcmp(rope, "none")) json_object_del(root, "rope_scaling");
}

/* Ids of tokens that begin and end texts. */
static void set_ends(const json_t *meta, json_t *root)
{
    json_t *bos = json_object_get(meta, "tokenizer.ggml.bos_token_id"),
           *eos = json_object_get(meta, "tokenizer.ggml.eos_token_id"),
           *eot = json_object_get(meta, "tokenizer.ggml.eot_token_id");
    const bool two = eos && eot && !json_equal(eos, eot);
    if (bos) json_object_set(root, "bos_token_id", bos);
    if (eos) json_object_set_new(root, "eos_token_id", two ? json_pack("[OO]", eos, eot) : json_incref(eos));
}

static tess_status make_config(const char *file, const tess_gguf *g, const uint8_t *bytes, size_t n, json_t *root)
{
    const char *name = tess_json_text(g->meta, "general.architecture");
    const tess_gguf_kind *k = name ? tess_gguf_kind_of(name, NULL) : NULL;
    if (!k)
        return tess_file_error(file, "general.architecture", "%s is not read of GGUF (known: " TESS_GGUF_KNOWN ")",
                               name ? name : "(none)");
    json_object_set_new(root, "model_type", json_string(k->type));
    json_object_set_new(root, "architectures", json_pack("[s]", k->architecture));
    TESS_TRY(set_fields(file, g, k, root));
    set_rest(g, k, root);
    set_ends(g->meta, root);
    return set_factors(file, g, bytes, n, root);
}

tess_status tess_gguf_config(const char *file, const tess_gguf *g, const uint8_t *bytes, size_t n, json_t **root)
{
    *root = json_object();
    const tess_status status = make_config(file, g, bytes, n, *root);
    if (status != TESS_OK) json_decref(*root), *root = NULL;
    return status;
}

/* ---- files of a directory ---- */

static json_t *make_tokenizer_config(const json_t *meta)
{
    json_t *root = json_object(), *template = json_object_get(meta, "tokenizer.chat_template");
    const json_t *tokens = json_object_get(meta, "tokenizer.ggml.tokens");
    static const char *const special[] = {"bos_token", "eos_token"};
    if (json_is_string(template)) json_object_set(root, "chat_template", template);
    for (size_t i = 0; i < 2; i++) {
        char key[48];
        snprintf(key, sizeof key, "tokenizer.ggml.%s_id", special[i]);
        const json_t *id = json_object_get(meta, key);
        json_t *text = json_is_integer(id) ? json_array_get(tokens, (size_t)json_integer_value(id)) : NULL;
        if (json_is_string(text)) json_object_set(root, special[i], text);
    }
    return root;
}

bool tess_gguf_has(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (!slash || (strcmp(slash, "/config.json") && strcmp(slash, "/tokenizer_config.json"))) return false;
    TESS_FREED char *file = tess_format("%.*s", (int)(slash - path), path);
    return tess_gguf_is(file);
}

tess_status tess_gguf_beside(const char *path, json_t **root)
{
    const char *slash = strrchr(path, '/');
    TESS_FREED char *file = tess_format("%.*s", (int)(slash - path), path);
    tess_map map = {0};
    tess_gguf g = {0};
    tess_status status = tess_map_open(file, &map);
    if (status == TESS_OK) status = tess_gguf_read(file, map.data, map.bytes, &g);
    *root = NULL;
    if (status == TESS_OK && !strcmp(slash, "/config.json"))
        status = tess_gguf_config(file, &g, map.data, map.bytes, root);
    else if (status == TESS_OK)
        *root = make_tokenizer_config(g.meta);
    tess_gguf_free(&g);
    tess_map_close(&map);
    return status;
}
