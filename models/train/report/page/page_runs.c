/* tessera report: the page of runs that are over, or go on elsewhere, from the files that they left. */
#include "models/train/report/page/page.h"
#include "models/train/train.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static tess_status read_run(const char *output, tess_page_run *run)
{
    struct stat st;
    if (stat(output, &st)) return tess_error(TESS_INVALID, output, "%s (expected a run's output)", strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return tess_error(TESS_INVALID, output, "is no directory (expected a run's output, which has metrics.jsonl)");
    tess_series *series = tess_series_new();
    TESS_FREED char *path = tess_format("%s/metrics.jsonl", output);
    const int64_t written = tess_page_running(output); /* whether it still does, the page finds by the time since */
    *run = (tess_page_run){.output = output, .series = series, .running = written > 0, .written = written};
    tess_status status = tess_series_read(series, path);
    if (status == TESS_OK && !tess_series_lines(series))
        status = tess_error(TESS_INVALID, path, "holds no step (the run has not made one yet)");
    return status;
}

tess_status tess_report_runs(const char *const *output, int runs, const char *file, FILE *out)
{
    for (int i = 0; i < runs; i++)
        if (!output || !output[i]) return tess_error(TESS_INVALID, "report", "an output is NULL");
    if (runs < 1 || !out) return tess_error(TESS_INVALID, "report", "no run, or no place to name the page");
    TESS_FREED tess_page_run *run = tess_alloc((size_t)runs * sizeof *run);
    tess_status status = TESS_OK;
    for (int i = 0; i < runs && status == TESS_OK; i++) status = read_run(output[i], &run[i]);
    char *path = file        ? tess_strdup(file)
                 : runs == 1 ? tess_format("%s/report.html", output[0])
                             : tess_strdup("report.html");
    if (status == TESS_OK) status = tess_page_write(path, run, runs, false);
    if (status == TESS_OK) fprintf(out, "%s\n", path);
    for (int i = 0; i < runs; i++) tess_series_free((tess_series *)run[i].series);
    free(path);
    return status;
}
