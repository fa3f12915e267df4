/* Samples out of files: the tokens of all files of a source lie behind one another and make one stream, cut into
 * samples, or their lines are the samples; several sources with weights take turns.
 *
 * The shuffle is a keyed bijection of 0 .. samples-1, and whose turn it is at a position follows from the weights
 * alone, so neither the samples nor their order are ever held, and a run goes on anywhere.
 */
#include "models/files/data/data_file_impl.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

struct stream {
    tess_token_file *file; /* owned */
    uint64_t *first;       /* owned: by file, the place of its first token in the stream, or its first sample */
    size_t files;
    bool examples; /* samples are lines */
    uint64_t tokens, samples;
    uint64_t all, apart; /* samples that there are, and that are held out; else all are 0 apart */
    tess_packs packs;    /* which examples share a sample; of all samples that are seen here */
    uint64_t share;      /* of the turns that the sources before leave, in 2^-32: all of them for the last */
};

struct tess_data {
    tess_data_conf conf;
    struct stream *source;
    size_t sources;
    uint64_t tokens, samples, shared, sum;
    tess_arrays *arrays; /* NULL: there are tokens */
    char *left_out;      /* see tess_data_left_out */
    tess_line_rules rules;
    int32_t *special; /* owned: conf's */
};

/* ---- open and close ---- */

static tess_data *new_data(const tess_data_conf *conf, size_t sources)
{
    TESS_ASSERT(conf->seq_length >= 1 && conf->vocab >= 1 && conf->vocab <= INT32_MAX);
    tess_data *d = tess_alloc(sizeof *d);
    *d = (tess_data){.conf = *conf, .source = tess_alloc(sources * sizeof *d->source), .sources = sources};
    d->sum = TESS_SUM;
    d->special = tess_alloc((conf->specials + 1) * sizeof *d->special);
    for (size_t i = 0; i < conf->specials; i++) d->special[i] = conf->special[i];
    d->conf.special = d->special;
    d->rules = (tess_line_rules){.conf = &d->conf, .end_of_text = conf->end_of_text};
    return d;
}

static tess_token_file *add_file(struct stream *s)
{
    s->file = tess_realloc(s->file, (s->files + 1) * sizeof *s->file);
    s->first = tess_realloc(s->first, (s->files + 1) * sizeof *s->first);
    s->file[s->files] = (tess_token_file){0};
    return &s->file[s->files++];
}

/* Tokens and lines have no order among each other that anybody could expect. */
static tess_status check_kinds(const struct stream *s)
{
    for (size_t i = 1; i < s->files; i++)
        if ((s->file[i].examples > 0) != s->examples)
            return tess_error(TESS_INVALID, s->file[i].path,
                              "is %s, but %s, before it in the list, is %s (weights allow both in one list)",
                              s->examples ? "a stream of tokens" : "examples", s->file[i - 1].path,
                              s->examples ? "examples" : "a stream of tokens");
    return TESS_OK;
}

/* Tokens of a stream from one sample to the next, and those that a sample takes. */
static void sample_tokens(const tess_data_conf *c, uint64_t *from, uint64_t *take)
{
    const bool spans = c->task == TESS_DATA_DECODER && c->noise_density > 0;
    *from = (uint64_t)(spans ? tess_span_length(c) : c->seq_length);
    *take = *from + (c->task == TESS_DATA_CAUSAL);
}

/* Can what a model learns be had from tokens alone? */
static tess_status check_task(const tess_data *d, const char *name)
{
    const tess_data_conf *c = &d->conf;
    const char *what = NULL;
    if (c->pairs)
        what = "has no pairs, from which preference.loss learns (expected lines of {\"prompt\", \"chosen\", "
               "\"rejected\"})";
    else if (c->judged)
        what = "has no labels of completions, from which preference.loss learns (expected lines of {\"prompt\", "
               "\"completion\", \"label\"})";
    else if (c->task == TESS_DATA_LABEL)
        what = "has no label for its samples (expected lines of {\"text\", \"label\"} or {\"input_ids\", \"label\"})";
    else if (c->both)
        what = "does not say of two texts whether they follow each other (expected a .jsonl of {\"input_ids\", "
               "\"token_type_ids\", \"next_sentence_label\"})";
    else if (c->task == TESS_DATA_MASKED && !(c->mlm_probability > 0))
        what = "has no labels (set data.mlm_probability, or give a .jsonl of {\"input_ids\", \"labels\"})";
    else if (c->task == TESS_DATA_MASKED && c->mask_token < 0)
        what = "has no labels, and data.mask_token says nothing (the tokenizer has no [MASK])";
    else if (c->task == TESS_DATA_DECODER && !(c->noise_density > 0))
        what = "has no labels (set data.noise_density, or give a .jsonl of {\"input_ids\", \"labels\"})";
    else if (c->task == TESS_DATA_DECODER && d->rules.end_of_text < 0)
        what = "needs a token that ends a text (the tokenizer has none, the model's config.json no eos_token_id)";
    else if (c->task == TESS_DATA_DECODER && c->pack)
        what = "is cut into spans, whose documents data.pack cannot keep apart";
    return what ? tess_error(TESS_INVALID, name, "%s", what) : TESS_OK;
}

/* The last file that begins at or before `at`. */
static size_t file_at(const struct stream *s, uint64_t at)
{
    size_t low = 0, high = s->files;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        *(s->first[middle] <= at ? &low : &high) = middle;
    }
    return low;
}

/* Returns where held-out sample `which` lies among all: in the middle of its part, one of s->apart equal ones. */
static uint64_t held_at(const struct stream *s, uint64_t which)
{
    return (uint64_t)((unsigned __int128)(2 * which + 1) * s->all / (2 * s->apart));
}

/* The place among all of a sample that is seen here. */
static uint64_t place_of(const struct stream *s, bool holds, uint64_t sample)
{
    uint64_t low = 0, high = s->apart; /* how many of those held out lie before it */
    if (!s->apart) return sample;
    if (holds) return held_at(s, sample);
    while (low < high) {
        const uint64_t middle = low + (high - low) / 2;
        if (held_at(s, middle) - middle <= sample)
            low = middle + 1;
        else
            high = middle;
    }
    return sample + low;
}

/* What packing asks of an example that is seen here. */
struct seen {
    const struct stream *s;
    bool holds;
};
static int64_t places_of(const void *of, uint64_t example)
{
    const struct seen *seen = of;
    const uint64_t place = place_of(seen->s, seen->holds, example);
    const size_t i = file_at(seen->s, place);
    return tess_lines_places(seen->s->file[i].lines, place - seen->s->first[i]);
}

/* The examples that are seen here share samples from now on. */
static void share_samples(tess_data *d, struct stream *s)
{
    const uint64_t key = tess_data_mix(d->conf.seed);
    tess_packs_make(s->samples, d->conf.seq_length, d->conf.shuffle ? &key : NULL, places_of,
                    &(struct seen){s, d->conf.holds}, &s->packs);
    d->shared += s->samples;
    s->samples = s->packs.count;
    d->sum = tess_sum_bytes(d->sum, &s->samples, sizeof s->samples);
}

/* The samples that are seen here: those that are held out, or the rest. */
static tess_status hold_out(tess_data *d, struct stream *s, const char *name)
{
    const tess_data_conf *c = &d->conf;
    s->all = s->samples;
    if (c->held > 0) {
        s->apart = (uint64_t)((double)s->all * c->held);
        if (!s->apart || s->apart >= s->all)
            return tess_error(
                TESS_INVALID, s->files == 1 ? s->file[0].path : name,
                "has %llu samples, and data.valid %g holds out %llu (expected one at least, and one left)",
                (unsigned long long)s->all, c->held, (unsigned long long)s->apart);
        s->samples = c->holds ? s->apart : s->all - s->apart;
        d->sum = tess_sum_bytes(d->sum, &c->held, sizeof c->held);
    }
    const uint64_t seen = s->samples;
    if (s->examples && c->share) share_samples(d, s);
    d->samples += s->samples;
    d->tokens += s->apart ? (uint64_t)((double)s->tokens * (double)seen / (double)s->all) : s->tokens;
    return TESS_OK;
}

/* All files of a source are there: its tokens and samples. */
static tess_status finish_stream(tess_data *d, struct stream *s, const char *name)
{
    uint64_t from, take;
    s->examples = s->file[0].examples > 0;
    TESS_TRY(check_kinds(s));
    for (size_t i = 0; i < s->files; i++) {
        s->first[i] = s->examples ? s->samples : s->tokens;
        s->tokens += s->file[i].tokens;
        s->samples += s->file[i].examples;
        d->sum = tess_token_file_sum(&s->file[i], d->sum);
    }
    if (!s->examples && s->file[s->files - 1].lines) s->tokens--; /* the end of the last text lies between no two */
    if (s->examples) return hold_out(d, s, name);
    TESS_TRY(check_task(d, s->files == 1 ? s->file[0].path : name));
    sample_tokens(&d->conf, &from, &take);
    if (s->tokens < take)
        return tess_error(TESS_INVALID, s->files == 1 ? s->file[0].path : name,
                          "holds %llu tokens, one sample of seq_length %llu needs %llu", (unsigned long long)s->tokens,
                          (unsigned long long)d->conf.seq_length, (unsigned long long)take);
    s->samples = (s->tokens - (take - from)) / from;
    return hold_out(d, s, name);
}

static tess_status open_source(tess_data *d, struct stream *s, const tess_data_source *from)
{
    for (size_t i = 0; i < from->files; i++) TESS_TRY(tess_token_file_open(&from->file[i], &d->rules, add_file(s)));
    return finish_stream(d, s, from->name);
}

static void share_turns(tess_data *d, const tess_data_paths *paths)
{
    double rest = 0;
    for (size_t k = 0; k < d->sources; k++) rest += paths->source[k].weight;
    for (size_t k = 0; k < d->sources; k++) {
        const double weight = paths->source[k].weight;
        const bool last = k + 1 == d->sources;
        d->source[k].share = last ? UINT64_C(1) << 32 : (uint64_t)llrint(0x1p32 * fmin(1, weight / rest));
        rest -= weight;
        if (d->sources > 1) d->sum = (d->sum ^ d->source[k].share) * UINT64_C(0x100000001b3);
    }
}

/* Where neither the caller nor the tokenizer names a token that ends a text, the byte 0 does, if tokens are bytes. */
static void find_end_of_text(const tess_data_paths *paths, const tess_tokenizer *tokenizer, tess_data *d)
{
    bool bytes = !tokenizer;
    for (size_t k = 0; k < paths->sources; k++)
        for (size_t i = 0; i < paths->source[k].files; i++)
            bytes &=
                paths->source[k].file[i].kind == TESS_DATA_TEXT || paths->source[k].file[i].kind == TESS_DATA_LINES;
    int32_t *end = &d->rules.end_of_text;
    if (*end < 0) *end = tess_tokenizer_end_of_text(tokenizer);
    if (*end < 0 && bytes) *end = 0;
}

/* Tokens that stand for others must be the model's. */
static tess_status check_masks(const tess_data_conf *c)
{
    const char *where = c->key ? c->key : "data";
    int64_t noise, spans;
    if (c->task == TESS_DATA_MASKED && c->mask_token >= c->vocab) /* below 0: whoever needs it says so */
        return tess_error(TESS_INVALID, where, "data.mask_token: %d, expected 0 to %lld", c->mask_token,
                          (long long)c->vocab - 1);
    if (c->task != TESS_DATA_DECODER || !(c->noise_density > 0)) return TESS_OK;
    tess_span_count(c, tess_span_length(c), &noise, &spans);
    if (c->sentinel < spans - 1 || c->sentinel >= c->vocab)
        return tess_error(TESS_INVALID, where, "data.sentinel_token: %d, expected %lld to %lld, for %lld spans",
                          c->sentinel, (long long)spans - 1, (long long)c->vocab - 1, (long long)spans);
    return TESS_OK;
}

static tess_status open_paths(const tess_data_paths *paths, const tess_tokenizer *tokenizer, tess_data *d)
{
    d->rules.tokenizer = tokenizer;
    find_end_of_text(paths, tokenizer, d);
    if (d->conf.pack && d->rules.end_of_text < 0)
        return tess_error(TESS_INVALID, d->conf.key ? d->conf.key : "data",
                          "data.pack: which token ends a document is not known (the tokenizer has no end of text, the "
                          "model's config.json no eos_token_id)");
    TESS_TRY(check_masks(&d->conf));
    for (size_t k = 0; k < d->sources; k++) TESS_TRY(open_source(d, &d->source[k], &paths->source[k]));
    share_turns(d, paths);
    if (paths->left_out == 1) d->left_out = tess_strdup(paths->left);
    if (paths->left_out > 1) d->left_out = tess_format("%s and %zu more files", paths->left, paths->left_out - 1);
    return TESS_OK;
}

static tess_status finish_open(tess_data *d, tess_status status, tess_data **data)
{
    *data = status == TESS_OK ? d : NULL;
    if (status != TESS_OK) tess_data_close(d);
    return status;
}

tess_status tess_data_open(const char *text, const tess_tokenizer *tokenizer, const tess_data_conf *conf,
                           tess_data **data)
{
    tess_data_paths paths;
    *data = NULL;
    tess_status status = tess_data_paths_open(conf->key ? conf->key : "data", text, &paths);
    if (status == TESS_OK) {
        tess_data *d = new_data(conf, paths.sources);
        status = finish_open(d, open_paths(&paths, tokenizer, d), data);
    }
    tess_data_paths_close(&paths);
    return status;
}

bool tess_data_has_examples(const char *text, bool labels)
{
    tess_data_paths paths;
    bool has = false;
    if (tess_data_paths_open("data", text, &paths) != TESS_OK) tess_error_clear();
    for (size_t k = 0; k < paths.sources; k++)
        for (size_t i = 0; i < paths.source[k].files && !has; i++)
            if (paths.source[k].file[i].kind == TESS_DATA_LINES)
                has = tess_lines_look(paths.source[k].file[i].path) >= (labels ? TESS_LINES_LABELLED : TESS_LINES_PAIR);
    tess_data_paths_close(&paths);
    return has;
}

tess_status tess_data_view(const tess_map *idx, const tess_map *bin, const tess_data_conf *conf, tess_data **data)
{
    tess_data *d = new_data(conf, 1);
    struct stream *s = &d->source[0];
    tess_status status = tess_token_file_view(idx, bin, add_file(s));
    if (status == TESS_OK) status = finish_stream(d, s, bin->path);
    s->share = UINT64_C(1) << 32;
    return finish_open(d, status, data);
}

tess_status tess_data_open_arrays(const char *text, const tess_array_want *want, int count, const tess_data_conf *conf,
                                  tess_data **data)
{
    tess_data *d = new_data(conf, 1);
    struct stream *s = &d->source[0];
    tess_status status = tess_arrays_open(conf->key ? conf->key : "data", text, want, count, &d->arrays);
    if (status == TESS_OK) {
        d->sum = tess_arrays_sum(d->arrays, d->sum);
        s->samples = s->tokens = tess_arrays_samples(d->arrays);
        s->share = UINT64_C(1) << 32;
        status = hold_out(d, s, conf->key);
    }
    return finish_open(d, status, data);
}

void tess_data_close(tess_data *d)
{
    if (!d) return;
    tess_arrays_close(d->arrays);
    for (size_t k = 0; k < d->sources; k++) {
        for (size_t i = 0; i < d->source[k].files; i++) tess_token_file_close(&d->source[k].file[i]);
        tess_packs_free(&d->source[k].packs);
        free(d->source[k].file);
        free(d->source[k].first);
    }
    free(d->source);
    free(d->left_out);
    free(d->special);
    free(d);
}

uint64_t tess_data_tokens(const tess_data *d)
{
    return d->tokens;
}
uint64_t tess_data_samples(const tess_data *d)
{
    return d->samples;
}
bool tess_data_by_lines(const tess_data *d)
{
    for (size_t k = 0; k < d->sources; k++)
        if (d->source[k].examples && !d->source[k].packs.count) return true;
    return false;
}
uint64_t tess_data_shared(const tess_data *d)
{
    return d->shared;
}
uint64_t tess_data_sum(const tess_data *d)
{
    return d->sum;
}
size_t tess_data_sources(const tess_data *d)
{
    return d->sources;
}
const char *tess_data_left_out(const tess_data *d)
{
    return d->left_out;
}

uint64_t tess_data_longest(const tess_data *d)
{
    uint64_t most = 0;
    for (size_t k = 0; k < d->sources; k++)
        for (size_t i = 0; i < d->source[k].files; i++) {
            const tess_lines *lines = d->source[k].file[i].lines;
            if (!d->source[k].examples || d->source[k].packs.count) return 0;
            if (lines && lines->longest > most) most = lines->longest;
        }
    return most;
}

uint64_t tess_data_lines_left_out(const tess_data *d)
{
    uint64_t lines = 0;
    for (size_t k = 0; k < d->sources; k++)
        for (size_t i = 0; i < d->source[k].files; i++)
            if (d->source[k].file[i].lines) lines += d->source[k].file[i].lines->left_out;
    return lines;
}

size_t tess_data_files(const tess_data *d)
{
    size_t files = d->arrays ? (size_t)tess_arrays_files(d->arrays) : 0;
    for (size_t k = 0; k < d->sources; k++) files += d->source[k].files;
    return files;
}

/* ---- reading ---- */

/* out: (n), the tokens from place `at` of the stream. */
static tess_status read_stream(const struct stream *s, uint64_t at, uint64_t n, int64_t vocab, int32_t *out)
{
    for (size_t i = file_at(s, at); n; i++) {
        const uint64_t place = at - s->first[i], left = s->file[i].tokens - place, take = n < left ? n : left;
        TESS_TRY(tess_token_file_read(&s->file[i], place, take, vocab, out));
        at += take;
        n -= take;
        out += take;
    }
    return TESS_OK;
}

/* Makes the labels of an example that has none. */
static void mask(const tess_data *d, uint64_t place, tess_example *e)
{
    if (d->conf.task == TESS_DATA_MASKED)
        tess_mask_tokens(&d->rules, place, e);
    else
        tess_mask_spans(&d->rules, place, e);
}

static tess_status get_tokens(const tess_data *d, const struct stream *s, uint64_t sample, const tess_sample *into)
{
    uint64_t from, take;
    sample_tokens(&d->conf, &from, &take);
    int32_t *tokens = tess_alloc((take + 1) * sizeof *tokens);
    tess_example e = {.ids = {.id = tokens, .count = from, .room = take + 1}};
    tess_status status = read_stream(s, sample * from, take, d->conf.vocab, tokens);
    if (status == TESS_OK && d->conf.task != TESS_DATA_DECODER)
        tess_sample_of_stream(&d->conf, d->rules.end_of_text, tokens, into);
    if (status == TESS_OK && d->conf.task != TESS_DATA_CAUSAL) {
        tess_sample masked = *into;
        mask(d, into->place, &e);
        if (d->conf.task == TESS_DATA_MASKED) masked = (tess_sample){.ids = into->ids, .targets = into->targets};
        tess_sample_of_example(&d->conf, &e, &masked);
    }
    tess_example_free(&e);
    return status;
}

static tess_status put_example(const tess_data *d, const struct stream *s, uint64_t place, uint64_t dice, int64_t *at,
                               tess_example *e, const tess_sample *into)
{
    const size_t i = file_at(s, place);
    TESS_TRY(tess_lines_get(s->file[i].lines, &d->rules, place - s->first[i], into->other, e));
    if (e->bare) mask(d, dice, e);
    *at = tess_sample_put(&d->conf, e, *at, into);
    return TESS_OK;
}

/* The examples of a sample, which are one where they do not share it. */
static tess_status get_examples(const tess_data *d, const struct stream *s, uint64_t sample, const tess_sample *into)
{
    const bool shared = s->packs.count;
    const uint64_t first = shared && sample ? s->packs.end[sample - 1] : 0,
                   n = shared ? s->packs.end[sample] - first : 1;
    tess_example e = {0};
    tess_status status = TESS_OK;
    int64_t at = 0;
    for (uint64_t k = 0; k < n && status == TESS_OK; k++) {
        const uint64_t which = shared ? s->packs.example[first + k] : sample;
        const uint64_t dice = k ? tess_data_mix(into->place + k) : into->place;
        status = put_example(d, s, place_of(s, d->conf.holds, which), dice, &at, &e, into);
    }
    if (status == TESS_OK) tess_sample_pad(&d->conf, at, into);
    tess_example_free(&e);
    return status;
}

tess_status tess_data_get(const tess_data *d, uint64_t sample, const tess_sample *into)
{
    const struct stream *s = d->source;
    TESS_ASSERT(sample < d->samples);
    for (; sample >= s->samples; s++) sample -= s->samples;
    return s->examples ? get_examples(d, s, sample, into) : get_tokens(d, s, place_of(s, d->conf.holds, sample), into);
}

tess_status tess_data_get_array(const tess_data *d, int k, uint64_t sample, void *out)
{
    TESS_ASSERT(d->arrays && sample < d->samples);
    return tess_arrays_get(d->arrays, k, place_of(d->source, d->conf.holds, sample), out);
}

/* ---- the order ---- */

/* How many of the first `positions` are those of a source with this share: the nearest whole number. */
static uint64_t turns(uint64_t positions, uint64_t share)
{
    return (uint64_t)(((unsigned __int128)positions * share + (UINT64_C(1) << 31)) >> 32);
}

/* Of the positions the first source gets its share, spread evenly; of those that are left the second one its share of
 * them, and so on. So each prefix of the run has what the weights say, to within a sample or so of each source. */
uint64_t tess_data_order(const tess_data *d, uint64_t position)
{
    const uint64_t golden = UINT64_C(0x9e3779b97f4a7c15);
    const struct stream *s = d->source;
    uint64_t before = 0, key = d->conf.seed + golden;
    for (;; s++, key += golden) {
        const uint64_t mine = turns(position, s->share);
        if (turns(position + 1, s->share) > mine) {
            position = mine;
            break;
        }
        position -= mine;
        before += s->samples;
    }
    const uint64_t epoch = position / s->samples, place = position % s->samples;
    if (!d->conf.shuffle) return before + place;
    return before + tess_data_permute(place, s->samples, tess_data_mix(tess_data_mix(key) + epoch));
}
