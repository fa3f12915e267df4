/* Tokenizer: text to token ids and back, as a Hugging Face tokenizer.json has it, or the files that were before it.
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
#ifndef TESS_TOKENIZER_H
#define TESS_TOKENIZER_H
#include "runtime/runtime.h"

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

/* Returns the name of the file by which a directory's tokenizer is opened: tokenizer.json, or sentencepiece's
 * tokenizer.model or spiece.model, or vocab.json, beside which merges.txt is; NULL: it has none. */
const char *tess_tokenizer_in(const char *dir);
/* Makes a new text for a message about a directory that has none: what it has instead. */
char *tess_tokenizer_lack(const char *dir);
/* Opens a tokenizer.json, or what a directory has by the names above. What changes the result and is not supported (a
 * normalizer, another model type, ...) is TESS_INVALID. */
tess_status tess_tokenizer_open(const char *path, tess_tokenizer **tokenizer) TESS_NODISCARD;
/* Opens one for data that may be ids alone: if it is not supported it knows its added tokens, and fails when a text is
 * to be encoded. */
tess_status tess_tokenizer_open_any(const char *path, tess_tokenizer **tokenizer) TESS_NODISCARD;
/* Writes the tokenizer.json that a directory has or would have. */
tess_status tess_tokenizer_save(const char *dir, const char *file) TESS_NODISCARD;
/* Adds to the values of a GGUF file what it says of the directory's tokenizer, with `count` tokens in all. What has no
 * name there is TESS_INVALID. */
struct json_t;
tess_status tess_tokenizer_gguf(const char *dir, int64_t count, struct json_t *meta) TESS_NODISCARD;
/* Makes one that encodes nothing, because of what `why` says of the directory. */
tess_tokenizer *tess_tokenizer_none(const char *dir, const char *why);
/* Returns why it encodes nothing; NULL: it encodes. */
const char *tess_tokenizer_unsupported(const tess_tokenizer *t);
/* Frees it; NULL is nothing. */
void tess_tokenizer_free(tess_tokenizer *t);
/* Returns how many ids there are: the largest, and one. */
int32_t tess_tokenizer_vocab(const tess_tokenizer *t);
/* Returns a sum that differs where files of tokenizers do; 0: tokens are bytes. */
uint64_t tess_tokenizer_sum(const tess_tokenizer *t);
/* Returns the added token that is spelt so; -1: there is none. */
int32_t tess_tokenizer_added(const tess_tokenizer *t, const char *name);
/* Returns the token that ends a text; -1: there is none. */
int32_t tess_tokenizer_end_of_text(const tess_tokenizer *t);

/* Appends the ids of a text, which must be UTF-8. `where` is what errors call the text; they name the offset too. */
tess_status tess_tokenizer_encode(const tess_tokenizer *t, const char *where, const char *text, size_t length,
                                  tess_ids *ids) TESS_NODISCARD;

/* Finds the ids that the post-processor puts before and behind a text; the tokenizer owns them. */
void tess_tokenizer_around(const tess_tokenizer *t, const tess_ids **before, const tess_ids **behind);

/* A text that is encoded piece by piece, so that its ids need not all be held. It is through when `at` is its length.
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

/* Returns the bytes that one token adds to a text: perhaps none, perhaps a part of a character. The tokenizer owns
 * them, and no 0 ends them. */
const char *tess_tokenizer_bytes(const tess_tokenizer *t, int32_t id, size_t *length);
/* Makes a new string of the text of many tokens, with U+FFFD for bytes that are not UTF-8; *length (unless NULL)
 * becomes its length. */
char *tess_tokenizer_decode(const tess_tokenizer *t, const int32_t *ids, size_t count, size_t *length);

/* A text that is decoded as its ids come. */
typedef struct tess_decoding tess_decoding;
/* Begins one behind `count` ids that are not shown; ids may be NULL where there are none. */
tess_decoding *tess_decoding_new(const tess_tokenizer *t, const int32_t *ids, size_t count);
/* Frees it. */
void tess_decoding_free(tess_decoding *d);
/* Adds an id and returns what is new of the text, borrowed until the next call: nothing as long as it ends within a
 * character. */
const char *tess_decoding_push(tess_decoding *d, int32_t id, size_t *length);
/* Returns what was held back, borrowed too. */
const char *tess_decoding_rest(tess_decoding *d, size_t *length);

#endif
