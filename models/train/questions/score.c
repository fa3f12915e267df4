/* How likely continuations are. A request is a sequence whose targets are its continuation's tokens alone, so the head
 * works on their rows and no others; requests of about one length make batches, each length with a step of its own over
 * the same weights. The loss is made for as many rows at a time as a sequence has: its parts, which the step has
 * anyway, are then those of requests, the sums of -log p and of tokens that are the likeliest. */
#include "models/networks/networks.h"
#include "models/text/base/text.h"
#include "models/train/questions/questions.h"
#include <stdlib.h>
#include <string.h>

enum {
    SHORTEST = 16, /* lengths are multiples of it */
    USUAL = 2048,  /* tokens of the longest request where the model does not say how long it may be */
    TILE = 1024,   /* rows of a tile, unless a sequence has more */
};

/* Requests [first, first + count) by length, and the step that they go through. */
struct bucket {
    size_t first, count;
    int64_t length, batch;
    tess_graph *g;
    tess_network net;
    tess_step *step;
};

struct tess_scoring {
    tess_run *r;
    tess_questions *q;
    tess_request **by_length; /* from the longest */
    struct bucket *bucket;
    size_t buckets;
    int also;       /* the first of its passes in r->also */
    int32_t prefix; /* what stands before a continuation without a context */
    int64_t most;   /* tokens that the model reads */
};

/* ---- tokens ---- */

/* A special token of the tokenizer by its meaning: "bos_token": TEXT or {"content": TEXT}; -1: there is none. */
static int32_t special(const tess_run *r, const json_t *of, const char *name)
{
    const json_t *token = json_object_get(of, name);
    const char *text = json_is_object(token) ? tess_json_text(token, "content") : json_string_value(token);
    return text ? tess_tokenizer_added(r->tokenizer, text) : -1;
}

/* The token that begins a text, else the one that ends one. */
static tess_status find_prefix(tess_scoring *s)
{
    const tess_run *r = s->r;
    const tess_ids *before, *behind;
    TESS_FREED_JSON json_t *file = NULL;
    tess_tokenizer_around(r->tokenizer, &before, &behind);
    if (tess_model_dir(r->model)) TESS_TRY(tess_json_beside(tess_model_dir(r->model), "tokenizer_config.json", &file));
    s->prefix = special(r, file, "bos_token");
    if (s->prefix < 0 && before->count) s->prefix = before->id[0];
    if (s->prefix < 0) s->prefix = special(r, file, "eos_token");
    if (s->prefix < 0) s->prefix = tess_run_end_of_text(r);
    if (s->prefix < 0) s->prefix = '\n';
    return TESS_OK;
}

/* What begins each text is not put before one that says it. */
static tess_status encode(const tess_scoring *s, const char *where, const char *text, size_t length, bool begins,
                          tess_ids *ids)
{
    const tess_ids *before, *behind;
    tess_tokenizer_around(s->r->tokenizer, &before, &behind);
    tess_ids own = {0};
    const tess_status status = tess_tokenizer_encode(s->r->tokenizer, where, text, length, &own);
    if (begins && (!own.count || own.id[0] != s->prefix)) tess_ids_add(ids, before->id, before->count);
    tess_ids_add(ids, own.id, own.count);
    tess_ids_free(&own);
    return status;
}

static size_t without_blanks(const char *text)
{
    size_t n = strlen(text), bytes;
    while (n > 0) {
        const uint32_t c = tess_utf8_last(text, n, &bytes);
        if (!tess_is_space(c) && (c < 0x1c || c > 0x1f)) break;
        n -= bytes;
    }
    return n;
}

/* The tokens of both texts are those of the context, without blanks at its end, and what the whole has behind as many.
 */
static tess_status encode_pair(const tess_scoring *s, const char *where, tess_request *r)
{
    tess_ids whole = {0};
    const size_t blank = without_blanks(r->context);
    TESS_FREED char *text = tess_format("%s%s", r->context, r->continuation);
    tess_status status = TESS_OK;
    if (*r->context) TESS_TRY_DONE(encode(s, where, text, blank, true, &r->ids));
    TESS_TRY_DONE(encode(s, where, text, strlen(text), *r->context, &whole));
    const size_t context = r->ids.count;
    if (!context && (!*r->context && whole.count && whole.id[0] == s->prefix))
        r->continues = (int64_t)whole.count - 1;
    else if (whole.count > context)
        r->continues = (int64_t)(whole.count - context);
    if (!context && r->continues == (int64_t)whole.count) tess_ids_push(&r->ids, s->prefix);
    if (whole.count > context) tess_ids_add(&r->ids, whole.id + context, whole.count - context);
done:
    tess_ids_free(&whole);
    return status;
}

/* A text that is too long loses its beginning. */
static tess_status take_tokens(const tess_scoring *s, const tess_question *of, tess_request *r)
{
    char where[512];
    const int64_t vocab = tess_model_vocab(s->r->model);
    snprintf(where, sizeof where, "%.400s:%lld", s->q->path, (long long)of->line);
    TESS_TRY(encode_pair(s, where, r));
    if (r->continues < 1)
        return tess_question_error(s->q, of, "the continuation \"%.60s\" has no token of its own", r->continuation);
    if (r->continues > s->most)
        return tess_question_error(s->q, of, "a continuation of %lld tokens, but the model reads %lld",
                                   (long long)r->continues, (long long)s->most);
    for (size_t i = 0; i < r->ids.count; i++)
        if (r->ids.id[i] >= vocab)
            return tess_question_error(s->q, of, "token %d is beyond the model's vocab_size, %lld", r->ids.id[i],
                                       (long long)vocab);
    const int64_t over = (int64_t)r->ids.count - s->most - 1;
    if (over <= 0) return TESS_OK;
    r->ids.count -= (size_t)over;
    memmove(r->ids.id, r->ids.id + over, r->ids.count * sizeof *r->ids.id);
    return TESS_OK;
}

static tess_status take_all_tokens(tess_scoring *s)
{
    TESS_TRY(find_prefix(s));
    for (size_t i = 0; i < s->q->count; i++) {
        const tess_question *of = &s->q->question[i];
        for (size_t k = 0; k < of->count; k++) TESS_TRY(take_tokens(s, of, &s->q->request[of->first + k]));
    }
    return TESS_OK;
}

/* ---- steps ---- */

/* What a request reads: its last token is only found. */
static int64_t length_of(const tess_request *r)
{
    return (int64_t)r->ids.count - 1;
}

static int longer_first(const void *a, const void *b)
{
    const tess_request *x = *(tess_request *const *)a, *y = *(tess_request *const *)b;
    if (length_of(x) != length_of(y)) return length_of(x) < length_of(y) ? 1 : -1;
    return x < y ? -1 : x > y;
}

/* Lengths within a quarter share a step, and each step has about as many tokens. */
static void sort(tess_scoring *s, int64_t usual)
{
    const size_t n = s->q->requests;
    const int64_t ranks = s->r->evaluated;
    s->by_length = tess_alloc(n * sizeof *s->by_length);
    s->bucket = tess_alloc(n * sizeof *s->bucket);
    for (size_t i = 0; i < n; i++) s->by_length[i] = &s->q->request[i];
    qsort(s->by_length, n, sizeof *s->by_length, longer_first);
    for (size_t i = 0; i < n;) {
        struct bucket *b = &s->bucket[s->buckets++];
        const int64_t longest = length_of(s->by_length[i]);
        *b = (struct bucket){.first = i, .length = (longest + SHORTEST - 1) / SHORTEST * SHORTEST};
        if (b->length > s->most) b->length = s->most;
        while (i < n && (length_of(s->by_length[i]) > longest * 3 / 4 || longest <= SHORTEST)) i++;
        b->count = i - b->first;
        b->batch = usual * s->bucket[0].length / b->length;
        const int64_t needed = ((int64_t)b->count + ranks - 1) / ranks;
        if (b->batch > needed) b->batch = needed;
    }
}

static tess_status make_pass(const tess_scoring *s, struct bucket *b)
{
    tess_run *r = s->r;
    const tess_graph_conf conf = {.dtype = r->dtype,
                                  .share = r->g,
                                  .grid = r->grid,
                                  .tile_rows = b->length > TILE ? b->length : TILE,
                                  .loss_rows = b->length};
    const tess_build build = {.batch = b->batch, .length = b->length, .purpose = TESS_FOR_LOSS};
    b->g = tess_graph_new(&conf);
    TESS_TRY(tess_run_at_key(tess_model_build_for(r->model, b->g, &build, &b->net)));
    r->also = tess_realloc(r->also, (size_t)(r->alsos + 1) * sizeof *r->also);
    r->also[r->alsos++] = b->net.measured ? b->net.measured : b->net.output;
    return TESS_OK;
}

static tess_status make_passes(tess_scoring *s, int64_t usual)
{
    sort(s, usual);
    s->also = s->r->alsos;
    for (size_t i = 0; i < s->buckets; i++) TESS_TRY(make_pass(s, &s->bucket[i]));
    return TESS_OK;
}

/* ---- scores ---- */

/* Feeds this rank's requests of those from `at` on. */
static tess_status feed(const tess_scoring *s, const struct bucket *b, size_t at)
{
    int64_t micro, micros;
    tess_step_share(b->step, &micro, &micros);
    const int64_t rows = micros * b->batch, T = b->length;
    const size_t bytes = (size_t)(rows * T) * sizeof(int32_t);
    TESS_FREED int32_t *ids = tess_alloc(bytes), *targets = tess_alloc(bytes), *places = tess_alloc(bytes);
    for (int64_t i = 0; i < rows; i++) {
        const size_t k = at + (size_t)(micro * b->batch + i);
        const tess_request *r = k < b->count ? s->by_length[b->first + k] : NULL;
        for (int64_t t = 0; t < T; t++) {
            const bool is = r && t < length_of(r);
            ids[i * T + t] = is ? r->ids.id[t] : 0;
            targets[i * T + t] = is && t >= length_of(r) - r->continues ? r->ids.id[t + 1] : -100;
            places[i * T + t] = (int32_t)(t + b->net.first_position);
        }
    }
    tess_status status = tess_step_feed(b->step, b->net.ids, ids);
    if (status == TESS_OK) status = tess_step_feed(b->step, b->net.targets, targets);
    if (status == TESS_OK && b->net.positions) status = tess_step_feed(b->step, b->net.positions, places);
    return status;
}

/* Of each request of this rank the sum of its losses, and of its tokens that are the likeliest. */
static tess_status take(const struct bucket *b, size_t at, double (*scores)[2])
{
    int64_t micro, micros;
    tess_step_share(b->step, &micro, &micros);
    const int64_t rows = micros * b->batch, parts = tess_step_loss_parts(b->step);
    const int each = 2 * (tess_step_losses(b->step) + tess_step_numbers(b->step));
    TESS_ASSERT((!parts || parts == rows) && each == 4);
    double(*part)[4] = tess_alloc((size_t)rows * sizeof *part);
    const tess_status status = tess_step_part_losses(b->step, (double *)part);
    for (int64_t i = 0; status == TESS_OK && i < parts; i++) {
        const size_t k = at + (size_t)(micro * b->batch + i);
        if (k < b->count) scores[k][0] = -part[i][0], scores[k][1] = part[i][2];
    }
    free(part);
    return status;
}

static tess_status score(tess_scoring *s, struct bucket *b)
{
    const size_t batch = (size_t)(b->batch * s->r->evaluated);
    double(*scores)[2] = tess_alloc(b->count * sizeof *scores);
    tess_status status = TESS_OK;
    for (size_t at = 0; at < b->count; at += batch) {
        TESS_TRY_DONE(tess_ranks_agree(feed(s, b, at)));
        TESS_TRY_DONE(tess_step_run(b->step, &(tess_step_input){0}, NULL));
        TESS_TRY_DONE(tess_ranks_agree(take(b, at, scores)));
        tess_bar_step((double)(b->count - at < batch ? b->count - at : batch));
    }
    if (tess_ranks() > 1) tess_ranks_sum((double *)scores, (int)(2 * b->count));
    for (size_t k = 0; k < b->count; k++) {
        tess_request *r = s->by_length[b->first + k];
        r->logprob = scores[k][0];
        r->greedy = scores[k][1] >= (double)r->continues;
    }
done:
    free(scores);
    return status;
}

static tess_status check_model(const tess_scoring *s)
{
    const tess_run *r = s->r;
    const char *dir = tess_model_dir(r->model) ? tess_model_dir(r->model) : "model";
    if (tess_model_batch(r->model) || tess_model_answers(r->model) != TESS_ANSWERS_NEXT)
        return tess_error(TESS_INVALID, dir, "does not go on with a text, which questions of a task ask for");
    if (r->grid.sequence > 1)
        return tess_error(TESS_INVALID, "parallel.sequence",
                          "%d, but the sequences of a task are not shared out (1 does)", r->grid.sequence);
    return TESS_OK;
}

tess_status tess_scoring_new(tess_run *r, tess_questions *q, int64_t usual, tess_scoring **scoring)
{
    tess_scoring *s = *scoring = tess_alloc(sizeof *s);
    *s = (tess_scoring){.r = r, .q = q};
    TESS_TRY(check_model(s));
    const int64_t positions = tess_model_positions(r->model);
    s->most = positions > 0 ? positions : tess_model_trained_positions(r->model);
    if (s->most <= 0) s->most = USUAL;
    TESS_TRY(take_all_tokens(s));
    return make_passes(s, usual);
}

tess_status tess_scoring_plan(tess_scoring *s, bool alone)
{
    for (size_t i = 0; i < s->buckets; i++)
        TESS_TRY(tess_run_also_step(s->r, s->also + (int)i, alone && i == 0, &s->bucket[i].step));
    return TESS_OK;
}

tess_status tess_scoring_run(tess_scoring *s)
{
    tess_bar_begin("scoring", (double)s->q->requests);
    tess_status status = TESS_OK;
    for (size_t i = 0; i < s->buckets && status == TESS_OK; i++) status = score(s, &s->bucket[i]);
    tess_bar_end();
    return status;
}

void tess_scoring_free(tess_scoring *s)
{
    for (size_t i = 0; s && i < s->buckets; i++) tess_step_free(s->bucket[i].step), tess_graph_free(s->bucket[i].g);
    if (s) free(s->bucket), free(s->by_length);
    free(s);
}
