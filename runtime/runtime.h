/* runtime: the bottom room. It starts StarPU and is the only one that speaks its API, and keeps what every room needs:
 * errors, logging, configuration, dtypes, arenas. A program that uses nothing above it:
 *
 *     static void twice(const tess_work *w)
 *     {
 *         float *x = w->buf[0].ptr;
 *         for (size_t i = 0; i < w->buf[0].bytes / sizeof *x; i++) x[i] *= 2;
 *     }
 *     static tess_codelet twice_cl = {.name = "twice", .dtype = TESS_F32, .cpu = twice};
 *
 *     TESS_TRY(tess_start(&TESS_MACHINE_DEFAULT));
 *     tess_tile *t = tess_tile_new(4096, TESS_ROLE_ACTIVATION, "x");
 *     TESS_TRY(tess_tile_write(t, 0, data, 4096));
 *     tess_use use[] = {{t, TESS_RW}};
 *     tess_task task = {.cl = &twice_cl, .use = use, .nuse = 1};
 *     TESS_TRY(tess_submit(&task));                              // which it has until tess_wait
 *     TESS_TRY(tess_wait());
 *     TESS_TRY(tess_tile_read(t, 0, data, 4096));
 *     tess_tile_free(t);
 *     tess_stop();
 *
 * Conventions of every room: a function that can fail returns tess_status, TESS_OK being 0; what it failed of is
 * tess_error_text(). Pointers are borrowed unless the comment says that the callee takes them. Sizes are bytes unless
 * the name says otherwise. Everything here is called from the main thread, except the bodies of codelets and what
 * says that it may be called from them.
 */
#ifndef TESS_RUNTIME_H
#define TESS_RUNTIME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* The headers are C17 and C++11. */
#ifdef __cplusplus
extern "C" {
#define TESS_LITERAL(type) type
#else
#define TESS_LITERAL(type) (type)
#endif

/* ---- status.c: errors as values -------------------------------------------------------------------------------- */

/* The numbers are the exit codes of the command. */
typedef enum tess_status {
    TESS_OK = 0,
    TESS_FAILED = 1,  /* the run failed: disk full, a rank died, a loss that is not finite */
    TESS_INVALID = 2, /* what the user gave is wrong: configuration, model, data, arguments */
} tess_status;

#define TESS_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define TESS_NODISCARD    __attribute__((warn_unused_result))
#define TESS_NORETURN     __attribute__((noreturn))

/* Records "WHERE: WHAT (HINT)" for this thread and returns `status`. `where` is a file, a file and key, a file and
 * byte offset, an op; the format says the value met and what was expected, the hint in parentheses last. */
tess_status tess_error(tess_status status, const char *where, const char *format, ...) TESS_PRINTF(3, 4);
/* Of an errno that a path gave: TESS_FAILED where the system lacks or broke something (a disk is full or fails),
 * TESS_INVALID where the path is wrong or not for this user. */
tess_status tess_errno_status(int error);
/* The last error recorded on this thread, without a trailing newline; "" when there was none. */
const char *tess_error_text(void);
void tess_error_clear(void);
void tess_error_restore(const char *text); /* one that was kept */
/* For who knows better where the value comes from, such as a key: an error at `from` is one at `where`. Returns the
 * status. */
tess_status tess_error_at(tess_status status, const char *from, const char *where);

#define TESS_TRY(expr)                                                                                                 \
    do {                                                                                                               \
        tess_status tess_try_ = (expr);                                                                                \
        if (tess_try_ != TESS_OK) return tess_try_;                                                                    \
    } while (0)
/* The same, with a `goto done` behind it for a function that has something to clean up and a variable `status`. */
#define TESS_TRY_DONE(expr)                                                                                            \
    do {                                                                                                               \
        if ((status = (expr)) != TESS_OK) goto done;                                                                   \
    } while (0)

/* Our own bugs: always on, says what and where, aborts. Never for a user's mistake. */
#define TESS_ASSERT(cond)                                                                                              \
    do {                                                                                                               \
        if (!(cond)) tess_assert_failed(#cond, __FILE__, __LINE__);                                                    \
    } while (0)
TESS_NORETURN void tess_assert_failed(const char *cond, const char *file, int line);

/* Of `count` names the one nearest to `name` by edit distance; NULL when none is near enough to be meant. */
const char *tess_nearest(const char *name, const char *const *names, size_t count);

/* ---- log.c ------------------------------------------------------------------------------------------------------ */

/* One line on stderr, prefixed "tessera: "; safe from any thread. */
void tess_note(const char *format, ...) TESS_PRINTF(1, 2);
double tess_seconds(void); /* a monotonic clock */
/* "1.5 GiB", "640 KiB" into one of a few rotating static buffers per thread. */
const char *tess_human_bytes(double bytes);

/* ---- memory.c: host memory that cannot fail quietly ------------------------------------------------------------ */

/* These never return NULL: running out of host memory for our own bookkeeping ends the program with one line. */
void *tess_alloc(size_t bytes); /* zeroed */
void *tess_realloc(void *p, size_t bytes);
char *tess_strdup(const char *s);
char *tess_format(const char *format, ...) TESS_PRINTF(1, 2); /* a new string, free() it */

/* A region that grows and is freed at once; what it hands out is zeroed and aligned to 16 bytes. */
typedef struct tess_arena tess_arena;
tess_arena *tess_arena_new(void);
void *tess_arena_get(tess_arena *a, size_t bytes);
char *tess_arena_format(tess_arena *a, const char *format, ...) TESS_PRINTF(2, 3);
void tess_arena_free(tess_arena *a);

/* ---- dtype.c ---------------------------------------------------------------------------------------------------- */

typedef enum tess_dtype { TESS_F32, TESS_BF16, TESS_I32, TESS_DTYPE_COUNT } tess_dtype;
size_t tess_dtype_size(tess_dtype t);
const char *tess_dtype_name(tess_dtype t); /* "f32", "bf16", "i32" */

typedef uint16_t tess_bf16;
static inline float tess_from_bf16(tess_bf16 x)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = (uint32_t)x << 16;
    return v.f;
}
/* Round to nearest even; a NaN stays one. */
static inline tess_bf16 tess_to_bf16(float x)
{
    union {
        float f;
        uint32_t u;
    } v;
    v.f = x;
    uint32_t nan = (v.u & 0x7fffffffu) > 0x7f800000u;
    uint32_t rounded = (v.u + 0x7fffu + ((v.u >> 16) & 1u)) >> 16;
    return (tess_bf16)(nan ? (v.u >> 16) | 0x40u : rounded);
}

/* ---- machine.c: start and stop ---------------------------------------------------------------------------------- */

typedef struct tess_machine {
    int workers;       /* CPU workers; 0: one for each core that this process may use */
    const char *sched; /* StarPU's policy; NULL: prio, with a GPU dmdas. STARPU_SCHED wins */
    /* The cap on RAM; 0: none. It bounds the buffers that wait for the next tile; of tiles flow.c keeps tess_flow_room,
     * and StarPU's own limit is out of reach. */
    uint64_t cpu_bytes;
    uint64_t gpu_bytes;  /* cap on what is held in each GPU's memory; 0: none. STARPU_LIMIT_CUDA_MEM wins */
    const char *disk;    /* directories of the disk tier, one a drive, separated by ':'; NULL: there is none */
    uint64_t disk_bytes; /* 0: what the tiles need that were placed there */
    bool disk_checksum;  /* of every tile: kept when it is written, compared when it is read */
    uint64_t disk_block; /* bytes that move at once, a multiple of 4096; 0: the engine's choice, as is */
    unsigned disk_depth; /* such moves under way in each directory */
    uint64_t fail_read_at, fail_write_at, flip_bit_at,
        stall_read_at; /* for tests: the n-th piece read or written fails, has a bit turned, never comes */
    bool by_mpi;       /* messages between ranks, also where NCCL could carry them */
    bool profile;      /* collect what tess_profile returns */
} tess_machine;
#ifdef __cplusplus
extern const tess_machine tess_machine_default;
#define TESS_MACHINE_DEFAULT tess_machine_default
#else
#define TESS_MACHINE_DEFAULT ((tess_machine){0})
#endif

tess_status tess_start(const tess_machine *m) TESS_NODISCARD; /* NULL: the default */
/* Tiles that are left hold nothing after it. */
void tess_stop(void);
unsigned tess_session(void); /* the how-manieth start it is that holds; 0: none does */
bool tess_disk_there(void);  /* it has a disk tier */
/* The limit on RAM that StarPU's variables name, the least of them, and its name; 0: none. */
uint64_t tess_cpu_limit(const char **name);
int tess_workers(void);                /* CPU workers running */
int tess_cores(void);                  /* that tess_start would use, of this process's share */
int tess_gpus(void);                   /* the same */
uint64_t tess_gpu_bytes(uint64_t cap); /* that they would hold together, under such a cap on each */
const char *tess_gpu_support(void);    /* what this build can do with GPUs, and which there are */
const char *tess_starpu_version(void);
const char *tess_starpu_limits(void); /* what it was compiled for, as text */

/* hardware.c: what hwloc and the kernel say of this machine; needs no tess_start. */
typedef struct tess_hardware {
    int cores, numa_nodes, gpus;
    uint64_t ram_bytes, ram_free_bytes;
    char cpu_name[128];
    char isa[64]; /* the widest vector set the codelets will use: "avx512_bf16, amx_bf16", ... */
} tess_hardware;
void tess_hardware_read(tess_hardware *h);

/* share.c: the part of it that this process has, divided among the ranks that a launcher started here. */
typedef struct tess_share {
    int rank, ranks; /* of this machine */
    int cores;
    bool crowded;                                 /* more ranks than cores: they take turns */
    uint64_t ram_bytes;                           /* that were free when the ranks joined, the least of any rank's */
    char host[64], cpus[128], numa[64], gpus[64]; /* lists as in "0-3,8", "-" where there are none */
} tess_share;
const tess_share *tess_share_read(void);
uint64_t tess_ram_free(void); /* now, or this rank's part of it */

/* drive.c: the drives under directories, given as in tess_machine (or yet to be made), measured with the disk tier's
 * engine for two seconds. Bytes a second, many transfers under way. */
typedef struct tess_drive {
    double read_rate, write_rate;             /* alone */
    double mixed_read_rate, mixed_write_rate; /* both at the same time */
    bool direct;                              /* past the page cache */
} tess_drive;
tess_status tess_drive_measure(const char *dirs, tess_drive *d) TESS_NODISCARD;
uint64_t tess_drive_free(const char *dir); /* bytes; 0 where that cannot be told */
/* TESS_INVALID names the first of the directories, given as in tess_machine, that cannot be a disk tier's. `made`,
 * unless NULL, is a directory that will be made by then, with those on the way to it. */
tess_status tess_disk_check(const char *dirs, const char *made) TESS_NODISCARD;
/* What tells these drives from others; free() *name, whatever it returns. */
tess_status tess_drive_name(const char *dirs, char **name) TESS_NODISCARD;

/* ---- tile.c: the unit that moves ------------------------------------------------------------------------------- */

typedef enum tess_tier { TESS_TIER_GPU, TESS_TIER_CPU, TESS_TIER_DISK, TESS_TIER_COUNT } tess_tier;
const char *tess_tier_name(tess_tier t);

/* What a tile is for: the plan and the reports sum by it. */
typedef enum tess_role {
    TESS_ROLE_INPUT,      /* tokens, targets */
    TESS_ROLE_WEIGHT,     /* what the matrices read: the parameter itself in fp32, its bf16 copy in bf16 */
    TESS_ROLE_MASTER,     /* the fp32 parameter behind a bf16 copy */
    TESS_ROLE_MOMENT,     /* optimizer state */
    TESS_ROLE_GRADIENT,   /* of parameters, fp32 */
    TESS_ROLE_ACTIVATION, /* of a forward or backward pass */
    TESS_ROLE_SCALAR,     /* losses and norms */
    TESS_ROLE_SCRATCH,    /* a worker's room inside one task */
    TESS_ROLE_COUNT
} tess_role;
const char *tess_role_name(tess_role r);

/* A run of bytes that StarPU may hold on any tier. Opaque; made without StarPU, so that a plan can be drawn up on a
 * machine that will not run it; its handle is registered at its first submission. */
typedef struct tess_tile tess_tile;
tess_tile *tess_tile_new(size_t bytes, tess_role role, const char *label); /* label is copied; NULL: no such size */
void tess_tile_free(tess_tile *t);                                         /* waits for what still uses it */
size_t tess_tile_bytes(const tess_tile *t);
tess_role tess_tile_role(const tess_tile *t);
void tess_tile_set_home(tess_tile *t, tess_tier home); /* where it rests between uses; TESS_TIER_CPU from the start */
tess_tier tess_tile_home(const tess_tile *t);
uint64_t tess_tiles_on_disk(void);                /* bytes there of all tiles whose home it is */
#define TESS_TILE_MOST (((uint64_t)1 << 34) - 16) /* bytes of one: StarPU counts words of it in 32 bits */
/* The tile's bytes in RAM for the main thread, in order with the tasks submitted before, until tess_tile_unmap. mode is
 * TESS_R, TESS_W (all of it will be written) or TESS_RW. */
tess_status tess_tile_map(tess_tile *t, int mode, void **data) TESS_NODISCARD;
void tess_tile_unmap(tess_tile *t);
/* The same for a copy; a write that does not cover the tile needs one that was written before. */
tess_status tess_tile_write(tess_tile *t, size_t offset, const void *src, size_t bytes) TESS_NODISCARD;
tess_status tess_tile_read(tess_tile *t, size_t offset, void *dst, size_t bytes) TESS_NODISCARD;
/* Bytes held now and at most since tess_start by all tiles on a tier, as allocated through StarPU. */
void tess_tier_use(tess_tier tier, uint64_t *now, uint64_t *peak);
/* Bytes copied to GPUs and back since it was last asked. */
void tess_gpu_traffic(uint64_t *to, uint64_t *from);
/* Bytes moved from and to the disk tier since tess_start, and those its files hold. */
void tess_disk_traffic(uint64_t *read_bytes, uint64_t *write_bytes, uint64_t *used, uint64_t *peak);

/* ---- submit.c: codelets and tasks ------------------------------------------------------------------------------ */

/* What is the same for all tasks of a step; set between steps, read by bodies. */
typedef struct tess_env {
    uint64_t seed;
    int64_t step;                   /* from 0 */
    bool train;                     /* dropout acts */
    double lr, beta1, beta2;        /* the optimizer's, for this step */
    double bias1, bias2;            /* 1 - beta^(step+1) */
    double eps, weight_decay, clip; /* clip 0: off */
    float loss_scale;               /* 1 / targets that count in the global batch */
    const struct tess_env *before;  /* that of the step before, for updates that come late */
} tess_env;
void tess_env_set(const tess_env *env);

typedef struct tess_view {
    void *ptr;
    size_t bytes;
} tess_view;

/* What a body sees. */
typedef struct tess_work {
    const tess_view *buf; /* in the order of the task's uses */
    unsigned nbuf;
    const void *arg; /* the task's */
    const tess_env *env;
    int worker; /* 0 .. tess_workers()-1 */
    const struct tess_task *task;
    /* CUDA bodies only: the stream that all they do goes to; a piece of the device's memory that is theirs until what
     * they put on the stream has run; and where kernels say what failed. */
    void *stream, *room;
    size_t room_bytes;
    struct tess_kernel_fault *fault;
} tess_work;
typedef void (*tess_body)(const tess_work *w);

/* From a body: the task failed. The first failure in the order of submission sticks and comes out of tess_wait. */
void tess_work_fail(const tess_work *w, const char *format, ...) TESS_PRINTF(2, 3);

/* The same from a kernel, which cannot call: in memory that the host sees, one a worker, all of whose kernels run one
 * after the other. One thread writes it, by tess_kernel_failed in codelets/cuda_impl.h. */
typedef struct tess_kernel_fault {
    uint32_t set, order; /* of the task that is earliest in the program, of those that failed */
    const char *name;    /* the host's */
    int64_t element;     /* that is `value`; below 0: the gradient is not finite */
    double value;
} tess_kernel_fault;

typedef struct tess_cost {
    double flops;  /* matrix flops only */
    double bytes;  /* read and written in the ideal case */
    double passes; /* beside matrix flops: read and written by what goes over the elements once more */
} tess_cost;

/* One a (op, dtype). */
typedef struct tess_codelet {
    const char *name; /* "linear_forward"; with the dtype it names the performance model */
    tess_dtype dtype;
    tess_body cpu, cuda;                /* cuda NULL: there is none */
    bool either;                        /* both have the same bits: StarPU chooses. Else the GPU, where there is one */
    tess_cost (*cost)(const void *arg); /* may be NULL: no flops, the bytes of the buffers */
    struct tess_codelet_state *state;   /* the runtime's */
} tess_codelet;

typedef enum tess_mode {
    TESS_R = 1,
    TESS_W = 2,
    TESS_RW = 3,
    TESS_SCRATCH = 4,
    TESS_LAST = 8,        /* or-ed in: nobody reads the tile after this task, its memory goes back */
    TESS_LEAVES_RAM = 16, /* or-ed in: the tile leaves RAM after this task, if its home is the disk; */
    TESS_LEAVES_GPU = 32, /* or the GPU */
} tess_mode;

typedef struct tess_use {
    tess_tile *tile;
    int mode; /* of tess_mode */
} tess_use;

/* Borrowed until it has run: a program keeps its tasks in an arena. */
typedef struct tess_task {
    tess_codelet *cl;
    const void *arg;
    const tess_use *use;
    unsigned nuse;
    uint32_t order; /* place in the program: earlier runs first where both are ready */
} tess_task;

tess_status tess_submit(const tess_task *task) TESS_NODISCARD;
/* All that was submitted has run. Returns the failure of the earliest failed task, once. */
tess_status tess_wait(void) TESS_NODISCARD;
/* A list of tasks in order, borrowed until tess_wait. Under a cap on RAM, tiles whose home is the disk come ahead of
 * their tasks and leave after them: see flow.c. */
tess_status tess_submit_all(const tess_task *task, size_t n) TESS_NODISCARD;
/* The cap: bytes that the tiles in RAM that flow may have at a time; 0: none. Said before tess_start. */
void tess_flow_room(uint64_t bytes);
/* Does the tile count below the cap, and may it leave? Inputs, scalars and scratch do not flow, nor does what lives on
 * the GPU alone. */
bool tess_tile_flows(const tess_tile *t);
/* Does a tile that flows leave RAM after this use: for good, or for its home on the disk? */
bool tess_use_leaves(const tess_use *u);
/* The cap on the one GPU: bytes that tiles may have there by plan, 0: no plan; and whether there is room beside them
 * for the optimizer's states, which StarPU moves. Said before tess_start. */
void tess_gpu_flow_room(uint64_t bytes, bool states);
/* What a GPU has for tiles with that cap (0: none); 0 where no plan is made for it: there is none, or there are
 * several.
 */
uint64_t tess_gpu_tiles(uint64_t cap);
uint64_t tess_gpu_cap(uint64_t tiles); /* with which it has so much */
/* Where there is a GPU: does the task run there? MAYBE: StarPU chooses; it is an update of states that do not live
 * there. And has the tile a place there by plan, when it is used there? */
typedef enum tess_gpu_part { TESS_NEVER, TESS_MAYBE, TESS_ALWAYS } tess_gpu_part;
tess_gpu_part tess_task_on_gpu(const tess_task *t);
bool tess_tile_has_place(const tess_tile *t);
/* Seconds since it was last asked that workers had no task, a share of all of them, while tiles were under way. */
double tess_flow_waited(void);
double tess_gpu_waited(void);            /* the same of tiles on their way to a GPU */
void tess_flow_patience(double seconds); /* after which a run in which nothing moves is ended; 0: a minute */

/* ---- ranks.c: who else runs ---------------------------------------------------------------------------------------
 *
 * Failures. What every rank surely comes by, a rank may fail in: it goes up with its status, and the others hear of it
 * when they next agree. So each phase of a run ends with tess_ranks_agree, main does too, and between a rank's failure
 * and the next agreement no other rank may need it (for a message, a sum). A failure in the middle of such needs takes
 * all ranks down, by tess_ranks_abort; so does the end of a rank that could say nothing, which watch.c sees.
 */

/* Joins the processes that a launcher (mpirun, srun) started together; without one this is rank 0 of 1. Before all else
 * here, once, and left at the end. The functions below are for the main threads of all ranks, in the same order. */
tess_status tess_ranks_join(void) TESS_NODISCARD;
void tess_ranks_leave(void);
int tess_rank(void);
int tess_ranks(void);
int tess_rank_here(int *ranks_here); /* among those of this machine */
bool tess_ranks_launched(void);      /* by mpirun or srun, through which what is printed goes */
/* For measurements and estimates: this process takes the place of one of many ranks; what they would send is zero. */
void tess_ranks_pretend(int rank, int size);
bool tess_ranks_pretended(void);
/* Ends all ranks at once, from any thread; it is said why already. */
TESS_NORETURN void tess_ranks_abort(int status);
/* Says in one line, "WHERE: WHAT", why this cannot go on, and ends all ranks; from any thread. */
TESS_NORETURN void tess_die(const char *text);
/* Of what the ranks of a machine have to say of their end the first alone is said: true, once, for it. From any thread,
 * and from a signal's handler. And: was it said? */
bool tess_watch_speak(void);
bool tess_watch_spoken(void);
/* TESS_OK if it is so everywhere; else that of the first rank that has another, whose message names it unless all ranks
 * have the same. After that, and without a launcher, it returns what it is given. */
tess_status tess_ranks_agree(tess_status status) TESS_NODISCARD;
void tess_ranks_barrier(void);
void tess_ranks_sum(double *x, int n); /* over all ranks, in no particular order */
void tess_ranks_sum_counts(int64_t *x, int n);
void tess_ranks_most(int64_t *x, int n);
void tess_ranks_tell(void *data, size_t bytes); /* rank 0's to all */
void tess_ranks_gather(const void *mine, size_t bytes, void *all);

/* ---- message.c: tiles between ranks ---------------------------------------------------------------------------------
 */

/* A run of bytes of one of the task's tiles that goes to another rank or comes from it. Tags tell those between the
 * same two ranks apart; with the same tag they meet in order. Both ranks have them in the same order, whatever the
 * tags. */
typedef struct tess_span {
    unsigned use; /* of the task's */
    int peer, tag;
    bool sends;
    size_t offset, bytes;
} tess_span;
typedef struct tess_message_arg {
    unsigned spans;
    const tess_span *span;
} tess_message_arg;
/* A task of it has tiles to read (all parts are sent), to write (they come, and are all of it) or both. All its parts
 * are under way at the same time. Messages are carried one after the other in the order of the list where NCCL does it:
 * the lists of all ranks must be parts of one order, and both ends of a part at the same place of it. */
extern tess_codelet tess_message;
/* Of all ranks: what carries messages, "MPI" or NCCL with its version; before tess_start, what would, and why. */
const char *tess_message_carrier(void);
bool tess_messages_can_gpu(void); /* would it be NCCL, between the GPUs' memories? */
/* Bytes so far. */
void tess_message_traffic(uint64_t *sent, uint64_t *received);
/* Since it was last asked: seconds in which at least one message was under way, from the moment that its tile was ready
 * here; and those of them in which workers had no task, a share of all workers. */
void tess_message_seconds(double *under_way, double *exposed);

/* ---- trace.c ---------------------------------------------------------------------------------------------------- */

typedef struct tess_profile_row {
    const char *name; /* codelet */
    tess_dtype dtype;
    uint64_t tasks;
    double busy, waiting, scheduling; /* seconds, summed over workers */
    double flops;
} tess_profile_row;
typedef struct tess_profile {
    double wall, busy, waiting, scheduling, idle; /* wall is one clock's, the others are summed over workers, with a GPU
                                                   * over its own alone */
    double submit;                                /* the main thread's seconds in tess_submit, throttling excluded */
    double flops;                                 /* matrix flops of all tasks */
    tess_profile_row row[64];
    int rows; /* longest first */
} tess_profile;
void tess_profile_reset(void);
void tess_profile_read(tess_profile *p);

#ifdef __cplusplus
}
#endif

#include "config_section.h"

#endif
