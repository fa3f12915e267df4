/* Where the time goes, by codelet: busy in bodies, waiting for data, scheduling around the task, and idle for the rest.
 */
#include "runtime/gpu/gpu.h"
#include "runtime/list/list.h"
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static double since;
static bool profiles;

double tess_submit_seconds;

void tess_profile_start(bool profile)
{
    profiles = profile;
}

/* ---- counting, on the workers ---- */

/* From the end of a CPU's body to the begin of its worker's next, where that found its task at its first look: what
 * StarPU and the runtime take around a body. Written by that worker alone. */
static struct around {
    double ended, seconds;
    uint64_t times;
} around[TESS_MAX_WORKERS];

static void count_around(int worker, double begin, double end)
{
    struct around *a = &around[worker];
    if (!tess_idle_rested() && a->ended > 0) {
        a->seconds += begin - a->ended;
        a->times++;
    }
    a->ended = end;
}

/* A lock that is held for a look at few numbers; only while times are kept. */
static void count_shape(const tess_task *t, double seconds, uint64_t tasks)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    struct tess_codelet_state *s = t->cl->state;
    const tess_cost c = tess_task_cost(t);
    int i = 0;
    pthread_mutex_lock(&lock);
    while (i < s->shapes && (s->shape[i].cost.flops != c.flops || s->shape[i].cost.bytes != c.bytes ||
                             s->shape[i].cost.passes != c.passes || s->shape[i].cost.rows != c.rows))
        i++;
    if (i < TESS_PROFILE_SHAPES_OF_ONE) {
        if (i == s->shapes) s->shape[s->shapes++] = (struct tess_shape){.cost = c};
        s->shape[i].tasks += tasks;
        s->shape[i].busy += seconds;
    }
    pthread_mutex_unlock(&lock);
}

static void count_task(struct tess_tally *tally, const tess_task *t)
{
    const tess_cost cost = tess_task_cost(t);
    if (t->choice) t->cl->state->chosen = true;
    tally->tasks++;
    tally->flops += cost.flops;
    tally->bytes += cost.flops > 0 ? cost.passes : cost.bytes;
}

void tess_profile_helped(const tess_task *t, int worker, double begin, double end)
{
    t->cl->state->tally[worker].busy += end - begin;
    if (profiles && tess_gpu_workers() == 0) count_shape(t, end - begin, 0);
}

void tess_profile_ran(const tess_task *t, int worker, double begin, double end, const tess_parts_times *parts)
{
    struct tess_tally *tally = &t->cl->state->tally[worker];
    tally->busy += end - begin - parts->waited;
    tally->alone += end - begin - parts->waited - parts->shared + parts->longest;
    count_task(tally, t);
    if (!profiles) return;
    if (tess_gpu_workers() == 0) count_shape(t, end - begin - parts->waited, 1);
    count_around(worker, begin, end);
}

void tess_profile_launched(const tess_task *t, int worker)
{
    count_task(&t->cl->state->tally[worker], t);
}

static double between(struct timespec a, struct timespec b)
{
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

void tess_profile_task(const tess_task *t, const struct starpu_profiling_task_info *i)
{
    if (!profiles || !i || i->workerid < 0) return;
    struct tess_tally *tally = &t->cl->state->tally[i->workerid];
    if (tess_on_gpu(i->workerid)) {
        tally->busy += between(i->start_time, i->end_time);
        count_shape(t, between(i->start_time, i->end_time), 1);
    }
    tally->waiting += between(i->acquire_data_start_time, i->acquire_data_end_time);
    tally->scheduling += between(i->push_start_time, i->push_end_time) + between(i->pop_start_time, i->pop_end_time) +
                         between(i->release_data_start_time, i->release_data_end_time);
}

/* ---- reading ---- */

void tess_profile_reset(void)
{
    for (struct tess_codelet_state *s = tess_codelets; s; s = s->next) {
        memset(s->tally, 0, sizeof s->tally);
        s->shapes = 0;
    }
    memset(around, 0, sizeof around);
    tess_submit_seconds = 0;
    since = tess_seconds();
}

static int longest_first(const void *a, const void *b)
{
    const tess_profile_row *x = a, *y = b;
    return (x->busy < y->busy) - (x->busy > y->busy);
}

/* Where there is a GPU its worker is what should be busy. */
static bool counts(int worker)
{
    return tess_gpu_workers() == 0 || tess_on_gpu(worker);
}

void tess_profile_read(tess_profile *p)
{
    *p = (tess_profile){.wall = tess_seconds() - since, .submit = tess_submit_seconds};
    for (const struct tess_codelet_state *s = tess_codelets; s; s = s->next) {
        tess_profile_row r = {.name = s->owner->name, .dtype = s->owner->dtype};
        for (int w = 0; w < TESS_MAX_WORKERS; w++) {
            r.tasks += s->tally[w].tasks;
            r.busy += s->tally[w].busy;
            r.alone += s->tally[w].alone;
            r.waiting += s->tally[w].waiting;
            r.scheduling += s->tally[w].scheduling;
            r.flops += s->tally[w].flops;
            r.bytes += s->tally[w].bytes;
            if (!counts(w)) continue;
            p->busy += s->tally[w].busy;
            p->waiting += s->tally[w].waiting;
            p->scheduling += s->tally[w].scheduling;
        }
        p->flops += r.flops;
        if (r.tasks && p->rows < (int)(sizeof p->row / sizeof p->row[0])) p->row[p->rows++] = r;
    }
    uint64_t times = 0;
    for (int w = 0; w < TESS_MAX_WORKERS; w++) {
        p->around += around[w].seconds;
        times += around[w].times;
    }
    if (times) p->around /= (double)times;
    p->idle = p->wall * tess_starved_workers() - p->busy - p->waiting - p->scheduling;
    qsort(p->row, (size_t)p->rows, sizeof p->row[0], longest_first);
}

void tess_profile_work(double *flops, double *seconds)
{
    *flops = *seconds = 0;
    for (const struct tess_codelet_state *s = tess_codelets; s; s = s->next) {
        double done = 0, busy = 0; /* who helped with a body has no flops of it */
        for (int w = 0; w < TESS_MAX_WORKERS && !s->chosen; w++)
            if (counts(w)) done += s->tally[w].flops, busy += s->tally[w].busy;
        if (done > 0) *flops += done, *seconds += busy;
    }
}

int tess_profile_shapes(tess_profile_shape out[TESS_PROFILE_SHAPES])
{
    int n = 0;
    for (const struct tess_codelet_state *s = tess_codelets; s; s = s->next)
        for (int i = 0; i < s->shapes && n < TESS_PROFILE_SHAPES; i++)
            out[n++] = (tess_profile_shape){.name = s->owner->name,
                                            .dtype = s->owner->dtype,
                                            .cost = s->shape[i].cost,
                                            .tasks = s->shape[i].tasks,
                                            .busy = s->shape[i].busy};
    return n;
}
