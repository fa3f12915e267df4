/* UTF-8, and what characters are, by utf8proc's tables: tokenizer.c says why those. */
#include "models/text/base/text.h"
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* ---- UTF-8 ---- */

int tess_utf8_step(const char *s, size_t n)
{
    const unsigned char *p = (const unsigned char *)s;
    if (p[0] < 0x80) return 1;
    int want = p[0] >= 0xf5 ? 0 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : p[0] >= 0xc2 ? 2 : 0;
    if (!want) return -1;
    unsigned low = p[0] == 0xe0 ? 0xa0 : p[0] == 0xf0 ? 0x90 : 0x80;  /* neither longer than needed */
    unsigned high = p[0] == 0xed ? 0x9f : p[0] == 0xf4 ? 0x8f : 0xbf; /* nor a surrogate nor beyond U+10FFFF */
    for (int i = 1; i < want; i++, low = 0x80, high = 0xbf) {
        if ((size_t)i == n) return 0;
        if (p[i] < low || p[i] > high) return -i;
    }
    return want;
}

size_t tess_ascii_end(const char *s, size_t n, size_t at)
{
    for (uint64_t x; at + 8 <= n; at += 8) {
        memcpy(&x, s + at, 8);
        if (x & UINT64_C(0x8080808080808080)) break;
    }
    while (at < n && (unsigned char)s[at] < 0x80) at++;
    return at;
}

size_t tess_utf8_valid(const char *s, size_t n)
{
    for (size_t i = 0;;) {
        if ((i = tess_ascii_end(s, n, i)) == n) return n;
        const int step = tess_utf8_step(s + i, n - i);
        if (step <= 0) return i;
        i += (size_t)step;
    }
}

uint32_t tess_utf8_last(const char *s, size_t n, size_t *bytes)
{
    size_t at = n - 1;
    while (at > 0 && (s[at] & 0xc0) == 0x80) at--;
    return tess_utf8_get(s + at, bytes);
}

size_t tess_utf8_put(uint32_t c, char *s)
{
    return (size_t)utf8proc_encode_char((utf8proc_int32_t)c, (utf8proc_uint8_t *)s);
}

void tess_bytes_add_lossy(tess_bytes *b, const char *s, size_t n)
{
    tess_bytes_need(b, n + 1);
    for (size_t i = 0; i < n;) {
        const int step = tess_utf8_step(s + i, n - i);
        const size_t bytes = step > 0 ? (size_t)step : step < 0 ? (size_t)-step : n - i;
        tess_bytes_add(b, step > 0 ? s + i : "\xef\xbf\xbd", step > 0 ? bytes : 3);
        i += bytes;
    }
}

/* ---- what characters are ---- */

static utf8proc_category_t category(uint32_t c)
{
    return utf8proc_category((utf8proc_int32_t)c);
}

bool tess_is_space(uint32_t c)
{
    if (c < 0x80) return c == ' ' || (c >= 9 && c <= 13);
    return c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 ||
           c == 0x202f || c == 0x205f || c == 0x3000;
}

bool tess_is_mark(uint32_t c)
{
    const utf8proc_category_t k = c < 0x300 ? 0 : category(c);
    return k == UTF8PROC_CATEGORY_MN || k == UTF8PROC_CATEGORY_MC || k == UTF8PROC_CATEGORY_ME;
}

bool tess_is_nonspacing(uint32_t c)
{
    return c >= 0x300 && category(c) == UTF8PROC_CATEGORY_MN;
}

bool tess_is_word(uint32_t c)
{
    if (c < 0x80) return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '_';
    const utf8proc_category_t k = category(c);
    if (k >= UTF8PROC_CATEGORY_LU && k <= UTF8PROC_CATEGORY_NL) return true; /* letters, marks, Nd and Nl */
    if (k == UTF8PROC_CATEGORY_PC || c == 0x200c || c == 0x200d) return true;
    /* Circled and squared letters, which are alphabetic too. */
    return (c >= 0x24b6 && c <= 0x24e9) || (c >= 0x1f130 && c <= 0x1f149) || (c >= 0x1f150 && c <= 0x1f169) ||
           (c >= 0x1f170 && c <= 0x1f189);
}

bool tess_is_number(uint32_t c)
{
    if (c < 0x80) return c >= '0' && c <= '9';
    const utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_ND || k == UTF8PROC_CATEGORY_NL || k == UTF8PROC_CATEGORY_NO;
}

bool tess_is_punctuation(uint32_t c)
{
    if (c < 0x80)
        return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') || (c >= '{' && c <= '~');
    const utf8proc_category_t k = category(c);
    return k >= UTF8PROC_CATEGORY_PC && k <= UTF8PROC_CATEGORY_PO;
}

bool tess_is_other(uint32_t c)
{
    if (c < 0x80) return c < ' ' || c == 0x7f;
    const utf8proc_category_t k = category(c);
    return k == UTF8PROC_CATEGORY_CC || k == UTF8PROC_CATEGORY_CF || k == UTF8PROC_CATEGORY_CO;
}

bool tess_is_chinese(uint32_t c)
{
    static const uint32_t range[][2] = {{0x4e00, 0x9fff},   {0x3400, 0x4dbf},   {0x20000, 0x2a6df}, {0x2a700, 0x2b73f},
                                        {0x2b740, 0x2b81f}, {0x2b920, 0x2ceaf}, {0xf900, 0xfaff},   {0x2f800, 0x2fa1f}};
    for (size_t i = 0; c >= 0x3400 && i < sizeof range / sizeof *range; i++)
        if (c >= range[i][0] && c <= range[i][1]) return true;
    return false;
}

void tess_bytes_put_lower(tess_bytes *b, uint32_t c)
{
    if (c < 0x80) {
        tess_bytes_put(b, c >= 'A' && c <= 'Z' ? c + 32 : c);
        return;
    }
    tess_bytes_put(b, c == 0x130 ? 'i' : (uint32_t)utf8proc_tolower((utf8proc_int32_t)c));
    if (c == 0x130) tess_bytes_put(b, 0x307); /* the one letter that becomes two */
}

/* ---- normal forms ---- */

/* Characters that one normal form is made of together: from one that nothing before it acts on to the next such. */
static void add_run(tess_bytes *b, const char *s, size_t n, utf8proc_option_t options)
{
    utf8proc_int32_t few[256], *code = few;
    utf8proc_ssize_t room = 256, count;
    for (;;) {
        count = utf8proc_decompose((const utf8proc_uint8_t *)s, (utf8proc_ssize_t)n, code, room,
                                   (options & ~UTF8PROC_COMPOSE) | UTF8PROC_DECOMPOSE);
        TESS_ASSERT(count >= 0); /* the text is UTF-8 */
        if (count <= room) break;
        if (code != few) free(code);
        room = count;
        code = tess_alloc((size_t)room * sizeof *code);
    }
    if (options & UTF8PROC_COMPOSE) count = utf8proc_normalize_utf32(code, count, options);
    for (utf8proc_ssize_t i = 0; i < count; i++) tess_bytes_put(b, (uint32_t)code[i]);
    if (code != few) free(code);
}

void tess_bytes_add_normal(tess_bytes *b, const char *s, size_t n, bool compatible, bool compose)
{
    enum { FEW = 48 };
    const utf8proc_option_t options =
        UTF8PROC_STABLE | (compatible ? UTF8PROC_COMPAT : 0) | (compose ? UTF8PROC_COMPOSE : 0);
    for (size_t at = 0, end, begin; at < n; at = end) {
        begin = tess_ascii_end(s, n, at);
        if (begin == n) {
            tess_bytes_add(b, s + at, n - at);
            return;
        }
        if (begin > at) begin--; /* an accent may go onto the letter before it */
        tess_bytes_add(b, s + at, begin - at);
        /* To the next of ASCII, or earlier to one of the ideographs that are their own form. */
        for (end = begin + 1; end < n && (unsigned char)s[end] >= 0x80; end++)
            if (end - begin > FEW && (unsigned char)s[end] >= 0xe4 && (unsigned char)s[end] <= 0xe9) {
                size_t bytes;
                const uint32_t c = tess_utf8_get(s + end, &bytes);
                if (c >= 0x4e00 && c < 0xa000) break;
            }
        add_run(b, s + begin, end - begin, options);
    }
}

size_t tess_grapheme(const char *s, size_t n)
{
    utf8proc_int32_t state = 0;
    size_t bytes, end;
    uint32_t before = tess_utf8_get(s, &end);
    while (end < n) {
        if (before < 0x300 && before != 0xa9 && before != 0xae && before != '\r' && (unsigned char)s[end] < 0x80) break;
        const uint32_t c = tess_utf8_get(s + end, &bytes);
        if (utf8proc_grapheme_break_stateful((utf8proc_int32_t)before, (utf8proc_int32_t)c, &state)) break;
        before = c;
        end += bytes;
    }
    return end;
}
