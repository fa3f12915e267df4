/* runtime: the bottom room. It starts StarPU and is the only one that speaks its API, and keeps what every room needs:
 * errors, logging, dtypes, arenas. A program that uses nothing above it:
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
 *
 * Its sections: tessera_runtime.h (what programs that use the library see of it), runtime_base.h (errors, notes,
 * memory, dtypes), then here machines, tiles, tasks and where time went, runtime_ranks.h (several processes) and
 * runtime_messages.h (tiles that they send each other). */
#ifndef TESS_RUNTIME_H
#define TESS_RUNTIME_H
#include "runtime/runtime_base.h"
#include "runtime/tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- machine/machine.c: start and stop --------------------------------------------------------------------------- */

/* Returns the number of the start that holds, from 1; 0 before the first and after tess_stop. */
unsigned tess_session(void);
/* What a plan leaves to the tiles of a run; zeros: nothing was planned. */
typedef struct tess_rooms {
    uint64_t cpu_bytes; /* the cap on RAM where the plan chose it; 0: the machine's */
    uint64_t cpu_tiles; /* RAM that the tiles which flow have at a time; 0: they do not */
    uint64_t gpu_tiles; /* memory that tiles have by plan on the one GPU; 0: there is no plan for it */
    bool gpu_alone;     /* and no tile of the plan leaves it */
    bool pipeline;      /* ranks are sections of a pipeline: a micro-batch's kernels queue behind fewer of others */
    unsigned lanes;     /* of messages between GPUs, which pass each other, the same on all ranks; 0: one */
} tess_rooms;
/* Starts a run as tess_start does, with the rooms of a plan. NULL stands for zeros, of either. */
tess_status tess_start_rooms(const tess_machine *m, const tess_rooms *rooms) TESS_NODISCARD;
/* Returns TESS_INVALID of numbers that no machine has; tess_start does so, too. */
tess_status tess_machine_check(const tess_machine *m) TESS_NODISCARD;
/* Returns whether the run has a disk tier. */
bool tess_disk_there(void);
/* Returns the number of CPU workers that run. */
int tess_workers(void);
/* Returns the GPUs of this process's share that tess_start would use. */
int tess_gpus(void);
/* Returns the first of them as CUDA counts; -1: there is none. */
int tess_gpu_device(void);
/* What copies reach on a GPU, in bytes a second: within it, read and written; from RAM to it, and back. */
typedef struct tess_gpu_copies {
    double within, to, from;
} tess_gpu_copies;
/* Measures them on the first of those GPUs; false: there is none, or no memory for it. */
bool tess_gpu_copies_measure(tess_gpu_copies *out);
/* Stores what that GPU is called, and returns the bytes of its memory; 0: there is none. */
uint64_t tess_gpu_about(char *name, int room);
/* Returns the bytes that those GPUs would hold together, under such a cap on each. */
uint64_t tess_gpu_bytes(uint64_t cap);
/* Returns the bytes that the one GPU has for tiles with that cap; 0: no plan is made, since there is none or several.
 */
uint64_t tess_gpu_tiles(uint64_t cap);
/* Returns StarPU's own limit on a GPU's memory, which wins over a cap; 0: there is none. */
uint64_t tess_gpu_limit(void);
/* Returns the cap with which it has so much for tiles. */
uint64_t tess_gpu_cap(uint64_t tiles);
/* Returns the least of the limits on RAM that StarPU's variables set, and its name; 0: there is none. */
uint64_t tess_cpu_limit(const char **name);
/* Returns why CUDA finds no GPU, where that is not for lack of one; NULL: it finds some, or there is none. */
const char *tess_gpu_trouble(void);
/* Returns what this build can do with GPUs, and which there are. */
const char *tess_gpu_support(void);
/* Returns the name and version of the MPI that is linked; it may be asked before MPI is started. */
const char *tess_mpi_version(void);
/* Returns StarPU's version. */
const char *tess_starpu_version(void);
/* Returns what StarPU was compiled for. */
const char *tess_starpu_limits(void);

/* ---- ranks/hardware.c, ram.c, share.c, topology.c: this machine, and this process's part of it ------------------ */

typedef struct tess_hardware {
    int cores, threads, numa_nodes, gpus; /* threads: of a core */
    uint64_t ram_bytes, ram_free_bytes;
    char cpu_name[128];
    char isa[64]; /* the widest vector set the codelets will use: "avx512_bf16, amx_bf16", ... */
} tess_hardware;
/* Reads what hwloc and the kernel say of the machine; needs no tess_start. */
void tess_hardware_read(tess_hardware *h);

/* RAM as the system has it. */
typedef struct tess_ram {
    uint64_t bytes; /* what there is for this process: the machine's, or its cgroup's limit */
    uint64_t free;  /* what it may take without swapping; the page cache, which is given back, counts as free */
    bool limited;   /* by a cgroup: a container, a job of Slurm's */
} tess_ram;
/* Reads it from /proc and /sys below `root`: "" but in tests. */
tess_ram tess_ram_read(const char *root);

/* Each kind of CPU has all that those before it have. */
typedef enum tess_cpu_kind {
    TESS_CPU_ANY,
    TESS_CPU_SSE41,
    TESS_CPU_AVX,
    TESS_CPU_AVX2,
    TESS_CPU_AVX512,
    TESS_CPU_AVX512_VNNI,
    TESS_CPU_AVX512_BF16,
    TESS_CPU_AVX512_AMX,
    TESS_CPU_ASIMD = TESS_CPU_SSE41 /* on Arm, where there is no other */
} tess_cpu_kind;
/* Stores the kind whose kernels run, this machine's or what TESSERA_MAX_CPU_ISA caps it to, and the cap's name (NULL:
 * there is none). TESS_INVALID where the cap is no kind, or is above the machine's. */
tess_status tess_cpu_cap(tess_cpu_kind *kind, const char **cap) TESS_NODISCARD;

typedef struct tess_share {
    int rank, ranks; /* of this machine */
    int cores;
    bool crowded;                                 /* more ranks than cores: they take turns */
    uint64_t ram_bytes;                           /* RAM that was free when the ranks joined, the least of all ranks */
    uint64_t gpu_bytes;                           /* free memory of a GPU, once a plan has asked for it */
    char host[64], cpus[128], numa[64], gpus[64]; /* lists as in "0-3,8", "-" where there are none */
} tess_share;
/* Returns what this process has of it, divided among the ranks that a launcher started here. */
const tess_share *tess_share_read(void);
/* Deals fresh pages out over the NUMA nodes of this process's cores, where these are of several. */
void tess_memory_spread(void *ptr, size_t bytes);
/* Returns over how many nodes it deals them; 1 where the cores are of one, or numactl binds memory. */
int tess_memory_nodes(void);

/* ---- disk/drive.c: the drives under directories, given as in tess_machine ---------------------------------------- */

/* Bytes a second, many transfers under way. */
typedef struct tess_drive {
    double read_rate, write_rate;             /* alone */
    double mixed_read_rate, mixed_write_rate; /* both at the same time */
    bool direct;                              /* past the page cache */
} tess_drive;
/* Returns the least seconds of reading and writing these bytes at the same time. */
static inline double tess_drive_seconds(const tess_drive *d, double read, double written)
{
    const double reads = read / d->read_rate, writes = written / d->write_rate,
                 longer = reads > writes ? reads : writes,
                 both = d->mixed_read_rate / d->read_rate + d->mixed_write_rate / d->write_rate,
                 at_once = (reads + writes) / both;
    return longer > at_once ? longer : at_once;
}
/* Measures them with the disk tier's engine for two seconds; the directories may be yet to be made. */
tess_status tess_drive_measure(const char *dirs, tess_drive *d) TESS_NODISCARD;
/* Returns the bytes that are free on a directory's drive; 0 where that cannot be told. */
uint64_t tess_drive_free(const char *dir);
/* Refuses, with TESS_INVALID, the first of the directories that cannot be a disk tier's. `made`, unless NULL, is a
 * directory that will be made by then, with those on the way to it. */
tess_status tess_disk_check(const char *dirs, const char *made) TESS_NODISCARD;
/* Makes a name that these drives alone have; the caller frees *name, whatever is returned. */
tess_status tess_drive_name(const char *dirs, char **name) TESS_NODISCARD;

/* ---- tiles/tile.c: the unit that moves --------------------------------------------------------------------------- */

typedef enum tess_tier { TESS_TIER_GPU, TESS_TIER_CPU, TESS_TIER_DISK, TESS_TIER_COUNT } tess_tier;
/* Returns "gpu", "cpu", "disk". */
const char *tess_tier_name(tess_tier t);

/* What tiles are for. */
typedef enum tess_role {
    TESS_ROLE_INPUT,      /* tokens, targets */
    TESS_ROLE_WEIGHT,     /* what the matrices read: the parameter itself in fp32, its bf16 copy in bf16 */
    TESS_ROLE_MASTER,     /* the fp32 parameter behind a bf16 copy */
    TESS_ROLE_MOMENT,     /* optimizer state */
    TESS_ROLE_GRADIENT,   /* of parameters, fp32 */
    TESS_ROLE_ACTIVATION, /* of a forward or backward pass */
    TESS_ROLE_CACHE,      /* keys and values that generation keeps */
    TESS_ROLE_SCALAR,     /* losses and norms */
    TESS_ROLE_SCRATCH,    /* a worker's room inside one task */
    TESS_ROLE_COUNT
} tess_role;
/* Sets of roles are numbers with a bit for each; programs have names for those that may rest on disk. */
#ifndef __cplusplus
_Static_assert(TESS_AWAY_WEIGHTS == 1 << TESS_ROLE_WEIGHT && TESS_AWAY_MASTERS == 1 << TESS_ROLE_MASTER &&
                   TESS_AWAY_MOMENTS == 1 << TESS_ROLE_MOMENT && TESS_AWAY_GRADIENTS == 1 << TESS_ROLE_GRADIENT &&
                   TESS_AWAY_ACTIVATIONS == 1 << TESS_ROLE_ACTIVATION,
               "tess_machine.away is a set of roles");
#endif
/* Returns "input", "weight", ... */
const char *tess_role_name(tess_role r);

/* A run of bytes that StarPU may hold on any tier. Opaque; made without StarPU, so that a plan can be drawn up on a
 * machine that will not run it; its handle is registered at its first submission. */
typedef struct tess_tile tess_tile;
#define TESS_TILE_MOST (((uint64_t)1 << 34) - 16) /* bytes of one: StarPU counts words of it in 32 bits */
/* Makes one, whose label is copied; NULL: no such size. */
tess_tile *tess_tile_new(size_t bytes, tess_role role, const char *label);
/* Frees it, after waiting for what still uses it. */
void tess_tile_free(tess_tile *t);
/* Returns its label. */
const char *tess_tile_label(const tess_tile *t);
/* Returns its bytes. */
size_t tess_tile_bytes(const tess_tile *t);
/* Returns what it is for. */
tess_role tess_tile_role(const tess_tile *t);
/* Sets, before its first use, where it rests between uses: TESS_TIER_CPU from the start. */
void tess_tile_set_home(tess_tile *t, tess_tier home);
/* Returns where that is. */
tess_tier tess_tile_home(const tess_tile *t);
/* Returns a number that is whoever's that walks a list of tiles; what another wrote is left in it. */
uint32_t *tess_tile_number(tess_tile *t);
/* Maps the tile's bytes for the main thread in RAM, in order with the tasks submitted before, until tess_tile_unmap.
 * mode is TESS_R, TESS_W (all of it will be written) or TESS_RW; who only reads may have it several times. */
tess_status tess_tile_map(tess_tile *t, int mode, void **data) TESS_NODISCARD;
/* Has what is written from now on lie in bytes of its own, while tasks that were submitted have those of before: the
 * contents of such a tile, an input, change between steps that overlap. */
void tess_tile_turn(tess_tile *t);
/* Returns whether the main thread has it. */
bool tess_tile_mapped(const tess_tile *t);
/* Unmaps it; nothing happens where it is not mapped. */
void tess_tile_unmap(tess_tile *t);
/* The contents of a tile, to be read beside tasks that run: what they are now, before the next task that is submitted
 * writes them, or behind that. Tasks that would write them wait until the tile is returned. */
typedef struct tess_lending {
    tess_tile *tile;
    enum { TESS_LENT_NOW, TESS_LENT_BEFORE, TESS_LENT_BEHIND } when;
    void (*ready)(struct tess_lending *l); /* a callback, by any thread: `data` is in RAM */
    const void *data;                      /* NULL: a task has failed, and may not have written it */
    bool lent;                             /* it is on its way, or there */
    struct tess_lending *next;             /* of those that wait for the same task */
} tess_lending;
/* Lends a tile; what the caller gives it stays where it is until the tile was returned, or is not lent. */
tess_status tess_tile_lend(tess_lending *l) TESS_NODISCARD;
/* Returns a tile that was ready; any thread may. */
void tess_tile_return(const tess_lending *l);
/* Lends it no more, if that has not begun. */
void tess_tile_lend_not(tess_lending *l);
/* The first bytes of a tile as the next task that is submitted to write it leaves them, whatever is submitted then. */
typedef struct tess_reading {
    tess_lending of; /* its tile is the caller's to set */
    void *to;
    size_t bytes;
    void (*came)(struct tess_reading *r); /* a callback, by any thread: they are there; NULL: none */
    void *by;                             /* the caller's */
    bool there, ended;
} tess_reading;
/* Has them copied; *r stays where it is until it was waited for. */
tess_status tess_tile_read_behind(tess_reading *r) TESS_NODISCARD;
/* Waits for them; false: they will not come, since a task has failed, or none was submitted. */
bool tess_reading_wait(tess_reading *r);
/* Copies bytes to it; a write that does not cover the tile needs one that was written before. */
tess_status tess_tile_write(tess_tile *t, size_t offset, const void *src, size_t bytes) TESS_NODISCARD;
/* Copies bytes from it. */
tess_status tess_tile_read(tess_tile *t, size_t offset, void *dst, size_t bytes) TESS_NODISCARD;
/* Beside a GPU: has RAM ready, pages and all, for those of the tiles that live there and have none yet. */
void tess_tiles_ready(tess_tile *const *tile, size_t n);
/* Returns whether tiles have room on a tier by a plan that counts it, GPU or RAM. */
bool tess_tiles_planned(tess_tier t);
/* Returns the bytes held now and at most since tess_start by all tiles on a tier, as allocated through StarPU. */
void tess_tier_use(tess_tier tier, uint64_t *now, uint64_t *peak);
/* Returns the bytes copied to GPUs and back since it was last asked. */
void tess_gpu_traffic(uint64_t *to, uint64_t *from);
/* The same of what GPUs copied from each other. */
uint64_t tess_gpu_peer_traffic(void);
/* Returns the bytes on disk of all tiles whose home it is. */
uint64_t tess_tiles_on_disk(void);
/* Returns the bytes moved from and to the disk tier since tess_start, and those its files hold. */
void tess_disk_traffic(uint64_t *read_bytes, uint64_t *write_bytes, uint64_t *used, uint64_t *peak);
/* Returns the seconds since tess_start during which any of that was under way. */
double tess_disk_busy_seconds(void);

/* ---- list/submit.c: codelets and tasks --------------------------------------------------------------------------- */

enum { TESS_MOST_LOSSES = 4 }; /* that are added */

/* What is the same for all tasks of a step; read by bodies. */
typedef struct tess_env {
    uint64_t seed;
    int64_t step;                       /* from 0 */
    bool train;                         /* dropout acts */
    double lr, beta1, beta2;            /* the optimizer's, for this step */
    double bias1, bias2;                /* 1 - beta^(updates+1) */
    int64_t updates;                    /* that were made before this step's */
    double clip;                        /* of gradients, by the global norm; 0: off */
    double unscale;                     /* what takes back a scale of the loss from gradients */
    double most_norm;                   /* a global norm above it changes nothing; 0: none is too large */
    float loss_scale[TESS_MOST_LOSSES]; /* of each loss: that scale / targets that count in the global batch */
    const struct tess_env *before;      /* that of the step before, for updates that come late */
    int64_t used_at;                    /* where this step's own lengths begin in what tasks have as `used` */
    uint32_t first;                     /* the runtime's: tasks before those of the step that may run still */
} tess_env;
/* Sets it, and that before it, for the tasks that are submitted from now on: a run of tasks. They come behind those of
 * the runs before, which may still be under way. Returns the run's number. */
unsigned tess_env_set(const tess_env *env);

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
    struct tess_launches *launches; /* the runtime's, of a body that it makes a CUDA graph of; NULL: of none */
    const struct tess_work *next; /* of a bundle, where the codelet is `together`: what the CUDA body does with this */
} tess_work;
typedef void (*tess_body)(const tess_work *w);

/* Records, from a body, that the task failed. The first failure in the order of the program sticks and comes out of
 * tess_wait. */
void tess_work_fail(const tess_work *w, const char *format, ...) TESS_PRINTF(2, 3);

/* The same from a kernel, which cannot call: in memory that the host sees, one a worker, all of whose kernels run one
 * after the other. One thread writes it, by tess_kernel_failed in codelets/shared/kernels.h. */
typedef struct tess_kernel_fault {
    uint32_t set, order; /* of the task that is earliest in the program, of those that failed */
    const char *name;    /* the host's */
    int64_t element;     /* that is `value`; below 0: the gradient is not finite */
    double value;
} tess_kernel_fault;

/* ---- gpu/launches.c: how CUDA bodies launch, so that what they do may become a CUDA graph --------------------------
 */

typedef struct tess_launch {
    const void *kernel;
    unsigned blocks, threads;
    size_t shared;
    unsigned n;
    const void *const *arg; /* (n), as cudaLaunchKernel has them, and their bytes */
    const size_t *bytes;
} tess_launch;
/* Has a kernel run on w->stream. Returns CUDA's error, 0: none. */
int tess_gpu_launch(const tess_work *w, const tess_launch *l);
/* Says what else is to be put on w->stream, a library's work or a copy, by bytes that are equal where that is; NULL: it
 * is not known. True: it is not to be put there now. */
bool tess_gpu_launched(const tess_work *w, const void *what, size_t bytes);

/* ---- progress/parts.c: a body in parts --------------------------------------------------------------------------- */

typedef void (*tess_part_body)(void *of, int64_t k);
/* From a body: runs part(of, k) for each k below n, once, in any order, here and on workers that have no task; returns
 * when all have ended. Parts write different bytes, and what they are depends on shapes alone. Within one
 * of several parts, and where no task runs, they come one after the other. */
void tess_parts_run(int64_t n, tess_part_body part, void *of);
/* From a part: returns `mine`, the body's own scratch, to the worker that runs the body, and to others as much of their
 * own, in which anything may be. */
void *tess_part_room(void *mine, size_t bytes);
/* Memory that one thread keeps and that only grows: what it held is lost when it does. NULL: there is no more. */
typedef struct tess_room_kept {
    void *ptr;
    size_t bytes;
} tess_room_kept;
void *tess_room_grow(tess_room_kept *room, size_t bytes);

typedef struct tess_cost {
    double flops;  /* matrix flops only */
    double bytes;  /* read and written in the ideal case */
    double passes; /* beside matrix flops: read and written by what goes over the elements once more */
    double rows;   /* of a product: those that a weight which is packed once serves; 0 where none is */
    double lost;   /* matrix flops that a GPU would make in the time that a kernel without tensor cores takes longer */
} tess_cost;

/* One a (op, dtype). */
typedef struct tess_codelet {
    const char *name; /* "linear_forward"; with the dtype it names the performance model */
    tess_dtype dtype;
    tess_body cpu, cuda;                /* cuda NULL: there is none */
    bool cpu_alone;                     /* in no build is there one: a GPU that is emulated or simulated asks this */
    bool either;                        /* both have the same bits: StarPU chooses. Else the GPU, where there is one */
    bool together;                      /* the CUDA body does the parts of a bundle at once, which touch other bytes */
    tess_cost (*cost)(const void *arg); /* may be NULL: no flops, the bytes of the buffers */
    /* How many parts the body comes in, where most of its time goes: what a machine that is not here shares out. NULL:
     * it is not cut. */
    int64_t (*parts)(const struct tess_codelet *cl, const void *arg);
    struct tess_codelet_state *state; /* the runtime's */
} tess_codelet;

/* The options that a task chooses, and with them the tiles that other tasks need. If tiles come from disk, tasks that
 * depend on a choice are looked at when it is known. */
typedef struct tess_choice {
    int64_t options;
    unsigned char *chosen; /* (options) */
    int known;
} tess_choice;
/* Records, from the body of the task that chooses, what is chosen: option k if offset[k + 1] is more than offset[k]. */
void tess_choice_make(tess_choice *c, const int32_t *offset);

typedef enum tess_mode {
    TESS_SCRATCH = 4,
    TESS_LAST = 8,        /* or-ed in: no later task reads the tile, and its memory is freed */
    TESS_LEAVES_RAM = 16, /* or-ed in: the tile is evicted from RAM after this task, if its home is the disk */
    TESS_LEAVES_GPU = 32, /* or-ed in: the tile is evicted from the GPU after this task */
    TESS_IF_CHOSEN = 64,  /* or-ed into TESS_R: the body needs it only if the task's option is chosen, and else may find
                             NULL */
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
    int option;     /* of the choice, which those with TESS_IF_CHOSEN depend on; TESS_MAKES_CHOICE: the body makes it */
    tess_choice *choice;
    const int32_t *used; /* of each sequence that the task's rows are of, how many rows can change anything: those
                            behind them may be left at zeros; NULL: all can */
    int64_t sequence;    /* rows of each, */
    int64_t place;       /* and of the first one those before the task's */
} tess_task;
enum { TESS_MAKES_CHOICE = -1 };

/* ---- tiles/digest.c: the bits that tasks find and leave ---------------------------------------------------------- */

/* Digests of the tiles of a program's tasks, two for each of their uses: of what the task found there, and of what it
 * left; 0: it did not, or ran elsewhere than in RAM. */
typedef struct tess_digests {
    const tess_task *task;
    size_t tasks;
    const size_t *first; /* (tasks): how many uses those before it have */
    uint64_t *of;        /* (uses, 2) */
} tess_digests;
/* Keeps digests of these tasks from now on, while none of them runs; NULL: of none. */
void tess_digests_keep(const tess_digests *d);

/* A task in whose place the main thread shows its one tile, which it reads, to whom `watch` names. */
extern tess_codelet tess_show;
typedef struct tess_show_arg {
    const tess_watch *watch;
    tess_lent lent; /* but for the handle */
} tess_show_arg;
/* Returns StarPU's handle of a tile, a starpu_data_handle_t, which it registers if it is not yet. */
struct _starpu_data_state *tess_tile_handle(tess_tile *t);

/* ---- list/list.c ------------------------------------------------------------------------------------------------- */

/* Returns what a task costs: by its codelet, else the bytes of its tiles. */
tess_cost tess_task_cost(const tess_task *t);
/* What StarPU wrote of a codelet's bodies on this machine's cores, in runs under policies that predict. */
typedef struct tess_known_time {
    double bytes, flops, seconds, times; /* of all tiles but scratch; of the cost; the mean of `times` bodies */
} tess_known_time;
typedef struct tess_known_times {
    tess_known_time *time; /* for the caller to free */
    size_t times;
} tess_known_times;
/* Reads that, which is empty where there is nothing. StarPU need not run. */
void tess_known_times_read(const tess_codelet *cl, tess_known_times *k);
/* Returns the mean seconds of bodies with that number of bytes of tiles and of flops; 0: none is known. */
double tess_known_times_of(const tess_known_times *k, double bytes, double flops);
/* Submits one task. */
tess_status tess_submit(const tess_task *task) TESS_NODISCARD;
/* Submits a list of tasks in order, borrowed until tess_wait. Under a cap on RAM, tiles whose home is the disk come
 * ahead of their tasks and leave after them: see flow/places.h. */
tess_status tess_submit_all(const tess_task *task, size_t n) TESS_NODISCARD;
/* Waits until all that was submitted has run. Returns the failure of the earliest failed task, once. */
tess_status tess_wait(void) TESS_NODISCARD;
/* Waits until the tasks of a run (tess_env_set) have run, while those submitted behind them go on. Returns as tess_wait
 * does; after a failure of one of them all that was submitted has ended. */
tess_status tess_wait_run(unsigned run) TESS_NODISCARD;

/* ---- flow/: which tiles come and go, for plans and reports ------------------------------------------------------- */

/* Returns whether the tile counts below the cap on RAM, and may leave it. Inputs, scalars and scratch do not flow, nor
 * does what lives on the GPU alone. */
bool tess_tile_flows(const tess_tile *t);
/* Returns whether a GPU has a body for the task. */
bool tess_task_can_gpu(const tess_task *t);
/* Returns whether the task runs on the GPU: one that can does, but for an update of states that do not live there. */
bool tess_task_on_gpu(const tess_task *t);
/* Returns whether a tile has a place on the GPU by plan, when it is used there. */
bool tess_tile_has_place(const tess_tile *t);
/* Tasks of the list that the GPU's flow looks at ahead of the one that is submitted. */
enum { TESS_GPU_AHEAD = 256 };
/* Plays runs of a list as the GPU's flow will have them, with `room` bytes for places, and stores the bytes that the
 * last one copies to the GPU and back: more than marks say where pieces of many sizes leave holes. Returns false where
 * a run has begun, or the room is too little. */
bool tess_gpu_flow_play(const tess_task *task, size_t n, uint64_t room, uint64_t *to, uint64_t *back);
/* Returns the seconds since it was last asked that workers had no task, a share of all of them, while tiles were under
 * way to RAM. */
double tess_flow_waited(void);
/* Returns the same of tiles on their way to a GPU. */
double tess_gpu_waited(void);

/* ---- trace/, list/timeline.c: what happened when, in the Trace Event Format ---------------------------------------
 */

/* What submission waits for where it is room, as users see it: a trace has these words, and explain goes by them. */
#define TESS_WAIT_ROOM  "room in RAM"
#define TESS_WAIT_PLACE "a place on the GPU"

typedef struct tess_trace_conf {
    const char *path;
    int rank;
    double origin, clock; /* seconds on rank 0's clock at which the file's time begins; what makes our clock rank 0's */
    const char *about;    /* a JSON object that the file opens with */
} tess_trace_conf;
/* Makes the file, to which the steps that are traced are written as they run. */
tess_status tess_trace_open(const tess_trace_conf *conf) TESS_NODISCARD;
/* Begins to trace a step, while nothing runs. */
void tess_trace_begin(void);
/* Ends it, when its tasks have ended: it took from `begin` to `end`, of tess_seconds. */
void tess_trace_end(int64_t step, double begin, double end);
/* Ends the open file, if any, and appends the n files `others` to it. */
void tess_trace_close(const char *const *others, size_t n);

/* ---- list/profile.c ---------------------------------------------------------------------------------------------- */

typedef struct tess_profile_row {
    const char *name; /* codelet */
    tess_dtype dtype;
    uint64_t tasks;
    double busy, waiting, scheduling; /* seconds, summed over workers */
    double alone;                     /* of busy: what as many workers as there are parts would still take */
    double flops, bytes;              /* bytes: passes beside flops, else what is read and written */
} tess_profile_row;
enum { TESS_PROFILE_ROWS = 64 };
typedef struct tess_profile {
    double wall, busy, waiting, scheduling, idle; /* wall is one clock's, the others are summed over workers, with a GPU
                                                   * over its own alone */
    double around; /* seconds from a CPU's body to the next of its worker, where there is one: a mean */
    double submit; /* the main thread's seconds in tess_submit, throttling excluded */
    double flops;  /* matrix flops of all tasks */
    tess_profile_row row[TESS_PROFILE_ROWS];
    int rows; /* longest first */
} tess_profile;
/* Resets the counts. */
void tess_profile_reset(void);
/* Stores the counts since then. */
void tess_profile_read(tess_profile *p);

/* Returns the matrix flops of the tasks that ran since the counts were reset, and the seconds within their bodies; of
 * codelets whose tasks do as much as was chosen, none. With a GPU the seconds are 0, unless StarPU's times are kept. */
void tess_profile_work(double *flops, double *seconds);

/* Bodies of one codelet with the same work. */
typedef struct tess_profile_shape {
    const char *name; /* codelet */
    tess_dtype dtype;
    tess_cost cost; /* of each */
    uint64_t tasks;
    double busy; /* seconds, of all workers and all of these tasks */
} tess_profile_shape;
enum { TESS_PROFILE_SHAPES = 1024, TESS_PROFILE_SHAPES_OF_ONE = 32 }; /* in all, and of a codelet; more are not kept */
/* Reads those counted since, of a run that keeps StarPU's times, with a GPU those on it alone; returns how many. */
int tess_profile_shapes(tess_profile_shape out[TESS_PROFILE_SHAPES]);

#ifdef __cplusplus
}
#endif

#include "runtime/runtime_messages.h"
#include "runtime/runtime_ranks.h"

#endif
