/* Tokens as a tree. The order of operators is Jinja's. */
#include "models/text/chat/template_impl.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { DEEPEST = 200 };

struct parser {
    tess_arena *arena;
    const char *where;
    const tess_tpl_token *t;
    tess_status status;
    int depth, loops;
};

static tess_tpl_node *fail(struct parser *p, const char *format, ...) TESS_PRINTF(2, 3);
static tess_tpl_node *fail(struct parser *p, const char *format, ...)
{
    char what[400];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    tess_tpl_error(p->where, p->t->line, what, &p->status);
    return NULL;
}

static tess_tpl_node *node(struct parser *p, tess_tpl_op op)
{
    tess_tpl_node *n = tess_arena_get(p->arena, sizeof *n);
    n->op = op;
    n->line = p->t->line;
    return n;
}

static bool is(const tess_tpl_token *t, tess_tpl_token_kind kind, const char *s)
{
    return t->kind == kind && t->n == strlen(s) && memcmp(t->s, s, t->n) == 0;
}
static bool sign(struct parser *p, const char *s)
{
    return is(p->t, TPL_T_SIGN, s);
}
static bool word(struct parser *p, const char *s)
{
    return is(p->t, TPL_T_NAME, s);
}
static bool take_sign(struct parser *p, const char *s)
{
    return sign(p, s) ? p->t++, true : false;
}
static bool take_word(struct parser *p, const char *s)
{
    return word(p, s) ? p->t++, true : false;
}

/* What stands there, for "%.*s". */
#define FOUND(p) (int)((p)->t->n < 40 ? (p)->t->n : 40), (p)->t->s

static void expect(struct parser *p, const char *s)
{
    if (!take_sign(p, s)) fail(p, "expected %s, found \"%.*s\"", s, FOUND(p));
}

static const char *take_name(struct parser *p)
{
    if (p->t->kind != TPL_T_NAME) return fail(p, "expected a name, found \"%.*s\"", FOUND(p)), "";
    const char *s = tess_arena_format(p->arena, "%.*s", (int)p->t->n, p->t->s);
    p->t++;
    return s;
}

static void add(struct parser *p, tess_tpl_node *n, tess_tpl_node *item, const char *name)
{
    if ((n->count & (n->count - 1)) == 0) { /* the room doubles */
        tess_tpl_node **list = tess_arena_get(p->arena, (n->count ? 2 * n->count : 1) * sizeof *list);
        const char **names = tess_arena_get(p->arena, (n->count ? 2 * n->count : 1) * sizeof *names);
        if (n->count) memcpy(list, n->list, n->count * sizeof *list), memcpy(names, n->names, n->count * sizeof *names);
        n->list = list;
        n->names = names;
    }
    n->names[n->count] = name;
    n->list[n->count++] = item;
}

/* ---- expressions ---- */

static tess_tpl_node *expression(struct parser *p);
static tess_tpl_node *unary(struct parser *p, bool filters);

static tess_tpl_node *two(struct parser *p, tess_tpl_op op, tess_tpl_node *a, tess_tpl_node *b)
{
    tess_tpl_node *n = node(p, op);
    n->a = a;
    n->b = b;
    return n;
}

static tess_tpl_node *literal(struct parser *p, tess_tpl_value v)
{
    tess_tpl_node *n = node(p, TPL_VALUE);
    n->value = v;
    p->t++;
    return n;
}

static tess_tpl_node *number(struct parser *p)
{
    char text[64];
    size_t n = 0;
    for (size_t i = 0; i < p->t->n && n + 1 < sizeof text; i++)
        if (p->t->s[i] != '_') text[n++] = p->t->s[i];
    text[n] = 0;
    errno = 0;
    const tess_tpl_value v = p->t->kind == TPL_T_INT ? tess_tpl_int(strtoll(text, NULL, 10))
                                                     : (tess_tpl_value){.kind = TPL_FLOAT, .f = strtod(text, NULL)};
    return errno ? fail(p, "%s is too large a number", text) : literal(p, v);
}

static tess_tpl_node *strings(struct parser *p)
{
    tess_bytes all = {0};
    for (; p->t->kind == TPL_T_STRING; p->t++) tess_bytes_add(&all, p->t->s, p->t->n);
    tess_tpl_node *n = node(p, TPL_VALUE);
    char *own = tess_arena_get(p->arena, all.length + 1);
    if (all.length) memcpy(own, all.data, all.length);
    n->value = tess_tpl_string(own, all.length);
    free(all.data);
    return n;
}

/* What is between brackets; with a comma in it, or nothing, it is a tuple. */
static tess_tpl_node *bracketed(struct parser *p)
{
    tess_tpl_node *tuple = node(p, TPL_TUPLE), *only = NULL;
    bool comma = false;
    while (p->status == TESS_OK && !sign(p, ")")) {
        only = expression(p);
        add(p, tuple, only, NULL);
        if (!take_sign(p, ",")) break;
        comma = true;
    }
    expect(p, ")");
    return tuple->count == 1 && !comma ? only : tuple;
}

static tess_tpl_node *listed(struct parser *p, tess_tpl_op op, const char *end)
{
    tess_tpl_node *n = node(p, op);
    while (p->status == TESS_OK && !sign(p, end)) {
        add(p, n, expression(p), NULL);
        if (op == TPL_DICT) {
            expect(p, ":");
            add(p, n, expression(p), NULL);
        }
        if (!take_sign(p, ",")) break;
    }
    expect(p, end);
    return n;
}

static tess_tpl_node *primary(struct parser *p)
{
    static const struct {
        const char *name;
        tess_tpl_value v;
    } constants[] = {{"true", {.kind = TPL_BOOL, .b = true}},
                     {"True", {.kind = TPL_BOOL, .b = true}},
                     {"false", {.kind = TPL_BOOL}},
                     {"False", {.kind = TPL_BOOL}},
                     {"none", {.kind = TPL_NONE}},
                     {"None", {.kind = TPL_NONE}}};
    if (p->t->kind == TPL_T_INT || p->t->kind == TPL_T_FLOAT) return number(p);
    if (p->t->kind == TPL_T_STRING) return strings(p);
    if (take_sign(p, "(")) return bracketed(p);
    if (take_sign(p, "[")) return listed(p, TPL_LIST, "]");
    if (take_sign(p, "{")) return listed(p, TPL_DICT, "}");
    for (size_t i = 0; i < sizeof constants / sizeof *constants; i++)
        if (word(p, constants[i].name)) return literal(p, constants[i].v);
    tess_tpl_node *n = node(p, TPL_NAME);
    n->text = take_name(p);
    return n;
}

static void arguments(struct parser *p, tess_tpl_node *n)
{
    while (p->status == TESS_OK && !sign(p, ")")) {
        if (sign(p, "*") || sign(p, "**")) fail(p, "* in a call is not supported");
        const bool named = p->t->kind == TPL_T_NAME && is(p->t + 1, TPL_T_SIGN, "=");
        const char *name = named ? take_name(p) : NULL;
        if (named) p->t++;
        add(p, n, expression(p), name);
        if (!take_sign(p, ",")) break;
    }
    expect(p, ")");
}

static tess_tpl_node *subscript(struct parser *p, tess_tpl_node *of)
{
    tess_tpl_node *n = node(p, TPL_SLICE), *part[3] = {NULL};
    int at = 0;
    bool slice = false;
    n->a = of;
    for (; p->status == TESS_OK && at < 3; at++) {
        if (!sign(p, ":") && !sign(p, "]")) part[at] = expression(p);
        if (!take_sign(p, ":")) break;
        slice = true;
    }
    expect(p, "]");
    if (!slice) {
        n->op = TPL_ITEM;
        n->b = part[0];
        return part[0] ? n : fail(p, "[] has no subscript");
    }
    for (int i = 0; i < 3; i++) add(p, n, part[i], NULL);
    return n;
}

static tess_tpl_node *postfix(struct parser *p, tess_tpl_node *n)
{
    while (p->status == TESS_OK) {
        if (take_sign(p, ".")) {
            if (p->t->kind == TPL_T_INT) {
                tess_tpl_node *item = two(p, TPL_ITEM, n, NULL);
                item->b = number(p);
                n = item;
                continue;
            }
            tess_tpl_node *member = two(p, TPL_MEMBER, n, NULL);
            member->text = take_name(p);
            n = member;
        } else if (take_sign(p, "[")) {
            n = subscript(p, n);
        } else if (take_sign(p, "(")) {
            n = two(p, TPL_CALL, n, NULL);
            arguments(p, n);
        } else {
            break;
        }
    }
    return n;
}

static tess_tpl_node *test(struct parser *p, tess_tpl_node *of)
{
    tess_tpl_node *n = two(p, TPL_TEST, of, NULL);
    n->i = take_word(p, "not");
    n->text = take_name(p);
    if (p->status == TESS_OK && !tess_tpl_has_test(n->text)) return fail(p, "test %.60s is not supported", n->text);
    if (take_sign(p, "(")) {
        arguments(p, n);
    } else if ((p->t->kind == TPL_T_NAME && !word(p, "else") && !word(p, "or") && !word(p, "and") && !word(p, "if") &&
                !word(p, "is") && !word(p, "in") && !word(p, "not")) ||
               p->t->kind == TPL_T_STRING || p->t->kind == TPL_T_INT || p->t->kind == TPL_T_FLOAT || sign(p, "[") ||
               sign(p, "{")) {
        add(p, n, postfix(p, primary(p)), NULL);
    }
    return n;
}

static tess_tpl_node *filtered(struct parser *p, tess_tpl_node *n)
{
    while (p->status == TESS_OK) {
        if (take_sign(p, "|")) {
            n = two(p, TPL_FILTER, n, NULL);
            n->text = take_name(p);
            if (p->status == TESS_OK && !tess_tpl_has_filter(n->text))
                return fail(p, "filter %.60s is not supported", n->text);
            if (take_sign(p, "(")) arguments(p, n);
        } else if (take_word(p, "is")) {
            n = test(p, n);
        } else if (take_sign(p, "(")) {
            n = two(p, TPL_CALL, n, NULL);
            arguments(p, n);
        } else {
            break;
        }
    }
    return n;
}

static tess_tpl_node *unary(struct parser *p, bool filters)
{
    tess_tpl_node *n;
    if (++p->depth > DEEPEST) return fail(p, "is nested too deeply");
    if (take_sign(p, "-"))
        n = two(p, TPL_NEGATE, unary(p, false), NULL);
    else if (take_sign(p, "+"))
        n = unary(p, false);
    else
        n = primary(p);
    n = postfix(p, n);
    if (filters) n = filtered(p, n);
    p->depth--;
    return n;
}

/* Operators that are taken from left to right, those of one order together, the loosest first. */
enum { OR, AND, SUM, JOIN, PRODUCT, POWER, LEVELS };
static const struct {
    const char *sign[5];
    tess_tpl_op op[4];
} levels[LEVELS] = {[OR] = {{"or"}, {TPL_OR}},
                    [AND] = {{"and"}, {TPL_AND}},
                    [SUM] = {{"+", "-"}, {TPL_ADD, TPL_SUBTRACT}},
                    [JOIN] = {{"~"}, {TPL_JOIN}},
                    [PRODUCT] = {{"*", "/", "//", "%"}, {TPL_MULTIPLY, TPL_DIVIDE, TPL_FLOOR, TPL_REMAINDER}},
                    [POWER] = {{"**"}, {TPL_POWER}}};

static tess_tpl_node *binary(struct parser *p, int level);
static tess_tpl_node *negated(struct parser *p);

static tess_tpl_node *operand(struct parser *p, int level)
{
    return level == AND ? negated(p) : level == POWER ? unary(p, true) : binary(p, level + 1);
}

static tess_tpl_node *binary(struct parser *p, int level)
{
    tess_tpl_node *n = operand(p, level);
    for (int i = 0; levels[level].sign[i] && p->status == TESS_OK; i++)
        if (take_sign(p, levels[level].sign[i]) || take_word(p, levels[level].sign[i]))
            n = two(p, levels[level].op[i], n, operand(p, level)), i = -1;
    return n;
}

static int comparison(struct parser *p)
{
    static const char *const s[] = {"==", "!=", "<", "<=", ">", ">="};
    for (int i = 0; i < 6; i++)
        if (take_sign(p, s[i])) return i;
    if (take_word(p, "in")) return TPL_IN;
    if (word(p, "not") && is(p->t + 1, TPL_T_NAME, "in")) return p->t += 2, TPL_NOT_IN;
    return -1;
}

static tess_tpl_node *compared(struct parser *p)
{
    enum { MOST = 16 };
    tess_tpl_node *a = binary(p, SUM), *n = node(p, TPL_COMPARE);
    uint8_t *ops = tess_arena_get(p->arena, MOST);
    n->a = a;
    n->ops = ops;
    for (int op; p->status == TESS_OK && (op = comparison(p)) >= 0;) {
        if (n->count == MOST) return fail(p, "a chain of comparisons is too long");
        ops[n->count] = (uint8_t)op;
        add(p, n, binary(p, SUM), NULL);
    }
    return n->count ? n : a;
}

static tess_tpl_node *negated(struct parser *p)
{
    if (!take_word(p, "not")) return compared(p);
    if (++p->depth > DEEPEST) return fail(p, "is nested too deeply");
    tess_tpl_node *n = two(p, TPL_NOT, negated(p), NULL);
    p->depth--;
    return n;
}

static tess_tpl_node *expression(struct parser *p)
{
    if (++p->depth > DEEPEST) return fail(p, "is nested too deeply");
    tess_tpl_node *n = binary(p, OR);
    while (p->status == TESS_OK && take_word(p, "if")) {
        tess_tpl_node *c = node(p, TPL_CHOOSE);
        c->b = n;
        c->a = binary(p, OR);
        c->c = take_word(p, "else") ? expression(p) : NULL;
        n = c;
    }
    p->depth--;
    return n;
}

/* One expression, or several with commas between them. */
static tess_tpl_node *expressions(struct parser *p)
{
    tess_tpl_node *n = expression(p), *tuple;
    if (!sign(p, ",")) return n;
    tuple = node(p, TPL_TUPLE);
    add(p, tuple, n, NULL);
    while (p->status == TESS_OK && take_sign(p, ",") && p->t->kind != TPL_T_CLOSE_BLOCK &&
           p->t->kind != TPL_T_CLOSE_PRINT)
        add(p, tuple, expression(p), NULL);
    return tuple;
}

/* ---- statements ---- */

static tess_tpl_node *body(struct parser *p, const char *const *ends, const char **end);

static void close_tag(struct parser *p, tess_tpl_token_kind kind)
{
    if (p->t->kind == kind)
        p->t++;
    else
        fail(p, "expected %s, found \"%.*s\"", kind == TPL_T_CLOSE_BLOCK ? "%}" : "}}", FOUND(p));
}

/* Closes a tag and takes what follows up to {% last %}. */
static tess_tpl_node *body_to(struct parser *p, const char *last)
{
    const char *const ends[] = {last, NULL}, *end;
    close_tag(p, TPL_T_CLOSE_BLOCK);
    tess_tpl_node *n = body(p, ends, &end);
    close_tag(p, TPL_T_CLOSE_BLOCK);
    return n;
}

/* Names that are set: a, or a, b. */
static void targets(struct parser *p, tess_tpl_node *n)
{
    enum { MOST = 8 };
    n->names = tess_arena_get(p->arena, MOST * sizeof *n->names);
    const bool bracket = take_sign(p, "(");
    do {
        if (n->name_count == MOST) {
            fail(p, "more than %d names at once are not supported", MOST);
            return;
        }
        n->names[n->name_count++] = take_name(p);
    } while (p->status == TESS_OK && take_sign(p, ","));
    if (bracket) expect(p, ")");
}

static tess_tpl_node *if_block(struct parser *p)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    const char *end = NULL;
    tess_tpl_node *n = node(p, TPL_IF);
    if (++p->depth > DEEPEST) return fail(p, "is nested too deeply");
    n->a = expressions(p);
    close_tag(p, TPL_T_CLOSE_BLOCK);
    n->body = body(p, ends, &end);
    if (end && !strcmp(end, "elif"))
        n->orelse = if_block(p); /* which takes the end along */
    else if (end && !strcmp(end, "else"))
        n->orelse = body_to(p, "endif");
    else
        close_tag(p, TPL_T_CLOSE_BLOCK);
    p->depth--;
    return n;
}

static tess_tpl_node *for_block(struct parser *p)
{
    static const char *const ends[] = {"else", "endfor", NULL};
    const char *end = NULL;
    tess_tpl_node *n = node(p, TPL_FOR);
    targets(p, n);
    if (!take_word(p, "in")) return fail(p, "expected \"in\" in a for");
    n->a = binary(p, OR);
    if (take_word(p, "if")) n->b = expression(p);
    if (word(p, "recursive")) return fail(p, "a recursive for is not supported");
    close_tag(p, TPL_T_CLOSE_BLOCK);
    p->loops++;
    n->body = body(p, ends, &end);
    p->loops--;
    if (end && !strcmp(end, "else"))
        n->orelse = body_to(p, "endfor");
    else
        close_tag(p, TPL_T_CLOSE_BLOCK);
    return n;
}

static tess_tpl_node *set_block(struct parser *p)
{
    tess_tpl_node *n = node(p, TPL_SET);
    if (p->t->kind == TPL_T_NAME && is(p->t + 1, TPL_T_SIGN, ".")) {
        n->a = node(p, TPL_NAME);
        n->a->text = take_name(p);
        p->t++;
        n->text = take_name(p);
    } else {
        targets(p, n);
    }
    if (take_sign(p, "=")) {
        n->b = expressions(p);
        close_tag(p, TPL_T_CLOSE_BLOCK);
        return n;
    }
    if (sign(p, "|") || n->a || n->name_count != 1) return fail(p, "this kind of set is not supported");
    n->op = TPL_SET_BLOCK;
    n->body = body_to(p, "endset");
    return n;
}

static tess_tpl_node *macro_block(struct parser *p)
{
    const int loops = p->loops;
    tess_tpl_node *n = node(p, TPL_MACRO);
    n->text = take_name(p);
    expect(p, "(");
    while (p->status == TESS_OK && !sign(p, ")")) {
        const char *name = take_name(p);
        add(p, n, take_sign(p, "=") ? expression(p) : NULL, name);
        if (!take_sign(p, ",")) break;
    }
    expect(p, ")");
    p->loops = 0;
    n->body = body_to(p, "endmacro");
    p->loops = loops;
    return n;
}

static tess_tpl_node *block(struct parser *p)
{
    if (take_word(p, "if")) return if_block(p);
    if (take_word(p, "for")) return for_block(p);
    if (take_word(p, "set")) return set_block(p);
    if (take_word(p, "macro")) return macro_block(p);
    if (take_word(p, "generation")) {
        tess_tpl_node *n = node(p, TPL_GENERATION);
        n->body = body_to(p, "endgeneration");
        return n;
    }
    const bool breaks = word(p, "break");
    if (breaks || word(p, "continue")) {
        tess_tpl_node *n = node(p, breaks ? TPL_BREAK : TPL_CONTINUE);
        if (!p->loops) return fail(p, "%s is in no loop", breaks ? "break" : "continue");
        p->t++;
        close_tag(p, TPL_T_CLOSE_BLOCK);
        return n;
    }
    return fail(p, "{%% %.*s %%} is not supported", FOUND(p));
}

/* Statements up to one of the names in `ends`, which is taken and given back; NULL: up to the end. */
static tess_tpl_node *body(struct parser *p, const char *const *ends, const char **end)
{
    tess_tpl_node *first = NULL, **last = &first;
    *end = NULL;
    if (++p->depth > DEEPEST) return fail(p, "is nested too deeply");
    while (p->status == TESS_OK && p->t->kind != TPL_T_END) {
        tess_tpl_node *n = NULL;
        if (p->t->kind == TPL_T_TEXT) {
            n = node(p, TPL_TEXT);
            n->text = p->t->s;
            n->length = p->t->n;
            p->t++;
        } else if (p->t->kind == TPL_T_OPEN_PRINT) {
            p->t++;
            n = node(p, TPL_PRINT);
            n->a = expressions(p);
            close_tag(p, TPL_T_CLOSE_PRINT);
        } else {
            p->t++;
            for (size_t i = 0; ends && ends[i]; i++)
                if (take_word(p, ends[i])) {
                    *end = ends[i];
                    p->depth--;
                    return first;
                }
            n = block(p);
        }
        if (!n) break;
        *last = n;
        last = &n->next;
    }
    p->depth--;
    if (ends) fail(p, "expected {%% %s %%}", ends[0]);
    return first;
}

tess_status tess_tpl_parse(tess_arena *arena, const char *where, const char *text, size_t length, tess_tpl_node **root)
{
    struct parser p = {.arena = arena, .where = where};
    tess_tpl_token *tokens;
    const char *end;
    TESS_TRY(tess_tpl_lex(arena, where, text, length, &tokens));
    p.t = tokens;
    *root = body(&p, NULL, &end);
    return p.status;
}
