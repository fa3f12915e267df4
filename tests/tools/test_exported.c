/* Runs of exported networks, fed with .npy: they learn, go on where they ended with the same bits, and have the same
 * bits through a disk; what is wrong with a file is one line. */
#define CHECK_MAIN
#include "tests/tools/run.h"

#ifndef TESS_FIXTURES
#define TESS_FIXTURES "tests/models/fixtures"
#endif
#define MLP   TESS_FIXTURES "/imported/mlp"
#define GPT   TESS_FIXTURES "/imported/gpt"
#define STATE TESS_FIXTURES "/imported/state"
enum { SAMPLES = 48 };

/* A .npy of that type, whose header is padded as numpy pads it. */
static void write_npy(const char *path, const char *type, const char *shape, const void *data, size_t bytes)
{
    char header[128] = "\x93NUMPY\x01";
    char *text = malloc(sizeof header + bytes);
    memset(header + 8, ' ', sizeof header - 8);
    const int n = sprintf(header + 10, "{'descr': '%s', 'fortran_order': False, 'shape': (%s), }", type, shape);
    header[10 + n] = ' ';
    header[127] = '\n';
    header[7] = 0, header[8] = 118, header[9] = 0;
    memcpy(text, header, sizeof header);
    memcpy(text + sizeof header, data, bytes);
    write_file(path, text, sizeof header + bytes);
    free(text);
}

/* Samples [first, first + n) of x and y as a .safetensors has them. */
static void write_set(const char *path, const float (*x)[5], const double (*y)[3], int first, int n)
{
    const size_t of_x = (size_t)n * sizeof *x, of_y = (size_t)n * sizeof *y;
    const char *header = fmt("{\"x\":{\"dtype\":\"F32\",\"shape\":[%d,5],\"data_offsets\":[0,%zu]},"
                             "\"y\":{\"dtype\":\"F64\",\"shape\":[%d,3],\"data_offsets\":[%zu,%zu]}}",
                             n, of_x, n, of_x, of_x + of_y);
    const uint64_t length = strlen(header);
    char *text = malloc(sizeof length + length + of_x + of_y), *to = text;
    memcpy(to, &length, sizeof length);
    memcpy(to += sizeof length, header, length);
    memcpy(to += length, x + first, of_x);
    memcpy(to + of_x, y + first, of_y);
    write_file(path, text, sizeof length + length + of_x + of_y);
    free(text);
}

/* Of the mlp floats, y in double; of the gpt tokens, in 64 and in 16 bits. */
static void write_data(void)
{
    static float x[SAMPLES][5];
    static double y[SAMPLES][3];
    static int64_t ids[SAMPLES][8];
    static uint16_t next[SAMPLES][8];
    static int32_t label[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        for (int k = 0; k < 5; k++) x[i][k] = (float)((i * 37 + k * 11) % 17) / 8 - 1;
        for (int k = 0; k < 3; k++) y[i][k] = (double)x[i][k] * (double)x[i][k + 1];
        label[i] = i * 7 % 4;
        for (int t = 0; t < 8; t++) ids[i][t] = (i * 3 + t) % 20, next[i][t] = (uint16_t)((i * 3 + t + 1) % 20);
    }
    write_npy("x.npy", "<f4", "48, 5", x, sizeof x);
    write_npy("y.npy", "<f8", "48, 3", y, sizeof y);
    write_npy("label.npy", "<i4", "48", label, sizeof label);
    write_npy("ids.npy", "<i8", "48, 8", ids, sizeof ids);
    write_npy("next.npy", "<u2", "48, 8", next, sizeof next);
    write_set("all.safetensors", x, y, 0, SAMPLES);
    write_set("begin.safetensors", x, y, 0, 20);
    write_set("end.safetensors", x, y, 20, SAMPLES - 20);
    write_npy("begin.npy", "<f4", "47, 5", x, 47 * sizeof *x);
    write_npy("end.npy", "<f4", "1, 5", x + 47, sizeof *x);
    write_npy("few.npy", "<f4", "47, 5", x, 47 * sizeof *x);
    write_npy("wide.npy", "<f4", "30, 8", x, sizeof x);
    write_npy("short.npy", "<f4", "48, 5", x, sizeof x - 4);
    write_npy("text.npy", "<U4", "48, 5", x, sizeof x);
    write_text("none.npy", "no array");
}

static void setup(const char *model, const char *train)
{
    fresh();
    write_data();
    write_text("run.json", fmt("{\"model\": \"%s\", \"data\": {\"train\": %s}, \"train_batch_size\": 16, \"steps\": 8, "
                               "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 0.01}}, \"output\": \"out\"}",
                               model, train));
}

static double loss_at(const char *what)
{
    const char *at = strstr(ran.out, what);
    at = at ? strstr(at, "loss ") : NULL;
    return at ? atof(at + 5) : NAN;
}

TEST(learns_and_goes_on)
{
    setup(MLP, "{\"x\": \"x.npy\", \"y\": \"y.npy\"}");
    DONE("train", "run.json", "steps=60", "data.valid=0.35");
    CHECK_HAS(ran.out, "32 samples in 2 files");
    DONE("train", "run.json", "output=one", "checkpoint.dir=one/ck");
    const double first = loss_at("step 1/8"), last = loss_at("step 8/8");
    if (!(last < 0.5 * first)) CHECK_SAY("the loss went from %g to %g", first, last);
    DONE("train", "run.json", "output=two", "checkpoint.dir=two/ck", "steps=5");
    DONE("train", "run.json", "output=two", "checkpoint.dir=two/ck", "--resume");
    CHECK(same_file("one/model/weights.safetensors", "two/model/weights.safetensors"));
    DONE("eval", "run.json", "model=two/model", "data.valid={\"x\": \"x.npy\", \"y\": \"y.npy\"}");
    CHECK_HAS(ran.out, "batches 3");
    DONE("check", MLP);
    FAILS(2, ("check", "two/model"), "check.safetensors");
}

/* Arrays of an input each, all in one file, and in several. */
TEST(files_of_all_kinds)
{
    static const char *const same[] = {"all.safetensors", "[\"begin.safetensors\", \"end.safetensors\"]",
                                       "{\"x\": [\"begin.npy\", \"end.npy\"], \"y\": \"all.safetensors\"}",
                                       "{\"x\": \"x.npy\", \"y\": [\"begin.safetensors\", \"end.safetensors\"]}"};
    setup(MLP, "{\"x\": \"x.npy\", \"y\": \"y.npy\"}");
    DONE("train", "run.json");
    for (size_t k = 0; k < sizeof same / sizeof *same; k++) {
        DONE("train", "run.json", fmt("data.train=%s", same[k]), fmt("output=out%zu", k));
        CHECK(same_file("out/model/weights.safetensors", fmt("out%zu/model/weights.safetensors", k)));
    }
    CHECK_HAS(ran.out, "48 samples in 3 files");
}

TEST(same_bits_through_a_disk)
{
    setup(GPT, "{\"ids\": \"ids.npy\", \"next\": \"next.npy\"}");
    mkdir("tier", 0777);
    DONE("train", "run.json", "gradient_clipping=1");
    DONE("train", "run.json", "gradient_clipping=1", "output=capped", "memory.cpu=350KiB", "memory.path=tier");
    CHECK_HAS(ran.out, "disk ");
    CHECK(same_file("out/model/weights.safetensors", "capped/model/weights.safetensors"));
    DONE("check", GPT);
}

/* Two micro-batches on one rank, and one each on two. */
TEST(same_bits_on_two_ranks)
{
    setup(GPT, "{\"ids\": \"ids.npy\", \"next\": \"next.npy\"}");
    DONE("train", "run.json", "deterministic=true", "steps=4");
    for (int stage = 1; stage <= 3; stage += 2) {
        DONE_RANKS(2, "train", "run.json", "deterministic=true", "steps=4", fmt("zero_optimization.stage=%d", stage),
                   fmt("output=stage%d", stage));
        CHECK(same_file("out/model/weights.safetensors", fmt("stage%d/model/weights.safetensors", stage)));
    }
}

/* Of 16 bits too: on one worker, through a disk, recomputed, resumed, and on ranks. */
static void in_bf16(const char *model, const char *data, const char *cap, bool rests, double below)
{
#define BF16 "bf16.enabled=true", "deterministic=true", "train_batch_size=32"
    setup(model, data);
    mkdir("tier", 0777);
    DONE("train", "run.json", BF16);
    const double first = loss_at("step 1/8"), last = loss_at("step 8/8");
    if (!(last < below * first)) CHECK_SAY("%s: the loss went from %g to %g", model, first, last);
    WITH("STARPU_NCPU", "1") DONE("train", "run.json", BF16, "output=one");
    DONE("train", "run.json", BF16, "output=again", "activation_checkpointing.enabled=true");
    DONE("train", "run.json", BF16, "output=capped", fmt("memory.cpu=%s", cap), "memory.path=tier");
    if (rests) CHECK_HAS(ran.out, "disk ");
    DONE("train", "run.json", BF16, "output=went", "checkpoint.dir=ck", "steps=5");
    DONE("train", "run.json", BF16, "output=went", "checkpoint.dir=ck", "--resume");
    for (int stage = 0; stage <= 3; stage++)
        DONE_RANKS(2, "train", "run.json", BF16, fmt("zero_optimization.stage=%d", stage), fmt("output=%d", stage));
    static const char *const of[] = {"one", "again", "capped", "went", "0", "1", "2", "3"};
    for (size_t k = 0; k < sizeof of / sizeof *of; k++)
        if (!same_file("out/model/weights.safetensors", fmt("%s/model/weights.safetensors", of[k])))
            CHECK_SAY("%s: %s has other bits", model, of[k]);
    DONE("train", "run.json", "train_batch_size=32", "output=fp16", "fp16.enabled=true");
    if (!(loss_at("step 8/8") < below * first)) CHECK_SAY("%s: in fp16 the loss is %g", model, loss_at("step 8/8"));
}

TEST(same_bits_in_bf16)
{
    in_bf16(GPT, "{\"ids\": \"ids.npy\", \"next\": \"next.npy\"}", "350KiB", true, 0.9);
    in_bf16(STATE, "{\"x\": \"x.npy\", \"y\": \"label.npy\"}", "20KiB", false, 0.98);
}

/* A pipeline has the bits of one rank where its sections have no parameter together; a tied table is added up section
 * by section. */
TEST(pipeline)
{
    setup(MLP, "{\"x\": \"x.npy\", \"y\": \"y.npy\"}");
    for (int bf16 = 0; bf16 < 2; bf16++) {
        const char *in = bf16 ? "bf16.enabled=true" : "fp16.enabled=false";
        DONE("train", "run.json", "deterministic=true", "train_batch_size=32", in, "overwrite=true");
        DONE_RANKS(2, "train", "run.json", "deterministic=true", "train_batch_size=32", in, "parallel.pipeline=2",
                   "activation_checkpointing.enabled=true", "output=two", "overwrite=true");
        CHECK(same_file("out/model/weights.safetensors", "two/model/weights.safetensors"));
    }
    setup(GPT, "{\"ids\": \"ids.npy\", \"next\": \"next.npy\"}");
    DONE("train", "run.json");
    const double loss = loss_at("step 8/8");
    DONE_RANKS(2, "train", "run.json", "parallel.pipeline=2", "output=two");
    CHECK_NEAR(loss_at("step 8/8"), loss, 2e-4);
    /* two layers, and the head behind them */
    FAILS_RANKS(2, (2, "train", "run.json", "parallel.pipeline=2", "parallel.interleave=2", "overwrite=true"),
                "2 stages of 2 chunks each, but the model has 3 blocks");
    /* Both sections use w2, whose gradient no tree sums (gradients.c): its bits are not those of one rank. */
    setup(STATE, "{\"x\": \"x.npy\", \"y\": \"label.npy\"}");
    DONE("train", "run.json", "deterministic=true", "train_batch_size=32");
    const double states = loss_at("step 8/8");
    DONE_RANKS(2, "train", "run.json", "deterministic=true", "train_batch_size=32", "parallel.pipeline=2",
               "output=two");
    CHECK_NEAR(loss_at("step 8/8"), states, 1e-4);
}

/* Ranks that share out every product, and one rank that goes on from their checkpoint; on two sections and two data
 * ranks of such ranks the bits are the same. */
TEST(tensor)
{
#define TWO "deterministic=true", "train_batch_size=32", "parallel.tensor=2"
    setup(MLP, "{\"x\": \"x.npy\", \"y\": \"y.npy\"}");
    DONE("train", "run.json", "train_batch_size=32");
    const double loss = loss_at("step 8/8");
    DONE_RANKS(2, "train", "run.json", TWO, "output=two");
    CHECK_NEAR(loss_at("step 8/8"), loss, 1e-4);
    CHECK(!strstr(ran.err, "holds and computes all"));
    DONE_RANKS(4, "train", "run.json", TWO, "output=data", "zero_optimization.stage=3");
    CHECK(same_file("two/model/weights.safetensors", "data/model/weights.safetensors"));
    DONE_RANKS(4, "train", "run.json", TWO, "output=piped", "parallel.pipeline=2",
               "activation_checkpointing.enabled=true");
    CHECK(same_file("two/model/weights.safetensors", "piped/model/weights.safetensors"));
    DONE_RANKS(2, "train", "run.json", TWO, "output=began", "checkpoint.dir=ck", "steps=5");
    DONE("train", "run.json", "train_batch_size=32", "output=began", "checkpoint.dir=ck", "--resume");
    CHECK_NEAR(loss_at("step 8/8"), loss, 1e-4);
    setup(STATE, "{\"x\": \"x.npy\", \"y\": \"label.npy\"}");
    DONE_RANKS(2, "train", "run.json", "parallel.tensor=2");
    CHECK_HAS(ran.err, "each of 2 ranks holds and computes all of 2 of 2 matrices, w1 first: any_keep does not");
}

/* What a step replaces: the same bits on one worker and two, resumed, through a disk, and on ranks. */
TEST(states)
{
    setup(STATE, "{\"x\": \"x.npy\", \"y\": \"label.npy\"}");
    mkdir("tier", 0777);
    DONE("train", "run.json", "train_batch_size=32", "deterministic=true", "checkpoint.dir=ck", "data.valid=0.35",
         "eval_every=4");
    size_t bytes;
    char *metrics = read_file("out/metrics.jsonl", &bytes);
    CHECK_HAS(metrics, "\"valid_accuracy\":");
    free(metrics);
    DONE("eval", "run.json", "model=out/model", "data.valid={\"x\": \"x.npy\", \"y\": \"label.npy\"}");
    CHECK_HAS(ran.out, "  accuracy 0.");
    CHECK_HAS(ran.out, "  right ");
    DONE("check", STATE);
    DONE("train", "run.json", "train_batch_size=32", "deterministic=true", "output=whole");
    WITH("STARPU_NCPU", "1")
    DONE("train", "run.json", "train_batch_size=32", "deterministic=true", "output=other", "checkpoint.dir=two",
         "steps=5");
    DONE("train", "run.json", "train_batch_size=32", "deterministic=true", "output=other", "checkpoint.dir=two",
         "--resume");
    CHECK(same_file("whole/model/weights.safetensors", "other/model/weights.safetensors"));
    for (int stage = 0; stage <= 3; stage++) {
        DONE_RANKS(2, "train", "run.json", "train_batch_size=32", "deterministic=true",
                   fmt("zero_optimization.stage=%d", stage), fmt("output=stage%d", stage));
        CHECK(same_file("whole/model/weights.safetensors", fmt("stage%d/model/weights.safetensors", stage)));
    }
}

/* ---- outputs ---- */

static const char NET[] =
    "{\"tessera_graph\": 1, \"inputs\": {\"x\": {\"shape\": [4, 5], \"dtype\": \"float32\", \"batch\": 0},"
    "\"t\": {\"shape\": [4], \"dtype\": \"int32\", \"batch\": 0}}, \"params\": {\"p\": {\"shape\": [1], \"dtype\": "
    "\"float32\"}}, \"consts\": {\"2\": {\"shape\": [], "
    "\"dtype\": \"float32\", \"value\": [2]}}, \"nodes\": ["
    "{\"name\": \"d\", \"op\": \"map\", \"fn\": \"mul\", \"in\": [\"input:x\", \"const:2\"], \"shape\": [4, 5], "
    "\"dtype\": \"float32\"},"
    "{\"name\": \"a\", \"op\": \"reduce\", \"fn\": \"argmax\", \"in\": [\"d\"], \"dims\": [1], \"shape\": [4], "
    "\"dtype\": \"int32\"},"
    "{\"name\": \"r\", \"op\": \"transpose\", \"in\": [\"d\"], \"perm\": [1, 0], \"shape\": [5, 4], \"dtype\": "
    "\"float32\"},"
    "{\"name\": \"c\", \"op\": \"map\", \"fn\": \"cast\", \"in\": [\"input:t\"], \"shape\": [4], \"dtype\": "
    "\"float32\"},"
    "{\"name\": \"s\", \"op\": \"reduce\", \"fn\": \"sum\", \"in\": [\"c\"], \"dims\": [0], \"shape\": [], "
    "\"dtype\": \"float32\"}],"
    "\"outputs\": {\"loss\": \"s\", \"d\": \"d\", \"top\": \"a\", \"turned\": \"r\"}}";

/* y = x w^T + b with w (3, 1), as nn.Linear(1, 3) has it: a matrix of one column is no matrix to the op of families. */
static const char NARROW[] =
    "{\"tessera_graph\": 1, \"inputs\": {\"x\": {\"shape\": [4, 1], \"dtype\": \"float32\", \"batch\": 0}}, "
    "\"params\": {\"w\": {\"shape\": [3, 1], \"dtype\": \"float32\"}, \"b\": {\"shape\": [3], \"dtype\": "
    "\"float32\"}}, \"nodes\": ["
    "{\"name\": \"0\", \"op\": \"dot\", \"in\": [\"input:x\", \"param:w\"], \"shape\": [4, 3], \"dtype\": "
    "\"float32\", \"contract\": [[1], [1]], \"batch\": [[], []]},"
    "{\"name\": \"1\", \"op\": \"broadcast\", \"in\": [\"param:b\"], \"shape\": [1, 3], \"dtype\": \"float32\", "
    "\"dims\": [1]},"
    "{\"name\": \"y\", \"op\": \"map\", \"in\": [\"0\", \"1\"], \"shape\": [4, 3], \"dtype\": \"float32\", \"fn\": "
    "\"add\"},"
    "{\"name\": \"s\", \"op\": \"reduce\", \"fn\": \"sum\", \"in\": [\"y\"], \"dims\": [0, 1], \"shape\": [], "
    "\"dtype\": \"float32\"}], \"outputs\": {\"loss\": \"s\", \"y\": \"y\"}}";

/* Its elements behind the header, which says that shape. */
static const char *read_npy(char *file, const char *says)
{
    CHECK_HAS(file + 10, says);
    return file + 10 + (unsigned char)file[8] + 256 * (unsigned char)file[9];
}

TEST(a_matrix_of_one_column)
{
    static const float w[] = {2, -3, 0.5f}, b[] = {1, 10, 100}, x[] = {1, 2, -4, 8};
    const char *header = "{\"b\":{\"dtype\":\"F32\",\"shape\":[3],\"data_offsets\":[0,12]},"
                         "\"w\":{\"dtype\":\"F32\",\"shape\":[3,1],\"data_offsets\":[12,24]}}";
    const uint64_t length = strlen(header);
    char weights[200];
    setup(MLP, "{}");
    mkdir("net", 0777);
    write_text("net/graph.json", NARROW);
    memcpy(weights, &length, 8);
    memcpy(weights + 8, header, length);
    memcpy(weights + 8 + length, b, 12);
    memcpy(weights + 20 + length, w, 12);
    write_file("net/weights.safetensors", weights, 32 + length);
    write_npy("x.npy", "<f4", "4, 1", x, sizeof x);
    DONE("run", "net", "--in", "x.npy", "--out", "y=y.npy");
    size_t bytes;
    char *y = read_file("y.npy", &bytes);
    const char *of_y = read_npy(y, "(4, 3,)");
    for (int i = 0; i < 12; i++) {
        float got;
        memcpy(&got, of_y + 4 * i, 4);
        CHECK_NEAR(got, x[i / 3] * w[i % 3] + b[i % 3], 0);
    }
    free(y);
    write_text("run.json", "{\"model\": \"net\", \"data\": {\"train\": {\"x\": \"x.npy\"}}, \"train_batch_size\": 4, "
                           "\"steps\": 2, \"output\": \"out\"}");
    DONE("train", "run.json");
}

/* Of a number of samples that is no multiple of a micro-batch; those that lie behind come first. */
TEST(outputs)
{
    setup(MLP, "{}");
    mkdir("net", 0777);
    write_text("net/graph.json", NET);
    static const char weights[] = "\66\0\0\0\0\0\0\0"
                                  "{\"p\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}\0\0\0";
    write_file("net/weights.safetensors", weights, sizeof weights);
    DONE("run", "net", "--in", "few.npy", "--out", "d.npy");
    CHECK_HAS(ran.out, "d of 47 samples: d.npy");
    DONE("run", "net", "--in", "x=few.npy", "--out", "turned=r.npy,top=a.npy", "memory.cpu=16MiB");
    DONE("run", "net", "--in", "few.npy", "--out", "./a=b.npy", "--output", "top");
    CHECK(access("a=b.npy", F_OK) == 0);
    size_t bytes;
    char *d = read_file("d.npy", &bytes), *r = read_file("r.npy", &bytes), *a = read_file("a.npy", &bytes);
    const char *of_d = read_npy(d, "'<f4', 'fortran_order': False, 'shape': (47, 5,)"), *of_r = read_npy(r, "(47, 5,)"),
               *of_a = read_npy(a, "'<i4', 'fortran_order': False, 'shape': (47,)");
    CHECK(!memcmp(of_d, of_r, 47 * 5 * sizeof(float)));
    for (int i = 0; i < 47; i++) {
        float row[5];
        int32_t top;
        int most = 0;
        memcpy(row, of_d + (size_t)i * sizeof row, sizeof row);
        memcpy(&top, of_a + (size_t)i * sizeof top, sizeof top);
        for (int k = 0; k < 5; k++) {
            const float x = (float)((i * 37 + k * 11) % 17) / 8 - 1;
            if (row[k] < 2 * x || row[k] > 2 * x)
                CHECK_SAY("sample %d: %g, expected %g", i, (double)row[k], 2.0 * (double)x);
            if (row[k] > row[most]) most = k;
        }
        CHECK(top == most);
    }
    free(d), free(r), free(a);
    FAILS(2, ("run", "net", "--in", "x.npy", "--out", "y.npy", "--output", "acc"), "has no output acc beside its loss");
    FAILS(2, ("run", "net", "--in", "t=x.npy", "--out", "y.npy"), "t, expected a path for each input");
    FAILS(2, ("run", "net", "--in", "wide.npy", "--out", "y.npy"), "has shape (30,8)");
    FAILS(2, ("run", "net", "--in", "x.npy", "--out", "none/y.npy"), "cannot be written");
    FAILS(2, ("run", "net", "--in", "x.npy"), "--out: is missing");
    FAILS(2, ("run", "net", "--in", "x.npy", "--out", "top="), "--out: ");
    FAILS(2, ("run", "net", "--in", "x.npy", "--out", "top=y.npy", "--output", "d"), "d, but --out names top");
    FAILS(2, ("run", "out", "--in", "x.npy", "--out", "y.npy"), "out");
}

TEST(mistakes)
{
    static const struct {
        const char *setting, *says;
    } wrong[] = {
        {"data.train=x.npy", "expected {\"x\": \"FILE.npy\", ...}"},
        {"data.train={\"x\": \"x.npy\"}", "has no y (the network's inputs are x, y)"},
        {"data.train={\"x\": \"x.npy\", \"y\": \"y.npy\", \"z\": \"y.npy\"}", "z, expected a path for each input"},
        {"data.train={\"x\": \"few.npy\", \"y\": \"y.npy\"}", "y.npy: has 48 samples, few.npy has 47"},
        {"data.train={\"x\": \"wide.npy\", \"y\": \"y.npy\"}", "has shape (30,8), the network's x needs (samples,5)"},
        {"data.train={\"x\": \"short.npy\", \"y\": \"y.npy\"}", "short.npy: has 956 bytes of elements"},
        {"data.train={\"x\": \"text.npy\", \"y\": \"y.npy\"}", "text.npy: has elements of another type"},
        {"data.train={\"x\": \"none.npy\", \"y\": \"y.npy\"}", "none.npy: is no .npy file"},
        {"data.train={\"x\": \"gone.npy\", \"y\": \"y.npy\"}", "gone.npy"},
        {"data.train={\"x\": [\"begin.npy\"], \"y\": \"y.npy\"}", "y.npy: has 48 samples, begin.npy has 47"},
        {"data.train={\"x\": [\"begin.npy\", \"wide.npy\"], \"y\": \"y.npy\"}", "wide.npy: has shape (30,8)"},
        {"data.train={\"x\": [\"begin.npy\", 3], \"y\": \"y.npy\"}", "expected a path, a list or an object of them"},
        {"data.train={\"x\": [], \"y\": \"y.npy\"}", "x has 0 files"},
        {"data.train={\"x\": {}, \"y\": \"y.npy\"}", "expected a path, a list or an object of them"},
        {"data.train=[\"x.npy\"]", "expected {\"x\": \"FILE.npy\", ...}"},
        {"data.train=gone.safetensors", "gone.safetensors"},
        {"data.train=" MLP "/weights.safetensors", "weights.safetensors: has no array x"},
        {"train_batch_size=24", "the network was exported for 16 samples at a time"},
        {"lora.r=4", "lora"},
        {"weights=drawn", "weights"},
    };
    setup(MLP, "{\"x\": \"x.npy\", \"y\": \"y.npy\"}");
    for (size_t k = 0; k < sizeof wrong / sizeof *wrong; k++)
        FAILS(2, ("train", "run.json", wrong[k].setting), wrong[k].says);
    setup(GPT, "{\"ids\": \"y.npy\", \"next\": \"next.npy\"}");
    FAILS(2, ("train", "run.json"), "y.npy: has shape (48,3), the network's ids needs (samples,8)");
    FAILS(2, ("train", "run.json", "data.train={\"ids\": \"x.npy\", \"next\": \"next.npy\"}"), "x.npy");
    FAILS(2, ("check", "."), "config.json");
}
