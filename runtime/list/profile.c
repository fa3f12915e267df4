/* Where the time goes, by codelet: busy in bodies, waiting for data, scheduling around the task, and idle for the rest.
 */
#include "gpu.h"
#include "list.h"
#include <stdlib.h>
#include <string.h>

static double since;

void tess_profile_reset(void)
{
    for (struct tess_codelet_state *s = tess_codelets; s; s = s->next) {
        memset(s->tally, 0, sizeof s->tally);
        s->shapes = 0;
    }
    memset(tess_around, 0, sizeof tess_around);
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
        p->around += tess_around[w].seconds;
        times += tess_around[w].times;
    }
    if (times) p->around /= (double)times;
    p->idle = p->wall * tess_lost_workers() - p->busy - p->waiting - p->scheduling;
    qsort(p->row, (size_t)p->rows, sizeof p->row[0], longest_first);
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
