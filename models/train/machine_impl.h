/* Machines that are not here: their files, and what SimGrid reads of them.
 *
 *     machine_file.c      the file, read and written
 *     machine_here.c      this machine as such a file, and what codelets reach on it
 *     platform.c          what SimGrid and StarPU read of a machine
 *     simulate.c          a step on it, in the program that simulates */
#ifndef TESS_MACHINE_FILE_IMPL_H
#define TESS_MACHINE_FILE_IMPL_H
#include "train.h"

enum { TESS_SIMULATED_CORES = 256, TESS_SIMULATED_NODES = 4096 };
#define TESS_LEAST_SHARE 1e-6
/* What the tasks of a training step reach of the two yardsticks: those that multiply matrices also take exponentials
 * and round, the others also compute. Read off `tessera bench`, see docs/notes/speed-gpt2.md. */
#define TESS_MATRIX_SHARE 0.85
#define TESS_COPY_SHARE   0.4
/* The same of a GPU, where none was measured; docs/simulate.md says where they are from. */
#define TESS_GPU_MATRIX_SHARE 0.8
#define TESS_GPU_COPY_SHARE   0.8

#endif
