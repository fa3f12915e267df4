/* Tokenizer: text to token ids and back, as a Hugging Face tokenizer.json says. Its parts are in tokenizer/, see
 * parts_impl.h there.
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
 * library without the special tokens that a post-processor adds (tess_tokenizer_around has those); a special token
 * spelt out in the text is its id. Threads may share a tokenizer.
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
/* Appends many. */
void tess_ids_add(tess_ids *ids, const int32_t *id, size_t count);
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

/* Says which ids the post-processor puts before and behind a text. */
void tess_tokenizer_around(const tess_tokenizer *t, const tess_ids **before, const tess_ids **behind);

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

/* Returns the bytes that one token adds to a text, not ended by a 0: perhaps none, perhaps a part of a character. */
const char *tess_tokenizer_bytes(const tess_tokenizer *t, int32_t id, size_t *length);
/* Makes a new string with the text of many, bytes that are not UTF-8 replaced by U+FFFD; says its length when that is
 * not NULL. */
char *tess_tokenizer_decode(const tess_tokenizer *t, const int32_t *ids, size_t count, size_t *length);
/* Returns how many of n bytes, at their end, begin a character that is not complete yet: what to hold back when
 * printing. */
size_t tess_utf8_unfinished(const char *s, size_t n);

/* A text that is decoded as its ids come, behind some that are not shown (ids may be NULL where count is 0). */
typedef struct tess_decoding tess_decoding;
tess_decoding *tess_decoding_new(const tess_tokenizer *t, const int32_t *ids, size_t count);
/* Frees it. */
void tess_decoding_free(tess_decoding *d);
/* Adds an id and returns what is new of the text, borrowed until the next call: nothing as long as it ends within a
 * character. */
const char *tess_decoding_push(tess_decoding *d, int32_t id, size_t *length);
/* Returns what was held back. */
const char *tess_decoding_rest(tess_decoding *d, size_t *length);

#endif
