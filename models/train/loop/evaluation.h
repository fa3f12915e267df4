/* A model that is opened to be evaluated; where its directory is one of checkpoints, the newest of them.
 *
 *     tess_evaluation e = {.given = config};
 *     TESS_TRY(tess_evaluation_open(&e));
 *     ... e.run ...
 *     tess_evaluation_close(&e);
 */
#ifndef TESS_EVALUATION_H
#define TESS_EVALUATION_H
#include "models/train/run/run.h"

typedef struct tess_evaluation {
    const tess_config *given;
    bool alone;    /* without data.valid: the run has parameters, and sequences of one token */
    tess_config c; /* that with the checkpoint that was picked; its texts are borrowed */
    char *path;    /* of it */
    tess_run run;
    tess_data *data;
} tess_evaluation;
/* Opens it, on all ranks. Whatever it returns, it can be closed. */
tess_status tess_evaluation_open(tess_evaluation *e) TESS_NODISCARD;
/* Loads its weights, once the step that was placed first can run: it starts StarPU. */
tess_status tess_evaluation_load(tess_evaluation *e) TESS_NODISCARD;
/* Closes it; one that is zeroed is nothing. */
void tess_evaluation_close(tess_evaluation *e);

#endif
