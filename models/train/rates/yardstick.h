/* The yardsticks of a machine: what it can do a second, measured once and kept in the user's cache directory.
 *
 *     tess_yardstick y;
 *     if (tess_yardstick_read(".", false, &y) != TESS_OK) tess_note("%s", tess_error_text()); // of the drive alone
 *     printf("%.0f GFLOP/s\n", 1e-9 * y.matrix_rate[TESS_F32]);
 */
#ifndef TESS_YARDSTICK_H
#define TESS_YARDSTICK_H
#include "graph/graph.h"
#include "models/train/rates/efficiency.h"

/* What the tasks of a training step reach of the two yardsticks: those that multiply matrices also take exponentials
 * and round, the others also compute. Read off `tessera bench`, see docs/notes/speed-gpt2.md. */
#define TESS_MATRIX_SHARE 0.85
#define TESS_COPY_SHARE   0.4

#define TESS_QUIET 0.85
enum { TESS_YARDSTICKS = TESS_BF16 + 1 }; /* dtypes that are measured; see tess_run_yardstick for fp16 */
/* Flops and bytes a second. */
typedef struct tess_yardstick {
    int cores;                                                              /* tess_cores() */
    double matrix_rate[TESS_YARDSTICKS], matrix_rate_core[TESS_YARDSTICKS]; /* of all cores at a time, of one alone */
    double copy_rate, copy_rate_core;                                       /* read and written */
    double share; /* that this program had of the cores while it measured one or all: below TESS_QUIET they were busy */
    tess_drive drive;                         /* of `dirs` */
    tess_efficiency reached[TESS_YARDSTICKS]; /* by the tasks of the last bench in that dtype; 0: there was none */
} tess_yardstick;
/* Reads them from the cache of earlier measurements, what that lacks measured and added, in at most a few seconds; all
 * of it with `again`. What is not plausible is not kept. Before tess_start: its workers are in the way. `dirs` is as in
 * tess_machine, NULL asks for no drive. The status is the drive's alone; the rest is there whatever it is. */
tess_status tess_yardstick_read(const char *dirs, bool again, tess_yardstick *y) TESS_NODISCARD;
/* Returns whether a machine can do that much, and was free while it was measured. */
bool tess_yardstick_plausible(const tess_yardstick *y);
/* Reads what was measured of this machine before, drives aside; false where there is nothing. */
bool tess_yardstick_known(tess_yardstick *y);
/* Returns the matrix rate that MFU is a share of: of this process's GPUs, or of its cores, the best that was ever
 * measured on this machine. One more measurement, of 0.15 s, is made now where no rates are known of cores that were
 * free, and on a GPU. `again` above forgets the old ones. Before tess_start. Of ranks that take turns on the same cores
 * the first has the rate and the others have 0, so that a sum over all counts them once. 0 also where a GPU cannot be
 * measured. */
double tess_yardstick_best(tess_dtype t);
/* Keeps what tasks reached of the rates of all cores. */
void tess_yardstick_set_efficiency(tess_dtype t, double matrix, double copy);
/* Keeps a better one, which a step of this process proved. */
void tess_yardstick_raise(tess_dtype t, double rate);
/* Returns what tasks without a drive do a second, by the yardsticks and what was reached of them. */
tess_rates tess_efficiency_rates(const tess_yardstick *y, tess_dtype t);
/* Takes the place of all that was measured: these are the rates of a machine that is not here, and of one of its GPUs.
 */
void tess_yardstick_given(const tess_yardstick *y, const double gpu_matrix_rate[TESS_YARDSTICKS]);

#endif
