/* How a run begins: what its output and its directory of checkpoints hold, which checkpoint it resumes from, and what
 * it may not touch. */
#ifndef TESS_RESUME_IMPL_H
#define TESS_RESUME_IMPL_H
#include "models/train/checkpoint/checkpoint.h"
#include "models/train/run/run.h"

typedef struct tess_beginning {
    bool found; /* it resumes from `at`; else it starts at step 1 */
    bool done;  /* there is nothing left to do */
    tess_progress at;
} tess_beginning;

/* Returns TESS_INVALID where output or checkpoint.dir hold what is another run's, and the configuration neither resumes
 * nor overwrites. Of rank 0 alone. */
tess_status tess_resume_refuse(const tess_config *c) TESS_NODISCARD;
/* Stores what a checkpoint keeps of this run's settings. */
tess_run_facts tess_resume_facts(const tess_run *r, const tess_data *data);
/* Finds where the run goes on, and says what is not as the checkpoint's run had it: a line each, or, where that cannot
 * be, TESS_INVALID. Of all ranks. */
tess_status tess_resume_find(const tess_run *r, const tess_run_facts *now, tess_beginning *b) TESS_NODISCARD;
/* Removes the checkpoints of another run where the configuration says so. Of rank 0 alone. */
void tess_resume_clear(const tess_config *c);

#endif
