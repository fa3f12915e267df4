/* The steps for which each rank of a run writes digests of the bits that its tasks found and left, to
 * OUTPUT/digests/rank-R-of-N.tsv (graph/step/step_digest.c), for tessera bisect. */
#ifndef TESS_DIGESTS_H
#define TESS_DIGESTS_H
#include "models/train/run/run.h"

typedef struct tess_digests_file {
    FILE *f; /* NULL: no step is written */
    char *path;
    int64_t first, last;
} tess_digests_file;

/* Makes the files of a run that the configuration asks for, in place of those of another; all ranks call it. */
tess_status tess_digests_file_open(tess_digests_file *d, const tess_config *c) TESS_NODISCARD;
/* Has the next run of a step write, if it is one of them; the first is 1. */
void tess_digests_file_step(const tess_digests_file *d, tess_step *s, int64_t step);
/* Closes the file, after which no step that would write there may run. TESS_FAILED where it is not whole. */
tess_status tess_digests_file_close(tess_digests_file *d) TESS_NODISCARD;
/* Closes it whatever is in it. */
void tess_digests_file_drop(tess_digests_file *d);
/* Returns the path of a rank's file, a new string. */
char *tess_digests_file_path(const char *output, int rank, int ranks);

#endif
