/* train, the top of models: what the command does with networks and files. The first part of it, which programs may
 * call too, is tessera_train.h. */
#ifndef TESS_TRAIN_H
#define TESS_TRAIN_H
#include "codelets.h"
#include "graph.h"
#include "simulated.h"
#include "tessera_networks.h"
#include "tessera_train.h"

#ifdef __cplusplus
extern "C" {
#endif

/* As tess_estimate, but TESS_FAILED, when all is said, for a run that does not fit. */
tess_status tess_estimate_fits(const tess_config *c, FILE *out) TESS_NODISCARD;
typedef struct tess_bench_result {
    double seconds;                         /* of a step, the median */
    double busy, waiting, scheduling, idle; /* shares of the workers' time */
    double moved;                           /* bytes a step from and to the disk */
} tess_bench_result;
/* Makes steps on random tokens, and prints a table of where the time goes; unless NULL, *result is the same. */
tess_status tess_bench(const tess_config *c, int steps, FILE *out, tess_bench_result *result) TESS_NODISCARD;
/* Makes the same steps under each of StarPU's policies, with everything in RAM and under a cap, each in a process of
 * its own, and prints a line for each. Of one rank, before anything of StarPU or a library of matrices has run. */
tess_status tess_bench_policies(const tess_config *c, int steps, FILE *out) TESS_NODISCARD;

/* Prints where the time of a traced step went, from the directory of its run, and what would help. */
tess_status tess_explain(const char *output, FILE *out) TESS_NODISCARD;
/* Writes a page that shows runs, side by side, from what they left in their outputs, and prints its path. `file` NULL:
 * report.html in the output, or, of several runs, in the working directory. */
tess_status tess_report_runs(const char *const *output, int runs, const char *file, FILE *out) TESS_NODISCARD;

/* ---- yardstick.c: what this machine can do ------------------------------------------------------------------------
 */

#define TESS_QUIET 0.85
enum { TESS_YARDSTICKS = TESS_BF16 + 1 }; /* dtypes that are measured; see tess_run_yardstick for fp16 */
/* Flops and bytes a second. */
typedef struct tess_yardstick {
    int cores;                                                              /* tess_cores() */
    double matrix_rate[TESS_YARDSTICKS], matrix_rate_core[TESS_YARDSTICKS]; /* of all cores at a time, of one alone */
    double copy_rate, copy_rate_core;                                       /* read and written */
    double share; /* that this program had of the cores while it measured: below TESS_QUIET they were busy otherwise */
    tess_drive drive;                      /* of `dirs` */
    tess_reached reached[TESS_YARDSTICKS]; /* by the tasks of the last bench in that dtype; 0: there was none */
} tess_yardstick;
/* Reads them from the cache of earlier measurements, what that lacks measured and added, in at most a few seconds; all
 * of it with `again`, and what a busy machine gave. Before tess_start: its workers are in the way. `dirs` is as in
 * tess_machine, NULL asks for no drive. The status is the drive's alone; the rest is there whatever it is. */
tess_status tess_yardstick_read(const char *dirs, bool again, tess_yardstick *y) TESS_NODISCARD;
/* Reads what was measured of this machine before, drives aside; false where there is nothing. */
bool tess_yardstick_known(tess_yardstick *y);
/* Returns the matrix rate that MFU is a share of: of this process's GPUs, or of its cores, the best that was ever
 * measured on this machine; one more measurement, of 0.15 s, is made now. `again` above forgets the old ones. Before
 * tess_start. Of ranks that take turns on the same cores the first has the rate and the others have 0, so that a sum
 * over all counts them once. 0 also where a GPU cannot be measured. */
double tess_yardstick_best(tess_dtype t);
/* Keeps what tasks reached of the rates of all cores. */
void tess_yardstick_reached(tess_dtype t, double matrix, double copy);
/* Keeps a better one, which a step of this process proved. */
void tess_yardstick_raise(tess_dtype t, double rate);

/* ---- machines that are not here: docs/simulate.md -----------------------------------------------------------------
 */

/* Reads a machine from its file. */
tess_status tess_machine_read(const char *path, tess_simulated *m) TESS_NODISCARD;
/* Writes it. */
tess_status tess_machine_write(const char *path, const tess_simulated *m) TESS_NODISCARD;
/* Measures this machine, and the drive under the working directory, into the file; the shares that it has stay. */
tess_status tess_machine_write_here(const char *path) TESS_NODISCARD;
/* As tess_bench, and adds to the file what codelets reached of this machine's rates. */
tess_status tess_bench_machine(const tess_config *c, int steps, const char *path, FILE *out) TESS_NODISCARD;
/* Makes of a node the part that each of so many ranks on it has. */
tess_status tess_machine_part(tess_simulated *m, int ranks) TESS_NODISCARD;
/* Checks that nodes where ranks are simulated are alike, with so many ranks on each node. */
tess_status tess_platform_check(const tess_simulated *m, int ranks_here, tess_fold fold) TESS_NODISCARD;
/* Writes what SimGrid and StarPU read of the machine and the ranks that are simulated, below a directory, which StarPU
 * takes for its home. */
tess_status tess_platform_write(const tess_simulated *m, int ranks_here, tess_fold fold,
                                const char *dir) TESS_NODISCARD;
/* In the program that simulates, called by all ranks: makes steps on the machine, of which each has its part, and
 * prints what they took there. */
tess_status tess_simulate(const tess_config *c, const tess_simulated *part, const tess_cluster *cluster, int steps,
                          FILE *out) TESS_NODISCARD;
/* Lets the yardsticks be a machine's that is not here. */
void tess_yardstick_given(const tess_simulated *m);

/* Says what data.seq_length and the dtype of matrices are for who evaluates a directory with no configuration: those of
 * the run that a checkpoint is of, else all of a model's positions (at most 1024), in fp32. */
tess_status tess_eval_facts(const char *dir, int64_t *length, tess_dtype *dtype) TESS_NODISCARD;

#ifdef __cplusplus
}
#endif

#endif
