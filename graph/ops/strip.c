/* strip: heads (B,T,heads*dim), each put together from runs of the elements of a head of x, and of one of z, which may
 * have one head for all; zeros follow. Latent attention cuts and joins its heads by it. */
#include "graph/ops/lowering.h"

struct attributes {
    tess_run_of of[2];
    int64_t heads, dim;
};

/* Input k has one head for all. */
static bool is_shared(const tess_node *n, int64_t k)
{
    const struct attributes *at = n->attributes;
    return at->heads > 1 && n->in[k] && n->in[k]->dim[2] == at->of[k].dim;
}

static tess_status infer(tess_node *n)
{
    const struct attributes *at = n->attributes;
    int64_t taken = 0;
    for (int k = 0; k < 2; k++) {
        const tess_tensor *t = n->in[k];
        const tess_run_of *of = &at->of[k];
        if (!t) continue;
        if (t->rank != 3 || t->dim[0] != n->in[0]->dim[0] || t->dim[1] != n->in[0]->dim[1] || at->heads < 1 ||
            t->dim[2] != of->dim * (is_shared(n, k) ? 1 : at->heads) || of->n < 1 || of->first < 0 ||
            of->first > of->dim - of->n)
            return tess_shape_error(n, "%lld elements behind %lld of heads of %lld (x and z must be (B,T,heads*dim))",
                                    (long long)of->n, (long long)of->first, (long long)of->dim);
        taken += of->n;
    }
    if (taken > at->dim || at->dim > INT32_MAX || at->heads > INT32_MAX)
        return tess_shape_error(n, "%lld elements do not fit in a head of %lld", (long long)taken, (long long)at->dim);
    tess_set_shape(n, 3, n->in[0]->dim[0], n->in[0]->dim[1], at->heads * at->dim);
    return TESS_OK;
}

static void forward(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *at = n->attributes;
    tess_use y = tess_out(L, n->out, i);
    for (int64_t k = 0, to = 0; k < 2 && n->in[k]; to += at->of[k++].n, y.mode = TESS_RW) {
        const tess_run_of *of = &at->of[k];
        tess_strip_arg *a = TESS_ARG(L, tess_strip_arg, .rows = tess_rows(L, n->out, i) * at->heads, .from_ld = of->dim,
                                     .to_ld = at->dim, .spread = is_shared(n, k) ? at->heads : 1, .runs = 1,
                                     .clears = !k && of->n + (n->in[1] ? at->of[1].n : 0) < at->dim);
        a->run[0].from = of->first, a->run[0].to = to, a->run[0].n = of->n;
        TESS_EMIT(L, &tess_strip[tess_real(L)], a, tess_in(L, n->in[k], i), y);
    }
}

static void backward(tess_lower *L, const tess_node *n, int i)
{
    const struct attributes *at = n->attributes;
    for (int64_t k = 0, from = 0; k < 2 && n->in[k]; from += at->of[k++].n) {
        const tess_run_of *of = &at->of[k];
        if (!tess_wants_gradient(L, n->in[k])) continue;
        bool acc;
        const tess_use dx = tess_grad_write(L, n->in[k], i, &acc);
        tess_strip_arg *a =
            TESS_ARG(L, tess_strip_arg, .rows = tess_rows(L, n->out, i) * (is_shared(n, k) ? 1 : at->heads),
                     .from_ld = at->dim, .to_ld = of->dim, .sums = is_shared(n, k) ? at->heads : 1, .runs = 1,
                     .acc = acc, .clears = !acc && of->n < of->dim);
        a->run[0].from = from, a->run[0].to = of->first, a->run[0].n = of->n;
        TESS_EMIT(L, &tess_strip[tess_real(L)], a, tess_grad_read(L, n->out, i), dx);
    }
}

/* Heads stay whole. */
static int64_t units(const tess_node *n, bool *exact)
{
    *exact = false;
    return ((const struct attributes *)n->attributes)->heads;
}

static void keep(tess_node *n, int64_t units, int64_t first, int64_t end)
{
    struct attributes *at = n->attributes;
    at->heads = at->heads / units * (end - first);
}

/* What all heads share is replicated. */
static const char *split(const tess_node *n, int slot, const tess_split *is, tess_splits *s)
{
    const struct attributes *at = n->attributes;
    if (is->runs > 1 || at->heads < 2 || (slot && is_shared(n, slot - 1))) return "has heads that are not shared out";
    for (int k = 0; k <= 2; k++) {
        const tess_tensor *t = k ? n->in[k - 1] : n->out;
        s->has[k] = k && is_shared(n, k - 1) ? TESS_HAS_ALL : TESS_HAS_SOME;
        if (t && s->has[k] == TESS_HAS_SOME) s->of[k] = (tess_split){.dim = 2, .runs = 1, .length = {t->dim[2]}};
    }
    return NULL;
}

const tess_op tess_op_strip = {
    .name = "strip",
    .takes = "x, z?",
    .infer = infer,
    .forward = forward,
    .backward = backward,
    .columns = TESS_COLUMNS_SAME,
    .units = {.count = units, .keep = keep},
    .split = split,
    .by_rows = true,
};

tess_tensor *tess_strips(tess_tensor *x, tess_run_of of_x, tess_tensor *z, tess_run_of of_z, int64_t heads, int64_t dim)
{
    return tess_node_add(&tess_op_strip, (tess_tensor *[]){x, z}, 2, &(struct attributes){{of_x, of_z}, heads, dim},
                         sizeof(struct attributes));
}
