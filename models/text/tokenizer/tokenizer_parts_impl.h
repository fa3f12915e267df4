/* The parts of a tokenizer, in the order in which a text goes through them:
 *
 *     added.c           added tokens ("<s>") are found in the text as it is, and cut it into regions
 *     normalizer.c      a region is normalized; precompiled.c has sentencepiece's own table for that
 *     added.c           added tokens that are normalized too cut what comes of it into parts
 *     pretokenizer.c    a part is cut into words; pattern.c has the regular expressions
 *     bpe.c, unigram.c, wordpiece.c    a word becomes ids; words.c remembers those of words met lately
 *     postprocessor.c   what stands before and behind a text
 *     token_decoder.c   the way back
 *
 * Below all of them are reading.c, by which they read their JSON, vocab.c, which knows tokens by their bytes, and the
 * characters of base/text.h; above them are encode.c, which sends a text through, tokenizer.c, which reads them all
 * from tokenizer.json, tokenizer_files.c, which makes the same of older files, and decode.c. What is no part that is
 * known here is an error that names it. */
#ifndef TESS_TOKENIZER_PARTS_IMPL_H
#define TESS_TOKENIZER_PARTS_IMPL_H
#define PCRE2_CODE_UNIT_WIDTH 8
#include "models/text/base/mapped.h"
#include "models/text/base/text.h"
#include "models/text/tokenizer/tokenizer.h"
#include <jansson.h>
#include <pcre2.h>
#include <pthread.h>

#define TESS_LINE "\xe2\x96\x81" /* U+2581, which stands for a blank in many vocabularies */

/* ---- reading.c --------------------------------------------------------------------------------------------------- */

/* Where parts are read: their memory is the arena's, and errors name the file. */
typedef struct tess_reader {
    tess_arena *arena;
    const char *path;
} tess_reader;
/* Reads true or false, `otherwise` where the field is missing; anything else is an error. */
tess_status tess_json_flag(const tess_reader *r, const char *field, const json_t *object, const char *name,
                           bool otherwise, bool *flag) TESS_NODISCARD;
/* Makes "field.name" in the arena, and "field.name[index]". */
const char *tess_field(const tess_reader *r, const char *field, const char *name);
const char *tess_field_at(const tess_reader *r, const char *field, const char *name, size_t index);

/* Bytes of the arena, ended by a 0 beside; of a token NULL: none has this id. */
typedef struct tess_token {
    const char *bytes;
    size_t length;
} tess_token;
/* Copies bytes to the arena. */
tess_token tess_token_copy(const tess_reader *r, const char *s, size_t n);

/* Members of a part's object, each with its place in the part's struct; an error names the one that is wrong. */
typedef enum tess_member_kind {
    TESS_MEMBER_FLAG,      /* a bool, true where it is missing */
    TESS_MEMBER_CHARACTER, /* a tess_token of one character */
    TESS_MEMBER_TEXT,      /* a tess_token */
    TESS_MEMBER_COUNT,     /* an int64_t of at least 0 */
    TESS_MEMBER_PATTERN,   /* a tess_pattern */
} tess_member_kind;
typedef struct tess_member {
    int of; /* the kind of part that has it */
    const char *name;
    tess_member_kind kind;
    size_t offset;
} tess_member;

/* What reads a part: an object with one of the types that are known, or a Sequence of such. */
typedef struct tess_part_reader {
    const char *what, *list; /* a part, and the member of a Sequence that lists them, for messages too */
    const char *const *type; /* those that are known, `types` of them */
    int types, deepest;
    const tess_member *member; /* `members` of them, in the order of their kinds */
    size_t members;
    /* Reads a part of kind `type` beyond its members; its Sequence and the parts before it are in `all`. */
    tess_status (*read)(const tess_reader *r, const char *field, const json_t *json, int type, void *all);
    tess_status (*enter)(const tess_reader *r, const char *field, void *all); /* is called for each; NULL: nothing */
} tess_part_reader;
/* Reads the field; null, or none, is nothing. */
tess_status tess_parts_read(const tess_reader *r, const tess_part_reader *reader, const char *field, const json_t *json,
                            void *all) TESS_NODISCARD;
/* Reads the members that a part of this kind has into its struct. */
tess_status tess_members_read(const tess_reader *r, const tess_part_reader *reader, const char *field,
                              const json_t *json, int type, void *part) TESS_NODISCARD;
/* Counts one more part, and fails if there are more than `most`. */
tess_status tess_parts_more(const tess_reader *r, const tess_part_reader *reader, const char *field, int most,
                            int *count) TESS_NODISCARD;

/* ---- pattern.c: what is searched for, in normalizers, pre-tokenizers and decoders -------------------------------- */

typedef struct tess_pattern {
    pcre2_code *code;
    const char *text; /* of the pattern as it is written */
    size_t length;    /* of a literal; 0: a regular expression */
} tess_pattern;
/* Reads {"Regex": "..."} or {"String": "..."}. */
tess_status tess_pattern_read(const tess_reader *r, const char *field, const json_t *json,
                              tess_pattern *p) TESS_NODISCARD;
/* Makes one of a regular expression as Oniguruma has them. */
tess_status tess_pattern_make(const tess_reader *r, const char *field, const char *regex,
                              tess_pattern *p) TESS_NODISCARD;
void tess_pattern_free(tess_pattern *p);
/* Finds the first match at or behind `from`. `found` false: none. The error has no place yet. */
tess_status tess_pattern_find(const tess_pattern *p, pcre2_match_data *match, const char *s, size_t n, size_t from,
                              size_t *begin, size_t *end, bool *found) TESS_NODISCARD;
/* Returns whether a match may have a character behind which there is a blank. */
bool tess_pattern_spans_blank(const tess_pattern *p);

/* ---- precompiled.c: sentencepiece's table of replacements -------------------------------------------------------- */

typedef struct tess_charsmap tess_charsmap;
tess_status tess_charsmap_read(const tess_reader *r, const char *field, const char *base64,
                               tess_charsmap **map) TESS_NODISCARD;
/* Appends what the table makes of a text, cluster by cluster as transformers looks them up, or the longest that it has
 * each time, as sentencepiece does. */
void tess_charsmap_apply(const tess_charsmap *map, const char *s, size_t n, tess_bytes *out);
void tess_charsmap_apply_longest(const tess_charsmap *map, const char *s, size_t n, tess_bytes *out);

/* ---- normalizer.c ------------------------------------------------------------------------------------------------ */

/* A text on its way: borrowed, until a part of the way makes another one of it. */
typedef struct tess_normal {
    const char *text;
    size_t length;
    tess_bytes own[2]; /* text lies in one of them, or in neither */
    bool first, last;  /* it begins, or ends, what was to be normalized */
    bool shifted;      /* what it began with is gone */
} tess_normal;
typedef struct tess_normalizer tess_normalizer;
/* Reads the field; null is NULL. */
tess_status tess_normalizer_read(const tess_reader *r, const char *field, const json_t *json,
                                 tess_normalizer **normalizer) TESS_NODISCARD;
void tess_normalizer_free(tess_normalizer *normalizer);
tess_status tess_normalize(const tess_normalizer *normalizer, pcre2_match_data *match, tess_normal *io) TESS_NODISCARD;
/* Returns whether what it is given may be cut between two letters and a blank, ab| cd, and each piece be normalized by
 * itself. */
bool tess_normalizer_may_cut(const tess_normalizer *normalizer);

/* ---- pretokenizer.c ---------------------------------------------------------------------------------------------- */

enum { TESS_SPLITS = 16 };
typedef struct tess_pretokenizer {
    struct tess_split *split;
    int splits;
    bool byte_level; /* words are bytes */
} tess_pretokenizer;
tess_status tess_pretokenizer_read(const tess_reader *r, const char *field, const json_t *json,
                                   tess_pretokenizer *p) TESS_NODISCARD;
/* Makes words end before U+2581, for a model in which no token has it behind another character. */
void tess_pretokenizer_end_words(tess_pretokenizer *p);
void tess_pretokenizer_free(tess_pretokenizer *p);
bool tess_pretokenizer_may_cut(const tess_pretokenizer *p);

/* The words of a part. `word` is called for each; an error of its goes up. */
typedef struct tess_cutting {
    const tess_pretokenizer *p;
    pcre2_match_data *match;
    tess_bytes own[TESS_SPLITS]; /* what each split makes of its piece, where it changes it */
    tess_status (*word)(void *user, const char *s, size_t n);
    void *user;
    /* The part, and how far it is cut. */
    const char *text;
    size_t length, at;
    bool first, held; /* it begins the text; the first split has changed it */
} tess_cutting;
/* Begins with a part, borrowed until it is through. */
void tess_cutting_start(tess_cutting *c, const char *text, size_t length, bool first);
/* Goes on for about `bytes` bytes; it is finished when at is length. */
tess_status tess_cutting_next(tess_cutting *c, size_t bytes) TESS_NODISCARD;
void tess_cutting_free(tess_cutting *c);

/* ---- vocab.c: tokens by their bytes ------------------------------------------------------------------------------ */

typedef struct tess_vocab tess_vocab;
tess_vocab *tess_vocab_new(void);
void tess_vocab_free(tess_vocab *v);
/* Adds a token (borrowed), or gives it another id. */
void tess_vocab_set(tess_vocab *v, const char *s, size_t n, int32_t id);
/* Returns its id; -1: there is none. */
int32_t tess_vocab_get(const tess_vocab *v, const char *s, size_t n);
/* Returns a hash of bytes. */
static inline uint64_t tess_hash(const char *s, size_t n)
{
    uint64_t h = n * UINT64_C(0x9e3779b97f4a7c15), x;
    for (; n >= 8; n -= 8, s += 8) {
        __builtin_memcpy(&x, s, 8);
        h = (h ^ x) * UINT64_C(0xff51afd7ed558ccd);
        h ^= h >> 32;
    }
    for (x = 0; n; n--) x = x << 8 | (unsigned char)*s++;
    h = (h ^ x) * UINT64_C(0xc4ceb9fe1a85ec53);
    return h ^ h >> 29;
}

/* ---- the models -------------------------------------------------------------------------------------------------- */

/* All of them by id. */
typedef struct tess_tokens {
    tess_token *token;
    int32_t count;
    size_t room;
} tess_tokens;
enum { TESS_IDS = 1 << 22 };
/* Sets the token of an id; an id that has another is an error that names the field. */
tess_status tess_tokens_set(const tess_reader *r, tess_tokens *t, const char *field, int64_t id,
                            tess_token token) TESS_NODISCARD;

/* Room to work in, one a thread; zeroed at first. */
typedef struct tess_scratch {
    void *symbol, *heap;
    size_t symbols, heaps;
} tess_scratch;
void tess_scratch_free(tess_scratch *scratch);

typedef struct tess_bpe tess_bpe;
/* Reads a model whose words are characters, or, where names is not vocab, bytes: names then has the tokens as they are
 * written, vocab by their bytes. *may_cut becomes whether a word of characters that is cut before each U+2581 behind
 * another character is the same ids. */
tess_status tess_bpe_read(const tess_reader *r, const json_t *model, tess_tokens *tokens, tess_vocab *vocab,
                          tess_vocab *names, tess_bpe **b, bool *may_cut) TESS_NODISCARD;
void tess_bpe_free(tess_bpe *b);
/* Appends the ids of a word, in O(n log n). */
void tess_bpe_encode(const tess_bpe *b, const char *word, size_t length, tess_scratch *scratch, tess_ids *ids);

typedef struct tess_unigram tess_unigram;
tess_status tess_unigram_read(const tess_reader *r, const json_t *model, tess_tokens *tokens, tess_vocab *vocab,
                              tess_unigram **u, bool *may_cut) TESS_NODISCARD;
void tess_unigram_free(tess_unigram *u);
/* Appends the ids of a word. TESS_INVALID: a character is in no token, and there is no unknown one. */
tess_status tess_unigram_encode(const tess_unigram *u, const char *word, size_t length, tess_scratch *scratch,
                                tess_ids *ids) TESS_NODISCARD;

typedef struct tess_wordpiece tess_wordpiece;
tess_status tess_wordpiece_read(const tess_reader *r, const json_t *model, tess_tokens *tokens, tess_vocab *vocab,
                                tess_wordpiece **w) TESS_NODISCARD;
void tess_wordpiece_encode(const tess_wordpiece *w, const char *word, size_t length, tess_bytes *room, tess_ids *ids);

/* Reads {"token": id}. */
tess_status tess_vocab_read(const tess_reader *r, const json_t *json, tess_tokens *tokens,
                            tess_vocab *vocab) TESS_NODISCARD;
/* Returns whether U+2581 is a token, and no token has it behind another character. */
bool tess_tokens_begin_words(const tess_tokens *tokens, const tess_vocab *vocab);
/* Finds the ids of <0x00> to <0xFF>; -1 where there is none. */
void tess_vocab_byte_tokens(const tess_vocab *vocab, int32_t id[256]);

/* ---- words.c: ids of words met lately ---------------------------------------------------------------------------- */

typedef struct tess_words tess_words;
tess_words *tess_words_new(void);
void tess_words_free(tess_words *w);
/* Appends the ids of a word that was kept, and returns whether it was; if not, `hash` is to keep it by. */
bool tess_words_find(const tess_words *w, const char *word, size_t length, uint64_t *hash, tess_ids *ids);
void tess_words_keep(tess_words *w, uint64_t hash, const char *word, size_t length, const int32_t *id, size_t count);

/* ---- added.c ----------------------------------------------------------------------------------------------------- */

typedef struct tess_added {
    tess_token content, match; /* as it is written; as it is looked for */
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} tess_added;
/* Those that are looked for in one go, by first byte, longer before shorter. */
typedef struct tess_added_set {
    const tess_added **token;
    size_t count, first[257];
} tess_added_set;
tess_status tess_added_read(const tess_reader *r, const json_t *json, const tess_normalizer *normalizer,
                            const tess_vocab *vocab, tess_tokens *tokens, tess_added **added,
                            size_t *count) TESS_NODISCARD;
/* Makes the set of those that are normalized, or of those that are not. */
void tess_added_set_make(const tess_reader *r, const tess_added *added, size_t count, bool normalized,
                         tess_added_set *set);
/* Finds the next token at or behind *scan, which moves behind it: it takes the place from *begin to *end, and blanks
 * with it, but none before `from`, where text goes on. NULL: there is none. */
const tess_added *tess_added_find(const tess_added_set *set, const char *s, size_t n, size_t from, size_t *scan,
                                  size_t *begin, size_t *end);
bool tess_added_may_cut(const tess_added_set *set);

/* ---- postprocessor.c --------------------------------------------------------------------------------------------- */

/* What stands before and behind a text. */
typedef struct tess_around {
    tess_ids before, behind;
} tess_around;
tess_status tess_around_read(const tess_reader *r, const char *field, const json_t *json,
                             tess_around *around) TESS_NODISCARD;

/* ---- token_decoder.c --------------------------------------------------------------------------------------------- */

typedef struct tess_token_decoder tess_token_decoder;
tess_status tess_token_decoder_read(const tess_reader *r, const char *field, const json_t *json,
                                    tess_token_decoder **decoder) TESS_NODISCARD;
void tess_token_decoder_free(tess_token_decoder *d);
/* Appends the text of tokens. */
void tess_token_decoder_apply(const tess_token_decoder *d, const tess_token *token, size_t count, tess_bytes *out);
/* Returns whether it reads tokens as the alphabet of bytes. */
bool tess_token_decoder_byte_level(const tess_token_decoder *d);
/* Returns whether it makes blanks of U+2581. */
bool tess_token_decoder_blanks(const tess_token_decoder *d);
/* Turns a token in the alphabet of bytes into them, and returns whether all of it is in that alphabet; if not, *token
 * is as it was. */
bool tess_alphabet_bytes(tess_arena *arena, tess_token *token);

/* ---- tokenizer_files.c, sentencepiece.c, pairs.c, gguf_read.c: other files than tokenizer.json ---------------------
 */

/* Reads a tokenizer's main file, r->path, and what lies beside it in `dir`, into the object that its tokenizer.json
 * would have: *root, which is NULL at first, becomes a new reference, also where what lies beside it is wrong. */
tess_status tess_tokenizer_files_read(const tess_reader *r, const char *dir, json_t **root) TESS_NODISCARD;
/* Reads a tokenizer.model, of `n` bytes; `config` is tokenizer_config.json's object, or NULL. */
tess_status tess_sentencepiece_read(const tess_reader *r, const char *bytes, size_t n, const json_t *config,
                                    json_t **root) TESS_NODISCARD;
/* Makes the same of pieces, as lists of their texts, scores and kinds; `prefix`: a blank is put before a text. */
tess_status tess_sentencepiece_make(const tess_reader *r, const json_t *texts, const json_t *scores,
                                    const json_t *kinds, bool prefix, json_t **root) TESS_NODISCARD;
json_t *tess_sentencepiece_normalizer(bool prefix); /* of such a one */
/* Makes the pre-tokenizer that cuts words of bytes by a regular expression; NULL: by GPT-2's. */
json_t *tess_pairs_words(const char *regex, bool prefix);
#define TESS_QWEN2_WORDS                                                                                               \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*"                 \
    "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
/* Reads a vocab.json and a merges.txt; words are GPT-2's, or Qwen2's. */
tess_status tess_pairs_read(const char *vocab_path, const char *merges_path, const json_t *config, bool qwen2,
                            json_t **root) TESS_NODISCARD;

/* Kinds of sentencepiece's pieces, which GGUF's tokens have too. */
enum {
    TESS_PIECE_NORMAL = 1,
    TESS_PIECE_UNKNOWN,
    TESS_PIECE_CONTROL,
    TESS_PIECE_USER_DEFINED,
    TESS_PIECE_UNUSED,
    TESS_PIECE_BYTE
};
/* What GGUF calls ways to cut words of bytes, and their regular expressions; NULL: ByteLevel's own. */
enum { TESS_GGUF_QWEN2 = 2, TESS_GGUF_WORDS };
extern const char *const tess_gguf_words[TESS_GGUF_WORDS][2];
/* Reads what a GGUF file says of its tokenizer; *root as above. */
tess_status tess_gguf_tokenizer_read(const tess_reader *r, const json_t *meta, json_t **root) TESS_NODISCARD;

/* ---- tokenizer.c, encode.c: the whole ---------------------------------------------------------------------------- */

typedef struct tess_workspace tess_workspace;

struct tess_tokenizer {
    tess_arena *arena;
    const char *path;
    uint64_t sum; /* of the file */
    tess_tokens tokens;
    tess_token *shown;         /* by id: what a token adds to a text */
    tess_vocab *vocab, *names; /* the same, but where words are bytes: names are tokens as they are written */
    tess_normalizer *normalizer;
    tess_pretokenizer pretokenizer;
    tess_bpe *bpe; /* one of these three */
    tess_unigram *unigram;
    tess_wordpiece *wordpiece;
    tess_token_decoder *decoder;
    tess_around around;
    tess_added *added;
    size_t added_count;
    tess_added_set raw, normal;
    bool may_cut;            /* a long region may be cut before a blank between letters */
    const char *unsupported; /* why it can encode nothing; NULL: it can. Else its added tokens alone are known */
    int32_t vocab_size;      /* of one that is not */
    pthread_mutex_t lock;    /* of the workspaces that wait */
    tess_workspace *waiting;
};
/* Opens one as tess_tokenizer_open does, with the object that its tokenizer.json has or would have, a new reference. */
tess_status tess_tokenizer_json(const char *path, tess_tokenizer **tokenizer, json_t **root) TESS_NODISCARD;
/* Frees those that wait. */
void tess_workspaces_free(tess_tokenizer *t);

#endif
