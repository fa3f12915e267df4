/* sdpa: attention by cuDNN, for what tess_attention_kernels_of says it does: causal, in bf16 and fp16, shared keys and
 * values, windows. A part of attention.cu, which has kernels of its own for the rest.
 *
 * The library takes a graph of products, sums and elementwise operations over tensors by their strides, and finds the
 * kernel that does all of it at once; what lies between them is never stored. Both passes are such graphs, forward
 *
 *     s = q k^T scale, hidden where a query does not see;  lse = log(sum(exp(s)));  y = (exp(s - max) / sum) v
 *
 * and backward, with delta = sum(dy y) over a head,
 *
 *     p = exp(s - lse);  dv = p^T dy;  ds = p (dy v^T - delta) scale;  dk = ds^T q;  dq = ds k
 *
 * where dk and dv are summed over the heads that share them. dq is written by the product itself: a graph that adds it
 * up in fp32 would be quicker, and has other bits each time. So an engine that says of itself that its bits are not the
 * same each time is not taken, and ds goes to memory on GPUs before Blackwell: 2 bytes a query, key and head. As many
 * sequences are done at a time as there is room for, or as many of one's heads, with all that share their keys; where
 * it is none, the kernels of attention.cu do it. The room is the worker's scratch, or a tile of the list's, whose size
 * tess_attention_room says: so what is taken depends on the shapes, the device and the library alone. */
#ifndef TESS_SDPA_IMPL_H
#define TESS_SDPA_IMPL_H
#include "codelets/attention/attention_seen_impl.h"
#include "codelets/shared/cudnn_calls.h"

/* The tensors of a graph that have memory, by their numbers in the library; then numbers that are told by value. */
enum { SDPA_Q = 1, SDPA_K, SDPA_V, SDPA_Y, SDPA_LSE, SDPA_DY, SDPA_DQ, SDPA_DK, SDPA_DV, SDPA_DELTA };
enum { SDPA_SCALE = 20, SDPA_ONE, SDPA_HIDDEN, SDPA_WINDOW, SDPA_BETWEEN = 100 };

/* A plan is made for this; all of it is compared, byte by byte. Strides are those of parts. */
struct sdpa {
    int64_t sequences, length, heads, groups, dim, window; /* window: 0: none */
    int64_t all_heads;                                     /* of a row of y, dy and lse */
    int64_t q_ld, q_apart, k_ld, k_apart, v_ld, v_apart;
    int64_t dq_ld, dq_apart, dk_ld, dk_apart, dv_ld, dv_apart;
    int device, type; /* DNN_BF16 or DNN_F16 */
    bool backward;
};

struct sdpa_tensor {
    dnn_descriptor d;
    int64_t side[4], stride[4];
};

/* ---- tensors and operations -------------------------------------------------------------------------------------- */

static sdpa_tensor sdpa_tensor_of(dnn_graph *g, int64_t id, int type, const int64_t side[4], const int64_t stride[4],
                                  int64_t alignment = 16)
{
    const bool between = id == SDPA_BETWEEN, by_value = id >= SDPA_SCALE && !between;
    const int64_t number = between ? SDPA_BETWEEN + g->ids++ : id;
    sdpa_tensor t = {dnn_tensor(g, number, type, 4, side, stride, between, by_value, alignment), {}, {}};
    memcpy(t.side, side, sizeof t.side);
    memcpy(t.stride, stride, sizeof t.stride);
    return t;
}
/* (sequences, heads, length, dim), as it lies in rows. */
static sdpa_tensor sdpa_rows(dnn_graph *g, int id, const sdpa &of, int64_t heads, int64_t ld, int64_t apart)
{
    const int64_t side[] = {of.sequences, heads, of.length, of.dim}, stride[] = {of.length * ld, apart, ld, 1};
    return sdpa_tensor_of(g, id, of.type, side, stride);
}
/* The same with its last two sides the other way round. */
static sdpa_tensor sdpa_columns(dnn_graph *g, int id, const sdpa &of, int64_t heads, int64_t ld, int64_t apart)
{
    const int64_t side[] = {of.sequences, heads, of.dim, of.length}, stride[] = {of.length * ld, apart, 1, ld};
    return sdpa_tensor_of(g, id, of.type, side, stride);
}
/* A number a query, (sequences, heads, length, 1): those that are kept lie in rows of all heads. */
static sdpa_tensor sdpa_numbers(dnn_graph *g, int id, const sdpa &of)
{
    const int64_t n = of.all_heads * of.length, side[] = {of.sequences, of.heads, of.length, 1};
    const int64_t kept[] = {n, 1, of.all_heads, 1}, other[] = {n, of.length, 1, 1};
    if (id != SDPA_LSE) return sdpa_tensor_of(g, id, DNN_F32, side, other);
    return sdpa_tensor_of(g, id, DNN_F32, side, kept, of.heads < of.all_heads ? sizeof(float) : 16);
}
static sdpa_tensor sdpa_scalar(dnn_graph *g, int id)
{
    const int64_t one[] = {1, 1, 1, 1};
    return sdpa_tensor_of(g, id, DNN_F32, one, one);
}
/* Between operations, whole: (sequences, heads, rows, columns), or turned. */
static sdpa_tensor sdpa_between(dnn_graph *g, int type, const sdpa &of, int64_t rows, int64_t columns, bool turned)
{
    const int64_t n = rows * columns, side[] = {of.sequences, of.heads, rows, columns};
    const int64_t stride[] = {of.heads * n, n, turned ? 1 : columns, turned ? rows : 1};
    return sdpa_tensor_of(g, SDPA_BETWEEN, type, side, stride);
}
static sdpa_tensor sdpa_scores(dnn_graph *g, int type, const sdpa &of)
{
    return sdpa_between(g, type, of, of.length, of.length, false);
}

/* y = mode(x[, b][, t]); returns y. axis: that of DNN_INDEX. */
static sdpa_tensor sdpa_pointwise(dnn_graph *g, int mode, const sdpa_tensor *x, const sdpa_tensor *b,
                                  const sdpa_tensor *t, sdpa_tensor y, int precision = DNN_F32, int64_t axis = -1)
{
    dnn_descriptor of = dnn_make(g, DNN_POINTWISE), operation = dnn_make(g, DNN_OPERATION_POINTWISE);
    dnn_set_value(g, of, DNN_POINTWISE_MODE, DNN_IS_POINTWISE_MODE, mode);
    dnn_set_value(g, of, DNN_POINTWISE_PRECISION, DNN_IS_TYPE, precision);
    if (axis >= 0) dnn_set(g, of, DNN_POINTWISE_AXIS, DNN_IS_INT64, &axis);
    dnn_end(g, of);
    dnn_set(g, operation, DNN_POINTWISE_OF, DNN_IS_DESCRIPTOR, &of);
    dnn_set(g, operation, DNN_POINTWISE_X, DNN_IS_DESCRIPTOR, &x->d);
    if (b) dnn_set(g, operation, DNN_POINTWISE_B, DNN_IS_DESCRIPTOR, &b->d);
    if (t) dnn_set(g, operation, DNN_POINTWISE_T, DNN_IS_DESCRIPTOR, &t->d);
    dnn_set(g, operation, DNN_POINTWISE_Y, DNN_IS_DESCRIPTOR, &y.d);
    dnn_add(g, operation);
    return y;
}
static sdpa_tensor sdpa_multiply(dnn_graph *g, const sdpa_tensor &a, const sdpa_tensor &b, sdpa_tensor c)
{
    dnn_descriptor of = dnn_make(g, DNN_MATMUL), operation = dnn_make(g, DNN_OPERATION_MATMUL);
    dnn_set_value(g, of, DNN_MATMUL_PRECISION, DNN_IS_TYPE, DNN_F32);
    dnn_end(g, of);
    dnn_set(g, operation, DNN_MATMUL_OF, DNN_IS_DESCRIPTOR, &of);
    dnn_set(g, operation, DNN_MATMUL_A, DNN_IS_DESCRIPTOR, &a.d);
    dnn_set(g, operation, DNN_MATMUL_B, DNN_IS_DESCRIPTOR, &b.d);
    dnn_set(g, operation, DNN_MATMUL_C, DNN_IS_DESCRIPTOR, &c.d);
    dnn_add(g, operation);
    return c;
}
/* Over the sides of x that y has one of, or fewer heads. */
static sdpa_tensor sdpa_reduce(dnn_graph *g, int mode, const sdpa_tensor &x, sdpa_tensor y)
{
    dnn_descriptor of = dnn_make(g, DNN_REDUCTION), operation = dnn_make(g, DNN_OPERATION_REDUCTION);
    dnn_set_value(g, of, DNN_REDUCTION_MODE, DNN_IS_REDUCTION_MODE, mode);
    dnn_set_value(g, of, DNN_REDUCTION_PRECISION, DNN_IS_TYPE, DNN_F32);
    dnn_end(g, of);
    dnn_set(g, operation, DNN_REDUCTION_OF, DNN_IS_DESCRIPTOR, &of);
    dnn_set(g, operation, DNN_REDUCTION_X, DNN_IS_DESCRIPTOR, &x.d);
    dnn_set(g, operation, DNN_REDUCTION_Y, DNN_IS_DESCRIPTOR, &y.d);
    dnn_add(g, operation);
    return y;
}
static sdpa_tensor sdpa_turn(dnn_graph *g, const sdpa_tensor &x, sdpa_tensor y)
{
    dnn_descriptor operation = dnn_make(g, DNN_OPERATION_RESHAPE);
    dnn_set(g, operation, DNN_RESHAPE_X, DNN_IS_DESCRIPTOR, &x.d);
    dnn_set(g, operation, DNN_RESHAPE_Y, DNN_IS_DESCRIPTOR, &y.d);
    dnn_add(g, operation);
    return y;
}

/* ---- the two graphs ---------------------------------------------------------------------------------------------- */

/* Scores with those that a query does not see at minus infinity: it sees no later key and, with a window, none that is
 * as far before it as the window is wide. */
static sdpa_tensor sdpa_hide(dnn_graph *g, const sdpa &of, sdpa_tensor s)
{
    const sdpa_tensor hidden = sdpa_scalar(g, SDPA_HIDDEN);
    const sdpa_tensor query = sdpa_pointwise(g, DNN_INDEX, &s, NULL, NULL, sdpa_scores(g, DNN_I32, of), DNN_F32, 2);
    const sdpa_tensor key = sdpa_pointwise(g, DNN_INDEX, &s, NULL, NULL, sdpa_scores(g, DNN_I32, of), DNN_F32, 3);
    sdpa_tensor seen = sdpa_pointwise(g, DNN_AT_LEAST, &query, &key, NULL, sdpa_scores(g, DNN_BOOL, of), DNN_BOOL);
    s = sdpa_pointwise(g, DNN_SELECT, &s, &hidden, &seen, sdpa_scores(g, DNN_F32, of));
    if (!of.window) return s;
    const sdpa_tensor window = sdpa_scalar(g, SDPA_WINDOW);
    const sdpa_tensor first = sdpa_pointwise(g, DNN_INDEX, &s, NULL, NULL, sdpa_scores(g, DNN_I32, of), DNN_F32, 2);
    const sdpa_tensor from = sdpa_pointwise(g, DNN_INDEX, &s, NULL, NULL, sdpa_scores(g, DNN_I32, of), DNN_F32, 3);
    const sdpa_tensor far = sdpa_pointwise(g, DNN_ADD, &from, &window, NULL, sdpa_scores(g, DNN_F32, of));
    seen = sdpa_pointwise(g, DNN_ABOVE, &far, &first, NULL, sdpa_scores(g, DNN_BOOL, of), DNN_BOOL);
    return sdpa_pointwise(g, DNN_SELECT, &s, &hidden, &seen, sdpa_scores(g, DNN_F32, of));
}

static void sdpa_forward_graph(dnn_graph *g, const sdpa &of)
{
    const sdpa_tensor q = sdpa_rows(g, SDPA_Q, of, of.heads, of.q_ld, of.q_apart);
    const sdpa_tensor k = sdpa_columns(g, SDPA_K, of, of.groups, of.k_ld, of.k_apart);
    const sdpa_tensor v = sdpa_rows(g, SDPA_V, of, of.groups, of.v_ld, of.v_apart);
    const sdpa_tensor y = sdpa_rows(g, SDPA_Y, of, of.heads, of.all_heads * of.dim, of.dim);
    const sdpa_tensor lse = sdpa_numbers(g, SDPA_LSE, of), scale = sdpa_scalar(g, SDPA_SCALE);
    sdpa_tensor s = sdpa_multiply(g, q, k, sdpa_scores(g, DNN_F32, of));
    s = sdpa_pointwise(g, DNN_MUL, &s, &scale, NULL, sdpa_scores(g, DNN_F32, of));
    s = sdpa_hide(g, of, s);
    const sdpa_tensor most = sdpa_reduce(g, DNN_MAXIMUM, s, sdpa_numbers(g, SDPA_BETWEEN, of));
    s = sdpa_pointwise(g, DNN_SUB, &s, &most, NULL, sdpa_scores(g, DNN_F32, of));
    s = sdpa_pointwise(g, DNN_EXP, &s, NULL, NULL, sdpa_scores(g, DNN_F32, of));
    const sdpa_tensor sum = sdpa_reduce(g, DNN_SUM, s, sdpa_numbers(g, SDPA_BETWEEN, of));
    const sdpa_tensor log = sdpa_pointwise(g, DNN_LOG, &sum, NULL, NULL, sdpa_numbers(g, SDPA_BETWEEN, of));
    sdpa_pointwise(g, DNN_ADD, &most, &log, NULL, lse);
    const sdpa_tensor p = sdpa_pointwise(g, DNN_DIV, &s, &sum, NULL, sdpa_scores(g, of.type, of));
    sdpa_multiply(g, p, v, y);
}

/* `to`, of k or v, = a b, summed over the heads that share it. */
static void sdpa_share(dnn_graph *g, const sdpa &of, const sdpa_tensor &a, const sdpa_tensor &b, sdpa_tensor to)
{
    if (of.heads == of.groups)
        sdpa_multiply(g, a, b, to);
    else
        sdpa_reduce(g, DNN_SUM, sdpa_multiply(g, a, b, sdpa_between(g, of.type, of, of.length, of.dim, false)), to);
}

static void sdpa_backward_graph(dnn_graph *g, const sdpa &of)
{
    const int64_t wide = of.all_heads * of.dim;
    const sdpa_tensor q = sdpa_rows(g, SDPA_Q, of, of.heads, of.q_ld, of.q_apart);
    const sdpa_tensor k = sdpa_columns(g, SDPA_K, of, of.groups, of.k_ld, of.k_apart);
    const sdpa_tensor v = sdpa_columns(g, SDPA_V, of, of.groups, of.v_ld, of.v_apart);
    const sdpa_tensor y = sdpa_rows(g, SDPA_Y, of, of.heads, wide, of.dim);
    const sdpa_tensor dy = sdpa_rows(g, SDPA_DY, of, of.heads, wide, of.dim);
    const sdpa_tensor lse = sdpa_numbers(g, SDPA_LSE, of);
    const sdpa_tensor scale = sdpa_scalar(g, SDPA_SCALE), one = sdpa_scalar(g, SDPA_ONE);

    sdpa_tensor each = sdpa_between(g, DNN_F32, of, of.length, of.dim, false);
    each = sdpa_pointwise(g, DNN_MUL, &dy, &y, NULL, each);
    const sdpa_tensor sum = sdpa_reduce(g, DNN_SUM, each, sdpa_numbers(g, SDPA_BETWEEN, of));
    const sdpa_tensor delta = sdpa_pointwise(g, DNN_MUL, &sum, &one, NULL, sdpa_numbers(g, SDPA_DELTA, of));

    sdpa_tensor p = sdpa_multiply(g, q, k, sdpa_scores(g, DNN_F32, of));
    p = sdpa_pointwise(g, DNN_MUL, &p, &scale, NULL, sdpa_scores(g, DNN_F32, of));
    p = sdpa_pointwise(g, DNN_SUB, &p, &lse, NULL, sdpa_scores(g, DNN_F32, of));
    p = sdpa_hide(g, of, p);
    p = sdpa_pointwise(g, DNN_EXP, &p, NULL, NULL, sdpa_scores(g, DNN_F32, of));
    const sdpa_tensor p_turned = sdpa_turn(g, p, sdpa_between(g, of.type, of, of.length, of.length, true));
    sdpa_share(g, of, p_turned, dy, sdpa_rows(g, SDPA_DV, of, of.groups, of.dv_ld, of.dv_apart));

    sdpa_tensor ds = sdpa_multiply(g, dy, v, sdpa_scores(g, DNN_F32, of));
    ds = sdpa_pointwise(g, DNN_SUB, &ds, &delta, NULL, sdpa_scores(g, DNN_F32, of));
    ds = sdpa_pointwise(g, DNN_MUL, &ds, &p, NULL, sdpa_scores(g, DNN_F32, of));
    ds = sdpa_pointwise(g, DNN_MUL, &ds, &scale, NULL, sdpa_scores(g, DNN_F32, of));
    const sdpa_tensor ds_turned = sdpa_turn(g, ds, sdpa_between(g, of.type, of, of.length, of.length, true));
    sdpa_share(g, of, ds_turned, q, sdpa_rows(g, SDPA_DK, of, of.groups, of.dk_ld, of.dk_apart));
    const sdpa_tensor k_rows = sdpa_turn(g, k, sdpa_rows(g, SDPA_BETWEEN, of, of.groups, of.k_ld, of.k_apart));
    sdpa_multiply(g, ds, k_rows, sdpa_rows(g, SDPA_DQ, of, of.heads, of.dq_ld, of.dq_apart));
}

static void dnn_describe(dnn_graph *g, const sdpa &of)
{
    (of.backward ? sdpa_backward_graph : sdpa_forward_graph)(g, of);
}

/* ---- running ----------------------------------------------------------------------------------------------------- */

/* The oldest version whose plans for these graphs were made, for each generation of GPUs (tests/gpu/README.md).
 */
enum { SDPA_LEAST = 91000 };
#ifdef TESS_EMULATED
constexpr int SDPA_PLANS = 8; /* what a test can fill */
#else
constexpr int SDPA_PLANS = 64;
#endif
static dnn_library<sdpa, SDPA_PLANS> sdpa_library; /* attention_library says at the start whether it is on */

/* The plan for the most sequences at a time that the room is enough for, an even part of all, or of one sequence for
 * the most groups of heads; NULL: for none. Engines before Blackwell's keep ds in it, so more than it can hold of that
 * are not tried. */
static dnn_plan<sdpa> *sdpa_find(const tess_work *w, sdpa of, size_t room)
{
    const int64_t sequences = of.sequences, groups = of.groups, share = of.heads / groups;
    const int64_t kept = of.backward ? share * of.length * of.length * 2 : 0;
    for (int64_t cut = 1; cut < sequences + groups; cut++) {
        const int64_t all = cut <= sequences ? sequences : groups, parts = cut <= sequences ? cut : cut - sequences + 1;
        if (all % parts) continue;
        of.sequences = cut <= sequences ? sequences / parts : 1;
        of.groups = cut <= sequences ? groups : groups / parts, of.heads = of.groups * share;
        if ((uint64_t)(of.sequences * of.groups * kept) > room) continue;
        dnn_plan<sdpa> *p = dnn_plan_of(&sdpa_library, w, of, room);
        if (p->plan && (uint64_t)p->workspace <= room) return p;
        if (p->workspace < INT64_MAX) continue;
        sdpa_library.refused = p->graph.status ? p->graph.status : p->refused;
        break;
    }
    return NULL;
}

static const char *sdpa_at(const part &p, int64_t row, int64_t head)
{
    return (const char *)p.ptr + (row * p.ld + head * p.apart) * (int64_t)sizeof(half16);
}
/* Sequences from `row` on, groups from `group` on. */
static int sdpa_do(const tess_work *w, const dnn_plan<sdpa> *p, const flash &f, int64_t row, int64_t group, void *room)
{
    const int64_t head = group * (f.heads / f.groups);
    dnn_pointers to = {};
    dnn_point(&to, SDPA_Q, sdpa_at(f.q, row, head));
    dnn_point(&to, SDPA_K, sdpa_at(f.k, row, group));
    dnn_point(&to, SDPA_V, sdpa_at(f.v, row, group));
    dnn_point(&to, SDPA_Y, sdpa_at(f.y, row, head));
    dnn_point(&to, SDPA_LSE, f.lse + row * f.heads + head);
    dnn_point(&to, SDPA_SCALE, NULL, f.scale);
    dnn_point(&to, SDPA_HIDDEN, NULL, -INFINITY);
    if (p->of.window) dnn_point(&to, SDPA_WINDOW, NULL, (float)f.window);
    if (p->of.backward) {
        dnn_point(&to, SDPA_DY, sdpa_at(f.dy, row, head));
        dnn_point(&to, SDPA_DQ, sdpa_at(f.dq, row, head));
        dnn_point(&to, SDPA_DK, sdpa_at(f.dk, row, group));
        dnn_point(&to, SDPA_DV, sdpa_at(f.dv, row, group));
        dnn_point(&to, SDPA_DELTA, f.delta + row * f.heads + head * f.length);
        dnn_point(&to, SDPA_ONE, NULL, 1);
    }
    return dnn_execute(&sdpa_library, w, p, &to, room);
}

/* Runs f on `rows` rows whose heads can be read 16 bytes at a time. Returns false and does nothing where the library
 * has no plan for it. */
template <tess_dtype T>
static bool sdpa_run(const tess_work *w, const flash &f, int64_t rows, bool backward, tess_view room)
{
    sdpa of;
    memset(&of, 0, sizeof of);
    of.sequences = rows / f.length, of.length = f.length, of.heads = of.all_heads = f.heads, of.groups = f.groups;
    of.dim = f.dim, of.window = f.window < f.length ? f.window : 0;
    of.q_ld = f.q.ld, of.q_apart = f.q.apart, of.k_ld = f.k.ld, of.k_apart = f.k.apart;
    of.v_ld = f.v.ld, of.v_apart = f.v.apart;
    if (backward) {
        of.dq_ld = f.dq.ld, of.dq_apart = f.dq.apart, of.dk_ld = f.dk.ld, of.dk_apart = f.dk.apart;
        of.dv_ld = f.dv.ld, of.dv_apart = f.dv.apart;
    }
    of.backward = backward, of.type = T == TESS_F16 ? DNN_F16 : DNN_BF16;
    cudaGetDevice(&of.device);
    TESS_ASSERT(of.device < 64);
    pthread_mutex_lock(&sdpa_library.lock);
    const dnn_plan<sdpa> *p = rows > 0 ? sdpa_find(w, of, room.bytes) : NULL;
    int status = 0;
    for (int64_t row = 0; p && !status && row < rows; row += p->of.sequences * f.length)
        for (int64_t group = 0; !status && group < f.groups; group += p->of.groups)
            status = sdpa_do(w, p, f, row, group, room.ptr);
    if (status) {
        snprintf(sdpa_library.lack, sizeof sdpa_library.lack, "cuDNN: attention of %d heads, %d rows: %s", f.heads,
                 f.length, dnn.GetErrorString(status));
        if (w->task) tess_work_fail(w, "%s (attention=own does without)", sdpa_library.lack);
    }
    pthread_mutex_unlock(&sdpa_library.lock);
    return p;
}

#endif
