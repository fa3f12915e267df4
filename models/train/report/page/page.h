/* OUTPUT/report.html: a page that shows a run, or several side by side, to whoever opens it in a browser. It is one
 * file that asks for no other: page.html, which is compiled in, with what the runs left in its middle. */
#ifndef TESS_PAGE_H
#define TESS_PAGE_H
#include "models/train/report/page/series.h"

typedef struct tess_page_run {
    const char *output;        /* config.json, plan.json and samples.txt are read there, as far as they exist */
    const tess_series *series; /* of its metrics.jsonl */
    bool running;
    int64_t written; /* when it gave its last word, in seconds of the clock; 0: now */
} tess_page_run;

/* Writes the page of these runs, whole or not at all: beside its place, and renamed. `alone`: no other process writes
 * it but tessera report, which may at the same time. */
tess_status tess_page_write(const char *path, const tess_page_run *run, int runs, bool alone) TESS_NODISCARD;

/* Returns when the run whose output this is wrote its own page, where that says that the run goes on; else 0. */
int64_t tess_page_running(const char *output);

/* ---- the page of a run that goes on ---- */

typedef struct tess_page tess_page;

/* Begins OUTPUT/report.html with what its metrics.jsonl holds already. */
tess_page *tess_page_open(const char *output);
/* Adds a line of metrics, with its end or without; true where it is one. */
bool tess_page_add(tess_page *p, const char *line, size_t length);
/* Writes the page, if it is time: seldom enough to take less than a hundredth of the run. What goes wrong is said once,
 * and the run goes on. */
void tess_page_refresh(tess_page *p);
/* Writes it a last time, if it has a step to show, and frees it; NULL is nothing. */
void tess_page_close(tess_page *p);
/* Writes the page of a run that was killed behind its last step, and whose page says that it goes on. */
void tess_page_finish(const char *output);
/* Frees it alone. */
void tess_page_free(tess_page *p);

#endif
