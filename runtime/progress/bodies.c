/* Which workers are in a CPU body, and the CPU time that they have had: a task that computes is no standstill. */
#include "runtime/progress/progress.h"
#include <pthread.h>
#include <starpu.h>
#include <stdatomic.h>
#include <time.h>
#ifdef TESS_EMULATED_GPU
#include "tests/gpu/emulated_cuda.h"
#endif

static struct {
    clockid_t clock;
    atomic_bool busy;
} thread_of[TESS_MAX_WORKERS];

tess_parts_me *tess_parts_self(void)
{
    static _Thread_local tess_parts_me self;
    return &self;
}

void tess_body_begins(int worker)
{
    pthread_getcpuclockid(pthread_self(), &thread_of[worker].clock);
    thread_of[worker].busy = true;
}

void tess_body_model(struct starpu_perfmodel *m)
{
    m->type = STARPU_HISTORY_BASED;
}

void tess_body_run(const tess_codelet *cl, const tess_work *w)
{
#ifdef TESS_EMULATED_GPU
    if (tess_emulated_cpu(w)) return;
#endif
    cl->cpu(w);
}

void tess_body_ends(int worker)
{
    thread_of[worker].busy = false;
}

double tess_bodies_seconds(void)
{
    double sum = 0;
    for (int i = 0; i < TESS_MAX_WORKERS; i++) {
        struct timespec t;
        if (thread_of[i].busy && !clock_gettime(thread_of[i].clock, &t))
            sum += (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
    }
    return sum;
}
