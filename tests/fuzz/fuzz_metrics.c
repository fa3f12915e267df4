/* Any bytes as the metrics.jsonl of a run that goes on after step 5: what stays is its whole lines up to that step, and
 * the next line comes behind them. */
#include "fuzz.h"
#include "report_impl.h"

int fuzz_taken;
const int fuzz_cases = 8000;

enum { DONE = 5, NEXT };

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    static FILE *nowhere;
    if (!nowhere) nowhere = fopen("/dev/null", "w");
    const char *path = fuzz_file_in_dir("metrics.jsonl", data, bytes);
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
