/* The plan: between which of its uses a tile stays on which level of memory. One engine plans all levels.
 *
 * A step's tasks are a list whose order is known, and which repeats. A tile that is used by tasks 3 and 7 of 10 has two
 * gaps, the moments 4 to 6 and, around the end, 8 to 2. Keeping the tile on a level over a gap takes its bytes of that
 * level's room at each of these moments; letting it leave costs a copy to the level below, if it was written, and one
 * back, if the next use reads it. Which gaps are kept is all there is to decide, for each level by itself. Levels are a
 * chain, the fastest first: a tile that stays on a level in all of its gaps lives there and needs no room below; all
 * others have a place on the next level.
 *
 *     GPU       sees the uses by tasks that run there; uses by others are copies that must be made
 *     RAM       sees all uses of tiles that do not live on the GPU; some tiles may be told to stay or to leave
 *     disk      has room for everything, so there is nothing to decide
 *
 * Another level would be another value of tess_level. The engine works on numbers alone: of tiles, of tasks, of bytes.
 * It reads a list, which uses.c or a test makes, and returns marks, which apply.c applies once.
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
 * counts what moves; order.c sorts them; room.c keeps the room that is left at each moment; prices.c finds which gaps
 * are worth their room, and how little can be moved at all; choose_tiles.c keeps gaps; plan_gpu.c and plan_ram.c make
 * the two levels of a machine; rehearse.c computes the time of a step as marked, rehearse_gpu.c with a GPU, and
 * parallel.c what its tasks allow on any number of cores; apply.c hands marks to the program; step/ways.c chooses among
 * the orders in which a step can be laid out; holds.c reads off a program what it holds; step/plan_text.c prints a
 * plan. */
#ifndef TESS_PLAN_H
#define TESS_PLAN_H
#include "graph/graph.h"

/* ---- the list (uses.c makes it from a program) ---- */

typedef struct tess_plan_tile {
    uint64_t bytes;
    tess_role role;
    tess_tier home; /* as it is before the plan */
    bool flows;     /* a plan moves it; inputs, scalars and scratch have places of their own */
    bool lasts;     /* its contents outlast the list */
} tess_plan_tile;

/* Where a task can run. EITHER is the GPU if all states that the task uses live there, else a core. */
typedef enum tess_plan_where {
    TESS_RUNS_ON_CPU,
    TESS_RUNS_ON_GPU,
    TESS_RUNS_ON_EITHER,
    TESS_IS_MESSAGE,
} tess_plan_where;
typedef struct tess_plan_task {
    size_t first; /* the task's uses are named[first] up to the next task's first */
    tess_plan_where where;
    bool backward; /* it belongs to the backward pass */
    tess_cost cost;
    uint32_t parts; /* parts of the body that idle workers may take; 0 and 1: none */
} tess_plan_task;

/* What a task does with a tile: one use for each pair, however often the task names the tile. */
typedef struct tess_plan_use {
    uint32_t tile, task;
    int mode;
} tess_plan_use;

typedef struct tess_uses {
    size_t tasks, tiles, uses;
    tess_plan_tile *tile;
    tess_plan_task *task; /* tasks + 1 of them: the last one's `first` ends the uses */
    tess_plan_use *use;   /* sorted by tile, then by task */
    uint32_t *named;      /* for each use that the program names, task by task, its index in `use` */
} tess_uses;
/* Frees a list. */
void tess_uses_free(tess_uses *u);
/* Returns how many uses from u->use[i] on belong to the same tile. */
size_t tess_uses_of_tile(const tess_uses *u, size_t i);

/* ---- the result ---- */

typedef struct tess_marks {
    uint8_t *home;   /* [tile]: the level where the tile lives, a tess_tier */
    uint8_t *leaves; /* [use]: a bit 1 << level for each level that the tile leaves after the use */
} tess_marks;
/* Makes marks by which no tile leaves any level, and all live where the list has them. The caller frees them. */
tess_marks *tess_marks_new(const tess_uses *u);
/* Frees marks. */
void tess_marks_free(tess_marks *m);

/* ---- one level ---- */

/* Where a use needs the tile, as a level sees it. */
enum {
    TESS_USED_ELSEWHERE, /* on the level below */
    TESS_USED_HERE,      /* on this level */
};
/* Whether the tile leaves after a use. */
enum {
    TESS_MAY_LEAVE,  /* the engine decides */
    TESS_MUST_LEAVE, /* it does */
    TESS_MUST_STAY,  /* it does not, whatever room there is */
    TESS_RESTS       /* it does not, and its bytes are not of the level's room */
};
enum { TESS_MOST_SLACKS = 16 };

typedef struct tess_level {
    unsigned tier;                    /* its place in the chain, from the top: a tess_tier */
    uint64_t room;                    /* bytes for tiles */
    uint64_t slack[TESS_MOST_SLACKS]; /* amounts of slack in the room, for prefetches and late evictions */
    int slacks;                       /* the number of these amounts; the engine chooses one */
    bool *has;                        /* [tile]: the tile has a place here, unless it lives above */
    uint8_t *used, *leave;            /* [use]: of the two enums above */
    bool homes;                       /* homes are chosen for tiles that outlast the list, too */
    int rounds, last_rounds;          /* rounds of the search for prices, while choosing and for the bound */
    uint64_t refuse;                  /* a choice that moves this many bytes in a step is refused; 0: none is */
    bool quick;                       /* the list is so long that one slack and one order by prices must do */
    const tess_rates *rates;          /* the engine minimizes the time of a step by these; NULL: the bytes that move */
    int workers;                      /* how many the time is for */
} tess_level;
/* Returns whether a tile has a place on a level. */
static inline bool tess_level_has(const tess_level *l, const tess_marks *m, uint32_t tile)
{
    return l->has[tile] && m->home[tile] >= l->tier;
}
/* Makes a level's arrays: it has every tile that flows, every use is here, and every tile may leave. */
void tess_level_init(const tess_uses *u, unsigned tier, tess_level *l);
/* Frees them. */
void tess_level_free(tess_level *l);

typedef struct tess_placed {
    uint64_t read, written; /* bytes between the level and the one below it, in a step */
    uint64_t always;        /* the part of them that would move even if nothing had to leave */
    uint64_t bound;         /* no choice of gaps moves less */
    uint64_t slack;         /* the amount that was chosen */
    uint64_t lacks;         /* room that is missing for tiles that must stay */
    uint64_t lives, below;  /* bytes of tiles that last and live here; of all tiles that live below */
    tess_forecast time;     /* zeros without rates */
} tess_placed;
/* choose_tiles.c: stores the bytes that each task has on the level in need[task], and returns the most. */
uint64_t tess_level_needs(const tess_uses *u, const tess_level *l, const tess_marks *m, uint64_t *need);
/* Marks every tile to stay, and returns the room that this takes; `out` has what moves even so. */
uint64_t tess_level_whole(const tess_uses *u, const tess_level *l, tess_marks *m, tess_placed *out);
/* Marks tiles so that they fit into the level's room, which is no less than any task needs. */
void tess_level_place(const tess_uses *u, const tess_level *l, tess_marks *m, tess_placed *out);

/* ---- what it is made of ---- */

/* gaps.c: the moments between two consecutive uses of a tile on a level. */
typedef struct tess_gap {
    uint64_t bytes; /* of the tile */
    uint64_t moved; /* bytes that move less when the tile stays */
    double order;   /* gaps with a larger one are tried first; prices set it */
    uint32_t use;   /* the use before the gap */
    uint32_t first; /* its first moment */
    uint32_t count; /* its number of moments */
    bool kept;      /* the tile stays */
    bool anew; /* a use elsewhere writes the tile meanwhile, or ends its contents: what is here is not read again */
    bool due;  /* a write to the level below has to be made in this gap or a later one, if the tile leaves here */
} tess_gap;
typedef struct tess_gaps {
    tess_gap *gap;  /* sorted: first those that begin late in the step, and of equal ones the short ones */
    uint32_t *turn; /* the order in which gaps are tried: indices in `gap` */
    size_t gaps, moments;
} tess_gaps;
/* Frees the arrays. */
void tess_gaps_free(tess_gaps *g);
/* order.c: fills g->turn with the gaps from the largest order[gap] to the least; gaps below zero are left out, and
 * equal ones keep the order of the list. */
void tess_gaps_sort(tess_gaps *g, const double *order);
/* Sorts g->gap as it is described there. */
void tess_gaps_arrange(tess_gaps *g);
/* gaps.c: finds all gaps of a level. The caller frees what is in *g. */
void tess_gaps_list(const tess_uses *u, const tess_level *l, const tess_marks *m, tess_gaps *g);
/* Computes the bytes that a step moves as it is marked. */
void tess_gaps_traffic(const tess_uses *u, const tess_level *l, const tess_marks *m, uint64_t *read, uint64_t *written);

/* prices.c: returns bytes that every choice of gaps moves at least, with that room at each moment, and sets each gap's
 * order by the prices that prove it. `reached` is what some choice moves; who knows that it is `enough` asks for no
 * more. */
uint64_t tess_gaps_bound(tess_gaps *g, const int64_t *room, uint64_t reached, uint64_t enough, int rounds);

/* room.c: the bytes that are left at each moment of a cycle. */
typedef struct tess_room tess_room;
/* Makes the room from the bytes of each moment. The caller frees it. */
tess_room *tess_room_new(const int64_t *bytes, size_t moments);
/* Frees a room. */
void tess_room_free(tess_room *r);
/* Takes `bytes` from `count` moments from `first` on, around the end of the cycle; what is left may be below zero. */
void tess_room_take(tess_room *r, size_t first, size_t count, int64_t bytes);
/* Returns whether each of these moments has `bytes` left. */
bool tess_room_has(const tess_room *r, size_t first, size_t count, int64_t bytes);
/* Returns what the moment with the least has left. */
int64_t tess_room_least(const tess_room *r);

/* rehearse.c: computes the time of a step as it is marked, with so much room in RAM for tiles that flow. */
void tess_plan_simulate(const tess_uses *u, const tess_marks *m, const tess_rates *rates, uint64_t room, int workers,
                        tess_forecast *out);

/* Returns the seconds of a task of the list on one of `workers` workers, without help. */
double tess_plan_seconds(const tess_uses *u, size_t task, const tess_rates *rates, int workers);

/* Tasks from which on fewer amounts of slack are tried, and prices less exact: planning takes its time, too. */
enum { TESS_MANY_TASKS = 10000, TESS_VERY_MANY_TASKS = 50000 };

/* What the tasks of a list take where there is a GPU, in seconds, and what two levels, it and RAM, have and do. */
typedef struct tess_times {
    const double *gpu, *cores; /* [task]: there; of a message, the first */
    const uint8_t *lane;       /* [task]: of a message */
    bool messages_on_gpu;      /* they take tiles from its memory */
    bool pairs;                /* micro-batches go in pairs, so whoever waits has others beside */
    uint64_t room[TESS_TIER_DISK];
    double in[TESS_TIER_DISK], out[TESS_TIER_DISK], latency[TESS_TIER_DISK]; /* rates to the level and from it */
    double ram; /* rate of RAM, which what cores do shares with copies; 0: it does not */
} tess_times;
/* rehearse_gpu.c: computes the time of a step as it is marked. */
void tess_plan_rehearse_gpu(const tess_uses *u, const tess_marks *m, const tess_times *times, tess_rehearsed *out);

/* Returns the number by which plans are compared where rates are known: seconds, and a share of the drive's, since
 * others may use it and it wears. The least is the best. */
static inline double tess_forecast_measure(const tess_forecast *f)
{
    return f->seconds + 0.3 * (f->read + f->write);
}

/* parallel.c: who waits for whom in a list, in which a tile's uses keep their order: who reads waits for who wrote
 * last, who writes for all who read that. Two tasks are there once for each tile that they have in common. */
typedef struct tess_waits {
    size_t *first;    /* [task]: where its own begin in `behind`, and, of the task behind it, where they end */
    uint32_t *behind; /* the tasks that wait for it */
    uint32_t *left;   /* [task]: how many it waits for */
} tess_waits;
/* Finds that. */
tess_waits tess_waits_find(const tess_uses *u);
/* Frees the arrays. */
void tess_waits_free(tess_waits *w);

/* parallel.c: computes what the list allows if its tasks take seconds[task], or alone[task] where all parts of the body
 * have cores (NULL: bodies have no parts). It stores for each task whether it is in the longest chain, unless `chain`
 * is NULL. */
void tess_plan_parallel(const tess_uses *u, const double *seconds, const double *alone, tess_parallelism *out,
                        bool *chain);

/* ---- the two levels that there are ---- */

/* plan_gpu.c: marks tiles for the GPU, of whose memory `fixed` bytes are taken. A memory that is too small for the
 * largest task is TESS_INVALID, with the marks of a room in which nothing has to leave. */
tess_status tess_plan_gpu(const tess_uses *u, const tess_gpu_conf *conf, uint64_t fixed, tess_marks *m,
                          tess_gpu_placement *out) TESS_NODISCARD;
/* plan_ram.c: marks tiles for RAM, after the GPU. With `all` it chooses homes for tiles that outlast the list; else
 * they have homes, and the bytes of those in RAM are counted in `fixed`. */
tess_status tess_plan_ram(const tess_uses *u, const tess_place_conf *conf, uint64_t fixed, bool all, tess_marks *m,
                          tess_placement *out) TESS_NODISCARD;

#endif
