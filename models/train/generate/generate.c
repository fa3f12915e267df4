/* What the command does with a writer: prompts become tokens, tokens text, the text of one prompt as it comes, of a
 * file's in the order of its lines. */
#include "codelets/codelets.h"
#include "models/networks/networks.h"
#include "models/text/base/text.h"
#include "models/text/chat/chat.h"
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/generate/prompts_impl.h"
#include "models/train/generate/talk_impl.h"
#include "models/train/generate/texts.h"
#include "models/train/generate/writer_impl.h"
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BATCH = 8, MOST_ENDS = 64 };

struct generator {
    const tess_generate_conf *conf;
    tess_model *model;
    tess_chat *chat; /* of conversations among the prompts; NULL: there are none */
    tess_tokenizer *tokenizer;
    tess_config *config; /* its own, where none is given */
    int64_t vocab, most; /* most: tokens of a text; 0: any */
    tess_sampling how;
    int32_t end[MOST_ENDS];
    int32_t padding, start; /* start: what a decoder's text begins with */
    tess_prompts prompts;
    tess_asked *asked; /* what the prompts are of; NULL: they are written as they come */
    tess_writer *writer;
    tess_decoding *decoding;
    size_t best;   /* texts that are drawn of each prompt, and the likeliest one stays: */
    tess_ids kept; /* what it adds, */
    double mean;   /* and the mean of its tokens' log-probabilities */
    double read_seconds, write_seconds;
    size_t turns;             /* of a conversation */
    int64_t read, wrote, cut; /* tokens; texts that the model's positions end */
};

/* ---- opening ---- */

static int32_t token_of(const struct generator *g, const json_t *id)
{
    const json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
    return n >= 0 && n < g->vocab ? (int32_t)n : -1;
}

/* The tokens that end a text, one or a list of them; false: nothing is said. */
static bool take_ends(struct generator *g, const json_t *of)
{
    const json_t *ids = json_object_get(of, "eos_token_id");
    const size_t n = json_is_array(ids) ? json_array_size(ids) : 1;
    for (size_t i = 0; i < n && g->how.end_count < MOST_ENDS; i++) {
        const int32_t id = token_of(g, json_is_array(ids) ? json_array_get(ids, i) : ids);
        if (id >= 0) g->end[g->how.end_count++] = id;
    }
    return g->how.end_count > 0;
}

/* What generation_config.json says, or else config.json, or else the tokenizer. */
static tess_status find_tokens(struct generator *g)
{
    json_t *file;
    TESS_TRY(tess_json_beside(tess_model_dir(g->model), "generation_config.json", &file));
    TESS_FREED_JSON json_t *config = json_loads(tess_model_json(g->model), 0, NULL);
    const int32_t end = tess_tokenizer_end_of_text(g->tokenizer);
    if (!take_ends(g, file) && !take_ends(g, config) && end >= 0) g->end[g->how.end_count++] = end;
    g->padding = token_of(g, json_object_get(config, "pad_token_id"));
    g->start = token_of(g, json_object_get(file, "decoder_start_token_id"));
    if (g->start < 0) g->start = token_of(g, json_object_get(config, "decoder_start_token_id"));
    if (g->start < 0) g->start = g->padding < 0 ? 0 : g->padding;
    if (g->padding < 0) g->padding = 0;
    json_decref(file);
    return TESS_OK;
}

static bool has_encoder(const struct generator *g)
{
    return tess_model_answers(g->model) == TESS_ANSWERS_DECODER;
}

static tess_status open_generator(const char *dir, void *what)
{
    struct generator *g = what;
    TESS_TRY(tess_model_open(dir, NULL, &g->model));
    if (g->conf->adapter) TESS_TRY(tess_model_adapt(g->model, g->conf->adapter));
    if (tess_model_answers(g->model) != TESS_ANSWERS_NEXT && !has_encoder(g))
        return tess_error(TESS_INVALID, dir, "is no model that goes on with a text (it reads one)");
    TESS_TRY(tess_run_need_weights(g->model));
    const char *from = tess_tokenizer_in(dir) || !tess_model_adapted(g->model) ? dir : tess_model_dir(g->model);
    if (tess_tokenizer_in(from))
        TESS_TRY(tess_tokenizer_open(from, &g->tokenizer)); /* adapters may have their base's */
    TESS_TRY(tess_model_check(g->model));
    g->vocab = tess_model_vocab(g->model);
    g->most = has_encoder(g) ? 0 : tess_model_positions(g->model);
    TESS_TRY(find_tokens(g));
    tess_run_say_tokenizer(g->model, g->tokenizer);
    return TESS_OK;
}

static void close_generator(void *what)
{
    struct generator *g = what;
    tess_tokenizer_free(g->tokenizer);
    tess_chat_free(g->chat);
    tess_model_close(g->model);
    g->tokenizer = NULL;
    g->chat = NULL;
    g->model = NULL;
    g->how.end_count = 0;
}

/* ---- prompts ---- */

/* A text needs one, or a model of bytes. */
static tess_status check_tokenizer(const struct generator *g)
{
    if (g->tokenizer || g->vocab == tess_tokenizer_vocab(NULL)) return TESS_OK;
    TESS_FREED char *lack = tess_tokenizer_lack(tess_model_dir(g->model));
    return tess_error(TESS_INVALID, tess_model_dir(g->model), "%s, and its vocabulary is one of %lld (bytes have 256)",
                      lack, (long long)g->vocab);
}

/* The token that ends a turn ends a text too. */
static tess_status end_turns(struct generator *g)
{
    int32_t end;
    TESS_TRY(tess_talk_end(tess_model_dir(g->model), g->tokenizer, &end));
    if (end >= 0 && end < g->vocab && !g->conf->ignore_end && g->how.end_count < MOST_ENDS &&
        !tess_sampling_ends(&g->how, end))
        g->end[g->how.end_count++] = end;
    return TESS_OK;
}

/* A conversation, as the model's template writes it up to where the assistant begins. */
static tess_status encode_talk(struct generator *g, const char *where, tess_prompt *p)
{
    char *text;
    size_t length;
    if (has_encoder(g))
        return tess_error(TESS_INVALID, where, "\"messages\" are for models that go on with a text; this one does not");
    TESS_TRY(check_tokenizer(g));
    if (!g->chat) {
        TESS_TRY(tess_chat_open(tess_model_dir(g->model), &g->chat));
        if (tess_chat_unsupported(g->chat))
            return tess_error(TESS_INVALID, where, "%s", tess_chat_unsupported(g->chat));
        TESS_TRY(end_turns(g));
    }
    TESS_TRY(tess_chat_render(g->chat, where, p->talk, true, &text, &length));
    const tess_status status = tess_tokenizer_encode(g->tokenizer, where, text, length, &p->ids);
    free(text);
    return status;
}

/* What is asked has room behind it, and is not begun twice. */
static tess_status settle_asked(struct generator *g, const char *where, const tess_ids *before, tess_ids *ids)
{
    const int64_t trained = tess_model_trained_positions(g->model), most = g->most ? g->most : trained;
    const size_t n = before->count;
    if (n && ids->count > n && ids->id[n] == before->id[0])
        memmove(ids->id, ids->id + n, (ids->count -= n) * sizeof *ids->id);
    if (!most || (int64_t)ids->count <= most - g->conf->tokens) return TESS_OK;
    if (most <= g->conf->tokens)
        return tess_error(TESS_INVALID, where, "%d tokens to write, but the model has %lld positions", g->conf->tokens,
                          (long long)most);
    const size_t over = ids->count - (size_t)(most - g->conf->tokens);
    memmove(ids->id, ids->id + over, (ids->count -= over) * sizeof *ids->id);
    return TESS_OK;
}

static tess_status encode(struct generator *g, tess_prompt *p)
{
    char where[512];
    snprintf(where, sizeof where, p->line ? "%s:%lld" : "%s", g->prompts.where, (long long)p->line);
    if (p->talk) TESS_TRY(encode_talk(g, where, p));
    if (p->text) {
        TESS_TRY(check_tokenizer(g));
        const tess_ids *before, *behind;
        tess_tokenizer_around(g->tokenizer, &before, &behind);
        tess_ids_add(&p->ids, before->id, before->count);
        TESS_TRY(tess_tokenizer_encode(g->tokenizer, where, p->text, strlen(p->text), &p->ids));
        tess_ids_add(&p->ids, behind->id, behind->count);
        if (g->asked && !has_encoder(g)) TESS_TRY(settle_asked(g, where, before, &p->ids));
    }
    if (p->ids.count == 0) {
        const int32_t start = tess_tokenizer_end_of_text(g->tokenizer);
        tess_ids_push(&p->ids, start >= 0 ? start : '\n');
    }
    for (size_t i = 0; i < p->ids.count; i++)
        if (p->ids.id[i] >= g->vocab)
            return tess_error(TESS_INVALID, where,
                              "token %d is beyond the vocabulary of %lld (is this the model's own tokenizer?)",
                              (int)p->ids.id[i], (long long)g->vocab);
    if (g->most && (int64_t)p->ids.count > g->most)
        return tess_error(TESS_INVALID, where,
                          "%zu tokens, but the model has %lld positions (expected a shorter prompt)", p->ids.count,
                          (long long)g->most);
    return TESS_OK;
}

static tess_status take_prompts(struct generator *g)
{
    const tess_generate_conf *c = g->conf;
    if (c->prompts && !g->asked)
        TESS_TRY(tess_prompts_read(&g->prompts, c->prompts, g->vocab));
    else if (!g->asked)
        tess_prompts_said(&g->prompts, c->prompt);
    for (size_t i = 0; i < g->prompts.count; i++) TESS_TRY(encode(g, &g->prompts.prompt[i]));
    return TESS_OK;
}

/* ---- writing ---- */

/* Where the one text goes as it comes. */
struct voice {
    tess_decoding *decoding;
    FILE *out;
};

static void say(struct voice *v, int32_t id)
{
    size_t n;
    const char *text = tess_decoding_push(v->decoding, id, &n);
    fwrite(text, 1, n, v->out);
    fflush(v->out);
}

/* A text of a batch: what the decoder has read and written. */
struct text {
    tess_ids ids;
    size_t given; /* of them */
    bool done;
    double sum; /* of the log-probabilities of those that were drawn */
    int64_t drawn;
};

/* Reads the prompts, shorter ones with padding in front. */
static tess_status read_prompts(struct generator *g, const tess_prompt *prompt, struct text *text, int64_t batch)
{
    int64_t longest = 0, *pad = tess_alloc((size_t)batch * sizeof *pad);
    for (int64_t b = 0; b < batch; b++)
        if ((int64_t)text[b].ids.count > longest) longest = (int64_t)text[b].ids.count;
    TESS_FREED int32_t *ids = tess_alloc((size_t)(batch * longest) * sizeof *ids);
    for (int64_t b = 0; b < batch; b++) {
        pad[b] = longest - (int64_t)text[b].ids.count;
        for (int64_t i = 0; i < longest; i++)
            ids[b * longest + i] = i < pad[b] ? g->padding : text[b].ids.id[i - pad[b]];
    }
    tess_writer_begin(g->writer, pad);
    tess_status status = TESS_OK;
    if (has_encoder(g)) {
        TESS_FREED const int32_t **of = tess_alloc((size_t)batch * sizeof *of);
        TESS_FREED size_t *length = tess_alloc((size_t)batch * sizeof *length);
        for (int64_t b = 0; b < batch; b++) of[b] = prompt[b].ids.id, length[b] = prompt[b].ids.count;
        status = tess_writer_encode(g->writer, of, length);
    }
    if (status == TESS_OK) status = tess_writer_read(g->writer, ids, longest);
    free(pad);
    return status;
}

/* Reads the token that each text has got, or all of them once more. */
static tess_status read_next(struct generator *g, const tess_prompt *prompt, struct text *text, int64_t batch,
                             const int32_t *next)
{
    if (tess_writer_turns(g->writer, 1)) return read_prompts(g, prompt, text, batch);
    return tess_writer_read(g->writer, next, 1);
}

/* What was written of a text that is asked, up to what ends it; *ends: that was met. A new string. */
static char *written_of(const struct generator *g, const tess_asked *a, const struct text *t, bool *ends)
{
    char *text = tess_tokenizer_decode(g->tokenizer, t->ids.id + t->given, t->ids.count - t->given, NULL);
    *ends = (int64_t)(t->ids.count - t->given) >= a->tokens;
    for (size_t k = 0; k < a->untils; k++) {
        char *at = *a->until[k] ? strstr(text, a->until[k]) : NULL;
        if (at) *at = 0, *ends = true;
    }
    return text;
}

/* Draws the next token of each text; false: all are done. */
static bool draw(struct generator *g, struct text *text, int64_t batch, size_t first, int64_t place, int32_t *next,
                 struct voice *voice)
{
    bool any = false;
    for (int64_t b = 0; b < batch; b++) {
        struct text *t = &text[b];
        next[b] = g->padding;
        if (t->done) continue;
        next[b] = tess_draw(&g->how, tess_writer_logits(g->writer, b), g->vocab, t->ids.id, t->ids.count,
                            first + (uint64_t)b, (uint64_t)place);
        if (g->best > 1) t->sum += tess_log_probability(tess_writer_logits(g->writer, b), g->vocab, next[b]);
        t->drawn++;
        t->done = tess_sampling_ends(&g->how, next[b]);
        if (t->done) continue;
        tess_ids_push(&t->ids, next[b]);
        g->wrote++;
        if (voice) say(voice, next[b]);
        if (g->asked) free(written_of(g, &g->asked[first + (size_t)b], t, &t->done));
        if (g->most && (int64_t)t->ids.count >= g->most && place + 1 < g->conf->tokens) {
            t->done = true;
            g->cut++;
        }
        any |= !t->done;
    }
    return any;
}

static void write_text(struct generator *g, const tess_prompt *prompt, const int32_t *added, size_t count,
                       struct voice *voice, FILE *out)
{
    if (!voice) tess_prompt_write(&g->prompts, prompt, g->tokenizer, added, count, !has_encoder(g), out);
    for (size_t i = 0; voice && i < count; i++) say(voice, added[i]);
}

/* The k-th text of those of a prompt; of texts that are as likely the first stays. */
static void judge(struct generator *g, size_t k, const tess_prompt *prompt, const struct text *t, struct voice *voice,
                  FILE *out)
{
    const double mean = t->sum / (double)t->drawn;
    if (k == 0 || mean > g->mean) {
        g->mean = mean;
        g->kept.count = 0;
        tess_ids_add(&g->kept, t->ids.id + t->given, t->ids.count - t->given);
    }
    if (k + 1 == g->best) write_text(g, prompt, g->kept.id, g->kept.count, voice, out);
}

/* Texts [first, first + count) of the file's prompts, g->best of each; a batch that they do not fill has copies of the
 * last one, which are done.
 */
static tess_status write_batch(struct generator *g, size_t first, size_t count, int64_t batch, struct voice *voice,
                               FILE *out)
{
    TESS_FREED struct text *text = tess_alloc((size_t)batch * sizeof *text);
    TESS_FREED tess_prompt *prompt = tess_alloc((size_t)batch * sizeof *prompt);
    TESS_FREED int32_t *next = tess_alloc((size_t)batch * sizeof *next);
    for (int64_t b = 0; b < batch; b++) {
        const size_t of = (first + ((size_t)b < count ? (size_t)b : count - 1)) / g->best;
        prompt[b] = g->prompts.prompt[of];
        text[b].done = (size_t)b >= count;
        const tess_ids begins = has_encoder(g) ? (tess_ids){.id = &g->start, .count = 1} : prompt[b].ids;
        for (size_t i = 0; i < begins.count; i++) tess_ids_push(&text[b].ids, begins.id[i]);
        text[b].given = begins.count;
        g->read += text[b].done ? 0 : (int64_t)prompt[b].ids.count;
    }
    const double start = tess_seconds();
    tess_status status = read_prompts(g, prompt, text, batch);
    const double began = tess_seconds();
    g->read_seconds += began - start;
    for (int64_t i = 0; status == TESS_OK && i < g->conf->tokens; i++)
        if (!draw(g, text, batch, first, i, next, g->best > 1 ? NULL : voice) || i + 1 == g->conf->tokens)
            break;
        else
            status = read_next(g, prompt, text, batch, next);
    g->write_seconds += tess_seconds() - began;
    bool ends;
    for (size_t b = 0; status == TESS_OK && g->asked && b < count; b++)
        g->asked[first + b].written = written_of(g, &g->asked[first + b], &text[b], &ends);
    for (size_t b = 0; status == TESS_OK && !g->asked && b < count; b++) {
        if (g->best > 1)
            judge(g, (first + b) % g->best, &prompt[b], &text[b], voice, out);
        else if (!voice)
            write_text(g, &prompt[b], text[b].ids.id + text[b].given, text[b].ids.count - text[b].given, NULL, out);
    }
    for (int64_t b = 0; b < batch; b++) tess_ids_free(&text[b].ids);
    return status;
}

/* Of the longest text in the end, and of the longest prompt. */
static void lengths(const struct generator *g, int64_t *longest, int64_t *prompt)
{
    *prompt = 1;
    for (size_t i = 0; i < g->prompts.count; i++)
        if ((int64_t)g->prompts.prompt[i].ids.count > *prompt) *prompt = (int64_t)g->prompts.prompt[i].ids.count;
    *longest = (has_encoder(g) ? 1 : *prompt) + g->conf->tokens - 1; /* the last one is not read */
    if (g->most && *longest > g->most) *longest = g->most;
}

/* ---- conversations ---- */

/* The tokens that a conversation may have: its cache is made for them. */
static int64_t talk_room(const struct generator *g)
{
    enum { ROOM = 8192 };
    const int64_t trained = tess_model_trained_positions(g->model), most = g->most ? g->most : trained;
    return most > 0 && most < ROOM ? most : ROOM;
}

/* Answers a turn with at most g->conf->tokens tokens. The conversation is read again from its beginning, over what the
 * cache holds of the turn before. */
static tess_status answer(void *user, const tess_ids *ids, FILE *out, tess_ids *added)
{
    struct generator *g = user;
    const long long room = talk_room(g);
    struct text text = {.given = ids->count};
    struct voice voice = {tess_decoding_new(g->tokenizer, ids->id, ids->count), out};
    int64_t pad = 0;
    int32_t next;
    size_t n;
    tess_status status = TESS_OK;
    tess_ids_add(&text.ids, ids->id, ids->count);
    for (size_t i = 0; i < ids->count && status == TESS_OK; i++)
        if (ids->id[i] >= g->vocab)
            status = tess_error(TESS_INVALID, "the conversation",
                                "token %d is beyond the vocabulary of %lld (is this the model's own tokenizer?)",
                                (int)ids->id[i], (long long)g->vocab);
    if (status == TESS_OK && (!ids->count || (long long)ids->count + g->conf->tokens > room))
        status = tess_error(TESS_INVALID, "the conversation", "%zu tokens, and up to %d to add, are more than %lld",
                            ids->count, g->conf->tokens, room);
    tess_writer_begin(g->writer, &pad);
    if (status == TESS_OK) status = tess_writer_read(g->writer, ids->id, (int64_t)ids->count);
    for (int64_t i = 0; status == TESS_OK && i < g->conf->tokens; i++)
        if (!draw(g, &text, 1, g->turns, i, &next, &voice) || i + 1 == g->conf->tokens)
            break;
        else
            status = read_next(g, NULL, &text, 1, &next);
    const char *rest = tess_decoding_rest(voice.decoding, &n);
    fwrite(rest, 1, n, out);
    if (status == TESS_OK) fputc('\n', out), fflush(out);
    tess_ids_add(added, text.ids.id + text.given, text.ids.count - text.given);
    g->turns++;
    tess_ids_free(&text.ids);
    tess_decoding_free(voice.decoding);
    return status;
}

static tess_status adapt(void *user, const char *dir)
{
    return tess_writer_adapt(((struct generator *)user)->writer, dir);
}

static tess_status talk(struct generator *g, FILE *out)
{
    const char *dir = tess_model_dir(g->model);
    const tess_writer_conf conf = {
        .config = g->conf->config ? g->conf->config : g->config, .batch = 1, .longest = talk_room(g), .encoded = 1};
    if (has_encoder(g))
        return tess_error(TESS_INVALID, dir, "answers with a decoder of its own, and is not talked with");
    TESS_TRY(check_tokenizer(g));
    TESS_TRY(end_turns(g));
    TESS_TRY(tess_writer_new(g->model, &conf, &g->writer));
    TESS_TRY(tess_talk_run(dir, &(tess_talk){g->conf->system, g->tokenizer, stdin, out, answer, adapt, g}));
    return fflush(out) || ferror(out) ? tess_error(TESS_FAILED, "output", "cannot be written") : TESS_OK;
}

static tess_status generate(struct generator *g, FILE *out)
{
    const tess_generate_conf *c = g->conf;
    if (c->chat) return talk(g, out);
    struct voice voice = {.out = out};
    TESS_TRY(take_prompts(g));
    int64_t longest, prompt, batch = c->batch ? c->batch : BATCH;
    const size_t texts = g->prompts.count * g->best;
    lengths(g, &longest, &prompt);
    if ((size_t)batch > texts) batch = (int64_t)texts;
    const tess_writer_conf conf = {
        .config = c->config ? c->config : g->config, .batch = batch, .longest = longest, .encoded = prompt};
    const long long trained = tess_model_trained_positions(g->model);
    if (!tess_model_positions(g->model) && trained > 0 && longest > trained)
        tess_note("a text of %lld tokens is longer than the model's max_position_embeddings, %lld", (long long)longest,
                  trained);
    TESS_TRY(tess_writer_new(g->model, &conf, &g->writer));
    if (!c->prompts && !has_encoder(g)) fputs(c->prompt, out);
    const tess_ids shown = has_encoder(g) ? (tess_ids){0} : g->prompts.prompt[0].ids;
    voice.decoding = g->decoding = c->prompts ? NULL : tess_decoding_new(g->tokenizer, shown.id, shown.count);
    for (size_t at = 0; at < texts; at += (size_t)batch) {
        const size_t left = texts - at;
        TESS_TRY(
            write_batch(g, at, left < (size_t)batch ? left : (size_t)batch, batch, c->prompts ? NULL : &voice, out));
    }
    if (!c->prompts) {
        size_t n;
        const char *rest = tess_decoding_rest(voice.decoding, &n); /* the text may end within a character */
        fwrite(rest, 1, n, out);
        fputc('\n', out), fflush(out); /* before the notes, where both go to one file */
    }
    if (g->cut)
        tess_note("%lld of %zu texts ended at the model's %lld positions", (long long)g->cut, texts,
                  (long long)g->most);
    tess_note("%lld tokens in %.2f s, %.1f tokens/s; prompt: %lld tokens in %.2f s, %.1f tokens/s", (long long)g->wrote,
              g->write_seconds, (double)g->wrote / fmax(g->write_seconds, 1e-9), (long long)g->read, g->read_seconds,
              (double)g->read / fmax(g->read_seconds, 1e-9));
    return fflush(out) || ferror(out) ? tess_error(TESS_FAILED, "output", "cannot be written") : TESS_OK;
}

static tess_status run(const tess_generate_conf *c, tess_prompts prompts, tess_asked *asked, FILE *out)
{
    struct generator g = {.conf = c,
                          .prompts = prompts,
                          .asked = asked,
                          .best = c->best > 1 ? (size_t)c->best : 1,
                          .how = {.repetition_penalty = c->repetition_penalty,
                                  .temperature = c->temperature,
                                  .top_k = c->top_k,
                                  .top_p = c->top_p,
                                  .seed = c->seed}};
    char *path = NULL;
    tess_status status = c->config ? TESS_OK : tess_config_open(NULL, NULL, 0, 1, &g.config);
    if (status == TESS_OK) status = tess_checkpoint_open(c->dir, open_generator, close_generator, &g, &path);
    if (status == TESS_OK && strcmp(path, c->dir)) tess_note("the newest checkpoint in %s: %s", c->dir, path);
    free(path);
    g.how.ends = g.end;
    if (c->ignore_end) g.how.end_count = 0;
    if (status == TESS_OK) status = generate(&g, out);
    tess_writer_free(g.writer);
    tess_decoding_free(g.decoding);
    tess_prompts_free(&g.prompts);
    tess_ids_free(&g.kept);
    close_generator(&g);
    tess_config_close(g.config);
    tess_stop();
    return status;
}

tess_status tess_generate(const tess_generate_conf *c, FILE *out)
{
    if (!c || !c->dir || (!c->prompt && !c->prompts && !c->chat) || !out)
        return tess_error(TESS_INVALID, "generate", "a directory, a prompt or an output is NULL");
    return run(c, (tess_prompts){0}, NULL, out);
}

tess_status tess_generate_asked(const tess_generate_conf *c, const char *file, tess_asked *asked, size_t count)
{
    tess_generate_conf of_file = *c;
    tess_prompts prompts = {.form = TESS_PROMPTS_EXAMPLES, .where = file, .count = count, .room = count};
    of_file.prompts = file;
    prompts.prompt = tess_alloc(count * sizeof *prompts.prompt);
    for (size_t i = 0; i < count; i++)
        prompts.prompt[i] = (tess_prompt){.text = tess_strdup(asked[i].prompt), .line = asked[i].line};
    return run(&of_file, prompts, asked, stdout);
}
