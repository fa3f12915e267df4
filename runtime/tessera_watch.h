/* tessera.h: tiles that a running step shows to the program, or lends to StarPU tasks of the program's own. */
#ifndef TESSERA_WATCH_H
#define TESSERA_WATCH_H
#include "runtime/tessera_runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

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
