/* Any bytes as the cache of this machine's yardsticks: whatever it holds, every rate is one afterwards. A byte 1 in the
 * input stands for what the file says this machine is; nothing is measured. */
#include "codelets/codelets.h"
#include "models/models.h"
#include "models/train/rates/yardstick.h"
#include "tests/fuzz/fuzz.h"
#include <math.h>
#include <stdio.h>
#include <sys/stat.h>

int fuzz_taken;
const int fuzz_cases = 4000;

/* ---- the machine, and what would be measured ---- */

static bool measured;

void __wrap_tess_hardware_read(tess_hardware *out);

double __wrap_tess_matrix_rate(tess_dtype t, int cores, int64_t n);
double __wrap_tess_copy_rate(int cores);
tess_status __wrap_tess_drive_name(const char *dirs, char **name);
tess_status __wrap_tess_drive_measure(const char *dirs, tess_drive *d);

void __wrap_tess_hardware_read(tess_hardware *out)
{
    *out = (tess_hardware){.cores = 1, .numa_nodes = 1, .cpu_name = "CPU", .isa = "avx2"};
}

double __wrap_tess_matrix_rate(tess_dtype t, int cores, int64_t n)
{
    measured = true;
    return (double)t + cores + (double)n;
}

double __wrap_tess_copy_rate(int cores)
{
    return cores;
}

tess_status __wrap_tess_drive_name(const char *dirs, char **name)
{
    *name = tess_strdup(dirs);
    return TESS_OK;
}

tess_status __wrap_tess_drive_measure(const char *dirs, tess_drive *d)
{
    (void)dirs;
    *d = (tess_drive){.read_rate = 1, .write_rate = 1, .mixed_read_rate = 1, .mixed_write_rate = 1};
    measured = true;
    return TESS_OK;
}

/* ---- the target ---- */

static char path[128], *machine;

/* The file as a run without a cache writes it, for what it says of the machine. */
static void learn(void)
{
    char *dir = tess_format("%s/tessera", fuzz_dir()), text[4096] = "";
    tess_yardstick y;
    setenv("XDG_CACHE_HOME", fuzz_dir(), 1);
    setenv("STARPU_NCPU", "1", 1);
    TESS_ASSERT(tess_yardstick_read("drive", false, &y) == TESS_OK);
    snprintf(path, sizeof path, "%s/machine.json", dir);
    FILE *f = fopen(path, "r");
    TESS_ASSERT(f && fread(text, 1, sizeof text - 1, f) > 0);
    fclose(f);
    free(dir);
    char *begin = strstr(text, "\"machine\""), *end = begin ? strchr(begin, '}') : NULL;
    TESS_ASSERT(end);
    machine = tess_format("%.*s", (int)(end + 1 - begin), begin);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    if (!machine) learn();
    size_t length;
    char *text = fuzz_fill(data, bytes, machine, &length);
    FILE *f = fopen(path, "w");
    TESS_ASSERT(f && fwrite(text, 1, length, f) == length && fclose(f) == 0);
    free(text);
    tess_yardstick y;
    measured = false;
    TESS_ASSERT(tess_yardstick_read("drive", false, &y) == TESS_OK);
    const double rate[] = {
        y.matrix_rate[0], y.matrix_rate[1],  y.matrix_rate_core[0], y.matrix_rate_core[1],   y.copy_rate,
        y.copy_rate_core, y.drive.read_rate, y.drive.write_rate,    y.drive.mixed_read_rate, y.drive.mixed_write_rate};
    for (size_t i = 0; i < sizeof rate / sizeof *rate; i++) TESS_ASSERT(rate[i] > 0 && isfinite(rate[i]));
    fuzz_taken += !measured;
    return 0;
}
