/* Tiles as StarPU has them, and the memory below: what a tile is, where its bytes lie in RAM and on disk. */
#ifndef TESS_TILES_H
#define TESS_TILES_H
#include "runtime/runtime.h"
#include <starpu.h>
#include <stdatomic.h>

/* Whether a tile has a place on a level of memory (flow/places.c), as of the last task submitted or looked at. */
typedef enum tess_stay_state {
    TESS_AWAY,   /* it has no place there */
    TESS_PLACED, /* it has one, in which others may still be; nothing comes when they are gone */
    TESS_COMES,  /* the same; its contents are fetched when the others are gone */
    TESS_SETTLED /* no other tile is in its place any more */
} tess_stay_state;
typedef struct tess_stay {
    tess_stay_state state;
    bool departs;            /* it leaves after a task that is looked at and not submitted */
    unsigned writers;        /* tasks that are looked at and not submitted */
    uint64_t at;             /* its place, where places have addresses */
    tess_tile *next, **link; /* of those with places */
} tess_stay;

struct tess_tile {
    starpu_data_handle_t handle; /* NULL until its first use */
    starpu_data_handle_t other;  /* that of before, where there are two in turn (tess_tile_turn) */
    size_t bytes;
    tess_role role;
    tess_tier home;
    uint32_t number; /* tess_tile_number */
    char *label;
    struct tess_disk_tile *place;   /* on the disk, where that is the home */
    int mapped;                     /* the mode in which the main thread has it mapped */
    unsigned maps;                  /* the number of its mappings; several are for reading only */
    bool filled;                    /* it has contents, wherever they are, as of the last task submitted: list/'s */
    _Atomic uint32_t came;          /* that it arrived, for the trace, till its first user takes it; 0: it did not */
    tess_lending *lending;          /* the first that waits for the next task that writes it */
    tess_tile *known, **knower;     /* of those that StarPU knows of; knower: NULL outside the list */
    tess_stay stay[TESS_TIER_DISK]; /* on the GPU and in RAM: flow/places.c's */
    struct {                        /* flow/ram_places.c's */
        bool dirty;                 /* it was written since it entered */
        bool visits;                /* it is there for the main thread alone */
    } ram;
    struct {          /* flow/gpu_places.c's */
        bool known;   /* StarPU knows a place of it there, this one or an earlier one */
        double asked; /* when its bytes were, for the trace */
    } gpu;
    struct { /* the same, while it plays a list: */
        bool met, filled;
        bool here, below; /* whether the GPU, and RAM, have the contents */
    } paper;
};

/* ---- tile.c ---- */

/* Makes StarPU and the disk forget a tile that is no longer used. */
void tess_tile_unregister(tess_tile *t);
/* Returns a tile that StarPU knows of; NULL: there is none. */
tess_tile *tess_tile_known(void);
/* Makes a tile that StarPU does not know as it was when it was made. */
void tess_tile_reset(tess_tile *t);
/* Frees such a tile. */
void tess_tile_delete(tess_tile *t);
/* Lends it to the main thread on that node, in order with tasks, until that releases it. */
int tess_tile_acquire(tess_tile *t, int node, int mode);

/* ---- digest.c; called by who runs a task, with a tile's bytes in RAM, which may be NULL ---- */

/* Returns whether digests of this task are kept. */
bool tess_digests_kept(const tess_task *t);
/* Keeps the digest of a tile that the task is about to read; one that it will only write becomes zeros, so that what
 * it leaves out has the same bits in all runs. */
void tess_digest_found(const tess_task *t, unsigned use, void *data);
/* Keeps the digest of a tile that it has written. */
void tess_digest_left(const tess_task *t, unsigned use, const void *data);

/* ---- tier.c ---- */

/* The memory node of the disk tier; -1 without one. */
extern int tess_disk_node;
/* Opens the machine's disk tier, if it has one, for `needs` bytes of tiles. */
tess_status tess_tier_open(const tess_machine *m, uint64_t needs) TESS_NODISCARD;
/* Makes it a node of StarPU's, once that runs. */
tess_status tess_tier_register(void) TESS_NODISCARD;
/* Closes it. */
void tess_tier_close(void);
/* Returns the tier's first failure, which holds until it is closed; NULL without one. */
const char *tess_disk_fault(void);
/* Sets a tile's place there; what it is called is borrowed. */
struct tess_disk_tile *tess_disk_place_new(size_t bytes, const char *label, const char *kind);
/* Records, for the trace, that a tile is asked for there, or to be written. */
void tess_disk_place_asked(struct tess_disk_tile *place, bool write);
/* Returns the number of its last arrival from there; 0: it was not traced. */
uint32_t tess_disk_place_arrival(const struct tess_disk_tile *place);
/* Takes it back. */
void tess_disk_place_free(struct tess_disk_tile *place, size_t bytes);

/* ---- arena.c: where large buffers lie, under slab.c's lock ---- */

/* Maps `size` bytes at a border of a huge page, in huge pages as far as the kernel has them, with mmap's further flags.
 * Returns NULL if there is no address space. */
void *tess_arena_map(size_t size, int flags);
/* Takes a buffer, at a border of 64 KiB. Where address space is missing it asks for as much as is wanted in all. NULL:
 * there is none. */
void *tess_arena_take(size_t bytes, size_t (*wanted)(void));
/* Huge pages come whole: what comes with a buffer's is anybody's from now on, and is there. After room was made for it.
 */
void tess_arena_settle(void *p);
/* Takes it back; its pages are kept. False: it is none. */
bool tess_arena_put(void *p);
/* Returns the bytes of pages that are kept, or come with a buffer's. */
uint64_t tess_arena_kept(void);
/* Sets about as many of them apart, for the caller to give back to the kernel; returns how many, at *p; 0: none are
 * kept. */
size_t tess_arena_cut(uint64_t bytes, void **p);
/* They are gone. */
void tess_arena_gone(void *p);
/* Returns all memory, if there are no buffers. */
void tess_arena_release(void);

/* ---- slab.c: the memory below StarPU's buffers in RAM ---- */

/* Has StarPU allocate here, with a cap; 0: none. Where GPUs pin buffers these stay whole. */
void tess_slab_install(uint64_t cap, bool whole);
/* Returns what waits for the next buffer. */
void tess_slab_release(void);
/* Has buffers wait that many, of these sizes, which all cores make ready; nothing where buffers are not whole. */
void tess_slab_ready(const size_t *bytes, size_t n);
/* Counts `bytes` more, or fewer, that other code holds below the cap. */
void tess_slab_hold(int64_t bytes);
/* Returns the bytes that StarPU has, and the most since the start. */
void tess_slab_use(uint64_t *now, uint64_t *peak);
#endif
