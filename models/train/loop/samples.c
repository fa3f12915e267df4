/* Texts from a model that is trained, see samples_impl.h. The step reads the whole of each text for each token that it
 * adds: a text has a few dozen tokens, nothing is held between evaluations, and the weights are where training has
 * them, on whatever ranks and tiers. */
#include "models/networks/networks.h"
#include "models/text/base/text.h"
#include "models/train/loop/samples_impl.h"
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 32, ADDED = 32 }; /* tokens of a prompt that is cut from a text, and those that are added at most */

struct text {
    int32_t *ids, *encoded; /* (length) each; encoded: the prompt of a decoder behind an encoder, else NULL */
    int64_t given, count, encoding;
    bool done;
};

struct tess_samples {
    tess_run *r;
    tess_graph *g;
    tess_network net;
    tess_step *step;
    int64_t length, vocab;
    int32_t end; /* the token that ends a text; -1: none does */
    int count;
    struct text *text;
    float *logits;
    char *made;
};

static bool decodes(const tess_run *r)
{
    return tess_model_answers(r->model) == TESS_ANSWERS_DECODER;
}

tess_status tess_samples_check(const tess_run *r)
{
    char where[512];
    if (!r->c->eval.samples) return TESS_OK;
    snprintf(where, sizeof where, "%.300s: eval.samples", r->c->file);
    if (!r->c->data.valid)
        return tess_error(TESS_INVALID, where, "data.valid is missing (its samples' beginnings are the prompts)");
    if (tess_model_batch(r->model) || (tess_model_answers(r->model) != TESS_ANSWERS_NEXT && !decodes(r)))
        return tess_error(TESS_INVALID, where, "the model does not go on with a text (0 makes no samples)");
    if (r->grid.sequence > 1 || r->grid.tensor > 1 || r->grid.pipeline > 1)
        return tess_error(TESS_INVALID, where,
                          "ranks share the model or its sequences, and only data-parallel ones make samples (0 makes "
                          "none)");
    return TESS_OK;
}

/* ---- prompts ---- */

/* What stands before the first target, or, where all of it draws a loss, its beginning. */
static void cut_prompt(const tess_run *r, struct text *t, const int32_t *targets, int64_t T)
{
    int64_t first = 0, last = T - 1;
    while (first < T && targets[first] < 0) first++;
    while (last > first && targets[last] < 0) last--;
    t->given = first < T && first > 0 ? first + 1 : (last + 2) / 2 < PROMPT ? (last + 2) / 2 : PROMPT;
    if (decodes(r)) t->given = 1;
    t->count = t->given;
}

static tess_status read_prompts(tess_samples *s, const tess_data *valid)
{
    const int64_t T = s->r->length;
    int32_t *targets = tess_alloc((size_t)T * sizeof *targets), *bounds = tess_alloc((size_t)(2 * T) * sizeof *bounds);
    tess_status status = TESS_OK;
    s->length = 1;
    for (int k = 0; k < s->count && status == TESS_OK; k++) {
        struct text *t = &s->text[k];
        tess_sample into = {.targets = targets, .bounds = bounds};
        t->ids = tess_alloc((size_t)T * sizeof *t->ids);
        if (decodes(s->r)) t->encoded = tess_alloc((size_t)T * sizeof *t->encoded);
        into.ids = decodes(s->r) ? t->encoded : t->ids;
        into.decoder_ids = decodes(s->r) ? t->ids : NULL;
        status = tess_data_get(valid, (uint64_t)k, &into);
        if (status != TESS_OK) break;
        cut_prompt(s->r, t, targets, T);
        while (t->encoding < T && bounds[T + t->encoding] > 0) t->encoding++;
        const int64_t end = t->given + ADDED, needs = decodes(s->r) && t->encoding > end ? t->encoding : end;
        if (needs > s->length) s->length = needs;
    }
    if (s->length > T) s->length = T;
    free(bounds);
    free(targets);
    return status;
}

/* ---- the step ---- */

static tess_status plan(tess_samples *s)
{
    const tess_run *r = s->r;
    const tess_graph_conf conf = {
        .dtype = r->dtype, .share = r->g, .grid = r->grid, .tile_rows = s->length * s->count, .loss_align = 0};
    const tess_build build = {.batch = s->count, .length = s->length, .purpose = TESS_FOR_LOGITS, .bounds = decodes(r)};
    s->g = tess_graph_new(&conf);
    TESS_TRY(tess_run_at_key(tess_model_build_for(r->model, s->g, &build, &s->net)));
    TESS_TRY(tess_run_at_key(tess_step_new(s->net.output, &(tess_step_conf){.micro = r->evaluated}, &s->step)));
    return tess_run_place_beside(s->r, s->step);
}

tess_status tess_samples_new(tess_run *r, const tess_data *valid, tess_samples **samples)
{
    *samples = NULL;
    if (!r->c->eval.samples) return TESS_OK;
    tess_samples *s = *samples = tess_alloc(sizeof *s);
    const uint64_t there = tess_data_samples(valid);
    s->r = r;
    s->count = (int)((uint64_t)r->c->eval.samples < there ? (uint64_t)r->c->eval.samples : there);
    s->vocab = tess_model_vocab(r->model);
    s->end = tess_run_end_of_text(r);
    s->text = tess_alloc((size_t)s->count * sizeof *s->text);
    TESS_TRY(read_prompts(s, valid));
    s->logits = tess_alloc((size_t)(r->evaluated * s->count * s->vocab) * sizeof *s->logits);
    return plan(s);
}

void tess_samples_free(tess_samples *s)
{
    if (!s) return;
    tess_step_free(s->step);
    tess_graph_free(s->g);
    for (int k = 0; k < s->count && s->text; k++) free(s->text[k].ids), free(s->text[k].encoded);
    free(s->text);
    free(s->logits);
    free(s->made);
    free(s);
}

/* ---- texts ---- */

/* Every micro-batch of this rank has all texts. */
static tess_status feed(tess_samples *s, const tess_tensor *input, int64_t width, const int32_t *of)
{
    int64_t micros;
    tess_step_share(s->step, NULL, &micros);
    const size_t n = (size_t)(s->count * width);
    if (!input) return TESS_OK;
    TESS_FREED int32_t *all = tess_alloc((size_t)micros * n * sizeof *all);
    for (int64_t m = 0; m < micros; m++) memcpy(all + (size_t)m * n, of, n * sizeof *all);
    return tess_step_feed(s->step, input, all);
}

static tess_status feed_all(tess_samples *s)
{
    const int64_t L = s->length, n = s->count;
    const bool encodes = decodes(s->r);
    TESS_FREED int32_t *ids = tess_alloc((size_t)(n * L) * sizeof *ids),
                       *decoder = tess_alloc((size_t)(n * L) * sizeof *ids);
    TESS_FREED int32_t *bounds = tess_alloc((size_t)(2 * n * L) * sizeof *ids),
                       *index = tess_alloc((size_t)n * sizeof *ids);
    for (int64_t k = 0; k < n; k++) {
        const struct text *t = &s->text[k];
        memcpy((encodes ? decoder : ids) + k * L, t->ids, (size_t)t->count * sizeof *ids);
        for (int64_t i = 0; encodes && i < (t->encoding < L ? t->encoding : L); i++) ids[k * L + i] = t->encoded[i];
        for (int64_t i = 0; i < L; i++) bounds[(2 * k + 1) * L + i] = (int32_t)(t->encoding < L ? t->encoding : L);
        index[k] = (int32_t)t->count - 1;
    }
    TESS_TRY(feed(s, s->net.ids, L, ids));
    TESS_TRY(feed(s, s->net.decoder_ids, L, decoder));
    TESS_TRY(feed(s, s->net.bounds, 2 * L, bounds));
    TESS_TRY(feed(s, s->net.visible, 2 * L, bounds));
    TESS_TRY(feed(s, s->net.index, 1, index));
    return TESS_OK;
}

/* Adds the likeliest token to each text that goes on, and returns whether any does. */
static bool add_tokens(tess_samples *s)
{
    bool any = false;
    for (int k = 0; k < s->count; k++) {
        struct text *t = &s->text[k];
        const float *logits = s->logits + k * s->vocab;
        int32_t best = 0;
        for (int32_t v = 1; v < s->vocab; v++)
            if (logits[v] > logits[best]) best = v;
        if (t->done || best == s->end) {
            t->done = true;
            continue;
        }
        t->ids[t->count++] = best;
        t->done = t->count == s->length || t->count == t->given + ADDED;
        any |= !t->done;
    }
    return any;
}

static json_t *decode(const tess_samples *s, const int32_t *ids, int64_t count)
{
    size_t length;
    TESS_FREED char *text = tess_tokenizer_decode(s->r->tokenizer, ids, (size_t)count, &length);
    json_t *string = json_stringn(text, length);
    return string;
}

static void write_texts(tess_samples *s)
{
    size_t size;
    free(s->made);
    FILE *f = open_memstream(&s->made, &size);
    for (int k = 0; k < s->count; k++) {
        const struct text *t = &s->text[k];
        TESS_FREED_JSON json_t *line = json_object();
        json_object_set_new(line, "prompt",
                            t->encoded ? decode(s, t->encoded, t->encoding) : decode(s, t->ids, t->given));
        json_object_set_new(line, "text", decode(s, t->ids + t->given, t->count - t->given));
        json_dumpf(line, f, JSON_COMPACT);
        fputc('\n', f);
    }
    fclose(f);
}

tess_status tess_samples_make(tess_samples *s)
{
    tess_status status = TESS_OK;
    bool any = false;
    for (int k = 0; k < s->count; k++) {
        s->text[k].count = s->text[k].given;
        s->text[k].done = s->text[k].given >= s->length;
        any |= !s->text[k].done;
    }
    tess_bar_begin("going on with samples", ADDED);
    while (any) {
        TESS_TRY_DONE(tess_ranks_agree(feed_all(s)));
        TESS_TRY_DONE(tess_ranks_agree(tess_step_run(s->step, &(tess_step_input){0}, NULL)));
        TESS_TRY_DONE(tess_ranks_agree(tess_step_output(s->step, s->logits)));
        any = add_tokens(s);
        tess_bar_step(1);
    }
    if (!tess_rank()) write_texts(s);
done:
    tess_bar_end();
    return status;
}

const char *tess_samples_text(const tess_samples *s)
{
    return s->made;
}
