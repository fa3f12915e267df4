/* RAM's flow: running a list of tasks whose tiles do not all fit in RAM. The list is the order, known before it runs,
 * and it says for each use of a tile whether the tile stays in RAM after it. So a tile is in RAM from one place of the
 * list to another, and the bytes that RAM holds at each place are known: StarPU never has to look for room.
 *
 * A tile enters when the first task that needs it again is let in. Two places move over the list:
 *
 *               submitted           let in             not yet
 *     .....................|.....................|...................
 *       tasks in StarPU        tiles on their way
 *
 * A task is let in when the tiles that enter with it have, one after the other, got room beside all that entered and
 * did not leave. One that has contents is fetched then, ahead of the task.
 *
 * A tile leaves after a use that is its last (TESS_LAST), which ends its contents, or, if its home is the disk, after
 * one with TESS_LEAVES_RAM: it is written back if that is due, and its copy in RAM goes. StarPU 1.3 has no call for
 * that, so three in order do it: a read on the disk's node, which moves the bytes; an invalidation, which gives all
 * memory back but that of the home; a write on the disk's node, which says that what lies there is the contents. All of
 * these are asynchronous and ordered with the tasks, by StarPU's sequential consistency. The last one's callback says
 * that the room is free.
 *
 * No deadlock: a task that waits for room waits for tiles that leave after tasks submitted before it, and a plan has
 * room for what then remains. A list without a plan, or between two steps of one, may need more: then tiles whose home
 * is the disk leave that a plan kept in RAM, and when there are none the task is let in all the same. */
#include "flow.h"
#include "progress.h"
#include "tiles.h"
#include "trace.h"

static struct {
    uint64_t held, room;         /* bytes of tiles, with the lock held; no room: there is no cap */
    void (*leaves)(tess_tile *); /* hears of each tile that leaves */
    tess_tile *guests;           /* in RAM, and their home is the disk; the last that entered first */
} flow;

void tess_ram_flow_start(uint64_t room, void (*leaves)(tess_tile *t))
{
    flow.room = room > 0 ? room : tess_ranks() > 1 ? UINT64_MAX / 4 : 0;
    flow.leaves = leaves;
}

void tess_ram_flow_stop(void)
{
    flow.room = flow.held = 0;
    flow.guests = NULL;
}

bool tess_ram_flows(void)
{
    return flow.room > 0;
}

/* Tokens, targets and scalars are few and always there, scratch is each worker's: a plan counts them apart. What lives
 * on the GPU comes to RAM only when that has no place for it. */
bool tess_tile_flows(const tess_tile *t)
{
    return t->role != TESS_ROLE_INPUT && t->role != TESS_ROLE_SCALAR && t->role != TESS_ROLE_SCRATCH &&
           t->home != TESS_TIER_GPU;
}

bool tess_use_leaves(const tess_use *u)
{
    return (u->mode & TESS_LAST) || (u->tile->home == TESS_TIER_DISK && (u->mode & TESS_LEAVES_RAM));
}

static bool is_here(const tess_tile *t)
{
    return t->ram.state != TESS_RAM_AWAY;
}

static tess_journey *set_out(tess_way way, tess_tile *t)
{
    tess_progress_lock();
    tess_journey *j = tess_journey_begin(
        way, &(tess_journey){.tile = t, .label = t->label, .kind = tess_role_name(t->role), .bytes = t->bytes});
    tess_progress_unlock();
    return j;
}

/* Gives `bytes` of room back. */
static void arrive(tess_journey *j, uint64_t bytes)
{
    tess_progress_lock();
    tess_journey_end(j);
    flow.held -= bytes;
    tess_progress_moved();
}

/* ---- in ---- */

static void fetched(void *journey)
{
    tess_tile *t = ((tess_journey *)journey)->tile;
    if (tess_traces()) t->came = tess_disk_place_arrival(t->place);
    arrive(journey, 0);
    starpu_data_release_on_node(t->handle, STARPU_MAIN_RAM);
}

static void forget_guest(tess_tile *t)
{
    if (!t->ram.link) return;
    *t->ram.link = t->ram.next;
    if (t->ram.next) t->ram.next->ram.link = t->ram.link;
    t->ram.link = NULL;
}

static void enter(tess_tile *t, int mode, tess_ram_state state)
{
    t->ram.state = state;
    if (t->home == TESS_TIER_DISK) {
        t->ram.next = flow.guests;
        t->ram.link = &flow.guests;
        if (flow.guests) flow.guests->ram.link = &t->ram.next;
        flow.guests = t;
    }
    starpu_data_handle_t handle = tess_tile_handle(t);
    tess_progress_lock();
    flow.held += t->bytes;
    tess_progress_unlock();
    if (!t->filled || !(mode & TESS_R) || t->home != TESS_TIER_DISK) return;
    tess_disk_place_asked(t->place, false);
    starpu_data_acquire_on_node_cb(handle, STARPU_MAIN_RAM, STARPU_R, fetched, set_out(TESS_IN, t));
}

static bool has_room(const void *bytes)
{
    return flow.held + *(const uint64_t *)bytes <= flow.room || !tess_journeys_out();
}

/* Is there room for `bytes` more? With `wait`, there will be when it returns; or nothing more will leave. */
static bool make_room(uint64_t bytes, bool wait, const char *who, const char *what)
{
    tess_progress_lock();
    if (wait && !has_room(&bytes)) {
        tess_lost_more(TESS_FOR_RAM, 1); /* submission stands still */
        tess_progress_until(has_room, &bytes, who, what, TESS_WAIT_ROOM);
        tess_lost_more(TESS_FOR_RAM, -1);
    }
    const bool fits = flow.held + bytes <= flow.room;
    tess_progress_unlock();
    return fits;
}

/* ---- out ---- */

static void written_back(void *handle)
{
    starpu_data_release_on_node(handle, tess_disk_node);
}

/* Its release comes last: the tile may be freed behind it. */
static void left(tess_journey *j, int node)
{
    starpu_data_handle_t handle = j->tile->handle;
    arrive(j, j->bytes);
    starpu_data_release_on_node(handle, node);
}

static void left_to_disk(void *journey)
{
    left(journey, tess_disk_node);
}

static void left_for_good(void *journey)
{
    left(journey, STARPU_ACQUIRE_NO_NODE);
}

static void leave(tess_tile *t, bool contents)
{
    tess_journey *j = set_out(TESS_OUT, t);
    if (contents && t->ram.dirty) {
        tess_disk_place_asked(t->place, true);
        starpu_data_acquire_on_node_cb(t->handle, tess_disk_node, STARPU_R, written_back, t->handle);
    }
    starpu_data_invalidate_submit(t->handle);
    if (contents)
        starpu_data_acquire_on_node_cb(t->handle, tess_disk_node, STARPU_W, left_to_disk, j);
    else
        starpu_data_acquire_on_node_cb(t->handle, STARPU_ACQUIRE_NO_NODE, STARPU_W, left_for_good, j);
    t->ram.state = TESS_RAM_AWAY;
    t->ram.dirty = false;
    forget_guest(t);
    flow.leaves(t);
    tess_idle_wake();
}

static bool used_by(const tess_tile *t, const tess_task *task)
{
    for (unsigned i = 0; task && i < task->nuse; i++)
        if (task->use[i].tile == t) return true;
    return false;
}

/* Makes room for `bytes` more before `task` (NULL: before the main thread's look at a tile), which is next. */
static void insist_on_room(uint64_t bytes, const tess_task *task, const char *who, const char *what)
{
    tess_tile *t = flow.guests;
    while (!make_room(bytes, true, who, what) && t) {
        tess_tile *next = t->ram.next;
        if (t->ram.state == TESS_RAM_HERE && !used_by(t, task)) leave(t, true);
        t = next;
    }
}

/* Its tiles enter one by one, each as soon as there is room: while one is written another is read. */
bool tess_ram_flow_let_in(const tess_task *task, bool turn)
{
    if (!tess_choice_known(task, turn)) return false;
    for (unsigned i = 0; i < task->nuse; i++) {
        const tess_tile *t = task->use[i].tile;
        if (tess_tile_flows(t) && !tess_use_left_out(task, &task->use[i]) && t->ram.state == TESS_RAM_DEPARTS)
            return false; /* only after a task that is not submitted yet */
    }
    for (unsigned i = 0; i < task->nuse; i++) {
        tess_tile *t = task->use[i].tile;
        if (!tess_tile_flows(t) || tess_use_left_out(task, &task->use[i]) || is_here(t)) continue;
        if (turn)
            insist_on_room(t->bytes, task, task->cl->name, task->use[0].tile->label);
        else if (!make_room(t->bytes, false, task->cl->name, t->label))
            return false;
        enter(t, task->use[i].mode, TESS_RAM_HERE);
    }
    for (unsigned i = 0; i < task->nuse; i++) /* what was left out may be here for an earlier task */
        if (tess_tile_flows(task->use[i].tile) && is_here(task->use[i].tile) && tess_use_leaves(&task->use[i]))
            task->use[i].tile->ram.state = TESS_RAM_DEPARTS;
    tess_choice_reset(task);
    return true;
}

void tess_ram_flow_submitted(const tess_task *task)
{
    for (unsigned i = 0; i < task->nuse; i++)
        if (task->use[i].mode & TESS_W) task->use[i].tile->ram.dirty = true;
    for (unsigned i = 0; i < task->nuse; i++) {
        tess_tile *t = task->use[i].tile;
        if (tess_tile_flows(t) && is_here(t) && tess_use_leaves(&task->use[i]))
            leave(t, !(task->use[i].mode & TESS_LAST));
    }
}

/* ---- the main thread's own look at a tile ---- */

void tess_ram_flow_forget(tess_tile *t)
{
    forget_guest(t);
    if (!tess_ram_flows() || !is_here(t)) return;
    tess_progress_lock();
    flow.held -= t->bytes;
    tess_progress_unlock();
}

void tess_ram_flow_map(tess_tile *t, int mode)
{
    if (!tess_tile_flows(t) || is_here(t)) return;
    insist_on_room(t->bytes, NULL, "the main thread", t->label);
    /* It will acquire the tile itself. */
    enter(t, mode & ~TESS_R, t->home == TESS_TIER_DISK ? TESS_RAM_VISITS : TESS_RAM_HERE);
}

void tess_ram_flow_unmap(tess_tile *t, int mode)
{
    if (mode & TESS_W) t->ram.dirty = true;
    if (t->ram.state == TESS_RAM_VISITS) leave(t, true);
}
