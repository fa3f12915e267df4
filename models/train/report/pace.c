/* Who computes slower than others, see pace.h. A rank is judged by the means of whole windows, several in a row: what
 * else a machine does for a moment makes a task long, but not every task of half a minute. */
#include "models/train/report/pace.h"
#include <math.h>
#include <stdlib.h>

static const double WINDOW = 10, SLOW = 1 / 1.3, FINE = 1 / 1.15; /* seconds; shares of the others' rate */
enum { WINDOWS = 3 };

struct member {
    tess_pace_rank is;
    double flops, seconds; /* of this window */
    double rate, first;    /* of the last one, and of the first that it has a rate of */
    double share;          /* of the others' */
    int low, fine;         /* windows in a row */
    bool slow;
};

struct tess_pace {
    int ranks;
    double since; /* when the window began; 0: at the next step */
    double *other;
    struct member member[];
};

tess_pace *tess_pace_new(const tess_pace_rank *rank, int ranks)
{
    tess_pace *p = tess_alloc(sizeof *p + (size_t)ranks * sizeof p->member[0]);
    *p = (tess_pace){.ranks = ranks, .other = tess_alloc((size_t)ranks * sizeof *p->other)};
    for (int r = 0; r < ranks; r++) p->member[r] = (struct member){.is = rank[r]};
    return p;
}

void tess_pace_free(tess_pace *p)
{
    if (p) free(p->other);
    free(p);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The median rate of the others with the same work; of a rank that is alone with its own all others', each as a share
 * of what it was. NaN: there is none. */
static double median_of_others(tess_pace *p, int r, bool alone)
{
    int n = 0;
    for (int o = 0; o < p->ranks; o++) {
        const struct member *m = &p->member[o];
        if (o == r || !(m->rate > 0) || (!alone && m->is.flops != p->member[r].is.flops)) continue;
        p->other[n++] = alone ? m->rate / m->first : m->rate;
    }
    qsort(p->other, (size_t)n, sizeof *p->other, by_size);
    return n ? (p->other[n / 2] + p->other[(n - 1) / 2]) / 2 : (double)NAN;
}

static void judge(tess_pace *p, int r, int64_t step)
{
    struct member *m = &p->member[r];
    const double same = median_of_others(p, r, false);
    const bool alone = !(same > 0);
    m->share = alone ? m->rate / m->first / median_of_others(p, r, true) : m->rate / same;
    m->low = m->share < SLOW ? m->low + 1 : 0;
    m->fine = m->share > FINE ? m->fine + 1 : 0;
    if (!m->slow && m->low >= WINDOWS) {
        m->slow = true;
        tess_note("step %lld: rank %d on %s computes at %.2f of %s", (long long)step, r, m->is.host, m->share,
                  alone ? "its rate at the beginning, beside the others'" : "the others' rate");
    } else if (m->slow && m->fine >= WINDOWS) {
        m->slow = false;
        tess_note("step %lld: rank %d on %s computes as fast as it should again", (long long)step, r, m->is.host);
    }
}

static void end_window(tess_pace *p, int64_t step)
{
    for (int r = 0; r < p->ranks; r++) {
        struct member *m = &p->member[r];
        m->rate = m->seconds > 0 ? m->flops / m->seconds : 0;
        if (!(m->first > 0)) m->first = m->rate;
        m->flops = m->seconds = 0;
    }
    for (int r = 0; r < p->ranks; r++)
        if (p->member[r].rate > 0) judge(p, r, step);
}

void tess_pace_step(tess_pace *p, const int64_t *count, double now, tess_step_report *s)
{
    for (int r = 0; r < p->ranks && p->since > 0; r++) { /* the first step also makes what later ones find */
        p->member[r].flops += (double)count[2 * r];
        p->member[r].seconds += 1e-9 * (double)count[2 * r + 1];
    }
    if (p->since > 0 && now - p->since >= WINDOW) end_window(p, s->step + 1), p->since = now;
    if (!(p->since > 0)) p->since = now;
    for (int r = 0; r < p->ranks; r++) {
        const struct member *m = &p->member[r];
        if (!m->slow || (s->slow_rate > 0 && s->slow_rate <= m->share)) continue;
        s->slow_rank = r;
        s->slow_rate = m->share;
    }
}
