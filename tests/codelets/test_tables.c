/* embedding, pick and rope: what moves rows and what turns them. */
#define CHECK_MAIN
#include "body.h"

/* ---- embedding: 37 rows of sequences of 12, a table of 19 in tiles of 8, positions in tiles of 5 ------------------
 */

enum { ROWS = 37, SEQUENCE = 12, VOCAB = 19, TILE = 8, POSITION_TILE = 5 };

static int32_t *ids_of(int64_t rows)
{
    int32_t *id = bytes_of((size_t)rows * 4);
    for (int64_t r = 0; r < rows; r++) id[r] = (int32_t)((roll() + 1) * 0.5 * VOCAB) % VOCAB;
    id[0] = 0;
    id[rows - 1] = VOCAB - 1;
    return id;
}

static void check_embedding(int64_t n, tess_dtype t)
{
    int32_t *id = ids_of(ROWS);
    double *table = new_values(VOCAB * n, 1), *position = new_values(SEQUENCE * n, 1);
    double *want = zeros(ROWS * n), *plain = zeros(ROWS * n);
    void *tile[3], *place[3];
    for (int i = 0; i < 3; i++) {
        int64_t rows = i < 2 ? TILE : VOCAB - 2 * TILE, places = i < 2 ? POSITION_TILE : SEQUENCE - 2 * POSITION_TILE;
        tile[i] = real_of(table + i * TILE * n, rows * n, t);
        place[i] = real_of(position + i * POSITION_TILE * n, places * n, t);
    }
    for (int64_t i = 0; i < ROWS * n; i++) {
        plain[i] = table[id[i / n] * n + i % n];
        want[i] = plain[i] + position[i / n % SEQUENCE * n + i % n];
    }
    tess_embedding_arg a = {.rows = ROWS, .width = n, .sequence = SEQUENCE, .rows_of_table = VOCAB, .count = TILE};
    void *y = poison((size_t)(ROWS * n) * tess_dtype_size(t));
    for (a.first = 0; a.first < VOCAB; a.first += TILE)
        RUN(&tess_embedding_forward[t], &a, id, y, tile[a.first / TILE]);
    CHECK(distance(y, t, plain, ROWS * n) == 0);
    a.position_tiles = 3;
    a.position_tile_rows = POSITION_TILE;
    for (a.first = 0; a.first < VOCAB; a.first += TILE)
        RUN(&tess_embedding_forward[t], &a, id, y, tile[a.first / TILE], place[0], place[1], place[2]);
    CHECK(near(y, t, want, ROWS * n));
    forget();
}

/* One tile of the table, rows [8, 16), and one of the positions, rows [5, 10). */
static void check_embedding_backward(int64_t n, tess_dtype t, bool acc)
{
    int32_t *id = ids_of(ROWS);
    double *dy = new_values(ROWS * n, 1), *dtable = new_values(TILE * n, 1), *dplace = new_values(POSITION_TILE * n, 1);
    void *pdy = real_of(dy, ROWS * n, t);
    void *pdtable = real_of(dtable, TILE * n, TESS_F32), *pdplace = real_of(dplace, POSITION_TILE * n, TESS_F32);
    if (!acc) {
        memset(pdtable, 0xff, (size_t)(TILE * n) * 4);
        memset(pdplace, 0xff, (size_t)(POSITION_TILE * n) * 4);
        memset(dtable, 0, (size_t)(TILE * n) * sizeof *dtable);
        memset(dplace, 0, (size_t)(POSITION_TILE * n) * sizeof *dplace);
    }
    for (int64_t i = 0; i < ROWS * n; i++) {
        int64_t row = id[i / n], at = i / n % SEQUENCE;
        if (row / TILE == 1) dtable[row % TILE * n + i % n] += dy[i];
        if (at / POSITION_TILE == 1) dplace[at % POSITION_TILE * n + i % n] += dy[i];
    }
    tess_embedding_arg a = {.rows = ROWS, .width = n, .sequence = SEQUENCE, .first = TILE, .count = TILE, .acc = acc};
    RUN(&tess_embedding_backward[t], &a, id, pdy, pdtable);
    CHECK(near(pdtable, TESS_F32, dtable, TILE * n));
    a.first = a.count = POSITION_TILE;
    RUN(&tess_embedding_backward_position[t], &a, pdy, pdplace);
    CHECK(near(pdplace, TESS_F32, dplace, POSITION_TILE * n));
    forget();
}

TEST(embedding)
{
    EACH_REAL(t)
    {
        for (int64_t n = 1; n <= 768; n = n == 1 ? 7 : n == 7 ? 768 : 769) {
            check_embedding(n, t);
            check_embedding_backward(n, t, false);
            check_embedding_backward(n, t, true);
        }
    }
}

/* Only the rows named are counted as moved. */
TEST(embedding_cost)
{
    tess_embedding_arg a = {.rows = 10, .width = 8, .rows_of_table = 50000, .count = 50000};
    CHECK(tess_embedding_forward[TESS_F32].cost(&a).bytes == 10 * 4 + 2 * 10 * 8 * 4);
    CHECK(tess_embedding_forward[TESS_BF16].cost(&a).bytes == 10 * 4 + 2 * 10 * 8 * 2);
    CHECK(tess_embedding_forward[TESS_F32].cost(&a).flops == 0);
}

/* ---- pick -------------------------------------------------------------------------------------------------------- */

TEST(pick)
{
    enum { PICKS = 5, T = 7 };
    const int32_t where[PICKS] = {0, 6, 3, 3, 1};
    EACH_REAL(t)
    {
        for (int64_t n = 1; n <= 65; n += 64) {
            tess_pick_arg a = {.rows = PICKS * T, .width = n, .sequence = T};
            double *x = new_values(PICKS * T * n, 1), *dy = new_values(PICKS * n, 1);
            void *px = real_of(x, PICKS * T * n, t), *pdy = real_of(dy, PICKS * n, t);
            void *index = copy_of(where, sizeof where);
            void *y = poison((size_t)(PICKS * n) * tess_dtype_size(t));
            void *dx = poison((size_t)(PICKS * T * n) * tess_dtype_size(t));
            double *want = zeros(PICKS * n), *want_dx = zeros(PICKS * T * n);
            for (int64_t i = 0; i < PICKS * n; i++) {
                int64_t at = (i / n * T + where[i / n]) * n + i % n;
                want[i] = x[at];
                want_dx[at] = dy[i];
            }
            RUN(&tess_pick_forward[t], &a, px, index, y);
            CHECK(distance(y, t, want, PICKS * n) == 0);
            RUN(&tess_pick_backward[t], &a, pdy, index, dx);
            CHECK(distance(dx, t, want_dx, PICKS * T * n) == 0);
            CHECK(tess_pick_forward[t].cost(&a).bytes == 2.0 * (double)(PICKS * n) * (double)tess_dtype_size(t));
            forget();
        }
    }
}

/* ---- rope -------------------------------------------------------------------------------------------------------- */

/* How fast a pair turns: what scaling does, said in wavelengths as the library does that first had it. */
static double speed_of(const tess_rope_arg *a, int64_t i)
{
    const tess_rope_scaling *s = &a->scaling;
    const double plain = pow((double)a->base, -2.0 * (double)i / (double)a->rotary), wave = 2 * M_PI / plain;
    if (s->kind == TESS_ROPE_PLAIN) return plain;
    if (s->kind == TESS_ROPE_LINEAR || wave > s->length / s->low) return plain / s->factor;
    if (wave < s->length / s->high) return plain;
    const double smooth = (s->length / wave - s->low) / (s->high - s->low);
    return (1 - smooth) * plain / s->factor + smooth * plain;
}

/* Row after row, head after head, with the C library. */
static void turn(const tess_rope_arg *a, const double *x, double *y, double direction)
{
    const int64_t pairs = a->rotary / 2;
    for (int64_t r = 0; r < a->rows; r++)
        for (int64_t h = 0; h < a->heads; h++) {
            const double *from = x + (r * a->heads + h) * a->dim;
            double *to = y + (r * a->heads + h) * a->dim;
            for (int64_t i = a->rotary; i < a->dim; i++) to[i] += from[i];
            for (int64_t i = 0; i < pairs; i++) {
                double angle = direction * (double)(r % a->sequence) * speed_of(a, i);
                int64_t p = a->half ? i : 2 * i, q = a->half ? i + pairs : 2 * i + 1;
                to[p] += from[p] * cos(angle) - from[q] * sin(angle);
                to[q] += from[q] * cos(angle) + from[p] * sin(angle);
            }
        }
}

TEST(rope)
{
    const tess_rope_arg shapes[] = {
        {.rows = 74, .sequence = 37, .heads = 5, .dim = 64, .rotary = 64, .base = 10000},
        {.rows = 37, .sequence = 37, .heads = 3, .dim = 80, .rotary = 20, .base = 10000},
        {.rows = 11, .sequence = 11, .heads = 2, .dim = 260, .rotary = 258, .base = 500000},
        {.rows = 3, .sequence = 1, .heads = 1, .dim = 7, .rotary = 2, .base = 10000},
        {.rows = 60,
         .sequence = 60,
         .heads = 2,
         .dim = 12,
         .rotary = 12,
         .base = 10000,
         .scaling = {TESS_ROPE_LINEAR, .factor = 2.5}},
        {.rows = 90,
         .sequence = 90,
         .heads = 1,
         .dim = 64,
         .rotary = 64,
         .base = 10000, /* all three stretches */
         .scaling = {TESS_ROPE_LLAMA3, .factor = 8, .low = 1, .high = 4, .length = 32}},
    };
    enum { SHAPES = sizeof shapes / sizeof *shapes };
    EACH_REAL(t)
    {
        for (int i = 0; i < 2 * SHAPES; i++) {
            tess_rope_arg a = shapes[i / 2];
            a.half = i % 2;
            const int64_t n = a.rows * a.heads * a.dim;
            double *x = new_values(n, 1), *was = new_values(n, 1), *y = zeros(n), *dx = zeros(n), *sum = zeros(n);
            void *px = real_of(x, n, t), *into = real_of(was, n, t), *out = poison((size_t)n * tess_dtype_size(t));
            memcpy(sum, was, (size_t)n * sizeof *sum);
            turn(&a, x, y, 1);
            turn(&a, x, dx, -1);
            turn(&a, x, sum, -1);
            RUN(&tess_rope_forward[t], &a, px, out);
            CHECK(near(out, t, y, n));
            RUN(&tess_rope_backward[t], &a, px, memset(out, 0xff, (size_t)n * tess_dtype_size(t)));
            CHECK(near(out, t, dx, n));
            a.acc = true;
            RUN(&tess_rope_backward[t], &a, px, into);
            CHECK(near(into, t, sum, n));
            forget();
        }
    }
}

/* Far along a sequence the fp32 angles are still turned by to the last digits: the first pair's is exact. */
TEST(rope_far)
{
    enum { T = 131072 };
    float *x = bytes_of(T * 2 * sizeof *x), *y = poison(T * 2 * sizeof *y);
    for (int r = 0; r < T; r++) x[2 * r] = 1;
    tess_rope_arg a = {.rows = T, .sequence = T, .heads = 1, .dim = 2, .rotary = 2, .base = 10000};
    RUN(&tess_rope_forward[TESS_F32], &a, x, y);
    double off = 0;
    for (int r = 0; r < T; r++) off = fmax(off, fmax(fabs(y[2 * r] - cos(r)), fabs(y[2 * r + 1] - sin(r))));
    CHECK(off < 2e-7);
    forget();
}
