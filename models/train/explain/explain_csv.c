/* The tasks of a trace as comma-separated values, for other programs: one a line, those of a rank in the order of their
 * ends. docs/observe.md has the columns. */
#include "models/text/base/directories.h"
#include "models/text/base/text.h"
#include "models/train/explain/explain_impl.h"
#include <stdlib.h>
#include <string.h>

/* The step that a task of a rank is of: the first that ends no earlier, else the last. */
static uint64_t step_of(const tess_traced *t, const tess_event *task)
{
    size_t n, i = 0;
    const tess_event *step = tess_traced_of(t, task->rank, TESS_EVENT_STEP, &n);
    while (i + 1 < n && step[i].end < task->end) i++;
    return n ? step[i].number : 0;
}

static void put_name(FILE *f, const char *name)
{
    if (!strpbrk(name, ",\"")) {
        fputs(name, f);
        return;
    }
    fputc('"', f);
    for (; *name; name++) fprintf(f, *name == '"' ? "\"\"" : "%c", *name);
    fputc('"', f);
}

/* Nothing where a moment is not known. */
static void put_moment(FILE *f, double seconds)
{
    if (seconds >= 0) fprintf(f, "%.9f", seconds);
    fputc(',', f);
}

static void put_task(FILE *f, const tess_traced *t, const tess_event *e)
{
    fprintf(f, "%llu,%d,%d,%llu,", (unsigned long long)step_of(t, e), e->rank, (int)e->track - TESS_FIRST_WORKER,
            (unsigned long long)e->number);
    put_name(f, t->name[e->name]);
    fprintf(f, ",%d,", e->helps);
    put_moment(f, e->submitted);
    put_moment(f, e->ready);
    fprintf(f, "%.9f,%.9f,", e->begin, e->end);
    put_moment(f, e->ready < 0 ? -1 : e->begin > e->ready ? e->begin - e->ready : 0);
    fprintf(f, "%.0f\n", e->flops);
}

static size_t put_tasks(FILE *f, const tess_traced *t)
{
    size_t tasks = 0, n;
    fputs("step,rank,worker,order,codelet,helps,submitted,ready,begin,end,waited,flops\n", f);
    for (int r = 0; r < t->ranks; r++) {
        const tess_event *e = tess_traced_of(t, r, TESS_EVENT_TASK, &n);
        for (size_t i = 0; i < n; i++) put_task(f, t, &e[i]);
        tasks += n;
    }
    return tasks;
}

tess_status tess_explain_csv(const char *output, const char *file, FILE *out)
{
    if (!output || !file || !out)
        return tess_error(TESS_INVALID, output ? file ? "output" : "file" : "directory", "is NULL");
    tess_traced t;
    TESS_FREED char *path = tess_format("%s/trace.json", output), *fresh = tess_format("%s.new", file);
    tess_status status = tess_traced_read(path, &t);
    if (status == TESS_OK) {
        FILE *f = fopen(fresh, "w");
        const size_t tasks = f ? put_tasks(f, &t) : 0;
        status = tess_file_end(f, fresh, file, true);
        if (status == TESS_OK) fprintf(out, "%s: %zu tasks\n", file, tasks);
    }
    tess_traced_free(&t);
    return status;
}
