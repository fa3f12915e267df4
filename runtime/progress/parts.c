/* Parts: a body is cut by its shapes into parts that write different bytes, and a worker that has no task takes some.
 *
 * Each worker has a place on the board. Who runs a body and comes to its parts puts them up there: what is next and how
 * many there are, in one word, which whoever takes a part moves on by one. Only then is it read what the parts are: a
 * part that was taken and has not ended keeps the owner from putting up others. A look that comes late finds none left,
 * or takes one of what is up by then, which is as good.
 *
 * The owner takes parts like everybody and, when none is left, waits for those that others took, no longer than one
 * takes. Who helps comes from the idle hook (idle.c), with no body begun; it ends when none is left or when something
 * happened that may be a task for it. Whose owner is earlier in the program is helped first. Who was woken wakes two
 * more while there is something left, so that no owner wakes a whole machine.
 *
 * Where all are busy a part costs a look at a clock and a step of a counter that no other thread reads. */
#include "runtime/base/fault_hooks.h"
#include "runtime/progress/progress.h"
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/mman.h>

enum { PAGE = 4096, HUGE = 2 << 20 };
static const double SHY = 2e-3; /* seconds */

struct tess_place {
    _Atomic uint64_t left;    /* parts << 32 | the next one */
    _Atomic uint32_t ended;   /* of those that others took, */
    _Atomic uint64_t longest; /* and nanoseconds of the longest of them */
    _Atomic uint32_t waited_for;
    _Atomic uint32_t order; /* the owner's, in the program */
    tess_part_body part;
    void *of;
    const void *task;
    char apart[128];
};

static struct {
    struct tess_place place[TESS_MAX_WORKERS];
    atomic_int open; /* places on which there is something */
    int workers;
    tess_parts_helped helped;
    tess_parts_holds holds;
    bool counts, shy;
    _Atomic uint64_t taken;  /* by others than the owner */
    _Atomic uint64_t unsaid; /* bodies in other parts than their codelets say, or cut while those say nothing; */
                             /* counted with shy owners */
    tess_room_kept room[TESS_MAX_WORKERS];
} board;

/* What this thread does: it owns a body, or it helps with one. */
#define me (*tess_parts_self())

void tess_parts_make_shy(bool shy)
{
    board.shy = shy;
}

bool tess_parts_shy(void)
{
    return board.shy;
}

void tess_parts_said(int64_t parts)
{
    me.said = parts;
}

uint64_t tess_parts_unsaid(void)
{
    return board.unsaid;
}

uint64_t tess_parts_taken(void)
{
    return board.taken;
}

/* ---- taking ---- */

static bool take(struct tess_place *p, int64_t *k)
{
    uint64_t left = atomic_load_explicit(&p->left, memory_order_relaxed);
    do
        if ((uint32_t)left >= left >> 32) return false;
    while (
        !atomic_compare_exchange_weak_explicit(&p->left, &left, left + 1, memory_order_acq_rel, memory_order_relaxed));
    *k = (uint32_t)left;
    return true;
}

static uint32_t parts_left(struct tess_place *p)
{
    const uint64_t left = atomic_load_explicit(&p->left, memory_order_relaxed);
    return (uint32_t)left < left >> 32 ? (uint32_t)(left >> 32) - (uint32_t)left : 0;
}

/* ---- the owner ---- */

void tess_parts_own(int worker, const void *task, uint32_t order)
{
    me.worker = worker;
    me.mine = &board.place[me.worker];
    me.mine->task = task;
    atomic_store_explicit(&me.mine->order, order, memory_order_relaxed);
    me.times = (tess_parts_times){0};
    me.said = 0;
    me.cut = false;
}

void tess_parts_disown(tess_parts_times *times)
{
    *times = me.times;
    me.mine = NULL;
    if (board.shy && (me.said > 1 || (!me.said && me.cut))) atomic_fetch_add(&board.unsaid, 1);
}

static void count(double seconds, double *sum, double *longest)
{
    *sum += seconds;
    if (seconds > *longest) *longest = seconds;
}

/* For tests: the owner leaves the parts to others, for a while. On a busy machine one look may last as long. */
static void be_shy(struct tess_place *p)
{
    for (const double end = tess_seconds() + SHY; parts_left(p) && tess_seconds() < end;) sched_yield();
}

static void wait_for(struct tess_place *p, uint32_t others)
{
    const double begin = tess_seconds();
    if (!tess_count_is_soon(&p->ended, others)) {
        atomic_store(&p->waited_for, 1);
        for (uint32_t ended; (ended = atomic_load(&p->ended)) != others;) tess_count_sleep(&p->ended, ended);
    }
    atomic_store_explicit(&p->waited_for, 0, memory_order_relaxed);
    me.times.waited += tess_seconds() - begin;
}

static void in_turn(int64_t n, tess_part_body part, void *of)
{
    double longest = 0, before = tess_seconds();
    me.inside = true;
    for (int64_t k = 0; k < n; k++) {
        part(of, k);
        const double now = tess_seconds();
        count(now - before, &me.times.shared, &longest);
        before = now;
    }
    me.inside = false;
    me.times.longest += longest;
}

void tess_parts_run(int64_t n, tess_part_body part, void *of)
{
    struct tess_place *p = me.mine;
    if (!p || me.inside || n < 2) {
        for (int64_t k = 0; k < n; k++) part(of, k);
        return;
    }
    if (board.workers < 2 || n > UINT32_MAX) {
        in_turn(n, part, of);
        return;
    }
    int64_t k;
    uint32_t own = 0;
    double longest = 0;
    p->part = part;
    p->of = of;
    atomic_store_explicit(&p->ended, 0, memory_order_relaxed);
    atomic_store_explicit(&p->longest, 0, memory_order_relaxed);
    atomic_store_explicit(&p->left, (uint64_t)n << 32, memory_order_release);
    atomic_fetch_add(&board.open, 1);
    tess_idle_help(2);
    if (me.said == n) me.said = -1;
    me.cut = true;
    if (board.shy) be_shy(p);
    me.inside = true;
    for (double before = tess_seconds(); take(p, &k); own++) {
        part(of, k);
        const double now = tess_seconds();
        count(now - before, &me.times.shared, &longest);
        before = now;
    }
    me.inside = false;
    atomic_fetch_sub(&board.open, 1);
    if (own < (uint32_t)n) wait_for(p, (uint32_t)n - own);
    const double theirs = 1e-9 * (double)atomic_load_explicit(&p->longest, memory_order_relaxed);
    me.times.longest += theirs > longest ? theirs : longest;
}

/* ---- others ---- */

/* That whose owner is earliest in the program, of those with something left. */
static struct tess_place *find(void)
{
    struct tess_place *first = NULL;
    uint32_t order = 0;
    if (atomic_load(&board.open) == 0) return NULL;
    for (int w = 0; w < board.workers; w++) {
        struct tess_place *p = &board.place[w];
        const uint32_t its = atomic_load_explicit(&p->order, memory_order_relaxed);
        if (!parts_left(p) || (first && its >= order)) continue;
        first = p;
        order = its;
    }
    return first;
}

static void ended(struct tess_place *p)
{
    atomic_fetch_add(&p->ended, 1);
    if (atomic_load(&p->waited_for)) tess_count_wakes(&p->ended);
}

static void keep_longest(struct tess_place *p, double seconds)
{
    const uint64_t mine = (uint64_t)(1e9 * seconds);
    uint64_t longest = atomic_load_explicit(&p->longest, memory_order_relaxed);
    while (mine > longest && !atomic_compare_exchange_weak_explicit(&p->longest, &longest, mine, memory_order_relaxed,
                                                                    memory_order_relaxed)) {
    }
}

bool tess_parts_help(int worker)
{
    struct tess_place *p = board.workers > 1 ? find() : NULL;
    int64_t k, next;
    uint64_t parts = 0;
    if (!p || !take(p, &k)) return false;
    const unsigned events = tess_idle_events();
    if (parts_left(p)) tess_idle_help(2);
    me.worker = worker;
    me.inside = me.helps = true;
    tess_body_begins(worker);
    if (board.counts) tess_starved_works(1);
    const double begin = tess_seconds();
    double before = begin;
    for (bool more = true; more; k = next) {
        p->part(p->of, k);
        const double now = tess_seconds();
        keep_longest(p, now - before);
        before = now;
        parts++;
        more = tess_idle_events() == events && take(p, &next);
        /* The task may be gone as soon as its last part has ended. */
        if (!more && board.helped) board.helped(p->task, worker, begin, now);
        if (!more) atomic_fetch_add_explicit(&board.taken, parts, memory_order_relaxed);
        ended(p);
    }
    if (board.counts) tess_starved_works(-1);
    tess_body_ends(worker);
    me.inside = me.helps = false;
    return true;
}

/* ---- start and stop ---- */

void tess_parts_start(int workers, bool counts, tess_parts_helped helped, tess_parts_holds holds)
{
    board.holds = holds;
    board.counts = counts;
    board.workers = workers;
    board.helped = helped;
    tess_idle_helper(tess_parts_help);
    board.taken = board.unsaid = 0;
}

void tess_parts_stop(void)
{
    tess_idle_helper(NULL);
    board.workers = 0;
    board.shy = false;
    for (int w = 0; w < TESS_MAX_WORKERS; w++) {
        if (board.room[w].bytes && board.holds) board.holds(-(int64_t)board.room[w].bytes);
        free(board.room[w].ptr);
        board.room[w].ptr = NULL;
        board.room[w].bytes = 0;
    }
}

/* ---- scratch ---- */

void *tess_part_room(void *mine, size_t bytes)
{
    return me.helps ? tess_parts_room(me.worker, bytes) : mine;
}

/* Of less than a huge page there is none. */
static size_t align_of(size_t bytes)
{
    return bytes < HUGE ? PAGE : HUGE;
}
static size_t whole(size_t bytes)
{
    const size_t align = align_of(bytes);
    return (bytes + align - 1) / align * align;
}

void *tess_parts_room(int worker, size_t bytes)
{
    tess_room_kept *room = &board.room[worker];
    if (room->bytes >= bytes) return room->ptr;
    /* What is below the cap makes room before this takes it. */
    if (board.holds) board.holds((int64_t)(whole(bytes) - room->bytes));
    void *ptr = tess_room_grow(room, bytes);
    if (!ptr)
        tess_die("memory: no room is left for a worker's scratch (fewer workers, STARPU_NCPU, or shorter sequences)");
    return ptr;
}

void *tess_room_grow(tess_room_kept *room, size_t bytes)
{
    if (room->bytes >= bytes) return room->ptr;
    const size_t align = align_of(bytes);
    bytes = whole(bytes);
    free(room->ptr);
    *room = (tess_room_kept){aligned_alloc(align, bytes), bytes};
    if (!room->ptr) room->bytes = 0;
    if (room->ptr && align == HUGE) madvise(room->ptr, bytes, MADV_HUGEPAGE);
    return room->ptr;
}
