/* The cap on RAM holds, by the kernel's own figure, from drawing or loading to evaluating and saving, of a model whose
 * states take several times as much; and the bits are those of a run without it. */
#define CHECK_MAIN
#include "check.h"
#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { BESIDE = 300 }; /* MiB for libraries, code and stacks */
static const char config[] =
    "{\"model\": {\"model_type\": \"gpt2\", \"vocab_size\": 4099, \"n_layer\": 8, \"n_embd\": 512, \"n_head\": 8,"
    "\"n_positions\": 128, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0},"
    "\"data\": {\"train\": \"text.txt\", \"valid\": \"valid.txt\", \"seq_length\": 128}, \"bf16\": {\"enabled\": true},"
    "\"eval_every\": 1, \"train_batch_size\": 4, \"train_micro_batch_size_per_gpu\": 2, \"steps\": 2}";

/* Peak RSS in MiB of `tessera train run.json SETTING...`, at most 8; negative: it failed. */
static long peak(const char *const *setting)
{
    const char *argv[12] = {"tessera", "train", "run.json"};
    for (int i = 0; i < 8 && setting[i]; i++) argv[3 + i] = setting[i];
    pid_t child = fork();
    if (child == 0) {
        dup2(open("/dev/null", O_WRONLY), 1);
        execv(getenv("TESSERA"), (char *const *)argv);
        _exit(127);
    }
    int status;
    struct rusage usage;
    if (wait4(child, &status, 0, &usage) != child || !WIFEXITED(status) || WEXITSTATUS(status)) return -1;
    return usage.ru_maxrss >> 10;
}
#define PEAK(...) peak((const char *const[]){__VA_ARGS__, NULL})

static void write_text(const char *path, int bytes)
{
    FILE *f = fopen(path, "w");
    for (int i = 0; i < bytes; i++) fputc("tessera is a tile of a mosaic "[(i * 7 + i / 11) % 30], f);
    fclose(f);
}

static bool same_file(const char *a, const char *b)
{
    FILE *x = fopen(a, "rb"), *y = fopen(b, "rb");
    bool same = x && y;
    while (same) {
        static char p[1 << 16], q[1 << 16];
        size_t n = fread(p, 1, sizeof p, x), m = fread(q, 1, sizeof q, y);
        same = n == m && !memcmp(p, q, n);
        if (n < sizeof p) break;
    }
    if (x) fclose(x);
    if (y) fclose(y);
    return same;
}

/* The value of a member in the n-th line, from 0, as it is written. */
static const char *member(const char *path, int n, const char *name)
{
    static char line[4096];
    FILE *f = fopen(path, "r");
    char *at = NULL;
    for (int i = 0; f && i <= n && fgets(line, sizeof line, f); i++) at = i == n ? strstr(line, name) : NULL;
    if (f) fclose(f);
    if (at) at[strcspn(at, ",")] = 0;
    return at ? at : "none";
}

/* A tenth of what the run takes in all, and a little for each worker. */
static long cap(void)
{
    return 50 + 20 * sysconf(_SC_NPROCESSORS_ONLN);
}

static void check_cap(const char *what, long mib)
{
    printf("%s: peak %ld MiB under a cap of %ld MiB\n", what, mib, cap());
    CHECK(mib > 0);
#ifndef __SANITIZE_ADDRESS__ /* which holds freed memory back */
    CHECK(mib < cap() + BESIDE);
#endif
}

TEST(the_cap_holds)
{
    static const char weights[] = "whole/model/model.safetensors";
    char dir[] = "memory-XXXXXX", command[64], ram[64], valid[64];
    if (!getenv("TESSERA")) SKIP("TESSERA names no binary");
    CHECK(mkdtemp(dir) && !chdir(dir));
    FILE *f = fopen("run.json", "w");
    fputs(config, f);
    fclose(f);
    write_text("text.txt", 40000);
    write_text("valid.txt", 1000);
    snprintf(ram, sizeof ram, "memory.cpu=%ldMiB", cap());
    long whole = PEAK("output=whole");
    CHECK(whole > 0);
#ifndef __SANITIZE_ADDRESS__
    CHECK(whole > cap() + BESIDE); /* else the cap shows nothing */
#endif
    printf("whole: peak %ld MiB\n", whole);
    check_cap("drawn, trained, evaluated, saved",
              PEAK("output=capped", "memory.path=.", ram, "steps=1", "checkpoint.dir=ck", "checkpoint.every=1"));
    check_cap("resumed", PEAK("output=capped", "memory.path=.", ram, "checkpoint.dir=ck", "--resume"));
    CHECK(same_file(weights, "capped/model/model.safetensors"));
    for (int step = 0; step < 2; step++) {
        snprintf(valid, sizeof valid, "%s", member("whole/metrics.jsonl", step, "\"valid_loss\""));
        CHECK_STR(member("capped/metrics.jsonl", step, "\"valid_loss\""), valid);
        CHECK(strcmp(valid, "none"));
    }
    check_cap("loaded", PEAK("output=loaded", "memory.path=.", ram, "model=whole/model", "steps=1", "eval_every=0",
                             "optimizer.params.lr=0"));
    CHECK(same_file(weights, "loaded/model/model.safetensors")); /* at this rate nothing moves */
    CHECK(!chdir(".."));
    snprintf(command, sizeof command, "rm -rf %s", dir);
    CHECK(!system(command));
}
