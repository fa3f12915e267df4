/* Data: files of tokens or of examples as a sequence of samples of T places, in order or shuffled by seed.
 *
 *     tess_data *data;
 *     tess_data_conf conf = {.seq_length = 1024, .vocab = 50257, .shuffle = true, .seed = 1};
 *     TESS_TRY(tess_data_open("corpus/web", NULL, &conf, &data));
 *     for (uint64_t position = 0; position < want; position++)
 *         TESS_TRY(tess_data_get(data, tess_data_order(data, position),
 *                                &(tess_sample){.ids = ids, .targets = targets}));
 *     tess_data_close(data);
 *
 * Of tokens, sample i is [i*T, i*T+T] of the stream, both ends included: T inputs and, one further, T targets. The
 * stream is the tokens of all files in the order that they are given, as if they were one file. Of examples, which are
 * lines of a .jsonl, a sample is one line, padded on the right, or with `share` several. With weights each source is a
 * stream of its own, shuffled and repeated by itself, and its weight is its share of the samples. Files are mapped,
 * never read whole. Every token is checked against the vocabulary when it is read, those of a .jsonl all of them before
 * the first is used.
 */
#ifndef TESS_DATA_H
#define TESS_DATA_H
#include "models/files/data/arrays.h"
#include "models/text/base/mapped.h"
#include "models/text/tokenizer/tokenizer.h"

typedef struct tess_data tess_data;

/* What a model learns of a sample: what its targets are. */
typedef enum tess_data_task {
    TESS_DATA_CAUSAL,  /* the next token: labels are those of the same places, shifted by one inside */
    TESS_DATA_MASKED,  /* the labels at their own places */
    TESS_DATA_DECODER, /* another sequence: labels are a decoder's, whose input they are behind its start */
    TESS_DATA_LABEL,   /* one label of the whole sample */
} tess_data_task;

typedef struct tess_data_conf {
    int64_t seq_length; /* T >= 1 */
    int64_t vocab;      /* tokens are 0 .. vocab-1 */
    bool shuffle;
    uint64_t seed;      /* of the shuffle */
    const char *key;    /* what errors of a list name; NULL: "data" */
    const char *output; /* where an index goes for which there is no place beside its file; NULL: nowhere */
    tess_data_task task;
    /* Samples of streams are documents that do not see each other, and, with restart, count their own positions. */
    bool pack, restart;
    bool share;          /* several examples share a sample, as many as it has room for, and do not see each other */
    int32_t end_of_text; /* the token that ends a document; below 0: the tokenizer's, if it has one */
    /* An example that is longer than T is cut, left out, or, with neither, refused; completions get the end of text
     * behind them. */
    bool truncate, drop, end_completions;
    /* Conversations are written by this template, borrowed; NULL: they are refused. All of one draws a loss, or what
     * the assistant says alone. */
    const struct tess_chat *chat;
    bool pairs;  /* each sample is two sequences, a chosen and a rejected one */
    bool judged; /* each sample is a completion with a label: 1, it is good, or 0 */
    bool loss_on_all;
    int32_t decoder_start, padding; /* the first token of a decoder's input, and the token for labels of -100 there */
    /* Masked language modelling makes targets from text without labels: the share of tokens that are masked (0: none),
     * by whole words if that is asked for; mask_token replaces them. Special tokens, which are only read while the data
     * is opened, are never masked. */
    double mlm_probability;
    bool whole_words;
    int32_t mask_token;
    const int32_t *special;
    size_t specials;
    /* With a decoder this share of tokens goes (0: none does), in spans of about this length; tokens that count down
     * from the sentinel stand for them. */
    double noise_density, noise_span;
    int32_t sentinel;
    /* This share of the samples, evenly spread over them, is held out (0: none is); what is opened is these, or the
     * rest.
     */
    double held;
    bool holds;
    int64_t labels; /* those of whole samples are 0 .. labels-1 */
    bool both;      /* with the task of masks: each sample has a label too, which is whether one text follows another */
    int64_t types;  /* token_type_ids are 0 .. types-1; 0: any */
} tess_data_conf;

/* Opens `paths`: one, whose kind follows from what is there: with path.idx it is a Megatron prefix; else *.bin is
 * llm.c's format, *.txt a text and *.jsonl, *.json, *.csv and *.tsv texts or examples, in the tokens of `tokenizer`
 * (borrowed as long as the data is open) or, where that is NULL, in bytes; a directory or a pattern stands for the
 * files that are found. Or the JSON text of a list of paths, or of objects with "path" and "weight". The tokens of a
 * .txt are held in RAM, the text is not; what is known of a .jsonl lies in a file, see data_index_impl.h. Fewer tokens
 * than one sample needs is TESS_INVALID. */
tess_status tess_data_open(const char *paths, const tess_tokenizer *tokenizer, const tess_data_conf *conf,
                           tess_data **data) TESS_NODISCARD;
/* Opens arrays in the place of tokens: a sample is one row of each. Of `conf` the order and what is held out count. */
tess_status tess_data_open_arrays(const char *text, const tess_array_want *want, int count, const tess_data_conf *conf,
                                  tess_data **data) TESS_NODISCARD;
/* Reads a sample of the k-th array. */
tess_status tess_data_get_array(const tess_data *data, int k, uint64_t sample, void *out) TESS_NODISCARD;
/* Opens two files already in memory, which stay the caller's and must outlive the data; idx NULL: llm.c's
 * format. */
tess_status tess_data_view(const tess_map *idx, const tess_map *bin, const tess_data_conf *conf,
                           tess_data **data) TESS_NODISCARD;
/* Closes it; NULL is nothing. */
void tess_data_close(tess_data *data);
/* Returns whether any of the files that `paths` stands for is of examples, whose samples may be shorter than T; with
 * `labels` texts that have one are. It looks at their first lines alone, and passes over what cannot be opened. */
bool tess_data_has_examples(const char *paths, bool labels);

/* Returns how many files there are. */
size_t tess_data_files(const tess_data *data);
/* Returns how many sources there are; more than one: they have weights. */
size_t tess_data_sources(const tess_data *data);
/* Returns how many tokens all streams and examples have. */
uint64_t tess_data_tokens(const tess_data *data);
/* Returns how many samples there are: whole ones of each stream, as a rule (tokens - 1) / T, at least 1, and examples.
 */
uint64_t tess_data_samples(const tess_data *data);
/* Returns whether samples are examples, so that their number follows from the files alone, not from T. */
bool tess_data_by_lines(const tess_data *data);
/* Returns the places that the longest example fills; 0 where samples are not examples, which fill all of theirs. */
uint64_t tess_data_longest(const tess_data *data);
/* Returns a sum that differs where contents do, whatever their paths. */
uint64_t tess_data_sum(const tess_data *data);
/* Returns the names of files found that are no data; NULL: there are none. */
const char *tess_data_left_out(const tess_data *data);
/* Returns how many examples there are where they share samples, else 0. */
uint64_t tess_data_shared(const tess_data *data);
/* Returns how many examples are no samples, since data.truncate leaves nothing of them that has a target. */
uint64_t tess_data_lines_left_out(const tess_data *data);
/* Returns the sample at a place of the endless run over all epochs: epoch position / samples, and in it each sample
 * once, in the stream's order or in one that depends on the seed and the epoch alone. With weights the places are dealt
 * out to the sources first, by the weights alone. */
uint64_t tess_data_order(const tess_data *data, uint64_t position);

/* What is asked of a sample: room for it, or NULL. */
typedef struct tess_sample {
    int32_t *ids, *targets; /* (T) */
    /* (2T): for each place the first key that it sees, then for each place the end of its keys, by documents and
     * padding alone; a place of padding has both 0. */
    int32_t *bounds;
    int32_t *positions;   /* (T) */
    int32_t *segments;    /* (T) */
    int32_t *decoder_ids; /* (T) */
    int32_t *label;       /* (1) */
    uint64_t place;       /* not room: the sample's place in the run, from which random masks follow */
    bool other;           /* not room: of a pair the rejected one is meant; of a judged example its prompt, with the
                             completion of the one before it in its file, or before the first one the last */
} tess_sample;
/* Reads a sample, which is below tess_data_samples. Targets that draw no loss are -100. */
tess_status tess_data_get(const tess_data *data, uint64_t sample, const tess_sample *into) TESS_NODISCARD;

#endif
