/* tessera info: this machine, as far as it matters to a run. */
#include "cmd.h"

static void print_disk(FILE *out)
{
    tess_drive d;
    if (tess_drive_measure(".", &d) == TESS_OK)
        fprintf(out, "disk     write %.2f GB/s, read %.2f GB/s in the working directory (16 MiB blocks, %s), %s free\n",
                d.write_rate / 1e9, d.read_rate / 1e9, d.direct ? "O_DIRECT" : "page cache: no O_DIRECT here",
                tess_human_bytes((double)tess_drive_free(".")));
    else
        fprintf(out, "disk     not measured in the working directory: %s\n", tess_error_text());
}

static tess_status run(int argc, char **argv)
{
    int rest;
    TESS_TRY(cmd_parse(NULL, 0, argc, argv, &rest));
    if (rest) return tess_error(TESS_INVALID, "command line", "%.100s: info takes no argument", argv[1]);
    tess_hardware h;
    tess_hardware_read(&h);
    printf("machine  %s, %d cores, NUMA nodes %d, GPUs %d\n", h.cpu_name, h.cores, h.numa_nodes, h.gpus);
    printf("vectors  %s\n", h.isa);
    printf("memory   %s, %s free\n", tess_human_bytes((double)h.ram_bytes), tess_human_bytes((double)h.ram_free_bytes));
    fflush(stdout);
    print_disk(stdout);
    printf("StarPU   %s: %s\n", tess_starpu_version(), tess_starpu_limits());
#ifdef TESS_HAVE_MPI
    printf("MPI      yes\n");
#else
    printf("MPI      no, this build runs on one rank\n");
#endif
    return TESS_OK;
}

const command cmd_info = {"info", "info",
                          "Prints what this machine has: cores, GPUs, memory, disk speed, StarPU and its limits, MPI.",
                          NULL, run};
