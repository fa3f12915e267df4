/* The GPU's flow: tiles on a GPU whose memory may not hold them all. As in RAM (ram.c) the list of tasks is the order
 * and says after which uses a tile leaves (TESS_LEAVES_GPU; graph/plan/plan_gpu.c), and StarPU never looks for room:
 * all tiles that tasks of the GPU use have places in one piece of its memory, which are given out and taken back here.
 * StarPU is told where a tile lies as if the user had allocated it, so that it neither frees nor evicts it.
 *
 * A place is given when its task is looked at, ahead of its turn as far as places go, and taken back when a task after
 * which the tile leaves is submitted: so places depend on the list alone, and are the same in each run. What happens
 * there happens later: a tile settles in its place when those that had it before are gone, and is fetched then.
 *
 * A tile leaves by a read-write access in RAM, which copies what RAM does not have and makes the copy on the GPU
 * invalid; its callback says that the place is free. Where the contents ended, or RAM's own flow takes the tile
 * further, there is nothing to copy and the access only waits for its turn.
 *
 * No deadlock: a task in its turn waits for tiles that leave after tasks submitted before it. When no free stretch is
 * long enough for it, tiles that it does not use leave, as few bytes as will do; and if its own are in the way, all.
 *
 * What is used nowhere else lives on the GPU (TESS_TIER_GPU): it has no copy in RAM but while somebody looks at it
 * there, after which it comes home.
 *
 * What the optimizer alone uses and does not live here has no place: its updates are the cores'. With several GPUs in
 * one process StarPU's choice is all there is. */
#include "flow.h"
#include "gpu.h"
#include "messages.h"
#include "pool_impl.h"
#include "progress.h"
#include "tiles.h"
#include "trace.h"
#include <stdatomic.h>
#include <stdlib.h>

enum { AHEAD = 256 }; /* tasks that are looked at, at most */

/* A tile that leaves, or left: its bytes are used until `gone`. */
struct departure {
    uint64_t at, bytes;
    const tess_tile *tile;
    starpu_data_handle_t handle;
    int node;
    double asked; /* for the trace, where bytes move; else 0 */
    atomic_bool gone;
    struct departure *next;
};

static struct {
    uint64_t room;
    uintptr_t memory;
    tess_pool *pool;
    struct departure *departing, **last;
    tess_tile **unsettled; /* in the order of their tasks */
    size_t first, end, cap;
    size_t looked; /* at the tasks of the list before this one */
} gpu = {.last = &gpu.departing};

bool tess_gpu_flows(void)
{
    return gpu.pool != NULL;
}

tess_status tess_gpu_flow_start(uint64_t room)
{
    if (!room || tess_gpu_workers() == 0) return TESS_OK;
    gpu.room = room;
    gpu.memory = tess_gpu_take(gpu.room);
    if (!gpu.memory)
        return tess_error(TESS_INVALID, "GPU", "its memory has no %s left in one piece (let tiles have less of it)",
                          tess_human_bytes((double)gpu.room));
    gpu.pool = tess_pool_new(gpu.room);
    return TESS_OK;
}

void tess_gpu_flow_stop(void)
{
    if (!gpu.pool) return;
    tess_gpu_give(gpu.memory, gpu.room);
    tess_pool_free(gpu.pool);
    gpu.pool = NULL;
    for (struct departure *d = gpu.departing, *next; d; d = next) {
        next = d->next;
        free(d);
    }
    gpu.departing = NULL;
    gpu.last = &gpu.departing;
    for (; gpu.first < gpu.end; gpu.first++) { /* looked at, and not submitted */
        gpu.unsettled[gpu.first]->gpu.state = TESS_GPU_AWAY;
        gpu.unsettled[gpu.first]->gpu.departs = false;
    }
    free(gpu.unsettled);
    gpu.unsettled = NULL;
    gpu.first = gpu.end = gpu.cap = 0;
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

uint32_t tess_gpu_flow_where(const tess_task *t)
{
    return tess_task_on_gpu(t) ? STARPU_CUDA : STARPU_CPU;
}

/* ---- in ---- */

/* Tiles come to the GPU, or, with less than none, have come. */
static void count_coming(int more)
{
    tess_progress_lock();
    tess_lost_more(TESS_FOR_GPU, more);
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

/* Forgets departures that ended. */
static void sweep(void)
{
    struct departure **at = &gpu.departing;
    while (*at) {
        struct departure *d = *at;
        if (!atomic_load(&d->gone)) {
            at = &d->next;
            continue;
        }
        *at = d->next;
        free(d);
    }
    gpu.last = at;
}

/* Is the tile's place, and the tile itself, free of those that leave? */
static bool is_free(const void *tile)
{
    const tess_tile *t = tile;
    for (const struct departure *d = gpu.departing; d; d = d->next)
        if ((d->tile == t || (d->at < t->gpu.at + t->bytes && t->gpu.at < d->at + d->bytes)) && !atomic_load(&d->gone))
            return false;
    return true;
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

static void settle(tess_tile *t)
{
    const unsigned node = tess_gpu_first_node();
    const starpu_data_handle_t handle = tess_tile_handle(t);
    const uintptr_t at = gpu.memory + t->gpu.at;
    if (t->gpu.known) {
        struct starpu_vector_interface *v = starpu_data_get_interface_on_node(handle, node);
        v->ptr = v->dev_handle = at;
    } else
        starpu_vector_ptr_register(handle, node, at, at, 0);
    const bool comes = t->gpu.state == TESS_GPU_COMES;
    t->gpu.known = true;
    t->gpu.state = TESS_GPU_SETTLED;
    if (comes && t->home == TESS_TIER_GPU)
        bring_home(t);
    else if (comes)
        fetch(t);
}

/* Settles tiles whose places became free, in order; with `t`, up to that one, waiting for it. */
static void settle_all(const tess_tile *t, const char *who)
{
    sweep();
    while (gpu.first < gpu.end && !(t && t->gpu.state == TESS_GPU_SETTLED)) {
        tess_tile *next = gpu.unsettled[gpu.first];
        if (!is_free(next)) {
            if (!t) return;
            tess_progress_lock();
            tess_lost_more(TESS_FOR_GPU, 1);
            tess_progress_until(is_free, next, who, next->label, TESS_WAIT_PLACE);
            tess_lost_more(TESS_FOR_GPU, -1);
            tess_progress_unlock();
        }
        settle(next);
        gpu.first++;
    }
    if (gpu.first == gpu.end) gpu.first = gpu.end = 0;
}

static bool is_placed(const tess_tile *t)
{
    return t->gpu.state != TESS_GPU_AWAY;
}

static bool take(tess_tile *t)
{
    const bool passes = t->role == TESS_ROLE_ACTIVATION; /* they come and go among themselves: fewest holes are left */
    if (!tess_pool_take(gpu.pool, t->bytes, !passes, t, &t->gpu.at)) return false;
    t->gpu.state = TESS_GPU_PLACED;
    return true;
}

static void enter(tess_tile *t, bool fetch)
{
    t->gpu.state = fetch && t->filled ? TESS_GPU_COMES : TESS_GPU_PLACED;
    if (gpu.end == gpu.cap) gpu.unsettled = tess_realloc(gpu.unsettled, (gpu.cap += 1024) * sizeof *gpu.unsettled);
    gpu.unsettled[gpu.end++] = t;
}

/* ---- out ---- */

static void left(void *departure)
{
    struct departure *d = departure;
    const starpu_data_handle_t handle = d->handle;
    const int node = d->node;
    if (tess_traces() && d->asked > 0) trace(TESS_TRACE_OFF_GPU, d->tile, d->asked, 0);
    atomic_store(&d->gone, true); /* and is the main thread's */
    tess_progress_lock();
    tess_progress_moved();
    starpu_data_release_on_node(handle, node);
}

/* The place is another's from now on. Had the tile settled there? */
static bool give_back(tess_tile *t)
{
    const bool settled = t->gpu.state == TESS_GPU_SETTLED;
    tess_pool_give(gpu.pool, t->gpu.at);
    t->gpu.state = TESS_GPU_AWAY;
    t->gpu.departs = false;
    if (settled) return true;
    size_t i = gpu.first;
    while (i < gpu.end && gpu.unsettled[i] != t) i++;
    if (i == gpu.end) return false;
    for (; i + 1 < gpu.end; i++) gpu.unsettled[i] = gpu.unsettled[i + 1];
    gpu.end--;
    return false;
}

/* With `copy` the contents go to RAM; else they ended, or are elsewhere. What did not settle never came. */
static void leave(tess_tile *t, bool copy)
{
    if (!give_back(t)) return;
    struct departure *d = tess_alloc(sizeof *d);
    d->at = t->gpu.at;
    d->bytes = t->bytes;
    d->tile = t;
    d->handle = t->handle;
    d->node = copy ? STARPU_MAIN_RAM : STARPU_ACQUIRE_NO_NODE;
    d->asked = copy && tess_traces() ? tess_seconds() : 0;
    *gpu.last = d;
    gpu.last = &d->next;
    starpu_data_acquire_on_node_cb(t->handle, d->node, copy ? STARPU_RW : STARPU_W, left, d);
}

void tess_gpu_flow_leaves_ram(tess_tile *t)
{
    if (gpu.pool && is_placed(t)) leave(t, false);
}

void tess_gpu_flow_forget(tess_tile *t)
{
    if (gpu.pool && is_placed(t)) give_back(t);
}

/* ---- the list ---- */

static bool used_by(const void *tile, const void *task)
{
    const tess_task *t = task;
    for (unsigned i = 0; t && i < t->nuse; i++)
        if (t->use[i].tile == tile) return true;
    return false;
}

static bool used_or_at_home(const void *tile, const void *task)
{
    return ((const tess_tile *)tile)->home == TESS_TIER_GPU || used_by(tile, task);
}

/* Those leave that are in the way of so many bytes; how many are there? */
static size_t leave_all(uint64_t bytes, bool (*stays)(const void *, const void *), const tess_task *task)
{
    void **owner;
    const size_t n = tess_pool_in_the_way(gpu.pool, bytes, stays, task, &owner);
    for (size_t i = 0; i < n; i++) leave(owner[i], ((tess_tile *)owner[i])->filled);
    free(owner);
    return n;
}

/* Room for a tile of a task in its turn (NULL: of none), at the cost of others. */
static bool insist(tess_tile *t, const tess_task *task)
{
    return (leave_all(t->bytes, used_or_at_home, task) || leave_all(t->bytes, used_by, task)) && take(t);
}

/* Somebody elsewhere used what lives on the GPU: it goes back, and its copy in RAM goes. */
static void come_home(tess_tile *t)
{
    if (t->gpu.state == TESS_GPU_SETTLED)
        bring_home(t);
    else if (is_placed(t))
        t->gpu.state = TESS_GPU_COMES;
    else if (take(t) || insist(t, NULL))
        enter(t, true);
}

/* Places for all that the task uses, or for nothing. In its turn no task before it is still to write what it reads. */
static bool place_all(const tess_task *task, bool turn)
{
    unsigned n = 0;
    bool all = true;
    bool fresh[task->nuse ? task->nuse : 1];
    for (; n < task->nuse && all; n++) {
        tess_tile *t = task->use[n].tile;
        fresh[n] = false;
        if (tess_tile_has_place(t) && !is_placed(t)) all = fresh[n] = take(t) || (turn && insist(t, task));
    }
    for (unsigned i = 0; i < n; i++) {
        tess_tile *t = task->use[i].tile;
        if (!fresh[i]) continue;
        if (all) enter(t, (task->use[i].mode & TESS_R) && (turn || !t->gpu.writers));
        if (all) continue;
        tess_pool_give(gpu.pool, t->gpu.at);
        t->gpu.state = TESS_GPU_AWAY;
    }
    return all;
}

static bool nobody(const void *tile, const void *arg)
{
    (void)tile, (void)arg;
    return false;
}

/* The same; in its turn, if what it uses itself lies in the way, by beginning anew in an empty room. */
static bool place(const tess_task *task, bool turn)
{
    if (place_all(task, turn)) return true;
    if (!turn) return false;
    leave_all(tess_pool_bytes(gpu.pool), nobody, NULL);
    return place_all(task, true);
}

void tess_gpu_flow_submitted(const tess_task *task)
{
    const bool elsewhere = !needs_places(task);
    for (unsigned i = 0; i < task->nuse; i++) {
        tess_tile *t = task->use[i].tile;
        const int mode = task->use[i].mode;
        if (tess_tile_has_place(t) && (mode & TESS_W) && t->gpu.writers) t->gpu.writers--;
    }
    for (unsigned i = 0; i < task->nuse; i++) {
        tess_tile *t = task->use[i].tile;
        const int mode = task->use[i].mode;
        if (is_placed(t) && (mode & (TESS_LEAVES_GPU | TESS_LAST))) leave(t, !(mode & TESS_LAST));
        if (elsewhere && t->home == TESS_TIER_GPU && t->filled && tess_tile_has_place(t)) come_home(t);
    }
}

/* Looks at a task for the first time. */
static bool look_at(const tess_task *task, bool turn)
{
    if (needs_places(task)) {
        for (unsigned i = 0; i < task->nuse && !turn; i++)
            if (task->use[i].tile->gpu.departs) return false; /* it will have left before this task */
        if (!place(task, turn)) return false;
    }
    for (unsigned i = 0; i < task->nuse; i++) {
        tess_tile *t = task->use[i].tile;
        if (!tess_tile_has_place(t)) continue;
        if (task->use[i].mode & TESS_W) t->gpu.writers++;
        if (is_placed(t) && (task->use[i].mode & (TESS_LEAVES_GPU | TESS_LAST))) t->gpu.departs = true;
    }
    return true;
}

/* Between lists nobody else is on the way: what the main thread had in RAM goes back where it lives, at once, so that
 * loading all of a model takes the RAM of a tile. */
void tess_gpu_flow_unmap(tess_tile *t)
{
    const int node = (int)tess_gpu_first_node();
    if (t->home != TESS_TIER_GPU || !tess_tile_has_place(t)) return;
    come_home(t);
    if (!is_placed(t)) return;
    settle_all(t, "the main thread");
    tess_tile_acquire(t, node, TESS_R);
    starpu_data_release_on_node(t->handle, node);
}

/* The list ends before task k: what was looked at from there on will not be submitted. */
void tess_gpu_flow_ends(const tess_task *task, size_t k)
{
    for (; k < gpu.looked; k++)
        for (unsigned i = 0; i < task[k].nuse; i++) {
            tess_tile *t = task[k].use[i].tile;
            if ((task[k].use[i].mode & TESS_W) && t->gpu.writers) t->gpu.writers--;
            t->gpu.departs = false;
        }
}

tess_status tess_gpu_flow_ahead(const tess_task *task, size_t n, size_t k)
{
    if (k == 0) gpu.looked = 0;
    const tess_task *next = &task[k];
    bool fits = gpu.looked <= k || !needs_places(next) || place(next, true); /* some may have had to go since */
    while (fits && gpu.looked < n && gpu.looked < k + AHEAD && look_at(&task[gpu.looked], gpu.looked == k))
        gpu.looked++;
    if (!fits || gpu.looked <= k)
        return tess_error(TESS_INVALID, "GPU", "%s for tiles, which is too little for %s alone",
                          tess_human_bytes((double)gpu.room), next->cl->name);
    for (unsigned i = 0; needs_places(next) && i < next->nuse; i++)
        if (is_placed(next->use[i].tile)) settle_all(next->use[i].tile, next->cl->name);
    settle_all(NULL, NULL);
    return TESS_OK;
}
