/* One line of a .jsonl, or a row that is read as one: its JSON as tokens, labels and what else a sample has, each
 * checked. What it says is what Hugging Face's models mean by the same names. */
#include "models/files/data/data_lines_impl.h"
#include "models/text/chat/chat.h"
#include <jansson.h>
#include <string.h>

#define BAD(line, ...) tess_line_error((line)->rows, (line)->byte, tess_format(__VA_ARGS__))

/* ---- its JSON ---- */

static const char *const names_of[] = {
    [TESS_LINES_TEXT] = "\"text\"",     [TESS_LINES_LABELLED] = "\"text\"", [TESS_LINES_PAIR] = "\"prompt\"",
    [TESS_LINES_CHAT] = "\"messages\"", [TESS_LINES_IDS] = "\"input_ids\"", [TESS_LINES_TASK] = "\"instruction\"",
    [TESS_LINES_CHOICE] = "\"chosen\""};

static tess_status parse(const tess_line *line, json_t **root)
{
    json_error_t error;
    if (line->rows->columns) return tess_record_read(line, root);
    const char *text = (const char *)line->rows->file.data + line->byte;
    *root = json_loadb(text, line->length, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (json_is_object(*root)) return TESS_OK;
    if (*root) {
        json_decref(*root);
        return BAD(line, "is no JSON object (a line is {\"text\"}, {\"prompt\", \"completion\"}, {\"messages\"} or "
                         "{\"input_ids\"})");
    }
    const uint64_t place = error.position > 0 && (size_t)error.position <= line->length ? (uint64_t)error.position : 0;
    return tess_line_error(line->rows, line->byte + place, tess_format("is no JSON: %s", error.text));
}

static tess_lines_form form_of(const json_t *root)
{
    if (json_object_get(root, "input_ids")) return TESS_LINES_IDS;
    if (json_object_get(root, "messages")) return TESS_LINES_CHAT;
    if (json_object_get(root, "chosen") || json_object_get(root, "rejected")) return TESS_LINES_CHOICE;
    if (json_object_get(root, "prompt")) return TESS_LINES_PAIR;
    if (json_object_get(root, "text")) return json_object_get(root, "label") ? TESS_LINES_LABELLED : TESS_LINES_TEXT;
    if (json_object_get(root, "conversations")) return TESS_LINES_CHAT;
    return json_object_get(root, "instruction") ? TESS_LINES_TASK : TESS_LINES_UNKNOWN;
}

tess_status tess_line_form(const tess_line *line, tess_lines_form *form)
{
    static const char *const known[] = {"input_ids",     "messages",    "prompt", "text",
                                        "conversations", "instruction", "chosen"};
    enum { KNOWN = sizeof known / sizeof *known };
    json_t *root, *value;
    const char *name, *met = NULL, *near = NULL;
    TESS_TRY(parse(line, &root));
    *form = form_of(root);
    json_object_foreach(root, name, value)
    {
        if (!met) met = name;
        if (!near && (near = tess_nearest(name, known, KNOWN))) met = name;
    }
    tess_status status = TESS_OK;
    if (*form == TESS_LINES_UNKNOWN)
        status = tess_line_error(
            line->rows, line->rows->columns ? 0 : line->byte,
            tess_format("has none of \"text\", \"prompt\", \"messages\", \"input_ids\", \"conversations\", "
                        "\"instruction\" and \"chosen\"%s%.60s%s%s%s",
                        met ? ", but \"" : "", met ? met : "", met ? "\"" : "", near ? "; did you mean " : "",
                        near ? near : ""));
    json_decref(root);
    return status;
}

/* The line's object, which is of the form that the file's first line has. */
static tess_status parse_as(const tess_line *line, tess_lines_form form, json_t **root)
{
    TESS_TRY(parse(line, root));
    tess_lines_form met = form_of(*root);
    if (met == TESS_LINES_LABELLED || (met == TESS_LINES_TEXT && form == TESS_LINES_LABELLED))
        met = form == TESS_LINES_LABELLED ? form : TESS_LINES_TEXT; /* what lacks its label is told of that */
    if (met == form) return TESS_OK;
    json_decref(*root);
    return met == TESS_LINES_UNKNOWN
               ? BAD(line, "has no %s, as the lines before it have", names_of[form])
               : BAD(line, "has %s, but the lines before it have %s (a file has lines of one kind)", names_of[met],
                     names_of[form]);
}

/* ---- tokens and labels ---- */

enum around { BARE, BEFORE, BOTH }; /* what the tokenizer's post-processor puts around a text */

static tess_status push_text(const tess_line_rules *r, const tess_line *line, const json_t *root, const char *name,
                             enum around around, tess_ids *ids)
{
    const json_t *text = json_object_get(root, name);
    const tess_ids *before, *behind;
    if (!text) return BAD(line, "has no \"%s\"", name);
    if (!json_is_string(text)) return BAD(line, "\"%s\" is no string", name);
    size_t i = ids->count;
    tess_tokenizer_around(r->tokenizer, &before, &behind);
    if (around != BARE) tess_ids_add(ids, before->id, before->count);
    TESS_TRY(tess_tokenizer_encode(r->tokenizer, line->rows->file.path, json_string_value(text),
                                   json_string_length(text), ids));
    if (around == BOTH) tess_ids_add(ids, behind->id, behind->count);
    for (; i < ids->count; i++)
        if (ids->id[i] >= r->conf->vocab)
            return BAD(line, "\"%s\": token %d is beyond the vocabulary of %lld (is this the model's own tokenizer?)",
                       name, ids->id[i], (long long)r->conf->vocab);
    return TESS_OK;
}

/* Appends a list of whole numbers from 0 to `most`, of `of`, and -100 where `none` stands for one; nothing where there
 * is none. */
static tess_status push_list(const tess_line *line, const json_t *root, const char *name, const char *of, int64_t most,
                             bool none, tess_ids *ids)
{
    const json_t *list = json_object_get(root, name), *value;
    size_t i;
    if (!list || json_is_null(list)) return TESS_OK;
    if (!json_is_array(list)) return BAD(line, "\"%s\" is no list of whole numbers", name);
    json_array_foreach(list, i, value)
    {
        const json_int_t n = json_integer_value(value);
        if (!json_is_integer(value)) return BAD(line, "\"%s\"[%zu] is no whole number", name, i);
        if ((n < 0 || n > most) && !(none && n == TESS_NO_TARGET))
            return BAD(line, "\"%s\"[%zu]: %lld is beyond the %s of %lld, expected %s0 to %lld", name, i, (long long)n,
                       of, (long long)most + 1, none ? "-100, or " : "", (long long)most);
        tess_ids_push(ids, (int32_t)n);
    }
    return TESS_OK;
}

static tess_status same_length(const tess_line *line, const tess_ids *ids, const char *name, const tess_ids *other,
                               const char *by)
{
    if (ids->count == other->count) return TESS_OK;
    return BAD(line, "\"%s\" has %zu entries, \"%s\" has %zu", name, ids->count, by, other->count);
}

/* What would be taken for something else if it were passed over. */
static tess_status check_names(const tess_line *line, const json_t *root)
{
    static const char *const known[] = {"input_ids", "labels",         "token_type_ids",     "decoder_input_ids",
                                        "label",     "attention_mask", "next_sentence_label"};
    enum { KNOWN = sizeof known / sizeof *known };
    const char *name;
    json_t *value;
    json_object_foreach((json_t *)root, name, value)
    {
        size_t i = 0;
        while (i < KNOWN && strcmp(name, known[i])) i++;
        const char *near = i < KNOWN ? NULL : tess_nearest(name, known, KNOWN);
        if (near) return BAD(line, "\"%.60s\" is unknown (did you mean %s?)", name, near);
        if (!strcmp(name, "position_ids") || !strcmp(name, "inputs_embeds"))
            return BAD(line, "\"%s\" is not supported: positions count from 0, and inputs are tokens", name);
    }
    return TESS_OK;
}

/* Padding that the line brings along, always on the right, goes. */
static tess_status drop_padding(const tess_line *line, const json_t *root, tess_example *e)
{
    const json_t *mask = json_object_get(root, "attention_mask");
    const size_t n = e->ids.count;
    size_t real = 0;
    if (!mask || json_is_null(mask)) return TESS_OK;
    if (json_array_size(mask) != n)
        return BAD(line, "\"attention_mask\" has %zu entries, \"input_ids\" has %zu", json_array_size(mask), n);
    while (real < n && json_integer_value(json_array_get(mask, real)) == 1) real++;
    for (size_t i = real; i < n; i++) {
        const json_t *value = json_array_get(mask, i);
        if (!json_is_integer(value) || json_integer_value(value))
            return BAD(line, "\"attention_mask\"[%zu]: expected ones, then zeros (padding lies on the right)", i);
    }
    e->ids.count = real;
    if (e->types.count == n) e->types.count = real;
    return TESS_OK;
}

/* Targets that draw a loss, of the first T labels. */
static uint64_t count_targets(const tess_data_conf *c, const tess_example *e, size_t most)
{
    if (c->task == TESS_DATA_LABEL) return e->labelled;
    if (e->bare) return e->ids.count > (c->task == TESS_DATA_DECODER); /* a span, and something beside it */
    const size_t n = c->task == TESS_DATA_DECODER ? e->labels.count : e->ids.count; /* ids: what padding leaves */
    uint64_t targets = 0;
    for (size_t i = c->task == TESS_DATA_CAUSAL; i < n && i < most && i < e->labels.count; i++)
        targets += e->labels.id[i] != TESS_NO_TARGET;
    return targets;
}

/* ---- the two kinds of examples ---- */

static tess_status read_pair(const tess_line_rules *r, const tess_line *line, const json_t *root, tess_example *e)
{
    const bool apart = r->conf->task == TESS_DATA_DECODER; /* the encoder reads the one, the decoder learns the other */
    if (r->conf->task == TESS_DATA_MASKED || r->conf->task == TESS_DATA_LABEL)
        return BAD(line, "\"prompt\" and \"completion\" are for models that go on with a text; this one does not");
    tess_ids *completion = apart ? &e->labels : &e->ids;
    TESS_TRY(push_text(r, line, root, "prompt", apart ? BOTH : BEFORE, &e->ids));
    const size_t prompt = apart ? 0 : e->ids.count;
    TESS_TRY(push_text(r, line, root, "completion", apart ? BOTH : BARE, completion));
    if (r->conf->end_completions) {
        if (r->end_of_text < 0) return BAD(line, "data.end_completions: the tokenizer has no token that ends a text");
        const bool there = completion->count && completion->id[completion->count - 1] == r->end_of_text;
        if (!apart || !there) tess_ids_push(completion, r->end_of_text);
    }
    for (size_t i = 0; i < e->ids.count && !apart; i++)
        tess_ids_push(&e->labels, i < prompt ? TESS_NO_TARGET : e->ids.id[i]);
    return TESS_OK;
}

/* A conversation by the model's own template; tess_chat_encode says which part draws a loss. */
static tess_status read_chat(const tess_line_rules *r, const tess_line *line, json_t *root, int learned,
                             tess_example *e)
{
    const tess_data_conf *c = r->conf;
    if (c->task != TESS_DATA_CAUSAL)
        return BAD(line, "\"messages\" are for models that go on with a text; this one does not");
    if (!c->chat) return BAD(line, "\"messages\" need the chat_template of a model's directory, and there is none");
    if (tess_chat_encode(c->chat, r->tokenizer, "the conversation", root, learned, &e->ids, &e->labels) != TESS_OK)
        return BAD(line, "%s", tess_error_text());
    for (size_t i = 0; i < e->ids.count; i++)
        if (e->ids.id[i] >= c->vocab)
            return BAD(line,
                       "\"messages\": token %d is beyond the vocabulary of %lld (is this the model's own "
                       "tokenizer?)",
                       e->ids.id[i], (long long)c->vocab);
    return TESS_OK;
}

static int learned_of(const tess_line_rules *r)
{
    return r->conf->loss_on_all ? TESS_CHAT_ALL : TESS_CHAT_ANSWERS;
}

static tess_status read_talk(const tess_line_rules *r, const tess_line *line, json_t *root, tess_example *e)
{
    if (!json_object_get(root, "messages")) TESS_TRY(tess_form_turns(line, root));
    return read_chat(r, line, root, learned_of(r), e);
}

/* Texts, or messages: the completion alone draws a loss. */
static tess_status read_pair_of(const tess_line_rules *r, const tess_line *line, json_t *root, tess_example *e)
{
    int prompt;
    if (!json_is_array(json_object_get(root, "prompt")) && !json_is_array(json_object_get(root, "completion")))
        return read_pair(r, line, root, e);
    TESS_TRY(tess_form_pair_talk(line, root, &prompt));
    return read_chat(r, line, root, prompt, e);
}

/* An example with a label, or its prompt with the completion of another one, whose end may be cut off. */
static tess_status read_judged(const tess_line_rules *r, const tess_line *line, json_t *root, const tess_line *other,
                               tess_example *e)
{
    const json_t *label = json_object_get(root, "label");
    json_t *from;
    if (!json_is_boolean(label) && !(json_is_integer(label) && (uint64_t)json_integer_value(label) < 2))
        return BAD(line, label ? "\"label\" is neither true nor false"
                               : "has no \"label\", true or false, which preference.loss kto learns from");
    e->label = json_is_true(label) || json_integer_value(label) == 1;
    if (!other) return read_pair_of(r, line, root, e);
    TESS_TRY(parse_as(other, TESS_LINES_PAIR, &from));
    json_object_set(root, "completion", json_object_get(from, "completion"));
    json_decref(from);
    TESS_TRY(read_pair_of(r, line, root, e));
    if (e->ids.count > (size_t)r->conf->seq_length) e->ids.count = (size_t)r->conf->seq_length;
    return TESS_OK;
}

/* One of the two completions of a prompt. */
static tess_status read_choice(const tess_line_rules *r, const tess_line *line, json_t *root, bool rejected,
                               tess_example *e)
{
    TESS_TRY(tess_form_choice(line, root, rejected));
    TESS_TRY(read_pair_of(r, line, root, e));
    if (count_targets(r->conf, e, SIZE_MAX)) return TESS_OK;
    return BAD(line, "\"%s\" has no token to learn from", rejected ? "rejected" : "chosen");
}

/* By the model's template, where it has one. */
static tess_status read_task(const tess_line_rules *r, const tess_line *line, json_t *root, tess_example *e)
{
    const bool talks = r->conf->task == TESS_DATA_CAUSAL && !tess_chat_absent(r->conf->chat);
    if (talks) TESS_TRY(tess_form_task_talk(line, root));
    if (talks) return read_chat(r, line, root, learned_of(r), e);
    TESS_TRY(tess_form_task_pair(line, root, r->conf->task == TESS_DATA_DECODER));
    return read_pair(r, line, root, e);
}

static tess_status read_label(const tess_line_rules *r, const tess_line *line, const json_t *root, tess_example *e)
{
    const char *name = r->conf->both ? "next_sentence_label" : "label";
    const json_t *label = json_object_get(root, name);
    if (!label && !r->conf->both) label = json_object_get(root, "labels"); /* as collators rename it */
    if (!label || json_is_null(label)) return r->conf->both ? BAD(line, "has no \"%s\"", name) : TESS_OK;
    const json_int_t n = json_integer_value(label);
    if (r->conf->both && json_is_integer(label) && n == TESS_NO_TARGET) return TESS_OK;
    if (!json_is_integer(label) || n < 0 || n >= r->conf->labels)
        return BAD(line, "\"%s\" is not one of the model's %lld, expected 0 to %lld", name, (long long)r->conf->labels,
                   (long long)r->conf->labels - 1);
    e->label = (int32_t)n;
    e->labelled = true;
    return TESS_OK;
}

static tess_status read_labelled(const tess_line_rules *r, const tess_line *line, const json_t *root, tess_example *e)
{
    TESS_TRY(push_text(r, line, root, "text", BOTH, &e->ids));
    return read_label(r, line, root, e);
}

/* T5's shift: the decoder reads each label one place later, and padding where there is none. */
void tess_example_shift(const tess_data_conf *c, tess_example *e)
{
    e->decoder.count = 0;
    for (size_t i = 0; i < e->labels.count; i++) {
        const int32_t before = i ? e->labels.id[i - 1] : c->decoder_start;
        tess_ids_push(&e->decoder, before == TESS_NO_TARGET ? c->padding : before);
    }
}

static tess_status read_ids(const tess_line_rules *r, const tess_line *line, const json_t *root, tess_example *e)
{
    const tess_data_conf *c = r->conf;
    const int64_t last = c->vocab - 1, last_type = (c->types > 0 ? c->types : INT32_MAX) - 1;
    static const char vocabulary[] = "vocabulary";
    TESS_TRY(check_names(line, root));
    TESS_TRY(push_list(line, root, "input_ids", vocabulary, last, false, &e->ids));
    TESS_TRY(push_list(line, root, "token_type_ids", "token types", last_type, false, &e->types));
    if (json_is_array(json_object_get(root, "token_type_ids")))
        TESS_TRY(same_length(line, &e->types, "token_type_ids", &e->ids, "input_ids"));
    if (c->task == TESS_DATA_LABEL) {
        TESS_TRY(read_label(r, line, root, e));
        return drop_padding(line, root, e);
    }
    if (c->both) TESS_TRY(read_label(r, line, root, e));
    if (json_object_get(root, "label")) return BAD(line, "has a \"label\", and this model has none for whole samples");
    if (json_object_get(root, "decoder_input_ids") && c->task != TESS_DATA_DECODER)
        return BAD(line, "has \"decoder_input_ids\", and this model has no decoder behind an encoder");
    TESS_TRY(push_list(line, root, "labels", vocabulary, last, true, &e->labels));
    TESS_TRY(push_list(line, root, "decoder_input_ids", vocabulary, last, false, &e->decoder));
    const json_t *given = json_object_get(root, "labels");
    const bool labels = given && !json_is_null(given);
    if (c->task == TESS_DATA_CAUSAL && !labels)
        for (size_t i = 0; i < e->ids.count; i++) tess_ids_push(&e->labels, e->ids.id[i]);
    e->bare = !labels && ((c->task == TESS_DATA_MASKED && c->mlm_probability > 0) ||
                          (c->task == TESS_DATA_DECODER && c->noise_density > 0));
    if (e->bare && c->task == TESS_DATA_MASKED && c->mask_token < 0)
        return BAD(line, "has no \"labels\", and data.mask_token says nothing (the tokenizer has no [MASK])");
    if (c->task != TESS_DATA_DECODER && e->labels.count)
        TESS_TRY(same_length(line, &e->labels, "labels", &e->ids, "input_ids"));
    if (e->decoder.count) TESS_TRY(same_length(line, &e->decoder, "decoder_input_ids", &e->labels, "labels"));
    return drop_padding(line, root, e);
}

/* ---- the whole ---- */

static tess_status cut(const tess_data_conf *c, const tess_line *line, const char *name, tess_ids *ids,
                       uint64_t *targets)
{
    const size_t T = (size_t)c->seq_length;
    if (ids->count <= T) return TESS_OK;
    if (!c->truncate && !c->drop)
        return BAD(
            line,
            "%s: %zu tokens, more than data.seq_length %zu (make that longer, or say data.truncate=true, or drop)",
            name, ids->count, T);
    if (c->drop) *targets = 0;
    ids->count = T;
    return TESS_OK;
}

static tess_status fill(const tess_line_rules *r, const tess_line *line, json_t *root, tess_lines_form form,
                        const tess_line *other, tess_example *e, uint64_t *targets, uint64_t *uncut)
{
    const tess_data_conf *c = r->conf;
    TESS_TRY(c->judged                     ? read_judged(r, line, root, other, e)
             : form == TESS_LINES_PAIR     ? read_pair_of(r, line, root, e)
             : form == TESS_LINES_CHOICE   ? read_choice(r, line, root, other, e)
             : form == TESS_LINES_CHAT     ? read_talk(r, line, root, e)
             : form == TESS_LINES_TASK     ? read_task(r, line, root, e)
             : form == TESS_LINES_LABELLED ? read_labelled(r, line, root, e)
                                           : read_ids(r, line, root, e));
    if (!e->ids.count) return BAD(line, "has no tokens");
    *uncut = count_targets(c, e, SIZE_MAX);
    *targets = count_targets(c, e, (size_t)c->seq_length);
    if (*uncut == 0)
        return BAD(line, c->task == TESS_DATA_LABEL ? "has no \"label\"" : "has no target: nothing in it draws a loss");
    TESS_TRY(cut(c, line, "the sample", &e->ids, targets));
    if (e->types.count > e->ids.count) e->types.count = e->ids.count;
    if (c->task == TESS_DATA_DECODER) {
        if (!e->decoder.count) tess_example_shift(c, e);
        TESS_TRY(cut(c, line, "the labels", &e->labels, targets));
        if (e->decoder.count > e->labels.count) e->decoder.count = e->labels.count;
    } else if (e->labels.count > e->ids.count) {
        e->labels.count = e->ids.count;
    }
    return TESS_OK;
}

/* Empties it, to be filled again. */
static void clear(tess_example *e)
{
    e->ids.count = e->labels.count = e->types.count = e->decoder.count = 0;
    e->label = TESS_NO_TARGET;
    e->labelled = e->bare = false;
}

tess_status tess_example_read(const tess_line_rules *r, const tess_line *line, tess_lines_form form,
                              const tess_line *other, tess_example *e, uint64_t *targets, uint64_t *uncut)
{
    json_t *root;
    clear(e);
    TESS_TRY(parse_as(line, form, &root));
    tess_status status = fill(r, line, root, form, other, e, targets, uncut);
    json_decref(root);
    return status;
}

tess_status tess_document_read(const tess_line_rules *r, const tess_line *line, tess_ids *ids)
{
    json_t *root;
    TESS_TRY(parse_as(line, TESS_LINES_TEXT, &root));
    tess_status status = push_text(r, line, root, "text", BOTH, ids);
    json_decref(root);
    return status;
}

void tess_example_free(tess_example *e)
{
    tess_ids_free(&e->ids);
    tess_ids_free(&e->labels);
    tess_ids_free(&e->types);
    tess_ids_free(&e->decoder);
}
