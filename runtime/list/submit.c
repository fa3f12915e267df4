/* The one place that submits tasks to StarPU. A task of ours becomes one of StarPU's whose body is in run.c.
 *
 * Order. Priorities follow the program: of the tasks that are ready, the earlier one runs first, so that execution
 * stays near the order whose memory was planned. Accesses are R, W and RW in sequential consistency, never COMMUTE or
 * REDUX: the bits of a result do not depend on the scheduler or the number of workers. With a GPU, what has a CUDA body
 * runs there; only codelets whose two bodies have the same bits are StarPU's to place.
 */
#include "runtime/gpu/gpu.h"
#include "runtime/list/list.h"
#include "runtime/tiles/tiles.h"
#include <stdlib.h>
#include <string.h>

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
    s->cl.cpu_funcs[0] = cl->cpu ? tess_task_run_cpu : NULL;
    s->cl.cpu_funcs_name[0] = cl->name;
    if (tess_gpu_body(cl) && tess_gpu_workers() > 0) {
        s->cl.cuda_funcs[0] = tess_task_run_cuda;
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
    tess_profile_start(profile);
    tess_parts_start((int)starpu_worker_get_count(), tess_gpu_workers() == 0, tess_task_helped, tess_slab_hold);
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
    tess_env_set(&(tess_env){0});
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
    tess_tasks_run *run = tess_tasks_run_now();
    const uint32_t place = run->env.first + t->order;
    if (run->end <= place) run->end = place + 1;
    task->priority = -(int)place;
    /* For StarPU's own traces; it is not declared, and nothing waits for it. */
    task->tag_id = (starpu_tag_t)(run->env.step + 1) << 32 | t->order;
    task->flops = tess_task_cost(t).flops;
    if (t->nuse > STARPU_NMAXBUFS) {
        task->dyn_handles = tess_alloc(t->nuse * sizeof *task->dyn_handles);
        task->dyn_modes = tess_alloc(t->nuse * sizeof *task->dyn_modes);
    }
    int n = 0;
    for (unsigned i = 0; i < t->nuse; i++) {
        if (tess_task_left_out(t, &t->use[i])) continue;
        STARPU_TASK_SET_HANDLE(task, tess_tile_handle(t->use[i].tile), n);
        STARPU_TASK_SET_MODE(task, starpu_mode(t->use[i].mode), n);
        n++;
    }
    task->nbuffers = n;
    if (where) task->where = (int32_t)where;
    task->callback_func = tess_task_done;
    task->callback_arg = tess_standstill_knows(task, run);
    int rc = starpu_task_submit(task);
    if (rc) {
        tess_standstill_forgets(task->callback_arg);
        task->destroy = 0;
        starpu_task_destroy(task);
        return tess_error(TESS_FAILED, t->cl->name, "StarPU has no worker for this codelet (error %d)", -rc);
    }
    return TESS_OK;
}
