/* Reading a Hugging Face config.json by a family's table of fields: every field is known or an error. */
#include "models/networks/model/model.h"
#include "models/text/base/text.h"
#include <stdlib.h>
#include <string.h>

/* The keys that config.json of each family may have. */
#define AT(member) offsetof(tess_common, member)
static const tess_field common_fields[] = {
    {"initializer_range", TESS_FIELD_TRAINING, AT(init), 0.02, 0, NULL},
    {"tie_word_embeddings", TESS_FIELD_BOOL, AT(tied), 1, 0, NULL},
    /* What would make it another network. */
    {"add_cross_attention", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"is_encoder_decoder", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"is_decoder", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"cross_attention_hidden_size", TESS_FIELD_ONLY, 0, 0, 0, "null"},
    {"tie_encoder_decoder", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"chunk_size_feed_forward", TESS_FIELD_ONLY, 0, 0, 0, "0"},
    {"pruned_heads", TESS_FIELD_ONLY, 0, 0, 0, "{}"},
    {"quantization_config", TESS_FIELD_OBJECT, 0, 0, 0, NULL},
    {"quantization_config.quant_method", TESS_FIELD_ONLY, 0, 0, 0, "\"bitsandbytes\""},
    {"rope_interleaved", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {"use_mrope", TESS_FIELD_ONLY, 0, 0, 0, "false"},
    {0}};
static const char common_ignored[] =
    /* Where it came from, and how a program that reads it holds it. */
    "_* unsloth_* architectures torch_dtype dtype transformers_version attn_implementation use_flash_attn "
    "use_flash_attention use_flash_attention_2 gradient_checkpointing torchscript use_bfloat16 tf_legacy_loss "
    "tokenizer_class task_specific_params auto_map transformers.js_config is_llama_config "
    "keys_to_ignore_at_inference neftune_noise_alpha "
    /* The weights' files say it of each matrix. */
    "quantization_config.* "
    /* The tokenizer's, or of how it was trained: the library reads none of them. */
    "max_sequence_length model_max_length tokenizer_model_max_length tokenizer_padding_side "
    /* It is only the order of sums, in a library that made them piece by piece. */
    "pretraining_tp "
    /* What else a call gives back. */
    "use_cache return_dict output_attentions output_hidden_states output_scores "
    /* Tokens by their meaning, and names of classes: data is ids. */
    "bos_token_id eos_token_id pad_token_id sep_token_id unk_token_id decoder_start_token_id id2label label2id "
    "problem_type "
    "finetuning_task "
    /* Generation's, which older files carry. */
    "prefix max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature "
    "top_k top_p typical_p repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size "
    "bad_words_ids num_return_sequences return_dict_in_generate forced_bos_token_id forced_eos_token_id "
    "remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens";

enum { TABLES = 4, MOST = 256 };

/* Its own fields, those of its kind, of rotary positions, and everybody's; a name that stands in several is what the
 * first says. */
static const tess_field *table(const tess_family *f, int k)
{
    static const tess_field none[] = {{0}};
    const tess_field *const all[TABLES] = {f->field, f->shared, f->rotary, common_fields};
    return all[k] ? all[k] : none;
}
/* The names that are ignored, behind a table of fields. */
static const char *ignored(const tess_family *f, int k)
{
    return k == 0 ? f->ignored : k == TABLES - 1 ? common_ignored : NULL;
}

/* The length of the word at *word, behind the blank that it begins with. */
static size_t next_word(const char **word)
{
    *word += **word == ' ';
    return strcspn(*word, " ");
}

static const tess_field *find(const tess_family *f, const char *name)
{
    static const tess_field nothing = {.kind = TESS_FIELD_IGNORED};
    for (int k = 0; k < TABLES; k++) {
        for (const tess_field *d = table(f, k); d->name; d++)
            if (!strcmp(d->name, name)) return d->kind == TESS_FIELD_ALIAS ? find(f, d->text) : d;
        if (tess_names_have(ignored(f, k), name)) return &nothing;
    }
    return NULL;
}

int64_t tess_model_trained_positions(const tess_model *m)
{
    const tess_field *d = find(m->family, "max_position_embeddings");
    int64_t positions = 0;
    if (d && (d->kind == TESS_FIELD_INT || d->kind == TESS_FIELD_OPTIONAL))
        memcpy(&positions, m->numbers + d->offset, sizeof positions);
    return positions;
}

bool tess_fields_same(const tess_family *f, const char *a, const char *b)
{
    const tess_field *d = find(f, a);
    return !strcmp(a, b) || (d && d->kind != TESS_FIELD_IGNORED && d == find(f, b));
}

/* Copies the field that an unknown name was meant to be; false when there is no telling. */
static bool meant(const tess_family *f, const char *name, char near[static 48])
{
    const char *names[MOST];
    char words[MOST][48];
    size_t n = 0;
    for (int k = 0; k < TABLES; k++) {
        for (const tess_field *d = table(f, k); d->name && n < MOST; d++) names[n++] = d->name;
        for (const char *word = ignored(f, k); word && *word && n < MOST;) {
            const size_t length = next_word(&word);
            snprintf(words[n], sizeof words[n], "%.*s", (int)length, word);
            names[n] = words[n];
            n += !tess_pattern_is(words[n]);
            word += length;
        }
    }
    const char *found = tess_nearest(name, names, n);
    if (found) snprintf(near, 48, "%s", found);
    return found;
}

/* A name that no table has. What is null or false asks for nothing, unless it is a field of ours spelled wrong. */
static tess_status unknown(const tess_family *f, const char *where, const char *name, const json_t *value)
{
    char near[48];
    if (meant(f, name, near))
        return tess_error(TESS_INVALID, where, "%s: unknown field of a %s (did you mean %s?)", name, f->type, near);
    if (json_is_null(value) || json_is_false(value)) return TESS_OK;
    return tess_error(TESS_INVALID, where,
                      "%s: unknown field of a %s, it might change the arithmetic (model.%s=null leaves it out)", name,
                      f->type, name);
}

bool tess_field_takes_null(const tess_family *f, const char *name)
{
    const tess_field *d = find(f, name);
    return d && (d->kind == TESS_FIELD_OPTIONAL || d->kind == TESS_FIELD_OPTIONAL_REAL ||
                 d->kind == TESS_FIELD_TRAINING_OR_NULL || d->kind == TESS_FIELD_OBJECT || d->kind == TESS_FIELD_LIST ||
                 d->kind == TESS_FIELD_LAYERS || d->kind == TESS_FIELD_LAYER_NUMBERS);
}

static tess_status wrong(const char *where, const char *name, const json_t *value, const char *expected)
{
    TESS_FREED char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
    const bool few = !strncmp(name, "quantization_config", 19); /* as whoever comes from QLoRA names it */
    return tess_error(TESS_INVALID, where, "%s: %.200s (expected %s%s)", name, text ? text : "?", expected,
                      few ? "; name the model in 16 bits, whose matrices lora.base=nf4 holds in 4 while it is trained"
                          : "");
}

static const struct {
    const char *name;
    tess_activation kind;
} activations[] = {{"gelu_new", TESS_ACTIVATION_GELU_TANH},
                   {"gelu_pytorch_tanh", TESS_ACTIVATION_GELU_TANH},
                   {"gelu_fast", TESS_ACTIVATION_GELU_TANH},
                   {"gelu", TESS_ACTIVATION_GELU},
                   {"silu", TESS_ACTIVATION_SILU},
                   {"swish", TESS_ACTIVATION_SILU},
                   {"relu", TESS_ACTIVATION_RELU}};
enum { ACTIVATIONS = sizeof activations / sizeof activations[0] };

static tess_status read_activation(const char *where, const char *name, const json_t *value, int64_t *out)
{
    for (size_t i = 0; i < ACTIVATIONS; i++)
        if (json_is_string(value) && !strcmp(json_string_value(value), activations[i].name)) {
            *out = activations[i].kind;
            return TESS_OK;
        }
    return wrong(where, name, value, "silu, swish, relu, gelu, gelu_new or gelu_pytorch_tanh");
}

/* The k-th of the words between blanks; its length, 0: there are no more. */
static size_t word_of(const char *words, int64_t k, const char **word)
{
    for (*word = words; k > 0 && **word; k--) *word += strcspn(*word, " "), *word += **word == ' ';
    return strcspn(*word, " ");
}

static tess_status read_choice(const char *where, const char *name, const json_t *value, const char *words,
                               int64_t *out)
{
    char number[24] = "";
    if (json_is_integer(value)) snprintf(number, sizeof number, "%lld", (long long)json_integer_value(value));
    const char *given = json_is_string(value) ? json_string_value(value) : number, *word;
    size_t n;
    for (*out = 0; (n = word_of(words, *out, &word)) > 0; ++*out)
        if (strlen(given) == n && !strncmp(word, given, n)) return TESS_OK;
    return wrong(where, name, value, words);
}

/* One word for each layer. */
static tess_status read_layers(const char *where, const char *name, const json_t *value, const char *words,
                               tess_layers *out)
{
    if (json_is_null(value)) return TESS_OK;
    if (!json_is_array(value)) return wrong(where, name, value, "a list of a word a layer");
    if (json_array_size(value) > TESS_MOST_LAYERS)
        return tess_error(TESS_INVALID, where, "%s has %zu words (expected at most %d)", name, json_array_size(value),
                          TESS_MOST_LAYERS);
    *out = (tess_layers){.given = true};
    for (size_t i = 0; i < json_array_size(value); i++) {
        int64_t word;
        TESS_TRY(read_choice(where, name, json_array_get(value, i), words, &word));
        if (word) tess_layer_set(out, (int64_t)i);
    }
    return TESS_OK;
}

/* The numbers of some layers. Those that there are not say nothing, as in transformers. */
static tess_status read_numbers(const char *where, const char *name, const json_t *value, tess_layers *out)
{
    if (json_is_null(value)) return TESS_OK;
    if (!json_is_array(value)) return wrong(where, name, value, "a list of numbers of layers, the first 0");
    *out = (tess_layers){.given = true};
    for (size_t i = 0; i < json_array_size(value); i++) {
        const json_t *number = json_array_get(value, i);
        if (!json_is_integer(number) || json_integer_value(number) < 0)
            return wrong(where, name, value, "a list of numbers of layers, the first 0");
        if (json_integer_value(number) < TESS_MOST_LAYERS) tess_layer_set(out, json_integer_value(number));
    }
    return TESS_OK;
}

/* Reads one number for each pair of rotary dimensions, at most TESS_MOST_PAIRS of them. */
static tess_status read_list(const tess_field *d, const char *where, const char *name, const json_t *value,
                             tess_list *out)
{
    char expected[64];
    snprintf(expected, sizeof expected, "a list of up to %d numbers above %g", TESS_MOST_PAIRS, d->least);
    const size_t count = json_array_size(value);
    bool good = json_is_null(value) || (json_is_array(value) && count <= TESS_MOST_PAIRS);
    for (size_t i = 0; i < count && good; i++) {
        const double number = json_number_value(json_array_get(value, i)); /* 0: it is none */
        good = number > d->least;
        out->value[i] = (float)number;
    }
    out->count = (int64_t)count;
    return good ? TESS_OK : wrong(where, name, value, expected);
}

static tess_status read_only(const char *where, const char *name, const json_t *value, const char *text)
{
    TESS_FREED_JSON json_t *only = json_loads(text, JSON_DECODE_ANY, NULL);
    bool same = json_equal(value, only) || (json_is_false(only) && json_is_null(value));
    return same ? TESS_OK : wrong(where, name, value, text);
}

static bool is_real(const tess_field *d)
{
    return d->kind == TESS_FIELD_REAL || d->kind == TESS_FIELD_OPTIONAL_REAL || d->kind == TESS_FIELD_TRAINING ||
           d->kind == TESS_FIELD_TRAINING_OR_NULL;
}
static bool is_number(const tess_field *d)
{
    return d->kind <= TESS_FIELD_CHOICE;
}
static bool is_layers(const tess_field *d)
{
    return d->kind == TESS_FIELD_LAYERS || d->kind == TESS_FIELD_LAYER_NUMBERS;
}

static tess_status read_field(const tess_field *d, const char *where, const char *name, const json_t *value,
                              char *numbers)
{
    const bool null = json_is_null(value);
    char expected[64] = "true or false";
    int64_t whole = json_integer_value(value); /* 0 of null, as is the real */
    double real = json_number_value(value);
    bool good = false;
    switch (d->kind) {
    case TESS_FIELD_OPTIONAL: /* null where it follows from other fields */
    case TESS_FIELD_INT:
        snprintf(expected, sizeof expected, "a whole number of at least %g", d->least);
        good = json_is_integer(value) ? (double)whole >= d->least && whole <= 1000000000
                                      : null && d->kind == TESS_FIELD_OPTIONAL;
        break;
    case TESS_FIELD_OPTIONAL_REAL:
        snprintf(expected, sizeof expected, "a number above %g, or null", d->least);
        good = null || (json_is_number(value) && real > d->least);
        break;
    case TESS_FIELD_TRAINING_OR_NULL:
    case TESS_FIELD_REAL:
    case TESS_FIELD_TRAINING:
        snprintf(expected, sizeof expected, "a number of at least %g", d->least);
        good = json_is_number(value) ? real >= d->least : null && d->kind == TESS_FIELD_TRAINING_OR_NULL;
        if (null) real = -1;
        break;
    case TESS_FIELD_BOOL:
        whole = json_is_true(value);
        good = json_is_boolean(value);
        break;
    case TESS_FIELD_MEMBERS:
        snprintf(expected, sizeof expected, "an object of at least %g members", d->least);
        whole = (int64_t)json_object_size(value);
        good = json_is_object(value) && (double)whole >= d->least;
        break;
    case TESS_FIELD_ACTIVATION:
        TESS_TRY(read_activation(where, name, value, &whole));
        good = true;
        break;
    case TESS_FIELD_CHOICE:
        TESS_TRY(read_choice(where, name, value, d->text, &whole));
        good = true;
        break;
    case TESS_FIELD_LAYERS:
        return read_layers(where, name, value, d->text, (tess_layers *)(void *)(numbers + d->offset));
    case TESS_FIELD_LAYER_NUMBERS:
        return read_numbers(where, name, value, (tess_layers *)(void *)(numbers + d->offset));
    case TESS_FIELD_LIST:
        return read_list(d, where, name, value, (tess_list *)(void *)(numbers + d->offset));
    case TESS_FIELD_ONLY:
        return read_only(where, name, value, d->text);
    case TESS_FIELD_OBJECT:
    case TESS_FIELD_ALIAS:
    case TESS_FIELD_IGNORED:
        return TESS_OK;
    }
    if (!good) return wrong(where, name, value, expected);
    memcpy(numbers + d->offset, is_real(d) ? (const void *)&real : &whole, sizeof whole);
    return TESS_OK;
}

/* Whether the field is of another value in these structs. */
static bool differs(const tess_field *d, const char *a, const char *b)
{
    const size_t words = d->offset + offsetof(tess_layers, second);
    if (is_number(d)) return memcmp(a + d->offset, b + d->offset, sizeof(int64_t));
    if (d->kind == TESS_FIELD_LIST) return memcmp(a + d->offset, b + d->offset, sizeof(tess_list));
    return is_layers(d) && memcmp(a + words, b + words, sizeof((tess_layers *)NULL)->second);
}

const tess_field *tess_fields_next_other(const tess_family *f, const void *a, const void *b, const tess_field *after)
{
    _Static_assert(sizeof(double) == sizeof(int64_t), "every number of a struct has eight bytes");
    bool behind = after == NULL;
    for (int k = 0; k < TABLES; k++)
        for (const tess_field *d = table(f, k); d->name; d++) {
            if (behind && find(f, d->name) == d && differs(d, a, b)) return d;
            behind |= d == after;
        }
    return NULL;
}

const char *tess_field_text(const tess_field *d, const void *numbers, char text[static 32])
{
    int64_t whole;
    double real;
    const char *word;
    if (is_layers(d)) {
        const tess_layers *l = (const void *)((const char *)numbers + d->offset);
        int n = 0;
        for (int k = 0; k < TESS_MOST_LAYERS; k++) n += tess_layer_second(l, k);
        const bool words = d->kind == TESS_FIELD_LAYERS;
        const int length = words ? (int)word_of(d->text, 1, &word) : (int)strlen(word = d->text);
        snprintf(text, 32, "%d %.*s", n, length, word);
        return text;
    }
    if (d->kind == TESS_FIELD_LIST) {
        const tess_list *l = (const void *)((const char *)numbers + d->offset);
        snprintf(text, 32, "[%g, ... %lld]", (double)l->value[0], (long long)l->count);
        return text;
    }
    memcpy(&whole, (const char *)numbers + d->offset, sizeof whole);
    memcpy(&real, (const char *)numbers + d->offset, sizeof real);
    if (d->kind == TESS_FIELD_TRAINING_OR_NULL && real < 0)
        snprintf(text, 32, "null");
    else if (is_real(d))
        snprintf(text, 32, "%g", real);
    else if (d->kind == TESS_FIELD_BOOL)
        snprintf(text, 32, "%s", whole ? "true" : "false");
    else if (d->kind == TESS_FIELD_INT || d->kind == TESS_FIELD_OPTIONAL || d->kind == TESS_FIELD_MEMBERS)
        snprintf(text, 32, "%lld", (long long)whole);
    else if (d->kind == TESS_FIELD_CHOICE) {
        const int n = (int)word_of(d->text, whole, &word);
        snprintf(text, 32, "%.*s", n, word);
    } else
        for (size_t i = ACTIVATIONS; i-- > 0;)
            if ((int64_t)activations[i].kind == whole) snprintf(text, 32, "%s", activations[i].name);
    return text;
}

json_t *tess_model_field(const tess_model *m, const char *name)
{
    const tess_field *d = find(m->family, name);
    char text[32];
    double real;
    if (!d || !is_number(d)) return NULL;
    memcpy(&real, m->numbers + d->offset, sizeof real);
    if (is_real(d)) return json_real(real);
    tess_field_text(d, m->numbers, text);
    return d->kind <= TESS_FIELD_OPTIONAL ? json_integer(strtoll(text, NULL, 10)) : json_string(text);
}

static void set_preset(const tess_field *d, double preset, char *numbers)
{
    const int64_t whole = (int64_t)preset;
    if (is_layers(d))
        memset(numbers + d->offset, 0, sizeof(tess_layers));
    else if (d->kind == TESS_FIELD_LIST)
        memset(numbers + d->offset, 0, sizeof(tess_list));
    else if (is_number(d))
        memcpy(numbers + d->offset, is_real(d) ? (const void *)&preset : &whole, sizeof whole);
}

static void presets(const tess_family *f, char *numbers)
{
    char name[64];
    double preset;
    int n;
    for (int k = TABLES; k-- > 0;)
        for (const tess_field *d = table(f, k); d->name; d++) set_preset(d, d->preset, numbers);
    for (const char *at = f->presets ? f->presets : ""; sscanf(at, "%63s %lf%n", name, &preset, &n) == 2; at += n)
        set_preset(find(f, name), preset, numbers);
}

/* ---- a whole object ---- */

/* What was said so far: a field has several names, which must not contradict each other. */
struct reader {
    const tess_family *f;
    const char *where;
    char *numbers;
    struct said {
        const tess_field *d;
        char name[160];
        const json_t *value;
    } said[MOST];
    size_t n;
};

static bool same_value(const json_t *a, const json_t *b)
{
    return json_is_number(a) && json_is_number(b) ? json_number_value(a) == json_number_value(b) : json_equal(a, b);
}

static tess_status note(struct reader *r, const tess_field *d, const char *name, const json_t *value)
{
    for (size_t i = 0; i < r->n; i++) {
        const struct said *s = &r->said[i];
        if (s->d != d || same_value(s->value, value)) continue;
        char *other = json_dumps(s->value, JSON_ENCODE_ANY | JSON_COMPACT), expected[256];
        snprintf(expected, sizeof expected, "%.100s as %s says, another name of the same", other ? other : "?",
                 s->name);
        free(other);
        return wrong(r->where, name, value, expected);
    }
    if (r->n < MOST) {
        r->said[r->n].d = d;
        r->said[r->n].value = value;
        snprintf(r->said[r->n++].name, sizeof r->said[0].name, "%s", name);
    }
    return TESS_OK;
}

/* `in`: the field whose members these are, as it is called; NULL: none. */
static tess_status read_object(struct reader *r, const json_t *object, const tess_field *in, const char *called)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)object, key, value)
    {
        char name[160], known[160];
        snprintf(name, sizeof name, "%s%s%.64s", in ? called : "", in ? "." : "", key);
        snprintf(known, sizeof known, "%s%s%.64s", in ? in->name : "", in ? "." : "", key);
        if (!in && !strcmp(key, "model_type")) continue;
        const tess_field *d = find(r->f, known);
        if (!d) {
            TESS_TRY(unknown(r->f, r->where, name, value));
            continue;
        }
        if (d->kind == TESS_FIELD_OBJECT) {
            if (!json_is_object(value) && !json_is_null(value))
                return wrong(r->where, name, value, "an object or null");
            if (json_is_object(value)) TESS_TRY(read_object(r, value, d->text ? NULL : d, name));
            continue;
        }
        if (is_number(d)) TESS_TRY(note(r, d, name, value));
        TESS_TRY(read_field(d, r->where, name, value, r->numbers));
    }
    return TESS_OK;
}

/* A list of a word a layer has as many as there are layers. */
static tess_status count_layers(const tess_family *f, const char *where, const json_t *root, const void *numbers)
{
    const int64_t layers = ((const tess_common *)numbers)->layers;
    for (int k = 0; k < TABLES; k++)
        for (const tess_field *d = table(f, k); d->name; d++) {
            const json_t *list = json_object_get(root, d->name);
            if (d->kind == TESS_FIELD_OBJECT && d->text && list) TESS_TRY(count_layers(f, where, list, numbers));
            if (d->kind == TESS_FIELD_LAYERS && list && !json_is_null(list) && (int64_t)json_array_size(list) != layers)
                return tess_error(TESS_INVALID, where, "%s has %zu word%s, num_hidden_layers is %lld", d->name,
                                  json_array_size(list), json_array_size(list) == 1 ? "" : "s", (long long)layers);
        }
    return TESS_OK;
}

/* The text has the name as a word of its own. */
static bool mentions(const char *text, const char *name)
{
    static const char inner[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    const size_t n = strlen(name);
    for (const char *at = text; (at = strstr(at, name)); at += n)
        if ((at == text || !strchr(inner, at[-1])) && (!at[n] || !strchr(inner, at[n]))) return true;
    return false;
}

/* A number that is wrong beside another may be a default, which the reader of the error never saw: behind the error
 * stands which of the fields that it names are not there. */
static void name_presets(const struct reader *r)
{
    char text[1024];
    snprintf(text, sizeof text, "%s", tess_error_text());
    for (int k = 0; k < TABLES; k++)
        for (const tess_field *d = table(r->f, k); d->name; d++) {
            char preset[32];
            bool said =
                !is_number(d) || find(r->f, d->name) != d ||
                (d->kind == TESS_FIELD_OPTIONAL && *(const int64_t *)(const void *)(r->numbers + d->offset) == 0);
            for (size_t i = 0; i < r->n && !said; i++) said = r->said[i].d == d;
            if (said || !mentions(text, d->name)) continue;
            const size_t n = strlen(text);
            snprintf(text + n, sizeof text - n, "; %s is missing, its default is %s", d->name,
                     tess_field_text(d, r->numbers, preset));
        }
    tess_error_restore(text);
}

tess_status tess_fields_read(const tess_family *f, const char *where, const char *json, void *numbers)
{
    TESS_ASSERT(f->numbers <= TESS_MODEL_NUMBERS);
    memset(numbers, 0, f->numbers); /* what this family has no field for */
    presets(f, numbers);
    TESS_FREED_JSON json_t *root = json_loads(json, JSON_REJECT_DUPLICATES, NULL);
    TESS_ASSERT(root); /* tess_model_open parsed it */
    TESS_FREED struct reader *r = tess_alloc(sizeof *r);
    *r = (struct reader){.f = f, .where = where, .numbers = numbers};
    tess_status status = read_object(r, root, NULL, NULL);
    if (status == TESS_OK) status = count_layers(f, where, root, numbers);
    if (status == TESS_OK && f->settle) f->settle(f, numbers);
    if (status == TESS_OK && (status = f->check(f, numbers, where)) != TESS_OK) name_presets(r);
    return status;
}
