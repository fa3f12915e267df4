/* adafactor: transformers' Adafactor on a whole matrix (R,C), and on a vector, which is one of one column. Of second
 * moments it keeps the means of rows, R, and of columns, C. A state has those of its own rows; of the columns' mean it
 * has a share, a few a row: its moments are f32 (R, 1 + ceil(C / R)), and lie, travel and are saved with the rows,
 * whoever has these.
 *
 * Rows of states come together in one tile as they are for Muon, each with its moments and two numbers behind it. There
 * the means go on, the gradient is divided by their roots, and its own root mean square, and the parameter's, say how
 * long the step is. All sums go along rows, or down columns in the order of rows: they know of no tiles. */
#include "codelets/shared/parts.h"
#include "codelets/shared/update.h"

/* Behind the moments of a row: at first the sum of its parameters' squares, then what is left of these by decay; and
 * the length of the step. */
enum { SQUARES = 0, LEFT = 0, LENGTH = 1, NUMBERS = 2 };

static int64_t width_of(int64_t rows, int64_t columns)
{
    return columns == 1 ? 1 : 1 + (columns + rows - 1) / rows;
}

static int64_t stride_of(int64_t rows, int64_t columns)
{
    return columns + width_of(rows, columns) + NUMBERS;
}

/* ---- rows of a state ---- */

struct rows {
    tess_update_view u;
    const float *from; /* the parameter's, where they are to be squared */
    int64_t columns, width, stride;
    float scale;
};

static struct rows rows_of(const tess_work *w)
{
    struct rows r = {.u = tess_update_view_of(w)};
    r.columns = r.u.a->columns, r.width = r.u.a->kept.width;
    r.stride = r.columns + r.width + NUMBERS;
    return r;
}

TESS_CLONES static void gather_part(void *of, int64_t k)
{
    const struct rows *r = of;
    const int64_t each = tess_part_rows(r->columns), C = r->columns, all = r->u.a->n / C;
    for (int64_t i = k * each; i < (k + 1) * each && i < all; i++) {
        float *x = r->u.master + i * r->stride;
        const float *g = r->u.grad + i * C;
#pragma omp simd
        for (int64_t j = 0; j < C; j++) x[j] = g[j] * r->scale;
        memcpy(x + C, r->u.moment[0] + i * r->width, (size_t)r->width * sizeof *x);
        x[C + r->width + SQUARES] = (float)tess_squares(r->from + i * C, C);
    }
}

/* The matrix in the place of the master, and the parameter in that of the copy. */
static void gather(const tess_work *w)
{
    struct rows r = rows_of(w);
    if (!tess_update_begins(w, &r.u, &r.scale)) return;
    r.from = (const float *)w->buf[4 + r.u.a->moments].ptr + r.u.a->at_copy;
    tess_parts_run(tess_parts_of(r.u.a->n / r.columns, tess_part_rows(r.columns)), gather_part, &r);
}

TESS_INLINE void apply_as(const struct rows *r, int64_t i, tess_dtype copy)
{
    const float *x = r->u.grad + i * r->stride, *numbers = x + r->columns + r->width;
    const float left = numbers[LEFT], length = numbers[LENGTH];
    float *p = r->u.master + i * r->columns;
#pragma omp simd
    for (int64_t j = 0; j < r->columns; j++) {
        p[j] = p[j] * left - length * x[j];
        if (copy != TESS_F32) tess_store(r->u.copy, i * r->columns + j, copy, p[j]);
    }
    memcpy(r->u.moment[0] + i * r->width, x + r->columns, (size_t)r->width * sizeof *x);
}
TESS_CLONES static void apply_part(void *of, int64_t k)
{
    const struct rows *r = of;
    const int64_t each = tess_part_rows(r->columns), all = r->u.a->n / r->columns;
    for (int64_t i = k * each; i < (k + 1) * each && i < all; i++) TESS_BY_DTYPE(r->u.a->copy, apply_as, r, i);
}

static void apply(const tess_work *w)
{
    struct rows r = rows_of(w);
    if (tess_update_begins(w, &r.u, &r.scale))
        tess_parts_run(tess_parts_of(r.u.a->n / r.columns, tess_part_rows(r.columns)), apply_part, &r);
}

/* ---- the matrix ---- */

struct matrix {
    const tess_optimizer *o;
    float *x;
    int64_t rows, columns, width, stride;
    double keeps; /* of means */
    double mean;  /* of the rows' means */
    double *root; /* [columns]: 1 over the root of its mean */
    double *sum;  /* [rows] */
};
enum { COLUMNS = 64 }; /* of a part */

static void go_on(const struct matrix *m, float *mean, double sum, int64_t n)
{
    *mean = (float)(m->keeps * (double)*mean + (1 - m->keeps) * (sum / (double)n + m->o->eps));
}

TESS_CLONES static void means_of_rows(void *of, int64_t k)
{
    const struct matrix *m = of;
    const int64_t each = tess_part_rows(m->columns);
    for (int64_t i = k * each; i < (k + 1) * each && i < m->rows; i++) {
        float *x = m->x + i * m->stride;
        go_on(m, x + m->columns, tess_squares(x, m->columns), m->columns);
    }
}

TESS_CLONES static void means_of_columns(void *of, int64_t k)
{
    const struct matrix *m = of;
    double sum[COLUMNS] = {0};
    const int64_t first = k * COLUMNS, n = m->columns - first < COLUMNS ? m->columns - first : COLUMNS;
    for (int64_t i = 0; i < m->rows; i++) {
        const float *x = m->x + i * m->stride + first;
#pragma omp simd
        for (int64_t j = 0; j < n; j++) sum[j] += (double)x[j] * (double)x[j];
    }
    for (int64_t j = 0; j < n; j++) {
        const int64_t at = first + j, share = m->width - 1;
        float *mean = m->x + at / share * m->stride + m->columns + 1 + at % share;
        go_on(m, mean, sum[j], m->rows);
        m->root[at] = 1 / sqrt((double)*mean);
    }
}

TESS_CLONES static void divide(void *of, int64_t k)
{
    const struct matrix *m = of;
    const int64_t each = tess_part_rows(m->columns);
    for (int64_t i = k * each; i < (k + 1) * each && i < m->rows; i++) {
        float *x = m->x + i * m->stride;
        const double by = 1 / sqrt((double)x[m->columns] / m->mean);
#pragma omp simd
        for (int64_t j = 0; j < m->columns; j++) x[j] = (float)((double)x[j] * by * m->root[j]);
        m->sum[i] = tess_squares(x, m->columns);
    }
}

/* The root of the mean square, of rows' sums in their order. */
static double root_mean(const struct matrix *m, const double *sum)
{
    double all = 0;
    for (int64_t i = 0; i < m->rows; i++)
        all += sum ? sum[i] : (double)m->x[i * m->stride + m->columns + m->width + SQUARES];
    return sqrt(all / (double)(m->rows * m->columns));
}

static void whole(const tess_work *w)
{
    const tess_whole_arg *a = w->arg;
    const tess_update_view u = tess_update_view_of(w);
    const tess_optimizer *o = u.a->optimizer;
    const double step = (double)u.env->updates + 1;
    struct matrix m = {.o = o, .x = u.master, .rows = a->rows, .columns = a->columns, .root = w->buf[1].ptr};
    const int64_t parts = tess_parts_of(m.rows, tess_part_rows(m.columns));
    float unused;
    if (!tess_update_begins(w, &u, &unused)) return;
    m.width = width_of(m.rows, m.columns), m.stride = stride_of(m.rows, m.columns);
    m.sum = m.root + m.columns, m.keeps = 1 - pow(step, o->decay_rate);
    const double size = o->scale_parameter ? fmax(o->eps2, root_mean(&m, NULL)) : 1;
    tess_parts_run(parts, means_of_rows, &m);
    for (int64_t i = 0; i < m.rows; i++) m.mean += (double)m.x[i * m.stride + m.columns];
    m.mean /= (double)m.rows;
    m.root[0] = 1 / sqrt(m.mean);
    if (m.columns > 1) tess_parts_run(tess_parts_of(m.columns, COLUMNS), means_of_columns, &m);
    tess_parts_run(parts, divide, &m);
    const double most = o->warmup_init ? 1e-6 * step : u.env->lr, relative = fmin(most, 1 / sqrt(step));
    const double lr = (o->relative_step ? relative : u.env->lr) * u.a->lr_scale * size;
    const double length = lr / fmax(1, root_mean(&m, m.sum) / o->clip_threshold);
    for (int64_t i = 0; i < m.rows; i++) {
        float *numbers = m.x + i * m.stride + m.columns + m.width;
        numbers[LEFT] = (float)(1 - lr * u.a->weight_decay), numbers[LENGTH] = (float)length;
    }
}

static size_t room(const tess_whole_arg *a, tess_dtype t)
{
    (void)t;
    return (size_t)(a->columns + a->rows) * sizeof(double);
}

/* Of a whole matrix as well, whose argument begins with one. */
static tess_cost cost(const void *arg)
{
    const tess_update_arg *a = arg;
    return (tess_cost){.bytes = 16 * (double)a->n, .rows = (double)(a->n / a->columns)};
}
static int64_t parts(const tess_codelet *cl, const void *arg)
{
    const tess_update_arg *a = arg;
    (void)cl;
    return tess_parts_of(a->n / a->columns, tess_part_rows(a->columns));
}
#define ON_CPU(named, t, body)                                                                                         \
    [t] = {.name = named, .dtype = t, .cpu = body, .cpu_alone = true, .cost = cost, .parts = parts}
static tess_codelet update_codelet[] = {ON_CPU("adafactor", TESS_F32, gather)},
                    apply_codelet[] = {ON_CPU("adafactor_apply", TESS_F32, apply)},
                    whole_codelet[] = {ON_CPU("adafactor_whole", TESS_F32, whole),
                                       ON_CPU("adafactor_whole", TESS_BF16, whole)};

static tess_status check(const tess_optimizer *o)
{
    if (o->keeping != TESS_KEEP_F32)
        return tess_error(TESS_INVALID, "moments", "Adafactor's are means of rows and columns, and stay fp32");
    if (o->eps > 0 && isfinite(o->eps) && o->eps2 >= 0 && isfinite(o->eps2) && o->clip_threshold > 0 &&
        o->decay_rate < 0 && isfinite(o->decay_rate))
        return TESS_OK;
    return tess_error(
        TESS_INVALID, "optimizer",
        "eps %g, eps2 %g, clip_threshold %g, decay_rate %g (eps and clip_threshold are above 0, eps2 is no "
        "less, decay_rate is below 0)",
        o->eps, o->eps2, o->clip_threshold, o->decay_rate);
}

const tess_optimizer_kind tess_adafactor_kind = {.name = "Adafactor",
                                                 .update = update_codelet,
                                                 .moment = {"exp_avg_sq_factors"},
                                                 .positive = 1,
                                                 .whole = whole_codelet,
                                                 .apply = apply_codelet,
                                                 .room = room,
                                                 .width = width_of,
                                                 .stride = stride_of,
                                                 .check = check};
