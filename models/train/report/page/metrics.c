/* Reading lines of metrics.jsonl, see metrics.h. A run of a million steps leaves a gigabyte of them, so numbers go
 * straight from the text to their places; everything else of JSON is checked and passed over. */
#include "models/train/report/page/metrics.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const plain_names[TESS_METRIC_TIERS] = {
    [TESS_METRIC_LOSS] = "loss",
    [TESS_METRIC_LR] = "lr",
    [TESS_METRIC_GRAD_NORM] = "grad_norm",
    [TESS_METRIC_LOSS_SCALE] = "loss_scale",
    [TESS_METRIC_SKIPPED] = "skipped_steps",
    [TESS_METRIC_TOKENS] = "tokens",
    [TESS_METRIC_SECONDS] = "seconds",
    [TESS_METRIC_TOKENS_PER_S] = "tokens_per_s",
    [TESS_METRIC_TFLOPS] = "model_tflops",
    [TESS_METRIC_MFU] = "mfu",
    [TESS_METRIC_SENT] = "sent_bytes",
    [TESS_METRIC_SLOW_RANK] = "slow_rank",
    [TESS_METRIC_SLOW_RATE] = "slow_rate",
    [TESS_METRIC_VALID_LOSS] = "valid_loss",
    [TESS_METRIC_VALID_PERPLEXITY] = "valid_perplexity",
    [TESS_METRIC_VALID_ACCURACY] = "valid_accuracy",
};
static const char *const tier_names[5 * TESS_TIER_COUNT] = {
    "gpu.resident_bytes",  "gpu.peak_bytes",  "gpu.read_bytes",  "gpu.write_bytes",  "gpu.wait_seconds",
    "cpu.resident_bytes",  "cpu.peak_bytes",  "cpu.read_bytes",  "cpu.write_bytes",  "cpu.wait_seconds",
    "disk.resident_bytes", "disk.peak_bytes", "disk.read_bytes", "disk.write_bytes", "disk.wait_seconds",
};

const char *tess_metric_name(tess_metric k)
{
    return k < TESS_METRIC_TIERS ? plain_names[k] : tier_names[k - TESS_METRIC_TIERS];
}

/* ---- JSON ---- */

enum { DEPTH = 32, NAME = 48 };

struct text {
    const char *at, *end;
    bool good;
    tess_metrics *out;
    int64_t step;
    int next;    /* the field that is likely to come */
    int unnamed; /* objects and lists around that have no name here: what is in them is no field */
};

static char peek(struct text *t)
{
    while (t->at < t->end && (*t->at == ' ' || *t->at == '\t' || *t->at == '\r' || *t->at == '\n')) t->at++;
    return t->at < t->end ? *t->at : 0;
}

static bool take(struct text *t, char c)
{
    const bool there = t->good && peek(t) == c && t->at < t->end;
    if (there) t->at++;
    return there;
}

static void expect(struct text *t, char c)
{
    if (!take(t, c)) t->good = false;
}

static bool take_word(struct text *t, const char *word)
{
    const size_t n = strlen(word);
    const bool there = (size_t)(t->end - t->at) >= n && !memcmp(t->at, word, n);
    if (there) t->at += n;
    return there;
}

/* A string; its text is *from, *length, with the escapes as they stand. */
static void string(struct text *t, const char **from, size_t *length)
{
    expect(t, '"');
    *from = t->at;
    while (t->good && t->at < t->end && *t->at != '"') {
        const unsigned char c = (unsigned char)*t->at++;
        if (c < ' ' || (c == '\\' && t->at++ >= t->end)) t->good = false;
    }
    *length = (size_t)(t->at - *from);
    expect(t, '"');
}

static double number(struct text *t)
{
    char copy[64]; /* strtod wants an end, and the last line of a file may have none */
    size_t n = 0;
    for (const char *p = t->at; p < t->end && n < sizeof copy - 1 && *p && strchr("+-.eE0123456789", *p); p++)
        copy[n++] = *p;
    copy[n] = 0;
    char *end;
    const double x = strtod(copy, &end);
    if (end == copy || *end || copy[0] == '+' || copy[0] == '.') t->good = false;
    t->at += n;
    return x;
}

static void value(struct text *t, const char *group, const char *name, size_t length, int depth);

static void object(struct text *t, const char *group, size_t group_length, int depth)
{
    char path[NAME];
    expect(t, '{');
    if (take(t, '}')) return;
    do {
        const char *name;
        size_t n;
        string(t, &name, &n);
        expect(t, ':');
        const bool fits = group_length + n + 2 < sizeof path;
        const int used = fits && group_length ? snprintf(path, sizeof path, "%.*s.", (int)group_length, group) : 0;
        if (fits && t->good) memcpy(path + used, name, n);
        value(t, path, path, fits ? (size_t)used + n : 0, depth + 1);
    } while (take(t, ','));
    expect(t, '}');
}

static void list(struct text *t, int depth)
{
    expect(t, '[');
    if (take(t, ']')) return;
    do value(t, NULL, NULL, 0, depth + 1);
    while (take(t, ','));
    expect(t, ']');
}

static void keep(struct text *t, const char *name, size_t length, double x)
{
    if (t->unnamed) return;
    if (length == 4 && !memcmp(name, "step", 4)) t->step = x >= 1 && x <= 9e15 && x == floor(x) ? (int64_t)x : 0;
    for (int i = 0; i < TESS_METRICS; i++) {
        const int k = (t->next + i) % TESS_METRICS;
        const char *known = tess_metric_name((tess_metric)k);
        if (known[0] != name[0] || strncmp(known, name, length) || known[length]) continue;
        t->out->there |= 1u << k;
        t->out->value[k] = isfinite(x) ? x : NAN;
        t->next = k + 1;
        return;
    }
}

/* `length` 0: of no name. */
static void value(struct text *t, const char *group, const char *name, size_t length, int depth)
{
    const char *from;
    size_t n;
    const char c = peek(t);
    if (!t->good || depth > DEPTH) {
        t->good = false;
    } else if (c == '{') {
        const bool tasks = depth == 1 && length == 5 && !memcmp(name, "tasks", 5);
        if (tasks) t->out->tasks = t->at;
        t->unnamed += !length || tasks;
        object(t, group, length, depth);
        t->unnamed -= !length || tasks;
        if (tasks) t->out->tasks_length = (size_t)(t->at - t->out->tasks);
    } else if (c == '[') {
        list(t, depth);
    } else if (c == '"') {
        string(t, &from, &n);
    } else if (take_word(t, "null")) {
        if (length) keep(t, name, length, NAN);
    } else if (!take_word(t, "true") && !take_word(t, "false")) {
        const double x = number(t);
        if (length && t->good) keep(t, name, length, x);
    }
}

bool tess_metrics_scan(const char *line, size_t length, tess_metrics *out)
{
    struct text t = {.at = line, .end = line + length, .good = true, .out = out};
    out->there = 0;
    out->tasks = NULL;
    object(&t, NULL, 0, 0);
    peek(&t);
    out->step = t.step;
    return t.good && t.at == t.end && t.step > 0;
}
