/* TensorBoard's event files and DeepSpeed's CSV files, see monitor.h. */
#include "models/train/report/monitor.h"
#include "models/networks/networks.h"
#include "models/text/base/directories.h"
#include "models/train/report/events_impl.h"
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The first three are DeepSpeed's. */
enum { LOSS, LR, SCALE, VALID, PERPLEXITY, ACCURACY, NORM, SPEED, MFU, TAGS };
static const char *const tags[TAGS] = {
    [LOSS] = "Train/Samples/train_loss",   [LR] = "Train/Samples/lr",
    [SCALE] = "Train/Samples/loss_scale",  [VALID] = "Valid/Samples/loss",
    [NORM] = "Train/Samples/grad_norm",    [SPEED] = "Train/Samples/tokens_per_s",
    [MFU] = "Train/Samples/mfu",           [PERPLEXITY] = "Valid/Samples/perplexity",
    [ACCURACY] = "Valid/Samples/accuracy",
};

struct tess_monitor {
    tess_events *events;
    char *events_dir, *csv; /* directories; csv NULL: none is asked for */
    FILE *file[TAGS];       /* of csv, opened when there is a value */
    bool resumed, began;
    bool events_failed, csv_failed;
};

/* ---- opening ---- */

/* OUTPUT_PATH/JOB_NAME, as DeepSpeed joins them. */
static char *dir_of(const char *path, const char *job)
{
    if (!job) job = ".";
    return path && *path ? tess_format("%s%s%s", path, tess_ends(path, "/") ? "" : "/", job) : tess_strdup(job);
}

static tess_status make_dir(const tess_config *c, const char *key, const char *path, const char *job)
{
    char where[512], *dir = dir_of(path, job);
    tess_status status = TESS_OK;
    if (!tess_dirs_make(dir, NULL) || access(dir, W_OK)) {
        snprintf(where, sizeof where, "%.300s: %s.output_path", c->file, key);
        status = tess_error(TESS_INVALID, where, "%s cannot be written to: %s", dir, strerror(errno));
    }
    free(dir);
    return status;
}

tess_status tess_monitor_check(const tess_config *c)
{
    if (c->tensorboard.enabled)
        TESS_TRY(make_dir(c, "tensorboard", c->tensorboard.output_path, c->tensorboard.job_name));
    if (c->csv_monitor.enabled)
        TESS_TRY(make_dir(c, "csv_monitor", c->csv_monitor.output_path, c->csv_monitor.job_name));
    return TESS_OK;
}

tess_status tess_monitor_open(const tess_config *c, bool resumed, tess_monitor **monitor)
{
    *monitor = NULL;
    if (tess_rank() || (!c->tensorboard.enabled && !c->csv_monitor.enabled)) return TESS_OK;
    tess_monitor *m = tess_alloc(sizeof *m);
    tess_status status = TESS_OK;
    m->resumed = resumed;
    if (c->tensorboard.enabled) {
        m->events_dir = dir_of(c->tensorboard.output_path, c->tensorboard.job_name);
        TESS_TRY_DONE(tess_events_open(m->events_dir, &m->events));
    }
    if (c->csv_monitor.enabled) m->csv = dir_of(c->csv_monitor.output_path, c->csv_monitor.job_name);
    *monitor = m;
    return TESS_OK;
done:
    tess_monitor_close(m);
    return status;
}

void tess_monitor_close(tess_monitor *m)
{
    if (!m) return;
    for (int t = 0; t < TAGS; t++)
        if (m->file[t]) fclose(m->file[t]);
    tess_events_close(m->events);
    free(m->events_dir);
    free(m->csv);
    free(m);
}

/* ---- CSV ---- */

/* As Python writes a float. */
static void show(double x, char out[static 40])
{
    if (!isfinite(x)) {
        strcpy(out, isnan(x) ? "nan" : x > 0 ? "inf" : "-inf");
        return;
    }
    for (int digits = 6; digits <= 17; digits++) {
        snprintf(out, 40, "%.*g", digits, x);
        if (strtod(out, NULL) == x) break;
    }
    if (!strpbrk(out, ".e")) strcat(out, ".0");
}

/* A file of a tag has its slashes as underscores. Each run appends a line that names the columns, and its rows; what
 * other runs left stays, but for a row that one of them was killed in, which is ended. */
static FILE *open_csv(const tess_monitor *m, int tag)
{
    char name[64];
    snprintf(name, sizeof name, "%s", tags[tag]);
    for (char *p = name; *p; p++)
        if (*p == '/') *p = '_';
    TESS_FREED char *path = tess_format("%s/%s.csv", m->csv, name);
    FILE *f = fopen(path, "a+");
    if (f) {
        const bool torn = fseeko(f, -1, SEEK_END) == 0 && fgetc(f) != '\n';
        fseeko(f, 0, SEEK_END);
        fprintf(f, "%sstep,%s\r\n", torn ? "\r\n" : "", strrchr(tags[tag], '/') + 1);
    }
    return f;
}

static bool write_csv(tess_monitor *m, int64_t samples, int tag, double value)
{
    char text[40];
    if (!m->file[tag]) m->file[tag] = open_csv(m, tag);
    if (!m->file[tag]) return false;
    show(value, text);
    return fprintf(m->file[tag], "%lld,%s\r\n", (long long)samples, text) > 0 && fflush(m->file[tag]) == 0;
}

/* ---- a step ---- */

/* Its values, those that it has alone; how many. */
static int values_of(const tess_step_report *s, int tag[static TAGS], double value[static TAGS])
{
    const bool valid = s->valid_loss, words = valid && s->model && !tess_model_batch(s->model);
    const bool there[TAGS] = {[LOSS] = true,   [LR] = true,          [SCALE] = s->loss_scale > 0,
                              [VALID] = valid, [PERPLEXITY] = words, [ACCURACY] = words && s->beside,
                              [NORM] = true,   [SPEED] = true,       [MFU] = !isnan(s->mfu)};
    const double all[TAGS] = {[LOSS] = s->loss,
                              [LR] = s->lr,
                              [SCALE] = s->loss_scale,
                              [VALID] = valid ? *s->valid_loss : 0,
                              [PERPLEXITY] = valid ? exp(*s->valid_loss) : 0,
                              [ACCURACY] = there[ACCURACY] ? s->numbers[0] : 0,
                              [NORM] = s->grad_norm,
                              [SPEED] = s->tokens_per_s,
                              [MFU] = s->mfu};
    int n = 0;
    for (int t = 0; t < TAGS; t++) {
        if (!there[t]) continue;
        tag[n] = t;
        value[n++] = all[t];
    }
    return n;
}

static void say_failed(const char *dir, bool *failed)
{
    tess_note("%s: cannot be written: %s (the run goes on without it)", dir, strerror(errno));
    *failed = true;
}

/* What the model went on with, as lines of code. */
static bool add_samples(tess_monitor *m, const tess_step_report *s)
{
    TESS_FREED char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);
    for (const char *line = s->samples_made; *line; line += strcspn(line, "\n") + 1)
        fprintf(f, "    %.*s\n", (int)strcspn(line, "\n"), line);
    fclose(f);
    return tess_events_add_text(m->events, s->samples, "Valid/Samples/texts", text);
}

void tess_monitor_step(tess_monitor *m, const tess_step_report *s)
{
    const int64_t samples = s->samples;
    int tag[TAGS];
    double value[TAGS];
    tess_scalar scalar[TAGS];
    if (!m) return;
    const int n = values_of(s, tag, value);
    for (int i = 0; i < n; i++) scalar[i] = (tess_scalar){tags[tag[i]], value[i]};
    const bool begins = m->resumed && !m->began;
    if (m->events && !m->events_failed &&
        ((begins && !tess_events_begin(m->events, samples)) || !tess_events_add(m->events, samples, scalar, n) ||
         (s->samples_made && !add_samples(m, s))))
        say_failed(m->events_dir, &m->events_failed);
    for (int i = 0; i < n && m->csv && !m->csv_failed; i++)
        if (!write_csv(m, samples, tag[i], value[i])) say_failed(m->csv, &m->csv_failed);
    m->began = true;
}
