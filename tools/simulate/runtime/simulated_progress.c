/* Where threads of a simulated machine sleep: all of them are one thread of the kernel, so one that really slept would
 * wait for ever. A thread is not interrupted between two calls of StarPU. */
#include "runtime/progress/progress.h"
#include "tools/simulate/runtime/simulated_impl.h"
#include <math.h>
#include <simgrid/actor.h>
#include <simgrid/host.h>
#include <starpu.h>
#include <starpu_expert.h>
#include <stdatomic.h>
#include <string.h>

/* ---- the main thread ---- */

static starpu_pthread_mutex_t held;
static starpu_pthread_cond_t ended;
static unsigned long wakes;

void tess_sleep(pthread_mutex_t *lock)
{
    const unsigned long before = wakes;
    pthread_mutex_unlock(lock);
    starpu_pthread_mutex_lock(&held);
    while (wakes == before) starpu_pthread_cond_wait(&ended, &held);
    starpu_pthread_mutex_unlock(&held);
    pthread_mutex_lock(lock);
}

void tess_sleep_ends(void)
{
    wakes++;
    starpu_pthread_mutex_lock(&held);
    starpu_pthread_cond_broadcast(&ended);
    starpu_pthread_mutex_unlock(&held);
}

/* ---- a worker that waits for the parts of its body that others took ---- */

static starpu_pthread_cond_t moved;

bool tess_count_is_soon(const _Atomic uint32_t *count, uint32_t to)
{
    return atomic_load(count) == to;
}

void tess_count_sleep(_Atomic uint32_t *count, uint32_t is)
{
    starpu_pthread_mutex_lock(&held);
    while (atomic_load(count) == is) starpu_pthread_cond_wait(&moved, &held);
    starpu_pthread_mutex_unlock(&held);
}

void tess_count_wakes(_Atomic uint32_t *count)
{
    (void)count;
    starpu_pthread_mutex_lock(&held);
    starpu_pthread_cond_broadcast(&moved);
    starpu_pthread_mutex_unlock(&held);
}

/* ---- workers without work: StarPU says when they go on, unless it is parts that they wake for ---- */

static atomic_uint events;
static bool (*help)(int worker);
static int hook = -1;
static bool asleep[TESS_MAX_WORKERS];
static int sleepers;
static tess_parts_me self[TESS_MAX_WORKERS + 1]; /* the last: no worker's */

static void set_asleep(int worker, bool is)
{
    sleepers += is - asleep[worker];
    asleep[worker] = is;
}

/* Called right after a look that found no task. Returns 0 if the worker helped, and StarPU looks again. Only workers of
 * CPUs help. */
static unsigned rest(void *unused)
{
    const int worker = starpu_worker_get_id();
    (void)unused;
    if (starpu_worker_get_type(worker) != STARPU_CPU_WORKER) return 1;
    set_asleep(worker, false);
    if (help && help(worker)) return 0;
    set_asleep(worker, true);
    return 1;
}

void tess_idle_wake(void)
{
    atomic_fetch_add(&events, 1);
}

unsigned tess_idle_events(void)
{
    return atomic_load(&events);
}

void tess_idle_told(bool is)
{
    (void)is;
}

void tess_idle_task(void)
{
    tess_idle_wake();
}

unsigned tess_idle_moves(void)
{
    return tess_idle_events();
}

void tess_idle_help(int most)
{
    const int workers = (int)starpu_worker_get_count();
    for (int i = 0; i < workers && most > 0 && sleepers > 0; i++) {
        if (!asleep[i]) continue;
        set_asleep(i, false);
        starpu_wake_worker_relax_light(i);
        most--;
    }
}

/* Always true, so that the time around bodies is not measured: the machine's file has it. */
bool tess_idle_rested(void)
{
    return true;
}

void tess_idle_helper(bool (*with)(int worker))
{
    help = with;
}

tess_parts_me *tess_parts_self(void)
{
    const int worker = starpu_worker_get_id();
    return &self[worker < 0 ? TESS_MAX_WORKERS : worker];
}

void tess_idle_start(void)
{
    memset(asleep, 0, sizeof asleep);
    sleepers = 0;
    starpu_pthread_mutex_init(&held, NULL);
    starpu_pthread_cond_init(&ended, NULL);
    starpu_pthread_cond_init(&moved, NULL);
    hook = starpu_idle_hook_register(rest, NULL);
}

void tess_idle_stop(void)
{
    if (hook >= 0) starpu_idle_hook_deregister(hook);
    hook = -1;
}

/* ---- bodies ---- */

void tess_body_begins(int worker)
{
    set_asleep(worker, false);
}

void tess_body_ends(int worker)
{
    (void)worker;
}

double tess_bodies_seconds(void)
{
    return 0;
}

/* What the program itself reads is small, and 0; what a GPU leaves was never written. */
static void leave_results(const tess_work *w)
{
    const tess_task *t = w->task;
    for (unsigned i = 0; i < t->nuse; i++)
        if ((t->use[i].mode & TESS_W) && tess_tile_role(t->use[i].tile) == TESS_ROLE_SCALAR && w->buf[i].ptr)
            memset(w->buf[i].ptr, 0, w->buf[i].bytes);
    tess_simulated_choose(t);
}

double tess_simulated_seconds(const tess_task *t, bool gpu)
{
    if (t->cl == &tess_message) return tess_simulated_message_seconds(t->arg);
    const tess_simulated *m = tess_simulated_machine();
    const double beside = gpu ? m->gpus.task_seconds + t->nuse * m->gpus.tile_seconds : m->task_seconds;
    return tess_simulated_body_seconds(m, t, gpu) + beside;
}

/* What a GPU takes for a task is what is said here. Policies that ask hear it too: of nothing they would learn nothing.
 */
static double expected_us(struct starpu_task *task, struct starpu_perfmodel_arch *arch, unsigned implementation)
{
    (void)implementation;
    const bool gpu = arch->ndevices > 0 && arch->devices[0].type == STARPU_CUDA_WORKER;
    return fmax(1e6 * tess_simulated_seconds(task->cl_arg, gpu), 1e-3);
}

void tess_body_model(struct starpu_perfmodel *m)
{
    m->type = STARPU_PER_ARCH;
    m->arch_cost_function = expected_us;
}

/* Parts of a body take the same time each, and a body is simulated in at most PARTS of them: in at most
 * PARTS_OF_THE_BUSY where no worker sleeps that could help at once. */
enum { PARTS = 32, PARTS_OF_THE_BUSY = 6 };

/* A core that messages take as well goes on with what is left of it. */
static void work(double seconds)
{
    if (tess_simulated_carries())
        sg_actor_execute(seconds * sg_host_get_speed(sg_host_self()));
    else
        starpu_sleep((float)seconds);
}

static void work_part(void *of, int64_t k)
{
    (void)k;
    work(*(const double *)of);
}

void tess_body_run(const tess_codelet *cl, const tess_work *w)
{
    const int64_t parts = cl->parts ? cl->parts(cl, w->task->arg) : 1, most = sleepers ? PARTS : PARTS_OF_THE_BUSY;
    const int64_t n = parts < 1 ? 1 : parts < most ? parts : most;
    const tess_simulated *m = tess_simulated_machine();
    double each = tess_simulated_body_seconds(m, w->task, false) / (double)n;
    if (n == 1)
        each += m->task_seconds;
    else
        work(m->task_seconds);
    tess_parts_run(n, work_part, &each);
    leave_results(w);
}
