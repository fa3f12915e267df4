/* Added tokens: strings that are a token wherever they stand in a text, found before anything else is done with it, or,
 * where they are normalized, in what the normalizer made of it. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

static tess_status read_match(const tess_reader *r, const char *field, const tess_normalizer *normalizer, tess_added *a)
{
    a->match = a->content;
    if (!a->normalized || !normalizer) return TESS_OK;
    pcre2_match_data *match = pcre2_match_data_create(1, NULL);
    tess_normal io = {.text = a->content.bytes, .length = a->content.length, .first = true, .last = true};
    tess_status status = tess_normalize(normalizer, match, &io);
    char *own = tess_arena_get(r->arena, io.length + 1);
    if (io.length) memcpy(own, io.text, io.length);
    a->match = (tess_token){own, io.length};
    for (int i = 0; i < 2; i++) free(io.own[i].data);
    pcre2_match_data_free(match);
    if (status == TESS_OK && io.length) return TESS_OK;
    return tess_file_error(r->path, field, "\"%s\" is nothing any more once it is normalized", a->content.bytes);
}

static tess_status read_one(const tess_reader *r, const json_t *json, const tess_normalizer *normalizer,
                            const tess_vocab *vocab, tess_tokens *tokens, const char *field, tess_added *a)
{
    const json_t *content = json_object_get(json, "content"), *id = json_object_get(json, "id");
    const size_t n = json_string_length(content);
    if (!json_is_string(content) || !n || !json_is_integer(id))
        return tess_file_error(r->path, field, "expected an object with a content and an integer id");
    a->content = tess_token_copy(r, json_string_value(content), n);
    TESS_TRY(tess_json_flag(r, field, json, "single_word", false, &a->single_word));
    TESS_TRY(tess_json_flag(r, field, json, "lstrip", false, &a->lstrip));
    TESS_TRY(tess_json_flag(r, field, json, "rstrip", false, &a->rstrip));
    TESS_TRY(tess_json_flag(r, field, json, "special", false, &a->special));
    TESS_TRY(tess_json_flag(r, field, json, "normalized", !a->special, &a->normalized));
    const int32_t known = tess_vocab_get(vocab, a->content.bytes, n);
    if (known >= 0 && known != json_integer_value(id))
        return tess_file_error(r->path, field, "\"%s\" has id %lld here and %d in model.vocab", a->content.bytes,
                               (long long)json_integer_value(id), known);
    TESS_TRY(read_match(r, field, normalizer, a));
    if (known < 0) TESS_TRY(tess_tokens_set(r, tokens, field, json_integer_value(id), a->match));
    a->id = (int32_t)json_integer_value(id);
    tokens->token[a->id] = a->match; /* which is what it is decoded from too */
    return TESS_OK;
}

tess_status tess_added_read(const tess_reader *r, const json_t *json, const tess_normalizer *normalizer,
                            const tess_vocab *vocab, tess_tokens *tokens, tess_added **added, size_t *count)
{
    if (json && !json_is_null(json) && !json_is_array(json))
        return tess_file_error(r->path, "added_tokens", "expected an array");
    *count = json_array_size(json);
    *added = tess_arena_get(r->arena, (*count + 1) * sizeof **added);
    for (size_t i = 0; i < *count; i++) {
        char field[64];
        snprintf(field, sizeof field, "added_tokens[%zu]", i);
        TESS_TRY(read_one(r, json_array_get(json, i), normalizer, vocab, tokens, field, *added + i));
    }
    return TESS_OK;
}

/* By first byte, and longer before shorter, so that the first match is the longest. */
static int compare(const void *a, const void *b)
{
    const tess_token *x = &(*(const tess_added *const *)a)->match, *y = &(*(const tess_added *const *)b)->match;
    const int first = (unsigned char)x->bytes[0] - (unsigned char)y->bytes[0];
    return first ? first : (x->length < y->length) - (x->length > y->length);
}

void tess_added_set_make(const tess_reader *r, const tess_added *added, size_t count, bool normalized,
                         tess_added_set *set)
{
    set->token = tess_arena_get(r->arena, (count + 1) * sizeof *set->token);
    set->count = 0;
    for (size_t i = 0; i < count; i++)
        if (added[i].normalized == normalized && added[i].match.length) set->token[set->count++] = &added[i];
    qsort(set->token, set->count, sizeof *set->token, compare);
    size_t i = 0;
    for (int byte = 0; byte <= 256; byte++) {
        while (i < set->count && (unsigned char)set->token[i]->match.bytes[0] < byte) i++;
        set->first[byte] = i;
    }
}

/* ---- finding ---- */

static const tess_added *token_at(const tess_added_set *set, const char *s, size_t n)
{
    const unsigned char first = (unsigned char)s[0];
    for (size_t i = set->first[first]; i < set->first[first + 1]; i++) {
        const tess_token *k = &set->token[i]->match;
        if (k->length <= n && memcmp(s, k->bytes, k->length) == 0) return set->token[i];
    }
    return NULL;
}

static bool within_word(const char *s, size_t n, size_t begin, size_t end)
{
    size_t bytes;
    return (begin > 0 && tess_is_word(tess_utf8_last(s, begin, &bytes))) ||
           (end < n && tess_is_word(tess_utf8_get(s + end, &bytes)));
}

const tess_added *tess_added_find(const tess_added_set *set, const char *s, size_t n, size_t from, size_t *scan,
                                  size_t *begin, size_t *end)
{
    size_t bytes, at = *scan;
    const tess_added *a = NULL;
    for (; set->count && at < n; at++) {
        if (!(a = token_at(set, s + at, n - at))) continue;
        if (!a->single_word || !within_word(s, n, at, at + a->match.length)) break;
        at += a->match.length - 1; /* one that is passed over hides those within it */
        a = NULL;
    }
    if (!a) return *scan = n, NULL;
    *begin = at;
    *scan = *end = at + a->match.length;
    while (a->lstrip && *begin > from && tess_is_space(tess_utf8_last(s, *begin, &bytes))) *begin -= bytes;
    if (a->lstrip && *begin < from) *begin = from;
    while (a->rstrip && *end < n && tess_is_space(tess_utf8_get(s + *end, &bytes))) *end += bytes;
    return a;
}

bool tess_added_may_cut(const tess_added_set *set)
{
    for (size_t i = 0; i < set->count; i++) {
        const tess_token *k = &set->token[i]->match;
        if (set->token[i]->lstrip || set->token[i]->rstrip) return false;
        for (size_t at = 1; at < k->length; at++)
            if (k->bytes[at] == ' ' || (unsigned char)k->bytes[at] == 0xe2) return false;
    }
    return true;
}
