/* Of Python's strings, what methods and filters share. */
#include "models/text/chat/template_impl.h"
#include <string.h>
#include <utf8proc.h>

bool tess_tpl_blank(const char *s, size_t *n)
{
    const uint32_t c = tess_utf8_get(s, n);
    return tess_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

static bool within(const char *s, size_t n, const char *set, size_t set_n)
{
    for (size_t at = 0, k; at < set_n; at += k) {
        tess_utf8_get(set + at, &k);
        if (k == n && memcmp(set + at, s, n) == 0) return true;
    }
    return false;
}

tess_tpl_value tess_tpl_strip(const char *s, size_t n, const char *set, size_t set_n, bool left, bool right)
{
    size_t k;
    while (left && n && (set ? (tess_utf8_get(s, &k), within(s, k, set, set_n)) : tess_tpl_blank(s, &k)))
        s += k, n -= k;
    while (right && n) {
        tess_utf8_last(s, n, &k);
        if (!(set ? within(s + n - k, k, set, set_n) : tess_tpl_blank(s + n - k, &k))) break;
        n -= k;
    }
    return tess_tpl_string(s, n);
}

tess_tpl_value tess_tpl_lower(tess_tpl_run *r, tess_tpl_value v, int how)
{
    tess_bytes out = {0};
    bool begins = true;
    for (size_t at = 0, n; at < v.n; at += n) {
        const uint32_t c = tess_utf8_get(v.s + at, &n);
        const bool large = how == 1 || (how >= 2 && begins);
        if (large && c == 0xdf)
            tess_bytes_add(&out, how == 1 ? "SS" : "Ss", 2);
        else if (large)
            tess_bytes_put(&out, (uint32_t)(how == 1 ? utf8proc_toupper((utf8proc_int32_t)c)
                                                     : utf8proc_totitle((utf8proc_int32_t)c)));
        else
            tess_bytes_put_lower(&out, c);
        begins = how == 2 && !(tess_is_word(c) && !tess_is_number(c) && c != '_');
    }
    return tess_tpl_made(r, &out);
}

tess_tpl_value tess_tpl_replace(tess_tpl_run *r, tess_tpl_value v, tess_tpl_value from, tess_tpl_value to, int64_t most)
{
    enum { MUCH = 64 << 20 };
    tess_bytes out = {0};
    if (!from.n) return tess_tpl_fail(r, "replace of an empty string is not supported");
    for (const char *at; most != 0 && (at = memmem(v.s, v.n, from.s, from.n)); most--) {
        tess_bytes_add(&out, v.s, (size_t)(at - v.s));
        tess_bytes_add(&out, to.s, to.n);
        v.n -= (size_t)(at - v.s) + from.n;
        v.s = at + from.n;
        if (out.length > MUCH) {
            tess_tpl_fail(r, "replace makes more than 64 MiB");
            break;
        }
    }
    tess_bytes_add(&out, v.s, v.n);
    return tess_tpl_made(r, &out);
}
