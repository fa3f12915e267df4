/* The yardsticks of this machine: measured once, kept in a file below the user's cache directory, and measured again
 * where the file is missing, broken, or from another machine. A problem with the file is never an error, since the file
 * only saves time. A drive is measured when a run first asks for it. */
#include "models/train/rates/yardstick.h"
#include "codelets/codelets.h"
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include "models/train/config/config.h"
#include "models/train/rates/mfu.h"
#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static const double NOISE = 1.1;   /* of two rates that are the same */
enum { VERSION = 2, SIZE = 1024 }; /* of the file: counts up when something is measured in another way; of matrices */

/* Where each rate stands, in the file and in memory. */
struct field {
    const char *name;
    size_t offset;
};
static const struct field machine_fields[] = {
    {"matrix_rate_f32", offsetof(tess_yardstick, matrix_rate[TESS_F32])},
    {"matrix_rate_bf16", offsetof(tess_yardstick, matrix_rate[TESS_BF16])},
    {"matrix_rate_f32_one_core", offsetof(tess_yardstick, matrix_rate_core[TESS_F32])},
    {"matrix_rate_bf16_one_core", offsetof(tess_yardstick, matrix_rate_core[TESS_BF16])},
    {"copy_rate", offsetof(tess_yardstick, copy_rate)},
    {"copy_rate_one_core", offsetof(tess_yardstick, copy_rate_core)},
    {"share", offsetof(tess_yardstick, share)},
    {NULL, 0},
};
static const struct field drive_fields[] = {
    {"read_rate", offsetof(tess_yardstick, drive.read_rate)},
    {"write_rate", offsetof(tess_yardstick, drive.write_rate)},
    {"mixed_read_rate", offsetof(tess_yardstick, drive.mixed_read_rate)},
    {"mixed_write_rate", offsetof(tess_yardstick, drive.mixed_write_rate)},
    {NULL, 0},
};

/* What this process measured and did not keep: all that it plans goes by the same rates. */
static tess_yardstick unkept;
/* Those of a machine that is not here. */
static tess_yardstick given;
static double given_gpu[TESS_YARDSTICKS]; /* of one of its GPUs */

void tess_yardstick_given(const tess_yardstick *y, const double gpu_matrix_rate[TESS_YARDSTICKS])
{
    given = *y;
    memcpy(given_gpu, gpu_matrix_rate, sizeof given_gpu);
}

tess_rates tess_efficiency_rates(const tess_yardstick *y, tess_dtype t)
{
    const double matrix = y->reached[t].matrix, copy = y->reached[t].copy;
    return (tess_rates){.flops = y->matrix_rate[t] * (matrix > 0 ? matrix : TESS_MATRIX_SHARE),
                        .copy = y->copy_rate * (copy > 0 ? copy : TESS_COPY_SHARE)};
}

static double *at(tess_yardstick *y, const struct field *f)
{
    return (double *)((char *)y + f->offset);
}

/* All or none: false where one is missing or cannot be a rate. */
static bool get_rates(const json_t *from, const struct field *f, tess_yardstick *y)
{
    tess_yardstick read = *y;
    for (; f->name; f++) {
        double rate = json_number_value(json_object_get(from, f->name));
        if (!(rate > 0 && isfinite(rate))) return false;
        *at(&read, f) = rate;
    }
    *y = read;
    return true;
}

static void set_rates(json_t *to, const struct field *f, tess_yardstick *y)
{
    for (; f->name; f++) json_object_set_new(to, f->name, json_real(*at(y, f)));
}

/* ---- the file ---- */

/* What the rates of a machine hold for; a drive's hold for the same. */
static json_t *machine_key(int cores)
{
    tess_hardware h;
    tess_hardware_read(&h);
    return json_pack("{s:i, s:s, s:s, s:i, s:s}", "version", VERSION, "cpu", h.cpu_name, "vectors", h.isa, "cores",
                     cores, "library", tess_matrix_library());
}

/* Rates of a part of the cores, as ranks have it, do not replace those of all. */
static char *cache_path(const char *dir, int cores)
{
    tess_hardware h;
    tess_hardware_read(&h);
    return cores == h.cores ? tess_format("%s/machine.json", dir) : tess_format("%s/machine-%d.json", dir, cores);
}

/* The cache for these cores as it is on disk, a new reference; an empty one where that is of no use. *path is a new
 * string, or NULL, where there is no place for it. */
static json_t *load(int cores, char **path)
{
    TESS_FREED char *dir = tess_cache_dir();
    TESS_FREED_JSON json_t *key = machine_key(cores);
    *path = dir ? cache_path(dir, cores) : NULL;
    json_t *cache = *path ? json_load_file(*path, JSON_REJECT_DUPLICATES, NULL) : NULL;
    if (cache && json_equal(json_object_get(cache, "machine"), key)) return cache;
    json_decref(cache);
    return json_pack("{s:O}", "machine", key);
}

/* Written beside it and renamed: whoever reads meanwhile sees the old one or the new one. */
static void save(const char *path, const json_t *cache)
{
    if (!path) return;
    TESS_FREED char *temporary = tess_format("%s-XXXXXX", path), *dir = tess_cache_dir();
    tess_dirs_make(dir, NULL);
    int fd = mkstemp(temporary);
    if (fd < 0) return;
    const bool good = !json_dumpfd(cache, fd, JSON_INDENT(4) | JSON_REAL_PRECISION(6) | JSON_SORT_KEYS);
    if (close(fd) || !good || rename(temporary, path)) unlink(temporary);
}

/* The member of that name, made where it is missing or something else. Borrowed. */
static json_t *member(json_t *object, const char *name)
{
    if (!json_is_object(json_object_get(object, name))) json_object_set_new(object, name, json_object());
    return json_object_get(object, name);
}

/* ---- the best matrix rates ----
 *
 * The cache has them beside what was measured together, for each set of cores or GPUs that a run used: a run adds to
 * them what it measures at its start and what its steps prove, and a busy machine never makes them worse. */

static const char *const best_name[TESS_YARDSTICKS] = {[TESS_F32] = "f32", [TESS_BF16] = "bf16"};

/* Those of this process's cores, or of its GPUs; made where there are none. Borrowed. */
static json_t *bests(json_t *cache, bool gpus)
{
    json_t *best = member(cache, "best");
    return member(best, gpus ? tess_gpu_support() : "cores");
}

static double limit_of(tess_dtype t, bool gpus)
{
    return tess_mfu_limit(t, tess_cores(), gpus ? tess_gpus() : 0);
}

static double kept_best(json_t *cache, tess_dtype t, bool gpus)
{
    return json_number_value(json_object_get(bests(cache, gpus), best_name[t]));
}

/* The best rate with `measured` among them; *changed where that is news. */
static double join_best(json_t *cache, tess_dtype t, bool gpus, double measured, bool *changed)
{
    const double kept = tess_mfu_best(kept_best(cache, t, gpus), 0, limit_of(t, gpus)),
                 best = tess_mfu_best(kept, measured, limit_of(t, gpus));
    if (best > kept * 1.001) { /* less is not worth a write */
        json_object_set_new(bests(cache, gpus), best_name[t], json_real(best));
        *changed = true;
    }
    return best;
}

/* ---- what tasks reached ---- */

static bool can_be(double matrix, double copy)
{
    return matrix > 0.01 && matrix <= 1 && copy > 0.01 && copy < 100; /* copies that stay in a cache are faster */
}

static void get_reached(const json_t *cache, tess_yardstick *y)
{
    for (int t = 0; t < TESS_YARDSTICKS; t++) {
        const json_t *of = json_object_get(json_object_get(cache, "reached"), best_name[t]);
        const double matrix = json_number_value(json_object_get(of, "matrix")),
                     copy = json_number_value(json_object_get(of, "copy"));
        if (can_be(matrix, copy)) y->reached[t].matrix = matrix, y->reached[t].copy = copy;
    }
}

void tess_yardstick_set_efficiency(tess_dtype t, double matrix, double copy)
{
    if (given.cores || !can_be(matrix, copy)) return;
    TESS_FREED char *path = NULL;
    TESS_FREED_JSON json_t *cache = load(tess_cores(), &path);
    json_object_set_new(member(cache, "reached"), best_name[t],
                        json_pack("{s:f, s:f}", "matrix", matrix, "copy", copy));
    save(path, cache);
}

/* Joins a rate to the cache, which is saved where it is better than all before; the best. */
static double remember(tess_dtype t, bool gpus, double rate)
{
    TESS_FREED char *path = NULL;
    TESS_FREED_JSON json_t *cache = load(tess_cores(), &path);
    bool changed = false;
    const double best = join_best(cache, t, gpus, rate, &changed);
    if (changed && tess_share_read()->rank == 0) save(path, cache); /* others of this machine have its like */
    return best;
}

/* No file may say more than cores can do, all together or each. */
bool tess_yardstick_plausible(const tess_yardstick *y)
{
    for (int t = 0; t < TESS_YARDSTICKS; t++) {
        const double all = y->matrix_rate[t], core = y->matrix_rate_core[t];
        if (fmax(all, core) > limit_of((tess_dtype)t, false) || all > NOISE * core * y->cores) return false;
    }
    return y->share >= TESS_QUIET;
}

double tess_yardstick_best(tess_dtype t)
{
    if (given.cores) return tess_gpus() > 0 ? tess_gpus() * given_gpu[t] : given.matrix_rate[t];
    const bool gpus = tess_gpus() > 0;
    const tess_share *share = tess_share_read();
    tess_yardstick y;
    if (!gpus && share->crowded && share->rank > 0) return 0;
    if (!gpus && tess_yardstick_known(&y)) return remember(t, gpus, y.matrix_rate[t]);
    return remember(t, gpus, gpus ? tess_gpu_matrix_rate(t) : tess_matrix_rate(t, tess_cores(), SIZE));
}

void tess_yardstick_raise(tess_dtype t, double rate)
{
    if (!given.cores) remember(t, tess_gpus() > 0, rate);
}

/* ---- measuring ---- */

/* The processor time of this program; all of its threads. */
static double used(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* What is over at once was not disturbed. */
static double share_of(double had, double wanted)
{
    return wanted > 0.3 ? had / wanted : 1;
}

/* Of a few turns the best: other programs only ever make a turn slower. */
static void measure_machine(tess_yardstick *y)
{
    enum { TURNS = 2 };
    double *rate[2][TESS_YARDSTICKS + 1] = {
        {&y->matrix_rate_core[TESS_F32], &y->matrix_rate_core[TESS_BF16], &y->copy_rate_core},
        {&y->matrix_rate[TESS_F32], &y->matrix_rate[TESS_BF16], &y->copy_rate}};
    double had[2] = {0}, wanted[2] = {0};
    tess_bar_begin("measuring this machine", TURNS * 2 * (TESS_YARDSTICKS + 1));
    for (int turn = 0; turn < TURNS; turn++)
        for (int all = 0; all < 2; all++)
            for (int what = 0; what <= TESS_YARDSTICKS; what++) {
                const int cores = all ? y->cores : 1;
                const double start = tess_seconds(), before = used();
                double r =
                    what < TESS_YARDSTICKS ? tess_matrix_rate((tess_dtype)what, cores, SIZE) : tess_copy_rate(cores);
                wanted[all] += cores * (tess_seconds() - start), had[all] += used() - before;
                if (r > *rate[all][what]) *rate[all][what] = r;
                tess_bar_step(1);
            }
    tess_bar_end();
    y->share = fmin(share_of(had[0], wanted[0]), share_of(had[1], wanted[1]));
}

static tess_status measure_drive(const char *dirs, tess_drive *drive)
{
    tess_bar_begin("measuring the drive", 0);
    const tess_status status = tess_drive_measure(dirs, drive);
    tess_bar_end();
    return status;
}

static tess_status read_drive(const char *dirs, bool again, json_t *drives, bool *changed, tess_yardstick *y)
{
    TESS_FREED char *name = NULL;
    tess_status status = tess_drive_name(dirs, &name);
    const json_t *known = status == TESS_OK ? json_object_get(drives, name) : NULL;
    if (!again && json_is_boolean(json_object_get(known, "direct")) && get_rates(known, drive_fields, y)) {
        y->drive.direct = json_is_true(json_object_get(known, "direct"));
    } else if (status == TESS_OK && (status = measure_drive(dirs, &y->drive)) == TESS_OK) {
        json_t *drive = json_pack("{s:b}", "direct", y->drive.direct);
        set_rates(drive, drive_fields, y);
        json_object_set_new(drives, name, drive);
        *changed = true;
    }
    return status;
}

tess_status tess_yardstick_read(const char *dirs, bool again, tess_yardstick *y)
{
    if (given.cores) return *y = given, TESS_OK;
    *y = (tess_yardstick){.cores = tess_cores()};
    TESS_FREED char *path = NULL;
    TESS_FREED_JSON json_t *cache = load(y->cores, &path);
    bool changed = false;
    if (again || !get_rates(json_object_get(cache, "rates"), machine_fields, y) || !tess_yardstick_plausible(y)) {
        *y = (tess_yardstick){.cores = y->cores};
        if (again || unkept.cores != y->cores) measure_machine(y), unkept = *y;
        *y = unkept;
        changed = tess_yardstick_plausible(y);
        if (changed) unkept.cores = 0;
    }
    if (changed) {
        if (again) json_object_del(cache, "best");
        json_object_del(cache, "reached"); /* of the rates that were */
        set_rates(member(cache, "rates"), machine_fields, y);
    }
    for (int t = 0; t < TESS_YARDSTICKS; t++) { /* all cores do no less than one */
        const double measured = fmax(y->matrix_rate[t], y->matrix_rate_core[t]);
        y->matrix_rate[t] = join_best(cache, (tess_dtype)t, false, measured, &changed);
    }
    get_reached(cache, y);
    tess_status status = dirs ? read_drive(dirs, again, member(cache, "drives"), &changed, y) : TESS_OK;
    if (changed) save(path, cache);
    return status;
}

bool tess_yardstick_known(tess_yardstick *y)
{
    bool changed = false;
    if (given.cores) return *y = given, true;
    *y = (tess_yardstick){.cores = tess_cores()};
    TESS_FREED char *path = NULL;
    TESS_FREED_JSON json_t *cache = load(y->cores, &path);
    const bool known = get_rates(json_object_get(cache, "rates"), machine_fields, y) && tess_yardstick_plausible(y);
    get_reached(cache, y);
    for (int t = 0; t < TESS_YARDSTICKS && known; t++)
        y->matrix_rate[t] =
            join_best(cache, (tess_dtype)t, false, fmax(y->matrix_rate[t], y->matrix_rate_core[t]), &changed);
    return known;
}
