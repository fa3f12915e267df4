/* Memory that the ranks of a machine share, for words to one another. */
#include "runtime/ranks/ranks.h"

void *tess_window_open(MPI_Comm here, size_t bytes, MPI_Win *window)
{
    int local, disp, good;
    MPI_Aint size;
    void *base = NULL;
    MPI_Errhandler before;
    *window = MPI_WIN_NULL;
    MPI_Comm_rank(here, &local);
    MPI_Comm_get_errhandler(here, &before);
    MPI_Comm_set_errhandler(here, MPI_ERRORS_RETURN); /* a refusal would end all ranks */
    good = !MPI_Win_allocate_shared(local ? 0 : (MPI_Aint)bytes, 1, MPI_INFO_NULL, here, &base, window) &&
           !MPI_Win_shared_query(*window, 0, &size, &disp, &base);
    MPI_Comm_set_errhandler(here, before);
    MPI_Errhandler_free(&before);
    MPI_Allreduce(MPI_IN_PLACE, &good, 1, MPI_INT, MPI_MIN, here);
    if (!good) *window = MPI_WIN_NULL; /* one that only some have cannot be freed: that takes all of them */
    return good ? base : NULL;
}

void tess_window_close(MPI_Win *window)
{
    if (*window != MPI_WIN_NULL) MPI_Win_free(window);
}
