/* What a run that stands still was doing, for the file that patience.c writes: the first tasks that are not done, where
 * each of their tiles is, which worker has what, what each memory holds. Tasks that StarPU knows of are kept in a table
 * for that; the main thread alone puts them there. It is read without locks, since nothing moves any more. */
#include "runtime/gpu/gpu.h"
#include "runtime/list/list.h"
#include "runtime/tiles/tiles.h"
#include <stdlib.h>

enum { KNOWN = 1 << 12, TOLD = 12, TILES = 16 };

static tess_known_task known[KNOWN];
static size_t cursor;
static const tess_task *_Atomic doing[TESS_MAX_WORKERS];

tess_known_task *tess_standstill_knows(struct starpu_task *task, tess_tasks_run *of)
{
    size_t looks = 0;
    do {
        cursor = (cursor + 1) % KNOWN;
        TESS_ASSERT(looks++ < KNOWN); /* four times as many as the list lets StarPU have */
    } while (known[cursor].task);
    known[cursor].of = of;
    known[cursor].task = task;
    return &known[cursor];
}

struct starpu_task *tess_standstill_forgets(tess_known_task *place)
{
    return atomic_exchange(&place->task, NULL);
}

void tess_standstill_does(int worker, const tess_task *t)
{
    doing[worker] = t;
}

static const char *status_of(const struct starpu_task *task)
{
    switch (task->status) {
    case STARPU_TASK_BLOCKED_ON_TAG:
    case STARPU_TASK_BLOCKED_ON_TASK:
        return "waits for other tasks";
    case STARPU_TASK_BLOCKED_ON_DATA:
        return "waits for its tiles, which others use";
    case STARPU_TASK_READY:
        return "is ready: a worker has it, or brings its tiles";
    case STARPU_TASK_RUNNING:
        return "runs";
    case STARPU_TASK_STOPPED:
    case STARPU_TASK_FINISHED:
        return "has run, and is being ended";
    default:
        return "waits to be scheduled";
    }
}

static void tell_tile(FILE *f, const tess_use *u)
{
    static const char *const modes[] = {"-", "reads", "writes", "updates"};
    const tess_tile *t = u->tile;
    fprintf(f, "    %s %s (%s, %s)", u->mode & TESS_SCRATCH ? "scratch" : modes[u->mode & TESS_RW],
            t->label ? t->label : "?", tess_role_name(t->role), tess_human_bytes((double)t->bytes));
    for (unsigned node = 0; t->handle && node < starpu_memory_nodes_get_count(); node++) {
        int there = 0, valid = 0, asked = 0;
        char name[64];
        starpu_data_query_status(t->handle, (int)node, &there, &valid, &asked);
        if (!there && !valid && !asked) continue;
        starpu_memory_node_get_name(node, name, sizeof name);
        fprintf(f, "; %s: %s%s", name,
                valid   ? "contents"
                : there ? "room without contents"
                        : "no room",
                asked ? ", asked for" : "");
    }
    fprintf(f, "\n");
}

static int by_order(const void *a, const void *b)
{
    const struct starpu_task *x = *(struct starpu_task *const *)a, *y = *(struct starpu_task *const *)b;
    return (x->priority < y->priority) - (x->priority > y->priority);
}

static void tell_tasks(FILE *f)
{
    TESS_FREED struct starpu_task **task = tess_alloc(KNOWN * sizeof(struct starpu_task *));
    size_t n = 0;
    for (size_t i = 0; i < KNOWN; i++)
        if (known[i].task) task[n++] = known[i].task;
    qsort(task, n, sizeof *task, by_order);
    fprintf(f, "%zu tasks are submitted and not done%s\n", n, n > TOLD ? "; the first of them:" : "");
    for (size_t k = 0; k < n && k < TOLD; k++) {
        const tess_task *t = task[k]->cl_arg;
        fprintf(f, "  task %u, %s %s: %s\n", t->order, t->cl->name, tess_dtype_name(t->cl->dtype), status_of(task[k]));
        for (unsigned i = 0; i < t->nuse && i < TILES; i++) tell_tile(f, &t->use[i]);
        if (t->nuse > TILES) fprintf(f, "    and %u more tiles\n", t->nuse - TILES);
        fflush(f);
    }
}

static void tell_workers(FILE *f)
{
    for (int w = 0; w < (int)starpu_worker_get_count() && w < TESS_MAX_WORKERS; w++) {
        char name[64];
        const tess_task *t = doing[w];
        if (!t) continue;
        starpu_worker_get_name(w, name, sizeof name);
        fprintf(f, "worker %s has task %u, %s, in its body\n", name, t->order, t->cl->name);
    }
}

static void tell_memories(FILE *f)
{
    uint64_t now, peak;
    for (unsigned node = 0; node < starpu_memory_nodes_get_count(); node++) {
        char name[64];
        const starpu_ssize_t total = starpu_memory_get_total(node), left = starpu_memory_get_available(node);
        starpu_memory_node_get_name(node, name, sizeof name);
        if (total < 0)
            fprintf(f, "memory %s: StarPU has no limit there\n", name);
        else
            fprintf(f, "memory %s: StarPU counts %s used of %s\n", name, tess_human_bytes((double)(total - left)),
                    tess_human_bytes((double)total));
    }
    tess_tier_use(TESS_TIER_CPU, &now, &peak);
    fprintf(f, "tiles hold %s of RAM, at most %s\n", tess_human_bytes((double)now), tess_human_bytes((double)peak));
}

void tess_standstill_describe(FILE *f)
{
    tell_tasks(f);
    tell_workers(f);
    fflush(f);
    tell_memories(f);
    const char *said = tess_cuda_said();
    if (said) fprintf(f, "the last error of CUDA: %s\n", said);
}
