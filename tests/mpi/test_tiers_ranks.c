/* A model whose states do not fit, over ranks: each rank keeps its part of them in a disk file of its own, holds the
 * cap on its RAM by the kernel's own figure, and the bits are those of one rank without a cap. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"
#include <starpu_config.h>

enum { MiB = 1 << 20, RANKS = 2 };
#ifdef STARPU_USE_CUDA
enum { BESIDE = 340 }; /* MiB for libraries, code, stacks and MPI's buffers; such a StarPU links cuBLAS and cuSPARSE */
#else
enum { BESIDE = 150 };
#endif
#ifdef __SANITIZE_ADDRESS__
enum { FIRST = 2 }; /* slow: the last of the stages alone */
#else
enum { FIRST = 0 };
#endif
static const char config[] =
    "{\"model\": {\"model_type\": \"gpt2\", \"vocab_size\": 4099, \"n_layer\": 8, \"n_embd\": 512, \"n_head\": 8,"
    "\"n_positions\": 64, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0},"
    "\"data\": {\"train\": \"text.bin\", \"seq_length\": 64}, \"bf16\": {\"enabled\": true}, \"deterministic\": true,"
    "\"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 1, \"steps\": 2, \"output\": \"out\"}";

/* The file below swap/ that a process has open, named or not. */
struct swap_file {
    ino_t inode;
    double mib;
};

static struct swap_file swap_file_of(pid_t pid)
{
    char target[400];
    struct swap_file found = {0};
    struct stat st;
    const char *dir = fmt("/proc/%d/fd", (int)pid);
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d));) {
        const char *path = fmt("%s/%s", dir, e->d_name);
        ssize_t n = readlink(path, target, sizeof target - 1);
        target[n > 0 ? n : 0] = 0;
        if (strstr(target, "/swap/") && !stat(path, &st))
            found = (struct swap_file){st.st_ino, (double)st.st_blocks * 512 / MiB};
    }
    if (d) closedir(d);
    return found;
}

/* Of all ranks; false until each has one with so much room. */
static bool find_swap_files(pid_t launcher, double mib, struct swap_file file[RANKS])
{
    pid_t rank[RANKS];
    int n = run_ranks_of(launcher, rank, RANKS), found = 0;
    while (found < n && (file[found] = swap_file_of(rank[found])).mib > mib) found++;
    return found == RANKS;
}

/* MiB; a little for each worker, of which each rank has its part. */
static long cap(void)
{
    long workers = sysconf(_SC_NPROCESSORS_ONLN) / RANKS;
    return 50 + 20 * (workers > 1 ? workers : 1);
}

/* MiB that rest on rank 0's disk, at most. */
static double rests(void)
{
    json_t *all = read_metrics("out/metrics.jsonl");
    const json_t *disk = json_object_get(json_array_get(all, json_array_size(all) - 1), "disk");
    double bytes = json_number_value(json_object_get(disk, "peak_bytes"));
    json_decref(all);
    return bytes / MiB;
}

/* Of 27.4 million parameters in bf16 a rank's states are 14 bytes each, 2 + 12 / 2, and 14 / 2. */
TEST(each_rank_keeps_its_share_on_its_own_disk_file)
{
    static const struct {
        int stage, states; /* MiB */
    } way[] = {{0, 365}, {2, 208}, {3, 182}};
    char ram[64];
    fresh();
    mkdir("swap", 0777);
    write_text("run.json", config);
    write_tiny_tokens("text.bin", 40000, 1);
    DONE("train", "run.json", "output=whole");
#ifndef __SANITIZE_ADDRESS__
    CHECK(ran.peak > cap() + BESIDE); /* else the cap shows nothing */
#endif
    snprintf(ram, sizeof ram, "memory.cpu=%ldMiB", cap());
    for (size_t w = FIRST; w < sizeof way / sizeof *way; w++) {
        struct swap_file file[RANKS] = {0};
        const double away = (double)(way[w].states - cap());
        const char *stage = fmt("zero_optimization.stage=%d", way[w].stage);
        pid_t pid = START_RANKS(RANKS, "train", "run.json", "memory.path=swap", ram, stage, "overwrite=true");
        WAIT_UNTIL(pid, find_swap_files(pid, away, file));
        run_finish(pid);
        EXPECT_DONE();
        CHECK(same_file("out/model/model.safetensors", "whole/model/model.safetensors"));
        printf("stage %d: peak %ld MiB under a cap of %ld MiB, files of %.0f and %.0f MiB, %.0f in use\n", way[w].stage,
               ran.peak, cap(), file[0].mib, file[1].mib, rests());
        CHECK(file[0].inode != file[1].inode && file[0].mib > away && file[1].mib > away);
        CHECK(rests() > away);
#ifndef __SANITIZE_ADDRESS__ /* which holds freed memory back */
        CHECK(ran.peak > 0 && ran.peak < cap() + BESIDE);
#endif
    }
    CHECK_STR(others_in("swap", ""), "");
}

/* The stages of a pipeline rest unevenly on disk: what is named is enough for all of them, and where one alone has too
 * little all of them end. */
TEST(the_disk_that_is_named_does_for_the_rank_that_needs_the_most)
{
    static const char *const cpu[] = {"memory.cpu=8MiB", "memory.cpu=10MiB"};
    wide_setup_with("\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 4, \"steps\": 1, "
                    "\"memory\": {\"path\": \"swap\"}, \"parallel\": {\"pipeline\": 2}, \"eval_every\": 1");
    write_tiny_text("valid.txt", 600, 2);
    for (int i = 0; i < 2; i++) {
        FAILS_RANKS(2, (RANKS, "train", "run.json", cpu[i], "data.valid=valid.txt", "memory.disk=1MiB"),
                    "memory.disk: 1.0 MiB, but the run needs", "(memory.disk=");
        const long named = named_in_error("(memory.disk=");
        for (long less = 3; less >= 0; less--) {
            RUN_RANKS(RANKS, "train", "run.json", cpu[i], "data.valid=valid.txt",
                      fmt("memory.disk=%ldMiB", named - less));
            if (less && ran.status)
                EXPECT_RANKS_ERROR(2, "memory.disk: ", "(memory.disk=");
            else
                EXPECT_DONE();
        }
    }
}

/* Rank 1's drive is full, seen by it alone: in a namespace of its own it can be as small as that. */
TEST(a_drive_without_room_on_one_rank_is_one_line)
{
    static const char script[] = "[ $OMPI_COMM_WORLD_RANK = 1 ] || exec \"$@\"\n"
                                 "exec unshare -m sh -c 'mount -t tmpfs -o size=1M small swap && exec \"$@\"' - \"$@\"";
    wide_setup_with("\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 4, \"steps\": 1, "
                    "\"memory\": {\"path\": \"swap\", \"cpu\": \"8MiB\"}");
    run_finish(run_start_program("unshare", (const char *[]){"-m", "mount", "-t", "tmpfs", "small", "swap", NULL}));
    if (ran.status) SKIP("only root mounts");
    for (int pipeline = 1; pipeline <= RANKS; pipeline++) {
        const char *stages = fmt("parallel.pipeline=%d", pipeline);
        run_finish(run_start_ranks(
            RANKS, "sh", (const char *[]){"-c", script, "-", run_command(), "train", "run.json", stages, NULL}));
        EXPECT_RANKS_ERROR(2, "rank 1: ", "swap: the disk tier needs ", ", 1.0 MiB are free (");
    }
}
