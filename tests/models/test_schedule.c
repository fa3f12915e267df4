/* The schedules against DeepSpeed's own classes, of which fixtures/make_schedules.py keeps what they give the
 * optimizer; and against values that a script printed from the formulas beside each case. i is the step,
 * DeepSpeed's last_batch_iteration, N the steps of the rise, T the total,
 *
 *     ramp(i) = ln(i+1)/ln(N) for warmup_type log, i/N for linear.
 *
 * And the report of a run: its file, its lines, and which rank they call slow. */
#define CHECK_MAIN
#include "models/text/base/directories.h"
#include "models/train/config/config.h"
#include "models/train/loop/schedule_impl.h"
#include "models/train/report/pace.h"
#include "runtime/runtime.h"
#include "tests/check.h"
#include "tests/models/notes.h"
#include <errno.h>
#include <jansson.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const int at[] = {0, 1, 5, 9, 10, 11, 50, 99, 100, 120};
enum { POINTS = sizeof at / sizeof *at };

#define LOAD(c, ...)                                                                                                   \
    do {                                                                                                               \
        const char *set_[] = {"train_batch_size=1", __VA_ARGS__};                                                      \
        CHECK_EQ(tess_config_load(NULL, set_, sizeof set_ / sizeof *set_, c), TESS_OK);                                \
        CHECK_EQ(tess_config_resolve(c, 1), TESS_OK);                                                                  \
    } while (0)

/* `at`: last_batch_iteration */
static void check_rates(const tess_config *c, const int *at, const double *want, int count)
{
    for (int i = 0; i < count; i++) CHECK_NEAR(tess_schedule_lr(c, at[i]), want[i], 1e-14 * want[i]);
}

/* ---- DeepSpeed's classes ---- */

enum { SETTINGS = 24, SETTING = 128 };

static void load_case(const json_t *one, tess_config *c)
{
    char text[SETTINGS][SETTING];
    const char *set[SETTINGS] = {"train_batch_size=1"}, *name;
    size_t n = 1;
    const json_t *value;
    for (size_t i = 0; i < SETTINGS; i++) set[i] = i ? text[i] : set[i];
    snprintf(text[n++], SETTING, "scheduler.type=%s", json_string_value(json_object_get(one, "type")));
    snprintf(text[n++], SETTING, "optimizer.params.lr=%.17g", json_number_value(json_object_get(one, "lr")));
    json_object_foreach(json_object_get(one, "params"), name, value)
    {
        char *dumped = json_dumps(value, JSON_ENCODE_ANY | JSON_REAL_PRECISION(17));
        snprintf(text[n++], SETTING, "scheduler.params.%s=%s", name,
                 json_is_string(value) ? json_string_value(value) : dumped);
        free(dumped);
    }
    CHECK_EQ(tess_config_load(NULL, set, n, c), TESS_OK);
    CHECK_EQ(tess_config_resolve(c, 1), TESS_OK);
    CHECK_STR(tess_error_text(), "");
}

TEST(each_step_uses_what_deepspeeds_classes_give)
{
    json_t *all = json_load_file(TESS_FIXTURES "/schedules.json", 0, NULL), *one, *point;
    size_t i, k, points = 0;
    CHECK(json_array_size(all) >= 60);
    json_array_foreach(all, i, one)
    {
        tess_config c;
        load_case(one, &c);
        json_array_foreach(json_object_get(one, "points"), k, point)
        {
            /* The fixture counts the optimizer's steps in DeepSpeed's engine; the first one is before any rate. */
            const int64_t step = json_integer_value(json_array_get(point, 0)) - 1;
            if (step < 0) continue;
            double want[3], betas[2];
            for (size_t j = 0; j < 3; j++) want[j] = json_number_value(json_array_get(point, j + 1));
            tess_schedule_betas(&c, step, betas);
            double lr = tess_schedule_lr(&c, step);
            if (fabs(lr - want[0]) > 1e-13 * want[0] || fabs(betas[0] - want[1]) > 1e-13 || betas[1] != want[2])
                CHECK_SAY("case %zu, %s, step %lld: %.17g, %.17g, %.17g, not %.17g, %.17g, %.17g", i,
                          json_string_value(json_object_get(one, "type")), (long long)step, lr, betas[0], betas[1],
                          want[0], want[1], want[2]);
            points++;
        }
        tess_config_free(&c);
    }
    CHECK(points >= 2000);
    json_decref(all);
}

/* ---- the formulas ---- */

#define WARMUP                                                                                                         \
    "scheduler.params.warmup_min_lr=1e-5", "scheduler.params.warmup_max_lr=6e-4", "scheduler.params.warmup_num_steps=10"

TEST(constant)
{
    tess_config c;
    LOAD(&c, "optimizer.params.lr=0.125");
    CHECK(tess_schedule_lr(&c, 0) == 0.125 && tess_schedule_lr(&c, 1000000) == 0.125);
    tess_config_free(&c);
}

/* min + (max - min) ramp(i), then max */
TEST(warmup)
{
    static const double logarithmic[] = {1.0000000000000001e-05,
                                         0.00018760769744174884,
                                         0.00046910923772634962,
                                         6e-4,
                                         6e-4,
                                         6e-4,
                                         6e-4,
                                         6e-4,
                                         6e-4,
                                         6e-4};
    static const double linear[] = {
        1e-05, 6.8999999999999997e-05, 0.00030499999999999999, 0.00054099999999999992, 6e-4, 6e-4, 6e-4, 6e-4, 6e-4,
        6e-4};
    tess_config c;
    LOAD(&c, "scheduler.type=WarmupLR", WARMUP);
    check_rates(&c, at, logarithmic, POINTS);
    tess_config_free(&c);
    LOAD(&c, "scheduler.type=WarmupLR", WARMUP, "scheduler.params.warmup_type=linear");
    check_rates(&c, at, linear, POINTS);
    tess_config_free(&c);
    LOAD(&c, "scheduler.type=WarmupLR", "scheduler.params.warmup_num_steps=1", "optimizer.params.lr=1");
    CHECK(tess_schedule_lr(&c, 0) == 0 && tess_schedule_lr(&c, 1) == 1 && tess_schedule_lr(&c, 2) == 1);
    tess_config_free(&c);
}

/* What DeepSpeed does not have: no rise; the rate begins where one would have ended. */
TEST(no_warmup)
{
    static const char *const types[] = {"WarmupLR", "WarmupDecayLR", "WarmupCosineLR"};
    for (size_t i = 0; i < 3; i++) {
        char set[64];
        tess_config c;
        snprintf(set, sizeof set, "scheduler.type=%s", types[i]);
        LOAD(&c, set, "scheduler.params.warmup_num_steps=0", "optimizer.params.lr=1", "steps=10");
        CHECK_NEAR(tess_schedule_lr(&c, 0), i < 2 ? 1 : 0.9755, 1e-3);
        CHECK_NEAR(tess_schedule_lr(&c, 10), i == 0 ? 1 : i == 1 ? 0 : 1e-4, 1e-12);
        tess_config_free(&c);
    }
}

/* the same rise, then min + (max - min) max(0, (T-i)/(T-N)) */
TEST(warmup_decay)
{
    static const double logarithmic[] = {1e-05,
                                         0.00018760769744174884,
                                         0.00046910923772634962,
                                         6e-4,
                                         6e-4,
                                         0.0005934444444444444,
                                         0.00033777777777777777,
                                         1.6555555555555556e-05,
                                         1e-05,
                                         1e-05};
    static const double linear[] = {1e-05,
                                    6.8999999999999997e-05,
                                    0.00030499999999999999,
                                    0.00054099999999999992,
                                    6e-4,
                                    0.0005934444444444444,
                                    0.00033777777777777777,
                                    1.6555555555555556e-05,
                                    1e-05,
                                    1e-05};
    tess_config c;
    LOAD(&c, "scheduler.type=WarmupDecayLR", WARMUP, "scheduler.params.total_num_steps=100");
    check_rates(&c, at, logarithmic, POINTS);
    tess_config_free(&c);
    LOAD(&c, "scheduler.type=WarmupDecayLR", WARMUP, "steps=100", "scheduler.params.warmup_type=linear");
    check_rates(&c, at, linear, POINTS);
    tess_config_free(&c);
}

/* lr (r0 + (1-r0) ramp(i)), then lr max(0, r1 + (1-r1)(1 + cos(pi min(1, (i-N+1)/(T-N))))/2) */
TEST(warmup_cosine)
{
    static const double logarithmic[] = {6e-05,
                                         0.00022255619765854982,
                                         0.0004802016752071675,
                                         6e-4,
                                         0.00059982638570044221,
                                         0.00059930575432404979,
                                         0.00035466433377361869,
                                         2.9999999999999997e-05,
                                         2.9999999999999997e-05,
                                         2.9999999999999997e-05};
    static const double linear[] = {6e-05,
                                    0.00011399999999999999,
                                    0.00033,
                                    0.00054599999999999994,
                                    0.00059982638570044221,
                                    0.00059930575432404979,
                                    0.00035466433377361869,
                                    2.9999999999999997e-05,
                                    2.9999999999999997e-05,
                                    2.9999999999999997e-05};
    tess_config c;
#define COSINE                                                                                                         \
    "scheduler.type=WarmupCosineLR", "optimizer.params.lr=6e-4", "scheduler.params.warmup_num_steps=10",               \
        "scheduler.params.warmup_min_ratio=0.1", "scheduler.params.cos_min_ratio=0.05"
    LOAD(&c, COSINE, "steps=100");
    check_rates(&c, at, logarithmic, POINTS);
    tess_config_free(&c);
    LOAD(&c, COSINE, "steps=100", "scheduler.params.warmup_type=linear");
    check_rates(&c, at, linear, POINTS);
    tess_config_free(&c);
    LOAD(&c, COSINE, "steps=10");
    CHECK_NEAR(tess_schedule_lr(&c, 10), 6e-4 * 0.05, 1e-18);
    tess_config_free(&c);
}

/* p = (i+1) mod (a+b), height = p/a on the rise and (a+b-p)/b on the fall; lr = min + (max-min) height, and beta1 =
 * max_mom - (max_mom-min_mom) height. After the cycle, with j = (i-a-b+1)/decay_step_size: lr = min/(1 + rate j) and
 * beta1 = max_mom (1 + mom_rate j). */
TEST(one_cycle)
{
    static const int step[] = {0, 1, 9, 19, 20, 35, 48, 49, 50, 60, 99};
    static const double rate[] = {0.000145,
                                  0.00019000000000000001,
                                  0.00055000000000000003,
                                  0.001,
                                  0.00097000000000000005,
                                  0.00052000000000000006,
                                  0.00013000000000000002,
                                  0.0001,
                                  9.5238095238095241e-05,
                                  6.4516129032258067e-05,
                                  2.8571428571428574e-05};
    static const double beta1[] = {0.89500000000000002, 0.89000000000000001, 0.85000000000000009, 0.80000000000000004,
                                   0.80333333333333334, 0.85333333333333339, 0.89666666666666672, 0.90000000000000002,
                                   0.90009000000000006, 0.90099000000000007, 0.90449999999999997};
    tess_config c;
    LOAD(&c, "scheduler.type=OneCycle", "scheduler.params.cycle_min_lr=1e-4", "scheduler.params.cycle_max_lr=1e-3",
         "scheduler.params.cycle_first_step_size=20", "scheduler.params.cycle_second_step_size=30",
         "scheduler.params.decay_lr_rate=0.5", "scheduler.params.decay_step_size=10",
         "scheduler.params.decay_mom_rate=0.001");
    check_rates(&c, step, rate, 11);
    for (int i = 0; i < 11; i++) {
        double betas[2];
        tess_schedule_betas(&c, step[i], betas);
        CHECK_NEAR(betas[0], beta1[i], 1e-14);
        CHECK(betas[1] == 0.99);
    }
    c.scheduler.params.cycle_momentum = false;
    double betas[2];
    tess_schedule_betas(&c, 2, betas);
    CHECK(betas[0] == 0.9 && betas[1] == 0.999);
    tess_config_free(&c);
}

/* min (1 + rate x), x = (i+1)/size, its floor in stairs */
TEST(range_test)
{
    static const double smooth[] = {0.00013999999999999999,
                                    0.00018000000000000001,
                                    0.00034000000000000002,
                                    0.0005,
                                    0.00054000000000000012,
                                    0.00058,
                                    0.00214,
                                    0.0041000000000000003,
                                    0.0041400000000000005,
                                    0.0049399999999999999};
    static const double stairs[] = {0.0001,
                                    0.0001,
                                    0.00030000000000000003,
                                    0.0005,
                                    0.0005,
                                    0.0005,
                                    0.0021000000000000003,
                                    0.0041000000000000003,
                                    0.0041000000000000003,
                                    0.0048999999999999998};
    tess_config c;
#define RANGE_TEST                                                                                                     \
    "scheduler.type=LRRangeTest", "scheduler.params.lr_range_test_min_lr=1e-4",                                        \
        "scheduler.params.lr_range_test_step_size=5", "scheduler.params.lr_range_test_step_rate=2"
    LOAD(&c, RANGE_TEST);
    check_rates(&c, at, smooth, POINTS);
    tess_config_free(&c);
    LOAD(&c, RANGE_TEST, "scheduler.params.lr_range_test_staircase=true");
    check_rates(&c, at, stairs, POINTS);
    tess_config_free(&c);
}

/* ---- the report ---- */

static tess_step_report example(int64_t step)
{
    tess_step_report r = {.step = step,
                          .loss = 2.5,
                          .lr = 1e-4,
                          .grad_norm = 0.1,
                          .tokens = 64,
                          .seconds = 0.5,
                          .tokens_per_s = 128,
                          .model_tflops = 0.25,
                          .mfu = 0.5};
    r.tier[TESS_TIER_CPU] = (tess_tier_report){.resident_bytes = 1 << 20, .peak_bytes = 2 << 20, .wait_seconds = 0.125};
    r.tier[TESS_TIER_DISK].read_bytes = 7;
    return r;
}

static char *slurp(const char *path)
{
    static char text[8192];
    FILE *f = fopen(path, "r");
    text[f ? fread(text, 1, sizeof text - 1, f) : 0] = 0;
    if (f) fclose(f);
    return text;
}

/* Steps first .. last-1 of a run in `dir`; what was printed is returned. */
static char *run_steps(const tess_config *c, int64_t first, int64_t last)
{
    char *said;
    size_t size;
    FILE *out = open_memstream(&said, &size);
    tess_report *r;
    CHECK_EQ(tess_report_open(c, first, out, &r), TESS_OK);
    for (int64_t i = first; i < last; i++) {
        tess_step_report s = example(i);
        s.loss = i == 1 ? NAN : s.loss;
        CHECK_EQ(tess_report_step(r, &s), TESS_OK);
    }
    tess_report_close(r);
    fclose(out);
    return said;
}

TEST(metrics_hold_one_object_a_step)
{
    char dir[] = "tessera-report-XXXXXX", set[64], path[96];
    tess_config c;
    CHECK(mkdtemp(dir) != NULL);
    snprintf(set, sizeof set, "output=%s/a/b", dir);
    snprintf(path, sizeof path, "%s/a/b/metrics.jsonl", dir);
    LOAD(&c, set, "steps=6", "log_every=2");
    CHECK(tess_dirs_make(c.output, NULL));
    char *said = run_steps(&c, 0, 4);
    CHECK_STR(said, "step 2/6  loss -  lr 0.0001  grad 0.1  128 tokens/s  MFU 50.0%  cpu 2.0 MiB  left 0:02\n"
                    "step 4/6  loss 2.5000  lr 0.0001  grad 0.1  128 tokens/s  MFU 50.0%  cpu 2.0 MiB  left 0:01\n");
    free(said);
    static const char first[] =
        "{\"step\":1,\"loss\":2.5,\"lr\":0.0001,\"grad_norm\":0.1,\"tokens\":64,\"padding\":0,\"seconds\":0.5,\"tokens_"
        "per_s\":128,"
        "\"model_tflops\":0.25,\"mfu\":0.5,\"sent_bytes\":0,"
        "\"gpu\":{\"resident_bytes\":0,\"peak_bytes\":0,\"read_bytes\":0,\"write_bytes\":0,\"wait_seconds\":0},"
        "\"cpu\":{\"resident_bytes\":1048576,\"peak_bytes\":2097152,\"read_bytes\":0,\"write_bytes\":0,"
        "\"wait_seconds\":0.125},"
        "\"disk\":{\"resident_bytes\":0,\"peak_bytes\":0,\"read_bytes\":7,\"write_bytes\":0,\"wait_seconds\":0}}\n";
    char *text = slurp(path);
    CHECK(!strncmp(text, first, sizeof first - 1));
    CHECK_HAS(text, "{\"step\":2,\"loss\":null,");
    CHECK_HAS(text, "{\"step\":4,");
    CHECK_EQ(tess_report_last(c.output), 4);

    /* A run that goes on after step 2 replaces what came after, and a line that a kill cut short. */
    FILE *f = fopen(path, "a");
    fputs("{\"step\":5,\"lo", f);
    fclose(f);
    CHECK_EQ(tess_report_last(c.output), 4);
    free(run_steps(&c, 2, 6));
    int lines = 0;
    for (const char *p = slurp(path); (p = strchr(p, '\n')); p++) {
        char head[32];
        snprintf(head, sizeof head, "\n{\"step\":%d,", ++lines + 1);
        CHECK(lines == 6 || !strncmp(p, head, strlen(head)));
    }
    CHECK_EQ(lines, 6);
    free(run_steps(&c, 0, 1)); /* from the start: a new file */
    CHECK_EQ(strlen(slurp(path)), sizeof first - 1);
    unlink(path);
    snprintf(path, sizeof path, "%s/a/b/report.html", dir);
    CHECK(unlink(path) == 0);
    tess_dirs_remove(c.output, strlen(dir));
    CHECK(access(dir, F_OK) != 0);
    tess_config_free(&c);
}

/* ---- ranks that are slow ---- */

enum { PACED = 4 };

static struct pace_said {
    tess_pace *pace;
    int64_t step;
    int rank; /* -1: none was said to be slow behind the last step */
    double rate;
} paced;

/* Each rank's flops come from the work beside it; seconds: of a step, in which rank r is `slower[r]` times as long in
 * its bodies as rank 0 is at first. */
static const char *pace_steps(int steps, double seconds, const double slower[PACED])
{
    notes_begin();
    for (int k = 0; k < steps; k++) {
        int64_t count[2 * PACED];
        for (int r = 0; r < PACED; r++) count[2 * r] = 1000000000, count[2 * r + 1] = (int64_t)(1e8 * slower[r]);
        tess_step_report s = {.step = paced.step};
        tess_pace_step(paced.pace, count, 100 + seconds * (double)paced.step++, &s);
        paced.rank = s.slow_rate > 0 ? s.slow_rank : -1;
        paced.rate = s.slow_rate;
    }
    return notes_read();
}

static void pace_begin(const double flops[PACED])
{
    tess_pace_rank rank[PACED];
    for (int r = 0; r < PACED; r++) {
        rank[r] = (tess_pace_rank){.flops = flops[r]};
        snprintf(rank[r].host, sizeof rank[r].host, "node%d", r);
    }
    tess_pace_free(paced.pace);
    paced = (struct pace_said){.pace = tess_pace_new(rank, PACED)};
}

TEST(a_slow_rank_is_named_when_it_begins_and_ends)
{
    const double same[PACED] = {5, 5, 5, 5}, even[PACED] = {1, 1.1, 0.95, 1}, slow[PACED] = {1, 1.1, 2, 1};
    pace_begin(same);
    CHECK_STR(pace_steps(50, 1, even), "");
    CHECK_STR(pace_steps(25, 1, slow), ""); /* two windows, and a part */
    CHECK_STR(pace_steps(10, 1, slow), "tessera: step 81: rank 2 on node2 computes at 0.50 of the others' rate\n");
    CHECK_EQ(paced.rank, 2);
    CHECK_NEAR(paced.rate, 0.5, 1e-6);
    CHECK_STR(pace_steps(40, 1, slow), ""); /* once */
    CHECK_EQ(paced.rank, 2);
    CHECK_STR(pace_steps(45, 1, even), "tessera: step 161: rank 2 on node2 computes as fast as it should again\n");
    CHECK_EQ(paced.rank, -1);
    pace_begin(same); /* from its first step on; steps that are longer than a window */
    CHECK_STR(pace_steps(3, 60, slow), "");
    CHECK_STR(pace_steps(1, 60, slow), "tessera: step 4: rank 2 on node2 computes at 0.50 of the others' rate\n");
}

TEST(ranks_that_are_slow_together_or_for_a_moment_are_not_named)
{
    const double same[PACED] = {5, 5, 5, 5}, even[PACED] = {1, 1, 1, 1}, all[PACED] = {3, 3.2, 3, 2.8},
                 slow[PACED] = {1, 1, 1, 9}, little[PACED] = {1, 1.25, 1, 1}, gpus[PACED] = {0, 0, 0, 0};
    pace_begin(same);
    CHECK_STR(pace_steps(50, 1, even), "");
    CHECK_STR(pace_steps(50, 1, all), "");
    for (int k = 0; k < 10; k++) {
        CHECK_STR(pace_steps(9, 1, slow), "");
        CHECK_STR(pace_steps(22, 1, even), "");
    }
    CHECK_STR(pace_steps(50, 1, little), "");
    CHECK_STR(pace_steps(50, 1, gpus), ""); /* whose seconds are not known */
    CHECK_EQ(paced.rank, -1);
}

/* A rank that is alone with its work is held to its own rate at the beginning. */
TEST(a_rank_with_work_of_its_own_that_goes_slow_is_named)
{
    const double own[PACED] = {4, 5, 6, 7}, first[PACED] = {1, 4, 2, 1}, all[PACED] = {3, 12, 6, 3},
                 slow[PACED] = {1, 8, 2, 1};
    pace_begin(own);
    CHECK_STR(pace_steps(50, 1, first), "");
    CHECK_STR(pace_steps(50, 1, all), "");
    CHECK_STR(pace_steps(50, 1, slow),
              "tessera: step 131: rank 1 on node1 computes at 0.50 of its rate at the beginning, beside the others'\n");
    CHECK_EQ(paced.rank, 1);
    tess_pace_free(paced.pace);
}

TEST(an_output_that_cannot_be_written)
{
    tess_config c;
    tess_report *r;
    LOAD(&c, "output=/dev/null");
    CHECK_EQ(tess_report_open(&c, 0, stdout, &r), TESS_INVALID);
    CHECK_STR(tess_error_text(), "/dev/null/metrics.jsonl: cannot be written: Not a directory (see output)");
    CHECK(r == NULL);
    tess_config_free(&c);
}

/* Made with those on the way, however the path is written; and taken back as far as they are new, and empty. */
TEST(directories)
{
    static const char *const below[] = {"x/y", "x/y/", "x//y/.", "x/y/../y"};
    static const struct {
        const char *dir;
        int error;
    } bad[] = {{"/dev/null/x", ENOTDIR}, {"/dev/null", ENOTDIR}, {"/proc/tessera/x", ENOENT}, {"", ENOENT}};
    char top[] = "tessera-dirs-XXXXXX", path[96];
    size_t made, again;
    CHECK(mkdtemp(top) != NULL && chdir(top) == 0);
    for (size_t i = 0; i < sizeof below / sizeof *below; i++) {
        snprintf(path, sizeof path, "a/%s", below[i]);
        mkdir("a", 0700);
        CHECK(tess_dirs_make(path, &made) && access("a/x/y", F_OK) == 0);
        CHECK_EQ(made, strlen("a/x"));
        CHECK(tess_dirs_make(path, &again) && again == 0);
        tess_dirs_remove(path, again);
        CHECK(access("a/x/y", F_OK) == 0);
        mkdir("a/x/other", 0700);
        tess_dirs_remove(path, made);
        CHECK(access("a/x/y", F_OK) != 0 && access("a/x/other", F_OK) == 0);
        rmdir("a/x/other");
        CHECK(tess_dirs_make(path, &again) && again > made);
        tess_dirs_remove(path, made);
        CHECK(access("a/x", F_OK) != 0 && access("a", F_OK) == 0);
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK(!tess_dirs_make(bad[i].dir, &made));
        CHECK_EQ(errno, bad[i].error);
        CHECK_EQ(made, 0);
    }
    CHECK(rmdir("a") == 0 && chdir("..") == 0 && rmdir(top) == 0);
}

/* The live line keeps what fits, in the order of its worth. */
TEST(live_line)
{
    char line[256];
    tess_step_report s = example(9);
    tess_report_line(&s, 100, 45, 200, line, sizeof line);
    CHECK_STR(line, "step 10/100  loss 2.5000  128 tokens/s  left 0:45  MFU 50.0%  cpu 2.0 MiB");
    tess_report_line(&s, 100, 3725, 45, line, sizeof line);
    CHECK_STR(line, "10/100  loss 2.5000  128 tok/s  left 1:02:05");
    tess_report_line(&s, 100, 90061, 60, line, sizeof line);
    CHECK_STR(line, "10/100  loss 2.5000  128 tok/s  left 25:01:01  MFU 50%");
    tess_report_line(&s, 100, 1, 5, line, sizeof line);
    CHECK_STR(line, "");
    /* All of a large run on 80 columns. */
    s.step = 123455;
    s.tokens_per_s = 12345;
    for (int t = 0; t < TESS_TIER_COUNT; t++) s.tier[t].peak_bytes = 78ull << 30 << 2 * t;
    tess_report_line(&s, 200000, 5000, 79, line, sizeof line);
    CHECK_STR(line, "123456/200000  loss 2.5000  12.3k tok/s  left 1:23:20  MFU 50%  gpu 78.0G");
    tess_report_line(&s, 200000, 5000, 120, line, sizeof line);
    CHECK_STR(line,
              "step 123456/200000  loss 2.5000  12345 tokens/s  left 1:23:20  MFU 50.0%  gpu 78.0 GiB  cpu 312 GiB  "
              "disk 1.2 TiB");
}

TEST(a_second_signal_ends_at_once)
{
    pid_t child = fork();
    if (child == 0) {
        if (!freopen("/dev/null", "w", stderr)) _exit(4);
        tess_signals_install();
        if (tess_stop_requested()) _exit(1);
        raise(SIGTERM);
        if (!tess_stop_requested()) _exit(2);
        raise(SIGINT);
        _exit(3);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 130);
}

/* A file size limit stands in for a full disk. */
TEST(metrics_that_cannot_grow)
{
    char dir[] = "tessera-report-XXXXXX", set[64], path[96];
    CHECK(mkdtemp(dir) != NULL);
    snprintf(set, sizeof set, "output=%s", dir);
    snprintf(path, sizeof path, "%s/metrics.jsonl", dir);
    pid_t child = fork();
    if (child == 0) {
        tess_config c;
        tess_report *r;
        FILE *out = fopen("/dev/null", "w");
        tess_step_report s = example(0);
        const char *const sets[] = {set, "train_batch_size=1"};
        signal(SIGXFSZ, SIG_IGN);
        if (tess_config_load(NULL, sets, 2, &c) || tess_config_resolve(&c, 1)) _exit(3);
        if (tess_report_open(&c, 0, out, &r) || tess_report_step(r, &s)) _exit(4);
        setrlimit(RLIMIT_FSIZE, &(struct rlimit){600, RLIM_INFINITY});
        s.step = 1;
        if (tess_report_step(r, &s) != TESS_FAILED) _exit(5);
        _exit(strstr(tess_error_text(), "metrics.jsonl: cannot be written: File too large") ? 0 : 6);
    }
    int status;
    CHECK(child > 0 && waitpid(child, &status, 0) == child);
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), 0);
    unlink(path);
    rmdir(dir);
}
