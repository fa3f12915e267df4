/* The rates of drives: what is measured, of which directories, and what a stream takes at them. */
#define CHECK_MAIN
#include "runtime/runtime.h"
#include "tests/check.h"
#include "tests/dirs.h"
#include <sys/stat.h>
#include <unistd.h>

static void check_rates(const char *dirs)
{
    tess_drive d;
    if (tess_drive_measure(dirs, &d)) CHECK_SAY("%s: %s", dirs, tess_error_text());
    const double rate[] = {d.read_rate, d.write_rate, d.mixed_read_rate, d.mixed_write_rate};
    for (int i = 0; i < 4; i++)
        if (!(rate[i] > 1e5 && rate[i] < 1e12)) CHECK_SAY("%s: rate %d is %g bytes a second", dirs, i, rate[i]);
}

TEST(rates_of_one_and_of_two)
{
    mkdir("test-drive-a", 0700);
    mkdir("test-drive-b", 0700);
    check_rates("test-drive-a");
    check_rates(":test-drive-a:test-drive-b"); /* nothing between colons is nothing */
    check_rates("test-drive-a/not/yet");
    CHECK_EQ(names_in("test-drive-a", "", NULL), 0); /* nothing stays, nothing was made */
    CHECK_EQ(names_in("test-drive-b", "", NULL), 0);
    rmdir("test-drive-a");
    rmdir("test-drive-b");
}

TEST(names)
{
    static const char *const same[] = {"./", "not-yet", "not/yet/either"};
    char *here, *other;
    CHECK_EQ(tess_drive_name(".", &here), TESS_OK);
    CHECK(strlen(here) > 0);
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(tess_drive_name(same[i], &other), TESS_OK);
        CHECK_STR(other, here);
        free(other);
    }
    CHECK_EQ(tess_drive_name("/proc", &other), TESS_OK);
    CHECK(strcmp(other, here));
    free(other);
    CHECK_EQ(tess_drive_name("/proc:.", &other), TESS_OK);
    CHECK_HAS(other, here);
    CHECK(strcmp(other, here));
    free(other);
    CHECK_EQ(tess_drive_name("/not-there-at-all", &other), TESS_OK); /* below "/" */
    free(other);
    free(here);
}

TEST(what_cannot_be_measured)
{
    tess_drive d;
    fclose(fopen("test-drive-file", "w"));
    CHECK_EQ(tess_drive_measure("test-drive-file", &d), TESS_INVALID);
    CHECK_HAS(tess_error_text(), "test-drive-file");
    CHECK(tess_drive_measure("/proc", &d) != TESS_OK);
    CHECK_EQ(tess_drive_measure(":", &d), TESS_INVALID);
    CHECK_EQ(tess_drive_free("not-there"), 0);
    CHECK(tess_drive_free(".") > 0);
    unlink("test-drive-file");
}
