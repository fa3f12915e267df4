/* Encoding: a text goes through the parts region by region, and a long region stretch by stretch where that comes to
 * the same, so that a file of any size is encoded in bounded memory. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <stdlib.h>
#include <string.h>

enum { WORD_BYTES = 16 << 20, STRETCH = 1 << 20, STEP = 256 };

/* What a thread works with: kept from text to text, with the words that it remembers. */
struct tess_workspace {
    tess_workspace *next;
    pcre2_match_data *match;
    tess_scratch scratch;
    tess_words *words;
    tess_cutting cutting;
    tess_normal normal;
    tess_bytes room;
};

static tess_workspace *take_workspace(tess_tokenizer *t)
{
    pthread_mutex_lock(&t->lock);
    tess_workspace *w = t->waiting;
    if (w) t->waiting = w->next;
    pthread_mutex_unlock(&t->lock);
    if (w) return w;
    w = tess_alloc(sizeof *w);
    w->match = pcre2_match_data_create(1, NULL);
    TESS_ASSERT(w->match);
    w->words = tess_words_new();
    w->cutting = (tess_cutting){.p = &t->pretokenizer, .match = w->match};
    return w;
}

static void give_workspace(tess_tokenizer *t, tess_workspace *w)
{
    pthread_mutex_lock(&t->lock);
    w->next = t->waiting;
    t->waiting = w;
    pthread_mutex_unlock(&t->lock);
}

void tess_workspaces_free(tess_tokenizer *t)
{
    for (tess_workspace *w = t->waiting, *next; w; w = next) {
        next = w->next;
        pcre2_match_data_free(w->match);
        tess_scratch_free(&w->scratch);
        tess_words_free(w->words);
        tess_cutting_free(&w->cutting);
        for (int i = 0; i < 2; i++) free(w->normal.own[i].data);
        free(w->room.data);
        free(w);
    }
    t->waiting = NULL;
}

/* Where a text is: a region of it, a stretch of that, a part of what is normalized of that, and words of that part. */
struct tess_encoding_state {
    tess_tokenizer *t;
    char *where;
    tess_workspace *w;
    tess_ids *ids;           /* of the call that goes on */
    size_t end, scan;        /* the region ends; added tokens are looked for from here */
    const tess_added *added; /* that ends it; NULL: the text does */
    size_t added_end;
    size_t begin, from, to; /* the region begins; the stretch */
    size_t part, normal_scan, normal_begin, normal_end;
    const tess_added *normal_added;
    enum { REGION, STRETCHES, PARTS, WORDS } stage;
};

static tess_status bad_text(const char *where, size_t at, const char *what)
{
    TESS_FREED char *place = tess_format("%s: byte %zu", where, at);
    return tess_error(TESS_INVALID, place, "%s", what);
}

static tess_status encode_word(void *user, const char *word, size_t n)
{
    struct tess_encoding_state *s = user;
    const tess_tokenizer *t = s->t;
    const size_t before = s->ids->count;
    uint64_t hash = 0;
    if (n > WORD_BYTES) return tess_error(TESS_INVALID, "text", "one word of more than 16 MiB (is this a text?)");
    if (tess_words_find(s->w->words, word, n, &hash, s->ids)) return TESS_OK;
    if (t->bpe)
        tess_bpe_encode(t->bpe, word, n, &s->w->scratch, s->ids);
    else if (t->wordpiece)
        tess_wordpiece_encode(t->wordpiece, word, n, &s->w->room, s->ids);
    else
        TESS_TRY(tess_unigram_encode(t->unigram, word, n, &s->w->scratch, s->ids));
    tess_words_keep(s->w->words, hash, word, n, s->ids->id + before, s->ids->count - before);
    return TESS_OK;
}

/* ---- the stages ---- */

/* Pushes the added token that ends at *end, and those that follow it without text between, but for one that lies wholly
 * in blanks which the token before it took along. Then finds the next one: text goes from *end to *next_begin. */
static void push_added(struct tess_encoding_state *s, const tess_added_set *set, const char *text, size_t n,
                       const tess_added **added, size_t *scan, size_t *end, size_t *next_begin, size_t *next_end)
{
    bool empty = false;
    for (size_t at = *end;; at = *next_end) {
        if (!empty) tess_ids_push(s->ids, (*added)->id);
        *end = at;
        *next_begin = *next_end = n;
        *added = tess_added_find(set, text, n, at, scan, next_begin, next_end);
        if (!*added || *next_begin > at) return;
        empty = *next_begin >= *next_end;
    }
}

static void find_region(tess_encoding *e)
{
    struct tess_encoding_state *s = e->state;
    s->end = s->added_end = e->length;
    s->added = tess_added_find(&s->t->raw, e->text, e->length, e->at, &s->scan, &s->end, &s->added_end);
    s->begin = s->to = e->at;
    s->stage = STRETCHES;
}

static bool letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* The end of a stretch, before a blank between letters; the region's where it is near or there is no such place. */
static size_t stretch_end(const struct tess_encoding_state *s, const char *text)
{
    if (!s->t->may_cut || s->end - s->from < 2 * STRETCH) return s->end;
    for (size_t at = s->from + STRETCH; at + 1 < s->end; at++)
        if (text[at] == ' ' && letter(text[at - 2]) && letter(text[at - 1]) && letter(text[at + 1])) return at;
    return s->end;
}

static tess_status find_stretch(tess_encoding *e)
{
    struct tess_encoding_state *s = e->state;
    tess_normal *io = &s->w->normal;
    if (s->to == s->end) { /* the region is through */
        size_t at = s->added_end;
        if (s->added) push_added(s, &s->t->raw, e->text, e->length, &s->added, &s->scan, &at, &s->end, &s->added_end);
        e->at = s->begin = s->to = at;
        return TESS_OK;
    }
    s->from = s->to;
    s->to = stretch_end(s, e->text);
    io->first = s->from == s->begin;
    io->last = s->to == s->end;
    io->text = e->text + s->from;
    io->length = s->to - s->from;
    io->shifted = false;
    TESS_TRY(tess_normalize(s->t->normalizer, s->w->match, io));
    s->part = s->normal_scan = 0;
    s->normal_begin = s->normal_end = io->length;
    s->normal_added =
        tess_added_find(&s->t->normal, io->text, io->length, 0, &s->normal_scan, &s->normal_begin, &s->normal_end);
    s->stage = PARTS;
    return TESS_OK;
}

static void find_part(tess_encoding *e)
{
    struct tess_encoding_state *s = e->state;
    const tess_normal *io = &s->w->normal;
    if (s->part >= io->length) { /* the stretch is through */
        e->at = s->to;
        s->stage = STRETCHES;
        return;
    }
    tess_cutting_start(&s->w->cutting, io->text + s->part, s->normal_begin - s->part,
                       !s->from && !s->part && !io->shifted);
    s->stage = WORDS;
}

static tess_status find_words(tess_encoding *e)
{
    struct tess_encoding_state *s = e->state;
    tess_cutting *c = &s->w->cutting;
    if (c->at < c->length) {
        TESS_TRY(tess_cutting_next(c, STEP));
        if (c->text >= e->text && c->text < e->text + e->length) /* it is the text itself */
            e->at = (size_t)(c->text - e->text) + c->at;
        return TESS_OK;
    }
    s->part = s->normal_end;
    if (s->normal_added)
        push_added(s, &s->t->normal, s->w->normal.text, s->w->normal.length, &s->normal_added, &s->normal_scan,
                   &s->part, &s->normal_begin, &s->normal_end);
    s->stage = PARTS;
    return TESS_OK;
}

static tess_status step(tess_encoding *e)
{
    switch (e->state->stage) {
    case REGION:
        return find_region(e), TESS_OK;
    case STRETCHES:
        return find_stretch(e);
    case PARTS:
        return find_part(e), TESS_OK;
    case WORDS:
        break;
    }
    return find_words(e);
}

/* ---- from outside ---- */

tess_status tess_encoding_start(const tess_tokenizer *t, const char *where, const char *text, size_t length,
                                tess_encoding *e)
{
    *e = (tess_encoding){.text = text, .length = length};
    if (!t) return TESS_OK;
    if (t->unsupported) return tess_error(TESS_INVALID, where, "is a text, and %s", t->unsupported);
    const size_t valid = tess_utf8_valid(text, length);
    if (valid < length) return bad_text(where, valid, "is not UTF-8, which a tokenizer needs");
    struct tess_encoding_state *s = e->state = tess_alloc(sizeof *s);
    s->t = (tess_tokenizer *)t; /* whose lock and workspaces change */
    s->where = tess_strdup(where);
    s->w = take_workspace(s->t);
    s->w->cutting.word = encode_word;
    s->w->cutting.user = s;
    return TESS_OK;
}

tess_status tess_encoding_next(tess_encoding *e, tess_ids *ids)
{
    struct tess_encoding_state *s = e->state;
    const size_t at = e->at, count = ids->count;
    tess_status status = TESS_OK;
    if (!s) { /* bytes */
        for (size_t n = 0; n < 1 << 16 && e->at < e->length; n++) tess_ids_push(ids, (unsigned char)e->text[e->at++]);
        return TESS_OK;
    }
    s->ids = ids;
    while (status == TESS_OK && e->at == at && e->at < e->length && ids->count == count) status = step(e);
    if (status == TESS_OK) return TESS_OK;
    TESS_FREED char *place = tess_format("%s: byte %zu", s->where, e->at);
    tess_error_at(status, "text", place);
    return status;
}

void tess_encoding_end(tess_encoding *e)
{
    if (e->state) {
        give_workspace(e->state->t, e->state->w);
        free(e->state->where);
        free(e->state);
    }
    *e = (tess_encoding){0};
}

tess_status tess_tokenizer_encode(const tess_tokenizer *t, const char *where, const char *text, size_t length,
                                  tess_ids *ids)
{
    tess_encoding e;
    tess_status status = tess_encoding_start(t, where, text, length, &e);
    while (status == TESS_OK && e.at < e.length) status = tess_encoding_next(&e, ids);
    tess_encoding_end(&e);
    return status;
}

void tess_tokenizer_around(const tess_tokenizer *t, const tess_ids **before, const tess_ids **behind)
{
    static const tess_ids none;
    const bool known = t && !t->unsupported;
    *before = known ? &t->around.before : &none;
    *behind = known ? &t->around.behind : &none;
}
