/* The table of replacements that sentencepiece compiles its normalization rules to: a trie in a double array, whose
 * leaves are offsets into a pool of strings, each ended by a 0. In tokenizer.json it stands in base64: four bytes of
 * the trie's length, the trie, the pool.
 *
 * A unit of the array has its label in bits 0 to 7 (and 31), whether a leaf hangs from it in 8, and where its children
 * begin in 9 to 30; a leaf has its value there. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <string.h>

struct tess_charsmap {
    const uint32_t *unit;
    size_t units;
    const char *pool;
    size_t bytes;
};

/* The bytes that base64 stands for; false: it is none. */
static bool decode_base64(const char *in, uint8_t *out, size_t *bytes)
{
    uint32_t bits = 0;
    int held = 0;
    *bytes = 0;
    for (; *in && *in != '='; in++) {
        const char c = *in;
        const int v = c >= 'A' && c <= 'Z'   ? c - 'A'
                      : c >= 'a' && c <= 'z' ? c - 'a' + 26
                      : c >= '0' && c <= '9' ? c - '0' + 52
                      : c == '+'             ? 62
                      : c == '/'             ? 63
                                             : -1;
        if (v < 0) return false;
        bits = bits << 6 | (uint32_t)v;
        if ((held += 6) >= 8) out[(*bytes)++] = (uint8_t)(bits >> (held -= 8));
    }
    while (*in == '=') in++;
    return !*in;
}

tess_status tess_charsmap_read(const tess_reader *r, const char *field, const char *base64, tess_charsmap **map)
{
    size_t bytes;
    uint8_t *data = tess_arena_get(r->arena, strlen(base64) + 8);
    if (!decode_base64(base64, data, &bytes)) return tess_file_error(r->path, field, "is no base64");
    const uint32_t trie = bytes < 4 ? 0 : data[0] | data[1] << 8 | data[2] << 16 | (uint32_t)data[3] << 24;
    if (bytes < 4 || trie > bytes - 4 || trie % 4 || !trie)
        return tess_file_error(r->path, field, "is no table of replacements: %zu bytes, and a trie of %u in them",
                               bytes, trie);
    tess_charsmap *m = *map = tess_arena_get(r->arena, sizeof *m);
    uint32_t *unit = tess_arena_get(r->arena, trie);
    for (size_t i = 0; i < trie / 4; i++) {
        const uint8_t *p = data + 4 + 4 * i;
        unit[i] = p[0] | p[1] << 8 | p[2] << 16 | (uint32_t)p[3] << 24;
    }
    *m = (tess_charsmap){unit, trie / 4, (const char *)data + 4 + trie, bytes - 4 - trie};
    if (tess_utf8_valid(m->pool, m->bytes) != m->bytes)
        return tess_file_error(r->path, field, "its replacements are no UTF-8");
    return TESS_OK;
}

static size_t children(uint32_t unit)
{
    return (size_t)(unit >> 10) << ((unit & 1u << 9) >> 6);
}

/* The replacement of the shortest beginning of n bytes that has one, or of the longest; NULL: none has. *taken becomes
 * the bytes of that beginning, *length those of its replacement. */
static const char *find(const tess_charsmap *m, const char *s, size_t n, bool longest, size_t *taken, size_t *length)
{
    size_t at = children(m->unit[0]);
    const char *to = NULL;
    for (size_t i = 0; i < n && s[i]; i++) {
        at ^= (unsigned char)s[i];
        if (at >= m->units) break;
        const uint32_t unit = m->unit[at];
        if ((unit & (1u << 31 | 0xff)) != (unsigned char)s[i]) break;
        at ^= children(unit);
        const bool within = longest && i + 1 < n && (s[i + 1] & 0xc0) == 0x80; /* a character, which stays whole */
        if (!(unit >> 8 & 1) || within) continue;
        const size_t value = at < m->units ? m->unit[at] & ~(1u << 31) : m->bytes;
        if (value >= m->bytes) break;
        to = m->pool + value;
        *taken = i + 1;
        *length = strnlen(to, m->bytes - value);
        if (!longest) break;
    }
    return to;
}

void tess_charsmap_apply_longest(const tess_charsmap *m, const char *s, size_t n, tess_bytes *out)
{
    size_t length;
    for (size_t at = 0, bytes; at < n; at += bytes) {
        const char *to = find(m, s + at, n - at, true, &bytes, &length);
        if (!to) tess_utf8_get(s + at, &bytes);
        tess_bytes_add(out, to ? to : s + at, to ? length : bytes);
    }
}

void tess_charsmap_apply(const tess_charsmap *m, const char *s, size_t n, tess_bytes *out)
{
    enum { SHORT = 6 }; /* a cluster of fewer bytes is looked up whole */
    size_t length, taken;
    const char *to;
    for (size_t at = 0, end, bytes; at < n; at = end) {
        const size_t cluster = tess_grapheme(s + at, n - at);
        end = at + cluster;
        if (cluster < SHORT && (to = find(m, s + at, cluster, false, &taken, &length))) {
            tess_bytes_add(out, to, length);
            continue;
        }
        for (; at < end; at += bytes) {
            tess_utf8_get(s + at, &bytes);
            if ((to = find(m, s + at, bytes, false, &taken, &length)))
                tess_bytes_add(out, to, length);
            else
                tess_bytes_add(out, s + at, bytes);
        }
    }
}
