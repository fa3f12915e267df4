/* Opens a page in a browser, at two widths, with a script of the test's at its end; skipped where there is no browser.
 *
 *     if (!browser_found()) SKIP("no chromium");
 *     browser_open("report.html", "return {title: document.title};");
 *     CHECK_STR(ran.err, "");                                       // what the console said
 *     json_t *wide = browser_result("wide"), *narrow = browser_result("narrow");
 */
#ifndef TESS_TESTS_BROWSER_H
#define TESS_TESTS_BROWSER_H
#include "tests/tools/tiny.h"

static const char *const browsers[] = {"chromium", "chromium-browser", "google-chrome"};
static const char *browser;

static inline bool browser_found(void)
{
    for (size_t i = 0; i < sizeof browsers / sizeof *browsers && !browser; i++) {
        run_finish(run_start_program(browsers[i], (const char *const[]){"--version", NULL}));
        if (!ran.status) browser = browsers[i];
    }
    return browser;
}

static inline void browser_frame(FILE *f, const char *name, int width)
{
    fprintf(f, "<iframe src=\"shown.html#%s\" width=\"%d\" height=\"700\"></iframe>\n", name, width);
}

/* The script is the body of a function whose result is told to the page around, which holds the page twice: 1200 and
 * 360 pixels wide. ran.err has the lines of the console. */
static inline void browser_open(const char *path, const char *script)
{
    char url[3300], *page = read_file(path, NULL), *end = page ? strstr(page, "</body>") : NULL;
    FILE *f = fopen("shown.html", "w");
    if (!end) {
        CHECK_SAY("%s is no page", path);
        fclose(f);
        return;
    }
    fwrite(page, 1, (size_t)(end - page), f);
    fprintf(
        f,
        "<script>addEventListener('load', () => setTimeout(() => { let r; try { r = (() => {%s})(); } catch (e) { "
        "console.error(e.stack); r = {}; } parent.postMessage([location.hash.slice(1), JSON.stringify(r)], '*'); }));"
        "</script>%s",
        script, end);
    fclose(f);
    free(page);
    f = fopen("around.html", "w");
    fputs(
        "<!doctype html><script>addEventListener('message', e => { const p = document.createElement('p');"
        "p.id = e.data[0]; p.textContent = btoa(unescape(encodeURIComponent(e.data[1]))); document.body.append(p); });"
        "</script>\n",
        f);
    browser_frame(f, "wide", 1200);
    browser_frame(f, "narrow", 360);
    fclose(f);
    snprintf(url, sizeof url, "file://%s/around.html", run_dir);
    run_finish(run_start_program(
        browser, (const char *const[]){"--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
                                       "--no-first-run", "--disable-background-networking", "--user-data-dir=browser",
                                       "--window-size=1300,1500", "--virtual-time-budget=4000",
                                       "--enable-logging=stderr", "--dump-dom", url, NULL}));
    char *said = malloc(strlen(ran.err) + 1), *to = said;
    for (char *line = ran.err, *next; *line; line = next) {
        next = line + strcspn(line, "\n");
        next += *next == '\n';
        const char *console = strstr(line, "CONSOLE");
        if (console && console < next) to += sprintf(to, "%.*s", (int)(next - line), line);
    }
    *to = 0;
    free(ran.err);
    ran.err = said;
}

/* What the script told of one of the two; NULL: nothing. */
static inline json_t *browser_result(const char *name)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char head[64];
    snprintf(head, sizeof head, "<p id=\"%s\">", name);
    const char *at = strstr(ran.out, head), *digit;
    if (!at) return NULL;
    char *text = malloc(strlen(at)), *to = text;
    unsigned bits = 0, n = 0;
    for (at += strlen(head); *at && (digit = strchr(digits, *at)); at++) {
        bits = bits << 6 | (unsigned)(digit - digits);
        if ((n += 6) >= 8) *to++ = (char)(bits >> (n -= 8));
    }
    json_t *result = json_loadb(text, (size_t)(to - text), 0, NULL);
    free(text);
    return result;
}

#endif
