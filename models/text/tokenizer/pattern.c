/* Patterns: the regular expressions of tokenizer.json, which are written for Oniguruma, and literal strings. */
#include "models/text/tokenizer/tokenizer_parts_impl.h"
#include <string.h>

/* Where PCRE2 reads the same letters otherwise they are written out, or refused: \s, which PCRE2 lets match U+180E, and
 * \w, which leaves out marks there. */
static const char SPACE[] = "\\p{Z}\\x09-\\x0d\\x85";
static const char WORD[] = "\\p{L}\\p{M}\\p{Nd}\\p{Nl}\\p{Pc}\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}\\x{24b6}-\\x{24e9}"
                           "\\x{1f130}-\\x{1f149}\\x{1f150}-\\x{1f169}\\x{1f170}-\\x{1f189}";

static tess_status translate(const tess_reader *r, const char *field, const char *in, char **out)
{
    char *o = *out = tess_arena_get(r->arena, strlen(in) * (sizeof WORD + 4) + 1);
    bool set = false, repeat = false; /* inside of [] and {n,m} */
    for (const char *p = in; *p; p++) {
        if (*p == '\\' && p[1]) {
            p++;
            if (strchr("hHbBRXKGyYNOAzZGk", *p) || (set && strchr("SW", *p)))
                return tess_file_error(r->path, field, "\\%c is not supported here", *p);
            if (strchr("sSwW", *p))
                o += sprintf(o, set ? "%s%s" : *p >= 'a' ? "[%s%s]" : "[^%s%s]", (*p | 32) == 's' ? SPACE : WORD, "");
            else
                *o++ = '\\', *o++ = *p;
            continue;
        }
        if (set && ((*p == '[' && p[1] != ':') || (*p == '&' && p[1] == '&')))
            return tess_file_error(r->path, field, "sets inside of sets are not supported");
        if (!set && *p == '{') repeat = (p[1] >= '0' && p[1] <= '9') || p[1] == ',';
        if (!set && repeat && *p == '}' && p[1] == '+') return tess_file_error(r->path, field, "}+ is not supported");
        if (!set && *p == '(' && p[1] == '?' && (strchr("mx-", p[2]) || (p[2] == 'i' && p[3] != ':')))
            return tess_file_error(r->path, field, "(?%c is not supported", p[2]);
        if (*p == '[' && set) /* [:name:] */
            for (; *p && *p != ']'; p++) *o++ = *p;
        else if (*p == '[' || *p == ']')
            set = *p == '[';
        *o++ = *p;
        if (!*p) break;
    }
    return TESS_OK;
}

static tess_status compile(const tess_reader *r, const char *field, const char *text, bool literal, tess_pattern *p)
{
    int error;
    uint32_t empty;
    PCRE2_SIZE at;
    char *own = (char *)text;
    *p = (tess_pattern){.text = tess_arena_format(r->arena, "%s", text), .length = literal ? strlen(text) : 0};
    if (literal && p->length) return TESS_OK;
    if (literal) return tess_file_error(r->path, field, "\"\" matches nothing at all, which is not supported");
    TESS_TRY(translate(r, field, text, &own));
    p->code = pcre2_compile((PCRE2_SPTR)own, PCRE2_ZERO_TERMINATED, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, &error,
                            &at, NULL);
    if (!p->code) {
        char why[128];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)why, sizeof why);
        return tess_file_error(r->path, field, "\"%s\" is no regular expression: %s", text, why);
    }
    pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* without it matching is slower, and the same */
    pcre2_pattern_info(p->code, PCRE2_INFO_MATCHEMPTY, &empty);
    if (!empty) return TESS_OK;
    tess_pattern_free(p);
    return tess_file_error(r->path, field, "\"%s\" matches nothing at all, which is not supported", text);
}

tess_status tess_pattern_make(const tess_reader *r, const char *field, const char *regex, tess_pattern *p)
{
    return compile(r, field, regex, false, p);
}

tess_status tess_pattern_read(const tess_reader *r, const char *field, const json_t *json, tess_pattern *p)
{
    const char *regex = tess_json_text(json, "Regex"), *literal = tess_json_text(json, "String");
    *p = (tess_pattern){0};
    if (!regex && !literal) return tess_file_error(r->path, field, "expected a pattern with a Regex or a String");
    return compile(r, field, regex ? regex : literal, !regex, p);
}

void tess_pattern_free(tess_pattern *p)
{
    pcre2_code_free(p->code);
    p->code = NULL;
}

tess_status tess_pattern_find(const tess_pattern *p, pcre2_match_data *match, const char *s, size_t n, size_t from,
                              size_t *begin, size_t *end, bool *found)
{
    *found = false;
    if (from >= n) return TESS_OK;
    if (p->length) {
        const char *at = memmem(s + from, n - from, p->text, p->length);
        if (!at) return TESS_OK;
        *found = true;
        *begin = (size_t)(at - s);
        *end = *begin + p->length;
        return TESS_OK;
    }
    const int status = pcre2_match(p->code, (PCRE2_SPTR)s, n, from, PCRE2_NO_UTF_CHECK, match, NULL);
    if (status == PCRE2_ERROR_NOMATCH) return TESS_OK;
    if (status < 0) return tess_error(TESS_INVALID, "text", "too long for the tokenizer's pattern (is this a text?)");
    const PCRE2_SIZE *place = pcre2_get_ovector_pointer(match);
    *found = true;
    *begin = place[0];
    *end = place[1];
    return TESS_OK;
}

/* Patterns of the model families. No match has a letter and the blank behind it, and none depends on text further away
 * than the character behind that blank. */
static const char *const WORDS[] = {
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}| "
    "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|"
    "\\s+(?!\\S)|\\s+",
    " {2,}",
    "\\s+",
};

bool tess_pattern_spans_blank(const tess_pattern *p)
{
    if (!p->length) {
        for (size_t i = 0; i < sizeof WORDS / sizeof *WORDS; i++)
            if (strcmp(p->text, WORDS[i]) == 0) return false;
        return true;
    }
    for (size_t i = 1; i < p->length; i++)
        if ((p->text[i] == ' ' && p->text[i - 1] != ' ') || (unsigned char)p->text[i] >= 0x80) return true;
    return false;
}
