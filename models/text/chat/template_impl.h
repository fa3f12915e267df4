/* The part of Jinja that chat templates are written in, set as transformers sets it: trim_blocks, lstrip_blocks, loop
 * controls, {% generation %}, raise_exception, strftime_now, namespace and tojson as json.dumps has it.
 *
 *     parser.c      tokens into a tree; what is not known here is an error that names it, before anything is rendered
 *     lexer.c       text into those tokens, whitespace control
 *     render.c      the tree against variables
 *     filters.c     filters and tests
 *     calls.c       members and items, functions and methods
 *     strings.c     what methods and filters do with strings
 *     values.c      values: how they compare, and how they are written
 *     bounds.c      a template that never ends is stopped
 *
 * Each calls only those below it; a macro that calls.c meets goes back to render.c by a pointer in the run. chat.c,
 * which has conversations rendered, is above all of them.
 */
#ifndef TESS_TEMPLATE_IMPL_H
#define TESS_TEMPLATE_IMPL_H
#include "models/text/base/text.h"
#include "models/text/chat/chat.h"
#include <jansson.h>

/* ---- the tree ---------------------------------------------------------------------------------------------------- */

typedef enum tess_tpl_op {
    /* Expressions: what a, b and c are. */
    TPL_VALUE,  /* value */
    TPL_NAME,   /* text */
    TPL_LIST,   /* list */
    TPL_TUPLE,  /* list */
    TPL_DICT,   /* list: key, value, key, ... */
    TPL_MEMBER, /* a.text */
    TPL_ITEM,   /* a[b] */
    TPL_SLICE,  /* a[list 0 : 1 : 2], each may be NULL */
    TPL_CALL,   /* a(list, names) */
    TPL_FILTER, /* a | text(list, names) */
    TPL_TEST,   /* a is text(list); i: not */
    TPL_NOT,
    TPL_NEGATE,
    TPL_AND,
    TPL_OR,
    TPL_CHOOSE,  /* b if a else c */
    TPL_COMPARE, /* a, then list with the operators i of `ops` */
    TPL_ADD,
    TPL_SUBTRACT,
    TPL_MULTIPLY,
    TPL_DIVIDE,
    TPL_FLOOR,
    TPL_REMAINDER,
    TPL_POWER,
    TPL_JOIN, /* ~ */
    /* Statements, each with the next behind it in `next`. */
    TPL_TEXT,       /* text */
    TPL_PRINT,      /* a */
    TPL_IF,         /* a: body, orelse */
    TPL_FOR,        /* names in a (if b): body, orelse */
    TPL_SET,        /* names, or a.text, = b */
    TPL_SET_BLOCK,  /* names = body */
    TPL_MACRO,      /* text(names, list of defaults): body */
    TPL_GENERATION, /* body */
    TPL_BREAK,
    TPL_CONTINUE,
} tess_tpl_op;

typedef enum tess_tpl_compare { TPL_EQ, TPL_NE, TPL_LT, TPL_LE, TPL_GT, TPL_GE, TPL_IN, TPL_NOT_IN } tess_tpl_compare;

/* ---- values ------------------------------------------------------------------------------------------------------ */

typedef enum tess_tpl_kind {
    TPL_UNDEFINED,
    TPL_NONE,
    TPL_BOOL,
    TPL_INT,
    TPL_FLOAT,
    TPL_STRING,
    TPL_SEQUENCE, /* a list, */
    TPL_FIXED,    /* or a tuple */
    TPL_MAPPING,
    TPL_NAMESPACE,
    TPL_LOOP,
    TPL_FUNCTION, /* built in, a method with what it is of, or a macro */
} tess_tpl_kind;

typedef struct tess_tpl_value {
    tess_tpl_kind kind;
    union {
        bool b;
        int64_t i;
        double f;
        struct {
            const char *s; /* UTF-8; of an undefined one: what it would have been */
            size_t n;
        };
        struct tess_tpl_list *list; /* also of a mapping: key, value, key, ... */
        struct tess_tpl_loop *loop;
        struct tess_tpl_function *function;
    };
} tess_tpl_value;

typedef struct tess_tpl_list {
    tess_tpl_value *item;
    size_t count, room;
} tess_tpl_list;

typedef struct tess_tpl_node {
    tess_tpl_op op;
    int line;
    const char *text;
    size_t length;
    int64_t i;
    tess_tpl_value value;
    struct tess_tpl_node *a, *b, *c, *body, *orelse, *next;
    struct tess_tpl_node **list;
    const char **names; /* of a call: NULL where an argument has none */
    size_t count, name_count;
    const uint8_t *ops;
} tess_tpl_node;

typedef struct tess_tpl_loop {
    const tess_tpl_list *items;
    size_t at;
    int depth;
} tess_tpl_loop;

typedef struct tess_tpl_run tess_tpl_run;
/* Arguments of a call: those by place, and those by name. */
typedef struct tess_tpl_args {
    const tess_tpl_value *value;
    const char *const *name;
    size_t count;
} tess_tpl_args;
/* What a filter, a method or a function does to `self`; `how` tells those apart that one body does. */
typedef tess_tpl_value tess_tpl_body(tess_tpl_run *r, tess_tpl_value self, const tess_tpl_args *a, int how);
#define TPL_BODY(name)                                                                                                 \
    static tess_tpl_value name(tess_tpl_run *r __attribute__((unused)), tess_tpl_value self __attribute__((unused)),   \
                               const tess_tpl_args *a __attribute__((unused)), int how __attribute__((unused)))
typedef struct tess_tpl_built_in {
    const char *name; /* NULL ends a list of them */
    tess_tpl_body *call;
    int how;
} tess_tpl_built_in;
/* Returns the one of that name in a list; NULL: there is none. */
const tess_tpl_built_in *tess_tpl_built_in_of(const tess_tpl_built_in *list, const char *name);
typedef struct tess_tpl_function {
    const tess_tpl_built_in *built_in; /* of self; NULL: it is a macro */
    tess_tpl_value self;
    const tess_tpl_node *macro;
} tess_tpl_function;

/* ---- parser.c ---------------------------------------------------------------------------------------------------- */

/* Parses a template into the arena; `where` names it in errors. */
tess_status tess_tpl_parse(tess_arena *arena, const char *where, const char *text, size_t length,
                           tess_tpl_node **root) TESS_NODISCARD;

/* ---- lexer.c ----------------------------------------------------------------------------------------------------- */

typedef enum tess_tpl_token_kind {
    TPL_T_END,
    TPL_T_TEXT,
    TPL_T_OPEN_PRINT,
    TPL_T_CLOSE_PRINT,
    TPL_T_OPEN_BLOCK,
    TPL_T_CLOSE_BLOCK,
    TPL_T_NAME,
    TPL_T_STRING,
    TPL_T_INT,
    TPL_T_FLOAT,
    TPL_T_SIGN
} tess_tpl_token_kind;
typedef struct tess_tpl_token {
    tess_tpl_token_kind kind;
    int line;
    const char *s; /* a string's: what it means */
    size_t n;
} tess_tpl_token;
tess_status tess_tpl_lex(tess_arena *arena, const char *where, const char *text, size_t length,
                         tess_tpl_token **tokens) TESS_NODISCARD;

/* Records an error at a line of a template, unless one stands in *status already. */
void tess_tpl_error(const char *where, int line, const char *what, tess_status *status);

/* ---- bounds.c ---------------------------------------------------------------------------------------------------- */

typedef struct tess_tpl_scope {
    tess_tpl_list variables; /* name, value, name, ... */
    struct tess_tpl_scope *outer;
} tess_tpl_scope;

struct tess_tpl_run {
    tess_arena *arena;
    const char *where;
    tess_status status;      /* the first error sticks */
    int line, depth, nested; /* macros, expressions within each other */
    uint64_t steps, bytes;
    tess_tpl_scope *scope, *global;
    tess_bytes *out, *root; /* where text goes; where the template's goes */
    enum { TPL_ON, TPL_BREAKS, TPL_CONTINUES } flow;
    tess_text_spans *spans; /* what {% generation %} marks */
    /* Runs a macro: render.c's, for calls.c below it. */
    tess_tpl_value (*macro)(tess_tpl_run *r, const tess_tpl_node *macro, const tess_tpl_args *a);
};
enum { TPL_BYTES = 256 << 20, TPL_NESTED = 1000 }; /* the most that a run may take, or write */
/* and the expressions within each other: each takes of the stack */
/* Fails, at the line that runs; the value is an undefined one. */
tess_tpl_value tess_tpl_fail(tess_tpl_run *r, const char *format, ...) TESS_PRINTF(2, 3);
/* Returns memory of the run; NULL, and the run has failed, where it takes too much. */
void *tess_tpl_get(tess_tpl_run *r, size_t bytes);
/* Counts a step, at this line, and returns whether the run goes on; it fails where it takes too many. */
bool tess_tpl_go_on(tess_tpl_run *r, int line);
/* Counts a step of a text that is being made, which may not become too long. */
bool tess_tpl_grows(tess_tpl_run *r, const tess_bytes *text);

/* ---- values.c ---------------------------------------------------------------------------------------------------- */

static inline tess_tpl_value tess_tpl_bool(bool b)
{
    return (tess_tpl_value){.kind = TPL_BOOL, .b = b};
}
static inline tess_tpl_value tess_tpl_int(int64_t i)
{
    return (tess_tpl_value){.kind = TPL_INT, .i = i};
}
static inline tess_tpl_value tess_tpl_string(const char *s, size_t n)
{
    return (tess_tpl_value){.kind = TPL_STRING, .s = s, .n = n};
}
/* Copies a string. */
tess_tpl_value tess_tpl_copy(tess_tpl_run *r, const char *s, size_t n);
/* Copies a text that was made, and frees it; of a run that failed nothing is copied. */
tess_tpl_value tess_tpl_made(tess_tpl_run *r, tess_bytes *text);
tess_tpl_value tess_tpl_of_json(tess_tpl_run *r, const json_t *json);
tess_tpl_value tess_tpl_list_new(tess_tpl_run *r, tess_tpl_kind kind);
void tess_tpl_push(tess_tpl_run *r, tess_tpl_list *l, tess_tpl_value v);
bool tess_tpl_true(tess_tpl_value v);
bool tess_tpl_equal(tess_tpl_run *r, tess_tpl_value a, tess_tpl_value b);
/* Returns below, at or above 0; what has no order is a failure. */
int tess_tpl_order(tess_tpl_run *r, tess_tpl_value a, tess_tpl_value b);
bool tess_tpl_contains(tess_tpl_run *r, tess_tpl_value in, tess_tpl_value what);
/* Appends what {{ }} prints. */
void tess_tpl_write(tess_tpl_run *r, tess_tpl_value v, tess_bytes *out);
tess_tpl_value tess_tpl_text(tess_tpl_run *r, tess_tpl_value v);
/* Appends json.dumps: indent below 0 is none. */
void tess_tpl_write_json(tess_tpl_run *r, tess_tpl_value v, int64_t indent, bool ascii, bool sort, int level,
                         tess_bytes *out);
/* Returns the items that a loop goes over. */
tess_tpl_list *tess_tpl_items(tess_tpl_run *r, tess_tpl_value v);
/* Finds the value of a mapping's key, and returns whether it has one. */
bool tess_tpl_find(tess_tpl_value mapping, const char *key, size_t n, tess_tpl_value *value);
void tess_tpl_put(tess_tpl_run *r, tess_tpl_list *mapping, tess_tpl_value key, tess_tpl_value value);
/* Returns how many characters UTF-8 has. */
size_t tess_tpl_characters(const char *s, size_t n);
const char *tess_tpl_kind_name(tess_tpl_value v);

/* ---- strings.c --------------------------------------------------------------------------------------------------- */

/* Returns whether the first character is a blank, as Python has them; *n becomes its length. */
bool tess_tpl_blank(const char *s, size_t *n);
/* Makes str.strip of a string, on either side; `set` NULL: of blanks. */
tess_tpl_value tess_tpl_strip(const char *s, size_t n, const char *set, size_t set_n, bool left, bool right);
tess_tpl_value tess_tpl_replace(tess_tpl_run *r, tess_tpl_value v, tess_tpl_value from, tess_tpl_value to,
                                int64_t most);
tess_tpl_value tess_tpl_lower(tess_tpl_run *r, tess_tpl_value v, int how); /* 0 lower, 1 upper, 2 title, 3 capitalize */

/* ---- calls.c ----------------------------------------------------------------------------------------------------- */

tess_tpl_value tess_tpl_member(tess_tpl_run *r, tess_tpl_value of, const char *name, size_t n);
tess_tpl_value tess_tpl_item(tess_tpl_run *r, tess_tpl_value of, tess_tpl_value key);
/* Finds what a.b.0 is of a value, as map and selectattr take paths; an integer is an item. */
tess_tpl_value tess_tpl_path(tess_tpl_run *r, tess_tpl_value v, tess_tpl_value path);
/* Makes one string of the items, or of what `path` (unless NULL) is of each, with `by` between them. */
tess_tpl_value tess_tpl_join(tess_tpl_run *r, tess_tpl_value v, tess_tpl_value by, const tess_tpl_value *path);
tess_tpl_value tess_tpl_call(tess_tpl_run *r, tess_tpl_value f, const tess_tpl_args *a);
/* Finds an argument by its place, or by its name, and returns whether it is there. */
bool tess_tpl_arg(const tess_tpl_args *a, size_t place, const char *name, tess_tpl_value *v);
/* Finds a function that templates know by name, and returns whether there is one. */
bool tess_tpl_global(tess_tpl_run *r, const char *name, tess_tpl_value *v);

/* ---- filters.c --------------------------------------------------------------------------------------------------- */

bool tess_tpl_has_filter(const char *name);
bool tess_tpl_has_test(const char *name);
tess_tpl_value tess_tpl_filter(tess_tpl_run *r, const char *name, tess_tpl_value v, const tess_tpl_args *a);
bool tess_tpl_test(tess_tpl_run *r, const char *name, tess_tpl_value v, const tess_tpl_args *a);

/* ---- render.c ---------------------------------------------------------------------------------------------------- */

/* Renders; `variables` is a JSON object. Spans may be NULL. */
tess_status tess_tpl_render(const tess_tpl_node *root, const char *where, const json_t *variables, tess_bytes *out,
                            tess_text_spans *spans) TESS_NODISCARD;

#endif
