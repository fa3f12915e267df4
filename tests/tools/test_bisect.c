/* tessera bisect: runs that are equal wherever their tiles are, and one bit that is flipped in one body on one rank,
 * found by its step, op, tile and rank. The command is the one with tests/tools/flip.c. */
#define CHECK_MAIN
#include "tests/tools/tiny.h"

#define RECORD   "digests.steps=[1,3]"
#define CAPPED   "memory.path=swap", "memory.cpu=2MiB", "memory.disk=100MiB"
#define KEEPS(d) "checkpoint.dir=" d "/checkpoints", "checkpoint.every=1", "checkpoint.keep=9"
#define WEIGHT   "h.1.mlp.c_fc.weight"
#define GRADIENT "linear_backward_weight " WEIGHT

static void setup(void)
{
    setenv("TESSERA", getenv("TESS_FLIPS"), 1);
    setenv("OMPI_MCA_rmaps_base_oversubscribe", "1", 1); /* for the ranks that bisect starts */
    tiny_setup_with(", \"deterministic\": true, \"train_micro_batch_size_per_gpu\": 1");
    mkdir("swap", 0777);
}

/* The output of bisect where two runs part: the error, and lines that begin so. */
#define PART(a, b, op, ...)                                                                                            \
    do {                                                                                                               \
        const char *const part_[] = {__VA_ARGS__};                                                                     \
        FAILS(1, ("bisect", a, b), "parts from " a, op);                                                               \
        for (size_t i_ = 0; i_ < sizeof part_ / sizeof *part_; i_++) CHECK_HAS(ran.out, part_[i_]);                    \
    } while (0)

TEST(equal_wherever_tiles_are)
{
    setup();
    DONE("train", "run.json", "output=a", RECORD, KEEPS("a"));
    WITH("STARPU_NCPU", "1") DONE("train", "run.json", "output=b", RECORD, CAPPED, KEEPS("b"));
    DONE_RANKS(2, "train", "run.json", "output=c", RECORD, "zero_optimization.stage=2");
    DONE("bisect", "a", "b");
    CHECK_HAS(ran.out, "a and b are equal: losses and gradient norms of 4 steps, weights, ");
    CHECK_HAS(ran.out, " tiles of 3 steps");
    DONE("bisect", "c", "b");
    CHECK_HAS(ran.out, " tiles of 3 steps");
    DONE("train", "run.json", "output=d", "activation_checkpointing.enabled=true", RECORD);
    DONE_RANKS(2, "bisect", "c", "d");
    CHECK_HAS(ran.out, "are equal");
}

TEST(a_bit_is_found_where_it_was_recorded)
{
    setup();
    DONE("train", "run.json", "output=a", RECORD);
    WITH("FLIP", "0 2 any " GRADIENT " 3") DONE("train", "run.json", "output=b", RECORD);
    PART("a", "b", "linear_backward_weight of h.1.mlp.c_fc, rank 0", "part in step 2:\n",
         "  op    linear_backward_weight of h.1.mlp.c_fc, micro-batch 2 (task ", "  tile  " WEIGHT ", gradient, ",
         "  rank  0 of 1\n", "found the same in both, and left ");
    CHECK(!strstr(ran.out, "once more"));
}

/* Only the run with a disk tier has it, and its checkpoints tell where to begin. */
TEST(a_bit_is_found_behind_the_last_common_checkpoint)
{
    setup();
    setenv("FLIP", "0 3 disk " GRADIENT " 1", 1);
    DONE("train", "run.json", "output=a", KEEPS("a"));
    DONE("train", "run.json", "output=b", CAPPED, KEEPS("b"));
    PART("a", "b", "linear_backward_weight", "a from step 3 to 3 once more, on 1 rank\n", "part in step 3:\n",
         "c_fc, micro-batch 0 (task ", "  tile  " WEIGHT ", gradient, ");
    CHECK(read_file("b/checkpoints/step-00000003/state.json", NULL) != NULL);
    CHECK(read_file("b/bisect/model/config.json", NULL) == NULL);
    unsetenv("FLIP");
}

TEST(a_bit_is_found_on_its_rank)
{
    setup();
    setenv("FLIP", "1 2 ranks " GRADIENT " 2", 1);
    DONE("train", "run.json", "output=a");
    DONE_RANKS(2, "train", "run.json", "output=b");
    PART("a", "b", "rank 1", "b from step 1 to ", " once more, on 2 ranks\n", "part in step 2:\n",
         "c_fc, micro-batch 3 (task ", "  rank  1 of 2\n");
    DONE_RANKS(2, "train", "run.json", "output=c", "checkpoint.dir=c/checkpoints", "zero_optimization.stage=1");
    unsetenv("FLIP");
    DONE_RANKS(2, "train", "run.json", "output=d", "zero_optimization.stage=1");
    RUN_RANKS(2, "bisect", "c", "d"); /* as the two ranks, whose replays have no bit that flips */
    EXPECT_RANKS_ERROR(1, "c: what happened up to step ", "d has the right numbers", "digests.steps=[1,");
    FAILS_RANKS(2, (2, "bisect", "a", "c"), "a: had 1 rank, and bisect has 2 now");
}

/* An update that goes wrong is no task of another number of ranks: the first task that reads the weight says so. */
TEST(a_weight_is_found_where_it_is_read)
{
    setup();
    DONE("train", "run.json", "output=a", RECORD);
    WITH("FLIP", "1 1 ranks adamw " WEIGHT " 1") DONE_RANKS(2, "train", "run.json", "output=b", RECORD);
    PART("a", "b", "rank 1", "part in step 2:\n", "  op    linear_", "of h.1.mlp.c_fc, micro-batch 2 (task ",
         "  tile  " WEIGHT ", weight, ", "  rank  1 of 2\n", "it found ", "written before this step");
    WITH("FLIP", "1 1 ranks adamw " WEIGHT " 1")
    DONE_RANKS(2, "train", "run.json", "output=c", RECORD, "zero_optimization.stage=1");
    DONE_RANKS(2, "train", "run.json", "output=d", RECORD, "zero_optimization.stage=1");
    PART("d", "c", "adamw, rank 1", "part in step 1:\n", "  op    adamw (task ", "  tile  " WEIGHT ", weight, ",
         "found the same in both");
}

/* Changes what the `nth` task found in the tile of this label. */
static void change_found(const char *path, const char *label, int nth)
{
    char *text = read_file(path, NULL), *at = text;
    while (nth-- && at) {
        at = strstr(at + 1, label);
        while (at && at[-1] != '\n') at--;
        at = at && nth ? strchr(at, '\n') : at;
    }
    CHECK(at && *at == 'U');
    for (int tabs = 0; at && tabs < 4; at++) tabs += *at == '\t';
    if (at) *at = *at == '0' ? '1' : '0';
    write_text(path, text ? text : "");
    free(text);
}

TEST(a_tile_that_changed_at_rest)
{
    setup();
    DONE("train", "run.json", "output=a", RECORD);
    DONE("train", "run.json", "output=b", RECORD);
    change_found("b/digests/rank-0-of-1.tsv", "\tweight\t" WEIGHT "\n", 2);
    PART("a", "b", "h.1.mlp.c_fc, rank 0", "part in step 1:\n", "  tile  " WEIGHT ", weight, ",
         "in b it changed at rest: linear_", "(RAM, a drive or a copy changed it)");
}

TEST(mistakes)
{
    setup();
    DONE("train", "run.json", "output=a", "steps=1");
    DONE("train", "run.json", "output=b", "steps=1", "seed=2", "optimizer.params.lr=0.5");
    FAILS(2, ("bisect", "a", "b"), "b/config.json: seed: 2, but 1 in a; so do optimizer.params.lr");
    FAILS(2, ("bisect", "a", "nowhere"), "nowhere: is no output of a run (no config.json");
    FAILS(2, ("bisect", "a"), "1 directories, expected tessera bisect RUN_A RUN_B");
    FAILS(2, ("train", "run.json", "digests.steps=[3,2]"), "digests.steps: [3, 2], expected the first step");
    DONE("train", "run.json", "output=e", "steps=1", "deterministic=across machines");
    DONE_RANKS(2, "train", "run.json", "output=f", "steps=1", "deterministic=across machines");
    DONE("bisect", "e", "f");
    DONE("train", "run.json", "output=c", "steps=1", "deterministic=false");
    DONE_RANKS(2, "train", "run.json", "output=d", "steps=1", "deterministic=false");
    FAILS(2, ("bisect", "c", "d"), "d/config.json: deterministic: false, and it has 2 ranks");
    write_text("a/metrics.jsonl", "");
    FAILS(2, ("bisect", "a", "a"), "a/metrics.jsonl: has no step");
}
