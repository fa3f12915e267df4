/* tessera.h, of the runtime: errors, start and stop, ranks, the configuration. Within the sources it is the first part
 * of runtime.h. */
#ifndef TESSERA_RUNTIME_H
#define TESSERA_RUNTIME_H
#include "tessera_elements.h"
#include <stddef.h>
#include <stdio.h>

/* The headers are C17 and C++11. */
#ifdef __cplusplus
extern "C" {
#define TESS_LITERAL(type) type
#else
#define TESS_LITERAL(type) (type)
#endif

/* ---- errors as values -------------------------------------------------------------------------------------------- */

/* The numbers are the exit codes of the command. */
typedef enum tess_status {
    TESS_OK = 0,
    TESS_FAILED = 1,  /* the run failed: disk full, a rank died, a loss that is not finite */
    TESS_INVALID = 2, /* what the user gave is wrong: configuration, model, data, arguments */
} tess_status;

#define TESS_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define TESS_NODISCARD    __attribute__((warn_unused_result))

/* Records "WHERE: WHAT (HINT)" for this thread and returns `status`. `where` is a file, a file and key, a file and
 * byte offset, an op; the format says the value met and what was expected, the hint in parentheses last. */
tess_status tess_error(tess_status status, const char *where, const char *format, ...) TESS_PRINTF(3, 4);
/* Returns the last error recorded on this thread, without a trailing newline; "" when there was none. */
const char *tess_error_text(void);

/* Passes a failure up. */
#define TESS_TRY(expr)                                                                                                 \
    do {                                                                                                               \
        tess_status tess_try_ = (expr);                                                                                \
        if (tess_try_ != TESS_OK) return tess_try_;                                                                    \
    } while (0)

/* ---- start and stop ---------------------------------------------------------------------------------------------- */

/* What carries messages between ranks. AUTO: NCCL where each rank has a GPU, else StarPU-MPI where this build has it
 * and each rank a core beside its workers, else MPI; TESSERA_PARALLEL_CARRIER says otherwise. The same on all ranks. */
typedef enum tess_carriers {
    TESS_CARRIER_AUTO,
    TESS_CARRIER_STARPU_MPI,
    TESS_CARRIER_MPI,
    TESS_CARRIER_NCCL,
    TESS_CARRIER_COUNT
} tess_carriers;

typedef struct tess_machine {
    int workers;       /* CPU workers; 0: one for each core that this process may use */
    const char *sched; /* StarPU's policy; NULL: prio, with a GPU dmdas. STARPU_SCHED wins */
    /* RAM, in bytes; 0: no cap. cpu_bytes bounds the buffers that wait for the next tile, cpu_tiles the tiles that flow
     * at a time; StarPU's own limit is out of reach. */
    uint64_t cpu_bytes, cpu_tiles;
    uint64_t gpu_bytes;    /* cap on what is held in each GPU's memory; 0: none. STARPU_LIMIT_CUDA_MEM wins */
    uint64_t gpu_tiles;    /* of it, what tiles have by plan on the one GPU; 0: there is no plan */
    bool gpu_states;       /* StarPU has room beside them for the optimizer's states, which it moves */
    const char *disk;      /* directories of the disk tier, one a drive, separated by ':'; NULL: there is none */
    uint64_t disk_bytes;   /* 0: what the tiles need that were placed there */
    bool disk_checksum;    /* of every tile: kept when it is written, compared when it is read */
    uint64_t disk_block;   /* bytes that move at once, a multiple of 4096; 0: the engine's choice, as is */
    unsigned disk_depth;   /* such moves under way in each directory */
    double patience;       /* seconds after which a run in which nothing moves is ended; 0: a minute */
    tess_carriers carrier; /* of messages between ranks */
    bool pipeline;         /* ranks are its stages: of messages between GPUs lanes pass each other, and a micro-batch's
                              kernels queue behind fewer of others */
    bool profile;          /* collect what tess_profile returns */
} tess_machine;
#ifdef __cplusplus
extern const tess_machine tess_machine_default;
#define TESS_MACHINE_DEFAULT tess_machine_default
#else
#define TESS_MACHINE_DEFAULT ((tess_machine){0})
#endif

/* Starts a run; NULL: the default. All ranks call it; of one that failed tess_ranks_agree(tess_start(...)) tells. */
tess_status tess_start(const tess_machine *m) TESS_NODISCARD;
/* Ends it. What tiles held is gone then. */
void tess_stop(void);
/* Returns the cores of this process's share that tess_start would use. */
int tess_cores(void);
/* Returns the RAM that is free now, or this rank's part of it. */
uint64_t tess_ram_free(void);

/* Optimizers, see tess_optimizer. */
typedef enum tess_optimizer_type {
    TESS_OPTIMIZER_ADAM,
    TESS_OPTIMIZER_ADAMW,
    TESS_OPTIMIZER_SGD,
    TESS_OPTIMIZER_LION,
    TESS_OPTIMIZER_ADAGRAD,
    TESS_OPTIMIZERS
} tess_optimizer_type;

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
/* What is done to one. */
typedef enum tess_access { TESS_R = 1, TESS_W = 2, TESS_RW = 3 } tess_access;
/* What a program is lent of a tile: StarPU's handle of it, a vector of 32-bit words, for tasks that the program gives
 * StarPU itself (docs/starpu-mpi.c). They read it, STARPU_R, on CPU workers where a GPU's memory is planned; StarPU
 * puts them in order with Tessera's, by sequential consistency: behind what wrote the tile, ahead of what writes it
 * next. */
typedef struct tess_lent {
    struct _starpu_data_state *handle; /* a starpu_data_handle_t */
    tess_dtype dtype;
    int64_t at;            /* elements of the tile before those that are meant: */
    int64_t rows, columns; /* dense, row-major */
    int64_t first;         /* the first row: of the parameter; of an activation among the rows of the whole step */
} tess_lent;
/* An activation that a step shows as it is made, by its tensor's name (tess_name); of columns shared out, our own. */
typedef struct tess_watch {
    const char *name;
    /* The main thread calls it in tess_step_run, for each micro-batch and row tile, in the order of the step: the tile
     * stays where it is for all tasks that read it and are submitted before this returns. No call of the library comes
     * from there. */
    void (*see)(void *of, const tess_lent *tile);
    void *of;
} tess_watch;

/* Returns the bytes on disk of all tiles whose home it is. */
uint64_t tess_tiles_on_disk(void);

/* ---- ranks -------------------------------------------------------------------------------------------------------
 *
 * Main threads of all ranks call these in the same order. A rank may fail alone in what every rank surely comes by: it
 * goes up with its status, and the others hear of it when they next agree. */

/* Joins the processes that a launcher (mpirun, srun) started together; without one this is rank 0 of 1. Before all else
 * of the library, once. */
tess_status tess_ranks_join(void) TESS_NODISCARD;
/* Leaves them, in the end, and waits for them to do so. Ranks that agree instead hear that this one left. */
void tess_ranks_leave(void);
/* Returns this process's number. */
int tess_rank(void);
/* Returns how many there are. */
int tess_ranks(void);
/* Returns TESS_OK if it is so everywhere; else the status of the first rank that has another, whose message names it
 * unless all ranks have the same. A failure that they agreed on may pass through further agreements on its way up:
 * these return it at once, whether the other ranks come by them or not. Once it is handled ranks agree as before. A
 * failure is a new one when tess_error said so; a program says its own with it, too. Without a launcher this returns
 * what it is given. */
tess_status tess_ranks_agree(tess_status status) TESS_NODISCARD;
/* Returns what carries messages between ranks, "MPI" or another with its version, or "nothing"; before tess_start,
 * what would, and why: then all ranks call it. */
const char *tess_message_carrier(void);
/* Adds up over all ranks, in no particular order. */
void tess_ranks_sum(double *x, int n);

#ifdef __cplusplus
}
#endif

#endif
