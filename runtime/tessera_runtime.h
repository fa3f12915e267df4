/* tessera.h: elements of tiles, errors, the machine, start and stop, several ranks, and tiles that a running step
 * shows. Within the sources it is the first part of runtime.h. */
#ifndef TESSERA_RUNTIME_H
#define TESSERA_RUNTIME_H
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* ---- dtypes and elements -------------------------------------------------------------------------------------------
 *
 * Functions that read and write an element of a tile whatever its dtype is. Where the dtype is a constant for the
 * compiler, no test of it remains, and loops are vectorized. CUDA compiles them for host and device. */

#ifdef __CUDACC__
#define TESS_INLINE static __host__ __device__ __forceinline__
#else
#define TESS_INLINE static inline __attribute__((always_inline))
#endif

/* NF4 and INT8 are of frozen matrices, and of what ranks send, in blocks of TESS_QUANTIZED_BLOCK elements of a row: an
 * fp32, the largest magnitude of the block, and behind it a code of 4 or 8 bits for each element. */
typedef enum tess_dtype { TESS_F32, TESS_BF16, TESS_F16, TESS_I32, TESS_NF4, TESS_INT8, TESS_DTYPE_COUNT } tess_dtype;
enum { TESS_QUANTIZED_BLOCK = 64 };

typedef uint16_t tess_bf16;
/* Returns the same value in fp32. */
TESS_INLINE float tess_from_bf16(tess_bf16 x)
{
    union {
        uint32_t u;
        float f;
    } v;
    v.u = (uint32_t)x << 16;
    return v.f;
}
/* Returns the nearest bf16, on a tie the even one; a NaN stays one. */
TESS_INLINE tess_bf16 tess_to_bf16(float x)
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

typedef uint16_t tess_f16;
/* Returns the same value in fp32. This function and its opposite compute all cases and choose one, without a branch. */
TESS_INLINE float tess_from_f16(tess_f16 x)
{
    union {
        uint32_t u;
        float f;
    } normal, tiny, one;
    one.u = 0x38800000u; /* 2^-14 */
    const uint32_t bits = ((uint32_t)x & 0x7fffu) << 13, sign = ((uint32_t)x & 0x8000u) << 16;
    const uint32_t exponent = bits & 0x0f800000u;
    normal.u = bits + 0x38000000u + (exponent == 0x0f800000u ? 0x38000000u : 0);
    tiny.u = bits + 0x38800000u;
    tiny.f -= one.f;
    normal.u = (exponent ? normal.u : tiny.u) | sign;
    return normal.f;
}
/* Returns the nearest fp16, on a tie the even one, and infinity beyond the largest; a NaN stays one. */
TESS_INLINE tess_f16 tess_to_f16(float x)
{
    union {
        uint32_t u;
        float f;
    } v, tiny, half;
    v.f = x;
    half.u = 0x3f000000u;
    const uint32_t sign = (v.u >> 16) & 0x8000u, size = v.u & 0x7fffffffu;
    const uint32_t normal = (size - 0x38000000u + 0xfffu + ((size >> 13) & 1u)) >> 13;
    tiny.u = size;
    tiny.f += half.f; /* the last bit of 0.5f has the value of the smallest fp16 */
    uint32_t y = size < 0x38800000u ? tiny.u - 0x3f000000u : normal;
    y = size >= 0x47800000u ? 0x7c00u : y;
    y = size > 0x7f800000u ? 0x7e00u : y;
    return (tess_f16)(y | sign);
}

/* Returns in fp32 an element of bf16 or fp16. */
TESS_INLINE float tess_from_half(tess_dtype t, uint16_t x)
{
    return t == TESS_F16 ? tess_from_f16(x) : tess_from_bf16(x);
}
/* Returns an element of bf16 or fp16. */
TESS_INLINE uint16_t tess_to_half(tess_dtype t, float x)
{
    return t == TESS_F16 ? tess_to_f16(x) : tess_to_bf16(x);
}

/* Returns whether elements of a dtype have 16 bits. */
TESS_INLINE bool tess_is_half(tess_dtype t)
{
    return t == TESS_BF16 || t == TESS_F16;
}
/* Returns whether they are codes in blocks. */
TESS_INLINE bool tess_is_quantized(tess_dtype t)
{
    return t == TESS_NF4 || t == TESS_INT8;
}
/* Returns element i of x in fp32. */
TESS_INLINE float tess_load(const void *x, int64_t i, tess_dtype t)
{
    if (t == TESS_BF16) return tess_from_bf16(((const tess_bf16 *)x)[i]);
    return t == TESS_F16 ? tess_from_f16(((const tess_f16 *)x)[i]) : ((const float *)x)[i];
}
/* Stores v as element i of y. */
TESS_INLINE void tess_store(void *y, int64_t i, tess_dtype t, float v)
{
    if (t == TESS_BF16)
        ((tess_bf16 *)y)[i] = tess_to_bf16(v);
    else if (t == TESS_F16)
        ((tess_f16 *)y)[i] = tess_to_f16(v);
    else
        ((float *)y)[i] = v;
}
/* Adds v to element i of y, or, without `acc`, stores it there and does not read what was there. */
TESS_INLINE void tess_accumulate(void *y, int64_t i, tess_dtype t, bool acc, float v)
{
    tess_store(y, i, t, acc ? tess_load(y, i, t) + v : v);
}
/* Returns the address of element i of x. */
TESS_INLINE const void *tess_at(const void *x, int64_t i, tess_dtype t)
{
    return (const char *)x + i * (tess_is_half(t) ? 2 : 4);
}
/* Returns it to write there. */
TESS_INLINE void *tess_at_mut(void *x, int64_t i, tess_dtype t)
{
    return (char *)x + i * (tess_is_half(t) ? 2 : 4);
}

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
    const char *sched;     /* StarPU's scheduling policy; NULL: prio, or dmdas where a GPU has a part of the tiles.
                              STARPU_SCHED     overrides it */
    bool disk_checksum;    /* each tile's checksum is taken when it is written, and compared when it is read */
    uint64_t disk_block;   /* bytes that one transfer moves, a multiple of 4096; 0: the engine chooses */
    unsigned disk_depth;   /* concurrent transfers in each directory; 0: the engine chooses */
    double patience;       /* seconds without any progress after which the run is ended; 0: a minute */
    const char *folder;    /* the folder of standstill.txt, which describes such a run; NULL: the working directory */
    bool gpu_graphs;       /* from a task's second time on its kernels on a GPU are launched as one CUDA graph */
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

/* ---- several ranks -------------------------------------------------------------------------------------------------
 *
 * A program that runs on one rank needs nothing of this section.
 *
 *     TESS_TRY(tess_ranks_join());                                           // before all else
 *     tess_grid grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = 2};
 *     tess_graph *g = tess_graph_new(&(tess_graph_conf){.grid = grid});
 *     ... the rest is as on one rank; each rank feeds the micro-batches that tess_step_share names ...
 *     tess_ranks_leave();                                                    // after tess_stop
 *
 * The main threads of all ranks make the same calls in the same order. A rank may fail alone in a phase that every rank
 * surely completes: it ends the phase with tess_ranks_agree, which tells the others. */

/* The order of a pipeline's passes. In the last two a section has the gradients of its weights when it would wait
 * otherwise; in the last one the model goes through the sections forth and back. */
typedef enum tess_schedule { TESS_1F1B, TESS_ZB_H1, TESS_ZB_V } tess_schedule;

/* The grid of ranks that share one model, data x pipeline x tensor: rank = (d * pipeline + p) * tensor + t. It decides
 * which rank owns which shard of a tile (docs/ranks.md). All zeros are one rank. */
typedef struct tess_grid {
    int rank;       /* of this process */
    int data;       /* copies of the model; each trains on its own share of the micro-batches */
    int pipeline;   /* sections of consecutive blocks */
    int tensor;     /* parts of each matrix */
    bool rows;      /* sequence parallelism (Megatron): each tensor rank keeps a part of the rows of norms and
                       residuals */
    int sequence;   /* context parallelism: data-parallel ranks that share each micro-batch, a part of every
                       sequence each */
    int interleave; /* interleaved pipeline: chunks of consecutive blocks in each section; with TESS_ZB_V 2 */
    tess_schedule schedule;
    const char *blocks;  /* how many consecutive blocks each chunk has, with commas between; NULL: by their work */
    tess_dtype sent;     /* in which gradients go between the ranks of `data`; they are summed in fp32 */
    bool gradient_codes; /* those of matrices go in TESS_INT8; each rank keeps what its own lack for the next time */
    bool weight_codes;   /* stage 3: so go weights that are gathered, and every rank uses what the codes stand for */
    int stage;           /* ZeRO's stage: 1 shards the optimizer's states over data, 2 gradients too, 3 weights too */
    const char *states;  /* stages 1 to 3: what part of that each of at most 16 ranks of `data` has, a number for each
                            with commas between, such as "3,1"; NULL: all have as much. Borrowed while the graph lives */
    int group;           /* consecutive ranks of `data` that share what a stage shards, each group by itself (MiCS);
                            0: all do */
    bool copies;         /* stage 3: all share, and each group has a copy of gathered weights until the step's end,
                            a part on each of its ranks (ZeRO++'s hpZ) */
    int64_t persist;     /* stage 3: parameters of no more elements than this are not sharded */
    int64_t live, reuse; /* stage 3: the most elements that are gathered at the same time, and the most elements between
                            two uses of a gathered weight that is kept for the second one */
} tess_grid;

/* Joins the processes that a launcher (mpirun, srun) started together; without a launcher this process is rank 0 of 1.
 * It is called once, before any other function of the library. */
tess_status tess_ranks_join(void) TESS_NODISCARD;
/* Leaves the other ranks and waits until all have left; it is the last call. A rank that calls tess_ranks_agree instead
 * gets the error that this one left. */
void tess_ranks_leave(void);
/* Returns the number of this process, from 0. */
int tess_rank(void);
/* Returns how many ranks there are. */
int tess_ranks(void);
/* Is an all-reduce of statuses: it returns TESS_OK if every rank passes TESS_OK, else the status of the first rank that
 * passes another; the error's message names that rank unless all ranks have the same. A failure that the ranks agreed
 * on may pass through further agreements on its way up: they return it at once, without the other ranks. Once it is
 * handled the ranks agree as before. A failure is new when tess_error recorded it; a program records its own failures
 * so, too. Without a launcher it returns what it is given. */
tess_status tess_ranks_agree(tess_status status) TESS_NODISCARD;
/* Replaces each of n numbers by its sum over all ranks (all-reduce), in no particular order of addition. */
void tess_ranks_sum(double *x, int n);
/* Returns the name and version of the library that carries messages, "MPI ...", or "nothing". Before tess_start all
 * ranks must call it, and it returns the library that would carry them, and why. */
const char *tess_message_carrier(void);

/* ---- tiles that a step shows (may still change) --------------------------------------------------------------------
 *
 * A running step shows tiles to the program, or lends them to StarPU tasks of the program's own. */

/* What a task or a caller does with a tile. */
typedef enum tess_access { TESS_R = 1, TESS_W = 2, TESS_RW = 3 } tess_access;

/* A part of a tile that a program's own StarPU tasks may read (docs/examples/starpu-mpi.c). They name the handle with
 * STARPU_R, and run on CPU workers where a GPU's memory is planned. StarPU's sequential consistency puts them behind
 * the task that wrote the tile and ahead of the one that writes it next. */
typedef struct tess_lent {
    struct _starpu_data_state *handle; /* a starpu_data_handle_t: a vector of 32-bit words */
    tess_dtype dtype;                  /* of the elements */
    int64_t at;                        /* the index of the first element that is lent */
    int64_t rows, columns;             /* the shape of the part, dense and row-major */
    int64_t first; /* the index of the first row: in the parameter, or among the rows of the whole step */
} tess_lent;

/* An activation that a step shows while it runs. With tensor parallelism each rank sees its own columns. */
typedef struct tess_watch {
    const char *name; /* the tensor's name, as tess_name set it */
    /* A callback: the main thread calls it within tess_step_run, for each micro-batch and tile of rows, in the order of
     * the step. The tile stays where it is until all tasks have run that read it and were submitted before `see`
     * returns. `see` calls no function of the library. */
    void (*see)(void *of, const tess_lent *tile);
    void *of; /* the first argument of `see` */
} tess_watch;

#ifdef __cplusplus
}
#endif

#endif
