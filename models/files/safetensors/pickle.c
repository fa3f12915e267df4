/* The pickle by which torch.save says what its tensors are: a program for a small machine. This file has the opcodes
 * that tensors need. In Python a pickle may call whatever it names; here it builds values of the kinds below, and the
 * few globals that it may name stand for code in this file. Nothing else is taken, and nothing of the pickle runs.
 */
#include "models/files/safetensors/safetensors_impl.h"
#include "models/text/base/text.h"
#include <string.h>

enum global { ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, STORAGE };
static const struct {
    const char *module, *name;
    enum global is;
    tess_safetensors_dtype dtype; /* of a storage */
} globals[] = {
    {"collections", "OrderedDict", ORDERED_DICT, 0},
    {"torch._utils", "_rebuild_tensor_v2", REBUILD_TENSOR, 0},
    {"torch._utils", "_rebuild_parameter", REBUILD_PARAMETER, 0},
    {"torch", "FloatStorage", STORAGE, TESS_ST_F32},
    {"torch", "HalfStorage", STORAGE, TESS_ST_F16},
    {"torch", "BFloat16Storage", STORAGE, TESS_ST_BF16},
    {"torch", "DoubleStorage", STORAGE, TESS_ST_F64},
    {"torch", "LongStorage", STORAGE, TESS_ST_I64},
    {"torch", "IntStorage", STORAGE, TESS_ST_I32},
    {"torch", "ShortStorage", STORAGE, TESS_ST_I16},
    {"torch", "CharStorage", STORAGE, TESS_ST_I8},
    {"torch", "ByteStorage", STORAGE, TESS_ST_U8},
    {"torch", "BoolStorage", STORAGE, TESS_ST_BOOL},
};
enum { GLOBALS = sizeof globals / sizeof *globals };

struct machine {
    tess_arena *arena;
    const char *file;
    const uint8_t *byte;
    size_t bytes, at, op; /* op: where the opcode that acts stands */
    const tess_pickled **stack;
    size_t depth, room;
    size_t *mark; /* depths of the stack */
    size_t marks, mark_room;
    const tess_pickled **memo; /* NULL: nothing has that number */
    size_t memos;
};

const char *tess_pickle_kind_name(tess_pickle_kind kind)
{
    static const char *const name[TESS_PICKLE_KINDS] = {
        [TESS_PICKLE_NONE] = "None",         [TESS_PICKLE_BOOL] = "a bool",    [TESS_PICKLE_INT] = "an int",
        [TESS_PICKLE_FLOAT] = "a float",     [TESS_PICKLE_TEXT] = "a text",    [TESS_PICKLE_TUPLE] = "a tuple",
        [TESS_PICKLE_LIST] = "a list",       [TESS_PICKLE_DICT] = "a dict",    [TESS_PICKLE_GLOBAL] = "a global",
        [TESS_PICKLE_STORAGE] = "a storage", [TESS_PICKLE_TENSOR] = "a tensor"};
    return name[kind];
}

/* ---- the stack, and values ---- */

static tess_status TESS_PRINTF(2, 3) wrong(const struct machine *m, const char *format, ...)
{
    char what[256], field[64];
    va_list ap;
    va_start(ap, format);
    vsnprintf(what, sizeof what, format, ap);
    va_end(ap);
    snprintf(field, sizeof field, "data.pkl: byte %zu", m->op);
    return tess_file_error(m->file, field, "%s", what);
}

/* An array of the arena with room for one more: what it held is left in the arena. */
static void *grown(tess_arena *arena, void *old, size_t count, size_t *room, size_t size)
{
    if (count < *room) return old;
    *room = 2 * count + 16;
    void *new = tess_arena_get(arena, *room * size);
    if (count) memcpy(new, old, count * size);
    return new;
}

static tess_pickled *push(struct machine *m, tess_pickle_kind kind)
{
    tess_pickled *v = tess_arena_get(m->arena, sizeof *v);
    v->kind = kind;
    m->stack = grown(m->arena, m->stack, m->depth, &m->room, sizeof *m->stack);
    m->stack[m->depth++] = v;
    return v;
}

/* How many values lie above the last mark, or in all. */
static size_t above(const struct machine *m)
{
    return m->depth - (m->marks ? m->mark[m->marks - 1] : 0);
}

static tess_status need(const struct machine *m, size_t values)
{
    return above(m) >= values ? TESS_OK : wrong(m, "the stack has too few values");
}

/* Takes off what lies above the last mark: items[0..count), which stay where they are until the next push. */
static tess_status take_marked(struct machine *m, const tess_pickled ***items, size_t *count)
{
    if (!m->marks) return wrong(m, "the stack has no mark");
    *count = above(m);
    m->depth = m->mark[--m->marks];
    *items = m->stack + m->depth;
    return TESS_OK;
}

static const tess_pickled *top(const struct machine *m, size_t below)
{
    return m->stack[m->depth - 1 - below];
}

/* Makes a tuple of the last `count` values. */
static tess_status make_tuple(struct machine *m, size_t count)
{
    TESS_TRY(need(m, count));
    const tess_pickled **item = tess_arena_get(m->arena, (count + 1) * sizeof *item);
    m->depth -= count;
    if (count) memcpy(item, m->stack + m->depth, count * sizeof *item);
    tess_pickled *v = push(m, TESS_PICKLE_TUPLE);
    v->item = item;
    v->count = count;
    return TESS_OK;
}

/* ---- what follows an opcode ---- */

static tess_status read_bytes(struct machine *m, size_t n, const uint8_t **bytes)
{
    *bytes = m->byte + m->at;
    if (n > m->bytes - m->at) return wrong(m, "ends within the opcode's operand (is the file truncated?)");
    m->at += n;
    return TESS_OK;
}

/* Reads a little-endian number of `bytes` bytes. */
static tess_status read_number(struct machine *m, int bytes, uint64_t *number)
{
    const uint8_t *at = NULL;
    *number = 0;
    TESS_TRY(read_bytes(m, (size_t)bytes, &at));
    memcpy(number, at, (size_t)bytes);
    return TESS_OK;
}

static tess_status push_int(struct machine *m, int bytes, bool is_signed)
{
    uint64_t number = 0;
    TESS_TRY(read_number(m, bytes, &number));
    const int spare = is_signed && bytes ? 64 - 8 * bytes : 0;
    push(m, TESS_PICKLE_INT)->number = (int64_t)(number << spare) >> spare;
    return TESS_OK;
}

static tess_status push_text(struct machine *m)
{
    uint64_t n = 0;
    const uint8_t *at = NULL;
    TESS_TRY(read_number(m, 4, &n));
    TESS_TRY(read_bytes(m, n, &at));
    if (memchr(at, 0, n) || tess_utf8_valid((const char *)at, n) != n)
        return wrong(m, "a text of %llu bytes is no UTF-8, or has a 0 in it", (unsigned long long)n);
    push(m, TESS_PICKLE_TEXT)->text = tess_arena_format(m->arena, "%.*s", (int)n, (const char *)at);
    return TESS_OK;
}

static tess_status read_line(struct machine *m, const char **line, int *length)
{
    const uint8_t *begin = m->byte + m->at, *end = memchr(begin, '\n', m->bytes - m->at);
    if (!end || end - begin > 100) return wrong(m, "expected the name of a global, of at most 100 bytes");
    *line = (const char *)begin;
    *length = (int)(end - begin);
    m->at += (size_t)*length + 1;
    return TESS_OK;
}

static bool same(const char *name, const char *s, int n)
{
    return strlen(name) == (size_t)n && !memcmp(name, s, (size_t)n);
}

static tess_status push_global(struct machine *m)
{
    const char *module = NULL, *name = NULL;
    int modules = 0, names = 0;
    TESS_TRY(read_line(m, &module, &modules));
    TESS_TRY(read_line(m, &name, &names));
    for (int i = 0; i < GLOBALS; i++)
        if (same(globals[i].module, module, modules) && same(globals[i].name, name, names)) {
            push(m, TESS_PICKLE_GLOBAL)->global = i;
            return TESS_OK;
        }
    return wrong(m, "the global %.*s.%.*s is not supported: tensors do without it (nothing of a pickle is run here)",
                 modules, module, names, name);
}

/* ---- what opcodes do ---- */

static tess_status put_memo(struct machine *m, int bytes)
{
    uint64_t number = 0;
    TESS_TRY(read_number(m, bytes, &number));
    TESS_TRY(need(m, 1));
    if (number > m->bytes) return wrong(m, "memo %llu is not in this pickle", (unsigned long long)number);
    if (number >= m->memos) {
        const size_t memos = 2 * number + 64;
        const tess_pickled **memo = tess_arena_get(m->arena, memos * sizeof *memo);
        if (m->memos) memcpy(memo, m->memo, m->memos * sizeof *memo);
        m->memo = memo;
        m->memos = memos;
    }
    m->memo[number] = top(m, 0);
    return TESS_OK;
}

static tess_status get_memo(struct machine *m, int bytes)
{
    uint64_t number = 0;
    TESS_TRY(read_number(m, bytes, &number));
    if (number >= m->memos || !m->memo[number])
        return wrong(m, "memo %llu has nothing in it", (unsigned long long)number);
    m->stack = grown(m->arena, m->stack, m->depth, &m->room, sizeof *m->stack);
    m->stack[m->depth++] = m->memo[number];
    return TESS_OK;
}

/* Puts keys and values, in turn, into the dict that the stack ends with. */
static tess_status set_items(struct machine *m, const tess_pickled **items, size_t count)
{
    if (!m->depth || above(m) < 1 || top(m, 0)->kind != TESS_PICKLE_DICT || count % 2)
        return wrong(m, "items are set, and not in a dict");
    tess_pickled *dict = (tess_pickled *)top(m, 0);
    for (size_t i = 0; i < count; i++) {
        dict->item = grown(m->arena, dict->item, dict->count, &dict->room, sizeof *dict->item);
        dict->item[dict->count++] = items[i];
    }
    return TESS_OK;
}

/* What is appended to a list is dropped: no tensor needs it. */
static tess_status append_items(struct machine *m)
{
    return m->depth && above(m) >= 1 && top(m, 0)->kind == TESS_PICKLE_LIST
               ? TESS_OK
               : wrong(m, "values are appended to no list");
}

/* ("storage", torch.FloatStorage, "0", "cpu", 1024): where the last is the number of its elements. */
static tess_status push_storage(struct machine *m)
{
    TESS_TRY(need(m, 1));
    const tess_pickled *id = top(m, 0), *const *item = id->item;
    const bool is = id->kind == TESS_PICKLE_TUPLE && id->count == 5 && item[0]->kind == TESS_PICKLE_TEXT &&
                    !strcmp(item[0]->text, "storage") && item[1]->kind == TESS_PICKLE_GLOBAL &&
                    globals[item[1]->global].is == STORAGE && item[2]->kind == TESS_PICKLE_TEXT &&
                    item[4]->kind == TESS_PICKLE_INT && item[4]->number >= 0;
    if (!is) return wrong(m, "a persistent id that is no storage of tensors");
    m->depth--;
    tess_pickled *v = push(m, TESS_PICKLE_STORAGE);
    v->text = item[2]->text;
    v->number = item[4]->number;
    v->dtype = globals[item[1]->global].dtype;
    return TESS_OK;
}

static bool is_counts(const tess_pickled *v)
{
    bool is = v->kind == TESS_PICKLE_TUPLE;
    for (size_t i = 0; is && i < v->count; i++) is = v->item[i]->kind == TESS_PICKLE_INT && v->item[i]->number >= 0;
    return is;
}

/* (storage, offset, sizes, strides, requires_grad, hooks[, metadata]) */
static tess_status push_tensor(struct machine *m, const tess_pickled *args)
{
    const tess_pickled *const *item = args->item;
    const bool is = args->count >= 6 && args->count <= 7 && item[0]->kind == TESS_PICKLE_STORAGE &&
                    item[1]->kind == TESS_PICKLE_INT && item[1]->number >= 0 && is_counts(item[2]) &&
                    is_counts(item[3]) && item[2]->count == item[3]->count &&
                    (args->count == 6 || item[6]->kind == TESS_PICKLE_NONE);
    if (!is) return wrong(m, "a tensor is not made of a storage, an offset, sizes and strides alone");
    tess_pickled *v = push(m, TESS_PICKLE_TENSOR);
    v->number = item[1]->number;
    v->item = tess_arena_get(m->arena, 3 * sizeof *v->item);
    v->item[0] = item[0];
    v->item[1] = item[2];
    v->item[2] = item[3];
    return TESS_OK;
}

/* A global is called with a tuple. */
static tess_status reduce(struct machine *m)
{
    TESS_TRY(need(m, 2));
    const tess_pickled *of = top(m, 1), *args = top(m, 0);
    if (of->kind != TESS_PICKLE_GLOBAL || args->kind != TESS_PICKLE_TUPLE)
        return wrong(m, "%s is called with %s", tess_pickle_kind_name(of->kind), tess_pickle_kind_name(args->kind));
    const enum global is = globals[of->global].is;
    m->depth -= 2;
    if (is == REBUILD_TENSOR) return push_tensor(m, args);
    if (is == ORDERED_DICT && !args->count) return push(m, TESS_PICKLE_DICT), TESS_OK;
    if (is == REBUILD_PARAMETER && args->count == 3 && args->item[0]->kind == TESS_PICKLE_TENSOR) {
        m->stack[m->depth++] = args->item[0];
        return TESS_OK;
    }
    return wrong(m, "%s.%s is called with other arguments than torch.save's", globals[of->global].module,
                 globals[of->global].name);
}

/* An OrderedDict's attributes: torch leaves versions of modules in them. */
static tess_status build(struct machine *m)
{
    TESS_TRY(need(m, 2));
    if (top(m, 1)->kind != TESS_PICKLE_DICT || top(m, 0)->kind != TESS_PICKLE_DICT)
        return wrong(m, "%s gets a state, which a dict alone may", tess_pickle_kind_name(top(m, 1)->kind));
    m->depth--;
    return TESS_OK;
}

static tess_status push_mark(struct machine *m)
{
    m->mark = grown(m->arena, m->mark, m->marks, &m->mark_room, sizeof *m->mark);
    m->mark[m->marks++] = m->depth;
    return TESS_OK;
}

static tess_status push_long(struct machine *m)
{
    uint64_t bytes = 0;
    TESS_TRY(read_number(m, 1, &bytes));
    return bytes <= 8 ? push_int(m, (int)bytes, true) : wrong(m, "an int of %d bytes", (int)bytes);
}

static tess_status skip(struct machine *m, size_t bytes)
{
    const uint8_t *passed = NULL;
    return read_bytes(m, bytes, &passed);
}

/* One item, or all above the mark, of a dict or a list. */
static tess_status add_items(struct machine *m, bool dict, bool marked)
{
    const tess_pickled **items = NULL;
    size_t count = dict ? 2 : 1;
    if (marked)
        TESS_TRY(take_marked(m, &items, &count));
    else {
        TESS_TRY(need(m, count));
        m->depth -= count;
        items = m->stack + m->depth;
    }
    return dict ? set_items(m, items, count) : append_items(m);
}

static tess_status make_marked_tuple(struct machine *m)
{
    const tess_pickled **items = NULL;
    size_t count = 0;
    TESS_TRY(take_marked(m, &items, &count));
    m->depth += count;
    return make_tuple(m, count);
}

static tess_status refuse(const struct machine *m, int op)
{
    static const struct {
        int op;
        const char *name;
    } known[] = {{'i', "INST"},
                 {'o', "OBJ"},
                 {0x81, "NEWOBJ"},
                 {0x92, "NEWOBJ_EX"},
                 {0x82, "EXT1"},
                 {0x83, "EXT2"},
                 {0x84, "EXT4"},
                 {0x93, "STACK_GLOBAL"},
                 {0x95, "FRAME"},
                 {0x94, "MEMOIZE"},
                 {'P', "PERSID"},
                 {'0', "POP"},
                 {'1', "POP_MARK"},
                 {'2', "DUP"},
                 {'S', "STRING"},
                 {'U', "SHORT_BINSTRING"},
                 {'T', "BINSTRING"},
                 {'I', "INT"},
                 {'L', "LONG"},
                 {'V', "UNICODE"},
                 {0x8c, "SHORT_BINUNICODE"},
                 {0x8b, "LONG4"},
                 {'B', "BINBYTES"},
                 {'C', "SHORT_BINBYTES"}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (known[i].op == op)
            return wrong(m, "the opcode %s is not supported: tensors do without it (nothing of a pickle is run here)",
                         known[i].name);
    return wrong(m, "the opcode 0x%02x is not supported: tensors do without it (nothing of a pickle is run here)", op);
}

static tess_status act(struct machine *m, int op)
{
    switch (op) {
    case '(':
        return push_mark(m);
    case ')':
        return make_tuple(m, 0);
    case 0x85:
    case 0x86:
    case 0x87:
        return make_tuple(m, (size_t)(op - 0x84));
    case 't':
        return make_marked_tuple(m);
    case '}':
        return push(m, TESS_PICKLE_DICT), TESS_OK;
    case ']':
        return push(m, TESS_PICKLE_LIST), TESS_OK;
    case 'N':
        return push(m, TESS_PICKLE_NONE), TESS_OK;
    case 0x88:
    case 0x89:
        return push(m, TESS_PICKLE_BOOL)->number = op == 0x88, TESS_OK;
    case 'K':
        return push_int(m, 1, false);
    case 'M':
        return push_int(m, 2, false);
    case 'J':
        return push_int(m, 4, true);
    case 0x8a:
        return push_long(m);
    case 'G':
        return push(m, TESS_PICKLE_FLOAT), skip(m, 8);
    case 'X':
        return push_text(m);
    case 'c':
        return push_global(m);
    case 'q':
        return put_memo(m, 1);
    case 'r':
        return put_memo(m, 4);
    case 'h':
        return get_memo(m, 1);
    case 'j':
        return get_memo(m, 4);
    case 'Q':
        return push_storage(m);
    case 'R':
        return reduce(m);
    case 's':
    case 'u':
        return add_items(m, true, op == 'u');
    case 'a':
    case 'e':
        return add_items(m, false, op == 'e');
    case 'b':
        return build(m);
    default:
        return refuse(m, op);
    }
}

tess_status tess_pickle_read(tess_arena *arena, const char *file, const uint8_t *bytes, size_t n,
                             const tess_pickled **root)
{
    struct machine m = {.arena = arena, .file = file, .byte = bytes, .bytes = n};
    if (n < 2 || bytes[0] != 0x80) return wrong(&m, "expected a pickle");
    if (bytes[1] != 2) return wrong(&m, "a pickle of protocol %d, expected 2 (torch.save's)", bytes[1]);
    for (m.at = 2;;) {
        m.op = m.at;
        if (m.at == n) return wrong(&m, "ends without an end (is the file truncated?)");
        const int op = bytes[m.at++];
        if (op == '.') break;
        TESS_TRY(act(&m, op));
    }
    if (m.depth != 1 || m.marks) return wrong(&m, "leaves %zu values, expected one", m.depth);
    *root = m.stack[0];
    return TESS_OK;
}
