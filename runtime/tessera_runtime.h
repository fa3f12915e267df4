/* tessera.h: errors, the machine, start and stop. Within the sources it is the first part of runtime.h. */
#ifndef TESSERA_RUNTIME_H
#define TESSERA_RUNTIME_H
#include "runtime/tessera_elements.h"
#include <stddef.h>
#include <stdio.h>

/* The headers compile as C17 and as C++11. */
#ifdef __cplusplus
extern "C" {
#define TESS_LITERAL(type) type
#else
#define TESS_LITERAL(type) (type)
#endif

/* ---- errors as values -------------------------------------------------------------------------------------------- */

/* The numbers are the exit statuses of the command. */
typedef enum tess_status {
    TESS_OK = 0,
    TESS_FAILED = 1,  /* the run failed: the disk is full, a rank died, a loss is not finite */
    TESS_INVALID = 2, /* the caller gave something wrong: a configuration, a model, data, arguments */
} tess_status;

#define TESS_PRINTF(f, a) __attribute__((format(printf, f, a)))
#define TESS_NODISCARD    __attribute__((warn_unused_result))

/* Returns the message of the last error on this thread, one line without a newline; "" when there was none. */
const char *tess_error_text(void);
/* Records "WHERE: WHAT (HINT)" as this thread's last error and returns `status`. `where` is a file, a file and a key, a
 * file and a byte offset, or an op; the format states the value met and what was expected, and ends with the hint. */
tess_status tess_error(tess_status status, const char *where, const char *format, ...) TESS_PRINTF(3, 4);

/* Returns from the calling function when `expr` is not TESS_OK, with that status. */
#define TESS_TRY(expr)                                                                                                 \
    do {                                                                                                               \
        tess_status tess_try_ = (expr);                                                                                \
        if (tess_try_ != TESS_OK) return tess_try_;                                                                    \
    } while (0)

/* ---- the machine --------------------------------------------------------------------------------------------------*/

/* Kinds of tiles that a program may send to disk even where RAM has room; they are combined with |. */
enum {
    TESS_AWAY_WEIGHTS = 1 << 1,    /* operands of matrix products: the parameters, or their bf16 copies */
    TESS_AWAY_MASTERS = 1 << 2,    /* the fp32 parameters behind bf16 copies */
    TESS_AWAY_MOMENTS = 1 << 3,    /* the optimizer's states */
    TESS_AWAY_GRADIENTS = 1 << 4,  /* the gradients of parameters */
    TESS_AWAY_ACTIVATIONS = 1 << 5 /* activations that wait for the backward pass */
};

/* The rates of a machine, per second. tess_machine_measure (tessera_train.h) measures them. */
typedef struct tess_rates {
    double flops; /* operations of matrix products, all workers together */
    double copy;  /* bytes that all other tasks read and write, all workers together */
    double read;  /* bytes read from the disk while nothing is written */
    double write; /* bytes written to the disk while nothing is read */
    double both;  /* the sum of the shares of these two rates that simultaneous reads and writes reach; 0: unknown */
} tess_rates;

/* The library that carries messages between ranks; all ranks ask for the same. */
typedef enum tess_carriers {
    TESS_CARRIER_AUTO, /* NCCL if each rank has a GPU, else StarPU-MPI if this build has it and each rank has a core
                          beside its workers, else MPI; TESSERA_PARALLEL_CARRIER overrides this */
    TESS_CARRIER_STARPU_MPI,
    TESS_CARRIER_MPI,
    TESS_CARRIER_NCCL,
    TESS_CARRIER_COUNT
} tess_carriers;

/* What a run may use of this machine. A zero, or NULL, leaves the choice to the library. */
typedef struct tess_machine {
    int workers;           /* CPU workers; 0: one for each core that this process may use */
    uint64_t cpu_bytes;    /* the cap on RAM for tiles and for the workers' buffers; 0: no cap */
    uint64_t gpu_bytes;    /* the cap on each GPU's memory; 0: no cap. STARPU_LIMIT_CUDA_MEM overrides it */
    const char *disk;      /* directories that hold tiles on disk, one a drive, separated by ':'; NULL: no disk */
    uint64_t disk_bytes;   /* the cap on them; 0: they may hold what the plan puts there */
    unsigned away;         /* tiles that rest on disk even where RAM has room, TESS_AWAY_MOMENTS | ... */
    tess_rates rates;      /* with them a plan minimizes the time of a step; zeros: the bytes that it moves */
    tess_carriers carrier; /* the library that carries messages between ranks */
    const char *sched;     /* StarPU's scheduling policy; NULL: prio, with a GPU dmdas. STARPU_SCHED overrides it */
    bool disk_checksum;    /* each tile's checksum is taken when it is written, and compared when it is read */
    uint64_t disk_block;   /* bytes that one transfer moves, a multiple of 4096; 0: the engine chooses */
    unsigned disk_depth;   /* concurrent transfers in each directory; 0: the engine chooses */
    double patience;       /* seconds without any progress after which the run is ended; 0: a minute */
    const char *folder;    /* the folder of standstill.txt, which describes such a run; NULL: the working directory */
    bool profile;          /* the library measures where time goes (for its own tools) */
} tess_machine;
#ifdef __cplusplus
extern const tess_machine tess_machine_default;
#define TESS_MACHINE_DEFAULT tess_machine_default
#else
#define TESS_MACHINE_DEFAULT ((tess_machine){0})
#endif

/* Starts a run without a plan: every tile has its home in RAM, or on the GPU as far as StarPU moves it there. NULL is a
 * machine of zeros. A run with a plan is started by tess_start_plan (tessera_graph.h). All ranks call it; one rank may
 * fail by itself, and tess_ranks_agree(tess_start(...)) lets the others know. */
tess_status tess_start(const tess_machine *m) TESS_NODISCARD;
/* Ends the run, and frees what its tiles held. */
void tess_stop(void);
/* Returns how many of this process's cores tess_start would use. */
int tess_cores(void);
/* Returns the bytes of RAM that are free now, divided by the ranks on this machine. */
uint64_t tess_ram_free(void);

#ifdef __cplusplus
}
#endif

#endif
