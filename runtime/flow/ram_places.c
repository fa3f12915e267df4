/* RAM's flow: running a list of tasks whose tiles do not all fit in RAM. The list is the order, known before it runs,
 * and it says for each use of a tile whether the tile stays in RAM after it. So a tile is in RAM from one place of the
 * list to another, and the bytes that RAM holds at each place are known: StarPU never has to look for room. places.c
 * counts them, and says which tile enters when; one that has contents is fetched then, ahead of its task.
 *
 * A tile leaves after a use that is its last (TESS_LAST), which ends its contents, or, if its home is the disk, after
 * one with TESS_LEAVES_RAM: it is written back if that is due, and its copy in RAM goes. StarPU 1.3 has no call for
 * that, so three in order do it: a read on the disk's node, which moves the bytes; an invalidation, which gives all
 * memory back but that of the home; a write on the disk's node, which says that what lies there is the contents. All of
 * these are asynchronous and ordered with the tasks, by StarPU's sequential consistency. The last one's callback says
 * that the room is free.
 *
 * A plan has room for all that a task needs beside what stays. A list without a plan, or between two steps of one, may
 * need more: then tiles whose home is the disk leave that a plan kept in RAM, and when there are none the task has its
 * tiles all the same. */
#include "runtime/flow/flow.h"
#include "runtime/progress/progress.h"
#include "runtime/trace/trace.h"

static void (*leaves)(tess_tile *t); /* hears of each tile that leaves */

void tess_ram_flow_start(uint64_t room, void (*hears)(tess_tile *t))
{
    tess_places_start(&tess_ram_places, room > 0 ? room : tess_ranks() > 1 ? UINT64_MAX / 4 : 0);
    leaves = hears;
}

void tess_ram_flow_stop(void)
{
    tess_places_stop(&tess_ram_places);
}

bool tess_ram_flows(void)
{
    return tess_ram_places.room > 0;
}

/* Tokens, targets and scalars are few and always there, scratch is each worker's: a plan counts them apart. What lives
 * on the GPU comes to RAM only when that has no place for it. */
bool tess_tile_flows(const tess_tile *t)
{
    return t->role != TESS_ROLE_INPUT && t->role != TESS_ROLE_SCALAR && t->role != TESS_ROLE_SCRATCH &&
           t->home != TESS_TIER_GPU;
}

/* Returns whether a tile that flows leaves RAM after this use: for good, or for its home on the disk. */
static bool use_leaves(const tess_use *u)
{
    return (u->mode & TESS_LAST) || (u->tile->home == TESS_TIER_DISK && (u->mode & TESS_LEAVES_RAM));
}

static bool needs_room(const tess_task *t, const tess_use *u)
{
    return tess_tile_flows(u->tile) && !tess_use_left_out(t, u);
}

/* Is it known which tiles the task does without? What it chooses itself is not, from now on. */
static bool is_chosen(const tess_task *t, bool turn)
{
    if (!tess_choice_known(t, turn)) return false;
    tess_choice_reset(t);
    return true;
}

static tess_journey *set_out(tess_way way, tess_tile *t)
{
    tess_progress_lock();
    tess_journey *j = tess_journey_begin(
        way, &(tess_journey){.tile = t, .label = t->label, .kind = tess_role_name(t->role), .bytes = t->bytes});
    tess_progress_unlock();
    return j;
}

/* ---- in ---- */

static void fetched(void *journey)
{
    tess_tile *t = ((tess_journey *)journey)->tile;
    if (tess_traces()) t->came = tess_disk_place_arrival(t->place);
    tess_progress_lock();
    tess_journey_end(journey);
    tess_progress_moved();
    starpu_data_release_on_node(t->handle, STARPU_MAIN_RAM);
}

static void enter(tess_tile *t, bool comes)
{
    starpu_data_handle_t handle = tess_tile_handle(t);
    if (!comes || t->home != TESS_TIER_DISK) return;
    tess_disk_place_asked(t->place, false);
    starpu_data_acquire_on_node_cb(handle, STARPU_MAIN_RAM, STARPU_R, fetched, set_out(TESS_IN, t));
}

/* ---- out ---- */

static void written_back(void *handle)
{
    starpu_data_release_on_node(handle, tess_disk_node);
}

/* Its release comes last: the tile may be freed behind it. */
static void left(void *departure)
{
    tess_departure *d = departure;
    starpu_data_handle_t handle = d->tile->handle;
    const int node = d->copy ? tess_disk_node : STARPU_ACQUIRE_NO_NODE;
    tess_progress_lock();
    tess_journey_end(d->journey);
    tess_departure_ends(d);
    tess_progress_moved();
    starpu_data_release_on_node(handle, node);
}

static void leave(tess_departure *d)
{
    tess_tile *t = d->tile;
    d->journey = set_out(TESS_OUT, t);
    if (d->copy && t->ram.dirty) {
        tess_disk_place_asked(t->place, true);
        starpu_data_acquire_on_node_cb(t->handle, tess_disk_node, STARPU_R, written_back, t->handle);
    }
    starpu_data_invalidate_submit(t->handle);
    starpu_data_acquire_on_node_cb(t->handle, d->copy ? tess_disk_node : STARPU_ACQUIRE_NO_NODE, STARPU_W, left, d);
    t->ram.dirty = false;
    leaves(t);
    tess_idle_wake();
}

tess_places tess_ram_places = {.level = TESS_TIER_CPU,
                               .ahead = SIZE_MAX,
                               .cause = TESS_FOR_RAM,
                               .why = TESS_WAIT_ROOM,
                               .needs = needs_room,
                               .leaves = use_leaves,
                               .ready = is_chosen,
                               .settle = enter,
                               .leave = leave};

/* ---- the list ---- */

size_t tess_ram_flow_ahead(const tess_task *task, size_t n, size_t k)
{
    TESS_ASSERT(tess_places_ahead(&tess_ram_places, task, n, k));
    const size_t ready = tess_places_ready(&tess_ram_places);
    return ready > k ? ready : k + 1;
}

void tess_ram_flow_submitted(const tess_task *task)
{
    for (unsigned i = 0; i < task->nuse; i++)
        if (task->use[i].mode & TESS_W) task->use[i].tile->ram.dirty = true;
    tess_places_submitted(&tess_ram_places, task);
}

/* ---- the main thread's own look at a tile ---- */

void tess_ram_flow_map(tess_tile *t)
{
    if (!tess_tile_flows(t) || tess_is_placed(t, TESS_TIER_CPU)) return;
    tess_places_come(&tess_ram_places, t, false); /* it will acquire the tile itself */
    tess_places_settle(&tess_ram_places, t, "the main thread");
    t->ram.visits = t->home == TESS_TIER_DISK;
}

void tess_ram_flow_unmap(tess_tile *t, int mode)
{
    if (mode & TESS_W) t->ram.dirty = true;
    if (t->ram.visits) tess_places_leave(&tess_ram_places, t, true);
    t->ram.visits = false;
}
