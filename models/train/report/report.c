/* What a run says while it runs. metrics.jsonl is for programs and complete; the lines on the screen and the page are
 * for people. */
#include "models/train/report/report.h"
#include "models/networks/networks.h"
#include "models/text/base/text.h"
#include "models/train/report/monitor.h"
#include "models/train/report/page/page.h"
#include "runtime/runtime_base.h"
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

struct tess_report {
    FILE *metrics, *out; /* metrics NULL: of a rank that keeps quiet */
    char *path, *samples;
    tess_page *page;
    tess_monitor *monitor;
    int64_t steps, log_every;
    bool live;
    double step_seconds; /* a running mean over about ten steps, for the time left */
    int64_t counted;     /* steps that went into the mean */
};

/* ---- opening ---- */

/* Cuts lines off behind those of step `done`, whose first is 1, and where one is not whole. What stays goes to the
 * page, unless that is NULL. */
static bool rewind_lines(FILE *f, int64_t done, tess_page *page)
{
    TESS_FREED char *line = NULL;
    size_t room = 0;
    ssize_t n;
    off_t keep = 0;
    while ((n = getline(&line, &room, f)) > 0) {
        long long step;
        if (sscanf(line, "{\"step\":%lld,", &step) != 1 || step > done || line[n - 1] != '\n') break;
        keep += n;
        if (page) tess_page_add(page, line, (size_t)n);
    }
    return ftruncate(fileno(f), keep) == 0 && fseeko(f, keep, SEEK_SET) == 0;
}

int64_t tess_report_last(const char *output)
{
    enum { TAIL = 16 << 10 }; /* more than two lines */
    TESS_FREED char *path = tess_format("%s/metrics.jsonl", output), *tail = tess_alloc(TAIL + 1);
    long long step = 0, last = 0;
    FILE *f = fopen(path, "r");
    if (f && fseeko(f, -TAIL, SEEK_END)) rewind(f);
    size_t n = f ? fread(tail, 1, TAIL, f) : 0;
    tail[n] = 0;
    for (char *line = tail, *end; (end = strchr(line, '\n')); line = end + 1)
        if (sscanf(line, "{\"step\":%lld,", &step) == 1) last = step;
    if (f) fclose(f);
    return last;
}

/* Samples that a run which begins or resumes will make again. */
static void rewind_samples(const char *output, int64_t done)
{
    TESS_FREED char *path = tess_format("%s/samples.jsonl", output);
    FILE *f = fopen(path, "r+");
    if (f && !rewind_lines(f, done, NULL))
        tess_note("%s: cannot be cut: %s (nothing else depends on it)", path, strerror(errno));
    if (f) fclose(f);
}

tess_status tess_report_open(const tess_config *c, int64_t done, FILE *out, tess_report **report)
{
    *report = NULL;
    if (tess_rank() > 0) {
        *report = tess_alloc(sizeof **report);
        return TESS_OK;
    }
    char *path = tess_format("%s/metrics.jsonl", c->output);
    tess_page *page = tess_page_open(c->output);
    FILE *metrics = fopen(path, "a+");
    struct stat st;
    const bool odd = metrics && fstat(fileno(metrics), &st) == 0 && !S_ISREG(st.st_mode); /* a device has no end */
    if (!metrics || odd || !rewind_lines(metrics, done, page)) {
        const tess_status status =
            odd ? tess_error(TESS_INVALID, path, "is not a regular file (see output)")
                : tess_error(tess_errno_status(errno), path, "cannot be written: %s (see output)", strerror(errno));
        if (metrics) fclose(metrics);
        tess_page_free(page);
        free(path);
        return status;
    }
    tess_report *r = *report = tess_alloc(sizeof *r);
    rewind_samples(c->output, done);
    *r = (tess_report){.samples = tess_format("%s/samples.jsonl", c->output),
                       .metrics = metrics,
                       .out = out,
                       .path = path,
                       .page = page,
                       .steps = c->steps,
                       .log_every = c->log_every};
    r->live = isatty(fileno(out)) && !tess_ranks_launched(); /* a launcher's terminal leads to whatever it has itself */
    const tess_status status = tess_monitor_open(c, done > 0, &r->monitor);
    if (status == TESS_OK) return TESS_OK;
    tess_report_close(r);
    *report = NULL;
    return status;
}

void tess_report_close(tess_report *r)
{
    if (!r) return;
    if (r->live) tess_live_end();
    if (r->metrics) fclose(r->metrics);
    tess_page_close(r->page);
    tess_monitor_close(r->monitor);
    free(r->path);
    free(r->samples);
    free(r);
}

/* ---- metrics.jsonl ---- */

/* The shortest text that reads back as the same double. */
static void put_number(FILE *f, const char *name, double x)
{
    char text[32] = "null";
    for (int digits = 6; isfinite(x) && digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, x);
        if (strtod(text, NULL) == x) break;
    }
    fprintf(f, ",\"%s\":%s", name, text);
}

static void put_tier(FILE *f, const char *name, const tess_tier_report *t)
{
    fprintf(f, ",\"%s\":{\"resident_bytes\":%llu,\"peak_bytes\":%llu,\"read_bytes\":%llu,\"write_bytes\":%llu", name,
            (unsigned long long)t->resident_bytes, (unsigned long long)t->peak_bytes, (unsigned long long)t->read_bytes,
            (unsigned long long)t->write_bytes);
    put_number(f, "wait_seconds", t->wait_seconds);
    fputc('}', f);
}

/* "tasks":{"arc":{"acc":0.5}} */
static void put_tasks(FILE *f, const tess_step_report *s)
{
    for (int k = 0; k < s->task_numbers; k++) {
        const tess_task_number *n = &s->task[k];
        const bool begins = !k || strcmp(n->task, n[-1].task) != 0;
        TESS_FREED_JSON json_t *name = json_string(n->task);
        TESS_FREED char *text = json_dumps(name, JSON_ENCODE_ANY);
        if (begins) fprintf(f, "%s%s:{\"n\":%lld", k ? "}," : ",\"tasks\":{", text, (long long)n->questions);
        put_number(f, n->metric, n->value);
    }
    if (s->task_numbers) fputs("}}", f);
}

static void put_step(FILE *f, const tess_step_report *s)
{
    fprintf(f, "{\"step\":%lld", (long long)s->step + 1);
    put_number(f, "loss", s->loss);
    for (int k = 0; s->preference && k < TESS_PREFERENCE_NUMBERS; k++)
        put_number(f, tess_model_number_name(s->model, s->preference, k), s->own[k]);
    put_number(f, "lr", s->lr);
    put_number(f, "grad_norm", s->grad_norm);
    if (s->loss_scale > 0) put_number(f, "loss_scale", s->loss_scale);
    if (s->loss_scale > 0 || s->skipped > 0) fprintf(f, ",\"skipped_steps\":%lld", (long long)s->skipped);
    fprintf(f, ",\"tokens\":%lld", (long long)s->tokens);
    put_number(f, "padding", s->padding);
    put_number(f, "seconds", s->seconds);
    put_number(f, "tokens_per_s", s->tokens_per_s);
    put_number(f, "model_tflops", s->model_tflops);
    put_number(f, "mfu", s->mfu);
    put_number(f, "sent_bytes", (double)s->sent_bytes);
    if (s->slow_rate > 0) fprintf(f, ",\"slow_rank\":%d", s->slow_rank), put_number(f, "slow_rate", s->slow_rate);
    if (s->valid_loss) put_number(f, "valid_loss", *s->valid_loss);
    if (s->valid_loss && s->model && !s->preference && !tess_model_batch(s->model))
        put_number(f, "valid_perplexity", exp(*s->valid_loss));
    for (int k = 0; s->valid_loss && k < s->beside; k++) {
        char name[80];
        snprintf(name, sizeof name, "valid_%.64s", tess_model_number_name(s->model, s->preference, k));
        put_number(f, name, s->numbers[k]);
    }
    put_tasks(f, s);
    for (int t = 0; t < TESS_TIER_COUNT; t++) put_tier(f, tess_tier_name((tess_tier)t), &s->tier[t]);
    fputs("}\n", f);
}

/* The line of a step, or nothing of it. */
static bool append_step(FILE *f, const tess_step_report *s, tess_page *page)
{
    char *text = NULL;
    size_t size = 0, done = 0;
    FILE *line = open_memstream(&text, &size);
    put_step(line, s);
    fclose(line);
    off_t before = lseek(fileno(f), 0, SEEK_END);
    for (ssize_t n = 0; done < size && n >= 0; done += n > 0 ? (size_t)n : 0) {
        n = write(fileno(f), text + done, size - done);
        if (n < 0 && errno == EINTR) n = 0;
    }
    if (done == size) tess_page_add(page, text, size);
    free(text);
    if (done == size) return true;
    int error = errno;
    if (before < 0 || ftruncate(fileno(f), before)) return false; /* its last line is then not whole */
    errno = error;
    return false;
}

/* Appends what the model went on with to samples.jsonl: each line has its step, and becomes an object of it. */
static bool append_samples(const tess_report *r, const tess_step_report *s)
{
    FILE *f = fopen(r->samples, "a");
    for (const char *line = s->samples_made; f && *line; line += strcspn(line, "\n") + 1)
        fprintf(f, "{\"step\":%lld,%.*s\n", (long long)s->step + 1, (int)strcspn(line, "\n") - 1, line + 1);
    const bool written = f && !ferror(f);
    return f && !fclose(f) && written;
}

/* ---- lines ---- */

/* Appends "  text" to a line when it fits the width. */
static bool TESS_PRINTF(4, 5) add(char *line, size_t size, int width, const char *format, ...)
{
    char text[96];
    va_list ap;
    va_start(ap, format);
    vsnprintf(text, sizeof text, format, ap);
    va_end(ap);
    size_t used = strlen(line), gap = used ? 2 : 0, most = width < 0 ? 0 : (size_t)width;
    if (most > size - 1) most = size - 1;
    if (used + gap + strlen(text) > most) return false;
    sprintf(line + used, "%s%s", gap ? "  " : "", text);
    return true;
}

static const char *show_loss(double loss, char out[32])
{
    snprintf(out, 32, isfinite(loss) ? "%.4f" : "-", loss);
    return out;
}

static void add_step(const tess_step_report *s, int64_t steps, int width, char *line, size_t size)
{
    char loss[32];
    line[0] = 0;
    if (steps < 0)
        add(line, size, width, "step %lld", (long long)s->step + 1);
    else
        add(line, size, width, "step %lld/%lld", (long long)s->step + 1, (long long)steps);
    add(line, size, width, "loss %s", show_loss(s->loss, loss));
}

/* Nothing where it is not known. */
static void add_mfu(const tess_step_report *s, int width, char *line, size_t size)
{
    if (isfinite(s->mfu)) add(line, size, width, "MFU %.1f%%", 100 * s->mfu);
}

/* The most that each has held, which is what a plan says. */
static void add_tiers(const tess_step_report *s, int width, char *line, size_t size)
{
    for (int t = 0; t < TESS_TIER_COUNT; t++)
        if (s->tier[t].peak_bytes)
            add(line, size, width, "%s %s", tess_tier_name((tess_tier)t),
                tess_human_bytes((double)s->tier[t].peak_bytes));
}

/* "48.2M" */
static const char *short_bytes(double bytes)
{
    char *text = (char *)tess_human_bytes(bytes), *unit = strchr(text, ' ');
    if (unit) unit[0] = unit[1], unit[1] = 0;
    return text;
}

/* "0.57", "9876", "12.3k", "1.23M" */
static const char *short_count(double x, char out[32])
{
    const double k = x < 1e4 ? x : x < 1e6 ? x / 1e3 : x / 1e6;
    const int digits = (x < 1e4 && x >= 10) || k >= 99.95 ? 0 : k >= 9.995 ? 1 : 2;
    snprintf(out, 32, "%.*f%s", digits, k, x < 1e4 ? "" : x < 1e6 ? "k" : "M");
    return out;
}

/* The same in fewer letters, and as much of it as fits. */
static void short_line(const tess_step_report *s, int64_t steps, double seconds_left, int width, char *out, size_t size)
{
    char text[32];
    out[0] = 0;
    if (steps < 0)
        add(out, size, width, "%lld", (long long)s->step + 1);
    else
        add(out, size, width, "%lld/%lld", (long long)s->step + 1, (long long)steps);
    add(out, size, width, "loss %s", show_loss(s->loss, text));
    add(out, size, width, "%s tok/s", short_count(s->tokens_per_s, text));
    if (steps >= 0) add(out, size, width, "left %s", tess_human_time(seconds_left, text));
    if (isfinite(s->mfu)) add(out, size, width, "MFU %.0f%%", 100 * s->mfu);
    for (int t = 0; t < TESS_TIER_COUNT; t++)
        if (s->tier[t].peak_bytes)
            add(out, size, width, "%s %s", tess_tier_name((tess_tier)t), short_bytes((double)s->tier[t].peak_bytes));
}

void tess_report_line(const tess_step_report *s, int64_t steps, double seconds_left, int width, char *out, size_t size)
{
    enum { WIDE = 255 };
    char left[32], line[WIDE + 1];
    add_step(s, steps, WIDE, line, sizeof line);
    add(line, sizeof line, WIDE, "%.*f tokens/s", s->tokens_per_s < 10 ? 2 : 0, s->tokens_per_s);
    if (steps >= 0) add(line, sizeof line, WIDE, "left %s", tess_human_time(seconds_left, left));
    add_mfu(s, WIDE, line, sizeof line);
    add_tiers(s, WIDE, line, sizeof line);
    if (width > 0 && strlen(line) <= (size_t)width && strlen(line) < size)
        strcpy(out, line);
    else
        short_line(s, steps, seconds_left, width, out, size);
}

static void plain_line(const tess_report *r, const tess_step_report *s, double seconds_left)
{
    enum { WIDTH = 255 };
    char line[WIDTH + 1], left[32], valid[32];
    add_step(s, r->steps, WIDTH, line, sizeof line);
    if (s->valid_loss) add(line, sizeof line, WIDTH, "valid %s", show_loss(*s->valid_loss, valid));
    for (int k = 0; s->valid_loss && k < s->beside; k++)
        add(line, sizeof line, WIDTH, "%.40s %.4g", tess_model_number_name(s->model, s->preference, k), s->numbers[k]);
    for (int k = 0; k < s->task_numbers; k++) /* the first of each */
        if (!k || strcmp(s->task[k].task, s->task[k - 1].task) != 0)
            add(line, sizeof line, WIDTH, "%s %s %.4f", s->task[k].task, s->task[k].metric, s->task[k].value);
    add(line, sizeof line, WIDTH, "lr %.4g", s->lr);
    add(line, sizeof line, WIDTH, "grad %.4g", s->grad_norm);
    if (s->loss_scale > 0) add(line, sizeof line, WIDTH, "scale %.10g", s->loss_scale);
    add(line, sizeof line, WIDTH, "%.*f tokens/s", s->tokens_per_s < 10 ? 2 : 0, s->tokens_per_s);
    add_mfu(s, WIDTH, line, sizeof line);
    add_tiers(s, WIDTH, line, sizeof line);
    if (r->steps >= 0) add(line, sizeof line, WIDTH, "left %s", tess_human_time(seconds_left, left));
    if (r->live)
        tess_live_line(r->out, line, true);
    else
        fprintf(r->out, "%s\n", line);
}

static void live_line(const tess_report *r, const tess_step_report *s, double seconds_left)
{
    char line[256];
    struct winsize w = {0};
    int width = ioctl(fileno(r->out), TIOCGWINSZ, &w) == 0 && w.ws_col ? w.ws_col : 80;
    tess_report_line(s, r->steps, seconds_left, width - 1, line, sizeof line); /* a full line would wrap */
    tess_live_line(r->out, line, false);
}

/* The first step also makes what later ones find made, so it counts only until there is a second. */
static void count_seconds(tess_report *r, double seconds)
{
    const int64_t others = r->counted > 0 ? r->counted - 1 : 0;
    r->step_seconds += (seconds - r->step_seconds) / (double)(others < 9 ? others + 1 : 10);
    r->counted++;
}

tess_status tess_report_step(tess_report *r, const tess_step_report *s)
{
    if (!r->metrics) return TESS_OK;
    if (!append_step(r->metrics, s, r->page))
        return tess_error(TESS_FAILED, r->path, "cannot be written: %s%s", strerror(errno), tess_errno_hint(errno));
    if (s->samples_made && !append_samples(r, s))
        return tess_error(TESS_FAILED, r->samples, "cannot be written: %s%s", strerror(errno), tess_errno_hint(errno));
    count_seconds(r, s->seconds);
    double left = (double)(r->steps - s->step - 1) * r->step_seconds;
    bool due = (s->step + 1) % r->log_every == 0 || s->step + 1 == r->steps;
    const bool evaluated = s->valid_loss || s->task_numbers;
    if (r->live ? evaluated : due || evaluated) plain_line(r, s, left); /* what was evaluated stays */
    if (r->live) live_line(r, s, left);
    fflush(r->out);
    tess_monitor_step(r->monitor, s);
    tess_page_refresh(r->page);
    return TESS_OK;
}

/* ---- signals ---- */

static volatile sig_atomic_t stop;

static void on_signal(int number)
{
    static const char said[] = "\ntessera: ending after this step; the same again ends at once\n";
    (void)number;
    if (tess_watch_spoken()) _exit(TESS_FAILED); /* a launcher ends what is left of the ranks */
    if (stop) tess_watch_speak(), _exit(130);
    stop = 1;
    if (tess_rank()) return;
    ssize_t ignored = write(2, said, sizeof said - 1);
    (void)ignored;
}

void tess_signals_install(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGUSR1, &action, NULL);
}

bool tess_stop_requested(void)
{
    return stop;
}
