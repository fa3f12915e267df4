/* Rendering: a tree against variables. */
#include "models/text/chat/template_impl.h"
#include <math.h>
#include <string.h>

enum { DEEPEST = 100 };

/* ---- variables ---- */

static bool look_up(const tess_tpl_run *r, const char *name, tess_tpl_value *v)
{
    const size_t n = strlen(name);
    for (const tess_tpl_scope *s = r->scope; s; s = s->outer)
        for (size_t i = s->variables.count; i >= 2; i -= 2) {
            const tess_tpl_value *key = &s->variables.item[i - 2];
            if (key->n == n && memcmp(key->s, name, n) == 0) return *v = s->variables.item[i - 1], true;
        }
    return false;
}

static void assign(tess_tpl_run *r, const char *name, tess_tpl_value v)
{
    tess_tpl_put(r, &r->scope->variables, tess_tpl_string(name, strlen(name)), v);
}

static void assign_all(tess_tpl_run *r, const tess_tpl_node *n, tess_tpl_value v)
{
    if (n->name_count == 1) {
        assign(r, n->names[0], v);
        return;
    }
    const tess_tpl_list *l = tess_tpl_items(r, v);
    if (r->status == TESS_OK && l->count != n->name_count)
        tess_tpl_fail(r, "%zu values for %zu names", l->count, n->name_count);
    for (size_t i = 0; i < n->name_count && r->status == TESS_OK; i++) assign(r, n->names[i], l->item[i]);
}

/* ---- expressions ---- */

static tess_tpl_value eval(tess_tpl_run *r, const tess_tpl_node *n);

static tess_tpl_value undefined(const char *name)
{
    return (tess_tpl_value){.kind = TPL_UNDEFINED, .s = name, .n = strlen(name)};
}

static tess_tpl_value concatenate(tess_tpl_run *r, tess_tpl_value a, tess_tpl_value b)
{
    if (a.kind == TPL_STRING) {
        char *s = tess_tpl_get(r, a.n + b.n + 1);
        if (!s) return (tess_tpl_value){0};
        memcpy(s, a.s, a.n);
        memcpy(s + a.n, b.s, b.n);
        return tess_tpl_string(s, a.n + b.n);
    }
    const tess_tpl_value v = tess_tpl_list_new(r, a.kind);
    for (size_t i = 0; i < a.list->count; i++) tess_tpl_push(r, v.list, a.list->item[i]);
    for (size_t i = 0; i < b.list->count; i++) tess_tpl_push(r, v.list, b.list->item[i]);
    return v;
}

static tess_tpl_value repeat(tess_tpl_run *r, tess_tpl_value v, int64_t times)
{
    if (times < 0) times = 0;
    if (v.n && times > TPL_BYTES / (int64_t)v.n) return tess_tpl_fail(r, "a string is repeated too often");
    char *s = tess_tpl_get(r, v.n * (size_t)times + 1);
    for (int64_t i = 0; s && i < times; i++) memcpy(s + v.n * (size_t)i, v.s, v.n);
    return s ? tess_tpl_string(s, v.n * (size_t)times) : (tess_tpl_value){0};
}

static bool whole(tess_tpl_value v)
{
    return v.kind == TPL_INT || v.kind == TPL_BOOL;
}
static int64_t whole_of(tess_tpl_value v)
{
    return v.kind == TPL_BOOL ? v.b : v.i;
}
static double real_of(tess_tpl_value v)
{
    return v.kind == TPL_FLOAT ? v.f : (double)whole_of(v);
}

static tess_tpl_value calculate_whole(tess_tpl_run *r, tess_tpl_op op, int64_t a, int64_t b)
{
    int64_t c = 0;
    bool beyond = false;
    if ((op == TPL_FLOOR || op == TPL_REMAINDER) && b == 0) return tess_tpl_fail(r, "division by zero");
    if ((op == TPL_FLOOR || op == TPL_REMAINDER) && b == -1)
        return tess_tpl_int(op == TPL_FLOOR ? (int64_t)(0 - (uint64_t)a) : 0);
    if (op == TPL_ADD) beyond = __builtin_add_overflow(a, b, &c);
    if (op == TPL_SUBTRACT) beyond = __builtin_sub_overflow(a, b, &c);
    if (op == TPL_MULTIPLY) beyond = __builtin_mul_overflow(a, b, &c);
    if (op == TPL_FLOOR) c = a / b - (a % b != 0 && (a < 0) != (b < 0));
    if (op == TPL_REMAINDER) c = a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : 0);
    if (op == TPL_POWER) {
        if (b < 0 || b > 64) return tess_tpl_fail(r, "a power beyond 0 to 64");
        for (c = 1; b > 0 && !beyond; b--) beyond = __builtin_mul_overflow(c, a, &c);
    }
    return beyond ? tess_tpl_fail(r, "a number is too large") : tess_tpl_int(c);
}

static tess_tpl_value calculate(tess_tpl_run *r, tess_tpl_op op, tess_tpl_value a, tess_tpl_value b)
{
    static const char sign[] = "+-*/f%p";
    const bool lists = a.kind == b.kind && (a.kind == TPL_STRING || a.kind == TPL_SEQUENCE || a.kind == TPL_FIXED);
    const bool numbers = (whole(a) || a.kind == TPL_FLOAT) && (whole(b) || b.kind == TPL_FLOAT);
    if (r->status != TESS_OK) return (tess_tpl_value){0};
    if (op == TPL_ADD && lists) return concatenate(r, a, b);
    if (op == TPL_MULTIPLY && a.kind == TPL_STRING && whole(b)) return repeat(r, a, whole_of(b));
    if (op == TPL_MULTIPLY && b.kind == TPL_STRING && whole(a)) return repeat(r, b, whole_of(a));
    if (a.kind == TPL_UNDEFINED || b.kind == TPL_UNDEFINED) {
        const tess_tpl_value u = a.kind == TPL_UNDEFINED ? a : b;
        return tess_tpl_fail(r, "\"%.*s\" is undefined", (int)u.n, u.s ? u.s : "");
    }
    if (!numbers)
        return tess_tpl_fail(r, "%s %c %s is not known here", tess_tpl_kind_name(a), sign[op - TPL_ADD],
                             tess_tpl_kind_name(b));
    if (op != TPL_DIVIDE && whole(a) && whole(b)) return calculate_whole(r, op, whole_of(a), whole_of(b));
    const double x = real_of(a), y = real_of(b);
    if (y == 0 && (op == TPL_DIVIDE || op == TPL_FLOOR || op == TPL_REMAINDER))
        return tess_tpl_fail(r, "division by zero");
    const double z = op == TPL_ADD        ? x + y
                     : op == TPL_SUBTRACT ? x - y
                     : op == TPL_MULTIPLY ? x * y
                     : op == TPL_DIVIDE   ? x / y
                     : op == TPL_FLOOR    ? floor(x / y)
                     : op == TPL_POWER    ? pow(x, y)
                                          : x - y * floor(x / y);
    return (tess_tpl_value){.kind = TPL_FLOAT, .f = z};
}

static bool compare_two(tess_tpl_run *r, tess_tpl_compare op, tess_tpl_value a, tess_tpl_value b)
{
    if (op == TPL_EQ || op == TPL_NE) return tess_tpl_equal(r, a, b) == (op == TPL_EQ);
    if (op == TPL_IN || op == TPL_NOT_IN) return tess_tpl_contains(r, b, a) == (op == TPL_IN);
    const int order = tess_tpl_order(r, a, b);
    if (op == TPL_LT || op == TPL_GE) return (order < 0) == (op == TPL_LT);
    return (order > 0) == (op == TPL_GT);
}

static tess_tpl_value compare(tess_tpl_run *r, const tess_tpl_node *n)
{
    tess_tpl_value left = eval(r, n->a);
    for (size_t i = 0; i < n->count && r->status == TESS_OK; i++) {
        const tess_tpl_value right = eval(r, n->list[i]);
        if (!compare_two(r, (tess_tpl_compare)n->ops[i], left, right)) return tess_tpl_bool(false);
        left = right;
    }
    return tess_tpl_bool(true);
}

/* a[from:to:step] of n things: the first, how many there are. */
static void slice_bounds(int64_t n, int64_t step, const tess_tpl_value *from, const tess_tpl_value *to, int64_t *first,
                         int64_t *count)
{
    int64_t lo = step > 0 ? 0 : n - 1, hi = step > 0 ? n : -1;
    const int64_t least = step > 0 ? 0 : -1, most = step > 0 ? n : n - 1;
    if (whole(*from)) {
        lo = whole_of(*from) < 0 ? whole_of(*from) + n : whole_of(*from);
        lo = lo < least ? least : lo > most ? most : lo;
    }
    if (whole(*to)) {
        hi = whole_of(*to) < 0 ? whole_of(*to) + n : whole_of(*to);
        hi = hi < least ? least : hi > most ? most : hi;
    }
    *first = lo;
    *count = step > 0 ? (hi > lo ? (hi - lo + step - 1) / step : 0) : (lo > hi ? (lo - hi - step - 1) / -step : 0);
}

static tess_tpl_value slice(tess_tpl_run *r, const tess_tpl_node *n)
{
    const tess_tpl_value of = eval(r, n->a);
    tess_tpl_value part[3] = {{0}};
    int64_t first, count;
    for (int i = 0; i < 3; i++)
        if (n->list[i]) part[i] = eval(r, n->list[i]);
    int64_t step = whole(part[2]) ? whole_of(part[2]) : 1;
    if (of.kind != TPL_STRING && of.kind != TPL_SEQUENCE && of.kind != TPL_FIXED)
        return tess_tpl_fail(r, "%s has no slices", tess_tpl_kind_name(of));
    if (step == 0 || step == INT64_MIN) return tess_tpl_fail(r, "a slice has a step of 0, or one that is too large");
    const tess_tpl_list *l = tess_tpl_items(r, of);
    if (step > (int64_t)l->count) step = (int64_t)l->count + 1; /* the first alone */
    if (step < -(int64_t)l->count) step = -(int64_t)l->count - 1;
    slice_bounds((int64_t)l->count, step, &part[0], &part[1], &first, &count);
    if (of.kind != TPL_STRING) {
        const tess_tpl_value v = tess_tpl_list_new(r, of.kind);
        for (int64_t i = 0; i < count; i++) tess_tpl_push(r, v.list, l->item[first + i * step]);
        return v;
    }
    tess_bytes out = {0};
    for (int64_t i = 0; i < count && r->status == TESS_OK; i++) {
        const tess_tpl_value *c = &l->item[first + i * step];
        tess_bytes_add(&out, c->s, c->n);
    }
    return tess_tpl_made(r, &out);
}

/* The arguments of a call, in memory of the run. */
static tess_tpl_args arguments(tess_tpl_run *r, const tess_tpl_node *n)
{
    tess_tpl_value *v = n->count ? tess_tpl_get(r, n->count * sizeof *v) : NULL;
    for (size_t i = 0; v && i < n->count; i++) v[i] = eval(r, n->list[i]);
    return (tess_tpl_args){v, n->names, v ? n->count : 0};
}

static tess_tpl_value collection(tess_tpl_run *r, const tess_tpl_node *n)
{
    const tess_tpl_value v = tess_tpl_list_new(r, n->op == TPL_DICT    ? TPL_MAPPING
                                                  : n->op == TPL_TUPLE ? TPL_FIXED
                                                                       : TPL_SEQUENCE);
    for (size_t i = 0; i < n->count && r->status == TESS_OK; i++) {
        const tess_tpl_value item = eval(r, n->list[i]);
        if (n->op == TPL_DICT)
            tess_tpl_put(r, v.list, item, eval(r, n->list[i + 1])), i++;
        else
            tess_tpl_push(r, v.list, item);
    }
    return v;
}

static tess_tpl_value name(tess_tpl_run *r, const char *text)
{
    tess_tpl_value v;
    if (look_up(r, text, &v) || tess_tpl_global(r, text, &v)) return v;
    return undefined(text);
}

static tess_tpl_value eval_node(tess_tpl_run *r, const tess_tpl_node *n)
{
    tess_tpl_value a, b;
    tess_tpl_args args;
    switch (n->op) {
    case TPL_VALUE:
        return n->value;
    case TPL_NAME:
        return name(r, n->text);
    case TPL_LIST:
    case TPL_TUPLE:
    case TPL_DICT:
        return collection(r, n);
    case TPL_MEMBER:
        return tess_tpl_member(r, eval(r, n->a), n->text, strlen(n->text));
    case TPL_ITEM:
        a = eval(r, n->a);
        return tess_tpl_item(r, a, eval(r, n->b));
    case TPL_SLICE:
        return slice(r, n);
    case TPL_CALL:
        a = eval(r, n->a);
        args = arguments(r, n);
        r->line = n->line;
        return r->status == TESS_OK ? tess_tpl_call(r, a, &args) : a;
    case TPL_FILTER:
        a = eval(r, n->a);
        args = arguments(r, n);
        r->line = n->line;
        return r->status == TESS_OK ? tess_tpl_filter(r, n->text, a, &args) : a;
    case TPL_TEST:
        a = eval(r, n->a);
        args = arguments(r, n);
        return tess_tpl_bool(r->status == TESS_OK && tess_tpl_test(r, n->text, a, &args) != (n->i != 0));
    case TPL_NOT:
        return tess_tpl_bool(!tess_tpl_true(eval(r, n->a)));
    case TPL_NEGATE:
        return calculate(r, TPL_SUBTRACT, tess_tpl_int(0), eval(r, n->a));
    case TPL_AND:
        a = eval(r, n->a);
        return tess_tpl_true(a) ? eval(r, n->b) : a;
    case TPL_OR:
        a = eval(r, n->a);
        return tess_tpl_true(a) ? a : eval(r, n->b);
    case TPL_CHOOSE:
        if (tess_tpl_true(eval(r, n->a))) return eval(r, n->b);
        return n->c ? eval(r, n->c) : undefined("the inline if without else");
    case TPL_COMPARE:
        return compare(r, n);
    case TPL_JOIN:
        a = tess_tpl_text(r, eval(r, n->a));
        b = tess_tpl_text(r, eval(r, n->b));
        return r->status == TESS_OK ? concatenate(r, a, b) : a;
    default:
        a = eval(r, n->a);
        return calculate(r, n->op, a, eval(r, n->b));
    }
}

static tess_tpl_value eval(tess_tpl_run *r, const tess_tpl_node *n)
{
    if (!tess_tpl_go_on(r, n->line)) return (tess_tpl_value){0};
    if (r->nested == TPL_NESTED) return tess_tpl_fail(r, "an expression is nested too deeply");
    r->nested++;
    const tess_tpl_value v = eval_node(r, n);
    r->nested--;
    return v;
}

/* ---- statements ---- */

static void run(tess_tpl_run *r, const tess_tpl_node *n);

static void run_for(tess_tpl_run *r, const tess_tpl_node *n)
{
    const tess_tpl_list *all = tess_tpl_items(r, eval(r, n->a));
    tess_tpl_list *items = tess_tpl_list_new(r, TPL_SEQUENCE).list;
    tess_tpl_loop *loop = tess_tpl_get(r, sizeof *loop);
    for (size_t i = 0; i < all->count && r->status == TESS_OK; i++) {
        if (n->b) {
            tess_tpl_scope scope = {.outer = r->scope};
            r->scope = &scope;
            assign_all(r, n, all->item[i]);
            const bool takes = r->status == TESS_OK && tess_tpl_true(eval(r, n->b));
            r->scope = scope.outer;
            if (!takes) continue;
        }
        tess_tpl_push(r, items, all->item[i]);
    }
    if (r->status != TESS_OK) return;
    loop->items = items;
    for (size_t i = 0; i < items->count && r->status == TESS_OK && r->flow != TPL_BREAKS; i++) {
        tess_tpl_scope scope = {.outer = r->scope};
        if (!tess_tpl_go_on(r, n->line)) return;
        loop->at = i;
        r->scope = &scope;
        assign(r, "loop", (tess_tpl_value){.kind = TPL_LOOP, .loop = loop});
        assign_all(r, n, items->item[i]);
        run(r, n->body);
        r->scope = scope.outer;
        if (r->flow == TPL_CONTINUES) r->flow = TPL_ON;
    }
    r->flow = TPL_ON;
    if (!items->count) run(r, n->orelse);
}

/* Runs a body apart: what it writes is a string. */
static tess_tpl_value capture(tess_tpl_run *r, const tess_tpl_node *n)
{
    tess_bytes own = {0}, *out = r->out;
    r->out = &own;
    run(r, n);
    r->out = out;
    return tess_tpl_made(r, &own);
}

static void run_set(tess_tpl_run *r, const tess_tpl_node *n)
{
    const tess_tpl_value v = n->op == TPL_SET_BLOCK ? capture(r, n->body) : eval(r, n->b);
    if (r->status != TESS_OK) return;
    if (!n->a) {
        assign_all(r, n, v);
        return;
    }
    const tess_tpl_value of = name(r, n->a->text);
    if (of.kind != TPL_NAMESPACE)
        tess_tpl_fail(r, "%s.%s is set, and %s is no namespace", n->a->text, n->text, n->a->text);
    else
        tess_tpl_put(r, of.list, tess_tpl_string(n->text, strlen(n->text)), v);
}

static void run_generation(tess_tpl_run *r, const tess_tpl_node *n)
{
    const size_t begin = r->out->length;
    tess_tpl_scope scope = {.outer = r->scope};
    r->scope = &scope;
    run(r, n->body);
    r->scope = scope.outer;
    if (r->spans && r->out != r->root && r->status == TESS_OK)
        tess_tpl_fail(r, "{%% generation %%} within a macro or a set is not supported");
    if (r->spans && r->out->length > begin) tess_text_spans_add(r->spans, begin, r->out->length);
}

static void run_macro(tess_tpl_run *r, const tess_tpl_node *n)
{
    tess_tpl_function *f = tess_tpl_get(r, sizeof *f);
    if (!f) return;
    *f = (tess_tpl_function){.macro = n};
    assign(r, n->text, (tess_tpl_value){.kind = TPL_FUNCTION, .function = f});
}

static void run_one(tess_tpl_run *r, const tess_tpl_node *n)
{
    switch (n->op) {
    case TPL_TEXT:
        tess_bytes_add(r->out, n->text, n->length);
        return;
    case TPL_PRINT:
        tess_tpl_write(r, eval(r, n->a), r->out);
        return;
    case TPL_IF:
        run(r, tess_tpl_true(eval(r, n->a)) ? n->body : n->orelse);
        return;
    case TPL_FOR:
        run_for(r, n);
        return;
    case TPL_MACRO:
        run_macro(r, n);
        return;
    case TPL_GENERATION:
        run_generation(r, n);
        return;
    case TPL_BREAK:
    case TPL_CONTINUE:
        r->flow = n->op == TPL_BREAK ? TPL_BREAKS : TPL_CONTINUES;
        return;
    default:
        run_set(r, n);
    }
}

static void run(tess_tpl_run *r, const tess_tpl_node *n)
{
    for (; n && r->flow == TPL_ON && tess_tpl_go_on(r, n->line); n = n->next) run_one(r, n);
}

static tess_tpl_value call_macro(tess_tpl_run *r, const tess_tpl_node *n, const tess_tpl_args *a)
{
    if (r->depth >= DEEPEST) return tess_tpl_fail(r, "macro %s calls itself without end", n->text);
    /* It sees what stands in the template's own scope, and its arguments. */
    tess_tpl_scope scope = {.outer = r->global}, *outer = r->scope;
    const int line = r->line;
    size_t by_place = 0;
    r->scope = &scope;
    r->depth++;
    for (size_t i = 0; i < a->count; i++) by_place += !a->name || !a->name[i];
    if (by_place > n->count) tess_tpl_fail(r, "macro %s takes %zu arguments", n->text, n->count);
    for (size_t i = 0; i < a->count; i++) {
        size_t k = 0;
        while (a->name && a->name[i] && k < n->count && strcmp(a->name[i], n->names[k])) k++;
        if (k == n->count && a->name && a->name[i])
            tess_tpl_fail(r, "macro %s has no argument %s", n->text, a->name[i]);
    }
    for (size_t i = 0; i < n->count && r->status == TESS_OK; i++) {
        tess_tpl_value v = undefined(n->names[i]);
        if (!tess_tpl_arg(a, i, n->names[i], &v) && n->list[i]) v = eval(r, n->list[i]);
        assign(r, n->names[i], v);
    }
    const tess_tpl_value v = r->status == TESS_OK ? capture(r, n->body) : (tess_tpl_value){0};
    r->depth--;
    r->scope = outer;
    r->line = line;
    return v;
}

tess_status tess_tpl_render(const tess_tpl_node *root, const char *where, const json_t *variables, tess_bytes *out,
                            tess_text_spans *spans)
{
    tess_tpl_run r = {.arena = tess_arena_new(),
                      .where = where,
                      .line = 1,
                      .out = out,
                      .root = out,
                      .spans = spans,
                      .macro = call_macro};
    tess_tpl_scope scope = {0};
    r.scope = r.global = &scope;
    const tess_tpl_value given = tess_tpl_of_json(&r, variables);
    if (given.kind == TPL_MAPPING) scope.variables = *given.list;
    run(&r, root);
    tess_arena_free(r.arena);
    return r.status;
}
