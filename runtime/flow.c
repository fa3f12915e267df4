/* Running a list of tasks whose tiles do not all fit in RAM. The list is the order, known before it runs; so the plan,
 * not an emergency in the allocator, says when a tile comes and when it may leave.
 *
 * A tile whose home is RAM never leaves it. One whose home is the disk flows: it is held from the moment it is fetched
 * until the last task that uses it, of those already let in, is done. Two bounds move over the list:
 *
 *      done          submitted          let in          not yet
 *     .........|..................|.................|..............
 *               tasks in StarPU     tiles on their way
 *
 * A task is let in when its flowing tiles, beside those held already, stay within the budget; their fetch starts then,
 * before the task is submitted, so that it is the task that waits for the tile and not the other way round. A task
 * alone may exceed the budget: it is let in when nothing else is held.
 *
 * After its last holder a tile stays in RAM where the plan says so (TESS_KEEP), for the plan has counted it as resident
 * until its next use. Otherwise it may be evicted, and if it was written its way to the disk starts at once: the copy
 * left in RAM is clean, and costs nothing to give up when StarPU needs the room.
 *
 * The budget is half of what the plan leaves for flowing tiles: the other half is for those on their way out. */
#include "starpu_impl.h"
#include <errno.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE = 60 }; /* seconds */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    uint64_t held, budget; /* bytes of flowing tiles */
    double waited;         /* seconds that submission stood still for the budget */
} flow = {.lock = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER};

void tess_flow_budget(uint64_t bytes)
{
    flow.budget = bytes;
}

static bool flows(const tess_use *u)
{
    return u->tile->home == TESS_TIER_DISK && !(u->mode & TESS_SCRATCH);
}

/* Bytes that letting the task in would add. Called with the lock held, as the next two. */
static uint64_t added(const tess_task *t)
{
    uint64_t bytes = 0;
    for (unsigned i = 0; i < t->nuse; i++) {
        const tess_tile *tile = t->use[i].tile;
        if (flows(&t->use[i]) && tile->holds == 0 && !tile->kept) bytes += tile->bytes;
    }
    return bytes;
}

static bool fits(const tess_task *t)
{
    return flow.held == 0 || flow.held + added(t) <= flow.budget;
}

/* The tiles that are to come, in `coming`; how many. One that another task holds is here, or will be made by it. */
static unsigned hold(const tess_task *t, tess_tile **coming)
{
    unsigned n = 0;
    for (unsigned i = 0; i < t->nuse; i++) {
        tess_tile *tile = t->use[i].tile;
        if (!flows(&t->use[i]) || tile->holds++ > 0) continue;
        tile->last = tile->written = tile->ended = 0;
        tile->charged = !tile->kept;
        if (tile->charged) flow.held += tile->bytes;
        starpu_data_set_ooc_flag(tess_tile_handle(tile), 0); /* else it might go again before its task runs */
        if (tile->filled && (t->use[i].mode & TESS_R)) coming[n++] = tile;
    }
    return n;
}

/* One use less. True when the tile was written and is to go. A task's end may be told after that of the one which
 * waited for it, so what counts is the order of the list: the latest of those that wrote, ended or used the tile. */
static bool release(tess_tile *tile, const tess_use *u, uint32_t order)
{
    uint32_t at = order + 1;
    if ((u->mode & TESS_W) && at > tile->written) tile->written = at;
    if ((u->mode & TESS_LAST) && at > tile->ended) tile->ended = at;
    if (at > tile->last) {
        tile->last = at;
        tile->stay = (u->mode & TESS_KEEP) && !(u->mode & TESS_LAST);
    }
    if (--tile->holds > 0) return false;
    if (tile->written || tile->ended) tile->filled = tile->dirty = tile->written > tile->ended;
    if (tile->charged) flow.held -= tile->bytes;
    tile->charged = false;
    if (!tile->stay) starpu_data_set_ooc_flag(tile->handle, 1);
    tile->kept = tile->stay;
    bool leaves = tile->dirty && !tile->kept;
    if (leaves) tile->dirty = false;
    return leaves;
}

void tess_flow_done(const tess_task *t)
{
    pthread_mutex_lock(&flow.lock);
    for (unsigned i = 0; i < t->nuse; i++)
        /* Under the lock: once it is given up, tasks may be let in that end the tile's contents. */
        if (flows(&t->use[i]) && release(t->use[i].tile, &t->use[i], t->order))
            starpu_data_fetch_on_node(t->use[i].tile->handle, (unsigned)tess_disk_node, 1);
    pthread_cond_broadcast(&flow.moved);
    pthread_mutex_unlock(&flow.lock);
}

/* Waits for a task to end. When none does for a minute, none will: StarPU found no room in RAM for what they need. That
 * ends the process in one line, since StarPU cannot be told to give up. Called with the lock held. */
static void wait_for_room(const tess_task *t)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += PATIENCE;
    if (pthread_cond_timedwait(&flow.moved, &flow.lock, &until) != ETIMEDOUT) return;
    fprintf(
        stderr,
        "tessera: error: memory.cpu: no task ended for %d s; %s waits for %s, %s of tiles are held (raise the cap)\n",
        PATIENCE, t->cl->name, t->use[0].tile->label, tess_human_bytes((double)flow.held));
    _exit(TESS_FAILED);
}

/* Lets in task after task from *in on, as far as the budget goes; with `wait`, at least one. */
static void let_in(const tess_task *task, size_t n, size_t *in, bool wait)
{
    double start = tess_seconds();
    pthread_mutex_lock(&flow.lock);
    while (wait && !fits(&task[*in])) wait_for_room(&task[*in]);
    flow.waited += tess_seconds() - start;
    for (; *in < n && (wait || fits(&task[*in])); (*in)++, wait = false) {
        tess_tile *coming[task[*in].nuse ? task[*in].nuse : 1];
        unsigned count = hold(&task[*in], coming);
        pthread_mutex_unlock(&flow.lock);
        for (unsigned i = 0; i < count; i++) starpu_data_fetch_on_node(tess_tile_handle(coming[i]), STARPU_MAIN_RAM, 1);
        pthread_mutex_lock(&flow.lock);
    }
    pthread_mutex_unlock(&flow.lock);
}

tess_status tess_submit_all(const tess_task *task, size_t n)
{
    size_t in = 0;
    for (size_t k = 0; k < n; k++) {
        if (tess_disk_node >= 0) let_in(task, n, &in, in == k);
        TESS_TRY(tess_submit_one(&task[k]));
    }
    return TESS_OK;
}

tess_status tess_submit(const tess_task *task)
{
    return tess_submit_all(task, 1);
}

double tess_flow_waited(void)
{
    double seconds = flow.waited;
    flow.waited = 0;
    return seconds;
}
