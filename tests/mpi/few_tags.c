/* An MPI with as few tags as TESS_TAGS says, in the place of MPI's own; one that has more refuses what this one does.
 */
#include <mpi.h>
#include <stdio.h>

static int check(MPI_Comm comm, int tag)
{
    if (tag >= 0 && tag < TESS_TAGS) return MPI_SUCCESS;
    fprintf(stderr, "MPI: tag %d, of %d\n", tag, TESS_TAGS);
    MPI_Comm_call_errhandler(comm, MPI_ERR_TAG);
    return MPI_ERR_TAG;
}

int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    const int code = check(comm, tag);
    return code == MPI_SUCCESS ? PMPI_Isend(data, n, type, to, tag, comm, request) : code;
}

int MPI_Irecv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request)
{
    const int code = check(comm, tag);
    return code == MPI_SUCCESS ? PMPI_Irecv(data, n, type, from, tag, comm, request) : code;
}
