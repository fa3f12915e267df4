/* Writing report.html, see page.h. All that is a user's, such as paths, settings and samples, stands in one block
 * of JSON in which no "<" is left, and the page shows it as text. */
#include "models/train/report/page/page.h"
#include "models/text/base/text.h"
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <utf8proc.h>

/* page.html, with a 0 behind it; tools/embed.c makes it a list of bytes. */
extern const unsigned char tess_page_html[];
static const char TITLE[] = "@TITLE@", DATA[] = "@DATA@";
/* No text of a user's holds that: its quotation marks are escaped. */
static const char RUNNING[] = "\"running\":true,\"written\":", ENDED[] = "\"running\":false,\"written\":";

enum { SAMPLES_MOST = 64 << 10 };

/* ---- texts ---- */

/* A string of JSON, in ASCII; bytes that are no UTF-8 become U+FFFD. */
static void put_string(FILE *f, const char *text, size_t n)
{
    fputc('"', f);
    for (size_t i = 0; i < n;) {
        int32_t c;
        const utf8proc_ssize_t used =
            utf8proc_iterate((const utf8proc_uint8_t *)text + i, (utf8proc_ssize_t)(n - i), &c);
        i += used > 0 ? (size_t)used : 1;
        if (used <= 0) c = 0xfffd;
        if (c > 0xffff) {
            fprintf(f, "\\u%04x", 0xd800 + ((c - 0x10000) >> 10));
            c = 0xdc00 + (c & 0x3ff);
        }
        if (c < ' ' || c > '~' || strchr("\"\\<>&", c))
            fprintf(f, "\\u%04x", (unsigned)c);
        else
            fputc(c, f);
    }
    fputc('"', f);
}

/* What json_dump_callback gives: outside of strings JSON has none of these. */
static int put_safely(const char *text, size_t n, void *f)
{
    for (size_t i = 0; i < n; i++)
        if (strchr("<>&", text[i]) && text[i])
            fprintf(f, "\\u%04x", (unsigned)text[i]);
        else
            fputc(text[i], f);
    return 0;
}

static void put_title(FILE *f, const char *text)
{
    for (; *text; text++)
        if (strchr("<>&\"", *text))
            fprintf(f, "&#%d;", *text);
        else
            fputc((unsigned char)*text < ' ' ? ' ' : *text, f);
}

/* "runs/demo" for "runs/demo/", and the working directory's own name for ".". */
static char *name_of(const char *output)
{
    char *full = realpath(output, NULL), *slash = full ? strrchr(full, '/') : NULL;
    char *name = tess_strdup(slash && slash[1] ? slash + 1 : output);
    free(full);
    return name;
}

/* ---- a run ---- */

/* A member with what a file of JSON holds, if there is one. */
static void put_json(FILE *f, const char *output, const char *file)
{
    TESS_FREED char *path = tess_format("%s/%s.json", output, file);
    TESS_FREED_JSON json_t *root = json_load_file(path, 0, NULL);
    if (root) {
        fprintf(f, ",\"%s\":", file);
        json_dump_callback(root, put_safely, f, JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(15));
    }
}

/* Puts the texts that the trained model generated, where samples.txt has them. */
static void put_samples(FILE *f, const char *output)
{
    TESS_FREED char *path = tess_format("%s/samples.txt", output), *text = tess_alloc(SAMPLES_MOST);
    FILE *samples = fopen(path, "r");
    const size_t n = samples ? fread(text, 1, SAMPLES_MOST, samples) : 0;
    if (n) {
        fputs(",\"samples\":", f);
        put_string(f, text, n);
    }
    if (samples) fclose(samples);
}

/* Puts the texts that it went on with behind its last evaluation, where samples.jsonl has them. */
static void put_texts(FILE *f, const char *output)
{
    TESS_FREED char *path = tess_format("%s/samples.jsonl", output), *line = NULL;
    size_t room = 0;
    json_int_t step = 0;
    TESS_FREED_JSON json_t *texts = json_array();
    FILE *samples = fopen(path, "r");
    if (samples && fseek(samples, -SAMPLES_MOST, SEEK_END)) rewind(samples);
    while (samples && getline(&line, &room, samples) > 0) {
        json_t *text = json_loads(line, 0, NULL);
        if (!text) continue; /* the end of one */
        if (json_integer_value(json_object_get(text, "step")) != step) json_array_clear(texts);
        step = json_integer_value(json_object_get(text, "step"));
        json_array_append_new(texts, text);
    }
    if (json_array_size(texts)) {
        fputs(",\"texts\":", f);
        json_dump_callback(texts, put_safely, f, JSON_COMPACT | JSON_ENSURE_ASCII);
    }
    if (samples) fclose(samples);
}

static void put_run(FILE *f, const tess_page_run *r)
{
    TESS_FREED char *name = name_of(r->output);
    fputs("{\"name\":", f);
    put_string(f, name, strlen(name));
    fputs(",\"output\":", f);
    put_string(f, r->output, strlen(r->output));
    fprintf(f, ",%s%lld,", r->running ? RUNNING : ENDED, (long long)(r->written ? r->written : time(NULL)));
    tess_series_write(r->series, f);
    put_json(f, r->output, "config");
    put_json(f, r->output, "plan");
    put_samples(f, r->output);
    put_texts(f, r->output);
    fputc('}', f);
}

/* ---- the page ---- */

static void put_page(FILE *f, const tess_page_run *run, int runs)
{
    const char *page = (const char *)tess_page_html, *title = strstr(page, TITLE), *data = strstr(page, DATA);
    TESS_ASSERT(title && data > title);
    fwrite(page, 1, (size_t)(title - page), f);
    for (int i = 0; i < runs; i++) {
        TESS_FREED char *name = name_of(run[i].output);
        if (i) fputs(", ", f);
        put_title(f, name);
    }
    title += strlen(TITLE);
    fwrite(title, 1, (size_t)(data - title), f);
    fputc('[', f);
    for (int i = 0; i < runs; i++) {
        if (i) fputs(",\n", f);
        put_run(f, &run[i]);
    }
    fputc(']', f);
    fputs(data + strlen(DATA), f);
}

tess_status tess_page_write(const char *path, const tess_page_run *run, int runs, bool alone)
{
    TESS_FREED char *fresh = alone ? tess_format("%s.new", path) : tess_format("%s.%d.new", path, (int)getpid());
    FILE *f = fopen(fresh, "w");
    tess_status status = TESS_OK;
    if (!f) {
        status = tess_error(tess_errno_status(errno), path, "cannot be written: %s", strerror(errno));
    } else {
        put_page(f, run, runs);
        const bool written = fflush(f) == 0 && !ferror(f);
        if ((fclose(f) != 0) || !written || rename(fresh, path) != 0) {
            status = tess_error(tess_errno_status(errno), path, "cannot be written: %s", strerror(errno));
            unlink(fresh);
        }
    }
    return status;
}

int64_t tess_page_running(const char *output)
{
    char *path = tess_format("%s/report.html", output), *line = NULL, *at = NULL;
    size_t room = 0;
    FILE *f = fopen(path, "r");
    int64_t written = 0;
    while (f && !at && getline(&line, &room, f) > 0)
        if ((at = strstr(line, RUNNING))) written = strtoll(at + strlen(RUNNING), NULL, 10);
    if (f) fclose(f);
    free(line);
    free(path);
    return written > 0 ? written : 0;
}

/* ---- the page of a run that goes on ---- */

struct tess_page {
    char *output, *path;
    tess_series *series;
    double due;
    bool fresh, said; /* nothing was added since it was written; that it could not be */
};

/* A page is written at least PAUSE seconds after the one before it, and TIMES times what writing that one took. */
static const double PAUSE = 5, TIMES = 200;

tess_page *tess_page_open(const char *output)
{
    tess_page *p = tess_alloc(sizeof *p);
    char *begun = tess_format("%s/report.html.new", output); /* of a run that was killed: this one may write none */
    unlink(begun);
    free(begun);
    *p = (tess_page){.output = tess_strdup(output),
                     .path = tess_format("%s/report.html", output),
                     .series = tess_series_new(),
                     .fresh = true};
    return p;
}

bool tess_page_add(tess_page *p, const char *line, size_t length)
{
    tess_metrics m;
    const bool added = tess_metrics_scan(line, length, &m) && tess_series_add(p->series, &m);
    if (added) p->fresh = false;
    return added;
}

static void write_page(tess_page *p, bool running)
{
    const tess_page_run run = {.output = p->output, .series = p->series, .running = running};
    p->fresh = true;
    char *before = tess_strdup(tess_error_text()); /* why the run ends stays said, */
    const int64_t agreed = tess_error_agreed();    /* and to whom */
    if (tess_page_write(p->path, &run, 1, true) != TESS_OK && !p->said && (running || !*before)) {
        tess_note("%s (nothing else depends on it)", tess_error_text());
        p->said = true;
    }
    tess_error_restore(before);
    tess_error_agree(agreed);
    free(before);
}

void tess_page_refresh(tess_page *p)
{
    const double now = tess_seconds();
    if (p->fresh || now < p->due) return;
    write_page(p, true);
    const double taken = tess_seconds() - now;
    p->due = now + (TIMES * taken > PAUSE ? TIMES * taken : PAUSE);
}

void tess_page_close(tess_page *p)
{
    if (p && tess_series_lines(p->series)) write_page(p, false);
    tess_page_free(p);
}

void tess_page_finish(const char *output)
{
    const bool running = tess_page_running(output) > 0;
    tess_page *p = tess_page_open(output);
    TESS_FREED char *path = tess_format("%s/metrics.jsonl", output);
    if (running && tess_series_read(p->series, path) == TESS_OK)
        tess_page_close(p);
    else
        tess_page_free(p);
    tess_error_clear(); /* such metrics are a report's to refuse */
}

void tess_page_free(tess_page *p)
{
    if (!p) return;
    tess_series_free(p->series);
    free(p->path);
    free(p->output);
    free(p);
}
