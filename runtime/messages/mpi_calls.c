/* MPI's profiling interface: a program may define MPI_X and do the work by PMPI_X. Libraries that were compiled without
 * knowing of it, as StarPU-MPI, then come by here. A program may have such functions of its own, and a tool may be
 * loaded before MPI: ours are weak, so that the program's are taken, and call on to the next there are. It is a file of
 * its own that needs nothing else, since every program that calls MPI_Test is linked with it. */
#include "runtime/messages/mpi_calls_impl.h"
#include <dlfcn.h>
#include <stdatomic.h>

static _Atomic(const tess_mpi_profile *) profile;

void tess_mpi_profile_set(const tess_mpi_profile *p)
{
    atomic_store(&profile, p);
}

#ifdef TESS_HAVE_STARPU_MPI

/* Calls MPI_X of what was loaded behind this, MPI's own or a tool's. */
#define NEXT(name, ...)                                                                                                \
    ({                                                                                                                 \
        static _Atomic(void *) found;                                                                                  \
        void *next = atomic_load(&found);                                                                              \
        if (!next && !(next = dlsym(RTLD_NEXT, "MPI_" #name))) next = (void *)PMPI_##name;                             \
        atomic_store(&found, next);                                                                                    \
        ((__typeof__(&PMPI_##name))next)(__VA_ARGS__);                                                                 \
    })
#define WEAK __attribute__((weak))

WEAK int MPI_Test(MPI_Request *request, int *flag, MPI_Status *status)
{
    const tess_mpi_profile *p = atomic_load(&profile);
    if (p && !p->tests(request)) return *flag = 0, MPI_SUCCESS;
    const int code = NEXT(Test, request, flag, status);
    if (p) p->tested(code == MPI_SUCCESS && *flag);
    return code;
}

WEAK int MPI_Irecv(void *data, int n, MPI_Datatype type, int from, int tag, MPI_Comm comm, MPI_Request *request)
{
    const tess_mpi_profile *p = atomic_load(&profile);
    if (p) p->received(data, request);
    return NEXT(Irecv, data, n, type, from, tag, comm, request);
}

static void sent(MPI_Comm comm, int to)
{
    const tess_mpi_profile *p = atomic_load(&profile);
    if (p) p->sent(comm, to);
}

WEAK int MPI_Send(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm)
{
    const int code = NEXT(Send, data, n, type, to, tag, comm);
    sent(comm, to);
    return code;
}

WEAK int MPI_Isend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    const int code = NEXT(Isend, data, n, type, to, tag, comm, request);
    sent(comm, to);
    return code;
}

WEAK int MPI_Issend(const void *data, int n, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    const int code = NEXT(Issend, data, n, type, to, tag, comm, request);
    sent(comm, to);
    return code;
}

WEAK int MPI_Barrier(MPI_Comm comm)
{
    const tess_mpi_profile *p = atomic_load(&profile);
    return p && p->leaves_out_barrier() ? MPI_SUCCESS : NEXT(Barrier, comm);
}
#endif
