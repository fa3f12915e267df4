/* The worker's side of a task: what StarPU calls unpacks the buffers, runs the codelet's body, and says what it took.
 * Failures stick (progress/fault.c): bodies that start after one do nothing, so the graph drains fast. */
#include "runtime/flow/flow.h"
#include "runtime/gpu/gpu.h"
#include "runtime/list/list.h"
#include "runtime/tiles/tiles.h"
#include "runtime/trace/trace.h"

/* Scratch is a worker's own, so that who helps with another's body has some; a GPU's is StarPU's. */
static bool own_scratch(const tess_use *u)
{
    return (u->mode & TESS_SCRATCH) && tess_gpu_workers() == 0;
}

bool tess_task_left_out(const tess_task *t, const tess_use *u)
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
        view[i] = tess_task_left_out(t, &t->use[i])
                      ? (tess_view){NULL, 0}
                      : (tess_view){(void *)STARPU_VECTOR_GET_PTR(buffers[k++]), t->use[i].tile->bytes};
    fill_scratch(view, t, worker);
}

/* Other ranks may get what a body that does nothing would write, and go by it: how many rows are which expert's, or
 * that a gradient is not finite. What lasts from step to step stays as it is. */
static void write_zeros(const tess_view *view, const tess_task *t)
{
    for (unsigned i = 0; i < t->nuse && tess_ranks() > 1; i++) {
        const tess_role role = t->use[i].tile->role;
        if (view[i].ptr && (t->use[i].mode & TESS_RW) == TESS_W &&
            (role == TESS_ROLE_ACTIVATION || role == TESS_ROLE_GRADIENT || role == TESS_ROLE_SCALAR))
            memset(view[i].ptr, 0, view[i].bytes);
    }
}

/* What others did of a body is theirs. */
void tess_task_helped(const void *task, int worker, double begin, double end)
{
    const tess_task *t = task;
    tess_profile_helped(t, worker, begin, end);
    if (tess_traces()) tess_timeline_helped(t, worker, begin, end);
}

/* What was set for the tasks of this one's run. */
static const tess_env *env_of(void)
{
    return &((tess_known_task *)starpu_task_get_current()->callback_arg)->of->env;
}

void tess_task_run_cpu(void *buffers[], void *arg)
{
    const tess_task *t = arg;
    tess_view view[t->nuse ? t->nuse : 1];
    int worker = starpu_worker_get_id();
    fill_views(view, buffers, t, worker);
    if (tess_fault_stands) {
        write_zeros(view, t);
        return;
    }
    tess_parts_times parts;
    tess_work w = {.buf = view, .nbuf = t->nuse, .arg = t->arg, .env = env_of(), .worker = worker, .task = t};
    const bool counts = tess_gpu_workers() == 0;
    if (counts) tess_starved_works(1);
    tess_body_begins(worker);
    if (tess_traces()) tess_timeline_enters(t);
    const bool digests = tess_digests_kept(t);
    for (unsigned i = 0; i < t->nuse && digests; i++) tess_digest_found(t, i, view[i].ptr);
    tess_parts_own(worker, t, t->order);
    if (tess_parts_shy() && t->cl->parts) tess_parts_said(t->cl->parts(t->cl, t->arg));
    tess_standstill_does(worker, t);
    const double start = tess_seconds();
    tess_body_run(t->cl, &w);
    const double end = tess_seconds();
    tess_standstill_does(worker, NULL);
    tess_parts_disown(&parts);
    for (unsigned i = 0; i < t->nuse && digests; i++) tess_digest_left(t, i, view[i].ptr);
    tess_body_ends(worker);
    if (tess_traces()) tess_timeline_ran(t, start, end);
    tess_profile_ran(t, worker, start, end, &parts);
    if (counts) tess_starved_works(-1);
}

/* Puts the task's kernels on the worker's stream. They run later: what they take is known in `done`. */
void tess_task_run_cuda(void *buffers[], void *arg)
{
    const tess_task *t = arg;
    int worker = starpu_worker_get_id();
    uint64_t now, peak;
    tess_starved_works(1);
    tess_view view[t->nuse ? t->nuse : 1];
    tess_work w = {.buf = view, .nbuf = t->nuse, .arg = t->arg, .env = env_of(), .worker = worker, .task = t};
    tess_gpu_work(&w);
    if (tess_fault_stands || tess_gpu_failed(worker)) return;
    fill_views(view, buffers, t, worker);
    tess_gpu_use(&now, &peak);
    tess_trace_set(TESS_TRACE_GPU_BYTES, now);
    tess_cuda_look();
    tess_standstill_does(worker, t);
    tess_cuda_body_begins(worker, w.stream);
    tess_launches_run(t->cl, &w);
    tess_cuda_body_ends(worker, w.stream);
    tess_standstill_does(worker, NULL);
    tess_profile_launched(t, worker);
}

/* After a task: what StarPU spent around the body, when profiling; for the trace; and, last, that it ended. */
void tess_task_done(void *arg)
{
    uint64_t *of = &((tess_known_task *)arg)->of->tasks;
    struct starpu_task *task = tess_standstill_forgets(arg);
    if (tess_gpu_workers() > 0 && tess_on_gpu(starpu_worker_get_id())) tess_starved_works(-1);
    tess_profile_task(task->cl_arg, task->profiling_info);
    if (tess_traces()) tess_timeline_task(task->cl_arg, task->profiling_info, task->flops);
    tess_idle_task();
    tess_task_ended(of);
}
