/* Ops from outside, in one process: their gradients against finite differences, their bits under recomputation, other
 * orders and caps, and what a description may get wrong. What ranks do with them is in docs/test_library.c. */
#define CHECK_MAIN
#include "tests/docs/own_ops.h"
#include "tests/graph/nets.h"
#include "tests/models/notes.h"
#include <unistd.h>

static const tess_op *ema, *gated, *mixed;

static void register_all(void)
{
    OK(ema_register(&ema));
    OK(gated_register(&gated));
    OK(mixed_register(&mixed));
}

/* ema of a sum, gated by what a linear makes, by itself and by nothing; mixed by a matrix of several tiles. */
static tess_tensor *net_own(tess_graph *g, tess_tensor *x, int layer)
{
    tess_tensor *decay = PARAM("decay", C, 1, TESS_UNIFORM(0.6f)), *m = PARAM("m", C, C, TESS_NORMAL(0.3f));
    tess_tensor *y = tess_apply(ema, (tess_tensor *[]){x, decay}, 2, NULL);
    tess_tensor *z = tess_linear(y, PARAM("w", C, C, TESS_NORMAL(0.3f)), NULL);
    const struct gated a = {0.7f, 2}, b = {0.3f, 1};
    y = tess_add(y, tess_apply(gated, (tess_tensor *[]){y, z}, 2, &a));
    y = tess_add(x, tess_apply(gated, (tess_tensor *[]){y, y}, 2, &b));
    y = tess_apply(gated, (tess_tensor *[]){y, NULL}, 2, &b);
    return tess_apply(mixed, (tess_tensor *[]){y, m}, 2, NULL);
}

/* The same parameter twice in one op. */
static void twice_forward(const tess_call *c)
{
    const float *a = c->in[1].data, *b = c->in[2].data;
    for (int64_t i = 0; i < c->out.rows * c->out.columns; i++)
        tess_store(c->out.data, i, c->dtype,
                   tess_load(c->in[0].data, i, c->dtype) * a[i % c->out.columns] * b[(i + 1) % c->out.columns]);
}
static void twice_backward(const tess_call *c)
{
    const float *a = c->in[1].data, *b = c->in[2].data;
    const int64_t n = c->out.columns ? c->out.columns : c->d_out.columns;
    float *da = c->d_in[1].data, *db = c->d_in[2].data;
    if (!c->d_in[1].add) memset(da, 0, (size_t)n * sizeof *da);
    if (!c->d_in[2].add) memset(db, 0, (size_t)n * sizeof *db);
    for (int64_t i = 0; i < c->d_out.rows * n; i++) {
        const float d = tess_load(c->d_out.data, i, c->dtype), x = tess_load(c->in[0].data, i, c->dtype);
        tess_accumulate(c->d_in[0].data, i, c->dtype, c->d_in[0].add, d * a[i % n] * b[(i + 1) % n]);
        da[i % n] += d * x * b[(i + 1) % n];
        db[(i + 1) % n] += d * x * a[i % n];
    }
}
static tess_tensor *net_twice(tess_graph *g, tess_tensor *x, int layer)
{
    const tess_op *twice;
    const tess_op_conf conf = {.name = "twice",
                               .takes = "x, a, b",
                               .forward = {.cpu = twice_forward},
                               .backward = {.cpu = twice_backward},
                               .reads = TESS_READS_IN0 | TESS_READS_IN1 | TESS_READS_IN2};
    OK(tess_op_register(&conf, &twice));
    tess_tensor *p = PARAM("p", C, 1, TESS_ONE);
    return tess_apply(twice, (tess_tensor *[]){x, p, p}, 3, NULL);
}

/* ---- gradients ---- */

/* Adds h times a direction, whose numbers depend on the place alone, to a parameter. */
static float direction(int64_t i)
{
    return (float)((uint32_t)(i * 2654435761u + 12345u) >> 8) / (float)(1 << 23) - 1;
}
static void move_along(tess_graph *g, tess_tensor *p, float h)
{
    for (int64_t k = 0; k < tess_param_pieces(p); k++) {
        const tess_piece at = tess_param_piece(p, k);
        float *x = NULL;
        OK(tess_param_map(p, k, TESS_MASTER, TESS_RW, &x));
        for (int64_t i = 0; x && i < at.rows * at.cols; i++) x[i] += h * direction(at.row * at.cols + i);
        tess_param_unmap(p, k, TESS_MASTER);
    }
    OK(tess_graph_round(g));
}

static void differences(net_body body)
{
    struct net n;
    tess_step *s;
    static float gradient[(T + 3) * V];
    net_make(&n, &(tess_graph_conf){.tile_rows = T, .tile_elements = 8 * C}, body);
    OK(tess_step_new(n.loss, &(tess_step_conf){.train = true, .keep_gradients = true, .recompute_every = 1}, &s));
    OK(tess_graph_init(n.g, 5));
    for (int k = 0; k < tess_graph_params(n.g); k++) {
        tess_tensor *p = tess_graph_param(n.g, k);
        double along = 0;
        net_run(&n, s, 0, 0);
        OK(tess_step_gradient(s, p, gradient));
        for (int64_t i = 0; i < elements_of(p); i++) along += (double)gradient[i] * direction(i);
        const float h = 2e-3f;
        move_along(n.g, p, h);
        const double more = net_run(&n, s, 0, 0);
        move_along(n.g, p, -2 * h);
        const double less = net_run(&n, s, 0, 0), found = (more - less) / (2 * h);
        move_along(n.g, p, h);
        if (fabs(found - along) > 2e-3 + 2e-2 * fabs(along))
            CHECK_SAY("%s: along a direction the loss changes by %g, the gradient says %g", tess_tensor_name(p), found,
                      along);
    }
    net_free(&n, s);
}

TEST(gradients)
{
    OK(tess_start(&(tess_machine){.workers = 2}));
    register_all();
    differences(net_own);
    differences(net_twice);
    tess_stop();
}

/* ---- what a function sees ---- */

static tess_call seen;
static int calls;
static void look(const tess_call *c)
{
    seen = *c;
    calls++;
    memset(c->out.data, 0, (size_t)(c->out.rows * c->out.columns) * (c->dtype == TESS_F32 ? 4 : 2));
}
static void fail(const tess_call *c)
{
    tess_call_fail(c, "row %d is not to my liking", 7);
}
static tess_status pooled(tess_shapes *s) /* a row of three for each sequence */
{
    s->out.dim[1] = 1;
    s->out.dim[2] = 3;
    return s->in[2].rank == 0 ? TESS_OK : tess_shapes_wrong(s, "what is optional is left out");
}

static tess_step *step_of(tess_tensor *output)
{
    tess_step *s = NULL;
    OK(tess_step_new(output, NULL, &s));
    return s;
}

TEST(what_a_function_sees)
{
    const tess_op *op, *bad;
    const tess_op_conf conf = {
        .name = "pooled", .takes = "x, ids, y?, table", .shape = pooled, .attributes = 4, .forward = {.cpu = look}};
    const tess_op_conf failing = {.name = "failing", .takes = "x", .forward = {.cpu = fail}};
    OK(tess_op_register(&conf, &op));
    OK(tess_op_register(&failing, &bad));
    OK(tess_start(&(tess_machine){.workers = 1}));
    struct net n;
    net_make(&n, &(tess_graph_conf){.dtype = TESS_BF16, .tile_rows = 2 * T, .tile_elements = 40 * C}, net_own);
    tess_tensor *table = tess_graph_find_param(n.g, "table");
    tess_tensor *x = tess_embedding(n.ids, table, NULL);
    tess_step *s = step_of(tess_apply(op, (tess_tensor *[]){x, n.ids, NULL, table}, 4, &(int){42}));
    tess_step *f = step_of(tess_apply(bad, &x, 1, NULL));
    float out[B * 3];
    OK(tess_graph_init(n.g, 5));
    OK(tess_step_feed(s, n.ids, n.id));
    OK(tess_step_run(s, &(tess_step_input){0}, &(tess_step_result){0}));
    OK(tess_step_output(s, out));
    CHECK_EQ(calls, 2); /* tiles: two sequences, and one */
    CHECK(seen.sequences == 1 && seen.first == 2 && !seen.train && seen.dtype == TESS_BF16);
    CHECK(seen.in[0].rows == T && seen.in[0].columns == C && seen.in[0].dtype == TESS_BF16 && seen.in[0].tiles == 1);
    CHECK(seen.in[1].rows == T && seen.in[1].columns == 1 && seen.in[1].dtype == TESS_I32);
    CHECK(!seen.in[2].data && !seen.in[2].rows && !seen.aux.data && !seen.d_out.data && !seen.scratch);
    CHECK(seen.in[3].rows == V && seen.in[3].columns == C && seen.in[3].dtype == TESS_BF16 && seen.in[3].tiles == 4);
    CHECK(seen.out.rows == 1 && seen.out.columns == 3 && *(const int *)seen.attributes == 42);
    OK(tess_step_feed(f, n.ids, n.id));
    CHECK_EQ(tess_step_run(f, &(tess_step_input){0}, &(tess_step_result){0}), TESS_FAILED);
    CHECK_HAS(tess_error_text(), "row 7 is not to my liking");
    tess_step_free(s);
    tess_step_free(f);
    tess_graph_free(n.g);
    tess_stop();
}

/* The GPU's function is called as the CPU's is, with the stream. */
TEST(call_for_a_gpu)
{
    float x[2] = {1, 2}, tile[2] = {3, 4}, y[2] = {5, 6};
    char scratch[16], stream;
    tess_own_arg a = {.cuda = look, .scratch = true, .call = {.dtype = TESS_F32}};
    a.call.in[1] = (tess_operand){.rows = 2, .columns = 1, .tiles = 2, .tile_rows = 1};
    a.call.out = (tess_operand){.rows = 2, .columns = 1, .tiles = 1, .tile_rows = 2};
    const tess_view view[] = {{x, 4}, {tile, 4}, {y, 8}, {scratch, 16}};
    tess_own_cuda(&(tess_work){.buf = view, .nbuf = 4, .arg = &a, .stream = &stream});
    CHECK(seen.stream == &stream && seen.scratch == scratch && seen.in[1].data == x && seen.out.data == y);
    CHECK(!seen.in[0].data && y[1] == 0);
}

/* ---- mistakes ---- */

TEST(what_backward_reads_is_asked_for)
{
    tess_op_conf conf = {.takes = "x", .forward = {.cpu = look}, .backward = {.cpu = look}};
    const tess_op *op;
    conf.name = "forgets";
    notes_begin();
    OK(tess_op_register(&conf, &op));
    CHECK(strstr(notes_read(), "forgets: reads is 0"));
    conf.name = "means_it", conf.reads = TESS_READS_GRADIENTS;
    notes_begin();
    OK(tess_op_register(&conf, &op));
    CHECK_STR(notes_read(), "");
}

static void wrong_description(void (*change)(tess_op_conf *c), const char *part)
{
    const tess_op *op = (const tess_op *)part;
    tess_op_conf conf = {.name = "own",
                         .takes = "x, gain?",
                         .forward = {.cpu = look},
                         .backward = {.cpu = look},
                         .reads = TESS_READS_IN1};
    change(&conf);
    WRONG(tess_op_register(&conf, &op), part);
    CHECK(!op);
}
#define CHANGE(name, ...)                                                                                              \
    static void name(tess_op_conf *c)                                                                                  \
    {                                                                                                                  \
        __VA_ARGS__;                                                                                                   \
    }
CHANGE(no_name, c->name = NULL)
CHANGE(empty_name, c->name = "")
CHANGE(strange_name, c->name = "Own op")
CHANGE(long_name, c->name = "a_name_that_is_longer_than_thirty_two_letters")
CHANGE(our_name, c->name = "gelu")
CHANGE(our_codelet, c->name = "linear_gelu")
CHANGE(known_name, c->name = "ema")
CHANGE(takes_nothing, c->takes = NULL)
CHANGE(takes_no_list, c->takes = "x,y")
CHANGE(takes_six, c->takes = "a, b, c, d, e, f")
CHANGE(needs_nothing, c->takes = "a?, b?")
CHANGE(no_forward, c->forward.cpu = NULL)
CHANGE(gpu_alone, (c->backward.cpu = NULL, c->backward.cuda = look))
CHANGE(reads_without, c->backward.cpu = NULL)
CHANGE(reads_third, c->reads = TESS_READS_IN2)
CHANGE(no_dtype, c->dtypes = 1u << TESS_I32)
CHANGE(much, c->attributes = (size_t)1 << 30)

TEST(descriptions)
{
    const tess_op *again;
    register_all();
    OK(ema_register(&again));
    CHECK(again == ema);
    WRONG(tess_op_register(NULL, &again), "tess_op_register: conf is NULL");
    WRONG(tess_op_register(&(tess_op_conf){0}, NULL), "tess_op_register: op is NULL");
    wrong_description(no_name, "op: its name is NULL");
    wrong_description(empty_name, "op: its name is \"\" (expected small letters");
    wrong_description(strange_name, "op: its name is \"Own op\"");
    wrong_description(long_name, "at most 32)");
    wrong_description(our_name, "gelu: is a name of the library's own (choose another)");
    wrong_description(our_codelet, "linear_gelu: is a name of the library's own");
    wrong_description(known_name, "ema: is registered already, as another op");
    wrong_description(takes_nothing, "own: takes \"NULL\" (expected 1 to 5 names as in \"x, gain, bias?\"");
    wrong_description(takes_no_list, "own: takes \"x,y\"");
    wrong_description(takes_six, "own: takes \"a, b, c, d, e, f\"");
    wrong_description(needs_nothing, "own: takes \"a?, b?\"");
    wrong_description(no_forward, "own: has no forward function for a CPU");
    wrong_description(gpu_alone, "own: has no backward function for a CPU, but one for a GPU");
    wrong_description(reads_without, "own: reads is set, but there is no backward function");
    wrong_description(reads_third, "own: reads 0x4, but has 2 inputs (expected bits of 0x303)");
    wrong_description(no_dtype, "own: dtypes 0x8 (expected 1 << TESS_F32");
    wrong_description(much, "own: attributes of 1073741824 bytes (at most");
}

/* Ranks of the tensor dimension share out the columns of one that says so; of the others each does all, and says why.
 */
TEST(columns)
{
    register_all();
    for (int k = 0; k < 2; k++) {
        tess_graph *g = tess_graph_new(&(tess_graph_conf){.grid = {.tensor = 2}});
        tess_tensor *ids = tess_input(g, "ids", 2, 5), *next = tess_input(g, "next", 2, 5);
        tess_tensor *table = tess_param(g, "table", 64, 12, TESS_ONE), *x = tess_embedding(ids, table, NULL);
        tess_tensor *up = tess_param(g, "up", 24, 12, TESS_ONE), *down = tess_param(g, "down", 12, 24, TESS_ONE);
        tess_tensor *decay = tess_param(g, "decay", 24, 1, TESS_ONE);
        x = tess_linear(x, up, NULL);
        x = k ? tess_apply(gated, (tess_tensor *[]){x, NULL}, 2, &(struct gated){1, 1})
              : tess_apply(ema, (tess_tensor *[]){x, decay}, 2, NULL);
        x = tess_linear(x, down, NULL);
        tess_step *s;
        OK(tess_step_new(tess_cross_entropy(x, table, NULL, next), NULL, &s));
        const char *why = tess_graph_unsplit(g);
        if (k)
            CHECK(!why);
        else
            CHECK_STR(why, "2 of 3 matrices, up first: ema does not work on columns by themselves");
        tess_step_free(s);
        tess_graph_free(g);
    }
}

/* What is wrong where an op is used comes out of tess_step_new. */
static tess_status half_of(tess_shapes *s)
{
    s->out.dim[2] /= 2;
    return TESS_OK;
}
struct graph {
    tess_graph *g;
    tess_tensor *ids, *table, *x, *vector;
};
static struct graph graph_of(tess_dtype dtype)
{
    struct graph b = {.g = tess_graph_new(&(tess_graph_conf){.dtype = dtype})};
    b.ids = tess_input(b.g, "ids", 2, 5);
    b.table = tess_param(b.g, "table", 9, 12, TESS_NORMAL(0.1f));
    b.x = tess_embedding(b.ids, b.table, NULL);
    b.vector = tess_param(b.g, "vector", 7, 1, TESS_ONE);
    return b;
}
static void refused(struct graph b, tess_tensor *made, const char *part)
{
    tess_step *s;
    CHECK(!made);
    WRONG(tess_step_new(made, NULL, &s), part);
    tess_tensor *later = tess_silu(b.x);
    CHECK(!later);
    tess_error_clear();
    tess_graph_free(b.g);
}

TEST(columns_that_do_not_come_from_columns)
{
    const tess_op *half;
    OK(tess_op_register(
        &(tess_op_conf){
            .name = "half", .takes = "x", .shape = half_of, .forward.cpu = gated_forward, .by_columns = true},
        &half));
    struct graph b = graph_of(TESS_F32);
    refused(b, tess_apply(half, &b.x, 1, NULL),
            "by_columns, but its shape function says 6 columns, and embedding has 12");
}

static tess_status two_dims(tess_shapes *s)
{
    s->out.rank = 2;
    return TESS_OK;
}
static tess_status other_batch(tess_shapes *s)
{
    s->out.dim[0]++;
    return TESS_OK;
}
static tess_status silent(tess_shapes *s)
{
    (void)s;
    return TESS_FAILED;
}
static tess_status leaves_aux(tess_shapes *s)
{
    s->aux = 2;
    return TESS_OK;
}
static tess_status too_much(tess_shapes *s)
{
    s->scratch = (size_t)1 << 40;
    return TESS_OK;
}
static const tess_op *shaped(const char *name, tess_status (*shape)(tess_shapes *))
{
    const tess_op *op;
    OK(tess_op_register(&(tess_op_conf){.name = name,
                                        .takes = "x",
                                        .shape = shape,
                                        .forward = {.cpu = look},
                                        .dtypes = 1u << TESS_F32 | 1u << TESS_F16},
                        &op));
    return op;
}

TEST(uses)
{
    struct graph b = graph_of(TESS_F32);
    tess_step *s;
    register_all();
    refused(b, tess_apply(NULL, &b.x, 1, NULL), "op: is NULL (tess_op_register gives one)");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(ema, &b.x, 1, NULL), "ema: 1 inputs (it takes 2: x, decay)");
    b = graph_of(TESS_F32);
    CHECK(!tess_apply(ema, NULL, 2, NULL)); /* of no graph: what comes next is of this one */
    WRONG(tess_step_new(NULL, NULL, &s), "ema: 0 inputs");
    refused(b, tess_apply(ema, (tess_tensor *[]){b.x, NULL}, 2, NULL), "ema: decay is NULL");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(ema, (tess_tensor *[]){b.x, b.vector}, 2, NULL),
            "ema: embedding (2,5,12), vector (7): decay must be (C)");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(gated, (tess_tensor *[]){b.x, NULL}, 2, NULL), "gated: its attributes are NULL (it has 8");
    b = graph_of(TESS_F32);
    const struct gated a = {1, 1};
    tess_tensor *w = tess_param(b.g, "w", 6, 12, TESS_ONE);
    refused(b, tess_apply(gated, (tess_tensor *[]){b.x, tess_linear(b.x, w, NULL)}, 2, &a),
            "all activations must have one shape (or the op a shape function)");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(gated, (tess_tensor *[]){b.vector, NULL}, 2, &a), "all of them are parameters");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(gated, (tess_tensor *[]){b.ids, NULL}, 2, &a), "none of them is (B,T,C)");
    b = graph_of(TESS_F32);
    tess_tensor *loss = tess_cross_entropy(b.x, b.table, NULL, b.ids);
    refused(b, tess_apply(gated, (tess_tensor *[]){loss, NULL}, 2, &a), "is a loss, which no op reads");
    b = graph_of(TESS_BF16);
    refused(b, tess_apply(shaped("two_dims", two_dims), &b.x, 1, NULL),
            "the graph is bf16, for which the op has no function (see tess_op_conf.dtypes)");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(shaped("two_dims", two_dims), &b.x, 1, NULL),
            "its shape function says rank 2, (2,5,12) (expected 3, (2,T,C))");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(shaped("other_batch", other_batch), &b.x, 1, NULL), "says rank 3, (3,5,12)");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(shaped("silent", silent), &b.x, 1, NULL), "its shape function refuses them");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(shaped("leaves_aux", leaves_aux), &b.x, 1, NULL), "which backward does not read");
    b = graph_of(TESS_F32);
    refused(b, tess_apply(shaped("too_much", too_much), &b.x, 1, NULL), "asks for 0 floats a row and 1099511627776");

    b = graph_of(TESS_F32); /* without a gradient: for steps that do not train it, or behind what is frozen */
    tess_tensor *y = tess_apply(shaped("plain", NULL), &b.x, 1, NULL);
    tess_tensor *head = tess_param(b.g, "head", 9, 12, TESS_ONE);
    loss = tess_cross_entropy(y, head, NULL, b.ids);
    const tess_step_conf training = {.train = true, .optimizer = tess_adamw()};
    WRONG(tess_step_new(loss, &training, &s), "plain: depends on trained parameters by an op without a gradient");
    OK(tess_param_freeze(b.table));
    OK(tess_step_new(loss, &training, &s));
    tess_step_free(s);
    tess_graph_free(b.g);
}
