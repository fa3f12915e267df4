/* cross_entropy: tasks of one piece of rows and one tile; what is expected in double is in
 * codelets/test_cross_entropy.c. */
#include "tests/ops/ops.h"

static void targets(int64_t n, int64_t vocab)
{
    int32_t *p = op_indices("target", n, vocab);
    for (int64_t i = 0; i < n; i += 7) p[i] = -100;
}

/* What exp(logit - m) can be. */
static void positive(void *p, int64_t i, tess_dtype t)
{
    const float x = fabsf((float)op_value(p, i, (int)t)) + 1e-3f;
    if (t == TESS_BF16)
        ((tess_bf16 *)p)[i] = tess_to_bf16(x);
    else if (t == TESS_F16)
        ((tess_f16 *)p)[i] = tess_to_f16(x);
    else
        ((float *)p)[i] = x;
}

/* `apart`: rows of p are a multiple of 64 apart. */
static void cross_entropy_tasks(bool apart)
{
    enum { ROWS = 45, IN = 24, TILE = 640, VOCAB = 1531, AT = 3 };
    for (int64_t tile = 0; tile < 3; tile++) OP_EACH(t) for (int kind = apart ? 2 : 0; kind < 6; kind++)
        {
            const int64_t first = tile * TILE, columns = VOCAB - first < TILE ? VOCAB - first : TILE;
            const int64_t ld = apart ? (columns + 63) / 64 * 64 : columns;
            tess_cross_entropy_arg a = {.rows = ROWS,
                                        .in = IN,
                                        .row = AT,
                                        .first = first,
                                        .out = columns,
                                        .ld = apart ? ld : 0,
                                        .tiles = 3,
                                        .tile_out = TILE,
                                        .vocab = VOCAB,
                                        .cap = kind < 4 ? 0 : 1.5f,
                                        .bias = kind & 1,
                                        .grad = kind > 1,
                                        .acc = kind & 1};
            const int64_t stats = (int64_t)(tess_cross_entropy_stats(ROWS, columns) / sizeof(float));
            op_drawn("x", (ROWS + AT) * IN, t, 0.5), targets(ROWS + AT, VOCAB), op_drawn("w", columns * IN, t, 0.5);
            op_any("stats", stats, TESS_F32, true);
            op_scratch((int64_t)tess_cross_entropy_scratch());
            if (a.grad) op_any("p", ROWS * ld, t, false);
            if (a.bias) op_drawn("b", columns, TESS_F32, 1);
            op_run(&tess_cross_entropy_logits[t], &a);

            op_env.loss_scale[0] = 0.01f;
            void *p = op_any("p", ROWS * ld, t, true);
            op_draw(p, ROWS * ld, t, 1);
            for (int64_t i = 0; i < ROWS * ld; i++) positive(p, i, t);
            op_drawn("stats", stats, TESS_F32, 1), op_drawn("lse", ROWS, TESS_F32, 1), targets(ROWS + AT, VOCAB);
            a.ends = kind == 3;
            if (!a.ends) op_drawn("w", columns * IN, t, 1), op_any("dx", ROWS * IN, TESS_F32, a.acc);
            op_run(&tess_cross_entropy_gradient[t], &a);
        }
}

/* `hits`: every third target has the largest logit. */
static void loss_of_rows(bool hits)
{
    enum { ROWS = 45, TILE = 640, VOCAB = 1531, AT = 3 };
    tess_cross_entropy_arg a = {
        .rows = ROWS, .row = AT, .tiles = 3, .tile_out = TILE, .vocab = VOCAB, .loss = 1, .losses = 2, .hits = hits};
    targets(ROWS + AT, VOCAB);
    const int32_t *target = op_buffer[0].data;
    op_any("lse", ROWS, TESS_F32, false), op_any("losses", hits ? 8 : 4, OP_DOUBLE, false);
    for (int64_t tile = 0; tile < 3; tile++) {
        const int64_t columns = tile < 2 ? TILE : VOCAB - 2 * TILE, strips = (columns + 511) / 512;
        const int64_t n = (int64_t)(tess_cross_entropy_stats(ROWS, columns) / sizeof(float));
        float *stats = op_drawn("stats", n, TESS_F32, 3), *at = stats + 2 * strips * ROWS;
        for (int64_t i = strips * ROWS; i < 2 * strips * ROWS; i++) stats[i] = fabsf(stats[i]) + 1;
        for (int64_t r = 0; r < ROWS && hits; r++) {
            const bool here = target[AT + r] >= 0 && target[AT + r] / TILE == tile && r % 3 == 0;
            at[r] = here ? 20 : at[r] - 20;
            if (here) stats[r] = 20;
        }
    }
    op_run(&tess_cross_entropy_rows[TESS_F32], &a);
}

/* Pieces of rows of two sequences, which scores add up over; then dlogits by the scores' gradient. */
static void scores_of_sequences(void)
{
    enum { SEQUENCE = 40, TILE = 640, VOCAB = 1531, IN = 24, ALL = 2 * SEQUENCE };
    static const int64_t piece[][2] = {{0, ALL}, {0, 25}, {25, 30}, {55, 25}};
    for (int k = 0; k < 4; k++) {
        const int64_t rows = piece[k][1];
        tess_cross_entropy_arg a = {.rows = rows,
                                    .row = piece[k][0],
                                    .in = IN,
                                    .tiles = 3,
                                    .tile_out = TILE,
                                    .vocab = VOCAB,
                                    .cap = k & 1 ? 1.5f : 0,
                                    .grad = true,
                                    .sequence = SEQUENCE};
        targets(ALL, VOCAB);
        op_any("lse", ALL, TESS_F32, true);
        /* a sequence that is not there yet has none, or zeros */
        float *scores = op_any("scores", a.row + rows > SEQUENCE ? 4 : 2, TESS_F32, a.row > 0);
        if (a.row && a.row < SEQUENCE) scores[2] = scores[3] = 0;
        for (int64_t tile = 0; tile < 3; tile++) {
            const int64_t columns = tile < 2 ? TILE : VOCAB - 2 * TILE, strips = (columns + 511) / 512;
            const int64_t n = (int64_t)(tess_cross_entropy_stats(rows, columns) / sizeof(float));
            float *stats = op_drawn("stats", n, TESS_F32, 3);
            for (int64_t i = strips * rows; i < 2 * strips * rows; i++) stats[i] = fabsf(stats[i]) + 1;
        }
        op_run(&tess_cross_entropy_rows[TESS_F32], &a);
        OP_EACH(t) for (int ends = 0; ends < 2; ends++)
        {
            a.first = TILE, a.out = TILE, a.ends = ends;
            void *p = op_any("p", rows * TILE, t, true);
            for (int64_t i = 0; i < rows * TILE; i++) positive(p, i, t);
            op_drawn("stats", (int64_t)(tess_cross_entropy_stats(rows, TILE) / sizeof(float)), TESS_F32, 1);
            op_drawn("lse", ALL, TESS_F32, 1), targets(ALL, VOCAB);
            if (!ends) op_drawn("w", TILE * IN, t, 1), op_any("dx", rows * IN, TESS_F32, false);
            op_drawn("dscores", 4, TESS_F32, 1);
            op_run(&tess_cross_entropy_gradient[t], &a);
        }
    }
}

/* Of each place some tokens that differ, and shares of them that add up to 1. */
static void soft(int64_t places, int64_t count, int64_t vocab)
{
    int32_t *p = op_raw("soft", 2 * places * count, TESS_I32);
    for (int64_t i = 0; i < places; i++, p += 2 * count)
        for (int64_t k = 0; k < count; k++) {
            const float share = 2.0f * (float)(count - k) / (float)(count * (count + 1));
            p[k] = (int32_t)((i * 37 + k * (vocab / count)) % vocab);
            memcpy(&p[count + k], &share, sizeof share);
        }
}

static void soft_targets(void)
{
    enum { ROWS = 45, IN = 24, TILE = 640, VOCAB = 1531, AT = 3, SOFT_AT = 5, COUNT = 40 };
    const int64_t places = ROWS + AT + SOFT_AT;
    for (int kind = 0; kind < 4; kind++) {
        tess_cross_entropy_arg a = {.rows = ROWS,
                                    .in = IN,
                                    .row = AT,
                                    .tiles = 3,
                                    .tile_out = TILE,
                                    .vocab = VOCAB,
                                    .cap = kind & 2 ? 1.5f : 0,
                                    .heat = kind ? 1.7f : 0,
                                    .weight = kind ? 0.4f : 0,
                                    .soft = COUNT,
                                    .soft_row = SOFT_AT,
                                    .losses = 1,
                                    .bias = kind & 1,
                                    .grad = kind > 0,
                                    .ends = kind == 3};
        targets(ROWS + AT, VOCAB), op_any("lse", ROWS, TESS_F32, false), op_any("losses", 2, OP_DOUBLE, false);
        for (int64_t tile = 0; tile < 3; tile++) {
            const int64_t columns = tile < 2 ? TILE : VOCAB - 2 * TILE, strips = (columns + 511) / 512;
            float *stats = op_drawn("stats", (2 * strips + COUNT) * ROWS, TESS_F32, 3);
            for (int64_t i = strips * ROWS; i < 2 * strips * ROWS; i++) stats[i] = fabsf(stats[i]) + 1;
        }
        soft(places, COUNT, VOCAB);
        op_run(&tess_cross_entropy_rows[TESS_F32], &a);
        for (int64_t tile = 0; tile < 3; tile++) OP_EACH(t)
            {
                a.first = tile * TILE, a.out = tile < 2 ? TILE : VOCAB - 2 * TILE;
                const int64_t stats = (2 * ((a.out + 511) / 512) + COUNT) * ROWS;
                op_drawn("x", (ROWS + AT) * IN, t, 0.5), targets(ROWS + AT, VOCAB), op_drawn("w", a.out * IN, t, 0.5);
                op_any("stats", stats, TESS_F32, true);
                op_scratch((int64_t)tess_cross_entropy_scratch());
                if (a.grad) op_any("p", ROWS * a.out, t, false);
                if (a.bias) op_drawn("b", a.out, TESS_F32, 1);
                soft(places, COUNT, VOCAB);
                op_run(&tess_cross_entropy_logits[t], &a);

                op_env.loss_scale[0] = 0.01f;
                void *p = op_any("p", ROWS * a.out, t, true);
                for (int64_t i = 0; i < ROWS * a.out; i++) positive(p, i, t);
                op_drawn("stats", stats, TESS_F32, 1), op_drawn("lse", ROWS, TESS_F32, 1), targets(ROWS + AT, VOCAB);
                if (!a.ends) op_drawn("w", a.out * IN, t, 1), op_any("dx", ROWS * IN, TESS_F32, false);
                soft(places, COUNT, VOCAB);
                op_run(&tess_cross_entropy_gradient[t], &a);
            }
    }
}

/* What tiles add to one after the other; of the last one some columns are no tokens. */
static void likeliest(void)
{
    enum { ROWS = 37, IN = 8, TILE = 640, VOCAB = 1400, WIDE = 2 };
    static const int64_t counts[] = {1, 5, 70};
    for (int kind = 0; kind < 3; kind++)
        for (int64_t tile = 0; tile < 3; tile++) {
            const int64_t k = counts[kind], wide = WIDE + 2 * k;
            const tess_cross_entropy_arg a = {.rows = ROWS,
                                              .in = IN,
                                              .first = tile * TILE,
                                              .out = TILE,
                                              .tiles = 3,
                                              .tile_out = TILE,
                                              .vocab = VOCAB,
                                              .cap = kind == 1 ? 1.5f : 0,
                                              .soft = k,
                                              .bias = kind > 0};
            op_drawn("x", ROWS * IN, TESS_F32, 0.5), op_drawn("w", TILE * IN, TESS_F32, 0.5);
            float *row = op_any("likeliest", ROWS * wide, TESS_F32, tile > 0);
            for (int64_t r = 0; r < ROWS && tile; r++, row += wide) {
                row[0] = 3, row[1] = 2;
                for (int64_t i = 0; i < k; i++) row[2 + i] = 3 - 0.1f * (float)i, row[2 + k + i] = (float)(7 * i);
            }
            op_scratch((int64_t)tess_cross_entropy_scratch());
            if (a.bias) op_drawn("b", TILE, TESS_F32, 1);
            op_run(&tess_cross_entropy_likeliest[TESS_F32], &a);
        }
}

/* More columns than a GPU has in a block of logits, the last ones of them no whole strip. */
static void wide_logits(void)
{
    enum { ROWS = 9, IN = 4, COLUMNS = 16384 + 700 };
    OP_EACH(t)
    {
        tess_cross_entropy_arg a = {.rows = ROWS,
                                    .in = IN,
                                    .out = COLUMNS,
                                    .tiles = 1,
                                    .tile_out = COLUMNS,
                                    .vocab = COLUMNS,
                                    .bias = true,
                                    .grad = true};
        op_drawn("x", ROWS * IN, t, 0.5), targets(ROWS, COLUMNS), op_drawn("w", COLUMNS * IN, t, 0.5);
        op_any("stats", (int64_t)(tess_cross_entropy_stats(ROWS, COLUMNS) / sizeof(float)), TESS_F32, true);
        op_scratch((int64_t)tess_cross_entropy_scratch());
        op_any("p", ROWS * COLUMNS, t, false), op_drawn("b", COLUMNS, TESS_F32, 1);
        op_run(&tess_cross_entropy_logits[t], &a);
    }
}

OP_TASKS(cross_entropy)
{
    if (op_speed) return; /* bench_mm and gpu/bench_gpu.c measure it */
    cross_entropy_tasks(false);
    loss_of_rows(false);
    const uint64_t dice = op_dice; /* others draw what they drew */
    cross_entropy_tasks(true);
    loss_of_rows(true);
    wide_logits();
    scores_of_sequences();
    soft_targets();
    likeliest();
    op_dice = dice;
}

OP_NET(cross_entropy)
{
    return x; /* every network ends with it */
}
