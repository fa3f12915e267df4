/* The cap on RAM holds, by the kernel's own figure, from loading to saving; and the bits are those of a run without it.
 */
#define CHECK_MAIN
#include "check.h"
#include <fcntl.h>
#include <stdbool.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MiB = 1 << 20, BESIDE = 300 }; /* MiB for libraries, code and stacks */
static const char config[] =
    "{\"model\": {\"model_type\": \"gpt2\", \"vocab_size\": 4099, \"n_layer\": 8, \"n_embd\": 512, \"n_head\": 8,"
    "\"n_positions\": 128, \"resid_pdrop\": 0, \"embd_pdrop\": 0, \"attn_pdrop\": 0},"
    "\"data\": {\"train\": \"text.txt\", \"seq_length\": 128}, \"bf16\": {\"enabled\": true},"
    "\"train_batch_size\": 8, \"train_micro_batch_size_per_gpu\": 4, \"steps\": 2, \"output\": \"out\"}";

/* Peak RSS in MiB of `tessera train run.json output=OUT [a b]`; negative: it failed. */
static long peak(const char *out, const char *a, const char *b)
{
    pid_t child = fork();
    if (child == 0) {
        char output[64];
        snprintf(output, sizeof output, "output=%s", out);
        int null = open("/dev/null", O_WRONLY);
        dup2(null, 1);
        execl(getenv("TESSERA"), "tessera", "train", "run.json", output, a, b, (char *)NULL);
        _exit(127);
    }
    int status;
    struct rusage usage;
    if (wait4(child, &status, 0, &usage) != child || !WIFEXITED(status) || WEXITSTATUS(status)) return -1;
    return usage.ru_maxrss >> 10;
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

TEST(the_cap_holds)
{
    char dir[] = "memory-XXXXXX", command[64];
    if (!getenv("TESSERA")) SKIP("TESSERA names no binary");
    CHECK(mkdtemp(dir) && !chdir(dir));
    FILE *f = fopen("run.json", "w");
    fputs(config, f);
    fclose(f);
    f = fopen("text.txt", "w");
    for (int i = 0; i < 40000; i++) fputc("tessera is a tile of a mosaic "[(i * 7 + i / 11) % 30], f);
    fclose(f);
    long whole = peak("whole", NULL, NULL), capped = peak("capped", "memory.path=.", "memory.cpu=208MiB");
    CHECK(whole > 0 && capped > 0);
#ifndef __SANITIZE_ADDRESS__     /* which holds freed memory back */
    CHECK(whole > 208 + BESIDE); /* else the cap shows nothing */
    CHECK(capped < 208 + BESIDE);
#endif
    printf("peak %ld MiB without a cap, %ld MiB under one of 208 MiB\n", whole, capped);
    CHECK(same_file("whole/model/model.safetensors", "capped/model/model.safetensors"));
    CHECK(!chdir(".."));
    snprintf(command, sizeof command, "rm -rf %s", dir);
    CHECK(!system(command));
}
