/* any_cum: along one dimension, what stands up to each place. Its gradients are recurrences that go the other way:
 *
 *     prod        dx[i] = y[i - 1] s[i],           s[i] = dy[i] + x[i + 1] s[i + 1]          (no division: x may be 0)
 *     logsumexp   dx[i] = exp(x[i] - y[i]) s[i],   s[i] = dy[i] + exp(y[i] - y[i + 1]) s[i + 1]
 *     max, min    dx[i] = s[i] where x[i] is the most, behind which s begins anew
 *
 * A strip goes over neighbours that do not meet, and carries doubles. */
#include "any.h"
#include "walk_impl.h"

enum { STRIP = 64, PART = 32 << 10 };

typedef struct task {
    const tess_any_cum_arg *a;
    const void *x;
    const float *y, *dy;
    void *out;
    int64_t strips, each; /* of an outer index; of a part */
} task;

/* Where place i of the way begins, from the first. */
static int64_t at(const tess_any_cum_arg *a, int64_t i)
{
    return (a->reverse ? a->n - 1 - i : i) * a->inner;
}

static double join(tess_cumulation fn, double s, double x)
{
    switch (fn) {
    case TESS_CUM_SUM:
        return s + x;
    case TESS_CUM_PROD:
        return s * x;
    case TESS_CUM_MAX:
        return x >= s || x != x ? x : s;
    case TESS_CUM_MIN:
        return x <= s || x != x ? x : s;
    default: { /* the larger one outside */
        const double most = x > s ? x : s, other = x > s ? s : x;
        return most == other && isinf(most) ? most : most + log1p(exp(other - most));
    }
    }
}

static void real_strip(const task *t, int64_t from, int64_t m)
{
    const tess_any_cum_arg *a = t->a;
    double s[STRIP];
    for (int64_t i = 0; i < a->n; i++) {
        const float *x = (const float *)t->x + from + at(a, i);
        float *y = (float *)t->out + from + at(a, i);
        for (int64_t j = 0; j < m; j++) {
            s[j] = i ? join(a->fn, s[j], (double)x[j]) : (double)x[j];
            y[j] = a->acc ? y[j] + (float)s[j] : (float)s[j];
        }
    }
}

static int32_t join_whole(tess_cumulation fn, int32_t s, int32_t x)
{
    switch (fn) {
    case TESS_CUM_SUM:
        return (int32_t)((uint32_t)s + (uint32_t)x);
    case TESS_CUM_PROD:
        return (int32_t)((uint32_t)s * (uint32_t)x);
    case TESS_CUM_MAX:
        return x > s ? x : s;
    default:
        return x < s ? x : s;
    }
}

static void whole_strip(const task *t, int64_t from, int64_t m)
{
    const tess_any_cum_arg *a = t->a;
    for (int64_t i = 0; i < a->n; i++) {
        const int32_t *x = (const int32_t *)t->x + from + at(a, i);
        int32_t *y = (int32_t *)t->out + from + at(a, i), *last = (int32_t *)t->out + from + at(a, i ? i - 1 : 0);
        for (int64_t j = 0; j < m; j++) y[j] = i ? join_whole(a->fn, last[j], x[j]) : x[j];
    }
}

/* One step back: what place i passes on, and, returned, its dx. `more` says that there is a place behind it. */
static double step_back(const task *t, int64_t k, int64_t before, int64_t behind, bool first, bool more, double *s)
{
    const float *xs = t->x;
    const double x = (double)xs[k], y = (double)t->y[k], dy = (double)t->dy[k];
    switch (t->a->fn) {
    case TESS_CUM_PROD:
        *s = more ? dy + (double)xs[behind] * *s : dy;
        return (first ? 1 : (double)t->y[before]) * *s;
    case TESS_CUM_LOGSUMEXP:
        *s = more && y > -INFINITY ? dy + exp(y - (double)t->y[behind]) * *s : dy;
        return x > -INFINITY ? exp(x - y) * *s : 0;
    default: {
        const double all = more ? dy + *s : dy;
        const bool most = x == y || x != x;
        *s = most ? 0 : all;
        return most ? all : 0;
    }
    }
}

static void back_strip(const task *t, int64_t from, int64_t m)
{
    const tess_any_cum_arg *a = t->a;
    double s[STRIP];
    for (int64_t i = a->n - 1; i >= 0; i--) {
        const int64_t k = from + at(a, i), before = from + at(a, i ? i - 1 : 0),
                      behind = from + at(a, i + 1 < a->n ? i + 1 : i);
        float *dx = (float *)t->out + k;
        for (int64_t j = 0; j < m; j++) {
            const float d = (float)step_back(t, k + j, before + j, behind + j, i == 0, i + 1 < a->n, &s[j]);
            dx[j] = a->acc ? dx[j] + d : d;
        }
    }
}

static void part(void *of, int64_t p)
{
    const task *t = of;
    const tess_any_cum_arg *a = t->a;
    const int64_t end = least(a->outer * t->strips, (p + 1) * t->each);
    for (int64_t k = p * t->each; k < end; k++) {
        const int64_t j = k % t->strips * STRIP, from = k / t->strips * a->n * a->inner + j,
                      m = least(STRIP, a->inner - j);
        (t->dy ? back_strip : a->element == TESS_REAL ? real_strip : whole_strip)(t, from, m);
    }
}

static task task_of(const tess_any_cum_arg *a)
{
    task t = {.a = a, .strips = (a->inner + STRIP - 1) / STRIP};
    const int64_t work = a->n * least(a->inner, STRIP);
    t.each = work < PART ? PART / work : 1;
    return t;
}

static int64_t any_cum_parts(const tess_codelet *cl, const void *arg)
{
    const task t = task_of(arg);
    (void)cl;
    return (t.a->outer * t.strips + t.each - 1) / t.each;
}

static void any_cum(const tess_work *w)
{
    task t = task_of(w->arg);
    t.x = w->buf[0].ptr, t.out = w->buf[1].ptr;
    tess_parts_run(any_cum_parts(NULL, w->arg), part, &t);
}
static void any_cum_backward(const tess_work *w)
{
    task t = task_of(w->arg);
    t.x = w->buf[0].ptr, t.y = w->buf[1].ptr, t.dy = w->buf[2].ptr, t.out = w->buf[3].ptr;
    tess_parts_run(any_cum_parts(NULL, w->arg), part, &t);
}
tess_codelet tess_any_cum[] = {{.name = "any_cum", .dtype = TESS_F32, .cpu = any_cum, .parts = any_cum_parts}};
tess_codelet tess_any_cum_backward[] = {
    {.name = "any_cum_backward", .dtype = TESS_F32, .cpu = any_cum_backward, .parts = any_cum_parts}};
