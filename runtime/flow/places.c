/* See places.h. With addresses a place is a stretch of one piece of memory (pool.c). Else it is bytes of a sum. */
#include "runtime/flow/places.h"
#include "runtime/flow/pool_impl.h"
#include "runtime/progress/progress.h"
#include <stdlib.h>

void tess_places_start(tess_places *p, uint64_t room)
{
    p->room = room;
    p->last = &p->departing;
    if (p->addresses) p->pool = tess_pool_new(room);
}

static bool is_placed(const tess_places *p, const tess_tile *t)
{
    return tess_is_placed(t, p->level);
}

/* Forgets departures that ended, once they are half of the list, or all: whoever submits a whole step has thousands. */
static void sweep(tess_places *p, bool all)
{
    if (!all && 2 * p->ended < p->departures) return;
    tess_departure **at = &p->departing;
    for (tess_departure *d; (d = *at);) {
        if (all || atomic_load(&d->gone)) {
            *at = d->next;
            p->ended -= atomic_load(&d->gone);
            p->departures--;
            free(d);
        } else
            at = &d->next;
    }
    p->last = at;
}

void tess_places_stop(tess_places *p)
{
    for (; p->first < p->end; p->first++) /* looked at, and not submitted */
        p->arrival[p->first].tile->stay[p->level] = (tess_stay){0};
    free(p->arrival);
    p->arrival = NULL;
    p->first = p->end = p->cap = p->looked = 0;
    sweep(p, true);
    tess_pool_free(p->pool);
    p->pool = NULL;
    p->placed = NULL;
    p->room = p->taken = p->settled = p->leaving = 0;
}

/* ---- room ---- */

static void have(tess_places *p, tess_tile *t)
{
    tess_stay *s = &t->stay[p->level];
    s->state = TESS_PLACED;
    p->taken += t->bytes;
    s->next = p->placed;
    s->link = &p->placed;
    if (p->placed) p->placed->stay[p->level].link = &s->next;
    p->placed = t;
}

static bool take(tess_places *p, tess_tile *t)
{
    const bool lasts = t->role != TESS_ROLE_ACTIVATION; /* these come and go among themselves: fewest holes are left */
    tess_stay *s = &t->stay[p->level];
    if (p->addresses ? !tess_pool_take(p->pool, t->bytes, lasts, t, &s->at) : p->taken + t->bytes > p->room)
        return false;
    have(p, t);
    return true;
}

static void give(tess_places *p, tess_tile *t)
{
    tess_stay *s = &t->stay[p->level];
    if (p->addresses) tess_pool_give(p->pool, s->at);
    p->taken -= t->bytes;
    *s->link = s->next;
    if (s->next) s->next->stay[p->level].link = s->link;
    s->state = TESS_AWAY;
    s->departs = false;
}

/* ---- in ---- */

static void enter(tess_places *p, tess_tile *t, size_t task, bool comes)
{
    t->stay[p->level].state = comes && t->filled ? TESS_COMES : TESS_PLACED;
    if (p->end == p->cap) p->arrival = tess_realloc(p->arrival, (p->cap += 1024) * sizeof *p->arrival);
    p->arrival[p->end++] = (struct tess_arrival){t, task};
}

/* Returns whether the place is free of tiles that leave, the tile itself included. Where only bytes are counted:
 * whether there is room, or no tile leaves any more. */
static bool is_free(const void *places)
{
    const tess_places *p = places;
    const tess_tile *t = p->arrival[p->first].tile;
    const uint64_t at = t->stay[p->level].at, leaving = p->leaving;
    if (!p->addresses) return !leaving || p->settled + leaving + t->bytes <= p->room;
    for (const tess_departure *d = p->departing; d; d = d->next)
        if ((d->tile == t || (d->at < at + t->bytes && at < d->at + d->bytes)) && !atomic_load(&d->gone)) return false;
    return true;
}

/* Waits until it is. Submission stands still meanwhile. */
static void wait_for_place(const tess_places *p, const char *who, const char *what)
{
    tess_progress_lock();
    tess_starved_more(p->cause, 1);
    tess_progress_until(is_free, p, who, what, p->why);
    tess_starved_more(p->cause, -1);
    tess_progress_unlock();
}

void tess_places_settle(tess_places *p, const tess_tile *t, const char *who)
{
    sweep(p, false);
    for (; p->first < p->end && !(t && t->stay[p->level].state == TESS_SETTLED); p->first++) {
        tess_tile *next = p->arrival[p->first].tile;
        const bool comes = next->stay[p->level].state == TESS_COMES;
        if (!t && !is_free(p)) return;
        if (!is_free(p)) wait_for_place(p, who, next->label);
        p->settled += next->bytes;
        next->stay[p->level].state = TESS_SETTLED;
        p->settle(next, comes);
    }
    if (p->first == p->end) p->first = p->end = 0;
}

size_t tess_places_ready(const tess_places *p)
{
    return p->first < p->end && p->arrival[p->first].task < p->looked ? p->arrival[p->first].task : p->looked;
}

/* ---- out ---- */

/* Had the tile settled in its place, which is another's from now on? */
static bool give_back(tess_places *p, tess_tile *t)
{
    const bool settled = t->stay[p->level].state == TESS_SETTLED;
    give(p, t);
    if (settled) {
        p->settled -= t->bytes;
        return true;
    }
    size_t i = p->first;
    while (i < p->end && p->arrival[i].tile != t) i++;
    if (i == p->end) return false;
    for (; i + 1 < p->end; i++) p->arrival[i] = p->arrival[i + 1];
    p->end--;
    return false;
}

void tess_places_leave(tess_places *p, tess_tile *t, bool copy)
{
    if (!give_back(p, t)) return;
    tess_departure *d = tess_alloc(sizeof *d);
    *d = (tess_departure){.from = p, .tile = t, .at = t->stay[p->level].at, .bytes = t->bytes, .copy = copy};
    *p->last = d;
    p->last = &d->next;
    p->departures++;
    p->leaving += d->bytes;
    p->leave(d);
}

void tess_departure_ends(tess_departure *d)
{
    d->from->leaving -= d->bytes;
    d->from->ended++;
    atomic_store(&d->gone, true); /* and is the main thread's */
}

void tess_places_forget(tess_places *p, tess_tile *t)
{
    if (is_placed(p, t)) give_back(p, t);
}

/* ---- at the cost of others ---- */

/* Who wants room: a task in its turn (NULL: none), which lets what lives on the GPU stay there or not. */
struct insists {
    const tess_task *task;
    bool homes_stay;
};

/* What the main thread has would leave when that gives it back, which may be what waits for it. */
static bool stays(const void *tile, const void *insists)
{
    const tess_tile *t = tile;
    const struct insists *by = insists;
    if (t->maps || (by->homes_stay && t->home == TESS_TIER_GPU)) return true;
    for (unsigned i = 0; by->task && i < by->task->nuse; i++)
        if (by->task->use[i].tile == t) return true;
    return false;
}

/* Evicts the tiles that are in the way of `bytes`, and returns how many there are. */
static size_t leave_all(tess_places *p, uint64_t bytes, struct insists by)
{
    void **owner;
    const size_t n = tess_pool_in_the_way(p->pool, bytes, stays, &by, &owner);
    for (size_t i = 0; i < n; i++) tess_places_leave(p, owner[i], ((tess_tile *)owner[i])->filled);
    free(owner);
    return n;
}

/* Those leave whose home is the disk, the last that came first. */
static void guests_leave(tess_places *p, uint64_t bytes, struct insists by)
{
    for (tess_tile *t = p->placed, *next; t && p->taken + bytes > p->room; t = next) {
        const tess_stay *s = &t->stay[p->level];
        next = s->next;
        if (t->home == TESS_TIER_DISK && s->state == TESS_SETTLED && !stays(t, &by)) tess_places_leave(p, t, t->filled);
    }
}

/* Room for a tile of a task in its turn (NULL: of none), at the cost of others. */
static bool insist(tess_places *p, tess_tile *t, const tess_task *task)
{
    if (p->addresses)
        return (leave_all(p, t->bytes, (struct insists){task, true}) ||
                leave_all(p, t->bytes, (struct insists){task, false})) &&
               take(p, t);
    guests_leave(p, t->bytes, (struct insists){task, false});
    if (take(p, t)) return true;
    have(p, t); /* more than there is */
    return true;
}

bool tess_places_come(tess_places *p, tess_tile *t, bool comes)
{
    if (!take(p, t) && !insist(p, t, NULL)) return false;
    enter(p, t, p->looked, comes);
    return true;
}

/* ---- the list ---- */

/* Places for all that task[k] needs, or for nothing. In its turn no task before it is still to write what it reads. */
static bool place_all(tess_places *p, const tess_task *task, size_t k, bool turn)
{
    unsigned n = 0;
    bool all = true;
    bool fresh[task[k].nuse ? task[k].nuse : 1];
    for (; n < task[k].nuse && all; n++) {
        tess_tile *t = task[k].use[n].tile;
        fresh[n] = p->needs(&task[k], &task[k].use[n]) && !is_placed(p, t);
        if (fresh[n]) all = fresh[n] = take(p, t) || (turn && insist(p, t, &task[k]));
    }
    for (unsigned i = 0; i < n; i++) {
        tess_tile *t = task[k].use[i].tile;
        if (!fresh[i]) continue;
        if (all)
            enter(p, t, k, (task[k].use[i].mode & TESS_R) && (turn || !t->stay[p->level].writers));
        else
            give(p, t);
    }
    return all;
}

/* The same; in its turn, if what it uses itself lies in the way, by starting over in an empty room. */
static bool place(tess_places *p, const tess_task *task, size_t k, bool turn)
{
    if (place_all(p, task, k, turn)) return true;
    if (!turn) return false;
    leave_all(p, tess_pool_bytes(p->pool), (struct insists){NULL, false});
    return place_all(p, task, k, true);
}

/* Looks at a task for the first time. */
static bool look_at(tess_places *p, const tess_task *task, size_t k, bool turn)
{
    const tess_use *use = task[k].use;
    if (p->ready && !p->ready(&task[k], turn)) return false;
    for (unsigned i = 0; i < task[k].nuse && !turn; i++)
        if (use[i].tile->stay[p->level].departs && p->needs(&task[k], &use[i]))
            return false; /* it will have left before this task */
    if (!place(p, task, k, turn)) return false;
    for (unsigned i = 0; i < task[k].nuse; i++) {
        if (use[i].mode & TESS_W) use[i].tile->stay[p->level].writers++;
        if (is_placed(p, use[i].tile) && p->leaves(&use[i])) use[i].tile->stay[p->level].departs = true;
    }
    return true;
}

bool tess_places_ahead(tess_places *p, const tess_task *task, size_t n, size_t k)
{
    if (k == 0) p->looked = 0;
    bool fits = p->looked <= k || place(p, task, k, true); /* some may have had to go since */
    while (fits && p->looked < n && p->looked - k < p->ahead && look_at(p, task, p->looked, p->looked == k))
        p->looked++;
    if (!fits || p->looked <= k) return false;
    for (unsigned i = 0; i < task[k].nuse; i++)
        if (p->needs(&task[k], &task[k].use[i])) tess_places_settle(p, task[k].use[i].tile, task[k].cl->name);
    tess_places_settle(p, NULL, NULL);
    return true;
}

void tess_places_submitted(tess_places *p, const tess_task *task)
{
    for (unsigned i = 0; i < task->nuse; i++)
        if ((task->use[i].mode & TESS_W) && task->use[i].tile->stay[p->level].writers)
            task->use[i].tile->stay[p->level].writers--;
    for (unsigned i = 0; i < task->nuse; i++) {
        tess_tile *t = task->use[i].tile;
        if (is_placed(p, t) && p->leaves(&task->use[i])) tess_places_leave(p, t, !(task->use[i].mode & TESS_LAST));
    }
}

void tess_places_end(tess_places *p, const tess_task *task, size_t k)
{
    for (; k < p->looked; k++)
        for (unsigned i = 0; i < task[k].nuse; i++) {
            tess_stay *s = &task[k].use[i].tile->stay[p->level];
            if ((task[k].use[i].mode & TESS_W) && s->writers) s->writers--;
            s->departs = false;
        }
}
