/* Tasks of steps that are traced. The body's times are taken around it where a CPU runs it; those of a GPU's, and when
 * a task was submitted and ready, StarPU knows, once it is asked to keep them. Its clock is another, which drifts
 * against ours by little: the two are compared when a step begins. */
#include "runtime/gpu/gpu.h"
#include "runtime/list/list.h"
#include "runtime/tiles/tiles.h"
#include "runtime/trace/trace.h"

static struct {
    double ahead;   /* our clock, beside StarPU's */
    bool profiles;  /* StarPU kept times before */
    bool begun;     /* a step is traced */
    uint32_t since; /* what arrived before the step has lower numbers */
} timeline;

/* The body that each worker left last; the last place is that of threads that are none. */
static struct ran {
    const tess_task *task;
    double begin, end;
    uint32_t waited[TESS_TRACE_ARRIVALS];
} rans[TESS_MAX_WORKERS + 1];

static struct ran *ran(void)
{
    const int worker = starpu_worker_get_id();
    return &rans[worker < 0 ? TESS_MAX_WORKERS : worker];
}

void tess_trace_begin(void)
{
    if (tess_trace_failed()) return;
    timeline.begun = true;
    timeline.since = tess_trace_arrival();
    timeline.profiles = starpu_profiling_status_get() == STARPU_PROFILING_ENABLE;
    if (!timeline.profiles) starpu_profiling_status_set(STARPU_PROFILING_ENABLE);
    timeline.ahead = tess_seconds() - 1e-6 * starpu_timing_now();
    atomic_store(&tess_trace_on, true);
    tess_trace_settle();
}

void tess_trace_end(int64_t step, double begin, double end)
{
    if (!timeline.begun) return;
    timeline.begun = false;
    if (tess_traces())
        tess_trace_add(
            &(tess_trace_event){.kind = TESS_TRACE_STEP, .number = (uint64_t)step, .begin = begin, .end = end});
    tess_trace_settle();
    atomic_store(&tess_trace_on, false);
    if (!timeline.profiles) starpu_profiling_status_set(STARPU_PROFILING_DISABLE);
}

/* ---- tasks ---- */

/* What arrived in this step since it was used last, and is used by this task. A number from a step before says nothing:
 * what came while nothing was traced left it as it was. */
static void take_arrivals(const tess_task *t, uint32_t waited[TESS_TRACE_ARRIVALS])
{
    int n = 0;
    for (unsigned i = 0; i < t->nuse && n < TESS_TRACE_ARRIVALS; i++) {
        if (!atomic_load_explicit(&t->use[i].tile->came, memory_order_relaxed)) continue;
        const uint32_t came = atomic_exchange(&t->use[i].tile->came, 0);
        if (came && (int32_t)(came - timeline.since) > 0) waited[n++] = came;
    }
    for (; n < TESS_TRACE_ARRIVALS; n++) waited[n] = 0;
}

void tess_timeline_enters(const tess_task *t)
{
    take_arrivals(t, ran()->waited);
}

void tess_timeline_ran(const tess_task *t, double begin, double end)
{
    struct ran *r = ran();
    r->task = t;
    r->begin = begin;
    r->end = end;
}

static double ours(struct timespec t)
{
    if (t.tv_sec == 0 && t.tv_nsec == 0) return 0;
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec + timeline.ahead;
}

static double earlier(double a, double b)
{
    return a < b ? a : b;
}

/* The first tile that it writes, or else reads. */
static const char *tile_of(const tess_task *t)
{
    for (unsigned i = 0; i < t->nuse; i++)
        if ((t->use[i].mode & TESS_W) && t->use[i].tile->role != TESS_ROLE_SCRATCH) return t->use[i].tile->label;
    return t->nuse ? t->use[0].tile->label : NULL;
}

void tess_timeline_helped(const tess_task *t, int worker, double begin, double end)
{
    tess_trace_add(&(tess_trace_event){.kind = TESS_TRACE_TASK,
                                       .helps = true,
                                       .worker = (uint32_t)worker,
                                       .number = t->order,
                                       .name = t->cl->name,
                                       .of = tile_of(t),
                                       .begin = begin,
                                       .end = end});
}

void tess_timeline_task(const tess_task *t, const struct starpu_profiling_task_info *i, double flops)
{
    const int worker = i && i->workerid >= 0 ? i->workerid : starpu_worker_get_id();
    tess_trace_event e = {.kind = TESS_TRACE_TASK,
                          .gpu = tess_gpu_workers() > 0 && tess_on_gpu(worker),
                          .worker = (uint32_t)worker,
                          .number = t->order,
                          .name = t->cl->name,
                          .of = tile_of(t),
                          .flops = flops};
    if (worker < 0) return;
    struct ran *r = ran();
    if (!e.gpu && r->task == t) {
        e.begin = r->begin;
        e.end = r->end;
        for (int k = 0; k < TESS_TRACE_ARRIVALS; k++) e.waited[k] = r->waited[k];
        r->task = NULL;
    } else if (e.gpu && i) {
        e.begin = ours(i->start_time);
        e.end = ours(i->end_time);
        take_arrivals(t, e.waited);
    } else
        return; /* it did nothing, since another had failed */
    if (i) {
        e.submitted = earlier(ours(i->submit_time), e.begin);
        e.asked = earlier(ours(i->push_start_time), e.begin);
        e.data_begin = earlier(ours(i->acquire_data_start_time), e.begin);
        e.data_end = earlier(ours(i->acquire_data_end_time), e.begin);
        if (e.data_end - e.data_begin < 20e-6) e.data_begin = e.data_end = 0;
    }
    tess_trace_add(&e);
}
