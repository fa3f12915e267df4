/* A template's text as tokens. What stands around tags is trimmed here: {%- and -%} take all blanks, the first line end
 * behind a block goes (trim_blocks), and so do blanks between a line's beginning and a block (lstrip_blocks). */
#include "models/text/chat/template_impl.h"
#include <stdlib.h>
#include <string.h>

struct lexer {
    tess_arena *arena;
    const char *where, *text;
    size_t length, at;
    int line;
    tess_tpl_token *token;
    size_t count, room;
    tess_status status;
};

void tess_tpl_error(const char *where, int line, const char *what, tess_status *status)
{
    TESS_FREED char *place = tess_format("%s: line %d", where, line);
    if (*status == TESS_OK) *status = tess_error(TESS_INVALID, place, "%s", what);
}

static void fail(struct lexer *l, const char *what)
{
    tess_tpl_error(l->where, l->line, what, &l->status);
}

static void push(struct lexer *l, tess_tpl_token_kind kind, const char *s, size_t n)
{
    if (l->count == l->room) {
        l->room = 2 * l->room + 64;
        l->token = tess_realloc(l->token, l->room * sizeof *l->token);
    }
    l->token[l->count++] = (tess_tpl_token){kind, l->line, s, n};
}

static bool blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static bool starts(const struct lexer *l, size_t at, const char *what)
{
    const size_t n = strlen(what);
    return at + n <= l->length && memcmp(l->text + at, what, n) == 0;
}

static void count_lines(struct lexer *l, size_t from, size_t to)
{
    for (; from < to; from++) l->line += l->text[from] == '\n';
}

/* Passes over all blanks behind a tag, or over the one line end that may stand there. */
static void skip_behind(struct lexer *l, bool all, bool one)
{
    while (all && l->at < l->length && blank(l->text[l->at])) l->at++;
    if (!all && one && l->at < l->length && l->text[l->at] == '\n') l->at++;
}

/* The string at `at`, its quotes and escapes resolved. */
static size_t lex_string(struct lexer *l, size_t at)
{
    const char quote = l->text[at++];
    tess_bytes out = {0};
    tess_bytes_need(&out, 1);
    for (; at < l->length && l->text[at] != quote; at++) {
        if (l->text[at] != '\\' || at + 1 == l->length) {
            tess_bytes_add(&out, l->text + at, 1);
            continue;
        }
        const char c = l->text[++at];
        static const char from[] = "nrtabfv\\'\"0", to[] = "\n\r\t\a\b\f\v\\'\"";
        const char *known = strchr(from, c);
        const int digits = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
        if (c == '\n') {
            continue;
        } else if (digits) {
            char hex[9] = "", *end;
            snprintf(hex, (size_t)digits + 1, "%.*s", (int)(l->length - at - 1 < 8 ? l->length - at - 1 : 8),
                     l->text + at + 1);
            const unsigned long value = strtoul(hex, &end, 16);
            if (end != hex + digits || value > 0x10ffff || (value >= 0xd800 && value < 0xe000)) {
                fail(l, "a string has an escape that names no character");
                break;
            }
            tess_bytes_put(&out, (uint32_t)value);
            at += (size_t)digits;
        } else if (known && c) {
            tess_bytes_add(&out, &to[known - from], 1);
        } else { /* as Python has it */
            tess_bytes_add(&out, "\\", 1);
            tess_bytes_add(&out, &c, 1);
        }
    }
    if (at == l->length) fail(l, "a string has no end");
    char *own = tess_arena_get(l->arena, out.length + 1);
    memcpy(own, out.data, out.length);
    push(l, TPL_T_STRING, own, out.length);
    free(out.data);
    return at < l->length ? at + 1 : at;
}

static bool name_char(char c)
{
    return c == '_' || (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'z') || (unsigned char)c >= 0x80;
}

static size_t lex_number(struct lexer *l, size_t at)
{
    const size_t begin = at;
    bool real = false;
    while (at < l->length && ((l->text[at] >= '0' && l->text[at] <= '9') || l->text[at] == '_')) at++;
    if (at + 1 < l->length && l->text[at] == '.' && l->text[at + 1] >= '0' && l->text[at + 1] <= '9')
        for (real = true, at++; at < l->length && l->text[at] >= '0' && l->text[at] <= '9';) at++;
    if (at + 1 < l->length && (l->text[at] | 32) == 'e' &&
        (strchr("+-", l->text[at + 1]) || (l->text[at + 1] >= '0' && l->text[at + 1] <= '9')))
        for (real = true, at += 2; at < l->length && l->text[at] >= '0' && l->text[at] <= '9';) at++;
    push(l, real ? TPL_T_FLOAT : TPL_T_INT, l->text + begin, at - begin);
    return at;
}

/* What is within a tag, up to and with its end. */
static void lex_tag(struct lexer *l, bool block)
{
    static const char *const sign[] = {"**", "//", "==", "!=", "<=", ">="};
    const char *const close = block ? "%}" : "}}";
    int open = 0; /* brackets, in which }} ends dictionaries */
    while (l->status == TESS_OK && l->at < l->length) {
        const char c = l->text[l->at];
        const bool strips = c == '-', keeps = c == '+' && block;
        if (!open && (starts(l, l->at, close) || ((strips || keeps) && starts(l, l->at + 1, close)))) {
            push(l, block ? TPL_T_CLOSE_BLOCK : TPL_T_CLOSE_PRINT, "", 0);
            l->at += strips || keeps ? 3 : 2;
            const size_t from = l->at;
            skip_behind(l, strips, block && !keeps);
            count_lines(l, from, l->at);
            return;
        }
        if (blank(c)) {
            l->line += c == '\n';
            l->at++;
        } else if (c == '"' || c == '\'') {
            const size_t from = l->at;
            l->at = lex_string(l, l->at);
            count_lines(l, from, l->at);
        } else if (c >= '0' && c <= '9') {
            l->at = lex_number(l, l->at);
        } else if (name_char(c)) {
            const size_t from = l->at;
            while (l->at < l->length && name_char(l->text[l->at])) l->at++;
            push(l, TPL_T_NAME, l->text + from, l->at - from);
        } else if (strchr("+-*/%~.:|,()[]{}=!<>", c)) {
            size_t n = 1;
            for (size_t i = 0; i < sizeof sign / sizeof *sign; i++)
                if (starts(l, l->at, sign[i])) n = 2;
            if (n == 1 && c == '!') fail(l, "! is not known here");
            open += (strchr("([{", c) != NULL) - (strchr(")]}", c) != NULL);
            push(l, TPL_T_SIGN, l->text + l->at, n);
            l->at += n;
        } else {
            fail(l, "a character in a tag is not known here");
        }
    }
    fail(l, block ? "a {% has no %}" : "a {{ has no }}");
}

static void lex_text(struct lexer *l, bool *line_begins)
{
    size_t end = l->at;
    while (end + 1 < l->length && !(l->text[end] == '{' && strchr("%{#", l->text[end + 1]))) end++;
    if (end + 1 >= l->length) end = l->length;
    const bool tag = end < l->length, print = tag && l->text[end + 1] == '{';
    const char mark = tag && end + 2 < l->length ? l->text[end + 2] : 0;
    size_t stop = end;
    if (mark == '-') {
        while (stop > l->at && blank(l->text[stop - 1])) stop--;
    } else if (tag && !print && mark != '+') {
        size_t begin = end;
        while (begin > l->at && (blank(l->text[begin - 1]) && l->text[begin - 1] != '\n')) begin--;
        if (begin > l->at ? l->text[begin - 1] == '\n' : *line_begins) stop = begin;
    }
    if (stop > l->at) push(l, TPL_T_TEXT, l->text + l->at, stop - l->at);
    count_lines(l, l->at, end);
    l->at = end;
    if (!tag) return;
    l->at += 2 + (mark == '-' || (mark == '+' && !print));
    if (l->text[end + 1] == '#') {
        const char *close = memmem(l->text + l->at, l->length - l->at, "#}", 2);
        if (!close) {
            fail(l, "a {# has no #}");
            return;
        }
        const size_t from = l->at;
        l->at = (size_t)(close - l->text) + 2;
        const char last = close > l->text + from ? close[-1] : 0;
        skip_behind(l, last == '-', last != '+');
        count_lines(l, from, l->at);
    } else {
        push(l, print ? TPL_T_OPEN_PRINT : TPL_T_OPEN_BLOCK, "", 0);
        lex_tag(l, !print);
    }
    *line_begins = l->at > 0 && l->text[l->at - 1] == '\n';
}

tess_status tess_tpl_lex(tess_arena *arena, const char *where, const char *text, size_t length, tess_tpl_token **tokens)
{
    char *own = tess_arena_get(arena, length + 1);
    size_t n = 0;
    for (size_t i = 0; i < length; i++) /* line ends are of one kind */
        if (text[i] == '\r') {
            own[n++] = '\n';
            i += i + 1 < length && text[i + 1] == '\n';
        } else {
            own[n++] = text[i];
        }
    if (n && own[n - 1] == '\n') n--;
    struct lexer l = {.arena = arena, .where = where, .text = own, .length = n, .line = 1};
    bool line_begins = true;
    while (l.status == TESS_OK && l.at < l.length) lex_text(&l, &line_begins);
    push(&l, TPL_T_END, "", 0);
    *tokens = tess_arena_get(arena, l.count * sizeof **tokens);
    memcpy(*tokens, l.token, l.count * sizeof **tokens);
    free(l.token);
    return l.status;
}
