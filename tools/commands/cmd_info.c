/* tessera info: this machine, as far as it matters to a run. */
#include "tools/commands/cmd.h"
#include "tools/simulate/simulation.h"
#include <stdlib.h>

static option options[] = {
    {"--again", NULL, "measures again, in place of the rates that are kept", NULL},
    {"--machine", "FILE", "writes it to a file too, for tessera simulate; the shares of codelets there stay", NULL}};

static void help(FILE *out)
{
    TESS_FREED char *dir = tess_cache_dir();
    fprintf(out, "Rates are measured once for each machine and drive, and kept in %s%s.\n", dir ? dir : "no file",
            dir ? "/machine*.json" : " (neither XDG_CACHE_HOME nor HOME is set)");
}

static void print_rates(const tess_yardstick *y)
{
    for (tess_dtype t = TESS_F32; t <= TESS_BF16; t++)
        printf("%-8s %s: %.4g GFLOP/s on one core, %.4g on all %d%s\n", t == TESS_F32 ? "matrices" : "",
               tess_dtype_name(t), y->matrix_rate_core[t] * 1e-9, y->matrix_rate[t] * 1e-9, y->cores,
               tess_matrix_widened(t) ? "; widened to f32 on the way, having no faster instructions" : "");
    printf("copy     %.3g GB/s read and written on one core, %.3g on all\n", y->copy_rate_core * 1e-9,
           y->copy_rate * 1e-9);
    if (y->share < TESS_QUIET)
        printf("         (other programs had %.0f%% of the cores meanwhile: these rates are not kept)\n",
               100 * (1 - y->share));
    else if (!tess_yardstick_plausible(y))
        printf("         (all cores did more than that many times what one did: these rates are not kept)\n");
}

static void print_disk(const tess_drive *d)
{
    printf("disk     read %.2f GB/s, write %.2f GB/s, both at a time %.2f and %.2f GB/s in the working directory (%s), "
           "%s free\n",
           d->read_rate * 1e-9, d->write_rate * 1e-9, d->mixed_read_rate * 1e-9, d->mixed_write_rate * 1e-9,
           d->direct ? "O_DIRECT" : "page cache: no O_DIRECT here", tess_human_bytes((double)tess_drive_free(".")));
}

static void print_attention(void)
{
    char said[300];
    if (tess_gpus() == 0) return;
    const bool library = tess_attention_library(true, said, sizeof said);
    printf("         attention %s%s%s\n", library ? "where it can by " : "by kernels of its own",
           library || !*said ? "" : ": ", said);
}

/* Who sits where, rank by rank. */
static void print_ranks(const tess_share *of)
{
    printf("\n%5s  %-20s %6s  %-16s %-6s %-6s %9s\n", "rank", "host", "cores", "CPUs", "NUMA", "GPUs", "memory");
    for (int i = 0; i < tess_ranks(); i++) {
        const double ram = (double)of[i].ram_bytes;
        printf("%5d  %-20.20s %6d  %-16s %-6s %-6s %9s%s\n", i, of[i].host, of[i].cores, of[i].cpus, of[i].numa,
               of[i].gpus, tess_human_bytes(ram), of[i].crowded ? "  (more ranks than cores)" : "");
    }
}

static tess_status print_all(bool again, const char *carrier)
{
    tess_hardware h;
    tess_yardstick y;
    tess_hardware_read(&h);
    printf("machine  %s, %d cores, NUMA nodes %d, GPUs %d\n", h.cpu_name, h.cores, h.numa_nodes, h.gpus);
    if (!tess_ranks_launched() && tess_share_read() && tess_memory_nodes() > 1)
        printf(
            "         one process deals its tiles out over %d NUMA nodes; mpirun -n %d keeps each rank's on its own\n",
            tess_memory_nodes(), tess_memory_nodes());
    printf("vectors  %s\n", h.isa);
    printf("memory   %s, %s free\n", tess_human_bytes((double)h.ram_bytes), tess_human_bytes((double)h.ram_free_bytes));
    fflush(stdout);
    tess_status drive = tess_yardstick_read(".", again, &y);
    print_rates(&y);
    if (drive == TESS_OK)
        print_disk(&y.drive);
    else
        printf("disk     not measured in the working directory: %s\n", tess_error_text());
    printf("StarPU   %s: %s\n", tess_starpu_version(), tess_starpu_limits());
    printf("GPU      %s\n", tess_gpu_support());
    print_attention();
    printf("library  %s\n", tess_matrix_library());
    if (tess_ranks_launched())
        printf("MPI      %d ranks\nmessages %s\n", tess_ranks(), carrier);
    else
        printf("MPI      yes (mpirun -n N tessera info says who sits where)\n");
    return TESS_OK;
}

static tess_status run(int rest, char **argv)
{
    if (rest) return tess_error(TESS_INVALID, "command line", "%.100s: info takes no argument", argv[1]);
    TESS_TRY(tess_ranks_agree(TESS_OK));
    TESS_FREED tess_share *all = tess_alloc((size_t)tess_ranks() * sizeof *all);
    tess_ranks_gather(tess_share_read(), sizeof *all, all);
    const char *carrier = tess_message_carrier();
    tess_status status = tess_rank() ? TESS_OK : print_all(options[0].value, carrier);
    if (tess_ranks_launched()) print_ranks(all);
    if (status == TESS_OK && options[1].value && !tess_rank()) status = tess_machine_write_here(options[1].value);
    return status;
}

const command cmd_info = {
    .name = "info",
    .usage = "info [--again] [--machine FILE]",
    .summary = "Prints what this machine has: cores, GPUs, memory, their speed and the disk's, StarPU and its "
               "limits, MPI.",
    CMD_OPTIONS(options),
    .help = help,
    .run = run,
    .ranks = CMD_ALL_RANKS};
