/* exact: sums of doubles that do not depend on the order or the grouping of their terms. A sum is a fixed-point number
 * wide enough for every double, 32 bits in each of its limbs, so adding to it is exact, and so is adding one to
 * another. Global norms and losses are such sums: however a parameter is sliced over ranks, or micro-batches are shared
 * out, the value is the same to the last bit. */
#include "codelets/shared/exact.h"
#include "codelets/shared/vector.h"

size_t tess_exact_bytes(void)
{
    return sizeof(tess_exact);
}

double tess_exact_mean(const void *sums, int losses)
{
    return tess_exact_means(sums, 2 * losses);
}

double tess_exact_value(const void *sum)
{
    return tess_exact_read(sum);
}

static void add_limbs(tess_exact *sum, const tess_exact *e)
{
    for (int k = 0; k < TESS_EXACT_LIMBS; k++) sum->limb[k] += e->limb[k];
    sum->odd += e->odd;
}

void tess_exact_merge(void *sum, const void *other)
{
    add_limbs(sum, other);
    tess_exact_carry(sum);
}

/* ---- bodies ---- */

static void exact_add(const tess_work *w)
{
    const tess_exact_arg *a = w->arg;
    tess_exact *sum = w->buf[0].ptr;
    if (!a->acc) memset(sum, 0, (size_t)a->n * sizeof *sum);
    for (unsigned b = 1; b < w->nbuf; b++) {
        const double *x = w->buf[b].ptr;
        const tess_exact *e = w->buf[b].ptr;
        for (int64_t i = 0; i < a->n; i++)
            if (a->doubles)
                tess_exact_take(&sum[i], x[i]);
            else
                add_limbs(&sum[i], &e[i]);
    }
    for (int64_t i = 0; i < a->n; i++) tess_exact_carry(&sum[i]);
}

static void exact_round(const tess_work *w)
{
    const tess_exact_arg *a = w->arg;
    double *x = w->buf[0].ptr;
    const tess_exact *sum = w->buf[1].ptr;
    if (a->means) {
        x[0] = tess_exact_means(sum, a->means);
        x[1] = 1;
        return;
    }
    for (int64_t i = 0; i < a->n; i++) x[i] = tess_exact_value(sum + i);
}

/* Row by row, each in an order that its length alone decides: pieces of whole rows add up to the same. */
TESS_CLONES static void square_sum(const tess_work *w)
{
    const tess_square_arg *a = w->arg;
    const float *x = (const float *)w->buf[0].ptr + a->first;
    tess_exact *sum = w->buf[1].ptr;
    memset(sum, 0, sizeof *sum);
    for (int64_t i = 0; i < a->n; i += a->row)
        tess_exact_take(sum, tess_squares(x + i, a->n - i < a->row ? a->n - i : a->row));
    tess_exact_carry(sum);
    /* Where the loss is not finite, that is what the step reports. */
    if (w->nbuf > 2 && isfinite(*(const double *)w->buf[2].ptr) && sum->odd)
        tess_work_fail(w, "%s: the gradient is not finite", a->name);
}

TESS_F32_CODELET(exact_add, .either = true)
TESS_F32_CODELET(exact_round, .either = true)
TESS_F32_CODELET(square_sum, .either = true, .together = true)
