/* muon: torch.optim.Muon's step on a whole matrix. Its tiles' momenta go on where they are, and what is to be stepped
 * along comes together in one tile, in fp32; there Newton and Schulz's iteration makes it nearly orthogonal; the tiles'
 * masters take their rows of it. The iteration is one task, so that its bits depend on the matrix alone.
 *
 * X becomes a X + (b A + c A A) X, with A = X X^T or, where there are more rows than columns, the same from the other
 * side. In 16 bits all is rounded where torch rounds it, to bf16. */
#include "codelets/optimizers/muon_impl.h"
#include "codelets/optimizers/update_span_impl.h"
#include "codelets/products/mm.h"

TESS_UPDATE_CODELET(muon, 1, 0)
TESS_UPDATE_CODELET(muon_apply, 0, 0)

/* The square that the iteration is about has as many rows as the shorter side. */
static int64_t side_of(const tess_whole_arg *a)
{
    return least(a->rows, a->columns);
}

/* square f32 (side,side), then in the dtype: x (rows,columns), a (side,side) */
static size_t room(const tess_whole_arg *a, tess_dtype t)
{
    const size_t square = (size_t)(side_of(a) * side_of(a));
    return 4 * square + tess_dtype_size(t) * ((size_t)(a->rows * a->columns) + square);
}

/* to = (a from + b more) / over, element by element. */
struct mix {
    void *to;
    const void *from;
    const float *more; /* or NULL */
    tess_dtype t, of;  /* of `to`, and of `from` */
    float a, b, over;
    int64_t n;
};
TESS_INLINE void mix_as(const struct mix *m, int64_t first, int64_t end, tess_dtype of, tess_dtype t)
{
#pragma omp simd
    for (int64_t i = first; i < end; i++)
        tess_store(m->to, i, t, (m->a * tess_load(m->from, i, of) + (m->more ? m->b * m->more[i] : 0.0f)) / m->over);
}
TESS_CLONES static void mix_part(void *of, int64_t k)
{
    const struct mix *m = of;
    const int64_t first = k * TESS_PART_ELEMENTS, end = least(first + TESS_PART_ELEMENTS, m->n);
    if (m->t == TESS_F32 && m->of == TESS_F32)
        mix_as(m, first, end, TESS_F32, TESS_F32);
    else if (m->t == TESS_F32)
        mix_as(m, first, end, TESS_BF16, TESS_F32);
    else if (m->of == TESS_F32)
        mix_as(m, first, end, TESS_F32, TESS_BF16);
    else
        mix_as(m, first, end, TESS_BF16, TESS_BF16);
}
static void mix(struct mix m)
{
    tess_parts_run(tess_parts_of(m.n, TESS_PART_ELEMENTS), mix_part, &m);
}

TESS_CLONES static double length_of(const float *x, int64_t rows, int64_t columns)
{
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += tess_squares(x + r * columns, columns);
    return sqrt(sum);
}

static float rounded(double x, tess_dtype t)
{
    float y;
    tess_store(&y, 0, t, (float)x);
    return tess_load(&y, 0, t);
}

/* x f32 (rows,columns), room: it stays as it is where the update is none. */
static void orthogonal(const tess_work *w, tess_dtype t)
{
    const tess_whole_arg *of = w->arg;
    const tess_update_view u = tess_update_view_of(w);
    const int64_t rows = of->rows, columns = of->columns, n = rows * columns, side = side_of(of);
    const bool wide = rows <= columns;
    float unused, *x = u.master, *square = w->buf[1].ptr;
    void *half = square + side * side, *a = tess_at_mut(half, n, t);
    if (!tess_update_begins(w, &u, &unused)) return;
    mix((struct mix){half, x, NULL, t, TESS_F32, 1, 0, 1, n});
    mix((struct mix){x, half, NULL, TESS_F32, t, 1, 0, 1, n});
    const float length = rounded(length_of(x, rows, columns), t), most = fmaxf(length, rounded(1e-7, t));
    mix((struct mix){half, x, NULL, t, TESS_F32, 1, 0, most, n});
    tess_mm gram = {
        .m = side, .n = side, .k = n / side, .lda = columns, .ldb = columns, .ldc = side, .in = t, .out = t};
    gram.ta = !wide, gram.tb = wide;
    const tess_mm twice = {
        .m = side, .n = side, .k = side, .lda = side, .ldb = side, .ldc = side, .in = t, .out = TESS_F32};
    tess_mm step = {.m = rows, .n = columns, .k = side, .ldc = columns, .in = t, .out = TESS_F32, .acc = true};
    step.lda = wide ? side : columns, step.ldb = columns;
    for (int k = 0; k < u.a->optimizer->ns_steps; k++) {
        tess_mm_run(&gram, half, half, a);
        tess_mm_run(&twice, a, a, square);
        mix((struct mix){a, a, square, t, t, -4.7750f, 2.0315f, 1, side * side});
        mix((struct mix){x, half, NULL, TESS_F32, t, 3.4445f, 0, 1, n});
        tess_mm_run(&step, wide ? a : half, wide ? half : a, x);
        mix((struct mix){half, x, NULL, t, TESS_F32, 1, 0, 1, n});
    }
    mix((struct mix){x, half, NULL, TESS_F32, t, 1, 0, 1, n});
}
static void orthogonal_f32(const tess_work *w)
{
    orthogonal(w, TESS_F32);
}
static void orthogonal_bf16(const tess_work *w)
{
    orthogonal(w, TESS_BF16);
}

static tess_cost orthogonal_cost(const void *arg)
{
    const tess_whole_arg *a = arg;
    const double n = (double)(a->rows * a->columns), side = (double)side_of(a), steps = a->update.optimizer->ns_steps;
    return (tess_cost){.flops = steps * side * (4 * n + 2 * side * side), .bytes = 4 * n, .rows = (double)a->rows};
}
static int64_t orthogonal_parts(const tess_codelet *cl, const void *arg)
{
    const tess_whole_arg *a = arg;
    const int64_t side = side_of(a);
    return tess_mm_parts((tess_mm){.m = a->rows,
                                   .n = a->columns,
                                   .k = side,
                                   .lda = a->rows <= a->columns ? side : a->columns,
                                   .ldb = a->columns,
                                   .ldc = a->columns,
                                   .in = cl->dtype,
                                   .out = TESS_F32,
                                   .acc = true});
}
tess_codelet tess_muon_orthogonal[] = {
#define ORTHOGONAL(t, body)                                                                                            \
    [t] = {.name = "muon_orthogonal",                                                                                  \
           .dtype = t,                                                                                                 \
           .cpu = body,                                                                                                \
           .cpu_alone = true,                                                                                          \
           .cost = orthogonal_cost,                                                                                    \
           .parts = orthogonal_parts}
    ORTHOGONAL(TESS_F32, orthogonal_f32), ORTHOGONAL(TESS_BF16, orthogonal_bf16)};

/* torch's adjust_lr_fn. */
static double stretch(const tess_optimizer *o, double rows, double columns)
{
    return o->match_rms ? 0.2 * sqrt(fmax(rows, columns)) : sqrt(fmax(1, rows / columns));
}

static tess_status check(const tess_optimizer *o)
{
    if (!(o->momentum >= 0 && o->momentum < 1))
        return tess_error(TESS_INVALID, "optimizer", "momentum %g (expected 0 to less than 1)", o->momentum);
    if (o->ns_steps < 1 || o->ns_steps > 99)
        return tess_error(TESS_INVALID, "optimizer", "ns_steps %d (expected 1 to 99)", o->ns_steps);
    return tess_adamw_kind.check(o);
}

const tess_optimizer_kind tess_muon_kind = {.name = "Muon",
                                            .update = tess_update_muon,
                                            .moment = {"momentum_buffer"},
                                            .whole = tess_muon_orthogonal,
                                            .room = room,
                                            .stretch = stretch,
                                            .apply = tess_update_muon_apply,
                                            .others = &tess_adamw_kind,
                                            .check = check};
