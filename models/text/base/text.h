/* Text: bytes that grow, UTF-8, and what its characters are by Unicode.
 *
 *     tess_bytes line = {0};
 *     size_t bytes;
 *     for (const char *s = text; *s; s += bytes) tess_bytes_put_lower(&line, tess_utf8_get(s, &bytes));
 *     fwrite(line.data, 1, line.length, stdout);
 *     free(line.data);
 */
#ifndef TESS_TEXT_H
#define TESS_TEXT_H
#include "runtime/runtime.h"
#include <jansson.h>
#include <stdlib.h>

/* TESS_FREED (runtime.h) for a reference to JSON. */
#define TESS_FREED_JSON __attribute__((cleanup(tess_freed_json)))
static inline void tess_freed_json(json_t **reference)
{
    json_decref(*reference);
}

/* ---- bytes that grow --------------------------------------------------------------------------------------------- */

typedef struct tess_bytes {
    char *data;
    size_t length, room;
} tess_bytes;
/* Makes room for `more` bytes. */
static inline void tess_bytes_need(tess_bytes *b, size_t more)
{
    if (b->length + more <= b->room) return;
    b->room = (b->length + more) * 3 / 2 + 64;
    b->data = tess_realloc(b->data, b->room);
}
/* Appends n bytes. */
static inline void tess_bytes_add(tess_bytes *b, const char *s, size_t n)
{
    tess_bytes_need(b, n + 1);
    if (n) __builtin_memcpy(b->data + b->length, s, n);
    b->length += n;
}

/* ---- UTF-8, and what characters are ---------- ------------------------------------------------------------------- */

/* Returns how many bytes the first character of n >= 1 bytes has; 0: they are the beginning of one and no more; -k: the
 * first k begin no character. */
int tess_utf8_step(const char *s, size_t n);
/* Returns how many bytes of s are UTF-8 before the first that is not. */
size_t tess_utf8_valid(const char *s, size_t n);
/* Returns the first character of valid UTF-8; *bytes becomes its length. */
static inline uint32_t tess_utf8_get(const char *s, size_t *bytes)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return *bytes = 1, p[0];
    if (p[0] < 0xe0) return *bytes = 2, (p[0] & 0x1fu) << 6 | (p[1] & 0x3fu);
    if (p[0] < 0xf0) return *bytes = 3, (p[0] & 0xfu) << 12 | (p[1] & 0x3fu) << 6 | (p[2] & 0x3fu);
    return *bytes = 4, (p[0] & 7u) << 18 | (p[1] & 0x3fu) << 12 | (p[2] & 0x3fu) << 6 | (p[3] & 0x3fu);
}
/* Returns the last character of n >= 1 bytes of valid UTF-8; *bytes becomes its length. */
uint32_t tess_utf8_last(const char *s, size_t n, size_t *bytes);
/* Writes a character and returns its length, which is at most 4 bytes. */
size_t tess_utf8_put(uint32_t c, char *s);
/* Appends a character. */
static inline void tess_bytes_put(tess_bytes *b, uint32_t c)
{
    tess_bytes_need(b, 5);
    b->length += tess_utf8_put(c, b->data + b->length);
}
/* Appends bytes, those that are no UTF-8 replaced by U+FFFD. */
void tess_bytes_add_lossy(tess_bytes *b, const char *s, size_t n);

/* Each returns whether a character is of its kind. */
bool tess_is_space(uint32_t c);       /* White_Space */
bool tess_is_word(uint32_t c);        /* \w: letters, marks, decimal digits, connectors, joiners */
bool tess_is_number(uint32_t c);      /* N */
bool tess_is_punctuation(uint32_t c); /* P, and all of ASCII's */
bool tess_is_mark(uint32_t c);        /* M */
bool tess_is_nonspacing(uint32_t c);  /* Mn */
bool tess_is_other(uint32_t c);       /* control, format, private use */
bool tess_is_chinese(uint32_t c);     /* as BERT has it */
/* Appends a character in lower case, which is one character or two. */
void tess_bytes_put_lower(tess_bytes *b, uint32_t c);
/* Appends a text in a normal form. */
void tess_bytes_add_normal(tess_bytes *b, const char *s, size_t n, bool compatible, bool compose);
/* Returns how many bytes the first grapheme cluster has. */
size_t tess_grapheme(const char *s, size_t n);
/* Returns the place of the first byte from `at` on that is not ASCII; n: all are. */
size_t tess_ascii_end(const char *s, size_t n, size_t at);

/* Returns the string of an object's field, or NULL where it is none. */
static inline const char *tess_json_text(const json_t *object, const char *name)
{
    return json_string_value(json_object_get(object, name));
}
/* Parses text with jansson's `flags`, as Python's json does: an integer beyond 64 bits is a real, NaN is null, and what
 * is infinite is the largest real, since JSON has no other. Returns a new reference, or NULL and the error. */
json_t *tess_json_parse(const char *text, size_t bytes, size_t flags, json_error_t *error);
/* Parses a file so; returns NULL where it cannot be read, too. */
json_t *tess_json_load(const char *path, size_t flags, json_error_t *error);
/* Parses a file in which no member may stand twice: *root is a new reference, *sum, unless NULL, tells the file's
 * content from others. */
tess_status tess_json_open(const char *path, size_t flags, json_t **root, uint64_t *sum) TESS_NODISCARD;
/* Opens the object in a file of a directory; *root is NULL where the directory has none of that name. */
tess_status tess_json_beside(const char *dir, const char *name, json_t **root) TESS_NODISCARD;

#endif
