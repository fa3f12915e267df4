/* cross_entropy: tasks of one piece of rows and one tile; what is expected in double is in
 * codelets/test_cross_entropy.c. */
#include "tests/ops/ops.h"

static void targets(int64_t n, int64_t vocab)
{
    int32_t *p = op_indices("target", n, vocab);
    for (int64_t i = 0; i < n; i += 7) p[i] = -100;
}

/* What logits, and what comes of them, may be off by where a body rounds them. */
static double rounded_by(tess_dtype t)
{
    return t == TESS_BF16 ? 2e-2 : t == TESS_F16 ? 4e-3 : 1e-5;
}

/* The statistics alone. `apart`: rows of p are a multiple of 64 apart. */
static void logits_of_tiles(bool apart)
{
    enum { ROWS = 45, IN = 24, TILE = 640, VOCAB = 1531, AT = 3 };
    for (int64_t tile = 0; tile < 3; tile++) OP_EACH(t) for (int kind = 0; kind < 4; kind++)
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
                                        .cap = kind > 1 ? 1.5f : 0,
                                        .bias = kind & 1};
            const int64_t stats = (int64_t)(tess_cross_entropy_stats(ROWS, columns) / sizeof(float));
            op_drawn("x", (ROWS + AT) * IN, t, 0.5), targets(ROWS + AT, VOCAB), op_drawn("w", columns * IN, t, 0.5);
            op_any("stats", stats, TESS_F32, true), op_within(rounded_by(t));
            op_scratch((int64_t)tess_cross_entropy_scratch());
            if (a.bias) op_drawn("b", columns, TESS_F32, 1);
            op_run(&tess_cross_entropy_logits[t], &a);
        }
}

/* From x to dlogits and dx as one bundle, since what is in p on the way is each body's own. */
enum { HEAD_TILES = 3, HEAD_PARTS = 2 * HEAD_TILES + 1 };
static void soft(int64_t places, int64_t count, int64_t vocab);
static void whole_head(const tess_cross_entropy_arg *of, tess_dtype t, int64_t all, int64_t soft_places, bool apart)
{
    static tess_cross_entropy_arg a[HEAD_PARTS];
    static uint16_t buf[HEAD_PARTS][10];
    static tess_bundle_part part[HEAD_PARTS];
    const int64_t rows = of->rows, in = of->in;
    const int tiles = (int)of->tiles, at = tiles;
    const uint16_t x = 0, target = 1, scratch = 2, lse = 3, loss = 4;
    unsigned n[HEAD_PARTS] = {0};
    uint16_t next = 5, more = 0, dx = 0, scores = 0, w[HEAD_TILES], stats[HEAD_TILES], p[HEAD_TILES], b = 0;
    op_env.loss_scale[0] = 0.01f;
    op_drawn("x", all * in, t, 0.5), targets(all, of->vocab), op_scratch((int64_t)tess_cross_entropy_scratch());
    op_any("lse", all, TESS_F32, true), op_within(rounded_by(t));
    if (of->sequence)
        op_any("scores", 2 * (all / of->sequence), TESS_F32, false);
    else
        op_any("losses", 2 * of->losses, OP_DOUBLE, false);
    op_within(rounded_by(t));
    if (!of->ends) op_any("dx", rows * in, TESS_F32, false), op_within(rounded_by(t)), dx = next++;
    if (of->sequence) op_drawn("dscores", 2 * (all / of->sequence), TESS_F32, 1), scores = next++;
    if (of->soft) soft(soft_places, of->soft, of->vocab), more = next++;
#define USE(k, buffer) buf[k][n[k]++] = buffer
    for (int j = 0; j < tiles; j++) {
        const int64_t first = j * of->tile_out, left = of->vocab - first;
        a[j] = *of;
        a[j].first = first, a[j].out = left < of->tile_out ? left : of->tile_out, a[j].grad = true;
        const int64_t ld = apart ? (a[j].out + 63) / 64 * 64 : a[j].out;
        a[j].ld = apart ? ld : 0;
        op_drawn("w", a[j].out * in, t, 0.5), w[j] = next++;
        op_scratch((int64_t)tess_cross_entropy_stats(rows, a[j].out) + (of->soft ? of->soft * rows * 4 : 0)),
            stats[j] = next++;
        op_any("p", rows * ld, t, false), op_within(rounded_by(t)), p[j] = next++;
        if (of->bias) op_drawn("b", a[j].out, TESS_F32, 1), b = next++;
        USE(j, x), USE(j, target), USE(j, w[j]), USE(j, stats[j]), USE(j, scratch), USE(j, p[j]);
        if (of->bias) USE(j, b);
        if (of->soft) USE(j, more);
        part[j] = (tess_bundle_part){&tess_cross_entropy_logits[t], &a[j], buf[j], n[j]};
    }
    a[at] = *of;
    USE(at, target), USE(at, lse), USE(at, loss);
    for (int j = 0; j < tiles; j++) USE(at, stats[j]);
    if (of->soft) USE(at, more);
    part[at] = (tess_bundle_part){&tess_cross_entropy_rows[TESS_F32], &a[at], buf[at], n[at]};
    for (int j = 0; j < tiles; j++) {
        const int k = at + 1 + j;
        a[k] = a[j];
        a[k].acc = j > 0;
        USE(k, p[j]), USE(k, stats[j]), USE(k, lse), USE(k, target);
        if (!of->ends) USE(k, w[j]), USE(k, dx);
        if (of->sequence) USE(k, scores);
        if (of->soft) USE(k, more);
        part[k] = (tess_bundle_part){&tess_cross_entropy_gradient[t], &a[k], buf[k], n[k]};
    }
#undef USE
    op_run(&tess_bundle[t], &(tess_bundle_arg){2 * (unsigned)tiles + 1, part});
}

static void heads(void)
{
    enum { ROWS = 45, IN = 24, TILE = 640, VOCAB = 1531, AT = 3 };
    OP_EACH(t) for (int kind = 0; kind < 8; kind++)
    {
        const tess_cross_entropy_arg a = {.rows = ROWS,
                                          .in = IN,
                                          .row = AT,
                                          .tiles = HEAD_TILES,
                                          .tile_out = TILE,
                                          .vocab = VOCAB,
                                          .losses = 1,
                                          .cap = kind & 2 ? 1.5f : 0,
                                          .bias = kind & 1,
                                          .ends = kind == 6};
        whole_head(&a, t, ROWS + AT, 0, kind & 4);
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
        OP_EACH(t) for (int ends = 0; ends < 2 && !k; ends++)
        {
            a.ends = ends;
            whole_head(&a, t, ALL, 0, false);
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
                                    .grad = true,
                                    .ends = kind == 3};
        targets(ROWS + AT, VOCAB), op_any("lse", ROWS, TESS_F32, false), op_any("losses", 2, OP_DOUBLE, false);
        for (int64_t tile = 0; tile < 3; tile++) {
            const int64_t columns = tile < 2 ? TILE : VOCAB - 2 * TILE, strips = (columns + 511) / 512;
            float *stats = op_drawn("stats", (2 * strips + COUNT) * ROWS, TESS_F32, 3);
            for (int64_t i = strips * ROWS; i < 2 * strips * ROWS; i++) stats[i] = fabsf(stats[i]) + 1;
        }
        soft(places, COUNT, VOCAB);
        op_run(&tess_cross_entropy_rows[TESS_F32], &a);
        OP_EACH(t) whole_head(&a, t, ROWS + AT, places, kind == 2);
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

/* A tile that is all of w, whose dlogits a GPU makes at once, with the bits that they have task by task. */
static void heads_at_once(void)
{
    enum { ROWS = 45, IN = 24, VOCAB = 1531, WIDE = 17084, AT = 3, COUNT = 40, SOFT_AT = 5 };
    OP_EACH(t) for (int kind = 0; kind < 16; kind++)
    {
        const int64_t vocab = kind == 4 ? WIDE : VOCAB;
        tess_cross_entropy_arg a = {.rows = ROWS,
                                    .in = IN,
                                    .row = AT,
                                    .tiles = 1,
                                    .tile_out = vocab,
                                    .vocab = vocab,
                                    .cap = kind & 2 ? 1.5f : 0,
                                    .heat = kind & 8 ? 1.7f : 0,
                                    .weight = kind & 8 ? 0.4f : 0,
                                    .soft = kind & 8 ? COUNT : 0,
                                    .soft_row = kind & 8 ? SOFT_AT : 0,
                                    .losses = 1,
                                    .bias = kind & 1,
                                    .grad = true,
                                    .ends = kind == 6};
        const uint64_t dice = op_dice;
        whole_head(&a, t, ROWS + AT, ROWS + AT + SOFT_AT, kind & 4);
        a.whole = true, op_dice = dice, op_saves = kind & 4 ? 1 : 0;
        whole_head(&a, t, ROWS + AT, ROWS + AT + SOFT_AT, kind & 4);
    }
}

/* More columns than a GPU has in a block of logits, the last ones of them no whole strip. */
static void wide_logits(void)
{
    enum { ROWS = 9, IN = 4, COLUMNS = 16384 + 700 };
    OP_EACH(t)
    {
        tess_cross_entropy_arg a = {
            .rows = ROWS, .in = IN, .out = COLUMNS, .tiles = 1, .tile_out = COLUMNS, .vocab = COLUMNS, .bias = true};
        op_drawn("x", ROWS * IN, t, 0.5), targets(ROWS, COLUMNS), op_drawn("w", COLUMNS * IN, t, 0.5);
        op_any("stats", (int64_t)(tess_cross_entropy_stats(ROWS, COLUMNS) / sizeof(float)), TESS_F32, true);
        op_within(rounded_by(t)), op_scratch((int64_t)tess_cross_entropy_scratch()),
            op_drawn("b", COLUMNS, TESS_F32, 1);
        op_run(&tess_cross_entropy_logits[t], &a);
    }
}

OP_TASKS(cross_entropy)
{
    if (op_speed) return; /* bench_mm and gpu/bench_gpu.c measure it */
    logits_of_tiles(false);
    loss_of_rows(false);
    const uint64_t dice = op_dice; /* others draw what they drew */
    logits_of_tiles(true);
    heads();
    loss_of_rows(true);
    wide_logits();
    scores_of_sequences();
    soft_targets();
    likeliest();
    heads_at_once();
    op_dice = dice;
}

OP_NET(cross_entropy)
{
    return x; /* every network ends with it */
}
