/* Lines of metrics.jsonl as numbers. What writes them is report.c; docs/observe.md says what each field is.
 *
 *     tess_metrics m;
 *     if (tess_metrics_scan(line, length, &m) && TESS_METRIC_IN(&m, TESS_METRIC_LOSS))
 *         printf("step %lld: %g\n", (long long)m.step, m.value[TESS_METRIC_LOSS]);
 */
#ifndef TESS_METRICS_H
#define TESS_METRICS_H
#include "runtime/runtime.h"

/* The five fields of a tier stand together, and the tiers in the order of tess_tier. */
typedef enum tess_metric {
    TESS_METRIC_LOSS,
    TESS_METRIC_LR,
    TESS_METRIC_GRAD_NORM,
    TESS_METRIC_LOSS_SCALE,
    TESS_METRIC_SKIPPED,
    TESS_METRIC_TOKENS,
    TESS_METRIC_SECONDS,
    TESS_METRIC_TOKENS_PER_S,
    TESS_METRIC_TFLOPS,
    TESS_METRIC_MFU,
    TESS_METRIC_SENT,
    TESS_METRIC_SLOW_RANK,
    TESS_METRIC_SLOW_RATE,
    TESS_METRIC_VALID_LOSS,
    TESS_METRIC_VALID_PERPLEXITY,
    TESS_METRIC_VALID_ACCURACY,
    TESS_METRIC_TIERS,
    TESS_METRICS = TESS_METRIC_TIERS + 5 * TESS_TIER_COUNT
} tess_metric;

typedef struct tess_metrics {
    int64_t step;
    uint32_t there;             /* bits of the fields that the line has: */
    double value[TESS_METRICS]; /* NaN: it is null, a number that was not finite */
    const char *tasks;          /* of the line, what tasks came to; NULL: none did, */
    size_t tasks_length;        /* an object of that many letters */
} tess_metrics;

#define TESS_METRIC_IN(m, k) ((m)->there >> (k)&1)

/* Returns a field's name, "loss" or "disk.read_bytes". */
const char *tess_metric_name(tess_metric k);
/* Reads a line without its end: false where it is no JSON object, or has no "step" from 1 on. Fields that are not in
 * the list are passed over. */
bool tess_metrics_scan(const char *line, size_t length, tess_metrics *out);

#endif
