/* Data: files of tokens as a sequence of samples of T tokens and their targets, in order or shuffled by seed.
 *
 *     tess_data *data;
 *     tess_data_conf conf = {.seq_length = 1024, .vocab = 50257, .shuffle = true, .seed = 1};
 *     TESS_TRY(tess_data_open("corpus/web", NULL, &conf, &data));
 *     for (uint64_t position = 0; position < want; position++)
 *         TESS_TRY(tess_data_get(data, tess_data_order(data, position), tokens, targets));
 *     tess_data_close(data);
 *
 * Sample i is the tokens [i*T, i*T+T] of the stream, both ends included: T inputs and, one further, T targets. The
 * stream is the tokens of all files in the order that they are given, as if they were one file. With weights each
 * source is a stream of its own, shuffled and repeated by itself, and its weight is its share of the samples. Files are
 * mapped, never read whole. Every token is checked against the vocabulary when it is read.
 */
#ifndef TESS_DATA_IMPL_H
#define TESS_DATA_IMPL_H
#include "map_impl.h"
#include "tokenizer_impl.h"

typedef struct tess_data tess_data;

typedef struct tess_data_conf {
    int64_t seq_length; /* T >= 1 */
    int64_t vocab;      /* tokens are 0 .. vocab-1 */
    bool shuffle;
    uint64_t seed;   /* of the shuffle */
    const char *key; /* what errors of a list name; NULL: "data" */
} tess_data_conf;

/* Opens `paths`: one, whose kind follows from what is there: with path.idx it is a Megatron prefix; else *.bin is
 * llm.c's format and *.txt a text, in the tokens of `tokenizer` (only read during the call) or, where that is NULL, in
 * bytes; a directory or a pattern stands for the files that are found. Or the JSON text of a list of paths, or of
 * objects with "path" and "weight". A text's tokens are held in RAM, the text is not. Fewer tokens than one sample
 * needs is TESS_INVALID. */
tess_status tess_data_open(const char *paths, const tess_tokenizer *tokenizer, const tess_data_conf *conf,
                           tess_data **data) TESS_NODISCARD;
/* Opens two files already in memory, which stay the caller's and must outlive the data; idx NULL: llm.c's
 * format. */
tess_status tess_data_view(const tess_map *idx, const tess_map *bin, const tess_data_conf *conf,
                           tess_data **data) TESS_NODISCARD;
/* Closes it; NULL is nothing. */
void tess_data_close(tess_data *data);

/* Returns how many files there are. */
size_t tess_data_files(const tess_data *data);
/* Returns how many sources there are; more than one: they have weights. */
size_t tess_data_sources(const tess_data *data);
/* Counts the tokens of all streams. */
uint64_t tess_data_tokens(const tess_data *data);
/* Counts the samples, of each stream whole ones: (tokens - 1) / T, at least 1. */
uint64_t tess_data_samples(const tess_data *data);
/* Tells this content from another, whatever its path. */
uint64_t tess_data_sum(const tess_data *data);
/* Names the files found that are no data; NULL: there are none. */
const char *tess_data_left_out(const tess_data *data);
/* Returns the sample at a place of the endless run over all epochs: epoch position / samples, and in it each sample
 * once, in the stream's order or in one that depends on the seed and the epoch alone. With weights the places are dealt
 * out to the sources first, by the weights alone. */
uint64_t tess_data_order(const tess_data *data, uint64_t position);

/* Reads a sample, which is below tess_data_samples; tokens: (T), targets: (T). */
tess_status tess_data_get(const tess_data *data, uint64_t sample, int32_t *tokens, int32_t *targets) TESS_NODISCARD;

#endif
