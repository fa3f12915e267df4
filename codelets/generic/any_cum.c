/* any_cum: along one dimension, what stands up to each place. A strip goes over neighbours that do not meet. */
#include "codelets/generic/cum_impl.h"
#include "codelets/generic/walk.h"

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

static void real_strip(const task *t, int64_t from, int64_t m)
{
    const tess_any_cum_arg *a = t->a;
    double s[STRIP];
    for (int64_t i = 0; i < a->n; i++) {
        const float *x = (const float *)t->x + from + at(a, i);
        float *y = (float *)t->out + from + at(a, i);
        for (int64_t j = 0; j < m; j++) {
            s[j] = i ? tess_cum_join(a->fn, s[j], (double)x[j]) : (double)x[j];
            y[j] = a->acc ? y[j] + (float)s[j] : (float)s[j];
        }
    }
}

static void whole_strip(const task *t, int64_t from, int64_t m)
{
    const tess_any_cum_arg *a = t->a;
    for (int64_t i = 0; i < a->n; i++) {
        const int32_t *x = (const int32_t *)t->x + from + at(a, i);
        int32_t *y = (int32_t *)t->out + from + at(a, i), *last = (int32_t *)t->out + from + at(a, i ? i - 1 : 0);
        for (int64_t j = 0; j < m; j++) y[j] = i ? tess_cum_join_whole(a->fn, last[j], x[j]) : x[j];
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
            const float d = (float)tess_cum_back(a->fn, t->x, t->y, t->dy, k + j, before + j, behind + j, i == 0,
                                                 i + 1 < a->n, &s[j]);
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
TESS_F32_CODELET(any_cum, .parts = any_cum_parts)
TESS_F32_CODELET(any_cum_backward, .parts = any_cum_parts)
