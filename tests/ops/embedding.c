/* embedding: 76 rows of sequences of 38, a table of 50 in tiles, positions in tiles. */
#include "tests/ops/ops.h"

enum { ROWS = 76, SEQUENCE = 38, VOCAB = 50, TILE = 20, POSITION_TILE = 20 };

/* Rows [first, first + TILE) of the table, and as many tiles of positions as the sequence needs, or none. */
static void forward(int64_t first, int64_t n, bool positions, float scale, float noise, tess_dtype t)
{
    const tess_embedding_arg a = {.rows = ROWS,
                                  .width = n,
                                  .sequence = SEQUENCE,
                                  .rows_of_table = VOCAB,
                                  .first = first,
                                  .count = VOCAB - first < TILE ? VOCAB - first : TILE,
                                  .position_tiles = positions ? 2 : 0,
                                  .position_tile_rows = positions ? POSITION_TILE : 0,
                                  .scale = scale,
                                  .noise = noise,
                                  .row0 = 1000,
                                  .op = 7};
    const int32_t *id = op_indices("id", ROWS, VOCAB);
    double *y = op_out("y", ROWS * n, t, true), *table = op_in("table", a.count * n, t, 1), *place[2];
    for (int j = 0; j < (positions ? 2 : 0); j++) place[j] = op_in("position", POSITION_TILE * n, t, 1);
    for (int64_t i = 0; i < ROWS * n; i++) {
        const int64_t row = id[i / n] - first, at = (a.row0 + i / n) % SEQUENCE;
        if (row < 0 || row >= a.count) continue;
        const uint32_t bits = tess_random(op_env.seed, (uint64_t)op_env.step, a.op, (uint64_t)(a.row0 * n + i));
        const double drawn = (double)((int32_t)bits >> 8) * 0x1p-23; /* in [-1, 1) */
        y[i] = (table[row * n + i % n] + (double)noise * drawn) * (double)scale;
        if (positions) y[i] += place[at / POSITION_TILE][at % POSITION_TILE * n + i % n];
    }
    op_run(&tess_embedding_forward[t], &a);
}

/* dtable of rows [first, first + count), which `rows` tokens below `below` are of. */
static void backward(int64_t rows, int64_t first, int64_t count, int64_t below, int64_t n, float scale, tess_dtype t,
                     bool acc)
{
    const tess_embedding_arg a = {.rows = rows,
                                  .width = n,
                                  .sequence = SEQUENCE,
                                  .rows_of_table = VOCAB,
                                  .first = first,
                                  .count = count,
                                  .scale = scale,
                                  .acc = acc};
    const int32_t *id = op_indices("id", rows, below);
    double *dy = op_in("dy", rows * n, t, 1), *d = op_out("dtable", count * n, TESS_F32, acc);
    for (int64_t i = 0; i < rows * n; i++) {
        const int64_t row = id[i / n] - first;
        if (row >= 0 && row < count) d[row * n + i % n] += dy[i] * (double)scale;
    }
    op_run(&tess_embedding_backward[t], &a);
}

/* A tile of more tokens than a GPU keeps first rows of: two that lie so far apart, by turns, and one beside. */
static void backward_far(void)
{
    enum { R = 300, FAR = 1 << 20, COUNT = FAR + 8 };
    const tess_embedding_arg a = {.rows = R, .width = 1, .sequence = R, .rows_of_table = COUNT, .count = COUNT};
    int32_t *id = op_raw("id", R, TESS_I32);
    double *dy = op_in("dy", R, TESS_F32, 1), *d = op_out("dtable", COUNT, TESS_F32, false);
    for (int r = 0; r < R; r++) d[id[r] = r % 3 == 2 ? r : r % 3 * FAR] += dy[r];
    op_run(&tess_embedding_backward[TESS_F32], &a);
}

static void backward_position(int64_t rows, int64_t first, int64_t count, int64_t n, tess_dtype t, bool acc)
{
    const tess_embedding_arg a = {
        .rows = rows, .width = n, .sequence = SEQUENCE, .row0 = 7, .first = first, .count = count, .acc = acc};
    double *dy = op_in("dy", rows * n, t, 1), *d = op_out("dposition", count * n, TESS_F32, acc);
    for (int64_t i = 0; i < rows * n; i++) {
        const int64_t at = (a.row0 + i / n) % SEQUENCE - first;
        if (at >= 0 && at < count) d[at * n + i % n] += dy[i];
    }
    op_run(&tess_embedding_backward_position[t], &a);
}

/* GPT-2's, all tokens alike. */
static void speed(tess_dtype t)
{
    enum { R = 1024, N = 768 };
    const tess_embedding_arg a = {.rows = R,
                                  .width = N,
                                  .sequence = R,
                                  .rows_of_table = R,
                                  .count = R,
                                  .position_tiles = 1,
                                  .position_tile_rows = R,
                                  .acc = true};
    op_indices("id", R, 1), op_any("y", R * N, t, false), op_in("table", R * N, t, 1), op_in("position", R * N, t, 1);
    op_run(&tess_embedding_forward[t], &a);
    op_indices("id", R, 1), op_in("dy", R * N, t, 1), op_any("dtable", R * N, TESS_F32, true);
    op_run(&tess_embedding_backward[t], &a);
    op_in("dy", R * N, t, 1), op_any("dposition", R * N, TESS_F32, true);
    op_run(&tess_embedding_backward_position[t], &a);
}

OP_TASKS(embedding)
{
    static const int64_t width[] = {1, 24, 37};
    OP_EACH(t)
    {
        if (op_speed) speed(t);
        for (int k = 0; k < 3 && !op_speed; k++)
            for (int acc = 0; acc < 2; acc++) {
                for (int64_t first = 0; first < VOCAB; first += TILE)
                    forward(first, width[k], acc, k % 2 ? 5.5f : 1, k == 2 ? 0 : 0.5f, t);
                /* Few tokens, many times each; and more rows than a block looks at in one go. */
                backward(SEQUENCE * 21, 16, TILE, k % 2 ? VOCAB : 18, width[k], k % 2 ? 5.5f : 1, t, acc);
                backward_position(SEQUENCE * 21, 16, TILE, width[k], t, acc);
                backward_position(SEQUENCE, 30, TILE, width[k], t, acc); /* beyond the sequence */
            }
        if (!op_speed && t == TESS_F32) backward_far();
        if (!op_speed) /* wider than one thread's columns */
            for (int64_t n = 8200; n < 8202; n++) backward(6, 0, 3, 3, n, 1, t, false);
    }
}

OP_NET(embedding)
{
    return x; /* every network begins with it */
}
