/* StarPU's performance models, a file a codelet that it writes at its end, for schedulers that choose by them. A run
 * that was killed then, or found the disk full, leaves half a file, and every later run would abort at its first task:
 * such files go before StarPU starts. A whole one ends with an empty line. */
#include "machine_impl.h"
#include <glob.h>
#include <stdlib.h>
#include <unistd.h>

static bool is_whole(const char *path)
{
    char end[2] = {0};
    FILE *f = fopen(path, "r");
    if (!f) return true; /* not ours to judge */
    const bool read = fseek(f, -2, SEEK_END) == 0 && fread(end, 1, 2, f) == 2;
    fclose(f);
    return read && end[0] == '\n' && end[1] == '\n';
}

void tess_perfmodels_check(void)
{
    static const char *const homes[] = {"XDG_CACHE_HOME", "STARPU_HOME", "HOME"}; /* in StarPU's order */
    char pattern[4200];
    const char *dir = getenv("STARPU_PERF_MODEL_DIR"), *home = NULL;
    for (int i = 0; i < 3 && !home; i++) home = getenv(homes[i]);
    if (dir)
        snprintf(pattern, sizeof pattern, "%s/codelets/*/tess_*", dir);
    else
        snprintf(pattern, sizeof pattern, "%s/.starpu/sampling/codelets/*/tess_*", home ? home : "/tmp");
    glob_t found;
    if (glob(pattern, 0, NULL, &found)) return;
    for (size_t i = 0; i < found.gl_pathc; i++)
        if (!is_whole(found.gl_pathv[i]) && unlink(found.gl_pathv[i]) == 0)
            tess_note("removed %s, a performance model that was not written to its end", found.gl_pathv[i]);
    globfree(&found);
}
