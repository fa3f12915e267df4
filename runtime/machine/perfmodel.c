/* StarPU's performance models, a file a codelet that it writes at its end, for schedulers that choose by them. A run
 * that was killed then, or found the disk full, leaves half a file, and every later run would abort at its first task:
 * such files go before StarPU starts. A whole one ends with an empty line. */
#include "machine_impl.h"
#include <fcntl.h>
#include <glob.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
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

/* The files of such a name; false: there are none. */
static bool find(const char *name, glob_t *found)
{
    static const char *const homes[] = {"XDG_CACHE_HOME", "STARPU_HOME", "HOME"}; /* in StarPU's order */
    const char *dir = getenv("STARPU_PERF_MODEL_DIR"), *home = NULL;
    for (int i = 0; i < 3 && !home; i++) home = getenv(homes[i]);
    char *pattern = dir ? tess_format("%s/codelets/*/%s", dir, name)
                        : tess_format("%s/.starpu/sampling/codelets/*/%s", home ? home : "/tmp", name);
    const bool any = !glob(pattern, 0, NULL, found);
    free(pattern);
    return any;
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
    char host[256] = "";
    glob_t found = {0};
    *k = (tess_known_times){0};
    gethostname(host, sizeof host - 1);
    char *name = tess_format("tess_%s_%s.%s", cl->name, tess_dtype_name(cl->dtype), getenv("STARPU_HOSTNAME") ?: host);
    FILE *f = find(name, &found) && is_whole(found.gl_pathv[0]) ? fopen(found.gl_pathv[0], "r") : NULL;
    if (f) read_known(f, k), fclose(f);
    globfree(&found);
    free(name);
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
