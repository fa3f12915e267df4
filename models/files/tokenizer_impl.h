/* Tokenizer: text to token ids and back, as the byte-level BPE of GPT-2 and Llama 3 in a Hugging Face tokenizer.json.
 *
 *     tess_tokenizer *t;
 *     TESS_TRY(tess_tokenizer_open("model/tokenizer.json", &t));
 *     tess_ids ids = {0};
 *     TESS_TRY(tess_tokenizer_encode(t, "--prompt", "Hello", 5, &ids));
 *     char *text = tess_tokenizer_decode(t, ids.id, ids.count, NULL); // "Hello"
 *     free(text);
 *     tess_ids_free(&ids);
 *     tess_tokenizer_free(t);
 *
 * A NULL tokenizer stands for bytes everywhere: 256 tokens, each its own byte. Ids are those of the Hugging Face
 * library without the special tokens that a post-processor adds; a special token spelt out in the text is its id.
 * A tokenizer does not change once it is open: threads may share it.
 */
#ifndef TESS_TOKENIZER_IMPL_H
#define TESS_TOKENIZER_IMPL_H
#include "runtime.h"

/* An array of ids that grows; zeroed at first. */
typedef struct tess_ids {
    int32_t *id;
    size_t count, room;
} tess_ids;
/* Appends an id. */
void tess_ids_push(tess_ids *ids, int32_t id);
/* Frees them. */
void tess_ids_free(tess_ids *ids);

typedef struct tess_tokenizer tess_tokenizer;

/* Opens a tokenizer.json. What changes the result and is not supported (a normalizer, another model type, ...) is
 * TESS_INVALID. */
tess_status tess_tokenizer_open(const char *path, tess_tokenizer **tokenizer) TESS_NODISCARD;
/* The same for data that may be ids alone: one that is not supported is opened too, knows its added tokens, and fails
 * when a text is to be encoded. */
tess_status tess_tokenizer_open_any(const char *path, tess_tokenizer **tokenizer) TESS_NODISCARD;
/* Says why it encodes nothing; NULL: it does. */
const char *tess_tokenizer_unsupported(const tess_tokenizer *t);
/* Frees it; NULL is nothing. */
void tess_tokenizer_free(tess_tokenizer *t);
/* Returns the largest id + 1. */
int32_t tess_tokenizer_vocab(const tess_tokenizer *t);
/* Tells this tokenizer from another; 0: bytes. */
uint64_t tess_tokenizer_sum(const tess_tokenizer *t);
/* Returns the added token that is spelt so; -1: there is none. */
int32_t tess_tokenizer_added(const tess_tokenizer *t, const char *name);
/* Returns the token that ends a text; -1: there is none. */
int32_t tess_tokenizer_end_of_text(const tess_tokenizer *t);

/* Appends the ids of a text in UTF-8; anything else is TESS_INVALID with `where`, what the text is, and the offset. */
tess_status tess_tokenizer_encode(const tess_tokenizer *t, const char *where, const char *text, size_t length,
                                  tess_ids *ids) TESS_NODISCARD;

/* A text that is encoded piece by piece, so that its ids need not all be held: it is through when `at` is its length.
 */
typedef struct tess_encoding {
    const char *text; /* borrowed */
    size_t length, at;
    struct tess_encoding_state *state;
} tess_encoding;
/* Begins with a text, as tess_tokenizer_encode has it. */
tess_status tess_encoding_start(const tess_tokenizer *t, const char *where, const char *text, size_t length,
                                tess_encoding *e) TESS_NODISCARD;
/* Appends the ids of one piece and moves `at` behind it. */
tess_status tess_encoding_next(tess_encoding *e, tess_ids *ids) TESS_NODISCARD;
/* Frees what it holds; a zeroed one may be ended too. */
void tess_encoding_end(tess_encoding *e);

/* Returns the bytes of one token, not ended by a 0: perhaps none, perhaps a part of a character. */
const char *tess_tokenizer_bytes(const tess_tokenizer *t, int32_t id, size_t *length);
/* Makes a new string with the text of many, bytes that are not UTF-8 replaced by U+FFFD; says its length when that is
 * not NULL. */
char *tess_tokenizer_decode(const tess_tokenizer *t, const int32_t *ids, size_t count, size_t *length);
/* Returns how many of n bytes, at their end, begin a character that is not complete yet: what to hold back when
 * printing. */
size_t tess_utf8_unfinished(const char *s, size_t n);

/* ---- tokenizer_bpe.c: the model alone, the bytes of one word to ids ---------------------------------------------- */

typedef struct tess_bpe tess_bpe;
/* Makes an empty one. */
tess_bpe *tess_bpe_new(void);
/* Frees it. */
void tess_bpe_free(tess_bpe *b);
/* Says which id a byte by itself has. */
void tess_bpe_set_byte(tess_bpe *b, unsigned byte, int32_t id);
/* Says that left and right become `id`; a merge that is added earlier goes first. False: the pair is there already. */
bool tess_bpe_add_merge(tess_bpe *b, int32_t left, int32_t right, int32_t id);
/* Says that a word with these bytes (borrowed) is this id, whatever the merges make of it. */
void tess_bpe_add_word(tess_bpe *b, const char *bytes, size_t length, int32_t id);

/* Room to work in, one a thread; zeroed at first. */
typedef struct tess_bpe_scratch {
    void *symbol, *heap;
    size_t symbols, heaps;
} tess_bpe_scratch;
/* Frees it. */
void tess_bpe_scratch_free(tess_bpe_scratch *scratch);
/* Appends the ids of a word, in O(n log n). Its bytes have been set. */
void tess_bpe_encode(const tess_bpe *b, const char *word, size_t length, tess_bpe_scratch *scratch, tess_ids *ids);

#endif
