/* The plan: between which of its uses a tile stays on which level of memory. One engine for all levels.
 *
 * A step's tasks are a list whose order is known, and which repeats. A tile that is used by tasks 3 and 7 of 10 has two
 * gaps, the moments 4 to 6 and, around the end, 8 to 2. To keep it on a level over a gap takes its bytes of that
 * level's room at each of these moments; to let it leave costs a copy to the level below, if it was written, and one
 * back, if the next use reads it. Which gaps are kept is all there is to decide, for each level by itself: levels are a
 * chain, the fastest first, a tile that stays on a level in all of its gaps lives there and needs no room below it, and
 * all others have a place on the next one.
 *
 *     GPU       uses by tasks that run there; what others do with the tile is seen as copies that must be made
 *     RAM       all uses of tiles that do not live on the GPU; some tiles may be told to stay or to leave
 *     disk      has room for everything, so there is nothing to decide
 *
 * Another level is another value of tess_level. All of this works on numbers: of tiles, of tasks, of bytes. It reads a
 * list (uses.c), whose author may be a program or a test, and returns marks, which are applied once (apply.c).
 *
 * An example. Four tasks; tile 0, a weight of 2 bytes, is read by tasks 0 and 3, tile 1, of 4 bytes, is written by task
 * 1 and read, for the last time, by task 2; tile 2, of 3 bytes, is updated by task 2:
 *
 *     moment            0    1    2    3     its gaps: after which task, over which moments, what staying saves
 *     tile 0, 2 bytes   R              R     0: 1 and 2, a read of 2; 3: none, a read of 2
 *     tile 1, 4 bytes        W    R          1: none, a write and a read of 4
 *     tile 2, 3 bytes             RW         2: 3, 0 and 1, a write and a read of 3
 *     needed            2    4    7    2
 *
 * In a room of 7 bytes moment 2 has nothing left for tile 0: it leaves after task 0 and is read again for task 3, 2
 * bytes a step. Tile 2 stays, since moments 3, 0 and 1 have 5, 5 and 3 bytes left. So tiles 1 and 2 live on this level,
 * and tile 0 on the one below. (tests/graph/test_plan.c has the example as code.)
 *
 * The files, in the order in which they are to be read: uses.c makes the list from a program; gaps.c finds the gaps and
 * counts what moves; order.c sorts them; room.c is the room at each moment; prices.c says which are worth it, and how
 * little can be moved at all; choose.c keeps gaps; gpu.c and ram.c say what the two levels are for a machine;
 * simulate.c tells the time of a step as marked, and
 * parallel.c what its tasks allow on any number of cores; apply.c hands marks to the program; ways.c chooses among the
 * orders in which a step can be laid out; holds.c reads off a program what it holds. */
#ifndef TESS_PLAN_H
#define TESS_PLAN_H
#include "graph.h"

/* ---- the list (uses.c makes it from a program) ---- */

typedef struct tess_plan_tile {
    uint64_t bytes;
    tess_role role;
    tess_tier home; /* as it is before the plan */
    bool flows;     /* it has places, on each level, that a plan gives out: inputs, scalars and scratch do not */
    bool lasts;     /* its contents outlast the list */
} tess_plan_tile;

/* Where a task can run: on the GPU also, if all states that it uses live there or may be copied. */
typedef enum tess_plan_where {
    TESS_RUNS_ON_CPU,
    TESS_RUNS_ON_GPU,
    TESS_RUNS_ON_EITHER,
    TESS_IS_MESSAGE,
} tess_plan_where;
typedef struct tess_plan_task {
    size_t first; /* its uses are named[first] to named[first of the next task - 1] */
    tess_plan_where where;
    bool backward; /* it belongs to the backward pass */
    tess_cost cost;
    uint32_t parts; /* of its body, which workers without a task may take; 0 and 1: none */
} tess_plan_task;

/* What a task does with a tile, however often it names it. */
typedef struct tess_plan_use {
    uint32_t tile, task;
    int mode;
} tess_plan_use;

typedef struct tess_uses {
    size_t tasks, tiles, uses;
    tess_plan_tile *tile;
    tess_plan_task *task; /* and one more, where the last one's uses end */
    tess_plan_use *use;   /* tile by tile, of each in the order of tasks */
    uint32_t *named;      /* of each use of the program, task by task, its place in `use` */
} tess_uses;
void tess_uses_free(tess_uses *u);
/* How many uses from u->use[i] on are of the same tile. */
size_t tess_uses_of_tile(const tess_uses *u, size_t i);

/* ---- the result ---- */

typedef struct tess_marks {
    uint8_t *home;   /* [tile]: the level that it lives on, a tess_tier */
    uint8_t *leaves; /* [use]: 1 << level for each that the tile leaves after it */
} tess_marks;
/* As if nothing left any level, and tiles were at home where the list says. */
tess_marks *tess_marks_new(const tess_uses *u);
void tess_marks_free(tess_marks *m);

/* ---- one level ---- */

/* What a use is for a level. */
enum {
    TESS_USED_ELSEWHERE, /* its task has the tile on the level below */
    TESS_USED_HERE,
    TESS_USED_EITHER, /* here, but it could be elsewhere: so the tile cannot live here alone */
};
/* May the tile leave after a use? */
enum {
    TESS_MAY_LEAVE,
    TESS_MUST_LEAVE,
    TESS_MUST_STAY, /* whatever room there is */
    TESS_RESTS      /* it stays, and whoever said what room there is has counted it */
};
enum { TESS_MOST_SLACKS = 16 };

typedef struct tess_level {
    unsigned tier; /* its place in the chain, from the top: a tess_tier */
    uint64_t room;
    uint64_t slack[TESS_MOST_SLACKS]; /* bytes of it that may be set aside for tiles that come early and leave late, */
    int slacks;                       /* of which one is chosen */
    bool *has;                        /* [tile]: it has a place here, unless it lives above */
    uint8_t *used, *leave;            /* [use] */
    bool homes;                       /* of tiles that last, too, homes are to be found */
    int rounds, last_rounds;          /* of the search for prices, while choosing and for the bound */
    bool quick;                       /* of a list so long that one slack and one order by prices must do */
    const tess_rates *rates;          /* where they are given the time of a step is the measure, else the bytes */
    int workers;
} tess_level;
static inline bool tess_level_has(const tess_level *l, const tess_marks *m, uint32_t tile)
{
    return l->has[tile] && m->home[tile] >= l->tier;
}
/* Makes the arrays: the level has every tile that flows, every use is here, and tiles may leave. */
void tess_level_init(const tess_uses *u, unsigned tier, tess_level *l);
void tess_level_free(tess_level *l);

typedef struct tess_placed {
    uint64_t read, written; /* between the level and the one below it, in a step */
    uint64_t always;        /* of that, what would be if nothing had to leave */
    uint64_t bound;         /* no choice of gaps moves less */
    uint64_t slack;         /* the one that was chosen */
    uint64_t lacks;         /* room that is missing for what must stay */
    uint64_t lives, below;  /* bytes of tiles that last and live here; of all that live below */
    tess_forecast time;     /* where there are rates */
} tess_placed;
/* choose.c. The bytes that each task has there, in need[task]; the most. */
uint64_t tess_level_needs(const tess_uses *u, const tess_level *l, const tess_marks *m, uint64_t *need);
/* Marks as if there were room for everything: the room that this takes; what moves even so, in `out`. */
uint64_t tess_level_whole(const tess_uses *u, const tess_level *l, tess_marks *m, tess_placed *out);
/* Marks for its room, of which the task with the most needs no more than there is. */
void tess_level_place(const tess_uses *u, const tess_level *l, tess_marks *m, tess_placed *out);

/* ---- what it is made of ---- */

/* gaps.c: between two uses of a tile on a level that follow each other. */
typedef struct tess_gap {
    uint64_t bytes, moved;      /* of the tile; what moves less when it stays, */
    double order;               /* by prices, which is tried first: the larger */
    uint32_t use, first, count; /* after which it is, the moments of it */
    bool kept;
    bool anew; /* what the tile holds does not last over it, */
    bool due;  /* but a write of that would be made, if it left there */
} tess_gap;
typedef struct tess_gaps {
    tess_gap *gap;  /* first those that a step uses last, and of equal ones those that are short */
    uint32_t *turn; /* the order in which they are tried: of each turn, the gap's place in `gap` */
    size_t gaps, moments;
} tess_gaps;
void tess_gaps_free(tess_gaps *g);
/* order.c: turns from the largest order[gap] to the least, none below zero; of equal ones in the order of the list. */
void tess_gaps_sort(tess_gaps *g, const double *order);
/* Brings the gaps, as they were found, into the order of the list. */
void tess_gaps_arrange(tess_gaps *g);
void tess_gaps_list(const tess_uses *u, const tess_level *l, const tess_marks *m, tess_gaps *g);
/* What a step moves as marked. */
void tess_gaps_traffic(const tess_uses *u, const tess_level *l, const tess_marks *m, uint64_t *read, uint64_t *written);

/* prices.c: bytes that no choice of gaps, with that room at each moment, moves less than; and each gap's order by the
 * prices that prove it. `reached` is what some choice moves. */
uint64_t tess_gaps_bound(tess_gaps *g, const int64_t *room, uint64_t reached, int rounds);

/* room.c: bytes at each moment of a cycle. */
typedef struct tess_room tess_room;
tess_room *tess_room_new(const int64_t *bytes, size_t moments);
void tess_room_free(tess_room *r);
/* Takes `bytes` from `count` moments from `first` on, around the end of the cycle, whether they have them or not. */
void tess_room_take(tess_room *r, size_t first, size_t count, int64_t bytes);
/* Says whether each of these moments has them. */
bool tess_room_has(const tess_room *r, size_t first, size_t count, int64_t bytes);
int64_t tess_room_least(const tess_room *r);

/* simulate.c: the time of a step as marked, with that much room in RAM for tiles that flow. */
void tess_plan_simulate(const tess_uses *u, const tess_marks *m, const tess_rates *rates, uint64_t room, int workers,
                        tess_forecast *out);

/* What a plan is chosen by where time is the measure: bytes count, too, where they could be had for time. Others may
 * use the drive as well, and it wears. */
static inline double tess_forecast_measure(const tess_forecast *f)
{
    return f->seconds + 0.3 * (f->read + f->write);
}

/* parallel.c: what the list allows, its tasks taking these seconds, and those of `alone` where all their parts have
 * cores; NULL: they have no parts. chain, unless NULL: for each task whether it is in the longest chain. */
void tess_plan_parallel(const tess_uses *u, const double *seconds, const double *alone, tess_parallelism *out,
                        bool *chain);

/* ---- the two levels that there are ---- */

/* gpu.c; `fixed` is taken whatever is decided. Too little for the largest task is TESS_INVALID, with the marks of a
 * room in which nothing has to leave. */
tess_status tess_plan_gpu(const tess_uses *u, const tess_gpu_conf *conf, uint64_t fixed, tess_marks *m,
                          tess_gpu_placement *out) TESS_NODISCARD;
/* ram.c, after it; with `all` the homes of tiles that last are to be found, else they are given and those in RAM are
 * part of what is fixed. */
tess_status tess_plan_ram(const tess_uses *u, const tess_place_conf *conf, uint64_t fixed, bool all, tess_marks *m,
                          tess_placement *out) TESS_NODISCARD;

#endif
