/* tessera info: this machine, as far as it matters to a run. */
#include "cmd.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { BLOCK = 16 << 20, BLOCKS_MOST = 128 };
static const double HALF = 0.5; /* seconds of writing, and of reading */

/* A file in the working directory that has no name any more when this returns, so that nothing stays of it. */
static int open_nameless(bool *direct)
{
    char name[] = "tessera-info-XXXXXX";
    *direct = true;
    int fd = mkostemp(name, O_DIRECT);
    if (fd < 0 && errno == EINVAL) { /* tmpfs and its like have no direct access, and leave the file behind */
        unlink(name);
        memcpy(name, "tessera-info-XXXXXX", sizeof name);
        *direct = false;
        fd = mkostemp(name, 0);
    }
    if (fd >= 0) unlink(name);
    return fd;
}

/* Bytes per second of writing or reading blocks for a while; *blocks: how many, at most its value. Negative: an error.
 */
static double disk_rate(int fd, void *block, bool write, int *blocks)
{
    double start = tess_seconds(), now = start;
    int most = *blocks;
    for (*blocks = 0; *blocks < most && now - start < HALF; ++*blocks, now = tess_seconds()) {
        off_t offset = (off_t)*blocks * BLOCK;
        ssize_t n = write ? pwrite(fd, block, BLOCK, offset) : pread(fd, block, BLOCK, offset);
        if (n != BLOCK) return -1;
    }
    return now > start ? (double)*blocks * BLOCK / (now - start) : -1;
}

static void print_disk(FILE *out)
{
    bool direct;
    struct statvfs fs;
    double space = statvfs(".", &fs) == 0 ? (double)fs.f_bavail * (double)fs.f_frsize : 0;
    int blocks = space / 2 / BLOCK < BLOCKS_MOST ? (int)(space / 2 / BLOCK) : BLOCKS_MOST;
    int fd = open_nameless(&direct);
    void *block = mmap(NULL, 2 * BLOCK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    double wrote = -1, read = -1;
    if (fd >= 0 && block != MAP_FAILED && blocks > 0) {
        /* In huge pages a transfer has far fewer pieces; they begin at multiples of 2 MiB. */
        void *aligned = (void *)(((uintptr_t)block + (2 << 20) - 1) & ~(uintptr_t)((2 << 20) - 1));
        madvise(aligned, BLOCK, MADV_HUGEPAGE);
        memset(aligned, 0x5a, BLOCK);
        wrote = disk_rate(fd, aligned, true, &blocks);
        if (wrote > 0) read = disk_rate(fd, aligned, false, &blocks);
    }
    if (wrote > 0 && read > 0)
        fprintf(out, "disk     write %.2f GB/s, read %.2f GB/s in the working directory (%d MiB blocks, %s), %s free\n",
                wrote / 1e9, read / 1e9, BLOCK >> 20, direct ? "O_DIRECT" : "page cache: no O_DIRECT here",
                tess_human_bytes(space));
    else
        fprintf(out, "disk     not measured in the working directory: %s\n",
                blocks > 0 ? strerror(errno) : "no space left on it");
    if (block != MAP_FAILED) munmap(block, 2 * BLOCK);
    if (fd >= 0) close(fd);
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
