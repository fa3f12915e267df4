/* Conversations by a model's own template: their text, their ids, and which of those an assistant says.
 *
 * Where a template marks what the assistant says with {% generation %}, that is it. Where it does not, beginnings of
 * the conversation are rendered: what a turn adds behind the text that asks for it is the assistant's. */
#include "models/text/base/directories.h"
#include "models/text/base/mapped.h"
#include "models/text/chat/template_impl.h"
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct tess_chat {
    tess_arena *arena;
    const char *where, *dir;
    const tess_tpl_node *root; /* NULL: there is none, or */
    const char *unsupported;   /* why it cannot be rendered */
    json_t *tokens;            /* {"bos_token": "<s>", ...} */
    uint64_t sum;
    bool marks;  /* it has {% generation %} */
    bool absent; /* a directory has none */
};

/* ---- opening ---- */

/* The special tokens that a template may name. */
static void take_tokens(tess_chat *c, const json_t *config)
{
    static const char *const name[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};
    for (size_t i = 0; i < sizeof name / sizeof *name; i++) {
        json_t *token = json_object_get(config, name[i]);
        if (json_is_object(token)) token = json_object_get(token, "content");
        if (json_is_string(token) && !json_object_get(c->tokens, name[i])) json_object_set(c->tokens, name[i], token);
    }
}

static bool has_marks(const char *text, size_t n)
{
    for (const char *at = text; (at = memmem(at, (size_t)(text + n - at), "generation", 10)); at += 10) {
        const char *p = at;
        while (p > text && (p[-1] == ' ' || p[-1] == '-' || p[-1] == '+' || p[-1] == '\n')) p--;
        if (p - text >= 2 && p[-1] == '%' && p[-2] == '{') return true;
    }
    return false;
}

static tess_status take_template(tess_chat *c, const char *where, const char *text, size_t n)
{
    tess_tpl_node *root = NULL;
    c->where = tess_arena_format(c->arena, "%s", where);
    c->sum = tess_sum_bytes(TESS_SUM, text, n);
    c->marks = has_marks(text, n);
    const tess_status status = tess_utf8_valid(text, n) == n ? tess_tpl_parse(c->arena, c->where, text, n, &root)
                                                             : tess_error(TESS_INVALID, where, "is not UTF-8");
    c->root = status == TESS_OK ? root : NULL;
    return status;
}

/* chat_template may be a list of templates with names: the one named "default" is taken. */
static const json_t *template_of(const json_t *config)
{
    const json_t *t = json_object_get(config, "chat_template"), *entry;
    size_t i;
    if (!json_is_array(t)) return t;
    json_array_foreach(t, i, entry)
    {
        const char *name = tess_json_text(entry, "name");
        if (name && !strcmp(name, "default")) return json_object_get(entry, "template");
    }
    return NULL;
}

static tess_status read_template(tess_chat *c, const json_t *config)
{
    TESS_FREED char *path = tess_format("%s/chat_template.jinja", c->dir), *config_path = NULL;
    tess_map map;
    tess_status status;
    const json_t *text = template_of(config);
    if (access(path, F_OK) == 0) {
        status = tess_map_open(path, &map);
        if (status == TESS_OK) {
            status = take_template(c, path, (const char *)map.data, map.bytes);
            tess_map_close(&map);
        }
    } else if (json_is_string(text)) {
        config_path = tess_format("%s/tokenizer_config.json: chat_template", c->dir);
        status = take_template(c, config_path, json_string_value(text), json_string_length(text));
    } else if (text && !json_is_null(text)) {
        status = tess_error(TESS_INVALID, "chat_template", "in %s/tokenizer_config.json is no text", c->dir);
    } else {
        c->absent = true;
        status = tess_error(TESS_INVALID, "chat_template",
                            "%s has none (in tokenizer_config.json, or chat_template.jinja)", c->dir);
    }
    return status;
}

static tess_chat *new_chat(const char *dir)
{
    tess_chat *c = tess_alloc(sizeof *c);
    c->arena = tess_arena_new();
    c->dir = tess_arena_format(c->arena, "%s", dir);
    c->tokens = json_object();
    return c;
}

tess_status tess_chat_open(const char *dir, tess_chat **chat)
{
    tess_chat *c = *chat = new_chat(dir);
    TESS_FREED_JSON json_t *config = NULL, *map = NULL;
    tess_status status = tess_json_beside(dir, "tokenizer_config.json", &config);
    if (status == TESS_OK) status = tess_json_beside(dir, "special_tokens_map.json", &map);
    take_tokens(c, config);
    take_tokens(c, map);
    if (status == TESS_OK) status = read_template(c, config);
    if (status != TESS_OK) {
        c->unsupported = tess_arena_format(c->arena, "%s", tess_error_text());
        tess_error_clear();
    }
    TESS_FREED char *tokens = json_dumps(c->tokens, JSON_SORT_KEYS);
    c->sum = tess_sum_bytes(c->sum, tokens, strlen(tokens));
    return TESS_OK;
}

const char *tess_chat_unsupported(const tess_chat *c)
{
    return c->unsupported;
}

bool tess_chat_absent(const tess_chat *c)
{
    return !c || c->absent;
}

tess_status tess_chat_of(const char *name, const char *text, tess_chat **chat)
{
    tess_chat *c = new_chat(name);
    const tess_status status = take_template(c, name, text, strlen(text));
    if (status == TESS_OK)
        *chat = c;
    else
        tess_chat_free(c);
    return status;
}

void tess_chat_free(tess_chat *c)
{
    if (!c) return;
    json_decref(c->tokens);
    tess_arena_free(c->arena);
    free(c);
}

uint64_t tess_chat_sum(const tess_chat *c)
{
    return c ? c->sum : 0;
}

const char *tess_chat_end(const tess_chat *c)
{
    return tess_json_text(c->tokens, "eos_token");
}

/* ---- rendering ---- */

static tess_status bad(const char *where, const char *what)
{
    return tess_error(TESS_INVALID, where, "%s", what);
}

/* The first `count` messages as the template gets them: reasoning goes by all of its names. */
static json_t *messages_of(const json_t *talk, size_t count)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const json_t *all = json_object_get(talk, "messages");
    json_t *out = json_array();
    for (size_t i = 0; i < count && i < json_array_size(all); i++) {
        json_t *m = json_copy(json_array_get(all, i)), *reasoning = NULL;
        for (size_t k = 0; k < 3 && !reasoning; k++) {
            reasoning = json_object_get(m, names[k]);
            if (json_is_null(reasoning)) reasoning = NULL;
        }
        if (reasoning) {
            json_t *own = json_deep_copy(reasoning);
            if (!json_object_get(m, "thinking")) json_object_set(m, "thinking", own);
            json_object_set_new(m, "reasoning_content", own);
        }
        json_array_append_new(out, m);
    }
    return out;
}

static tess_status check_messages(const char *where, const json_t *talk)
{
    const json_t *all = json_object_get(talk, "messages"), *m;
    size_t i;
    if (!json_is_array(all) || !json_array_size(all)) return bad(where, "\"messages\" is no list of messages");
    json_array_foreach(all, i, m)
    {
        if (!json_is_object(m) || !json_is_string(json_object_get(m, "role"))) {
            char what[80];
            snprintf(what, sizeof what, "\"messages\"[%zu] is no object with a \"role\"", i);
            return bad(where, what);
        }
    }
    return TESS_OK;
}

static tess_status render(const tess_chat *c, const char *where, const json_t *talk, size_t count, bool answers,
                          tess_bytes *out, tess_text_spans *spans)
{
    if (!c->root) return tess_error(TESS_INVALID, where, "cannot be written: %s", c->unsupported);
    json_t *variables = json_copy(c->tokens), *tools = json_object_get(talk, "tools");
    json_object_set_new(variables, "messages", messages_of(talk, count));
    json_object_set(variables, "tools", tools ? tools : json_null());
    json_object_set(variables, "documents", json_null());
    json_object_set_new(variables, "add_generation_prompt", json_boolean(answers));
    out->length = 0;
    tess_bytes_need(out, 1);
    tess_status status = tess_tpl_render(c->root, c->where, variables, out, spans);
    json_decref(variables);
    if (status == TESS_OK && tess_utf8_valid(out->data, out->length) != out->length)
        status = bad(c->where, "writes text that is not UTF-8");
    if (status == TESS_OK || !where) return status;
    TESS_FREED char *what = tess_format("%s", tess_error_text());
    tess_error(status, where, "%s", what);
    return status;
}

tess_status tess_chat_render(const tess_chat *c, const char *where, const json_t *talk, bool answers, char **text,
                             size_t *length)
{
    tess_bytes out = {0};
    tess_status status = check_messages(where, talk);
    if (status == TESS_OK) status = render(c, where, talk, SIZE_MAX, answers, &out, NULL);
    if (status == TESS_OK) tess_bytes_add(&out, "", 1);
    *length = out.length ? out.length - 1 : 0;
    *text = status == TESS_OK ? out.data : NULL;
    if (status != TESS_OK) free(out.data);
    return status;
}

/* ---- what the assistant says ---- */

/* The bytes that two texts begin with alike, whole characters. */
static size_t common(const tess_bytes *a, const tess_bytes *b)
{
    size_t n = 0;
    while (n < a->length && n < b->length && a->data[n] == b->data[n]) n++;
    while (n > 0 && n < a->length && (a->data[n] & 0xc0) == 0x80) n--;
    return n;
}

/* Returns the part of a message's content that is likely to stand in the text unchanged: what is behind the reasoning,
 * without blanks around it. */
static tess_tpl_value words_of(const json_t *message)
{
    const json_t *content = json_object_get(message, "content");
    if (json_is_array(content)) content = json_object_get(json_array_get(content, 0), "text");
    const char *s = json_is_string(content) ? json_string_value(content) : "", *think;
    size_t n = json_is_string(content) ? json_string_length(content) : 0;
    while ((think = memmem(s, n, "</think>", 8))) n -= (size_t)(think - s) + 8, s = think + 8;
    return tess_tpl_strip(s, n, NULL, 0, true, true);
}

struct talk {
    const tess_chat *c;
    const char *where;
    const json_t *talk;
    tess_bytes full, asked, told; /* the whole; with what asks for the turn; up to the turn */
};

/* Renders a beginning; false: the template refuses it. */
static bool beginning(const struct talk *t, size_t count, bool answers, tess_bytes *out)
{
    if (render(t->c, NULL, t->talk, count, answers, out, NULL) == TESS_OK) return true;
    tess_error_clear();
    return false;
}

static tess_status not_found(const struct talk *t, size_t i)
{
    char what[300];
    snprintf(
        what, sizeof what,
        "where the assistant's words in \"messages\"[%zu] lie cannot be told: the template does not mark them with "
        "{%% generation %%}, and writes beginnings of a conversation otherwise than the whole (data.loss_on=all "
        "learns everything)",
        i);
    return bad(t->where, what);
}

/* Where turn i begins: behind what asks for it. */
static bool find_begin(struct talk *t, size_t i, size_t *begin)
{
    if (!beginning(t, i, true, &t->asked)) return false;
    *begin = common(&t->full, &t->asked);
    if (*begin == t->asked.length) return true;
    /* What asks for a turn may open a thought that the turn, once it is told, does not have. */
    return beginning(t, i, false, &t->told) && common(&t->full, &t->told) == t->told.length && *begin >= t->told.length;
}

/* Does the whole hold a beginning of the conversation from `begin` on, but for a stretch that stands there only as long
 * as its turn is the last one? *end: where, and it is behind the turn's words. */
static bool held(const struct talk *t, const tess_bytes *told, size_t begin, tess_tpl_value words, size_t *end)
{
    const size_t p = common(&t->full, told);
    if (p == told->length) return *end = p, p >= begin;
    if (p < begin) return false;
    for (size_t k = p; k < told->length; k++) { /* the stretch is [p, k) */
        const size_t rest = told->length - k;
        if (rest > t->full.length - p || memcmp(t->full.data + p, told->data + k, rest)) continue;
        *end = p + rest;
        return !words.n || memmem(t->full.data + begin, *end - begin, words.s, words.n);
    }
    return false;
}

/* Where it ends: as far as the conversation up to it goes, which may have an end of text of its own. */
static bool find_end(struct talk *t, size_t i, size_t begin, size_t *end)
{
    const json_t *all = json_object_get(t->talk, "messages");
    const char *last = tess_chat_end(t->c);
    const size_t n = last ? strlen(last) : 0;
    *end = t->full.length;
    if (i + 1 == json_array_size(all)) { /* whose end of text is the conversation's where nothing can come behind it */
        const bool ends = n && *end >= n && !memcmp(t->full.data + *end - n, last, n);
        if (ends && beginning(t, i + 1, true, &t->asked) && common(&t->full, &t->asked) < *end &&
            common(&t->full, &t->asked) >= *end - n)
            *end -= n;
        return *end >= begin;
    }
    if (!beginning(t, i + 1, false, &t->told)) return false;
    const tess_tpl_value words = words_of(json_array_get(all, i));
    if (common(&t->full, &t->told) < t->told.length && n && t->told.length >= n &&
        !memcmp(t->told.data + t->told.length - n, last, n)) {
        const tess_bytes without = {t->told.data, t->told.length - n, 0};
        if (common(&t->full, &without) == without.length) return *end = without.length, *end >= begin;
    }
    return held(t, &t->told, begin, words, end);
}

static tess_status find_turns(struct talk *t, tess_text_spans *spans)
{
    const json_t *all = json_object_get(t->talk, "messages");
    for (size_t i = 0, begin, end; i < json_array_size(all); i++) {
        if (strcmp(tess_json_text(json_array_get(all, i), "role"), "assistant")) continue;
        if (i && beginning(t, i, false, &t->asked) && beginning(t, i + 1, false, &t->told) &&
            t->asked.length == t->told.length && !memcmp(t->asked.data, t->told.data, t->told.length))
            continue; /* the template leaves it out */
        if (!find_begin(t, i, &begin) || !find_end(t, i, begin, &end)) return not_found(t, i);
        tess_text_spans_add(spans, begin, end);
    }
    return TESS_OK;
}

/* All behind the first `count` messages and what asks for an answer to them, whatever the template marks. */
static tess_status find_rest(struct talk *t, size_t count, tess_text_spans *spans)
{
    size_t begin;
    spans->count = 0;
    if (!find_begin(t, count, &begin))
        return bad(t->where, "where the completion begins cannot be told: the template writes the prompt otherwise "
                             "than in the whole (\"messages\" with data.loss_on=all learns everything)");
    tess_text_spans_add(spans, begin, t->full.length);
    return TESS_OK;
}

/* The tokens of a text before a byte of it: those that its beginning by itself has too. `whole`: all of those were. */
static tess_status tokens_before(const tess_tokenizer *t, const char *where, const tess_bytes *text, size_t byte,
                                 const tess_ids *ids, size_t from, size_t *count, bool *whole)
{
    tess_ids part = {0};
    const tess_status status = tess_tokenizer_encode(t, where, text->data, byte, &part);
    size_t n = 0;
    while (n < part.count && from + n < ids->count && part.id[n] == ids->id[from + n]) n++;
    *whole = n == part.count;
    *count = n;
    tess_ids_free(&part);
    return status;
}

/* Labels of the tokens that any byte of a span is in. */
static tess_status label(const tess_tokenizer *t, const char *where, const tess_bytes *text,
                         const tess_text_spans *spans, const tess_ids *ids, size_t from, tess_ids *labels)
{
    size_t begin, end;
    bool whole;
    const size_t base = labels->count - (ids->count - from);
    for (size_t i = 0; i < spans->count; i += 2) {
        if (spans->at[i] >= spans->at[i + 1]) continue;
        TESS_TRY(tokens_before(t, where, text, spans->at[i], ids, from, &begin, &whole));
        TESS_TRY(tokens_before(t, where, text, spans->at[i + 1], ids, from, &end, &whole));
        if (!whole && from + end < ids->count) end++; /* a token that goes on behind the span */
        for (size_t k = begin; k < end; k++) labels->id[base + k] = ids->id[from + k];
    }
    return TESS_OK;
}

tess_status tess_chat_encode(const tess_chat *c, const tess_tokenizer *t, const char *where, const json_t *talk,
                             int learned, tess_ids *ids, tess_ids *labels)
{
    enum { NO_TARGET = -100 };
    const bool all = learned == TESS_CHAT_ALL;
    struct talk k = {.c = c, .where = where, .talk = talk};
    tess_text_spans spans = {0};
    const size_t from = ids->count;
    tess_status status = check_messages(where, talk);
    if (status == TESS_OK) status = render(c, where, talk, SIZE_MAX, false, &k.full, &spans);
    if (status == TESS_OK) status = tess_tokenizer_encode(t, where, k.full.data, k.full.length, ids);
    if (status == TESS_OK && learned > 0)
        status = find_rest(&k, (size_t)learned, &spans);
    else if (status == TESS_OK && !all && !c->marks)
        status = find_turns(&k, &spans);
    for (size_t i = from; i < ids->count; i++) tess_ids_push(labels, all ? ids->id[i] : NO_TARGET);
    if (status == TESS_OK && !all) status = label(t, where, &k.full, &spans, ids, from, labels);
    tess_text_spans_free(&spans);
    free(k.full.data);
    free(k.asked.data);
    free(k.told.data);
    return status;
}
