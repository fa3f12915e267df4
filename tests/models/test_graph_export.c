/* What leaves for other programs: the step as an instance, whose dependencies follow from what tasks do with tiles, in
 * RAM, under a cap with a disk below, and of one rank of two; and the tasks of a trace as comma-separated values. */
#define CHECK_MAIN
#include "models/models.h"
#include "models/train/config/config.h"
#include "models/train/rates/yardstick.h"
#include "models/train/train.h"
#include "tests/check.h"
#include "tests/files.h"
#include <jansson.h>
#include <stdlib.h>
#include <sys/stat.h>

#define MODEL                                                                                                          \
    "model={\"model_type\": \"gpt2\", \"vocab_size\": 256, \"n_positions\": 32, \"n_embd\": 64, \"n_layer\": 2, "      \
    "\"n_head\": 4}"

static tess_status export_to(const char *file, const char *const *more, char **said)
{
    const double none[TESS_YARDSTICKS] = {0};
    const tess_yardstick y = {.cores = 2,
                              .share = 1,
                              .matrix_rate = {[TESS_F32] = 1e11, [TESS_BF16] = 1e11},
                              .copy_rate = 1e10,
                              .drive = {1e9, 1e9, 5e8, 5e8, true}};
    const char *set[12] = {MODEL, "train_batch_size=4", "data.seq_length=32"};
    size_t n = 3, size;
    tess_config *c;
    for (; *more; more++) set[n++] = *more;
    tess_yardstick_given(&y, none);
    const tess_status opened = tess_config_open(NULL, set, n, tess_ranks(), &c);
    if (opened != TESS_OK) return opened;
    FILE *out = open_memstream(said, &size);
    const tess_status status = tess_graph_export(c, file, out);
    fclose(out);
    tess_config_close(c);
    return status;
}

static double num(const json_t *o, const char *name)
{
    const json_t *v = json_object_get(o, name);
    return json_is_number(v) ? json_number_value(v) : NAN;
}

/* ---- who waits for whom, by the definition ---- */

enum { READS = 1, WRITES = 2 };

/* What a task does with a tile, but for scratch. */
static int does(const json_t *task, int tile)
{
    const json_t *uses = json_object_get(task, "uses");
    for (size_t i = 0; i < json_array_size(uses); i++) {
        const json_t *use = json_array_get(uses, i);
        const char *mode = json_string_value(json_object_get(use, "mode"));
        if ((int)num(use, "tile") != tile || !mode || !strcmp(mode, "scratch")) continue;
        return (strchr(mode, 'R') ? READS : 0) | (strchr(mode, 'W') ? WRITES : 0);
    }
    return 0;
}

/* Two uses of a tile, one of which writes, and nothing between them that both wait for each other through. */
static bool waits(const json_t *tasks, size_t before, size_t behind)
{
    const json_t *uses = json_object_get(json_array_get(tasks, behind), "uses");
    for (size_t i = 0; i < json_array_size(uses); i++) {
        const int tile = (int)num(json_array_get(uses, i), "tile");
        const int a = does(json_array_get(tasks, before), tile), b = does(json_array_get(tasks, behind), tile);
        bool between = false;
        if (!a || !b || !((a | b) & WRITES)) continue;
        for (size_t k = before + 1; k < behind && !between; k++) {
            const int c = does(json_array_get(tasks, k), tile);
            between = c & WRITES || (c && a & WRITES && b & WRITES);
        }
        if (!between) return true;
    }
    return false;
}

static size_t check_waits(const json_t *tasks)
{
    size_t all = 0;
    for (size_t k = 0; k < json_array_size(tasks); k++) {
        const json_t *said = json_object_get(json_array_get(tasks, k), "predecessors");
        size_t n = 0;
        for (size_t before = 0; before < k; before++) {
            if (!waits(tasks, before, k)) continue;
            if (json_integer_value(json_array_get(said, n)) != (json_int_t)before)
                CHECK_SAY("task %zu: %lld stands where %zu belongs", k,
                          (long long)json_integer_value(json_array_get(said, n)), before);
            n++;
        }
        CHECK_EQ(json_array_size(said), n);
        all += n;
    }
    return all;
}

static int lines_with(const char *file, const char *part)
{
    char line[4000];
    int n = 0;
    FILE *f = fopen(file, "r");
    while (f && fgets(line, sizeof line, f)) n += strstr(line, part) != NULL;
    if (f) fclose(f);
    return n;
}

TEST(an_instance_has_the_dependencies_of_its_uses)
{
    static const struct {
        int ranks;
        bool disk;
        const char *set[4];
    } cases[] = {{1, false, {"train_micro_batch_size_per_gpu=2"}},
                 {1, false, {"bf16.enabled=true"}},
                 {1, true, {"memory.cpu=4MiB", "memory.path=."}},
                 {2, false, {"zero_optimization.stage=3"}}};
    fresh();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *said = NULL, *again = NULL;
        tess_ranks_pretend(0, cases[i].ranks);
        CHECK_EQ(export_to("step.json", cases[i].set, &said), TESS_OK);
        CHECK_EQ(export_to("step.dot", cases[i].set, &again), TESS_OK);
        json_t *step = json_load_file("step.json", JSON_REJECT_DUPLICATES, NULL);
        const json_t *tasks = json_object_get(step, "tasks"), *tiles = json_object_get(step, "tiles");
        const size_t n = json_array_size(tasks), waited = check_waits(tasks);
        bool messages = false, leaves = lines_with("step.json", "\"leaves_ram\":true") > 0;
        double seconds = 0;
        CHECK(n > 50 && json_array_size(tiles) > 50);
        for (size_t k = 0; k < n; k++) {
            const json_t *t = json_array_get(tasks, k);
            CHECK_EQ(num(t, "id"), k);
            const bool message = !strcmp(json_string_value(json_object_get(t, "where")), "message");
            messages |= message;
            CHECK(message || num(t, "seconds") > 0);
            seconds += message ? 0 : num(t, "seconds");
        }
        for (size_t k = 0; k < json_array_size(tiles); k++) CHECK(num(json_array_get(tiles, k), "bytes") > 0);
        CHECK(messages == (cases[i].ranks > 1) && leaves == cases[i].disk);
        CHECK(json_is_true(json_object_get(json_object_get(step, "plan"), "placed")));
        const json_t *bound = json_object_get(step, "bound");
        CHECK_NEAR(num(bound, "task_seconds"), seconds, 1e-6 * seconds);
        CHECK(num(bound, "seconds") <= 1.000001 * num(json_object_get(step, "estimate"), "seconds"));
        CHECK(num(bound, "path_seconds") <= num(bound, "seconds") && num(bound, "seconds") <= seconds);
        CHECK_HAS(said, fmt("step.json: %zu tasks over %zu tiles, and %zu times", n, json_array_size(tiles), waited));
        CHECK_EQ(lines_with("step.dot", "[label=\""), n);
        CHECK_EQ(lines_with("step.dot", " -> "), waited);
        json_decref(step);
        free(said), free(again);
    }
    tess_ranks_pretend(0, 1);
}

/* What StarPU has measured stands beside what the rates say: of the tasks that it knows, of cores alone. */
TEST(an_instance_has_the_times_that_were_measured)
{
    static const char line[] = "1001c60d %d 1.572864e+06 %g 0 0 0 %d\n"; /* qkv of 64 rows */
    enum { HELD = 4 * (64 * 64 + 192 * 64 + 64 * 192 + 192) };
    char *said = NULL;
    fresh();
    CHECK(!mkdir("models", 0700) && !mkdir("models/codelets", 0700) && !mkdir("models/codelets/45", 0700));
    FILE *f = fopen("models/codelets/45/tess_linear_forward_f32.here", "w");
    fprintf(f, "45\n# Model for cuda0_impl0 (Comb0)\n");
    fprintf(f, line, HELD, 9.0, 1);
    fprintf(f, "# Model for cpu0_impl0 (Comb1)\n");
    fprintf(f, line, HELD, 40.0, 1);
    fprintf(f, line, HELD, 80.0, 3);
    fprintf(f, line, HELD + 4, 1.0, 1);
    fprintf(f, "\n");
    fclose(f);
    setenv("STARPU_PERF_MODEL_DIR", "models", 1), setenv("STARPU_HOSTNAME", "here", 1);
    CHECK_EQ(export_to("step.json", (const char *[]){"train_micro_batch_size_per_gpu=2", NULL}, &said), TESS_OK);
    unsetenv("STARPU_PERF_MODEL_DIR"), unsetenv("STARPU_HOSTNAME");
    CHECK_EQ(lines_with("step.json", "\"measured\":7e-05"), 4); /* of 2 layers and 2 micro-batches */
    CHECK_EQ(lines_with("step.json", "\"measured\":null"), lines_with("step.json", "\"codelet\"") - 4);
    free(said);
}

TEST(an_instance_without_a_plan_is_said_to_have_none)
{
    char *said = NULL;
    fresh();
    CHECK_EQ(export_to("step.json", (const char *const[]){"memory.cpu=3MiB", "memory.path=.", NULL}, &said), TESS_OK);
    json_t *step = json_load_file("step.json", 0, NULL);
    CHECK(json_is_false(json_object_get(json_object_get(step, "plan"), "placed")));
    CHECK_EQ(lines_with("step.json", "\"home\":\"disk\""), 0);
    json_decref(step);
    free(said);
    said = NULL;
    CHECK_EQ(export_to("step.txt", (const char *const[]){NULL}, &said), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "step.txt: its name ends in neither .json nor .dot");
    free(said);
    said = NULL;
    CHECK(export_to("nowhere/step.dot", (const char *const[]){NULL}, &said) != TESS_OK);
    CHECK_HAS(tess_error_text(), "nowhere/step.dot: cannot be written");
    free(said);
}

/* ---- the tasks of a trace ---- */

#define BAR(track, at, us, category, name, args)                                                                       \
    ",\n{\"ph\":\"X\",\"pid\":0,\"tid\":" #track ",\"ts\":" #at ",\"dur\":" #us ",\"cat\":\"" category                 \
    "\",\"name\":\"" name "\",\"args\":{" args "}}"

TEST(tasks_of_a_trace_have_a_line_each)
{
    static const char expected[] = "step,rank,worker,order,codelet,helps,submitted,ready,begin,end,waited,flops\n"
                                   "3,0,0,7,gelu_forward,0,0.000001000,0.000002000,0.000010000,0.000030000,"
                                   "0.000008000,0\n"
                                   "3,0,1,7,gelu_forward,1,,,0.000020000,0.000030500,,0\n"
                                   "4,0,1,8,\"my,op\",0,0.000001000,0.000101000,0.000110000,0.000130000,0.000009000,"
                                   "1000\n";
    char *said, got[1000] = "";
    size_t size;
    fresh();
    mkdir("out", 0777);
    write_text("out/trace.json",
               "[\n{\"ph\":\"i\",\"pid\":0,\"tid\":1,\"ts\":0,\"cat\":\"about\",\"args\":{\"ranks\":1,"
               "\"cpu_workers\":2}}" BAR(1, 0, 100, "step", "step 3", "\"step\":3")
                   BAR(1, 100, 100, "step", "step 4", "\"step\":4")
                       BAR(10, 10, 20, "task", "gelu_forward", "\"order\":7,\"submitted\":1,\"ready\":2")
                           BAR(11, 20, 10.5, "task", "gelu_forward", "\"order\":7,\"helps\":true")
                               BAR(11, 105, 5, "data", "waits for data", "\"order\":8")
                                   BAR(11, 110, 20, "task", "my,op",
                                       "\"order\":8,\"submitted\":1,\"ready\":101,\"flops\":1000") "\n]\n");
    FILE *out = open_memstream(&said, &size);
    CHECK_EQ(tess_explain_csv("out", "tasks.csv", out), TESS_OK);
    fclose(out);
    CHECK_STR(said, "tasks.csv: 3 tasks\n");
    FILE *f = fopen("tasks.csv", "r");
    if (f) got[fread(got, 1, sizeof got - 1, f)] = 0, fclose(f);
    CHECK_STR(got, expected);
    CHECK_EQ(tess_explain_csv("nowhere", "none.csv", stdout), TESS_INVALID);
    CHECK(access("none.csv", F_OK) != 0);
    free(said);
}
