/* Targets out of text alone: tokens masked for a model that says what they were, and spans for an encoder and decoder.
 *
 * What is masked follows from the seed, the sample's place in the run and the token's place in the sample, so each
 * epoch has other masks, and a run that goes on, or runs on other ranks, has the same ones. */
#include "models/files/data/data_lines_impl.h"
#include "models/text/base/text.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a number is drawn for, so that no two draws are of one counter. */
enum purpose { CHOSEN, FATE, OTHER, ONE, NOISE, REST };

/* In [0, 1). */
static double draw(const tess_data_conf *c, uint64_t place, enum purpose purpose, uint64_t token)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    uint64_t x = tess_data_mix(c->seed + golden * (1 + (uint64_t)purpose));
    x = tess_data_mix(x + place + golden);
    x = tess_data_mix(x + token + golden);
    return (double)(x >> 11) * 0x1p-53;
}

static int32_t draw_below(const tess_data_conf *c, uint64_t place, enum purpose purpose, uint64_t token, int64_t below)
{
    return (int32_t)((double)below * draw(c, place, purpose, token));
}

/* ---- masks ---- */

static bool is_letter(char byte)
{
    return (byte >= '0' && byte <= '9') || (byte >= 'A' && byte <= 'Z') || (byte >= 'a' && byte <= 'z') || byte < 0;
}

/* Does a token go on with the word that the one before it is of? */
static bool goes_on(const tess_tokenizer *t, int32_t before, int32_t id)
{
    size_t n, m;
    if (before >= tess_tokenizer_vocab(t) || id >= tess_tokenizer_vocab(t)) return false;
    const char *text = tess_tokenizer_bytes(t, id, &n), *left = tess_tokenizer_bytes(t, before, &m);
    if (n > 2 && text[0] == '#' && text[1] == '#') return true; /* as a WordPiece spells it */
    return n > 0 && m > 0 && is_letter(text[0]) && is_letter(left[m - 1]);
}

static bool is_special(const tess_line_rules *r, int32_t id)
{
    for (size_t i = 0; i < r->conf->specials; i++)
        if (id == r->conf->special[i]) return true;
    return id == r->end_of_text || id == r->conf->mask_token;
}

/* Chooses a token with its whole word where that is asked for: begins is that of the word. */
static void mask_one(const tess_line_rules *r, uint64_t place, size_t t, tess_example *e)
{
    const tess_data_conf *c = r->conf;
    const double fate = draw(c, place, FATE, t);
    e->labels.id[t] = e->ids.id[t];
    if (fate < 0.8)
        e->ids.id[t] = c->mask_token;
    else if (fate < 0.9)
        e->ids.id[t] = draw_below(c, place, OTHER, t, c->vocab);
}

void tess_mask_tokens(const tess_line_rules *r, uint64_t place, tess_example *e)
{
    const tess_data_conf *c = r->conf;
    const size_t n = e->ids.count;
    size_t may = 0, chosen = 0;
    TESS_FREED bool *word = tess_alloc(n ? n : 1); /* begins a word */
    e->labels.count = 0;
    for (size_t t = 0; t < n; t++) {
        tess_ids_push(&e->labels, TESS_NO_TARGET);
        may += !is_special(r, e->ids.id[t]);
        word[t] = t == 0 || !c->whole_words || is_special(r, e->ids.id[t]) || is_special(r, e->ids.id[t - 1]) ||
                  !goes_on(r->tokenizer, e->ids.id[t - 1], e->ids.id[t]);
    }
    bool take = false;
    for (size_t t = 0; t < n; t++) { /* whose word begins at t, or was chosen before */
        const bool special = is_special(r, e->ids.id[t]);
        if (word[t]) take = draw(c, place, CHOSEN, t) < c->mlm_probability;
        if (special || !take) continue;
        mask_one(r, place, t, e);
        chosen++;
    }
    if (!chosen && may) { /* a sample without a target would be for nothing */
        size_t which = (size_t)draw_below(c, place, ONE, 0, (int64_t)may), t = 0;
        while (is_special(r, e->ids.id[t]) || which-- > 0) t++;
        mask_one(r, place, t, e);
    }
}

/* ---- spans ---- */

void tess_span_count(const tess_data_conf *c, int64_t n, int64_t *noise, int64_t *spans)
{
    *noise = llrint((double)n * c->noise_density);
    if (*noise > n - 1) *noise = n - 1;
    if (*noise < 1) *noise = 1;
    *spans = llrint((double)*noise / c->noise_span);
    if (*spans > n - *noise) *spans = n - *noise;
    if (*spans > *noise) *spans = *noise;
    if (*spans < 1) *spans = 1;
}

int64_t tess_span_length(const tess_data_conf *c)
{
    int64_t n = 1, noise, spans;
    for (;; n++) { /* an end behind both, a sentinel for each span in both */
        tess_span_count(c, n + 1, &noise, &spans);
        if (n + 1 - noise + spans + 1 > c->seq_length || noise + spans + 1 > c->seq_length) return n;
    }
}

/* Cuts n tokens into `parts` of at least one, each way as likely as another: length is (parts). */
static void cut(const tess_data_conf *c, uint64_t place, enum purpose purpose, int64_t n, int64_t parts,
                int64_t *length)
{
    int64_t at = 0, left = parts - 1;
    memset(length, 0, (size_t)parts * sizeof *length);
    for (int64_t i = 0; i < n; i++) {
        length[at]++;
        const int64_t gaps = n - 1 - i; /* still to come */
        if (left > 0 && draw(c, place, purpose, (uint64_t)i) * (double)gaps < (double)left) at++, left--;
    }
}

void tess_mask_spans(const tess_line_rules *r, uint64_t place, tess_example *e)
{
    const tess_data_conf *c = r->conf;
    const int64_t most = tess_span_length(c), n = (int64_t)e->ids.count < most ? (int64_t)e->ids.count : most;
    int64_t noise, spans;
    tess_span_count(c, n, &noise, &spans);
    int64_t *kept = tess_alloc((size_t)(2 * spans) * sizeof *kept), *gone = kept + spans;
    tess_ids in = {0};
    const int32_t *from = e->ids.id;
    cut(c, place, REST, n - noise, spans, kept);
    cut(c, place, NOISE, noise, spans, gone);
    e->labels.count = e->decoder.count = 0;
    for (int64_t s = 0; s < spans; s++) {
        for (int64_t i = 0; i < kept[s]; i++) tess_ids_push(&in, *from++);
        tess_ids_push(&in, c->sentinel - (int32_t)s);
        tess_ids_push(&e->labels, c->sentinel - (int32_t)s);
        for (int64_t i = 0; i < gone[s]; i++) tess_ids_push(&e->labels, *from++);
    }
    tess_ids_push(&in, r->end_of_text);
    tess_ids_push(&e->labels, r->end_of_text);
    tess_ids_free(&e->ids);
    e->ids = in;
    e->types.count = 0;
    tess_example_shift(c, e);
    free(kept);
}
