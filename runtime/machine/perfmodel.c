/* StarPU's performance models, a file a codelet that it writes at its end, for schedulers that choose by them. A run
 * that was killed then, or found the disk full, leaves half a file, and every later run would abort at its first task:
 * such files go before StarPU starts. A whole one ends with an empty line.
 *
 * The first start on a machine, and with another number of GPUs or of cores that the process may use, measures its
 * buses into files beside them. A second one at that time would read half of these and end in an assertion: it waits.
 * And what a rank has of a machine is another machine to StarPU, by name: one process and several ranks by turns would
 * each measure again. */
#include "runtime/machine/machine_impl.h"
#include "runtime/ranks/devices.h"
#include <errno.h>
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BEGUN_US = 50 * 1000 }; /* another run has made a file and not yet locked it: it is empty so long */

/* StarPU holds a lock on a file that it writes: another run's end is awaited. */
static bool is_whole(const char *path)
{
    char end[2] = {0};
    FILE *f = fopen(path, "r");
    if (!f) return true; /* not ours to judge */
    fcntl(fileno(f), F_SETLKW, &(struct flock){.l_type = F_RDLCK});
    const bool read = fseek(f, -2, SEEK_END) == 0 && fread(end, 1, 2, f) == 2;
    fclose(f);
    return read && end[0] == '\n' && end[1] == '\n';
}

/* How many cores of this machine StarPU sees, of all: those of the process's mask, unless it binds no workers. */
static int cores_seen(int *all)
{
    static int cores;
    const char *nobind = getenv("STARPU_WORKERS_NOBIND");
    if (!cores) {
        tess_hardware h;
        tess_hardware_read(&h);
        cores = h.cores;
    }
    *all = cores;
    return nobind && atoi(nobind) ? cores : tess_share_read()->cores;
}

char *tess_perfmodels_host(void)
{
    char host[200] = "";
    const char *said = getenv("STARPU_HOSTNAME");
    int all;
    const int cores = cores_seen(&all);
    gethostname(host, sizeof host - 1);
    if (said) return tess_strdup(said);
    return cores < all ? tess_format("%s-%d-cores", host, cores) : tess_strdup(host);
}

/* A path below StarPU's folder. free() it. */
static char *below(const char *path)
{
    static const char *const homes[] = {"XDG_CACHE_HOME", "STARPU_HOME", "HOME"}; /* in StarPU's order */
    const char *dir = getenv("STARPU_PERF_MODEL_DIR"), *home = NULL;
    for (int i = 0; i < 3 && !home; i++) home = getenv(homes[i]);
    return dir ? tess_format("%s/%s", dir, path) : tess_format("%s/.starpu/sampling/%s", home ? home : "/tmp", path);
}

/* The files of such a name; false: there are none. */
static bool find(const char *name, glob_t *found)
{
    TESS_FREED char *path = tess_format("codelets/*/%s", name), *pattern = below(path);
    return !glob(pattern, 0, NULL, found);
}

/* A file of the bus's on this host. free() it. */
static char *bus_file(const char *end)
{
    char *host = tess_perfmodels_host(), *name = tess_format("bus/%s.%s", host, end), *path = below(name);
    free(host);
    free(name);
    return path;
}

/* Returns whether StarPU has measured the bus with as many devices and cores as there are now: else it measures again.
 * The platform is the last of the files that it writes. */
static bool is_measured(void)
{
    char *config = bus_file("config"), *platform = bus_file("platform.xml"), line[128];
    int devices = -1, cores = -1, all;
    FILE *f = access(platform, R_OK) ? NULL : fopen(config, "r");
    while (f && fgets(line, sizeof line, f)) {
        if (strstr(line, "# Number of CUDA devices")) devices = atoi(line);
        if (strstr(line, "# Number of CPUs")) cores = atoi(line);
    }
    if (f) fclose(f);
    free(config);
    free(platform);
    return devices == tess_gpu_devices() && cores == cores_seen(&all);
}

static void make_folders(char *path)
{
    for (char *c = path + 1; *c; c++) {
        if (*c != '/') continue;
        *c = 0;
        mkdir(path, 0777);
        *c = '/';
    }
}

int tess_perfmodels_lock(void)
{
    enum { MOST = 2400 }; /* tries in two minutes; a measurement that takes longer has gone astray */
#ifdef TESS_SIMULATED     /* ranks are threads, which nothing but StarPU lets take turns */
    return -1;
#endif
    TESS_FREED char *path = below("start.lock");
    make_folders(path);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    for (int i = 0; fd >= 0 && i < MOST && flock(fd, (is_measured() ? LOCK_SH : LOCK_EX) | LOCK_NB); i++) {
        if (errno != EWOULDBLOCK) break; /* no such thing on this drive */
        usleep(BEGUN_US);
    }
    return fd;
}

void tess_perfmodels_unlock(int fd)
{
    if (fd >= 0) close(fd);
}

/* A file is a list of numbers by lines, and a line that says for which kind of worker those are that follow. */
static void read_known(FILE *f, tess_known_times *k)
{
    char line[512];
    bool cpu = false;
    while (fgets(line, sizeof line, f)) {
        tess_known_time t;
        double spread, sum, squares;
        long long n;
        if (!strncmp(line, "# Model for ", 12)) cpu = !strncmp(line + 12, "cpu", 3);
        if (!cpu || *line == '#' ||
            sscanf(line, "%*8x %lf %lf %lf %lf %lf %lf %lld", &t.bytes, &t.flops, &t.seconds, &spread, &sum, &squares,
                   &n) != 7)
            continue;
        t.seconds *= 1e-6, t.times = (double)n;
        k->time = tess_realloc(k->time, (k->times + 1) * sizeof *k->time);
        k->time[k->times++] = t;
    }
}

void tess_known_times_read(const tess_codelet *cl, tess_known_times *k)
{
    glob_t found = {0};
    *k = (tess_known_times){0};
    TESS_FREED char *host = tess_perfmodels_host(),
                    *name = tess_format("tess_%s_%s.%s", cl->name, tess_dtype_name(cl->dtype), host);
    FILE *f = find(name, &found) && is_whole(found.gl_pathv[0]) ? fopen(found.gl_pathv[0], "r") : NULL;
    if (f) read_known(f, k), fclose(f);
    globfree(&found);
}

double tess_known_times_of(const tess_known_times *k, double bytes, double flops)
{
    double sum = 0, times = 0;
    for (size_t i = 0; i < k->times; i++) {
        const tess_known_time *t = &k->time[i];
        if (t->bytes != bytes || fabs(t->flops - flops) > 1e-6 * flops) continue; /* it is written in 7 digits */
        sum += t->seconds * t->times, times += t->times;
    }
    return times > 0 ? sum / times : 0;
}

void tess_perfmodels_check(void)
{
    glob_t found;
    if (!find("tess_*", &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        if (is_whole(found.gl_pathv[i])) continue;
        usleep(BEGUN_US);
        if (!is_whole(found.gl_pathv[i]) && unlink(found.gl_pathv[i]) == 0)
            tess_note("removed %s, a performance model that was not written to its end", found.gl_pathv[i]);
    }
    globfree(&found);
}
