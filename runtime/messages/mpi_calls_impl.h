/* Calls of MPI by others, as StarPU-MPI, which come to profile.c first. */
#ifndef TESS_MPI_CALLS_IMPL_H
#define TESS_MPI_CALLS_IMPL_H
#include <mpi.h>
#include <stdbool.h>

typedef struct tess_mpi_profile {
    /* After each MPI_Test: of which request, whether its status was asked for, whether it has ended. */
    void (*tested)(const void *request, bool asks, bool ended);
    /* After each send to that rank of the communicator. */
    void (*sent)(MPI_Comm comm, int to);
    /* Returns whether this thread's MPI_Barrier is to be left out. */
    bool (*leaves_out_barrier)(void);
} tess_mpi_profile;
/* Sets the callbacks; NULL removes them. */
void tess_mpi_profile_set(const tess_mpi_profile *p);
#endif
