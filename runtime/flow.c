/* Running a list of tasks whose tiles do not all fit in RAM. The list is the order, known before it runs, and it says
 * for each use of a tile whether the tile stays in RAM after it. So a tile is in RAM from one place of the list to
 * another, and the bytes that RAM holds at each place are known: StarPU never has to look for room.
 *
 * A tile enters when the first task that needs it again is let in. Two places move over the list:
 *
 *               submitted           let in             not yet
 *     .....................|.....................|...................
 *       tasks in StarPU        tiles on their way
 *
 * A task is let in when the tiles that enter with it have room beside all that entered and did not leave. One that has
 * contents is fetched then, ahead of the task.
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
#include "starpu_impl.h"
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

/* A tile on its way, and all that are, in the order in which they set out: a tile may set out again before it was told
 * to have arrived. */
struct journey {
    tess_tile *tile;
    double since;
    struct journey *after, **before;
};
struct journeys {
    struct journey *oldest, **newest;
};

static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t held, room; /* bytes of tiles; no room said: there is no cap */
    uint64_t running;    /* tasks submitted that did not end */
    struct journeys in, out;
    bool (*so)(const void *); /* what the main thread waits for; NULL: it does not */
    const void *of;
    /* Workers' seconds without a task while tiles came, or submission stood still for tiles to go: */
    atomic_int working;
    bool stands, messages; /* are some under way? */
    int to_gpu;            /* tiles that come to it, or that it is waited for to give room for */
    double looked, waited, gpu_waited, under_way, exposed;
} flow = {.lock = PTHREAD_MUTEX_INITIALIZER,
          .moved = PTHREAD_COND_INITIALIZER,
          .in.newest = &flow.in.oldest,
          .out.newest = &flow.out.oldest};

void tess_flow_room(uint64_t bytes)
{
    flow.room = bytes > 0 ? bytes : tess_ranks() > 1 ? UINT64_MAX / 4 : 0;
}

bool tess_flow_caps(void)
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

/* ---- progress ---- */

/* With a GPU, its workers are those that should not wait. */
static int workers(void)
{
    return tess_gpu_workers() > 0 ? tess_gpu_workers() : tess_workers();
}

/* Counts the time since the last look. Called with the lock held, before what it depends on changes. */
static void look(void)
{
    double now = tess_seconds();
    int all = workers();
    int idle = all > flow.working ? all - flow.working : 0;
    const double passed = now - flow.looked, lost = passed * idle / all;
    if (flow.in.oldest || flow.stands) flow.waited += lost;
    if (flow.to_gpu > 0) flow.gpu_waited += lost;
    if (flow.messages) {
        flow.under_way += passed;
        flow.exposed += lost;
    }
    flow.looked = now;
}

static struct journey *set_out(struct journeys *all, tess_tile *t)
{
    struct journey *j = tess_alloc(sizeof *j);
    pthread_mutex_lock(&flow.lock);
    look();
    *j = (struct journey){.tile = t, .since = flow.looked, .before = all->newest};
    *all->newest = j;
    all->newest = &j->after;
    pthread_mutex_unlock(&flow.lock);
    return j;
}

/* Something ended: gives the lock back, and wakes the main thread if that is what it waits for. Not before: on the same
 * core it would take over at once, and wait for the lock. */
static void moved(void)
{
    const bool wakes = flow.so && flow.so(flow.of);
    pthread_mutex_unlock(&flow.lock);
    if (wakes) pthread_cond_signal(&flow.moved);
}

/* Gives `bytes` of room back. */
static void arrive(struct journeys *all, struct journey *j, uint64_t bytes)
{
    pthread_mutex_lock(&flow.lock);
    look();
    *j->before = j->after;
    *(j->after ? &j->after->before : &all->newest) = j->before;
    flow.held -= bytes;
    moved();
    free(j);
}

/* The main thread waits until that is so, and sleeps through all that does not make it so. Called with the lock held.
 */
static void wait_until(bool (*so)(const void *), const void *of, const char *who, const char *what)
{
    if (so(of)) return;
    tess_wait_begin(who, what);
    flow.of = of;
    flow.so = so;
    while (!so(of)) pthread_cond_wait(&flow.moved, &flow.lock);
    flow.so = NULL;
    tess_wait_end();
}

void tess_flow_journey(char *text, size_t room)
{
    pthread_mutex_lock(&flow.lock);
    const struct journey *j = flow.in.oldest ? flow.in.oldest : flow.out.oldest;
    const tess_tile *t = j ? j->tile : NULL;
    snprintf(text, room, "no tile is under way");
    if (t)
        snprintf(text, room, "%s (a %s of %s) has been on its way %s for %.0f s", t->label, tess_role_name(t->role),
                 tess_human_bytes((double)t->bytes), j == flow.in.oldest ? "from disk" : "out of RAM",
                 tess_seconds() - j->since);
    pthread_mutex_unlock(&flow.lock);
}

void tess_flow_until(bool (*so)(const void *), const void *of, const char *who, const char *what)
{
    pthread_mutex_lock(&flow.lock);
    look();
    flow.to_gpu++;
    wait_until(so, of, who, what);
    look();
    flow.to_gpu--;
    pthread_mutex_unlock(&flow.lock);
}

void tess_flow_to_gpu(int more)
{
    pthread_mutex_lock(&flow.lock);
    look();
    flow.to_gpu += more;
    pthread_mutex_unlock(&flow.lock);
}

void tess_flow_moved(void)
{
    pthread_mutex_lock(&flow.lock);
    moved();
}

void tess_flow_works(int more)
{
    pthread_mutex_lock(&flow.lock);
    look();
    flow.working += more;
    pthread_mutex_unlock(&flow.lock);
}

/* Has every worker a task? */
bool tess_flow_busy(void)
{
    return atomic_load_explicit(&flow.working, memory_order_relaxed) >= workers();
}

void tess_flow_begins(void)
{
    pthread_mutex_lock(&flow.lock);
    flow.running++;
    pthread_mutex_unlock(&flow.lock);
}

void tess_flow_ended(void)
{
    pthread_mutex_lock(&flow.lock);
    flow.running--;
    moved();
}

static bool at_most(const void *n)
{
    return flow.running <= *(const uint64_t *)n;
}

/* Tiles may be on their way out still: what follows need not wait for them. */
void tess_flow_wait(uint64_t most)
{
    pthread_mutex_lock(&flow.lock);
    wait_until(at_most, &most, "the main thread", most ? "tasks that were submitted" : "the end of the list");
    pthread_mutex_unlock(&flow.lock);
}

uint64_t tess_flow_running(void)
{
    pthread_mutex_lock(&flow.lock);
    const uint64_t n = flow.running;
    pthread_mutex_unlock(&flow.lock);
    return n;
}

static bool is_set(const void *flag)
{
    return *(const bool *)flag;
}

void tess_flow_set(bool *flag)
{
    pthread_mutex_lock(&flow.lock);
    *flag = true;
    moved();
}

void tess_flow_until_set(const bool *flag, const char *what)
{
    pthread_mutex_lock(&flow.lock);
    wait_until(is_set, flag, "the main thread", what);
    pthread_mutex_unlock(&flow.lock);
}

/* ---- in ---- */

static void fetched(void *journey)
{
    tess_tile *t = ((struct journey *)journey)->tile;
    arrive(&flow.in, journey, 0);
    starpu_data_release_on_node(t->handle, STARPU_MAIN_RAM);
}

/* Tiles in RAM whose home is the disk, the last that entered first. */
static tess_tile *guests;

static void forget_guest(tess_tile *t)
{
    if (!t->link) return;
    *t->link = t->next;
    if (t->next) t->next->link = t->link;
    t->link = NULL;
}

static void enter(tess_tile *t, int mode)
{
    t->resident = true;
    if (t->home == TESS_TIER_DISK) {
        t->next = guests;
        t->link = &guests;
        if (guests) guests->link = &t->next;
        guests = t;
    }
    starpu_data_handle_t handle = tess_tile_handle(t);
    pthread_mutex_lock(&flow.lock);
    flow.held += t->bytes;
    pthread_mutex_unlock(&flow.lock);
    if (t->filled && (mode & TESS_R) && t->home == TESS_TIER_DISK)
        starpu_data_acquire_on_node_cb(handle, STARPU_MAIN_RAM, STARPU_R, fetched, set_out(&flow.in, t));
}

static bool has_room(const void *bytes)
{
    return flow.held + *(const uint64_t *)bytes <= flow.room || !flow.out.oldest;
}

/* Is there room for `bytes` more? With `wait`, there will be when it returns; or nothing more will leave. */
static bool make_room(uint64_t bytes, bool wait, const char *who, const char *what)
{
    pthread_mutex_lock(&flow.lock);
    look();
    flow.stands = wait;
    if (wait) wait_until(has_room, &bytes, who, what);
    look();
    flow.stands = false;
    bool fits = flow.held + bytes <= flow.room;
    pthread_mutex_unlock(&flow.lock);
    return fits;
}

/* ---- out ---- */

static void written_back(void *handle)
{
    starpu_data_release_on_node(handle, tess_disk_node);
}

/* Its release comes last: the tile may be freed behind it. */
static void left(struct journey *j, int node)
{
    starpu_data_handle_t handle = j->tile->handle;
    arrive(&flow.out, j, j->tile->bytes);
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
    struct journey *j = set_out(&flow.out, t);
    if (contents && t->dirty)
        starpu_data_acquire_on_node_cb(t->handle, tess_disk_node, STARPU_R, written_back, t->handle);
    starpu_data_invalidate_submit(t->handle);
    if (contents)
        starpu_data_acquire_on_node_cb(t->handle, tess_disk_node, STARPU_W, left_to_disk, j);
    else
        starpu_data_acquire_on_node_cb(t->handle, STARPU_ACQUIRE_NO_NODE, STARPU_W, left_for_good, j);
    t->resident = t->departs = t->dirty = false;
    t->filled = contents;
    forget_guest(t);
    tess_gpu_flow_leaves_ram(t);
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
    tess_tile *t = guests;
    while (!make_room(bytes, true, who, what) && t) {
        tess_tile *next = t->next;
        if (!t->departs && !used_by(t, task)) leave(t, true);
        t = next;
    }
}

/* Lets the task in if it can; with `wait`, it can. */
static bool let_in(const tess_task *task, bool wait)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < task->nuse; i++) {
        const tess_tile *t = task->use[i].tile;
        if (!tess_tile_flows(t)) continue;
        if (t->departs) return false; /* only after a task that is not submitted yet */
        if (!t->resident) bytes += t->bytes;
    }
    const char *who = task->cl->name, *what = task->use[0].tile->label;
    if (wait && bytes) insist_on_room(bytes, task, who, what);
    if (!wait && bytes && !make_room(bytes, false, who, what)) return false;
    for (unsigned i = 0; i < task->nuse; i++) {
        tess_tile *t = task->use[i].tile;
        if (!tess_tile_flows(t)) continue;
        if (!t->resident) enter(t, task->use[i].mode);
    }
    for (unsigned i = 0; i < task->nuse; i++)
        if (tess_tile_flows(task->use[i].tile) && tess_use_leaves(&task->use[i])) task->use[i].tile->departs = true;
    return true;
}

void tess_flow_submitted(const tess_task *task)
{
    for (unsigned i = 0; i < task->nuse; i++)
        if (task->use[i].mode & TESS_W) task->use[i].tile->filled = task->use[i].tile->dirty = true;
    for (unsigned i = 0; i < task->nuse; i++) {
        tess_tile *t = task->use[i].tile;
        if (tess_tile_flows(t) && t->resident && tess_use_leaves(&task->use[i]))
            leave(t, !(task->use[i].mode & TESS_LAST));
    }
}

/* ---- the main thread's own look at a tile ---- */

void tess_flow_forget(tess_tile *t)
{
    tess_gpu_flow_forget(t);
    forget_guest(t);
    if (!tess_flow_caps() || !t->resident) return;
    pthread_mutex_lock(&flow.lock);
    flow.held -= t->bytes;
    pthread_mutex_unlock(&flow.lock);
}

void tess_flow_map(tess_tile *t, int mode)
{
    if (!tess_flow_caps() || !tess_tile_flows(t)) return;
    t->visits = !t->resident && t->home == TESS_TIER_DISK;
    if (t->resident) return;
    insist_on_room(t->bytes, NULL, "the main thread", t->label);
    enter(t, mode & ~TESS_R); /* it will acquire the tile itself */
}

void tess_flow_unmap(tess_tile *t, int mode)
{
    if (mode & TESS_W) t->filled = t->dirty = true;
    if (!t->visits) return;
    t->visits = false;
    leave(t, true);
}

/* ---- the list ---- */

tess_status tess_submit_all(const tess_task *task, size_t n)
{
    size_t in = 0;
    if (!tess_session()) return tess_error(TESS_INVALID, "task", "nothing runs it (tess_start comes first)");
    for (size_t k = 0; k < n; k++) {
        while (tess_flow_caps() && in < n && let_in(&task[in], in == k)) in++;
        tess_status status = TESS_OK;
        if (tess_gpu_flows()) status = tess_gpu_flow_ahead(task, tess_flow_caps() ? in : n, k);
        if (status == TESS_OK) status = tess_submit_one(&task[k]);
        if (status == TESS_OK) continue;
        if (tess_gpu_flows()) tess_gpu_flow_ends(task, k);
        return status;
    }
    return TESS_OK;
}

tess_status tess_submit(const tess_task *task)
{
    return tess_submit_all(task, 1);
}

/* What was counted since the last time. */
static double take(double *seconds)
{
    pthread_mutex_lock(&flow.lock);
    look();
    const double taken = *seconds;
    *seconds = 0;
    pthread_mutex_unlock(&flow.lock);
    return taken;
}

double tess_flow_waited(void)
{
    return take(&flow.waited);
}

double tess_gpu_waited(void)
{
    return take(&flow.gpu_waited);
}

void tess_flow_messages(bool under_way)
{
    pthread_mutex_lock(&flow.lock);
    look();
    flow.messages = under_way;
    pthread_mutex_unlock(&flow.lock);
}

void tess_message_seconds(double *under_way, double *exposed)
{
    pthread_mutex_lock(&flow.lock);
    look();
    *under_way = flow.under_way;
    *exposed = flow.exposed;
    flow.under_way = flow.exposed = 0;
    pthread_mutex_unlock(&flow.lock);
}
