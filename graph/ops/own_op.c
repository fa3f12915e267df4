/* Ops from outside: a description becomes a tess_op like ours, with rules that are the same for all of them. Forward
 * and backward are a task a row tile each, which has what the description says that it reads, and leaves all it makes.
 *
 * Why a program registers functions and does not emit tasks: a wrong access or a gradient added twice is easy to write
 * and hard to find outside the source tree, and every change of the lowering would break programs. A function sees
 * whole sequences and whole parameters, never a part of a sequence and never all of a batch, since a look across
 * sequences would depend on the cut and on the number of ranks. A registration lasts until the process ends, because
 * StarPU's performance models of a codelet do. Codelets are called own_NAME_forward, so no performance model of ours
 * is used for one. Randomness, losses, choices of experts and caches are not offered. */
#include "graph/describe/param.h"
#include "graph/ops/lowering.h"
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_NAME = 32, MOST_ATTRIBUTES = 1 << 20, BEFORE = 16 };

/* What is registered, until the process ends: code, as our tables of codelets are. */
struct own {
    tess_op op;
    tess_op_conf conf;
    char name[MOST_NAME + 1], label[2][MOST_NAME + 16];
    char *takes;
    int inputs;
    tess_codelet cl[2][TESS_REAL_DTYPES]; /* [forward, backward] */
    struct own *next;
};
static struct own *registered;

/* A node's attributes: what its shape function said, then, BEFORE bytes on, its own. */
struct sizes {
    int64_t aux;
    size_t scratch;
};
_Static_assert(sizeof(struct sizes) <= BEFORE, "the node's own attributes stay aligned");

static const struct own *own_of(const tess_node *n)
{
    return (const struct own *)n->op;
}

static const void *attributes_of(const tess_node *n)
{
    return own_of(n)->conf.attributes ? (const char *)n->attributes + BEFORE : NULL;
}

/* ---- shapes ---- */

tess_status tess_shapes_wrong(const tess_shapes *s, const char *format, ...)
{
    char text[256];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    return tess_shape_error(s->node, "%s", text);
}

/* All activations have the shape of the first. */
static tess_status same_shape(const tess_node *n, const tess_tensor *first)
{
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k] && n->in[k]->kind == TESS_KIND_ACTIVATION &&
            memcmp(n->in[k]->dim, first->dim, sizeof first->dim) != 0)
            return tess_shape_error(n, "all activations must have one shape (or the op a shape function)");
    return TESS_OK;
}

static tess_status ask_shape(const tess_node *n, tess_shapes *s)
{
    const struct own *o = own_of(n);
    tess_error_clear();
    if (o->conf.shape(s) != TESS_OK)
        return tess_error_text()[0] ? TESS_INVALID : tess_shape_error(n, "its shape function refuses them");
    if (s->out.rank != 3 || s->out.dim[0] != n->out->g->batch || s->out.dim[1] < 1 || s->out.dim[2] < 1 ||
        s->out.dim[1] > TESS_MOST_ROWS / s->out.dim[0] || s->out.dim[2] > TESS_MOST_ROWS)
        return tess_shape_error(n, "its shape function says rank %d, (%lld,%lld,%lld) (expected 3, (%lld,T,C))",
                                s->out.rank, (long long)s->out.dim[0], (long long)s->out.dim[1],
                                (long long)s->out.dim[2], (long long)n->out->g->batch);
    if (s->aux && !(o->op.reads & TESS_READS_AUX))
        return tess_shape_error(n, "its shape function asks for an aux, which backward does not read (TESS_READS_AUX)");
    if (s->aux < 0 || s->scratch > TESS_TILE_MOST || !tess_fits_tile(n->out->g->tile_sequences * s->out.dim[1], s->aux))
        return tess_shape_error(n, "its shape function asks for %lld floats a row and %zu bytes (a tile is at most %s)",
                                (long long)s->aux, s->scratch, tess_human_bytes((double)TESS_TILE_MOST));
    return TESS_OK;
}

/* Ranks of the tensor dimension share columns out: the output has those that all activations have. */
static tess_status check_columns(const tess_node *n, const tess_tensor *first, const tess_shape *out)
{
    if (!own_of(n)->conf.by_columns) return TESS_OK;
    if (!first) return tess_shape_error(n, "by_columns, but none of them is (B,T,C), whose columns it could take");
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k] && n->in[k]->kind == TESS_KIND_ACTIVATION && n->in[k]->dim[2] != out->dim[2])
            return tess_shape_error(n, "by_columns, but its shape function says %lld columns, and %s has %lld",
                                    (long long)out->dim[2], n->in[k]->name, (long long)n->in[k]->dim[2]);
    return TESS_OK;
}

static tess_status check_inputs(const tess_node *n, const tess_tensor **activation)
{
    const struct own *o = own_of(n);
    const tess_dtype t = n->out->g->conf.dtype;
    int64_t tiles = 0;
    bool rows = false;
    for (int k = 0; k < n->inputs; k++) {
        const tess_tensor *in = n->in[k];
        if (!in) continue;
        if (in->kind == TESS_KIND_LOSS) return tess_shape_error(n, "%s is a loss, which no op reads", in->name);
        if (in->kind == TESS_KIND_ACTIVATION && !*activation) *activation = in;
        if (in->kind == TESS_KIND_PARAM)
            tiles += in->cut->tiles;
        else
            rows = true;
    }
    if (!rows) return tess_shape_error(n, "all of them are parameters (one at least must be (B,T,C) or (B,T))");
    if (tiles > TESS_MOST_USES / 4)
        return tess_shape_error(n, "its parameters are cut into %lld tiles, and a task takes %d (raise tile_elements)",
                                (long long)tiles, TESS_MOST_USES / 4);
    if (o->conf.dtypes && !(o->conf.dtypes & 1u << t))
        return tess_shape_error(n, "the graph is %s, for which the op has no function (see tess_op_conf.dtypes)",
                                tess_dtype_name(t));
    return TESS_OK;
}

static tess_status infer(tess_node *n)
{
    const tess_tensor *first = NULL;
    TESS_TRY(check_inputs(n, &first));
    tess_shapes s = {.attributes = attributes_of(n), .node = n};
    for (int k = 0; k < n->inputs && k < TESS_CALL_INPUTS; k++) {
        if (!n->in[k]) continue;
        s.in[k].rank = n->in[k]->rank;
        memcpy(s.in[k].dim, n->in[k]->dim, sizeof s.in[k].dim);
    }
    if (first) s.out = (tess_shape){3, {first->dim[0], first->dim[1], first->dim[2]}};
    if (own_of(n)->conf.shape)
        TESS_TRY(ask_shape(n, &s));
    else if (!first)
        return tess_shape_error(n, "none of them is (B,T,C), and the op has no shape function");
    else
        TESS_TRY(same_shape(n, first));
    TESS_TRY(check_columns(n, first, &s.out));
    tess_set_shape(n, 3, s.out.dim[0], s.out.dim[1], s.out.dim[2]);
    *(struct sizes *)n->attributes = (struct sizes){s.aux, s.scratch};
    return TESS_OK;
}

/* ---- lowering ---- */

/* A task while it is put together. */
struct task {
    tess_own_arg *arg;
    tess_use *use;
    unsigned n;
    const tess_node *node;
    int row_tile;
};

static struct task begin(tess_lower *L, const tess_node *n, int i, bool backward)
{
    const struct own *o = own_of(n);
    const tess_op_functions *f = backward ? &o->conf.backward : &o->conf.forward;
    int64_t most = 2 * TESS_CALL_INPUTS + 4;
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k] && n->in[k]->kind == TESS_KIND_PARAM) most += 2 * n->in[k]->cut->tiles;
    struct task t = {tess_lower_get(L, sizeof *t.arg), tess_alloc((size_t)most * sizeof *t.use), 0, n, i};
    const int64_t sequences = tess_rows(L, n->out, i) / n->out->dim[1];
    *t.arg = (tess_own_arg){.cpu = f->cpu,
                            .cuda = f->cuda,
                            .flops = f->flops,
                            .call = {.attributes = attributes_of(n),
                                     .dtype = tess_real(L),
                                     .sequences = sequences ? sequences : 1,
                                     .first = tess_first_row(L, n->out, i) / n->out->dim[1],
                                     .train = tess_trains(L)}};
    return t;
}

static void end(tess_lower *L, struct task *t, bool backward)
{
    const size_t scratch = ((const struct sizes *)t->node->attributes)->scratch;
    if (scratch) t->use[t->n++] = tess_scratch_use(L, scratch);
    t->arg->scratch = scratch > 0;
    tess_emit(L, &((struct own *)own_of(t->node))->cl[backward][tess_real(L)], t->arg, t->use, t->n);
    free(t->use);
}

static tess_operand rows_of(int64_t rows, int64_t columns, tess_dtype type)
{
    return (tess_operand){.rows = rows, .columns = columns, .dtype = type, .tiles = 1, .tile_rows = rows};
}

static tess_operand param_of(const tess_tensor *p, tess_dtype type)
{
    tess_operand o = rows_of(p->dim[0], p->dim[1], type);
    o.tiles = p->cut->tiles;
    o.tile_rows = p->cut->tile_rows;
    return o;
}

static tess_operand tensor_of(const tess_lower *L, const tess_tensor *t, int i)
{
    return rows_of(tess_rows(L, t, i), tess_width(t), t->kind == TESS_KIND_INPUT ? TESS_I32 : tess_real(L));
}

static void read_input(tess_lower *L, struct task *t, int k)
{
    const tess_tensor *in = t->node->in[k];
    if (!in) return;
    if (in->kind != TESS_KIND_PARAM) {
        t->arg->call.in[k] = tensor_of(L, in, t->row_tile);
        t->use[t->n++] = tess_in(L, in, t->row_tile);
        return;
    }
    t->arg->call.in[k] = param_of(in, in->held->copy ? tess_real(L) : TESS_F32);
    for (int64_t j = 0; j < in->cut->tiles; j++) t->use[t->n++] = tess_weight(L, in, j);
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    struct task t = begin(L, n, i, false);
    tess_call *c = &t.arg->call;
    const int64_t rows = tess_rows(L, n->out, i), aux = ((const struct sizes *)n->attributes)->aux;
    for (int k = 0; k < n->inputs; k++) read_input(L, &t, k);
    c->out = tensor_of(L, n->out, i);
    t.use[t.n++] = tess_out(L, n->out, i);
    if (aux) {
        c->aux = rows_of(rows, aux, TESS_F32);
        t.use[t.n++] = tess_aux_out(L, n, i, (size_t)(rows * aux) * sizeof(float));
    }
    end(L, &t, false);
}

/* A tensor that was given before has its gradient in a tile of its own, which is added behind the task: that writes no
 * tile twice. */
static bool is_again(const tess_node *n, int k)
{
    for (int before = 0; before < k; before++)
        if (n->in[before] == n->in[k]) return true;
    return false;
}

static size_t tile_bytes(const tess_tensor *p, int64_t j)
{
    int64_t first, rows;
    tess_param_rows(p, j, &first, &rows);
    return (size_t)(rows * p->dim[1]) * sizeof(float);
}

/* Tiles of a parameter's gradient can differ in whether there is something; the function has one flag for all. */
static void write_param(tess_lower *L, struct task *t, int k)
{
    const tess_tensor *p = t->node->in[k];
    tess_operand *d = &t->arg->call.d_in[k];
    tess_use *use = t->use + t->n;
    bool some = false, acc;
    *d = param_of(p, TESS_F32);
    for (int64_t j = 0; j < d->tiles; j++) {
        if (is_again(t->node, k))
            use[j] = (tess_use){tess_slot_between(L, tile_bytes(p, j), p->name), TESS_W};
        else
            use[j] = tess_param_grad(L, p, j, &acc);
        some |= use[j].mode == TESS_RW;
    }
    for (int64_t j = 0; j < d->tiles && some; j++)
        if (use[j].mode == TESS_W) tess_grad_zero(L, TESS_F32, (int64_t)(tile_bytes(p, j) / sizeof(float)), &use[j]);
    d->add = some;
    t->n += (unsigned)d->tiles;
}

static void write_gradient(tess_lower *L, struct task *t, int k)
{
    const tess_tensor *in = t->node->in[k];
    if (!in || in->kind == TESS_KIND_INPUT) return;
    if (in->kind == TESS_KIND_PARAM) {
        write_param(L, t, k);
        return;
    }
    tess_operand *d = &t->arg->call.d_in[k];
    *d = tensor_of(L, in, t->row_tile);
    if (is_again(t->node, k))
        t->use[t->n++] = (tess_use){tess_slot_between(L, tess_value_bytes(L, in, t->row_tile), in->name), TESS_W};
    else {
        t->use[t->n++] = tess_grad_write(L, in, t->row_tile, &d->add);
        d->add = t->use[t->n - 1].mode == TESS_RW; /* a gradient that is not needed is not kept */
    }
}

/* Adds what was written for a tensor that is there twice; `use` are its tiles. */
static void add_again(tess_lower *L, const tess_node *n, int k, int i, const tess_use *use)
{
    const tess_tensor *in = n->in[k];
    bool acc;
    if (!is_again(n, k) || !tess_wants_gradient(L, in)) return;
    if (in->kind == TESS_KIND_ACTIVATION) {
        const tess_use to = tess_grad_write(L, in, i, &acc);
        tess_lower_add(L, in, i, use->tile, to.tile, acc);
        return;
    }
    for (int64_t j = 0; j < in->cut->tiles; j++) {
        const tess_use to = tess_param_grad(L, in, j, &acc);
        tess_map_arg *a = TESS_ARG(L, tess_map_arg, .n = (int64_t)(tile_bytes(in, j) / sizeof(float)), .acc = acc);
        TESS_EMIT(L, &tess_add_into[TESS_F32], a, {use[j].tile, TESS_R}, {to.tile, to.mode});
    }
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    struct task t = begin(L, n, i, true);
    tess_call *c = &t.arg->call;
    const int64_t rows = tess_rows(L, n->out, i), aux = ((const struct sizes *)n->attributes)->aux;
    unsigned at[TESS_CALL_INPUTS] = {0};
    for (int k = 0; k < n->inputs; k++)
        if (n->op->reads & 1u << k) read_input(L, &t, k);
    if (n->op->reads & TESS_READS_OUT) {
        c->out = tensor_of(L, n->out, i);
        t.use[t.n++] = tess_in(L, n->out, i);
    }
    if (aux) {
        c->aux = rows_of(rows, aux, TESS_F32);
        t.use[t.n++] = tess_aux_in(L, n, i);
    }
    c->d_out = tensor_of(L, n->out, i);
    t.use[t.n++] = tess_grad_read(L, n->out, i);
    for (int k = 0; k < n->inputs; k++) {
        at[k] = t.n;
        write_gradient(L, &t, k);
    }
    const tess_use *use = tess_arg_copy(L, t.use, t.n * sizeof *use);
    end(L, &t, true);
    for (int k = 0; k < n->inputs; k++) add_again(L, n, k, i, use + at[k]);
}

/* ---- registering ---- */

static bool is_ours(const char *name)
{
    static const char *const ours[] = {
#define TESS_OP(name)                #name,
#define TESS_CODELET(name)           #name,
#define TESS_CODELET_SAME_BITS(name) #name,
#include "graph/ops.def"
    };
    for (size_t i = 0; i < sizeof ours / sizeof *ours; i++)
        if (!strcmp(name, ours[i])) return true;
    return false;
}

/* How many letters of an identifier it begins with. */
static size_t word(const char *s)
{
    return s[0] >= 'a' && s[0] <= 'z' ? strspn(s, "abcdefghijklmnopqrstuvwxyz0123456789_") : 0;
}

static tess_status check_name(const char *name)
{
    if (!name) return tess_error(TESS_INVALID, "op", "its name is NULL");
    const size_t n = word(name);
    if (n == 0 || name[n] || n > MOST_NAME)
        return tess_error(TESS_INVALID, "op", "its name is \"%s\" (expected small letters, digits and _, at most %d)",
                          name, MOST_NAME);
    return is_ours(name) ? tess_error(TESS_INVALID, name, "is a name of the library's own (choose another)") : TESS_OK;
}

/* "x, gain, bias?" */
static tess_status check_takes(const tess_op_conf *c, int *inputs)
{
    const char *s = c->takes ? c->takes : "";
    bool needs = false;
    for (*inputs = 0; *inputs < TESS_CALL_INPUTS; s += 2) {
        const size_t n = word(s);
        if (n == 0 || n >= 32) break; /* check.c has room for 32 bytes */
        s += n;
        needs |= *s != '?';
        s += *s == '?';
        ++*inputs;
        if (!*s && needs) return TESS_OK;
        if (s[0] != ',' || s[1] != ' ') break;
    }
    return tess_error(TESS_INVALID, c->name,
                      "takes \"%s\" (expected 1 to %d names as in \"x, gain, bias?\", one at least without a ?)",
                      c->takes ? c->takes : "NULL", TESS_CALL_INPUTS);
}

static tess_status check_functions(const tess_op_conf *c, int inputs)
{
    const unsigned real = (1u << TESS_REAL_DTYPES) - 1, all = (1u << inputs) - 1;
    if (!c->forward.cpu) return tess_error(TESS_INVALID, c->name, "has no forward function for a CPU");
    if (!c->backward.cpu && c->backward.cuda)
        return tess_error(TESS_INVALID, c->name, "has no backward function for a CPU, but one for a GPU");
    if (!c->backward.cpu && c->reads)
        return tess_error(TESS_INVALID, c->name, "reads is set, but there is no backward function");
    if (c->reads & ~(all | TESS_READS_OUT | TESS_READS_AUX | TESS_READS_GRADIENTS))
        return tess_error(TESS_INVALID, c->name, "reads 0x%x, but has %d input%s (expected bits of 0x%x)", c->reads,
                          inputs, inputs > 1 ? "s" : "", all | TESS_READS_OUT | TESS_READS_AUX);
    if (c->dtypes & ~real)
        return tess_error(TESS_INVALID, c->name,
                          "dtypes 0x%x (expected 1 << TESS_F32, 1 << TESS_BF16, 1 << TESS_F16, or 0 for all)",
                          c->dtypes);
    if (c->attributes > MOST_ATTRIBUTES)
        return tess_error(TESS_INVALID, c->name, "attributes of %zu bytes (at most %d)", c->attributes,
                          MOST_ATTRIBUTES);
    return TESS_OK;
}

static bool same_functions(const tess_op_functions *a, const tess_op_functions *b)
{
    return a->cpu == b->cpu && a->cuda == b->cuda && a->flops == b->flops;
}

static bool same(const tess_op_conf *a, const tess_op_conf *b)
{
    return !strcmp(a->takes, b->takes) && a->attributes == b->attributes && a->shape == b->shape &&
           same_functions(&a->forward, &b->forward) && same_functions(&a->backward, &b->backward) &&
           a->reads == b->reads && a->dtypes == b->dtypes && a->by_rows == b->by_rows && a->by_columns == b->by_columns;
}

static void make_codelets(struct own *o, int backward, const tess_op_functions *f)
{
    snprintf(o->label[backward], sizeof o->label[backward], "own_%s_%s", o->name, backward ? "backward" : "forward");
    for (int t = 0; t < TESS_REAL_DTYPES; t++)
        o->cl[backward][t] = (tess_codelet){.name = o->label[backward],
                                            .dtype = (tess_dtype)t,
                                            .cpu = tess_own_cpu,
                                            .cuda = f->cuda ? tess_own_cuda : NULL,
                                            .cpu_alone = !f->cuda,
                                            .cost = f->flops ? tess_own_cost : NULL};
}

static struct own *make(const tess_op_conf *c, int inputs)
{
    struct own *o = tess_alloc(sizeof *o);
    snprintf(o->name, sizeof o->name, "%s", c->name);
    o->takes = tess_strdup(c->takes);
    o->inputs = inputs;
    o->conf = *c;
    o->conf.name = o->name;
    o->conf.takes = o->takes;
    o->op = (tess_op){.name = o->name,
                      .takes = o->takes,
                      .reads = c->reads & ~(unsigned)TESS_READS_GRADIENTS,
                      .infer = infer,
                      .forward = forward,
                      .backward = c->backward.cpu ? backward : NULL,
                      .no_gradient = !c->backward.cpu,
                      .by_rows = c->by_rows,
                      .own = true,
                      .columns = c->by_columns ? TESS_COLUMNS_SAME : TESS_COLUMNS_ALL};
    make_codelets(o, 0, &c->forward);
    make_codelets(o, 1, &c->backward);
    o->next = registered;
    return registered = o;
}

tess_status tess_op_register(const tess_op_conf *conf, const tess_op **op)
{
    int inputs;
    if (!op) return tess_error(TESS_INVALID, "tess_op_register", "op is NULL");
    *op = NULL;
    if (!conf) return tess_error(TESS_INVALID, "tess_op_register", "conf is NULL");
    TESS_TRY(check_name(conf->name));
    TESS_TRY(check_takes(conf, &inputs));
    TESS_TRY(check_functions(conf, inputs));
    for (const struct own *o = registered; o; o = o->next) {
        if (strcmp(o->name, conf->name) != 0) continue;
        if (!same(&o->conf, conf))
            return tess_error(TESS_INVALID, conf->name, "is registered already, as another op (a name has one)");
        *op = &o->op;
        return TESS_OK;
    }
    if (conf->backward.cpu && !conf->reads && !tess_rank())
        tess_note("%s: reads is 0, so its backward function gets d_out alone, and no input's data (reads = "
                  "TESS_READS_IN0 | ..., or TESS_READS_GRADIENTS if that is meant)",
                  conf->name);
    *op = &make(conf, inputs)->op;
    return TESS_OK;
}

tess_tensor *tess_apply(const tess_op *op, tess_tensor *const *in, int inputs, const void *attributes)
{
    const struct own *o = (const struct own *)op;
    if (!op)
        tess_error(TESS_INVALID, "op", "is NULL (tess_op_register gives one)");
    else if (!in || inputs != o->inputs)
        tess_error(TESS_INVALID, op->name, "%d inputs (it takes %d: %s)", in ? inputs : 0, o->inputs, op->takes);
    else if (o->conf.attributes && !attributes)
        tess_error(TESS_INVALID, op->name, "its attributes are NULL (it has %zu bytes of them)", o->conf.attributes);
    else {
        char *room = tess_alloc(BEFORE + o->conf.attributes);
        if (o->conf.attributes) memcpy(room + BEFORE, attributes, o->conf.attributes);
        tess_tensor *out = tess_node_add(op, in, inputs, room, BEFORE + o->conf.attributes);
        free(room);
        return out;
    }
    return tess_check_refuse(in, inputs);
}
