/* The GPU's flow: tiles on a GPU whose memory may not hold them all. As in RAM (ram_places.c) the list of tasks is the
 * order and says after which uses a tile leaves (TESS_LEAVES_GPU; graph/plan/plan_gpu.c), and StarPU never looks for
 * room: all tiles that tasks of the GPU use have places in one piece of its memory, which places.c gives out and takes
 * back. StarPU is told where a tile lies as if the user had allocated it, so that it neither frees nor evicts it.
 *
 * A tile leaves by a read-write access in RAM, which copies what RAM does not have and makes the copy on the GPU
 * invalid; its callback says that the place is free. Where the contents ended, or RAM's own flow takes the tile
 * further, there is nothing to copy and the access only waits for its turn.
 *
 * What is used nowhere else lives on the GPU (TESS_TIER_GPU): it has no copy in RAM but while it is mapped
 * there, after which it comes home.
 *
 * What the optimizer alone uses and does not live here has no place: its updates are the cores'. With several GPUs in
 * one process StarPU's choice is all there is. */
#include "runtime/flow/flow.h"
#include "runtime/gpu/gpu.h"
#include "runtime/messages/messages.h"
#include "runtime/progress/progress.h"
#include "runtime/trace/trace.h"

static uintptr_t memory;

bool tess_gpu_flows(void)
{
    return memory != 0;
}

tess_status tess_gpu_flow_start(uint64_t room)
{
    if (!room || tess_gpu_workers() == 0) return TESS_OK;
    memory = tess_gpu_take(room);
    if (!memory)
        return tess_error(TESS_INVALID, "GPU", "its memory has no %s left in one piece (let tiles have less of it)",
                          tess_human_bytes((double)room));
    tess_places_start(&tess_gpu_places, room);
    return tess_gpu_take_chunks();
}

void tess_gpu_flow_stop(void)
{
    if (!memory) return;
    tess_gpu_give(memory, tess_gpu_places.room);
    memory = 0;
    tess_places_stop(&tess_gpu_places);
}

/* ---- which tasks ---- */

static bool of_optimizer(const tess_tile *t)
{
    return t->role == TESS_ROLE_MASTER || t->role == TESS_ROLE_MOMENT;
}

bool tess_task_can_gpu(const tess_task *t)
{
    return t->cl != &tess_message && tess_gpu_body(t->cl);
}

bool tess_task_on_gpu(const tess_task *t)
{
    if (!tess_task_can_gpu(t)) return false;
    for (unsigned i = 0; t->cl->either && i < t->nuse; i++)
        if (of_optimizer(t->use[i].tile) && t->use[i].tile->home != TESS_TIER_GPU) return false;
    return true;
}

bool tess_tile_has_place(const tess_tile *t)
{
    if (of_optimizer(t)) return t->home == TESS_TIER_GPU;
    return t->role != TESS_ROLE_INPUT && t->role != TESS_ROLE_SCALAR && t->role != TESS_ROLE_SCRATCH;
}

/* Its tiles must have places. */
static bool needs_places(const tess_task *t)
{
    return t->cl == &tess_message ? tess_messages_on_gpu() : tess_task_on_gpu(t);
}

static bool needs_place(const tess_task *t, const tess_use *u)
{
    return tess_tile_has_place(u->tile) && needs_places(t);
}

static bool leaves(const tess_use *u)
{
    return u->mode & (TESS_LEAVES_GPU | TESS_LAST);
}

static bool is_settled(const tess_tile *t)
{
    return t->stay[TESS_TIER_GPU].state == TESS_SETTLED;
}

uint32_t tess_gpu_flow_where(const tess_task *t)
{
    return tess_task_on_gpu(t) ? STARPU_CUDA : STARPU_CPU;
}

/* ---- in ---- */

/* Tiles come to the GPU, or, with less than none, have come. */
static void count_coming(int more)
{
    tess_progress_lock();
    tess_starved_more(TESS_FOR_GPU, more);
    tess_progress_unlock();
}

/* StarPU does not say when a copy begins: it is drawn from when it was asked for. */
static void trace(tess_trace_kind kind, const tess_tile *t, double asked, uint32_t arrival)
{
    tess_trace_add(&(tess_trace_event){.kind = kind,
                                       .begin = asked,
                                       .end = tess_seconds(),
                                       .asked = asked,
                                       .name = tess_role_name(t->role),
                                       .of = t->label,
                                       .bytes = t->bytes,
                                       .arrival = arrival});
}

static void fetched(void *tile)
{
    tess_tile *t = tile;
    count_coming(-1);
    if (tess_traces() && t->gpu.asked > 0) {
        const uint32_t arrival = tess_trace_arrival();
        trace(TESS_TRACE_TO_GPU, t, t->gpu.asked, arrival);
        t->came = arrival;
    }
    starpu_data_release_on_node(t->handle, (int)tess_gpu_first_node());
}

static void fetch(tess_tile *t)
{
    count_coming(1);
    t->gpu.asked = tess_traces() ? tess_seconds() : 0;
    starpu_data_acquire_on_node_cb(t->handle, (int)tess_gpu_first_node(), STARPU_R, fetched, t);
}

static void came_home(void *handle)
{
    starpu_data_release_on_node(handle, (int)tess_gpu_first_node());
}

/* Brings what lives on the GPU back to its place, and frees its copy in RAM: a read there moves the bytes; an
 * invalidation gives back all memory that StarPU allocated; a write there says that what lies in the place is the
 * contents. */
static void bring_home(tess_tile *t)
{
    fetch(t);
    starpu_data_invalidate_submit(t->handle);
    starpu_data_acquire_on_node_cb(t->handle, (int)tess_gpu_first_node(), STARPU_W, came_home, t->handle);
}

static void settle(tess_tile *t, bool comes)
{
    const unsigned node = tess_gpu_first_node();
    const starpu_data_handle_t handle = tess_tile_handle(t);
    const uintptr_t at = memory + t->stay[TESS_TIER_GPU].at;
    if (t->gpu.known) {
        struct starpu_vector_interface *v = starpu_data_get_interface_on_node(handle, node);
        v->ptr = v->dev_handle = at;
    } else
        starpu_vector_ptr_register(handle, node, at, at, 0);
    t->gpu.known = true;
    if (comes && t->home == TESS_TIER_GPU)
        bring_home(t);
    else if (comes)
        fetch(t);
}

/* ---- out ---- */

static int node_of(const tess_departure *d)
{
    return d->copy ? STARPU_MAIN_RAM : STARPU_ACQUIRE_NO_NODE;
}

static void left(void *departure)
{
    tess_departure *d = departure;
    const starpu_data_handle_t handle = d->tile->handle;
    const int node = node_of(d);
    if (tess_traces() && d->asked > 0) trace(TESS_TRACE_OFF_GPU, d->tile, d->asked, 0);
    tess_departure_ends(d);
    tess_progress_lock();
    tess_progress_moved();
    starpu_data_release_on_node(handle, node);
}

static void leave(tess_departure *d)
{
    d->asked = d->copy && tess_traces() ? tess_seconds() : 0;
    starpu_data_acquire_on_node_cb(d->tile->handle, node_of(d), d->copy ? STARPU_RW : STARPU_W, left, d);
}

void tess_gpu_flow_leaves_ram(tess_tile *t)
{
    if (tess_is_placed(t, TESS_TIER_GPU)) tess_places_leave(&tess_gpu_places, t, false);
}

tess_places tess_gpu_places = {.level = TESS_TIER_GPU,
                               .addresses = true,
                               .ahead = TESS_GPU_AHEAD,
                               .cause = TESS_FOR_GPU,
                               .why = TESS_WAIT_PLACE,
                               .needs = needs_place,
                               .leaves = leaves,
                               .settle = settle,
                               .leave = leave};

/* ---- the list ---- */

/* Moves a tile that lives on the GPU back there after a use elsewhere, and frees its copy in RAM; returns false if it
 * has no place. */
static bool come_home(tess_tile *t)
{
    if (!tess_is_placed(t, TESS_TIER_GPU)) return tess_places_come(&tess_gpu_places, t, true);
    if (is_settled(t))
        bring_home(t);
    else
        t->stay[TESS_TIER_GPU].state = TESS_COMES;
    return true;
}

void tess_gpu_flow_submitted(const tess_task *task)
{
    tess_places_submitted(&tess_gpu_places, task);
    for (unsigned i = 0; i < task->nuse && !needs_places(task); i++) {
        tess_tile *t = task->use[i].tile;
        if (t->home == TESS_TIER_GPU && t->filled && tess_tile_has_place(t)) come_home(t);
    }
}

/* Moves a tile that the main thread had mapped back to the GPU at once, since no list runs: loading all of a model
 * takes the RAM of a tile. */
void tess_gpu_flow_unmap(tess_tile *t)
{
    const int node = (int)tess_gpu_first_node();
    if (t->home != TESS_TIER_GPU || !tess_tile_has_place(t) || !come_home(t)) return;
    tess_places_settle(&tess_gpu_places, t, "the main thread");
    tess_tile_acquire(t, node, TESS_R);
    starpu_data_release_on_node(t->handle, node);
}

tess_status tess_gpu_flow_ahead(const tess_task *task, size_t n, size_t k)
{
    if (tess_places_ahead(&tess_gpu_places, task, n, k)) return TESS_OK;
    return tess_error(TESS_INVALID, "GPU", "%s for tiles, which is too little for %s alone",
                      tess_human_bytes((double)tess_gpu_places.room), task[k].cl->name);
}

/* ---- on paper ---- */

static uint64_t on_paper[2]; /* bytes to the GPU and back */

static void settle_on_paper(tess_tile *t, bool comes)
{
    if (!comes || t->paper.here || !t->paper.below) return;
    on_paper[0] += t->bytes;
    t->paper.here = true;
}

static void leave_on_paper(tess_departure *d)
{
    tess_tile *t = d->tile;
    if (d->copy && t->paper.here && !t->paper.below) {
        on_paper[1] += t->bytes;
        t->paper.below = true;
    }
    t->paper.here = false;
    tess_departure_ends(d);
}

/* What StarPU copies for a use, and what is left of other copies. */
static void use_on_paper(const tess_task *task, const tess_use *u)
{
    tess_tile *t = u->tile;
    const bool above = needs_place(task, u);
    bool *mine = above ? &t->paper.here : &t->paper.below, *other = above ? &t->paper.below : &t->paper.here;
    if ((u->mode & TESS_R) && !*mine && *other) on_paper[!above] += t->bytes;
    *mine = true;
    if (u->mode & TESS_W) *other = false;
    t->filled |= (u->mode & TESS_W) != 0;
    if (u->mode & TESS_LAST) t->filled = t->paper.here = t->paper.below = false;
}

static bool play(const tess_task *task, size_t n)
{
    for (size_t k = 0; k < n; k++) {
        if (!tess_places_ahead(&tess_gpu_places, task, n, k)) return false;
        for (unsigned i = 0; i < task[k].nuse; i++)
            if (tess_tile_has_place(task[k].use[i].tile)) use_on_paper(&task[k], &task[k].use[i]);
        tess_places_submitted(&tess_gpu_places, &task[k]);
    }
    return true;
}

/* Before a run all are in RAM that a list reads before it writes them, but for those that live on the GPU: they got
 * their places when they were filled. */
static void set_out_on_paper(tess_tile *t, int mode)
{
    if (t->paper.met) return;
    t->paper.met = true;
    t->paper.filled = t->filled;
    t->paper.here = false;
    t->filled = t->paper.below = (mode & TESS_R) != 0;
    if (t->filled && t->home == TESS_TIER_GPU && tess_places_come(&tess_gpu_places, t, true))
        tess_places_settle(&tess_gpu_places, t, NULL);
}

static void put_back(tess_tile *t, int mode)
{
    (void)mode;
    if (!t->paper.met) return;
    t->paper.met = false;
    t->filled = t->paper.filled;
    t->stay[TESS_TIER_GPU] = (tess_stay){0};
}

static void each_tile(const tess_task *task, size_t n, void (*does)(tess_tile *t, int mode))
{
    for (size_t k = 0; k < n; k++)
        for (unsigned i = 0; i < task[k].nuse; i++)
            if (tess_tile_has_place(task[k].use[i].tile)) does(task[k].use[i].tile, task[k].use[i].mode);
}

bool tess_gpu_flow_play(const tess_task *task, size_t n, uint64_t room, uint64_t *to, uint64_t *back)
{
    if (memory || !room) return false;
    const tess_places real = tess_gpu_places;
    tess_gpu_places.settle = settle_on_paper, tess_gpu_places.leave = leave_on_paper;
    tess_places_start(&tess_gpu_places, room);
    each_tile(task, n, set_out_on_paper);
    bool held = play(task, n) && play(task, n);
    on_paper[0] = on_paper[1] = 0;
    held = held && play(task, n);
    *to = on_paper[0], *back = on_paper[1];
    tess_places_stop(&tess_gpu_places);
    tess_gpu_places = real;
    each_tile(task, n, put_back);
    return held;
}
