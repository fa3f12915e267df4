/* A fault of StarPU-MPI 1.3 and 1.4, of which runtime/messages/starpu_mpi.c keeps clear: two ranks that send each other
 * synchronously by the same tag. mpirun -n 2 starpu_mpi_tags; says "both came" where it is mended. */
#include <starpu_mpi.h>

int main(void)
{
    float out = 1, in = 0;
    int level, rank;
    starpu_data_handle_t a, b;
    MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &level);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (starpu_mpi_init_conf(NULL, NULL, 0, MPI_COMM_WORLD, NULL)) return 77;
    starpu_variable_data_register(&a, STARPU_MAIN_RAM, (uintptr_t)&out, sizeof out);
    starpu_variable_data_register(&b, STARPU_MAIN_RAM, (uintptr_t)&in, sizeof in);
    starpu_mpi_issend_detached(a, 1 - rank, 7, MPI_COMM_WORLD, NULL, NULL);
    starpu_sleep(0.5f); /* the other's envelope is there */
    starpu_mpi_irecv_detached(b, 1 - rank, 7, MPI_COMM_WORLD, NULL, NULL);
    starpu_data_unregister(b);
    starpu_data_unregister(a);
    if (in == 1 && rank == 0) printf("both came\n");
    starpu_mpi_shutdown();
    MPI_Finalize();
    return 0;
}
