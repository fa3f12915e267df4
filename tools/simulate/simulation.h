/* Machines that are not here: their files, and steps on them (docs/simulate.md).
 *
 *     tess_simulated m;
 *     TESS_TRY(tess_machine_read("box.json", &m));
 *     m.cores = 8;
 *     TESS_TRY(tess_machine_write("box-8.json", &m));
 *
 *     machine/machine_file.c    the file, read and written
 *     machine/machine_here.c    this machine as such a file, and what codelets reach on it
 *     machine/rates.c           what a machine's rates allow
 *     machine/platform.c        what SimGrid and StarPU read of a machine
 *     program/simulated_steps.c           steps on it, in the program that simulates
 *     runtime/                  what stands in the place of the runtime's files that ask this machine for something */
#ifndef TESS_SIMULATION_H
#define TESS_SIMULATION_H
#include "models/train/rates/yardstick.h"
#include "models/train/train.h"
#include "tools/simulate/simulated.h"

enum { TESS_SIMULATED_CORES = 256, TESS_SIMULATED_NODES = 4096 };
#define TESS_LEAST_SHARE 1e-6
/* What tasks reach of a GPU's rates, where that was not measured; docs/simulate.md says where they are from. */
#define TESS_GPU_MATRIX_SHARE 0.8
#define TESS_GPU_COPY_SHARE   0.8

/* Reads a machine from its file. */
tess_status tess_machine_read(const char *path, tess_simulated *m) TESS_NODISCARD;
/* Writes it. */
tess_status tess_machine_write(const char *path, const tess_simulated *m) TESS_NODISCARD;
/* Measures this machine, and the drive under the working directory, into the file; the shares that it has stay. */
tess_status tess_machine_write_here(const char *path) TESS_NODISCARD;
/* As tess_bench, and adds to the file what codelets reached of this machine's rates; of several ranks, what messages
 * between them take of cores. */
tess_status tess_bench_machine(const tess_config *c, int steps, const char *path, FILE *out) TESS_NODISCARD;
/* Reduces a node to the part that each of `ranks` ranks on it has. */
tess_status tess_machine_part(tess_simulated *m, int ranks) TESS_NODISCARD;
/* Checks that all nodes with simulated ranks have as many of them, where ranks_here ranks are on each node. */
tess_status tess_platform_check(const tess_simulated *m, int ranks_here, tess_fold fold) TESS_NODISCARD;
/* Writes what SimGrid and StarPU read of the machine and the ranks that are simulated, below a directory, which StarPU
 * takes for its home. */
tess_status tess_platform_write(const tess_simulated *m, int ranks_here, tess_fold fold,
                                const char *dir) TESS_NODISCARD;
/* Refuses a disk tier on a machine without a drive. */
tess_status tess_simulated_check_drive(const tess_simulated *m, const char *disk) TESS_NODISCARD;
/* In the program that simulates, called by all ranks: makes steps on the machine, where each rank has its part, and
 * prints what they took there. */
tess_status tess_simulate(const tess_config *c, const tess_simulated *part, const tess_cluster *cluster,
                          FILE *out) TESS_NODISCARD;

#endif
