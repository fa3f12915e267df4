/* The library as who links it has it: the documented program on one rank and on two, and what is installed, moved to
 * another place, compiled against in C and in C++. */
#define CHECK_MAIN
#include "tests/check.h"
#include <stdarg.h>
#include <unistd.h>

static char dir[] = "/var/tmp/tessera-library-XXXXXX"; /* a drive, where /tmp may be RAM */

/* Runs a line of the shell within `dir`; its exit status, and the end of what it printed. */
static char out[1 << 16];
static int run(const char *format, ...) __attribute__((format(printf, 1, 2)));
static int run(const char *format, ...)
{
    char line[4096];
    int n = snprintf(line, sizeof line, "cd %s && { ", dir);
    va_list ap;
    va_start(ap, format);
    n += vsnprintf(line + n, sizeof line - (size_t)n, format, ap);
    va_end(ap);
    snprintf(line + n, sizeof line - (size_t)n, "; } 2>&1");
    FILE *f = popen(line, "r");
    size_t got = fread(out, 1, sizeof out - 1, f);
    out[got] = 0;
    int rc = pclose(f);
    if (rc) printf("%s\n%s", line, out);
    return rc;
}
/* The loss of a step, as it was printed. */
static double loss_of(int step)
{
    char line[32];
    snprintf(line, sizeof line, "step %d  loss ", step);
    const char *at = strstr(out, line);
    return at ? strtod(at + strlen(line), NULL) : 0;
}
#define PC        "export PKG_CONFIG_PATH=$(cat where); "
#define RUNS(...) CHECK_EQ(run(__VA_ARGS__), 0)

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value ? value : "";
}

__attribute__((constructor)) static void make(void)
{
    if (!mkdtemp(dir)) abort();
}
__attribute__((destructor)) static void clean(void)
{
    run("rm -rf %s", dir);
}

/* Under a cap, with a disk: six steps, and three and three with another number of ranks in between, leave the same
 * bytes of weights, optimizer states and positions. */
TEST(own_training_on_one_rank_and_two)
{
    const char *own = env("OWN_TRAINING"), *two = "mpirun --oversubscribe -n 2";
    RUNS("mkdir disk && %s one 6 disk", own);
    CHECK(!strstr(out, " 0.0 MiB of rank 0's"));
    CHECK_HAS(out, "step 5  loss");
    char *steps = strstr(out, "step 3"), last[256];
    snprintf(last, sizeof last, "%s", steps ? steps : "nothing");
    RUNS("%s halves 3 disk && %s %s halves 6 disk", own, two, own);
    CHECK_HAS(out, last);
    RUNS("%s %s turned 3 disk && %s turned 6 disk", two, own, own);
    CHECK_HAS(out, last);
    RUNS("diff -r one halves && diff -r one turned");
    RUNS("test -s one/model.safetensors && test -s one/step-00000006/states.safetensors");
    RUNS("test -z \"$(ls -A disk)\"");
    CHECK(run("%s one 6 no/such/disk", own) != 0);
    CHECK_HAS(out, "own-training: no/such/disk: cannot hold the disk tier");
}

/* A program's own ops are planned, capped, computed again and shared out like ours: the same bytes of weights and
 * states, in fp32 and bf16, on one rank, on two at ZeRO's third stage, under a cap with the disk, and after going on.
 * Over ranks of the tensor dimension sums have another order, which AdamW's first steps make much of. */
TEST(own_ops_wherever_they_run)
{
    const char *own = env("OWN_NET"), *two = "mpirun --oversubscribe -n 2";
    const double room[] = {1e-5, 1e-3, 1e-2};
    double whole[3];
    RUNS("%s", env("OWN_OP"));
    RUNS("mkdir -p disk && %s plain 4", own);
    CHECK_HAS(out, "0 bytes on disk");
    for (int k = 0; k < 3; k++) whole[k] = loss_of(k);
    RUNS("%s capped 4 disk=disk ram=8 every=1", own);
    CHECK(!strstr(out, "\n0 bytes on disk"));
    RUNS("%s ranks 2 disk=disk && %s %s ranks 4 disk=disk stage=3 every=1", own, two, own);
    RUNS("diff -r plain capped && diff -r plain ranks");
    RUNS("%s plain16 4 bf16=1 && %s %s ranks16 4 bf16=1 disk=disk stage=3 every=1", own, two, own);
    RUNS("diff -r plain16 ranks16");
    CHECK(whole[0] > whole[1] && whole[1] > whole[2] && whole[2] > 0);
    RUNS("%s %s tensor 4 tensor=2", two, own);
    for (int k = 0; k < 3; k++) CHECK_NEAR(loss_of(k), whole[k], room[k]);
    CHECK(run("%s small 1 disk=disk ram=1", own) != 0);
    CHECK_HAS(out, "own-net: RAM: 1.0 MiB, but the least a step can work with is");
}

/* A program's own StarPU-MPI beside a step: on two ranks, which hold half of a parameter each and half of the
 * activations, it finds what it finds on one. */
TEST(starpu_mpi_beside_it)
{
    const char *beside = env("BESIDE"), *line = "squares of hidden and table: ", *found;
    double one, two;
    if (!beside[0]) SKIP("no StarPU-MPI");
    RUNS("%s", beside);
    CHECK_HAS(out, line);
    one = (found = strstr(out, line)) ? strtod(found + strlen(line), NULL) : 0;
    CHECK(one > 1);
    for (int turn = 0; turn < 3; turn++) {
        RUNS("mpirun --oversubscribe -n 2 %s", beside);
        CHECK_HAS(out, line);
        two = (found = strstr(out, line)) ? strtod(found + strlen(line), NULL) : 0;
        CHECK_NEAR(two, one, 1e-6 * one);
    }
}

/* The program in the first comment of tessera.h, told nothing and told a configuration; and what it says of mistakes.
 */
static void example_of_header(void)
{
    const char *source = env("TESSERA_SOURCE");
    RUNS("sed -n '/\\*\\/$/q; s/^ \\*     //p; s/^ \\*$//p' $(find $PWD/moved -name tessera.h) >example.c && mkdir "
         "example");
    RUNS(PC "cc -Wall -Wextra -Werror example.c -o example/run $(pkg-config --cflags --libs tessera) && cd example && "
            "./run");
    const char *last = strstr(out, "step 100  loss ");
    CHECK(last && strtod(last + 15, NULL) < 0.5);
    RUNS("test -s example/model/model.safetensors && ls example | tr '\\n' ' '");
    CHECK_STR(out, "model run ");
    RUNS("cat >example/run.json <<END\n"
         "{\"model\": {\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 16,\n"
         "  \"n_layer\": 1, \"n_head\": 2}, \"data\": {\"train\": \"%s/docs/demo/held-out.txt\", \"seq_length\": 32},\n"
         "  \"train_batch_size\": 2, \"steps\": 9}\nEND\ntrue",
         source);
#define BY_CALL "cd example && env -u TESSERA_BUILD -u TESSERA_SOURCE ./run run.json "
    RUNS(BY_CALL "steps=2 output=by-call && test -s by-call/model/model.safetensors");
    CHECK_HAS(out, "step 2/2");
    CHECK_EQ(run(BY_CALL "stps=2") >> 8, 2);
    CHECK_HAS(out, "did you mean steps?");
}

TEST(installed_and_moved)
{
    const char *source = env("TESSERA_SOURCE");
    if (!source[0]) SKIP("a sanitized library needs more than the .pc says");
    RUNS("meson install -C %s --no-rebuild --quiet --destdir %s/stage && mv stage moved", env("TESSERA_BUILD"), dir);
    RUNS("dirname $(find $PWD/moved -name tessera.pc) > where && pkg-config --version");
    RUNS(PC "pkg-config --cflags --libs tessera && pkg-config --variable=libdir tessera");
    CHECK_HAS(out, "/moved/");
    const char *cuda = strstr(out, "/cuda");
    CHECK(!strstr(out, "/stage/") && (!cuda || !strstr(cuda + 1, "/cuda")));
    RUNS("find $PWD/moved | sed 's|.*/||' | sort | tr '\\n' ' '");
    static const char *const there[] = {" tessera ",   " tessera-elastic ", " libtessera.so ", " libtessera.a ",
                                        " tessera.1 ", "_tessera ",         " slurm.sbatch ",  " dgx-h100.json "};
    for (size_t i = 0; i < sizeof there / sizeof *there; i++) CHECK_HAS(out, there[i]);
    RUNS(PC "cc %s/docs/examples/first-model.c -o first $(pkg-config --cflags --libs tessera) && ./first", source);
    CHECK_HAS(out, "1 passed, 0 failed");
    RUNS(PC
         "cc -Wall -Wextra -Werror %s/docs/examples/own-op.c -o own $(pkg-config --cflags --libs tessera) -lm && ./own",
         source);
    CHECK_HAS(out, "the gradient says");
    if (env("BESIDE")[0])
        RUNS(PC "mpi=$(pkg-config --exists starpumpi-1.4 && echo starpumpi-1.4 || echo starpumpi-1.3) && "
                "cc -Wall -Wextra -Werror %s/docs/examples/starpu-mpi.c -o beside $(pkg-config --cflags --libs tessera "
                "$mpi) && "
                "./beside",
             source);
    RUNS(PC "for cxx in g++ clang++; do if command -v $cxx; then $cxx -std=c++17 -Wall -Wextra -Werror "
            "%s/tests/docs/cplusplus.cpp -o plus $(pkg-config --cflags --libs tessera) && ./plus || exit 1; fi; done",
         source);
    CHECK_HAS(out, " from 3.47");
    example_of_header();
}
