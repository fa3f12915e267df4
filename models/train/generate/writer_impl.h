/* A writer: a model that goes on with texts, token by token, its keys and values in a cache. Tokens go in and logits
 * come out; what is drawn from them is sampling's, what the tokens spell the caller's.
 *
 *     tess_writer *w;
 *     TESS_TRY(tess_writer_new(model, &(tess_writer_conf){.config = config, .longest = 4096}, &w)); // StarPU runs now
 *     tess_ids text = {0};                                        // of a prompt
 *     TESS_TRY(tess_tokenizer_encode(tokenizer, "--prompt", "Once", 4, &text));
 *     tess_writer_begin(w, (int64_t[]){0});
 *     TESS_TRY(tess_writer_read(w, text.id, (int64_t)text.count));
 *     const int32_t id = tess_draw(&how, tess_writer_logits(w, 0), vocab, text.id, text.count, 0, 0);
 *     ... say it, push it to the text, read it, and draw again ...
 *     tess_writer_free(w);
 *     tess_stop();
 */
#ifndef TESS_WRITER_IMPL_H
#define TESS_WRITER_IMPL_H
#include "models/text/tokenizer/tokenizer.h"
#include "models/train/run/run.h"

/* ---- sampling.c -------------------------------------------------------------------------------------------------- */

/* As transformers has it: first the penalty, then the temperature, then the likeliest k, then those that have p. */
typedef struct tess_sampling {
    double repetition_penalty; /* of tokens that were there already; 0 or 1: none */
    double temperature;        /* 0: always the likeliest */
    int64_t top_k;             /* 0: all */
    double top_p;              /* 0 or 1: all */
    uint64_t seed;
    const int32_t *ends; /* tokens that end a text; NULL: none does */
    int end_count;
} tess_sampling;
/* Draws a token from the logits after `count` tokens of a text. `stream` tells texts with one seed apart,
 * `place` the tokens of a text. */
int32_t tess_draw(const tess_sampling *s, const float *logits, int64_t vocab, const int32_t *text, size_t count,
                  uint64_t stream, uint64_t place);
/* Returns the logarithm of a token's probability, as the model has it. */
double tess_log_probability(const float *logits, int64_t vocab, int32_t id);
/* Returns whether the token ends a text. */
bool tess_sampling_ends(const tess_sampling *s, int32_t id);

/* ---- writer.c ---------------------------------------------------------------------------------------------------- */

typedef struct tess_writer tess_writer;
typedef struct tess_writer_conf {
    const tess_config *config; /* its bf16, memory and aio */
    int64_t batch;             /* texts at a time; 0: 1 */
    int64_t longest;           /* tokens of a text in the end, no more than the model's positions */
    int64_t encoded;           /* of an encoder with a decoder: tokens of the longest prompt */
    int64_t block, rows; /* places of a tile of the cache, tokens that are read at a time; 0: the writer's choice */
} tess_writer_conf;
/* Places the model and its cache, starts StarPU within the caps, and loads the weights; nothing must run. What does not
 * fit is TESS_INVALID, with the cap that would do. The model is borrowed. Whatever it returns, *w can be freed. */
tess_status tess_writer_new(tess_model *m, const tess_writer_conf *conf, tess_writer **w) TESS_NODISCARD;
/* Frees it; NULL is nothing. */
void tess_writer_free(tess_writer *w);

/* Puts other adapters in the place of the model's (tess_model_adapt_anew), between two texts. */
tess_status tess_writer_adapt(tess_writer *w, const char *dir) TESS_NODISCARD;
/* Begins with nothing. Of each text the first pad[b] tokens that are read are padding. */
void tess_writer_begin(tess_writer *w, const int64_t *pad);
/* Of an encoder with a decoder, behind that: the prompts, of length[b] tokens each. */
tess_status tess_writer_encode(tess_writer *w, const int32_t *const *ids, const size_t *length) TESS_NODISCARD;
/* Returns whether texts turn otherwise with `count` more tokens (tess_model_turns_long): all of them must be read
 * again, from the beginning. */
bool tess_writer_turns(const tess_writer *w, int64_t count);
/* Reads `count` tokens of each text, (batch, count). */
tess_status tess_writer_read(tess_writer *w, const int32_t *ids, int64_t count) TESS_NODISCARD;
/* Returns the logits of what comes behind a text's last token. */
const float *tess_writer_logits(const tess_writer *w, int64_t text);

#endif
