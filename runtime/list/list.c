/* The list of tasks: what is looked at, what is submitted, and what becomes of tiles behind each task. The two flows
 * say which tiles come and go and know nothing of each other; here they are asked in turn, RAM's first, so that what is
 * on its way to a GPU through RAM has room there. */
#include "runtime/list/list.h"
#include "runtime/flow/flow.h"
#include "runtime/gpu/gpu.h"
#include "runtime/messages/messages.h"
#include "runtime/tiles/tiles.h"
#include <string.h>

/* Tasks that StarPU knows of at a time: enough to find work in, few enough that a long accumulation costs no memory and
 * that any scheduler stays near the planned order. */
enum { WINDOW = 1024 };

/* Contents that end with a task of StarPU's give their memory back, where no flow does that. */
static void end_contents(const tess_task *t)
{
    for (unsigned i = 0; i < t->nuse; i++)
        if ((t->use[i].mode & TESS_LAST) && !(tess_ram_flows() && tess_tile_flows(t->use[i].tile)))
            starpu_data_invalidate_submit(t->use[i].tile->handle);
}

static tess_status compute(const tess_task *t)
{
    TESS_TRY(tess_tiles_lend(t, TESS_LENT_BEFORE));
    TESS_TRY(tess_task_submit(t, tess_gpu_flows() ? tess_gpu_flow_where(t) : 0));
    TESS_TRY(tess_tiles_lend(t, TESS_LENT_BEHIND));
    end_contents(t);
    return TESS_OK;
}

static tess_cost show_cost(const void *arg)
{
    (void)arg;
    return (tess_cost){.bytes = 1}; /* what the program makes of it is its own */
}
tess_codelet tess_show = {.name = "show", .dtype = TESS_F32, .cost = show_cost};

/* What the program submits here is behind what wrote the tile, and ahead of all that comes of its leaving. */
static void show(const tess_task *t)
{
    const tess_show_arg *a = t->arg;
    tess_lent lent = a->lent;
    lent.handle = tess_tile_handle(t->use[0].tile);
    a->watch->see(a->watch->of, &lent);
    end_contents(t);
    tess_idle_wake();
    tess_task_ended(NULL);
}

static void submitted(const tess_task *t)
{
    for (unsigned i = 0; i < t->nuse; i++) {
        if (t->use[i].mode & TESS_W) t->use[i].tile->filled = true;
        if (t->use[i].mode & TESS_LAST) t->use[i].tile->filled = false;
    }
    if (tess_ram_flows()) tess_ram_flow_submitted(t);
    if (tess_gpu_flows()) tess_gpu_flow_submitted(t);
    tess_idle_task();
}

static tess_status submit(const tess_task *t)
{
    const double start = tess_seconds();
    const bool message = t->cl == &tess_message;
    uint64_t *of = message || t->cl == &tess_show ? NULL : &tess_tasks_run_now()->tasks;
    tess_task_begins(of);
    const tess_status status = message               ? (tess_message_submit(t), TESS_OK)
                               : t->cl == &tess_show ? (show(t), TESS_OK)
                                                     : compute(t);
    if (status != TESS_OK) {
        tess_task_ended(of);
        return status;
    }
    submitted(t);
    tess_submit_seconds += tess_seconds() - start;
    if (!message && tess_tasks_running() >= WINDOW) tess_tasks_wait(WINDOW - WINDOW / 4);
    return TESS_OK;
}

static tess_status submit_list(const tess_task *task, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        const size_t in = tess_ram_flows() ? tess_ram_flow_ahead(task, n, k) : n;
        tess_status status = tess_gpu_flows() ? tess_gpu_flow_ahead(task, in, k) : TESS_OK;
        if (status == TESS_OK) status = submit(&task[k]);
        if (status == TESS_OK) continue;
        tess_places_end(&tess_ram_places, task, k);
        tess_places_end(&tess_gpu_places, task, k);
        return status;
    }
    return TESS_OK;
}

bool tess_tiles_planned(tess_tier t)
{
    return t == TESS_TIER_GPU ? tess_gpu_flows() : tess_ram_flows();
}

tess_status tess_submit_all(const tess_task *task, size_t n)
{
    if (!tess_session()) return tess_error(TESS_INVALID, "task", "nothing runs it (tess_start comes first)");
    starpu_iteration_push((unsigned long)tess_tasks_run_now()->env.step + 1); /* for StarPU's own traces */
    const tess_status status = submit_list(task, n);
    starpu_iteration_pop();
    return status;
}

tess_status tess_submit(const tess_task *task)
{
    return tess_submit_all(task, 1);
}

tess_status tess_wait_run(unsigned number)
{
    const tess_tasks_run *r = tess_session() ? tess_tasks_run_of(number) : NULL;
    if (!r) return TESS_OK;
    tess_tasks_run_wait(r);
    tess_gpu_faults();
    const bool failed = tess_fault_stands ? tess_fault_order() < r->end : tess_disk_fault() != NULL;
    return failed ? tess_wait() : TESS_OK;
}

tess_status tess_wait(void)
{
    if (!tess_session()) return TESS_OK;
    tess_tasks_wait(0);
    tess_gpu_faults();
    if (!tess_fault_stands && tess_disk_fault()) tess_fault_set(0, tess_disk_fault());
    if (!tess_fault_stands) return TESS_OK;
    char where[TESS_FAULT_TEXT];
    tess_fault_take(where);
    char *what = strstr(where, ": ");
    if (!what) return tess_error(TESS_FAILED, "task", "%s", where);
    *what = 0;
    return tess_error(TESS_FAILED, where, "%s", what + 2);
}
