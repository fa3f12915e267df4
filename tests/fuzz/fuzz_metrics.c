/* Any bytes as the metrics.jsonl of a run that goes on after step 5: what stays is its whole lines up to that step, and
 * the next line comes behind them. What a report takes of them is JSON in the end, whatever the numbers. */
#include "models/train/report/page/series.h"
#include "models/train/report/report.h"
#include "tests/fuzz/fuzz.h"
#include <jansson.h>
#include <sys/stat.h>
#include <unistd.h>

int fuzz_taken;
const int fuzz_cases = 8000;

enum { DONE = 5, NEXT };

static void show(const char *path)
{
    char *text = NULL;
    size_t size = 0;
    tess_series *s = tess_series_new();
    const tess_status status = tess_series_read(s, path);
    FILE *f = open_memstream(&text, &size);
    fputc('{', f);
    tess_series_write(s, f);
    fputc('}', f);
    fclose(f);
    json_t *shown = json_loadb(text, size, JSON_REJECT_DUPLICATES, NULL);
    TESS_ASSERT(shown && json_integer_value(json_object_get(shown, "lines")) == tess_series_lines(s));
    TESS_ASSERT(status == TESS_OK || status == TESS_INVALID);
    json_decref(shown);
    free(text);
    tess_series_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static FILE *nowhere;
    if (!nowhere) {
        char page[300];
        nowhere = fopen("/dev/null", "w");
        snprintf(page, sizeof page, "%s/report.html.%d.new", fuzz_dir(), (int)getpid());
        TESS_ASSERT(mkdir(page, 0777) == 0); /* in the place of the page, which takes longer than all else */
    }
    const char *path = fuzz_file_in_dir("metrics.jsonl", data, bytes);
    show(path);
    const tess_config c = {.output = (char *)fuzz_dir(), .steps = 10, .log_every = 1};
    tess_report *r;
    TESS_ASSERT(tess_report_open(&c, DONE, nowhere, &r) == TESS_OK);
    TESS_ASSERT(tess_report_step(r, &(tess_step_report){.step = DONE, .loss = 1, .seconds = 1}) == TESS_OK);
    tess_report_close(r);
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t room = 0, at = 0;
    long long step = -1;
    for (ssize_t n; (n = getline(&line, &room, f)) > 0;) {
        TESS_ASSERT(line[n - 1] == '\n' && sscanf(line, "{\"step\":%lld,", &step) == 1);
        if (step == NEXT) continue;
        TESS_ASSERT(step <= DONE && at + (size_t)n <= bytes && !memcmp(data + at, line, (size_t)n));
        at += (size_t)n;
    }
    TESS_ASSERT(step == NEXT); /* the last */
    free(line);
    fclose(f);
    fuzz_taken += at > 0;
    return 0;
}
