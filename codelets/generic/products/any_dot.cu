/* any_dot: products through mm.cu, of all batches at once where these lie in steps. What is no matrix is brought into
 * the worker's room as one, and c back from there; a batch that has no room there has the task's scratch. */
#include "codelets/generic/products/dot_impl.h"
#include "codelets/generic/store_cuda.h"
#include "codelets/products/product_cuda.h"

/* A matrix of each batch: as it is given, and as it is multiplied, which is elsewhere where it was none. */
struct dot_side {
    dot_operand o;
    const int64_t *batches; /* strides */
    char *x;
    tess_dtype t; /* of what is given */
    any_matrix m;
    bool ready;
};

static inline int64_t batches_of(const tess_any_dot_arg *a)
{
    return map_size(a->dim[DOT_BATCH], a->rank[DOT_BATCH]);
}

/* Whether batches lie in steps of one stride. */
static inline bool in_steps(const tess_any_dot_arg *a, const int64_t *by, int64_t *step)
{
    int64_t next = -1;
    *step = 0;
    for (int d = a->rank[DOT_BATCH] - 1; d >= 0; d--) {
        if (a->dim[DOT_BATCH][d] == 1) continue;
        if (next < 0)
            *step = by[d];
        else if (by[d] != next)
            return false;
        next = by[d] * a->dim[DOT_BATCH][d];
    }
    return *step >= 0;
}

static inline dot_side side_of(const tess_any_dot_arg *a, const dot_operand &o, const int64_t *batches, void *x,
                               int64_t at, tess_dtype t)
{
    dot_side s = {o, batches, (char *)x + at * (int64_t)tess_dtype_size(t), t, {NULL, t, o.ld, o.turned, 0}, false};
    s.m.at = s.x;
    s.ready = in_steps(a, batches, &s.m.next) && o.is_matrix;
    return s;
}
static inline int64_t room_bytes(const dot_side &s, int64_t batches)
{
    return s.ready ? 0 : blocks_of(batches * s.o.size[0] * s.o.size[1], 16) * 16 * (int64_t)tess_dtype_size(s.m.t);
}

/* Between what is given and matrices, one behind the other. */
static inline void move(const tess_work *w, const tess_any_dot_arg *a, const dot_side &s, bool back)
{
    int64_t dim[TESS_RANK_MOST];
    tess_strides given = {}, made = {};
    int rank = 0;
    const int ranks[] = {a->rank[DOT_BATCH], s.o.rank[0], s.o.rank[1]};
    const int64_t *const dims[] = {a->dim[DOT_BATCH], s.o.dim[0], s.o.dim[1]}, *const by[] = {s.batches, s.o.by[0],
                                                                                              s.o.by[1]};
    for (int k = 0; k < 3; k++)
        for (int d = 0; d < ranks[k]; d++) {
            if (dims[k][d] == 1) continue;
            TESS_ASSERT(rank < TESS_RANK_MOST);
            dim[rank] = dims[k][d];
            given.by[rank++] = by[k][d];
        }
    int64_t next = 1;
    for (int d = rank - 1; d >= 0; next *= dim[d--]) made.by[d] = next;
    given.t = s.t, made.t = s.m.t;
    if (back)
        map_copy(w, dim, rank, s.m.at, made, s.x, given, a->acc);
    else
        map_copy(w, dim, rank, s.x, given, s.m.at, made, false);
}

template <tess_dtype T> static void run_dot(const tess_work *w, const tess_any_dot_arg *a)
{
    const dot d = tess_dot_of(a, T);
    const int64_t batches = batches_of(a);
    dot_side side[] = {side_of(a, d.a, a->a[DOT_BATCH], w->buf[0].ptr, a->at[0], T),
                       side_of(a, d.b, a->b[DOT_BATCH], w->buf[1].ptr, a->at[1], T),
                       side_of(a, d.c, a->c[DOT_BATCH], w->buf[2].ptr, a->at[2], a->to)};
    if (!side[2].ready) side[2].m.t = TESS_F32; /* c is added up there */
    int64_t bytes = 0;
    for (const dot_side &s : side) bytes += room_bytes(s, batches);
    const bool fits = TESS_CUDA_MM_ROOM + (size_t)bytes <= w->room_bytes;
    if (!fits && batches > 1) {
        tess_any_dot_arg one = *a;
        one.rank[DOT_BATCH] = 0;
        for (int64_t k = 0; k < batches; k++) {
            const int64_t *const by[] = {a->a[DOT_BATCH], a->b[DOT_BATCH], a->c[DOT_BATCH]};
            for (int s = 0; s < 3; s++) {
                int64_t at = k;
                one.at[s] = a->at[s];
                for (int i = a->rank[DOT_BATCH] - 1; i >= 0; at /= a->dim[DOT_BATCH][i--])
                    one.at[s] += at % a->dim[DOT_BATCH][i] * by[s][i];
            }
            run_dot<T>(w, &one);
        }
        return;
    }
    char *room = fits ? (char *)w->room + TESS_CUDA_MM_ROOM : (char *)w->buf[3].ptr;
    for (int k = 0; k < 3; k++) {
        dot_side &s = side[k];
        if (s.ready) continue;
        s.m = {room, s.m.t, s.o.size[1], false, s.o.size[0] * s.o.size[1]};
        room += room_bytes(s, batches);
        if (k < 2) move(w, a, s, false);
    }
    any_product(w, side[2].m, side[0].m, side[1].m, d.a.size[0], d.b.size[1], d.a.size[1], batches,
                side[2].ready && a->acc);
    if (!side[2].ready) move(w, a, side[2], true);
}

TESS_CUDA_REAL_OF(any_dot, run_dot<T>(w, (const tess_any_dot_arg *)w->arg))
