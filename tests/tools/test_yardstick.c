/* The cache of what the machine can do: made once, used after that, and made anew whatever became of it. */
#define CHECK_MAIN
#include "codelets/codelets.h"
#include "models/train/rates/mfu.h"
#include "models/train/rates/yardstick.h"
#include "tests/tools/tiny.h"
#include <signal.h>
#include <sys/wait.h>

static const char *const cache = "cache/tessera/machine.json";

/* The cache goes below this case's directory; before that it is the one of all tests, which has this machine. */
static void cache_here(void)
{
    setenv("XDG_CACHE_HOME", fmt("%s/cache", run_dir), 1);
}
static void cache_of_all(void)
{
    static char *home;
    if (!home) home = strdup(getenv("XDG_CACHE_HOME") ? getenv("XDG_CACHE_HOME") : "");
    setenv("XDG_CACHE_HOME", home, 1);
}

/* An empty directory with a configuration and that. */
static void setup(void)
{
    cache_of_all();
    tiny_setup();
    cache_here();
}

/* A number of the file; NaN: there is none. */
static double rate(const char *group, const char *name)
{
    json_t *c = json_load_file(cache, 0, NULL), *x = json_object_get(json_object_get(c, group), name);
    double value = json_is_number(x) ? json_number_value(x) : NAN;
    json_decref(c);
    return value;
}

/* Sets a member of the file, which takes the value's reference. */
static void set(const char *group, const char *name, json_t *value)
{
    json_t *c = json_load_file(cache, 0, NULL);
    json_object_set_new(json_object_get(c, group), name, value);
    CHECK(c && !json_dump_file(c, cache, 0));
    json_decref(c);
}

/* The best f32 rate that runs saw. */
static void set_best(json_t *value)
{
    json_t *c = json_load_file(cache, 0, NULL);
    json_object_set_new(json_object_get(json_object_get(c, "best"), "cores"), "f32", value);
    CHECK(c && !json_dump_file(c, cache, 0));
    json_decref(c);
}
static double best(void)
{
    json_t *c = json_load_file(cache, 0, NULL);
    double value = json_number_value(json_object_get(json_object_get(json_object_get(c, "best"), "cores"), "f32"));
    json_decref(c);
    return value;
}

/* A cache that no measurement makes: 123 GFLOP/s, half of it by one core, on a machine that had nothing else to do. */
static void mark(void)
{
    set("rates", "matrix_rate_f32", json_real(123e9));
    set("rates", "matrix_rate_f32_one_core", json_real(61.5e9));
    set("rates", "share", json_real(1));
    set_best(json_real(123e9));
}
static bool marked(void)
{
    return rate("rates", "matrix_rate_f32") == 123e9;
}

/* ---- what is measured in this process, which costs nothing; the command measures in earnest ---- */

static int measured, drives_measured; /* how often */
static double disturbed = 1;          /* what of its rate one core alone reaches */

double __wrap_tess_matrix_rate(tess_dtype t, int cores, int64_t n);
double __wrap_tess_copy_rate(int cores);
tess_status __wrap_tess_drive_measure(const char *dirs, tess_drive *d);

double __wrap_tess_matrix_rate(tess_dtype t, int cores, int64_t n)
{
    (void)t, (void)n;
    measured++;
    return cores == 1 ? disturbed * 20e9 : 20e9 * cores;
}

double __wrap_tess_copy_rate(int cores)
{
    (void)cores;
    return 10e9;
}

tess_status __wrap_tess_drive_measure(const char *dirs, tess_drive *d)
{
    (void)dirs;
    drives_measured++;
    *d = (tess_drive){.read_rate = 2e9, .write_rate = 2e9, .mixed_read_rate = 1e9, .mixed_write_rate = 1e9};
    return TESS_OK;
}

/* As the command reads the rates; whether the cores were measured. */
static bool reads(const char *dirs)
{
    tess_yardstick y;
    measured = drives_measured = 0;
    CHECK_EQ(tess_yardstick_read(dirs, false, &y), TESS_OK);
    for (int t = 0; t < TESS_YARDSTICKS; t++) CHECK(y.matrix_rate[t] > 0 && y.matrix_rate_core[t] > 0);
    CHECK(y.copy_rate > 0 && (!dirs || y.drive.read_rate > 0));
    return measured > 0;
}

static void write_marked(void)
{
    cache_here();
    reads(".");
    mark();
}
static void setup_marked(void)
{
    cache_of_all();
    tiny_setup();
    write_marked();
}

TEST(what_info_measures_stays)
{
    static const char *const name[] = {"matrix_rate_f32",
                                       "matrix_rate_bf16",
                                       "matrix_rate_f32_one_core",
                                       "matrix_rate_bf16_one_core",
                                       "copy_rate",
                                       "copy_rate_one_core",
                                       "share"};
    setup();
    DONE("info");
    CHECK_STR(ran.err, "");
    if (strstr(ran.out, "these rates are not kept")) reads("."); /* this machine is busy */
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!(rate("rates", name[i]) > 0)) CHECK_SAY("%s has no %s", cache, name[i]);
    mark();
    char *text = read_file(cache, NULL);
    DONE("info");
    CHECK_HAS(ran.out, "123 on all");
    DONE("estimate", "run.json", "memory.path=.", "zero_optimization.offload_optimizer.device=nvme");
    CHECK_HAS(ran.out, "GB/s");
    char *now = read_file(cache, NULL);
    CHECK_STR(now, text); /* the drive of both is the same */
    free(text), free(now);
    DONE("info", "--again");
    CHECK(marked() == !!strstr(ran.out, "these rates are not kept"));
    FAILS(2, ("info", "--agian"), "--agian");
}

/* A drive that is not in the cache is measured when it is asked for, and nothing else. */
TEST(a_new_drive_joins)
{
    setup_marked();
    json_t *c = json_load_file(cache, 0, NULL), *drives = json_object_get(c, "drives");
    const char *name = json_object_iter_key(json_object_iter(drives));
    CHECK_EQ(json_object_size(drives), 1);
    json_object_set(drives, "another", json_object_get(drives, name));
    json_object_del(drives, name);
    CHECK(!json_dump_file(c, cache, 0));
    json_decref(c);
    CHECK(!reads(".") && drives_measured == 1);
    CHECK(marked());
    c = json_load_file(cache, 0, NULL);
    CHECK_EQ(json_object_size(json_object_get(c, "drives")), 2);
    json_decref(c);
}

/* The rates of the one drive: those at which it moves bytes both ways at once, and alone somewhat more. */
static void set_drive(double rate)
{
    static const struct {
        const char *name;
        double times;
    } way[] = {{"read_rate", 1.5}, {"write_rate", 3.3}, {"mixed_read_rate", 1}, {"mixed_write_rate", 1}};
    json_t *c = json_load_file(cache, 0, NULL), *drives = json_object_get(c, "drives");
    json_t *drive = json_object_iter_value(json_object_iter(drives));
    for (size_t i = 0; i < sizeof way / sizeof *way; i++)
        json_object_set_new(drive, way[i].name, json_real(way[i].times * rate));
    CHECK(c && drive && !json_dump_file(c, cache, 0));
    json_decref(c);
}

/* What is chosen goes by measured rates; what an error names as enough is enough whatever is measured later. */
TEST(the_disk_that_is_named_does_at_any_rate_of_the_drive)
{
    static const double drive[] = {1e7, 1.6e9, 1e11};
    cache_of_all();
    wide_setup_with("\"train_batch_size\": 8, \"steps\": 1, \"memory\": {\"path\": \"swap\", \"cpu\": \"13MiB\"}, "
                    "\"eval_every\": 1");
    write_tiny_text("valid.txt", 600, 2);
    write_marked();
    long named = 0;
    for (size_t i = 0; i < sizeof drive / sizeof *drive; i++) {
        set_drive(drive[i]);
        FAILS(1, ("estimate", "run.json", "data.valid=valid.txt", "memory.disk=1MiB", "--fits"),
              "memory.disk: 1.0 MiB, but the run needs", "(memory.disk=");
        if (i == 0) named = named_in_error("(memory.disk=");
        CHECK_EQ(named_in_error("(memory.disk="), named);
        DONE("train", "run.json", "data.valid=valid.txt", fmt("memory.disk=%ldMiB", named));
    }
}

TEST(another_machine_and_a_busy_one_are_measured_anew)
{
    setup_marked();
    set("machine", "cpu", json_string("Z80"));
    set("drives", "another", json_object());
    CHECK(reads("."));
    CHECK(!marked() && rate("rates", "matrix_rate_f32") > 0);
    json_t *c = json_load_file(cache, 0, NULL);
    CHECK_EQ(json_object_size(json_object_get(c, "drives")), 1); /* its drives are not ours */
    json_decref(c);
    mark();
    set("rates", "share", json_real(0.5));
    CHECK(reads(NULL));
    CHECK(!marked());
}

/* Rates of all cores that one core's cannot make up, and what others took a part of, are measured and not kept. */
TEST(rates_that_cannot_be_are_not_kept)
{
    setup();
    disturbed = 0.3;
    tess_yardstick y;
    if (tess_cores() > 1) {
        CHECK(reads(NULL) && !(rate("rates", "matrix_rate_f32") > 0));
        CHECK(!reads(NULL) && !tess_yardstick_known(&y)); /* a process goes by one set of rates */
    }
    disturbed = 1;
    CHECK_EQ(tess_yardstick_read(NULL, true, &y), TESS_OK);
    CHECK(!reads(NULL) && tess_yardstick_known(&y));
    pid_t spins[64];
    int n = 0;
    char *text = read_file(cache, NULL);
    for (; n < 2 * tess_cores() && n < 64; n++)
        if (!(spins[n] = fork()))
            for (;;) {
            }
    DONE("info", "--again");
    for (int i = 0; i < n; i++) kill(spins[i], SIGKILL), waitpid(spins[i], NULL, 0);
    CHECK_HAS(ran.out, "of the cores meanwhile: these rates are not kept");
    json_t *now = json_load_file(cache, 0, NULL), *then = json_loads(text, 0, NULL);
    CHECK(json_equal(json_object_get(now, "rates"), json_object_get(then, "rates")));
    json_decref(now), json_decref(then), free(text);
}

TEST(a_broken_file_is_made_anew)
{
    static const char *const broken[] = {"{", "{\"machine\": 7, \"rates\": [], \"drives\": \"none\"}"};
    setup_marked();
    char *good = read_file(cache, NULL);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        write_text(cache, broken[i]);
        CHECK(reads(NULL));
        CHECK(rate("rates", "matrix_rate_f32") > 0 && !marked());
    }
    write_text(cache, good);
    set("rates", "copy_rate", json_string("fast")); /* other rates that are none: tests/fuzz/fuzz_yardstick.c */
    CHECK(reads(NULL));
    CHECK(rate("rates", "copy_rate") > 0 && !marked());
    write_text(cache, good);
    json_t *c = json_load_file(cache, 0, NULL), *drives = json_object_get(c, "drives");
    json_object_set_new(json_object_iter_value(json_object_iter(drives)), "read_rate", json_null());
    CHECK(!json_dump_file(c, cache, 0));
    json_decref(c);
    CHECK(!reads(".") && drives_measured == 1);
    CHECK(marked());
    free(good);
}

/* ---- what tasks reach ---- */

/* Of fp32; a new reference to the member is taken. */
static void set_reached(json_t *of)
{
    json_t *c = json_load_file(cache, 0, NULL), *reached = json_object();
    json_object_set_new(reached, "f32", of);
    json_object_set_new(c, "reached", reached);
    CHECK(c && !json_dump_file(c, cache, 0));
    json_decref(c);
}
static double reached(const char *what)
{
    json_t *c = json_load_file(cache, 0, NULL);
    const double value =
        json_number_value(json_object_get(json_object_get(json_object_get(c, "reached"), "f32"), what));
    json_decref(c);
    return value;
}
#define MODEL                                                                                                          \
    "model={\"model_type\": \"gpt2\", \"n_layer\": 4, \"n_embd\": 512, \"n_head\": 8, \"vocab_size\": 1000, "          \
    "\"n_positions\": 256}",                                                                                           \
        "data.seq_length=256"

static double forecast(void)
{
    DONE("estimate", "run.json", MODEL);
    const char *at = strstr(ran.out, "compute, all workers together");
    CHECK(at);
    return at ? strtod(at + strcspn(at, "0123456789"), NULL) : NAN;
}

TEST(forecasts_go_by_what_tasks_reached)
{
    setup_marked();
    set("rates", "copy_rate", json_real(1e9)); /* so that a step is long */
    const double before = forecast();
    set_reached(json_pack("{s:f, s:f}", "matrix", 0.17, "copy", 0.08)); /* a fifth of what is assumed */
    CHECK_NEAR(forecast() / before, 5, 0.1);
    json_t *const nonsense[] = {json_pack("{s:f, s:f}", "matrix", 1.01, "copy", 0.08),
                                json_pack("{s:f, s:f}", "matrix", 0.17, "copy", -1.0),
                                json_pack("{s:f}", "matrix", 0.17), json_string("fast")};
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        set_reached(nonsense[i]);
        CHECK_NEAR(forecast() / before, 1, 1e-6);
    }
    tess_yardstick y;
    CHECK_EQ(tess_yardstick_read(NULL, true, &y), TESS_OK);
    CHECK(reached("matrix") == 0); /* they were shares of other rates */
}

TEST(a_bench_that_is_long_enough_says_what_tasks_reach)
{
    setup_marked();
    set("rates", "matrix_rate_f32_one_core", json_real(1e12));
    set("rates", "matrix_rate_f32", json_real(1e12)); /* of which no machine that runs this reaches all */
    set_best(json_real(1e12));
    DONE("bench", "run.json", "--steps", "1");
    CHECK(reached("matrix") == 0);
    for (int steps = 8; steps <= 512 && reached("matrix") == 0; steps *= 4) {
        DONE("bench", "run.json", MODEL, "--steps", fmt("%d", steps));
    }
    CHECK(reached("matrix") > 0.01 && reached("matrix") <= 1 && reached("copy") > 0);
    DONE("bench", "run.json", MODEL, "--steps", "1"); /* too short to say anything */
    CHECK(reached("matrix") > 0);
}

/* ---- MFU ---- */

TEST(the_best_of_what_can_be_true)
{
    static const double nonsense[] = {0, -1, -INFINITY, INFINITY, NAN, 2e12 * (1 + 1e-9), 1e300};
    const double limit = tess_mfu_limit(TESS_F32, 2, 0);
    CHECK_EQ(limit, 2e12);
    CHECK(tess_mfu_limit(TESS_BF16, 2, 0) > limit && tess_mfu_limit(TESS_BF16, 2, 1) > 1e15);
    CHECK_EQ(tess_mfu_best(100e9, 13e9, limit), 100e9); /* disturbed now */
    CHECK_EQ(tess_mfu_best(13e9, 100e9, limit), 100e9); /* disturbed then */
    CHECK_EQ(tess_mfu_best(limit, 0, limit), limit);
    for (size_t i = 0; i < sizeof nonsense / sizeof *nonsense; i++) {
        CHECK_EQ(tess_mfu_best(nonsense[i], 100e9, limit), 100e9);
        CHECK_EQ(tess_mfu_best(100e9, nonsense[i], limit), 100e9);
        CHECK_EQ(tess_mfu_best(nonsense[i], nonsense[i], limit), 0);
    }
}

TEST(no_share_is_above_1)
{
    const double limit = 1000;
    double yardstick = 100;
    CHECK_NEAR(tess_mfu_share(&yardstick, limit, 50, 1), 0.5, 1e-15);
    CHECK_NEAR(tess_mfu_share(&yardstick, limit, 0, 1), 0, 0);
    CHECK_NEAR(tess_mfu_share(&yardstick, limit, 100, 1), 1, 0);
    CHECK_EQ(yardstick, 100);
    CHECK_NEAR(tess_mfu_share(&yardstick, limit, 200, 1), 1, 0); /* proves it too low, */
    CHECK_EQ(yardstick, 200);
    CHECK_NEAR(tess_mfu_share(&yardstick, limit, 100, 1), 0.5, 1e-15); /* and is what later ones are measured by; */
    CHECK_NEAR(tess_mfu_share(&yardstick, limit, 5000, 1), 1, 0);      /* but not when nothing is that fast */
    CHECK_EQ(yardstick, 200);
    CHECK(isnan(tess_mfu_share(&yardstick, limit, 1, 0)) && isnan(tess_mfu_share(&yardstick, limit, 1, -1)));
    CHECK(isnan(tess_mfu_share(&yardstick, limit, NAN, 1)) && isnan(tess_mfu_share(&yardstick, limit, 1, NAN)));
    CHECK_EQ(yardstick, 200);
    static const double missing[] = {0, -1, NAN, INFINITY};
    for (size_t i = 0; i < sizeof missing / sizeof *missing; i++) {
        yardstick = missing[i];
        CHECK(isnan(tess_mfu_share(&yardstick, limit, 1, 1)));
    }
}

/* Every share that the last run printed or wrote; how many. */
static int check_shares(const char *metrics)
{
    int n = 0;
    double share;
    for (const char *p = ran.out; (p = strstr(p, "MFU ")); n++) {
        p += 4;
        if (sscanf(p, "%lf%%", &share) != 1 || !(share >= 0 && share <= 100)) CHECK_SAY("MFU %.10s", p);
    }
    json_t *all = read_metrics(metrics);
    for (size_t s = 0; s < json_array_size(all); s++) {
        share = number_of(all, s, "mfu");
        if (!(share > 0 && share <= 1)) CHECK_SAY("step %zu of %s has mfu %g", s, metrics, share);
        const double seconds = number_of(all, s, "seconds");
        for (int tier = 0; tier < 3; tier++) {
            const char *const name[] = {"gpu", "cpu", "disk"};
            const json_t *t = json_object_get(json_array_get(all, s), name[tier]);
            if (json_number_value(json_object_get(t, "wait_seconds")) > seconds * 1.001)
                CHECK_SAY("step %zu of %s waited longer than it took", s, metrics);
        }
    }
    json_decref(all);
    return n;
}

/* Whatever the cache says, and however small the run. */
TEST(runs_print_shares_of_the_best_rate)
{
    setup_marked();
    set_best(json_real(900e9));
    DONE("train", "run.json");
    CHECK_EQ(check_shares("out/metrics.jsonl"), 4);
    CHECK_EQ(best(), 900e9); /* nothing here is as fast */
    json_t *const broken[] = {json_real(1), json_real(-5e9), json_real(1e300), json_string("fast"), json_null()};
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        set_best(broken[i]);
        const char *output = fmt("output=again%zu", i);
        const char *metrics = fmt("again%zu/metrics.jsonl", i);
        DONE("train", "run.json", "eval_every=2", output);
        CHECK_EQ(check_shares(metrics), 4);
        CHECK(best() > 1e8 && best() < 1e13);
    }
    set_best(json_real(1));
    DONE("bench", "run.json", "--steps", "2");
    const char *of = strstr(ran.out, "GFLOP/s of the model: ");
    CHECK(of && atof(of + 22) > 0 && atof(of + 22) <= 100);
    unlink(cache);
    DONE("train", "run.json", "bf16.enabled=true", "steps=2", "output=new");
    CHECK_EQ(check_shares("new/metrics.jsonl"), 2);
    CHECK(exists(cache)); /* and an empty one is filled as far as a run measures, which costs the estimate nothing */
    CHECK(reads(NULL));
    CHECK(best() > 1e8 && best() < 1e13);
}

TEST(where_it_lies)
{
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    setup();
    setenv("XDG_CACHE_HOME", "/dev/null/nowhere", 1); /* cannot be made */
    CHECK(reads(NULL) && reads(NULL));
    mkdir("file", 0777);
    write_text("file/tessera", "in the way");
    setenv("XDG_CACHE_HOME", fmt("%s/file", run_dir), 1);
    CHECK(reads(NULL) && reads(NULL));
    DONE("estimate", "run.json");
    CHECK_STR(ran.err, "");
    CHECK_HAS(ran.out, "tokens/s");
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    CHECK(reads(NULL));
    DONE("info", "--help");
    CHECK_HAS(ran.out, "neither XDG_CACHE_HOME nor HOME");
    setenv("HOME", run_dir, 1);
    setenv("XDG_CACHE_HOME", "relative", 1); /* does not count */
    CHECK(reads(NULL));
    CHECK(exists(".cache/tessera/machine.json") && !exists("relative"));
    if (home) setenv("HOME", home, 1);
    free(home);
}
