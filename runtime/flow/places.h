/* Places: which tiles have room on a level of memory, which of them go, and what waits for what: a function of lists of
 * tasks and a room. It knows no StarPU; what is to be done it has its owner do, in order. RAM's flow and the GPU's are
 * an owner each.
 *
 * A place is given when a task that needs it is looked at, ahead of its turn as far as places go, and taken back when a
 * task after which the tile leaves is submitted: so places depend on the list alone, and are the same in each run. What
 * happens there happens later: a tile settles in its place when those that had it before are gone. Tiles settle in the
 * order in which they got places.
 *
 *           submitted            settled                looked at                not yet
 *     .....................|.....................|.........................|...............
 *       tasks in StarPU       tiles on their way    others in their places
 *
 * No circle of waits: a task in its turn waits for tiles that leave after tasks submitted before it. Where marks leave
 * no place for it, tiles that it does not use leave, but for those that the main thread has, which would wait for
 * itself. (tests/graph/test_flows.c tries it.) */
#ifndef TESS_PLACES_H
#define TESS_PLACES_H
#include "runtime/tiles/tiles.h"

typedef struct tess_places tess_places;

/* A tile that leaves, or left: its bytes are used until it is gone. The last three are its owner's. */
typedef struct tess_departure {
    tess_places *from;
    tess_tile *tile;
    uint64_t at, bytes;
    bool copy; /* its contents go to the level below; else they ended, or are elsewhere */
    atomic_bool gone;
    struct tess_departure *next;
    void *journey;
    double asked;
} tess_departure;

struct tess_places {
    /* The rules. */
    tess_tier level;
    bool addresses;  /* places lie in one piece of memory; else bytes are counted, and a task in its turn has its own */
    size_t ahead;    /* tasks that are looked at, at most */
    int cause;       /* of waiting, a tess_cause, */
    const char *why; /* and in words */
    bool (*needs)(const tess_task *t, const tess_use *u); /* must the tile have a place for the task? */
    bool (*leaves)(const tess_use *u);                    /* does it leave after the use? */
    bool (*ready)(const tess_task *t, bool turn);         /* is it known what the task needs? NULL: it always is */
    /* What is done. */
    void (*settle)(tess_tile *t, bool comes); /* the place is the tile's, whose contents come */
    void (*leave)(tess_departure *d);         /* which tess_departure_ends ends */
    /* places.c's. */
    uint64_t room, taken, settled; /* bytes; taken by tiles with places, settled of these, */
    _Atomic uint64_t leaving;      /* and of those that leave */
    struct tess_pool *pool;        /* of addresses */
    tess_departure *departing, **last;
    size_t departures;    /* in that list, */
    _Atomic size_t ended; /* and which of them ended */
    tess_tile *placed;    /* the last that got its place first */
    struct tess_arrival {
        tess_tile *tile;
        size_t task;
    } * arrival; /* tiles that have yet to settle, in order */
    size_t first, end, cap;
    size_t looked; /* at the tasks of the list before this one */
};

/* Gives places in `room` bytes from now on. */
void tess_places_start(tess_places *p, uint64_t room);
/* Takes all back. */
void tess_places_stop(tess_places *p);
/* Has what task[k] of n needs settled, which is next, and looks ahead; false: the room is too little for it. */
bool tess_places_ahead(tess_places *p, const tess_task *task, size_t n, size_t k);
/* Returns how many of the tasks that were looked at have all their tiles settled. */
size_t tess_places_ready(const tess_places *p);
/* Takes note that a task was submitted. */
void tess_places_submitted(tess_places *p, const tess_task *task);
/* Takes note that the list ends before task[k]: what was looked at from there on will not be submitted. */
void tess_places_end(tess_places *p, const tess_task *task, size_t k);
/* Gives a place to a tile that has none, at the cost of others if need be; false: there is none. */
bool tess_places_come(tess_places *p, tess_tile *t, bool comes);
/* Settles tiles whose places became free, in order; with `t`, up to that one, waiting for it in the name of `who`. */
void tess_places_settle(tess_places *p, const tess_tile *t, const char *who);
/* Lets a tile leave; with `copy` its contents go to the level below. What did not settle never came. */
void tess_places_leave(tess_places *p, tess_tile *t, bool copy);
/* Takes back the place of a tile that is no longer used, if it has one. */
void tess_places_forget(tess_places *p, tess_tile *t);
/* Has a departure end, from any thread; it may be freed then. */
void tess_departure_ends(tess_departure *d);
/* Returns whether a tile has a place. */
static inline bool tess_is_placed(const tess_tile *t, tess_tier level)
{
    return t->stay[level].state != TESS_AWAY;
}
#endif
