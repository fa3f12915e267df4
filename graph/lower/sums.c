/* The collectives of ranks that share a tensor, or sequences, within a pass, and the all-reduce of the step's scalars.
 */
#include "graph/lower/parcels_impl.h"
#include <stdlib.h>

/* ---- over the tensor dimension ---- */

static int rank_of_tensor(const tess_lower *L, int t)
{
    return L->grid->rank - tess_grid_tensor(L->grid) + t;
}

int tess_parcel_tag(tess_lower *L)
{
    TESS_ASSERT(TESS_TAGS_TENSOR + L->sums < INT32_MAX - 8);
    return (int)(TESS_TAGS_TENSOR + L->sums++);
}

/* Stores which elements of a tile (rows, width) are the r-th rank's. */
static void run_of(const tess_lower *L, int64_t rows, int64_t width, int r, int64_t *first, int64_t *n)
{
    *first = tess_grid_rows(L->grid, rows, r) * width;
    *n = tess_grid_rows(L->grid, rows, r + 1) * width - *first;
}

/* A reduce-scatter: each rank adds up its run of the elements, in the order of ranks. p is the parameter whose gradient
 * it is, or NULL for an activation, which every micro-batch has. */
static void sum_runs(tess_lower *L, const tess_tensor *p, tess_tile *t, int64_t rows, int64_t width, tess_dtype type,
                     int tag)
{
    const int ranks = L->grid->tensor, mine = tess_grid_tensor(L->grid);
    const size_t size = tess_dtype_size(type);
    int64_t first, own, from, n;
    run_of(L, rows, width, mine, &first, &own);
    tess_parcel parts = {0};
    TESS_FREED tess_use *use = tess_alloc((size_t)ranks * sizeof *use);
    unsigned uses = 1;
    use[0] = (tess_use){t, TESS_RW};
    for (int r = 0; r < ranks; r++) {
        run_of(L, rows, width, r, &from, &n);
        if (r != mine)
            tess_parcel_add(&parts, (tess_use){t, TESS_R}, rank_of_tensor(L, r), tag, true, (size_t)from * size,
                            (size_t)n * size);
    }
    for (int r = 0; r < ranks && own > 0; r++) {
        if (r == mine) continue;
        tess_tile *in = p ? tess_program_tile(L->p, (size_t)own * size, TESS_ROLE_GRADIENT, p->name)
                          : tess_program_slot(L->p, (size_t)own * size, TESS_ROLE_ACTIVATION, "a rank's part");
        tess_parcel_add(&parts, (tess_use){in, TESS_W}, rank_of_tensor(L, r), tag, false, 0, (size_t)own * size);
        use[uses++] = (tess_use){in, TESS_R};
    }
    tess_parcel_send(L, &parts);
    tess_span_arg *a =
        TESS_ARG(L, tess_span_arg, .n = own, .first = first, .mine = (unsigned)mine, .ranks = (unsigned)ranks);
    if (own > 0) tess_emit(L, &tess_span_sum[type], a, use, uses);
}

/* An all-gather: each rank sends its run to the others. */
static void give_runs(tess_lower *L, tess_tile *t, int64_t rows, int64_t width, size_t size, int tag)
{
    const int ranks = L->grid->tensor, mine = tess_grid_tensor(L->grid);
    tess_parcel all = {0};
    int64_t first, own, from, n;
    run_of(L, rows, width, mine, &first, &own);
    for (int r = 0; r < ranks; r++) {
        run_of(L, rows, width, r, &from, &n);
        if (r == mine) continue;
        tess_parcel_add(&all, (tess_use){t, TESS_RW}, rank_of_tensor(L, r), tag, true, (size_t)first * size,
                        (size_t)own * size);
        tess_parcel_add(&all, (tess_use){t, TESS_RW}, rank_of_tensor(L, r), tag, false, (size_t)from * size,
                        (size_t)n * size);
    }
    tess_parcel_send(L, &all);
}

void tess_lower_all_reduce(tess_lower *L, tess_tile *t, int64_t n, tess_dtype type)
{
    const int parts = tess_parcel_tag(L), sums = tess_parcel_tag(L);
    sum_runs(L, NULL, t, n, 1, type, parts);
    give_runs(L, t, n, 1, tess_dtype_size(type), sums);
}

void tess_lower_reduce_scatter_rows(tess_lower *L, tess_tile *t, int64_t rows, int64_t width)
{
    sum_runs(L, NULL, t, rows, width, L->dtype, tess_parcel_tag(L));
}

void tess_lower_all_gather_rows(tess_lower *L, tess_tile *t, int64_t rows, int64_t width)
{
    give_runs(L, t, rows, width, tess_dtype_size(L->dtype), tess_parcel_tag(L));
}

/* What these ranks have alike of a parameter is its place in the graph and its tiles: their number of tiles before it
 * differs by tables, as ranks of the data dimension differ by slices. Sections, whose tags these are, are other peers.
 */
static int tag_of_rows(const tess_tensor *p, int64_t tile)
{
    enum { TILES = 1 << 10 };
    const int64_t tag = 2 * ((int64_t)p->id * TILES + tile);
    TESS_ASSERT(tile < TILES && tag + 1 < TESS_TAGS_TENSOR - TESS_TAGS_PIPELINE);
    return (int)(TESS_TAGS_PIPELINE + tag);
}

void tess_lower_join_rows(tess_lower *L, const tess_tensor *p)
{
    for (int64_t k = 0; p->divided && k < p->held->states; k++) {
        const struct tess_state *s = &p->held->state[k];
        const int64_t n = tess_state_elements(p, s);
        if (!L->touched[p->id][s->tile]) continue;
        sum_runs(L, p, s->sum, n, 1, TESS_F32, tag_of_rows(p, s->tile));
        give_runs(L, s->sum, n, 1, sizeof(float), tag_of_rows(p, s->tile) + 1);
    }
}

/* The t-th of the dimension's ranks sends the t-th run of it. */
void tess_lower_cross(tess_lower *L, tess_use use, int peer, int tag, bool sends)
{
    enum { UNIT = 64 };
    const size_t ranks = (size_t)L->grid->tensor, mine = (size_t)tess_grid_tensor(L->grid),
                 bytes = tess_tile_bytes(use.tile), units = bytes / UNIT;
    if (ranks == 1 || units < ranks) {
        tess_lower_message(L, use, peer, tag, sends);
        return;
    }
#define BEGINS(r) ((r) == ranks ? bytes : units * (r) / ranks * UNIT)
    const size_t first = BEGINS(mine), own = BEGINS(mine + 1) - first;
    tess_parcel run = {0};
    tess_parcel_add(&run, use, peer, tag, sends, first, own);
    tess_parcel_send(L, &run);
    if (sends) return;
    const int others_tag = tess_parcel_tag(L);
    L->lane = TESS_LANE_TOGETHER;
    tess_parcel all = {0};
    const tess_use whole = {use.tile, TESS_RW};
    for (size_t r = 0; r < ranks; r++) {
        if (r == mine) continue;
        tess_parcel_add(&all, whole, rank_of_tensor(L, (int)r), others_tag, true, first, own);
        tess_parcel_add(&all, whole, rank_of_tensor(L, (int)r), others_tag, false, BEGINS(r),
                        BEGINS(r + 1) - BEGINS(r));
    }
#undef BEGINS
    tess_parcel_send(L, &all);
}

void tess_lower_broadcast(tess_lower *L, tess_tile *t, int from)
{
    int mine = tess_grid_tensor(L->grid), tag = tess_parcel_tag(L);
    tess_parcel m = {0};
    tess_use use = {t, from == mine ? TESS_R : TESS_W};
    for (int r = 0; r < L->grid->tensor && from == mine; r++)
        if (r != mine) tess_parcel_add(&m, use, rank_of_tensor(L, r), tag, true, 0, tess_tile_bytes(t));
    if (from != mine) tess_parcel_add(&m, use, rank_of_tensor(L, from), tag, false, 0, tess_tile_bytes(t));
    tess_parcel_send(L, &m);
}

/* ---- over ranks that share sequences ---- */

void tess_lower_all_to_all(tess_lower *L, tess_tile *const *out, tess_tile *const *in)
{
    const int ranks = L->grid->sequence, first = tess_grid_data(L->grid) - tess_grid_sequence(L->grid),
              tag = tess_parcel_tag(L);
    tess_parcel m = {0};
    for (int r = 0; r < ranks; r++)
        if (out[r])
            tess_parcel_add(&m, (tess_use){out[r], TESS_R}, tess_grid_peer(L->grid, first + r), tag, true, 0,
                            tess_tile_bytes(out[r]));
    for (int r = 0; r < ranks; r++)
        if (in[r])
            tess_parcel_add(&m, (tess_use){in[r], TESS_W}, tess_grid_peer(L->grid, first + r), tag, false, 0,
                            tess_tile_bytes(in[r]));
    tess_parcel_send(L, &m);
}

/* ---- scalars ---- */

/* A sum over all ranks, along a tree to rank 0 and back: exact, so that no shape of it shows. */
void tess_lower_all_reduce_exact(tess_lower *L, tess_tile *sum, int64_t sums, int which)
{
    int n = tess_grid_size(L->grid), rank = L->grid->rank, top = 1;
    size_t bytes = tess_tile_bytes(sum);
    while (top < n) top *= 2;
    for (int step = 1; step < top; step *= 2) {
        if (rank & step) {
            tess_lower_message(L, (tess_use){sum, TESS_R}, rank - step, INT32_MAX - 2 * which, true);
            break;
        }
        if (rank + step >= n) continue;
        tess_tile *in = tess_program_tile(L->p, bytes, TESS_ROLE_SCALAR, "a rank's share of a sum");
        tess_lower_message(L, (tess_use){in, TESS_W}, rank + step, INT32_MAX - 2 * which, false);
        TESS_EMIT(L, &tess_exact_add[TESS_F32], TESS_ARG(L, tess_exact_arg, .n = sums, .acc = true), {sum, TESS_RW},
                  {in, TESS_R});
    }
    int from = rank ? rank & -rank : top; /* the step at which this rank sent its share */
    if (rank) tess_lower_message(L, (tess_use){sum, TESS_W}, rank - from, INT32_MAX - 2 * which - 1, false);
    tess_parcel on = {0};
    for (int step = from / 2; step > 0; step /= 2)
        if (rank + step < n)
            tess_parcel_add(&on, (tess_use){sum, TESS_R}, rank + step, INT32_MAX - 2 * which - 1, true, 0, bytes);
    tess_parcel_send(L, &on);
}
