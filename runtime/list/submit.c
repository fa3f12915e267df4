/* The one place that submits tasks to StarPU. A task of ours becomes one of StarPU's whose body is `run`: it unpacks
 * the buffers, calls the codelet's body and keeps the time.
 *
 * Order. Priorities follow the program: of the tasks that are ready, the earlier one runs first, so that execution
 * stays near the order whose memory was planned. Accesses are R, W and RW in sequential consistency, never COMMUTE or
 * REDUX: the bits of a result do not depend on the scheduler or the number of workers. With a GPU, what has a CUDA body
 * runs there; only codelets whose two bodies have the same bits are StarPU's to place.
 *
 * Failures stick (progress/fault.c): bodies that start after one do nothing, so the graph drains fast. */
#include "flow.h"
#include "gpu.h"
#include "list.h"
#include "tiles.h"
#include "trace.h"
#include <pthread.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

struct tess_codelet_state *tess_codelets;
static bool profiles;
static tess_env env;

int64_t tess_env_step(void)
{
    return env.step;
}

void tess_env_set(const tess_env *e)
{
    env = *e;
}

void tess_work_fail(const tess_work *w, const char *format, ...)
{
    char text[TESS_FAULT_TEXT];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    tess_fault_set(w->task ? w->task->order : 0, text);
}

tess_cost tess_task_cost(const tess_task *t)
{
    tess_cost c = {0};
    if (t->cl->cost) return t->cl->cost(t->arg);
    for (unsigned i = 0; i < t->nuse; i++) c.bytes += (double)t->use[i].tile->bytes;
    return c;
}

/* ---- running ---- */

/* Scratch is a worker's own, so that who helps with another's body has some; a GPU's is StarPU's. */
static bool own_scratch(const tess_use *u)
{
    return (u->mode & TESS_SCRATCH) && tess_gpu_workers() == 0;
}

static bool left_to_us(const tess_task *t, const tess_use *u)
{
    return own_scratch(u) || tess_use_left_out(t, u);
}

static void fill_scratch(tess_view *view, const tess_task *t, int worker)
{
    size_t all = 0, at = 0;
    for (unsigned i = 0; i < t->nuse; i++)
        if (own_scratch(&t->use[i])) all += (t->use[i].tile->bytes + 63) / 64 * 64;
    if (all == 0) return;
    char *room = tess_parts_room(worker, all);
    for (unsigned i = 0; i < t->nuse; i++) {
        if (!own_scratch(&t->use[i])) continue;
        view[i] = (tess_view){room + at, t->use[i].tile->bytes};
        at += (t->use[i].tile->bytes + 63) / 64 * 64;
    }
}

/* StarPU knows nothing of the tiles that a task does without. */
static void fill_views(tess_view *view, void *buffers[], const tess_task *t, int worker)
{
    for (unsigned i = 0, k = 0; i < t->nuse; i++)
        view[i] = left_to_us(t, &t->use[i])
                      ? (tess_view){NULL, 0}
                      : (tess_view){(void *)STARPU_VECTOR_GET_PTR(buffers[k++]), t->use[i].tile->bytes};
    fill_scratch(view, t, worker);
}

struct tess_around tess_around[TESS_MAX_WORKERS];

static void count_around(int worker, double begin, double end)
{
    struct tess_around *a = &tess_around[worker];
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

/* What others did of a body is theirs. */
static void helped(const void *task, int worker, double begin, double end)
{
    const tess_task *t = task;
    t->cl->state->tally[worker].busy += end - begin;
    if (profiles) count_shape(t, end - begin, 0);
    if (tess_traces()) tess_timeline_helped(t, worker, begin, end);
}

static void count(struct tess_tally *tally, const tess_task *t)
{
    const tess_cost cost = tess_task_cost(t);
    tally->tasks++;
    tally->flops += cost.flops;
    tally->bytes += cost.flops > 0 ? cost.passes : cost.bytes;
}

static void run_cpu(void *buffers[], void *arg)
{
    const tess_task *t = arg;
    if (tess_fault_stands) return;
    tess_view view[t->nuse ? t->nuse : 1];
    int worker = starpu_worker_get_id();
    fill_views(view, buffers, t, worker);
    tess_parts_times parts;
    tess_work w = {.buf = view, .nbuf = t->nuse, .arg = t->arg, .env = &env, .worker = worker, .task = t};
    const bool counts = tess_gpu_workers() == 0;
    if (counts) tess_lost_works(1);
    tess_body_begins(worker);
    if (tess_traces()) tess_timeline_enters(t);
    tess_parts_own(worker, t, t->order);
    if (tess_parts_shy() && t->cl->parts) tess_parts_said(t->cl->parts(t->cl, t->arg));
    const double start = tess_seconds();
    tess_body_run(t->cl, &w);
    const double end = tess_seconds();
    tess_parts_disown(&parts);
    tess_body_ends(worker);
    if (tess_traces()) tess_timeline_ran(t, start, end);
    struct tess_tally *tally = &t->cl->state->tally[worker];
    tally->busy += end - start - parts.waited;
    tally->alone += end - start - parts.waited - parts.shared + parts.longest;
    count(tally, t);
    if (profiles) {
        count_shape(t, end - start - parts.waited, 1);
        count_around(worker, start, end);
    }
    if (counts) tess_lost_works(-1);
}

/* Puts the task's kernels on the worker's stream. They run later: what they take is known in `done`. */
static void run_cuda(void *buffers[], void *arg)
{
    const tess_task *t = arg;
    int worker = starpu_worker_get_id();
    uint64_t now, peak;
    tess_lost_works(1);
    tess_view view[t->nuse ? t->nuse : 1];
    tess_work w = {.buf = view, .nbuf = t->nuse, .arg = t->arg, .env = &env, .worker = worker, .task = t};
    tess_gpu_work(&w);
    if (tess_fault_stands || tess_gpu_failed(worker)) return;
    fill_views(view, buffers, t, worker);
    tess_gpu_use(&now, &peak);
    tess_trace_set(TESS_TRACE_GPU_BYTES, now);
    tess_gpu_run(t->cl, &w);
    struct tess_tally *tally = &t->cl->state->tally[worker];
    count(tally, t);
}

static double between(struct timespec a, struct timespec b)
{
    return (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
}

static void keep_times(const struct starpu_profiling_task_info *i, const tess_task *t)
{
    struct tess_tally *tally = &t->cl->state->tally[i->workerid];
    if (tess_on_gpu(i->workerid)) tally->busy += between(i->start_time, i->end_time);
    tally->waiting += between(i->acquire_data_start_time, i->acquire_data_end_time);
    tally->scheduling += between(i->push_start_time, i->push_end_time) + between(i->pop_start_time, i->pop_end_time) +
                         between(i->release_data_start_time, i->release_data_end_time);
}

/* After a task: what StarPU spent around the body, when profiling; for the trace; and, last, that it ended. */
static void done(void *arg)
{
    struct starpu_task *task = arg;
    const struct starpu_profiling_task_info *i = profiles ? task->profiling_info : NULL;
    if (tess_gpu_workers() > 0 && tess_on_gpu(starpu_worker_get_id())) tess_lost_works(-1);
    if (i && i->workerid >= 0) keep_times(i, task->cl_arg);
    if (tess_traces()) tess_timeline_task(task->cl_arg, task->profiling_info, task->flops);
    tess_idle_wake();
    tess_task_ended();
}

/* ---- codelets ---- */

/* Tiles of one size can carry different work (a block of rows of a wider tile): the flops tell them apart. */
static uint32_t footprint(struct starpu_task *task)
{
    double flops = tess_task_cost(task->cl_arg).flops;
    uint64_t bits;
    memcpy(&bits, &flops, sizeof bits);
    return starpu_task_data_footprint(task) ^ (uint32_t)(bits >> 32) ^ (uint32_t)bits;
}

/* For StarPU's own traces: a colour of its own for each op, light enough to read a name on. */
static unsigned color_of(const char *name)
{
    uint32_t h = 2166136261u;
    for (; *name; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    return (h & 0x7f7f7fu) + 0x606060u;
}

static struct tess_codelet_state *state_of(tess_codelet *cl)
{
    if (cl->state) return cl->state;
    struct tess_codelet_state *s = tess_alloc(sizeof *s);
    snprintf(s->symbol, sizeof s->symbol, "tess_%s_%s", cl->name, tess_dtype_name(cl->dtype));
    s->model = (struct starpu_perfmodel){.symbol = s->symbol, .footprint = footprint};
    tess_body_model(&s->model);
    s->cl.cpu_funcs[0] = cl->cpu ? run_cpu : NULL;
    s->cl.cpu_funcs_name[0] = cl->name;
    if (tess_gpu_body(cl) && tess_gpu_workers() > 0) {
        s->cl.cuda_funcs[0] = run_cuda;
        s->cl.cuda_flags[0] = STARPU_CUDA_ASYNC;
        /* Bodies with bits of their own all run in one place, so that no choice of StarPU's shows in the numbers. */
        if (!cl->either) s->cl.where = STARPU_CUDA;
    }
    s->cl.flags = STARPU_CODELET_SIMGRID_EXECUTE; /* our bodies know what they take on a machine that is not here */
    s->cl.nbuffers = STARPU_VARIABLE_NBUFFERS;
    s->cl.model = &s->model;
    s->cl.name = cl->name;
    s->cl.color = color_of(cl->name);
    s->owner = cl;
    s->next = tess_codelets;
    tess_codelets = s;
    return cl->state = s;
}

void tess_tasks_start(bool profile)
{
    profiles = profile;
    tess_parts_start((int)starpu_worker_get_count(), tess_gpu_workers() == 0, helped, tess_slab_hold);
}

void tess_tasks_stop(void)
{
    for (struct tess_codelet_state *s = tess_codelets, *next; s; s = next) {
        next = s->next;
        ((tess_codelet *)s->owner)->state = NULL;
        free(s);
    }
    tess_codelets = NULL;
    tess_parts_stop();
    env = (tess_env){0};
}

/* ---- submission ---- */

static enum starpu_data_access_mode starpu_mode(int mode)
{
    if (mode & TESS_SCRATCH) return STARPU_SCRATCH;
    return (mode & TESS_R ? STARPU_R : 0) | (mode & TESS_W ? STARPU_W : 0);
}

tess_status tess_task_submit(const tess_task *t, uint32_t where)
{
    struct starpu_task *task = starpu_task_create();
    task->cl = &state_of(t->cl)->cl;
    task->cl_arg = (void *)t;
    task->name = t->cl->name; /* or it has the model's, which is longer */
    task->priority = -(int)t->order;
    /* For StarPU's own traces; it is not declared, and nothing waits for it. */
    task->tag_id = (starpu_tag_t)(env.step + 1) << 32 | t->order;
    task->flops = tess_task_cost(t).flops;
    if (t->nuse > STARPU_NMAXBUFS) {
        task->dyn_handles = tess_alloc(t->nuse * sizeof *task->dyn_handles);
        task->dyn_modes = tess_alloc(t->nuse * sizeof *task->dyn_modes);
    }
    int n = 0;
    for (unsigned i = 0; i < t->nuse; i++) {
        if (left_to_us(t, &t->use[i])) continue;
        STARPU_TASK_SET_HANDLE(task, tess_tile_handle(t->use[i].tile), n);
        STARPU_TASK_SET_MODE(task, starpu_mode(t->use[i].mode), n);
        n++;
    }
    task->nbuffers = n;
    if (where) task->where = (int32_t)where;
    task->callback_func = done;
    task->callback_arg = task;
    int rc = starpu_task_submit(task);
    if (rc) {
        task->destroy = 0;
        starpu_task_destroy(task);
        return tess_error(TESS_FAILED, t->cl->name, "StarPU has no worker for this codelet (error %d)", -rc);
    }
    return TESS_OK;
}
