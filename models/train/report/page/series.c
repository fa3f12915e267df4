/* A run's steps in bounded memory, see series.h. */
#include "models/train/report/page/series.h"
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The metrics that keep their extremes, because a curve of them is drawn as it was. */
enum { DRAWN = 7 };
static const tess_metric drawn[DRAWN] = {
    TESS_METRIC_LOSS,       TESS_METRIC_VALID_LOSS,       TESS_METRIC_GRAD_NORM,     TESS_METRIC_TOKENS_PER_S,
    TESS_METRIC_LOSS_SCALE, TESS_METRIC_VALID_PERPLEXITY, TESS_METRIC_VALID_ACCURACY};

/* Metrics that are rates. A span's rate is what its steps did together divided by the time they took together: a mean
 * weighted by the seconds of each step. */
enum { RATES = 3 };
static const tess_metric rates[RATES] = {TESS_METRIC_TOKENS_PER_S, TESS_METRIC_TFLOPS, TESS_METRIC_MFU};

struct point {
    int64_t step; /* 0: none */
    double value;
};

struct span {
    int64_t from, to, lines;      /* steps; lines of them */
    double sum[TESS_METRICS];     /* of rates: of what was done */
    uint32_t count[TESS_METRICS]; /* that are in the sum */
    double time[RATES];           /* of those */
    struct point least[DRAWN], most[DRAWN];
    int64_t gap[DRAWN]; /* the first step where it was not finite; 0: none */
};

struct tess_series {
    struct span span[TESS_SERIES_MOST];
    int spans;
    int64_t width, lines; /* of a span; in all */
    tess_metrics first, last;
    struct point best[2];     /* the least loss, and valid_loss */
    double sum[TESS_METRICS]; /* of all lines */
    struct {
        int64_t step;
        char *text;
    } tasks[TESS_SERIES_MOST]; /* what they came to, every `each` times that they were answered; */
    int tasked;                /* how many there are */
    int64_t each, met;
};

tess_series *tess_series_new(void)
{
    tess_series *s = tess_alloc(sizeof *s);
    s->width = s->each = 1;
    return s;
}

void tess_series_free(tess_series *s)
{
    for (int i = 0; s && i < s->tasked; i++) free(s->tasks[i].text);
    free(s);
}

int64_t tess_series_lines(const tess_series *s)
{
    return s->lines;
}

/* ---- adding ---- */

static void join_point(struct point *to, const struct point *from, bool least)
{
    if (from->step && (!to->step || (least ? from->value < to->value : from->value > to->value))) *to = *from;
}

static void join(struct span *to, const struct span *from)
{
    to->to = from->to;
    to->lines += from->lines;
    for (int k = 0; k < TESS_METRICS; k++) to->sum[k] += from->sum[k], to->count[k] += from->count[k];
    for (int r = 0; r < RATES; r++) to->time[r] += from->time[r];
    for (int d = 0; d < DRAWN; d++) {
        join_point(&to->least[d], &from->least[d], true);
        join_point(&to->most[d], &from->most[d], false);
        if (!to->gap[d]) to->gap[d] = from->gap[d];
    }
}

static struct span span_of(const tess_metrics *m)
{
    struct span s = {.from = m->step, .to = m->step, .lines = 1};
    for (int k = 0; k < TESS_METRICS; k++)
        if (TESS_METRIC_IN(m, k) && isfinite(m->value[k])) s.sum[k] = m->value[k], s.count[k] = 1;
    const bool timed = s.count[TESS_METRIC_SECONDS] && m->value[TESS_METRIC_SECONDS] > 0;
    for (int r = 0; r < RATES; r++) {
        s.time[r] = !s.count[rates[r]] ? 0 : timed ? m->value[TESS_METRIC_SECONDS] : 1;
        if (s.count[rates[r]]) s.sum[rates[r]] *= s.time[r];
    }
    for (int d = 0; d < DRAWN; d++) {
        if (s.count[drawn[d]]) s.least[d] = s.most[d] = (struct point){m->step, m->value[drawn[d]]};
        if (TESS_METRIC_IN(m, drawn[d]) && !s.count[drawn[d]]) s.gap[d] = m->step;
    }
    return s;
}

/* Two spans become one. */
static void halve(tess_series *s)
{
    for (int i = 0; i < s->spans / 2; i++) {
        s->span[i] = s->span[2 * i];
        join(&s->span[i], &s->span[2 * i + 1]);
    }
    s->spans /= 2;
    s->width *= 2;
}

/* Of too many every second one stays. */
static void add_tasks(tess_series *s, const tess_metrics *m)
{
    if (!m->tasks || s->met++ % s->each) return;
    if (s->tasked == TESS_SERIES_MOST) {
        for (int i = 0; i < s->tasked; i++) {
            if (i % 2)
                free(s->tasks[i].text);
            else
                s->tasks[i / 2] = s->tasks[i];
        }
        s->tasked /= 2, s->each *= 2;
    }
    s->tasks[s->tasked].step = m->step;
    s->tasks[s->tasked++].text = strndup(m->tasks, m->tasks_length);
}

bool tess_series_add(tess_series *s, const tess_metrics *m)
{
    static const int best_of[2] = {0, 1}; /* in `drawn` */
    if (s->lines && m->step <= s->last.step) return false;
    const struct span one = span_of(m);
    if (s->spans && s->span[s->spans - 1].lines < s->width) {
        join(&s->span[s->spans - 1], &one);
    } else {
        if (s->spans == TESS_SERIES_MOST) halve(s); /* all of them are full */
        s->span[s->spans++] = one;
    }
    for (int k = 0; k < TESS_METRICS; k++) s->sum[k] += one.count[k] ? m->value[k] : 0;
    for (int b = 0; b < 2; b++) join_point(&s->best[b], &one.least[best_of[b]], true);
    if (!s->lines++) s->first = *m;
    s->last = *m;
    add_tasks(s, m);
    return true;
}

tess_status tess_series_read(tess_series *s, const char *path)
{
    char *line = NULL, where[512];
    size_t room = 0;
    tess_metrics m;
    tess_status status = TESS_OK;
    FILE *f = fopen(path, "r");
    if (!f) return tess_error(TESS_INVALID, path, "%s (expected a run's file)", strerror(errno));
    errno = 0;
    for (int64_t n = 1; status == TESS_OK; n++) {
        const ssize_t length = getline(&line, &room, f);
        if (length <= 0 || line[length - 1] != '\n') break; /* the run was stopped in the middle of it */
        snprintf(where, sizeof where, "%.400s: line %lld", path, (long long)n);
        if (!tess_metrics_scan(line, (size_t)length - 1, &m))
            status =
                tess_error(TESS_INVALID, where, "is no line of metrics, expected a JSON object with \"step\" in it");
        else if (!tess_series_add(s, &m))
            status = tess_error(TESS_INVALID, where, "is of step %lld and stands behind one of step %lld",
                                (long long)m.step, (long long)s->last.step);
    }
    if (status == TESS_OK && ferror(f))
        status = tess_error(tess_errno_status(errno), path, "cannot be read: %s", strerror(errno));
    free(line);
    fclose(f);
    return status;
}

/* ---- writing ---- */

static void number(FILE *f, double x, int digits)
{
    if (isfinite(x))
        fprintf(f, "%.*g", digits, x);
    else
        fputs("null", f);
}

/* As it stands in metrics.jsonl. */
static void exact(FILE *f, double x)
{
    char text[32];
    int digits = 6;
    do snprintf(text, sizeof text, "%.*g", digits, x);
    while (digits++ < 17 && strtod(text, NULL) != x);
    fputs(isfinite(x) ? text : "null", f);
}

static void write_line(const tess_metrics *m, FILE *f)
{
    fprintf(f, "{\"step\":%lld", (long long)m->step);
    for (int k = 0; k < TESS_METRICS; k++)
        if (TESS_METRIC_IN(m, k)) {
            fprintf(f, ",\"%s\":", tess_metric_name((tess_metric)k));
            exact(f, m->value[k]);
        }
    fputc('}', f);
}

static bool any(const tess_series *s, int k)
{
    uint64_t count = 0;
    for (int i = 0; i < s->spans; i++) count += s->span[i].count[k];
    return count;
}

static double mean(const struct span *p, int k)
{
    for (int r = 0; r < RATES; r++)
        if ((int)rates[r] == k) return p->count[k] ? p->sum[k] / p->time[r] : NAN;
    return p->count[k] ? p->sum[k] / p->count[k] : NAN;
}

/* A number where it is the same in all spans, else a list. */
static void write_mean(const tess_series *s, int k, FILE *f)
{
    bool same = s->spans > 1;
    for (int i = 1; i < s->spans && same; i++) same = mean(&s->span[i], k) == mean(&s->span[0], k);
    if (!same) fputc('[', f);
    for (int i = 0; i < (same ? 1 : s->spans); i++) {
        if (i) fputc(',', f);
        number(f, mean(&s->span[i], k), 6);
    }
    if (!same) fputc(']', f);
}

/* The least and the largest value of each span in the order of their steps, with the run's first and last among them:
 * [step, value, step, value, ...]. */
static void write_points(const tess_series *s, int d, FILE *f)
{
    const char *comma = "";
    int64_t last = 0;
    fputc('[', f);
    for (int i = 0; i < s->spans; i++) {
        const struct span *p = &s->span[i];
        const bool turned = p->most[d].step < p->least[d].step;
        struct point of[4] = {{0}, turned ? p->most[d] : p->least[d], turned ? p->least[d] : p->most[d], {0}};
        const tess_metric k = drawn[d];
        if (i == 0 && TESS_METRIC_IN(&s->first, k)) of[0] = (struct point){s->first.step, s->first.value[k]};
        if (i == s->spans - 1 && TESS_METRIC_IN(&s->last, k)) of[3] = (struct point){s->last.step, s->last.value[k]};
        for (int j = 0; j < 4; j++) {
            if (of[j].step <= last || !isfinite(of[j].value)) continue;
            last = of[j].step;
            fprintf(f, "%s%lld,", comma, (long long)last);
            if (last == s->first.step || last == s->last.step)
                exact(f, of[j].value);
            else
                number(f, of[j].value, 6);
            comma = ",";
        }
    }
    fputc(']', f);
}

static void write_gaps(const tess_series *s, int d, FILE *f)
{
    const char *comma = "";
    fputc('[', f);
    for (int i = 0; i < s->spans; i++)
        if (s->span[i].gap[d]) fprintf(f, "%s%lld", comma, (long long)s->span[i].gap[d]), comma = ",";
    fputc(']', f);
}

static void write_steps(const tess_series *s, const char *name, bool to, FILE *f)
{
    fprintf(f, ",\"%s\":[", name);
    for (int i = 0; i < s->spans; i++)
        fprintf(f, "%s%lld", i ? "," : "", (long long)(to ? s->span[i].to : s->span[i].from));
    fputc(']', f);
}

static void write_best(const tess_series *s, FILE *f)
{
    static const char *const name[2] = {"loss", "valid_loss"};
    const char *comma = "";
    fputs(",\"best\":{", f);
    for (int b = 0; b < 2; b++) {
        if (!s->best[b].step) continue;
        fprintf(f, "%s\"%s\":[%lld,", comma, name[b], (long long)s->best[b].step);
        exact(f, s->best[b].value);
        fputc(']', f);
        comma = ",";
    }
    fputc('}', f);
}

void tess_series_write(const tess_series *s, FILE *f)
{
    const char *comma = "";
    fprintf(f, "\"lines\":%lld", (long long)s->lines);
    if (!s->lines) return;
    fputs(",\"first\":", f);
    write_line(&s->first, f);
    fputs(",\"last\":", f);
    write_line(&s->last, f);
    write_best(s, f);
    fputs(",\"sum\":{", f);
    for (int k = 0; k < TESS_METRICS; k++)
        if (any(s, k)) {
            fprintf(f, "%s\"%s\":", comma, tess_metric_name((tess_metric)k));
            number(f, s->sum[k], 9);
            comma = ",";
        }
    fputc('}', f);
    write_steps(s, "from", false, f);
    write_steps(s, "to", true, f);
    comma = "";
    fputs(",\"mean\":{", f);
    for (int k = 0; k < TESS_METRICS; k++)
        if (any(s, k)) {
            fprintf(f, "%s\"%s\":", comma, tess_metric_name((tess_metric)k));
            write_mean(s, k, f);
            comma = ",";
        }
    fputs("},\"points\":{", f);
    for (int d = 0; d < DRAWN; d++) {
        fprintf(f, "%s\"%s\":", d ? "," : "", tess_metric_name(drawn[d]));
        write_points(s, d, f);
    }
    fputs("},\"gaps\":{", f);
    for (int d = 0; d < DRAWN; d++) {
        fprintf(f, "%s\"%s\":", d ? "," : "", tess_metric_name(drawn[d]));
        write_gaps(s, d, f);
    }
    fputc('}', f);
    for (int i = 0; i < s->tasked; i++) {
        fprintf(f, "%s[%lld,", i ? "," : ",\"tasks\":[", (long long)s->tasks[i].step);
        for (const char *c = s->tasks[i].text; *c; c++) fprintf(f, *c == '<' ? "\\u003c" : "%c", *c); /* of a name */
        fputs(i + 1 < s->tasked ? "]" : "]]", f);
    }
}
