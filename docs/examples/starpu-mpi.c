/* StarPU-MPI beside Tessera in one process. Tasks of the program's own read Tessera's tiles: each rank adds up the
 * squares of an activation, as a step makes it, and of what it has of a parameter. starpu_mpi_task_insert adds up the
 * ranks' sums. cc starpu-mpi.c $(pkg-config --cflags --libs tessera starpumpi-1.3) && mpirun -n 2 ./a.out */
#include <starpu_mpi.h>
#include <string.h>
#include <tessera.h>
enum { B = 2, T = 8, C = 16, V = 32, MICRO = 2 };

static void squares(void *buffers[], void *arg)
{
    const tess_lent *t = arg; /* which elements of the vector are meant; all are fp32 here */
    const float *x = (const float *)STARPU_VECTOR_GET_PTR(buffers[0]) + t->at;
    for (int64_t i = 0; i < t->rows * t->columns; i++) *(double *)STARPU_VARIABLE_GET_PTR(buffers[1]) += x[i] * x[i];
}
static void add(void *buffers[], void *arg)
{
    (void)arg;
    *(double *)STARPU_VARIABLE_GET_PTR(buffers[0]) += *(double *)STARPU_VARIABLE_GET_PTR(buffers[1]);
}
static struct starpu_codelet squares_cl = {.cpu_funcs = {squares}, .nbuffers = 2, .modes = {STARPU_R, STARPU_RW}},
                             add_cl = {.cpu_funcs = {add}, .nbuffers = 2, .modes = {STARPU_RW, STARPU_R}};
/* Called as each tile of the activation is made, which stays until what is inserted here has read it. */
static void see(void *sum, const tess_lent *tile)
{
    tess_lent *copy = memcpy(malloc(sizeof *copy), tile, sizeof *copy); /* StarPU frees it */
    starpu_task_insert(&squares_cl, STARPU_R, tile->handle, STARPU_RW, sum, STARPU_CL_ARGS, copy, sizeof *copy, 0);
}

/* A step, and after it, between steps, what this rank has of the parameter. */
static tess_status look(tess_graph *g, tess_step *s, tess_tensor *ids, tess_tensor *table, void *sum)
{
    int32_t id[MICRO * B * T];
    for (int i = 0; i < MICRO * B * T; i++) id[i] = i % (B * T) * 7 % V;
    TESS_TRY(tess_graph_init(g, 1));
    TESS_TRY(tess_step_feed(s, ids, id));
    TESS_TRY(tess_step_run(s, &(tess_step_input){.lr = 1e-3}, &(tess_step_result){0}));
    for (int64_t k = 0; k < tess_param_pieces(table); k++) {
        tess_lent lent;
        TESS_TRY(tess_param_lend(table, k, TESS_MASTER, &lent));
        see(sum, &lent);
        tess_param_unmap(table, k, TESS_MASTER);
    }
    return TESS_OK;
}
static tess_status run(tess_graph *g, double *sum)
{
    int begun, me = tess_rank(), ranks = tess_ranks();
    tess_step *s;
    tess_tensor *ids = tess_input(g, "ids", B, T), *table = tess_param(g, "table", V, C, TESS_NORMAL(0.3f));
    tess_tensor *x = tess_name(tess_silu(tess_embedding(ids, table, NULL)), "hidden"); /* (B, T, C) */
    tess_watch watch = {.name = "hidden", .see = see};
    tess_step_conf conf = {.train = true, .micro = MICRO, .optimizer = tess_adamw(), .watch = &watch, .watches = 1};
    TESS_TRY(tess_step_new(tess_cross_entropy(x, table, NULL, ids), &conf, &s));
    tess_status status = tess_ranks_agree(tess_start(NULL)); /* and StarPU-MPI, where Tessera's messages go by it */
    if (status == TESS_OK) {
        starpu_data_handle_t part[ranks]; /* of each rank its sum */
        const bool ours = ranks == 1 || strncmp(tess_message_carrier(), "StarPU-MPI", 10) != 0;
        MPI_Initialized(&begun); /* by Tessera, where there is a launcher */
        if (ours) starpu_mpi_init_conf(NULL, NULL, !begun, MPI_COMM_WORLD, NULL);
        for (int r = 0; r < ranks; r++) {
            starpu_variable_data_register(&part[r], r == me ? STARPU_MAIN_RAM : -1, (uintptr_t)sum, sizeof *sum);
            starpu_mpi_data_register(part[r], r, r);
        }
        status = tess_ranks_agree(look(g, s, ids, table, watch.of = part[me]));
        for (int r = 1; r < ranks && status == TESS_OK; r++)
            starpu_mpi_task_insert(MPI_COMM_WORLD, &add_cl, STARPU_RW, part[0], STARPU_R, part[r], 0);
        for (int r = 0; r < ranks; r++) starpu_data_unregister(part[r]); /* which waits for all of it */
        if (ours) starpu_mpi_shutdown();
    }
    tess_step_free(s);
    return status;
}
int main(void)
{
    double sum = 0;
    tess_status status = tess_ranks_join(); /* before all else */
    tess_graph *g = tess_graph_new(&(tess_graph_conf){.grid = {.rank = tess_rank(), .data = tess_ranks(), .stage = 3}});
    if (status == TESS_OK) status = run(g, &sum);
    tess_graph_free(g);
    tess_stop();
    if (tess_rank() == 0 && status != TESS_OK) fprintf(stderr, "%s\n", tess_error_text());
    if (tess_rank() == 0 && status == TESS_OK) printf("squares of hidden and table: %.9f\n", sum);
    tess_ranks_leave();
    return (int)status;
}
