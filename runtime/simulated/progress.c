/* Where threads of a machine that is simulated sleep: all of them are one of the kernel's, so who really slept would
 * wait for ever. Nobody is interrupted between two calls of StarPU. */
#include "progress_impl.h"
#include "simulated.h"
#include <math.h>
#include <starpu.h>
#include <stdatomic.h>
#include <stdlib.h>
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

/* ---- workers without work, of which StarPU itself says when they go on ---- */

static atomic_uint events;

void tess_idle_wake(void)
{
    atomic_fetch_add(&events, 1);
}

unsigned tess_idle_events(void)
{
    return atomic_load(&events);
}

/* Bodies have no parts here. */
void tess_idle_help(int most)
{
    (void)most;
}

void tess_idle_helper(bool (*with)(int worker))
{
    (void)with;
}

void tess_idle_start(void)
{
    starpu_pthread_mutex_init(&held, NULL);
    starpu_pthread_cond_init(&ended, NULL);
}

void tess_idle_stop(void) {}

/* ---- bodies ---- */

void tess_body_begins(int worker)
{
    (void)worker;
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

/* Of experts every one is chosen, as a plan reckons. */
void tess_simulated_choose(const tess_task *t)
{
    if (t->option != TESS_MAKES_CHOICE || !t->choice) return;
    int32_t *offset = tess_alloc(((size_t)t->choice->options + 1) * sizeof *offset);
    for (int64_t k = 0; k <= t->choice->options; k++) offset[k] = (int32_t)k;
    tess_choice_make(t->choice, offset);
    free(offset);
}

/* The share of the machine's rates that the codelet was seen to reach, or else what its like do. */
static double share_of(const tess_simulated_share *share, int shares, const tess_codelet *cl, double others)
{
    char name[64];
    snprintf(name, sizeof name, "%s %s", cl->name, tess_dtype_name(cl->dtype));
    for (int i = 0; i < shares; i++)
        if (!strcmp(share[i].codelet, name)) return share[i].share;
    return others;
}

static double seconds_of(const tess_task *t)
{
    const tess_simulated *m = tess_simulated_machine();
    const tess_cost cost = tess_task_cost(t);
    const double others = cost.flops > 0 ? m->matrix_share : m->copy_share;
    return tess_simulated_bound(m, t->cl->dtype, cost) / share_of(m->share, m->shares, t->cl, others) + m->task_seconds;
}

static double gpu_seconds_of(const tess_task *t)
{
    const tess_simulated_gpus *g = &tess_simulated_machine()->gpus;
    const tess_cost cost = tess_task_cost(t);
    const double others = cost.flops > 0 ? g->matrix_share : g->copy_share;
    return tess_simulated_gpu_bound(g, t->cl->dtype, cost) / share_of(g->share, g->shares, t->cl, others) +
           g->task_seconds;
}

/* What a GPU takes for a task is what is said here. Policies that ask hear it too: of nothing they would learn nothing.
 */
static double expected_us(struct starpu_task *task, struct starpu_perfmodel_arch *arch, unsigned implementation)
{
    (void)implementation;
    const bool gpu = arch->ndevices > 0 && arch->devices[0].type == STARPU_CUDA_WORKER;
    return fmax(1e6 * (gpu ? gpu_seconds_of(task->cl_arg) : seconds_of(task->cl_arg)), 1e-3);
}

void tess_body_model(struct starpu_perfmodel *m)
{
    m->type = STARPU_PER_ARCH;
    m->arch_cost_function = expected_us;
}

void tess_body_run(const tess_codelet *cl, const tess_work *w)
{
    (void)cl;
    starpu_sleep((float)seconds_of(w->task));
    leave_results(w);
}
