/* any_window: the sum, most or least of what lies in a window, at each of its positions. Runs go along the last
 * dimension; windows of one element do not overlap along the first ones, where parts are cut. */
#include "codelets/generic.h"
#include "codelets/generic/walk.h"

enum { STRIP = 256, PART = 64 << 10 };

typedef struct strip strip;
/* n elements of x, `by` apart, that the strip's positions from j on meet. */
typedef void (*met_body)(strip *s, const float *x, int64_t at, int64_t by, int64_t j, int64_t n);
struct strip {
    const tess_any_window_arg *a;
    union {
        float real[STRIP];
        int32_t whole[STRIP];
    } best;
    int32_t place[STRIP]; /* where the first of the best is, behind `from` in x; -1: nothing is there */
    int64_t from;
    float *dx;
    const float *dy;
};

/* ---- what is done with what a window has ---- */

TESS_CLONES static void add_run(float *to, const float *x, int64_t by, int64_t n)
{
    if (by == 1) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] += x[i];
    } else
        for (int64_t i = 0; i < n; i++) to[i] += x[i * by];
}
/* Of what is no number the first stays. */
TESS_CLONES static void most_run(float *to, const float *x, int64_t by, int64_t n)
{
    if (by == 1) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) to[i] = x[i] > to[i] || x[i] != x[i] ? x[i] : to[i];
    } else
        for (int64_t i = 0; i < n; i++) to[i] = x[i * by] > to[i] || x[i * by] != x[i * by] ? x[i * by] : to[i];
}
static void least_run(float *to, const float *x, int64_t by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) to[i] = x[i * by] < to[i] || x[i * by] != x[i * by] ? x[i * by] : to[i];
}
static void whole_run(tess_reduction fn, int32_t *to, const int32_t *x, int64_t by, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const int32_t v = x[i * by];
        if (fn == TESS_REDUCE_SUM)
            to[i] = (int32_t)((uint32_t)to[i] + (uint32_t)v);
        else if (fn == TESS_REDUCE_MAX ? v > to[i] : v < to[i])
            to[i] = v;
    }
}

static void join(strip *s, const float *x, int64_t at, int64_t by, int64_t j, int64_t n)
{
    const tess_any_window_arg *a = s->a;
    if (a->element != TESS_REAL)
        whole_run(a->fn, s->best.whole + j, (const int32_t *)x + at, by, n);
    else
        (a->fn == TESS_REDUCE_SUM   ? add_run
         : a->fn == TESS_REDUCE_MAX ? most_run
                                    : least_run)(s->best.real + j, x + at, by, n);
}

/* Of equals the first, and of what is no number the first stays: without a branch, for vectors. */
TESS_INLINE void find_run(float *best, int32_t *place, const float *x, int64_t at, int64_t by, int64_t n, bool most)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        const float v = x[i * by], old = best[i];
        const bool better = (most ? v > old : v < old) || v != v, take = place[i] < 0 || (old == old && better);
        best[i] = take ? v : old;
        place[i] = take ? (int32_t)(at + i * by) : place[i];
    }
}
TESS_CLONES static void find_most(float *best, int32_t *place, const float *x, int64_t at, int64_t by, int64_t n)
{
    if (by == 1)
        find_run(best, place, x, at, 1, n, true);
    else
        find_run(best, place, x, at, by, n, true);
}
static void find(strip *s, const float *x, int64_t at, int64_t by, int64_t j, int64_t n)
{
    if (s->a->fn == TESS_REDUCE_MAX)
        find_most(s->best.real + j, s->place + j, x + at, at - s->from, by, n);
    else
        find_run(s->best.real + j, s->place + j, x + at, at - s->from, by, n, false);
}

static void spread(strip *s, const float *x, int64_t at, int64_t by, int64_t j, int64_t n)
{
    const int64_t dy_by = s->a->y[s->a->rank - 1];
    (void)x;
    for (int64_t i = 0; i < n; i++) s->dx[at + i * by] += s->dy[(j + i) * dy_by];
}

/* ---- where windows are ---- */

/* Positions o .. o + n of the last dimension, whose others are `at`; x begins at `from`. */
static void visit(strip *s, const float *x, int64_t from, const int64_t *at, int64_t o, int64_t n, met_body met)
{
    const tess_any_window_arg *a = s->a;
    const int first = a->lead, last = a->rank - 1;
    const int64_t places = walk_size(a->size + first, a->rank - first), by = a->x[last];
    walk w = walk_begin(a->size + first, a->rank - first, 0);
    for (int64_t k = 0; k < places; k++, walk_on(&w, 1)) {
        int64_t to = from;
        bool inside = true;
        for (int d = first; d < last && inside; d++) {
            const int64_t i =
                walk_meet(at[d] * a->step[d] + w.at[d - first] * a->apart[d] - a->pad[d], a->between[d], a->in[d]);
            inside = i >= 0;
            to += i * a->x[d];
        }
        if (!inside) continue;
        const int64_t low = a->pad[last] - w.at[last - first] * a->apart[last];
        if (a->between[last] == 1) {
            int64_t begin, end;
            walk_span(a->step[last], low, a->in[last], o, n, &begin, &end);
            if (end > begin)
                met(s, x, to + ((o + begin) * a->step[last] - low) * by, a->step[last] * by, begin, end - begin);
            continue;
        }
        for (int64_t j = 0; j < n; j++) {
            const int64_t i = walk_meet((o + j) * a->step[last] - low, a->between[last], a->in[last]);
            if (i >= 0) met(s, x, to + i * by, by, j, 1);
        }
    }
}

static void begin(strip *s, int64_t n)
{
    const tess_any_window_arg *a = s->a;
    for (int64_t j = 0; j < n; j++) {
        s->place[j] = -1;
        if (a->element == TESS_REAL)
            s->best.real[j] = a->fn == TESS_REDUCE_SUM ? 0 : a->fn == TESS_REDUCE_MAX ? -INFINITY : INFINITY;
        else
            s->best.whole[j] = a->fn == TESS_REDUCE_SUM ? 0 : a->fn == TESS_REDUCE_MAX ? INT32_MIN : INT32_MAX;
    }
}

/* x; y or dy, at its first position; dx or NULL. */
static void one(strip *s, const float *x, int64_t from, float *y, const int64_t *at, int64_t o, int64_t n)
{
    const tess_any_window_arg *a = s->a;
    const int64_t by = a->y[a->rank - 1];
    begin(s, n);
    s->from = from;
    if (!s->dx) {
        visit(s, x, from, at, o, n, join);
        for (int64_t j = 0; j < n; j++) y[j * by] = s->best.real[j];
        return;
    }
    s->dy = y;
    visit(s, x, from, at, o, n, a->fn == TESS_REDUCE_SUM ? spread : find);
    for (int64_t j = 0; j < n && a->fn != TESS_REDUCE_SUM; j++)
        if (s->place[j] >= 0) s->dx[from + s->place[j]] += y[j * by];
}

/* ---- bodies ---- */

typedef struct task {
    const tess_any_window_arg *a;
    const float *x;
    float *y, *dx;
    int64_t each; /* of the lead, that a part has */
} task;

static void part(void *of, int64_t p)
{
    const task *t = of;
    const tess_any_window_arg *a = t->a;
    const int lead = a->lead, last = a->rank - 1;
    const int64_t all = walk_size(a->out, lead), end = least(all, (p + 1) * t->each),
                  positions = walk_size(a->out + lead, last - lead);
    strip s;
    int64_t reach = 0;
    s.a = a, s.dx = t->dx;
    for (int d = lead; d <= last; d++) reach += (a->in[d] - 1) * a->x[d];
    TESS_ASSERT(reach < INT32_MAX); /* of what one of the lead has */
    for (int64_t k = p * t->each; k < end; k++) {
        const walk first = walk_begin(a->out, lead, k);
        walk w = walk_begin(a->out + lead, last - lead, 0);
        for (int64_t j = 0; j < positions; j++, walk_on(&w, 1)) {
            int64_t at[TESS_RANK_MOST] = {0};
            for (int d = lead; d < last; d++) at[d] = w.at[d - lead];
            float *y = t->y + walk_at(&first, a->y) + walk_at(&w, a->y + lead);
            for (int64_t o = 0; o < a->out[last]; o += STRIP)
                one(&s, t->x, walk_at(&first, a->x), y + o * a->y[last], at, o, least(STRIP, a->out[last] - o));
        }
    }
}

static task task_of(const tess_any_window_arg *a)
{
    task t = {.a = a};
    const int64_t work = walk_size(a->out + a->lead, a->rank - a->lead) * walk_size(a->size, a->rank);
    t.each = work < PART ? PART / work : 1;
    return t;
}

static int64_t any_window_parts(const tess_codelet *cl, const void *arg)
{
    const task t = task_of(arg);
    (void)cl;
    return (walk_size(t.a->out, t.a->lead) + t.each - 1) / t.each;
}

static void any_window(const tess_work *w)
{
    task t = task_of(w->arg);
    t.x = w->buf[0].ptr, t.y = w->buf[1].ptr;
    tess_parts_run(any_window_parts(NULL, w->arg), part, &t);
}
static void any_window_backward(const tess_work *w)
{
    task t = task_of(w->arg);
    t.x = w->buf[0].ptr, t.y = w->buf[1].ptr, t.dx = w->buf[2].ptr;
    tess_parts_run(any_window_parts(NULL, w->arg), part, &t);
}
TESS_F32_CODELET(any_window, .parts = any_window_parts)
TESS_F32_CODELET(any_window_backward, .parts = any_window_parts)
