/* Tiles of tensors of any rank: reading them, writing them and their gradients, and the tasks that all generic ops are
 * made of. */
#include "graph/generic/generic_impl.h"
#include <string.h>

tess_nd_tile tess_nd_tile_of(const tess_lower *L, const tess_tensor *t, int i)
{
    return tess_nd_tile_as(L, t->nd, tess_dtype_of(L, t), i);
}

tess_nd_tile tess_nd_tile_as(const tess_lower *L, const tess_nd *nd, tess_dtype t, int i)
{
    tess_nd_tile o = {.rank = nd->rank, .size = 1, .t = t};
    const int64_t left = L->g->batch - tess_first_sample(L, i),
                  s = L->g->tile_sequences < left ? L->g->tile_sequences : left;
    memcpy(o.dim, nd->dim, sizeof o.dim);
    if (nd->at >= 0) o.dim[nd->at] = s * nd->times;
    for (int d = o.rank - 1; d >= 0; d--) {
        o.by[d] = o.size;
        o.size *= o.dim[d];
    }
    return o;
}

tess_strides tess_strides_of(const tess_nd_tile *t)
{
    tess_strides s = {.t = t->t};
    memcpy(s.by, t->by, sizeof s.by);
    return s;
}

tess_strides tess_strides_as(tess_strides s, tess_dtype t)
{
    s.t = t;
    return s;
}

int tess_nd_turns(const tess_lower *L, const tess_node *n)
{
    bool rows = tess_has_rows(n->out);
    for (int k = 0; k < n->inputs; k++) rows |= tess_has_rows(n->in[k]);
    return rows ? L->row_tiles : 1;
}

tess_tile *tess_nd_between(tess_lower *L, int64_t elements, const tess_tensor *t)
{
    return tess_slot_between(L, (size_t)elements * sizeof(float), t->name);
}

/* ---- tasks ---- */

/* Leaves out dimensions of 1, and makes one of two that lie one behind the other for all: not of dimensions edge - 1
 * and edge. Returns where that is then. */
static int collapse(tess_any_map_arg *a, int edge)
{
    tess_strides *s[TESS_MAP_OPERANDS + 1] = {&a->out};
    int n = 1, rank = 0, border = 0;
    for (int k = 0; k < a->operands; k++) s[n++] = &a->in[k];
    for (int d = 0; d < a->rank; d++) {
        if (a->dim[d] == 1) continue;
        bool one = rank > 0 && (d < edge || rank != border);
        for (int k = 0; k < n && one; k++) one = s[k]->by[rank - 1] == s[k]->by[d] * a->dim[d];
        rank += !one;
        a->dim[rank - 1] = one ? a->dim[rank - 1] * a->dim[d] : a->dim[d];
        for (int k = 0; k < n; k++) s[k]->by[rank - 1] = s[k]->by[d];
        if (d < edge) border = rank;
    }
    a->rank = rank;
    return border;
}

void tess_nd_emit_map(tess_lower *L, const tess_any_map_arg *a, const tess_use *use)
{
    tess_any_map_arg *kept = tess_arg_copy(L, a, sizeof *a);
    unsigned n = 1;
    for (int k = 0; k < a->operands; k++) n += !a->index[k];
    collapse(kept, 0);
    tess_emit(L, tess_any_map, kept, use, n);
}

/* Returns the last of the operands that have the most elements in a space. */
static int largest_of(const tess_any_map_arg *a)
{
    int64_t most = 0;
    int which = 0;
    for (int k = 0; k < a->operands; k++) {
        int64_t size = 1;
        for (int d = 0; d < a->rank; d++) size *= a->in[k].by[d] ? a->dim[d] : 1;
        if (!a->index[k] && size >= most) most = size, which = k;
    }
    return which;
}

void tess_nd_emit_fold(tess_lower *L, const tess_any_fold_arg *fold, const int *order, const tess_use *use)
{
    tess_any_fold_arg *f = tess_arg_copy(L, fold, sizeof *f);
    const tess_any_map_arg *a = &fold->map;
    const int kept = fold->kept;
    const int over = a->rank - kept, largest = largest_of(a);
    int to[TESS_RANK_MOST];
    bool is_kept[TESS_RANK_MOST] = {false};
    unsigned n = (unsigned)fold->sums;
    for (int k = 0; k < kept; k++) {
        is_kept[order[k]] = true;
        f->last |= a->in[largest].by[order[k]] == 1 && a->dim[order[k]] > 1;
    }
    memcpy(to + (f->last ? over : 0), order, (size_t)kept * sizeof *to);
    for (int d = 0, k = f->last ? 0 : kept; d < a->rank; d++)
        if (!is_kept[d]) to[k++] = d;
    f->map.out = (tess_strides){0};
    for (int d = 0; d < a->rank; d++) {
        f->map.dim[d] = a->dim[to[d]];
        for (int k = 0; k < a->operands; k++) f->map.in[k].by[d] = a->in[k].by[to[d]];
    }
    for (int k = 0; k < a->operands; k++) n += !a->index[k];
    const int edge = collapse(&f->map, f->last ? over : kept);
    f->kept = f->last ? f->map.rank - edge : edge;
    tess_emit(L, tess_any_fold, f, use, n);
}

void tess_nd_emit_copy(tess_lower *L, int rank, const int64_t *dim, tess_use in, tess_strides from, tess_use out,
                       tess_strides to, bool acc)
{
    static const tess_fn_step load = {.fn = TESS_FN_load, .of = {0, -1, -1}};
    static const tess_formula same = {1, 1, &load};
    tess_any_map_arg a = {.rank = rank, .operands = 1, .in = {from}, .out = to, .formula = &same, .acc = acc};
    memcpy(a.dim, dim, (size_t)rank * sizeof *dim);
    tess_nd_emit_map(L, &a, (tess_use[]){in, out});
}

void tess_nd_emit_reduce(tess_lower *L, tess_reduction fn, tess_element e, const tess_nd_tile *of, const int *order,
                         int kept, tess_use in, tess_use out, tess_dtype to, bool acc)
{
    tess_any_reduce_arg a = {.fn = fn, .element = e, .to = to, .acc = acc, .in.t = of->t};
    bool is_kept[TESS_RANK_MOST] = {false};
    for (int k = 0; k < kept; k++) is_kept[order[k]] = true;
    for (int k = 0; k < of->rank; k++) {
        int d = k < kept ? order[k] : -1;
        if (k >= kept) { /* the others in their order */
            int skip = k - kept;
            for (d = 0; is_kept[d] || skip-- > 0;) d++;
        }
        if (of->dim[d] == 1 && fn < TESS_REDUCE_ARGMAX) continue;
        const int last = a.rank - 1;
        if (last >= (k < kept ? 0 : a.kept) && a.in.by[last] == of->by[d] * of->dim[d]) {
            a.dim[last] *= of->dim[d];
            a.in.by[last] = of->by[d];
            continue;
        }
        a.dim[a.rank] = of->dim[d];
        a.in.by[a.rank++] = of->by[d];
        if (k < kept) a.kept = a.rank;
    }
    TESS_EMIT(L, tess_any_reduce, tess_arg_copy(L, &a, sizeof a), in, out);
}

/* ---- values ---- */

/* A parameter of several tiles that a node reads as one, for the time of a stretch. */
struct joined {
    tess_tile *tile[TESS_MOST_INPUTS];
    uint64_t stretch[TESS_MOST_INPUTS];
};

static tess_strides from(int64_t at, tess_dtype t)
{
    return (tess_strides){.at = at, .by = {1}, .t = t};
}

static tess_use join(tess_lower *L, const tess_node *n, int k)
{
    struct joined *j = tess_node_room(L, n, sizeof *j);
    const tess_tensor *p = n->in[k];
    if (j->tile[k] && j->stretch[k] == L->stretch) return (tess_use){j->tile[k], TESS_R};
    j->stretch[k] = L->stretch;
    const tess_dtype type = tess_dtype_of(L, p);
    j->tile[k] = tess_slot_between(L, (size_t)(p->dim[0] * p->dim[1]) * tess_dtype_size(type), p->name);
    for (int64_t t = 0; t < p->cut->tiles; t++) {
        int64_t first, rows;
        tess_param_rows(p, t, &first, &rows);
        tess_nd_emit_copy(L, 1, (int64_t[]){rows * p->dim[1]}, tess_weight(L, p, t), from(0, type),
                          (tess_use){j->tile[k], t ? TESS_RW : TESS_W}, from(first * p->dim[1], type), false);
    }
    return (tess_use){j->tile[k], TESS_R};
}

tess_use tess_nd_read(tess_lower *L, const tess_node *n, int k, int i)
{
    const tess_tensor *t = n->in[k];
    if (t->kind != TESS_KIND_PARAM) return tess_in(L, t, i);
    return t->cut->tiles == 1 ? tess_weight(L, t, 0) : join(L, n, k);
}

tess_use tess_nd_out(tess_lower *L, const tess_node *n, int i, bool *acc)
{
    *acc = i > 0 && !tess_has_rows(n->out);
    tess_use out = *acc ? tess_in(L, n->out, i) : tess_out(L, n->out, i);
    if (*acc) out.mode = TESS_RW;
    return out;
}

/* ---- gradients ---- */

/* Fills the gradients of parameters that no task has written with zeros. */
static void leave_zeros(tess_lower *L, const tess_node *n)
{
    for (int k = 0; k < n->inputs; k++) {
        const tess_tensor *p = n->in[k];
        for (int64_t j = 0; p->kind == TESS_KIND_PARAM && tess_wants_gradient(L, p) && j < p->cut->tiles; j++) {
            bool acc;
            tess_use use = tess_param_grad(L, p, j, &acc);
            int64_t first, rows;
            tess_param_rows(p, j, &first, &rows);
            if (!acc) tess_grad_zero(L, TESS_F32, rows * p->dim[1], &use);
        }
    }
}

bool tess_nd_idle(tess_lower *L, const tess_node *n, int i)
{
    if (i >= tess_nd_turns(L, n)) return true;
    if (tess_has_gradient(L, n->out, i)) return false;
    if (i == 0) leave_zeros(L, n);
    return true;
}

tess_nd_grad tess_nd_grad_begin(tess_lower *L, const tess_tensor *t, int i, bool part)
{
    tess_nd_grad g = {.t = t};
    const bool param = t->kind == TESS_KIND_PARAM;
    const int64_t size = param ? t->dim[0] * t->dim[1] : tess_nd_tile_of(L, t, i).size;
    if (!param)
        g.use = tess_grad_write(L, t, i, &g.acc);
    else if (t->cut->tiles == 1)
        g.use = tess_param_grad(L, t, 0, &g.acc);
    else
        g.use = (tess_use){tess_nd_between(L, size, t), TESS_W};
    if (part && !g.acc) {
        tess_grad_zero(L, tess_grad_dtype(L, t), size, &g.use);
        g.acc = true;
    }
    return g;
}

void tess_nd_grad_end(tess_lower *L, const tess_nd_grad *g)
{
    const tess_tensor *p = g->t;
    if (p->kind != TESS_KIND_PARAM || p->cut->tiles == 1) return;
    for (int64_t j = 0; j < p->cut->tiles; j++) {
        int64_t first, rows;
        bool acc;
        tess_param_rows(p, j, &first, &rows);
        const tess_use to = tess_param_grad(L, p, j, &acc);
        tess_nd_emit_copy(L, 1, (int64_t[]){rows * p->dim[1]}, (tess_use){g->use.tile, TESS_R},
                          from(first * p->dim[1], TESS_F32), to, from(0, TESS_F32), acc);
    }
}
