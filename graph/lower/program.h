/* A program: the tile tasks of a step, in order. It knows no graph: passes write it, the plan reads and marks it. */
#ifndef TESS_PROGRAM_H
#define TESS_PROGRAM_H
#include "graph/graph.h"

/* Where a task comes from. */
typedef struct tess_origin {
    const char *of; /* the tensor whose op has it; NULL: it is the step's, an update or a sum */
    int node;       /* the op's node, where there is one */
    int64_t micro;  /* the micro-batch of the whole step, where it is an op's */
    bool backward;  /* it belongs to a backward pass */
} tess_origin;

typedef struct tess_program {
    tess_arena *arena;
    tess_task *task;
    tess_use **use;      /* of each task, to be marked */
    tess_origin *origin; /* of each task, */
    tess_origin now;     /* and of those that are added now */
    size_t tasks, room;
    tess_tile **tile; /* owned: those of activations and scalars */
    size_t tiles, tile_room;
    size_t too_large;   /* bytes of a tile that cannot be, */
    const char *of;     /* and what it would have held */
    struct tess_slots { /* micro-batches share tiles: the k-th of one is the k-th of the next, in the same set */
        tess_tile **tile;
        size_t next, n;
    } * slots;
    int set, sets;
    double flops, recompute_flops, bytes;
    uint32_t *index; /* of a finished program: as of tess_program_index, */
    uint8_t *role;   /* and each tile's, by its number */
    size_t numbers;
} tess_program;

/* The tile belongs to one program, which drops its contents after the last use; the others outlive it. */
static inline bool tess_role_drops(tess_role r)
{
    return r == TESS_ROLE_ACTIVATION || r == TESS_ROLE_GRADIENT;
}
static inline bool tess_program_drops(const tess_tile *t)
{
    return tess_role_drops(tess_tile_role(t));
}

tess_program *tess_program_new(void);
void tess_program_free(tess_program *p);
/* Returns a new tile, which the program owns. */
tess_tile *tess_program_tile(tess_program *p, size_t bytes, tess_role role, const char *label);
/* Returns the next tile of the set that serves every micro-batch. */
tess_tile *tess_program_slot(tess_program *p, size_t bytes, tess_role role, const char *label);
/* Chooses the set that slots are taken from; `restart` makes all of its slots free. */
void tess_program_slots(tess_program *p, int set, bool restart);
/* Adds a task; `again`: it recomputes. */
void tess_program_add(tess_program *p, tess_codelet *cl, const void *arg, const tess_use *use, unsigned nuse,
                      bool again);
/* Adds a task that was taken off the list. */
void tess_program_put(tess_program *p, const tess_task *task, tess_use *use, const tess_origin *origin);
/* Takes copies off the list that no task reads, of tiles that go with the program. */
void tess_program_drop_copies(tess_program *p);
/* Makes one of pairs of tasks that can be one, before the list is finished (fuse.c). */
void tess_program_fuse(tess_program *p);
/* Makes one of small tasks that follow each other, or could (bundle.c). */
void tess_program_bundle(tess_program *p);
/* Puts two runs of tasks in turns, op by op: those from `from` on, and those from `second` on (pairs.c). */
void tess_program_pair(tess_program *p, size_t from, size_t second);
/* Joins tasks over the same rows if all tiles of the list together take no more than `room` bytes (chains.c). */
void tess_program_chain(tess_program *p, uint64_t room);
/* Returns whether a task is a late update, or several of them. */
bool tess_task_comes_late(const tess_task *t);
/* Marks each tile's last use before it is overwritten. A gradient that the program reads before it writes it belongs to
 * the step before. Without a plan a tile leaves RAM after each use. */
void tess_program_finish(tess_program *p, bool keep_gradients);
/* Returns the index of each use's tile, task by task; the *tiles tiles are numbered in the order of their first use.
 * The caller calls free(). */
uint32_t *tess_program_index(const tess_program *p, size_t *tiles);
/* Submits the tasks. Without `late` the updates that come late are left out. */
tess_status tess_program_run(const tess_program *p, bool late);

/* ---- what a plan reads and writes ---- */

/* Adds to `plan` what the program holds and does (plan/holds.c). */
void tess_program_holds(const tess_program *p, tess_holds *plan);
/* Returns the bytes of the program's tiles that do not flow, as tess_holds_fixed does (plan/holds.c). */
uint64_t tess_program_fixed(const tess_program *p, int workers);

typedef struct tess_uses tess_uses;
typedef struct tess_marks tess_marks;
/* Lists what the program does with its tiles, in numbers; tess_uses_free frees it (plan/uses.c). */
tess_uses *tess_uses_list(const tess_program *p);
/* Marks the uses after which a tile leaves a level, and sets each tile's home (plan/apply.c). */
void tess_marks_apply(tess_program *p, const tess_uses *u, const tess_marks *m, tess_tier level);
/* Returns the marks that the program has; tess_marks_free frees them (plan/apply.c). */
tess_marks *tess_marks_read(const tess_program *p, const tess_uses *u);

#endif
