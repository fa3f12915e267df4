/* All steps of a run in bounded memory, for report.html: however many there are, they are at most TESS_SERIES_MOST
 * spans of the same number of lines, which double when there are too many. A span keeps the mean of every metric (of a
 * rate the mean over the time of its steps) and, of those that curves are drawn of, its least and its largest value and
 * where they were; the first and the last line are kept as they are.
 *
 *     tess_series *s = tess_series_new();
 *     TESS_TRY(tess_series_read(s, "runs/demo/metrics.jsonl"));
 *     tess_series_write(s, f);
 *     tess_series_free(s);
 */
#ifndef TESS_SERIES_H
#define TESS_SERIES_H
#include "models/train/report/page/metrics.h"

enum { TESS_SERIES_MOST = 1200 }; /* spans: as many as a screen has columns */

typedef struct tess_series tess_series;

/* Makes an empty one. */
tess_series *tess_series_new(void);
/* Frees it; NULL is nothing. */
void tess_series_free(tess_series *s);
/* Adds a line; one that is not behind the last one is left out, and false. */
bool tess_series_add(tess_series *s, const tess_metrics *m);
/* Adds all lines of a file. A last line without an end, of a run that was stopped in the middle of it, is passed over;
 * one that is no line of metrics, or out of order, is TESS_INVALID with its number. */
tess_status tess_series_read(tess_series *s, const char *path) TESS_NODISCARD;
/* Returns the number of lines. */
int64_t tess_series_lines(const tess_series *s);
/* Writes it as members of a JSON object: "lines", "first", "last", "best", "sum", "from", "to", "mean", "points",
 * "gaps", and "tasks", a list of [step, what they came to]. Numbers of curves have six digits, those of the first and
 * the last line all of theirs. */
void tess_series_write(const tess_series *s, FILE *f);

#endif
