/* A scheduling policy of one's own, in a library: what became ready last is done first, by whoever asks first. It is
 * StarPU's interface (starpu_scheduler.h), and what STARPU_SCHED_LIB names is found by the two functions at the end.
 *
 *     cc -shared -fPIC own-policy.c -o own-policy.so $(pkg-config --cflags starpu-1.3)
 *     STARPU_SCHED_LIB=./own-policy.so tessera bench run.json
 *
 * For tessera simulate it is built with the headers of the StarPU over SimGrid (docs/observe.md). */
#include <starpu.h>
#include <starpu_scheduler.h>
#include <stdlib.h>
#include <string.h>

struct stack {
    starpu_pthread_mutex_t held;
    struct starpu_task_list tasks;
};

static void init(unsigned context)
{
    struct stack *s = malloc(sizeof *s);
    starpu_pthread_mutex_init(&s->held, NULL);
    starpu_task_list_init(&s->tasks);
    starpu_sched_ctx_set_policy_data(context, s);
}

static void deinit(unsigned context)
{
    struct stack *s = starpu_sched_ctx_get_policy_data(context);
    starpu_pthread_mutex_destroy(&s->held);
    free(s);
}

static struct stack *enter(unsigned context)
{
    struct stack *s = starpu_sched_ctx_get_policy_data(context);
    starpu_worker_relax_on(); /* others may look at this worker while it waits */
    starpu_pthread_mutex_lock(&s->held);
    starpu_worker_relax_off();
    return s;
}

/* A task is ready: it is left on the stack, and somebody who can run it is woken. */
static int push(struct starpu_task *task)
{
    struct stack *s = enter(task->sched_ctx);
    starpu_task_list_push_front(&s->tasks, task);
    starpu_push_task_end(task);
    int can[STARPU_NMAXWORKERS], n = 0; /* the task may be gone once the lock is given back */
    for (unsigned worker = 0; worker < starpu_worker_get_count(); worker++)
        if (starpu_worker_can_execute_task_first_impl(worker, task, NULL)) can[n++] = (int)worker;
    starpu_pthread_mutex_unlock(&s->held);
    for (int i = 0; i < n; i++)
        if (starpu_wake_worker_relax_light((unsigned)can[i])) break;
    return 0;
}

/* A worker asks: the topmost task that it can run. */
static struct starpu_task *pop(unsigned context)
{
    struct stack *s = enter(context);
    const unsigned worker = (unsigned)starpu_worker_get_id();
    struct starpu_task *task = starpu_task_list_begin(&s->tasks);
    unsigned implementation;
    while (task && !starpu_worker_can_execute_task_first_impl(worker, task, &implementation))
        task = starpu_task_list_next(task);
    if (task) {
        starpu_task_list_erase(&s->tasks, task);
        starpu_task_set_implementation(task, implementation);
    }
    starpu_pthread_mutex_unlock(&s->held);
    return task;
}

static struct starpu_sched_policy last_first = {.init_sched = init,
                                                .deinit_sched = deinit,
                                                .push_task = push,
                                                .pop_task = pop,
                                                .policy_name = "last-first",
                                                .policy_description = "what became ready last is done first",
                                                .worker_type = STARPU_WORKER_LIST};
static struct starpu_sched_policy *all[] = {&last_first, NULL};

struct starpu_sched_policy *starpu_get_sched_lib_policy(const char *name)
{
    return strcmp(name, last_first.policy_name) ? NULL : &last_first;
}

struct starpu_sched_policy **starpu_get_sched_lib_policies(void)
{
    return all;
}
