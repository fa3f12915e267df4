/* The head and its loss against sums in double: vocabularies that no tile divides, rows in the middle of wider tiles,
 * targets that do not count, bias, += and =, logits in the hundreds. */
#define CHECK_MAIN
#include "tests/codelets/body.h"

/* What the oracle makes of one problem: gradients of the sum of losses times env.loss_scale[0]. */
typedef struct want {
    double loss, count, hits;
    double *dx, *p, *db; /* (rows,in), (rows,vocab), (vocab) */
} want;

static want oracle(const tess_cross_entropy_arg *a, const double *x, const double *w, const double *b,
                   const int32_t *target)
{
    want o = {.dx = zeros(a->rows * a->in), .p = zeros(a->rows * a->vocab), .db = zeros(a->vocab)};
    for (int64_t r = 0; r < a->rows; r++) {
        double *p = o.p + r * a->vocab, most = -INFINITY, sum = 0;
        for (int64_t i = 0; i < a->vocab; i++) {
            p[i] = b ? b[i] : 0;
            for (int64_t k = 0; k < a->in; k++) p[i] += x[r * a->in + k] * w[i * a->in + k];
            if (a->cap > 0) p[i] = (double)a->cap * tanh(p[i] / (double)a->cap);
            most = fmax(most, p[i]);
        }
        for (int64_t i = 0; i < a->vocab; i++) sum += exp(p[i] - most);
        const double lse = most + log(sum);
        if (target[r] >= 0) o.loss += lse - p[target[r]], o.count++, o.hits += p[target[r]] >= most;
        for (int64_t i = 0; i < a->vocab; i++) {
            const double part = a->cap > 0 ? p[i] / (double)a->cap : 0, slope = 1 - part * part;
            p[i] = target[r] < 0 ? 0 : (exp(p[i] - lse) - (i == target[r])) * env.loss_scale[0] * slope;
            o.db[i] += p[i];
            for (int64_t k = 0; k < a->in; k++) o.dx[r * a->in + k] += p[i] * w[i * a->in + k];
        }
    }
    return o;
}

static int64_t columns(const tess_cross_entropy_arg *a, int64_t tile)
{
    const int64_t left = a->vocab - tile * a->tile_out;
    return left < a->tile_out ? left : a->tile_out;
}

/* What the tasks of one piece work on; by tile what belongs to a tile of w. */
typedef struct piece {
    const void *x;
    const int32_t *target;
    void *w[4], *p[4], *stats[4];
    float *bias[4], *db[4], *lse, *sum;
    double *loss;
    void *dx;
} piece;

/* All tasks of a piece in their order, but for dw. `all` says whether dx is added to, and db with acc_bias. */
static void run_piece(const tess_cross_entropy_arg *all, bool acc_bias, piece *s, tess_dtype t)
{
    void *rows[8] = {(void *)s->target, s->lse = poison((size_t)all->rows * 4), s->loss};
    for (int64_t j = 0; j < all->tiles; j++) {
        tess_cross_entropy_arg a = *all;
        a.first = j * a.tile_out;
        a.out = columns(all, j);
        s->p[j] = poison((size_t)(a.rows * a.out) * tess_dtype_size(t));
        rows[3 + j] = s->stats[j] = poison(tess_cross_entropy_stats(a.rows, a.out));
        void *buffer[7] = {(void *)s->x, (void *)s->target, s->w[j], s->stats[j], poison(tess_cross_entropy_scratch())};
        unsigned n = 5;
        if (a.grad) buffer[n++] = s->p[j];
        if (a.bias) buffer[n++] = s->bias[j];
        run_body(&tess_cross_entropy_logits[t], &a, buffer, n);
    }
    tess_cross_entropy_arg whole = *all;
    whole.losses = 1;
    run_body(&tess_cross_entropy_rows[TESS_F32], &whole, rows, 3 + (unsigned)all->tiles);
    if (!all->grad) return;
    s->sum = poison((size_t)(all->rows * all->in) * 4);
    for (int64_t j = 0; j < all->tiles; j++) {
        tess_cross_entropy_arg a = *all;
        a.first = j * a.tile_out;
        a.out = columns(all, j);
        a.acc = j > 0;
        RUN(&tess_cross_entropy_gradient[t], &a, s->p[j], s->stats[j], s->lse, (void *)s->target, s->w[j], s->sum);
        if (!a.bias) continue;
        tess_linear_arg weight = {
            .rows = a.rows, .in = a.in, .out = a.out, .ld = a.out, .row = a.row, .bias = true, .acc_bias = acc_bias};
        RUN(&tess_linear_backward_weight[t], &weight, s->p[j], (void *)s->x, poison((size_t)(a.out * a.in) * 4),
            s->db[j]);
    }
    tess_map_arg add = {.n = all->rows * all->in, .first = all->row * all->in, .acc = all->acc};
    RUN(&tess_add_sum[t], &add, s->sum, s->dx);
}

/* `around` rows lie before and behind those of the task in x, target and dx. */
static void check(tess_cross_entropy_arg a, bool acc_bias, int64_t around, double size, tess_dtype t)
{
    const int64_t all = a.rows + 2 * around, tile_bytes = a.tile_out * a.in * (int64_t)tess_dtype_size(t);
    a.row = around;
    a.hits = !a.grad;
    a.tiles = (a.vocab + a.tile_out - 1) / a.tile_out;
    double *x = new_values(all * a.in, size), *w = new_values(a.vocab * a.in, 0.3), *b = new_values(a.vocab, 1);
    double *dx0 = new_values(all * a.in, 0.01), *db0 = new_values(a.vocab, 0.01);
    char *table = real_of(w, a.vocab * a.in, t);
    float *bias = real_of(b, a.vocab, TESS_F32), *db = real_of(db0, a.vocab, TESS_F32);
    int32_t *target = bytes_of((size_t)all * 4);
    for (int64_t r = 0; r < all; r++) target[r] = r % 5 == 3 ? (r % 2 ? -1 : -100) : (int32_t)(r * 7919 % a.vocab);
    target[a.row] = (int32_t)a.vocab - 1;
    piece s = {.x = real_of(x, all * a.in, t),
               .target = target,
               .dx = a.acc ? real_of(dx0, all * a.in, t) : poison((size_t)(all * a.in) * tess_dtype_size(t)),
               .loss = poison(32)};
    for (int64_t j = 0; j < a.tiles; j++) {
        const size_t floats = (size_t)columns(&a, j) * sizeof(float);
        s.w[j] = copy_of(table + j * tile_bytes, (size_t)(columns(&a, j) * a.in) * tess_dtype_size(t));
        s.bias[j] = copy_of(bias + j * a.tile_out, floats);
        s.db[j] = acc_bias ? copy_of(db + j * a.tile_out, floats) : poison(floats);
    }
    run_piece(&a, acc_bias, &s, t);
    for (int64_t j = 0; j < a.tiles; j++) memcpy(db + j * a.tile_out, s.db[j], (size_t)columns(&a, j) * sizeof(float));

    want o = oracle(&a, x + a.row * a.in, w, a.bias ? b : NULL, target + a.row);
    CHECK_NEAR(s.loss[0], o.loss, 1e-5 * fabs(o.loss));
    CHECK_NEAR(s.loss[1], o.count, 0);
    if (a.hits) CHECK(s.loss[2] == o.hits && s.loss[3] == o.count);
    if (a.grad) {
        for (int64_t j = 0; j < a.tiles; j++) {
            double *part = zeros(a.rows * columns(&a, j));
            for (int64_t r = 0; r < a.rows; r++)
                memcpy(part + r * columns(&a, j), o.p + r * a.vocab + j * a.tile_out,
                       (size_t)columns(&a, j) * sizeof *part);
            CHECK(near(s.p[j], t, part, a.rows * columns(&a, j)));
        }
        for (int64_t i = 0; a.acc && i < a.rows * a.in; i++) o.dx[i] += dx0[a.row * a.in + i];
        for (int64_t i = 0; acc_bias && i < a.vocab; i++) o.db[i] += db0[i];
        const size_t skip = (size_t)(a.row * a.in) * tess_dtype_size(t);
        CHECK(near((char *)s.dx + skip, t, o.dx, a.rows * a.in));
        if (a.bias)
            CHECK(distance(db, TESS_F32, o.db, a.vocab) <= (t == TESS_BF16 ? 1e-2 : t == TESS_F16 ? 2e-3 : 1e-5));
        if (a.acc && around) /* the rows of other tasks are as they were */
            CHECK(distance(s.dx, t, dx0, a.row * a.in) == 0);
    }
    forget();
}

static void check_all(int64_t rows, int64_t in, int64_t vocab, int64_t tile_out, int64_t around, double size)
{
    env.loss_scale[0] = 1 / 64.0f;
    for (int i = 0; i < 8; i++) EACH_REAL(t)
    check(
        (tess_cross_entropy_arg){
            .rows = rows, .in = in, .vocab = vocab, .tile_out = tile_out, .bias = i & 1, .grad = i & 2, .acc = i & 4},
        i & 4, around, size, t);
}

/* Logits far below the cap, about it, and beyond it, where hardly a slope is left; and both sides of a strip. */
TEST(capped)
{
    static const float cap[] = {30, 2, 0.3f};
    env.loss_scale[0] = 1 / 64.0f;
    for (int k = 0; k < 3; k++)
        for (int i = 0; i < 4; i++) EACH_REAL(t)
    check((tess_cross_entropy_arg){.rows = 37,
                                   .in = 20,
                                   .vocab = 1009,
                                   .tile_out = 600,
                                   .cap = cap[k],
                                   .bias = i & 1,
                                   .grad = true,
                                   .acc = i & 2},
          i & 2, 3, 1, t);
}

TEST(odd_vocabulary)
{
    check_all(37, 20, 1009, 300, 0, 1);
}
TEST(middle_rows)
{
    check_all(20, 33, 130, 64, 11, 1);
}
TEST(one_tile)
{
    check_all(40, 16, 50, 64, 3, 1);
}
TEST(last_tile_of_one)
{
    check_all(9, 8, 129, 64, 0, 1);
}
TEST(several_blocks)
{
    check_all(300, 4, 560, 540, 5, 1);
}
TEST(large_logits)
{
    check_all(33, 64, 500, 200, 0, 30);
}

/* The gradient is that of the loss: finite differences of the oracle's own loss hold the oracle to it. */
TEST(oracle_by_differences)
{
    tess_cross_entropy_arg a = {.rows = 3, .in = 4, .vocab = 11, .tile_out = 11};
    const int32_t target[] = {2, -1, 10};
    double *x = new_values(12, 1), *w = new_values(44, 1), h = 1e-6;
    env.loss_scale[0] = 1;
    for (int k = 0; k < 2; k++) {
        a.cap = k ? 1.5f : 0;
        want o = oracle(&a, x, w, NULL, target);
        for (int i = 0; i < 12; i++) {
            const double at = x[i];
            x[i] = at + h;
            const double above = oracle(&a, x, w, NULL, target).loss;
            x[i] = at - h;
            const double below = oracle(&a, x, w, NULL, target).loss;
            x[i] = at;
            CHECK_NEAR(o.dx[i], (above - below) / (2 * h), 1e-7);
        }
    }
    forget();
}

/* A NaN among the logits must come out of the loss, wherever it is. */
TEST(nan_is_seen)
{
    for (int at = 0; at < 40; at += 13) {
        tess_cross_entropy_arg a = {.rows = 2, .in = 4, .vocab = 40, .tiles = 2, .tile_out = 20};
        double *x = new_values(8, 1), *w = new_values(160, 1);
        w[4 * at] = NAN;
        char *table = real_of(w, 160, TESS_F32);
        piece s = {.x = real_of(x, 8, TESS_F32), .target = bytes_of(8), .loss = poison(16)};
        s.w[0] = copy_of(table, 320), s.w[1] = copy_of(table + 320, 320);
        run_piece(&a, false, &s, TESS_F32);
        CHECK(isnan(s.loss[0]));
        forget();
    }
}

TEST(same_bits_twice)
{
    tess_cross_entropy_arg a = {.rows = 50, .in = 64, .vocab = 777, .tiles = 2, .tile_out = 400, .grad = true};
    double *x = new_values(50 * 64, 1), *w = new_values(777 * 64, 0.3);
    char *table = real_of(w, 777 * 64, TESS_BF16);
    piece s[2];
    for (int i = 0; i < 2; i++) {
        s[i] = (piece){.x = real_of(x, 50 * 64, TESS_BF16),
                       .target = bytes_of(200),
                       .loss = poison(16),
                       .dx = poison(50 * 128),
                       .w = {copy_of(table, 400 * 128), copy_of(table + 400 * 128, 377 * 128)}};
        run_piece(&a, false, &s[i], TESS_BF16);
    }
    CHECK(!memcmp(s[0].dx, s[1].dx, 50 * 128));
    CHECK(!memcmp(s[0].p[0], s[1].p[0], 50 * 800));
    CHECK(s[0].loss[0] == s[1].loss[0]);
    forget();
}
