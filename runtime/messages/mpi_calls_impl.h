/* Calls of MPI by others, as StarPU-MPI, which come to profile.c first. */
#ifndef TESS_MPI_CALLS_IMPL_H
#define TESS_MPI_CALLS_IMPL_H
#include <mpi.h>
#include <stdbool.h>

typedef struct tess_mpi_profile {
    /* Called before each MPI_Test; false: the request has not ended, without a test. */
    bool (*tests)(const void *request);
    /* Called after each MPI_Test: whether the request has ended. */
    void (*tested)(bool ended);
    /* Called after each send to rank `to` of the communicator. */
    void (*sent)(MPI_Comm comm, int to);
    /* Called before each MPI_Irecv: where what comes is put, and its request. */
    void (*received)(const void *to, const void *request);
    /* Returns whether this thread's MPI_Barrier is to be left out. */
    bool (*leaves_out_barrier)(void);
} tess_mpi_profile;
/* Sets the callbacks; NULL removes them. */
void tess_mpi_profile_set(const tess_mpi_profile *p);
#endif
