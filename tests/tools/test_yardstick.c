/* The cache of what the machine can do: made once, used after that, and made anew whatever became of it. */
#define CHECK_MAIN
#include "tiny.h"

static const char *const cache = "cache/tessera/machine.json";

/* An empty directory with a configuration; the cache goes below it. */
static void setup(void)
{
    static char home[3200];
    tiny_setup();
    snprintf(home, sizeof home, "%s/cache", run_dir);
    setenv("XDG_CACHE_HOME", home, 1);
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

/* A cache that no measurement makes: 123 GFLOP/s, on a machine that had nothing else to do. */
static void mark(void)
{
    set("rates", "matrix_rate_f32", json_real(123e9));
    set("rates", "share", json_real(1));
}
static bool marked(void)
{
    return rate("rates", "matrix_rate_f32") == 123e9;
}

static void setup_marked(void)
{
    setup();
    RUN("info");
    EXPECT_DONE();
    mark();
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
    RUN("info");
    EXPECT_DONE();
    CHECK_STR(ran.err, "");
    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!(rate("rates", name[i]) > 0)) CHECK_SAY("%s has no %s", cache, name[i]);
    mark();
    char *text = read_file(cache, NULL);
    RUN("info");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "123 on all");
    RUN("estimate", "run.json", "memory.path=.", "zero_optimization.offload_optimizer.device=nvme");
    EXPECT_DONE();
    CHECK_HAS(ran.out, "GB/s");
    char *now = read_file(cache, NULL);
    CHECK_STR(now, text); /* the drive of both is the same */
    free(text), free(now);
    RUN("info", "--again");
    EXPECT_DONE();
    CHECK(!marked() && rate("rates", "matrix_rate_f32") > 0);
    RUN("info", "--agian");
    EXPECT_ERROR(2, "--agian");
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
    RUN("info");
    EXPECT_DONE();
    CHECK(marked());
    c = json_load_file(cache, 0, NULL);
    CHECK_EQ(json_object_size(json_object_get(c, "drives")), 2);
    json_decref(c);
}

TEST(another_machine_and_a_busy_one_are_measured_anew)
{
    setup_marked();
    set("machine", "cpu", json_string("Z80"));
    set("drives", "another", json_object());
    RUN("info");
    EXPECT_DONE();
    CHECK(!marked() && rate("rates", "matrix_rate_f32") > 0);
    json_t *c = json_load_file(cache, 0, NULL);
    CHECK_EQ(json_object_size(json_object_get(c, "drives")), 1); /* its drives are not ours */
    json_decref(c);
    mark();
    set("rates", "share", json_real(0.5));
    RUN("info");
    EXPECT_DONE();
    CHECK(!marked());
}

TEST(a_broken_file_is_made_anew)
{
    static const char *const broken[] = {"{", "[1, 2]", "{\"machine\": 7, \"rates\": [], \"drives\": \"none\"}"};
    setup_marked();
    char *good = read_file(cache, NULL);
    for (size_t i = 0; i < sizeof broken / sizeof *broken; i++) {
        write_text(cache, broken[i]);
        RUN("estimate", "run.json");
        EXPECT_DONE();
        CHECK_STR(ran.err, "");
        CHECK(rate("rates", "matrix_rate_f32") > 0 && !marked());
    }
    json_t *const wrong[] = {json_real(-1), json_string("fast")};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        write_text(cache, good);
        set("rates", "copy_rate", wrong[i]);
        RUN("estimate", "run.json");
        EXPECT_DONE();
        CHECK(rate("rates", "copy_rate") > 0 && !marked());
    }
    write_text(cache, good);
    json_t *c = json_load_file(cache, 0, NULL), *drives = json_object_get(c, "drives");
    json_object_set_new(json_object_iter_value(json_object_iter(drives)), "read_rate", json_null());
    CHECK(!json_dump_file(c, cache, 0));
    json_decref(c);
    RUN("info");
    EXPECT_DONE();
    CHECK(marked() && !strstr(ran.out, "read 0.00 GB/s"));
    free(good);
}

static void check_run(void)
{
    RUN("estimate", "run.json");
    EXPECT_DONE();
    CHECK_STR(ran.err, "");
    CHECK_HAS(ran.out, "tokens/s");
    RUN("info", "--help");
    EXPECT_DONE();
}

TEST(where_it_lies)
{
    char *home = getenv("HOME") ? strdup(getenv("HOME")) : NULL;
    setup();
    setenv("XDG_CACHE_HOME", "/dev/null/nowhere", 1); /* cannot be made */
    check_run();
    mkdir("file", 0777);
    write_text("file/tessera", "in the way");
    char path[3200];
    snprintf(path, sizeof path, "%s/file", run_dir);
    setenv("XDG_CACHE_HOME", path, 1);
    check_run();
    unsetenv("XDG_CACHE_HOME");
    unsetenv("HOME");
    check_run();
    CHECK_HAS(ran.out, "neither XDG_CACHE_HOME nor HOME");
    setenv("HOME", run_dir, 1);
    setenv("XDG_CACHE_HOME", "relative", 1); /* does not count */
    check_run();
    CHECK(exists(".cache/tessera/machine.json") && !exists("relative"));
    if (home) setenv("HOME", home, 1);
    free(home);
}
